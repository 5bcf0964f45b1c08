//! What an optimizer counts and what may be set between replays.

use std::ops::Range;

use super::{refused, tensor};
use crate::common::bits;
use crate::common::devices::each_device;
use streamgrad::optim::clip_grad_norm;
use streamgrad::prelude::*;
use streamgrad::{Generator, Graph, Result, Schedule, with_generator};

const SCHEDULES: [Schedule; 2] = [Schedule::Inline, Schedule::Threads];

pub(super) type Optimize = Box<dyn Optimizer>;

pub(super) fn optimizers() -> Vec<fn(Vec<Var>) -> Result<Optimize>> {
    vec![
        |w| Ok(Box::new(Sgd::new(w, 0.1)?)),
        |w| {
            Ok(Box::new(Sgd::new(
                w,
                SgdOptions { lr: 0.1, momentum: 0.9, dampening: 0.5, ..SgdOptions::default() },
            )?))
        },
        |w| {
            Ok(Box::new(Sgd::new(
                w,
                SgdOptions {
                    lr: 0.1,
                    momentum: 0.9,
                    nesterov: true,
                    weight_decay: 0.1,
                    ..SgdOptions::default()
                },
            )?))
        },
        |w| Ok(Box::new(Adam::new(w, 0.1)?)),
        |w| Ok(Box::new(AdamW::new(w, AdamWOptions { lr: 0.1, ..AdamWOptions::default() })?)),
        |w| {
            Ok(Box::new(RmsProp::new(
                w,
                RmsPropOptions { lr: 0.1, centered: true, momentum: 0.5, ..RmsPropOptions::default() },
            )?))
        },
        |w| Ok(Box::new(Lion::new(w, LionOptions { lr: 0.1, ..LionOptions::default() })?)),
    ]
}

/// Parameters, and an optimizer of them.
struct Trained {
    x: Tensor,
    w: Vec<Var>,
    optimizer: Optimize,
}

impl Trained {
    fn new(make: fn(Vec<Var>) -> Result<Optimize>, device: &Device) -> Result<Trained> {
        let x = tensor(&[1.0, -2.0, 0.5], device)?;
        let w: Vec<Var> = [0.3, -0.7]
            .map(|v| tensor(&[v, v * 2.0, 1.0], device).map(Var::leaf))
            .into_iter()
            .collect::<Result<_>>()?;
        let optimizer = make(w.clone())?;
        Ok(Trained { x, w, optimizer })
    }

    /// The loss of some parameters, which get a gradient.
    fn loss(&self, of: Range<usize>) -> Result<Var> {
        let x = Var::constant(self.x.clone());
        let loss = |w: &Var| w.mul(&x)?.square()?.sum(&[], false);
        let rest = self.w[of.clone()].iter().skip(1);
        rest.fold(loss(&self.w[of.start]), |sum, w| sum?.add(&loss(w)?))
    }

    /// A step of the first `count` parameters.
    fn step(&mut self, count: usize) -> Result<Tensor> {
        self.step_of(0..count)
    }

    fn step_of(&mut self, of: Range<usize>) -> Result<Tensor> {
        let loss = self.loss(of)?;
        self.optimizer.step(&loss.backward()?)?;
        Ok(loss.value().clone())
    }

    fn state(&self) -> Result<Vec<(String, Vec<u32>)>> {
        let mut state: Vec<_> =
            self.w.iter().map(|w| Ok((String::new(), bits(w.value())?))).collect::<Result<_>>()?;
        for (name, tensor) in self.optimizer.state()?.tensors {
            state.push((name, bits(&tensor.to_dtype(DType::F32)?)?));
        }
        Ok(state)
    }
}

type Between = fn(&mut Trained, usize) -> Result<()>;

/// Steps with something between them, eager and captured before the `at`-th.
fn both(device: &Device, at: usize, between: Between) -> Result<()> {
    for (number, make) in optimizers().into_iter().enumerate() {
        let mut eager = Trained::new(make, device)?;
        let mut captured = Trained::new(make, device)?;
        for step in 0..at {
            eager.step(2)?;
            captured.step(2)?;
            between(&mut eager, step)?;
            between(&mut captured, step)?;
        }
        let graph = Graph::capture(device, || captured.step(2))?;
        for step in at..8 {
            let losses = (bits(&eager.step(2)?)?, bits(&graph.replay()?)?);
            assert_eq!(losses.0, losses.1, "optimizer {number}, step {step}");
            assert_eq!(captured.state()?, eager.state()?, "optimizer {number}, step {step}");
            between(&mut eager, step)?;
            between(&mut captured, step)?;
        }
    }
    Ok(())
}

#[test]
fn steps_are_counted_by_replays() {
    each_device(&SCHEDULES, |device| (0..3).try_for_each(|at| both(device, at, |_, _| Ok(()))));
}

#[test]
fn a_learning_rate_is_set_between_replays() {
    each_device(&SCHEDULES, |device| {
        both(device, 1, |trained, step| trained.optimizer.set_learning_rate(0.2 / (step + 2) as f64))?;
        both(device, 0, |trained, step| {
            LrSchedule::Cosine { t_max: 8, eta_min: 0.01 }.apply(
                &mut *trained.optimizer,
                0.3,
                step as u64 + 1,
            )
        })
    });
}

#[test]
fn eager_steps_come_between_replays() {
    each_device(&SCHEDULES, |device| {
        both(device, 1, |trained, step| if step % 3 == 0 { trained.step(2).map(drop) } else { Ok(()) })
    });
}

#[test]
fn a_state_is_loaded_between_replays() {
    each_device(&SCHEDULES, |device| {
        both(device, 2, |trained, step| {
            if step != 4 {
                return Ok(());
            }
            let state = trained.optimizer.state()?;
            trained.step(2)?;
            trained.optimizer.load_state(&state)
        })?;
        // That of an optimizer that has done nothing.
        both(device, 1, |trained, step| {
            if step != 4 {
                return Ok(());
            }
            let mut state = trained.optimizer.state()?;
            state.tensors.clear();
            trained.optimizer.load_state(&state)
        })
    });
}

#[test]
fn parameters_are_loaded_between_replays() {
    each_device(&SCHEDULES, |device| {
        let folder = crate::common::folder::Folder::new("captured-load");
        let path = folder.file("model");
        let (eager, captured) = (mlp(&[4, 3], 1, device)?, mlp(&[4, 3], 1, device)?);
        checkpoint::save(&path, &mlp(&[4, 3], 2, device)?)?;
        let x = Var::constant(Tensor::ones(&[2, 4], DType::F32, device)?);
        let graph = Graph::capture(device, || Ok(captured.forward(&x)?.value().clone()))?;
        assert_eq!(bits(&graph.replay()?)?, bits(eager.forward(&x)?.value())?);
        checkpoint::load(&path, &eager)?;
        checkpoint::load(&path, &captured)?;
        assert_eq!(bits(&graph.replay()?)?, bits(eager.forward(&x)?.value())?);
        Ok(())
    });
}

/// Two steps of one optimizer in one captured step count as two.
#[test]
fn a_captured_step_may_have_several_steps_of_an_optimizer() {
    each_device(&SCHEDULES, |device| {
        for (number, make) in optimizers().into_iter().enumerate() {
            let mut eager = Trained::new(make, device)?;
            let mut captured = Trained::new(make, device)?;
            let graph = Graph::capture(device, || {
                captured.step(2)?;
                captured.step(2)
            })?;
            for _ in 0..3 {
                eager.step(2)?;
                eager.step(2)?;
                graph.replay()?;
                assert_eq!(captured.state()?, eager.state()?, "optimizer {number}");
            }
        }
        Ok(())
    });
}

/// A captured step may have steps on different subsets of the parameters, as GANs and alternating schemes do.
#[test]
fn a_captured_step_may_have_steps_of_some_of_the_parameters() {
    const SCHEMES: [&[Range<usize>]; 5] =
        [&[0..2, 0..1], &[0..1, 0..2], &[0..2, 1..2, 1..2], &[0..1, 1..2], &[1..2, 0..2, 0..1, 1..2]];
    each_device(&SCHEDULES, |device| {
        for (number, make) in optimizers().into_iter().enumerate() {
            for (scheme, before) in SCHEMES.into_iter().zip([0..1, 0..0, 1..2, 0..1, 0..2]) {
                let [mut eager, mut captured] = [Trained::new(make, device)?, Trained::new(make, device)?];
                if !before.is_empty() {
                    eager.step_of(before.clone())?;
                    captured.step_of(before)?;
                }
                let step = |trained: &mut Trained| -> Result<Vec<Tensor>> {
                    scheme.iter().map(|of| trained.step_of(of.clone())).collect()
                };
                let graph = Graph::capture(device, || step(&mut captured))?;
                for replay in 0..4 {
                    let losses = [step(&mut eager)?, graph.replay()?];
                    let [expected, found] =
                        losses.map(|losses| losses.iter().map(bits).collect::<Result<Vec<_>>>());
                    let what = format!("optimizer {number}, {scheme:?}, replay {replay}");
                    assert_eq!(found?, expected?, "{what}");
                    assert_eq!(captured.state()?, eager.state()?, "{what}");
                    if replay == 1 {
                        // A whole step without the graph.
                        step(&mut eager)?;
                        step(&mut captured)?;
                    }
                }
            }
        }
        Ok(())
    });
}

/// Two optimizers of which each steps its part by turns, with clipping between backward pass and step.
#[test]
fn two_optimizers_may_step_by_turns() {
    each_device(&SCHEDULES, |device| {
        let make = optimizers()[3];
        let trained = || -> Result<(Trained, Optimize)> {
            let trained = Trained::new(make, device)?;
            let other = make(trained.w[1..].to_vec())?;
            Ok((trained, other))
        };
        let step = |(trained, other): &mut (Trained, Optimize)| -> Result<Tensor> {
            trained.step_of(0..1)?;
            for _ in 0..2 {
                let mut gradients = trained.loss(0..2)?.backward()?;
                clip_grad_norm(&mut gradients, 0.5)?;
                other.step(&gradients)?;
            }
            trained.step_of(0..2)
        };
        let (mut eager, mut captured) = (trained()?, trained()?);
        let graph = Graph::capture(device, || step(&mut captured))?;
        for _ in 0..4 {
            assert_eq!(bits(&step(&mut eager)?)?, bits(&graph.replay()?)?);
            assert_eq!(captured.0.state()?, eager.0.state()?);
        }
        Ok(())
    });
}

#[test]
fn a_state_is_not_loaded_within_a_captured_step() {
    each_device(&SCHEDULES, |device| {
        let mut adam = Trained::new(optimizers()[3], device)?;
        adam.step(2)?;
        let state = adam.optimizer.state()?;
        let before = adam.state()?;
        assert_eq!(refused(Graph::capture(device, || adam.optimizer.load_state(&state))).0, "adam");
        assert_eq!(adam.state()?, before);
        Ok(())
    });
}

/// Parameters that were as far as each other at the capture need not be so later: their steps would have other numbers.
#[test]
fn parameters_that_are_no_longer_at_one_step_are_noticed() {
    each_device(&SCHEDULES, |device| {
        let mut adam = Trained::new(|w| Ok(Box::new(Adam::new(w, 0.1)?)), device)?;
        let graph = Graph::capture(device, || adam.step(2))?;
        graph.replay()?;
        adam.step(1)?;
        let before = adam.state()?;
        assert_eq!(refused(graph.replay()).0, "adam");
        assert_eq!(adam.state()?, before);
        // Of SGD only the first step is another one.
        let mut sgd = Trained::new(|w| Ok(Box::new(Sgd::new(w, 0.1)?)), device)?;
        let graph = Graph::capture(device, || sgd.step(2))?;
        graph.replay()?;
        sgd.step(1)?;
        graph.replay().map(drop)
    });
}

#[test]
fn an_error_of_one_optimizer_leaves_the_other_where_it_was() {
    each_device(&SCHEDULES, |device| {
        let mut adam = Trained::new(|w| Ok(Box::new(Adam::new(w, 0.1)?)), device)?;
        let mut sgd = Trained::new(
            |w| Ok(Box::new(Sgd::new(w, SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() })?)),
            device,
        )?;
        let generator = Generator::new(5);
        let graph = with_generator(generator, || {
            Graph::capture(device, || {
                adam.step(2)?;
                sgd.step(2)?;
                adam.x.dropout(0.5, None)
            })
        })?;
        graph.replay()?;
        let mut state = sgd.optimizer.state()?;
        let before = (adam.state()?, sgd.state()?);
        // Another rule: no momentum.
        let at = state.options.iter().position(|(name, _)| name == "momentum").unwrap();
        state.options[at].1 = 0.0;
        state.tensors.clear();
        sgd.optimizer.load_state(&state)?;
        let key = Generator::current();
        let (op, reason) = refused(graph.replay());
        assert!(op.starts_with("sgd") && reason.contains("capture the step again"), "{op}: {reason}");
        assert_eq!((Generator::current(), adam.state()?), (key, before.0));
        Ok(())
    });
}

#[test]
fn the_model_and_the_optimizer_may_go() {
    each_device(&SCHEDULES, |device| {
        let make = optimizers()[3];
        let (mut eager, mut captured) = (Trained::new(make, device)?, Trained::new(make, device)?);
        let graph = Graph::capture(device, || captured.step(2))?;
        drop(captured);
        for _ in 0..4 {
            assert_eq!(bits(&graph.replay()?)?, bits(&eager.step(2)?)?);
        }
        Ok(())
    });
}
