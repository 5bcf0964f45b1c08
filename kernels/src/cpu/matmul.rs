//! Batches of matrix products, and how they are split over threads.

use super::inlined;
use super::lanes::{Lanes, simd_for};
use super::number::Number;
use super::product::{Matrix, Product};
use crate::layout::{Dst, Loops, Src};
use crate::matrices::{MatrixBatch, MatrixLayout};
use crate::par::{Workers, for_chunks, for_range, threads};

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

/// Makes all products of a batch. Their sums are added to a bias, of one element for each column and with a step between
/// them, or else, if `add`, to C.
///
/// # Safety
/// The matrices at `c`, `a` and `b`, and the bias, can be read, and those at `c` be written; nobody else uses them
/// meanwhile.
pub(crate) unsafe fn products<T: Lanes>(
    batch: &MatrixBatch,
    workers: &Workers,
    c: Dst<T>,
    [a, b]: [Src<T>; 2],
    bias: Option<(Src<T>, isize)>,
    add: bool,
) {
    let (m, n, k) = (batch.c.rows, batch.c.columns, batch.a.columns);
    let matrix = |ptr: *mut T, layout: &MatrixLayout| Matrix { ptr, row: layout.row, col: layout.column };
    let (arch, len) = (pulp::Arch::new(), batch.len());
    if len == 0 {
        return;
    }
    let axes = Loops::from_axes(batch.axes.iter().copied());
    // The product at an index of the leading axes, counted in row-major order.
    let product = |index: usize| {
        let [at_c, at_a, at_b] = axes.offsets(index);
        let c = matrix(c.at(at_c), &batch.c);
        let (a, b) = (matrix(a.at(at_a).cast_mut(), &batch.a), matrix(b.at(at_b).cast_mut(), &batch.b));
        let bias = bias.map(|(row, step)| Matrix { ptr: row.0.cast_mut(), row: 0, col: step });
        Product { m, n, k, a, b, c, init: bias.or(add.then_some(c)) }
    };
    let threads = threads(workers);
    if threads == 1 {
        for index in 0..len {
            // SAFETY: `index` is below the length of the batch, so the matrices are some that the caller vouches for.
            unsafe { product(index).run(arch) }
        }
        return;
    }
    // Some parts more than threads, since a helper may come late. Where the parts are cut does not show in the result.
    let parts = (2 * threads).div_ceil(len);
    let (rows, cols) = if product(0).splits_by_rows() {
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
            unsafe { product(index / parts).part(i, rows.min(m - i), j, cols.min(n - j)).run(arch) }
        }
    });
}

/// Makes all products of a batch of integers, row by row. Sums wrap around, so their order does not show.
///
/// # Safety
/// As for [`products`].
pub(crate) unsafe fn integer_products<T: Number>(
    batch: &MatrixBatch,
    workers: &Workers,
    c: Dst<T>,
    [a, b]: [Src<T>; 2],
    add: bool,
) {
    let (rows, axes) = (batch.c.rows, Loops::from_axes(batch.axes.iter().copied()));
    let all = batch.len() * rows;
    for_range(workers, all, all.div_ceil(4 * threads(workers)), &|range| {
        for index in range {
            let [at_c, at_a, at_b] = axes.offsets(index / rows);
            let row = (index % rows) as isize;
            for j in 0..batch.c.columns as isize {
                let c = c.at(at_c + row * batch.c.row + j * batch.c.column);
                // SAFETY: `index / rows` is below the length of the batch, and the row and columns are those of its matrices,
                // which the caller vouches for; rows of C are disjoint.
                unsafe {
                    let mut sum = if add { *c } else { T::ZERO };
                    for p in 0..batch.a.columns as isize {
                        let a = *a.at(at_a + row * batch.a.row + p * batch.a.column);
                        sum = sum.add(a.mul(*b.at(at_b + p * batch.b.row + j * batch.b.column)));
                    }
                    *c = sum;
                }
            }
        }
    });
}
