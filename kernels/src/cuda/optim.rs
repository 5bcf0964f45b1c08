//! Optimizer steps over any number of tensors, 64 per launch. Kernels are generated from the rules' formulas.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use device::cuda::{Program, Queue};
use device::{DType, Result};

use super::formula::Formula;
use super::table::Table;
use super::tensors::Tensor;
use super::walk::{ByValue, Walk, blocks, number_bits};
use crate::command::Address;
use crate::rule_step::Stepped;
use crate::rules::{MAX_NUMBERS, OPERANDS, ROUNDED, StepNumbers};

/// Kernels for F32 and F64, or for 16-bit parameters with F32 masters.
pub(crate) fn source(formulas: &[Formula], half: Option<&str>) -> String {
    let half = half.map(|half| format!("#define STORED {half}\n")).unwrap_or_default();
    let kernels = concat!(
        include_str!("prelude.cuh"),
        include_str!("table.cuh"),
        include_str!("tensors.cuh"),
        include_str!("optim.cu")
    );
    formulas.iter().fold(half + kernels, |source, formula| source + &(formula.source)())
}

/// The program with a rule's kernels for parameters of type `stored`, made on first use.
pub(crate) fn program_of(formula: &Formula, stored: DType) -> &'static Program {
    static PROGRAMS: LazyLock<Mutex<HashMap<(TypeId, DType), &'static Program>>> =
        LazyLock::new(Mutex::default);
    let half = stored.is_half().then(|| stored.name());
    let key = ((formula.id)(), if half.is_some() { stored } else { DType::F32 });
    let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    programs.entry(key).or_insert_with(|| {
        Box::leak(Box::new(Program::new((formula.name)().leak(), source(&[*formula], half).leak())))
    })
}

const THREADS: u32 = 256;

/// Enqueues steps of the same kind as `first`. If `adds`, the last operand of each is added to the gradient first, and all steps are
/// [dense](Stepped::is_dense).
pub(crate) fn enqueue<'a>(
    queue: &Queue<'_>,
    first: &Stepped,
    adds: bool,
    tensors: impl Iterator<Item = (&'a Stepped, [Address; OPERANDS])> + Clone,
) -> Result<()> {
    let Stepped { step, dtype, stored, .. } = first;
    let (formula, StepNumbers { numbers, flags }) = (step.formula(), step.numbers());
    let kernels = Kernels {
        program: program_of(formula, *stored),
        name: (formula.name)(),
        stored: *stored,
        adds,
        has_last: stored != dtype || adds,
        numbers: std::array::from_fn(|word| match word {
            0 => flags.into(),
            _ => number_bits(*dtype, numbers[word - 1]),
        }),
    };
    match formula.states + usize::from(kernels.has_last) {
        0 => kernels.run::<2>(queue, tensors),
        1 => kernels.run::<3>(queue, tensors),
        2 => kernels.run::<4>(queue, tensors),
        3 => kernels.run::<5>(queue, tensors),
        _ => kernels.run::<OPERANDS>(queue, tensors),
    }
}

/// Kind and parameters of a step.
struct Kernels {
    program: &'static Program,
    name: String,
    /// Type of parameters and gradients; differs from the type of the masters, if there are any.
    stored: DType,
    /// Whether the last operand is added to the gradient.
    adds: bool,
    /// Whether the last operand is a parameter with a separate master.
    has_last: bool,
    /// `StepNumbers` of the program: flags, then hyperparameters as bits of the compute type.
    numbers: [u64; 1 + MAX_NUMBERS],
}

impl Kernels {
    /// Enqueues one kernel per 64 dense tensors, and one for each other tensor.
    fn run<'a, const N: usize>(
        &self,
        queue: &Queue<'_>,
        tensors: impl Iterator<Item = (&'a Stepped, [Address; OPERANDS])> + Clone,
    ) -> Result<()> {
        // The parameter follows the last state.
        let place = |k| if self.has_last && k + 1 == N { ROUNDED } else { k };
        let first = |all: &[Address; OPERANDS]| -> [Address; N] { std::array::from_fn(|k| all[place(k)]) };
        let alone = |(stepped, _): &(&Stepped, _)| !stepped.is_dense() && stepped.loops.elements > 0;
        for (Stepped { loops, .. }, operands) in tensors.clone().filter(alone) {
            let walk = Walk::of(queue.op(), loops)?;
            // `Operands` of the program.
            let one = first(&operands).map(|at| at.0.addr() as u64);
            let args = [one.arg(), self.numbers.arg(), walk.arg()];
            let kernel = self.kernel("_strided");
            // SAFETY: the kernel takes these arguments, and the walk is that of the operands.
            unsafe { queue.kernel(self.program, &kernel, walk.grid(queue, 1), &args)? };
        }
        let dense = tensors.filter(|(stepped, _)| stepped.is_dense());
        let tensors = dense
            .map(|(stepped, operands)| Tensor::<N>::with_parts(first(&operands), stepped.loops.elements));
        let kernel = self.kernel(if self.adds { "_sum" } else { "" });
        Table::each(tensors, |table| {
            let grid = blocks(queue, u64::from(table.parts), THREADS);
            // SAFETY: the kernel takes these arguments, and the table names the operands' elements.
            unsafe { queue.kernel(self.program, &kernel, grid, &[table.arg(), self.numbers.arg()]) }
        })
    }

    /// The kernel's name.
    fn kernel(&self, kind: &str) -> String {
        [&self.name, kind, "_", self.stored.name()].concat()
    }
}
