//! Ranks that are threads of this process, each with a CPU device of its own.

mod elements;
mod group;
mod mail;
mod member;
mod split;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;

use std::sync::Arc;

use device::{CpuConfig, Device};

use crate::{CommOptions, Communicator, Error, Result};
use group::Group;
use member::Member;

impl Communicator {
    /// `ranks` ranks in this process, each on a CPU device of its own, which share the cores evenly; rank `i` is entry `i`, to be
    /// moved to the thread that is that rank.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no ranks; those of allocating a few bytes on each device.
    pub fn threads(ranks: usize) -> Result<Vec<Communicator>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = Some((cores / ranks.max(1)).max(1));
        let device = |_| Device::cpu_with(CpuConfig { threads, ..CpuConfig::default() });
        let devices: Vec<Device> = (0..ranks).map(device).collect();
        Communicator::threads_with(&devices, CommOptions::default())
    }

    /// As [`threads`](Self::threads), with a rank on each of `devices`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no devices, or one that is there twice: its default stream would wait for itself;
    /// [`Error::CommUnavailable`] for devices that are not CPU devices; those of allocating a few bytes on each device.
    pub fn threads_with(devices: &[Device], options: CommOptions) -> Result<Vec<Communicator>> {
        const OP: &str = "threads";
        if devices.is_empty() {
            return Err(Error::invalid(OP, "ranks", "at least 1", 0));
        }
        for (rank, device) in devices.iter().enumerate() {
            if !device.runs_on_host() {
                let reason = format!("ranks that are threads have CPU devices; rank {rank} has {device}");
                return Err(Error::CommUnavailable { reason: reason.into() });
            }
            if devices[..rank].contains(device) {
                let value = format_args!("that of rank {rank} twice");
                return Err(Error::invalid(OP, "devices", "a device for each rank", value));
            }
        }
        let group = Group::new((0..devices.len()).collect(), options, None);
        let rank = |(rank, device)| {
            Communicator::new(Arc::new(Member::new(Arc::clone(&group), rank)), device, options)
        };
        devices.iter().enumerate().map(rank).collect()
    }
}
