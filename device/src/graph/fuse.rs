//! Fewer commands: what a layer that knows the maths is told of a plan, and which of its commands may become one.

use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::capture::each_once;
use super::commands::{StepCommand, StepMemory, surviving};
use super::executable::Moved;
use super::groups::Groups;
use super::memory;
use super::plan::Plan;
use crate::cuda::Queue;
use crate::{Binder, Buffer, Cpu, Device, Error, Result, Shared, Stream, StreamId, Use, Work};

/// A command of a plan that runs outside of it.
struct Once(Box<dyn Work>);

impl Work for Once {
    fn run(&self, cpu: &Cpu<'_>) {
        self.0.run(cpu);
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        self.0.enqueue(queue)
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        self.0.bind(binder);
    }
}

/// A command that takes the place of several.
pub struct Fused {
    /// The op's name.
    pub op: &'static str,
    /// The memories that it uses, each once, by their numbers in the plan, and whether it writes them.
    pub uses: Vec<(usize, bool)>,
    /// What it does, with the addresses that the plan's commands hold.
    pub work: Box<dyn Work>,
}

impl Fused {
    /// The memories that a command uses, each once, and whether it writes them.
    pub fn each_once(uses: impl IntoIterator<Item = (usize, bool)>) -> Vec<(usize, bool)> {
        each_once(uses).into_vec()
    }
}

impl Plan {
    /// The device that it is for.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What a command does, if that is known; see [`Work::part`].
    pub fn part(&self, command: usize) -> Option<Box<dyn Any>> {
        self.commands[command].work.part()
    }

    /// The memories that a command uses, by their numbers, and whether it writes them.
    pub fn uses(&self, command: usize) -> &[(usize, bool)] {
        &self.commands[command].uses
    }

    /// The stream that a command was captured on.
    pub fn stream(&self, command: usize) -> StreamId {
        self.commands[command].stream
    }

    /// About how many elementary operations a CPU needs for a command; see [`Work::cost`].
    pub fn cost(&self, command: usize) -> usize {
        self.commands[command].work.cost()
    }

    /// Whether a command may fail when it runs; see [`Work::may_fail`].
    pub fn may_fail(&self, command: usize) -> bool {
        self.commands[command].work.may_fail()
    }

    /// The addresses of a memory, as its commands hold them.
    pub fn addresses(&self, memory: usize) -> Range<usize> {
        let memory = &self.memories[memory];
        memory.at()..memory.at() + memory.bytes()
    }

    /// Whether a memory is the step's own, so that its content ends with the last command that uses it.
    pub fn is_planned(&self, memory: usize) -> bool {
        matches!(self.memories[memory], StepMemory::Planned { .. })
    }

    /// For each memory the commands that use it, in the program's order.
    pub fn users(&self) -> Vec<SmallVec<[usize; 4]>> {
        memory::users(self)
    }

    /// Leaves out the commands of which nobody uses what they write, unless they may fail.
    pub fn leave_out_unused(&mut self) {
        let before = self.len();
        let mut used: Vec<bool> =
            self.memories.iter().map(|memory| matches!(memory, StepMemory::Found(_))).collect();
        let mut commands = std::mem::take(&mut self.commands);
        commands.reverse();
        commands.retain(|command| {
            // Whoever writes may leave a part as it was, so a later write is a use, too.
            let is_used =
                command.work.may_fail() || command.uses.iter().any(|&(memory, write)| write && used[memory]);
            if is_used {
                command.uses.iter().for_each(|&(memory, _)| used[memory] = true);
            }
            is_used
        });
        commands.reverse();
        self.unused += before - commands.len();
        self.commands = commands;
    }

    /// Has the step make these memories, by their numbers, in buffers that replays may replace: they are what it gives.
    ///
    /// # Errors
    /// `InvalidArgument` for a number that is not one of the step's own memory, or one named twice, and for a buffer that
    /// is smaller than its memory or is used by the step already; `DeviceMismatch`. Nothing is changed then.
    pub fn keep(&mut self, kept: Vec<(usize, Shared<Buffer>)>) -> Result<()> {
        let mut moved = self.give("keep", kept)?;
        self.commands.iter_mut().for_each(|command| command.bind(&mut moved));
        Ok(())
    }

    /// The buffers that the step uses.
    pub(super) fn in_use(&self) -> FxHashSet<*const Buffer> {
        self.found().map(std::ptr::from_ref).collect()
    }

    /// Checks that the step may use `buffer` as memory of `bytes` bytes, and adds it to those `in_use`.
    pub(super) fn takes(
        &self,
        op: &'static str,
        bytes: usize,
        buffer: &Shared<Buffer>,
        in_use: &mut FxHashSet<*const Buffer>,
    ) -> Result<()> {
        Error::require_same_device(op, "buffer", &self.device, buffer.device())?;
        let (is_real, len) = (!buffer.is_planned(), buffer.len_bytes());
        Error::require(is_real, op, "buffer", "memory of the device", "memory of a captured step")?;
        let value = format_args!("{len} bytes for {bytes}");
        Error::require(len >= bytes, op, "buffer", "as large as asked for", value)?;
        let is_new = in_use.insert(&raw const **buffer);
        Error::require(is_new, op, "buffer", "a buffer that the step does not use yet", "one that it uses")
    }

    /// Puts buffers in the place of the step's own memories. The commands do not know of them yet.
    fn give(&mut self, op: &'static str, mut buffers: Vec<(usize, Shared<Buffer>)>) -> Result<Moved> {
        let (mut named, mut in_use) = (FxHashSet::default(), self.in_use());
        for (memory, buffer) in &buffers {
            match self.memories.get(*memory) {
                Some(&StepMemory::Planned { bytes, .. }) if named.insert(*memory) => {
                    self.takes(op, bytes, buffer, &mut in_use)?
                }
                _ => return Err(Error::invalid(op, "memory", "the step's own, named once", memory)),
            }
        }
        buffers.sort_unstable_by_key(|(memory, _)| self.memories[*memory].at());
        let mut moved = Moved::default();
        for (memory, buffer) in buffers {
            let known = &mut self.memories[memory];
            moved.add(known.at(), known.bytes(), buffer.ptr().expose_provenance());
            *known = StepMemory::Found(buffer);
        }
        Ok(moved)
    }

    /// Runs commands on `stream` now, and in no replay: those that always write the same, and all that write the step's own
    /// memories which they use. These get buffers of their own by `allocate`, which is told how many bytes.
    ///
    /// # Errors
    /// Those of `allocate`, as for [`keep`](Self::keep), and as for [`Stream::launch`].
    pub fn settle(
        &mut self,
        commands: &[usize],
        stream: &Stream,
        mut allocate: impl FnMut(usize) -> Result<Shared<Buffer>>,
    ) -> Result<()> {
        const OP: &str = "settle";
        if let Some(unknown) = commands.iter().find(|&&at| at >= self.len()) {
            return Err(Error::invalid(OP, "commands", "commands of the plan", unknown));
        }
        Error::require_same_device(OP, "stream", &self.device, stream.device())?;
        let mut used: Vec<usize> =
            commands.iter().flat_map(|&at| &self.commands[at].uses).map(|&(memory, _)| memory).collect();
        used.sort_unstable();
        used.dedup();
        let mut own = Vec::with_capacity(used.len());
        for memory in used {
            if let StepMemory::Planned { bytes, .. } = self.memories[memory] {
                own.push((memory, allocate(bytes)?));
            }
        }
        let mut moved = self.give(OP, own)?;
        let mut is_settled = vec![false; self.commands.len()];
        commands.iter().for_each(|&at| is_settled[at] = true);
        let (mut is_settled, all) = (is_settled.into_iter(), std::mem::take(&mut self.commands));
        let (settled, mut rest): (Vec<StepCommand>, Vec<StepCommand>) =
            all.into_iter().partition(|_| is_settled.next() == Some(true));
        rest.iter_mut().for_each(|command| command.bind(&mut moved));
        self.commands = rest;
        self.settled += settled.len();
        for StepCommand { op, uses, mut work, .. } in settled {
            work.bind(&mut moved);
            let uses: SmallVec<[Use<'_>; 4]> = uses
                .iter()
                .filter_map(|&(memory, write)| match &self.memories[memory] {
                    StepMemory::Found(buffer) => Some(Use { buffer, write }),
                    StepMemory::Planned { .. } => None,
                })
                .collect();
            stream.launch(op, &uses, Once(work))?;
        }
        Ok(())
    }

    /// Replaces each group of several commands by what `fused` has for it, in the order of [`Groups::several`]. Others stay.
    pub fn fuse(&mut self, groups: &Groups, fused: Vec<Fused>) {
        let mut old: Vec<Option<StepCommand>> =
            std::mem::take(&mut self.commands).into_iter().map(Some).collect();
        let mut fused: HashMap<usize, Fused> =
            groups.several().map(|members| members[0]).zip(fused).collect();
        for first in groups.in_order() {
            let members = groups.of(first);
            let mut commands: Vec<StepCommand> =
                members.iter().filter_map(|&member| old[member].take()).collect();
            let Some(mut command) = commands.pop() else { continue };
            if let Some(Fused { op, uses, work }) = fused.remove(&first) {
                self.fused += members.len() - 1;
                let mut traced: Vec<_> = commands.into_iter().flat_map(|command| command.traced).collect();
                traced.append(&mut command.traced);
                let traced = surviving(traced, &uses);
                command = StepCommand { op, stream: command.stream, uses: uses.into(), work, traced };
            }
            self.commands.push(command);
        }
    }
}

debug_fields!(Fused { op, uses });
