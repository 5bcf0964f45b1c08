//! Branches of a model at once: what runs where, and that it is the serial program bit for bit.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::bits;
use common::devices::{Kind, each_device};
use streamgrad::prelude::*;
use streamgrad::{CpuConfig, Error, Graph, Policy, Result, Schedule, Stream, SyncMode, next_key, seed};

/// Members of an ensemble, more of them than streams.
#[test]
fn an_ensemble_gives_what_its_members_give_one_by_one() {
    each_device(&[Schedule::Threads, Schedule::Delay { seed: 5 }], |device| {
        let layers: Vec<Linear> = (0..11).map(|_| Linear::new(4, 3, device)).collect::<Result<_>>()?;
        let x = Var::constant(Tensor::ones(&[2, 4], DType::F32, device)?);
        let scores = |layer: &Linear| Ok(layer.forward(&x)?.tanh()?.value().clone());
        let at_once = device.concurrent_all(layers.iter().map(|layer| || scores(layer)))?;
        let expected: Vec<Tensor> = layers.iter().map(scores).collect::<Result<_>>()?;
        for (one, other) in at_once.iter().zip(&expected) {
            assert_eq!(bits(one)?, bits(other)?);
        }
        assert_eq!(at_once.len(), 11);
        let mut called = 0;
        let failed = device.concurrent_all((0..11).map(|index| {
            called += 1;
            move || if index == 4 { Err(Error::invalid("f", "index", "another", index)) } else { Ok(()) }
        }));
        assert!(failed.is_err());
        assert_eq!(called, 11);
        assert!(device.concurrent_all(Vec::<fn() -> Result<()>>::new())?.is_empty());
        Ok(())
    });
}

/// Two layers with dropout that both use `shared`, and their parameters.
struct Model {
    left: Linear,
    right: Linear,
    shared: Var,
}

impl Model {
    fn new(device: &Device) -> Result<Model> {
        let shared = Var::leaf(Tensor::from_slice(&[0.5f32, -0.25, 1.5], &[3], device)?);
        Ok(Model { left: Linear::new(4, 3, device)?, right: Linear::new(4, 3, device)?, shared })
    }

    fn branch(&self, layer: &Linear, x: &Var) -> Result<Var> {
        layer.forward(x)?.mul(&self.shared)?.dropout(0.25, None)?.tanh()
    }

    fn loss(&self, x: &Var, concurrent: bool) -> Result<Var> {
        let (left, right) = (|| self.branch(&self.left, x), || self.branch(&self.right, x));
        let (left, right) =
            if concurrent { x.device().concurrent((left, right))? } else { (left()?, right()?) };
        left.mul(&right)?.mean(&[0, 1], false)
    }

    fn gradients(&self, loss: &Var) -> Result<Vec<Tensor>> {
        let gradients = loss.backward()?;
        let leaves = [self.left.weight(), self.right.weight(), &self.shared];
        Ok(leaves.into_iter().filter_map(|leaf| gradients.get(leaf)).collect())
    }
}

fn inputs(device: &Device) -> Result<Var> {
    Ok(Var::constant(Tensor::from_slice(&[0.5f32, -1.0, 2.0, 0.25, -0.5, 1.0, -2.0, 0.75], &[2, 4], device)?))
}

fn all_bits(tensors: &[Tensor]) -> Result<Vec<Vec<u32>>> {
    tensors.iter().map(bits).collect()
}

/// Loss and gradients, as `run` has them made, and the key of what comes next.
fn results(
    kind: Kind,
    run: impl Fn(&Device, &dyn Fn() -> Result<Vec<Tensor>>) -> Result<Vec<Tensor>>,
    concurrent: bool,
) -> Result<(Vec<Vec<u32>>, String)> {
    let device = kind.device();
    seed(11);
    let (model, x) = (Model::new(&device)?, inputs(&device)?);
    let step = || {
        let loss = model.loss(&x, concurrent)?;
        Ok([vec![loss.value().clone()], model.gradients(&loss)?].concat())
    };
    let found = all_bits(&run(&device, &step)?)?;
    assert_eq!(found.len(), 4);
    Ok((found, format!("{:?}", next_key())))
}

fn kinds() -> Vec<Kind> {
    let explored = Schedule::Explore(Policy::Random { seed: 5 });
    Kind::all(&[Schedule::Inline, Schedule::Threads, Schedule::Delay { seed: 5 }, explored])
}

#[test]
fn branches_equal_the_serial_program_bit_for_bit() -> Result<()> {
    for kind in kinds() {
        let run = |_: &Device, step: &dyn Fn() -> Result<Vec<Tensor>>| step();
        assert_eq!(results(kind, run, true)?, results(kind.plain(), run, false)?, "{kind:?}");
    }
    Ok(())
}

#[test]
fn branches_of_a_captured_step_equal_the_serial_program_bit_for_bit() -> Result<()> {
    for kind in Kind::all(&[Schedule::Inline, Schedule::Threads]) {
        let run = |device: &Device, step: &dyn Fn() -> Result<Vec<Tensor>>| {
            let graph = Graph::capture(device, step)?;
            graph.replay()?;
            graph.replay()
        };
        let twice = |_: &Device, step: &dyn Fn() -> Result<Vec<Tensor>>| step().and_then(|_| step());
        assert_eq!(results(kind, run, true)?, results(kind.plain(), twice, false)?, "{kind:?}");
    }
    Ok(())
}

#[test]
fn branches_within_lanes_and_autocast_equal_the_serial_program_bit_for_bit() -> Result<()> {
    for kind in kinds() {
        let run = |concurrent: bool| -> Result<_> {
            let device = kind.device();
            seed(12);
            let (model, x) = (Model::new(&device)?, inputs(&device)?);
            let lanes =
                ConcurrentBatches::with_options(&device, if concurrent { 2 } else { 1 }, Lanes::Always)?;
            let step = autocast(DType::BF16, || {
                lanes.step([1.0, 2.0, 3.0], |factor| model.loss(&x.mul_scalar(factor)?, concurrent))
            })?;
            let gradients: Vec<Tensor> =
                step.gradients.iter().map(|gradient| gradient.value().clone()).collect();
            Ok((all_bits(&step.losses)?, all_bits(&gradients)?))
        };
        assert_eq!(run(true)?, run(false)?, "{kind:?}");
    }
    Ok(())
}

#[test]
fn the_backward_pass_of_each_branch_runs_on_its_stream() {
    each_device(&[Schedule::Inline, Schedule::Threads], |device| {
        let (model, x) = (Model::new(device)?, inputs(device)?);
        let streams = device.default_stream().branches(2)?;
        let loss = model.loss(&x, true)?;
        let tape = loss.tape();
        device.synchronize()?;
        device.start_recording();
        let gradients = model.gradients(&loss)?;
        device.synchronize()?;
        let recording = device.stop_recording();
        for stream in &streams {
            let forward = tape.iter().filter(|entry| entry.stream == stream.id()).map(|entry| entry.op);
            assert_eq!(forward.collect::<Vec<_>>(), ["linear", "mul", "dropout", "tanh"]);
            let own = recording.commands.iter().filter(|command| command.moment.stream == stream.id());
            assert!(own.count() >= 4, "the branch's gradients run on its stream");
        }
        assert_eq!(gradients.len(), 3);
        Ok(())
    });
}

/// Under `Manual` nobody else would order what comes next after what a branch launched before another one failed.
#[test]
fn branches_that_fail_are_waited_for_too() -> Result<()> {
    for panics in [false, true] {
        let device = Device::cpu_with(CpuConfig { schedule: Schedule::Threads, ..CpuConfig::default() });
        device.set_sync_mode(SyncMode::Manual);
        let (open, gate) = std::sync::mpsc::channel();
        let (log, seen) = std::sync::mpsc::channel();
        let (first, second) = (log.clone(), log);
        let launched = || {
            Stream::current(&device).launch_host("branch", &[], move || {
                gate.recv().unwrap();
                first.send("branch").unwrap();
            })
        };
        let fails = || -> Result<()> {
            assert!(!panics, "a branch panics");
            Err(Error::invalid("a branch", "it", "good", "bad"))
        };
        let done =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| device.concurrent((launched, fails))));
        assert!(!matches!(done, Ok(Ok(_))));
        device.default_stream().launch_host("after", &[], move || second.send("after").unwrap())?;
        // What does not wait has time to run.
        std::thread::sleep(std::time::Duration::from_millis(20));
        open.send(()).unwrap();
        device.synchronize()?;
        assert_eq!(seen.iter().collect::<Vec<_>>(), ["branch", "after"], "{panics}");
    }
    Ok(())
}

#[test]
fn branches_record_nothing_where_nothing_is_recorded() {
    each_device(&[Schedule::Inline], |device| {
        let (model, x) = (Model::new(device)?, inputs(device)?);
        assert!(!no_grad(|| model.loss(&x, true))?.requires_grad());
        Ok(())
    });
}
