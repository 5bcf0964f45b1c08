//! What a kernel reports that meets an index out of range.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use super::ffi::sys;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use super::call::address;
use super::context::Context;
use crate::{Error, ErrorKind, Result, StreamId};

/// `FaultRecord` of the kernels' prelude, in host memory that the device writes.
#[repr(C)]
#[derive(Default)]
struct FaultRecord {
    set: AtomicU32,
    op: AtomicU32,
    value: AtomicI64,
    bound: AtomicI64,
}

/// What `set` is once the rest of a record is written. It is 1 while a kernel writes it, which may be on another stream than
/// the one that the host has waited for: the wait for that kernel's stream finds the report.
const WRITTEN: u32 = 2;

impl FaultRecord {
    fn is_written(&self) -> bool {
        self.set.load(Ordering::Acquire) == WRITTEN
    }
}

/// `Fault` of the kernels' prelude, a kernel's argument.
#[derive(Clone, Copy)]
pub(super) struct FaultArg {
    record: sys::CUdeviceptr,
    op: u32,
}

impl FaultArg {
    /// The struct's words: the number is the first half of the second one.
    pub(super) fn words(self) -> [u64; 2] {
        let ([a, b, c, d], none) = (self.op.to_ne_bytes(), 0);
        [self.record, u64::from_ne_bytes([a, b, c, d, none, none, none, none])]
    }
}

/// One record for a device: the first kernel that finds it empty fills it.
pub(crate) struct FaultWord {
    record: NonNull<FaultRecord>,
    context: Arc<Context>,
    reporters: RwLock<Reporters>,
    /// The report of a stream that is gone, or of a launch that the driver refused.
    kept: Mutex<Option<Error>>,
}

/// Who may report, by the numbers that kernels are given.
#[derive(Default)]
struct Reporters {
    numbers: FxHashMap<(&'static str, StreamId), u32>,
    by_number: Vec<(&'static str, StreamId)>,
    /// Numbers of streams that are gone.
    free: Vec<u32>,
}

impl Reporters {
    fn number(&self, op: &'static str, stream: StreamId) -> Option<u32> {
        self.numbers.get(&(op, stream)).copied()
    }

    /// Gives a reporter a number.
    fn add(&mut self, op: &'static str, stream: StreamId) -> u32 {
        let Reporters { numbers, by_number, free } = self;
        *numbers.entry((op, stream)).or_insert_with(|| match free.pop() {
            Some(number) => {
                by_number[number as usize] = (op, stream);
                number
            }
            None => {
                by_number.push((op, stream));
                by_number.len() as u32 - 1
            }
        })
    }

    /// The stream's numbers are others' from now on.
    fn forget(&mut self, stream: StreamId) {
        let gone = self.numbers.extract_if(|&(_, reporter), _| reporter == stream);
        self.free.extend(gone.map(|(_, number)| number));
    }
}

impl Context {
    /// A record in pinned memory.
    pub(crate) fn fault_word(self: &Arc<Self>) -> Result<Arc<FaultWord>> {
        let record: NonNull<FaultRecord> = self.allocate_pinned(size_of::<FaultRecord>())?.cast();
        // SAFETY: there are that many bytes, which nobody else has; zeros are an empty record.
        unsafe { record.write_bytes(0, 1) };
        Ok(Arc::new(FaultWord {
            record,
            context: Arc::clone(self),
            reporters: RwLock::default(),
            kept: Mutex::default(),
        }))
    }
}

impl FaultWord {
    /// Bytes of pinned memory.
    pub(crate) const BYTES: usize = size_of::<FaultRecord>();

    fn record(&self) -> &FaultRecord {
        // SAFETY: it lives until this value goes; the device and the host change it by atomics only.
        unsafe { self.record.as_ref() }
    }

    /// The argument of a kernel of `op` on `stream`.
    pub(super) fn argument(&self, op: &'static str, stream: StreamId) -> FaultArg {
        let known = self.reporters.read().number(op, stream);
        let op = known.unwrap_or_else(|| self.reporters.write().add(op, stream));
        // The host's address is the device's, too: unified addressing.
        FaultArg { record: address(self.record.as_ptr()), op }
    }

    /// Keeps what a launch met, unless something was met before.
    pub(super) fn keep(&self, error: Error) {
        self.kept.lock().get_or_insert(error);
    }

    /// A stream has run dry and is gone. What it reported stays.
    pub(super) fn forget(&self, stream: StreamId) {
        let mut kept = self.kept.lock();
        if let Some(report) = self.read() {
            kept.get_or_insert(report);
        }
        self.reporters.write().forget(stream);
    }

    /// Whether there is a report.
    pub(crate) fn is_set(&self) -> bool {
        self.record().is_written() || self.kept.lock().is_some()
    }

    /// The first report, which makes room for another.
    pub(crate) fn take(&self) -> Option<Error> {
        let mut kept = self.kept.lock();
        let newest = self.read();
        kept.take().or(newest)
    }

    /// What is in the record, which makes room for another.
    fn read(&self) -> Option<Error> {
        let record = self.record();
        if !record.is_written() {
            return None;
        }
        let (op, stream) =
            self.reporters.read().by_number.get(record.op.load(Ordering::Relaxed) as usize).copied()?;
        let (value, bound) = (record.value.load(Ordering::Relaxed), record.bound.load(Ordering::Relaxed));
        record.set.store(0, Ordering::Release);
        let size = usize::try_from(bound).unwrap_or(0);
        let source = Error::new(ErrorKind::IndexOutOfRange { op, operand: "index", index: value, size });
        Some(Error::of_command(op, stream, source))
    }
}

// SAFETY: the record lies in pinned memory of its own, which no thread owns and which is freed when this value drops.
unsafe impl Send for FaultWord {}
// SAFETY: the record is read and changed by atomic operations only.
unsafe impl Sync for FaultWord {}

impl Drop for FaultWord {
    fn drop(&mut self) {
        // SAFETY: it came from `allocate_pinned` of this context, and the streams whose kernels could write it hold this
        // value until they have run dry.
        unsafe { self.context.free_pinned(self.record.cast()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_streams_that_are_gone_are_given_again() {
        let mut reporters = Reporters::default();
        let lasting = StreamId::fresh();
        let first = reporters.add("gather", lasting);
        for _ in 0..100 {
            let stream = StreamId::fresh();
            let numbers = ["gather", "scatter", "gather"].map(|op| reporters.add(op, stream));
            assert!(numbers[0] == numbers[2] && numbers[0] != numbers[1] && !numbers.contains(&first));
            assert_eq!(reporters.by_number[numbers[1] as usize], ("scatter", stream));
            reporters.forget(stream);
            assert_eq!(reporters.number("gather", stream), None);
        }
        assert_eq!((reporters.number("gather", lasting), reporters.by_number.len()), (Some(first), 3));
    }

    #[test]
    fn a_report_counts_once_all_of_it_is_written() {
        let record = FaultRecord::default();
        for (set, counts) in [(0, false), (1, false), (WRITTEN, true)] {
            record.set.store(set, Ordering::Relaxed);
            assert_eq!(record.is_written(), counts, "{set}");
        }
    }
}
