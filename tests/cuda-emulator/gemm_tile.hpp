// The innermost part of a product. Compiled for the plain machine and for one with fused multiplication and addition.
#pragma once

constexpr long long ROWS = 16, COLUMNS = 4; // of a tile that stays in registers

// sums[column][row] = the sum over k of a[k][row] * b[k][column], in the order of k.
struct Tile {
    void (*f32)(const float* a, const float* b, long long k, float* sums);
    void (*f64)(const double* a, const double* b, long long k, double* sums);
};
extern const Tile PLAIN_TILE, FUSED_TILE;

namespace {

template <class T> struct Wide;
template <> struct Wide<float> { typedef float type __attribute__((vector_size(32))); };
template <> struct Wide<double> { typedef double type __attribute__((vector_size(32))); };

template <class T> void multiply_tile(const T* a, const T* b, long long k, T* sums) {
    typedef typename Wide<T>::type V;
    constexpr int LANES = sizeof(V) / sizeof(T), WIDE = ROWS / LANES;
    V held[COLUMNS][WIDE] = {};
    for (long long step = 0; step < k; step++, a += ROWS, b += COLUMNS)
        for (int column = 0; column < COLUMNS; column++)
            for (int part = 0; part < WIDE; part++) {
                V left;
                __builtin_memcpy(&left, a + part * LANES, sizeof left);
                held[column][part] += left * b[column];
            }
    __builtin_memcpy(sums, held, sizeof held);
}

} // namespace
