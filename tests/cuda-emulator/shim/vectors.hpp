// float2, int4 and so on, with the alignment that they have on the device.
#pragma once

#define EMULATOR_VECTOR(T, name, a1, a2, a4)                                                                \
    struct alignas(a1) name##1 { T x; };                                                                    \
    struct alignas(a2) name##2 { T x, y; };                                                                 \
    struct alignas(a4) name##4 { T x, y, z, w; };                                                           \
    inline name##1 make_##name##1(T x) { return {x}; }                                                      \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                              \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

EMULATOR_VECTOR(signed char, char, 1, 2, 4)
EMULATOR_VECTOR(unsigned char, uchar, 1, 2, 4)
EMULATOR_VECTOR(short, short, 2, 4, 8)
EMULATOR_VECTOR(unsigned short, ushort, 2, 4, 8)
EMULATOR_VECTOR(int, int, 4, 8, 16)
EMULATOR_VECTOR(unsigned, uint, 4, 8, 16)
EMULATOR_VECTOR(long, long, 8, 16, 16)
EMULATOR_VECTOR(unsigned long, ulong, 8, 16, 16)
EMULATOR_VECTOR(long long, longlong, 8, 16, 16)
EMULATOR_VECTOR(unsigned long long, ulonglong, 8, 16, 16)
EMULATOR_VECTOR(float, float, 4, 8, 16)
EMULATOR_VECTOR(double, double, 8, 16, 16)
#undef EMULATOR_VECTOR

// threadIdx is a uint3.
typedef EmulatorIndex uint3;
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

#define EMULATOR_TRIPLE(T, name)                                            \
    struct name##3 { T x, y, z; };                                          \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }

EMULATOR_TRIPLE(signed char, char)
EMULATOR_TRIPLE(unsigned char, uchar)
EMULATOR_TRIPLE(short, short)
EMULATOR_TRIPLE(unsigned short, ushort)
EMULATOR_TRIPLE(int, int)
EMULATOR_TRIPLE(long, long)
EMULATOR_TRIPLE(unsigned long, ulong)
EMULATOR_TRIPLE(long long, longlong)
EMULATOR_TRIPLE(unsigned long long, ulonglong)
EMULATOR_TRIPLE(float, float)
EMULATOR_TRIPLE(double, double)
#undef EMULATOR_TRIPLE
