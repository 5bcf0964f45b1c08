// The kernels of the self-test.

#define KERNEL extern "C" __global__ void

struct Pair {
    const float* from;
    int scale;
    double offset;
};

template <class T> __device__ __forceinline__ T block_sum(T value) {
    __shared__ T partial[32];
    for (int delta = 16; delta > 0; delta /= 2) value += __shfl_down_sync(0xFFFFFFFFu, value, delta);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    T sum = 0;
    for (unsigned i = 0; i < (blockDim.x + 31) / 32; i++) sum += partial[i];
    __syncthreads();
    return sum;
}

KERNEL __launch_bounds__(256) add(float* out, const float* a, const float* b, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}

KERNEL scale(float* data, float by, float plus, unsigned n) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) data[i] = data[i] * by + plus;
}

KERNEL from_struct(float* out, Pair pair, unsigned char small) { out[threadIdx.x] = pair.from[threadIdx.x] * pair.scale + pair.offset + small; }

extern "C" {
__global__ void __launch_bounds__(128, 2) sums_f32(float* out, const float* in) {
    float sum = block_sum(in[blockIdx.x * blockDim.x + threadIdx.x]);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
__global__ void sums_i64(long long* out, const long long* in) {
    long long sum = block_sum(in[blockIdx.x * blockDim.x + threadIdx.x]);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
}

KERNEL reverse_dynamic(int* data) {
    extern __shared__ __align__(16) int tile[];
    tile[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

extern __shared__ float4 outside[];
KERNEL dynamic_outside(float* data) {
    outside[threadIdx.x] = make_float4(data[threadIdx.x], 1.0f, 2.0f, 3.0f);
    __syncthreads();
    data[threadIdx.x] = outside[(threadIdx.x + 1) % blockDim.x].x;
}

// As reverse_dynamic, but nobody waits.
KERNEL forgets_barrier(int* data) {
    extern __shared__ int tile[];
    tile[threadIdx.x] = data[threadIdx.x];
    data[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

KERNEL warp_functions(int* out) {
    int lane = threadIdx.x, value = lane * 10;
    out[0 * 32 + lane] = __shfl_sync(0xFFFFFFFFu, value, 5);
    out[1 * 32 + lane] = __shfl_up_sync(0xFFFFFFFFu, value, 1);
    out[2 * 32 + lane] = __shfl_down_sync(0xFFFFFFFFu, value, 1, 8);
    out[3 * 32 + lane] = __shfl_xor_sync(0xFFFFFFFFu, value, 1);
    out[4 * 32 + lane] = int(__ballot_sync(0xFFFFFFFFu, lane % 3 == 0));
    out[5 * 32 + lane] = __any_sync(0xFFFFFFFFu, lane == 7) + 2 * __all_sync(0xFFFFFFFFu, lane < 31);
    // Half of the warp on its own.
    out[6 * 32 + lane] = lane < 16 ? __shfl_xor_sync(0x0000FFFFu, value, 15) : -1;
    out[7 * 32 + lane] = __syncthreads_count(lane % 2);
    out[8 * 32 + lane] = int(__reduce_add_sync(0xFFFFFFFFu, unsigned(lane)));
    out[9 * 32 + lane] = int(__match_any_sync(0xFFFFFFFFu, lane / 16));
}

// A block and a grid of three dimensions; every thread writes its place.
KERNEL places(int* out) {
    uint3 t = threadIdx, b = blockIdx;
    dim3 size = blockDim, blocks = gridDim;
    unsigned block = (b.z * blocks.y + b.y) * blocks.x + b.x, thread = (t.z * size.y + t.y) * size.x + t.x;
    out[block * (size.x * size.y * size.z) + thread] = int(b.z * 100000 + b.y * 10000 + b.x * 1000 + t.z * 100 + t.y * 10 + t.x);
}

KERNEL atomics(unsigned* counters, float* sum) {
    atomicAdd(&counters[0], 1u);
    atomicMax(&counters[1], threadIdx.x);
    atomicCAS(&counters[2], 0u, 7u);
    atomicAdd(sum, 0.5f);
}

KERNEL intrinsics(double* out) {
    out[0] = __umulhi(0x80000000u, 6u);
    out[1] = double(__mul64hi(1ll << 62, 8ll));
    out[2] = __popc(0xF0F0u) * 100 + __clz(1) + __ffs(8) * 1000;
    out[3] = __float_as_int(1.0f);
    out[4] = __int_as_float(0x40490FDB);
    out[5] = rsqrtf(4.0f);
    out[6] = erff(0.5f);
    out[7] = fmaf(2.0f, 3.0f, 4.0f) + max(1, 2) + min(3.0f, 2.0f);
    out[8] = isnan(__int_as_float(0x7FFFFFFF)) + 2 * isinf(1.0f / 0.0f);
    out[9] = double(__float2int_rn(2.5f)) + __float2int_rz(3e10f);
    out[10] = double(__umul64hi(1ull << 63, 6ull));
    // A number between -1 and 0 becomes the integer 0, which has no sign.
    out[11] = __float_as_int(float((long long)float(out[11])));
}

// What the compiler must not see.
KERNEL stray_write(float* data, long long at) { data[at] = 1.0f; }
KERNEL stray_read(float* data, long long at, float* out) { out[threadIdx.x] = data[at]; }
KERNEL stray_shared(int* out, int at) {
    __shared__ int tile[16];
    tile[threadIdx.x + at] = 1;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}
KERNEL stray_dynamic(int at) {
    extern __shared__ int tile[];
    tile[at] = 1;
}
KERNEL misaligned(float4* data, float4* out, int shift) { *out = *reinterpret_cast<float4*>(reinterpret_cast<char*>(data) + shift); }
KERNEL different_barriers(int* out) {
    if (threadIdx.x < 32) {
        __syncthreads();
        out[0] = 1;
    } else {
        out[1] = 2;
        __syncthreads();
    }
}
KERNEL hangs(int* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xFFFFFFFFu, 1, 0);
    else __syncthreads();
}
KERNEL divides(int* out, int by) { out[0] = 7 / by; }
KERNEL asserts(int value) { assert(value == 3); }
KERNEL uninitialised_shared(unsigned* out) {
    __shared__ unsigned word[4];
    out[threadIdx.x] = word[threadIdx.x];
}
KERNEL nothing() {}
