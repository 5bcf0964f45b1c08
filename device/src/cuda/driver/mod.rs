//! The driver, and what is loaded with it.

mod cache;
mod call;
mod context;
mod enqueue;
mod enqueued;
mod fault;
pub mod ffi;
mod graph;
mod handles;
mod ipc;
mod launcher;
mod memory;
mod module;
mod pinned;
mod probe;
mod stream;

pub(crate) use context::Context;
pub use enqueued::{Addresses, Enqueued};
pub(crate) use fault::FaultWord;
pub(crate) use graph::{Captured, DriverGraph, Updated};
pub(crate) use ipc::{IpcCopy, IpcMemory, IpcWait, SharedEvent};
pub(crate) use launcher::Launcher;
pub(crate) use pinned::Staged;
pub(crate) use stream::{DriverStream, GateWord, TimedEvent, in_host_function};

use super::{Arg, Grid, Program, Queue, Target};
