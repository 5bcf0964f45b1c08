// Device and mapped host memory: each allocation ends at a guard page, is poisoned when it is made, and is out of reach
// once it is freed.
#include "state.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <sys/mman.h>
#include <unistd.h>

constexpr uintptr_t PAGE = 4096;
constexpr uintptr_t ALIGNMENT = 256;      // of what the driver hands out
constexpr size_t KEPT = 4096;             // freed allocations whose addresses stay unused
constexpr uint64_t KEPT_BYTES = 8ull << 40; // of addresses
constexpr size_t CHECKED = 64;            // ends of allocations looked at after each kernel, in turn
constexpr unsigned char CANARY = 0xFD;    // between an allocation's end and its guard

static uintptr_t round_up(uintptr_t value, uintptr_t unit) { return (value + unit - 1) / unit * unit; }

static bool some_are_open = false;
static std::set<uintptr_t> on_devices; // the allocations that are no host memory

// False if the system has no room for another range with rights of its own.
static bool protect(Allocation& allocation, bool open) {
    if (allocation.open == open) return true;
    auto* begin = reinterpret_cast<void*>(allocation.map + GUARD);
    if (mprotect(begin, allocation.map_bytes - 2 * GUARD, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) return false;
    allocation.open = open;
    return true;
}

// A file of poison, whose pages stand in for memory until they are written: a large allocation costs no more than a small one.
constexpr size_t PATTERN = 4 << 20;

static int poison_file() {
    static const int file = [] {
        int made = memfd_create("poison", MFD_CLOEXEC);
        if (made < 0 || ftruncate(made, PATTERN) != 0) return -1;
        void* content = mmap(nullptr, PATTERN, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
        if (content == MAP_FAILED) return -1;
        memset(content, POISON, PATTERN);
        munmap(content, PATTERN);
        return made;
    }();
    return file;
}

static void poison(uintptr_t begin, size_t bytes) {
    uintptr_t end = begin + bytes;
    uintptr_t from = round_up(begin, PAGE), to = end / PAGE * PAGE;
    if (bytes < PATTERN / 4 || poison_file() < 0) from = to = end;
    memset(reinterpret_cast<void*>(begin), POISON, from - begin);
    for (uintptr_t at = from; at < to; at += PATTERN) {
        auto* pages = reinterpret_cast<void*>(at);
        size_t size = std::min<size_t>(PATTERN, to - at);
        if (mmap(pages, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, poison_file(), 0) == MAP_FAILED)
            memset(pages, POISON, size);
    }
    memset(reinterpret_cast<void*>(to), POISON, end - to);
}

static bool map_guarded(Allocation& allocation) {
    uintptr_t used = round_up(allocation.bytes, ALIGNMENT);
    uintptr_t pages = round_up(used, PAGE);
    allocation.map_bytes = pages + 2 * GUARD;
    void* map = mmap(nullptr, allocation.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return false;
    allocation.map = reinterpret_cast<uintptr_t>(map);
    allocation.begin = allocation.map + GUARD + pages - used;
    allocation.slack = used - allocation.bytes;
    allocation.open = false;
    if (!protect(allocation, true)) {
        munmap(map, allocation.map_bytes);
        return false;
    }
    poison(allocation.begin, allocation.bytes);
    memset(reinterpret_cast<void*>(allocation.begin + allocation.bytes), CANARY, allocation.slack);
    return true;
}

static void unmap(const Allocation& allocation) { munmap(reinterpret_cast<void*>(allocation.map), allocation.map_bytes); }

void keep_out_of_reach(const Allocation& allocation) {
    static uint64_t kept = 0;
    auto& freed = state().freed;
    freed.push_back(allocation);
    kept += allocation.map_bytes;
    while (freed.size() > KEPT || kept > KEPT_BYTES) {
        unmap(freed.front());
        kept -= freed.front().map_bytes;
        freed.pop_front();
    }
}

// Gives the pages back and keeps the addresses.
static void put_out_of_reach(const Allocation& allocation) {
    mmap(reinterpret_cast<void*>(allocation.map), allocation.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    keep_out_of_reach(allocation);
}

const Allocation* find_allocation(uintptr_t address, uint64_t bytes) {
    auto& allocations = state().allocations;
    auto after = allocations.upper_bound(address);
    if (after == allocations.begin()) return nullptr;
    const Allocation& allocation = std::prev(after)->second;
    uintptr_t offset = address - allocation.begin;
    return offset <= allocation.bytes && bytes <= allocation.bytes - offset ? &allocation : nullptr;
}

bool has_memory(uintptr_t address, uint64_t bytes) { return find_allocation(address, bytes) || is_mapped(address, bytes); }

std::vector<std::pair<uintptr_t, uint64_t>> device_memory(Context* context) {
    std::vector<std::pair<uintptr_t, uint64_t>> all = mapped_for(context);
    for (auto& entry : state().allocations)
        if (entry.second.context == context && !entry.second.host) all.emplace_back(entry.second.begin, entry.second.bytes);
    return all;
}

static std::string place(const Allocation& allocation, uintptr_t address, const char* kind) {
    char text[160];
    unsigned long long bytes = allocation.bytes;
    if (address < allocation.begin)
        snprintf(text, sizeof text, "0x%zx, %llu bytes before %s of %llu bytes", address, (unsigned long long)(allocation.begin - address), kind, bytes);
    else if (address >= allocation.begin + allocation.bytes)
        snprintf(text, sizeof text, "0x%zx, %llu bytes past the end of %s of %llu bytes", address,
                 (unsigned long long)(address - allocation.begin - allocation.bytes), kind, bytes);
    else
        snprintf(text, sizeof text, "0x%zx, byte %llu of %s of %llu bytes", address, (unsigned long long)(address - allocation.begin), kind, bytes);
    return text;
}

std::string describe_address(uintptr_t address) {
    auto covers = [&](const Allocation& a) { return address >= a.map && address < a.map + a.map_bytes; };
    State& s = state();
    // Newest first, since addresses are used again in the end.
    for (auto freed = s.freed.rbegin(); freed != s.freed.rend(); ++freed)
        if (covers(*freed)) return place(*freed, address, "freed memory");
    for (auto& entry : s.allocations)
        if (covers(entry.second)) {
            std::string kind = entry.second.host ? "an allocation of host memory" : "an allocation";
            if (!entry.second.host && s.contexts.size() > 1) kind += " on device " + std::to_string(entry.second.context->device);
            return place(entry.second, address, kind.c_str());
        }
    std::string reserved = describe_virtual(address);
    if (!reserved.empty()) return reserved;
    char text[64];
    snprintf(text, sizeof text, "0x%zx, which is in no allocation", address);
    return text;
}

// What is open now: the memory of one device, or of all.
static Context* open_context = nullptr;

void open_memory(Context* context) {
    if (!state().hide || (some_are_open && open_context == context)) return;
    for (uintptr_t begin : on_devices) {
        Allocation& allocation = state().allocations[begin];
        protect(allocation, !context || allocation.context == context);
    }
    protect_virtual(true, context);
    some_are_open = true;
    open_context = context;
}

void close_memory() {
    if (!state().hide || !some_are_open) return;
    some_are_open = false;
    for (uintptr_t begin : on_devices) protect(state().allocations[begin], false);
    protect_virtual(false, nullptr);
}

static void check_slack_of(Allocation& allocation, const char* command) {
    if (allocation.slack == 0 || !allocation.open) return;
    auto* end = reinterpret_cast<unsigned char*>(allocation.begin + allocation.bytes);
    if (std::all_of(end, end + allocation.slack, [](unsigned char byte) { return byte == CANARY; })) return;
    report("%s wrote past the end of an allocation of %llu bytes", command, (unsigned long long)allocation.bytes);
    memset(end, CANARY, allocation.slack);
    if (allocation.context->error == CUDA_SUCCESS) allocation.context->error = CUDA_ERROR_ILLEGAL_ADDRESS;
}

void check_slack(const std::string& command) {
    static uintptr_t cursor = 0;
    auto& allocations = state().allocations;
    size_t checked = std::min(allocations.size(), CHECKED);
    auto entry = allocations.upper_bound(cursor);
    for (size_t i = 0; i < checked; i++) {
        if (entry == allocations.end()) entry = allocations.begin();
        check_slack_of(entry->second, command.c_str());
        cursor = entry++->first;
    }
}

static void release(std::map<uintptr_t, Allocation>::iterator entry) {
    Allocation allocation = entry->second;
    if (allocation.file >= 0) {
        // Who still has it open elsewhere sees that it is gone.
        protect(allocation, true);
        memset(reinterpret_cast<void*>(allocation.begin), POISON, allocation.bytes);
        close(allocation.file);
    }
    state().allocations.erase(entry);
    on_devices.erase(allocation.begin);
    if (!allocation.host && !allocation.elsewhere) allocation.context->used -= round_up(allocation.bytes, ALIGNMENT);
    put_out_of_reach(allocation);
}

void release_context_memory(Context* context) {
    auto& allocations = state().allocations;
    for (auto entry = allocations.begin(); entry != allocations.end();) {
        auto next = std::next(entry);
        if (entry->second.context == context) release(entry);
        entry = next;
    }
}

static CUresult allocate(Context* context, uint64_t bytes, bool host, uintptr_t& out) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    uint64_t used = round_up(bytes, ALIGNMENT);
    if (!host && (bytes > state().memory || context->used + used > state().memory)) return CUDA_ERROR_OUT_OF_MEMORY;
    Allocation allocation;
    allocation.bytes = bytes;
    allocation.context = context;
    allocation.host = host;
    if (!map_guarded(allocation)) {
        report("the system has no room for another guarded allocation; there are %zu", state().allocations.size());
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!host) {
        context->used += used;
        on_devices.insert(allocation.begin);
    }
    if (!host && state().hide) protect(allocation, false);
    state().allocations[allocation.begin] = allocation;
    out = allocation.begin;
    return CUDA_SUCCESS;
}

// Its pages become those of a file, with their content.
bool share_allocation(Allocation& allocation) {
    if (allocation.file >= 0) return true;
    bool was_open = allocation.open;
    uint64_t bytes = allocation.map_bytes - 2 * GUARD;
    auto* begin = reinterpret_cast<unsigned char*>(allocation.map + GUARD);
    int file = memfd_create("memory", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, off_t(bytes)) != 0 || !protect(allocation, true) || pwrite(file, begin, bytes, 0) != ssize_t(bytes) ||
        mmap(begin, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
        if (file >= 0) close(file);
        return false;
    }
    allocation.file = file;
    return was_open || protect(allocation, false);
}

uintptr_t open_allocation(Context* context, uint64_t bytes, int file) {
    Allocation allocation;
    allocation.bytes = bytes;
    allocation.context = context;
    allocation.elsewhere = true;
    if (!map_guarded(allocation)) return 0;
    auto* begin = reinterpret_cast<void*>(allocation.map + GUARD);
    if (mmap(begin, allocation.map_bytes - 2 * GUARD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
        unmap(allocation);
        return 0;
    }
    if (state().hide) protect(allocation, false);
    on_devices.insert(allocation.begin);
    state().allocations[allocation.begin] = allocation;
    return allocation.begin;
}

bool close_allocation(uintptr_t address) {
    auto found = state().allocations.find(address);
    if (found == state().allocations.end() || !found->second.elsewhere) return false;
    release(found);
    return true;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
    return call("cuMemAlloc_v2", Needs::Context, [&](Call& call) {
        uintptr_t address = 0;
        CUresult result = unsafe_call();
        if (result == CUDA_SUCCESS) result = out ? allocate(call.context, bytes, false, address) : CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS) *out = address;
        call.note("bytes=%zu ptr=0x%zx", bytes, address);
        return result;
    });
}

static CUresult free_memory(Call& call, uintptr_t address, bool host) {
    call.note("ptr=0x%zx", address);
    if (address == 0) return CUDA_SUCCESS;
    CUresult allowed = unsafe_call();
    if (allowed == CUDA_SUCCESS) allowed = await_host(call.lock, call.context, call.name);
    if (allowed != CUDA_SUCCESS) return allowed;
    auto found = state().allocations.find(address);
    if (found == state().allocations.end() || found->second.host != host || found->second.elsewhere) {
        report("%s of %s", call.name, describe_address(address).c_str());
        return CUDA_ERROR_INVALID_VALUE;
    }
    release(found);
    return CUDA_SUCCESS;
}

// Runs nothing: a queued command that still uses the memory is reported when it runs.
EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    return call("cuMemFree_v2", Needs::ContextEvenBroken, [&](Call& call) { return free_memory(call, address, false); });
}

EXPORT CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
    return call("cuMemGetInfo_v2", Needs::Context, [&](Call& call) {
        if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
        *total = state().memory;
        *free = state().memory - call.context->used;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* begin, size_t* bytes, CUdeviceptr address) {
    return call("cuMemGetAddressRange_v2", Needs::Context, [&](Call&) {
        const Allocation* allocation = find_allocation(address, 1);
        if (!allocation) return CUDA_ERROR_INVALID_VALUE;
        if (begin) *begin = allocation->begin;
        if (bytes) *bytes = allocation->bytes;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
    return call("cuMemHostAlloc", Needs::Context, [&](Call& call) {
        if (!out || (flags & ~7u)) return CUDA_ERROR_INVALID_VALUE;
        uintptr_t address = 0;
        CUresult result = unsafe_call();
        if (result == CUDA_SUCCESS) result = allocate(call.context, bytes, true, address);
        if (result == CUDA_SUCCESS) *out = reinterpret_cast<void*>(address);
        call.note("bytes=%zu ptr=0x%zx", bytes, address);
        return result;
    });
}

EXPORT CUresult cuMemFreeHost(void* address) {
    return call("cuMemFreeHost", Needs::ContextEvenBroken, [&](Call& call) { return free_memory(call, reinterpret_cast<uintptr_t>(address), true); });
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* address, unsigned flags) {
    return call("cuMemHostGetDevicePointer_v2", Needs::Context, [&](Call&) {
        const Allocation* allocation = find_allocation(reinterpret_cast<uintptr_t>(address), 1);
        if (!out || flags != 0 || !allocation || !allocation->host) return CUDA_ERROR_INVALID_VALUE;
        *out = reinterpret_cast<uintptr_t>(address);
        return CUDA_SUCCESS;
    });
}
