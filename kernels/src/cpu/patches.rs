//! What a window sees of an image, as a matrix that is never stored: row `k` is an element of the window (channel, then
//! row, then column), column `p` a place of it. A product reads it where the image lies, or copies the parts that it needs.

use pulp::{Arch, Simd, WithSimd};

use super::lanes::{Lanes, copy_run, with_scratch};
use super::product::{BLOCK_K, ByColumns, Matrix, Operand, run_panel};
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

    /// How far the first `k` elements of a window are from where it begins.
    fn elements(&self, k: usize) -> Vec<isize> {
        let [kh, kw] = self.window.kernel;
        (0..k).map(|e| self.element([e / (kw * kh), e / kw % kh, e % kw]) as isize).collect()
    }

    /// How far the windows of `rows` rows of places are from the first window.
    fn places(&self, rows: usize) -> Vec<isize> {
        let [down, along] = self.window.stride;
        let mut places = Vec::with_capacity(rows * self.width);
        for y in 0..rows {
            places.extend((0..self.width).map(|x| (y * down * self.row + x * along) as isize));
        }
        places
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

impl<T: Lanes> Operand<T> for Patches<T> {
    type Part = Matrix<T>;

    #[inline(always)]
    fn packs(self) -> bool {
        true
    }

    #[inline(always)]
    unsafe fn part<S: Simd>(
        self,
        simd: S,
        at: [usize; 2],
        size: [usize; 2],
        to: *mut T,
        step: usize,
    ) -> Matrix<T> {
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
                // image for the whole run, and `to` has room for `size[0]` rows.
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

/// Tables of how far the elements and the places of windows are from the first ones, for patches in place.
pub(crate) struct Offsets {
    elements: Vec<isize>,
    places: Vec<isize>,
}

impl Offsets {
    /// Those of `rows` rows of places.
    pub(crate) fn of(geometry: &ConvGeometry, rows: usize) -> Offsets {
        let lie = Lie::of(geometry, rows);
        Offsets { elements: lie.elements(geometry.filter()), places: lie.places(rows) }
    }

    /// Patches where the image lies, without their first rows.
    pub(crate) fn in_place<T>(&self, patches: Patches<T>, first: usize) -> InPlace<T> {
        let rows = self.elements[first..].as_ptr();
        InPlace { image: patches.image, rows, columns: self.places.as_ptr() }
    }
}

impl<T: Lanes> Operand<T> for InPlace<T> {
    type Part = InPlace<T>;

    #[inline(always)]
    fn packs(self) -> bool {
        false
    }

    #[inline(always)]
    unsafe fn part<S: Simd>(self, _: S, at: [usize; 2], _: [usize; 2], _: *mut T, _: usize) -> InPlace<T> {
        InPlace { columns: self.columns.wrapping_add(at[1]), ..self.below(at[0]) }
    }
}

impl<T: Copy> ByColumns<T> for InPlace<T> {
    #[inline(always)]
    fn below(self, i: usize) -> Self {
        InPlace { rows: self.rows.wrapping_add(i), ..self }
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
    init: Option<Matrix<T>>,
) {
    let elements = patches.lie.elements(k);
    with_scratch(m * 2 * T::lanes_of(arch), |block: *mut T| {
        arch.dispatch(Flat { size: [m, k, rows], a, patches, elements: elements.as_ptr(), block, c, init });
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
    init: Option<Matrix<T>>,
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
            // Transposed: its one row is the elements of the panel's first window.
            let b = InPlace { image: image.wrapping_add(begin), rows: &0, columns: elements };
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
