//! What a captured step is made of.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::writes::Output;
use crate::{Binder, Buffer, Shared, StreamId, Work};

/// A command that is kept.
pub(crate) struct StepCommand {
    pub(crate) op: &'static str,
    /// The stream that it was launched on.
    pub(crate) stream: StreamId,
    /// The memories that it uses, each once, and whether it writes them.
    pub(crate) uses: SmallVec<[(usize, bool); 4]>,
    pub(crate) work: Box<dyn Work>,
    /// What a trace of writes follows of it.
    pub(crate) traced: Vec<TracedOutput>,
}

/// An operand that a captured command writes, if writes were traced at its capture.
#[derive(Clone)]
pub(crate) struct TracedOutput {
    /// The memory that it lies in.
    pub(crate) memory: usize,
    pub(crate) output: Output,
}

/// Gives a command other addresses and scalars.
pub(crate) fn bind(work: &mut dyn Work, traced: &mut [TracedOutput], binder: &mut dyn Binder) {
    work.bind(binder);
    for TracedOutput { output, .. } in traced {
        let start = &mut output.operand.start;
        *start = binder.address(std::ptr::with_exposed_provenance_mut(*start)).expose_provenance();
    }
}

impl StepCommand {
    pub(crate) fn bind(&mut self, binder: &mut dyn Binder) {
        bind(&mut *self.work, &mut self.traced, binder);
    }
}

/// Keeps the outputs that are in memory after a fused command with these `uses`: for each memory that it writes, those of the last
/// command that wrote it.
pub(crate) fn surviving(mut traced: Vec<TracedOutput>, uses: &[(usize, bool)]) -> Vec<TracedOutput> {
    let last: FxHashMap<usize, usize> =
        traced.iter().map(|traced| (traced.memory, traced.output.command)).collect();
    traced.retain(|TracedOutput { memory, output }| {
        last.get(memory) == Some(&output.command) && uses.contains(&(*memory, true))
    });
    traced
}

/// What commands of a step use.
pub(crate) enum StepMemory {
    /// A buffer that was there before.
    Found(Shared<Buffer>),
    /// What was allocated within the step: an address that stands for it, its size, and whether its buffer is still there.
    Planned { at: usize, bytes: usize, alive: bool },
}

impl StepMemory {
    pub(crate) fn at(&self) -> usize {
        match self {
            StepMemory::Found(buffer) => buffer.ptr().addr(),
            StepMemory::Planned { at, .. } => *at,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            StepMemory::Found(buffer) => buffer.len_bytes(),
            StepMemory::Planned { bytes, .. } => *bytes,
        }
    }
}

/// As the allocator aligns.
pub(crate) const ALIGNMENT: usize = 256;
