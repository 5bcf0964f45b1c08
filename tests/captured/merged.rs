//! Additions of gradients that an optimizer's step does itself, what must not become a part of one, and commands that run once.

use super::optimizers::{Optimize, optimizers};
use super::tensor;
use crate::common::bits;
use crate::common::devices::each_device;
use streamgrad::optim::clip_grad_norm;
use streamgrad::prelude::*;
use streamgrad::{ConcurrentBatches, Graph, GraphOptions, Order, RandomKey, Result, Schedule};

const SCHEDULES: [Schedule; 2] = [Schedule::Inline, Schedule::Threads];
const ORDERS: [Order; 2] = [Order::Data, Order::Streams];

/// Parameters of several sizes and types, their optimizer, and the batches of a step.
struct Training {
    parameters: Vec<Var>,
    optimizer: Optimize,
    batches: Vec<Tensor>,
    lanes: ConcurrentBatches,
    clip: bool,
}

impl Training {
    fn new(
        make: fn(Vec<Var>) -> Result<Optimize>,
        batches: usize,
        lanes: usize,
        device: &Device,
    ) -> Result<Training> {
        let randn =
            |shape: &[usize], dtype, op| Tensor::randn(shape, dtype, RandomKey { seed: 7, op }, device);
        let parameters = vec![
            Var::leaf(randn(&[3, 5], DType::F32, 1)?),
            Var::leaf(randn(&[2, 4, 3], DType::F32, 2)?),
            Var::leaf(randn(&[70, 33], DType::F32, 3)?),
            Var::leaf(randn(&[11], DType::F64, 4)?),
            Var::leaf(randn(&[1], DType::F32, 5)?),
        ];
        let batches =
            (0..batches).map(|op| randn(&[1], DType::F32, 10 + op as u64)).collect::<Result<_>>()?;
        let optimizer = make(parameters.clone())?;
        let lanes = ConcurrentBatches::with_options(device, lanes, Lanes::Always)?;
        Ok(Training { parameters, optimizer, batches, lanes, clip: false })
    }

    fn step(&mut self) -> Result<Vec<Tensor>> {
        let mut step = self.lanes.step(&self.batches, |x| {
            let loss = |w: &Var| {
                let x = Var::constant(x.clone()).to_dtype(w.dtype())?;
                w.reshape(&[w.shape().iter().product()])?
                    .mul(&x)?
                    .sin()?
                    .square()?
                    .sum(&[], false)?
                    .to_dtype(DType::F32)
            };
            let first = loss(&self.parameters[0])?;
            self.parameters[1..].iter().try_fold(first, |sum, w| sum.add(&loss(w)?))
        })?;
        if self.clip {
            step.losses.push(clip_grad_norm(&mut step.gradients, 0.5)?);
        }
        self.optimizer.step(&step.gradients)?;
        Ok(step.losses)
    }

    fn state(&self) -> Result<Vec<Vec<u64>>> {
        let states = self.optimizer.state()?.tensors.into_iter().map(|(_, tensor)| tensor);
        let all = self.parameters.iter().map(|w| w.value().clone()).chain(states);
        all.map(|tensor| {
            Ok(tensor.to_dtype(DType::F64)?.to_vec::<f64>()?.iter().map(|x| x.to_bits()).collect())
        })
        .collect()
    }
}

type Seen = (Vec<Vec<u32>>, Vec<Vec<u64>>);

/// Losses and the final state of three steps, and the ops of a captured one.
fn train(
    mut training: Training,
    options: Option<GraphOptions>,
    device: &Device,
) -> Result<(Seen, Vec<&'static str>)> {
    let (mut losses, mut ops) = (Vec::new(), Vec::new());
    match options {
        None => (0..3).try_for_each(|_| training.step().map(|step| losses.extend(step)))?,
        Some(options) => {
            let graph = Graph::capture_with(device, options, || training.step())?;
            ops = graph.commands().iter().map(|command| command.op).collect();
            for replay in 0..3 {
                graph.executable().shuffle((replay > 0).then_some(replay));
                losses.extend(graph.replay()?);
            }
        }
    }
    let losses = losses.iter().map(bits).collect::<Result<_>>()?;
    Ok(((losses, training.state()?), ops))
}

fn count(ops: &[&str], op: &str) -> usize {
    ops.iter().filter(|known| **known == op).count()
}

#[test]
fn optimizers_add_the_gradients_of_two_batches() {
    each_device(&SCHEDULES, |device| {
        for make in optimizers() {
            for lanes in [1, 2] {
                let new = || Training::new(make, 2, lanes, device);
                let (expected, _) = train(new()?, None, device)?;
                for order in ORDERS {
                    for (fuse, adders) in [(false, 1), (true, 0)] {
                        let options = GraphOptions { order, fuse, ..GraphOptions::default() };
                        let (found, ops) = train(new()?, Some(options), device)?;
                        assert!(found == expected, "{lanes} lanes, {options:?}");
                        assert_eq!(count(&ops, "accumulate"), adders, "{lanes} lanes, {options:?}: {ops:?}");
                    }
                }
            }
        }
        Ok(())
    });
}

/// The sums before the last one, and those that something else reads.
#[test]
fn sums_that_others_need_are_made_before() {
    each_device(&SCHEDULES, |device| {
        for (batches, clip, transposed, adders) in
            [(3, false, false, 1), (2, true, false, 1), (2, false, true, 1)]
        {
            let new = || -> Result<Training> {
                let mut training = Training::new(optimizers()[3], batches, 1, device)?;
                if transposed {
                    // Its gradient lies in another order, that of the reshaped copy.
                    training.parameters[0] = Var::leaf(training.parameters[0].value().t()?);
                }
                if clip {
                    training.parameters.retain(|w| w.dtype() == DType::F32);
                }
                training.optimizer = optimizers()[3](training.parameters.clone())?;
                Ok(Training { clip, ..training })
            };
            let (expected, _) = train(new()?, None, device)?;
            let (found, ops) = train(new()?, Some(GraphOptions::default()), device)?;
            assert!(found == expected, "{batches} batches");
            assert_eq!(count(&ops, "accumulate"), adders, "{batches} batches: {ops:?}");
        }
        // A gradient that the step returns.
        let mut training = Training::new(optimizers()[0], 2, 1, device)?;
        let graph = Graph::capture(device, || {
            let lanes = &training.lanes;
            let step = lanes.step(&training.batches, |x| {
                training.parameters[0].mul(&Var::constant(x.clone()))?.sum(&[], false)
            })?;
            training.optimizer.step(&step.gradients)?;
            Ok(step.gradients.get(&training.parameters[0]))
        })?;
        let found = graph.replay()?.map(|gradient| bits(&gradient)).transpose()?;
        let sum = training.batches[0].add(&training.batches[1])?.expand(&[3, 5])?;
        assert_eq!(found, Some(bits(&sum)?));
        Ok(())
    });
}

#[test]
fn what_always_writes_the_same_runs_once() {
    each_device(&SCHEDULES, |device| {
        let x = tensor(&[1.0, 2.0, 3.0], device)?;
        let settled = |step: &dyn Fn() -> Result<Tensor>, count: usize| -> Result<Graph<Tensor>> {
            let graph = Graph::capture(device, step)?;
            assert_eq!(graph.report().settled, count, "{}", graph.report());
            let unfused = GraphOptions { fuse: false, ..GraphOptions::default() };
            let plain = Graph::capture_with(device, unfused, step)?;
            assert_eq!(plain.report().settled, 0);
            for _ in 0..3 {
                let expected = bits(&step()?)?;
                assert_eq!((bits(&graph.replay()?)?, bits(&plain.replay()?)?), (expected.clone(), expected));
            }
            Ok(graph)
        };
        let full = |size: usize| Tensor::full(&[size], 3.0, DType::F32, device);
        // A function of what is filled in, and of that, which is a result.
        let graph = settled(&|| full(3)?.mul_scalar(0.5)?.add(&x)?.add(&full(3)?.exp()?.neg()?), 5)?;
        assert_eq!(graph.report().commands, 1);
        settled(&|| full(3)?.mul_scalar(0.5), 1)?;
        // What is not the same each time, is changed by something else or after somebody read it, or is much.
        settled(&|| full(3)?.mul(&x), 1)?;
        settled(
            &|| {
                let sum = full(3)?;
                sum.add_(&x)?;
                Ok(sum)
            },
            0,
        )?;
        settled(
            &|| {
                let filled = full(3)?;
                let sum = filled.add(&x)?;
                filled.add_scalar_(1.0)?;
                sum.mul(&filled)
            },
            0,
        )?;
        settled(&|| full(5000)?.mul_scalar(2.0)?.narrow(0, 0, 3)?.mul(&x), 0)?;
        // What the batch's random numbers follow is drawn anew.
        let drawn = Graph::capture(device, || {
            Var::constant(Tensor::ones(&[64], DType::F32, device)?)
                .dropout(0.5, None)?
                .value()
                .mul_scalar(2.0)
        })?;
        assert_eq!(drawn.report().settled, 1);
        assert_ne!(bits(&drawn.replay()?)?, bits(&drawn.replay()?)?);
        Ok(())
    });
}
