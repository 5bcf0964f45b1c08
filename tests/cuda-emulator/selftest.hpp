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

// A function of one of the libraries, found by name when it is called.
void* symbol(const char* library, const char* name);
template <class... A> int cuda(const char* name, A... arguments) {
    return reinterpret_cast<int (*)(A...)>(symbol("libcuda.so", name))(arguments...);
}
template <class... A> int nvrtc(const char* name, A... arguments) {
    return reinterpret_cast<int (*)(A...)>(symbol("libnvrtc.so", name))(arguments...);
}
template <class... A> int cublaslt(const char* name, A... arguments) {
    return reinterpret_cast<int (*)(A...)>(symbol("libcublasLt.so", name))(arguments...);
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

// A product as the library is told of it: C = A B of one batch, without gaps, unless more is said.
struct Product {
    int type, result_type, compute; // as the library numbers them
    long long m, n, k;
    int transa = 0, transb = 0;
    long long lda = 0, ldb = 0, ldc = 0; // 0: no gaps
    int batch = 1;
    long long step_a = 0, step_b = 0, step_c = 0;
    unsigned epilogue = 1;
    CUdeviceptr bias = 0;
    unsigned alignment = 16;
    unsigned long long limit = 0; // of the workspace
};
// As the library's algorithms and results are stored.
struct Choice {
    unsigned long long algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};
// Descriptions of a product, and the library's choice for it.
struct Described {
    Ptr handle, operation = nullptr, a = nullptr, b = nullptr, c = nullptr;
    Choice choice{};
    int count = 0, status = 0; // of the question for an algorithm
    Described(Ptr handle, const Product& product);
    ~Described();
    template <class T> int multiply(T alpha, CUdeviceptr at_a, CUdeviceptr at_b, T beta, CUdeviceptr at_c, CUdeviceptr workspace, Ptr stream) const {
        return cublaslt("cublasLtMatmul", handle, operation, &alpha, at_a, a, at_b, b, &beta, at_c, c, at_c, c, &choice, workspace, choice.workspace, stream);
    }
};
Ptr new_handle();

// A test runs in a process of its own, with its own environment.
struct Test {
    const char* name;
    const char* environment; // "A=1 B=2"
    void (*run)();
};
extern const std::vector<Test> STREAM_TESTS, GRAPH_TESTS, CAPTURE_TESTS, MEMORY_TESTS, KERNEL_TESTS, ADVERSARY_TESTS, GEMM_TESTS, CONV_TESTS;
