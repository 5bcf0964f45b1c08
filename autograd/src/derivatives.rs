//! Derivatives in one line, each of which can be differentiated again.

use tensor::{Error, ErrorKind, Result, Tensor};

use crate::gradients::check_like;
use crate::{GradOptions, Grads, Var, grad, record};

/// The gradient of the sum of `y`: `∂(Σ y) / ∂x`, on the tape, so that it can be differentiated in turn.
///
/// If each element of `y` depends on one row of `x`, these are the derivatives of all elements at once. Zeros if `y` does not depend
/// on `x`.
///
/// Shapes: any `y`, any `x` -> that of `x`. Asynchronous: each op's gradient runs on the op's stream. Keeps the saved tensors.
///
/// ```
/// use autograd::{Device, Tensor, Var, grad_of};
/// let x = Var::leaf(Tensor::from_slice(&[1.0, 2.0], &[2], &Device::cpu())?);
/// let slope = grad_of(&x.pow_scalar(3.0)?, &x)?;
/// assert_eq!(slope.value().to_vec::<f64>()?, [3.0, 12.0]);
/// assert_eq!(grad_of(&slope, &x)?.value().to_vec::<f64>()?, [6.0, 12.0]);
/// # Ok::<(), autograd::Error>(())
/// ```
///
/// # Errors
/// `NoGradient` if `y` or `x` is a constant; otherwise as for [`grad`].
#[derive::located]
pub fn grad_of(y: &Var, x: &Var) -> Result<Var> {
    if !y.requires_grad() {
        return Err(Error::new(ErrorKind::NoGradient { op: "grad_of" }));
    }
    pulled_back("grad_of", y, x, Var::constant(y.value().ones_like()?))
}

/// The Jacobian `J[i, j] = ∂y[i] / ∂x[j]`, on the tape, by one backward pass for each element of `y`.
///
/// Shapes: `y` of `[a..]`, `x` of `[b..]` -> `[a.., b..]`. Asynchronous: each op's gradient runs on the op's stream. Keeps the saved
/// tensors.
///
/// ```
/// use autograd::{Device, Tensor, Var, jacobian};
/// let x = Var::leaf(Tensor::from_slice(&[1.0, 2.0, 3.0], &[3], &Device::cpu())?);
/// let y = x.narrow(0, 0, 2)?.mul(&x.narrow(0, 1, 2)?)?;
/// let j = jacobian(&y, &x)?;
/// assert_eq!((j.shape(), j.value().to_vec::<f64>()?), (&[2, 3][..], vec![2.0, 1.0, 0.0, 0.0, 3.0, 2.0]));
/// # Ok::<(), autograd::Error>(())
/// ```
///
/// # Errors
/// `NoGradient` if `x` is a constant; otherwise as for [`grad`].
#[derive::located]
pub fn jacobian(y: &Var, x: &Var) -> Result<Var> {
    let (count, shape) = (y.value().elements(), [y.shape(), x.shape()].concat());
    let row = |at: usize| {
        let mut unit = vec![0.0; count];
        unit[at] = 1.0;
        let unit = Tensor::from_slice(&unit, y.shape(), y.device())?.to_dtype(y.dtype())?;
        pulled_back("jacobian", y, x, Var::constant(unit))
    };
    let rows = (0..count).map(row).collect::<Result<Vec<_>>>()?;
    if rows.is_empty() {
        return Ok(Var::constant(Tensor::zeros(&shape, x.dtype(), x.device())?));
    }
    Var::stack(&rows.iter().collect::<Vec<_>>(), 0)?.reshape(&shape)
}

/// The Hessian of the sum of `y` times `v`: `H v` with `H[i, j] = ∂²(Σ y) / ∂x[i] ∂x[j]`, on the tape, by two backward passes.
///
/// Shapes: any `y`, `x` and `v` of one shape -> that shape. Asynchronous: each op's gradient runs on the op's stream. Keeps the saved
/// tensors.
///
/// ```
/// use autograd::{Device, Tensor, Var, hvp};
/// let x = Var::leaf(Tensor::from_slice(&[1.0, 2.0], &[2], &Device::cpu())?);
/// let v = Var::constant(Tensor::from_slice(&[1.0, 10.0], &[2], &Device::cpu())?);
/// assert_eq!(hvp(&x.pow_scalar(3.0)?, &x, &v)?.value().to_vec::<f64>()?, [6.0, 120.0]);
/// # Ok::<(), autograd::Error>(())
/// ```
///
/// # Errors
/// `NoGradient` if `y` or `x` is a constant; `NotDifferentiable` with an op whose gradient rule returns a constant; `ShapeMismatch`,
/// `DTypeMismatch` or `DeviceMismatch` if `v` is not like `x`; otherwise as for [`grad`].
#[derive::located]
pub fn hvp(y: &Var, x: &Var, v: &Var) -> Result<Var> {
    check_like("hvp", x, v)?;
    if !y.requires_grad() {
        return Err(Error::new(ErrorKind::NoGradient { op: "hvp" }));
    }
    // On the tape, so that a rule that returns a constant is noticed; not a leaf, which would have a gradient in every pass.
    let u = record("ones_like", &[x], &[], y.value().ones_like()?, |_, _| Ok(Grads::from_iter([None])));
    pulled_back("hvp", &pulled_back("hvp", y, x, u)?, x, v.clone())
}

/// The directional derivative `J v` with `J[i, j] = ∂y[i] / ∂x[j]`, on the tape, by two backward passes: `Jᵀ u` is linear in `u`,
/// and `J v` is the gradient of `vᵀ Jᵀ u` for `u`.
///
/// Shapes: any `y`, `x` and `v` of one shape -> that of `y`. Asynchronous: each op's gradient runs on the op's stream. Keeps the saved
/// tensors.
///
/// ```
/// use autograd::{Device, Tensor, Var, jvp};
/// let x = Var::leaf(Tensor::from_slice(&[1.0, 2.0], &[2], &Device::cpu())?);
/// let v = Var::constant(Tensor::from_slice(&[1.0, 10.0], &[2], &Device::cpu())?);
/// assert_eq!(jvp(&x.square()?.sum_all()?, &x, &v)?.value().item::<f64>()?, 42.0);
/// # Ok::<(), autograd::Error>(())
/// ```
///
/// # Errors
/// `NoGradient` if `x` is a constant; `NotDifferentiable` with an op whose gradient rule returns a constant; `ShapeMismatch`,
/// `DTypeMismatch` or `DeviceMismatch` if `v` is not like `x`; otherwise as for [`grad`].
#[derive::located]
pub fn jvp(y: &Var, x: &Var, v: &Var) -> Result<Var> {
    check_like("jvp", x, v)?;
    let u = Var::leaf(y.value().zeros_like()?);
    pulled_back("jvp", &pulled_back("jvp", y, x, u.clone())?, &u, v.clone())
}

/// `Jᵀ u` for the Jacobian of `y`; zeros where `y` does not depend on `x`.
fn pulled_back(op: &'static str, y: &Var, x: &Var, u: Var) -> Result<Var> {
    if !x.requires_grad() {
        return Err(Error::new(ErrorKind::NoGradient { op }));
    }
    let options = GradOptions { create_graph: true, gradients: vec![Some(u)], ..GradOptions::default() };
    let (y, x) = (std::slice::from_ref(y), std::slice::from_ref(x));
    let found = if y[0].requires_grad() { grad(y, x, options)?.pop().flatten() } else { None };
    found.map_or_else(|| x[0].value().zeros_like().map(Var::constant), Ok)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tensor::{DType, Device, RandomKey};

    use super::*;
    use crate::tape::one;
    use crate::{GradCheck, Save, gradcheck, gradgradcheck};

    fn randn(shape: &[usize], op: u64) -> Result<Tensor> {
        Tensor::randn(shape, DType::F64, RandomKey { seed: 3, op }, &Device::cpu())
    }

    fn close(found: &Var, expected: &Var) -> Result<()> {
        assert_eq!(found.shape(), expected.shape());
        let off = found.sub(expected)?.value().abs()?.max(&[], false)?.item::<f64>()?;
        assert!(off < 1e-12, "{found} and {expected}");
        Ok(())
    }

    /// `tanh(x wᵀ)`, whose derivatives agree with each other and with differences.
    #[test]
    fn derivatives_agree() -> Result<()> {
        let (x, w) = (Var::leaf(randn(&[2, 3], 0)?), Var::constant(randn(&[4, 3], 1)?));
        let v = Var::constant(randn(&[2, 3], 2)?);
        let y = x.linear(&w, None)?.tanh()?;
        let j = jacobian(&y, &x)?;
        assert_eq!(j.shape(), [2, 4, 2, 3]);
        let column = v.reshape(&[6, 1])?;
        close(&jvp(&y, &x, &v)?, &j.reshape(&[8, 6])?.matmul(&column)?.reshape(&[2, 4])?)?;
        close(&grad_of(&y, &x)?, &j.sum(&[0, 1], false)?)?;
        let h = jacobian(&grad_of(&y, &x)?, &x)?.reshape(&[6, 6])?;
        close(&hvp(&y, &x, &v)?, &h.matmul(&column)?.reshape(&[2, 3])?)?;
        assert_eq!(hvp(&y, &x, &v)?.square()?.sum_all()?.backward()?.len(), 1);
        // Each is differentiable again.
        let x = [x.value().clone()];
        let f = |x: &Var| x.linear(&w, None)?.tanh();
        for derivative in [
            &(|x: &Var| grad_of(&f(x)?, x)) as &dyn Fn(&Var) -> Result<Var>,
            &|x| jacobian(&f(x)?, x),
            &|x| hvp(&f(x)?, x, &v),
            &|x| jvp(&f(x)?, x, &v),
        ] {
            assert_eq!(gradcheck(|x| derivative(&x[0]), &x, GradCheck::default())?.undecided, 0);
        }
        Ok(())
    }

    #[test]
    fn what_does_not_depend_has_zeros_and_constants_are_refused() -> Result<()> {
        let (x, other) = (Var::leaf(randn(&[2], 0)?), Var::leaf(randn(&[2], 1)?));
        let zeros = Var::constant(Tensor::zeros(&[2], DType::F64, &Device::cpu())?);
        close(&grad_of(&other.exp()?, &x)?, &zeros)?;
        close(&hvp(&x.mul_scalar(3.0)?, &x, &other)?, &zeros)?;
        close(&jvp(&other.exp()?, &x, &other)?, &zeros)?;
        let empty = jacobian(&x.narrow(0, 0, 0)?, &x)?;
        assert_eq!(empty.shape(), [0, 2]);
        let constant = x.detach();
        for refused in [
            grad_of(&constant, &x),
            grad_of(&x, &constant),
            jacobian(&x, &constant),
            hvp(&x, &constant, &x),
            jvp(&x, &constant, &x),
        ] {
            assert!(matches!(refused.map_err(|e| e.to_string()), Err(e) if e.contains("does not depend")));
        }
        for refused in [jvp(&x, &x, &empty), hvp(&x, &x, &empty)] {
            assert!(matches!(refused.as_ref().map_err(Error::kind), Err(ErrorKind::ShapeMismatch { .. })));
        }
        Ok(())
    }

    /// A rule that leaves the tape would make second derivatives zeros.
    #[test]
    fn a_rule_that_returns_a_constant_is_an_error_at_its_op() -> Result<()> {
        let (x, v) = (Var::leaf(randn(&[2], 0)?), Var::constant(randn(&[2], 1)?));
        let line = line!() + 2;
        let y = |x: &Var| {
            Ok::<_, Error>(record("cube", &[x], &[Save::Input(0)], x.value().pow_scalar(3.0)?, |cx, g| {
                let slope = cx.saved(0).value().square()?.mul_scalar(3.0)?;
                Ok(one(Var::constant(slope.mul(g.value())?)))
            }))
        };
        for found in [hvp(&y(&x)?, &x, &v), jvp(&y(&x)?, &x, &v), hvp(&y(&x)?.sum_all()?.square()?, &x, &v)] {
            let error = found.err().unwrap();
            assert!(matches!(error.kind(), ErrorKind::NotDifferentiable { op: "cube" }), "{error:?}");
            assert_eq!(error.forward_location().map(|at| at.line()), Some(line));
        }
        let found = gradgradcheck(|x| y(&x[0]), &[x.value().clone()], GradCheck::default());
        assert!(matches!(found.err().unwrap().kind(), ErrorKind::NotDifferentiable { op: "cube" }));
        // One pass needs no second derivative.
        close(&grad_of(&y(&x)?, &x)?, &x.square()?.mul_scalar(3.0)?)?;
        for (found, op) in [(hvp(&v, &x, &v), "hvp"), (jvp(&x, &v, &v), "jvp"), (hvp(&x, &v, &v), "hvp")] {
            assert!(matches!(found.err().unwrap().kind(), ErrorKind::NoGradient { op: at } if *at == op));
        }
        Ok(())
    }
}
