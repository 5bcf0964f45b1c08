use autograd::record;
use device::{DType, Device, Error, ErrorKind};
use tensor::Tensor;

use super::*;
use crate::{BatchNorm2d, Conv2d, Flatten, Forward, Linear, Relu, Sequential, mlp};

fn ones(shape: &[usize]) -> Var {
    let device = Device::cpu();
    let key = tensor::RandomKey { seed: 2, op: 0 };
    Var::constant(Tensor::randn(shape, DType::F32, key, &device).unwrap())
}

/// `x`, with a gradient that is off by one part in 10,000.
fn off(x: &Var) -> Result<Var> {
    let value = x.value().mul_scalar(1.0)?;
    Ok(record("off", &[x], &[], value, |_, g| Ok([Some(g.mul_scalar(1.0001)?)].into_iter().collect())))
}

#[test]
fn a_wrong_gradient_in_a_model_of_f32_has_the_parameters_path() {
    let (model, x) = (mlp(&[6, 8, 3], 7, &Device::cpu()).unwrap(), ones(&[4, 6]));
    let before: Vec<Vec<f32>> = model.parameters().iter().map(|p| p.value().to_vec().unwrap()).collect();
    let right =
        gradcheck_module(&model, |m| m.forward(&x)?.square()?.sum_all(), GradCheck::default()).unwrap();
    assert_eq!((right.checked, right.undecided, right.kinks), (48 + 8 + 24 + 3, 0, 0), "{right:?}");
    let error = gradcheck_module(&model, |m| off(&m.forward(&x)?.square()?)?.sum_all(), GradCheck::default());
    let error = error.unwrap_err();
    let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert!(
        matches!(error.kind(), ErrorKind::GradientMismatch { input, .. } if names.contains(&input.to_string())),
        "{error}"
    );
    let after: Vec<Vec<f32>> = model.parameters().iter().map(|p| p.value().to_vec().unwrap()).collect();
    assert_eq!(after, before);
}

#[test]
fn a_sample_of_a_large_parameter_is_checked() {
    let (model, x) = (mlp(&[200, 300, 2], 7, &Device::cpu()).unwrap(), ones(&[2, 200]));
    let few = GradCheck { elements: 5, ..GradCheck::default() };
    let report = gradcheck_module(&model, |m| m.forward(&x)?.tanh()?.sum_all(), few).unwrap();
    assert!((16..=23).contains(&report.checked), "{report:?}");
    assert_eq!(report.undecided, 0);
}

/// Its running statistics stay as they are.
#[test]
fn a_model_with_norms_of_f32_and_a_frozen_layer_is_checked() {
    let device = Device::cpu();
    let model = Sequential::new()
        .push(Conv2d::new(2, 3, [3, 3], &device).unwrap())
        .push(BatchNorm2d::new(3, &device).unwrap())
        .push(Relu)
        .push(Flatten)
        .push(Linear::new(3 * 4 * 4, 2, &device).unwrap());
    let x = ones(&[2, 2, 6, 6]);
    let loss = |m: &Sequential| m.forward(&x)?.square()?.sum_all();
    let count: usize = model.parameters().iter().map(|p| p.value().elements()).sum();
    let all = GradCheck { elements: 1000, ..GradCheck::default() };
    let report = gradcheck_module(&model, loss, all).unwrap();
    assert_eq!(report.checked, count);
    assert!(report.undecided * 50 < count, "{report:?}");
    assert_eq!(model.named_buffers()[2].1.item::<i64>().unwrap(), 0);
    model.parameters()[0].freeze();
    assert_eq!(gradcheck_module(&model, loss, all).unwrap().checked, count - 54);
    model.freeze();
    let refused = gradcheck_module(&model, loss, all);
    assert!(matches!(refused.as_ref().map_err(Error::kind), Err(ErrorKind::InvalidArgument { .. })));
    let text = refused.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(
        text.starts_with("gradcheck_module: model") && text.contains("6 parameters, all of them frozen"),
        "{text}"
    );
}
