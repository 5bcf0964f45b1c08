// Captures: what becomes of calls while a stream captures.
#include "selftest_graphs.hpp"

#include <thread>

constexpr int UNSUPPORTED = 900, INVALIDATED = 901, MERGE = 902, UNMATCHED = 903, UNJOINED = 904, ISOLATION = 905, IMPLICIT = 906, EVENT = 907, THREAD = 908;

static int status(Ptr stream) {
    int value = -1;
    CHECK_EQUAL(cuda("cuStreamIsCapturing", stream, &value), 0);
    return value;
}

static int sync(Ptr stream) { return cuda("cuStreamSynchronize", stream); }

// A capture in which `act` is done: what that returns, and whether the capture outlives it. A capture that does not takes its
// graph along.
template <class Act> static void while_capturing(int mode, Act act, int expected, bool lives, unsigned flags = 1) {
    Ptr stream = new_stream(flags), graph = new_graph(), ended = nullptr;
    CHECK_EQUAL(begin(stream, graph, {}, mode), 0);
    CHECK_EQUAL(start("nothing", 1, 1, 0, stream), 0);
    CHECK_EQUAL(act(stream, graph), expected);
    CHECK_EQUAL(status(stream), lives ? 1 : 2);
    CHECK_EQUAL(start("nothing", 1, 1, 0, stream), lives ? 0 : INVALIDATED);
    CHECK_EQUAL(cuda("cuStreamEndCapture", stream, &ended), lives ? 0 : INVALIDATED);
    CHECK_EQUAL(ended, lives ? graph : nullptr);
    CHECK_EQUAL(cuda("cuGraphDestroy", graph), lives ? 0 : int(CUDA_ERROR_INVALID_VALUE));
    CHECK_EQUAL(status(stream), 0);
    CHECK_EQUAL(start("nothing", 1, 1, 0, stream), 0);
    CHECK_EQUAL(sync(stream), 0);
}

// Calls that wait, or look, or allocate: about the stream that captures, and about others.
static void unsafe_calls() {
    open_device();
    Ptr other = new_stream(), past = new_event();
    CHECK_EQUAL(cuda("cuEventRecord", past, other), 0);
    CHECK_EQUAL(sync(other), 0);
    CUdeviceptr address = 0;
    Ptr exec = instantiate(new_graph());
    for (int mode : {RELAXED, THREAD_LOCAL, GLOBAL}) {
        bool relaxed = mode == RELAXED;
        int unsafe = relaxed ? 0 : UNSUPPORTED;
        while_capturing(mode, [](Ptr stream, Ptr) { return sync(stream); }, UNSUPPORTED, false);
        while_capturing(mode, [](Ptr stream, Ptr) { return cuda("cuStreamQuery", stream); }, UNSUPPORTED, false);
        while_capturing(mode, [](Ptr, Ptr) { return cuda("cuCtxSynchronize"); }, UNSUPPORTED, false);
        while_capturing(mode, [&](Ptr stream, Ptr) { return launch_graph(exec, stream); }, UNSUPPORTED, false);
        for (const char* look : {"cuEventQuery", "cuEventSynchronize"}) {
            auto act = [&](Ptr stream, Ptr) {
                Ptr event = new_event();
                CHECK_EQUAL(cuda("cuEventRecord", event, stream), 0);
                return cuda(look, event);
            };
            while_capturing(mode, act, EVENT, false);
            while_capturing(mode, [&](Ptr, Ptr) { return cuda(look, past); }, unsafe, relaxed);
        }
        while_capturing(mode, [&](Ptr, Ptr) { return sync(other); }, unsafe, relaxed);
        while_capturing(mode, [&](Ptr, Ptr) { return cuda("cuStreamQuery", other); }, unsafe, relaxed);
        while_capturing(mode, [&](Ptr, Ptr) { return cuda("cuMemAlloc_v2", &address, size_t(4)); }, unsafe, relaxed);
        CUdeviceptr mine = allocate(4);
        while_capturing(mode, [&](Ptr, Ptr) { return cuda("cuMemFree_v2", mine); }, unsafe, relaxed);
        auto make = [](Ptr, Ptr) {
            Ptr exec = nullptr;
            return cuda("cuGraphInstantiateWithFlags", &exec, new_graph(), 0ull);
        };
        while_capturing(mode, make, unsafe, relaxed);
        while_capturing(mode, [&](Ptr, Ptr) { return start("nothing", 1, 1, 0, other); }, 0, true);
        while_capturing(mode, [&](Ptr, Ptr) { return launch_graph(exec, other); }, 0, true);
    }
    // A thread that says it knows what it does.
    int mine = RELAXED;
    CHECK_EQUAL(cuda("cuThreadExchangeStreamCaptureMode", &mine), 0);
    CHECK_EQUAL(mine, GLOBAL);
    while_capturing(GLOBAL, [&](Ptr, Ptr) { return cuda("cuMemAlloc_v2", &address, size_t(4)); }, 0, true);
}

// The modes are about threads.
static void other_threads() {
    Ptr context = open_device();
    auto elsewhere = [=](auto act) {
        int result = -1;
        std::thread([&] {
            cuda("cuCtxSetCurrent", context);
            result = act();
        }).join();
        return result;
    };
    auto allocates = [] {
        CUdeviceptr address = 0;
        return cuda("cuMemAlloc_v2", &address, size_t(4));
    };
    while_capturing(GLOBAL, [&](Ptr, Ptr) { return elsewhere(allocates); }, UNSUPPORTED, false);
    while_capturing(THREAD_LOCAL, [&](Ptr, Ptr) { return elsewhere(allocates); }, 0, true);
    auto ends = [&](Ptr stream, Ptr) {
        return elsewhere([=] {
            Ptr graph = nullptr;
            return cuda("cuStreamEndCapture", stream, &graph);
        });
    };
    Ptr stream = new_stream(), graph = new_graph();
    CHECK_EQUAL(begin(stream, new_graph()), 0);
    CHECK_EQUAL(ends(stream, NONE), 0);
    // The wrong thread ends it, too, and the graph with it.
    CHECK_EQUAL(begin(stream, graph, {}, GLOBAL), 0);
    CHECK_EQUAL(ends(stream, NONE), THREAD);
    CHECK_EQUAL(status(stream), 0);
    CHECK_EQUAL(cuda("cuGraphDestroy", graph), int(CUDA_ERROR_INVALID_VALUE));
    while_capturing(RELAXED, [&](Ptr, Ptr) { return elsewhere([] { return cuda("cuCtxSynchronize"); }); }, UNSUPPORTED, false);
}

static void mistakes() {
    open_device();
    Ptr other = new_stream(), foreign = new_graph(), node = capture(other, foreign, {}, [&] { CHECK_EQUAL(start("nothing", 1, 1, 0, other), 0); });
    constexpr int BAD = CUDA_ERROR_INVALID_VALUE, STATE = CUDA_ERROR_ILLEGAL_STATE;
    CHECK_EQUAL(begin(other, new_graph(), {node}), BAD);
    CHECK_EQUAL(begin(other, new_graph(), {nullptr}), BAD);
    CHECK_EQUAL(begin(other, nullptr), BAD);
    CHECK_EQUAL(begin(other, new_graph(), {}, 3), BAD);
    CHECK_EQUAL(begin(NONE, new_graph()), UNSUPPORTED);
    // A stream captures once at a time, and so does a graph.
    while_capturing(RELAXED, [](Ptr stream, Ptr) { return begin(stream, new_graph()); }, STATE, true);
    while_capturing(RELAXED, [&](Ptr, Ptr graph) { return begin(other, graph); }, STATE, true);
    while_capturing(RELAXED, [&](Ptr, Ptr graph) { return cuda("cuGraphDestroy", graph); }, STATE, true);
    while_capturing(RELAXED, [&](Ptr, Ptr) { return cuda("cuStreamEndCapture", other, &node); }, STATE, true);
    // A launch with a bad shape ends a capture; one of no function does not, nor does a bad copy.
    while_capturing(RELAXED, [](Ptr stream, Ptr) { return launch(NONE, 1, 1, 0, stream, {}); }, int(CUDA_ERROR_INVALID_HANDLE), true);
    while_capturing(RELAXED, [](Ptr stream, Ptr) { return start("nothing", 0, 1, 0, stream); }, BAD, false);
    while_capturing(RELAXED, [](Ptr stream, Ptr) { return cuda("cuMemsetD8Async", CUdeviceptr(16), (unsigned char)1, size_t(4), stream); }, BAD, true);
    // The legacy stream would wait for a blocking one.
    while_capturing(RELAXED, [](Ptr, Ptr) { return start("nothing", 1, 1, 0, NONE); }, 0, true);
    while_capturing(RELAXED, [](Ptr, Ptr) { return sync(NONE); }, 0, true);
    while_capturing(RELAXED, [](Ptr, Ptr) { return start("nothing", 1, 1, 0, NONE); }, IMPLICIT, false, 0);
    while_capturing(RELAXED, [](Ptr, Ptr) { return sync(NONE); }, IMPLICIT, false, 0);
    int seen = -1;
    while_capturing(RELAXED, [&](Ptr, Ptr) { return cuda("cuStreamIsCapturing", NONE, &seen); }, IMPLICIT, true, 0);
    CHECK_EQUAL(seen, -1);
    // A stream that goes takes the capture along.
    Ptr stream = new_stream(), graph = new_graph();
    size_t count = 0;
    CHECK_EQUAL(begin(stream, graph), 0);
    CHECK_EQUAL(cuda("cuStreamDestroy_v2", stream), 0);
    CHECK_EQUAL(cuda("cuGraphGetNodes", graph, NONE, &count), BAD);
}

// Events take a capture to other streams and back.
static void fork_and_join() {
    open_device();
    Ptr one = new_stream(), two = new_stream(), event = new_event(), graph = nullptr;
    CUdeviceptr left = allocate(4), right = allocate(4), sum = allocate(4);
    CHECK_EQUAL(cuda("cuStreamBeginCapture_v2", one, RELAXED), 0);
    CHECK_EQUAL(cuda("cuStreamWaitEvent", one, new_event(), 0u), 0); // of nothing
    set_float(left, 1, one);
    CHECK_EQUAL(cuda("cuEventRecord", event, one), 0);
    CHECK_EQUAL(cuda("cuStreamWaitEvent", two, event, 0u), 0);
    CHECK_EQUAL(status(two), 1);
    copy_float(right, left, two);
    scale(left, 5, 0, one);
    scale(right, 1, 1, two);
    CHECK_EQUAL(cuda("cuEventRecord", event, two), 0);
    CHECK_EQUAL(cuda("cuStreamWaitEvent", one, event, 0u), 0);
    CHECK_EQUAL(start("add", 1, 1, 0, one, sum, left, right, 1u), 0);
    CHECK_EQUAL(cuda("cuStreamEndCapture", one, &graph), 0);
    CHECK_EQUAL(status(two), 0);
    // The event is of no use until it is recorded again.
    CHECK_EQUAL(cuda("cuEventQuery", event), int(CUDA_ERROR_INVALID_VALUE));
    CHECK_EQUAL(cuda("cuEventSynchronize", event), int(CUDA_ERROR_INVALID_VALUE));
    CHECK_EQUAL(cuda("cuStreamWaitEvent", two, event, 0u), int(CUDA_ERROR_INVALID_VALUE));
    CHECK_EQUAL(cuda("cuEventRecord", event, two), 0);
    CHECK_EQUAL(cuda("cuEventSynchronize", event), 0);
    CHECK_EQUAL(nodes_of(graph).size(), size_t(5));
    Ptr exec = instantiate(graph);
    bool always = true;
    for (uint64_t n = 0; n < 12; n++) {
        seed(n);
        CHECK_EQUAL(launch_graph(exec, two), 0);
        always = number(sum, two) == 7.0f && always;
    }
    CHECK(!always); // nothing has the copy before the scaling
}

static void failed_forks() {
    open_device();
    Ptr elsewhere = new_stream(), past = new_event();
    CHECK_EQUAL(cuda("cuEventRecord", past, elsewhere), 0);
    CHECK_EQUAL(sync(elsewhere), 0);
    while_capturing(RELAXED, [&](Ptr stream, Ptr) { return cuda("cuStreamWaitEvent", stream, past, 0u); }, ISOLATION, false);
    auto fork = [](Ptr from, Ptr to) {
        Ptr event = new_event();
        CHECK_EQUAL(cuda("cuEventRecord", event, from), 0);
        return cuda("cuStreamWaitEvent", to, event, 0u);
    };
    Ptr merging = new_stream();
    CHECK_EQUAL(begin(merging, new_graph()), 0);
    while_capturing(RELAXED, [&](Ptr stream, Ptr) { return fork(stream, merging); }, MERGE, false);
    CHECK_EQUAL(status(merging), 2);
    auto ends_the_fork = [&](Ptr stream, Ptr) {
        Ptr other = new_stream(), ended = nullptr;
        CHECK_EQUAL(fork(stream, other), 0);
        return cuda("cuStreamEndCapture", other, &ended);
    };
    while_capturing(RELAXED, ends_the_fork, UNMATCHED, false);
    // A fork of nothing needs no join.
    while_capturing(RELAXED, [&](Ptr stream, Ptr) { return fork(stream, new_stream()); }, 0, true);
    Ptr stream = new_stream(), graph = new_graph(), other = new_stream(), ended = nullptr;
    CHECK_EQUAL(begin(stream, graph), 0);
    CHECK_EQUAL(fork(stream, other), 0);
    CHECK_EQUAL(start("nothing", 1, 1, 0, other), 0);
    CHECK_EQUAL(cuda("cuStreamEndCapture", stream, &ended), UNJOINED);
    CHECK_EQUAL(cuda("cuGraphDestroy", graph), int(CUDA_ERROR_INVALID_VALUE));
    CHECK_EQUAL(sync(other), 0);
}

// Host memory is read and written when the graph runs; the driver's own, and any other.
static void copies_and_products() {
    open_device();
    Ptr stream = new_stream(), graph = new_graph();
    CUdeviceptr a = allocate(4), b = allocate(4), c = allocate(4);
    auto* pinned = static_cast<float*>(allocate_host(8));
    float pageable[2] = {0, 0};
    Described product(new_handle(), {0, 0, 68, 1, 1, 1});
    capture(stream, graph, {}, [&] {
        CHECK_EQUAL(cuda("cuMemcpyHtoDAsync_v2", a, static_cast<const void*>(pinned), size_t(4), stream), 0);
        CHECK_EQUAL(cuda("cuMemcpyHtoDAsync_v2", b, static_cast<const void*>(pageable), size_t(4), stream), 0);
        CHECK_EQUAL(product.multiply(1.0f, a, b, 0.0f, c, 0, stream), 0);
        CHECK_EQUAL(cuda("cuMemcpyDtoHAsync_v2", static_cast<void*>(pinned + 1), c, size_t(4), stream), 0);
        CHECK_EQUAL(cuda("cuMemcpyDtoHAsync_v2", static_cast<void*>(pageable + 1), c, size_t(4), stream), 0);
    });
    Ptr exec = instantiate(graph);
    for (float x : {2.0f, 3.0f}) {
        pinned[0] = x;
        pageable[0] = x + 1;
        CHECK_EQUAL(launch_graph(exec, stream), 0);
        CHECK_EQUAL(sync(stream), 0);
        CHECK_EQUAL(pinned[1], x * (x + 1));
        CHECK_EQUAL(pageable[1], x * (x + 1));
    }
    KernelParams unknown;
    CHECK_EQUAL(cuda("cuGraphKernelNodeGetParams_v2", nodes_of(graph)[2], &unknown), 0);
    const char* name = nullptr;
    CHECK_EQUAL(cuda("cuFuncGetName", &name, unknown.function), 0);
    CHECK_EQUAL(std::string(name), "cublasLtMatmul");
    CHECK_EQUAL(unknown.grid[0], 1u);
    size_t offset = 1, bytes = 0;
    CHECK_EQUAL(cuda("cuFuncGetParamInfo", unknown.function, size_t(0), &offset, &bytes), 0);
    CHECK(offset == 0 && bytes > 0);
    CHECK_EQUAL(cuda("cuFuncGetParamInfo", unknown.function, size_t(1), &offset, &bytes), int(CUDA_ERROR_INVALID_VALUE));
    // Whoever has function and arguments may launch a library's kernel.
    set_float(c, 0, stream);
    CHECK_EQUAL(launch(unknown.function, unknown.grid[0], unknown.block[0], 0, stream, {unknown.parameters[0]}), 0);
    CHECK_EQUAL(number(c, stream), 12.0f);
    CHECK_EQUAL(cuda("cuGraphExecKernelNodeSetParams_v2", exec, nodes_of(graph)[2], &unknown), 0);
    CHECK_EQUAL(cuda("cuGraphKernelNodeGetParams_v2", nodes_of(graph)[0], &unknown), int(CUDA_ERROR_INVALID_VALUE));
}

// A node may wait for a value in memory.
static void waiting_node() {
    open_device();
    Ptr stream = new_stream(), graph = new_graph();
    auto* flag = static_cast<unsigned*>(allocate_host(4));
    *flag = 0;
    CUdeviceptr data = allocate(4), gate = reinterpret_cast<CUdeviceptr>(flag);
    set_float(data, 1, stream);
    Ptr waits = capture(stream, graph, {}, [&] { CHECK_EQUAL(cuda("cuStreamWaitValue32_v2", stream, gate, 1u, 0u), 0); });
    capture(stream, graph, {waits}, [&] { scale(data, 2, 0, stream); });
    CHECK_EQUAL(launch_graph(instantiate(graph), stream), 0);
    for (int i = 0; i < 3; i++) CHECK_EQUAL(cuda("cuStreamQuery", stream), int(CUDA_ERROR_NOT_READY));
    CHECK(!logged("kernel=scale\n"));
    __atomic_store_n(flag, 1u, __ATOMIC_RELEASE);
    CHECK_EQUAL(number(data, stream), 2.0f);
}

// What the next node comes after is told, and may be changed.
static void dependencies() {
    open_device();
    Ptr stream = new_stream(), graph = new_graph(), in = nullptr;
    int value = 0;
    uint64_t id = 0;
    size_t count = 7;
    const Ptr* tail = nullptr;
    auto info = [&] { return cuda("cuStreamGetCaptureInfo_v2", stream, &value, &id, &in, &tail, &count); };
    CHECK_EQUAL(info(), 0);
    CHECK_EQUAL(value, 0);
    CHECK_EQUAL(count, size_t(7)); // nothing else is told
    CHECK_EQUAL(begin(stream, graph), 0);
    CHECK_EQUAL(info(), 0);
    CHECK(value == 1 && id != 0 && in == graph && count == 0);
    CHECK_EQUAL(start("nothing", 1, 1, 0, stream), 0);
    Ptr first = newest_node(stream);
    auto update = [&](std::vector<Ptr> nodes, unsigned how) {
        return cuda("cuStreamUpdateCaptureDependencies_v2", stream, nodes.data(), NONE, nodes.size(), how);
    };
    CHECK_EQUAL(update({}, 1), 0);
    CHECK_EQUAL(start("nothing", 1, 1, 0, stream), 0);
    CHECK_EQUAL(update({first, first}, 0), 0);
    CHECK_EQUAL(info(), 0);
    CHECK_EQUAL(count, size_t(2));
    CHECK_EQUAL(start("nothing", 1, 1, 0, stream), 0);
    end(stream, graph);
    CHECK_EQUAL(update({}, 1), int(CUDA_ERROR_ILLEGAL_STATE));
    CHECK_EQUAL(cuda("cuGraphGetRootNodes", graph, NONE, &count), 0);
    CHECK_EQUAL(count, size_t(2));
    CHECK_EQUAL(cuda("cuGraphGetEdges_v2", graph, NONE, NONE, NONE, &count), 0);
    CHECK_EQUAL(count, size_t(2));
}

const std::vector<Test> CAPTURE_TESTS = {
    {"unsafe_calls", "", unsafe_calls},
    {"other_threads", "", other_threads},
    {"capture_mistakes", "", mistakes},
    {"fork_and_join", "", fork_and_join},
    {"failed_forks", "", failed_forks},
    {"copies_and_products", "", copies_and_products},
    {"waiting_node", "", waiting_node},
    {"dependencies", "", dependencies},
};
