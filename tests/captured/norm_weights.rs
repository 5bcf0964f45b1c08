//! Gradients of norms' weights that become one command of a CUDA device, and those that must not.

use super::all_bits;
use crate::common::devices::each_device;
use streamgrad::prelude::*;
use streamgrad::{Graph, GraphOptions, Order, RandomKey, Result, Schedule};

const SCHEDULES: [Schedule; 1] = [Schedule::Inline];

fn randn(shape: &[usize], dtype: DType, op: u64, device: &Device) -> Result<Tensor> {
    Tensor::randn(shape, DType::F32, RandomKey { seed: 11, op }, device)?.to_dtype(dtype)
}

/// How many commands of a step have one op and another one, which several become on CUDA: it has to be so many there. Replays give the
/// bits of the step.
fn check_ops(
    device: &Device,
    order: Order,
    named: [&str; 2],
    expected: [usize; 2],
    step: impl Fn() -> Result<Vec<Tensor>>,
) -> Result<()> {
    let values = all_bits(&step()?)?;
    for fuse in [false, true] {
        let graph =
            Graph::capture_with(device, GraphOptions { order, fuse, ..GraphOptions::default() }, &step)?;
        let commands = graph.commands();
        let ops: Vec<_> = commands.iter().map(|command| command.op).collect();
        let counts = named.map(|op| ops.iter().filter(|found| **found == op).count());
        if fuse && !device.runs_on_host() {
            assert_eq!(counts, expected, "{order:?}: {ops:?}");
        } else {
            assert_eq!(counts[1], 0, "{order:?}: {ops:?}");
        }
        assert_eq!(streamgrad::device::unordered(&commands), []);
        // Somebody still holds the results of the first replay, so that the second one has others.
        let found = [graph.replay()?, graph.replay()?];
        for found in &found {
            assert!(all_bits(found)? == values, "{order:?}, fuse {fuse}: {ops:?}");
        }
    }
    Ok(())
}

/// How many layer norms and gradients of such are commands by themselves, and how many commands are several.
fn check(
    device: &Device,
    order: Order,
    expected: [usize; 2],
    step: impl Fn() -> Result<Vec<Tensor>>,
) -> Result<()> {
    check_ops(device, order, ["layer_norm", "norm_weights"], expected, step)
}

/// What is normalized, its parameters, and the gradient of the result.
struct Layer {
    x: Tensor,
    g: Var,
    weight: Var,
    bias: Var,
}

impl Layer {
    fn new(rows: usize, width: usize, dtype: DType, device: &Device) -> Result<Layer> {
        let x = randn(&[rows, width], dtype, 1, device)?;
        let g = Var::constant(randn(&[rows, width], dtype, 2, device)?);
        let parameter = |op| randn(&[width], dtype.compute_dtype(), op, device).map(Var::leaf);
        Ok(Layer { x, g, weight: parameter(3)?, bias: parameter(4)? })
    }

    /// The gradients of weight and bias, where `x` is normalized.
    fn slopes_at(&self, x: &Tensor) -> Result<Vec<Tensor>> {
        let width = [self.weight.value().elements()];
        let normed =
            Var::constant(x.clone()).layer_norm(&width, Some(&self.weight), Some(&self.bias), 1e-5)?;
        let gradients = normed.mul(&self.g)?.sum(&[], false)?.backward()?;
        Ok([&self.weight, &self.bias].into_iter().filter_map(|leaf| gradients.get(leaf)).collect())
    }

    fn slopes(&self) -> Result<Vec<Tensor>> {
        self.slopes_at(&self.x)
    }
}

fn all_slopes(layers: &[Layer]) -> Result<Vec<Tensor>> {
    Ok(layers.iter().map(Layer::slopes).collect::<Result<Vec<_>>>()?.concat())
}

#[test]
fn gradients_of_weights_that_could_be_made_at_once_are_one_command() {
    each_device(&SCHEDULES, |device| {
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
            let sizes = [(1, 4), (3, 128), (40, 36), (1000, 68), (1024, 8)];
            let layers: Vec<Layer> = sizes
                .iter()
                .map(|&(rows, width)| Layer::new(rows, width, dtype, device))
                .collect::<Result<_>>()?;
            check(device, Order::Data, [5, 1], || all_slopes(&layers))?;
            check(device, Order::Streams, [10, 0], || all_slopes(&layers))?;
        }
        // Those of each type, and what all of them read.
        let types = [DType::F32, DType::F64, DType::F32, DType::F64, DType::BF16];
        let layers: Vec<Layer> =
            types.iter().map(|&dtype| Layer::new(6, 8, dtype, device)).collect::<Result<_>>()?;
        check(device, Order::Data, [6, 2], || all_slopes(&layers))?;
        let [first, second, third] = [&layers[0], &layers[2], &layers[0]];
        check(device, Order::Data, [3, 1], || {
            Ok([first, second, third]
                .map(|layer| layer.slopes_at(&first.x))
                .into_iter()
                .flatten()
                .flatten()
                .collect())
        })
    });
}

/// Norms without a mean or a bias, and such whose elements have a gradient, too.
#[test]
fn gradients_of_other_norms_are_a_part_of_the_same_command() {
    each_device(&SCHEDULES, |device| {
        for dtype in [DType::F32, DType::BF16] {
            let of = |op| randn(&[30, 20], dtype, op, device);
            let parameter = |op| randn(&[20], dtype.compute_dtype(), op, device).map(Var::leaf);
            let (x, slopes) = (Var::leaf(of(1)?), Var::constant(of(2)?));
            let leaves = [parameter(3)?, parameter(4)?, parameter(5)?, parameter(6)?];
            for (op, left) in [("layer_norm", 4), ("rms_norm", 2)] {
                check_ops(device, Order::Data, [op, "norm_weights"], [left, 1], || {
                    let first = x.layer_norm(&[20], Some(&leaves[0]), Some(&leaves[1]), 1e-5)?;
                    let second = first.sigmoid()?.rms_norm(&[20], Some(&leaves[2]), None)?;
                    let third = second.tanh()?.layer_norm(&[20], None, Some(&leaves[3]), 1e-5)?;
                    let gradients = third.mul(&slopes)?.sum(&[], false)?.backward()?;
                    Ok([&x].into_iter().chain(&leaves).filter_map(|leaf| gradients.get(leaf)).collect())
                })?;
            }
        }
        Ok(())
    });
}

#[test]
fn gradients_of_weights_that_somebody_waits_for_stay_apart() {
    each_device(&SCHEDULES, |device| {
        let [one, two] = [(6, 8), (8, 8)].map(|(rows, width)| Layer::new(rows, width, DType::F32, device));
        let (one, two) = (one?, two?);
        // One comes after the other.
        check(device, Order::Data, [4, 0], || {
            let first = one.slopes()?;
            let x = two.x.mul(&first[0])?;
            Ok([two.slopes_at(&x)?, first].concat())
        })?;
        // What takes one needs no other one, and would wait for it.
        check(device, Order::Data, [4, 0], || {
            let first = one.slopes()?;
            let early = first[0].reshape(&[1, 8])?.matmul(&two.x)?;
            Ok([two.slopes()?, first, vec![early]].concat())
        })?;
        // What the first one reads is changed behind it; and is what the second one reads then.
        for again in [false, true] {
            check(device, Order::Data, [4, 0], || {
                let made = two.x.matmul(&two.x)?;
                let first = two.slopes_at(&made)?;
                made.add_scalar_(1.0)?;
                let second = two.slopes_at(if again { &made } else { &two.x })?;
                Ok([first, second, vec![made]].concat())
            })?;
        }
        Ok(())
    });
}

#[test]
fn gradients_that_need_other_kernels_stay_apart() {
    each_device(&SCHEDULES, |device| {
        let layer = |rows, width| Layer::new(rows, width, DType::F32, device);
        // Weights that are no packs, rows that are cut, and more than is read quickly.
        for (rows, width) in [(4, 5), (1025, 4), (513, 516)] {
            let layers = [layer(rows, width)?, layer(rows, width)?];
            check(device, Order::Data, [4, 0], || all_slopes(&layers))?;
        }
        // Up to what a command may take together, and more than a launch has room for.
        let large = (0..4).map(|_| layer(1024, 128)).collect::<Result<Vec<_>>>()?;
        check(device, Order::Data, [5, 1], || all_slopes(&large))?;
        let small = (0..70).map(|_| layer(2, 4)).collect::<Result<Vec<_>>>()?;
        check(device, Order::Data, [70, 2], || all_slopes(&small))?;
        // Elements that do not begin where packs do.
        let (one, two) = (layer(6, 8)?, layer(5, 8)?);
        check(device, Order::Data, [4, 0], || {
            let behind = one.x.flatten(0, -1)?.narrow(0, 1, 40)?.reshape(&[5, 8])?;
            Ok([one.slopes()?, two.slopes_at(&behind)?].concat())
        })
    });
}
