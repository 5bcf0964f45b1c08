// Philox4x32-10: four random words a counter; see the launchers of random numbers for the whole scheme.

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
// Makes words of several counters, of which one need not wait for another. Keys of rounds that are UNROLLED may have registers of
// their own.
template <int UNROLLED, int COUNT> __device__ inline void draw(const RandomKey& key, Four<u32> (&counters)[COUNT]) {
    u32 k0 = (u32)key.seed, k1 = (u32)(key.seed >> 32);
#pragma unroll(UNROLLED)
    for (int round = 0; round < 10; ++round) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            u32(&c)[4] = counters[i].at;
            u64 p0 = (u64)0xD2511F53u * c[0], p1 = (u64)0xCD9E8D57u * c[2];
            c[0] = (u32)(p1 >> 32) ^ c[1] ^ k0;
            c[1] = (u32)p1;
            c[2] = (u32)(p0 >> 32) ^ c[3] ^ k1;
            c[3] = (u32)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}
// The words of elements 4 b .. 4 b + 4; `low_half` gives the second word of each.
__device__ inline Four<u32> words(const RandomKey& key, u64 b, bool low_half) {
    Four<u32> one[1] = {counter_of(key, b, low_half)};
    draw<10>(key, one);
    return one[0];
}
