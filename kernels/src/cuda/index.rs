//! gather, index_select, index_add and scatter_add; kernels check indices.

use device::cuda::{Arg, Program, Queue};
use device::{DType, Result};

use super::walk::{ByValue, Walk};
use super::{Family, bits_name, family, kernel_name};
use crate::command::Address;
use crate::indexed::{Entries, Gather};
use crate::loops::Places;

pub(super) static GATHER: Program =
    Program::new("gather", concat!(include_str!("prelude.cuh"), include_str!("gather.cu")));
pub(super) static PROGRAMS: Family = family!("index", NUMBERS, "sort.cuh", "indexed.cuh", "index.cu");

/// Copies elements of `size` bytes.
pub(crate) fn gather(queue: &Queue<'_>, size: usize, gather: &Gather, operands: [Address; 3]) -> Result<()> {
    let Gather { loops, step, size: rows, .. } = gather;
    let lanes = 16 / size;
    let [part, whole, index] = operands.map(|at| at.0.cast_const());
    let mut walk =
        Walk::of(queue.op(), loops)?.vectors(lanes, [(part, size), (whole, size), (index, size_of::<i64>())]);
    // A vector has a single index, and vectors of input and output must be aligned.
    if !(walk.stands(2) && !walk.stands(1) && (*step as usize).is_multiple_of(lanes)) {
        walk = walk.single();
    }
    let [part, whole, index] = operands.map(Arg::from);
    let args = [part, whole, index, walk.arg(), Arg::I64(*step as i64), Arg::I64(*rows as i64), Arg::Fault];
    // SAFETY: the kernel takes these arguments, the walk is that of the operands, and an index is checked before it is
    // followed.
    unsafe {
        queue.kernel(&GATHER, &kernel_name(&["gather"], bits_name(size)), walk.grid(queue, lanes), &args)
    }
}

/// Enqueues base + sum of the entries' values of each row; `operands`: values and indices.
pub(crate) fn add(
    queue: &Queue<'_>,
    dtype: DType,
    entries: &Entries,
    sums: (Address, Option<Address>, &Places<2>),
    operands: [Address; 2],
    workspace: Option<Address>,
) -> Result<()> {
    entries.add(queue, (&PROGRAMS, "index_add", dtype), sums, operands, &[Arg::Fault], workspace)
}
