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

// Calls `body(part, tensor, start, end)` for the parts of this block: elements `start` to `end` of a tensor.
template <class T, int N, class Body> __device__ inline void for_parts(const Tensors<T, N>& tensors, Body body) {
    for (u32 part = blockIdx.x; part < tensors.parts; part += gridDim.x) {
        u32 low = 0, high = tensors.count;
        while (high - low > 1) {
            u32 middle = (low + high) / 2;
            (tensors.first[middle] <= part ? low : high) = middle;
        }
        u64 start = (u64)(part - tensors.first[low]) * PART;
        u64 end = start + PART < tensors.elements[low] ? start + PART : tensors.elements[low];
        body(part, low, start, end);
    }
}
