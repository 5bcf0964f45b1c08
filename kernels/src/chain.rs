//! Chains: functions of elements of which some take what others give, computed together, element by element. Each result is
//! rounded to its type, as if it went through memory.

use device::DType;
use smallvec::SmallVec;

use crate::functions::Function;
use crate::layout::Dst;
use crate::loops::{LoopAxis, Loops};
use crate::reduction::{Axes, ReduceOp};

/// The most operands in memory.
pub(crate) const OPERANDS: usize = 32;

/// Functions in the order in which they are computed.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    pub(crate) elements: usize,
    /// What lies in memory: first what is written, and then what is read.
    pub(crate) operands: Vec<Operand>,
    pub(crate) steps: Vec<Step>,
    /// What is made of all elements of a result.
    pub(crate) fold: Option<Fold>,
}

/// A reduction of a step's results, in the order in which it would be one of memory.
#[derive(Clone, Debug)]
pub(crate) struct Fold {
    /// The step.
    pub(crate) of: usize,
    pub(crate) op: ReduceOp,
    pub(crate) dtype: DType,
    /// Over the elements as a result would lie.
    pub(crate) axes: Axes,
    pub(crate) out: Operand,
    /// Memory for the states of parts.
    pub(crate) workspace: Option<Operand>,
}

/// Elements in memory, which all operands count alike.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub(crate) at: Dst<u8>,
    pub(crate) dtype: DType,
    pub(crate) places: Loops<1>,
}

/// One function.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) function: Function,
    pub(crate) arguments: SmallVec<[Value; 3]>,
    /// The operand that its result is written to.
    pub(crate) output: Option<usize>,
}

/// What a function takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Operand(usize),
    /// The result of a step.
    Step(usize),
}

impl Chain {
    /// How many operands are written.
    pub(crate) fn outputs(&self) -> usize {
        self.steps.iter().filter(|step| step.output.is_some()).count()
    }

    /// One nest over all operands; `None` if there is none, or more than `N` operands.
    pub(crate) fn loops<const N: usize>(&self) -> Option<Loops<N>> {
        Loops::together(
            &self.operands.iter().map(|operand| &operand.places).collect::<SmallVec<[_; OPERANDS]>>(),
        )
    }
}

impl Fold {
    /// Whether it writes a byte of an operand.
    pub(crate) fn meets(&self, other: &Operand) -> bool {
        self.written().any(|written| written.meets(other))
    }

    /// What it writes.
    pub(crate) fn written(&self) -> impl Iterator<Item = &Operand> {
        [&self.out].into_iter().chain(&self.workspace)
    }
}

impl Operand {
    /// Elements one after the other.
    pub(crate) fn run(at: Dst<u8>, dtype: DType, elements: usize) -> Operand {
        let places = Loops::from_axes([LoopAxis { size: elements, strides: [1] }]);
        Operand { at, dtype, places }
    }

    /// Whether it is one element, again and again.
    pub(crate) fn stands(&self) -> bool {
        self.places.axes.iter().all(|axis| axis.strides == [0])
    }

    /// Whether the elements are those of `other`, counted alike and stored alike.
    pub(crate) fn is(&self, other: &Operand) -> bool {
        self.at.0 == other.at.0 && stored(self.dtype) == stored(other.dtype) && self.places == other.places
    }

    /// Whether a byte may belong to both.
    pub(crate) fn meets(&self, other: &Operand) -> bool {
        let ((start, end), (other_start, other_end)) = (self.bytes(), other.bytes());
        start < other_end && other_start < end && !self.is_beside(other)
    }

    /// Whether both consist of rows that are equally far apart, and the rows of one lie between those of the other.
    fn is_beside(&self, other: &Operand) -> bool {
        let (Some((step, length)), Some((other_step, other_length))) = (self.rows(), other.rows()) else {
            return false;
        };
        let behind = (other.at.0.addr() as isize).wrapping_sub(self.at.0.addr() as isize).rem_euclid(step);
        step == other_step && behind >= length && behind + other_length <= step
    }

    /// The bytes from the start of a row to the next, and of a row, if the elements are contiguous rows at one distance.
    fn rows(&self) -> Option<(isize, isize)> {
        let size = self.dtype.size_bytes() as isize;
        match &self.places.axes[..] {
            [rows, row] if row.strides == [1] && rows.strides[0] >= row.size as isize => {
                Some((rows.strides[0] * size, row.size as isize * size))
            }
            _ => None,
        }
    }

    fn bytes(&self) -> (usize, usize) {
        let ((low, high), size) = (self.places.span(), self.dtype.size_bytes() as isize);
        let at = self.at.0.addr();
        (at.wrapping_add_signed(low * size), at.wrapping_add_signed((high + 1) * size))
    }
}

/// How a type is stored: truth values are bytes.
pub(crate) fn stored(dtype: DType) -> DType {
    if dtype == DType::Bool { DType::U8 } else { dtype }
}
