//! Joining tensors, and picking or adding elements by index.

use device::{DType, Error, ErrorKind, Result};
use kernels::{Dims, Layout, normalize_axis};

use crate::Tensor;
use crate::check::{elements_of, first_of, has_shape, resized_axis, same_device, same_kind, wrong_shape};

/// An index or label that the axis does not have.
#[cold]
#[inline(never)]
pub(crate) fn out_of_range(op: &'static str, operand: &'static str, index: i64, size: usize) -> Error {
    Error::new(ErrorKind::IndexOutOfRange { op, operand, index, size })
}

/// Checks the indices of an op that picks from `x` by another op: each `operand`, such as "label", is below `size`.
///
/// # Errors
/// As [`Tensor::index_select`].
pub fn check_picked(
    op: &'static str,
    operand: &'static str,
    x: &Tensor,
    indices: &Tensor,
    size: usize,
) -> Result<()> {
    same_device(op, x, indices, operand)?;
    indices.dtype().require(op, operand, DType::I64)?;
    check_indices(op, operand, indices, size)
}

/// Checks indices on the host where that waits for nothing; elsewhere the kernel checks them itself.
pub(crate) fn check_indices(
    op: &'static str,
    operand: &'static str,
    indices: &Tensor,
    size: usize,
) -> Result<()> {
    if indices.is_empty() {
        return Ok(());
    }
    crate::bytes::first_outside(indices, size)
        .map_or(Ok(()), |index| Err(out_of_range(op, operand, index, size)))
}

/// Refuses an axis of `x`, other than `except`, that is shorter than in `shape`; the ranks agree.
fn covers(op: &'static str, x: &Tensor, shape: &[usize], except: Option<usize>) -> Result<()> {
    let short = |axis: usize| Some(axis) != except && x.shape()[axis] < shape[axis];
    Error::require_shapes(
        !(0..shape.len()).any(short),
        op,
        "indices may have no larger axis",
        x.shape(),
        shape,
    )
}

#[derive::located]
impl Tensor {
    /// Joins tensors along an existing axis; the other axes must agree. The result has the type that the operands'
    /// types [promote](DType::promote) to.
    ///
    /// Shapes: `[a, n], [b, n], ..` along axis 0 -> `[a + b + .., n]`.
    ///
    /// # Errors
    /// `InvalidArgument` for no tensors; `AxisOutOfRange`, `ShapeMismatch`, `DeviceMismatch`.
    pub fn cat(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
        Self::join("cat", tensors, axis)
    }

    fn join(op: &'static str, tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
        let first = *first_of(op, "tensors", tensors)?;
        let at = normalize_axis(op, axis, first.rank())?;
        let (mut shape, mut dtype) = (Dims::from_slice(first.shape()), first.dtype);
        for &x in &tensors[1..] {
            same_device(op, first, x, "tensor")?;
            dtype = dtype.promote(x.dtype);
            let agree = |i: usize| i == at || x.shape()[i] == shape[i];
            let fit = x.rank() == first.rank() && (0..x.rank()).all(agree);
            Error::require_shapes(fit, op, "the other axes must be equal", first.shape(), x.shape())?;
            // What does not fit is refused below.
            shape[at] = shape[at].saturating_add(x.shape()[at]);
        }
        elements_of(op, &shape)?;
        let out = Tensor::empty(&shape, dtype, first.device())?;
        let mut start = 0;
        for &x in tensors {
            let len = x.shape()[at];
            x.write_to(&out.with_layout(out.layout.narrow(op, at as isize, start, len)?))?;
            start += len;
        }
        Ok(out)
    }

    /// Joins tensors of one shape along a new axis.
    ///
    /// Shapes: k tensors `[m, n]` along axis 0 -> `[k, m, n]`.
    ///
    /// # Errors
    /// As for [`Tensor::cat`].
    pub fn stack(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
        const OP: &str = "stack";
        let first = *first_of(OP, "tensors", tensors)?;
        let raise = |x: &&Tensor| {
            has_shape(OP, first.shape(), x, "tensor")?;
            Ok(x.with_layout(x.layout.unsqueeze(OP, axis)?))
        };
        let raised = tensors.iter().map(raise).collect::<Result<Vec<Tensor>>>()?;
        // Negative axes count in the new rank, which `join` sees.
        Self::join(OP, &raised.iter().collect::<Vec<_>>(), axis)
    }

    /// Checks the operands of an op by a vector of indices and gives the axis.
    fn vector_index(&self, op: &'static str, axis: isize, indices: &Tensor) -> Result<usize> {
        same_device(op, self, indices, "indices")?;
        indices.dtype().require(op, "indices", DType::I64)?;
        let at = normalize_axis(op, axis, self.rank())?;
        if indices.rank() != 1 {
            return Err(wrong_shape(op, "indices", "of rank 1", indices));
        }
        Ok(at)
    }

    /// Picks positions of one axis, in the order of `indices` and as often as they are named.
    ///
    /// Shapes: `[m, n]` with `indices [k]` along axis 0 -> `[k, n]`.
    ///
    /// ```
    /// # use tensor::{DType, Device, ErrorKind, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let device = Device::cpu();
    /// let x = Tensor::arange(0, 6, 1, DType::F32, &device)?.reshape(&[3, 2])?;
    /// let rows = x.index_select(0, &Tensor::from_slice(&[2_i64, 0], &[2], &device)?)?;
    /// assert_eq!(rows.to_vec::<f32>()?, [4.0, 5.0, 0.0, 1.0]);
    /// let wrong = x.index_select(0, &Tensor::from_slice(&[3_i64], &[1], &device)?);
    /// assert!(matches!(wrong.unwrap_err().kind(), ErrorKind::IndexOutOfRange { index: 3, size: 3, .. }));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `AxisOutOfRange`, `DTypeMismatch` unless the indices are I64, `InvalidArgument` unless they have rank 1,
    /// `DeviceMismatch`. `IndexOutOfRange` if the indices are known on the host; otherwise the next synchronising call
    /// reports `Async`.
    pub fn index_select(&self, axis: isize, indices: &Tensor) -> Result<Tensor> {
        self.index_select_of("index_select", axis, indices)
    }

    /// [`index_select`](Self::index_select) as a part of another op, whose name errors have.
    #[doc(hidden)]
    pub fn index_select_of(&self, op: &'static str, axis: isize, indices: &Tensor) -> Result<Tensor> {
        let at = self.vector_index(op, axis, indices)?;
        check_indices(op, "index", indices, self.shape()[at])?;
        let shape = resized_axis(op, self, at, indices.elements())?;
        self.produce_like(&shape, |stream, out| {
            kernels::index_select(stream, op, self.view(), at as isize, indices.view(), out)
        })
    }

    /// `out[i][j] = self[indices[i][j]][j]` for axis 0, and so on for the other axes.
    ///
    /// Shapes: `indices` has the rank of `self` and no larger axis, except for `axis`; the result has its shape. Rank 0
    /// counts as rank 1 with one element.
    ///
    /// # Errors
    /// `AxisOutOfRange`, `ShapeMismatch`, `DeviceMismatch`; `DTypeMismatch` unless the indices are I64;
    /// `IndexOutOfRange` or `Async` as for [`Tensor::index_select`].
    pub fn gather(&self, axis: isize, indices: &Tensor) -> Result<Tensor> {
        self.gather_of("gather", axis, indices)
    }

    /// [`gather`](Self::gather) as a part of another op, whose name errors have.
    #[doc(hidden)]
    pub fn gather_of(&self, op: &'static str, axis: isize, indices: &Tensor) -> Result<Tensor> {
        same_device(op, self, indices, "indices")?;
        indices.dtype().require(op, "indices", DType::I64)?;
        if self.rank() == 0 || indices.rank() == 0 {
            let taken = self.as_vector()?.gather_of(op, axis, &indices.as_vector()?)?;
            return taken.reshape(indices.shape());
        }
        let at = normalize_axis(op, axis, self.rank())?;
        Error::require_shapes(
            indices.rank() == self.rank(),
            op,
            "indices must have as many axes",
            self.shape(),
            indices.shape(),
        )?;
        covers(op, self, indices.shape(), Some(at))?;
        check_indices(op, "index", indices, self.shape()[at])?;
        self.produce_like(indices.shape(), |stream, out| {
            kernels::gather(stream, op, self.view(), at as isize, indices.view(), out)
        })
    }

    /// With one axis instead of none.
    fn as_vector(&self) -> Result<Tensor> {
        if self.rank() == 0 { self.unsqueeze(0) } else { Ok(self.clone()) }
    }

    /// A copy with `src` added at positions of one axis. A position that is named twice is added to twice, in order.
    ///
    /// Shapes: `self [m, n]`, `indices [k]`, `src [k, n]` along axis 0.
    ///
    /// # Errors
    /// As for [`Tensor::index_select`], and `ShapeMismatch`, `DTypeMismatch`, `DTypeUnsupported` for bool.
    pub fn index_add(&self, axis: isize, indices: &Tensor, src: &Tensor) -> Result<Tensor> {
        let at = self.vector_index("index_add", axis, indices)?;
        self.index_add_to("index_add", at, indices, src, true)
    }

    /// Sums of the shape of `self`, which begin with its elements or with zeros.
    fn index_add_to(
        &self,
        op: &'static str,
        at: usize,
        indices: &Tensor,
        src: &Tensor,
        begins_with_self: bool,
    ) -> Result<Tensor> {
        same_kind(op, self, src, "src")?;
        self.dtype().require_number(op)?;
        has_shape(op, &resized_axis(op, self, at, indices.elements())?, src, "src")?;
        check_indices(op, "index", indices, self.shape()[at])?;
        let base = begins_with_self.then(|| self.view());
        src.produce_like(self.shape(), |stream, out| {
            let sums = kernels::index_add(stream, out, base, at as isize, indices.view(), src.view())?;
            Tensor::with_workspace(stream, sums.workspace(), |memory| sums.launch(memory))
        })
    }

    /// A copy with `out[indices[i][j]][j] += src[i][j]` for axis 0, and so on for the other axes, in a fixed order.
    ///
    /// Shapes: all of one rank, for which rank 0 counts as rank 1; `indices` has no larger axis than `src`, or than
    /// `self` except for `axis`.
    ///
    /// # Errors
    /// As for [`Tensor::gather`], and `DTypeMismatch`, `DTypeUnsupported` for bool.
    pub fn scatter_add(&self, axis: isize, indices: &Tensor, src: &Tensor) -> Result<Tensor> {
        self.scatter_add_to("scatter_add", axis, indices, src, (true, false))
    }

    /// A copy with the elements of `src` at `indices` along `axis`; see [`scatter_add`](Self::scatter_add). A place that is named
    /// several times gets the sum, in a fixed order, where PyTorch keeps any one of the elements.
    ///
    /// ```
    /// # use tensor::{DType, Device, Tensor};
    /// let dev = Device::cpu();
    /// let x = Tensor::from_slice(&[5.0_f32, 6.0, 7.0], &[3], &dev)?;
    /// let y = x.scatter(0, &Tensor::from_slice(&[2_i64, 0], &[2], &dev)?, &Tensor::from_slice(&[1.0_f32, 2.0], &[2], &dev)?)?;
    /// assert_eq!(y.to_vec::<f32>()?, [2.0, 6.0, 1.0]);
    /// # Ok::<(), tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`scatter_add`](Self::scatter_add).
    pub fn scatter(&self, axis: isize, indices: &Tensor, src: &Tensor) -> Result<Tensor> {
        let mask = self.index_mask(axis, indices)?;
        Tensor::where_cond(
            &mask,
            &self.zeros_like()?.scatter_add_to("scatter", axis, indices, src, (true, false))?,
            self,
        )
    }

    /// True where at least one index points.
    #[doc(hidden)]
    pub fn index_mask(&self, axis: isize, indices: &Tensor) -> Result<Tensor> {
        let zeros = Tensor::zeros(self.shape(), DType::F32, self.device())?;
        let ones = Tensor::ones(indices.shape(), DType::F32, self.device())?;
        zeros.scatter_add_to("scatter", axis, indices, &ones, (true, false))?.gt(0.0)
    }

    pub(crate) fn scatter_add_to(
        &self,
        op: &'static str,
        axis: isize,
        indices: &Tensor,
        src: &Tensor,
        (begins_with_self, distinct): (bool, bool),
    ) -> Result<Tensor> {
        same_kind(op, self, src, "src")?;
        self.dtype().require_number(op)?;
        same_device(op, self, indices, "indices")?;
        indices.dtype().require(op, "indices", DType::I64)?;
        let (target, indices, src) = (self.as_vector()?, &indices.as_vector()?, &src.as_vector()?);
        let at = normalize_axis(op, axis, target.rank())?;
        if let Some(other) = [indices, src].into_iter().find(|other| other.rank() != target.rank()) {
            return Err(Error::shape_mismatch(op, "all must have as many axes", self.shape(), other.shape()));
        }
        covers(op, src, indices.shape(), None)?;
        covers(op, &target, indices.shape(), Some(at))?;
        check_indices(op, "index", indices, target.shape()[at])?;
        let base = begins_with_self.then(|| target.view());
        let out = src.produce_like(target.shape(), |stream, out| {
            let sums = kernels::scatter_add(stream, out, base, at as isize, indices.view(), src.view())?;
            let sums = if distinct { sums.of_distinct() } else { sums };
            let sums = sums.named(op);
            Tensor::with_workspace(stream, sums.workspace(), |memory| sums.launch(memory))
        })?;
        out.reshape(self.shape())
    }

    /// Zeros of `size` along `axis` with `self` from position `start` on: the gradient of [`Tensor::narrow`].
    ///
    /// # Errors
    /// `AxisOutOfRange`; `InvalidArgument` if `self` does not fit there.
    pub fn pad_narrow(&self, axis: isize, start: usize, size: usize) -> Result<Tensor> {
        const OP: &str = "pad_narrow";
        let at = normalize_axis(OP, axis, self.rank())?;
        let shape = resized_axis(OP, self, at, size)?;
        let part = Layout::contiguous(&shape).narrow(OP, axis, start, self.shape()[at])?;
        let out = Tensor::zeros(&shape, self.dtype, self.device())?;
        self.write_to(&out.with_layout(part))?;
        Ok(out)
    }

    /// Labels or indices of one per row, checked as far as the host knows them.
    pub(crate) fn check_labels(
        &self,
        op: &'static str,
        of: &Tensor,
        [rows, classes]: [usize; 2],
    ) -> Result<()> {
        same_device(op, of, self, "labels")?;
        self.dtype().require(op, "labels", DType::I64)?;
        has_shape(op, &[rows], self, "labels")?;
        check_indices(op, "label", self, classes)
    }
}

/// The gradient of [`Tensor::index_select`] from an axis of `size` places, for `g` the result's gradient.
///
/// # Errors
/// As [`Tensor::index_add`].
pub fn index_select_grad(g: &Tensor, axis: isize, indices: &Tensor, size: usize) -> Result<Tensor> {
    const OP: &str = "index_select_grad";
    let at = g.vector_index(OP, axis, indices)?;
    let shape = resized_axis(OP, g, at, size)?;
    // Stands for the zeros in the checks, without their memory.
    let target = g.with_layout(Layout::contiguous(&shape));
    target.index_add_to(OP, at, indices, g, false)
}

/// The gradient of [`Tensor::gather`] from a tensor of this shape, for `g` the result's gradient. `distinct` says that no index comes twice
/// in a line along the axis, as none of a sort's does: then it is faster, and wrong otherwise.
///
/// # Errors
/// As [`Tensor::scatter_add`].
pub fn gather_grad(
    g: &Tensor,
    axis: isize,
    indices: &Tensor,
    shape: &[usize],
    distinct: bool,
) -> Result<Tensor> {
    const OP: &str = "gather_grad";
    elements_of(OP, shape)?;
    let target = g.with_layout(Layout::contiguous(shape));
    target.scatter_add_to(OP, axis, indices, g, (false, distinct))
}
