//! Activation checkpointing in whole programs: the same bits, and less memory.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::Arc;

use common::bits;
use common::devices::{Kind, each_device};
use streamgrad::nn::Dropout;
use streamgrad::prelude::*;
use streamgrad::{Graph, GraphOptions, Order, Policy, RandomKey, Result, Schedule, seed};
use workloads::{Gpt, GptOptions};

/// A convolution with running statistics and dropout, twice.
fn model(device: &Device, again: bool) -> Result<Sequential> {
    let options = |op| Conv2dOptions {
        padding: [1, 1],
        key: Some(RandomKey { seed: 5, op }),
        ..Conv2dOptions::default()
    };
    let part = |op| -> Result<Sequential> {
        Ok(Sequential::new()
            .push(Conv2d::with_options(2, 2, [3, 3], options(op), device)?)
            .push(BatchNorm2d::new(2, device)?)
            .push(Dropout::new(0.25)?)
            .push(Relu))
    };
    (0..2).try_fold(Sequential::new(), |model, op| {
        let part = part(op)?;
        Ok(if again { model.push(Recompute::new(part)) } else { model.push(part) })
    })
}

/// Losses, parameters and running statistics of a few steps of two batches.
fn train(device: &Device, again: bool, lanes: usize, captured: bool) -> Result<Vec<Vec<u32>>> {
    seed(21);
    let model = model(device, again)?;
    let mut sgd =
        Sgd::new(model.parameters(), SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() })?;
    let lanes = ConcurrentBatches::with_options(device, lanes, Lanes::Always)?;
    let inputs = |batch: usize| {
        let values: Vec<f32> =
            (0..2 * 2 * 4 * 4).map(|i| ((i * 7 + batch * 5) % 11) as f32 * 0.1 - 0.4).collect();
        Tensor::from_slice(&values, &[2, 2, 4, 4], device)
    };
    let inputs = [inputs(0)?, inputs(1)?];
    let mut step = || {
        let loss = |input: &Tensor| model.forward(&Var::constant(input.clone()))?.square()?.mean(&[], false);
        let step = autocast(DType::BF16, || lanes.step(&inputs, loss))?;
        sgd.step(&step.gradients)?;
        Ok(step.losses)
    };
    let mut found = Vec::new();
    if captured {
        let graph = Graph::capture(device, step)?;
        for _ in 0..3 {
            found.extend(graph.replay()?);
        }
    } else {
        for _ in 0..3 {
            found.extend(step()?);
        }
    }
    found.extend(model.parameters().iter().map(|parameter| parameter.value().clone()));
    found.extend(
        model
            .named_buffers()
            .into_iter()
            .map(|(_, buffer)| buffer)
            .filter(|buffer| buffer.dtype().is_float()),
    );
    found.iter().map(|tensor| bits(&tensor.to_dtype(DType::F32)?)).collect()
}

#[test]
fn training_with_recomputation_equals_training_without_bit_for_bit() -> Result<()> {
    let explored = Schedule::Explore(Policy::Random { seed: 2 });
    for kind in Kind::all(&[Schedule::Inline, Schedule::Threads, explored]) {
        for lanes in [1, 2] {
            let expected = train(&kind.plain().device(), false, 1, false)?;
            assert_eq!(train(&kind.device(), true, lanes, false)?, expected, "{kind:?}, {lanes} lanes");
        }
    }
    Ok(())
}

#[test]
fn a_captured_step_with_recomputation_equals_an_eager_one_without() -> Result<()> {
    for kind in Kind::all(&[Schedule::Inline]) {
        let expected = train(&kind.plain().device(), false, 1, false)?;
        for lanes in [1, 2] {
            assert_eq!(train(&kind.device(), true, lanes, true)?, expected, "{kind:?}, {lanes} lanes");
        }
    }
    Ok(())
}

/// Twelve parts of five functions each. Without recomputation the tape keeps three values of a part: its input, and the results of
/// both exponentials, since the gradient of tanh needs its argument and that of exp its result.
fn chain(device: &Device, again: bool) -> Result<Var> {
    const ELEMENTS: usize = 1 << 16;
    let x = Var::leaf(Tensor::ones(&[ELEMENTS], DType::F32, device)?);
    let part = |x: &Var| x.tanh()?.exp()?.tanh()?.exp()?.tanh();
    let y = (0..12).try_fold(x, |x, _| if again { recompute(part, &x) } else { part(&x) })?;
    y.sum(&[], false)
}

#[test]
fn what_is_recomputed_is_really_freed_in_between() {
    each_device(&[Schedule::Inline, Schedule::Threads], |device| {
        let peak = |again: bool| -> Result<usize> {
            device.synchronize()?;
            device.reset_peak_memory_stats();
            let before = device.memory_stats().allocated_bytes;
            drop(chain(device, again)?.backward()?);
            device.synchronize()?;
            Ok(device.memory_stats().peak_allocated_bytes - before)
        };
        let (without, with) = (peak(false)?, peak(true)?);
        // 36 values in the one case; in the other 12, and those of one part.
        assert!(with * 2 < without, "{with} bytes with recomputation, {without} without");
        Ok(())
    });
}

#[test]
fn a_captured_step_needs_less_memory_with_recomputation_in_stream_order() {
    each_device(&[Schedule::Inline], |device| {
        let planned = |again: bool| -> Result<usize> {
            let options = GraphOptions { order: Order::Streams, ..GraphOptions::default() };
            let graph = Graph::capture_with(device, options, || {
                let loss = chain(device, again)?;
                Ok((loss.backward()?.iter().next().unwrap().value().clone(), loss.value().clone()))
            })?;
            Ok(graph.report().planned_bytes)
        };
        let (without, with) = (planned(false)?, planned(true)?);
        assert!(with * 2 < without, "{with} bytes with recomputation, {without} without");
        Ok(())
    });
}

#[test]
fn a_transformer_of_recomputed_blocks_is_the_transformer() -> Result<()> {
    let options = GptOptions { vocabulary: 9, context: 6, width: 8, heads: 2, blocks: 2, dropout: 0.1 };
    for kind in Kind::all(&[Schedule::Inline]) {
        let run = |again: bool| -> Result<_> {
            let device = kind.device();
            seed(1);
            let model = Arc::new(Gpt::new(options, 1, &device)?);
            let tokens = Tensor::from_slice(&[1i64, 2, 3, 4, 5, 6], &[1, 6], &device)?;
            let whole = Arc::clone(&model);
            let input = Var::constant(tokens);
            let scores =
                if again { recompute(move |x| whole.forward(x), &input)? } else { model.forward(&input)? };
            let gradients = scores.square()?.mean(&[], false)?.backward()?;
            model
                .parameters()
                .iter()
                .map(|parameter| bits(&gradients.get(parameter).unwrap()))
                .collect::<Result<Vec<_>>>()
        };
        assert_eq!(run(true)?, run(false)?, "{kind:?}");
    }
    Ok(())
}
