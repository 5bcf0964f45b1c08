// The compiler's interface.
#include "api.hpp"
#include "compiler.hpp"

#include <cstring>
#include <mutex>
#include <unordered_set>

enum nvrtcResult : int {
    NVRTC_SUCCESS = 0,
    NVRTC_ERROR_OUT_OF_MEMORY = 1,
    NVRTC_ERROR_PROGRAM_CREATION_FAILURE = 2,
    NVRTC_ERROR_INVALID_INPUT = 3,
    NVRTC_ERROR_INVALID_PROGRAM = 4,
    NVRTC_ERROR_INVALID_OPTION = 5,
    NVRTC_ERROR_COMPILATION = 6,
    NVRTC_ERROR_BUILTIN_OPERATION_FAILURE = 7,
    NVRTC_ERROR_INTERNAL_ERROR = 11,
};

struct Program {
    std::string name, source, log, ptx, cubin;
    std::vector<Header> headers;
};
typedef Program* nvrtcProgram;

static std::mutex lock; // of the set
static std::unordered_set<Program*> programs;

static bool known(nvrtcProgram program) {
    std::lock_guard<std::mutex> held(lock);
    return programs.count(program) != 0;
}

// Counts, may refuse, and logs.
template <class Body> static nvrtcResult call(const char* name, Body body) {
    std::string details;
    int failure = cuEmulatorEnter(name);
    nvrtcResult result = failure ? nvrtcResult(failure) : body(details);
    cuEmulatorLog(name, details.c_str(), result);
    return result;
}

EXPORT nvrtcResult nvrtcVersion(int* major, int* minor) {
    return call("nvrtcVersion", [&](std::string&) {
        if (!major || !minor) return NVRTC_ERROR_INVALID_INPUT;
        *major = 13;
        *minor = 0;
        return NVRTC_SUCCESS;
    });
}

static constexpr int ARCHITECTURES[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

EXPORT nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
    return call("nvrtcGetNumSupportedArchs", [&](std::string&) {
        if (!count) return NVRTC_ERROR_INVALID_INPUT;
        *count = int(sizeof ARCHITECTURES / sizeof *ARCHITECTURES);
        return NVRTC_SUCCESS;
    });
}

EXPORT nvrtcResult nvrtcGetSupportedArchs(int* out) {
    return call("nvrtcGetSupportedArchs", [&](std::string&) {
        if (!out) return NVRTC_ERROR_INVALID_INPUT;
        memcpy(out, ARCHITECTURES, sizeof ARCHITECTURES);
        return NVRTC_SUCCESS;
    });
}

EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram* out, const char* source, const char* name, int count, const char* const* headers,
                                      const char* const* names) {
    return call("nvrtcCreateProgram", [&](std::string& details) {
        if (!out || !source || count < 0 || (count > 0 && (!headers || !names))) return NVRTC_ERROR_INVALID_INPUT;
        auto* program = new Program;
        program->source = source;
        program->name = name && *name ? name : "default_program";
        for (int i = 0; i < count; i++) program->headers.push_back({names[i], headers[i]});
        std::lock_guard<std::mutex> held(lock);
        programs.insert(program);
        *out = program;
        details = "name=" + program->name;
        return NVRTC_SUCCESS;
    });
}

EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
    return call("nvrtcDestroyProgram", [&](std::string&) {
        if (!program || !known(*program)) return NVRTC_ERROR_INVALID_PROGRAM;
        std::lock_guard<std::mutex> held(lock);
        programs.erase(*program);
        delete *program;
        *program = nullptr;
        return NVRTC_SUCCESS;
    });
}

struct Settings {
    CompileOptions compile;
    bool real = false; // code for a device, not only PTX
    std::string refused;
};

static bool starts(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

// "compute_90", "sm_90", either perhaps with an a or f after it.
static bool read_architecture(const std::string& value, Settings& settings) {
    settings.real = starts(value, "sm_");
    if (!settings.real && !starts(value, "compute_")) return false;
    settings.compile.architecture = unsigned(atoi(value.c_str() + value.find('_') + 1));
    for (int known : ARCHITECTURES)
        if (unsigned(known) == settings.compile.architecture) return true;
    return false;
}

// Options that change nothing here; those that end in '=' take any value.
static bool without_effect(const std::string& option) {
    static const char* const PLAIN[] = {"-default-device", "--device-as-default-execution-space", "--restrict", "-restrict", "-lineinfo",
                                        "--generate-line-info", "-G", "--device-debug", "-w", "--disable-warnings", "-dopt", "--extra-device-vectorization",
                                        "--relocatable-device-code=false", "-rdc=false", "--no-source-include", "-no-source-include", "--minimal", "-minimal"};
    static const char* const VALUED[] = {"--maxrregcount=", "-maxrregcount=", "--ptxas-options=", "-Xptxas=", "--ftz=", "-ftz=", "--prec-sqrt=", "-prec-sqrt=",
                                         "--prec-div=", "-prec-div=", "--diag-suppress=", "-diag-suppress=", "--split-compile=", "--dopt=", "-dopt=",
                                         "--relocatable-device-code=", "--Ofast-compile=", "-Ofc="};
    for (const char* plain : PLAIN)
        if (option == plain) return true;
    for (const char* valued : VALUED)
        if (starts(option, valued)) return true;
    return false;
}

static Settings read_options(int count, const char* const* options) {
    Settings settings;
    settings.compile.architecture = 75;
    for (int i = 0; i < count; i++) {
        std::string option = options[i];
        // "-I path" as two options.
        bool pair = i + 1 < count && (option == "-I" || option == "-D" || option == "-U" || option == "--gpu-architecture" || option == "-arch");
        if (pair) option += (option.size() > 2 ? "=" : "") + std::string(options[++i]);
        std::string value = option.find('=') == std::string::npos ? "" : option.substr(option.find('=') + 1);
        if (starts(option, "--gpu-architecture=") || starts(option, "-arch=")) {
            if (!read_architecture(value, settings)) settings.refused = option;
        } else if (starts(option, "-I") || starts(option, "-D") || starts(option, "-U")) {
            settings.compile.arguments.push_back(option);
        } else if (starts(option, "--include-path=") || starts(option, "--define-macro=") || starts(option, "--undefine-macro=")) {
            settings.compile.arguments.push_back((option[2] == 'i' ? "-I" : option[2] == 'd' ? "-D" : "-U") + value);
        } else if (starts(option, "--std=") || starts(option, "-std=")) {
            if (value != "c++11" && value != "c++14" && value != "c++17" && value != "c++20") settings.refused = option;
            else if (value == "c++20") settings.compile.arguments.push_back("-std=c++20"); // the shim itself needs C++17
        } else if (starts(option, "--fmad=") || starts(option, "-fmad=")) {
            settings.compile.contract = value == "true";
        } else if (option == "--use_fast_math" || option == "-use_fast_math") {
            settings.compile.contract = true;
        } else if (!without_effect(option)) {
            settings.refused = option;
        }
    }
    return settings;
}

static std::string image(const std::string& object, unsigned architecture) {
    ImageHeader header{};
    memcpy(header.magic, IMAGE_MAGIC, sizeof header.magic);
    header.version = EMULATOR_VERSION;
    header.architecture = architecture;
    header.bytes = object.size();
    return std::string(reinterpret_cast<const char*>(&header), sizeof header) + object;
}

static std::string as_text(const std::string& bytes) {
    std::string text = PTX_MAGIC;
    for (unsigned char byte : bytes) {
        text += "0123456789abcdef"[byte >> 4];
        text += "0123456789abcdef"[byte & 15];
    }
    return text;
}

EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
    return call("nvrtcCompileProgram", [&](std::string& details) {
        if (!known(program)) return NVRTC_ERROR_INVALID_PROGRAM;
        details = "name=" + program->name;
        Settings settings = read_options(count, options);
        if (!settings.refused.empty()) {
            program->log = "nvrtc: error: invalid value or unknown option: " + settings.refused + "\n";
            return NVRTC_ERROR_INVALID_OPTION;
        }
        Compilation done = compile(program->name, program->source, program->headers, settings.compile);
        program->log = done.log;
        program->ptx.clear();
        program->cubin.clear();
        if (done.broken) return NVRTC_ERROR_INTERNAL_ERROR;
        if (!done.compiled) return NVRTC_ERROR_COMPILATION;
        std::string bytes = image(done.object, settings.compile.architecture);
        program->ptx = as_text(bytes);
        if (settings.real) program->cubin = bytes;
        return NVRTC_SUCCESS;
    });
}

// Texts count their final zero, binaries have none.
static nvrtcResult size_of(const char* name, nvrtcProgram program, size_t* out, const std::string Program::*part, size_t extra) {
    return call(name, [&](std::string&) {
        if (!known(program)) return NVRTC_ERROR_INVALID_PROGRAM;
        if (!out) return NVRTC_ERROR_INVALID_INPUT;
        *out = (program->*part).size() + extra;
        return NVRTC_SUCCESS;
    });
}

static nvrtcResult bytes_of(const char* name, nvrtcProgram program, char* out, const std::string Program::*part, size_t extra) {
    return call(name, [&](std::string&) {
        if (!known(program)) return NVRTC_ERROR_INVALID_PROGRAM;
        if (!out) return NVRTC_ERROR_INVALID_INPUT;
        memcpy(out, (program->*part).c_str(), (program->*part).size() + extra);
        return NVRTC_SUCCESS;
    });
}

EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* out) { return size_of("nvrtcGetProgramLogSize", program, out, &Program::log, 1); }
EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* out) { return bytes_of("nvrtcGetProgramLog", program, out, &Program::log, 1); }
EXPORT nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t* out) { return size_of("nvrtcGetPTXSize", program, out, &Program::ptx, 1); }
EXPORT nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* out) { return bytes_of("nvrtcGetPTX", program, out, &Program::ptx, 1); }
EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* out) { return size_of("nvrtcGetCUBINSize", program, out, &Program::cubin, 0); }
EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* out) { return bytes_of("nvrtcGetCUBIN", program, out, &Program::cubin, 0); }

EXPORT const char* nvrtcGetErrorString(nvrtcResult result) {
    switch (result) {
    case NVRTC_SUCCESS: return "NVRTC_SUCCESS";
    case NVRTC_ERROR_OUT_OF_MEMORY: return "NVRTC_ERROR_OUT_OF_MEMORY";
    case NVRTC_ERROR_PROGRAM_CREATION_FAILURE: return "NVRTC_ERROR_PROGRAM_CREATION_FAILURE";
    case NVRTC_ERROR_INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
    case NVRTC_ERROR_INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
    case NVRTC_ERROR_INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
    case NVRTC_ERROR_COMPILATION: return "NVRTC_ERROR_COMPILATION";
    case NVRTC_ERROR_BUILTIN_OPERATION_FAILURE: return "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE";
    case NVRTC_ERROR_INTERNAL_ERROR: return "NVRTC_ERROR_INTERNAL_ERROR";
    }
    return "NVRTC_ERROR unknown";
}
