// Reduction of `count` tensors of one shape, in order.

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

#define PARTS(name, join, end)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS) NAMED(name##_parts, DTYPE)(const S* parts, u32 count, u64 elements, S* out) { \
        join_parts(parts, count, elements, out, [](T a, T b) { return join(a, b); }, [&](T x) { return end; });                     \
    }

// out = ((part 0 + part 1) + part 2) + ..
PARTS(sum, add, x)
#if FLOATS
// The mean, with a single division.
PARTS(mean, add, x / (T)count)
#endif
// out = ((part 0 part 1) part 2) ..
PARTS(prod, mul, x)
// Maximum and minimum; NaN if there is one.
PARTS(max, maximum, x)
PARTS(min, minimum, x)
