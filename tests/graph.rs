//! Captured steps: what replays give is what the program gives, bit for bit.

#![allow(clippy::unwrap_used, clippy::panic)]

mod captured;
mod common;

use common::devices::each_device;
use streamgrad::prelude::*;

use streamgrad::nn::mlp;
use streamgrad::optim::{Adam, clip_grad_norm};
use streamgrad::{
    ConcurrentBatches, Generator, Graph, GraphOptions, Order, RandomKey, Result, Schedule, with_generator,
};

/// Everything that training changes, as bits.
fn state(model: &dyn Module, optimizer: &dyn Optimizer) -> Result<Vec<Vec<u32>>> {
    let bits = |tensor: &Tensor| Ok(tensor.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect());
    let mut all: Vec<Vec<u32>> = model.parameters().iter().map(|p| bits(p.value())).collect::<Result<_>>()?;
    for (_, tensor) in optimizer.state()?.tensors {
        all.push(if tensor.dtype() == DType::F32 {
            bits(&tensor)?
        } else {
            vec![tensor.item::<i64>()? as u32]
        });
    }
    Ok(all)
}

/// Losses and the final state of some steps on two lanes, with dropout, clipping and Adam.
fn train(device: &Device, steps: usize, captured: Option<GraphOptions>) -> Result<(Vec<u32>, Vec<Vec<u32>>)> {
    let model = mlp(&[12, 16, 4], 7, device)?;
    let mut optimizer = Adam::new(model.parameters(), 0.01)?;
    let lanes = ConcurrentBatches::with_options(device, 2, Lanes::Always)?;
    let inputs =
        [3, 4].map(|op| Tensor::randn(&[6, 12], DType::F32, RandomKey { seed: 1, op }, device).unwrap());
    let labels = Tensor::from_slice(&[0i64, 1, 2, 3, 0, 1], &[6], device)?;
    let mut step = || {
        let mut step = lanes.step(0..2, |at: usize| {
            let x = Var::constant(inputs[at].clone()).dropout(0.3, None)?;
            cross_entropy(&model.forward(&x)?, &labels)
        })?;
        let norm = clip_grad_norm(&mut step.gradients, 0.5)?;
        optimizer.step(&step.gradients)?;
        Ok((step.losses, norm))
    };
    let mut losses = Vec::new();
    let generator = Generator::new(5);
    with_generator(generator, || -> Result<()> {
        match captured {
            None => {
                for at in 0..steps {
                    losses.push(step()?);
                    between(at, &inputs)?;
                }
            }
            Some(options) => {
                let graph = Graph::capture_with(device, options, step)?;
                for at in 0..steps {
                    losses.push(graph.replay()?);
                    between(at, &inputs)?;
                }
            }
        }
        Ok(())
    })?;
    let mut bits = Vec::new();
    for (losses, norm) in losses {
        bits.extend(losses.iter().chain([&norm]).map(|loss| loss.item::<f32>().unwrap().to_bits()));
    }
    Ok((bits, state(&model, &optimizer)?))
}

/// Another batch.
fn between(at: usize, inputs: &[Tensor]) -> Result<()> {
    inputs.iter().try_for_each(|input| input.mul_scalar_(if at.is_multiple_of(2) { 1.25 } else { 0.75 }))
}

const SCHEDULES: [Schedule; 3] = [Schedule::Inline, Schedule::Threads, Schedule::Delay { seed: 4 }];

#[test]
fn replays_equal_the_steps_that_they_were_captured_from() {
    each_device(&SCHEDULES, |device| {
        let expected = train(device, 9, None)?;
        for order in [Order::Data, Order::Streams] {
            let options = GraphOptions { order, ..GraphOptions::default() };
            assert_eq!(train(device, 9, Some(options))?, expected, "{order:?}");
        }
        Ok(())
    });
}
