//! The launcher of optimizer steps: one pass over parameter, gradient and state, in place.
//!
//! An optimizer is a [`Rule`], whose formula is all that it adds: memory, vectors, threads, kernels and the command for all
//! parameters are written once for all rules.

use device::{DType, Error, ErrorKind, Result, Stream};
use smallvec::SmallVec;

use crate::command::{Address, Command, Raw, Read, Write};
use crate::cpu::optim as cpu;
use crate::cuda::{needs, optim as cuda};
use crate::fuse::Fusible;
use crate::layout::{Dst, View};
use crate::loops::Loops;
use crate::rule_step::{RuleStep, Stepped};
use crate::rules::{MAX_STATES, OPERANDS, ROUNDED};

impl RuleStep {
    /// Compiles and loads the rule's CUDA program for parameters of type `dtype` before its first step. Nothing on a CPU.
    ///
    /// # Errors
    /// As for [`preload`](crate::preload).
    pub fn preload(&self, stream: &Stream, dtype: DType) -> Result<()> {
        needs(stream, || stream.preload(&[cuda::program_of(self.formula(), dtype)])).unwrap_or(Ok(()))
    }

    /// The CUDA program of rules for F32 and F64.
    #[doc(hidden)]
    pub fn kernel_source(steps: &[RuleStep]) -> String {
        cuda::source(&steps.iter().map(|step| *step.formula()).collect::<Vec<_>>(), None)
    }
}

/// One parameter's part in a step. All shapes are the same, and all element types unless there is a master.
#[derive(Clone, Debug)]
pub struct Update<'a> {
    /// What is changed.
    pub param: View<'a>,
    /// Its gradient.
    pub grad: View<'a>,
    /// The parameter in F32, of which a parameter of BF16 or F16 is the rounded value: this is what is stepped. Elements that do
    /// not round to the parameter are taken from it first, so that a master of zeros is any parameter's.
    pub master: Option<View<'a>>,
    /// What the rule remembers, and changes: one for each of [`RuleStep::states`].
    pub states: SmallVec<[View<'a>; 3]>,
    /// What is done.
    pub step: RuleStep,
}

/// What is stepped, its gradient and the states; a gradient in 16 bits and its parameter come behind them.
type Operands<'a> = (
    Write<'a, Raw>,
    Option<Read<'a, Raw>>,
    [Option<Write<'a, Raw>>; MAX_STATES],
    Option<(Read<'a, f32>, Write<'a, f32>)>,
);

impl<'a> Update<'a> {
    /// What the rule steps.
    fn stepped(&self) -> &View<'a> {
        self.master.as_ref().unwrap_or(&self.param)
    }

    fn check(&self) -> Result<()> {
        let (op, dtype, names) = (self.step.op(), self.stepped().dtype, self.step.states());
        if !matches!(dtype, DType::F32 | DType::F64) {
            return Err(Error::dtype_unsupported(op, dtype, "f32 and f64"));
        }
        if self.states.len() != names.len() {
            let value = format!("{} for {names:?}", self.states.len()).into();
            return Err(Error::new(ErrorKind::InvalidArgument {
                op,
                argument: "states",
                expected: "one for each that the rule names",
                value,
            }));
        }
        for view in self.states.iter().chain([&self.grad]).chain(&self.master) {
            view.expect_shape(op, self.param.shape())?;
        }
        self.states.iter().try_for_each(|state| state.expect_dtype(op, dtype))?;
        self.grad.expect_dtype(op, self.param.dtype)?;
        match self.master {
            Some(master) if self.param.dtype.is_half() => master.expect_dtype(op, DType::F32),
            Some(_) => Err(Error::dtype_unsupported(op, self.param.dtype, "bf16 and f16")),
            None => Ok(()),
        }
    }

    fn operands(&self) -> Operands<'a> {
        let states = std::array::from_fn(|k| self.states.get(k).map(|state| state.write()));
        match self.master {
            Some(master) => (
                master.write(),
                None,
                states,
                Some((self.grad.read().in_place(), self.param.write().keep(true))),
            ),
            None => (self.param.write(), Some(self.grad.read().in_place()), states, None),
        }
    }

    fn stepping(&self) -> Stepped {
        let layout = |k: usize| match k {
            0 => self.stepped().layout,
            1 => self.grad.layout,
            ROUNDED => self.param.layout,
            _ => self.states.get(k - 2).map_or(self.stepped().layout, |state| state.layout),
        };
        let loops = Loops::in_memory_order(std::array::from_fn(layout));
        Stepped { step: self.step, dtype: self.stepped().dtype, stored: self.param.dtype, loops }
    }
}

/// One step of optimizers' rules, in place, for F32 and F64, in one command for all parameters, or one for each in the order of
/// `updates` if they share memory. Those with masters are of one type.
///
/// It is fastest where the views of a parameter have the same strides without gaps, in whatever order. Asynchronous,
/// ordered by the buffers.
///
/// # Errors
/// `ShapeMismatch`, `DTypeMismatch`, `DTypeUnsupported`; `InvalidArgument` if there
/// are not as many states as the rule has, and for a target that is expanded; those of [`Stream::launch`]. Nothing is
/// changed then.
pub fn optimizer_step(stream: &Stream, updates: &[Update<'_>]) -> Result<()> {
    updates.iter().try_for_each(Update::check)?;
    match step_at_once(stream, updates) {
        // Steps that share memory are commands of their own, if each is right by itself.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidArgument { .. }) && updates.len() > 1 => {
            let each = || updates.iter().map(std::slice::from_ref);
            each().try_for_each(|update| command(update).check().map(drop))?;
            each().try_for_each(|update| step_at_once(stream, update))
        }
        outcome => outcome,
    }
}

fn command<'a>(updates: &[Update<'a>]) -> Command<Vec<Operands<'a>>> {
    let elements = |update: &Update<'_>| update.param.layout.elements() * (2 + update.states.len());
    let op = updates.first().map_or("optimizer_step", |first| first.step.op());
    let operands = updates.iter().map(Update::operands).collect();
    Command::new(op, operands).cost(updates.iter().map(elements).sum(), 1)
}

/// One command for all parameters, which run at once.
fn step_at_once(stream: &Stream, updates: &[Update<'_>]) -> Result<()> {
    command(updates).launch(
        stream,
        updates.iter().map(Update::stepping).collect::<Vec<Stepped>>(),
        |all, show| all.iter_mut().for_each(|stepped| stepped.change(show)),
        |all, operands| Fusible::steps(all, addresses(operands)),
        |all, workers, operands| {
            for (stepped, (param, grad, states, stored)) in all.iter().zip(operands) {
                let Stepped { dtype, stored: half, loops, .. } = stepped;
                let [a, b, c] = states.map(|state| state.unwrap_or(param));
                let (grad, rounded) = match stored {
                    // SAFETY: the master is F32 and the parameter, widened, of type `half`; `loops` was made from
                    // their layouts; see `Command::launch`.
                    Some((grad, rounded)) => unsafe {
                        cpu::adopt(*half, loops, workers, param.cast(), rounded.src());
                        (Dst(grad.0.cast_mut().cast()), rounded.cast())
                    },
                    None => (grad.map_or(param, |grad| Dst(grad.0.cast_mut())), param),
                };
                // SAFETY: `loops` was made from the layouts of these operands, which are of type `dtype`; states that
                // the rule lacks are not accessed; see `Command::launch`.
                unsafe { stepped.step.run(*dtype, loops, workers, [param, grad, a, b, c, rounded]) }
            }
        },
        |all, queue, operands| {
            let all: Vec<_> = all.iter().zip(addresses(operands)).collect();
            let form = |stepped: &Stepped| (stepped.dtype, stepped.stored);
            for alike in all.chunk_by(|(a, _), (b, _)| a.step == b.step && form(a) == form(b)) {
                let tensors = alike.iter().map(|(stepped, operands)| (*stepped, *operands));
                cuda::enqueue(queue, alike[0].0, false, tensors)?;
            }
            Ok(())
        },
    )
}

/// The operands of each parameter of a command, as they were stated.
type Addresses = Vec<(Address, Option<Address>, [Option<Address>; MAX_STATES], Option<(Address, Address)>)>;

/// The same as a rule has them.
fn addresses(operands: Addresses) -> Vec<[Address; OPERANDS]> {
    let all = operands.into_iter().map(|(param, grad, states, rounded)| {
        let [a, b, c] = states.map(|state| state.unwrap_or(param));
        let (grad, rounded) = rounded.unwrap_or((grad.unwrap_or(param), param));
        [param, grad, a, b, c, rounded]
    });
    all.collect()
}

#[cfg(test)]
pub(crate) mod tests;
