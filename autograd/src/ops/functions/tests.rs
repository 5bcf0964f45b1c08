use std::f64::consts::FRAC_PI_6;

use super::super::testing::{close, close_values, gradient, vector};
use super::*;

#[test]
fn exponential() -> Result<()> {
    let x = vector(&[0.0, 1.0, f64::NEG_INFINITY])?;
    let expected = [1.0, std::f64::consts::E, 0.0];
    let y = x.exp()?;
    close(&y, &expected)?;
    close_values(&gradient(&y, &x)?, &expected);
    Ok(())
}

#[test]
fn logarithm() -> Result<()> {
    let x = vector(&[1.0, std::f64::consts::E, 0.0])?;
    let y = x.log()?;
    close(&y, &[0.0, 1.0, f64::NEG_INFINITY])?;
    close_values(&gradient(&y, &x)?, &[1.0, 1.0 / std::f64::consts::E, f64::INFINITY]);
    Ok(())
}

#[test]
fn inverts() -> Result<()> {
    let x = vector(&[2.0, -0.5])?;
    close(&x.reciprocal()?, &[0.5, -2.0])?;
    close_values(&gradient(&x.reciprocal()?, &x)?, &[-0.25, -4.0]);
    Ok(())
}

#[test]
fn relu_has_its_closed_form() -> Result<()> {
    let x = vector(&[-1.0, 0.0, 2.0])?;
    close(&x.relu()?, &[0.0, 0.0, 2.0])?;
    close_values(&gradient(&x.relu()?, &x)?, &[0.0, 0.0, 1.0]);
    Ok(())
}

#[test]
fn relu_keeps_nan() -> Result<()> {
    close(&vector(&[f64::NAN, 1.0])?.relu()?, &[f64::NAN, 1.0])
}

#[test]
fn sigmoid_has_its_closed_form() -> Result<()> {
    let x = vector(&[0.0, 3.0_f64.ln(), f64::NEG_INFINITY])?;
    let y = x.sigmoid()?;
    close(&y, &[0.5, 0.75, 0.0])?;
    close_values(&gradient(&y, &x)?, &[0.25, 0.1875, 0.0]);
    Ok(())
}

#[test]
fn silu_has_its_closed_form() -> Result<()> {
    let x = 3.0_f64.ln();
    let v = vector(&[0.0, x])?;
    close(&v.silu()?, &[0.0, 0.75 * x])?;
    close_values(&gradient(&v.silu()?, &v)?, &[0.5, 0.75 * (1.0 + 0.25 * x)]);
    Ok(())
}

#[test]
fn square_roots() -> Result<()> {
    let x = vector(&[4.0, 0.25])?;
    close(&x.sqrt()?, &[2.0, 0.5])?;
    close(&x.rsqrt()?, &[0.5, 2.0])?;
    close_values(&gradient(&x.sqrt()?, &x)?, &[0.25, 1.0]);
    close_values(&gradient(&x.rsqrt()?, &x)?, &[-0.0625, -4.0]);
    Ok(())
}

#[test]
fn gradient_at_zero_is_infinite() -> Result<()> {
    let x = vector(&[0.0])?;
    close_values(&gradient(&x.sqrt()?, &x)?, &[f64::INFINITY]);
    Ok(())
}

#[test]
fn squares() -> Result<()> {
    let x = vector(&[3.0, -0.5])?;
    close(&x.square()?, &[9.0, 0.25])?;
    close_values(&gradient(&x.square()?, &x)?, &[6.0, -1.0]);
    Ok(())
}

#[test]
fn tanh_has_its_closed_form() -> Result<()> {
    let x = vector(&[0.0, 0.5 * 3.0_f64.ln(), f64::INFINITY])?;
    let y = x.tanh()?;
    close(&y, &[0.0, 0.5, 1.0])?;
    close_values(&gradient(&y, &x)?, &[1.0, 0.75, 0.0]);
    Ok(())
}

#[test]
fn at_thirty_degrees() -> Result<()> {
    let x = vector(&[0.0, FRAC_PI_6])?;
    let (sine, cosine) = (0.5, 0.75_f64.sqrt());
    close(&x.sin()?, &[0.0, sine])?;
    close(&x.cos()?, &[1.0, cosine])?;
    close_values(&gradient(&x.sin()?, &x)?, &[1.0, cosine]);
    close_values(&gradient(&x.cos()?, &x)?, &[0.0, -sine]);
    Ok(())
}

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
fn logarithms_and_exponentials_near_zero() -> Result<()> {
    let x = vector(&[-0.5, 0.0, 1e-12, 3.0])?;
    let (y, z) = (x.log1p()?, x.expm1()?);
    close_values(&y.value().to_vec::<f64>()?, &[-LN_2, 0.0, 1e-12, 2.0 * LN_2]);
    let small = |y: &Var, want: f64| Ok::<_, tensor::Error>((y.to_vec::<f64>()?[2] - want).abs() < 1e-27);
    assert!(small(&y, 1e-12 - 5e-25)? && small(&z, 1e-12 + 5e-25)?);
    close_values(&gradient(&y, &x)?, &[2.0, 1.0, 1.0 / (1.0 + 1e-12), 0.25]);
    close_values(&gradient(&z, &x)?, &[-0.5, 0.0, 1e-12, 3.0].map(f64::exp));
    let x = vector(&[0.25, 1.0, 8.0])?;
    let y = x.log2()?;
    assert_eq!(y.value().to_vec::<f64>()?, [-2.0, 0.0, 3.0]);
    close_values(&gradient(&y, &x)?, &[4.0 / LN_2, 1.0 / LN_2, 0.125 / LN_2]);
    let far = tensor::Tensor::from_slice(&[-2.0_f32, -1.0, f32::INFINITY, 100.0], &[4], y.device())?;
    let (logs, powers): (Vec<f32>, Vec<f32>) = (far.log1p()?.to_vec()?, far.expm1()?.to_vec()?);
    assert!(logs[0].is_nan() && logs[1] == f32::NEG_INFINITY && logs[2] == f32::INFINITY, "{logs:?}");
    assert!(powers[2] == f32::INFINITY && powers[3] == f32::INFINITY, "{powers:?}");
    Ok(())
}

#[test]
fn integers_nearby() -> Result<()> {
    let x = vector(&[-2.5, -0.5, 0.5, 1.5, 2.75])?;
    for (y, values) in [
        (x.floor()?, [-3.0, -1.0, 0.0, 1.0, 2.0]),
        (x.ceil()?, [-2.0, -0.0, 1.0, 2.0, 3.0]),
        (x.round()?, [-2.0, -0.0, 0.0, 2.0, 3.0]),
        (x.trunc()?, [-2.0, -0.0, 0.0, 1.0, 2.0]),
    ] {
        assert_eq!(y.value().to_vec::<f64>()?, values);
        assert_eq!(gradient(&y, &x)?, [0.0; 5]);
    }
    let y = vector(&[std::f64::consts::FRAC_PI_4])?;
    close(&y.tan()?, &[1.0])?;
    close_values(&gradient(&y.tan()?, &y)?, &[2.0]);
    Ok(())
}
