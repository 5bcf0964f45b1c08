// Convolutions as products of matrices on tensor cores, whose patches are not stored:
//
//     forward          out[f, (n, place)] = sum of weight[f, (c, tap)] patches[(c, tap), (n, place)]
//     images' grad     out[c, (n, pixel)] = sum of weight[(f, tap), c] patches[(f, tap), (n, pixel)] of the results' gradient
//     filters' grad    out[f, (c, tap)]   = sum of results[f, (n, place)] patches[(c, tap), (n, place)]
//
// A block makes a tile of the product. Of both factors it takes DEPTH columns at a time to shared memory, as rows of 64 bytes, while
// it multiplies those before; a warp makes 32 x 32 elements.

enum Pass { FORWARD, INPUT_GRAD, WEIGHT_GRAD };

enum : u32 { ROWS = 64, COLUMNS = 128, THREADS = 256, DEPTH = 4 * SIXTEENTH, PITCH = DEPTH + SIXTEENTH };
// Warps across a tile; how many elements of the factors are a thread's, and how far apart those are of which it has one column.
enum : u32 { ACROSS = COLUMNS / 32, EACH_LEFT = ROWS * DEPTH / THREADS, EACH_RIGHT = COLUMNS * DEPTH / THREADS, APART = THREADS / DEPTH };

// In numbers; channels and filters are those of a group.
struct Sizes {
    u32 images, groups, channels, filters;
    u32 each;  // steps of DEPTH that a block adds up, for filters' gradients
    u32 pad;
};

// Where a window stands, or where a pixel lies, and what an element of all filters' windows adds to that. What does not exist is FAR
// outside of every plane.
enum : int { FAR = -(1 << 30) };
struct Stand {
    const S* plane;
    int h, w;
};
struct Tap {
    int plane, h, w;
};

template <Pass PASS> struct Factors {
    const S* left;   // filters, or the results' gradient
    const S* right;  // images, or the results' gradient
    const Sizes& sizes;
    const Conv& conv;
    u32 group;

    __device__ u32 rows() const { return PASS == INPUT_GRAD ? sizes.channels : sizes.filters; }
    __device__ u32 points() const { return sizes.images * (PASS == INPUT_GRAD ? conv.pixels() : conv.places()); }
    __device__ u32 taps() const { return (PASS == INPUT_GRAD ? sizes.filters : sizes.channels) * conv.taps(); }
    __device__ u32 columns() const { return PASS == WEIGHT_GRAD ? taps() : points(); }
    __device__ u32 depth() const { return PASS == WEIGHT_GRAD ? points() : taps(); }

    __device__ Stand stand(u32 point, u32 end) const {
        if (point >= end) {
            return Stand{right, FAR, FAR};
        }
        u32 size = PASS == INPUT_GRAD ? conv.pixels() : conv.places(), wide = PASS == INPUT_GRAD ? conv.width : conv.columns;
        u32 image = point / size, h = point % size / wide, w = point % size % wide;
        u64 plane = ((u64)image * sizes.groups + group) * (PASS == INPUT_GRAD ? sizes.filters : sizes.channels);
        const S* from = right + plane * (PASS == INPUT_GRAD ? conv.places() : conv.pixels());
        return PASS == INPUT_GRAD ? Stand{from, (int)(h + conv.padding_h), (int)(w + conv.padding_w)}
                                  : Stand{from, (int)(h * conv.stride_h) - (int)conv.padding_h,
                                          (int)(w * conv.stride_w) - (int)conv.padding_w};
    }

    __device__ Tap tap(u32 element, u32 end) const {
        if (element >= end) {
            return Tap{0, FAR, FAR};
        }
        u32 plane = element / conv.taps(), tap = element % conv.taps();
        int h = (int)(tap / conv.kernel_w * conv.dilation_h), w = (int)(tap % conv.kernel_w * conv.dilation_w);
        return PASS == INPUT_GRAD ? Tap{(int)(plane * conv.places()), -h, -w} : Tap{(int)(plane * conv.pixels()), h, w};
    }

    __device__ S patch(const Stand& stand, const Tap& tap) const {
        int h = stand.h + tap.h, w = stand.w + tap.w;
        u32 high = conv.height, wide = conv.width;
        if constexpr (PASS == INPUT_GRAD) {
            high = conv.rows, wide = conv.columns;
            if (conv.stride_h > 1 || conv.stride_w > 1) {
                u32 y = (u32)h / conv.stride_h, x = (u32)w / conv.stride_w;
                h = h >= 0 && y * conv.stride_h == (u32)h ? (int)y : FAR;
                w = w >= 0 && x * conv.stride_w == (u32)w ? (int)x : FAR;
            }
        }
        bool inside = (u32)h < high && (u32)w < wide;
        return inside ? stand.plane[tap.plane + h * (int)wide + w] : S{};
    }

    // Where column `at` of the left factor begins, and from there to the next row.
    __device__ const S* column(u32 at) const {
        u64 first = (u64)group * sizes.filters;
        if constexpr (PASS == FORWARD) {
            return left + first * taps() + at;
        } else if constexpr (PASS == INPUT_GRAD) {
            return left + (first + at / conv.taps()) * sizes.channels * conv.taps() + at % conv.taps();
        } else {
            u64 filter = (u64)(at / conv.places()) * sizes.groups * sizes.filters + first;
            return left + filter * conv.places() + at % conv.places();
        }
    }
    __device__ u32 row_step() const { return PASS == FORWARD ? taps() : PASS == INPUT_GRAD ? conv.taps() : conv.places(); }
};

// Adds the products of two rows of 64 bytes each, of a warp's rows and columns.
__device__ inline void multiply(f32 (&sums)[2][4][4], const S (*left)[PITCH], const S (*right)[PITCH]) {
    u32 lane = threadIdx.x % LANES;
    // Two at a time where registers do for that.
#pragma unroll(IS_SAME<S, f32> ? 1 : 2)
    for (u32 at = 0; at < DEPTH; at += STEP) {
        u32 a[2][4], b[2][4];
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            load_matrices(a[i], shared_of(&left[i * 16 + lane % 16][at + lane / 16 * SIXTEENTH]));
            load_matrices(b[i], shared_of(&right[i * 16 + lane % 8 + lane / 16 * 8][at + lane / 8 % 2 * SIXTEENTH]));
        }
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                u32 b0 = b[j / 2][j % 2 * 2], b1 = b[j / 2][j % 2 * 2 + 1];
                if constexpr (IS_SAME<S, f32>) {
                    // Tensor cores cut off what does not fit: long sums are added here, rounded.
                    f32 made[4] = {};
                    multiply_add(made, a[i], b0, b1);
#pragma unroll
                    for (u32 k = 0; k < 4; ++k) {
                        sums[i][j][k] += made[k];
                    }
                } else {
                    multiply_add(sums[i][j], a[i], b0, b1);
                }
            }
        }
    }
}

// Blocks x are tiles across, for filters' gradients of one part of the sums after the other: parts[part, group, f, (c, tap)].
// Blocks y are tiles down, blocks z are groups.
template <Pass PASS, class O> __device__ inline void implicit(O* out, const Factors<PASS>& factors, const S* bias) {
    __shared__ __align__(16) S tiles[2][ROWS + COLUMNS][PITCH];
    __shared__ Tap taps[PASS == WEIGHT_GRAD ? COLUMNS : 2 * DEPTH];
    const Conv& conv = factors.conv;
    const Sizes& sizes = factors.sizes;
    u32 rows = factors.rows(), columns = factors.columns(), depth = factors.depth();
    u32 tiles_across = (columns + COLUMNS - 1) / COLUMNS, part = blockIdx.x / tiles_across;
    u32 first_row = blockIdx.y * ROWS, first_column = blockIdx.x % tiles_across * COLUMNS;
    u32 steps = (depth + DEPTH - 1) / DEPTH, step = 0, last = steps;
    if constexpr (PASS == WEIGHT_GRAD) {
        step = part * sizes.each;
        last = min(steps, step + sizes.each);
    }

    // What the thread brings of a step: of the left factor a column; of the right one neighbours in a row, or a column.
    u32 own = threadIdx.x % DEPTH, line = threadIdx.x / DEPTH;
    u32 right_row = threadIdx.x % COLUMNS, right_first = threadIdx.x / COLUMNS * EACH_RIGHT;
    S left_held[EACH_LEFT];
    Pack<S, SIXTEENTH> right_held[EACH_RIGHT / SIXTEENTH];
    Stand stand = factors.stand(PASS == WEIGHT_GRAD ? 0 : first_column + right_row, columns);
    auto bring_taps = [&](u32 of) {
        if (PASS != WEIGHT_GRAD && threadIdx.x < DEPTH) {
            taps[of % 2 * DEPTH + threadIdx.x] = factors.tap(of * DEPTH + threadIdx.x, depth);
        }
    };
    auto read = [&](u32 of) {
        u32 at = of * DEPTH + own;
        const S* column = factors.column(min(at, depth - 1));
#pragma unroll
        for (u32 i = 0; i < EACH_LEFT; ++i) {
            u32 row = first_row + line + i * APART;
            left_held[i] = at < depth && row < rows ? column[(u64)row * factors.row_step()] : S{};
        }
        if constexpr (PASS == WEIGHT_GRAD) {
            stand = factors.stand(at, depth);
        }
#pragma unroll
        for (u32 i = 0; i < EACH_RIGHT; ++i) {
            u32 tap = PASS == WEIGHT_GRAD ? line + i * APART : of % 2 * DEPTH + right_first + i;
            right_held[i / SIXTEENTH].at[i % SIXTEENTH] = factors.patch(stand, taps[tap]);
        }
    };
    auto write = [&](u32 of) {
        S(*left)[PITCH] = tiles[of % 2], (*right)[PITCH] = left + ROWS;
#pragma unroll
        for (u32 i = 0; i < EACH_LEFT; ++i) {
            left[line + i * APART][own] = left_held[i];
        }
#pragma unroll
        for (u32 i = 0; i < EACH_RIGHT; ++i) {
            if constexpr (PASS == WEIGHT_GRAD) {
                right[line + i * APART][own] = right_held[i / SIXTEENTH].at[i % SIXTEENTH];
            } else if (i % SIXTEENTH == 0) {
                store(&right[right_row][right_first + i], right_held[i / SIXTEENTH]);
            }
        }
    };

    u32 warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    u32 warp_row = warp / ACROSS * 32, warp_column = warp % ACROSS * 32;
    f32 sums[2][4][4] = {};
    if constexpr (PASS == WEIGHT_GRAD) {
        if (threadIdx.x < COLUMNS) {
            taps[threadIdx.x] = factors.tap(first_column + threadIdx.x, columns);
        }
    }
    bring_taps(step);
    __syncthreads();
    read(step);
    write(step);
    bring_taps(step + 1);
    for (; step < last; ++step) {
        __syncthreads();
        if (step + 1 < last) {
            read(step + 1);
            bring_taps(step + 2);
        }
        const S(*left)[PITCH] = tiles[step % 2];
        multiply(sums, left + warp_row, left + ROWS + warp_column);
        if (step + 1 < last) {
            write(step + 1);
        }
    }

#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
        u32 column = first_column + warp_column + j / 2 * 8 + lane % 4 * 2 + j % 2;
        u32 size = PASS == INPUT_GRAD ? conv.pixels() : conv.places();
        u64 matrix = PASS == WEIGHT_GRAD ? part : column / size;
        u64 at = (matrix * sizes.groups + factors.group) * rows;
        u32 wide = PASS == WEIGHT_GRAD ? columns : size, rest = PASS == WEIGHT_GRAD ? column : column % size;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            u32 row = first_row + warp_row + i * 8 + lane / 4;
            if (row < rows && column < columns) {
                f32 sum = sums[i / 2][j / 2][i % 2 * 2 + j % 2];
                out[(at + row) * wide + rest] = bias ? sum + (f32)bias[factors.group * rows + row] : sum;
            }
        }
    }
}

#define IMPLICIT(NAME, PASS, O)                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) NAMED(NAME, DTYPE)(                                         \
        O * out, const S* left, const S* right, const S* bias, const __grid_constant__ Sizes sizes,                      \
        const __grid_constant__ Conv conv) {                                                                             \
        implicit(out, Factors<PASS>{left, right, sizes, conv, blockIdx.z}, bias);                                        \
    }
IMPLICIT(implicit, FORWARD, S)
IMPLICIT(implicit_input_grad, INPUT_GRAD, S)
IMPLICIT(implicit_weight_grad, WEIGHT_GRAD, T)
