//! Splitting one kernel over several threads.
//!
//! The parts are cut at fixed places, whatever the number of threads, so that a kernel whose result depends on the
//! parts (a sum, say) gives the same bits with one thread and with many.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use device::{Cpu, Error, Panicked, Team, failure};
use smallvec::SmallVec;

/// The threads that a kernel may use besides its own; `None` if splitting does not pay.
pub(crate) type Workers = Option<Arc<Team>>;

/// Costs below this are not worth the question.
const SMALL: usize = 1 << 14;

/// The threads for work of about `cost` elementary operations.
#[inline]
pub(crate) fn workers(cpu: &Cpu<'_>, cost: usize) -> Workers {
    if cost < SMALL { None } else { cpu.team(cost).cloned() }
}

/// How many threads that makes.
pub(crate) fn threads(workers: &Workers) -> usize {
    workers.as_ref().map_or(1, |team| team.helpers() + 1)
}

/// Calls `body(i, start..end)` for the parts `i` of `0..len`, each of `chunk` items but the last, which may be
/// shorter. Without workers the parts run in order, here; with workers they run in any order on several threads.
///
/// A panic in a part is raised here once all parts that were begun have ended. Of the failures that parts
/// [report](device::failure), that of the first part is reported here.
pub(crate) fn for_chunks(
    workers: &Workers,
    len: usize,
    chunk: usize,
    body: &(dyn Fn(usize, Range<usize>) + Sync),
) {
    let chunk = chunk.max(1);
    let chunks = len.div_ceil(chunk);
    match workers {
        Some(team) if chunks > 1 => share(team, Parts { len, chunk, chunks }, body),
        _ => (0..chunks).for_each(|index| body(index, Parts { len, chunk, chunks }.range(index))),
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
}

/// Takes parts on this thread and on the helpers that come while there are some left. Each begins with a range of its own,
/// the same for kernels of equal shapes, so that it finds in its cache what it wrote last, and then helps the others.
fn share(team: &Team, parts: Parts, body: &(dyn Fn(usize, Range<usize>) + Sync)) {
    let threads = parts.chunks.min(team.helpers() + 1);
    let start = |thread: usize| parts.chunks * thread / threads;
    let next: SmallVec<[AtomicUsize; 16]> =
        (0..threads).map(|thread| AtomicUsize::new(start(thread))).collect();
    let (panic, reported) = (Mutex::new(None), Mutex::new(None));
    let take_parts = |own: usize| {
        for thread in (own..threads).chain(0..own) {
            loop {
                let index = next[thread].fetch_add(1, Ordering::Relaxed);
                if index >= start(thread + 1) {
                    break;
                }
                if let Err(panicked) = Panicked::catch(|| body(index, parts.range(index))) {
                    panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panicked);
                }
                if let Some(error) = failure::take() {
                    keep_first(&reported, index, error);
                }
            }
        }
    };
    // The parts' panics are caught above.
    let _ = team.share(threads - 1, &take_parts);
    if let Some((_, error)) = reported.into_inner().unwrap_or_else(PoisonError::into_inner) {
        failure::report(error);
    }
    if let Some(panicked) = panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
        std::panic::resume_unwind(Box::new(String::from(panicked.message)));
    }
}

type Reported = Option<(usize, Error)>;

/// Keeps the failure of the part with the lowest number, which does not depend on the threads.
#[cold]
fn keep_first(reported: &Mutex<Reported>, index: usize, error: Error) {
    let mut first = reported.lock().unwrap_or_else(PoisonError::into_inner);
    if first.as_ref().is_none_or(|(known, _)| index < *known) {
        *first = Some((index, error));
    }
}

#[cfg(test)]
mod tests;
