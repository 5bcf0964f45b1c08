//! The loops behind every elementwise kernel, generic over the function and its inputs.
//!
//! Every loop calls the same scalar function, so the bits of an element do not depend on strides, position or threads,
//! except for the sign and payload of NaN, which the compiler chooses for each loop. Inputs are loaded a block at a time
//! before anything is stored: the output may be an input.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

use super::{array, inlined, simd_of};
use crate::layout::{Dst, Src};
use crate::loops::{Loops, Places};
use crate::par::{Workers, for_range};

/// Below this a plain loop is done before a dispatch would be.
const TINY: usize = 16;
/// Elements of a part when a kernel is split over threads.
const CHUNK: usize = 1 << 15;
/// Elements of a block, and of the blocks that follow where no such block is left. What is left then goes one by
/// one: three loops for each function and instruction set, whatever the strides.
const BLOCK: usize = 32;
const SMALL_BLOCK: usize = 8;

/// The first element of an operand, and the step from one element to the next.
type Strided<T> = (*const T, isize);

/// Whether the blocks of each input are contiguous, or all of one element.
#[inline(always)]
fn are_dense<T, const N: usize>(inputs: [Strided<T>; N]) -> bool {
    inputs.iter().all(inlined!(|(_, step): &Strided<T>| *step == 1 || *step == 0))
}

/// Returns the first block of `W` elements from `i` on and the step to the next one, for [`block`]. Blocks that are not
/// contiguous are copied to `staged`. The inputs stay values in registers, apart from that memory, because the fence at the
/// end of a block has the compiler reload what lies in memory.
///
/// # Safety
/// The block may be read, and `staged` be written.
#[inline(always)]
unsafe fn first_block<T: Copy, const N: usize, const W: usize>(
    inputs: [Strided<T>; N],
    i: isize,
    staged: *mut [[T; W]; N],
) -> [Strided<T>; N] {
    array(inlined!(|k| {
        let (first, step) = inputs[k];
        if step == 1 {
            return (first.wrapping_offset(i), W as isize);
        }
        let staged = staged.cast::<[T; W]>().wrapping_add(k);
        // SAFETY: the caller promises that the `W` elements from `i` on, at steps of `step`, may be read, and
        // `staged`, which has a block for each input, be written.
        unsafe {
            if step == 0 {
                staged.write([*first; W]);
            } else {
                gather::<T, W>(first.offset(i * step), step, staged.cast());
            }
        }
        (staged.cast_const().cast(), 0)
    }))
}

/// Returns block `b` of those of [`first_block`].
///
/// # Safety
/// It may be read. `b` is 0, or the inputs [are dense](are_dense).
#[inline(always)]
unsafe fn block<T: Copy, const N: usize, const W: usize>(blocks: [Strided<T>; N], b: isize) -> [[T; W]; N] {
    // SAFETY: the caller promises that block `b` may be read.
    array(inlined!(|k| unsafe { blocks[k].0.offset(b * blocks[k].1).cast::<[T; W]>().read() }))
}

/// Elements `j` of a block.
#[inline(always)]
fn of_block<T: Copy, const N: usize, const W: usize>(block: &[[T; W]; N], j: usize) -> [T; N] {
    array(inlined!(|k| block[k][j]))
}

/// Elements `i`.
///
/// # Safety
/// They may be read.
#[inline(always)]
unsafe fn one<T: Copy, const N: usize>(inputs: [Strided<T>; N], i: isize) -> [T; N] {
    // SAFETY: the caller promises that elements `i` may be read.
    array(inlined!(|k| unsafe { *inputs[k].0.offset(i * inputs[k].1) }))
}

/// Copies `W` elements at steps of `step` to a block. The number is a constant so that the compiler unrolls the loop, whose
/// speed otherwise depends on its alignment.
///
/// # Safety
/// They may be read, and the block has `W` elements.
#[inline(never)]
unsafe fn gather<T: Copy, const W: usize>(from: *const T, step: isize, to: *mut T) {
    for j in 0..W {
        // SAFETY: the caller promises `W` elements on both sides, and `j` is below that.
        unsafe { *to.add(j) = *from.offset(j as isize * step) };
    }
}

/// Copies a block to `W` elements at steps of `step`; see [`gather`].
///
/// # Safety
/// They may be written, and the block has `W` elements.
#[inline(never)]
unsafe fn scatter<T: Copy, const W: usize>(from: *const T, to: *mut T, step: isize) {
    for j in 0..W {
        // SAFETY: the caller promises `W` elements on both sides, and `j` is below that.
        unsafe { *to.offset(j as isize * step) = *from.add(j) };
    }
}

/// Keeps the compiler from vectorising over blocks as well, which only adds code.
#[inline(always)]
fn end_of_block() {
    compiler_fence(Ordering::SeqCst);
}

/// `out[i] = f(xs[i], ys[i])` for `len` elements: in blocks, in small blocks, and the remainder one by one.
///
/// # Safety
/// The elements of the output may be written, and those of the inputs be read. The output may be an input, element for
/// element.
#[inline(always)]
unsafe fn run<O: Copy, A: Copy, B: Copy, const N: usize, const M: usize>(
    len: usize,
    (out, step): (*mut O, isize),
    xs: [Strided<A>; N],
    ys: [Strided<B>; M],
    f: &impl Fn([A; N], [B; M]) -> O,
) {
    let len = len as isize;
    // SAFETY: the caller promises `len` elements of each.
    unsafe {
        let done = blocks::<O, A, B, N, M, BLOCK>(0..len, (out, step), xs, ys, f);
        let done = blocks::<O, A, B, N, M, SMALL_BLOCK>(done..len, (out, step), xs, ys, f);
        for i in done..len {
            *out.offset(i * step) = f(one(xs, i), one(ys, i));
            end_of_block();
        }
    }
}

/// Does all whole blocks of `W` elements of a range. Returns where the rest begins.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn blocks<O: Copy, A: Copy, B: Copy, const N: usize, const M: usize, const W: usize>(
    range: Range<isize>,
    (out, step): (*mut O, isize),
    xs: [Strided<A>; N],
    ys: [Strided<B>; M],
    f: &impl Fn([A; N], [B; M]) -> O,
) -> isize {
    let mut i = range.start;
    let (mut staged_xs, mut staged_ys) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    let mut results = [const { MaybeUninit::<O>::uninit() }; W];
    let is_dense = step == 1 && are_dense(xs) && are_dense(ys);
    while range.end - i >= W as isize {
        let count = if is_dense { (range.end - i) / W as isize } else { 1 };
        // SAFETY: the caller promises the elements of `range`, of which these are `count` blocks. A block is read before
        // it is written.
        unsafe {
            let xs = first_block::<A, N, W>(xs, i, staged_xs.as_mut_ptr());
            let ys = first_block::<B, M, W>(ys, i, staged_ys.as_mut_ptr());
            let to = if step == 1 { out.offset(i) } else { results.as_mut_ptr().cast() };
            for b in 0..count {
                let (xs, ys) = (block::<A, N, W>(xs, b), block::<B, M, W>(ys, b));
                let mut values = [const { MaybeUninit::<O>::uninit() }; W];
                // Such a loop becomes vector code, which `array::map` does not.
                for (j, value) in values.iter_mut().enumerate() {
                    value.write(f(of_block(&xs, j), of_block(&ys, j)));
                }
                to.offset(b * W as isize).cast::<[MaybeUninit<O>; W]>().write(values);
                end_of_block();
            }
            if step != 1 {
                scatter::<O, W>(to, out.offset(i * step), step);
            }
        }
        i += count * W as isize;
    }
    i
}

/// Runs a kernel: few elements one by one with `single(offsets)`, others by `run(offsets, len, steps)`. `WIDE` as for
/// [`simd_of`].
#[inline(always)]
fn drive<const WIDE: bool, const N: usize>(
    walk: &Places<N>,
    workers: &Workers,
    single: impl Fn([isize; N]),
    run: impl Fn([isize; N], usize, [isize; N]) + Sync,
) {
    if let Places::Run { elements, steps } = walk
        && *elements < TINY
    {
        let mut offsets = [0; N];
        for _ in 0..*elements {
            single(offsets);
            for (offset, step) in offsets.iter_mut().zip(steps) {
                *offset += step;
            }
        }
        return;
    }
    for_range(workers, walk.elements(), CHUNK, &|range| {
        simd_of::<WIDE, _>(inlined!(|| {
            let mut runs = walk.runs(range.clone());
            while let Some((offsets, len)) = runs.next() {
                run(offsets, len, runs.steps());
            }
        }));
    });
}

/// `out[i] = f([x[i], y[i], ..])`; `walk` has the output first.
///
/// # Safety
/// The elements that `walk` reaches lie in the memory of `out` and the inputs and are valid values; meanwhile nobody else
/// writes to the inputs or touches `out`. `out` may be an input, element for element.
#[inline(always)]
pub(crate) unsafe fn map<const WIDE: bool, O: Copy, A: Copy, const N: usize, const OPERANDS: usize>(
    walk: &Places<OPERANDS>,
    workers: &Workers,
    out: Dst<O>,
    inputs: [Src<A>; N],
    f: impl Fn([A; N]) -> O + Sync,
) {
    // SAFETY: the contract is the same.
    unsafe {
        map_two::<WIDE, _, _, u8, N, 0, _>(walk, workers, out, inputs, [], inlined!(|inputs, _| f(inputs)));
    }
}

/// As [`map`], with inputs of two types: `walk` has the `ys` after the `xs`.
///
/// # Safety
/// As for [`map`].
#[inline(always)]
pub(crate) unsafe fn map_two<
    const WIDE: bool,
    O: Copy,
    A: Copy,
    B: Copy,
    const N: usize,
    const M: usize,
    const OPERANDS: usize,
>(
    walk: &Places<OPERANDS>,
    workers: &Workers,
    out: Dst<O>,
    xs: [Src<A>; N],
    ys: [Src<B>; M],
    f: impl Fn([A; N], [B; M]) -> O + Sync,
) {
    const { assert!(OPERANDS == 1 + N + M) };
    drive::<WIDE, _>(
        walk,
        workers,
        // SAFETY: `walk` yields only offsets of elements that the caller vouches for.
        |at| unsafe {
            let xs = array(inlined!(|k| *xs[k].at(at[1 + k])));
            *out.at(at[0]) = f(xs, array(inlined!(|k| *ys[k].at(at[1 + N + k]))));
        },
        inlined!(|at: [isize; OPERANDS], len, steps: [isize; OPERANDS]| {
            // SAFETY: `walk` yields only runs of elements that the caller vouches for.
            unsafe {
                let xs: [Strided<A>; N] = array(inlined!(|k| (xs[k].at(at[1 + k]), steps[1 + k])));
                let ys: [Strided<B>; M] = array(inlined!(|k| (ys[k].at(at[1 + N + k]), steps[1 + N + k])));
                run(len, (out.at(at[0]), steps[0]), xs, ys, &f);
            }
        }),
    );
}

/// Copies the elements `range` of a loop nest to `to`, one after the other.
///
/// # Safety
/// They may be read, and `to` has room for them, which does not overlap them.
#[inline(always)]
pub(crate) unsafe fn collect<T: Copy>(loops: &Loops<1>, range: Range<usize>, from: *const T, mut to: *mut T) {
    let [step] = loops.inner().strides;
    loops.for_runs(
        range,
        inlined!(|[offset], len| {
            let from = from.wrapping_offset(offset);
            // SAFETY: `loops` reaches only elements that the caller promises to be readable, and the runs add up to
            // `range`, for which `to` has room.
            unsafe {
                match step {
                    0 => std::slice::from_raw_parts_mut(to.cast::<MaybeUninit<T>>(), len)
                        .fill(MaybeUninit::new(*from)),
                    1 => std::ptr::copy_nonoverlapping(from, to, len),
                    _ => (0..len).for_each(inlined!(|i| *to.add(i) = *from.offset(i as isize * step))),
                }
            }
            to = to.wrapping_add(len);
        }),
    );
}

/// Copies elements that lie one after the other to the elements `range` of a loop nest.
///
/// # Safety
/// These may be written, and `from` has as many, which do not overlap them.
#[inline(always)]
pub(crate) unsafe fn spread<T: Copy>(loops: &Loops<1>, range: Range<usize>, mut from: *const T, to: *mut T) {
    let [step] = loops.inner().strides;
    loops.for_runs(
        range,
        inlined!(|[offset], len| {
            let to = to.wrapping_offset(offset);
            // SAFETY: `loops` reaches only elements that the caller promises to be writable, and the runs add up to
            // `range`, of which `from` has all elements.
            unsafe {
                match step {
                    1 => std::ptr::copy_nonoverlapping(from, to, len),
                    _ => (0..len).for_each(inlined!(|i| *to.offset(i as isize * step) = *from.add(i))),
                }
            }
            from = from.wrapping_add(len);
        }),
    );
}

/// `out[i] = f([x[i], y[i], ..])` for `len` elements at the given steps.
///
/// # Safety
/// The elements may be written and read; `out` may be an input, element for element.
#[inline(always)]
pub(crate) unsafe fn map_run<O: Copy, A: Copy, const N: usize>(
    len: usize,
    out: (*mut O, isize),
    inputs: [Strided<A>; N],
    f: impl Fn([A; N]) -> O,
) {
    // SAFETY: the contract is the same.
    unsafe { run::<_, _, u8, N, 0>(len, out, inputs, [], &inlined!(|inputs, _| f(inputs))) }
}
