//! Functions of one element, and their gradients.

use device::Result;
use kernels::{BinaryOp, UnaryOp};

use crate::Tensor;
use crate::check::{has_shape, is_float, is_number, same_kind};

/// Which form of the GELU is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gelu {
    /// `x * (1 + erf(x / sqrt(2))) / 2`.
    Erf,
    /// `x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2`.
    Tanh,
}

impl Tensor {
    #[inline]
    fn number(&self, name: &'static str, op: UnaryOp) -> Result<Tensor> {
        is_number(name, self)?;
        self.map_to(name, self.dtype, |stream, x, out| kernels::unary(stream, op, x, out))
    }

    #[inline]
    fn float(&self, name: &'static str, op: UnaryOp) -> Result<Tensor> {
        is_float(name, self)?;
        self.map_to(name, self.dtype, |stream, x, out| kernels::unary(stream, op, x, out))
    }

    /// A gradient helper: `self` is what the forward pass saved, `g` the gradient of its result.
    #[inline]
    fn gradient(&self, name: &'static str, op: BinaryOp, g: &Tensor) -> Result<Tensor> {
        is_float(name, self)?;
        same_kind(name, self, g)?;
        has_shape(name, self.shape(), g)?;
        self.zip_to(name, g, self.dtype, |stream, x, g, out| kernels::binary(stream, op, x, g, out))
    }

    /// A unary op chosen at run time; see the method of its name.
    ///
    /// # Errors
    /// `DTypeUnsupported`.
    pub fn unary(&self, op: UnaryOp) -> Result<Tensor> {
        self.number(op.name(), op)
    }

    /// `self + value`; the number takes the tensor's type.
    ///
    /// # Errors
    /// `DTypeUnsupported` for bool.
    #[inline]
    pub fn add_scalar(&self, value: f64) -> Result<Tensor> {
        self.number("add_scalar", UnaryOp::AddScalar(value))
    }

    /// `self * value`; the number takes the tensor's type.
    ///
    /// # Errors
    /// `DTypeUnsupported` for bool.
    #[inline]
    pub fn mul_scalar(&self, value: f64) -> Result<Tensor> {
        self.number("mul_scalar", UnaryOp::MulScalar(value))
    }

    /// `self ^ exponent`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point.
    pub fn pow_scalar(&self, exponent: f64) -> Result<Tensor> {
        self.float("pow_scalar", UnaryOp::PowScalar(exponent))
    }

    /// `min(max(self, min), max)`; NaN stays NaN.
    ///
    /// # Errors
    /// `DTypeUnsupported` for bool.
    pub fn clamp(&self, min: f64, max: f64) -> Result<Tensor> {
        self.number("clamp", UnaryOp::Clamp { min, max })
    }

    /// `-self`.
    ///
    /// # Errors
    /// `DTypeUnsupported` for bool.
    pub fn neg(&self) -> Result<Tensor> {
        self.number("neg", UnaryOp::Neg)
    }

    /// `|self|`.
    ///
    /// # Errors
    /// `DTypeUnsupported` for bool.
    pub fn abs(&self) -> Result<Tensor> {
        self.number("abs", UnaryOp::Abs)
    }

    /// -1, 0 or 1 by the sign; 0 for NaN.
    ///
    /// # Errors
    /// `DTypeUnsupported` for bool.
    pub fn sign(&self) -> Result<Tensor> {
        self.number("sign", UnaryOp::Sign)
    }

    /// `self * self`.
    ///
    /// # Errors
    /// `DTypeUnsupported` for bool.
    pub fn square(&self) -> Result<Tensor> {
        self.number("square", UnaryOp::Square)
    }

    /// `e ^ self`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point.
    #[inline]
    pub fn exp(&self) -> Result<Tensor> {
        self.float("exp", UnaryOp::Exp)
    }

    /// The natural logarithm; NaN below zero.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point.
    #[inline]
    pub fn log(&self) -> Result<Tensor> {
        self.float("log", UnaryOp::Log)
    }

    /// The square root; NaN below zero.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point.
    #[inline]
    pub fn sqrt(&self) -> Result<Tensor> {
        self.float("sqrt", UnaryOp::Sqrt)
    }

    /// `1 / sqrt(self)`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point.
    #[inline]
    pub fn rsqrt(&self) -> Result<Tensor> {
        self.float("rsqrt", UnaryOp::Rsqrt)
    }

    /// `1 / self`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point.
    #[inline]
    pub fn reciprocal(&self) -> Result<Tensor> {
        self.float("reciprocal", UnaryOp::Recip)
    }

    /// The sine.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point.
    #[inline]
    pub fn sin(&self) -> Result<Tensor> {
        self.float("sin", UnaryOp::Sin)
    }

    /// The cosine.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point.
    #[inline]
    pub fn cos(&self) -> Result<Tensor> {
        self.float("cos", UnaryOp::Cos)
    }

    /// The hyperbolic tangent.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point.
    #[inline]
    pub fn tanh(&self) -> Result<Tensor> {
        self.float("tanh", UnaryOp::Tanh)
    }

    /// `1 / (1 + e ^ -self)`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point.
    #[inline]
    pub fn sigmoid(&self) -> Result<Tensor> {
        self.float("sigmoid", UnaryOp::Sigmoid)
    }

    /// `max(self, 0)`; NaN stays NaN.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point.
    #[inline]
    pub fn relu(&self) -> Result<Tensor> {
        self.float("relu", UnaryOp::Relu)
    }

    /// `self / (1 + e ^ -self)`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point.
    #[inline]
    pub fn silu(&self) -> Result<Tensor> {
        self.float("silu", UnaryOp::Silu)
    }

    /// The error function.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point.
    #[inline]
    pub fn erf(&self) -> Result<Tensor> {
        self.float("erf", UnaryOp::Erf)
    }

    /// The Gaussian error linear unit, in either form.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point.
    pub fn gelu(&self, form: Gelu) -> Result<Tensor> {
        match form {
            Gelu::Erf => self.float("gelu", UnaryOp::GeluErf),
            Gelu::Tanh => self.float("gelu", UnaryOp::GeluTanh),
        }
    }

    /// `g` where `self > 0`, else 0, for `self` either the input or the result of [`Tensor::relu`].
    ///
    /// # Errors
    /// `DeviceMismatch`, `DTypeMismatch`, `DTypeUnsupported`, `ShapeMismatch`.
    #[inline]
    pub fn relu_grad(&self, g: &Tensor) -> Result<Tensor> {
        self.gradient("relu_grad", BinaryOp::ReluGrad, g)
    }

    /// `g * (1 - y^2)` for `self = y`, the result of [`Tensor::tanh`].
    ///
    /// # Errors
    /// As [`Tensor::relu_grad`].
    pub fn tanh_grad(&self, g: &Tensor) -> Result<Tensor> {
        self.gradient("tanh_grad", BinaryOp::TanhGrad, g)
    }

    /// `g * y * (1 - y)` for `self = y`, the result of [`Tensor::sigmoid`].
    ///
    /// # Errors
    /// As [`Tensor::relu_grad`].
    pub fn sigmoid_grad(&self, g: &Tensor) -> Result<Tensor> {
        self.gradient("sigmoid_grad", BinaryOp::SigmoidGrad, g)
    }

    /// The gradient of [`Tensor::silu`] at its input `self`, times `g`.
    ///
    /// # Errors
    /// As [`Tensor::relu_grad`].
    pub fn silu_grad(&self, g: &Tensor) -> Result<Tensor> {
        self.gradient("silu_grad", BinaryOp::SiluGrad, g)
    }

    /// The gradient of [`Tensor::gelu`] at its input `self`, times `g`.
    ///
    /// # Errors
    /// As [`Tensor::relu_grad`].
    pub fn gelu_grad(&self, form: Gelu, g: &Tensor) -> Result<Tensor> {
        match form {
            Gelu::Erf => self.gradient("gelu_grad", BinaryOp::GeluErfGrad, g),
            Gelu::Tanh => self.gradient("gelu_grad", BinaryOp::GeluTanhGrad, g),
        }
    }
}
