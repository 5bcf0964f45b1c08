//! Collectives of tensors: what the ranks of a communicator make of a tensor of each.

use device::{DType, Result, Stream};
use kernels::View;
use tensor::{Tensor, draw_as_rank};

use crate::{Communicator, Reduce};

/// Collectives of a [`Tensor`].
pub trait TensorCollectives: Sized {
    /// The sum of all ranks' tensors, or what `reduce` makes of them, on every rank: `x of rank 0 + x of rank 1 + ..`.
    ///
    /// Shapes: `[..] -> [..]`. Asynchronous, on the current stream, which waits for the other ranks; no other stream does. All ranks
    /// launch the same collectives of a communicator in the same order.
    ///
    /// ```
    /// use comm::{Communicator, Reduce, TensorCollectives};
    /// use tensor::{Result, Tensor};
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
    fn all_reduce(&self, comm: &Communicator, reduce: Reduce) -> Result<Tensor>;

    /// [`all_reduce`](Self::all_reduce) in place, of a tensor in row-major order without gaps.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); `InvalidArgument` for strides.
    fn all_reduce_(&self, comm: &Communicator, reduce: Reduce) -> Result<()>;

    /// All ranks' tensors, one behind the other along the first axis, on every rank.
    ///
    /// Shapes: `[n, ..] -> [size n, ..]`; `[] -> [size]`. As [`all_reduce`](Self::all_reduce) else.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    fn all_gather(&self, comm: &Communicator) -> Result<Tensor>;

    /// This rank's part, along the first axis, of the sum of all ranks' tensors, or of what `reduce` makes of them.
    ///
    /// Shapes: `[size n, ..] -> [n, ..]`. As [`all_reduce`](Self::all_reduce) else.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); `InvalidArgument` for a first axis that has no part for each rank.
    fn reduce_scatter(&self, comm: &Communicator, reduce: Reduce) -> Result<Tensor>;

    /// The tensor of rank `root`, on every rank; all give one of its shape and type.
    ///
    /// Shapes: `[..] -> [..]`. As [`all_reduce`](Self::all_reduce) else.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); `IndexOutOfRange` for a root that is no rank.
    fn broadcast(&self, comm: &Communicator, root: usize) -> Result<Tensor>;

    /// [`broadcast`](Self::broadcast) in place, of a tensor in row-major order without gaps.
    ///
    /// # Errors
    /// As for [`broadcast`](Self::broadcast); `InvalidArgument` for strides.
    fn broadcast_(&self, comm: &Communicator, root: usize) -> Result<()>;

    /// This rank's part, along the first axis, of every rank's tensor, one behind the other.
    ///
    /// Shapes: `[size n, ..] -> [size n, ..]`. As [`all_reduce`](Self::all_reduce) else.
    ///
    /// # Errors
    /// As for [`reduce_scatter`](Self::reduce_scatter).
    fn all_to_all(&self, comm: &Communicator) -> Result<Tensor>;

    /// Gives the tensor to rank `to`, which [receives](Self::recv) it.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); `IndexOutOfRange` or `InvalidArgument` if `to` is no other rank.
    fn send(&self, comm: &Communicator, to: usize) -> Result<()>;

    /// A tensor of this shape and type, which rank `from` [sends](Self::send), on the communicator's device.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    fn recv(shape: &[usize], dtype: DType, comm: &Communicator, from: usize) -> Result<Tensor>;
}

#[derive::located]
impl TensorCollectives for Tensor {
    fn all_reduce(&self, comm: &Communicator, reduce: Reduce) -> Result<Tensor> {
        exchange(self, comm, self.shape(), |stream, x, out| comm.all_reduce(stream, x, out, reduce))
    }

    fn all_reduce_(&self, comm: &Communicator, reduce: Reduce) -> Result<()> {
        exchange_in_place(self, comm, |stream, x| comm.all_reduce(stream, x, x, reduce))
    }

    fn all_gather(&self, comm: &Communicator) -> Result<Tensor> {
        let shape = comm.gathered(self.shape());
        exchange(self, comm, &shape, |stream, x, out| comm.all_gather(stream, x, out))
    }

    fn reduce_scatter(&self, comm: &Communicator, reduce: Reduce) -> Result<Tensor> {
        let shape = comm.scattered("reduce_scatter", self.shape())?;
        exchange(self, comm, &shape, |stream, x, out| comm.reduce_scatter(stream, x, out, reduce))
    }

    fn broadcast(&self, comm: &Communicator, root: usize) -> Result<Tensor> {
        exchange(self, comm, self.shape(), |stream, x, out| comm.broadcast(stream, x, out, root))
    }

    fn broadcast_(&self, comm: &Communicator, root: usize) -> Result<()> {
        exchange_in_place(self, comm, |stream, x| comm.broadcast(stream, x, x, root))
    }

    fn all_to_all(&self, comm: &Communicator) -> Result<Tensor> {
        exchange(self, comm, self.shape(), |stream, x, out| comm.all_to_all(stream, x, out))
    }

    fn send(&self, comm: &Communicator, to: usize) -> Result<()> {
        draw_as_rank(comm.world_rank());
        let x = self.contiguous()?;
        Stream::with_current(x.device(), |stream| comm.send(stream, x.view(), to))
    }

    fn recv(shape: &[usize], dtype: DType, comm: &Communicator, from: usize) -> Result<Tensor> {
        draw_as_rank(comm.world_rank());
        let out = Tensor::empty(shape, dtype, comm.device())?;
        out.launch_(|stream, out| comm.recv(stream, out, from))?;
        Ok(out)
    }
}

fn exchange(
    x: &Tensor,
    comm: &Communicator,
    shape: &[usize],
    launch: impl FnOnce(&Stream, View<'_>, View<'_>) -> Result<()>,
) -> Result<Tensor> {
    draw_as_rank(comm.world_rank());
    let x = x.contiguous()?;
    let out = Tensor::empty(shape, x.dtype(), x.device())?;
    out.launch_(|stream, out| launch(stream, x.view(), out))?;
    Ok(out)
}

fn exchange_in_place(
    x: &Tensor,
    comm: &Communicator,
    launch: impl FnOnce(&Stream, View<'_>) -> Result<()>,
) -> Result<()> {
    draw_as_rank(comm.world_rank());
    x.launch_(launch)
}
