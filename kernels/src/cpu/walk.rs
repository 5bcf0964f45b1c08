//! The loops behind every elementwise kernel: one for each number of operands, generic over the function.
//!
//! An element goes through the same scalar function whichever loop meets it, so its bits do not depend on strides,
//! position or threads. Inputs are loaded a block at a time before anything is stored: the output may be an input.

use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, compiler_fence};

use super::number::Number;
use super::{inlined, simd_of};
use crate::layout::{Dst, Src};
use crate::loops::Places;
use crate::par::{Workers, for_range};

/// Below this a plain loop is done before a dispatch would be.
const TINY: usize = 16;
/// Elements of a part when a kernel is split over threads.
const CHUNK: usize = 1 << 15;
/// Elements of a block, and of the blocks that follow where no such block is left. What is left then goes one by
/// one: three loops for each function and instruction set, whatever the strides.
const BLOCK: usize = 32;
const SMALL_BLOCK: usize = 8;

/// An input of a run, seen as blocks.
struct Input<T> {
    first: *const T,
    step: isize,
    /// The block, where the elements do not lie as one.
    staged: [MaybeUninit<T>; BLOCK],
}

impl<T: Copy> Input<T> {
    /// # Safety
    /// The first element may be read.
    #[inline(always)]
    unsafe fn new((first, step): (*const T, isize)) -> Self {
        let mut staged = [const { MaybeUninit::uninit() }; BLOCK];
        if step == 0 {
            // SAFETY: the caller promises that the first element may be read.
            staged = [MaybeUninit::new(unsafe { *first }); BLOCK];
        }
        Input { first, step, staged }
    }

    /// Whether blocks lie one after the other, or are all alike.
    #[inline(always)]
    fn lies(&self) -> bool {
        self.step == 1 || self.step == 0
    }

    /// Where the block of `W` elements from `i` on is, and in how many blocks the next one; without effect if the
    /// input [`lies`](Self::lies).
    ///
    /// # Safety
    /// The elements of one block may be read.
    #[inline(always)]
    unsafe fn blocks<const W: usize>(&mut self, i: isize) -> (*const [T; W], isize) {
        if self.step == 1 {
            return (self.first.wrapping_offset(i).cast(), 1);
        }
        if self.step != 0 {
            // SAFETY: the caller promises that the `W` elements from `i` on, at steps of `step`, may be read.
            unsafe { gather(self.first.offset(i * self.step), self.step, &mut self.staged[..W]) };
        }
        (self.staged.as_ptr().cast(), 0)
    }

    /// Element `i`.
    ///
    /// # Safety
    /// It may be read.
    #[inline(always)]
    unsafe fn one(&self, i: isize) -> T {
        // SAFETY: the caller promises that element `i` may be read.
        unsafe { *self.first.offset(i * self.step) }
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
    fn new((first, step): (*mut T, isize), len: usize) -> Self {
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

// The loops below become vector code, which loops made of closures (`array::map`) do not.

#[inline(always)]
fn each1<O: Copy, A: Copy, const W: usize>(x: [A; W], f: &impl Fn(A) -> O) -> [MaybeUninit<O>; W] {
    let mut values = [const { MaybeUninit::uninit() }; W];
    for j in 0..W {
        values[j].write(f(x[j]));
    }
    values
}

#[inline(always)]
fn each2<O: Copy, A: Copy, B: Copy, const W: usize>(
    x: [A; W],
    y: [B; W],
    f: &impl Fn(A, B) -> O,
) -> [MaybeUninit<O>; W] {
    let mut values = [const { MaybeUninit::uninit() }; W];
    for j in 0..W {
        values[j].write(f(x[j], y[j]));
    }
    values
}

#[inline(always)]
fn each3<O: Copy, A: Copy, B: Copy, C: Copy, const W: usize>(
    x: [A; W],
    y: [B; W],
    z: [C; W],
    f: &impl Fn(A, B, C) -> O,
) -> [MaybeUninit<O>; W] {
    let mut values = [const { MaybeUninit::uninit() }; W];
    for j in 0..W {
        values[j].write(f(x[j], y[j], z[j]));
    }
    values
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

/// `out[i] = value`.
///
/// # Safety
/// The elements that `walk` reaches lie in the memory of `out`, and nobody else touches them meanwhile.
#[inline(always)]
pub(crate) unsafe fn map0<O: Copy + Sync>(walk: &Places<1>, workers: &Workers, out: Dst<O>, value: O) {
    drive::<false, _>(
        walk,
        workers,
        // SAFETY: `walk` yields only offsets of elements that the caller vouches for.
        |[oo]| unsafe { *out.at(oo) = value },
        inlined!(|[oo], len, [so]| {
            let mut out = Output::new((out.at(oo), so), len);
            // SAFETY: `walk` yields only runs of elements that the caller vouches for, and `blocks` and `push` stay
            // within `len`.
            unsafe {
                while let Some((count, to)) = out.blocks::<BLOCK>(true) {
                    for b in 0..count {
                        to.offset(b).write([MaybeUninit::new(value); BLOCK]);
                        end_of_block();
                    }
                    out.did::<BLOCK>(count);
                }
                while out.done < out.len {
                    out.push(value);
                }
            }
        }),
    );
}

/// `out[i] = f(x[i])`.
///
/// # Safety
/// The elements that `walk` reaches lie in the memory of `out` and `x` and are valid values; meanwhile nobody else
/// writes to `x` or touches `out`. `out` may be `x`, element for element.
#[inline(always)]
pub(crate) unsafe fn map1<const WIDE: bool, O: Copy, A: Copy>(
    walk: &Places<2>,
    workers: &Workers,
    out: Dst<O>,
    x: Src<A>,
    f: impl Fn(A) -> O + Sync,
) {
    drive::<WIDE, _>(
        walk,
        workers,
        // SAFETY: `walk` yields only offsets of elements that the caller vouches for.
        |[oo, ox]| unsafe { *out.at(oo) = f(*x.at(ox)) },
        inlined!(|[oo, ox], len, [so, sx]| {
            let mut out = Output::new((out.at(oo), so), len);
            // SAFETY: `walk` yields only runs of elements that the caller vouches for, and blocks stay within `len`.
            // A block is read before it is written, so `out` may be `x`.
            unsafe {
                let mut x = Input::new((x.at(ox), sx));
                blocks1::<O, A, BLOCK>(&mut out, &mut x, &f);
                blocks1::<O, A, SMALL_BLOCK>(&mut out, &mut x, &f);
                while out.done < out.len {
                    out.push(f(x.one(out.done)));
                }
            }
        }),
    );
}

/// Does all blocks of `W` elements that are left.
///
/// # Safety
/// They may be written, and read.
#[inline(always)]
unsafe fn blocks1<O: Copy, A: Copy, const W: usize>(
    out: &mut Output<O>,
    x: &mut Input<A>,
    f: &impl Fn(A) -> O,
) {
    while let Some((count, to)) = out.blocks::<W>(x.lies()) {
        // SAFETY: the caller promises that the blocks left in `out` may be written, and the same elements of `x`
        // read.
        unsafe {
            let (x, dx) = x.blocks::<W>(out.done);
            for b in 0..count {
                to.offset(b).write(each1(x.offset(b * dx).read(), f));
                end_of_block();
            }
            out.did::<W>(count);
        }
    }
}

/// `out[i] = f(x[i], y[i])`.
///
/// # Safety
/// As for [`map1`]; `out` may be either input, element for element.
#[inline(always)]
pub(crate) unsafe fn map2<const WIDE: bool, O: Copy, A: Copy, B: Copy>(
    walk: &Places<3>,
    workers: &Workers,
    out: Dst<O>,
    (x, y): (Src<A>, Src<B>),
    f: impl Fn(A, B) -> O + Sync,
) {
    drive::<WIDE, _>(
        walk,
        workers,
        // SAFETY: `walk` yields only offsets of elements that the caller vouches for.
        |[oo, ox, oy]| unsafe { *out.at(oo) = f(*x.at(ox), *y.at(oy)) },
        #[inline(always)]
        // SAFETY: `walk` yields only runs of elements that the caller vouches for.
        |[oo, ox, oy], len, [so, sx, sy]| unsafe {
            run2((out.at(oo), so), (x.at(ox), sx), (y.at(oy), sy), len, &f);
        },
    );
}

/// # Safety
/// `len` elements at the given steps may be written and read; `out` may be an input, element for element.
#[inline(always)]
unsafe fn run2<O: Copy, A: Copy, B: Copy>(
    out: (*mut O, isize),
    x: (*const A, isize),
    y: (*const B, isize),
    len: usize,
    f: &impl Fn(A, B) -> O,
) {
    let mut out = Output::new(out, len);
    // SAFETY: the caller promises `len` elements of each, and blocks stay within `len`. A block is read before it is
    // written, so `out` may be an input.
    unsafe {
        let (mut x, mut y) = (Input::new(x), Input::new(y));
        blocks2::<O, A, B, BLOCK>(&mut out, &mut x, &mut y, f);
        blocks2::<O, A, B, SMALL_BLOCK>(&mut out, &mut x, &mut y, f);
        while out.done < out.len {
            out.push(f(x.one(out.done), y.one(out.done)));
        }
    }
}

/// # Safety
/// As for [`blocks1`].
#[inline(always)]
unsafe fn blocks2<O: Copy, A: Copy, B: Copy, const W: usize>(
    out: &mut Output<O>,
    x: &mut Input<A>,
    y: &mut Input<B>,
    f: &impl Fn(A, B) -> O,
) {
    while let Some((count, to)) = out.blocks::<W>(x.lies() && y.lies()) {
        // SAFETY: the caller promises that the blocks left in `out` may be written, and the same elements of `x` and
        // `y` read.
        unsafe {
            let ((x, dx), (y, dy)) = (x.blocks::<W>(out.done), y.blocks::<W>(out.done));
            for b in 0..count {
                to.offset(b).write(each2(x.offset(b * dx).read(), y.offset(b * dy).read(), f));
                end_of_block();
            }
            out.did::<W>(count);
        }
    }
}

/// `out[i] = f(x[i], y[i], z[i])`.
///
/// # Safety
/// As for [`map1`]; `out` may be any of the inputs, element for element.
#[inline(always)]
pub(crate) unsafe fn map3<O: Copy, A: Copy, B: Copy, C: Copy>(
    walk: &Places<4>,
    workers: &Workers,
    out: Dst<O>,
    (x, y, z): (Src<A>, Src<B>, Src<C>),
    f: impl Fn(A, B, C) -> O + Sync,
) {
    drive::<false, _>(
        walk,
        workers,
        // SAFETY: `walk` yields only offsets of elements that the caller vouches for.
        |[oo, ox, oy, oz]| unsafe { *out.at(oo) = f(*x.at(ox), *y.at(oy), *z.at(oz)) },
        inlined!(|[oo, ox, oy, oz], len, [so, sx, sy, sz]| {
            let mut out = Output::new((out.at(oo), so), len);
            // SAFETY: `walk` yields only runs of elements that the caller vouches for, and blocks stay within `len`.
            // A block is read before it is written, so `out` may be an input.
            unsafe {
                let (mut x, mut y) = (Input::new((x.at(ox), sx)), Input::new((y.at(oy), sy)));
                let mut z = Input::new((z.at(oz), sz));
                while let Some((count, to)) = out.blocks::<BLOCK>(x.lies() && y.lies() && z.lies()) {
                    let ((x, dx), (y, dy)) = (x.blocks::<BLOCK>(out.done), y.blocks::<BLOCK>(out.done));
                    let (z, dz) = z.blocks::<BLOCK>(out.done);
                    for b in 0..count {
                        let (x, y) = (x.offset(b * dx).read(), y.offset(b * dy).read());
                        to.offset(b).write(each3(x, y, z.offset(b * dz).read(), &f));
                        end_of_block();
                    }
                    out.did::<BLOCK>(count);
                }
                while out.done < out.len {
                    out.push(f(x.one(out.done), y.one(out.done), z.one(out.done)));
                }
            }
        }),
    );
}

/// `to[i] += from[i]` for `len` elements at the given steps.
///
/// # Safety
/// The elements may be read and written, and `to` and `from` do not overlap.
#[inline(always)]
pub(crate) unsafe fn add_run<T: Number>(to: (*mut T, isize), from: (*const T, isize), len: usize) {
    // SAFETY: the caller promises `len` elements at both, and the output may be the first input element for element.
    unsafe { run2(to, (to.0.cast_const(), to.1), from, len, &T::add) }
}

/// `to[i] = from[i] * factors[i]`, and 0 where the factor is 0, whatever the element; with steps for `to` and `from`.
///
/// # Safety
/// As many elements as there are factors may be read and written; `to` may be `from`, element for element.
#[inline(always)]
pub(crate) unsafe fn mul_run<T: Number>(to: (*mut T, isize), from: (*const T, isize), factors: &[T]) {
    // SAFETY: the caller promises as many elements at both as there are factors; `to` may be `from`.
    unsafe {
        run2(
            to,
            from,
            (factors.as_ptr(), 1),
            factors.len(),
            &inlined!(|x: T, factor: T| {
                let product = x.mul(factor);
                if factor == T::ZERO { factor } else { product }
            }),
        )
    }
}
