//! Ranks that are threads, or processes of MPI: what they give is what one process gives, bit for bit, and none waits for one
//! that has gone.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

mod collectives;
mod cuda;
mod faults;
mod forum;
mod mpi;
mod training;

use streamgrad::Result;
use streamgrad::prelude::*;

/// Runs `rank` on a thread for each of so many ranks.
pub(crate) fn on_ranks<R: Send>(
    ranks: usize,
    rank: impl Fn(&Communicator) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    on_threads(Communicator::threads(ranks).unwrap(), rank)
}

/// Runs `rank` on a thread for each communicator.
pub(crate) fn on_threads<R: Send>(
    ranks: Vec<Communicator>,
    rank: impl Fn(&Communicator) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    let rank = &rank;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(move || rank(&comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
