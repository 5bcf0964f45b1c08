//! What all optimizers share: parameters, their state, and one command for a step.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use autograd::{Gradients, Var};
use device::{Capture, DType, Error, Result, Stream};
use parking_lot::Mutex;
use tensor::{EachReplay, RuleStep, Tensor, Update, each_replay, fresh_slot, optimizer_step};

use super::{Optimizer, OptimizerState, StateReader, check_parameters, refuse_captured, refused, wrong};

/// A kind of optimizer: its options, and the rule that its steps follow.
pub trait Kind: Copy + Send + 'static {
    /// The name in states and errors, as in `adam`.
    const NAME: &'static str;
    /// Whether the rule depends on the number of the step beyond the first, which is then part of the state.
    const COUNTS_STEPS: bool;

    /// What a parameter's step number `step` does, counted from 1.
    ///
    /// # Errors
    /// `InvalidArgument` for step 0.
    fn rule(&self, step: u64) -> Result<RuleStep>;

    /// Every option by its name in states, of which the first is the learning rate.
    fn fields(&mut self) -> Vec<(&'static str, Field<'_>)>;

    /// Rejects options that do not go together.
    ///
    /// # Errors
    /// `InvalidArgument`.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// An option, by the values that it may have.
#[derive(Debug)]
pub enum Field<'a> {
    /// Finite and at least 0.
    NotNegative(&'a mut f64),
    /// At least 0 and below 1.
    Share(&'a mut f64),
    /// Finite.
    Finite(&'a mut f64),
    /// A flag, 0 or 1 in states.
    Flag(&'a mut bool),
}

impl Field<'_> {
    fn get(&self) -> f64 {
        match self {
            Field::NotNegative(value) | Field::Share(value) | Field::Finite(value) => **value,
            Field::Flag(flag) => f64::from(u8::from(**flag)),
        }
    }

    /// Takes a value from a state. Numbers are checked later, with all options.
    fn set(&mut self, name: &str, to: f64) -> Result<()> {
        match self {
            Field::NotNegative(value) | Field::Share(value) | Field::Finite(value) => **value = to,
            Field::Flag(flag) if to == 0.0 || to == 1.0 => **flag = to == 1.0,
            Field::Flag(_) => return Err(wrong(name, format!("{to} in the state, a flag is 0 or 1"))),
        }
        Ok(())
    }

    fn check(&self, op: &'static str, argument: &'static str) -> Result<()> {
        let value = self.get();
        let (fits, expected) = match self {
            Field::NotNegative(_) => (value >= 0.0, "at least 0 and finite"),
            Field::Share(_) => ((0.0..1.0).contains(&value), "at least 0 and below 1"),
            Field::Finite(_) | Field::Flag(_) => (true, "finite"),
        };
        Error::require(value.is_finite() && fits, op, argument, expected, value)
    }
}

/// An optimizer of the given kind. A step is one command a device, for all parameters together.
#[derive(Debug)]
pub struct Fused<K> {
    parameters: Vec<Var>,
    /// Captured steps ask it for their numbers.
    inner: Arc<Mutex<Inner<K>>>,
}

/// What steps change, and what changes them.
#[derive(Debug)]
struct Inner<K> {
    options: K,
    /// One for each parameter.
    states: Vec<State>,
    /// How often a state of another rule was loaded, whose tensors captured steps do not know.
    replaced: u64,
}

/// What is remembered of one parameter: nothing before its first gradient.
#[derive(Clone, Debug, Default)]
struct State {
    /// Steps so far.
    step: u64,
    /// As the rule names them, and last the master of a parameter of BF16 or F16.
    tensors: Vec<Tensor>,
}

/// The name of a master in states.
const MASTER: &str = "master";

fn check<K: Kind>(mut options: K) -> Result<()> {
    options.fields().iter().try_for_each(|(name, field)| field.check(K::NAME, name))?;
    options.check()
}

#[derive::located]
impl<K: Kind> Fused<K> {
    /// An optimizer of `parameters`. A number in place of the options is the learning rate, beside defaults.
    ///
    /// # Errors
    /// `InvalidArgument` for no parameters, one twice or one without gradient, and for an option that is not finite or out
    /// of its range; `DTypeUnsupported` for a parameter that is not of a float type. On a CUDA device, which loads the rule's
    /// kernels here, also as for [`tensor::preload`].
    pub fn new(parameters: Vec<Var>, options: impl Into<K>) -> Result<Self> {
        let options = options.into();
        check_parameters(K::NAME, &parameters)?;
        check(options)?;
        preload(options, &parameters)?;
        let states = vec![State::default(); parameters.len()];
        Ok(Fused { parameters, inner: Arc::new(Mutex::new(Inner { options, states, replaced: 0 })) })
    }

    /// The options as they are now.
    pub fn options(&self) -> K {
        self.inner.lock().options
    }
}

/// Loads the kernels of the options' rule.
fn preload<K: Kind>(options: K, parameters: &[Var]) -> Result<()> {
    let rule = options.rule(1)?;
    parameters.iter().try_for_each(|one| rule.preload(&Stream::current(one.device()), one.dtype()))
}

impl<K: Kind> Inner<K> {
    /// The names of the tensors of a parameter's state.
    fn names(&self, parameter: &Var) -> Result<Vec<&'static str>> {
        let mut names = self.options.rule(1)?.states().to_vec();
        names.extend(parameter.dtype().is_half().then_some(MASTER));
        Ok(names)
    }

    /// Makes the tensors of a parameter's first step, beside any step that is being captured.
    fn prepare(&mut self, number: usize, parameter: &Var) -> Result<()> {
        if self.states[number].tensors.is_empty() {
            let names = self.names(parameter)?;
            let zeros = names.iter().map(|_| zeros_in_order_of(parameter.value()));
            self.states[number].tensors = Capture::suspended(|| zeros.collect::<Result<_>>())?;
        }
        Ok(())
    }
}

/// The steps of an optimizer within a captured step: what its replays ask for.
struct NextSteps<K> {
    inner: Arc<Mutex<Inner<K>>>,
    /// [`Inner::replaced`] at the capture.
    replaced: u64,
    /// How many steps were captured, and for each parameter which of them it makes.
    steps: usize,
    made: HashMap<usize, Vec<usize>>,
    /// In the order of the steps. Until the capture ends each parameter is by itself.
    alike: Vec<Alike>,
}

/// Parameters whose step number `step` of the captured ones has the same numbers in all replays.
struct Alike {
    captured: RuleStep,
    parameters: Vec<usize>,
    step: usize,
    /// How many of the captured steps before it the parameters make.
    before: u64,
}

impl<K: Kind> NextSteps<K> {
    /// Those of the step that this thread captures, which begin with the first step of the optimizer.
    fn of(inner: &Arc<Mutex<Inner<K>>>) -> Option<Arc<Mutex<NextSteps<K>>>> {
        let all = Capture::scratch::<AllNextSteps<K>>()?;
        let mut all = all.lock();
        if let Some(known) = all.iter().find(|known| Arc::ptr_eq(&known.lock().inner, inner)) {
            return Some(Arc::clone(known));
        }
        let replaced = inner.lock().replaced;
        let (made, alike) = (HashMap::new(), Vec::new());
        let fresh = NextSteps { inner: Arc::clone(inner), replaced, steps: 0, made, alike };
        let fresh = Arc::new(Mutex::new(fresh));
        each_replay(Captured(Arc::clone(&fresh)));
        all.push(Arc::clone(&fresh));
        Some(fresh)
    }

    /// How many captured steps a parameter has made.
    fn made(&self, parameter: usize) -> u64 {
        self.made.get(&parameter).map_or(0, |made| made.len() as u64)
    }

    /// Notes a captured step.
    fn add(&mut self, parameters: impl Iterator<Item = (usize, RuleStep)>) {
        for (parameter, captured) in parameters {
            let (step, before) = (self.steps, self.made(parameter));
            self.alike.push(Alike { captured, parameters: vec![parameter], step, before });
            self.made.entry(parameter).or_default().push(step);
        }
        self.steps += 1;
    }
}

/// For each optimizer of a kind what the capture under way has of it.
type AllNextSteps<K> = Mutex<Vec<Arc<Mutex<NextSteps<K>>>>>;

/// What a captured step keeps of an optimizer.
struct Captured<K>(Arc<Mutex<NextSteps<K>>>);

impl<K: Kind> Inner<K> {
    /// The next step of parameters that were at one step at the capture.
    fn next(&self, Alike { captured, parameters, before, .. }: &Alike) -> Result<RuleStep> {
        let at = self.states[parameters[0]].step;
        let next = self.options.rule(at + before + 1)?;
        if !next.same_rule(captured) {
            let reason =
                format!("its options make it {} since the capture; capture the step again", next.op());
            return Err(refused(captured.op(), reason));
        }
        let steps = parameters.iter().map(|&parameter| self.states[parameter].step);
        for other in steps.filter(|&other| other != at) {
            if self.options.rule(other + before + 1)? != next {
                let reason = format!(
                    "of parameters that were at one step, one has made {at} since and one {other}; capture the step again"
                );
                return Err(refused(captured.op(), reason));
            }
        }
        Ok(next.named(captured.slot()))
    }
}

impl<K: Kind> EachReplay for Captured<K> {
    fn merge_slots(&mut self) -> Vec<(u32, u32)> {
        let NextSteps { inner, made, alike, .. } = &mut *self.0.lock();
        let inner = inner.lock();
        // Parameters that are as far as each other, and make the same steps of each replay.
        let (mut classes, mut merged, mut slots) = (HashMap::new(), Vec::<Alike>::new(), Vec::new());
        for one in std::mem::take(alike) {
            let parameter = one.parameters[0];
            match classes.entry((one.step, inner.states[parameter].step, &made[&parameter])) {
                Entry::Occupied(known) => {
                    let known: &mut Alike = &mut merged[*known.get()];
                    known.parameters.push(parameter);
                    slots.push((one.captured.slot(), known.captured.slot()));
                }
                Entry::Vacant(new) => {
                    new.insert(merged.len());
                    merged.push(one);
                }
            }
        }
        *alike = merged;
        slots
    }

    fn next(&mut self) -> Result<Vec<RuleStep>> {
        let NextSteps { inner, replaced, alike, .. } = &*self.0.lock();
        let mut inner = inner.lock();
        let next = alike.iter().map(|alike| inner.next(alike)).collect::<Result<_>>()?;
        if inner.replaced != *replaced {
            let reason = "a state of another rule was loaded since the capture; capture the step again";
            return Err(refused(K::NAME, reason));
        }
        for &parameter in alike.iter().flat_map(|alike| &alike.parameters) {
            inner.states[parameter].step += 1;
        }
        Ok(next)
    }

    fn undo(&mut self) {
        let NextSteps { inner, alike, .. } = &*self.0.lock();
        let mut inner = inner.lock();
        for &parameter in alike.iter().flat_map(|alike| &alike.parameters) {
            inner.states[parameter].step -= 1;
        }
    }
}

#[derive::located]
impl<K: Kind> Optimizer for Fused<K> {
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        let gradient_of =
            |parameter: &Var| gradients.get_var(parameter).filter(|_| parameter.requires_grad());
        if !self.parameters.iter().any(|parameter| gradient_of(parameter).is_some()) {
            let value =
                format_args!("{} gradients of none of {} parameters", gradients.len(), self.parameters.len());
            return Err(Error::invalid(K::NAME, "gradients", "of at least one parameter", value));
        }
        let elsewhere = |parameter: &Var| !Capture::is_of(parameter.device());
        if Capture::is_current() && self.parameters.iter().any(elsewhere) {
            let reason =
                "a parameter is on another device than the step, and would not be part of its replays";
            return Err(refused(K::NAME, reason));
        }
        let captured = NextSteps::of(&self.inner);
        let mut captured = captured.as_ref().map(|captured| captured.lock());
        let mut inner = self.inner.lock();
        let mut rules: Vec<(u64, RuleStep)> = Vec::new();
        let mut steps = Vec::with_capacity(self.parameters.len());
        for (number, parameter) in self.parameters.iter().enumerate() {
            let Some(gradient) = gradient_of(parameter) else { continue };
            inner.prepare(number, parameter)?;
            let next =
                inner.states[number].step + captured.as_ref().map_or(0, |captured| captured.made(number)) + 1;
            let rule = match rules.iter().find(|(step, _)| *step == next) {
                Some((_, rule)) => *rule,
                None => {
                    rules.push((next, inner.options.rule(next)?));
                    rules[rules.len() - 1].1
                }
            };
            let rule = if captured.is_some() { rule.named(fresh_slot()) } else { rule };
            steps.push((number, gradient, rule));
        }
        let updates = steps.iter().map(|&(number, gradient, step)| {
            let (states, master) = inner.states[number].tensors.split_at(step.states().len());
            let param = self.parameters[number].value();
            Update { param, grad: gradient.value(), master: master.first(), states, step }
        });
        optimizer_step(&updates.collect::<Vec<_>>())?;
        let numbers = steps.iter().map(|(number, _, step)| (*number, *step));
        match &mut captured {
            Some(captured) => captured.add(numbers),
            None => numbers.for_each(|(number, _)| inner.states[number].step += 1),
        }
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.options().fields().first().map_or(0.0, |(_, lr)| lr.get())
    }

    fn set_learning_rate(&mut self, lr: f64) -> Result<()> {
        refuse_captured(K::NAME, "replays would not set it; set it between them")?;
        let mut options = self.options();
        if let Some((name, field)) = options.fields().first_mut() {
            field.set(name, lr)?;
        }
        check(options)?;
        self.inner.lock().options = options;
        Ok(())
    }

    fn parameters(&self) -> &[Var] {
        &self.parameters
    }

    fn state(&self) -> Result<OptimizerState> {
        let inner = self.inner.lock();
        let mut options = inner.options;
        let options =
            options.fields().iter().map(|(name, field)| ((*name).to_owned(), field.get())).collect();
        let mut tensors = Vec::new();
        for (number, state) in inner.states.iter().enumerate().filter(|(_, state)| state.step > 0) {
            if let (true, Some(like)) = (K::COUNTS_STEPS, state.tensors.first()) {
                tensors.push((
                    format!("{number}.step"),
                    Tensor::scalar(state.step.cast_signed(), like.device())?,
                ));
            }
            for (name, tensor) in inner.names(&self.parameters[number])?.iter().zip(&state.tensors) {
                tensors.push((format!("{number}.{name}"), tensor.copy()?));
            }
        }
        Ok(OptimizerState { kind: K::NAME.into(), options, tensors })
    }

    fn load_state(&mut self, state: &OptimizerState) -> Result<()> {
        refuse_captured(K::NAME, "replays would load the tensors and not the counts; load it between them")?;
        let mut reader = StateReader::new(K::NAME, state)?;
        let mut options = self.options();
        let mut fields = options.fields();
        reader.check_options(|name| fields.iter().any(|(known, _)| *known == name))?;
        for (name, field) in &mut fields {
            field.set(name, reader.option(name)?)?;
        }
        drop(fields);
        check(options)?;
        preload(options, &self.parameters)?;
        let loaded = Inner { options, states: Vec::new(), replaced: 0 };
        let mut states = Vec::with_capacity(self.parameters.len());
        for (number, parameter) in self.parameters.iter().enumerate() {
            let names = loaded.names(parameter)?;
            let entry = reader.entry(number, "step").filter(|_| K::COUNTS_STEPS);
            let step = entry.map(|(name, tensor)| step_number(&name, tensor)).transpose()?;
            let tensors = names.iter().filter_map(|name| reader.buffer(number, name, parameter).transpose());
            let tensors: Vec<Tensor> = tensors.collect::<Result<_>>()?;
            let counted = step.is_some() == K::COUNTS_STEPS;
            states.push(match (step, tensors.len()) {
                (None, 0) => State::default(),
                // Of a step that is not counted it matters only whether it is the first.
                (step, found) if found == names.len() && counted => {
                    State { step: step.unwrap_or(1), tensors }
                }
                _ => {
                    let step = if K::COUNTS_STEPS { "step, " } else { "" };
                    let detail = format!("{step}{} must be there together", names.join(", "));
                    return Err(wrong(&number.to_string(), detail));
                }
            });
        }
        reader.finish()?;
        let mut inner = self.inner.lock();
        let mut replaced = false;
        for ((own, state), parameter) in inner.states.iter().zip(&mut states).zip(&self.parameters) {
            replaced |= state.keep(own, loaded.names(parameter)?.len())?;
        }
        let replaced = inner.replaced + u64::from(replaced);
        *inner = Inner { options, states, replaced };
        Ok(())
    }
}

impl State {
    /// Has the tensors that captured steps know from `own` hold what was loaded, which are zeros before the first step. Returns
    /// whether there are some that do not fit, since the rule asks for `count`.
    fn keep(&mut self, own: &State, count: usize) -> Result<bool> {
        if own.tensors.len() != count {
            return Ok(!own.tensors.is_empty());
        }
        for (at, own) in own.tensors.iter().enumerate() {
            self.tensors.get(at).map_or_else(|| own.zero_(), |loaded| own.copy_(loaded))?;
        }
        self.tensors.clone_from(&own.tensors);
        Ok(false)
    }
}

fn step_number(name: &str, tensor: &Tensor) -> Result<u64> {
    let scalar = tensor.dtype() == DType::I64 && tensor.elements() == 1;
    let number = if scalar { u64::try_from(tensor.item::<i64>()?).ok() } else { None };
    number.ok_or_else(|| wrong(name, "must be one integer that is not negative"))
}

/// Zeros with the shape and, for a transposed matrix, the memory order of `like`, in what it is computed in: the fused kernels
/// are fastest when all operands run through memory alike.
pub(super) fn zeros_in_order_of(like: &Tensor) -> Result<Tensor> {
    let dtype = like.dtype().compute_dtype();
    if let ([rows, columns], false) = (like.shape(), like.is_contiguous())
        && like.t()?.is_contiguous()
    {
        return Tensor::zeros(&[*columns, *rows], dtype, like.device())?.t();
    }
    Tensor::zeros(like.shape(), dtype, like.device())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
