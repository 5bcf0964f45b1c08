// What the driver remembers. Everything here is guarded by `state().lock`; only what says so is not.
#pragma once

#include "api.hpp"
#include "module_abi.hpp"

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <cstdio>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

struct Stream;
struct Context;
struct Launch;
struct Capture; // this and those that follow: graphs.hpp
struct Graph;
struct GraphExec;
struct GraphRun;
struct Node;

// Whether a command has run: what events, waits and the default stream's barriers refer to.
struct Moment {
    std::shared_ptr<Stream> stream;
    bool passed = false;
    double milliseconds = 0; // when it passed
};
using MomentPtr = std::shared_ptr<Moment>;

// As CUgraphNodeType.
enum class WorkType : int { Kernel = 0, Copy = 1, Fill = 2, Host = 3, Empty = 5, Memory = 12 };

// What a command does once, and a node of a graph whenever that runs.
struct Work {
    WorkType type = WorkType::Kernel;
    std::string name;
    Context* context = nullptr;                    // whose error a failure is
    std::function<bool()> condition;               // may be empty; for waits on memory
    bool meets = false;                            // the condition is that other streams have come so far
    std::function<CUresult(uint64_t stream)> run;  // may be empty
    CUhostFn host = nullptr;
    void* host_data = nullptr;
    std::shared_ptr<const Launch> launch; // of a kernel
};

struct Command : Work {
    std::vector<MomentPtr> after; // beside the commands before it in its stream
    bool running = false;         // a host function that has been handed to its thread
    std::shared_ptr<GraphRun> graph; // may be empty; the command has passed once all of the nodes have run
    MomentPtr moment;
};

struct Stream : std::enable_shared_from_this<Stream> {
    uint64_t id = 0; // 0 is the legacy default stream
    Context* context = nullptr;
    bool blocking = true;
    int priority = 0;
    unsigned flags = 0;
    std::deque<Command> queue;
    MomentPtr last; // of the newest command
    uint64_t waits = 0;
    std::shared_ptr<Capture> capture; // empty: it does not capture
    std::vector<Node*> tail;          // what its next node comes after
    std::vector<void*> shown;         // that, as cuStreamGetCaptureInfo gives it
};
using StreamPtr = std::shared_ptr<Stream>;

struct Event {
    uint64_t id = 0;
    Context* context = nullptr;
    unsigned flags = 0;
    MomentPtr recorded; // empty until the first record
    // If that was in a capture.
    std::shared_ptr<Capture> capture;
    std::vector<Node*> captured;
    // Of an interprocess event: what it shares with other processes, and the file that they open; no file if it is theirs.
    struct SharedEvent* shared = nullptr;
    int file = -1;
    bool elsewhere = false; // it is another process that records it
    ~Event();
};

struct Allocation {
    uintptr_t begin = 0, bytes = 0;
    uintptr_t map = 0, map_bytes = 0; // with the guards
    uintptr_t slack = 0;              // bytes between the end and the guard
    Context* context = nullptr;
    bool host = false;
    bool open = true; // readable and writable now
    int file = -1;          // that holds it, once other processes may open it
    bool elsewhere = false; // another process's, opened here
};

// Memory of a device without an address of its own: a stretch of one file. It is there while a handle or a mapping is.
struct Physical {
    Context* owner = nullptr;
    uint64_t offset = 0, bytes = 0;
    ~Physical();
};

struct Mapping {
    std::shared_ptr<Physical> memory;
    uint64_t bytes = 0;
    std::set<CUdevice> devices; // that may read and write it
    int protection = 0;         // now, as mprotect has it
};

// Reserved addresses.
struct Range {
    uintptr_t begin = 0, bytes = 0;
    uintptr_t map = 0, map_bytes = 0; // with the guards
    std::map<uintptr_t, Mapping> mappings;
};

struct Module {
    int file = -1;
    void* library = nullptr;
    const EmulatorModule* program = nullptr;
    Context* context = nullptr;
    ~Module();
};

struct Function {
    std::shared_ptr<Module> module;
    const EmulatorKernel* kernel = nullptr;
    unsigned max_dynamic_shared = 48 << 10;
    void (*library)(void*) = nullptr; // runs a library's kernel as a whole, with its one argument
    bool modern = false;              // that is one, see cuEmulatorLaunch
};

struct Context {
    CUdevice device = 0;
    unsigned retained = 0;
    CUresult error = CUDA_SUCCESS; // sticky
    StreamPtr legacy;
    std::vector<StreamPtr> streams; // the destroyed ones too, until they are empty
    uint64_t used = 0;              // bytes of device memory
};

// A fixed sequence for a seed (splitmix64).
struct Random {
    uint64_t word = 0;
    uint64_t next();
    uint64_t below(uint64_t bound) { return next() % bound; }
};

struct Failure {
    uint64_t call = 0;
    int code = -1;
};

struct State {
    std::mutex lock;
    std::condition_variable progress; // a host function ended
    bool initialised = false;
    std::vector<std::unique_ptr<Context>> contexts; // one for each device
    uint64_t next_handle = 0x1000;
    uint64_t next_stream = 1, next_event = 1, next_graph = 1, next_capture = 1;
    std::unordered_map<void*, StreamPtr> streams;
    std::unordered_map<void*, std::shared_ptr<Event>> events;
    std::unordered_map<void*, std::shared_ptr<Module>> modules;
    std::unordered_map<void*, std::shared_ptr<Function>> functions;
    std::unordered_map<void*, std::shared_ptr<Graph>> graphs;
    std::unordered_map<void*, Node*> nodes;
    std::unordered_map<void*, std::shared_ptr<GraphExec>> execs;
    std::map<uintptr_t, Allocation> allocations; // by first byte
    std::deque<Allocation> freed;                // mapped without access, oldest first
    std::map<uintptr_t, Range> ranges;           // by first byte
    std::unordered_map<unsigned long long, std::shared_ptr<Physical>> handles;

    // The adversary.
    uint64_t seed = 0;
    Random random;
    uint64_t memory = 0; // of each device
    uint64_t page = 0;   // of virtual memory; 0: there is none
    uint64_t bound = 0;  // of queued commands
    unsigned capability = 90; // of the devices, as in sm_90
    int version = 0;     // of CUDA, as the driver has it: 13000 is 13.0
    bool twice = false;
    bool hide = true; // device memory from the host
    int64_t drop_wait = 0, drop_edge = 0;
    int64_t edges = 0; // of graphs that were instantiated
    uint64_t drop_stream = 0; // whose waits are counted; 0: all are
    std::unordered_map<std::string, std::vector<Failure>> failures;
    std::unordered_map<std::string, uint64_t> calls;

    void* handle() { return reinterpret_cast<void*>((next_handle++) << 4); }
};
State& state();

// Each thread has a current context.
extern thread_local Context* current_context;
extern thread_local bool in_host_function;

// calls.cpp: every exported function is one `call`.
enum class Needs { Nothing, Driver, Context, ContextEvenBroken };
struct Call {
    const char* name;
    std::unique_lock<std::mutex> lock;
    Context* context = nullptr;
    std::string details;
    void note(const char* format, ...) __attribute__((format(printf, 2, 3)));
};
CUresult begin(Call& call, Needs needs);
void log_call(const char* name, const std::string& details, int result);
void log_line(const char* format, ...) __attribute__((format(printf, 1, 2)));
void report(const char* format, ...) __attribute__((format(printf, 1, 2)));

template <class Body> CUresult call(const char* name, Needs needs, Body body) {
    Call call{name, std::unique_lock<std::mutex>(state().lock), nullptr, {}};
    CUresult result = begin(call, needs);
    if (result == CUDA_SUCCESS) {
        result = body(call);
        // The error may have come up meanwhile; it is returned by whatever is called next.
        if (call.context && call.context->error != CUDA_SUCCESS && needs == Needs::ContextEvenBroken && result == CUDA_SUCCESS)
            result = call.context->error;
    }
    log_call(name, call.details, result);
    return result;
}

// adversary.cpp
void read_environment();
bool drops_this_wait(const Stream& stream); // the newest of the stream
bool drops_next_edge();
// Which of the streams runs next. `needed`: whether the awaited command needs it.
struct Candidate {
    Stream* stream;
    bool needed;
    size_t node = 0; // of the graph that the stream's next command runs
};
size_t choose(const std::vector<Candidate>& candidates);
bool considers_all_streams();

// context.cpp
Context* known_context(CUcontext handle); // nullptr: no such context

// module.cpp
std::string kernel_name(CUfunction function);
// A library's kernel, with an argument of so many bytes.
CUfunction library_function(Context* context, const std::string& name, bool modern, void (*run)(void*), unsigned bytes);
bool is_modern(CUfunction function);
constexpr unsigned LIBRARY_THREADS = 128; // of a block of its kernels
CUresult prepare_launch(const KernelParams& params, Context* context, std::shared_ptr<Launch>& out);
Work kernel_work(std::shared_ptr<const Launch> launch);

// executor.cpp
StreamPtr find_stream(CUstream handle, Context* context); // empty: no such stream
StreamPtr any_stream(CUstream handle, Context* current);  // of another context, too
MomentPtr enqueue(const StreamPtr& stream, Command command);
void finish(std::unique_lock<std::mutex>& lock, const MomentPtr& moment);
// Runs at most one command that the moment needs.
void nudge(const MomentPtr& moment);
// What calls do that wait for all work of the context: an error if a stream of it waits for host memory, which nobody changes
// for 10 s. Other work is not run for their sake.
CUresult await_host(std::unique_lock<std::mutex>& lock, Context* context, const char* name);
void drain(std::unique_lock<std::mutex>& lock, Context* context);
void keep_bound();
void fail_context(Context* context, CUresult error);
void discard(Context* context);
double now_milliseconds();

// capture.cpp
// Enqueues a command, or has it be a node if the stream captures.
CUresult submit(const StreamPtr& stream, Command command);
void invalidate(const StreamPtr& stream);
// What calls that wait for something, or look at it, or allocate, may not do while streams capture; CUDA_SUCCESS if they may.
CUresult look_at(const StreamPtr& stream);
CUresult look_at(const Event& event);
CUresult look_at(Context* context);
CUresult unsafe_call();
CUresult implicit_wait(const StreamPtr& stream); // of the legacy default stream for the blocking ones, if it is that
// Whether a wait or a record is a capture's; its result if so.
bool captures_wait(const StreamPtr& stream, const Event& event, CUresult& result);
bool captures_record(const StreamPtr& stream, Event& event, CUresult& result);
void leave_capture(const StreamPtr& stream); // for good

// memory.cpp
constexpr uintptr_t GUARD = 16 << 20; // addresses without access on either side of what is reserved; they cost nothing
const Allocation* find_allocation(uintptr_t address, uint64_t bytes);
// Whether it is all in one allocation, or mapped for some device.
bool has_memory(uintptr_t address, uint64_t bytes);
// The memory that kernels of a device may touch, mapped host memory left out.
std::vector<std::pair<uintptr_t, uint64_t>> device_memory(Context* context);
// What nothing is in any more stays reserved for a while.
void keep_out_of_reach(const Allocation& allocation);
std::string describe_address(uintptr_t address);
void release_context_memory(Context* context);
void check_slack(const std::string& command);
constexpr unsigned char POISON = 0xFF;

// Device memory is out of the host's reach except while commands run: of one device, or of all (nullptr).
void open_memory(Context* context);
void close_memory();

// For interprocess handles.
bool share_allocation(Allocation& allocation);
uintptr_t open_allocation(Context* context, uint64_t bytes, int file); // 0: no
bool close_allocation(uintptr_t address);

// ipc.cpp
struct IpcHandle {
    unsigned char reserved[64];
};
bool make_interprocess(Event& event);
void record_interprocess(const Event& event, Command& command);
bool passed_elsewhere(const Event& event);
void await_elsewhere(const Event& event, Command& command);

// virtual.cpp
bool is_mapped(uintptr_t address, uint64_t bytes);
Context* owner_of_page(uintptr_t address); // nullptr: it has no memory
std::vector<std::pair<uintptr_t, uint64_t>> mapped_for(Context* context);
std::string describe_virtual(uintptr_t address); // empty: not in a reserved range
void protect_virtual(bool open, Context* context);
void log_live(Context* context);

// fault.cpp: runs something that may fault; what went wrong, or CUDA_SUCCESS.
struct Fault {
    CUresult code = CUDA_SUCCESS;
    std::string text;
};
Fault run_guarded(void (*run)(void*), void* data);
[[noreturn]] void stop_guarded(CUresult code, const char* text);
void install_fault_handler();

// grid.cpp
struct Launch {
    CUfunction function = nullptr;
    std::shared_ptr<Module> module;
    const EmulatorKernel* kernel = nullptr;
    EmulatorIndex grid{}, block{};
    unsigned dynamic_shared = 0;
    std::vector<unsigned char> arguments; // one after the other, each aligned to 16
    Context* context = nullptr;
    void (*library)(void*) = nullptr; // as its function has it
};
CUresult run_launch(const Launch& launch, uint64_t stream);
