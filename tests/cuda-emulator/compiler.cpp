#include "compiler.hpp"
#include "source.hpp"

#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <spawn.h>
#include <sstream>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

// The shim's files are part of this library.
#define EMBED(symbol, file)                              \
    asm(".section .rodata\n" #symbol "_begin:\n"         \
        ".incbin \"" file "\"\n" #symbol "_end:\n"       \
        ".byte 0\n.text\n");                             \
    extern "C" __attribute__((visibility("hidden"))) const char symbol##_begin[], symbol##_end[];

EMBED(embedded_abi, "module_abi.hpp")
EMBED(embedded_core, "shim/core.hpp")
EMBED(embedded_vectors, "shim/vectors.hpp")
EMBED(embedded_atomics, "shim/atomics.hpp")
EMBED(embedded_integers, "shim/integers.hpp")
EMBED(embedded_math, "shim/math.hpp")
EMBED(embedded_warp, "shim/warp.hpp")
EMBED(embedded_halves, "shim/halves.hpp")
EMBED(embedded_fp16, "shim/cuda_fp16.h")
EMBED(embedded_bf16, "shim/cuda_bf16.h")

static const struct {
    const char* name;
    const char *begin, *end;
} SHIM[] = {
    {"module_abi.hpp", embedded_abi_begin, embedded_abi_end},       {"core.hpp", embedded_core_begin, embedded_core_end},
    {"vectors.hpp", embedded_vectors_begin, embedded_vectors_end},  {"atomics.hpp", embedded_atomics_begin, embedded_atomics_end},
    {"integers.hpp", embedded_integers_begin, embedded_integers_end}, {"math.hpp", embedded_math_begin, embedded_math_end},
    {"warp.hpp", embedded_warp_begin, embedded_warp_end},           {"halves.hpp", embedded_halves_begin, embedded_halves_end},
    {"cuda_fp16.h", embedded_fp16_begin, embedded_fp16_end},        {"cuda_bf16.h", embedded_bf16_begin, embedded_bf16_end},
};

static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

static void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

// A folder that is gone when this is.
class Workshop {
  public:
    Workshop() {
        const char* where = getenv("TMPDIR");
        path = std::string(where && *where ? where : "/tmp") + "/cuda-emulator-XXXXXX";
        if (!mkdtemp(path.data())) path.clear();
    }
    ~Workshop() {
        for (auto file = files.rbegin(); file != files.rend(); ++file) remove(file->c_str());
        if (!path.empty()) rmdir(path.c_str());
    }
    Workshop(const Workshop&) = delete;
    Workshop& operator=(const Workshop&) = delete;
    bool usable() const { return !path.empty(); }

    std::string file(const std::string& name) {
        for (size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
            std::string folder = path + "/" + name.substr(0, slash);
            if (mkdir(folder.c_str(), 0700) == 0) files.push_back(folder);
        }
        files.push_back(path + "/" + name);
        return files.back();
    }
    std::string path;

  private:
    std::vector<std::string> files;
};

// The exit status; -1 if the compiler does not run.
static int run(const std::vector<std::string>& command, const std::string& output) {
    std::vector<char*> arguments;
    for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t child = 0;
    int failed = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) return -1;
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static std::string compiler() {
    const char* chosen = getenv("CUDA_EMULATOR_CXX");
    return chosen && *chosen ? chosen : "g++";
}

static std::vector<std::string> code_flags(const CompileOptions& options) {
    std::vector<std::string> flags = {
        "-O2", "-fPIC", "-w", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables", "-fno-stack-protector",
        // Traps count: without them GCC takes (float)(long long)x for trunc(x), and 0 becomes -0.
        "-fno-strict-aliasing", "-fno-math-errno", "-U_FORTIFY_SOURCE",
        // Fixed arrays are checked, and variables that are not set hold nonsense.
        "-fsanitize=bounds", "-fsanitize-undefined-trap-on-error", "-ftrivial-auto-var-init=pattern",
        options.contract ? "-ffp-contract=fast" : "-ffp-contract=off"};
#if defined(__x86_64__)
    // For fused multiplication and addition, which is a slow function without.
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) flags.insert(flags.end(), {"-mavx2", "-mfma"});
#endif
    return flags;
}

static std::string kernel_table(const std::vector<KernelName>& kernels) {
    std::string table = "const EmulatorKernel emulator_kernels[] = {\n";
    for (const KernelName& kernel : kernels)
        table += "    EmulatorEntry<&" + kernel.name + ">::kernel(\"" + kernel.name + "\", " + kernel.max_threads + "),\n";
    table += "    {}};\n}\n"
             "extern \"C\" __attribute__((visibility(\"default\"))) const EmulatorModule* emulator_module() {\n"
             "    static const EmulatorModule module = {&emulator_state, emulator_kernels, " + std::to_string(kernels.size()) +
             ", __start_emulator_shared, __stop_emulator_shared};\n    return &module;\n}\n";
    return table;
}

Compilation compile(const std::string& name, const std::string& source, const std::vector<Header>& headers, const CompileOptions& options) {
    Compilation result;
    Workshop shop;
    result.broken = true;
    if (!shop.usable()) {
        result.log = "cuda-emulator: no temporary folder\n";
        return result;
    }
    for (auto& file : SHIM) write(shop.file(file.name), std::string(file.begin, file.end));
    for (const Header& header : headers) write(shop.file(header.name), header.text);
    std::string main = shop.file("main.cpp"), whole = shop.file("whole.ii"), prepared = shop.file("prepared.ii");
    std::string object = shop.file("module.so"), log = shop.file("log");
    // Everything of the program has internal linkage, so that shared variables of inline functions are in one section.
    write(main, "#include \"core.hpp\"\nnamespace {\n#line 1 \"" + name + "\"\n" + source + "\n");

    std::string version = std::to_string(options.architecture * 10);
    std::vector<std::string> first = {compiler(), "-E", "-x", "c++", "-std=c++17", "-nostdinc", "-nostdinc++", "-I" + shop.path, "-D__CUDACC__=1",
                                      "-D__CUDACC_RTC__=1", "-D__NVCC__=1", "-D__CUDACC_VER_MAJOR__=13", "-D__CUDACC_VER_MINOR__=0",
                                      "-D__CUDA_ARCH__=" + version};
    first.insert(first.end(), options.arguments.begin(), options.arguments.end());
    first.insert(first.end(), {main, "-o", whole});
    int status = run(first, log);
    result.log = read(log);
    if (status != 0) {
        result.broken = status < 0;
        if (status < 0) result.log += "cuda-emulator: " + compiler() + " does not run\n";
        return result;
    }

    Prepared program = prepare(read(whole));
    write(prepared, program.text + "\n# 1 \"cuda-emulator\"\n" + kernel_table(program.kernels));
    std::vector<std::string> second = {compiler(), "-x", "c++-cpp-output", "-std=c++17", "-shared", "-Wl,-Bsymbolic", "-Wl,-z,now"};
    for (const std::string& flag : code_flags(options)) second.push_back(flag);
    for (const std::string& argument : options.arguments)
        if (argument.rfind("-std", 0) == 0) second.push_back(argument);
    second.insert(second.end(), {prepared, "-o", object, "-lm"});
    status = run(second, log);
    result.log += read(log);
    result.broken = status < 0;
    if (status != 0) return result;
    result.object = read(object);
    result.compiled = true;
    return result;
}
