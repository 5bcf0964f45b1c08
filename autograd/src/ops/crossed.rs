//! What products of two operands share: the gradient of each keeps the other one.

use smallvec::{SmallVec, smallvec};
use tensor::fused::Activation;
use tensor::{Result, Tensor, UnaryOp};

use super::function::straight_slope;
use crate::{Save, Var, Vjp, record};

/// What a product saves: the operand on the other side of each one that wants a gradient.
#[derive(Clone, Copy)]
pub(super) struct Crossed {
    lhs_wants: bool,
    rhs_wants: bool,
}

impl Crossed {
    pub(super) fn new(lhs: &Var, rhs: &Var) -> Self {
        Crossed { lhs_wants: lhs.requires_grad(), rhs_wants: rhs.requires_grad() }
    }

    pub(super) fn saved(self) -> &'static [Save<'static>] {
        match (self.lhs_wants, self.rhs_wants) {
            (true, true) => &[Save::Input(1), Save::Input(0)],
            (true, false) => &[Save::Input(1)],
            (false, true) => &[Save::Input(0)],
            (false, false) => &[],
        }
    }

    /// The right operand; saved if the left one wanted a gradient.
    #[inline]
    pub(super) fn rhs(self, ctx: &Vjp<'_>) -> Var {
        ctx.saved(0)
    }

    /// The left operand; saved if the right one wanted a gradient.
    #[inline]
    pub(super) fn lhs(self, ctx: &Vjp<'_>) -> Var {
        ctx.saved(usize::from(self.lhs_wants))
    }
}

/// A product whose activation is part of the op.
pub(super) struct Product {
    pub(super) op: &'static str,
    pub(super) value: Tensor,
    pub(super) activation: Activation,
}

/// Records a product of two operands, with a bias or without one. `vjp` returns the gradients of the operands, each of which keeps
/// the other one, and of the bias, from the gradient of the product before its activation.
pub(super) fn record_crossed<F>(product: Product, [lhs, rhs]: [&Var; 2], bias: Option<&Var>, vjp: F) -> Var
where
    F: Fn(&Vjp<'_>, Crossed, &Var) -> Result<[Option<Var>; 3]> + Send + Sync + 'static,
{
    let Product { op, value, activation } = product;
    let crossed = Crossed::new(lhs, rhs);
    let operands = crossed.saved();
    let mut saved: SmallVec<[Save<'_>; 3]> = operands.iter().copied().collect();
    saved.extend(activation.is_relu().then_some(Save::Output));
    let mut inputs: SmallVec<[&Var; 3]> = smallvec![lhs, rhs];
    inputs.extend(bias);
    let count = inputs.len();
    record(op, &inputs, &saved, value, move |ctx, g| {
        let of_product;
        let g = if activation.is_relu() {
            of_product = straight_slope(&ctx.saved(operands.len()), UnaryOp::Relu, g)?;
            &of_product
        } else {
            g
        };
        Ok(vjp(ctx, crossed, g)?.into_iter().take(count).collect())
    })
}
