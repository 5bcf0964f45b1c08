// Optimizer steps, in place, many tensors at once. Products and sums are rounded one by one, as on the CPU, whose results
// these are, bit for bit. Operands are parameter, gradient and state; the gradient is only read.

template <class T> __device__ inline T plus(T a, T b) { return add_rounded(a, b); }
template <class T> __device__ inline T minus(T a, T b) { return add_rounded(a, -b); }
template <class T> __device__ inline T times(T a, T b) { return mul_rounded(a, b); }

// Numbers and choices as the launchers derive them from the step.
template <class T> struct Sgd {
    T lr, momentum, fresh, weight_decay;
    u32 decays, nesterov, first, pad;

    __device__ void step(T (&values)[2]) const { values[0] = minus(values[0], times(lr, gradient(values[0], values[1]))); }
    __device__ void step(T (&values)[3]) const {
        T d = gradient(values[0], values[1]);
        T b = first ? d : plus(times(momentum, values[2]), times(fresh, d));
        values[2] = b;
        d = nesterov ? plus(d, times(momentum, b)) : b;
        values[0] = minus(values[0], times(lr, d));
    }
    __device__ T gradient(T p, T g) const { return decays ? plus(g, times(weight_decay, p)) : g; }
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
    T shrink;      // 1 - lr weight_decay
    u32 near_end;  // m is moved from the gradient's end, which is nearer where beta1 <= 1/2
    u32 decay;     // 0 none, 1 through the gradient, 2 by `shrink`

    __device__ void step(T (&values)[4]) const {
        T p = values[0], g = values[1], m = values[2], v = values[3];
        p = decay == 2 ? times(p, shrink) : p;
        g = decay == 1 ? plus(g, times(weight_decay, p)) : g;
        T way = minus(g, m);
        m = near_end ? minus(g, times(way, keep1)) : plus(m, times(fresh1, way));
        v = plus(times(v, keep2), times(times(fresh2, g), g));
        T divisor = plus(sqrt_of(v) / root, eps);
        values[0] = plus(p, times(size, m) / divisor);
        values[2] = m;
        values[3] = v;
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

#define STEP(name, Op, N, T)                                                                                     \
    extern "C" __global__ void name##_##T(const __grid_constant__ Tensors<T, N> tensors,                         \
                                          const __grid_constant__ Op<T> op) {                                    \
        step_all(tensors, op);                                                                                   \
    }                                                                                                            \
    extern "C" __global__ void name##_strided_##T(const __grid_constant__ Tensors<T, N> tensors,                 \
                                                  const __grid_constant__ Op<T> op,                              \
                                                  const __grid_constant__ Walk<N> walk) {                        \
        for_each<1>(walk, StepEach<T, N, Op<T>>{tensors.operands[0], op});                                       \
    }
#define STEPS(T)                \
    STEP(sgd, Sgd, 2, T)        \
    STEP(momentum, Sgd, 3, T)   \
    STEP(adam, Adam, 4, T)
STEPS(f32)
STEPS(f64)
