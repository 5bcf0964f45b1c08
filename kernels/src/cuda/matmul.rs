//! Matrix products: BLAS where it can express them, otherwise a plain kernel.

use device::cuda::{Arg, Grid, Queue, Workspace};
use device::{DType, Result};

use super::copy::enqueue_copy;
use super::elementwise;
use super::libraries::{self, Gemm};
use super::walk::{ByValue, MAX_Y, Walk};
use super::{Family, family, kernel_name, type_name};
use crate::command::Address;
use crate::loops::{LoopAxis, Loops};
use crate::matrices::{MatrixBatch, MatrixLayout};

pub(super) static PROGRAMS: Family = family!("matmul", NUMBERS, "matmul.cu");

/// Plain kernel, as in the program: side of a thread block's tile of C, and threads.
const SIDE: usize = 64;
const THREADS: u32 = 256;
/// Most BLAS calls for a batch without a constant stride; beyond that the plain kernel is used.
const MAX_CALLS: usize = 256;

/// Whether BLAS must transpose a matrix, and its leading dimension; requires one contiguous axis and no overlap.
fn leading(matrix: MatrixLayout) -> Option<(bool, usize)> {
    let stored = |m: MatrixLayout| {
        let dense = m.row == 1 || m.rows == 1;
        let ld = if m.columns == 1 { m.rows.max(1) } else { m.column as usize };
        (dense && ld >= m.rows.max(1) && i32::try_from(ld).is_ok()).then_some(ld)
    };
    stored(matrix).map(|ld| (false, ld)).or_else(|| stored(matrix.transposed()).map(|ld| (true, ld)))
}

/// A batch of matrix products.
pub(super) struct Product<'a> {
    pub(super) batch: &'a MatrixBatch,
    /// Type of A and B.
    pub(super) dtype: DType,
    /// Type of C: the same, or its compute type.
    pub(super) c_dtype: DType,
    pub(super) onto: Onto,
    /// Whether the positive parts of the sums are what is stored.
    pub(super) relu: bool,
    /// Whether factors in F32 are rounded to TF32.
    pub(super) tf32: bool,
    /// Memory for the library.
    pub(super) workspace: Workspace,
}

/// What products are added to (beta of GEMM).
#[derive(Clone, Copy)]
pub(super) enum Onto {
    Nothing,
    /// The previous contents of C.
    Held,
    /// A bias row for all rows of C, with its stride.
    Row(Address, isize),
}

/// `Product` of the program.
#[repr(C)]
struct Numbers {
    sizes: [u64; 3],
    steps: [i64; 6],
    accumulate: u32,
    relu: u32,
}

// SAFETY: nine words of 64 bits and two of 32, so `repr(C)` adds no padding.
unsafe impl ByValue for Numbers {}

/// Epilogue and precision of the products.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// Whether they are added to the previous contents of C.
    pub(crate) add: bool,
    /// Whether the positive parts of the sums are what is stored.
    pub(crate) relu: bool,
    /// Whether factors in F32 are rounded to TF32.
    pub(crate) tf32: bool,
}

/// Enqueues the products of a batch on (C, A, B), with an optional bias row and its stride.
pub(crate) fn products(
    queue: &Queue<'_>,
    dtype: DType,
    batch: &MatrixBatch,
    at: [Address; 3],
    bias: Option<(Address, isize)>,
    (How { add, relu, tf32 }, workspace): (How, Workspace),
) -> Result<()> {
    let held = if add { Onto::Held } else { Onto::Nothing };
    let onto = bias.map_or(held, |(row, step)| Onto::Row(row, step));
    // SAFETY: the matrices are those of the operands, and the row is as long as C is wide.
    unsafe { Product { batch, dtype, c_dtype: dtype, onto, relu, tf32, workspace }.enqueue(queue, at) }
}

impl Product<'_> {
    /// # Safety
    /// The matrices of the batch lie within buffers that the command writes and reads, at the addresses of C, A and B, and so
    /// does the row.
    pub(super) unsafe fn enqueue(&self, queue: &Queue<'_>, at: [Address; 3]) -> Result<()> {
        // The largest axis is the batch of a call; the others are looped over here.
        let axes = Loops::from_axes(self.batch.axes.iter().copied()).axes;
        let largest = (0..axes.len()).max_by_key(|&i| axes[i].size);
        let inner = largest.map_or(LoopAxis { size: 1, strides: [0; 3] }, |i| axes[i]);
        let others = axes.iter().enumerate().filter(|&(i, _)| Some(i) != largest);
        let calls = Loops::from_axes(others.map(|(_, axis)| *axis));
        let Some(gemm) = self.gemm(&inner).filter(|_| calls.elements <= MAX_CALLS) else {
            // SAFETY: the caller promises that C, for all of `axes`, and the row lie in buffers that the command
            // writes and reads.
            unsafe { self.start(queue, &axes, at[0])? };
            if self.accumulates() && self.batch.a.columns == 0 && !self.relu {
                return Ok(());
            }
            // SAFETY: the caller promises that all matrices of `axes` lie in buffers that the command writes and
            // reads.
            return unsafe { self.enqueue_plain(queue, &axes, at) };
        };
        let sizes = [self.c_dtype, self.dtype, self.dtype].map(DType::size_bytes);
        let mut positive = true;
        for index in 0..calls.elements {
            let offsets = calls.offsets(index);
            let at: [Address; 3] = std::array::from_fn(|k| at[k].offset(offsets[k], sizes[k]));
            // SAFETY: `offsets` are those of the batch's other axes, so the matrices at `at` are some that the caller
            // vouches for.
            positive &= unsafe { self.enqueue_call(queue, &gemm, &inner, at)? };
        }
        if self.relu && !positive {
            let each = self.batch.c.rows * self.batch.c.columns;
            let elements = axes.iter().map(|axis| axis.size).product::<usize>() * each;
            return elementwise::relu(queue, self.c_dtype, at[0], elements);
        }
        Ok(())
    }

    /// Enqueues the products of a batch along one axis by BLAS or by the plain kernel. Returns whether a requested ReLU was applied.
    ///
    /// # Safety
    /// As for [`enqueue`](Self::enqueue).
    unsafe fn enqueue_call(
        &self,
        queue: &Queue<'_>,
        gemm: &Gemm,
        inner: &LoopAxis<3>,
        at: [Address; 3],
    ) -> Result<bool> {
        let [c, a, b] = at.map(|address| address.0);
        let (a, b) = if self.row_major() { (b, a) } else { (a, b) };
        let ways = if self.relu { &[true, false][..] } else { &[false] };
        let bias = match self.onto {
            Onto::Row(row, step) => {
                let fits = self.row_major() && (step == 1 || self.batch.c.columns == 1);
                // For 16-bit results the library would round twice: before and after adding the bias.
                Some(row.0).filter(|_| fits && !self.c_dtype.is_half())
            }
            Onto::Nothing | Onto::Held => None,
        };
        // SAFETY: the caller promises that the matrices along `inner` and the row lie in buffers that the command
        // writes and reads. `gemm` describes them, and the workspace has the size that its algorithm asked for.
        unsafe {
            for (&relu, bias) in ways.iter().filter_map(|relu| Some((relu, bias?))) {
                let gemm = Gemm { bias: true, relu, ..*gemm };
                if libraries::gemm(queue, &gemm, false, [a, b, c, bias], self.workspace)? {
                    return Ok(relu);
                }
            }
            self.start(queue, &[*inner], at[0])?;
            for &relu in ways {
                let (gemm, at) = (Gemm { relu, ..*gemm }, [a, b, c, std::ptr::null_mut()]);
                if libraries::gemm(queue, &gemm, self.accumulates(), at, self.workspace)? {
                    return Ok(relu);
                }
            }
            self.enqueue_plain(queue, &[*inner], at)?;
        }
        Ok(true)
    }

    /// Whether products are added to the contents of C, after [`start`](Self::start).
    fn accumulates(&self) -> bool {
        !matches!(self.onto, Onto::Nothing)
    }

    /// Copies the bias row, if there is one, to all rows of the matrices C of these axes.
    ///
    /// # Safety
    /// As for [`enqueue`](Self::enqueue).
    unsafe fn start(&self, queue: &Queue<'_>, axes: &[LoopAxis<3>], at: Address) -> Result<()> {
        let (Onto::Row(row, step), c) = (self.onto, self.batch.c) else { return Ok(()) };
        let leading = axes.iter().map(|axis| LoopAxis { size: axis.size, strides: [axis.strides[0], 0] });
        let loops = Loops::from_axes(leading.chain([
            LoopAxis { size: c.rows, strides: [c.row, 0] },
            LoopAxis { size: c.columns, strides: [c.column, step] },
        ]));
        // SAFETY: the loops go over all of C and repeat the row, which is as long as C is wide.
        unsafe { enqueue_copy(queue, self.c_dtype.size_bytes(), &loops, [at, row]) }
    }

    /// Whether the transposed product is computed, since BLAS is column-major.
    fn row_major(&self) -> bool {
        self.batch.c.column == 1 || self.batch.c.columns == 1
    }

    /// The BLAS call for a batch along one axis, without addresses; `None` if BLAS cannot express it.
    fn gemm(&self, batch: &LoopAxis<3>) -> Option<Gemm> {
        // C' = B' A' for a row-major C.
        let MatrixBatch { c, a, b, .. } = *self.batch;
        let (c, a, b, order) = if self.row_major() {
            (c.transposed(), b.transposed(), a.transposed(), [2, 1, 0])
        } else {
            (c, a, b, [1, 2, 0])
        };
        let step = |k: usize| if batch.size > 1 { batch.strides[k] as i64 } else { 0 };
        let (false, ldc) = leading(c)? else { return None };
        let ((transa, lda), (transb, ldb)) = (leading(a)?, leading(b)?);
        let sizes = [c.rows, c.columns, a.columns];
        if !self.dtype.is_float()
            || sizes[2] == 0
            || sizes.iter().chain([&batch.size]).any(|&size| i32::try_from(size).is_err())
        {
            return None;
        }
        Some(Gemm {
            dtype: self.dtype,
            c_dtype: self.c_dtype,
            tf32: self.tf32 && self.dtype == DType::F32,
            transposed: [transa, transb],
            sizes,
            leading: [lda, ldb, ldc],
            steps: order.map(step),
            batch: batch.size,
            bias: false,
            relu: false,
        })
    }

    /// # Safety
    /// As for [`enqueue`](Self::enqueue).
    unsafe fn enqueue_plain(&self, queue: &Queue<'_>, axes: &[LoopAxis<3>], at: [Address; 3]) -> Result<()> {
        let MatrixBatch { c, a, b, .. } = self.batch;
        let batch = Loops::from_axes(axes.iter().copied());
        let walk = Walk::of(queue.op(), &batch)?;
        let numbers = Numbers {
            sizes: [c.rows, c.columns, a.columns].map(|size| size as u64),
            steps: [a.row, a.column, b.row, b.column, c.row, c.column].map(|step| step as i64),
            accumulate: u32::from(self.accumulates()),
            relu: u32::from(self.relu),
        };
        let tiles = c.rows.div_ceil(SIDE) * c.columns.div_ceil(SIDE);
        let grid =
            Grid { blocks: [tiles as u32, batch.elements.min(MAX_Y) as u32, 1], ..Grid::linear(1, THREADS) };
        let [c, a, b] = at.map(Arg::from);
        // SAFETY: the kernel takes these arguments, and the caller promises that all matrices of `axes` lie in
        // buffers that the command writes and reads.
        unsafe {
            let args = [c, a, b, numbers.arg(), walk.arg()];
            let kernel = kernel_name(&["matmul"], type_name(self.c_dtype, false));
            queue.kernel(PROGRAMS.of(self.dtype), &kernel, grid, &args)
        }
    }
}
