// Matrix products by a warp (mma), and copies of their operands to shared memory and registers.
//
// Fragments consist of 32-bit words: two neighbouring 16-bit elements or one 32-bit element.
// - Accumulator, 16 x 8: lane l holds row l / 4, columns 2 (l % 4) and the next one; then the same 8 rows below.
// - Left operand, 16 rows of eight words (STEP columns): lane l holds word l % 4 of rows l / 4 and l / 4 + 8, then word l % 4 + 4 of both.
// - Right operand, 8 columns of eight words: lane l holds words l % 4 and l % 4 + 4 of column l / 4.
//
// 32-bit operands are rounded to TF32 if S is tf32. If S is f32 they are split into two TF32 numbers; the product of the two small parts is
// dropped, an error below 2^-19 of the product.

// Elements per 16 bytes, and columns per mma step (eight words).
enum : int { SIXTEENTH = 16 / sizeof(S), STEP = 2 * SIXTEENTH, EACH_WORD = 4 / sizeof(S) };

template <class A, class B> constexpr bool IS_SAME = false;
template <class A> constexpr bool IS_SAME<A, A> = true;

// Rounds accumulators c0 and c1 of neighbouring columns to a left operand (32-bit types need only c0). The columns of 32-bit types come in the
// order 0, 2, 4, 6, 1, 3, 5, 7.
__device__ inline void left_of(u32 (&to)[4], const f32 (&c0)[4], const f32 (&c1)[4]);

#ifdef CUDA_EMULATOR  // which knows no PTX

// An address in shared memory.
using Shared = u64;
__device__ inline Shared shared_of(const void* at) { return (Shared)at; }
template <class A> __device__ inline A* pointer_of(Shared at) { return (A*)at; }
__device__ inline u32 load_word(Shared at) { return *(const u32*)at; }
__device__ inline void load_words(u32 (&to)[2], Shared at) { to[0] = load_word(at), to[1] = load_word(at + 4); }

__device__ inline u32 packed(f32 low, f32 high) {
    Pack<S, 2> pack;
    pack.at[0] = low;
    pack.at[1] = high;
    return *(u32*)&pack;
}

// Element `i` of a word, rounded as an operand.
__device__ inline f32 factor_of(u32 word, int i) {
    if (IS_SAME<S, tf32> && !is_nan(__uint_as_float(word))) {
        word = word + 0x1000 & 0xffffe000;
    }
    return ((const S*)&word)[i];
}

__device__ inline S as_factor(S x) { return x; }

// c += a b
template <bool ARE_FACTORS = false> __device__ inline void multiply_add(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    __shared__ u32 fragments[LANES][LANES][6];
    u32(*all)[6] = fragments[threadIdx.x / LANES];
    u32 lane = threadIdx.x % LANES;
    for (int i = 0; i < 4; ++i) {
        all[lane][i] = a[i];
    }
    all[lane][4] = b0;
    all[lane][5] = b1;
    __syncwarp();
    for (int i = 0; i < 4; ++i) {
        for (int word = 0; word < 8; ++word) {
            u32 left = all[lane / 4 * 4 + word % 4][word / 4 * 2 + i / 2];
            u32 right = all[(lane % 4 * 2 + i % 2) * 4 + word % 4][4 + word / 4];
            for (int k = 0; k < EACH_WORD; ++k) {
                c[i] += factor_of(left, k) * factor_of(right, k);
            }
        }
    }
    __syncwarp();
}

// ldmatrix: four matrices of 8 rows of 16 bytes. Lane l passes the address of row l % 8 of matrix l / 8 and receives word l % 4 of row l / 4 of each.
__device__ inline void load_matrices(u32 (&to)[4], Shared row) {
    for (u32 i = 0; i < 4; ++i) {
        u64 at = __shfl_sync(FULL, row, i * 8 + threadIdx.x % LANES / 4);
        to[i] = *(const u32*)(at + threadIdx.x % 4 * 4);
    }
}

// The same for transposed matrices of 16-bit elements.
__device__ inline void load_transposed(u32 (&to)[4], Shared row) {
    for (u32 i = 0; i < 4; ++i) {
        S pair[2];
        for (u32 j = 0; j < 2; ++j) {
            u64 at = __shfl_sync(FULL, row, i * 8 + threadIdx.x % 4 * 2 + j);
            pair[j] = ((const S*)at)[threadIdx.x % LANES / 4];
        }
        to[i] = *(u32*)&pair;
    }
}

// cp.async of BYTES bytes; those from `bytes` on become 0. Both addresses are multiples of BYTES. Complete after `copies_arrive` and a barrier.
template <int BYTES> __device__ inline void copy_async(Shared to, const void* from, u32 bytes) {
    for (u32 i = 0; i < BYTES; ++i) {
        ((u8*)to)[i] = i < bytes ? ((const u8*)from)[i] : 0;
    }
}
__device__ inline void copies_arrive() {}

#else

using Shared = u32;
__device__ inline Shared shared_of(const void* at) { return (u32)__cvta_generic_to_shared(at); }
template <class A> __device__ inline A* pointer_of(Shared at) { return (A*)__cvta_shared_to_generic(at); }
__device__ inline u32 load_word(Shared at) {
    u32 word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
    return word;
}
// Two words at a multiple of 8 bytes.
__device__ inline void load_words(u32 (&to)[2], Shared at) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(at) : "memory");
}

#define PACK(type) asm("cvt.rn." type "x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low))
#define MULTIPLY_ADD(shape, type, a, b0, b1)                                                                            \
    asm("mma.sync.aligned." shape ".row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "   \
        "{%0, %1, %2, %3};"                                                                                             \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                                \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

__device__ inline u32 packed(f32 low, f32 high) {
    u32 word;
    if constexpr (IS_SAME<S, bf16>) {
        PACK("bf16");
    } else {
        PACK("f16");
    }
    return word;
}

// Rounds to nearest, ties away from 0; mma itself would truncate.
__device__ inline u32 rounded(u32 x) {
    u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(__uint_as_float(x)));
    return y;
}

// Splits a number into a TF32 part and the rest (NaN for infinities).
__device__ inline u32 upper_of(u32 x) { return x & 0xffffe000; }
__device__ inline u32 lower_of(u32 x) { return __float_as_uint(__uint_as_float(x) - __uint_as_float(upper_of(x))); }

// Rounds an operand ahead of time, for products that do not round.
__device__ inline S as_factor(S x) {
    if constexpr (IS_SAME<S, tf32>) {
        u32 word = rounded(*(const u32*)&x);
        return *(const S*)&word;
    } else {
        return x;
    }
}

template <bool ARE_FACTORS = false> __device__ inline void multiply_add(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (IS_SAME<S, bf16>) {
        MULTIPLY_ADD("m16n8k16", "bf16", a, b0, b1);
    } else if constexpr (IS_SAME<S, f16>) {
        MULTIPLY_ADD("m16n8k16", "f16", a, b0, b1);
    } else if constexpr (IS_SAME<S, tf32> && ARE_FACTORS) {
        MULTIPLY_ADD("m16n8k8", "tf32", a, b0, b1);
    } else if constexpr (IS_SAME<S, tf32>) {
        u32 left[4] = {rounded(a[0]), rounded(a[1]), rounded(a[2]), rounded(a[3])};
        u32 right0 = rounded(b0), right1 = rounded(b1);
        MULTIPLY_ADD("m16n8k8", "tf32", left, right0, right1);
    } else {
        u32 upper[4], lower[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            upper[i] = upper_of(a[i]);
            lower[i] = lower_of(a[i]);
        }
        u32 upper0 = upper_of(b0), upper1 = upper_of(b1), lower0 = lower_of(b0), lower1 = lower_of(b1);
        MULTIPLY_ADD("m16n8k8", "tf32", lower, upper0, upper1);
        MULTIPLY_ADD("m16n8k8", "tf32", upper, lower0, lower1);
        MULTIPLY_ADD("m16n8k8", "tf32", upper, upper0, upper1);
    }
}
#undef PACK
#undef MULTIPLY_ADD

__device__ inline void load_matrices(u32 (&to)[4], Shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

__device__ inline void load_transposed(u32 (&to)[4], Shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

template <int BYTES> __device__ inline void copy_async(Shared to, const void* from, u32 bytes) {
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(bytes),
                     "n"(BYTES)
                     : "memory");
    }
}

__device__ inline void copies_arrive() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#endif

__device__ inline void left_of(u32 (&to)[4], const f32 (&c0)[4], const f32 (&c1)[4]) {
    if constexpr (EACH_WORD == 2) {
        to[0] = packed(c0[0], c0[1]);
        to[1] = packed(c0[2], c0[3]);
        to[2] = packed(c1[0], c1[1]);
        to[3] = packed(c1[2], c1[3]);
    } else {
        to[0] = __float_as_uint(c0[0]);
        to[1] = __float_as_uint(c0[2]);
        to[2] = __float_as_uint(c0[1]);
        to[3] = __float_as_uint(c0[3]);
    }
}

// The same with rounded operands and sums of any length: tensor cores truncate when they accumulate, so F32 sums are added here with rounding.
__device__ inline void add_product(f32 (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (IS_SAME<S, f32>) {
        f32 made[4] = {};
        multiply_add<true>(made, a, b0, b1);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sums[i] += made[i];
        }
    } else {
        multiply_add<true>(sums, a, b0, b1);
    }
}
