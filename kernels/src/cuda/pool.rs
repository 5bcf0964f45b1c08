//! Pooling: a thread for each place or each pixel.

use device::cuda::{Arg, Queue};
use device::{DType, Error, Result};
use smallvec::SmallVec;

use super::walk::{ByValue, plane_blocks};
use super::{by_dtype, float_programs};
use crate::command::Address;
use crate::geometry::{Means, Planes};
use crate::window::Window;

float_programs!("pool", "pool.cu");

/// `Pool` of the program.
#[repr(C)]
struct Pool {
    sizes: [u32; 4],
    window: [u32; 8],
    adaptive: u32,
    count_padding: u32,
    divisor: u32,
    pad: u32,
    planes: u64,
}

// SAFETY: sixteen words of 32 bits, and one of 64.
unsafe impl ByValue for Pool {}

impl Pool {
    /// # Errors
    /// [`Error::InvalidArgument`] for planes or windows that cannot be counted in 31 bits.
    fn of(op: &'static str, planes: &Planes, window: &Window) -> Result<Pool> {
        let (Planes { image, places, .. }, Window { kernel, stride, padding, dilation }) = (planes, window);
        let pairs = [kernel, stride, padding, dilation];
        let elements = planes.pixels().max(planes.all_places());
        let taps = kernel[0].saturating_mul(kernel[1]);
        if elements >= 1 << 31 || taps >= 1 << 31 {
            return Err(Error::InvalidArgument {
                op,
                argument: "planes",
                expected: "below 2^31 elements",
                value: format!("{elements} for a window of {taps}").into(),
            });
        }
        let mut numbers = [0; 8];
        numbers.iter_mut().zip(pairs.into_iter().flatten()).for_each(|(to, &from)| *to = from as u32);
        Ok(Pool {
            sizes: [image[0], image[1], places[0], places[1]].map(|size| size as u32),
            window: numbers,
            adaptive: 0,
            count_padding: 0,
            divisor: 0,
            pad: 0,
            planes: planes.count as u64,
        })
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
    fn enqueue<const N: usize>(
        &self,
        queue: &Queue<'_>,
        (dtype, kernel): (DType, &str),
        size: usize,
        operands: [Address; N],
    ) -> Result<()> {
        let mut args: SmallVec<[Arg<'_>; 4]> = operands.iter().map(|&at| at.into()).collect();
        args.push(self.arg());
        let grid = plane_blocks(queue, size, self.planes as usize);
        // SAFETY: the kernel takes these arguments, the planes are those of the operands, and pixels that an index names are
        // checked.
        unsafe { queue.kernel(program_of(dtype), kernel, grid, &args) }
    }
}

/// The kernel of an op for an element type and the type of the indices.
macro_rules! by_index {
    ($index:expr, $dtype:expr, $op:literal) => {
        match $index {
            DType::U8 => by_dtype!($dtype, concat!($op, "_u8")),
            _ => by_dtype!($dtype, concat!($op, "_i64")),
        }
    };
}

/// On values, indices and images.
pub(crate) fn max(
    queue: &Queue<'_>,
    [dtype, index]: [DType; 2],
    planes: &Planes,
    window: &Window,
    operands: [Address; 3],
) -> Result<()> {
    let kernel = by_index!(index, dtype, "max_pool");
    Pool::of(queue.op(), planes, window)?.enqueue(queue, (dtype, kernel), planes.all_places(), operands)
}

/// On the gradients of images and values, and indices.
pub(crate) fn max_grad(
    queue: &Queue<'_>,
    [dtype, index]: [DType; 2],
    planes: &Planes,
    window: &Window,
    operands: [Address; 3],
) -> Result<()> {
    let kernel = by_index!(index, dtype, "max_pool_grad");
    Pool::of(queue.op(), planes, window)?.enqueue(queue, (dtype, kernel), planes.pixels(), operands)
}

/// On values, images and indices.
pub(crate) fn max_pick(
    queue: &Queue<'_>,
    [dtype, index]: [DType; 2],
    planes: &Planes,
    window: &Window,
    operands: [Address; 3],
) -> Result<()> {
    let kernel = by_index!(index, dtype, "max_pool_pick");
    Pool::of(queue.op(), planes, window)?.enqueue(queue, (dtype, kernel), planes.all_places(), operands)
}

/// On values and images.
pub(crate) fn mean(
    queue: &Queue<'_>,
    dtype: DType,
    planes: &Planes,
    means: &Means,
    operands: [Address; 2],
) -> Result<()> {
    let kernel = by_dtype!(dtype, "avg_pool");
    Pool::of_means(queue.op(), planes, means)?.enqueue(queue, (dtype, kernel), planes.all_places(), operands)
}

/// On the gradients of images and values.
pub(crate) fn mean_grad(
    queue: &Queue<'_>,
    dtype: DType,
    planes: &Planes,
    means: &Means,
    operands: [Address; 2],
) -> Result<()> {
    let kernel = by_dtype!(dtype, "avg_pool_grad");
    Pool::of_means(queue.op(), planes, means)?.enqueue(queue, (dtype, kernel), planes.pixels(), operands)
}
