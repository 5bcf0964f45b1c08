//! Ranks that are processes which MPI has started, mostly with a CPU device each.

mod abi;
mod exchange;
mod group;
mod library;
mod mail;
mod member;
mod process;

use std::sync::Arc;

use device::Device;

use crate::{CommOptions, Communicator, Result};
use member::Member;
use process::Mpi;

#[derive::located]
impl Communicator {
    /// This process among those that `mpirun` or `srun` has started, on the CPU device. Every one calls it.
    ///
    /// The library is that of the launcher: of Open MPI (`libmpi.so.40`), of MPICH (`libmpich.so.12`, `libmpi.so.12`), or one with
    /// the interface of MPI 5 (`libmpi_abi.so.0`), which is loaded, or else the one that `STREAMGRAD_MPI` names. Where the program
    /// has not called `MPI_Init` that happens here, and `MPI_Finalize` when the process exits: it then waits for the others, unless
    /// a rank was lost. A process that nobody has launched is the only rank.
    ///
    /// # Errors
    /// `CommUnavailable` without such a library, or with one that is not the launcher's;
    /// those of [`mpi_with`](Self::mpi_with).
    pub fn mpi() -> Result<Communicator> {
        Communicator::mpi_with(&Device::cpu(), CommOptions::default())
    }

    /// As [`mpi`](Self::mpi), on `device`. On a CUDA device a collective is a copy to pinned memory, for which the launching thread
    /// waits, one on the host, and a copy back; it cannot be captured.
    ///
    /// # Errors
    /// As for [`mpi`](Self::mpi); `CollectiveTimeout` if not all processes call it in
    /// time; those of allocating a few bytes.
    pub fn mpi_with(device: &Device, options: CommOptions) -> Result<Communicator> {
        let member = Member::of_all(Mpi::get()?, options)?;
        Communicator::new(Arc::new(member), device, options)
    }
}
