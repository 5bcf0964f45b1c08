//! Reductions.

use device::cuda::{Arg, Program, Queue};
use device::{DType, Result};
use smallvec::SmallVec;

use super::rows::{PACK, RowGroup, RowThreads, Units};
use super::walk::{ByValue, Walk};
use super::{Family, family, kernel_name, type_name};
use crate::command::Address;
use crate::reduction::{Axes, Reduction};

pub(super) static PROGRAMS: Family =
    family!("reduce", NUMBERS, "rows.cuh", "columns.cuh", "reduce.cuh", "reduce.cu");

/// Thread group and split of rows for a reduction.
fn threads(axes: &Axes) -> (RowThreads, Units) {
    let (along, across) = (axes.reduced.inner().strides[0], axes.kept.inner().strides[0]);
    RowThreads::folding(axes.kept.elements, axes.reduced.elements, along, across)
}

/// Bytes of the workspace.
pub(crate) fn workspace(axes: &Axes) -> usize {
    let columns = Columns::of(axes).map_or(0, |columns| columns.cut.workspace(axes.kept.elements));
    threads(axes).1.workspace(axes.kept.elements).max(columns)
}

/// Reduction of contiguous columns, several per thread.
struct Columns {
    /// Stride of rows in elements.
    along: isize,
    cut: Units,
}

impl Columns {
    /// Rows and columns from which on this path is faster.
    const ROWS: usize = 1024;
    const COLUMNS: usize = 2048;

    /// `None` for other axes and for smaller sizes.
    fn of(axes: &Axes) -> Option<Columns> {
        let ([reduced], [kept]) = (&axes.reduced.axes[..], &axes.kept.axes[..]) else { return None };
        let (columns, along) = (axes.kept.elements, reduced.strides[0]);
        let packed = columns.is_multiple_of(PACK) && along % PACK as isize == 0;
        let large = columns >= Columns::COLUMNS && axes.reduced.elements >= Columns::ROWS;
        (packed && large && kept.strides[0] == 1)
            .then(|| Columns { along, cut: Units::beside(columns, axes.reduced.elements) })
    }

    /// Enqueues a reduction.
    ///
    /// # Safety
    /// As for [`Sharing::enqueue`]; `x` is aligned to packs.
    unsafe fn enqueue(
        &self,
        queue: &Queue<'_>,
        (op, dtype): (&str, DType),
        axes: &Axes,
        [x, out, states]: [Arg<'_>; 3],
    ) -> Result<()> {
        let (cut, grid) = (self.cut, self.cut.grid_beside(axes.kept.elements));
        let [columns, all] = [axes.kept.elements, axes.reduced.elements].map(|count| Arg::U64(count as u64));
        let along = Arg::I64(self.along as i64);
        let args = [x, out, states, columns, all, along, cut.arg(), Arg::F64(0.0)];
        // SAFETY: the kernel takes these arguments, and the caller promises that `x`, the output and the workspace
        // have what the axes and units ask for.
        unsafe { PROGRAMS.kernel(queue, &[op, "columns"], dtype, grid, &args)? };
        // SAFETY: the first kernel has written the states, and the caller promises room for all outputs.
        unsafe { join(queue, (op, dtype), (cut, axes, 0.0), [out, states]) }
    }
}

/// Enqueues the kernel that combines the units of each output, if rows are split.
///
/// # Safety
/// The workspace has the states of all units, and the output has room for all kept elements.
unsafe fn join(
    queue: &Queue<'_>,
    (op, dtype): (&str, DType),
    (cut, axes, divisor): (Units, &Axes, f64),
    [out, states]: [Arg<'_>; 2],
) -> Result<()> {
    if cut.units <= 1 {
        return Ok(());
    }
    let (grid, lanes) = cut.join(axes.kept.elements);
    let (rows, all) = (axes.kept.elements as i64, axes.reduced.elements as i64);
    let args = [out, states, Arg::I64(rows), Arg::I64(all), cut.arg(), Arg::U32(lanes), Arg::F64(divisor)];
    // SAFETY: the kernel takes these arguments; the rest is the caller's promise.
    unsafe { PROGRAMS.kernel(queue, &[op, "join"], dtype, grid, &args) }
}

/// A reduction with its thread group and split.
pub(super) struct Sharing<'a> {
    how: Reduction,
    dtype: DType,
    axes: &'a Axes,
    pub(super) threads: RowThreads,
    cut: Units,
    divisor: f64,
}

impl<'a> Sharing<'a> {
    pub(super) fn of(how: Reduction, dtype: DType, axes: &'a Axes) -> Sharing<'a> {
        let (mut threads, cut) = threads(axes);
        // As the kernels' launch bounds allow.
        if threads.group == RowGroup::Column && dtype != DType::F64 {
            threads.warps *= 2;
        }
        let divisor = match how {
            Reduction::Var { correction, .. } => (axes.reduced.elements as f64 - correction).max(0.0),
            _ => 0.0,
        };
        Sharing { how, dtype, axes, threads, cut, divisor }
    }

    /// Enqueues a kernel that takes the arguments `given` and those common to all reductions; then the one that combines units. `from` lists the
    /// operands that are read along the axes: address and bytes of an element.
    ///
    /// # Safety
    /// The kernel takes these arguments and reads what it reads at the elements of the axes; the output has room for all kept
    /// elements, and the workspace for the states of all units.
    pub(super) unsafe fn enqueue(
        &self,
        queue: &Queue<'_>,
        (program, kernel): (&'static Program, &str),
        given: &[Arg<'_>],
        from: &[(*const u8, usize)],
        [out, states]: [Arg<'_>; 2],
    ) -> Result<()> {
        let &Sharing { axes, threads, cut, dtype, divisor, .. } = self;
        let packed = axes.kept.axes.iter().all(|axis| axis.strides[0] % PACK as isize == 0);
        let lanes = if packed { PACK } else { 1 };
        let mut reduced = Walk::of(queue.op(), &axes.reduced)?;
        let is_packed = |&one: &(*const u8, usize)| reduced.vectors(lanes, [one]).is_vector();
        if from.iter().all(is_packed) {
            reduced = reduced.vectors(lanes, [(std::ptr::null(), 1)]);
        }
        let kept = Walk::of(queue.op(), &axes.kept)?;
        let grid = threads.grid(cut);
        let mut args: SmallVec<[Arg<'_>; 24]> = SmallVec::from_slice(given);
        args.extend([out, states, kept.arg(), reduced.arg(), cut.arg()]);
        args.extend([Arg::U32(threads.lanes), Arg::F64(divisor)]);
        // SAFETY: the caller promises that the kernel takes what is given and what all reductions do, and that
        // inputs, output and workspace have what the axes and units ask for.
        unsafe { queue.kernel(program, kernel, grid, &args)? };
        // SAFETY: the first kernel has written the states, and the caller promises room for all outputs.
        unsafe { join(queue, (self.how.name(), dtype), (cut, axes, divisor), [out, states]) }
    }
}

/// On `(output, input)`.
pub(crate) fn reduce(
    queue: &Queue<'_>,
    dtype: DType,
    how: Reduction,
    axes: &Axes,
    [out, x]: [Address; 2],
    workspace: Option<Address>,
) -> Result<()> {
    let aligned = x.0.addr().is_multiple_of(PACK * dtype.size_bytes());
    if let (Reduction::Join(op), Some(columns), true) = (how, Columns::of(axes), aligned) {
        let operands = [x.into(), out.into(), workspace.into()];
        // SAFETY: the axes are those of the input, the output has room for all kept elements, and the workspace for all units.
        return unsafe { columns.enqueue(queue, (op.name(), dtype), axes, operands) };
    }
    let sharing = Sharing::of(how, dtype, axes);
    let kernel = kernel_name(&[how.name(), sharing.threads.group.name()], type_name(dtype, false));
    let kernel = (PROGRAMS.of(dtype), &*kernel);
    let from = [(x.0.cast_const(), dtype.size_bytes())];
    // SAFETY: the kernels take these arguments; the axes are those of the input, the output has room for all kept elements, and
    // the workspace for the states of all units.
    unsafe { sharing.enqueue(queue, kernel, &[x.into()], &from, [out.into(), workspace.into()]) }
}
