// The driver's C types and codes, as far as the emulator has them.
#pragma once

#include <cstddef>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

// name, value, text
#define CUDA_ERRORS(X)                                                                   \
    X(CUDA_SUCCESS, 0, "no error")                                                       \
    X(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument")                                   \
    X(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory")                                      \
    X(CUDA_ERROR_NOT_INITIALIZED, 3, "initialization error")                             \
    X(CUDA_ERROR_DEINITIALIZED, 4, "driver shutting down")                               \
    X(CUDA_ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected")                   \
    X(CUDA_ERROR_INVALID_DEVICE, 101, "invalid device ordinal")                          \
    X(CUDA_ERROR_INVALID_IMAGE, 200, "device kernel image is invalid")                   \
    X(CUDA_ERROR_INVALID_CONTEXT, 201, "invalid device context")                         \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image is available for the device")  \
    X(CUDA_ERROR_ECC_UNCORRECTABLE, 214, "uncorrectable ECC error encountered")          \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217, "peer access is not supported")           \
    X(CUDA_ERROR_INVALID_PTX, 218, "a PTX JIT compilation failed")                       \
    X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222, "the PTX was made for a newer toolchain") \
    X(CUDA_ERROR_OPERATING_SYSTEM, 304, "OS call failed")                                \
    X(CUDA_ERROR_INVALID_HANDLE, 400, "invalid resource handle")                         \
    X(CUDA_ERROR_ILLEGAL_STATE, 401, "the operation is not permitted in this state")     \
    X(CUDA_ERROR_NOT_FOUND, 500, "named symbol not found")                               \
    X(CUDA_ERROR_NOT_READY, 600, "device not ready")                                     \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered")       \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch") \
    X(CUDA_ERROR_LAUNCH_TIMEOUT, 702, "the launch timed out and was terminated")         \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed")                      \
    X(CUDA_ERROR_ASSERT, 710, "device-side assert triggered")                            \
    X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715, "an illegal instruction was encountered")     \
    X(CUDA_ERROR_MISALIGNED_ADDRESS, 716, "misaligned address")                          \
    X(CUDA_ERROR_LAUNCH_FAILED, 719, "unspecified launch failure")                       \
    X(CUDA_ERROR_NOT_PERMITTED, 800, "operation not permitted")                          \
    X(CUDA_ERROR_NOT_SUPPORTED, 801, "operation not supported")                          \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when stream is capturing") \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901, "operation failed due to a previous error during capture") \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902, "operation would result in a merge of separate capture sequences") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903, "capture was not ended in the same stream as it began") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904, "capturing stream has unjoined work")     \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905, "dependency created on uncaptured work in another stream") \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906, "operation would make the legacy stream depend on a capturing blocking stream") \
    X(CUDA_ERROR_CAPTURED_EVENT, 907, "operation not permitted on an event last recorded in a capturing stream") \
    X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908, "attempt to terminate a thread-local capture sequence from another thread") \
    X(CUDA_ERROR_UNKNOWN, 999, "unknown error")

enum CUresult : int {
#define X(name, value, text) name = value,
    CUDA_ERRORS(X)
#undef X
};

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUcontextHandle* CUcontext;
typedef struct CUstreamHandle* CUstream;
typedef struct CUeventHandle* CUevent;
typedef struct CUmoduleHandle* CUmodule;
typedef struct CUfunctionHandle* CUfunction;
typedef struct CUgraphHandle* CUgraph;
typedef struct CUgraphNodeHandle* CUgraphNode;
typedef struct CUgraphExecHandle* CUgraphExec;
typedef void (*CUhostFn)(void*);

// CUDA_KERNEL_NODE_PARAMS, the second version.
struct KernelParams {
    CUfunction function;
    unsigned grid[3], block[3], shared;
    void** parameters;
    void** extra;
    void* kernel; // CUkernel
    CUcontext context;
};

// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
    int id;
    char pad[4];
    unsigned value[16];
};
struct LaunchConfig {
    unsigned grid[3], block[3], shared;
    CUstream stream;
    const LaunchAttribute* attributes;
    unsigned count;
};
enum : int { CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4, CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE = 5 };
// What follows in the list of a launch whose arguments are in a buffer.
enum : uintptr_t { CU_LAUNCH_PARAM_END = 0, CU_LAUNCH_PARAM_BUFFER_POINTER = 1, CU_LAUNCH_PARAM_BUFFER_SIZE = 2 };

// CUgraphEdgeData: all zeros but for programmatic launches, which are not there.
struct EdgeData {
    unsigned char bytes[8];
};

enum : int { CU_STREAM_CAPTURE_MODE_GLOBAL = 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1, CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
enum : int { CU_STREAM_CAPTURE_STATUS_NONE = 0, CU_STREAM_CAPTURE_STATUS_ACTIVE = 1, CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2 };

enum : unsigned { CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1 };
enum : uintptr_t { CU_STREAM_LEGACY = 1, CU_STREAM_PER_THREAD = 2 };
enum : unsigned { CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2, CU_EVENT_INTERPROCESS = 4 };
enum : unsigned { CU_WAIT_GEQ = 0, CU_WAIT_EQ = 1, CU_WAIT_AND = 2, CU_WAIT_NOR = 3, CU_WAIT_FLUSH = 1u << 30 };
enum : unsigned { CU_MEMHOSTALLOC_PORTABLE = 1, CU_MEMHOSTALLOC_DEVICEMAP = 2, CU_MEMHOSTALLOC_WRITECOMBINED = 4 };

// Counted up with module_abi.hpp and the header below, so that a blob of another version is refused.
constexpr uint32_t EMULATOR_VERSION = 1;

// What a "CUBIN" is: this header, then a shared object. A "PTX" is "//EMULATED " and the same bytes in hexadecimal digits.
struct ImageHeader {
    char magic[8]; // "\x7f" "EMUGPU\n"
    uint32_t version;
    uint32_t architecture; // 90 for sm_90
    uint64_t bytes;        // of the shared object that follows
};
constexpr char IMAGE_MAGIC[8] = {'\x7f', 'E', 'M', 'U', 'G', 'P', 'U', '\n'};
constexpr char PTX_MAGIC[] = "//EMULATED ";

// For the tests of one process, and for the emulated libraries among each other.
EXPORT uint64_t cuEmulatorCallCount(const char* function);
EXPORT void cuEmulatorReset();
EXPORT void cuEmulatorSeed(uint64_t seed);
EXPORT void cuEmulatorFail(const char* function, uint64_t k);
EXPORT void cuEmulatorDropWait(int64_t k);
EXPORT void cuEmulatorDropEdge(int64_t k);
// Counts a call of another library's function, and says what it shall fail with: 0, or a code (-1: the library's usual one).
EXPORT int cuEmulatorEnter(const char* function);
EXPORT void cuEmulatorLog(const char* function, const char* details, int result);
// Launches a library's kernel of so many blocks, whose argument is copied. A launch of the same kernel by anybody does the same;
// `run` is called once for all of its threads. A modern one takes its arguments in a buffer and has clusters of two blocks.
EXPORT CUresult cuEmulatorLaunch(CUstream stream, const char* name, unsigned blocks, bool modern, void (*run)(void*), const void* argument, unsigned bytes);
// As cuEmulatorEnter, from a command that runs.
EXPORT int cuEmulatorEnterHeld(const char* function);
// Enqueues work that reaches all devices' memory; `drop`, which may be missing, frees `data` once it ran or was discarded. It
// runs once `ready`, which may be missing, says so; who waits for it has other streams' commands run meanwhile, whatever their
// devices.
EXPORT CUresult cuEmulatorMeet(CUstream stream, const char* name, bool (*ready)(void*), void (*run)(void*), void* data, void (*drop)(void*));
// Which capture it is of all that a stream of the current context ever began, and its number; 0 without one.
EXPORT uint64_t cuEmulatorCapture(CUstream stream, uint64_t* id);
// The current context's, or INVALID_CONTEXT; INVALID_HANDLE for a stream that is not one of its own.
EXPORT CUresult cuEmulatorCheckStream(CUstream stream);
// For calls that wait for all work of the current context: an error if that would never end.
EXPORT CUresult cuEmulatorAwaitHost(const char* function);
