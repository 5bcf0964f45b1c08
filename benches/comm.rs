//! Ranks that are threads: collectives alone, and the forum's model (workload C) on two ranks, beside the same step of two threads
//! that do not know of each other. The difference is what communication costs.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, Sender, channel};

use common::{case, run};
use streamgrad::comm::CommOptions;
use streamgrad::prelude::*;
use streamgrad::{CpuConfig, Result};
use workloads::Forum;

/// Operations of a round: starting the other rank's is not what is timed.
const MANY: usize = 200;

const BATCH: usize = 20;

#[derive(Clone, Copy)]
enum Measured {
    Barrier,
    AllReduce,
    AllGather,
    /// The step with `torch.distributed`'s part left out: what is gathered is this rank's own, twice.
    Alone,
    /// With the gather in the middle, and its gradient.
    Gathered,
    /// And with averaged gradients.
    Parallel,
}

struct Rank {
    comm: Communicator,
    model: DataParallel<Forum>,
    sgd: RefCell<Sgd>,
    x: Tensor,
    input: Var,
    target: Var,
}

impl Rank {
    fn new(comm: Communicator) -> Result<Rank> {
        let device = comm.device().clone();
        let model = DataParallel::new(Forum::new([10, 20, 2], 7, &device)?, &comm)?;
        let sgd = RefCell::new(Sgd::new(model.parameters(), 1e-3)?);
        let random = |shape: &[usize]| Tensor::rand(shape, DType::F32, None, &device);
        let (x, input, target) = (random(&[256])?, random(&[BATCH, 10])?, random(&[BATCH, 4])?);
        Ok(Rank { comm, model, sgd, x, input: Var::constant(input), target: Var::constant(target) })
    }

    fn step(&self, measured: Measured) -> Result<()> {
        let model = self.model.model();
        let hidden = model.hidden(&self.input)?;
        let gathered = match measured {
            Measured::Alone => Var::cat(&[&hidden, &hidden], 0)?,
            _ => hidden.all_gather(&self.comm)?,
        };
        let output = model.outputs(&gathered, 2)?;
        let loss = mse(&output, &self.target)?;
        let gradients = match measured {
            Measured::Parallel => self.model.backward(&loss)?,
            _ => loss.backward()?,
        };
        self.sgd.borrow_mut().step(&gradients)
    }

    fn run(&self, measured: Measured) -> Result<()> {
        for _ in 0..MANY {
            match measured {
                Measured::Barrier => self.comm.barrier(&self.comm.device().default_stream())?,
                Measured::AllReduce => drop(self.x.all_reduce(&self.comm, Reduce::Sum)?),
                Measured::AllGather => drop(self.x.all_gather(&self.comm)?),
                Measured::Alone | Measured::Gathered | Measured::Parallel => self.step(measured)?,
            }
        }
        self.comm.device().synchronize()
    }
}

fn main() {
    let config = || CpuConfig { threads: Some(1), ..CpuConfig::default() };
    let devices = [Device::cpu_with(config()), Device::cpu_with(config())];
    let mut ranks = Communicator::threads_with(&devices, CommOptions::default()).unwrap();
    let (start, starts): (Sender<Measured>, Receiver<Measured>) = channel();
    let (end, ends) = channel();
    let other = ranks.pop().unwrap();
    let thread = std::thread::spawn(move || {
        let rank = Rank::new(other).unwrap();
        for measured in starts {
            rank.run(measured).unwrap();
            end.send(()).unwrap();
        }
    });
    let rank = Rank::new(ranks.pop().unwrap()).unwrap();
    let both = |name, measured| {
        let (rank, start, ends) = (&rank, &start, &ends);
        case(name, MANY, move || {
            start.send(measured).unwrap();
            rank.run(measured).unwrap();
            ends.recv().unwrap();
        })
    };
    run(
        "comm",
        vec![
            both("forum step, two threads, no ranks", Measured::Alone),
            both("forum step, all_gather in the middle", Measured::Gathered),
            both("forum step, and averaged gradients", Measured::Parallel),
            both("barrier", Measured::Barrier),
            both("all_reduce of 1 KiB", Measured::AllReduce),
            both("all_gather of 1 KiB", Measured::AllGather),
        ],
    );
    drop(start);
    thread.join().unwrap();
}
