//! Launchers of the matrix product.

use device::cuda::Workspace;
use device::{DType, Error, Result, Stream};

use crate::activation::Activation;
use crate::command::{Command, for_float};
use crate::cpu::matmul as cpu;
use crate::cpu::number::Number;
use crate::cuda::matmul::{self as cuda, How};
use crate::cuda::needs;
use crate::layout::View;
use crate::matrices::MatrixBatch;

/// Whether a product replaces what its output holds or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulate {
    /// `out = lhs rhs`.
    Overwrite,
    /// `out = out + lhs rhs`.
    Add,
}

/// A matrix product whose shapes were checked, and the memory that the device's library needs for it.
#[must_use = "it is not launched yet"]
#[derive(Debug)]
pub struct MatrixProduct<'a> {
    stream: &'a Stream,
    op: &'static str,
    lhs: View<'a>,
    rhs: View<'a>,
    bias: Option<View<'a>>,
    out: View<'a>,
    batch: MatrixBatch,
    how: How,
    workspace: usize,
}

/// Matrix product, `out[.., i, j] = sum over p of lhs[.., i, p] rhs[.., p, j]`, for floats, and for integers, which wrap around.
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
/// `ShapeMismatch`, `OutOfMemory` and `Driver` of cuBLASLt.
pub fn matmul<'a>(
    stream: &'a Stream,
    lhs: View<'a>,
    rhs: View<'a>,
    out: View<'a>,
    accumulate: Accumulate,
) -> Result<MatrixProduct<'a>> {
    MatrixProduct::new(stream, "matmul", (lhs, rhs), None, out, (accumulate, false))
}

/// Matrix product, bias and activation in one command, `out = activation(x w + bias)`, for floats. On the CPU it has the bits of separate
/// commands; on CUDA cuBLASLt may choose another order of additions for a ReLU.
///
/// Shapes: `[.., m, k] x [k, n], [n] -> [.., m, n]`. The bias is added to the first block of the sum, see [`matmul`].
///
/// # Errors
/// As for [`matmul`]; `InvalidArgument` for a ReLU and an output that is not contiguous.
pub fn linear<'a>(
    stream: &'a Stream,
    x: View<'a>,
    w: View<'a>,
    bias: Option<View<'a>>,
    activation: Activation,
    out: View<'a>,
) -> Result<MatrixProduct<'a>> {
    let (op, relu) = (activation.op("linear", "linear_relu"), activation.is_relu());
    if relu {
        out.expect_contiguous(op, "out")?;
    }
    MatrixProduct::new(stream, op, (x, w), bias, out, (Accumulate::Overwrite, relu))
}

impl<'a> MatrixProduct<'a> {
    fn new(
        stream: &'a Stream,
        op: &'static str,
        (lhs, rhs): (View<'a>, View<'a>),
        bias: Option<View<'a>>,
        out: View<'a>,
        (accumulate, relu): (Accumulate, bool),
    ) -> Result<Self> {
        let (left, right, shape) = (lhs.shape(), rhs.shape(), out.shape());
        let (&[ref leading @ .., m, k], &[ref right_leading @ .., right_k, n]) = (left, right) else {
            return Err(Error::shape_mismatch(op, "", left, right));
        };
        // The right operand of `linear` has no leading axes.
        let shared = (bias.is_some() || relu) && right_leading.is_empty();
        if k != right_k || !(shared || leading == right_leading) {
            return Err(Error::shape_mismatch(op, "", left, right));
        }
        let rank = left.len();
        if shape.len() != rank || shape[..rank - 2] != *leading || shape[rank - 2..] != [m, n] {
            return Err(Error::shape_mismatch(op, "", left, shape));
        }
        bias.map_or(Ok(()), |bias| bias.expect_shape(op, &[n]))?;
        let batch = MatrixBatch::of(&out, &lhs, &rhs);
        let how = How { add: accumulate == Accumulate::Add, relu, tf32: stream.device().tf32() };
        let mut new = MatrixProduct { stream, op, lhs, rhs, bias, out, batch, how, workspace: 0 };
        new.workspace = needs(stream, || new.measure()).unwrap_or(Ok(0))?;
        Ok(new)
    }

    /// What the library's algorithms for operands at these addresses work in.
    fn measure(&self) -> Result<usize> {
        let MatrixProduct { stream, op, lhs, rhs, bias, out, ref batch, how, .. } = *self;
        let dtype = out.dtype;
        let alike = [lhs, rhs].iter().chain(&bias).all(|view| view.dtype == dtype);
        if !alike || !dtype.is_float() || out.layout.elements() == 0 {
            // A launch says what is wrong, or has nothing to do.
            return Ok(0);
        }
        let at = [out, lhs, rhs].map(|view| view.first());
        let row = bias.map(|bias| (bias.first(), bias.layout.strides()[0]));
        let measured = stream
            .dry_run(op, |queue| cuda::products(queue, dtype, batch, at, row, (how, Workspace::NONE)))?;
        Ok(measured.map_or(0, |((), measured)| measured.workspace))
    }

    /// Bytes of the workspace that the device's library needs; mostly none.
    pub fn workspace(&self) -> usize {
        self.workspace
    }

    /// Launches it. `workspace`, of type U8 and contiguous, has [`workspace`](Self::workspace) elements, and may be left out if
    /// those are none.
    ///
    /// # Errors
    /// `DTypeMismatch`, `DTypeUnsupported`, `InvalidArgument` for a workspace that is smaller,
    /// those of [`Stream::launch`].
    pub fn launch(self, workspace: Option<View<'_>>) -> Result<()> {
        match self.out.dtype {
            DType::I64 if self.op == "matmul" => return self.launch_integers::<i64>(),
            DType::U8 if self.op == "matmul" => return self.launch_integers::<u8>(),
            _ => {}
        }
        let MatrixProduct { stream, op, lhs, rhs, bias, out, batch, how, workspace: bytes } = self;
        let workspace = View::workspace::<u8>(op, workspace, bytes)?;
        let dtype = out.dtype;
        let bias_step = bias.map_or(0, |bias| bias.layout.strides()[0]);
        // A multiply-add is a fraction of an elementary operation.
        let cost = (out.layout.elements(), batch.a.columns / 8 + 1);
        for_float!(op, dtype, T => {
            let (c, bias) = (out.write::<T>().keep(how.add), bias.map(View::read::<T>));
            Command::new(op, (c, lhs.read::<T>(), rhs.read::<T>(), bias, workspace)).cost(cost.0, cost.1).run(
                stream,
                batch,
                // SAFETY: `batch` was made from the layouts of these operands, and the bias has an element for each
                // column; see `Command::launch`.
                move |batch, workers, (c, a, b, bias, _)| unsafe {
                    let bias = bias.map(|bias| (bias, bias_step));
                    cpu::products(batch, workers, c, [a, b], bias, how.add);
                    if how.relu {
                        cpu::positive_parts(workers, cost.0, c);
                    }
                },
                move |batch, queue, (c, a, b, bias, workspace)| {
                    let bias = bias.map(|bias| (bias, bias_step));
                    let workspace = workspace.map_or(Workspace::NONE, |at| Workspace { at: at.0, bytes });
                    cuda::products(queue, dtype, batch, [c, a, b], bias, (how, workspace))
                },
            )
        })
    }

    /// Integers have no bias, no activation and no library.
    fn launch_integers<T: Number>(self) -> Result<()> {
        let MatrixProduct { stream, op, lhs, rhs, out, batch, how, .. } = self;
        let (dtype, cost) = (out.dtype, (out.layout.elements(), batch.a.columns + 1));
        let c = out.write::<T>().keep(how.add);
        Command::new(op, (c, lhs.read::<T>(), rhs.read::<T>())).cost(cost.0, cost.1).run(
            stream,
            batch,
            // SAFETY: `batch` was made from the layouts of these operands; see `Command::launch`.
            move |batch, workers, (c, a, b)| unsafe {
                cpu::integer_products(batch, workers, c, [a, b], how.add)
            },
            move |batch, queue, (c, a, b)| {
                cuda::products(queue, dtype, batch, [c, a, b], None, (how, Workspace::NONE))
            },
        )
    }
}

#[cfg(test)]
mod tests;
