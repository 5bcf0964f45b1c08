//! Every differentiable op: one file each, with formula, forward, gradient and samples.
//!
//! An op computes its value with the tensor's op of the same name and records itself with [`record`]. Its
//! gradient (`vjp`, a vector-Jacobian product) is written once, in terms of [`Var`]s: when the backward pass
//! is itself recorded, those ops make the graph of the second derivative.
//!
//! To add an op, write its file and add a line to [`ALL`]: the gradient tests, the device and stream tests
//! and the `gradcheck` program find it there, and `autocast!` the type in which it runs.
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
    /// In which type it runs under an autocast.
    pub autocast: Autocast,
    /// Whether its gradient can be differentiated again.
    pub twice_differentiable: bool,
    /// Draws the samples on a device, the same numbers on every device.
    pub samples: fn(&Device) -> Result<Vec<Sample>>,
}

impl std::fmt::Debug for OpEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpEntry")
            .field("name", &self.name)
            .field("autocast", &self.autocast)
            .field("twice_differentiable", &self.twice_differentiable)
            .finish_non_exhaustive()
    }
}

/// The type in which an op runs under an [`autocast`](crate::autocast()), by PyTorch's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Autocast {
    /// The type of the autocast: matrix products, convolutions and attention.
    Half,
    /// F32: sums, norms, losses, and functions that overflow.
    F32,
    /// The type of its operands; several types promote.
    Operands,
}

use Autocast::{F32, Half, Operands};

const fn op(name: &'static str, autocast: Autocast, samples: fn(&Device) -> Result<Vec<Sample>>) -> OpEntry {
    OpEntry { name, autocast, twice_differentiable: true, samples }
}

/// The column of an op that casts its operands, as `autocast!` reads it while it is compiled.
pub(crate) const fn autocast_of(name: &str) -> Autocast {
    let mut at = 0;
    while !is_same(LIST[at].name.as_bytes(), name.as_bytes()) {
        at += 1;
        assert!(at < LIST.len(), "the op is not listed");
    }
    let autocast = LIST[at].autocast;
    assert!(!matches!(autocast, Operands), "the op is listed as one that takes its operands as they are");
    autocast
}

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    match (a, b) {
        ([], []) => true,
        ([x, a @ ..], [y, b @ ..]) => *x == *y && is_same(a, b),
        _ => false,
    }
}

/// Every differentiable op. Left out are those that change no numbers but their type or device, where differences
/// cannot be taken.
pub static ALL: &[OpEntry] = LIST;

const LIST: &[OpEntry] = &joined::<{ OPS.len() + activations::OPS.len() }>(OPS, activations::OPS);

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
    op("abs", Operands, abs::samples),
    op("adaptive_avg_pool2d", Operands, avg_pool2d::adaptive_samples),
    op("add", Operands, add::samples),
    op("add_scalar", Operands, add::scalar_samples),
    op("attention", Half, attention::samples),
    op("avg_pool2d", Operands, avg_pool2d::samples),
    op("batch_norm", Operands, batch_norm::samples),
    op("batch_norm_relu", Operands, batch_norm::relu_samples),
    op("bce_with_logits", F32, bce_with_logits::samples),
    op("cat", Operands, cat::samples),
    op("clamp", Operands, clamp::samples),
    op("contiguous", Operands, convert::contiguous_samples),
    op("conv2d", Half, conv2d::samples),
    op("conv2d_relu", Half, conv2d::relu_samples),
    op("conv_transpose2d", Half, conv2d::transpose_samples),
    op("conv_transpose2d_relu", Half, conv2d::transpose_relu_samples),
    op("cos", Operands, trigonometry::cos_samples),
    op("cross_entropy", F32, cross_entropy::samples),
    op("cross_entropy_with", F32, cross_entropy::option_samples),
    op("linear_cross_entropy", Half, linear_cross_entropy::samples),
    op("cumsum", F32, cumsum::samples),
    op("div", Operands, div::samples),
    op("div_scalar", Operands, div::scalar_samples),
    op("dropout", Operands, dropout::samples),
    op("embedding", Operands, embedding::samples),
    op("embedding_bag", Operands, embedding_bag::samples),
    op("exp", F32, exp::samples),
    op("expand", Operands, expand::samples),
    op("flatten", Operands, reshape::flatten_samples),
    op("gather", Operands, gather::samples),
    op("gelu", Operands, gelu::erf_samples),
    op("gelu_tanh", Operands, gelu::tanh_samples),
    op("group_norm", F32, group_norm::samples),
    op("index_add", Operands, index_select::add_samples),
    op("index_select", Operands, index_select::samples),
    op("l1_loss", F32, l1_loss::samples),
    op("layer_norm", F32, layer_norm::samples),
    op("linear", Half, linear::samples),
    op("linear_relu", Half, linear::relu_samples),
    op("log", F32, log::samples),
    op("log_softmax", F32, softmax::log_samples),
    op("logsumexp", F32, logsumexp::samples),
    op("matmul", Half, matmul::samples),
    op("max", Operands, max::samples),
    op("max_pool2d", Operands, max_pool2d::samples),
    op("max_with_indices", Operands, max::indices_samples),
    op("maximum", Operands, maximum::samples),
    op("mean", Operands, mean::samples),
    op("min", Operands, max::min_samples),
    op("minimum", Operands, maximum::minimum_samples),
    op("mse_loss", F32, mse_loss::samples),
    op("mul", Operands, mul::samples),
    op("mul_scalar", Operands, mul::scalar_samples),
    op("narrow", Operands, narrow::samples),
    op("neg", Operands, neg::samples),
    op("nll_loss", F32, nll_loss::samples),
    op("pad", Operands, pad::samples),
    op("permute", Operands, permute::samples),
    op("pow", F32, pow::samples),
    op("pow_scalar", F32, pow::scalar_samples),
    op("reciprocal", F32, reciprocal::samples),
    op("relu", Operands, relu::samples),
    op("reshape", Operands, reshape::samples),
    op("rms_norm", F32, rms_norm::samples),
    op("rotary_embedding", Operands, rotary_embedding::samples),
    op("rsqrt", F32, sqrt::rsqrt_samples),
    op("scatter_add", Operands, gather::scatter_samples),
    op("select", Operands, narrow::select_samples),
    op("self_attention", Half, attention::packed_samples),
    op("sigmoid", Operands, sigmoid::samples),
    op("silu", Operands, silu::samples),
    op("sin", Operands, trigonometry::sin_samples),
    op("smooth_l1_loss", F32, l1_loss::smooth_samples),
    op("softmax", F32, softmax::samples),
    op("split", Operands, narrow::split_samples),
    op("sqrt", Operands, sqrt::samples),
    op("square", F32, square::samples),
    op("squeeze", Operands, reshape::squeeze_samples),
    op("stack", Operands, cat::stack_samples),
    op("std", Operands, variance::std_samples),
    op("sub", Operands, sub::samples),
    op("sum", F32, sum::samples),
    op("sum_to", Operands, sum::to_samples),
    op("tanh", Operands, tanh::samples),
    op("transpose", Operands, permute::transpose_samples),
    op("tril", Operands, triangle::tril_samples),
    op("triu", Operands, triangle::triu_samples),
    op("unbind", Operands, narrow::unbind_samples),
    op("unsqueeze", Operands, reshape::unsqueeze_samples),
    op("upsample", F32, upsample::samples),
    op("var", Operands, variance::samples),
    op("where_cond", Operands, where_cond::samples),
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
