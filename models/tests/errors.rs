//! Where errors say that they come from.
#![allow(clippy::unwrap_used)]

use std::panic::Location;

use autograd::{GradOptions, Save, Var, Vjp, grad, record};
use device::{DType, Device, Error, Result};
use models::{Adam, Forward, Linear, Sequential, cross_entropy};
use tensor::Tensor;

/// The error, and the line that follows the call.
#[track_caller]
fn here<T>(result: Result<T>) -> (Option<Error>, u32) {
    (result.err(), Location::caller().line())
}

fn check((error, line): (Option<Error>, u32)) -> Result<Error> {
    let error = error.ok_or_else(|| Error::invalid("test", "call", "refused", "done"))?;
    assert!(error.location().file().ends_with("errors.rs"), "{error:?}");
    assert_eq!(error.location().line(), line, "{error:?}");
    Ok(error)
}

fn of_shape(shape: &[usize]) -> Result<Tensor> {
    Tensor::ones(shape, DType::F32, &Device::cpu())
}

#[test]
fn an_error_has_the_line_of_the_call() -> Result<()> {
    let (a, b) = (of_shape(&[2, 3])?, of_shape(&[4, 5])?);
    let (x, y) = (Var::leaf(a.clone()), Var::leaf(b.clone()));
    check(here(a.matmul(&b)))?;
    check(here(a.exp()?.add(&b)))?;
    check(here(&a + &b))?;
    check(here(a.to_vec::<f64>()))?;
    check(here(x.linear(&y, None)))?;
    check(here(x.reshape(&[7])))?;
    check(here(&x * &y))?;
    check(here(x.backward()))?;
    check(here(x.conv2d(&y, None, &Default::default())))?;
    let labels = Tensor::zeros(&[7], DType::I64, &Device::cpu())?;
    check(here(cross_entropy(&x, &labels)))?;
    check(here(Adam::new(vec![], 0.1)))?;
    let both = [x.clone(), y.clone()];
    check(here(grad(&both, &both, GradOptions::default())))?;
    // An op between names its caller's caller no more.
    a.add(&a)?;
    check(here(a.sub(&b)))?;
    Ok(())
}

#[test]
fn an_error_in_a_model_has_the_layers_path() -> Result<()> {
    let device = Device::cpu();
    let block = Sequential::new().push(Linear::new(3, 4, &device)?).push(Linear::new(5, 4, &device)?);
    let model = Sequential::new().push(Linear::new(3, 3, &device)?).push(block);
    let error = check(here(model.forward(&Var::constant(of_shape(&[2, 3])?))))?;
    assert_eq!(error.module(), Some("1.1"));
    assert!(format!("{error:?}").ends_with("in module 1.1"), "{error:?}");
    Ok(())
}

/// An op whose gradient has a wrong shape, and the line that recorded it.
fn bad(x: &Var) -> Result<(Var, u32)> {
    let value = x.value().exp()?;
    let rule = |_: &Vjp<'_>, g: &Var| Ok([Some(g.reshape(&[7])?)].into_iter().collect());
    Ok((record("bad", &[x], &[Save::Output], value, rule), line!()))
}

fn forward_line(error: &Error) -> Option<u32> {
    error.forward_location().map(|at| at.line())
}

#[test]
fn an_error_of_a_gradient_has_the_line_of_the_op() -> Result<()> {
    let x = Var::leaf(of_shape(&[1])?);
    let (y, line) = bad(&x)?;
    let error = check(here(y.backward()))?;
    assert_eq!(forward_line(&error), Some(line), "{error:?}");
    let value = x.value().exp()?;
    let rule =
        |_: &Vjp<'_>, g: &Var| Ok([Some(Var::constant(g.value().reshape(&[1, 1])?))].into_iter().collect());
    let (y, line) = (record("bad", &[&x], &[], value, rule), line!());
    let error = check(here(y.backward()))?;
    assert_eq!(forward_line(&error), Some(line), "{error:?}");
    let (y, line) = (x.exp()?, line!());
    y.value().add_scalar_(1.0)?;
    let error = check(here(y.sum_all()?.backward()))?;
    assert_eq!(forward_line(&error), Some(line), "{error:?}");
    Ok(())
}
