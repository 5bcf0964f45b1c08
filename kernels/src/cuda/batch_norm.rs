//! Batch normalization: a reduction over each channel, then an elementwise kernel.

use device::cuda::{Arg, Grid, Queue};
use device::{DType, Result};
use smallvec::SmallVec;

use super::rows::{PACK, RowReduction, RowThreads, Units};
use super::walk::{ByValue, MAX_Y, THREADS, Walk, blocks, divisor};
use super::{Family, family};
use crate::command::Address;
use crate::loops::{LoopAxis, Loops};
use crate::norms::Channels;

static PROGRAMS: Family = family!("batch_norm", FLOATS, "rows.cuh", "columns.cuh", "batch_norm.cu");

/// Largest size of a channel's two sums in bytes.
const SUMS: usize = 16;

/// Parameters of the normalization: `NORM` of the program.
#[derive(Clone, Copy)]
pub(crate) struct ChannelNorm {
    pub(crate) statistics: [Address; 2],
    /// The weight and the bias.
    pub(crate) affine: [Option<Address>; 2],
    pub(crate) eps: f64,
    pub(crate) relu: bool,
}

impl ChannelNorm {
    fn args(&self) -> [Arg<'static>; 6] {
        let ([mean, var], [weight, bias]) = (self.statistics.map(Arg::from), self.affine.map(Arg::from));
        [mean, var, weight, bias, Arg::F64(self.eps), Arg::U32(u32::from(self.relu))]
    }
}

/// `Channels` of the program.
fn numbers(all: &Channels, dtype: DType, images: &[Address]) -> [i64; 5] {
    let Channels { images: count, channels, size } = *all;
    let aligned = images.iter().all(|at| at.0.addr().is_multiple_of(PACK * dtype.size_bytes()));
    let packed = usize::from(aligned && size.is_multiple_of(PACK));
    let divisor = if all.each() < 1 << 31 { divisor(size) } else { 0 };
    [count, channels, size, packed, divisor].map(|number| number as i64)
}

/// Thread group and split for the reductions over channels.
fn threads(channels: &Channels) -> (RowThreads, Units) {
    let Channels { channels: count, size, .. } = *channels;
    // Images of one element (channels last): a channel is strided.
    let along = if size == 1 { count as isize } else { 1 };
    RowThreads::folding(count, channels.each(), along, size as isize)
}

/// Images of one element (channels last): a thread has several neighbouring channels.
struct Columns {
    cut: Units,
    /// Channels and pixels.
    counts: [usize; 2],
}

impl Columns {
    /// Packs of channels per thread block of the elementwise kernel.
    const ACROSS: usize = 32;

    /// `None` for larger images and if channels are not whole packs.
    fn of(channels: &Channels) -> Option<Columns> {
        let Channels { images: pixels, channels: count, size } = *channels;
        let packed = count.is_multiple_of(16 / size_of::<u16>());
        let cut = Units::beside(count, pixels);
        (size == 1 && packed && pixels > 0 && count > 0).then_some(Columns { cut, counts: [count, pixels] })
    }

    /// The same; `None` if an address is not aligned.
    fn aligned(channels: &Channels, dtype: DType, images: &[Address]) -> Option<Columns> {
        let bytes = 16.max(PACK * dtype.size_bytes());
        let aligned = images.iter().all(|at| at.0.addr().is_multiple_of(bytes));
        Columns::of(channels).filter(|_| aligned)
    }

    /// The grid of the elementwise kernel.
    fn grid(&self, queue: &Queue<'_>, dtype: DType) -> Grid {
        let [channels, pixels] = self.counts;
        let packs = channels / lanes(dtype);
        let across = packs.next_power_of_two().min(Columns::ACROSS) as u32;
        let down = THREADS / across;
        let beside = packs.div_ceil(across as usize) as u32;
        let all =
            blocks(queue, u64::from(beside) * (pixels as u64).div_ceil(u64::from(down)), THREADS).blocks[0];
        let blocks = [beside, (all / beside).clamp(1, MAX_Y as u32), 1];
        Grid { blocks, threads: [across, down, 1], shared_bytes: 0 }
    }
}

/// Bytes of the workspace of both passes.
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

/// Elements per 16 bytes.
fn lanes(dtype: DType) -> usize {
    16 / dtype.size_bytes()
}

pub(crate) fn forward(
    queue: &Queue<'_>,
    (dtype, training): (DType, bool),
    channels: &Channels,
    (x, out): (Address, Address),
    norm: ChannelNorm,
    workspace: Option<Address>,
) -> Result<()> {
    if training {
        let reduction = RowReduction {
            programs: &PROGRAMS,
            name: "batch_statistics",
            dtype,
            rows: channels.channels,
            outputs: &norm.statistics.map(Arg::from),
            inputs: &[x.into()],
            states: workspace.into(),
        };
        // SAFETY: the kernels take these arguments, the channels are those of the operands, and the workspace has room for the
        // states of all units.
        unsafe { reduce(queue, &reduction, channels, &[x, out])? }
    }
    enqueue_all(queue, "batch_norm", dtype, channels, &[out, x], &norm.args())
}

pub(crate) fn backward(
    queue: &Queue<'_>,
    (dtype, training): (DType, bool),
    channels: &Channels,
    images: [Address; 2],
    norm: ChannelNorm,
    (grad, sums): (Address, [Address; 2]),
    workspace: Option<Address>,
) -> Result<()> {
    let ([x, g], [weight_sum, bias_sum]) = (images, sums.map(Arg::from));
    // The sums of all channels come first, then the states of units.
    let both = Arg::from(workspace);
    let inputs: SmallVec<[_; 8]> = images.map(Arg::from).into_iter().chain(norm.args()).collect();
    let reduction = RowReduction {
        programs: &PROGRAMS,
        name: "batch_norm_sums",
        dtype,
        rows: channels.channels,
        outputs: &[both, weight_sum, bias_sum],
        inputs: &inputs,
        states: workspace.map(|at| at.offset(channels.channels as isize, SUMS)).into(),
    };
    // SAFETY: the kernels take these arguments, the channels are those of the operands, and the workspace has room
    // for the sums of all channels and the states of all units.
    unsafe { reduce(queue, &reduction, channels, &[x, g, grad])? }
    if channels.each() == 0 {
        return Ok(());
    }
    // In evaluation the input gradient does not depend on the sums.
    let count = if training { channels.each() as f64 } else { 0.0 };
    let more: SmallVec<[_; 8]> = norm.args().into_iter().chain([both, Arg::F64(count)]).collect();
    enqueue_all(queue, "batch_norm_grad", dtype, channels, &[grad, x, g], &more)
}

/// Enqueues a reduction over each channel; by columns if all images are aligned.
///
/// # Safety
/// As for [`RowReduction::enqueue`].
unsafe fn reduce(
    queue: &Queue<'_>,
    reduction: &RowReduction<'_>,
    channels: &Channels,
    images: &[Address],
) -> Result<()> {
    let read = &images[..images.len() - 1];
    let numbers = numbers(channels, reduction.dtype, read);
    let columns =
        Columns::aligned(channels, reduction.dtype, images).map(|columns| (columns.cut, columns.counts));
    // SAFETY: the caller's promise.
    unsafe { reduction.enqueue(queue, columns, threads(channels), numbers.arg()) }
}

/// Enqueues a kernel on all elements of the images, with arguments behind these.
fn enqueue_all(
    queue: &Queue<'_>,
    name: &str,
    dtype: DType,
    channels: &Channels,
    images: &[Address],
    more: &[Arg<'_>],
) -> Result<()> {
    let walk;
    let mut args: SmallVec<[Arg<'_>; 16]> = images.iter().map(|&at| at.into()).collect();
    args.extend_from_slice(more);
    // SAFETY: the kernels take these arguments, and the channels are those of the operands.
    unsafe {
        if let Some(columns) = Columns::aligned(channels, dtype, images) {
            args.extend(columns.counts.map(|count| Arg::U64(count as u64)));
            return PROGRAMS.kernel(queue, &[name, "columns"], dtype, columns.grid(queue, dtype), &args);
        }
        walk = elements(queue, channels, dtype, images)?;
        args.push(walk.arg());
        PROGRAMS.kernel(queue, &[name], dtype, walk.grid(queue, lanes(dtype)), &args)
    }
}

/// Updates running mean, variance and batch count with a batch's mean and variance.
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
    unsafe { PROGRAMS.kernel(queue, &["follow_statistics"], dtype, Grid::linear(1, THREADS), &args) }
}
