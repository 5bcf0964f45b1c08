// Driver, devices, primary contexts.
#include "graphs.hpp"

#include <cstdio>
#include <cstring>

static CUcontext handle_of(Context* context) { return reinterpret_cast<CUcontext>(context); }

static Context* device_context(CUdevice device) {
    auto& contexts = state().contexts;
    return device >= 0 && size_t(device) < contexts.size() ? contexts[size_t(device)].get() : nullptr;
}

Context* known_context(CUcontext handle) {
    for (auto& context : state().contexts)
        if (handle_of(context.get()) == handle) return context.get();
    return nullptr;
}

EXPORT CUresult cuInit(unsigned flags) {
    return call("cuInit", Needs::Nothing, [&](Call&) {
        if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
        if (state().contexts.empty()) return CUDA_ERROR_NO_DEVICE;
        if (!state().initialised) install_fault_handler();
        state().initialised = true;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDriverGetVersion(int* version) {
    return call("cuDriverGetVersion", Needs::Nothing, [&](Call&) {
        if (!version) return CUDA_ERROR_INVALID_VALUE;
        *version = state().version;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceGetCount(int* count) {
    return call("cuDeviceGetCount", Needs::Driver, [&](Call&) {
        if (!count) return CUDA_ERROR_INVALID_VALUE;
        *count = int(state().contexts.size());
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    return call("cuDeviceGet", Needs::Driver, [&](Call& call) {
        call.note("ordinal=%d", ordinal);
        if (!device) return CUDA_ERROR_INVALID_VALUE;
        if (!device_context(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
        *device = ordinal;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
    return call("cuDeviceGetName", Needs::Driver, [&](Call&) {
        if (!device_context(device)) return CUDA_ERROR_INVALID_DEVICE;
        if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
        snprintf(name, size_t(length), "Emulated CUDA device %d", device);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    return call("cuDeviceTotalMem_v2", Needs::Driver, [&](Call&) {
        if (!device_context(device)) return CUDA_ERROR_INVALID_DEVICE;
        if (!bytes) return CUDA_ERROR_INVALID_VALUE;
        *bytes = state().memory;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceGetUuid_v2(unsigned char* uuid, CUdevice device) {
    return call("cuDeviceGetUuid_v2", Needs::Driver, [&](Call&) {
        if (!device_context(device)) return CUDA_ERROR_INVALID_DEVICE;
        if (!uuid) return CUDA_ERROR_INVALID_VALUE;
        memset(uuid, 0xE0 + device, 16);
        return CUDA_SUCCESS;
    });
}

static int attribute_value(int attribute, CUdevice device) {
    switch (attribute) {
    case 1: return 1024;             // threads of a block
    case 2: case 3: return 1024;     // of its x, y
    case 4: return 64;               // and z
    case 5: return 0x7FFFFFFF;       // blocks of a grid in x
    case 6: case 7: return 65535;    // and in y, z
    case 8: return 48 << 10;         // shared memory of a block
    case 9: return 64 << 10;         // constant memory
    case 10: return 32;              // warp
    case 11: return 0x7FFFFFFF;      // pitch
    case 12: case 82: return 65536;  // registers of a block, of a multiprocessor
    case 13: return 1000000;         // clock, kHz
    case 14: case 30: return 512;    // alignment of textures, surfaces
    case 15: case 31: return 1;      // overlap, concurrent kernels
    case 16: return 4;               // multiprocessors
    case 19: return 1;               // can map host memory
    case 33: return 1 + device;      // PCI bus
    case 36: return 1000000;         // memory clock, kHz
    case 37: return 256;             // memory bus, bits
    case 38: return 4 << 20;         // L2
    case 39: return 2048;            // threads of a multiprocessor
    case 40: return 2;               // copy engines
    case 41: return 1;               // unified addressing
    case 75: return int(state().capability / 10); // compute capability
    case 76: return int(state().capability % 10);
    case 78: return 1;               // stream priorities
    case 79: case 80: return 1;      // L1
    case 81: return 228 << 10;       // shared memory of a multiprocessor
    case 87: return 2;               // single to double precision
    case 91: return 1;               // host pointers are device pointers
    case 92: case 93: case 94: case 122: case 123: return 1; // stream memory operations
    case 97: return 227 << 10;       // shared memory of a block that opts in
    case 99: return 1;               // host registration
    case 102: return state().page != 0; // virtual memory
    case 106: return 32;             // blocks of a multiprocessor
    case 111: return 1 << 10;        // shared memory that the system keeps
    default: return attribute >= 21 && attribute <= 77 ? 1024 : 0; // texture sizes; features that are not there
    }
}

EXPORT CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
    return call("cuDeviceGetAttribute", Needs::Driver, [&](Call& call) {
        call.note("attribute=%d", attribute);
        if (!device_context(device)) return CUDA_ERROR_INVALID_DEVICE;
        if (!value || attribute < 1 || attribute > 161) return CUDA_ERROR_INVALID_VALUE;
        *value = attribute_value(attribute, device);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
    return call("cuDevicePrimaryCtxRetain", Needs::Driver, [&](Call& call) {
        call.note("device=%d", device);
        Context* context = device_context(device);
        if (!context) return CUDA_ERROR_INVALID_DEVICE;
        if (!out) return CUDA_ERROR_INVALID_VALUE;
        if (context->retained++ == 0) {
            context->legacy = std::make_shared<Stream>();
            context->legacy->context = context;
            context->streams = {context->legacy};
        }
        *out = handle_of(context);
        return CUDA_SUCCESS;
    });
}

template <class Map> static void erase_of(Map& map, Context* context) {
    for (auto entry = map.begin(); entry != map.end();)
        entry = entry->second->context == context ? map.erase(entry) : std::next(entry);
}

// What is queued is discarded, and everything of the context is gone.
static void destroy(Context* context) {
    discard(context);
    log_live(context);
    State& s = state();
    for (auto entry = s.functions.begin(); entry != s.functions.end();)
        entry = entry->second->module->context == context ? s.functions.erase(entry) : std::next(entry);
    for (const StreamPtr& stream : context->streams) leave_capture(stream);
    erase_of(s.execs, context);
    erase_of(s.graphs, context);
    erase_of(s.streams, context);
    erase_of(s.events, context);
    erase_of(s.modules, context);
    release_context_memory(context);
    context->streams.clear();
    context->legacy.reset();
    context->error = CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return call("cuDevicePrimaryCtxRelease_v2", Needs::Driver, [&](Call& call) {
        call.note("device=%d", device);
        Context* context = device_context(device);
        if (!context) return CUDA_ERROR_INVALID_DEVICE;
        if (context->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
        if (--context->retained == 0) destroy(context);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxSetCurrent(CUcontext handle) {
    return call("cuCtxSetCurrent", Needs::Driver, [&](Call& call) {
        Context* context = known_context(handle);
        if (handle && (!context || context->retained == 0)) return CUDA_ERROR_INVALID_CONTEXT;
        call.note("device=%d", context ? context->device : -1);
        current_context = context;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxGetCurrent(CUcontext* out) {
    return call("cuCtxGetCurrent", Needs::Driver, [&](Call&) {
        if (!out) return CUDA_ERROR_INVALID_VALUE;
        *out = handle_of(current_context);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxGetDevice(CUdevice* out) {
    return call("cuCtxGetDevice", Needs::Context, [&](Call& call) {
        if (!out) return CUDA_ERROR_INVALID_VALUE;
        *out = call.context->device;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxSynchronize() {
    return call("cuCtxSynchronize", Needs::Context, [&](Call& call) {
        CUresult allowed = look_at(call.context);
        if (allowed != CUDA_SUCCESS) return allowed;
        drain(call.lock, call.context);
        return call.context->error;
    });
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    return call("cuCtxGetStreamPriorityRange", Needs::Context, [&](Call&) {
        if (least) *least = 0;
        if (greatest) *greatest = -5;
        return CUDA_SUCCESS;
    });
}

static const char* error_text(CUresult error, bool name) {
    switch (error) {
#define X(symbol, value, text) \
    case symbol: return name ? #symbol : text;
        CUDA_ERRORS(X)
#undef X
    }
    return nullptr;
}

// Not counted: programs ask for texts while they report what another call returned.
static CUresult give_text(CUresult error, const char** out, bool name) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = error_text(error, name);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char** out) { return give_text(error, out, true); }
EXPORT CUresult cuGetErrorString(CUresult error, const char** out) { return give_text(error, out, false); }
