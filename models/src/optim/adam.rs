//! Adam and AdamW.

use autograd::{Gradients, Var};
use device::{DType, Result};
use tensor::{AdamStep, AdamUpdate, Tensor, adam_step};

use super::{
    Optimizer, OptimizerState, StateReader, check_not_negative, check_option, check_parameters, wrong,
    zeros_in_order_of,
};

/// How [`Adam`] steps; the defaults are torch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the gradient's mean and of its mean square is kept.
    pub betas: (f64, f64),
    /// Added to the root in the denominator.
    pub eps: f64,
    /// L2 penalty, added to the gradient.
    pub weight_decay: f64,
}

impl Default for AdamOptions {
    fn default() -> Self {
        AdamOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0 }
    }
}

/// How [`AdamW`] steps; the defaults are torch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the gradient's mean and of its mean square is kept.
    pub betas: (f64, f64),
    /// Added to the root in the denominator.
    pub eps: f64,
    /// How much of the weight is taken off in each step, times the learning rate.
    pub weight_decay: f64,
}

impl Default for AdamWOptions {
    fn default() -> Self {
        AdamWOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 1e-2 }
    }
}

/// `m = β₁ m + (1 - β₁) g; v = β₂ v + (1 - β₂) g²; w -= lr m̂ / (sqrt(v̂) + eps)`.
///
/// `m̂ = m / (1 - β₁ᵗ)` and `v̂ = v / (1 - β₂ᵗ)` in step t; weight decay adds `weight_decay * w` to `g` first
/// (Kingma and Ba 2015, in torch's order of operations).
///
/// ```
/// use models::{Adam, AdamOptions, Optimizer};
/// use autograd::Var;
/// # fn main() -> device::Result<()> {
/// let w = Var::leaf(tensor::Tensor::scalar(3.0f64, &device::Device::cpu())?);
/// let mut adam = Adam::new(vec![w.clone()], AdamOptions { lr: 0.5, ..AdamOptions::default() })?;
/// adam.step(&w.square()?.backward()?)?;
/// assert!((w.value().item::<f64>()? - 2.5).abs() < 1e-6); // the first step is as long as the rate
/// # Ok(())
/// # }
/// ```
pub struct Adam(Inner);

/// [`Adam`] with the weight decay taken off the weight itself: `w -= lr * weight_decay * w` before the step
/// (Loshchilov and Hutter 2019, in torch's order of operations).
pub struct AdamW(Inner);

impl Adam {
    /// An optimizer of `parameters`.
    ///
    /// # Errors
    /// `InvalidArgument` for no parameters, one twice or one without gradient, for a negative or non-finite
    /// rate, eps or weight decay, and for betas outside `0..1`; `DTypeUnsupported` for a parameter that is not
    /// of a float type.
    pub fn new(parameters: Vec<Var>, options: AdamOptions) -> Result<Self> {
        Inner::new("adam", parameters, options).map(Adam)
    }

    /// The options as they are now.
    pub fn options(&self) -> AdamOptions {
        self.0.options
    }
}

impl AdamW {
    /// An optimizer of `parameters`.
    ///
    /// # Errors
    /// As [`Adam::new`].
    pub fn new(parameters: Vec<Var>, options: AdamWOptions) -> Result<Self> {
        let AdamWOptions { lr, betas, eps, weight_decay } = options;
        Inner::new("adamw", parameters, AdamOptions { lr, betas, eps, weight_decay }).map(AdamW)
    }

    /// The options as they are now.
    pub fn options(&self) -> AdamWOptions {
        let AdamOptions { lr, betas, eps, weight_decay } = self.0.options;
        AdamWOptions { lr, betas, eps, weight_decay }
    }
}

/// Both of them: they differ in where the weight decay goes.
struct Inner {
    kind: &'static str,
    parameters: Vec<Var>,
    options: AdamOptions,
    moments: Vec<Option<Moments>>,
}

/// What is remembered of one parameter's gradients.
struct Moments {
    step: u64,
    mean: Tensor,
    mean_square: Tensor,
}

fn check(op: &'static str, options: &AdamOptions) -> Result<()> {
    check_not_negative(op, "lr", options.lr)?;
    check_not_negative(op, "eps", options.eps)?;
    check_not_negative(op, "weight_decay", options.weight_decay)?;
    for beta in [options.betas.0, options.betas.1] {
        check_option(op, "betas", beta, "at least 0 and below 1", |b| (0.0..1.0).contains(&b))?;
    }
    Ok(())
}

impl Inner {
    fn new(kind: &'static str, parameters: Vec<Var>, options: AdamOptions) -> Result<Self> {
        check_parameters(kind, &parameters)?;
        check(kind, &options)?;
        let moments = parameters.iter().map(|_| None).collect();
        Ok(Inner { kind, parameters, options, moments })
    }

    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        let AdamOptions { lr, betas: (beta1, beta2), eps, weight_decay } = self.options;
        let decoupled = self.kind == "adamw";
        for (parameter, moments) in self.parameters.iter().zip(&mut self.moments) {
            if moments.is_none() && gradients.get_var(parameter).is_some() {
                let zeros = || zeros_in_order_of(parameter.value());
                *moments = Some(Moments { step: 0, mean: zeros()?, mean_square: zeros()? });
            }
        }
        let mut updates = Vec::with_capacity(self.parameters.len());
        for (parameter, moments) in self.parameters.iter().zip(&self.moments) {
            let (Some(gradient), Some(moments)) = (gradients.get_var(parameter), moments) else { continue };
            let step = moments.step + 1;
            updates.push(AdamUpdate {
                param: parameter.value(),
                grad: gradient.value(),
                m: &moments.mean,
                v: &moments.mean_square,
                step: AdamStep { step, lr, beta1, beta2, eps, weight_decay, decoupled },
            });
        }
        adam_step(&updates)?;
        for (parameter, moments) in self.parameters.iter().zip(&mut self.moments) {
            if gradients.get_var(parameter).is_some() {
                moments.iter_mut().for_each(|moments| moments.step += 1);
            }
        }
        Ok(())
    }

    fn set_learning_rate(&mut self, lr: f64) -> Result<()> {
        check_not_negative(self.kind, "lr", lr)?;
        self.options.lr = lr;
        Ok(())
    }

    fn state(&self) -> Result<OptimizerState> {
        let o = &self.options;
        let options = [
            ("lr", o.lr),
            ("beta1", o.betas.0),
            ("beta2", o.betas.1),
            ("eps", o.eps),
            ("weight_decay", o.weight_decay),
        ];
        let mut tensors = Vec::new();
        for (number, moments) in self.moments.iter().enumerate() {
            let Some(Moments { step, mean, mean_square }) = moments else { continue };
            let step = Tensor::scalar(step.cast_signed(), mean.device())?;
            tensors.push((format!("{number}.step"), step));
            tensors.push((format!("{number}.exp_avg"), mean.copy()?));
            tensors.push((format!("{number}.exp_avg_sq"), mean_square.copy()?));
        }
        let options = options.map(|(name, value)| (name.to_owned(), value)).into();
        Ok(OptimizerState { kind: self.kind.into(), options, tensors })
    }

    fn load_state(&mut self, state: &OptimizerState) -> Result<()> {
        let mut reader = StateReader::new(self.kind, state)?;
        let options = AdamOptions {
            lr: reader.option("lr")?,
            betas: (reader.option("beta1")?, reader.option("beta2")?),
            eps: reader.option("eps")?,
            weight_decay: reader.option("weight_decay")?,
        };
        check(self.kind, &options)?;
        let mut moments = Vec::with_capacity(self.parameters.len());
        for (number, parameter) in self.parameters.iter().enumerate() {
            let step = match reader.entry(number, "step") {
                Some((name, tensor)) => Some(step_number(&name, tensor)?),
                None => None,
            };
            let mean = reader.buffer(number, "exp_avg", parameter)?;
            let mean_square = reader.buffer(number, "exp_avg_sq", parameter)?;
            moments.push(match (step, mean, mean_square) {
                (Some(step), Some(mean), Some(mean_square)) => Some(Moments { step, mean, mean_square }),
                (None, None, None) => None,
                _ => {
                    let detail = "step, exp_avg and exp_avg_sq must be there together";
                    return Err(wrong(&number.to_string(), detail.into()));
                }
            });
        }
        reader.finish()?;
        (self.options, self.moments) = (options, moments);
        Ok(())
    }
}

fn step_number(name: &str, tensor: &Tensor) -> Result<u64> {
    let scalar = tensor.dtype() == DType::I64 && tensor.elements() == 1;
    let number = if scalar { u64::try_from(tensor.item::<i64>()?).ok() } else { None };
    number.ok_or_else(|| wrong(name, "must be one integer that is not negative".into()))
}

impl Optimizer for Adam {
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        self.0.step(gradients)
    }
    fn learning_rate(&self) -> f64 {
        self.0.options.lr
    }
    fn set_learning_rate(&mut self, lr: f64) -> Result<()> {
        self.0.set_learning_rate(lr)
    }
    fn parameters(&self) -> &[Var] {
        &self.0.parameters
    }
    fn state(&self) -> Result<OptimizerState> {
        self.0.state()
    }
    fn load_state(&mut self, state: &OptimizerState) -> Result<()> {
        self.0.load_state(state)
    }
}

impl Optimizer for AdamW {
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        self.0.step(gradients)
    }
    fn learning_rate(&self) -> f64 {
        self.0.options.lr
    }
    fn set_learning_rate(&mut self, lr: f64) -> Result<()> {
        self.0.set_learning_rate(lr)
    }
    fn parameters(&self) -> &[Var] {
        &self.0.parameters
    }
    fn state(&self) -> Result<OptimizerState> {
        self.0.state()
    }
    fn load_state(&mut self, state: &OptimizerState) -> Result<()> {
        self.0.load_state(state)
    }
}
