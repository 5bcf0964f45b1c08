//! What products of two operands share: the gradient of each keeps the other one.

use smallvec::{SmallVec, smallvec};
use tensor::fused::Activation;
use tensor::{Result, Tensor, UnaryOp};

use super::function::straight_slope;
use crate::{Grads, Save, Var, Vjp, record};

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

    /// The gradient of the product, from the gradient `g` of its activation.
    pub(super) fn slope(self, ctx: &Vjp<'_>, activation: Activation, g: &Var) -> Result<Var> {
        if activation.is_relu() {
            straight_slope(&ctx.saved(self.saved().len()), UnaryOp::Relu, g)
        } else {
            Ok(g.clone())
        }
    }
}

/// Records a product of two operands, with a bias or without one, of which the gradient of each keeps the other one. With a ReLU as
/// part of the op, the result is kept, too: see [`Crossed::slope`].
pub(super) fn record_crossed<F>(
    op: &'static str,
    [lhs, rhs]: [&Var; 2],
    bias: Option<&Var>,
    (value, activation): (Tensor, Activation),
    vjp: F,
) -> Var
where
    F: Fn(&Vjp<'_>, &Var) -> Result<Grads> + Send + Sync + 'static,
{
    let mut saved: SmallVec<[Save<'_>; 3]> = Crossed::new(lhs, rhs).saved().iter().copied().collect();
    saved.extend(activation.is_relu().then_some(Save::Output));
    let mut inputs: SmallVec<[&Var; 3]> = smallvec![lhs, rhs];
    inputs.extend(bias);
    record(op, &inputs, &saved, value, vjp)
}
