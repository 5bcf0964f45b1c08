//! Batch normalisation: a block of threads sums over a channel, then all elements are normalised.

use device::cuda::Arg;
use device::{Result, Stream, Use};

use super::walk::{ByValue, THREADS, Walk, blocks, operand};
use super::{by_dtype, float_programs};
use crate::batch_norm::{Channels, Norm};
use crate::layout::{LoopAxis, Loops, View};

float_programs!("batch_norm", "rows.cuh", "batch_norm.cu");

/// `Channels` of the program.
#[repr(C)]
struct Numbers {
    images: u64,
    channels: u64,
    size: u64,
    eps: f64,
}

// SAFETY: four words of 64 bits.
unsafe impl ByValue for Numbers {}

impl Numbers {
    fn new(channels: &Channels, eps: f64) -> Numbers {
        let Channels { images, channels, size } = *channels;
        Numbers { images: images as u64, channels: channels as u64, size: size as u64, eps }
    }
}

/// All elements of the images, and the channel of each.
fn elements(op: &'static str, channels: &Channels) -> Result<Walk<2>> {
    let Channels { images, channels, size } = *channels;
    let axis =
        |size: usize, step: usize, channel: isize| LoopAxis { size, strides: [step as isize, channel] };
    Walk::of(
        op,
        &Loops::from_axes([axis(images, channels * size, 0), axis(channels, size, 1), axis(size, 1, 0)]),
    )
}

pub(crate) fn forward(
    stream: &Stream,
    op: &'static str,
    uses: &[Use<'_>],
    channels: &Channels,
    x: View<'_>,
    norm: &Norm<'_>,
    out: View<'_>,
) -> Result<()> {
    let numbers = Numbers::new(channels, norm.eps);
    let walk = elements(op, channels)?;
    let program = program_of(x.dtype);
    stream.submit(op, uses, |queue| {
        let [x_at, mean, var, out] = [&x, &norm.mean, &norm.var, &out].map(operand);
        // SAFETY: sizes are those of the operands, which were checked, and the uses name their buffers.
        unsafe {
            if norm.training {
                let grid = blocks(queue, channels.channels as u64, THREADS);
                let name = by_dtype!(x.dtype, "batch_statistics");
                queue.kernel(program, name, grid, &[mean, var, x_at, numbers.arg()])?;
            }
            let (weight, bias) = (operand(norm.weight.as_ref()), operand(norm.bias.as_ref()));
            let args = [out, x_at, mean, var, weight, bias, Arg::F64(norm.eps), walk.arg()];
            queue.kernel(program, by_dtype!(x.dtype, "batch_norm"), walk.grid(queue, 1), &args)
        }
    })
}

pub(crate) fn backward(
    stream: &Stream,
    op: &'static str,
    uses: &[Use<'_>],
    channels: &Channels,
    [x, g]: [View<'_>; 2],
    norm: &Norm<'_>,
    grads: [View<'_>; 3],
) -> Result<()> {
    let numbers = Numbers::new(channels, norm.eps);
    let walk = elements(op, channels)?;
    let program = program_of(x.dtype);
    stream.submit(op, uses, |queue| {
        let [x_at, g, mean, var] = [&x, &g, &norm.mean, &norm.var].map(operand);
        let [grad, weight_sum, bias_sum] = [&grads[0], &grads[1], &grads[2]].map(operand);
        let grid = blocks(queue, channels.channels as u64, THREADS);
        // In evaluation the sums do not come into the gradient of the images.
        let count = if norm.training { channels.each() as f64 } else { 0.0 };
        let (count, weight) = (Arg::F64(count), operand(norm.weight.as_ref()));
        // SAFETY: as in `forward`.
        unsafe {
            if x.dtype.is_half() {
                let args = [grad, weight_sum, bias_sum, x_at, g, mean, var, weight, count, numbers.arg()];
                return queue.kernel(program, by_dtype!(x.dtype, "batch_norm_grad"), grid, &args);
            }
            let name = by_dtype!(x.dtype, "batch_norm_sums");
            queue.kernel(program, name, grid, &[weight_sum, bias_sum, x_at, g, mean, var, numbers.arg()])?;
            if channels.each() == 0 {
                return Ok(());
            }
            let eps = Arg::F64(norm.eps);
            let args = [grad, x_at, g, mean, var, weight, weight_sum, bias_sum, eps, count, walk.arg()];
            queue.kernel(program, by_dtype!(x.dtype, "batch_norm_grad"), walk.grid(queue, 1), &args)
        }
    })
}
