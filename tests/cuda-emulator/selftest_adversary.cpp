// Schedules, failures on purpose, and the log.
#include "selftest.hpp"

#include <set>

// Two streams add to and scale one number without any order between them; which result comes depends on the schedule.
static float unordered_result(uint64_t seed) {
    reinterpret_cast<void (*)(uint64_t)>(symbol("libcuda.so", "cuEmulatorSeed"))(seed);
    Ptr first = new_stream(), second = new_stream();
    CUdeviceptr data = allocate(4);
    upload(data, std::vector<float>{1}, first);
    CHECK_EQUAL(cuda("cuStreamSynchronize", first), 0);
    float one = 1, two = 2, zero = 0;
    unsigned n = 1;
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(start("scale", 1, 1, 0, first, data, one, one, n), 0);
        CHECK_EQUAL(start("scale", 1, 1, 0, second, data, two, zero, n), 0);
    }
    CHECK_EQUAL(cuda("cuStreamSynchronize", second), 0);
    CHECK_EQUAL(cuda("cuStreamSynchronize", first), 0);
    return download<float>(data, 1, first)[0];
}

static void seeds_differ() {
    open_device();
    std::set<float> results;
    for (uint64_t seed = 0; seed < 16; seed++) {
        float result = unordered_result(seed);
        CHECK_EQUAL(unordered_result(seed) == result || seed % 4 == 3, true); // favourites go by the stream, which is new
        results.insert(result);
    }
    CHECK(results.size() >= 4);
    CHECK_EQUAL(unordered_result(0), 11.0f); // late: what was awaited first ran first
}

// The same with all waits in place; CUDA_EMULATOR_DROP_WAIT makes it wrong.
static float ordered_result() {
    Ptr first = new_stream(), second = new_stream(), event = new_event();
    CUdeviceptr data = allocate(4);
    float one = 1, two = 2, zero = 0;
    unsigned n = 1;
    upload(data, std::vector<float>{1}, first);
    CHECK_EQUAL(start("scale", 1, 1, 0, first, data, one, one, n), 0);
    CHECK_EQUAL(cuda("cuEventRecord", event, first), 0);
    CHECK_EQUAL(cuda("cuStreamWaitEvent", second, event, 0u), 0);
    CHECK_EQUAL(start("scale", 1, 1, 0, second, data, two, zero, n), 0);
    CHECK_EQUAL(cuda("cuEventRecord", event, second), 0);
    CHECK_EQUAL(cuda("cuStreamWaitEvent", first, event, 0u), 0);
    CHECK_EQUAL(start("scale", 1, 1, 0, first, data, one, one, n), 0);
    return download<float>(data, 1, first)[0];
}

static void waits_hold() {
    open_device();
    for (uint64_t seed = 0; seed < 12; seed++) {
        reinterpret_cast<void (*)(uint64_t)>(symbol("libcuda.so", "cuEmulatorSeed"))(seed);
        CHECK_EQUAL(ordered_result(), 5.0f);
    }
}

static void dropped_wait() {
    open_device();
    CHECK(ordered_result() != 5.0f);
    CHECK(logged("cuStreamWaitEvent stream=1 event=1 dropped -> 0"));
    CHECK_EQUAL(ordered_result(), 5.0f); // only that one
    reinterpret_cast<void (*)(int64_t)>(symbol("libcuda.so", "cuEmulatorDropWait"))(6);
    CHECK(ordered_result() != 5.0f);
}

static void dropped_wait_of_a_stream() {
    open_device();
    CHECK(ordered_result() != 5.0f);
    CHECK(logged("cuStreamWaitEvent stream=2 event=1 -> 0"));
    CHECK(logged("cuStreamWaitEvent stream=1 event=1 dropped -> 0"));
    CHECK_EQUAL(ordered_result(), 5.0f); // other streams
}

static uint64_t calls(const char* function) {
    return reinterpret_cast<uint64_t (*)(const char*)>(symbol("libcuda.so", "cuEmulatorCallCount"))(function);
}

static void failing_calls() {
    open_device();
    CUdeviceptr address = 0;
    CHECK_EQUAL(cuda("cuMemAlloc_v2", &address, size_t(64)), 0);
    CHECK_EQUAL(cuda("cuMemAlloc_v2", &address, size_t(64)), int(CUDA_ERROR_OUT_OF_MEMORY));
    CHECK_EQUAL(cuda("cuMemAlloc_v2", &address, size_t(64)), 0);
    CHECK_EQUAL(calls("cuMemAlloc_v2"), uint64_t(3));
    CHECK_EQUAL(start("nothing", 1, 1, 0, NONE), int(CUDA_ERROR_ECC_UNCORRECTABLE));
    CHECK_EQUAL(start("nothing", 1, 1, 0, NONE), 0);
    Ptr handle = nullptr;
    CHECK_EQUAL(cublaslt("cublasLtCreate", &handle), 3);
    CHECK_EQUAL(cublaslt("cublasLtCreate", &handle), 0);
    reinterpret_cast<void (*)(const char*, uint64_t)>(symbol("libcuda.so", "cuEmulatorFail"))("cuStreamQuery", 2);
    CHECK_EQUAL(cuda("cuStreamSynchronize", NONE), 0);
    CHECK_EQUAL(cuda("cuStreamQuery", NONE), 0);
    CHECK_EQUAL(cuda("cuStreamQuery", NONE), int(CUDA_ERROR_UNKNOWN));
    reinterpret_cast<void (*)()>(symbol("libcuda.so", "cuEmulatorReset"))();
    CHECK_EQUAL(calls("cuStreamQuery"), uint64_t(0));
    CHECK_EQUAL(cuda("cuMemAlloc_v2", &address, size_t(64)), 0);
    CHECK_EQUAL(cuda("cuMemAlloc_v2", &address, size_t(64)), int(CUDA_ERROR_OUT_OF_MEMORY)); // the environment's plan again
    Ptr program = nullptr;
    CHECK_EQUAL(nvrtc("nvrtcCreateProgram", &program, "", "x", 0, NONE, NONE), 0);
    CHECK_EQUAL(nvrtc("nvrtcCompileProgram", program, 0, NONE), 6);
}

static void small_memory() {
    open_device();
    CUdeviceptr address = 0, other = 0;
    size_t free = 0, total = 0;
    CHECK_EQUAL(cuda("cuMemAlloc_v2", &address, size_t(40) << 20), 0);
    CHECK_EQUAL(cuda("cuMemAlloc_v2", &other, size_t(40) << 20), int(CUDA_ERROR_OUT_OF_MEMORY));
    CHECK_EQUAL(cuda("cuMemGetInfo_v2", &free, &total), 0);
    CHECK_EQUAL(total, size_t(64) << 20);
    CHECK_EQUAL(free, size_t(24) << 20);
    CHECK_EQUAL(cuda("cuMemFree_v2", address), 0);
    CHECK_EQUAL(cuda("cuMemAlloc_v2", &other, size_t(64) << 20), 0);
}

// More commands than the bound: the oldest run without anybody asking.
static void bounded_queue() {
    open_device();
    Ptr stream = new_stream();
    auto* seen = static_cast<volatile unsigned*>(allocate_host(4));
    *seen = 0;
    auto at = reinterpret_cast<CUdeviceptr>(seen);
    for (unsigned i = 1; i <= 8; i++) CHECK_EQUAL(cuda("cuMemsetD32Async", at, i, size_t(1), stream), 0);
    CHECK_EQUAL(*seen, 0u);
    CHECK_EQUAL(cuda("cuMemsetD32Async", at, 9u, size_t(1), stream), 0);
    CHECK_EQUAL(*seen, 1u);
}

static void log_lines() {
    open_device();
    Ptr stream = new_stream();
    CHECK_EQUAL(start("nothing", 2, 32, 0, stream), 0);
    CHECK(logged("cuStreamCreateWithPriority stream=1 flags=1 priority=0 -> 0\n"));
    CHECK(logged("cuLaunchKernel stream=1 kernel=nothing grid=2,1,1 block=32,1,1 shared=0 -> 0\n"));
    CHECK(!logged("run stream=1"));
    CHECK_EQUAL(cuda("cuStreamSynchronize", stream), 0);
    CHECK(logged("run stream=1 kernel=nothing\n"));
}

const std::vector<Test> ADVERSARY_TESTS = {
    {"seeds_differ", "", seeds_differ},
    {"waits_hold", "", waits_hold},
    {"dropped_wait", "CUDA_EMULATOR_DROP_WAIT=2", dropped_wait},
    {"dropped_wait_of_a_stream", "CUDA_EMULATOR_DROP_WAIT=1:1", dropped_wait_of_a_stream},
    {"failing_calls", "CUDA_EMULATOR_FAIL=cuMemAlloc_v2:2,cuLaunchKernel:1:214,cublasLtCreate:1,nvrtcCompileProgram:1", failing_calls},
    {"small_memory", "CUDA_EMULATOR_MEMORY=64M", small_memory},
    {"bounded_queue", "CUDA_EMULATOR_QUEUE=8", bounded_queue},
    {"log_lines", "", log_lines},
};
