// Parameters of attention: sizes and strides of the operands.

// Operands: q, k, v, mask, out, g, dq, dk, dv.
enum : int { Q, K, V, MASK, OUT, G, DQ, DK, DV, OPERANDS };

struct Problem {
    u64 queries;
    u64 keys;
    u64 width;
    u64 value_width;
    u64 causal;
    f64 scale;
    i64 steps[OPERANDS][2];  // strides of the last two axes
    u64 vectors;             // a bit per operand: rows are contiguous and aligned to 16 bytes
    f32 factor;              // scale / ln 2, for exponentials to base 2
    f32 rounded_scale;       // the scale in F32
    u32 rounds[7][2];        // round keys of the random bits for dropout; see `draw`
    u64 kept_from;           // smallest random number of a kept weight, in both halves of a word; 0 without dropout
    f64 kept_scale;          // factor of kept weights
};

// Rows and columns of an operand.
__device__ inline u64 rows_of(const Problem& problem, int operand) {
    return operand == K || operand == V || operand == DK || operand == DV ? problem.keys : problem.queries;
}
__device__ inline u64 columns_of(const Problem& problem, int operand) {
    bool is_wide = operand == Q || operand == K || operand == DQ || operand == DK;
    return operand == MASK ? problem.keys : is_wide ? problem.width : problem.value_width;
}

// A submatrix; elements beyond `rows` and `columns` read as 0.
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

// Number of keys that a query attends to.
__device__ inline int seen_by(const Problem& problem, int query) {
    return problem.causal && query < (int)problem.keys ? query + 1 : (int)problem.keys;
}

// Whether a query attends to a key.
__device__ inline bool sees(const Problem& problem, u64 query, u64 key) {
    return query < problem.queries && key < problem.keys && (!problem.causal || key <= query);
}

// Eight weights share a random counter: queries i and i + 8 with keys j, j + 1, j + 8 and j + 9, as a thread holds them in fragments. These functions
// return the query and key parts of the counter.
__device__ inline u32 query_number(const Problem& problem, u64 pair, u64 query) {
    return (u32)((pair * ((problem.queries + 15) / 16) + query / 16) * 8 + query % 8);
}
__device__ inline u32 key_number(u64 key) { return (u32)(key / 16 * 4 + key % 8 / 2); }

// Draws a counter's four words; each holds the random numbers of two neighbouring keys: for both queries, then for both queries eight keys further.
// The second half of all counters is constant; its product is folded into the keys of the first two rounds.
template <int UNROLLED> __device__ inline void draw(u32 (&words)[4], const Problem& problem, u32 query_number, u32 key_number) {
    const u32(&keys)[7][2] = problem.rounds;
    u64 product = (u64)0xD2511F53u * key_number;
    words[0] = query_number ^ keys[0][0];
    words[1] = 0;
    words[2] = (u32)(product >> 32) ^ keys[0][1];
    words[3] = (u32)product;
#pragma unroll(UNROLLED)
    for (int round = 1; round < 7; ++round) {
        mix(words, keys[round][0], keys[round][1]);
    }
}

// Dropout factor of a weight.
__device__ inline T factor_of(const Problem& problem, u64 pair, u64 query, u64 key) {
    if (!problem.kept_from) {
        return 1;
    }
    u32 words[4];
    draw<1>(words, problem, query_number(problem, pair, query), key_number(key));
    u32 first = query & 8 ? words[1] : words[0], further = query & 8 ? words[3] : words[2];
    u32 bits = (key & 8 ? further : first) >> key % 2 * 16 & 0x7fff;
    return bits >= (u32)problem.kept_from % 65536 ? (T)problem.kept_scale : (T)0;
}

__device__ inline T score(const Problem& problem, T product, const S* mask, u64 query, u64 key) {
    T scaled = product * (T)problem.scale;
    return mask ? scaled + mask[(i64)query * problem.steps[MASK][0] + (i64)key * problem.steps[MASK][1]] : scaled;
}
