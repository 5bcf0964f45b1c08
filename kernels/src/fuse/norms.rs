//! Fuses a sum with the norm of its rows, and the gradient of a norm with its addition to another gradient. Each element is read once.

use std::any::Any;

use device::cuda::Queue;
use device::{Binder, DType, Fused, Result};

use super::{Commands, Fuser, Fusible, Fusion, Mapped};
use crate::chain::Operand;
use crate::command::{Address, Held};
use crate::cpu::elementwise::Elements;
use crate::cpu::lanes::Lanes;
use crate::cpu::normalize as cpu;
use crate::cuda::normalize as cuda;
use crate::functions::{BinaryOp, Function};
use crate::layout::{Dst, Src};
use crate::loops::Places;
use crate::norms::NormRows;
use crate::par::{Workers, for_range};

/// Elements that a CPU thread adds before it normalizes them, about.
const CHUNK: usize = 1 << 13;

/// Mean, if there is one, and rstd of the rows.
type Statistics = (Option<Address>, Address);
/// Output, input, weight and bias, statistics.
type NormOperands = (Address, Address, [Option<Address>; 2], Statistics);
/// Output gradient, input and weight; statistics; gradients of input, weight and bias; workspace.
type SlopeOperands =
    (([Address; 2], Option<Address>), Statistics, (Option<Address>, [Option<Address>; 2]), Option<Address>);

/// A row normalization.
#[derive(Clone)]
pub(crate) struct NormForward {
    pub(crate) op: &'static str,
    /// Types of elements and of weights.
    pub(crate) dtypes: [DType; 2],
    pub(crate) rows: (NormRows, usize),
    pub(crate) eps: f64,
    pub(crate) operands: NormOperands,
}

/// The gradients of a row normalization, including that of the input.
#[derive(Clone)]
struct NormSlopes {
    op: &'static str,
    dtypes: [DType; 2],
    rows: (NormRows, usize),
    operands: SlopeOperands,
}

impl Fusible {
    pub(crate) fn norm_grad(
        op: &'static str,
        dtypes: [DType; 2],
        rows: (NormRows, usize),
        operands: SlopeOperands,
    ) -> Option<Box<dyn Any>> {
        let (_, _, (dx, _), _) = operands;
        dx.and_then(|_| Fusible::of(NormSlopes { op, dtypes, rows, operands }))
    }
}

/// Number of elements of all rows.
fn elements((rows, count): (NormRows, usize)) -> usize {
    rows.row() * count
}

/// Fuses sums into norms, and additions into gradients of norms, if no command in between interferes.
pub(super) fn fuse(fuser: &mut Fuser<'_>) -> Result<()> {
    fuser.pairs(|commands, second| {
        let norm: &NormForward = commands.of(second)?;
        let first = commands.writer(commands.memory(second, norm.operands.1)?, second)?;
        Some((first, norm_of_sum(&commands, [first, second], norm)?))
    })?;
    fuser.pairs(|commands, second| {
        let sum = Sum::of(commands.of(second)?)?;
        // Only the last writer has all others before it.
        let mut firsts = sum.terms.map(|term| commands.writer(commands.memory(second, term.at)?, second));
        firsts.sort_unstable();
        let fused = |first| Some((first, added_gradient(&commands, [first, second], &sum)?));
        firsts.into_iter().rev().flatten().find_map(fused)
    })
}

/// An elementwise sum of two tensors.
struct Sum<'a> {
    dtype: DType,
    out: &'a Operand,
    terms: [&'a Operand; 2],
}

impl<'a> Sum<'a> {
    fn of(mapped: &'a Mapped) -> Option<Sum<'a>> {
        let Mapped { function: Function::Binary(BinaryOp::Add, dtype), operands } = mapped else {
            return None;
        };
        let [out, first, second] = &operands[..] else { return None };
        Some(Sum { dtype: *dtype, out, terms: [first, second] })
    }
}

/// Number of rows of `len` elements after which a dense operand repeats; `None` for other layouts.
fn period(operand: &Operand, len: usize) -> Option<usize> {
    let places = &operand.places;
    let elements = match &places.axes[..] {
        _ if places.is_run() => places.elements,
        [again, run] if again.strides == [0] && run.strides == [1] => run.size,
        _ => return None,
    };
    (len > 0 && elements > 0 && elements.is_multiple_of(len)).then_some(elements / len)
}

/// A sum fused with the norm of its rows; `None` if the commands do not match or their memories conflict.
fn norm_of_sum(commands: &Commands<'_>, pair: [usize; 2], norm: &NormForward) -> Option<Fused> {
    let [first, second] = pair;
    let Sum { dtype, out, terms } = Sum::of(commands.of(first)?)?;
    let (_, sum, affine, _) = norm.operands;
    let is_its = out.at.0 == sum.0 && dtype == norm.dtypes[0] && out.places.elements == elements(norm.rows);
    // Rows of several groups have different weights.
    if !is_its || norm.rows.0.groups != 1 || commands.would_widen(dtype) {
        return None;
    }
    let x = commands.memory(second, sum)?;
    let reads_sum = affine.into_iter().flatten().any(|at| commands.memory(second, at) == Some(x));
    let mut later = commands.plan.uses(second).iter();
    if reads_sum || later.any(|&(memory, write)| write && commands.uses(first, memory)) {
        return None;
    }
    // A term that partly aliases the sum would be overwritten before all rows have read it.
    if terms.iter().any(|term| term.meets(out) && !term.is(out)) {
        return None;
    }
    let [a, b] = terms.map(|term| Some((term.at, period(term, norm.rows.0.row())?)));
    let inner = commands.is_between(x, pair) && terms.iter().all(|term| !term.meets(out));
    // A CPU writes the sum to memory before it normalizes.
    let written = commands.plan.device().runs_on_host() || !inner;
    let added = Added { norm: norm.clone(), terms: [a?, b?], sum: written.then_some(sum) };
    Some(commands.fused(norm.op, pair, |memory| written || memory != x, added))
}

/// The gradient of a norm fused with its addition to another gradient; `None` as for [`norm_of_sum`].
fn added_gradient(commands: &Commands<'_>, pair: [usize; 2], sum: &Sum<'_>) -> Option<Fused> {
    let [first, second] = pair;
    let slopes: &NormSlopes = commands.of(first)?;
    let (.., (Some(of_x), _), _) = slopes.operands else { return None };
    let is_dense =
        |operand: &&Operand| operand.places.is_run() && operand.places.elements == elements(slopes.rows);
    let Sum { dtype, out, terms: [a, b] } = *sum;
    let (dx, other) = if a.at.0 == of_x.0 { (a, b) } else { (b, a) };
    let is_its = dx.at.0 == of_x.0 && dtype == slopes.dtypes[0] && [out, dx, other].iter().all(is_dense);
    if !is_its || commands.would_widen(dtype) || other.meets(out) && !other.is(out) {
        return None;
    }
    let (own, to) = (commands.memory(first, of_x)?, commands.memory(second, out.at)?);
    let from = commands.memory(second, other.at)?;
    // If the sum replaces the gradient in place, other commands may use it.
    let inner = own == to && out.at.0 == dx.at.0 || commands.is_between(own, pair);
    let earlier = commands.plan.uses(first);
    if !inner || own == from || earlier.contains(&(from, true)) || own != to && commands.uses(first, to) {
        return None;
    }
    // A CPU writes the gradient to memory before it adds.
    let on_host = commands.plan.device().runs_on_host();
    let is_used = |memory| on_host || own == to || memory != own;
    let after = dx.at.0 == b.at.0;
    let merged = Merged { slopes: slopes.clone(), other: other.at, after, out: out.at };
    Some(commands.fused(slopes.op, pair, is_used, merged))
}

/// A sum fused with a norm.
struct Added {
    norm: NormForward,
    /// The terms, and the number of rows after which each repeats.
    terms: [(Address, usize); 2],
    /// Address of the sum, if it is written.
    sum: Option<Address>,
}

/// An optional operand of a CPU's kernel.
fn read<T>(at: Option<Address>) -> Option<Src<T>> {
    at.map(|at| at.src().cast())
}

impl Fusion for Added {
    fn dtype(&self) -> DType {
        self.norm.dtypes[0]
    }

    unsafe fn run_in<T: Lanes>(&self, workers: &Workers) {
        let NormForward { dtypes: [dtype, _], rows: (rows, count), eps, operands, .. } = self.norm;
        let (out, x, affine, (mean, rstd)) = operands;
        let (len, size) = (rows.row(), dtype.size_bytes());
        let chunk = (CHUNK / len.max(1)).max(1);
        let at = |operand: Address, row: usize, size: usize| Dst(operand.at((row * size) as isize));
        for_range(workers, count, chunk, &|range| {
            let mut row = range.start;
            while row < range.end {
                let left = self.terms.iter().map(|(_, period)| period - row % period);
                let rest = left.fold(chunk.min(range.end - row), usize::min);
                let places = Places::Run { elements: rest * len, steps: [1; 3] };
                let terms = self.terms.map(|(term, period)| at(term, row % period, len * size));
                let [out, x] = [out, x].map(|to| at(to, row, len * size));
                let statistics = (mean.map(|to| at(to, row, size).cast()), at(rstd, row, size).cast());
                // SAFETY: the addresses are those of `rest` rows from `row` on, and `rest` ends before a term
                // repeats. Parts write disjoint rows; terms are only read. The caller vouches for the operands.
                unsafe {
                    Function::Binary(BinaryOp::Add, dtype).run(&places, &None, [x, terms[0], terms[1]]);
                    let elements = (out.cast(), x.src().cast());
                    cpu::forward::<T>(&(rows, rest), &None, eps, elements, affine.map(read), statistics);
                }
                row += rest;
            }
        });
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        let NormForward { dtypes, rows, eps, operands: (out, _, affine, statistics), .. } = &self.norm;
        let [first, second] = self.terms;
        let elements = (*out, first, Some(second), self.sum);
        cuda::normalize(queue, *dtypes, rows, *eps, elements, *affine, *statistics)
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        let moved = &mut |at| binder.address(at);
        self.norm.operands.bind(moved);
        self.terms.iter_mut().for_each(|(term, _)| term.bind(moved));
        self.sum.bind(moved);
    }
}

/// The gradients of a norm, with the input gradient added to another gradient.
struct Merged {
    slopes: NormSlopes,
    other: Address,
    /// Whether the other gradient is the first summand.
    after: bool,
    out: Address,
}

impl Fusion for Merged {
    fn dtype(&self) -> DType {
        self.slopes.dtypes[0]
    }

    unsafe fn run_in<T: Lanes>(&self, workers: &Workers) {
        let NormSlopes { dtypes: [dtype, _], rows, operands, .. } = &self.slopes;
        let (([g, x], weight), (mean, rstd), (Some(dx), sums), _) = *operands else { return };
        let places = Places::Run { elements: elements(*rows), steps: [1; 3] };
        let [first, second] = if self.after { [self.other, dx] } else { [dx, self.other] };
        let from = ([g, x].map(|at| at.src().cast()), read(weight));
        let grads = (Some(dx.cast()), sums.map(|at| at.map(Dst::cast)));
        // SAFETY: the caller promises operands of type `T` that nobody else uses. `rows` is that of the fused
        // command, whose operands are contiguous with as many elements.
        unsafe {
            cpu::backward::<T>(rows, workers, from, (read(mean), rstd.src().cast()), grads);
            Function::Binary(BinaryOp::Add, *dtype).run(&places, workers, [self.out, first, second]);
        }
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        let NormSlopes { dtypes, rows, operands: (read, statistics, (_, sums), workspace), .. } =
            &self.slopes;
        let grads = (Some(self.out), Some(self.other), *sums);
        cuda::gradient(queue, *dtypes, rows, *read, *statistics, grads, *workspace)
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        let moved = &mut |at| binder.address(at);
        self.slopes.operands.bind(moved);
        self.other.bind(moved);
        self.out.bind(moved);
    }
}
