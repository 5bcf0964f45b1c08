//! `Y = P V` with `P = softmax(s Q Kᵀ + mask)`; with `U = P (G Vᵀ - Σ G Y)`: `Q' = s U K`, `K' = s Uᵀ Q`, `V' = Pᵀ G`.

use tensor::{Attended, Attention, DType, Dropout, Error, RandomKey, Result, Tensor, next_key};

use super::{Dims, Draw, Sample, record_one};
use crate::autocast::{Cast, Operand};
use crate::{Save, Var, is_recording, record};

const OP: &str = "scaled_dot_product_attention";

/// Options of [`Var::scaled_dot_product_attention`]: torch's, with torch's defaults.
#[derive(Clone, Debug, Default)]
pub struct AttentionOptions {
    /// As [`Attention::mask`]. A key that no query sees is not read, nor is its value, nor a query that sees no key: they may
    /// be NaN.
    pub attn_mask: Option<Tensor>,
    /// The probability with which a weight is dropped, rounded to a multiple of 2^-15; the others are divided by `1 - p`. The
    /// mask is drawn from the next key of this thread's generator, and again for the gradient.
    pub dropout_p: f64,
    /// As [`Attention::is_causal`]; excludes a mask.
    pub is_causal: bool,
    /// As [`Attention::scale`].
    pub scale: Option<f64>,
    /// Whether keys and values may have fewer heads, `[.., h / r, t, d]`, than queries, `[.., h, s, d]`: heads `r i` to
    /// `r i + r - 1` of the queries share head `i` of these (grouped queries).
    pub enable_gqa: bool,
}

impl AttentionOptions {
    /// With the next key of this thread's generator, if weights are left out.
    fn attention(&self) -> Attention {
        let dropout = (self.dropout_p != 0.0).then(|| Dropout { p: self.dropout_p, key: next_key() });
        Attention { is_causal: self.is_causal, scale: self.scale, mask: self.attn_mask.clone(), dropout }
    }
}

impl Operand for &AttentionOptions {
    type Cast = AttentionOptions;

    fn cast(self, cast: &Cast) -> Result<AttentionOptions> {
        Ok(AttentionOptions { attn_mask: self.attn_mask.as_ref().cast(cast)?, ..self.clone() })
    }
}

#[derive::located]
impl Var {
    /// `softmax(scale q k^T + mask) v` for `self` the queries. Unlike for [`Tensor::scaled_dot_product_attention`], the
    /// leading axes broadcast, and the options are torch's.
    ///
    /// # Errors
    /// As for [`Tensor::scaled_dot_product_attention`]; `InvalidArgument` for `enable_gqa` unless keys and values have
    /// the same number of heads, and it divides the queries' number of heads.
    pub fn scaled_dot_product_attention(&self, k: &Var, v: &Var, options: &AttentionOptions) -> Result<Var> {
        autocast!("attention", [self, k, v, options], |q, k, v, options| {
            q.scaled_dot_product_attention(&k, &v, &options)
        });
        if options.enable_gqa {
            return grouped([self, k, v], options);
        }
        let [q, k, v] = without_hidden([self, k, v], options.attn_mask.as_ref())?;
        let [q, k, v] = broadcast([&q, &k, &v])?;
        attend(options.attention(), [&q, &k, &v])
    }

    /// [`Var::scaled_dot_product_attention`] of a sequence to itself, by heads: queries, keys and values of all heads lie
    /// side by side, as one linear map makes them, and so does their gradient.
    ///
    /// Shapes: `[.., s, 3 h d]` -> `[.., s, h d]`.
    ///
    /// # Errors
    /// As [`Var::scaled_dot_product_attention`]; `InvalidArgument` if the last axis is not divided by three times the heads.
    pub fn self_attention(&self, heads: usize, options: &AttentionOptions) -> Result<Var> {
        autocast!("self_attention", [self, options], |x, options| x.self_attention(heads, &options));
        if options.attn_mask.is_some() {
            let [q, k, v] = unpack(self, heads)?;
            return merge_heads(&q.scaled_dot_product_attention(&k, &v, options)?);
        }
        let attention = options.attention();
        let Attended { out, log_sums } = attention.forward_packed(self.value(), heads)?;
        let saved = [Save::Input(0), Save::Output, Save::Tensor(&log_sums)];
        record_one("self_attention", self, &saved, out, move |ctx, g| {
            let (qkv, out, log_sums) = (ctx.saved(0), ctx.saved(1), ctx.saved(2));
            let attended = Attended { out: out.value().clone(), log_sums: log_sums.value().clone() };
            if is_recording() {
                let [q, k, v] = unpack(&qkv, heads)?;
                let g = split_heads(g, heads)?;
                let grads = recorded_gradients(&attention, [&q, &k, &v], &attended, &g)?;
                let [q, k, v] = &grads;
                let parts = [merge_heads(q)?, merge_heads(k)?, merge_heads(v)?];
                return Var::cat(&parts.each_ref(), -1);
            }
            Ok(Var::constant(attention.backward_packed(qkv.value(), heads, &attended, g.value())?))
        })
    }
}

/// Operands with zeros for what the mask hides from all: keys and values that no query sees, and queries that see no key. A weight of 0
/// would not keep NaN or an infinity out of a product.
fn without_hidden([q, k, v]: [&Var; 3], mask: Option<&Tensor>) -> Result<[Var; 3]> {
    let ([scores @ .., _], [.., keys, _]) = (q.shape(), k.shape()) else {
        return Ok([q.clone(), k.clone(), v.clone()]);
    };
    let scores: Dims = scores.iter().chain([keys]).copied().collect();
    let Some(mut mask) = mask.filter(|mask| is_mask(mask, &scores)).cloned() else {
        return Ok([q.clone(), k.clone(), v.clone()]);
    };
    while mask.rank() < 2 {
        mask = mask.unsqueeze(0)?;
    }
    let (added, nothing) = if mask.dtype() == DType::Bool {
        (mask.to_dtype(DType::U8)?, 0.0)
    } else {
        (mask, f64::NEG_INFINITY)
    };
    let hidden_along = |axis| added.max(&[axis], true)?.eq(nothing);
    let (queries, keys) = (hidden_along(-1)?, hidden_along(-2)?.transpose(-2, -1)?);
    Ok([q.masked_fill(&queries, 0.0)?, k.masked_fill(&keys, 0.0)?, v.masked_fill(&keys, 0.0)?])
}

/// Whether a mask broadcasts to scores of this shape and has elements; attention itself refuses others.
fn is_mask(mask: &Tensor, scores: &[usize]) -> bool {
    let sizes = mask.shape().iter().rev().zip(scores.iter().rev());
    let fits = mask.rank() <= scores.len() && sizes.into_iter().all(|(&own, &size)| own == 1 || own == size);
    fits && !mask.is_empty() && (mask.dtype() == DType::Bool || mask.dtype().is_float())
}

/// Attention of operands with the same leading axes.
fn attend(attention: Attention, [q, k, v]: [&Var; 3]) -> Result<Var> {
    let Attended { out, log_sums } = attention.forward([q, k, v].map(Var::value))?;
    let saved = [Save::Input(0), Save::Input(1), Save::Input(2), Save::Output, Save::Tensor(&log_sums)];
    Ok(record("attention", &[q, k, v], &saved, out, move |ctx, g| {
        let (q, k, v) = (ctx.saved(0), ctx.saved(1), ctx.saved(2));
        let (out, log_sums) = (ctx.saved(3).value().clone(), ctx.saved(4).value().clone());
        let attended = Attended { out, log_sums };
        if is_recording() {
            return recorded_gradients(&attention, [&q, &k, &v], &attended, g)
                .map(|grads| grads.into_iter().map(Some).collect());
        }
        let grads = attention.backward([&q, &k, &v].map(Var::value), &attended, g.value())?;
        Ok(grads.into_iter().map(|grad| Some(Var::constant(grad))).collect())
    }))
}

/// Attention of queries `[.., h, s, d]` in groups of heads, as attention of `[.., h / r, r, s, d]` to keys and values that lie in
/// memory once for each group.
fn grouped([q, k, v]: [&Var; 3], options: &AttentionOptions) -> Result<Var> {
    let heads = |x: &Var| x.shape().iter().rev().nth(2).copied();
    let (all, groups) = (heads(q), heads(k));
    let divided = all.zip(groups).filter(|&(all, each)| each > 0 && all.is_multiple_of(each));
    let Some((all, groups)) = divided.filter(|_| groups == heads(v)) else {
        let shapes = [q, k, v].map(Var::shape);
        let expected = "keys and values with equally many heads, by which the queries' can be divided";
        return Err(Error::invalid(OP, "enable_gqa", expected, format_args!("{shapes:?}")));
    };
    // The axis of heads, of which there are `each` in a group, as two.
    let split = |shape: &[usize], each: usize| -> Dims {
        let (leading, rows) = shape.split_at(shape.len() - 3);
        let pair = [rows[0] / each, each];
        leading.iter().copied().chain(pair).chain(rows[1..].iter().copied()).collect()
    };
    let attn_mask = match &options.attn_mask {
        Some(mask) if mask.rank() > 2 => {
            let each = match mask.shape()[mask.rank() - 3] {
                1 => 1,
                heads if heads == all => all / groups,
                _ => {
                    return Err(Error::shape_mismatch(
                        OP,
                        "attn_mask [.., s, t] must broadcast to query [.., s, d]",
                        q.shape(),
                        mask.shape(),
                    ));
                }
            };
            Some(mask.reshape(&split(mask.shape(), each))?)
        }
        mask => mask.clone(),
    };
    let options = AttentionOptions { attn_mask, enable_gqa: false, ..options.clone() };
    let [k, v] = [k.unsqueeze(-3)?, v.unsqueeze(-3)?];
    let y = q.reshape(&split(q.shape(), all / groups))?.scaled_dot_product_attention(&k, &v, &options)?;
    let mut shape = Dims::from_slice(q.shape());
    if let (Some(last), Some(width)) = (shape.last_mut(), v.shape().last()) {
        *last = *width;
    }
    y.reshape(&shape)
}

/// Queries, keys and values with the same leading axes.
fn broadcast([q, k, v]: [&Var; 3]) -> Result<[Var; 3]> {
    let leading = |x: &Var| x.shape().len().checked_sub(2);
    let (Some(of_q), Some(of_k), Some(of_v)) = (leading(q), leading(k), leading(v)) else {
        return Err(Error::shape_mismatch(OP, "query [.., s, d] takes key [.., t, d]", q.shape(), k.shape()));
    };
    let (q_axes, k_axes, v_axes) = (&q.shape()[..of_q], &k.shape()[..of_k], &v.shape()[..of_v]);
    if q_axes == k_axes && k_axes == v_axes {
        return Ok([q.clone(), k.clone(), v.clone()]);
    }
    // The shape that all of them broadcast to, aligned at the last leading axis.
    let rank = of_q.max(of_k).max(of_v);
    let size = |axis: usize| {
        let own = |axes: &[usize]| (axis + axes.len()).checked_sub(rank).map(|axis| axes[axis]);
        [q_axes, k_axes, v_axes].into_iter().filter_map(own).find(|&size| size != 1).unwrap_or(1)
    };
    let common: Dims = (0..rank).map(size).collect();
    let expand = |x: &Var, own: usize| x.expand(&[&common[..], &x.shape()[own..]].concat());
    Ok([expand(q, of_q)?, expand(k, of_k)?, expand(v, of_v)?])
}

/// `[.., s, 3 h d]` as queries, keys and values `[.., h, s, d]`.
fn unpack(qkv: &Var, heads: usize) -> Result<[Var; 3]> {
    let packed = qkv.shape().last().copied().unwrap_or(0);
    let value = format_args!("shape {:?} for {heads} heads", qkv.shape());
    let is_valid = heads > 0 && packed.is_multiple_of(3 * heads);
    Error::require(is_valid, "self_attention", "qkv", "three times the heads' width", value)?;
    let part = |index: usize| split_heads(&qkv.narrow(-1, index * packed / 3, packed / 3)?, heads);
    Ok([part(0)?, part(1)?, part(2)?])
}

fn split_heads(x: &Var, heads: usize) -> Result<Var> {
    let mut shape = Dims::from_slice(x.shape());
    let width = shape.pop().unwrap_or(0);
    shape.extend([heads, width / heads.max(1)]);
    x.reshape(&shape)?.transpose(-3, -2)
}

fn merge_heads(x: &Var) -> Result<Var> {
    let x = x.transpose(-3, -2)?;
    let mut shape = Dims::from_slice(x.shape());
    let width = shape.pop().unwrap_or(0);
    if let Some(last) = shape.last_mut() {
        *last *= width;
    }
    x.reshape(&shape)
}

/// What a score that cannot be seen is lowered to: finite, so that gradients of gradients are.
fn hidden(dtype: DType) -> f64 {
    if dtype == DType::F16 { -6e4 } else { -1e30 }
}

/// The weights of the values, as a matrix.
fn weights(attention: &Attention, q: &Var, k: &Var) -> Result<Var> {
    let width = q.shape().last().copied().unwrap_or(0);
    let scores = q.matmul(&k.transpose(-2, -1)?)?.mul_scalar(attention.scale_for(width))?;
    let mask = match attention.added_mask(q.value(), k.value())? {
        Some(mask) => Some(mask.clamp(hidden(q.dtype()), f64::INFINITY)?),
        None if attention.is_causal => Some(causal_mask(q, k)?),
        None => None,
    };
    match mask {
        Some(mask) => scores.add(&Var::constant(mask))?.softmax(-1),
        None => scores.softmax(-1),
    }
}

/// 0 where the key does not come after the query, `[s, t]`.
fn causal_mask(q: &Var, k: &Var) -> Result<Tensor> {
    let len = |x: &Var| x.shape().iter().rev().nth(1).copied().unwrap_or(0);
    Tensor::full(&[len(q), len(k)], hidden(q.dtype()), q.dtype(), q.device())?.triu(1)
}

/// 1 for a query that sees a key, 0 for others, `[.., s, 1]`.
fn seen(attended: &Attended) -> Result<Var> {
    let sums = &attended.log_sums;
    let seen = sums.ne(f64::INFINITY)?.to_dtype(attended.out.dtype())?;
    Ok(Var::constant(seen.unsqueeze(-1)?))
}

/// The gradients as ops that can be differentiated again.
fn recorded_gradients(
    attention: &Attention,
    [q, k, v]: [&Var; 3],
    attended: &Attended,
    g: &Var,
) -> Result<[Var; 3]> {
    let scale = attention.scale_for(q.shape().last().copied().unwrap_or(0));
    let p = weights(attention, q, k)?.mul(&seen(attended)?)?;
    let kept = attention.kept_weights(q.value(), k.value())?.map(Var::constant);
    // Factors have more bits than elements may have: rounded is the product alone.
    let dropped = |x: Var| kept.as_ref().map_or(Ok(x.clone()), |kept| x.mul(kept)?.to_dtype(x.dtype()));
    let slopes = dropped(g.matmul(&v.transpose(-2, -1)?)?)?;
    let mean = p.mul(&slopes)?.sum(&[-1], true)?;
    let u = p.mul(&slopes.sub(&mean)?)?.mul_scalar(scale)?;
    let p = dropped(p)?;
    Ok([u.matmul(k)?, u.transpose(-2, -1)?.matmul(q)?, p.transpose(-2, -1)?.matmul(g)?])
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let of = |name, shapes: [&[usize]; 3], options: AttentionOptions| {
        d.sample(name, &shapes, move |v| v[0].scaled_dot_product_attention(&v[1], &v[2], &options))
    };
    let plain = AttentionOptions::default;
    let causal = || AttentionOptions { is_causal: true, ..plain() };
    let truth = d.normal(&[3, 4])?.gt(-0.5)?;
    // The second query sees nothing.
    let hidden = Tensor::from_slice(&[0.0, f64::NEG_INFINITY, 1.0], &[3, 1], &d.device)?;
    let masked = |mask: &Tensor| AttentionOptions { attn_mask: Some(mask.clone()), ..plain() };
    let dropped = |name, shapes: [&[usize]; 3], attention: Attention| {
        let dropout = Some(Dropout { p: 0.3, key: RandomKey { seed: 5, op: 1 } });
        let attention = Attention { dropout, ..attention };
        d.sample(name, &shapes, move |v| attend(attention.clone(), [&v[0], &v[1], &v[2]]))
    };
    let causal_dropout = Attention { is_causal: true, ..Attention::default() };
    let in_groups = |options| AttentionOptions { enable_gqa: true, ..options };
    let of_heads = d.normal(&[4, 3, 5])?.gt(-0.5)?;
    Ok(vec![
        of("groups", [&[2, 4, 3, 2], &[2, 2, 5, 2], &[2, 2, 5, 3]], in_groups(causal()))?,
        of("groups_masked", [&[2, 4, 3, 2], &[1, 2, 5, 2], &[2, 2, 5, 2]], in_groups(masked(&of_heads)))?,
        of("one_head", [&[3, 2], &[4, 2], &[4, 3]], plain())?,
        of("heads", [&[2, 2, 3, 2], &[2, 2, 4, 2], &[2, 2, 4, 3]], plain())?,
        of("causal", [&[2, 5, 3], &[2, 5, 3], &[2, 5, 2]], causal())?,
        of("causal_more_keys", [&[3, 2], &[5, 2], &[5, 2]], causal())?,
        of("causal_more_queries", [&[5, 2], &[3, 2], &[3, 2]], causal())?,
        of("odd", [&[1, 37, 3], &[1, 35, 3], &[1, 35, 2]], plain())?,
        of("scaled", [&[2, 3], &[2, 3], &[2, 3]], AttentionOptions { scale: Some(0.3), ..plain() })?,
        of("truth_values", [&[2, 3, 2], &[2, 4, 2], &[2, 4, 2]], masked(&truth))?,
        of("nothing_seen", [&[3, 2], &[4, 2], &[4, 2]], masked(&hidden))?,
        of("broadcast", [&[2, 3, 2], &[1, 4, 2], &[4, 2]], plain())?,
        d.sample("all_the_same", &[&[3, 2]], |v| {
            v[0].scaled_dot_product_attention(&v[0], &v[0], &AttentionOptions::default())
        })?,
        dropped("dropout", [&[2, 3, 2], &[2, 4, 2], &[2, 4, 2]], Attention::default())?,
        dropped("dropout_causal", [&[2, 5, 3], &[2, 5, 3], &[2, 5, 2]], causal_dropout)?,
    ])
}

pub(super) fn packed_samples(d: &Draw) -> Result<Vec<Sample>> {
    let of = |name, shape, heads, is_causal| {
        let options = AttentionOptions { is_causal, ..AttentionOptions::default() };
        d.sample(name, &[shape], move |v| v[0].self_attention(heads, &options))
    };
    Ok(vec![
        of("heads", &[2, 3, 12], 2, false)?,
        of("one_head", &[3, 6], 1, false)?,
        of("causal", &[2, 5, 12], 2, true)?,
        of("odd", &[1, 35, 6], 2, true)?,
    ])
}

#[cfg(test)]
mod tests {
    use tensor::Device;

    use super::super::testing::{close, close_values, gradient, leaf, tensor};
    use super::*;
    use tensor::ErrorKind;

    fn drawn(shape: &[usize], op: u64) -> Result<Var> {
        let key = RandomKey { seed: 3, op };
        Ok(Var::leaf(Tensor::randn(shape, DType::F64, key, &Device::cpu())?))
    }

    #[test]
    fn closed_form() -> Result<()> {
        let q = leaf(&[0.0, 0.0, 3.0_f64.ln(), 0.0], &[2, 2])?;
        let (k, v) = (leaf(&[1.0, 0.0, 0.0, 0.0], &[2, 2])?, leaf(&[1.0, 5.0], &[2, 1])?);
        let options = AttentionOptions { scale: Some(1.0), ..AttentionOptions::default() };
        let y = q.scaled_dot_product_attention(&k, &v, &options)?;
        close(&y, &[3.0, 2.0])?;
        close_values(&gradient(&y, &v)?, &[0.5 + 0.75, 0.5 + 0.25]);
        let causal = AttentionOptions { is_causal: true, ..options };
        close(&q.scaled_dot_product_attention(&k, &v, &causal)?, &[1.0, 2.0])
    }

    /// Padding that no query sees, and queries that see nothing, may hold anything.
    #[test]
    fn what_the_mask_hides_from_all_is_not_read() -> Result<()> {
        let inf = f64::INFINITY;
        let shown = AttentionOptions::default();
        let (q, k, v) = (drawn(&[2, 3, 4], 1)?, drawn(&[2, 4, 4], 2)?, drawn(&[2, 4, 3], 3)?);
        let few = |x: &Var, len| x.narrow(1, 0, len);
        // The last two keys and the last query are hidden.
        let expected = few(&q, 2)?.scaled_dot_product_attention(&few(&k, 2)?, &few(&v, 2)?, &shown)?;
        let expected = (
            expected.value().to_vec::<f64>()?,
            [
                gradient(&expected.square()?, &q)?,
                gradient(&expected.square()?, &k)?,
                gradient(&expected.square()?, &v)?,
            ],
        );
        let spoilt = |x: &Var, seen: usize, bad: f64| -> Result<Var> {
            let behind = Tensor::arange(0_i64, x.shape()[1] as i64, 1_i64, DType::I64, x.device())?;
            let behind = behind.ge(seen as f64)?.unsqueeze(1)?;
            Ok(Var::leaf(x.masked_fill(&behind, bad)?.value().clone()))
        };
        let seen: Vec<bool> = (0..12).map(|at| at < 8 && at % 4 < 2).collect();
        let truth = tensor(&seen, &[3, 4])?;
        let numbers: Vec<f64> = seen.iter().map(|&seen| if seen { 0.0 } else { -inf }).collect();
        for mask in [truth.clone(), tensor(&numbers, &[3, 4])?, truth.expand(&[2, 3, 4])?] {
            for bad in [f64::NAN, inf, -inf] {
                let (q, k, v) = (spoilt(&q, 2, bad)?, spoilt(&k, 2, bad)?, spoilt(&v, 2, bad)?);
                let options = AttentionOptions { attn_mask: Some(mask.clone()), ..shown.clone() };
                let y = q.scaled_dot_product_attention(&k, &v, &options)?;
                close_values(&few(&y, 2)?.value().to_vec::<f64>()?, &expected.0);
                close_values(&y.narrow(1, 2, 1)?.value().to_vec::<f64>()?, &[0.0; 6]);
                for (x, expected) in [&q, &k, &v].into_iter().zip(&expected.1) {
                    close_values(&gradient(&y.square()?, x)?, expected);
                }
            }
        }
        Ok(())
    }

    #[test]
    fn it_is_the_product_of_its_parts() -> Result<()> {
        let (q, k, v) = (drawn(&[2, 3, 70, 4], 1)?, drawn(&[2, 3, 40, 4], 2)?, drawn(&[2, 3, 40, 5], 3)?);
        let scores = q.matmul(&k.transpose(-2, -1)?)?.mul_scalar(0.5)?;
        let expected = scores.softmax(-1)?.matmul(&v)?;
        let y = q.scaled_dot_product_attention(&k, &v, &AttentionOptions::default())?;
        close(&y, &expected.value().to_vec::<f64>()?)?;
        for x in [&q, &k, &v] {
            close_values(&gradient(&y.square()?, x)?, &gradient(&expected.square()?, x)?);
        }
        Ok(())
    }

    #[test]
    fn packed_operands_give_what_single_ones_do() -> Result<()> {
        let qkv = drawn(&[2, 6, 24], 1)?;
        let causal = AttentionOptions { is_causal: true, ..AttentionOptions::default() };
        let packed = qkv.self_attention(4, &causal)?;
        let [q, k, v] = unpack(&qkv, 4)?;
        let single = merge_heads(&q.scaled_dot_product_attention(&k, &v, &causal)?)?;
        assert_eq!(packed.value().to_vec::<f64>()?, single.value().to_vec::<f64>()?);
        assert_eq!(gradient(&packed.square()?, &qkv)?, gradient(&single.square()?, &qkv)?);
        Ok(())
    }

    #[test]
    fn groups_of_heads_share_keys_and_values() -> Result<()> {
        let (q, k, v) = (drawn(&[2, 6, 5, 4], 1)?, drawn(&[2, 3, 7, 4], 2)?, drawn(&[2, 3, 7, 3], 3)?);
        let repeated = |x: &Var| -> Result<Var> {
            let shape: Vec<usize> = [2, 3, 2].iter().chain(&x.shape()[2..]).copied().collect();
            x.unsqueeze(2)?.expand(&shape)?.reshape(&[2, 6, 7, shape[4]])
        };
        let masks =
            [None, Some(vec![5, 7]), Some(vec![1, 5, 7]), Some(vec![6, 5, 7]), Some(vec![2, 6, 5, 7])];
        for shape in masks {
            let mask = shape.map(|shape| drawn(&shape, 4)).transpose()?;
            let plain = AttentionOptions {
                attn_mask: mask.map(|mask| mask.value().clone()),
                ..AttentionOptions::default()
            };
            let in_groups = AttentionOptions { enable_gqa: true, ..plain.clone() };
            let y = q.scaled_dot_product_attention(&k, &v, &in_groups)?;
            let expected = q.scaled_dot_product_attention(&repeated(&k)?, &repeated(&v)?, &plain)?;
            assert_eq!(y.value().to_vec::<f64>()?, expected.value().to_vec::<f64>()?);
            for x in [&q, &k, &v] {
                close_values(&gradient(&y.square()?, x)?, &gradient(&expected.square()?, x)?);
            }
        }
        let four = drawn(&[2, 4, 7, 4], 5)?;
        let in_groups = AttentionOptions { enable_gqa: true, ..AttentionOptions::default() };
        let of_groups =
            AttentionOptions { attn_mask: Some(drawn(&[3, 5, 7], 6)?.value().clone()), ..in_groups.clone() };
        let refused = q.scaled_dot_product_attention(&k, &v, &of_groups);
        assert!(
            matches!(refused.as_ref().map_err(Error::kind), Err(ErrorKind::ShapeMismatch { .. })),
            "{refused:?}"
        );
        for (k, v) in [(&four, &four), (&k, &four), (&leaf(&[0.0; 8], &[2, 4])?, &v)] {
            let refused = q.scaled_dot_product_attention(k, v, &in_groups);
            assert!(
                matches!(
                    refused.as_ref().map_err(Error::kind),
                    Err(ErrorKind::InvalidArgument { argument: "enable_gqa", .. })
                ),
                "{refused:?}"
            );
        }
        Ok(())
    }

    #[test]
    fn masks_hide_and_dropout_scales() -> Result<()> {
        let (q, v) = (leaf(&[0.0; 4], &[2, 2])?, leaf(&[1.0, 2.0, 4.0, 8.0], &[4, 1])?);
        let k = leaf(&[0.0; 8], &[4, 2])?;
        let with = |mask: Tensor| {
            let options = AttentionOptions { attn_mask: Some(mask), ..AttentionOptions::default() };
            q.scaled_dot_product_attention(&k, &v, &options)
        };
        let seen = [true, false, false, true, false, false, false, false];
        close(&with(tensor(&seen, &[2, 4])?)?, &[4.5, 0.0])?;
        close(&with(tensor(&[0.0, 3.0_f64.ln(), f64::NEG_INFINITY, 0.0], &[4])?)?, &[3.0, 3.0])?;
        let none = AttentionOptions { dropout_p: 1.0, ..AttentionOptions::default() };
        close(&q.scaled_dot_product_attention(&k, &v, &none)?, &[0.0, 0.0])
    }

    /// Each weight by itself is seen where values are the identity, and so are its gradients.
    #[test]
    fn weights_are_left_out_by_their_numbers() -> Result<()> {
        let (heads, queries, keys) = (3, 40, 37);
        let (q, k) = (drawn(&[heads, queries, 4], 1)?, drawn(&[heads, keys, 4], 2)?);
        let g = Var::constant(drawn(&[heads, queries, keys], 3)?.value().clone());
        let identity: Vec<f64> = (0..keys * keys).map(|i| f64::from(u8::from(i % (keys + 1) == 0))).collect();
        let v = leaf(&identity, &[keys, keys])?.expand(&[heads, keys, keys])?;
        for is_causal in [false, true] {
            let dropout = Some(Dropout { p: 0.3, key: RandomKey { seed: 5, op: 9 } });
            let whole = Attention { is_causal, ..Attention::default() };
            let attention = Attention { dropout, ..whole.clone() };
            let Some(kept) = attention.kept_weights(q.value(), k.value())? else { unreachable!() };
            let share = kept.to_vec::<f64>()?.iter().filter(|&&x| x != 0.0).count() as f64;
            assert!((share / (heads * queries * keys) as f64 - 0.7).abs() < 0.03, "{share}");
            let expected = weights(&whole, &q, &k)?.mul(&Var::constant(kept))?.matmul(&v)?;
            let y = attend(attention, [&q, &k, &v])?;
            close(&y, &expected.value().to_vec::<f64>()?)?;
            for x in [&q, &k, &v] {
                close_values(&gradient(&y.mul(&g)?, x)?, &gradient(&expected.mul(&g)?, x)?);
            }
        }
        let refused = AttentionOptions { dropout_p: 1.5, ..AttentionOptions::default() };
        let refused = q.scaled_dot_product_attention(&k, &v, &refused);
        assert!(
            matches!(
                refused.as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { argument: "p", .. })
            ),
            "{refused:?}"
        );
        Ok(())
    }

    #[test]
    fn bad_arguments_are_errors() -> Result<()> {
        let x = leaf(&[0.0; 6], &[2, 3])?;
        let both = AttentionOptions {
            is_causal: true,
            attn_mask: Some(tensor(&[0.0; 4], &[2, 2])?),
            ..AttentionOptions::default()
        };
        assert!(matches!(
            x.scaled_dot_product_attention(&x, &x, &both).as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { .. })
        ));
        let narrow = leaf(&[0.0; 4], &[2, 2])?;
        let plain = AttentionOptions::default();
        assert!(matches!(
            x.scaled_dot_product_attention(&narrow, &x, &plain).as_ref().map_err(Error::kind),
            Err(ErrorKind::ShapeMismatch { .. })
        ));
        assert!(leaf(&[0.0], &[1])?.scaled_dot_product_attention(&x, &x, &plain).is_err());
        for heads in [0, 2] {
            assert!(matches!(
                x.self_attention(heads, &plain).as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { .. })
            ));
        }
        Ok(())
    }
}
