//! Products by cuBLASLt and convolutions by cuDNN.
#![cfg_attr(not(feature = "cuda"), allow(dead_code))]

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod blas;
#[cfg(feature = "cuda")]
mod choice;
#[cfg(feature = "cuda")]
mod dnn;

#[cfg(not(feature = "cuda"))]
use absent::{blas, dnn};
use blas::Blas;
pub(super) use blas::gemm;
pub(crate) use dnn::ConvAlgorithm;
use dnn::describe;

use device::cuda::Queue;
use device::{DType, Device, Result, Stream};

/// A matrix product as BLAS has it, column-major and without addresses: `c = op(a) op(b)`, or `c + op(a) op(b)`.
///
/// `op(a)` is `m x k`, `op(b)` is `k x n`, `c` is `m x n`; the leading dimensions and the steps from one product of the
/// batch to the next count elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Gemm {
    /// Of `a` and `b`: F32, F64, BF16 or F16. Products are made, and sums taken, in its
    /// [`compute_dtype`](DType::compute_dtype).
    pub(crate) dtype: DType,
    /// Of `c`: `dtype`, or its [`compute_dtype`](DType::compute_dtype).
    pub(crate) c_dtype: DType,
    /// Whether factors in F32 are rounded to TF32.
    pub(crate) tf32: bool,
    /// Whether `a` and `b` are transposed.
    pub(crate) transposed: [bool; 2],
    /// m, n and k.
    pub(crate) sizes: [usize; 3],
    /// Leading dimensions of `a`, `b` and `c`, and those that follow likewise.
    pub(crate) leading: [usize; 3],
    /// 0 without a batch.
    pub(crate) steps: [i64; 3],
    /// How many products.
    pub(crate) batch: usize,
    /// Whether a vector of `m` elements of `c`'s type is added to each column before that is rounded and stored.
    pub(crate) bias: bool,
    /// Whether the positive part is taken then: `max(x, 0)`, which keeps NaN.
    pub(crate) relu: bool,
}

/// Which operand of a convolution is made of the two others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvPass {
    /// The results, of images and filters.
    Forward,
    /// The images' gradient, of filters and the results' gradient.
    InputGrad,
    /// The filters' gradient, of images and the results' gradient.
    WeightGrad,
}

impl ConvPass {
    /// The number of what is made, among images, filters and results.
    pub(crate) fn made(self) -> usize {
        match self {
            ConvPass::InputGrad => 0,
            ConvPass::WeightGrad => 1,
            ConvPass::Forward => 2,
        }
    }
}

/// A convolution without addresses: images `[n, c, h, w]`, filters `[f, c / groups, kh, kw]` and results `[n, f, oh, ow]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConvForm {
    /// What is made.
    pub(crate) pass: ConvPass,
    /// Whether a bias for each channel is added to what is made, before that is rounded; not to filters.
    pub(crate) bias: bool,
    /// Of all operands: F32, BF16 or F16. Sums are taken in F32.
    pub(crate) dtype: DType,
    /// Of images, filters and results. No size is 0, and the results have all places of the filters.
    pub(crate) shapes: [[usize; 4]; 3],
    /// Theirs, in elements.
    pub(crate) strides: [[usize; 4]; 3],
    /// On both sides of the images' last two axes.
    pub(crate) padding: [usize; 2],
    /// Steps from one place of a filter to the next.
    pub(crate) stride: [usize; 2],
    /// Steps between the elements that a filter sees.
    pub(crate) dilation: [usize; 2],
}

/// What makes the convolutions of a device, as in `cuDNN 9.14.0, and kernels of its own for what that has not`.
///
/// # Errors
/// `OutOfMemory` and `Driver` where cuDNN is found and
/// answers so.
pub fn convolutions(device: &Device) -> Result<String> {
    let described = device.default_stream().dry_run("convolutions", |queue| {
        if queue.allows_cudnn() { describe(queue).map(Some) } else { Ok(None) }
    })?;
    Ok(described.and_then(|(what, _)| what).unwrap_or_else(|| "kernels of its own".to_owned()))
}

/// Creates cuBLASLt's handle, and cuDNN's where that is [wanted](device::CudaConfig::cudnn) and found, which the device might have to
/// be idle for. Nothing on a CPU.
pub(super) fn start(stream: &Stream) -> Result<()> {
    let start = |queue: &Queue<'_>| {
        Blas::of(queue)?;
        if queue.allows_cudnn() { describe(queue).map(drop) } else { Ok(()) }
    };
    stream.dry_run("preload", |queue| queue.with_room("handles", || start(queue))).map(drop)
}
