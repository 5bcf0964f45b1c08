//! Functions of one element, and their gradients.

use device::{AtCaller, Result};
use kernels::{UnaryOp, unary_functions};

use crate::Tensor;
use crate::check::{has_shape, same_kind};

/// Which form of the GELU is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GeluKind {
    /// `x * (1 + erf(x / sqrt(2))) / 2`.
    Erf,
    /// `x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2`.
    Tanh,
}

/// Makes a method for each function of the table, whose `x` is the tensor.
macro_rules! methods {
    (numbers { $($numbers:tt)* } floats { $($floats:tt)* }) => {
        impl Tensor {
            methods!(@rows require_number, "`DTypeUnsupported` for bool." $($numbers)*);
            methods!(@rows require_float, "`DTypeUnsupported` unless floating-point." $($floats)*);
        }
    };
    (@rows $check:ident, $error:literal $(
        $(#[$doc:meta])*
        $variant:ident $(($($from:ident $number:ident = $example:literal),+))?, $name:ident,
        $cost:literal, $width:ident, $same:ident, $cpu:expr, $source:literal
        $(, $of:ident, $slope:expr, $slope_source:literal)?;
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            #[doc = $error]
            #[inline]
            #[track_caller]
            pub fn $name(&self $($(, $number: f64)+)?) -> Result<Tensor> {
                let _at = AtCaller::enter();
                self.dtype().$check(stringify!($name))?;
                self.map_to(stringify!($name), self.dtype, |stream, x, out| {
                    kernels::unary(stream, UnaryOp::$variant $(($($number),+))?, x, out)
                })
            }
        )*
    };
}

unary_functions!(methods);

#[derive::located]
impl Tensor {
    /// A function chosen at run time; see the method of its name.
    ///
    /// # Errors
    /// `DTypeUnsupported`.
    #[inline]
    pub fn unary(&self, op: UnaryOp) -> Result<Tensor> {
        self.dtype().require_number(op.name())?;
        self.map_to(op.name(), self.dtype, |stream, x, out| kernels::unary(stream, op, x, out))
    }

    /// The Gaussian error linear unit `x Φ(x)`: [`GeluKind::Erf`] is exact, [`GeluKind::Tanh`] an approximation.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn gelu(&self, form: GeluKind) -> Result<Tensor> {
        match form {
            GeluKind::Erf => self.gelu_erf(),
            GeluKind::Tanh => self.gelu_tanh(),
        }
    }
}

/// The gradient `g op'` of a function's argument, where `saved` is what the function [saves](UnaryOp::saves).
///
/// # Errors
/// `DeviceMismatch`, `DTypeMismatch`, `DTypeUnsupported`, `ShapeMismatch`; `InvalidArgument` for a function whose
/// derivative is not known.
#[inline]
pub fn unary_grad(saved: &Tensor, op: UnaryOp, g: &Tensor) -> Result<Tensor> {
    let name = op.grad_name();
    saved.dtype().require_float(name)?;
    same_kind(name, saved, g, "gradient")?;
    has_shape(name, saved.shape(), g, "gradient")?;
    saved.zip_to(name, g, saved.dtype, |stream, saved, g, out| kernels::unary_grad(stream, op, saved, g, out))
}
