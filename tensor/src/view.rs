//! Views: other layouts over the same storage.

use std::ops::{Bound, RangeBounds};

use device::{Error, Result};
use kernels::{Dims, normalize_axis};

use crate::Tensor;
use crate::check::{elements_of, wrong_shape};

#[derive::located]
impl Tensor {
    /// The same elements in row-major order under another shape: a view where the strides allow it, otherwise a copy on
    /// the current stream.
    ///
    /// ```
    /// # use tensor::{DType, Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::arange(0, 6, 1, DType::I64, &Device::cpu())?;
    /// assert!(x.reshape(&[2, 3])?.same_storage(&x));
    /// assert!(x.reshape(&[4]).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `ShapeMismatch` if the number of elements differs.
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor> {
        if shape == self.shape() {
            return Ok(self.clone());
        }
        elements_of("reshape", shape)?;
        match self.layout.reshape("reshape", shape)? {
            Some(layout) => Ok(self.with_layout(layout)),
            None => self.copy()?.reshape(shape),
        }
    }

    /// [`Tensor::reshape`] where one size may be -1 and follows from the others.
    ///
    /// # Errors
    /// `InvalidArgument` for a second -1 or another negative size, `ShapeMismatch` if the elements do not fit.
    pub fn reshape_infer(&self, shape: &[isize]) -> Result<Tensor> {
        const OP: &str = "reshape_infer";
        let wrong =
            || Error::invalid(OP, "shape", "sizes of which at most one is -1", format_args!("{shape:?}"));
        let mut dims = Dims::with_capacity(shape.len());
        let mut open = None;
        for (axis, &size) in shape.iter().enumerate() {
            match usize::try_from(size) {
                Ok(size) => dims.push(size),
                Err(_) if size == -1 && open.is_none() => {
                    open = Some(axis);
                    dims.push(1);
                }
                Err(_) => return Err(wrong()),
            }
        }
        if let Some(axis) = open {
            let known = elements_of(OP, &dims)?;
            if known == 0 || !self.elements().is_multiple_of(known) {
                return Err(wrong());
            }
            dims[axis] = self.elements() / known;
        }
        self.reshape(&dims)
    }

    /// Merges the axes from `start` to `end`, both included; a scalar becomes one element of rank 1.
    ///
    /// Shapes: `[a, b, c, d]` flattened from 1 to 2 -> `[a, b * c, d]`.
    ///
    /// # Errors
    /// `AxisOutOfRange`; `InvalidArgument` if `end` comes before `start`.
    pub fn flatten(&self, start: isize, end: isize) -> Result<Tensor> {
        const OP: &str = "flatten";
        if self.rank() == 0 {
            normalize_axis(OP, start, 1)?;
            normalize_axis(OP, end, 1)?;
            return self.reshape(&[1]);
        }
        let first = normalize_axis(OP, start, self.rank())?;
        let last = normalize_axis(OP, end, self.rank())?;
        Error::require(last >= first, OP, "end", "an axis not before `start`", end)?;
        let shape = self.shape();
        let mut dims = Dims::from_slice(&shape[..first]);
        dims.push(shape[first..=last].iter().product());
        dims.extend_from_slice(&shape[last + 1..]);
        self.reshape(&dims)
    }

    /// Swaps two axes, as a view.
    ///
    /// # Errors
    /// `AxisOutOfRange`.
    pub fn transpose(&self, a: isize, b: isize) -> Result<Tensor> {
        Ok(self.with_layout(self.layout.transpose("transpose", a, b)?))
    }

    /// The transposed matrix, as a view; ranks 0 and 1 are returned as they are.
    ///
    /// # Errors
    /// `InvalidArgument` for ranks above 2.
    pub fn t(&self) -> Result<Tensor> {
        match self.rank() {
            0 | 1 => Ok(self.clone()),
            2 => Ok(self.with_layout(self.layout.transpose("t", 0, 1)?)),
            rank => Err(Error::invalid("t", "rank", "at most 2", rank)),
        }
    }

    /// Reorders the axes, as a view: axis `i` of the result is axis `axes[i]` of `self`.
    ///
    /// # Errors
    /// `AxisOutOfRange`; `InvalidArgument` if `axes` does not name every axis once.
    pub fn permute(&self, axes: &[isize]) -> Result<Tensor> {
        const OP: &str = "permute";
        let wrong = || Error::invalid(OP, "axes", "every axis once", format_args!("{axes:?}"));
        if axes.len() != self.rank() {
            return Err(wrong());
        }
        let mut order = Dims::with_capacity(axes.len());
        for &axis in axes {
            let axis = normalize_axis(OP, axis, self.rank())?;
            if order.contains(&axis) {
                return Err(wrong());
            }
            order.push(axis);
        }
        Ok(self.with_layout(self.layout.permute(OP, &order)?))
    }

    /// `len` elements of one axis from `start`, as a view.
    ///
    /// # Errors
    /// `AxisOutOfRange`; `InvalidArgument` if the range leaves the axis.
    pub fn narrow(&self, axis: isize, start: usize, len: usize) -> Result<Tensor> {
        Ok(self.with_layout(self.layout.narrow("narrow", axis, start, len)?))
    }

    /// A range of one axis, as a view.
    ///
    /// ```
    /// # use tensor::{DType, Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::arange(0, 6, 1, DType::I64, &Device::cpu())?;
    /// assert_eq!(x.slice(0, 4..)?.to_vec::<i64>()?, [4, 5]);
    /// assert_eq!(x.slice(0, 1..=4)?.step_by(0, 2)?.to_vec::<i64>()?, [1, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `AxisOutOfRange`; `InvalidArgument` if the range leaves the axis.
    pub fn slice(&self, axis: isize, range: impl RangeBounds<usize>) -> Result<Tensor> {
        let (start, len) = self.bounds("slice", axis, range)?;
        Ok(self.with_layout(self.layout.narrow("slice", axis, start, len)?))
    }

    /// Start and length of a range of an axis; what lies outside is left as it is.
    #[doc(hidden)]
    pub fn bounds(
        &self,
        op: &'static str,
        axis: isize,
        range: impl RangeBounds<usize>,
    ) -> Result<(usize, usize)> {
        let size = self.shape()[normalize_axis(op, axis, self.rank())?];
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => size,
        };
        let value = format_args!("{start}..{end} of an axis of size {size}");
        Error::require(start <= end && end <= size, op, "range", "within the axis", value)?;
        Ok((start, end - start))
    }

    /// Every `step`-th position of an axis, from the first one on, as a view.
    ///
    /// # Errors
    /// `AxisOutOfRange`; `InvalidArgument` for a step of 0.
    pub fn step_by(&self, axis: isize, step: usize) -> Result<Tensor> {
        Ok(self.with_layout(self.layout.step_by("step_by", axis, step)?))
    }

    /// `count` consecutive views along one axis; the last ones are smaller, or are left out, where the axis does not divide evenly.
    ///
    /// ```
    /// # use tensor::{DType, Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::arange(0, 5, 1, DType::I64, &Device::cpu())?;
    /// let sizes: Vec<usize> = x.chunk(2, 0)?.iter().map(Tensor::elements).collect();
    /// assert_eq!(sizes, [3, 2]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `AxisOutOfRange`; `InvalidArgument` for a count of 0.
    pub fn chunk(&self, count: usize, axis: isize) -> Result<Vec<Tensor>> {
        self.split(&self.chunks(count, axis)?, axis)
    }

    /// The sizes of [`chunk`](Self::chunk).
    #[doc(hidden)]
    pub fn chunks(&self, count: usize, axis: isize) -> Result<Vec<usize>> {
        const OP: &str = "chunk";
        let size = self.shape()[normalize_axis(OP, axis, self.rank())?];
        Error::require(count > 0, OP, "count", "at least 1", count)?;
        let each = size.div_ceil(count).max(1);
        let starts = (0..size.max(1)).step_by(each);
        Ok(starts.map(|start| each.min(size - start)).collect())
    }

    /// One position of an axis, as a view without that axis.
    ///
    /// # Errors
    /// `AxisOutOfRange`, `IndexOutOfRange`.
    pub fn select(&self, axis: isize, index: usize) -> Result<Tensor> {
        const OP: &str = "select";
        let at = normalize_axis(OP, axis, self.rank())?;
        let size = self.shape()[at];
        if index >= size {
            return Err(crate::index::out_of_range(
                OP,
                "index",
                i64::try_from(index).unwrap_or(i64::MAX),
                size,
            ));
        }
        let layout = self.layout.narrow(OP, axis, index, 1)?.squeeze(OP, axis)?;
        Ok(self.with_layout(layout))
    }

    /// Consecutive views along one axis with these sizes.
    ///
    /// # Errors
    /// `AxisOutOfRange`; `InvalidArgument` if the sizes do not add up to the axis.
    pub fn split(&self, sizes: &[usize], axis: isize) -> Result<Vec<Tensor>> {
        const OP: &str = "split";
        let at = normalize_axis(OP, axis, self.rank())?;
        let total = sizes.iter().try_fold(0_usize, |sum, &n| sum.checked_add(n));
        let value = format_args!("{sizes:?}");
        Error::require(total == Some(self.shape()[at]), OP, "sizes", "sizes that add up to the axis", value)?;
        let starts = sizes.iter().scan(0, |end, &len| Some(std::mem::replace(end, *end + len)));
        starts.zip(sizes).map(|(start, &len)| self.narrow(axis, start, len)).collect()
    }

    /// Broadcasts to `shape`, as a view: axes of size 1 and missing leading axes repeat.
    ///
    /// # Errors
    /// `ShapeMismatch`.
    pub fn expand(&self, shape: &[usize]) -> Result<Tensor> {
        if shape == self.shape() {
            return Ok(self.clone());
        }
        elements_of("expand", shape)?;
        Ok(self.with_layout(self.layout.expand("expand", shape)?))
    }

    /// Removes an axis of size 1, as a view; an axis of another size stays.
    ///
    /// # Errors
    /// `AxisOutOfRange`.
    pub fn squeeze(&self, axis: isize) -> Result<Tensor> {
        let at = normalize_axis("squeeze", axis, self.rank())?;
        if self.shape()[at] != 1 {
            return Ok(self.clone());
        }
        Ok(self.with_layout(self.layout.squeeze("squeeze", axis)?))
    }

    /// Inserts an axis of size 1 before `axis`, as a view; -1 appends one.
    ///
    /// # Errors
    /// `AxisOutOfRange` outside `-(rank + 1)..=rank`.
    pub fn unsqueeze(&self, axis: isize) -> Result<Tensor> {
        Ok(self.with_layout(self.layout.unsqueeze("unsqueeze", axis)?))
    }

    /// The elements in row-major order without gaps: `self` if they already are, otherwise a copy.
    ///
    /// # Errors
    /// `OutOfMemory`, or what the launch reports.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.copy() }
    }

    /// Images `[n, c, h, w]` with the elements in the order of `[n, h, w, c]`, in which the channels of a pixel are neighbours:
    /// `self` if they lie so already, otherwise a copy. The shape stays as it is. Convolutions on tensor cores keep this order,
    /// and so do elementwise ops and batch normalisation.
    ///
    /// ```
    /// # use tensor::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let images = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], &[1, 2, 1, 2], &Device::cpu())?;
    /// let last = images.channels_last()?;
    /// assert_eq!((last.shape(), last.strides()), (&[1, 2, 1, 2][..], &[4, 1, 4, 2][..]));
    /// assert_eq!(last.to_vec::<f32>()?, images.to_vec::<f32>()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` unless there are four axes; `OutOfMemory`, or what the launch reports.
    pub fn channels_last(&self) -> Result<Tensor> {
        const OP: &str = "channels_last";
        if self.layout.rank() != 4 {
            return Err(wrong_shape(OP, "input", "[n, c, h, w]", self));
        }
        if self.layout.is_channels_last() {
            return Ok(self.clone());
        }
        self.permute(&[0, 2, 3, 1])?.copy()?.permute(&[0, 3, 1, 2])
    }
}
