//! Activations of a few lines each, with their own part of the list of ops.

use std::f64::consts::FRAC_2_SQRT_PI;

use tensor::{CompareOp, Device, Result, Tensor, UnaryOp};

use super::Autocast::{F32, Operands};
use super::function::{function, straight};
use super::samples::{Draw, Sample, sample, unary};
use super::{OpEntry, op, scalar_like};
use crate::Var;

pub(super) const OPS: &[OpEntry] = &[
    op("elu", Operands, |device| unary(device, Draw::nonzero, |x| x.elu(0.7))),
    op("erf", Operands, |device| unary(device, Draw::normal, Var::erf)),
    op("hard_sigmoid", Operands, |device| unary(device, Draw::normal, |x| x.mul_scalar(2.0)?.hard_sigmoid())),
    op("hard_swish", Operands, |device| unary(device, Draw::normal, |x| x.mul_scalar(2.0)?.hard_swish())),
    op("leaky_relu", Operands, |device| unary(device, Draw::nonzero, |x| x.leaky_relu(0.1))),
    op("masked_fill", Operands, masked_fill_samples),
    op("mish", Operands, |device| unary(device, Draw::normal, Var::mish)),
    op("softplus", F32, softplus_samples),
    op("softsign", Operands, |device| unary(device, Draw::nonzero, Var::softsign)),
];

#[derive::located]
impl Var {
    /// `x / (1 + |x|)`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn softsign(&self) -> Result<Var> {
        // y'' = -2 sign(x) / (1 + |x|)^3
        function(
            self,
            UnaryOp::Softsign,
            self.value().softsign()?,
            Some(|x: &Var| {
                let sign = Var::constant(x.value().sign()?);
                sign.mul_scalar(-2.0)?.div(&x.abs()?.add_scalar(1.0)?.pow_scalar(3.0)?)
            }),
        )
    }

    /// `x` where it is positive, `alpha (e^x - 1)` elsewhere. The usual `alpha` is 1.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn elu(&self, alpha: f64) -> Result<Var> {
        function(
            self,
            UnaryOp::Elu(alpha),
            self.value().elu(alpha)?,
            Some(move |x: &Var| {
                let positive = x.value().compare_scalar(CompareOp::Gt, 0.0)?;
                x.masked_fill(&positive, f64::NEG_INFINITY)?.exp()?.mul_scalar(alpha)
            }),
        )
    }

    /// `min(max(x / 6 + 1 / 2, 0), 1)`; its gradient at the ends of the slope is 0.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn hard_sigmoid(&self) -> Result<Var> {
        straight(self, UnaryOp::HardSigmoid, self.value().hard_sigmoid()?)
    }

    /// `x hard_sigmoid(x)`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn hard_swish(&self) -> Result<Var> {
        function(
            self,
            UnaryOp::HardSwish,
            self.value().hard_swish()?,
            Some(|x: &Var| {
                let bent = x.value().abs()?.compare_scalar(CompareOp::Lt, 3.0)?;
                Ok(Var::constant(bent.to_dtype(x.dtype())?.mul_scalar(1.0 / 3.0)?))
            }),
        )
    }

    /// `x tanh(ln(1 + e^x))` (Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", 2019).
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn mish(&self) -> Result<Var> {
        // With t = tanh(ln(1 + e^x)) and σ: y'' = (1 - t²) σ (2 + x (1 - σ - 2 t σ)).
        function(
            self,
            UnaryOp::Mish,
            self.value().mish()?,
            Some(|x: &Var| {
                let (t, s) = (x.softplus(1.0, 20.0)?.tanh()?, x.sigmoid()?);
                let inner = s.mul(&t.mul_scalar(2.0)?.add_scalar(1.0)?)?.neg()?.add_scalar(1.0)?;
                t.square()?.neg()?.add_scalar(1.0)?.mul(&s)?.mul(&x.mul(&inner)?.add_scalar(2.0)?)
            }),
        )
    }

    /// The error function `2 / √π ∫₀ˣ e^(-t²) dt`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn erf(&self) -> Result<Var> {
        let bend = |x: &Var| x.square()?.neg()?.exp()?.mul(x)?.mul_scalar(-2.0 * FRAC_2_SQRT_PI);
        function(self, UnaryOp::Erf, self.value().erf()?, Some(bend))
    }

    /// `ln(1 + e^(β x)) / β`, and `x` where `β x` is above `threshold`. The usual `beta` is 1, the usual `threshold` 20.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn softplus(&self, beta: f64, threshold: f64) -> Result<Var> {
        autocast!("softplus", [self], |x| x.softplus(beta, threshold));
        // y'' = β σ (1 - σ) where it is not straight.
        let bend = move |x: &Var| {
            let z = x.mul_scalar(beta)?;
            let s = z.sigmoid()?;
            let straight = z.value().compare_scalar(CompareOp::Gt, threshold)?;
            s.sub(&s.square()?)?.mul_scalar(beta)?.masked_fill(&straight, 0.0)
        };
        function(
            self,
            UnaryOp::Softplus(beta, threshold),
            self.value().softplus(beta, threshold)?,
            Some(bend),
        )
    }

    /// `x` where it is positive, `slope · x` elsewhere. The usual `slope` is 0.01.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn leaky_relu(&self, slope: f64) -> Result<Var> {
        let positive = self.value().compare_scalar(CompareOp::Gt, 0.0)?;
        Var::where_cond(&positive, self, &self.mul_scalar(slope)?)
    }

    /// `value` where the mask, of Bool, holds; it broadcasts. The gradient is 0 there.
    ///
    /// # Errors
    /// `ShapeMismatch`, `DeviceMismatch`; `DTypeMismatch` unless the mask is Bool.
    pub fn masked_fill(&self, mask: &Tensor, value: f64) -> Result<Var> {
        Var::where_cond(mask, &scalar_like(self.value(), value)?, self)
    }
}

fn softplus_samples(device: &Device) -> Result<Vec<Sample>> {
    let mut samples = unary(device, Draw::normal, |x| x.softplus(1.0, 20.0))?;
    let d = Draw::new(device);
    samples.push(sample("steep", [d.nonzero(&[7])?], |v| v[0].softplus(-2.5, 20.0)));
    // The value jumps a little at the threshold, which no sample is near.
    samples.push(sample("straight", [d.distinct(&[40])?], |v| v[0].softplus(3.0, 1.0)?.mul(&v[0])));
    Ok(samples)
}

fn masked_fill_samples(device: &Device) -> Result<Vec<Sample>> {
    let d = Draw::new(device);
    let mask = |shape: &[usize]| d.normal(shape)?.compare_scalar(CompareOp::Gt, 0.0);
    let (same, row) = (mask(&[2, 5])?, mask(&[5])?);
    Ok(vec![
        sample("same_shape", [d.normal(&[2, 5])?], move |v| v[0].masked_fill(&same, -1.5)?.square()),
        sample("row", [d.normal(&[5, 2])?.transpose(0, 1)?], move |v| {
            v[0].masked_fill(&row, 2.0)?.mul(&v[0])
        }),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, tensor, vector};
    use super::*;

    #[test]
    fn erf_at_known_points() -> Result<()> {
        let x = vector(&[0.0, 1.0, -1.0])?;
        let y = x.erf()?;
        let one = 0.842_700_792_949_714_9;
        close(&y, &[0.0, one, -one])?;
        let slope = FRAC_2_SQRT_PI / std::f64::consts::E;
        close_values(&gradient(&y, &x)?, &[FRAC_2_SQRT_PI, slope, slope]);
        Ok(())
    }

    #[test]
    fn softplus_is_soft_below_the_threshold() -> Result<()> {
        let x = vector(&[0.0, 3.0_f64.ln(), 1000.0, -1000.0])?;
        let y = x.softplus(1.0, 20.0)?;
        close(&y, &[2.0_f64.ln(), 4.0_f64.ln(), 1000.0, 0.0])?;
        close_values(&gradient(&y, &x)?, &[0.5, 0.75, 1.0, 0.0]);
        close(&x.softplus(2.0, 1.0)?, &[2.0_f64.ln() / 2.0, 3.0_f64.ln(), 1000.0, 0.0])
    }

    #[test]
    fn leaky_relu_lets_a_little_through() -> Result<()> {
        let x = vector(&[-2.0, 0.0, 3.0])?;
        let y = x.leaky_relu(0.01)?;
        close(&y, &[-0.02, 0.0, 3.0])?;
        close_values(&gradient(&y, &x)?, &[0.01, 0.01, 1.0]);
        Ok(())
    }

    #[test]
    fn new_activations_at_known_points() -> Result<()> {
        let x = vector(&[-4.0, -1.0, 2.0, 5.0])?;
        let check = |y: Var, values: &[f64], slopes: &[f64]| {
            close(&y, values)?;
            close_values(&gradient(&y, &x)?, slopes);
            Ok::<(), tensor::Error>(())
        };
        check(x.softsign()?, &[-0.8, -0.5, 2.0 / 3.0, 5.0 / 6.0], &[0.04, 0.25, 1.0 / 9.0, 1.0 / 36.0])?;
        let (far, near) = ((-4.0_f64).exp(), (-1.0_f64).exp());
        check(
            x.elu(2.0)?,
            &[2.0 * (far - 1.0), 2.0 * (near - 1.0), 2.0, 5.0],
            &[2.0 * far, 2.0 * near, 1.0, 1.0],
        )?;
        check(x.hard_sigmoid()?, &[0.0, 1.0 / 3.0, 5.0 / 6.0, 1.0], &[0.0, 1.0 / 6.0, 1.0 / 6.0, 0.0])?;
        check(x.hard_swish()?, &[0.0, -1.0 / 3.0, 5.0 / 3.0, 5.0], &[0.0, 1.0 / 6.0, 7.0 / 6.0, 1.0])?;
        let mish = [-0.072_591_740_8, -0.303_401_461_4, 1.943_958_959_5, 4.999_552_077_5];
        let y = x.mish()?.value().to_vec::<f64>()?;
        assert!(y.iter().zip(mish).all(|(y, mish)| (y - mish).abs() < 1e-9), "{y:?}");
        Ok(())
    }

    #[test]
    fn masked_elements_have_no_gradient() -> Result<()> {
        let x = vector(&[1.0, 2.0, 3.0])?;
        let y = x.masked_fill(&tensor(&[false, true, false], &[3])?, -9.0)?;
        close(&y, &[1.0, -9.0, 3.0])?;
        close_values(&gradient(&y, &x)?, &[1.0, 0.0, 1.0]);
        assert!(x.masked_fill(&tensor(&[1_i64, 0, 0], &[3])?, 0.0).is_err());
        Ok(())
    }
}
