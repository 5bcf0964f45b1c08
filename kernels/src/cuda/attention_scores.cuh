// What becomes of products of queries and keys.

#ifndef DROPS  // where no weight is left out
#define DROPS 0
// Weights of rows by columns, all of which are kept.
template <bool BY_KEY, int STRIPS, int EIGHTS> struct Kept {
    __device__ Kept(const Problem&, u32, int, int) {}
    __device__ void draw(int, int) {}
    __device__ void leave_out(f32 (&)[4], int, int) const {}
    __device__ void operator()(u32 (&)[4], int, int) const {}
};
#endif

// Products become scores by a scale: the problem's if they are direct, 1 after `prepare` has dealt with a mask or with a scale
// that would turn the order around; and their differences powers of 2 by a factor. Kernels that are always DIRECT are not asked
// for others.
template <bool DIRECT> struct Scores {
    const Problem& problem;
    const S* mask;
    u32 pair;

    __device__ bool direct() const { return DIRECT || (!mask && problem.factor > 0); }
    __device__ f32 factor() const { return direct() ? problem.factor : LOG2_E; }
    __device__ f32 scale() const { return direct() ? problem.rounded_scale : 1; }
    // Of weights that are kept, which their sums with other factors are multiplied with in the end.
    __device__ f32 kept_scale() const { return DROPS ? (f32)problem.kept_scale : 1; }

    // Of a tile of `query(row, column)` and `key(row, column)`.
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
