//! Captured steps: a program's commands as a value, which is planned once and replayed.
//!
//! A [`Capture`] writes commands down. A [`Plan`] knows which of them have to come after which, and finds a place for their
//! memory. An [`Executable`] replays it: as a graph of the driver on a CUDA device, over the device's threads on a CPU. A
//! replay is one command of a stream, which reads and writes what the step does, so it is ordered like any other.

pub(crate) mod capture;
mod check;
mod commands;
mod crew;
mod executable;
mod fuse;
mod groups;
mod memory;
mod node;
mod plan;
mod reach;

pub use capture::{Attached, Capture};
pub use check::{PlannedCommand, needless, unordered};
pub use executable::{Executable, Kept};
pub use fuse::Fused;
pub use groups::Groups;
pub(crate) use node::Node;
pub use plan::{GraphOptions, Order, Plan, PlanReport};
