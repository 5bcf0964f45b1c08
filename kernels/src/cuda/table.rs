//! Many operands per launch; see `table.cuh`.

use device::Result;

use super::walk::ByValue;

/// Most operands of a launch, as in the program.
const OPERANDS: usize = 64;

/// `Table` of the program.
#[repr(C)]
pub(super) struct Table<O> {
    all: [O; OPERANDS],
    first: [u32; OPERANDS],
    count: u32,
    /// Of all its operands.
    pub(super) parts: u32,
}

// SAFETY: operands have no padding, and words of at most 64 bits, of which an even number of 32 follows.
unsafe impl<O: ByValue> ByValue for Table<O> {}

impl<O: ByValue + Copy> Table<O> {
    /// Calls `launch` with tables of all operands and their numbers of parts. Operands without parts are skipped.
    pub(super) fn each(
        operands: impl IntoIterator<Item = (O, usize)>,
        mut launch: impl FnMut(&Table<O>) -> Result<()>,
    ) -> Result<()> {
        let mut operands = operands.into_iter().filter(|&(_, parts)| parts > 0).peekable();
        while let Some(&(any, _)) = operands.peek() {
            let mut table = Table { all: [any; OPERANDS], first: [0; OPERANDS], count: 0, parts: 0 };
            for (at, (operand, parts)) in (0..OPERANDS).zip(operands.by_ref()) {
                (table.all[at], table.first[at]) = (operand, table.parts);
                table.parts += parts as u32;
                table.count += 1;
            }
            launch(&table)?;
        }
        Ok(())
    }
}
