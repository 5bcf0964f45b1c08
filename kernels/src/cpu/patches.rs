//! What a window sees of an image, as a matrix that is never stored: row `k` is an element of the window (channel, then
//! row, then column), column `p` a place of it. A product reads it where the image lies, or copies the parts that it needs.

use pulp::{Arch, Simd, WithSimd};

use super::lanes::{Lanes, with_scratch};
use super::product::{BLOCK_K, Init, Left, LeftOperand, Matrix, Right, RightOperand, run_panel};
use crate::geometry::ConvGeometry;
use crate::window::Window;

/// The patches of one image, which has its padding around it.
#[derive(Clone, Copy)]
pub(crate) struct Patches<T> {
    image: *const T,
    lie: Lie,
}

impl<T> Patches<T> {
    /// Where an element of the window (channel, row and column) is at the first place.
    pub(super) fn element(&self, element: [usize; 3]) -> *const T {
        self.image.wrapping_add(self.lie.element(element))
    }

    /// How far it is to what the same element sees at the next row of places.
    pub(super) fn down(&self) -> usize {
        self.lie.window.stride[0] * self.lie.row
    }
}

/// How the image of patches lies.
#[derive(Clone, Copy)]
struct Lie {
    /// Steps from one channel to the next, and from one row.
    channel: usize,
    row: usize,
    window: Window,
    /// Places along a row.
    width: usize,
}

impl Lie {
    /// That of `rows` rows of places.
    fn of(geometry: &ConvGeometry, rows: usize) -> Lie {
        let ConvGeometry { image: [height, width], places, window, .. } = *geometry;
        let lie = |channel, row| Lie { channel, row, window, width: places[1] };
        if window.padding == [0; 2] {
            return lie(height * width, width);
        }
        let padded = width + 2 * window.padding[1];
        lie(seen(&window, rows) * padded, padded)
    }

    /// How far from where a window begins its elements are, `k` of them.
    ///
    /// # Safety
    /// There is room for them.
    unsafe fn elements(&self, k: usize, to: *mut isize) {
        let [kh, kw] = self.window.kernel;
        for e in 0..k {
            let (j, i, c) = (e % kw, e / kw % kh, e / (kw * kh));
            // SAFETY: the caller promises room for `k` numbers, and `e` is below that.
            unsafe { *to.add(e) = self.element([c, i, j]) as isize };
        }
    }

    /// How far from the first window the windows of `rows` rows of places are.
    ///
    /// # Safety
    /// As for [`elements`](Self::elements).
    unsafe fn places(&self, rows: usize, to: *mut isize) {
        let [down, along] = self.window.stride;
        for y in 0..rows {
            for x in 0..self.width {
                // SAFETY: the caller promises room for a number for each of `rows` rows of `width` places.
                unsafe { *to.add(y * self.width + x) = (y * down * self.row + x * along) as isize };
            }
        }
    }

    fn element(&self, [c, i, j]: [usize; 3]) -> usize {
        let [down, along] = self.window.dilation;
        c * self.channel + i * down * self.row + j * along
    }
}

/// Rows of an image that windows of so many rows see.
fn seen(window: &Window, rows: usize) -> usize {
    (rows - 1) * window.stride[0] + window.extent(0)
}

/// Calls `work` with the patches of `rows` rows of places, from row `first` on, of the channels at `image`.
///
/// # Safety
/// The channels of `geometry` can be read there, and it has these rows of places.
pub(crate) unsafe fn with_patches<T: Lanes, R>(
    geometry: &ConvGeometry,
    image: *const T,
    (first, rows): (usize, usize),
    work: impl FnOnce(Patches<T>) -> R,
) -> R {
    let ConvGeometry { channels, image: [height, width], window, .. } = *geometry;
    let first = first * window.stride[0];
    let lie = Lie::of(geometry, rows);
    if window.padding == [0; 2] {
        return work(Patches { image: image.wrapping_add(first * width), lie });
    }
    with_scratch(channels * lie.channel, |to: *mut T| {
        for c in 0..channels {
            // SAFETY: the caller promises `channels` channels at `image`, and the scratch has `lie.channel` elements
            // for each, as many as the padded rows have.
            unsafe {
                let (from, to) = (image.add(c * height * width), to.add(c * lie.channel));
                pad(from, [height, width], window.padding, first, seen(&window, rows), to);
            }
        }
        work(Patches { image: to, lie })
    })
}

/// Copies `rows` rows of a channel with its padding, from row `first` of the padded channel on.
///
/// # Safety
/// The channel can be read, and there is room for the rows.
#[inline]
pub(crate) unsafe fn pad<T: Lanes>(
    from: *const T,
    [height, width]: [usize; 2],
    padding: [usize; 2],
    first: usize,
    rows: usize,
    to: *mut T,
) {
    let padded = width + 2 * padding[1];
    for r in 0..rows {
        // SAFETY: the caller promises the channel, `height` rows of `width` elements, and room for `rows` rows of
        // `padded` elements.
        unsafe {
            let to = std::slice::from_raw_parts_mut(to.add(r * padded), padded);
            match (first + r).checked_sub(padding[0]).filter(|&row| row < height) {
                None => to.fill(T::ZERO),
                Some(row) => {
                    to[..padding[1]].fill(T::ZERO);
                    let source = std::slice::from_raw_parts(from.add(row * width), width);
                    to[padding[1]..][..width].copy_from_slice(source);
                    to[padding[1] + width..].fill(T::ZERO);
                }
            }
        }
    }
}

/// Copies short runs, which a call of `memcpy` is not worth.
///
/// # Safety
/// There are `len` elements each, which do not overlap.
#[inline(always)]
unsafe fn copy_run<T: Lanes, S: Simd>(simd: S, len: usize, from: *const T, to: *mut T) {
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

impl<T: Lanes> RightOperand<T> for Patches<T> {
    #[inline(always)]
    fn packs(self) -> bool {
        true
    }

    #[inline(always)]
    unsafe fn panel<S: Simd>(self, simd: S, at: [usize; 2], size: [usize; 2], to: *mut T) -> Matrix<T> {
        let step = 2 * T::lanes::<S>();
        let Lie { window: Window { kernel: [kh, kw], stride, .. }, width, row, .. } = self.lie;
        let (mut j, mut i, mut c) = (at[0] % kw, at[0] / kw % kh, at[0] / (kw * kh));
        let (y, x) = (at[1] / width, at[1] % width);
        let first = self.image.wrapping_add(y * stride[0] * row);
        for k in 0..size[0] {
            let mut from = first.wrapping_add(self.lie.element([c, i, j]));
            let (mut x, mut done) = (x, 0);
            while done < size[1] {
                let run = (width - x).min(size[1] - done);
                // SAFETY: the caller asks for places and elements that the matrix has, so `from` lies in the padded
                // image for the whole run, and `to` has room for `size[0]` rows of a panel.
                unsafe {
                    let (from, to) = (from.wrapping_add(x * stride[1]), to.add(k * step + done));
                    if stride[1] == 1 {
                        copy_run(simd, run, from, to);
                    } else {
                        for e in 0..run {
                            *to.add(e) = *from.add(e * stride[1]);
                        }
                    }
                }
                done += run;
                x = 0;
                from = from.wrapping_add(stride[0] * row);
            }
            j += 1;
            if j == kw {
                (j, i) = (0, i + 1);
            }
            if i == kh {
                (i, c) = (0, c + 1);
            }
        }
        Matrix::row_major(to, step)
    }
}

/// Patches, or some of them, where the image lies: how far apart their rows and their columns are.
#[derive(Clone, Copy)]
pub(crate) struct InPlace<T> {
    image: *const T,
    rows: *const isize,
    columns: *const isize,
}

/// Calls `work` with what gives all patches of an image where they lie, `rows` rows of places.
pub(crate) fn with_patches_in_place<T: Lanes, R>(
    geometry: &ConvGeometry,
    rows: usize,
    work: impl FnOnce(&dyn Fn(Patches<T>) -> InPlace<T>) -> R,
) -> R {
    let (lie, k) = (Lie::of(geometry, rows), geometry.filter());
    with_scratch(k + rows * lie.width, |table: *mut i64| {
        let (elements, places) = (table.cast::<isize>(), table.wrapping_add(k).cast::<isize>());
        // SAFETY: the scratch has `k` numbers for elements of a window and `rows * lie.width` for places.
        unsafe {
            lie.elements(k, elements);
            lie.places(rows, places);
        }
        work(&|patches| InPlace { image: patches.image, rows: elements, columns: places })
    })
}

impl<T: Copy> InPlace<T> {
    /// The matrix without its first rows.
    pub(crate) fn without_rows(self, first: usize) -> Self {
        InPlace { rows: self.rows.wrapping_add(first), ..self }
    }
}

impl<T: Lanes> LeftOperand<T> for InPlace<T> {
    type Part = InPlace<T>;

    #[inline(always)]
    fn packs(self) -> bool {
        false
    }

    #[inline(always)]
    unsafe fn rows<S: Simd>(self, _: S, at: [usize; 2], _: [usize; 2], _: *mut T) -> InPlace<T> {
        let (rows, columns) = (self.rows.wrapping_add(at[0]), self.columns.wrapping_add(at[1]));
        InPlace { rows, columns, ..self }
    }
}

impl<T: Copy> Left<T> for InPlace<T> {
    #[inline(always)]
    fn below(self, i: usize) -> Self {
        self.without_rows(i)
    }

    #[inline(always)]
    fn element(&self, r: usize) -> *const T {
        // SAFETY: the product asks only for rows and columns that the matrix has, and the tables have a number for
        // each.
        let by = unsafe { *self.rows.add(r) + *self.columns };
        self.image.wrapping_offset(by)
    }

    #[inline(always)]
    fn next_column(&mut self) {
        self.columns = self.columns.wrapping_add(1);
    }
}

/// A panel of patches where the image lies, whose columns are elements next to each other.
#[derive(Clone, Copy)]
struct Beside<T> {
    image: *const T,
    rows: *const isize,
}

impl<T: Copy> Right<T> for Beside<T> {
    #[inline(always)]
    fn row(&self) -> *const T {
        // SAFETY: the product asks only for rows that the matrix has, and the table has a number for each.
        self.image.wrapping_offset(unsafe { *self.rows })
    }

    #[inline(always)]
    fn next_row(&mut self) {
        self.rows = self.rows.wrapping_add(1);
    }
}

/// Whether a product of `m` rows by patches of `rows` rows of places is better made with patches as they lie: columns are then
/// all elements of the image's rows, those between two rows of places, too, whose sums nobody wants.
pub(crate) fn lies_well(geometry: &ConvGeometry, m: usize, rows: usize) -> bool {
    let (k, window) = (geometry.filter(), geometry.window);
    let Lie { row, width, .. } = Lie::of(geometry, rows);
    // In cycles of an element of the window: a vector is multiplied in half a one, and a run of columns copied in six.
    let more = m * rows * (row - width) / 32;
    let copies = 6 * rows * (1 + width / 32);
    window.stride == [1, 1] && k <= BLOCK_K && more <= copies
}

/// `C = init + A B` for the patches of `rows` rows of places that [lie well](lies_well), as [`run_between`] makes it.
///
/// # Safety
/// As there; the patches lie well, and `init` is zero or a column.
///
/// [`run_between`]: super::product::run_between
pub(crate) unsafe fn run_in_place<T: Lanes>(
    arch: Arch,
    [m, k, rows]: [usize; 3],
    a: Matrix<T>,
    patches: Patches<T>,
    c: Matrix<T>,
    init: Init<T>,
) {
    with_scratch(k, |table: *mut i64| {
        let elements = table.cast::<isize>();
        // SAFETY: the scratch has `k` numbers.
        unsafe { patches.lie.elements(k, elements) };
        with_scratch(m * 2 * T::lanes_of(arch), |block: *mut T| {
            arch.dispatch(Flat { size: [m, k, rows], a, patches, elements, block, c, init });
        });
    });
}

/// What [`run_in_place`] does, with room for a panel of C.
struct Flat<T> {
    size: [usize; 3],
    a: Matrix<T>,
    patches: Patches<T>,
    elements: *const isize,
    block: *mut T,
    c: Matrix<T>,
    init: Init<T>,
}

impl<T: Lanes> WithSimd for Flat<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Flat { size: [m, k, rows], a, patches: Patches { image, lie }, elements, block, c, init } = self;
        let panel = 2 * T::lanes::<S>();
        let all = (rows - 1) * lie.row + lie.width;
        for begin in (0..all).step_by(panel) {
            let cols = panel.min(all - begin);
            let b = Beside { image: image.wrapping_add(begin), rows: elements };
            // SAFETY: `begin + cols` is at most `all`, which ends with the last place, of whose window the image has
            // all elements; those of earlier columns lie before them. `block` has `m` rows of a panel.
            unsafe { run_panel(simd, [m, cols, k], a, b, Matrix::row_major(block, panel), init) };
            let (mut y, mut x, mut done) = (begin / lie.row, begin % lie.row, 0);
            while done < cols {
                let run = (lie.row - x).min(cols - done);
                let wanted = lie.width.saturating_sub(x).min(run);
                for i in (0..m).filter(|_| wanted > 0) {
                    // SAFETY: `x + wanted` is at most `lie.width` and `y` a row of places, so C has these columns,
                    // and `block` has `done + wanted <= cols` of the row.
                    unsafe {
                        let to = c.at(i, y * lie.width + x).ptr;
                        copy_run(simd, wanted, block.add(i * panel + done), to);
                    }
                }
                (y, x, done) = (y + 1, 0, done + run);
            }
        }
    }
}
