// wgmma: products by groups of four warps with right operands in shared memory. Compute capability 9.0 only.
//
// Each warp holds 16 of a group's 64 rows, in the fragment layout of mma. The panels of tiles have rows of 128 bytes, swizzled as by `place`, and
// are aligned to 1024 bytes. Results are available after `products_arrive`.
#define GROUPED 1

#ifndef CUDA_EMULATOR  // which uses mma instead

// Matrix descriptor of a panel, `further` bytes behind the start of a tile. Addresses of shared memory have at most 18 bits.
__device__ inline u64 described(Shared tile, u32 further) {
    constexpr u64 EIGHT_ROWS = 1024 / 16, SWIZZLED_128 = 1;
    return (u64)((tile >> 4) + further / 16) | EIGHT_ROWS << 32 | SWIZZLED_128 << 62;
}

// wgmma.fence: orders register accesses before the next products.
__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Commits the products started so far as one group.
__device__ inline void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all groups but the newest PENDING.
template <int PENDING> __device__ inline void products_arrive() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Compiler barrier for accesses to these accumulators.
template <int EIGHTS> __device__ inline void settle(f32 (&c)[EIGHTS][4]) {
#pragma unroll
    for (int n = 0; n < EIGHTS; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            asm volatile("" : "+f"(c[n][i])::"memory");
        }
    }
}

#define SUMS_1(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define SUMS_4(n) SUMS_1(n), SUMS_1(n + 1), SUMS_1(n + 2), SUMS_1(n + 3)
#define TO_16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define TO_32                                                                                                             \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                            \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define PRODUCT(columns, type, to, left, right, sum, turned)                                                              \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " sum ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type    \
    " " to ", " left ", " right ", p, 1, 1" turned ";\n}"
#define LEFT_WORDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
#define BY_TYPE(make)                                                                                                     \
    if constexpr (IS_SAME<S, bf16>) {                                                                                     \
        make("bf16");                                                                                                     \
    } else {                                                                                                              \
        make("f16");                                                                                                      \
    }

// c = a b, or c += a b if `sum`, with `a` in registers. Rows of b are columns of the product; if TURNED, columns are.
template <bool TURNED> __device__ inline void multiply_group(f32 (&c)[8][4], const u32 (&a)[4], u64 b, int sum) {
#define MAKE_TURNED(type)                                                                                                 \
    asm volatile(PRODUCT("64", type, TO_32, "{%32, %33, %34, %35}", "%36", "%37", ", 1") : SUMS_4(0), SUMS_4(4)           \
                 : LEFT_WORDS, "l"(b), "r"(sum))
#define MAKE(type)                                                                                                        \
    asm volatile(PRODUCT("64", type, TO_32, "{%32, %33, %34, %35}", "%36", "%37", ", 0") : SUMS_4(0), SUMS_4(4)           \
                 : LEFT_WORDS, "l"(b), "r"(sum))
    if constexpr (TURNED) {
        BY_TYPE(MAKE_TURNED)
    } else {
        BY_TYPE(MAKE)
    }
#undef MAKE_TURNED
#undef MAKE
}

// Both operands in shared memory.
__device__ inline void multiply_group(f32 (&c)[8][4], u64 a, u64 b, int sum) {
#define MAKE(type)                                                                                                        \
    asm volatile(PRODUCT("64", type, TO_32, "%32", "%33", "%34", ", 0, 0") : SUMS_4(0), SUMS_4(4) : "l"(a), "l"(b), "r"(sum))
    BY_TYPE(MAKE)
#undef MAKE
}
__device__ inline void multiply_group(f32 (&c)[4][4], u64 a, u64 b, int sum) {
#define MAKE(type)                                                                                                        \
    asm volatile(PRODUCT("32", type, TO_16, "%16", "%17", "%18", ", 0, 0") : SUMS_4(0) : "l"(a), "l"(b), "r"(sum))
    BY_TYPE(MAKE)
#undef MAKE
}
#undef SUMS_1
#undef SUMS_4
#undef TO_16
#undef TO_32
#undef PRODUCT
#undef LEFT_WORDS
#undef BY_TYPE

#endif
