//! Ops that write into a tensor's storage and count its version up.

use device::{Error, Result, Stream};
use kernels::{BinaryOp, Scalar, UnaryOp};

use crate::Tensor;
use crate::check::same_kind;
use crate::elementwise::dense_order;

#[derive::located]
impl Tensor {
    /// Refuses a target where two indices share an element.
    pub(crate) fn writable(&self, op: &'static str) -> Result<()> {
        if self.layout.overlaps_itself() {
            let strides = self.strides();
            let value = format_args!("strides {strides:?}");
            return Err(Error::invalid(op, "self", "without expanded axes", value));
        }
        Ok(())
    }

    /// `src` broadcast to this shape; copied first if writing here could change it under way.
    fn source(&self, op: &'static str, src: &Tensor) -> Result<Tensor> {
        let layout = self.layout_of(op, src)?;
        let aliased = self.same_storage(src) && layout != self.layout;
        if aliased { src.with_layout(layout).copy() } else { Ok(src.with_layout(layout)) }
    }

    fn layout_of(&self, op: &'static str, src: &Tensor) -> Result<kernels::Layout> {
        if src.shape() == self.shape() { Ok(src.layout.clone()) } else { src.layout.expand(op, self.shape()) }
    }

    /// One command that writes this storage. Dense tensors are seen in the order in which they lie, so that they
    /// take the contiguous path.
    fn write(
        &self,
        op: &'static str,
        src: Option<&Tensor>,
        launch: impl Fn(&Stream, &Tensor, &Tensor) -> Result<()>,
    ) -> Result<()> {
        let src = src.unwrap_or(self);
        let order = if self.is_contiguous() { None } else { dense_order(&self.layout) };
        Stream::with_current(self.device(), |stream| match order {
            None => launch(stream, self, src),
            Some(order) => {
                let flat = self.with_layout(self.layout.permute(op, &order)?);
                launch(stream, &flat, &src.with_layout(src.layout.permute(op, &order)?))
            }
        })?;
        self.storage.bump_version();
        Ok(())
    }

    fn arithmetic_(&self, name: &'static str, op: BinaryOp, rhs: &Tensor) -> Result<()> {
        same_kind(name, self, rhs, "rhs")?;
        self.dtype().require_number(name)?;
        // The way of gradient accumulation: nothing to broadcast, to reorder or to copy.
        let flat = self.is_contiguous() && rhs.is_contiguous() && self.layout.same_shape(&rhs.layout);
        if flat && !self.same_storage(rhs) {
            return self.launch_(|stream, x| kernels::binary(stream, op, x, rhs.view(), x));
        }
        self.writable(name)?;
        let rhs = self.source(name, rhs)?;
        self.write(name, Some(&rhs), |s, x, rhs| kernels::binary(s, op, x.view(), rhs.view(), x.view()))
    }

    fn number_(&self, name: &'static str, op: UnaryOp) -> Result<()> {
        self.dtype().require_number(name)?;
        self.writable(name)?;
        self.write(name, None, |stream, x, _| kernels::unary(stream, op, x.view(), x.view()))
    }

    /// `self += rhs`; `rhs` broadcasts to this shape.
    ///
    /// ```
    /// # use tensor::{DType, Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::zeros(&[2, 2], DType::F32, &Device::cpu())?;
    /// x.narrow(0, 1, 1)?.add_(&x.ones_like()?.narrow(0, 0, 1)?)?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0]);
    /// assert_eq!(x.version(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `DeviceMismatch`, `DTypeMismatch`, `DTypeUnsupported` for bool, `ShapeMismatch`; `InvalidArgument` if
    /// `self` is expanded.
    pub fn add_(&self, rhs: &Tensor) -> Result<()> {
        self.arithmetic_("add_", BinaryOp::Add, rhs)
    }

    /// `self -= rhs`; `rhs` broadcasts to this shape.
    ///
    /// # Errors
    /// As [`Tensor::add_`].
    pub fn sub_(&self, rhs: &Tensor) -> Result<()> {
        self.arithmetic_("sub_", BinaryOp::Sub, rhs)
    }

    /// `self *= rhs`; `rhs` broadcasts to this shape.
    ///
    /// # Errors
    /// As [`Tensor::add_`].
    pub fn mul_(&self, rhs: &Tensor) -> Result<()> {
        self.arithmetic_("mul_", BinaryOp::Mul, rhs)
    }

    /// `self /= rhs`; `rhs` broadcasts to this shape.
    ///
    /// # Errors
    /// As [`Tensor::add_`]; `DTypeUnsupported` unless floating-point, as no other type holds the quotients.
    pub fn div_(&self, rhs: &Tensor) -> Result<()> {
        self.dtype().require_float("div_")?;
        self.arithmetic_("div_", BinaryOp::Div, rhs)
    }

    /// `self += value`.
    ///
    /// # Errors
    /// `DTypeUnsupported` for bool; `InvalidArgument` if `self` is expanded.
    pub fn add_scalar_(&self, value: f64) -> Result<()> {
        self.number_("add_scalar_", UnaryOp::AddScalar(value))
    }

    /// `self *= value`.
    ///
    /// # Errors
    /// As [`Tensor::add_scalar_`].
    pub fn mul_scalar_(&self, value: f64) -> Result<()> {
        self.number_("mul_scalar_", UnaryOp::MulScalar(value))
    }

    /// Overwrites the elements with those of `src`, which broadcasts to this shape and may have another type. From another
    /// device they come as by [`Tensor::to_device`], straight into a contiguous tensor of the same shape and type.
    ///
    /// # Errors
    /// `ShapeMismatch`; `InvalidArgument` if `self` is expanded; for another device's, as [`Tensor::to_device`].
    pub fn copy_(&self, src: &Tensor) -> Result<()> {
        const OP: &str = "copy_";
        self.writable(OP)?;
        if self.device() != src.device() {
            // Nothing moves that does not fit.
            self.layout_of(OP, src)?;
            return self.copy_from_afar(OP, src);
        }
        if self.same_storage(src) && self.layout == src.layout {
            return Ok(());
        }
        let src = self.source(OP, src)?;
        self.write(OP, Some(&src), |stream, x, src| kernels::copy(stream, src.view(), x.view()))
    }

    /// Overwrites every element with one value, which takes the element type.
    ///
    /// # Errors
    /// `InvalidArgument` if `self` is expanded.
    pub fn fill_(&self, value: impl Into<Scalar>) -> Result<()> {
        self.writable("fill_")?;
        let value = value.into();
        self.write("fill_", None, |stream, x, _| kernels::fill(stream, value, x.view()))
    }

    /// Overwrites every element with 0.
    ///
    /// # Errors
    /// As [`Tensor::fill_`].
    pub fn zero_(&self) -> Result<()> {
        self.fill_(0.0)
    }
}
