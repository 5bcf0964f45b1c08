//! One rank of a group.

use std::fmt;
use std::sync::Arc;

use device::{Buffer, Device, Shared, Stream, Use};
use kernels::{Dims, View};
use smallvec::SmallVec;

use crate::work::Meeting;
use crate::{Backend, Call, Collective, CommOptions, Error, ErrorKind, Memory, Reduce, Result, met_by};

/// One rank of a group of ranks, on a device. A cheap handle: clones are the same rank.
///
/// Each of its collectives is asynchronous, a command of `stream` that comes after those that this communicator launched
/// before, on whatever stream, and after all that uses its operands; nobody else's streams wait. All ranks launch the same
/// ones, with operands of the same types and shapes, in the same order. Operands are dense, in row-major order.
///
/// When the last handle of a rank goes, and the last command that it launched has run, the rank has left: a collective of the
/// others that still needs it is `RankLost`.
#[derive(Clone)]
pub struct Communicator(Arc<Rank>);

struct Rank {
    backend: Arc<dyn Backend>,
    device: Device,
    options: CommOptions,
    /// The rank in the first communicator, which others were split from.
    world_rank: usize,
    /// Where its commands run that are not on streams of the device: in pinned memory, for a backend that knows the host's only.
    staging: Option<Stream>,
    /// What every command of this communicator writes, so that they stay in order.
    token: Shared<Buffer>,
}

impl Communicator {
    /// A rank on `device`, for a backend of one's own.
    ///
    /// # Errors
    /// Those of allocating a few bytes on the device.
    pub fn new(backend: Arc<dyn Backend>, device: &Device, options: CommOptions) -> Result<Communicator> {
        let rank = backend.rank();
        Communicator::of_world(backend, device, options, rank)
    }

    fn of_world(
        backend: Arc<dyn Backend>,
        device: &Device,
        options: CommOptions,
        world_rank: usize,
    ) -> Result<Communicator> {
        let is_staged = backend.runs_on_host() && !device.runs_on_host();
        // One of its own: it waits for other ranks.
        let staging = if is_staged { Some(device.host().new_stream()?) } else { None };
        // The token counts as written when the stream that it is allocated on was last used: one that nobody uses.
        let stream = staging.clone().map_or_else(|| device.new_stream(), Ok)?;
        // It outlasts a step that is captured.
        let token = device::Capture::suspended(|| allocator::allocate_shared(&stream, 1))?;
        backend.follow(&token);
        Ok(Communicator(Arc::new(Rank {
            backend,
            device: device.clone(),
            options,
            world_rank,
            staging,
            token,
        })))
    }

    /// This rank, from 0 on.
    pub fn rank(&self) -> usize {
        self.0.backend.rank()
    }

    /// This rank in the communicator that this one was [split](Self::split) from, or that one from another one, and so on.
    pub fn world_rank(&self) -> usize {
        self.0.world_rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.0.backend.size()
    }

    /// The device of this rank.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// What it was asked to be.
    pub fn options(&self) -> CommOptions {
        self.0.options
    }

    /// A communicator of those ranks that give the same `color`, in the order of `key`, those with equal ones in the order of
    /// their ranks; `None` for a rank without a color. Every rank calls it, and the host waits for them.
    ///
    /// # Errors
    /// `RankLost`, `CollectiveTimeout`; `Captured` within a captured step; those of the backend.
    pub fn split(&self, color: Option<usize>, key: usize) -> Result<Option<Communicator>> {
        device::Capture::none("split")?;
        let made = self.0.backend.split(color, key)?;
        let Rank { device, options, world_rank, .. } = &*self.0;
        made.map(|backend| Communicator::of_world(backend, device, *options, *world_rank)).transpose()
    }

    /// Another communicator of the same ranks, whose collectives may run beside those of this one. Every rank calls it, and the
    /// host waits for them.
    ///
    /// # Errors
    /// As for [`split`](Self::split).
    pub fn duplicate(&self) -> Result<Communicator> {
        Ok(self.split(Some(0), self.rank())?.unwrap_or_else(|| self.clone()))
    }

    /// `out = x of rank 0 + x of rank 1 + ..`, or as `reduce` says. `x` may be `out`.
    ///
    /// Shapes: `[..] -> [..]`.
    ///
    /// # Errors
    /// `DTypeMismatch`, `DTypeUnsupported` for a mean of integers or a sum of truth values,
    /// `ShapeMismatch`, `InvalidArgument` for an operand that is not dense; what became of the group before;
    /// those of [`Stream::launch`].
    #[track_caller]
    pub fn all_reduce(&self, stream: &Stream, x: View<'_>, out: View<'_>, reduce: Reduce) -> Result<()> {
        expect_shape("all_reduce", out, x.shape())?;
        self.launch(stream, Collective::AllReduce(reduce), Some(x), Some(out))
    }

    /// `out[r] = x of rank r`.
    ///
    /// Shapes: `[n, ..] -> [size * n, ..]`; `[] -> [size]`.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    #[track_caller]
    pub fn all_gather(&self, stream: &Stream, x: View<'_>, out: View<'_>) -> Result<()> {
        expect_shape("all_gather", out, &self.gathered(x.shape()))?;
        self.launch(stream, Collective::AllGather, Some(x), Some(out))
    }

    /// `out = part r of (x of rank 0 + x of rank 1 + ..)` on rank `r`, or as `reduce` says.
    ///
    /// Shapes: `[size * n, ..] -> [n, ..]`.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    #[track_caller]
    pub fn reduce_scatter(&self, stream: &Stream, x: View<'_>, out: View<'_>, reduce: Reduce) -> Result<()> {
        expect_shape("reduce_scatter", x, &self.gathered(out.shape()))?;
        self.launch(stream, Collective::ReduceScatter(reduce), Some(x), Some(out))
    }

    /// `out = x of rank root`. Every rank gives an `x` of that shape; `x` may be `out`.
    ///
    /// Shapes: `[..] -> [..]`.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); `IndexOutOfRange` for a root that is no rank.
    #[track_caller]
    pub fn broadcast(&self, stream: &Stream, x: View<'_>, out: View<'_>, root: usize) -> Result<()> {
        self.expect_rank("broadcast", root)?;
        expect_shape("broadcast", out, x.shape())?;
        self.launch(stream, Collective::Broadcast { root }, Some(x), Some(out))
    }

    /// `out[r] = part s of x of rank r` on rank `s`.
    ///
    /// Shapes: `[size * n, ..] -> [size * n, ..]`.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); `InvalidArgument` if the first axis has no such size.
    #[track_caller]
    pub fn all_to_all(&self, stream: &Stream, x: View<'_>, out: View<'_>) -> Result<()> {
        const OP: &str = "all_to_all";
        expect_shape(OP, out, x.shape())?;
        self.expect_parts(OP, x.shape())?;
        self.launch(stream, Collective::AllToAll, Some(x), Some(out))
    }

    /// Gives `x` to rank `to`, which [receives](Self::recv) it. Messages from one rank to another keep their order.
    ///
    /// Threads of one process copy it and wait for nobody.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); `IndexOutOfRange` for a rank that there is not;
    /// `InvalidArgument` for this rank itself.
    #[track_caller]
    pub fn send(&self, stream: &Stream, x: View<'_>, to: usize) -> Result<()> {
        self.expect_other("send", to)?;
        self.launch(stream, Collective::Send { to }, Some(x), None)
    }

    /// `out =` what rank `from` [sends](Self::send), of the same type and shape.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    #[track_caller]
    pub fn recv(&self, stream: &Stream, out: View<'_>, from: usize) -> Result<()> {
        self.expect_other("recv", from)?;
        self.launch(stream, Collective::Recv { from }, None, Some(out))
    }

    /// A command that has run when all ranks' have begun.
    ///
    /// # Errors
    /// What became of the group before; those of [`Stream::launch`].
    #[track_caller]
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        self.launch(stream, Collective::Barrier, None, None)
    }

    /// The shape of all ranks' tensors of this shape, one behind the other.
    pub fn gathered(&self, shape: &[usize]) -> Dims {
        match shape {
            [] => Dims::from_slice(&[self.size()]),
            [first, rest @ ..] => {
                std::iter::once(first.saturating_mul(self.size())).chain(rest.iter().copied()).collect()
            }
        }
    }

    /// The shape of one rank's part of a tensor of this shape.
    ///
    /// # Errors
    /// `InvalidArgument` if its first axis cannot be cut into a part for each rank.
    pub fn scattered(&self, op: &'static str, shape: &[usize]) -> Result<Dims> {
        self.expect_parts(op, shape)?;
        let mut part = Dims::from_slice(shape);
        part[0] /= self.size();
        Ok(part)
    }

    fn expect_parts(&self, op: &'static str, shape: &[usize]) -> Result<()> {
        match shape.first() {
            Some(first) if first.is_multiple_of(self.size()) => Ok(()),
            _ => {
                let value = format_args!("{shape:?} on {} ranks", self.size());
                Err(Error::invalid(op, "shape", "with a first axis that is a multiple of the ranks", value))
            }
        }
    }

    fn expect_rank(&self, op: &'static str, rank: usize) -> Result<()> {
        let size = self.size();
        if rank < size {
            return Ok(());
        }
        Err(Error::new(ErrorKind::IndexOutOfRange {
            op,
            index: i64::try_from(rank).unwrap_or(i64::MAX),
            size,
        }))
    }

    fn expect_other(&self, op: &'static str, rank: usize) -> Result<()> {
        self.expect_rank(op, rank)?;
        if rank != self.rank() {
            return Ok(());
        }
        Err(Error::invalid(op, "rank", "another one than this", format_args!("{rank}")))
    }

    #[track_caller]
    fn launch(
        &self,
        stream: &Stream,
        collective: Collective,
        x: Option<View<'_>>,
        out: Option<View<'_>>,
    ) -> Result<()> {
        let Rank { backend, device, options, staging, .. } = &*self.0;
        let op = collective.name();
        if let Some(failure) = backend.failure(collective) {
            return Err(met_by(op, failure));
        }
        if stream.device() != device {
            return Err(Error::device_mismatch(op, device, stream.device()));
        }
        let (dtype, shape) = operand(op, collective, x, out)?;
        let call = Call { collective, dtype, shape, order: options.order };
        if let Some(launched) = backend.launch(&call, stream, x, out) {
            return launched.map_err(|error| met_by(op, error));
        }
        let [x, out] = [x, out].map(|view| view.map(Place::of));
        match staging {
            None => self.meet(stream, call, x, out),
            Some(staging) => self.meet_staged(stream, staging, call, x, out),
        }
    }

    /// Launches a collective on a stream that its operands are within reach of.
    #[track_caller]
    fn meet(&self, stream: &Stream, call: Call, x: Option<Place<'_>>, out: Option<Place<'_>>) -> Result<()> {
        let Rank { backend, token, .. } = &*self.0;
        let workspace = match backend.workspace_bytes(&call, stream.device()) {
            0 => None,
            bytes => Some(allocator::allocate_shared(stream, bytes)?),
        };
        let at = |place: Option<Place<'_>>| place.map_or(std::ptr::null_mut(), |place| place.address());
        let memory = Memory {
            input: at(x),
            output: at(out),
            workspace: workspace.as_ref().map_or(std::ptr::null_mut(), |buffer| buffer.ptr()),
        };
        let mut uses: SmallVec<[Use<'_>; 4]> = SmallVec::new();
        uses.extend(x.map(|x| Use::read(x.buffer)));
        uses.extend(out.map(|out| Use::write(out.buffer)));
        uses.extend(workspace.as_deref().map(Use::write));
        uses.push(Use::write(token));
        stream.launch(call.op(), &uses, Meeting { backend: Arc::clone(backend), call, memory })
    }

    /// Launches a collective on the host, between a copy of its input to pinned memory, which the host waits for, and one of its
    /// output back.
    #[track_caller]
    fn meet_staged(
        &self,
        stream: &Stream,
        staging: &Stream,
        call: Call,
        x: Option<Place<'_>>,
        out: Option<Place<'_>>,
    ) -> Result<()> {
        let op = call.op();
        let pinned = |place: Place<'_>| allocator::allocate_shared(staging, place.bytes.max(1));
        let (input, output) = (x.map(pinned).transpose()?, out.map(pinned).transpose()?);
        if let (Some(x), Some(input)) = (x.filter(Place::has_any), &input) {
            stream.copy_across(op, input, 0, x.buffer, x.start..x.start + x.bytes)?;
            // A stream of the host would ask the driver late, when it has work that waits for this collective.
            stream.synchronize()?;
        }
        let staged = |buffer| Place { buffer, start: 0, bytes: 0 };
        self.meet(staging, call, input.as_deref().map(staged), output.as_deref().map(staged))?;
        if let (Some(out), Some(output)) = (out.filter(Place::has_any), &output) {
            stream.copy_across(op, out.buffer, out.start, output, 0..out.bytes)?;
        }
        Ok(())
    }
}

/// Where an operand lies, which is dense.
#[derive(Clone, Copy)]
struct Place<'a> {
    buffer: &'a Buffer,
    start: usize,
    bytes: usize,
}

impl<'a> Place<'a> {
    fn of(view: View<'a>) -> Place<'a> {
        let each = view.dtype.size_bytes();
        // What has no elements may have any offset.
        let start = view.layout.offset().wrapping_mul(each);
        Place { buffer: view.buffer, start, bytes: view.layout.elements() * each }
    }

    fn has_any(&self) -> bool {
        self.bytes > 0
    }

    fn address(self) -> *mut u8 {
        self.buffer.ptr().wrapping_add(self.start)
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(rank {} of {} on {})", self.rank(), self.size(), self.device())
    }
}

/// What the ranks must agree on about the operands.
fn operand(
    op: &'static str,
    collective: Collective,
    x: Option<View<'_>>,
    out: Option<View<'_>>,
) -> Result<(device::DType, Dims)> {
    let Some(view) = x.or(out) else { return Ok((device::DType::U8, Dims::new())) };
    for view in [x, out].into_iter().flatten() {
        expect_dense(op, &view)?;
    }
    if let Some(out) = out.filter(|out| out.dtype != view.dtype) {
        return Err(Error::dtype_mismatch(op, view.dtype, out.dtype));
    }
    if let (Some(x), Some(out)) = (x, out) {
        expect_apart(op, collective, x, out)?;
    }
    let refused = match collective.reduce() {
        Some(Reduce::Mean) => !view.dtype.is_float(),
        Some(Reduce::Sum | Reduce::Prod) => view.dtype == device::DType::Bool,
        _ => false,
    };
    if refused {
        return Err(Error::dtype_unsupported(op, view.dtype));
    }
    Ok((view.dtype, Dims::from_slice(view.shape())))
}

/// That operands have no byte in common, unless they are the same ones of a collective that works in place.
fn expect_apart(op: &'static str, collective: Collective, x: View<'_>, out: View<'_>) -> Result<()> {
    let ([x_at, out_at], same) = ([x, out].map(Place::of), std::ptr::eq(x.buffer, out.buffer));
    let is_same = x_at.start == out_at.start && x_at.bytes == out_at.bytes;
    let works_in_place = matches!(collective, Collective::AllReduce(_) | Collective::Broadcast { .. });
    let overlap = x_at.start < out_at.start + out_at.bytes && out_at.start < x_at.start + x_at.bytes;
    if !same || !overlap || (is_same && works_in_place) {
        return Ok(());
    }
    let bytes = |place: Place<'_>| place.start..place.start + place.bytes;
    let value = format_args!("bytes {:?} and {:?} of one buffer", bytes(x_at), bytes(out_at));
    Err(Error::invalid(op, "out", "apart from the input", value))
}

fn expect_dense(op: &'static str, view: &View<'_>) -> Result<()> {
    let end = view.layout.end().saturating_mul(view.dtype.size_bytes());
    if view.layout.is_contiguous() && end <= view.buffer.len_bytes() {
        return Ok(());
    }
    let (strides, bytes) = (view.layout.strides(), view.buffer.len_bytes());
    let value = format_args!("shape {:?} with strides {strides:?} in {bytes} bytes", view.shape());
    Err(Error::invalid(op, "operand", "dense, in row-major order, within its buffer", value))
}

fn expect_shape(op: &'static str, view: View<'_>, shape: &[usize]) -> Result<()> {
    if view.shape() == shape {
        return Ok(());
    }
    Err(Error::shape_mismatch(op, shape, view.shape()))
}
