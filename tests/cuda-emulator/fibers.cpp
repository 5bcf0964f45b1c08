#include "fibers.hpp"

#include <cstdint>
#include <cstdlib>
#include <sys/mman.h>

static constexpr size_t STACK = 64 << 10;
static constexpr size_t PAGE = 4096;
static constexpr size_t LINE = 64;

// A stack that grows into a page without access. Stacks begin at different lines of a page: the tops of hundreds of them
// would share a few sets of the cache otherwise.
static void* new_stack() {
    void* memory = mmap(nullptr, PAGE + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    mprotect(memory, PAGE, PROT_NONE);
    static size_t made = 0;
    size_t shift = made++ * 5 % (PAGE / LINE) * LINE;
    return static_cast<char*>(memory) + PAGE - shift;
}

#ifdef CUDA_EMULATOR_UCONTEXT

void prepare_fiber(Fiber& fiber, void (*entry)()) {
    if (!fiber.stack) fiber.stack = new_stack();
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, entry, 0);
}

#elif defined(__x86_64__)

asm(R"(
    .text
    .globl emulator_switch
    .hidden emulator_switch
    .type emulator_switch, @function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
    .size emulator_switch, .-emulator_switch
)");

void prepare_fiber(Fiber& fiber, void (*entry)()) {
    if (!fiber.stack) fiber.stack = new_stack();
    // Six registers, the entry as the address to return to, and an address for the entry to return to.
    auto* top = reinterpret_cast<uintptr_t*>(static_cast<char*>(fiber.stack) + STACK);
    top[-1] = 0;
    top[-2] = reinterpret_cast<uintptr_t>(entry);
    for (int i = 3; i <= 8; i++) top[-i] = 0;
    fiber.stack_pointer = top - 8;
}

#elif defined(__aarch64__)

asm(R"(
    .text
    .globl emulator_switch
    .hidden emulator_switch
    .type emulator_switch, %function
emulator_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size emulator_switch, .-emulator_switch
)");

void prepare_fiber(Fiber& fiber, void (*entry)()) {
    if (!fiber.stack) fiber.stack = new_stack();
    auto* frame = reinterpret_cast<uintptr_t*>(static_cast<char*>(fiber.stack) + STACK - 160);
    for (int i = 0; i < 20; i++) frame[i] = 0;
    frame[11] = reinterpret_cast<uintptr_t>(entry); // x30
    fiber.stack_pointer = frame;
}

#endif
