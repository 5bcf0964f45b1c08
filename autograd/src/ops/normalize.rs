//! What layer norm, RMS norm and group norm share: `y = h w + b` with `h = (x - mean) r`, `r = 1 / sqrt(mean (x - mean)² + ε)`
//! of each row; `x' = r (d - mean d - h mean d h)` with `d = g w`, `w' = Σ g h`, `b' = Σ g`. RMS norm has no mean.

use smallvec::SmallVec;
use tensor::{Norm, Result};

use super::Dims;
use crate::{Grads, Save, Var, Vjp, is_recording, record};

/// Normalizes `x` and records it. The first gradient is made by one kernel; a recorded one is made of ops, so that it can
/// be differentiated again.
pub(super) fn normalize(norm: Norm, x: &Var, weight: Option<&Var>, bias: Option<&Var>) -> Result<Var> {
    let value = norm.forward(x.value(), weight.map(Var::value), bias.map(Var::value))?;
    let mut inputs: SmallVec<[&Var; 3]> = SmallVec::from_slice(&[x]);
    let mut saved: SmallVec<[Save<'_>; 4]> =
        SmallVec::from_slice(&[Save::Input(0), Save::Tensor(&value.rstd)]);
    saved.extend(value.mean.as_ref().map(Save::Tensor));
    if let Some(weight) = weight {
        saved.push(Save::Input(1));
        inputs.push(weight);
    }
    inputs.extend(bias);
    let shape_of = |parameter: Option<&Var>| parameter.map(|parameter| Dims::from_slice(parameter.shape()));
    let parameters = Parameters { norm, weight: shape_of(weight), bias: shape_of(bias) };
    Ok(record(norm.op(), &inputs, &saved, value.out, move |ctx, g| {
        if is_recording() { parameters.composite(ctx, g) } else { parameters.fused(ctx, g) }
    }))
}

/// The norm and the shapes of its parameters.
struct Parameters {
    norm: Norm,
    weight: Option<Dims>,
    bias: Option<Dims>,
}

impl Parameters {
    /// Whether the gradients of weight and bias are of use.
    fn needs(&self, ctx: &Vjp<'_>) -> [bool; 2] {
        let weight = self.weight.is_some();
        [weight && ctx.needs(1), self.bias.is_some() && ctx.needs(1 + usize::from(weight))]
    }

    fn weight(&self, ctx: &Vjp<'_>) -> Option<Var> {
        self.weight.as_ref().map(|_| ctx.saved(2 + usize::from(self.norm.is_centred())))
    }

    /// The gradients of the inputs that there are.
    fn grads(&self, x: Option<Var>, weight: Option<Var>, bias: Option<Var>) -> Result<Grads> {
        let mut grads = Grads::new();
        grads.push(x);
        for (shape, gradient) in [(&self.weight, weight), (&self.bias, bias)] {
            if let Some(shape) = shape {
                grads.push(gradient.map(|gradient| gradient.reshape(shape)).transpose()?);
            }
        }
        Ok(grads)
    }

    fn fused(&self, ctx: &Vjp<'_>, g: &Var) -> Result<Grads> {
        let (x, rstd) = (ctx.saved(0), ctx.saved(1));
        let mean = self.norm.is_centred().then(|| ctx.saved(2));
        let weight = self.weight(ctx);
        let [needs_weight, needs_bias] = self.needs(ctx);
        let statistics = (mean.as_ref().map(Var::value), rstd.value());
        let weight = weight.as_ref().map(Var::value);
        let wanted = [ctx.needs(0), needs_weight, needs_bias];
        let found = self.norm.backward(g.value(), x.value(), weight, statistics, wanted)?;
        let [x, weight, bias] = [found.x, found.weight, found.bias].map(|found| found.map(Var::constant));
        self.grads(x, weight, bias)
    }

    fn composite(&self, ctx: &Vjp<'_>, g: &Var) -> Result<Grads> {
        let (x, rows) = (ctx.saved(0), self.norm.rows());
        let together = rows.weights() * rows.inner;
        let n = x.value().elements().checked_div(together).unwrap_or(0);
        let by_rows = |v: &Var| v.reshape(&[n, rows.groups, rows.channels, rows.inner]);
        let mean = |v: &Var| v.mean(&[2, 3], true);
        let (x4, g4) = (by_rows(&x)?, by_rows(g)?);
        let deviation = if self.norm.is_centred() { x4.sub(&mean(&x4)?)? } else { x4 };
        let rstd = mean(&deviation.square()?)?.add_scalar(self.norm.eps())?.rsqrt()?;
        let h = deviation.mul(&rstd)?;
        let weighted = match self.weight(ctx) {
            Some(weight) => g4.mul(&weight.reshape(&[rows.groups, rows.channels, 1])?)?,
            None => g4.clone(),
        };
        let slope = h.mul(&mean(&weighted.mul(&h)?)?)?;
        let shifted = if self.norm.is_centred() { weighted.sub(&mean(&weighted)?)? } else { weighted };
        let dx = shifted.sub(&slope)?.mul(&rstd)?.reshape(x.shape())?;
        let [needs_weight, needs_bias] = self.needs(ctx);
        let over_rows = |v: Var| v.sum(&[0, 3], false);
        let weight = needs_weight.then(|| over_rows(g4.mul(&h)?)).transpose()?;
        let bias = needs_bias.then(|| over_rows(g4.clone())).transpose()?;
        self.grads(ctx.needs(0).then_some(dx), weight, bias)
    }
}
