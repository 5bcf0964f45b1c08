//! Normalization of rows and its gradients.
//!
//! A row is read twice from the cache for its mean and its variance, and once more to be written; in a gradient, the row's
//! two sums and its part of the weights' gradients are taken in one pass. Gradients of weights are summed over blocks of
//! rows first, and then over the blocks, in order.

use super::inlined;
use super::lanes::{Items, Lanes, ScratchMemory, join_tree, map, simd_for, with_scratch};
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
pub(super) type Block<T> = [T; PARTS];

/// `count` elements, and zeros behind them.
///
/// # Safety
/// The elements can be read.
#[inline(always)]
pub(super) unsafe fn load<T: Lanes>(from: *const T, count: usize) -> Block<T> {
    if count == PARTS {
        // SAFETY: the caller promises `count` readable elements, which are as many as a block has.
        return unsafe { from.cast::<Block<T>>().read_unaligned() };
    }
    let mut block = [T::ZERO; PARTS];
    // SAFETY: the caller promises `count` readable elements, and callers keep `count` at or below `PARTS`, the length
    // of the block.
    unsafe { std::ptr::copy_nonoverlapping(from, block.as_mut_ptr(), count) };
    block
}

/// Writes the first `count` elements.
///
/// # Safety
/// They can be written.
#[inline(always)]
unsafe fn store<T: Lanes>(to: *mut T, count: usize, block: &Block<T>) {
    // SAFETY: the caller promises that `count` elements can be written, and a block has at least as many.
    unsafe {
        if count == PARTS {
            to.cast::<Block<T>>().write_unaligned(*block);
        } else {
            std::ptr::copy_nonoverlapping(block.as_ptr(), to, count);
        }
    }
}

#[inline(always)]
pub(super) fn zip<T: Lanes>(a: &Block<T>, b: &Block<T>, f: impl Fn(T, T) -> T) -> Block<T> {
    let mut out = [T::ZERO; PARTS];
    for part in 0..PARTS {
        out[part] = f(a[part], b[part]);
    }
    out
}

/// Sums over `len` elements in a fixed order, of `block` of them by themselves: `terms(i, count)` gives those of elements
/// `i..i + count`, and zeros behind them.
#[inline(always)]
pub(super) fn sums<T: Lanes, const N: usize>(
    len: usize,
    block: usize,
    mut terms: impl FnMut(usize, usize) -> [Block<T>; N],
) -> [T; N] {
    let mut total = [T::ZERO; N];
    for start in (0..len).step_by(block) {
        let end = len.min(start + block);
        let mut sums = [[T::ZERO; PARTS]; N];
        // With a count that the compiler knows, blocks stay in registers.
        let whole = start + (end - start) / PARTS * PARTS;
        for i in (start..whole).step_by(PARTS) {
            add_terms(&mut sums, &terms(i, PARTS));
        }
        if whole < end {
            add_terms(&mut sums, &terms(whole, end - whole));
        }
        for k in 0..N {
            total[k] = total[k].add(join_tree(sums[k], T::add));
        }
    }
    total
}

#[inline(always)]
fn add_terms<T: Lanes, const N: usize>(sums: &mut [Block<T>; N], terms: &[Block<T>; N]) {
    for k in 0..N {
        sums[k] = zip(&sums[k], &terms[k], T::add);
    }
}

/// `((x - mean) scale)^2` of `count` elements, and zeros behind them.
///
/// # Safety
/// The elements can be read.
#[inline(always)]
pub(super) unsafe fn square_of<T: Lanes>(from: *const T, count: usize, mean: T, scale: T) -> Block<T> {
    // SAFETY: the caller promises `count` readable elements.
    let x = unsafe { load(from, count) };
    let away = zip(&x, &[mean; PARTS], |x, mean| x.sub(mean).mul(scale));
    let mut squares = zip(&away, &away, T::mul);
    squares[count..].fill(T::ZERO);
    squares
}

/// `1 / sqrt(squares / count + eps)`, also where the squares, which are asked for with a scale, are beyond the type.
#[inline(always)]
pub(super) fn scaled_rstd<T: Lanes>(squares: impl Fn(T) -> T, count: T, eps: T) -> T {
    let plain = squares(T::ONE);
    let scale = T::scale_of_squares(plain.add(eps));
    if scale == T::ONE || plain == T::ZERO && eps > T::ZERO {
        return plain.div(count).add(eps).rsqrt();
    }
    squares(scale).div(count).add(eps.mul(scale).mul(scale)).rsqrt().mul(scale)
}

/// A row of weights for each group: those that are given, or `len` times `otherwise` in memory that lives as long.
fn or_constant<T: Lanes>(given: Option<Src<T>>, len: usize, otherwise: T) -> (Src<T>, Option<ScratchMemory>) {
    if let Some(given) = given {
        return (given, None);
    }
    let mut memory = ScratchMemory::new::<T>(len);
    let at = memory.as_mut_ptr();
    // SAFETY: the scratch has room for `len` elements, is initialised, and is used by nobody else yet.
    unsafe { std::slice::from_raw_parts_mut(at, len) }.fill(otherwise);
    (Src(at), Some(memory))
}

/// The runs of a row: the whole row if each element has a weight of its own, else the elements of each weight. Their number,
/// how many elements each has, and the weight of the first.
#[inline(always)]
fn runs(rows: NormRows, row: usize) -> (isize, usize, isize) {
    let NormRows { groups, channels, inner } = rows;
    let (count, elements) = if inner == 1 { (1, channels) } else { (channels, inner) };
    (count as isize, elements, (row % groups * channels) as isize)
}

pub(crate) unsafe fn forward<T: Lanes>(
    &(rows, count): &(NormRows, usize),
    workers: &Workers,
    eps: f64,
    (out, x): (Dst<T>, Src<T>),
    [weight, bias]: [Option<Src<T>>; 2],
    (mean_to, rstd_to): (Option<Dst<T>>, Dst<T>),
) {
    let (len, weights) = (rows.row(), rows.weights());
    let (scale, eps) = (T::from_f64(len as f64), T::from_f64(eps));
    let (weight, _ones) = or_constant(weight, weights, T::ONE);
    let (bias, _zeros) = or_constant(bias, weights, T::ZERO);
    let items = Items { workers, len: count, chunk: ((1 << 13) / len).max(1), room: 0 };
    items.for_each(inlined!(|row, _: *mut T| {
        let at = (row * len) as isize;
        // SAFETY: `row` is below the number of rows, so the operands have its `len` elements, its statistics and its
        // group's weights. Each row is one part's.
        unsafe {
            let from = x.at(at);
            let mut mean = T::ZERO;
            if let Some(to) = mean_to {
                let [sum] = sums(len, BLOCK, inlined!(|i, n| [load(from.add(i), n)]));
                mean = sum.div(scale);
                *to.at(row as isize) = mean;
            }
            let squares = inlined!(|scale: T| {
                sums(len, BLOCK, inlined!(|i, n| [square_of(from.add(i), n, mean, scale)]))[0]
            });
            let rstd = scaled_rstd(squares, scale, eps);
            *rstd_to.at(row as isize) = rstd;
            let (count, elements, first) = runs(rows, row);
            for run in 0..count {
                let (w, b) = (weight.at(first + run), bias.at(first + run));
                let at = at + run * elements as isize;
                let (from, to) = (x.at(at), out.at(at));
                if rows.inner == 1 {
                    map(
                        elements,
                        to,
                        [from, w, b],
                        inlined!(|[x, w, b]| x.sub(mean).mul(rstd).mul(w).add(b)),
                    );
                } else {
                    let (w, b) = (*w, *b);
                    map(elements, to, [from], inlined!(|[x]| x.sub(mean).mul(rstd).mul(w).add(b)));
                }
            }
        }
    }));
}

pub(crate) unsafe fn backward<T: Lanes>(
    &(rows, count): &(NormRows, usize),
    workers: &Workers,
    ([g, x], weight): ([Src<T>; 2], Option<Src<T>>),
    (mean, rstd): (Option<Src<T>>, Src<T>),
    (to_x, [to_weight, to_bias]): (Option<Dst<T>>, [Option<Dst<T>>; 2]),
) {
    let weights = rows.weights();
    let chunk = count.div_ceil(ROW_BLOCKS).max(16);
    let blocks = count.div_ceil(chunk);
    let (weight, _ones) = or_constant(weight, weights, T::ONE);
    // For each block of rows its part of the weight's gradient, and then of the bias's.
    with_scratch(2 * weights * blocks, |partials: *mut T| {
        let partials = Dst(partials);
        for_chunks(workers, count, chunk, &|block, range| {
            let mine = partials.at((2 * weights * block) as isize);
            // SAFETY: the scratch has `2 * weights` elements for each block of rows, is initialised, and each block
            // is one part's.
            let mine = unsafe { std::slice::from_raw_parts_mut(mine, 2 * weights) };
            simd_for::<T, _>(inlined!(|| {
                mine.fill(T::ZERO);
                for row in range {
                    // SAFETY: `row` is below the number of rows, so the operands have its elements, its statistics
                    // and its group's weights. Each row is one part's.
                    unsafe {
                        let mean = mean.map(|mean| *mean.at(row as isize));
                        let rstd = *rstd.at(row as isize);
                        backward_row(rows, row, (g, x, weight), (mean, rstd), to_x, mine);
                    }
                }
            }));
        });
        for (to, first) in [(to_weight, 0), (to_bias, weights)] {
            let Some(to) = to else { continue };
            // SAFETY: the operand has an element for each weight, and this thread alone writes it.
            let to = unsafe { std::slice::from_raw_parts_mut(to.0, weights) };
            to.fill(T::ZERO);
            for block in 0..blocks {
                // SAFETY: `for_chunks` has written the parts of all blocks and returned.
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
    let begin = (row * len) as isize;
    let normal = inlined!(|x: T, rstd: T| x.sub(centre).mul(rstd));
    let mut total = [T::ZERO; 2];
    let (count, elements, first) = runs(rows, row);
    for run in 0..count {
        let at = begin + run * elements as isize;
        let (x, g, w) = (x.at(at), g.at(at), weight.at(first + run));
        let own = (first + run) as usize..;
        let (dw, db) = (&mut dweight[own.clone()], &mut dbias[own]);
        // SAFETY: `at` begins a run of the row with `elements` elements. Weights and their gradients have as many
        // from `first + run` on if `inner` is 1, otherwise one.
        unsafe {
            if rows.inner == 1 {
                let (dw, db) = (dw.as_mut_ptr(), db.as_mut_ptr());
                let terms = inlined!(|i: usize, n: usize| {
                    let (x, g, w) = (load(x.add(i), n), load(g.add(i), n), load(w.add(i), n));
                    let h = zip(&x, &[rstd; PARTS], normal);
                    store(dw.add(i), n, &zip(&load(dw.add(i), n), &zip(&g, &h, T::mul), T::add));
                    store(db.add(i), n, &zip(&load(db.add(i), n), &g, T::add));
                    let d = zip(&g, &w, T::mul);
                    [d, zip(&d, &h, T::mul)]
                });
                total = sums(elements, BLOCK, terms);
            } else {
                let terms = inlined!(|i: usize, n: usize| {
                    let (x, g) = (load(x.add(i), n), load(g.add(i), n));
                    [g, zip(&g, &zip(&x, &[rstd; PARTS], normal), T::mul)]
                });
                let [sum_g, sum_gh] = sums(elements, BLOCK, terms);
                dw[0] = dw[0].add(sum_gh);
                db[0] = db[0].add(sum_g);
                total = [total[0].add(sum_g.mul(*w)), total[1].add(sum_gh.mul(*w))];
            }
        }
    }
    let Some(to) = to else { return };
    let shift = if mean.is_some() { total[0].div(scale) } else { T::ZERO };
    let slope = total[1].div(scale);
    let gradient = inlined!(|x: T, g: T, w: T| g.mul(w).sub(shift).sub(normal(x, rstd).mul(slope)).mul(rstd));
    for run in 0..count {
        let at = begin + run * elements as isize;
        let (x, g, w, to) = (x.at(at), g.at(at), weight.at(first + run), to.at(at));
        // SAFETY: `at` begins a run of the row with `elements` elements, which this part alone writes. Weights have
        // as many from `first + run` on if `inner` is 1, otherwise one.
        unsafe {
            if rows.inner == 1 {
                map(elements, to, [x, g, w], inlined!(|[x, g, w]| gradient(x, g, w)));
            } else {
                let w = *w;
                map(elements, to, [x, g], inlined!(|[x, g]| gradient(x, g, w)));
            }
        }
    }
}
