//! Ranks that are threads of this process, each with a CPU device of its own.

mod across;
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

use crate::{CommOptions, Communicator, Error, ErrorKind, Result, expect_different};
use group::Group;
use member::Member;

impl Communicator {
    /// `ranks` ranks in this process, each on a CPU device of its own, which share the cores evenly; rank `i` is entry `i`, to be
    /// moved to the thread that is that rank.
    ///
    /// # Errors
    /// `InvalidArgument` for no ranks; those of allocating a few bytes on each device.
    pub fn threads(ranks: usize) -> Result<Vec<Communicator>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = Some((cores / ranks.max(1)).max(1));
        let device = |_| Device::cpu_with(CpuConfig { threads, ..CpuConfig::default() });
        let devices: Vec<Device> = (0..ranks).map(device).collect();
        Communicator::threads_with(&devices, CommOptions::default())
    }

    /// As [`threads`](Self::threads), with a rank on each of `devices`.
    ///
    /// Between CUDA devices collectives are copies and additions, commands of the current stream. The threads, not the streams,
    /// wait for each other at each launch, whose error says what became of the group; a message goes by way of the host; and
    /// none of it can be captured. [`nccl_devices`](Self::nccl_devices) has none of these limits.
    ///
    /// # Errors
    /// `InvalidArgument` for no devices, or one that is there twice: its default stream would wait for itself; for a
    /// modelled network whose bandwidth is not positive; `CommUnavailable` for CUDA devices beside others, or with a modelled network; those of allocating a few bytes on each device.
    pub fn threads_with(devices: &[Device], options: CommOptions) -> Result<Vec<Communicator>> {
        const OP: &str = "threads";
        expect_different(OP, devices)?;
        if let Some(model) = options.model.filter(|model| model.bandwidth.is_nan() || model.bandwidth <= 0.0)
        {
            return Err(Error::invalid(OP, "bandwidth", "positive", model.bandwidth));
        }
        let is_cuda = |device: &Device| !device.runs_on_host();
        let some_are_cuda = devices.iter().any(is_cuda);
        let refused = match options.model {
            Some(_) if some_are_cuda => Some("a modelled network is one of CPU devices"),
            _ if some_are_cuda && !devices.iter().all(is_cuda) => {
                Some("some devices are CUDA devices, not all")
            }
            _ => None,
        };
        if let Some(reason) = refused {
            return Err(Error::new(ErrorKind::CommUnavailable { reason: reason.into() }));
        }
        let group = Group::new((0..devices.len()).collect(), options, None);
        let rank = |(rank, device)| {
            Communicator::new(Arc::new(Member::new(Arc::clone(&group), rank)), device, options)
        };
        devices.iter().enumerate().map(rank).collect()
    }
}
