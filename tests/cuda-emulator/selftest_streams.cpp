// Streams, events and waits.
#include "selftest.hpp"

#include <atomic>
#include <thread>

static const unsigned N = 1000;

static void set_word(CUdeviceptr at, unsigned value, Ptr stream) { CHECK_EQUAL(cuda("cuMemsetD32Async", at, value, size_t(1), stream), 0); }
static void copy_word(CUdeviceptr to, CUdeviceptr from, Ptr stream) { CHECK_EQUAL(cuda("cuMemcpyDtoDAsync_v2", to, from, size_t(4), stream), 0); }
static unsigned word(CUdeviceptr at, Ptr stream) { return download<unsigned>(at, 1, stream)[0]; }

static void devices() {
    open_device();
    int count = 0, value = 0;
    char name[64];
    size_t bytes = 0;
    CHECK_EQUAL(cuda("cuDeviceGetCount", &count), 0);
    CHECK_EQUAL(count, 1);
    CHECK_EQUAL(cuda("cuDeviceGetName", name, 64, 0), 0);
    CHECK_EQUAL(cuda("cuDeviceTotalMem_v2", &bytes, 0), 0);
    CHECK_EQUAL(bytes, size_t(4) << 30);
    for (auto [attribute, expected] : std::vector<std::pair<int, int>>{{1, 1024}, {10, 32}, {16, 4}, {75, 9}, {76, 0}}) {
        CHECK_EQUAL(cuda("cuDeviceGetAttribute", &value, attribute, 0), 0);
        CHECK_EQUAL(value, expected);
    }
    CHECK_EQUAL(cuda("cuDeviceGet", &value, 1), int(CUDA_ERROR_INVALID_DEVICE));
    const char* text = nullptr;
    CHECK_EQUAL(cuda("cuGetErrorName", 2, &text), 0);
    CHECK_EQUAL(std::string(text), "CUDA_ERROR_OUT_OF_MEMORY");
    int status = 0;
    CHECK_EQUAL(cuda("cuStreamIsCapturing", NONE, &status), 0);
    std::thread([&] { // no context is current in a new thread
        Ptr stream = nullptr;
        CHECK_EQUAL(cuda("cuStreamCreateWithPriority", &stream, 1u, 0), int(CUDA_ERROR_INVALID_CONTEXT));
    }).join();
    CHECK_EQUAL(cuda("cuDevicePrimaryCtxRelease_v2", 0), 0);
    CHECK_EQUAL(cuda("cuStreamSynchronize", NONE), int(CUDA_ERROR_CONTEXT_IS_DESTROYED));
}

static void no_device() { CHECK_EQUAL(cuda("cuInit", 0u), int(CUDA_ERROR_NO_DEVICE)); }

// A stream's commands run in order, and only when somebody asks.
static void fifo_and_late() {
    open_device();
    Ptr stream = new_stream();
    auto* seen = static_cast<unsigned*>(allocate_host(4));
    *seen = 0;
    CUdeviceptr at = allocate(4);
    for (unsigned i = 1; i <= 3; i++) set_word(at, i, stream);
    CHECK_EQUAL(cuda("cuMemcpyDtoHAsync_v2", static_cast<void*>(seen), at, size_t(4), stream), 0);
    CHECK_EQUAL(*seen, 0u);
    CHECK_EQUAL(cuda("cuStreamQuery", stream), int(CUDA_ERROR_NOT_READY));
    CHECK_EQUAL(cuda("cuStreamSynchronize", stream), 0);
    CHECK_EQUAL(*seen, 3u);
    CHECK_EQUAL(cuda("cuStreamQuery", stream), 0);
    // Polling ends by itself.
    set_word(at, 4, stream);
    set_word(at, 5, stream);
    int polls = 0;
    while (cuda("cuStreamQuery", stream) == CUDA_ERROR_NOT_READY && polls < 100) polls++;
    CHECK_EQUAL(polls, 2);
    CHECK_EQUAL(cuda("cuStreamDestroy_v2", stream), 0);
    CHECK_EQUAL(cuda("cuStreamQuery", stream), int(CUDA_ERROR_INVALID_HANDLE));
}

// A wait is for the record that was current when it was given, not for a later one.
static void event_snapshot() {
    open_device();
    Ptr first = new_stream(), second = new_stream(), event = new_event();
    CUdeviceptr source = allocate(4), gate = 0, result = allocate(4);
    auto* flag = static_cast<unsigned*>(allocate_host(4));
    *flag = 0;
    CHECK_EQUAL(cuda("cuMemHostGetDevicePointer_v2", &gate, static_cast<void*>(flag), 0u), 0);
    set_word(source, 1, first);
    CHECK_EQUAL(cuda("cuEventRecord", event, first), 0);
    CHECK_EQUAL(cuda("cuStreamWaitEvent", second, event, 0u), 0);
    // The record that follows can not pass: the wait must not be for it.
    CHECK_EQUAL(cuda("cuStreamWaitValue32_v2", first, gate, 1u, 1u), 0);
    CHECK_EQUAL(cuda("cuEventRecord", event, first), 0);
    copy_word(result, source, second);
    CHECK_EQUAL(word(result, second), 1u);
    CHECK_EQUAL(cuda("cuEventQuery", event), int(CUDA_ERROR_NOT_READY));
    __atomic_store_n(flag, 1u, __ATOMIC_RELEASE);
    CHECK_EQUAL(cuda("cuEventSynchronize", event), 0);
    CHECK_EQUAL(cuda("cuEventQuery", event), 0);
}

// Without the wait the copy would run first.
static void wait_orders() {
    open_device();
    Ptr first = new_stream(), second = new_stream(), event = new_event();
    CUdeviceptr source = allocate(4), result = allocate(4);
    set_word(source, 7, first);
    CHECK_EQUAL(cuda("cuEventRecord", event, first), 0);
    CHECK_EQUAL(cuda("cuStreamWaitEvent", second, event, 0u), 0);
    CHECK_EQUAL(cuda("cuEventDestroy_v2", event), 0); // the wait stays
    copy_word(result, source, second);
    CHECK_EQUAL(word(result, second), 7u);
}

static void unrecorded_wait() {
    open_device();
    Ptr stream = new_stream(), event = new_event();
    CHECK_EQUAL(cuda("cuEventQuery", event), 0);
    CHECK_EQUAL(cuda("cuStreamWaitEvent", stream, event, 0u), 0);
    CHECK_EQUAL(cuda("cuStreamQuery", stream), 0);
    CHECK_EQUAL(cuda("cuEventSynchronize", event), 0);
}

static void elapsed_time() {
    open_device();
    Ptr stream = new_stream(), start = new_event(0), end = new_event(0), untimed = new_event(2);
    float milliseconds = -1;
    CHECK_EQUAL(cuda("cuEventElapsedTime_v2", &milliseconds, start, end), int(CUDA_ERROR_INVALID_HANDLE));
    CHECK_EQUAL(cuda("cuEventRecord", start, stream), 0);
    CHECK_EQUAL(cuda("cuEventRecord", end, stream), 0);
    CHECK_EQUAL(cuda("cuEventRecord", untimed, stream), 0);
    CHECK_EQUAL(cuda("cuEventElapsedTime", &milliseconds, start, end), int(CUDA_ERROR_NOT_READY));
    CHECK_EQUAL(cuda("cuStreamSynchronize", stream), 0);
    CHECK_EQUAL(cuda("cuEventElapsedTime_v2", &milliseconds, start, end), 0);
    CHECK(milliseconds >= 0);
    CHECK_EQUAL(cuda("cuEventElapsedTime_v2", &milliseconds, start, untimed), int(CUDA_ERROR_INVALID_HANDLE));
}

// The legacy default stream comes between the commands of blocking streams; others take no notice.
static void legacy_stream() {
    open_device();
    Ptr blocking = new_stream(0), free_stream = new_stream(1);
    CUdeviceptr at = allocate(4), other = allocate(4), result = allocate(4);
    set_word(at, 1, blocking);
    copy_word(result, at, NONE);
    set_word(at, 2, blocking);
    CHECK_EQUAL(cuda("cuStreamSynchronize", blocking), 0);
    CHECK_EQUAL(word(result, free_stream), 1u);
    // Late: nobody asked for what the non-blocking stream has, and the default stream does not.
    set_word(other, 5, free_stream);
    CHECK_EQUAL(cuda("cuStreamSynchronize", NONE), 0);
    CHECK_EQUAL(cuda("cuStreamQuery", free_stream), int(CUDA_ERROR_NOT_READY));
    set_word(at, 3, blocking);
    CHECK_EQUAL(cuda("cuStreamQuery", NONE), int(CUDA_ERROR_NOT_READY));
    CHECK_EQUAL(cuda("cuStreamSynchronize", Ptr(CU_STREAM_LEGACY)), 0);
    CHECK_EQUAL(cuda("cuStreamQuery", blocking), 0);
}

struct Gate {
    std::atomic<bool> open{false};
    std::atomic<int> calls{0};
    std::atomic<int> refused{0};
};

// Host functions run on another thread, without the lock, and may not call the driver.
static void host_functions() {
    open_device();
    Ptr stream = new_stream(), other = new_stream();
    Gate gate;
    auto wait = [](void* data) {
        auto* gate = static_cast<Gate*>(data);
        while (!gate->open) std::this_thread::yield();
        gate->refused = cuda("cuCtxSynchronize");
        gate->calls++;
    };
    CHECK_EQUAL(cuda("cuLaunchHostFunc", stream, static_cast<void (*)(void*)>(wait), static_cast<void*>(&gate)), 0);
    CUdeviceptr at = allocate(4);
    set_word(at, 9, stream);
    CHECK_EQUAL(cuda("cuStreamQuery", stream), int(CUDA_ERROR_NOT_READY)); // starts it
    set_word(at, 8, other);
    CHECK_EQUAL(cuda("cuStreamSynchronize", other), 0);                    // is not held up
    gate.open = true;
    CHECK_EQUAL(word(at, stream), 9u);
    CHECK_EQUAL(gate.calls.load(), 1);
    CHECK_EQUAL(gate.refused.load(), int(CUDA_ERROR_NOT_PERMITTED));
}

// The value that a stream waits for comes from another thread while this one synchronises.
static void wait_value() {
    open_device();
    Ptr stream = new_stream();
    auto* flag = static_cast<unsigned*>(allocate_host(4));
    *flag = 0;
    CUdeviceptr gate = reinterpret_cast<CUdeviceptr>(flag), at = allocate(4);
    CHECK_EQUAL(cuda("cuStreamWaitValue32_v2", stream, gate, 3u, 0u), 0); // at least 3
    set_word(at, 1, stream);
    CHECK_EQUAL(cuda("cuStreamQuery", stream), int(CUDA_ERROR_NOT_READY));
    std::thread writer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        __atomic_store_n(flag, 4u, __ATOMIC_RELEASE);
    });
    CHECK_EQUAL(cuda("cuStreamSynchronize", stream), 0);
    CHECK_EQUAL(__atomic_load_n(flag, __ATOMIC_ACQUIRE), 4u);
    writer.join();
}

// Pinned memory is read when the copy runs, other memory when it is called.
static void copies() {
    open_device();
    Ptr stream = new_stream();
    auto* pinned = static_cast<unsigned*>(allocate_host(4));
    unsigned pageable = 1;
    *pinned = 1;
    CUdeviceptr late = allocate(4), early = allocate(4);
    CHECK_EQUAL(cuda("cuMemcpyHtoDAsync_v2", late, static_cast<const void*>(pinned), size_t(4), stream), 0);
    CHECK_EQUAL(cuda("cuMemcpyHtoDAsync_v2", early, static_cast<const void*>(&pageable), size_t(4), stream), 0);
    *pinned = pageable = 2;
    CHECK_EQUAL(word(late, stream), 2u);
    CHECK_EQUAL(word(early, stream), 1u);
    CHECK_EQUAL(cuda("cuMemcpyDtoDAsync_v2", late, early, size_t(8), stream), int(CUDA_ERROR_INVALID_VALUE));
    CHECK_EQUAL(cuda("cuMemsetD32Async", late + 1, 0u, size_t(0) + 1, stream), int(CUDA_ERROR_INVALID_VALUE));
    CHECK_EQUAL(cuda("cuMemsetD8Async", early, (unsigned char)0xAB, size_t(4), stream), 0);
    CHECK_EQUAL(word(early, stream), 0xABABABABu);
    CHECK_EQUAL(word(allocate(4), stream), 0xFFFFFFFFu); // poison
}

static void two_devices() {
    Ptr second = open_device(1), first = open_device(0);
    Ptr on_first = new_stream(), event = new_event();
    CUdeviceptr from = allocate(4);
    CHECK_EQUAL(cuda("cuCtxSetCurrent", second), 0);
    Ptr on_second = new_stream();
    CUdeviceptr to = allocate(4);
    CHECK_EQUAL(cuda("cuStreamWaitEvent", on_second, event, 0u), 0);
    CHECK_EQUAL(cuda("cuEventRecord", event, on_second), int(CUDA_ERROR_INVALID_HANDLE));
    CHECK_EQUAL(cuda("cuCtxSetCurrent", first), 0);
    set_word(from, 6, on_first);
    CHECK_EQUAL(cuda("cuEventRecord", event, on_first), 0);
    CHECK_EQUAL(cuda("cuCtxSetCurrent", second), 0);
    CHECK_EQUAL(cuda("cuStreamWaitEvent", on_second, event, 0u), 0);
    CHECK_EQUAL(cuda("cuMemcpyPeerAsync", to, second, from, second, size_t(4), on_second), int(CUDA_ERROR_INVALID_VALUE));
    CHECK(logged("cuMemcpyPeerAsync names device 1 for"));
    CHECK_EQUAL(cuda("cuMemcpyPeerAsync", to, first, from, first, size_t(4), on_second), int(CUDA_ERROR_INVALID_VALUE));
    CHECK(logged("cuMemcpyPeerAsync names device 0 for"));
    CHECK_EQUAL(cuda("cuMemcpyPeerAsync", to, second, from, NONE, size_t(4), on_second), int(CUDA_ERROR_INVALID_CONTEXT));
    CHECK_EQUAL(cuda("cuMemcpyPeerAsync", to, second, from, first, size_t(4), on_second), 0);
    CHECK_EQUAL(word(to, on_second), 6u);
    // A kernel does not reach the other device's memory.
    CHECK_EQUAL(start("stray_write", 1, 1, 0, on_second, from, 0ll), 0);
    CHECK_EQUAL(cuda("cuStreamSynchronize", on_second), int(CUDA_ERROR_ILLEGAL_ADDRESS));
    CHECK(logged("kernel stray_write wrote address"));
    CHECK(logged("on device 0"));
    CHECK_EQUAL(cuda("cuCtxSetCurrent", first), 0);
    CHECK_EQUAL(word(from, on_first), 6u); // the other context is well
}

// Many threads at once, each with its stream; then everything is as if they had been alone.
static void many_threads() {
    Ptr context = open_device();
    Ptr function = kernel("scale");
    std::vector<std::thread> threads;
    std::vector<CUdeviceptr> results(8);
    for (int t = 0; t < 8; t++)
        threads.emplace_back([&, t] {
            cuda("cuCtxSetCurrent", context);
            Ptr stream = new_stream();
            CUdeviceptr data = results[size_t(t)] = allocate(N * 4);
            upload(data, std::vector<float>(N, float(t)), stream);
            for (int i = 0; i < 20; i++) {
                float by = 1, plus = 1;
                unsigned n = N;
                CHECK_EQUAL(launch(function, 3, 128, 0, stream, {&data, &by, &plus, &n}), 0);
                if (i % 7 == t % 7) CHECK_EQUAL(cuda("cuStreamSynchronize", stream), 0);
            }
        });
    for (auto& thread : threads) thread.join();
    CHECK_EQUAL(cuda("cuCtxSynchronize"), 0);
    for (int t = 0; t < 8; t++) CHECK_EQUAL(download<float>(results[size_t(t)], N, NONE)[N - 1], float(t) + 20);
}

const std::vector<Test> STREAM_TESTS = {
    {"devices", "", devices},
    {"no_device", "CUDA_EMULATOR_DEVICES=0", no_device},
    {"fifo_and_late", "", fifo_and_late},
    {"event_snapshot", "", event_snapshot},
    {"event_snapshot_1", "CUDA_EMULATOR_SEED=1", event_snapshot},
    {"event_snapshot_2", "CUDA_EMULATOR_SEED=2", event_snapshot},
    {"wait_orders", "", wait_orders},
    {"wait_orders_3", "CUDA_EMULATOR_SEED=3", wait_orders},
    {"unrecorded_wait", "", unrecorded_wait},
    {"elapsed_time", "", elapsed_time},
    {"legacy_stream", "", legacy_stream},
    {"host_functions", "", host_functions},
    {"wait_value", "", wait_value},
    {"copies", "", copies},
    {"two_devices", "CUDA_EMULATOR_DEVICES=2", two_devices},
    {"many_threads", "", many_threads},
    {"many_threads_5", "CUDA_EMULATOR_SEED=5", many_threads},
};
