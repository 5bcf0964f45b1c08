// Convolutions as GEMMs on tensor cores, channels last. A tile of output positions shares its input pixels in shared memory:
//
//     forward, dgrad   out[place, f] = sum of weight[f, tap, c] x[place stride + tap dilation, c]
//     wgrad            out[f, tap, c] = sum of g[place, f] x[place stride + tap dilation, c]
//
// A thread block loads the input pixels of a tile once; each tap is then an operand at another offset. The input gradient is the same sum over
// output gradients with the taps in reverse order.

enum : u32 { FILTERS = 64 };  // per tile
// Output positions per tile (one per thread), channels per step, and pitch of rows in shared memory in elements.
enum : u32 { PLACES = 256, CHANNELS = 4 * SIXTEENTH, PITCH = CHANNELS + SIXTEENTH };
// The same for filter gradients. TAPS: window elements of a row that a thread block computes.
enum : u32 { GRAD_PLACES = 128, GRAD_CHANNELS = 64, WIDE_PITCH = 64 + 8, TAPS = 3 };
enum : u32 { BAND_PITCH = FILTERS + 4 };

// Parameters; all numbers are below 2^29. `channels` belong to the input, `filters` to the output.
struct Slide {
    u32 images, channels, filters;
    u32 height, width;  // of the input
    u32 rows, columns;  // of the output
    u32 kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w;
    int first_h, first_w;         // input position of the first window
    u32 tile_log, across, down;   // log2 of a tile's columns, and tiles per plane
    u32 seen_rows, seen_columns;  // input pixels of a tile
    u32 each;                     // tiles per thread block, for filter gradients
    u32 relu;                     // whether to apply a ReLU

    __device__ u32 taps() const { return kernel_h * kernel_w; }
    __device__ u32 seen() const { return seen_rows * seen_columns; }
    // Index in the tile's input pixels of the first pixel of a window.
    __device__ u32 begin(u32 place) const {
        return (place >> tile_log) * stride_h * seen_columns + (place & (1u << tile_log) - 1) * stride_w;
    }
};

// A tile of output positions of an image.
struct Tile {
    const Slide& slide;
    u32 image, row, column;

    __device__ Tile(const Slide& slide, u32 tile, u32 places) : slide(slide) {
        u32 all = slide.across * slide.down;
        image = tile / all;
        row = tile % all / slide.across * (places >> slide.tile_log);
        column = tile % slide.across << slide.tile_log;
    }
    // Offset of an output position; -1 behind the end.
    __device__ int place(u32 at) const {
        u32 y = row + (at >> slide.tile_log), x = column + (at & (1u << slide.tile_log) - 1);
        return y < slide.rows && x < slide.columns ? (int)((image * slide.rows + y) * slide.columns + x) : -1;
    }
    // Writes the offsets of the tile's input pixels, `top` rows further down; -1 in the padding.
    __device__ void see(int* pixels, u32 top) const {
        int first_h = slide.first_h + (int)(row * slide.stride_h + top), first_w = slide.first_w + (int)(column * slide.stride_w);
        for (u32 at = threadIdx.x; at < slide.seen(); at += blockDim.x) {
            u32 h = first_h + (int)(at / slide.seen_columns), w = first_w + (int)(at % slide.seen_columns);
            bool inside = h < slide.height && w < slide.width;
            pixels[at] = inside ? (int)((image * slide.height + h) * slide.width + w) : -1;
        }
    }
};

// Copies rows of SIXTEENTHS * 16 bytes to shared memory with a pitch of PITCH elements: the elements from `first` on of row `at(row)`, which has
// `wide` elements. Missing elements and rows with `at(row)` = -1 become zeros.
template <u32 SIXTEENTHS, u32 PITCH, class At>
__device__ inline void stage(S* to, const S* from, u32 wide, u32 first, u32 rows, At at) {
    u32 own = threadIdx.x % SIXTEENTHS * SIXTEENTH;
    for (u32 row = threadIdx.x / SIXTEENTHS; row < rows; row += blockDim.x / SIXTEENTHS) {
        int place = at(row);
        bool exists = place >= 0 && first + own < wide;
        copy_async<16>(shared_of(to + row * PITCH + own), exists ? from + ((u64)place * wide + first + own) : from, exists ? 16 : 0);
    }
}

// Rounds operands of tensor cores in place.
__device__ inline void round_factors(u32 (&words)[4]) {
#pragma unroll
    for (u32 i = 0; i < 4 && EACH_WORD == 1; ++i) {
        S word = as_factor(*(const S*)&words[i]);
        words[i] = *(const u32*)&word;
    }
}

// A left operand: eight words of 16 contiguous rows from `at` on.
__device__ inline void load_rows(u32 (&to)[4], Shared at) {
    load_matrices(to, at);
    round_factors(to);
}

// A left operand from 16 columns; `at(row)` is the address of a row.
template <class At> __device__ inline void load_columns(u32 (&to)[4], At at) {
    u32 lane = threadIdx.x % LANES;
    if constexpr (EACH_WORD == 2) {
        load_transposed(to, at(lane % 8 + lane / 16 * 8) + lane / 8 % 2 * 16);
    } else {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            to[i] = load_word(at(lane % 4 + i / 2 * 4) + (lane / 4 + i % 2 * 8) * 4);
        }
        round_factors(to);
    }
}

// blockIdx.x: tile of output positions, blockIdx.y: tile of filters. If REVERSE, weights are weight[c, tap, f].
template <bool REVERSE>
__device__ inline void sums_of(void* memory, S* out, const S* weight, const S* x, const S* bias, const Slide& slide) {
    constexpr u32 TAP = REVERSE ? CHANNELS * WIDE_PITCH : FILTERS * PITCH;
    u32 taps = slide.taps();
    S *image = (S*)memory, *filters = image + slide.seen() * PITCH;
    int* pixels = (int*)(filters + taps * TAP);
    Tile tile(slide, blockIdx.x, PLACES);
    u32 first = blockIdx.y * FILTERS, high = min(slide.filters - first, (u32)FILTERS);
    tile.see(pixels, 0);

    // A warp computes 32 filters by 64 positions.
    u32 warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, warp_row = warp % 2 * 32, warp_column = warp / 2 * 64;
    Shared begins[4];
#pragma unroll
    for (u32 n = 0; n < 4; ++n) {
        u32 place = warp_column + n * 16 + lane % 8 + lane / 16 * 8;
        begins[n] = shared_of(image + slide.begin(place) * PITCH + lane / 8 % 2 * SIXTEENTH);
    }
    f32 sums[2][8][4] = {};
    for (u32 channel = 0; channel < slide.channels; channel += CHANNELS) {
        u32 rest = slide.channels - channel;
        __syncthreads();
        stage<4, PITCH>(image, x, slide.channels, channel, slide.seen(), [&](u32 row) { return pixels[row]; });
        for (u32 tap = 0; tap < taps; ++tap) {
            S* to = filters + tap * TAP;
            if constexpr (REVERSE) {
                stage<FILTERS / SIXTEENTH, WIDE_PITCH>(to, weight, slide.filters, first, CHANNELS, [&](u32 row) {
                    return row < rest ? (int)((channel + row + 1) * taps - 1 - tap) : -1;
                });
            } else {
                stage<4, PITCH>(to, weight, slide.channels, channel, FILTERS,
                                [&](u32 row) { return row < high ? (int)((first + row) * taps + tap) : -1; });
            }
        }
        copies_arrive();
        __syncthreads();
        if (warp_row >= high) {
            continue;
        }
        for (u32 i = 0, tap = 0; i < slide.kernel_h; ++i) {
            for (u32 j = 0; j < slide.kernel_w; ++j, ++tap) {
                u32 ahead = (i * slide.dilation_h * slide.seen_columns + j * slide.dilation_w) * PITCH * sizeof(S);
                Shared own = shared_of(filters + tap * TAP);
#pragma unroll
                for (u32 at = 0; at < CHANNELS; at += STEP) {
                    if (at >= rest) {
                        break;
                    }
                    u32 a[2][4];
#pragma unroll
                    for (u32 m = 0; m < 2; ++m) {
                        if constexpr (REVERSE) {
                            load_columns(a[m], [&](u32 row) {
                                return own + ((at + row) * WIDE_PITCH + warp_row + m * 16) * sizeof(S);
                            });
                        } else {
                            u32 row = warp_row + m * 16 + lane % 16;
                            load_rows(a[m], own + (row * PITCH + at + lane / 16 * SIXTEENTH) * sizeof(S));
                        }
                    }
#pragma unroll
                    for (u32 n = 0; n < 4; ++n) {
                        u32 b[4];
                        load_rows(b, begins[n] + ahead + at * sizeof(S));
#pragma unroll
                        for (u32 m = 0; m < 2; ++m) {
                            add_product(sums[m][2 * n], a[m], b[0], b[1]);
                            add_product(sums[m][2 * n + 1], a[m], b[2], b[3]);
                        }
                    }
                }
            }
        }
    }

    // Each thread stores 16 bytes.
    f32(*band)[BAND_PITCH] = (f32(*)[BAND_PITCH])memory;
    __syncthreads();
#pragma unroll
    for (u32 k = 0; k < 64; ++k) {
        u32 row = warp_row + k / 32 * 16 + k / 2 % 2 * 8 + lane / 4;
        band[warp_column + k / 4 % 8 * 8 + lane % 4 * 2 + k % 2][row] = sums[k / 32][k / 4 % 8][k % 4];
    }
    __syncthreads();
    u32 own = threadIdx.x % (FILTERS / SIXTEENTH) * SIXTEENTH;
    for (u32 at = threadIdx.x / (FILTERS / SIXTEENTH); at < PLACES && own < high; at += PLACES / (FILTERS / SIXTEENTH)) {
        int place = tile.place(at);
        if (place < 0) {
            continue;
        }
        Pack<S, SIXTEENTH> made;
#pragma unroll
        for (u32 i = 0; i < SIXTEENTH; ++i) {
            f32 sum = band[at][own + i] + (bias ? (f32)bias[first + own + i] : 0);
            made.at[i] = slide.relu && sum <= 0 ? 0 : sum;
        }
        store(out + (u64)place * slide.filters + first + own, made);
    }
}

#define HALO(NAME, REVERSE)                                                                                             \
    extern "C" __global__ void __launch_bounds__(PLACES, 2) NAMED(NAME, DTYPE)(                                         \
        S * out, const S* weight, const S* x, const S* bias, const __grid_constant__ Slide slide) {                     \
        extern __shared__ __align__(16) unsigned char memory[];                                                         \
        sums_of<REVERSE>(memory, out, weight, x, bias, slide);                                                          \
    }
HALO(halo, false)
HALO(halo_input_grad, true)

// blockIdx.x: part of the sum and tile of channels, for parts[part, f, tap, c]. blockIdx.y: group of taps and tile of filters.
extern "C" __global__ void __launch_bounds__(GRAD_PLACES, 3)
    NAMED(halo_weight_grad, DTYPE)(T* out, const S* g, const S* x, const S*, const __grid_constant__ Slide slide) {
    extern __shared__ __align__(16) unsigned char memory[];
    S *results = (S*)memory, *image = results + GRAD_PLACES * WIDE_PITCH;
    int* pixels = (int*)(image + slide.seen() * WIDE_PITCH);
    u32 wide = (slide.channels + GRAD_CHANNELS - 1) / GRAD_CHANNELS, channel = blockIdx.x % wide * GRAD_CHANNELS;
    u32 tiles = (slide.filters + FILTERS - 1) / FILTERS, first = blockIdx.y % tiles * FILTERS;
    // Up to TAPS window elements of one row.
    u32 across = (slide.kernel_w + TAPS - 1) / TAPS, own = blockIdx.y / tiles;
    u32 down = own / across, side = own % across * TAPS, taps = min(slide.kernel_w - side, (u32)TAPS);

    // A warp computes 32 filters by 32 channels.
    u32 warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, warp_row = warp % 2 * 32, warp_column = warp / 2 * 32;
    bool is_there = first + warp_row < slide.filters && channel + warp_column < slide.channels;
    Shared left = shared_of(results + warp_row), right = shared_of(image + warp_column);
    constexpr u32 BYTES = WIDE_PITCH * sizeof(S);
    f32 sums[TAPS][2][4][4] = {};
    u32 part = blockIdx.x / wide, last = min((part + 1) * slide.each, slide.images * slide.across * slide.down);
    for (u32 at = part * slide.each; at < last; ++at) {
        Tile tile(slide, at, GRAD_PLACES);
        __syncthreads();
        stage<FILTERS / SIXTEENTH, WIDE_PITCH>(results, g, slide.filters, first, GRAD_PLACES,
                                               [&](u32 row) { return tile.place(row); });
        tile.see(pixels, down * slide.dilation_h);
        __syncthreads();
        stage<GRAD_CHANNELS / SIXTEENTH, WIDE_PITCH>(image, x, slide.channels, channel, slide.seen(),
                                                     [&](u32 row) { return pixels[row]; });
        copies_arrive();
        __syncthreads();
        if (!is_there) {
            continue;
        }
#pragma unroll 2
        for (u32 step = 0; step < GRAD_PLACES; step += STEP) {
            u32 a[2][4];
#pragma unroll
            for (u32 m = 0; m < 2; ++m) {
                load_columns(a[m], [&](u32 row) { return left + (step + row) * BYTES + m * 16 * sizeof(S); });
            }
#pragma unroll
            for (u32 tap = 0; tap < TAPS; ++tap) {
                if (tap >= taps) {
                    break;
                }
                u32 ahead = (side + tap) * slide.dilation_w;
#pragma unroll
                for (u32 n = 0; n < 2; ++n) {
                    u32 b[4];
                    load_columns(b, [&](u32 row) {
                        return right + (slide.begin(step + row) + ahead) * BYTES + n * 16 * sizeof(S);
                    });
#pragma unroll
                    for (u32 m = 0; m < 2; ++m) {
                        add_product(sums[tap][m][2 * n], a[m], b[0], b[2]);
                        add_product(sums[tap][m][2 * n + 1], a[m], b[1], b[3]);
                    }
                }
            }
        }
    }
    if (!is_there) {
        return;
    }
    T* to = out + (u64)part * slide.filters * slide.taps() * slide.channels;
#pragma unroll
    for (u32 k = 0; k < TAPS * 32; k += 2) {
        u32 tap = k / 32, row = first + warp_row + k / 16 % 2 * 16 + k / 2 % 2 * 8 + lane / 4;
        u32 column = channel + warp_column + k / 4 % 4 * 8 + lane % 4 * 2;
        if (tap < taps && row < slide.filters && column < slide.channels) {
            u32 element = down * slide.kernel_w + side + tap;
            const f32* made = &sums[tap][k / 16 % 2][k / 4 % 4][k % 4];
            store(to + ((u64)row * slide.taps() + element) * slide.channels + column, Pack<T, 2>{made[0], made[1]});
        }
    }
}
