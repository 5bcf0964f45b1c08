//! Scaled dot-product attention without a matrix of scores.

use device::{DType, Error, Result, Stream};
use kernels::{AttentionGrads, AttentionInput, AttentionKind, AttentionResult, Dims, Dropout, Layout};

use crate::Tensor;
use crate::check::{same_device, same_kind};
use crate::elementwise::inverse;

const OP: &str = "scaled_dot_product_attention";
/// How queries, keys and values fit.
const FIT: &str = "q [.., s, d] takes k [.., t, d] and v [.., t, e]";

/// Options of attention.
#[derive(Clone, Debug, Default)]
pub struct Attention {
    /// Whether query `i` sees the keys `0..=i` only.
    pub is_causal: bool,
    /// The factor of the products of queries and keys; `1 / sqrt(d)` if `None`.
    pub scale: Option<f64>,
    /// Bools, false for a key that is not seen, or numbers that are added to the scaled products. Broadcasts to `[.., s, t]`.
    /// No gradients flow to it.
    pub mask: Option<Tensor>,
    /// Which weights are dropped; see [`AttentionKind::dropout`].
    pub dropout: Option<Dropout>,
}

/// The result of attention, and what its gradient needs.
#[derive(Clone, Debug)]
pub struct Attended {
    /// The weighted means of the values, `[.., s, e]`.
    pub out: Tensor,
    /// The logarithm of the sum of the exponentials of each query's scores, `[.., s]`; infinite if it sees no key. Of
    /// [`DType::compute_dtype`].
    pub log_sums: Tensor,
}

impl Attention {
    /// The factor of the products for queries of `width` elements.
    pub fn scale_for(&self, width: usize) -> f64 {
        self.scale.unwrap_or_else(|| if width == 0 { 1.0 } else { 1.0 / (width as f64).sqrt() })
    }

    /// What dropout multiplies the weights of `q` and `k` with, as a matrix `[.., s, t]` of
    /// [`DType::compute_dtype`]; none if there is no dropout.
    ///
    /// # Errors
    /// `ShapeMismatch`; `InvalidArgument` unless `0 <= p <= 1`.
    pub fn kept_weights(&self, q: &Tensor, k: &Tensor) -> Result<Option<Tensor>> {
        let Some(dropout) = self.dropout else { return Ok(None) };
        let shape = scores(q, k)?;
        let kept = Tensor::empty(&shape, q.dtype().compute_dtype(), q.device())?;
        Stream::with_current(q.device(), |stream| kernels::kept_weights(stream, dropout, kept.view()))?;
        Ok(Some(kept))
    }

    /// The mask as numbers to add, broadcast to the scores of `q` and `k`; none if there is none.
    ///
    /// # Errors
    /// `ShapeMismatch`, `DTypeMismatch` unless the mask is Bool or of the queries' type, `DeviceMismatch`.
    pub fn added_mask(&self, q: &Tensor, k: &Tensor) -> Result<Option<Tensor>> {
        let Some(mask) = &self.mask else { return Ok(None) };
        same_device(OP, q, mask, "mask")?;
        let shape = scores(q, k)?;
        let mask = if mask.dtype() == DType::Bool {
            let of = |value: f64| Tensor::full(&[], value, q.dtype(), q.device());
            Tensor::where_cond(mask, &of(0.0)?, &of(f64::NEG_INFINITY)?)?
        } else {
            mask.dtype().require(OP, "mask", q.dtype())?;
            mask.clone()
        };
        Ok(Some(mask.expand(&shape)?))
    }

    /// `softmax(scale q k^T + mask) v`. A query that sees no key gives 0.
    ///
    /// Shapes: `q [.., s, d]`, `k [.., t, d]`, `v [.., t, e]` -> `[.., s, e]`, with equal leading axes. The result lies in
    /// memory in the order of the queries.
    ///
    /// # Errors
    /// `ShapeMismatch`, `DTypeMismatch`, `DeviceMismatch`, `DTypeUnsupported` unless floating-point; `InvalidArgument` for
    /// a mask of a causal attention, and unless dropout has a probability.
    pub fn forward(&self, qkv: [&Tensor; 3]) -> Result<Attended> {
        let [q, _, v] = qkv;
        let (&[.., queries, _], &[.., value_width]) = (q.shape(), v.shape()) else {
            return Err(Error::shape_mismatch(OP, FIT, q.shape(), v.shape()));
        };
        let mut shape = Dims::from_slice(&q.shape()[..q.rank() - 2]);
        shape.extend([queries, value_width]);
        crate::check::elements_of(OP, &shape)?;
        let layout = like(&shape, q)?;
        let out = Tensor::empty(&shape, q.dtype(), q.device())?.with_layout(layout);
        let log_sums = self.forward_to(qkv, &out)?;
        Ok(Attended { out, log_sums })
    }

    fn forward_to(&self, qkv: [&Tensor; 3], out: &Tensor) -> Result<Tensor> {
        let [q, k, v] = qkv;
        q.dtype().require_float(OP)?;
        same_kind(OP, q, k, "k")?;
        same_kind(OP, q, v, "v")?;
        Error::require_shapes(q.shape().last() == k.shape().last(), OP, FIT, q.shape(), k.shape())?;
        let is_valid = !self.is_causal || self.mask.is_none();
        Error::require(is_valid, OP, "mask", "none, for a causal attention", "a mask")?;
        let mask = self.added_mask(q, k)?;
        Stream::with_current(q.device(), |stream| {
            let log_sums = Tensor::allocate(stream, &q.shape()[..q.rank() - 1], q.dtype.compute_dtype())?;
            let (kind, input) = self.input(qkv, mask.as_ref());
            let result = AttentionResult { out: out.view(), log_sums: log_sums.view() };
            kernels::attention(stream, kind, input, result)?;
            Ok(log_sums)
        })
    }

    fn input<'a>(
        &self,
        [q, k, v]: [&'a Tensor; 3],
        mask: Option<&'a Tensor>,
    ) -> (AttentionKind, AttentionInput<'a>) {
        let scale = self.scale_for(q.shape().last().copied().unwrap_or(0));
        let kind = AttentionKind { causal: self.is_causal, scale, dropout: self.dropout };
        (kind, AttentionInput { q: q.view(), k: k.view(), v: v.view(), mask: mask.map(Tensor::view) })
    }

    /// The gradients of queries, keys and values from the gradient `g` of the result.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn backward(&self, qkv: [&Tensor; 3], attended: &Attended, g: &Tensor) -> Result<[Tensor; 3]> {
        let fresh = |x: &Tensor| -> Result<Tensor> {
            Ok(Tensor::empty(x.shape(), x.dtype(), x.device())?.with_layout(like(x.shape(), x)?))
        };
        let to = [fresh(qkv[0])?, fresh(qkv[1])?, fresh(qkv[2])?];
        self.backward_to(qkv, attended, g, &to)?;
        Ok(to)
    }

    fn backward_to(
        &self,
        qkv: [&Tensor; 3],
        attended: &Attended,
        g: &Tensor,
        to: &[Tensor; 3],
    ) -> Result<()> {
        same_kind(OP, qkv[0], g, "gradient")?;
        let mask = self.added_mask(qkv[0], qkv[1])?;
        Stream::with_current(g.device(), |stream| {
            let products = Tensor::allocate(stream, attended.log_sums.shape(), attended.log_sums.dtype)?;
            let (kind, input) = self.input(qkv, mask.as_ref());
            let result = AttentionResult { out: attended.out.view(), log_sums: attended.log_sums.view() };
            let to = AttentionGrads { q: to[0].view(), k: to[1].view(), v: to[2].view() };
            kernels::attention_grad(stream, kind, input, result, (g.view(), products.view()), to)
        })
    }

    /// Attention of a sequence to itself, from queries, keys and values that lie side by side.
    ///
    /// Shapes: `[.., s, 3 h d]`, the queries of all heads first, gives `[.., s, h d]` and sums of `[.., h, s]`.
    ///
    /// # Errors
    /// As [`Attention::forward`]; `InvalidArgument` if the last axis is not divided by three times the heads.
    pub fn forward_packed(&self, qkv: &Tensor, heads: usize) -> Result<Attended> {
        let parts = unpack(qkv, heads)?;
        let (&[ref leading @ .., sequence, packed], &[.., width]) = (qkv.shape(), parts[0].shape()) else {
            return Err(Error::shape_mismatch(OP, "", qkv.shape(), parts[0].shape()));
        };
        let shape: Dims = leading.iter().copied().chain([sequence, heads, width]).collect();
        let out = Tensor::empty(&shape, qkv.dtype(), qkv.device())?;
        let log_sums = self.forward_to(parts.each_ref(), &out.transpose(-3, -2)?)?;
        let shape: Dims = leading.iter().copied().chain([sequence, packed / 3]).collect();
        Ok(Attended { out: out.reshape(&shape)?, log_sums })
    }

    /// The gradient of [`Attention::forward_packed`] for its input.
    ///
    /// # Errors
    /// As [`Attention::forward_packed`].
    pub fn backward_packed(
        &self,
        qkv: &Tensor,
        heads: usize,
        attended: &Attended,
        g: &Tensor,
    ) -> Result<Tensor> {
        let to = Tensor::empty(qkv.shape(), qkv.dtype(), qkv.device())?;
        let by_heads = |x: &Tensor| split_heads(x, heads);
        let attended = Attended { out: by_heads(&attended.out)?, log_sums: attended.log_sums.clone() };
        let parts = unpack(qkv, heads)?;
        self.backward_to(parts.each_ref(), &attended, &by_heads(g)?, &unpack(&to, heads)?)?;
        Ok(to)
    }
}

/// The shape of the products of queries and keys, `[.., s, t]`.
fn scores(q: &Tensor, k: &Tensor) -> Result<Dims> {
    let (&[ref leading @ .., queries, _], &[.., keys, _]) = (q.shape(), k.shape()) else {
        return Err(Error::shape_mismatch(OP, FIT, q.shape(), k.shape()));
    };
    Ok(leading.iter().copied().chain([queries, keys]).collect())
}

/// The queries, keys and values `[.., h, s, d]` of `[.., s, 3 h d]`, as views.
fn unpack(qkv: &Tensor, heads: usize) -> Result<[Tensor; 3]> {
    let packed = qkv.shape().last().copied().unwrap_or(0);
    let value = format_args!("shape {:?} for {heads} heads", qkv.shape());
    let is_valid = qkv.rank() >= 2 && heads > 0 && packed % (3 * heads) == 0;
    Error::require(is_valid, OP, "qkv", "three times the heads' width", value)?;
    let part = |index: usize| split_heads(&qkv.narrow(-1, index * packed / 3, packed / 3)?, heads);
    Ok([part(0)?, part(1)?, part(2)?])
}

/// `[.., s, h d]` as `[.., h, s, d]`.
fn split_heads(x: &Tensor, heads: usize) -> Result<Tensor> {
    let mut shape = Dims::from_slice(x.shape());
    let width = shape.pop().unwrap_or(0);
    shape.extend([heads, width / heads.max(1)]);
    x.reshape(&shape)?.transpose(-3, -2)
}

/// A layout of this shape without gaps, in the order in which the axes of `x` lie.
fn like(shape: &[usize], x: &Tensor) -> Result<Layout> {
    let mut order: Dims = (0..shape.len()).collect();
    order.sort_by_key(|&axis| std::cmp::Reverse(x.strides()[axis]));
    let stored: Dims = order.iter().map(|&axis| shape[axis]).collect();
    Layout::contiguous(&stored).permute(OP, &inverse(&order))
}

#[derive::located]
impl Tensor {
    /// `softmax(scale q k^T + mask) v` for `self` the queries, without a stored matrix of scores. A query that sees no
    /// key returns 0. See [`Attention::forward`].
    ///
    /// Shapes: `q [.., s, d]`, `k [.., t, d]`, `v [.., t, e]` -> `[.., s, e]`, with equal leading axes.
    ///
    /// ```
    /// # use tensor::{Attention, DType, Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let q = Tensor::randn(&[2, 4, 8, 16], DType::F32, None, &Device::cpu())?;
    /// let causal = Attention { is_causal: true, ..Attention::default() };
    /// assert_eq!(q.scaled_dot_product_attention(&q, &q, &causal)?.shape(), [2, 4, 8, 16]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Attention::forward`].
    pub fn scaled_dot_product_attention(
        &self,
        k: &Tensor,
        v: &Tensor,
        attention: &Attention,
    ) -> Result<Tensor> {
        Ok(attention.forward([self, k, v])?.out)
    }
}
