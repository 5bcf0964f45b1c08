//! `+`, `-`, `*` and `/` as the methods of their names.

use device::Result;

use crate::Tensor;

/// What may stand behind an operator whose left side is a `T`: a `T` or a reference to one, a `Result` of one, or a number.
///
/// An operator gives a `Result`, as the method of its name does, and takes one on either side of a value. So one `?` is
/// enough where products are added one by one; the first error stays as it is. A number may stand on either side, too, and
/// takes the type of the other one; `f64`, `f32` and `i32` may stand on the right, `f64` and `i32` on the left, which are
/// the types of a bare `1.0` and `1`.
///
/// ```
/// # use tensor::{DType, Device, Tensor};
/// # fn main() -> tensor::Result<()> {
/// let device = Device::cpu();
/// let a = Tensor::from_slice(&[1.0_f32, 2.0], &[2], &device)?;
/// let b = Tensor::from_slice(&[4.0_f32, 8.0], &[2], &device)?;
/// assert_eq!((&a + &a * &b)?.to_vec::<f32>()?, [5.0, 18.0]);
/// assert_eq!((2 * &a * &b - &a)?.to_vec::<f32>()?, [7.0, 30.0]);
/// assert_eq!((1.0 - (&a / 2)?)?.to_vec::<f32>()?, [0.5, 0.0]);
/// # Ok(())
/// # }
/// ```
///
/// Rust lets no library define operators of two results, of a result and a number, or `-` before a result. There one more
/// `?` is needed: `(&a * &b)? + &b * &b`, `(&a * &b)? - 1.0`, `-(&a * &b)?`.
///
/// ```compile_fail,E0369
/// # use tensor::{DType, Device, Tensor};
/// # let a = Tensor::zeros(&[2], DType::F32, &Device::cpu())?;
/// (&a * &a + &a * &a)?;
/// # Ok::<(), tensor::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot stand behind an operator on `{T}`",
    note = "numbers are `f64`, `f32` or `i32`; convert others with `as f64`"
)]
pub trait Operand<T> {
    /// The result of `value` for a value, and of `number` for a number.
    ///
    /// # Errors
    /// That of a `Result`, and those of the two.
    fn apply(self, value: impl FnOnce(&T) -> Result<T>, number: impl FnOnce(f64) -> Result<T>) -> Result<T>;
}

/// Makes the operators of a type that has the methods of a [`Tensor`] and can be made from one; `$tensor` gives its tensor.
#[doc(hidden)]
#[macro_export]
macro_rules! operators {
    ($of:ident, $tensor:path) => {
        $crate::operators!(@operand $of: $of, |it, value, _number| value(&it));
        $crate::operators!(@operand $of: &$of, |it, value, _number| value(it));
        $crate::operators!(@operand $of: $crate::Result<$of>, |it, value, _number| value(&it?));
        $crate::operators!(@operand $of: f64, |it, _value, number| number(it));
        $crate::operators!(@operand $of: f32, |it, _value, number| number(f64::from(it)));
        $crate::operators!(@operand $of: i32, |it, _value, number| number(f64::from(it)));

        $crate::operators!(@binary $of: Add add, |x, c| x.add_scalar(c), |c, x| x.add_scalar(c));
        $crate::operators!(@binary $of: Sub sub, |x, c| x.add_scalar(-c), |c, x| x.neg()?.add_scalar(c));
        $crate::operators!(@binary $of: Mul mul, |x, c| x.mul_scalar(c), |c, x| x.mul_scalar(c));
        $crate::operators!(@binary $of: Div div, |x, c| x.div_scalar(c), |c, x| {
            let (dtype, c) = $tensor(x).to_divide(c)?;
            let x = x.to_dtype(c.dtype())?;
            $of::from(c).div(&x)?.to_dtype(dtype)
        });

        $crate::operators!(@neg $of: $of);
        $crate::operators!(@neg $of: &$of);
    };

    (@operand $of:ident: $operand:ty, |$it:ident, $value:ident, $number:ident| $result:expr) => {
        impl $crate::Operand<$of> for $operand {
            #[inline]
            fn apply(
                self,
                $value: impl FnOnce(&$of) -> $crate::Result<$of>,
                $number: impl FnOnce(f64) -> $crate::Result<$of>,
            ) -> $crate::Result<$of> {
                let $it = self;
                $result
            }
        }
    };
    (@binary $of:ident: $trait:ident $op:ident, |$x:ident, $c:ident| $behind:expr, |$d:ident, $y:ident| $before:expr) => {
        $crate::operators!(@left $of: $of, $trait $op, |$x, $c| $behind);
        $crate::operators!(@left $of: &$of, $trait $op, |$x, $c| $behind);
        $crate::operators!(@right $of: $of, $trait $op, |$d, $y| $before);
        $crate::operators!(@right $of: &$of, $trait $op, |$d, $y| $before);
    };
    // A value on the left, and anything on the right.
    (@left $of:ident: $left:ty, $trait:ident $op:ident, |$x:ident, $c:ident| $behind:expr) => {
        #[derive::located]
        impl<R: $crate::Operand<$of>> ::core::ops::$trait<R> for $left {
            type Output = $crate::Result<$of>;

            #[inline]
            fn $op(self, rhs: R) -> $crate::Result<$of> {
                let $x: &$of = &self;
                rhs.apply(|rhs| $of::$op($x, rhs), |$c| $behind)
            }
        }
    };
    // A value on the right of what is none.
    (@right $of:ident: $right:ty, $trait:ident $op:ident, |$c:ident, $x:ident| $before:expr) => {
        #[derive::located]
        impl ::core::ops::$trait<$right> for $crate::Result<$of> {
            type Output = $crate::Result<$of>;

            #[inline]
            fn $op(self, rhs: $right) -> $crate::Result<$of> {
                $of::$op(&self?, &rhs)
            }
        }

        #[derive::located]
        impl ::core::ops::$trait<$right> for f64 {
            type Output = $crate::Result<$of>;

            #[inline]
            fn $op(self, rhs: $right) -> $crate::Result<$of> {
                let ($c, $x): (f64, &$of) = (self, &rhs);
                $before
            }
        }

        #[derive::located]
        impl ::core::ops::$trait<$right> for i32 {
            type Output = $crate::Result<$of>;

            #[inline]
            fn $op(self, rhs: $right) -> $crate::Result<$of> {
                ::core::ops::$trait::$op(f64::from(self), rhs)
            }
        }
    };
    (@neg $of:ident: $operand:ty) => {
        #[derive::located]
        impl ::core::ops::Neg for $operand {
            type Output = $crate::Result<$of>;

            #[inline]
            fn neg(self) -> $crate::Result<$of> {
                $of::neg(&self)
            }
        }
    };
}

operators!(Tensor, std::convert::identity);

#[cfg(test)]
mod tests;
