//! What a kernel reports that meets an index out of range.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering};

use cudarc::driver::sys;
use parking_lot::RwLock;

use super::call::address;
use crate::{Error, Panicked, StreamId};

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
    /// The size of the record.
    pub(super) const BYTES: usize = size_of::<Record>();

    /// With a record in pinned memory of [`BYTES`](Self::BYTES) bytes.
    pub(super) fn new(record: NonNull<u8>) -> FaultWord {
        // SAFETY: there are that many bytes, which nobody else has; zeros are an empty record.
        unsafe { record.write_bytes(0, Self::BYTES) };
        FaultWord { record: AtomicUsize::new(record.as_ptr() as usize), ops: RwLock::default() }
    }

    /// The record's memory, to be returned; no kernel runs any more.
    pub(super) fn take_record(&mut self) -> Option<NonNull<u8>> {
        NonNull::new(std::mem::take(self.record.get_mut()) as *mut u8)
    }

    fn record(&self) -> Option<&Record> {
        // SAFETY: null, or the record that `new` was given, alive until `take_record`, which has `&mut self`.
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
