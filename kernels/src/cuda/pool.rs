//! Pooling: a thread for each place or each pixel.

use device::cuda::{Arg, Queue};
use device::{DType, Error, Result};
use smallvec::SmallVec;

use super::walk::{ByValue, plane_blocks};
use super::{Family, family};
use crate::command::Address;
use crate::geometry::{Means, Planes};
use crate::window::{Window, words};

static PROGRAMS: Family = family!("pool", FLOATS, "window.cuh", "pool.cu");

/// `Pool` of the program.
#[repr(C)]
struct Pool {
    /// See [`words`].
    window: [u32; 12],
    adaptive: u32,
    count_padding: u32,
    divisor: u32,
    apart: u32,
    planes: u64,
}

// SAFETY: sixteen words of 32 bits and one of 64, which begins at a multiple of 8 bytes, so `repr(C)` adds no
// padding.
unsafe impl ByValue for Pool {}

impl Pool {
    /// # Errors
    /// `InvalidArgument` for planes or windows that cannot be counted in 31 bits.
    fn of(op: &'static str, planes: &Planes, window: &Window) -> Result<Pool> {
        let elements = planes.pixels().max(planes.all_places());
        let taps = window.kernel[0].saturating_mul(window.kernel[1]);
        let words = words(planes.image, planes.places, window);
        let Some(window) = words.filter(|_| elements < 1 << 31 && taps < 1 << 31) else {
            let value = format_args!("{elements} for a window of {taps}");
            return Err(Error::invalid(op, "planes", "below 2^31 elements", value));
        };
        Ok(Pool { window, adaptive: 0, count_padding: 0, divisor: 0, apart: 0, planes: planes.count as u64 })
    }

    fn of_means(op: &'static str, planes: &Planes, means: &Means) -> Result<Pool> {
        Ok(match *means {
            Means::Adaptive => Pool { adaptive: 1, ..Pool::of(op, planes, &Window::new([1; 2]))? },
            Means::Sliding { window, count_include_pad, divisor } => Pool {
                count_padding: u32::from(count_include_pad),
                divisor: divisor.unwrap_or(0),
                ..Pool::of(op, planes, &window)?
            },
        })
    }

    /// Enqueues a kernel on operands, the first of which is written and has planes of `size` elements.
    fn enqueue(
        &self,
        queue: &Queue<'_>,
        dtype: DType,
        kernel: &[&str],
        size: usize,
        operands: &[Address],
    ) -> Result<()> {
        let mut args: SmallVec<[Arg<'_>; 5]> = operands.iter().map(|&at| at.into()).collect();
        args.push(self.arg());
        let grid = plane_blocks(queue, size, self.planes as usize);
        // SAFETY: the kernel takes these arguments, the planes are those of the operands, and pixels that an index names are
        // checked.
        unsafe { PROGRAMS.kernel(queue, kernel, dtype, grid, &args) }
    }
}

/// Whether each pixel is seen from one place at most, that of its row and column by the stride.
fn is_apart(window: &Window) -> bool {
    let along = |axis: usize| {
        let dense = window.dilation[axis] == 1 || window.kernel[axis] == 1;
        dense && window.padding[axis] == 0 && window.kernel[axis] <= window.stride[axis]
    };
    along(0) && along(1)
}

/// Enqueues a kernel of maxima with a thread for each place: `max_pool` on values, indices and images, or `max_pool_pick` on
/// values, images and indices.
pub(crate) fn for_places(
    queue: &Queue<'_>,
    kernel: &str,
    [dtype, index]: [DType; 2],
    (planes, window): &(Planes, Window),
    operands: [Address; 3],
) -> Result<()> {
    let kernel = [kernel, index.name()];
    Pool::of(queue.op(), planes, window)?.enqueue(queue, dtype, &kernel, planes.all_places(), &operands)
}

/// On the gradients of images and values, and indices.
pub(crate) fn max_grad(
    queue: &Queue<'_>,
    [dtype, index]: [DType; 2],
    (planes, window): &(Planes, Window),
    operands: [Address; 3],
) -> Result<()> {
    let tiles = || [0, 1].map(|axis| planes.image[axis].div_ceil(window.stride[axis])).iter().product();
    let apart = is_apart(window);
    let size = if apart { tiles() } else { planes.pixels() };
    let pool = Pool { apart: u32::from(apart), ..Pool::of(queue.op(), planes, window)? };
    pool.enqueue(queue, dtype, &["max_pool_grad", index.name()], size, &operands)
}

/// On values and images or, for the gradient, on the gradients of images and values.
pub(crate) fn mean(
    queue: &Queue<'_>,
    (gradient, dtype): (bool, DType),
    (planes, means): &(Planes, Means),
    operands: [Address; 2],
) -> Result<()> {
    let (kernel, size) = match gradient {
        true => ("avg_pool_grad", planes.pixels()),
        false => ("avg_pool", planes.all_places()),
    };
    Pool::of_means(queue.op(), planes, means)?.enqueue(queue, dtype, &[kernel], size, &operands)
}
