//! The rank of a process that a launcher has started, and how the processes meet.

mod greeting;
mod rendezvous;
mod start;
mod variables;

pub use rendezvous::Rendezvous;
pub use variables::Launch;
