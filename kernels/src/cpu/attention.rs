//! Attention by tiles, forward and backward.
//!
//! A tile of scores, some queries by some keys, is a small matrix product; it is turned into weights in place, in the cache,
//! and multiplied with the values. Forward, a tile of queries keeps its largest score, its sum and its weighted values, and
//! corrects them when a later tile of keys brings a larger score. Backward, weights are made again from the scores and the
//! logarithm of their sum; the gradients of keys and values are added up over the tiles of queries, in order.

use pulp::Arch;

use super::lanes::{Lanes, join_tree, simd_for, with_scratch};
use super::product::{Init, Matrix, Product, copy_matrix};
use crate::layout::{Dst, Src};
use crate::par::{Workers, for_range};
use crate::scores::{ScoreBatch, ScoreSizes};

/// Queries of a tile: few, so that a causal tile leaves out many keys.
const QUERIES: usize = 32;
/// Keys of a tile.
const KEYS: usize = 128;
/// Rows of a tile are padded to multiples of this, so that loops over them need no remainder.
const PAD: usize = 16;

/// Operands, in the order of [`ScoreBatch::steps`].
const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const MASK: usize = 3;
const OUT: usize = 4;
const G: usize = 5;
const DQ: usize = 6;
const DK: usize = 7;
const DV: usize = 8;

/// The matrix of an operand at these offsets of a batch.
fn matrix<T>(problem: &ScoreBatch, operand: usize, at: &[isize; 9], from: Src<T>) -> Matrix<T> {
    let [row, col] = problem.steps[operand];
    Matrix { ptr: from.at(at[operand]).cast_mut(), row, col }
}

/// The keys that any of the queries before `end` sees.
fn visible(problem: &ScoreBatch, end: usize) -> usize {
    if problem.kind.causal { problem.sizes.keys.min(end) } else { problem.sizes.keys }
}

/// A tile of queries from `first` on, and the tile of keys that it meets.
#[derive(Clone, Copy)]
struct Tile {
    first: usize,
    rows: usize,
    start: usize,
    cols: usize,
}

impl Tile {
    fn padded(&self) -> usize {
        self.cols.next_multiple_of(PAD)
    }
}

/// Scales the scores of row `r` of a tile and adds the mask. Gives the number of keys that the row sees; behind them the
/// scores mean nothing.
#[inline(always)]
unsafe fn finish_scores<T: Lanes>(
    problem: &ScoreBatch,
    tile: Tile,
    r: usize,
    row: &mut [T],
    mask: Option<Matrix<T>>,
) -> usize {
    let scale = T::from_f64(problem.kind.scale);
    let seen = if problem.kind.causal { (tile.first + r + 1).saturating_sub(tile.start) } else { tile.cols };
    let seen = seen.min(tile.cols);
    for x in row.iter_mut() {
        *x = x.mul(scale);
    }
    if let Some(mask) = mask {
        let mask = mask.at(tile.first + r, tile.start);
        for (c, x) in row[..seen].iter_mut().enumerate() {
            // SAFETY: the mask has an element for each query and key.
            *x = x.add(unsafe { *mask.at(0, c).ptr });
        }
    }
    seen
}

/// The fold of a row of padded length.
#[inline(always)]
fn folded<T: Lanes>(row: &[T], empty: T, join: impl Fn(T, T) -> T) -> T {
    let mut parts = [empty; PAD];
    for x in row.chunks_exact(PAD) {
        for (part, &x) in parts.iter_mut().zip(x) {
            *part = join(*part, x);
        }
    }
    join_tree(parts, join)
}

/// The sum of a row of padded length.
#[inline(always)]
fn sum<T: Lanes>(row: &[T]) -> T {
    folded(row, T::ZERO, T::add)
}

/// # Safety
/// The operands of `problem` can be read, the results written, and nobody else uses them meanwhile.
pub(crate) unsafe fn forward<T: Lanes>(
    problem: &ScoreBatch,
    workers: &Workers,
    ([q, k, v], mask): ([Src<T>; 3], Option<Src<T>>),
    (out, log_sums): (Dst<T>, Dst<T>),
) {
    let from = [(Q, q), (K, k), (V, v)];
    let arch = Arch::new();
    let ScoreSizes { queries, value_width, .. } = problem.sizes;
    let tiles = queries.div_ceil(QUERIES);
    for_range(workers, problem.batch.elements * tiles, 1, &|range| {
        with_scratch(QUERIES * (KEYS + value_width), |memory: *mut T| {
            for part in range {
                let (pair, first) = (part / tiles, part % tiles * QUERIES);
                let at = problem.batch.offsets(pair);
                let operands = from.map(|(operand, from)| matrix(problem, operand, &at, from));
                let mask = mask.map(|mask| matrix(problem, MASK, &at, mask));
                let to = matrix(problem, OUT, &at, out.src()).at(first, 0);
                let log_sums = log_sums.at((pair * queries + first) as isize);
                // SAFETY: the matrices are the problem's; tiles of queries are disjoint, and there is room for a tile.
                unsafe { forward_tile(arch, problem, first, operands, mask, memory, to, log_sums) };
            }
        });
    });
}

#[allow(clippy::too_many_arguments)]
unsafe fn forward_tile<T: Lanes>(
    arch: Arch,
    problem: &ScoreBatch,
    first: usize,
    [q, k, v]: [Matrix<T>; 3],
    mask: Option<Matrix<T>>,
    memory: *mut T,
    out: Matrix<T>,
    log_sums: *mut T,
) {
    let ScoreSizes { queries, width, value_width, .. } = problem.sizes;
    let rows = QUERIES.min(queries - first);
    let nothing = T::from_f64(f64::NEG_INFINITY);
    let (mut best, mut total) = ([nothing; QUERIES], [T::ZERO; QUERIES]);
    let values = memory.wrapping_add(QUERIES * KEYS);
    // SAFETY: the caller lent room for a tile of scores, and for its values behind them.
    let (scores, sums) = unsafe {
        (
            std::slice::from_raw_parts_mut(memory, QUERIES * KEYS),
            std::slice::from_raw_parts_mut(values, rows * value_width),
        )
    };
    sums.fill(T::ZERO);
    let end = visible(problem, first + rows);
    for start in (0..end).step_by(KEYS) {
        let tile = Tile { first, rows, start, cols: KEYS.min(end - start) };
        let c = Matrix { ptr: scores.as_mut_ptr(), row: KEYS as isize, col: 1 };
        let (a, b) = (q.at(first, 0), k.at(start, 0).t());
        // SAFETY: the tile lies within the matrices, and the scores and sums have room for the products.
        unsafe {
            Product { m: rows, n: tile.cols, k: width, a, b, c, init: Init::Zero }.run(arch);
            simd_for::<T, _>(
                #[inline(always)]
                || {
                    for r in 0..rows {
                        let row = &mut scores[r * KEYS..][..tile.padded()];
                        let seen = finish_scores(problem, tile, r, row, mask);
                        row[seen..].fill(nothing);
                        let m = best[r].maximum(folded(row, nothing, T::maximum));
                        // Nothing was seen yet: the difference of infinities would be NaN.
                        let shift = if m == nothing { T::ZERO } else { m };
                        // What is not seen gets an exponential that costs nothing: those that underflow are slow.
                        row[seen..].fill(shift);
                        for x in row.iter_mut() {
                            *x = x.sub(shift).exp();
                        }
                        row[seen..].fill(T::ZERO);
                        total[r] = if start == 0 {
                            sum(row)
                        } else {
                            let before = best[r].sub(shift).exp();
                            for x in &mut sums[r * value_width..][..value_width] {
                                *x = x.mul(before);
                            }
                            total[r].mul(before).add(sum(row))
                        };
                        best[r] = m;
                    }
                },
            );
            let c = Matrix { ptr: values, row: value_width as isize, col: 1 };
            let a = Matrix { ptr: scores.as_mut_ptr(), row: KEYS as isize, col: 1 };
            let b = v.at(start, 0);
            Product { m: rows, n: value_width, k: tile.cols, a, b, c, init: Init::Existing }.run(arch);
        }
    }
    simd_for::<T, _>(
        #[inline(always)]
        || {
            for r in 0..rows {
                let seen = total[r] != T::ZERO;
                let scale = if seen { total[r].recip() } else { T::ZERO };
                for x in &mut sums[r * value_width..][..value_width] {
                    *x = x.mul(scale);
                }
                let log_sum = if seen { best[r].add(total[r].log()) } else { T::from_f64(f64::INFINITY) };
                // SAFETY: there is a sum for each row of the tile.
                unsafe { *log_sums.add(r) = log_sum };
            }
        },
    );
    let from = Matrix { ptr: values, row: value_width as isize, col: 1 };
    // SAFETY: the rows of the output are those of the tile.
    unsafe { copy_matrix(arch, rows, value_width, from, out) };
}

/// Writes the gradients of queries, keys and values, and the sums of `g out` of each query. Threads share the leading axes.
///
/// # Safety
/// As for [`forward`].
pub(crate) unsafe fn backward<T: Lanes>(
    problem: &ScoreBatch,
    workers: &Workers,
    ([g, q, k, v, out], mask): ([Src<T>; 5], Option<Src<T>>),
    (log_sums, products): (Src<T>, Dst<T>),
    [dq, dk, dv]: [Dst<T>; 3],
) {
    let arch = Arch::new();
    let queries = problem.sizes.queries;
    for_range(workers, problem.batch.elements, 1, &|range| {
        with_scratch(2 * QUERIES * KEYS, |memory: *mut T| {
            for pair in range {
                let at = problem.batch.offsets(pair);
                let pair = Pair {
                    arch,
                    problem,
                    q: matrix(problem, Q, &at, q),
                    k: matrix(problem, K, &at, k),
                    v: matrix(problem, V, &at, v),
                    mask: mask.map(|mask| matrix(problem, MASK, &at, mask)),
                    out: matrix(problem, OUT, &at, out),
                    g: matrix(problem, G, &at, g),
                    dq: matrix(problem, DQ, &at, dq.src()),
                    dk: matrix(problem, DK, &at, dk.src()),
                    dv: matrix(problem, DV, &at, dv.src()),
                    log_sums: log_sums.at((pair * queries) as isize),
                    products: products.at((pair * queries) as isize),
                    memory,
                };
                // SAFETY: the matrices are the problem's; the leading axes of the outputs are disjoint.
                unsafe { pair.backward() };
            }
        });
    });
}

/// One product of queries and keys, with all its operands.
struct Pair<'a, T> {
    arch: Arch,
    problem: &'a ScoreBatch,
    q: Matrix<T>,
    k: Matrix<T>,
    v: Matrix<T>,
    mask: Option<Matrix<T>>,
    out: Matrix<T>,
    g: Matrix<T>,
    dq: Matrix<T>,
    dk: Matrix<T>,
    dv: Matrix<T>,
    log_sums: *const T,
    products: *mut T,
    /// Room for two tiles.
    memory: *mut T,
}

impl<T: Lanes> Pair<'_, T> {
    unsafe fn backward(&self) {
        let ScoreSizes { queries, keys, width, value_width } = self.problem.sizes;
        // SAFETY: the tiles cover the matrices.
        unsafe {
            fill_zero(keys, width, self.dk);
            fill_zero(keys, value_width, self.dv);
            for first in (0..queries).step_by(QUERIES) {
                let rows = QUERIES.min(queries - first);
                simd_for::<T, _>(
                    #[inline(always)]
                    || self.sum_products(first, rows),
                );
                let end = visible(self.problem, first + rows);
                if end == 0 {
                    fill_zero(rows, width, self.dq.at(first, 0));
                }
                for start in (0..end).step_by(KEYS) {
                    self.backward_tile(Tile { first, rows, start, cols: KEYS.min(end - start) });
                }
            }
        }
    }

    /// The sums of `g out` of the queries from `first` on.
    #[inline(always)]
    unsafe fn sum_products(&self, first: usize, rows: usize) {
        for r in first..first + rows {
            // SAFETY: row `r` of the matrices, and its sum.
            unsafe {
                *self.products.add(r) =
                    dot(self.problem.sizes.value_width, self.g.at(r, 0), self.out.at(r, 0));
            }
        }
    }

    unsafe fn backward_tile(&self, tile: Tile) {
        let ScoreSizes { width, value_width, .. } = self.problem.sizes;
        let Tile { first, rows, start, cols } = tile;
        let scale = T::from_f64(self.problem.kind.scale);
        let (q, k, g, v) =
            (self.q.at(first, 0), self.k.at(start, 0), self.g.at(first, 0), self.v.at(start, 0));
        let tile_at = |index: usize| Matrix {
            ptr: self.memory.wrapping_add(index * QUERIES * KEYS),
            row: KEYS as isize,
            col: 1,
        };
        let (weights, slopes) = (tile_at(0), tile_at(1));
        let run = |m, n, k, a, b, c, init| {
            // SAFETY: the tile lies within the matrices, and there is room for two tiles.
            unsafe { Product { m, n, k, a, b, c, init }.run(self.arch) };
        };
        run(rows, cols, width, q, k.t(), weights, Init::Zero);
        run(rows, cols, value_width, g, v.t(), slopes, Init::Zero);
        // SAFETY: the caller lent room for two tiles.
        let (p, u) = unsafe {
            (
                std::slice::from_raw_parts_mut(weights.ptr, QUERIES * KEYS),
                std::slice::from_raw_parts_mut(slopes.ptr, QUERIES * KEYS),
            )
        };
        simd_for::<T, _>(
            #[inline(always)]
            || {
                for r in 0..rows {
                    let (p, u) = (&mut p[r * KEYS..][..tile.padded()], &mut u[r * KEYS..][..tile.padded()]);
                    // SAFETY: row `first + r` has a sum of both kinds, and the mask is the problem's.
                    let (log_sum, product, seen) = unsafe {
                        (
                            *self.log_sums.add(first + r),
                            *self.products.add(first + r),
                            finish_scores(self.problem, tile, r, p, self.mask),
                        )
                    };
                    // As in the forward pass.
                    p[seen..].fill(log_sum);
                    for (p, u) in p.iter_mut().zip(u.iter_mut()) {
                        *p = p.sub(log_sum).exp();
                        *u = p.mul(u.sub(product)).mul(scale);
                    }
                    p[seen..].fill(T::ZERO);
                    u[seen..].fill(T::ZERO);
                }
            },
        );
        run(cols, value_width, rows, weights.t(), g, self.dv.at(start, 0), Init::Existing);
        let init = if start == 0 { Init::Zero } else { Init::Existing };
        run(rows, width, cols, slopes, k, self.dq.at(first, 0), init);
        run(cols, width, rows, slopes.t(), q, self.dk.at(start, 0), Init::Existing);
    }
}

/// The sum of the products of two rows.
///
/// # Safety
/// Both have `len` elements.
#[inline(always)]
unsafe fn dot<T: Lanes>(len: usize, a: Matrix<T>, b: Matrix<T>) -> T {
    let mut parts = [T::ZERO; PAD];
    let whole = if a.col == 1 && b.col == 1 { len / PAD * PAD } else { 0 };
    for j in (0..whole).step_by(PAD) {
        // SAFETY: `PAD` elements from `j` on, which follow each other.
        let (a, b) = unsafe {
            let read = |x: Matrix<T>| x.at(0, j).ptr.cast::<[T; PAD]>().read_unaligned();
            (read(a), read(b))
        };
        for (part, (a, b)) in parts.iter_mut().zip(a.iter().zip(&b)) {
            *part = part.add(a.mul(*b));
        }
    }
    for j in whole..len {
        // SAFETY: `j` is below `len`.
        let product = unsafe { (*a.at(0, j).ptr).mul(*b.at(0, j).ptr) };
        parts[j % PAD] = parts[j % PAD].add(product);
    }
    join_tree(parts, T::add)
}

/// # Safety
/// The elements can be written.
unsafe fn fill_zero<T: Lanes>(rows: usize, cols: usize, to: Matrix<T>) {
    for i in 0..rows {
        let row = to.at(i, 0);
        if row.col == 1 {
            // SAFETY: a row of the matrix, whose elements follow each other.
            unsafe { std::slice::from_raw_parts_mut(row.ptr, cols) }.fill(T::ZERO);
            continue;
        }
        for j in 0..cols {
            // SAFETY: an element of the matrix.
            unsafe { *row.at(0, j).ptr = T::ZERO };
        }
    }
}
