// embedding_bag: sums and means over bags of table rows. An index out of range and an offset smaller than the previous one raise a fault and are
// skipped. Rows with weight 0 are not read. Every product and sum is rounded separately, in the CPU's order. Elements are stored as S, member
// counts as T.

struct BagSizes {
    u64 len;     // indices
    u64 count;   // bags
    i64 rows;    // of the table
    i64 width;   // elements of a row
    i64 padding; // a row to skip, or -1
    i64 index_step;
    i64 offset_step;
    i64 weight_step;
    i64 member_step;
};

struct Bags {
    const i64* indices;
    const i64* offsets;  // null if all bags have one size
    const S* weights;    // null if all are 1
    const BagSizes& size;
    Fault fault;

    __device__ u64 each() const { return size.len / size.count; }

    // Range of a bag's indices.
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

    // The bag of an index position: the last bag that begins at or before it; -1 if there is none.
    __device__ i64 bag_of(u64 place) const {
        if (!offsets) {
            return (i64)(place / each());
        }
        auto begins_later = [&](i64 bag) { return offsets[bag * size.offset_step] > (i64)place; };
        return first_of((i64)0, (i64)size.count, begins_later) - 1;
    }

    // The row at an index position; -1 if it is skipped.
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

// out[i] = sum of w[j] table[indices[j]], divided by the number of members if `members` is not null. A thread computes V columns of a bag.
template <int V> __device__ inline void sum(S* out, T* members, const S* table, const Bags& bags, Steps to, Steps from) {
    u64 vectors = (u64)bags.size.width / V;
    for (u64 t = thread_index(); t < bags.size.count * vectors; t += thread_count()) {
        u64 bag = t / vectors;
        i64 column = (i64)(t % vectors) * V;
        u64 begin, end;
        bags.places(bag, begin, end);
        Sums<V> sums = {};
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
            sums = pack_of<T, V>([&](int v) { return add_rounded(sums.at[v], mul_rounded((T)element.at[v], weight)); });
        }
        T divisor = (T)(count > 0 ? count : 1);
        if (members && column == 0) {
            members[(i64)bag * bags.size.member_step] = divisor;
        }
        auto result = pack_of<S, V>([&](int v) { return members ? sums.at[v] / divisor : sums.at[v]; });
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

// out[indices[j]] += w[j] / members[i] g[i]
struct BagSource {
    Entries entries;
    Bags bags;
    const S* from;
    const T* members;
    i64 step;  // stride between bags

    __device__ i64 place(i64, u32 entry) const { return entry; }
    template <int V> __device__ Sums<V> load(i64 place, i64 column) const {
        i64 bag = bags.bag_of((u64)place);
        T weight = bags.weight((u64)place);
        if (bag < 0) {
            raise(bags.fault, place, 0);
        }
        if (bag < 0 || weight == 0) {
            return nothing<V>();
        }
        Pack<S, V> pack = ::load<V>(from + bag * step + column, true);
        T factor = members ? weight / members[bag * bags.size.member_step] : weight;
        return pack_of<T, V>([&](int v) { return mul_rounded((T)pack.at[v], factor); });
    }
};

#define MEMBERS()                                                                                                         \
    const S *from, const i64 *index, const __grid_constant__ EntryCounts counts, const __grid_constant__ Walk<3> lines,   \
        const T *members, const i64 *offsets, const S *weights, const __grid_constant__ BagSizes size, i64 step, Fault fault
#define MEMBER_SOURCE() \
    (BagSource{Entries{index, counts, lines}, Bags{index, offsets, weights, size, fault}, from, members, step})
INDEXED_SUMS(embedding_bag_grad, 1, MEMBERS, MEMBER_SOURCE)

// out[j] = sum over c of g[i, c] table[indices[j], c]; 0 for padding. One warp per index.
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
