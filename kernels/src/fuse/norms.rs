//! Norms of sums, and gradients of norms that are added to others: what the one has at hand, the other one need not read.

use device::cuda::Queue;
use device::{Binder, Cpu, DType, Fused, Result, Work};

use super::{Floats, Fuser, Mapped, NormWeights, Part, Parts};
use crate::chain::Operand;
use crate::command::Address;
use crate::cpu::lanes::Lanes;
use crate::cpu::{elementwise, normalize as cpu};
use crate::cuda::normalize as cuda;
use crate::functions::{BinaryOp, Function};
use crate::layout::Dst;
use crate::loops::Places;
use crate::norms::NormRows;
use crate::par::{Workers, for_range};

/// About how many elements a thread of a CPU adds before it goes on with them.
const CHUNK: usize = 1 << 13;

/// A norm of each row.
#[derive(Clone, Debug)]
pub(crate) struct Norm {
    op: &'static str,
    dtype: DType,
    rows: (NormRows, usize),
    eps: f64,
    out: Dst<u8>,
    x: Dst<u8>,
    /// Weight and bias.
    affine: [Option<Dst<u8>>; 2],
    mean: Option<Dst<u8>>,
    rstd: Dst<u8>,
}

/// The gradients of a norm, that of the elements among them.
#[derive(Clone, Debug)]
pub(crate) struct NormSlopes {
    op: &'static str,
    dtype: DType,
    rows: (NormRows, usize),
    dx: Dst<u8>,
    g: Dst<u8>,
    x: Dst<u8>,
    weight: Option<Dst<u8>>,
    mean: Option<Dst<u8>>,
    rstd: Dst<u8>,
    /// The gradients of weight and bias.
    sums: [Option<Dst<u8>>; 2],
    workspace: Option<Dst<u8>>,
}

/// An address of an operand, as a work holds it.
fn held(at: Address) -> Dst<u8> {
    Dst(at.0)
}

/// The same for a kernel.
fn address(at: Dst<u8>) -> Address {
    Address(at.0)
}

/// Mean, if there is one, and rstd of the rows.
type Statistics = (Option<Address>, Address);

impl Norm {
    /// As its command has the operands.
    pub(crate) fn new(
        (op, dtype): (&'static str, DType),
        rows: (NormRows, usize),
        eps: f64,
        (out, x, affine, (mean, rstd)): (Address, Address, [Option<Address>; 2], Statistics),
    ) -> Norm {
        let affine = affine.map(|at| at.map(held));
        Norm {
            op,
            dtype,
            rows,
            eps,
            out: held(out),
            x: held(x),
            affine,
            mean: mean.map(held),
            rstd: held(rstd),
        }
    }

    fn elements(&self) -> usize {
        self.rows.0.row() * self.rows.1
    }
}

/// What the command of gradients has.
type SlopesOf =
    (([Address; 2], Option<Address>), Statistics, (Option<Address>, [Option<Address>; 2]), Option<Address>);

impl Part {
    /// Gradients of a norm as their command has the operands.
    pub(crate) fn norm_grad(
        (op, dtype): (&'static str, DType),
        rows: (NormRows, usize),
        (([g, x], weight), (mean, rstd), (dx, sums), workspace): SlopesOf,
    ) -> Part {
        let (g, x, rstd, sums) = (held(g), held(x), held(rstd), sums.map(|at| at.map(held)));
        let [dx, weight, mean, workspace] = [dx, weight, mean, workspace].map(|at| at.map(held));
        match dx {
            Some(dx) => {
                let slopes = NormSlopes { op, dtype, rows, dx, g, x, weight, mean, rstd, sums, workspace };
                Part::NormGrad(Box::new(slopes))
            }
            None => {
                let operands = [sums[0], sums[1], Some(g), Some(x), mean, Some(rstd)];
                Part::NormWeights(Box::new(NormWeights { dtype, rows, operands }))
            }
        }
    }
}

impl NormSlopes {
    fn elements(&self) -> usize {
        self.rows.0.row() * self.rows.1
    }
}

/// Lets norms add first, and gradients of norms then, where nothing that lies between needs one of the two.
pub(super) fn fuse(fuser: &mut Fuser<'_>) -> Result<()> {
    fuser.pairs(|parts, second| {
        let Some(Part::Norm(norm)) = &parts.all[second] else { return None };
        let first = parts.writer(parts.memory(second, norm.x)?, second)?;
        Some((first, norm_of_sum(&parts, (first, second), norm)?))
    })?;
    fuser.pairs(|parts, second| {
        let sum = Sum::of(parts.all[second].as_ref()?)?;
        // The one that comes last has the others before it.
        let mut firsts = sum.terms.map(|term| parts.writer(parts.memory(second, term.at)?, second));
        firsts.sort_unstable();
        let fused = |first| Some((first, added_gradient(&parts, (first, second), &sum)?));
        firsts.into_iter().rev().flatten().find_map(fused)
    })
}

/// Two tensors and where their sum goes, element by element.
struct Sum<'a> {
    dtype: DType,
    out: &'a Operand,
    terms: [&'a Operand; 2],
}

impl<'a> Sum<'a> {
    fn of(part: &'a Part) -> Option<Sum<'a>> {
        let Part::Function(mapped) = part else { return None };
        let Mapped { function: Function::Binary(BinaryOp::Add, dtype), operands } = &**mapped else {
            return None;
        };
        let [out, first, second] = &operands[..] else { return None };
        Some(Sum { dtype: *dtype, out, terms: [first, second] })
    }
}

/// Behind how many rows of `len` elements an operand that has no gaps begins again; `None` if it lies otherwise.
fn period(operand: &Operand, len: usize) -> Option<usize> {
    let places = &operand.places;
    let elements = match &places.axes[..] {
        _ if places.is_run() => places.elements,
        [again, run] if again.strides == [0] && run.strides == [1] => run.size,
        _ => return None,
    };
    (len > 0 && elements > 0 && elements.is_multiple_of(len)).then_some(elements / len)
}

/// A sum and the norm of its rows as one command; `None` if they are something else, or one touches what is the other's.
fn norm_of_sum(parts: &Parts<'_>, (first, second): (usize, usize), norm: &Norm) -> Option<Fused> {
    let sum = Sum::of(parts.all[first].as_ref()?)?;
    let Sum { dtype, out, terms } = &sum;
    let is_its = out.at.0 == norm.x.0 && *dtype == norm.dtype && out.places.elements == norm.elements();
    let on_host = parts.plan.device().runs_on_host();
    // Rows of groups have weights in turn. A CPU would have to widen halves.
    if !is_its || norm.rows.0.groups != 1 || on_host && dtype.is_half() {
        return None;
    }
    let (earlier, later) = (parts.plan.uses(first), parts.plan.uses(second));
    let x = parts.memory(second, norm.x)?;
    let [weight, bias] = norm.affine;
    let reads_sum = [weight, bias].into_iter().flatten().any(|at| parts.memory(second, at) == Some(x));
    let is_earlier = |memory: usize| earlier.iter().any(|(used, _)| *used == memory);
    if reads_sum || later.iter().any(|&(memory, write)| write && is_earlier(memory)) {
        return None;
    }
    // An element of a term that is none of the sum's own must stay until all rows have read it.
    if terms.iter().any(|term| term.meets(out) && !term.is(out)) {
        return None;
    }
    let [a, b] = terms.map(|term| Some((term.at, period(term, norm.rows.0.row())?)));
    let alone = parts.users[x].iter().all(|user| [first, second].contains(user));
    let inner = parts.plan.is_planned(x) && alone && terms.iter().all(|term| !term.meets(out));
    // A CPU has it in memory before it goes on.
    let written = on_host || !inner;
    let mut uses = earlier.to_vec();
    uses.extend(later.iter().filter(|(memory, _)| !is_earlier(*memory)));
    uses.retain(|(memory, _)| written || *memory != x);
    let cost = parts.plan.cost(first) + parts.plan.cost(second);
    let work = Box::new(Added { norm: norm.clone(), terms: [a?, b?], sum: written.then_some(norm.x), cost });
    Some(Fused { op: norm.op, uses, work })
}

/// A gradient of a norm's rows and what adds it to another one as one command; `None` as for [`norm_of_sum`].
fn added_gradient(parts: &Parts<'_>, (first, second): (usize, usize), sum: &Sum<'_>) -> Option<Fused> {
    let Part::NormGrad(slopes) = parts.all[first].as_ref()? else { return None };
    let is_dense =
        |operand: &&Operand| operand.places.is_run() && operand.places.elements == slopes.elements();
    let Sum { dtype, out, terms: [a, b] } = sum;
    let (dx, other) = if a.at.0 == slopes.dx.0 { (*a, *b) } else { (*b, *a) };
    let on_host = parts.plan.device().runs_on_host();
    let is_its = dx.at.0 == slopes.dx.0 && *dtype == slopes.dtype && [*out, dx, other].iter().all(is_dense);
    if !is_its || on_host && dtype.is_half() || other.meets(out) && !other.is(out) {
        return None;
    }
    let (earlier, later) = (parts.plan.uses(first), parts.plan.uses(second));
    let [own, to] = [(first, slopes.dx), (second, out.at)].map(|(user, at)| parts.memory(user, at));
    let (own, to, from) = (own?, to?, parts.memory(second, other.at)?);
    let mut users = parts.users[own].iter().filter(|&&user| user != first && user != second);
    // Others may take the sum, where it replaces the gradient.
    let inner = own == to && out.at.0 == dx.at.0 || parts.plan.is_planned(own) && users.next().is_none();
    let is_earlier = |memory: usize| earlier.iter().any(|(used, _)| *used == memory);
    if !inner || own == from || earlier.contains(&(from, true)) || own != to && is_earlier(to) {
        return None;
    }
    let mut uses = earlier.to_vec();
    uses.extend(later.iter().filter(|(memory, _)| !is_earlier(*memory)));
    // A CPU has the gradient in memory before it goes on.
    uses.retain(|(memory, _)| on_host || own == to || *memory != own);
    let cost = parts.plan.cost(first) + parts.plan.cost(second);
    let after = dx.at.0 == b.at.0;
    let work = Box::new(Merged { slopes: (**slopes).clone(), other: other.at, after, out: out.at, cost });
    Some(Fused { op: slopes.op, uses, work })
}

/// A norm of a sum.
struct Added {
    norm: Norm,
    /// What is added, and behind how many rows each begins again.
    terms: [(Dst<u8>, usize); 2],
    /// Where the sum goes.
    sum: Option<Dst<u8>>,
    cost: usize,
}

impl Floats for Added {
    fn dtype(&self) -> DType {
        self.norm.dtype
    }

    unsafe fn run_in<T: Lanes>(&self, workers: &Workers) {
        let Norm { dtype, rows: (rows, count), eps, out, x, affine, mean, rstd, .. } = self.norm.clone();
        let (len, size) = (rows.row(), dtype.size_bytes());
        let chunk = (CHUNK / len.max(1)).max(1);
        let at = |operand: Dst<u8>, row: usize, size: usize| Dst(operand.at((row * size) as isize));
        let affine = affine.map(|at| at.map(|at| at.src().cast::<T>()));
        for_range(workers, count, chunk, &|range| {
            let mut row = range.start;
            while row < range.end {
                let left = self.terms.iter().map(|(_, period)| period - row % period);
                let rest = left.fold(chunk.min(range.end - row), usize::min);
                let places = Places::Run { elements: rest * len, steps: [1; 3] };
                let terms = self.terms.map(|(term, period)| at(term, row % period, len * size));
                let [out, x] = [out, x].map(|to| at(to, row, len * size));
                let [mean, rstd] = [mean, Some(rstd)].map(|to| to.map(|to| at(to, row, size).cast()));
                let Some(rstd) = rstd else { return };
                // SAFETY: the addresses are those of `rest` rows from `row` on, and `rest` ends before a term
                // repeats. Parts write disjoint rows; terms are only read. The caller vouches for the operands.
                unsafe {
                    elementwise::run(BinaryOp::Add, dtype, &places, &None, [x, terms[0], terms[1]]);
                    let elements = (out.cast(), x.src().cast());
                    cpu::forward::<T>(&(rows, rest), &None, eps, elements, affine, (mean, rstd));
                }
                row += rest;
            }
        });
    }
}

impl Work for Added {
    fn run(&self, cpu: &Cpu<'_>) {
        self.run_on(cpu);
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        let Norm { dtype, rows, eps, out, affine, mean, rstd, .. } = &self.norm;
        let terms = self.terms.map(|(term, period)| (address(term), period));
        let elements = (address(*out), terms, self.sum.map(address));
        let affine = affine.map(|at| at.map(address));
        cuda::normalize_added(
            queue,
            *dtype,
            rows,
            *eps,
            elements,
            affine,
            (mean.map(address), address(*rstd)),
        )
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        let Norm { out, x, affine, mean, rstd, .. } = &mut self.norm;
        let optional = affine.iter_mut().chain([mean, &mut self.sum]).flatten();
        let terms = self.terms.iter_mut().map(|(term, _)| term);
        let all = [out, x, rstd].into_iter().chain(optional).chain(terms);
        all.for_each(|at| at.0 = binder.address(at.0));
    }

    fn cost(&self) -> usize {
        self.cost
    }

    fn may_fail(&self) -> bool {
        false
    }
}

/// The gradients of a norm, of which that of the elements is added to another one.
struct Merged {
    slopes: NormSlopes,
    other: Dst<u8>,
    /// Whether the other one comes first in the sum.
    after: bool,
    out: Dst<u8>,
    cost: usize,
}

impl Floats for Merged {
    fn dtype(&self) -> DType {
        self.slopes.dtype
    }

    unsafe fn run_in<T: Lanes>(&self, workers: &Workers) {
        let NormSlopes { dtype, rows, dx, g, x, weight, mean, rstd, sums, .. } = &self.slopes;
        let elements = self.slopes.elements();
        let places = Places::Run { elements, steps: [1; 3] };
        let [first, second] = if self.after { [self.other, *dx] } else { [*dx, self.other] };
        let [weight, mean] = [weight, mean].map(|at| at.map(|at| at.src().cast()));
        let read = ([g, x].map(|at| at.src().cast()), weight);
        let grads = (Some(dx.cast()), sums.map(|at| at.map(|at| at.cast())));
        // SAFETY: the caller promises operands of type `T` that nobody else uses. `rows` is that of the fused
        // command, whose operands are contiguous with `elements` elements.
        unsafe {
            cpu::backward::<T>(rows, workers, read, (mean, rstd.src().cast()), grads);
            elementwise::run(BinaryOp::Add, *dtype, &places, workers, [self.out, first, second]);
        }
    }
}

impl Work for Merged {
    fn run(&self, cpu: &Cpu<'_>) {
        self.run_on(cpu);
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        let NormSlopes { dtype, rows, g, x, weight, mean, rstd, sums, workspace, .. } = &self.slopes;
        let read = ([g, x].map(|at| address(*at)), weight.map(address));
        let sums = sums.map(|at| at.map(address));
        let grads = (Some(address(self.out)), Some(address(self.other)), sums);
        let statistics = (mean.map(address), address(*rstd));
        cuda::gradient(queue, *dtype, rows, read, statistics, grads, workspace.map(address))
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        let NormSlopes { dx, g, x, weight, mean, rstd, sums, workspace, .. } = &mut self.slopes;
        let optional = [weight, mean, workspace].into_iter().chain(sums).flatten();
        let all = [dx, g, x, rstd, &mut self.other, &mut self.out].into_iter().chain(optional);
        all.for_each(|at| at.0 = binder.address(at.0));
    }

    fn cost(&self) -> usize {
        self.cost
    }

    fn may_fail(&self) -> bool {
        false
    }
}
