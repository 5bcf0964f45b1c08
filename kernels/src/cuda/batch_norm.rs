//! Batch normalisation: a block of threads sums over a channel, then all elements are normalised.

use device::cuda::{Arg, Queue};
use device::{DType, Result};

use super::walk::{ByValue, THREADS, Walk, blocks};
use super::{by_dtype, float_programs};
use crate::command::Address;
use crate::loops::{LoopAxis, Loops};
use crate::norms::Channels;

float_programs!("batch_norm", "rows.cuh", "batch_norm.cu");

/// `Channels` of the program.
fn numbers(channels: &Channels, eps: f64) -> [i64; 4] {
    let Channels { images, channels, size } = *channels;
    [images as i64, channels as i64, size as i64, eps.to_bits() as i64]
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
    queue: &Queue<'_>,
    dtype: DType,
    channels: &Channels,
    eps: f64,
    (x, out): (Address, Address),
    [weight, bias]: [Option<Address>; 2],
    (given, found): (Option<[Address; 2]>, Option<[Address; 2]>),
) -> Result<()> {
    let (numbers, walk) = (numbers(channels, eps), elements(queue.op(), channels)?);
    let [mean, var] = [0, 1].map(|k| Arg::from(given.or(found).map(|statistics| statistics[k])));
    let program = program_of(dtype);
    // SAFETY: the kernels take these arguments, and the channels are those of the operands.
    unsafe {
        if found.is_some() {
            let grid = blocks(queue, channels.channels as u64, THREADS);
            let args = [mean, var, x.into(), numbers.arg()];
            queue.kernel(program, by_dtype!(dtype, "batch_statistics"), grid, &args)?;
        }
        let affine = [weight, bias].map(Arg::from);
        let args = [out.into(), x.into(), mean, var, affine[0], affine[1], Arg::F64(eps), walk.arg()];
        queue.kernel(program, by_dtype!(dtype, "batch_norm"), walk.grid(queue, 1), &args)
    }
}

pub(crate) fn backward(
    queue: &Queue<'_>,
    (dtype, eps, training): (DType, f64, bool),
    channels: &Channels,
    images: [Address; 2],
    statistics: [Address; 2],
    weight: Option<Address>,
    grads: [Address; 3],
) -> Result<()> {
    let (numbers, walk) = (numbers(channels, eps), elements(queue.op(), channels)?);
    let program = program_of(dtype);
    let ([x, g], [mean, var]) = (images.map(Arg::from), statistics.map(Arg::from));
    let [grad, weight_sum, bias_sum] = grads.map(Arg::from);
    let grid = blocks(queue, channels.channels as u64, THREADS);
    // In evaluation the sums do not come into the gradient of the images.
    let count = if training { channels.each() as f64 } else { 0.0 };
    let (count, eps, weight) = (Arg::F64(count), Arg::F64(eps), Arg::from(weight));
    // SAFETY: the kernels take these arguments, and the channels are those of the operands.
    unsafe {
        if dtype.is_half() {
            let args = [grad, weight_sum, bias_sum, x, g, mean, var, weight, count, numbers.arg()];
            return queue.kernel(program, by_dtype!(dtype, "batch_norm_grad"), grid, &args);
        }
        let args = [weight_sum, bias_sum, x, g, mean, var, numbers.arg()];
        queue.kernel(program, by_dtype!(dtype, "batch_norm_sums"), grid, &args)?;
        if channels.each() == 0 {
            return Ok(());
        }
        let args = [grad, x, g, mean, var, weight, weight_sum, bias_sum, eps, count, walk.arg()];
        queue.kernel(program, by_dtype!(dtype, "batch_norm_grad"), walk.grid(queue, 1), &args)
    }
}
