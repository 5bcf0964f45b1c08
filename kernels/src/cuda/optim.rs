//! Optimizer steps over any number of tensors, a launch for each 64 of them.

use device::cuda::{Arg, Program, Queue};
use device::{DType, Result, Stream, Use};

use super::walk::{ByValue, Walk, address, blocks};
use crate::cpu::lanes::Lanes;
use crate::layout::{Loops, View};
use crate::optim::{Formula, Update, Visit};

pub(super) static OPTIM: Program =
    Program::new("optim", concat!(include_str!("prelude.cuh"), include_str!("optim.cu")));

/// Tensors of a launch, and elements of a part; as in the program.
const TENSORS: usize = 64;
const PART: usize = 2048;
const THREADS: u32 = 256;

/// `Tensors` of the program.
#[repr(C)]
struct Table<const N: usize> {
    operands: [[u64; N]; TENSORS],
    elements: [u64; TENSORS],
    first: [u32; TENSORS],
    count: u32,
    parts: u32,
}

// SAFETY: words of 64 bits, and an even number of 32.
unsafe impl<const N: usize> ByValue for Table<N> {}

impl<const N: usize> Table<N> {
    const EMPTY: Table<N> = Table {
        operands: [[0; N]; TENSORS],
        elements: [0; TENSORS],
        first: [0; TENSORS],
        count: 0,
        parts: 0,
    };

    fn push(&mut self, operands: &[View<'_>; N], elements: usize) {
        let i = self.count as usize;
        self.operands[i] = operands.map(|view| address(&view).addr() as u64);
        self.elements[i] = elements as u64;
        self.first[i] = self.parts;
        self.parts += elements.div_ceil(PART) as u32;
        self.count += 1;
    }
}

/// A step of checked updates, those next to each other that have the same numbers together.
pub(crate) fn step(
    stream: &Stream,
    op: &'static str,
    uses: &[Use<'_>],
    updates: &[Update<'_>],
) -> Result<()> {
    stream.submit(op, uses, |queue| {
        let alike = |a: &Update<'_>, b: &Update<'_>| a.rule == b.rule && a.param.dtype == b.param.dtype;
        for updates in updates.chunk_by(alike) {
            let group = Group { queue, updates };
            match updates.first() {
                Some(Update { rule, param, .. }) if param.dtype == DType::F64 => {
                    rule.visit::<f64, _>(group)?;
                }
                Some(Update { rule, .. }) => rule.visit::<f32, _>(group)?,
                None => {}
            }
        }
        Ok(())
    })
}

/// Updates of one rule with the same numbers, and of one type.
struct Group<'a, 'u> {
    queue: &'a Queue<'a>,
    updates: &'a [Update<'u>],
}

impl<T: Lanes> Visit<T> for Group<'_, '_> {
    type Output = Result<()>;

    /// Enqueues one kernel for 64 parameters whose operands lie alike, and another one for each that is left.
    fn visit<const N: usize>(self, formula: impl Formula<T, N>) -> Result<()> {
        let Group { queue, updates } = self;
        let Some(op) = updates.first().map(|update| update.rule.op()) else { return Ok(()) };
        let together = format!("{op}{}_{}", N - 2, T::DTYPE);
        let mut table = Table::EMPTY;
        for update in updates {
            let operands = update.operands_of::<N>();
            let loops = Loops::in_memory_order(operands.map(|view| view.layout));
            if loops.elements == 0 {
                continue;
            }
            if loops.axes.len() <= 1 && loops.inner().strides == [1; N] || loops.elements == 1 {
                table.push(&operands, loops.elements);
                if table.count as usize == TENSORS {
                    // SAFETY: the table names elements of the operands, whose layouts were checked, and the uses name
                    // their buffers.
                    unsafe { enqueue(queue, &together, &table, formula.arg())? };
                    table = Table::EMPTY;
                }
                continue;
            }
            let walk = Walk::of(op, &loops)?;
            let mut one = Table::EMPTY;
            one.push(&operands, loops.elements);
            let strided = format!("{op}{}_strided_{}", N - 2, T::DTYPE);
            let args = [one.arg(), formula.arg(), walk.arg()];
            // SAFETY: as above, with the strides of the layouts.
            unsafe { queue.kernel(&OPTIM, &strided, walk.grid(queue, 1), &args)? };
        }
        // SAFETY: as above.
        unsafe { enqueue(queue, &together, &table, formula.arg()) }
    }
}

/// # Safety
/// The table names elements that the command may change.
unsafe fn enqueue<const N: usize>(
    queue: &Queue<'_>,
    kernel: &str,
    table: &Table<N>,
    numbers: Arg<'_>,
) -> Result<()> {
    if table.count == 0 {
        return Ok(());
    }
    let grid = blocks(queue, u64::from(table.parts), THREADS);
    // SAFETY: the caller's promise.
    unsafe { queue.kernel(&OPTIM, kernel, grid, &[table.arg(), numbers]) }
}
