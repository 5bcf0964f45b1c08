//! Launchers of pooling and upsampling: one thread per output position or per pixel.

use device::cuda::{Arg, Queue};
use device::{DType, Error, Result};
use smallvec::SmallVec;

use super::walk::{ByValue, plane_blocks};
use super::{Family, family};
use crate::command::Address;
use crate::geometry::{Means, Planes};
use crate::window::{Window, words};

static PROGRAMS: Family = family!("pool", FLOATS, "window.cuh", "pool.cu");

/// Planes that a thread averages together, as in the program, if a multiprocessor has more than BUSY elements.
const GROUP: usize = 4;
const BUSY: u32 = 8192;

/// `Pool` of the program.
#[repr(C)]
#[derive(Default)]
struct Pool {
    /// See [`words`].
    window: [u32; 12],
    means: u32,
    count_padding: u32,
    divisor: u32,
    group: u32,
    planes: u64,
    groups: u64,
    scale: [f64; 2],
    density: [f64; 2],
    offset: f64,
}

// SAFETY: sixteen words of 32 bits and then words of 64, which begin at a multiple of 8 bytes, so `repr(C)` adds no
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
        let count = planes.count as u64;
        Ok(Pool { window, group: 1, planes: count, groups: count, ..Pool::default() })
    }

    fn of_means(op: &'static str, dtype: DType, planes: &Planes, means: &Means) -> Result<Pool> {
        let scale = [0, 1].map(|axis| means.scale(dtype, [planes.image[axis], planes.places[axis]]));
        let (number, window, is_padded, divisor) = match *means {
            Means::Sliding { window, count_include_pad, divisor } => (0, window, count_include_pad, divisor),
            Means::Adaptive => (1, Window::new([1; 2]), false, None),
            Means::Nearest => (2, Window::new([1; 2]), false, None),
            Means::Bilinear { .. } => (3, Window::new([1; 2]), false, None),
        };
        Ok(Pool {
            means: number,
            count_padding: u32::from(is_padded),
            divisor: divisor.unwrap_or(0),
            scale,
            density: scale.map(f64::recip),
            offset: means.offset(),
            ..Pool::of(op, planes, &window)?
        })
    }

    /// Enqueues a kernel on operands, the first of which is the output, over groups of planes of `size` elements.
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
        let grid = plane_blocks(queue, size, self.groups as usize);
        // SAFETY: the kernel takes these arguments, the planes are those of the operands, and pixels that an index names are
        // checked.
        unsafe { PROGRAMS.kernel(queue, kernel, dtype, grid, &args) }
    }
}

/// Enqueues a max pooling kernel: `max_pool` on (output, indices, input), `max_pool_pick` on (output, input, indices), or `max_pool_grad` on
/// (input gradient, output gradient, indices).
pub(crate) fn maxima(
    queue: &Queue<'_>,
    kernel: &str,
    [dtype, index]: [DType; 2],
    (planes, window): &(Planes, Window),
    operands: [Address; 3],
) -> Result<()> {
    let size = if kernel == "max_pool_grad" { planes.pixels() } else { planes.all_places() };
    Pool::of(queue.op(), planes, window)?.enqueue(queue, dtype, &[kernel, index.name()], size, &operands)
}

/// Enqueues average pooling or resizing on (output, input), or its gradient on (input gradient, output gradient).
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
    let mut pool = Pool::of_means(queue.op(), dtype, planes, means)?;
    if planes.count * size > (queue.properties().multiprocessors * BUSY) as usize {
        (pool.group, pool.groups) = (GROUP as u32, planes.count.div_ceil(GROUP) as u64);
    }
    pool.enqueue(queue, dtype, &[kernel], size, &operands)
}
