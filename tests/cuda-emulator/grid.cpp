// Runs the blocks of a launch, one after the other, and the threads of a block on fibers.
//
// A fiber runs one thread after the other until one has to wait for others; then another fiber goes on with the threads
// that are left. So a kernel without barriers is a plain loop, and one with barriers has a fiber for each thread.
#include "fibers.hpp"
#include "state.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <sys/mman.h>

constexpr unsigned MAX_THREADS = 1024, WARP = 32;
constexpr size_t ARENA = 256 << 10; // dynamic shared memory, with room for what a block may ask for

enum class Phase : unsigned char { Ready, AtBarrier, AtWarp, Ended };
enum class WarpOp : unsigned char { Exchange, Ballot, Match };

struct Thread {
    Phase phase;
    WarpOp op;
    unsigned mask, source;
    unsigned long long value, result;
    int line, predicate;
    Fiber* fiber;
};

// What runs now. There is one, and it is static, since a fault leaves without unwinding.
static struct {
    const Launch* launch;
    EmulatorState* program;
    void** arguments;
    Fiber host, fibers[MAX_THREADS];
    Fiber* idle[MAX_THREADS];
    unsigned idle_count, prepared;
    Thread threads[MAX_THREADS];
    unsigned short order[MAX_THREADS], ready[MAX_THREADS];
    unsigned ready_count, ready_next;
    unsigned count, next, live, current;
    EmulatorIndex index[MAX_THREADS];
    Fiber* running;
    unsigned char* arena_end;
    Random random;
    bool flipped; // the other order of everything, for a second run
} run;

static void set_current(unsigned thread) {
    run.current = thread;
    run.program->thread = run.index[thread];
}

// The next thread that may go on becomes the running one; the fiber to switch to.
static Fiber& next_fiber() {
    if (run.ready_next == run.ready_count) return run.host;
    unsigned thread = run.ready[run.ready_next++];
    set_current(thread);
    return *run.threads[thread].fiber;
}

// Where every fiber begins. It ends only with the launch.
static void work() {
    Fiber* self = run.running;
    for (;;) {
        while (run.next < run.count) {
            unsigned thread = run.order[run.next++];
            run.threads[thread].phase = Phase::Ready;
            run.threads[thread].fiber = self;
            set_current(thread);
            run.launch->kernel->call(run.arguments);
            run.threads[thread].phase = Phase::Ended;
            run.live--;
        }
        run.idle[run.idle_count++] = self;
        switch_fiber(*self, next_fiber());
    }
}

// Gives threads that have not begun to a fiber that has none.
static void begin_threads(Fiber* fiber) {
    run.running = fiber;
    switch_fiber(run.host, *fiber);
}

static Fiber* idle_fiber() {
    if (run.idle_count) return run.idle[--run.idle_count];
    Fiber* fiber = &run.fibers[run.prepared++];
    prepare_fiber(*fiber, work);
    return fiber;
}

// The running thread waits; the others go on.
static Thread& wait(Phase phase) {
    Thread& thread = run.threads[run.current];
    thread.phase = phase;
    switch_fiber(*thread.fiber, next_fiber());
    return thread;
}

static int barrier(int line, int predicate) {
    Thread& thread = run.threads[run.current];
    thread.line = line;
    thread.predicate = predicate != 0;
    return int(wait(Phase::AtBarrier).result);
}

static unsigned long long at_warp(WarpOp op, unsigned mask, unsigned long long value, unsigned source) {
    Thread& thread = run.threads[run.current];
    if (!(mask >> (run.current % WARP) & 1)) stop_guarded(CUDA_ERROR_LAUNCH_FAILED, "called a warp function with a mask that leaves the caller out");
    thread.op = op;
    thread.mask = mask;
    thread.value = value;
    thread.source = source;
    return wait(Phase::AtWarp).result;
}

static unsigned long long exchange(unsigned mask, unsigned long long value, unsigned source) { return at_warp(WarpOp::Exchange, mask, value, source); }
static unsigned ballot(unsigned mask, int predicate) { return unsigned(at_warp(WarpOp::Ballot, mask, predicate != 0, 0)); }
static unsigned match(unsigned mask, unsigned long long value) { return unsigned(at_warp(WarpOp::Match, mask, value, 0)); }
static unsigned lane() { return run.current % WARP; }
static long long device_clock() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

static void stop(int code, const char* why, const char* file, int line) {
    char text[256];
    snprintf(text, sizeof text, "stopped: %s (%s:%d)", why, file, line);
    stop_guarded(CUresult(code), text);
}

static const EmulatorRuntime RUNTIME = {barrier, exchange, ballot, match, lane, device_clock, stop};

// All threads that have not ended are at the barrier: they may go on.
static void release_block() {
    int line = 0;
    unsigned agreed = 0;
    for (unsigned i = 0; i < run.count; i++) {
        Thread& thread = run.threads[i];
        if (thread.phase != Phase::AtBarrier) continue;
        if (line && thread.line != line) {
            char text[128];
            snprintf(text, sizeof text, "has threads of one block at different barriers, lines %d and %d", line, thread.line);
            stop_guarded(CUDA_ERROR_LAUNCH_FAILED, text);
        }
        line = thread.line;
        agreed += unsigned(thread.predicate);
    }
    for (unsigned i = 0; i < run.count; i++)
        if (run.threads[i].phase == Phase::AtBarrier) {
            run.threads[i].result = agreed;
            run.threads[i].phase = Phase::Ready;
        }
}

// Lanes of a warp that wait with one mask, all of which are there.
static bool release_lanes(Thread* warp, unsigned lanes) {
    bool released = false;
    unsigned live = 0, waiting = 0;
    for (unsigned i = 0; i < lanes; i++) {
        if (warp[i].phase != Phase::Ended) live |= 1u << i;
        if (warp[i].phase == Phase::AtWarp) waiting |= 1u << i;
    }
    while (waiting) {
        unsigned first = unsigned(__builtin_ctz(waiting));
        unsigned mask = warp[first].mask, members = mask & live;
        waiting &= ~members;
        bool complete = true;
        for (unsigned i = 0; i < lanes; i++)
            if (members >> i & 1)
                complete = complete && warp[i].phase == Phase::AtWarp && warp[i].mask == mask && warp[i].op == warp[first].op;
        if (!complete) continue;
        unsigned ballots = 0;
        for (unsigned i = 0; i < lanes; i++)
            if ((members >> i & 1) && warp[i].value) ballots |= 1u << i;
        for (unsigned i = 0; i < lanes; i++) {
            if (!(members >> i & 1)) continue;
            Thread& thread = warp[i];
            switch (thread.op) {
            // The value of a lane that does not take part is undefined.
            case WarpOp::Exchange: thread.result = members >> thread.source & 1 ? warp[thread.source].value : ~0ull; break;
            case WarpOp::Ballot: thread.result = ballots; break;
            case WarpOp::Match:
                thread.result = 0;
                for (unsigned j = 0; j < lanes; j++)
                    if ((members >> j & 1) && warp[j].value == thread.value) thread.result |= 1ull << j;
            }
            released = true;
        }
        for (unsigned i = 0; i < lanes; i++)
            if (members >> i & 1) warp[i].phase = Phase::Ready;
    }
    return released;
}

static void release_some() {
    unsigned at_barrier = 0;
    for (unsigned i = 0; i < run.count; i++) at_barrier += run.threads[i].phase == Phase::AtBarrier;
    if (at_barrier == run.live) return release_block();
    bool released = false;
    for (unsigned first = 0; first < run.count; first += WARP)
        released |= release_lanes(run.threads + first, std::min(WARP, run.count - first));
    if (!released) stop_guarded(CUDA_ERROR_LAUNCH_FAILED, "would hang: its threads wait for others that wait elsewhere, or named lanes that do");
}

// Those that may go on, in an order that differs from time to time.
static void collect_ready() {
    run.ready_count = run.ready_next = 0;
    unsigned begin = unsigned(run.random.below(run.count));
    bool backwards = (run.random.next() & 1) != run.flipped;
    for (unsigned i = 0; i < run.count; i++) {
        unsigned step = begin + i;
        if (step >= run.count) step -= run.count;
        unsigned thread = run.order[backwards ? run.count - 1 - step : step];
        if (run.threads[thread].phase == Phase::Ready) run.ready[run.ready_count++] = (unsigned short)thread;
    }
}

static void run_block(const EmulatorModule& program) {
    size_t shared = size_t(program.shared_end - program.shared_begin);
    if (shared) memset(program.shared_begin, POISON, shared);
    if (run.program->dynamic_shared_bytes) memset(run.program->dynamic_shared, POISON, run.program->dynamic_shared_bytes);
    run.next = 0;
    run.live = run.count;
    while (run.next < run.count) begin_threads(idle_fiber());
    while (run.live) {
        release_some();
        collect_ready();
        switch_fiber(run.host, next_fiber());
    }
}

static void order_threads() {
    for (unsigned i = 0; i < run.count; i++) run.order[i] = (unsigned short)i;
    uint64_t kind = run.random.below(3); // forwards, backwards, shuffled
    if (kind == 2)
        for (unsigned i = run.count - 1; i > 0; i--) std::swap(run.order[i], run.order[run.random.below(i + 1)]);
    if ((kind == 1) != run.flipped) std::reverse(run.order, run.order + run.count);
}

static unsigned char* arena_end() {
    if (!run.arena_end) {
        size_t guard = 1 << 20;
        auto* map = static_cast<unsigned char*>(mmap(nullptr, ARENA + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        mprotect(map + guard, ARENA, PROT_READ | PROT_WRITE);
        run.arena_end = map + guard + ARENA;
    }
    return run.arena_end;
}

static void run_blocks(void*) {
    const Launch& launch = *run.launch;
    const EmulatorModule& program = *launch.module->program;
    uint64_t blocks = uint64_t(launch.grid.x) * launch.grid.y * launch.grid.z;
    uint64_t begin = run.random.below(blocks);
    bool backwards = (run.random.next() & 1) != run.flipped;
    for (uint64_t i = 0; i < blocks; i++) {
        uint64_t block = (begin + i) % blocks;
        if (backwards) block = blocks - 1 - block;
        run.program->block = {unsigned(block % launch.grid.x), unsigned(block / launch.grid.x % launch.grid.y),
                              unsigned(block / launch.grid.x / launch.grid.y)};
        run_block(program);
    }
}

static CUresult run_once(const Launch& launch, uint64_t stream, uint64_t seed, bool flipped) {
    const EmulatorModule& program = *launch.module->program;
    run.launch = &launch;
    run.program = program.state;
    run.idle_count = run.prepared = run.ready_count = run.ready_next = 0;
    run.count = launch.block.x * launch.block.y * launch.block.z;
    for (unsigned i = 0; i < run.count; i++)
        run.index[i] = {i % launch.block.x, i / launch.block.x % launch.block.y, i / launch.block.x / launch.block.y};
    run.random.word = seed;
    run.flipped = flipped;
    order_threads();
    run.program->runtime = &RUNTIME;
    run.program->block_dim = launch.block;
    run.program->grid_dim = launch.grid;
    run.program->dynamic_shared_bytes = launch.dynamic_shared;
    run.program->dynamic_shared = arena_end() - (launch.dynamic_shared + 15) / 16 * 16;
    void* arguments[256];
    size_t offset = 0;
    for (unsigned i = 0; i < launch.kernel->parameters; i++) {
        arguments[i] = const_cast<unsigned char*>(launch.arguments.data()) + offset;
        offset += (launch.kernel->sizes[i] + 15) / 16 * 16;
    }
    run.arguments = arguments;
    Fault fault = run_guarded(run_blocks, nullptr);
    if (fault.code != CUDA_SUCCESS) {
        const EmulatorIndex &block = run.program->block, &thread = run.index[run.current];
        report("kernel %s %s; block (%u,%u,%u), thread (%u,%u,%u), stream %llu", launch.kernel->name, fault.text.c_str(), block.x, block.y, block.z,
               thread.x, thread.y, thread.z, (unsigned long long)stream);
    }
    check_slack(std::string("kernel ") + launch.kernel->name);
    return fault.code;
}

using Bytes = std::vector<unsigned char>;
static std::vector<Bytes> device_bytes(Context* context) {
    std::vector<Bytes> all;
    for (auto [address, bytes] : device_memory(context)) {
        auto* begin = reinterpret_cast<unsigned char*>(address);
        all.emplace_back(begin, begin + bytes);
    }
    return all;
}

static void restore(Context* context, const std::vector<Bytes>& saved) {
    size_t next = 0;
    for (auto [address, bytes] : device_memory(context)) memcpy(reinterpret_cast<void*>(address), saved[next++].data(), bytes);
}

// Runs it with the threads in two orders, from the same memory. What differs is a race, or depends on rounding in an order
// that the hardware does not promise.
static CUresult run_twice(const Launch& launch, uint64_t stream, uint64_t seed) {
    std::vector<Bytes> before = device_bytes(launch.context);
    CUresult first = run_once(launch, stream, seed, false);
    if (first != CUDA_SUCCESS) return first;
    std::vector<Bytes> one = device_bytes(launch.context);
    restore(launch.context, before);
    CUresult second = run_once(launch, stream, seed, true);
    if (second != CUDA_SUCCESS || one == device_bytes(launch.context)) return second;
    report("kernel %s gives another result when its threads run in another order; stream %llu", launch.kernel->name, (unsigned long long)stream);
    return CUDA_ERROR_LAUNCH_FAILED;
}

static CUresult run_library(const Launch& launch, uint64_t stream) {
    Fault fault = run_guarded(launch.library, const_cast<unsigned char*>(launch.arguments.data()));
    if (fault.code != CUDA_SUCCESS) report("%s %s; stream %llu", launch.kernel->name, fault.text.c_str(), (unsigned long long)stream);
    check_slack(launch.kernel->name);
    return fault.code;
}

CUresult run_launch(const Launch& launch, uint64_t stream) {
    open_memory(launch.context);
    if (launch.library) return run_library(launch, stream);
    uint64_t seed = state().random.next();
    return state().twice ? run_twice(launch, stream, seed) : run_once(launch, stream, seed, false);
}
