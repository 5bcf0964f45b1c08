// Products in every layout, against loops.
#include "selftest.hpp"

#include <cmath>
#include <cstring>

// A 16-bit number with few digits, exact in both formats.
static unsigned short narrow(float v, bool brain) {
    unsigned bits;
    memcpy(&bits, &v, 4);
    if (brain) return (unsigned short)(bits >> 16);
    if (v == 0) return 0;
    return (unsigned short)((bits >> 16 & 0x8000) | ((bits >> 23 & 255) - 112) << 10 | (bits >> 13 & 1023));
}
static float widen(unsigned short bits, bool brain) {
    unsigned word = unsigned(bits) << 16;
    if (!brain) word = (bits & 0x7FFF) == 0 ? 0 : (unsigned(bits & 0x8000) << 16 | ((bits >> 10 & 31) + 112u) << 23 | unsigned(bits & 1023) << 13);
    float v;
    memcpy(&v, &word, 4);
    return v;
}

enum Type { F32 = 0, F64 = 1, F16 = 2, BF16 = 14 };

struct Matrix {
    Type type;
    std::vector<unsigned char> bytes;
    size_t unit() const { return type == F64 ? 8 : type == F32 ? 4 : 2; }
    Matrix(Type type, size_t count) : type(type) { bytes.resize(count * unit()); }
    double get(size_t i) const {
        const unsigned char* at = bytes.data() + i * unit();
        if (type == F64) return *reinterpret_cast<const double*>(at);
        if (type == F32) return double(*reinterpret_cast<const float*>(at));
        return double(widen(*reinterpret_cast<const unsigned short*>(at), type == BF16));
    }
    void set(size_t i, double v) {
        unsigned char* at = bytes.data() + i * unit();
        if (type == F64) *reinterpret_cast<double*>(at) = v;
        else if (type == F32) *reinterpret_cast<float*>(at) = float(v);
        else *reinterpret_cast<unsigned short*>(at) = narrow(float(v), type == BF16);
    }
};

struct Sizes {
    int m, n, k, batch;
};

// Small integers, so that every sum is exact in every type; what lies between the columns must stay as it is.
static void one(Ptr handle, Ptr stream, Type in, Type out, bool transa, bool transb, Sizes s, double alpha, double beta, int how) {
    int lda = (transa ? s.k : s.m) + 3, ldb = (transb ? s.n : s.k) + 1, ldc = s.m + 2;
    long long stride_a = (long long)lda * (transa ? s.m : s.k) + 5, stride_b = (long long)ldb * (transb ? s.k : s.n), stride_c = (long long)ldc * s.n + 1;
    Matrix a(in, size_t(stride_a * s.batch)), b(in, size_t(stride_b * s.batch)), c(out, size_t(stride_c * s.batch));
    unsigned word = 12345;
    auto small = [&] { return double(int((word = word * 1664525u + 1013904223u) >> 29) - 3); };
    for (size_t i = 0; i < a.bytes.size() / a.unit(); i++) a.set(i, small());
    for (size_t i = 0; i < b.bytes.size() / b.unit(); i++) b.set(i, small());
    for (size_t i = 0; i < c.bytes.size() / c.unit(); i++) c.set(i, small());
    Matrix expected = c;
    for (long long batch = 0; batch < s.batch; batch++)
        for (int column = 0; column < s.n; column++)
            for (int row = 0; row < s.m; row++) {
                double sum = 0;
                for (int k = 0; k < s.k; k++)
                    sum += a.get(size_t(batch * stride_a + (transa ? (long long)row * lda + k : (long long)k * lda + row))) *
                           b.get(size_t(batch * stride_b + (transb ? (long long)k * ldb + column : (long long)column * ldb + k)));
                size_t at = size_t(batch * stride_c + (long long)column * ldc + row);
                expected.set(at, alpha * sum + (beta == 0 ? 0 : beta * c.get(at)));
            }
    CUdeviceptr da = allocate(a.bytes.size() + 8), db = allocate(b.bytes.size() + 8), dc = allocate(c.bytes.size());
    upload(da, a.bytes, stream);
    upload(db, b.bytes, stream);
    upload(dc, c.bytes, stream);
    int ta = transa, tb = transb, status = -1;
    float alpha32 = float(alpha), beta32 = float(beta);
    const void* pa = in == F64 ? static_cast<const void*>(&alpha) : &alpha32;
    const void* pb = in == F64 ? static_cast<const void*>(&beta) : &beta32;
    int compute = in == F64 ? 70 : 68;
    const char* plain = in == F64 ? "cublasDgemm_v2" : "cublasSgemm_v2";
    const char* batched = in == F64 ? "cublasDgemmStridedBatched" : "cublasSgemmStridedBatched";
    if (how == 0) status = cublas(plain, handle, ta, tb, s.m, s.n, s.k, pa, da, lda, db, ldb, pb, dc, ldc);
    if (how == 1) status = cublas(batched, handle, ta, tb, s.m, s.n, s.k, pa, da, lda, stride_a, db, ldb, stride_b, pb, dc, ldc, stride_c, s.batch);
    if (how == 2) status = cublas("cublasGemmEx", handle, ta, tb, s.m, s.n, s.k, pa, da, int(in), lda, db, int(in), ldb, pb, dc, int(out), ldc, compute, -1);
    if (how == 3)
        status = cublas("cublasGemmStridedBatchedEx", handle, ta, tb, s.m, s.n, s.k, pa, da, int(in), lda, stride_a, db, int(in), ldb, stride_b, pb, dc,
                        int(out), ldc, stride_c, s.batch, compute, -1);
    CHECK_EQUAL(status, 0);
    alpha32 = beta32 = 77; // they were read when the call was made
    auto bytes = download<unsigned char>(dc, c.bytes.size(), stream);
    CHECK(bytes == expected.bytes);
    for (CUdeviceptr address : {da, db, dc}) CHECK_EQUAL(cuda("cuMemFree_v2", address), 0);
}

static void products() {
    open_device();
    Ptr stream = new_stream(), handle = nullptr;
    CHECK_EQUAL(cublas("cublasCreate_v2", &handle), 0);
    CHECK_EQUAL(cublas("cublasSetStream_v2", handle, stream), 0);
    struct {
        Type in, out;
    } types[] = {{F32, F32}, {F64, F64}, {F16, F16}, {F16, F32}, {BF16, BF16}, {BF16, F32}};
    for (auto [in, out] : types)
        for (int how = in == F32 || in == F64 ? 0 : 2; how < 4; how++)
            for (int layout = 0; layout < 4; layout++)
                for (Sizes s : {Sizes{1, 1, 1, 1}, Sizes{5, 7, 3, 1}, Sizes{17, 9, 6, 1}, Sizes{33, 4, 5, 1}, Sizes{3, 2, 0, 1}}) {
                    if (how % 2) s.batch = 3;
                    one(handle, stream, in, out, layout & 1, layout & 2, s, 1, 0, how);
                    one(handle, stream, in, out, layout & 1, layout & 2, s, 2, 1, how);
                }
    // Not the library's to check, but ours to notice.
    float one_ = 1, zero = 0;
    CUdeviceptr c = allocate(16);
    CHECK_EQUAL(cublas("cublasSgemm_v2", handle, 0, 0, 2, 2, 2, &one_, c, 1, c, 2, &zero, c, 2), 7);   // leading dimension
    CHECK_EQUAL(cublas("cublasSgemm_v2", NONE, 0, 0, 2, 2, 2, &one_, c, 2, c, 2, &zero, c, 2), 1);     // no handle
    CHECK_EQUAL(cublas("cublasGemmEx", handle, 0, 0, 1, 1, 1, &one_, c, 2, 1, c, 14, 1, &zero, c, 2, 1, 68, -1), 15); // mixed inputs
}

// 10 bits of mantissa, to nearest, if the call or the handle's mode asks for it, and of F32 only.
static void tf32() {
    open_device();
    Ptr stream = new_stream(), handle = nullptr;
    CHECK_EQUAL(cublas("cublasCreate_v2", &handle), 0);
    CHECK_EQUAL(cublas("cublasSetStream_v2", handle, stream), 0);
    float one_ = 1, zero = 0, inputs[] = {1 + 0x1p-10f, 1 + 0x1p-11f, -1 - 0x1.8p-11f, 1 + 0x1p-12f};
    float rounded[] = {1 + 0x1p-10f, 1 + 0x1p-10f, -1 - 0x1p-10f, 1};
    CUdeviceptr a = allocate(4), b = allocate(4), c = allocate(4);
    upload(b, std::vector<float>{1}, stream);
    auto product = [&](int compute) {
        CHECK_EQUAL(cublas("cublasGemmEx", handle, 0, 0, 1, 1, 1, &one_, a, F32, 1, b, F32, 1, &zero, c, F32, 1, compute, -1), 0);
        return download<float>(c, 1, stream)[0];
    };
    for (int i = 0; i < 4; i++) {
        upload(a, std::vector<float>{inputs[i]}, stream);
        CHECK_EQUAL(product(68), inputs[i]);
        CHECK_EQUAL(product(77), rounded[i]);
        CHECK_EQUAL(cublas("cublasSetMathMode", handle, 3), 0);
        CHECK_EQUAL(product(68), rounded[i]);
        CHECK_EQUAL(product(69), inputs[i]); // pedantic
        CHECK_EQUAL(cublas("cublasSetMathMode", handle, 16), 0);
    }
    for (float special : {INFINITY, -INFINITY, 3.0e38f}) {
        upload(a, std::vector<float>{special}, stream);
        CHECK_EQUAL(product(77) > 2.9e38f, special > 0);
    }
}

// Like a kernel: in the order of its stream, after what is before it, and its faults are reported.
static void queued_product() {
    open_device();
    Ptr stream = new_stream(), handle = nullptr;
    CHECK_EQUAL(cublas("cublasCreate_v2", &handle), 0);
    CHECK_EQUAL(cublas("cublasSetStream_v2", handle, stream), 0);
    CUdeviceptr a = allocate(16 * 16 * 4), c = allocate(16 * 16 * 4);
    float one_ = 1, zero = 0;
    upload(a, std::vector<float>(256, 1.0f), stream);
    CHECK_EQUAL(cublas("cublasSgemm_v2", handle, 0, 0, 16, 16, 16, &one_, a, 16, a, 16, &zero, c, 16), 0); // c was poison: NaN
    float two = 2;
    unsigned n = 256;
    CHECK_EQUAL(start("scale", 1, 256, 0, stream, c, two, zero, n), 0);
    CHECK_EQUAL(cuda("cuStreamQuery", stream), int(CUDA_ERROR_NOT_READY));
    CHECK_EQUAL(download<float>(c, 256, stream)[255], 32.0f);
    CHECK_EQUAL(cublas("cublasSgemm_v2", handle, 0, 0, 16, 17, 16, &one_, a, 16, a, 16, &zero, c, 16), 0);
    CHECK_EQUAL(cuda("cuStreamSynchronize", stream), 700);
    CHECK(logged("report cublasSgemm_v2 read address"));
    CHECK_EQUAL(cublas("cublasSgemm_v2", handle, 0, 0, 16, 16, 16, &one_, a, 16, a, 16, &zero, c, 16), 13);
}

static void device_scalars() {
    open_device();
    Ptr stream = new_stream(), handle = nullptr;
    CHECK_EQUAL(cublas("cublasCreate_v2", &handle), 0);
    CHECK_EQUAL(cublas("cublasSetStream_v2", handle, stream), 0);
    CHECK_EQUAL(cublas("cublasSetPointerMode_v2", handle, 1), 0);
    CUdeviceptr a = allocate(8), scalars = allocate(16);
    upload(a, std::vector<double>{3}, stream);
    upload(scalars, std::vector<double>{2, 1}, stream);
    CHECK_EQUAL(cublas("cublasDgemm_v2", handle, 0, 0, 1, 1, 1, scalars, a, 1, a, 1, scalars + 8, a, 1), 0);
    CHECK_EQUAL(download<double>(a, 1, stream)[0], 21.0);
}

const std::vector<Test> GEMM_TESTS = {
    {"products", "", products},
    {"tf32", "", tf32},
    {"queued_product", "", queued_product},
    {"device_scalars", "", device_scalars},
};
