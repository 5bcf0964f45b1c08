//! BF16 and F16 in whole programs: types of mixed operands, gradients, and training with weights in F32.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::bits;
use common::devices::{each_device, emulated};
use streamgrad::nn::{
    BatchNorm2d, BatchNormOptions, Conv2d, Conv2dOptions, Flatten, Linear, LinearOptions, MaxPool2d, Relu,
    Sequential,
};
use streamgrad::ops::fused::{Activation, batch_norm};
use streamgrad::optim::{Sgd, SgdOptions};
use streamgrad::prelude::*;
use streamgrad::{ConvOptions, CpuConfig, Error, ErrorKind, Graph, RandomKey, Reduction, Result, Schedule};

use DType::{BF16, Bool, F16, F32, F64, I64, U8};

const DTYPES: [DType; 7] = [F32, F64, I64, U8, Bool, BF16, F16];

#[test]
fn mixed_operands_are_promoted() {
    each_device(&[Schedule::Inline], |device| {
        for lhs in DTYPES {
            for rhs in DTYPES {
                let expected = lhs.promote(rhs);
                let of = |dtype| Tensor::ones(&[2, 1], dtype, device);
                let (a, b) = (Var::leaf(of(lhs)?), Var::leaf(of(rhs)?.reshape(&[1, 2])?));
                let ops = [Var::add, Var::sub, Var::mul, Var::pow, Var::maximum, Var::minimum];
                let quotient = a.div(&b)?;
                assert_eq!(quotient.dtype(), if expected.is_float() { expected } else { F32 });
                if expected == Bool {
                    let refused = ops.map(|op| {
                        matches!(
                            op(&a, &b).as_ref().map_err(Error::kind),
                            Err(ErrorKind::DTypeUnsupported { .. })
                        )
                    });
                    // Of truth values there are products, maxima and minima.
                    assert_eq!(refused, [true, true, false, true, false, false]);
                    continue;
                }
                let cond = a.value().le(b.value())?;
                assert_eq!(cond.to_vec::<bool>()?, [true; 4]);
                let chosen = Var::where_cond(&cond, &a, &b)?;
                let results: Vec<Var> = ops.iter().map(|op| op(&a, &b)).collect::<Result<_>>()?;
                for y in results.iter().chain([&chosen]) {
                    assert_eq!(y.dtype(), expected, "{lhs} and {rhs}");
                }
                for y in results.iter().chain([&chosen, &quotient]) {
                    if !y.requires_grad() {
                        assert!(!lhs.is_float() && !rhs.is_float());
                        continue;
                    }
                    let gradients = y.sum_all()?.backward()?;
                    for leaf in [&a, &b] {
                        let gradient = gradients.get(leaf).map(|g| (g.dtype(), g.shape().to_vec()));
                        let own = leaf.requires_grad().then(|| (leaf.dtype(), leaf.shape().to_vec()));
                        assert_eq!(gradient, own, "{lhs} and {rhs}");
                    }
                }
            }
        }
        Ok(())
    });
}

/// Two layers whose weights are F32 and are used as `dtype`.
struct Network {
    weights: [Var; 2],
    dtype: DType,
}

const SIZES: [usize; 3] = [12, 40, 5];

impl Network {
    fn new(dtype: DType, device: &Device) -> Result<Network> {
        let weight = |layer: usize| {
            let key = RandomKey { seed: 7, op: layer as u64 };
            let shape = [SIZES[layer + 1], SIZES[layer]];
            Ok(Var::leaf(Tensor::normal(0.0, 0.3, &shape, F32, key, device)?))
        };
        Ok(Network { weights: [weight(0)?, weight(1)?], dtype })
    }

    fn loss(&self, step: u64) -> Result<Var> {
        let device = self.weights[0].device();
        let x = Tensor::randn(&[16, SIZES[0]], F32, RandomKey { seed: 8, op: step % 4 }, device)?;
        // What is to be learnt: which of the first elements is the largest.
        let labels = x.narrow(1, 0, SIZES[2])?.argmax(1, false)?;
        let [first, second] = self.weights.each_ref().map(|weight| weight.to_dtype(self.dtype));
        let x = Var::constant(x.to_dtype(self.dtype)?);
        let logits = x.linear(&first?, None)?.relu()?.linear(&second?, None)?;
        assert_eq!(logits.dtype(), self.dtype);
        // As torch's autocast does.
        logits.to_dtype(F32)?.cross_entropy(&labels, Reduction::Mean)
    }

    fn train(&self, steps: u64) -> Result<Vec<f32>> {
        let options = SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() };
        let mut optimizer = Sgd::new(self.weights.to_vec(), options)?;
        (0..steps)
            .map(|step| {
                let loss = self.loss(step)?;
                let gradients = loss.backward()?;
                for weight in &self.weights {
                    let gradient = gradients.get(weight).unwrap();
                    assert_eq!((gradient.dtype(), gradient.shape()), (F32, weight.shape()));
                }
                optimizer.step(&gradients)?;
                loss.value().item::<f32>()
            })
            .collect()
    }
}

#[test]
fn training_in_half_with_weights_in_f32_follows_training_in_f32() {
    each_device(&[Schedule::Inline, Schedule::Threads], |device| {
        let exact = Network::new(F32, device)?.train(40)?;
        assert!(exact[39] < 0.2 * exact[0], "{exact:?}");
        for (dtype, tolerance) in [(BF16, 0.05), (F16, 0.01)] {
            let losses = Network::new(dtype, device)?.train(40)?;
            let worst = losses.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < tolerance, "{dtype}: {worst}");
            assert!(losses != exact, "{dtype} rounds");
        }
        Ok(())
    });
}

#[test]
fn threads_do_not_show_in_halves() -> Result<()> {
    let run = |threads| -> Result<(Vec<u32>, Vec<u32>)> {
        let device = Device::cpu_with(CpuConfig { threads: Some(threads), ..CpuConfig::default() });
        let x = Var::leaf(Tensor::randn(&[200, 300], BF16, RandomKey { seed: 1, op: 1 }, &device)?);
        let w = Var::leaf(Tensor::randn(&[300, 170], BF16, RandomKey { seed: 1, op: 2 }, &device)?);
        let y = x.silu()?.matmul(&w)?.softmax(-1)?.mul(&w.sum(&[0], false)?)?;
        let gradients = y.square()?.sum_all()?.backward()?;
        let of = |var| bits(&gradients.get(var).unwrap().to_dtype(F32)?);
        Ok((of(&x)?, of(&w)?))
    };
    assert_eq!(run(1)?, run(4)?);
    Ok(())
}

fn model(dtype: DType, device: &Device) -> Result<Sequential> {
    let key = |op| Some(RandomKey { seed: 5, op });
    let conv = Conv2dOptions { padding: [1; 2], dtype, key: key(1), ..Conv2dOptions::default() };
    let norm = BatchNormOptions { dtype, ..BatchNormOptions::default() };
    Ok(Sequential::new()
        .push(Conv2d::with_options(2, 4, [3; 2], conv, device)?)
        .push(BatchNorm2d::with_options(4, norm, device)?)
        .push(Relu)
        .push(MaxPool2d::new([2; 2]))
        .push(Flatten)
        .push(Linear::with_options(
            64,
            5,
            LinearOptions { dtype, key: key(2), ..Default::default() },
            device,
        )?))
}

#[test]
fn a_model_in_half_has_gradients_in_half() {
    each_device(&[Schedule::Inline], |device| {
        let (half, exact) = (model(BF16, device)?, model(F32, device)?);
        for (to, from) in exact.parameters().into_iter().zip(half.parameters()) {
            assert_eq!(from.dtype(), BF16);
            to.value().copy_(from.value())?;
        }
        let images = Tensor::randn(&[6, 2, 8, 8], BF16, RandomKey { seed: 3, op: 0 }, device)?;
        let labels = Tensor::from_slice(&[0_i64, 3, 1, 1, 2, 4], &[6], device)?;
        let gradients = |model: &Sequential, dtype| -> Result<Vec<Tensor>> {
            let logits = model.forward(&Var::constant(images.to_dtype(dtype)?))?;
            assert_eq!(logits.dtype(), dtype);
            let found = logits.cross_entropy(&labels, Reduction::Mean)?.backward()?;
            Ok(model.parameters().into_iter().map(|parameter| found.get(&parameter).unwrap()).collect())
        };
        let (half_gradients, exact_gradients) = (gradients(&half, BF16)?, gradients(&exact, F32)?);
        for (half, exact) in half.named_buffers().into_iter().zip(exact.named_buffers()) {
            // Running statistics do not lose what is less than BF16 can tell.
            assert_eq!((&half.0, half.1.dtype()), (&exact.0, exact.1.dtype()));
        }
        for (half, exact) in half_gradients.iter().zip(exact_gradients) {
            assert_eq!(half.dtype(), BF16);
            let (half, exact) = (half.to_dtype(F32)?.to_vec::<f32>()?, exact.to_vec::<f32>()?);
            // The convolution's bias has none: the norm takes it away.
            let largest = exact.iter().fold(0.02_f32, |m, x| m.max(x.abs()));
            let worst = half.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= 0.06 * largest, "{worst} of {largest}");
        }
        Ok(())
    });
}

/// Steps of a model in BF16 with masters are those of a model in F32 that is used in BF16, bit for bit.
#[test]
fn optimizers_keep_a_parameter_in_half_in_f32() {
    each_device(&[Schedule::Inline], |device| {
        let train = |dtype: DType, graph: bool| -> Result<(Vec<Vec<u32>>, Vec<Tensor>)> {
            let weight = |shape: &[usize], op| -> Result<Var> {
                let x = Tensor::normal(0.0, 0.3, shape, BF16, RandomKey { seed: 7, op }, device)?;
                Ok(Var::leaf(x.t()?.to_dtype(dtype)?))
            };
            let weights = [weight(&[12, 40], 0)?, weight(&[40, 5], 1)?];
            let x = Var::constant(Tensor::randn(&[16, 12], BF16, RandomKey { seed: 8, op: 0 }, device)?);
            let mut adam = AdamW::new(weights.to_vec(), 0.01)?;
            let mut step = || -> Result<()> {
                let [first, second] = weights.each_ref().map(|weight| weight.to_dtype(BF16));
                let loss = x
                    .linear(&first?, None)?
                    .relu()?
                    .linear(&second?, None)?
                    .to_dtype(F32)?
                    .square()?
                    .mean_all()?;
                adam.step(&loss.backward()?)
            };
            if graph {
                let graph = Graph::capture(device, &mut step)?;
                (0..5).try_for_each(|_| graph.replay())?;
            } else {
                (0..5).try_for_each(|_| step())?;
            }
            let rounded = weights.iter().map(|weight| bits(&weight.value().to_dtype(BF16)?.to_dtype(F32)?));
            let state = adam.state()?.tensors;
            let masters: Vec<Tensor> = state
                .into_iter()
                .filter(|(name, _)| name.ends_with("master"))
                .map(|(_, tensor)| tensor)
                .collect();
            let exact = if masters.is_empty() {
                weights.iter().map(|weight| weight.value().clone()).collect()
            } else {
                masters
            };
            Ok((rounded.collect::<Result<_>>()?, exact))
        };
        let (expected, exact) = train(F32, false)?;
        for graph in [false, true] {
            let (found, masters) = train(BF16, graph)?;
            assert_eq!(found, expected);
            for (master, exact) in masters.iter().zip(&exact) {
                assert_eq!(master.dtype(), F32);
                assert_eq!(bits(master)?, bits(exact)?);
            }
        }
        Ok(())
    });
}

#[test]
fn a_master_is_part_of_an_optimizers_state_and_follows_its_parameter() -> Result<()> {
    let device = Device::cpu();
    let new = || -> Result<(Var, Sgd)> {
        let weight = Var::leaf(Tensor::ones(&[2], BF16, &device)?);
        Ok((weight.clone(), Sgd::new(vec![weight], 2_f64.powi(-9))?))
    };
    // A quarter of what BF16 can tell below 1.
    let step = |weight: &Var, sgd: &mut Sgd| sgd.step(&weight.mul_scalar(0.5)?.sum_all()?.backward()?);
    let values = |weight: &Var| weight.value().to_dtype(F32)?.to_vec::<f32>();
    let (weight, mut sgd) = new()?;
    step(&weight, &mut sgd)?;
    assert_eq!(values(&weight)?, [1.0; 2]);
    let state = sgd.state()?;
    assert_eq!(
        (&state.tensors[0].0[..], state.tensors[0].1.to_vec::<f32>()?),
        ("0.master", vec![1.0 - 2_f32.powi(-10); 2])
    );
    let (other, mut resumed) = new()?;
    resumed.load_state(&state)?;
    for _ in 0..3 {
        step(&weight, &mut sgd)?;
        step(&other, &mut resumed)?;
    }
    assert_eq!(values(&weight)?, [1.0 - 2_f32.powi(-8); 2]);
    assert_eq!(values(&other)?, values(&weight)?);
    // What is written beside the optimizer is what it goes on from.
    weight.value().narrow(0, 0, 1)?.fill_(0.5)?;
    for _ in 0..4 {
        step(&weight, &mut sgd)?;
    }
    assert_eq!(values(&weight)?, [0.5 - 2_f32.powi(-8), 1.0 - 2_f32.powi(-7)]);
    // A fresh state takes the parameter as it is.
    sgd.load_state(&new()?.1.state()?)?;
    weight.value().fill_(2.0)?;
    (0..8).try_for_each(|_| step(&weight, &mut sgd))?;
    assert_eq!(values(&weight)?, [2.0 - 2_f32.powi(-7); 2]);
    Ok(())
}

/// A convolution, batch normalisation, a function of elements and another convolution: the value, and all gradients. Filters are of the images' type,
/// rounded to another.
fn convolved(x: &Tensor, rounded: DType) -> Result<Vec<Tensor>> {
    let device = x.device();
    let normal = |shape: &[usize], op| {
        let exact = Tensor::normal(0.0, 0.3, shape, F32, RandomKey { seed: 3, op }, device)?;
        exact.to_dtype(rounded)?.to_dtype(x.dtype())
    };
    let leaves =
        [Var::leaf(x.clone()), Var::leaf(normal(&[40, 16, 3, 3], 1)?), Var::leaf(normal(&[8, 40, 3, 3], 2)?)];
    let scale = |value: f64| Ok(Var::leaf(Tensor::full(&[40], value, x.dtype().compute_dtype(), device)?));
    let scales = [scale(1.5)?, scale(0.25)?];
    let [x, first, second] = &leaves;
    let same = ConvOptions { padding: [1; 2], ..ConvOptions::default() };
    let (normalised, _) =
        x.conv2d(first, None, &same)?.batch_norm(Some(&scales[0]), Some(&scales[1]), 1e-5)?;
    let y = normalised.silu()?.conv2d(second, None, &same)?;
    let gradients = y.mul(&y)?.sum_all()?.backward()?;
    let of = |leaf: &Var| gradients.get(leaf).unwrap();
    Ok([y.value().clone()].into_iter().chain(leaves.iter().chain(&scales).map(of)).collect())
}

/// Where a library's kernels want it, what convolutions make has its channels last; how the images lay does not show.
#[test]
fn convolutions_pass_on_channels_that_lie_last() {
    each_device(&[Schedule::Inline], |device| {
        for dtype in [BF16, F16, F32] {
            device.set_tf32(true);
            let x = Tensor::randn(&[6, 16, 6, 7], dtype, RandomKey { seed: 3, op: 0 }, device)?;
            let last = x.channels_last()?;
            assert_eq!(last.strides(), [16 * 42, 1, 16 * 7, 16]);
            let (found, again) = (convolved(&x, dtype)?, convolved(&last, dtype)?);
            for (a, b) in found.iter().zip(&again) {
                assert_eq!(bits(&a.to_dtype(F32)?)?, bits(&b.to_dtype(F32)?)?, "{dtype}");
            }
            // Hardware may have no algorithm for a form that always gives the same bits.
            let by_library = streamgrad::kernels::convolutions(device)?.starts_with("cuDNN");
            for made in &found[..2] {
                let is_last = made.strides()[1] == 1;
                assert!(is_last == by_library || by_library && !emulated(), "{dtype}: {:?}", made.strides());
            }
            assert!(found[2].is_contiguous() && found[3].is_contiguous());
            // The same in F64, of the same numbers.
            let exact = convolved(&x.to_dtype(F64)?, dtype)?;
            for (i, (a, b)) in found.iter().zip(&exact).enumerate() {
                let (a, b) = (a.to_dtype(F64)?.to_vec::<f64>()?, b.to_vec::<f64>()?);
                let largest = b.iter().fold(0.0_f64, |most, v| most.max(v.abs()));
                let far = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0_f64, f64::max);
                assert!(far <= 0.03 * largest, "{dtype} result {i}: {far} of {largest}");
            }
        }
        Ok(())
    });
}

/// A bias that begins where no vector of a library's does, with channels that lie last.
#[test]
fn channels_that_lie_last_take_any_bias() {
    each_device(&[Schedule::Inline], |device| {
        device.set_tf32(true);
        for dtype in [BF16, F16, F32] {
            let randn = |shape: &[usize], op| Tensor::randn(shape, dtype, RandomKey { seed: 5, op }, device);
            let (x, w, biases) = (randn(&[2, 16, 8, 8], 0)?, randn(&[16, 16, 3, 3], 1)?, randn(&[17], 2)?);
            let bias = biases.narrow(0, 1, 16)?;
            let options = ConvOptions::default();
            let found = x.conv2d(&w, Some(&bias), &options)?;
            let expected = x.conv2d(&w, Some(&bias.copy()?), &options)?;
            assert_eq!(bits(&found.to_dtype(F32)?)?, bits(&expected.to_dtype(F32)?)?, "{dtype}");
        }
        Ok(())
    });
}

/// Whether the positive part is taken of normalised images, and by which op.
#[derive(Clone, Copy)]
enum Positive {
    None,
    Within,
    Behind,
}

/// Neither where the channels of images lie is seen in what normalises them, nor in the gradients, nor whether a ReLU is part of it.
#[test]
fn channels_that_lie_last_are_normalised_to_the_same_bits() {
    each_device(&[Schedule::Inline], |device| {
        for dtype in [BF16, F32, F64] {
            for shape in [[3, 24, 40, 36], [2, 136, 5, 3], [2, 6, 4, 4]] {
                let randn = |op| Tensor::randn(&shape, dtype, RandomKey { seed: 4, op }, device);
                let (x, g) = (randn(0)?, Var::constant(randn(1)?));
                let run = |x: Tensor, relu: Positive| {
                    let scale = Tensor::full(&[shape[1]], 1.5, dtype.compute_dtype(), device)?;
                    let [x, weight, bias] = [x, scale.clone(), scale].map(Var::leaf);
                    let affine = [Some(&weight), Some(&bias)];
                    let (y, statistics) = match relu {
                        Positive::None => x.batch_norm(affine[0], affine[1], 1e-5)?,
                        Positive::Within => batch_norm(&x, None, affine, 1e-5, Activation::Relu)?,
                        Positive::Behind => {
                            let (y, statistics) = x.batch_norm(affine[0], affine[1], 1e-5)?;
                            (y.relu()?, statistics)
                        }
                    };
                    let gradients = y.mul(&g)?.sum_all()?.backward()?;
                    let grads = [&x, &weight, &bias].map(|leaf| gradients.get(leaf).unwrap());
                    Ok([&[y.value().clone(), statistics.mean, statistics.var][..], &grads[..]].concat())
                };
                let same = |found: Vec<Tensor>, other: Vec<Tensor>, what: &str| -> Result<()> {
                    for (i, (a, b)) in found.iter().zip(&other).enumerate() {
                        let [a, b] = [a.to_dtype(F64)?.to_vec::<f64>()?, b.to_dtype(F64)?.to_vec::<f64>()?];
                        assert!(
                            a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()),
                            "{dtype} {shape:?} result {i}, {what}"
                        );
                    }
                    Ok(())
                };
                for relu in [Positive::None, Positive::Within] {
                    same(run(x.clone(), relu)?, run(x.channels_last()?, relu)?, "channels last")?;
                }
                same(run(x.clone(), Positive::Within)?, run(x.clone(), Positive::Behind)?, "relu")?;
            }
        }
        Ok(())
    });
}
