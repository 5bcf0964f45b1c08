//! NCCL between CUDA devices, of one process or of many.

mod exit;
mod group;
mod handle;
mod library;
mod member;
mod rank;
mod watch;

use std::fmt;
use std::sync::Arc;

use device::Device;

use crate::failure::{expect_available, expect_different, unavailable};
use crate::{CommOptions, Communicator, Error, Rendezvous, Result};
use group::Group;
use handle::Handle;
use library::{Library, RawId};
use member::Member;
use rank::WatchedRank;

/// What the ranks of a group of NCCL find each other by. One rank makes it, and gives it to all others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NcclId(RawId);

#[derive::located]
impl NcclId {
    /// How many bytes it has.
    pub const BYTES: usize = 128;

    /// A new one. This process answers the other ranks' from now on.
    ///
    /// # Errors
    /// `CommUnavailable` without NCCL 2.18 or later; `Driver` as NCCL says.
    pub fn new() -> Result<NcclId> {
        let library = Library::get()?;
        let mut id = RawId([0; NcclId::BYTES]);
        // SAFETY: `RawId` has the size of NCCL's id, which the call writes.
        match unsafe { (library.unique_id)(&mut id) } {
            0 => Ok(NcclId(id)),
            code => Err(library.error("ncclGetUniqueId", code, None)),
        }
    }

    /// As it travels.
    pub fn to_bytes(self) -> [u8; NcclId::BYTES] {
        self.0.0
    }

    /// What has come.
    ///
    /// # Errors
    /// `InvalidArgument` for another number of bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<NcclId> {
        match bytes.try_into() {
            Ok(bytes) => Ok(NcclId(RawId(bytes))),
            Err(_) => Err(Error::invalid("nccl", "id", "128 bytes", format_args!("{} bytes", bytes.len()))),
        }
    }
}

impl fmt::Debug for NcclId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NcclId").finish_non_exhaustive()
    }
}

#[derive::located]
impl Communicator {
    /// Rank `rank` of `size` ranks on CUDA devices, by NCCL: one process a device, all with the `id` that one of them made. The
    /// host waits for the others.
    ///
    /// NCCL 2.18 or later is looked for as `libnccl.so.2`, in the folders of the dynamic linker, as `LD_LIBRARY_PATH` names that
    /// of PyTorch's package. Unless the environment has `NCCL_NVLS_ENABLE`, it is set to 0 there when the library is loaded, before
    /// the first communicator of the process is made: no other thread may read the environment by C's functions meanwhile.
    ///
    /// Launches never wait but for the first collective, at which ranks connect; a first message between two ranks waits for the
    /// other one, too.
    ///
    /// # Errors
    /// `CommUnavailable` without the library, or for a device that is no CUDA device; `InvalidArgument` for a
    /// rank that there is not; `CollectiveTimeout` if not all come in time; `Driver` as NCCL says; those of
    /// allocating a few bytes on the device.
    pub fn nccl(
        device: &Device,
        rank: usize,
        size: usize,
        id: NcclId,
        options: CommOptions,
    ) -> Result<Communicator> {
        join(&Group::new(size, false, Arc::default()), device, rank, id, options)
    }

    /// This process's rank among those that have met at `place`, on a CUDA device, by NCCL.
    ///
    /// # Errors
    /// As for [`nccl`](Self::nccl) and [`Rendezvous::broadcast`].
    pub fn nccl_met(device: &Device, place: &mut Rendezvous, options: CommOptions) -> Result<Communicator> {
        let own =
            if place.rank() == 0 { NcclId::new().map(|id| id.to_bytes().to_vec()) } else { Ok(Vec::new()) };
        // The others are told if there is none.
        let told = place.broadcast(own.as_deref().unwrap_or_default());
        own?;
        let id = match &told?[..] {
            [] => return Err(unavailable("rank 0 has no NCCL")),
            bytes => NcclId::from_bytes(bytes)?,
        };
        Communicator::nccl(device, place.rank(), place.size(), id, options)
    }

    /// Ranks of this process, one on each of `devices`, by NCCL; rank `i` is entry `i`, to be moved to the thread that is that
    /// rank. Each needs a thread of its own: a first collective waits for all.
    ///
    /// Besides what processes are told, a rank that is dropped, and calls that differ, are errors at once.
    ///
    /// # Errors
    /// As for [`nccl`](Self::nccl); `InvalidArgument` for no devices, or one that is there twice.
    pub fn nccl_devices(devices: &[Device], options: CommOptions) -> Result<Vec<Communicator>> {
        expect_different("nccl_devices", devices)?;
        let (id, group) = (NcclId::new()?, &Group::new(devices.len(), true, Arc::default()));
        // Each waits for the others, so each has a thread.
        std::thread::scope(|scope| {
            let begin = |(rank, device)| {
                let joined = move || join(group, device, rank, id, options);
                let thread = std::thread::Builder::new().spawn_scoped(scope, joined);
                thread.map_err(|error| {
                    // The others do not wait for a rank that never began.
                    group.failure.set(unavailable(format_args!("no thread for a rank: {error}")))
                })
            };
            let threads: Vec<_> = devices.iter().enumerate().map(begin).collect();
            let end = |thread: Result<std::thread::ScopedJoinHandle<'_, Result<Communicator>>>| {
                thread?.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            let made: Vec<_> = threads.into_iter().map(end).collect();
            made.into_iter().collect()
        })
    }
}

/// Joins the ranks that have `id`.
fn join(
    group: &Arc<Group>,
    device: &Device,
    rank: usize,
    id: NcclId,
    options: CommOptions,
) -> Result<Communicator> {
    let size = group.size;
    Error::require(rank < size, "nccl", "rank", "less than the size", format_args!("{rank} of {size}"))?;
    let reason = format_args!("ranks of NCCL have CUDA devices; rank {rank} has {device}");
    expect_available(device.make_current().is_ok(), reason)?;
    let patience = group.patience(rank, "nccl", options.timeout);
    let handle = Handle::init(rank, size, id.0, &patience).map_err(|error| group.failure.set(error))?;
    let member = Member::new(WatchedRank::new(handle, Arc::clone(group), rank, device, options))?;
    Communicator::new(Arc::new(member), device, options)
}
