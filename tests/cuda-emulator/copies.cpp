// Copies and fills.
#include "state.hpp"

#include <cstring>

// A part of an allocation that a queued command will touch.
struct Span {
    uintptr_t address;
    uint64_t bytes;
    bool valid() const { return has_memory(address, bytes); }
    void* data() const { return reinterpret_cast<void*>(address); }
};

// Runs when the command does: the memory may have been freed since it was queued.
static CUresult check(const char* name, uint64_t stream, std::initializer_list<Span> spans) {
    for (const Span& span : spans)
        if (!span.valid()) {
            report("%s uses %s; stream %llu", name, describe_address(span.address).c_str(), (unsigned long long)stream);
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
    open_memory(nullptr);
    return CUDA_SUCCESS;
}

static Command named(WorkType type, const char* name, uint64_t bytes) {
    Command command;
    command.type = type;
    command.name = std::string(name) + " bytes=" + std::to_string(bytes);
    return command;
}

// Between places that the driver knows; host memory of its own among them.
static CUresult copy_known(Call& call, const char* name, uintptr_t to, uintptr_t from, uint64_t bytes, CUstream handle) {
    StreamPtr stream = find_stream(handle, call.context);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    call.note("stream=%llu dst=0x%zx src=0x%zx bytes=%llu", (unsigned long long)stream->id, to, from, (unsigned long long)bytes);
    if (bytes == 0) return CUDA_SUCCESS;
    Span target{to, bytes}, source{from, bytes};
    if (!target.valid() || !source.valid()) return CUDA_ERROR_INVALID_VALUE;
    Command command = named(WorkType::Copy, name, bytes);
    command.run = [=](uint64_t id) {
        CUresult checked = check(name, id, {target, source});
        if (checked == CUDA_SUCCESS) memmove(target.data(), source.data(), bytes);
        return checked;
    };
    return submit(stream, std::move(command));
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return call("cuMemcpyDtoDAsync_v2", Needs::Context, [&](Call& call) { return copy_known(call, call.name, to, from, bytes, stream); });
}

// The context whose memory it is, by its first byte; nullptr if it is nobody's, or host memory, which is everybody's.
static Context* owner(uintptr_t address) {
    if (const Allocation* allocation = find_allocation(address, 1)) return allocation->host ? nullptr : allocation->context;
    return owner_of_page(address);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream) {
    return call("cuMemcpyPeerAsync", Needs::Context, [&](Call& call) {
        const std::pair<uintptr_t, CUcontext> ends[] = {{to, to_context}, {from, from_context}};
        for (auto& [address, handle] : ends) {
            Context* named = known_context(handle);
            if (!named || named->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
            Context* owned = bytes ? owner(address) : nullptr;
            if (!owned || owned == named) continue;
            report("%s names device %d for address 0x%zx, which is of device %d", call.name, named->device, address, owned->device);
            return CUDA_ERROR_INVALID_VALUE;
        }
        return copy_known(call, call.name, to, from, bytes, stream);
    });
}

// From the driver's own host memory the bytes are read when the command runs; from other memory before the call returns, but for
// a graph's node, which reads both when it runs.
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream handle) {
    return call("cuMemcpyHtoDAsync_v2", Needs::Context, [&](Call& call) {
        auto address = reinterpret_cast<uintptr_t>(from);
        if (has_memory(address, 1)) return copy_known(call, call.name, to, address, bytes, handle);
        StreamPtr stream = find_stream(handle, call.context);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        call.note("stream=%llu dst=0x%llx src=pageable bytes=%zu", (unsigned long long)stream->id, to, bytes);
        if (bytes == 0) return CUDA_SUCCESS;
        Span target{to, bytes};
        if (!from || !target.valid()) return CUDA_ERROR_INVALID_VALUE;
        auto* begin = static_cast<const unsigned char*>(from);
        auto staged = std::make_shared<std::vector<unsigned char>>();
        if (!stream->capture) staged->assign(begin, begin + bytes);
        Command command = named(WorkType::Copy, call.name, bytes);
        const char* name = call.name;
        command.run = [=](uint64_t id) {
            CUresult checked = check(name, id, {target});
            if (checked == CUDA_SUCCESS) memcpy(target.data(), staged->empty() ? begin : staged->data(), bytes);
            return checked;
        };
        return submit(stream, std::move(command));
    });
}

// Into the driver's own host memory when the command runs; into other memory before the call returns.
EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream handle) {
    return call("cuMemcpyDtoHAsync_v2", Needs::Context, [&](Call& call) {
        auto address = reinterpret_cast<uintptr_t>(to);
        if (has_memory(address, 1)) return copy_known(call, call.name, address, from, bytes, handle);
        StreamPtr stream = find_stream(handle, call.context);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        call.note("stream=%llu dst=pageable src=0x%llx bytes=%zu", (unsigned long long)stream->id, from, bytes);
        if (bytes == 0) return CUDA_SUCCESS;
        Span source{from, bytes};
        if (!to || !source.valid()) return CUDA_ERROR_INVALID_VALUE;
        Command command = named(WorkType::Copy, call.name, bytes);
        const char* name = call.name;
        command.run = [=](uint64_t id) {
            CUresult checked = check(name, id, {source});
            if (checked == CUDA_SUCCESS) memcpy(to, source.data(), bytes);
            return checked;
        };
        CUresult submitted = submit(stream, std::move(command));
        if (submitted != CUDA_SUCCESS || stream->capture) return submitted;
        MomentPtr moment = stream->last;
        finish(call.lock, moment);
        return call.context->error;
    });
}

template <class Word> static CUresult fill(Call& call, uintptr_t to, Word value, uint64_t count, CUstream handle) {
    StreamPtr stream = find_stream(handle, call.context);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    uint64_t bytes = count * sizeof(Word);
    call.note("stream=%llu dst=0x%zx bytes=%llu", (unsigned long long)stream->id, to, (unsigned long long)bytes);
    if (count == 0) return CUDA_SUCCESS;
    Span target{to, bytes};
    if (to % sizeof(Word) || !target.valid()) return CUDA_ERROR_INVALID_VALUE;
    Command command = named(WorkType::Fill, call.name, bytes);
    const char* name = call.name;
    command.run = [=](uint64_t id) {
        CUresult checked = check(name, id, {target});
        if (checked != CUDA_SUCCESS) return checked;
        for (uint64_t i = 0; i < count; i++) static_cast<Word*>(target.data())[i] = value;
        return CUDA_SUCCESS;
    };
    return submit(stream, std::move(command));
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return call("cuMemsetD8Async", Needs::Context, [&](Call& call) { return fill<unsigned char>(call, to, value, count, stream); });
}

EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    return call("cuMemsetD32Async", Needs::Context, [&](Call& call) { return fill<unsigned>(call, to, value, count, stream); });
}
