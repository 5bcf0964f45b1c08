// What the driver and a compiled program know of each other. Included by the driver and, without any system header, by
// the programs; both are compiled by the same compiler.
#pragma once

struct EmulatorIndex {
    unsigned x, y, z;
};

// What the driver offers to a running kernel.
struct EmulatorRuntime {
    // All threads of the block that have not ended arrive; returns for how many `predicate` is not 0.
    int (*barrier)(int line, int predicate);
    // The lanes of `mask` arrive; returns the `value` of lane `source` (exchange), or a mask of lanes.
    unsigned long long (*exchange)(unsigned mask, unsigned long long value, unsigned source);
    unsigned (*ballot)(unsigned mask, int predicate);
    unsigned (*match)(unsigned mask, unsigned long long value);
    unsigned (*lane)();
    long long (*clock)();
    // Ends the kernel with a CUDA error code.
    void (*stop)(int code, const char* why, const char* file, int line);
};

// The running thread, as the kernel's code sees it. One for a program; the driver runs one kernel at a time.
struct EmulatorState {
    EmulatorIndex thread, block, block_dim, grid_dim;
    unsigned char* dynamic_shared;
    unsigned dynamic_shared_bytes;
    const EmulatorRuntime* runtime;
};

struct EmulatorKernel {
    const char* name;
    void (*call)(void** arguments);
    const unsigned* sizes; // of each parameter
    unsigned parameters;
    unsigned max_threads; // of __launch_bounds__, or 1024
};

struct EmulatorModule {
    EmulatorState* state;
    const EmulatorKernel* kernels;
    unsigned kernel_count;
    unsigned char* shared_begin; // all static __shared__ variables of the program
    unsigned char* shared_end;
};
