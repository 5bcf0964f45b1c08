// The sums of convolutions, each in the order of the elements of what is summed over.
#include "shim/core.hpp"
#include "shim/cuda_bf16.h"
#include "shim/cuda_fp16.h"

#include "conv.hpp"
#include "tf32.hpp"

namespace {

// Calls body(place of a result, place of a filter, place of an image, place of what is made without gaps) for all that meet.
template <class Body> void for_products(const ConvJob& job, Body body) {
    const ConvTensor &x = job.images, &w = job.filters, &y = job.results;
    long long filters = y.sizes[1] / (x.sizes[1] / w.sizes[1]); // of a group
    auto at = [](const ConvTensor& t, long long a, long long b, long long c, long long d) {
        return a * t.steps[0] + b * t.steps[1] + c * t.steps[2] + d * t.steps[3];
    };
    auto packed = [](const ConvTensor& t, long long a, long long b, long long c, long long d) {
        return ((a * t.sizes[1] + b) * t.sizes[2] + c) * t.sizes[3] + d;
    };
    for (long long n = 0; n < y.sizes[0]; n++)
        for (long long f = 0; f < y.sizes[1]; f++)
            for (long long oh = 0; oh < y.sizes[2]; oh++)
                for (long long ow = 0; ow < y.sizes[3]; ow++)
                    for (long long k = 0; k < w.sizes[1]; k++)
                        for (long long i = 0; i < w.sizes[2]; i++)
                            for (long long j = 0; j < w.sizes[3]; j++) {
                                long long h = oh * job.stride[0] + i * job.dilation[0] - job.padding[0];
                                long long v = ow * job.stride[1] + j * job.dilation[1] - job.padding[1];
                                if (h < 0 || v < 0 || h >= x.sizes[2] || v >= x.sizes[3]) continue;
                                long long c = f / filters * w.sizes[1] + k;
                                long long made = job.pass == Pass::Forward     ? packed(y, n, f, oh, ow)
                                                 : job.pass == Pass::InputGrad ? packed(x, n, c, h, v)
                                                                               : packed(w, f, k, i, j);
                                body(at(y, n, f, oh, ow), at(w, f, k, i, j), at(x, n, c, h, v), made);
                            }
}

template <class In> void sum(const ConvJob& job) {
    const In *x = static_cast<const In*>(job.x), *w = static_cast<const In*>(job.w), *y = static_cast<const In*>(job.y);
    for (long long i = 0; i < job.made().count(); i++) job.sums[i] = 0;
    for_products(job, [&](long long result, long long filter, long long image, long long made) {
        float left = job.pass == Pass::Forward ? float(w[filter]) : float(y[result]);
        float right = job.pass == Pass::InputGrad ? float(w[filter]) : float(x[image]);
        job.sums[made] += left * right;
    });
}

template <class Out> void store(const ConvJob& job) {
    const ConvTensor& made = job.made();
    const Out* bias = static_cast<const Out*>(job.bias);
    const float* from = job.sums;
    for (long long a = 0; a < made.sizes[0]; a++)
        for (long long b = 0; b < made.sizes[1]; b++)
            for (long long c = 0; c < made.sizes[2]; c++)
                for (long long d = 0; d < made.sizes[3]; d++, from++) {
                    long long at = a * made.steps[0] + b * made.steps[1] + c * made.steps[2] + d * made.steps[3];
                    static_cast<Out*>(job.out)[at] = Out(bias ? *from + float(bias[b]) : *from);
                }
}

} // namespace

void run_conv(const ConvJob& job) {
    switch (job.type) {
    case GEMM_TF32: return sum<Tf32>(job);
    case GEMM_F16: return sum<__half>(job);
    case GEMM_BF16: return sum<__nv_bfloat16>(job);
    default: return sum<float>(job);
    }
}

void finish_conv(const ConvJob& job) {
    switch (job.type) {
    case GEMM_F16: return store<__half>(job);
    case GEMM_BF16: return store<__nv_bfloat16>(job);
    default: return store<float>(job);
    }
}
