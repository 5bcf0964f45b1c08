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
    /// [`Error::InvalidArgument`] for a size, stride or dilation of 0, and if it is larger than the padded image.
    pub fn places(&self, op: &'static str, image: [usize; 2]) -> Result<[usize; 2]> {
        self.check(op)?;
        let mut places = [0; 2];
        for axis in 0..2 {
            let padded = image[axis].saturating_add(self.padding[axis].saturating_mul(2));
            let Some(room) = padded.checked_sub(self.extent(axis)) else {
                let value = format!("{self:?} in an image of {image:?}");
                return Err(invalid(op, "window", "no larger than the padded image", value));
            };
            places[axis] = room / self.stride[axis] + 1;
        }
        Ok(places)
    }

    /// Refuses sizes, strides and dilations of 0, and numbers that a step in memory cannot be made of.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    pub fn check(&self, op: &'static str) -> Result<()> {
        let Window { kernel, stride, padding, dilation } = self;
        for (argument, pair) in [("kernel", kernel), ("stride", stride), ("dilation", dilation)] {
            if pair.contains(&0) {
                return Err(invalid(op, argument, "at least 1", format!("{pair:?}")));
            }
        }
        for (argument, pair) in
            [("kernel", kernel), ("stride", stride), ("padding", padding), ("dilation", dilation)]
        {
            if pair.iter().any(|&size| size > MOST) {
                return Err(invalid(op, argument, "below 2^30", format!("{pair:?}")));
            }
        }
        Ok(())
    }
}

const MOST: usize = (1 << 30) - 1;

#[cold]
pub(crate) fn invalid(
    op: &'static str,
    argument: &'static str,
    expected: &'static str,
    value: String,
) -> Error {
    Error::InvalidArgument { op, argument, expected, value: value.into() }
}

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
mod tests {
    use super::*;

    #[test]
    fn places_follow_the_formula() -> Result<()> {
        let window = |kernel, stride, padding, dilation| Window {
            kernel: [kernel; 2],
            stride: [stride; 2],
            padding: [padding; 2],
            dilation: [dilation; 2],
        };
        for (window, size, places) in [
            (window(3, 1, 1, 1), 28, 28),
            (window(5, 1, 0, 1), 28, 24),
            (window(3, 2, 1, 1), 7, 4),
            (window(3, 1, 0, 2), 7, 3),
            (window(2, 2, 0, 1), 7, 3),
            (window(1, 1, 0, 1), 1, 1),
        ] {
            assert_eq!(window.places("test", [size; 2])?, [places; 2], "{window:?}");
        }
        assert!(window(4, 1, 0, 1).places("test", [3, 9]).is_err());
        assert!(window(0, 1, 0, 1).places("test", [3, 9]).is_err());
        assert!(window(2, 0, 0, 1).places("test", [3, 9]).is_err());
        assert!(window(2, 1, usize::MAX, 1).places("test", [3, 9]).is_err());
        Ok(())
    }

    #[test]
    fn inside_is_where_the_tap_sees_the_image() {
        for (size, places) in [(5, 7), (4, 3), (1, 9)] {
            for (stride, padding, dilation) in [(1, 2, 1), (2, 1, 1), (3, 4, 2), (1, 0, 3)] {
                for tap in 0..4 {
                    let (first, end) = inside(tap, (stride, padding, dilation), size, places);
                    for place in 0..places {
                        let at = (place * stride + tap * dilation) as isize - padding as isize;
                        let sees = (0..size as isize).contains(&at);
                        assert_eq!((first..end).contains(&place), sees, "{size} {place} {tap}");
                    }
                }
            }
        }
    }
}
