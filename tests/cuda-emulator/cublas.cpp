// The interface of the linear algebra library: products, enqueued on the handle's stream like a kernel.
#include "api.hpp"
#include "gemm.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

enum cublasStatus_t : int {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_ARCH_MISMATCH = 8,
    CUBLAS_STATUS_MAPPING_ERROR = 11,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
    CUBLAS_STATUS_LICENSE_ERROR = 16,
};

struct Handle {
    CUstream stream = nullptr;
    int math_mode = 0, pointer_mode = 0, atomics_mode = 0; // pointer mode 1: scalars are in device memory
};
typedef Handle* cublasHandle_t;

static std::mutex lock; // of the set
static std::unordered_set<Handle*> handles;

static bool known(cublasHandle_t handle) {
    std::lock_guard<std::mutex> held(lock);
    return handles.count(handle) != 0;
}

EXPORT CUresult cuCtxSynchronize(); // the driver's

template <class Body> static cublasStatus_t call(const char* name, Body body) {
    std::string details;
    int failure = cuEmulatorEnter(name);
    cublasStatus_t result = failure ? cublasStatus_t(failure) : body(details);
    cuEmulatorLog(name, details.c_str(), result);
    return result;
}

// For calls that only read or set something of a handle.
template <class Body> static cublasStatus_t on_handle(const char* name, cublasHandle_t handle, Body body) {
    return call(name, [&](std::string&) { return known(handle) ? body() : CUBLAS_STATUS_NOT_INITIALIZED; });
}

static cublasStatus_t status_of(CUresult result) {
    switch (result) {
    case CUDA_SUCCESS: return CUBLAS_STATUS_SUCCESS;
    case CUDA_ERROR_INVALID_HANDLE: return CUBLAS_STATUS_INVALID_VALUE;
    case CUDA_ERROR_INVALID_CONTEXT: return CUBLAS_STATUS_NOT_INITIALIZED;
    default: return CUBLAS_STATUS_EXECUTION_FAILED;
    }
}

EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t* out) {
    return call("cublasCreate_v2", [&](std::string&) {
        if (!out) return CUBLAS_STATUS_INVALID_VALUE;
        cublasStatus_t usable = status_of(cuEmulatorCheckStream(nullptr));
        if (usable != CUBLAS_STATUS_SUCCESS) return usable;
        std::lock_guard<std::mutex> held(lock);
        *out = *handles.insert(new Handle).first;
        return CUBLAS_STATUS_SUCCESS;
    });
}

// Waits for all that the device does, as the real one does.
EXPORT cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    return on_handle("cublasDestroy_v2", handle, [&] {
        cuCtxSynchronize();
        std::lock_guard<std::mutex> held(lock);
        handles.erase(handle);
        delete handle;
        return CUBLAS_STATUS_SUCCESS;
    });
}

EXPORT cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int* version) {
    return on_handle("cublasGetVersion_v2", handle, [&] {
        if (!version) return CUBLAS_STATUS_INVALID_VALUE;
        *version = 130000;
        return CUBLAS_STATUS_SUCCESS;
    });
}

EXPORT cublasStatus_t cublasGetProperty(int which, int* value) {
    return call("cublasGetProperty", [&](std::string&) {
        if (!value || which < 0 || which > 2) return CUBLAS_STATUS_INVALID_VALUE;
        *value = which == 0 ? 13 : 0;
        return CUBLAS_STATUS_SUCCESS;
    });
}

EXPORT cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, CUstream stream) {
    return on_handle("cublasSetStream_v2", handle, [&] {
        CUresult checked = cuEmulatorCheckStream(stream);
        if (checked == CUDA_SUCCESS) handle->stream = stream;
        return status_of(checked);
    });
}

EXPORT cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, CUstream* stream) {
    return on_handle("cublasGetStream_v2", handle, [&] {
        if (!stream) return CUBLAS_STATUS_INVALID_VALUE;
        *stream = handle->stream;
        return CUBLAS_STATUS_SUCCESS;
    });
}

// The products need no workspace; what a real library would refuse is refused.
EXPORT cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t bytes) {
    return on_handle("cublasSetWorkspace_v2", handle, [&] {
        bool aligned = reinterpret_cast<uintptr_t>(workspace) % 256 == 0;
        return aligned && (workspace || bytes == 0) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    });
}

template <class Value> static cublasStatus_t get(const char* name, cublasHandle_t handle, Value Handle::*field, Value* out) {
    return on_handle(name, handle, [&] {
        if (!out) return CUBLAS_STATUS_INVALID_VALUE;
        *out = handle->*field;
        return CUBLAS_STATUS_SUCCESS;
    });
}

static cublasStatus_t set(const char* name, cublasHandle_t handle, int Handle::*field, int value, bool valid) {
    return on_handle(name, handle, [&] {
        if (!valid) return CUBLAS_STATUS_INVALID_VALUE;
        handle->*field = value;
        return CUBLAS_STATUS_SUCCESS;
    });
}

EXPORT cublasStatus_t cublasSetMathMode(cublasHandle_t handle, int mode) {
    int base = mode & 15; // the rest says how 16-bit sums may be made
    return set("cublasSetMathMode", handle, &Handle::math_mode, mode, base <= 4 && !(mode & ~0x1F));
}
EXPORT cublasStatus_t cublasGetMathMode(cublasHandle_t handle, int* mode) { return get("cublasGetMathMode", handle, &Handle::math_mode, mode); }
EXPORT cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, int mode) {
    return set("cublasSetPointerMode_v2", handle, &Handle::pointer_mode, mode, mode == 0 || mode == 1);
}
EXPORT cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, int* mode) { return get("cublasGetPointerMode_v2", handle, &Handle::pointer_mode, mode); }
EXPORT cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, int mode) {
    return set("cublasSetAtomicsMode", handle, &Handle::atomics_mode, mode, mode == 0 || mode == 1);
}

static const struct {
    cublasStatus_t status;
    const char *name, *text;
} STATUSES[] = {
    {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS", "success"},
    {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED", "the library was not initialized"},
    {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED", "the resource allocation failed"},
    {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE", "an unsupported value or parameter was passed to the function"},
    {CUBLAS_STATUS_ARCH_MISMATCH, "CUBLAS_STATUS_ARCH_MISMATCH", "the device lacks a feature"},
    {CUBLAS_STATUS_MAPPING_ERROR, "CUBLAS_STATUS_MAPPING_ERROR", "an access to device memory failed"},
    {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED", "the program failed to execute"},
    {CUBLAS_STATUS_INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR", "an internal operation failed"},
    {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED", "the functionality requested is not supported"},
    {CUBLAS_STATUS_LICENSE_ERROR, "CUBLAS_STATUS_LICENSE_ERROR", "the license was not found"},
};

EXPORT const char* cublasGetStatusName(cublasStatus_t status) {
    for (auto& entry : STATUSES)
        if (entry.status == status) return entry.name;
    return "CUBLAS_STATUS unknown";
}

EXPORT const char* cublasGetStatusString(cublasStatus_t status) {
    for (auto& entry : STATUSES)
        if (entry.status == status) return entry.text;
    return "unknown status";
}

// A job with what must outlive the call.
struct Queued {
    GemmJob job;
    double scalars[2];
};

// Jobs run one at a time. Kept from one to the next, since a job that faults does not unwind.
static std::vector<unsigned char> scratch;

static void run_queued(void* data) {
    const GemmJob& job = static_cast<Queued*>(data)->job;
    size_t bytes = size_t(gemm_scratch_bytes(job)) + 32;
    if (scratch.size() < bytes) scratch.resize(bytes);
    run_gemm(job, scratch.data());
}

// A number of a job, as the caller gave it.
struct Request {
    int transa, transb, m, n, k;
    const void* alpha;
    const void* a;
    int a_type, lda;
    long long stride_a;
    const void* b;
    int b_type, ldb;
    long long stride_b;
    const void* beta;
    void* c;
    int c_type, ldc;
    long long stride_c;
    int batch;
    int compute;
};

constexpr int COMPUTE_32F = 68, COMPUTE_32F_PEDANTIC = 69, COMPUTE_64F = 70, COMPUTE_64F_PEDANTIC = 71, COMPUTE_32F_FAST_TF32 = 77;

static bool supported(const Request& r) {
    if (r.a_type != r.b_type) return false;
    bool f64 = r.compute == COMPUTE_64F || r.compute == COMPUTE_64F_PEDANTIC;
    if (f64) return r.a_type == GEMM_F64 && r.c_type == GEMM_F64;
    bool fast = r.compute == 74 || r.compute == 75 || r.compute == COMPUTE_32F_FAST_TF32; // by way of 16-bit or TF32 products
    if (fast) return r.a_type == GEMM_F32 && r.c_type == GEMM_F32;
    if (r.compute != COMPUTE_32F && r.compute != COMPUTE_32F_PEDANTIC) return false;
    if (r.a_type == GEMM_F32) return r.c_type == GEMM_F32;
    return (r.a_type == GEMM_F16 || r.a_type == GEMM_BF16) && (r.c_type == r.a_type || r.c_type == GEMM_F32);
}

static bool valid(const Request& r) {
    if (r.transa < 0 || r.transa > 2 || r.transb < 0 || r.transb > 2) return false;
    if (r.m < 0 || r.n < 0 || r.k < 0 || r.batch < 0 || !r.alpha || !r.beta) return false;
    return r.lda >= std::max(1, r.transa ? r.k : r.m) && r.ldb >= std::max(1, r.transb ? r.n : r.k) && r.ldc >= std::max(1, r.m);
}

static cublasStatus_t gemm(const char* name, cublasHandle_t handle, const Request& r) {
    return call(name, [&](std::string& details) {
        if (!known(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
        char text[160];
        snprintf(text, sizeof text, "m=%d n=%d k=%d transa=%d transb=%d lda=%d ldb=%d ldc=%d batch=%d", r.m, r.n, r.k, r.transa, r.transb, r.lda, r.ldb, r.ldc, r.batch);
        details = text;
        if (!valid(r)) return CUBLAS_STATUS_INVALID_VALUE;
        if (!supported(r)) return CUBLAS_STATUS_NOT_SUPPORTED;
        CUresult usable = cuEmulatorCheckStream(handle->stream);
        if (usable != CUDA_SUCCESS) return status_of(usable);
        if (r.m == 0 || r.n == 0 || r.batch == 0) return CUBLAS_STATUS_SUCCESS;
        auto* queued = new Queued{};
        bool wide = r.a_type == GEMM_F64;
        // By the call, or by the handle's mode (3) where the call leaves it open.
        bool tf32 = r.a_type == GEMM_F32 && (r.compute == COMPUTE_32F_FAST_TF32 || (r.compute == COMPUTE_32F && (handle->math_mode & 15) == 3));
        GemmType of_ab = tf32 ? GEMM_TF32 : GemmType(r.a_type);
        queued->job = {r.transa != 0, r.transb != 0, r.m, r.n, r.k, r.a, r.b, r.c, of_ab, GemmType(r.c_type), r.lda, r.ldb, r.ldc,
                       r.stride_a, r.stride_b, r.stride_c, r.batch, wide, r.alpha, r.beta};
        if (handle->pointer_mode == 0) { // the caller's scalars may be gone when the job runs
            memcpy(&queued->scalars[0], r.alpha, wide ? 8 : 4);
            memcpy(&queued->scalars[1], r.beta, wide ? 8 : 4);
            queued->job.alpha = &queued->scalars[0];
            queued->job.beta = &queued->scalars[1];
        }
        return status_of(cuEmulatorEnqueue(handle->stream, name, run_queued, queued, [](void* data) { delete static_cast<Queued*>(data); }));
    });
}

EXPORT cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, int transa, int transb, int m, int n, int k, const float* alpha, const float* a, int lda,
                                     const float* b, int ldb, const float* beta, float* c, int ldc) {
    return gemm("cublasSgemm_v2", handle,
                {transa, transb, m, n, k, alpha, a, GEMM_F32, lda, 0, b, GEMM_F32, ldb, 0, beta, c, GEMM_F32, ldc, 0, 1, COMPUTE_32F});
}

EXPORT cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, int transa, int transb, int m, int n, int k, const double* alpha, const double* a, int lda,
                                     const double* b, int ldb, const double* beta, double* c, int ldc) {
    return gemm("cublasDgemm_v2", handle,
                {transa, transb, m, n, k, alpha, a, GEMM_F64, lda, 0, b, GEMM_F64, ldb, 0, beta, c, GEMM_F64, ldc, 0, 1, COMPUTE_64F});
}

EXPORT cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, int transa, int transb, int m, int n, int k, const float* alpha, const float* a,
                                                int lda, long long stride_a, const float* b, int ldb, long long stride_b, const float* beta, float* c,
                                                int ldc, long long stride_c, int batch) {
    return gemm("cublasSgemmStridedBatched", handle,
                {transa, transb, m, n, k, alpha, a, GEMM_F32, lda, stride_a, b, GEMM_F32, ldb, stride_b, beta, c, GEMM_F32, ldc, stride_c, batch, COMPUTE_32F});
}

EXPORT cublasStatus_t cublasDgemmStridedBatched(cublasHandle_t handle, int transa, int transb, int m, int n, int k, const double* alpha, const double* a,
                                                int lda, long long stride_a, const double* b, int ldb, long long stride_b, const double* beta, double* c,
                                                int ldc, long long stride_c, int batch) {
    return gemm("cublasDgemmStridedBatched", handle,
                {transa, transb, m, n, k, alpha, a, GEMM_F64, lda, stride_a, b, GEMM_F64, ldb, stride_b, beta, c, GEMM_F64, ldc, stride_c, batch, COMPUTE_64F});
}

EXPORT cublasStatus_t cublasGemmEx(cublasHandle_t handle, int transa, int transb, int m, int n, int k, const void* alpha, const void* a, int a_type, int lda,
                                   const void* b, int b_type, int ldb, const void* beta, void* c, int c_type, int ldc, int compute, int) {
    return gemm("cublasGemmEx", handle, {transa, transb, m, n, k, alpha, a, a_type, lda, 0, b, b_type, ldb, 0, beta, c, c_type, ldc, 0, 1, compute});
}

EXPORT cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, int transa, int transb, int m, int n, int k, const void* alpha, const void* a,
                                                 int a_type, int lda, long long stride_a, const void* b, int b_type, int ldb, long long stride_b,
                                                 const void* beta, void* c, int c_type, int ldc, long long stride_c, int batch, int compute, int) {
    return gemm("cublasGemmStridedBatchedEx", handle,
                {transa, transb, m, n, k, alpha, a, a_type, lda, stride_a, b, b_type, ldb, stride_b, beta, c, c_type, ldc, stride_c, batch, compute});
}
