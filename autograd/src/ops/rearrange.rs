//! `flip`, `roll`, `repeat`, `step_by`: elements in other places; the gradient goes back to where they were.

use smallvec::SmallVec;
use tensor::{DType, Result, Tensor, grad};

use super::{Draw, Sample, position, record_pair};
use crate::Var;

#[derive::located]
impl Var {
    /// The elements in reverse order along each of `axes`. See [`Tensor::flip`].
    ///
    /// # Errors
    /// As for [`Tensor::flip`].
    pub fn flip(&self, axes: &[isize]) -> Result<Var> {
        let axes: SmallVec<[isize; 4]> = SmallVec::from_slice(axes);
        let flip = move |x: &Tensor, _: &[&Tensor]| x.flip(&axes);
        record_pair(["flip", "flip"], self, &[], flip.clone(), flip)
    }

    /// The elements moved by `shift` positions along `axis`; those that leave it enter at its other end. See
    /// [`Tensor::roll`].
    ///
    /// # Errors
    /// As for [`Tensor::roll`].
    pub fn roll(&self, shift: isize, axis: isize) -> Result<Var> {
        let [_, moved] = self.value().rolled("roll", shift, axis)?;
        let shift = moved.cast_signed();
        let roll = move |x: &Tensor, _: &[&Tensor]| x.roll(shift, axis);
        let back = move |g: &Tensor, _: &[&Tensor]| g.roll(-shift, axis);
        record_pair(["roll", "roll"], self, &[], roll, back)
    }

    /// `counts[i]` copies along axis `i`, one after the other; further counts in front add axes. See [`Tensor::repeat`].
    ///
    /// # Errors
    /// As for [`Tensor::repeat`].
    pub fn repeat(&self, counts: &[usize]) -> Result<Var> {
        let [apart, copies, whole] = self.value().repeated(counts)?;
        self.reshape(&apart)?.expand(&copies)?.reshape(&whole)
    }

    /// Every `step`-th position of an axis, from the first one on, as a view. See [`Tensor::step_by`].
    ///
    /// # Errors
    /// As for [`Tensor::step_by`].
    pub fn step_by(&self, axis: isize, step: usize) -> Result<Var> {
        let size = self.shape().get(position(axis, self.rank())).copied().unwrap_or(0);
        // A step beyond the axis takes its first position.
        let step = step.min(size.max(1));
        let taken = move |x: &Tensor, _: &[&Tensor]| x.step_by(axis, step);
        let back = move |g: &Tensor, _: &[&Tensor]| {
            let places = Tensor::arange(0, size as i64, step as i64, DType::I64, g.device())?;
            grad::index_select(g, axis, &places, size)
        };
        record_pair(["step_by", "step_by_grad"], self, &[], taken, back)
    }
}

pub(super) fn flip_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("rows", &[&[2, 3]], |v| v[0].flip(&[0])?.mul(&v[0])),
        ("all", &[&[2, 3]], |v| v[0].flip(&[1, 0])?.square()),
        ("last", &[&[2, 1, 4]], |v| v[0].flip(&[-1])?.mul(&v[0])),
        ("none", &[&[3]], |v| v[0].flip(&[])?.square()),
    ])
}

pub(super) fn roll_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("forward", &[&[5]], |v| v[0].roll(2, 0)?.mul(&v[0])),
        ("backward", &[&[2, 3]], |v| v[0].roll(-1, 1)?.mul(&v[0])),
        ("far", &[&[2, 3]], |v| v[0].roll(7, -1)?.mul(&v[0])),
        ("whole", &[&[3, 2]], |v| v[0].roll(3, 0)?.square()),
    ])
}

pub(super) fn repeat_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("rows", &[&[2, 3]], |v| v[0].repeat(&[2, 1])?.square()),
        ("both", &[&[2, 3]], |v| v[0].repeat(&[2, 3])?.square()),
        ("new_axis", &[&[3]], |v| v[0].repeat(&[2, 2])?.square()),
        ("scalar", &[&[]], |v| v[0].repeat(&[3])?.square()),
    ])
}

pub(super) fn step_by_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("even", &[&[6]], |v| v[0].step_by(0, 2)?.square()),
        ("odd", &[&[2, 5]], |v| v[0].step_by(-1, 3)?.square()),
        ("one", &[&[3, 2]], |v| v[0].step_by(0, 1)?.mul(&v[0])),
        ("beyond", &[&[3, 2]], |v| v[0].step_by(0, 9)?.square()),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf, vector};
    use super::*;

    #[test]
    fn elements_move_and_their_gradients_return() -> Result<()> {
        let x = leaf(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
        close(&x.flip(&[1])?, &[3.0, 2.0, 1.0, 6.0, 5.0, 4.0])?;
        close(&x.roll(1, 1)?, &[3.0, 1.0, 2.0, 6.0, 4.0, 5.0])?;
        close(&x.repeat(&[1, 2])?.narrow(0, 0, 1)?, &[1.0, 2.0, 3.0, 1.0, 2.0, 3.0])?;
        let every = x.step_by(1, 2)?;
        close(&every, &[1.0, 3.0, 4.0, 6.0])?;
        assert!(every.value().same_storage(x.value()));
        close_values(&gradient(&every, &x)?, &[1.0, 0.0, 1.0, 1.0, 0.0, 1.0]);
        close_values(&gradient(&x.repeat(&[2, 2])?, &x)?, &[4.0; 6]);
        let first = x.step_by(1, usize::MAX)?;
        close_values(&gradient(&first, &x)?, &[1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
        let far = x.roll(isize::MIN, 1)?.mul(&x)?;
        close_values(&gradient(&far, &x)?, &gradient(&x.roll(isize::MIN.rem_euclid(3), 1)?.mul(&x)?, &x)?);
        assert!(x.repeat(&[2]).is_err() && x.step_by(0, 0).is_err() && x.roll(1, 2).is_err());
        assert!(x.flip(&[0, 0]).is_err());
        let empty = vector(&[])?;
        assert!(empty.roll(1, 0)?.value().is_empty() && empty.flip(&[0])?.value().is_empty());
        Ok(())
    }
}
