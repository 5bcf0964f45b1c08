//! Normalization of rows and its gradients.
//!
//! A row is read twice from the cache for its mean and its variance, and once more to be written; in a gradient, the row's
//! two sums and its part of the weights' gradients are taken in one pass. Gradients of weights are summed over blocks of
//! rows first, and then over the blocks, in order.

use super::lanes::{Lanes, for_items, join_tree, map, simd_for, with_scratch};
use crate::layout::{Dst, Src};
use crate::norms::NormRows;
use crate::par::{Workers, for_chunks};

/// Independent parts of a sum, whose elements are worked on together.
const PARTS: usize = 32;
/// Elements that are summed before sums are added up.
const BLOCK: usize = 4096;
/// Blocks of rows whose parts of a weight's gradient are summed by themselves, at most.
const ROW_BLOCKS: usize = 64;

/// Elements of a row that are worked on together: values of their own, so that the compiler need not ask what overlaps.
type Block<T> = [T; PARTS];

/// `count` elements, and zeros behind them.
///
/// # Safety
/// The elements can be read.
#[inline(always)]
unsafe fn load<T: Lanes>(from: *const T, count: usize) -> Block<T> {
    if count == PARTS {
        // SAFETY: a block has as many elements.
        return unsafe { from.cast::<Block<T>>().read_unaligned() };
    }
    let mut block = [T::ZERO; PARTS];
    // SAFETY: there is room for `count` elements, which are those that can be read.
    unsafe { std::ptr::copy_nonoverlapping(from, block.as_mut_ptr(), count) };
    block
}

/// Writes the first `count` elements.
///
/// # Safety
/// They can be written.
#[inline(always)]
unsafe fn store<T: Lanes>(to: *mut T, count: usize, block: &Block<T>) {
    // SAFETY: at most the first `count` elements.
    unsafe {
        if count == PARTS {
            to.cast::<Block<T>>().write_unaligned(*block);
        } else {
            std::ptr::copy_nonoverlapping(block.as_ptr(), to, count);
        }
    }
}

#[inline(always)]
fn zip<T: Lanes>(a: &Block<T>, b: &Block<T>, f: impl Fn(T, T) -> T) -> Block<T> {
    let mut out = [T::ZERO; PARTS];
    for part in 0..PARTS {
        out[part] = f(a[part], b[part]);
    }
    out
}

/// Two sums over `len` elements in a fixed order: `terms(i, count)` gives those of elements `i..i + count`, and zeros behind
/// them.
#[inline(always)]
fn sums<T: Lanes>(len: usize, mut terms: impl FnMut(usize, usize) -> [Block<T>; 2]) -> [T; 2] {
    let mut total = [T::ZERO; 2];
    for start in (0..len).step_by(BLOCK) {
        let end = len.min(start + BLOCK);
        let mut sums = [[T::ZERO; PARTS]; 2];
        // With a count that the compiler knows, blocks stay in registers.
        let whole = start + (end - start) / PARTS * PARTS;
        for i in (start..whole).step_by(PARTS) {
            add_terms(&mut sums, terms(i, PARTS));
        }
        if whole < end {
            add_terms(&mut sums, terms(whole, end - whole));
        }
        let [first, second] = sums;
        total = [total[0].add(join_tree(first, T::add)), total[1].add(join_tree(second, T::add))];
    }
    total
}

#[inline(always)]
fn add_terms<T: Lanes>(sums: &mut [Block<T>; 2], [a, b]: [Block<T>; 2]) {
    sums[0] = zip(&sums[0], &a, T::add);
    sums[1] = zip(&sums[1], &b, T::add);
}

/// `(x - mean)^2` of `count` elements, and zeros behind them.
///
/// # Safety
/// The elements can be read.
#[inline(always)]
unsafe fn square_of<T: Lanes>(from: *const T, count: usize, mean: T) -> Block<T> {
    // SAFETY: the same elements.
    let x = unsafe { load(from, count) };
    let mut squares = zip(&x, &[mean; PARTS], |x, mean| x.sub(mean).mul(x.sub(mean)));
    squares[count..].fill(T::ZERO);
    squares
}

/// A row of weights for each group: those that are given, or `len` times `otherwise` in scratch memory.
fn or_constant<T: Lanes>(given: Option<Src<T>>, len: usize, otherwise: T, body: impl FnOnce(Src<T>)) {
    match given {
        Some(given) => body(given),
        None => with_scratch(len, |memory: *mut T| {
            for i in 0..len {
                // SAFETY: there is room for `len` elements.
                unsafe { memory.add(i).write(otherwise) };
            }
            body(Src(memory));
        }),
    }
}

/// # Safety
/// So many rows, and vectors for them and for weights, can be read and, where they are outputs, written, and nobody else uses
/// them meanwhile.
pub(crate) unsafe fn forward<T: Lanes>(
    (rows, count): (NormRows, usize),
    workers: &Workers,
    eps: f64,
    (out, x): (Dst<T>, Src<T>),
    [weight, bias]: [Option<Src<T>>; 2],
    (mean_to, rstd_to): (Option<Dst<T>>, Dst<T>),
) {
    let (len, weights) = (rows.row(), rows.weights());
    let (scale, eps) = (T::from_f64(len as f64), T::from_f64(eps));
    or_constant(weight, weights, T::ONE, |weight| {
        or_constant(bias, weights, T::ZERO, |bias| {
            for_items(
                workers,
                (count, ((1 << 13) / len).max(1)),
                0,
                #[inline(always)]
                |row, _: *mut T| {
                    let at = (row * len) as isize;
                    // SAFETY: elements of row `row`, and what belongs to it; rows are disjoint.
                    unsafe {
                        let from = x.at(at);
                        let mut mean = T::ZERO;
                        if let Some(to) = mean_to {
                            mean = sums(
                                len,
                                #[inline(always)]
                                |i, count| [load(from.add(i), count), [T::ZERO; PARTS]],
                            )[0]
                            .div(scale);
                            *to.at(row as isize) = mean;
                        }
                        let squares = sums(
                            len,
                            #[inline(always)]
                            |i, count| [square_of(from.add(i), count, mean), [T::ZERO; PARTS]],
                        )[0];
                        let rstd = squares.div(scale).add(eps).rsqrt();
                        *rstd_to.at(row as isize) = rstd;
                        for_weights(
                            rows,
                            row,
                            #[inline(always)]
                            |weight_at, first, elements| {
                                let (w, b) = (weight.at(weight_at), bias.at(weight_at));
                                let (from, to) = (x.at(at + first), out.at(at + first));
                                if rows.inner == 1 {
                                    map(
                                        elements,
                                        to,
                                        [from, w, b],
                                        #[inline(always)]
                                        |[x, w, b]| x.sub(mean).mul(rstd).mul(w).add(b),
                                    );
                                } else {
                                    let (w, b) = (*w, *b);
                                    map(
                                        elements,
                                        to,
                                        [from],
                                        #[inline(always)]
                                        |[x]| x.sub(mean).mul(rstd).mul(w).add(b),
                                    );
                                }
                            },
                        );
                    }
                },
            );
        });
    });
}

/// Calls `body(weight, first, elements)` for the runs of a row: the whole row if each element has a weight of its own, else
/// the elements of each weight.
#[inline(always)]
fn for_weights(rows: NormRows, row: usize, mut body: impl FnMut(isize, isize, usize)) {
    let weight = row % rows.groups * rows.channels;
    if rows.inner == 1 {
        return body(weight as isize, 0, rows.channels);
    }
    for channel in 0..rows.channels {
        body((weight + channel) as isize, (channel * rows.inner) as isize, rows.inner);
    }
}

/// # Safety
/// As for [`forward`].
pub(crate) unsafe fn backward<T: Lanes>(
    (rows, count): (NormRows, usize),
    workers: &Workers,
    (g, x, weight): (Src<T>, Src<T>, Option<Src<T>>),
    (mean, rstd): (Option<Src<T>>, Src<T>),
    [to_x, to_weight, to_bias]: [Option<Dst<T>>; 3],
) {
    let weights = rows.weights();
    let chunk = count.div_ceil(ROW_BLOCKS).max(16);
    let blocks = count.div_ceil(chunk);
    // For each block of rows its part of the weight's gradient, and then of the bias's.
    with_scratch(2 * weights * blocks, |partials: *mut T| {
        let partials = Dst(partials);
        or_constant(weight, weights, T::ONE, |weight| {
            for_chunks(workers, count, chunk, &|block, range| {
                simd_for::<T, _>(
                    #[inline(always)]
                    || {
                        let mine = partials.at((2 * weights * block) as isize);
                        // SAFETY: there is room for all blocks' parts, and each block has its own.
                        let mine = unsafe { std::slice::from_raw_parts_mut(mine, 2 * weights) };
                        mine.fill(T::ZERO);
                        for row in range {
                            // SAFETY: elements of row `row`, and what belongs to it; rows are disjoint.
                            unsafe {
                                let mean = mean.map(|mean| *mean.at(row as isize));
                                let rstd = *rstd.at(row as isize);
                                backward_row(rows, row, (g, x, weight), (mean, rstd), to_x, mine);
                            }
                        }
                    },
                );
            });
        });
        for (to, first) in [(to_weight, 0), (to_bias, weights)] {
            let Some(to) = to else { continue };
            // SAFETY: there are so many weights, and nobody else writes their gradients.
            let to = unsafe { std::slice::from_raw_parts_mut(to.0, weights) };
            to.fill(T::ZERO);
            for block in 0..blocks {
                // SAFETY: all blocks' parts were written.
                let part = unsafe { partials.src().slice(2 * weights * block + first, weights) };
                for (to, &part) in to.iter_mut().zip(part) {
                    *to = to.add(part);
                }
            }
        }
    });
}

/// The gradient of one row; adds to the gradients of the weights and, behind them, of the biases.
#[inline(always)]
unsafe fn backward_row<T: Lanes>(
    rows: NormRows,
    row: usize,
    (g, x, weight): (Src<T>, Src<T>, Src<T>),
    (mean, rstd): (Option<T>, T),
    to: Option<Dst<T>>,
    weights: &mut [T],
) {
    let len = rows.row();
    let scale = T::from_f64(len as f64);
    let centre = mean.unwrap_or(T::ZERO);
    let (dweight, dbias) = weights.split_at_mut(rows.weights());
    let at = row * len;
    let mut total = [T::ZERO; 2];
    for_weights(
        rows,
        row,
        #[inline(always)]
        |weight_at, first, elements| {
            let begin = weight_at as usize;
            let at = at as isize + first;
            let (x, g) = (x.at(at), g.at(at));
            let normal = |x: T, rstd: T| x.sub(centre).mul(rstd);
            if rows.inner == 1 {
                let (w, dw, db) =
                    (weight.at(weight_at), dweight[begin..].as_mut_ptr(), dbias[begin..].as_mut_ptr());
                total = sums(
                    elements,
                    #[inline(always)]
                    |i, n| {
                        // SAFETY: elements of the row, and its weights, as many as it has elements.
                        unsafe {
                            let (x, g, w) = (load(x.add(i), n), load(g.add(i), n), load(w.add(i), n));
                            let h = zip(&x, &[rstd; PARTS], normal);
                            let sum = zip(&load(dw.add(i), n), &zip(&g, &h, T::mul), T::add);
                            store(dw.add(i), n, &sum);
                            let sum = zip(&load(db.add(i), n), &g, T::add);
                            store(db.add(i), n, &sum);
                            let d = zip(&g, &w, T::mul);
                            [d, zip(&d, &h, T::mul)]
                        }
                    },
                );
            } else {
                let [sum_g, sum_gh] = sums(
                    elements,
                    #[inline(always)]
                    |i, n| {
                        // SAFETY: elements of the row.
                        let (x, g) = unsafe { (load(x.add(i), n), load(g.add(i), n)) };
                        [g, zip(&g, &zip(&x, &[rstd; PARTS], normal), T::mul)]
                    },
                );
                dweight[begin] = dweight[begin].add(sum_gh);
                dbias[begin] = dbias[begin].add(sum_g);
                // SAFETY: a weight of the row.
                let w = unsafe { *weight.at(weight_at) };
                total = [total[0].add(sum_g.mul(w)), total[1].add(sum_gh.mul(w))];
            }
        },
    );
    let Some(to) = to else { return };
    let shift = if mean.is_some() { total[0].div(scale) } else { T::ZERO };
    let slope = total[1].div(scale);
    let gradient = |x: T, g: T, w: T| {
        let h = x.sub(centre).mul(rstd);
        g.mul(w).sub(shift).sub(h.mul(slope)).mul(rstd)
    };
    for_weights(
        rows,
        row,
        #[inline(always)]
        |weight_at, first, elements| {
            let at = at as isize + first;
            let (x, g, w) = (x.at(at), g.at(at), weight.at(weight_at));
            // SAFETY: elements of the row, and its weights.
            unsafe {
                if rows.inner == 1 {
                    map(
                        elements,
                        to.at(at),
                        [x, g, w],
                        #[inline(always)]
                        |[x, g, w]| gradient(x, g, w),
                    );
                } else {
                    let w = *w;
                    map(
                        elements,
                        to.at(at),
                        [x, g],
                        #[inline(always)]
                        |[x, g]| gradient(x, g, w),
                    );
                }
            }
        },
    );
}
