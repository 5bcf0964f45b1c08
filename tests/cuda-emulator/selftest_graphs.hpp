// What the tests of graphs and of captures share.
#pragma once

#include "selftest.hpp"

#include <cstring>

constexpr int GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2;

Ptr new_graph();
int begin(Ptr stream, Ptr graph, std::vector<Ptr> after = {}, int mode = RELAXED);
void end(Ptr stream, Ptr graph); // succeeds
Ptr newest_node(Ptr stream);     // of a stream that captures; nullptr: there is none
std::vector<Ptr> nodes_of(Ptr graph);
Ptr instantiate(Ptr graph);
int launch_graph(Ptr exec, Ptr stream);
void seed(uint64_t n);

// A capture of what `enqueue` enqueues on a stream, after some nodes; returns its last node.
template <class Enqueue> Ptr capture(Ptr stream, Ptr graph, std::vector<Ptr> after, Enqueue enqueue) {
    CHECK_EQUAL(begin(stream, graph, after), 0);
    enqueue();
    Ptr node = newest_node(stream);
    end(stream, graph);
    return node;
}

inline void set_float(CUdeviceptr at, float value, Ptr stream) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    CHECK_EQUAL(cuda("cuMemsetD32Async", at, bits, size_t(1), stream), 0);
}
inline void copy_float(CUdeviceptr to, CUdeviceptr from, Ptr stream) { CHECK_EQUAL(cuda("cuMemcpyDtoDAsync_v2", to, from, size_t(4), stream), 0); }
inline void scale(CUdeviceptr data, float by, float plus, Ptr stream) { CHECK_EQUAL(start("scale", 1, 1, 0, stream, data, by, plus, 1u), 0); }
inline float number(CUdeviceptr at, Ptr stream) { return download<float>(at, 1, stream)[0]; }
