//! `embedding_bag`: `y[i] = Σ w[j] t[index j] / m[i]` over the places `j` of bag `i`, with the number of members `m` for a mean
//! and 1 for a sum; `t'[r] = Σ w[j] / m[i] g[i]` over the places with index `r`, `w'[j] = <g[i], t[index j]>`.

use smallvec::SmallVec;
use tensor::{Bags, Error, Result, Tensor, grad};

use super::embedding::{padding_row, table};
use super::{Draw, Sample, if_needed, record_one};
use crate::autocast::wide;
use crate::{Grads, Save, Var, Vjp, record};

/// What is done with the rows of a bag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BagMode {
    /// Their mean, the default; 0 for an empty bag.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

/// Options of [`Var::embedding_bag`]: torch's, with torch's defaults.
#[derive(Clone, Debug, Default)]
pub struct BagOptions {
    /// What is done with the rows of a bag.
    pub mode: BagMode,
    /// A row that counts for nothing and has no gradient; a negative one counts from the end.
    pub padding_idx: Option<isize>,
    /// A factor for each index; for sums only. A row with the factor 0 is not read: it adds 0 even if it is NaN.
    pub per_sample_weights: Option<Var>,
}

const OP: &str = "embedding_bag";

#[derive::located]
impl Var {
    /// The sum or the mean of each bag of rows of `self`. Unlike [`Tensor::embedding_bag`], which takes [`Bags`], it
    /// takes the indices with torch's options.
    ///
    /// Shapes: `[v, d]` with indices `[b, n]`, one bag per row, or with indices `[n]` and `offsets [b]`, the first of
    /// which is 0: bag `i` goes from `offsets[i]` to the next offset, the last bag to the end. The result is `[b, d]`.
    /// One command, and one for each gradient.
    ///
    /// # Errors
    /// As for [`Tensor::embedding_bag`]; `InvalidArgument` for offsets beside two-dimensional indices, for
    /// one-dimensional indices without offsets, for a `padding_idx` that is no row, and for weights of a mean.
    pub fn embedding_bag(
        &self,
        indices: &Tensor,
        offsets: Option<&Tensor>,
        options: &BagOptions,
    ) -> Result<Var> {
        let (rows, _) = table(OP, self)?;
        let mean = options.mode == BagMode::Mean;
        let mut bags = Bags::new(indices, offsets)?;
        bags.padding = options.padding_idx.map(|index| padding_row(OP, index, rows)).transpose()?;
        let weights = match &options.per_sample_weights {
            Some(_) if mean => {
                return Err(Error::invalid(OP, "per_sample_weights", "none, for a mean", "weights"));
            }
            Some(weights) if weights.shape() != indices.shape() => {
                return Err(Error::shape_mismatch(
                    OP,
                    "per_sample_weights",
                    indices.shape(),
                    weights.shape(),
                ));
            }
            Some(weights) => Some(weights.reshape(bags.indices.shape())?),
            None => None,
        };
        bag(&wide(self)?, weights.as_ref(), &BagOp { bags, mean, members: None, rows }, false)
    }
}

/// What the three ops share. They are the derivatives of `Σ w[j] / m[i] <g[i], t[index j]>` for `g`, `t` and `w`, and so are
/// their own derivatives: each one's gradients are the other two at the gradient's place.
#[derive(Clone)]
struct BagOp {
    /// Without weights, which are an input of the op.
    bags: Bags,
    mean: bool,
    /// The bags' members, for the gradients of a mean.
    members: Option<Tensor>,
    /// Rows of the table.
    rows: usize,
}

impl BagOp {
    /// The op's tensors, so that changes in place are noticed, then others.
    fn saved<'a>(&'a self, others: &[Save<'a>]) -> SmallVec<[Save<'a>; 5]> {
        let tensors = [Some(&self.bags.indices), self.bags.offsets.as_ref(), self.members.as_ref()];
        tensors.into_iter().flatten().map(Save::Tensor).chain(others.iter().copied()).collect()
    }

    /// The two inputs of a recorded op that saved them after its tensors.
    fn inputs(&self, ctx: &Vjp<'_>) -> [Var; 2] {
        let tensors = self.saved(&[]).len();
        [ctx.saved(tensors), ctx.saved(tensors + 1)]
    }

    /// The bags with these weights.
    fn weighted(&self, weights: Option<&Var>) -> Bags {
        Bags { weights: weights.map(|weights| weights.value().clone()), ..self.bags.clone() }
    }
}

const INPUTS: &[Save<'static>] = &[Save::Input(0), Save::Input(1)];

/// `y` of a table and weights, or with `back` `t'` of a gradient and weights: each is linear in its first operand, and the gradient
/// of the other one.
fn bag(x: &Var, weights: Option<&Var>, op: &BagOp, back: bool) -> Result<Var> {
    let (name, bags) = (if back { "embedding_bag_grad" } else { OP }, op.weighted(weights));
    let (value, op) = if back {
        (grad::embedding_bag(x.value(), &bags, op.members.as_ref(), op.rows)?, op.clone())
    } else {
        let (value, members) = x.value().embedding_bag(&bags, op.mean)?;
        (value, BagOp { members, ..op.clone() })
    };
    let rule = op.clone();
    let Some(weights) = weights else {
        return record_one(name, x, &op.saved(&[]), value, move |_, g| bag(g, None, &rule, !back));
    };
    Ok(record(name, &[x, weights], &op.saved(INPUTS), value, move |ctx, g| {
        let [x, weights] = rule.inputs(ctx);
        let (of_bags, table) = if back { (&x, g) } else { (g, &x) };
        let of_weights = if_needed(ctx, 1, || weights_grad(of_bags, table, &rule))?;
        Ok(Grads::from_buf([if_needed(ctx, 0, || bag(g, Some(&weights), &rule, !back))?, of_weights]))
    }))
}

/// `w'` of a gradient and a table; of sums only.
fn weights_grad(g: &Var, table: &Var, op: &BagOp) -> Result<Var> {
    let value = grad::embedding_bag_weights(g.value(), table.value(), &op.bags)?;
    let rule = op.clone();
    Ok(record("embedding_bag_weights_grad", &[g, table], &op.saved(INPUTS), value, move |ctx, h| {
        let [g, table] = rule.inputs(ctx);
        Ok(Grads::from_buf([
            if_needed(ctx, 0, || bag(&table, Some(h), &rule, false))?,
            if_needed(ctx, 1, || bag(&g, Some(h), &rule, true))?,
        ]))
    }))
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let rows = d.indices(&[0, 2, 2, 1, 3, 0], &[2, 3])?;
    let flat = rows.reshape(&[6])?;
    // The second bag is empty.
    let offsets = d.indices(&[0, 2, 2, 5], &[4])?;
    let of = |name, offsets: Option<&Tensor>, mode, padding_idx| {
        let indices = if offsets.is_some() { flat.clone() } else { rows.clone() };
        let options = BagOptions { mode, padding_idx, per_sample_weights: None };
        let offsets = offsets.cloned();
        d.sample(name, &[&[4, 2]], move |v| {
            v[0].embedding_bag(&indices, offsets.as_ref(), &options)?.square()
        })
    };
    let weighted = |name, table, padding_idx| {
        let (flat, offsets) = (flat.clone(), offsets.clone());
        d.sample(name, &[table, &[6]], move |v| {
            let per_sample_weights = Some(v[1].clone());
            let options = BagOptions { mode: BagMode::Sum, padding_idx, per_sample_weights };
            v[0].embedding_bag(&flat, Some(&offsets), &options)?.square()
        })
    };
    let (none, no_bags) = (d.indices(&[], &[0])?, d.indices(&[0, 0], &[2])?);
    Ok(vec![
        weighted("weighted", &[4, 3], None)?,
        of("rows_mean", None, BagMode::Mean, None)?,
        of("rows_sum", None, BagMode::Sum, None)?,
        of("offsets_mean", Some(&offsets), BagMode::Mean, None)?,
        of("offsets_sum", Some(&offsets), BagMode::Sum, None)?,
        of("padding", Some(&offsets), BagMode::Mean, Some(2))?,
        weighted("weighted_padding", &[4, 2], Some(-2))?,
        d.sample("empty", &[&[4, 1]], move |v| {
            v[0].embedding_bag(&none, Some(&no_bags), &BagOptions::default())
        })?,
    ])
}

#[cfg(test)]
mod tests {
    use tensor::Device;

    use super::super::testing::{close, close_values, gradient, leaf, tensor};
    use super::*;
    use tensor::ErrorKind;

    fn numbers() -> Result<Var> {
        leaf(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2])
    }

    #[test]
    fn bags_are_summed_or_averaged() -> Result<()> {
        let table = numbers()?;
        let (indices, offsets) = (tensor(&[0_i64, 2, 1], &[3])?, tensor(&[0_i64, 2, 2], &[3])?);
        let bag = |mode, padding_idx| {
            let options = BagOptions { mode, padding_idx, per_sample_weights: None };
            table.embedding_bag(&indices, Some(&offsets), &options)
        };
        close(&bag(BagMode::Sum, None)?, &[6.0, 8.0, 0.0, 0.0, 3.0, 4.0])?;
        let mean = bag(BagMode::Mean, None)?;
        close(&mean, &[3.0, 4.0, 0.0, 0.0, 3.0, 4.0])?;
        close_values(&gradient(&mean, &table)?, &[0.5, 0.5, 1.0, 1.0, 0.5, 0.5]);
        let padded = bag(BagMode::Mean, Some(2))?;
        close(&padded, &[1.0, 2.0, 0.0, 0.0, 3.0, 4.0])?;
        close_values(&gradient(&padded, &table)?, &[1.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
        let rows = tensor(&[0_i64, 2, 1, 1], &[2, 2])?;
        close(&table.embedding_bag(&rows, None, &BagOptions::default())?, &[3.0, 4.0, 3.0, 4.0])
    }

    #[test]
    fn weights_have_gradients() -> Result<()> {
        let (table, weights) = (numbers()?, leaf(&[2.0, -1.0, 0.5], &[3])?);
        let (indices, offsets) = (tensor(&[0_i64, 2, 1], &[3])?, tensor(&[0_i64, 2], &[2])?);
        let options =
            BagOptions { mode: BagMode::Sum, padding_idx: None, per_sample_weights: Some(weights.clone()) };
        let sums = table.embedding_bag(&indices, Some(&offsets), &options)?;
        close(&sums, &[-3.0, -2.0, 1.5, 2.0])?;
        close_values(&gradient(&sums, &weights)?, &[3.0, 11.0, 7.0]);
        close_values(&gradient(&sums, &table)?, &[2.0, 2.0, 0.5, 0.5, -1.0, -1.0]);
        Ok(())
    }

    #[test]
    fn a_pass_is_one_command() -> Result<()> {
        // One of its own: the others' launches do not count.
        let device = Device::cpu_with(Default::default());
        let table = Var::leaf(Tensor::ones(&[3, 2], tensor::DType::F64, &device)?);
        let indices = Tensor::from_slice(&[0_i64, 2, 1], &[3], &device)?;
        let offsets = Tensor::from_slice(&[0_i64, 2], &[2], &device)?;
        let launches = || device.sync_stats().launches;
        let start = launches();
        let mean = table.embedding_bag(&indices, Some(&offsets), &BagOptions::default())?;
        assert_eq!(launches() - start, 1);
        let gradient = Tensor::ones(&[2, 2], tensor::DType::F64, &device)?;
        let start = launches();
        let options =
            crate::BackwardOptions { gradient: Some(Var::constant(gradient)), ..Default::default() };
        mean.backward_with(options)?;
        assert_eq!(launches() - start, 1);
        Ok(())
    }

    #[test]
    fn bad_arguments_are_errors() -> Result<()> {
        let (table, plain) = (numbers()?, BagOptions::default());
        assert!(table.embedding_bag(&tensor(&[0_i64], &[1])?, None, &plain).is_err());
        // The first bag does not begin at 0; a bag begins after the end.
        for offsets in [[1_i64, 2], [0, 3]] {
            let offsets = tensor(&offsets, &[2])?;
            let error = table.embedding_bag(&tensor(&[0_i64, 1], &[2])?, Some(&offsets), &plain);
            assert!(
                matches!(error.as_ref().map_err(Error::kind), Err(ErrorKind::IndexOutOfRange { .. })),
                "{error:?}"
            );
        }
        let indices = tensor(&[0_i64, 1], &[2])?;
        let column = tensor(&[0_i64], &[1, 1])?;
        let error = table.embedding_bag(&indices, Some(&column), &plain);
        assert!(
            matches!(
                error.as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { argument: "offsets", .. })
            ),
            "{error:?}"
        );
        let error = table.embedding_bag(&indices, Some(&tensor::<i64>(&[], &[0])?), &plain);
        assert!(
            matches!(
                error.as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { argument: "bags", .. })
            ),
            "{error:?}"
        );
        let weights = BagOptions { per_sample_weights: Some(leaf(&[1.0; 4], &[2, 2])?), ..plain };
        let error = table.embedding_bag(&tensor(&[0_i64; 4], &[2, 2])?, None, &weights);
        assert!(
            matches!(
                error.as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { op: OP, argument: "per_sample_weights", .. })
            ),
            "{error:?}"
        );
        let error = leaf(&[1.0], &[1])?.embedding_bag(&indices, None, &BagOptions::default());
        assert!(
            matches!(error.as_ref().map_err(Error::kind), Err(ErrorKind::InvalidArgument { op: OP, .. })),
            "{error:?}"
        );
        let sums = BagOptions { mode: BagMode::Sum, ..weights };
        let error = table.embedding_bag(&indices, Some(&tensor(&[0_i64], &[1])?), &sums);
        assert!(
            matches!(error.as_ref().map_err(Error::kind), Err(ErrorKind::ShapeMismatch { .. })),
            "{error:?}"
        );
        Ok(())
    }
}
