//! The communicator of a process that a launcher has started.

use device::Device;

use super::variables::{Launch, RankVariables};
use crate::failure::unavailable;
use crate::{CommOptions, Communicator, Result};

#[derive::located]
impl Communicator {
    /// This process among those that a launcher has started, as the environment says: `mpirun`, `srun`, `torchrun` or
    /// `streamgrad launch`. Every one calls it.
    ///
    /// On a machine with CUDA devices the rank has the one of its place among the machine's ranks, and ranks communicate by NCCL.
    /// Otherwise they have the CPU device and [MPI](Self::mpi), whose launcher must have started them. What a program asks for by
    /// itself is [`mpi_with`](Self::mpi_with) or, as threads, [`threads`](Self::threads).
    ///
    /// # Errors
    /// `CommUnavailable`, which says what was found and what is missing: without a launcher, for variables that make no
    /// sense, without a CUDA device for a rank of a machine that has some, or without MPI where there are none; those of the
    /// backend.
    pub fn from_env() -> Result<Communicator> {
        Communicator::from_env_with(CommOptions::default())
    }

    /// As [`from_env`](Self::from_env).
    ///
    /// # Errors
    /// As for [`from_env`](Self::from_env).
    pub fn from_env_with(options: CommOptions) -> Result<Communicator> {
        let launch = Launch::from_env()?.ok_or_else(|| {
            let known = RankVariables::ALL.map(|launcher| launcher.rank).join(", ");
            unavailable(format_args!(
                "no launcher has started this process, as none of {known} is set: mpirun, srun, torchrun or `streamgrad \
                 launch` do; ranks that are threads need none"
            ))
        })?;
        match Device::cuda(0) {
            Ok(first) => nccl(&launch, &first, options),
            Err(_) if launch.by_mpi => mpi(options),
            Err(error) => Err(unavailable(format_args!(
                "{launch:?} was not started by MPI, which ranks on CPU devices need (mpirun, or srun with --mpi), and NCCL \
                 needs CUDA devices: {error}"
            ))),
        }
    }
}

#[cfg(all(unix, feature = "mpi"))]
fn mpi(options: CommOptions) -> Result<Communicator> {
    Communicator::mpi_with(&Device::cpu(), options)
}

#[cfg(not(all(unix, feature = "mpi")))]
fn mpi(_: CommOptions) -> Result<Communicator> {
    Err(unavailable(format_args!("this build has no MPI, which takes Unix and the feature `mpi`")))
}

#[cfg(not(feature = "nccl"))]
fn nccl(_: &Launch, _: &Device, _: CommOptions) -> Result<Communicator> {
    Err(unavailable(format_args!("this build has no NCCL, which takes the feature `nccl`")))
}

/// A rank on the device of its place.
#[cfg(feature = "nccl")]
fn nccl(launch: &Launch, first: &Device, options: CommOptions) -> Result<Communicator> {
    let device = match launch.local_rank {
        0 => Ok(first.clone()),
        ordinal => Device::cuda(ordinal),
    };
    let device = device.map_err(|error| {
        unavailable(format_args!(
            "{launch:?} has no CUDA device of its own, though this machine has some: {error}"
        ))
    })?;
    Communicator::nccl_met(&device, &mut launch.meet(options.timeout)?, options)
}
