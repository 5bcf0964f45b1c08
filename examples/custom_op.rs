//! A differentiable op of one's own: its value, its gradient, and the check that they fit.
//!
//! ```sh
//! cargo run --release --example custom_op
//! ```

use streamgrad::prelude::*;

/// `y = ln cosh x`, a smooth absolute value; `x' = g tanh x`.
///
/// The gradient is written on `Var`s, so it has a gradient in turn.
fn log_cosh(x: &Var) -> streamgrad::Result<Var> {
    // |x| + ln((1 + e^(-2|x|)) / 2), where nothing overflows.
    let size = x.value().abs()?;
    let tail = ((-2 * &size)?.exp()? + 1)?.mul_scalar(0.5)?.log()?;
    Ok(record("log_cosh", &[x], &[Save::Input(0)], (size + tail)?, |cx, g| {
        Ok([Some((g * cx.saved(0).tanh())?)].into_iter().collect())
    }))
}

pub(crate) fn main() -> streamgrad::Result<()> {
    let x = Tensor::from_slice(&[-40.0, -1.5, -0.2, 0.3, 2.0, 800.0], &[2, 3], &Device::cpu())?;
    let f = |inputs: &[Var]| log_cosh(&inputs[0]);
    let first = gradcheck(f, std::slice::from_ref(&x), GradCheck::default())?;
    let second = gradgradcheck(f, std::slice::from_ref(&x), GradCheck::default())?;
    println!("{} first derivatives, relative error at most {:.1e}", first.checked, first.max_error);
    println!("{} second derivatives, relative error at most {:.1e}", second.checked, second.max_error);

    let x = Var::leaf(x);
    let slopes = log_cosh(&x)?.sum(&[], false)?.backward()?.get(&x);
    println!("slopes {:.3?}", slopes.map(|slopes| slopes.to_vec::<f64>()).transpose()?.unwrap_or_default());
    Ok(())
}
