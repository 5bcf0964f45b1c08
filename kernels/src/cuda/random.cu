// Random numbers, one word an element. Values
// of `uniform`, `randint` and `dropout` are those of the CPU, bit for bit: products and sums are rounded one by one.
// Elements are of the type DTYPE; FLOATS is 1 for the floating-point types.

__device__ inline Four<u64> pairs(const RandomKey& key, u64 b) {
    Four<u32> high = words(key, b, false), low = words(key, b, true);
    Four<u64> pairs;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        pairs.at[i] = (u64)high.at[i] << 32 | low.at[i];
    }
    return pairs;
}

// Numbers in [0, 1).
__device__ inline void units(const RandomKey& key, u64 b, Four<f32>& four) {
    Four<u32> bits = words(key, b, false);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        four.at[i] = (f32)(bits.at[i] >> 8) / 16777216.0f;
    }
}
__device__ inline void units(const RandomKey& key, u64 b, Four<f64>& four) {
    Four<u64> bits = pairs(key, b);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        four.at[i] = (f64)(bits.at[i] >> 11) / 9007199254740992.0;
    }
}

// Numbers of the standard normal distribution, by Box and Muller.
__device__ inline void normals(const RandomKey& key, u64 b, Four<f32>& four) {
    Four<u32> bits = words(key, b, false);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        // In (0, 1], so that the logarithm is finite.
        f32 unit = ((f32)(bits.at[i] >> 1) + 0.5f) / 2147483648.0f;
        f32 radius = sqrtf(-2.0f * logf(unit));
        // The nearest quarter turn, and the rest in -1/8..1/8 of a turn, which keeps its bits as a float.
        u32 quarter = (bits.at[i + 1] + (1u << 29)) >> 30;
        int rest = (int)(bits.at[i + 1] - (quarter << 30));
        f32 s, c;
        sincospif((f32)rest / 2147483648.0f, &s, &c);
        f32 sine = quarter & 1 ? c : s, cosine = quarter & 1 ? s : c;
        four.at[i] = radius * ((quarter + 1) & 2 ? -cosine : cosine);
        four.at[i + 1] = radius * (quarter & 2 ? -sine : sine);
    }
}
__device__ inline void normals(const RandomKey& key, u64 b, Four<f64>& four) {
    Four<f64> unit;
    units(key, b, unit);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        f64 radius = sqrt(-2.0 * log(unit.at[i] + 1.0 / 18014398509481984.0));
        f64 s, c;
        sincospi(2.0 * unit.at[i + 1], &s, &c);
        four.at[i] = radius * c;
        four.at[i + 1] = radius * s;
    }
}

__device__ inline u64 high_half(u64 a, u64 b) {
    u64 a0 = (u32)a, a1 = a >> 32, b0 = (u32)b, b1 = b >> 32;
    u64 middle = a1 * b0 + (a0 * b0 >> 32);
    return a1 * b1 + (middle >> 32) + ((u64)(u32)middle + a0 * b1 >> 32);
}

// low + (high - low) u; `last` is the largest number below `high`.
template <class T> struct Uniform {
    T low, span, last;
    __device__ void draw(const RandomKey& key, u64 b, Four<T>& four) const {
        units(key, b, four);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            four.at[i] = minimum(add_rounded(mul_rounded(four.at[i], span), low), last);
        }
    }
};
template <class T> struct Normal {
    T mean, std;
    __device__ void draw(const RandomKey& key, u64 b, Four<T>& four) const {
        normals(key, b, four);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            four.at[i] = add_rounded(mul_rounded(four.at[i], std), mean);
        }
    }
};
template <class T> struct Integers {
    i64 low;
    u64 count;
    __device__ void draw(const RandomKey& key, u64 b, Four<T>& four) const {
        Four<u64> bits = pairs(key, b);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            // The high half of a product maps 64 bits to the range almost evenly.
            four.at[i] = (T)add(low, (i64)high_half(bits.at[i], count));
        }
    }
};

// Calls `body(b, first, len)` for all b: `len` elements from `first` = 4 b on.
template <class Body> __device__ inline void for_fours(u64 elements, Body body) {
    for (u64 b = thread_index(); b * 4 < elements; b += thread_count()) {
        body(b, b * 4, elements - b * 4 < 4 ? (int)(elements - b * 4) : 4);
    }
}

// The elements of `four` in accesses of at most 16 bytes.
template <class T> constexpr int at_once = sizeof(T) > 4 ? 2 : 4;

template <class D> __device__ inline void generate(S* out, const RandomKey& key, const Walk<1>& walk, D distribution) {
    for_fours(walk.elements, [&](u64 b, u64 first, int len) {
        Four<T> four;
        distribution.draw(key, b, four);
        if (walk.vector && len == 4) {
            S* to = out + offsets(walk, first).at[0];
#pragma unroll
            for (int i = 0; i < 4; i += at_once<S>) {
                Pack<S, at_once<S>> pack;
#pragma unroll
                for (int v = 0; v < at_once<S>; ++v) {
                    pack.at[v] = four.at[i + v];
                }
                store<at_once<S>>(to + i, pack);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (i < len) {
                    out[offsets(walk, first + i).at[0]] = four.at[i];
                }
            }
        }
    });
}

#if FLOATS
// out = x m / (1 - p), m = 0 for words below `kept_from`, which are of 24 bits
extern "C" __global__ void NAMED(dropout, DTYPE)(S* out, const S* x, u64 seed, u64 op,
                                                 const __grid_constant__ Walk<2> walk, u32 kept_from, u64 scale_bits) {
    RandomKey key{seed, op};
    T scale = from_bits<T>(scale_bits);
    for_fours(walk.elements, [&](u64 b, u64 first, int len) {
        Four<u32> bits = words(key, b, false);
        // What is dropped is 0 even where it is NaN or infinite.
        auto kept = [&](int i, T x) { return bits.at[i] >> 8 >= kept_from ? x * scale : (T)0; };
        if (walk.vector && len == 4) {
            Offsets<2> at = offsets(walk, first);
#pragma unroll
            for (int i = 0; i < 4; i += at_once<S>) {
                Pack<S, at_once<S>> pack = load<at_once<S>>(x + at.at[1] + (walk.moves(1) ? i : 0), walk.moves(1));
#pragma unroll
                for (int v = 0; v < at_once<S>; ++v) {
                    pack.at[v] = kept(i + v, pack.at[v]);
                }
                store<at_once<S>>(out + at.at[0] + i, pack);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (i < len) {
                    Offsets<2> at = offsets(walk, first + i);
                    out[at.at[0]] = kept(i, x[at.at[1]]);
                }
            }
        }
    });
}

extern "C" __global__ void NAMED(uniform, DTYPE)(S* out, u64 seed, u64 op, const __grid_constant__ Walk<1> walk, u64 low,
                                                 u64 span, u64 last) {
    generate(out, RandomKey{seed, op}, walk, Uniform<T>{from_bits<T>(low), from_bits<T>(span), from_bits<T>(last)});
}
extern "C" __global__ void NAMED(normal, DTYPE)(S* out, u64 seed, u64 op, const __grid_constant__ Walk<1> walk, u64 mean,
                                                u64 std) {
    generate(out, RandomKey{seed, op}, walk, Normal<T>{from_bits<T>(mean), from_bits<T>(std)});
}
#endif

extern "C" __global__ void NAMED(randint, DTYPE)(S* out, u64 seed, u64 op, const __grid_constant__ Walk<1> walk, i64 low,
                                                 u64 count) {
    generate(out, RandomKey{seed, op}, walk, Integers<T>{low, count});
}
