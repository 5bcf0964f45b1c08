// Memory and events that other processes open, as one machine's do: both are files in memory, which the other process finds
// under /proc. A handle is the number of the process that made it and of the file there.
#include "state.hpp"

#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

// What an interprocess event's file holds.
struct SharedEvent {
    uint64_t recorded, passed; // how often
};

struct Handle {
    uint64_t kind; // so that one of memory is none of an event
    int64_t process, file;
    uint64_t bytes;
};
constexpr uint64_t MEMORY = 0x6d656d, EVENT = 0x657674;

static CUresult write_handle(unsigned char* out, const Handle& handle) {
    memset(out, 0, 64);
    memcpy(out, &handle, sizeof handle);
    return CUDA_SUCCESS;
}

// The file of another process that a handle names.
static CUresult open_file(const IpcHandle& bytes, uint64_t kind, Handle& handle, int& file) {
    memcpy(&handle, bytes.reserved, sizeof handle);
    if (handle.kind != kind) return CUDA_ERROR_INVALID_VALUE;
    // A process does not open what is its own.
    if (handle.process == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
    file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    return file < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static SharedEvent* map_event(int file) {
    void* map = mmap(nullptr, sizeof(SharedEvent), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return map == MAP_FAILED ? nullptr : static_cast<SharedEvent*>(map);
}

Event::~Event() {
    if (file >= 0) close(file);
}

// A device goes on by itself: what other processes wait for may not depend on whether this one looks.
static void run_for_others() {
    for (;;) {
        std::this_thread::sleep_for(std::chrono::microseconds(500));
        std::lock_guard<std::mutex> held(state().lock);
        for (auto& entry : state().events) {
            const Event& event = *entry.second;
            if (event.shared && event.recorded && !event.recorded->passed) nudge(event.recorded);
        }
    }
}

bool make_interprocess(Event& event) {
    static std::once_flag started;
    event.file = memfd_create("event", MFD_CLOEXEC);
    if (event.file < 0 || ftruncate(event.file, sizeof(SharedEvent)) != 0) return false;
    event.shared = map_event(event.file);
    std::call_once(started, [] { std::thread(run_for_others).detach(); });
    return event.shared;
}

void record_interprocess(const Event& event, Command& command) {
    SharedEvent* shared = event.shared;
    uint64_t record = __atomic_add_fetch(&shared->recorded, 1, __ATOMIC_ACQ_REL);
    command.run = [=](uint64_t) {
        __atomic_store_n(&shared->passed, record, __ATOMIC_RELEASE);
        return CUDA_SUCCESS;
    };
}

bool passed_elsewhere(const Event& event) {
    return __atomic_load_n(&event.shared->passed, __ATOMIC_ACQUIRE) >= __atomic_load_n(&event.shared->recorded, __ATOMIC_ACQUIRE);
}

void await_elsewhere(const Event& event, Command& command) {
    SharedEvent* shared = event.shared;
    uint64_t record = __atomic_load_n(&shared->recorded, __ATOMIC_ACQUIRE);
    command.type = WorkType::Memory;
    command.condition = [=] { return __atomic_load_n(&shared->passed, __ATOMIC_ACQUIRE) >= record; };
}

EXPORT CUresult cuIpcGetEventHandle(unsigned char* out, CUevent handle) {
    return call("cuIpcGetEventHandle", Needs::Context, [&](Call& call) {
        auto found = state().events.find(handle);
        if (found == state().events.end()) return CUDA_ERROR_INVALID_HANDLE;
        const Event& event = *found->second;
        if (!out || event.file < 0) return CUDA_ERROR_INVALID_VALUE;
        call.note("event=%llu", (unsigned long long)event.id);
        return write_handle(out, Handle{EVENT, getpid(), event.file, sizeof(SharedEvent)});
    });
}

EXPORT CUresult cuIpcOpenEventHandle(CUevent* out, IpcHandle bytes) {
    return call("cuIpcOpenEventHandle", Needs::Context, [&](Call& call) {
        if (!out) return CUDA_ERROR_INVALID_VALUE;
        Handle handle;
        int file = -1;
        CUresult result = open_file(bytes, EVENT, handle, file);
        if (result != CUDA_SUCCESS) return result;
        auto event = std::make_shared<Event>();
        event->shared = map_event(file);
        close(file);
        if (!event->shared) return CUDA_ERROR_INVALID_VALUE;
        event->id = state().next_event++;
        event->context = call.context;
        event->flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
        event->elsewhere = true;
        void* key = state().handle();
        state().events[key] = event;
        *out = static_cast<CUevent>(key);
        call.note("event=%llu process=%lld", (unsigned long long)event->id, (long long)handle.process);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuIpcGetMemHandle(unsigned char* out, CUdeviceptr address) {
    return call("cuIpcGetMemHandle", Needs::Context, [&](Call& call) {
        call.note("ptr=0x%llx", address);
        auto found = state().allocations.find(address);
        // Neither mapped pages nor the host's memory can be had so.
        if (!out || found == state().allocations.end()) return CUDA_ERROR_INVALID_VALUE;
        Allocation& allocation = found->second;
        if (allocation.host || allocation.elsewhere || !share_allocation(allocation)) return CUDA_ERROR_INVALID_VALUE;
        return write_handle(out, Handle{MEMORY, getpid(), allocation.file, allocation.bytes});
    });
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* out, IpcHandle bytes, unsigned flags) {
    return call("cuIpcOpenMemHandle_v2", Needs::Context, [&](Call& call) {
        if (!out || flags != 1) return CUDA_ERROR_INVALID_VALUE;
        Handle handle;
        int file = -1;
        CUresult result = open_file(bytes, MEMORY, handle, file);
        if (result != CUDA_SUCCESS) return result;
        uintptr_t address = open_allocation(call.context, handle.bytes, file);
        close(file);
        if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
        *out = address;
        call.note("ptr=0x%zx bytes=%llu process=%lld", address, (unsigned long long)handle.bytes, (long long)handle.process);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    return call("cuIpcCloseMemHandle", Needs::ContextEvenBroken, [&](Call& call) {
        call.note("ptr=0x%llx", address);
        return close_allocation(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    });
}
