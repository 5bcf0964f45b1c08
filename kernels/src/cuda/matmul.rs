//! Products of matrices: BLAS for operands that it can express, a plain kernel for the others.

use device::cuda::{Arg, Gemm, Grid, Queue};
use device::{DType, Result, Stream, Use};
use smallvec::SmallVec;

use super::copy::{enqueue_copy, enqueue_zeros};
use super::walk::{ByValue, Walk, address};
use super::{by_dtype, float_programs};
use crate::layout::{LoopAxis, Loops, View};
use crate::matmul::Accumulate;

float_programs!("matmul", "matmul.cu");

/// Side of the tile of C that a block of the plain kernel computes, and its threads; as in the program.
const SIDE: usize = 64;
const THREADS: u32 = 256;
/// Blocks along y that every device has.
const MAX_Y: usize = 65_535;
/// Calls of BLAS for batches that one step does not describe, beyond which the plain kernel takes over.
const MAX_CALLS: usize = 256;

/// Where the elements of a matrix lie.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row: isize,
    pub(super) column: isize,
}

impl Matrix {
    /// The last two axes of a view.
    fn of(view: &View<'_>) -> Matrix {
        let (shape, strides) = (view.shape(), view.layout.strides());
        let r = shape.len() - 2;
        Matrix { rows: shape[r], columns: shape[r + 1], row: strides[r], column: strides[r + 1] }
    }

    pub(super) fn transposed(self) -> Matrix {
        Matrix { rows: self.columns, columns: self.rows, row: self.column, column: self.row }
    }

    /// Whether BLAS has to transpose, and the leading dimension: one axis without gaps, columns that do not overlap.
    fn leading(self) -> Option<(bool, usize)> {
        let stored = |m: Matrix| {
            let dense = m.row == 1 || m.rows == 1;
            let ld = if m.columns == 1 { m.rows.max(1) } else { m.column as usize };
            (dense && ld >= m.rows.max(1) && i32::try_from(ld).is_ok()).then_some(ld)
        };
        stored(self).map(|ld| (false, ld)).or_else(|| stored(self.transposed()).map(|ld| (true, ld)))
    }
}

/// A product and its batches, whose strides are those of `(c, a, b)`.
pub(super) struct Product {
    /// Of A and B.
    pub(super) dtype: DType,
    /// Of C: the same, or what that is computed in.
    pub(super) c_dtype: DType,
    pub(super) c: Matrix,
    pub(super) a: Matrix,
    pub(super) b: Matrix,
    pub(super) batch: SmallVec<[LoopAxis<3>; 4]>,
    pub(super) accumulate: bool,
}

/// `Product` of the program.
#[repr(C)]
struct Numbers {
    sizes: [u64; 3],
    steps: [i64; 6],
    accumulate: u32,
    pad: u32,
}

// SAFETY: words of 64 bits, and two of 32.
unsafe impl ByValue for Numbers {}

/// `out = lhs rhs [+ bias]` or `out + lhs rhs`, for operands that the launcher has checked. With a bias, `rhs` may lack the
/// leading axes.
pub(crate) fn matmul(
    stream: &Stream,
    op: &'static str,
    lhs: View<'_>,
    rhs: View<'_>,
    bias: Option<View<'_>>,
    out: View<'_>,
    accumulate: Accumulate,
) -> Result<()> {
    if out.layout.elements() == 0 {
        return Ok(());
    }
    let leading = out.layout.rank() - 2;
    let shared = rhs.layout.rank() == 2;
    let (mut a, b, mut c) = (Matrix::of(&lhs), Matrix::of(&rhs), Matrix::of(&out));
    let mut axes: SmallVec<[LoopAxis<3>; 4]> = (0..leading)
        .map(|i| {
            let step = |view: &View<'_>| view.layout.strides()[i];
            LoopAxis {
                size: out.shape()[i],
                strides: [step(&out), step(&lhs), if shared { 0 } else { step(&rhs) }],
            }
        })
        .collect();
    // Leading axes that only continue the rows of A and C, for one and the same B, are rows.
    while let Some(&LoopAxis { size, strides }) = axes.last() {
        let rows = c.rows as isize;
        if !(size == 1 || strides == [rows * c.row, rows * a.row, 0]) {
            break;
        }
        a.rows *= size;
        c.rows *= size;
        axes.pop();
    }
    let product = Product {
        dtype: out.dtype,
        c_dtype: out.dtype,
        c,
        a,
        b,
        batch: Loops::from_axes(axes).axes,
        accumulate: bias.is_some() || accumulate == Accumulate::Add,
    };
    let mut uses: SmallVec<[Use<'_>; 4]> =
        SmallVec::from_slice(&[Use::write(out.buffer), Use::read(lhs.buffer), Use::read(rhs.buffer)]);
    uses.extend(bias.iter().map(|bias| Use::read(bias.buffer)));
    stream.submit(op, &uses, |queue| {
        let size = out.dtype.size_bytes();
        if let Some(bias) = &bias {
            let last = out.layout.rank() - 1;
            let rows = Loops::from_axes((0..=last).map(|i| {
                let step = if i == last { bias.layout.strides()[0] } else { 0 };
                LoopAxis { size: out.shape()[i], strides: [out.layout.strides()[i], step] }
            }));
            // SAFETY: the loops go over all of `out` and repeat the bias; both were checked, and the uses name them.
            unsafe { enqueue_copy(queue, op, size, &rows, (address(&out), address(bias)))? };
        }
        let at = [address(&out), address(&lhs), address(&rhs)];
        if product.a.columns > 0 {
            // SAFETY: the matrices are those of the operands, whose layouts were checked, and the uses name them.
            return unsafe { product.enqueue(queue, op, at) };
        }
        if product.accumulate {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { enqueue_zeros(queue, size, &Loops::in_memory_order([out.layout]), at[0]) }
    })
}

impl Product {
    /// # Safety
    /// The matrices and batches stay within buffers that the command writes and reads, at the addresses of C, A and B.
    pub(super) unsafe fn enqueue(&self, queue: &Queue<'_>, op: &'static str, at: [*mut u8; 3]) -> Result<()> {
        // The largest axis becomes the batch of one call, the others are gone through here.
        let largest = (0..self.batch.len()).max_by_key(|&i| self.batch[i].size);
        let inner = largest.map_or(LoopAxis { size: 1, strides: [0; 3] }, |i| self.batch[i]);
        let others = self.batch.iter().enumerate().filter(|&(i, _)| Some(i) != largest);
        let calls = Loops::from_axes(others.map(|(_, axis)| *axis));
        let Some(gemm) = self.gemm(&inner).filter(|_| calls.elements <= MAX_CALLS) else {
            // SAFETY: the caller's promise.
            return unsafe { self.enqueue_plain(queue, op, at) };
        };
        let sizes = [self.c_dtype, self.dtype, self.dtype].map(|dtype| dtype.size_bytes() as isize);
        for index in 0..calls.elements {
            let offsets = calls.offsets(index);
            let [c, a, b]: [*mut u8; 3] =
                std::array::from_fn(|k| at[k].wrapping_offset(offsets[k] * sizes[k]));
            let (a, b) = if self.row_major() { (b, a) } else { (a, b) };
            // SAFETY: the caller's promise.
            unsafe { queue.gemm(&Gemm { a, b, c, ..gemm })? };
        }
        Ok(())
    }

    /// Whether BLAS, which is column-major, is asked for the transposed product.
    fn row_major(&self) -> bool {
        self.c.column == 1 || self.c.columns == 1
    }

    /// The call for a batch along one axis, without addresses; `None` if BLAS cannot express it.
    fn gemm(&self, batch: &LoopAxis<3>) -> Option<Gemm> {
        // C' = B' A' for a row-major C.
        let (c, a, b, order) = if self.row_major() {
            (self.c.transposed(), self.b.transposed(), self.a.transposed(), [0, 2, 1])
        } else {
            (self.c, self.a, self.b, [0, 1, 2])
        };
        let [stride_c, stride_a, stride_b] = order.map(|k| batch.strides[k] as i64);
        let (false, ldc) = c.leading()? else { return None };
        let ((transa, lda), (transb, ldb)) = (a.leading()?, b.leading()?);
        let (m, n, k) = (c.rows, c.columns, a.columns);
        if [m, n, k, batch.size].iter().any(|&size| i32::try_from(size).is_err()) {
            return None;
        }
        let none = std::ptr::null_mut();
        Some(Gemm {
            dtype: self.dtype,
            c_dtype: self.c_dtype,
            transa,
            transb,
            m,
            n,
            k,
            a: none,
            lda,
            stride_a,
            b: none,
            ldb,
            stride_b,
            accumulate: self.accumulate,
            c: none,
            ldc,
            stride_c,
            batch: batch.size,
        })
    }

    /// # Safety
    /// As for [`enqueue`](Self::enqueue).
    unsafe fn enqueue_plain(&self, queue: &Queue<'_>, op: &'static str, at: [*mut u8; 3]) -> Result<()> {
        let batch = Loops::from_axes(self.batch.iter().copied());
        let walk = Walk::of(op, &batch)?;
        let Product { c, a, b, .. } = self;
        let numbers = Numbers {
            sizes: [c.rows, c.columns, a.columns].map(|size| size as u64),
            steps: [a.row, a.column, b.row, b.column, c.row, c.column].map(|step| step as i64),
            accumulate: u32::from(self.accumulate),
            pad: 0,
        };
        let tiles = c.rows.div_ceil(SIDE) * c.columns.div_ceil(SIDE);
        let grid =
            Grid { blocks: [tiles as u32, batch.elements.min(MAX_Y) as u32, 1], ..Grid::linear(1, THREADS) };
        let [c, a, b] = at.map(|ptr| Arg::Ptr(ptr));
        // SAFETY: the caller's promise.
        unsafe {
            let args = [c, a, b, numbers.arg(), walk.arg()];
            queue.kernel(program_of(self.dtype), by_dtype!(self.c_dtype, "matmul"), grid, &args)
        }
    }
}
