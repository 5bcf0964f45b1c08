// Normalization of contiguous rows and their gradient: each row is read once, kept in registers as far as it fits, folded, and
// written. Elements are stored as S, and all else as what is computed in.

// Threads of a block, at most: few enough that the elements they hold stay in registers.
constexpr int THREADS = 256;
// Blocks that a multiprocessor holds at least of those that make norms and keep a row of several warps.
constexpr int norm_blocks = sizeof(T) == 8 ? 1 : 3;

// A contiguous tensor `[rows / groups, groups, channels, inner]`.
struct RowNorm {
    u64 rows;
    u64 groups;
    u64 channels;
    u64 inner;
    // Whether packs of elements can be read and written, and packs of weights read.
    u64 packed;

    __device__ u64 len() const { return channels * inner; }
    template <class O> __device__ Line<O> line(O* at, u64 row) const { return {at + row * len(), {1}, packed != 0}; }
    // The first weight of a row.
    __device__ u64 weights(u64 row) const { return groups == 1 ? 0 : row % groups * channels; }
};

// Where an element is that is one of `inner` neighbours in turn: in which of the stretches of so many, and how far in it.
struct Stretch {
    u64 number, place;

    __device__ Stretch(u64 i, u64 inner) : number(inner == 1 ? i : quotient(i, inner)), place(i - number * inner) {}
    // Goes on to the next element.
    __device__ void next(u64 inner) {
        bool ends = ++place == inner;
        number += ends;
        place = ends ? 0 : place;
    }
};
// The weights of a row's elements, or the biases; NONE if there are none.
template <int NONE> struct Weights {
    const RowNorm& norm;
    const T* at;
    // Whether packs of elements have packs of weights.
    bool packed;

    __device__ Weights(const T* all, const RowNorm& norm, u64 row)
        : norm(norm), at(all ? all + norm.weights(row) : all), packed(at && norm.inner == 1 && norm.packed) {}
    // Those of the pack of a slot.
    __device__ Pack<T, PACK> read(const BlockLane& block, int slot) const {
        if (packed) {
            return *(const Pack<T, PACK>*)(at + block.at(slot));
        }
        Pack<T, PACK> weights = {NONE, NONE, NONE, NONE};
        if (at) {
            Stretch channel(block.at(slot), norm.inner);
#pragma unroll
            for (int v = 0; v < PACK; ++v) {
                weights.at[v] = slot + v < block.count ? at[channel.number] : T();
                channel.next(norm.inner);
            }
        }
        return weights;
    }
};

__device__ inline u64 remainder(u64 a, u64 b) { return a - quotient(a, b) * b; }

// Rows in memory, or if there is a second term sums of two, rounded as if they went through memory, which are written to `sum`, unless
// that is missing. The terms begin again behind so many rows. What a thread writes it has read before, so the sum may lie where a term does.
struct Terms {
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
                if (!second.at || k * PACK >= block.count) {
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
    __device__ Row row(const RowNorm& norm, u64 row) const {
        if (!second) {
            return {norm.line(first, row), {nullptr, {1}, false}};
        }
        return {norm.line(first, remainder(row, first_rows)), norm.line(second, remainder(row, second_rows))};
    }
    __device__ void write(const RowNorm& norm, u64 row, const BlockLane& block, const Held<S>& x) const {
        if (sum) {
            norm.line(sum, row).write(block, [&](int slot) { return x[slot]; });
        }
    }
};

// out = (x - mean) rstd weight + bias; `mean`, `weight` and `bias` may be missing.
template <class Group>
__device__ inline void normalize(S* out, const Terms& from, const T* weight, const T* bias, T* mean, T* rstd, const RowNorm& norm,
                                 f64 eps, u32 lanes) {
    for_rows<Group>(norm.rows, lanes, [&](const Group& group, u64 row, bool exists) {
        u64 all = norm.len(), len = exists ? all : 0;
        row = exists ? row : 0;
        Line<S> to = norm.line(out, row);
        RowOf<Group, S, Terms::Row> xs(group, from.row(norm, row), len);
        T centre = 0;
        if (mean) {
            T sum = group.template fold_blocks<Sum<T>>(all, len, [&](const BlockLane& block) {
                const Held<S>& x = xs.read(block);
                return fold_slots<Sum<T>>(block, [&](int slot) -> T { return x[slot]; });
            });
            centre = sum / (T)all;
        }
        // In F64, which holds the squares of all numbers of F32.
        f64 squares = group.template fold_blocks<Sum<f64>>(all, len, [&](const BlockLane& block) {
            const Held<S>& x = xs.read(block);
            return fold_slots<Sum<f64>>(
                block, [&](int slot) { return slot < block.count ? square_of(x[slot] - centre) : 0.0; });
        });
        T scale = (T)(1 / sqrt_of(squares / (f64)all + eps));
        if (exists && group.leads()) {
            rstd[row] = scale;
            if (mean) {
                mean[row] = centre;
            }
        }
        Weights<1> weights(weight, norm, row);
        Weights<0> biases(bias, norm, row);
        group.each_block(len, [&](const BlockLane& block) {
            const Held<S>& x = xs.read(block);
            from.write(norm, row, block, x);
            Pack<T, PACK> w, b;
            to.write(block, [&](int slot) {
                if (slot % PACK == 0) {
                    w = weights.read(block, slot), b = biases.read(block, slot);
                }
                return (x[slot] - centre) * scale * w.at[slot % PACK] + b.at[slot % PACK];
            });
        });
    });
}

// dx = rstd (d - mean(d) - h mean(d h)), h = (x - mean) rstd, d = g weight; without a mean the first mean(d) is left out. If there is an
// `other`, where dx may go, it is added, to dx rounded as if it went through memory.
template <class Group>
__device__ inline void gradient(S* dx, const S* other, const S* g, const S* x, const T* weight, const T* mean, const T* rstd,
                                const RowNorm& norm, u32 lanes) {
    for_rows<Group>(norm.rows, lanes, [&](const Group& group, u64 row, bool exists) {
        u64 all = norm.len(), len = exists ? all : 0;
        row = exists ? row : 0;
        Line<const S> from_x = norm.line(x, row), from_g = norm.line(g, row);
        Line<S> to = norm.line(dx, row);
        T centre = mean ? mean[row] : 0, scale = rstd[row];
        Weights<1> weights(weight, norm, row);
        RowOf<Group, S> row_x(group, {from_x}, len), row_g(group, {from_g}, len);
        Two<T> sums = group.template fold_blocks<TwoSums<T>>(all, len, [&](const BlockLane& block) {
            const Held<S>&x = row_x.read(block), &g = row_g.read(block);
            Pack<T, PACK> w;
            return fold_slots<TwoSums<T>>(block, [&](int slot) {
                if (slot % PACK == 0) {
                    w = weights.read(block, slot);
                }
                T d = g[slot] * w.at[slot % PACK];
                return Two<T>{d, mul_rounded(d, (x[slot] - centre) * scale)};
            });
        });
        T shift = mean ? sums.first / (T)all : 0, slope = sums.second / (T)all;
        group.each_block(len, [&](const BlockLane& block) {
            const Held<S>&x = row_x.read(block), &g = row_g.read(block);
            Pack<T, PACK> w;
            Pack<S, PACK> others;
            to.write(block, [&](int slot) {
                if (slot % PACK == 0) {
                    w = weights.read(block, slot);
                    others = other ? norm.line(other, row).read(block, slot / PACK, S()) : others;
                }
                S dx;
                dx = mul_rounded(g[slot] * w.at[slot % PACK] - shift - (x[slot] - centre) * scale * slope, scale);
                return other ? add_rounded((T)dx, (T)others.at[slot % PACK]) : (T)dx;
            });
        });
    });
}
