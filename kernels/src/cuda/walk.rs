//! Kernel parameters passed by value: loop nests over strided operands, and numbers.

use device::cuda::{Arg, Grid, Program, Queue};
use device::{DType, Error, Result};
use smallvec::SmallVec;

use crate::command::Address;
use crate::layout::{LoopAxis, Loops};

/// Most axes of a walk after adjacent axes are merged.
const MAX_AXES: usize = 8;
/// Most elements of a walk with several axes.
const MAX_ELEMENTS: usize = i32::MAX as usize;
/// Threads of a block of elementwise kernels.
pub(super) const THREADS: u32 = 256;
/// Threads of a warp.
pub(super) const WARP: u32 = 32;
/// Most thread blocks per multiprocessor; larger launches loop.
const WAVES: u32 = 16;
/// Largest grid size along y.
pub(super) const MAX_Y: usize = 65_535;

/// A struct with the same layout in the program, or its words.
///
/// # Safety
/// `repr(C)` without padding.
pub(crate) unsafe trait ByValue: Sized {
    /// As a kernel argument.
    fn arg(&self) -> Arg<'_> {
        // SAFETY: `ByValue` promises a type without padding, so all of its bytes are initialised. The slice borrows
        // `self`.
        Arg::Bytes(unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) })
    }
}

// SAFETY: an array of words has no padding.
unsafe impl<const N: usize> ByValue for [u32; N] {}
// SAFETY: an array of words has no padding.
unsafe impl<const N: usize> ByValue for [u64; N] {}
// SAFETY: an array of words has no padding.
unsafe impl<const N: usize> ByValue for [i64; N] {}

/// `Axis` of the prelude.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis<const N: usize> {
    size: u32,
    pub(super) magic: u32,
    pub(super) shift: u32,
    strides: [i32; N],
}

/// `Walk` of the prelude.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk<const N: usize> {
    elements: u64,
    axes: u32,
    vector: u32,
    /// Innermost first.
    axis: [Axis<N>; MAX_AXES],
}

// SAFETY: two words of 32 bits follow one of 64, and eight axes of words of 32 bits fill words of 64.
unsafe impl<const N: usize> ByValue for Walk<N> {}

impl<const N: usize> Walk<N> {
    /// A walk of single elements.
    ///
    /// # Errors
    /// `InvalidArgument` for a nest with more than 8 axes, or with several axes and 2^31 elements.
    pub(super) fn of(op: &'static str, loops: &Loops<N>) -> Result<Walk<N>> {
        if !fits(loops, MAX_ELEMENTS) {
            return Err(too_large(op, loops.axes.len(), loops.elements));
        }
        let mut axis = [Axis { size: 1, magic: 1, shift: 0, strides: [0; N] }; MAX_AXES];
        for (to, from) in axis.iter_mut().zip(loops.axes.iter().rev()) {
            *to = Axis::of(from);
        }
        Ok(Walk { elements: loops.elements as u64, axes: loops.axes.len().max(1) as u32, vector: 0, axis })
    }

    /// The walk in vectors of `lanes` elements, if the operands (address and bytes of an element) allow it.
    pub(super) fn vectors(mut self, lanes: usize, operands: [(*const u8, usize); N]) -> Walk<N> {
        let inner = self.axis[0];
        let outer = &self.axis[1..self.axes as usize];
        let fits = |k: usize| match inner.strides[k] {
            0 => k > 0,
            1 => {
                let (address, size) = operands[k];
                address.addr().is_multiple_of(lanes * size)
                    && outer.iter().all(|axis| (axis.strides[k] as usize).is_multiple_of(lanes))
            }
            _ => false,
        };
        let whole = outer.is_empty() || (inner.size as usize).is_multiple_of(lanes);
        self.vector = u32::from(lanes > 1 && whole && (0..N).all(fits));
        self
    }

    /// Whether operand `k` is constant along the innermost axis.
    pub(super) fn stands(&self, k: usize) -> bool {
        self.axis[0].strides[k] == 0
    }

    /// Whether it is vectorized.
    pub(super) fn is_vector(&self) -> bool {
        self.vector != 0
    }

    /// Undoes [`vectors`](Self::vectors).
    pub(super) fn single(mut self) -> Walk<N> {
        self.vector = 0;
        self
    }

    /// The grid for all items: vectors of `lanes` elements, or single elements.
    pub(super) fn grid(&self, queue: &Queue<'_>, lanes: usize) -> Grid {
        let items = if self.vector != 0 { self.elements.div_ceil(lanes as u64) } else { self.elements };
        blocks(queue, items.div_ceil(u64::from(THREADS)), THREADS)
    }
}

/// A grid of blocks of `threads` threads: as many as wanted, up to what fills the device.
pub(super) fn blocks(queue: &Queue<'_>, wanted: u64, threads: u32) -> Grid {
    let most = queue.properties().multiprocessors * WAVES * (THREADS / threads).max(1);
    Grid::linear(wanted.clamp(1, u64::from(most)) as u32, threads)
}

/// The grid for planes of `size` elements: planes along y, elements along x.
pub(super) fn plane_blocks(queue: &Queue<'_>, size: usize, planes: usize) -> Grid {
    let wanted = (size as u64).div_ceil(u64::from(THREADS)).max(1);
    // Equal blocks of whole warps leave few threads idle; small planes share a thread block if there are many.
    let threads = (size as u64).div_ceil(wanted).max(1) as u32;
    let many = planes.div_ceil(queue.properties().multiprocessors as usize).clamp(1, THREADS as usize);
    let together = (THREADS / threads).clamp(1, many as u32);
    let threads = if together == 1 { threads.next_multiple_of(WARP) } else { threads };
    let mut grid = blocks(queue, wanted, threads);
    grid.threads[1] = together;
    grid.blocks[1] = planes.div_ceil(together as usize).clamp(1, MAX_Y) as u32;
    grid
}

impl<const N: usize> Axis<N> {
    pub(super) fn of(axis: &LoopAxis<N>) -> Axis<N> {
        // The size of a single axis may not fit into 32 bits; it is not used then.
        let size = u32::try_from(axis.size).unwrap_or(u32::MAX).max(1);
        let shift = size.next_power_of_two().trailing_zeros().min(31);
        // n / size = (n magic / 2^32 + n) / 2^shift, for n and size below 2^31 (Granlund and Montgomery, "Division by
        // invariant integers using multiplication", 1994).
        let magic =
            ((1_u64 << 32) * ((1_u64 << shift).saturating_sub(u64::from(size))) / u64::from(size)) as u32;
        Axis { size, magic: magic.wrapping_add(1), shift, strides: axis.strides.map(|stride| stride as i32) }
    }
}

/// Multiplier and shift for division by `size`, in one word.
pub(super) fn divisor(size: usize) -> usize {
    let Axis { magic, shift, .. } = Axis::of(&LoopAxis { size, strides: [] });
    magic as usize | (shift as usize) << 32
}

fn fits<const N: usize>(loops: &Loops<N>, most: usize) -> bool {
    loops.axes.len() <= MAX_AXES
        && (loops.axes.len() <= 1 || loops.elements <= most)
        && loops.axes.iter().all(|axis| axis.strides.iter().all(|&stride| i32::try_from(stride).is_ok()))
}

#[cold]
fn too_large(op: &'static str, axes: usize, elements: usize) -> Error {
    let expected = "merged to 8 axes, and below 2^31 elements unless merged to one";
    Error::invalid(op, "layouts", expected, format_args!("{axes} axes of {elements} elements"))
}

/// An elementwise kernel; the first operand is the output. Vectors have 16 bytes of the largest element type.
pub(super) struct Map<'a, const N: usize> {
    pub(super) program: &'static Program,
    pub(super) kernel: &'a str,
    /// Bytes of an element of each operand.
    pub(super) sizes: [usize; N],
    /// Further kernel arguments, as bits.
    pub(super) numbers: &'a [u64],
}

impl<const N: usize> Map<'_, N> {
    pub(super) fn enqueue(&self, queue: &Queue<'_>, loops: &Loops<N>, operands: [Address; N]) -> Result<()> {
        let lanes = 16 / self.sizes.into_iter().max().unwrap_or(1);
        for_parts(loops, &mut |part, at| {
            let addresses: [Address; N] = std::array::from_fn(|k| operands[k].offset(at[k], self.sizes[k]));
            let sized = std::array::from_fn(|k| (addresses[k].0.cast_const(), self.sizes[k]));
            let mut walk = Walk::of(queue.op(), part)?.vectors(lanes, sized);
            // Few elements are done sooner by more threads.
            if part.elements <= (queue.properties().multiprocessors * THREADS) as usize {
                walk = walk.single();
            }
            let mut args: SmallVec<[Arg<'_>; 8]> = addresses.iter().map(|&at| at.into()).collect();
            args.push(walk.arg());
            args.extend(self.numbers.iter().map(|&number| Arg::U64(number)));
            // SAFETY: kernels of this kind take these arguments, and the walk is that of the operands.
            unsafe { queue.kernel(self.program, self.kernel, walk.grid(queue, lanes), &args) }
        })
    }
}

/// Splits a loop nest along its outermost axes into parts that fit a [`Walk`], and calls `body` with each part and its offsets in the operands.
pub(super) fn for_parts<const N: usize>(
    loops: &Loops<N>,
    body: &mut dyn FnMut(&Loops<N>, [isize; N]) -> Result<()>,
) -> Result<()> {
    parts_of(loops, MAX_ELEMENTS, [0; N], body)
}

fn parts_of<const N: usize>(
    loops: &Loops<N>,
    most: usize,
    at: [isize; N],
    body: &mut dyn FnMut(&Loops<N>, [isize; N]) -> Result<()>,
) -> Result<()> {
    let Some((outer, inner)) = loops.axes.split_first() else { return body(loops, at) };
    if fits(loops, most) {
        return body(loops, at);
    }
    let below = inner.iter().map(|axis| axis.size).product::<usize>().max(1);
    let near = outer.strides.iter().all(|&stride| i32::try_from(stride).is_ok());
    let step = if near && loops.axes.len() <= MAX_AXES { (most / below).max(1) } else { 1 };
    for start in (0..outer.size).step_by(step) {
        let size = step.min(outer.size - start);
        let part = Loops::from_axes([LoopAxis { size, ..*outer }].into_iter().chain(inner.iter().copied()));
        let at = std::array::from_fn(|k| at[k] + start as isize * outer.strides[k]);
        parts_of(&part, most, at, body)?;
    }
    Ok(())
}

/// The bits of a number in the compute type, in the low bytes. Integers are rounded towards 0 and saturated.
pub(super) fn number_bits(dtype: DType, value: f64) -> u64 {
    match dtype {
        DType::F32 | DType::BF16 | DType::F16 => u64::from((value as f32).to_bits()),
        DType::F64 => value.to_bits(),
        DType::I64 => value as i64 as u64,
        _ => u64::from(value as u8),
    }
}

#[cfg(test)]
mod tests;
