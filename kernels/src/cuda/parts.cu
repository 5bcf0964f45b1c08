// Parts of one shape, joined in their order.

constexpr int THREADS = 256;

template <class J, class E> __device__ inline void join_parts(const S* parts, u32 count, u64 elements, S* out, J join, E end) {
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < elements; i += (u64)gridDim.x * THREADS) {
        T joined = parts[i];
#pragma unroll 4
        for (u32 part = 1; part < count; ++part) {
            joined = join(joined, (T)parts[part * elements + i]);
        }
        out[i] = end(joined);
    }
}

// out = ((part 0 + part 1) + part 2) + ..
extern "C" __global__ void __launch_bounds__(THREADS) NAMED(sum_parts, DTYPE)(const S* parts, u32 count, u64 elements, S* out) {
    join_parts(parts, count, elements, out, [](T a, T b) { return add(a, b); }, [](T x) { return x; });
}

#if FLOATS
// The sum / count, which is rounded once.
extern "C" __global__ void __launch_bounds__(THREADS) NAMED(mean_parts, DTYPE)(const S* parts, u32 count, u64 elements, S* out) {
    join_parts(parts, count, elements, out, [](T a, T b) { return add(a, b); }, [&](T sum) { return sum / (T)count; });
}
#endif

// out = ((part 0 part 1) part 2) ..
extern "C" __global__ void __launch_bounds__(THREADS) NAMED(prod_parts, DTYPE)(const S* parts, u32 count, u64 elements, S* out) {
    join_parts(parts, count, elements, out, [](T a, T b) { return mul(a, b); }, [](T x) { return x; });
}

// The largest; NaN if there is one.
extern "C" __global__ void __launch_bounds__(THREADS) NAMED(max_parts, DTYPE)(const S* parts, u32 count, u64 elements, S* out) {
    join_parts(parts, count, elements, out, [](T a, T b) { return maximum(a, b); }, [](T x) { return x; });
}

// The smallest; NaN if there is one.
extern "C" __global__ void __launch_bounds__(THREADS) NAMED(min_parts, DTYPE)(const S* parts, u32 count, u64 elements, S* out) {
    join_parts(parts, count, elements, out, [](T a, T b) { return minimum(a, b); }, [](T x) { return x; });
}
