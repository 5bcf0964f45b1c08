//! `y = x m / (1 - p)` with a mask `m` of zeros and ones drawn from a key; `x' = g m / (1 - p)`.

use tensor::{RandomKey, Result, next_key};

use super::{Draw, Sample, record_one};
use crate::Var;

#[derive::located]
impl Var {
    /// Sets each element to 0 with probability `p` and scales the others. The mask is not stored, but drawn again for
    /// the gradient. See [`Tensor::dropout`](tensor::Tensor::dropout).
    ///
    /// # Errors
    /// As for [`Tensor::dropout`](tensor::Tensor::dropout).
    pub fn dropout(&self, p: f64, key: impl Into<Option<RandomKey>>) -> Result<Var> {
        let key = key.into().unwrap_or_else(next_key);
        let value = self.value().dropout(p, key)?;
        record_one("dropout", self, &[], value, move |_, g| g.dropout(p, key))
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let key = |op| RandomKey { seed: 7, op };
    let with = |name, shape, p, op| d.sample(name, &[shape], move |v| v[0].dropout(p, key(op))?.mul(&v[0]));
    Ok(vec![
        with("half", &[3, 5], 0.5, 0)?,
        with("little", &[17], 0.1, 1)?,
        with("none", &[3], 0.0, 2)?,
        with("all", &[3], 1.0, 3)?,
        d.sample("expanded_gradient", &[&[3, 5]], move |v| v[0].dropout(0.5, key(5))?.sum(&[1], false))?,
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close_values, gradient, leaf};
    use super::*;

    #[test]
    fn keeps_and_scales() -> Result<()> {
        let x = leaf(&[1.0; 1000], &[1000])?;
        let key = RandomKey { seed: 1, op: 2 };
        let y = x.dropout(0.25, key)?;
        let values = y.value().to_vec::<f64>()?;
        let kept = values.iter().filter(|&&v| v != 0.0).count();
        assert!((690..810).contains(&kept), "{kept} of 1000 kept");
        assert!(values.iter().all(|&v| v == 0.0 || (v - 4.0 / 3.0).abs() < 1e-12));
        close_values(&gradient(&y, &x)?, &values);
        assert_eq!(x.dropout(0.25, key)?.value().to_vec::<f64>()?, values);
        assert_ne!(
            x.dropout(0.25, None)?.value().to_vec::<f64>()?,
            x.dropout(0.25, None)?.value().to_vec::<f64>()?
        );
        Ok(())
    }

    #[test]
    fn refuses_what_is_no_probability() -> Result<()> {
        let x = leaf(&[1.0], &[1])?;
        assert!(
            x.dropout(-0.1, None).is_err()
                && x.dropout(1.1, None).is_err()
                && x.dropout(f64::NAN, None).is_err()
        );
        Ok(())
    }
}
