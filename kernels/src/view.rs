//! Views: buffers seen through layouts, and the addresses that commands capture.

use device::{Buffer, DType, Error, Result};
use smallvec::SmallVec;

use crate::layout::strided::{Layout, same_shape};

/// A buffer seen through a layout: the operand of a launcher.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The memory.
    pub buffer: &'a Buffer,
    /// What its elements are.
    pub dtype: DType,
    /// Where they lie.
    pub layout: &'a Layout,
}

impl<'a> View<'a> {
    /// A view of `buffer`; launchers check that the layout stays within it.
    #[inline]
    pub fn new(buffer: &'a Buffer, dtype: DType, layout: &'a Layout) -> View<'a> {
        View { buffer, dtype, layout }
    }

    /// Sizes of the axes.
    #[inline]
    pub fn shape(&self) -> &'a [usize] {
        self.layout.shape()
    }

    /// Checks the element type.
    #[inline]
    pub(crate) fn expect_dtype(&self, op: &'static str, expected: DType) -> Result<()> {
        if self.dtype == expected {
            Ok(())
        } else {
            Err(Error::dtype_mismatch(op, "each operand", expected, self.dtype))
        }
    }

    /// Checks the shape.
    #[inline]
    pub(crate) fn expect_shape(&self, op: &'static str, shape: &[usize]) -> Result<()> {
        if same_shape(self.shape(), shape) {
            Ok(())
        } else {
            Err(Error::shape_mismatch(op, "", shape, self.shape()))
        }
    }

    /// Checks that the elements follow each other without gaps, in row-major order. The error calls the operand `argument`.
    #[inline]
    pub(crate) fn expect_contiguous(&self, op: &'static str, argument: &'static str) -> Result<()> {
        if self.layout.is_contiguous() { Ok(()) } else { Err(not_contiguous(op, argument, self)) }
    }

    /// Checks that the shape is that of `other`.
    #[inline(always)]
    pub(crate) fn expect_shape_of(&self, op: &'static str, other: &View<'_>) -> Result<()> {
        if self.layout.same_shape(other.layout) {
            Ok(())
        } else {
            Err(Error::shape_mismatch(op, "", other.shape(), self.shape()))
        }
    }

    /// Checks that `out`, a view of the same buffer, shares no memory with this view, or with `in_place` is this view element for
    /// element.
    #[inline(always)]
    pub(crate) fn expect_apart(&self, op: &'static str, out: &View<'_>, in_place: bool) -> Result<()> {
        if in_place && self.is_written_alike(out) || self.is_apart(out) {
            Ok(())
        } else {
            Err(partial_overlap(op, self, out))
        }
    }

    fn is_apart(&self, out: &View<'_>) -> bool {
        let range = |view: &View<'_>| {
            let size = view.dtype.size_bytes();
            (view.layout.offset().saturating_mul(size), view.layout.end().saturating_mul(size))
        };
        let ((start, end), (out_start, out_end)) = (range(self), range(out));
        end <= out_start || out_end <= start || self.is_beside(out)
    }

    /// Whether the views lie side by side in each row of one memory, as the columns of a matrix do. A row is one step of some
    /// axis: a view whose other steps are multiples of it has its elements in one part of each row.
    #[cold]
    fn is_beside(&self, out: &View<'_>) -> bool {
        let steps = |view: &View<'_>| -> SmallVec<[(usize, usize); 4]> {
            let axes = view.shape().iter().zip(view.layout.strides()).filter(|(size, _)| **size > 1);
            axes.map(|(&size, &stride)| (size, stride.unsigned_abs().saturating_mul(view.dtype.size_bytes())))
                .collect()
        };
        let (own, other) = (steps(self), steps(out));
        // From its first byte of a row to behind its last one.
        let extent = |view: &View<'_>, steps: &[(usize, usize)], row: usize| {
            let within = steps.iter().filter(|(_, step)| step % row != 0);
            let last = within
                .fold(0_usize, |last, (size, step)| last.saturating_add((size - 1).saturating_mul(*step)));
            last.saturating_add(view.dtype.size_bytes())
        };
        own.iter().chain(&other).map(|(_, step)| *step).filter(|&row| row > 0).any(|row| {
            let start = |view: &View<'_>| view.layout.offset().saturating_mul(view.dtype.size_bytes()) % row;
            let ahead = (start(out) + row - start(self)) % row;
            extent(self, &own, row) <= ahead && extent(out, &other, row) <= row - ahead
        })
    }

    fn is_written_alike(&self, out: &View<'_>) -> bool {
        self.dtype.size_bytes() == out.dtype.size_bytes() && self.layout == out.layout
    }

    /// Checks that the layout stays within the buffer.
    #[inline(always)]
    pub(crate) fn check_bounds(&self, op: &'static str) -> Result<()> {
        let fits = self.layout.end().saturating_mul(self.dtype.size_bytes()) <= self.buffer.len_bytes();
        if fits { Ok(()) } else { Err(outside_buffer(op, self)) }
    }

    /// Checks that no two indices share an element.
    #[inline(always)]
    pub(crate) fn check_written_once(&self, op: &'static str) -> Result<()> {
        if self.layout.overlaps_itself() { Err(written_twice(op, self)) } else { Ok(()) }
    }

    /// The first element, for a command that was launched with the buffer.
    #[inline(always)]
    pub(crate) fn first(&self) -> Dst<u8> {
        // An empty layout may carry an offset past the end: `wrapping_add` makes that harmless.
        Dst(self.buffer.ptr().wrapping_add(self.layout.offset().wrapping_mul(self.dtype.size_bytes())))
    }
}

#[cold]
fn not_contiguous(op: &'static str, argument: &'static str, view: &View<'_>) -> Error {
    Error::invalid(op, argument, "contiguous", format_args!("strides {:?}", view.layout.strides()))
}

#[cold]
fn outside_buffer(op: &'static str, view: &View<'_>) -> Error {
    let (end, bytes) = (view.layout.end(), view.buffer.len_bytes());
    let value = format_args!("{end} elements of {} in {bytes} bytes", view.dtype);
    Error::invalid(op, "layout", "within the buffer", value)
}

#[cold]
fn written_twice(op: &'static str, view: &View<'_>) -> Error {
    let value = format_args!("shape {:?} with strides {:?}", view.layout.shape(), view.layout.strides());
    Error::invalid(op, "out", "a layout without expanded axes", value)
}

#[cold]
fn partial_overlap(op: &'static str, input: &View<'_>, out: &View<'_>) -> Error {
    let value = format_args!("{:?} over {:?}", out.layout, input.layout);
    Error::invalid(op, "out", "apart from the inputs, or one of them element for element", value)
}

/// Elements that a command reads. It outlives the borrow of the buffer: frees are ordered after the command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Src<T>(pub(crate) *const T);

/// Elements that a command writes, and may read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dst<T>(pub(crate) *mut T);

// SAFETY: plain addresses. They are dereferenced only inside a command, whose launch orders it with all others that
// use the buffer; the parts of one command write disjoint elements.
unsafe impl<T> Send for Src<T> {}
// SAFETY: no method accesses the elements safely; see `Send`.
unsafe impl<T> Sync for Src<T> {}
// SAFETY: plain addresses, dereferenced only inside a command; see `Src`.
unsafe impl<T> Send for Dst<T> {}
// SAFETY: no method accesses the elements safely; see `Src`.
unsafe impl<T> Sync for Dst<T> {}

impl<T> Src<T> {
    /// The same address with another element type.
    #[inline(always)]
    pub(crate) fn cast<U>(self) -> Src<U> {
        Src(self.0.cast())
    }

    /// The address of the element `index` places further.
    #[inline(always)]
    pub(crate) fn at(self, index: isize) -> *const T {
        self.0.wrapping_offset(index)
    }

    /// `len` elements from `start` on.
    ///
    /// # Safety
    /// They lie within the buffer, hold valid values of `T`, and nothing writes them while the slice lives.
    #[inline(always)]
    pub(crate) unsafe fn slice<'a>(self, start: usize, len: usize) -> &'a [T] {
        // SAFETY: the caller promises `len` valid elements from `start` on, which nobody writes while the slice
        // lives.
        unsafe { std::slice::from_raw_parts(self.0.add(start), len) }
    }
}

impl<T> Dst<T> {
    /// The same address with another element type.
    #[inline(always)]
    pub(crate) fn cast<U>(self) -> Dst<U> {
        Dst(self.0.cast())
    }

    /// The address of the element `index` places further.
    #[inline(always)]
    pub(crate) fn at(self, index: isize) -> *mut T {
        self.0.wrapping_offset(index)
    }

    /// `len` elements from `start` on.
    ///
    /// # Safety
    /// They lie within the buffer, hold valid values of `T`, and nothing else touches them while the slice lives.
    #[inline(always)]
    pub(crate) unsafe fn slice_mut<'a>(self, start: usize, len: usize) -> &'a mut [T] {
        // SAFETY: the caller promises `len` valid elements from `start` on, which nobody else uses while the slice
        // lives.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }

    /// The same elements, to read.
    #[inline(always)]
    pub(crate) fn src(self) -> Src<T> {
        Src(self.0)
    }
}
