//! Image augmentation.

use device::cuda::{Arg, Grid, Program, Queue};
use device::{Error, Result};
use smallvec::SmallVec;

use super::walk::{ByValue, THREADS, blocks};
use crate::command::Address;
use crate::geometry::{Images, Sampling};

pub(super) static IMAGE: Program =
    Program::new("image", concat!(include_str!("prelude.cuh"), include_str!("image.cu")));

/// `Images` of the program; callers have checked that there are fewer than 2^31 pixels.
fn sizes_of(images: &Images) -> [u32; 4] {
    let Images { samples, channels, rows, columns } = *images;
    [samples, channels, rows, columns].map(|size| size as u32)
}

/// Enqueues an affine warp on (images, matrices, output).
pub(crate) fn warp(
    queue: &Queue<'_>,
    sampling: Sampling,
    sizes: &[Images; 2],
    operands: [Address; 3],
) -> Result<()> {
    let kernel = match sampling {
        Sampling::Nearest => "warp_nearest",
        Sampling::Bilinear => "warp_bilinear",
    };
    let [from, to] = sizes.each_ref().map(sizes_of);
    let pixels = (sizes[1].all_rows() * sizes[1].columns) as u64;
    let grid = blocks(queue, pixels.div_ceil(u64::from(THREADS)), THREADS);
    enqueue(queue, (kernel, grid), operands, &[from.arg(), to.arg()])
}

/// Enqueues blur and normalization on (images, weights, output).
pub(crate) fn blur(
    queue: &Queue<'_>,
    images: &Images,
    taps: usize,
    (mean, std): (f32, f32),
    operands: [Address; 3],
) -> Result<()> {
    let pitch = BLUR_COLUMNS + taps - 1;
    let high = (BLUR_SHARED / pitch).min(BLUR_ROWS);
    Error::require(high > 0, queue.op(), "weights", "that a thread block can hold the sums of", taps)?;
    let tiles =
        images.samples * images.channels * images.rows.div_ceil(high) * images.columns.div_ceil(BLUR_COLUMNS);
    let shared_bytes = (high * pitch * size_of::<f32>()) as u32;
    let grid = Grid { shared_bytes, ..blocks(queue, tiles as u64, THREADS) };
    let sizes = sizes_of(images);
    let [taps, high] = [taps, high].map(|count| Arg::U32(count as u32));
    enqueue(queue, ("blur", grid), operands, &[sizes.arg(), taps, high, Arg::F32(mean), Arg::F32(std)])
}

/// Tile of [`blur`], as in the program: columns, most rows, and most elements in shared memory.
const BLUR_COLUMNS: usize = 64;
const BLUR_ROWS: usize = 16;
const BLUR_SHARED: usize = (48 << 10) / size_of::<f32>();

/// Enqueues a kernel on operands, the last of which is the output, and numbers.
fn enqueue(
    queue: &Queue<'_>,
    (kernel, grid): (&str, Grid),
    operands: [Address; 3],
    numbers: &[Arg<'_>],
) -> Result<()> {
    let operands = operands.map(Arg::from);
    let args: SmallVec<[Arg<'_>; 8]> = operands.iter().chain(numbers).copied().collect();
    // SAFETY: the kernel takes these arguments, and the operands are as large as the sizes say.
    unsafe { queue.kernel(&IMAGE, kernel, grid, &args) }
}
