//! Borders around tensors.

use device::{Error, Result};
use kernels::{Dims, Scalar};

use crate::Tensor;
use crate::check::elements_of;

#[derive::located]
impl Tensor {
    /// This tensor with elements of one value around it: `borders` has how many come before and behind each axis.
    ///
    /// # Errors
    /// `InvalidArgument` unless there is a pair for each axis.
    pub fn pad_constant(&self, borders: &[[usize; 2]], value: impl Into<Scalar>) -> Result<Tensor> {
        const OP: &str = "pad";
        let is_valid = borders.len() == self.rank();
        Error::require(is_valid, OP, "borders", "a pair for each axis", format_args!("{borders:?}"))?;
        let sizes = self.shape().iter().zip(borders);
        let shape: Dims = sizes
            .map(|(&size, &[before, behind])| size.saturating_add(before).saturating_add(behind))
            .collect();
        elements_of(OP, &shape)?;
        let out = Tensor::full(&shape, value, self.dtype, self.device())?;
        let mut inner = out.clone();
        for (axis, (&size, &[before, _])) in self.shape().iter().zip(borders).enumerate() {
            inner = inner.narrow(axis as isize, before, size)?;
        }
        self.write_to(&inner)?;
        Ok(out)
    }
}
