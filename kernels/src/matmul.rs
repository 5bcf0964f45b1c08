//! Launchers of the matrix product.

use device::{DType, Error, Result, Stream, Use};

use crate::cpu::lanes::Lanes;
use crate::cpu::matmul::{Batch, BatchAxis, run};
use crate::cpu::product::{Init, Matrix, Product};
use crate::cuda;
use crate::layout::{View, shape_mismatch};
use crate::par;

/// Whether a product replaces what its output holds or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulate {
    /// `out = lhs rhs`.
    Overwrite,
    /// `out = out + lhs rhs`.
    Add,
}

/// Matrix product, `out[.., i, j] = sum over p of lhs[.., i, p] rhs[.., p, j]`, for F32 and F64.
///
/// Shapes: `[.., m, k] x [.., k, n] -> [.., m, n]`; the leading axes are equal, expanded ones may have stride 0. Any
/// strides are read in place. With `k = 0` the sum is 0.
///
/// The sum has a fixed order: `k` is cut into blocks of 256, a block is accumulated from 0 by fused multiply-adds in
/// the order of `p`, and the blocks are added in order. The result therefore depends neither on strides and
/// alignment, nor on the instruction set, nor on the number of threads. On CUDA the order is that of cuBLAS, or of
/// `p` for operands that it cannot express.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DTypeUnsupported`], those of [`Stream::launch`].
pub fn matmul(
    stream: &Stream,
    lhs: View<'_>,
    rhs: View<'_>,
    out: View<'_>,
    accumulate: Accumulate,
) -> Result<()> {
    match out.dtype {
        DType::F32 => launch::<f32>(stream, "matmul", lhs, rhs, None, out, accumulate),
        DType::F64 => launch::<f64>(stream, "matmul", lhs, rhs, None, out, accumulate),
        dtype => Err(Error::DTypeUnsupported { op: "matmul", dtype }),
    }
}

/// Matrix product and bias in one pass, `out = x w + bias`, for F32 and F64.
///
/// Shapes: `[.., m, k] x [k, n], [n] -> [.., m, n]`. The bias is added to the first block of the sum, see [`matmul`].
///
/// # Errors
/// As for [`matmul`].
pub fn linear(stream: &Stream, x: View<'_>, w: View<'_>, bias: View<'_>, out: View<'_>) -> Result<()> {
    match out.dtype {
        DType::F32 => launch::<f32>(stream, "linear", x, w, Some(bias), out, Accumulate::Overwrite),
        DType::F64 => launch::<f64>(stream, "linear", x, w, Some(bias), out, Accumulate::Overwrite),
        dtype => Err(Error::DTypeUnsupported { op: "linear", dtype }),
    }
}

fn launch<T: Lanes>(
    stream: &Stream,
    op: &'static str,
    lhs: View<'_>,
    rhs: View<'_>,
    bias: Option<View<'_>>,
    out: View<'_>,
    accumulate: Accumulate,
) -> Result<()> {
    let (left, right, shape) = (lhs.shape(), rhs.shape(), out.shape());
    let (&[ref leading @ .., m, k], &[ref right_leading @ .., right_k, n]) = (left, right) else {
        return Err(shape_mismatch(op, left, right));
    };
    // The right operand of `linear` has no leading axes: each of its strides there is 0.
    let shared = bias.is_some() && right_leading.is_empty();
    if k != right_k || !(shared || leading == right_leading) {
        return Err(shape_mismatch(op, left, right));
    }
    let rank = left.len();
    if shape.len() != rank || shape[..rank - 2] != *leading || shape[rank - 2..] != [m, n] {
        return Err(shape_mismatch(op, left, shape));
    }
    let init = match (bias, accumulate) {
        (Some(bias), _) => {
            bias.expect_shape(op, &[n])?;
            Init::Row(bias.src::<T>(op)?.0, bias.layout.strides()[0])
        }
        (None, Accumulate::Overwrite) => Init::Zero,
        (None, Accumulate::Add) => Init::Existing,
    };
    let matrix = |ptr: *mut T, strides: &[isize]| Matrix {
        ptr,
        row: strides[strides.len() - 2],
        col: strides[strides.len() - 1],
    };
    let product = Product {
        m,
        n,
        k,
        a: matrix(lhs.src::<T>(op)?.0.cast_mut(), lhs.layout.strides()),
        b: matrix(rhs.src::<T>(op)?.0.cast_mut(), rhs.layout.strides()),
        c: matrix(out.dst::<T>(op)?.0, out.layout.strides()),
        init,
    };
    if stream.is_cuda() {
        return cuda::matmul::matmul(stream, op, lhs, rhs, bias, out, accumulate);
    }
    let mut batch = Batch { product, axes: Default::default() };
    for (axis, &size) in leading.iter().enumerate() {
        let b = if shared { 0 } else { rhs.layout.strides()[axis] };
        batch.axes.push(BatchAxis { size, a: lhs.layout.strides()[axis], b, c: out.layout.strides()[axis] });
    }
    if out.layout.elements() == 0 {
        return Ok(());
    }
    batch.fold();
    // A multiply-add is a fraction of an elementary operation.
    let workers = par::workers(stream, out.layout.elements(), k / 8 + 1);
    let work = move || run(&batch, &workers);
    match bias {
        None => {
            stream.launch(op, &[Use::read(lhs.buffer), Use::read(rhs.buffer), Use::write(out.buffer)], work)
        }
        Some(bias) => {
            let reads = (Use::read(lhs.buffer), Use::read(rhs.buffer), Use::read(bias.buffer));
            stream.launch(op, &[reads.0, reads.1, reads.2, Use::write(out.buffer)], work)
        }
    }
}

#[cfg(test)]
#[path = "matmul_tests.rs"]
mod tests;
