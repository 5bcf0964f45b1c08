//! What a captured step is made of.

use smallvec::SmallVec;

use crate::{Buffer, Shared, StreamId, Work};

/// A command that is kept.
pub(crate) struct StepCommand {
    pub(crate) op: &'static str,
    /// The stream that it was launched on.
    pub(crate) stream: StreamId,
    /// The memories that it uses, each once, and whether it writes them.
    pub(crate) uses: SmallVec<[(usize, bool); 4]>,
    pub(crate) work: Box<dyn Work>,
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
