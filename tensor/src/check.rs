//! Argument checks that the ops share; the errors are built out of line, off the hot path.

use device::{Error, Result};
use kernels::Dims;

use crate::Tensor;

/// Same device and same element type; errors call the second one `name`.
#[inline]
pub(crate) fn same_kind(op: &'static str, lhs: &Tensor, rhs: &Tensor, name: &'static str) -> Result<()> {
    same_device(op, lhs, rhs, name)?;
    rhs.dtype().require(op, name, lhs.dtype())
}

/// A parameter of an op on `x` is of the elements' type, or of the one that is computed in. A weight belongs to a layer, so errors
/// are about the input.
pub(crate) fn expect_parameter(
    op: &'static str,
    x: &Tensor,
    parameter: &Tensor,
    name: &'static str,
) -> Result<()> {
    let is_wide = parameter.dtype() == x.dtype().compute_dtype();
    match (name, is_wide) {
        ("weight", true) => same_device(op, parameter, x, "input"),
        ("weight", false) => same_kind(op, parameter, x, "input"),
        (_, true) => same_device(op, x, parameter, name),
        (_, false) => same_kind(op, x, parameter, name),
    }
}

/// Same device.
#[inline]
pub(crate) fn same_device(op: &'static str, lhs: &Tensor, rhs: &Tensor, name: &'static str) -> Result<()> {
    Error::require_same_device(op, name, lhs.device(), rhs.device())
}

/// The first of several tensors, which there have to be.
pub(crate) fn first_of<'a, T>(op: &'static str, argument: &'static str, all: &'a [T]) -> Result<&'a T> {
    all.first().ok_or_else(|| Error::invalid(op, argument, "at least one tensor", 0))
}

/// An argument of a shape that the op does not accept.
#[cold]
#[track_caller]
pub(crate) fn wrong_shape(
    op: &'static str,
    argument: &'static str,
    expected: &'static str,
    x: &Tensor,
) -> Error {
    Error::invalid(op, argument, expected, format_args!("shape {:?}", x.shape()))
}

/// The two sizes of a matrix.
pub(crate) fn matrix(op: &'static str, argument: &'static str, x: &Tensor) -> Result<(usize, usize)> {
    match *x.shape() {
        [rows, columns] => Ok((rows, columns)),
        _ => Err(wrong_shape(op, argument, "of rank 2", x)),
    }
}

/// Whether two shapes are equal; for a few axes a loop is faster than the call that `==` makes.
#[inline]
pub(crate) fn same_shape(lhs: &[usize], rhs: &[usize]) -> bool {
    lhs.len() == rhs.len() && lhs.iter().zip(rhs).all(|(a, b)| a == b)
}

/// Exactly this shape.
#[inline]
pub(crate) fn has_shape(op: &'static str, expected: &[usize], x: &Tensor, name: &'static str) -> Result<()> {
    Error::require_shapes(same_shape(x.shape(), expected), op, name, expected, x.shape())
}

/// `shape` with another size along one axis, whose elements fit in memory.
pub(crate) fn resized_axis(op: &'static str, x: &Tensor, axis: usize, size: usize) -> Result<Dims> {
    let mut shape = Dims::from_slice(x.shape());
    shape[axis] = size;
    elements_of(op, &shape)?;
    Ok(shape)
}

/// The number of elements of a shape, as an error where their bytes do not fit an address. The sizes beside a 0 have to
/// fit as if it were 1: ops multiply and sum over any of them.
pub(crate) fn elements_of(op: &'static str, shape: &[usize]) -> Result<usize> {
    let bytes = shape.iter().try_fold(8_usize, |n, &d| n.checked_mul(d.max(1)));
    match bytes {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(if shape.contains(&0) { 0 } else { bytes / 8 }),
        _ => {
            let expected = "of elements that fit in memory";
            Err(Error::invalid(op, "shape", expected, format_args!("{shape:?}")))
        }
    }
}
