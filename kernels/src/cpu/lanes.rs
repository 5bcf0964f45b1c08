//! Vectors of `f32` and `f64` under one name, fast transposition, and scratch memory.

use std::cell::RefCell;
use std::ops::Range;

use pulp::{Arch, MemMask, Simd, WithSimd};

use super::number::Real;
use super::walk::map_run;
use super::{array, inlined, simd};
use crate::par::{Workers, for_range};

/// A float whose vectors a [`Simd`] instruction set can handle.
pub(crate) trait Lanes: Real + Scratch {
    /// A vector of this type.
    type Vector<S: Simd>: Copy;
    /// Which elements of a vector are meant.
    type Mask<S: Simd>: Copy;

    /// Elements of a vector.
    fn lanes<S: Simd>() -> usize;
    /// The vector whose elements are all `x`.
    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;
    /// `a + b`.
    fn v_add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a - b`.
    fn v_sub<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a * b`.
    fn v_mul<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a / b`.
    fn v_div<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// Square root.
    fn v_sqrt<S: Simd>(simd: S, a: Self::Vector<S>) -> Self::Vector<S>;
    /// `if a < b { yes } else { no }`, of `[a, b]` and `[yes, no]`.
    fn v_select_less<S: Simd>(
        simd: S,
        sides: [Self::Vector<S>; 2],
        results: [Self::Vector<S>; 2],
    ) -> Self::Vector<S>;
    /// `a * b + c`, rounded once.
    fn mul_add<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;
    /// The elements of a range.
    fn mask_of<S: Simd>(simd: S, range: Range<usize>) -> Self::Mask<S>;
    /// The first `n` elements.
    #[inline(always)]
    fn mask<S: Simd>(simd: S, n: usize) -> Self::Mask<S> {
        Self::mask_of(simd, 0..n)
    }
    /// `a + b` where the mask is, else `a`.
    fn add_masked<S: Simd>(
        simd: S,
        mask: Self::Mask<S>,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
    ) -> Self::Vector<S>;
    /// # Safety
    /// All elements at `from` can be read.
    #[inline(always)]
    unsafe fn load<S: Simd>(_: S, from: *const Self) -> Self::Vector<S> {
        // SAFETY: the caller promises that the vector's elements can be read; a vector has their layout, and any bits
        // are a value.
        unsafe { from.cast::<Self::Vector<S>>().read_unaligned() }
    }
    /// # Safety
    /// All elements at `to` can be written.
    #[inline(always)]
    unsafe fn store<S: Simd>(_: S, to: *mut Self, value: Self::Vector<S>) {
        // SAFETY: the caller promises that the vector's elements can be written; a vector has their layout.
        unsafe { to.cast::<Self::Vector<S>>().write_unaligned(value) }
    }
    /// # Safety
    /// The elements of the mask at `from` can be read.
    unsafe fn load_masked<S: Simd>(simd: S, mask: Self::Mask<S>, from: *const Self) -> Self::Vector<S>;
    /// # Safety
    /// The elements of the mask at `to` can be written.
    unsafe fn store_masked<S: Simd>(simd: S, mask: Self::Mask<S>, to: *mut Self, value: Self::Vector<S>);
    /// Elements of a vector of the instruction set that `arch` has chosen.
    fn lanes_of(arch: Arch) -> usize {
        struct Ask<T>(std::marker::PhantomData<T>);
        impl<T: Lanes> WithSimd for Ask<T> {
            type Output = usize;
            #[inline(always)]
            fn with_simd<S: Simd>(self, _: S) -> usize {
                T::lanes::<S>()
            }
        }
        arch.dispatch(Ask::<Self>(std::marker::PhantomData))
    }
}

/// What [`Lanes`] asks of vectors, by the names that [`Simd`] has for those of a type.
macro_rules! vectors {
    (
        $vector:ident, $mask:ident, $count:ident, $splat:ident, $less:ident, $select:ident, $between:ident, $load:ident,
        $store:ident, $($name:ident($($argument:ident),+) = $function:ident),+
    ) => {
        type Vector<S: Simd> = S::$vector;
        type Mask<S: Simd> = S::$mask;

        #[inline(always)]
        fn lanes<S: Simd>() -> usize {
            S::$count
        }
        #[inline(always)]
        fn splat<S: Simd>(simd: S, x: Self) -> S::$vector {
            simd.$splat(x)
        }
        $(#[inline(always)]
        fn $name<S: Simd>(simd: S, $($argument: S::$vector),+) -> S::$vector {
            simd.$function($($argument),+)
        })+
        #[inline(always)]
        fn v_select_less<S: Simd>(
            simd: S,
            [a, b]: [S::$vector; 2],
            [yes, no]: [S::$vector; 2],
        ) -> S::$vector {
            simd.$select(simd.$less(a, b), yes, no)
        }
        #[inline(always)]
        fn mask_of<S: Simd>(simd: S, range: Range<usize>) -> S::$mask {
            // It has no such mask for ranges that are empty behind all elements.
            let range = if range.is_empty() { 0..0 } else { range };
            simd.$between(range.start as _, range.end as _).mask()
        }
        #[inline(always)]
        fn add_masked<S: Simd>(simd: S, mask: S::$mask, a: S::$vector, b: S::$vector) -> S::$vector {
            simd.$select(mask, Self::v_add(simd, a, b), a)
        }
        #[inline(always)]
        unsafe fn load_masked<S: Simd>(simd: S, mask: S::$mask, from: *const Self) -> S::$vector {
            // SAFETY: the caller promises that the elements in the mask can be read, and the others are not accessed.
            unsafe { simd.$load(MemMask::new(mask), from) }
        }
        #[inline(always)]
        unsafe fn store_masked<S: Simd>(simd: S, mask: S::$mask, to: *mut Self, value: S::$vector) {
            // SAFETY: the caller promises that the elements in the mask can be written, and the others are not
            // accessed.
            unsafe { simd.$store(MemMask::new(mask), to, value) }
        }
    };
}

impl Lanes for f32 {
    vectors! {
        f32s, m32s, F32_LANES, splat_f32s, less_than_f32s, select_f32s, mask_between_m32s, mask_load_ptr_f32s,
        mask_store_ptr_f32s, v_add(a, b) = add_f32s, v_sub(a, b) = sub_f32s, v_mul(a, b) = mul_f32s,
        v_div(a, b) = div_f32s, v_sqrt(a) = sqrt_f32s, mul_add(a, b, c) = mul_add_f32s
    }
}

impl Lanes for f64 {
    vectors! {
        f64s, m64s, F64_LANES, splat_f64s, less_than_f64s, select_f64s, mask_between_m64s, mask_load_ptr_f64s,
        mask_store_ptr_f64s, v_add(a, b) = add_f64s, v_sub(a, b) = sub_f64s, v_mul(a, b) = mul_f64s,
        v_div(a, b) = div_f64s, v_sqrt(a) = sqrt_f64s, mul_add(a, b, c) = mul_add_f64s
    }
}

/// Writes the transpose of `rows` by `cols` elements, whose rows are `from_row` and `to_row` elements apart.
///
/// # Safety
/// All elements can be read and written, and the two matrices do not overlap.
#[inline(always)]
pub(crate) unsafe fn transpose<T: Copy, S: Simd>(
    rows: usize,
    cols: usize,
    from: *const T,
    from_row: isize,
    to: *mut T,
    to_row: isize,
) {
    let least = rows.min(cols);
    // SAFETY: the contract is the same.
    unsafe {
        match size_of::<T>() {
            8 => transpose_by::<T, S, 4>(rows, cols, from, from_row, to, to_row),
            1 | 2 if least >= 16 => transpose_by::<T, S, 16>(rows, cols, from, from_row, to, to_row),
            _ => transpose_by::<T, S, 8>(rows, cols, from, from_row, to, to_row),
        }
    }
}

/// Transposes by square tiles of `TILE` rows. The last ones in each direction end at the edge, and overlap those before
/// them; matrices smaller than a tile are transposed element by element.
///
/// # Safety
/// As for [`transpose`].
#[inline(always)]
unsafe fn transpose_by<T: Copy, S: Simd, const TILE: usize>(
    rows: usize,
    cols: usize,
    from: *const T,
    from_row: isize,
    to: *mut T,
    to_row: isize,
) {
    let at = inlined!(|i: usize, j: usize| {
        let from = from.wrapping_offset(i as isize * from_row).wrapping_add(j);
        (from, to.wrapping_offset(j as isize * to_row).wrapping_add(i))
    });
    if rows < TILE || cols < TILE {
        for i in 0..rows {
            for j in 0..cols {
                let (from, to) = at(i, j);
                // SAFETY: `i` and `j` are a row and a column of both matrices.
                unsafe { *to = *from };
            }
        }
        return;
    }
    for i in (0..rows).step_by(TILE) {
        for j in (0..cols).step_by(TILE) {
            let (from, to) = at(i.min(rows - TILE), j.min(cols - TILE));
            // SAFETY: the tile is within both matrices, which do not overlap. Vectors of 32 bytes mean AVX on x86-64.
            unsafe {
                #[cfg(target_arch = "x86_64")]
                if S::F32_LANES >= 8 && size_of::<T>() >= 4 {
                    transpose_avx(from, from_row, to, to_row);
                    continue;
                }
                transpose_tile::<T, TILE>(from, from_row, to, to_row);
            }
        }
    }
}

/// Writes the transpose of a tile.
///
/// # Safety
/// As for [`transpose`].
#[inline(always)]
unsafe fn transpose_tile<T: Copy, const TILE: usize>(
    from: *const T,
    from_row: isize,
    to: *mut T,
    to_row: isize,
) {
    // SAFETY: the caller promises `TILE` rows of `TILE` elements on both sides.
    unsafe {
        let mut tile = [[*from; TILE]; TILE];
        for (i, row) in tile.iter_mut().enumerate() {
            *row = from.offset(i as isize * from_row).cast::<[T; TILE]>().read_unaligned();
        }
        // The compiler makes better code of the plain transpose, but for tiles of 16 rows.
        if TILE < 16 {
            tile = std::array::from_fn(|j| tile.map(|row| row[j]));
        } else {
            // Interleaving the halves rotates the bits of an element's index by one; the upper half of them is the row.
            for _ in 0..TILE.ilog2() {
                let old = tile;
                let (low, high) = old.as_flattened().split_at(TILE * TILE / 2);
                let pairs = tile.as_flattened_mut().chunks_exact_mut(2);
                for ((pair, &low), &high) in pairs.zip(low).zip(high) {
                    (pair[0], pair[1]) = (low, high);
                }
            }
        }
        for (j, row) in tile.into_iter().enumerate() {
            to.offset(j as isize * to_row).cast::<[T; TILE]>().write_unaligned(row);
        }
    }
}

/// Writes the transpose of a block of eight rows of eight words, or of four rows of four words of 64 bits.
///
/// # Safety
/// As for [`transpose`], on a machine that has AVX. Elements have 4 or 8 bytes.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx")]
unsafe fn transpose_avx<T>(from: *const T, from_row: isize, to: *mut T, to_row: isize) {
    use std::arch::x86_64::{
        __m256, _mm_loadu_ps, _mm256_castps128_ps256, _mm256_insertf128_ps, _mm256_shuffle_ps,
        _mm256_storeu_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps,
    };
    let half = 16 / size_of::<T>() as isize;
    // SAFETY: the caller promises `2 * half` rows of as many elements to read and to write, and AVX, for which this is
    // compiled.
    unsafe {
        for col in [0, half] {
            // Half of row r beside half of row r + half, so that lanes need not be crossed later.
            let pair = inlined!(|r: isize| {
                let low = _mm_loadu_ps(from.offset(r * from_row + col).cast());
                let high = _mm_loadu_ps(from.offset((r + half) * from_row + col).cast());
                _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high)
            });
            // Two rows: the lower, and the upper 64 bits of each lane.
            let put = inlined!(|r: isize, a: __m256, b: __m256| {
                let at = inlined!(|r: isize| to.offset((col + r) * to_row).cast());
                _mm256_storeu_ps(at(r), _mm256_shuffle_ps::<0b01_00_01_00>(a, b));
                _mm256_storeu_ps(at(r + 1), _mm256_shuffle_ps::<0b11_10_11_10>(a, b));
            });
            if half == 2 {
                put(0, pair(0), pair(1));
            } else {
                let (r0, r1, r2, r3) = (pair(0), pair(1), pair(2), pair(3));
                put(0, _mm256_unpacklo_ps(r0, r1), _mm256_unpacklo_ps(r2, r3));
                put(2, _mm256_unpackhi_ps(r0, r1), _mm256_unpackhi_ps(r2, r3));
            }
        }
    }
}

/// Copies short runs, which a call of `memcpy` is not worth.
///
/// # Safety
/// There are `len` elements each, which do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_run<T: Lanes, S: Simd>(simd: S, len: usize, from: *const T, to: *mut T) {
    let lanes = T::lanes::<S>();
    let mut e = 0;
    // SAFETY: the caller promises `len` elements on both sides. Whole vectors end at or before `len`, and the last
    // one is masked.
    unsafe {
        while e + lanes <= len {
            T::store(simd, to.add(e), T::load(simd, from.add(e)));
            e += lanes;
        }
        if e < len {
            let rest = T::mask(simd, len - e);
            T::store_masked(simd, rest, to.add(e), T::load_masked(simd, rest, from.add(e)));
        }
    }
}

/// Joins parts, a power of two of them, as a tree: each with the one half of them further.
#[inline(always)]
pub(crate) fn join_tree<T: Copy, const N: usize>(mut parts: [T; N], f: impl Fn(T, T) -> T) -> T {
    let mut half = N / 2;
    while half > 0 {
        for i in 0..half {
            parts[i] = f(parts[i], parts[i + half]);
        }
        half /= 2;
    }
    parts[0]
}

/// `out[i] = f([x[i], y[i], ..])`.
///
/// # Safety
/// There are `len` elements of each. `out` may be any of the inputs, element for element.
#[inline(always)]
pub(crate) unsafe fn map<T: Copy, const N: usize>(
    len: usize,
    out: *mut T,
    inputs: [*const T; N],
    f: impl Fn([T; N]) -> T,
) {
    // SAFETY: the contract is the same.
    unsafe { map_run(len, (out, 1), array(inlined!(|k| (inputs[k], 1))), f) }
}

/// `to[i] = f(to[i], from[i])` for `len` elements at the given steps.
///
/// # Safety
/// They can be read and written, and `to` and `from` do not overlap.
#[inline(always)]
pub(crate) unsafe fn update<T: Copy>(
    to: (*mut T, isize),
    from: (*const T, isize),
    len: usize,
    f: impl Fn(T, T) -> T,
) {
    // SAFETY: the contract is the same.
    unsafe { map_run(len, to, [(to.0.cast_const(), to.1), from], inlined!(|[to, from]: [T; 2]| f(to, from))) }
}

/// Elements for which any bytes are a value.
pub(crate) trait Scratch: Copy + Send + Sync + 'static {}

impl Scratch for f32 {}
impl Scratch for f64 {}
impl Scratch for i64 {}
impl Scratch for u8 {}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct CacheLine {
    _bytes: [u8; 64],
}

/// Memory of the thread, aligned to a cache line, that goes back to it when it is dropped and is kept for the next one.
pub(crate) struct ScratchMemory(Vec<CacheLine>);

thread_local! {
    static SPARE: RefCell<Vec<Vec<CacheLine>>> = const { RefCell::new(Vec::new()) };
}

impl ScratchMemory {
    /// Room for `elements` elements of any value.
    pub(crate) fn new<T: Scratch>(elements: usize) -> ScratchMemory {
        let lines = (elements * size_of::<T>()).div_ceil(size_of::<CacheLine>());
        // A thread that is ending keeps none.
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
        let mut memory = spare.ok().flatten().unwrap_or_default();
        if memory.len() < lines {
            memory.clear();
            memory.resize(lines, CacheLine { _bytes: [0; 64] });
        }
        ScratchMemory(memory)
    }

    /// The first element.
    pub(crate) fn as_mut_ptr<T: Scratch>(&mut self) -> *mut T {
        self.0.as_mut_ptr().cast()
    }
}

impl Drop for ScratchMemory {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.0);
        // A thread that ends has no place to keep it.
        SPARE.try_with(|spare| spare.borrow_mut().push(memory)).ok();
    }
}

/// Calls `f` with room for `elements` elements of any value; see [`ScratchMemory`]. Calls may be nested.
pub(crate) fn with_scratch<T: Scratch, R>(elements: usize, f: impl FnOnce(*mut T) -> R) -> R {
    if elements == 0 {
        return f(std::ptr::dangling_mut());
    }
    f(ScratchMemory::new::<T>(elements).as_mut_ptr())
}

/// Items that threads share out, of which each is worked on by itself, in vector code.
pub(crate) struct Items<'a> {
    pub(crate) workers: &'a Workers,
    pub(crate) len: usize,
    /// Items of a part.
    pub(crate) chunk: usize,
    /// Elements of any value for which a part has room.
    pub(crate) room: usize,
}

impl Items<'_> {
    /// Calls `body(item, memory)` for each item, with the room of its part.
    #[inline(always)]
    pub(crate) fn for_each<T: Scratch>(self, body: impl Fn(usize, *mut T) + Sync) {
        self.for_each_part(inlined!(|range: Range<usize>, memory| {
            // `for_each` would not be inlined.
            for item in range {
                body(item, memory);
            }
        }));
    }

    /// Calls `body(items, memory)` for each part.
    #[inline(always)]
    pub(crate) fn for_each_part<T: Scratch>(self, body: impl Fn(Range<usize>, *mut T) + Sync) {
        for_range(self.workers, self.len, self.chunk, &|range| {
            with_scratch(self.room, |memory: *mut T| {
                simd_for::<T, _>(inlined!(|| body(range.clone(), memory)));
            });
        });
    }
}

/// Runs `work` as vector code if `T` is `f32`. Other types are not worth the code: `f64` is for gradient checks.
#[inline(always)]
pub(crate) fn simd_for<T: Scratch, R>(work: impl FnOnce() -> R) -> R {
    if const { size_of::<T>() == 4 } { simd(work) } else { work() }
}
