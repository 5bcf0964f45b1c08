//! `contiguous`, `to_dtype`, `to_device`: the same numbers in another form; the gradient takes the old form.

use tensor::{DType, Device, Result};

use super::{Draw, Sample, record_one};
use crate::Var;
use crate::autocast::record_conversion;

#[derive::located]
impl Var {
    /// The elements in row-major order without gaps. See [`Tensor::contiguous`](tensor::Tensor::contiguous).
    ///
    /// # Errors
    /// As for [`Tensor::contiguous`](tensor::Tensor::contiguous).
    pub fn contiguous(&self) -> Result<Var> {
        if self.value().is_contiguous() {
            return Ok(self.clone());
        }
        let value = self.value().contiguous()?;
        record_one("contiguous", self, &[], value, |_, g| Ok(g.clone()))
    }

    /// Converts the elements. No gradient flows through types other than floats. See [`Tensor::to_dtype`](tensor::Tensor::to_dtype).
    ///
    /// # Errors
    /// As for [`Tensor::to_dtype`](tensor::Tensor::to_dtype).
    pub fn to_dtype(&self, dtype: DType) -> Result<Var> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        Ok(record_conversion(self, self.value().to_dtype(dtype)?))
    }

    /// Copies to another device; the gradient is copied back. See [`Tensor::to_device`](tensor::Tensor::to_device).
    ///
    /// # Errors
    /// As for [`Tensor::to_device`](tensor::Tensor::to_device).
    pub fn to_device(&self, device: &Device) -> Result<Var> {
        let from = self.device().clone();
        if from == *device {
            return Ok(self.clone());
        }
        let value = self.value().to_device(device)?;
        record_one("to_device", self, &[], value, move |_, g| g.to_device(&from))
    }
}

pub(super) fn contiguous_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("already", &[&[2, 3]], |v| v[0].contiguous()?.mul(&v[0])),
        ("expanded_inside", &[&[3]], |v| v[0].expand(&[2, 3])?.contiguous()?.square()),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close_values, gradient, leaf};
    use super::*;

    #[test]
    fn gradients_come_back_in_the_old_type() -> Result<()> {
        let x = leaf(&[1.0, 2.0], &[2])?;
        let y = x.to_dtype(DType::F32)?;
        assert_eq!(y.value().to_vec::<f32>()?, [1.0, 2.0]);
        close_values(&gradient(&y.square()?.to_dtype(DType::F64)?, &x)?, &[2.0, 4.0]);
        assert!(!x.to_dtype(DType::I64)?.requires_grad());
        Ok(())
    }

    #[test]
    fn gradients_come_back_to_the_old_device() -> Result<()> {
        let x = leaf(&[1.0, 2.0], &[2])?;
        let other = Device::cpu_with(device::CpuConfig::default());
        let y = x.to_device(&other)?.square()?;
        assert!(*y.device() == other);
        close_values(&gradient(&y.to_device(&Device::cpu())?, &x)?, &[2.0, 4.0]);
        Ok(())
    }
}
