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

Ptr new_handle() {
    Ptr handle = nullptr;
    CHECK_EQUAL(cublaslt("cublasLtCreate", &handle), 0);
    return handle;
}

template <class T> static void set(const char* name, Ptr object, int attribute, T value) {
    CHECK_EQUAL(cublaslt(name, object, attribute, static_cast<const void*>(&value), sizeof value), 0);
}

static Ptr layout(int type, long long rows, long long columns, long long ld, int batch, long long step) {
    Ptr made = nullptr;
    CHECK_EQUAL(cublaslt("cublasLtMatrixLayoutCreate", &made, type, uint64_t(rows), uint64_t(columns), int64_t(ld ? ld : rows)), 0);
    set("cublasLtMatrixLayoutSetAttribute", made, 5, batch);
    set("cublasLtMatrixLayoutSetAttribute", made, 6, int64_t(step));
    return made;
}

Described::Described(Ptr handle, const Product& p) : handle(handle) {
    CHECK_EQUAL(cublaslt("cublasLtMatmulDescCreate", &operation, p.compute, p.compute == 70 ? 1 : 0), 0);
    set("cublasLtMatmulDescSetAttribute", operation, 3, p.transa);
    set("cublasLtMatmulDescSetAttribute", operation, 4, p.transb);
    set("cublasLtMatmulDescSetAttribute", operation, 7, p.epilogue);
    set("cublasLtMatmulDescSetAttribute", operation, 8, p.bias);
    a = layout(p.type, p.transa ? p.k : p.m, p.transa ? p.m : p.k, p.lda, p.batch, p.step_a);
    b = layout(p.type, p.transb ? p.n : p.k, p.transb ? p.k : p.n, p.ldb, p.batch, p.step_b);
    c = layout(p.result_type, p.m, p.n, p.ldc, p.batch, p.step_c);
    Ptr preference = nullptr;
    CHECK_EQUAL(cublaslt("cublasLtMatmulPreferenceCreate", &preference), 0);
    set("cublasLtMatmulPreferenceSetAttribute", preference, 1, uint64_t(p.limit));
    set("cublasLtMatmulPreferenceSetAttribute", preference, 3, 2u);
    for (int i = 5; i < 9; i++) set("cublasLtMatmulPreferenceSetAttribute", preference, i, p.alignment);
    status = cublaslt("cublasLtMatmulAlgoGetHeuristic", handle, operation, a, b, c, c, preference, 1, &choice, &count);
    CHECK_EQUAL(cublaslt("cublasLtMatmulPreferenceDestroy", preference), 0);
}

Described::~Described() {
    cublaslt("cublasLtMatmulDescDestroy", operation);
    for (Ptr one : {a, b, c}) cublaslt("cublasLtMatrixLayoutDestroy", one);
}

enum class Ends { Plain = 1, Relu = 2, Bias = 4, BiasAndRelu = 6 };

// Small integers, so that every sum is exact in every type; what lies between the columns must stay as it is.
static void one(Ptr handle, Ptr stream, Type in, Type out, bool transa, bool transb, Sizes s, double alpha, double beta, Ends ends) {
    int lda = (transa ? s.k : s.m) + 3, ldb = (transb ? s.n : s.k) + 1, ldc = s.m + 2;
    long long stride_a = (long long)lda * (transa ? s.m : s.k) + 5, stride_b = (long long)ldb * (transb ? s.k : s.n), stride_c = (long long)ldc * s.n + 1;
    Matrix a(in, size_t(stride_a * s.batch)), b(in, size_t(stride_b * s.batch)), c(out, size_t(stride_c * s.batch)), row(out, size_t(s.m));
    unsigned word = 12345;
    auto small = [&] { return double(int((word = word * 1664525u + 1013904223u) >> 29) - 3); };
    for (Matrix* matrix : {&a, &b, &c, &row})
        for (size_t i = 0; i < matrix->bytes.size() / matrix->unit(); i++) matrix->set(i, small());
    Matrix expected = c;
    bool has_bias = int(ends) & 4, has_relu = int(ends) & 2;
    for (long long batch = 0; batch < s.batch; batch++)
        for (int column = 0; column < s.n; column++)
            for (int i = 0; i < s.m; i++) {
                double sum = 0;
                for (int k = 0; k < s.k; k++)
                    sum += a.get(size_t(batch * stride_a + (transa ? (long long)i * lda + k : (long long)k * lda + i))) *
                           b.get(size_t(batch * stride_b + (transb ? (long long)k * ldb + column : (long long)column * ldb + k)));
                size_t at = size_t(batch * stride_c + (long long)column * ldc + i);
                double value = alpha * sum + (beta == 0 ? 0 : beta * c.get(at)) + (has_bias ? row.get(size_t(i)) : 0);
                expected.set(at, has_relu && value < 0 ? 0 : value);
            }
    CUdeviceptr da = allocate(a.bytes.size() + 8), db = allocate(b.bytes.size() + 8), dc = allocate(c.bytes.size()), dr = allocate(row.bytes.size());
    upload(da, a.bytes, stream);
    upload(db, b.bytes, stream);
    upload(dc, c.bytes, stream);
    upload(dr, row.bytes, stream);
    Product product{in, out, in == F64 ? 70 : 68, s.m, s.n, s.k, transa, transb, lda, ldb, ldc, s.batch, stride_a, stride_b, stride_c, unsigned(ends), dr, 16, 1 << 20};
    Described described(handle, product);
    CHECK_EQUAL(described.status, 0);
    CHECK_EQUAL(described.count, 1);
    CHECK_EQUAL(described.choice.workspace > 0, s.k > s.m && s.k > s.n);
    CUdeviceptr workspace = allocate(described.choice.workspace + 1);
    int status = in == F64 ? described.multiply(alpha, da, db, beta, dc, workspace, stream) : described.multiply(float(alpha), da, db, float(beta), dc, workspace, stream);
    CHECK_EQUAL(status, 0);
    auto bytes = download<unsigned char>(dc, c.bytes.size(), stream);
    CHECK(bytes == expected.bytes);
    for (CUdeviceptr address : {da, db, dc, dr, workspace}) CHECK_EQUAL(cuda("cuMemFree_v2", address), 0);
}

static void products() {
    open_device();
    Ptr stream = new_stream(), handle = new_handle();
    struct {
        Type in, out;
    } types[] = {{F32, F32}, {F64, F64}, {F16, F16}, {F16, F32}, {BF16, BF16}, {BF16, F32}};
    for (auto [in, out] : types)
        for (Ends ends : {Ends::Plain, Ends::Relu, Ends::Bias, Ends::BiasAndRelu})
            for (int layout = 0; layout < 4; layout++)
                for (Sizes s : {Sizes{1, 1, 1, 1}, Sizes{5, 7, 3, 1}, Sizes{17, 9, 6, 3}, Sizes{33, 4, 5, 3}, Sizes{3, 2, 9, 1}, Sizes{2, 3, 20, 3}}) {
                    one(handle, stream, in, out, layout & 1, layout & 2, s, 1, 0, ends);
                    one(handle, stream, in, out, layout & 1, layout & 2, s, 2, 1, ends);
                }
}

// Not all of it is the library's to check, but ours to notice.
static void wrong_products() {
    open_device();
    Ptr stream = new_stream(), handle = new_handle();
    const Product good{F32, F32, 68, 2, 2, 4};
    CUdeviceptr c = allocate(64);
    auto asked = [&](Product product) { return Described(handle, product).status; };
    CHECK_EQUAL(asked(good), 0);
    Product product = good;
    product.ldc = 1;
    CHECK_EQUAL(asked(product), 7); // a leading dimension
    product = good;
    product.alignment = 2;
    CHECK_EQUAL(asked(product), 15); // less aligned than elements are
    product = good;
    product.result_type = F16;
    CHECK_EQUAL(asked(product), 15); // types that do not go together
    product = good;
    product.epilogue = 4;
    CHECK_EQUAL(asked(product), 7); // no bias
    product.bias = c;
    CHECK_EQUAL(asked(product), 0);
    CHECK_EQUAL(Described(NONE, good).status, 7); // no handle
    // What the algorithm was not chosen for.
    Described two(handle, good);
    CHECK_EQUAL(two.multiply(1.0f, c, c, 0.0f, c, 0, stream), 0);
    CHECK_EQUAL(two.multiply(1.0f, c + 4, c, 0.0f, c, 0, stream), 7);
    product = good;
    product.m = 1;
    Described other(handle, product);
    other.choice = two.choice;
    CHECK_EQUAL(other.multiply(1.0f, c, c, 0.0f, c, 0, stream), 7);
    // A workspace that is too small, missing or badly aligned.
    product = good;
    product.limit = 1 << 20;
    Described in_parts(handle, product);
    CHECK_EQUAL(in_parts.choice.workspace, size_t(16));
    CUdeviceptr workspace = allocate(512);
    CHECK_EQUAL(in_parts.multiply(1.0f, c, c, 0.0f, c, 0, stream), 7);
    CHECK_EQUAL(in_parts.multiply(1.0f, c, c, 0.0f, c, workspace + 16, stream), 7);
    CHECK_EQUAL(in_parts.multiply(1.0f, c, c, 0.0f, c, workspace, stream), 0);
    in_parts.choice.workspace = 8;
    CHECK_EQUAL(in_parts.multiply(1.0f, c, c, 0.0f, c, workspace, stream), 7);
    // A value of another size than the attribute's.
    long long wide = 1;
    CHECK_EQUAL(cublaslt("cublasLtMatmulDescSetAttribute", two.operation, 3, static_cast<const void*>(&wide), sizeof wide), 7);
}

// 10 bits of mantissa, to nearest, if the product asks for it.
static void tf32() {
    open_device();
    Ptr stream = new_stream(), handle = new_handle();
    float inputs[] = {1 + 0x1p-10f, 1 + 0x1p-11f, -1 - 0x1.8p-11f, 1 + 0x1p-12f};
    float rounded[] = {1 + 0x1p-10f, 1 + 0x1p-10f, -1 - 0x1p-10f, 1};
    CUdeviceptr a = allocate(4), b = allocate(4), c = allocate(4);
    upload(b, std::vector<float>{1}, stream);
    auto product = [&](int compute) {
        CHECK_EQUAL(Described(handle, {F32, F32, compute, 1, 1, 1}).multiply(1.0f, a, b, 0.0f, c, 0, stream), 0);
        return download<float>(c, 1, stream)[0];
    };
    for (int i = 0; i < 4; i++) {
        upload(a, std::vector<float>{inputs[i]}, stream);
        CHECK_EQUAL(product(68), inputs[i]);
        CHECK_EQUAL(product(77), rounded[i]);
        CHECK_EQUAL(product(69), inputs[i]); // pedantic
    }
    for (float special : {INFINITY, -INFINITY, 3.0e38f}) {
        upload(a, std::vector<float>{special}, stream);
        CHECK_EQUAL(product(77) > 2.9e38f, special > 0);
    }
}

// Like a kernel: in the order of its stream, after what is before it, and its faults are reported.
static void queued_product() {
    open_device();
    Ptr stream = new_stream(), handle = new_handle();
    CUdeviceptr a = allocate(16 * 16 * 4), c = allocate(16 * 16 * 4);
    float zero = 0, two = 2;
    upload(a, std::vector<float>(256, 1.0f), stream);
    Described square(handle, {F32, F32, 68, 16, 16, 16});
    CHECK_EQUAL(square.multiply(1.0f, a, a, 0.0f, c, 0, stream), 0); // c was poison: NaN
    unsigned n = 256;
    CHECK_EQUAL(start("scale", 1, 256, 0, stream, c, two, zero, n), 0);
    CHECK_EQUAL(cuda("cuStreamQuery", stream), int(CUDA_ERROR_NOT_READY));
    CHECK_EQUAL(download<float>(c, 256, stream)[255], 32.0f);
    CHECK_EQUAL(Described(handle, {F32, F32, 68, 16, 17, 16}).multiply(1.0f, a, a, 0.0f, c, 0, stream), 0);
    CHECK_EQUAL(cuda("cuStreamSynchronize", stream), 700);
    CHECK(logged("report cublasLtMatmul read address"));
    CHECK_EQUAL(square.multiply(1.0f, a, a, 0.0f, c, 0, stream), 13);
}

// A product in parts is two commands, between which another stream's may come: a workspace of both shows.
static void shared_workspace() {
    open_device();
    Ptr streams[] = {new_stream(), new_stream()}, handle = new_handle();
    Product product{F32, F32, 68, 1, 1, 2};
    product.alignment = 4;
    product.limit = 4;
    Described dot(handle, product);
    CUdeviceptr vectors[] = {allocate(8), allocate(8)}, results[] = {allocate(4), allocate(4)}, workspaces[] = {allocate(4), allocate(4)};
    for (int i : {0, 1}) upload(vectors[i], std::vector<float>(2, float(i + 1)), streams[i]);
    auto wrong = [&](bool shared) {
        int count = 0;
        for (int round = 0; round < 64; round++) {
            for (int i : {0, 1}) CHECK_EQUAL(dot.multiply(1.0f, vectors[i], vectors[i], 0.0f, results[i], workspaces[shared ? 0 : i], streams[i]), 0);
            for (int i : {0, 1}) count += download<float>(results[i], 1, streams[i])[0] != (i ? 8.0f : 2.0f);
        }
        return count;
    };
    CHECK_EQUAL(wrong(false), 0);
    CHECK(wrong(true) > 0);
}

const std::vector<Test> GEMM_TESTS = {
    {"products", "", products},
    {"wrong_products", "", wrong_products},
    {"tf32", "", tf32},
    {"queued_product", "", queued_product},
    {"shared_workspace", "CUDA_EMULATOR_SEED=1", shared_workspace},
};
