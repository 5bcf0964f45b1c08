// Philox4x32: four random words a counter, of ten rounds but where weights of attention are left out; see the launchers of random
// numbers for the whole scheme.

struct RandomKey {
    u64 seed;
    u64 op;
};
template <class T> struct Four {
    T at[4];
};

__device__ inline Four<u32> counter_of(const RandomKey& key, u64 b, bool low_half) {
    return {{(u32)b, (u32)(b >> 32) | (low_half ? 1u << 31 : 0), (u32)key.op, (u32)(key.op >> 32)}};
}
// One round.
__device__ inline void mix(u32 (&c)[4], u32 k0, u32 k1) {
    u64 p0 = (u64)0xD2511F53u * c[0], p1 = (u64)0xCD9E8D57u * c[2];
    c[0] = (u32)(p1 >> 32) ^ c[1] ^ k0;
    c[1] = (u32)p1;
    c[2] = (u32)(p0 >> 32) ^ c[3] ^ k1;
    c[3] = (u32)p0;
}
// The words of elements 4 b .. 4 b + 4; `low_half` gives the second word of each.
__device__ inline Four<u32> words(const RandomKey& key, u64 b, bool low_half) {
    Four<u32> four = counter_of(key, b, low_half);
    u32 k0 = (u32)key.seed, k1 = (u32)(key.seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        mix(four.at, k0, k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return four;
}
