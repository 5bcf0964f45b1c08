//! Collectives: what the ranks of a communicator make of a value of each, with the gradients of the sum of all ranks' losses.
//!
//! The gradient of a collective is a collective, on the stream of the forward one. So all ranks have to run it: each rank's loss
//! has to depend on the result, and its input has to require a gradient, on all ranks or on none.

use autograd::{Grads, Save, Var, record, record_one};
use tensor::{DType, Error, Result, Tensor};

use crate::failure::expect_rank;
use crate::{Communicator, Reduce, TensorCollectives};

/// Collectives of a [`Var`].
pub trait VarCollectives: Sized {
    /// The sum, the mean, the largest or the smallest of all ranks' values, on every rank.
    ///
    /// `y = x of rank 0 + x of rank 1 + ..`; `x' = y' of rank 0 + y' of rank 1 + ..`, and both divided by the number of ranks for a
    /// mean. Where `y` is the largest or the smallest, those ranks share the sum of the `y'` whose `x` it is. Shapes: `[..] -> [..]`.
    ///
    /// # Errors
    /// As for [`TensorCollectives::all_reduce`]; `InvalidArgument` for the product of a value that requires a gradient.
    fn all_reduce(&self, comm: &Communicator, reduce: Reduce) -> Result<Var>;

    /// All ranks' values, one behind the other along the first axis, on every rank.
    ///
    /// `y[r] = x of rank r`; `x'` is this rank's part of the sum of all ranks' `y'`, by [`reduce_scatter`](Self::reduce_scatter).
    /// Shapes: `[n, ..] -> [size n, ..]`; `[] -> [size]`.
    ///
    /// # Errors
    /// As for [`TensorCollectives::all_gather`].
    fn all_gather(&self, comm: &Communicator) -> Result<Var>;

    /// This rank's part, along the first axis, of the sum or the mean of all ranks' values.
    ///
    /// `x'` is all ranks' `y'`, one behind the other, by [`all_gather`](Self::all_gather), divided by the number of ranks for a mean.
    /// Shapes: `[size n, ..] -> [n, ..]`.
    ///
    /// # Errors
    /// As for [`TensorCollectives::reduce_scatter`]; `InvalidArgument` for another reduction of a value that requires a gradient.
    fn reduce_scatter(&self, comm: &Communicator, reduce: Reduce) -> Result<Var>;

    /// The value of rank `root`, on every rank; all give one of its shape and type.
    ///
    /// `x'` is the sum of all ranks' `y'` on the root, 0 elsewhere, by [`reduce`](Self::reduce). Shapes: `[..] -> [..]`.
    ///
    /// # Errors
    /// As for [`TensorCollectives::broadcast`].
    fn broadcast(&self, comm: &Communicator, root: usize) -> Result<Var>;

    /// The sum of all ranks' values on rank `root`, 0 elsewhere.
    ///
    /// `x' = y'` of the root, by [`broadcast`](Self::broadcast). Shapes: `[..] -> [..]`.
    ///
    /// # Errors
    /// As for [`TensorCollectives::broadcast`].
    fn reduce(&self, comm: &Communicator, root: usize) -> Result<Var>;

    /// This rank's part, along the first axis, of every rank's value, one behind the other.
    ///
    /// `x'` is the same of `y'`. Shapes: `[size n, ..] -> [size n, ..]`.
    ///
    /// # Errors
    /// As for [`TensorCollectives::all_to_all`].
    fn all_to_all(&self, comm: &Communicator) -> Result<Var>;

    /// Gives the value to rank `to`, which [receives](Self::recv) it. The result is 0, to be added to this rank's loss: the backward
    /// pass finds there that it has to receive the gradient.
    ///
    /// The gradient cannot be differentiated again.
    ///
    /// # Errors
    /// As for [`TensorCollectives::send`].
    fn send(&self, comm: &Communicator, to: usize) -> Result<Var>;

    /// A value of this shape and type, which rank `from` [sends](Self::send), on the communicator's device. Its gradient goes back
    /// there in a pass over all leaves, as [`Var::backward`] is.
    ///
    /// The gradient cannot be differentiated again.
    ///
    /// # Errors
    /// As for [`TensorCollectives::recv`].
    fn recv(shape: &[usize], dtype: DType, comm: &Communicator, from: usize) -> Result<Var>;
}

#[derive::located]
impl VarCollectives for Var {
    fn all_reduce(&self, comm: &Communicator, reduce: Reduce) -> Result<Var> {
        const OP: &str = "all_reduce";
        let is_extreme = matches!(reduce, Reduce::Max | Reduce::Min);
        if !is_extreme {
            linear(OP, self, reduce)?;
        }
        let (value, comm) = (self.value().all_reduce(comm, reduce)?, comm.clone());
        if is_extreme {
            return record_one(OP, self, &[Save::Input(0), Save::Output], value, move |ctx, g| {
                let (x, y) = (ctx.saved(0), ctx.saved(1));
                let extreme = x.value().eq(y.value())?.to_dtype(x.dtype())?;
                let shares = extreme.div(&extreme.all_reduce(&comm, Reduce::Sum)?)?;
                g.all_reduce(&comm, Reduce::Sum)?.mul(&Var::constant(shares))
            });
        }
        record_one(OP, self, &[], value, move |_, g| g.all_reduce(&comm, reduce))
    }

    fn all_gather(&self, comm: &Communicator) -> Result<Var> {
        let (value, comm) = (self.value().all_gather(comm)?, comm.clone());
        let is_scalar = self.shape().is_empty();
        record_one("all_gather", self, &[], value, move |_, g| {
            let part = g.reduce_scatter(&comm, Reduce::Sum)?;
            if is_scalar { part.reshape(&[]) } else { Ok(part) }
        })
    }

    fn reduce_scatter(&self, comm: &Communicator, reduce: Reduce) -> Result<Var> {
        const OP: &str = "reduce_scatter";
        linear(OP, self, reduce)?;
        let (value, comm) = (self.value().reduce_scatter(comm, reduce)?, comm.clone());
        record_one(OP, self, &[], value, move |_, g| {
            let all = g.all_gather(&comm)?;
            if reduce == Reduce::Mean { all.div_scalar(comm.size() as f64) } else { Ok(all) }
        })
    }

    fn broadcast(&self, comm: &Communicator, root: usize) -> Result<Var> {
        let (value, comm) = (self.value().broadcast(comm, root)?, comm.clone());
        record_one("broadcast", self, &[], value, move |_, g| g.reduce(&comm, root))
    }

    fn reduce(&self, comm: &Communicator, root: usize) -> Result<Var> {
        const OP: &str = "reduce";
        expect_rank(OP, root, comm.size())?;
        let sum = self.value().all_reduce(comm, Reduce::Sum)?;
        let value = if comm.rank() == root { sum } else { Tensor::zeros_like(&sum)? };
        let comm = comm.clone();
        record_one(OP, self, &[], value, move |_, g| g.broadcast(&comm, root))
    }

    fn all_to_all(&self, comm: &Communicator) -> Result<Var> {
        let (value, comm) = (self.value().all_to_all(comm)?, comm.clone());
        record_one("all_to_all", self, &[], value, move |_, g| g.all_to_all(&comm))
    }

    fn send(&self, comm: &Communicator, to: usize) -> Result<Var> {
        const OP: &str = "send";
        self.value().send(comm, to)?;
        let value = Tensor::zeros(&[], self.dtype(), self.device())?;
        let (comm, shape, dtype) = (comm.clone(), self.value().shape().to_vec(), self.dtype());
        record_one(OP, self, &[], value, move |cx, _| {
            once(OP, cx.is_recorded())?;
            Ok(Var::constant(Tensor::recv(&shape, dtype, &comm, to)?))
        })
    }

    fn recv(shape: &[usize], dtype: DType, comm: &Communicator, from: usize) -> Result<Var> {
        const OP: &str = "recv";
        let value = Tensor::recv(shape, dtype, comm, from)?;
        // What requires the gradient is on the other rank.
        let there = Var::leaf(Tensor::zeros(&[0], dtype, comm.device())?);
        let comm = comm.clone();
        Ok(record(OP, &[&there], &[], value, move |cx, g| {
            once(OP, cx.is_recorded())?;
            g.value().send(&comm, from)?;
            Ok(Grads::from_iter([None]))
        }))
    }
}

/// That a reduction has a gradient, where one is asked for.
fn linear(op: &'static str, x: &Var, reduce: Reduce) -> Result<()> {
    let is_linear = !x.requires_grad() || matches!(reduce, Reduce::Sum | Reduce::Mean);
    Error::require(is_linear, op, "reduce", "a sum or a mean of a value that requires a gradient", reduce)
}

/// That a pass is not recorded.
fn once(op: &'static str, recorded: bool) -> Result<()> {
    Error::require(!recorded, op, "create_graph", "false: messages have no second derivative", true)
}
