// Graphs: their nodes, launches, and the orders in which nodes run.
#include "selftest_graphs.hpp"

#include <atomic>
#include <set>

Ptr new_graph() {
    Ptr graph = nullptr;
    CHECK_EQUAL(cuda("cuGraphCreate", &graph, 0u), 0);
    return graph;
}

int begin(Ptr stream, Ptr graph, std::vector<Ptr> after, int mode) {
    return cuda("cuStreamBeginCaptureToGraph", stream, graph, static_cast<const Ptr*>(after.data()), NONE, after.size(), mode);
}

void end(Ptr stream, Ptr graph) {
    Ptr ended = nullptr;
    CHECK_EQUAL(cuda("cuStreamEndCapture", stream, &ended), 0);
    CHECK_EQUAL(ended, graph);
}

Ptr newest_node(Ptr stream) {
    int status = 0;
    size_t count = 0;
    const Ptr *nodes = nullptr, *edges = nullptr;
    CHECK_EQUAL(cuda("cuStreamGetCaptureInfo_v3", stream, &status, NONE, NONE, &nodes, &edges, &count), 0);
    CHECK_EQUAL(status, 1);
    return count ? nodes[count - 1] : nullptr;
}

std::vector<Ptr> nodes_of(Ptr graph) {
    size_t count = 0;
    CHECK_EQUAL(cuda("cuGraphGetNodes", graph, NONE, &count), 0);
    std::vector<Ptr> nodes(count);
    CHECK_EQUAL(cuda("cuGraphGetNodes", graph, nodes.data(), &count), 0);
    return nodes;
}

Ptr instantiate(Ptr graph) {
    Ptr exec = nullptr;
    CHECK_EQUAL(cuda("cuGraphInstantiateWithFlags", &exec, graph, 0ull), 0);
    return exec;
}

int launch_graph(Ptr exec, Ptr stream) { return cuda("cuGraphLaunch", exec, stream); }
void seed(uint64_t n) { reinterpret_cast<void (*)(uint64_t)>(symbol("libcuda.so", "cuEmulatorSeed"))(n); }

// What the log says since it had so many bytes.
static std::string logged_since(size_t bytes) { return log_text().substr(bytes); }

// One capture: each node comes after the one before. Nothing runs until it is launched.
static void chain() {
    open_device();
    Ptr stream = new_stream(), graph = new_graph();
    CUdeviceptr data = allocate(4), result = allocate(4);
    CHECK_EQUAL(begin(stream, graph), 0);
    CHECK_EQUAL(newest_node(stream), NONE);
    set_float(data, 1, stream);
    scale(data, 2, 1, stream);
    scale(data, 10, 0, stream);
    copy_float(result, data, stream);
    Ptr last = newest_node(stream);
    end(stream, graph);
    CHECK_EQUAL(cuda("cuStreamSynchronize", stream), 0);
    CHECK(!logged("run "));
    std::vector<Ptr> nodes = nodes_of(graph), from(5), to(5);
    CHECK_EQUAL(nodes.size(), size_t(4));
    CHECK_EQUAL(nodes[3], last);
    for (auto [node, expected] : std::vector<std::pair<int, int>>{{0, 2}, {1, 0}, {3, 1}}) {
        int type = -1;
        CHECK_EQUAL(cuda("cuGraphNodeGetType", nodes[size_t(node)], &type), 0);
        CHECK_EQUAL(type, expected);
    }
    size_t count = 5;
    CHECK_EQUAL(cuda("cuGraphGetEdges_v2", graph, from.data(), to.data(), NONE, &count), 0);
    CHECK_EQUAL(count, size_t(3));
    CHECK(from[2] == nodes[2] && to[2] == nodes[3] && from[3] == nullptr);
    count = 0;
    CHECK_EQUAL(cuda("cuGraphGetEdges", graph, NONE, NONE, &count), 0);
    CHECK_EQUAL(count, size_t(3));
    Ptr exec = instantiate(graph);
    CHECK_EQUAL(cuda("cuGraphUpload", exec, stream), 0);
    for (uint64_t n = 0; n < 8; n++) {
        seed(n);
        CHECK_EQUAL(launch_graph(exec, stream), 0);
        CHECK_EQUAL(launch_graph(exec, stream), 0);
        CHECK_EQUAL(number(result, stream), 30.0f);
    }
    CHECK(logged("run stream=1 graph=1 node=2 kernel=scale\n"));
}

// A; B and C after A; D after both. The four of them are captured one by one, on three streams.
struct Diamond {
    CUdeviceptr data[4];
    Ptr graph = new_graph(), nodes[4], exec;
    Diamond(Ptr one, Ptr two, Ptr three) {
        for (auto& each : data) each = allocate(4);
        nodes[0] = capture(one, graph, {}, [&] { set_float(data[0], 1, one); });
        nodes[1] = capture(two, graph, {nodes[0]}, [&] { copy_float(data[1], data[0], two); });
        nodes[2] = capture(three, graph, {nodes[0]}, [&] { copy_float(data[2], data[0], three); });
        nodes[3] = capture(one, graph, {nodes[1], nodes[2]}, [&] { CHECK_EQUAL(start("add", 1, 32, 0, one, data[3], data[1], data[2], 1u), 0); });
        exec = instantiate(graph);
    }
};

static void diamond() {
    open_device();
    Ptr one = new_stream(), two = new_stream(), three = new_stream();
    std::set<bool> orders, between;
    CUdeviceptr elsewhere = allocate(4);
    Diamond diamond(one, two, three);
    for (uint64_t n = 0; n < 24; n++) {
        seed(n);
        size_t before = log_text().size();
        CHECK_EQUAL(launch_graph(diamond.exec, two), 0);
        for (int i = 0; i < 3; i++) scale(elsewhere, 1, 1, three);
        CHECK_EQUAL(number(diamond.data[3], two), 2.0f);
        CHECK_EQUAL(cuda("cuCtxSynchronize"), 0);
        std::string log = logged_since(before);
        size_t a = log.find("node=0"), b = log.find("node=1"), c = log.find("node=2"), d = log.find("node=3"), other = log.find("run stream=3 kernel=scale");
        CHECK(a < b && a < c && b < d && c < d && d != std::string::npos);
        orders.insert(b < c);
        between.insert(a < other && other < d);
        set_float(diamond.data[1], 9, two);
        set_float(diamond.data[2], 9, two);
    }
    CHECK_EQUAL(orders.size(), size_t(2));
    CHECK_EQUAL(between.size(), size_t(2));
}

// Late: without an edge, what was captured last runs first. Other seeds have the other order, too.
static void missing_edge() {
    open_device();
    std::set<float> results;
    Ptr stream = new_stream(), graph = new_graph();
    CUdeviceptr data = allocate(4);
    Ptr root = capture(stream, graph, {}, [&] { set_float(data, 1, stream); });
    capture(stream, graph, {root}, [&] { scale(data, 2, 0, stream); });
    capture(stream, graph, {root}, [&] { scale(data, 1, 1, stream); });
    Ptr exec = instantiate(graph);
    for (uint64_t n = 0; n < 16; n++) {
        seed(n);
        CHECK_EQUAL(launch_graph(exec, stream), 0);
        float result = number(data, stream);
        if (n == 0) CHECK_EQUAL(result, 4.0f);
        results.insert(result);
    }
    CHECK(results == (std::set<float>{3.0f, 4.0f}));
}

static KernelParams params(Ptr function, void** arguments) {
    return {static_cast<CUfunction>(function), {1, 1, 1}, {1, 1, 1}, 0, arguments, nullptr, nullptr, nullptr};
}
static int set_params(Ptr exec, Ptr node, KernelParams params) {
    return cuda("cuGraphExecKernelNodeSetParams_v2", exec, node, static_cast<const KernelParams*>(&params));
}

// Other arguments are for later launches, not for those that are enqueued; and not for the graph, nor the graph's for them.
static void new_parameters() {
    open_device();
    Ptr stream = new_stream(), graph = new_graph();
    CUdeviceptr data = allocate(4), other = allocate(4);
    set_float(data, 1, stream);
    set_float(other, 100, stream);
    Ptr node = capture(stream, graph, {}, [&] { scale(data, 3, 0, stream); });
    Ptr exec = instantiate(graph);
    KernelParams seen;
    CHECK_EQUAL(cuda("cuGraphKernelNodeGetParams_v2", node, &seen), 0);
    CHECK_EQUAL(*static_cast<CUdeviceptr*>(seen.parameters[0]), data);
    CHECK_EQUAL(*static_cast<float*>(seen.parameters[1]), 3.0f);
    CHECK_EQUAL(seen.grid[0], 1u);
    CHECK_EQUAL(Ptr(seen.function), kernel("scale"));
    CHECK_EQUAL(launch_graph(exec, stream), 0);
    float by = 5, plus = 1;
    unsigned n = 1;
    void* arguments[] = {&other, &by, &plus, &n};
    CHECK_EQUAL(set_params(exec, node, params(kernel("scale"), arguments)), 0);
    by = 1000; // they were copied
    CHECK_EQUAL(launch_graph(exec, stream), 0);
    CHECK_EQUAL(number(data, stream), 3.0f);
    CHECK_EQUAL(number(other, stream), 501.0f);
    // The graph's own.
    void* first[] = {&data, &by, &plus, &n};
    KernelParams changed = params(kernel("scale"), first);
    CHECK_EQUAL(cuda("cuGraphKernelNodeSetParams_v2", node, static_cast<const KernelParams*>(&changed)), 0);
    CHECK_EQUAL(launch_graph(exec, stream), 0);
    CHECK_EQUAL(number(data, stream), 3.0f);
    CHECK_EQUAL(launch_graph(instantiate(graph), stream), 0);
    CHECK_EQUAL(number(data, stream), 3001.0f);
    // Another function of the context, but for nodes of this graph that it was made of, only.
    CHECK_EQUAL(set_params(exec, node, params(kernel("nothing"), nullptr)), 0);
    Ptr stranger = new_graph(), foreign = capture(stream, stranger, {}, [&] { scale(data, 1, 0, stream); });
    Ptr later = capture(stream, graph, {node}, [&] { scale(data, 1, 0, stream); });
    KernelParams shapeless = params(kernel("nothing"), nullptr);
    shapeless.grid[0] = 0;
    CHECK_EQUAL(set_params(exec, foreign, changed), int(CUDA_ERROR_INVALID_VALUE));
    CHECK_EQUAL(set_params(exec, later, changed), int(CUDA_ERROR_INVALID_VALUE));
    CHECK_EQUAL(set_params(exec, node, shapeless), int(CUDA_ERROR_INVALID_VALUE));
    CHECK_EQUAL(set_params(exec, node, params(kernel("scale"), nullptr)), int(CUDA_ERROR_INVALID_VALUE));
    CHECK_EQUAL(set_params(exec, node, params(nullptr, nullptr)), int(CUDA_ERROR_INVALID_HANDLE));
}

// A launch is after what its stream waits for, and events of its stream are after all of its nodes.
static void launches_and_events() {
    open_device();
    Ptr before = new_stream(), launching = new_stream(), after = new_stream(), event = new_event(), done = new_event(), graph = new_graph();
    CUdeviceptr data = allocate(4), left = allocate(4), right = allocate(4), result = allocate(4);
    for (CUdeviceptr side : {left, right}) capture(before, graph, {}, [&] { copy_float(side, data, before); });
    Ptr exec = instantiate(graph);
    for (uint64_t n = 0; n < 12; n++) {
        seed(n);
        set_float(data, float(n), before);
        CHECK_EQUAL(cuda("cuEventRecord", event, before), 0);
        CHECK_EQUAL(cuda("cuStreamWaitEvent", launching, event, 0u), 0);
        CHECK_EQUAL(launch_graph(exec, launching), 0);
        CHECK_EQUAL(cuda("cuEventRecord", done, launching), 0);
        CHECK_EQUAL(cuda("cuEventQuery", done), int(CUDA_ERROR_NOT_READY));
        CHECK_EQUAL(cuda("cuStreamWaitEvent", after, done, 0u), 0);
        CHECK_EQUAL(start("add", 1, 1, 0, after, result, left, right, 1u), 0);
        CHECK_EQUAL(number(result, after), 2.0f * float(n));
        CHECK_EQUAL(cuda("cuEventQuery", done), 0);
    }
}

// Two launches of one graph do not run into each other, whatever their streams are.
static void one_after_the_other() {
    open_device();
    Ptr one = new_stream(), two = new_stream(), graph = new_graph();
    CUdeviceptr data = allocate(4), scratch = allocate(4);
    CHECK_EQUAL(begin(one, graph), 0);
    copy_float(scratch, data, one);
    scale(scratch, 2, 1, one);
    copy_float(data, scratch, one);
    end(one, graph);
    Ptr exec = instantiate(graph);
    for (uint64_t n = 0; n < 12; n++) {
        seed(n);
        set_float(data, 1, one);
        CHECK_EQUAL(cuda("cuStreamSynchronize", one), 0);
        CHECK_EQUAL(launch_graph(exec, one), 0);
        CHECK_EQUAL(launch_graph(exec, two), 0);
        CHECK_EQUAL(launch_graph(exec, one), 0);
        CHECK_EQUAL(cuda("cuStreamSynchronize", two), 0);
        CHECK_EQUAL(cuda("cuStreamSynchronize", one), 0);
        CHECK_EQUAL(number(data, one), 15.0f);
    }
}

static void destroyed_under_way() {
    open_device();
    Ptr stream = new_stream();
    Diamond diamond(stream, stream, stream);
    CHECK_EQUAL(launch_graph(diamond.exec, stream), 0);
    CHECK_EQUAL(cuda("cuStreamQuery", stream), int(CUDA_ERROR_NOT_READY)); // the first node
    CHECK_EQUAL(cuda("cuGraphExecDestroy", diamond.exec), 0);
    CHECK_EQUAL(cuda("cuGraphDestroy", diamond.graph), 0);
    CHECK_EQUAL(number(diamond.data[3], stream), 2.0f);
    int type = 0;
    size_t count = 0;
    CHECK_EQUAL(cuda("cuGraphExecDestroy", diamond.exec), int(CUDA_ERROR_INVALID_VALUE));
    CHECK_EQUAL(launch_graph(diamond.exec, stream), int(CUDA_ERROR_INVALID_VALUE));
    CHECK_EQUAL(cuda("cuGraphDestroy", diamond.graph), int(CUDA_ERROR_INVALID_VALUE));
    CHECK_EQUAL(cuda("cuGraphGetNodes", diamond.graph, NONE, &count), int(CUDA_ERROR_INVALID_VALUE));
    CHECK_EQUAL(cuda("cuGraphNodeGetType", diamond.nodes[0], &type), int(CUDA_ERROR_INVALID_VALUE));
    new_graph();
    CHECK_EQUAL(cuda("cuDevicePrimaryCtxRelease_v2", 0), 0);
    CHECK(logged("live device=0 graphs=1 execs=0\n"));
}

// Without a capture; a circle shows when the graph is instantiated.
static void made_by_hand() {
    open_device();
    Ptr stream = new_stream(), graph = new_graph(), first = nullptr, second = nullptr, empty = nullptr, exec = nullptr;
    CUdeviceptr data = allocate(4);
    set_float(data, 1, stream);
    float two = 2, one = 1, zero = 0;
    unsigned n = 1;
    void *doubles[] = {&data, &two, &zero, &n}, *adds[] = {&data, &one, &one, &n};
    KernelParams doubling = params(kernel("scale"), doubles), adding = params(kernel("scale"), adds);
    auto add = [&](Ptr* out, const KernelParams& of) { return cuda("cuGraphAddKernelNode_v2", out, graph, NONE, size_t(0), &of); };
    CHECK_EQUAL(add(&first, doubling), 0);
    CHECK_EQUAL(add(&second, adding), 0);
    CHECK_EQUAL(cuda("cuGraphAddEmptyNode", &empty, graph, static_cast<const Ptr*>(&first), size_t(1)), 0);
    auto depend = [&](Ptr from, Ptr to) {
        return cuda("cuGraphAddDependencies_v2", graph, static_cast<const Ptr*>(&from), static_cast<const Ptr*>(&to), NONE, size_t(1));
    };
    CHECK_EQUAL(depend(empty, second), 0);
    size_t roots = 0;
    CHECK_EQUAL(cuda("cuGraphGetRootNodes", graph, NONE, &roots), 0);
    CHECK_EQUAL(roots, size_t(1));
    struct {
        uint64_t flags = 0;
        Ptr upload = nullptr, error = nullptr;
        int result = -1;
    } how;
    CHECK_EQUAL(cuda("cuGraphInstantiateWithParams", &exec, graph, &how), 0);
    CHECK_EQUAL(how.result, 0);
    CHECK_EQUAL(launch_graph(exec, stream), 0);
    CHECK_EQUAL(number(data, stream), 3.0f);
    CHECK_EQUAL(depend(first, first), int(CUDA_ERROR_INVALID_VALUE));
    CHECK_EQUAL(depend(second, first), 0);
    CHECK_EQUAL(cuda("cuGraphInstantiateWithParams", &exec, graph, &how), int(CUDA_ERROR_INVALID_VALUE));
    CHECK_EQUAL(how.result, 2);
    // No nodes at all.
    CHECK_EQUAL(launch_graph(instantiate(new_graph()), stream), 0);
    CHECK_EQUAL(cuda("cuStreamSynchronize", stream), 0);
}

// Nodes wait for a host function that one of them is, and others run meanwhile.
static void host_nodes() {
    open_device();
    Ptr stream = new_stream(), graph = new_graph();
    CUdeviceptr data = allocate(4);
    static std::atomic<int> calls{0};
    static std::atomic<bool> open{false};
    auto wait = [](void*) {
        while (!open) {}
        calls++;
    };
    Ptr host = capture(stream, graph, {}, [&] { CHECK_EQUAL(cuda("cuLaunchHostFunc", stream, static_cast<void (*)(void*)>(wait), NONE), 0); });
    capture(stream, graph, {host}, [&] { scale(data, 2, 0, stream); });
    capture(stream, graph, {}, [&] { set_float(data, 4, stream); });
    int type = 0;
    CHECK_EQUAL(cuda("cuGraphNodeGetType", host, &type), 0);
    CHECK_EQUAL(type, 3);
    CHECK_EQUAL(launch_graph(instantiate(graph), stream), 0);
    for (int i = 0; i < 4; i++) CHECK_EQUAL(cuda("cuStreamQuery", stream), int(CUDA_ERROR_NOT_READY));
    CHECK(logged("node=2 cuMemsetD32Async"));
    CHECK(!logged("node=1 kernel=scale"));
    open = true;
    CHECK_EQUAL(number(data, stream), 8.0f);
    CHECK_EQUAL(calls.load(), 1);
}

// A node that fails ends the launch, after a host function that runs.
static void node_that_fails() {
    open_device();
    Ptr stream = new_stream(), graph = new_graph();
    static std::atomic<int> calls{0};
    static std::atomic<bool> open{false};
    auto wait = [](void*) {
        while (!open) {}
        calls++;
    };
    auto count = [](void*) { calls++; };
    Ptr failing = capture(stream, graph, {}, [&] { CHECK_EQUAL(start("asserts", 1, 1, 0, stream, 4), 0); });
    capture(stream, graph, {failing}, [&] { CHECK_EQUAL(cuda("cuLaunchHostFunc", stream, static_cast<void (*)(void*)>(count), NONE), 0); });
    // Late: the newest first.
    Ptr host = capture(stream, graph, {}, [&] { CHECK_EQUAL(cuda("cuLaunchHostFunc", stream, static_cast<void (*)(void*)>(wait), NONE), 0); });
    capture(stream, graph, {host}, [&] { CHECK_EQUAL(cuda("cuLaunchHostFunc", stream, static_cast<void (*)(void*)>(count), NONE), 0); });
    CHECK_EQUAL(launch_graph(instantiate(graph), stream), 0);
    CHECK_EQUAL(cuda("cuStreamQuery", stream), int(CUDA_ERROR_NOT_READY));
    CHECK_EQUAL(cuda("cuStreamQuery", stream), int(CUDA_ERROR_ASSERT));
    CHECK(logged("report kernel asserts stopped"));
    open = true;
    while (calls < 1) {}
    CHECK_EQUAL(cuda("cuStreamSynchronize", stream), int(CUDA_ERROR_ASSERT));
    CHECK_EQUAL(cuda("cuGraphDestroy", graph), int(CUDA_ERROR_ASSERT));
    // Nothing is left of the launch.
    reinterpret_cast<void (*)()>(symbol("libcuda.so", "cuEmulatorReset"))();
    CHECK_EQUAL(cuda("cuStreamSynchronize", stream), 0);
    CHECK_EQUAL(calls.load(), 1);
}

static void dropped_edge() {
    open_device();
    Ptr stream = new_stream(), graph = new_graph();
    CUdeviceptr data = allocate(4);
    CHECK_EQUAL(begin(stream, graph), 0);
    set_float(data, 1, stream);
    scale(data, 2, 0, stream);
    scale(data, 1, 1, stream);
    end(stream, graph);
    auto result = [&] {
        CHECK_EQUAL(launch_graph(instantiate(graph), stream), 0);
        return number(data, stream);
    };
    CHECK(result() != 3.0f); // the second edge
    CHECK_EQUAL(result(), 3.0f);
    reinterpret_cast<void (*)(int64_t)>(symbol("libcuda.so", "cuEmulatorDropEdge"))(5);
    CHECK(result() != 3.0f);
}

static void failing_calls() {
    open_device();
    Ptr stream = new_stream(), graph = nullptr, exec = nullptr;
    CHECK_EQUAL(cuda("cuGraphCreate", &graph, 0u), int(CUDA_ERROR_OUT_OF_MEMORY));
    graph = new_graph();
    CHECK_EQUAL(begin(stream, graph), int(CUDA_ERROR_UNKNOWN));
    CHECK_EQUAL(begin(stream, graph), 0);
    CHECK_EQUAL(start("nothing", 1, 1, 0, stream), 0);
    end(stream, graph);
    CHECK_EQUAL(cuda("cuGraphInstantiateWithFlags", &exec, graph, 0ull), int(CUDA_ERROR_OUT_OF_MEMORY));
    exec = instantiate(graph);
    CHECK_EQUAL(launch_graph(exec, stream), int(CUDA_ERROR_ECC_UNCORRECTABLE));
    CHECK_EQUAL(launch_graph(exec, stream), 0);
    CHECK_EQUAL(reinterpret_cast<uint64_t (*)(const char*)>(symbol("libcuda.so", "cuEmulatorCallCount"))("cuGraphLaunch"), uint64_t(2));
}

// One graph may have nodes of several devices.
static void graph_of_two_devices() {
    Ptr second = open_device(1), two = new_stream();
    CUdeviceptr there = allocate(4);
    Ptr first = open_device(0), one = new_stream(), graph = new_graph();
    CUdeviceptr here = allocate(4);
    Ptr root = capture(one, graph, {}, [&] {
        set_float(here, 1, one);
        CHECK_EQUAL(cuda("cuMemcpyPeerAsync", there, second, here, first, size_t(4), one), 0);
    });
    CHECK_EQUAL(cuda("cuCtxSetCurrent", second), 0);
    Ptr scaled = capture(two, graph, {root}, [&] { scale(there, 2, 5, two); });
    CHECK_EQUAL(cuda("cuCtxSetCurrent", first), 0);
    capture(one, graph, {scaled}, [&] { CHECK_EQUAL(cuda("cuMemcpyPeerAsync", here, first, there, second, size_t(4), one), 0); });
    Ptr exec = instantiate(graph);
    CHECK_EQUAL(launch_graph(exec, one), 0);
    CHECK_EQUAL(number(here, one), 7.0f);
    // A function stays in its context.
    CHECK_EQUAL(set_params(exec, scaled, params(kernel("nothing"), nullptr)), int(CUDA_ERROR_INVALID_VALUE));
}

// A launch is ordered after an upload on its own stream, or on one that it waits for, and after no other.
static void uploads() {
    open_device();
    Ptr one = new_stream(), two = new_stream(), graph = new_graph(), event = nullptr;
    CUdeviceptr data = allocate(4);
    capture(one, graph, {}, [&] { set_float(data, 1, one); });
    auto uploaded = [&] {
        Ptr exec = instantiate(graph);
        CHECK_EQUAL(cuda("cuGraphUpload", exec, one), 0);
        return exec;
    };
    CHECK_EQUAL(launch_graph(uploaded(), one), 0);
    CHECK_EQUAL(cuda("cuStreamSynchronize", one), 0);
    Ptr waited = uploaded();
    CHECK_EQUAL(cuda("cuEventCreate", &event, 2u), 0);
    CHECK_EQUAL(cuda("cuEventRecord", event, one), 0);
    CHECK_EQUAL(cuda("cuStreamWaitEvent", two, event, 0u), 0);
    CHECK_EQUAL(launch_graph(waited, two), 0);
    CHECK_EQUAL(cuda("cuStreamSynchronize", two), 0);
    Ptr synchronised = uploaded();
    CHECK_EQUAL(cuda("cuStreamSynchronize", one), 0);
    CHECK_EQUAL(launch_graph(synchronised, two), 0);
    CHECK_EQUAL(number(data, two), 1.0f);
    Ptr pending = uploaded();
    CHECK_EQUAL(launch_graph(pending, two), 0);
    CHECK_EQUAL(cuda("cuStreamSynchronize", two), int(CUDA_ERROR_LAUNCH_FAILED));
    CHECK(logged("runs while its upload is pending on another stream"));
}

const std::vector<Test> GRAPH_TESTS = {
    {"uploads", "", uploads},
    {"chain", "", chain},
    {"diamond", "", diamond},
    {"missing_edge", "", missing_edge},
    {"new_parameters", "", new_parameters},
    {"launches_and_events", "", launches_and_events},
    {"one_after_the_other", "", one_after_the_other},
    {"destroyed_under_way", "", destroyed_under_way},
    {"made_by_hand", "", made_by_hand},
    {"host_nodes", "", host_nodes},
    {"node_that_fails", "", node_that_fails},
    {"dropped_edge", "CUDA_EMULATOR_DROP_EDGE=2", dropped_edge},
    {"failing_graph_calls", "CUDA_EMULATOR_FAIL=cuGraphCreate:1,cuStreamBeginCaptureToGraph:1,cuGraphInstantiateWithFlags:1,cuGraphLaunch:1:214", failing_calls},
    {"graph_of_two_devices", "CUDA_EMULATOR_DEVICES=2", graph_of_two_devices},
};
