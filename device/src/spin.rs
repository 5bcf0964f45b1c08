//! A lock for critical sections of a few dozen instructions.

use parking_lot::lock_api::{GuardSend, Mutex, MutexGuard, RawMutex};

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{spin_loop, thread::yield_now};

/// A spinning mutual exclusion lock: one atomic read-modify-write for a lock and unlock pair.
///
/// Hold it for a few dozen instructions only, and never across a call that may block. It is not poisoned by a
/// panic.
pub type SpinLock<T> = Mutex<RawSpin, T>;

/// Access to the value of a [`SpinLock`]; unlocks when dropped.
pub type SpinGuard<'a, T> = MutexGuard<'a, RawSpin, T>;

const UNLOCKED: usize = 0;
const LOCKED: usize = 1;

/// What a [`SpinLock`] spins on: a word, as what lies beside a narrower field moves byte by byte.
#[derive(Debug)]
pub struct RawSpin(Word);

#[cfg(not(loom))]
type Word = AtomicUsize;
/// The model checker's atomics cannot be made in a constant.
#[cfg(loom)]
type Word = std::sync::LazyLock<AtomicUsize>;

// SAFETY: only `unlock` makes the word `UNLOCKED`, and `try_lock` succeeds only where it was.
unsafe impl RawMutex for RawSpin {
    type GuardMarker = GuardSend;

    #[cfg(not(loom))]
    const INIT: RawSpin = RawSpin(AtomicUsize::new(UNLOCKED));
    #[cfg(loom)]
    const INIT: RawSpin = RawSpin(Word::new(|| AtomicUsize::new(UNLOCKED)));

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.contended();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        if cfg!(loom) {
            // A swap that changes nothing would hide the holder's unlocking from the model checker.
            return self.0.compare_exchange(UNLOCKED, LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        }
        self.0.swap(LOCKED, Ordering::Acquire) == UNLOCKED
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.0.store(UNLOCKED, Ordering::Release);
    }
}

impl RawSpin {
    #[cold]
    fn contended(&self) {
        loop {
            spin_until(|| self.0.load(Ordering::Relaxed) == UNLOCKED);
            if self.try_lock() {
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
            // Makes the word, which the checker is to see before all other uses.
            drop(lock.lock());
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
