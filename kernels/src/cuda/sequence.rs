//! Cumulative sums and rotations.

use device::cuda::{Arg, Program};
use device::{DType, Result, Stream, Use};

use super::walk::{ByValue, THREADS, Walk, address, blocks};
use super::{by_dtype, float_programs, program};
use crate::layout::{Loops, View};

float_programs!("sequence", "rows.cuh", "sequence.cu");
static I64: Program = program!("sequence", "i64", 0, 0, "rows.cuh", "sequence.cu");

/// Threads that take a row together.
const WARP: u32 = 32;

/// `Scan` of the program.
#[repr(C)]
struct Scan {
    len: u64,
    steps: [i64; 2],
    reverse: u64,
}

// SAFETY: words of 64 bits.
unsafe impl ByValue for Scan {}

pub(crate) fn cumsum(
    stream: &Stream,
    kept: &Loops<2>,
    (len, steps, reverse): (usize, [isize; 2], bool),
    x: View<'_>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "cumsum";
    let rows = Walk::of(OP, kept)?;
    let program = if out.dtype == DType::I64 { &I64 } else { program_of(out.dtype) };
    let scan = Scan { len: len as u64, steps: steps.map(|step| step as i64), reverse: u64::from(reverse) };
    stream.submit(OP, &[Use::write(out.buffer), Use::read(x.buffer)], |queue| {
        let args = [Arg::Ptr(address(&out)), Arg::Ptr(address(&x)), rows.arg(), scan.arg()];
        let grid = blocks(queue, kept.elements.div_ceil((THREADS / WARP) as usize) as u64, THREADS);
        // SAFETY: the rows are those of the operands, whose layouts were checked, and the uses name their buffers.
        unsafe { queue.kernel(program, by_dtype!(out.dtype, "cumsum"), grid, &args) }
    })
}

pub(crate) fn rotary(
    stream: &Stream,
    pairs: &Loops<4>,
    (apart, inverse): ([isize; 2], bool),
    operands: [View<'_>; 4],
) -> Result<()> {
    const OP: &str = "rotary";
    let walk = Walk::of(OP, pairs)?;
    let [out, x, cos, sin] = operands;
    let (program, kernel) = (program_of(out.dtype), by_dtype!(out.dtype, "rotary"));
    let uses = [Use::write(out.buffer), Use::read(x.buffer), Use::read(cos.buffer), Use::read(sin.buffer)];
    stream.submit(OP, &uses, |queue| {
        let [out, x, cos, sin] = [&out, &x, &cos, &sin].map(|view| Arg::Ptr(address(view).cast_const()));
        let [out_apart, x_apart] = apart.map(|apart| Arg::I64(apart as i64));
        let args = [out, x, cos, sin, walk.arg(), out_apart, x_apart, Arg::U32(u32::from(inverse))];
        // SAFETY: as in `cumsum`.
        unsafe { queue.kernel(program, kernel, walk.grid(queue, 1), &args) }
    })
}
