// The interface of the library of products: descriptions, algorithms for them, and products that are enqueued like kernels.
#include "api.hpp"
#include "gemm.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

enum cublasStatus_t : int {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
};

struct Handle {};

struct Operation {
    int compute, scalars; // types
    int transa = 0, transb = 0;
    unsigned epilogue = 1;
    const void* bias = nullptr;
};

struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t leading;
    int batch = 1;
    int64_t step = 0;
};

struct Preference {
    uint64_t workspace = 0;
    unsigned reductions = 7;
    unsigned alignment[4] = {256, 256, 256, 256}; // of A, B, C and D
};

// Those that were made and not destroyed.
template <class T> struct Registry {
    std::mutex lock;
    std::unordered_set<T*> all;
    cublasStatus_t add(T** out, T value) {
        if (!out) return CUBLAS_STATUS_INVALID_VALUE;
        std::lock_guard<std::mutex> held(lock);
        *out = *all.insert(new T(value)).first;
        return CUBLAS_STATUS_SUCCESS;
    }
    bool has(T* one) {
        std::lock_guard<std::mutex> held(lock);
        return all.count(one) != 0;
    }
    cublasStatus_t remove(T* one) {
        std::lock_guard<std::mutex> held(lock);
        if (all.erase(one) == 0) return CUBLAS_STATUS_INVALID_VALUE;
        delete one;
        return CUBLAS_STATUS_SUCCESS;
    }
};
static Registry<Handle> handles;
static Registry<Operation> operations;
static Registry<Layout> layouts;
static Registry<Preference> preferences;

EXPORT CUresult cuCtxSynchronize(); // the driver's

template <class Body> static cublasStatus_t call(const char* name, Body body) {
    std::string details;
    int failure = cuEmulatorEnter(name);
    cublasStatus_t result = failure ? cublasStatus_t(failure) : body(details);
    cuEmulatorLog(name, details.c_str(), result);
    return result;
}

static cublasStatus_t status_of(CUresult result) {
    switch (result) {
    case CUDA_SUCCESS: return CUBLAS_STATUS_SUCCESS;
    case CUDA_ERROR_INVALID_HANDLE: return CUBLAS_STATUS_INVALID_VALUE;
    case CUDA_ERROR_INVALID_CONTEXT: return CUBLAS_STATUS_NOT_INITIALIZED;
    default: return CUBLAS_STATUS_EXECUTION_FAILED;
    }
}

EXPORT cublasStatus_t cublasLtCreate(Handle** out) {
    return call("cublasLtCreate", [&](std::string&) {
        cublasStatus_t usable = status_of(cuEmulatorCheckStream(nullptr));
        if (usable == CUBLAS_STATUS_SUCCESS) usable = status_of(cuEmulatorAwaitHost("cublasLtCreate"));
        return usable == CUBLAS_STATUS_SUCCESS ? handles.add(out, {}) : usable;
    });
}

// Waits for all that the device does, as the real one does.
EXPORT cublasStatus_t cublasLtDestroy(Handle* handle) {
    return call("cublasLtDestroy", [&](std::string&) {
        if (!handles.has(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
        cuCtxSynchronize();
        return handles.remove(handle);
    });
}

static bool is_type(int type) { return type == GEMM_F32 || type == GEMM_F64 || type == GEMM_F16 || type == GEMM_BF16; }

constexpr int COMPUTE_32F = 68, COMPUTE_32F_PEDANTIC = 69, COMPUTE_64F = 70, COMPUTE_64F_PEDANTIC = 71, COMPUTE_32F_FAST_TF32 = 77;

EXPORT cublasStatus_t cublasLtMatmulDescCreate(Operation** out, int compute, int scalars) {
    return call("cublasLtMatmulDescCreate", [&](std::string&) { return operations.add(out, {compute, scalars}); });
}
EXPORT cublasStatus_t cublasLtMatmulDescDestroy(Operation* operation) {
    return call("cublasLtMatmulDescDestroy", [&](std::string&) { return operations.remove(operation); });
}
EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(Layout** out, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    return call("cublasLtMatrixLayoutCreate", [&](std::string&) {
        return is_type(type) ? layouts.add(out, {type, rows, columns, leading}) : CUBLAS_STATUS_INVALID_VALUE;
    });
}
EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(Layout* layout) {
    return call("cublasLtMatrixLayoutDestroy", [&](std::string&) { return layouts.remove(layout); });
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(Preference** out) {
    return call("cublasLtMatmulPreferenceCreate", [&](std::string&) { return preferences.add(out, {}); });
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(Preference* preference) {
    return call("cublasLtMatmulPreferenceDestroy", [&](std::string&) { return preferences.remove(preference); });
}

// Sets a field if the value has its size.
template <class T> static cublasStatus_t set(T& field, const void* value, size_t bytes) {
    if (!value || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(Operation* operation, int attribute, const void* value, size_t bytes) {
    return call("cublasLtMatmulDescSetAttribute", [&](std::string&) {
        if (!operations.has(operation)) return CUBLAS_STATUS_INVALID_VALUE;
        switch (attribute) {
        case 3: return set(operation->transa, value, bytes);
        case 4: return set(operation->transb, value, bytes);
        case 7: return set(operation->epilogue, value, bytes);
        case 8: return set(operation->bias, value, bytes);
        default: return CUBLAS_STATUS_INVALID_VALUE;
        }
    });
}
EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value, size_t bytes) {
    return call("cublasLtMatrixLayoutSetAttribute", [&](std::string&) {
        if (!layouts.has(layout)) return CUBLAS_STATUS_INVALID_VALUE;
        switch (attribute) {
        case 5: return set(layout->batch, value, bytes);
        case 6: return set(layout->step, value, bytes);
        default: return CUBLAS_STATUS_INVALID_VALUE;
        }
    });
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t bytes) {
    return call("cublasLtMatmulPreferenceSetAttribute", [&](std::string&) {
        if (!preferences.has(preference)) return CUBLAS_STATUS_INVALID_VALUE;
        switch (attribute) {
        case 1: return set(preference->workspace, value, bytes);
        case 3: return set(preference->reductions, value, bytes);
        case 5: case 6: case 7: case 8: return set(preference->alignment[attribute - 5], value, bytes);
        default: return CUBLAS_STATUS_INVALID_VALUE;
        }
    });
}

// A product's description: what an algorithm is for. The address of a bias is none of it, but for its alignment.
struct Description {
    const Operation& operation;
    const Layout &a, &b, &c, &d;

    uint64_t m() const { return d.rows; }
    uint64_t n() const { return d.columns; }
    uint64_t k() const { return operation.transa ? a.rows : a.columns; }
    bool wide() const { return operation.compute == COMPUTE_64F || operation.compute == COMPUTE_64F_PEDANTIC; }
    bool has_bias() const { return operation.epilogue == 4 || operation.epilogue == 6; }
    bool has_relu() const { return operation.epilogue == 2 || operation.epilogue == 6; }

    bool valid() const {
        if (operation.transa < 0 || operation.transa > 2 || operation.transb < 0 || operation.transb > 2) return false;
        for (const Layout* layout : {&a, &b, &c, &d})
            if (layout->rows == 0 || layout->columns == 0 || layout->leading < int64_t(layout->rows) || layout->batch != d.batch || layout->batch < 1 || layout->step < 0)
                return false;
        bool fits = (operation.transa ? a.columns : a.rows) == m() && (operation.transb ? b.rows : b.columns) == n() && (operation.transb ? b.columns : b.rows) == k();
        return fits && c.rows == m() && c.columns == n() && (!has_bias() || operation.bias);
    }

    bool supported() const {
        for (const Layout* layout : {&a, &b, &d})
            if (layout->rows >> 31 || layout->columns >> 31) return false;
        // Results elsewhere than C are left out here.
        if (c.type != d.type || c.leading != d.leading || c.step != d.step || a.type != b.type) return false;
        if (operation.epilogue != 1 && !has_bias() && !has_relu()) return false;
        if (operation.scalars != (wide() ? GEMM_F64 : GEMM_F32)) return false;
        if (wide()) return a.type == GEMM_F64 && d.type == GEMM_F64;
        bool fast = operation.compute == 74 || operation.compute == 75 || operation.compute == COMPUTE_32F_FAST_TF32; // by way of 16-bit or TF32 products
        if (fast) return a.type == GEMM_F32 && d.type == GEMM_F32;
        if (operation.compute != COMPUTE_32F && operation.compute != COMPUTE_32F_PEDANTIC) return false;
        if (a.type == GEMM_F32) return d.type == GEMM_F32;
        return a.type != GEMM_F64 && (d.type == a.type || d.type == GEMM_F32);
    }

    uint64_t hash() const {
        uint64_t word = 0xCBF29CE484222325;
        auto mix = [&](uint64_t value) { word = (word ^ value) * 0x100000001B3; };
        for (int value : {operation.compute, operation.scalars, operation.transa, operation.transb, int(operation.epilogue)}) mix(uint64_t(value));
        for (const Layout* l : {&a, &b, &c, &d})
            for (uint64_t value : {uint64_t(l->type), l->rows, l->columns, uint64_t(l->leading), uint64_t(l->batch), uint64_t(l->step)}) mix(value);
        return word;
    }
};

static uint64_t alignment_of(const void* address) {
    uintptr_t at = uintptr_t(address);
    return at ? at & (~at + 1) : 256;
}

// An algorithm works for one description, with addresses that are aligned as they were said to be.
struct Algorithm {
    char magic[8];
    uint64_t description;
    uint64_t workspace; // 0: it makes the product at once; else the product is made there, and becomes the result afterwards
    unsigned alignment[4], bias;
    int family;
    unsigned reserved[4];
};
static_assert(sizeof(Algorithm) == 64, "as the library has it");
constexpr char ALGORITHM[8] = {'p', 'r', 'o', 'd', 'u', 'c', 't', 0};
constexpr int LOSES_NAN = 20;

struct Result {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

static unsigned bytes_of(int type) { return type == GEMM_F64 ? 8 : type == GEMM_F32 ? 4 : 2; }

static bool known(Handle* handle, Operation* operation, std::initializer_list<Layout*> all) {
    return handles.has(handle) && operations.has(operation) && std::all_of(all.begin(), all.end(), [](Layout* one) { return layouts.has(one); });
}

EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(Handle* handle, Operation* operation, Layout* a, Layout* b, Layout* c, Layout* d,
                                                     Preference* preference, int wanted, Result* out, int* count) {
    return call("cublasLtMatmulAlgoGetHeuristic", [&](std::string&) {
        if (!known(handle, operation, {a, b, c, d}) || !preferences.has(preference) || wanted < 1 || !out || !count) return CUBLAS_STATUS_INVALID_VALUE;
        *count = 0;
        cublasStatus_t idle = status_of(cuEmulatorAwaitHost("cublasLtMatmulAlgoGetHeuristic"));
        if (idle != CUBLAS_STATUS_SUCCESS) return idle;
        Description product{*operation, *a, *b, *c, *d};
        if (!product.valid()) return CUBLAS_STATUS_INVALID_VALUE;
        const Layout* stored[] = {a, b, c, d};
        bool aligned = true;
        Algorithm found{};
        for (int i = 0; i < 4; i++) {
            found.alignment[i] = std::min(preference->alignment[i], 16u);
            aligned = aligned && found.alignment[i] >= bytes_of(stored[i]->type);
        }
        found.bias = product.has_bias() ? unsigned(std::min<uint64_t>(alignment_of(operation->bias), 16)) : 1;
        if (!aligned || !product.supported()) return CUBLAS_STATUS_NOT_SUPPORTED;
        memcpy(found.magic, ALGORITHM, sizeof ALGORITHM);
        found.description = product.hash();
        // Long sums are made in parts, which are kept as what they are computed in.
        uint64_t needed = product.m() * product.n() * uint64_t(d->batch) * (product.wide() ? 8 : 4);
        bool in_parts = product.k() > product.m() && product.k() > product.n() && (preference->reductions & 2) && needed <= preference->workspace;
        found.workspace = in_parts ? needed : 0;
        // The real library's first choice is often one whose positive part of NaN is 0.
        for (int family : {LOSES_NAN, 55}) {
            found.family = family;
            if (*count < wanted) out[(*count)++] = {found, size_t(found.workspace), CUBLAS_STATUS_SUCCESS, 1.0f, {}};
        }
        return CUBLAS_STATUS_SUCCESS;
    });
}

EXPORT size_t cublasLtGetVersion() { return 130100; }

// Kernels cut a sum in two if they cut it.
EXPORT cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const Algorithm* algorithm, int attribute, void* to, size_t bytes, size_t* written) {
    return call("cublasLtMatmulAlgoConfigGetAttribute", [&](std::string&) {
        if (!algorithm || !to || memcmp(algorithm->magic, ALGORITHM, sizeof ALGORITHM) != 0) return CUBLAS_STATUS_INVALID_VALUE;
        const int values[] = {algorithm->family, 15 /* tiles of 64 x 64 */, algorithm->workspace ? 2 : 1};
        if (attribute < 0 || attribute > 2) return CUBLAS_STATUS_NOT_SUPPORTED;
        if (bytes < sizeof(int)) return CUBLAS_STATUS_INVALID_VALUE;
        memcpy(to, &values[attribute], sizeof(int));
        if (written) *written = sizeof(int);
        return CUBLAS_STATUS_SUCCESS;
    });
}

// Jobs run one at a time. Kept from one to the next, since a job that faults does not unwind.
static std::vector<unsigned char> scratch;

static void run_product(void* data) {
    const GemmJob& job = *static_cast<GemmJob*>(data);
    size_t bytes = size_t(gemm_scratch_bytes(job)) + 32;
    if (scratch.size() < bytes) scratch.resize(bytes);
    run_gemm(job, scratch.data());
}

static void run_finish(void* data) { finish_gemm(*static_cast<GemmJob*>(data)); }

static CUresult enqueue(CUstream stream, void (*run)(void*), const GemmJob& job) {
    auto tiles = [](long long size) { return (size + 63) / 64; };
    auto blocks = unsigned(tiles(job.m) * tiles(job.n) * job.batch);
    // As the real library's products of 16 bits are.
    bool modern = job.a_type == GEMM_F16 || job.a_type == GEMM_BF16;
    return cuEmulatorLaunch(stream, "cublasLtMatmul", blocks, modern, run, &job, sizeof job);
}

EXPORT cublasStatus_t cublasLtMatmul(Handle* handle, Operation* operation, const void* alpha, const void* a, Layout* of_a, const void* b, Layout* of_b,
                                     const void* beta, const void* c, Layout* of_c, void* d, Layout* of_d, const Algorithm* algorithm, void* workspace,
                                     size_t bytes, CUstream stream) {
    return call("cublasLtMatmul", [&](std::string& details) {
        if (!known(handle, operation, {of_a, of_b, of_c, of_d}) || !alpha || !beta) return CUBLAS_STATUS_INVALID_VALUE;
        Description product{*operation, *of_a, *of_b, *of_c, *of_d};
        char text[200];
        snprintf(text, sizeof text, "m=%llu n=%llu k=%llu transa=%d transb=%d lda=%lld ldb=%lld ldc=%lld batch=%d epilogue=%u", (unsigned long long)product.m(),
                 (unsigned long long)product.n(), (unsigned long long)product.k(), operation->transa, operation->transb, (long long)of_a->leading,
                 (long long)of_b->leading, (long long)of_d->leading, of_d->batch, operation->epilogue);
        details = text;
        if (!product.valid()) return CUBLAS_STATUS_INVALID_VALUE;
        if (!product.supported() || c != d) return CUBLAS_STATUS_NOT_SUPPORTED;
        // An algorithm of another product, or addresses that are less aligned than it was told.
        if (!algorithm || memcmp(algorithm->magic, ALGORITHM, sizeof ALGORITHM) != 0 || algorithm->description != product.hash()) return CUBLAS_STATUS_INVALID_VALUE;
        const void* addresses[] = {a, b, c, d};
        for (int i = 0; i < 4; i++)
            if (!addresses[i] || alignment_of(addresses[i]) < algorithm->alignment[i]) return CUBLAS_STATUS_INVALID_VALUE;
        if (product.has_bias() && alignment_of(operation->bias) < algorithm->bias) return CUBLAS_STATUS_INVALID_VALUE;
        if (bytes < algorithm->workspace || uintptr_t(workspace) % 256 != 0 || (bytes > 0 && !workspace)) return CUBLAS_STATUS_INVALID_VALUE;
        CUresult usable = cuEmulatorCheckStream(stream);
        if (usable != CUDA_SUCCESS) return status_of(usable);
        GemmJob job;
        memset(&job, 0, sizeof job); // what is between its members, too: whoever captures it compares bytes
        job.transa = operation->transa != 0;
        job.transb = operation->transb != 0;
        job.m = (long long)product.m();
        job.n = (long long)product.n();
        job.k = (long long)product.k();
        job.a = a;
        job.b = b;
        job.c = d;
        job.a_type = operation->compute == COMPUTE_32F_FAST_TF32 ? GEMM_TF32 : GemmType(of_a->type);
        job.c_type = GemmType(of_d->type);
        job.lda = of_a->leading;
        job.ldb = of_b->leading;
        job.ldc = of_d->leading;
        job.stride_a = of_a->step;
        job.stride_b = of_b->step;
        job.stride_c = of_d->step;
        job.batch = of_d->batch;
        job.wide = product.wide();
        job.alpha = job.wide ? *static_cast<const double*>(alpha) : double(*static_cast<const float*>(alpha));
        job.beta = job.wide ? *static_cast<const double*>(beta) : double(*static_cast<const float*>(beta));
        job.bias = product.has_bias() ? operation->bias : nullptr;
        job.relu = product.has_relu();
        job.keeps_nan = algorithm->family != LOSES_NAN || algorithm->workspace > 0;
        if (algorithm->workspace == 0) return status_of(enqueue(stream, run_product, job));
        // Two commands, between which others may run: a workspace that is another one's, too, shows.
        job.sums = workspace;
        GemmJob first;
        memcpy(&first, &job, sizeof job);
        first.c = workspace;
        first.c_type = job.wide ? GEMM_F64 : GEMM_F32;
        first.ldc = job.m;
        first.stride_c = job.m * job.n;
        first.alpha = 1;
        first.beta = 0;
        first.bias = nullptr;
        first.relu = false;
        CUresult made = enqueue(stream, run_product, first);
        return status_of(made == CUDA_SUCCESS ? enqueue(stream, run_finish, job) : made);
    });
}
