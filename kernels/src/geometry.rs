//! Sizes of images and of what windows make of them, for both kinds of device.

use crate::window::Window;

/// Images, filters and what the filters make of the images, in numbers. A group of filters sees a group of channels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvGeometry {
    pub(crate) images: usize,
    pub(crate) groups: usize,
    /// Channels of a group.
    pub(crate) channels: usize,
    /// Filters of a group.
    pub(crate) filters: usize,
    /// Sizes of an image.
    pub(crate) image: [usize; 2],
    /// Places of the window: the sizes of a result.
    pub(crate) places: [usize; 2],
    pub(crate) window: Window,
}

impl ConvGeometry {
    /// Elements of a channel.
    pub(crate) fn pixels(&self) -> usize {
        self.image[0] * self.image[1]
    }

    /// Elements of what one filter makes of an image.
    pub(crate) fn all_places(&self) -> usize {
        self.places[0] * self.places[1]
    }

    /// Channels of all groups.
    pub(crate) fn all_channels(&self) -> usize {
        self.groups * self.channels
    }

    /// Filters of all groups.
    pub(crate) fn all_filters(&self) -> usize {
        self.groups * self.filters
    }

    /// Elements of one channel that the window sees.
    pub(crate) fn taps(&self) -> usize {
        self.window.kernel[0] * self.window.kernel[1]
    }

    /// Elements of a filter.
    pub(crate) fn filter(&self) -> usize {
        self.channels * self.taps()
    }

    /// Whether filters see one channel each.
    pub(crate) fn is_depthwise(&self) -> bool {
        self.channels == 1 && self.groups > 1
    }

    /// Whether the places are the pixels.
    pub(crate) fn is_pointwise(&self) -> bool {
        let Window { kernel, stride, padding, .. } = self.window;
        kernel == [1; 2] && stride == [1; 2] && padding == [0; 2] && self.image == self.places
    }

    /// Whether all channels are seen by windows of several pixels that lie side by side and cover the image.
    pub(crate) fn is_tiled(&self) -> bool {
        let Window { kernel, stride, padding, dilation } = self.window;
        let covered = |axis: usize| {
            self.image[axis] == self.places[axis] * kernel[axis]
                && (self.places[axis] == 1 || stride[axis] == kernel[axis])
                && (kernel[axis] == 1 || dilation[axis] == 1)
        };
        self.groups == 1 && padding == [0; 2] && kernel != [1; 2] && covered(0) && covered(1)
    }
}

/// Planes, and the places of a window in each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planes {
    pub(crate) count: usize,
    /// Sizes of a plane.
    pub(crate) image: [usize; 2],
    /// Sizes of what is made of one.
    pub(crate) places: [usize; 2],
}

impl Planes {
    pub(crate) fn pixels(&self) -> usize {
        self.image[0] * self.image[1]
    }

    pub(crate) fn all_places(&self) -> usize {
        self.places[0] * self.places[1]
    }
}

/// Which elements a mean is of, and what their sum is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// Of the places of a window, whose dilation is 1.
    Sliding {
        /// The window.
        window: Window,
        /// Whether elements of the padding count in the divisor.
        count_include_pad: bool,
        /// The divisor, if it is not the number of elements.
        divisor: Option<u32>,
    },
    /// Of as many ranges along each axis as the result has places, `floor(i size / places)..ceil((i + 1) size / places)`.
    Adaptive,
}

/// The elements along an axis that a place sees, and how many count in the divisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) counted: usize,
}

impl Means {
    /// What place `at` of `places` sees along an axis of `size` elements.
    pub(crate) fn seen(&self, axis: usize, at: usize, size: usize, places: usize) -> Seen {
        match self {
            Means::Adaptive => {
                let (start, end) = (at * size / places, ((at + 1) * size).div_ceil(places));
                Seen { start, end, counted: end - start }
            }
            Means::Sliding { window, count_include_pad, .. } => {
                let padding = window.padding[axis];
                // In the padded axis.
                let first = at * window.stride[axis];
                let last = (first + window.kernel[axis]).min(size + 2 * padding);
                let start = first.saturating_sub(padding).min(size);
                let end = last.saturating_sub(padding).clamp(start, size);
                let counted = if *count_include_pad { last.saturating_sub(first) } else { end - start };
                Seen { start, end, counted }
            }
        }
    }

    /// The divisor of a place.
    pub(crate) fn divisor(&self, down: Seen, across: Seen) -> f64 {
        match self {
            Means::Sliding { divisor: Some(divisor), .. } => f64::from(*divisor),
            _ => (down.counted * across.counted) as f64,
        }
    }
}

/// Sizes of a batch of images: samples, channels, rows and columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Images {
    pub(crate) samples: usize,
    pub(crate) channels: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl Images {
    /// Elements of a channel of a sample.
    pub(crate) fn pixels(&self) -> usize {
        self.rows * self.columns
    }

    /// Rows of all channels of all samples.
    pub(crate) fn all_rows(&self) -> usize {
        self.samples * self.channels * self.rows
    }
}

/// How [`warp`](crate::warp) reads between and outside pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// The nearest pixel, halves to the even one; 0 outside.
    Nearest,
    /// A weighted mean of the four pixels around; outside, the edge goes on.
    Bilinear,
}
