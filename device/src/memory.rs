//! Where a device's memory comes from, below the caching allocator.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

use crate::{Error, Result};

/// The calls that obtain and return a device's memory: slow, counted, and never made under a lock.
pub trait MemoryDriver: Send + Sync {
    /// Obtains `bytes` bytes, aligned to [`alignment`](Self::alignment); `bytes` is not 0.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::Driver`] if the device has no such range.
    fn allocate(&self, bytes: usize) -> Result<NonNull<u8>>;

    /// Returns a range.
    ///
    /// # Safety
    /// `ptr` came from [`allocate`](Self::allocate) of this driver with the same `bytes`, is returned once, and no
    /// command still uses it.
    unsafe fn free(&self, ptr: NonNull<u8>, bytes: usize);

    /// The alignment of every range, in bytes.
    fn alignment(&self) -> usize {
        64
    }
}

/// Host memory from the system's allocator; ranges of 2 MiB and more ask for huge pages.
#[derive(Debug, Default)]
pub struct HostMemory;

const HUGE_PAGE: usize = 2 << 20;

impl HostMemory {
    fn layout(bytes: usize) -> Result<Layout> {
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { 64 };
        Layout::from_size_align(bytes, align).map_err(|_| no_memory(bytes))
    }
}

fn no_memory(bytes: usize) -> Error {
    Error::OutOfMemory { requested_bytes: bytes, report: "the system has no such range".into() }
}

impl MemoryDriver for HostMemory {
    fn allocate(&self, bytes: usize) -> Result<NonNull<u8>> {
        let layout = Self::layout(bytes)?;
        if layout.size() == 0 {
            return Err(no_memory(bytes));
        }
        // SAFETY: the layout's size is not 0.
        let ptr = NonNull::new(unsafe { alloc(layout) }).ok_or_else(|| no_memory(bytes))?;
        #[cfg(target_os = "linux")]
        if bytes >= HUGE_PAGE {
            // A first touch of a huge page costs a tenth of that of its small pages. Advice may be refused.
            // SAFETY: the range was just allocated, and this advice does not change its content.
            unsafe { libc::madvise(ptr.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        Ok(ptr)
    }

    unsafe fn free(&self, ptr: NonNull<u8>, bytes: usize) {
        if let Ok(layout) = Self::layout(bytes) {
            // SAFETY: the caller says that `ptr` came from `allocate` with the same size, hence the same layout.
            unsafe { dealloc(ptr.as_ptr(), layout) }
        }
    }
}
