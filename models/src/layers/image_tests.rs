//! Layers for images: first values, names, running statistics, and lanes.

use approx::assert_abs_diff_eq;
use autograd::{ConcurrentBatches, Lanes, Var, no_grad};
use device::{DType, Device, Error, ErrorKind, Result};
use tensor::{RandomKey, Tensor};

use super::*;
use crate::{Forward, Module, Optimizer, Sgd, SgdOptions, checkpoint, cross_entropy};

fn images(values: &[f32], shape: &[usize]) -> Var {
    Var::constant(Tensor::from_slice(values, shape, &Device::cpu()).unwrap())
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

fn close(found: &[f32], expected: &[f32]) {
    assert_abs_diff_eq!(found, expected, epsilon = 1e-6);
}

#[test]
fn convolutions_start_as_torchs_do() {
    let dev = Device::cpu();
    let options =
        Conv2dOptions { groups: 2, key: Some(RandomKey { seed: 3, op: 1 }), ..Conv2dOptions::default() };
    let layer = Conv2d::with_options(16, 64, [5, 5], options, &dev).unwrap();
    assert_eq!(layer.weight().shape(), [64, 8, 5, 5]);
    // 8 channels of 25 elements.
    let bound = 1.0 / 200_f32.sqrt();
    let inside = |values: &[f32]| values.iter().all(|v| v.abs() <= bound);
    let weight = values(layer.weight().value());
    assert!(inside(&weight) && inside(&values(layer.bias().unwrap().value())));
    let mean_square = weight.iter().map(|v| v * v).sum::<f32>() / weight.len() as f32;
    assert!((mean_square * 3.0 / (bound * bound) - 1.0).abs() < 0.05, "{mean_square}");
    let transposed = ConvTranspose2d::with_options(64, 16, [5, 5], options, &dev).unwrap();
    assert_eq!(transposed.weight().shape(), [64, 8, 5, 5]);
    assert_eq!(transposed.bias().unwrap().shape(), [16]);
    assert!(inside(&values(transposed.weight().value())));
    let names: Vec<String> = layer.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["weight", "bias"]);
}

#[test]
fn layers_compute_what_their_ops_do() {
    let dev = Device::cpu();
    let x = images(&[1.0, 2.0, 3.0, 4.0], &[1, 1, 2, 2]);
    let shape = |module: &dyn Forward| module.forward(&x).unwrap().shape().to_vec();
    let wide =
        Conv2dOptions { stride: [2, 2], output_padding: [1, 0], bias: false, ..Conv2dOptions::default() };
    assert_eq!(shape(&Conv2d::new(1, 3, [2, 1], &dev).unwrap()), [1, 3, 1, 2]);
    assert_eq!(shape(&ConvTranspose2d::with_options(1, 3, [2, 2], wide, &dev).unwrap()), [1, 3, 5, 4]);
    let value = |module: &dyn Forward| values(module.forward(&x).unwrap().value());
    assert_eq!(value(&MaxPool2d::new([2, 2])), [4.0]);
    assert_eq!(value(&AvgPool2d::new([2, 1])), [2.0, 3.0]);
    assert_eq!(value(&AdaptiveAvgPool2d([1, 1])), [2.5]);
    let rows = images(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    assert_eq!(Unflatten(vec![1, 2]).forward(&rows).unwrap().shape(), [2, 1, 2]);
    assert!(Unflatten(vec![3]).forward(&rows).is_err() && Unflatten(vec![2]).forward(&x).is_err());
}

#[test]
fn bad_options_are_errors() {
    let dev = Device::cpu();
    let default = Conv2dOptions::default();
    let make = |options| Conv2d::with_options(4, 6, [3, 3], options, &dev).err();
    assert!(make(default).is_none());
    for options in [
        Conv2dOptions { groups: 4, ..default },
        Conv2dOptions { groups: 0, ..default },
        Conv2dOptions { stride: [1, 0], ..default },
        Conv2dOptions { dilation: [0, 1], ..default },
    ] {
        assert!(
            matches!(make(options).as_ref().map(Error::kind), Some(ErrorKind::InvalidArgument { .. })),
            "{options:?}"
        );
    }
    assert!(matches!(
        make(Conv2dOptions { dtype: DType::I64, ..default }).as_ref().map(Error::kind),
        Some(ErrorKind::DTypeUnsupported { .. })
    ));
    let padded = Conv2dOptions { output_padding: [1, 0], ..default };
    assert!(ConvTranspose2d::with_options(4, 6, [3, 3], padded, &dev).is_err());
    let momentum = BatchNormOptions { momentum: Some(1.5), ..BatchNormOptions::default() };
    assert!(BatchNorm2d::with_options(2, momentum, &dev).is_err());
}

/// Buffers under their names.
type Named = Vec<(String, Vec<f64>)>;

fn buffers(module: &dyn Module) -> Named {
    let bits = |tensor: Tensor| tensor.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    module.named_buffers().into_iter().map(|(name, tensor)| (name, bits(tensor))).collect()
}

#[test]
fn running_statistics_follow_the_batches() {
    let layer = BatchNorm2d::new(1, &Device::cpu()).unwrap();
    let x = images(&[1.0, 2.0, 3.0, 6.0], &[2, 1, 1, 2]);
    let y = layer.forward(&x).unwrap();
    // Mean 3, variance 3.5, unbiased 14/3.
    let deviation = (3.5_f32 + 1e-5).sqrt();
    close(&values(y.value()), &[-2.0 / deviation, -1.0 / deviation, 0.0, 3.0 / deviation]);
    let state = buffers(&layer);
    let names: Vec<&str> = state.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["running_mean", "running_var", "num_batches_tracked"]);
    let running = |index: usize| state[index].1[0];
    assert_abs_diff_eq!(running(0), 0.3, epsilon = 1e-7);
    assert_abs_diff_eq!(running(1), 0.9 + 1.4 / 3.0, epsilon = 1e-6);
    assert_eq!(running(2), 1.0);
    layer.set_training(false);
    let y = layer.forward(&x).unwrap();
    let scale = (running(1) + 1e-5).sqrt() as f32;
    close(&values(y.value()), &[0.7 / scale, 1.7 / scale, 2.7 / scale, 5.7 / scale]);
    assert_eq!(buffers(&layer), state);
    assert!(layer.forward(&images(&[1.0, 2.0], &[2])).is_err());
}

#[test]
fn without_momentum_they_are_the_mean_and_without_tracking_there_are_none() {
    let dev = Device::cpu();
    let cumulative = BatchNormOptions { momentum: None, ..BatchNormOptions::default() };
    let layer = BatchNorm2d::with_options(1, cumulative, &dev).unwrap();
    for shift in [0.0, 3.0, 9.0] {
        no_grad(|| layer.forward(&images(&[shift, shift + 2.0], &[1, 1, 1, 2]))).unwrap();
    }
    let state = buffers(&layer);
    assert_abs_diff_eq!([state[0].1[0], state[1].1[0]][..], [5.0, 2.0][..], epsilon = 1e-5);
    let own = BatchNormOptions { track_running_stats: false, affine: false, ..BatchNormOptions::default() };
    let layer = BatchNorm2d::with_options(1, own, &dev).unwrap();
    assert!(layer.named_buffers().is_empty() && layer.parameters().is_empty());
    layer.set_training(false);
    let y = layer.forward(&images(&[1.0, 3.0], &[1, 1, 1, 2])).unwrap();
    assert_abs_diff_eq!(values(y.value())[1], 1.0, epsilon = 1e-4);
}

fn network(dev: &Device) -> Sequential {
    let key = |op| Some(RandomKey { seed: 1, op });
    let conv = |from, to, op| {
        let options = Conv2dOptions { padding: [1, 1], key: key(op), ..Conv2dOptions::default() };
        Conv2d::with_options(from, to, [3, 3], options, dev).unwrap()
    };
    let norm = |channels| BatchNorm2d::new(channels, dev).unwrap();
    let linear = Linear::keyed(8, 3, RandomKey { seed: 1, op: 9 }, dev).unwrap();
    let first = Sequential::new().push(conv(2, 4, 0)).push(norm(4)).push(Relu).push(MaxPool2d::new([2, 2]));
    first.push(conv(4, 8, 1)).push(norm(8)).push(AdaptiveAvgPool2d([1, 1])).push(Flatten).push(linear)
}

/// Parameters and buffers after some steps of three batches each; the last step's middle batch may fail.
fn trained(lanes: usize, fails: bool) -> (Vec<Vec<f32>>, Named) {
    let dev = Device::cpu();
    let model = network(&dev);
    let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..SgdOptions::default() }).unwrap();
    let lanes = ConcurrentBatches::with_options(&dev, lanes, Lanes::Always).unwrap();
    let labels = Tensor::from_slice(&[0_i64, 1, 2, 1], &[4], &dev).unwrap();
    for step in 0..5 {
        let batches = (0..3).map(|batch| {
            let key = RandomKey { seed: step, op: batch };
            (batch, Tensor::randn(&[4, 2, 6, 6], DType::F32, key, &dev).unwrap())
        });
        let loss = |(batch, inputs): (u64, Tensor)| -> Result<Var> {
            let logits = model.forward(&Var::constant(inputs))?;
            if fails && step == 4 && batch == 1 {
                return logits.narrow(7, 0, 1);
            }
            cross_entropy(&logits, &labels)
        };
        match lanes.step(batches, loss) {
            Ok(step) => sgd.step(&step.gradients).unwrap(),
            Err(error) => {
                assert!(fails && matches!(error.kind(), ErrorKind::AxisOutOfRange { .. }), "{error}")
            }
        }
    }
    (model.parameters().iter().map(|p| values(p.value())).collect(), buffers(&model))
}

#[test]
fn lanes_move_running_statistics_in_batch_order() {
    let (parameters, state) = trained(1, false);
    assert_eq!(state.len(), 6);
    assert_eq!(state[2].1, [15.0], "three batches of five steps");
    for lanes in [2, 3] {
        for _ in 0..5 {
            assert_eq!(trained(lanes, false), (parameters.clone(), state.clone()), "{lanes} lanes");
        }
    }
}

#[test]
fn a_batch_that_fails_leaves_the_buffers_as_they_were() {
    let (_, serial) = trained(1, true);
    assert_eq!(serial[2].1, [12.0], "the last step moved nothing");
    assert_eq!(trained(2, true).1, serial);
    assert_ne!(trained(2, false).1, serial);
}

#[test]
fn checkpoints_have_the_buffers() {
    let dev = Device::cpu();
    let (model, other) = (network(&dev), network(&dev));
    let x = Tensor::randn(&[4, 2, 6, 6], DType::F32, RandomKey { seed: 4, op: 0 }, &dev).unwrap();
    model.forward(&Var::constant(x)).unwrap();
    let path = std::env::temp_dir().join(format!("streamgrad-buffers-{}.safetensors", std::process::id()));
    checkpoint::save(&path, &model).unwrap();
    assert_ne!(buffers(&model), buffers(&other));
    checkpoint::load(&path, &other).unwrap();
    assert_eq!(buffers(&model), buffers(&other));
    let bytes = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut names: Vec<&str> = file.names().into_iter().filter(|name| name.starts_with("1.")).collect();
    names.sort_unstable();
    assert_eq!(names, ["1.bias", "1.num_batches_tracked", "1.running_mean", "1.running_var", "1.weight"]);
    let batches = file.tensor("1.num_batches_tracked").unwrap();
    assert!(batches.shape().is_empty() && batches.dtype() == safetensors::Dtype::I64);
    let without = Sequential::new().push(Linear::new(1, 1, &dev).unwrap());
    assert!(matches!(
        checkpoint::load(&path, &without).as_ref().map_err(Error::kind),
        Err(ErrorKind::Checkpoint { .. })
    ));
    std::fs::remove_file(&path).ok();
}
