//! A replay on a CPU: each of the device's threads runs the commands that follow from what it ran, or else takes one of
//! another's, and helps the others' kernels where there is none.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use smallvec::SmallVec;

use super::node::Node;
use crate::recorder::Replayed;
use crate::writes::{TracePlace, WriteLog};
use crate::{Cpu, Error, Panicked, SpinLock, SplitMix, Team, failure};

/// For each thread that replays, the others as helpers of its kernels; made at a first replay.
pub(super) type Helpers = Vec<Arc<Team>>;

/// A captured step's commands, in the program's order.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) nodes: &'a [Node],
    /// Where the replay is recorded.
    pub(super) times: Option<&'a SpinLock<Vec<Replayed>>>,
    /// Where what the commands write is traced.
    pub(super) traced: Option<(&'a WriteLog, TracePlace)>,
}

impl Step<'_> {
    /// Runs the commands, each after what it needs, at most `widest` of them at once.
    ///
    /// The first failure that a command [reported](crate::failure) is reported again once all have ended.
    ///
    /// # Panics
    /// As the first command that did, once all have ended.
    pub(super) fn run(self, widest: usize, cpu: &Cpu<'_>, helpers: &mut Helpers) {
        report(match cpu.crew() {
            Some(team) if widest > 1 => self.together(team, helpers),
            // The program's order is one that the needs allow.
            _ => self.one_by_one(0..self.nodes.len(), cpu),
        });
    }

    /// Runs the commands one at a time, each after what it needs, in an order that `seed` picks.
    ///
    /// # Panics
    /// As [`run`](Self::run).
    pub(super) fn run_shuffled(self, seed: u64, cpu: &Cpu<'_>) {
        report(self.one_by_one(self.shuffled(seed), cpu));
    }

    fn shuffled(self, seed: u64) -> Vec<usize> {
        let mut random = SplitMix(seed);
        let nodes = self.nodes;
        let mut left: Vec<usize> = nodes.iter().map(|node| node.needs.len()).collect();
        let mut ready: Vec<usize> = (0..nodes.len()).filter(|&at| left[at] == 0).collect();
        let mut order = Vec::with_capacity(nodes.len());
        while !ready.is_empty() {
            let at = ready.swap_remove(random.below(ready.len()));
            order.push(at);
            for &next in &nodes[at].next {
                left[next as usize] -= 1;
                if left[next as usize] == 0 {
                    ready.push(next as usize);
                }
            }
        }
        order
    }

    /// Runs a command on one of the replay's threads.
    #[inline(always)]
    fn run_node(self, at: usize, thread: usize, cpu: &Cpu<'_>) -> Result<(), Failed> {
        let node = &self.nodes[at];
        let start = self.times.map(|times| (times, Instant::now()));
        let ran = Panicked::catch(|| node.work.run(cpu));
        if let Some((writes, replay)) = self.traced {
            // SAFETY: the command has run, and none that comes after it has begun.
            unsafe { writes.hash(replay, node.traced.iter().map(|traced| &traced.output)) };
        }
        let done = match failure::take() {
            Some(error) => Err(Failed::Reported(error)),
            None => ran.map_err(|panicked| Failed::Panicked(node.op, panicked)),
        };
        if let Some((times, start)) = start {
            let (command, thread, end) = (at as u32, thread as u32, Instant::now());
            times.lock().push(Replayed { op: node.op, command, thread, start, end });
        }
        done
    }

    /// Runs commands on this thread, in an order that the needs allow.
    fn one_by_one(self, order: impl IntoIterator<Item = usize>, cpu: &Cpu<'_>) -> First {
        let mut first = None;
        for at in order {
            if let Err(failed) = self.run_node(at, 0, cpu) {
                first.get_or_insert(failed);
            }
        }
        first
    }

    fn together(self, team: &Team, helpers: &mut Helpers) -> First {
        let nodes = self.nodes;
        let threads = team.helpers() + 1;
        helpers.resize_with(threads, || Arc::new(Team::of_visitors(threads - 1)));
        let mut starts: SmallVec<[u32; 16]> = SmallVec::new();
        for (at, node) in nodes.iter().enumerate() {
            node.left.store(node.needs.len() as u32, Ordering::Relaxed);
            if node.needs.is_empty() {
                starts.push(at as u32);
            }
        }
        // The longest ways begin on threads of their own.
        starts.sort_by_key(|&at| std::cmp::Reverse(nodes[at as usize].urgency));
        let crew = Crew {
            step: self,
            ready: (0..threads).map(|_| Ready::new()).collect(),
            left: AtomicUsize::new(nodes.len()),
            helpers,
            first: SpinLock::new(None),
        };
        starts.iter().enumerate().for_each(|(at, &start)| crew.ready[at % threads].push(start, nodes));
        // Who comes late takes what is left; where the team is at work for somebody else, this thread does all.
        team.share(threads - 1, &|thread| crew.work(thread));
        crew.first.into_inner()
    }
}

/// How a command failed: what it reported, or the panic of an op.
enum Failed {
    Reported(Error),
    Panicked(&'static str, Panicked),
}

type First = Option<Failed>;

fn report(first: First) {
    match first {
        Some(Failed::Reported(error)) => failure::report(error),
        Some(Failed::Panicked(op, panicked)) => {
            std::panic::resume_unwind(Box::new(format!("{op}: {}", panicked.message)))
        }
        None => {}
    }
}

/// What the threads share.
struct Crew<'a> {
    step: Step<'a>,
    /// For each thread, commands that may run and follow from what it ran: their operands are close to its core.
    ready: SmallVec<[Ready; 4]>,
    /// How many have not run.
    left: AtomicUsize,
    helpers: &'a [Arc<Team>],
    first: SpinLock<First>,
}

/// Commands that may run.
#[repr(align(64))]
struct Ready {
    /// By urgency, and the earliest in the program first.
    list: SpinLock<BinaryHeap<(u64, Reverse<u32>)>>,
    /// How many there are, for a look without the lock.
    count: AtomicUsize,
}

impl Ready {
    fn new() -> Ready {
        Ready { list: SpinLock::new(BinaryHeap::new()), count: AtomicUsize::new(0) }
    }

    fn push(&self, node: u32, nodes: &[Node]) {
        let mut list = self.list.lock();
        list.push((nodes[node as usize].urgency, Reverse(node)));
        self.count.store(list.len(), Ordering::Relaxed);
    }

    /// The most urgent one.
    fn take(&self) -> Option<u32> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut list = self.list.lock();
        let (_, Reverse(node)) = list.pop()?;
        self.count.store(list.len(), Ordering::Relaxed);
        Some(node)
    }
}

/// How often to look for work before the core is offered to others.
const LOOKS: u32 = 256;

impl Crew<'_> {
    fn work(&self, thread: usize) {
        let cpu = Cpu::of_crew(&self.helpers[thread]);
        let (mut next, mut looks) = (None, 0u32);
        while self.left.load(Ordering::Acquire) > 0 {
            if let Some(node) = next.take().or_else(|| self.take(thread)) {
                next = self.run(node, thread, &cpu);
            } else if !self.assist(thread) {
                looks += 1;
                // Who it waits for may wait for this very core.
                if looks.is_multiple_of(LOOKS) { std::thread::yield_now() } else { std::hint::spin_loop() }
            }
        }
    }

    /// The most urgent command that may run: of the thread's own, or else of the others'.
    fn take(&self, thread: usize) -> Option<u32> {
        let (before, from) = self.ready.split_at(thread);
        from.iter().chain(before).find_map(Ready::take)
    }

    /// Runs a command. Gives the most urgent of those that may run now because of it, and keeps the others.
    fn run(&self, node: u32, thread: usize, cpu: &Cpu<'_>) -> Option<u32> {
        let nodes = self.step.nodes;
        if let Err(failed) = self.step.run_node(node as usize, thread, cpu) {
            self.first.lock().get_or_insert(failed);
        }
        let mut own: Option<u32> = None;
        for &next in &nodes[node as usize].next {
            // Comes after all that it needs, whoever ran that.
            if nodes[next as usize].left.fetch_sub(1, Ordering::AcqRel) != 1 {
                continue;
            }
            let urgency = |at: u32| nodes[at as usize].urgency;
            let other = match own {
                Some(known) if urgency(known) >= urgency(next) => next,
                _ => match own.replace(next) {
                    Some(other) => other,
                    None => continue,
                },
            };
            self.ready[thread].push(other, nodes);
        }
        self.left.fetch_sub(1, Ordering::AcqRel);
        own
    }

    /// Does a part of another thread's kernel, if one is offered.
    fn assist(&self, thread: usize) -> bool {
        let others = self.helpers.iter().enumerate().filter(|(other, _)| *other != thread);
        others.into_iter().any(|(other, team)| team.assist(if thread < other { thread } else { thread - 1 }))
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests;
