// Attention on tensor cores: tiles in shared memory and their fragments.
//
// A thread block owns rows of its output, STRIPS strips of 16 per warp, and loops over tiles of the other matrices in order. A tile is copied to
// shared memory while the previous one is processed. WIDTH is the row width rounded up to a power of two; missing columns are 0. Scores are F32;
// weights and score gradients are rounded to the element type as operands of tensor cores.

#ifndef GROUPED  // 1 in kernels for warp groups
#define GROUPED 0
#endif
#define BY_GROUPS (GROUPED && !defined(CUDA_EMULATOR))

// Warps of a thread block that owns STRIPS strips of 64 rows, and strips of 16 rows per warp.
template <int STRIPS> constexpr int WARPS = GROUPED ? STRIPS * 4 : 4;
template <int STRIPS> constexpr int OF_WARP = GROUPED ? 1 : STRIPS;

constexpr f32 LOG2_E = 1.4426950408889634f;

__device__ inline int lane() { return (int)(threadIdx.x % LANES); }
__device__ inline int warp() { return (int)(threadIdx.x / LANES); }
// Warps that share a tensor core instruction, and the first row of these warps.
enum : int { TOGETHER = GROUPED ? 4 : 1 };
__device__ inline int first_together(int first, int rows) { return first - warp() % TOGETHER * rows; }
// Tells the compiler that x is equal in all lanes of a warp.
__device__ inline Shared uniform(Shared x) { return GROUPED ? __shfl_sync(FULL, x, 0) : x; }
// This thread's first row and column of an accumulator.
__device__ inline int own_row() { return lane() / 4; }
__device__ inline int own_column() { return lane() % 4 * 2; }

// A tile consists of panels of 128 bytes (or fewer, if rows are shorter) of each of its rows.
template <int WIDTH> constexpr int TILE_ROW = WIDTH * (int)sizeof(S);
template <int WIDTH> constexpr int PANEL_ROW = TILE_ROW<WIDTH> < 128 ? TILE_ROW<WIDTH> : 128;
enum : int { PANEL_COLUMNS = 8 * SIXTEENTH };
// Columns of outputs and gradients of queries that a thread block computes.
template <int WIDTH> constexpr int SLICE_OF = TILE_ROW<WIDTH> > 512 ? 128 : WIDTH;

// Byte offset of element (row, column + further) of a tile. 16-byte units are swizzled so that a column of eight rows touches different banks.
template <int WIDTH, int ROWS> __device__ inline int place(int row, int column, int further = 0) {
    int turned = column / SIXTEENTH % 8 ^ (WIDTH / SIXTEENTH == 4 ? row / 2 % 4 : row % 8) ^ further / SIXTEENTH % 8;
    int panel = column / PANEL_COLUMNS + further / PANEL_COLUMNS;
    return (panel * ROWS + row) * PANEL_ROW<WIDTH> + turned * 16 + column % SIXTEENTH * (int)sizeof(S);
}
// A tile of ROWS rows from a column on that begins a panel.
template <int ROWS> __device__ inline Shared from_column(Shared tile, int column) { return tile + column * (int)sizeof(S) * ROWS; }

// Copies rows of an operand to shared memory; each thread of WARPS warps copies 16 bytes of every DOWN-th row, or single elements.
template <int WIDTH, int OPERAND, int WARPS> struct Rows {
    enum : int { EACH_ROW = WIDTH / SIXTEENTH, DOWN = WARPS * LANES / EACH_ROW };

    const Problem& problem;
    const S* at;  // the thread's element of the first row
    int columns;  // existing elements among its 16 bytes and behind them

    __device__ static int own_row() { return (int)threadIdx.x / EACH_ROW; }
    __device__ static int own_column() { return (int)threadIdx.x % EACH_ROW * SIXTEENTH; }

    // Columns from `column` on.
    __device__ Rows(const S* from, const Problem& problem, int column = 0)
        : problem(problem), at(from + own_row() * problem.steps[OPERAND][0] + (column + own_column()) * problem.steps[OPERAND][1]),
          columns((int)columns_of(problem, OPERAND) - column - own_column()) {}

    // Starts copying COUNT rows from row `first` on to a tile; missing elements are 0.
    template <int COUNT> __device__ void stage(Shared tile, int first) const {
        const i64(&steps)[2] = problem.steps[OPERAND];
        const S* from = at + first * steps[0];
        int left = (int)rows_of(problem, OPERAND) - first - own_row();
        if (problem.vectors >> OPERAND & 1) {
            int bytes = max(min(columns, SIXTEENTH), 0) * (int)sizeof(S);
#pragma unroll
            for (int i = 0; i < COUNT; i += DOWN, from += DOWN * steps[0]) {
                copy_async<16>(tile + place<WIDTH, COUNT>(own_row() + i, own_column()), from, i < left ? bytes : 0);
            }
            return;
        }
#pragma unroll 1
        for (int i = 0; i < COUNT; i += DOWN, from += DOWN * steps[0]) {
            Shared to = tile + place<WIDTH, COUNT>(own_row() + i, own_column());
            if constexpr (sizeof(S) == 4) {
#pragma unroll
                for (int c = 0; c < SIXTEENTH; ++c) {
                    copy_async<4>(to + c * 4, from + c * steps[1], i < left && c < columns ? 4 : 0);
                }
            } else {
                store(pointer_of<S>(to), pack_of<S, SIXTEENTH>([&](int c) {
                          S element{};
                          return i < left && c < columns ? from[c * steps[1]] : element;
                      }));
            }
        }
    }
};

// Double-buffered tiles of a mask, behind all others: rows are queries, columns are keys. Kernels with several strips have none.
template <int STRIPS, int QUERIES, int KEYS> struct MaskTiles {
    const Problem& problem;
    const Walk<OPERANDS>& batch;
    const S* mask;
    u32 pair;
    Shared tiles;

    __device__ Shared at(int number) const { return tiles + number % 2 * QUERIES * TILE_ROW<KEYS>; }
    __device__ void stage(int number, int query, int key) const {
        if (STRIPS == 1 && mask) {
            // The offset is recomputed to save registers.
            const S* own = mask + offsets(batch, pair).at[MASK];
            Rows<KEYS, MASK, WARPS<STRIPS>>(own, problem, key).template stage<QUERIES>(at(number), query);
        }
    }
};

// Starts copying one number per row.
template <int COUNT> __device__ inline void stage_numbers(Shared to, const f32* from, int first, int rows) {
    int row = (int)threadIdx.x;
    if (row < COUNT) {
        copy_async<4>(to + row * 4, from + first + row, first + row < rows ? 4 : 0);
    }
}
// Two neighbouring numbers, the first at an even index.
__device__ inline void load_numbers(f32 (&to)[2], Shared at) {
    u32 words[2];
    load_words(words, at);
    to[0] = __uint_as_float(words[0]);
    to[1] = __uint_as_float(words[1]);
}

// Right operand from a transposed tile: 16 rows by STEP columns.
template <int WIDTH, int ROWS> __device__ inline void rows_fragment(u32 (&to)[4], Shared rows, int column) {
    load_matrices(to, rows + place<WIDTH, ROWS>(lane() % 8 + lane() / 16 * 8, lane() / 8 % 2 * SIXTEENTH, column));
}
// Right operand from a tile: STEP rows in the order of `left_of`, by 16 columns.
template <int WIDTH, int ROWS> __device__ inline void columns_fragment(u32 (&to)[4], Shared rows, int column) {
    if constexpr (EACH_WORD == 2) {
        load_transposed(to, rows + place<WIDTH, ROWS>(lane() % 16, lane() / 16 * 8, column));
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            to[i] = load_word(rows + place<WIDTH, ROWS>(own_column() + i % 2, i / 2 * 8 + own_row(), column));
        }
    }
}

// A warp's strips of 16 rows of a tile as left operands: in registers if KEPT, else loaded at each use.
template <int WIDTH, int BLOCK_STRIPS, bool KEPT> struct Own {
    enum : int { STRIPS = OF_WARP<BLOCK_STRIPS>, ROWS = BLOCK_STRIPS * 64 };

    Shared rows;
    Shared together;  // rows of all warps of a group
    u32 kept[KEPT ? STRIPS : 1][KEPT ? WIDTH / STEP : 1][4];

    __device__ explicit Own(Shared tile)
        : rows(tile + warp() * STRIPS * 16 * PANEL_ROW<WIDTH>),
          together(uniform(rows - warp() % TOGETHER * STRIPS * 16 * PANEL_ROW<WIDTH>)) {}

    __device__ void read(u32 (&to)[4], int strip, int step) const {
        int at = place<WIDTH, ROWS>(lane() % 16, lane() / 16 * SIXTEENTH, step * STEP);
        load_matrices(to, rows + at + strip * 16 * PANEL_ROW<WIDTH>);
    }
    __device__ void keep() {
        if constexpr (KEPT) {
#pragma unroll
            for (int m = 0; m < STRIPS; ++m) {
#pragma unroll
                for (int k = 0; k < WIDTH / STEP; ++k) {
                    read(kept[m][k], m, k);
                }
            }
        }
    }
    __device__ void get(u32 (&to)[4], int strip, int step) const {
        if constexpr (KEPT) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                to[i] = kept[strip][step][i];
            }
        } else {
            read(to, strip, step);
        }
    }
};

// A warp's accumulators: STRIPS x 16 rows by EIGHTS x 8 columns.
template <int STRIPS, int EIGHTS> struct Sums {
    f32 at[STRIPS][EIGHTS][4];
};

// Calls `body(sum, m, n, i)` for each accumulator `sums.at[m][n][i]` of this thread.
template <int STRIPS, int EIGHTS, class Body> __device__ inline void for_each_sum(Sums<STRIPS, EIGHTS>& sums, Body body) {
#pragma unroll
    for (int m = 0; m < STRIPS; ++m) {
#pragma unroll
        for (int n = 0; n < EIGHTS; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                body(sums.at[m][n][i], m, n, i);
            }
        }
    }
}
// Calls `body(sum, strip, row, column)` for each accumulator of this thread.
template <int STRIPS, int EIGHTS, class Body> __device__ inline void for_sums(Sums<STRIPS, EIGHTS>& sums, Body body) {
    for_each_sum(sums, [&](f32& sum, int m, int n, int i) {
        body(sum, m, m * 16 + own_row() + i / 2 * 8, n * 8 + own_column() + i % 2);
    });
}

template <int STRIPS, int EIGHTS> __device__ inline void clear(Sums<STRIPS, EIGHTS>& sums) {
    for_sums(sums, [](f32& sum, int, int, int) { sum = 0; });
}
// Calls `make(to)`, which adds products to `to`. Tensor cores truncate when they accumulate, so those of F32 are added to the sums with rounding.
template <int STRIPS, int EIGHTS, class Make> __device__ inline void add_products(Sums<STRIPS, EIGHTS>& sums, Make make) {
    if constexpr (IS_SAME<S, f32>) {
        Sums<STRIPS, EIGHTS> made;
        clear(made);
        make(made);
        for_each_sum(sums, [&](f32& sum, int m, int n, int i) { sum += made.at[m][n][i]; });
    } else {
        make(sums);
    }
}
// Calls `body(strip, half, row)` for each row of this thread's accumulators.
template <int STRIPS, class Body> __device__ inline void for_rows_of(Body body) {
#pragma unroll
    for (int k = 0; k < 2 * STRIPS; ++k) {
        body(k / 2, k % 2, k / 2 * 16 + own_row() + k % 2 * 8);
    }
}
template <int STRIPS, int EIGHTS> __device__ inline void scale_row(Sums<STRIPS, EIGHTS>& sums, int m, int half, f32 by) {
#pragma unroll
    for (int n = 0; n < EIGHTS; ++n) {
        sums.at[m][n][half * 2] *= by;
        sums.at[m][n][half * 2 + 1] *= by;
    }
}
template <int STRIPS, int EIGHTS> __device__ inline void scale(Sums<STRIPS, EIGHTS>& sums, f32 by) {
    for_sums(sums, [&](f32& sum, int, int, int) { sum *= by; });
}

#if !BY_GROUPS
// Products are there when they are made.
template <int PENDING> __device__ inline void products_arrive() {}
#endif
template <int STRIPS, int EIGHTS> __device__ inline void settle(Sums<STRIPS, EIGHTS>& sums) {
#if BY_GROUPS
    settle(sums.at[0]);
#endif
}

// After what was copied to tiles before.
__device__ inline void tiles_arrive() {
    copies_arrive();
#if BY_GROUPS
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
}

// sums = own rows of a tile, times rows of another one with ROWS rows
template <int ROWS, int WIDTH, int STRIPS, int BLOCK_STRIPS, int EIGHTS, bool KEPT>
__device__ inline void multiply(Sums<STRIPS, EIGHTS>& sums, const Own<WIDTH, BLOCK_STRIPS, KEPT>& own, Shared rows) {
#if BY_GROUPS
    settle(sums);
    products_begin();
#pragma unroll
    for (int k = 0; k < WIDTH / STEP; ++k) {
        int panel = k * STEP / PANEL_COLUMNS * 128, further = k * STEP % PANEL_COLUMNS * (int)sizeof(S);
        u64 right = described(rows, panel * ROWS + further);
        if constexpr (KEPT) {
            multiply_group<false>(sums.at[0], own.kept[0][k], right, k);
        } else {
            multiply_group(sums.at[0], described(own.together, panel * own.ROWS + further), right, k);
        }
    }
    products_end();
#else
    clear(sums);
    constexpr int STEPS = WIDTH / STEP, CHUNK = STEPS < 8 ? STEPS : 8;  // longer ones would take more registers than there are
#pragma unroll(STEPS > 16 ? 1 : 2)
    for (int start = 0; start < STEPS; start += CHUNK) {
        add_products(sums, [&](Sums<STRIPS, EIGHTS>& to) {
#pragma unroll
            for (int k = start; k < start + CHUNK; ++k) {
                u32 a[STRIPS][4];
#pragma unroll
                for (int m = 0; m < STRIPS; ++m) {
                    own.get(a[m], m, k);
                }
#pragma unroll
                for (int n = 0; n < EIGHTS; n += 2) {
                    u32 b[4];
                    rows_fragment<WIDTH, ROWS>(b, rows + n * 8 * PANEL_ROW<WIDTH>, k * STEP);
#pragma unroll
                    for (int m = 0; m < STRIPS; ++m) {
                        multiply_add(to.at[m][n], a[m], b[0], b[1]);
                        multiply_add(to.at[m][n + 1], a[m], b[2], b[3]);
                    }
                }
            }
        });
    }
#endif
}

// All factors stay what they are.
struct AllStay {
    __device__ void operator()(u32 (&)[4], int, int) const {}
};

// sums += rounded factors, of which there are as many columns, times rows of a tile with ROWS rows. `prepare(n)` comes before the columns from
// 8 n on are read, and `leave_out(a, m, n)` changes what they are as left operands.
template <int WIDTH, int ROWS, int STRIPS, int COLUMNS, int EIGHTS, class Prepare, class LeaveOut>
__device__ inline void accumulate(Sums<STRIPS, EIGHTS>& sums, const Sums<STRIPS, COLUMNS>& factors, Shared rows,
                                  Prepare prepare, const LeaveOut& leave_out) {
    settle(sums);
    add_products(sums, [&](Sums<STRIPS, EIGHTS>& to) {
#pragma unroll
        for (int k = 0; k < COLUMNS; k += STEP / 8) {
            u32 a[STRIPS][4];
#pragma unroll
            for (int n = k; n < k + STEP / 8; ++n) {
                prepare(n);
            }
#pragma unroll
            for (int m = 0; m < STRIPS; ++m) {
                left_of(a[m], factors.at[m][k], factors.at[m][k + STEP / 8 - 1]);
                leave_out(a[m], m, k);
            }
#if BY_GROUPS
            products_begin();
#pragma unroll
            for (int n = 0; n < EIGHTS; n += 8) {
                multiply_group<true>(*(f32(*)[8][4])to.at[0][n], a[0], described(rows, (n / 8 * ROWS + k * 8) * 128), 1);
            }
#else
#pragma unroll
            for (int n = 0; n < EIGHTS; n += 2) {
                u32 b[4];
                columns_fragment<WIDTH, ROWS>(b, rows + k * 8 * PANEL_ROW<WIDTH>, n * 8);
#pragma unroll
                for (int m = 0; m < STRIPS; ++m) {
                    multiply_add(to.at[m][n], a[m], b[0], b[1]);
                    multiply_add(to.at[m][n + 1], a[m], b[2], b[3]);
                }
            }
#endif
        }
    });
#if BY_GROUPS
    products_end();
#endif
}

// Writes sums to the warp's rows of an operand, from row `first` on, and to columns from `column` on.
template <int OPERAND, int STRIPS, int EIGHTS>
__device__ inline void write(S* to, const Problem& problem, int first, int column, const Sums<STRIPS, EIGHTS>& sums) {
    const i64(&steps)[2] = problem.steps[OPERAND];
    int rows = (int)rows_of(problem, OPERAND), columns = (int)columns_of(problem, OPERAND);
    for_rows_of<STRIPS>([&](int m, int half, int row) {
        if (first + row >= rows) {
            return;
        }
        S* at = to + (first + row) * steps[0];
#pragma unroll
        for (int n = 0; n < EIGHTS; ++n) {
            int c = column + n * 8 + own_column();
            Pack<S, 2> pair;
            pair.at[0] = sums.at[m][n][half * 2];
            pair.at[1] = sums.at[m][n][half * 2 + 1];
            if (problem.vectors >> OPERAND & 1 && c + 1 < columns) {
                store(at + c, pair);
                continue;
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (c + i < columns) {
                    at[(c + i) * steps[1]] = pair.at[i];
                }
            }
        }
    });
}

// Calls `body(start, tile, mask)` for tiles of keys, each followed by its values, that queries from `first` on attend to, in order.
template <int WIDTH, int STRIPS, int KEYS, class Body>
__device__ inline void for_key_tiles(const S* k, const S* v, const S* mask, const Walk<OPERANDS>& batch, const Problem& problem, u32 pair,
                                     int first, Shared tiles, Body body) {
    constexpr int TILE_BYTES = KEYS * TILE_ROW<WIDTH>, QUERIES = STRIPS * 64;
    Offsets<OPERANDS> at = offsets(batch, pair);
    Rows<WIDTH, K, WARPS<STRIPS>> keys(k + at.at[K], problem);
    Rows<WIDTH, V, WARPS<STRIPS>> values(v + at.at[V], problem);
    MaskTiles<STRIPS, QUERIES, KEYS> masks{problem, batch, mask, pair, tiles + 4 * TILE_BYTES};
    auto tile_of = [&](int start) { return tiles + start / KEYS % 2 * 2 * TILE_BYTES; };
    int end = seen_by(problem, first + QUERIES - 1);
#pragma unroll 1
    for (int next = 0; next - KEYS < end; next += KEYS) {
        tiles_arrive();
        if (next < end) {
            masks.stage(next / KEYS, first, next);
            keys.template stage<KEYS>(tile_of(next), next);
            values.template stage<KEYS>(tile_of(next) + TILE_BYTES, next);
        }
        int start = next - KEYS;
        if (start >= 0) {
            body(start, tile_of(start), masks.at(start / KEYS));
        }
    }
}

// The work of a thread block: rows from `first` on and columns of a pair. `backwards` starts with the last rows, which take longest if causal.
struct Item {
    u32 pair;
    int first;
    int column;

    __device__ Item(u64 rows, int count, u64 columns, int slice, bool backwards) {
        u32 down = ((u32)rows + count - 1) / count, across = columns > slice ? ((u32)columns + slice - 1) / slice : 1;
        u32 each = gridDim.x / down, tile = blockIdx.x / each, rest = blockIdx.x - tile * each;
        pair = rest / across;
        first = (int)(backwards ? down - 1 - tile : tile) * count;
        column = (int)(rest - pair * across) * slice;
    }
};
