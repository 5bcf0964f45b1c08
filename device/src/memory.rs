//! Where a device's memory comes from, below the caching allocator.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use serde::Serialize;

use crate::{Error, ErrorKind, Result};

/// The calls that obtain and return a device's memory: slow, counted, and never made under a lock.
///
/// # Safety
/// Safe code hands the ranges out as buffers, and commands write them. An implementation promises that
/// - [`allocate`](Self::allocate) returns `bytes` bytes that commands of the device may read and write, aligned to
///   [`alignment`](Self::alignment), which overlap no other memory of the program until they are [freed](Self::free),
///   by whatever thread;
/// - [`alignment`](Self::alignment) returns the same power of two at each call;
/// - [`address_space`](Self::address_space) returns the same answer, and the same object, at each call.
///
/// A driver that wraps another one and passes its ranges on keeps the promise:
///
/// ```
/// use std::ptr::NonNull;
/// use device::{HostMemory, MemoryDriver, Result};
///
/// struct Logged(HostMemory);
///
/// // SAFETY: the ranges are those of `HostMemory`.
/// unsafe impl MemoryDriver for Logged {
///     fn allocate(&self, bytes: usize) -> Result<NonNull<u8>> {
///         println!("{bytes} bytes");
///         self.0.allocate(bytes)
///     }
///
///     unsafe fn free(&self, ptr: NonNull<u8>, bytes: usize) {
///         // SAFETY: the caller's promise.
///         unsafe { self.0.free(ptr, bytes) }
///     }
/// }
/// ```
///
/// Safe code cannot implement it:
///
/// ```compile_fail,E0200
/// use std::ptr::NonNull;
/// use device::{MemoryDriver, Result};
///
/// struct Anywhere;
///
/// impl MemoryDriver for Anywhere {
///     fn allocate(&self, _: usize) -> Result<NonNull<u8>> {
///         Ok(NonNull::dangling())
///     }
///
///     unsafe fn free(&self, _: NonNull<u8>, _: usize) {}
/// }
/// ```
pub unsafe trait MemoryDriver: Send + Sync {
    /// Obtains `bytes` bytes, aligned to [`alignment`](Self::alignment); `bytes` is not 0.
    ///
    /// # Errors
    /// `OutOfMemory` or `Driver` if the device has no such range.
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
///
/// # Safety
/// As for [`MemoryDriver`]: [`reserve`](Self::reserve) returns `bytes` bytes of addresses, aligned to a page, which overlap
/// no other range until they are [released](Self::release). Commands of the device may read and write pages from a successful
/// [`commit`](Self::commit) until a successful [`decommit`](Self::decommit). [`page_bytes`](Self::page_bytes) returns the
/// same power of two of at least 256 at each call.
pub unsafe trait AddressSpace: Send + Sync {
    /// The size of a page in bytes, a power of two of at least 256. Everything below is in whole pages.
    fn page_bytes(&self) -> usize;

    /// Reserves `bytes` bytes of addresses, aligned to a page and without memory.
    ///
    /// # Errors
    /// `OutOfMemory` or `Driver` if there is no such range.
    fn reserve(&self, bytes: usize) -> Result<NonNull<u8>>;

    /// Gives memory to pages that have none. Its content is not specified. A failure changes nothing.
    ///
    /// # Errors
    /// `OutOfMemory` or `Driver` if the device has not that much.
    ///
    /// # Safety
    /// The pages are in one range of [`reserve`](Self::reserve).
    unsafe fn commit(&self, ptr: NonNull<u8>, bytes: usize) -> Result<()>;

    /// Takes the memory from pages that have some. A failure changes nothing.
    ///
    /// # Errors
    /// `Driver` if the device refuses; the pages keep their memory then.
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

/// What a device holds outside its memory pool: it counts neither as reserved nor against a limit.
///
/// All of a CUDA device's handles in the process share it, but for a few bytes. Not known to the library, and not in here, are
/// what the driver takes for its context, streams and executable graphs, and NCCL for its communicators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HeldOutside {
    /// Pinned host memory: blocks through which uploads and downloads go, kept for the next ones until
    /// [`Device::trim_pinned`](crate::Device::trim_pinned), and the record in which kernels report bad indices.
    pub pinned_bytes: usize,
    /// Device memory of the loaded kernels, by the sizes of their images. It is kept as long as the device.
    pub code_bytes: usize,
    /// Device memory that the handles of cuBLASLt and cuDNN took when they were made: how much less the driver said was
    /// free afterwards. Allocations of others at that very time are counted, too. It is kept as long as the device.
    pub library_bytes: usize,
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
    Error::out_of_memory(bytes, "the system has no such range")
}

// SAFETY: the system's allocator returns memory of the layout that is asked for, and every thread may use it.
unsafe impl MemoryDriver for HostMemory {
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

// SAFETY: a mapping is the caller's alone, lies in no other one, and its pages are accessible once `mprotect` has said so.
#[cfg(all(unix, not(miri)))]
unsafe impl AddressSpace for HostMemory {
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
            let error = std::io::Error::last_os_error();
            let (code, name) = (error.raw_os_error().unwrap_or(0), error.to_string().into());
            return Err(Error::new(ErrorKind::Driver { call: "mprotect", code, name }));
        }
        // Nobody can reach the pages any more; whether their memory went back is the system's business.
        // SAFETY: the caller says that nobody uses the pages, which are whole and inside one mapping of this process.
        unsafe { libc::madvise(ptr, bytes, libc::MADV_DONTNEED) };
        Ok(())
    }

    unsafe fn release(&self, ptr: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller says that this is a range of `reserve`, which nobody uses.
        unsafe { libc::munmap(ptr.as_ptr().cast(), bytes) };
    }
}
