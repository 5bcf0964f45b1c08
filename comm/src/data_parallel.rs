//! Training on several ranks: the same model on each, gradients averaged while the backward pass goes on.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use autograd::{BackwardOptions, Gradients, Var, VarId};
use device::{AtCaller, Capture, DType, Error, Result, Stream};
use models::{Forward, Module, Parts};
use parking_lot::Mutex;
use tensor::Tensor;

use crate::{Communicator, Reduce, TensorCollectives};

/// How [`DataParallel`] averages gradients.
#[derive(Clone, Copy, Debug)]
pub struct DataParallelOptions {
    /// About how many bytes of gradients are averaged by one collective; 25 MiB by default.
    pub bucket_bytes: usize,
    /// Whether a loss may leave out parameters, others on each rank. What no rank's loss depends on has no gradient then, and what
    /// some ranks' losses leave out counts as 0 there. The host waits for the ranks in each step to find out. Off by default.
    pub find_unused: bool,
    /// Whether buffers, such as running statistics, become those of rank 0 in each [`backward`](DataParallel::backward) and
    /// [`average`](DataParallel::average). On by default; without buffers it costs nothing.
    pub broadcast_buffers: bool,
}

impl Default for DataParallelOptions {
    fn default() -> DataParallelOptions {
        DataParallelOptions { bucket_bytes: 25 << 20, find_unused: false, broadcast_buffers: true }
    }
}

/// A model that is trained on several ranks, with a part of each batch on each: all have the same parameters, and gradients are the
/// mean of the ranks' ones.
///
/// [`backward`](Self::backward) averages while the pass goes on: gradients are collected in buckets, in the order in which they
/// became complete in the first step, and each full bucket but the last is one all-reduce on a stream of its own. With
/// [`ReduceOrder::Ranks`](crate::ReduceOrder) a mean has the bits of `(g0 + g1 + ..) / ranks`.
///
/// A parameter that is a constant takes part in none of this. One that is frozen has no gradient, but its bucket has zeros in its
/// place; it is frozen on every rank or on none.
///
/// Buffers that the forward pass changes, such as running statistics, are those that rank 0's part of the batches gives: each step
/// broadcasts them once it has averaged, so that all ranks have the same ones.
///
/// Random numbers, such as dropout's, are each rank's own unless ranks are [seeded](tensor::seed) alike.
///
/// A pass by [`Var::backward`] is the rank's alone, and so is a step on lanes; [`average`](Self::average) averages what was merged of
/// several passes. Every rank makes the same calls in the same order.
///
/// ```
/// use comm::{Communicator, DataParallel};
/// use models::{Forward, Module, Optimizer, Sgd, cross_entropy, mlp};
/// use autograd::Var;
/// use tensor::{DType, Tensor};
/// # fn main() -> device::Result<()> {
/// let rank = |comm: Communicator| -> device::Result<Vec<f32>> {
///     let model = DataParallel::new(mlp(&[4, 8, 3], comm.rank() as u64, comm.device())?, &comm)?;
///     let mut sgd = Sgd::new(model.parameters(), 0.1)?;
///     let input = Var::constant(Tensor::full(&[2, 4], 1.0 + comm.rank() as f64, DType::F32, comm.device())?);
///     let labels = Tensor::from_slice(&[0i64, 2], &[2], comm.device())?;
///     let gradients = model.backward(&cross_entropy(&model.forward(&input)?, &labels)?)?;
///     sgd.step(&gradients)?;
///     model.parameters()[0].value().to_vec()
/// };
/// let ranks = Communicator::threads(2)?.into_iter().map(|comm| std::thread::spawn(move || rank(comm)));
/// let weights: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect();
/// assert_eq!(weights[0].clone()?, weights[1].clone()?);
/// # Ok(())
/// # }
/// ```
pub struct DataParallel<M> {
    model: M,
    comm: Communicator,
    stream: Stream,
    options: DataParallelOptions,
    parameters: Vec<(String, Var)>,
    index: HashMap<VarId, usize>,
    buckets: Mutex<Buckets>,
}

/// Which parameters' gradients are averaged together.
struct Buckets {
    /// By the numbers of parameters.
    lists: Arc<[Vec<usize>]>,
    /// Whether they are in the order of arrival.
    settled: bool,
}

#[derive::located]
impl<M: Module> DataParallel<M> {
    /// Makes `model` the same on all ranks: parameters and buffers become those of rank 0, in place. The communicator is
    /// duplicated, so every rank calls this, and the host waits for them.
    ///
    /// # Errors
    /// `DeviceMismatch` for a parameter on another device than the communicator's; those of
    /// [`Communicator::duplicate`] and [`Tensor::broadcast_`].
    pub fn new(model: M, comm: &Communicator) -> Result<DataParallel<M>> {
        DataParallel::with_options(model, comm, DataParallelOptions::default())
    }

    /// [`new`](Self::new) with options.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with_options(
        model: M,
        comm: &Communicator,
        options: DataParallelOptions,
    ) -> Result<DataParallel<M>> {
        let parameters = model.named_parameters();
        let buffers = model.named_buffers();
        let comm = comm.duplicate()?;
        let tensors = parameters.iter().map(|(_, parameter)| parameter.value());
        for tensor in tensors.chain(buffers.iter().map(|(_, buffer)| buffer)) {
            let same = tensor.broadcast(&comm, 0)?;
            tensor.copy_(&same)?;
        }
        let stream = comm.device().new_stream()?;
        let index = parameters.iter().enumerate();
        let index = index.filter_map(|(at, (_, parameter))| Some((parameter.id()?, at))).collect();
        let lists = grouped(&parameters, &trained(&parameters), options.bucket_bytes);
        let buckets = Mutex::new(Buckets { lists, settled: false });
        Ok(DataParallel { model, comm, stream, options, parameters, index, buckets })
    }

    /// The model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The communicator by which gradients are averaged, one of its own.
    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }

    /// The numbers of [`parameters`](Module::parameters) whose gradients are averaged together, in the order of their collectives.
    pub fn buckets(&self) -> Vec<Vec<usize>> {
        self.buckets.lock().lists.to_vec()
    }

    /// The gradients of the mean of all ranks' losses: those of the model's parameters averaged over the ranks, those of other
    /// leaves as they are. Asynchronous but for the first time, when rank 0 tells in which order gradients arrived.
    ///
    /// # Errors
    /// As for [`Var::backward`] and [`Tensor::all_reduce`]; `InvalidArgument` naming a parameter that the loss does not
    /// depend on, without [`find_unused`](DataParallelOptions::find_unused).
    pub fn backward(&self, loss: &Var) -> Result<Gradients> {
        let mut pass = Pass::new(self);
        let mut gradients = loss.backward_each(BackwardOptions::default(), |leaf, gradient| {
            let Some(&parameter) = self.index.get(&leaf) else { return Ok(Some(gradient.clone())) };
            pass.arrive(parameter, gradient)?;
            Ok(None)
        })?;
        let (averaged, arrived) = pass.finish("DataParallel::backward")?;
        // Not before: the pass may use buffers that the forward pass has read.
        self.broadcast_buffers()?;
        gradients.insert(averaged)?;
        self.settle(arrived)?;
        Ok(gradients)
    }

    /// Averages the gradients of the model's parameters over the ranks: for those of several passes, or of lanes, once they are
    /// merged. Asynchronous.
    ///
    /// # Errors
    /// As for [`backward`](Self::backward).
    pub fn average(&self, gradients: &mut Gradients) -> Result<()> {
        let mut pass = Pass::new(self);
        for &parameter in pass.buckets.clone().iter().flatten() {
            if let Some(gradient) = gradients.get_var(&self.parameters[parameter].1) {
                pass.arrive(parameter, gradient)?;
            }
        }
        let (averaged, _) = pass.finish("DataParallel::average")?;
        self.broadcast_buffers()?;
        gradients.insert(averaged)
    }

    /// Makes the buffers those of rank 0, with one collective for all of one type.
    fn broadcast_buffers(&self) -> Result<()> {
        if !self.options.broadcast_buffers {
            return Ok(());
        }
        let mut by_dtype: Vec<(DType, Vec<Tensor>)> = Vec::new();
        for (_, buffer) in self.model.named_buffers() {
            match by_dtype.iter_mut().find(|(dtype, _)| *dtype == buffer.dtype()) {
                Some((_, buffers)) => buffers.push(buffer),
                None => by_dtype.push((buffer.dtype(), vec![buffer])),
            }
        }
        let broadcast = |(_, buffers): (DType, Vec<Tensor>)| -> Result<()> {
            let all = joined(&buffers)?;
            all.broadcast_(&self.comm, 0)?;
            // Rank 0 has them.
            let is_root = self.comm.rank() == 0;
            let parts = if is_root { Vec::new() } else { parts_of(&all, &buffers)? };
            buffers.iter().zip(&parts).try_for_each(|(buffer, part)| buffer.copy_(part))
        };
        self.stream.scope(|| by_dtype.into_iter().try_for_each(broadcast))
    }

    /// From the first pass on, buckets have the order in which gradients arrived on rank 0.
    fn settle(&self, mut arrived: Vec<usize>) -> Result<()> {
        // The host has to know the order, which it does in no captured step.
        if self.buckets.lock().settled || Capture::is_current() {
            return Ok(());
        }
        let known: std::collections::HashSet<usize> = arrived.iter().copied().collect();
        arrived.extend(trained(&self.parameters).into_iter().filter(|parameter| !known.contains(parameter)));
        let order: Vec<i64> = arrived.iter().map(|&parameter| parameter as i64).collect();
        let order = self.stream.scope(|| -> Result<Vec<i64>> {
            Tensor::from_slice(&order, &[order.len()], self.comm.device())?.broadcast(&self.comm, 0)?.to_vec()
        })?;
        let order: Vec<usize> = order.into_iter().map(|parameter| parameter as usize).collect();
        let lists = grouped(&self.parameters, &order, self.options.bucket_bytes);
        *self.buckets.lock() = Buckets { lists, settled: true };
        Ok(())
    }

    /// Launches the mean of these gradients on `stream` as one collective, of which each gets its part.
    fn mean(&self, gradients: &[Tensor], stream: &Stream) -> Result<Vec<Tensor>> {
        stream.scope(|| {
            let all = match gradients {
                [one] => one.reshape(&[one.elements()])?.all_reduce(&self.comm, Reduce::Mean)?,
                several => {
                    let all = joined(several)?;
                    all.all_reduce_(&self.comm, Reduce::Mean)?;
                    all
                }
            };
            parts_of(&all, gradients)
        })
    }

    /// Which parameters some rank's loss depends on. The host waits.
    fn used(&self, here: &[bool]) -> Result<Vec<bool>> {
        self.stream.scope(|| {
            let here = Tensor::from_slice(here, &[here.len()], self.comm.device())?;
            here.all_reduce(&self.comm, Reduce::Max)?.to_vec()
        })
    }
}

/// The elements of all tensors, one behind the other.
fn joined(tensors: &[Tensor]) -> Result<Tensor> {
    let flat = tensors.iter().map(|tensor| tensor.reshape(&[tensor.elements()]));
    let flat: Vec<Tensor> = flat.collect::<Result<_>>()?;
    Tensor::cat(&flat.iter().collect::<Vec<_>>(), 0)
}

/// Parts of `all` in the shapes of `tensors`.
fn parts_of(all: &Tensor, tensors: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut start = 0;
    let part = |tensor: &Tensor| {
        start += tensor.elements();
        all.narrow(0, start - tensor.elements(), tensor.elements())?.reshape(tensor.shape())
    };
    tensors.iter().map(part).collect()
}

/// The parameters that get gradients, or may once they are unfrozen, the last one first.
fn trained(parameters: &[(String, Var)]) -> Vec<usize> {
    (0..parameters.len()).rev().filter(|&parameter| parameters[parameter].1.is_leaf()).collect()
}

/// Parameters in this order, in buckets of about that many bytes and of one type each.
fn grouped(parameters: &[(String, Var)], order: &[usize], bucket_bytes: usize) -> Arc<[Vec<usize>]> {
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    let mut last: Option<(DType, usize)> = None;
    for &parameter in order {
        let value = parameters[parameter].1.value();
        let bytes = value.elements() * value.dtype().size_bytes();
        match (&mut last, buckets.last_mut()) {
            (Some((dtype, held)), Some(bucket))
                if *dtype == value.dtype() && *held + bytes <= bucket_bytes =>
            {
                bucket.push(parameter);
                *held += bytes;
            }
            _ => {
                buckets.push(vec![parameter]);
                last = Some((value.dtype(), bytes));
            }
        }
    }
    buckets.into()
}

/// Leaves with their averaged gradients.
type Averaged = Vec<(Var, Var)>;

/// The gradients of one pass on their way.
struct Pass<'a, M> {
    parallel: &'a DataParallel<M>,
    buckets: Arc<[Vec<usize>]>,
    /// For each parameter, its bucket.
    bucket_of: Vec<usize>,
    /// For each parameter, its gradient from its arrival until its bucket is launched.
    waiting: Vec<Option<Tensor>>,
    /// For each bucket, how many gradients are to come.
    missing: Vec<usize>,
    /// The first bucket that is not launched: all ranks launch them in order.
    next: usize,
    averaged: Vec<(usize, Tensor)>,
    arrived: Vec<usize>,
}

impl<'a, M: Module> Pass<'a, M> {
    fn new(parallel: &'a DataParallel<M>) -> Pass<'a, M> {
        let buckets = Arc::clone(&parallel.buckets.lock().lists);
        let mut bucket_of = vec![0; parallel.parameters.len()];
        for (at, bucket) in buckets.iter().enumerate() {
            bucket.iter().for_each(|&parameter| bucket_of[parameter] = at);
        }
        let missing = buckets.iter().map(Vec::len).collect();
        let waiting = vec![None; parallel.parameters.len()];
        let (averaged, arrived) = (Vec::new(), Vec::new());
        Pass { parallel, buckets, bucket_of, waiting, missing, next: 0, averaged, arrived }
    }

    fn arrive(&mut self, parameter: usize, gradient: &Var) -> Result<()> {
        self.waiting[parameter] = Some(gradient.value().clone());
        self.arrived.push(parameter);
        self.missing[self.bucket_of[parameter]] -= 1;
        while self.missing.get(self.next) == Some(&0) {
            self.launch()?;
        }
        Ok(())
    }

    /// Averages the next bucket; what has not arrived is 0.
    fn launch(&mut self) -> Result<()> {
        let bucket = &self.buckets[self.next];
        let gradient = |&parameter: &usize| match self.waiting[parameter].take() {
            Some(gradient) => Ok(gradient),
            None => Tensor::zeros_like(self.parallel.parameters[parameter].1.value()),
        };
        let gradients: Vec<Tensor> = bucket.iter().map(gradient).collect::<Result<_>>()?;
        let is_last = self.next + 1 == self.buckets.len();
        let here = is_last.then(|| Stream::current(self.parallel.comm.device()));
        // Nothing of the pass is left to go on beside the last one, and a hand-off costs more than a small one.
        let averaged = self.parallel.mean(&gradients, here.as_ref().unwrap_or(&self.parallel.stream))?;
        self.averaged.extend(bucket.iter().copied().zip(averaged));
        self.next += 1;
        Ok(())
    }

    /// The averaged gradients with their leaves, and the order of arrival.
    fn finish(mut self, op: &'static str) -> Result<(Averaged, Vec<usize>)> {
        let parallel = self.parallel;
        let mut here = vec![false; parallel.parameters.len()];
        self.arrived.iter().for_each(|&parameter| here[parameter] = true);
        // Of a frozen one, every rank's gradient is 0.
        let is_unused = |&at: &usize| !here[at] && parallel.parameters[at].1.requires_grad();
        let unused = trained(&parallel.parameters).into_iter().rfind(is_unused);
        if let (Some(unused), false) = (unused, parallel.options.find_unused) {
            let name = &parallel.parameters[unused].0;
            let expected = "one that depends on every parameter, or `find_unused`";
            return Err(Error::invalid(op, "loss", expected, name));
        }
        while self.next < self.buckets.len() {
            self.launch()?;
        }
        let used = if parallel.options.find_unused { parallel.used(&here)? } else { here };
        let leaf = |parameter: usize| parallel.parameters[parameter].1.clone();
        let averaged = self.averaged.into_iter().filter(|(parameter, _)| used[*parameter]);
        let averaged = averaged.map(|(parameter, mean)| (leaf(parameter), Var::constant(mean))).collect();
        Ok((averaged, self.arrived))
    }
}

impl<M: Module> Module for DataParallel<M> {
    fn parts<'a>(&'a self, parts: &mut Parts<'a>) {
        self.model.parts(parts);
    }

    fn set_training(&self, training: bool) {
        self.model.set_training(training);
    }
}

#[derive::located]
impl<M: Forward> Forward for DataParallel<M> {
    fn forward(&self, input: &Var) -> Result<Var> {
        let _user = (!self.model.is_located()).then(AtCaller::leave);
        self.model.forward(input)
    }
}

impl<M: fmt::Debug> fmt::Debug for DataParallel<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("DataParallel");
        debug.field("model", &self.model).field("comm", &self.comm).finish_non_exhaustive()
    }
}
