//! Explored schedules: the device's commands run one at a time, in an order that a policy picks.
//!
//! Nothing runs until somebody synchronises or much is queued. Then the explorer picks, again and again, one of the
//! streams whose next command may run, and runs it on the calling thread. Any order that it can pick is one that a
//! device with real concurrency could have chosen.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::barrier::Gate;
use crate::bytes::SendPtr;
use crate::core::Core;
use crate::fifo::{Fifo, Item};
use crate::within::Holds;
use crate::{Buffer, Moment, Result, SplitMix, Stream, StreamId, Use, mix};

/// Which of the commands that may run is run next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// Any of them, with equal chances.
    Random {
        /// Decides the order.
        seed: u64,
    },
    /// That of the stream with the highest priority; priorities are drawn, and the runner's is now and then lowered to
    /// the lowest. Finds bugs that need few preemptions at the right places (after Burckhardt et al., ASPLOS 2010).
    Priorities {
        /// Decides the order.
        seed: u64,
    },
    /// The one that was launched last.
    NewestFirst,
    /// The one that was launched first: the order of the program.
    #[default]
    OldestFirst,
    /// Any but those of one stream, counted in the order of creation, for as long as there are others.
    Starve {
        /// The stream that has to wait.
        stream: usize,
        /// Decides the order of the others.
        seed: u64,
    },
}

impl Policy {
    fn seed(self) -> Option<u64> {
        match self {
            Policy::Random { seed } | Policy::Priorities { seed } | Policy::Starve { seed, .. } => Some(seed),
            Policy::NewestFirst | Policy::OldestFirst => None,
        }
    }
}

/// A range of memory that a command reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The first byte's address.
    pub start: usize,
    /// The address after the last byte.
    pub end: usize,
    /// Whether it is written.
    pub write: bool,
}

/// A command that could have been run, or was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its stream, counted in the order of creation; the default stream is 0.
    pub stream: usize,
    /// Its number in the stream.
    pub tick: u64,
    /// The op that launched it.
    pub op: &'static str,
    /// What it uses.
    pub accesses: SmallVec<[Access; 4]>,
}

impl Candidate {
    /// Whether the order of the two can matter: one writes what the other uses, or both are of one stream.
    pub fn conflicts(&self, other: &Candidate) -> bool {
        let overlap = |a: &Access, b: &Access| (a.write || b.write) && a.start < b.end && b.start < a.end;
        self.stream == other.stream
            || self.accesses.iter().any(|a| other.accesses.iter().any(|b| overlap(a, b)))
    }
}

/// One decision of the explorer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What could be run, by stream.
    pub candidates: Vec<Candidate>,
    /// Which of them was.
    pub taken: usize,
}

pub(crate) struct Explorer {
    state: Mutex<State>,
    /// Decides the order of a replay's commands, as the policy does that of streams'; 0 for the program's.
    plan_order: AtomicU64,
    /// The device, for others whose streams wait for its own.
    pub(crate) core: OnceLock<Weak<Core>>,
}

#[derive(Default)]
struct State {
    policy: Policy,
    random: SplitMix,
    /// The first choices, as streams, before the policy decides.
    prefix: Arc<[usize]>,
    /// By creation; `None` once a stream was dropped and has run everything.
    fifos: Vec<Option<Arc<Fifo>>>,
    priorities: Vec<u64>,
    launched: u64,
    waits: usize,
    drop_wait: Option<usize>,
    queued: usize,
    choices: Vec<Choice>,
    /// Since when there is nothing to run but what waits for others.
    waiting: Option<Instant>,
}

/// How long a command that waits for others is put off where there is nothing else to run. It then waits for them by itself, which
/// keeps all others from running.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often to ask it meanwhile.
const NAP: Duration = Duration::from_micros(20);

/// Whether a command that waits for others is to run now.
pub(crate) type Ready = Arc<dyn Fn() -> bool + Send + Sync>;

/// More queued commands than this make room by running some.
const QUEUE_BOUND: usize = 4096;

/// What a command is in the queue of an explored stream, beside its work.
#[derive(Clone, Default)]
pub(crate) struct Explored {
    launched: u64,
    accesses: SmallVec<[Access; 4]>,
    /// Where it waits for others.
    ready: Option<Ready>,
}

/// A stream's next command, which could be run.
struct Runnable {
    fifo: Arc<Fifo>,
    launched: u64,
    /// Whether it need not wait for others.
    is_ready: bool,
    candidate: Candidate,
}

enum Next {
    Ran,
    /// Every stream that has work is behind this gate, or behind one that is.
    Held(Arc<Gate>),
    /// Every stream that has work waits, one of them for another device's stream.
    Foreign(Arc<Fifo>, u64),
    /// Every stream that has work waits for what others do.
    Later,
    Nothing,
}

impl Explorer {
    pub(crate) fn new(policy: Policy, prefix: Arc<[usize]>, drop_wait: Option<usize>) -> Self {
        Explorer {
            state: Mutex::new(State {
                policy,
                random: SplitMix(policy.seed().unwrap_or(0)),
                prefix,
                drop_wait,
                ..State::default()
            }),
            plan_order: AtomicU64::new(0),
            core: OnceLock::new(),
        }
    }

    pub(crate) fn adopt(&self, fifo: &Arc<Fifo>) {
        let mut state = self.state.lock();
        state.fifos.push(Some(Arc::clone(fifo)));
        let priority = state.random.next_bits();
        state.priorities.push(priority);
    }

    /// The seed of the order of the commands of the replay that runs now; `None` for the program's order.
    pub(crate) fn plan_order(&self) -> Option<u64> {
        Some(self.plan_order.load(Ordering::Relaxed)).filter(|&seed| seed != 0)
    }

    /// Counts a command that is about to be queued.
    pub(crate) fn launched(&self, accesses: SmallVec<[Access; 4]>, ready: Option<Ready>) -> Explored {
        let mut state = self.state.lock();
        state.launched += 1;
        state.queued += 1;
        Explored { launched: state.launched, accesses, ready }
    }

    /// Whether the next wait is kept, as all are but one that a test asked to leave out.
    pub(crate) fn keeps_wait(&self) -> bool {
        let mut state = self.state.lock();
        state.waits += 1;
        state.drop_wait != Some(state.waits - 1)
    }

    /// Runs commands while too many are queued.
    pub(crate) fn make_room(&self, core: &Core) {
        let mut state = self.state.lock();
        while state.queued > QUEUE_BOUND && matches!(state.step(core, PATIENCE), Next::Ran) {}
    }

    /// Runs commands until `done`, which will be: what there is nothing to run for now, somebody else brings about.
    pub(crate) fn run_until(&self, core: &Core, done: impl Fn() -> bool) {
        while !done() {
            if !self.advance(core, PATIENCE, &done) {
                std::thread::yield_now();
            }
        }
    }

    /// Runs one command, or waits for what keeps all of them, unless `done`; false if there is nothing to do.
    fn advance(&self, core: &Core, patience: Duration, done: &impl Fn() -> bool) -> bool {
        let next = {
            let mut state = self.state.lock();
            // Another thread may have run what was asked for.
            if done() { Next::Ran } else { state.step(core, patience) }
        };
        match next {
            Next::Ran => {}
            Next::Held(gate) => gate.pass(),
            // A driver that fails tells its own device.
            Next::Foreign(fifo, tick) => drop(fifo.reach("wait", core, tick)),
            Next::Later => std::thread::sleep(NAP),
            Next::Nothing => return false,
        }
        true
    }

    /// Runs everything that is left and forgets the streams. Nobody else uses the device any more.
    pub(crate) fn finish(&self, core: &Core) {
        while self.advance(core, Duration::ZERO, &|| false) {}
        self.state.lock().fifos.clear();
    }

    /// The decisions so far.
    pub(crate) fn choices(&self) -> Vec<Choice> {
        self.state.lock().choices.clone()
    }
}

impl State {
    /// Runs the command that the policy picks.
    fn step(&mut self, core: &Core, patience: Duration) -> Next {
        let mut found: SmallVec<[Runnable; 8]> = SmallVec::new();
        let (mut held, mut foreign) = (None, None);
        let known: SmallVec<[StreamId; 8]> = self.fifos.iter().flatten().map(|fifo| fifo.id).collect();
        for (stream, slot) in self.fifos.iter_mut().enumerate() {
            let Some(fifo) = slot else { continue };
            let mut head = None;
            let is_over = fifo.with_queue(|items, closed| {
                // A wait for what has run is over; it is nobody's choice.
                while let Some(Item::Wait { fifo, tick }) = items.front()
                    && fifo.completed() >= *tick
                {
                    items.pop_front();
                }
                match items.front() {
                    Some(Item::Gate { gate, .. }) if !gate.is_open() => held = Some(Arc::clone(gate)),
                    Some(Item::Wait { fifo, tick }) if !known.contains(&fifo.id) => {
                        foreign = Some((Arc::clone(fifo), *tick));
                    }
                    Some(Item::Gate { tick, .. }) => head = Some((*tick, "hold", Explored::default())),
                    Some(Item::Run { tick, op, explored: Some(explored), .. }) => {
                        head = Some((*tick, *op, explored.clone()));
                    }
                    _ => {}
                }
                closed && items.is_empty()
            });
            if let Some((tick, op, Explored { launched, accesses, ready })) = head {
                let is_ready = ready.is_none_or(|ready| ready());
                let candidate = Candidate { stream, tick, op, accesses };
                found.push(Runnable { fifo: Arc::clone(fifo), launched, is_ready, candidate });
            } else if is_over {
                *slot = None;
            }
        }
        if found.iter().any(|next| next.is_ready) {
            found.retain(|next| next.is_ready);
        } else if !found.is_empty() && self.waiting.get_or_insert_with(Instant::now).elapsed() < patience {
            return Next::Later;
        }
        self.waiting = None;
        if found.is_empty() {
            return match (held, foreign) {
                (Some(gate), _) => Next::Held(gate),
                (None, Some((fifo, tick))) => Next::Foreign(fifo, tick),
                (None, None) => Next::Nothing,
            };
        }
        let taken = self.pick(&found);
        let fifo = Arc::clone(&found[taken].fifo);
        let candidates = found.into_iter().map(|next| next.candidate).collect();
        self.choices.push(Choice { candidates, taken });
        match fifo.with_queue(|items, _| items.pop_front()) {
            Some(Item::Run { tick, op, work, .. }) => {
                self.queued -= 1;
                if let Some(explorer) = core.explorer() {
                    explorer.plan_order.store(self.plan_order(), Ordering::Relaxed);
                }
                fifo.run(core, op, tick, Holds::Launches, core.observers.recorder.is_on(), || work(core));
                // SAFETY: the command has run, completes below, and no other one runs meanwhile.
                unsafe { core.observers.ran(Moment { stream: fifo.id, tick }) };
                fifo.progress.complete(tick);
            }
            Some(Item::Gate { tick, .. }) => fifo.progress.complete(tick),
            Some(Item::Wait { .. }) | None => {}
        }
        Next::Ran
    }

    /// What decides the order of a replay that runs now. Draws none of the policy's random numbers.
    fn plan_order(&self) -> u64 {
        match self.policy.seed() {
            Some(seed) => mix(seed ^ (self.choices.len() as u64) << 32) | 1,
            None => u64::from(self.policy == Policy::NewestFirst),
        }
    }

    fn pick(&mut self, found: &[Runnable]) -> usize {
        let forced = self.prefix.get(self.choices.len());
        let stream = |at: usize| found[at].candidate.stream;
        let all = 0..found.len();
        if let Some(at) = forced.and_then(|&forced| all.clone().find(|&at| stream(at) == forced)) {
            return at;
        }
        let launched = |at: &usize| found[*at].launched;
        match self.policy {
            Policy::Random { .. } => self.random.below(found.len()),
            Policy::Priorities { .. } => {
                let priority = |at: &usize| self.priorities[stream(*at)];
                let at = all.max_by_key(priority).unwrap_or(0);
                if self.random.below(CHANGE_EVERY) == 0 {
                    let lowest = self.priorities.iter().min().copied().unwrap_or(0);
                    self.priorities[stream(at)] = lowest.saturating_sub(1);
                }
                at
            }
            Policy::NewestFirst => all.max_by_key(launched).unwrap_or(0),
            Policy::OldestFirst => all.min_by_key(launched).unwrap_or(0),
            Policy::Starve { stream: starved, .. } => {
                let others: SmallVec<[usize; 8]> = all.filter(|&at| stream(at) != starved).collect();
                if others.is_empty() { 0 } else { others[self.random.below(others.len())] }
            }
        }
    }
}

/// A runner's priority is lowered once in about this many commands.
const CHANGE_EVERY: usize = 16;

/// The op that fills fresh memory.
pub(crate) const POISON: &str = "poison";

impl Stream {
    /// Fills a fresh buffer with a pattern, on an explored device only: who reads it before writing it, or writes it
    /// while its block's last owner still reads, then gives another result.
    ///
    /// # Errors
    /// As for [`launch`](Stream::launch).
    #[inline]
    pub fn poison(&self, buffer: &Buffer) -> Result<()> {
        if self.fifo().explorer().is_none() || buffer.len_bytes() == 0 {
            return Ok(());
        }
        let (to, bytes) = (SendPtr(buffer.ptr()), buffer.len_bytes());
        // All ones are NaN as floats, and -1 as integers.
        // SAFETY: the range is the buffer's, and the launch orders the write among its uses.
        self.launch_host(POISON, &[Use::write(buffer)], move || unsafe { to.fill(0xff, bytes) })
    }
}

impl Fifo {
    /// Blocks for a call of the user's until the stream has run `tick`, which was given out before the call. The host has
    /// seen the tick afterwards.
    ///
    /// # Errors
    /// As for [`may_wait`](Self::may_wait).
    pub(crate) fn host_wait(&self, op: &'static str, core: &Core, tick: u64) -> Result<()> {
        self.may_wait(op, tick)?;
        self.reach(op, core, tick).unwrap_or_else(|error| core.fail(error));
        Ok(())
    }

    /// As [`host_wait`](Self::host_wait), where a failure of the driver must not count as the end of the wait.
    ///
    /// # Errors
    /// As for [`may_wait`](Self::may_wait); `Driver`.
    pub(crate) fn wait_or_fail(&self, op: &'static str, core: &Core, tick: u64) -> Result<()> {
        self.may_wait(op, tick)?;
        self.reach(op, core, tick)
    }

    /// Waits for the worker or the driver, or runs what the explorer picks. `core` is the caller's device, which need not be the
    /// stream's.
    fn reach(&self, op: &'static str, core: &Core, tick: u64) -> Result<()> {
        let Some(explorer) = self.explorer() else {
            return self.wait_until(tick).map_err(|error| error.met_by(op, self.id));
        };
        let own = explorer.core.get().and_then(Weak::upgrade);
        explorer.run_until(own.as_deref().unwrap_or(core), || self.completed() >= tick);
        self.seen.fetch_max(tick, Ordering::AcqRel);
        self.audit.passed(Moment { stream: self.id, tick });
        Ok(())
    }

    /// The newest tick that the host can see has passed. Of an explored stream, that is what somebody waited for: what
    /// the engine decides shall not depend on the order that the explorer picks.
    pub(crate) fn visible(&self) -> u64 {
        match self.explorer() {
            None => self.completed(),
            Some(_) => self.seen.load(Ordering::Acquire),
        }
    }
}
