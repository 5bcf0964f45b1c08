//! Stochastic gradient descent.

use autograd::{Gradients, Var};
use device::{Error, Result};
use tensor::{SgdStep, SgdUpdate, Tensor, sgd_step};

use super::{
    Optimizer, OptimizerState, StateReader, check_not_negative, check_option, check_parameters,
    zeros_in_order_of,
};

/// How [`Sgd`] steps; the defaults are torch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the earlier direction is kept; 0 keeps none.
    pub momentum: f64,
    /// How much of the new gradient is left out of the direction.
    pub dampening: f64,
    /// L2 penalty, added to the gradient.
    pub weight_decay: f64,
    /// Whether to look ahead along the direction (Nesterov).
    pub nesterov: bool,
}

impl Default for SgdOptions {
    fn default() -> Self {
        SgdOptions { lr: 1e-3, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false }
    }
}

/// `g += weight_decay * w; b = momentum * b + (1 - dampening) * g; w -= lr * b`.
///
/// The first `b` is `g` itself. With `nesterov` the last step takes `g + momentum * b` in place of `b`;
/// without momentum it takes `g`. These are torch's formulas, in torch's order.
///
/// ```
/// use models::{Optimizer, Sgd, SgdOptions};
/// use autograd::Var;
/// # fn main() -> device::Result<()> {
/// let w = Var::leaf(tensor::Tensor::scalar(3.0f64, &device::Device::cpu())?);
/// let mut sgd = Sgd::new(vec![w.clone()], SgdOptions { lr: 0.25, ..SgdOptions::default() })?;
/// sgd.step(&w.square()?.backward()?)?;
/// assert_eq!(w.value().item::<f64>()?, 1.5);
/// # Ok(())
/// # }
/// ```
pub struct Sgd {
    parameters: Vec<Var>,
    options: SgdOptions,
    momentum: Vec<Option<Tensor>>,
}

impl Sgd {
    /// An optimizer of `parameters`.
    ///
    /// # Errors
    /// `InvalidArgument` for no parameters, one twice or one without gradient, for a negative or non-finite
    /// rate, momentum or weight decay, and for `nesterov` unless momentum is positive and dampening 0;
    /// `DTypeUnsupported` for a parameter that is not of a float type.
    pub fn new(parameters: Vec<Var>, options: SgdOptions) -> Result<Self> {
        check_parameters("sgd", &parameters)?;
        check(&options)?;
        let momentum = vec![None; parameters.len()];
        Ok(Sgd { parameters, options, momentum })
    }

    /// The options as they are now.
    pub fn options(&self) -> &SgdOptions {
        &self.options
    }
}

fn check(options: &SgdOptions) -> Result<()> {
    check_not_negative("sgd", "lr", options.lr)?;
    check_not_negative("sgd", "momentum", options.momentum)?;
    check_not_negative("sgd", "weight_decay", options.weight_decay)?;
    check_option("sgd", "dampening", options.dampening, "finite", |_| true)?;
    if options.nesterov && (options.momentum == 0.0 || options.dampening != 0.0) {
        return Err(Error::InvalidArgument {
            op: "sgd",
            argument: "nesterov",
            expected: "used with positive momentum and without dampening",
            value: format!("momentum {} and dampening {}", options.momentum, options.dampening).into(),
        });
    }
    Ok(())
}

impl Optimizer for Sgd {
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        let SgdOptions { lr, momentum, dampening, weight_decay, nesterov } = self.options;
        // Taken over once the step is launched: it may be refused.
        let mut fresh = vec![None; self.parameters.len()];
        for ((parameter, buffer), fresh) in self.parameters.iter().zip(&self.momentum).zip(&mut fresh) {
            if momentum != 0.0 && buffer.is_none() && gradients.get_var(parameter).is_some() {
                *fresh = Some(zeros_in_order_of(parameter.value())?);
            }
        }
        let mut updates = Vec::with_capacity(self.parameters.len());
        for ((parameter, buffer), fresh) in self.parameters.iter().zip(&self.momentum).zip(&fresh) {
            let Some(gradient) = gradients.get_var(parameter) else { continue };
            let first = buffer.is_none();
            updates.push(SgdUpdate {
                param: parameter.value(),
                grad: gradient.value(),
                momentum_buffer: if momentum == 0.0 { None } else { buffer.as_ref().or(fresh.as_ref()) },
                step: SgdStep { lr, momentum, dampening, weight_decay, nesterov, first },
            });
        }
        sgd_step(&updates)?;
        for (buffer, fresh) in self.momentum.iter_mut().zip(fresh) {
            *buffer = buffer.take().or(fresh);
        }
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.options.lr
    }

    fn set_learning_rate(&mut self, lr: f64) -> Result<()> {
        check_not_negative("sgd", "lr", lr)?;
        self.options.lr = lr;
        Ok(())
    }

    fn parameters(&self) -> &[Var] {
        &self.parameters
    }

    fn state(&self) -> Result<OptimizerState> {
        let o = &self.options;
        let options = [
            ("lr", o.lr),
            ("momentum", o.momentum),
            ("dampening", o.dampening),
            ("weight_decay", o.weight_decay),
            ("nesterov", f64::from(u8::from(o.nesterov))),
        ];
        let mut tensors = Vec::new();
        for (number, buffer) in self.momentum.iter().enumerate() {
            if let Some(buffer) = buffer {
                tensors.push((format!("{number}.momentum_buffer"), buffer.copy()?));
            }
        }
        let options = options.map(|(name, value)| (name.to_owned(), value)).into();
        Ok(OptimizerState { kind: "sgd".into(), options, tensors })
    }

    fn load_state(&mut self, state: &OptimizerState) -> Result<()> {
        let mut reader = StateReader::new("sgd", state)?;
        let options = SgdOptions {
            lr: reader.option("lr")?,
            momentum: reader.option("momentum")?,
            dampening: reader.option("dampening")?,
            weight_decay: reader.option("weight_decay")?,
            nesterov: reader.option("nesterov")? != 0.0,
        };
        check(&options)?;
        let momentum = self
            .parameters
            .iter()
            .enumerate()
            .map(|(number, parameter)| reader.buffer(number, "momentum_buffer", parameter))
            .collect::<Result<_>>()?;
        reader.finish()?;
        (self.options, self.momentum) = (options, momentum);
        Ok(())
    }
}
