//! Where a device's memory comes from, below the caching allocator.

mod failing;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::{Error, Result};

pub use failing::FailingMemory;

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

    /// Addresses that get their memory later, if the device has such.
    fn address_space(&self) -> Option<&dyn AddressSpace> {
        None
    }
}

/// Ranges of addresses that get and lose their memory page by page, so that a pool can grow in place and give back
/// what lies between live blocks.
pub trait AddressSpace: Send + Sync {
    /// The size of a page in bytes, a power of two of at least 256. Everything below is in whole pages.
    fn page_bytes(&self) -> usize;

    /// Reserves `bytes` bytes of addresses, aligned to a page and without memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::Driver`] if there is no such range.
    fn reserve(&self, bytes: usize) -> Result<NonNull<u8>>;

    /// Gives memory to pages that have none. Its content is not specified. A failure changes nothing.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::Driver`] if the device has not that much.
    ///
    /// # Safety
    /// The pages are in one range of [`reserve`](Self::reserve).
    unsafe fn commit(&self, ptr: NonNull<u8>, bytes: usize) -> Result<()>;

    /// Takes the memory from pages that have some. A failure changes nothing.
    ///
    /// # Errors
    /// [`Error::Driver`] if the device refuses; the pages keep their memory then.
    ///
    /// # Safety
    /// The pages are in one range of [`reserve`](Self::reserve), and no command still uses them.
    unsafe fn decommit(&self, ptr: NonNull<u8>, bytes: usize) -> Result<()>;

    /// Gives a range back, with whatever memory it has.
    ///
    /// # Safety
    /// The range is that of one call of [`reserve`](Self::reserve), is returned once, and no command still uses it.
    unsafe fn release(&self, ptr: NonNull<u8>, bytes: usize);
}

/// Host memory: from the system's allocator, or, on Unix, as pages of reserved addresses. Ranges of 2 MiB and more ask
/// for huge pages.
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
        // Zeros, since a program may read memory that it has not written.
        // SAFETY: the layout's size is not 0.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| no_memory(bytes))?;
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

    #[cfg(all(unix, not(miri)))]
    fn address_space(&self) -> Option<&dyn AddressSpace> {
        Some(self)
    }
}

#[cfg(all(unix, not(miri)))]
impl AddressSpace for HostMemory {
    fn page_bytes(&self) -> usize {
        // SAFETY: asks for a constant of the system.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).unwrap_or(4096)
    }

    fn reserve(&self, bytes: usize) -> Result<NonNull<u8>> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // A little more than asked for, so that the range can start where a huge page does.
        let more = bytes.checked_add(HUGE_PAGE).ok_or_else(|| no_memory(bytes))?;
        // SAFETY: a new mapping at an address of the system's choice.
        let raw = unsafe { libc::mmap(std::ptr::null_mut(), more, libc::PROT_NONE, flags, -1, 0) };
        if raw == libc::MAP_FAILED {
            return Err(no_memory(bytes));
        }
        let skip = raw.addr().next_multiple_of(HUGE_PAGE) - raw.addr();
        // SAFETY: `skip` is at most `HUGE_PAGE`, so start and end are inside the mapping; what lies before and after
        // the range was just mapped, and nobody has seen it.
        unsafe {
            let base = raw.byte_add(skip);
            if skip > 0 {
                libc::munmap(raw, skip);
            }
            if skip < HUGE_PAGE {
                libc::munmap(base.byte_add(bytes), HUGE_PAGE - skip);
            }
            #[cfg(target_os = "linux")]
            // A first touch of a huge page costs a tenth of that of its small pages. Advice may be refused.
            libc::madvise(base, bytes, libc::MADV_HUGEPAGE);
            NonNull::new(base.cast()).ok_or_else(|| no_memory(bytes))
        }
    }

    unsafe fn commit(&self, ptr: NonNull<u8>, bytes: usize) -> Result<()> {
        // SAFETY: the caller says that the pages are in a range of `reserve`.
        match unsafe { libc::mprotect(ptr.as_ptr().cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) } {
            0 => Ok(()),
            _ => Err(no_memory(bytes)),
        }
    }

    unsafe fn decommit(&self, ptr: NonNull<u8>, bytes: usize) -> Result<()> {
        let ptr = ptr.as_ptr().cast();
        // SAFETY: the caller says that the pages are in a range of `reserve` and that nobody uses them.
        let lost = unsafe { libc::mprotect(ptr, bytes, libc::PROT_NONE) };
        if lost != 0 {
            let code = std::io::Error::last_os_error();
            let name = code.to_string().into();
            return Err(Error::Driver { call: "mprotect", code: code.raw_os_error().unwrap_or(0), name });
        }
        // Nobody can reach the pages any more; whether their memory went back is the system's business.
        // SAFETY: as above.
        unsafe { libc::madvise(ptr, bytes, libc::MADV_DONTNEED) };
        Ok(())
    }

    unsafe fn release(&self, ptr: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller says that this is a range of `reserve`, which nobody uses.
        unsafe { libc::munmap(ptr.as_ptr().cast(), bytes) };
    }
}
