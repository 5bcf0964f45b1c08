//! Executables: plans with memory, ready to be replayed.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::capture::Capture;
use super::check::PlannedCommand;
use super::commands::{StepCommand, StepMemory};
use super::crew;
use super::memory::users;
use super::node::{Node, cost};
use super::plan::{GraphOptions, Layout, Plan, PlanReport};
use crate::core::Observers;
use crate::cuda::{DriverGraph, Queue};
use crate::within::may_wait;
use crate::writes::{CapturedCommand, TracePlace};
use crate::{Binder, Buffer, Cpu, Device, Error, Result, Shared, SpinLock, Stream, Use, Work};

/// The op of a replay in errors, profiles and audits.
const OP: &str = "replay";

/// A plan with memory: what [`replay`](Executable::replay) runs. It holds its memory, and the buffers that the step found.
pub struct Executable {
    device: Device,
    report: PlanReport,
    /// The buffers that a replay uses: those that the step found, and last its own memory.
    used: Mutex<Vec<Used>>,
    nodes: Mutex<Nodes>,
    planned: Vec<PlannedCommand>,
    /// The commands as they were captured, if writes were traced.
    captured: Vec<CapturedCommand>,
    /// Whether one of the commands may wait for something else than the device.
    waits: bool,
    /// Whether an order is picked by a seed, and twice that.
    shuffle: AtomicU64,
}

/// A buffer that a replay uses.
struct Used {
    buffer: Shared<Buffer>,
    write: bool,
    /// Whether all replays use this very buffer, as some command cannot be given another address.
    stays: bool,
}

/// Where the commands that use a buffer find it.
struct Bound {
    at: usize,
    bytes: usize,
    /// None for the step's own memory, which stays.
    commands: SmallVec<[usize; 4]>,
}

/// The commands, in the program's order.
struct Nodes {
    nodes: Vec<Node>,
    /// For each buffer that is used, where it is.
    bound: Vec<Bound>,
    /// The commands that were bound anew since the last replay.
    changed: Vec<usize>,
    /// On a CPU with several threads.
    helpers: crew::Helpers,
    /// On a CUDA device.
    graph: Option<DriverGraph>,
    ignored: Option<(usize, usize)>,
}

/// Commands whose scalars may change before they run again.
pub struct Kept<'a>(&'a mut Nodes);

impl Kept<'_> {
    /// Shows `change` the scalars of the command with this number; it says of each whether it is another one now.
    pub fn scalars(&mut self, command: usize, change: &mut dyn FnMut(&mut dyn Any) -> bool) {
        let Some(node) = self.0.nodes.get_mut(command) else { return };
        let mut changed = false;
        node.work.bind(&mut Scalars(&mut |value| changed |= change(value)));
        if changed {
            self.0.changed.push(command);
        }
    }
}

impl Nodes {
    /// Removes this edge, if there is one, and puts back the one before.
    fn ignore(&mut self, edge: Option<(usize, usize)>) {
        if let Some((earlier, later)) = self.ignored.take() {
            self.nodes[earlier].next.push(later as u32);
            self.nodes[later].needs.push(earlier as u32);
        }
        let has = |&(earlier, later): &(usize, usize)| {
            self.nodes.get(later).is_some_and(|node| node.needs.iter().any(|&need| need as usize == earlier))
        };
        self.ignored = edge.filter(has);
        if let Some((earlier, later)) = self.ignored {
            self.nodes[earlier].next.retain(|next| *next != later as u32);
            self.nodes[later].needs.retain(|need| *need != earlier as u32);
        }
    }

    fn bind(&mut self, command: usize, binder: &mut dyn Binder) {
        if let Some(node) = self.nodes.get_mut(command) {
            node.bind(binder);
            self.changed.push(command);
        }
    }
}

/// Leaves addresses alone.
struct Scalars<'a>(&'a mut dyn FnMut(&mut dyn Any));

impl Binder for Scalars<'_> {
    fn address(&mut self, at: *mut u8) -> *mut u8 {
        at
    }

    fn scalar(&mut self, value: &mut dyn Any) {
        (self.0)(value);
    }
}

impl Plan {
    /// Shows `visit` every scalar that may change from step to step, with the number of its command.
    pub fn scalars(&mut self, visit: &mut dyn FnMut(usize, &mut dyn Any)) {
        for (at, command) in self.commands.iter_mut().enumerate() {
            command.work.bind(&mut Scalars(&mut |value| visit(at, value)));
        }
    }

    /// The buffers that were there before the step and that it uses: what it reads, and the state that it changes.
    pub fn found(&self) -> impl Iterator<Item = &Buffer> {
        self.memories.iter().filter_map(|memory| match memory {
            StepMemory::Found(buffer) => Some(&**buffer),
            StepMemory::Planned { .. } => None,
        })
    }

    /// Gives the plan memory by `allocate`, which is told how many bytes, and makes it ready.
    ///
    /// # Errors
    /// Those of `allocate`, and of the device's driver; `InvalidArgument` for a buffer of `allocate` that is smaller or
    /// that the step uses already, `DeviceMismatch` for one of another device.
    pub fn instantiate(
        mut self,
        options: GraphOptions,
        allocate: impl FnOnce(usize) -> Result<Shared<Buffer>>,
    ) -> Result<Executable> {
        self.has_room()?;
        let layout = self.layout(options);
        let report = self.report(&layout);
        let arena = if layout.bytes > 0 { Some(allocate(layout.bytes)?) } else { None };
        if let Some(arena) = &arena {
            self.takes("instantiate", layout.bytes, arena, &mut self.in_use())?;
        }
        let base = arena.as_deref().map_or(0, |arena| arena.ptr().expose_provenance());
        let mut moved = Moved::planned(&self, &layout, base);
        let planned = self.planned(&layout, base);
        let (used, bound) = self.used(arena);
        let (device, captured) = (self.device.clone(), std::mem::take(&mut self.captured));
        let nodes = self.nodes(layout, &mut moved);
        let waits = nodes.iter().any(|node| node.work.waits());
        let driver = device.core().default.driver_stream();
        let graph = driver.map(|driver| driver.graph(device.core(), &nodes)).transpose()?;
        let (changed, helpers) = (Vec::new(), Vec::new());
        let nodes = Mutex::new(Nodes { nodes, bound, changed, helpers, graph, ignored: None });
        let (used, shuffle) = (Mutex::new(used), AtomicU64::new(0));
        Ok(Executable { device, report, used, nodes, planned, captured, waits, shuffle })
    }

    /// The buffers that a replay uses, and where commands find them.
    fn used(&self, arena: Option<Shared<Buffer>>) -> (Vec<Used>, Vec<Bound>) {
        let found =
            self.memories.iter().zip(users(self)).enumerate().filter_map(|(number, (memory, users))| {
                let StepMemory::Found(buffer) = memory else { return None };
                let write = users.iter().any(|&at| self.commands[at].uses.contains(&(number, true)));
                Some((Used { buffer: buffer.clone(), write, stays: self.staying.contains(&number) }, users))
            });
        let arena = arena.map(|buffer| (Used { buffer, write: true, stays: true }, SmallVec::new()));
        let bound = |(used, commands): (Used, SmallVec<[usize; 4]>)| {
            let (at, bytes) = (used.buffer.ptr().expose_provenance(), used.buffer.len_bytes());
            (used, Bound { at, bytes, commands })
        };
        found.chain(arena).map(bound).unzip()
    }

    /// The commands with the addresses that they get.
    fn planned(&self, layout: &Layout, base: usize) -> Vec<PlannedCommand> {
        let place = |&(memory, write): &(usize, bool)| {
            let known = &self.memories[memory];
            let start = layout.offsets[memory].map_or_else(|| known.at(), |offset| base + offset);
            (start..start + known.bytes(), write)
        };
        let planned = |(command, needs): (&StepCommand, &SmallVec<[u32; 4]>)| PlannedCommand {
            op: command.op,
            stream: command.stream,
            needs: needs.iter().map(|&need| need as usize).collect(),
            uses: command.uses.iter().map(place).collect(),
            cost: command.work.cost(),
        };
        self.commands.iter().zip(&layout.needs).map(planned).collect()
    }

    fn nodes(self, layout: Layout, moved: &mut Moved) -> Vec<Node> {
        let mut nodes: Vec<Node> = Vec::with_capacity(self.commands.len());
        for (at, (mut command, needs)) in self.commands.into_iter().zip(layout.needs).enumerate() {
            command.bind(moved);
            for &need in &needs {
                nodes[need as usize].next.push(at as u32);
            }
            let left = AtomicU32::new(needs.len() as u32);
            let (urgency, next) = (0, SmallVec::new());
            let StepCommand { op, work, traced, .. } = command;
            nodes.push(Node { op, work, needs, next, left, urgency, traced });
        }
        for at in (0..nodes.len()).rev() {
            let after = nodes[at].next.iter().map(|&next| nodes[next as usize].urgency).max().unwrap_or(0);
            nodes[at].urgency = after.saturating_add(cost(&*nodes[at].work) as u64);
        }
        nodes
    }
}

/// Gives memory another place.
#[derive(Default)]
pub(super) struct Moved {
    /// From where to where memory lies, and where it will start, in the order of the first.
    places: Vec<(usize, usize, usize)>,
}

impl Moved {
    /// What the plan allocates, as it is laid out from `base` on.
    fn planned(plan: &Plan, layout: &Layout, base: usize) -> Moved {
        let place = |(memory, offset): (&StepMemory, &Option<usize>)| {
            Some((memory.at(), memory.at() + memory.bytes(), base + (*offset)?))
        };
        Moved { places: plan.memories.iter().zip(&layout.offsets).filter_map(place).collect() }
    }

    /// Moves `bytes` bytes from one address to another. What is added later lies behind.
    pub(super) fn add(&mut self, from: usize, bytes: usize, to: usize) {
        self.places.push((from, from + bytes, to));
    }
}

impl Binder for Moved {
    fn address(&mut self, at: *mut u8) -> *mut u8 {
        let index = self.places.partition_point(|(from, ..)| *from <= at.addr());
        match index.checked_sub(1).map(|index| self.places[index]) {
            Some((from, end, to)) if at.addr() < end => {
                std::ptr::with_exposed_provenance_mut(to + (at.addr() - from))
            }
            _ => at,
        }
    }

    fn scalar(&mut self, _: &mut dyn Any) {}
}

impl Executable {
    /// What was planned.
    pub fn report(&self) -> PlanReport {
        self.report
    }

    /// The commands in the program's order, as they were planned.
    pub fn commands(&self) -> Vec<PlannedCommand> {
        self.planned.clone()
    }

    /// Has later replays on a CPU run one command at a time in an order that the edges allow and `seed` picks; `None` for the
    /// device's own way. For tests.
    #[doc(hidden)]
    pub fn shuffle(&self, seed: Option<u64>) {
        self.shuffle.store(seed.map_or(0, |seed| seed.wrapping_mul(2) | 1), Ordering::Relaxed);
    }

    /// Has later replays on a CPU ignore an edge, (earlier, later), until the next call. They run one command at a time, so an
    /// edge that is missing changes values and nothing else. For tests.
    #[doc(hidden)]
    pub fn ignore(&self, edge: Option<(usize, usize)>) {
        self.nodes.lock().ignore(edge);
    }

    /// Runs the commands on `stream`, as one command of it: after whatever used what they use, on whatever stream. From now on
    /// they use the second buffer of each pair in `replaced` instead of the first. `prepare` may change their scalars; it is
    /// called before they run, and after all earlier replays were given to the device.
    ///
    /// # Errors
    /// As for [`Stream::launch`]; `DeviceMismatch` for a stream of another device; `Captured` within a
    /// captured step, `Deadlock` within a command; `InvalidArgument` for a buffer that cannot be replaced, is
    /// named twice, or is smaller than the one it replaces. Nothing is replaced then.
    #[track_caller]
    pub fn replay(
        self: &Arc<Self>,
        stream: &Stream,
        replaced: &[(Shared<Buffer>, Shared<Buffer>)],
        prepare: impl FnOnce(&mut Kept<'_>) + Send + 'static,
    ) -> Result<()> {
        Error::require_same_device(OP, "stream", &self.device, stream.device())?;
        Capture::none(OP)?;
        // A replay that this thread prepares holds the lock.
        may_wait(OP)?;
        let mut all = self.used.lock();
        let found: FxHashMap<usize, bool> = match replaced {
            [] => FxHashMap::default(),
            _ => all.iter().map(|used| (used.buffer.address(), used.stays)).collect(),
        };
        let mut named = FxHashSet::default();
        replaced.iter().try_for_each(|(old, new)| replaces(&found, &mut named, old, new))?;
        let replaced: FxHashMap<usize, &Shared<Buffer>> =
            replaced.iter().map(|(old, new)| (old.address(), new)).collect();
        let new = |used: &Used| replaced.get(&used.buffer.address()).copied();
        let uses: SmallVec<[Use<'_>; 64]> = all
            .iter()
            .map(|used| Use { buffer: new(used).unwrap_or(&used.buffer), write: used.write })
            .collect();
        let places = uses.iter().map(|used| used.buffer.ptr().expose_provenance()).collect();
        let prepare = SpinLock::new(Some(prepare));
        let writes = &self.device.core().observers.writes;
        let traced = (writes.is_on() && !self.captured.is_empty()).then(|| writes.replay(&self.captured));
        stream.launch(OP, &uses, Replay { executable: Arc::clone(self), places, prepare, traced })?;
        drop(uses);
        for used in &mut *all {
            if let Some(new) = new(used) {
                used.buffer = new.clone();
            }
            if used.write {
                used.buffer.bump_version();
            }
        }
        Ok(())
    }
}

/// Checks that a buffer can be used where an old one of the step was: it is as large, and no other command uses it. `used` are
/// the addresses of the step's buffers, and whether they stay; `named` those of the pairs before.
fn replaces(
    used: &FxHashMap<usize, bool>,
    named: &mut FxHashSet<usize>,
    old: &Shared<Buffer>,
    new: &Shared<Buffer>,
) -> Result<()> {
    let is_let_go = used.get(&old.address()) == Some(&false);
    Error::require(is_let_go, OP, "replaced", "a buffer that the step lets go of", "another one")?;
    let (from, to) = (old.len_bytes(), new.len_bytes());
    let sizes = format_args!("{to} bytes for {from}");
    Error::require(to >= from, OP, "replaced", "a buffer as large as the one that it replaces", sizes)?;
    let is_new =
        !used.contains_key(&new.address()) && named.insert(old.address()) && named.insert(new.address());
    let expected = "a buffer that the step does not use yet";
    Error::require(is_new, OP, "replaced", expected, "one that it uses")
}

/// A replay, as a command.
struct Replay<F> {
    executable: Arc<Executable>,
    /// Where the buffers are that it uses.
    places: SmallVec<[usize; 64]>,
    prepare: SpinLock<Option<F>>,
    /// Where a trace of writes has its commands.
    traced: Option<TracePlace>,
}

impl<F: FnOnce(&mut Kept<'_>) + Send + 'static> Replay<F> {
    fn prepare(&self, nodes: &mut Nodes) {
        // Whatever became of the replays before, commands find what this one was launched with.
        nodes.place(&self.places);
        if let Some(prepare) = self.prepare.lock().take() {
            prepare(&mut Kept(nodes));
        }
    }
}

impl<F: FnOnce(&mut Kept<'_>) + Send + 'static> Work for Replay<F> {
    fn run(&self, cpu: &Cpu<'_>) {
        let mut nodes = self.executable.nodes.lock();
        self.prepare(&mut nodes);
        nodes.changed.clear();
        let Nodes { nodes, helpers, ignored, .. } = &mut *nodes;
        let Observers { recorder, writes, .. } = &self.executable.device.core().observers;
        let times = recorder.is_on().then(|| SpinLock::new(Vec::new()));
        let traced = self.traced.map(|traced| (writes, traced));
        let step = crew::Step { nodes, times: times.as_ref(), traced };
        match cpu.plan_order().unwrap_or_else(|| self.executable.shuffle.load(Ordering::Relaxed)) {
            0 if ignored.is_some() => step.run_shuffled(0, cpu),
            0 => step.run(self.executable.report.widest, cpu, helpers),
            seed => step.run_shuffled(seed, cpu),
        }
        if let Some(times) = times {
            recorder.replayed(times.into_inner());
        }
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        let mut nodes = self.executable.nodes.lock();
        self.prepare(&mut nodes);
        match self.traced {
            Some(traced) => nodes.enqueue_each(queue, traced),
            None => nodes.enqueue(queue),
        }
    }

    fn bind(&mut self, _: &mut dyn Binder) {}

    fn waits(&self) -> bool {
        self.executable.waits
    }
}

impl Nodes {
    /// Has the commands find the buffers at `places`. All at once: a buffer may come to lie where another one was.
    fn place(&mut self, places: &[usize]) {
        let mut moved = Moved { places: Vec::new() };
        let mut commands: Vec<usize> = Vec::new();
        for (bound, &at) in self.bound.iter_mut().zip(places).filter(|(bound, at)| bound.at != **at) {
            moved.places.push((bound.at, bound.at + bound.bytes, at));
            commands.extend(&bound.commands);
            bound.at = at;
        }
        moved.places.sort_unstable();
        commands.sort_unstable();
        commands.dedup();
        commands.into_iter().for_each(|command| self.bind(command, &mut moved));
    }

    /// Tells the graph what has changed, and launches it. What it could not be told it is told the next time.
    fn enqueue(&mut self, queue: &Queue<'_>) -> Result<()> {
        let Nodes { nodes, changed, graph, .. } = self;
        let Some(graph) = graph else { return Ok(()) };
        changed.sort_unstable();
        changed.dedup();
        for &command in &*changed {
            graph.update(command, &nodes[command])?;
        }
        changed.clear();
        graph.launch(queue)
    }

    /// Enqueues the commands one by one, in the program's order, and copies of what they write. The graph learns later what has changed.
    fn enqueue_each(&mut self, queue: &Queue<'_>, traced: TracePlace) -> Result<()> {
        self.changed.sort_unstable();
        self.changed.dedup();
        for node in &self.nodes {
            node.work.enqueue(&queue.of(node.op))?;
            let outputs = node.traced.iter().map(|traced| traced.output.clone());
            // SAFETY: the buffers of the replay live until it has run.
            unsafe { queue.trace(traced, outputs) };
        }
        Ok(())
    }
}

debug_fields!(Executable { report });
