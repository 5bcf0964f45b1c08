//! Reading and adding at indices, which the kernels check.

use device::cuda::{Arg, Program, Queue};
use device::{DType, Result};

use super::sums::{HELD, Owned};
use super::walk::{ByValue, THREADS, Walk, blocks};
use super::{Family, bits_name, family, kernel_name};
use crate::command::Address;
use crate::indexed::{IndexedElements, IndexedRows};
use crate::loops::{LoopAxis, Loops};

pub(super) static GATHER: Program =
    Program::new("gather", concat!(include_str!("prelude.cuh"), include_str!("gather.cu")));
pub(super) static PROGRAMS: Family = family!("index", NUMBERS, "sums.cuh", "index.cu");

/// `part[.., i, ..] = whole[.., index[i], ..]`, a gather with the same index along all other axes.
pub(crate) fn select(
    queue: &Queue<'_>,
    size: usize,
    rows: &IndexedRows,
    operands: [Address; 3],
) -> Result<()> {
    let with_index = |axis: &LoopAxis<2>| {
        let [part, whole] = axis.strides;
        LoopAxis { size: axis.size, strides: [part, whole, 0] }
    };
    let [part, whole] = rows.steps;
    let named = LoopAxis { size: rows.count, strides: [part, 0, rows.index_step] };
    let inner = rows.inner.loops();
    let axes = rows.outer.axes.iter().map(with_index).chain([named]).chain(inner.axes.iter().map(with_index));
    gather_over(queue, size, &Loops::from_axes(axes), (whole, rows.size), operands)
}

pub(crate) fn gather(
    queue: &Queue<'_>,
    size: usize,
    elements: &IndexedElements,
    operands: [Address; 3],
) -> Result<()> {
    gather_over(queue, size, &elements.loops, (elements.along.strides[1], elements.size), operands)
}

/// Gathers elements of `size` bytes over loops of the operands, `[part, whole, index]`; `(step, rows)` are those of the whole
/// along the axis.
fn gather_over(
    queue: &Queue<'_>,
    size: usize,
    loops: &Loops<3>,
    (step, rows): (isize, usize),
    operands: [Address; 3],
) -> Result<()> {
    let lanes = 16 / size;
    let [part, whole, index] = operands.map(|at| at.0.cast_const());
    let mut walk =
        Walk::of(queue.op(), loops)?.vectors(lanes, [(part, size), (whole, size), (index, size_of::<i64>())]);
    // A vector has one index, and begins where a vector may begin in the whole.
    if !(walk.stands(2) && !walk.stands(1) && (step as usize).is_multiple_of(lanes)) {
        walk = walk.single();
    }
    let [part, whole, index] = operands.map(Arg::from);
    let args = [part, whole, index, walk.arg(), Arg::I64(step as i64), Arg::I64(rows as i64), Arg::Fault];
    // SAFETY: the kernel takes these arguments, the walk is that of the operands, and an index is checked before it is
    // followed.
    unsafe {
        queue.kernel(&GATHER, &kernel_name(&["gather"], bits_name(size)), walk.grid(queue, lanes), &args)
    }
}

/// Adds to what is there or, if it is `fresh`, to zeros.
pub(crate) fn index_add(
    queue: &Queue<'_>,
    dtype: DType,
    rows: &IndexedRows,
    [out, src, index]: [Address; 3],
    fresh: bool,
) -> Result<()> {
    let columns = Loops::from_axes(rows.outer.axes.iter().chain(&rows.inner.loops().axes).copied());
    let walk = Walk::of(queue.op(), &columns)?;
    let owned = Owned::of(queue, dtype, [rows.size, columns.elements]);
    let [src_step, out_step] = rows.steps.map(|step| step as i64);
    let [count, size, own, width] = [rows.count, rows.size, owned.rows, owned.width].map(|n| n as i64);
    // `IndexAdd` of the program.
    let what = [count, rows.index_step as i64, src_step, out_step, size, own, width, i64::from(fresh)];
    let args = [out.into(), src.into(), index.into(), walk.arg(), what.arg(), Arg::Fault];
    // SAFETY: the kernel takes these arguments, rows and columns are those of the operands, and an index is checked before it
    // is followed.
    unsafe { PROGRAMS.kernel(queue, &["index_add"], dtype, owned.grid, &args) }
}

pub(crate) fn scatter_add(
    queue: &Queue<'_>,
    dtype: DType,
    elements: &IndexedElements,
    [out, src, index]: [Address; 3],
) -> Result<()> {
    let IndexedElements { ref lines, along: LoopAxis { size: count, strides }, size, .. } = *elements;
    if elements.loops.elements == 0 {
        return Ok(());
    }
    let walk = Walk::of(queue.op(), lines)?;
    // Where lines are few, several threads go through each, for different places. Short lines are not worth it.
    let busy = queue.multiprocessors() as usize * 4 * THREADS as usize;
    let groups = (busy / lines.elements).min(size).min(count / 16).max(1);
    let needed = if dtype.is_half() { size.div_ceil(HELD).next_power_of_two() } else { 1 };
    let groups = (1 << groups.ilog2()).max(needed);
    let [src_step, out_step, index_step] = strides.map(|step| step as i64);
    // `ScatterAdd` of the program.
    let what = [count as i64, src_step, out_step, index_step, size as i64, groups as i64];
    let threads = (lines.elements * groups) as u64;
    let grid = blocks(queue, threads.div_ceil(u64::from(THREADS)), THREADS);
    let args = [out.into(), src.into(), index.into(), walk.arg(), what.arg(), Arg::Fault];
    // SAFETY: the kernel takes these arguments, the lines are those of the operands, and an index is checked before it is
    // followed.
    unsafe { PROGRAMS.kernel(queue, &["scatter_add"], dtype, grid, &args) }
}
