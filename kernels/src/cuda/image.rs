//! Image kernels.

use device::Result;
use device::cuda::{Arg, Program, Queue};
use smallvec::SmallVec;

use super::walk::{ByValue, THREADS, blocks};
use crate::command::Address;
use crate::geometry::{Images, Sampling};

pub(super) static IMAGE: Program =
    Program::new("image", concat!(include_str!("prelude.cuh"), include_str!("image.cu")));

/// `Images` of the program. The launchers have checked that pixels are counted in 31 bits.
fn sizes_of(images: &Images) -> [u32; 4] {
    let Images { samples, channels, rows, columns } = *images;
    [samples, channels, rows, columns].map(|size| size as u32)
}

/// On images, matrices and output.
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
    enqueue(queue, kernel, &sizes[1], operands, &[from.arg(), to.arg()])
}

/// On images, weights and output.
pub(crate) fn blur(
    queue: &Queue<'_>,
    images: &Images,
    taps: usize,
    (mean, std): (f32, f32),
    operands: [Address; 3],
) -> Result<()> {
    let sizes = sizes_of(images);
    let numbers = [sizes.arg(), Arg::U32(taps as u32), Arg::F32(mean), Arg::F32(std)];
    enqueue(queue, "blur", images, operands, &numbers)
}

/// Enqueues a kernel on operands, the last of which is written, and numbers.
fn enqueue(
    queue: &Queue<'_>,
    kernel: &str,
    written: &Images,
    operands: [Address; 3],
    numbers: &[Arg<'_>],
) -> Result<()> {
    let pixels = (written.all_rows() * written.columns) as u64;
    let grid = blocks(queue, pixels.div_ceil(u64::from(THREADS)), THREADS);
    let operands = operands.map(Arg::from);
    let args: SmallVec<[Arg<'_>; 8]> = operands.iter().chain(numbers).copied().collect();
    // SAFETY: the kernel takes these arguments, and the operands are as large as the sizes say.
    unsafe { queue.kernel(&IMAGE, kernel, grid, &args) }
}
