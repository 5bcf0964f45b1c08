// Backward pass on tensor cores. Weights are recomputed from the log-sums of the forward pass.

// Rows of a tile that are processed together; fewer for TF32 and for long rows of F32, to save registers.
template <int WIDTH> constexpr int PART_OF = IS_SAME<S, tf32> || TILE_ROW<WIDTH> > 512 ? 16 : 32;

// The rows that a thread block owns in a gradient pass: queries and output gradients, or keys and values if BY_KEY. `scores` are products with
// part of a tile and become weights; `slopes` become gradients of the products, or of the scores if the final sums are multiplied by the scale
// (the gradients of products may overflow F16).
template <int WIDTH, int BLOCK_STRIPS, int TILE, int PART, bool KEPT, bool BY_KEY> struct Backward {
    enum : int { STRIPS = OF_WARP<BLOCK_STRIPS> };

    const Problem& problem;
    Scores<(BLOCK_STRIPS > 1)> kind;
    Own<WIDTH, BLOCK_STRIPS, KEPT> left, right;
    int first;  // the warp's first row
    Sums<STRIPS, PART / 8> scores, slopes;

    __device__ Backward(const Problem& problem, const S* mask, u32 pair, Shared left, Shared right, int first)
        : problem(problem), kind{problem, mask, pair}, left(left), right(right), first(first) {}

    using Kept = ::Kept<BY_KEY, STRIPS, PART / 8>;

    enum : bool { LATE = GROUPED && !IS_SAME<S, f16> };
    __device__ f32 early(f32 slope) const { return LATE ? slope : slope * problem.rounded_scale; }
    __device__ f32 late() const { return LATE ? problem.rounded_scale : 1; }

    // First row of the warps that multiply together, and their number of rows.
    enum : int { ROWS = TOGETHER * STRIPS * 16 };
    __device__ int together() const { return first_together(first, STRIPS * 16); }

    // Processes rows of both matrices of a tile from `start` on; `prepare()` applies scale and mask to scores; `numbers(n)` returns log-sums and products of the queries for eight columns. WHOLE:
    // all queries attend to all keys (else see `seen(row, column)`). Calls `weighted`, which starts USES products, as soon as
    // the weights are known; in kernels for warp groups they include dropped ones.
    template <bool WHOLE, int USES, class Prepare, class Seen, class Numbers, class Weighted>
    __device__ void multiply_both(Shared a, Shared b, int start, Prepare prepare, Seen seen, Numbers numbers, Weighted weighted) {
        f32 scale = kind.scale();
        multiply<TILE>(scores, left, a);
        if constexpr (!GROUPED) {
            prepare();
        }
        multiply<TILE>(slopes, right, b);
        Kept kept(problem, kind.pair, first, start);
        // Rounded as in the forward pass: a contracted product would differ from a large log-sum.
        auto weight_of = [&](f32 score, f32 log_sum) { return exp2_of((mul_rounded(score, scale) - log_sum) * LOG2_E); };
        auto slope_of = [&](f32 weight, f32 slope, f32 product) {
            return early(weight * (slope * kind.kept_scale() - product));
        };
        using Each = decltype(numbers(0));
        if constexpr (GROUPED) {
            products_arrive<1>();
            settle(scores);
            prepare();
            for_eights(numbers, [&](int m, int n, const Each& each) {
                kept.draw(m, n);
                for_each<WHOLE>(m, n, seen, each, [&](f32& score, f32&, f32 log_sum, f32, bool exists) {
                    score = exists ? weight_of(score, log_sum) : 0;
                });
            });
            weighted(kept);
            products_arrive<USES>();
            settle(slopes);
            for_eights(numbers, [&](int m, int n, const Each& each) {
                kept.leave_out(slopes.at[m][n], m, n);
                for_each<WHOLE>(m, n, seen, each, [&](f32 weight, f32& slope, f32, f32 product, bool exists) {
                    slope = exists ? slope_of(weight, slope, product) : 0;
                });
            });
        } else {  // together, to save registers
            for_eights(numbers, [&](int m, int n, const Each& each) {
                kept.draw(m, n);
                kept.leave_out(slopes.at[m][n], m, n);
                for_each<WHOLE>(m, n, seen, each, [&](f32& score, f32& slope, f32 log_sum, f32 product, bool exists) {
                    f32 weight = weight_of(score, log_sum);
                    score = exists ? weight : 0;
                    slope = exists ? slope_of(weight, slope, product) : 0;
                });
                kept.leave_out(scores.at[m][n], m, n);
            });
            weighted(kept);
        }
    }

    // Calls `body(strip, n, numbers(n))` for each strip and each group of eight columns.
    template <class Numbers, class Body> __device__ static void for_eights(Numbers numbers, Body body) {
#pragma unroll
        for (int n = 0; n < PART / 8; ++n) {
            auto each = numbers(n);
#pragma unroll
            for (int m = 0; m < STRIPS; ++m) {
                body(m, n, each);
            }
        }
    }

    // Calls `body(score, slope, log_sum, product, whether the query attends to the key)` for each of this thread's elements of eight columns.
    template <bool WHOLE, class Seen, class Numbers, class Body>
    __device__ void for_each(int m, int n, Seen seen, const Numbers& numbers, Body body) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            bool exists = WHOLE || seen(m * 16 + own_row() + i / 2 * 8, n * 8 + own_column() + i % 2);
            body(scores.at[m][n][i], slopes.at[m][n][i], numbers.log_sum(m, i), numbers.product(m, i), exists);
        }
    }
};

// dq: a thread block owns queries and loops over keys.
template <int WIDTH> constexpr int QUERY_PART = GROUPED && !DROPS ? 64 : PART_OF<WIDTH>;
template <int WIDTH, int STRIPS> constexpr bool KEEPS_QUERIES = !GROUPED && STRIPS == 1 && TILE_ROW<WIDTH> <= (DROPS ? 128 : 256);

template <int WIDTH, int BLOCK_STRIPS, int KEYS>
struct GradQ : Backward<WIDTH, BLOCK_STRIPS, KEYS, QUERY_PART<WIDTH>, KEEPS_QUERIES<WIDTH, BLOCK_STRIPS>, false> {
    using Base = Backward<WIDTH, BLOCK_STRIPS, KEYS, QUERY_PART<WIDTH>, KEEPS_QUERIES<WIDTH, BLOCK_STRIPS>, false>;
    using Base::Base, Base::problem, Base::kind, Base::first, Base::together, Base::ROWS, Base::STRIPS;
    using typename Base::Kept;
    enum : int { PART = QUERY_PART<WIDTH> };

    // Log-sum and product of each of this thread's rows.
    struct Numbers {
        f32 log_sums[STRIPS][2], products[STRIPS][2];

        __device__ f32 log_sum(int m, int i) const { return log_sums[m][i / 2]; }
        __device__ f32 product(int m, int i) const { return products[m][i / 2]; }
    };

    Sums<STRIPS, SLICE_OF<WIDTH> / 8> sums;
    Numbers numbers;

    // Whether no query attends to keys from `start` on; whether all attend to all keys of the part.
    __device__ bool none(int start) const { return start >= seen_by(problem, together() + ROWS - 1); }
    __device__ bool whole(int start) const { return start + PART <= seen_by(problem, together()); }

    template <bool WHOLE> __device__ void add(Shared keys, Shared values, Shared mask, int column, int start) {
        auto prepare = [&] {
            Shared own = mask + warp() * STRIPS * 16 * PANEL_ROW<KEYS>;
            kind.template prepare<false, KEYS, BLOCK_STRIPS * 64>(this->scores, own, start % KEYS);
        };
        this->template multiply_both<WHOLE, 0>(
            keys, values, start, prepare, [&](int row, int column) { return column < seen_by(problem, first + row) - start; },
            [&](int) { return numbers; }, [](const Kept&) {});
        accumulate<WIDTH, KEYS>(sums, this->slopes, from_column<KEYS>(keys, column), [](int) {}, AllStay());
        products_arrive<0>();
        settle(sums);
    }
};

template <int WIDTH, int BLOCK_STRIPS, int KEYS>
__device__ inline void grad_q(const S* q, const S* k, const S* v, const S* mask, const S* g, const f32* log_sums,
                              const f32* products, S* dq, const Walk<OPERANDS>& batch, const Problem& problem) {
    constexpr int STRIPS = OF_WARP<BLOCK_STRIPS>, QUERIES = BLOCK_STRIPS * 64, SLICE = SLICE_OF<WIDTH>, TILE_BYTES = KEYS * TILE_ROW<WIDTH>;
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared own = shared_of(memory), tiles = own + 2 * QUERIES * TILE_ROW<WIDTH>;
    Item item(problem.queries, QUERIES, problem.width, SLICE, problem.causal);
    int first = item.first, column = SLICE < WIDTH ? item.column : 0;
    Offsets<OPERANDS> at = offsets(batch, item.pair);
    Rows<WIDTH, Q, WARPS<BLOCK_STRIPS>> queries(q + at.at[Q], problem);
    Rows<WIDTH, G, WARPS<BLOCK_STRIPS>> gradients(g + at.at[G], problem);
    queries.template stage<QUERIES>(own, first);
    gradients.template stage<QUERIES>(own + QUERIES * TILE_ROW<WIDTH>, first);
    using Pass = GradQ<WIDTH, BLOCK_STRIPS, KEYS>;
    Pass pass(problem, mask, item.pair, own,
              own + QUERIES * TILE_ROW<WIDTH>, first + warp() * STRIPS * 16);
    clear(pass.sums);
    for_rows_of<STRIPS>([&](int m, int half, int row) {
        bool exists = pass.first + row < (int)problem.queries;
        pass.numbers.log_sums[m][half] = exists ? log_sums[item.pair * problem.queries + pass.first + row] : 0;
        pass.numbers.products[m][half] = exists ? products[item.pair * problem.queries + pass.first + row] : 0;
    });
    for_key_tiles<WIDTH, BLOCK_STRIPS, KEYS>(k, v, mask, batch, problem, item.pair, first, tiles, [&](int start, Shared keys, Shared mask) {
        if (start == 0) {
            pass.left.keep();
            pass.right.keep();
        }
#pragma unroll 1
        for (int part = start; part < start + KEYS; part += Pass::PART) {
            Shared tile = uniform(keys + part % KEYS * PANEL_ROW<WIDTH>);
            if (pass.whole(part)) {
                pass.template add<true>(tile, tile + TILE_BYTES, mask, column, part);
            } else if (!pass.none(part)) {
                pass.template add<false>(tile, tile + TILE_BYTES, mask, column, part);
            }
        }
    });
    scale(pass.sums, pass.late());
    write<DQ>(dq + at.at[DQ], problem, pass.first, column, pass.sums);
}

// dk, dv: a thread block owns keys and SLICE columns of their gradients, and loops over queries. Scores are transposed.
template <int WIDTH, int BLOCK_STRIPS, int QUERIES, int SLICE>
struct GradKv : Backward<WIDTH, BLOCK_STRIPS, QUERIES, PART_OF<WIDTH>, false, true> {
    using Base = Backward<WIDTH, BLOCK_STRIPS, QUERIES, PART_OF<WIDTH>, false, true>;
    using Base::Base, Base::problem, Base::kind, Base::first, Base::together, Base::ROWS, Base::STRIPS;
    using typename Base::Kept;
    enum : int { PART = PART_OF<WIDTH> };

    // Log-sums and products of this thread's two columns.
    struct Numbers {
        f32 log_sums[2], products[2];

        __device__ f32 log_sum(int, int i) const { return log_sums[i % 2]; }
        __device__ f32 product(int, int i) const { return products[i % 2]; }
    };

    Sums<STRIPS, SLICE / 8> key_sums, value_sums;

    // Whether no query from `start` on attends to a key; whether all exist and attend to all keys.
    __device__ bool none(int start) const { return problem.causal && start + PART <= together(); }
    __device__ bool whole(int start) const {
        return start + PART <= (int)problem.queries && (!problem.causal || start >= together() + ROWS - 1);
    }

    template <bool WHOLE>
    __device__ void add(Shared queries, Shared gradients, Shared mask, Shared log_sums, Shared products, int column, int start) {
        auto prepare = [&] {
            kind.template prepare<true, BLOCK_STRIPS * 64, QUERIES>(this->scores, mask, warp() * STRIPS * 16);
        };
        this->template multiply_both<WHOLE, 1>(
            queries, gradients, start, prepare,
            [&](int row, int column) { return !problem.causal || row - column <= start - first; },
            [&](int n) {
                Numbers numbers;
                int at = (n * 8 + own_column()) * (int)sizeof(f32);
                load_numbers(numbers.log_sums, log_sums + at);
                load_numbers(numbers.products, products + at);
                return numbers;
            },
            [&](const Kept& kept) {
                Shared rows = from_column<QUERIES>(gradients, column);
                if constexpr (GROUPED) {
                    accumulate<WIDTH, QUERIES>(value_sums, this->scores, rows, [](int) {}, kept);
                } else {  // dropout was applied already
                    accumulate<WIDTH, QUERIES>(value_sums, this->scores, rows, [](int) {}, AllStay());
                }
            });
        Shared rows = from_column<QUERIES>(queries, column);
        accumulate<WIDTH, QUERIES>(key_sums, this->slopes, rows, [](int) {}, AllStay());
        products_arrive<0>();
        settle(value_sums);
        settle(key_sums);
    }
};

template <int WIDTH, int BLOCK_STRIPS, int QUERIES, int SLICE>
__device__ inline void grad_kv(const S* q, const S* k, const S* v, const S* mask, const S* g, const f32* log_sums,
                               const f32* products, S* dk, S* dv, const Walk<OPERANDS>& batch, const Problem& problem) {
    constexpr int STRIPS = OF_WARP<BLOCK_STRIPS>, KEYS = BLOCK_STRIPS * 64;
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared own = shared_of(memory), tiles = own + 2 * KEYS * TILE_ROW<WIDTH>;
    constexpr int TILE_BYTES = QUERIES * TILE_ROW<WIDTH>, NUMBER_BYTES = QUERIES * (int)sizeof(f32);
    u64 columns = problem.width > problem.value_width ? problem.width : problem.value_width;
    Item item(problem.keys, KEYS, columns, SLICE, false);
    int first = item.first, column = SLICE < WIDTH ? item.column : 0;
    Offsets<OPERANDS> at = offsets(batch, item.pair);
    Rows<WIDTH, Q, WARPS<BLOCK_STRIPS>> queries(q + at.at[Q], problem);
    Rows<WIDTH, G, WARPS<BLOCK_STRIPS>> gradients(g + at.at[G], problem);
    Rows<WIDTH, K, WARPS<BLOCK_STRIPS>> keys(k + at.at[K], problem);
    Rows<WIDTH, V, WARPS<BLOCK_STRIPS>> values(v + at.at[V], problem);
    // Double-buffered queries and output gradients, then their log-sums and products.
    auto tile_of = [&](int start) { return tiles + start / QUERIES % 2 * 2 * TILE_BYTES; };
    auto numbers_of = [&](int start) { return tiles + 4 * TILE_BYTES + start / QUERIES % 2 * 2 * NUMBER_BYTES; };
    MaskTiles<BLOCK_STRIPS, QUERIES, KEYS> masks{problem, batch, mask, item.pair, numbers_of(0) + 4 * NUMBER_BYTES};
    auto fetch = [&](int start) {
        masks.stage(start / QUERIES, start, first);
        queries.template stage<QUERIES>(tile_of(start), start);
        gradients.template stage<QUERIES>(tile_of(start) + TILE_BYTES, start);
        u64 before = item.pair * problem.queries;
        stage_numbers<QUERIES>(numbers_of(start), log_sums + before, start, (int)problem.queries);
        stage_numbers<QUERIES>(numbers_of(start) + NUMBER_BYTES, products + before, start, (int)problem.queries);
    };
    int begin = problem.causal ? first / QUERIES * QUERIES : 0;
    keys.template stage<KEYS>(own, first);
    values.template stage<KEYS>(own + KEYS * TILE_ROW<WIDTH>, first);
    using Pass = GradKv<WIDTH, BLOCK_STRIPS, QUERIES, SLICE>;
    Pass pass(problem, mask, item.pair, own,
              own + KEYS * TILE_ROW<WIDTH>, first + warp() * STRIPS * 16);
    clear(pass.key_sums);
    clear(pass.value_sums);
#pragma unroll 1
    for (int start = begin - QUERIES; start < (int)problem.queries; start += QUERIES) {
        tiles_arrive();
        if (start + QUERIES < (int)problem.queries) {
            fetch(start + QUERIES);
        }
        // Before `begin`, no query of a tile attends to a key.
        if (start < 0) {
            continue;
        }
#pragma unroll 1
        for (int part = start; part < start + QUERIES; part += Pass::PART) {
            Shared tile = uniform(tile_of(start) + part % QUERIES * PANEL_ROW<WIDTH>);
            Shared mask_rows = masks.at(start / QUERIES) + part % QUERIES * PANEL_ROW<KEYS>;
            Shared logs = numbers_of(start) + part % QUERIES * (int)sizeof(f32);
            if (pass.whole(part)) {
                pass.template add<true>(tile, tile + TILE_BYTES, mask_rows, logs, logs + NUMBER_BYTES, column, part);
            } else if (!pass.none(part)) {
                pass.template add<false>(tile, tile + TILE_BYTES, mask_rows, logs, logs + NUMBER_BYTES, column, part);
            }
        }
    }
    scale(pass.key_sums, pass.late());
    scale(pass.value_sums, pass.kind.kept_scale());
    write<DK>(dk + at.at[DK], problem, pass.first, column, pass.key_sums);
    write<DV>(dv + at.at[DV], problem, pass.first, column, pass.value_sums);
}
