//! Attention by tiles, forward and backward.
//!
//! A tile of scores, some queries by some keys, is a small matrix product; it is turned into weights in place, in the cache,
//! and multiplied with the values. Forward, a tile of queries keeps its largest score, its sum and its weighted values, and
//! corrects them when a later tile of keys brings a larger score. Backward, weights are made again from the scores and the
//! logarithm of their sum; the gradients of keys and values are added up over the tiles of queries, in order.

use pulp::Arch;

use super::lanes::{Lanes, simd_for, with_scratch};
use super::product::{Init, Matrix, Product, copy_matrix};
use crate::layout::{Dst, Loops, Src};
use crate::par::{Workers, for_range};

/// Queries of a tile: few, so that a causal tile leaves out many keys.
const QUERIES: usize = 32;
/// Keys of a tile.
const KEYS: usize = 128;
/// Rows of a tile are padded to multiples of this, so that loops over them need no remainder.
const PAD: usize = 16;

/// Sizes of one product of queries and keys.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    /// Elements of a query and of a key.
    pub(crate) width: usize,
    /// Elements of a value.
    pub(crate) value_width: usize,
}

/// Operands, in the order of [`Problem::steps`].
const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const MASK: usize = 3;
const OUT: usize = 4;
const G: usize = 5;
const DQ: usize = 6;
const DK: usize = 7;
const DV: usize = 8;

/// Attention over all leading axes. Operands are q, k, v, mask, out, g, dq, dk, dv; those that a pass does not have stay
/// where they are.
pub(crate) struct Problem {
    pub(crate) batch: Loops<9>,
    pub(crate) sizes: Sizes,
    pub(crate) causal: bool,
    pub(crate) scale: f64,
    /// Steps along the last two axes of each operand.
    pub(crate) steps: [[isize; 2]; 9],
}

impl Problem {
    /// Scores of all products.
    pub(crate) fn scores(&self) -> usize {
        self.batch.elements.saturating_mul(self.sizes.queries * self.sizes.keys)
    }

    fn matrix<T>(&self, operand: usize, at: &[isize; 9], from: Src<T>) -> Matrix<T> {
        let [row, col] = self.steps[operand];
        Matrix { ptr: from.at(at[operand]).cast_mut(), row, col }
    }

    /// The keys that any of the queries before `end` sees.
    fn visible(&self, end: usize) -> usize {
        if self.causal { self.sizes.keys.min(end) } else { self.sizes.keys }
    }
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
    problem: &Problem,
    tile: Tile,
    r: usize,
    row: &mut [T],
    mask: Option<Matrix<T>>,
) -> usize {
    let scale = T::from_f64(problem.scale);
    let seen = if problem.causal { (tile.first + r + 1).saturating_sub(tile.start) } else { tile.cols };
    let seen = seen.min(tile.cols);
    for x in row.iter_mut() {
        *x = x.mul(scale);
    }
    if let Some(mask) = mask {
        let mask = mask.at(tile.first + r, tile.start);
        for (c, x) in row[..seen].iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *x = x.add(unsafe { *mask.at(0, c).ptr });
        }
    }
    seen
}

/// The largest element of a row of padded length.
#[inline(always)]
fn largest<T: Lanes>(row: &[T]) -> T {
    let mut parts = [T::from_f64(f64::NEG_INFINITY); PAD];
    for x in row.chunks_exact(PAD) {
        for (part, &x) in parts.iter_mut().zip(x) {
            *part = part.maximum(x);
        }
    }
    join(
        parts,
        #[inline(always)]
        |a, b| a.maximum(b),
    )
}

/// The sum of a row of padded length.
#[inline(always)]
fn sum<T: Lanes>(row: &[T]) -> T {
    let mut parts = [T::ZERO; PAD];
    for x in row.chunks_exact(PAD) {
        for (part, &x) in parts.iter_mut().zip(x) {
            *part = part.add(x);
        }
    }
    join(
        parts,
        #[inline(always)]
        |a, b| a.add(b),
    )
}

#[inline(always)]
fn join<T: Lanes>(mut parts: [T; PAD], f: impl Fn(T, T) -> T) -> T {
    let mut half = PAD / 2;
    while half > 0 {
        for i in 0..half {
            parts[i] = f(parts[i], parts[i + half]);
        }
        half /= 2;
    }
    parts[0]
}

/// # Safety
/// The operands of the launcher can be read, the outputs written, and nobody else uses them meanwhile.
pub(crate) unsafe fn forward<T: Lanes>(
    problem: &Problem,
    workers: &Workers,
    ([q, k, v], mask): ([Src<T>; 3], Option<Src<T>>),
    out: Dst<T>,
    log_sums: Dst<T>,
) {
    let from = [(Q, q), (K, k), (V, v)];
    let arch = Arch::new();
    let Sizes { queries, value_width, .. } = problem.sizes;
    let tiles = queries.div_ceil(QUERIES);
    for_range(workers, problem.batch.elements * tiles, 1, &|range| {
        with_scratch(QUERIES * (KEYS + value_width), |memory: *mut T| {
            for part in range {
                let (pair, first) = (part / tiles, part % tiles * QUERIES);
                let at = problem.batch.offsets(pair);
                let operands = from.map(|(operand, from)| problem.matrix(operand, &at, from));
                let mask = mask.map(|mask| problem.matrix(MASK, &at, mask));
                let to = problem.matrix(OUT, &at, out.src()).at(first, 0);
                let log_sums = log_sums.at((pair * queries + first) as isize);
                // SAFETY: the caller's promise; tiles of queries are disjoint, and there is room for a tile.
                unsafe { forward_tile(arch, problem, first, operands, mask, memory, to, log_sums) };
            }
        });
    });
}

#[allow(clippy::too_many_arguments)]
unsafe fn forward_tile<T: Lanes>(
    arch: Arch,
    problem: &Problem,
    first: usize,
    [q, k, v]: [Matrix<T>; 3],
    mask: Option<Matrix<T>>,
    memory: *mut T,
    out: Matrix<T>,
    log_sums: *mut T,
) {
    let Sizes { queries, width, value_width, .. } = problem.sizes;
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
    let end = problem.visible(first + rows);
    for start in (0..end).step_by(KEYS) {
        let tile = Tile { first, rows, start, cols: KEYS.min(end - start) };
        let c = Matrix { ptr: scores.as_mut_ptr(), row: KEYS as isize, col: 1 };
        let (a, b) = (q.at(first, 0), k.at(start, 0).t());
        // SAFETY: the caller's promise; the products stay within their operands.
        unsafe {
            Product { m: rows, n: tile.cols, k: width, a, b, c, init: Init::Zero }.run(arch);
            simd_for::<T, _>(
                #[inline(always)]
                || {
                    for r in 0..rows {
                        let row = &mut scores[r * KEYS..][..tile.padded()];
                        let seen = finish_scores(problem, tile, r, row, mask);
                        row[seen..].fill(nothing);
                        let m = best[r].maximum(largest(row));
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
                // SAFETY: the caller's promise.
                unsafe { *log_sums.add(r) = log_sum };
            }
        },
    );
    let from = Matrix { ptr: values, row: value_width as isize, col: 1 };
    // SAFETY: the caller's promise.
    unsafe { copy_matrix(arch, rows, value_width, from, out) };
}

/// What a gradient is made from.
pub(crate) struct Saved<T> {
    pub(crate) q: Src<T>,
    pub(crate) k: Src<T>,
    pub(crate) v: Src<T>,
    pub(crate) mask: Option<Src<T>>,
    pub(crate) out: Src<T>,
    pub(crate) log_sums: Src<T>,
    pub(crate) g: Src<T>,
}

/// Writes the gradients of queries, keys and values, and the sums of `g out` of each query. Threads share the leading axes.
///
/// # Safety
/// As for [`forward`].
pub(crate) unsafe fn backward<T: Lanes>(
    problem: &Problem,
    workers: &Workers,
    from: &Saved<T>,
    [dq, dk, dv]: [Dst<T>; 3],
    products: Dst<T>,
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
                    q: problem.matrix(Q, &at, from.q),
                    k: problem.matrix(K, &at, from.k),
                    v: problem.matrix(V, &at, from.v),
                    mask: from.mask.map(|mask| problem.matrix(MASK, &at, mask)),
                    out: problem.matrix(OUT, &at, from.out),
                    g: problem.matrix(G, &at, from.g),
                    dq: problem.matrix(DQ, &at, dq.src()),
                    dk: problem.matrix(DK, &at, dk.src()),
                    dv: problem.matrix(DV, &at, dv.src()),
                    log_sums: from.log_sums.at((pair * queries) as isize),
                    products: products.at((pair * queries) as isize),
                    memory,
                };
                // SAFETY: the caller's promise; the leading axes of the outputs are disjoint.
                unsafe { pair.backward() };
            }
        });
    });
}

/// One product of queries and keys, with all its operands.
struct Pair<'a, T> {
    arch: Arch,
    problem: &'a Problem,
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
        let Sizes { queries, keys, width, value_width } = self.problem.sizes;
        // SAFETY: the caller's promise.
        unsafe {
            fill_zero(keys, width, self.dk);
            fill_zero(keys, value_width, self.dv);
            for first in (0..queries).step_by(QUERIES) {
                let rows = QUERIES.min(queries - first);
                simd_for::<T, _>(
                    #[inline(always)]
                    || self.sum_products(first, rows),
                );
                let end = self.problem.visible(first + rows);
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
            // SAFETY: the caller's promise.
            let total = unsafe { dot(self.problem.sizes.value_width, self.g.at(r, 0), self.out.at(r, 0)) };
            // SAFETY: the caller's promise.
            unsafe { *self.products.add(r) = total };
        }
    }

    unsafe fn backward_tile(&self, tile: Tile) {
        let Sizes { width, value_width, .. } = self.problem.sizes;
        let Tile { first, rows, start, cols } = tile;
        let scale = T::from_f64(self.problem.scale);
        let (q, k, g, v) =
            (self.q.at(first, 0), self.k.at(start, 0), self.g.at(first, 0), self.v.at(start, 0));
        let tile_at = |index: usize| Matrix {
            ptr: self.memory.wrapping_add(index * QUERIES * KEYS),
            row: KEYS as isize,
            col: 1,
        };
        let (weights, slopes) = (tile_at(0), tile_at(1));
        let run = |m, n, k, a, b, c, init| {
            // SAFETY: the caller's promise; the products stay within their operands.
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
                    // SAFETY: as above.
                    let (log_sum, product) =
                        unsafe { (*self.log_sums.add(first + r), *self.products.add(first + r)) };
                    let (p, u) = (&mut p[r * KEYS..][..tile.padded()], &mut u[r * KEYS..][..tile.padded()]);
                    // SAFETY: as above.
                    let seen = unsafe { finish_scores(self.problem, tile, r, p, self.mask) };
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
        // SAFETY: the caller's promise.
        let (a, b) = unsafe {
            let read = |x: Matrix<T>| x.at(0, j).ptr.cast::<[T; PAD]>().read_unaligned();
            (read(a), read(b))
        };
        for (part, (a, b)) in parts.iter_mut().zip(a.iter().zip(&b)) {
            *part = part.add(a.mul(*b));
        }
    }
    for j in whole..len {
        // SAFETY: the caller's promise.
        let product = unsafe { (*a.at(0, j).ptr).mul(*b.at(0, j).ptr) };
        parts[j % PAD] = parts[j % PAD].add(product);
    }
    join(
        parts,
        #[inline(always)]
        |a, b| a.add(b),
    )
}

/// # Safety
/// The elements can be written.
unsafe fn fill_zero<T: Lanes>(rows: usize, cols: usize, to: Matrix<T>) {
    for i in 0..rows {
        let row = to.at(i, 0);
        if row.col == 1 {
            // SAFETY: the caller's promise, and the elements lie next to each other.
            unsafe { std::slice::from_raw_parts_mut(row.ptr, cols) }.fill(T::ZERO);
            continue;
        }
        for j in 0..cols {
            // SAFETY: the caller's promise.
            unsafe { *row.at(0, j).ptr = T::ZERO };
        }
    }
}
