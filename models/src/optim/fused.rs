//! What all optimizers share: parameters, their state, and one command for a step.

use autograd::{Gradients, Var};
use device::{DType, Error, Result};
use tensor::{RuleStep, Tensor, Update, optimizer_step};

use super::{Optimizer, OptimizerState, StateReader, check_parameters, wrong};

/// A kind of optimizer: its options, and the rule that its steps follow.
pub trait Kind: Copy + Send {
    /// The name in states and errors, as in `adam`.
    const NAME: &'static str;
    /// Whether the rule depends on the number of the step beyond the first, which is then part of the state.
    const COUNTS_STEPS: bool;

    /// What a parameter's step number `step` does, counted from 1.
    ///
    /// # Errors
    /// `InvalidArgument` for step 0.
    fn rule(&self, step: u64) -> Result<RuleStep>;

    /// Every option, the learning rate included, by its name in states.
    fn fields(&mut self) -> Vec<(&'static str, Field<'_>)>;

    /// The learning rate.
    fn lr(&mut self) -> &mut f64;

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

    fn set(&mut self, to: f64) {
        match self {
            Field::NotNegative(value) | Field::Share(value) | Field::Finite(value) => **value = to,
            Field::Flag(flag) => **flag = to != 0.0,
        }
    }

    fn check(&self, op: &'static str, argument: &'static str) -> Result<()> {
        let value = self.get();
        let (fits, expected) = match self {
            Field::NotNegative(_) => (value >= 0.0, "at least 0 and finite"),
            Field::Share(_) => ((0.0..1.0).contains(&value), "at least 0 and below 1"),
            Field::Finite(_) | Field::Flag(_) => (true, "finite"),
        };
        if value.is_finite() && fits {
            return Ok(());
        }
        Err(Error::invalid(op, argument, expected, value))
    }
}

/// An optimizer of the given kind. A step is one command a device, for all parameters together.
#[derive(Debug)]
pub struct Fused<K> {
    parameters: Vec<Var>,
    options: K,
    states: Vec<State>,
}

/// What is remembered of one parameter: nothing before its first gradient.
#[derive(Clone, Debug, Default)]
struct State {
    /// Steps so far.
    step: u64,
    /// As the rule names them.
    tensors: Vec<Tensor>,
}

fn check<K: Kind>(mut options: K) -> Result<()> {
    options.fields().iter().try_for_each(|(name, field)| field.check(K::NAME, name))?;
    options.check()
}

impl<K: Kind> Fused<K> {
    /// An optimizer of `parameters`. A number in place of the options is the learning rate, beside defaults.
    ///
    /// # Errors
    /// `InvalidArgument` for no parameters, one twice or one without gradient, and for an option that is not finite or out
    /// of its range; `DTypeUnsupported` for a parameter that is not of a float type.
    pub fn new(parameters: Vec<Var>, options: impl Into<K>) -> Result<Self> {
        let options = options.into();
        check_parameters(K::NAME, &parameters)?;
        check(options)?;
        let states = vec![State::default(); parameters.len()];
        Ok(Fused { parameters, options, states })
    }

    /// The options as they are now.
    pub fn options(&self) -> &K {
        &self.options
    }

    /// The names of the state's tensors.
    fn names(&self) -> Result<&'static [&'static str]> {
        Ok(self.options.rule(1)?.states())
    }
}

impl<K: Kind> Optimizer for Fused<K> {
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        if !self.parameters.iter().any(|parameter| gradients.get_var(parameter).is_some()) {
            return Err(Error::invalid(
                K::NAME,
                "gradients",
                "of at least one parameter",
                format_args!("{} gradients of none of {} parameters", gradients.len(), self.parameters.len()),
            ));
        }
        let names = self.names()?;
        for (parameter, state) in self.parameters.iter().zip(&mut self.states) {
            if state.tensors.is_empty() && gradients.get_var(parameter).is_some() {
                let zeros = names.iter().map(|_| zeros_in_order_of(parameter.value()));
                state.tensors = zeros.collect::<Result<_>>()?;
            }
        }
        let mut updates = Vec::with_capacity(self.parameters.len());
        for (parameter, State { step, tensors }) in self.parameters.iter().zip(&self.states) {
            let Some(gradient) = gradients.get_var(parameter) else { continue };
            let step = self.options.rule(step + 1)?;
            updates.push(Update { param: parameter.value(), grad: gradient.value(), states: tensors, step });
        }
        optimizer_step(&updates)?;
        for (parameter, state) in self.parameters.iter().zip(&mut self.states) {
            state.step += u64::from(gradients.get_var(parameter).is_some());
        }
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        *{ self.options }.lr()
    }

    fn set_learning_rate(&mut self, lr: f64) -> Result<()> {
        let mut options = self.options;
        *options.lr() = lr;
        check(options)?;
        self.options = options;
        Ok(())
    }

    fn parameters(&self) -> &[Var] {
        &self.parameters
    }

    fn state(&self) -> Result<OptimizerState> {
        let mut options = self.options;
        let options =
            options.fields().iter().map(|(name, field)| ((*name).to_owned(), field.get())).collect();
        let (names, mut tensors) = (self.names()?, Vec::new());
        for (number, state) in self.states.iter().enumerate().filter(|(_, state)| state.step > 0) {
            if let (true, Some(like)) = (K::COUNTS_STEPS, state.tensors.first()) {
                tensors.push((
                    format!("{number}.step"),
                    Tensor::scalar(state.step.cast_signed(), like.device())?,
                ));
            }
            for (name, tensor) in names.iter().zip(&state.tensors) {
                tensors.push((format!("{number}.{name}"), tensor.copy()?));
            }
        }
        Ok(OptimizerState { kind: K::NAME.into(), options, tensors })
    }

    fn load_state(&mut self, state: &OptimizerState) -> Result<()> {
        let mut reader = StateReader::new(K::NAME, state)?;
        let mut options = self.options;
        for (name, field) in &mut options.fields() {
            field.set(reader.option(name)?);
        }
        check(options)?;
        let names = options.rule(1)?.states();
        let mut states = Vec::with_capacity(self.parameters.len());
        for (number, parameter) in self.parameters.iter().enumerate() {
            let step = match reader.entry(number, "step").filter(|_| K::COUNTS_STEPS) {
                Some((name, tensor)) => Some(step_number(&name, tensor)?),
                None => None,
            };
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
        (self.options, self.states) = (options, states);
        Ok(())
    }
}

fn step_number(name: &str, tensor: &Tensor) -> Result<u64> {
    let scalar = tensor.dtype() == DType::I64 && tensor.elements() == 1;
    let number = if scalar { u64::try_from(tensor.item::<i64>()?).ok() } else { None };
    number.ok_or_else(|| wrong(name, "must be one integer that is not negative".into()))
}

/// Zeros with the shape and, for a transposed matrix, the memory order of `like`: the fused kernels are
/// fastest when all operands run through memory alike.
pub(super) fn zeros_in_order_of(like: &Tensor) -> Result<Tensor> {
    if let ([rows, columns], false) = (like.shape(), like.is_contiguous())
        && like.t()?.is_contiguous()
    {
        return Tensor::zeros(&[*columns, *rows], like.dtype(), like.device())?.t();
    }
    Tensor::zeros(like.shape(), like.dtype(), like.device())
}
