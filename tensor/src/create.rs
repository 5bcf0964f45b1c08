//! Fresh tensors.

use device::{DType, Device, Element, Error, ErrorKind, Result, Stream, as_bytes};
use kernels::{Layout, Scalar, View};

use crate::Tensor;
use crate::check::elements_of;

#[derive::located]
impl Tensor {
    /// A tensor whose elements are whatever the memory holds, to be written by the ops that follow.
    ///
    /// # Errors
    /// `OutOfMemory`; `InvalidArgument` for a shape too large to address.
    pub fn empty(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::fresh("empty", shape, dtype, device, |_, _| Ok(()))
    }

    /// A tensor of one value, which takes the element type.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn full(shape: &[usize], value: impl Into<Scalar>, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::fresh("full", shape, dtype, device, |stream, out| kernels::fill(stream, value.into(), out))
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn zeros(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::full(shape, 0.0, dtype, device)
    }

    /// A tensor of ones.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn ones(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::full(shape, 1.0, dtype, device)
    }

    /// Zeros of this tensor's shape and type, on its device.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn zeros_like(&self) -> Result<Tensor> {
        Tensor::zeros(self.shape(), self.dtype, self.device())
    }

    /// Ones of this tensor's shape and type, on its device.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn ones_like(&self) -> Result<Tensor> {
        Tensor::ones(self.shape(), self.dtype, self.device())
    }

    /// One value in this tensor's shape and type, on its device.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn full_like(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        Tensor::full(self.shape(), value, self.dtype, self.device())
    }

    /// A copy of host values in row-major order; their type is the element type.
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::from_slice(&[1_i64, 2, 3, 4], &[2, 2], &Device::cpu())?;
    /// assert_eq!(x.t()?.to_vec::<i64>()?, [1, 3, 2, 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `ShapeMismatch` if the shape does not have as many elements; `OutOfMemory`.
    pub fn from_slice<T: Element>(values: &[T], shape: &[usize], device: &Device) -> Result<Tensor> {
        const OP: &str = "from_slice";
        const FIT: &str = "there must be one value for each element";
        Error::require_shapes(elements_of(OP, shape)? == values.len(), OP, FIT, shape, &[values.len()])?;
        Tensor::from_bytes(as_bytes(values), shape, T::DTYPE, device)
    }

    /// One value, of rank 0.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn scalar<T: Element>(value: T, device: &Device) -> Result<Tensor> {
        Tensor::from_slice(&[value], &[], device)
    }

    /// `start, start + step, ..` up to but not including `end`.
    ///
    /// Shapes: `[ceil((end - start) / step)]`.
    ///
    /// # Errors
    /// `InvalidArgument` for a step of 0, of the wrong sign or NaN, or limits that are not finite;
    /// `DTypeUnsupported` for bool; `OutOfMemory`.
    pub fn arange(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        const OP: &str = "arange";
        let (start, end, step) = (start.into(), end.into(), step.into());
        let (from, to, by) = (start.to_f64(), end.to_f64(), step.to_f64());
        let is_valid = from.is_finite() && to.is_finite();
        Error::require(is_valid, OP, "start..end", "finite", format_args!("{from}..{to}"))?;
        // Also refuses NaN.
        let is_valid = by > 0.0 && to >= from || by < 0.0 && to <= from;
        Error::require(is_valid, OP, "step", "not 0 and in the direction of `end`", by)?;
        match dtype {
            DType::I64 | DType::U8 => {
                let (from, to, by) = (start.to_i64(), end.to_i64(), step.to_i64());
                Error::require(by != 0, OP, "step", "not 0 as an integer", step.to_f64())?;
                let count =
                    (i128::from(to) - i128::from(from)).unsigned_abs().div_ceil(by.unsigned_abs().into());
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                // Every value fits, though the product may wrap around on the way.
                let value = |i: usize| from.wrapping_add((i as i64).wrapping_mul(by));
                from_values(OP, count, value, device)?.to_dtype(dtype)
            }
            dtype if dtype.is_float() => {
                // A float beyond usize saturates, and is then refused.
                let count = ((to - from) / by).ceil() as usize;
                from_values(OP, count, |i| from + i as f64 * by, device)?.to_dtype(dtype)
            }
            dtype => Err(Error::dtype_unsupported(OP, dtype, "numbers")),
        }
    }

    /// `steps` values evenly spaced from `start` to `end`, both included.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point; `OutOfMemory`.
    pub fn linspace(start: f64, end: f64, steps: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        const OP: &str = "linspace";
        dtype.require_float(OP)?;
        let by = if steps > 1 { (end - start) / (steps - 1) as f64 } else { 0.0 };
        // From the nearer end, so that both ends are met exactly.
        let value = |i: usize| {
            if i < steps / 2 || steps == 1 {
                start + i as f64 * by
            } else {
                end - (steps - 1 - i) as f64 * by
            }
        };
        from_values(OP, steps, value, device)?.to_dtype(dtype)
    }

    /// The identity matrix `[n, n]`.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn eye(n: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        elements_of("eye", &[n, n.saturating_add(1)])?;
        // In rows of n + 1 places the diagonal of an n by n matrix is the first column.
        let room = Tensor::zeros(&[n, n + 1], dtype, device)?;
        let diagonal = room.narrow(1, 0, 1)?;
        Stream::with_current(device, |stream| kernels::fill(stream, Scalar::from(1.0), diagonal.view()))?;
        room.reshape(&[n * (n + 1)])?.narrow(0, 0, n * n)?.reshape(&[n, n])
    }

    /// A fresh contiguous tensor of a shape that `op` was given, written by one command.
    #[inline]
    pub(crate) fn fresh(
        op: &'static str,
        shape: &[usize],
        dtype: DType,
        device: &Device,
        launch: impl FnOnce(&Stream, View<'_>) -> Result<()>,
    ) -> Result<Tensor> {
        elements_of(op, shape)?;
        Tensor::produce(device, Layout::contiguous(shape), dtype, launch)
    }

    /// Copies the elements, if there are any, to a fresh tensor, which has no version to count up.
    pub(crate) fn write_to(&self, fresh: &Tensor) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        Stream::with_current(self.device(), |stream| kernels::copy(stream, self.view(), fresh.view()))
    }
}

/// A tensor of rank 1 of `count` values that the host works out.
fn from_values<T: Element>(
    op: &'static str,
    count: usize,
    value: impl Fn(usize) -> T,
    device: &Device,
) -> Result<Tensor> {
    elements_of(op, &[count])?;
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|error| {
        Error::new(ErrorKind::OutOfMemory {
            requested_bytes: count * size_of::<T>(),
            report: format!("{op}: {count} values on the host: {error}").into(),
        })
    })?;
    values.extend((0..count).map(value));
    Tensor::from_slice(&values, &[count], device)
}
