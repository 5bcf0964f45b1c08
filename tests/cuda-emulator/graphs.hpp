// Graphs, captures into them, and their launches.
#pragma once

#include "state.hpp"

#include <thread>

struct Node {
    void* handle = nullptr;
    Graph* graph = nullptr;
    Work work;
    std::vector<Node*> after;
    std::vector<void*> arguments; // as cuGraphKernelNodeGetParams_v2 gives them
    size_t bytes = 0;             // of them, in a buffer
};

struct Graph {
    void* handle = nullptr;
    Context* context = nullptr;
    std::vector<std::unique_ptr<Node>> nodes;
    bool capturing = false;
    uint64_t capture_id = 0; // 0 before the first capture
    Node* add(Work work, const std::vector<Node*>& after);
    ~Graph();
};
using GraphPtr = std::shared_ptr<Graph>;

// One for all streams that capture together.
struct Capture {
    uint64_t id = 0, turn = 0; // of its graph; of its own
    int mode = 0;
    std::thread::id thread; // that began it
    Stream* origin = nullptr;
    GraphPtr graph; // empty once it has ended
    bool invalidated = false;
};

// A launch of a graph.
struct GraphRun {
    struct Step {
        void* node = nullptr;
        Work work;
        std::vector<size_t> next; // the steps that wait for this one
        size_t blockers = 0;      // how many this one waits for
    };
    std::vector<Step> steps;
    std::set<size_t> ready;
    size_t running = 0, left = 0; // host functions; steps that have not ended
    MomentPtr upload;             // of the graph, which must have ended before the launch begins; empty: there was none

    explicit GraphRun(const std::vector<Step>& all);
    void start(size_t step);  // a host function
    bool finish(size_t step); // whether it was the last
    bool abandon();           // whether nothing of it runs any more
};

struct GraphExec {
    uint64_t id = 0;
    Context* context = nullptr;
    std::vector<GraphRun::Step> steps;
    MomentPtr last;   // of its newest launch
    MomentPtr upload; // the newest
};

// graphs.cpp
GraphPtr make_graph(Context* context);
GraphPtr find_graph(CUgraph handle);
void forget_graph(const GraphPtr& graph);
// False unless all of them are the graph's. None is given twice.
bool find_nodes(const CUgraphNode* handles, size_t count, const Graph& graph, std::vector<Node*>& out);
void add_once(std::vector<Node*>& nodes, Node* node);
