//! What layer norm, RMS norm and group norm share: `y = h w + b` with `h = (x - mean) r`, `r = 1 / sqrt(mean (x - mean)² + ε)`
//! of each row; `x' = r (d - mean d - h mean d h)` with `d = g w`, `w' = Σ g h`, `b' = Σ g`. RMS norm has no mean.

use smallvec::SmallVec;
use tensor::{DType, Norm, Result};

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
    let kind_of = |given: Option<&Var>| given.map(|given| (Dims::from_slice(given.shape()), given.dtype()));
    let parameters = Parameters { norm, weight: kind_of(weight), bias: kind_of(bias) };
    Ok(record(norm.op, &inputs, &saved, value.out, move |ctx, g| {
        if is_recording() { parameters.composite(ctx, g) } else { parameters.fused(ctx, g) }
    }))
}

/// The norm, and shapes and types of its parameters.
struct Parameters {
    norm: Norm,
    weight: Option<(Dims, DType)>,
    bias: Option<(Dims, DType)>,
}

impl Parameters {
    /// Whether the gradients of weight and bias are of use.
    fn needs(&self, ctx: &Vjp<'_>) -> [bool; 2] {
        let weight = self.weight.is_some();
        [weight && ctx.needs(1), self.bias.is_some() && ctx.needs(1 + usize::from(weight))]
    }

    fn weight(&self, ctx: &Vjp<'_>) -> Option<Var> {
        self.weight.as_ref().map(|_| ctx.saved(2 + usize::from(self.norm.centred)))
    }

    /// The gradients of the inputs that there are.
    fn grads(&self, x: Option<Var>, weight: Option<Var>, bias: Option<Var>) -> Result<Grads> {
        let mut grads = Grads::new();
        grads.push(x);
        for (kind, gradient) in [(&self.weight, weight), (&self.bias, bias)] {
            if let Some((shape, dtype)) = kind {
                grads.push(gradient.map(|gradient| gradient.reshape(shape)?.to_dtype(*dtype)).transpose()?);
            }
        }
        Ok(grads)
    }

    fn fused(&self, ctx: &Vjp<'_>, g: &Var) -> Result<Grads> {
        let (x, rstd) = (ctx.saved(0), ctx.saved(1));
        let mean = self.norm.centred.then(|| ctx.saved(2));
        let weight = self.weight(ctx);
        let [needs_weight, needs_bias] = self.needs(ctx);
        let [mean, weight] = [&mean, &weight].map(|given| given.as_ref().map(Var::value));
        let wanted = [ctx.needs(0), needs_weight, needs_bias];
        let found = self.norm.backward(g.value(), x.value(), weight, mean, rstd.value(), wanted)?;
        let [x, weight, bias] = [found.x, found.weight, found.bias].map(|found| found.map(Var::constant));
        self.grads(x, weight, bias)
    }

    fn composite(&self, ctx: &Vjp<'_>, g: &Var) -> Result<Grads> {
        let (x, rows) = (ctx.saved(0), self.norm.rows);
        let together = rows.weights() * rows.inner;
        let n = x.value().elements().checked_div(together).unwrap_or(0);
        let by_rows = |v: &Var| v.reshape(&[n, rows.groups, rows.channels, rows.inner]);
        let mean = |v: &Var| v.mean(&[2, 3], true);
        let computed = |v: &Var| v.to_dtype(x.dtype().compute_dtype());
        let (x4, g4) = (by_rows(&computed(&x)?)?, by_rows(&computed(g)?)?);
        let deviation = if self.norm.centred { x4.sub(&mean(&x4)?)? } else { x4 };
        let rstd = mean(&deviation.square()?)?.add_scalar(self.norm.eps)?.rsqrt()?;
        let h = deviation.mul(&rstd)?;
        let weighted = match self.weight(ctx) {
            Some(weight) => g4.mul(&computed(&weight)?.reshape(&[rows.groups, rows.channels, 1])?)?,
            None => g4.clone(),
        };
        let slope = h.mul(&mean(&weighted.mul(&h)?)?)?;
        let shifted = if self.norm.centred { weighted.sub(&mean(&weighted)?)? } else { weighted };
        let dx = shifted.sub(&slope)?.mul(&rstd)?.reshape(x.shape())?.to_dtype(x.dtype())?;
        let [needs_weight, needs_bias] = self.needs(ctx);
        let over_rows = |v: Var| v.sum(&[0, 3], false);
        let weight = needs_weight.then(|| over_rows(g4.mul(&h)?)).transpose()?;
        let bias = needs_bias.then(|| over_rows(g4.clone())).transpose()?;
        self.grads(ctx.needs(0).then_some(dx), weight, bias)
    }
}

#[cfg(test)]
mod tests {
    use tensor::{Device, RandomKey, Tensor};

    use super::*;
    use crate::{GradOptions, grad};

    type Op = fn(&Var, &Var, &Var) -> Result<Var>;

    /// Elements of 16 bits: weights of F32 stay so, in the value, in gradients, and in gradients of these.
    #[test]
    fn weights_may_be_wider_than_elements() -> Result<()> {
        let ops: [(&str, Op); 4] = [
            ("layer_norm", |x, weight, bias| x.layer_norm(&[6], Some(weight), Some(bias), 1e-5)),
            ("rms_norm", |x, weight, _| x.rms_norm(&[6], Some(weight), None)),
            ("group_norm", |x, weight, bias| x.group_norm(3, Some(weight), Some(bias), 1e-5)),
            ("batch_norm", |x, weight, bias| Ok(x.batch_norm(Some(weight), Some(bias), 1e-5)?.0)),
        ];
        let drawn = |shape: &[usize], op| -> Result<Tensor> {
            Tensor::randn(shape, DType::F32, RandomKey { seed: 9, op }, &Device::cpu())
        };
        let factors = Var::constant(drawn(&[5, 6], 4)?);
        // A weight that 16 bits would round.
        let (x, weight, bias) = (drawn(&[5, 6], 1)?, drawn(&[6], 2)?.add_scalar(1.0 / 3.0)?, drawn(&[6], 3)?);
        for half in [DType::BF16, DType::F16] {
            for (name, op) in ops {
                let run = |x: Tensor, weight: &Tensor| -> Result<Vec<Tensor>> {
                    let [x, weight, bias] = [x, weight.clone(), bias.clone()].map(Var::leaf);
                    let y = op(&x, &weight, &bias)?;
                    let loss = y.to_dtype(DType::F32)?.mul(&factors)?.square()?.sum_all()?;
                    let recorded = GradOptions { create_graph: true, ..GradOptions::default() };
                    let first = grad(&[loss], &[x.clone(), weight.clone()], recorded)?;
                    let first: Vec<Var> = first.into_iter().flatten().collect();
                    let square = |g: &Var| g.to_dtype(DType::F32)?.square()?.sum_all();
                    let second = square(&first[0])?.add(&square(&first[1])?)?.backward()?;
                    let mut all = vec![y.value().clone()];
                    all.extend(first.iter().map(|g| g.value().clone()));
                    all.extend([&x, &weight].into_iter().filter_map(|of| second.get(of)));
                    Ok(all)
                };
                let narrow = x.to_dtype(half)?;
                let (mixed, wide) =
                    (run(narrow.clone(), &weight)?, run(narrow.to_dtype(DType::F32)?, &weight)?);
                assert_eq!((mixed.len(), wide.len()), (5, 5), "{name}");
                let types: Vec<DType> = mixed.iter().map(Tensor::dtype).collect();
                assert_eq!(types, [half, half, DType::F32, half, DType::F32], "{name}");
                for (what, (mixed, wide)) in mixed.iter().zip(&wide).enumerate() {
                    let most = wide.abs()?.max(&[], false)?.item::<f32>()?;
                    let apart =
                        mixed.to_dtype(DType::F32)?.sub(wide)?.abs()?.max(&[], false)?.item::<f32>()?;
                    // The value and what follows from it were rounded.
                    assert!(apart <= 0.03 * most, "{name} of {half:?}, {what}: {apart} of {most}");
                }
            }
        }
        Ok(())
    }
}
