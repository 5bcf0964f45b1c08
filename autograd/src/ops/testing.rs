//! Helpers of the ops' value tests.

use tensor::{Device, Element, Result, Tensor};

use crate::{GradOptions, Var, grad};

pub(super) fn tensor<T: Element>(values: &[T], shape: &[usize]) -> Result<Tensor> {
    Tensor::from_slice(values, shape, &Device::cpu())
}

pub(super) fn leaf(values: &[f64], shape: &[usize]) -> Result<Var> {
    Ok(Var::leaf(tensor(values, shape)?))
}

pub(super) fn vector(values: &[f64]) -> Result<Var> {
    leaf(values, &[values.len()])
}

/// The gradient of the sum of `y` for `x`.
pub(super) fn gradient(y: &Var, x: &Var) -> Result<Vec<f64>> {
    let options = GradOptions { retain_graph: true, ..GradOptions::default() };
    let grads = grad(&[y.sum_all()?], std::slice::from_ref(x), options)?;
    match grads.into_iter().next().flatten() {
        Some(g) => {
            assert_eq!(g.shape(), x.shape());
            g.value().to_vec::<f64>()
        }
        None => Ok(vec![]),
    }
}

#[track_caller]
pub(super) fn close(found: &Var, expected: &[f64]) -> Result<()> {
    close_values(&found.value().to_vec::<f64>()?, expected);
    Ok(())
}

#[track_caller]
pub(super) fn close_values(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{found:?} and {expected:?}");
    for (&f, &e) in found.iter().zip(expected) {
        // Relative to an infinity the tolerance would be infinite too, and anything would pass.
        let near = e.is_finite() && (f - e).abs() <= 1e-12 * e.abs().max(1.0);
        let same = f == e || (f.is_nan() && e.is_nan()) || near;
        assert!(same, "{found:?} and {expected:?}");
    }
}
