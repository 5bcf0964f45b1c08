//! Optimizer steps over any number of tensors, a launch for each 64 of them. Kernels are made of the rules' formulas.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use device::cuda::{Program, Queue};
use device::{DType, Result};

use super::formula::Formula;
use super::tensors::Table;
use super::walk::{ByValue, Walk, blocks, number_bits};
use crate::command::Address;
use crate::loops::Loops;
use crate::rules::{Adam, Lion, MAX_NUMBERS, OPERANDS, RmsProp, Sgd, SgdMomentum, StepNumbers};

/// The program of the rules that are known beforehand.
pub(super) static OPTIM: LazyLock<Program> = LazyLock::new(|| program("optim", &KNOWN));

const KNOWN: [Formula; 8] = [
    Formula::of::<Sgd, _, _, _>(),
    Formula::of::<SgdMomentum, _, _, _>(),
    Formula::of::<Adam, _, _, _>(),
    Formula::of::<RmsProp<false, false>, _, _, _>(),
    Formula::of::<RmsProp<true, false>, _, _, _>(),
    Formula::of::<RmsProp<false, true>, _, _, _>(),
    Formula::of::<RmsProp<true, true>, _, _, _>(),
    Formula::of::<Lion, _, _, _>(),
];

fn program(name: &'static str, formulas: &[Formula]) -> Program {
    Program::new(name, source(formulas).leak())
}

fn source(formulas: &[Formula]) -> String {
    let kernels = concat!(include_str!("prelude.cuh"), include_str!("tensors.cuh"), include_str!("optim.cu"))
        .to_owned();
    formulas.iter().fold(kernels, |source, formula| source + &(formula.source)())
}

/// The program with a rule's kernels. Those of other rules are made when they are first used, and stay.
fn program_of(formula: &Formula) -> &'static Program {
    static OTHERS: LazyLock<Mutex<HashMap<TypeId, &'static Program>>> = LazyLock::new(Mutex::default);
    if KNOWN.iter().any(|known| known.is(formula)) {
        return &OPTIM;
    }
    let mut others = OTHERS.lock().unwrap_or_else(PoisonError::into_inner);
    others
        .entry((formula.id)())
        .or_insert_with(|| Box::leak(Box::new(program((formula.name)().leak(), &[*formula]))))
}

const THREADS: u32 = 256;

/// `StepNumbers` of the program, the numbers as bits of the type that is computed in.
#[repr(C)]
struct NumberBits {
    flags: u64,
    numbers: [u64; MAX_NUMBERS],
}

// SAFETY: words of 64 bits.
unsafe impl ByValue for NumberBits {}

/// Parameter, gradient and states of a tensor, and the loops over them.
pub(crate) type Tensor<'a> = (&'a Loops<OPERANDS>, [Address; OPERANDS]);

/// Steps tensors of one type by a rule with the same numbers.
pub(crate) fn step<'a>(
    queue: &Queue<'_>,
    dtype: DType,
    formula: &Formula,
    numbers: &StepNumbers,
    tensors: impl Iterator<Item = Tensor<'a>>,
) -> Result<()> {
    let StepNumbers { numbers, flags } = *numbers;
    let numbers = numbers.map(|number| number_bits(dtype, number));
    let step = Kernels {
        program: program_of(formula),
        name: (formula.name)(),
        dtype,
        numbers: NumberBits { flags: flags.into(), numbers },
    };
    match formula.states {
        0 => step.run::<2>(queue, tensors),
        1 => step.run::<3>(queue, tensors),
        2 => step.run::<4>(queue, tensors),
        _ => step.run::<OPERANDS>(queue, tensors),
    }
}

/// The kernels of a step.
struct Kernels {
    program: &'static Program,
    name: String,
    dtype: DType,
    numbers: NumberBits,
}

impl Kernels {
    /// Enqueues one kernel for 64 tensors whose operands lie alike, and another one for each that is left.
    fn run<'a, const N: usize>(
        &self,
        queue: &Queue<'_>,
        tensors: impl Iterator<Item = Tensor<'a>>,
    ) -> Result<()> {
        let strided = format!("{}_strided_{}", self.name, self.dtype);
        let alike = |loops: &Loops<OPERANDS>| {
            loops.axes.len() <= 1 && loops.inner().strides == [1; OPERANDS] || loops.elements == 1
        };
        let first = |all: &[Address; OPERANDS]| -> [Address; N] { std::array::from_fn(|k| all[k]) };
        let (dense, others): (Vec<_>, Vec<_>) = tensors.partition(|(loops, _)| alike(loops));
        for (loops, operands) in others.iter().filter(|(loops, _)| loops.elements > 0) {
            let walk = Walk::of(queue.op(), loops)?;
            let mut one = Table::<N>::EMPTY;
            one.push(first(operands), loops.elements);
            let args = [one.arg(), self.numbers.arg(), walk.arg()];
            // SAFETY: the kernel takes these arguments, and the walk is that of the operands.
            unsafe { queue.kernel(self.program, &strided, walk.grid(queue, 1), &args)? };
        }
        let tensors = dense.iter().map(|(loops, operands)| (first(operands), loops.elements));
        Table::each(tensors, |table| self.run_table(queue, table))
    }

    fn run_table<const N: usize>(&self, queue: &Queue<'_>, table: &Table<N>) -> Result<()> {
        let kernel = format!("{}_{}", self.name, self.dtype);
        let grid = blocks(queue, u64::from(table.parts), THREADS);
        // SAFETY: the kernel takes these arguments, and the table names the operands' elements.
        unsafe { queue.kernel(self.program, &kernel, grid, &[table.arg(), self.numbers.arg()]) }
    }
}

#[cfg(test)]
mod tests;
