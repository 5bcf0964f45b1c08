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

/// Where an autocast changes the type in which an op runs, by the list of ops, returns the op of operands in that type.
macro_rules! autocast {
    ($op:expr, [$($operand:expr),+], |$($name:ident),+| $body:expr) => {
        if let Some(cast) = $crate::autocast::Cast::of(const { $crate::ops::autocast_of($op) }) {
            return $crate::autocast::suspended(|| {
                $(let $name = $crate::autocast::Operand::cast($operand, &cast)?;)+
                $body
            });
        }
    };
}

/// Where operands differ in type, returns the op of operands in the type that they promote to.
macro_rules! promote {
    ($lhs:expr, $rhs:expr, $op:expr) => {
        if $lhs.dtype() != $rhs.dtype() {
            return $crate::ops::binary::promoted($lhs, $rhs, $op);
        }
    };
}

mod abs;
mod add;
mod atan2;
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
mod einsum;
mod embedding;
mod embedding_bag;
mod expand;
mod fmod;
mod function;
mod functions;
mod gather;
mod gelu;
mod group_norm;
mod index_select;
mod kl_div;
mod l1_loss;
mod layer_norm;
mod linear;
mod linear_cross_entropy;
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
mod norm;
mod normalize;
mod operators;
mod pad;
mod permute;
mod pow;
mod product;
mod rearrange;
mod recurrent;
mod reduction;
mod reshape;
mod rms_norm;
mod rotary_embedding;
mod samples;
mod softmax;
mod sort;
mod sub;
mod sum;
#[cfg(test)]
mod testing;
mod triangle;
mod upsample;
mod variance;
mod where_cond;

use smallvec::SmallVec;
use tensor::fused::Activation;
use tensor::{Device, GeluKind, Result, Tensor};

/// Ops with their activation in the same command, for layers.
#[doc(hidden)]
pub mod fused {
    pub use tensor::fused::Activation;

    pub use super::batch_norm::batch_norm;
    pub use super::conv2d::{conv_transpose2d, conv2d};
    pub use super::linear::linear;
}

pub use crate::autocast::Autocast;
pub use attention::AttentionOptions;
pub use bce_with_logits::BceWithLogits;
pub use cross_entropy::CrossEntropy;
#[doc(hidden)]
pub use embedding::padding_row;
pub use embedding_bag::{BagMode, BagOptions};
pub use pad::PadMode;
pub use recurrent::{Cell, CellState, Elman, GruCell, LstmCell, recurrent};
pub use reduction::Reduction;
pub use rotary_embedding::{RotaryPairs, rotary_angles};
pub use samples::{Run, Sample};
pub use upsample::{UpsampleMode, UpsampleSize};

// What the ops share.
use binary::{binary_slope, if_needed, record_binary, widened};
use samples::{Draw, Drawn, Program, binary, indices, sample, unary};

use crate::tape::one;
use crate::{Save, Var, Vjp, record};

/// A differentiable op with the inputs to check it at.
#[derive(Clone, Copy, Debug)]
pub struct OpEntry {
    /// The op's name: that of its method, with the variant where one is.
    pub name: &'static str,
    /// In which type it runs under an autocast.
    pub autocast: Autocast,
    /// Whether its gradient can be differentiated again.
    pub twice_differentiable: bool,
    samples: fn(&Draw) -> Result<Vec<Sample>>,
}

impl OpEntry {
    /// Draws the samples on a device, the same numbers on every device. The first one comes again with its inputs in column-major
    /// order in memory, and with each of several inputs as a constant.
    ///
    /// # Errors
    /// Those of the ops that draw.
    pub fn samples(&self, device: &Device) -> Result<Vec<Sample>> {
        let drawn = || (self.samples)(&Draw::new(device));
        let mut samples = drawn()?;
        // The first sample stands for all in how memory is ordered, and in which operands are constants.
        let first = |samples: Vec<Sample>| samples.into_iter().next();
        samples.extend(first(drawn()?).map(Sample::column_major).transpose()?);
        let inputs = samples.first().map_or(0, |first| first.inputs.len());
        for at in (0..inputs).filter(|_| inputs > 1) {
            samples.extend(first(drawn()?).map(|first| first.with_constant(at)));
        }
        Ok(samples)
    }
}

use Autocast::{F32, Half, Operands};

const fn op(name: &'static str, autocast: Autocast, samples: fn(&Draw) -> Result<Vec<Sample>>) -> OpEntry {
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

const LIST: &[OpEntry] = &joined::<{ OPS.len() + functions::OPS.len() }>(OPS, functions::OPS);

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
    op("abs", Operands, |d| unary(d, Draw::nonzero, Var::abs)),
    op("adaptive_avg_pool2d", Operands, avg_pool2d::adaptive_samples),
    op("add", Operands, |d| binary(d, Draw::normal, Draw::normal, Var::add)),
    op("add_scalar", Operands, |d| unary(d, Draw::normal, |x| x.add_scalar(-1.5))),
    op("atan2", Operands, |d| binary(d, Draw::nonzero, Draw::nonzero, Var::atan2)),
    op("attention", Half, attention::samples),
    op("avg_pool2d", Operands, avg_pool2d::samples),
    op("batch_norm", Operands, |d| batch_norm::samples(d, Activation::None)),
    op("batch_norm_relu", Operands, |d| batch_norm::samples(d, Activation::Relu)),
    op("bce_with_logits", F32, |d| mse_loss::by_element(d, Var::bce_with_logits)),
    op("bce_with_logits_with", F32, bce_with_logits::option_samples),
    op("cat", Operands, cat::samples),
    op("celu", Operands, |d| unary(d, Draw::nonzero, |x| x.celu(0.7))),
    op("clamp", Operands, clamp::samples),
    op("contiguous", Operands, convert::contiguous_samples),
    op("conv2d", Half, |d| conv2d::samples(d, Activation::None)),
    op("conv2d_relu", Half, |d| conv2d::samples(d, Activation::Relu)),
    op("conv_transpose2d", Half, |d| conv2d::transpose_samples(d, Activation::None)),
    op("conv_transpose2d_relu", Half, |d| conv2d::transpose_samples(d, Activation::Relu)),
    op("cosine_similarity", F32, norm::cosine_samples),
    op("cross_entropy", F32, |d| cross_entropy::by_label(d, Var::cross_entropy)),
    op("cross_entropy_with", F32, cross_entropy::option_samples),
    op("linear_cross_entropy", Half, linear_cross_entropy::samples),
    op("cumprod", F32, product::cumprod_samples),
    op("cumsum", F32, cumsum::samples),
    op("div", Operands, |d| binary(d, Draw::normal, Draw::nonzero, |a, b| a.div(b))),
    op("div_scalar", Operands, |d| unary(d, Draw::normal, |x| x.div_scalar(-1.5))),
    op("dropout", Operands, dropout::samples),
    op("einsum", Operands, einsum::samples),
    op("embedding", Operands, embedding::samples),
    op("embedding_bag", Operands, embedding_bag::samples),
    op("expand", Operands, expand::samples),
    op("flatten", Operands, reshape::flatten_samples),
    op("flip", Operands, rearrange::flip_samples),
    op("fmod", Operands, fmod::samples),
    op("gather", Operands, gather::samples),
    op("gelu", Operands, |d| unary(d, Draw::normal, |x| x.gelu(GeluKind::Erf))),
    op("gelu_tanh", Operands, |d| unary(d, Draw::normal, |x| x.gelu(GeluKind::Tanh))),
    op("gru", Half, recurrent::samples::<GruCell>),
    op("group_norm", F32, group_norm::samples),
    op("index_add", Operands, index_select::add_samples),
    op("index_select", Operands, index_select::samples),
    op("kl_div", F32, kl_div::samples),
    op("l1_loss", F32, l1_loss::samples),
    op("layer_norm", F32, layer_norm::samples),
    op("leaky_relu", Operands, |d| unary(d, Draw::nonzero, |x| x.leaky_relu(0.1))),
    op("linear", Half, |d| linear::samples(d, Activation::None)),
    op("linear_relu", Half, |d| linear::samples(d, Activation::Relu)),
    op("log_sigmoid", Operands, |d| unary(d, Draw::normal, Var::log_sigmoid)),
    op("log_softmax", F32, |d| softmax::along_axes(d, Var::log_softmax)),
    op("logsumexp", F32, |d| sum::reductions(d, Draw::normal, Var::logsumexp)),
    op("lstm", Half, recurrent::samples::<LstmCell>),
    op("masked_fill", Operands, where_cond::masked_fill_samples),
    op("masked_select", Operands, sort::masked_select_samples),
    op("matmul", Half, matmul::samples),
    op("max", Operands, |d| sum::reductions(d, Draw::distinct, Var::max)),
    op("max_pool2d", Operands, max_pool2d::samples),
    op("max_with_indices", Operands, max::indices_samples),
    op("maximum", Operands, maximum::samples),
    op("mean", Operands, |d| sum::reductions(d, Draw::normal, Var::mean)),
    op("min", Operands, |d| sum::reductions(d, Draw::distinct, Var::min)),
    op("minimum", Operands, maximum::minimum_samples),
    op("mse_loss", F32, |d| mse_loss::by_element(d, Var::mse_loss)),
    op("mul", Operands, |d| binary(d, Draw::normal, Draw::normal, Var::mul)),
    op("mul_scalar", Operands, |d| unary(d, Draw::normal, |x| x.mul_scalar(-1.5))),
    op("narrow", Operands, narrow::samples),
    op("neg", Operands, |d| unary(d, Draw::normal, Var::neg)),
    op("nll_loss", F32, |d| cross_entropy::by_label(d, Var::nll_loss)),
    op("norm", F32, norm::samples),
    op("normalize", F32, norm::normalize_samples),
    op("pad", Operands, pad::samples),
    op("permute", Operands, permute::samples),
    op("pow", F32, |d| binary(d, Draw::positive, Draw::normal, Var::pow)),
    op("pow_scalar", F32, pow::scalar_samples),
    op("prod", F32, product::samples),
    op("repeat", Operands, rearrange::repeat_samples),
    op("reshape", Operands, reshape::samples),
    op("rms_norm", F32, rms_norm::samples),
    op("rnn", Half, recurrent::samples::<Elman>),
    op("roll", Operands, rearrange::roll_samples),
    op("rotary_embedding", Operands, rotary_embedding::samples),
    op("scatter", Operands, |d| gather::scatter_samples(d, Var::scatter)),
    op("scatter_add", Operands, |d| gather::scatter_samples(d, Var::scatter_add)),
    op("select", Operands, narrow::select_samples),
    op("self_attention", Half, attention::packed_samples),
    op("selu", Operands, |d| unary(d, Draw::nonzero, Var::selu)),
    op("smooth_l1_loss", F32, |d| {
        mse_loss::by_element(d, |x, target, reduction| x.smooth_l1_loss(target, 0.613, reduction))
    }),
    op("softmax", F32, |d| softmax::along_axes(d, Var::softmax)),
    op("sort", Operands, sort::samples),
    op("split", Operands, narrow::split_samples),
    op("squeeze", Operands, reshape::squeeze_samples),
    op("stack", Operands, cat::stack_samples),
    op("std", Operands, variance::std_samples),
    op("step_by", Operands, rearrange::step_by_samples),
    op("sub", Operands, |d| binary(d, Draw::normal, Draw::normal, Var::sub)),
    op("sum", F32, |d| sum::reductions(d, Draw::normal, Var::sum)),
    op("sum_to", Operands, sum::to_samples),
    op("topk", Operands, sort::topk_samples),
    op("transpose", Operands, permute::transpose_samples),
    op("tril", Operands, |d| triangle::both(d, Var::tril)),
    op("triu", Operands, |d| triangle::both(d, Var::triu)),
    op("unbind", Operands, narrow::unbind_samples),
    op("unsqueeze", Operands, reshape::unsqueeze_samples),
    op("upsample", F32, upsample::samples),
    op("var", Operands, variance::samples),
    op("where_cond", Operands, where_cond::samples),
];

/// Records an op of one operand; `vjp` returns the operand's gradient.
#[doc(hidden)]
#[inline]
#[track_caller]
pub fn record_one<F>(op: &'static str, x: &Var, saved: &[Save<'_>], value: Tensor, vjp: F) -> Result<Var>
where
    F: Fn(&Vjp<'_>, &Var) -> Result<Var> + Send + Sync + 'static,
{
    Ok(record(op, &[x], saved, value, move |ctx, g| Ok(one(vjp(ctx, g)?))))
}

/// Records a linear op of one operand. Its gradient is its adjoint, whose gradient is the op again; both get their operand and the
/// tensors that are `kept`, such as indices.
fn record_pair<F, B>(names: [&'static str; 2], x: &Var, kept: &[&Tensor], op: F, adjoint: B) -> Result<Var>
where
    F: Fn(&Tensor, &[&Tensor]) -> Result<Tensor> + Clone + Send + Sync + 'static,
    B: Fn(&Tensor, &[&Tensor]) -> Result<Tensor> + Clone + Send + Sync + 'static,
{
    let value = op(x.value(), kept)?;
    let saved: SmallVec<[Save<'_>; 2]> = kept.iter().map(|kept| Save::Tensor(kept)).collect();
    let count = kept.len();
    record_one(names[0], x, &saved, value, move |ctx, g| {
        let kept: SmallVec<[Var; 2]> = (0..count).map(|at| ctx.saved(at)).collect();
        let kept: SmallVec<[&Tensor; 2]> = kept.iter().map(Var::value).collect();
        record_pair([names[1], names[0]], g, &kept, adjoint.clone(), op.clone())
    })
}

/// A shape that an op keeps for its gradient.
type Dims = SmallVec<[usize; 4]>;

/// The sizes of the last two axes, of which an op that took `x` has made sure.
fn last_two(x: &Var) -> [usize; 2] {
    match *x.shape() {
        [.., h, w] => [h, w],
        _ => [0; 2],
    }
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
pub(crate) fn position(axis: isize, rank: usize) -> usize {
    let axis = if axis < 0 { axis.wrapping_add_unsigned(rank) } else { axis };
    axis.unsigned_abs()
}

/// The gradient of a reduction, spread over the axes that were reduced.
fn spread(g: &Var, kept: &[usize], shape: &[usize]) -> Result<Var> {
    if g.shape().is_empty() { g.expand(shape) } else { g.reshape(kept)?.expand(shape) }
}
