// Reserved addresses, physical memory, and mappings of one to the other. The memory of all devices is one sparse file, of which a
// handle is a stretch; so what is written stays there while a handle or a mapping is left, wherever it is mapped.
#include "graphs.hpp"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

constexpr uintptr_t HOST_PAGE = 4096;

// As the driver's header has them.
struct Location {
    int type; // 1: a device
    int id;
};
struct Properties {
    int type; // 1: pinned
    int exported;
    Location location;
    void* windows;
    unsigned char flags[8];
};
struct AccessOf {
    Location location;
    unsigned flags; // 0: none, 1: read, 3: read and write
};

static Context* device_of(const Location& location) {
    auto& contexts = state().contexts;
    bool known = location.type == 1 && location.id >= 0 && size_t(location.id) < contexts.size();
    return known ? contexts[size_t(location.id)].get() : nullptr;
}

static bool is_round(uint64_t value, uint64_t unit) { return value % unit == 0; }

// What every function checks first, and the properties of those that have them.
static CUresult supported(const Properties* properties) {
    if (state().page == 0) return CUDA_ERROR_NOT_SUPPORTED;
    if (!properties || properties->type != 1) return CUDA_ERROR_INVALID_VALUE;
    if (properties->exported != 0) return CUDA_ERROR_NOT_SUPPORTED;
    return device_of(properties->location) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static int memory_file() {
    static int file = memfd_create("cuda-emulator", MFD_CLOEXEC);
    return file;
}

Physical::~Physical() {
    owner->used -= bytes;
    fallocate(memory_file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(offset), off_t(bytes));
}

static std::shared_ptr<Physical> obtain(Context* owner, uint64_t bytes) {
    static uint64_t end = 0; // stretches are not used twice: the file is sparse
    if (ftruncate(memory_file(), off_t(end + bytes)) != 0) return nullptr;
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_file(), off_t(end));
    if (at == MAP_FAILED) return nullptr;
    memset(at, POISON, bytes);
    munmap(at, bytes);
    auto memory = std::make_shared<Physical>();
    memory->owner = owner;
    memory->offset = end;
    memory->bytes = bytes;
    owner->used += bytes;
    end += bytes;
    return memory;
}

static Range* range_of(uintptr_t address) {
    auto& ranges = state().ranges;
    auto after = ranges.upper_bound(address);
    if (after == ranges.begin()) return nullptr;
    Range& range = std::prev(after)->second;
    return address < range.begin + range.bytes ? &range : nullptr;
}

// The mappings of a stretch that has nothing else: no gap, and no part of a mapping. Empty if it is not like that.
using Mappings = std::map<uintptr_t, Mapping>;
static std::vector<Mappings::iterator> whole_mappings(uintptr_t address, uint64_t bytes) {
    Range* range = range_of(address);
    std::vector<Mappings::iterator> found;
    uintptr_t next = address, end = address + bytes;
    while (range && next < end) {
        auto entry = range->mappings.find(next);
        if (entry == range->mappings.end() || entry->second.bytes > end - next) return {};
        found.push_back(entry);
        next += entry->second.bytes;
    }
    return found;
}

// How a mapping's pages are protected while commands of a device run, or of any (nullptr), or none.
static int protection(const Mapping& mapping, bool open, Context* context) {
    bool all = !context || !state().hide;
    bool reached = all ? !mapping.devices.empty() : mapping.devices.count(context->device) != 0;
    return (open || !state().hide) && reached ? PROT_READ | PROT_WRITE : PROT_NONE;
}

static void protect_range(Range& range, bool open, Context* context) {
    auto entry = range.mappings.begin();
    while (entry != range.mappings.end()) {
        int wanted = protection(entry->second, open, context);
        uintptr_t begin = entry->first, end = begin;
        // Neighbours that change alike do so in one call.
        while (entry != range.mappings.end() && entry->first == end && entry->second.protection != wanted &&
               protection(entry->second, open, context) == wanted) {
            end += entry->second.bytes;
            entry++->second.protection = wanted;
        }
        if (end == begin)
            ++entry;
        else
            mprotect(reinterpret_cast<void*>(begin), end - begin, wanted);
    }
}

void protect_virtual(bool open, Context* context) {
    for (auto& entry : state().ranges) protect_range(entry.second, open, context);
}

bool is_mapped(uintptr_t address, uint64_t bytes) {
    Range* range = range_of(address);
    if (!range) return false;
    uintptr_t next = address, end = address + std::max<uint64_t>(bytes, 1);
    while (next < end) {
        auto after = range->mappings.upper_bound(next);
        if (after == range->mappings.begin()) return false;
        auto& [begin, mapping] = *std::prev(after);
        if (mapping.devices.empty() || next >= begin + mapping.bytes) return false;
        next = begin + mapping.bytes;
    }
    return true;
}

Context* owner_of_page(uintptr_t address) {
    Range* range = range_of(address);
    if (!range) return nullptr;
    auto after = range->mappings.upper_bound(address);
    if (after == range->mappings.begin()) return nullptr;
    auto& [begin, mapping] = *std::prev(after);
    return address < begin + mapping.bytes ? mapping.memory->owner : nullptr;
}

std::vector<std::pair<uintptr_t, uint64_t>> mapped_for(Context* context) {
    std::vector<std::pair<uintptr_t, uint64_t>> found;
    for (auto& range : state().ranges)
        for (auto& [begin, mapping] : range.second.mappings)
            if (mapping.devices.count(context->device)) found.emplace_back(begin, mapping.bytes);
    return found;
}

std::string describe_virtual(uintptr_t address) {
    for (auto& entry : state().ranges) {
        const Range& range = entry.second;
        if (address < range.map || address >= range.map + range.map_bytes) continue;
        char text[200];
        const char* what = "reserved addresses without memory";
        auto after = range.mappings.upper_bound(address);
        if (address < range.begin || address >= range.begin + range.bytes)
            what = "the neighbourhood of reserved addresses";
        else if (after != range.mappings.begin() && address < std::prev(after)->first + std::prev(after)->second.bytes)
            what = std::prev(after)->second.devices.empty() ? "memory that no device was given access to" : "memory that this device was given no access to";
        snprintf(text, sizeof text, "0x%zx, byte %lld of %s, a range of %llu bytes", address, (long long)(address - range.begin), what,
                 (unsigned long long)range.bytes);
        return text;
    }
    return "";
}

void log_live(Context* context) {
    State& s = state();
    size_t mappings = 0, allocations = 0;
    for (auto& range : s.ranges) mappings += range.second.mappings.size();
    for (auto& allocation : s.allocations) allocations += allocation.second.context == context;
    log_line("live device=%d allocations=%zu handles=%zu mappings=%zu ranges=%zu", context->device, allocations, s.handles.size(), mappings,
             s.ranges.size());
    auto of_context = [=](const auto& entry) { return entry.second->context == context; };
    auto graphs = std::count_if(s.graphs.begin(), s.graphs.end(), of_context), execs = std::count_if(s.execs.begin(), s.execs.end(), of_context);
    if (graphs || execs) log_line("live device=%d graphs=%td execs=%td", context->device, graphs, execs);
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t* out, const Properties* properties, int option) {
    return call("cuMemGetAllocationGranularity", Needs::Driver, [&](Call&) {
        CUresult checked = supported(properties);
        if (checked != CUDA_SUCCESS) return checked;
        if (!out || option < 0 || option > 1) return CUDA_ERROR_INVALID_VALUE;
        *out = state().page;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr* out, size_t bytes, size_t alignment, CUdeviceptr, unsigned long long flags) {
    return call("cuMemAddressReserve", Needs::Driver, [&](Call& call) {
        call.note("bytes=%zu", bytes);
        if (state().page == 0) return CUDA_ERROR_NOT_SUPPORTED;
        if (!out || flags != 0 || bytes == 0 || !is_round(bytes, HOST_PAGE) || (alignment & (alignment - 1))) return CUDA_ERROR_INVALID_VALUE;
        uint64_t unit = std::max<uint64_t>(alignment, state().page);
        Range range;
        range.bytes = bytes;
        range.map_bytes = bytes + unit + 2 * GUARD;
        void* map = mmap(nullptr, range.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
        range.map = reinterpret_cast<uintptr_t>(map);
        range.begin = (range.map + GUARD + unit - 1) / unit * unit;
        state().ranges[range.begin] = range;
        *out = range.begin;
        call.note("ptr=0x%zx", range.begin);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    return call("cuMemAddressFree", Needs::Driver, [&](Call& call) {
        call.note("ptr=0x%llx bytes=%zu", address, bytes);
        auto found = state().ranges.find(address);
        if (found == state().ranges.end() || found->second.bytes != bytes || !found->second.mappings.empty()) {
            report("%s of %s", call.name, describe_address(address).c_str());
            return CUDA_ERROR_INVALID_VALUE;
        }
        Allocation gone;
        gone.begin = found->second.begin;
        gone.bytes = found->second.bytes;
        gone.map = found->second.map;
        gone.map_bytes = found->second.map_bytes;
        state().ranges.erase(found);
        keep_out_of_reach(gone);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemCreate(unsigned long long* out, size_t bytes, const Properties* properties, unsigned long long flags) {
    return call("cuMemCreate", Needs::Driver, [&](Call& call) {
        call.note("bytes=%zu", bytes);
        CUresult checked = supported(properties);
        if (checked != CUDA_SUCCESS) return checked;
        State& s = state();
        if (!out || flags != 0 || bytes == 0 || !is_round(bytes, s.page)) return CUDA_ERROR_INVALID_VALUE;
        Context* owner = device_of(properties->location);
        if (bytes > s.memory || owner->used + bytes > s.memory) return CUDA_ERROR_OUT_OF_MEMORY;
        auto memory = obtain(owner, bytes);
        if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
        *out = reinterpret_cast<unsigned long long>(s.handle());
        s.handles[*out] = memory;
        call.note("device=%d handle=0x%llx", owner->device, *out);
        return CUDA_SUCCESS;
    });
}

// Memory that is mapped stays until it is not.
EXPORT CUresult cuMemRelease(unsigned long long handle) {
    return call("cuMemRelease", Needs::Driver, [&](Call& call) {
        call.note("handle=0x%llx", handle);
        return state().handles.erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    });
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags) {
    return call("cuMemMap", Needs::Driver, [&](Call& call) {
        call.note("ptr=0x%llx bytes=%zu handle=0x%llx", address, bytes, handle);
        State& s = state();
        auto found = s.handles.find(handle);
        Range* range = range_of(address);
        if (found == s.handles.end() || !range || flags != 0 || offset != 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
        if (!is_round(address, s.page) || !is_round(bytes, s.page) || bytes > found->second->bytes) return CUDA_ERROR_INVALID_VALUE;
        uintptr_t end = address + bytes;
        auto after = range->mappings.lower_bound(address);
        bool before = after != range->mappings.begin() && std::prev(after)->first + std::prev(after)->second.bytes > address;
        if (end > range->begin + range->bytes || before || (after != range->mappings.end() && after->first < end)) {
            report("%s of %zu bytes at 0x%llx, where something is mapped or nothing is reserved", call.name, bytes, address);
            return CUDA_ERROR_INVALID_VALUE;
        }
        void* at = mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory_file(), off_t(found->second->offset));
        if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
        range->mappings[address] = Mapping{found->second, bytes, {}, PROT_NONE};
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const AccessOf* access, size_t count) {
    return call("cuMemSetAccess", Needs::Driver, [&](Call& call) {
        call.note("ptr=0x%llx bytes=%zu", address, bytes);
        auto mappings = whole_mappings(address, bytes);
        if (mappings.empty() || !access || count == 0) return CUDA_ERROR_INVALID_VALUE;
        for (size_t i = 0; i < count; i++) {
            if (!device_of(access[i].location)) return CUDA_ERROR_INVALID_DEVICE;
            if (access[i].flags == 1) return CUDA_ERROR_NOT_SUPPORTED;
            if (access[i].flags != 0 && access[i].flags != 3) return CUDA_ERROR_INVALID_VALUE;
        }
        for (auto entry : mappings)
            for (size_t i = 0; i < count; i++) {
                auto& devices = entry->second.devices;
                if (access[i].flags) devices.insert(access[i].location.id);
                else devices.erase(access[i].location.id);
            }
        protect_range(*range_of(address), false, nullptr);
        return CUDA_SUCCESS;
    });
}

// Waits for nothing: a queued command that still uses the memory is reported when it runs.
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    return call("cuMemUnmap", Needs::Driver, [&](Call& call) {
        call.note("ptr=0x%llx bytes=%zu", address, bytes);
        auto mappings = whole_mappings(address, bytes);
        if (mappings.empty()) {
            report("%s of %zu bytes at 0x%llx, which are not whole mappings", call.name, bytes, address);
            return CUDA_ERROR_INVALID_VALUE;
        }
        void* at = mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        if (at == MAP_FAILED) return CUDA_ERROR_UNKNOWN;
        Range* range = range_of(address);
        for (auto entry : mappings) range->mappings.erase(entry);
        return CUDA_SUCCESS;
    });
}
