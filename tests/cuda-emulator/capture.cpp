// Streams that capture: what is submitted to them becomes nodes of a graph. What is refused meanwhile, and what ends a
// capture, is as CUDA 13.0 was seen to have it.
#include "graphs.hpp"

#include <algorithm>

static thread_local int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static std::vector<StreamPtr> capturing_streams() {
    std::vector<StreamPtr> found;
    for (auto& context : state().contexts)
        for (const StreamPtr& stream : context->streams)
            if (stream->capture) found.push_back(stream);
    return found;
}

void invalidate(const StreamPtr& stream) {
    if (stream->capture) stream->capture->invalidated = true;
}

static CUresult fail(const StreamPtr& stream, CUresult error) {
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    invalidate(stream);
    return error;
}

// The same for all streams that `affects`; success if there are none.
template <class Affects> static CUresult fail_all(Affects affects, CUresult error) {
    CUresult result = CUDA_SUCCESS;
    for (const StreamPtr& stream : capturing_streams())
        if (affects(*stream)) invalidate(stream), result = error;
    return result;
}

// Whether the legacy default stream is before and after what the other one does.
static bool is_legacy_of(const Stream& stream, const Stream& other) { return stream.id == 0 && other.blocking && other.context == stream.context; }

CUresult implicit_wait(const StreamPtr& stream) {
    return fail_all([&](const Stream& other) { return is_legacy_of(*stream, other); }, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

// Calls that may wait for the device, which a thread makes whose mode does not say that it knows better.
CUresult unsafe_call() {
    auto forbids = [](const Stream& stream) {
        const Capture& capture = *stream.capture;
        if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture.invalidated) return false;
        if (capture.thread == std::this_thread::get_id()) return true;
        return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    };
    return fail_all(forbids, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

CUresult look_at(const StreamPtr& stream) {
    if (stream->capture) return fail(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CUresult waits = implicit_wait(stream);
    return waits != CUDA_SUCCESS ? waits : unsafe_call();
}

CUresult look_at(const Event& event) {
    if (!event.capture) return unsafe_call();
    if (!event.capture->graph) return CUDA_ERROR_INVALID_VALUE;
    event.capture->invalidated = true;
    return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult look_at(Context* context) {
    CUresult captures = fail_all([=](const Stream& stream) { return stream.context == context; }, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return captures != CUDA_SUCCESS ? captures : unsafe_call();
}

CUresult submit(const StreamPtr& stream, Command command) {
    if (!stream->capture) {
        CUresult waits = implicit_wait(stream);
        if (waits == CUDA_SUCCESS) enqueue(stream, std::move(command));
        return waits;
    }
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    command.context = stream->context;
    stream->tail = {stream->capture->graph->add(std::move(command), stream->tail)};
    return CUDA_SUCCESS;
}

static void join(const StreamPtr& stream, const Event& event) {
    stream->capture = event.capture;
    for (Node* node : event.captured) add_once(stream->tail, node);
}

static CUresult wait_for_captured(const StreamPtr& stream, const Event& event) {
    if (!event.capture->graph) return CUDA_ERROR_INVALID_VALUE;
    if (event.capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    bool merges = stream->capture && stream->capture != event.capture;
    if (merges || stream->id == 0) {
        event.capture->invalidated = true;
        invalidate(stream);
        return merges ? CUDA_ERROR_STREAM_CAPTURE_MERGE : CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    join(stream, event);
    return CUDA_SUCCESS;
}

bool captures_wait(const StreamPtr& stream, const Event& event, CUresult& result) {
    if (!stream->capture && !event.capture) return false;
    result = CUDA_SUCCESS;
    if (stream->capture && stream->capture->invalidated)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (event.capture)
        result = wait_for_captured(stream, event);
    else if (event.recorded)
        result = fail(stream, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    return true;
}

bool captures_record(const StreamPtr& stream, Event& event, CUresult& result) {
    event.capture = nullptr;
    event.captured.clear();
    if (!stream->capture) return false;
    result = stream->capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    event.capture = stream->capture;
    event.captured = stream->tail;
    return true;
}

// The streams are ordinary ones again. A capture that failed takes its graph along, whoever made it.
static void end(const std::shared_ptr<Capture>& capture, bool failed) {
    for (const StreamPtr& stream : capturing_streams())
        if (stream->capture == capture) {
            stream->capture = nullptr;
            stream->tail.clear();
        }
    GraphPtr graph = std::move(capture->graph);
    graph->capturing = false;
    if (failed) forget_graph(graph);
}

void leave_capture(const StreamPtr& stream) {
    std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return;
    capture->invalidated = true;
    if (capture->origin == stream.get()) return end(capture, true);
    stream->capture = nullptr;
    stream->tail.clear();
}

// Whether all that the other streams of a capture did comes before the end of the first one.
static bool all_joined(const Stream& origin) {
    std::set<Node*> joined;
    std::vector<Node*> open = origin.tail;
    while (!open.empty()) {
        Node* node = open.back();
        open.pop_back();
        if (joined.insert(node).second) open.insert(open.end(), node->after.begin(), node->after.end());
    }
    auto is_joined = [&](Node* node) { return joined.count(node) != 0; };
    auto streams = capturing_streams();
    return std::all_of(streams.begin(), streams.end(), [&](const StreamPtr& stream) {
        return stream->capture != origin.capture || std::all_of(stream->tail.begin(), stream->tail.end(), is_joined);
    });
}

// Of a capture that its first stream ends.
static CUresult result_of(const Stream& origin) {
    const Capture& capture = *origin.capture;
    if (capture.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    bool elsewhere = capture.thread != std::this_thread::get_id();
    if (elsewhere && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    return all_joined(origin) ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}

static CUresult begin_capture(const StreamPtr& stream, const GraphPtr& graph, std::vector<Node*> after, int mode) {
    if (stream->id == 0) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture || graph->capturing) return CUDA_ERROR_ILLEGAL_STATE;
    auto capture = std::make_shared<Capture>();
    // All captures into one graph have its number.
    if (!graph->capture_id) graph->capture_id = state().next_capture++;
    capture->id = graph->capture_id;
    static uint64_t begun = 0;
    capture->turn = ++begun;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->origin = stream.get();
    capture->graph = graph;
    graph->capturing = true;
    stream->capture = capture;
    stream->tail = std::move(after);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
    return call("cuStreamBeginCapture_v2", Needs::Context, [&](Call& call) {
        StreamPtr stream = any_stream(handle, call.context);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        call.note("stream=%llu mode=%d", (unsigned long long)stream->id, mode);
        if (mode < 0 || mode > 2) return CUDA_ERROR_INVALID_VALUE;
        GraphPtr graph = make_graph(stream->context);
        CUresult result = begin_capture(stream, graph, {}, mode);
        if (result != CUDA_SUCCESS) forget_graph(graph);
        return result;
    });
}

EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph to, const CUgraphNode* after, const EdgeData*, size_t count, int mode) {
    return call("cuStreamBeginCaptureToGraph", Needs::Context, [&](Call& call) {
        StreamPtr stream = any_stream(handle, call.context);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        call.note("stream=%llu mode=%d after=%zu", (unsigned long long)stream->id, mode, count);
        GraphPtr graph = find_graph(to);
        std::vector<Node*> nodes;
        if (!graph || mode < 0 || mode > 2 || !find_nodes(after, count, *graph, nodes)) return CUDA_ERROR_INVALID_VALUE;
        return begin_capture(stream, graph, std::move(nodes), mode);
    });
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph* out) {
    return call("cuStreamEndCapture", Needs::Context, [&](Call& call) {
        StreamPtr stream = any_stream(handle, call.context);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        call.note("stream=%llu", (unsigned long long)stream->id);
        if (!out) return CUDA_ERROR_INVALID_VALUE;
        *out = nullptr;
        std::shared_ptr<Capture> capture = stream->capture;
        if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
        if (capture->origin != stream.get()) return fail(stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        CUresult result = result_of(*stream);
        if (result == CUDA_SUCCESS) *out = static_cast<CUgraph>(capture->graph->handle);
        end(capture, result != CUDA_SUCCESS);
        return result;
    });
}

EXPORT uint64_t cuEmulatorCapture(CUstream handle, uint64_t* id) {
    std::lock_guard<std::mutex> held(state().lock);
    StreamPtr stream = find_stream(handle, current_context);
    if (!stream || !stream->capture) return 0;
    *id = stream->capture->id;
    return stream->capture->turn;
}

// Asking ends no capture.
static CUresult give_status(const Stream& stream, int* status) {
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    for (const StreamPtr& other : capturing_streams())
        if (is_legacy_of(stream, *other)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = !stream.capture ? CU_STREAM_CAPTURE_STATUS_NONE : stream.capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, int* status) {
    return call("cuStreamIsCapturing", Needs::Context, [&](Call& call) {
        StreamPtr stream = any_stream(handle, call.context);
        return stream ? give_status(*stream, status) : CUDA_ERROR_INVALID_HANDLE;
    });
}

// What the caller does not ask for is null. Edges are plain ones, whose data are zeros.
static CUresult capture_info(Call& call, CUstream handle, int* status, uint64_t* id, CUgraph* graph, const CUgraphNode** after, const EdgeData** data, size_t* count) {
    StreamPtr stream = any_stream(handle, call.context);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    call.note("stream=%llu", (unsigned long long)stream->id);
    CUresult given = give_status(*stream, status);
    if (given != CUDA_SUCCESS || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return given;
    static std::vector<EdgeData> plain;
    if (plain.size() < stream->tail.size()) plain.resize(stream->tail.size());
    stream->shown.clear();
    for (Node* node : stream->tail) stream->shown.push_back(node->handle);
    if (id) *id = stream->capture->id;
    if (graph) *graph = static_cast<CUgraph>(stream->capture->graph->handle);
    if (after) *after = reinterpret_cast<const CUgraphNode*>(stream->shown.data());
    if (data) *data = plain.data();
    if (count) *count = stream->tail.size();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int* status, uint64_t* id, CUgraph* graph, const CUgraphNode** after, size_t* count) {
    return call("cuStreamGetCaptureInfo_v2", Needs::Context, [&](Call& call) { return capture_info(call, stream, status, id, graph, after, nullptr, count); });
}

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int* status, uint64_t* id, CUgraph* graph, const CUgraphNode** after, const EdgeData** data, size_t* count) {
    return call("cuStreamGetCaptureInfo_v3", Needs::Context, [&](Call& call) { return capture_info(call, stream, status, id, graph, after, data, count); });
}

static CUresult update_tail(Call& call, CUstream handle, const CUgraphNode* nodes, size_t count, unsigned how) {
    StreamPtr stream = any_stream(handle, call.context);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    call.note("stream=%llu after=%zu how=%u", (unsigned long long)stream->id, count, how);
    if (!stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    std::vector<Node*> tail = how == 0 ? stream->tail : std::vector<Node*>(); // 0: added, 1: instead
    if (how > 1 || !find_nodes(nodes, count, *stream->capture->graph, tail)) return CUDA_ERROR_INVALID_VALUE;
    stream->tail = std::move(tail);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream stream, const CUgraphNode* nodes, size_t count, unsigned how) {
    return call("cuStreamUpdateCaptureDependencies", Needs::Context, [&](Call& call) { return update_tail(call, stream, nodes, count, how); });
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, const CUgraphNode* nodes, const EdgeData*, size_t count, unsigned how) {
    return call("cuStreamUpdateCaptureDependencies_v2", Needs::Context, [&](Call& call) { return update_tail(call, stream, nodes, count, how); });
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
    return call("cuThreadExchangeStreamCaptureMode", Needs::Driver, [&](Call&) {
        if (!mode || *mode < 0 || *mode > 2) return CUDA_ERROR_INVALID_VALUE;
        std::swap(*mode, thread_mode);
        return CUDA_SUCCESS;
    });
}
