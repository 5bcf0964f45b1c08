//! Random numbers of captured steps: those that the steps would have drawn.

use super::values;
use crate::common::devices::each_device;
use streamgrad::prelude::*;
use streamgrad::{
    ConcurrentBatches, Generator, Graph, RandomKey, Result, Schedule, next_key, with_generator,
};

const SCHEDULES: [Schedule; 2] = [Schedule::Inline, Schedule::Threads];

type Step = fn(&Device, &Tensor) -> Result<Tensor>;

/// A step on `x`, many times, eager and captured: its results, and the generator after the last.
fn both(device: &Device, step: Step) -> Result<()> {
    let x = Tensor::ones(&[64], DType::F32, device)?;
    let run = |mut one: Box<dyn FnMut() -> Result<Tensor> + '_>| {
        with_generator(Generator::new(11), || -> Result<_> {
            let results = (0..40).map(|_| values(&one()?)).collect::<Result<Vec<_>>>()?;
            Ok((results, next_key()))
        })
    };
    let expected = run(Box::new(|| step(device, &x)))?;
    let graph = with_generator(Generator::new(3), || Graph::capture(device, || step(device, &x)))?;
    assert_eq!(run(Box::new(|| graph.replay()))?, expected);
    // On the same generator, eager and captured in turn.
    let mut turn = 0;
    let mixed = run(Box::new(|| {
        turn += 1;
        if turn % 2 == 0 { graph.replay() } else { step(device, &x) }
    }))?;
    assert_eq!(mixed, expected);
    Ok(())
}

#[test]
fn random_numbers_go_on_from_replay_to_replay() {
    each_device(&SCHEDULES, |device| {
        both(device, |_, x| x.dropout(0.5, None))?;
        both(device, |_, x| x.dropout(0.5, None)?.add(&x.dropout(0.25, None)?))?;
        both(device, |device, x| x.add(&Tensor::randn(&[64], DType::F32, None, device)?))?;
        both(device, |device, x| {
            x.mul(&Tensor::randint(0, 9, &[64], DType::I64, None, device)?.to_dtype(DType::F32)?)
        })
    });
}

#[test]
fn keys_that_do_not_come_from_the_generator_stay() {
    each_device(&SCHEDULES, |device| {
        both(device, |_, x| x.dropout(0.5, RandomKey { seed: 4, op: 2 }))?;
        both(device, |_, x| with_generator(Generator::new(9), || x.dropout(0.5, None)))?;
        both(device, |_, x| {
            let fixed = with_generator(Generator::new(9).fork(3), || x.dropout(0.5, None))?;
            fixed.add(&x.dropout(0.5, None)?)
        })
    });
}

#[test]
fn generators_that_were_forked_are_forked_again() {
    each_device(&SCHEDULES, |device| {
        both(device, |_, x| {
            let first = x.dropout(0.5, None)?;
            let fork = Generator::current().fork(2);
            let inner = with_generator(fork, || {
                let one = x.dropout(0.5, None)?;
                with_generator(Generator::current().fork(7), || one.add(&x.dropout(0.1, None)?))
            })?;
            first.add(&inner)
        })?;
        both(device, |device, x| {
            let lanes = ConcurrentBatches::with_options(device, 2, Lanes::Always)?;
            let w = Var::leaf(x.copy()?);
            let step = lanes.step(0..4, |_: usize| w.dropout(0.5, None)?.sum(&[], false))?;
            step.gradients.get_var(&w).unwrap().value().mul(&step.losses[3])
        })
    });
}

/// Who replays decides about the numbers: the thread's generator, not that of the capture.
#[test]
fn the_generator_is_that_of_the_thread_that_replays() {
    each_device(&SCHEDULES, |device| {
        let x = Tensor::ones(&[64], DType::F32, device)?;
        let graph = Graph::capture(device, || x.dropout(0.5, None))?;
        let draw = |seed| with_generator(Generator::new(seed), || values(&graph.replay()?));
        let eager = |seed| with_generator(Generator::new(seed), || values(&x.dropout(0.5, None)?));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| draw(21).unwrap());
            assert_eq!(draw(20).unwrap(), eager(20).unwrap());
            assert_eq!(other.join().unwrap(), eager(21).unwrap());
        });
        Ok(())
    });
}
