// Virtual memory: reserved addresses, physical memory, mappings, and who may touch them.
#include "selftest.hpp"

struct Location {
    int type, id;
};
struct Properties {
    int type, exported;
    Location location;
    void* windows;
    unsigned char flags[8];
};
struct AccessOf {
    Location location;
    unsigned flags;
};
typedef unsigned long long Handle;

static const size_t PAGE = 64 << 10; // the tests' CUDA_EMULATOR_PAGE
static const int BAD = int(CUDA_ERROR_INVALID_VALUE);

static Properties properties(int device = 0) { return Properties{1, 0, {1, device}, nullptr, {}}; }

static CUdeviceptr reserve(size_t pages) {
    CUdeviceptr address = 0;
    CHECK_EQUAL(cuda("cuMemAddressReserve", &address, pages * PAGE, size_t(0), CUdeviceptr(0), 0ull), 0);
    CHECK_EQUAL(address % PAGE, CUdeviceptr(0));
    return address;
}
static int create(Handle& handle, size_t pages = 1) {
    Properties of = properties();
    return cuda("cuMemCreate", &handle, pages * PAGE, static_cast<const Properties*>(&of), 0ull);
}
static int map(CUdeviceptr at, Handle handle, size_t pages = 1) { return cuda("cuMemMap", at, pages * PAGE, size_t(0), handle, 0ull); }
static int unmap(CUdeviceptr at, size_t pages) { return cuda("cuMemUnmap", at, pages * PAGE); }
static int release(Handle handle) { return cuda("cuMemRelease", handle); }
static int set_access(CUdeviceptr at, size_t pages, unsigned flags = 3, int device = 0) {
    AccessOf access{{1, device}, flags};
    return cuda("cuMemSetAccess", at, pages * PAGE, static_cast<const AccessOf*>(&access), size_t(1));
}
// Pages with memory that lives as long as they are mapped.
static void back(CUdeviceptr at, size_t pages) {
    for (size_t page = 0; page < pages; page++) {
        Handle handle = 0;
        CHECK_EQUAL(create(handle), 0);
        CHECK_EQUAL(map(at + page * PAGE, handle), 0);
        CHECK_EQUAL(release(handle), 0);
    }
    CHECK_EQUAL(set_access(at, pages), 0);
}
static size_t used() {
    size_t free = 0, total = 0;
    CHECK_EQUAL(cuda("cuMemGetInfo_v2", &free, &total), 0);
    return total - free;
}

static void set_word(CUdeviceptr at, unsigned value) { CHECK_EQUAL(cuda("cuMemsetD32Async", at, value, size_t(1), NONE), 0); }
static unsigned word(CUdeviceptr at) { return download<unsigned>(at, 1, NONE)[0]; }

static void pages_come_and_go() {
    open_device();
    size_t granularity = 0;
    int supported = 0;
    Properties of = properties();
    CHECK_EQUAL(cuda("cuDeviceGetAttribute", &supported, 102, 0), 0);
    CHECK_EQUAL(supported, 1);
    for (int option : {0, 1}) {
        CHECK_EQUAL(cuda("cuMemGetAllocationGranularity", &granularity, static_cast<const Properties*>(&of), option), 0);
        CHECK_EQUAL(granularity, PAGE);
    }
    CUdeviceptr range = reserve(8);
    CHECK_EQUAL(used(), size_t(0));
    back(range, 6);
    CHECK_EQUAL(used(), 6 * PAGE);
    CHECK_EQUAL(word(range), 0xFFFFFFFFu); // nonsense, as any new memory
    // Pages are neighbours: one fill runs over all of them.
    CHECK_EQUAL(cuda("cuMemsetD32Async", range, 7u, 6 * PAGE / 4, NONE), 0);
    CHECK_EQUAL(word(range + 5 * PAGE + 4), 7u);
    CHECK_EQUAL(unmap(range + PAGE, 2), 0);
    CHECK_EQUAL(used(), 4 * PAGE);
    CHECK_EQUAL(word(range + PAGE - 4), 7u);
    CHECK_EQUAL(word(range + 3 * PAGE), 7u);
    back(range + PAGE, 1);
    CHECK_EQUAL(word(range + PAGE), 0xFFFFFFFFu);
    CHECK_EQUAL(unmap(range, 2), 0);
    CHECK_EQUAL(unmap(range + 3 * PAGE, 3), 0);
    CHECK_EQUAL(used(), size_t(0));
    CHECK_EQUAL(cuda("cuMemAddressFree", range, 8 * PAGE), 0);
    CHECK_EQUAL(cuda("cuDevicePrimaryCtxRelease_v2", 0), 0);
    CHECK(logged("live device=0 allocations=0 handles=0 mappings=0 ranges=0"));
}

// Memory stays while a handle or a mapping does, and looks the same wherever it is mapped.
static void handles_and_mappings() {
    open_device();
    CUdeviceptr range = reserve(4);
    Handle handle = 0;
    CHECK_EQUAL(create(handle, 2), 0);
    CHECK_EQUAL(map(range, handle, 2), 0);
    CHECK_EQUAL(map(range + 2 * PAGE, handle, 2), 0);
    CHECK_EQUAL(set_access(range, 4), 0);
    set_word(range + PAGE, 5);
    CHECK_EQUAL(word(range + 3 * PAGE), 5u);
    CHECK_EQUAL(unmap(range, 4), 0);
    CHECK_EQUAL(used(), 2 * PAGE);
    CHECK_EQUAL(map(range + 2 * PAGE, handle, 2), 0);
    CHECK_EQUAL(release(handle), 0);
    CHECK_EQUAL(used(), 2 * PAGE);
    CHECK_EQUAL(release(handle), BAD);
    CHECK_EQUAL(map(range, handle, 2), BAD);
    CHECK_EQUAL(set_access(range + 2 * PAGE, 2), 0);
    CHECK_EQUAL(word(range + 3 * PAGE), 5u);
    CHECK_EQUAL(unmap(range + 2 * PAGE, 2), 0);
    CHECK_EQUAL(used(), size_t(0));
}

static void refused_mappings() {
    open_device();
    CUdeviceptr range = reserve(4), out = 0;
    Handle handle = 0, large = 0;
    CHECK_EQUAL(create(handle), 0);
    CHECK_EQUAL(create(large, 2), 0);
    CHECK_EQUAL(map(range, large, 2), 0);
    CHECK_EQUAL(map(range, handle), BAD); // where something is
    CHECK_EQUAL(map(range + PAGE, handle), BAD);
    CHECK_EQUAL(map(range + 3 * PAGE, large, 2), BAD); // beyond the range
    CHECK_EQUAL(map(range + 2 * PAGE + 4096, handle), BAD);
    CHECK_EQUAL(map(range + 2 * PAGE, handle, 2), BAD); // more than there is
    CHECK_EQUAL(map(allocate(4 * PAGE), handle), BAD);
    CHECK_EQUAL(unmap(range, 1), BAD); // a part of a mapping
    CHECK(logged("report cuMemUnmap of 65536 bytes"));
    CHECK_EQUAL(unmap(range + PAGE, 1), BAD);
    CHECK_EQUAL(unmap(range, 3), BAD); // and what is not mapped
    CHECK_EQUAL(set_access(range, 1), BAD);
    CHECK_EQUAL(set_access(range, 3), BAD);
    CHECK_EQUAL(set_access(range, 2, 2), BAD);
    CHECK_EQUAL(set_access(range, 2, 3, 1), int(CUDA_ERROR_INVALID_DEVICE));
    CHECK_EQUAL(cuda("cuMemAddressFree", range, 4 * PAGE), BAD); // with mappings
    CHECK_EQUAL(unmap(range, 2), 0);
    CHECK_EQUAL(cuda("cuMemAddressFree", range, 3 * PAGE), BAD);
    CHECK_EQUAL(cuda("cuMemAddressFree", range, 4 * PAGE), 0);
    CHECK_EQUAL(cuda("cuMemAddressFree", range, 4 * PAGE), BAD);
    CHECK_EQUAL(map(range, handle), BAD);
    Properties of = properties(), elsewhere = properties(1);
    CHECK_EQUAL(cuda("cuMemCreate", &handle, PAGE / 2, static_cast<const Properties*>(&of), 0ull), BAD);
    CHECK_EQUAL(cuda("cuMemCreate", &handle, PAGE, static_cast<const Properties*>(&elsewhere), 0ull), int(CUDA_ERROR_INVALID_DEVICE));
    CHECK_EQUAL(cuda("cuMemAddressReserve", &out, size_t(100), size_t(0), CUdeviceptr(0), 0ull), BAD);
}

static void physical_memory_is_limited() {
    open_device();
    CUdeviceptr range = reserve(1024); // addresses are not
    back(range, 10);
    allocate(4 * PAGE);
    Handle handle = 0, more = 0;
    CHECK_EQUAL(create(handle, 3), int(CUDA_ERROR_OUT_OF_MEMORY));
    CHECK_EQUAL(create(handle, 2), 0);
    CHECK_EQUAL(create(more), int(CUDA_ERROR_OUT_OF_MEMORY));
    CUdeviceptr address = 0;
    CHECK_EQUAL(cuda("cuMemAlloc_v2", &address, size_t(1)), int(CUDA_ERROR_OUT_OF_MEMORY));
    CHECK_EQUAL(unmap(range + 3 * PAGE, 1), 0);
    CHECK_EQUAL(create(more), 0);
}

static void calls_fail_as_told() {
    open_device();
    CUdeviceptr range = 0;
    CHECK_EQUAL(cuda("cuMemAddressReserve", &range, PAGE, size_t(0), CUdeviceptr(0), 0ull), int(CUDA_ERROR_OUT_OF_MEMORY));
    range = reserve(1);
    Handle handle = 0;
    CHECK_EQUAL(create(handle), int(CUDA_ERROR_OUT_OF_MEMORY));
    CHECK_EQUAL(create(handle), 0);
    CHECK_EQUAL(map(range, handle), int(CUDA_ERROR_UNKNOWN));
    CHECK_EQUAL(map(range, handle), 0);
    CHECK_EQUAL(release(handle), int(CUDA_ERROR_UNKNOWN));
    CHECK_EQUAL(release(handle), 0);
    CHECK_EQUAL(set_access(range, 1), int(CUDA_ERROR_UNKNOWN));
    CHECK_EQUAL(set_access(range, 1), 0);
    CHECK_EQUAL(unmap(range, 1), int(CUDA_ERROR_UNKNOWN));
    CHECK_EQUAL(unmap(range, 1), 0);
    CHECK_EQUAL(cuda("cuMemAddressFree", range, PAGE), int(CUDA_ERROR_UNKNOWN));
    CHECK_EQUAL(cuda("cuMemAddressFree", range, PAGE), 0);
}

static void faults(const char* where) {
    CHECK_EQUAL(cuda("cuCtxSynchronize"), 700);
    CHECK(logged("report kernel stray_write wrote address"));
    CHECK(logged(where));
}

static void kernel_in_a_hole() {
    open_device();
    CUdeviceptr range = reserve(4);
    back(range, 1);
    back(range + 2 * PAGE, 1);
    long long inside = PAGE / 4 - 1, at = PAGE / 4;
    CHECK_EQUAL(start("stray_write", 1, 1, 0, NONE, range, inside), 0);
    CHECK_EQUAL(cuda("cuCtxSynchronize"), 0);
    CHECK_EQUAL(start("stray_write", 1, 1, 0, NONE, range, at), 0);
    faults("byte 65536 of reserved addresses without memory, a range of 262144 bytes");
}

static void kernel_past_a_range() {
    open_device();
    CUdeviceptr range = reserve(2);
    back(range, 2);
    long long at = -1;
    CHECK_EQUAL(start("stray_write", 1, 1, 0, NONE, range, at), 0);
    faults("byte -4 of the neighbourhood of reserved addresses");
}

static void kernel_without_access() {
    open_device();
    CUdeviceptr range = reserve(1);
    Handle handle = 0;
    CHECK_EQUAL(create(handle), 0);
    CHECK_EQUAL(map(range, handle), 0);
    long long at = 0;
    CHECK_EQUAL(cuda("cuMemsetD32Async", range, 1u, size_t(1), NONE), BAD);
    CHECK_EQUAL(start("stray_write", 1, 1, 0, NONE, range, at), 0);
    faults("memory that no device was given access to");
}

static void kernel_on_the_other_device() {
    open_device(1);
    CUdeviceptr range = reserve(1);
    back(range, 1); // device 0's
    long long at = 0;
    CHECK_EQUAL(start("stray_write", 1, 1, 0, NONE, range, at), 0);
    faults("memory that this device was given no access to");
}

static void access_for_the_other_device() {
    open_device(1);
    CUdeviceptr range = reserve(1);
    back(range, 1);
    CHECK_EQUAL(set_access(range, 1, 3, 1), 0);
    long long at = 0;
    CHECK_EQUAL(start("stray_write", 1, 1, 0, NONE, range, at), 0);
    CHECK_EQUAL(cuda("cuCtxSynchronize"), 0);
    CHECK_EQUAL(download<float>(range, 1, NONE)[0], 1.0f);
}

static void unmapped_while_queued() {
    open_device();
    CUdeviceptr range = reserve(1);
    back(range, 1);
    long long at = 3;
    CHECK_EQUAL(start("stray_write", 1, 1, 0, NONE, range, at), 0);
    CHECK_EQUAL(unmap(range, 1), 0);
    faults("byte 12 of reserved addresses without memory");
}

static void copies_over_an_edge() {
    Ptr context = open_device();
    CUdeviceptr range = reserve(3), other = allocate(2 * PAGE);
    back(range, 2);
    CHECK_EQUAL(cuda("cuMemcpyDtoDAsync_v2", other, range, 2 * PAGE, NONE), 0);
    CHECK_EQUAL(cuda("cuMemcpyPeerAsync", range, context, other, context, 2 * PAGE, NONE), 0);
    Ptr second = open_device(1);
    CHECK_EQUAL(cuda("cuCtxSetCurrent", context), 0);
    CHECK_EQUAL(cuda("cuMemcpyPeerAsync", range, second, other, context, 2 * PAGE, NONE), BAD);
    CHECK(logged("cuMemcpyPeerAsync names device 1 for"));
    CHECK_EQUAL(cuda("cuMemcpyDtoDAsync_v2", other, range + 4, 2 * PAGE, NONE), BAD);
    CHECK_EQUAL(unmap(range + PAGE, 1), 0);
    CHECK_EQUAL(cuda("cuCtxSynchronize"), 700); // the copies were queued
    CHECK(logged("report cuMemcpyDtoDAsync_v2 uses"));
}

static void no_virtual_memory() {
    open_device();
    int supported = 1;
    CUdeviceptr address = 0;
    Handle handle = 0;
    CHECK_EQUAL(cuda("cuDeviceGetAttribute", &supported, 102, 0), 0);
    CHECK_EQUAL(supported, 0);
    CHECK_EQUAL(cuda("cuMemAddressReserve", &address, PAGE, size_t(0), CUdeviceptr(0), 0ull), int(CUDA_ERROR_NOT_SUPPORTED));
    CHECK_EQUAL(create(handle), int(CUDA_ERROR_NOT_SUPPORTED));
}

// What a kernel leaves in mapped memory is compared, too.
static void races_in_mapped_memory() {
    open_device();
    CUdeviceptr range = reserve(1);
    back(range, 1);
    // Threads write one place each, by their number, in whatever order.
    CUdeviceptr from = allocate(128);
    upload(from, std::vector<float>(32, 2.0f), NONE);
    long long at = 0;
    CHECK_EQUAL(start("stray_read", 1, 32, 0, NONE, from, at, range), 0);
    CHECK_EQUAL(cuda("cuCtxSynchronize"), 0);
    CHECK_EQUAL(start("forgets_barrier", 1, 64, 256, NONE, range), 0);
    CHECK_EQUAL(cuda("cuCtxSynchronize"), 719);
    CHECK(logged("gives another result when its threads run in another order"));
}

const std::vector<Test> MEMORY_TESTS = {
    {"pages_come_and_go", "CUDA_EMULATOR_PAGE=64K", pages_come_and_go},
    {"handles_and_mappings", "CUDA_EMULATOR_PAGE=64K", handles_and_mappings},
    {"refused_mappings", "CUDA_EMULATOR_PAGE=64K", refused_mappings},
    {"physical_memory_is_limited", "CUDA_EMULATOR_PAGE=64K CUDA_EMULATOR_MEMORY=1M", physical_memory_is_limited},
    {"virtual_calls_fail_as_told",
     "CUDA_EMULATOR_PAGE=64K CUDA_EMULATOR_FAIL=cuMemAddressReserve:1,cuMemCreate:1,cuMemMap:1,cuMemRelease:1,cuMemSetAccess:1,cuMemUnmap:1,"
     "cuMemAddressFree:1",
     calls_fail_as_told},
    {"kernel_in_a_hole", "CUDA_EMULATOR_PAGE=64K", kernel_in_a_hole},
    {"kernel_past_a_range", "CUDA_EMULATOR_PAGE=64K", kernel_past_a_range},
    {"kernel_without_access", "CUDA_EMULATOR_PAGE=64K", kernel_without_access},
    {"kernel_on_the_other_device", "CUDA_EMULATOR_PAGE=64K CUDA_EMULATOR_DEVICES=2", kernel_on_the_other_device},
    {"access_for_the_other_device", "CUDA_EMULATOR_PAGE=64K CUDA_EMULATOR_DEVICES=2", access_for_the_other_device},
    {"unmapped_while_queued", "CUDA_EMULATOR_PAGE=64K", unmapped_while_queued},
    {"copies_over_an_edge", "CUDA_EMULATOR_PAGE=64K CUDA_EMULATOR_DEVICES=2", copies_over_an_edge},
    {"races_in_mapped_memory", "CUDA_EMULATOR_PAGE=64K CUDA_EMULATOR_TWICE=1", races_in_mapped_memory},
    {"no_virtual_memory", "CUDA_EMULATOR_PAGE=0", no_virtual_memory},
};
