//! Batch normalization: one kernel where a channel fits into registers, else a reduction over each channel and an elementwise kernel.

use device::cuda::{Arg, Grid, Queue};
use device::{DType, Result};
use smallvec::SmallVec;

use super::rows::{PACK, RowGroup, RowReduction, RowThreads, Units};
use super::walk::{ByValue, MAX_Y, THREADS, Walk, blocks, divisor};
use super::{Family, family};
use crate::command::Address;
use crate::loops::{LoopAxis, Loops};
use crate::norms::Channels;

static PROGRAMS: Family = family!("batch_norm", FLOATS, "rows.cuh", "columns.cuh", "batch_norm.cu");

/// Packs of channels per thread block of the elementwise kernel on columns.
const ACROSS: usize = 32;

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

/// Threads of the kernels that hold a channel in registers; `None` for long or strided channels.
fn holding(channels: &Channels, dtype: DType) -> Option<RowThreads> {
    let Channels { images, channels: count, size } = *channels;
    let mut threads = RowThreads::holding(count, images * size, 1, size as isize, dtype);
    let holds = threads.group != RowGroup::Block && images > 0 && count > 0 && size > 1;
    threads.group = RowGroup::Wide;
    holds.then_some(threads)
}

/// Images of one element (channels last), where a thread has several neighbouring channels: how their elements are split, and the numbers of channels
/// and pixels. `None` for larger images and if channels are not whole packs.
fn columns(channels: &Channels) -> Option<(Units, [usize; 2])> {
    let Channels { images: pixels, channels: count, size } = *channels;
    let are_columns = size == 1 && pixels > 0 && count > 0 && count.is_multiple_of(16 / size_of::<u16>());
    are_columns.then(|| (Units::beside(count, pixels), [count, pixels]))
}

/// The same; `None` if an address is not aligned.
fn aligned(channels: &Channels, dtype: DType, images: &[Address]) -> Option<(Units, [usize; 2])> {
    let bytes = 16.max(PACK * dtype.size_bytes());
    columns(channels).filter(|_| images.iter().all(|at| at.0.addr().is_multiple_of(bytes)))
}

/// The grid of the elementwise kernel on columns.
fn columns_grid(queue: &Queue<'_>, dtype: DType, [channels, pixels]: [usize; 2]) -> Grid {
    let packs = channels / lanes(dtype);
    let across = packs.next_power_of_two().min(ACROSS) as u32;
    let down = THREADS / across;
    let beside = packs.div_ceil(across as usize) as u32;
    let all = blocks(queue, u64::from(beside) * (pixels as u64).div_ceil(u64::from(down)), THREADS).blocks[0];
    let blocks = [beside, (all / beside).clamp(1, MAX_Y as u32), 1];
    Grid { blocks, threads: [across, down, 1], shared_bytes: 0 }
}

/// Bytes of the workspace of both passes.
pub(crate) fn workspace(channels: &Channels) -> usize {
    let of = |cut: Units| cut.workspace(channels.channels);
    of(threads(channels).1).max(columns(channels).map_or(0, |(cut, _)| of(cut)))
}

/// All elements of the images, and the channel of each.
fn elements(queue: &Queue<'_>, channels: &Channels, dtype: DType, images: &[Address]) -> Result<Walk<2>> {
    let Channels { images: count, channels, size } = *channels;
    let axis =
        |size: usize, step: usize, channel: isize| LoopAxis { size, strides: [step as isize, channel] };
    let axes = [axis(count, channels * size, 0), axis(channels, size, 1), axis(size, 1, 0)];
    let walk = Walk::of(queue.op(), &Loops::from_axes(axes))?;
    let lanes = if images.iter().all(|at| at.0.addr().is_multiple_of(16)) { lanes(dtype) } else { 1 };
    Ok(walk.vectors(lanes, [(std::ptr::null(), dtype.size_bytes()); 2]))
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
    let held = holding(channels, dtype).filter(|_| training);
    if training && held.is_none() {
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
    enqueue_all(queue, "batch_norm", (dtype, held), channels, &[out, x], &norm.args())
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
    let ([x, g], sums) = (images, sums.map(Arg::from));
    // In evaluation the input gradient does not depend on the sums.
    let count = if training { channels.each() as f64 } else { 0.0 };
    let more: SmallVec<[_; 16]> = norm.args().into_iter().chain(sums).chain([Arg::F64(count)]).collect();
    let held = holding(channels, dtype);
    let inputs: SmallVec<[_; 8]> = images.map(Arg::from).into_iter().chain(norm.args()).collect();
    let reduction = RowReduction {
        programs: &PROGRAMS,
        name: "batch_norm_sums",
        dtype,
        rows: channels.channels,
        outputs: &sums,
        inputs: &inputs,
        states: workspace.into(),
    };
    // SAFETY: the kernels take these arguments, the channels are those of the operands, and the workspace has room
    // for the states of all units.
    let reduce = || unsafe { reduce(queue, &reduction, channels, &[x, g, grad]) };
    held.map_or_else(reduce, |_| Ok(()))?;
    enqueue_all(queue, "batch_norm_grad", (dtype, held), channels, &[grad, x, g], &more)
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
    let numbers = numbers(channels, reduction.dtype, &images[..images.len() - 1]);
    let columns = aligned(channels, reduction.dtype, images);
    // SAFETY: the caller's promise.
    unsafe { reduction.enqueue(queue, columns, threads(channels), numbers.arg()) }
}

/// Enqueues a kernel on all elements of the images, with arguments behind these; if `held`, the kernel that also reduces.
fn enqueue_all(
    queue: &Queue<'_>,
    name: &str,
    (dtype, held): (DType, Option<RowThreads>),
    channels: &Channels,
    images: &[Address],
    more: &[Arg<'_>],
) -> Result<()> {
    let walk;
    let numbers = numbers(channels, dtype, images);
    let mut args: SmallVec<[Arg<'_>; 16]> = images.iter().map(|&at| at.into()).collect();
    args.extend_from_slice(more);
    // SAFETY: the kernels take these arguments, and the channels are those of the operands.
    unsafe {
        if let Some(threads) = held {
            args.push(numbers.arg());
            return PROGRAMS.kernel(queue, &[name, "wide"], dtype, threads.grid(Units::WHOLE), &args);
        }
        if let Some((_, counts)) = aligned(channels, dtype, images) {
            args.extend(counts.map(|count| Arg::U64(count as u64)));
            return PROGRAMS.kernel(
                queue,
                &[name, "columns"],
                dtype,
                columns_grid(queue, dtype, counts),
                &args,
            );
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
