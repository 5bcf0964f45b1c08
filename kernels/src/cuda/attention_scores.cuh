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

    // Applies scale and mask to a tile; `query(row, column)` and `key(row, column)` return the indices of an element.
    template <int STRIPS, int EIGHTS, class Query, class Key>
    __device__ void prepare(Sums<STRIPS, EIGHTS>& products, Query query, Key key) const {
        if (direct()) {
            return;
        }
        for_sums(products, [&](f32& product, int, int row, int column) {
            product = mul_rounded(product, problem.rounded_scale);
            int i = query(row, column), j = key(row, column);
            if (mask && i < (int)problem.queries && j < (int)problem.keys) {
                product += mask[i * problem.steps[MASK][0] + j * problem.steps[MASK][1]];
            }
        });
    }
};
