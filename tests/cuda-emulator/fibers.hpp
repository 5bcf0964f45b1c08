// Threads of a block as fibers: a stack each, and a switch that saves what the calling convention says a call keeps.
#pragma once

#include <cstddef>

#if !defined(CUDA_EMULATOR_UCONTEXT) && !defined(__x86_64__) && !defined(__aarch64__)
#define CUDA_EMULATOR_UCONTEXT
#endif

#ifdef CUDA_EMULATOR_UCONTEXT
#include <ucontext.h>
#endif

struct Fiber {
#ifdef CUDA_EMULATOR_UCONTEXT
    ucontext_t context;
#else
    void* stack_pointer = nullptr;
#endif
    void* stack = nullptr;
};

// Makes `fiber` start at `entry`, which never returns, when it is switched to.
void prepare_fiber(Fiber& fiber, void (*entry)());

#ifdef CUDA_EMULATOR_UCONTEXT
inline void switch_fiber(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }
#else
extern "C" void emulator_switch(void** save, void* load) __attribute__((visibility("hidden")));
inline void switch_fiber(Fiber& from, Fiber& to) { emulator_switch(&from.stack_pointer, to.stack_pointer); }
#endif
