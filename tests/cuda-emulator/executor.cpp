// Runs queued commands, on whichever host thread asks for their end. One at a time, under the lock; host functions run
// on a thread of their own, without it.
#include "graphs.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

double now_milliseconds() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void pass(Stream& stream) {
    Command done = std::move(stream.queue.front());
    stream.queue.pop_front();
    done.moment->passed = true;
    done.moment->milliseconds = now_milliseconds();
    done.moment->stream.reset();
}

// A command has run, or a node of the graph that it is.
static void ended(Stream& stream, size_t node) {
    GraphRun* graph = stream.queue.front().graph.get();
    if (!graph || graph->finish(node)) pass(stream);
}

static const Work& next_work(const Stream& stream, size_t node) {
    const Command& head = stream.queue.front();
    return head.graph ? head.graph->steps[node].work : static_cast<const Work&>(head);
}

// Host functions, in the order in which the executor came to them. A function that does not return holds up the ones
// after it, as the driver says it may.
struct HostThread {
    std::deque<std::pair<StreamPtr, size_t>> waiting; // with the graph's node
    std::condition_variable wake;
    bool started = false;

    void work() {
        std::unique_lock<std::mutex> held(state().lock);
        for (;;) {
            wake.wait(held, [&] { return !waiting.empty(); });
            auto [stream, node] = waiting.front();
            waiting.pop_front();
            CUhostFn function = next_work(*stream, node).host;
            void* data = next_work(*stream, node).host_data;
            held.unlock();
            in_host_function = true;
            function(data);
            in_host_function = false;
            held.lock();
            ended(*stream, node);
            state().progress.notify_all();
        }
    }
};

static HostThread& host_thread() {
    static HostThread* the = new HostThread;
    return *the;
}

static void hand_over(Stream& stream, size_t node) {
    Command& head = stream.queue.front();
    if (head.graph)
        head.graph->start(node);
    else
        head.running = true;
    HostThread& thread = host_thread();
    thread.waiting.emplace_back(stream.shared_from_this(), node);
    if (!thread.started) {
        thread.started = true;
        std::thread([&thread] { thread.work(); }).detach();
    }
    thread.wake.notify_one();
}

static bool may_begin(const Stream& stream) {
    if (stream.queue.empty() || stream.queue.front().running) return false;
    const auto& after = stream.queue.front().after;
    return std::all_of(after.begin(), after.end(), [](const MomentPtr& moment) { return moment->passed; });
}

// What may run now of a stream: its next command, or nodes of it. Whether something of it waits for other streams.
static bool collect(Stream& stream, bool needed, std::vector<Candidate>& ready) {
    if (!may_begin(stream)) return false;
    bool meets = false;
    auto add = [&](size_t node) {
        const Work& work = next_work(stream, node);
        if (!work.condition || work.condition())
            ready.push_back({&stream, needed, node});
        else
            meets |= work.meets;
    };
    const GraphRun* graph = stream.queue.front().graph.get();
    if (!graph)
        add(0);
    else
        for (size_t node : graph->ready) add(node);
    return meets;
}

// The streams whose next command the moment needs and that may run now. Whether one of them waits for others.
static bool collect_needed(const StreamPtr& stream, std::vector<Stream*>& visited, std::vector<Candidate>& ready) {
    if (!stream || stream->queue.empty()) return false;
    if (std::find(visited.begin(), visited.end(), stream.get()) != visited.end()) return false;
    visited.push_back(stream.get());
    bool meets = collect(*stream, true, ready);
    for (const MomentPtr& moment : stream->queue.front().after)
        if (!moment->passed) meets |= collect_needed(moment->stream, visited, ready);
    return meets;
}

static void collect_all(std::vector<Candidate>& ready) {
    for (auto& context : state().contexts)
        for (const StreamPtr& stream : context->streams) {
            bool known = std::any_of(ready.begin(), ready.end(), [&](const Candidate& c) { return c.stream == stream.get(); });
            if (!known) collect(*stream, false, ready);
        }
}

static void log_run(const Stream& stream, size_t node) {
    const Command& head = stream.queue.front();
    std::string what = next_work(stream, node).name;
    if (head.graph) what = head.name + " node=" + std::to_string(node) + ' ' + what;
    if (!what.empty()) log_line("run stream=%llu %s", (unsigned long long)stream.id, what.c_str());
}

static void run(const Candidate& chosen) {
    Stream& stream = *chosen.stream;
    const GraphRun* graph = stream.queue.front().graph.get();
    if (graph && graph->upload && !graph->upload->passed) {
        report("%s runs while its upload is pending on another stream; stream %llu", stream.queue.front().name.c_str(), (unsigned long long)stream.id);
        return fail_context(stream.context, CUDA_ERROR_LAUNCH_FAILED);
    }
    log_run(stream, chosen.node);
    const Work& work = next_work(stream, chosen.node);
    if (work.host) return hand_over(stream, chosen.node);
    CUresult result = work.run ? work.run(stream.id) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) return ended(stream, chosen.node);
    // A node's context may be another than its stream's: neither goes on.
    Context* other = work.context;
    fail_context(stream.context, result);
    if (other && other != stream.context) fail_context(other, result);
}

// Runs one command, for the sake of a moment; false if nothing may run now.
static bool step(const MomentPtr& moment) {
    std::vector<Candidate> ready;
    std::vector<Stream*> visited;
    bool meets = collect_needed(moment->stream, visited, ready);
    // A collective needs what other ranks have put before theirs.
    if (considers_all_streams() || (meets && ready.empty())) collect_all(ready);
    if (ready.empty()) return false;
    run(ready[choose(ready)]);
    return true;
}

static void forget_empty_streams(Context* context) {
    auto& streams = context->streams;
    auto known = [](const StreamPtr& stream) {
        return stream->id == 0 || std::any_of(state().streams.begin(), state().streams.end(), [&](auto& entry) { return entry.second == stream; });
    };
    streams.erase(std::remove_if(streams.begin(), streams.end(), [&](const StreamPtr& s) { return s->queue.empty() && !known(s); }), streams.end());
}

void finish(std::unique_lock<std::mutex>& lock, const MomentPtr& moment) {
    double began = now_milliseconds();
    bool complained = false;
    while (!moment->passed) {
        if (step(moment)) continue;
        // A host function runs, or a stream waits for host memory to change: others need the lock.
        close_memory();
        state().progress.wait_for(lock, std::chrono::microseconds(50));
        if (!complained && now_milliseconds() - began > 10000) {
            complained = true;
            StreamPtr stream = moment->stream;
            report("the host has waited for stream %llu for 10 s; its next command is %s", (unsigned long long)(stream ? stream->id : 0),
                   stream && !stream->queue.empty() ? stream->queue.front().name.c_str() : "(none)");
        }
    }
    close_memory();
}

void nudge(const MomentPtr& moment) {
    step(moment);
    close_memory();
}

// Whether a command of the stream, or of one that it waits for, waits for host memory to change.
static bool waits_for_host(const StreamPtr& stream, std::vector<Stream*>& visited) {
    if (!stream || std::find(visited.begin(), visited.end(), stream.get()) != visited.end()) return false;
    visited.push_back(stream.get());
    for (const Command& command : stream->queue) {
        if (command.condition && !command.meets && !command.condition()) return true;
        for (const MomentPtr& moment : command.after)
            if (!moment->passed && waits_for_host(moment->stream, visited)) return true;
    }
    return false;
}

CUresult await_host(std::unique_lock<std::mutex>& lock, Context* context, const char* name) {
    double began = now_milliseconds();
    auto blocked = [&] {
        std::vector<Stream*> visited;
        return std::any_of(context->streams.begin(), context->streams.end(), [&](const StreamPtr& stream) { return waits_for_host(stream, visited); });
    };
    while (blocked()) {
        if (now_milliseconds() - began > 10000) {
            report("%s waits for all work of the context, and a stream of it waits for host memory", name);
            return CUDA_ERROR_LAUNCH_TIMEOUT;
        }
        state().progress.wait_for(lock, std::chrono::microseconds(200));
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEmulatorAwaitHost(const char* name) {
    std::unique_lock<std::mutex> held(state().lock);
    return current_context ? await_host(held, current_context, name) : CUDA_ERROR_INVALID_CONTEXT;
}

void drain(std::unique_lock<std::mutex>& lock, Context* context) {
    for (;;) {
        std::vector<MomentPtr> open;
        for (const StreamPtr& stream : context->streams)
            if (!stream->queue.empty()) open.push_back(stream->last);
        if (open.empty()) break;
        finish(lock, open[size_t(state().random.below(open.size()))]);
    }
    forget_empty_streams(context);
}

static size_t queued_commands() {
    size_t queued = 0;
    for (auto& context : state().contexts)
        for (const StreamPtr& stream : context->streams) queued += stream->queue.size();
    return queued;
}

// More commands than a driver would queue are waiting: some run. Never blocks.
void keep_bound() {
    while (queued_commands() > state().bound) {
        std::vector<Candidate> ready;
        collect_all(ready);
        if (ready.empty()) break;
        run(ready[choose(ready)]);
    }
    close_memory();
}

// Whether a host function of it runs now; what else a graph has is given up.
static bool still_runs(Command& command) { return command.running || (command.graph && !command.graph->abandon()); }

// The commands that are left do nothing; host functions are not called. One that runs is left to end.
void discard(Context* context) {
    for (const StreamPtr& stream : context->streams)
        while (!stream->queue.empty() && !still_runs(stream->queue.back())) {
            Command dropped = std::move(stream->queue.back());
            stream->queue.pop_back();
            dropped.moment->passed = true;
            dropped.moment->milliseconds = now_milliseconds();
            dropped.moment->stream.reset();
        }
}

void fail_context(Context* context, CUresult error) {
    if (context->error == CUDA_SUCCESS) context->error = error;
    discard(context);
}

MomentPtr enqueue(const StreamPtr& stream, Command command) {
    // The legacy default stream comes after, and before, everything of the blocking streams.
    if (stream->id == 0) {
        for (const StreamPtr& other : stream->context->streams)
            if (other->blocking && other != stream && !other->queue.empty()) command.after.push_back(other->last);
    } else if (stream->blocking) {
        const StreamPtr& legacy = stream->context->legacy;
        if (!legacy->queue.empty()) command.after.push_back(legacy->last);
    }
    command.moment = std::make_shared<Moment>();
    command.moment->stream = stream;
    stream->last = command.moment;
    MomentPtr moment = command.moment;
    stream->queue.push_back(std::move(command));
    keep_bound();
    return moment;
}

// The stream of the current context, or why it takes nothing.
static CUresult usable(CUstream handle, StreamPtr& stream) {
    if (!current_context) return CUDA_ERROR_INVALID_CONTEXT;
    stream = find_stream(handle, current_context);
    return stream ? stream->context->error : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuEmulatorLaunch(CUstream handle, const char* name, unsigned blocks, bool modern, void (*run)(void*), const void* argument, unsigned bytes) {
    std::lock_guard<std::mutex> held(state().lock);
    StreamPtr stream;
    CUresult checked = usable(handle, stream);
    if (checked != CUDA_SUCCESS) return checked;
    CUfunction function = library_function(stream->context, name, modern, run, bytes);
    void* arguments[] = {const_cast<void*>(argument)};
    KernelParams params{function, {blocks, 1, 1}, {LIBRARY_THREADS, 1, 1}, 0, arguments, nullptr, nullptr, nullptr};
    std::shared_ptr<Launch> launch;
    CUresult prepared = prepare_launch(params, stream->context, launch);
    return prepared == CUDA_SUCCESS ? submit(stream, Command{kernel_work(std::move(launch)), {}, false, {}, {}}) : prepared;
}

EXPORT CUresult cuEmulatorMeet(CUstream handle, const char* name, bool (*ready)(void*), void (*run)(void*), void* data, void (*drop)(void*)) {
    std::lock_guard<std::mutex> held(state().lock);
    std::shared_ptr<void> owned(data, drop);
    StreamPtr stream;
    CUresult checked = usable(handle, stream);
    if (checked != CUDA_SUCCESS) return checked;
    Command command;
    command.name = name;
    std::string who = name;
    command.meets = true;
    if (ready) command.condition = [owned, ready] { return ready(owned.get()); };
    command.run = [owned, run, who](uint64_t id) {
        open_memory(nullptr);
        Fault fault = run_guarded(run, owned.get());
        if (fault.code != CUDA_SUCCESS) report("%s %s; stream %llu", who.c_str(), fault.text.c_str(), (unsigned long long)id);
        check_slack(who);
        return fault.code;
    };
    return submit(stream, std::move(command));
}

EXPORT CUresult cuEmulatorCheckStream(CUstream handle) {
    std::lock_guard<std::mutex> held(state().lock);
    StreamPtr stream;
    return usable(handle, stream);
}
