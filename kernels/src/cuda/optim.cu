// Optimizer steps, in place, on many tensors per launch. Every product and sum is rounded separately, so the bits equal the CPU's. Operands are
// parameter, gradient and states; the gradient is read-only. The launcher appends the rules, each a struct with a function `step`.

// Hyperparameters and flags of a step.
struct StepNumbers {
    u64 flags;
    u64 numbers[12];
};

constexpr int OPERANDS = 6;  // at most

// Operands of one tensor.
template <class T, int N> struct Operands {
    T* at[N];
};

// With one operand more than the rule has, the step updates an F32 master copy, and the last operand is the parameter of type S. If the
// parameter is not the rounded master, it was changed by the user, and the master is reset to it.
template <class S, class T> __device__ inline T master_of(T master, S stored) {
    S rounded;
    rounded = master;
    return (T)rounded == (T)stored ? master : (T)stored;
}

// If ADDS, the last operand (of type T) is added to the gradient first.
template <class S, class Rule, bool ADDS, int V, class T, int N> __device__ inline void step_at(T* const (&operands)[N], u64 i, const StepNumbers& step) {
    constexpr int M = Rule::OPERANDS;
    constexpr bool ROUNDS = M < N && !ADDS;
    Pack<T, V> packs[M];
#pragma unroll
    for (int k = 0; k < M; ++k) {
        if (k != 1) {
            packs[k] = load<V>(operands[k] + i, true);
        }
    }
    Pack<S, V> gradient = load<V>((const S*)operands[1] + i, true), last;
    if (M < N) {
        last = load<V>((const S*)operands[N - 1] + i, true);
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
        T values[M];
#pragma unroll
        for (int k = 0; k < M; ++k) {
            values[k] = k == 1 ? (T)gradient.at[v] : packs[k].at[v];
        }
        if (ADDS) {
            values[1] = add_rounded(values[1], (T)last.at[v]);
        }
        if (ROUNDS) {
            values[0] = master_of(values[0], last.at[v]);
        }
        Rule::step(step, values);
#pragma unroll
        for (int k = 0; k < M; ++k) {
            packs[k].at[v] = values[k];
        }
        last.at[v] = values[0];
    }
#pragma unroll
    for (int k = 0; k < M; ++k) {
        if (k != 1) {
            store<V>(operands[k] + i, packs[k]);
        }
    }
    if (ROUNDS) {
        store<V>((S*)operands[N - 1] + i, last);
    }
}

// Tensors whose operands share one dense layout.
template <class S, class Rule, bool ADDS, class T, int N> __device__ inline void step_all(const Table<Tensor<T, N>>& tensors, const StepNumbers& step) {
    constexpr int V = lanes_of<T, T>;
    for_ranges(tensors, [&](const Tensor<T, N>& tensor, u64 start, u64 end, u32) {
        T* operands[N];
        u64 addresses = 0;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            operands[k] = tensor.operands[k];
            addresses |= (u64)operands[k];
        }
        u64 scalars = start;
        if (addresses % 16 == 0) {
            scalars = start + (end - start) / V * V;
            for (u64 i = start + threadIdx.x * V; i < scalars; i += blockDim.x * V) {
                step_at<S, Rule, ADDS, V>(operands, i, step);
            }
        }
        for (u64 i = scalars + threadIdx.x; i < end; i += blockDim.x) {
            step_at<S, Rule, ADDS, 1>(operands, i, step);
        }
    });
}

// One tensor whose operands have different layouts.
template <class S, class Rule, class T, int N>
__device__ inline void step_each(const Operands<T, N>& operands, const StepNumbers& step, const Walk<OPERANDS>& walk) {
    for_each(walk, [&](const Offsets<OPERANDS>& offsets) {
        T* at[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            bool is_stored = k >= Rule::OPERANDS;
            i64 offset = offsets.at[is_stored ? OPERANDS - 1 : k];
            at[k] = k == 1 || is_stored ? (T*)((S*)operands.at[k] + offset) : operands.at[k] + offset;
        }
        step_at<S, Rule, false, 1>(at, 0, step);
    });
}

// Kernels of a rule with N operands, computed in T, for parameters of type S.
#define STEP(name, N, S, T)                                                                      \
    extern "C" __global__ void name##_##S(const __grid_constant__ Table<Tensor<T, N>> tensors,   \
                                          const __grid_constant__ StepNumbers step) {            \
        step_all<S, name##_rule, false>(tensors, step);                                          \
    }                                                                                            \
    extern "C" __global__ void name##_strided_##S(const __grid_constant__ Operands<T, N> all,    \
                                                  const __grid_constant__ StepNumbers step,      \
                                                  const __grid_constant__ Walk<OPERANDS> walk) { \
        step_each<S, name##_rule>(all, step, walk);                                              \
    }
#ifdef STORED
#define EXPAND(name, N, S) STEP(name, N, S, f32)
#define RULE(name, N) EXPAND(name, N + 1, STORED)
#else
#define SUM_STEP(name, N, T)                                                                       \
    extern "C" __global__ void name##_sum_##T(const __grid_constant__ Table<Tensor<T, N>> tensors, \
                                              const __grid_constant__ StepNumbers step) {          \
        step_all<T, name##_rule, true>(tensors, step);                                             \
    }
#define RULE(name, N)          \
    STEP(name, N, f32, f32)    \
    STEP(name, N, f64, f64)    \
    SUM_STEP(name, N + 1, f32) \
    SUM_STEP(name, N + 1, f64)
#endif
