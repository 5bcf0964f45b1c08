//! Batch normalisation: channels are folded, cut in parts, then all elements are normalised.

use device::cuda::{Arg, Grid, Queue};
use device::{DType, Result};
use smallvec::SmallVec;

use super::rows::{PACK, RowThreads, Units, by_group};
use super::walk::{ByValue, MAX_Y, THREADS, Walk, blocks};
use super::{by_dtype, float_programs};
use crate::command::Address;
use crate::loops::{LoopAxis, Loops};
use crate::norms::Channels;

float_programs!("batch_norm", "rows.cuh", "columns.cuh", "batch_norm.cu");

/// Bytes of the two sums of a channel, at most.
const SUMS: usize = 16;

/// What images are normalised with: the program's `NORM`.
#[derive(Clone, Copy)]
pub(crate) struct Norm {
    pub(crate) statistics: [Address; 2],
    /// The weight and the bias.
    pub(crate) affine: [Option<Address>; 2],
    pub(crate) eps: f64,
    pub(crate) relu: bool,
}

impl Norm {
    fn args(&self) -> [Arg<'static>; 6] {
        let ([mean, var], [weight, bias]) = (self.statistics.map(Arg::from), self.affine.map(Arg::from));
        [mean, var, weight, bias, Arg::F64(self.eps), Arg::U32(u32::from(self.relu))]
    }
}

/// Arguments in a row.
fn all<'a>(parts: impl IntoIterator<Item = Arg<'a>>) -> SmallVec<[Arg<'a>; 16]> {
    parts.into_iter().collect()
}

/// `Channels` of the program.
fn numbers(channels: &Channels, dtype: DType, images: &[Address]) -> [i64; 4] {
    let Channels { images: count, channels, size } = *channels;
    let aligned = images.iter().all(|at| at.0.addr().is_multiple_of(PACK * dtype.size_bytes()));
    [count, channels, size, usize::from(aligned && size.is_multiple_of(PACK))].map(|number| number as i64)
}

/// Threads and units for the folds over channels.
fn threads(channels: &Channels) -> (RowThreads, Units) {
    let Channels { channels: count, size, .. } = *channels;
    // Images of one element: those of a channel lie across them.
    let along = if size == 1 { count as isize } else { 1 };
    RowThreads::folding(count, channels.each(), along, size as isize)
}

/// Images of one element, whose channels lie side by side: a thread has neighbours.
struct Columns {
    cut: Units,
    channels: Channels,
}

impl Columns {
    /// Packs that a block of threads has at once, where nothing is folded.
    const ACROSS: usize = 32;

    /// `None` for larger images, and where channels are not whole packs.
    fn of(channels: &Channels) -> Option<Columns> {
        let Channels { images: pixels, channels: count, size } = *channels;
        let packed = count.is_multiple_of(16 / size_of::<u16>());
        let cut = Units::beside(count, pixels);
        (size == 1 && packed && pixels > 0 && count > 0).then_some(Columns { cut, channels: *channels })
    }

    /// The same, where all of these addresses are aligned.
    fn aligned(channels: &Channels, images: &[Address]) -> Option<Columns> {
        let aligned = images.iter().all(|at| at.0.addr().is_multiple_of(16));
        Columns::of(channels).filter(|_| aligned)
    }

    /// Channels and pixels.
    fn numbers(&self) -> [Arg<'static>; 2] {
        [self.channels.channels, self.channels.images].map(|count| Arg::U64(count as u64))
    }

    /// For all elements.
    fn grid(&self, queue: &Queue<'_>, dtype: DType) -> Grid {
        let Channels { images: pixels, channels, .. } = self.channels;
        let packs = channels / lanes(dtype);
        let across = packs.next_power_of_two().min(Columns::ACROSS) as u32;
        let down = THREADS / across;
        let beside = packs.div_ceil(across as usize) as u32;
        let all =
            blocks(queue, u64::from(beside) * (pixels as u64).div_ceil(u64::from(down)), THREADS).blocks[0];
        Grid {
            blocks: [beside, (all / beside).clamp(1, MAX_Y as u32), 1],
            threads: [across, down, 1],
            shared_bytes: 0,
        }
    }
}

/// Bytes of the workspace of both directions.
pub(crate) fn workspace(channels: &Channels) -> usize {
    let count = channels.channels;
    let columns = Columns::of(channels).map_or(0, |columns| columns.cut.workspace(count));
    threads(channels).1.workspace(count).max(columns).saturating_add(count.saturating_mul(SUMS))
}

/// All elements of the images, and the channel of each.
fn elements(queue: &Queue<'_>, channels: &Channels, dtype: DType, images: &[Address]) -> Result<Walk<2>> {
    let Channels { images: count, channels, size } = *channels;
    let axis =
        |size: usize, step: usize, channel: isize| LoopAxis { size, strides: [step as isize, channel] };
    let axes = [axis(count, channels * size, 0), axis(channels, size, 1), axis(size, 1, 0)];
    let walk = Walk::of(queue.op(), &Loops::from_axes(axes))?;
    let lanes = lanes(dtype);
    let aligned = images.iter().all(|at| at.0.addr().is_multiple_of(16));
    Ok(walk.vectors(if aligned { lanes } else { 1 }, [(std::ptr::null(), dtype.size_bytes()); 2]))
}

/// Elements of 16 bytes.
fn lanes(dtype: DType) -> usize {
    16 / dtype.size_bytes()
}

pub(crate) fn forward(
    queue: &Queue<'_>,
    (dtype, training): (DType, bool),
    channels: &Channels,
    (x, out): (Address, Address),
    norm: Norm,
    workspace: Option<Address>,
) -> Result<()> {
    let (program, columns) = (program_of(dtype), Columns::aligned(channels, &[x, out]));
    let ([mean, var], states) = (norm.statistics.map(Arg::from), Arg::from(workspace));
    // SAFETY: the kernels take these arguments, the channels are those of the operands, and the workspace has room for the
    // states of all units.
    unsafe {
        if training {
            let (threads, mut cut) = threads(channels);
            if let Some(columns) = &columns {
                cut = columns.cut;
                let [count, pixels] = columns.numbers();
                let args = [mean, var, x.into(), count, pixels, states, cut.arg()];
                let kernel = by_dtype!(dtype, "batch_statistics_columns");
                queue.kernel(program, kernel, cut.grid_beside(queue, channels.channels), &args)?;
            } else {
                let numbers = numbers(channels, dtype, &[x]);
                let args = [mean, var, x.into(), numbers.arg(), states, cut.arg(), Arg::U32(threads.lanes)];
                let kernel = by_group!(threads.group, dtype, "batch_statistics");
                queue.kernel(program, kernel, threads.grid_of(queue, THREADS, cut), &args)?;
            }
            if cut.are_joined() {
                let (grid, lanes) = cut.join(queue, channels.channels);
                let count = Arg::U64(channels.channels as u64);
                let args = [mean, var, states, count, cut.arg(), Arg::U32(lanes)];
                queue.kernel(program, by_dtype!(dtype, "batch_statistics_join"), grid, &args)?;
            }
        }
        let images = [out, x].map(Arg::from).into_iter().chain(norm.args());
        if let Some(columns) = columns {
            let (kernel, args) =
                (by_dtype!(dtype, "batch_norm_columns"), all(images.chain(columns.numbers())));
            return queue.kernel(program, kernel, columns.grid(queue, dtype), &args);
        }
        let walk = elements(queue, channels, dtype, &[x, out])?;
        let args = all(images.chain([walk.arg()]));
        queue.kernel(program, by_dtype!(dtype, "batch_norm"), walk.grid(queue, lanes(dtype)), &args)
    }
}

pub(crate) fn backward(
    queue: &Queue<'_>,
    (dtype, training): (DType, bool),
    channels: &Channels,
    images: [Address; 2],
    norm: Norm,
    (grad, sums): (Address, [Address; 2]),
    workspace: Option<Address>,
) -> Result<()> {
    let [x, g] = images;
    let (program, columns) = (program_of(dtype), Columns::aligned(channels, &[x, g, grad]));
    let ([x, g], [weight_sum, bias_sum]) = (images.map(Arg::from), sums.map(Arg::from));
    // The sums of all channels come first, then the states of units.
    let both = Arg::from(workspace);
    let states = Arg::from(workspace.map(|at| at.offset(channels.channels as isize, SUMS)));
    let (threads, mut cut) = threads(channels);
    // In evaluation the sums do not come into the gradient of the images.
    let count = if training { channels.each() as f64 } else { 0.0 };
    // SAFETY: the kernels take these arguments, the channels are those of the operands, and the workspace has room
    // for the sums of all channels and the states of all units.
    unsafe {
        let summed = [both, weight_sum, bias_sum, x, g].into_iter().chain(norm.args());
        if let Some(columns) = &columns {
            cut = columns.cut;
            let args = all(summed.chain(columns.numbers()).chain([states, cut.arg()]));
            let kernel = by_dtype!(dtype, "batch_norm_sums_columns");
            queue.kernel(program, kernel, cut.grid_beside(queue, channels.channels), &args)?;
        } else {
            let numbers = numbers(channels, dtype, &images);
            let args = all(summed.chain([numbers.arg(), states, cut.arg(), Arg::U32(threads.lanes)]));
            let kernel = by_group!(threads.group, dtype, "batch_norm_sums");
            queue.kernel(program, kernel, threads.grid_of(queue, THREADS, cut), &args)?;
        }
        if cut.are_joined() {
            let (grid, lanes) = cut.join(queue, channels.channels);
            let channels = Arg::U64(channels.channels as u64);
            let args = [both, weight_sum, bias_sum, states, channels, cut.arg(), Arg::U32(lanes)];
            queue.kernel(program, by_dtype!(dtype, "batch_norm_sums_join"), grid, &args)?;
        }
        if channels.each() == 0 {
            return Ok(());
        }
        let slopes = [grad.into(), x, g].into_iter().chain(norm.args()).chain([both, Arg::F64(count)]);
        if let Some(columns) = columns {
            let kernel = by_dtype!(dtype, "batch_norm_grad_columns");
            let args = all(slopes.chain(columns.numbers()));
            return queue.kernel(program, kernel, columns.grid(queue, dtype), &args);
        }
        let walk = elements(queue, channels, dtype, &[images[0], images[1], grad])?;
        let args = all(slopes.chain([walk.arg()]));
        queue.kernel(program, by_dtype!(dtype, "batch_norm_grad"), walk.grid(queue, lanes(dtype)), &args)
    }
}

/// On running mean and variance, the number of batches, and a batch's mean and variance.
pub(crate) fn follow(
    queue: &Queue<'_>,
    dtype: DType,
    channels: usize,
    unbiased: f64,
    momentum: Option<f64>,
    operands: [Address; 5],
) -> Result<()> {
    let [mean, var, count, batch_mean, batch_var] = operands.map(Arg::from);
    let [kept, moved] = momentum.map_or([0.0; 2], |momentum| [1.0 - momentum, momentum]).map(Arg::F64);
    let args =
        [mean, var, count, batch_mean, batch_var, Arg::U64(channels as u64), Arg::F64(unbiased), kept, moved];
    // SAFETY: the kernel takes these arguments, and all but the count have an element for each channel.
    unsafe {
        queue.kernel(
            program_of(dtype),
            by_dtype!(dtype, "follow_statistics"),
            Grid::linear(1, THREADS),
            &args,
        )
    }
}
