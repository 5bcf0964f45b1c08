// Shared by all programs: element types, faults, and loops over strided operands (walks).
//
// Plain CUDA C++17 without includes. Products and sums may be contracted to fused multiply-adds, as is the compiler's
// default, but where a comment says that they are not; functions are CUDA's accurate ones, but where one is called
// by its name.

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;
using f32 = float;
using f64 = double;

// Rounded separately, never contracted to an FMA.
__device__ inline f32 mul_rounded(f32 a, f32 b) { return __fmul_rn(a, b); }
__device__ inline f64 mul_rounded(f64 a, f64 b) { return __dmul_rn(a, b); }
__device__ inline f32 add_rounded(f32 a, f32 b) { return __fadd_rn(a, b); }
__device__ inline f64 add_rounded(f64 a, f64 b) { return __dadd_rn(a, b); }

// 16-bit floating point is how elements are stored, never what is computed with: to read one widens it to f32, which is exact,
// to assign rounds to nearest even.
struct bf16 {
    u16 bits;

    __device__ operator f32() const { return __uint_as_float((u32)bits << 16); }
    __device__ bf16& operator=(f32 x) {
#if __CUDA_ARCH__ >= 800 && !defined(CUDA_EMULATOR)
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
        u32 word = __float_as_uint(x);
        // The upper half of a NaN may be that of an infinity.
        bits = (u16)((x != x ? word | 0x400000u : word + 0x7fffu + (word >> 16 & 1)) >> 16);
#endif
        return *this;
    }
};
#ifdef CUDA_EMULATOR  // which knows no PTX, but has the header
#include <cuda_fp16.h>
__device__ inline f32 exp2_of(f32 x) { return exp2f(x); }
__device__ inline f32 widened(u16 bits) { return __half2float(__ushort_as_half(bits)); }
__device__ inline u16 narrowed(f32 x) { return __half_as_ushort(__float2half_rn(x)); }
#else
// 2^x, off by at most 2^-22 of it, and 0 below 2^-126.
__device__ inline f32 exp2_of(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline f32 widened(u16 bits) {
    f32 x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
__device__ inline u16 narrowed(f32 x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#endif
struct f16 {
    u16 bits;

    __device__ operator f32() const { return widened(bits); }
    __device__ f16& operator=(f32 x) {
        bits = narrowed(x);
        return *this;
    }
};

// F32 in memory, rounded to TF32 as an operand of tensor cores.
struct tf32 {
    f32 value;

    __device__ operator f32() const { return value; }
    __device__ tf32& operator=(f32 x) {
        value = x;
        return *this;
    }
};

// Compute type of an element type, also for sums.
template <class S> struct OpmathOf {
    using Type = S;
};
template <> struct OpmathOf<bf16> {
    using Type = f32;
};
template <> struct OpmathOf<f16> {
    using Type = f32;
};
template <> struct OpmathOf<tf32> {
    using Type = f32;
};
template <class S> using Opmath = typename OpmathOf<S>::Type;

// How elements of a type are stored. Truth values are bytes; whatever byte was uploaded counts as 0 or 1.
template <class T> struct Type {
    using Stored = T;
};
template <> struct Type<bool> {
    using Stored = u8;
};

template <class T> __device__ inline bool is_nan(T x) { return x != x; }
template <class T> __device__ inline bool is_negative(T x) { return x < 0; }
template <> __device__ inline bool is_negative(u8) { return false; }

// A number as the launcher passes it: the bits of an element, in the low bytes of a word.
template <class T> __device__ inline T from_bits(u64 bits) {
    union {
        u64 bits;
        T value;
    } word;
    word.bits = bits;
    return word.value;
}

// Neutral elements of maximum and minimum.
template <class T> __device__ inline T lowest();
template <class T> __device__ inline T highest();
template <> __device__ inline f32 lowest() { return from_bits<f32>(0xff800000); }
template <> __device__ inline f32 highest() { return from_bits<f32>(0x7f800000); }
template <> __device__ inline f64 lowest() { return from_bits<f64>(0xfff0000000000000); }
template <> __device__ inline f64 highest() { return from_bits<f64>(0x7ff0000000000000); }
template <> __device__ inline i64 lowest() { return -9223372036854775807LL - 1; }
template <> __device__ inline i64 highest() { return 9223372036854775807LL; }
template <> __device__ inline u8 lowest() { return 0; }
template <> __device__ inline u8 highest() { return 255; }

// Integers wrap around.
template <class T> __device__ inline T add(T a, T b) { return a + b; }
template <class T> __device__ inline T sub(T a, T b) { return a - b; }
template <class T> __device__ inline T mul(T a, T b) { return a * b; }
template <> __device__ inline i64 add(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
template <> __device__ inline i64 sub(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
template <> __device__ inline i64 mul(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
template <> __device__ inline u8 add(u8 a, u8 b) { return (u8)((u32)a + (u32)b); }
template <> __device__ inline u8 sub(u8 a, u8 b) { return (u8)((u32)a - (u32)b); }
template <> __device__ inline u8 mul(u8 a, u8 b) { return (u8)((u32)a * (u32)b); }

// Maximum and minimum; NaN if either operand is.
template <class T> __device__ inline T maximum(T a, T b) { return a > b || is_nan(a) ? a : b; }
template <class T> __device__ inline T minimum(T a, T b) { return a < b || is_nan(a) ? a : b; }

template <class T> __device__ inline bool is_finite(T x) { return lowest<T>() < x && x < highest<T>(); }
// Maximum that ignores NaN.
template <class T> __device__ inline T larger_of(T a, T b) { return fmax(a, b); }

template <class T> __device__ inline T exp_of(T x) { return exp(x); }
template <class T> __device__ inline T log_of(T x) { return log(x); }
template <class T> __device__ inline T sqrt_of(T x) { return sqrt(x); }
template <class T> __device__ inline T abs_of(T x) { return fabs(x); }

// Faults, in memory that the host reads when it synchronises. The first one is kept.
struct FaultRecord {
    unsigned int set; // 1 while a kernel writes the rest, 2 from then on
    unsigned int op;
    long long value;
    long long bound;
};
struct Fault {
    FaultRecord* record;
    unsigned int op;
    unsigned int pad;
};

__device__ inline void raise(Fault fault, i64 value, i64 bound) {
    if (atomicCAS(&fault.record->set, 0u, 1u) == 0u) {
        fault.record->op = fault.op;
        fault.record->value = value;
        fault.record->bound = bound;
        __threadfence_system();
        *(volatile unsigned int*)&fault.record->set = 2;
    }
}

// Whether 0 <= index < bound.
__device__ inline bool in_range(i64 index, i64 bound) { return (u64)index < (u64)bound; }

__device__ inline u64 thread_index() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline u64 thread_count() { return (u64)gridDim.x * blockDim.x; }

// a / b, in 32 bits if both fit, which is several times faster
__device__ inline u64 quotient(u64 a, u64 b) { return (a | b) >> 32 ? a / b : (u32)a / (u32)b; }
// n / size for numbers below 2^31; the launcher computes multiplier and shift from the size
__device__ inline u32 divided(u32 n, u32 magic, u32 shift) { return (u32)(((u64)n * magic >> 32) + n >> shift); }
// One axis of a walk: size, multiplier and shift for division by it, and the stride of each operand.
template <int N> struct Axis {
    u32 size, magic, shift;
    int strides[N];
};

constexpr int MAX_AXES = 8;

// A loop nest over N operands, innermost axis first; sizes and strides count elements. The launcher fills it in. With
// more than one axis there are fewer than 2^31 elements.
template <int N> struct Walk {
    u64 elements;
    u32 axes;
    // Whether the innermost axis can be walked in vectors: each operand's elements lie next to each other there, or
    // are one and the same, and rows begin at multiples of a vector.
    u32 vector;
    Axis<N> axis[MAX_AXES];

    __device__ bool moves(int operand) const { return axis[0].strides[operand] != 0; }
};

template <int N> struct Offsets {
    i64 at[N];
};

// Offset of element `index` in each operand.
template <int N> __device__ inline Offsets<N> offsets(const Walk<N>& walk, u64 index) {
    Offsets<N> offsets;
    if (walk.axes == 1) {
#pragma unroll
        for (int k = 0; k < N; ++k) {
            offsets.at[k] = (i64)index * walk.axis[0].strides[k];
        }
        return offsets;
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
        offsets.at[k] = 0;
    }
    u32 rest = (u32)index;
#pragma unroll 1
    for (u32 a = 0; a < walk.axes; ++a) {
        const Axis<N>& axis = walk.axis[a];
        u32 next = divided(rest, axis.magic, axis.shift);
        int place = (int)(rest - next * axis.size);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            offsets.at[k] += (i64)place * axis.strides[k];
        }
        rest = next;
    }
    return offsets;
}

// Calls `body.at<V>(offsets)` for the first of V elements of each vector of the walk, and `body.at<1>(offsets)` for single
// elements. Shares them out over the threads of the grid; each element is one thread's.
template <int V, int N, class Body> __device__ inline void for_vectors(const Walk<N>& walk, const Body& body) {
    u64 first = 0;
    if (V > 1 && walk.vector) {
        first = walk.elements / V * V;
#pragma unroll 1
        for (u64 i = thread_index() * V; i < first; i += thread_count() * V) {
            body.template at<V>(offsets(walk, i));
        }
    }
#pragma unroll 1
    for (u64 i = first + thread_index(); i < walk.elements; i += thread_count()) {
        body.template at<1>(offsets(walk, i));
    }
}

// Calls `body(offsets)` for each element of the walk, in the same way.
template <int N, class Body> __device__ inline void for_each(const Walk<N>& walk, Body body) {
#pragma unroll 1
    for (u64 i = thread_index(); i < walk.elements; i += thread_count()) {
        body(offsets(walk, i));
    }
}

// V contiguous elements, loaded and stored by one instruction.
template <class T, int V> struct alignas(sizeof(T) * V & -(sizeof(T) * V)) Pack {
    T at[V];
};
// The pack with elements `of(0)`, `of(1)`, ..
template <class T, int V, class Of> __device__ inline Pack<T, V> pack_of(Of of) {
    Pack<T, V> pack;
#pragma unroll
    for (int v = 0; v < V; ++v) {
        pack.at[v] = of(v);
    }
    return pack;
}

template <int V, class T> __device__ inline Pack<T, V> load(const T* from, bool moves) {
    if (V == 1 || moves) {
        return *(const Pack<T, V>*)from;
    }
    T value = *from;
    return pack_of<T, V>([&](int) { return value; });
}

template <int V, class T> __device__ inline void store(T* to, const Pack<T, V>& pack) { *(Pack<T, V>*)to = pack; }

// Elements per 16-byte access of the larger of two types.
template <class A, class B> constexpr int lanes_of = 16 / (sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));

// Placeholder for an unused input.
struct None {};

template <int V, class T, int N>
__device__ inline Pack<T, V> input(const T* from, const Offsets<N>& offsets, const Walk<N>& walk, int k) {
    return load<V>(from + offsets.at[k], walk.moves(k));
}
template <int V, int N> __device__ inline None input(None, const Offsets<N>&, const Walk<N>&, int) { return {}; }

template <class F, class A> __device__ inline auto element(const F& f, int v, const A& a, None, None) { return f(a.at[v]); }
template <class F, class A, class B> __device__ inline auto element(const F& f, int v, const A& a, const B& b, None) {
    return f(a.at[v], b.at[v]);
}
template <class F, class A, class B, class C>
__device__ inline auto element(const F& f, int v, const A& a, const B& b, const C& c) {
    return f(a.at[v], b.at[v], c.at[v]);
}

// out = f(x), f(x, y) or f(x, y, z)
template <class O, int N, class F, class X, class Y, class Z> struct Map {
    O* out;
    const Walk<N>& walk;
    F f;
    X x;
    Y y;
    Z z;

    template <int V> __device__ void at(const Offsets<N>& offsets) const {
        auto a = input<V>(x, offsets, walk, 1);
        auto b = input<V>(y, offsets, walk, 2);
        auto c = input<V>(z, offsets, walk, 3);
        store<V>(out + offsets.at[0], pack_of<O, V>([&](int v) { return element(f, v, a, b, c); }));
    }
};
template <class O, int N, class F, class A, class Y = None, class Z = None>
__device__ inline void map(O* out, const Walk<N>& walk, F f, const A* x, Y y = {}, Z z = {}) {
    for_vectors<lanes_of<O, A>>(walk, Map<O, N, F, const A*, Y, Z>{out, walk, f, x, y, z});
}
