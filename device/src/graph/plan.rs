//! Plans: the commands of a step, what has to come before each, and where their memory lies.

use std::collections::HashMap;
use std::fmt;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::commands::{StepCommand, StepMemory};
use super::node::cost;
use super::reach::Reach;
use crate::audit::LastUses;
use crate::writes::CapturedCommand;
use crate::{Device, Error, Result, StreamId};

/// Which commands of a captured step a replay keeps in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Those of which one writes what the other uses.
    #[default]
    Data,
    /// Those, and the commands of each stream.
    Streams,
}

/// How a captured step is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphOptions {
    /// Which commands are kept in order.
    pub order: Order,
    /// The most bytes for the step's own tensors. Where they would be more, commands are kept in the program's order so that
    /// tensors can share memory; a step that needs more even so gets more.
    pub max_bytes: Option<usize>,
    /// Whether chains of functions of elements become one command each, and commands are left out of which nobody uses what
    /// they write. Results have the same bits.
    pub fuse: bool,
}

impl Default for GraphOptions {
    /// The order of the data, as much memory as that takes, and fused chains.
    fn default() -> Self {
        GraphOptions { order: Order::Data, max_bytes: None, fuse: true }
    }
}

/// What a plan is like.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct PlanReport {
    /// Commands of a replay.
    pub commands: usize,
    /// Commands that were captured and became a part of another one.
    pub fused: usize,
    /// Commands that were captured and left out, as nobody uses what they write.
    pub unused: usize,
    /// Commands that were captured and always write the same, so that they ran once and for all.
    pub settled: usize,
    /// Pairs of commands of which one waits for the other.
    pub edges: usize,
    /// Commands on the longest way along the edges.
    pub critical_path: usize,
    /// The most commands whose longest ways from a start are of one length, about what could run at once.
    pub widest: usize,
    /// What all commands cost over what the costliest way costs: the gain that any number of threads or streams could bring.
    pub gain: f64,
    /// Bytes of the step's own memory, as planned.
    pub planned_bytes: usize,
    /// The most bytes of its tensors that are needed at once if the commands run one after the other.
    pub needed_bytes: usize,
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PlanReport { commands, fused, unused, settled, edges, critical_path, widest, .. } = self;
        let PlanReport { gain, planned_bytes, .. } = self;
        write!(
            f,
            "{commands} commands ({fused} others fused into them, {unused} left out as unused, {settled} run once), {edges} edges, \
             {critical_path} on the critical path, {widest} at the widest place, at most {gain:.2}x by running at once, \
             {planned_bytes} bytes"
        )
    }
}

/// The commands of a captured step in the order of the program, and the memory that they use. Nothing of it is the device's
/// until it is [instantiated](Plan::instantiate); what has to come before what is worked out then.
pub struct Plan {
    pub(super) device: Device,
    pub(super) commands: Vec<StepCommand>,
    pub(super) memories: Vec<StepMemory>,
    /// Memories that a command finds where they were at the capture, in all replays.
    pub(super) staying: FxHashSet<usize>,
    /// Captured commands that became a part of another one, those that were left out, and those that ran already.
    pub(super) fused: usize,
    pub(super) unused: usize,
    pub(super) settled: usize,
    /// The commands as they were captured, if writes were traced.
    pub(super) captured: Vec<CapturedCommand>,
}

/// For each command, those that it waits for.
pub(super) type Needs = Vec<SmallVec<[u32; 4]>>;

/// Host memory that planning may take for each command, for its edges, labels, and places.
const PLANNING: usize = 1 << 10;

/// The order of a plan's commands, and the places of their memory.
pub(super) struct Layout {
    /// For each command, the fewest that it has to wait for.
    pub(super) needs: Needs,
    /// For each memory that is planned, where it starts.
    pub(super) offsets: Vec<Option<usize>>,
    pub(super) bytes: usize,
}

impl Plan {
    pub(super) fn new(
        device: Device,
        commands: Vec<StepCommand>,
        memories: Vec<StepMemory>,
        staying: FxHashSet<usize>,
        captured: Vec<CapturedCommand>,
    ) -> Plan {
        Plan { device, commands, memories, staying, fused: 0, unused: 0, settled: 0, captured }
    }

    /// How many commands there are.
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// That the host has memory for planning, which allocates too much and too little at a time to ask each time.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn has_room(&self) -> Result<()> {
        room(self.len(), PLANNING)
    }

    /// For each command the fewest that come before it, and which come before which.
    pub(super) fn needs(&self, order: Order) -> (Needs, Reach) {
        self.needs_with(order, |_, _| SmallVec::new())
    }

    /// [`needs`](Self::needs), in the program's order, since what comes before a command is known when it is met. `place` names
    /// what else it comes after.
    pub(super) fn needs_with(
        &self,
        order: Order,
        mut place: impl FnMut(usize, &Reach) -> SmallVec<[usize; 8]>,
    ) -> (Needs, Reach) {
        let mut reach = Reach::new(self.len());
        let mut last = vec![LastUses::default(); self.memories.len()];
        let mut newest: HashMap<StreamId, usize> = HashMap::new();
        // What waits for other ranks waits in the program's order on all of them, whichever thread takes it.
        let mut waiting: Option<usize> = None;
        let mut needs = Needs::with_capacity(self.len());
        for (at, command) in self.commands.iter().enumerate() {
            let mut all: SmallVec<[usize; 8]> = SmallVec::new();
            for &(memory, write) in &command.uses {
                // All uses of planned memory come after the first, also where that reads what nobody wrote.
                let first =
                    matches!(self.memories[memory], StepMemory::Planned { .. }) && last[memory].is_none();
                last[memory].record(at, write || first, |need| all.push(need));
            }
            if order == Order::Streams {
                all.extend(newest.insert(command.stream, at));
            }
            if command.work.waits() {
                all.extend(waiting.replace(at));
            }
            let mut fewest = fewest(&mut reach, at, &mut all);
            let mut more = place(at, &reach);
            let more = self::fewest(&mut reach, at, &mut more);
            let implied = |need: u32| more.iter().any(|&later| reach.has(need as usize, later as usize));
            fewest.retain(|need| !implied(*need));
            fewest.extend(more);
            reach.push();
            needs.push(fewest);
        }
        (needs, reach)
    }

    /// What the layout is like.
    pub(super) fn report(&self, layout: &Layout) -> PlanReport {
        let mut levels = vec![0usize; self.len()];
        let mut costs = vec![0.0f64; self.len()];
        let mut total = 0.0;
        for (at, needs) in layout.needs.iter().enumerate() {
            let cost = cost(&*self.commands[at].work) as f64;
            total += cost;
            levels[at] = needs.iter().map(|&need| levels[need as usize] + 1).max().unwrap_or(0);
            costs[at] = cost + needs.iter().map(|&need| costs[need as usize]).fold(0.0, f64::max);
        }
        let critical_path = levels.iter().max().map_or(0, |deepest| deepest + 1);
        let mut widths = vec![0; critical_path];
        levels.iter().for_each(|&level| widths[level] += 1);
        let longest = costs.iter().copied().fold(0.0, f64::max);
        PlanReport {
            commands: self.len(),
            fused: self.fused,
            unused: self.unused,
            settled: self.settled,
            edges: layout.needs.iter().map(SmallVec::len).sum(),
            critical_path,
            widest: widths.into_iter().max().unwrap_or(0),
            gain: if longest > 0.0 { total / longest } else { 1.0 },
            planned_bytes: layout.bytes,
            needed_bytes: self.needed_bytes(),
        }
    }
}

/// Adds `needs` to what comes before the command `at`, and gives those that no other one of them implies.
pub(super) fn fewest(reach: &mut Reach, at: usize, needs: &mut SmallVec<[usize; 8]>) -> SmallVec<[u32; 4]> {
    needs.sort_unstable_by(|a, b| b.cmp(a));
    needs.dedup();
    let mut fewest = SmallVec::new();
    for &need in &*needs {
        // A later command cannot come before an earlier one.
        if !reach.has(need, at) {
            reach.add(need);
            fewest.push(need as u32);
        }
    }
    fewest
}

/// Reserves room for more elements.
///
/// # Errors
/// `OutOfMemory`.
pub(super) fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<()> {
    list.try_reserve(more).map_err(|_| {
        let bytes = (list.len() + more).saturating_mul(size_of::<T>());
        Error::out_of_memory(bytes, "the host has no memory for the commands of a captured step")
    })
}

/// That the host has so many bytes for each of `count` things, which are allocated one by one.
///
/// # Errors
/// `OutOfMemory`.
pub(super) fn room(count: usize, bytes: usize) -> Result<()> {
    reserve(&mut Vec::<u8>::new(), count.saturating_mul(bytes))
}

debug_fields!(Plan { commands.len() });
