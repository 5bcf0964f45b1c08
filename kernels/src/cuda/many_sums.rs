//! Sums along the rows of several operands in one launch, see `many_sums.cu`.

use device::cuda::Queue;
use device::{DType, Result};

use super::rows::{BLOCK, LANES, PACK, lanes};
use super::table::Table;
use super::walk::{ByValue, Walk, blocks};
use super::{Family, family};
use crate::command::Address;
use crate::reduction::Axes;

pub(super) static PROGRAMS: Family = family!("many_sums", FLOATS, "rows.cuh", "table.cuh", "many_sums.cu");

/// The most elements of a row: one group of threads goes through it, where longer ones are worth several.
const LEN: usize = 4 * BLOCK;
/// Threads of a block: columns, or lanes of a row, by half the lanes of a column, or rows. More or fewer would join lanes of columns
/// in another order.
const BESIDE: u32 = LANES as u32;
const BEHIND: u32 = LANES as u32 / 2;

/// `Operand` of the program.
#[repr(C)]
#[derive(Clone, Copy)]
struct Operand {
    x: u64,
    out: u64,
    rows: u32,
    len: u32,
    across: i32,
    inner: u32,
    along: i32,
    outer: i32,
    lanes: u32,
    packed: u32,
}

// SAFETY: two words of 64 bits and eight of 32, so `repr(C)` adds no padding.
unsafe impl ByValue for Operand {}

/// Whether a launch can sum along these axes: rows of one axis or two that are not long, of elements that fill a range.
pub(crate) fn fits(axes: &Axes) -> bool {
    let is_run = axes.reduced.axes.len() <= 1;
    let are_rows = axes.kept.axes.len() <= 1 && axes.reduced.axes.len() <= 2;
    let is_small = (1..=LEN).contains(&axes.reduced.elements)
        && (1..=i32::MAX as usize / LEN).contains(&axes.kept.elements);
    are_rows && is_small && (is_run || !are_columns(axes)) && axes.are_dense()
}

/// Whether neighbours in memory are of neighbouring rows.
fn are_columns(axes: &Axes) -> bool {
    axes.kept.inner().strides == [1] && axes.reduced.inner().strides != [1]
}

/// Sums operands, of which each has its axes, its result and its elements, which [fit](fits).
pub(crate) fn sum<'a>(
    queue: &Queue<'_>,
    dtype: DType,
    operands: impl Iterator<Item = (&'a Axes, [Address; 2])>,
) -> Result<()> {
    let operands: Vec<_> = operands
        .map(|(axes, addresses)| Ok((Operand::of(queue, dtype, axes, addresses)?, parts(axes))))
        .collect::<Result<_>>()?;
    Table::each(operands, |table| {
        let mut grid = blocks(queue, table.parts.into(), BESIDE * BEHIND);
        grid.threads = [BESIDE, BEHIND, 1];
        // SAFETY: the kernel takes this argument; the axes are those of the inputs, and the outputs have room for all kept
        // elements.
        unsafe { PROGRAMS.kernel(queue, &["many_sums"], dtype, grid, &[table.arg()]) }
    })
}

/// Of as many rows as a block has at a time.
fn parts(axes: &Axes) -> usize {
    let each = if are_columns(axes) { BESIDE } else { BEHIND };
    axes.kept.elements.div_ceil(each as usize)
}

impl Operand {
    fn of(queue: &Queue<'_>, dtype: DType, axes: &Axes, [out, x]: [Address; 2]) -> Result<Operand> {
        let Axes { kept, reduced } = axes;
        let (inner, across) = (reduced.inner(), kept.inner().strides[0]);
        let walk = Walk::of(queue.op(), reduced)?.vectors(PACK, [(x.0.cast_const(), dtype.size_bytes())]);
        Ok(Operand {
            x: x.0.addr() as u64,
            out: out.0.addr() as u64,
            rows: kept.elements as u32,
            len: reduced.elements as u32,
            across: across as i32,
            inner: inner.size as u32,
            along: inner.strides[0] as i32,
            outer: reduced.axes.first().map_or(0, |axis| axis.strides[0] as i32),
            lanes: lanes(reduced.elements.div_ceil(PACK)),
            packed: (walk.is_vector() && across % PACK as isize == 0).into(),
        })
    }
}
