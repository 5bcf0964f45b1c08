//! The matrix product on one thread: `C = init + A B`.
//!
//! The order of the sum is fixed. `k` is cut into blocks of [`BLOCK_K`]; within a block the products are
//! accumulated from zero by fused multiply-adds in the order of `k`, and the blocks' sums are added to the
//! initial value in order. Nothing else has a say: not the strides, the alignment, the instruction set, the
//! neighbours of an element, nor how the product is cut into parts. So every path below may be taken freely.

use pulp::{Arch, Simd, WithSimd};

use super::lanes::{Lanes, copy_run, transpose, with_scratch};
use super::{each, inlined};

/// Products that are summed from zero before they are added to the result.
pub(crate) const BLOCK_K: usize = 256;
// Rows whose part of A stays in the second-level cache while all panels of B pass by.
const BLOCK_M: usize = 480;
// A swapped product goes through a transposed copy of C, at most this many rows and columns at a time.
const SWAP_ROWS: usize = 512;
const SWAP_COLS: usize = 1024;
// Elements of distance between packed rows beyond their length, so that rows do not share cache sets.
pub(crate) const ROW_PAD: usize = 16;

/// A matrix in memory: where it begins, and its steps from row to row and from column to column.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<T> {
    pub(crate) ptr: *mut T,
    pub(crate) row: isize,
    pub(crate) col: isize,
}

// SAFETY: a matrix is an address and two steps. Every access through it is unsafe and has its own argument.
unsafe impl<T> Send for Matrix<T> {}
// SAFETY: no method accesses the elements safely; see `Send`.
unsafe impl<T> Sync for Matrix<T> {}

impl<T> Matrix<T> {
    /// A matrix whose rows are `row` elements apart, and whose columns lie next to each other.
    #[inline(always)]
    pub(crate) fn row_major(ptr: *mut T, row: usize) -> Self {
        Matrix { ptr, row: row as isize, col: 1 }
    }

    /// The part that begins at row `i` and column `j`.
    #[inline(always)]
    pub(crate) fn at(self, i: usize, j: usize) -> Self {
        let steps = i as isize * self.row + j as isize * self.col;
        Matrix { ptr: self.ptr.wrapping_offset(steps), ..self }
    }

    /// The transpose.
    #[inline(always)]
    pub(crate) fn t(self) -> Self {
        Matrix { ptr: self.ptr, row: self.col, col: self.row }
    }
}

/// A product `C[m, n] = init + A[m, k] B[k, n]`.
#[derive(Clone, Copy)]
pub(crate) struct Product<T> {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a: Matrix<T>,
    pub(crate) b: Matrix<T>,
    pub(crate) c: Matrix<T>,
    /// What the sums are added to; nothing if `None`. It may be C itself, or a bias with step 0 along an axis.
    pub(crate) init: Option<Matrix<T>>,
}

impl<T: Lanes> Product<T> {
    /// The rows and columns of the product that begin at `(i, j)`.
    pub(crate) fn part(self, i: usize, m: usize, j: usize, n: usize) -> Self {
        let Product { a, b, c, init, .. } = self;
        let init = init.map(|init| init.at(i, j));
        Product { m, n, a: a.at(i, 0), b: b.at(0, j), c: c.at(i, j), init, ..self }
    }

    /// `C^T = init^T + B^T A^T`.
    fn t(self) -> Self {
        let Product { m, n, k, a, b, c, init } = self;
        Product { m: n, n: m, k, a: b.t(), b: a.t(), c: c.t(), init: init.map(Matrix::t) }
    }

    /// Runs the product on this thread.
    ///
    /// # Safety
    /// All elements of A, B and the initial values can be read, those of C can be read and written, and C overlaps A and
    /// B nowhere. The initial values are those of C, element for element, or apart from them.
    pub(crate) unsafe fn run(self, arch: Arch) {
        let Product { m, n, c, init, .. } = self;
        if m == 0 || n == 0 {
            return;
        }
        // A row of initial values is a vector or one value.
        let is_readable = |init: Option<Matrix<T>>| init.is_none_or(|init| init.col == 1 || init.col == 0);
        // SAFETY: the caller vouches for A, B, C and the initial values, and transposes and copies address the same
        // elements.
        unsafe {
            if c.col != 1 || !is_readable(init) {
                if c.row == 1 && is_readable(init.map(Matrix::t)) {
                    self.t().run(arch);
                } else {
                    self.run_through_scratch(arch, false);
                }
            } else if self.swap_pays(T::lanes_of(arch)) {
                self.run_through_scratch(arch, true);
            } else {
                self.run_rows(arch);
            }
        }
    }

    /// Whether `C^T = B^T A^T`, with the small transposes that it takes, is cheaper than the product as it is:
    /// if C is narrower than a vector, or if B is large and must be transposed to be read.
    fn swap_pays(&self, lanes: usize) -> bool {
        // In tenths of a cycle: a vector multiply-add takes 5, 10 where there is one per broadcast, more where
        // few rows leave the units waiting; moving an element takes 4.
        fn cost(m: usize, n: usize, k: usize, lanes: usize, moved: usize) -> usize {
            let vector = if n <= lanes { 10 } else { 5 } * if m >= 4 { 1 } else { 4 / m };
            m.saturating_mul(k)
                .saturating_mul(n.div_ceil(lanes))
                .saturating_mul(vector)
                .saturating_add(4 * moved)
        }
        let Product { m, n, k, a, b, .. } = *self;
        let direct = cost(m, n, k, lanes, if b.col == 1 { 0 } else { n * k });
        let swapped = cost(n, m, k, lanes, m * n + if a.row == 1 { 0 } else { m * k });
        swapped.saturating_add(500) < direct
    }

    // Computes blocks of C, or of its transpose, in scratch memory and moves them into place.
    unsafe fn run_through_scratch(self, arch: Arch, swap: bool) {
        for i in (0..self.m).step_by(SWAP_ROWS) {
            let m = SWAP_ROWS.min(self.m - i);
            for j in (0..self.n).step_by(SWAP_COLS) {
                let n = SWAP_COLS.min(self.n - j);
                let part = self.part(i, m, j, n);
                // SAFETY: the caller vouches for A, B, C and the initial values, of which these are parts. The
                // scratch has `m * n` elements.
                with_scratch::<T, ()>(m * n, |block| unsafe {
                    let block =
                        if swap { Matrix::row_major(block, m).t() } else { Matrix::row_major(block, n) };
                    let init = part.init.map(|from| {
                        copy_matrix(arch, m, n, from, block);
                        block
                    });
                    let inner = Product { c: block, init, ..part };
                    if swap { inner.t() } else { inner }.run_rows(arch);
                    copy_matrix(arch, m, n, block, part.c);
                });
            }
        }
    }

    // The product with the columns of C next to each other.
    unsafe fn run_rows(self, arch: Arch) {
        let Product { m, n, k, a, b, c, init } = self;
        let left = Stored { matrix: a, pack: self.packs_a() };
        let right = Stored { matrix: b, pack: self.packs_b() };
        // SAFETY: `run`'s caller vouches for A, B, C and the initial values, and `run` calls this only if columns of
        // C lie next to each other, and those of the initial values so or at one place.
        unsafe { run_between(arch, [m, n, k], left, right, c, init) }
    }

    // Long strides between the elements that a tile reads together make them share cache sets.
    fn packs_a(&self) -> bool {
        let Product { n, k, a, .. } = *self;
        k >= 192 && n >= 128 && (a.col != 1 || (a.row * size_of::<T>() as isize >= 2048 && n >= 256))
    }

    fn packs_b(&self) -> bool {
        let Product { m, b, .. } = *self;
        b.col != 1 || (m >= 96 && b.row * size_of::<T>() as isize >= 2048)
    }

    /// Whether the product is better cut into parts of its rows than of its columns: each part copies what it needs of the
    /// operand that is not cut.
    pub(crate) fn splits_by_rows(&self) -> bool {
        let copied_b = if self.packs_b() { self.n } else { 0 };
        let copied_a = if self.packs_a() { self.m } else { 0 };
        (copied_b, self.n) <= (copied_a, self.m)
    }
}

/// An operand of a product, whose parts can be had in memory.
pub(crate) trait Operand<T: Lanes>: Copy {
    type Part: ByColumns<T>;

    /// Whether its parts are copied.
    fn packs(self) -> bool;

    /// The part of the given size from row `at[0]` and column `at[1]` on. If it packs, it is copied to `to`, with rows
    /// that are `row` elements apart.
    ///
    /// # Safety
    /// The operand has this part, and `to` has room for it if it packs.
    unsafe fn part<S: Simd>(
        self,
        simd: S,
        at: [usize; 2],
        size: [usize; 2],
        to: *mut T,
        row: usize,
    ) -> Self::Part;
}

/// A matrix of which tiles read one column after the other.
pub(crate) trait ByColumns<T>: Copy {
    /// The rows from row `i` on.
    fn below(self, i: usize) -> Self;
    /// The address of row `r` in this column.
    fn element(&self, r: usize) -> *const T;
    fn next_column(&mut self);
}

impl<T: Copy> ByColumns<T> for Matrix<T> {
    #[inline(always)]
    fn below(self, i: usize) -> Self {
        self.at(i, 0)
    }

    #[inline(always)]
    fn element(&self, r: usize) -> *const T {
        self.at(r, 0).ptr
    }

    #[inline(always)]
    fn next_column(&mut self) {
        self.ptr = self.ptr.wrapping_offset(self.col);
    }
}

/// A matrix that lies in memory, and whether its parts are copied nevertheless.
#[derive(Clone, Copy)]
pub(crate) struct Stored<T> {
    pub(crate) matrix: Matrix<T>,
    pub(crate) pack: bool,
}

impl<T: Lanes> Operand<T> for Stored<T> {
    type Part = Matrix<T>;

    #[inline(always)]
    fn packs(self) -> bool {
        self.pack
    }

    #[inline(always)]
    unsafe fn part<S: Simd>(
        self,
        simd: S,
        at: [usize; 2],
        [rows, cols]: [usize; 2],
        to: *mut T,
        row: usize,
    ) -> Matrix<T> {
        let from = self.matrix.at(at[0], at[1]);
        if !self.pack {
            return from;
        }
        let to = Matrix::row_major(to, row);
        // SAFETY: the caller promises that the operand has this part, and room for it at `to`.
        unsafe {
            if from.col == 1 {
                for i in 0..rows {
                    copy_run(simd, cols, from.at(i, 0).ptr, to.at(i, 0).ptr);
                }
            } else {
                Move { rows, cols, from, to }.run::<S>();
            }
        }
        to
    }
}

/// `C[m, n] = init + A[m, k] B[k, n]` for operands that need not lie in memory, see [`Product`].
///
/// # Safety
/// As for [`Product::run`], with the columns of C next to each other, and those of the initial values so or at one place.
pub(crate) unsafe fn run_between<T: Lanes, A: Operand<T>, B: Operand<T, Part = Matrix<T>>>(
    arch: Arch,
    [m, n, k]: [usize; 3],
    a: A,
    b: B,
    c: Matrix<T>,
    init: Option<Matrix<T>>,
) {
    let depth = BLOCK_K.min(k);
    let size_b = if b.packs() { depth * 2 * T::lanes_of(arch) } else { 0 };
    let size_a = if a.packs() { BLOCK_M.min(m) * (depth + ROW_PAD) } else { 0 };
    with_scratch::<T, ()>(size_a + size_b, |packed_b| {
        let packed_a = packed_b.wrapping_add(size_b);
        arch.dispatch(Panels { size: [m, n, k], a, b, c, init, packed_a, packed_b });
    });
}

/// Copies a matrix; transposes fast where one lies along its rows and the other along its columns.
///
/// # Safety
/// Both have `rows` by `cols` elements, to be read and to be written, and do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_matrix<T: Copy>(
    arch: Arch,
    rows: usize,
    cols: usize,
    from: Matrix<T>,
    to: Matrix<T>,
) {
    arch.dispatch(Move { rows, cols, from, to });
}

struct Move<T> {
    rows: usize,
    cols: usize,
    from: Matrix<T>,
    to: Matrix<T>,
}

impl<T: Copy> Move<T> {
    /// # Safety
    /// As for [`copy_matrix`].
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Move { rows, cols, from, to } = self;
        // SAFETY: the caller promises `rows` by `cols` elements on both sides, which do not overlap.
        unsafe {
            if from.col == 1 && to.col == 1 {
                for i in 0..rows {
                    std::ptr::copy_nonoverlapping(from.at(i, 0).ptr, to.at(i, 0).ptr, cols);
                }
            } else if from.col == 1 && to.row == 1 {
                transpose::<T, S>(rows, cols, from.ptr, from.row, to.ptr, to.col);
            } else if from.row == 1 && to.col == 1 {
                transpose::<T, S>(cols, rows, from.ptr, from.col, to.ptr, to.row);
            } else {
                for i in 0..rows {
                    for j in 0..cols {
                        *to.at(i, j).ptr = *from.at(i, j).ptr;
                    }
                }
            }
        }
    }
}

impl<T: Copy> WithSimd for Move<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        // SAFETY: the contract is that of `copy_matrix`, which alone dispatches this.
        unsafe { self.run::<S>() }
    }
}

// A product with the columns of C next to each other. `packed_a` has room for a block of rows of A, `packed_b`
// for a panel of B, where they are copied.
struct Panels<T, A, B> {
    size: [usize; 3],
    a: A,
    b: B,
    c: Matrix<T>,
    init: Option<Matrix<T>>,
    packed_a: *mut T,
    packed_b: *mut T,
}

impl<T: Lanes, A: Operand<T>, B: Operand<T, Part = Matrix<T>>> WithSimd for Panels<T, A, B> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Panels { size: [m, n, k], a, b, c, init, packed_a, packed_b } = self;
        let panel = 2 * T::lanes::<S>();
        for i in (0..m).step_by(BLOCK_M) {
            let rows = BLOCK_M.min(m - i);
            let mut p = 0;
            // Once even if k is 0, for the initial values.
            loop {
                let depth = BLOCK_K.min(k - p);
                // SAFETY: `i + rows` is at most `m` and `p + depth` at most `k`, so A has these elements; `packed_a`
                // has room for a block of rows if A packs.
                let a = unsafe { a.part(simd, [i, p], [rows, depth], packed_a, depth + ROW_PAD) };
                for j in (0..n).step_by(panel) {
                    let cols = panel.min(n - j);
                    // SAFETY: `p + depth` is at most `k` and `j + cols` at most `n`, so B has these elements;
                    // `packed_b` has room for a panel if B packs.
                    let b = unsafe { b.part(simd, [p, j], [depth, cols], packed_b, panel) };
                    let c = c.at(i, j);
                    let init = if p == 0 { init.map(|init| init.at(i, j)) } else { Some(c) };
                    // SAFETY: `a` has `rows` rows and `b` `cols` columns of depth `depth`, and C has these rows and
                    // columns from `[i, j]` on.
                    unsafe { run_panel(simd, [rows, cols, depth], a, b.t(), c, init) };
                }
                p += depth;
                if p >= k {
                    break;
                }
            }
        }
    }
}

/// `C[m, n] = init + A[m, k] B[k, n]` for at most two vectors of columns, which lie next to each other in B and C.
/// `b` is the transpose of B.
///
/// # Safety
/// The rows of A and B have `k` elements and `n`, C and what is added to have room for `m` rows of `n`, and C overlaps nothing.
#[inline(always)]
pub(crate) unsafe fn run_panel<T: Lanes, S: Simd, A: ByColumns<T>, B: ByColumns<T>>(
    simd: S,
    [m, n, k]: [usize; 3],
    a: A,
    b: B,
    c: Matrix<T>,
    init: Option<Matrix<T>>,
) {
    let lanes = T::lanes::<S>();
    let rest = T::mask(simd, if n > lanes { n - lanes } else { n });
    if n == 2 * lanes {
        simd.vectorize(Panel::<T, S, A, B, true, false> { simd, size: [m, k], a, b, c, init, rest });
    } else if n > lanes {
        simd.vectorize(Panel::<T, S, A, B, true, true> { simd, size: [m, k], a, b, c, init, rest });
    } else {
        simd.vectorize(Panel::<T, S, A, B, false, true> { simd, size: [m, k], a, b, c, init, rest });
    }
}

// All rows of one panel of C: one vector wide, or two if WIDE; the last vector is partial if MASKED.
struct Panel<T: Lanes, S: Simd, A, B, const WIDE: bool, const MASKED: bool> {
    simd: S,
    size: [usize; 2],
    a: A,
    b: B,
    c: Matrix<T>,
    init: Option<Matrix<T>>,
    rest: T::Mask<S>,
}

impl<T: Lanes, R: Simd, A: ByColumns<T>, B: ByColumns<T>, const WIDE: bool, const MASKED: bool> WithSimd
    for Panel<T, R, A, B, WIDE, MASKED>
{
    type Output = ();

    // `vectorize` makes this a function of its own, small enough to be optimised well, with R's features.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let [m, _] = self.size;
        let many_registers = R::REGISTER_COUNT >= 32;
        let mut i = 0;
        while i < m {
            let rows = match m - i {
                // One row by itself would take as long as eight.
                13 if many_registers => 13,
                12.. if many_registers => 12,
                8.. if many_registers => 8,
                6.. => 6,
                4.. => 4,
                2.. => 2,
                _ => 1,
            };
            // SAFETY: a tile takes at most the rows that A and C still have from `i` on.
            unsafe {
                match rows {
                    13 => self.tile::<13>(i),
                    12 => self.tile::<12>(i),
                    8 => self.tile::<8>(i),
                    6 => self.tile::<6>(i),
                    4 => self.tile::<4>(i),
                    2 => self.tile::<2>(i),
                    _ => self.tile::<1>(i),
                }
            }
            i += rows;
        }
    }
}

impl<T: Lanes, S: Simd, A: ByColumns<T>, B: ByColumns<T>, const WIDE: bool, const MASKED: bool>
    Panel<T, S, A, B, WIDE, MASKED>
{
    #[inline(always)]
    unsafe fn load(&self, from: *const T, second: bool) -> T::Vector<S> {
        let lanes = T::lanes::<S>();
        // SAFETY: `tile` passes addresses of rows of a panel; the vector that is not whole is masked to the panel's
        // columns.
        unsafe {
            let from = if second { from.add(lanes) } else { from };
            if MASKED && second == WIDE {
                T::load_masked(self.simd, self.rest, from)
            } else {
                T::load(self.simd, from)
            }
        }
    }

    #[inline(always)]
    unsafe fn store(&self, to: *mut T, second: bool, value: T::Vector<S>) {
        let lanes = T::lanes::<S>();
        // SAFETY: `tile` passes addresses of rows of a panel; the vector that is not whole is masked to the panel's
        // columns.
        unsafe {
            let to = if second { to.add(lanes) } else { to };
            if MASKED && second == WIDE {
                T::store_masked(self.simd, self.rest, to, value);
            } else {
                T::store(self.simd, to, value);
            }
        }
    }

    // ROWS rows of C from row `i` on, accumulated in registers.
    #[inline(always)]
    unsafe fn tile<const ROWS: usize>(&self, i: usize) {
        let simd = self.simd;
        let ([_, k], init) = (self.size, self.init);
        let is_splat = init.is_some_and(|init| init.col == 0);
        let zero = T::splat(simd, T::ZERO);
        let mut first = [zero; ROWS];
        let mut second = [zero; ROWS];
        let (mut a, mut b, c) = (self.a.below(i), self.b, self.c.at(i, 0));
        // SAFETY: rows `i..i + ROWS` exist in A and C, and the panel's columns in B, C and the initial values.
        unsafe {
            for _ in 0..k {
                let row = b.element(0);
                let b0 = self.load(row, false);
                let b1 = if WIDE { self.load(row, true) } else { zero };
                each::<ROWS>(inlined!(|r| {
                    let x = T::splat(simd, *a.element(r));
                    first[r] = T::mul_add(simd, x, b0, first[r]);
                    if WIDE {
                        second[r] = T::mul_add(simd, x, b1, second[r]);
                    }
                }));
                a.next_column();
                b.next_column();
            }
            each::<ROWS>(inlined!(|r| {
                let to = c.at(r, 0).ptr;
                let from = init.map_or(std::ptr::null(), |init| init.at(i + r, 0).ptr.cast_const());
                if !from.is_null() && is_splat {
                    let value = T::splat(simd, *from);
                    first[r] = T::v_add(simd, value, first[r]);
                    second[r] = T::v_add(simd, value, second[r]);
                } else if !from.is_null() {
                    first[r] = T::v_add(simd, self.load(from, false), first[r]);
                    if WIDE {
                        second[r] = T::v_add(simd, self.load(from, true), second[r]);
                    }
                }
                self.store(to, false, first[r]);
                if WIDE {
                    self.store(to, true, second[r]);
                }
            }));
        }
    }
}
