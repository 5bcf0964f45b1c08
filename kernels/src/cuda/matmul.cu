// GEMM with arbitrary strides, for integers and for layouts that BLAS cannot express. Sums are in order of k. A and B have type S, C has type O.

struct Product {
    u64 m, n, k;
    i64 a_row, a_column;
    i64 b_row, b_column;
    i64 c_row, c_column;
    u32 accumulate;
    u32 relu;
};

constexpr int SIDE = 64;   // side of a thread block's tile of C
constexpr int DEPTH = 16;  // depth of the slices of A and B that it loads
constexpr int SPAN = 4;    // side of a thread's tile of C
constexpr int ACROSS = SIDE / SPAN;

// blockIdx.x: tile of C, blockIdx.y: batch.
template <class O, class S>
__device__ inline void matmul(O* c, const S* a, const S* b, const Product& p, const Walk<3>& batch) {
    using T = Opmath<S>;
    __shared__ T left[DEPTH][SIDE + 1];
    __shared__ T right[DEPTH][SIDE + 1];
    u64 tiles = (p.n + SIDE - 1) / SIDE;
    u64 i0 = blockIdx.x / tiles * SIDE, j0 = blockIdx.x % tiles * SIDE;
    u32 x = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS;
    for (u64 index = blockIdx.y; index < batch.elements; index += gridDim.y) {
        Offsets<3> at = offsets(batch, index);
        T sums[SPAN][SPAN] = {};
        for (u64 k0 = 0; k0 < p.k; k0 += DEPTH) {
            for (u32 e = threadIdx.x; e < SIDE * DEPTH; e += ACROSS * ACROSS) {
                u64 k = k0 + e % DEPTH, i = i0 + e / DEPTH;
                left[e % DEPTH][e / DEPTH] =
                    i < p.m && k < p.k ? (T)a[at.at[1] + (i64)i * p.a_row + (i64)k * p.a_column] : (T)0;
                u64 q = k0 + e / SIDE, j = j0 + e % SIDE;
                right[e / SIDE][e % SIDE] =
                    j < p.n && q < p.k ? (T)b[at.at[2] + (i64)q * p.b_row + (i64)j * p.b_column] : (T)0;
            }
            __syncthreads();
            // An incomplete slice is not padded with zeros: 0 times infinity is NaN.
            int depth = p.k - k0 < DEPTH ? (int)(p.k - k0) : DEPTH;
            for (int k = 0; k < depth; ++k) {
#pragma unroll
                for (int i = 0; i < SPAN; ++i) {
#pragma unroll
                    for (int j = 0; j < SPAN; ++j) {
                        sums[i][j] = add(sums[i][j], mul(left[k][y + i * ACROSS], right[k][x + j * ACROSS]));
                    }
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < SPAN; ++i) {
#pragma unroll
            for (int j = 0; j < SPAN; ++j) {
                u64 row = i0 + y + i * ACROSS, column = j0 + x + j * ACROSS;
                if (row < p.m && column < p.n) {
                    O& to = c[at.at[0] + (i64)row * p.c_row + (i64)column * p.c_column];
                    T sum = p.accumulate ? add((T)to, sums[i][j]) : sums[i][j];
                    to = p.relu && (is_negative(sum) || sum == 0) ? (T)0 : sum;
                }
            }
        }
    }
}

#define MATMUL(O)                                                                      \
    extern "C" __global__ void __launch_bounds__(ACROSS* ACROSS, 1) matmul_##O(        \
        O* c, const DTYPE* a, const DTYPE* b, const __grid_constant__ Product product, \
        const __grid_constant__ Walk<3> batch) {                                       \
        matmul(c, a, b, product, batch);                                               \
    }
#define KERNELS(O) MATMUL(O)
KERNELS(DTYPE)
#if HALF
KERNELS(f32)  // for partial sums
#endif
