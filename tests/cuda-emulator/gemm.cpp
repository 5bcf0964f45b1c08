// The products themselves. The order of the sums over k is that of k, whatever the sizes are, so results do not depend on
// the tiling. Includes the shim for its 16-bit types, and so no header of the system.
#include "shim/core.hpp"
#include "shim/cuda_bf16.h"
#include "shim/cuda_fp16.h"

#include "gemm.hpp"
#include "gemm_tile.hpp"
#include "tf32.hpp"

namespace {

const Tile& tile_functions() {
#if defined(__x86_64__)
    static const bool fused = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return fused ? FUSED_TILE : PLAIN_TILE;
#else
    return PLAIN_TILE;
#endif
}
inline void multiply(const float* a, const float* b, long long k, float* sums) { tile_functions().f32(a, b, k, sums); }
inline void multiply(const double* a, const double* b, long long k, double* sums) { tile_functions().f64(a, b, k, sums); }

// Element (row, k) of op(A), or (k, column) of op(B), with the way from one to the next in either direction.
template <class In> struct View {
    const In* data;
    long long along, over; // along: the tile's direction; over: that of k
};

// out[k][i] for `count` of `width` rows or columns; the others are zero.
template <class T, class In> void pack(const View<In>& view, long long first, long long count, long long width, long long k, T* out) {
    for (long long step = 0; step < k; step++)
        for (long long i = 0; i < width; i++)
            out[step * width + i] = i < count ? T(view.data[(first + i) * view.along + step * view.over]) : T(0);
}

inline long long smaller(long long a, long long b) { return a < b ? a : b; }
inline long long tiles(long long size, long long unit) { return (size + unit - 1) / unit; }

// What becomes of sums.
template <class T, class Out> struct Epilogue {
    T alpha, beta;
    const Out* bias; // nullptr: none
    bool relu, keeps_nan;
    explicit Epilogue(const GemmJob& job)
        : alpha(T(job.alpha)), beta(T(job.beta)), bias(static_cast<const Out*>(job.bias)), relu(job.relu), keeps_nan(job.keeps_nan) {}

    // A block of C, whose first row is `first`; the columns of its sums have `ld` elements.
    void store(const T* sums, long long ld, Out* c, long long ldc, long long first, long long rows, long long columns) const {
        for (long long column = 0; column < columns; column++)
            for (long long row = 0; row < rows; row++) {
                Out& out = c[column * ldc + first + row];
                T value = alpha * sums[column * ld + row];
                // With beta 0 the old content is not read: it may be anything.
                if (beta != T(0)) value += beta * T(out);
                if (bias) value += T(bias[first + row]);
                bool stays = !relu || value > T(0) || (keeps_nan && value != value);
                out = Out(stays ? value : T(0));
            }
    }
};

template <class T, class In, class Out> void one_product(const GemmJob& job, const In* a, const In* b, Out* c, const Epilogue<T, Out>& epilogue, T* scratch) {
    View<In> left{a, job.transa ? job.lda : 1, job.transa ? 1 : job.lda};
    View<In> right{b, job.transb ? 1 : job.ldb, job.transb ? job.ldb : 1};
    long long k = epilogue.alpha == T(0) ? 0 : job.k; // A and B are not read then
    T* packed_a = scratch;
    T* packed_b = scratch + ROWS * k;
    for (long long tile = 0; tile < tiles(job.n, COLUMNS); tile++)
        pack(right, tile * COLUMNS, smaller(COLUMNS, job.n - tile * COLUMNS), COLUMNS, k, packed_b + tile * COLUMNS * k);
    T sums[ROWS * COLUMNS];
    for (long long row = 0; row < job.m; row += ROWS) {
        long long rows = smaller(ROWS, job.m - row);
        pack(left, row, rows, ROWS, k, packed_a);
        for (long long tile = 0; tile < tiles(job.n, COLUMNS); tile++) {
            long long column = tile * COLUMNS;
            multiply(packed_a, packed_b + column * k, k, sums);
            epilogue.store(sums, ROWS, c + column * job.ldc, job.ldc, row, rows, smaller(COLUMNS, job.n - column));
        }
    }
}

template <class T, class In, class Out> void all_products(const GemmJob& job, void* scratch) {
    Epilogue<T, Out> epilogue(job);
    for (long long i = 0; i < job.batch; i++)
        one_product<T, In, Out>(job, static_cast<const In*>(job.a) + i * job.stride_a, static_cast<const In*>(job.b) + i * job.stride_b,
                                static_cast<Out*>(job.c) + i * job.stride_c, epilogue, static_cast<T*>(scratch));
}

template <class T, class Out> void all_finished(const GemmJob& job) {
    Epilogue<T, Out> epilogue(job);
    for (long long i = 0; i < job.batch; i++)
        epilogue.store(static_cast<const T*>(job.sums) + i * job.m * job.n, job.m, static_cast<Out*>(job.c) + i * job.stride_c, job.ldc, 0, job.m, job.n);
}

} // namespace

unsigned long long gemm_scratch_bytes(const GemmJob& job) {
    return (unsigned long long)(job.k * (ROWS + tiles(job.n, COLUMNS) * COLUMNS)) * (job.wide ? 8 : 4);
}

void run_gemm(const GemmJob& job, void* scratch) {
    switch (job.a_type) {
    case GEMM_F64: return all_products<double, double, double>(job, scratch);
    case GEMM_F32: return all_products<float, float, float>(job, scratch);
    case GEMM_TF32: return all_products<float, Tf32, float>(job, scratch);
    case GEMM_F16:
        if (job.c_type == GEMM_F32) return all_products<float, __half, float>(job, scratch);
        return all_products<float, __half, __half>(job, scratch);
    case GEMM_BF16:
        if (job.c_type == GEMM_F32) return all_products<float, __nv_bfloat16, float>(job, scratch);
        return all_products<float, __nv_bfloat16, __nv_bfloat16>(job, scratch);
    }
}

void finish_gemm(const GemmJob& job) {
    switch (job.c_type) {
    case GEMM_F64: return all_finished<double, double>(job);
    case GEMM_F16: return all_finished<float, __half>(job);
    case GEMM_BF16: return all_finished<float, __nv_bfloat16>(job);
    default: return all_finished<float, float>(job);
    }
}
