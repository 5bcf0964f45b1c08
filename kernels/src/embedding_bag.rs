//! Launchers of sums and means over bags of rows of a table.
//!
//! The three kernels are the derivatives of one form, `Σ_j w_j <g[bag of j], table[index of j]>`, for `g`, for the table
//! and for the weights; so are their own derivatives.

use device::{Element, Error, Result, Stream};

use crate::command::{Command, Read, for_float};
use crate::cpu::embedding_bag as cpu;
use crate::cuda::embedding_bag as cuda;
use crate::cuda::needs;
use crate::indexed::{BagSizes, begin};
use crate::layout::View;

/// Which rows of a table are in which bag.
#[derive(Clone, Copy, Debug)]
pub struct Bags<'a> {
    /// The numbers of the rows, `[n]`, I64, one bag after the other.
    pub indices: View<'a>,
    /// Where each bag begins, `[b]`, I64; without them all bags are of one size.
    pub offsets: Option<View<'a>>,
    /// The number of bags `b`.
    pub count: usize,
    /// A factor for each index, `[n]`, of the table's type. A row with the factor 0 is not read: it adds 0 even if it is NaN.
    pub weights: Option<View<'a>>,
    /// A row that counts for nothing.
    pub padding: Option<usize>,
}

/// The sum of the rows of each bag, `out[i] = Σ w[j] table[indices[j]]` over the places `j` of bag `i` in their order, for
/// floats. With `members`, of the type that is computed in, each sum is divided by the bag's number of rows, which is written
/// there, at least 1. BF16 and F16 are summed in F32, and the result is rounded.
///
/// Shapes: `table [v, d]`, `members [b]`, `out [b, d]`. An index that is no row, and offsets that do not go from 0 upwards to
/// at most `n`, are failures of the command, which become `Async`. The same bits on every device.
///
/// # Errors
/// `ShapeMismatch`, `DTypeMismatch`, `DTypeUnsupported`; `InvalidArgument` for indices
/// that the bags do not share evenly, and an `out` that is expanded or overlaps an input; those of [`Stream::launch`].
pub fn embedding_bag(
    stream: &Stream,
    table: View<'_>,
    bags: &Bags<'_>,
    members: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "embedding_bag";
    let dtype = out.dtype;
    for_float!(OP, dtype, T => {
        let sizes = bags.sizes(OP, &table, &out, members.as_ref())?;
        let members = members.map(|members| members.write::<T>().exact());
        Command::new(OP, (out.write::<T>(), table.read::<T>(), bags.operands::<T>(), members))
            .cost(sizes.len * sizes.width + out.layout.elements(), 1)
            .may_fail()
            .run(
                stream,
                sizes,
                // SAFETY: `sizes` was made from the layouts of these operands; see `Command::launch`.
                |sizes, workers, operands| unsafe { cpu::sum(sizes, workers, operands) },
                move |sizes, queue, operands| cuda::sum(queue, dtype, sizes, operands),
            )
    })
}

/// The gradient of [`embedding_bag`] for the table, `out[r] = Σ w[j] / members[i] g[i]` over the places `j` with
/// `indices[j] = r` in their order, where `i` is the bag of `j`; rows that no index names become 0. BF16
/// and F16 are summed in F32, and the sum is rounded. Sums of many entries are taken as in [`index_add`](crate::index_add). `workspace`,
/// of type U8, has [`embedding_bag_grad_workspace`] elements, and may be left out if those are none.
///
/// Shapes: `g [b, d]`, `members [b]`, `out [v, d]`. Failures of the command and bits as there.
///
/// # Errors
/// As for [`embedding_bag`].
pub fn embedding_bag_grad(
    stream: &Stream,
    g: View<'_>,
    bags: &Bags<'_>,
    members: Option<View<'_>>,
    out: View<'_>,
    workspace: Option<View<'_>>,
) -> Result<()> {
    const OP: &str = "embedding_bag_grad";
    let dtype = out.dtype;
    for_float!(OP, dtype, T => {
        let sizes = bags.sizes(OP, &out, &g, members.as_ref())?;
        let workspace = View::workspace::<u8>(OP, workspace, grad_workspace(stream, &sizes))?;
        let members = members.map(|members| members.read::<T>().exact());
        Command::new(OP, (out.write::<T>(), g.read::<T>(), bags.operands::<T>(), members, workspace))
            .cost(sizes.len * sizes.width + out.layout.elements(), 1)
            .may_fail()
            .run(
                stream,
                (sizes, begin(OP, out.layout, None)?),
                // SAFETY: `sizes` and the places were made from the layouts of these operands; see `Command::launch`.
                |sizes, workers, (out, g, bags, members, _)| unsafe {
                    cpu::grad(sizes, workers, (out, g, bags, members));
                },
                move |sizes, queue, (out, g, bags, members, workspace)| {
                    cuda::grad(queue, dtype, sizes, (out, g, bags, members), workspace)
                },
            )
    })
}

/// Bytes of the workspace of [`embedding_bag_grad`].
///
/// # Errors
/// `ShapeMismatch`, and `InvalidArgument` for indices that the bags do not share evenly.
pub fn embedding_bag_grad_workspace(
    stream: &Stream,
    g: View<'_>,
    bags: &Bags<'_>,
    out: View<'_>,
) -> Result<usize> {
    Ok(grad_workspace(stream, &bags.sizes("embedding_bag_grad", &out, &g, None)?))
}

fn grad_workspace(stream: &Stream, sizes: &BagSizes) -> usize {
    needs(stream, || sizes.entries().workspace()).unwrap_or(0)
}

/// The gradient of the sums of [`embedding_bag`] for the weights, `out[j] = Σ_c g[i, c] table[indices[j], c]` where `i` is the
/// bag of `j`; 0 for the padding.
///
/// Shapes: `g [b, d]`, `table [v, d]`, `out [n]`. Failures of the command as there; the order of a sum is the device's own.
///
/// # Errors
/// As for [`embedding_bag`].
pub fn embedding_bag_weights_grad(
    stream: &Stream,
    g: View<'_>,
    table: View<'_>,
    bags: &Bags<'_>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "embedding_bag_weights_grad";
    let (dtype, bags) = (out.dtype, Bags { weights: None, ..*bags });
    for_float!(OP, dtype, T => {
        let sizes = bags.sizes(OP, &table, &g, None)?;
        out.expect_shape(OP, bags.indices.shape())?;
        let out_step = out.layout.strides()[0];
        Command::new(OP, (out.write::<T>(), g.read::<T>(), table.read::<T>(), bags.operands::<T>()))
            .cost(sizes.len * sizes.width, 1)
            .may_fail()
            .run(
                stream,
                (sizes, out_step),
                // SAFETY: `sizes` was made from the layouts of these operands; see `Command::launch`.
                |sizes, workers, operands| unsafe { cpu::weights_grad(sizes, workers, operands) },
                move |sizes, queue, operands| cuda::weights_grad(queue, dtype, sizes, operands),
            )
    })
}

/// What every kernel reads of the bags: indices, offsets and weights.
type BagOperands<'a, T> = (Read<'a, i64>, Option<Read<'a, i64>>, Option<Read<'a, T>>);

impl<'a> Bags<'a> {
    fn operands<T: Element>(&self) -> BagOperands<'a, T> {
        let offsets = self.offsets.map(|offsets| offsets.read().exact());
        (self.indices.read().exact(), offsets, self.weights.map(View::read))
    }

    /// Checks the bags against the table `[v, d]`, the sums `[b, d]` and the numbers of members `[b]`.
    fn sizes(
        &self,
        op: &'static str,
        table: &View<'_>,
        sums: &View<'_>,
        members: Option<&View<'_>>,
    ) -> Result<BagSizes> {
        let &[rows, width] = table.shape() else {
            return Err(Error::shape_mismatch(op, "", &[0, 0], table.shape()));
        };
        sums.expect_shape(op, &[self.count, width])?;
        let &[len] = self.indices.shape() else {
            return Err(Error::shape_mismatch(op, "", &[0], self.indices.shape()));
        };
        // The step of an optional vector of so many elements.
        let step = |view: Option<&View<'_>>, len: usize| {
            view.map_or(Ok(0), |view| view.expect_shape(op, &[len]).map(|()| view.layout.strides()[0]))
        };
        let sizes = BagSizes {
            op,
            len,
            count: self.count,
            rows,
            width,
            padding: self.padding.map_or(-1, |row| row as i64),
            index_step: self.indices.layout.strides()[0],
            offset_step: step(self.offsets.as_ref(), self.count)?,
            weight_step: step(self.weights.as_ref(), len)?,
            member_step: step(members, self.count)?,
            table_steps: [0, 1].map(|axis| table.layout.strides()[axis]),
            sum_steps: [0, 1].map(|axis| sums.layout.strides()[axis]),
        };
        let shared = match self.count {
            0 => len == 0,
            count => self.offsets.is_some() || len.is_multiple_of(count),
        };
        if shared {
            return Ok(sizes);
        }
        let value = format_args!("{} for {len} indices", self.count);
        Err(Error::invalid(op, "bags", "a part of the indices for each", value))
    }
}

#[cfg(test)]
mod tests;
