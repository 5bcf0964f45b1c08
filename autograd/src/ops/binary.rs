//! What the elementwise ops of two operands share: broadcasting and what they save.

use smallvec::{SmallVec, smallvec};
use tensor::{Result, Tensor, UnaryOp};

use super::Dims;
use super::function::straight_slope;
use crate::{Grads, Save, Var, Vjp, record};

/// Records an elementwise op whose `vjp` is written as if both operands had the output's shape.
///
/// Where they were broadcast, their gradients are summed back. Equal shapes keep no shapes, so that the
/// recorded gradient of `add` is empty and costs no memory.
#[inline]
pub(super) fn record_binary<F>(
    op: &'static str,
    lhs: &Var,
    rhs: &Var,
    saved: &[Save<'_>],
    value: Tensor,
    vjp: F,
) -> Var
where
    F: Fn(&Vjp<'_>, &Var) -> Result<[Option<Var>; 2]> + Send + Sync + 'static,
{
    if lhs.value().layout().same_shape(rhs.value().layout()) {
        return record(op, &[lhs, rhs], saved, value, move |ctx, g| Ok(Grads::from_buf(vjp(ctx, g)?)));
    }
    let shapes: [Dims; 2] = [SmallVec::from_slice(lhs.shape()), SmallVec::from_slice(rhs.shape())];
    record(op, &[lhs, rhs], saved, value, move |ctx, g| {
        let [lhs, rhs] = vjp(ctx, g)?;
        Ok(Grads::from_buf([sum_back(lhs, &shapes[0])?, sum_back(rhs, &shapes[1])?]))
    })
}

/// `op` on operands of different types, as elements of the type of its result. The conversions are recorded, so a gradient
/// comes back in its operand's type.
#[inline(never)]
pub(super) fn promoted(lhs: &Var, rhs: &Var, op: impl FnOnce(&Var, &Var) -> Result<Var>) -> Result<Var> {
    let dtype = lhs.value().result_type(rhs.value());
    op(&lhs.to_dtype(dtype)?, &rhs.to_dtype(dtype)?)
}

/// `op`, made of several, in the type that its operands are computed in; only its result is rounded to theirs.
pub(super) fn computed(lhs: &Var, rhs: &Var, op: impl FnOnce(&Var, &Var) -> Result<Var>) -> Result<Var> {
    let dtype = lhs.value().result_type(rhs.value());
    let compute = dtype.compute_dtype();
    op(&lhs.to_dtype(compute)?, &rhs.to_dtype(compute)?)?.to_dtype(dtype)
}

fn sum_back(gradient: Option<Var>, shape: &[usize]) -> Result<Option<Var>> {
    gradient.map(|g| g.sum_to(shape)).transpose()
}

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

    /// The gradient of the product, for that of the op's result: of its positive part, if a ReLU is part of the op.
    pub(super) fn slope(self, ctx: &Vjp<'_>, relu: bool, g: &Var) -> Result<Var> {
        if relu { straight_slope(&ctx.saved(self.saved().len()), UnaryOp::Relu, g) } else { Ok(g.clone()) }
    }
}

/// Records a product of two operands, with a bias or without one, of which the gradient of each keeps the other one. With a ReLU as
/// part of the op, the result is kept, too: see [`Crossed::slope`].
pub(super) fn record_crossed<F>(
    op: &'static str,
    [lhs, rhs]: [&Var; 2],
    bias: Option<&Var>,
    (value, relu): (Tensor, bool),
    vjp: F,
) -> Var
where
    F: Fn(&Vjp<'_>, &Var) -> Result<Grads> + Send + Sync + 'static,
{
    let mut saved: SmallVec<[Save<'_>; 3]> = Crossed::new(lhs, rhs).saved().iter().copied().collect();
    saved.extend(relu.then_some(Save::Output));
    let mut inputs: SmallVec<[&Var; 3]> = smallvec![lhs, rhs];
    inputs.extend(bias);
    record(op, &inputs, &saved, value, vjp)
}

/// `gradient()` if input `index` needs one.
#[inline]
pub(super) fn if_needed(
    ctx: &Vjp<'_>,
    index: usize,
    gradient: impl FnOnce() -> Result<Var>,
) -> Result<Option<Var>> {
    if ctx.needs(index) { gradient().map(Some) } else { Ok(None) }
}
