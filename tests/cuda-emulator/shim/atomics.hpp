// Atomics, for the types for which the device has them. One thread runs at a time, but host threads may look at mapped
// memory meanwhile.
#pragma once

template <class T> inline T emulator_load(T* at) {
    T value;
    __atomic_load(at, &value, __ATOMIC_SEQ_CST);
    return value;
}
template <class T> inline T emulator_store(T* at, T value, T old) {
    __atomic_store(at, &value, __ATOMIC_SEQ_CST);
    return old;
}

#define EMULATOR_ATOMIC(name, T, expression)                                                    \
    inline T name(T* at, T value) {                                                             \
        T old = emulator_load(at);                                                              \
        return emulator_store<T>(at, (T)(expression), old);                                      \
    }                                                                                           \
    inline T name##_block(T* at, T value) { return name(at, value); }                           \
    inline T name##_system(T* at, T value) { return name(at, value); }

#define EMULATOR_FOR_INTEGERS(name, expression)                 \
    EMULATOR_ATOMIC(name, int, expression)                      \
    EMULATOR_ATOMIC(name, unsigned, expression)                 \
    EMULATOR_ATOMIC(name, unsigned long long, expression)

EMULATOR_FOR_INTEGERS(atomicAdd, (unsigned long long)(old) + (unsigned long long)(value))
EMULATOR_ATOMIC(atomicAdd, float, old + value)
EMULATOR_ATOMIC(atomicAdd, double, old + value)
EMULATOR_ATOMIC(atomicSub, int, (unsigned)(old) - (unsigned)(value))
EMULATOR_ATOMIC(atomicSub, unsigned, old - value)
EMULATOR_FOR_INTEGERS(atomicExch, value)
EMULATOR_ATOMIC(atomicExch, float, value)
EMULATOR_FOR_INTEGERS(atomicMin, value < old ? value : old)
EMULATOR_ATOMIC(atomicMin, long long, value < old ? value : old)
EMULATOR_FOR_INTEGERS(atomicMax, value > old ? value : old)
EMULATOR_ATOMIC(atomicMax, long long, value > old ? value : old)
EMULATOR_FOR_INTEGERS(atomicAnd, old & value)
EMULATOR_FOR_INTEGERS(atomicOr, old | value)
EMULATOR_FOR_INTEGERS(atomicXor, old ^ value)
EMULATOR_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
EMULATOR_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)
#undef EMULATOR_FOR_INTEGERS
#undef EMULATOR_ATOMIC

#define EMULATOR_CAS(T)                                                                                             \
    inline T atomicCAS(T* at, T compare, T value) {                                                                 \
        __atomic_compare_exchange_n(at, &compare, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                \
        return compare;                                                                                             \
    }                                                                                                               \
    inline T atomicCAS_block(T* at, T compare, T value) { return atomicCAS(at, compare, value); }                   \
    inline T atomicCAS_system(T* at, T compare, T value) { return atomicCAS(at, compare, value); }
EMULATOR_CAS(int)
EMULATOR_CAS(unsigned)
EMULATOR_CAS(unsigned long long)
EMULATOR_CAS(unsigned short)
#undef EMULATOR_CAS
