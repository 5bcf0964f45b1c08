// Checks the emulated libraries as a program would use them. Run by `build FOLDER --test`.
#include "selftest.hpp"

#include <cstring>
#include <map>
#include <sys/wait.h>
#include <unistd.h>

int failures = 0;
static std::string folder; // for files of this run

void* symbol(const char* library, const char* name) {
    static std::map<std::string, void*> libraries;
    void*& opened = libraries[library];
    if (!opened) opened = dlopen(library, RTLD_NOW);
    void* found = opened ? dlsym(opened, name) : nullptr;
    if (!found) {
        fprintf(stderr, "%s has no %s: %s\n", library, name, dlerror());
        exit(1);
    }
    return found;
}

Ptr open_device(int ordinal) {
    int device = -1;
    Ptr context = nullptr;
    CHECK_EQUAL(cuda("cuInit", 0u), 0);
    CHECK_EQUAL(cuda("cuDeviceGet", &device, ordinal), 0);
    CHECK_EQUAL(cuda("cuDevicePrimaryCtxRetain", &context, device), 0);
    CHECK_EQUAL(cuda("cuCtxSetCurrent", context), 0);
    return context;
}

Ptr new_stream(unsigned flags) {
    Ptr stream = nullptr;
    CHECK_EQUAL(cuda("cuStreamCreateWithPriority", &stream, flags, 0), 0);
    return stream;
}

Ptr new_event(unsigned flags) {
    Ptr event = nullptr;
    CHECK_EQUAL(cuda("cuEventCreate", &event, flags), 0);
    return event;
}

CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr address = 0;
    CHECK_EQUAL(cuda("cuMemAlloc_v2", &address, bytes), 0);
    return address;
}

void* allocate_host(size_t bytes) {
    void* address = nullptr;
    CHECK_EQUAL(cuda("cuMemHostAlloc", &address, bytes, 2u), 0);
    return address;
}

static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

Ptr kernel(const char* name) {
    static std::string image = read(folder + "/selftest.cubin");
    static std::map<Ptr, Ptr> modules; // of each context
    Ptr context = nullptr, function = nullptr;
    cuda("cuCtxGetCurrent", &context);
    Ptr& module = modules[context];
    if (!module) CHECK_EQUAL(cuda("cuModuleLoadData", &module, static_cast<const void*>(image.data())), 0);
    CHECK_EQUAL(cuda("cuModuleGetFunction", &function, module, name), 0);
    return function;
}

int launch(Ptr function, unsigned blocks, unsigned threads, unsigned shared, Ptr stream, std::vector<void*> arguments) {
    return cuda("cuLaunchKernel", function, blocks, 1u, 1u, threads, 1u, 1u, shared, stream, arguments.data(), NONE);
}

std::string log_text() { return read(getenv("CUDA_EMULATOR_LOG")); }
bool logged(const std::string& text) { return log_text().find(text) != std::string::npos; }

// The kernels are compiled once; the tests' processes load what was written to a file.
static int compile_kernels(const std::string& source_path) {
    std::string source = read(source_path);
    Ptr program = nullptr;
    const char* options[] = {"--gpu-architecture=sm_90", "--std=c++17"};
    CHECK_EQUAL(nvrtc("nvrtcCreateProgram", &program, source.c_str(), "selftest.cu", 0, NONE, NONE), 0);
    int compiled = nvrtc("nvrtcCompileProgram", program, 2, static_cast<const char* const*>(options));
    size_t bytes = 0;
    nvrtc("nvrtcGetProgramLogSize", program, &bytes);
    std::string log(bytes, '\0');
    nvrtc("nvrtcGetProgramLog", program, log.data());
    if (compiled != 0) {
        fprintf(stderr, "%s", log.c_str());
        return 1;
    }
    CHECK_EQUAL(nvrtc("nvrtcGetCUBINSize", program, &bytes), 0);
    std::string image(bytes, '\0');
    CHECK_EQUAL(nvrtc("nvrtcGetCUBIN", program, image.data()), 0);
    std::ofstream(folder + "/selftest.cubin", std::ios::binary) << image;
    CHECK_EQUAL(nvrtc("nvrtcDestroyProgram", &program), 0);
    return failures;
}

static const Test* find(const std::string& name) {
    for (auto* tests : {&STREAM_TESTS, &GRAPH_TESTS, &CAPTURE_TESTS, &MEMORY_TESTS, &KERNEL_TESTS, &ADVERSARY_TESTS, &GEMM_TESTS, &CONV_TESTS})
        for (const Test& test : *tests)
            if (name == test.name) return &test;
    return nullptr;
}

// In a child: "A=1 B=2" into the environment.
static void set_environment(const std::string& settings) {
    std::istringstream words(settings);
    for (std::string word; words >> word;) setenv(word.substr(0, word.find('=')).c_str(), word.substr(word.find('=') + 1).c_str(), 1);
}

static bool passes(const char* self, const std::string& name, const char* environment, const char* argument = "") {
    pid_t child = fork();
    if (child == 0) {
        setenv("CUDA_EMULATOR_LOG", (folder + "/" + name + ".log").c_str(), 1);
        set_environment(environment);
        execl(self, self, "--run", folder.c_str(), name.c_str(), argument, static_cast<char*>(nullptr));
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    bool passed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    printf("%s %s\n", passed ? "ok    " : "FAILED", name.c_str());
    fflush(stdout);
    return passed;
}

int main(int count, char** arguments) {
    if (count >= 4 && strcmp(arguments[1], "--run") == 0) {
        folder = arguments[2];
        std::string name = arguments[3];
        if (name == "compile") return compile_kernels(arguments[4]);
        const Test* test = find(name);
        if (!test) return 2;
        alarm(60);
        test->run();
        fflush(stderr);
        _exit(failures ? 1 : 0);
    }
    if (count < 2) return fprintf(stderr, "usage: selftest SELFTEST.CU [TEST...]\n"), 2;
    char path[] = "/tmp/cuda-emulator-selftest-XXXXXX";
    folder = mkdtemp(path);
    bool all = passes(arguments[0], "compile", "", arguments[1]);
    for (auto* tests : {&STREAM_TESTS, &GRAPH_TESTS, &CAPTURE_TESTS, &MEMORY_TESTS, &KERNEL_TESTS, &ADVERSARY_TESTS, &GEMM_TESTS, &CONV_TESTS})
        for (const Test& test : *tests) {
            bool wanted = count == 2;
            for (int i = 2; i < count; i++) wanted = wanted || strcmp(arguments[i], test.name) == 0;
            if (wanted) all = passes(arguments[0], test.name, test.environment) && all;
        }
    if (system(("rm -r " + folder).c_str()) != 0) return 1;
    return all ? 0 : 1;
}
