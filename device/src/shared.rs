//! Buffers with several owners.

use std::cell::RefCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::process::abort;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use crate::Buffer;

/// A [`Buffer`] with several owners: what views of one tensor share. The last owner drops it.
///
/// An `Arc` would cost a call of the system's allocator and two atomic operations more a buffer. Here the memory that a
/// buffer's record lies in is kept by the thread that drops it, for its next one, and an only owner does not count.
pub struct SharedBuffer(NonNull<Record>);

struct Record {
    owners: AtomicUsize,
    buffer: Buffer,
}

// SAFETY: an owner only gives out `&Buffer`, which is `Sync`, and the last one, on whatever thread, drops the buffer,
// which is `Send`.
unsafe impl Send for SharedBuffer {}
// SAFETY: as above; cloning through a shared reference counts atomically.
unsafe impl Sync for SharedBuffer {}

/// The records that a thread keeps for later.
const SPARE_RECORDS: usize = 1024;

thread_local! {
    static SPARE: RefCell<Vec<Spare>> = const { RefCell::new(Vec::new()) };
}

/// A record without a buffer.
struct Spare(Box<MaybeUninit<Record>>);

impl SharedBuffer {
    /// The first owner of `buffer`.
    #[inline]
    pub fn new(buffer: Buffer) -> SharedBuffer {
        // A thread that is ending keeps nothing.
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        let mut record = spare.unwrap_or_else(|| Spare(Box::new_uninit())).0;
        record.write(Record { owners: AtomicUsize::new(1), buffer });
        SharedBuffer(NonNull::from(Box::leak(record)).cast())
    }

    /// Whether nobody else owns the buffer.
    #[inline]
    pub fn is_unique(&self) -> bool {
        // Comes after everything that former owners did with the buffer.
        self.record().owners.load(Ordering::Acquire) == 1
    }

    /// Whether both own the same buffer.
    #[inline]
    pub fn ptr_eq(&self, other: &SharedBuffer) -> bool {
        self.0 == other.0
    }

    #[inline]
    fn record(&self) -> &Record {
        // SAFETY: the record lives until its last owner is dropped, and this one is not.
        unsafe { self.0.as_ref() }
    }

    /// # Safety
    /// No other owner is left, and this one does not touch the buffer any more.
    #[inline(never)]
    unsafe fn drop_buffer(&mut self) {
        // SAFETY: the record was written by `new`, and its buffer is dropped once, by the last owner.
        unsafe { std::ptr::drop_in_place(&raw mut (*self.0.as_ptr()).buffer) };
        // SAFETY: `new` leaked this box, and what it held has been dropped: a count needs no drop.
        let record = unsafe { Box::from_raw(self.0.as_ptr().cast::<MaybeUninit<Record>>()) };
        // A thread that is ending frees it.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_RECORDS {
                spare.push(Spare(record));
            }
        });
    }
}

impl Deref for SharedBuffer {
    type Target = Buffer;

    #[inline]
    fn deref(&self) -> &Buffer {
        &self.record().buffer
    }
}

impl Clone for SharedBuffer {
    #[inline]
    fn clone(&self) -> Self {
        let owners = self.record().owners.fetch_add(1, Ordering::Relaxed);
        if owners > isize::MAX.unsigned_abs() {
            // So many owners can only be leaked ones; one more could overflow the count.
            abort();
        }
        SharedBuffer(self.0)
    }
}

impl Drop for SharedBuffer {
    #[inline]
    fn drop(&mut self) {
        let owners = &self.record().owners;
        // An only owner stays the only one: there is nobody to clone.
        if owners.load(Ordering::Acquire) != 1 {
            if owners.fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            // What former owners did with the buffer comes before its end.
            fence(Ordering::Acquire);
        }
        // SAFETY: this was the last owner, and it is being dropped.
        unsafe { self.drop_buffer() };
    }
}

impl fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
