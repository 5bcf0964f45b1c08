//! Device memory: the driver's plain allocations, and reserved addresses whose pages get and lose physical memory.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::ptr::NonNull;

use super::ffi::sys;
use parking_lot::Mutex;

use super::call::{call, check, no_memory, obtained};
use crate::{AddressSpace, ErrorKind, Result, foreign};

/// Ranges of a device's addresses.
///
/// Each page is a mapping of its own, since the driver unmaps whole mappings only and takes no part of a handle. That is
/// three calls a page when it gets memory, and one for any number of pages when they lose it. No handle is kept: memory
/// lives on while it is mapped. None of these calls needs a current context, and none is made under the lock but those
/// for pages that the driver refused to take back before.
pub(super) struct Pages {
    location: sys::CUmemLocation,
    page_bytes: usize,
    held: Mutex<Held>,
}

/// What the driver gave.
#[derive(Default)]
struct Held {
    /// Reserved ranges: where they begin, and their bytes.
    ranges: BTreeMap<usize, usize>,
    /// Where the pages that have memory begin.
    mapped: BTreeSet<usize>,
    /// Those of them that were to lose it when the driver refused. They are without memory as far as anybody knows.
    left: BTreeSet<usize>,
}

impl Held {
    /// Takes note of pages that lost their memory, and of others that were to.
    fn note_unmapped(&mut self, gone: &[&[usize]], refused: &[&[usize]]) {
        for page in gone.iter().copied().flatten() {
            self.mapped.remove(page);
            self.left.remove(page);
        }
        self.left.extend(refused.iter().copied().flatten());
    }
}

impl Pages {
    /// The pages of a device; `None` if its driver has none for it.
    pub(super) fn of(device: sys::CUdevice) -> Option<Pages> {
        let (mut supported, mut page_bytes) = (0, 0);
        let location =
            sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device };
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        let smallest = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let properties = properties(location);
        // SAFETY: the device exists; the driver reads the properties and writes a number to each address.
        unsafe {
            call!(cuDeviceGetAttribute(&mut supported, attribute, device)).ok()?;
            if supported == 0 {
                return None;
            }
            call!(cuMemGetAllocationGranularity(&mut page_bytes, &properties, smallest)).ok()?;
        }
        let usable = page_bytes >= 256 && page_bytes.is_power_of_two();
        usable.then(|| Pages { location, page_bytes, held: Mutex::default() })
    }

    /// Gives one page memory, which goes when the page is unmapped. After a failure it may have memory nevertheless.
    fn map(&self, page: usize) -> Result<()> {
        let mut handle = 0;
        let bytes = self.page_bytes;
        // SAFETY: the driver reads the properties and writes a handle, which is released once; the page is in a reserved
        // range and has no memory.
        unsafe {
            let code = foreign!(sys::cuMemCreate(&mut handle, bytes, &properties(self.location), 0));
            obtained("cuMemCreate", bytes, code)?;
            let mapped = foreign!(sys::cuMemMap(page as sys::CUdeviceptr, bytes, 0, handle, 0));
            if mapped == sys::CUresult::CUDA_SUCCESS {
                self.held.lock().mapped.insert(page);
            }
            let released = call!(cuMemRelease(handle));
            if released.is_err() {
                // With its handle the memory would outlive the page's.
                foreign!(sys::cuMemRelease(handle));
            }
            obtained("cuMemMap", bytes, mapped).and(released)
        }
    }

    /// Takes the memory of neighbouring pages.
    fn unmap(&self, start: usize, bytes: usize) -> Result<()> {
        // SAFETY: whoever calls this names pages with memory, which nobody uses.
        check("cuMemUnmap", unsafe { foreign!(sys::cuMemUnmap(start as sys::CUdeviceptr, bytes)) })
    }

    /// Takes the memory of pages in ascending order, with a call for each run of neighbours: the runs that lost it and
    /// those that the driver refused.
    fn unmap_runs<'a>(&self, pages: &'a [usize]) -> (Vec<&'a [usize]>, Vec<&'a [usize]>) {
        let runs = pages.chunk_by(|page, next| page + self.page_bytes == *next);
        runs.partition(|run| self.unmap(run[0], run.len() * self.page_bytes).is_ok())
    }

    /// Takes whatever memory the pages of a range have; whether they have none now.
    fn clear(&self, range: Range<usize>) -> bool {
        let pages: Vec<usize> = {
            let mut held = self.held.lock();
            held.left.retain(|page| !range.contains(page));
            held.mapped.range(range).copied().collect()
        };
        let (gone, refused) = self.unmap_runs(&pages);
        self.held.lock().note_unmapped(&gone, &refused);
        refused.is_empty()
    }

    /// Tries again to take the memory that the driver refused to take before. Gives those of these pages in `range`
    /// that still have theirs; they count as that range's from now on.
    fn take_over(&self, range: Range<usize>) -> BTreeSet<usize> {
        // Under the lock, since another thread may want these very pages.
        let mut held = self.held.lock();
        let left: Vec<usize> = held.left.iter().copied().collect();
        let (gone, refused) = self.unmap_runs(&left);
        held.note_unmapped(&gone, &refused);
        let taken = held.left.range(range).copied().collect();
        held.left = &held.left - &taken;
        taken
    }

    /// Lets the device read and write neighbouring pages, which have memory.
    fn open(&self, start: usize, bytes: usize) -> Result<()> {
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = sys::CUmemAccessDesc { location: self.location, flags };
        // SAFETY: the driver reads one description.
        let code = unsafe { foreign!(sys::cuMemSetAccess(start as sys::CUdeviceptr, bytes, &access, 1)) };
        obtained("cuMemSetAccess", bytes, code)
    }

    /// Returns a range with whatever memory it has. What the driver refuses stays held.
    fn give_back(&self, start: usize, bytes: usize) {
        if !self.clear(start..start + bytes) {
            return;
        }
        // SAFETY: this is a reserved range, without memory, which nobody uses.
        let code = unsafe { foreign!(sys::cuMemAddressFree(start as sys::CUdeviceptr, bytes)) };
        if code == sys::CUresult::CUDA_SUCCESS {
            self.held.lock().ranges.remove(&start);
        }
    }
}

/// Device memory, for a device's own use.
fn properties(location: sys::CUmemLocation) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location,
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

// SAFETY: the driver reserves ranges that overlap no other one; a page is accessible while it is mapped, from `commit` to
// `decommit`.
unsafe impl AddressSpace for Pages {
    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn reserve(&self, bytes: usize) -> Result<NonNull<u8>> {
        let mut start = 0;
        // SAFETY: the driver writes an address.
        let code = unsafe { foreign!(sys::cuMemAddressReserve(&mut start, bytes, self.page_bytes, 0, 0)) };
        obtained("cuMemAddressReserve", bytes, code)?;
        self.held.lock().ranges.insert(start as usize, bytes);
        NonNull::new(start as *mut u8).ok_or_else(|| no_memory(bytes))
    }

    unsafe fn commit(&self, ptr: NonNull<u8>, bytes: usize) -> Result<()> {
        let start = ptr.as_ptr().addr();
        let range = start..start + bytes;
        let mapped = self.take_over(range.clone());
        let outcome = range
            .clone()
            .step_by(self.page_bytes)
            .filter(|page| !mapped.contains(page))
            .try_for_each(|page| self.map(page))
            .and_then(|()| self.open(start, bytes));
        if outcome.is_err() {
            self.clear(range);
        }
        outcome.map_err(|error| match error.kind() {
            ErrorKind::OutOfMemory { .. } => no_memory(bytes),
            _ => error,
        })
    }

    unsafe fn decommit(&self, ptr: NonNull<u8>, bytes: usize) -> Result<()> {
        let start = ptr.as_ptr().addr();
        // One call, which takes all of these mappings or none.
        self.unmap(start, bytes)?;
        let mut held = self.held.lock();
        (start..start + bytes).step_by(self.page_bytes).for_each(|page| _ = held.mapped.remove(&page));
        Ok(())
    }

    unsafe fn release(&self, ptr: NonNull<u8>, bytes: usize) {
        self.give_back(ptr.as_ptr().addr(), bytes);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // What the driver refused to take back before; what fails now has nobody left to tell.
        let ranges = std::mem::take(&mut self.held.get_mut().ranges);
        ranges.into_iter().for_each(|(start, bytes)| self.give_back(start, bytes));
    }
}
