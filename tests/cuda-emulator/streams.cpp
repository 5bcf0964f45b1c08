// Streams, events, waits, host functions.
#include "state.hpp"

#include <algorithm>
#include <chrono>

// The stream that each thread's CU_STREAM_PER_THREAD names, one for each context.
static thread_local std::map<Context*, void*> per_thread;

static CUstream new_stream(Context* context, unsigned flags, int priority) {
    auto stream = std::make_shared<Stream>();
    stream->id = state().next_stream++;
    stream->context = context;
    stream->flags = flags;
    stream->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    stream->priority = priority;
    context->streams.push_back(stream);
    void* handle = state().handle();
    state().streams[handle] = stream;
    return static_cast<CUstream>(handle);
}

StreamPtr find_stream(CUstream handle, Context* context) {
    auto number = reinterpret_cast<uintptr_t>(handle);
    if (number == 0 || number == CU_STREAM_LEGACY) return context->legacy;
    void* key = handle;
    if (number == CU_STREAM_PER_THREAD) {
        void*& own = per_thread[context];
        if (!state().streams.count(own)) own = new_stream(context, CU_STREAM_DEFAULT, 0);
        key = own;
    }
    auto found = state().streams.find(key);
    if (found == state().streams.end()) return nullptr;
    return found->second->context == context ? found->second : nullptr;
}

// Waits may be given to streams of any context, and other calls to a stream whose context is not current.
StreamPtr any_stream(CUstream handle, Context* current) {
    if (StreamPtr own = find_stream(handle, current)) return own;
    auto found = state().streams.find(handle);
    return found == state().streams.end() ? nullptr : found->second;
}

static std::shared_ptr<Event> find_event(CUevent handle) {
    auto found = state().events.find(handle);
    return found == state().events.end() ? nullptr : found->second;
}

static unsigned long long number(const StreamPtr& stream) { return stream->id; }

EXPORT CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
    return call("cuStreamCreateWithPriority", Needs::Context, [&](Call& call) {
        if (!out || (flags & ~CU_STREAM_NON_BLOCKING)) return CUDA_ERROR_INVALID_VALUE;
        *out = new_stream(call.context, flags, std::clamp(priority, -5, 0));
        call.note("stream=%llu flags=%u priority=%d", number(find_stream(*out, call.context)), flags, priority);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuStreamCreate(CUstream* out, unsigned flags) {
    return call("cuStreamCreate", Needs::Context, [&](Call& call) {
        if (!out || (flags & ~CU_STREAM_NON_BLOCKING)) return CUDA_ERROR_INVALID_VALUE;
        *out = new_stream(call.context, flags, 0);
        call.note("stream=%llu flags=%u", number(find_stream(*out, call.context)), flags);
        return CUDA_SUCCESS;
    });
}

// What is queued still runs.
EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
    return call("cuStreamDestroy_v2", Needs::ContextEvenBroken, [&](Call& call) {
        auto found = state().streams.find(handle);
        if (found == state().streams.end()) return CUDA_ERROR_INVALID_HANDLE;
        StreamPtr stream = found->second;
        call.note("stream=%llu", number(stream));
        state().streams.erase(found);
        leave_capture(stream);
        auto& streams = stream->context->streams;
        if (stream->queue.empty()) streams.erase(std::remove(streams.begin(), streams.end(), stream), streams.end());
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuStreamGetPriority(CUstream handle, int* priority) {
    return call("cuStreamGetPriority", Needs::Context, [&](Call& call) {
        StreamPtr stream = any_stream(handle, call.context);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (!priority) return CUDA_ERROR_INVALID_VALUE;
        *priority = stream->priority;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
    return call("cuStreamGetFlags", Needs::Context, [&](Call& call) {
        StreamPtr stream = any_stream(handle, call.context);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (!flags) return CUDA_ERROR_INVALID_VALUE;
        *flags = stream->flags;
        return CUDA_SUCCESS;
    });
}

// The newest command of a stream; for the legacy default stream one that comes after all blocking streams'. Empty: idle.
static MomentPtr newest(const StreamPtr& stream) {
    if (stream->id == 0) {
        const auto& streams = stream->context->streams;
        bool idle = std::all_of(streams.begin(), streams.end(), [](const StreamPtr& s) { return !s->blocking || s->queue.empty(); });
        if (!idle) return enqueue(stream, Command{});
    }
    return stream->queue.empty() ? nullptr : stream->last;
}

EXPORT CUresult cuStreamSynchronize(CUstream handle) {
    return call("cuStreamSynchronize", Needs::Context, [&](Call& call) {
        StreamPtr stream = any_stream(handle, call.context);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        call.note("stream=%llu", number(stream));
        CUresult allowed = look_at(stream);
        if (allowed != CUDA_SUCCESS) return allowed;
        if (MomentPtr moment = newest(stream)) finish(call.lock, moment);
        return stream->context->error;
    });
}

EXPORT CUresult cuStreamQuery(CUstream handle) {
    return call("cuStreamQuery", Needs::Context, [&](Call& call) {
        StreamPtr stream = any_stream(handle, call.context);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        call.note("stream=%llu", number(stream));
        CUresult allowed = look_at(stream);
        if (allowed != CUDA_SUCCESS) return allowed;
        MomentPtr moment = newest(stream);
        if (!moment) return stream->context->error;
        nudge(moment); // what runs now is seen by the next query
        return stream->context->error != CUDA_SUCCESS ? stream->context->error : CUDA_ERROR_NOT_READY;
    });
}

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent awaited, unsigned flags) {
    return call("cuStreamWaitEvent", Needs::Context, [&](Call& call) {
        StreamPtr stream = any_stream(handle, call.context);
        auto event = find_event(awaited);
        if (!stream || !event) return CUDA_ERROR_INVALID_HANDLE;
        if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
        call.note("stream=%llu event=%llu", number(stream), (unsigned long long)event->id);
        stream->waits++;
        if (drops_this_wait(*stream)) {
            call.note("dropped");
            return CUDA_SUCCESS;
        }
        CUresult captured = CUDA_SUCCESS;
        if (captures_wait(stream, *event, captured)) return captured;
        if (event->elsewhere) {
            Command command;
            command.name = "wait event=" + std::to_string(event->id) + " of another process";
            await_elsewhere(*event, command);
            return submit(stream, std::move(command));
        }
        // The record that is current now; an event without one is no reason to wait.
        if (!event->recorded || event->recorded->passed) return CUDA_SUCCESS;
        Command command;
        command.name = "wait event=" + std::to_string(event->id);
        command.after.push_back(event->recorded);
        return submit(stream, std::move(command));
    });
}

static bool holds(uint32_t seen, uint32_t value, unsigned how) {
    switch (how) {
    case CU_WAIT_GEQ: return int32_t(seen - value) >= 0;
    case CU_WAIT_EQ: return seen == value;
    case CU_WAIT_AND: return (seen & value) != 0;
    default: return ~(seen | value) != 0;
    }
}

EXPORT CUresult cuStreamWaitValue32_v2(CUstream handle, CUdeviceptr address, uint32_t value, unsigned flags) {
    return call("cuStreamWaitValue32_v2", Needs::Context, [&](Call& call) {
        StreamPtr stream = any_stream(handle, call.context);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        call.note("stream=%llu ptr=0x%llx value=%u", number(stream), address, value);
        unsigned how = flags & ~CU_WAIT_FLUSH;
        if (how > CU_WAIT_NOR || address % 4 || !has_memory(address, 4)) return CUDA_ERROR_INVALID_VALUE;
        Context* context = stream->context;
        Command command;
        command.type = WorkType::Memory;
        char name[64];
        snprintf(name, sizeof name, "wait value=%u at 0x%llx", value, address);
        command.name = name;
        command.condition = [=] {
            if (!has_memory(address, 4)) return true; // `run` says so
            const Allocation* allocation = find_allocation(address, 4);
            if (!allocation || !allocation->host) open_memory(context);
            return holds(__atomic_load_n(reinterpret_cast<uint32_t*>(address), __ATOMIC_ACQUIRE), value, how);
        };
        command.run = [=](uint64_t) {
            if (has_memory(address, 4)) return CUDA_SUCCESS;
            report("cuStreamWaitValue32 waits on %s", describe_address(address).c_str());
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        };
        return submit(stream, std::move(command));
    });
}

EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
    return call("cuLaunchHostFunc", Needs::Context, [&](Call& call) {
        StreamPtr stream = any_stream(handle, call.context);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (!function) return CUDA_ERROR_INVALID_VALUE;
        call.note("stream=%llu", number(stream));
        Command command;
        command.type = WorkType::Host;
        command.name = "host function";
        command.host = function;
        command.host_data = data;
        return submit(stream, std::move(command));
    });
}

EXPORT CUresult cuEventCreate(CUevent* out, unsigned flags) {
    return call("cuEventCreate", Needs::Context, [&](Call& call) {
        if (!out || (flags & ~7u)) return CUDA_ERROR_INVALID_VALUE;
        if ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_VALUE;
        auto event = std::make_shared<Event>();
        event->id = state().next_event++;
        event->context = call.context;
        event->flags = flags;
        if ((flags & CU_EVENT_INTERPROCESS) && !make_interprocess(*event)) return CUDA_ERROR_OUT_OF_MEMORY;
        void* handle = state().handle();
        state().events[handle] = event;
        *out = static_cast<CUevent>(handle);
        call.note("event=%llu flags=%u", (unsigned long long)event->id, flags);
        return CUDA_SUCCESS;
    });
}

// Waits that were given to streams keep the record.
EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
    return call("cuEventDestroy_v2", Needs::ContextEvenBroken, [&](Call& call) {
        auto found = state().events.find(handle);
        if (found == state().events.end()) return CUDA_ERROR_INVALID_HANDLE;
        call.note("event=%llu", (unsigned long long)found->second->id);
        state().events.erase(found);
        return CUDA_SUCCESS;
    });
}

static CUresult record(Call& call, CUevent recorded, CUstream handle) {
    StreamPtr stream = any_stream(handle, call.context);
    auto event = find_event(recorded);
    if (!stream || !event || event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
    call.note("event=%llu stream=%llu", (unsigned long long)event->id, number(stream));
    CUresult captured = CUDA_SUCCESS;
    if (captures_record(stream, *event, captured)) return captured;
    Command command;
    command.name = "record event=" + std::to_string(event->id);
    if (event->shared) record_interprocess(*event, command);
    CUresult submitted = submit(stream, std::move(command));
    if (submitted == CUDA_SUCCESS) event->recorded = stream->last;
    return submitted;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    return call("cuEventRecord", Needs::Context, [&](Call& call) { return record(call, event, stream); });
}

EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    return call("cuEventRecordWithFlags", Needs::Context, [&](Call& call) {
        return flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(call, event, stream);
    });
}

EXPORT CUresult cuEventQuery(CUevent handle) {
    return call("cuEventQuery", Needs::Context, [&](Call& call) {
        auto event = find_event(handle);
        if (!event) return CUDA_ERROR_INVALID_HANDLE;
        call.note("event=%llu", (unsigned long long)event->id);
        CUresult allowed = look_at(*event);
        if (allowed != CUDA_SUCCESS) return allowed;
        if (event->elsewhere) return passed_elsewhere(*event) ? call.context->error : CUDA_ERROR_NOT_READY;
        if (!event->recorded || event->recorded->passed) return call.context->error;
        nudge(event->recorded);
        return call.context->error != CUDA_SUCCESS ? call.context->error : CUDA_ERROR_NOT_READY;
    });
}

EXPORT CUresult cuEventSynchronize(CUevent handle) {
    return call("cuEventSynchronize", Needs::Context, [&](Call& call) {
        auto event = find_event(handle);
        if (!event) return CUDA_ERROR_INVALID_HANDLE;
        call.note("event=%llu", (unsigned long long)event->id);
        CUresult allowed = look_at(*event);
        if (allowed != CUDA_SUCCESS) return allowed;
        while (event->elsewhere && !passed_elsewhere(*event)) state().progress.wait_for(call.lock, std::chrono::microseconds(50));
        MomentPtr moment = event->recorded; // a later record is not waited for
        if (moment) finish(call.lock, moment);
        return call.context->error;
    });
}

static CUresult elapsed(float* out, CUevent first, CUevent second) {
    auto start = find_event(first), end = find_event(second);
    if (!start || !end) return CUDA_ERROR_INVALID_HANDLE;
    if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
    if (!start->recorded || !end->recorded || start->context != end->context) return CUDA_ERROR_INVALID_HANDLE;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!start->recorded->passed || !end->recorded->passed) {
        nudge(end->recorded->passed ? start->recorded : end->recorded);
        return CUDA_ERROR_NOT_READY;
    }
    *out = float(end->recorded->milliseconds - start->recorded->milliseconds);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float* out, CUevent first, CUevent second) {
    return call("cuEventElapsedTime", Needs::Context, [&](Call&) { return elapsed(out, first, second); });
}

EXPORT CUresult cuEventElapsedTime_v2(float* out, CUevent first, CUevent second) {
    return call("cuEventElapsedTime_v2", Needs::Context, [&](Call&) { return elapsed(out, first, second); });
}
