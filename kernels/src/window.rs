//! Windows that slide over the last two axes of images.

use device::{Error, Result};

/// A window over the two last axes of `[.., h, w]`; every pair is for the axes `[h, w]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its sizes.
    pub kernel: [usize; 2],
    /// Steps from one place of it to the next.
    pub stride: [usize; 2],
    /// Rows and columns that are added to the image, on either side.
    pub padding: [usize; 2],
    /// Steps between the elements that it sees.
    pub dilation: [usize; 2],
}

impl Window {
    /// A window of this size that moves by one step, sees neighbours, and does not leave the image.
    pub fn new(kernel: [usize; 2]) -> Window {
        Window { kernel, stride: [1; 2], padding: [0; 2], dilation: [1; 2] }
    }

    /// From its first element to behind its last one, along an axis.
    pub fn extent(&self, axis: usize) -> usize {
        self.dilation[axis].saturating_mul(self.kernel[axis].saturating_sub(1)).saturating_add(1)
    }

    /// Its places in an image of these sizes, `floor((size + 2 padding - extent) / stride) + 1` along each axis.
    ///
    /// # Errors
    /// `InvalidArgument` for a size, stride or dilation of 0, and if it is larger than the padded image.
    pub fn places(&self, op: &'static str, image: [usize; 2]) -> Result<[usize; 2]> {
        self.check(op)?;
        let mut places = [0; 2];
        for axis in 0..2 {
            let padded = image[axis].saturating_add(self.padding[axis].saturating_mul(2));
            let Some(room) = padded.checked_sub(self.extent(axis)) else {
                let value = format!("{self:?} in an image of {image:?}");
                return Err(Error::invalid(op, "window", "no larger than the padded image", value));
            };
            places[axis] = room / self.stride[axis] + 1;
        }
        Ok(places)
    }

    /// Refuses sizes, strides and dilations of 0, and numbers that a step in memory cannot be made of.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn check(&self, op: &'static str) -> Result<()> {
        let Window { kernel, stride, padding, dilation } = self;
        let pairs = [("kernel", kernel), ("stride", stride), ("dilation", dilation), ("padding", padding)];
        for (argument, pair) in pairs {
            let is_positive = argument == "padding" || !pair.contains(&0);
            Error::require(is_positive, op, argument, "at least 1", format_args!("{pair:?}"))?;
            let is_counted = pair.iter().all(|&size| size <= MOST);
            Error::require(is_counted, op, argument, "below 2^30", format_args!("{pair:?}"))?;
        }
        Ok(())
    }

    /// Its numbers along an axis: step, padding, step between elements.
    pub(crate) fn along(&self, axis: usize) -> (usize, usize, usize) {
        (self.stride[axis], self.padding[axis], self.dilation[axis])
    }
}

/// A window as CUDA takes it: sizes of an image, places, and its own numbers; `None` if one or its extent is not below 2^31.
pub(crate) fn words(image: [usize; 2], places: [usize; 2], window: &Window) -> Option<[u32; 12]> {
    let Window { kernel, stride, padding, dilation } = *window;
    let mut words = [0; 12];
    for (to, &from) in words.iter_mut().zip([image, places, kernel, stride, padding, dilation].as_flattened())
    {
        *to = i32::try_from(from).ok()?.cast_unsigned();
    }
    i32::try_from(window.extent(0).max(window.extent(1))).ok().map(|_| words)
}

const MOST: usize = (1 << 30) - 1;

/// The places `first..end` along an axis at which element `tap` of the window is one of the image's `size`.
pub(crate) fn inside(
    tap: usize,
    (stride, padding, dilation): (usize, usize, usize),
    size: usize,
    places: usize,
) -> (usize, usize) {
    // Place p sees element p stride + tap dilation - padding.
    let ahead = tap * dilation;
    let first = padding.saturating_sub(ahead).div_ceil(stride);
    let end = (size + padding).saturating_sub(ahead).div_ceil(stride);
    (first.min(places), end.min(places).max(first.min(places)))
}

#[cfg(test)]
mod tests;
