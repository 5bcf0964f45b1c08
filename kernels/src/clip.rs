//! Launchers over many tensors for gradients: the norm, scaling, and the search for what is not finite, each one command for all
//! of them.

use device::{Result, Stream};

use crate::command::{Command, for_float};
use crate::cpu::clip as cpu;
use crate::cuda::clip as cuda;
use crate::layout::View;
use crate::norms::norm_parts;

/// What [`total_norm`] writes, all in what the tensors are computed in.
#[derive(Clone, Copy, Debug)]
pub struct TotalNorm<'a> {
    /// Room for [`norm_parts`] sums, contiguous.
    pub parts: View<'a>,
    /// The norm, without axes.
    pub norm: View<'a>,
    /// The factor, without axes.
    pub scale: View<'a>,
}

/// The Euclidean norm over all elements of all tensors, `norm = sqrt(sum x^2)`, and the factor that brings it down to
/// `max_norm`, `scale = min(max_norm / (norm + 1e-6), 1)`. Both are NaN if an element is.
///
/// The tensors are contiguous floats of one type. The order of additions is fixed: the squares of each 2048 elements of a tensor
/// are summed, then these sums in order, both as [`reduce`](crate::reduce) sums.
///
/// # Errors
/// `ShapeMismatch`, `DTypeMismatch`, `DTypeUnsupported`; `InvalidArgument` for a tensor with
/// gaps; those of [`Stream::launch`].
pub fn total_norm(stream: &Stream, tensors: &[View<'_>], max_norm: f64, to: TotalNorm<'_>) -> Result<()> {
    const OP: &str = "total_norm";
    let TotalNorm { parts, norm, scale } = to;
    let sizes: Vec<usize> = tensors.iter().map(|x| x.layout.elements()).collect();
    tensors.iter().try_for_each(|x| x.expect_contiguous(OP, "tensors"))?;
    parts.expect_contiguous(OP, "parts")?;
    parts.expect_shape(OP, &[norm_parts(sizes.iter().copied())])?;
    [norm, scale].iter().try_for_each(|view| view.expect_shape(OP, &[]))?;
    let dtype = tensors.first().map_or(norm.dtype, |first| first.dtype);
    let cost = sizes.iter().sum();
    for_float!(OP, dtype, T => {
        let read: Vec<_> = tensors.iter().map(|x| x.read::<T>()).collect();
        let written = [parts, norm, scale].map(|view| view.write::<T>().exact());
        Command::new(OP, (read, written)).cost(cost, 1).run(
            stream,
            sizes,
            // SAFETY: the tensors and `parts` are contiguous, `parts` has the size of `norm_parts`, and norm and
            // scale have one element; see `Command::launch`.
            move |sizes, workers, (x, to)| unsafe { cpu::total_norm(sizes, workers, &x, max_norm, to) },
            move |sizes, queue, (x, to)| cuda::total_norm(queue, dtype, sizes, &x, max_norm, to),
        )
    })
}

/// Outputs and inputs of one shape, contiguous, and a factor without axes.
fn expect_pairs(op: &'static str, pairs: &[(View<'_>, View<'_>)], scale: View<'_>) -> Result<()> {
    scale.expect_shape(op, &[])?;
    for (out, x) in pairs {
        x.expect_shape_of(op, out)?;
        x.expect_contiguous(op, "x")?;
        out.expect_contiguous(op, "out")?;
    }
    Ok(())
}

/// `out = x scale` for each pair `(out, x)`, with one `scale` of what they are computed in, for contiguous floats of one type.
///
/// # Errors
/// As for [`total_norm`].
pub fn scale_all(stream: &Stream, pairs: &[(View<'_>, View<'_>)], scale: View<'_>) -> Result<()> {
    const OP: &str = "scale_all";
    expect_pairs(OP, pairs, scale)?;
    let dtype = pairs.first().map_or(scale.dtype, |(out, _)| out.dtype);
    let sizes: Vec<usize> = pairs.iter().map(|(out, _)| out.layout.elements()).collect();
    let cost = sizes.iter().sum();
    for_float!(OP, dtype, T => {
        let pairs: Vec<_> = pairs.iter().map(|(out, x)| (out.write::<T>(), x.read::<T>().in_place())).collect();
        Command::new(OP, (pairs, scale.read::<T>().exact())).cost(cost, 1).run(
            stream,
            sizes,
            // SAFETY: `expect_pairs` checked that each pair is contiguous and of one shape, with the element counts
            // of `sizes`, and that `scale` has one element; see `Command::launch`.
            |sizes, workers, (pairs, scale)| unsafe { cpu::scale_all(sizes, workers, &pairs, scale) },
            move |sizes, queue, (pairs, scale)| cuda::scale_all(queue, dtype, sizes, &pairs, scale),
        )
    })
}

/// `out = x / scale` as [`scale_all`] multiplies by `1 / scale`, and `found = 1` if an element of any `x` is not finite, else 0.
///
/// `parts` has room for [`norm_parts`] numbers; they, `scale` and `found` are of what the tensors are computed in.
///
/// # Errors
/// As for [`total_norm`].
pub fn unscale_all(
    stream: &Stream,
    pairs: &[(View<'_>, View<'_>)],
    scale: View<'_>,
    [parts, found]: [View<'_>; 2],
) -> Result<()> {
    const OP: &str = "unscale_all";
    expect_pairs(OP, pairs, scale)?;
    let sizes: Vec<usize> = pairs.iter().map(|(out, _)| out.layout.elements()).collect();
    parts.expect_contiguous(OP, "parts")?;
    parts.expect_shape(OP, &[norm_parts(sizes.iter().copied())])?;
    found.expect_shape(OP, &[])?;
    let dtype = pairs.first().map_or(found.dtype, |(out, _)| out.dtype);
    let cost = sizes.iter().sum();
    for_float!(OP, dtype, T => {
        let pairs: Vec<_> = pairs.iter().map(|(out, x)| (out.write::<T>(), x.read::<T>().in_place())).collect();
        let written = [parts, found].map(|view| view.write::<T>().exact());
        Command::new(OP, (pairs, scale.read::<T>().exact(), written)).cost(cost, 1).run(
            stream,
            sizes,
            // SAFETY: `expect_pairs` checked that each pair is contiguous and of one shape, with the element counts
            // of `sizes`. `parts` has the size of `norm_parts`, scale and found have one element; see
            // `Command::launch`.
            |sizes, workers, (pairs, scale, to)| unsafe { cpu::unscale_all(sizes, workers, &pairs, scale, to) },
            move |sizes, queue, (pairs, scale, to)| cuda::unscale_all(queue, dtype, sizes, &pairs, scale, to),
        )
    })
}

#[cfg(test)]
mod tests;
