// Softmax, log_softmax, their gradients, and cross-entropy. Each row is loaded once if it fits into registers. `out` may be an input, since
// each element is read and written by the same thread. Elements are stored as S and computed in T.

// Thread block size of WarpGroup and ColumnGroup kernels; more threads would spill the elements they hold.
constexpr int THREADS = 256;

struct Rows {
    u64 len;
    i64 steps[3];  // stride along a row, for each operand
    u64 packed;    // whether all operands allow loads and stores of packs

    template <class O> __device__ Strided<O> line(O* at, int operand) const { return {at, steps[operand], packed != 0}; }
};

// Not inlined, to keep kernels short.
template <> __device__ __noinline__ f64 exp_of<f64>(f64 x) { return exp(x); }
// exp(x). For 16-bit elements the relative error is up to (2 + |x|) 2^-23, far below their rounding error, and results below 2^-126 are 0.
struct Quick {
    __device__ T operator()(T x) const {
        if constexpr (sizeof(S) == 2) {
            return exp2_of(x * (T)1.4426950408889634);
        } else {
            return exp_of(x);
        }
    }
};

// Padding: neutral for the maximum, and its exponential is 0.
__device__ inline S least() {
    S element;
    element = lowest<T>();
    return element;
}

// out = exp(x - max x) / sum exp(x - max x), or its logarithm if LOG
template <bool LOG, class Group>
__device__ inline void softmax(S* out, const S* x, const Walk<2>& kept, const Rows& rows, u32 lanes) {
    for_rows<Group>(kept.elements, lanes, [&](const Group& group, u64 row, bool exists) {
        Offsets<2> at = offsets(kept, exists ? row : 0);
        auto to = rows.line(out + at.at[0], 0);
        Strided<const S> from = rows.line(x + at.at[1], 1);
        u64 all = rows.len, len = exists ? all : 0;
        RowOf<Group, S, Strided<const S>> row_x(group, from, len, least());
        T largest = group.template fold_blocks<Max<T>>(all, len, [&](const BlockLane& block) {
            const Held<S>& x = row_x.read(block);
            return fold_slots<Max<T>>(block, [&](int slot) -> T { return x[slot]; });
        });
        T sum = group.template fold_blocks<Sum<T>>(all, len, [&](const BlockLane& block) {
            const Held<S>& x = row_x.read(block);
            return fold_slots<Sum<T>>(block, [&](int slot) { return Quick()(x[slot] - largest); });
        });
        T log_sum = LOG ? log_of(sum) : 0, inverse = 1 / sum;
        group.each_block(len, [&](const BlockLane& block) {
            const Held<S>& x = row_x.read(block);
            // Recomputing the exponentials is faster than keeping them.
            to.write(block, [&](int slot) { return LOG ? x[slot] - largest - log_sum : Quick()(x[slot] - largest) * inverse; });
        });
    });
}

// out = y (g - sum(g y)) for softmax, g - exp(y) sum(g) for its logarithm
template <bool LOG, class Group>
__device__ inline void softmax_grad(S* out, const S* y, const S* g, const Walk<3>& kept, const Rows& rows, u32 lanes) {
    for_rows<Group>(kept.elements, lanes, [&](const Group& group, u64 row, bool exists) {
        Offsets<3> at = offsets(kept, exists ? row : 0);
        auto to = rows.line(out + at.at[0], 0);
        auto from_y = rows.line(y + at.at[1], 1);
        auto from_g = rows.line(g + at.at[2], 2);
        u64 len = exists ? rows.len : 0;
        RowOf<Group, S, Strided<const S>> row_y(group, from_y, len), row_g(group, from_g, len);
        T sum = group.template fold_blocks<Sum<T>>(rows.len, len, [&](const BlockLane& block) {
            const Held<S>&ys = row_y.read(block), &gs = row_g.read(block);
            return fold_slots<Sum<T>>(block, [&](int slot) { return LOG ? gs[slot] : mul_rounded(gs[slot], ys[slot]); });
        });
        group.each_block(len, [&](const BlockLane& block) {
            const Held<S>&ys = row_y.read(block), &gs = row_g.read(block);
            to.write(block, [&](int slot) {
                return LOG ? gs[slot] - mul_rounded(Quick()(ys[slot]), sum) : ys[slot] * (gs[slot] - sum);
            });
        });
    });
}

// log_sums = log(sum exp(x)), losses = log_sums - x[label] of each row, out[i, j] = (exp(x[i, j] - log_sums[i]) - (j == labels[i])) g[i].
// Operands of `kept` are out, logits, labels, g, losses. If `losses` is null, `log_sums` is an input. If `out` is null, no gradient is
// computed. If neither is null, `out` must not alias another operand. A label out of range raises a fault, and its loss is not written.
template <class Group>
__device__ inline void cross_entropy(S* out, const S* logits, const i64* labels, const T* g, T* losses, T* log_sums,
                                     const Walk<5>& kept, const Rows& rows, u32 lanes, Fault fault) {
    for_rows<Group>(kept.elements, lanes, [&](const Group& group, u64 row, bool exists) {
        row = exists ? row : 0;
        Offsets<5> at = offsets(kept, row);
        const S* x = logits + at.at[1];
        auto from = rows.line(x, 1);
        i64 label = labels[at.at[2]];
        bool is_class = in_range(label, (i64)rows.len), leads = exists && group.leads();
        u64 len = exists ? rows.len : 0;
        T log_sum = losses ? (T)0 : log_sums[row];
        if (losses) {
            Two<T> state = group.template fold_blocks<LogSum<T>>(rows.len, len, [&](const BlockLane& block) {
                return Exponentials<S, Quick>{block, from.read(block, least())};
            });
            log_sum = LogSum<T>::value(state);
            if (leads) {
                log_sums[row] = log_sum;
            }
            if (leads && is_class) {
                // log_sum - x[label] would have the rounding error of the largest logit.
                losses[at.at[4]] = add_rounded(state.first - x[label * rows.steps[1]], log_of(state.second));
            }
        }
        if (leads && !is_class) {
            raise(fault, label, (i64)rows.len);
        }
        auto to = rows.line(out + at.at[0], 0);
        T slope = out ? g[at.at[3]] : (T)0;
        group.each_block(out ? len : 0, [&](const BlockLane& block) {
            Held<S> x = from.read(block);
            int own = block.slot_of((u64)label);
            to.write(block, [&](int slot) {
                T p = Quick()(x[slot] - log_sum);
                return (slot == own ? add_rounded(p, (T)-1) : p) * slope;
            });
        });
    });
}

#define SOFTMAX_OPERANDS (S* out, const S* x, const __grid_constant__ Walk<2> kept, const __grid_constant__ Rows rows, u32 lanes)
GROUP_KERNELS(softmax, SOFTMAX_OPERANDS, softmax<false, Group>(out, x, kept, rows, lanes))
GROUP_KERNELS(log_softmax, SOFTMAX_OPERANDS, softmax<true, Group>(out, x, kept, rows, lanes))
#define GRAD_OPERANDS \
    (S* out, const S* y, const S* g, const __grid_constant__ Walk<3> kept, const __grid_constant__ Rows rows, u32 lanes)
GROUP_KERNELS(softmax_grad, GRAD_OPERANDS, softmax_grad<false, Group>(out, y, g, kept, rows, lanes))
GROUP_KERNELS(log_softmax_grad, GRAD_OPERANDS, softmax_grad<true, Group>(out, y, g, kept, rows, lanes))
GROUP_KERNELS(cross_entropy,
             (S* out, const S* logits, const i64* labels, const T* g, T* losses, T* log_sums,
              const __grid_constant__ Walk<5> kept, const __grid_constant__ Rows rows, u32 lanes, Fault fault),
             cross_entropy<Group>(out, logits, labels, g, losses, log_sums, kept, rows, lanes, fault))
