//! Ranks that go away: every other one is told which, and none waits for ever.

use std::time::Duration;

use streamgrad::comm::CommOptions;
use streamgrad::prelude::*;
use streamgrad::{Error, ErrorKind, Result};

use crate::on_threads;

/// How a rank ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    Return,
    Panic,
    /// Its process dies.
    Abort,
}

/// Counts the collectives of a rank, and ends it before one of them.
pub(crate) struct Collectives {
    pub(crate) left: Option<usize>,
    pub(crate) end: End,
}

impl Collectives {
    /// Whether the rank goes on.
    fn next(&mut self) -> bool {
        match &mut self.left {
            None => true,
            Some(0) => match self.end {
                End::Return => false,
                End::Panic => std::panic::resume_unwind(Box::new("on purpose")),
                End::Abort => std::process::abort(),
            },
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }
}

pub(crate) const COLLECTIVES: usize = 12;

/// A program of that many collectives, of two communicators and two streams. Ends early where its rank does.
pub(crate) fn program(comm: &Communicator, collectives: &mut Collectives) -> Result<()> {
    let (device, side) = (comm.device(), comm.device().new_stream()?);
    if !collectives.next() {
        return Ok(());
    }
    let second = comm.duplicate()?;
    let next = (comm.rank() + 1) % comm.size();
    let before = (comm.rank() + comm.size() - 1) % comm.size();
    let mut x = Tensor::full(&[comm.size() * 2], 1.0 + comm.rank() as f64, DType::F32, device)?;
    for number in 1..COLLECTIVES {
        if !collectives.next() {
            return Ok(());
        }
        let stream = if number % 2 == 0 { device.default_stream() } else { side.clone() };
        let comm = if number % 3 == 0 { &second } else { comm };
        let y = stream.scope(|| match number % 6 {
            0 => x.all_reduce(comm, Reduce::Mean),
            1 => x.all_gather(comm)?.narrow(0, 0, x.elements()),
            2 => x.all_to_all(comm),
            3 => x.broadcast(comm, number % comm.size()),
            4 => {
                x.send(comm, next)?;
                Tensor::recv(x.shape(), DType::F32, comm, before)
            }
            _ => Tensor::cat(&[&x.reduce_scatter(comm, Reduce::Sum)?], 0)?.all_gather(comm),
        })?;
        x = y;
    }
    device.synchronize()
}

/// What ended a rank, at the bottom.
pub(crate) fn source(error: &Error) -> &Error {
    match error.kind() {
        ErrorKind::Async { source, .. } => source.downcast_ref().map_or(error, crate::faults::source),
        _ => error,
    }
}

fn assert_named(result: &Result<()>, victim: usize, run: impl std::fmt::Debug) {
    let Err(error) = result else { panic!("{run:?}: a survivor saw nothing") };
    let ErrorKind::RankLost { rank, .. } = source(error).kind() else { panic!("{run:?}: {error:?}") };
    assert_eq!(*rank, victim, "{run:?}");
}

fn ranks(count: usize) -> Vec<Communicator> {
    let devices: Vec<Device> = (0..count).map(|_| Device::cpu_with(Default::default())).collect();
    // A hang would be a time-out instead of a lost rank.
    Communicator::threads_with(
        &devices,
        CommOptions { timeout: Duration::from_secs(60), ..CommOptions::default() },
    )
    .unwrap()
}

/// A generator for the choice of victims, Knuth's.
pub(crate) struct Choice(pub(crate) u64);

impl Choice {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

#[test]
fn every_survivor_names_a_rank_that_ends_at_a_random_collective() {
    let mut choice = Choice(15);
    for run in 0..100 {
        let count = 2 + choice.below(3);
        let (victim, at) = (choice.below(count), choice.below(COLLECTIVES));
        let end = if choice.below(2) == 0 { End::Return } else { End::Panic };
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = ranks(count)
                .into_iter()
                .map(|comm| {
                    scope.spawn(move || {
                        let left = (comm.rank() == victim).then_some(at);
                        program(&comm, &mut Collectives { left, end })
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
        });
        for (rank, result) in results.iter().enumerate().filter(|(rank, _)| *rank != victim) {
            let result = result.as_ref().unwrap();
            assert_named(result, victim, (run, count, rank, at, end));
        }
    }
}

#[test]
fn a_rank_that_ends_within_training_is_named() {
    for at in 0..4 {
        let results = on_threads(ranks(3), |comm| {
            let model = DataParallel::new(mlp(&[4, 8, 2], 7, comm.device())?, comm)?;
            let mut sgd = Sgd::new(model.parameters(), 0.1)?;
            for step in 0..4 {
                if comm.rank() == 1 && step == at {
                    return Ok(());
                }
                let x = Tensor::full(&[3, 4], comm.rank() as f64, DType::F32, comm.device())?;
                let loss = model.forward(&Var::constant(x))?.square()?.mean(&[], false)?;
                sgd.step(&model.backward(&loss)?)?;
            }
            comm.device().synchronize()
        });
        [0, 2].iter().for_each(|&rank| assert_named(&results[rank], 1, (at, rank)));
    }
}

/// What is launched after a failure says so at once, and the device goes on without the communicator.
#[test]
fn a_device_outlives_its_communicator() -> Result<()> {
    let mut ranks = ranks(2);
    drop(ranks.pop());
    let comm = &ranks[0];
    let x = Tensor::ones(&[2], DType::F32, comm.device())?;
    let reduced = x.all_reduce(comm, Reduce::Sum);
    let lost = reduced.as_ref().map_err(Error::kind);
    assert!(matches!(lost, Err(ErrorKind::RankLost { op: "all_reduce", rank: 1, .. })), "{reduced:?}");
    assert_eq!(x.add(&x)?.to_vec::<f32>()?, [2.0, 2.0]);
    Ok(())
}
