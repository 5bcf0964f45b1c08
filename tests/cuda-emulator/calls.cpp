// What every call does first and last: it is counted, may be made to fail, and is logged.
#include "state.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

thread_local Context* current_context = nullptr;
thread_local bool in_host_function = false;

State& state() {
    // Never destroyed: other threads may call until the process has ended.
    static State* the = new State;
    return *the;
}

static std::string formatted(const char* format, va_list arguments) {
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    return text;
}

void Call::note(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    details += ' ' + formatted(format, arguments);
    va_end(arguments);
}

static FILE* log_file() {
    static FILE* file = [] {
        const char* path = getenv("CUDA_EMULATOR_LOG");
        FILE* opened = path && *path ? fopen(path, "a") : nullptr;
        if (opened) setvbuf(opened, nullptr, _IOLBF, 1 << 16);
        return opened;
    }();
    return file;
}

void log_call(const char* name, const std::string& details, int result) {
    if (FILE* file = log_file()) fprintf(file, "%s%s -> %d\n", name, details.c_str(), result);
}

void log_line(const char* format, ...) {
    FILE* file = log_file();
    if (!file) return;
    va_list arguments;
    va_start(arguments, format);
    fprintf(file, "%s\n", formatted(format, arguments).c_str());
    va_end(arguments);
}

void report(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::string text = formatted(format, arguments);
    va_end(arguments);
    fprintf(stderr, "cuda-emulator: %s\n", text.c_str());
    log_line("report %s", text.c_str());
}

// What a function's failure looks like on a real machine.
static int usual_failure(const std::string& name) {
    if (name.rfind("nvrtc", 0) == 0) return name == "nvrtcCompileProgram" ? 6 /* COMPILATION */ : 1 /* OUT_OF_MEMORY */;
    if (name.rfind("cublas", 0) == 0) return name == "cublasLtCreate" ? 3 /* ALLOC_FAILED */ : name == "cublasLtMatmulAlgoGetHeuristic" ? 15 /* NOT_SUPPORTED */ : 13 /* EXECUTION_FAILED */;
    if (name.rfind("cudnn", 0) == 0) return name == "cudnnCreate" ? 1001 /* NOT_INITIALIZED */ : name == "cudnnBackendFinalize" ? 3000 /* NOT_SUPPORTED */ : 5000 /* EXECUTION_FAILED */;
    if (name.rfind("nccl", 0) == 0) return name == "ncclRun" ? 6 /* REMOTE_ERROR */ : 2 /* SYSTEM_ERROR */;
    if (name.find("Alloc") != std::string::npos || name.find("Create") != std::string::npos || name.find("Reserve") != std::string::npos || name.find("Load") != std::string::npos || name.find("Instantiate") != std::string::npos)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return name == "cuLaunchKernel" ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : CUDA_ERROR_UNKNOWN;
}

// Counts a call and says what it is made to fail with, or 0.
static int count_call(const char* name) {
    State& s = state();
    read_environment();
    uint64_t number = ++s.calls[name];
    auto planned = s.failures.find(name);
    if (planned == s.failures.end()) return 0;
    for (const Failure& failure : planned->second)
        if (failure.call == number) return failure.code >= 0 ? failure.code : usual_failure(name);
    return 0;
}

CUresult begin(Call& call, Needs needs) {
    State& s = state();
    int failure = count_call(call.name);
    // A host function may not call the driver.
    if (in_host_function) return CUDA_ERROR_NOT_PERMITTED;
    if (failure) {
        call.note("made to fail");
        return CUresult(failure);
    }
    if (needs == Needs::Nothing) return CUDA_SUCCESS;
    if (!s.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (needs == Needs::Driver) return CUDA_SUCCESS;
    if (!current_context) return CUDA_ERROR_INVALID_CONTEXT;
    if (current_context->retained == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    call.context = current_context;
    return needs == Needs::ContextEvenBroken ? CUDA_SUCCESS : call.context->error;
}

EXPORT int cuEmulatorEnter(const char* function) {
    std::lock_guard<std::mutex> held(state().lock);
    return count_call(function);
}

EXPORT int cuEmulatorEnterHeld(const char* function) { return count_call(function); }

EXPORT void cuEmulatorLog(const char* function, const char* details, int result) {
    std::lock_guard<std::mutex> held(state().lock);
    log_call(function, details && *details ? std::string(" ") + details : std::string(), result);
}
