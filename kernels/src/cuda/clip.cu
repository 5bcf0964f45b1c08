// clip_grad_norm and loss scaling: the total norm of many tensors, scaling, and the check for infinities and NaN.

constexpr int THREADS = 256;

// Sum of f(x) over contiguous elements by a thread block.
template <class O, class F> __device__ inline T sum_of(const O* x, u64 len, F f) {
    Line<const O> line = {x, {}, (u64)x % (PACK * sizeof(O)) == 0};
    return BlockGroup(LANES).fold_blocks<Sum<T>>(len, len, [&](const BlockLane& block) {
        Held<O> held = line.read(block);
        return fold_slots<Sum<T>>(block, [&](int slot) { return f(held[slot]); });
    });
}

// parts[b] = sum of squares of part b
extern "C" __global__ void __launch_bounds__(THREADS) NAMED(squares, DTYPE)(const __grid_constant__ Table<Tensor<S, 1>> tensors, T* parts) {
    for_ranges(tensors, [&](const Tensor<S, 1>& tensor, u64 start, u64 end, u32 part) {
        T sum = sum_of<S>(tensor.operands[0] + start, end - start, [](T x) { return mul_rounded(x, x); });
        if (threadIdx.x == 0) {
            parts[part] = sum;
        }
    });
}

// norm = sqrt(sum of parts), scale = min(max_norm / (norm + 1e-6), 1); one block
extern "C" __global__ void __launch_bounds__(THREADS) NAMED(norm_of, DTYPE)(const T* parts, u64 count, f64 max_norm, T* norm, T* scale) {
    T sum = sqrt_of(sum_of<T>(parts, count, [](T x) { return x; }));
    if (threadIdx.x == 0) {
        T factor = (T)max_norm / (sum + (T)1e-6);
        *norm = sum;
        *scale = factor > 1 ? (T)1 : factor;
    }
}

// out = x factor in a range. Returns whether all of the thread's elements are finite.
__device__ inline bool scale_range(const Tensor<S, 2>& tensor, u64 start, u64 end, T factor) {
    S* out = tensor.operands[0];
    const S* x = tensor.operands[1];
    bool finite = true;
#pragma unroll 4
    for (u64 i = start + threadIdx.x; i < end; i += THREADS) {
        T value = (T)x[i];
        finite &= value - value == 0;
        out[i] = mul_rounded(value, factor);
    }
    return finite;
}

// out = x scale
extern "C" __global__ void __launch_bounds__(THREADS) NAMED(scale_all, DTYPE)(const __grid_constant__ Table<Tensor<S, 2>> tensors, const T* scale) {
    T factor = *scale;
    for_ranges(tensors, [&](const Tensor<S, 2>& tensor, u64 start, u64 end, u32) { scale_range(tensor, start, end, factor); });
}

// out = x / scale, parts[b] = 1 if an element of part b is not finite, else 0
extern "C" __global__ void __launch_bounds__(THREADS)
    NAMED(unscale_all, DTYPE)(const __grid_constant__ Table<Tensor<S, 2>> tensors, const T* scale, T* parts) {
    T factor = (T)1 / *scale;
    for_ranges(tensors, [&](const Tensor<S, 2>& tensor, u64 start, u64 end, u32 part) {
        bool any = __syncthreads_or(!scale_range(tensor, start, end, factor));
        if (threadIdx.x == 0) {
            parts[part] = any ? (T)1 : (T)0;
        }
    });
}

// found = 1 if one of the parts is, else 0; one block
extern "C" __global__ void __launch_bounds__(THREADS) NAMED(any_of, DTYPE)(const T* parts, u64 count, T* found) {
    bool own = false;
    for (u64 i = threadIdx.x; i < count; i += THREADS) {
        own |= parts[i] != 0;
    }
    bool any = __syncthreads_or(own);
    if (threadIdx.x == 0) {
        *found = any ? (T)1 : (T)0;
    }
}
