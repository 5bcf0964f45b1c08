//! The launcher of optimizer steps: one pass over parameter, gradient and state, in place.
//!
//! An optimizer is a [`Rule`], whose formula is all that it adds: memory, vectors, threads, kernels and the command for all
//! parameters are written once for all rules.

use std::any::Any;
use std::fmt;

use device::cuda::Queue;
use device::{DType, Error, ErrorKind, Result, Stream};
use smallvec::SmallVec;

use crate::command::{Address, Command, Raw, Read, Write};
use crate::cpu::lanes::Lanes;
use crate::cpu::optim as cpu;
use crate::cuda::formula::Formula;
use crate::cuda::optim as cuda;
use crate::fuse::Part;
use crate::layout::{Dst, View};
use crate::loops::Loops;
use crate::par::Workers;
use crate::rules::{MAX_FLAGS, MAX_NUMBERS, MAX_STATES, OPERANDS, ROUNDED, Rule, StepNumbers};

/// What a step does to one parameter: a [`Rule`], and its numbers.
#[derive(Clone, Copy)]
pub struct RuleStep {
    rule: &'static AnyRule,
    numbers: StepNumbers,
    /// By which a captured step finds it; 0 for none.
    slot: u32,
}

/// A rule whose type is forgotten.
struct AnyRule {
    op: &'static str,
    states: &'static [&'static str],
    /// # Safety
    /// As for [`cpu::step`]; the operands are of that type.
    cpu: unsafe fn(&StepNumbers, DType, &Loops<OPERANDS>, &Workers, [Dst<u8>; OPERANDS]),
    cuda: Formula,
}

impl RuleStep {
    /// A step with these numbers and choices.
    pub fn new<R, const STATES: usize, const NUMBERS: usize, const FLAGS: usize>(
        _: R,
        numbers: [f64; NUMBERS],
        flags: [bool; FLAGS],
    ) -> RuleStep
    where
        R: Rule<STATES, NUMBERS, FLAGS>,
    {
        const {
            assert!(
                STATES <= MAX_STATES && NUMBERS <= MAX_NUMBERS && FLAGS <= MAX_FLAGS,
                "too many for a rule"
            );
            assert!(is_name(R::OP), "the name of an op has letters, digits and underscores");
            let mut k = 0;
            while k < STATES {
                assert!(is_name(R::STATES[k]), "the name of a state has letters, digits and underscores");
                k += 1;
            }
        }
        let rule = const {
            &AnyRule {
                op: R::OP,
                states: &R::STATES,
                cpu: on_cpu::<R, STATES, NUMBERS, FLAGS>,
                cuda: Formula::of::<R, STATES, NUMBERS, FLAGS>(),
            }
        };
        let mut all = [0.0; MAX_NUMBERS];
        all[..NUMBERS].copy_from_slice(&numbers);
        let flags = (0..).zip(flags).fold(0, |bits, (k, flag)| bits | u32::from(flag) << k);
        RuleStep { rule, numbers: StepNumbers { numbers: all, flags }, slot: 0 }
    }

    /// The command's name.
    pub fn op(&self) -> &'static str {
        self.rule.op
    }

    /// The names of the states. All start as zeros.
    pub fn states(&self) -> &'static [&'static str] {
        self.rule.states
    }

    /// The same step by another name, which a captured step finds it by to give it other numbers. Steps with one name are to
    /// have the same numbers at all times.
    pub fn named(self, slot: u32) -> RuleStep {
        RuleStep { slot, ..self }
    }

    /// The name, 0 if it has none.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Whether both are steps of one rule.
    pub fn same_rule(&self, other: &RuleStep) -> bool {
        self.rule.cuda.is(&other.rule.cuda)
    }

    /// Runs it on a CPU.
    ///
    /// # Safety
    /// As for [`cpu::step`]; the operands are of type `dtype`.
    pub(crate) unsafe fn run(
        &self,
        dtype: DType,
        loops: &Loops<OPERANDS>,
        workers: &Workers,
        operands: [Dst<u8>; OPERANDS],
    ) {
        // SAFETY: the contract is that of `on_cpu`, which `rule.cpu` is for the step's rule.
        unsafe { (self.rule.cpu)(&self.numbers, dtype, loops, workers, operands) }
    }

    /// Compiles and loads the rule's CUDA program for parameters of type `dtype` before its first step. Nothing on a CPU.
    ///
    /// # Errors
    /// As for [`preload`](crate::preload).
    pub fn preload(&self, stream: &Stream, dtype: DType) -> Result<()> {
        if stream.is_cuda() { stream.preload(&[cuda::program_of(&self.rule.cuda, dtype)]) } else { Ok(()) }
    }

    /// The CUDA program of rules for F32 and F64.
    #[doc(hidden)]
    pub fn cuda_source(steps: &[RuleStep]) -> String {
        cuda::source(&steps.iter().map(|step| step.rule.cuda).collect::<Vec<_>>(), None)
    }

    /// Its numbers and choices.
    pub fn numbers(&self) -> StepNumbers {
        self.numbers
    }
}

/// Whether a kernel could be called so.
const fn is_name(name: &str) -> bool {
    let (bytes, mut i) = (name.as_bytes(), 0);
    while i < bytes.len() {
        if !(bytes[i].is_ascii_alphanumeric() || bytes[i] == b'_') {
            return false;
        }
        i += 1;
    }
    !bytes.is_empty() && !bytes[0].is_ascii_digit()
}

impl PartialEq for RuleStep {
    fn eq(&self, other: &Self) -> bool {
        // Which of them share a kernel stays as it is when a captured step changes their numbers.
        let numbers = self.slot > 0 || self.numbers == other.numbers;
        self.same_rule(other) && self.slot == other.slot && numbers
    }
}

impl fmt::Debug for RuleStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleStep").field("op", &self.op()).field("numbers", &self.numbers).finish()
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

/// What a command does to one parameter.
#[derive(Clone)]
pub(crate) struct Stepped {
    /// May be another one when the command is launched again.
    pub(crate) step: RuleStep,
    pub(crate) dtype: DType,
    /// Of the parameter, if that is not what is stepped.
    pub(crate) stored: DType,
    /// Over what is stepped, gradient, states and parameter; where there are fewer, over the first again.
    pub(crate) loops: Loops<OPERANDS>,
}

impl Stepped {
    /// Lets `show` change the step's numbers and name. Its rule stays, since the operands are those of this rule.
    pub(crate) fn change(&mut self, show: &mut dyn FnMut(&mut dyn Any)) {
        let mut step = self.step;
        show(&mut step);
        self.step = RuleStep { rule: self.step.rule, ..step };
    }

    /// Whether all operands lie in one order without gaps.
    pub(crate) fn is_dense(&self) -> bool {
        let Loops { axes, elements } = &self.loops;
        axes.len() <= 1 && self.loops.inner().strides == [1; OPERANDS] || *elements == 1
    }
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
            return Err(Error::dtype_unsupported(op, dtype));
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
            Some(_) => Err(Error::dtype_unsupported(op, self.param.dtype)),
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
        (
            |all: &mut Vec<Stepped>, show: &mut dyn FnMut(&mut dyn Any)| {
                all.iter_mut().for_each(|stepped| stepped.change(show));
            },
            |all: &Vec<Stepped>, operands| Part::steps(all, addresses(operands)),
        ),
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
                enqueue(queue, alike[0].0, false, tensors)?;
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

/// Enqueues steps that are all like `first`. With `adds`, the last operand of each is what is added to the gradient first, and
/// all are [dense](Stepped::is_dense).
pub(crate) fn enqueue<'a>(
    queue: &Queue<'_>,
    first: &Stepped,
    adds: bool,
    tensors: impl Iterator<Item = (&'a Stepped, [Address; OPERANDS])> + Clone,
) -> Result<()> {
    let Stepped { step, dtype, stored, .. } = first;
    let form = cuda::Form { dtype: *dtype, stored: *stored, adds };
    cuda::step(queue, form, &step.rule.cuda, &step.numbers, tensors)
}

/// # Safety
/// As for [`cpu::step`]; the operands are of type `dtype`.
unsafe fn on_cpu<R, const STATES: usize, const NUMBERS: usize, const FLAGS: usize>(
    numbers: &StepNumbers,
    dtype: DType,
    loops: &Loops<OPERANDS>,
    workers: &Workers,
    operands: [Dst<u8>; OPERANDS],
) where
    R: Rule<STATES, NUMBERS, FLAGS>,
{
    fn of<T: Lanes, const NUMBERS: usize>(numbers: &StepNumbers) -> [T; NUMBERS] {
        std::array::from_fn(|k| T::from_f64(numbers.numbers[k]))
    }
    let flags = std::array::from_fn(|k| numbers.flags >> k & 1 == 1);
    // SAFETY: the caller keeps the contract of `cpu::step` for operands of type `dtype`, which each arm casts to.
    unsafe {
        match dtype {
            DType::F64 => cpu::step::<f64, R, STATES, NUMBERS, FLAGS>(
                loops,
                workers,
                of(numbers),
                flags,
                operands.map(Dst::cast),
            ),
            _ => cpu::step::<f32, R, STATES, NUMBERS, FLAGS>(
                loops,
                workers,
                of(numbers),
                flags,
                operands.map(Dst::cast),
            ),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
