// Graphs: their nodes, what is instantiated of them, and launches.
#include "graphs.hpp"

#include <algorithm>
#include <cstring>

void add_once(std::vector<Node*>& nodes, Node* node) {
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
}

Node* Graph::add(Work work, const std::vector<Node*>& after) {
    auto node = std::make_unique<Node>();
    node->handle = state().handle();
    node->graph = this;
    node->work = std::move(work);
    node->after = after;
    state().nodes[node->handle] = node.get();
    nodes.push_back(std::move(node));
    return nodes.back().get();
}

Graph::~Graph() {
    for (auto& node : nodes) state().nodes.erase(node->handle);
}

GraphPtr make_graph(Context* context) {
    auto graph = std::make_shared<Graph>();
    graph->handle = state().handle();
    graph->context = context;
    state().graphs[graph->handle] = graph;
    return graph;
}

GraphPtr find_graph(CUgraph handle) {
    auto found = state().graphs.find(handle);
    return found == state().graphs.end() ? nullptr : found->second;
}

void forget_graph(const GraphPtr& graph) { state().graphs.erase(graph->handle); }

static Node* find_node(CUgraphNode handle) {
    auto found = state().nodes.find(handle);
    return found == state().nodes.end() ? nullptr : found->second;
}

static std::shared_ptr<GraphExec> find_exec(CUgraphExec handle) {
    auto found = state().execs.find(handle);
    return found == state().execs.end() ? nullptr : found->second;
}

bool find_nodes(const CUgraphNode* handles, size_t count, const Graph& graph, std::vector<Node*>& out) {
    if (count && !handles) return false;
    for (size_t i = 0; i < count; i++) {
        Node* node = find_node(handles[i]);
        if (!node || node->graph != &graph) return false;
        add_once(out, node);
    }
    return true;
}

GraphRun::GraphRun(const std::vector<Step>& all) : steps(all), left(all.size()) {
    for (size_t i = 0; i < steps.size(); i++)
        if (steps[i].blockers == 0) ready.insert(i);
}

void GraphRun::start(size_t step) {
    ready.erase(step);
    running++;
}

bool GraphRun::finish(size_t step) {
    if (ready.erase(step) == 0) running--;
    for (size_t next : steps[step].next)
        if (--steps[next].blockers == 0) ready.insert(next);
    return --left == 0;
}

bool GraphRun::abandon() {
    ready.clear();
    for (Step& step : steps) step.next.clear();
    left = running;
    return running == 0;
}

EXPORT CUresult cuGraphCreate(CUgraph* out, unsigned flags) {
    return call("cuGraphCreate", Needs::Context, [&](Call& call) {
        if (!out || flags != 0) return CUDA_ERROR_INVALID_VALUE;
        *out = static_cast<CUgraph>(make_graph(call.context)->handle);
        return CUDA_SUCCESS;
    });
}

// What was instantiated of it stays.
EXPORT CUresult cuGraphDestroy(CUgraph handle) {
    return call("cuGraphDestroy", Needs::ContextEvenBroken, [&](Call&) {
        GraphPtr graph = find_graph(handle);
        if (!graph) return CUDA_ERROR_INVALID_VALUE;
        if (graph->capturing) return CUDA_ERROR_ILLEGAL_STATE;
        forget_graph(graph);
        return CUDA_SUCCESS;
    });
}

// As the driver gives lists: their length if there is no room, else as many as there is room for, and nulls.
static void give(const std::vector<Node*>& nodes, CUgraphNode* out, size_t room) {
    for (size_t i = 0; out && i < room; i++) out[i] = i < nodes.size() ? static_cast<CUgraphNode>(nodes[i]->handle) : nullptr;
}

static void give_count(size_t length, bool listed, size_t* count) { *count = listed ? std::min(length, *count) : length; }

static CUresult list_nodes(CUgraph handle, CUgraphNode* out, size_t* count, bool roots) {
    GraphPtr graph = find_graph(handle);
    if (!graph || !count) return CUDA_ERROR_INVALID_VALUE;
    std::vector<Node*> nodes;
    for (auto& node : graph->nodes)
        if (!roots || node->after.empty()) nodes.push_back(node.get());
    give(nodes, out, *count);
    give_count(nodes.size(), out != nullptr, count);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    return call("cuGraphGetNodes", Needs::Context, [&](Call&) { return list_nodes(graph, nodes, count, false); });
}

EXPORT CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    return call("cuGraphGetRootNodes", Needs::Context, [&](Call&) { return list_nodes(graph, nodes, count, true); });
}

static CUresult list_edges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, EdgeData* data, size_t* count) {
    GraphPtr graph = find_graph(handle);
    // A list without room is refused, as on an H100.
    if (!graph || !count || !from != !to || (data && !from) || (from && !*count)) return CUDA_ERROR_INVALID_VALUE;
    std::vector<Node*> begins, ends;
    for (auto& node : graph->nodes)
        for (Node* before : node->after) {
            begins.push_back(before);
            ends.push_back(node.get());
        }
    give(begins, from, *count);
    give(ends, to, *count);
    if (data) std::fill(data, data + *count, EdgeData{});
    give_count(begins.size(), from != nullptr, count);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
    return call("cuGraphGetEdges", Needs::Context, [&](Call&) { return list_edges(graph, from, to, nullptr, count); });
}

EXPORT CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, EdgeData* data, size_t* count) {
    return call("cuGraphGetEdges_v2", Needs::Context, [&](Call&) { return list_edges(graph, from, to, data, count); });
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode handle, int* type) {
    return call("cuGraphNodeGetType", Needs::Context, [&](Call&) {
        Node* node = find_node(handle);
        if (!node || !type) return CUDA_ERROR_INVALID_VALUE;
        *type = int(node->work.type);
        return CUDA_SUCCESS;
    });
}

// A circle shows when the graph is instantiated.
static CUresult add_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
    GraphPtr graph = find_graph(handle);
    if (!graph || (count && (!from || !to))) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        Node *begin = find_node(from[i]), *end = find_node(to[i]);
        if (!begin || !end || begin == end || begin->graph != graph.get() || end->graph != graph.get()) return CUDA_ERROR_INVALID_VALUE;
        add_once(end->after, begin);
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
    return call("cuGraphAddDependencies", Needs::Context, [&](Call&) { return add_edges(graph, from, to, count); });
}

EXPORT CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, const EdgeData*, size_t count) {
    return call("cuGraphAddDependencies_v2", Needs::Context, [&](Call&) { return add_edges(graph, from, to, count); });
}

static CUresult add_node(CUgraphNode* out, CUgraph handle, const CUgraphNode* after, size_t count, Work work) {
    GraphPtr graph = find_graph(handle);
    std::vector<Node*> nodes;
    if (!out || !graph || !find_nodes(after, count, *graph, nodes)) return CUDA_ERROR_INVALID_VALUE;
    *out = static_cast<CUgraphNode>(graph->add(std::move(work), nodes)->handle);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count) {
    return call("cuGraphAddEmptyNode", Needs::Context, [&](Call&) {
        Work nothing;
        nothing.type = WorkType::Empty;
        nothing.name = "nothing";
        return add_node(out, graph, after, count, std::move(nothing));
    });
}

// The nodes of the child as nodes of the graph, and one behind all of them, which is the child's.
EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph handle, const CUgraphNode* after, size_t count, CUgraph child_handle) {
    return call("cuGraphAddChildGraphNode", Needs::Context, [&](Call&) {
        GraphPtr graph = find_graph(handle), child = find_graph(child_handle);
        std::vector<Node*> before, ends;
        if (!out || !graph || !child || child == graph || child->capturing || !find_nodes(after, count, *graph, before)) return CUDA_ERROR_INVALID_VALUE;
        std::unordered_map<Node*, Node*> copies;
        for (auto& node : child->nodes) {
            std::vector<Node*> needs;
            for (Node* need : node->after) needs.push_back(copies.at(need));
            copies[node.get()] = graph->add(node->work, needs.empty() ? before : needs);
            ends.push_back(copies[node.get()]);
        }
        Work nothing;
        nothing.type = WorkType::Empty;
        nothing.name = "a graph's end";
        *out = static_cast<CUgraphNode>(graph->add(nothing, ends.empty() ? before : ends)->handle);
        return CUDA_SUCCESS;
    });
}

// The parameters' own context, or the one that is current.
static CUresult work_of(Call& call, const KernelParams* params, Work& out) {
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    call.note("kernel=%s", kernel_name(params->function).c_str());
    Context* context = params->context ? known_context(params->context) : call.context;
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    std::shared_ptr<Launch> launch;
    CUresult prepared = prepare_launch(*params, context, launch);
    if (prepared == CUDA_SUCCESS) out = kernel_work(std::move(launch));
    return prepared;
}

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count, const KernelParams* params) {
    return call("cuGraphAddKernelNode_v2", Needs::Context, [&](Call& call) {
        Work work;
        CUresult made = work_of(call, params, work);
        return made == CUDA_SUCCESS ? add_node(out, graph, after, count, std::move(work)) : made;
    });
}

// Another function may be of another module; it stays in its context.
static CUresult replace(Call& call, Work& work, const KernelParams* params) {
    Work next;
    CUresult made = work_of(call, params, next);
    if (made != CUDA_SUCCESS) return made;
    if (!work.launch || work.launch->context != next.launch->context) return CUDA_ERROR_INVALID_VALUE;
    work = std::move(next);
    return CUDA_SUCCESS;
}

// The node keeps the arguments that it shows, until it has others.
EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle, KernelParams* out) {
    return call("cuGraphKernelNodeGetParams_v2", Needs::Context, [&](Call&) {
        Node* node = find_node(handle);
        if (!node || !out || node->work.type != WorkType::Kernel) return CUDA_ERROR_INVALID_VALUE;
        if (!node->work.launch) return CUDA_ERROR_NOT_SUPPORTED; // a rank's
        const Launch& launch = *node->work.launch;
        node->arguments.clear();
        auto* bytes = const_cast<unsigned char*>(launch.arguments.data());
        for (unsigned i = 0; i < launch.kernel->parameters; i++) {
            node->arguments.push_back(bytes);
            bytes += (launch.kernel->sizes[i] + 15) / 16 * 16;
        }
        auto [gx, gy, gz] = launch.grid;
        auto [bx, by, bz] = launch.block;
        *out = {launch.function, {gx, gy, gz}, {bx, by, bz}, launch.dynamic_shared, node->arguments.data(), nullptr, nullptr, reinterpret_cast<CUcontext>(launch.context)};
        if (is_modern(launch.function)) {
            auto number = [](uintptr_t of) { return reinterpret_cast<void*>(of); };
            node->bytes = launch.kernel->sizes[0];
            node->arguments = {number(CU_LAUNCH_PARAM_BUFFER_SIZE), &node->bytes, number(CU_LAUNCH_PARAM_BUFFER_POINTER), node->arguments[0], number(CU_LAUNCH_PARAM_END)};
            out->parameters = nullptr;
            out->extra = node->arguments.data();
        }
        return CUDA_SUCCESS;
    });
}

// Of what may be special about a launch there are clusters of blocks.
EXPORT CUresult cuGraphKernelNodeGetAttribute(CUgraphNode handle, int attribute, void* value) {
    return call("cuGraphKernelNodeGetAttribute", Needs::Context, [&](Call&) {
        Node* node = find_node(handle);
        if (!node || !value || node->work.type != WorkType::Kernel || attribute < 1 || attribute > 15) return CUDA_ERROR_INVALID_VALUE;
        memset(value, 0, sizeof LaunchAttribute::value);
        if (attribute == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION && node->work.launch && is_modern(node->work.launch->function))
            for (int i = 0; i < 3; i++) static_cast<unsigned*>(value)[i] = i == 0 ? 2 : 1;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode handle, const KernelParams* params) {
    return call("cuGraphKernelNodeSetParams_v2", Needs::Context, [&](Call& call) {
        Node* node = find_node(handle);
        return node ? replace(call, node->work, params) : CUDA_ERROR_INVALID_VALUE;
    });
}

// Launches that were enqueued before have steps of their own.
EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec handle, CUgraphNode node, const KernelParams* params) {
    return call("cuGraphExecKernelNodeSetParams_v2", Needs::Context, [&](Call& call) {
        auto exec = find_exec(handle);
        if (!exec || !find_node(node)) return CUDA_ERROR_INVALID_VALUE;
        call.note("graph=%llu", (unsigned long long)exec->id);
        for (GraphRun::Step& step : exec->steps)
            if (step.node == node) return replace(call, step.work, params);
        return CUDA_ERROR_INVALID_VALUE;
    });
}

static std::vector<GraphRun::Step> steps_of(const Graph& graph) {
    std::map<const Node*, size_t> places;
    std::vector<GraphRun::Step> steps;
    for (auto& node : graph.nodes) {
        places[node.get()] = steps.size();
        steps.push_back({node->handle, node->work, {}, 0});
    }
    for (auto& node : graph.nodes)
        for (const Node* before : node->after) {
            if (drops_next_edge()) continue;
            steps[places[before]].next.push_back(places[node.get()]);
            steps[places[node.get()]].blockers++;
        }
    return steps;
}

static bool ends(const std::vector<GraphRun::Step>& steps) {
    GraphRun run(steps);
    while (!run.ready.empty()) run.finish(*run.ready.begin());
    return run.left == 0;
}

static CUresult instantiate(Call& call, CUgraphExec* out, CUgraph handle, unsigned long long flags) {
    GraphPtr graph = find_graph(handle);
    if (!out || !graph || (flags & ~15ull)) return CUDA_ERROR_INVALID_VALUE;
    if (flags & 4) return CUDA_ERROR_NOT_SUPPORTED; // launches by the device
    CUresult allowed = unsafe_call();
    if (allowed != CUDA_SUCCESS) return allowed;
    auto exec = std::make_shared<GraphExec>();
    exec->steps = steps_of(*graph);
    if (!ends(exec->steps)) return CUDA_ERROR_INVALID_VALUE;
    exec->id = state().next_graph++;
    exec->context = call.context;
    call.note("graph=%llu nodes=%zu", (unsigned long long)exec->id, exec->steps.size());
    void* key = state().handle();
    state().execs[key] = exec;
    *out = static_cast<CUgraphExec>(key);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
    return call("cuGraphInstantiateWithFlags", Needs::Context, [&](Call& call) { return instantiate(call, out, graph, flags); });
}

// CUDA_GRAPH_INSTANTIATE_PARAMS
struct InstantiateParams {
    uint64_t flags;
    CUstream upload;
    CUgraphNode error_node;
    int result; // 0: success, 1: another error, 2: invalid structure
};

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph, InstantiateParams* params) {
    return call("cuGraphInstantiateWithParams", Needs::Context, [&](Call& call) {
        if (!params) return CUDA_ERROR_INVALID_VALUE;
        CUresult result = instantiate(call, out, graph, params->flags);
        params->error_node = nullptr;
        params->result = result == CUDA_SUCCESS ? 0 : result == CUDA_ERROR_INVALID_VALUE ? 2 : 1;
        return result;
    });
}

// Launches that were enqueued still run.
EXPORT CUresult cuGraphExecDestroy(CUgraphExec handle) {
    return call("cuGraphExecDestroy", Needs::ContextEvenBroken, [&](Call& call) {
        auto exec = find_exec(handle);
        if (!exec) return CUDA_ERROR_INVALID_VALUE;
        call.note("graph=%llu", (unsigned long long)exec->id);
        state().execs.erase(handle);
        return CUDA_SUCCESS;
    });
}

static CUresult check_launch(const std::shared_ptr<GraphExec>& exec, const StreamPtr& stream) {
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    return stream->context->error;
}

// A command of its stream. Only that stream, or one that waits for it, may launch the graph before the upload has run.
EXPORT CUresult cuGraphUpload(CUgraphExec handle, CUstream stream_handle) {
    return call("cuGraphUpload", Needs::Context, [&](Call& call) {
        auto exec = find_exec(handle);
        StreamPtr stream = any_stream(stream_handle, call.context);
        CUresult checked = check_launch(exec, stream);
        if (checked != CUDA_SUCCESS) return checked;
        call.note("graph=%llu stream=%llu", (unsigned long long)exec->id, (unsigned long long)stream->id);
        if (stream->capture) return look_at(stream);
        Command command;
        command.name = "upload graph=" + std::to_string(exec->id);
        exec->upload = enqueue(stream, std::move(command));
        return CUDA_SUCCESS;
    });
}

// After the stream's commands and after the graph's other launches; the nodes run in any order that their edges allow.
EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    return call("cuGraphLaunch", Needs::Context, [&](Call& call) {
        auto exec = find_exec(handle);
        StreamPtr stream = any_stream(stream_handle, call.context);
        CUresult checked = check_launch(exec, stream);
        if (checked != CUDA_SUCCESS) return checked;
        call.note("graph=%llu stream=%llu", (unsigned long long)exec->id, (unsigned long long)stream->id);
        if (stream->capture) return look_at(stream);
        CUresult waits = implicit_wait(stream);
        if (waits != CUDA_SUCCESS) return waits;
        Command command;
        command.name = "graph=" + std::to_string(exec->id);
        if (!exec->steps.empty()) {
            command.graph = std::make_shared<GraphRun>(exec->steps);
            command.graph->upload = exec->upload;
        }
        if (exec->last && !exec->last->passed) command.after.push_back(exec->last);
        exec->last = enqueue(stream, std::move(command));
        return CUDA_SUCCESS;
    });
}
