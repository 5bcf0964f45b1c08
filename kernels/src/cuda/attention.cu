// Attention without tensor cores, forward and backward, in tiles of 32 queries by 32 keys, and `attention_products` for all gradients. A thread
// block owns 32 rows by 64 columns of the output and loops over the tiles that they depend on, in order. Scores are recomputed where needed; each
// output element belongs to one thread. Operands are stored as S, scores and sums as T. Warp w computes rows w, w + 8, .. of a tile, lane l
// column l.

constexpr u32 THREADS = 256;
enum : int {
    TILE = 32,
    WARPS = THREADS / LANES,
    ROWS = TILE / WARPS,  // of a tile, per thread
    WIDE = 64,            // output columns per thread block
    COLUMNS = WIDE / TILE, // per thread
    ROW_LANES = 8
};

struct Tiles {
    T a[TILE][TILE + 1];
    T b[TILE][TILE + 1];
    T weights[TILE][TILE + 1];
    T wide[TILE][WIDE];
};

__device__ inline u32 lane() { return threadIdx.x % LANES; }
// Row `i` of this thread.
__device__ inline u32 own(int i) { return threadIdx.x / LANES + i * WARPS; }

__device__ inline void fill(T (&to)[TILE][TILE + 1], const Matrix& from, u64 column) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        to[own(i)][lane()] = from.get(own(i), column + lane());
    }
}

// products[i] = sum of a[own(i)][p] b[lane][p] over `depth` columns
__device__ inline void multiply(T (&products)[ROWS], const Matrix& a, const Matrix& b, u64 depth, Tiles& tiles) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        products[i] = 0;
    }
    for (u64 p = 0; p < depth; p += TILE) {
        __syncthreads();
        fill(tiles.a, a, p);
        fill(tiles.b, b, p);
        __syncthreads();
#pragma unroll 8
        for (int c = 0; c < TILE; ++c) {
            T y = tiles.b[lane()][c];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                products[i] += tiles.a[own(i)][c] * y;
            }
        }
    }
}

// sums[i][j] += sum over c of weights[own(i)][c] from[c][lane + 32 j]; begins with a barrier, as other threads wrote `weights`
__device__ inline void accumulate(T (&sums)[ROWS][COLUMNS], const Matrix& from, Tiles& tiles) {
    __syncthreads();
    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            tiles.wide[own(i)][lane() + j * TILE] = from.get(own(i), lane() + j * TILE);
        }
    }
    __syncthreads();
#pragma unroll 8
    for (int c = 0; c < TILE; ++c) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            T weight = tiles.weights[own(i)][c];
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                sums[i][j] += weight * tiles.wide[c][lane() + j * TILE];
            }
        }
    }
    __syncthreads();
}

__device__ inline void write(S* to, const i64 (&steps)[2], u64 first, u64 rows, u64 column, u64 columns,
                             const T (&values)[ROWS][COLUMNS]) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            u64 r = first + own(i), c = column + lane() + j * TILE;
            if (r < rows && c < columns) {
                to[(i64)r * steps[0] + (i64)c * steps[1]] = values[i][j];
            }
        }
    }
}

// Calls `body(pair, first, column)` for each tile of this thread block; each pair (batch and head) has `rows` x `columns` outputs.
template <class Body> __device__ inline void for_tiles(u64 pairs, u64 rows, u64 columns, Body body) {
    u64 down = (rows + TILE - 1) / TILE, across = (columns + WIDE - 1) / WIDE;
    for (u64 item = blockIdx.x; item < pairs * down * across; item += gridDim.x) {
        body(item / (down * across), item / across % down * TILE, item % across * WIDE);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) NAMED(attention, DTYPE)(
    const S* q, const S* k, const S* v, const S* mask, S* out, T* log_sums,
    const __grid_constant__ Walk<OPERANDS> batch, const __grid_constant__ Problem problem) {
    __shared__ Tiles tiles;
    // Without value columns, log_sums are still computed.
    u64 columns = problem.value_width ? problem.value_width : 1;
    for_tiles(batch.elements, problem.queries, columns, [&](u64 pair, u64 first, u64 column) {
        Offsets<OPERANDS> at = offsets(batch, pair);
        const S* masked = mask ? mask + at.at[MASK] : mask;
        Matrix queries = matrix(q + at.at[Q], problem, Q).from(first, 0);
        Matrix keys = matrix(k + at.at[K], problem, K);
        Matrix values = matrix(v + at.at[V], problem, V);
        T best[ROWS], total[ROWS], sums[ROWS][COLUMNS];
        for (int i = 0; i < ROWS; ++i) {
            best[i] = lowest<T>();
            total[i] = 0;
            for (int j = 0; j < COLUMNS; ++j) {
                sums[i][j] = 0;
            }
        }
        u64 end = problem.causal && first + TILE < problem.keys ? first + TILE : problem.keys;
        for (u64 start = 0; start < end; start += TILE) {
            T products[ROWS];
            multiply(products, queries, keys.from(start, 0), problem.width, tiles);
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                u64 query = first + own(i), key = start + lane();
                T value = sees(problem, query, key) ? score(problem, products[i], masked, query, key) : lowest<T>();
                T largest = maximum(best[i], join_lanes<Max<T>>(value, LANES));
                // If all keys so far are masked, -inf - -inf would be NaN.
                T shift = largest == lowest<T>() ? (T)0 : largest;
                T weight = exp_of(value - shift), before = exp_of(best[i] - shift);
                total[i] = total[i] * before + join_lanes<Sum<T>>(weight, LANES);
                best[i] = largest;
                tiles.weights[own(i)][lane()] = weight * factor_of(problem, pair, query, key);
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
                    sums[i][j] *= before;
                }
            }
            accumulate(sums, values.from(start, column), tiles);
        }
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            bool seen = total[i] != 0;
            T scale = seen ? 1 / total[i] : (T)0;
            for (int j = 0; j < COLUMNS; ++j) {
                sums[i][j] *= scale;
            }
            if (column == 0 && lane() == 0 && first + own(i) < problem.queries) {
                log_sums[pair * problem.queries + first + own(i)] = seen ? best[i] + log_of(total[i]) : highest<T>();
            }
        }
        write(out + at.at[OUT], problem.steps[OUT], first, problem.queries, column, problem.value_width, sums);
    });
}

// products = sum(g out) of each query, by ROW_LANES lanes
extern "C" __global__ void __launch_bounds__(THREADS) NAMED(attention_products, DTYPE)(
    const S* out, const S* g, T* products, const __grid_constant__ Walk<OPERANDS> batch,
    const __grid_constant__ Problem problem) {
    constexpr int V = 16 / sizeof(S);
    for_rows<WarpGroup>(batch.elements * problem.queries, ROW_LANES, [&](const WarpGroup& group, u64 row, bool exists) {
        u64 pair = exists ? row / problem.queries : 0;
        u64 query = exists ? row - pair * problem.queries : 0;
        Offsets<OPERANDS> at = offsets(batch, pair);
        Matrix a = matrix(out + at.at[OUT], problem, OUT).from(query, 0);
        Matrix b = matrix(g + at.at[G], problem, G).from(query, 0);
        auto read = [&](const Matrix& from, int operand, u64 c) {
            bool packed = problem.vectors >> operand & 1 && c + V <= from.columns;
            return packed ? load<V>(from.at + c, true) : pack_of<S, V>([&](int v) { return from.get(0, c + v); });
        };
        T sum = 0;
        for (u64 c = group.lane() * V; exists && c < problem.value_width; c += ROW_LANES * V) {
            Pack<S, V> x = read(a, OUT, c), y = read(b, G, c);
#pragma unroll
            for (int v = 0; v < V; ++v) {
                sum += (T)x.at[v] * (T)y.at[v];
            }
        }
        sum = join_lanes<Sum<T>>(sum, ROW_LANES);
        if (exists && group.leads()) {
            products[row] = sum;
        }
    });
}

// The weight of a key after dropout, and the gradient of its score.
struct Slope {
    T weight;
    T slope;
};
// `log_sums` and `products` are indexed over all pairs.
__device__ inline Slope slope_of(const Problem& problem, T product, T gradient, const S* mask, const T* log_sums,
                                 const T* products, u64 pair, u64 query, u64 key) {
    if (!sees(problem, query, key)) {
        return {0, 0};
    }
    u64 row = pair * problem.queries + query;
    T weight = exp_of(score(problem, product, mask, query, key) - log_sums[row]);
    T factor = factor_of(problem, pair, query, key);
    return {weight * factor, weight * (gradient * factor - products[row]) * (T)problem.scale};
}

// dq: a thread block owns queries and loops over keys
extern "C" __global__ void __launch_bounds__(THREADS) NAMED(attention_grad_q, DTYPE)(
    const S* q, const S* k, const S* v, const S* mask, const S* g, const T* log_sums, const T* products, S* dq,
    const __grid_constant__ Walk<OPERANDS> batch, const __grid_constant__ Problem problem) {
    __shared__ Tiles tiles;
    for_tiles(batch.elements, problem.queries, problem.width, [&](u64 pair, u64 first, u64 column) {
        Offsets<OPERANDS> at = offsets(batch, pair);
        const S* masked = mask ? mask + at.at[MASK] : mask;
        Matrix queries = matrix(q + at.at[Q], problem, Q).from(first, 0);
        Matrix gradients = matrix(g + at.at[G], problem, G).from(first, 0);
        Matrix keys = matrix(k + at.at[K], problem, K);
        Matrix values = matrix(v + at.at[V], problem, V);
        T sums[ROWS][COLUMNS] = {};
        u64 end = problem.causal && first + TILE < problem.keys ? first + TILE : problem.keys;
        for (u64 start = 0; start < end; start += TILE) {
            T scores[ROWS], slopes[ROWS];
            multiply(scores, queries, keys.from(start, 0), problem.width, tiles);
            multiply(slopes, gradients, values.from(start, 0), problem.value_width, tiles);
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                tiles.weights[own(i)][lane()] = slope_of(problem, scores[i], slopes[i], masked, log_sums,
                                                         products, pair, first + own(i), start + lane())
                                                    .slope;
            }
            accumulate(sums, keys.from(start, column), tiles);
        }
        write(dq + at.at[DQ], problem.steps[DQ], first, problem.queries, column, problem.width, sums);
    });
}

// dk, dv: a thread block owns keys and loops over queries
extern "C" __global__ void __launch_bounds__(THREADS) NAMED(attention_grad_kv, DTYPE)(
    const S* q, const S* k, const S* v, const S* mask, const S* g, const T* log_sums, const T* products, S* dk, S* dv,
    const __grid_constant__ Walk<OPERANDS> batch, const __grid_constant__ Problem problem) {
    __shared__ Tiles tiles;
    u64 columns = problem.width > problem.value_width ? problem.width : problem.value_width;
    for_tiles(batch.elements, problem.keys, columns, [&](u64 pair, u64 first, u64 column) {
        Offsets<OPERANDS> at = offsets(batch, pair);
        const S* masked = mask ? mask + at.at[MASK] : mask;
        Matrix queries = matrix(q + at.at[Q], problem, Q);
        Matrix gradients = matrix(g + at.at[G], problem, G);
        Matrix keys = matrix(k + at.at[K], problem, K).from(first, 0);
        Matrix values = matrix(v + at.at[V], problem, V).from(first, 0);
        T key_sums[ROWS][COLUMNS] = {}, value_sums[ROWS][COLUMNS] = {};
        for (u64 start = problem.causal ? first : 0; start < problem.queries; start += TILE) {
            T scores[ROWS], slopes[ROWS];
            multiply(scores, keys, queries.from(start, 0), problem.width, tiles);
            multiply(slopes, values, gradients.from(start, 0), problem.value_width, tiles);
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                Slope found = slope_of(problem, scores[i], slopes[i], masked, log_sums, products, pair,
                                       start + lane(), first + own(i));
                tiles.weights[own(i)][lane()] = found.weight;
                slopes[i] = found.slope;
            }
            accumulate(value_sums, gradients.from(start, column), tiles);
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                tiles.weights[own(i)][lane()] = slopes[i];
            }
            accumulate(key_sums, queries.from(start, column), tiles);
        }
        write(dk + at.at[DK], problem.steps[DK], first, problem.keys, column, problem.width, key_sums);
        write(dv + at.at[DV], problem.steps[DV], first, problem.keys, column, problem.value_width, value_sums);
    });
}

// Writes the dropout factors of all weights to the first operand.
extern "C" __global__ void __launch_bounds__(THREADS) NAMED(attention_kept, DTYPE)(
    S* out, const __grid_constant__ Walk<OPERANDS> batch, const __grid_constant__ Problem problem) {
    u64 each = problem.queries * problem.keys, all = batch.elements * each;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < all; i += (u64)gridDim.x * THREADS) {
        u64 pair = i / each, query = i % each / problem.keys, key = i % problem.keys;
        i64 at = offsets(batch, pair).at[Q] + (i64)query * problem.steps[Q][0] + (i64)key * problem.steps[Q][1];
        out[at] = factor_of(problem, pair, query, key);
    }
}
