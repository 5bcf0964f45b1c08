//! A driver that fails on demand, for tests of what is above it.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use streamgrad::device::{AddressSpace, HostMemory, MemoryDriver};
use streamgrad::{Error, ErrorKind, Result};

/// Host memory of which some calls fail, counted from 1: those that obtain memory or addresses, and those that take
/// the memory of pages.
#[derive(Debug)]
pub(crate) struct FailingMemory {
    host: HostMemory,
    in_place: bool,
    fails: Range<u64>,
    calls: AtomicU64,
}

impl FailingMemory {
    /// Memory of which the calls in `fails` fail, with an [`AddressSpace`] where the host has one, if `in_place`.
    pub(crate) fn new(in_place: bool, fails: Range<u64>) -> Self {
        FailingMemory { host: HostMemory, in_place, fails, calls: AtomicU64::new(0) }
    }

    /// How many calls there were.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    fn call(&self) -> Result<()> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        if self.fails.contains(&call) { Err(driver_error("as told")) } else { Ok(()) }
    }

    fn space(&self) -> Result<&dyn AddressSpace> {
        self.host.address_space().ok_or_else(|| driver_error("no address space"))
    }
}

fn driver_error(name: &str) -> Error {
    Error::new(ErrorKind::Driver { call: "failing memory", code: 1, name: name.into() })
}

// SAFETY: ranges are those of `HostMemory`.
unsafe impl MemoryDriver for FailingMemory {
    fn allocate(&self, bytes: usize) -> Result<NonNull<u8>> {
        self.call()?;
        self.host.allocate(bytes)
    }

    unsafe fn free(&self, ptr: NonNull<u8>, bytes: usize) {
        // SAFETY: as the caller promises, since ranges are the host's.
        unsafe { self.host.free(ptr, bytes) }
    }

    fn alignment(&self) -> usize {
        self.host.alignment()
    }

    fn address_space(&self) -> Option<&dyn AddressSpace> {
        (self.in_place && self.host.address_space().is_some()).then_some(self)
    }
}

// SAFETY: each call is passed on to the host's memory, which keeps the contract, or fails and has changed nothing.
unsafe impl AddressSpace for FailingMemory {
    fn page_bytes(&self) -> usize {
        self.host.address_space().map_or(4096, AddressSpace::page_bytes)
    }

    fn reserve(&self, bytes: usize) -> Result<NonNull<u8>> {
        self.call()?;
        self.space()?.reserve(bytes)
    }

    unsafe fn commit(&self, ptr: NonNull<u8>, bytes: usize) -> Result<()> {
        self.call()?;
        // SAFETY: as the caller promises, since ranges are the host's.
        unsafe { self.space()?.commit(ptr, bytes) }
    }

    unsafe fn decommit(&self, ptr: NonNull<u8>, bytes: usize) -> Result<()> {
        self.call()?;
        // SAFETY: as the caller promises, since ranges are the host's.
        unsafe { self.space()?.decommit(ptr, bytes) }
    }

    unsafe fn release(&self, ptr: NonNull<u8>, bytes: usize) {
        if let Ok(space) = self.space() {
            // SAFETY: as the caller promises, since ranges are the host's.
            unsafe { space.release(ptr, bytes) }
        }
    }
}
