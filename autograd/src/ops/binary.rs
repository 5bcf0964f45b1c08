//! What the elementwise ops of two operands share: broadcasting and what they save.

use tensor::{BinaryGradOp, Result, Tensor, grad};

use super::{Dims, scalar_like};
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
    let shapes = [Dims::from_slice(lhs.shape()), Dims::from_slice(rhs.shape())];
    record(op, &[lhs, rhs], saved, value, move |ctx, g| {
        // Sums of 16-bit floats are rounded, their terms are not.
        let [lhs, rhs] = vjp(ctx, &g.to_dtype(g.dtype().compute_dtype())?)?;
        let sums = [sum_back(lhs, &shapes[0])?, sum_back(rhs, &shapes[1])?];
        let rounded = sums.map(|sum| sum.map(|sum| sum.to_dtype(g.dtype())).transpose());
        let [lhs, rhs] = rounded;
        Ok(Grads::from_buf([lhs?, rhs?]))
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

/// The gradient `op(x, y, g)` of an operand of a binary op, as one kernel.
pub(super) fn binary_slope(op: BinaryGradOp, x: &Var, y: &Var, g: &Var) -> Result<Var> {
    // A gradient may be wider than the operands.
    let (x, y) = (&x.to_dtype(g.dtype())?, &y.to_dtype(g.dtype())?);
    let value = grad::binary(op, x.value(), y.value(), g.value())?;
    let saved = [Save::Input(0), Save::Input(1), Save::Input(2)];
    let shapes = [Dims::from_slice(x.shape()), Dims::from_slice(y.shape())];
    Ok(record(op.name(), &[x, y, g], &saved, value, move |ctx, h| {
        let (x, y, g) = (ctx.saved(0), ctx.saved(1), ctx.saved(2));
        // The slope of fmod has steps, and is flat elsewhere.
        let bends = !matches!(op, BinaryGradOp::FmodDivisor);
        let both = |at| if bends && ctx.needs(at) { h.mul(&g).map(Some) } else { Ok(None) };
        let of_x = both(0)?.map(|gh| curvature(op, [&x, &y], &gh, 0)).transpose()?;
        let of_y = both(1)?.map(|gh| curvature(op, [&x, &y], &gh, 1)).transpose()?;
        let of_g = if_needed(ctx, 2, || binary_slope(op, &x, &y, h))?;
        Ok(Grads::from_iter([sum_back(of_x, &shapes[0])?, sum_back(of_y, &shapes[1])?, of_g]))
    }))
}

/// The gradient of `op(x, y, 1)` for operand `at`, times `g`.
fn curvature(op: BinaryGradOp, [x, y]: [&Var; 2], g: &Var, at: usize) -> Result<Var> {
    let slope = |op, y: &Var, g: &Var| binary_slope(op, x, y, g);
    let zero_where = |flat: &Tensor, v: &Var| Var::where_cond(flat, &scalar_like(v.value(), 0.0)?, v);
    let is_zero = |v: &Var| v.value().eq(0.0);
    match (op, at) {
        // -2 x y / (x^2 + y^2)^2 and (x^2 - y^2) / (x^2 + y^2)^2
        (BinaryGradOp::Atan2First, 0) => binary_slope(op, y, x, &slope(op, y, g)?)?.mul_scalar(-2.0),
        (BinaryGradOp::Atan2First, _) => {
            let twice = |x, y| binary_slope(op, x, y, &binary_slope(op, x, y, g)?);
            twice(y, x)?.sub(&twice(x, y)?)
        }
        (BinaryGradOp::DivDivisor, 0) => binary_slope(op, &scalar_like(g.value(), 1.0)?, y, g),
        (BinaryGradOp::DivDivisor, _) => slope(op, y, g)?.mul_scalar(-2.0)?.div(y),
        // y (y - 1) x^(y - 2)
        (BinaryGradOp::PowBase, 0) => zero_where(&is_zero(y)?, &slope(op, &y.add_scalar(-1.0)?, &g.mul(y)?)?),
        // x^(y - 1) (1 + y ln x), from either order of differentiation
        (BinaryGradOp::PowBase, _) | (BinaryGradOp::PowExponent, 0) => {
            let less = y.add_scalar(-1.0)?;
            let mixed = x.pow(&less)?.mul(g)?.add(&slope(BinaryGradOp::PowExponent, &less, &g.mul(y)?)?)?;
            if at == 0 {
                zero_where(&exponent_is_flat(x, y)?, &mixed)
            } else {
                zero_where(&is_zero(y)?, &mixed)
            }
        }
        // x^y ln² x
        (BinaryGradOp::PowExponent, _) => {
            zero_where(&exponent_is_flat(x, y)?, &slope(op, y, g)?.mul(&x.log()?)?)
        }
        (BinaryGradOp::BceLogit, 0) => {
            let s = x.sigmoid()?;
            g.mul(&s.sub(&s.square()?)?)
        }
        (_, _) => g.neg(),
    }
}

/// Where `x = 0` and `y >= 0`.
fn exponent_is_flat(x: &Var, y: &Var) -> Result<Tensor> {
    // Without "and": the base is compared with 0, but with NaN where the exponent is negative.
    let limit = Tensor::where_cond(
        &y.value().ge(0.0)?,
        scalar_like(x.value(), 0.0)?.value(),
        scalar_like(x.value(), f64::NAN)?.value(),
    )?;
    x.value().eq(&limit)
}

/// `op` in the type that 16-bit floats are computed in: only its result and its gradient are rounded.
pub(super) fn widened(x: &Var, op: impl FnOnce(&Var) -> Result<Var>) -> Result<Var> {
    op(&x.to_dtype(x.dtype().compute_dtype())?)?.to_dtype(x.dtype())
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
