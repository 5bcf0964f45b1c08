//! Reductions over axes, and the softmax family.

use device::{DType, Error, Result, Stream};
use kernels::{
    Dims, Extreme, Layout, ReduceOp, Reduction, Strides, View, normalize_axes, normalize_axis,
    reduce_workspace,
};

use crate::Tensor;
use crate::check::{has_shape, same_kind};

/// `shape` with the reduced axes at size 1, or without them.
fn reduced_shape(shape: &[usize], axes: &[usize], keepdim: bool) -> Dims {
    let mut out = Dims::with_capacity(shape.len());
    for (axis, &size) in shape.iter().enumerate() {
        if !axes.contains(&axis) {
            out.push(size);
        } else if keepdim {
            out.push(1);
        }
    }
    out
}

#[derive::located]
impl Tensor {
    /// The axes counted from the front; a scalar has one axis of one element, as in torch.
    fn axes(&self, op: &'static str, axes: &[isize]) -> Result<Dims> {
        if self.rank() == 0 {
            normalize_axes(op, axes, 1)?;
            return Ok(Dims::new());
        }
        normalize_axes(op, axes, self.rank())
    }

    /// The shape of a reduction over `axes`.
    ///
    /// # Errors
    /// `AxisOutOfRange`; `InvalidArgument` for an axis named twice.
    #[doc(hidden)]
    pub fn reduced(&self, op: &'static str, axes: &[isize], keepdim: bool) -> Result<Dims> {
        Ok(reduced_shape(self.shape(), &self.axes(op, axes)?, keepdim))
    }

    /// Refuses an empty axis where the result would be no element of the tensor.
    fn axes_not_empty(&self, op: &'static str, axes: &[usize]) -> Result<()> {
        let shape = self.shape();
        let value = format_args!("{axes:?} of {shape:?}");
        let is_valid = axes.iter().all(|&axis| self.shape()[axis] > 0);
        Error::require(is_valid, op, "axes", "axes that are not empty", value)
    }

    /// One command that reduces `axes` into a fresh tensor, with memory for it to work in.
    fn reduce(&self, how: impl Into<Reduction>, axes: &[usize], keepdim: bool) -> Result<Tensor> {
        let how = how.into();
        let dtype = if matches!(how, Reduction::Index(_)) { DType::I64 } else { self.dtype };
        let shape = reduced_shape(self.shape(), axes, keepdim);
        // As the launchers take them, where none at all would mean every axis.
        let axes: Strides = axes.iter().map(|&axis| axis as isize).collect();
        Tensor::produce(self.device(), Layout::contiguous(&shape), dtype, |stream, out| {
            let bytes = reduce_workspace(stream, &self.layout, &axes)?;
            Tensor::with_workspace(stream, bytes, |memory| {
                kernels::reduce(stream, how, self.view(), &axes, memory, out)
            })
        })
    }

    /// A reduction of floats over `axes`.
    fn reduce_floats(&self, how: Reduction, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.dtype().require_float(how.name())?;
        self.reduce(how, &self.axes(how.name(), axes)?, keepdim)
    }

    /// The largest or smallest element over `axes`.
    fn extreme(&self, op: ReduceOp, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.dtype().require_number(op.name())?;
        let axes = self.axes(op.name(), axes)?;
        self.axes_not_empty(op.name(), &axes)?;
        self.reduce(op, &axes, keepdim)
    }

    /// Sums of bool and u8 are counted in i64.
    fn wide(&self) -> Result<Tensor> {
        match self.dtype {
            DType::Bool | DType::U8 => self.to_dtype(DType::I64),
            _ => Ok(self.clone()),
        }
    }

    /// The sum over `axes`; no axes means all of them. Bool and U8 sum to I64, and an empty sum is 0.
    ///
    /// Shapes: `[m, n]` over axis 1 -> `[m]`, or `[m, 1]` with `keepdim`.
    ///
    /// ```
    /// # use tensor::{DType, Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::ones(&[2, 3], DType::F32, &Device::cpu())?;
    /// assert_eq!(x.sum(&[], false)?.item::<f32>()?, 6.0);
    /// assert_eq!(x.sum(&[-1], true)?.shape(), [2, 1]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `AxisOutOfRange`; `InvalidArgument` for an axis named twice.
    pub fn sum(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        let axes = self.axes("sum", axes)?;
        self.wide()?.reduce(ReduceOp::Sum, &axes, keepdim)
    }

    /// The product over `axes`, all of them if none is named; an empty product is 1.
    ///
    /// # Errors
    /// As [`Tensor::sum`].
    pub fn prod(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        let axes = self.axes("prod", axes)?;
        self.wide()?.reduce(ReduceOp::Prod, &axes, keepdim)
    }

    /// The mean over `axes`; no axes means all of them. It is NaN over no elements.
    ///
    /// Shapes: as for [`Tensor::sum`].
    ///
    /// # Errors
    /// As for [`Tensor::sum`], and `DTypeUnsupported` unless the elements are floats.
    pub fn mean(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.reduce_floats(ReduceOp::Mean.into(), axes, keepdim)
    }

    /// The largest element over `axes`; no axes means all of them. It is NaN if any element is.
    ///
    /// Shapes: as for [`Tensor::sum`].
    ///
    /// # Errors
    /// As for [`Tensor::sum`]; `InvalidArgument` over an empty axis, `DTypeUnsupported` for bool.
    pub fn max(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.extreme(ReduceOp::Max, axes, keepdim)
    }

    /// The smallest element over `axes`; no axes means all of them. It is NaN if any element is.
    ///
    /// # Errors
    /// As for [`Tensor::max`].
    pub fn min(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.extreme(ReduceOp::Min, axes, keepdim)
    }

    /// The index of the first largest element along `axis`, as i64; the first NaN if there is one.
    ///
    /// # Errors
    /// `AxisOutOfRange`; `InvalidArgument` over an empty axis, `DTypeUnsupported` for bool.
    pub fn argmax(&self, axis: isize, keepdim: bool) -> Result<Tensor> {
        self.index_along(Extreme::Largest, axis, keepdim)
    }

    /// The index of the first smallest element along `axis`, as i64; the first NaN if there is one.
    ///
    /// # Errors
    /// As [`Tensor::argmax`].
    pub fn argmin(&self, axis: isize, keepdim: bool) -> Result<Tensor> {
        self.index_along(Extreme::Smallest, axis, keepdim)
    }

    /// The index of one element along `axis`, as i64.
    fn index_along(&self, which: Extreme, axis: isize, keepdim: bool) -> Result<Tensor> {
        let op = which.op();
        self.dtype().require_number(op)?;
        if self.rank() == 0 {
            normalize_axis(op, axis, 1)?;
            return Tensor::zeros(&[], DType::I64, self.device());
        }
        let axis = normalize_axis(op, axis, self.rank())?;
        self.axes_not_empty(op, &[axis])?;
        self.reduce(Reduction::Index(which), &[axis], keepdim)
    }

    /// The variance over `axes`, `sum((x - mean)^2) / (n - correction)`, in two passes; no axes means all of them.
    ///
    /// `correction` is 1 for the unbiased estimate and 0 for the mean square deviation. The result is NaN if
    /// `n <= correction`.
    ///
    /// Shapes: as for [`Tensor::sum`].
    ///
    /// # Errors
    /// As for [`Tensor::mean`].
    pub fn var(&self, axes: &[isize], correction: f64, keepdim: bool) -> Result<Tensor> {
        self.reduce_floats(Reduction::Var { correction, root: false }, axes, keepdim)
    }

    /// The standard deviation over `axes`: the root of [`Tensor::var`], also where the variance exceeds F32.
    ///
    /// # Errors
    /// As for [`Tensor::mean`].
    pub fn std(&self, axes: &[isize], correction: f64, keepdim: bool) -> Result<Tensor> {
        self.reduce_floats(Reduction::Var { correction, root: true }, axes, keepdim)
    }

    /// `log(sum(e^x))` over `axes`, without overflow; no axes means all of them. It is -inf over no elements.
    ///
    /// Shapes: as for [`Tensor::sum`].
    ///
    /// # Errors
    /// As for [`Tensor::mean`].
    pub fn logsumexp(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.reduce_floats(Reduction::LogSumExp, axes, keepdim)
    }

    /// The sum over the axes along which `shape` would be broadcast to this shape: the gradient of [`Tensor::expand`].
    ///
    /// Shapes: `[m, n]` to `[n]`, `[1, n]`, `[m, 1]` or `[]`. Of equal shapes nothing is copied.
    ///
    /// # Errors
    /// `ShapeMismatch` if `shape` does not broadcast to this shape.
    pub fn sum_to(&self, shape: &[usize]) -> Result<Tensor> {
        const OP: &str = "sum_to";
        const FIT: &str = "axes from the last must be equal or become 1";
        if shape == self.shape() {
            return Ok(self.clone());
        }
        let Some(extra) = self.rank().checked_sub(shape.len()) else {
            return Err(Error::shape_mismatch(OP, FIT, self.shape(), shape));
        };
        let mut axes: Dims = (0..extra).collect();
        for (axis, (&have, &want)) in self.shape()[extra..].iter().zip(shape).enumerate() {
            if have == want {
                continue;
            }
            Error::require_shapes(want == 1, OP, FIT, self.shape(), shape)?;
            axes.push(extra + axis);
        }
        let mut sum = self.reduce(ReduceOp::Sum, &axes, true)?;
        sum.layout = Layout::contiguous(shape);
        Ok(sum)
    }

    /// One axis counted from the front; a scalar is seen as one element of rank 1.
    fn along(
        &self,
        op: &'static str,
        axis: isize,
        launch: impl Fn(&Stream, View<'_>, isize, View<'_>) -> Result<()>,
    ) -> Result<Tensor> {
        self.dtype().require_float(op)?;
        let at = normalize_axis(op, axis, self.rank().max(1))? as isize;
        let one = if self.rank() == 0 { Some(self.reshape(&[1])?) } else { None };
        let x = one.as_ref().unwrap_or(self);
        let layout = Layout::contiguous(x.shape());
        let mut out =
            Tensor::produce(self.device(), layout, self.dtype, |s, out| launch(s, x.view(), at, out))?;
        if one.is_some() {
            out.layout = Layout::contiguous(&[]);
        }
        Ok(out)
    }

    /// `e^x / sum(e^x)` along `axis`, without overflow.
    ///
    /// # Errors
    /// `AxisOutOfRange`; `DTypeUnsupported` unless the elements are floats.
    pub fn softmax(&self, axis: isize) -> Result<Tensor> {
        self.along("softmax", axis, kernels::softmax)
    }

    /// `x - logsumexp(x)` along `axis`: the logarithm of [`Tensor::softmax`].
    ///
    /// # Errors
    /// As for [`Tensor::softmax`].
    pub fn log_softmax(&self, axis: isize) -> Result<Tensor> {
        self.along("log_softmax", axis, kernels::log_softmax)
    }
}

/// `y * (g - sum(g * y))` along `axis`, for the result `y` of [`Tensor::softmax`].
///
/// # Errors
/// As [`Tensor::softmax`], and `DeviceMismatch`, `DTypeMismatch`, `ShapeMismatch`.
pub fn softmax_grad(y: &Tensor, g: &Tensor, axis: isize) -> Result<Tensor> {
    along_with("softmax_grad", y, g, axis, kernels::softmax_grad)
}

/// `g - e ^ y * sum(g)` along `axis`, for the result `y` of [`Tensor::log_softmax`].
///
/// # Errors
/// As [`softmax_grad`].
pub fn log_softmax_grad(y: &Tensor, g: &Tensor, axis: isize) -> Result<Tensor> {
    along_with("log_softmax_grad", y, g, axis, kernels::log_softmax_grad)
}

/// One command along `axis` with a second operand of the same shape.
fn along_with(
    op: &'static str,
    y: &Tensor,
    g: &Tensor,
    axis: isize,
    launch: fn(&Stream, View<'_>, View<'_>, isize, View<'_>) -> Result<()>,
) -> Result<Tensor> {
    same_kind(op, y, g, "gradient")?;
    has_shape(op, y.shape(), g, "gradient")?;
    y.along(op, axis, |stream, y, axis, out| {
        let g = g.with_layout(g.layout.expand(op, y.layout.shape())?);
        launch(stream, y, g.view(), axis, out)
    })
}
