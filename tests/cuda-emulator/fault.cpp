// Signals that a kernel raises end the kernel; those of anybody else go where they went before.
#include "state.hpp"

#include <csetjmp>
#include <csignal>
#include <sys/mman.h>
#include <ucontext.h>

// While this thread runs something guarded.
static thread_local sigjmp_buf* escape = nullptr;
static Fault caught; // under the lock, like everything that runs
static struct {
    int signal;
    uintptr_t address;
    bool general_protection, write, known_write;
} raised;

static constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
static struct sigaction previous[4];

static void pass_on(int signal, siginfo_t* info, void* context) {
    for (int i = 0; i < 4; i++)
        if (SIGNALS[i] == signal) {
            if (previous[i].sa_flags & SA_SIGINFO) return previous[i].sa_sigaction(signal, info, context);
            if (previous[i].sa_handler != SIG_DFL && previous[i].sa_handler != SIG_IGN) return previous[i].sa_handler(signal);
            sigaction(signal, &previous[i], nullptr); // the fault comes again, to the default
        }
}

static void handle(int signal, siginfo_t* info, void* context) {
    if (!escape) return pass_on(signal, info, context);
    raised = {signal, reinterpret_cast<uintptr_t>(info->si_addr), info->si_code == SI_KERNEL, false, false};
#if defined(__x86_64__)
    raised.known_write = true;
    raised.write = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2;
#endif
    sigjmp_buf* out = escape;
    escape = nullptr;
    siglongjmp(*out, 1);
}

void install_fault_handler() {
    struct sigaction action {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &action, &previous[i]);
}

// Kernels run on small stacks of their own, so the handler needs another one.
static void have_signal_stack() {
    static thread_local bool done = false;
    if (done) return;
    done = true;
    stack_t current{};
    sigaltstack(nullptr, &current);
    if (!(current.ss_flags & SS_DISABLE)) return;
    constexpr size_t BYTES = 64 << 10;
    void* memory = mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    stack_t own{};
    own.ss_sp = memory;
    own.ss_size = BYTES;
    sigaltstack(&own, nullptr);
}

static Fault explain() {
    switch (raised.signal) {
    case SIGFPE: return {CUDA_ERROR_LAUNCH_FAILED, "divided an integer by zero (or overflowed in a division)"};
    case SIGILL: return {CUDA_ERROR_ILLEGAL_ADDRESS, "indexed an array of fixed size out of its bounds"};
    default:
        if (raised.general_protection) return {CUDA_ERROR_MISALIGNED_ADDRESS, "used a misaligned address, or one that cannot exist"};
        const char* verb = !raised.known_write ? "read or wrote" : raised.write ? "wrote" : "read";
        return {CUDA_ERROR_ILLEGAL_ADDRESS, std::string(verb) + " address " + describe_address(raised.address)};
    }
}

Fault run_guarded(void (*run)(void*), void* data) {
    have_signal_stack();
    sigjmp_buf out;
    int how = sigsetjmp(out, 1);
    if (how == 0) {
        escape = &out;
        run(data);
        escape = nullptr;
        return {};
    }
    escape = nullptr;
    return how == 1 ? explain() : caught;
}

void stop_guarded(CUresult code, const char* text) {
    caught = {code, text};
    sigjmp_buf* out = escape;
    escape = nullptr;
    siglongjmp(*out, 2);
}
