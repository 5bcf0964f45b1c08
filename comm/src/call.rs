//! What a rank asks of the others.

use std::fmt;

use device::{Binder, DType};
use kernels::Dims;

use crate::{Reduce, ReduceOrder};

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
    pub(crate) fn bind(&mut self, binder: &mut dyn Binder) {
        self.input = binder.address(self.input.cast_mut());
        self.output = binder.address(self.output);
        self.workspace = binder.address(self.workspace);
    }
}
