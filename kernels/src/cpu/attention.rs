//! Attention by tiles, forward and backward.
//!
//! A tile of scores, some queries by some keys, is a small matrix product; it is turned into weights in place, in the cache,
//! and multiplied with the values. Forward, a tile of queries keeps its largest score, its sum and its weighted values, and
//! corrects them when a later tile of keys brings a larger score. Backward, weights are made again from the scores and the
//! logarithm of their sum; the gradients of keys and values are added up over the tiles of queries, in order.

use pulp::Arch;

use super::inlined;
use super::lanes::{Lanes, join_tree, simd_for, with_scratch};
use super::product::{Matrix, Product, copy_matrix};
use super::random;
use crate::layout::{Dst, Src};
use crate::par::{Workers, for_range};
use crate::scores::{ScoreBatch, ScoreSizes};

/// Queries of a tile: few, so that a causal tile leaves out many keys.
const QUERIES: usize = 32;
/// Keys of a tile.
const KEYS: usize = 128;
const _: () = assert!(KEYS.is_multiple_of(random::KEYS), "weights are drawn for whole tiles");
/// Rows of a tile are padded to multiples of this, so that loops over them need no remainder.
const PAD: usize = 16;

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

/// Scales the scores of row `r` of a tile and adds the mask, if there is one. Gives the number of keys that the row sees; behind them the
/// scores mean nothing.
#[inline(always)]
unsafe fn finish_scores<T: Lanes>(
    problem: &ScoreBatch,
    tile: Tile,
    r: usize,
    row: &mut [T],
    mask: Matrix<T>,
) -> usize {
    let scale = T::from_f64(problem.kind.scale);
    let seen = if problem.kind.causal { (tile.first + r + 1).saturating_sub(tile.start) } else { tile.cols };
    let seen = seen.min(tile.cols);
    for x in row.iter_mut() {
        *x = x.mul(scale);
    }
    if !mask.ptr.is_null() {
        let mask = mask.at(tile.first + r, tile.start);
        for (c, x) in row[..seen].iter_mut().enumerate() {
            // SAFETY: the mask has an element for each query and key of the pair, and `first + r` and `start + c` are
            // a query and a key: `seen` is at most `cols`.
            *x = x.add(unsafe { *mask.at(0, c).ptr });
        }
    }
    seen
}

/// Multiplies each element of a row with one of `factors`.
#[inline(always)]
fn multiply<T: Lanes>(row: &mut [T], factors: &[T; KEYS]) {
    for (x, &factor) in row.iter_mut().zip(factors) {
        *x = x.mul(factor);
    }
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

pub(crate) unsafe fn forward<T: Lanes>(
    problem: &ScoreBatch,
    workers: &Workers,
    (([q, k, v], mask), (out, log_sums)): (Inputs<T, 3>, (Dst<T>, Dst<T>)),
) {
    let nowhere = Dst(std::ptr::null_mut());
    let none = nowhere.src();
    let operands = [q, k, v, mask.unwrap_or(none), out.src(), none, none, none, none];
    let ScoreSizes { queries, value_width, .. } = problem.sizes;
    let tiles = queries.div_ceil(QUERIES);
    for_range(workers, problem.batch.elements * tiles, 1, &|range| {
        with_scratch(QUERIES * (KEYS + value_width), |memory: *mut T| {
            for part in range {
                let pair = Pair::of(problem, part / tiles, &operands, [log_sums, nowhere], memory);
                // SAFETY: `Pair::of` places the matrices by `problem`, whose elements the operands have. Parts write
                // the rows of disjoint tiles of queries, and the scratch has room for a tile of scores and its
                // values.
                unsafe { pair.forward_tile(part % tiles * QUERIES) };
            }
        });
    });
}

/// Writes the gradients of queries, keys and values, and the sums of `g out` of each query. Threads share the leading axes.
pub(crate) unsafe fn backward<T: Lanes>(
    problem: &ScoreBatch,
    workers: &Workers,
    ([g, q, k, v, out], mask): Inputs<T, 5>,
    (log_sums, products): (Src<T>, Dst<T>),
    grads: [Dst<T>; 3],
) {
    let [dq, dk, dv] = grads.map(Dst::src);
    let operands = [q, k, v, mask.unwrap_or(Src(std::ptr::null())), out, g, dq, dk, dv];
    let rows = [Dst(log_sums.0.cast_mut()), products];
    for_range(workers, problem.batch.elements, 1, &|range| {
        with_scratch(2 * QUERIES * KEYS, |memory: *mut T| {
            for pair in range {
                let pair = Pair::of(problem, pair, &operands, rows, memory);
                // SAFETY: `Pair::of` places the matrices by `problem`, whose elements the operands have. Parts write
                // disjoint pairs of the outputs, and the scratch has room for two tiles.
                unsafe { pair.backward() };
            }
        });
    });
}

/// Writes what dropout multiplies weights with.
pub(crate) unsafe fn kept_weights<T: Lanes>(problem: &ScoreBatch, workers: &Workers, out: Dst<T>) {
    let none = Dst(std::ptr::null_mut());
    let mut operands = [none.src(); 9];
    operands[0] = out.src();
    for_range(workers, problem.batch.elements, 1, &|range| {
        for pair in range {
            let pair = Pair::of(problem, pair, &operands, [none, none], std::ptr::null_mut());
            // SAFETY: `Pair::of` places the output's matrix by `problem`, whose elements it has. Parts write disjoint
            // pairs.
            unsafe { pair.write_factors() };
        }
    });
}

/// Operands that are read, and the mask.
type Inputs<T, const N: usize> = ([Src<T>; N], Option<Src<T>>);

/// One product of queries and keys.
struct Pair<'a, T> {
    arch: Arch,
    problem: &'a ScoreBatch,
    number: usize,
    /// The operands in the order of [`ScoreBatch::steps`]; null where there is none.
    operands: [Matrix<T>; 9],
    log_sums: *mut T,
    products: *mut T,
    /// Room for a tile of scores and its values, or for two tiles.
    memory: *mut T,
}

impl<'a, T: Lanes> Pair<'a, T> {
    fn of(
        problem: &'a ScoreBatch,
        pair: usize,
        operands: &[Src<T>; 9],
        rows: [Dst<T>; 2],
        memory: *mut T,
    ) -> Pair<'a, T> {
        let at = problem.batch.offsets(pair);
        let operands = std::array::from_fn(|k| {
            let [row, col] = problem.steps[k];
            Matrix { ptr: operands[k].at(at[k]).cast_mut(), row, col }
        });
        let [log_sums, products] = rows.map(|rows| rows.at((pair * problem.sizes.queries) as isize));
        Pair { arch: Arch::new(), problem, number: pair, operands, log_sums, products, memory }
    }

    /// What dropout multiplies the weights of a query of a tile with.
    #[inline(always)]
    fn factors(&self, query: usize, start: usize) -> Option<[T; KEYS]> {
        let dropout = self.problem.kind.dropout?;
        let of_query = self.problem.query_number(self.number, query);
        let mut factors = [T::ZERO; KEYS];
        for (i, block) in factors.chunks_exact_mut(random::KEYS).enumerate() {
            let of_key = ScoreBatch::key_number(start + i * random::KEYS);
            block.copy_from_slice(&random::weights(&dropout, of_query, of_key));
        }
        Some(factors)
    }

    /// Writes the factors to the first operand.
    unsafe fn write_factors(&self) {
        let ScoreSizes { queries, keys, .. } = self.problem.sizes;
        for (query, start) in
            (0..queries).flat_map(|query| (0..keys).step_by(KEYS).map(move |key| (query, key)))
        {
            let factors = self.factors(query, start).unwrap_or([T::from_f64(1.0); KEYS]);
            for (i, factor) in factors.into_iter().enumerate().take(keys - start) {
                // SAFETY: `query` and `start + i` are below the sizes of the matrix, which `kept_weights`' caller
                // promises to be writable.
                unsafe { *self.operands[0].at(query, start + i).ptr = factor };
            }
        }
    }

    unsafe fn forward_tile(&self, first: usize) {
        let Pair { arch, problem, operands: [q, k, v, mask, out, ..], log_sums, memory, .. } = *self;
        let ScoreSizes { queries, width, value_width, .. } = problem.sizes;
        let rows = QUERIES.min(queries - first);
        let nothing = T::from_f64(f64::NEG_INFINITY);
        let (mut best, mut total) = ([nothing; QUERIES], [T::ZERO; QUERIES]);
        let values = memory.wrapping_add(QUERIES * KEYS);
        // SAFETY: `forward` lent scratch of `QUERIES * (KEYS + value_width)` elements, and `rows` is at most
        // `QUERIES`. Scratch is initialised, and no other part uses it.
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
            let c = Matrix::row_major(scores.as_mut_ptr(), KEYS);
            let (a, b) = (q.at(first, 0), k.at(start, 0).t());
            // SAFETY: `first + rows` is at most the queries and `start + cols` at most the keys, so the tile lies
            // within the matrices. `scores` has room for `rows` rows of `KEYS` and `sums` for `rows` of
            // `value_width`.
            unsafe {
                Product { m: rows, n: tile.cols, k: width, a, b, c, init: None }.run(arch);
                simd_for::<T, _>(inlined!(|| {
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
                        if let Some(factors) = self.factors(first + r, start) {
                            multiply(row, &factors);
                        }
                    }
                }));
                let c = Matrix::row_major(values, value_width);
                let a = Matrix::row_major(scores.as_mut_ptr(), KEYS);
                let b = v.at(start, 0);
                Product { m: rows, n: value_width, k: tile.cols, a, b, c, init: Some(c) }.run(arch);
            }
        }
        simd_for::<T, _>(inlined!(|| {
            for r in 0..rows {
                let seen = total[r] != T::ZERO;
                let scale = if seen { total[r].recip() } else { T::ZERO };
                for x in &mut sums[r * value_width..][..value_width] {
                    *x = x.mul(scale);
                }
                let log_sum = if seen { best[r].add(total[r].log()) } else { T::from_f64(f64::INFINITY) };
                // SAFETY: `log_sums` has an element for each query of the pair, and `first + r` is one.
                unsafe { *log_sums.add(first + r) = log_sum };
            }
        }));
        let from = Matrix::row_major(values, value_width);
        // SAFETY: the output has the queries `first..first + rows`, which this part alone writes, and `values` has as
        // many rows.
        unsafe { copy_matrix(arch, rows, value_width, from, out.at(first, 0)) };
    }

    unsafe fn backward(&self) {
        let ScoreSizes { queries, keys, width, value_width } = self.problem.sizes;
        let [.., dq, dk, dv] = self.operands;
        // SAFETY: tiles are cut from the matrices of the pair, whose elements `backward`'s caller promises, and this
        // part alone writes its gradients.
        unsafe {
            fill_zero(keys, width, dk);
            fill_zero(keys, value_width, dv);
            for first in (0..queries).step_by(QUERIES) {
                let rows = QUERIES.min(queries - first);
                simd_for::<T, _>(inlined!(|| self.sum_products(first, rows)));
                let end = visible(self.problem, first + rows);
                if end == 0 {
                    fill_zero(rows, width, dq.at(first, 0));
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
        let [_, _, _, _, out, g, ..] = self.operands;
        for r in first..first + rows {
            // SAFETY: `r` is below the queries, so both matrices have the row, of `value_width` elements, and
            // `products` has an element for it.
            unsafe { *self.products.add(r) = dot(self.problem.sizes.value_width, g.at(r, 0), out.at(r, 0)) };
        }
    }

    unsafe fn backward_tile(&self, tile: Tile) {
        let ScoreSizes { width, value_width, .. } = self.problem.sizes;
        let Tile { first, rows, start, cols } = tile;
        let scale = T::from_f64(self.problem.kind.scale);
        let [q, k, v, mask, _, g, dq, dk, dv] = self.operands;
        let ([q, g, dq], [k, v, dk, dv]) =
            ([q, g, dq].map(|m| m.at(first, 0)), [k, v, dk, dv].map(|m| m.at(start, 0)));
        let [weights, slopes] =
            [0, 1].map(|k| Matrix::row_major(self.memory.wrapping_add(k * QUERIES * KEYS), KEYS));
        let run = |m, n, k, a, b, c, init| {
            // SAFETY: `first + rows` is at most the queries and `start + cols` at most the keys, so the tile lies
            // within the matrices. `weights` and `slopes` are apart, with room for `QUERIES` rows of `KEYS`.
            unsafe { Product { m, n, k, a, b, c, init }.run(self.arch) };
        };
        run(rows, cols, width, q, k.t(), weights, None);
        run(rows, cols, value_width, g, v.t(), slopes, None);
        // SAFETY: `backward` lent scratch of two tiles, which is initialised and used by no other part.
        let (p, u) = unsafe {
            (
                std::slice::from_raw_parts_mut(weights.ptr, QUERIES * KEYS),
                std::slice::from_raw_parts_mut(slopes.ptr, QUERIES * KEYS),
            )
        };
        simd_for::<T, _>(inlined!(|| {
            for r in 0..rows {
                let (p, u) = (&mut p[r * KEYS..][..tile.padded()], &mut u[r * KEYS..][..tile.padded()]);
                // SAFETY: `log_sums` and `products` have an element for each query of the pair, and `first + r` is
                // one. The tile lies within the mask.
                let (log_sum, product, seen) = unsafe {
                    (
                        *self.log_sums.add(first + r),
                        *self.products.add(first + r),
                        finish_scores(self.problem, tile, r, p, mask),
                    )
                };
                // As in the forward pass.
                p[seen..].fill(log_sum);
                let factors = self.factors(first + r, start);
                if let Some(factors) = &factors {
                    multiply(u, factors);
                }
                for (p, u) in p.iter_mut().zip(u.iter_mut()) {
                    *p = p.sub(log_sum).exp();
                    *u = p.mul(u.sub(product)).mul(scale);
                }
                if let Some(factors) = &factors {
                    multiply(p, factors);
                }
                p[seen..].fill(T::ZERO);
                u[seen..].fill(T::ZERO);
            }
        }));
        run(cols, value_width, rows, weights.t(), g, dv, Some(dv));
        let init = (start > 0).then_some(dq);
        run(rows, width, cols, slopes, k, dq, init);
        run(cols, width, rows, slopes.t(), q, dk, Some(dk));
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
        // SAFETY: both rows have `len >= j + PAD` elements, and columns lie next to each other where `whole` is not
        // 0.
        let (a, b) = unsafe {
            let read = |x: Matrix<T>| x.at(0, j).ptr.cast::<[T; PAD]>().read_unaligned();
            (read(a), read(b))
        };
        for (part, (a, b)) in parts.iter_mut().zip(a.iter().zip(&b)) {
            *part = part.add(a.mul(*b));
        }
    }
    for j in whole..len {
        // SAFETY: `j` is below `len`, the length that the caller promises for both rows.
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
            // SAFETY: row `i` has `cols` elements next to each other, which the caller promises to be writable.
            unsafe { std::slice::from_raw_parts_mut(row.ptr, cols) }.fill(T::ZERO);
            continue;
        }
        for j in 0..cols {
            // SAFETY: `i` and `j` are below the sizes of the matrix, which the caller promises to be writable.
            unsafe { *row.at(0, j).ptr = T::ZERO };
        }
    }
}
