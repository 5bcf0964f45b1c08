//! Norms that add what they take, and gradients of norms that are added to others.

use super::all_bits;
use crate::common::devices::each_device;
use streamgrad::prelude::*;
use streamgrad::{Graph, GraphOptions, Order, RandomKey, Result, Schedule};

const SCHEDULES: [Schedule; 2] = [Schedule::Inline, Schedule::Threads];
const TYPES: [DType; 4] = [DType::F32, DType::F64, DType::BF16, DType::F16];

fn randn(shape: &[usize], dtype: DType, op: u64, device: &Device) -> Result<Tensor> {
    Tensor::randn(shape, DType::F32, RandomKey { seed: 5, op }, device)?.to_dtype(dtype)
}

fn count<R: streamgrad::Tensors>(graph: &Graph<R>, op: &str) -> usize {
    graph.commands().iter().filter(|command| command.op == op).count()
}

/// That a step gives the eager bits, fused and not, and has so many additions left once it is fused.
fn check(what: &str, device: &Device, adds: usize, step: &dyn Fn() -> Result<Vec<Tensor>>) -> Result<()> {
    let expected = all_bits(&step()?)?;
    for fuse in [false, true] {
        let graph = Graph::capture_with(device, GraphOptions { fuse, ..GraphOptions::default() }, step)?;
        let ops: Vec<_> = graph.commands().iter().map(|command| command.op).collect();
        assert_eq!(streamgrad::device::unordered(&graph.commands()), [], "{what}");
        let left = count(&graph, "add") + count(&graph, "fused");
        assert!(!fuse || left == adds, "{what}, {device:?}: {ops:?}");
        for replay in 0..2 {
            graph.executable().shuffle((replay > 0).then_some(replay));
            assert!(all_bits(&graph.replay()?)? == expected, "{what}, {device:?}, fuse {fuse}: {ops:?}");
        }
    }
    Ok(())
}

/// A CPU leaves halves alone, which it would have to widen.
fn left(dtype: DType, device: &Device) -> usize {
    usize::from(device.runs_on_host() && matches!(dtype, DType::BF16 | DType::F16))
}

#[test]
fn a_norm_and_the_sum_that_it_takes_are_one_command() {
    each_device(&SCHEDULES, |device| {
        for (n, s, width) in [(1, 1, 1), (2, 3, 5), (3, 40, 128), (1, 2, 1500), (2, 1, 9000)] {
            for dtype in TYPES {
                let x = Var::constant(randn(&[n, s, width], dtype, 1, device)?);
                let [weight, bias] =
                    [2, 3].map(|op| randn(&[width], dtype.compute_dtype(), op, device).map(Var::constant));
                let (weight, bias) = (weight?, bias?);
                for other in [&[n, s, width][..], &[s, width], &[width]] {
                    let y = Var::constant(randn(other, dtype, 4, device)?);
                    let name = format!("{n} x {s} x {width} + {other:?}, {dtype}");
                    let layer = |sum: &Var| sum.layer_norm(&[width], Some(&weight), Some(&bias), 1e-5);
                    let rms = |sum: &Var| sum.rms_norm(&[width], None, None);
                    let adds = left(dtype, device);
                    // The sum is a result, or nobody else's.
                    check(&name, device, adds, &|| {
                        let sum = x.add(&y)?;
                        Ok(vec![layer(&sum)?.value().clone(), sum.value().clone()])
                    })?;
                    check(&name, device, adds, &|| Ok(vec![rms(&y.add(&x)?)?.value().clone()]))?;
                }
                // It replaces a term.
                let all = Tensor::arange(0.0, n as f64, 1.0, DType::I64, device)?;
                check("in place", device, left(dtype, device), &|| {
                    let sum = x.value().index_select(0, &all)?;
                    sum.add_(x.value())?;
                    let normed = layer_of(&sum, width)?;
                    Ok(vec![normed, sum])
                })?;
            }
        }
        Ok(())
    });
}

fn layer_of(x: &Tensor, width: usize) -> Result<Tensor> {
    Ok(Var::constant(x.clone()).layer_norm(&[width], None, None, 1e-5)?.value().clone())
}

#[test]
fn sums_that_norms_cannot_make_stay_apart() {
    each_device(&SCHEDULES, |device| {
        let of = |shape: &[usize], op| randn(shape, DType::F32, op, device);
        let (x, y, row) = (of(&[6, 4], 1)?, of(&[6, 4], 2)?, of(&[4], 3)?);
        let (turned, column) = (of(&[4, 6], 4)?.t()?, of(&[6, 1], 5)?);
        // What is added lies in another order; rows of another length; other memory than the sum is changed meanwhile.
        check("turned", device, 1, &|| Ok(vec![layer_of(&x.add(&turned)?, 4)?]))?;
        check("column", device, 1, &|| Ok(vec![layer_of(&x.add(&column)?, 4)?]))?;
        check("longer rows", device, 1, &|| Ok(vec![layer_of(&x.add(&row)?.reshape(&[3, 8])?, 8)?]))?;
        check("part", device, 1, &|| Ok(vec![layer_of(&x.add(&y)?.narrow(0, 2, 2)?, 4)?]))?;
        check("groups", device, 1, &|| {
            let sum = Var::constant(x.add(&y)?);
            Ok(vec![sum.group_norm(2, None, None, 1e-5)?.value().clone()])
        })?;
        // The norm's weight follows from the sum.
        check("way around", device, 1, &|| {
            let sum = x.add(&y)?;
            let weight = Var::constant(sum.logsumexp(&[0], false)?);
            let normed = Var::constant(sum).layer_norm(&[4], Some(&weight), None, 1e-5)?;
            Ok(vec![normed.value().clone()])
        })
    });
}

/// `x + f(norm(x))` as transformers have it.
#[test]
fn a_norms_gradient_and_what_adds_it_are_one_command() {
    each_device(&SCHEDULES, |device| {
        for (rows, width) in [(1, 1), (6, 5), (40, 128), (3, 1500), (2, 9000)] {
            for dtype in TYPES {
                let table = Var::leaf(randn(&[rows, width], dtype, 1, device)?);
                let all = Tensor::arange(0.0, rows as f64, 1.0, DType::I64, device)?;
                let slopes = Var::constant(randn(&[rows, width], dtype, 2, device)?);
                let inner = Var::constant(randn(&[width, 2], dtype, 3, device)?);
                let outer = Var::constant(randn(&[2, width], dtype, 4, device)?);
                let [weight, bias] =
                    [5, 6].map(|op| randn(&[width], dtype.compute_dtype(), op, device).map(Var::leaf));
                let (weight, bias) = (weight?, bias?);
                for affine in [false, true] {
                    let step = || -> Result<Vec<Tensor>> {
                        let x = table.index_select(0, &all)?;
                        let normed = if affine {
                            x.layer_norm(&[width], Some(&weight), Some(&bias), 1e-5)?
                        } else {
                            x.rms_norm(&[width], None, None)?
                        };
                        let sum = x.add(&normed.matmul(&inner)?.matmul(&outer)?)?;
                        let gradients = sum.mul(&slopes)?.sum(&[], false)?.backward()?;
                        Ok([&table, &weight, &bias]
                            .into_iter()
                            .filter_map(|leaf| gradients.get(leaf))
                            .collect())
                    };
                    let name = format!("{rows} x {width}, {dtype}, affine {affine}");
                    check(&name, device, left(dtype, device), &step)?;
                }
            }
        }
        Ok(())
    });
}

/// A gradient that something else takes, too; and one that is added twice.
#[test]
fn gradients_of_norms_that_others_need_are_made_before() {
    each_device(&SCHEDULES, |device| {
        let of = |shape: &[usize], op| randn(shape, DType::F32, op, device);
        let (x, slopes, other) = (Var::leaf(of(&[6, 4], 1)?), of(&[6, 4], 2)?, of(&[6, 4], 3)?);
        let slope = || -> Result<Tensor> {
            let normed = x.layer_norm(&[4], None, None, 1e-5)?;
            let gradients = normed.mul(&Var::constant(slopes.clone()))?.sum(&[], false)?.backward()?;
            gradients.get(&x).map_or_else(|| unreachable!("a leaf"), Ok)
        };
        check("needed", device, 1, &|| {
            let slope = slope()?;
            Ok(vec![slope.add(&other)?.logsumexp(&[1], false)?, slope.logsumexp(&[0], false)?])
        })?;
        check("in place", device, 0, &|| {
            let slope = slope()?;
            slope.add_(&other)?;
            Ok(vec![slope.logsumexp(&[1], false)?, slope])
        })?;
        check("twice", device, 1, &|| {
            let slope = slope()?;
            Ok(vec![slope.add(&slope)?.logsumexp(&[1], false)?])
        })
    });
}

#[test]
fn streams_that_are_kept_in_order_keep_their_norms() {
    each_device(&SCHEDULES, |device| {
        let x = randn(&[3, 8], DType::F32, 1, device)?;
        let side = device.new_stream()?;
        let step = || layer_of(&side.scope(|| x.add(&x))?, 8);
        for (order, adds) in [(Order::Data, 0), (Order::Streams, 1)] {
            let graph = Graph::capture_with(device, GraphOptions { order, ..GraphOptions::default() }, step)?;
            assert_eq!(count(&graph, "add"), adds, "{order:?}");
            assert!(all_bits(&[graph.replay()?])? == all_bits(&[step()?])?);
        }
        Ok(())
    });
}
