// A convolution of images with filters, or one of its gradients, in two steps: sums, and what is stored of them.
#pragma once

#include "gemm.hpp" // GemmType

enum class Pass { Forward, InputGrad, WeightGrad };

struct ConvTensor {
    long long sizes[4], steps[4];
    long long count() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
};

struct ConvJob {
    Pass pass;
    GemmType type;
    ConvTensor images, filters, results;
    long long padding[2], stride[2], dilation[2];
    const void *x, *w, *y; // of images, filters and results; the one that is made is not read
    void* out;             // it
    const void* bias;      // an element for each of its channels; nullptr: none
    float* sums;           // as many as it has elements, without gaps

    const ConvTensor& made() const { return pass == Pass::Forward ? results : pass == Pass::InputGrad ? images : filters; }
};

void run_conv(const ConvJob& job);
// Has the job's sums become its result.
void finish_conv(const ConvJob& job);
