//! Many tensors in one launch, see `tensors.cuh`.

use device::Result;

use super::walk::ByValue;
use crate::command::Address;
use crate::norms::PART;

/// Tensors of a launch; as in the program, as are the elements of a part.
const TENSORS: usize = 64;

/// `Tensors` of the program, with `N` operands each.
#[repr(C)]
pub(super) struct Table<const N: usize> {
    operands: [[u64; N]; TENSORS],
    elements: [u64; TENSORS],
    first: [u32; TENSORS],
    count: u32,
    /// Of all its tensors.
    pub(super) parts: u32,
}

// SAFETY: words of 64 bits, and an even number of 32.
unsafe impl<const N: usize> ByValue for Table<N> {}

impl<const N: usize> Table<N> {
    pub(super) const EMPTY: Table<N> = Table {
        operands: [[0; N]; TENSORS],
        elements: [0; TENSORS],
        first: [0; TENSORS],
        count: 0,
        parts: 0,
    };

    pub(super) fn push(&mut self, operands: [Address; N], elements: usize) {
        let i = self.count as usize;
        self.operands[i] = operands.map(|at| at.0.addr() as u64);
        self.elements[i] = elements as u64;
        self.first[i] = self.parts;
        self.parts += elements.div_ceil(PART) as u32;
        self.count += 1;
    }

    /// Calls `launch` with tables of all tensors, each with the number of its elements.
    pub(super) fn each(
        tensors: impl Iterator<Item = ([Address; N], usize)>,
        mut launch: impl FnMut(&Table<N>) -> Result<()>,
    ) -> Result<()> {
        let mut table = Table::EMPTY;
        for (operands, elements) in tensors.filter(|&(_, elements)| elements > 0) {
            if table.count as usize == TENSORS {
                launch(&table)?;
                table = Table::EMPTY;
            }
            table.push(operands, elements);
        }
        if table.count > 0 { launch(&table) } else { Ok(()) }
    }
}
