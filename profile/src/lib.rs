//! Profiles: where the time of a program goes, on the host and on every stream.
//!
//! A [`Profiler`] records a device. What it gives, a [`Profile`], is the recordings as they are, and everything else is
//! computed from them: tables, the critical path, idle times with their causes, a trace, a diagnosis. [`report`] makes a page
//! of HTML of it, and [`benchmark`] times single calls.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod averages;
mod benchmark;
mod communication;
mod diagnosis;
mod idle;
mod memory;
mod options;
mod path;
mod profile;
mod profiler;
mod quantiles;
pub mod report;
mod sections;
mod table;
mod timeline;
mod trace;
mod what_if;

pub use averages::{Average, Averages, Key, Sort};
pub use benchmark::{MeasuredPeaks, Timing, benchmark};
pub use communication::Communication;
pub use device::median;
pub use diagnosis::{Finding, OtherPrograms, Schedules, diagnose, diagnose_schedules};
pub use idle::{HostActivity, Idle, IdleCause, StreamIdle};
pub use memory::MemorySample;
pub use options::{ProfileOptions, ProfileSchedule};
pub use path::{CriticalPath, Link, PathSegment, PathShare, longest_chain_ms};
pub use profile::Profile;
pub use profiler::Profiler;
pub use quantiles::Quantiles;
pub use table::Table;
pub use timeline::Busy;
pub use trace::Trace;
pub use what_if::Change;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
