//! Fuses a zero fill with the indexed sum that follows it.

use std::any::Any;

use device::cuda::Queue;
use device::{Binder, DType, Result};

use super::{Fuser, Fusible, Fusion};
use crate::command::{Address, Held};
use crate::cpu::lanes::Lanes;
use crate::cpu::{copy, index as cpu};
use crate::cuda::index as cuda;
use crate::indexed::IndexedRows;
use crate::loops::Places;
use crate::par::Workers;

/// One value in all elements.
struct Filled {
    bits: u64,
    out: Address,
    /// How many elements it has, if they fill a range of memory.
    run: Option<usize>,
}

/// `index_add` on out, source and indices.
#[derive(Clone)]
pub(crate) struct IndexSums {
    pub(crate) dtype: DType,
    pub(crate) rows: IndexedRows,
    pub(crate) operands: (Address, Address, Address),
}

impl Fusible {
    pub(crate) fn fill(bits: u64, places: &Places<1>, out: Address) -> Option<Box<dyn Any>> {
        let loops = places.loops();
        Fusible::of(Filled { bits, out, run: loops.is_run().then_some(loops.elements) })
    }
}

/// Drops the zero fill before an indexed sum, which then starts from zero itself.
pub(super) fn fuse(fuser: &mut Fuser<'_>) -> Result<()> {
    fuser.pairs(|commands, second| {
        let sums: &IndexSums = commands.of(second)?;
        let out = sums.operands.0;
        let first = commands.writer(commands.memory(second, out)?, second)?;
        let fill: &Filled = commands.of(first)?;
        let fills = fill.bits == 0 && fill.out.0 == out.0 && fill.run? == sums.rows.filled()?;
        // A CPU has floats of 16 bits widened, and integers in kernels of their own.
        let is_wide = matches!(sums.dtype, DType::F32 | DType::F64);
        if !fills || commands.plan.device().runs_on_host() && !is_wide {
            return None;
        }
        Some((first, commands.fused(sums.rows.op, [first, second], |_| true, sums.clone())))
    })
}

/// With zeros first.
impl Fusion for IndexSums {
    const MAY_FAIL: bool = true;

    fn dtype(&self) -> DType {
        self.dtype
    }

    unsafe fn run_in<T: Lanes>(&self, workers: &Workers) {
        let IndexSums { rows, operands: (out, src, index), .. } = self;
        let places = Places::Run { elements: rows.filled().unwrap_or(0), steps: [1] };
        // SAFETY: the caller promises operands of type `T` that nobody else uses. The output's elements fill the
        // range that `filled` tells, and `rows` is that of the command.
        unsafe {
            copy::fill(size_of::<T>(), 0, &places, workers, *out);
            cpu::add::<T>(rows, workers, (out.cast(), src.src().cast(), index.src().cast()));
        }
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        cuda::index_add(queue, self.dtype, &self.rows, self.operands.into(), true)
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        self.operands.bind(&mut |at| binder.address(at));
    }
}
