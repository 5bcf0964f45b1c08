// Problems of attention: sizes, and where the operands lie.

// Operands: q, k, v, mask, out, g, dq, dk, dv.
enum : int { Q, K, V, MASK, OUT, G, DQ, DK, DV, OPERANDS };

struct Problem {
    u64 queries;
    u64 keys;
    u64 width;
    u64 value_width;
    u64 causal;
    f64 scale;
    i64 steps[OPERANDS][2];  // along the last two axes
    u64 vectors;             // a bit for each operand: its rows are without gaps and begin at multiples of 16 bytes
    f32 factor;              // of the products as powers of 2: the scale over ln 2
    f32 rounded_scale;       // the scale in F32
    RandomKey key;           // of dropout
    u64 kept_from;           // as in `dropout`; 0 if no weight is left out
    f64 kept_scale;          // of weights that are kept
};

// Rows and columns of an operand.
__device__ inline u64 rows_of(const Problem& problem, int operand) {
    return operand == K || operand == V || operand == DK || operand == DV ? problem.keys : problem.queries;
}
__device__ inline u64 columns_of(const Problem& problem, int operand) {
    return operand == Q || operand == K || operand == DQ || operand == DK ? problem.width : problem.value_width;
}

// The part of a matrix that begins somewhere: elements beyond `rows` and `columns` are 0.
struct Matrix {
    const S* at;
    i64 row;
    i64 column;
    u64 rows;
    u64 columns;

    __device__ T get(u64 i, u64 j) const { return i < rows && j < columns ? (T)at[(i64)i * row + (i64)j * column] : (T)0; }
    __device__ Matrix from(u64 i, u64 j) const {
        return {at + (i64)i * row + (i64)j * column, row, column, i < rows ? rows - i : 0, j < columns ? columns - j : 0};
    }
};

__device__ inline Matrix matrix(const S* at, const Problem& problem, int operand) {
    return {at, problem.steps[operand][0], problem.steps[operand][1], rows_of(problem, operand), columns_of(problem, operand)};
}

// How many keys the query sees.
__device__ inline int seen_by(const Problem& problem, int query) {
    return problem.causal && query < (int)problem.keys ? query + 1 : (int)problem.keys;
}

// Whether the query sees the key.
__device__ inline bool sees(const Problem& problem, u64 query, u64 key) {
    return query < problem.queries && key < problem.keys && (!problem.causal || key <= query);
}

// The number of a query's first four weights.
__device__ inline u64 first_four(const Problem& problem, u64 pair, u64 query) {
    return (pair * problem.queries + query) * ((problem.keys + 3) / 4);
}
__device__ inline bool is_kept(const Problem& problem, u32 word) { return word >> 8 >= (u32)problem.kept_from; }

// What dropout multiplies a weight with.
__device__ inline T factor_of(const Problem& problem, u64 pair, u64 query, u64 key) {
    if (!problem.kept_from) {
        return 1;
    }
    Four<u32> four[1] = {counter_of(problem.key, first_four(problem, pair, query) + key / 4, false)};
    draw<1>(problem.key, four);
    u32(&at)[4] = four[0].at;
    u32 even = key & 2 ? at[2] : at[0], odd = key & 2 ? at[3] : at[1], word = key & 1 ? odd : even;
    return is_kept(problem, word) ? (T)problem.kept_scale : (T)0;
}

__device__ inline T score(const Problem& problem, T product, const S* mask, u64 query, u64 key) {
    T scaled = product * (T)problem.scale;
    return mask ? scaled + mask[(i64)query * problem.steps[MASK][0] + (i64)key * problem.steps[MASK][1]] : scaled;
}
