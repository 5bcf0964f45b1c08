//! Sums at indices that begin with zeros, which they write themselves.

use device::cuda::Queue;
use device::{Binder, Cpu, DType, Fused, Result, Work};

use super::{Floats, Fuser, Part, Parts};
use crate::command::Address;
use crate::cpu::lanes::Lanes;
use crate::cpu::{copy, index as cpu};
use crate::cuda::index as cuda;
use crate::indexed::IndexedRows;
use crate::layout::Dst;
use crate::loops::Places;
use crate::par::Workers;

/// One value in all elements.
#[derive(Debug)]
pub(crate) struct Filled {
    bits: u64,
    out: Dst<u8>,
    /// Elements, if they fill the memory from `out` on without gaps.
    run: Option<usize>,
}

/// Rows that are added to those that indices name.
#[derive(Clone, Debug)]
pub(crate) struct IndexSums {
    dtype: DType,
    rows: IndexedRows,
    /// What is added to, what is added, and the indices.
    operands: [Dst<u8>; 3],
}

impl Filled {
    pub(crate) fn new(bits: u64, places: &Places<1>, out: Address) -> Filled {
        let loops = places.loops();
        Filled { bits, out: Dst(out.0), run: loops.is_run().then_some(loops.elements) }
    }
}

impl IndexSums {
    pub(crate) fn new(dtype: DType, rows: &IndexedRows, operands: [Address; 3]) -> IndexSums {
        IndexSums { dtype, rows: rows.clone(), operands: operands.map(|at| Dst(at.0)) }
    }
}

/// Lets sums at indices write the zeros that they begin with.
pub(super) fn fuse(fuser: &mut Fuser<'_>) -> Result<()> {
    fuser.pairs(|parts, second| {
        let Some(Part::IndexAdd(sums)) = &parts.all[second] else { return None };
        let first = parts.writer(parts.memory(second, sums.operands[0])?, second)?;
        Some((first, from_zero(&parts, (first, second), sums)?))
    })
}

/// Both commands as one; `None` if the first one writes anything but the zeros that are added to.
fn from_zero(parts: &Parts<'_>, (first, second): (usize, usize), sums: &IndexSums) -> Option<Fused> {
    let Part::Fill(fill) = parts.all[first].as_ref()? else { return None };
    let fills = fill.bits == 0 && fill.out.0 == sums.operands[0].0 && fill.run? == sums.rows.filled()?;
    // A CPU would have to widen halves.
    let is_wide = matches!(sums.dtype, DType::F32 | DType::F64);
    if !fills || parts.plan.device().runs_on_host() && !is_wide {
        return None;
    }
    let cost = parts.plan.cost(first) + parts.plan.cost(second);
    let work = Box::new(Command { sums: sums.clone(), cost });
    Some(Fused { op: sums.rows.op, uses: parts.plan.uses(second).to_vec(), work })
}

/// Sums that begin with zeros.
struct Command {
    sums: IndexSums,
    cost: usize,
}

impl Floats for Command {
    fn dtype(&self) -> DType {
        self.sums.dtype
    }

    unsafe fn run_in<T: Lanes>(&self, workers: &Workers) {
        let IndexSums { rows, operands: [out, src, index], .. } = &self.sums;
        let places = Places::Run { elements: rows.filled().unwrap_or(0), steps: [1] };
        // SAFETY: the caller promises operands of type `T` that nobody else uses. `rows` is that of the fused
        // command's operands, and its output has no gaps, so it is a run of `filled` elements.
        unsafe {
            copy::fill(size_of::<T>(), 0, &places, workers, *out);
            cpu::add::<T>(rows, workers, (out.cast(), src.src().cast(), index.src().cast()));
        }
    }
}

impl Work for Command {
    fn run(&self, cpu: &Cpu<'_>) {
        self.run_on(cpu);
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        let IndexSums { dtype, rows, operands } = &self.sums;
        cuda::index_add(queue, *dtype, rows, operands.map(|at| Address(at.0)), true)
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        self.sums.operands.iter_mut().for_each(|at| at.0 = binder.address(at.0));
    }

    fn cost(&self) -> usize {
        self.cost
    }
}
