// Tensors of one launch, split into parts of equal size.

constexpr u32 PART = 2048;
template <class T, int N> struct Tensor {
    T* operands[N];
    u64 elements;
};

// Calls `body(tensor, start, end, part)` for each part of this thread block: elements `start..end` of a tensor.
template <class T, int N, class Body> __device__ inline void for_ranges(const Table<Tensor<T, N>>& table, Body body) {
    for_parts(table, [&](const Tensor<T, N>& tensor, u32 own, u32 part) {
        u64 start = (u64)own * PART;
        body(tensor, start, start + PART < tensor.elements ? start + PART : tensor.elements, part);
    });
}
