// Dropout masks in fragment layout. A word has the random numbers of two neighbouring columns.
#define DROPS 1

#ifdef CUDA_EMULATOR  // without PTX

// Mask of the halves of a word whose weights are kept.
__device__ inline u32 kept_halves(u32 word, u32 kept_from) {
    return ((word & 0x7fff) >= (kept_from & 0xffff) ? 0xffff : 0) | ((word >> 16 & 0x7fff) >= kept_from >> 16 ? 0xffff0000 : 0);
}
// Zeroes dropped elements of two neighbours.
__device__ inline void leave_out(f32& a, f32& b, u32 word, u32 kept_from) {
    u32 kept = kept_halves(word, kept_from);
    a = kept & 1 ? a : 0;
    b = kept >> 16 ? b : 0;
}

#else

// Compares as F16: non-negative F16 numbers are ordered like their bits, and NaN counts as kept. The launcher limits thresholds to the bits of
// infinity.
__device__ inline u32 kept_halves(u32 word, u32 kept_from) {
    u32 kept;
    asm("{\n.reg .b32 x;\nabs.f16x2 x, %1;\nset.geu.u32.f16x2 %0, x, %2;\n}" : "=r"(kept) : "r"(word), "r"(kept_from));
    return kept;
}
__device__ inline void leave_out(f32& a, f32& b, u32 word, u32 kept_from) {
    asm("{\n.reg .b32 x;\n.reg .pred p, q;\nabs.f16x2 x, %2;\nsetp.geu.f16x2 p|q, x, %3;\n"
        "selp.f32 %0, %0, 0f00000000, p;\nselp.f32 %1, %1, 0f00000000, q;\n}"
        : "+f"(a), "+f"(b)
        : "r"(word), "r"(kept_from));
}

#endif

// Masks of a tile of queries by keys, or keys by queries if BY_KEY. Words are in the order of a left operand: two groups of eight columns each.
template <bool BY_KEY, int STRIPS, int EIGHTS> struct Kept {
    const Problem& problem;
    u32 of_row, of_column;  // first counter
    u32 words[STRIPS][EIGHTS / 2][4];

    // Kernels of two gradients without warp groups have no registers left to unroll the rounds.
    enum : int { UNROLLED = BY_KEY && !GROUPED ? 1 : 6 };

    // Two lanes with neighbouring keys share two counters and draw one each.
    __device__ static bool second() { return own_row() % 2; }

    __device__ Kept(const Problem& problem, u32 pair, int row, int column) : problem(problem) {
        int query = BY_KEY ? column + own_column() + second() : row + own_row();
        u32 of_query = query_number(problem, pair, query), of_key = key_number(BY_KEY ? row + own_row() : column + own_column());
        of_row = BY_KEY ? of_key : of_query;
        of_column = BY_KEY ? of_query : of_key;
    }

    // Draws the words of column groups `n` and `n + 1` of a strip, if n is even.
    __device__ void draw(int m, int n) {
        u32(&own)[4] = words[m][n / 2];
        if (n % 2) {
            return;
        }
        if constexpr (BY_KEY) {
            ::draw<UNROLLED>(own, problem, of_column + n * 4, of_row + m * 4);
            exchange(own);
        } else {
            ::draw<UNROLLED>(own, problem, of_row + m * 8, of_column + n * 2);
        }
    }

    // Transposes words of two neighbouring keys to words of two neighbouring queries by exchanging halves between lanes.
    __device__ static void exchange(u32 (&own)[4]) {
        u32 others = second() ? 0x5410 : 0x7632, even = second() ? 0x3254 : 0x5410, odd = second() ? 0x3276 : 0x7610;
        u32 near = __shfl_xor_sync(FULL, __byte_perm(own[0], own[1], others), 4);
        u32 far = __shfl_xor_sync(FULL, __byte_perm(own[2], own[3], others), 4);
        u32 further_key = __byte_perm(own[2], far, even);
        own[0] = __byte_perm(own[0], near, even);
        own[2] = __byte_perm(own[1], near, odd);
        own[1] = further_key;
        own[3] = __byte_perm(own[3], far, odd);
    }

    // Zeroes dropped elements of eight columns of accumulators.
    __device__ void leave_out(f32 (&sums)[4], int m, int n) const {
        const u32(&own)[4] = words[m][n / 2];
        ::leave_out(sums[0], sums[1], own[n % 2 * 2], (u32)problem.kept_from);
        ::leave_out(sums[2], sums[3], own[n % 2 * 2 + 1], (u32)problem.kept_from);
    }
    // The same for a left operand that begins at column group `n`.
    __device__ void operator()(u32 (&a)[4], int m, int n) const {
        const u32(&own)[4] = words[m][n / 2];
        if constexpr (EACH_WORD == 2) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                a[i] &= kept_halves(own[i], (u32)problem.kept_from);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                f32 left = __uint_as_float(a[i]), right = __uint_as_float(a[i + 2]);
                ::leave_out(left, right, own[n % 2 * 2 + i], (u32)problem.kept_from);
                a[i] = __float_as_uint(left);
                a[i + 2] = __float_as_uint(right);
            }
        }
    }
};
