//! Ranks and their collectives, as commands of streams.
//!
//! A [`Communicator`] is one rank of a group. What it launches is a command of a stream like any kernel, with what it reads and
//! writes stated: waits, memory, captured steps, profiles and errors follow from that. Besides, each command writes a few bytes
//! of the communicator's own, so the engine keeps a rank's collectives in the order of their launches, on whatever streams; all
//! ranks must launch theirs in the same order. Collectives that shall overlap have a communicator each, see
//! [`Communicator::duplicate`].
//!
//! What moves the bytes is a [`Backend`]. [`Communicator::threads`] makes ranks that are threads of this process.
//!
//! Sums are made in rank order by default ([`ReduceOrder::Ranks`]): `((x0 + x1) + x2) + ..`, whatever the backend, so a
//! program on ranks gives the same bits as one that adds in that order by itself. BF16 and F16 are summed in F32 and rounded
//! once.
//!
//! An error that ranks find when they meet, such as `RankLost`, is what the next synchronising call of each rank
//! returns, as the source of an `Async`; the communicator is of no use from then on, and says so at each launch.
//!
//! ```
//! use comm::Communicator;
//! let ranks = Communicator::threads(2)?;
//! let threads: Vec<_> = ranks.into_iter().map(|comm| std::thread::spawn(move || {
//!     let stream = comm.device().default_stream();
//!     comm.barrier(&stream)?;
//!     stream.synchronize()?;
//!     Ok::<_, device::Error>(comm.rank())
//! })).collect();
//! for (rank, thread) in threads.into_iter().enumerate() {
//!     assert_eq!(thread.join().expect("no panic")?, rank);
//! }
//! # Ok::<(), device::Error>(())
//! ```

mod backend;
mod call;
mod communicator;
mod data_parallel;
mod failure;
mod launch;
#[cfg(all(unix, feature = "mpi"))]
mod mpi;
#[cfg(feature = "nccl")]
mod nccl;
mod operand;
mod options;
mod split;
mod sums;
#[cfg(any(feature = "nccl", all(unix, feature = "mpi")))]
mod symbols;
mod tensors;
mod threads;
mod vars;
mod work;

use device::{Error, ErrorKind, Result};

pub use backend::Backend;
pub use call::{Call, Collective, Memory, ReduceOrder};
pub use communicator::Communicator;
pub use data_parallel::{DataParallel, DataParallelOptions};
/// How the ranks' elements at one place become one: what is said of elements is said of these, one of each rank.
#[doc(inline)]
pub use kernels::ReduceOp as Reduce;
pub use launch::{Launch, Rendezvous};
#[cfg(feature = "nccl")]
pub use nccl::NcclId;
pub use options::{CommModel, CommOptions};
pub use tensors::TensorCollectives;
pub use vars::VarCollectives;
