//! Sums that become one command of a CUDA device, and those that must not.

use super::all_bits;
use crate::common::devices::each_device;
use streamgrad::prelude::*;
use streamgrad::{Graph, GraphOptions, Order, RandomKey, Result, Schedule};

const SCHEDULES: [Schedule; 1] = [Schedule::Inline];

pub(super) fn randn(shape: &[usize], dtype: DType, op: u64, device: &Device) -> Result<Tensor> {
    Tensor::randn(shape, DType::F32, RandomKey { seed: 11, op }, device)?.to_dtype(dtype)
}

/// How many commands of a step have one op and another one, which several become on CUDA: it has to be so many there. Replays give the
/// bits of the step.
pub(super) fn check_ops(
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

fn check(
    device: &Device,
    order: Order,
    expected: [usize; 2],
    step: impl Fn() -> Result<Vec<Tensor>>,
) -> Result<()> {
    check_ops(device, order, ["sum", "sums"], expected, step)
}

#[test]
fn sums_that_could_run_at_once_are_one_command() {
    each_device(&SCHEDULES, |device| {
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
            let shapes: [&[usize]; 5] = [&[3, 10], &[64, 33], &[1500, 4], &[2, 6, 5, 7], &[8, 3, 4, 4]];
            let found: Vec<Tensor> = (0..)
                .zip(shapes)
                .map(|(op, shape)| randn(shape, dtype, op, device))
                .collect::<Result<_>>()?;
            let sum = |x: &Tensor| x.sum(if x.rank() == 2 { &[0] } else { &[0, 2, 3] }, false);
            let step = || found.iter().map(sum).collect();
            check(device, Order::Data, [0, 1], step)?;
            check(device, Order::Streams, [5, 0], step)?;
            // Of what the step has made and others take, too: as gradients of biases are.
            let step = || {
                let made = found[1].matmul(&found[1].t()?)?;
                let more = made.matmul(&made)?;
                Ok(vec![made.sum(&[0], false)?, more.sum(&[1], true)?, sum(&found[0])?, more])
            };
            check(device, Order::Data, [0, 1], step)?;
        }
        // Those of each type.
        let found = [DType::F32, DType::F64, DType::F32, DType::F64, DType::BF16];
        let found: Vec<Tensor> =
            (0..).zip(found).map(|(op, dtype)| randn(&[5, 6], dtype, op, device)).collect::<Result<_>>()?;
        check(device, Order::Data, [1, 2], || found.iter().map(|x| x.sum(&[0], false)).collect())
    });
}

#[test]
fn sums_that_somebody_waits_for_stay_apart() {
    each_device(&SCHEDULES, |device| {
        let [x, y] = [1, 2].map(|op| randn(&[6, 6], DType::F32, op, device));
        let (x, y) = (x?, y?);
        // One comes after the other.
        check(device, Order::Data, [2, 0], || {
            let first = x.sum(&[0], true)?;
            Ok(vec![first.matmul(&y)?.sum(&[1], false)?, first])
        })?;
        // What takes a sum needs no other one, and would wait for it.
        check(device, Order::Data, [2, 0], || {
            let early = x.sum(&[0], true)?;
            Ok(vec![early.matmul(&y)?, x.sum(&[1], false)?])
        })?;
        // Those behind are free.
        check(device, Order::Data, [1, 1], || {
            let product = x.sum(&[0], true)?.matmul(&y)?;
            let made = y.matmul(&product.t()?)?.matmul(&product)?;
            Ok(vec![made.sum(&[0], false)?, x.sum(&[1], false)?, product])
        })?;
        // What a sum takes is changed behind it.
        check(device, Order::Data, [2, 0], || {
            let made = x.matmul(&y)?;
            let sum = made.sum(&[0], false)?;
            made.add_scalar_(1.0)?;
            Ok(vec![sum, y.sum(&[0], false)?, made])
        })
    });
}

#[test]
fn sums_of_much_stay_apart() {
    each_device(&SCHEDULES, |device| {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, device);
        let step = |x: &Tensor, count: isize| -> Result<Vec<Tensor>> {
            (0..count).map(|at| x.sum(&[at % 2], false)).collect()
        };
        // A little more than fits, up to what commands may take together, and more than a launch has room for.
        let (more, most, small) =
            (zeros(&[513, 512])?, zeros(&[512, 512])?, randn(&[4, 5], DType::F32, 1, device)?);
        check(device, Order::Data, [3, 0], || step(&more, 3))?;
        check(device, Order::Data, [1, 1], || step(&most, 5))?;
        check(device, Order::Data, [0, 2], || step(&most, 6))?;
        check(device, Order::Data, [0, 2], || step(&small, 70))?;
        // Rows that several groups of threads share.
        let long = zeros(&[5000, 2])?;
        check(device, Order::Data, [2, 0], || Ok(vec![long.sum(&[0], false)?, long.sum(&[0], true)?]))
    });
}
