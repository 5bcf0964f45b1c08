//! Devices, streams, events, and the one launch in which all hazards are resolved.
//!
//! A [`Stream`] is a FIFO of commands. [`Stream::launch`] is told which [`Buffer`]s a command reads and
//! writes; it compares them with the buffers' logs of earlier uses, waits for what the stream's [`Clock`] does
//! not already cover, and logs the new uses. Nobody else ever decides a wait, and no user writes one.
//!
//! The CPU device runs its default stream inline on the calling thread and every other stream on a worker of
//! its own. A stream placed with [`Placement::Caller`] runs inline, too, whenever its queue is idle and the
//! command's needs are met.

// The attribute `located` names this crate as others do.
extern crate self as device;

#[macro_use]
mod debug;

mod audit;
mod barrier;
mod borrow;
mod branches;
mod buffer;
mod bytes;
mod caller;
mod config;
mod core;
pub mod cuda;
mod delay;
mod devices;
mod dtype;
pub mod environment;
mod error;
mod event;
mod explorer;
pub mod failure;
mod fifo;
pub mod file;
pub mod fork;
mod graph;
mod hidden;
mod ipc;
mod launch;
mod log;
mod memory;
#[cfg(doctest)]
mod misuse;
mod needs;
mod nvtx;
mod on_drop;
mod order;
mod peaks;
mod pending;
mod progress;
mod quantiles;
mod random;
mod recorder;
mod shared;
mod spin;
mod stream;
mod sync;
mod team;
mod threads;
mod time;
mod transfer;
mod within;
mod work;
mod writes;

#[doc(hidden)]
pub use audit::RangeUses;
pub use audit::{Audit, AuditedCommand, AuditedWait, Hazard};
pub use branches::Branches;
pub use buffer::{BlockId, Buffer, Loan, Pool, Use};
pub use bytes::{as_bytes, from_bytes, from_bytes_mut};
pub use caller::AtCaller;
pub use config::{CpuConfig, Placement, Priority, Schedule, StreamOptions, SyncMode, SyncStats};
pub use cuda::CudaConfig;
pub use devices::{Device, DeviceKind};
pub use dtype::{DType, Element};
pub use error::{Error, ErrorKind, Panicked, Result};
pub use event::Event;
pub use explorer::{Access, Candidate, Choice, Policy};
pub use graph::{
    Attached, Capture, Executable, Fused, GraphOptions, Groups, Kept, Order, Plan, PlanReport,
    PlannedCommand, needless, unordered,
};
pub use half::{bf16, f16};
pub use hidden::{HiddenSync, SyncDebug};
pub use ipc::{IpcEvent, IpcHandle, shared_copy};
pub use memory::{AddressSpace, HeldOutside, HostMemory, MemoryDriver};
#[doc(hidden)]
pub use on_drop::OnDrop;
pub use peaks::Peaks;
pub use pending::Stuck;
pub use quantiles::{median, quantiles};
#[doc(hidden)]
pub use random::{SplitMix, mix};
pub use recorder::{
    CommandKind, CommandRecord, DeviceFacts, DriverCallRecord, HandOff, HandOffRecord, KernelRecord,
    LaunchRecord, OperandRecord, Place, RangeRecord, Recording, RecordingOptions, ReplayedRecord, SyncRecord,
    WaitRecord,
};
pub use shared::Shared;
#[doc(hidden)]
pub use spin::RawSpin;
pub use spin::{SpinGuard, SpinLock};
pub use stream::{Hold, Stream};
pub use team::Team;
pub use threads::Thread;
pub use time::{Clock, Moment, StreamId};
pub use work::{Binder, Cpu, Work};
pub use writes::{Asked, Lane, Operand, TracedCommand, Written};
