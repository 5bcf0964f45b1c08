//! Reading and adding at indices, which the kernels check.

use device::cuda::{Arg, Program};
use device::{Result, Stream, Use};

use super::sums::{HELD, Owned};
use super::walk::{ByValue, THREADS, Walk, address, blocks};
use super::{by_dtype, by_size, number_programs};
use crate::layout::{LoopAxis, Loops, View};

pub(super) static GATHER: Program =
    Program::new("gather", concat!(include_str!("prelude.cuh"), include_str!("gather.cu")));
number_programs!("index", "sums.cuh", "index.cu");

/// `out[.., i, ..] = x[.., indices[i], ..]`, a gather with the same index along all other axes.
pub(crate) fn select(
    stream: &Stream,
    x: View<'_>,
    axis: usize,
    indices: View<'_>,
    out: View<'_>,
) -> Result<()> {
    let loops = Loops::from_axes((0..out.layout.rank()).map(|i| {
        let (to, from) = (out.layout.strides()[i], x.layout.strides()[i]);
        let strides = if i == axis { [to, 0, indices.layout.strides()[0]] } else { [to, from, 0] };
        LoopAxis { size: out.shape()[i], strides }
    }));
    let along = (x.layout.strides()[axis], x.shape()[axis]);
    gather(stream, "index_select", &loops, along, x, indices, out)
}

/// Gathers over `loops` of `(out, x, indices)`; `(step, size)` are those of `x` along the axis.
pub(crate) fn gather(
    stream: &Stream,
    op: &'static str,
    loops: &Loops<3>,
    (step, size): (isize, usize),
    x: View<'_>,
    indices: View<'_>,
    out: View<'_>,
) -> Result<()> {
    if loops.elements == 0 {
        return Ok(());
    }
    let bytes = out.dtype.size_bytes();
    let lanes = 16 / bytes;
    let operands = [(address(&out), bytes), (address(&x), bytes), (address(&indices), 8)];
    let mut walk = Walk::of(op, loops)?.vectors(lanes, operands.map(|(ptr, size)| (ptr.cast_const(), size)));
    // A vector has one index, and begins where a vector may begin in `x`.
    if !(walk.stands(2) && !walk.stands(1) && (step as usize).is_multiple_of(lanes)) {
        walk = walk.single();
    }
    let uses = [Use::write(out.buffer), Use::read(x.buffer), Use::read(indices.buffer)];
    stream.submit(op, &uses, |queue| {
        let [a, b, c] = operands.map(|(ptr, _)| Arg::Ptr(ptr));
        let args = [a, b, c, walk.arg(), Arg::I64(step as i64), Arg::I64(size as i64), Arg::Fault];
        // SAFETY: the walk is that of the operands, whose layouts were checked; an index is checked before it is
        // followed, and the uses name all buffers.
        unsafe { queue.kernel(&GATHER, by_size!(bytes, "gather"), walk.grid(queue, lanes), &args) }
    })
}

/// `IndexAdd` of the program.
#[repr(C)]
struct IndexAdd {
    count: u64,
    index_step: i64,
    src_step: i64,
    out_step: i64,
    size: i64,
    rows: u64,
    width: u32,
    pad: u32,
}

// SAFETY: words of 64 bits, and two of 32.
unsafe impl ByValue for IndexAdd {}

pub(crate) fn index_add(
    stream: &Stream,
    out: View<'_>,
    axis: usize,
    indices: View<'_>,
    src: View<'_>,
) -> Result<()> {
    const OP: &str = "index_add";
    let others = (0..out.layout.rank()).filter(|&i| i != axis);
    let columns = Loops::over([src.layout, out.layout], others);
    let (count, size) = (indices.shape()[0], out.shape()[axis]);
    if columns.elements == 0 || count == 0 {
        return Ok(());
    }
    let walk = Walk::of(OP, &columns)?;
    let uses = [Use::write(out.buffer), Use::read(src.buffer), Use::read(indices.buffer)];
    stream.submit(OP, &uses, |queue| {
        let Owned { rows, width, grid } = Owned::of(queue, out.dtype, [size, columns.elements]);
        let what = IndexAdd {
            count: count as u64,
            index_step: indices.layout.strides()[0] as i64,
            src_step: src.layout.strides()[axis] as i64,
            out_step: out.layout.strides()[axis] as i64,
            size: size as i64,
            rows: rows as u64,
            width: width as u32,
            pad: 0,
        };
        let [a, b, c] = [&out, &src, &indices].map(|view| Arg::Ptr(address(view)));
        let args = [a, b, c, walk.arg(), what.arg(), Arg::Fault];
        // SAFETY: rows and columns are those of the operands, whose layouts were checked; an index is checked before
        // it is followed, and the uses name all buffers.
        unsafe { queue.kernel(program_of(out.dtype), by_dtype!(out.dtype, "index_add"), grid, &args) }
    })
}

/// `ScatterAdd` of the program.
#[repr(C)]
struct ScatterAdd {
    count: u64,
    steps: [i64; 3],
    size: i64,
    groups: u32,
    pad: u32,
}

// SAFETY: words of 64 bits, and two of 32.
unsafe impl ByValue for ScatterAdd {}

pub(crate) fn scatter_add(
    stream: &Stream,
    out: View<'_>,
    axis: usize,
    indices: View<'_>,
    src: View<'_>,
) -> Result<()> {
    const OP: &str = "scatter_add";
    let operands = [src, out, indices];
    let lines = Loops::from_axes((0..out.layout.rank()).filter(|&i| i != axis).map(|i| LoopAxis {
        size: indices.shape()[i],
        strides: operands.map(|view| view.layout.strides()[i]),
    }));
    let (count, size) = (indices.shape()[axis], out.shape()[axis]);
    if lines.elements == 0 || count == 0 {
        return Ok(());
    }
    let walk = Walk::of(OP, &lines)?;
    let uses = [Use::write(out.buffer), Use::read(src.buffer), Use::read(indices.buffer)];
    stream.submit(OP, &uses, |queue| {
        // Where lines are few, several threads go through each, for different places. Short lines are not worth it.
        let busy = queue.multiprocessors() as usize * 4 * THREADS as usize;
        let groups = (busy / lines.elements).min(size).min(count / 16).max(1);
        let needed = if out.dtype.is_half() { size.div_ceil(HELD).next_power_of_two() } else { 1 };
        let groups = (1 << groups.ilog2()).max(needed) as u32;
        let what = ScatterAdd {
            count: count as u64,
            steps: operands.map(|view| view.layout.strides()[axis] as i64),
            size: size as i64,
            groups,
            pad: 0,
        };
        let threads = lines.elements as u64 * u64::from(groups);
        let grid = blocks(queue, threads.div_ceil(u64::from(THREADS)), THREADS);
        let [a, b, c] = [&out, &src, &indices].map(|view| Arg::Ptr(address(view)));
        let args = [a, b, c, walk.arg(), what.arg(), Arg::Fault];
        // SAFETY: as in `index_add`.
        unsafe { queue.kernel(program_of(out.dtype), by_dtype!(out.dtype, "scatter_add"), grid, &args) }
    })
}
