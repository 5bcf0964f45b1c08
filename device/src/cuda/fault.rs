//! What a kernel reports that meets an index out of range.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering};

use cudarc::driver::sys;
use parking_lot::RwLock;

use super::call::{address, check};
use crate::{Error, Panicked, Result, StreamId};

/// `FaultRecord` of the kernels' prelude, in host memory that the device writes.
#[repr(C)]
struct Record {
    set: AtomicU32,
    op: AtomicU32,
    value: AtomicI64,
    bound: AtomicI64,
}

/// `Fault` of the kernels' prelude, a kernel's argument.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FaultArg {
    record: sys::CUdeviceptr,
    op: u32,
    pad: u32,
}

/// One record for a device: the first kernel that finds it empty fills it.
#[derive(Default)]
pub(super) struct FaultWord {
    record: AtomicUsize,
    /// Who may have reported, by the number that its kernels were given.
    ops: RwLock<Vec<(&'static str, StreamId)>>,
}

impl FaultWord {
    /// Obtains the record; the context is current.
    pub(super) fn allocate(&mut self) -> Result<()> {
        let mut ptr: *mut c_void = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the driver writes an address.
        unsafe { check("cuMemHostAlloc", sys::cuMemHostAlloc(&mut ptr, size_of::<Record>(), flags))? };
        // SAFETY: the driver gave that many bytes, which nobody else has; zeros are an empty record.
        unsafe { ptr.cast::<u8>().write_bytes(0, size_of::<Record>()) };
        *self.record.get_mut() = ptr as usize;
        Ok(())
    }

    /// Returns the record; no kernel runs any more.
    pub(super) fn free(&mut self) {
        let ptr = std::mem::take(self.record.get_mut()) as *mut c_void;
        if !ptr.is_null() {
            // SAFETY: it came from `cuMemHostAlloc` and is returned once.
            unsafe { sys::cuMemFreeHost(ptr) };
        }
    }

    fn record(&self) -> Option<&Record> {
        // SAFETY: null, or the record that `allocate` obtained, alive until `free`, which takes `&mut self`.
        unsafe { (self.record.load(Ordering::Relaxed) as *const Record).as_ref() }
    }

    /// The argument of a kernel of `op` on `stream`.
    pub(super) fn argument(&self, op: &'static str, stream: StreamId) -> FaultArg {
        let known = self.ops.read().iter().position(|&entry| entry == (op, stream));
        let op = known.unwrap_or_else(|| {
            let mut ops = self.ops.write();
            ops.push((op, stream));
            ops.len() - 1
        });
        // The host's address is the device's, too: unified addressing.
        FaultArg { record: address(self.record.load(Ordering::Relaxed) as *const u8), op: op as u32, pad: 0 }
    }

    /// The first report, which makes room for another.
    pub(super) fn take(&self) -> Option<Error> {
        let record = self.record()?;
        if record.set.load(Ordering::Acquire) == 0 {
            return None;
        }
        let (op, stream) = self.ops.read().get(record.op.load(Ordering::Relaxed) as usize).copied()?;
        let (value, bound) = (record.value.load(Ordering::Relaxed), record.bound.load(Ordering::Relaxed));
        record.set.store(0, Ordering::Release);
        let message = format!("index {value} is out of range for size {bound}").into();
        Some(Error::Async { op, stream, source: Arc::new(Panicked { message }) })
    }
}
