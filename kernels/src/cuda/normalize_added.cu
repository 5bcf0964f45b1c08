// Normalization of rows that are sums, and gradients of rows that are added to others.

__device__ inline u64 remainder(u64 a, u64 b) { return a - quotient(a, b) * b; }

// Rows of first + second, rounded as if they went through memory. They are written to `sum`, unless that is missing. The terms
// begin again behind so many rows. What a thread writes it has read before, so the sum may lie where a term does.
struct Added {
    const S* first;
    const S* second;
    u64 first_rows;
    u64 second_rows;
    S* sum;

    struct Row {
        Line<const S> first, second;

        __device__ Held<S> read(const BlockLane& block) const {
            Held<S> sums = first.template read<true>(block);
#pragma unroll
            for (int k = 0; k < PACKS; ++k) {
                if (k * PACK >= block.count) {
                    break;
                }
                Pack<S, PACK> others = second.read(block, k, S());
#pragma unroll
                for (int v = 0; v < PACK; ++v) {
                    sums.packs[k].at[v] = add_rounded(sums[k * PACK + v], (T)others.at[v]);
                }
            }
            return sums;
        }
    };
    __device__ Row row(const Norm& norm, u64 row) const {
        return {norm.line(first, remainder(row, first_rows)), norm.line(second, remainder(row, second_rows))};
    }
    __device__ void write(const Norm& norm, u64 row, const BlockLane& block, const Held<S>& x) const {
        if (sum) {
            norm.line(sum, row).write(block, [&](int slot) { return x[slot]; });
        }
    }
};

// Gradients that are rounded as if they went through memory, and added to what lies at `other`, where they may go, too.
struct With {
    const S* other;

    template <class Of>
    __device__ void write(const Line<S>& to, const Norm& norm, u64 row, const BlockLane& block, Of of) const {
        Line<const S> line = norm.line(other, row);
        Pack<S, PACK> others;
        to.write(block, [&](int slot) {
            if (slot % PACK == 0) {
                others = line.read(block, slot / PACK, S());
            }
            S dx;
            dx = of(slot);
            return add_rounded((T)dx, (T)others.at[slot % PACK]);
        });
    }
};

ROW_KERNELS(norm_blocks, normalize_added,
            (S* out, S* sum, const S* first, const S* second, u64 first_rows, u64 second_rows, const T* weight, const T* bias,
             T* mean, T* rstd, const __grid_constant__ Norm norm, f64 eps, u32 lanes),
            normalize<Group>(out, Added{first, second, first_rows, second_rows, sum}, weight, bias, mean, rstd, norm, eps, lanes))
ROW_KERNELS(blocks_of<T>, normalize_grad_added,
            (S* out, const S* g, const S* x, const T* weight, const T* mean, const T* rstd,
             const __grid_constant__ Norm norm, u32 lanes, const S* other),
            gradient<Group>(out, With{other}, g, x, weight, mean, rstd, norm, lanes))
