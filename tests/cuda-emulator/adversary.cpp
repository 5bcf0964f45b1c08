// Which of the legal schedules happens, and what is made to go wrong.
#include "state.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

uint64_t Random::next() {
    uint64_t mixed = (word += 0x9E3779B97F4A7C15ull);
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
    return mixed ^ (mixed >> 31);
}

static uint64_t number(const char* variable, uint64_t otherwise) {
    const char* text = getenv(variable);
    if (!text || !*text) return otherwise;
    char* end = nullptr;
    uint64_t value = strtoull(text, &end, 10);
    if (*end == 'K') value <<= 10, end++;
    if (*end == 'M') value <<= 20, end++;
    if (*end == 'G') value <<= 30, end++;
    if (*end) {
        fprintf(stderr, "cuda-emulator: %s=%s is not a number\n", variable, text);
        abort();
    }
    return value;
}

static void set_seed(uint64_t seed) {
    state().seed = seed;
    state().random.word = seed * 0xD1342543DE82EF95ull + 1;
}

// "cuMemAlloc_v2:3,cuLaunchKernel:10:700": function, call, and the code if not the usual one.
static void plan_failures(const char* text) {
    std::string rest = text ? text : "";
    while (!rest.empty()) {
        size_t comma = rest.find(',');
        std::string item = rest.substr(0, comma);
        rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
        char name[128];
        unsigned long long call = 0;
        int code = -1;
        if (sscanf(item.c_str(), "%127[^:]:%llu:%d", name, &call, &code) < 2 || call == 0) {
            fprintf(stderr, "cuda-emulator: CUDA_EMULATOR_FAIL has no function:call in \"%s\"\n", item.c_str());
            abort();
        }
        state().failures[name].push_back({call, code});
    }
}

// "7": of all waits; "2:7": of those of stream 2.
static void plan_drop(const char* text) {
    State& s = state();
    unsigned long long stream = 0, wait = 0;
    char rest;
    s.drop_stream = 0;
    if (text && sscanf(text, "%llu:%llu%c", &stream, &wait, &rest) == 2 && stream > 0) {
        s.drop_stream = stream;
        s.drop_wait = int64_t(wait);
    } else {
        s.drop_wait = int64_t(number("CUDA_EMULATOR_DROP_WAIT", 0));
    }
}

static void plan_from_environment() {
    State& s = state();
    s.failures.clear();
    plan_failures(getenv("CUDA_EMULATOR_FAIL"));
    plan_drop(getenv("CUDA_EMULATOR_DROP_WAIT"));
    s.drop_edge = int64_t(number("CUDA_EMULATOR_DROP_EDGE", 0));
    set_seed(number("CUDA_EMULATOR_SEED", 0));
}

void read_environment() {
    static bool read = false;
    if (read) return;
    read = true;
    State& s = state();
    s.memory = number("CUDA_EMULATOR_MEMORY", 4ull << 30);
    s.page = number("CUDA_EMULATOR_PAGE", 2 << 20);
    s.bound = number("CUDA_EMULATOR_QUEUE", 1024);
    s.twice = number("CUDA_EMULATOR_TWICE", 0) != 0;
    s.version = int(number("CUDA_EMULATOR_VERSION", 13000));
    s.hide = number("CUDA_EMULATOR_HIDE", 1) != 0;
    s.capability = unsigned(number("CUDA_EMULATOR_CAPABILITY", 90));
    uint64_t devices = number("CUDA_EMULATOR_DEVICES", 1);
    for (uint64_t device = 0; device < devices; device++) {
        s.contexts.push_back(std::make_unique<Context>());
        s.contexts.back()->device = CUdevice(device);
    }
    plan_from_environment();
}

bool drops_this_wait(const Stream& stream) {
    State& s = state();
    if (s.drop_wait <= 0 || (s.drop_stream && s.drop_stream != stream.id)) return false;
    return uint64_t(s.drop_wait) == (s.drop_stream ? stream.waits : s.calls["cuStreamWaitEvent"]);
}

bool drops_next_edge() { return ++state().edges == state().drop_edge; }

// Seed 0 runs what is awaited and nothing else. The other seeds take one of four habits.
enum class Habit { Late, Anything, OnlyNeeded, OthersFirst, Favourites };
static Habit habit() {
    if (state().seed == 0) return Habit::Late;
    switch (state().seed % 4) {
    case 1: return Habit::Anything;
    case 2: return Habit::OthersFirst;
    case 3: return Habit::Favourites;
    default: return Habit::OnlyNeeded;
    }
}

bool considers_all_streams() { return habit() != Habit::Late && habit() != Habit::OnlyNeeded; }

size_t choose(const std::vector<Candidate>& candidates) {
    State& s = state();
    switch (habit()) {
    case Habit::Late: return candidates.size() - 1; // the one that the most others wait for; a graph's newest node
    case Habit::Anything:
    case Habit::OnlyNeeded: return size_t(s.random.below(candidates.size()));
    case Habit::OthersFirst: {
        std::vector<size_t> others;
        for (size_t i = 0; i < candidates.size(); i++)
            if (!candidates[i].needed) others.push_back(i);
        if (others.empty()) return size_t(s.random.below(candidates.size()));
        return others[size_t(s.random.below(others.size()))];
    }
    case Habit::Favourites: {
        size_t best = 0;
        uint64_t weight = 0;
        for (size_t i = 0; i < candidates.size(); i++) {
            Random mixed{s.seed * 0x632BE59BD9B4E019ull + candidates[i].stream->id + (uint64_t(candidates[i].node) << 32)};
            uint64_t drawn = mixed.next();
            if (i == 0 || drawn > weight) best = i, weight = drawn;
        }
        return best;
    }
    }
    return 0;
}

EXPORT uint64_t cuEmulatorCallCount(const char* function) {
    std::lock_guard<std::mutex> held(state().lock);
    auto found = state().calls.find(function);
    return found == state().calls.end() ? 0 : found->second;
}

EXPORT void cuEmulatorReset() {
    std::lock_guard<std::mutex> held(state().lock);
    read_environment();
    state().calls.clear();
    state().edges = 0;
    for (auto& context : state().contexts) context->error = CUDA_SUCCESS;
    plan_from_environment();
}

EXPORT void cuEmulatorSeed(uint64_t seed) {
    std::lock_guard<std::mutex> held(state().lock);
    read_environment();
    set_seed(seed);
}

EXPORT void cuEmulatorFail(const char* function, uint64_t k) {
    std::lock_guard<std::mutex> held(state().lock);
    read_environment();
    state().failures[function].push_back({k, -1});
}

EXPORT void cuEmulatorDropWait(int64_t k) {
    std::lock_guard<std::mutex> held(state().lock);
    read_environment();
    state().drop_wait = k;
    state().drop_stream = 0;
}

EXPORT void cuEmulatorDropEdge(int64_t k) {
    std::lock_guard<std::mutex> held(state().lock);
    read_environment();
    state().drop_edge = k;
}
