//! Pooling layers.

use autograd::Var;
use autograd::ops::{UpsampleMode, UpsampleSize};
use device::Result;
use tensor::{AvgPool, MaxPool};

use crate::{Forward, Module};

applied! {
    /// The largest element at each place of a window; see [`Var::max_pool2d`].
    ///
    /// ```
    /// use models::{Forward, MaxPool2d};
    /// use tensor::{DType, Tensor};
    /// # fn main() -> device::Result<()> {
    /// let images = Tensor::ones(&[2, 3, 8, 8], DType::F32, &device::Device::cpu())?;
    /// let halves = MaxPool2d::new([2, 2]).forward(&autograd::Var::constant(images))?;
    /// assert_eq!(halves.shape(), [2, 3, 4, 4]);
    /// # Ok(())
    /// # }
    /// ```
    MaxPool2d(MaxPool): |x, pool| x.max_pool2d(&pool.0);

    /// The mean at each place of a window; see [`Var::avg_pool2d`].
    AvgPool2d(AvgPool): |x, pool| x.avg_pool2d(&pool.0);

    /// Images of another size; see [`Var::interpolate`].
    Upsample((UpsampleSize, UpsampleMode)): |x, own| x.interpolate(own.0.0, own.0.1);

    /// The means over as many ranges as the result is to have; see [`Var::adaptive_avg_pool2d`].
    AdaptiveAvgPool2d([usize; 2]): |x, size| x.adaptive_avg_pool2d(size.0);
}

impl Upsample {
    /// Images of a size, which is `[rows, columns]` or a factor of both, as `2.0`.
    pub fn new(size: impl Into<UpsampleSize>, mode: UpsampleMode) -> Upsample {
        Upsample((size.into(), mode))
    }
}

impl MaxPool2d {
    /// A window whose places lie side by side.
    pub fn new(kernel: [usize; 2]) -> MaxPool2d {
        MaxPool2d(MaxPool::new(kernel))
    }
}

impl AvgPool2d {
    /// A window whose places lie side by side.
    pub fn new(kernel: [usize; 2]) -> AvgPool2d {
        AvgPool2d(AvgPool::new(kernel))
    }
}
