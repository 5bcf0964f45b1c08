//! Batches of matrix products, and how they are split over threads.

use super::inlined;
use super::lanes::{Lanes, simd_for};
use super::product::{Init, Matrix, Product};
use crate::layout::{Dst, Src};
use crate::matrices::{BatchAxes, MatrixBatch, MatrixLayout};
use crate::par::{Workers, for_chunks, threads};

/// What the sums of a product are added to.
pub(crate) fn initial<T>(bias: Option<(Src<T>, isize)>, add: bool) -> Init<T> {
    match bias {
        Some((row, step)) => Init::Row(row.0, step),
        None if add => Init::Existing,
        None => Init::Zero,
    }
}

/// `c = max(c, 0)` of `len` elements.
///
/// # Safety
/// They can be read and written, and nobody else uses them meanwhile.
pub(crate) unsafe fn positive_parts<T: Lanes>(workers: &Workers, len: usize, c: Dst<T>) {
    for_chunks(workers, len, 1 << 13, &|_, range| {
        // SAFETY: the caller promises `len` elements that nobody else uses, and the chunks are disjoint ranges of
        // them.
        let part = unsafe { std::slice::from_raw_parts_mut(c.at(range.start as isize), range.len()) };
        simd_for::<T, _>(inlined!(|| part.iter_mut().for_each(inlined!(|x: &mut T| *x = x.relu()))));
    });
}

/// The same product for all indices of the leading axes.
struct Batch<'a, T> {
    product: Product<T>,
    axes: &'a BatchAxes,
}

impl<T: Lanes> Batch<'_, T> {
    // The product at an index of the leading axes, counted in row-major order.
    fn at(&self, mut index: usize) -> Product<T> {
        let mut product = self.product;
        for axis in self.axes.iter().rev() {
            let i = (index % axis.size) as isize;
            index /= axis.size;
            let [c, a, b] = axis.strides.map(|stride| i * stride);
            product.c.ptr = product.c.ptr.wrapping_offset(c);
            product.a.ptr = product.a.ptr.wrapping_offset(a);
            product.b.ptr = product.b.ptr.wrapping_offset(b);
        }
        product
    }
}

/// Makes all products of a batch.
///
/// # Safety
/// The matrices at `c`, `a` and `b`, and the row that `init` names, can be read, and those at `c` be written; nobody else
/// uses them meanwhile.
pub(crate) unsafe fn products<T: Lanes>(
    batch: &MatrixBatch,
    workers: &Workers,
    c: Dst<T>,
    [a, b]: [Src<T>; 2],
    init: Init<T>,
) {
    let (m, n, k) = (batch.c.rows, batch.c.columns, batch.a.columns);
    let matrix = |ptr: *mut T, layout: &MatrixLayout| Matrix { ptr, row: layout.row, col: layout.column };
    let (a, b) = (matrix(a.0.cast_mut(), &batch.a), matrix(b.0.cast_mut(), &batch.b));
    let product = Product { m, n, k, a, b, c: matrix(c.0, &batch.c), init };
    let (arch, len) = (pulp::Arch::new(), batch.len());
    let batch = Batch { product, axes: &batch.axes };
    let threads = threads(workers);
    if threads == 1 {
        for index in 0..len {
            // SAFETY: `index` is below the length of the batch, so the matrices are some that the caller vouches for.
            unsafe { batch.at(index).run(arch) }
        }
        return;
    }
    // Some parts more than threads, since a helper may come late. Where the parts are cut does not show in the result.
    let parts = (2 * threads).div_ceil(len.max(1));
    let (rows, cols) = if batch.product.splits_by_rows() {
        (m.div_ceil(parts).next_multiple_of(12), n)
    } else {
        (m, n.div_ceil(parts).next_multiple_of(32))
    };
    let (down, across) = (m.div_ceil(rows), n.div_ceil(cols));
    let parts = down * across;
    for_chunks(workers, len * parts, len.div_ceil(4 * threads), &|_, range| {
        for index in range {
            let (i, j) = (index % parts / across * rows, index % parts % across * cols);
            // SAFETY: `index / parts` is below the length of the batch, so the matrices are some that the caller
            // vouches for; the parts of C are disjoint.
            unsafe { batch.at(index / parts).part(i, rows.min(m - i), j, cols.min(n - j)).run(arch) }
        }
    });
}
