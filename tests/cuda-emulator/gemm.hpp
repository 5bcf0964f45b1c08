// C = epilogue(alpha op(A) op(B) + beta C), column-major, for a batch of matrices at fixed distances.
#pragma once

// GEMM_TF32: F32, of which 10 bits of mantissa are multiplied. The others have the library's numbers.
enum GemmType : int { GEMM_F32 = 0, GEMM_F64 = 1, GEMM_F16 = 2, GEMM_BF16 = 14, GEMM_TF32 = -1 };

struct GemmJob {
    bool transa, transb;
    long long m, n, k;
    const void* a;
    const void* b;
    void* c;
    GemmType a_type, c_type; // B has A's
    long long lda, ldb, ldc, stride_a, stride_b, stride_c, batch;
    bool wide; // sums are F64
    double alpha, beta;
    const void* bias; // a row for each of C, of C's type; nullptr: none
    bool relu, keeps_nan;
    const void* sums; // of `finish_gemm`: op(A) op(B), without gaps, as what sums are
};

unsigned long long gemm_scratch_bytes(const GemmJob& job);
void run_gemm(const GemmJob& job, void* scratch);
// Has the job's sums become its result.
void finish_gemm(const GemmJob& job);
