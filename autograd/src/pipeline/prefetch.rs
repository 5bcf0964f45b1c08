//! Items that are made ahead of who takes them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use device::{AtCaller, HandOff, Placement, StreamOptions, Thread, fork};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tensor::{Device, Error, Result, Stream, next_child};

use super::around::{Around, failed};
use super::measured::Trial;
use super::stages::{MOST_DEPTH, PipelineSchedule};

/// The least number of items that are timed together, and the least milliseconds that they take.
const BLOCK: usize = 4;
const BLOCK_MS: f64 = if cfg!(test) { 0.0 } else { 4.0 };

/// The items of an iterator, made ahead on a thread and a stream of its own: while a step runs, the next batch is read,
/// put together and uploaded.
///
/// Items come in the iterator's order and with its bits, whoever makes them: random ops draw from a generator of the item,
/// which follows from the thread's without a draw from that one, and are under the [`no_grad`](crate::no_grad) and the [`autocast`](crate::autocast) that the prefetch was made under. What
/// its stream writes is used without a word about waits. An error takes its place in the order, and so does a panic, which is
/// `Stage` and the last item. Dropping a prefetch ends its thread once that has made the item it is at.
///
/// At first items are made by turns ahead and when they are asked for, and the time from item to item is taken. Where the
/// thread gains less than the noise, the iterator is asked by who takes the items from then on, and the thread sleeps;
/// [`report`](Self::report) says so.
///
/// ```
/// use autograd::{Device, Prefetch, Tensor};
/// # fn main() -> autograd::Result<()> {
/// let dev = Device::cpu();
/// let on = dev.clone();
/// let batches = (0..3).map(move |n| Tensor::from_slice(&[n as f32, 1.0], &[2], &on));
/// let mut sum = 0.0;
/// for batch in Prefetch::new(&dev, batches)? {
///     sum += batch?.sum(&[], false)?.item::<f32>()?;
/// }
/// assert_eq!(sum, 6.0);
/// # Ok(())
/// # }
/// ```
pub struct Prefetch<T> {
    device: Device,
    producers: Vec<Arc<Shared<T>>>,
    /// Those that ask the iterators ahead. Waited for when they drop.
    threads: Vec<Thread>,
    /// The number of the next item, which the line takes that is as far along the list.
    next: usize,
    /// While it is not decided who asks the iterators.
    blocks: Option<Blocks>,
    report: PrefetchReport,
}

/// Options of a [`Prefetch`].
#[derive(Clone, Copy, Debug)]
pub struct PrefetchOptions {
    /// Items that may wait, those of all threads together, but at least one for each.
    pub depth: usize,
    /// Whether items are made by who takes them (`Serial`), on threads (`Stages`), or by whom it is faster.
    pub schedule: PipelineSchedule,
}

impl Default for PrefetchOptions {
    fn default() -> Self {
        PrefetchOptions { depth: 2, schedule: PipelineSchedule::Measured }
    }
}

/// Who makes the items of a [`Prefetch`], and what was measured.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct PrefetchReport {
    /// Threads that make items; 0 if who takes them does.
    pub threads: usize,
    /// Milliseconds from item to item if who takes them makes them, if that was measured.
    pub serial_ms: Option<f64>,
    /// Milliseconds from item to item if threads make them, if that was measured.
    pub concurrent_ms: Option<f64>,
}

impl fmt::Display for PrefetchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(serial), Some(concurrent)) = (self.serial_ms, self.concurrent_ms) {
            write!(f, "an item takes {serial:.3} ms made when it is asked for, {concurrent:.3} ms ahead: ")?;
        }
        match self.threads {
            0 => f.write_str("made when they are asked for"),
            1 => f.write_str("made ahead on a thread"),
            threads => write!(f, "made ahead on {threads} threads"),
        }
    }
}

#[derive::located]
impl<T: Send + 'static> Prefetch<T> {
    /// The items of `items`, at most two ahead; see [`PrefetchOptions`]. What they launch on `device` goes to a stream of
    /// the prefetch's own.
    ///
    /// # Errors
    /// `Io` if the system gives no thread.
    pub fn new<I>(device: &Device, items: I) -> Result<Self>
    where
        I: IntoIterator<Item = Result<T>>,
        I::IntoIter: Send + 'static,
    {
        Prefetch::interleaved(device, [items], PrefetchOptions::default())
    }

    /// The items of several iterators by turns, the first of each, then the second, until one has none left: each iterator
    /// has a thread and a stream.
    ///
    /// # Errors
    /// `InvalidArgument` for no iterators and for a depth of 0 or more than 1024; `Io` if the system gives
    /// no thread.
    pub fn interleaved<I>(
        device: &Device,
        sources: impl IntoIterator<Item = I>,
        options: PrefetchOptions,
    ) -> Result<Self>
    where
        I: IntoIterator<Item = Result<T>>,
        I::IntoIter: Send + 'static,
    {
        const OP: &str = "Prefetch::interleaved";
        let PrefetchOptions { depth, schedule } = options;
        Error::require((1..=MOST_DEPTH).contains(&depth), OP, "depth", "1 to 1024", depth)?;
        let sources: Vec<I> = sources.into_iter().collect();
        let count = sources.len();
        Error::require(count > 0, OP, "sources", "at least one", 0)?;
        // A draw would change the random numbers of what the caller does next.
        let around = Arc::new(Around::new(next_child()));
        let (is_ahead, each) = (schedule == PipelineSchedule::Stages, depth.div_ceil(count));
        let line = |(first, items): (usize, I)| {
            let options = StreamOptions { placement: Placement::Caller, ..StreamOptions::default() };
            let source = Source {
                items: Box::new(items.into_iter()),
                number: first,
                step: count,
                stream: device.new_stream_with(options)?,
                around: Arc::clone(&around),
            };
            Ok(Shared::new(source, each, is_ahead))
        };
        let mut prefetch = Prefetch {
            device: device.clone(),
            producers: sources.into_iter().enumerate().map(line).collect::<Result<_>>()?,
            threads: Vec::new(),
            next: 0,
            blocks: (schedule == PipelineSchedule::Measured).then(|| Blocks {
                trial: Trial::new(1, 1, 3),
                count: 0,
                settle: count * each + 2,
                since: Instant::now(),
            }),
            report: PrefetchReport { threads: if is_ahead { count } else { 0 }, ..PrefetchReport::default() },
        };
        if schedule != PipelineSchedule::Serial {
            for producer in &prefetch.producers {
                let own = Arc::clone(producer);
                prefetch.threads.push(Thread::new("prefetch", move || own.serve())?);
            }
        }
        Ok(prefetch)
    }

    /// Who makes the items now, and what was measured to decide that.
    pub fn report(&self) -> PrefetchReport {
        self.report
    }

    /// Takes the time at which an item came, and decides once there were enough.
    fn came(&mut self) {
        let Some(blocks) = &mut self.blocks else { return };
        blocks.count += 1;
        if blocks.count == blocks.settle {
            blocks.since = Instant::now();
        }
        let ms = blocks.since.elapsed().as_secs_f64() * 1e3;
        if blocks.count < blocks.settle + BLOCK || ms < BLOCK_MS {
            return;
        }
        let trial = &mut blocks.trial;
        trial.add(trial.several(), ms / (blocks.count - blocks.settle) as f64);
        blocks.count = 0;
        let is_ahead = trial.several();
        [self.report.serial_ms, self.report.concurrent_ms] = trial.medians();
        self.blocks.take_if(|blocks| blocks.trial.pays.is_some());
        self.report.threads = if is_ahead { self.producers.len() } else { 0 };
        self.producers.iter().for_each(|line| line.change(|state| state.is_ahead = is_ahead));
    }
}

impl<T: Send + 'static> Iterator for Prefetch<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        let Made { item, from, is_last } = self.producers[self.next % self.producers.len()].take()?;
        self.device.take_over(from);
        // Nothing follows a panic: its producer has no more items.
        self.next += usize::from(!is_last);
        self.came();
        Some(item)
    }
}

impl<T> Drop for Prefetch<T> {
    fn drop(&mut self) {
        // All are told before any is waited for.
        self.producers.iter().for_each(|line| line.change(|state| state.is_ended = true));
    }
}

impl<T> fmt::Debug for Prefetch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefetch").field("next", &self.next).field("report", &self.report).finish()
    }
}

/// An iterator, which its consumer or a thread asks.
struct Shared<T> {
    state: Mutex<State<T>>,
    /// What the thread waits for: that it may ask, or is to end. It is not told of items that are taken while it may not, since
    /// waking it costs more than a small item.
    room: Condvar,
    /// What the taker waits for.
    made: Condvar,
}

struct State<T> {
    /// In order.
    ready: VecDeque<Made<T>>,
    /// Items that may be ready.
    depth: usize,
    /// `None` while somebody asks it, and once there are no more items.
    source: Option<Source<T>>,
    /// Whether there are no more items.
    is_over: bool,
    /// Whether the thread asks the source, before anybody takes the item.
    is_ahead: bool,
    /// Whether the thread is to end.
    is_ended: bool,
}

impl<T> Shared<T> {
    fn new(source: Source<T>, depth: usize, is_ahead: bool) -> Arc<Shared<T>> {
        let (ready, source) = (VecDeque::with_capacity(depth + 1), Some(source));
        let state = State { ready, depth, source, is_over: false, is_ahead, is_ended: false };
        Arc::new(Shared { state: Mutex::new(state), room: Condvar::new(), made: Condvar::new() })
    }

    fn change(&self, change: impl FnOnce(&mut State<T>)) {
        change(&mut self.state.lock());
        self.room.notify_one();
    }

    /// The next item: one that is ready, or that the thread is at, or else made here.
    fn take(&self) -> Option<Made<T>> {
        let mut state = self.state.lock();
        loop {
            if let Some(item) = state.ready.pop_front() {
                // The thread is woken for several items rather than for each.
                if state.is_ahead && state.ready.len() <= state.depth / 2 {
                    self.room.notify_one();
                }
                return Some(item);
            }
            if state.is_over {
                return None;
            }
            match if state.is_ahead { None } else { state.source.take() } {
                Some(source) => self.ask(&mut state, source, false),
                None => match fork::check("prefetch") {
                    Ok(()) => self.made.wait(&mut state),
                    // The thread that would make it is the parent's.
                    Err(error) => {
                        state.is_over = true;
                        return Some(Made { item: Err(error), from: None, is_last: true });
                    }
                },
            }
        }
    }

    /// Keeps items ready, for as long as that is asked for.
    fn serve(&self) {
        let mut state = self.state.lock();
        while !(state.is_ended || state.is_over) {
            let has_room = state.is_ahead && state.ready.len() < state.depth;
            match if has_room { state.source.take() } else { None } {
                Some(source) => {
                    self.ask(&mut state, source, true);
                    self.made.notify_one();
                }
                None => self.room.wait(&mut state),
            }
        }
    }

    /// Asks the source for an item, and lets go of the lock meanwhile.
    fn ask(&self, state: &mut MutexGuard<'_, State<T>>, source: Source<T>, is_ahead: bool) {
        let (item, source) = MutexGuard::unlocked(state, || source.asked(is_ahead));
        state.ready.extend(item);
        state.is_over = source.is_none();
        state.source = source;
    }
}

/// An item, or what asking for it failed with.
struct Made<T> {
    item: Result<T>,
    /// What a profile makes of who made it.
    from: Option<HandOff>,
    /// Whether it is a panic, after which there are no more items.
    is_last: bool,
}

/// An iterator, with what it is asked under.
struct Source<T> {
    items: Box<dyn Iterator<Item = Result<T>> + Send>,
    /// The number of the next item among those of all sources, and how far it is to the one after.
    number: usize,
    step: usize,
    stream: Stream,
    around: Arc<Around>,
}

impl<T> Source<T> {
    /// The next item, and the source if there may be more. If its consumer makes it, a device that runs on the host makes it on the
    /// consumer's stream, where it runs at once; on other devices it is made on the source's stream, beside the consumer's.
    fn asked(mut self, is_ahead: bool) -> (Option<Made<T>>, Option<Source<T>>) {
        let stream = self.stream.clone();
        let beside = is_ahead || !stream.device().runs_on_host();
        let made = if beside { stream.scope(|| self.next()) } else { self.next() };
        let goes_on = made.as_ref().is_some_and(|made| !made.is_last);
        (made, goes_on.then_some(self))
    }

    fn next(&mut self) -> Option<Made<T>> {
        let Source { items, number, stream, around, step } = self;
        let _at = AtCaller::enter_at(around.caller);
        let ask = || AtCaller::user(|| items.next());
        let ask = || around.lane.scope("item", *number, || stream.device().range("prefetch", ask));
        let asked = around.run(around.generator(*number), ask);
        let (item, is_last) = match asked {
            Ok(item) => (item?, false),
            Err(panicked) => (Err(failed("prefetch", *number, panicked)), true),
        };
        *number += *step;
        Some(Made { item, from: stream.device().hand_off(), is_last })
    }
}

/// Items that are timed together, in turn without and with the threads.
struct Blocks {
    trial: Trial,
    /// Items since the last turn, and how many are passed over: those that were made before it, and what comes first.
    count: usize,
    settle: usize,
    since: Instant,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
