// gather and index_select. An index out of range raises a fault, and its output is not written.

// out[p] = x[p with its coordinate along the axis replaced by index[p]]
template <class T> struct Gather {
    T* out;
    const T* x;
    const i64* index;
    const Walk<3>& walk;
    i64 step;
    i64 size;
    Fault fault;

    template <int V> __device__ void at(const Offsets<3>& offsets) const {
        i64 i = index[offsets.at[2]];
        if (in_range(i, size)) {
            store<V>(out + offsets.at[0], load<V>(x + offsets.at[1] + i * step, walk.moves(1)));
        } else {
            raise(fault, i, size);
        }
    }
};

#define GATHER(bits, T)                                                                                               \
    extern "C" __global__ void gather_##bits(T* out, const T* x, const i64* index,                                    \
                                             const __grid_constant__ Walk<3> walk, i64 step, i64 size, Fault fault) { \
        for_vectors<lanes_of<T, T>>(walk, Gather<T>{out, x, index, walk, step, size, fault});                            \
    }
GATHER(b8, u8)
GATHER(b16, u16)
GATHER(b32, u32)
GATHER(b64, u64)
