//! Pooling: a thread for each place or each pixel.

use device::cuda::{Arg, Grid, Queue};
use device::{DType, Error, Result, Stream, Use};

use super::walk::{ByValue, THREADS, address, blocks};
use super::{by_dtype, float_programs};
use crate::layout::View;
use crate::pool::{Means, Planes};
use crate::window::Window;

float_programs!("pool", "pool.cu");

/// Blocks along y that every device has.
const MAX_Y: usize = 65_535;

/// `Pool` of the program.
#[repr(C)]
struct Numbers {
    sizes: [u32; 4],
    window: [u32; 8],
    adaptive: u32,
    count_padding: u32,
    divisor: u32,
    pad: u32,
    planes: u64,
}

// SAFETY: sixteen words of 32 bits, and one of 64.
unsafe impl ByValue for Numbers {}

impl Numbers {
    /// # Errors
    /// [`Error::InvalidArgument`] for planes or windows that cannot be counted in 31 bits.
    fn new(op: &'static str, planes: &Planes, window: &Window) -> Result<Numbers> {
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
        Ok(Numbers {
            sizes: [image[0], image[1], places[0], places[1]].map(|size| size as u32),
            window: numbers,
            adaptive: 0,
            count_padding: 0,
            divisor: 0,
            pad: 0,
            planes: planes.count as u64,
        })
    }

    fn grid(&self, queue: &Queue<'_>, size: usize) -> Grid {
        let mut grid = blocks(queue, (size as u64).div_ceil(u64::from(THREADS)), THREADS);
        grid.blocks[1] = self.planes.clamp(1, MAX_Y as u64) as u32;
        grid
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

pub(crate) fn max(
    stream: &Stream,
    uses: &[Use<'_>],
    planes: &Planes,
    window: &Window,
    [x, out, index]: [View<'_>; 3],
) -> Result<()> {
    const OP: &str = "max_pool2d";
    let numbers = Numbers::new(OP, planes, window)?;
    stream.submit(OP, uses, |queue| {
        let [a, b, c] = [&out, &index, &x].map(|view| Arg::Ptr(address(view)));
        let kernel = by_index!(index.dtype, x.dtype, "max_pool");
        let grid = numbers.grid(queue, planes.all_places());
        // SAFETY: the planes are those of the operands, which were checked, and the uses name their buffers.
        unsafe { queue.kernel(program_of(x.dtype), kernel, grid, &[a, b, c, numbers.arg()]) }
    })
}

pub(crate) fn indexed(
    stream: &Stream,
    op: &'static str,
    uses: &[Use<'_>],
    planes: &Planes,
    window: &Window,
    [image, pooled, index]: [View<'_>; 3],
    back: bool,
) -> Result<()> {
    let numbers = Numbers::new(op, planes, window)?;
    stream.submit(op, uses, |queue| {
        let (out, from, size) =
            if back { (&image, &pooled, planes.pixels()) } else { (&pooled, &image, planes.all_places()) };
        let [a, b, c] = [out, from, &index].map(|view| Arg::Ptr(address(view)));
        let kernel = match back {
            true => by_index!(index.dtype, image.dtype, "max_pool_grad"),
            false => by_index!(index.dtype, image.dtype, "max_pool_pick"),
        };
        // SAFETY: as in `max`; pixels that an index names are checked.
        unsafe {
            let grid = numbers.grid(queue, size);
            queue.kernel(program_of(image.dtype), kernel, grid, &[a, b, c, numbers.arg()])
        }
    })
}

pub(crate) fn average(
    stream: &Stream,
    op: &'static str,
    uses: &[Use<'_>],
    planes: &Planes,
    means: &Means,
    [image, pooled]: [View<'_>; 2],
    back: bool,
) -> Result<()> {
    let numbers = match *means {
        Means::Adaptive => Numbers { adaptive: 1, ..Numbers::new(op, planes, &Window::new([1; 2]))? },
        Means::Sliding { window, count_include_pad, divisor } => Numbers {
            count_padding: u32::from(count_include_pad),
            divisor: divisor.unwrap_or(0),
            ..Numbers::new(op, planes, &window)?
        },
    };
    stream.submit(op, uses, |queue| {
        let (out, from, size) =
            if back { (&image, &pooled, planes.pixels()) } else { (&pooled, &image, planes.all_places()) };
        let [a, b] = [out, from].map(|view| Arg::Ptr(address(view)));
        let kernel = match back {
            true => by_dtype!(image.dtype, "avg_pool_grad"),
            false => by_dtype!(image.dtype, "avg_pool"),
        };
        let grid = numbers.grid(queue, size);
        // SAFETY: as in `max`.
        unsafe { queue.kernel(program_of(image.dtype), kernel, grid, &[a, b, numbers.arg()]) }
    })
}
