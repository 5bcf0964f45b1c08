//! Batches that run at once on shared weights: equal to serial, bit for bit, and whole when one of them fails.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};

use common::bits;
use common::devices::{Kind, each_device};
use common::programs::{train, train_on};
use streamgrad::compare::{WriteTrace, first_divergence};
use streamgrad::nn::mlp;
use streamgrad::optim::{Adam, AdamOptions};
use streamgrad::prelude::*;
use streamgrad::{
    ConcurrentBatches, CpuConfig, Error, ErrorKind, Graph, LaneOptions, Policy, Priority, RandomKey, Result,
    Schedule, StreamId,
};

#[test]
fn lanes_with_shared_weights_equal_the_serial_schedule() -> Result<()> {
    for kind in Kind::all(&[Schedule::Inline, Schedule::Threads, Schedule::Delay { seed: 4 }]) {
        for batches in [1, 2, 3, 5] {
            let serial = train(&kind.plain().device(), 1, batches)?;
            for lanes in 1..=4 {
                let found = train(&kind.device(), lanes, batches)?;
                assert_eq!(found, serial, "{kind:?}: {batches} batches on {lanes} lanes");
            }
        }
    }
    Ok(())
}

/// The lanes meet in the middle of their batches, which they can only if they run at once.
#[test]
fn lanes_really_run_at_once() {
    each_device(&[Schedule::Inline], |device| {
        let w = Var::leaf(Tensor::ones(&[4], DType::F32, device)?);
        let lanes = ConcurrentBatches::with_options(device, 2, Lanes::Always)?;
        let barrier = Barrier::new(2);
        let step = lanes.step([1.0, 2.0], |factor| {
            let scaled = w.mul_scalar(factor)?;
            barrier.wait();
            scaled.sum(&[], false)
        })?;
        assert_eq!(step.gradients.get(&w).unwrap().to_vec::<f32>()?, [3.0; 4]);
        Ok(())
    });
}

#[test]
fn each_lane_records_on_its_own_stream() {
    each_device(&[Schedule::Inline], |device| {
        let w = Var::leaf(Tensor::ones(&[4], DType::F32, device)?);
        let lanes = ConcurrentBatches::with_options(device, 3, Lanes::Always)?;
        let ids: Vec<_> = lanes.streams().iter().map(Stream::id).collect();
        lanes.step(0..6, |index: usize| {
            let loss = w.sum(&[], false)?;
            let entry = loss.tape().pop();
            assert_eq!(entry.map(|entry| entry.stream), Some(ids[index % 3]));
            Ok(loss)
        })?;
        Ok(())
    });
}

#[test]
fn a_lane_that_panics_is_an_error_and_the_others_are_joined() {
    each_device(&[Schedule::Inline], |device| {
        for lanes in [1, 2, 3] {
            let w = Var::leaf(Tensor::ones(&[2], DType::F32, device)?);
            let lanes = ConcurrentBatches::with_options(device, lanes, Lanes::Always)?;
            let loss = |index: usize| {
                assert_ne!(index, 1, "batch one is bad");
                w.mul_scalar(index as f64)?.sum(&[], false)
            };
            let error = lanes.step(0..3, loss).err();
            let Some(ErrorKind::LanePanicked { message, .. }) = error.as_ref().map(Error::kind) else {
                panic!("{error:?}")
            };
            assert!(message.contains("batch one is bad"));
            assert_eq!(lanes.step([2, 3], loss)?.gradients.get(&w).unwrap().to_vec::<f32>()?, [5.0; 2]);
        }
        Ok(())
    });
}

#[test]
fn the_first_error_in_batch_order_is_returned() {
    each_device(&[Schedule::Inline], |device| {
        let w = Var::leaf(Tensor::ones(&[2], DType::F32, device)?);
        let lanes = ConcurrentBatches::with_options(device, 2, Lanes::Always)?;
        let error = lanes.step(0..4, |index: isize| match index {
            0 => w.sum(&[], false),
            axis => w.sum(&[axis + 10], false),
        });
        assert!(
            matches!(
                error.as_ref().map_err(Error::kind),
                Err(ErrorKind::AxisOutOfRange { axis: 11, rank: 1, .. })
            ),
            "{error:?}"
        );
        assert!(matches!(
            lanes.step([(); 0], |()| w.sum(&[], false)).as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { .. })
        ));
        assert!(matches!(
            ConcurrentBatches::with_options(device, 0, Lanes::Always).as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { .. })
        ));
        Ok(())
    });
}

#[test]
fn a_step_within_a_batch_of_the_same_lanes_is_refused() {
    each_device(&[Schedule::Inline], |device| {
        let w = Var::leaf(Tensor::ones(&[2], DType::F32, device)?);
        for lanes in [1, 2] {
            let lanes = ConcurrentBatches::with_options(device, lanes, Lanes::Always)?;
            let loss = |()| w.sum(&[], false);
            let nested = lanes.step([(); 2], |()| {
                lanes.step([()], loss)?;
                loss(())
            });
            assert!(
                matches!(nested.as_ref().map_err(Error::kind), Err(ErrorKind::Deadlock { .. })),
                "{nested:?}"
            );
            lanes.step([(); 2], loss)?;
        }
        let refused = ConcurrentBatches::with_options(device, usize::MAX, Lanes::Always);
        assert!(matches!(
            refused.as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { argument: "lanes", .. })
        ));
        Ok(())
    });
}

/// The batch waits for the command, which would wait for the step that the batch is of.
#[test]
fn a_step_within_a_command_of_a_batch_of_the_same_lanes_is_refused() {
    each_device(&[Schedule::Inline, Schedule::Threads], |device| {
        let w = Var::leaf(Tensor::ones(&[2], DType::F32, device)?);
        for lanes in [1, 2] {
            let lanes = Arc::new(ConcurrentBatches::with_options(device, lanes, Lanes::Always)?);
            let (sender, receiver) = channel();
            let outer = lanes.step([sender], |sender| {
                let (lanes, value) = (Arc::clone(&lanes), w.clone());
                let loss = move |()| value.sum(&[], false);
                let nested = move || drop(sender.send(lanes.step([()], loss).err()));
                Stream::with_current(device, |stream| {
                    stream.launch_host("nested", &[], nested)?;
                    stream.synchronize()
                })?;
                w.sum(&[], false)
            });
            let told = receiver.recv().unwrap();
            assert!(matches!(told.as_ref().map(Error::kind), Some(ErrorKind::Deadlock { .. })), "{told:?}");
            drop(outer?);
        }
        Ok(())
    });
}

/// Once memory has come to rest nothing is obtained from the driver any more, on one lane or two.
#[test]
fn steady_state_makes_no_driver_allocation_and_two_lanes_make_no_wait() -> Result<()> {
    for count in [1, 2] {
        let device = Device::cpu_with(CpuConfig { threads: Some(2), ..CpuConfig::default() });
        let model = mlp(&[6, 16, 3], 1, &device)?;
        let mut adam = Adam::new(model.parameters(), AdamOptions::default())?;
        let lanes = ConcurrentBatches::with_options(&device, count, Lanes::Always)?;
        let input = Tensor::ones(&[7, 6], DType::F32, &device)?;
        let mut step = || -> Result<()> {
            let step = lanes
                .step([0, 1], |_| model.forward(&Var::constant(input.clone()))?.square()?.mean(&[], false))?;
            adam.step(&step.gradients)
        };
        (0..100).try_for_each(|_| step())?;
        let (memory, sync) = (device.memory_stats(), device.sync_stats());
        (0..50).try_for_each(|_| step())?;
        assert_eq!(device.memory_stats().driver_allocations, memory.driver_allocations);
        let sync = device.sync_stats() - sync;
        // Lanes that run inline have run when the caller goes on, so their work has passed already.
        assert_eq!((sync.events_recorded, sync.waits_inserted, sync.host_syncs), (0, 0, 0));
    }
    Ok(())
}

/// While lanes and the serial order are tried in turn, and afterwards.
#[test]
fn measured_lanes_equal_the_serial_schedule_whatever_is_measured() -> Result<()> {
    const STEPS: usize = 30;
    for kind in Kind::all(&[Schedule::Inline, Schedule::Threads]) {
        let device = kind.plain().device();
        let serial = train_on(&ConcurrentBatches::new(&device, 1)?, &device, 3, STEPS)?;
        let device = kind.device();
        let lanes = ConcurrentBatches::new(&device, 2)?;
        assert_eq!(lanes.report().used, None);
        assert_eq!(train_on(&lanes, &device, 3, STEPS)?, serial, "{kind:?}");
        let report = lanes.report();
        let (Some(used), Some(serial_ms), Some(lanes_ms)) =
            (report.used, report.serial_ms, report.concurrent_ms)
        else {
            panic!("{report}")
        };
        assert!(used == if lanes_ms < serial_ms { used } else { 1 }, "{report}");
    }
    Ok(())
}

/// The stream that each of some steps of `batches` batches records its first batch on.
fn streams_of(lanes: &ConcurrentBatches, w: &Var, batches: usize, steps: usize) -> Result<Vec<StreamId>> {
    let used = Mutex::new(Vec::new());
    for _ in 0..steps {
        lanes.step(0..batches, |index| {
            let loss = w.sum(&[], false)?;
            if index == 0 {
                used.lock().unwrap().extend(loss.tape().pop().map(|entry| entry.stream));
            }
            Ok(loss)
        })?;
    }
    Ok(used.into_inner().unwrap())
}

#[test]
fn lanes_are_measured_in_turn_with_the_serial_order_and_the_report_says_what_is_used() {
    each_device(&[Schedule::Inline, Schedule::Threads], |device| {
        let w = Var::leaf(Tensor::ones(&[4], DType::F32, device)?);
        let lanes = ConcurrentBatches::new(device, 2)?;
        let (serial, lane) = (device.default_stream().id(), lanes.streams()[0].id());
        let turns = streams_of(&lanes, &w, 2, 24)?;
        let expected = [serial, serial, lane, lane].into_iter().cycle().take(24);
        assert!(turns.into_iter().eq(expected));
        let used = if lanes.report().used == Some(2) { lane } else { serial };
        assert_eq!(streams_of(&lanes, &w, 2, 3)?, [used; 3]);
        // Nothing is to be gained with one batch.
        assert_eq!(streams_of(&lanes, &w, 1, 1)?, [serial]);
        Ok(())
    });
}

#[test]
fn a_captured_step_is_on_lanes_whatever_was_measured() {
    each_device(&[Schedule::Inline], |device| {
        let w = Var::leaf(Tensor::ones(&[4], DType::F32, device)?);
        let lanes = ConcurrentBatches::new(device, 2)?;
        for _ in 0..2 {
            let mut used = Vec::new();
            Graph::capture(device, || {
                used = streams_of(&lanes, &w, 2, 1)?;
                w.value().square()
            })?;
            assert_eq!(used, [lanes.streams()[0].id()]);
            streams_of(&lanes, &w, 2, 24)?;
            assert!(lanes.report().used.is_some(), "captured steps are not measured");
        }
        Ok(())
    });
}

#[test]
fn lanes_have_the_priorities_that_they_are_given() {
    each_device(&[Schedule::Inline], |device| {
        let with = |priorities: &[Priority]| {
            let options = LaneOptions { priorities: priorities.to_vec(), ..LaneOptions::default() };
            ConcurrentBatches::with_options(device, 3, options)
        };
        let lanes = with(&[Priority::High, Priority::Low])?;
        let priorities: Vec<_> = lanes.streams().iter().map(Stream::priority).collect();
        assert_eq!(priorities, [Priority::High, Priority::Low, Priority::Normal]);
        let refused = with(&[Priority::High; 4]);
        assert!(
            matches!(
                refused.as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { argument: "priorities", .. })
            ),
            "{refused:?}"
        );
        Ok(())
    });
}

/// The gradients of many batches are added as rounds of them end.
#[test]
fn many_batches_take_the_memory_of_a_round() {
    each_device(&[Schedule::Inline], |device| {
        const ELEMENTS: usize = 1 << 16;
        let w = Var::leaf(Tensor::ones(&[ELEMENTS], DType::F32, device)?);
        for count in [1, 2] {
            let lanes = ConcurrentBatches::with_options(device, count, Lanes::Always)?;
            let peak = |batches: usize| -> Result<usize> {
                device.synchronize()?;
                device.reset_peak_memory_stats();
                let before = device.memory_stats().allocated_bytes;
                drop(lanes.step(0..batches, |_| w.square()?.sum(&[], false))?);
                device.synchronize()?;
                Ok(device.memory_stats().peak_allocated_bytes - before)
            };
            peak(2 * count)?;
            let (few, many) = (peak(2 * count)?, peak(40)?);
            assert!(many < 3 * few, "{few} bytes for {} batches, {many} for 40", 2 * count);
        }
        Ok(())
    });
}

/// The forum's model without ranks: a linear layer and a ReLU for each batch, both results joined, another linear layer, and one
/// loss.
struct Joined {
    first: Linear,
    second: Linear,
    targets: Tensor,
}

impl Joined {
    fn new(device: &Device) -> Result<Joined> {
        let keyed = |inputs, outputs, op| Linear::keyed(inputs, outputs, RandomKey { seed: 3, op }, device);
        let targets = Tensor::randn(&[5, 6], DType::F32, RandomKey { seed: 3, op: 9 }, device)?;
        Ok(Joined { first: keyed(4, 8, 0)?, second: keyed(8, 2, 2)?, targets })
    }

    fn forward(&self, x: &Tensor) -> Result<Var> {
        self.first.forward(&Var::constant(x.clone()))?.relu()
    }

    fn loss(&self, hidden: &[Var]) -> Result<Var> {
        let scores = hidden.iter().map(|hidden| self.second.forward(hidden)).collect::<Result<Vec<_>>>()?;
        mse(&Var::cat(&scores.iter().collect::<Vec<_>>(), 1)?, &Var::constant(self.targets.clone()))
    }

    fn found(&self, loss: &Tensor, gradients: &Gradients) -> Result<Vec<Vec<u32>>> {
        let parameters = [self.first.parameters(), self.second.parameters()].concat();
        let gradients = parameters.iter().map(|parameter| bits(&gradients.get(parameter).unwrap()));
        std::iter::once(bits(loss)).chain(gradients).collect()
    }
}

#[test]
fn one_loss_over_several_batches_equals_one_pass_over_one_tape() -> Result<()> {
    let explored = Schedule::Explore(Policy::Random { seed: 8 });
    for kind in Kind::all(&[Schedule::Inline, Schedule::Threads, Schedule::Delay { seed: 8 }, explored]) {
        let batches = |device: &Device| {
            let batch = |op| Tensor::randn(&[5, 4], DType::F32, RandomKey { seed: 4, op }, device);
            [0, 1, 2].into_iter().map(batch).collect::<Result<Vec<_>>>()
        };
        let device = kind.plain().device();
        let model = Joined::new(&device)?;
        let hidden = batches(&device)?.iter().map(|x| model.forward(x)).collect::<Result<Vec<_>>>()?;
        let loss = model.loss(&hidden)?;
        let expected = model.found(loss.value(), &loss.backward()?)?;
        for count in 1..=4 {
            let device = kind.device();
            let (model, batches) = (Joined::new(&device)?, batches(&device)?);
            let lanes = ConcurrentBatches::with_options(&device, count, Lanes::Always)?;
            let step = lanes.merged_step(&batches, |x| model.forward(x), |hidden| model.loss(hidden))?;
            assert_eq!(step.losses.len(), 1);
            let found = model.found(&step.losses[0], &step.gradients)?;
            assert_eq!((step.gradients.len(), found), (4, expected.clone()), "{kind:?}, {count} lanes");
        }
    }
    Ok(())
}

/// A weight that is computed once for all batches, and used by the loss, too: its part of the pass runs once, as in one pass over
/// one tape, and so do hooks of what batches share.
#[test]
fn what_batches_share_is_gone_through_once() -> Result<()> {
    let explored = Schedule::Explore(Policy::Random { seed: 3 });
    for kind in Kind::all(&[Schedule::Inline, Schedule::Threads, explored]) {
        let run = |lanes: usize| -> Result<_> {
            let device = kind.device();
            let values = |op| Tensor::randn(&[4, 4], DType::F32, RandomKey { seed: 6, op }, &device);
            let (v, w) = (Var::leaf(values(0)?), Var::leaf(values(1)?));
            let calls = Arc::new(Mutex::new(Vec::new()));
            let counted = |name: &'static str, var: &Var| {
                let calls = Arc::clone(&calls);
                var.register_hook(move |gradient| {
                    calls.lock().unwrap().push(name);
                    gradient.mul_scalar(2.0).map(Some)
                })
            };
            let inner = v.exp()?;
            let shared = inner.div(&inner.sum(&[0], true)?)?;
            let _hooks = [counted("v", &v)?, counted("w", &w)?, counted("shared", &shared)?];
            let forward = |x: &Tensor| Var::constant(x.clone()).matmul(&shared)?.matmul(&w)?.tanh();
            let loss = |y: &[Var]| y[0].mul(&y[1])?.mul(&shared)?.sum(&[], false);
            let batches = [values(2)?, values(3)?];
            let (loss, gradients) = if lanes == 0 {
                let loss = loss(&[forward(&batches[0])?, forward(&batches[1])?])?;
                (loss.value().clone(), loss.backward()?)
            } else {
                let lanes = ConcurrentBatches::with_options(&device, lanes, Lanes::Always)?;
                let step = lanes.merged_step(&batches, forward, loss)?;
                (step.losses[0].clone(), step.gradients)
            };
            let mut calls = calls.lock().unwrap().clone();
            calls.sort_unstable();
            assert_eq!(calls, ["shared", "v", "w"], "{kind:?}");
            let all = [&loss, &gradients.get(&v).unwrap(), &gradients.get(&w).unwrap()];
            all.into_iter().map(bits).collect::<Result<Vec<_>>>()
        };
        let expected = run(0)?;
        for lanes in [1, 2] {
            assert_eq!(run(lanes)?, expected, "{kind:?}, {lanes} lanes");
        }
    }
    Ok(())
}

/// The lanes meet in each pass, which they can only if they run at once.
#[test]
fn both_passes_of_a_merged_step_run_on_the_lanes_at_once() {
    each_device(&[Schedule::Inline], |device| {
        let w = Var::leaf(Tensor::ones(&[4], DType::F32, device)?);
        let lanes = ConcurrentBatches::with_options(device, 2, Lanes::Always)?;
        let (seen, hooks) = (Arc::new(Mutex::new(Vec::new())), Mutex::new(Vec::new()));
        let barrier = Arc::new(Barrier::new(2));
        let forward = |factor: f64| {
            let y = w.mul_scalar(factor)?;
            let (log, meet) = (Arc::clone(&seen), Arc::clone(&barrier));
            barrier.wait();
            hooks.lock().unwrap().push(y.register_hook(move |gradient| {
                meet.wait();
                log.lock().unwrap().push((factor, Stream::current(gradient.device()).id()));
                Ok(None)
            })?);
            y.exp()
        };
        let step = lanes.merged_step([1.0, 2.0], forward, |y| y[0].mul(&y[1])?.sum(&[], false))?;
        assert_eq!(step.gradients.len(), 1);
        let mut seen = seen.lock().unwrap().clone();
        seen.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert_eq!(seen, [(1.0, lanes.streams()[0].id()), (2.0, lanes.streams()[1].id())]);
        Ok(())
    });
}

#[test]
fn a_merged_step_that_fails_leaves_the_lanes_usable() {
    each_device(&[Schedule::Inline], |device| {
        let w = Var::leaf(Tensor::ones(&[4], DType::F32, device)?);
        for count in [1, 2] {
            let lanes = ConcurrentBatches::with_options(device, count, Lanes::Always)?;
            let sum = |y: &[Var]| y[0].add(&y[1])?.sum(&[], false);
            let bad = |index: usize| {
                assert_ne!(index, 1, "batch one is bad");
                w.mul_scalar(index as f64)
            };
            let error = lanes.merged_step(0..2, bad, sum).err();
            assert!(
                matches!(error.as_ref().map(Error::kind), Some(ErrorKind::LanePanicked { lane, .. }) if *lane == 1 % count),
                "{error:?}"
            );
            let error = lanes.merged_step(2..4, bad, |y| y[0].sum(&[9], false)).err();
            assert!(
                matches!(error.as_ref().map(Error::kind), Some(ErrorKind::AxisOutOfRange { axis: 9, .. })),
                "{error:?}"
            );
            let error = lanes.merged_step(2..4, |_| Ok(w.detach()), sum).err();
            assert!(
                matches!(error.as_ref().map(Error::kind), Some(ErrorKind::NoGradient { .. })),
                "{error:?}"
            );
            let step = lanes.merged_step(2..4, bad, sum)?;
            assert_eq!(step.gradients.get(&w).unwrap().to_vec::<f32>()?, [5.0; 4]);
        }
        Ok(())
    });
}

/// What each command writes is traced on every device, and a batch that differs is named.
#[test]
fn lanes_write_what_the_serial_schedule_writes() {
    for kind in Kind::all(&[Schedule::Inline, Schedule::Delay { seed: 2 }]) {
        let run = |lanes: usize, second: f64| -> Result<WriteTrace> {
            let device = kind.device();
            WriteTrace::start(&device, true);
            let values: Vec<f32> = (0..12).map(|at| at as f32 / 4.0).collect();
            let w = Var::leaf(Tensor::from_slice(&values, &[3, 4], &device)?);
            let lanes = ConcurrentBatches::with_options(&device, lanes, Lanes::Always)?;
            for _ in 0..3 {
                let step = lanes.step([1.0, second], |by| {
                    w.mul_scalar(by)?.narrow(1, 1, 2)?.softmax(0)?.square()?.sum(&[], false)
                })?;
                no_grad(|| w.value().narrow(1, 0, 3)?.add_(&step.losses[0]))?;
            }
            WriteTrace::stop(&device)
        };
        let serial = run(1, 2.0).unwrap();
        assert_eq!(first_divergence(&serial, &run(2, 2.0).unwrap()), None, "{kind:?}");
        let found = first_divergence(&serial, &run(2, 3.0).unwrap()).unwrap();
        assert_eq!(
            (&*found.op, &*found.command.0, found.element),
            ("mul_scalar", "batch 1", Some(1)),
            "{kind:?}"
        );
        assert_eq!(found.values, Some(["0.5".into(), "0.75".into()]), "{kind:?}");
    }
}
