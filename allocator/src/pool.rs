//! Private pools: memory whose addresses stay, as a captured graph needs it.

use std::sync::atomic::{AtomicU64, Ordering};

use device::{Device, Error, Result, Stream, StreamId};
use parking_lot::Mutex;

use crate::allocator::CachingAllocator;

/// Memory that serves nobody else until the pool is dropped: not other streams, not the driver, not even when memory
/// runs out. What a command recorded with an address of it finds there later is the pool's own.
///
/// ```
/// use allocator::{PrivatePool, allocate};
/// use device::Device;
///
/// let dev = Device::cpu_with(Default::default());
/// let stream = dev.default_stream();
/// let pool = PrivatePool::new(&dev)?;
/// let serving = pool.serve(&stream)?;
/// let address = allocate(&stream, 1000)?.ptr();
/// drop(serving);
/// assert_ne!(allocate(&stream, 1000)?.ptr(), address);
/// # Ok::<(), device::Error>(())
/// ```
#[derive(Debug)]
pub struct PrivatePool {
    device: Device,
    id: u64,
    /// The arenas of the streams that were served.
    arenas: Mutex<Vec<(StreamId, u32)>>,
}

impl PrivatePool {
    /// An empty pool.
    ///
    /// # Errors
    /// `InvalidArgument` if the device has a memory pool of another kind.
    pub fn new(device: &Device) -> Result<PrivatePool> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        CachingAllocator::of(device).ok_or_else(crate::other_pool)?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(PrivatePool { device: device.clone(), id, arenas: Mutex::default() })
    }

    /// The pool's number in the process, as in [`SegmentSnapshot::pool`](crate::SegmentSnapshot::pool).
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Lets the pool serve the stream's requests, of whatever thread, until the guard drops; nobody else does meanwhile.
    /// Buffers may outlive the guard and the pool. Guards for one stream are dropped in reverse order.
    ///
    /// # Errors
    /// `DeviceMismatch` if the stream is another device's, `OutOfMemory` if too many streams and pools
    /// have memory of their own.
    pub fn serve<'a>(&'a self, stream: &Stream) -> Result<Serving<'a>> {
        Error::require_same_device("serve", "stream", &self.device, stream.device())?;
        let allocator = CachingAllocator::of(&self.device).ok_or_else(crate::other_pool)?;
        let number = {
            let mut arenas = self.arenas.lock();
            match arenas.iter().find(|entry| entry.0 == stream.id()) {
                Some(&(_, number)) => number,
                None => {
                    let none =
                        || Error::out_of_memory(0, "no stream or pool more can have memory of its own");
                    let number = allocator.private_arena(stream.id(), self.id).ok_or_else(none)?;
                    arenas.push((stream.id(), number));
                    number
                }
            }
        };
        let before = allocator.redirect(stream.id(), Some(number));
        Ok(Serving { pool: self, stream: stream.id(), before })
    }
}

impl Drop for PrivatePool {
    fn drop(&mut self) {
        let Some(allocator) = CachingAllocator::of(&self.device) else { return };
        for (_, number) in self.arenas.get_mut().drain(..) {
            if let Some(arena) = allocator.arena(number) {
                arena.lock().pool = None;
            }
        }
    }
}

/// While it lives, a [`PrivatePool`] serves a stream.
#[derive(Debug)]
#[must_use = "the pool serves the stream until this drops"]
pub struct Serving<'a> {
    pool: &'a PrivatePool,
    stream: StreamId,
    /// The arena that the stream goes back to.
    before: Option<u32>,
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        if let Some(allocator) = CachingAllocator::of(&self.pool.device) {
            allocator.redirect(self.stream, self.before);
        }
    }
}
