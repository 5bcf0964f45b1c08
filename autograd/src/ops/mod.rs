//! Every differentiable op: one file each, with formula, forward, gradient and samples.
//!
//! An op computes its value with the tensor's op of the same name and records itself with [`record`]. Its
//! gradient (`vjp`, a vector-Jacobian product) is written once, in terms of [`Var`]s: when the backward pass
//! is itself recorded, those ops make the graph of the second derivative.
//!
//! To add an op, write its file and add a line to [`ALL`]: the gradient tests, the device and stream tests
//! and the `gradcheck` program find it there.
//!
//! [`record`]: crate::record

mod abs;
mod activations;
mod add;
mod attention;
mod avg_pool2d;
mod batch_norm;
mod bce_with_logits;
mod binary;
mod cat;
mod clamp;
mod conv2d;
mod convert;
mod cross_entropy;
mod crossed;
mod cumsum;
mod div;
mod dropout;
mod embedding;
mod embedding_bag;
mod exp;
mod expand;
mod function;
mod gather;
mod gelu;
mod group_norm;
mod index_select;
mod l1_loss;
mod layer_norm;
mod linear;
mod linear_cross_entropy;
mod log;
mod logsumexp;
mod matmul;
mod max;
mod max_pool2d;
mod maximum;
mod mean;
mod mse_loss;
mod mul;
mod narrow;
mod neg;
mod nll_loss;
mod normalize;
mod operators;
mod pad;
mod permute;
mod pow;
mod reciprocal;
mod reduction;
mod relu;
mod reshape;
mod rms_norm;
mod rotary_embedding;
mod samples;
mod sigmoid;
mod silu;
mod softmax;
mod sqrt;
mod square;
mod sub;
mod sum;
mod tanh;
#[cfg(test)]
mod testing;
mod triangle;
mod trigonometry;
mod upsample;
mod variance;
mod where_cond;

use smallvec::SmallVec;
use tensor::{Device, Result, Tensor};

/// Ops with their activation in the same command, for layers.
#[doc(hidden)]
pub mod fused {
    pub use tensor::fused::Activation;

    pub use super::batch_norm::batch_norm;
    pub use super::conv2d::{conv_transpose2d, conv2d};
    pub use super::linear::linear;
}

pub use attention::AttentionOptions;
pub(crate) use convert::record_conversion;
pub use cross_entropy::CrossEntropy;
pub use embedding_bag::{BagMode, BagOptions};
pub use pad::PadMode;
pub use reduction::Reduction;
pub use rotary_embedding::{RotaryPairs, rotary_angles};
pub use samples::{Run, Sample};

use crate::{Grads, Var};

/// A differentiable op with the inputs to check it at.
#[derive(Clone, Copy)]
pub struct OpEntry {
    /// The op's name: that of its method, with the variant where one is.
    pub name: &'static str,
    /// Whether its gradient can be differentiated again.
    pub twice_differentiable: bool,
    /// Draws the samples on a device, the same numbers on every device.
    pub samples: fn(&Device) -> Result<Vec<Sample>>,
}

impl std::fmt::Debug for OpEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpEntry")
            .field("name", &self.name)
            .field("twice_differentiable", &self.twice_differentiable)
            .finish_non_exhaustive()
    }
}

const fn op(name: &'static str, samples: fn(&Device) -> Result<Vec<Sample>>) -> OpEntry {
    OpEntry { name, twice_differentiable: true, samples }
}

/// Every differentiable op. Left out are those that change no numbers but their type or device, where differences
/// cannot be taken.
pub static ALL: &[OpEntry] = &joined::<{ OPS.len() + activations::OPS.len() }>(OPS, activations::OPS);

const fn joined<const N: usize>(first: &[OpEntry], second: &[OpEntry]) -> [OpEntry; N] {
    let mut all = [first[0]; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < first.len() { first[at] } else { second[at - first.len()] };
        at += 1;
    }
    all
}

/// The ops with a file of their own.
const OPS: &[OpEntry] = &[
    op("abs", abs::samples),
    op("adaptive_avg_pool2d", avg_pool2d::adaptive_samples),
    op("add", add::samples),
    op("add_scalar", add::scalar_samples),
    op("attention", attention::samples),
    op("avg_pool2d", avg_pool2d::samples),
    op("batch_norm", batch_norm::samples),
    op("batch_norm_relu", batch_norm::relu_samples),
    op("bce_with_logits", bce_with_logits::samples),
    op("cat", cat::samples),
    op("clamp", clamp::samples),
    op("contiguous", convert::contiguous_samples),
    op("conv2d", conv2d::samples),
    op("conv2d_relu", conv2d::relu_samples),
    op("conv_transpose2d", conv2d::transpose_samples),
    op("conv_transpose2d_relu", conv2d::transpose_relu_samples),
    op("cos", trigonometry::cos_samples),
    op("cross_entropy", cross_entropy::samples),
    op("cross_entropy_with", cross_entropy::option_samples),
    op("linear_cross_entropy", linear_cross_entropy::samples),
    op("cumsum", cumsum::samples),
    op("div", div::samples),
    op("div_scalar", div::scalar_samples),
    op("dropout", dropout::samples),
    op("embedding", embedding::samples),
    op("embedding_bag", embedding_bag::samples),
    op("exp", exp::samples),
    op("expand", expand::samples),
    op("flatten", reshape::flatten_samples),
    op("gather", gather::samples),
    op("gelu", gelu::erf_samples),
    op("gelu_tanh", gelu::tanh_samples),
    op("group_norm", group_norm::samples),
    op("index_add", index_select::add_samples),
    op("index_select", index_select::samples),
    op("l1_loss", l1_loss::samples),
    op("layer_norm", layer_norm::samples),
    op("linear", linear::samples),
    op("linear_relu", linear::relu_samples),
    op("log", log::samples),
    op("log_softmax", softmax::log_samples),
    op("logsumexp", logsumexp::samples),
    op("matmul", matmul::samples),
    op("max", max::samples),
    op("max_pool2d", max_pool2d::samples),
    op("max_with_indices", max::indices_samples),
    op("maximum", maximum::samples),
    op("mean", mean::samples),
    op("min", max::min_samples),
    op("minimum", maximum::minimum_samples),
    op("mse_loss", mse_loss::samples),
    op("mul", mul::samples),
    op("mul_scalar", mul::scalar_samples),
    op("narrow", narrow::samples),
    op("neg", neg::samples),
    op("nll_loss", nll_loss::samples),
    op("pad", pad::samples),
    op("permute", permute::samples),
    op("pow", pow::samples),
    op("pow_scalar", pow::scalar_samples),
    op("reciprocal", reciprocal::samples),
    op("relu", relu::samples),
    op("reshape", reshape::samples),
    op("rms_norm", rms_norm::samples),
    op("rotary_embedding", rotary_embedding::samples),
    op("rsqrt", sqrt::rsqrt_samples),
    op("scatter_add", gather::scatter_samples),
    op("select", narrow::select_samples),
    op("self_attention", attention::packed_samples),
    op("sigmoid", sigmoid::samples),
    op("silu", silu::samples),
    op("sin", trigonometry::sin_samples),
    op("smooth_l1_loss", l1_loss::smooth_samples),
    op("softmax", softmax::samples),
    op("split", narrow::split_samples),
    op("sqrt", sqrt::samples),
    op("square", square::samples),
    op("squeeze", reshape::squeeze_samples),
    op("stack", cat::stack_samples),
    op("std", variance::std_samples),
    op("sub", sub::samples),
    op("sum", sum::samples),
    op("sum_to", sum::to_samples),
    op("tanh", tanh::samples),
    op("transpose", permute::transpose_samples),
    op("tril", triangle::tril_samples),
    op("triu", triangle::triu_samples),
    op("unbind", narrow::unbind_samples),
    op("unsqueeze", reshape::unsqueeze_samples),
    op("upsample", upsample::samples),
    op("var", variance::samples),
    op("where_cond", where_cond::samples),
];

/// A shape that an op keeps for its gradient.
type Dims = SmallVec<[usize; 4]>;

/// The gradient of an op's only input.
#[inline]
fn one(gradient: Var) -> Grads {
    let mut grads = Grads::new();
    grads.push(Some(gradient));
    grads
}

/// A constant of rank 0 with the type and device of `like`.
fn scalar_like(like: &Tensor, value: f64) -> Result<Var> {
    Ok(Var::constant(Tensor::full(&[], value, like.dtype(), like.device())?))
}

/// `shape` with the reduced axes at size 1; no axes means all of them. The axes have been checked.
fn kept_shape(shape: &[usize], axes: &[isize]) -> Dims {
    let mut kept = Dims::from_slice(shape);
    if axes.is_empty() {
        kept.fill(1);
    }
    for &axis in axes {
        // A scalar may be reduced over axis 0, which it does not have.
        if let Some(size) = kept.get_mut(position(axis, shape.len())) {
            *size = 1;
        }
    }
    kept
}

/// The number of elements that one output element of a reduction takes.
fn reduced_elements(shape: &[usize], axes: &[isize]) -> usize {
    if axes.is_empty() {
        return shape.iter().product();
    }
    axes.iter().filter_map(|&axis| shape.get(position(axis, shape.len()))).product()
}

/// A checked axis, counted from the front.
fn position(axis: isize, rank: usize) -> usize {
    let axis = if axis < 0 { axis.wrapping_add_unsigned(rank) } else { axis };
    axis.unsigned_abs()
}

/// The gradient of a reduction, spread over the axes that were reduced.
fn spread(g: &Var, kept: &[usize], shape: &[usize]) -> Result<Var> {
    if g.shape().is_empty() { g.expand(shape) } else { g.reshape(kept)?.expand(shape) }
}
