//! Launchers of sums and means over bags of rows of a table.
//!
//! The three kernels are the derivatives of one form, `Σ_j w_j <g[bag of j], table[index of j]>`, for `g`, for the table
//! and for the weights; so are their own derivatives.

use device::{DType, Error, Result, Stream, Use};

use crate::cpu::embedding_bag as cpu;
use crate::cpu::number::Real;
use crate::cpu::stage::{Operand, Stage};
use crate::cuda;
use crate::layout::{View, shape_mismatch};
use crate::par::old_workers;

/// Which rows of a table are in which bag.
#[derive(Clone, Copy, Debug)]
pub struct Bags<'a> {
    /// The numbers of the rows, `[n]`, I64, one bag after the other.
    pub indices: View<'a>,
    /// Where each bag begins, `[b]`, I64; without them all bags are of one size.
    pub offsets: Option<View<'a>>,
    /// The number of bags `b`.
    pub count: usize,
    /// A factor for each index, `[n]`, of the table's type.
    pub weights: Option<View<'a>>,
    /// A row that counts for nothing.
    pub padding: Option<usize>,
}

/// The sum of the rows of each bag, `out[i] = Σ w[j] table[indices[j]]` over the places `j` of bag `i` in their order, for
/// floats. With `members`, of the type that is computed in, each sum is divided by the bag's number of rows, which is written
/// there, at least 1. BF16 and F16 are summed in F32, and the result is rounded.
///
/// Shapes: `table [v, d]`, `members [b]`, `out [b, d]`. An index that is no row, and offsets that do not go from 0 upwards to
/// at most `n`, are failures of the command, which become [`Error::Async`]. The same bits on every device.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DTypeUnsupported`]; [`Error::InvalidArgument`] for indices
/// that the bags do not share evenly, and an `out` that is expanded or overlaps an input; those of [`Stream::launch`].
pub fn embedding_bag(
    stream: &Stream,
    table: View<'_>,
    bags: &Bags<'_>,
    members: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    match out.dtype.compute_dtype() {
        DType::F32 => bags_of::<f32>(stream, table, bags, members, out),
        DType::F64 => bags_of::<f64>(stream, table, bags, members, out),
        dtype => Err(Error::DTypeUnsupported { op: "embedding_bag", dtype }),
    }
}

/// The gradient of [`embedding_bag`] for the table, `out[r] = Σ w[j] / members[i] g[i]` over the places `j` with
/// `indices[j] = r` in their order, where `i` is the bag of `j`; rows that no index names become 0. BF16
/// and F16 are summed in F32, and the sum is rounded.
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
) -> Result<()> {
    match out.dtype.compute_dtype() {
        DType::F32 => grad_of::<f32>(stream, g, bags, members, out),
        DType::F64 => grad_of::<f64>(stream, g, bags, members, out),
        dtype => Err(Error::DTypeUnsupported { op: "embedding_bag_grad", dtype }),
    }
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
    match out.dtype.compute_dtype() {
        DType::F32 => weights_grad_of::<f32>(stream, g, table, bags, out),
        DType::F64 => weights_grad_of::<f64>(stream, g, table, bags, out),
        dtype => Err(Error::DTypeUnsupported { op: "embedding_bag_weights_grad", dtype }),
    }
}

fn bags_of<T: Real>(
    stream: &Stream,
    table: View<'_>,
    bags: &Bags<'_>,
    members: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "embedding_bag";
    let (checked, weights) = check::<T>(OP, out.dtype, table, out, bags, members)?;
    table.expect_apart(OP, &out)?;
    let from = Operand::<T>::old(OP, &table, out.dtype)?;
    let to = Operand::<T>::old_mut(OP, &out, out.dtype)?;
    let counts =
        members.map(|members| Ok((members.dst::<T>(OP)?, members.layout.strides()[0]))).transpose()?;
    if bags.count == 0 {
        return Ok(());
    }
    let mut uses = bags.uses();
    uses.extend([Use::read(table.buffer), Use::write(out.buffer)]);
    uses.extend(members.map(|members| Use::write(members.buffer)));
    if stream.is_cuda() {
        return cuda::embedding_bag::sum(stream, &uses, table, bags, members, out);
    }
    let (from_steps, to_steps) = (steps(&table), steps(&out));
    let workers = old_workers(stream, checked.len * checked.width + out.layout.elements(), 1);
    stream.launch_host(OP, &uses, move || {
        // SAFETY: types, shapes, bounds and overlap were checked above; the launch orders the accesses.
        unsafe {
            let stage = Stage::new(&workers);
            let bags = checked.weighted(&stage, &weights);
            cpu::sum(&bags, &workers, (stage.read(&from), from_steps), (stage.write(&to), to_steps), counts);
        }
    })
}

fn grad_of<T: Real>(
    stream: &Stream,
    g: View<'_>,
    bags: &Bags<'_>,
    members: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "embedding_bag_grad";
    let (checked, weights) = check::<T>(OP, out.dtype, out, g, bags, members)?;
    g.expect_apart(OP, &out)?;
    let from = Operand::<T>::old(OP, &g, out.dtype)?;
    let to = Operand::<T>::old_mut(OP, &out, out.dtype)?;
    let counts =
        members.map(|members| Ok((members.src::<T>(OP)?, members.layout.strides()[0]))).transpose()?;
    if out.layout.elements() == 0 {
        return Ok(());
    }
    let mut uses = bags.uses();
    uses.extend([Use::read(g.buffer), Use::write(out.buffer)]);
    uses.extend(members.map(|members| Use::read(members.buffer)));
    if stream.is_cuda() {
        return cuda::embedding_bag::grad(stream, &uses, g, bags, members, out);
    }
    let (from_steps, to_steps) = (steps(&g), steps(&out));
    let workers = old_workers(stream, checked.len * checked.width + out.layout.elements(), 1);
    stream.launch_host(OP, &uses, move || {
        // SAFETY: as in `bags_of`.
        unsafe {
            let stage = Stage::new(&workers);
            let bags = checked.weighted(&stage, &weights);
            cpu::grad(&bags, &workers, (stage.read(&from), from_steps), counts, (stage.write(&to), to_steps));
        }
    })
}

fn weights_grad_of<T: Real>(
    stream: &Stream,
    g: View<'_>,
    table: View<'_>,
    bags: &Bags<'_>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "embedding_bag_weights_grad";
    let bags = &Bags { weights: None, ..*bags };
    let (checked, _) = check::<T>(OP, out.dtype, table, g, bags, None)?;
    out.expect_shape(OP, bags.indices.shape())?;
    g.expect_apart(OP, &out)?;
    table.expect_apart(OP, &out)?;
    let read = |view: View<'_>| Operand::<T>::old(OP, &view, out.dtype);
    let (from, to) = ([read(g)?, read(table)?], Operand::<T>::old_mut(OP, &out, out.dtype)?);
    if checked.len == 0 {
        return Ok(());
    }
    let mut uses = bags.uses();
    uses.extend([Use::read(g.buffer), Use::read(table.buffer), Use::write(out.buffer)]);
    if stream.is_cuda() {
        return cuda::embedding_bag::weights_grad(stream, &uses, g, table, bags, out);
    }
    let (g_steps, table_steps, to_step) = (steps(&g), steps(&table), out.layout.strides()[0]);
    let workers = old_workers(stream, checked.len * checked.width, 1);
    stream.launch_host(OP, &uses, move || {
        // SAFETY: as in `bags_of`.
        unsafe {
            let stage = Stage::new(&workers);
            let [g, table] = from.each_ref().map(|from| stage.read(from));
            let to = (stage.write(&to), to_step);
            cpu::weights_grad(&checked, &workers, (g, g_steps), (table, table_steps), to);
        }
    })
}

impl Bags<'_> {
    /// What every kernel reads of the bags.
    fn uses(&self) -> Vec<Use<'_>> {
        let views = [Some(self.indices), self.offsets, self.weights];
        // The other operands join them.
        let mut uses = Vec::with_capacity(views.len() + 3);
        uses.extend(views.into_iter().flatten().map(|view| Use::read(view.buffer)));
        uses
    }
}

/// Checks the bags against the table `[v, d]`, the values `[b, d]` and the numbers of members `[b]`; gives them without
/// their weights, of type `dtype`, and these.
fn check<T: Real>(
    op: &'static str,
    dtype: DType,
    table: View<'_>,
    values: View<'_>,
    bags: &Bags<'_>,
    members: Option<View<'_>>,
) -> Result<(cpu::Bags<T>, Option<Weights<T>>)> {
    let &[rows, width] = table.shape() else {
        return Err(shape_mismatch(op, &[0, 0], table.shape()));
    };
    values.expect_shape(op, &[bags.count, width])?;
    let &[len] = bags.indices.shape() else {
        return Err(shape_mismatch(op, &[0], bags.indices.shape()));
    };
    if let Some(members) = members {
        members.expect_shape(op, &[bags.count])?;
    }
    if let Some(weights) = bags.weights {
        weights.expect_shape(op, &[len])?;
    }
    let offsets = match bags.offsets {
        Some(offsets) => {
            offsets.expect_shape(op, &[bags.count])?;
            Some((offsets.src::<i64>(op)?, offsets.layout.strides()[0]))
        }
        None => None,
    };
    let shared = if bags.count == 0 { len == 0 } else { offsets.is_some() || len.is_multiple_of(bags.count) };
    if !shared {
        return Err(Error::InvalidArgument {
            op,
            argument: "bags",
            expected: "a part of the indices for each",
            value: format!("{} for {len} indices", bags.count).into(),
        });
    }
    let weights =
        bags.weights.map(|weights| Ok((Operand::old(op, &weights, dtype)?, weights.layout.strides()[0])));
    let checked = cpu::Bags {
        op,
        indices: (bags.indices.src::<i64>(op)?, bags.indices.layout.strides()[0]),
        offsets,
        weights: None,
        len,
        count: bags.count,
        rows,
        width,
        padding: bags.padding.map_or(-1, |row| row as i64),
    };
    Ok((checked, weights.transpose()?))
}

/// The bags' weights and the step from one to the next.
type Weights<T> = (Operand<T>, isize);

impl<T: Real> cpu::Bags<T> {
    /// The bags with their weights.
    ///
    /// # Safety
    /// As for [`Stage::read`].
    unsafe fn weighted<'a>(self, stage: &Stage<'a>, weights: &'a Option<Weights<T>>) -> cpu::Bags<T> {
        // SAFETY: the caller's promise.
        let weights = weights.as_ref().map(|(weights, step)| (unsafe { stage.read(weights) }, *step));
        cpu::Bags { weights, ..self }
    }
}

/// Steps to the next row and the next column.
fn steps(view: &View<'_>) -> [isize; 2] {
    [view.layout.strides()[0], view.layout.strides()[1]]
}

#[cfg(test)]
#[path = "embedding_bag_tests.rs"]
mod tests;
