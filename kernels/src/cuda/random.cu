// Counter-based random numbers. `uniform`, `randint` and `dropout` return the CPU's bits: every product and sum is rounded separately. Elements
// are of type DTYPE; FLOATS is 1 for floating-point types.

__device__ inline Four<u64> pairs(const RandomKey& key, u64 b) {
    Four<u32> high = words(key, b, false), low = words(key, b, true);
    Four<u64> pairs;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        pairs.at[i] = (u64)high.at[i] << 32 | low.at[i];
    }
    return pairs;
}

// Uniform numbers in [0, 1).
template <class T> __device__ inline Four<T> units(const RandomKey& key, u64 b) {
    Four<u32> bits = words(key, b, false);
    Four<T> four;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        four.at[i] = (f32)(bits.at[i] >> 8) / 16777216.0f;
    }
    return four;
}
template <> __device__ inline Four<f64> units(const RandomKey& key, u64 b) {
    Four<u64> bits = pairs(key, b);
    Four<f64> four;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        four.at[i] = (f64)(bits.at[i] >> 11) / 9007199254740992.0;
    }
    return four;
}

// Standard normal numbers (Box-Muller).
template <class T> __device__ inline Four<T> normals(const RandomKey& key, u64 b) {
    Four<u32> bits = words(key, b, false);
    Four<T> four;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        // In (0, 1], so the logarithm is finite.
        f32 unit = ((f32)(bits.at[i] >> 1) + 0.5f) / 2147483648.0f;
        f32 radius = sqrtf(-2.0f * logf(unit));
        // Nearest quarter turn, and the remainder in -1/8..1/8 of a turn, for accuracy in F32.
        u32 quarter = (bits.at[i + 1] + (1u << 29)) >> 30;
        int rest = (int)(bits.at[i + 1] - (quarter << 30));
        f32 s, c;
        sincospif((f32)rest / 2147483648.0f, &s, &c);
        f32 sine = quarter & 1 ? c : s, cosine = quarter & 1 ? s : c;
        four.at[i] = radius * ((quarter + 1) & 2 ? -cosine : cosine);
        four.at[i + 1] = radius * (quarter & 2 ? -sine : sine);
    }
    return four;
}
template <> __device__ inline Four<f64> normals(const RandomKey& key, u64 b) {
    Four<f64> four = units<f64>(key, b);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        f64 radius = sqrt(-2.0 * log(four.at[i] + 1.0 / 18014398509481984.0));
        f64 s, c;
        sincospi(2.0 * four.at[i + 1], &s, &c);
        four.at[i] = radius * c;
        four.at[i + 1] = radius * s;
    }
    return four;
}

// Calls `body(b, first, len)` for this thread's groups of four elements: elements `first = 4 b` to `first + len`.
template <class Body> __device__ inline void for_fours(u64 elements, Body body) {
    for (u64 b = thread_index(); b * 4 < elements; b += thread_count()) {
        body(b, b * 4, elements - b * 4 < 4 ? (int)(elements - b * 4) : 4);
    }
}

// Elements per access: at most 16 bytes.
template <class T> constexpr int at_once = sizeof(T) > 4 ? 2 : 4;

// out = of(u, x) for each element x and its random number u; `draw(b)` returns four of these. Without inputs (N = 1) x is 0.
template <int N, class Draw, class Of>
__device__ inline void write_fours(S* out, const S* x, const Walk<N>& walk, Draw draw, Of of) {
    for_fours(walk.elements, [&](u64 b, u64 first, int len) {
        auto four = draw(b);
        bool together = walk.vector && len == 4, moves = N > 1 && walk.moves(N - 1);
        Offsets<N> at = offsets(walk, first);
#pragma unroll
        for (int i = 0; together && i < 4; i += at_once<S>) {
            Pack<S, at_once<S>> pack = {};
            if constexpr (N > 1) {
                pack = load<at_once<S>>(x + at.at[1] + (moves ? i : 0), moves);
            }
            auto made = pack_of<S, at_once<S>>([&](int v) { return of(four.at[i + v], (T)pack.at[v]); });
            store<at_once<S>>(out + at.at[0] + i, made);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (!together && i < len) {
                at = offsets(walk, first + i);
                out[at.at[0]] = of(four.at[i], N > 1 ? (T)x[at.at[N - 1]] : (T)0);
            }
        }
    });
}

#if FLOATS
// out = x m / (1 - p) with m = 0 for 24-bit words below `kept_from`, else 1
extern "C" __global__ void NAMED(dropout, DTYPE)(S* out, const S* x, u64 seed, u64 op,
                                                 const __grid_constant__ Walk<2> walk, u32 kept_from, u64 scale_bits) {
    T scale = from_bits<T>(scale_bits);
    // Dropped elements are 0 even if x is NaN or infinite.
    write_fours(out, x, walk, [&](u64 b) { return words(RandomKey{seed, op}, b, false); },
                [&](u32 bits, T x) { return bits >> 8 >= kept_from ? x * scale : (T)0; });
}

// low + (high - low) u; `last` is the largest number below `high`.
extern "C" __global__ void NAMED(uniform, DTYPE)(S* out, u64 seed, u64 op, const __grid_constant__ Walk<1> walk, u64 low,
                                                 u64 span, u64 last) {
    T from = from_bits<T>(low), by = from_bits<T>(span), most = from_bits<T>(last);
    write_fours(out, nullptr, walk, [&](u64 b) { return units<T>(RandomKey{seed, op}, b); },
                [&](T unit, T) { return minimum(add_rounded(mul_rounded(unit, by), from), most); });
}
extern "C" __global__ void NAMED(normal, DTYPE)(S* out, u64 seed, u64 op, const __grid_constant__ Walk<1> walk, u64 mean,
                                                u64 std) {
    T centre = from_bits<T>(mean), by = from_bits<T>(std);
    write_fours(out, nullptr, walk, [&](u64 b) { return normals<T>(RandomKey{seed, op}, b); },
                [&](T normal, T) { return add_rounded(mul_rounded(normal, by), centre); });
}
#endif

// The high half of bits * count is almost uniform in 0..count.
extern "C" __global__ void NAMED(randint, DTYPE)(S* out, u64 seed, u64 op, const __grid_constant__ Walk<1> walk, i64 low,
                                                 u64 count) {
    write_fours(out, nullptr, walk, [&](u64 b) { return pairs(RandomKey{seed, op}, b); },
                [&](u64 bits, T) { return (T)add(low, (i64)__umul64hi(bits, count)); });
}
