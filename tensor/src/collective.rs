//! Collectives: what the ranks of a communicator make of a tensor of each.

use comm::{Communicator, Reduce};
use device::{DType, Result, Stream};
use kernels::{Layout, View};

use crate::Tensor;
use crate::check::elements_of;
use crate::random::become_rank;

impl Tensor {
    /// The sum of all ranks' tensors, or what `reduce` makes of them, on every rank: `x of rank 0 + x of rank 1 + ..`.
    ///
    /// Shapes: `[..] -> [..]`. Asynchronous, on the current stream, which waits for the other ranks; no other stream does. All ranks
    /// launch the same collectives of a communicator in the same order.
    ///
    /// ```
    /// use tensor::{Communicator, Reduce, Result, Tensor};
    /// let rank = |comm: Communicator| -> Result<f32> {
    ///     let x = Tensor::from_slice(&[comm.rank() as f32 + 1.0], &[1], comm.device())?;
    ///     x.all_reduce(&comm, Reduce::Sum)?.item()
    /// };
    /// let threads = Communicator::threads(3)?.into_iter().map(|comm| std::thread::spawn(move || rank(comm)));
    /// for thread in threads.collect::<Vec<_>>() {
    ///     assert_eq!(thread.join().expect("no panic")?, 6.0);
    /// }
    /// # Ok::<(), device::Error>(())
    /// ```
    ///
    /// # Errors
    /// `DTypeUnsupported` for a mean of integers or a sum of truth values, `DeviceMismatch` for another device than the
    /// communicator's, and what became of its ranks before. At a later synchronising call: `RankLost`, `CollectiveMismatch`,
    /// `CollectiveTimeout`.
    pub fn all_reduce(&self, comm: &Communicator, reduce: Reduce) -> Result<Tensor> {
        self.exchange(comm, self.shape(), |stream, x, out| comm.all_reduce(stream, x, out, reduce))
    }

    /// [`all_reduce`](Self::all_reduce) in place, of a tensor in row-major order without gaps.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); `InvalidArgument` for strides.
    pub fn all_reduce_(&self, comm: &Communicator, reduce: Reduce) -> Result<()> {
        self.exchange_in_place(comm, |stream, x| comm.all_reduce(stream, x, x, reduce))
    }

    /// All ranks' tensors, one behind the other along the first axis, on every rank.
    ///
    /// Shapes: `[n, ..] -> [size n, ..]`; `[] -> [size]`. As [`all_reduce`](Self::all_reduce) else.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    pub fn all_gather(&self, comm: &Communicator) -> Result<Tensor> {
        let shape = comm.gathered(self.shape());
        self.exchange(comm, &shape, |stream, x, out| comm.all_gather(stream, x, out))
    }

    /// This rank's part, along the first axis, of the sum of all ranks' tensors, or of what `reduce` makes of them.
    ///
    /// Shapes: `[size n, ..] -> [n, ..]`. As [`all_reduce`](Self::all_reduce) else.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); `InvalidArgument` for a first axis that has no part for each rank.
    pub fn reduce_scatter(&self, comm: &Communicator, reduce: Reduce) -> Result<Tensor> {
        let shape = comm.scattered("reduce_scatter", self.shape())?;
        self.exchange(comm, &shape, |stream, x, out| comm.reduce_scatter(stream, x, out, reduce))
    }

    /// The tensor of rank `root`, on every rank; all give one of its shape and type.
    ///
    /// Shapes: `[..] -> [..]`. As [`all_reduce`](Self::all_reduce) else.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); `IndexOutOfRange` for a root that is no rank.
    pub fn broadcast(&self, comm: &Communicator, root: usize) -> Result<Tensor> {
        self.exchange(comm, self.shape(), |stream, x, out| comm.broadcast(stream, x, out, root))
    }

    /// [`broadcast`](Self::broadcast) in place, of a tensor in row-major order without gaps.
    ///
    /// # Errors
    /// As for [`broadcast`](Self::broadcast); `InvalidArgument` for strides.
    pub fn broadcast_(&self, comm: &Communicator, root: usize) -> Result<()> {
        self.exchange_in_place(comm, |stream, x| comm.broadcast(stream, x, x, root))
    }

    /// This rank's part, along the first axis, of every rank's tensor, one behind the other.
    ///
    /// Shapes: `[size n, ..] -> [size n, ..]`. As [`all_reduce`](Self::all_reduce) else.
    ///
    /// # Errors
    /// As for [`reduce_scatter`](Self::reduce_scatter).
    pub fn all_to_all(&self, comm: &Communicator) -> Result<Tensor> {
        self.exchange(comm, self.shape(), |stream, x, out| comm.all_to_all(stream, x, out))
    }

    /// Gives the tensor to rank `to`, which [receives](Tensor::recv) it.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); `IndexOutOfRange` or `InvalidArgument` if `to` is no other rank.
    pub fn send(&self, comm: &Communicator, to: usize) -> Result<()> {
        become_rank(comm.world_rank());
        let x = self.contiguous()?;
        Stream::with_current(x.device(), |stream| comm.send(stream, x.view(), to))
    }

    /// A tensor of this shape and type, which rank `from` [sends](Tensor::send), on the communicator's device.
    ///
    /// # Errors
    /// As for [`send`](Tensor::send).
    pub fn recv(shape: &[usize], dtype: DType, comm: &Communicator, from: usize) -> Result<Tensor> {
        elements_of("recv", shape)?;
        become_rank(comm.world_rank());
        Tensor::produce(comm.device(), Layout::contiguous(shape), dtype, |stream, out| {
            comm.recv(stream, out, from)
        })
    }

    fn exchange(
        &self,
        comm: &Communicator,
        shape: &[usize],
        launch: impl FnOnce(&Stream, View<'_>, View<'_>) -> Result<()>,
    ) -> Result<Tensor> {
        become_rank(comm.world_rank());
        let x = self.contiguous()?;
        Tensor::produce(x.device(), Layout::contiguous(shape), x.dtype, |stream, out| {
            launch(stream, x.view(), out)
        })
    }

    fn exchange_in_place(
        &self,
        comm: &Communicator,
        launch: impl FnOnce(&Stream, View<'_>) -> Result<()>,
    ) -> Result<()> {
        become_rank(comm.world_rank());
        Stream::with_current(self.device(), |stream| launch(stream, self.view()))?;
        self.storage.bump_version();
        Ok(())
    }
}
