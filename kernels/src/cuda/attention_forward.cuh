// Forward pass on tensor cores with online softmax: a thread block owns queries and loops over keys. When the running maximum grows, sums are
// rescaled.

template <int WIDTH, int BLOCK_STRIPS, int KEYS> struct Forward {
    enum : int { STRIPS = OF_WARP<BLOCK_STRIPS>, SLICE = SLICE_OF<WIDTH> };

    const Problem& problem;
    Scores<(BLOCK_STRIPS > 1)> kind;
    Own<WIDTH, BLOCK_STRIPS, STRIPS * TILE_ROW<WIDTH> <= 256> queries;
    int first;  // the warp's first query
    Sums<STRIPS, SLICE / 8> sums;
    f32 best[STRIPS][2];   // running maximum of each of this thread's rows
    f32 total[STRIPS][2];  // sum of weights over this thread's columns

    __device__ Forward(const Problem& problem, const S* mask, u32 pair, Shared tile, int first)
        : problem(problem), kind{problem, mask, pair}, queries(tile), first(first) {
        clear(sums);
        for_rows_of<STRIPS>([&](int m, int half, int) { best[m][half] = lowest<f32>(), total[m][half] = 0; });
    }

    // First query of the warps that multiply together; whether none of them attends to keys from `start` on; whether all attend to the whole tile.
    __device__ int together() const { return first_together(first, STRIPS * 16); }
    __device__ bool none(int start) const { return start >= seen_by(problem, together() + TOGETHER * STRIPS * 16 - 1); }
    __device__ bool whole(int start) const { return start + KEYS <= seen_by(problem, together()); }

    // Updates the running maximum, returns it in `shift`, and rescales the sums; the factor is exactly 1 if the maximum is unchanged.
    __device__ void grow(const Sums<STRIPS, KEYS / 8>& scores, f32 factor, f32 (&shift)[STRIPS][2]) {
        for_rows_of<STRIPS>([&](int m, int half, int) {
            f32 largest = best[m][half];
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
                largest = fmaxf(largest, fmaxf(scores.at[m][n][half * 2], scores.at[m][n][half * 2 + 1]));
            }
            largest = fmaxf(largest, __shfl_xor_sync(FULL, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(FULL, largest, 2));
            // If all keys so far are masked, -inf - -inf would be NaN.
            shift[m][half] = largest == lowest<f32>() ? 0 : largest;
            f32 before = exp2_of((best[m][half] - shift[m][half]) * factor);
            best[m][half] = largest;
            total[m][half] *= before;
            scale_row(sums, m, half, before);
        });
    }

    // Processes the keys and values of a tile.
    template <bool WHOLE> __device__ void add(Shared keys, Shared values, Shared mask, int start) {
        Kept<false, STRIPS, KEYS / 8> kept(problem, kind.pair, first, start);
        Sums<STRIPS, KEYS / 8> scores;
        multiply<KEYS>(scores, queries, keys);
        products_arrive<0>();
        settle(scores);
        f32 factor = kind.factor();
        kind.template prepare<false, KEYS, BLOCK_STRIPS * 64>(scores, mask + warp() * STRIPS * 16 * PANEL_ROW<KEYS>, 0);
        if (!WHOLE) {
            for_sums(scores, [&](f32& score, int, int row, int column) {
                if (column >= seen_by(problem, first + row) - start) {
                    score = lowest<f32>();
                }
            });
        }
        f32 shift[STRIPS][2];
        grow(scores, factor, shift);
        auto weights = [&](int n) {
#pragma unroll
            for (int m = 0; m < STRIPS; ++m) {
                kept.draw(m, n);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    f32 weight = exp2_of((scores.at[m][n][i] - shift[m][i / 2]) * factor);
                    total[m][i / 2] += weight;
                    scores.at[m][n][i] = weight;
                }
            }
        };
        accumulate<WIDTH, KEYS>(sums, scores, values, weights, kept);
        products_arrive<0>();
        settle(sums);
    }

    // Divides by the sums of weights; calls `log(row, value)` with the log-sum of each of this thread's rows.
    template <class Log> __device__ void finish(Log log) {
        f32 scale = kind.scale();
        for_rows_of<STRIPS>([&](int m, int half, int row) {
            f32 all = total[m][half];
            all += __shfl_xor_sync(FULL, all, 1);
            all += __shfl_xor_sync(FULL, all, 2);
            bool seen = all != 0;
            scale_row(sums, m, half, seen ? kind.kept_scale() / all : 0);
            log(first + row, seen ? mul_rounded(best[m][half], scale) + log_of(all) : highest<f32>());
        });
    }
};

template <int WIDTH, int BLOCK_STRIPS, int KEYS>
__device__ inline void forward(const S* q, const S* k, const S* v, const S* mask, S* out, f32* log_sums,
                               const Walk<OPERANDS>& batch, const Problem& problem) {
    constexpr int STRIPS = OF_WARP<BLOCK_STRIPS>, QUERIES = BLOCK_STRIPS * 64, SLICE = SLICE_OF<WIDTH>, TILE_BYTES = KEYS * TILE_ROW<WIDTH>;
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared own = shared_of(memory), tiles = own + QUERIES * TILE_ROW<WIDTH>;
    Item item(problem.queries, QUERIES, problem.value_width, SLICE, problem.causal);
    int first = item.first, column = SLICE < WIDTH ? item.column : 0;
    Offsets<OPERANDS> at = offsets(batch, item.pair);
    Rows<WIDTH, Q, WARPS<BLOCK_STRIPS>> queries(q + at.at[Q], problem);
    queries.template stage<QUERIES>(own, first);
    Forward<WIDTH, BLOCK_STRIPS, KEYS> pass(problem, mask, item.pair, own, first + warp() * STRIPS * 16);
    for_key_tiles<WIDTH, BLOCK_STRIPS, KEYS>(k, v, mask, batch, problem, item.pair, first, tiles, [&](int start, Shared tile, Shared mask) {
        if (start == 0) {
            pass.queries.keep();
        }
        Shared columns = from_column<KEYS>(tile + TILE_BYTES, column);
        if (pass.whole(start)) {
            pass.template add<true>(tile, columns, mask, start);
        } else if (!pass.none(start)) {
            pass.template add<false>(tile, columns, mask, start);
        }
    });
    pass.finish([&](int query, f32 log) {
        if (column == 0 && lane() % 4 == 0 && query < (int)problem.queries) {
            log_sums[item.pair * problem.queries + query] = log;
        }
    });
    // Recomputed to save a register.
    write<OUT>(out + offsets(batch, item.pair).at[OUT], problem, pass.first, column, pass.sums);
}
