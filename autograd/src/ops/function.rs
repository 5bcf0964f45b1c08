//! Functions of one element whose gradient is one kernel: `x' = g f'`, with `f'` of what the function saves.

use tensor::{Result, Saves, UnaryOp, grad};

use super::{if_needed, record_one};
use crate::{Grads, Save, Var, record};

/// `f(x)`. `bend` is the derivative of `f'` for what it is a function of, [`STRAIGHT`] where `f'` is flat.
#[inline]
pub(super) fn function<B>(x: &Var, f: UnaryOp, bend: Option<B>) -> Result<Var>
where
    B: Fn(&Var) -> Result<Var> + Copy + Send + Sync + 'static,
{
    let value = x.value().unary(f)?;
    let saved = if f.saves() == Some(Saves::Result) { Save::Output } else { Save::Input(0) };
    record_one(f.name(), x, &[saved], value, move |ctx, g| slope(&ctx.saved(0), f, bend, g))
}

/// Of a function that is flat or straight wherever it has a gradient.
pub(super) const STRAIGHT: Option<fn(&Var) -> Result<Var>> = None;

/// The gradient of a [straight](STRAIGHT) function, for that of its value.
pub(super) fn straight_slope(saved: &Var, f: UnaryOp, g: &Var) -> Result<Var> {
    slope(saved, f, STRAIGHT, g)
}

/// `g f'(saved)` in one kernel; `saved' = h g f''` and `g' = h f'` for its own gradient `h`.
fn slope<B>(saved: &Var, f: UnaryOp, bend: Option<B>, g: &Var) -> Result<Var>
where
    B: Fn(&Var) -> Result<Var> + Copy + Send + Sync + 'static,
{
    let value = grad::unary(saved.value(), f, g.value())?;
    let Some(bend) = bend else {
        let saved = [Save::Tensor(saved.value())];
        return Ok(record(f.grad_name(), &[g], &saved, value, move |ctx, h| {
            Ok(Grads::from_iter([if_needed(ctx, 0, || slope(&ctx.saved(0), f, None::<B>, h))?]))
        }));
    };
    Ok(record(f.grad_name(), &[saved, g], &[Save::Input(0), Save::Input(1)], value, move |ctx, h| {
        let (saved, g) = (ctx.saved(0), ctx.saved(1));
        Ok(Grads::from_buf([
            if_needed(ctx, 0, || h.mul(&g)?.mul(&bend(&saved)?))?,
            if_needed(ctx, 1, || slope(&saved, f, Some(bend), h))?,
        ]))
    }))
}
