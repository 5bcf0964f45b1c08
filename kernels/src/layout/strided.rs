//! Shapes and strides: where the elements of a tensor lie in its buffer.
//!
//! A [`Layout`] places element `(i0, i1, ..)` at `offset + i0 * strides[0] + i1 * strides[1] + ..`, in elements.
//! Every layout is derived from a contiguous one, so two indices share an address only where a stride is 0.

use device::{Error, ErrorKind, Result};
use smallvec::SmallVec;

/// Sizes of the axes; up to four are stored inline.
pub type Dims = SmallVec<[usize; 4]>;

/// Steps along the axes in elements; 0 where an axis was expanded.
pub type Strides = SmallVec<[isize; 4]>;

/// Shape, strides and offset of a tensor's elements in their buffer.
///
/// Tensors are copied and moved often. Whole words, a fixed number of them, move in large pieces; a narrower field would
/// be written alone and stall the piece that reads it.
#[derive(PartialEq, Debug)]
pub struct Layout {
    rank: PackedRank,
    /// What lies beyond the rank is 0.
    shape: [usize; FEW],
    strides: [isize; FEW],
    offset: usize,
    elements: usize,
    /// In place of the lists above for a higher rank.
    many: Option<Box<ManyAxes>>,
}

/// The rank, and in the lowest bit whether the elements lie in row-major order without gaps.
#[derive(Clone, Copy, PartialEq, Debug)]
struct PackedRank(usize);

impl PackedRank {
    #[inline]
    fn new(rank: usize, contiguous: bool) -> PackedRank {
        PackedRank(rank << 1 | usize::from(contiguous))
    }

    #[inline]
    fn rank(self) -> usize {
        self.0 >> 1
    }

    #[inline]
    fn is_contiguous(self) -> bool {
        self.0 & 1 == 1
    }
}

#[derive(Clone, PartialEq, Debug)]
struct ManyAxes {
    shape: Vec<usize>,
    strides: Vec<isize>,
}

impl Clone for Layout {
    #[inline]
    fn clone(&self) -> Layout {
        match &self.many {
            // SAFETY: without a heap-allocated `many`, all fields are plain words, so a bitwise copy owns nothing
            // twice.
            None => unsafe { std::ptr::read(self) },
            many => Layout { many: many.clone(), ..*self },
        }
    }
}

/// So many axes are stored inline.
const FEW: usize = 4;

/// Whether two shapes are equal. Shapes are short, and `==` calls `memcmp`.
#[inline(always)]
pub(crate) fn same_shape(lhs: &[usize], rhs: &[usize]) -> bool {
    lhs.len() == rhs.len() && lhs.iter().zip(rhs).all(|(a, b)| a == b)
}

impl Layout {
    /// The row-major layout without gaps, `strides[i] = shape[i + 1] * shape[i + 2] * ..`, at offset 0.
    #[inline]
    pub fn contiguous(shape: &[usize]) -> Layout {
        let (mut sizes, mut few) = ([0; FEW], [0; FEW]);
        let rank = PackedRank::new(shape.len(), true);
        if shape.len() > FEW {
            let mut strides = vec![0; shape.len()];
            let elements = row_major(shape, &mut strides);
            let many = Some(Box::new(ManyAxes { shape: shape.to_vec(), strides }));
            return Layout { rank, shape: sizes, strides: few, offset: 0, elements, many };
        }
        copy_few(shape, &mut sizes);
        let elements = row_major(shape, &mut few);
        Layout { rank, shape: sizes, strides: few, offset: 0, elements, many: None }
    }

    /// The layout without gaps of images `[n, c, h, w]` in which the channels of a pixel are neighbours, at offset 0.
    pub fn channels_last([n, c, h, w]: [usize; 4]) -> Layout {
        let mut strides = [0; 4];
        row_major(&[n, h, w, c], &mut strides);
        let [image, row, pixel, channel] = strides;
        Layout::from_parts(&[n, c, h, w], &[image, channel, row, pixel], 0)
    }

    fn from_parts(shape: &[usize], strides: &[isize], offset: usize) -> Layout {
        let mut elements = 1_usize;
        let mut contiguous = true;
        for (&size, &stride) in shape.iter().zip(strides).rev() {
            contiguous &= size <= 1 || usize::try_from(stride) == Ok(elements);
            elements = elements.saturating_mul(size);
        }
        contiguous |= elements == 0;
        let (mut few_sizes, mut few_strides, mut many) = ([0; FEW], [0; FEW], None);
        // Strides that reach no element are 0, for they may be too large to be multiplied by an index.
        if shape.len() > FEW {
            let strides = if elements == 0 { vec![0; shape.len()] } else { strides.to_vec() };
            many = Some(Box::new(ManyAxes { shape: shape.to_vec(), strides }));
        } else {
            copy_few(shape, &mut few_sizes);
            if elements > 0 {
                copy_few(strides, &mut few_strides);
            }
        }
        let rank = PackedRank::new(shape.len(), contiguous);
        Layout { rank, shape: few_sizes, strides: few_strides, offset, elements, many }
    }

    /// Sizes of the axes.
    #[inline]
    pub fn shape(&self) -> &[usize] {
        match &self.many {
            None => &self.shape[..self.rank.rank()],
            Some(many) => &many.shape,
        }
    }

    /// Whether both have the same shape.
    #[inline]
    pub fn same_shape(&self, other: &Layout) -> bool {
        // A comparison of all words, as those beyond the rank are 0.
        self.rank.rank() == other.rank.rank()
            && self.shape == other.shape
            && match (&self.many, &other.many) {
                (Some(lhs), Some(rhs)) => lhs.shape == rhs.shape,
                _ => true,
            }
    }

    /// A copy of the sizes of the axes.
    #[inline]
    pub fn dims(&self) -> Dims {
        match &self.many {
            None => Dims::from_buf_and_len(self.shape, self.rank.rank()),
            Some(many) => Dims::from_slice(&many.shape),
        }
    }

    /// Steps along the axes, in elements.
    #[inline]
    pub fn strides(&self) -> &[isize] {
        match &self.many {
            None => &self.strides[..self.rank.rank()],
            Some(many) => &many.strides,
        }
    }

    /// Index of the first element in the buffer.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of axes.
    #[inline]
    pub fn rank(&self) -> usize {
        self.rank.rank()
    }

    /// Number of elements, the product of the shape.
    #[inline]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// One past the highest element index that the layout reaches; 0 if it has no elements.
    #[inline]
    pub fn end(&self) -> usize {
        match self.elements() {
            0 => 0,
            elements if self.is_contiguous() => self.offset.saturating_add(elements),
            _ => self.strided_end(),
        }
    }

    fn strided_end(&self) -> usize {
        let reach = |(&size, &stride): (&usize, &isize)| (size - 1).saturating_mul(stride.unsigned_abs());
        let axes = self.shape().iter().zip(self.strides());
        axes.map(reach).fold(self.offset, usize::saturating_add).saturating_add(1)
    }

    /// Whether the elements lie in row-major order without gaps; the offset may be anything.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.rank.is_contiguous()
    }

    /// Whether the elements of images `[n, c, h, w]` lie without gaps in the order of `[n, h, w, c]`: the channels of a pixel are
    /// neighbours. The offset may be anything.
    pub fn is_channels_last(&self) -> bool {
        let (&[_, c, h, w], &[image, channel, row, pixel]) = (self.shape(), self.strides()) else {
            return false;
        };
        // A product that saturates is larger than any stride.
        let (image_step, row_step) = (h.saturating_mul(w).saturating_mul(c), w.saturating_mul(c));
        let steps =
            [(self.shape()[0], image, image_step), (c, channel, 1), (h, row, row_step), (w, pixel, c)];
        steps.iter().all(|&(size, step, dense)| size <= 1 || usize::try_from(step) == Ok(dense))
    }

    /// Whether every index leads to the same element: one element, or all strides 0.
    #[inline]
    pub fn is_uniform(&self) -> bool {
        self.elements() == 1 || self.shape().iter().zip(self.strides()).all(|(&n, &s)| n == 1 || s == 0)
    }

    /// Whether two indices lead to the same element, because an axis was expanded.
    #[inline]
    pub fn overlaps_itself(&self) -> bool {
        !self.is_contiguous()
            && self.elements() > 1
            && self.shape().iter().zip(self.strides()).any(|(&n, &s)| n > 1 && s == 0)
    }

    /// Whether the elements fill a range of the buffer without gaps or overlaps, in whatever order of the axes.
    pub fn is_dense(&self) -> bool {
        self.is_contiguous() || (!self.overlaps_itself() && self.end() - self.offset == self.elements())
    }

    /// The same elements under another shape, `None` if that takes a copy.
    ///
    /// # Errors
    /// `ShapeMismatch` if the shapes differ in their number of elements.
    pub fn reshape(&self, op: &'static str, shape: &[usize]) -> Result<Option<Layout>> {
        let elements = shape.iter().try_fold(1_usize, |n, &size| n.checked_mul(size));
        // A shape with a 0 has no elements, however large its other axes are.
        let elements = if shape.contains(&0) { Some(0) } else { elements };
        if elements != Some(self.elements()) {
            return Err(Error::shape_mismatch(op, "the elements must be as many", self.shape(), shape));
        }
        if self.is_contiguous() {
            let mut layout = Layout::contiguous(shape);
            if elements != Some(0) {
                layout.offset = self.offset;
            }
            return Ok(Some(layout));
        }
        // Match groups of old axes with groups of new axes of the same number of elements. A group of old axes
        // can be split and merged freely if it is contiguous within itself.
        let mut strides = Strides::from_elem(0, shape.len());
        let old: SmallVec<[(usize, isize); 4]> = self.merged_axes();
        let mut new_axis = shape.len();
        for &(size, stride) in old.iter().rev() {
            let mut product = 1_usize;
            while product < size && new_axis > 0 {
                new_axis -= 1;
                strides[new_axis] = step(stride, product).unwrap_or(isize::MAX);
                product = product.saturating_mul(shape[new_axis]);
            }
            if product != size {
                return Ok(None);
            }
        }
        Ok(Some(Layout::from_parts(shape, &strides, self.offset)))
    }

    // The axes as (size, stride), without those of size 1, neighbours merged where one stride serves both.
    fn merged_axes(&self) -> SmallVec<[(usize, isize); 4]> {
        let mut axes: SmallVec<[(usize, isize); 4]> = SmallVec::new();
        for (&size, &stride) in self.shape().iter().zip(self.strides()) {
            if size == 1 {
                continue;
            }
            match axes.last_mut() {
                Some(last) if Some(last.1) == step(stride, size) => {
                    *last = (last.0.saturating_mul(size), stride)
                }
                _ => axes.push((size, stride)),
            }
        }
        axes
    }

    /// Axes in another order: axis `i` of the result is axis `axes[i]` of this layout.
    ///
    /// # Errors
    /// `AxisOutOfRange` for an axis that does not exist, `InvalidArgument` if `axes` does not name
    /// every axis once.
    pub fn permute(&self, op: &'static str, axes: &[usize]) -> Result<Layout> {
        let rank = self.rank();
        let mut seen: SmallVec<[bool; 8]> = SmallVec::from_elem(false, rank);
        for &axis in axes {
            let Some(seen) = seen.get_mut(axis) else {
                return Err(Error::new(ErrorKind::AxisOutOfRange { op, axis: axis as isize, rank }));
            };
            if std::mem::replace(seen, true) {
                return Err(invalid_axes(op, "every axis once", &axes));
            }
        }
        if axes.len() != rank {
            return Err(invalid_axes(op, "every axis once", &axes));
        }
        let shape: Dims = axes.iter().map(|&axis| self.shape()[axis]).collect();
        let strides: Strides = axes.iter().map(|&axis| self.strides()[axis]).collect();
        Ok(Layout::from_parts(&shape, &strides, self.offset))
    }

    /// Two axes exchanged; negative axes count from the end.
    ///
    /// # Errors
    /// `AxisOutOfRange`.
    pub fn transpose(&self, op: &'static str, a: isize, b: isize) -> Result<Layout> {
        let (a, b) = (normalize_axis(op, a, self.rank())?, normalize_axis(op, b, self.rank())?);
        let (mut shape, mut strides) = (self.dims(), Strides::from_slice(self.strides()));
        shape.swap(a, b);
        strides.swap(a, b);
        Ok(Layout::from_parts(&shape, &strides, self.offset))
    }

    /// The part `start..start + len` of one axis.
    ///
    /// # Errors
    /// `AxisOutOfRange`; `InvalidArgument` if the range does not lie within the axis.
    pub fn narrow(&self, op: &'static str, axis: isize, start: usize, len: usize) -> Result<Layout> {
        let axis = normalize_axis(op, axis, self.rank())?;
        let size = self.shape()[axis];
        let is_within = start.checked_add(len).is_some_and(|end| end <= size);
        let value = format_args!("{start}..{start} + {len} of an axis of size {size}");
        Error::require(is_within, op, "start..start + len", "within the axis", value)?;
        let mut shape = self.dims();
        shape[axis] = len;
        // Strides are never negative, since every layout comes from a contiguous one. An offset that saturates lies beyond
        // every buffer.
        let skipped = || start.saturating_mul(self.strides()[axis].unsigned_abs());
        let offset = if len == 0 { self.offset } else { self.offset.saturating_add(skipped()) };
        Ok(Layout::from_parts(&shape, self.strides(), offset))
    }

    /// Every `step`-th position of one axis, from the first one on.
    ///
    /// # Errors
    /// `AxisOutOfRange`; `InvalidArgument` for a step of 0.
    pub fn step_by(&self, op: &'static str, axis: isize, step: usize) -> Result<Layout> {
        let axis = normalize_axis(op, axis, self.rank())?;
        Error::require(step > 0, op, "step", "at least 1", step)?;
        let (mut shape, mut strides) = (self.dims(), Strides::from_slice(self.strides()));
        shape[axis] = shape[axis].div_ceil(step);
        // A step beyond the axis leads to no element.
        strides[axis] = self::step(strides[axis], step).unwrap_or(isize::MAX);
        Ok(Layout::from_parts(&shape, &strides, self.offset))
    }

    /// Broadcasts to a shape: axes of size 1, and missing axes in front, repeat with stride 0.
    ///
    /// # Errors
    /// `ShapeMismatch` if an axis is neither 1 nor the size asked for, or the sizes multiply to more than
    /// `isize::MAX`, a 0 left out.
    pub fn expand(&self, op: &'static str, shape: &[usize]) -> Result<Layout> {
        let mut aligned = self.shape().iter().rev().zip(shape.iter().rev());
        let fits = shape.len() >= self.rank()
            && aligned.all(|(&have, &want)| have == want || have == 1)
            && shape.iter().try_fold(1_isize, |n, &size| step(n, size.max(1))).is_some();
        if !fits {
            return Err(Error::shape_mismatch(
                op,
                "axes, counted from the last, must be equal or 1",
                self.shape(),
                shape,
            ));
        }
        let new_axes = shape.len() - self.rank();
        let mut strides = Strides::from_elem(0, shape.len());
        for (axis, stride) in self.strides().iter().enumerate() {
            if self.shape()[axis] == shape[new_axes + axis] {
                strides[new_axes + axis] = *stride;
            }
        }
        Ok(Layout::from_parts(shape, &strides, self.offset))
    }

    /// Without one axis of size 1; an axis of another size stays, as in torch.
    ///
    /// # Errors
    /// `AxisOutOfRange`.
    pub fn squeeze(&self, op: &'static str, axis: isize) -> Result<Layout> {
        let axis = normalize_axis(op, axis, self.rank())?;
        let (mut shape, mut strides) = (self.dims(), Strides::from_slice(self.strides()));
        if shape[axis] == 1 {
            shape.remove(axis);
            strides.remove(axis);
        }
        Ok(Layout::from_parts(&shape, &strides, self.offset))
    }

    /// With a new axis of size 1 before `axis`; `-1` adds it at the end.
    ///
    /// # Errors
    /// `AxisOutOfRange`.
    pub fn unsqueeze(&self, op: &'static str, axis: isize) -> Result<Layout> {
        let axis = normalize_axis(op, axis, self.rank() + 1)?;
        let behind = |&size: &usize| step(self.strides()[axis], size).unwrap_or(isize::MAX);
        let stride = self.shape().get(axis).map_or(1, behind);
        let (mut shape, mut strides) = (self.dims(), Strides::from_slice(self.strides()));
        shape.insert(axis, 1);
        strides.insert(axis, stride);
        Ok(Layout::from_parts(&shape, &strides, self.offset))
    }
}

/// The stride of an axis outside of one with this stride and size, without gaps; `None` if it cannot be counted.
#[inline]
fn step(stride: isize, size: usize) -> Option<isize> {
    stride.checked_mul(isize::try_from(size).ok()?)
}

/// Fills in the strides of a layout without gaps, and counts its elements. A stride that cannot be counted is `isize::MAX`: every
/// second element along its axis lies beyond all buffers, also where other axes are narrowed.
#[inline(always)]
fn row_major(shape: &[usize], strides: &mut [isize]) -> usize {
    let mut elements = 1_usize;
    for (stride, &size) in strides[..shape.len()].iter_mut().zip(shape).rev() {
        *stride = isize::try_from(elements).unwrap_or(isize::MAX);
        elements = elements.saturating_mul(size);
    }
    if elements == 0 {
        // A product that saturated before it met the 0 says nothing; strides of empty layouts are unused.
        strides.fill(0);
    }
    elements
}

/// Copies a short list, which a call of `memcpy` is not worth.
#[inline(always)]
fn copy_few<T: Copy>(from: &[T], to: &mut [T; FEW]) {
    for (i, to) in to.iter_mut().enumerate() {
        if let Some(&value) = from.get(i) {
            *to = value;
        }
    }
}

/// The shape to which two shapes broadcast: aligned at the last axis, sizes equal or 1.
///
/// # Errors
/// `ShapeMismatch`.
#[inline]
pub fn broadcast_shapes(op: &'static str, lhs: &[usize], rhs: &[usize]) -> Result<Dims> {
    if same_shape(lhs, rhs) {
        return Ok(Dims::from_slice(lhs));
    }
    let (long, short) = if lhs.len() >= rhs.len() { (lhs, rhs) } else { (rhs, lhs) };
    let mut shape = Dims::from_slice(long);
    let new_axes = long.len() - short.len();
    for (size, &other) in shape[new_axes..].iter_mut().zip(short) {
        if *size == 1 {
            *size = other;
        } else if other != 1 && other != *size {
            return Err(Error::shape_mismatch(
                op,
                "axes, counted from the last, must be equal or 1",
                lhs,
                rhs,
            ));
        }
    }
    Ok(shape)
}

/// An axis counted from the front; negative axes count from the end.
///
/// # Errors
/// `AxisOutOfRange`.
#[inline]
pub fn normalize_axis(op: &'static str, axis: isize, rank: usize) -> Result<usize> {
    let from_front = if axis < 0 { axis + rank as isize } else { axis };
    if (0..rank as isize).contains(&from_front) {
        Ok(from_front as usize)
    } else {
        Err(Error::new(ErrorKind::AxisOutOfRange { op, axis, rank }))
    }
}

/// Axes counted from the front, in ascending order; no axes at all mean every axis.
///
/// # Errors
/// `AxisOutOfRange`; `InvalidArgument` if an axis is named twice.
pub fn normalize_axes(op: &'static str, axes: &[isize], rank: usize) -> Result<SmallVec<[usize; 4]>> {
    if axes.is_empty() {
        return Ok((0..rank).collect());
    }
    let mut all: SmallVec<[usize; 4]> =
        axes.iter().map(|&axis| normalize_axis(op, axis, rank)).collect::<Result<_>>()?;
    all.sort_unstable();
    if all.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(invalid_axes(op, "without duplicates", &axes));
    }
    Ok(all)
}

#[cold]
fn invalid_axes(op: &'static str, expected: &'static str, axes: &dyn std::fmt::Debug) -> Error {
    Error::invalid(op, "axes", expected, format_args!("{axes:?}"))
}

#[cfg(test)]
mod tests;
