// From products of queries and keys to scores and weights.

#ifndef DROPS  // without dropout
#define DROPS 0
// Interface of dropout for kernels without it: all weights are kept.
template <bool BY_KEY, int STRIPS, int EIGHTS> struct Kept {
    __device__ Kept(const Problem&, u32, int, int) {}
    __device__ void draw(int, int) {}
    __device__ void leave_out(f32 (&)[4], int, int) const {}
    __device__ void operator()(u32 (&)[4], int, int) const {}
};
#endif

// Scaling of products. Without a mask and with a positive scale, products are used directly, and the scale is part of the exponent's factor.
// Otherwise `prepare` applies scale and mask first. DIRECT kernels support only the former.
template <bool DIRECT> struct Scores {
    const Problem& problem;
    const S* mask;
    u32 pair;

    __device__ bool direct() const { return DIRECT || (!mask && problem.factor > 0); }
    __device__ f32 factor() const { return direct() ? problem.factor : LOG2_E; }
    __device__ f32 scale() const { return direct() ? problem.rounded_scale : 1; }
    // Dropout factor of kept weights; applied once to the final sums.
    __device__ f32 kept_scale() const { return DROPS ? (f32)problem.kept_scale : 1; }

    // Applies scale and mask to products of a tile whose first element is (row, column). BY_KEY: rows are keys.
    template <bool BY_KEY, int STRIPS, int EIGHTS>
    __device__ void prepare(Sums<STRIPS, EIGHTS>& products, int row, int column) const {
        if (direct()) {
            return;
        }
        const i64(&steps)[2] = problem.steps[MASK];
#pragma unroll
        for (int m = 0; m < STRIPS; ++m) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int own = row + m * 16 + own_row() + i / 2 * 8, other = column + own_column() + i % 2;
                int query = BY_KEY ? other : own, key = BY_KEY ? own : other;
                const S* at = mask + query * steps[0] + key * steps[1];
#pragma unroll
                for (int n = 0; n < EIGHTS; ++n, at += 8 * steps[!BY_KEY]) {
                    f32& product = products.at[m][n][i];
                    product = mul_rounded(product, problem.rounded_scale);
                    if (mask && query + (BY_KEY ? n * 8 : 0) < (int)problem.queries && key + (BY_KEY ? 0 : n * 8) < (int)problem.keys) {
                        product += *at;
                    }
                }
            }
        }
    }
};
