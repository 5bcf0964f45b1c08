//! One rank of a group.

use std::fmt;
use std::sync::Arc;

use device::{Asked, Buffer, Device, Shared, Stream, Use};
use kernels::{Dims, View};
use smallvec::SmallVec;

use crate::failure::{expect_rank, met_by};
use crate::operand::{Operand, checked, expect_shape};
use crate::work::Meeting;
use crate::{Backend, Call, Collective, CommOptions, Error, Memory, Reduce, Result};

/// One rank of a group of ranks, on a device. A cheap handle: clones are the same rank.
///
/// Each of its collectives is asynchronous, a command of `stream` that comes after those that this communicator launched
/// before, on whatever stream, and after all that uses its operands; nobody else's streams wait. All ranks launch the same
/// ones, with operands of the same types and shapes, in the same order. Operands are dense, in row-major order.
///
/// When the last handle of a rank goes, and the last command that it launched has run, the rank has left: a collective of the
/// others that still needs it is `RankLost`.
#[derive(Clone)]
pub struct Communicator(Arc<Inner>);

struct Inner {
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

#[derive::located]
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
        Ok(Communicator(Arc::new(Inner {
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
        let made = self.0.backend.split(color, key).map_err(|error| met_by("split", error))?;
        let Inner { device, options, world_rank, .. } = &*self.0;
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
    pub fn broadcast(&self, stream: &Stream, x: View<'_>, out: View<'_>, root: usize) -> Result<()> {
        expect_rank("broadcast", root, self.size())?;
        expect_shape("broadcast", out, x.shape())?;
        self.launch(stream, Collective::Broadcast { root }, Some(x), Some(out))
    }

    /// `out[r] = part s of x of rank r` on rank `s`.
    ///
    /// Shapes: `[size * n, ..] -> [size * n, ..]`.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); `InvalidArgument` if the first axis has no such size.
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
    pub fn send(&self, stream: &Stream, x: View<'_>, to: usize) -> Result<()> {
        self.expect_other("send", to)?;
        self.launch(stream, Collective::Send { to }, Some(x), None)
    }

    /// `out =` what rank `from` [sends](Self::send), of the same type and shape.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn recv(&self, stream: &Stream, out: View<'_>, from: usize) -> Result<()> {
        self.expect_other("recv", from)?;
        self.launch(stream, Collective::Recv { from }, None, Some(out))
    }

    /// A command that has run when all ranks' have begun.
    ///
    /// # Errors
    /// What became of the group before; those of [`Stream::launch`].
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
        let has_parts = shape.first().is_some_and(|first| first.is_multiple_of(self.size()));
        let value = format_args!("{shape:?} on {} ranks", self.size());
        Error::require(has_parts, op, "shape", "with a first axis that is a multiple of the ranks", value)
    }

    fn expect_other(&self, op: &'static str, rank: usize) -> Result<()> {
        expect_rank(op, rank, self.size())?;
        Error::require(rank != self.rank(), op, "rank", "another one than this", rank)
    }

    fn launch(
        &self,
        stream: &Stream,
        collective: Collective,
        x: Option<View<'_>>,
        out: Option<View<'_>>,
    ) -> Result<()> {
        let Inner { backend, device, options, staging, .. } = &*self.0;
        let op = collective.name();
        if let Some(failure) = backend.failure(collective) {
            return Err(met_by(op, failure));
        }
        Error::require_same_device(op, "stream", device, stream.device())?;
        let (dtype, shape) = checked(op, collective, x, out)?;
        let call = Call { collective, dtype, shape, order: options.order };
        if let Some(launched) = backend.launch(&call, stream, x, out) {
            return launched.map_err(|error| met_by(op, error));
        }
        let [x, out] = [x, out].map(|view| view.map(Operand::new));
        match staging {
            None => self.meet(stream, call, x, out),
            Some(staging) => self.meet_staged(stream, staging, call, x, out),
        }
    }

    /// Launches a collective on a stream that its operands are within reach of.
    fn meet(
        &self,
        stream: &Stream,
        call: Call,
        x: Option<Operand<'_>>,
        out: Option<Operand<'_>>,
    ) -> Result<()> {
        let Inner { backend, token, .. } = &*self.0;
        let workspace = match backend.workspace_bytes(&call, stream.device()) {
            0 => None,
            bytes => Some(allocator::allocate_shared(stream, bytes)?),
        };
        let at =
            |operand: Option<Operand<'_>>| operand.map_or(std::ptr::null_mut(), |operand| operand.address());
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
        let (op, dtype) = (call.op(), call.dtype);
        let described = |_: Asked| {
            let operands = [(x, false), (out, true)].into_iter();
            let described = operands.filter_map(|(operand, write)| {
                let Operand { bytes, .. } = operand?;
                let elements = bytes / dtype.size_bytes();
                Some(device::Operand::dense(dtype, elements, operand?.address(), write))
            });
            described.collect()
        };
        stream.launch_described(op, &uses, &described, Meeting { backend: Arc::clone(backend), call, memory })
    }

    /// Launches a collective on the host, between a copy of its input to pinned memory, which the host waits for, and one of its
    /// output back.
    fn meet_staged(
        &self,
        stream: &Stream,
        staging: &Stream,
        call: Call,
        x: Option<Operand<'_>>,
        out: Option<Operand<'_>>,
    ) -> Result<()> {
        let op = call.op();
        let pinned = |operand: Operand<'_>| allocator::allocate_shared(staging, operand.bytes.max(1));
        let (input, output) = (x.map(pinned).transpose()?, out.map(pinned).transpose()?);
        if let (Some(x), Some(input)) = (x.filter(|x| !x.is_empty()), &input) {
            stream.copy_across(op, input, 0, x.buffer, x.start..x.start + x.bytes)?;
            // A stream of the host would ask the driver late, when it has work that waits for this collective.
            stream.synchronize()?;
        }
        let staged = |(buffer, operand): (_, Operand<'_>)| Operand { buffer, start: 0, bytes: operand.bytes };
        self.meet(
            staging,
            call,
            input.as_deref().zip(x).map(staged),
            output.as_deref().zip(out).map(staged),
        )?;
        if let (Some(out), Some(output)) = (out.filter(|out| !out.is_empty()), &output) {
            stream.copy_across(op, out.buffer, out.start, output, 0..out.bytes)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(rank {} of {} on {})", self.rank(), self.size(), self.device())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use autograd::Var;
    use device::Error;
    use tensor::{DType, Tensor};

    use crate::{Communicator, DataParallel, Reduce, Rendezvous, TensorCollectives, VarCollectives};
    use models::Forward;

    fn expect_line<T>(line: u32, result: crate::Result<T>) {
        let error: Error = result.err().unwrap();
        let location = error.location();
        assert_eq!((location.file(), location.line()), (file!(), line), "{error}");
    }

    #[test]
    fn errors_name_the_line_of_the_caller() {
        let mut comms = Communicator::threads(2).unwrap();
        let comm = comms.remove(0);
        let stream = comm.device().default_stream();
        let x = Tensor::zeros(&[3], DType::I64, comm.device()).unwrap();
        let var = Var::constant(x.clone());
        expect_line(line!(), comm.broadcast(&stream, x.view(), x.view(), 5));
        expect_line(line!(), comm.all_reduce(&stream, x.view(), x.view(), Reduce::Mean));
        expect_line(line!(), comm.scattered("test", &[3]));
        expect_line(line!(), comm.send(&stream, x.view(), 0));
        expect_line(line!(), x.broadcast(&comm, 5));
        expect_line(line!(), x.reduce_scatter(&comm, Reduce::Sum));
        expect_line(line!(), Tensor::recv(&[1], DType::F32, &comm, 7));
        expect_line(line!(), var.reduce(&comm, 5));
        expect_line(line!(), var.all_to_all(&comm));
        expect_line(line!(), Communicator::threads(0));
        expect_line(line!(), Rendezvous::meet(([127, 0, 0, 1], 9).into(), 2, 2, "", Default::default()));
        let alone = Communicator::threads(1).unwrap().remove(0);
        let model = models::mlp(&[2, 1], 0, alone.device()).unwrap();
        let parallel = DataParallel::new(model, &alone).unwrap();
        let input = Var::constant(Tensor::zeros(&[1, 3], DType::F32, alone.device()).unwrap());
        expect_line(line!(), parallel.forward(&input));
        // The failure was found elsewhere.
        drop(comms);
        expect_line(line!(), comm.barrier(&stream));
        expect_line(line!(), x.all_reduce(&comm, Reduce::Sum));
        expect_line(line!(), comm.split(Some(0), 0));
        expect_line(line!(), DataParallel::new(models::mlp(&[1, 1], 0, comm.device()).unwrap(), &comm));
    }
}
