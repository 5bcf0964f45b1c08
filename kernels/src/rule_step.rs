//! Steps of rules with their numbers, whose rule's type is forgotten.

use std::any::Any;
use std::fmt;

use device::DType;

use crate::cpu::lanes::Lanes;
use crate::cpu::optim as cpu;
use crate::cuda::formula::Formula;
use crate::layout::Dst;
use crate::loops::Loops;
use crate::par::Workers;
use crate::rules::{MAX_FLAGS, MAX_NUMBERS, MAX_STATES, OPERANDS, Rule, StepNumbers};

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
        // SAFETY: the contract is the same.
        unsafe { (self.rule.cpu)(&self.numbers, dtype, loops, workers, operands) }
    }

    /// Its formula, for CUDA.
    pub(crate) fn formula(&self) -> &'static Formula {
        &self.rule.cuda
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
    // SAFETY: the operands are of the type that is chosen.
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
