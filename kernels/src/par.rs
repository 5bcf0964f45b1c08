//! Splitting one kernel over several threads.
//!
//! The parts are cut at fixed places, whatever the number of threads, so that a kernel whose result depends on the
//! parts (a sum, say) gives the same bits with one thread and with many.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};

use device::Stream;
use rayon::ThreadPool;

/// The threads that a kernel may use besides its own; `None` if splitting does not pay.
pub(crate) type Workers = Option<Arc<ThreadPool>>;

/// Costs below this are not worth the question.
const SMALL: usize = 1 << 14;

/// The threads for `elements` elements of `cost` elementary operations each.
#[inline]
pub(crate) fn workers(stream: &Stream, elements: usize, cost: usize) -> Workers {
    let total = elements.saturating_mul(cost);
    if total < SMALL { None } else { stream.parallelism(total) }
}

/// Calls `body(i, start..end)` for the parts `i` of `0..len`, each of `chunk` items but the last, which may be
/// shorter. Without workers the parts run in order, here; with workers they run in any order on several threads.
///
/// A panic in a part is raised here once all parts that were begun have ended.
pub(crate) fn for_chunks(
    workers: &Workers,
    len: usize,
    chunk: usize,
    body: &(dyn Fn(usize, Range<usize>) + Sync),
) {
    let chunk = chunk.max(1);
    let chunks = len.div_ceil(chunk);
    match workers {
        Some(pool) if chunks > 1 => Job::run(pool, Parts { len, chunk, chunks }, body),
        _ => Parts { len, chunk, chunks }.in_order(body),
    }
}

/// Calls `body(start..end)` on ranges that cover `0..len`: the whole range at once without workers. For work whose
/// result does not depend on where it is cut.
pub(crate) fn for_range(workers: &Workers, len: usize, chunk: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
    match workers {
        Some(_) => for_chunks(workers, len, chunk, &|_, range| body(range)),
        None => body(0..len),
    }
}

#[derive(Clone, Copy)]
struct Parts {
    len: usize,
    chunk: usize,
    chunks: usize,
}

impl Parts {
    fn range(&self, index: usize) -> Range<usize> {
        let start = index * self.chunk;
        start..self.len.min(start + self.chunk)
    }

    fn in_order(&self, body: &dyn Fn(usize, Range<usize>)) {
        for index in 0..self.chunks {
            body(index, self.range(index));
        }
    }
}

/// One split kernel. The launching thread takes parts like its helpers and waits for the parts that were begun, not
/// for helpers that come too late: a pool that is busy with another stream's kernel delays nobody.
struct Job {
    parts: Parts,
    // Borrowed from `run`, which returns only when no part is running and none is left to take.
    body: *const (dyn Fn(usize, Range<usize>) + Sync),
    next: AtomicUsize,
    done: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    owner: Thread,
}

// SAFETY: `body` is shared between threads only as `&(dyn Fn + Sync)`, while `run` keeps it alive.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    fn run(pool: &ThreadPool, parts: Parts, body: &(dyn Fn(usize, Range<usize>) + Sync)) {
        let body: *const (dyn Fn(usize, Range<usize>) + Sync + '_) = body;
        // SAFETY: only the lifetime changes. `take_parts` follows the pointer for a part that it took, and this
        // function does not return before all parts are taken and done.
        let body: *const (dyn Fn(usize, Range<usize>) + Sync + 'static) =
            unsafe { std::mem::transmute(body) };
        let job = Arc::new(Job {
            parts,
            body,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            panic: Mutex::new(None),
            owner: thread::current(),
        });
        // This thread takes parts, too.
        for _ in 0..(pool.current_num_threads() - 1).min(parts.chunks - 1) {
            let job = Arc::clone(&job);
            pool.spawn(move || job.take_parts());
        }
        job.take_parts();
        job.wait();
        let panic = job.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    fn take_parts(&self) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.parts.chunks {
                return;
            }
            // SAFETY: this part is not done, so `run` has not returned and its borrow is alive.
            let body = unsafe { &*self.body };
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| body(index, self.parts.range(index)))) {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
            }
            if self.done.fetch_add(1, Ordering::AcqRel) + 1 == self.parts.chunks {
                self.owner.unpark();
            }
        }
    }

    fn wait(&self) {
        const SPINS: usize = 2000;
        let mut spins = 0;
        while self.done.load(Ordering::Acquire) < self.parts.chunks {
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                thread::park();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    fn pool(threads: usize) -> Workers {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().ok().map(Arc::new)
    }

    #[test]
    fn every_part_runs_once_with_the_same_boundaries() {
        for workers in [None, pool(1), pool(3)] {
            for (len, chunk) in [(0, 4), (1, 4), (4, 4), (1001, 10), (1000, 1000)] {
                let counts: Vec<AtomicU32> = (0..len).map(|_| AtomicU32::new(0)).collect();
                for_chunks(&workers, len, chunk, &|index, range| {
                    assert_eq!(range, index * chunk..len.min(index * chunk + chunk));
                    range.for_each(|i| {
                        counts[i].fetch_add(1, Ordering::Relaxed);
                    });
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{len} by {chunk}");
            }
        }
    }

    #[test]
    fn a_panic_in_a_part_reaches_the_caller_after_the_others_ended() {
        let workers = pool(2);
        let ended = AtomicU32::new(0);
        let split = || {
            for_chunks(&workers, 64, 1, &|index, _| {
                assert_ne!(index, 5, "part five");
                ended.fetch_add(1, Ordering::Relaxed);
            });
        };
        let payload = catch_unwind(AssertUnwindSafe(split)).expect_err("part 5 panics");
        assert!(payload.downcast_ref::<String>().is_some_and(|text| text.contains("part five")));
        assert_eq!(ended.load(Ordering::Relaxed), 63);
    }

    #[test]
    fn a_busy_pool_delays_nobody() {
        let workers = pool(2);
        let (gate, held) = std::sync::mpsc::channel::<()>();
        let busy = workers.as_ref().expect("a pool");
        let held = Arc::new(Mutex::new(held));
        for _ in 0..2 {
            let held = Arc::clone(&held);
            busy.spawn(move || drop(held.lock().map(|held| held.recv())));
        }
        let sum = AtomicU32::new(0);
        for_chunks(&workers, 100, 1, &|_, range| {
            sum.fetch_add(range.len() as u32, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 100);
        drop(gate);
    }
}
