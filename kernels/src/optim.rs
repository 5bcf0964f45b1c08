//! The launcher of optimizer steps: one pass over parameter, gradient and state, in place.
//!
//! An optimizer is a [`Rule`]: a file in `optim/` with its numbers and its formula on vectors, and the same formula in
//! `cuda/optim.cu`. Everything else is written once for all of them.

mod adam;
mod lion;
mod rmsprop;
mod sgd;

use device::{DType, Error, Result, Stream, Use};
use pulp::Simd;
use smallvec::SmallVec;

use crate::cpu;
use crate::cpu::lanes::Lanes;
use crate::cuda;
use crate::cuda::walk::ByValue;
use crate::layout::{Dst, Loops, View};
use crate::par::{Workers, old_workers};

pub use adam::AdamStep;
pub use lion::LionStep;
pub use rmsprop::RmsPropStep;
pub use sgd::SgdStep;

/// What a step does to one parameter, with its numbers. Formulas are torch's, in torch's order of operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Stochastic gradient descent.
    Sgd(SgdStep),
    /// Adam and AdamW.
    Adam(AdamStep),
    /// RMSprop.
    RmsProp(RmsPropStep),
    /// Lion.
    Lion(LionStep),
}

/// One parameter's part in a step. All shapes and element types are the same.
#[derive(Clone, Debug)]
pub struct Update<'a> {
    /// What is changed.
    pub param: View<'a>,
    /// Its gradient.
    pub grad: View<'a>,
    /// What the rule remembers, and changes: one for each of [`Rule::states`].
    pub states: SmallVec<[View<'a>; 3]>,
    /// What is done.
    pub rule: Rule,
}

/// A rule's numbers in an element type, and what is done with them.
///
/// The same struct goes to the device's kernel, so both start from the same bits.
pub(crate) trait Formula<T: Lanes, const N: usize>: ByValue + Copy + Send + Sync + 'static {
    /// Steps one vector of elements of parameter, gradient and states, in this order. What becomes of the gradient's is
    /// not stored.
    fn step<S: Simd>(&self, simd: S, values: &mut [T::Vector<S>; N]);
}

/// What a device does with a rule's formula once its type is known.
pub(crate) trait Visit<T: Lanes> {
    type Output;
    fn visit<const N: usize>(self, formula: impl Formula<T, N>) -> Self::Output;
}

impl Rule {
    /// The command's name.
    pub fn op(&self) -> &'static str {
        match self {
            Rule::Sgd(_) => "sgd",
            Rule::Adam(_) => "adam",
            Rule::RmsProp(_) => "rmsprop",
            Rule::Lion(_) => "lion",
        }
    }

    /// The names of the states, which are torch's. All start as zeros.
    pub fn states(&self) -> &'static [&'static str] {
        match self {
            Rule::Sgd(step) => step.states(),
            Rule::Adam(_) => &["exp_avg", "exp_avg_sq"],
            Rule::RmsProp(step) => step.states(),
            Rule::Lion(_) => &["exp_avg"],
        }
    }

    /// Hands the formula to `visitor`, which sees as many operands as there are states, and two.
    pub(crate) fn visit<T: Lanes, V: Visit<T>>(&self, visitor: V) -> V::Output {
        match self {
            Rule::Sgd(step) => step.visit(visitor),
            Rule::Adam(step) => visitor.visit(adam::Adam::of(step)),
            Rule::RmsProp(step) => step.visit(visitor),
            Rule::Lion(step) => visitor.visit(lion::Lion::of(step)),
        }
    }
}

impl<'a> Update<'a> {
    /// Parameter, gradient and states.
    pub(crate) fn operands(&self) -> impl Iterator<Item = View<'a>> {
        [self.param, self.grad].into_iter().chain(self.states.iter().copied())
    }

    /// The operands of a formula, which [`check`](Self::check) has counted.
    pub(crate) fn operands_of<const N: usize>(&self) -> [View<'a>; N] {
        std::array::from_fn(|k| match k {
            0 => self.param,
            1 => self.grad,
            _ => self.states[k - 2],
        })
    }

    /// What the command uses. The gradient is only read.
    fn uses(&self) -> impl Iterator<Item = Use<'a>> {
        let written = |(k, view): (usize, View<'a>)| match k {
            1 => Use::read(view.buffer),
            _ => Use::write(view.buffer),
        };
        self.operands().enumerate().map(written)
    }

    fn check(&self) -> Result<()> {
        let op = self.rule.op();
        let dtype = self.param.dtype;
        if !matches!(dtype, DType::F32 | DType::F64) {
            return Err(Error::DTypeUnsupported { op, dtype });
        }
        let names = self.rule.states();
        if self.states.len() != names.len() {
            let value = format!("{} for {names:?}", self.states.len()).into();
            return Err(Error::InvalidArgument {
                op,
                argument: "states",
                expected: "one for each that the rule names",
                value,
            });
        }
        if matches!(self.rule, Rule::Adam(AdamStep { step: 0, .. })) {
            return Err(Error::InvalidArgument {
                op,
                argument: "step",
                expected: "at least 1",
                value: "0".into(),
            });
        }
        for (k, view) in self.operands().enumerate() {
            view.expect_shape(op, self.param.shape())?;
            view.expect_dtype(op, dtype)?;
            // The gradient is only read.
            if k == 1 { view.bytes(op).map(drop)? } else { view.bytes_mut(op).map(drop)? }
        }
        Ok(())
    }
}

/// One step of the optimizers' rules, in place, for F32 and F64, in one command for all parameters.
///
/// It is fastest where the views of a parameter have the same strides without gaps, in whatever order. Asynchronous,
/// ordered by the buffers.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DTypeUnsupported`]; [`Error::InvalidArgument`] if there
/// are not as many states as the rule has, for step 0 of Adam, and for a target that is expanded; those of
/// [`Stream::launch`]. Nothing is changed then.
pub fn optimizer_step(stream: &Stream, updates: &[Update<'_>]) -> Result<()> {
    let Some(first) = updates.first() else { return Ok(()) };
    updates.iter().try_for_each(Update::check)?;
    let uses: SmallVec<[Use<'_>; 16]> = updates.iter().flat_map(Update::uses).collect();
    let op = first.rule.op();
    if stream.is_cuda() {
        return cuda::optim::step(stream, op, &uses, updates);
    }
    let parts = updates.iter().map(part).collect::<Result<Vec<Part>>>()?;
    let elements = |update: &Update<'_>| update.param.layout.elements() * (2 + update.states.len());
    let workers = old_workers(stream, updates.iter().map(elements).sum(), 1);
    stream.launch_host(op, &uses, move || parts.into_iter().for_each(|part| part(&workers)))
}

/// One parameter's work in a command of the CPU.
type Part = Box<dyn FnOnce(&Workers) + Send>;

fn part(update: &Update<'_>) -> Result<Part> {
    match update.param.dtype {
        DType::F64 => update.rule.visit::<f64, _>(CpuPart(update)),
        _ => update.rule.visit::<f32, _>(CpuPart(update)),
    }
}

/// Makes the work of a checked update.
struct CpuPart<'a, 'u>(&'a Update<'u>);

impl<T: Lanes> Visit<T> for CpuPart<'_, '_> {
    type Output = Result<Part>;

    fn visit<const N: usize>(self, formula: impl Formula<T, N>) -> Result<Part> {
        let op = self.0.rule.op();
        let views = self.0.operands_of::<N>();
        let mut operands = [Dst(std::ptr::null_mut()); N];
        for (to, view) in operands.iter_mut().zip(&views) {
            // The gradient is only read, but travels with the others.
            *to = Dst(view.src::<T>(op)?.0.cast_mut());
        }
        let loops = Loops::in_memory_order(views.map(|view| view.layout));
        // SAFETY: the views were checked, and the launch orders the command with others on their buffers.
        Ok(Box::new(move |workers| unsafe { cpu::optim::step(&loops, workers, operands, formula) }))
    }
}

#[cfg(test)]
mod tests;
