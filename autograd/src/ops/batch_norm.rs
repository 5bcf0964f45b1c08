//! `y = (x - mean) / √(var + eps) · weight + bias` in each channel. With `x̂ = (x - mean) / √(var + eps)` and `m` elements
//! in a channel: `weight' = Σ g x̂`, `bias' = Σ g`, `x' = weight / √(var + eps) · (g - (Σ g + x̂ Σ g x̂) / m)`; where
//! mean and variance are given, the last bracket is `g` alone. With a ReLU, `g` counts where `y > 0`.

use tensor::fused::{self, Activation};
use tensor::{BatchStatistics, Result, Tensor, grad};

use super::{Draw, Sample};
use crate::autocast::wide;
use crate::{Save, Var, Vjp, is_recording, record};

#[derive::located]
impl Var {
    /// Normalizes each channel by its own mean and variance, which it returns, too. Gradients flow through both, but
    /// not to the returned tensors. The gradients of weight and bias have the types of these. See
    /// [`Tensor::batch_norm`].
    ///
    /// # Errors
    /// As for [`Tensor::batch_norm`].
    pub fn batch_norm(
        &self,
        weight: Option<&Var>,
        bias: Option<&Var>,
        eps: f64,
    ) -> Result<(Var, BatchStatistics)> {
        batch_norm(self, None, [weight, bias], eps, Activation::None)
    }

    /// Normalizes each channel by a given mean and variance, to which no gradients flow. See
    /// [`Tensor::batch_norm_with`].
    ///
    /// # Errors
    /// As for [`Tensor::batch_norm_with`].
    pub fn batch_norm_with(
        &self,
        mean: &Tensor,
        var: &Tensor,
        weight: Option<&Var>,
        bias: Option<&Var>,
        eps: f64,
    ) -> Result<Var> {
        Ok(batch_norm(self, Some([mean, var]), [weight, bias], eps, Activation::None)?.0)
    }
}

/// A parameter of an op on `x` in the type that is computed in, if it is of the elements' type.
fn parameter(x: &Var, parameter: Option<&Var>) -> Result<Option<Var>> {
    let widened = |parameter: &Var| match parameter.dtype() {
        dtype if dtype == x.dtype() => parameter.to_dtype(dtype.compute_dtype()),
        _ => wide(parameter),
    };
    parameter.map(widened).transpose()
}

/// [`Var::batch_norm`], or [`Var::batch_norm_with`] for a `given` mean and variance, and an activation in the same pass, forward and
/// backward: the values are those of separate ops. Returns the statistics, too.
///
/// # Errors
/// As for [`Var::batch_norm`].
pub fn batch_norm(
    x: &Var,
    given: Option<[&Tensor; 2]>,
    affine: [Option<&Var>; 2],
    eps: f64,
    activation: Activation,
) -> Result<(Var, BatchStatistics)> {
    let x = &wide(x)?;
    let [weight, bias] = &[parameter(x, affine[0])?, parameter(x, affine[1])?];
    let values = [weight, bias].map(|given| given.as_ref().map(Var::value));
    let (value, statistics) = fused::batch_norm(x.value(), given, values, eps, activation)?;
    let relu = activation.is_relu();
    let mut inputs = vec![x];
    inputs.extend(weight);
    inputs.extend(bias);
    let mut saved = vec![Save::Tensor(&statistics.mean), Save::Tensor(&statistics.var), Save::Input(0)];
    saved.extend(weight.as_ref().map(|_| Save::Input(1)));
    saved.extend(bias.as_ref().filter(|_| relu).map(|_| Save::Input(inputs.len() - 1)));
    let (has_weight, has_bias, training) = (weight.is_some(), bias.is_some(), statistics.training);
    let op = activation.op("batch_norm", "batch_norm_relu");
    let y = record(op, &inputs, &saved, value, move |ctx, g| {
        let affine = [
            has_weight.then(|| ctx.saved(3)),
            (has_bias && relu).then(|| ctx.saved(3 + usize::from(has_weight))),
        ];
        let grads = gradients(ctx, g, affine, training, eps, activation)?;
        let of_inputs = grads.into_iter().zip([true, has_weight, has_bias]);
        Ok(of_inputs.filter(|(_, is_input)| *is_input).map(|(grad, _)| Some(grad)).collect())
    });
    Ok((y, statistics))
}

/// The gradients for images, weight and bias: one kernel, or an expression if they are to be differentiated in turn.
fn gradients(
    ctx: &Vjp<'_>,
    g: &Var,
    [weight, bias]: [Option<Var>; 2],
    training: bool,
    eps: f64,
    activation: Activation,
) -> Result<[Var; 3]> {
    let (mean, var, x) = (ctx.saved(0), ctx.saved(1), ctx.saved(2));
    let values = [&weight, &bias].map(|given| given.as_ref().map(Var::value));
    let [mean_value, var_value] = [&mean, &var].map(|found| found.value().clone());
    if is_recording() {
        let given = if training { None } else { Some((mean, var)) };
        if !activation.is_relu() {
            return expressed(&x, g, weight.as_ref(), given.as_ref(), eps);
        }
        // As the kernel has it, before it is rounded.
        let wide = |t: &Tensor| t.to_dtype(t.dtype().compute_dtype());
        let [weight_value, bias_value] = values.map(|given| given.map(wide).transpose());
        let (weight_value, bias_value) = (weight_value?, bias_value?);
        let y = wide(x.value())?;
        let y =
            y.batch_norm_with(&mean_value, &var_value, weight_value.as_ref(), bias_value.as_ref(), eps)?;
        let stays = y.gt(0.0)?.logical_not()?;
        return expressed(&x, &g.masked_fill(&stays, 0.0)?, weight.as_ref(), given.as_ref(), eps);
    }
    let statistics = BatchStatistics { mean: mean_value, var: var_value, training };
    let grads = grad::batch_norm(x.value(), g.value(), values, &statistics, eps, activation)?;
    Ok(grads.map(Var::constant))
}

fn expressed(
    x: &Var,
    g: &Var,
    weight: Option<&Var>,
    given: Option<&(Var, Var)>,
    eps: f64,
) -> Result<[Var; 3]> {
    let (n, c) = (x.shape()[0], x.shape()[1]);
    let rest: usize = x.shape()[2..].iter().product();
    let planes = |v: &Var| v.to_dtype(v.dtype().compute_dtype())?.reshape(&[n, c, rest]);
    let channel = |v: &Var| v.reshape(&[1, c, 1]);
    let (x3, g3) = (planes(x)?, planes(g)?);
    let centred = x3.sub(&match given {
        Some((mean, _)) => channel(mean)?,
        None => x3.mean(&[0, 2], true)?,
    })?;
    let var = match given {
        Some((_, var)) => channel(var)?,
        None => centred.square()?.mean(&[0, 2], true)?,
    };
    let inverse = var.add_scalar(eps)?.rsqrt()?;
    let normal = centred.mul(&inverse)?;
    let sum = g3.sum(&[0, 2], true)?;
    let with_x = g3.mul(&normal)?.sum(&[0, 2], true)?;
    let inner = match given {
        Some(_) => g3,
        None => {
            let share = 1.0 / (n * rest) as f64;
            g3.sub(&sum.mul_scalar(share)?)?.sub(&normal.mul(&with_x.mul_scalar(share)?)?)?
        }
    };
    let scale = match weight {
        Some(weight) => inverse.mul(&channel(weight)?)?,
        None => inverse,
    };
    let x_grad = inner.mul(&scale)?.reshape(x.shape())?.to_dtype(x.dtype())?;
    Ok([x_grad, with_x.reshape(&[c])?, sum.reshape(&[c])?])
}

pub(super) fn samples(d: &Draw, activation: Activation) -> Result<Vec<Sample>> {
    const EPS: f64 = 1e-2;
    let run = move |given: Option<[&Tensor; 2]>, x: &Var, affine: [Option<&Var>; 2]| {
        batch_norm(x, given, affine, EPS, activation).map(|(y, _)| y)
    };
    let of = |name, shape: &[usize]| {
        let affine = &shape[1..2];
        d.sample(name, &[shape, affine, affine], move |v| run(None, &v[0], [Some(&v[1]), Some(&v[2])]))
    };
    let (given, same) = ([d.normal(&[2])?, d.positive(&[2])?], [d.normal(&[2])?, d.positive(&[2])?]);
    Ok(vec![
        of("images", &[2, 3, 2, 2])?,
        of("rows", &[5, 2])?,
        of("one_channel", &[1, 1, 4])?,
        d.sample("plain", &[&[3, 2, 2]], move |v| run(None, &v[0], [None; 2])?.square())?,
        d.sample("only_a_bias", &[&[2, 2, 3], &[2]], move |v| run(None, &v[0], [None, Some(&v[1])]))?,
        d.sample("only_a_weight", &[&[3, 2, 2], &[2]], move |v| run(None, &v[0], [Some(&v[1]), None]))?,
        d.sample("given", &[&[3, 2, 2], &[2], &[2]], move |v| {
            run(Some(given.each_ref()), &v[0], [Some(&v[1]), Some(&v[2])])
        })?,
        d.sample("given_plain", &[&[2, 2, 2, 1]], move |v| {
            run(Some(same.each_ref()), &v[0], [None; 2])?.square()
        })?,
    ])
}

#[cfg(test)]
mod tests {
    use tensor::Device;

    use super::super::testing::{close, close_values, gradient, leaf, tensor, vector};
    use super::*;
    use crate::{GradOptions, grad};

    #[test]
    fn channels_are_normalised_by_themselves() -> Result<()> {
        let x = leaf(&[1.0, 10.0, 3.0, 30.0], &[2, 2])?;
        let (weight, bias) = (vector(&[2.0, 1.0])?, vector(&[0.5, 0.0])?);
        let (y, statistics) = x.batch_norm(Some(&weight), Some(&bias), 0.0)?;
        close(&y, &[-1.5, -1.0, 2.5, 1.0])?;
        close_values(&statistics.mean.to_vec::<f64>()?, &[2.0, 20.0]);
        close_values(&statistics.var.to_vec::<f64>()?, &[1.0, 100.0]);
        close_values(&gradient(&y, &bias)?, &[2.0, 2.0]);
        close_values(&gradient(&y, &weight)?, &[0.0, 0.0]);
        let given =
            x.batch_norm_with(&tensor(&[1.0, 10.0], &[2])?, &tensor(&[4.0, 25.0], &[2])?, None, None, 0.0)?;
        close(&given, &[0.0, 0.0, 1.0, 4.0])?;
        close_values(&gradient(&given, &x)?, &[0.5, 0.2, 0.5, 0.2]);
        Ok(())
    }

    /// A recorded backward pass takes the expression in place of the kernel.
    #[test]
    fn the_expression_gives_what_the_kernel_does() -> Result<()> {
        let device = Device::cpu();
        let [plain, relu] =
            [Activation::None, Activation::Relu].map(|activation| samples(&Draw::new(&device), activation));
        for sample in plain?.into_iter().chain(relu?) {
            let leaves: Vec<Var> = sample.inputs.iter().cloned().map(Var::leaf).collect();
            let weights = Var::constant((sample.run)(&leaves)?.value().sin()?);
            let gradients = |create_graph| {
                let loss = (sample.run)(&leaves)?.mul(&weights)?.sum_all()?;
                grad(&[loss], &leaves, GradOptions { create_graph, ..GradOptions::default() })
            };
            for (kernel, expression) in gradients(false)?.iter().zip(&gradients(true)?) {
                let values = |g: &Option<Var>| g.as_ref().map(|g| g.value().to_vec::<f64>()).transpose();
                let (kernel, expression) = (values(kernel)?, values(expression)?);
                assert!(kernel.is_some(), "{}", sample.name);
                close_values(&expression.unwrap_or_default(), &kernel.unwrap_or_default());
            }
        }
        Ok(())
    }

    /// Values and gradients to the bit, also where images, weights and their gradients are not finite.
    #[test]
    fn the_positive_part_is_that_of_relu() -> Result<()> {
        let of = |relu: bool, training: bool, x: &[f64]| -> Result<Vec<u64>> {
            let (x, d) = (leaf(x, &[2, 2, 3])?, Draw::new(&Device::cpu()));
            let (weight, bias) = (leaf(&[-1.5, 0.5], &[2])?, leaf(&[0.25, -0.0], &[2])?);
            let (mean, var) = (d.normal(&[2])?, d.positive(&[2])?);
            let affine = [Some(&weight), Some(&bias)];
            let y = match (relu, training) {
                (true, true) => batch_norm(&x, None, affine, 1e-3, Activation::Relu)?.0,
                (true, false) => batch_norm(&x, Some([&mean, &var]), affine, 1e-3, Activation::Relu)?.0,
                (false, true) => x.batch_norm(affine[0], affine[1], 1e-3)?.0.relu()?,
                (false, false) => x.batch_norm_with(&mean, &var, affine[0], affine[1], 1e-3)?.relu()?,
            };
            let g = Var::constant(d.normal(&[2, 2, 3])?);
            let gradients = y.mul(&g)?.sum_all()?.backward()?;
            let mut found = y.value().to_vec::<f64>()?;
            for leaf in [&x, &weight, &bias] {
                found.extend(gradients.get(leaf).expect("a gradient").to_vec::<f64>()?);
            }
            Ok(found.into_iter().map(f64::to_bits).collect())
        };
        let finite: Vec<f64> = (0..12).map(|i| (f64::from(i) * 0.7).sin()).collect();
        let mut wild = finite.clone();
        (wild[1], wild[8]) = (f64::NAN, f64::INFINITY);
        for training in [true, false] {
            for x in [&finite, &wild] {
                assert_eq!(of(true, training, x)?, of(false, training, x)?, "{training} {x:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn what_does_not_fit_is_an_error() -> Result<()> {
        assert!(leaf(&[1.0, 2.0], &[1, 2])?.batch_norm(None, None, 0.0).is_err());
        assert!(vector(&[1.0, 2.0])?.batch_norm(None, None, 0.0).is_err());
        let x = leaf(&[1.0, 2.0, 3.0, 4.0], &[2, 2])?;
        assert!(x.batch_norm(Some(&vector(&[1.0])?), None, 0.0).is_err());
        let one = tensor(&[1.0], &[1])?;
        assert!(x.batch_norm_with(&one, &one, None, None, 0.0).is_err());
        Ok(())
    }
}
