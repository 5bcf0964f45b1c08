//! Gradients that do not fit their values are refused, wherever they come from.

use std::slice::from_ref;

use device::CpuConfig;
use tensor::{DType, Device};

use super::*;
use crate::record;

fn ones(dtype: DType, device: &Device) -> Result<Var> {
    Ok(Var::constant(Tensor::ones(&[2], dtype, device)?))
}

/// Gradients of `[2]` in F64 on the default device that are wrong, and whether the type is what is wrong.
fn misfits() -> Result<[(Var, bool); 2]> {
    let other = Device::cpu_with(CpuConfig::default());
    Ok([(ones(DType::F32, &Device::cpu())?, true), (ones(DType::F64, &other)?, false)])
}

#[track_caller]
fn refused<T>(expected: &'static str, of_dtype: bool, result: Result<T>) {
    match result.err().map(Error::into_kind) {
        Some(ErrorKind::DTypeMismatch { op, expected: DType::F64, got: DType::F32, .. }) if of_dtype => {
            assert_eq!(op, expected);
        }
        Some(ErrorKind::DeviceMismatch { op, .. }) if !of_dtype => assert_eq!(op, expected),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_given_gradient_has_the_type_and_device_of_its_value() -> Result<()> {
    let x = Var::leaf(Tensor::ones(&[2], DType::F64, &Device::cpu())?);
    for (wrong, of_dtype) in misfits()? {
        let options = BackwardOptions { gradient: Some(wrong.clone()), ..BackwardOptions::default() };
        refused("backward", of_dtype, x.square()?.backward_with(options));
        let options = GradOptions { gradients: vec![Some(wrong)], ..GradOptions::default() };
        refused("grad", of_dtype, grad(&[x.square()?], from_ref(&x), options));
    }
    Ok(())
}

#[test]
fn a_hook_returns_the_type_and_device_of_its_value() -> Result<()> {
    let x = Var::leaf(Tensor::ones(&[2], DType::F64, &Device::cpu())?);
    for (wrong, of_dtype) in misfits()? {
        let y = x.square()?;
        let _hook = y.register_hook(move |_| Ok(Some(wrong.clone())))?;
        refused("register_hook", of_dtype, y.sum_all()?.backward());
    }
    Ok(())
}

#[test]
fn a_rule_returns_the_type_and_device_of_its_input() -> Result<()> {
    let x = Var::leaf(Tensor::ones(&[2], DType::F64, &Device::cpu())?);
    for (wrong, of_dtype) in misfits()? {
        let value = x.value().clone();
        let y =
            record("custom", &[&x], &[], value, move |_, _| Ok([Some(wrong.clone())].into_iter().collect()));
        refused("custom", of_dtype, y.sum_all()?.backward());
    }
    Ok(())
}

#[test]
fn a_rule_returns_a_gradient_for_each_input() -> Result<()> {
    let x = Var::leaf(Tensor::ones(&[2], DType::F64, &Device::cpu())?);
    for given in [0, 1, 3] {
        let rule = move |_: &Vjp<'_>, g: &Var| Ok((0..given).map(|_| Some(g.clone())).collect());
        let y = record("custom", &[&x, &x], &[], x.value().mul(x.value())?, rule);
        let error = y.sum_all()?.backward().err();
        let kind = error.as_ref().map(Error::kind);
        let expected = ErrorKind::GradientCount { op: "custom", expected: 2, given };
        assert_eq!(kind.map(ToString::to_string), Some(expected.to_string()), "{error:?}");
    }
    Ok(())
}

/// What a panic leaves behind may panic itself when it is dropped.
#[test]
fn a_panic_that_panics_when_dropped_is_an_error() -> Result<()> {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let x = Var::leaf(Tensor::ones(&[2], DType::F64, &Device::cpu())?);
    let y = x.square()?;
    let _hook = y.register_hook(|_| std::panic::panic_any(Bomb))?;
    let error = y.sum_all()?.backward().err();
    assert!(
        matches!(error.as_ref().map(Error::kind), Some(ErrorKind::Async { op: "square", .. })),
        "{error:?}"
    );
    Ok(())
}
