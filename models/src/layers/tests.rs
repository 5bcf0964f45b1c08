//! Values, modes and names of the layers.

use std::sync::Arc;

use approx::{abs_diff_eq, assert_abs_diff_eq};
use autograd::Var;
use device::{DType, Device, Error, ErrorKind, Result};
use tensor::{Generator, RandomKey, Tensor, with_generator};

use super::*;
use crate::{Batch, Forward, Module, sequential};

fn constant(values: &[f32], shape: &[usize]) -> Var {
    Var::constant(Tensor::from_slice(values, shape, &Device::cpu()).unwrap())
}

fn seeded<R>(seed: u64, work: impl FnOnce() -> R) -> R {
    with_generator(Generator::new(seed), work)
}

fn values(v: &Var) -> Vec<f32> {
    v.value().contiguous().unwrap().to_vec().unwrap()
}

#[test]
fn linear_is_x_times_the_transposed_weight_plus_bias() {
    let layer = Linear::new(3, 2, &Device::cpu()).unwrap();
    let weight = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3], &Device::cpu()).unwrap();
    layer.weight().value().copy_(&weight).unwrap();
    let bias = Tensor::from_slice(&[10.0f32, 20.0], &[2], &Device::cpu()).unwrap();
    layer.bias().unwrap().value().copy_(&bias).unwrap();
    let y = layer.forward(&constant(&[1.0, 0.0, -1.0, 2.0, 1.0, 0.0], &[2, 3])).unwrap();
    assert_eq!(y.shape(), [2, 2]);
    assert_eq!(values(&y), [8.0, 18.0, 14.0, 33.0]);
    let wrong = layer.forward(&constant(&[0.0; 4], &[2, 2]));
    assert!(matches!(wrong.as_ref().map_err(Error::kind), Err(ErrorKind::ShapeMismatch { .. })));
}

#[test]
fn linear_starts_uniform_in_its_bound_and_keyed() {
    let dev = Device::cpu();
    let key = RandomKey { seed: 3, op: 1 };
    let layer = Linear::keyed(100, 50, key, &dev).unwrap();
    assert_eq!(layer.weight().shape(), [50, 100]);
    assert!(
        layer.weight().value().t().unwrap().is_contiguous(),
        "the transposed weight is the plain operand"
    );
    let w = values(layer.weight());
    assert!(w.iter().all(|v| v.abs() <= 0.1));
    assert!(w.iter().any(|v| *v > 0.099) && w.iter().any(|v| *v < -0.099));
    let mean_square = w.iter().map(|v| v * v).sum::<f32>() / w.len() as f32;
    assert!((mean_square - 0.01 / 3.0).abs() < 2e-4, "{mean_square}");
    let b = values(layer.bias().unwrap());
    assert!(b.iter().all(|v| v.abs() <= 0.1));
    let first_row: Vec<f32> = w.iter().step_by(100).copied().collect();
    assert_ne!(b, first_row, "weight and bias have numbers of their own");
    assert_eq!(values(Linear::keyed(100, 50, key, &dev).unwrap().weight()), w);
    let other = RandomKey { seed: 3, op: 2 };
    assert_ne!(values(Linear::keyed(100, 50, other, &dev).unwrap().weight()), w);
    let by_scope = || seeded(4, || Linear::new(5, 5, &dev).map(|l| values(l.weight())).unwrap());
    assert_eq!(by_scope(), by_scope());
}

#[test]
fn linear_options_and_parts_are_checked() {
    let dev = Device::cpu();
    let options = LinearOptions { bias: false, dtype: DType::F64, ..LinearOptions::default() };
    let layer = Linear::with_options(3, 2, options, &dev).unwrap();
    assert!(layer.bias().is_none() && layer.parameters().len() == 1);
    assert_eq!(layer.weight().dtype(), DType::F64);
    let integers = LinearOptions { dtype: DType::I64, ..LinearOptions::default() };
    assert!(matches!(
        Linear::with_options(3, 2, integers, &dev).as_ref().map_err(Error::kind),
        Err(ErrorKind::DTypeUnsupported { .. })
    ));
    let leaf = |shape: &[usize], dtype| Var::leaf(Tensor::zeros(shape, dtype, &dev).unwrap());
    let make =
        |w: &[usize], b: &[usize], dtype| Linear::from_parts(leaf(w, DType::F32), Some(leaf(b, dtype))).err();
    assert!(make(&[2, 3], &[2], DType::F32).is_none());
    assert!(matches!(
        make(&[2, 3], &[3], DType::F32).as_ref().map(Error::kind),
        Some(ErrorKind::ShapeMismatch { .. })
    ));
    assert!(matches!(
        make(&[2], &[2], DType::F32).as_ref().map(Error::kind),
        Some(ErrorKind::ShapeMismatch { .. })
    ));
    assert!(matches!(
        make(&[2, 3], &[2], DType::F64).as_ref().map(Error::kind),
        Some(ErrorKind::DTypeMismatch { .. })
    ));
}

#[test]
fn activations_have_their_values() {
    let x = constant(&[-1.0, 0.0, 2.0], &[3]);
    let close = |module: &dyn Forward, expected: [f32; 3]| {
        let got = values(&module.forward(&x).unwrap());
        assert_abs_diff_eq!(got[..], expected[..], epsilon = 1e-6);
    };
    close(&Relu, [0.0, 0.0, 2.0]);
    close(&Gelu::default(), [-0.158_655_26, 0.0, 1.954_499_7]);
    close(&Gelu(tensor::GeluKind::Tanh), [-0.158_808_01, 0.0, 1.954_597_7]);
    close(&Silu, [-0.268_941_43, 0.0, 1.761_594_2]);
    close(&Tanh, [-0.761_594_2, 0.0, 0.964_027_6]);
    close(&Sigmoid, [0.268_941_43, 0.5, 0.880_797_1]);
}

#[test]
fn sequential_gives_a_relu_to_the_layer_before_it() {
    let dev = Device::cpu();
    let x =
        Var::constant(Tensor::randn(&[3, 2, 5, 5], DType::F32, RandomKey { seed: 1, op: 0 }, &dev).unwrap());
    let layers: [(&str, Arc<dyn Forward>); 5] = [
        ("linear_relu", Arc::new(Linear::new(5, 4, &dev).unwrap())),
        ("conv2d_relu", Arc::new(Conv2d::new(2, 4, [3, 3], &dev).unwrap())),
        ("conv_transpose2d_relu", Arc::new(ConvTranspose2d::new(2, 4, [3, 3], &dev).unwrap())),
        ("batch_norm_relu", Arc::new(BatchNorm2d::new(2, &dev).unwrap())),
        ("relu", Arc::new(Recompute::new(Linear::new(5, 4, &dev).unwrap()))),
    ];
    for (op, layer) in layers {
        let fused = Sequential::new().push(Arc::clone(&layer)).push(Box::new(Relu)).push(Relu);
        for training in [true, false] {
            fused.set_training(training);
            let y = fused.forward(&x).unwrap();
            let ops: Vec<_> = y.tape().iter().map(|entry| entry.op).collect();
            assert!(ops.ends_with(&[op, "relu"]), "{op}: {ops:?}");
            assert_eq!(values(&y), values(&layer.forward(&x).unwrap().relu().unwrap()), "{op}");
        }
    }
}

#[test]
fn flatten_keeps_the_first_axis() {
    let shape = |from: &[usize]| {
        let x = constant(&vec![0.0; from.iter().product()], from);
        Flatten.forward(&x).unwrap().shape().to_vec()
    };
    assert_eq!(shape(&[2, 3, 4]), [2, 12]);
    assert_eq!(shape(&[2]), [2, 1]);
    assert_eq!(shape(&[0, 3]), [0, 3]);
}

#[test]
fn dropout_drops_and_scales_in_training_only() {
    let dropout = Dropout::new(0.25).unwrap();
    let x = constant(&[1.0; 4000], &[4000]);
    let y = values(&dropout.forward(&x).unwrap());
    let dropped = y.iter().filter(|v| **v == 0.0).count();
    assert!((850..1150).contains(&dropped), "{dropped} of 4000");
    assert!(y.iter().all(|v| *v == 0.0 || abs_diff_eq!(*v, 4.0 / 3.0, epsilon = 1e-6)));
    dropout.set_training(false);
    assert_eq!(values(&dropout.forward(&x).unwrap()), vec![1.0; 4000]);
    for p in [-0.1, 1.1, f64::NAN] {
        assert!(matches!(
            Dropout::new(p).as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { argument: "p", .. })
        ));
    }
    let all = values(&Dropout::new(1.0).unwrap().forward(&x).unwrap());
    assert!(all.iter().all(|v| *v == 0.0));
    assert_eq!(values(&Dropout::new(0.0).unwrap().forward(&x).unwrap()), vec![1.0; 4000]);
}

#[test]
fn dropout_follows_the_batch_not_the_thread_or_the_order() {
    let model = Sequential::new().push(Dropout::new(0.5).unwrap()).push(Dropout::new(0.5).unwrap());
    let dev = Device::cpu();
    let batch = |key| Batch {
        inputs: Tensor::ones(&[8, 8], DType::F32, &dev).unwrap(),
        labels: Tensor::zeros(&[8], DType::I64, &dev).unwrap(),
        bags: Vec::new(),
        key,
    };
    let run = |batch: &Batch| values(&batch.seeded(|| model.forward(&batch.input())).unwrap());
    let (even, odd) = (batch(10), batch(11));
    let serial = [run(&even), run(&odd)];
    assert_ne!(serial[0], serial[1]);
    for _ in 0..20 {
        let lanes = std::thread::scope(|scope| {
            let lanes = [&odd, &even].map(|batch| scope.spawn(|| run(batch)));
            lanes.map(|lane| lane.join().unwrap())
        });
        assert_eq!([&lanes[1], &lanes[0]], [&serial[0], &serial[1]]);
    }
    // Two layers in one pass have masks of their own: about a quarter of the elements is left.
    let large = constant(&[1.0; 4000], &[4000]);
    let left = seeded(1, || values(&model.forward(&large).unwrap())).iter().filter(|v| **v != 0.0).count();
    assert!((850..1150).contains(&left), "{left} of 4000");
}

/// A model made by a user: two layers that share a weight, a parameter of its own, a layer in a box.
#[derive(Module)]
struct Custom {
    first: Linear,
    tied: Linear,
    scale: Var,
    layers: Box<dyn Forward>,
}

impl Forward for Custom {
    fn forward(&self, input: &Var) -> Result<Var> {
        let hidden = self.tied.forward(&self.first.forward(input)?)?;
        self.layers.forward(&(hidden * &self.scale)?)
    }
}

#[test]
fn names_are_dotted_tied_parameters_come_once_and_modes_pass_through() {
    let dev = Device::cpu();
    let first = Linear::new(4, 4, &dev).unwrap();
    let tied = Linear::from_parts(first.weight().clone(), None).unwrap();
    let layers = Sequential::new().push(Linear::new(4, 4, &dev).unwrap()).push(Dropout::new(1.0).unwrap());
    let scale = Var::leaf(Tensor::ones(&[4], DType::F32, &dev).unwrap());
    let model = std::sync::Arc::new(Custom { first, tied, scale, layers: Box::new(layers) });
    let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["first.weight", "first.bias", "scale", "layers.0.weight", "layers.0.bias"]);
    let x = constant(&[1.0; 4], &[1, 4]);
    assert_eq!(values(&model.forward(&x).unwrap()), [0.0; 4]);
    model.set_training(false);
    assert_ne!(values(&model.forward(&x).unwrap()), [0.0; 4]);
    assert_eq!(values(&Sequential::new().forward(&x).unwrap()), [1.0; 4]);
}

#[test]
fn a_sequential_of_a_list_and_of_an_iterator_has_names_by_position() -> Result<()> {
    let dev = Device::cpu();
    let blocks: Sequential = (0..2).map(|_| Linear::new(4, 4, &dev)).collect::<Result<_>>()?;
    let model = sequential![blocks, Relu, Linear::new(4, 2, &dev)?,];
    let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias", "2.weight", "2.bias"]);
    let x = constant(&[1.0; 4], &[1, 4]);
    assert_eq!(model.forward(&x)?.shape(), [1, 2]);
    assert_eq!(values(&sequential![].forward(&x)?), [1.0; 4]);
    assert_eq!(values(&Residual(Relu).forward(&constant(&[-1.0, 2.0], &[1, 2]))?), [-1.0, 4.0]);
    Ok(())
}
