//! Launchers of the matrix product.

use device::{DType, Error, Result, Stream, Use};
use smallvec::SmallVec;

use crate::cpu::lanes::Lanes;
use crate::cpu::matmul::{Batch, BatchAxis, run};
use crate::cpu::product::{Init, Matrix, Product};
use crate::cpu::stage::{Operand, Stage};
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

/// Matrix product, `out[.., i, j] = sum over p of lhs[.., i, p] rhs[.., p, j]`, for floats.
///
/// Shapes: `[.., m, k] x [.., k, n] -> [.., m, n]`; the leading axes are equal, expanded ones may have stride 0. Any
/// strides are read in place. With `k = 0` the sum is 0.
///
/// The sum has a fixed order: `k` is cut into blocks of 256, a block is accumulated from 0 by fused multiply-adds in
/// the order of `p`, and the blocks are added in order. The result therefore depends neither on strides and
/// alignment, nor on the instruction set, nor on the number of threads. On CUDA the order is that of cuBLAS, or of
/// `p` for operands that it cannot express. BF16 and F16 are summed in F32, and the sum is rounded.
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
    match out.dtype.compute_dtype() {
        DType::F32 => launch::<f32>(stream, "matmul", lhs, rhs, None, out, accumulate),
        DType::F64 => launch::<f64>(stream, "matmul", lhs, rhs, None, out, accumulate),
        dtype => Err(Error::DTypeUnsupported { op: "matmul", dtype }),
    }
}

/// Matrix product and bias in one pass, `out = x w + bias`, for floats.
///
/// Shapes: `[.., m, k] x [k, n], [n] -> [.., m, n]`. The bias is added to the first block of the sum, see [`matmul`].
///
/// # Errors
/// As for [`matmul`].
pub fn linear(stream: &Stream, x: View<'_>, w: View<'_>, bias: View<'_>, out: View<'_>) -> Result<()> {
    match out.dtype.compute_dtype() {
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
    let dtype = out.dtype;
    let from = [Operand::<T>::of(op, &lhs, dtype)?, Operand::of(op, &rhs, dtype)?];
    let to = Operand::<T>::of_mut(op, &out, dtype)?;
    let row = match &bias {
        Some(bias) => {
            bias.expect_shape(op, &[n])?;
            Some((Operand::<T>::of(op, bias, dtype)?, bias.layout.strides()[0]))
        }
        None => None,
    };
    if stream.is_cuda() {
        return cuda::matmul::matmul(stream, op, lhs, rhs, bias, out, accumulate);
    }
    let mut axes: SmallVec<[BatchAxis; 2]> = SmallVec::new();
    for (axis, &size) in leading.iter().enumerate() {
        let b = if shared { 0 } else { rhs.layout.strides()[axis] };
        axes.push(BatchAxis { size, a: lhs.layout.strides()[axis], b, c: out.layout.strides()[axis] });
    }
    if out.layout.elements() == 0 {
        return Ok(());
    }
    // A multiply-add is a fraction of an elementary operation.
    let workers = par::workers(stream, out.layout.elements(), k / 8 + 1);
    let steps = [&lhs, &rhs, &out].map(|view| {
        let strides = view.layout.strides();
        [strides[strides.len() - 2], strides[strides.len() - 1]]
    });
    let work = move || {
        let stage = Stage::new(&workers);
        // SAFETY: the views were checked, and the launch orders this command with others on their buffers.
        let (read, c, init) = unsafe {
            let read = from.each_ref().map(|operand| stage.read(operand).0.cast_mut());
            match (&row, accumulate) {
                (Some((row, step)), _) => (read, stage.write(&to), Init::Row(stage.read(row).0, *step)),
                (None, Accumulate::Overwrite) => (read, stage.write(&to), Init::Zero),
                (None, Accumulate::Add) => (read, stage.update(&to), Init::Existing),
            }
        };
        let matrix = |ptr: *mut T, [row, col]: [isize; 2]| Matrix { ptr, row, col };
        let [a, b] = [0, 1].map(|side| matrix(read[side], steps[side]));
        let product = Product { m, n, k, a, b, c: matrix(c.0, steps[2]), init };
        let mut batch = Batch { product, axes };
        batch.fold();
        run(&batch, &workers);
    };
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
