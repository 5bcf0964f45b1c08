// What NVRTC gives a program without any header: the running thread, qualifiers, barriers, memory. No header of the system
// is included, so that a program that needs one fails here as it does there.
#pragma once

#include "module_abi.hpp"

// For what is written otherwise here: there is no PTX.
#define CUDA_EMULATOR 1

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;

// __global__, __launch_bounds__ and __shared__ are words that the compiler driver looks for and removes.
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_assume(condition) ((condition) ? (void)0 : __trap())

extern "C" {
__attribute__((visibility("hidden"))) EmulatorState emulator_state;
extern __attribute__((weak, visibility("hidden"))) unsigned char __start_emulator_shared[];
extern __attribute__((weak, visibility("hidden"))) unsigned char __stop_emulator_shared[];
int printf(const char*, ...);
void* memcpy(void*, const void*, size_t);
void* memset(void*, int, size_t);
}

#include "vectors.hpp"

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};

static const EmulatorIndex& threadIdx = emulator_state.thread;
static const EmulatorIndex& blockIdx = emulator_state.block;
static const EmulatorIndex& blockDim = emulator_state.block_dim;
static const EmulatorIndex& gridDim = emulator_state.grid_dim;
constexpr int warpSize = 32;

inline void __trap(int line = __builtin_LINE(), const char* file = __builtin_FILE()) { emulator_state.runtime->stop(719, "__trap", file, line); }
#define assert(condition) ((condition) ? (void)0 : emulator_state.runtime->stop(710, "assert(" #condition ")", __FILE__, __LINE__))

inline void __syncthreads(int line = __builtin_LINE()) { emulator_state.runtime->barrier(line, 0); }
inline int __syncthreads_count(int predicate, int line = __builtin_LINE()) { return emulator_state.runtime->barrier(line, predicate); }
inline int __syncthreads_or(int predicate, int line = __builtin_LINE()) { return emulator_state.runtime->barrier(line, predicate) != 0; }
inline int __syncthreads_and(int predicate, int line = __builtin_LINE()) { return emulator_state.runtime->barrier(line, !predicate) == 0; }

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) {}
inline long long clock64() { return emulator_state.runtime->clock(); }
inline int clock() { return int(emulator_state.runtime->clock()); }

template <class T> inline T __ldg(const T* from) { return *from; }
template <class T> inline T __ldca(const T* from) { return *from; }
template <class T> inline T __ldcg(const T* from) { return *from; }
template <class T> inline T __ldcs(const T* from) { return *from; }
template <class T> inline T __ldcv(const T* from) { return *from; }
template <class T> struct EmulatorSame { typedef T type; };
template <class T> inline void __stwb(T* to, typename EmulatorSame<T>::type value) { *to = value; }
template <class T> inline void __stcg(T* to, typename EmulatorSame<T>::type value) { *to = value; }
template <class T> inline void __stcs(T* to, typename EmulatorSame<T>::type value) { *to = value; }
template <class T> inline void __stwt(T* to, typename EmulatorSame<T>::type value) { *to = value; }

// An `extern __shared__` array that is declared outside of functions; inside it is a pointer.
template <class T> struct EmulatorDynamicShared {
    operator T*() const { return reinterpret_cast<T*>(emulator_state.dynamic_shared); }
    template <class I> T& operator[](I index) const { return static_cast<T*>(*this)[index]; }
};

#include "atomics.hpp"
#include "integers.hpp"
#include "math.hpp"
#include "warp.hpp"

// The table of kernels.
template <int... I> struct EmulatorNumbers {};
template <int N, int... I> struct EmulatorCount : EmulatorCount<N - 1, N - 1, I...> {};
template <int... I> struct EmulatorCount<0, I...> { typedef EmulatorNumbers<I...> type; };
template <auto F> struct EmulatorEntry;
template <class... A, void (*F)(A...)> struct EmulatorEntry<F> {
    static constexpr unsigned sizes[sizeof...(A) + 1] = {sizeof(A)..., 0};
    template <int... I> static void apply([[maybe_unused]] void** arguments, EmulatorNumbers<I...>) { F(*static_cast<A*>(arguments[I])...); }
    static void call(void** arguments) { apply(arguments, typename EmulatorCount<int(sizeof...(A))>::type()); }
    static constexpr EmulatorKernel kernel(const char* name, unsigned max_threads) { return {name, call, sizes, unsigned(sizeof...(A)), max_threads}; }
};
