//! Streams, hazards, events, host transfers and lifetimes, on every way of running a CPU device.

mod branches;
mod common;
mod devices;
mod faults;
mod host;
mod lifetime;
mod nvtx;
mod order;
mod pages;
mod process;
mod proof;
mod random;
mod scopes;
mod threads;
