//! What the elementwise ops of two operands share: broadcasting and what they save.

use smallvec::SmallVec;
use tensor::{Result, Tensor};

use super::Dims;
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

/// `gradient()` if input `index` needs one.
#[inline]
pub(super) fn if_needed(
    ctx: &Vjp<'_>,
    index: usize,
    gradient: impl FnOnce() -> Result<Var>,
) -> Result<Option<Var>> {
    if ctx.needs(index) { gradient().map(Some) } else { Ok(None) }
}
