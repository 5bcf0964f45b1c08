//! Batches of matrix products, and how they are split over threads.

use smallvec::SmallVec;

use super::lanes::Lanes;
use super::product::Product;
use crate::par::{Workers, for_chunks, threads};

/// One of the leading axes: its size, and the steps along it in both operands and the output.
#[derive(Clone, Copy)]
pub(crate) struct BatchAxis {
    pub(crate) size: usize,
    pub(crate) a: isize,
    pub(crate) b: isize,
    pub(crate) c: isize,
}

/// The same product for all indices of the leading axes.
pub(crate) struct Batch<T> {
    pub(crate) product: Product<T>,
    pub(crate) axes: SmallVec<[BatchAxis; 2]>,
}

impl<T: Lanes> Batch<T> {
    /// Turns leading axes that only continue the rows of A and C, for one and the same B, into rows.
    pub(crate) fn fold(&mut self) {
        while let Some(axis) = self.axes.last() {
            let Product { m, a, c, .. } = self.product;
            let rows = m as isize;
            let continues = axis.b == 0 && axis.a == rows * a.row && axis.c == rows * c.row;
            if !(axis.size == 1 || continues) {
                return;
            }
            self.product.m *= axis.size;
            self.axes.pop();
        }
    }

    fn len(&self) -> usize {
        self.axes.iter().map(|axis| axis.size).product()
    }

    // The product at an index of the leading axes, counted in row-major order.
    fn at(&self, mut index: usize) -> Product<T> {
        let mut product = self.product;
        for axis in self.axes.iter().rev() {
            let i = (index % axis.size) as isize;
            index /= axis.size;
            product.a.ptr = product.a.ptr.wrapping_offset(i * axis.a);
            product.b.ptr = product.b.ptr.wrapping_offset(i * axis.b);
            product.c.ptr = product.c.ptr.wrapping_offset(i * axis.c);
        }
        product
    }
}

/// Runs all products of a batch.
pub(crate) fn run<T: Lanes>(batch: &Batch<T>, workers: &Workers) {
    let arch = pulp::Arch::new();
    let Product { m, n, .. } = batch.product;
    let len = batch.len();
    let threads = threads(workers);
    if threads == 1 {
        for index in 0..len {
            // SAFETY: the launcher checked that the layouts lie within their buffers, and the launch orders this
            // command with all others that use them.
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
            // SAFETY: as above; the parts of C are disjoint.
            unsafe { batch.at(index / parts).part(i, rows.min(m - i), j, cols.min(n - j)).run(arch) }
        }
    });
}
