// Reductions of a fused elementwise chain. `chain.at<V>(i)` computes the results of the V elements at offset i and writes the chain's other
// outputs; it is called once for each element.

template <class Group, class What, class O, class Chain>
__device__ inline void reduce_chain(const Chain& chain, O* out, typename What::Fold::State* states, const Walk<1>& kept,
                                    const Walk<1>& reduced, const Units& cut, u32 lanes, f64 divisor) {
    using Fold = typename What::Fold;
    u64 all = reduced.elements;
    Reduced place = {reduced};
    fold_units<Group, Fold>(
        kept.elements, all, cut, lanes, states,
        [&](u64 row, const BlockLane& block) {
            i64 start = offsets(kept, row).at[0];
            Held<S> held = {};
#pragma unroll
            for (int k = 0; k < PACKS; ++k) {
                if (k * PACK >= block.count) {
                    break;
                }
                Pack<S, PACK> pack;
                bool whole = reduced.vector != 0 && k * PACK + PACK <= block.count;
                if (whole) {
                    pack = chain.template at<PACK>(start + place(block.at(k * PACK)));
                }
#pragma unroll
                for (int v = 0; v < PACK; ++v) {
                    bool exists = k * PACK + v < block.count;
                    if (exists && !whole) {
                        pack.at[v] = chain.template at<1>(start + place(block.at(k * PACK + v))).at[0];
                    }
                    held[k * PACK + v] = exists ? pack.at[v] : stored(What::none());
                }
            }
            return What::of(block, held);
        },
        [&](u64 row, typename Fold::State state) { out[row] = What::value(state, all, divisor); });
}
