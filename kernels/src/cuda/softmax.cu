// Softmax, its logarithm, their gradients, and cross-entropy: each row is read once, kept in registers as far as it fits,
// folded, and written. `out` may be an input: each element is read and written by one thread. Elements are stored as S.

// Threads of a block, at most: few enough that the elements they hold stay in registers.
constexpr int THREADS = 256;

struct Rows {
    u64 len;
    i64 steps[3];  // from one element of a row to the next, in each operand
};

// Calls `write(i, value)` for the elements of a row of softmax or, with LOG, of its logarithm.
template <bool LOG, class Group, class Write>
__device__ inline void softmax_row(const Group& group, const S* x, i64 step, u64 all, u64 len, Write write) {
    T held[EACH];
    auto skip = [](u64) {};
    group.each(len, skip, [&](u64 i, int slot) { held[slot] = x[i * step]; });
    auto far = [&](u64 i) -> T { return x[i * step]; };
    T largest = group.template fold<Max<T>>(all, len, far, [&](u64, int slot) { return held[slot]; });
    group.each(len, skip, [&](u64, int slot) {
        T shifted = held[slot] - largest;
        held[slot] = LOG ? shifted : exp_of(shifted);
    });
    auto far_term = [&](u64 i) { return exp_of(x[i * step] - largest); };
    T sum = group.template fold<Sum<T>>(all, len, far_term,
                                       [&](u64, int slot) { return LOG ? exp_of(held[slot]) : held[slot]; });
    if (LOG) {
        T log_sum = log_of(sum);
        group.each(len, [&](u64 i) { write(i, x[i * step] - largest - log_sum); },
                  [&](u64 i, int slot) { write(i, held[slot] - log_sum); });
    } else {
        group.each(len, [&](u64 i) { write(i, exp_of(x[i * step] - largest) / sum); },
                  [&](u64 i, int slot) { write(i, held[slot] / sum); });
    }
}

template <bool LOG, class Group>
__device__ inline void softmax(S* out, const S* x, const Walk<2>& kept, const Rows& rows, u32 lanes) {
    for_rows<Group>(kept.elements, lanes, [&](const Group& group, u64 row, bool exists) {
        Offsets<2> at = offsets(kept, exists ? row : 0);
        S* to = out + at.at[0];
        softmax_row<LOG>(group, x + at.at[1], rows.steps[1], rows.len, exists ? rows.len : 0,
                         [&](u64 i, T value) { to[i * rows.steps[0]] = value; });
    });
}

// out = y (g - sum(g y)) for softmax, g - exp(y) sum(g) for its logarithm
template <bool LOG, class Group>
__device__ inline void softmax_grad(S* out, const S* y, const S* g, const Walk<3>& kept, const Rows& rows, u32 lanes) {
    for_rows<Group>(kept.elements, lanes, [&](const Group& group, u64 row, bool exists) {
        Offsets<3> at = offsets(kept, exists ? row : 0);
        S* to = out + at.at[0];
        const S* from_y = y + at.at[1];
        const S* from_g = g + at.at[2];
        u64 len = exists ? rows.len : 0;
        T ys[EACH], gs[EACH];
        group.each(len, [](u64) {}, [&](u64 i, int slot) {
            ys[slot] = from_y[i * rows.steps[1]];
            gs[slot] = from_g[i * rows.steps[2]];
        });
        auto term = [](T y, T g) { return LOG ? g : mul_rounded(g, y); };
        T sum = group.template fold<Sum<T>>(
            rows.len, len, [&](u64 i) { return term(from_y[i * rows.steps[1]], from_g[i * rows.steps[2]]); },
            [&](u64, int slot) { return term(ys[slot], gs[slot]); });
        auto finish = [&](u64 i, T y, T g) {
            to[i * rows.steps[0]] = LOG ? g - mul_rounded(exp_of(y), sum) : y * (g - sum);
        };
        group.each(len, [&](u64 i) { finish(i, from_y[i * rows.steps[1]], from_g[i * rows.steps[2]]); },
                  [&](u64 i, int slot) { finish(i, ys[slot], gs[slot]); });
    });
}

// log_probs = log_softmax(logits), losses[row] = -log_probs[row, labels[row]]; operands of `kept` in this order. A label
// that is no class is a fault, and its loss is not written.
template <class Group>
__device__ inline void cross_entropy(S* log_probs, const S* logits, const i64* labels, S* losses, const Walk<4>& kept,
                                     const Rows& rows, u32 lanes, Fault fault) {
    for_rows<Group>(kept.elements, lanes, [&](const Group& group, u64 row, bool exists) {
        Offsets<4> at = offsets(kept, exists ? row : 0);
        S* to = log_probs + at.at[0];
        i64 label = labels[at.at[2]];
        if (exists && group.leads() && !in_range(label, (i64)rows.len)) {
            raise(fault, label, (i64)rows.len);
        }
        softmax_row<true>(group, logits + at.at[1], rows.steps[1], rows.len, exists ? rows.len : 0,
                          [&](u64 i, T value) {
                              to[i * rows.steps[0]] = value;
                              if ((i64)i == label) {
                                  losses[at.at[3]] = -value;
                              }
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
             (S* log_probs, const S* logits, const i64* labels, S* losses, const __grid_constant__ Walk<4> kept,
              const __grid_constant__ Rows rows, u32 lanes, Fault fault),
             cross_entropy<Group>(log_probs, logits, labels, losses, kept, rows, lanes, fault))

// out[i, j] = (exp(log_probs[i, j]) - (j == labels[i])) g[i]. The fourth operand of the walk is the class j itself.
extern "C" __global__ void NAMED(cross_entropy_grad, DTYPE)(S* out, const S* log_probs, const S* g, const i64* labels,
                                                            const __grid_constant__ Walk<5> walk, i64 classes,
                                                            Fault fault) {
    for_each(walk, [&](const Offsets<5>& offsets) {
        i64 label = labels[offsets.at[4]];
        i64 j = offsets.at[3];
        if (j == 0 && !in_range(label, classes)) {
            raise(fault, label, classes);
        }
        T p = exp_of((T)log_probs[offsets.at[1]]);
        out[offsets.at[0]] = (j == label ? p - 1 : p) * g[offsets.at[2]];
    });
}
