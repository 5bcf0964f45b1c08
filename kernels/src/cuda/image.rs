//! Image kernels.

use device::cuda::{Arg, Program};
use device::{Result, Stream, Use};

use super::walk::{ByValue, THREADS, address, blocks};
use crate::image::{Images, Sampling};
use crate::layout::View;

pub(super) static IMAGE: Program =
    Program::new("image", concat!(include_str!("prelude.cuh"), include_str!("image.cu")));

/// `Images` of the program.
#[repr(C)]
struct Sizes([u32; 4]);

// SAFETY: four words of 32 bits.
unsafe impl ByValue for Sizes {}

impl Sizes {
    /// The launchers have checked that pixels are counted in 31 bits.
    fn of(images: Images) -> Sizes {
        let Images { samples, channels, rows, columns } = images;
        Sizes([samples, channels, rows, columns].map(|size| size as u32))
    }
}

/// On checked operands: images, matrices and output.
pub(crate) fn warp(
    stream: &Stream,
    uses: &[Use<'_>],
    operands: [View<'_>; 3],
    sampling: Sampling,
    from: Images,
    to: Images,
) -> Result<()> {
    let kernel = match sampling {
        Sampling::Nearest => "warp_nearest",
        Sampling::Bilinear => "warp_bilinear",
    };
    let (from, to) = (Sizes::of(from), Sizes::of(to));
    launch(stream, "warp", kernel, uses, operands, &[from.arg(), to.arg()])
}

/// On checked operands: images, weights and output.
pub(crate) fn blur(
    stream: &Stream,
    uses: &[Use<'_>],
    operands: [View<'_>; 3],
    images: Images,
    taps: usize,
    (mean, std): (f32, f32),
) -> Result<()> {
    let images = Sizes::of(images);
    let numbers = [images.arg(), Arg::U32(taps as u32), Arg::F32(mean), Arg::F32(std)];
    launch(stream, "blur", "blur", uses, operands, &numbers)
}

fn launch(
    stream: &Stream,
    op: &'static str,
    kernel: &str,
    uses: &[Use<'_>],
    operands: [View<'_>; 3],
    numbers: &[Arg<'_>],
) -> Result<()> {
    let pixels = operands[2].layout.elements() as u64;
    stream.submit(op, uses, |queue| {
        let grid = blocks(queue, pixels.div_ceil(u64::from(THREADS)), THREADS);
        let [x, parameters, out] = operands.map(|view| Arg::Ptr(address(&view).cast_const()));
        let args: Vec<Arg<'_>> = [x, parameters, out].into_iter().chain(numbers.iter().copied()).collect();
        // SAFETY: the operands are as large as the sizes say, and the uses name their buffers.
        unsafe { queue.kernel(&IMAGE, kernel, grid, &args) }
    })
}
