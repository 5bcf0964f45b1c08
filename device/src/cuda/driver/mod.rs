//! The driver, and what is loaded with it.

mod cache;
mod call;
mod context;
mod enqueue;
mod enqueued;
mod event;
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
mod timed;

pub(crate) use context::Context;
pub use enqueued::{Addresses, Enqueued};
pub(crate) use event::in_host_function;
pub(crate) use fault::FaultWord;
pub(crate) use graph::{Captured, DriverGraph, Updated};
pub(crate) use ipc::IpcMemory;
pub(crate) use launcher::Launcher;
pub(crate) use pinned::Staged;
pub(crate) use stream::DriverStream;
pub(crate) use timed::{DriverEvent, GateWord};

use super::{Arg, Grid, Program, Properties, Queue, Source, Target};
