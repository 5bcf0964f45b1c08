// The library of collectives, between threads of one process with a device each. A rank's operation is two commands of its
// stream: one that shows what the rank has, and one that may run once the operation is done. Whoever shows last does it, for all.
// No call blocks: what a call waits for is in progress, and is asked for.
#include "api.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

EXPORT CUresult cuCtxGetCurrent(CUcontext* out);
EXPORT CUresult cuCtxSetCurrent(CUcontext context);

enum Result : int { SUCCESS = 0, CUDA_FAILED = 1, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum DataType : int { INT8 = 0, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16 };
enum Reduction : int { SUM = 0, PROD, MAX, MIN, AVG };
enum class Kind { AllReduce, ReduceScatter, AllGather, Broadcast, Send, Recv };

struct UniqueId {
    char bytes[128];
};

// The part of it that version 2.18 has.
struct Config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

struct World;

struct Comm {
    std::shared_ptr<World> world;
    int rank = 0;
    int error = SUCCESS;
    bool aborted = false, finalized = false;
    uint64_t splits = 0, collectives = 0;
    std::vector<std::shared_ptr<struct Item>> running; // what was shown and is not done
    std::vector<struct Operation> waiting;             // what was called before all ranks were connected
    std::map<uint64_t, uint64_t> captures;             // by number: which one it was
};
using CommPtr = std::shared_ptr<Comm>;

// One call.
struct Item {
    Kind kind;
    const void* from = nullptr;
    void* to = nullptr;
    size_t count = 0;
    int type = 0, reduction = 0, peer = 0; // the root of a broadcast
    Comm* comm = nullptr;
    bool done = false;
};
using ItemPtr = std::shared_ptr<Item>;

// The calls of a rank that make one group, and where they were put.
struct Operation {
    CommPtr comm;
    std::vector<Item> items;
    CUstream stream;
    CUcontext context;
};

struct Split {
    std::map<int, std::pair<int, int>> asked; // by rank: color and key
    std::map<int, CommPtr> made;
    std::map<int, Comm**> out; // where each rank's is shown once all have come
};

struct World {
    int size = 0;
    std::map<int, CommPtr> joined;
    std::set<int> connected; // the ranks that have called a collective
    std::map<uint64_t, std::vector<ItemPtr>> meetings;
    std::map<std::pair<int, int>, std::deque<ItemPtr>> sends, recvs;
    std::map<uint64_t, Split> splits;
};

// Taken after the driver's lock by commands, and never held where the driver is called.
static std::mutex lock;
static std::map<std::string, std::shared_ptr<World>> worlds;
static std::unordered_map<Comm*, CommPtr> comms;

struct Group {
    int depth = 0, error = SUCCESS;
    std::vector<Operation> operations;
};
static thread_local Group group;

static CommPtr find(Comm* comm) {
    std::lock_guard<std::mutex> held(lock);
    auto found = comms.find(comm);
    return found == comms.end() ? nullptr : found->second;
}

template <class Body> static int call(const char* name, Body body) {
    std::string details;
    int failure = cuEmulatorEnter(name);
    int result = failure ? failure : body(details);
    cuEmulatorLog(name, details.c_str(), result);
    return result;
}

static void complain(const char* text) { fprintf(stderr, "cuda-emulator: nccl: %s\n", text); }

// Elements as numbers. The library adds in an order of its own: here from the last rank to the first.
static float half_to_float(uint16_t bits) {
    _Float16 value;
    memcpy(&value, &bits, 2);
    return float(value);
}
struct Half {
    uint16_t bits;
    operator float() const { return half_to_float(bits); }
    Half& operator=(float x) {
        _Float16 value = _Float16(x);
        memcpy(&bits, &value, 2);
        return *this;
    }
};
struct Brain {
    uint16_t bits;
    operator float() const {
        uint32_t word = uint32_t(bits) << 16;
        float value;
        memcpy(&value, &word, 4);
        return value;
    }
    Brain& operator=(float x) {
        uint32_t word;
        memcpy(&word, &x, 4);
        bits = uint16_t((x != x ? word | 0x400000u : word + 0x7fffu + ((word >> 16) & 1)) >> 16);
        return *this;
    }
};

template <class S, class T> static void reduce(const std::vector<ItemPtr>& items, size_t first, size_t count, int how, unsigned char* out) {
    for (size_t i = 0; i < count; i++) {
        S joined{};
        for (size_t n = items.size(); n-- > 0;) {
            T x = static_cast<const S*>(items[n]->from)[first + i];
            if (n + 1 == items.size()) {
                joined = x;
                continue;
            }
            T so_far = joined;
            switch (how) {
            case SUM: case AVG: joined = so_far + x; break;
            case PROD: joined = so_far * x; break;
            case MAX: joined = so_far > x ? so_far : x; break;
            case MIN: joined = so_far < x ? so_far : x; break;
            }
        }
        if (how == AVG) joined = T(joined) / T(items.size());
        memcpy(out + i * sizeof(S), &joined, sizeof(S));
    }
}

static size_t bytes_of(int type) {
    switch (type) {
    case INT8: case UINT8: return 1;
    case FLOAT16: case BFLOAT16: return 2;
    case INT32: case UINT32: case FLOAT32: return 4;
    default: return 8;
    }
}

static std::vector<unsigned char> reduced(const std::vector<ItemPtr>& items, size_t first, size_t count) {
    std::vector<unsigned char> out(count * bytes_of(items[0]->type));
    int how = items[0]->reduction;
    switch (items[0]->type) {
    case FLOAT32: reduce<float, float>(items, first, count, how, out.data()); break;
    case FLOAT64: reduce<double, double>(items, first, count, how, out.data()); break;
    case FLOAT16: reduce<Half, float>(items, first, count, how, out.data()); break;
    case BFLOAT16: reduce<Brain, float>(items, first, count, how, out.data()); break;
    case INT64: case UINT64: reduce<uint64_t, uint64_t>(items, first, count, how, out.data()); break;
    case INT32: case UINT32: reduce<uint32_t, uint32_t>(items, first, count, how, out.data()); break;
    default: reduce<uint8_t, uint8_t>(items, first, count, how, out.data()); break;
    }
    return out;
}

// All ranks are here, in their order. Nothing is written before everything is read: operands may be in place.
static void meet(const std::vector<ItemPtr>& items) {
    const Item& one = *items[0];
    size_t bytes = one.count * bytes_of(one.type), ranks = items.size();
    std::vector<std::vector<unsigned char>> results(ranks);
    auto copied = [&](const void* from) { return std::vector<unsigned char>(static_cast<const unsigned char*>(from), static_cast<const unsigned char*>(from) + bytes); };
    for (size_t rank = 0; rank < ranks; rank++) {
        switch (one.kind) {
        case Kind::AllReduce: results[rank] = rank ? results[0] : reduced(items, 0, one.count); break;
        case Kind::ReduceScatter: results[rank] = reduced(items, rank * one.count, one.count); break;
        case Kind::Broadcast: results[rank] = rank ? results[0] : copied(items[size_t(one.peer)]->from); break;
        default:
            for (const ItemPtr& item : items) {
                std::vector<unsigned char> part = copied(item->from);
                results[rank].insert(results[rank].end(), part.begin(), part.end());
            }
        }
    }
    for (size_t rank = 0; rank < ranks; rank++) {
        memcpy(items[rank]->to, results[rank].data(), results[rank].size());
        items[rank]->done = true;
    }
}

static bool same(const Item& a, const Item& b) {
    return a.kind == b.kind && a.count == b.count && a.type == b.type && a.reduction == b.reduction && (a.kind != Kind::Broadcast || a.peer == b.peer);
}

static void show_collective(World& world, Comm& comm, const ItemPtr& item) {
    uint64_t number = comm.collectives++;
    std::vector<ItemPtr>& all = world.meetings[number];
    all.resize(size_t(world.size));
    all[size_t(comm.rank)] = item;
    for (const ItemPtr& other : all) {
        if (!other) return;
        // What becomes of it then is not defined: here it never ends.
        if (!same(*other, *item)) return complain("ranks call different collectives");
    }
    meet(all);
    world.meetings.erase(number);
}

static void show_message(World& world, Comm& comm, const ItemPtr& item) {
    bool sends = item->kind == Kind::Send;
    auto pair = sends ? std::make_pair(comm.rank, item->peer) : std::make_pair(item->peer, comm.rank);
    (sends ? world.sends : world.recvs)[pair].push_back(item);
    auto &from = world.sends[pair], &to = world.recvs[pair];
    if (from.empty() || to.empty()) return;
    ItemPtr sent = from.front(), received = to.front();
    if (sent->count != received->count || sent->type != received->type) return complain("a message is not what is received");
    from.pop_front();
    to.pop_front();
    memmove(received->to, sent->from, sent->count * bytes_of(sent->type));
    sent->done = received->done = true;
}

// The first command: the rank's stream has come so far.
static void show(void* data) {
    auto& operation = *static_cast<Operation*>(data);
    Comm& comm = *operation.comm;
    int failure = cuEmulatorEnterHeld("ncclRun");
    std::lock_guard<std::mutex> held(lock);
    if (comm.aborted) return;
    if (!comm.running.empty()) complain("operations of a communicator overlap");
    for (const Item& item : operation.items) comm.running.push_back(std::make_shared<Item>(item));
    if (failure) {
        comm.error = failure;
        return;
    }
    for (const ItemPtr& item : std::vector<ItemPtr>(comm.running)) {
        bool message = item->kind == Kind::Send || item->kind == Kind::Recv;
        (message ? show_message : show_collective)(*comm.world, comm, item);
    }
}

static bool is_done(void* data) {
    Comm& comm = *static_cast<Operation*>(data)->comm;
    std::lock_guard<std::mutex> held(lock);
    if (comm.aborted) return true;
    for (const ItemPtr& item : comm.running)
        if (!item->done) return false;
    return true;
}

// The second command.
static void end(void* data) {
    std::lock_guard<std::mutex> held(lock);
    static_cast<Operation*>(data)->comm->running.clear();
}

static void drop(void* data) { delete static_cast<Operation*>(data); }

// The library keeps a stream for each number of a capture, which is in that capture until it ends.
static bool knows_capture(Comm& comm, CUstream stream) {
    uint64_t id = 0, turn = cuEmulatorCapture(stream, &id);
    return turn == 0 || comm.captures.emplace(id, turn).first->second == turn;
}

static int enqueue(const Operation& operation) {
    CUcontext current = nullptr;
    cuCtxGetCurrent(&current);
    cuCtxSetCurrent(operation.context);
    if (!knows_capture(*operation.comm, operation.stream)) {
        complain("another capture has this one's number");
        cuCtxSetCurrent(current);
        return CUDA_FAILED;
    }
    CUresult first = cuEmulatorMeet(operation.stream, "nccl", nullptr, show, new Operation(operation), drop);
    CUresult second = first == CUDA_SUCCESS ? cuEmulatorMeet(operation.stream, "nccl end", is_done, end, new Operation(operation), drop) : first;
    cuCtxSetCurrent(current);
    return second == CUDA_SUCCESS ? SUCCESS : CUDA_FAILED;
}

static bool is_collective(const Operation& operation) { return operation.items[0].kind < Kind::Send; }

// A first collective waits until all ranks have called theirs.
static int launch(const Operation& operation) {
    {
        std::lock_guard<std::mutex> held(lock);
        World& world = *operation.comm->world;
        if (is_collective(operation)) world.connected.insert(operation.comm->rank);
        bool waits = is_collective(operation) && int(world.connected.size()) < world.size;
        if (waits || !operation.comm->waiting.empty()) {
            operation.comm->waiting.push_back(operation);
            return IN_PROGRESS;
        }
    }
    return enqueue(operation);
}

static int close_group() {
    std::vector<Operation> operations;
    std::swap(operations, group.operations);
    int result = group.error;
    group.error = SUCCESS;
    for (const Operation& operation : operations) {
        int launched = result == SUCCESS || result == IN_PROGRESS ? launch(operation) : result;
        if (result == SUCCESS || launched > SUCCESS) result = launched == SUCCESS ? result : launched;
    }
    return result;
}

static int add(const char* name, Comm* handle, CUstream stream, Item item) {
    return call(name, [&](std::string&) -> int {
        CommPtr comm = find(handle);
        int result = !comm || comm->aborted || comm->finalized || bytes_of(item.type) == 0 ? INVALID_ARGUMENT : SUCCESS;
        if (result == SUCCESS && comm->error != SUCCESS) result = comm->error;
        if (result == SUCCESS && (item.peer < 0 || item.peer >= comm->world->size)) result = INVALID_ARGUMENT;
        if (result == SUCCESS && cuEmulatorCheckStream(stream) != CUDA_SUCCESS) result = CUDA_FAILED;
        if (result != SUCCESS) {
            if (group.depth > 0) group.error = result;
            return result;
        }
        item.comm = comm.get();
        CUcontext context = nullptr;
        cuCtxGetCurrent(&context);
        bool joins = group.depth > 0 && !group.operations.empty() && group.operations.back().comm == comm && group.operations.back().stream == stream;
        if (joins)
            group.operations.back().items.push_back(item);
        else
            group.operations.push_back({comm, {item}, stream, context});
        // It may be in progress until the group has ended.
        return group.depth > 0 ? int(IN_PROGRESS) : close_group();
    });
}

EXPORT int ncclGetVersion(int* out) {
    *out = 22803;
    return SUCCESS;
}

EXPORT const char* ncclGetErrorString(int code) {
    switch (code) {
    case SUCCESS: return "no error";
    case CUDA_FAILED: return "unhandled cuda error";
    case INVALID_ARGUMENT: return "invalid argument";
    case INVALID_USAGE: return "invalid usage";
    case REMOTE_ERROR: return "remote process exited or there was a network error";
    case IN_PROGRESS: return "NCCL operation in progress";
    default: return "internal error";
    }
}

EXPORT const char* ncclGetLastError(Comm*) { return ""; }

EXPORT int ncclGetUniqueId(UniqueId* out) {
    return call("ncclGetUniqueId", [&](std::string&) -> int {
        static uint64_t next = 1;
        std::lock_guard<std::mutex> held(lock);
        memset(out->bytes, 0, sizeof out->bytes);
        snprintf(out->bytes, sizeof out->bytes, "world %llu", (unsigned long long)next++);
        return SUCCESS;
    });
}

static bool is_understood(const Config* config) { return config && config->magic == 0xcafebeef && config->size >= sizeof(Config) && config->blocking == 0; }

EXPORT int ncclCommInitRankConfig(Comm** out, int size, UniqueId id, int rank, Config* config) {
    return call("ncclCommInitRankConfig", [&](std::string& details) -> int {
        details = "rank=" + std::to_string(rank) + " size=" + std::to_string(size);
        if (!is_understood(config) || size < 1 || rank < 0 || rank >= size) return INVALID_ARGUMENT;
        if (cuEmulatorCheckStream(nullptr) != CUDA_SUCCESS) return CUDA_FAILED;
        if (const char* multicast = getenv("NCCL_NVLS_ENABLE"); !multicast || strcmp(multicast, "0") != 0) complain("multicast is on");
        std::lock_guard<std::mutex> held(lock);
        std::shared_ptr<World>& world = worlds[std::string(id.bytes, sizeof id.bytes)];
        if (!world) world = std::make_shared<World>(), world->size = size;
        if (world->size != size || world->joined.count(rank)) return INVALID_USAGE;
        auto comm = std::make_shared<Comm>();
        comm->world = world;
        comm->rank = rank;
        world->joined[rank] = comm;
        comms[comm.get()] = comm;
        *out = comm.get();
        return IN_PROGRESS;
    });
}

// The ranks with one color, in the order of their keys.
static void finish_split(Split& split) {
    std::map<int, std::map<std::pair<int, int>, int>> colors;
    for (auto& [rank, asked] : split.asked)
        if (asked.first >= 0) colors[asked.first][{asked.second, rank}] = rank;
    for (auto& [color, ranks] : colors) {
        auto world = std::make_shared<World>();
        world->size = int(ranks.size());
        for (auto& [key, rank] : ranks) {
            CommPtr comm = split.made[rank];
            comm->world = world;
            comm->rank = int(world->joined.size());
            world->joined[comm->rank] = comm;
            *split.out[rank] = comm.get();
        }
    }
}

// As the library does it: the answer is success at once, and the new communicator is shown when all ranks have come.
EXPORT int ncclCommSplit(Comm* handle, int color, int key, Comm** out, Config* config) {
    return call("ncclCommSplit", [&](std::string&) -> int {
        CommPtr comm = find(handle);
        if (!comm || comm->aborted || !is_understood(config)) return INVALID_ARGUMENT;
        std::lock_guard<std::mutex> held(lock);
        if (!comm->running.empty()) complain("a communicator is split while it works");
        World& world = *comm->world;
        Split& split = world.splits[comm->splits++];
        split.asked[comm->rank] = {color, key};
        *out = nullptr;
        if (color >= 0) {
            auto made = std::make_shared<Comm>();
            comms[made.get()] = split.made[comm->rank] = made;
            split.out[comm->rank] = out;
        }
        if (int(split.asked.size()) == world.size) finish_split(split);
        return SUCCESS;
    });
}

// Whether all ranks have come to what this one waits for.
static bool is_settled(Comm& comm) {
    if (!comm.world || int(comm.world->joined.size()) < comm.world->size) return false;
    if (comm.splits > 0 && int(comm.world->splits[comm.splits - 1].asked.size()) < comm.world->size) return false;
    return !comm.finalized || comm.running.empty();
}

EXPORT int ncclCommGetAsyncError(Comm* handle, int* out) {
    return call("ncclCommGetAsyncError", [&](std::string&) -> int {
        CommPtr comm = find(handle);
        if (!comm || comm->aborted) return INVALID_ARGUMENT;
        std::vector<Operation> connected;
        {
            std::lock_guard<std::mutex> held(lock);
            *out = comm->error != SUCCESS ? comm->error : is_settled(*comm) ? int(SUCCESS) : int(IN_PROGRESS);
            if (*out != SUCCESS || comm->waiting.empty()) return SUCCESS;
            if (int(comm->world->connected.size()) < comm->world->size) {
                *out = IN_PROGRESS;
                return SUCCESS;
            }
            std::swap(connected, comm->waiting);
        }
        for (const Operation& operation : connected)
            if (*out == SUCCESS) *out = enqueue(operation);
        return SUCCESS;
    });
}

EXPORT int ncclCommUserRank(Comm* handle, int* out) {
    CommPtr comm = find(handle);
    if (!comm || !comm->world) return INVALID_ARGUMENT;
    *out = comm->rank;
    return SUCCESS;
}

EXPORT int ncclCommCount(Comm* handle, int* out) {
    CommPtr comm = find(handle);
    if (!comm || !comm->world) return INVALID_ARGUMENT;
    *out = comm->world->size;
    return SUCCESS;
}

EXPORT int ncclCommFinalize(Comm* handle) {
    return call("ncclCommFinalize", [&](std::string&) -> int {
        CommPtr comm = find(handle);
        if (!comm || comm->aborted || comm->finalized) return INVALID_ARGUMENT;
        std::lock_guard<std::mutex> held(lock);
        comm->finalized = true;
        return IN_PROGRESS;
    });
}

EXPORT int ncclCommDestroy(Comm* handle) {
    return call("ncclCommDestroy", [&](std::string&) -> int {
        CommPtr comm = find(handle);
        if (!comm || comm->aborted) return INVALID_ARGUMENT;
        std::lock_guard<std::mutex> held(lock);
        if (!comm->finalized || !comm->running.empty()) complain("a communicator is destroyed before it is finalized");
        comms.erase(handle);
        return SUCCESS;
    });
}

template <class Map> static void withdraw(Map& map, Comm* comm) {
    for (auto& [pair, items] : map)
        for (size_t i = items.size(); i-- > 0;)
            if (items[i]->comm == comm) items.erase(items.begin() + long(i));
}

EXPORT int ncclCommAbort(Comm* handle) {
    return call("ncclCommAbort", [&](std::string&) -> int {
        CommPtr comm = find(handle);
        if (!comm) return INVALID_ARGUMENT;
        std::lock_guard<std::mutex> held(lock);
        comm->aborted = true;
        comm->running.clear();
        comm->waiting.clear();
        comms.erase(handle);
        if (!comm->world) return SUCCESS;
        for (auto& [number, items] : comm->world->meetings) items[size_t(comm->rank)] = nullptr;
        withdraw(comm->world->sends, handle);
        withdraw(comm->world->recvs, handle);
        return SUCCESS;
    });
}

EXPORT int ncclGroupStart() {
    group.depth++;
    return SUCCESS;
}

EXPORT int ncclGroupEnd() {
    return call("ncclGroupEnd", [&](std::string&) -> int {
        if (group.depth == 0) return INVALID_USAGE;
        return --group.depth > 0 ? int(SUCCESS) : close_group();
    });
}

EXPORT int ncclAllReduce(const void* from, void* to, size_t count, int type, int reduction, Comm* comm, CUstream stream) {
    return add("ncclAllReduce", comm, stream, {Kind::AllReduce, from, to, count, type, reduction});
}

EXPORT int ncclReduceScatter(const void* from, void* to, size_t count, int type, int reduction, Comm* comm, CUstream stream) {
    return add("ncclReduceScatter", comm, stream, {Kind::ReduceScatter, from, to, count, type, reduction});
}

EXPORT int ncclAllGather(const void* from, void* to, size_t count, int type, Comm* comm, CUstream stream) {
    return add("ncclAllGather", comm, stream, {Kind::AllGather, from, to, count, type});
}

EXPORT int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, Comm* comm, CUstream stream) {
    return add("ncclBroadcast", comm, stream, {Kind::Broadcast, from, to, count, type, 0, root});
}

EXPORT int ncclSend(const void* from, size_t count, int type, int peer, Comm* comm, CUstream stream) {
    return add("ncclSend", comm, stream, {Kind::Send, from, nullptr, count, type, 0, peer});
}

EXPORT int ncclRecv(void* to, size_t count, int type, int peer, Comm* comm, CUstream stream) {
    return add("ncclRecv", comm, stream, {Kind::Recv, nullptr, to, count, type, 0, peer});
}
