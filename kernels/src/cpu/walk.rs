//! The loops behind every elementwise kernel, generic over the function and its inputs.
//!
//! Every loop calls the same scalar function, so the bits of an element do not depend on strides, position or threads,
//! except for the sign and payload of NaN, which the compiler chooses for each loop. Inputs are loaded a block at a time
//! before anything is stored: the output may be an input.

use std::array::from_fn;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

use super::{inlined, simd_of};
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

/// The inputs of a run, seen as blocks.
trait Inputs {
    /// One element of each input.
    type Elements: Copy;
    /// A block of `W` elements of each input.
    type Block<const W: usize>: Copy;

    /// Whether blocks lie one after the other, or are all alike.
    fn lies(&self) -> bool;

    /// Goes to the block of `W` elements from `i` on.
    ///
    /// # Safety
    /// Its elements may be read.
    unsafe fn go_to<const W: usize>(&mut self, i: isize);

    /// The block that is `b` blocks behind the one that [`go_to`](Self::go_to) went to.
    ///
    /// # Safety
    /// That is it, or the inputs [lie](Self::lies) and its elements may be read.
    unsafe fn block<const W: usize>(&self, b: isize) -> Self::Block<W>;

    /// Elements `j` of a block.
    fn of_block<const W: usize>(block: &Self::Block<W>, j: usize) -> Self::Elements;

    /// Elements `i`.
    ///
    /// # Safety
    /// They may be read.
    unsafe fn one(&self, i: isize) -> Self::Elements;
}

/// An input of a run, seen as blocks.
struct Input<T> {
    first: *const T,
    step: isize,
    /// Where the current block is, and in how many blocks the next one.
    block: *const T,
    next: isize,
    /// The block, where the elements do not lie as one.
    staged: [MaybeUninit<T>; BLOCK],
}

impl<T: Copy> Input<T> {
    /// # Safety
    /// The first element may be read.
    #[inline(always)]
    unsafe fn new(first: *const T, step: isize) -> Self {
        let mut staged = [const { MaybeUninit::uninit() }; BLOCK];
        if step == 0 {
            // SAFETY: the caller promises that the first element may be read.
            staged = [MaybeUninit::new(unsafe { *first }); BLOCK];
        }
        Input { first, step, block: first, next: 0, staged }
    }
}

impl<T: Copy, const N: usize> Inputs for [Input<T>; N] {
    type Elements = [T; N];
    type Block<const W: usize> = [[T; W]; N];

    #[inline(always)]
    fn lies(&self) -> bool {
        self.iter().all(inlined!(|input: &Input<T>| input.step == 1 || input.step == 0))
    }

    #[inline(always)]
    unsafe fn go_to<const W: usize>(&mut self, i: isize) {
        for input in self {
            if input.step == 1 {
                (input.block, input.next) = (input.first.wrapping_offset(i), W as isize);
                continue;
            }
            if input.step != 0 {
                let from = input.first.wrapping_offset(i * input.step);
                // SAFETY: the caller promises that the `W` elements from `i` on, at steps of `step`, may be read.
                unsafe { gather(from, input.step, &mut input.staged[..W]) };
            }
            (input.block, input.next) = (input.staged.as_ptr().cast(), 0);
        }
    }

    #[inline(always)]
    unsafe fn block<const W: usize>(&self, b: isize) -> [[T; W]; N] {
        self.each_ref().map(inlined!(|input: &Input<T>| {
            // SAFETY: the caller promises that block `b` may be read, and blocks that are staged are all one.
            unsafe { input.block.offset(b * input.next).cast::<[T; W]>().read() }
        }))
    }

    #[inline(always)]
    fn of_block<const W: usize>(block: &[[T; W]; N], j: usize) -> [T; N] {
        block.each_ref().map(inlined!(|block: &[T; W]| block[j]))
    }

    #[inline(always)]
    unsafe fn one(&self, i: isize) -> [T; N] {
        // SAFETY: the caller promises that elements `i` may be read.
        self.each_ref().map(inlined!(|input: &Input<T>| unsafe { *input.first.offset(i * input.step) }))
    }
}

/// Inputs of two types.
impl<A: Inputs, B: Inputs> Inputs for (A, B) {
    type Elements = (A::Elements, B::Elements);
    type Block<const W: usize> = (A::Block<W>, B::Block<W>);

    #[inline(always)]
    fn lies(&self) -> bool {
        self.0.lies() && self.1.lies()
    }

    #[inline(always)]
    unsafe fn go_to<const W: usize>(&mut self, i: isize) {
        // SAFETY: the contract is the same.
        unsafe { (self.0.go_to::<W>(i), self.1.go_to::<W>(i)) };
    }

    #[inline(always)]
    unsafe fn block<const W: usize>(&self, b: isize) -> Self::Block<W> {
        // SAFETY: the contract is the same.
        unsafe { (self.0.block::<W>(b), self.1.block::<W>(b)) }
    }

    #[inline(always)]
    fn of_block<const W: usize>(block: &Self::Block<W>, j: usize) -> Self::Elements {
        (A::of_block(&block.0, j), B::of_block(&block.1, j))
    }

    #[inline(always)]
    unsafe fn one(&self, i: isize) -> Self::Elements {
        // SAFETY: the contract is the same.
        unsafe { (self.0.one(i), self.1.one(i)) }
    }
}

/// Copies elements at steps of `step` to a block.
///
/// # Safety
/// They may be read.
#[inline(never)]
unsafe fn gather<T: Copy>(from: *const T, step: isize, to: &mut [MaybeUninit<T>]) {
    for (j, to) in to.iter_mut().enumerate() {
        // SAFETY: the caller promises as many readable elements as `to` has places, and `j` is below that.
        to.write(unsafe { *from.offset(j as isize * step) });
    }
}

/// Copies a block to elements at steps of `step`.
///
/// # Safety
/// They may be written.
#[inline(never)]
unsafe fn scatter<T: Copy>(from: &[MaybeUninit<T>], to: *mut T, step: isize) {
    for (j, from) in from.iter().enumerate() {
        // SAFETY: the caller promises as many writable elements as `from` has, and `j` is below that.
        unsafe { to.cast::<MaybeUninit<T>>().offset(j as isize * step).write(*from) };
    }
}

/// The output of a run, seen as blocks.
struct Output<T> {
    first: *mut T,
    step: isize,
    len: isize,
    /// Elements that are done.
    done: isize,
    /// The block, where the elements do not lie as one.
    staged: [MaybeUninit<T>; BLOCK],
}

impl<T: Copy> Output<T> {
    #[inline(always)]
    fn new(first: *mut T, step: isize, len: usize) -> Self {
        Output { first, step, len: len as isize, done: 0, staged: [const { MaybeUninit::uninit() }; BLOCK] }
    }

    /// How many blocks of `W` elements to do next, and where the first one is: all that are left if they lie one
    /// after the other and so do the inputs, else one.
    #[inline(always)]
    fn blocks<const W: usize>(&mut self, inputs_lie: bool) -> Option<(isize, *mut [MaybeUninit<T>; W])> {
        let left = (self.len - self.done) / W as isize;
        if left == 0 {
            return None;
        }
        if self.step == 1 {
            let to = self.first.wrapping_offset(self.done).cast();
            return Some((if inputs_lie { left } else { 1 }, to));
        }
        Some((1, self.staged.as_mut_ptr().cast()))
    }

    /// Takes note that `count` blocks are done.
    ///
    /// # Safety
    /// They may be written.
    #[inline(always)]
    unsafe fn did<const W: usize>(&mut self, count: isize) {
        if self.step != 1 {
            // SAFETY: the caller promises that the block of `W` elements from `done` on may be written, and `blocks`
            // returns one block at a time if the step is not 1.
            unsafe { scatter(&self.staged[..W], self.first.offset(self.done * self.step), self.step) };
        }
        self.done += count * W as isize;
    }

    /// Stores the next element.
    ///
    /// # Safety
    /// It may be written.
    #[inline(always)]
    unsafe fn push(&mut self, value: T) {
        // SAFETY: the caller promises that element `done` may be written.
        unsafe { *self.first.offset(self.done * self.step) = value };
        self.done += 1;
        end_of_block();
    }
}

/// Keeps the compiler from vectorising over blocks as well, which only adds code.
#[inline(always)]
fn end_of_block() {
    compiler_fence(Ordering::SeqCst);
}

/// Does a run: blocks, then small blocks, and what is left one by one.
///
/// # Safety
/// The elements of the output may be written, and those of the inputs be read. The output may be an input, element for
/// element.
#[inline(always)]
unsafe fn run<O: Copy, I: Inputs>(mut out: Output<O>, mut inputs: I, f: &impl Fn(I::Elements) -> O) {
    // SAFETY: the caller promises the elements, and blocks stay within the output's length.
    unsafe {
        blocks::<O, I, BLOCK>(&mut out, &mut inputs, f);
        blocks::<O, I, SMALL_BLOCK>(&mut out, &mut inputs, f);
        while out.done < out.len {
            out.push(f(inputs.one(out.done)));
        }
    }
}

/// Does all blocks of `W` elements that are left.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn blocks<O: Copy, I: Inputs, const W: usize>(
    out: &mut Output<O>,
    inputs: &mut I,
    f: &impl Fn(I::Elements) -> O,
) {
    while let Some((count, to)) = out.blocks::<W>(inputs.lies()) {
        // SAFETY: the caller promises that the blocks left in `out` may be written, and the same elements of the inputs
        // read. A block is read before it is written.
        unsafe {
            inputs.go_to::<W>(out.done);
            for b in 0..count {
                let block = inputs.block::<W>(b);
                let mut values = [const { MaybeUninit::uninit() }; W];
                // Such a loop becomes vector code, which `array::map` does not.
                for (j, value) in values.iter_mut().enumerate() {
                    value.write(f(I::of_block(&block, j)));
                }
                to.offset(b).write(values);
                end_of_block();
            }
            out.did::<W>(count);
        }
    }
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
    const { assert!(OPERANDS == N + 1) };
    drive::<WIDE, _>(
        walk,
        workers,
        // SAFETY: `walk` yields only offsets of elements that the caller vouches for.
        |at| unsafe { *out.at(at[0]) = f(from_fn(inlined!(|k| *inputs[k].at(at[k + 1])))) },
        inlined!(|at: [isize; OPERANDS], len, steps: [isize; OPERANDS]| {
            // SAFETY: `walk` yields only runs of elements that the caller vouches for.
            unsafe {
                let inputs = from_fn(inlined!(|k| Input::new(inputs[k].at(at[k + 1]), steps[k + 1])));
                run(Output::new(out.at(at[0]), steps[0], len), inputs, &f);
            }
        }),
    );
}

/// `out[i] = if condition[i] { x[i] } else { y[i] }`.
///
/// # Safety
/// As for [`map`].
#[inline(always)]
pub(crate) unsafe fn select<T: Copy>(
    walk: &Places<4>,
    workers: &Workers,
    out: Dst<T>,
    condition: Src<u8>,
    [x, y]: [Src<T>; 2],
) {
    let f = inlined!(|([condition], [x, y]): ([u8; 1], [T; 2])| if condition != 0 { x } else { y });
    drive::<false, _>(
        walk,
        workers,
        // SAFETY: `walk` yields only offsets of elements that the caller vouches for.
        |[oo, oc, ox, oy]| unsafe { *out.at(oo) = f(([*condition.at(oc)], [*x.at(ox), *y.at(oy)])) },
        inlined!(|[oo, oc, ox, oy], len, [so, sc, sx, sy]| {
            // SAFETY: `walk` yields only runs of elements that the caller vouches for.
            unsafe {
                let inputs = (
                    [Input::new(condition.at(oc), sc)],
                    [Input::new(x.at(ox), sx), Input::new(y.at(oy), sy)],
                );
                run(Output::new(out.at(oo), so, len), inputs, &f);
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

/// `out[i] = f([x[i], y[i], ..])` for `len` elements at the given steps.
///
/// # Safety
/// The elements may be written and read; `out` may be an input, element for element.
#[inline(always)]
pub(crate) unsafe fn map_run<O: Copy, A: Copy, const N: usize>(
    len: usize,
    out: (*mut O, isize),
    inputs: [(*const A, isize); N],
    f: impl Fn([A; N]) -> O,
) {
    // SAFETY: the caller promises `len` elements of each.
    unsafe {
        let inputs = inputs.map(inlined!(|(first, step)| Input::new(first, step)));
        run(Output::new(out.0, out.1, len), inputs, &f);
    }
}
