// What the self-test's parts share: the libraries as a program would load them, checks, and helpers.
#pragma once

#include "api.hpp"

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

extern int failures;
#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);               \
            failures++;                                                                   \
        }                                                                                 \
    } while (0)
#define CHECK_EQUAL(left, right)                                                                                          \
    do {                                                                                                                  \
        auto left_ = (left);                                                                                              \
        decltype(left_) right_ = right;                                                                                   \
        if (!(left_ == right_)) {                                                                                         \
            std::ostringstream text_;                                                                                     \
            text_ << #left << " is " << left_ << ", not " << right_;                                                      \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, text_.str().c_str());                                      \
            failures++;                                                                                                   \
        }                                                                                                                 \
    } while (0)

// A function of one of the three libraries, found by name when it is called.
void* symbol(const char* library, const char* name);
template <class... A> int cuda(const char* name, A... arguments) {
    return reinterpret_cast<int (*)(A...)>(symbol("libcuda.so", name))(arguments...);
}
template <class... A> int nvrtc(const char* name, A... arguments) {
    return reinterpret_cast<int (*)(A...)>(symbol("libnvrtc.so", name))(arguments...);
}
template <class... A> int cublas(const char* name, A... arguments) {
    return reinterpret_cast<int (*)(A...)>(symbol("libcublas.so", name))(arguments...);
}

typedef void* Ptr;
inline const Ptr NONE = nullptr;

Ptr open_device(int ordinal = 0); // its context, current
Ptr new_stream(unsigned flags = 1);
Ptr new_event(unsigned flags = 2);
CUdeviceptr allocate(size_t bytes);
void* allocate_host(size_t bytes);
Ptr kernel(const char* name); // of selftest.cu
int launch(Ptr function, unsigned blocks, unsigned threads, unsigned shared, Ptr stream, std::vector<void*> arguments);
std::string log_text();
bool logged(const std::string& text);

template <class... A> int start(const char* name, unsigned blocks, unsigned threads, unsigned shared, Ptr stream, A... arguments) {
    return launch(kernel(name), blocks, threads, shared, stream, {static_cast<void*>(&arguments)...});
}
template <class T> void upload(CUdeviceptr to, const std::vector<T>& from, Ptr stream) {
    CHECK_EQUAL(cuda("cuMemcpyHtoDAsync_v2", to, static_cast<const void*>(from.data()), from.size() * sizeof(T), stream), 0);
}
template <class T> std::vector<T> download(CUdeviceptr from, size_t count, Ptr stream) {
    std::vector<T> to(count);
    CHECK_EQUAL(cuda("cuMemcpyDtoHAsync_v2", static_cast<void*>(to.data()), from, count * sizeof(T), stream), 0);
    return to;
}

// A test runs in a process of its own, with its own environment.
struct Test {
    const char* name;
    const char* environment; // "A=1 B=2"
    void (*run)();
};
extern const std::vector<Test> STREAM_TESTS, GRAPH_TESTS, CAPTURE_TESTS, MEMORY_TESTS, KERNEL_TESTS, ADVERSARY_TESTS, GEMM_TESTS;
