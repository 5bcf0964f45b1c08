// Sums and means over bags of rows of a table. An index that is no row, and an offset that does not follow the one before,
// are faults and are left out. Rows with the weight 0 are not read. Products and sums are rounded one by one and in the CPU's order. Elements are stored as S,
// numbers of members as what is computed in.

struct BagSizes {
    u64 len;     // indices
    u64 count;   // bags
    i64 rows;    // of the table
    i64 width;   // elements of a row
    i64 padding; // a row that counts for nothing, or -1
    i64 index_step;
    i64 offset_step;
    i64 weight_step;
    i64 member_step;
};

struct Bags {
    const i64* indices;
    const i64* offsets;  // none if all bags are of one size
    const S* weights;    // none if all are 1
    const BagSizes& size;
    Fault fault;

    __device__ u64 each() const { return size.len / size.count; }

    // The places of a bag's indices.
    __device__ void places(u64 bag, u64& begin, u64& end) const {
        if (!offsets) {
            begin = bag * each();
            end = begin + each();
            return;
        }
        i64 first = offsets[(i64)bag * size.offset_step];
        i64 last = bag + 1 < size.count ? offsets[(i64)(bag + 1) * size.offset_step] : (i64)size.len;
        bool follows = (bag > 0 || first == 0) && first >= 0 && first <= last && last <= (i64)size.len;
        if (!follows) {
            raise(fault, first, last);
        }
        begin = follows ? (u64)first : 0;
        end = follows ? (u64)last : 0;
    }

    // The bag of a place: the last one that begins there or before; -1 if none does.
    __device__ i64 bag_of(u64 place) const {
        if (!offsets) {
            return (i64)(place / each());
        }
        i64 low = 0, high = (i64)size.count;
        while (low < high) {
            i64 middle = (low + high) / 2;
            if (offsets[middle * size.offset_step] <= (i64)place) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low - 1;
    }

    // The row at a place; -1 if it does not count.
    __device__ i64 row(u64 place) const {
        i64 index = indices[(i64)place * size.index_step];
        if (!in_range(index, size.rows)) {
            raise(fault, index, size.rows);
            return -1;
        }
        return index == size.padding ? -1 : index;
    }

    __device__ T weight(u64 place) const { return weights ? (T)weights[(i64)place * size.weight_step] : T(1); }
};

struct Steps {
    i64 row;
    i64 column;
};

#define BAGS const i64 *indices, const i64 *offsets

// out[i] = sum of w[j] table[indices[j]], divided by the number of members where they are wanted. A thread has V columns of a
// bag.
template <int V> __device__ inline void sum(S* out, T* members, const S* table, const Bags& bags, Steps to, Steps from) {
    u64 vectors = (u64)bags.size.width / V;
    for (u64 t = thread_index(); t < bags.size.count * vectors; t += thread_count()) {
        u64 bag = t / vectors;
        i64 column = (i64)(t % vectors) * V;
        u64 begin, end;
        bags.places(bag, begin, end);
        T sums[V] = {};
        u64 count = 0;
        for (u64 place = begin; place < end; ++place) {
            i64 row = bags.row(place);
            if (row < 0) {
                continue;
            }
            T weight = bags.weight(place);
            ++count;
            if (weight == 0) {
                continue;
            }
            Pack<S, V> element = load<V>(table + row * from.row + column * from.column, true);
#pragma unroll
            for (int v = 0; v < V; ++v) {
                sums[v] = add_rounded(sums[v], mul_rounded((T)element.at[v], weight));
            }
        }
        T divisor = (T)(count > 0 ? count : 1);
        if (members && column == 0) {
            members[(i64)bag * bags.size.member_step] = divisor;
        }
        Pack<S, V> result;
#pragma unroll
        for (int v = 0; v < V; ++v) {
            result.at[v] = members ? sums[v] / divisor : sums[v];
        }
        store<V>(out + (i64)bag * to.row + column * to.column, result);
    }
}

#define SUM(name, V)                                                                                                       \
    extern "C" __global__ void NAMED(name, DTYPE)(S * out, T * members, const S* table, BAGS, const S* weights,            \
                                                  const __grid_constant__ BagSizes size, const __grid_constant__ Steps to, \
                                                  const __grid_constant__ Steps from, Fault fault) {                       \
        sum<V>(out, members, table, Bags{indices, offsets, weights, size, fault}, to, from);                               \
    }
SUM(embedding_bag, 1)
SUM(embedding_bag_vector, 16 / sizeof(S))

// out[indices[j]] = sum of w[j] / members[i] g[i], in ascending order of j. A block owns so many rows of the table, and works on
// `width` columns at a time, a power of two up to THREADS; it goes through the indices once for each of its columns, a tile at a
// time, and all its threads follow the hits in their order. Each element of `out` is one thread's, which begins with 0.
extern "C" __global__ void __launch_bounds__(THREADS) NAMED(embedding_bag_grad, DTYPE)(
    S* out, const S* g, const T* members, BAGS, const S* weights, const __grid_constant__ BagSizes size,
    u64 owned, u32 width, const __grid_constant__ Steps to, const __grid_constant__ Steps from, Fault fault) {
    Bags bags{indices, offsets, weights, size, fault};
    __shared__ u32 rows[THREADS];
    __shared__ i64 bag_at[THREADS];
    __shared__ T factors[THREADS];
    u32 groups = THREADS / width, group = threadIdx.x / width;
    i64 first = (i64)(blockIdx.x * owned);
    u64 left = (u64)(size.rows - first);
    u32 mine = (u32)(left < owned ? left : owned);
    for (u64 start = (u64)blockIdx.y * width; start < (u64)size.width; start += (u64)gridDim.y * width) {
        i64 column = (i64)start + threadIdx.x % width;
        bool exists = column < size.width;
        S* block = out + first * to.row + column * to.column;
        Sums<S> sums(block, to.row, groups, group);
        for (u32 row = group; exists && row < mine; row += groups) {
            block[(i64)row * to.row] = T(0);
        }
        for (u64 tile = 0; tile < size.len; tile += THREADS) {
            u64 place = tile + threadIdx.x;
            i64 row = place < size.len ? bags.row(place) - first : -1;
            bool hit = row >= 0 && row < (i64)mine;
            T weight = hit ? bags.weight(place) : (T)0;
            hit = weight != 0;
            i64 bag = hit ? bags.bag_of(place) : 0;
            if (bag < 0) {
                raise(fault, (i64)place, 0);
                hit = false;
            }
            u32 owner = hit ? (u32)row & (groups - 1) : NONE;
            if (hit) {
                rows[threadIdx.x] = (u32)row;
                bag_at[threadIdx.x] = bag;
                factors[threadIdx.x] = members ? weight / members[bag * size.member_step] : weight;
            }
            follow_hits<T>(
                owner, groups, exists, [&](u32 at) -> T { return g[bag_at[at] * from.row + column * from.column]; },
                [&](u32 at, T value) { sums.take(rows[at], mul_rounded(value, factors[at])); });
        }
        sums.finish();
    }
}

// out[j] = sum of g[i, c] table[indices[j], c]; 0 for the padding. A warp has a place.
extern "C" __global__ void NAMED(embedding_bag_weights_grad, DTYPE)(
    S* out, const S* g, const S* table, BAGS, const __grid_constant__ BagSizes size, i64 to,
    const __grid_constant__ Steps own, const __grid_constant__ Steps from, Fault fault) {
    Bags bags{indices, offsets, nullptr, size, fault};
    u64 warp = thread_index() / LANES, warps = thread_count() / LANES;
    u32 lane = threadIdx.x % LANES;
    for (u64 place = warp; place < size.len; place += warps) {
        i64 row = bags.row(place), bag = bags.bag_of(place);
        if (bag < 0) {
            raise(fault, (i64)place, 0);
            row = -1;
        }
        T sum = 0;
        for (i64 c = lane; row >= 0 && c < size.width; c += LANES) {
            T slope = g[bag * own.row + c * own.column], element = table[row * from.row + c * from.column];
            sum = add(sum, mul(slope, element));
        }
        sum = join_lanes<Sum<T>>(sum, LANES);
        if (lane == 0) {
            out[(i64)place * to] = sum;
        }
    }
}
