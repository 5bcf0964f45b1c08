// Runs queued commands, on whichever host thread asks for their end. One at a time, under the lock; host functions run
// on a thread of their own, without it.
#include "state.hpp"

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

// Host functions, in the order in which the executor came to them. A function that does not return holds up the ones
// after it, as the driver says it may.
struct HostThread {
    std::deque<StreamPtr> waiting;
    std::condition_variable wake;
    bool started = false;

    void work() {
        std::unique_lock<std::mutex> held(state().lock);
        for (;;) {
            wake.wait(held, [&] { return !waiting.empty(); });
            StreamPtr stream = waiting.front();
            waiting.pop_front();
            CUhostFn function = stream->queue.front().host;
            void* data = stream->queue.front().host_data;
            held.unlock();
            in_host_function = true;
            function(data);
            in_host_function = false;
            held.lock();
            pass(*stream);
            state().progress.notify_all();
        }
    }
};

static HostThread& host_thread() {
    static HostThread* the = new HostThread;
    return *the;
}

static void hand_over(Stream& stream) {
    stream.queue.front().running = true;
    HostThread& thread = host_thread();
    thread.waiting.push_back(stream.shared_from_this());
    if (!thread.started) {
        thread.started = true;
        std::thread([&thread] { thread.work(); }).detach();
    }
    thread.wake.notify_one();
}

static bool may_run(const Stream& stream) {
    if (stream.queue.empty()) return false;
    const Command& head = stream.queue.front();
    if (head.running) return false;
    for (const MomentPtr& moment : head.after)
        if (!moment->passed) return false;
    return !head.condition || head.condition();
}

// The streams whose next command the moment needs and that may run now.
static void collect_needed(const StreamPtr& stream, std::vector<Stream*>& visited, std::vector<Candidate>& ready) {
    if (!stream || stream->queue.empty()) return;
    if (std::find(visited.begin(), visited.end(), stream.get()) != visited.end()) return;
    visited.push_back(stream.get());
    if (may_run(*stream)) ready.push_back({stream.get(), true});
    for (const MomentPtr& moment : stream->queue.front().after)
        if (!moment->passed) collect_needed(moment->stream, visited, ready);
}

static void collect_all(std::vector<Candidate>& ready) {
    for (auto& context : state().contexts)
        for (const StreamPtr& stream : context->streams) {
            bool known = std::any_of(ready.begin(), ready.end(), [&](const Candidate& c) { return c.stream == stream.get(); });
            if (!known && may_run(*stream)) ready.push_back({stream.get(), false});
        }
}

static void run_head(Stream& stream) {
    Command& head = stream.queue.front();
    if (!head.name.empty()) log_line("run stream=%llu %s", (unsigned long long)stream.id, head.name.c_str());
    if (head.host) return hand_over(stream);
    CUresult result = head.run ? head.run() : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) return fail_context(stream.context, result);
    pass(stream);
}

// Runs one command, for the sake of a moment; false if nothing may run now.
static bool step(const MomentPtr& moment) {
    std::vector<Candidate> ready;
    std::vector<Stream*> visited;
    collect_needed(moment->stream, visited, ready);
    if (considers_all_streams()) collect_all(ready);
    if (ready.empty()) return false;
    run_head(*ready[choose(ready)].stream);
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

// More commands than a driver would queue are waiting: some run. Never blocks.
void keep_bound() {
    size_t queued = 0;
    for (auto& context : state().contexts)
        for (const StreamPtr& stream : context->streams) queued += stream->queue.size();
    for (; queued > state().bound; queued--) {
        std::vector<Candidate> ready;
        collect_all(ready);
        if (ready.empty()) break;
        run_head(*ready[choose(ready)].stream);
    }
    close_memory();
}

// The commands that are left do nothing; host functions are not called. One that runs is left to end.
void discard(Context* context) {
    for (const StreamPtr& stream : context->streams)
        while (!stream->queue.empty() && !stream->queue.back().running) {
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

static void release(void (*drop)(void*), void* data) {
    if (drop) drop(data);
}

EXPORT CUresult cuEmulatorEnqueue(CUstream handle, const char* name, void (*run)(void*), void* data, void (*drop)(void*)) {
    std::lock_guard<std::mutex> held(state().lock);
    StreamPtr stream = current_context ? find_stream(handle, current_context) : nullptr;
    if (!stream || stream->context->error != CUDA_SUCCESS) {
        release(drop, data);
        return !current_context ? CUDA_ERROR_INVALID_CONTEXT : stream ? stream->context->error : CUDA_ERROR_INVALID_HANDLE;
    }
    std::shared_ptr<void> owned(data, [drop](void* kept) { release(drop, kept); });
    Command command;
    command.name = name;
    std::string who = name;
    uint64_t id = stream->id;
    Context* context = stream->context;
    command.run = [owned, run, who, id, context] {
        open_memory(context);
        Fault fault = run_guarded(run, owned.get());
        if (fault.code != CUDA_SUCCESS) report("%s %s; stream %llu", who.c_str(), fault.text.c_str(), (unsigned long long)id);
        check_slack(who);
        return fault.code;
    };
    enqueue(stream, std::move(command));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEmulatorCheckStream(CUstream handle) {
    std::lock_guard<std::mutex> held(state().lock);
    if (!current_context) return CUDA_ERROR_INVALID_CONTEXT;
    if (current_context->error != CUDA_SUCCESS) return current_context->error;
    return find_stream(handle, current_context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
