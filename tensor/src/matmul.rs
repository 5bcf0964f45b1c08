//! Products of matrices.

use device::{Error, Result};
use kernels::{Accumulate, Activation, Dims, Layout, broadcast_shapes};

use crate::Tensor;
use crate::check::{elements_of, has_shape, same_kind};

/// How the operands of a product fit.
const FIT: &str = "lhs [.., m, k] takes rhs [.., k, n]";

#[derive::located]
impl Tensor {
    /// The matrix product, by torch's rules. Transposed views are not copied. Integers wrap around.
    ///
    /// Shapes: `[m,k] x [k,n] -> [m,n]`; `[k] x [k] -> []`; `[k] x [k,n] -> [n]`; `[m,k] x [k] -> [m]`;
    /// `[..,m,k] x [..,k,n] -> [..,m,n]`, where the leading axes broadcast.
    ///
    /// ```
    /// # use tensor::{DType, Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let device = Device::cpu();
    /// let a = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
    /// assert_eq!(a.matmul(&a.t()?)?.to_vec::<f32>()?, [5.0, 11.0, 11.0, 25.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `ShapeMismatch`, `DTypeMismatch`, `DeviceMismatch`; `DTypeUnsupported` for truth values; `InvalidArgument` for scalars.
    pub fn matmul(&self, rhs: &Tensor) -> Result<Tensor> {
        const OP: &str = "matmul";
        self.dtype().require_number(OP)?;
        same_kind(OP, self, rhs, "rhs")?;
        let (left, right) = (self.shape(), rhs.shape());
        let (Some(k), false) = (left.last(), right.is_empty()) else {
            let shapes = format_args!("{left:?} and {right:?}");
            return Err(Error::invalid(OP, "operands", "of rank 1 at least", shapes));
        };
        // The only axis of a vector, the last but one of others.
        Error::require_shapes(right[right.len().saturating_sub(2)] == *k, OP, FIT, left, right)?;
        match (left, right) {
            (&[m, _], &[_, n]) => self.product(rhs, &[m, n]),
            ([_], _) => {
                let out = self.unsqueeze(0)?.matrices(rhs)?;
                // The axis of m = 1 goes; a vector on the right has removed its own already.
                out.squeeze(if rhs.rank() == 1 { -1 } else { -2 })
            }
            _ => self.matrices(rhs),
        }
    }

    /// `self` of rank 2 at least, by a matrix, stack of matrices or vector; the inner axes agree.
    fn matrices(&self, rhs: &Tensor) -> Result<Tensor> {
        const OP: &str = "matmul";
        if rhs.rank() == 1 {
            return self.matrices(&rhs.unsqueeze(1)?)?.squeeze(-1);
        }
        let (lhs_shape, rhs_shape) = (self.shape(), rhs.shape());
        let (m, k) = (lhs_shape[self.rank() - 2], lhs_shape[self.rank() - 1]);
        let n = rhs_shape[rhs.rank() - 1];
        if rhs.rank() == 2 {
            // One right-hand matrix for all: the rows of all left-hand matrices are one tall matrix.
            let rows = lhs_shape[..self.rank() - 1].iter().product();
            let mut shape = Dims::from_slice(&lhs_shape[..self.rank() - 1]);
            shape.push(n);
            elements_of(OP, &shape)?;
            if let Some(tall) = self.layout.reshape(OP, &[rows, k])? {
                let mut out = self.with_layout(tall).product(rhs, &[rows, n])?;
                out.layout = Layout::contiguous(&shape);
                return Ok(out);
            }
        }
        let batch = broadcast_shapes(OP, &lhs_shape[..self.rank() - 2], &rhs_shape[..rhs.rank() - 2])
            .map_err(|_| Error::shape_mismatch(OP, FIT, lhs_shape, rhs_shape))?;
        let with = |tail: [usize; 2]| {
            let mut shape = batch.clone();
            shape.extend_from_slice(&tail);
            shape
        };
        let shape = with([m, n]);
        elements_of(OP, &shape)?;
        let lhs = self.with_layout(self.layout.expand(OP, &with([m, k]))?);
        let rhs = rhs.with_layout(rhs.layout.expand(OP, &with([k, n]))?);
        lhs.product(&rhs, &shape)
    }

    /// One launch: both operands have the batch axes of `shape` already.
    #[inline]
    fn product(&self, rhs: &Tensor, shape: &[usize]) -> Result<Tensor> {
        self.produce_like(shape, |stream, out| {
            let product = kernels::matmul(stream, self.view(), rhs.view(), out, Accumulate::Overwrite)?;
            Tensor::with_workspace(stream, product.workspace(), |memory| product.launch(memory))
        })
    }

    /// The affine map `x @ weight^T + bias` of each row, in one command.
    ///
    /// Shapes: `self [.., in]`, `weight [out, in]`, `bias [out]` -> `[.., out]`.
    ///
    /// # Errors
    /// `ShapeMismatch`, `DTypeMismatch`, `DeviceMismatch`; `DTypeUnsupported` unless the elements are floats;
    /// `InvalidArgument` if `self` is a scalar.
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        linear(self, weight, bias, Activation::None)
    }
}

/// [`Tensor::linear`] and an activation in the same command. On the CPU it has the bits of separate ops; on CUDA the library may add up in
/// another order.
///
/// # Errors
/// As for [`Tensor::linear`].
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<Tensor> {
    let op = activation.op("linear", "linear_relu");
    x.dtype().require_float(op)?;
    // The weight belongs to a layer, so errors are about the input.
    same_kind(op, weight, x, "input")?;
    let Some((&k, lead)) = x.shape().split_last() else {
        return Err(Error::invalid(op, "input", "of rank 1 at least", "a scalar"));
    };
    let n = match *weight.shape() {
        [n, inner] if inner == k => n,
        _ => {
            return Err(Error::shape_mismatch(
                op,
                "input [.., in] takes weight [out, in]",
                x.shape(),
                weight.shape(),
            ));
        }
    };
    if let Some(bias) = bias {
        same_kind(op, x, bias, "bias")?;
        has_shape(op, &[n], bias, "bias")?;
    }
    let mut shape = Dims::from_slice(lead);
    shape.push(n);
    elements_of(op, &shape)?;
    let rows: usize = lead.iter().product();
    let weight = weight.with_layout(weight.layout.transpose(op, 0, 1)?);
    let flat = if x.rank() == 2 { x.clone() } else { x.reshape(&[rows, k])? };
    let layout = Layout::contiguous(&[rows, n]);
    let mut out = Tensor::produce(x.device(), layout, x.dtype, |stream, out| {
        let (x, w, bias) = (flat.view(), weight.view(), bias.map(Tensor::view));
        let product = match (bias, activation) {
            (None, Activation::None) => kernels::matmul(stream, x, w, out, Accumulate::Overwrite),
            _ => kernels::linear(stream, x, w, bias, activation, out),
        }?;
        Tensor::with_workspace(stream, product.workspace(), |memory| product.launch(memory))
    })?;
    if x.rank() != 2 {
        out.layout = Layout::contiguous(&shape);
    }
    Ok(out)
}
