//! Sums and means over bags of rows of a table.

use device::{DType, Error, Result, Stream};

use crate::Tensor;
use crate::check::{has_shape, matrix, same_device, same_kind};
use crate::index::check_indices;

/// Which rows of a table are in which bag.
#[derive(Clone, Debug)]
pub struct Bags {
    /// The numbers of the rows, `[n]`, I64, one bag after the other.
    pub indices: Tensor,
    /// Where each bag begins, `[b]`, I64: upwards from 0, the last bag goes to the end. Without them all bags are of one size.
    pub offsets: Option<Tensor>,
    /// The number of bags `b`.
    pub count: usize,
    /// A factor for each index, `[n]`, of the table's type. A row with the factor 0 is not read: it adds 0 even if it is NaN.
    pub weights: Option<Tensor>,
    /// A row that counts for nothing.
    pub padding: Option<usize>,
}

impl Bags {
    /// The bags that begin at `offsets [b]` of `indices [n]`; without offsets, those in the rows of `indices [b, n]`.
    ///
    /// # Errors
    /// `InvalidArgument` for other ranks.
    pub fn new(indices: &Tensor, offsets: Option<&Tensor>) -> Result<Bags> {
        const OP: &str = "embedding_bag";
        let count = match (indices.shape(), offsets.map(Tensor::shape)) {
            (&[_], Some(&[count])) | (&[count, _], None) => count,
            (_, Some(shape)) if shape.len() != 1 => {
                return Err(Error::invalid(OP, "offsets", "of rank 1", format_args!("shape {shape:?}")));
            }
            (shape, offsets) => {
                let given = if offsets.is_some() { "with" } else { "without" };
                let expected = "of rank 1 with offsets, or of rank 2 without";
                let value = format_args!("shape {shape:?} {given} offsets");
                return Err(Error::invalid(OP, "indices", expected, value));
            }
        };
        let indices = indices.reshape(&[indices.elements()])?;
        Ok(Bags { indices, offsets: offsets.cloned(), count, weights: None, padding: None })
    }

    /// Checks types, devices and, as far as the host knows them, the numbers.
    fn check(&self, op: &'static str, like: &Tensor, rows: usize) -> Result<()> {
        like.dtype().require_float(op)?;
        same_device(op, like, &self.indices, "indices")?;
        self.indices.dtype().require(op, "indices", DType::I64)?;
        check_indices(op, "index", &self.indices, rows)?;
        if let Some(offsets) = &self.offsets {
            same_device(op, like, offsets, "offsets")?;
            offsets.dtype().require(op, "offsets", DType::I64)?;
            has_shape(op, &[self.count], offsets, "offsets")?;
            check_indices(op, "offset", &offsets.narrow(0, 0, self.count.min(1))?, 1)?;
            check_indices(op, "offset", offsets, self.indices.elements() + 1)?;
        }
        self.weights.as_ref().map_or(Ok(()), |weights| same_kind(op, like, weights, "weights"))
    }

    fn view(&self) -> kernels::Bags<'_> {
        kernels::Bags {
            indices: self.indices.view(),
            offsets: self.offsets.as_ref().map(Tensor::view),
            count: self.count,
            weights: self.weights.as_ref().map(Tensor::view),
            padding: self.padding,
        }
    }
}

#[derive::located]
impl Tensor {
    /// The sum of the rows of `self` in each bag, each row times its weight; 0 for an empty bag. With `mean`, the sum
    /// is divided by the bag's number of rows, at least 1. These numbers are returned, too, as
    /// [`DType::compute_dtype`].
    ///
    /// Shapes: `self [v, d]` and `b` bags -> `[b, d]`, and `[b]` with `mean`. One command.
    ///
    /// ```
    /// # use tensor::{Bags, Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let device = Device::cpu();
    /// let table = Tensor::from_slice(&[1.0_f32, 10.0, 100.0], &[3, 1], &device)?;
    /// let indices = Tensor::from_slice(&[0_i64, 2, 2], &[3], &device)?;
    /// let offsets = Tensor::from_slice(&[0_i64, 1, 1], &[3], &device)?;
    /// let bags = Bags::new(&indices, Some(&offsets))?;
    /// assert_eq!(table.embedding_bag(&bags, false)?.0.to_vec::<f32>()?, [1.0, 0.0, 200.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats; `DTypeMismatch`, `ShapeMismatch`, `DeviceMismatch`;
    /// `InvalidArgument` unless `self` has rank 2, and for indices without a bag. `IndexOutOfRange` for an index that
    /// is no row, and for offsets that begin after 0 or exceed the number of indices, if they are known on the host;
    /// otherwise, and for offsets that decrease, the next synchronising call reports `Async`.
    pub fn embedding_bag(&self, bags: &Bags, mean: bool) -> Result<(Tensor, Option<Tensor>)> {
        const OP: &str = "embedding_bag";
        let (rows, width) = matrix(OP, "table", self)?;
        bags.check(OP, self, rows)?;
        Stream::with_current(self.device(), |stream| {
            let out = Tensor::allocate(stream, &[bags.count, width], self.dtype)?;
            let counts = || Tensor::allocate(stream, &[bags.count], self.dtype.compute_dtype());
            let members = mean.then(counts).transpose()?;
            let wanted = members.as_ref().map(Tensor::view);
            kernels::embedding_bag(stream, self.view(), &bags.view(), wanted, out.view())?;
            Ok((out, members))
        })
    }
}

/// The gradient of [`Tensor::embedding_bag`] for a table of `rows` rows, for `g` that of the result; `members` are those
/// of a mean. Each row's sum has the order of the indices.
///
/// Shapes: `g [b, d]`, `members [b]` -> `[v, d]`. Asynchronous, on the current stream; one command.
///
/// # Errors
/// As [`Tensor::embedding_bag`].
pub fn embedding_bag_grad(g: &Tensor, bags: &Bags, members: Option<&Tensor>, rows: usize) -> Result<Tensor> {
    const OP: &str = "embedding_bag_grad";
    let (_, width) = matrix(OP, "table", g)?;
    bags.check(OP, g, rows)?;
    if let Some(members) = members {
        same_device(OP, g, members, "members")?;
        members.dtype().require(OP, "members", g.dtype.compute_dtype())?;
    }
    Tensor::fresh(OP, &[rows, width], g.dtype, g.device(), |stream, out| {
        let bytes = kernels::embedding_bag_grad_workspace(stream, g.view(), &bags.view(), out)?;
        let members = members.map(Tensor::view);
        Tensor::with_workspace(stream, bytes, |memory| {
            kernels::embedding_bag_grad(stream, g.view(), &bags.view(), members, out, memory)
        })
    })
}

/// The gradient of the sums of [`Tensor::embedding_bag`] for the weights, for `g` that of the result.
///
/// Shapes: `g [b, d]`, `table [v, d]` -> `[n]`. Asynchronous, on the current stream; one command.
///
/// # Errors
/// As [`Tensor::embedding_bag`].
pub fn embedding_bag_weights_grad(g: &Tensor, table: &Tensor, bags: &Bags) -> Result<Tensor> {
    const OP: &str = "embedding_bag_weights_grad";
    let (rows, _) = matrix(OP, "table", table)?;
    same_kind(OP, g, table, "table")?;
    bags.check(OP, g, rows)?;
    g.produce_like(bags.indices.shape(), |stream, out| {
        kernels::embedding_bag_weights_grad(stream, g.view(), table.view(), &bags.view(), out)
    })
}
