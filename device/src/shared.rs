//! Values with several owners, for what every op makes: buffers and nodes of the tape.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::process::abort;
use std::ptr::NonNull;

use crate::sync::atomic::{AtomicUsize, Ordering, fence};

/// A value with several owners, the last of which drops it: an `Arc` without weak references.
///
/// An op makes a few of them, which an `Arc` would make its largest cost. Here an only owner does not count, and the
/// memory of a value that is gone waits, on the thread that dropped it, for the next value of about its size.
///
/// ```
/// use device::Shared;
/// let one = Shared::new(1);
/// let other = one.clone();
/// assert!(one.ptr_eq(&other) && !one.is_unique());
/// drop(other);
/// assert!(one.is_unique());
/// ```
///
/// Nobody gets a value out of its place: a [`Buffer`](crate::Buffer) finds its owners by where it lies.
///
/// ```compile_fail,E0624
/// let mut one = device::Shared::new(1);
/// one.get_mut();
/// ```
///
/// What cannot be sent to another thread, or used on two, cannot be shared between them.
///
/// ```compile_fail,E0277
/// fn send(_: impl Send) {}
/// send(device::Shared::new(std::cell::Cell::new(1)));
/// ```
pub struct Shared<T> {
    record: NonNull<Record<T>>,
    /// A handle may drop a value.
    value: PhantomData<T>,
}

struct Record<T> {
    owners: AtomicUsize,
    value: T,
}

// SAFETY: owners on several threads share the value, and any of them may drop it, as with an `Arc`.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: a shared handle gives `&T`, which `T: Sync` allows, and clones, which are counted atomically and may be dropped elsewhere.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The first owner of `value`.
    #[inline]
    pub fn new(value: T) -> Shared<T> {
        Shared::new_with(|| value)
    }

    /// The first owner of what `value` makes, in its place: a large value is not moved there.
    #[inline]
    pub fn new_with(value: impl FnOnce() -> T) -> Shared<T> {
        let record = Allocation::<T>::take();
        // SAFETY: the memory has the layout of a record and is nobody else's.
        unsafe { record.write(Record { owners: AtomicUsize::new(1), value: value() }) };
        Shared { record, value: PhantomData }
    }

    /// Whether nobody else owns the value.
    #[inline]
    pub fn is_unique(&self) -> bool {
        self.owners() == 1
    }

    /// How many owners the value has now.
    #[inline]
    pub fn owners(&self) -> usize {
        // Comes after everything that former owners did with the value.
        self.record().owners.load(Ordering::Acquire)
    }

    /// The value, if nobody else owns it.
    #[inline]
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        // SAFETY: the only owner is borrowed exclusively, so nobody can reach the value or make another owner.
        if self.is_unique() { Some(unsafe { &mut self.record.as_mut().value }) } else { None }
    }

    /// Whether both own the same value.
    #[inline]
    pub fn ptr_eq(&self, other: &Shared<T>) -> bool {
        self.record == other.record
    }

    /// What tells the value apart from others while it lives.
    #[inline]
    pub fn address(&self) -> usize {
        self.record.addr().get()
    }

    /// Where the value lives, which it may keep to know its owners by.
    #[inline]
    pub(crate) fn home(&self) -> Home<T> {
        Home(self.record)
    }

    #[inline]
    fn record(&self) -> &Record<T> {
        // SAFETY: the record lives until its last owner is dropped, and this one is not.
        unsafe { self.record.as_ref() }
    }

    /// # Safety
    /// No other owner is left, and this one is not used any more.
    #[inline(never)]
    unsafe fn drop_value(&mut self) {
        // SAFETY: the value was written by `new` and is dropped once, by its last owner; a count needs no drop.
        unsafe { std::ptr::drop_in_place(&raw mut (*self.record.as_ptr()).value) };
        // SAFETY: the memory is from `take` of the same type, and nobody refers to it any more.
        unsafe { Allocation::give(self.record) };
    }
}

/// Where a shared value lives.
pub(crate) struct Home<T>(NonNull<Record<T>>);

impl<T> Home<T> {
    /// Whether `value` lies there, which it does unless it was moved out.
    pub(crate) fn is_of(&self, value: &T) -> bool {
        self.0.addr().get() + std::mem::offset_of!(Record<T>, value) == std::ptr::from_ref(value).addr()
    }

    /// One more owner of the value.
    ///
    /// # Safety
    /// The value lies there, and has an owner as long as this call lasts.
    pub(crate) unsafe fn owner(&self) -> Shared<T> {
        // SAFETY: the record lives as long as an owner; this handle does not count, so it is not dropped.
        let uncounted = ManuallyDrop::new(Shared { record: self.0, value: PhantomData });
        Shared::clone(&uncounted)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.record().value
    }
}

impl<T> Clone for Shared<T> {
    #[inline]
    fn clone(&self) -> Self {
        let owners = self.record().owners.fetch_add(1, Ordering::Relaxed);
        if owners > isize::MAX.unsigned_abs() {
            // So many owners can only be leaked ones; more of them could overflow the count.
            abort();
        }
        Shared { record: self.record, value: PhantomData }
    }
}

impl<T> Drop for Shared<T> {
    #[inline]
    fn drop(&mut self) {
        let owners = &self.record().owners;
        // An only owner stays the only one: there is nobody to clone.
        if owners.load(Ordering::Acquire) != 1 {
            if owners.fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            // What former owners did with the value comes before its end.
            fence(Ordering::Acquire);
        }
        // SAFETY: this was the last owner, and it is being dropped.
        unsafe { self.drop_value() };
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// Sizes are rounded up to multiples of this, which is also the alignment.
const LINE: usize = 64;
/// Larger records go back to the system at once.
const LARGEST: usize = 8 * LINE;
/// How many records of a size a thread keeps.
const MOST: usize = 1024;

thread_local! {
    static SPARE: RefCell<Spare> = const { RefCell::new(Spare([const { Vec::new() }; LARGEST / LINE + 1])) };
}

/// The memory of records that are gone, by size in lines.
struct Spare([Vec<NonNull<u8>>; LARGEST / LINE + 1]);

impl Drop for Spare {
    fn drop(&mut self) {
        for (lines, memory) in self.0.iter_mut().enumerate() {
            for record in memory.drain(..) {
                if let Ok(layout) = Layout::from_size_align(lines * LINE, LINE) {
                    // SAFETY: it was allocated with this layout, see `Allocation::LAYOUT`, and nobody refers to it.
                    unsafe { dealloc(record.as_ptr(), layout) };
                }
            }
        }
    }
}

/// Where the records of one type lie.
struct Allocation<T>(PhantomData<T>);

impl<T> Allocation<T> {
    /// Sizes that are kept are whole lines, so that types of about one size share memory.
    const LAYOUT: Layout = {
        let exact = Layout::new::<Record<T>>();
        match Layout::from_size_align(exact.size().next_multiple_of(LINE), LINE) {
            Ok(rounded) if exact.align() <= LINE => rounded,
            _ => exact,
        }
    };
    const LINES: usize = Self::LAYOUT.size() / LINE;
    const KEPT: bool = Self::LAYOUT.align() == LINE && Self::LAYOUT.size() <= LARGEST;

    #[inline]
    fn take() -> NonNull<Record<T>> {
        // A thread that is ending keeps nothing.
        let spare = |spare: &RefCell<Spare>| spare.borrow_mut().0[Self::LINES].pop();
        let kept = if Self::KEPT { SPARE.try_with(spare).ok().flatten() } else { None };
        kept.unwrap_or_else(Self::allocate).cast()
    }

    #[cold]
    fn allocate() -> NonNull<u8> {
        // SAFETY: a record is not empty, as it has a count.
        NonNull::new(unsafe { alloc(Self::LAYOUT) }).unwrap_or_else(|| handle_alloc_error(Self::LAYOUT))
    }

    /// # Safety
    /// `record` is from `take` of this type, and nobody refers to it any more.
    #[inline]
    unsafe fn give(record: NonNull<Record<T>>) {
        let keep = |spare: &RefCell<Spare>| {
            let memory = &mut spare.borrow_mut().0[Self::LINES];
            let room = memory.len() < MOST;
            if room {
                memory.push(record.cast());
            }
            room
        };
        if !(Self::KEPT && SPARE.try_with(keep).unwrap_or(false)) {
            // SAFETY: it was allocated with this layout, by `allocate` of this type or of one of the same size.
            unsafe { dealloc(record.as_ptr().cast(), Self::LAYOUT) };
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    /// Says how often it was dropped; dropping it writes to it.
    struct Value {
        cell: UnsafeCell<u32>,
        drops: Arc<AtomicU32>,
    }

    impl Value {
        fn shared(drops: &Arc<AtomicU32>) -> Shared<Value> {
            Shared::new(Value { cell: UnsafeCell::new(7), drops: Arc::clone(drops) })
        }

        fn read(&self) -> u32 {
            // SAFETY: an owner only reads, and whoever writes is the last one, which is what loom checks.
            self.cell.with(|value| unsafe { *value })
        }
    }

    impl Drop for Value {
        fn drop(&mut self) {
            // SAFETY: nobody owns the value any more, which is what loom checks.
            self.cell.with_mut(|value| unsafe { *value = 0 });
            self.drops.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The last of several owners drops the value, once, and after all reads of the others.
    #[test]
    fn the_last_owner_drops_the_value_after_all_reads() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let drops = Arc::new(AtomicU32::new(0));
            let one = Value::shared(&drops);
            let threads = [one.clone(), one.clone()].map(|owner| {
                thread::spawn(move || {
                    assert_eq!(owner.read(), 7);
                    drop(owner.clone());
                })
            });
            assert_eq!(one.read(), 7);
            drop(one);
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            assert_eq!(drops.load(Ordering::Relaxed), 1);
        });
    }

    /// An owner that finds itself alone may write: everybody else's reads came before.
    #[test]
    fn an_only_owner_may_write() {
        loom::model(|| {
            let drops = Arc::new(AtomicU32::new(0));
            let mut one = Value::shared(&drops);
            let other = one.clone();
            let thread = thread::spawn(move || assert_eq!(other.read(), 7));
            while !one.is_unique() {
                thread::yield_now();
            }
            let value = one.get_mut().expect("the only owner");
            // SAFETY: there is no other owner, which is what loom checks.
            value.cell.with_mut(|value| unsafe { *value = 8 });
            thread.join().expect("no panic");
            drop(one);
            assert_eq!(drops.load(Ordering::Relaxed), 1);
        });
    }
}
