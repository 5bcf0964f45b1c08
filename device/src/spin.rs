//! A lock for critical sections of a few dozen instructions.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{spin_loop, thread::yield_now};

const UNLOCKED: usize = 0;
const LOCKED: usize = 1;

/// A spinning mutual exclusion lock: one atomic read-modify-write for a lock and unlock pair.
///
/// Hold it for a few dozen instructions only, and never across a call that may block. It is not poisoned by a
/// panic.
pub struct SpinLock<T: ?Sized> {
    /// A word, as what lies beside a narrower field moves byte by byte.
    locked: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a guard only, and one guard exists at a time.
unsafe impl<T: ?Sized + Send> Send for SpinLock<T> {}
// SAFETY: one guard exists at a time, so sharing the lock only hands the value from thread to thread, which `T: Send` allows.
unsafe impl<T: ?Sized + Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// An unlocked lock around `value`.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        SpinLock { locked: AtomicUsize::new(UNLOCKED), value: UnsafeCell::new(value) }
    }

    /// An unlocked lock around `value`.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        SpinLock { locked: AtomicUsize::new(UNLOCKED), value: UnsafeCell::new(value) }
    }

    /// The value, which nobody else can reach any more.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// The value, by exclusive access.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Takes the lock, spinning while another thread has it.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        if !self.try_take() {
            self.contended();
        }
        SpinGuard { lock: self, value: PhantomData }
    }

    #[inline]
    fn try_take(&self) -> bool {
        if cfg!(loom) {
            // A swap that changes nothing would hide the holder's unlocking from the model checker.
            return self
                .locked
                .compare_exchange(UNLOCKED, LOCKED, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        }
        self.locked.swap(LOCKED, Ordering::Acquire) == UNLOCKED
    }

    #[cold]
    fn contended(&self) {
        loop {
            spin_until(|| self.locked.load(Ordering::Relaxed) == UNLOCKED);
            if self.try_take() {
                return;
            }
        }
    }
}

/// Waits for what takes another thread but a moment.
pub(crate) fn spin_until(done: impl Fn() -> bool) {
    let mut spins = 0u32;
    while !done() {
        spins += 1;
        // The other thread may have lost its core: let it have ours.
        if spins.is_multiple_of(32) { yield_now() } else { spin_loop() }
    }
}

impl<T: ?Sized> fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpinLock").finish_non_exhaustive()
    }
}

/// Access to the value of a [`SpinLock`]; unlocks when dropped.
#[derive(Debug)]
pub struct SpinGuard<'a, T: ?Sized> {
    lock: &'a SpinLock<T>,
    /// The guard is as good as a `&mut T`: shared between threads only if `T` may be.
    value: PhantomData<&'a mut T>,
}

impl<T: ?Sized> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so no other reference to the value exists.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock, so no other reference to the value exists.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.locked.store(UNLOCKED, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// No two threads are inside at once, and each sees what the one before wrote: the cell reports any access that is
    /// not ordered after the last one.
    #[test]
    fn excludes_and_publishes() {
        loom::model(|| {
            let lock = Arc::new(SpinLock::new(UnsafeCell::new(0)));
            let add = |lock: &SpinLock<UnsafeCell<u32>>| {
                let cell = lock.lock();
                // SAFETY: the lock is held, which is what loom checks.
                cell.with_mut(|value| unsafe { *value += 1 });
            };
            let other = Arc::clone(&lock);
            let thread = loom::thread::spawn(move || {
                add(&other);
                add(&other);
            });
            add(&lock);
            thread.join().expect("no panic");
            // SAFETY: the guard lives until the closure returns, and excludes all others.
            assert_eq!(lock.lock().with(|value| unsafe { *value }), 3);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counts_from_four_threads() {
        let count = SpinLock::new(0u64);
        std::thread::scope(|scope| {
            (0..4).for_each(|_| {
                scope.spawn(|| (0..20_000).for_each(|_| *count.lock() += 1));
            });
        });
        assert_eq!(*count.lock(), 80_000);
    }
}
