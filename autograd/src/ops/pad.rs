//! Borders around the last axes: one value, or what lies within, mirrored or repeated; the gradient goes where elements
//! came from.

use tensor::{Error, Result, Tensor};

use super::{Draw, Sample, record_one};
use crate::Var;

/// What [`Var::pad`] puts around a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// This value.
    Constant(f64),
    /// The elements within, mirrored at the outermost one, which is not repeated: `c b | a b c | b a`.
    Reflect,
    /// The outermost element: `a a | a b c | c c`.
    Replicate,
}

#[derive::located]
impl Var {
    /// Borders around the last axes.
    ///
    /// `borders` has a pair for each of as many of the last axes as it says, the last axis first: so many elements are
    /// added before and behind, or taken away if negative. Shapes: `[h, w]` with `[[1, 2], [3, 0]]` gives
    /// `[h + 3, w + 3]`.
    ///
    /// # Errors
    /// `InvalidArgument` for more pairs than axes, for fewer than no elements, for a mirrored border that is not shorter
    /// than its axis, and for a repeated element of an axis that has none.
    pub fn pad(&self, borders: &[[isize; 2]], mode: PadMode) -> Result<Var> {
        let rank = self.shape().len();
        let value = format_args!("{borders:?} for {rank} axes");
        Error::require(borders.len() <= rank, "pad", "borders", "a pair for an axis at most", value)?;
        let mut x = self.clone();
        for (nth, &border) in borders.iter().enumerate() {
            x = bordered(&x, rank - 1 - nth, border, mode)?;
        }
        Ok(x)
    }
}

const TAKEN: &str = "no more taken than there are";

fn bordered(x: &Var, axis: usize, [before, behind]: [isize; 2], mode: PadMode) -> Result<Var> {
    let size = x.shape()[axis];
    let whole = size.checked_add_signed(before).and_then(|size| size.checked_add_signed(behind));
    let value = format_args!("{before} and {behind} for {size} elements");
    let wrong = |expected| Error::invalid("pad", "borders", expected, value);
    let whole = whole.ok_or_else(|| wrong(TAKEN))?;
    if before == 0 && behind == 0 {
        return Ok(x.clone());
    }
    match mode {
        PadMode::Constant(value) => {
            let cut = [before, behind].map(|border| border.min(0).unsigned_abs());
            let added = [before, behind].map(|border| border.max(0).unsigned_abs());
            let kept = size.checked_sub(cut[0]).and_then(|size| size.checked_sub(cut[1]));
            let kept = kept.ok_or_else(|| wrong(TAKEN))?;
            let inner = if kept == size { x.clone() } else { x.narrow(axis as isize, cut[0], kept)? };
            if added == [0, 0] {
                return Ok(inner);
            }
            let mut borders = vec![[0; 2]; x.shape().len()];
            borders[axis] = added;
            let padded = inner.value().pad_constant(&borders, value)?;
            record_one("pad", &inner, &[], padded, move |_, g| g.narrow(axis as isize, added[0], kept))
        }
        PadMode::Reflect | PadMode::Replicate => {
            let reach = before.max(behind);
            if mode == PadMode::Reflect && reach >= size as isize {
                return Err(wrong("shorter than the axis"));
            }
            if size == 0 {
                return Err(wrong("around elements"));
            }
            let last = size as isize - 1;
            let place = |at: isize| match mode {
                PadMode::Reflect if at < 0 => -at,
                PadMode::Reflect if at > last => 2 * last - at,
                _ => at.clamp(0, last),
            };
            let places: Vec<i64> = (0..whole as isize).map(|at| place(at - before) as i64).collect();
            x.index_select(axis as isize, &Tensor::from_slice(&places, &[whole], x.device())?)
        }
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("constant", &[&[2, 3]], |v| v[0].pad(&[[1, 2], [0, 1]], PadMode::Constant(2.0))?.square()),
        ("constant_one_axis", &[&[2, 3]], |v| v[0].pad(&[[1, 0]], PadMode::Constant(2.0))?.square()),
        ("cut", &[&[4, 5]], |v| v[0].pad(&[[-1, 1], [2, -2]], PadMode::Constant(2.0))?.square()),
        ("reflect", &[&[2, 3, 4]], |v| v[0].pad(&[[2, 3], [1, 1]], PadMode::Reflect)?.square()),
        ("replicate", &[&[2, 3]], |v| v[0].pad(&[[2, 1], [1, 3]], PadMode::Replicate)?.square()),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf, vector};
    use super::*;

    #[test]
    fn borders() -> Result<()> {
        let x = vector(&[1.0, 2.0, 3.0])?;
        close(&x.pad(&[[1, 2]], PadMode::Constant(9.0))?, &[9.0, 1.0, 2.0, 3.0, 9.0, 9.0])?;
        close(&x.pad(&[[-1, 1]], PadMode::Constant(0.0))?, &[2.0, 3.0, 0.0])?;
        close(&x.pad(&[[2, 2]], PadMode::Reflect)?, &[3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0])?;
        let y = x.pad(&[[2, 1]], PadMode::Replicate)?;
        close(&y, &[1.0, 1.0, 1.0, 2.0, 3.0, 3.0])?;
        close_values(&gradient(&y, &x)?, &[3.0, 1.0, 2.0]);
        let m = leaf(&[1.0, 2.0], &[1, 2])?;
        close(&m.pad(&[[0, 1], [1, 0]], PadMode::Constant(0.0))?, &[0.0, 0.0, 0.0, 1.0, 2.0, 0.0])?;
        assert!(x.pad(&[[3, 0]], PadMode::Reflect).is_err());
        assert!(x.pad(&[[-2, -2]], PadMode::Constant(0.0)).is_err());
        assert!(x.pad(&[[0, 0], [1, 1]], PadMode::Constant(0.0)).is_err());
        Ok(())
    }
}
