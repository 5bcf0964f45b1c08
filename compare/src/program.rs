//! What is compared: a step in closures.

use std::panic::Location;
use std::sync::Arc;

use ::profile::Finding;
use autograd::{ConcurrentBatches, Gradients, Var, no_grad};
use device::{AtCaller, Device, Error, Result};
use models::{Module, checkpoint};
use tensor::{Generator, Tensor, Tensors, with_generator};

/// A step in closures: how it begins, what it is given, and what it does.
pub(super) struct Program<'a, S, B> {
    pub(super) setup: Setup<'a, S>,
    /// The same state, whose step runs its branches at once.
    pub(super) branched: Option<Setup<'a, S>>,
    pub(super) batches: Batches<'a, B>,
    pub(super) prepare: Option<Of<'a, S, PrepareBatch<'a, B>>>,
    pub(super) on_host: bool,
    /// The loss of a batch, and what else it gives.
    pub(super) loss: Option<Loss<'a, S, B>>,
    pub(super) update: Option<Step<'a, S, Gradients, ()>>,
    /// Anything, with one batch.
    pub(super) step: Option<Step<'a, S, B, Vec<Tensor>>>,
    pub(super) model: Option<Model<'a, S>>,
    pub(super) state: Option<Of<'a, S, Named>>,
    pub(super) metrics: Option<Of<'a, S, Result<Metrics>>>,
    /// The call that runs the program, whose line errors name where none of the closures fails.
    pub(super) at: &'static Location<'static>,
}

pub(super) type Setup<'a, S> = Box<dyn Fn(&Device) -> Result<S> + Send + Sync + 'a>;
pub(super) type Batches<'a, B> = Box<dyn Fn(&Device) -> Result<Source<'a, B>> + Send + Sync + 'a>;

type Loss<'a, S, B> = Box<dyn Fn(&S, &B) -> Result<(Var, Vec<Tensor>)> + Send + Sync + 'a>;
type Model<'a, S> = Box<dyn Fn(&S) -> &(dyn Module) + Send + Sync + 'a>;
/// What follows from the state.
type Of<'a, S, R> = Box<dyn Fn(&S) -> R + Send + Sync + 'a>;
/// What changes the state.
type Step<'a, S, B, R> = Box<dyn Fn(&mut S, B) -> Result<R> + Send + Sync + 'a>;

/// The batches of one schedule, in order.
pub(super) type Source<'a, B> = Box<dyn Iterator<Item = Result<B>> + 'a>;

/// What comes before a step, for one batch.
pub(super) type PrepareBatch<'a, B> = Arc<dyn Fn(B) -> Result<B> + Send + Sync + 'a>;

/// Losses of a step's batches, and what else the step gives.
pub(super) type Outcome = (Vec<Tensor>, Vec<Tensor>);

/// Tensors with a name each.
pub(super) type Named = Vec<(String, Tensor)>;

/// Numbers with a name each.
pub(super) type Metrics = Vec<(String, f64)>;

impl<'a, S, B> Program<'a, S, B> {
    pub(super) fn new(setup: Setup<'a, S>, batches: Batches<'a, B>) -> Self {
        let (branched, prepare, on_host) = (None, None, false);
        let (loss, update, step) = (None, None, None);
        let (model, state, metrics, at) = (None, None, None, AtCaller::location());
        Program { setup, branched, batches, prepare, on_host, loss, update, step, model, state, metrics, at }
    }

    /// The same with other batches, without what takes them.
    pub(super) fn with_batches<C>(self, batches: Batches<'a, C>) -> Program<'a, S, C> {
        let Program { setup, branched, on_host, model, state, metrics, update, .. } = self;
        Program { branched, on_host, model, state, metrics, update, ..Program::new(setup, batches) }
    }

    /// The parameters of the model, if the program shows one.
    pub(super) fn parameters(&self, state: &S) -> Vec<(String, Var)> {
        self.model.as_ref().map(|model| model(state).named_parameters()).unwrap_or_default()
    }

    /// What must be equal in the end: parameters and buffers of the model, and what else the program shows.
    pub(super) fn shown(&self, state: &S) -> Named {
        let model = self.model.iter().flat_map(|model| checkpoint::state(model(state)));
        model.chain(self.state.iter().flat_map(|shown| shown(state))).collect()
    }

    pub(super) fn shows_state(&self) -> bool {
        self.model.is_some() || self.state.is_some()
    }

    /// That there is one step.
    pub(super) fn check(&self) -> Result<()> {
        let given = match (&self.loss, &self.update, &self.step) {
            (Some(_), _, None) | (None, None, Some(_)) => return Ok(()),
            (_, _, Some(_)) => "both",
            (None, Some(_), None) => "an update alone",
            (None, None, None) => "none",
        };
        let expected = "a loss, perhaps with an update, or else a step";
        Err(Error::invalid("Comparison::run", "step", expected, given))
    }

    /// What is not compared because of what is not given.
    pub(super) fn left_out(&self) -> Option<Finding> {
        let missing = [
            (self.loss.is_none(), "lanes need a `loss` in place of a whole `step`"),
            (self.loss.is_some() && self.update.is_none(), "parameters change only with an `update`"),
            (self.prepare.is_none(), "stages need a `prepare`"),
            (self.model.is_none(), "parameters and their gradients are compared with a `model`"),
        ];
        let missing: Vec<&str> =
            missing.into_iter().filter(|(is_so, _)| *is_so).map(|(_, what)| what).collect();
        (!missing.is_empty()).then(|| Finding::new("left-out", missing.join("; ")))
    }
}

impl<S: Send + Sync, B> Program<'_, S, B> {
    /// One step on batches that `ready` makes of items.
    pub(super) fn run<I: Send>(
        &self,
        state: &mut S,
        lanes: &ConcurrentBatches,
        items: impl IntoIterator<Item = I>,
        ready: impl Fn(I) -> Result<B> + Sync,
    ) -> Result<Outcome> {
        let at = self.at;
        let _at = AtCaller::enter_at(at);
        if let Some(step) = &self.step {
            let results = items.into_iter().map(|item| step(state, ready(item)?));
            return Ok((Vec::new(), results.collect::<Result<Vec<_>>>()?.concat()));
        }
        let Some(loss) = &self.loss else { return Ok(Outcome::default()) };
        let shared: &S = state;
        let step = lanes.step(items, |item| {
            let _at = AtCaller::enter_at(at);
            let given = loss(shared, &ready(item)?)?;
            expect_one_number(&given.0)?;
            Ok(given)
        })?;
        let mut results = step.outputs.concat();
        match &self.update {
            Some(update) => update(state, step.gradients)?,
            None => results.extend(step.gradients.shared()?.1),
        }
        Ok((step.losses, results))
    }
}

/// That a loss has one element. An error is at the op that computed it.
pub(super) fn expect_one_number(loss: &Var) -> Result<()> {
    let shape = loss.shape();
    if loss.value().elements() == 1 {
        return Ok(());
    }
    let _at = loss.tape().last().map(|made| AtCaller::enter_at(made.location));
    Err(Error::invalid("Comparison", "loss", "one number, such as a mean", format_args!("shape {shape:?}")))
}

/// What makes batches ready for a step on `device`.
pub(super) struct Prepare<'a, B> {
    work: Option<PrepareBatch<'a, B>>,
    at: &'static Location<'static>,
    device: Device,
    generator: Generator,
}

impl<B> Clone for Prepare<'_, B> {
    fn clone(&self) -> Self {
        Prepare { work: self.work.clone(), device: self.device.clone(), ..*self }
    }
}

impl<'a, B: Tensors> Prepare<'a, B> {
    /// Random ops of batch `i` draw from fork `i` of `generator`, on whatever thread it is prepared.
    pub(super) fn new(work: Option<PrepareBatch<'a, B>>, device: &Device, generator: Generator) -> Self {
        Prepare { work, at: AtCaller::location(), device: device.clone(), generator }
    }

    /// The batch with this number, on the device.
    pub(super) fn batch(&self, number: u64, batch: B) -> Result<B> {
        let _at = AtCaller::enter_at(self.at);
        let batch = match &self.work {
            Some(work) => with_generator(self.generator.fork(number), || no_grad(|| work(batch)))?,
            None => batch,
        };
        batch.rebuild(&mut |tensor| tensor.to_device(&self.device))
    }

    /// The batches of a step, of which the first has the number `from`.
    pub(super) fn all(&self, from: u64, batches: Vec<B>) -> Result<Vec<B>> {
        (from..).zip(batches).map(|(number, batch)| self.batch(number, batch)).collect()
    }
}

/// The next `count` batches of a step.
pub(super) fn next<B>(source: &mut Source<'_, B>, count: usize) -> Result<Vec<B>> {
    let batches: Vec<B> = AtCaller::user(|| source.take(count).collect::<Result<_>>())?;
    let (expected, given) = ("as many as all steps take", batches.len());
    let value = format_args!("{given} for a step of {count}, and then no more");
    Error::require(given == count, "Comparison::run", "batches", expected, value)?;
    Ok(batches)
}
