// Philox4x32-10: four random words a counter; see the launchers of random numbers for the whole scheme.

struct RandomKey {
    u64 seed;
    u64 op;
};
template <class T> struct Four {
    T at[4];
};

// The words of elements 4 b .. 4 b + 4; `low_half` gives the second word of each.
__device__ inline Four<u32> words(const RandomKey& key, u64 b, bool low_half) {
    u32 c0 = (u32)b, c1 = (u32)(b >> 32) | (low_half ? 1u << 31 : 0), c2 = (u32)key.op, c3 = (u32)(key.op >> 32);
    u32 k0 = (u32)key.seed, k1 = (u32)(key.seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
        c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
        c1 = (u32)p1;
        c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
        c3 = (u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}
