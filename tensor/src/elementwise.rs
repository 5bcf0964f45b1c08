//! Ops of two elements, with broadcasting, and what all elementwise ops share.

use device::{DType, Result, Stream};
use kernels::{BinaryGradOp, BinaryOp, CompareOp, Dims, Layout, View, broadcast_shapes};

use crate::Tensor;
use crate::check::{same_device, same_kind};
use crate::tensor::fill_storage;

/// The order of axes in which a dense tensor's elements lie row-major; none for tensors with gaps or overlap.
pub(crate) fn dense_order(layout: &Layout) -> Option<Dims> {
    let (shape, strides) = (layout.shape(), layout.strides());
    let mut order: Dims = (0..layout.rank()).collect();
    order.sort_by_key(|&axis| (std::cmp::Reverse(strides[axis]), std::cmp::Reverse(shape[axis])));
    let mut expected = 1;
    for &axis in order.iter().rev() {
        if shape[axis] != 1 && strides[axis] != expected {
            return None;
        }
        expected *= isize::try_from(shape[axis]).ok()?;
    }
    Some(order)
}

/// The permutation that undoes `order`.
pub(crate) fn inverse(order: &[usize]) -> Dims {
    let mut back = Dims::from_elem(0, order.len());
    for (to, &from) in order.iter().enumerate() {
        back[from] = to;
    }
    back
}

#[derive::located]
impl Tensor {
    /// One command that writes each element of a fresh tensor of type `dtype`.
    #[inline]
    pub(crate) fn map_to(
        &self,
        op: &'static str,
        dtype: DType,
        launch: impl Fn(&Stream, View<'_>, View<'_>) -> Result<()>,
    ) -> Result<Tensor> {
        if !(self.layout.is_contiguous() && self.layout.offset() == 0) {
            return self.map_strided(op, dtype, &launch);
        }
        let device = self.device();
        let storage = fill_storage(device, &self.layout, dtype, |s, out| launch(s, self.view(), out))?;
        Ok(Tensor { storage, layout: self.layout.clone(), dtype })
    }

    /// Dense tensors keep the order in which their elements lie, so that they take the contiguous path.
    #[inline(never)]
    fn map_strided(
        &self,
        op: &'static str,
        dtype: DType,
        launch: &dyn Fn(&Stream, View<'_>, View<'_>) -> Result<()>,
    ) -> Result<Tensor> {
        let order = if self.is_contiguous() { None } else { dense_order(&self.layout) };
        let Some(order) = order else {
            let layout = Layout::contiguous(self.shape());
            return Tensor::produce(self.device(), layout, dtype, |s, out| launch(s, self.view(), out));
        };
        let flat = self.layout.permute(op, &order)?;
        let layout = Layout::contiguous(flat.shape());
        let x = View { layout: &flat, ..self.view() };
        let mut out = Tensor::produce(self.device(), layout, dtype, |s, out| launch(s, x, out))?;
        out.layout = out.layout.permute(op, &inverse(&order))?;
        Ok(out)
    }

    /// One command that writes each element of a fresh tensor from two operands, which broadcast.
    #[inline]
    pub(crate) fn zip_to(
        &self,
        op: &'static str,
        rhs: &Tensor,
        dtype: DType,
        launch: impl Fn(&Stream, View<'_>, View<'_>, View<'_>) -> Result<()>,
    ) -> Result<Tensor> {
        let flat = self.layout.is_contiguous() && self.layout.offset() == 0 && rhs.layout.is_contiguous();
        if !(flat && self.layout.same_shape(&rhs.layout)) {
            return self.zip_strided(op, rhs, dtype, &launch);
        }
        let device = self.device();
        let storage =
            fill_storage(device, &self.layout, dtype, |s, out| launch(s, self.view(), rhs.view(), out))?;
        Ok(Tensor { storage, layout: self.layout.clone(), dtype })
    }

    #[inline(never)]
    fn zip_strided(
        &self,
        op: &'static str,
        rhs: &Tensor,
        dtype: DType,
        launch: &dyn Fn(&Stream, View<'_>, View<'_>, View<'_>) -> Result<()>,
    ) -> Result<Tensor> {
        let shape = broadcast_shapes(op, self.shape(), rhs.shape())?;
        // Operands that lie in the same order give a result in that order, on the contiguous path; one that is the same everywhere
        // lies in any.
        let [all, even] = if self.layout.is_uniform() { [rhs, self] } else { [self, rhs] };
        let alike =
            even.layout.is_uniform() || (even.shape() == &shape[..] && even.strides() == all.strides());
        let order = if alike && all.shape() == &shape[..] && !all.is_contiguous() {
            dense_order(&all.layout)
        } else {
            None
        };
        let mut left = self.layout.expand(op, &shape)?;
        let mut right = rhs.layout.expand(op, &shape)?;
        if let Some(order) = &order {
            left = left.permute(op, order)?;
            right = right.permute(op, order)?;
        }
        let (x, y) = (View { layout: &left, ..self.view() }, View { layout: &right, ..rhs.view() });
        let layout = Layout::contiguous(left.shape());
        let mut out = Tensor::produce(self.device(), layout, dtype, |s, out| launch(s, x, y, out))?;
        if let Some(order) = &order {
            out.layout = out.layout.permute(op, &inverse(order))?;
        }
        Ok(out)
    }

    /// The type of the result of an op on both tensors, by the rule of `torch.result_type`: if both have axes, or neither
    /// has, that to which their types [promote](DType::promote). A tensor of rank 0 beside one with axes counts only if it
    /// is of a higher category, of Bool, integer and float: then their types promote, else that of the tensor with axes
    /// stays.
    ///
    /// ```
    /// # use tensor::{DType, Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::ones(&[2], DType::BF16, &Device::cpu())?;
    /// let number = Tensor::scalar(0.5_f64, x.device())?;
    /// assert_eq!(x.mul(&number)?.dtype(), DType::BF16);
    /// assert_eq!(x.to_dtype(DType::I64)?.result_type(&number), DType::F64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn result_type(&self, rhs: &Tensor) -> DType {
        let category = |dtype: DType| u8::from(dtype != DType::Bool) + u8::from(dtype.is_float());
        match (self.rank(), rhs.rank()) {
            (1.., 0) if category(rhs.dtype) <= category(self.dtype) => self.dtype,
            (0, 1..) if category(self.dtype) <= category(rhs.dtype) => rhs.dtype,
            _ => self.dtype.promote(rhs.dtype),
        }
    }

    /// `op` on both tensors as elements of their [`result_type`](Self::result_type).
    #[inline(never)]
    fn promoted(&self, rhs: &Tensor, op: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let dtype = self.result_type(rhs);
        op(&self.to_dtype(dtype)?, &rhs.to_dtype(dtype)?)
    }

    #[inline]
    fn arithmetic(&self, name: &'static str, op: BinaryOp, rhs: &Tensor) -> Result<Tensor> {
        if self.dtype != rhs.dtype {
            return self.promoted(rhs, |lhs, rhs| lhs.arithmetic(name, op, rhs));
        }
        same_device(name, self, rhs, "rhs")?;
        if self.dtype == DType::Bool {
            match op {
                BinaryOp::Mul | BinaryOp::Minimum => return self.logical_and(rhs),
                BinaryOp::Maximum => return self.logical_or(rhs),
                _ => self.dtype.require_number(name)?,
            }
        }
        self.zip_to(name, rhs, self.dtype, |stream, a, b, out| kernels::binary(stream, op, a, b, out))
    }

    #[inline]
    fn comparison(&self, name: &'static str, op: CompareOp, rhs: &Tensor) -> Result<Tensor> {
        if self.dtype != rhs.dtype {
            return self.promoted(rhs, |lhs, rhs| lhs.comparison(name, op, rhs));
        }
        same_device(name, self, rhs, "rhs")?;
        self.zip_to(name, rhs, DType::Bool, |stream, a, b, out| kernels::compare(stream, op, a, b, out))
    }

    /// A binary op chosen at run time; see the method of its name.
    ///
    /// # Errors
    /// `DeviceMismatch`, `DTypeUnsupported`, `ShapeMismatch`.
    pub fn binary(&self, op: BinaryOp, rhs: &Tensor) -> Result<Tensor> {
        if op == BinaryOp::Div {
            return self.div(rhs);
        }
        self.arithmetic(op.name(), op, rhs)
    }

    /// A comparison chosen at run time; see the method of its name.
    ///
    /// # Errors
    /// `DeviceMismatch`, `ShapeMismatch`.
    pub fn compare(&self, op: CompareOp, rhs: impl Comparand) -> Result<Tensor> {
        rhs.compare(self, op)
    }

    /// `self / rhs`, broadcasting. Integers and truth values are divided as F32: no quotient is rounded to an integer.
    ///
    /// # Errors
    /// `DeviceMismatch`, `ShapeMismatch`.
    #[inline]
    pub fn div(&self, rhs: &Tensor) -> Result<Tensor> {
        if self.dtype.is_float() {
            return self.arithmetic("div", BinaryOp::Div, rhs);
        }
        match self.result_type(rhs) {
            float if float.is_float() => self.to_dtype(float)?.div(rhs),
            _ => self.to_dtype(DType::F32)?.div(&rhs.to_dtype(DType::F32)?),
        }
    }

    /// `self / value`, rounded once. Integers and bool are divided as F32.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn div_scalar(&self, value: f64) -> Result<Tensor> {
        // A true division, as the quotient of two tensors: `self * (1 / value)` would round twice.
        let (dtype, value) = self.to_divide(value)?;
        self.to_dtype(value.dtype)?.div(&value)?.to_dtype(dtype)
    }

    /// The type of a quotient of this tensor and a number, in either order, and the number in the type that it is computed
    /// in: with BF16 and F16 it is not rounded to them.
    #[doc(hidden)]
    pub fn to_divide(&self, number: f64) -> Result<(DType, Tensor)> {
        let dtype = if self.dtype.is_float() { self.dtype } else { DType::F32 };
        Ok((dtype, Tensor::full(&[], number, dtype.compute_dtype(), self.device())?))
    }

    /// Where elements are NaN; nowhere for integers.
    ///
    /// # Errors
    /// As for [`ne`](Self::ne).
    pub fn isnan(&self) -> Result<Tensor> {
        self.comparison("isnan", CompareOp::Ne, self)
    }

    /// Where elements are infinite.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn isinf(&self) -> Result<Tensor> {
        self.dtype.require_float("isinf")?;
        self.abs()?.eq(f64::INFINITY)
    }

    /// Where elements are neither NaN nor infinite.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn isfinite(&self) -> Result<Tensor> {
        self.dtype.require_float("isfinite")?;
        self.abs()?.lt(f64::INFINITY)
    }

    /// The negation of a bool tensor.
    ///
    /// # Errors
    /// `DTypeMismatch` for other types.
    pub fn logical_not(&self) -> Result<Tensor> {
        self.dtype().require("logical_not", "input", DType::Bool)?;
        self.map_to("logical_not", DType::Bool, kernels::logical_not)
    }

    /// `a` where `cond` holds and `b` elsewhere; all three broadcast. `a` and `b` of different types are converted to
    /// their [`result_type`](Self::result_type) first.
    ///
    /// # Errors
    /// `ShapeMismatch`, `DeviceMismatch`; `DTypeMismatch` unless `cond` is bool.
    pub fn where_cond(cond: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        const OP: &str = "where_cond";
        same_device(OP, cond, a, "a")?;
        cond.dtype().require(OP, "cond", DType::Bool)?;
        same_device(OP, a, b, "b")?;
        if a.dtype != b.dtype {
            return a.promoted(b, |a, b| Tensor::where_cond(cond, a, b));
        }
        let shape = broadcast_shapes(OP, a.shape(), b.shape())?;
        let shape = broadcast_shapes(OP, cond.shape(), &shape)?;
        let (cond, a, b) = (cond.expand(&shape)?, a.expand(&shape)?, b.expand(&shape)?);
        Tensor::produce(cond.device(), Layout::contiguous(&shape), a.dtype, |stream, out| {
            kernels::where_cond(stream, cond.view(), a.view(), b.view(), out)
        })
    }
}

/// What the elements of a tensor are compared with: a tensor, which broadcasts, or a number, which is rounded to the type of floats.
pub trait Comparand {
    /// Where the comparison of `lhs` with it holds.
    ///
    /// # Errors
    /// `DeviceMismatch`, `ShapeMismatch`, `OutOfMemory`.
    #[track_caller]
    fn compare(self, lhs: &Tensor, op: CompareOp) -> Result<Tensor>;
}

impl Comparand for &Tensor {
    #[inline]
    fn compare(self, lhs: &Tensor, op: CompareOp) -> Result<Tensor> {
        lhs.comparison(op.name(), op, self)
    }
}

impl Comparand for f64 {
    fn compare(self, lhs: &Tensor, op: CompareOp) -> Result<Tensor> {
        let [least, end] = match lhs.dtype {
            DType::Bool => [0.0, 2.0],
            DType::U8 => [0.0, 256.0],
            _ => [i64::MIN as f64, -(i64::MIN as f64)],
        };
        let is_one = lhs.dtype.is_float() || self.trunc() == self && (least..end).contains(&self);
        // A number that integers do not have is compared with them as F64, to which large ones are rounded.
        let (value, dtype) = match self {
            _ if is_one => (self, lhs.dtype),
            _ if self >= end => (f64::INFINITY, DType::F64),
            _ if self < least => (f64::NEG_INFINITY, DType::F64),
            _ => (self, DType::F64),
        };
        lhs.comparison(op.name(), op, &Tensor::full(&[], value, dtype, lhs.device())?)
    }
}

/// Methods of pairs of elements, which broadcast.
macro_rules! pairs {
    ($($(#[$doc:meta])* $name:ident: $kind:ident $op:expr;)+) => {
        #[derive::located]
        impl Tensor {
            $($(#[$doc])*
            #[inline]
            pub fn $name(&self, rhs: &Tensor) -> Result<Tensor> {
                self.$kind(stringify!($name), $op, rhs)
            })+
        }
    };
}

pairs! {
    /// `self + rhs`, broadcasting. Operands of different types are converted to their [`result_type`](Self::result_type)
    /// first.
    ///
    /// ```
    /// # use tensor::{DType, Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let device = Device::cpu();
    /// let column = Tensor::from_slice(&[1.0_f32, 2.0], &[2, 1], &device)?;
    /// let row = Tensor::from_slice(&[10.0_f32, 20.0, 30.0], &[3], &device)?;
    /// let sum = column.add(&row)?;
    /// assert_eq!(sum.shape(), [2, 3]);
    /// assert_eq!(sum.to_vec::<f32>()?, [11.0, 21.0, 31.0, 12.0, 22.0, 32.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `DeviceMismatch`, `DTypeUnsupported` for bool, `ShapeMismatch`.
    add: arithmetic BinaryOp::Add;

    /// `self - rhs`, broadcasting.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    sub: arithmetic BinaryOp::Sub;

    /// `self * rhs`, broadcasting; of truth values, whether both hold.
    ///
    /// # Errors
    /// `DeviceMismatch`, `ShapeMismatch`.
    mul: arithmetic BinaryOp::Mul;

    /// `self ^ rhs`, broadcasting.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pow: arithmetic BinaryOp::Pow;

    /// The remainder `x - trunc(x / y) y` for `x` of `self` and `y` of `rhs`, exactly, with the sign of `x`, broadcasting; for `y = 0`
    /// NaN, of integers `x`.
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::from_slice(&[5.5_f32, -5.5], &[2], &Device::cpu())?;
    /// assert_eq!(x.fmod(&Tensor::scalar(2.0_f32, x.device())?)?.to_vec::<f32>()?, [1.5, -1.5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::add`].
    fmod: arithmetic BinaryOp::Fmod;

    /// The angles of the points `(x, y)` with `y` of `self` and `x` of `rhs`, in `-pi..=pi`, broadcasting: the arc tangent of
    /// `y / x` in the quadrant of both signs.
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let y = Tensor::from_slice(&[1.0_f64, 1.0], &[2], &Device::cpu())?;
    /// let x = Tensor::from_slice(&[1.0_f64, -1.0], &[2], y.device())?;
    /// assert_eq!(y.atan2(&x)?.mul_scalar(4.0 / std::f64::consts::PI)?.to_vec::<f64>()?, [1.0, 3.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `DeviceMismatch`, `DTypeUnsupported` unless the elements are floats, `ShapeMismatch`.
    atan2: arithmetic BinaryOp::Atan2;

    /// The larger of each pair, broadcasting; NaN if either is. True is larger than false.
    ///
    /// # Errors
    /// `DeviceMismatch`, `ShapeMismatch`.
    maximum: arithmetic BinaryOp::Maximum;

    /// The smaller of each pair, broadcasting; NaN if either is. False is smaller than true.
    ///
    /// # Errors
    /// `DeviceMismatch`, `ShapeMismatch`.
    minimum: arithmetic BinaryOp::Minimum;
}

/// Methods that compare elements.
macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident: $op:ident;)+) => {
        #[derive::located]
        impl Tensor {
            $($(#[$doc])*
            #[inline]
            pub fn $name(&self, rhs: impl Comparand) -> Result<Tensor> {
                rhs.compare(self, CompareOp::$op)
            })+
        }
    };
}

comparisons! {
    /// `self == rhs` as bool, broadcasting; false where either is NaN. Operands of different types are converted to
    /// their [`result_type`](Self::result_type) first; a number is rounded to the type of floats.
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::from_slice(&[1.0_f32, 2.0, 3.0], &[3], &Device::cpu())?;
    /// assert_eq!(x.eq(2.0)?.to_vec::<bool>()?, [false, true, false]);
    /// assert_eq!(x.eq(&x)?.to_vec::<bool>()?, [true; 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `DeviceMismatch`, `ShapeMismatch`.
    eq: Eq;

    /// `self != rhs` as bool, broadcasting; true where either is NaN.
    ///
    /// # Errors
    /// As [`Tensor::eq`].
    ne: Ne;

    /// `self < rhs` as bool, broadcasting; false where either is NaN.
    ///
    /// # Errors
    /// As [`Tensor::eq`].
    lt: Lt;

    /// `self <= rhs` as bool, broadcasting; false where either is NaN.
    ///
    /// # Errors
    /// As [`Tensor::eq`].
    le: Le;

    /// `self > rhs` as bool, broadcasting; false where either is NaN.
    ///
    /// # Errors
    /// As [`Tensor::eq`].
    gt: Gt;

    /// `self >= rhs` as bool, broadcasting; false where either is NaN.
    ///
    /// # Errors
    /// As [`Tensor::eq`].
    ge: Ge;
}

/// A gradient of a binary op, from both operands, which broadcast to its shape, and the gradient `g` of the result.
///
/// # Errors
/// `DeviceMismatch`, `DTypeMismatch`, `DTypeUnsupported` unless the elements are floats, `ShapeMismatch`.
pub fn binary_grad(op: BinaryGradOp, lhs: &Tensor, rhs: &Tensor, g: &Tensor) -> Result<Tensor> {
    let name = op.name();
    g.dtype().require_float(name)?;
    same_kind(name, g, lhs, "lhs")?;
    same_kind(name, g, rhs, "rhs")?;
    let (lhs, rhs) = (lhs.expand(g.shape())?, rhs.expand(g.shape())?);
    g.produce_like(g.shape(), |s, out| kernels::binary_grad(s, op, lhs.view(), rhs.view(), g.view(), out))
}
