// Which weights of a tile dropout keeps. A counter gives the words of four weights, one key behind the other, which different threads
// have: each draws some of them for all, and they exchange words.

__device__ inline void exchange(u32& a, u32& b, bool second, int lanes) {
    u32 got = __shfl_xor_sync(FULL, second ? a : b, lanes);
    a = second ? got : a;
    b = second ? b : got;
}

// Of queries by keys, or of keys by queries: `of` numbers what a thread draws for its four sums of eight columns, of which `row` and
// `column` are the first ones, and `exchange` makes them those of its sums.
template <bool BY_KEY> struct Drawn {
    // Two lanes have the four keys of two queries, eight apart.
    __device__ static u64 of(const Problem& problem, u32 pair, int row, int column) {
        int query = row + own_row() + (lane() & 1 ? 8 : 0), key = column + (own_column() & 4);
        return first_four(problem, pair, query) + key / 4;
    }
    __device__ static void exchange(u32 (&four)[4]) {
        bool second = lane() & 1;
        ::exchange(four[0], four[2], second, 1);
        ::exchange(four[1], four[3], second, 1);
    }
};
template <> struct Drawn<true> {
    // Four lanes have the four keys of two queries, and those eight further on.
    __device__ static u64 of(const Problem& problem, u32 pair, int row, int column) {
        int which = own_row() % 4, query = column + own_column() + which % 2, key = row + (own_row() & 4) + which / 2 * 8;
        return first_four(problem, pair, query) + key / 4;
    }
    __device__ static void exchange(u32 (&four)[4]) {
        int which = own_row() % 4;
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            ::exchange(four[i], four[i + 1], which & 1, 4);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            ::exchange(four[i], four[i + 2], which & 2, 8);
        }
    }
};

// Products become scores by a scale: the problem's if they are direct, 1 after `prepare` has dealt with a mask or with a scale
// that would turn the order around; and their differences powers of 2 by a factor. Kernels that are always DIRECT are not asked
// for others, nor to leave out weights.
template <bool DIRECT> struct Scores {
    const Problem& problem;
    const S* mask;
    u32 pair;

    __device__ bool drops() const { return !DIRECT && problem.kept_from; }
    __device__ bool direct() const { return DIRECT || (!mask && problem.factor > 0); }
    // Whether a tile that is seen as a whole needs nothing looked at.
    __device__ bool plain() const { return direct() && !drops(); }
    __device__ f32 factor() const { return direct() ? problem.factor : LOG2_E; }
    __device__ f32 scale() const { return direct() ? problem.rounded_scale : 1; }
    // Of weights that are kept, which their sums with other factors are multiplied with in the end.
    __device__ f32 kept_scale() const { return drops() ? (f32)problem.kept_scale : 1; }

    // Which of this thread's weights are kept, a bit for each; `row` and `column` are the first ones.
    template <bool BY_KEY, int STRIPS, int EIGHTS> __device__ u32 kept(int row, int column) const {
        u32 bits = ~0u;
        if constexpr (!DIRECT) {
            constexpr int ALL = STRIPS * EIGHTS, AT_ONCE = ALL < 4 ? ALL : 4;
            static_assert(ALL <= 8 && ALL % AT_ONCE == 0, "a word has bits for them");
            if (drops()) {
                bits = 0;
#pragma unroll
                for (int start = 0; start < ALL; start += AT_ONCE) {
                    Four<u32> fours[AT_ONCE];
#pragma unroll
                    for (int i = 0; i < AT_ONCE; ++i) {
                        int strip = (start + i) / EIGHTS, eight = (start + i) % EIGHTS;
                        u64 number = Drawn<BY_KEY>::of(problem, pair, row + strip * 16, column + eight * 8);
                        fours[i] = counter_of(problem.key, number, false);
                    }
                    draw<1>(problem.key, fours);
#pragma unroll
                    for (int i = 0; i < AT_ONCE * 4; ++i) {
                        if (i % 4 == 0) {
                            Drawn<BY_KEY>::exchange(fours[i / 4].at);
                        }
                        bits |= (u32)is_kept(problem, fours[i / 4].at[i % 4]) << (start * 4 + i);
                    }
                }
            }
        }
        return bits;
    }

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
