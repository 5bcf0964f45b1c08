//! The norm over many tensors, their scaling, and the search for what is not finite.

#[cfg(doc)]
use device::DType;
use device::{Error, Result, Stream};
use kernels::{TotalNorm, View};

use crate::Tensor;
use crate::check::{first_of, same_device};
use crate::elementwise::dense_order;

/// The Euclidean norm over all elements of all tensors, `sqrt(sum x^2)`, and the factor that brings it down to `max_norm`,
/// `min(max_norm / (norm + 1e-6), 1)`: both without axes, of [`DType::compute_dtype`], and NaN if an element is.
///
/// One command for all. Asynchronous, on the current stream of the tensors' device. The order of additions is fixed.
///
/// # Errors
/// `InvalidArgument` if there are no tensors, `DTypeMismatch` and `DeviceMismatch` if they are not alike, `DTypeUnsupported` unless
/// floating-point, `OutOfMemory`.
pub fn total_norm(tensors: &[Tensor], max_norm: f64) -> Result<(Tensor, Tensor)> {
    const OP: &str = "total_norm";
    let first = first_of(OP, "tensors", tensors)?;
    tensors.iter().try_for_each(|tensor| same_device(OP, first, tensor, "tensor"))?;
    let tensors = tensors.iter().map(in_memory_order).collect::<Result<Vec<Tensor>>>()?;
    Stream::with_current(first.device(), |stream| {
        let dtype = first.dtype.compute_dtype();
        let fresh = |shape: &[usize]| Tensor::allocate(stream, shape, dtype);
        let parts = fresh(&[kernels::norm_parts(tensors.iter().map(Tensor::elements))])?;
        let (norm, scale) = (fresh(&[])?, fresh(&[])?);
        let to = TotalNorm { parts: parts.view(), norm: norm.view(), scale: scale.view() };
        let views: Vec<_> = tensors.iter().map(Tensor::view).collect();
        kernels::total_norm(stream, &views, max_norm, to)?;
        Ok((norm, scale))
    })
}

/// Multiplies each of `tensors`, floats of one type without gaps in memory, in place with a `scale` without axes of what they are
/// computed in, such as that of [`total_norm`].
///
/// One command for all. Asynchronous, on the current stream of the tensors' device.
///
/// # Errors
/// `DTypeMismatch`, `ShapeMismatch`, `DeviceMismatch`, `DTypeUnsupported`, `InvalidArgument` for a tensor with gaps.
pub fn scale_all_(tensors: &[Tensor], scale: &Tensor) -> Result<()> {
    in_place("scale_all", tensors, scale, |stream, pairs| kernels::scale_all(stream, pairs, scale.view()))
}

/// Divides each of `tensors` in place by `scale`, both as for [`scale_all_`], and tells whether an element was not finite: gives 1
/// if so, else 0, without axes, of [`DType::compute_dtype`].
///
/// One command for all. Asynchronous, on the current stream of the tensors' device.
///
/// # Errors
/// As for [`scale_all_`]; `OutOfMemory`.
pub fn unscale_all_(tensors: &[Tensor], scale: &Tensor) -> Result<Tensor> {
    in_place("unscale_all", tensors, scale, |stream, pairs| {
        let fresh = |shape: &[usize]| Tensor::allocate(stream, shape, scale.dtype);
        let parts = fresh(&[kernels::norm_parts(tensors.iter().map(Tensor::elements))])?;
        let found = fresh(&[])?;
        kernels::unscale_all(stream, pairs, scale.view(), [parts.view(), found.view()])?;
        Ok(found)
    })
}

/// Gives `launch` each of `tensors`, dense ones on the device of `scale`, as an output and an input; it writes all of them.
fn in_place<R>(
    op: &'static str,
    tensors: &[Tensor],
    scale: &Tensor,
    launch: impl FnOnce(&Stream, &[(View<'_>, View<'_>)]) -> Result<R>,
) -> Result<R> {
    tensors.iter().try_for_each(|tensor| same_device(op, scale, tensor, "tensor"))?;
    if let Some(gaps) = tensors.iter().find(|tensor| !tensor.layout().is_dense()) {
        let strides = format_args!("shape {:?}, strides {:?}", gaps.shape(), gaps.strides());
        return Err(Error::invalid(op, "tensors", "tensors without gaps in memory", strides));
    }
    let ordered = tensors.iter().map(in_memory_order).collect::<Result<Vec<Tensor>>>()?;
    let pairs: Vec<_> = ordered.iter().map(|x| (x.view(), x.view())).collect();
    let result = Stream::with_current(scale.device(), |stream| launch(stream, &pairs))?;
    tensors.iter().for_each(|tensor| tensor.storage.bump_version());
    Ok(result)
}

/// The same elements with the axes as they follow each other in memory, where they lie without gaps; a copy of others.
fn in_memory_order(x: &Tensor) -> Result<Tensor> {
    match dense_order(&x.layout) {
        Some(order) => Ok(x.with_layout(x.layout.permute("in_memory_order", &order)?)),
        None => x.contiguous(),
    }
}
