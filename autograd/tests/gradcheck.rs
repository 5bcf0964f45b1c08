//! Gradient checks of functions with kernels of one's own.
#![allow(clippy::unwrap_used)]

use autograd::{
    DType, Device, Error, ErrorKind, GradCheck, Result, Save, Tensor, Var, gradcheck, gradcheck_leaves,
    record,
};
use tensor::{CustomKernel, KernelLaunch, RandomKey, custom};

fn randn(shape: &[usize], dtype: DType, op: u64) -> Result<Tensor> {
    Tensor::randn(shape, dtype, RandomKey { seed: 5, op }, &Device::cpu())
}

/// `x³`.
struct Cube;

impl CustomKernel<1, 1> for Cube {
    type Element = f32;

    fn name(&self) -> &'static str {
        "cube"
    }

    fn cpu(&self, [x]: [&[f32]; 1], [y]: [&mut [f32]; 1]) {
        y.iter_mut().zip(x).for_each(|(y, x)| *y = x * x * x);
    }

    fn cuda(&self, _: [usize; 1], _: [usize; 1]) -> Option<KernelLaunch> {
        None
    }
}

fn cube(x: &Var, factor: f64) -> Result<Var> {
    let [y] = custom(Cube, [x.value()], [x.shape()])?;
    Ok(record("cube", &[x], &[Save::Input(0)], y, move |cx, g| {
        Ok([Some(cx.saved(0).square()?.mul(g)?.mul_scalar(factor)?)].into_iter().collect())
    }))
}

#[test]
fn a_kernel_that_refuses_f64_is_checked_in_its_own_type() -> Result<()> {
    let x = [randn(&[50], DType::F32, 0)?];
    let report = gradcheck(|v| cube(&v[0], 3.0), &x, GradCheck::default())?;
    assert!(report.undecided <= 5 && report.max_uncertainty < 3.5e-4, "{report:?}");
    let wrong = 3.0 * (1.0 + 10.0 * report.max_uncertainty);
    let found = gradcheck(|v| cube(&v[0], wrong), &x, GradCheck::default());
    assert!(
        matches!(found.as_ref().map_err(Error::kind), Err(ErrorKind::GradientMismatch { op: "cube", .. })),
        "{found:?}"
    );
    // Beside a leaf that it takes as it is, which is changed in place.
    let weight = Var::leaf(randn(&[50], DType::F32, 1)?);
    let loss = |factor| cube(&weight, factor)?.sum_all();
    let named = [("layer.weight".to_owned(), weight.clone())];
    let before = weight.value().to_vec::<f32>()?;
    assert!(gradcheck_leaves(|| loss(3.0), &named, GradCheck::default())?.undecided <= 25);
    assert_eq!(weight.value().to_vec::<f32>()?, before);
    let error = gradcheck_leaves(|| loss(3.01), &named, GradCheck::default()).unwrap_err();
    let message = error.to_string();
    for part in [
        "gradient of layer.weight at element ",
        "used by cube at autograd/tests/gradcheck.rs:",
        "numeric",
        " ± ",
        "rtol 1e-6",
    ] {
        assert!(message.contains(part), "{message}");
    }
    Ok(())
}
