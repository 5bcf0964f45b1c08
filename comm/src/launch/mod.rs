//! Who a process is among those that a launcher has started, and where they meet.

mod greeting;
mod rendezvous;
mod start;
mod variables;

pub use rendezvous::Rendezvous;
pub use variables::Launch;
#[cfg(all(unix, feature = "mpi"))]
pub(crate) use variables::unavailable;
