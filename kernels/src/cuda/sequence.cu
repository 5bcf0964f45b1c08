// Cumulative sums and rotations of elements of the type DTYPE. FLOATS is 1 for the floating-point types.

// out[i] = x[0] + .. + x[i] along rows, or from the end. A warp takes a row, 32 elements at a time.
struct Scan {
    u64 len;
    i64 steps[2];
    u64 reverse;
};

template <class S> __device__ inline void cumsum(S* out, const S* x, const Walk<2>& kept, const Scan& scan) {
    using T = Opmath<S>;
    u32 lane = threadIdx.x % LANES;
    u64 warps = thread_count() / LANES;
    for (u64 row = thread_index() / LANES; row < kept.elements; row += warps) {
        Offsets<2> at = offsets(kept, row);
        T total = 0;
        for (u64 start = 0; start < scan.len; start += LANES) {
            u64 place = start + lane;
            bool exists = place < scan.len;
            i64 i = (i64)(scan.reverse ? scan.len - 1 - place : place);
            T sum = exists ? (T)x[at.at[1] + i * scan.steps[1]] : (T)0;
            for (u32 by = 1; by < LANES; by *= 2) {
                T before = shuffle(sum, lane >= by ? lane - by : lane);
                sum = lane >= by ? add(before, sum) : sum;
            }
            sum = add(total, sum);
            total = shuffle(sum, LANES - 1);
            if (exists) {
                out[at.at[0] + i * scan.steps[0]] = sum;
            }
        }
    }
}

#define CUMSUM(T)                                                                                   \
    extern "C" __global__ void cumsum_##T(T* out, const T* x, const __grid_constant__ Walk<2> kept, \
                                          const __grid_constant__ Scan scan) {                      \
        cumsum(out, x, kept, scan);                                                                 \
    }
#define KERNELS(T) CUMSUM(T)
KERNELS(DTYPE)

#if FLOATS
// (a, b) -> (a cos - b sin, b cos + a sin) for pairs whose second element is `apart` from the first
template <class S> struct Rotary {
    using T = Opmath<S>;

    S* out;
    const S* x;
    const S* cos;
    const S* sin;
    i64 out_apart;
    i64 x_apart;
    bool inverse;

    template <int V> __device__ void at(const Offsets<4>& offsets) const {
        T a = x[offsets.at[1]], b = x[offsets.at[1] + x_apart];
        T c = cos[offsets.at[2]], s = sin[offsets.at[3]];
        s = inverse ? -s : s;
        out[offsets.at[0]] = a * c - b * s;
        out[offsets.at[0] + out_apart] = b * c + a * s;
    }
};

#define ROTARY(T)                                                                                            \
    extern "C" __global__ void rotary_##T(T* out, const T* x, const T* cos, const T* sin,                    \
                                          const __grid_constant__ Walk<4> pairs, i64 out_apart, i64 x_apart, \
                                          u32 inverse) {                                                     \
        for_each<1>(pairs, Rotary<T>{out, x, cos, sin, out_apart, x_apart, inverse != 0});                   \
    }
#define ROTATIONS(T) ROTARY(T)
ROTATIONS(DTYPE)
#endif
