// Which weights of a tile dropout keeps. A counter gives the words of four weights, one key behind the other, which different threads
// have: each draws some of them for all, and they exchange words.

__device__ inline void exchange(u32& a, u32& b, bool second, int lanes) {
    u32 got = __shfl_xor_sync(FULL, second ? a : b, lanes);
    (second ? a : b) = got;
}

// Words for this thread's four sums of eight columns: of queries by keys, where `query` and `key` are the first ones of the part.
__device__ inline Four<u32> words_by_query(const Problem& problem, u32 pair, int query, int key) {
    // Two lanes have the four keys of two queries, eight apart.
    bool second = lane() & 1;
    int row = query + own_row() + (second ? 8 : 0), column = key + (own_column() & 4);
    Four<u32> four = words(problem.key, first_four(problem, pair, row) + column / 4, false);
    exchange(four.at[0], four.at[2], second, 1);
    exchange(four.at[1], four.at[3], second, 1);
    return four;
}

// The same of keys by queries.
__device__ inline Four<u32> words_by_key(const Problem& problem, u32 pair, int query, int key) {
    // Four lanes have the four keys of two queries, and those eight further on.
    int which = own_row() % 4, row = query + own_column() + which % 2, column = key + (own_row() & 4) + which / 2 * 8;
    Four<u32> four = words(problem.key, first_four(problem, pair, row) + column / 4, false);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        exchange(four.at[i], four.at[i + 1], which & 1, 4);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        exchange(four.at[i], four.at[i + 2], which & 2, 8);
    }
    return four;
}
