// Implicit GEMM convolution on tensor cores; patches are gathered while tiles are loaded:
//
//     forward          out[f, (n, place)] = sum of weight[f, (c, tap)] patches[(c, tap), (n, place)]
//     input grad       out[c, (n, pixel)] = sum of weight[(f, tap), c] patches[(f, tap), (n, pixel)] of the output gradient
//     tiled grad       out[(c, tap), (n, place)] = sum of weight[f, (c, tap)] results[f, (n, place)], if windows do not overlap
//     filter grad      out[f, (c, tap)] = sum of results[f, (n, place)] patches[(c, tap), (n, place)]
//
// A thread block computes a ROWS x COLUMNS tile. It loads DEPTH columns of both operands into shared memory, as rows of 64 bytes, while it
// multiplies the previous ones. A warp computes 32 x 32 elements.

enum Pass { FORWARD, INPUT_GRAD, TILES_GRAD, WEIGHT_GRAD };

enum : u32 { ROWS = 64, COLUMNS = 128, THREADS = 256, DEPTH = 4 * SIXTEENTH, PITCH = DEPTH + SIXTEENTH };
// Warps across a tile; elements of the left and right operand that a thread loads per step; distance of the columns that it loads.
enum : u32 { ACROSS = COLUMNS / 32, EACH_LEFT = ROWS * DEPTH / THREADS, EACH_RIGHT = COLUMNS * DEPTH / THREADS, APART = THREADS / DEPTH };
// Rows of a tile that are stored together.
enum : u32 { BAND = 32, BAND_PITCH = COLUMNS + 4 };
// Maximum of window elements that the padding mask covers.
enum : u32 { MOST_TAPS = 64 };

// Sizes; channels and filters per group.
struct Sizes {
    u32 images, groups, channels, filters;
    u32 each;  // steps of DEPTH per thread block, for filter gradients
    u32 relu;  // whether to apply a ReLU
};

// Start of a column of patches: address of its first element, and a mask of the window elements that are inside the image. A window element has
// the same offset from `base` in every column.
struct Stand {
    const S* base;
    u64 seen;
};
struct __align__(16) Tap {
    int offset;
    u32 low, high;  // bit of this window element in `Stand::seen`
    u32 pad;

    __device__ bool is_seen(const Stand& stand) const {
        return ((u32)stand.seen & low) | ((u32)(stand.seen >> 32) & high);
    }
};

// Mask along an axis: bit i is set if at + i dilation is in 0..size.
__device__ inline u64 seen_by(int at, u32 kernel, u32 dilation, u32 size) {
    u64 bits = 0;
    for (u32 i = 0; i < kernel; ++i) {
        bits |= (u64)((u32)at + i * dilation < size) << i;
    }
    return bits;
}
// Mask along an axis: bit i is set if window element i of one of `size` output positions lies on the pixel `at` (counted with padding).
__device__ inline u64 seeing(u32 at, u32 kernel, u32 dilation, u32 stride, u32 size) {
    u64 bits = 0;
    for (u32 i = 0; i < kernel && i * dilation <= at; ++i) {
        u32 ahead = at - i * dilation, place = ahead / stride;
        bits |= (u64)(place * stride == ahead && place < size) << i;
    }
    return bits;
}
// Mask of a window from the masks of its rows and columns.
__device__ inline u64 window_of(u64 rows, u64 columns, u32 kernel_w) {
    u64 bits = 0;
    for (u32 i = 0; rows != 0; ++i, rows >>= 1) {
        bits |= rows & 1 ? columns << i * kernel_w : 0;
    }
    return bits;
}

template <Pass PASS> struct Factors {
    const S* left;   // filters, or the output gradient
    const S* right;  // images, or the output gradient
    const Sizes& sizes;
    const Conv& conv;
    u32 group;

    // Whether no window reaches outside of the image; the launcher guarantees it for windows larger than the mask.
    __device__ bool sees_all() const { return conv.taps() > MOST_TAPS; }
    __device__ u32 filter() const { return sizes.channels * conv.taps(); }
    __device__ u32 rows() const {
        return PASS == INPUT_GRAD ? sizes.channels : PASS == TILES_GRAD ? filter() : sizes.filters;
    }
    // Positions of an image that columns of patches stand for.
    __device__ u32 size() const { return PASS == INPUT_GRAD ? conv.pixels() : conv.places(); }
    __device__ u32 points() const { return sizes.images * size(); }
    __device__ u32 taps() const {
        return PASS == INPUT_GRAD ? sizes.filters * conv.taps() : PASS == TILES_GRAD ? sizes.filters : filter();
    }
    __device__ u32 columns() const { return PASS == WEIGHT_GRAD ? taps() : points(); }
    __device__ u32 depth() const { return PASS == WEIGHT_GRAD ? points() : taps(); }

    __device__ Stand stand(u32 point, u32 end) const {
        if (point >= end) {
            return Stand{right, 0};
        }
        constexpr bool OF_RESULTS = PASS == INPUT_GRAD || PASS == TILES_GRAD;
        u32 image = point / size(), at = point % size();
        u64 plane = ((u64)image * sizes.groups + group) * (OF_RESULTS ? sizes.filters : sizes.channels);
        const S* from = right + plane * (OF_RESULTS ? conv.places() : conv.pixels());
        if constexpr (PASS == TILES_GRAD) {
            return Stand{from + at, 1};
        } else if constexpr (PASS == INPUT_GRAD) {
            u32 h = at / conv.width + conv.padding_h, w = at % conv.width + conv.padding_w;
            u64 rows = seeing(h, conv.kernel_h, conv.dilation_h, conv.stride_h, conv.rows);
            u64 columns = seeing(w, conv.kernel_w, conv.dilation_w, conv.stride_w, conv.columns);
            return Stand{from + (h / conv.stride_h * conv.columns + w / conv.stride_w),
                         window_of(rows, columns, conv.kernel_w)};
        } else {
            int h = (int)(at / conv.columns * conv.stride_h) - (int)conv.padding_h;
            int w = (int)(at % conv.columns * conv.stride_w) - (int)conv.padding_w;
            u64 rows = sees_all() ? 1 : seen_by(h, conv.kernel_h, conv.dilation_h, conv.height);
            u64 columns = sees_all() ? 1 : seen_by(w, conv.kernel_w, conv.dilation_w, conv.width);
            return Stand{from + ((i64)h * conv.width + w), window_of(rows, columns, conv.kernel_w)};
        }
    }

    __device__ Tap tap(u32 element, u32 end) const {
        if (element >= end) {
            return Tap{};
        }
        if constexpr (PASS == TILES_GRAD) {
            return Tap{(int)(element * conv.places()), 1, 0, 0};
        }
        u32 plane = element / conv.taps(), tap = element % conv.taps();
        u32 h = tap / conv.kernel_w * conv.dilation_h, w = tap % conv.kernel_w * conv.dilation_w;
        // For input gradients, offsets are negative: window element i belongs to an output position i steps earlier.
        int offset = PASS == INPUT_GRAD
                         ? (int)(plane * conv.places()) - (int)(h / conv.stride_h * conv.columns + w / conv.stride_w)
                         : (int)(plane * conv.pixels() + h * conv.width + w);
        tap = PASS != INPUT_GRAD && sees_all() ? 0 : tap;
        return Tap{offset, tap < 32 ? 1u << tap : 0, tap < 32 ? 0 : 1u << (tap - 32), 0};
    }

    // Address of column `at` of the left operand; rows are a constant distance apart.
    __device__ const S* column(u32 at) const {
        u64 first = (u64)group * sizes.filters;
        if constexpr (PASS == FORWARD) {
            return left + first * filter() + at;
        } else if constexpr (PASS == INPUT_GRAD) {
            return left + (first + at / conv.taps()) * filter() + at % conv.taps();
        } else if constexpr (PASS == TILES_GRAD) {
            return left + (first + at) * filter();
        } else {
            u64 of = (u64)(at / conv.places()) * sizes.groups * sizes.filters + first;
            return left + of * conv.places() + at % conv.places();
        }
    }
    __device__ u32 row_step() const {
        return PASS == FORWARD ? filter() : PASS == INPUT_GRAD ? conv.taps() : PASS == TILES_GRAD ? 1 : conv.places();
    }

    // Stores BAND rows of a tile from `first_row` on, coalesced. `first_column` is the tile's first column.
    template <class O>
    __device__ void write(O* out, const f32 (*band)[BAND_PITCH], const S* bias, u32 first_row, u32 first_column, u32 part) const {
        // Tiled gradient: a row of pixels consists of several rows of the GEMM result.
        u32 wide = PASS == TILES_GRAD ? conv.kernel_w : 1, across = COLUMNS * wide, lanes = min(across, (u32)THREADS);
        u32 step = PASS == TILES_GRAD ? conv.pixels() : PASS == WEIGHT_GRAD ? columns() : size();
        u32 channels = PASS == TILES_GRAD ? sizes.channels : rows();
        for (u32 at = threadIdx.x % lanes; at < across; at += lanes) {
            u32 own = at / wide, side = at % wide, column = first_column + own;
            if (column >= columns()) {
                break;
            }
            u32 matrix = PASS == WEIGHT_GRAD ? part : column / size(), place = PASS == WEIGHT_GRAD ? column : column % size();
            if constexpr (PASS == TILES_GRAD) {
                place = place / conv.columns * conv.kernel_h * conv.width + place % conv.columns * wide + side;
            }
            O* to = out + ((u64)matrix * sizes.groups + group) * channels * step + place;
            // A row of an output plane, or of a window's pixels.
            u32 line = first_row / wide + threadIdx.x / lanes, down = THREADS / lanes;
            u32 high = PASS == TILES_GRAD ? conv.kernel_h : 1, channel = line / high, within = line % high;
            for (u32 r = threadIdx.x / lanes * wide + side; r < BAND && first_row + r < rows(); r += down * wide) {
                f32 sum = bias ? band[r][own] + (f32)bias[group * channels + channel] : band[r][own];
                to[(u64)channel * step + within * conv.width] = sizes.relu && sum <= 0 ? 0 : sum;
                for (within += down; within >= high; within -= high) {
                    ++channel;
                }
            }
        }
    }
};

// Multiplies one step of DEPTH for a warp's 32 x 32 elements.
__device__ inline void multiply(f32 (&sums)[2][4][4], const S (*left)[PITCH], const S (*right)[PITCH]) {
    u32 lane = threadIdx.x % LANES;
    // Two at a time if registers suffice.
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
                add_product(sums[i][j], a[i], b0, b1);
            }
        }
    }
}

// blockIdx.x: tile across (and part of the sum for filter gradients: parts[part, group, f, (c, tap)]), blockIdx.y: tile down, blockIdx.z: group.
template <Pass PASS, class O> __device__ inline void implicit(O* out, const Factors<PASS>& factors, const S* bias) {
    __shared__ __align__(16) S tiles[2][ROWS + COLUMNS][PITCH];
    __shared__ Tap taps[PASS == WEIGHT_GRAD ? COLUMNS : 2 * DEPTH];
    const Sizes& sizes = factors.sizes;
    u32 rows = factors.rows(), columns = factors.columns(), depth = factors.depth();
    u32 tiles_across = (columns + COLUMNS - 1) / COLUMNS, part = blockIdx.x / tiles_across;
    u32 first_row = blockIdx.y * ROWS, first_column = blockIdx.x % tiles_across * COLUMNS;
    u32 steps = (depth + DEPTH - 1) / DEPTH, step = 0, last = steps;
    if constexpr (PASS == WEIGHT_GRAD) {
        step = part * sizes.each;
        last = min(steps, step + sizes.each);
    }

    // What a thread loads per step: a column or several elements of a row of the left operand, and neighbours in a row or a column of the right one.
    u32 own = threadIdx.x % DEPTH, line = threadIdx.x / DEPTH;
    u32 left_row = PASS == TILES_GRAD ? threadIdx.x % ROWS : line, left_column = PASS == TILES_GRAD ? threadIdx.x / ROWS : own;
    constexpr u32 DOWN = PASS == TILES_GRAD ? 0 : APART, RIGHT = PASS == TILES_GRAD ? THREADS / ROWS : 0;
    u32 right_row = threadIdx.x % COLUMNS, right_first = threadIdx.x / COLUMNS * EACH_RIGHT;
    u64 left_first = (u64)(first_row + left_row) * factors.row_step(), left_step = (u64)DOWN * factors.row_step();
    S left_held[EACH_LEFT];
    Pack<S, SIXTEENTH> right_held[EACH_RIGHT / SIXTEENTH];
    Stand stand = factors.stand(PASS == WEIGHT_GRAD ? 0 : first_column + right_row, columns);
    auto bring_taps = [&](u32 of) {
        if (PASS != WEIGHT_GRAD && threadIdx.x < DEPTH) {
            taps[of % 2 * DEPTH + threadIdx.x] = factors.tap(of * DEPTH + threadIdx.x, depth);
        }
    };
    // Rows and columns of the tile that exist.
    u32 high = min(rows - first_row, (u32)ROWS), wide = min(columns - first_column, (u32)COLUMNS);
    auto read = [&](u32 of) {
        u32 at = of * DEPTH + left_column;
        const S* from = factors.column(min(at, depth - 1)) + left_first;
#pragma unroll
        for (u32 i = 0; i < EACH_LEFT; ++i, from += left_step) {
            if (PASS == TILES_GRAD && i > 0) {
                from += (u64)RIGHT * factors.filter();
            }
            left_held[i] = at + i * RIGHT < depth && left_row + i * DOWN < high ? *from : S{};
        }
        if constexpr (PASS == WEIGHT_GRAD) {
            stand = factors.stand(of * DEPTH + own, depth);
        }
#pragma unroll
        for (u32 i = 0; i < EACH_RIGHT; ++i) {
            const Tap& tap = taps[PASS == WEIGHT_GRAD ? line + i * APART : of % 2 * DEPTH + right_first + i];
            right_held[i / SIXTEENTH].at[i % SIXTEENTH] = tap.is_seen(stand) ? stand.base[tap.offset] : S{};
        }
    };
    auto write = [&](u32 of) {
        S(*left)[PITCH] = tiles[of % 2], (*right)[PITCH] = left + ROWS;
#pragma unroll
        for (u32 i = 0; i < EACH_LEFT; ++i) {
            left[left_row + i * DOWN][left_column + i * RIGHT] = as_factor(left_held[i]);
        }
#pragma unroll
        for (u32 i = 0; i < EACH_RIGHT; ++i) {
            S& held = right_held[i / SIXTEENTH].at[i % SIXTEENTH];
            held = as_factor(held);
            if constexpr (PASS == WEIGHT_GRAD) {
                right[line + i * APART][own] = held;
            } else if (i % SIXTEENTH == SIXTEENTH - 1) {
                store(&right[right_row][right_first + i / SIXTEENTH * SIXTEENTH], right_held[i / SIXTEENTH]);
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
        if (warp_row < high && warp_column < wide) {
            multiply(sums, left + warp_row, left + ROWS + warp_column);
        }
        if (step + 1 < last) {
            write(step + 1);
        }
    }

    f32(*band)[BAND_PITCH] = (f32(*)[BAND_PITCH])tiles;
    for (u32 top = 0; top < ROWS && first_row + top < rows; top += BAND) {
        __syncthreads();
        if (warp_row == top) {
#pragma unroll
            for (u32 k = 0; k < 32; ++k) {
                u32 row = k / 8 * 8 + lane / 4, column = warp_column + k / 2 % 4 * 8 + lane % 4 * 2 + k % 2;
                band[row][column] = sums[k / 16][k / 2 % 4][k / 8 % 2 * 2 + k % 2];
            }
        }
        __syncthreads();
        factors.write(out, band, bias, first_row + top, first_column, part);
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
IMPLICIT(implicit_tiles_grad, TILES_GRAD, S)
IMPLICIT(implicit_weight_grad, WEIGHT_GRAD, T)
