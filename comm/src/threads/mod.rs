//! Ranks that are threads of this process, each with a CPU device of its own.

mod across;
mod elements;
mod group;
mod mail;
mod member;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::{Buffer, CpuConfig, Device, Shared, Stream};
use kernels::View;

use crate::failure::{expect_different, unavailable};
use crate::split::Asked;
use crate::{Backend, Call, Collective, CommOptions, Communicator, Error, Memory, Result};
use across::Operands;
use group::Group;
use member::Member;

#[derive::located]
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
        let bandwidth = options.model.map_or(f64::INFINITY, |model| model.bandwidth);
        Error::require(bandwidth > 0.0, OP, "bandwidth", "positive", bandwidth)?;
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
            return Err(unavailable(reason));
        }
        let group = Group::new((0..devices.len()).collect(), options, Arc::default());
        let rank = |(rank, device)| {
            Communicator::new(Arc::new(Member::new(Arc::clone(&group), rank)), device, options)
        };
        devices.iter().enumerate().map(rank).collect()
    }
}

// SAFETY: other ranks access a rank's memory only in a meeting that has begun, in which the rank stays until all have
// ended it; messages are copied by this rank. Rank and size are fixed when the group is made.
unsafe impl Backend for Member {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    fn failure(&self, collective: Collective) -> Option<Error> {
        match collective {
            Collective::Recv { .. } => None,
            Collective::Send { to } => self.group.message_failure(to),
            _ => self.group.failure.get(),
        }
    }

    fn follow(&self, token: &Shared<Buffer>) {
        self.group.follow(self.rank, token);
    }

    fn run(&self, call: &Call, memory: Memory) -> Result<()> {
        match call.collective {
            Collective::Send { to } => self.send(call, memory, to),
            Collective::Recv { from } => self.recv(call, memory, from),
            _ => self.run_collective(call, memory),
        }
    }

    /// Rank 0 chooses among calls of several groups, the others follow.
    fn is_ready(&self, call: &Call) -> bool {
        let group = &self.group;
        match call.collective {
            Collective::Send { .. } => true,
            Collective::Recv { from } => {
                group.message_failure(from).is_some() || group.mail.has_any(from, self.rank)
            }
            _ => {
                let number = self.meetings.load(Ordering::Relaxed);
                group.failure.get().is_some() || group.has_come(0..self.rank, number)
            }
        }
    }

    fn try_run(&self, call: &Call, memory: Memory) -> Result<bool> {
        match call.collective {
            Collective::Send { to } => self.send(call, memory, to).map(|()| true),
            Collective::Recv { .. } => Ok(false),
            _ if self.group.options.model.is_some() => Ok(false),
            _ => self.try_collective(call, memory),
        }
    }

    fn launch(
        &self,
        call: &Call,
        stream: &Stream,
        x: Option<View<'_>>,
        out: Option<View<'_>>,
    ) -> Option<Result<()>> {
        stream.is_cuda().then(|| self.launch_copies(call, Operands { stream, x, out }))
    }

    fn split(&self, color: Option<usize>, key: usize) -> Result<Option<Arc<dyn Backend>>> {
        let number = self.splits.fetch_add(1, Ordering::Relaxed);
        let own = self.group.members[self.rank];
        let Some(group) = self.group.split(self.rank, number, Asked { color, key })? else { return Ok(None) };
        let rank = group.members.iter().position(|&member| member == own);
        Ok(rank.map(|rank| Arc::new(Member::new(group, rank)) as _))
    }
}
