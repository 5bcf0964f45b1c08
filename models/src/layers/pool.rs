//! Pooling layers.

use autograd::Var;
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

    /// Images of another size; see [`Var::upsample_nearest2d`] and [`Var::upsample_bilinear2d`].
    Upsample(UpsampleMode): |x, mode| match mode.0 {
        UpsampleMode::Nearest(size) => x.upsample_nearest2d(size),
        UpsampleMode::Bilinear { size, align_corners } => x.upsample_bilinear2d(size, align_corners),
    };

    /// The means over as many ranges as the result is to have; see [`Var::adaptive_avg_pool2d`].
    AdaptiveAvgPool2d([usize; 2]): |x, size| x.adaptive_avg_pool2d(size.0);
}

/// How an [`Upsample`] finds the pixels of the result, and its size.
#[derive(Clone, Copy, Debug)]
pub enum UpsampleMode {
    /// The nearest pixel.
    Nearest([usize; 2]),
    /// Means of four pixels by their distance.
    Bilinear {
        /// Rows and columns of the result.
        size: [usize; 2],
        /// Whether the corners of both images lie on each other, rather than their edges.
        align_corners: bool,
    },
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
