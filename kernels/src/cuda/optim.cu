// Optimizer steps, in place, many tensors at once. Products and sums are rounded one by one, as on the CPU, whose results
// these are, bit for bit. Operands are parameter, gradient and state; the gradient is only read.

template <class T> __device__ inline T plus(T a, T b) { return add_rounded(a, b); }
template <class T> __device__ inline T minus(T a, T b) { return add_rounded(a, -b); }
template <class T> __device__ inline T times(T a, T b) { return mul_rounded(a, b); }

// Numbers and choices as the rules of the launchers derive them from a step.
template <class T> struct Sgd {
    T lr;
    T momentum;
    T fresh;  // 1 - dampening
    T weight_decay;
    u32 decays, nesterov, first, pad;

    template <int N> __device__ void step(T (&values)[N]) const {
        T p = values[0], g = values[1];
        T d = decays ? plus(g, times(weight_decay, p)) : g;
        // A buffer is there only if there is momentum.
        if (N == 3) {
            T& buffer = values[N - 1];
            buffer = first ? d : plus(times(momentum, buffer), times(fresh, d));
            d = nesterov ? plus(d, times(momentum, buffer)) : buffer;
        }
        values[0] = minus(p, times(lr, d));
    }
};

template <class T> struct Adam {
    T size;    // -lr / (1 - beta1^step)
    T root;    // sqrt(1 - beta2^step)
    T eps;
    T fresh1;  // 1 - beta1
    T keep1;
    T fresh2;  // 1 - beta2
    T keep2;
    T weight_decay;
    T shrink;      // 1 - lr weight_decay, or 1
    u32 decays;    // through the gradient
    u32 near_end;  // the mean is moved from the gradient's end, which is nearer where beta1 <= 1/2

    __device__ void step(T (&values)[4]) const {
        T p = times(values[0], shrink), g = values[1], m = values[2], v = values[3];
        g = decays ? plus(g, times(weight_decay, p)) : g;
        T way = minus(g, m);
        m = near_end ? minus(g, times(way, keep1)) : plus(m, times(fresh1, way));
        v = plus(times(v, keep2), times(times(fresh2, g), g));
        T divisor = plus(sqrt_of(v) / root, eps);
        values[0] = plus(p, times(size, m) / divisor);
        values[2] = m;
        values[3] = v;
    }
};

template <class T> struct RmsProp {
    T lr;
    T alpha;
    T fresh;  // 1 - alpha
    T keep;
    T eps;
    T momentum;
    T weight_decay;
    u32 decays, moves, centered, near_end;

    // The mean square is the first state, the buffer the second, the mean the last one.
    template <int N> __device__ void step(T (&values)[N]) const {
        T p = values[0], g = values[1];
        g = decays ? plus(g, times(weight_decay, p)) : g;
        T v = values[2] = plus(times(values[2], alpha), times(times(fresh, g), g));
        if (N > 3 && centered) {
            T& mean = values[N - 1];
            T way = minus(g, mean);
            mean = near_end ? minus(g, times(way, keep)) : plus(mean, times(fresh, way));
            v = minus(v, times(mean, mean));
        }
        T divisor = plus(sqrt_of(v), eps);
        T way = times(lr, g) / divisor;
        if (N > 3 && moves) {
            T& buffer = values[N > 3 ? 3 : 2];
            buffer = plus(times(buffer, momentum), g / divisor);
            way = times(lr, buffer);
        }
        values[0] = minus(p, way);
    }
};

template <class T> struct Lion {
    T lr;
    T shrink;  // 1 - lr weight_decay
    T keep1;
    T fresh1;  // 1 - beta1
    T keep2;
    T fresh2;  // 1 - beta2

    __device__ void step(T (&values)[3]) const {
        T g = values[1], m = values[2];
        T mix = plus(times(m, keep1), times(g, fresh1));
        T sign = (T)((mix > 0) - (mix < 0));
        values[0] = minus(times(values[0], shrink), times(lr, sign));
        values[2] = plus(times(m, keep2), times(g, fresh2));
    }
};

// Tensors of one launch, each cut into parts; part b of the launch is that of the last tensor whose `first` is at most b.
constexpr u32 TENSORS = 64;
constexpr u32 PART = 2048;
template <class T, int N> struct Tensors {
    T* operands[TENSORS][N];
    u64 elements[TENSORS];
    u32 first[TENSORS];
    u32 count;
    u32 parts;
};

template <int N, int V, class T, class Op> __device__ inline void step_at(T* const (&operands)[N], u64 i, const Op& op) {
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
        op.step(values);
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
template <class T, int N, class Op> __device__ inline void step_all(const Tensors<T, N>& tensors, const Op& op) {
    constexpr int V = lanes_of<T, T>;
    for (u32 part = blockIdx.x; part < tensors.parts; part += gridDim.x) {
        u32 low = 0, high = tensors.count;
        while (high - low > 1) {
            u32 middle = (low + high) / 2;
            (tensors.first[middle] <= part ? low : high) = middle;
        }
        u64 start = (u64)(part - tensors.first[low]) * PART;
        u64 end = start + PART < tensors.elements[low] ? start + PART : tensors.elements[low];
        T* operands[N];
        u64 addresses = 0;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            operands[k] = tensors.operands[low][k];
            addresses |= (u64)operands[k];
        }
        u64 scalars = start;
        if (addresses % 16 == 0) {
            scalars = start + (end - start) / V * V;
            for (u64 i = start + threadIdx.x * V; i < scalars; i += blockDim.x * V) {
                step_at<N, V>(operands, i, op);
            }
        }
        for (u64 i = scalars + threadIdx.x; i < end; i += blockDim.x) {
            step_at<N, 1>(operands, i, op);
        }
    }
}

// One tensor whose operands lie in different orders.
template <class T, int N, class Op> struct StepEach {
    T* const (&operands)[N];
    const Op& op;

    template <int V> __device__ void at(const Offsets<N>& offsets) const {
        T values[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            values[k] = operands[k][offsets.at[k]];
        }
        op.step(values);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            if (k != 1) {
                operands[k][offsets.at[k]] = values[k];
            }
        }
    }
};

// The kernels of a formula that keeps so many states.
#define STEP(op, Formula, states, T)                                                                             \
    extern "C" __global__ void op##states##_##T(const __grid_constant__ Tensors<T, states + 2> tensors,          \
                                                const __grid_constant__ Formula<T> formula) {                    \
        step_all(tensors, formula);                                                                              \
    }                                                                                                            \
    extern "C" __global__ void op##states##_strided_##T(const __grid_constant__ Tensors<T, states + 2> tensors,  \
                                                        const __grid_constant__ Formula<T> formula,              \
                                                        const __grid_constant__ Walk<states + 2> walk) {         \
        for_each<1>(walk, StepEach<T, states + 2, Formula<T>>{tensors.operands[0], formula});                    \
    }
#define STEPS(T)                \
    STEP(sgd, Sgd, 0, T)        \
    STEP(sgd, Sgd, 1, T)        \
    STEP(adam, Adam, 2, T)      \
    STEP(rmsprop, RmsProp, 1, T) \
    STEP(rmsprop, RmsProp, 2, T) \
    STEP(rmsprop, RmsProp, 3, T) \
    STEP(lion, Lion, 1, T)
STEPS(f32)
STEPS(f64)
