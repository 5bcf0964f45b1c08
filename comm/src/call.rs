//! What a rank asks of the others.

use std::fmt;
use std::ops::Range;

use device::{Binder, DType};
use kernels::{Dims, ReduceOp as Reduce};

/// In which order the ranks' elements are reduced. Not `device::Order`, which is that of a captured step's commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReduceOrder {
    /// That of the ranks: `((x0 + x1) + x2) + ..`, the same bits with every backend.
    #[default]
    Ranks,
    /// What the backend does fastest. All ranks get the same bits, but those depend on the backend and on the machines.
    Fast,
}

/// A collective, or a message from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Collective {
    /// Every rank gets all ranks' inputs, reduced.
    AllReduce(Reduce),
    /// Every rank gets all ranks' inputs, one behind the other.
    AllGather,
    /// Rank `r` gets part `r` of the inputs, reduced.
    ReduceScatter(Reduce),
    /// Every rank gets the input of `root`.
    Broadcast {
        /// Whose input it is.
        root: usize,
    },
    /// Rank `r` gets part `r` of every rank's input, one behind the other.
    AllToAll,
    /// The input goes to a rank.
    Send {
        /// Which.
        to: usize,
    },
    /// The output comes from a rank.
    Recv {
        /// Which.
        from: usize,
    },
    /// Nothing but that all ranks meet.
    Barrier,
}

impl Collective {
    /// The name in errors, profiles and audits.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce(_) => "all_reduce",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter(_) => "reduce_scatter",
            Collective::Broadcast { .. } => "broadcast",
            Collective::AllToAll => "all_to_all",
            Collective::Send { .. } => "send",
            Collective::Recv { .. } => "recv",
            Collective::Barrier => "barrier",
        }
    }

    /// How it reduces, if it does.
    pub fn reduce(self) -> Option<Reduce> {
        match self {
            Collective::AllReduce(reduce) | Collective::ReduceScatter(reduce) => Some(reduce),
            _ => None,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Collective::AllReduce(reduce) | Collective::ReduceScatter(reduce) => {
                write!(f, "{}({reduce})", self.name())
            }
            Collective::Broadcast { root } => write!(f, "broadcast(root {root})"),
            Collective::Send { to } => write!(f, "send(to {to})"),
            Collective::Recv { from } => write!(f, "recv(from {from})"),
            Collective::AllGather | Collective::AllToAll | Collective::Barrier => f.write_str(self.name()),
        }
    }
}

/// A collective with what all ranks must agree on.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// What is done.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: DType,
    /// The shape of the input, of the output where it is received.
    pub shape: Dims,
    /// The order of a reduction.
    pub order: ReduceOrder,
}

impl Call {
    /// The number of elements of [`shape`](Self::shape).
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size_bytes()
    }

    /// The elements of part `rank` when all elements are split evenly among `ranks`.
    pub(crate) fn part(&self, rank: usize, ranks: usize) -> Range<usize> {
        let elements = self.elements();
        elements * rank / ranks..elements * (rank + 1) / ranks
    }

    /// What rank `own` of `ranks` copies from each rank's input: to its output, or, for a reduction, to a workspace that is
    /// reduced afterwards.
    pub(crate) fn pieces(&self, own: usize, ranks: usize) -> impl Iterator<Item = Piece> + use<> {
        let (elements, collective) = (self.elements(), self.collective);
        let from = match collective {
            Collective::Broadcast { root } => root..root + 1,
            _ => 0..ranks,
        };
        let piece = move |rank: usize| match collective {
            Collective::Broadcast { .. } => Piece { rank, from: 0, len: elements, to: 0 },
            Collective::AllToAll | Collective::ReduceScatter(_) => {
                let len = elements / ranks;
                Piece { rank, from: own * len, len, to: rank * len }
            }
            _ => Piece { rank, from: 0, len: elements, to: rank * elements },
        };
        from.map(piece).filter(|piece| piece.len > 0)
    }

    /// As errors of `op` name it.
    pub fn op(&self) -> &'static str {
        self.collective.name()
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.collective)?;
        if self.collective != Collective::Barrier {
            write!(f, " of {} {:?}", self.dtype, &self.shape[..])?;
        }
        if self.collective.reduce().is_some() && self.order != ReduceOrder::default() {
            write!(f, " in order {:?}", self.order)?;
        }
        Ok(())
    }
}

/// Elements that are copied from one rank's input.
pub(crate) struct Piece {
    pub(crate) rank: usize,
    /// The first element in the input.
    pub(crate) from: usize,
    pub(crate) len: usize,
    /// The position of the first element in the destination.
    pub(crate) to: usize,
}

/// Where a rank's operands lie: addresses to be followed by the launched command only. Dense, in row-major order.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// What it gives; nobody's memory where it gives nothing. May be [`output`](Self::output).
    pub input: *const u8,
    /// What it gets; nobody's memory where it gets nothing.
    pub output: *mut u8,
    /// What [`Backend::workspace_bytes`](crate::Backend::workspace_bytes) asked for.
    pub workspace: *mut u8,
}

// SAFETY: plain addresses. Only the launched command dereferences them, and its declared uses keep everyone else off
// the memory.
unsafe impl Send for Memory {}
// SAFETY: no method changes the addresses through a shared reference; see `Send` for the memory behind them.
unsafe impl Sync for Memory {}

impl Memory {
    /// No operands.
    pub(crate) const NONE: Memory =
        Memory { input: std::ptr::null(), output: std::ptr::null_mut(), workspace: std::ptr::null_mut() };

    pub(crate) fn bind(&mut self, binder: &mut dyn Binder) {
        self.input = binder.address(self.input.cast_mut());
        self.output = binder.address(self.output);
        self.workspace = binder.address(self.workspace);
    }
}
