//! Sums and means over bags of rows, which the kernels check.

use device::cuda::Arg;
use device::{Result, Stream, Use};

use super::sums::Owned;
use super::walk::{ByValue, THREADS, address, blocks, operand};
use super::{by_dtype, float_programs};
use crate::embedding_bag::Bags;
use crate::layout::View;

float_programs!("embedding_bag", "rows.cuh", "sums.cuh", "embedding_bag.cu");

/// Threads that take an index together.
const WARP: u32 = 32;

/// `BagSizes` of the program.
#[repr(C)]
struct BagSizes {
    len: u64,
    count: u64,
    rows: i64,
    width: i64,
    padding: i64,
    index_step: i64,
    offset_step: i64,
    weight_step: i64,
    member_step: i64,
}

// SAFETY: words of 64 bits.
unsafe impl ByValue for BagSizes {}

impl BagSizes {
    /// On checked operands.
    fn of(table: &View<'_>, bags: &Bags<'_>, members: Option<&View<'_>>) -> BagSizes {
        let step = |view: Option<&View<'_>>| view.map_or(0, |view| view.layout.strides()[0] as i64);
        BagSizes {
            len: bags.indices.layout.elements() as u64,
            count: bags.count as u64,
            rows: table.shape()[0] as i64,
            width: table.shape()[1] as i64,
            padding: bags.padding.map_or(-1, |row| row as i64),
            index_step: step(Some(&bags.indices)),
            offset_step: step(bags.offsets.as_ref()),
            weight_step: step(bags.weights.as_ref()),
            member_step: step(members),
        }
    }
}

/// `Steps` of the program.
#[repr(C)]
struct Steps([i64; 2]);

// SAFETY: words of 64 bits.
unsafe impl ByValue for Steps {}

impl Steps {
    fn of(view: &View<'_>) -> Steps {
        Steps([0, 1].map(|axis| view.layout.strides()[axis] as i64))
    }
}

/// `OwnedRows` of the program.
#[repr(C)]
struct OwnedRows {
    rows: u64,
    width: u32,
    pad: u32,
}

// SAFETY: a word of 64 bits, and two of 32.
unsafe impl ByValue for OwnedRows {}

/// Whether rows can be read and written in accesses of 16 bytes.
fn in_vectors(view: &View<'_>) -> bool {
    let lanes = 16 / view.dtype.size_bytes();
    let [row, column] = Steps::of(view).0;
    column == 1
        && view.shape()[1].is_multiple_of(lanes)
        && (row as usize).is_multiple_of(lanes)
        && address(view).addr().is_multiple_of(16)
}

pub(crate) fn sum(
    stream: &Stream,
    uses: &[Use<'_>],
    table: View<'_>,
    bags: &Bags<'_>,
    members: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    let size = BagSizes::of(&table, bags, members.as_ref());
    let (to, from) = (Steps::of(&out), Steps::of(&table));
    let vectors = in_vectors(&table) && in_vectors(&out);
    let (kernel, lanes) = match vectors {
        true => (by_dtype!(out.dtype, "embedding_bag_vector"), 16 / out.dtype.size_bytes()),
        false => (by_dtype!(out.dtype, "embedding_bag"), 1),
    };
    stream.submit("embedding_bag", uses, |queue| {
        let args = [
            operand(&out),
            operand(members.as_ref()),
            operand(&table),
            operand(&bags.indices),
            operand(bags.offsets.as_ref()),
            operand(bags.weights.as_ref()),
            size.arg(),
            to.arg(),
            from.arg(),
            Arg::Fault,
        ];
        let items = (out.layout.elements() / lanes) as u64;
        let grid = blocks(queue, items.div_ceil(u64::from(THREADS)), THREADS);
        // SAFETY: sizes and steps are those of the operands, whose layouts were checked; an index is checked before it is
        // followed, and the uses name all buffers.
        unsafe { queue.kernel(program_of(out.dtype), kernel, grid, &args) }
    })
}

pub(crate) fn grad(
    stream: &Stream,
    uses: &[Use<'_>],
    g: View<'_>,
    bags: &Bags<'_>,
    members: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    let size = BagSizes::of(&out, bags, members.as_ref());
    let (to, from) = (Steps::of(&out), Steps::of(&g));
    let [rows, columns] = [out.shape()[0], out.shape()[1]];
    stream.submit("embedding_bag_grad", uses, |queue| {
        let Owned { rows, width, grid } = Owned::of(queue, out.dtype, [rows, columns]);
        let owned = OwnedRows { rows: rows as u64, width: width as u32, pad: 0 };
        let args = [
            operand(&out),
            operand(&g),
            operand(members.as_ref()),
            operand(&bags.indices),
            operand(bags.offsets.as_ref()),
            operand(bags.weights.as_ref()),
            size.arg(),
            owned.arg(),
            to.arg(),
            from.arg(),
            Arg::Fault,
        ];
        let kernel = by_dtype!(out.dtype, "embedding_bag_grad");
        // SAFETY: as in `sum`.
        unsafe { queue.kernel(program_of(out.dtype), kernel, grid, &args) }
    })
}

pub(crate) fn weights_grad(
    stream: &Stream,
    uses: &[Use<'_>],
    g: View<'_>,
    table: View<'_>,
    bags: &Bags<'_>,
    out: View<'_>,
) -> Result<()> {
    let size = BagSizes::of(&table, bags, None);
    let (own, from) = (Steps::of(&g), Steps::of(&table));
    stream.submit("embedding_bag_weights_grad", uses, |queue| {
        let args = [
            operand(&out),
            operand(&g),
            operand(&table),
            operand(&bags.indices),
            operand(bags.offsets.as_ref()),
            size.arg(),
            Arg::I64(out.layout.strides()[0] as i64),
            own.arg(),
            from.arg(),
            Arg::Fault,
        ];
        let grid = blocks(queue, size.len.div_ceil(u64::from(THREADS / WARP)), THREADS);
        let kernel = by_dtype!(out.dtype, "embedding_bag_weights_grad");
        // SAFETY: as in `sum`.
        unsafe { queue.kernel(program_of(out.dtype), kernel, grid, &args) }
    })
}
