// Optimizer steps, in place, many tensors at once. Products and sums are rounded one by one, as on the CPU, whose results
// these are, bit for bit. Operands are parameter, gradient and states; the gradient is only read. The rules, each a struct
// with the function `step`, follow behind; their formulas are the launchers'.

// The numbers of a step, and choices.
struct StepNumbers {
    u64 flags;
    u64 numbers[12];
};

constexpr int OPERANDS = 5;  // at most

template <int N, int V, class Rule, class T> __device__ inline void step_at(T* const (&operands)[N], u64 i, const StepNumbers& step) {
    Pack<T, V> packs[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
        packs[k] = load<V>(operands[k] + i, true);
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
        T values[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            values[k] = packs[k].at[v];
        }
        Rule::step(step, values);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            packs[k].at[v] = values[k];
        }
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
        if (k != 1) {
            store<V>(operands[k] + i, packs[k]);
        }
    }
}

// Tensors whose operands all lie in one order without gaps.
template <class Rule, class T, int N> __device__ inline void step_all(const Tensors<T, N>& tensors, const StepNumbers& step) {
    constexpr int V = lanes_of<T, T>;
    for_parts(tensors, [&](u32, u32 tensor, u64 start, u64 end) {
        T* operands[N];
        u64 addresses = 0;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            operands[k] = tensors.operands[tensor][k];
            addresses |= (u64)operands[k];
        }
        u64 scalars = start;
        if (addresses % 16 == 0) {
            scalars = start + (end - start) / V * V;
            for (u64 i = start + threadIdx.x * V; i < scalars; i += blockDim.x * V) {
                step_at<N, V, Rule>(operands, i, step);
            }
        }
        for (u64 i = scalars + threadIdx.x; i < end; i += blockDim.x) {
            step_at<N, 1, Rule>(operands, i, step);
        }
    });
}

// One tensor whose operands lie in different orders.
template <class Rule, class T, int N>
__device__ inline void step_each(T* const (&operands)[N], const StepNumbers& step, const Walk<OPERANDS>& walk) {
    for_each(walk, [&](const Offsets<OPERANDS>& offsets) {
        T values[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            values[k] = operands[k][offsets.at[k]];
        }
        Rule::step(step, values);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            if (k != 1) {
                operands[k][offsets.at[k]] = values[k];
            }
        }
    });
}

// The kernels of a rule with so many operands.
#define STEP(name, N, T)                                                                         \
    extern "C" __global__ void name##_##T(const __grid_constant__ Tensors<T, N> tensors,         \
                                          const __grid_constant__ StepNumbers step) {            \
        step_all<name##_rule>(tensors, step);                                                    \
    }                                                                                            \
    extern "C" __global__ void name##_strided_##T(const __grid_constant__ Tensors<T, N> tensors, \
                                                  const __grid_constant__ StepNumbers step,      \
                                                  const __grid_constant__ Walk<OPERANDS> walk) { \
        step_each<name##_rule>(tensors.operands[0], step, walk);                                 \
    }
#define RULE(name, N)  \
    STEP(name, N, f32) \
    STEP(name, N, f64)
