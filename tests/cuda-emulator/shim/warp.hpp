// Shuffles, votes and matches of a warp.
#pragma once

constexpr unsigned EMULATOR_FULL = 0xFFFFFFFFu;

inline void __syncwarp(unsigned mask = EMULATOR_FULL) { emulator_state.runtime->exchange(mask, 0, emulator_state.runtime->lane()); }

template <class T> inline T emulator_shuffle(unsigned mask, T value, unsigned source) {
    static_assert(sizeof(T) <= 8, "shuffles move at most eight bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    bits = emulator_state.runtime->exchange(mask, bits, source);
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

// The lane to read from; one outside of the segment means the own.
inline unsigned emulator_segment(int width) { return emulator_state.runtime->lane() & ~unsigned(width - 1); }
inline unsigned emulator_within(long long source, long long first, long long end) {
    return source >= first && source < end ? unsigned(source) : emulator_state.runtime->lane();
}

#define EMULATOR_SHUFFLES(T)                                                                                              \
    inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {                                            \
        return emulator_shuffle(mask, value, emulator_segment(width) | (unsigned(source) & unsigned(width - 1)));         \
    }                                                                                                                     \
    inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {                                     \
        long long lane = emulator_state.runtime->lane(), first = emulator_segment(width);                                 \
        return emulator_shuffle(mask, value, emulator_within(lane - delta, first, first + width));                        \
    }                                                                                                                     \
    inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {                                   \
        long long lane = emulator_state.runtime->lane(), first = emulator_segment(width);                                 \
        return emulator_shuffle(mask, value, emulator_within(lane + delta, first, first + width));                        \
    }                                                                                                                     \
    inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {                                          \
        long long lane = emulator_state.runtime->lane(), first = emulator_segment(width);                                 \
        return emulator_shuffle(mask, value, emulator_within(lane ^ bits, 0, first + width));                             \
    }
EMULATOR_SHUFFLES(int)
EMULATOR_SHUFFLES(unsigned)
EMULATOR_SHUFFLES(long)
EMULATOR_SHUFFLES(unsigned long)
EMULATOR_SHUFFLES(long long)
EMULATOR_SHUFFLES(unsigned long long)
EMULATOR_SHUFFLES(float)
EMULATOR_SHUFFLES(double)

inline unsigned __ballot_sync(unsigned mask, int predicate) { return emulator_state.runtime->ballot(mask, predicate); }
inline int __any_sync(unsigned mask, int predicate) { return emulator_state.runtime->ballot(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return emulator_state.runtime->ballot(mask, !predicate) == 0; }
// The hardware promises no more than that the caller is active, and so does this.
inline unsigned __activemask() { return 1u << emulator_state.runtime->lane(); }

#define EMULATOR_MATCH(T)                                                                                            \
    inline unsigned __match_any_sync(unsigned mask, T value) {                                                       \
        unsigned long long bits = 0;                                                                                 \
        __builtin_memcpy(&bits, &value, sizeof value);                                                               \
        return emulator_state.runtime->match(mask, bits);                                                            \
    }                                                                                                                \
    inline unsigned __match_all_sync(unsigned mask, T value, int* all) {                                             \
        unsigned same = __match_any_sync(mask, value), present = __ballot_sync(mask, 1);                             \
        *all = __all_sync(mask, same == present);                                                                    \
        return *all ? present : 0;                                                                                   \
    }
EMULATOR_MATCH(int)
EMULATOR_MATCH(unsigned)
EMULATOR_MATCH(long long)
EMULATOR_MATCH(unsigned long long)
EMULATOR_MATCH(float)
EMULATOR_MATCH(double)
#undef EMULATOR_MATCH

#define EMULATOR_REDUCE(name, T, expression)                                              \
    inline T name(unsigned mask, T value) {                                               \
        unsigned present = __ballot_sync(mask, 1);                                        \
        T result = 0;                                                                     \
        bool first = true;                                                                \
        for (unsigned lane = 0; lane < 32; lane++) {                                      \
            if (!(present >> lane & 1)) continue;                                         \
            T other = emulator_shuffle(mask, value, lane);                                \
            result = first ? other : (T)(expression);                                     \
            first = false;                                                                \
        }                                                                                 \
        return result;                                                                    \
    }
EMULATOR_REDUCE(__reduce_add_sync, unsigned, result + other)
EMULATOR_REDUCE(__reduce_add_sync, int, unsigned(result) + unsigned(other))
EMULATOR_REDUCE(__reduce_min_sync, unsigned, other < result ? other : result)
EMULATOR_REDUCE(__reduce_min_sync, int, other < result ? other : result)
EMULATOR_REDUCE(__reduce_max_sync, unsigned, other > result ? other : result)
EMULATOR_REDUCE(__reduce_max_sync, int, other > result ? other : result)
EMULATOR_REDUCE(__reduce_and_sync, unsigned, result & other)
EMULATOR_REDUCE(__reduce_or_sync, unsigned, result | other)
EMULATOR_REDUCE(__reduce_xor_sync, unsigned, result ^ other)
#undef EMULATOR_REDUCE
