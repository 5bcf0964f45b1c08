//! How far a stream has run, and who sleeps until it has run further.

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Condvar, Mutex};

/// The progress of one stream: one thread at a time runs its commands and says so, any thread looks or sleeps.
pub(crate) struct Progress {
    /// The newest tick that has run.
    completed: AtomicU64,
    /// The oldest tick that somebody sleeps for, [`NOBODY`] if nobody does.
    awaited: AtomicU64,
    sleepers: Mutex<()>,
    advanced: Condvar,
}

const NOBODY: u64 = u64::MAX;

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress {
            completed: AtomicU64::new(0),
            awaited: AtomicU64::new(NOBODY),
            sleepers: Mutex::new(()),
            advanced: Condvar::new(),
        }
    }

    /// The newest tick that has run. What its commands wrote is visible to who sees it here.
    #[inline]
    pub(crate) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    /// `tick` has run; who sleeps for it wakes up. A command costs one look at who does.
    pub(crate) fn complete(&self, tick: u64) {
        self.complete_unawaited(tick);
        // Pairs with the fence of `sleep_until`: either the sleeper is seen here, or it sees the tick there.
        fence(Ordering::SeqCst);
        if self.awaited.load(Ordering::Relaxed) <= tick {
            let sleepers = self.sleepers.lock();
            // Who still has to sleep says so again.
            self.awaited.store(NOBODY, Ordering::Relaxed);
            drop(sleepers);
            self.advanced.notify_all();
        }
    }

    /// `tick` has run, and nobody can sleep for it.
    #[inline]
    pub(crate) fn complete_unawaited(&self, tick: u64) {
        self.completed.store(tick, Ordering::Release);
    }

    /// Somebody else, who may be behind others, saw that `tick` has run. Sleepers are not told.
    pub(crate) fn raise(&self, tick: u64) {
        self.completed.fetch_max(tick, Ordering::AcqRel);
    }

    /// Sleeps until `tick` has run, of which [`complete`](Self::complete) tells.
    pub(crate) fn sleep_until(&self, tick: u64) {
        let mut sleepers = self.sleepers.lock();
        loop {
            self.awaited.fetch_min(tick, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.completed() >= tick {
                return;
            }
            self.advanced.wait(&mut sleepers);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// A stream that writes `tick` into a cell as its command `tick`.
    struct Stream {
        progress: Progress,
        written: [UnsafeCell<u64>; 2],
    }

    impl Stream {
        fn new() -> Arc<Stream> {
            Arc::new(Stream { progress: Progress::new(), written: [UnsafeCell::new(0), UnsafeCell::new(0)] })
        }

        fn run(&self) {
            for (cell, tick) in self.written.iter().zip(1..) {
                // SAFETY: nobody reads before the tick has run, which is what loom checks.
                cell.with_mut(|value| unsafe { *value = tick });
                self.progress.complete(tick);
            }
        }

        fn expect(&self, tick: u64) {
            // SAFETY: the tick has run, which is what loom checks.
            assert_eq!(self.written[tick as usize - 1].with(|value| unsafe { *value }), tick);
        }
    }

    /// Nobody sleeps on, and who wakes up sees what the command wrote.
    #[test]
    fn a_sleeper_wakes_up_and_sees_the_writes() {
        loom::model(|| {
            let stream = Stream::new();
            let worker = Arc::clone(&stream);
            let worker = thread::spawn(move || worker.run());
            stream.progress.sleep_until(2);
            stream.expect(1);
            stream.expect(2);
            worker.join().expect("no panic");
        });
    }

    /// The one who is woken by the tick of another sleeps again and loses nothing.
    #[test]
    fn sleepers_for_different_ticks_wake_up() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let stream = Stream::new();
            let worker = Arc::clone(&stream);
            let worker = thread::spawn(move || worker.run());
            let late = Arc::clone(&stream);
            let late = thread::spawn(move || {
                late.progress.sleep_until(2);
                late.expect(2);
            });
            stream.progress.sleep_until(1);
            stream.expect(1);
            worker.join().expect("no panic");
            late.join().expect("no panic");
        });
    }

    /// Who sees a tick without sleeping sees its writes, too, and also who is told by another.
    #[test]
    fn a_look_sees_the_writes() {
        loom::model(|| {
            let stream = Stream::new();
            let worker = Arc::clone(&stream);
            let worker = thread::spawn(move || worker.run());
            let looker = Arc::clone(&stream);
            let looker = thread::spawn(move || {
                let seen = looker.progress.completed();
                looker.progress.raise(seen);
            });
            let seen = stream.progress.completed();
            (1..=seen).for_each(|tick| stream.expect(tick));
            worker.join().expect("no panic");
            looker.join().expect("no panic");
        });
    }
}
