// Normalization of contiguous rows and their gradient: each row is read once, kept in registers as far as it fits, folded, and
// written. Elements are stored as S, and all else as what is computed in.

// Threads of a block, at most: few enough that the elements they hold stay in registers.
constexpr int THREADS = 256;
// Blocks that a multiprocessor holds at least of those that make norms and keep a row of several warps.
constexpr int norm_blocks = sizeof(T) == 8 ? 1 : 3;

// A contiguous tensor `[rows / groups, groups, channels, inner]`.
struct Norm {
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

    __device__ Stretch(u64 i, u64 inner) : number(quotient(i, inner)), place(i - number * inner) {}
    // Goes on to the next element. Whether it is in another stretch.
    __device__ bool next(u64 inner) {
        bool ends = ++place == inner;
        number += ends;
        place = ends ? 0 : place;
        return ends;
    }
};
// The weights of a row's elements, or the biases; NONE if there are none.
template <int NONE> struct Weights {
    const Norm& norm;
    const T* at;
    // Whether packs of elements have packs of weights.
    bool packed;

    __device__ Weights(const T* all, const Norm& norm, u64 row)
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

// What a thread keeps of a row, or reads again and again: `From` reads blocks of it.
template <class From, bool HOLDS> struct Kept {
    From from;

    template <class Group> __device__ Kept(const From& from, const Group&, u64) : from(from) {}
    __device__ Held<S> read(const BlockLane& block) const { return from.read(block); }
};
template <class From> struct Kept<From, true> {
    Held<S> held;

    template <class Group> __device__ Kept(const From& from, const Group& group, u64 len) : held(from.read(group.near(len))) {}
    __device__ const Held<S>& read(const BlockLane&) const { return held; }
};

// Rows that lie in memory.
struct Stored {
    const S* x;

    struct Row {
        Line<const S> line;

        __device__ Held<S> read(const BlockLane& block) const { return line.template read<true>(block); }
    };
    __device__ Row row(const Norm& norm, u64 row) const { return {norm.line(x, row)}; }
    // Writes a block as it is kept, unless it is in memory.
    __device__ void write(const Norm&, u64, const BlockLane&, const Held<S>&) const {}
};

// out = (x - mean) rstd weight + bias; `mean`, `weight` and `bias` may be missing. The rows of x
// are `From`'s.
template <class Group, class From>
__device__ inline void normalize(S* out, const From& from, const T* weight, const T* bias, T* mean, T* rstd, const Norm& norm,
                                 f64 eps, u32 lanes) {
    for_rows<Group>(norm.rows, lanes, [&](const Group& group, u64 row, bool exists) {
        u64 all = norm.len(), len = exists ? all : 0;
        row = exists ? row : 0;
        Line<S> to = norm.line(out, row);
        Kept<typename From::Row, Group::HOLDS> xs(from.row(norm, row), group, len);
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

// Gradients that are written as they are.
struct Alone {
    template <class Of> __device__ void write(const Line<S>& to, const Norm&, u64, const BlockLane& block, Of of) const {
        to.write(block, of);
    }
};

// dx = rstd (d - mean(d) - h mean(d h)), h = (x - mean) rstd, d = g weight; without a mean the first mean(d) is left out. What
// becomes of it is `Then`'s.
template <class Group, class Then>
__device__ inline void gradient(S* dx, const Then& then, const S* g, const S* x, const T* weight, const T* mean, const T* rstd,
                                const Norm& norm, u32 lanes) {
    for_rows<Group>(norm.rows, lanes, [&](const Group& group, u64 row, bool exists) {
        u64 all = norm.len(), len = exists ? all : 0;
        row = exists ? row : 0;
        Line<const S> from_x = norm.line(x, row), from_g = norm.line(g, row);
        Line<S> to = norm.line(dx, row);
        T centre = mean ? mean[row] : 0, scale = rstd[row];
        Weights<1> weights(weight, norm, row);
        RowOf<Group, S> row_x(group, from_x, len), row_g(group, from_g, len);
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
            then.write(to, norm, row, block, [&](int slot) {
                if (slot % PACK == 0) {
                    w = weights.read(block, slot);
                }
                return mul_rounded(g[slot] * w.at[slot % PACK] - shift - (x[slot] - centre) * scale * slope, scale);
            });
        });
    });
}
