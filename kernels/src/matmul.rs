//! Launchers of the matrix product.

#[cfg(doc)]
use device::Error;
use device::{Result, Stream};

use crate::command::{Command, for_float};
use crate::cpu::matmul as cpu;
use crate::cuda::matmul as cuda;
use crate::layout::{View, shape_mismatch};
use crate::matrices::MatrixBatch;

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
/// alignment, nor on the instruction set, nor on the number of threads. On CUDA the order is that of cuBLASLt, or of
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
    launch(stream, "matmul", (lhs, rhs), None, out, (accumulate, false))
}

/// Matrix product and bias in one pass, `out = x w + bias`, for floats.
///
/// Shapes: `[.., m, k] x [k, n], [n] -> [.., m, n]`. The bias is added to the first block of the sum, see [`matmul`].
///
/// # Errors
/// As for [`matmul`].
pub fn linear(stream: &Stream, x: View<'_>, w: View<'_>, bias: View<'_>, out: View<'_>) -> Result<()> {
    launch(stream, "linear", (x, w), Some(bias), out, (Accumulate::Overwrite, false))
}

/// `out = max(x w + bias, 0)` in one command, which keeps NaN. On the CPU it has the bits of [`linear`] and what follows; on CUDA cuBLASLt
/// may choose another order of additions for it.
///
/// Shapes: as for [`linear`], but for the bias, which may be missing; `out` is contiguous.
///
/// # Errors
/// As for [`matmul`]; [`Error::InvalidArgument`] for an output that is not contiguous.
pub fn linear_relu(
    stream: &Stream,
    x: View<'_>,
    w: View<'_>,
    bias: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    out.expect_contiguous("linear_relu", "out")?;
    launch(stream, "linear_relu", (x, w), bias, out, (Accumulate::Overwrite, true))
}

fn launch(
    stream: &Stream,
    op: &'static str,
    (lhs, rhs): (View<'_>, View<'_>),
    bias: Option<View<'_>>,
    out: View<'_>,
    (accumulate, relu): (Accumulate, bool),
) -> Result<()> {
    let (left, right, shape) = (lhs.shape(), rhs.shape(), out.shape());
    let (&[ref leading @ .., m, k], &[ref right_leading @ .., right_k, n]) = (left, right) else {
        return Err(shape_mismatch(op, left, right));
    };
    // The right operand of `linear` has no leading axes.
    let shared = (bias.is_some() || relu) && right_leading.is_empty();
    if k != right_k || !(shared || leading == right_leading) {
        return Err(shape_mismatch(op, left, right));
    }
    let rank = left.len();
    if shape.len() != rank || shape[..rank - 2] != *leading || shape[rank - 2..] != [m, n] {
        return Err(shape_mismatch(op, left, shape));
    }
    bias.map_or(Ok(()), |bias| bias.expect_shape(op, &[n]))?;
    let add = accumulate == Accumulate::Add;
    let (batch, dtype) = (MatrixBatch::of(&out, &lhs, &rhs), out.dtype);
    let bias_step = bias.map_or(0, |bias| bias.layout.strides()[0]);
    // A multiply-add is a fraction of an elementary operation.
    let cost = (out.layout.elements(), k / 8 + 1);
    for_float!(op, dtype, T => {
        let operands = (out.write::<T>().keep(add), lhs.read::<T>(), rhs.read::<T>(), bias.map(View::read::<T>));
        Command::new(op, operands).cost(cost.0, cost.1).run(
            stream,
            batch,
            // SAFETY: the matrices are those of the operands.
            move |batch, workers, (c, a, b, bias)| unsafe {
                let bias = bias.map(|bias| (bias, bias_step));
                cpu::products(batch, workers, c, [a, b], cpu::initial(bias, add));
                if relu {
                    cpu::positive_parts(workers, cost.0, c);
                }
            },
            move |batch, queue, (c, a, b, bias)| {
                let bias = bias.map(|bias| (bias, bias_step));
                cuda::products(queue, dtype, batch, [c, a, b], bias, (add, relu))
            },
        )
    })
}

#[cfg(test)]
mod tests;
