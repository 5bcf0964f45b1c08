//! `y = max(a, b)` or `min(a, b)`; the gradient goes to the chosen operand, half to each where they are equal.

use tensor::{CompareOp, Result, Tensor};

use super::{Draw, Sample, binary, if_needed, record_binary, scalar_like};
use crate::{Save, Var};

const BOTH: &[Save<'static>] = &[Save::Input(0), Save::Input(1)];

#[derive::located]
impl Var {
    /// The larger of each pair, with broadcasting. Where both are equal, each gets half of the gradient. See
    /// [`Tensor::maximum`].
    ///
    /// # Errors
    /// As for [`Tensor::maximum`].
    pub fn maximum(&self, rhs: &Var) -> Result<Var> {
        promote!(self, rhs, Var::maximum);
        let value = self.value().maximum(rhs.value())?;
        Ok(record_choice("maximum", self, rhs, value, CompareOp::Lt))
    }

    /// The smaller of each pair, with broadcasting. Where both are equal, each gets half of the gradient. See
    /// [`Tensor::minimum`].
    ///
    /// # Errors
    /// As for [`Tensor::minimum`].
    pub fn minimum(&self, rhs: &Var) -> Result<Var> {
        promote!(self, rhs, Var::minimum);
        let value = self.value().minimum(rhs.value())?;
        Ok(record_choice("minimum", self, rhs, value, CompareOp::Gt))
    }
}

/// Records a choice between two operands, of which one `loses` where it compares so to the other.
fn record_choice(op: &'static str, lhs: &Var, rhs: &Var, value: Tensor, loses: CompareOp) -> Var {
    record_binary(op, lhs, rhs, BOTH, value, move |ctx, g| {
        let (lhs, rhs) = (ctx.saved(0), ctx.saved(1));
        let part = |own: &Var, other: &Var| {
            let (own, other) = (own.value(), other.value());
            share(g, &own.compare(loses, other)?, &own.eq(other)?)
        };
        Ok([if_needed(ctx, 0, || part(&lhs, &rhs))?, if_needed(ctx, 1, || part(&rhs, &lhs))?])
    })
}

/// 0 where the other operand was chosen, half of `g` where they are equal, `g` elsewhere.
fn share(g: &Var, loses: &Tensor, ties: &Tensor) -> Result<Var> {
    let shared = Var::where_cond(ties, &g.mul_scalar(0.5)?, g)?;
    Var::where_cond(loses, &scalar_like(g.value(), 0.0)?, &shared)
}

// Two draws of these never come close: one has steps of 0.1, the other lies 0.05 beside them.
fn beside(draw: &Draw, shape: &[usize]) -> Result<Tensor> {
    draw.distinct(shape)?.neg()?.add_scalar(0.05)
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    binary(d, Draw::distinct, beside, Var::maximum)
}

pub(super) fn minimum_samples(d: &Draw) -> Result<Vec<Sample>> {
    binary(d, Draw::distinct, beside, Var::minimum)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn chooses_and_shares_ties() -> Result<()> {
        let (a, b) = (vector(&[1.0, 2.0, 3.0])?, vector(&[2.0, 2.0, 1.0])?);
        let (high, low) = (a.maximum(&b)?, a.minimum(&b)?);
        close(&high, &[2.0, 2.0, 3.0])?;
        close(&low, &[1.0, 2.0, 1.0])?;
        close_values(&gradient(&high, &a)?, &[0.0, 0.5, 1.0]);
        close_values(&gradient(&high, &b)?, &[1.0, 0.5, 0.0]);
        close_values(&gradient(&low, &a)?, &[1.0, 0.5, 0.0]);
        close_values(&gradient(&low, &b)?, &[0.0, 0.5, 1.0]);
        Ok(())
    }

    #[test]
    fn nan_wins() -> Result<()> {
        let (a, b) = (vector(&[f64::NAN, 1.0])?, vector(&[0.0, f64::NAN])?);
        close(&a.maximum(&b)?, &[f64::NAN, f64::NAN])?;
        close(&a.minimum(&b)?, &[f64::NAN, f64::NAN])
    }
}
