// Modules, functions, launches.
#include "state.hpp"

#include <algorithm>
#include <cstring>
#include <dlfcn.h>
#include <sys/mman.h>
#include <tuple>
#include <unistd.h>

Module::~Module() {
    if (library) dlclose(library);
    if (file >= 0) close(file);
}

static int digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

// The bytes of an image in either form; empty if it is none.
static std::vector<unsigned char> image_bytes(const void* image, bool& ptx) {
    auto* text = static_cast<const char*>(image);
    ptx = strncmp(text, PTX_MAGIC, sizeof PTX_MAGIC - 1) == 0;
    if (ptx) {
        std::vector<unsigned char> bytes;
        for (text += sizeof PTX_MAGIC - 1; digit(text[0]) >= 0 && digit(text[1]) >= 0; text += 2)
            bytes.push_back((unsigned char)(digit(text[0]) << 4 | digit(text[1])));
        return bytes;
    }
    if (memcmp(image, IMAGE_MAGIC, sizeof IMAGE_MAGIC) != 0) return {};
    ImageHeader header;
    memcpy(&header, image, sizeof header);
    auto* begin = static_cast<const unsigned char*>(image);
    return {begin, begin + sizeof header + header.bytes};
}

// A file of its own for each load, so that no two modules share variables. It stays open as long as the module, since the
// loader knows libraries by their names and the next file would have this one's.
static void open_library(Module& module, const unsigned char* bytes, size_t count) {
    module.file = memfd_create("cuda-emulator-module", MFD_CLOEXEC);
    if (module.file < 0 || write(module.file, bytes, count) != ssize_t(count)) return;
    std::string path = "/proc/self/fd/" + std::to_string(module.file);
    module.library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!module.library) report("a module does not load: %s", dlerror());
}

static CUresult load(Call& call, CUmodule* out, const void* image) {
    if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
    bool ptx = false;
    std::vector<unsigned char> bytes = image_bytes(image, ptx);
    ImageHeader header;
    if (bytes.size() < sizeof header) return ptx ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE;
    memcpy(&header, bytes.data(), sizeof header);
    if (memcmp(header.magic, IMAGE_MAGIC, sizeof IMAGE_MAGIC) != 0 || header.bytes != bytes.size() - sizeof header || header.version != EMULATOR_VERSION)
        return ptx ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE;
    // Binary code runs on its own generation, PTX on later ones too.
    if (ptx ? header.architecture > state().capability : header.architecture != state().capability) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    auto module = std::make_shared<Module>();
    module->context = call.context;
    open_library(*module, bytes.data() + sizeof header, header.bytes);
    if (!module->library) return CUDA_ERROR_INVALID_IMAGE;
    auto describe = reinterpret_cast<const EmulatorModule* (*)()>(dlsym(module->library, "emulator_module"));
    if (!describe) return CUDA_ERROR_INVALID_IMAGE;
    module->program = describe();
    void* handle = state().handle();
    state().modules[handle] = module;
    *out = static_cast<CUmodule>(handle);
    call.note("kernels=%u", module->program->kernel_count);
    return CUDA_SUCCESS;
}

static CUresult load_idle(Call& call, CUmodule* out, const void* image) {
    CUresult idle = await_host(call.lock, call.context, call.name);
    return idle == CUDA_SUCCESS ? load(call, out, image) : idle;
}

EXPORT CUresult cuModuleLoadData(CUmodule* out, const void* image) {
    return call("cuModuleLoadData", Needs::Context, [&](Call& call) { return load_idle(call, out, image); });
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned, int*, void**) {
    return call("cuModuleLoadDataEx", Needs::Context, [&](Call& call) { return load_idle(call, out, image); });
}

// Queued launches keep the code.
EXPORT CUresult cuModuleUnload(CUmodule handle) {
    return call("cuModuleUnload", Needs::ContextEvenBroken, [&](Call& call) {
        State& s = state();
        CUresult idle = await_host(call.lock, call.context, call.name);
        if (idle != CUDA_SUCCESS) return idle;
        auto found = s.modules.find(handle);
        if (found == s.modules.end()) return CUDA_ERROR_INVALID_HANDLE;
        for (auto entry = s.functions.begin(); entry != s.functions.end();)
            entry = entry->second->module == found->second ? s.functions.erase(entry) : std::next(entry);
        s.modules.erase(found);
        return CUDA_SUCCESS;
    });
}

// The handle of a kernel: the same one each time, as from the driver.
static CUfunction handle_of(State& s, const std::shared_ptr<Module>& module, const EmulatorKernel* kernel) {
    for (auto& entry : s.functions)
        if (entry.second->kernel == kernel) return static_cast<CUfunction>(entry.first);
    auto function = std::make_shared<Function>();
    function->module = module;
    function->kernel = kernel;
    void* key = s.handle();
    s.functions[key] = function;
    return static_cast<CUfunction>(key);
}

EXPORT CUresult cuModuleGetFunctionCount(unsigned* count, CUmodule handle) {
    return call("cuModuleGetFunctionCount", Needs::Context, [&](Call&) {
        State& s = state();
        if (!count) return CUDA_ERROR_INVALID_VALUE;
        auto found = s.modules.find(handle);
        if (found == s.modules.end()) return CUDA_ERROR_INVALID_HANDLE;
        *count = found->second->program->kernel_count;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned count, CUmodule handle) {
    return call("cuModuleEnumerateFunctions", Needs::Context, [&](Call&) {
        State& s = state();
        if (!functions) return CUDA_ERROR_INVALID_VALUE;
        auto found = s.modules.find(handle);
        if (found == s.modules.end()) return CUDA_ERROR_INVALID_HANDLE;
        const EmulatorModule& program = *found->second->program;
        for (unsigned i = 0; i < count && i < program.kernel_count; i++)
            functions[i] = handle_of(s, found->second, &program.kernels[i]);
        return CUDA_SUCCESS;
    });
}

// Every function is loaded with its module here.
EXPORT CUresult cuFuncLoad(CUfunction function) {
    return call("cuFuncLoad", Needs::Context, [&](Call&) {
        return state().functions.count(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    });
}

EXPORT CUresult cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
    return call("cuModuleGetFunction", Needs::Context, [&](Call& call) {
        State& s = state();
        if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
        call.note("kernel=%s", name);
        auto found = s.modules.find(handle);
        if (found == s.modules.end()) return CUDA_ERROR_INVALID_HANDLE;
        const EmulatorModule& program = *found->second->program;
        for (unsigned i = 0; i < program.kernel_count; i++) {
            if (strcmp(program.kernels[i].name, name) != 0) continue;
            *out = handle_of(s, found->second, &program.kernels[i]);
            return CUDA_SUCCESS;
        }
        return CUDA_ERROR_NOT_FOUND;
    });
}

CUfunction library_function(Context* context, const std::string& name, bool modern, void (*run)(void*), unsigned bytes) {
    struct Kernel {
        std::string name;
        unsigned bytes = 0;
        EmulatorKernel kernel{};
        EmulatorModule program{};
        CUfunction handle = nullptr;
    };
    static std::map<std::tuple<Context*, void (*)(void*), bool>, Kernel> kernels;
    Kernel& own = kernels[{context, run, modern}];
    if (state().functions.count(own.handle)) return own.handle;
    own.name = name;
    own.bytes = bytes;
    own.kernel = {own.name.c_str(), nullptr, &own.bytes, 1, LIBRARY_THREADS};
    auto module = std::make_shared<Module>();
    module->context = context;
    module->program = &own.program;
    own.handle = handle_of(state(), module, &own.kernel);
    state().functions[own.handle]->library = run;
    state().functions[own.handle]->modern = modern;
    return own.handle;
}

static std::shared_ptr<Function> find_function(CUfunction handle) {
    auto found = state().functions.find(handle);
    return found == state().functions.end() ? nullptr : found->second;
}

EXPORT CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction handle) {
    return call("cuFuncGetAttribute", Needs::Context, [&](Call& call) {
        auto function = find_function(handle);
        if (!function) return CUDA_ERROR_INVALID_HANDLE;
        if (!value || attribute < 0 || attribute > 9) return CUDA_ERROR_INVALID_VALUE;
        call.note("kernel=%s attribute=%d", function->kernel->name, attribute);
        const EmulatorModule& program = *function->module->program;
        switch (attribute) {
        case 0: *value = int(function->kernel->max_threads); break;
        case 1: *value = int(program.shared_end - program.shared_begin); break; // of the whole program
        case 4: *value = 32; break;                                            // registers
        case 5: case 6: *value = int(state().capability); break;               // PTX, binary version
        case 8: *value = int(function->max_dynamic_shared); break;
        case 9: *value = -1; break;
        default: *value = 0;
        }
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuFuncGetName(const char** name, CUfunction handle) {
    return call("cuFuncGetName", Needs::Context, [&](Call&) {
        auto function = find_function(handle);
        if (!name || !function) return CUDA_ERROR_INVALID_VALUE;
        *name = function->kernel->name;
        return CUDA_SUCCESS;
    });
}

// Where arguments lie whose alignment is their size, up to a word.
EXPORT CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* bytes) {
    return call("cuFuncGetParamInfo", Needs::Context, [&](Call&) {
        auto function = find_function(handle);
        if (!function) return CUDA_ERROR_INVALID_HANDLE;
        if (!offset || index >= function->kernel->parameters) return CUDA_ERROR_INVALID_VALUE;
        size_t begin = 0, end = 0;
        for (size_t i = 0; i <= index; i++) {
            size_t size = function->kernel->sizes[i], alignment = std::min<size_t>(size & -size, 8);
            begin = (end + alignment - 1) / alignment * alignment;
            end = begin + size;
        }
        *offset = begin;
        if (bytes) *bytes = end - begin;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuFuncSetAttribute(CUfunction handle, int attribute, int value) {
    return call("cuFuncSetAttribute", Needs::Context, [&](Call& call) {
        auto function = find_function(handle);
        if (!function) return CUDA_ERROR_INVALID_HANDLE;
        call.note("kernel=%s attribute=%d value=%d", function->kernel->name, attribute, value);
        if (attribute == 9) return CUDA_SUCCESS; // a hint
        if (attribute != 8 || value < 0 || value > 227 << 10) return CUDA_ERROR_INVALID_VALUE;
        function->max_dynamic_shared = unsigned(value);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction handle, int threads, size_t shared) {
    return call("cuOccupancyMaxActiveBlocksPerMultiprocessor", Needs::Context, [&](Call&) {
        if (!find_function(handle)) return CUDA_ERROR_INVALID_HANDLE;
        if (!blocks || threads < 1 || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
        *blocks = std::min(2048 / threads, shared ? int((228u << 10) / shared) : 32);
        return CUDA_SUCCESS;
    });
}

static CUresult check_shape(const Launch& launch, const Function& function) {
    auto [gx, gy, gz] = launch.grid;
    auto [bx, by, bz] = launch.block;
    if (gx == 0 || gy == 0 || gz == 0 || gx > 0x7FFFFFFFu || gy > 65535 || gz > 65535) return CUDA_ERROR_INVALID_VALUE;
    if (bx == 0 || by == 0 || bz == 0 || bx > 1024 || by > 1024 || bz > 64) return CUDA_ERROR_INVALID_VALUE;
    if (bx * by * bz > function.kernel->max_threads || launch.dynamic_shared > function.max_dynamic_shared) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

std::string kernel_name(CUfunction handle) {
    auto function = find_function(handle);
    return function ? function->kernel->name : "(none)";
}

bool is_modern(CUfunction handle) {
    auto function = find_function(handle);
    return function && function->modern;
}

// The buffer of a list, if it has as many bytes as it should.
static bool find_buffer(void** list, size_t bytes, void*& buffer) {
    size_t length = 0;
    for (; reinterpret_cast<uintptr_t>(*list) != CU_LAUNCH_PARAM_END; list += 2) {
        auto what = reinterpret_cast<uintptr_t>(*list);
        if (what == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = list[1];
        else if (what == CU_LAUNCH_PARAM_BUFFER_SIZE)
            length = *static_cast<size_t*>(list[1]);
        else
            return false;
    }
    return buffer && length == bytes;
}

// The arguments are copied.
CUresult prepare_launch(const KernelParams& params, Context* context, std::shared_ptr<Launch>& out) {
    auto function = find_function(params.function);
    if (!function || function->module->context != context) return CUDA_ERROR_INVALID_HANDLE;
    const EmulatorKernel& kernel = *function->kernel;
    void* buffer = nullptr;
    void** parameters = params.parameters;
    if (params.extra) {
        if (parameters || !function->modern) return parameters ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
        if (!find_buffer(params.extra, kernel.sizes[0], buffer)) return CUDA_ERROR_INVALID_VALUE;
        parameters = &buffer;
    }
    auto launch = std::make_shared<Launch>();
    launch->function = params.function;
    launch->module = function->module;
    launch->kernel = &kernel;
    launch->grid = {params.grid[0], params.grid[1], params.grid[2]};
    launch->block = {params.block[0], params.block[1], params.block[2]};
    launch->dynamic_shared = params.shared;
    launch->context = context;
    launch->library = function->library;
    CUresult shaped = check_shape(*launch, *function);
    if (shaped != CUDA_SUCCESS) return shaped;
    if (kernel.parameters > 256 || (kernel.parameters && !parameters)) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < kernel.parameters; i++) {
        auto* bytes = static_cast<const unsigned char*>(parameters[i]);
        if (!bytes) return CUDA_ERROR_INVALID_VALUE;
        launch->arguments.insert(launch->arguments.end(), bytes, bytes + kernel.sizes[i]);
        launch->arguments.resize((launch->arguments.size() + 15) / 16 * 16);
    }
    out = std::move(launch);
    return CUDA_SUCCESS;
}

Work kernel_work(std::shared_ptr<const Launch> launch) {
    Work work;
    work.name = std::string(launch->library ? "" : "kernel=") + launch->kernel->name;
    work.context = launch->context;
    work.run = [launch](uint64_t stream) { return run_launch(*launch, stream); };
    work.launch = std::move(launch);
    return work;
}

static CUresult launch(Call& call, CUstream handle, const KernelParams& params, unsigned cluster) {
    StreamPtr stream = find_stream(handle, call.context);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    auto [gx, gy, gz] = params.grid;
    auto [bx, by, bz] = params.block;
    call.note("stream=%llu kernel=%s grid=%u,%u,%u block=%u,%u,%u shared=%u", (unsigned long long)stream->id, kernel_name(params.function).c_str(), gx, gy, gz,
              bx, by, bz, params.shared);
    std::shared_ptr<Launch> launch;
    CUresult prepared = prepare_launch(params, call.context, launch);
    if (prepared == CUDA_SUCCESS && cluster != (is_modern(params.function) ? 2 : 1)) prepared = CUDA_ERROR_INVALID_VALUE;
    // Unlike a copy that is refused, a launch with a bad shape ends a capture.
    if (prepared == CUDA_ERROR_INVALID_VALUE) invalidate(stream);
    if (prepared != CUDA_SUCCESS) return prepared;
    return submit(stream, Command{kernel_work(std::move(launch)), {}, false, {}, {}});
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                               CUstream stream, void** parameters, void** extra) {
    return call("cuLaunchKernel", Needs::Context, [&](Call& call) {
        return launch(call, stream, {function, {gx, gy, gz}, {bx, by, bz}, shared, parameters, extra, nullptr, nullptr}, 1);
    });
}

// Of the attributes there are clusters of blocks.
EXPORT CUresult cuLaunchKernelEx(const LaunchConfig* config, CUfunction function, void** parameters, void** extra) {
    return call("cuLaunchKernelEx", Needs::Context, [&](Call& call) {
        if (!config || (config->count && !config->attributes)) return CUDA_ERROR_INVALID_VALUE;
        KernelParams params{function, {}, {}, config->shared, parameters, extra, nullptr, nullptr};
        std::copy(config->grid, config->grid + 3, params.grid);
        std::copy(config->block, config->block + 3, params.block);
        unsigned cluster = 1;
        for (const LaunchAttribute* next = config->attributes; next != config->attributes + config->count; next++) {
            if (next->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
                cluster = next->value[0] * next->value[1] * next->value[2];
            else if (next->id != CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE)
                return CUDA_ERROR_NOT_SUPPORTED;
        }
        return launch(call, config->stream, params, cluster);
    });
}
