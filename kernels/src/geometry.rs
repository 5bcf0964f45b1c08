//! Sizes of images and of what windows make of them, for both kinds of device.

use device::DType;

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

/// Which elements a mean is of, how they are weighted, and what their sum is divided by.
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
    /// Of one element along each axis, `floor(i (size / places))`; quotient and product are rounded to F64 for elements of
    /// that type, otherwise to F32.
    Nearest,
    /// Of the two elements along each axis around `(i + 1/2) size / places - 1/2`, weighted by how near they are.
    Bilinear {
        /// Whether the position is `i (size - 1) / (places - 1)` instead.
        align_corners: bool,
    },
}

/// The elements along an axis that a place sees, and how many count in the divisor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) counted: usize,
    /// The weights of the first element and of each further one.
    pub(crate) weights: [f64; 2],
}

impl Means {
    /// What place `at` of `places` sees along an axis of `size` elements, which are computed with as `dtype`.
    pub(crate) fn seen(&self, dtype: DType, axis: usize, at: usize, [size, places]: [usize; 2]) -> Seen {
        let equal = |start: usize, end: usize, counted| Seen { start, end, counted, weights: [1.0; 2] };
        match self {
            Means::Adaptive => {
                let (start, end) = (at * size / places, ((at + 1) * size).div_ceil(places));
                equal(start, end, end - start)
            }
            Means::Sliding { window, count_include_pad, .. } => {
                let padding = window.padding[axis];
                // In the padded axis.
                let first = at * window.stride[axis];
                let last = (first + window.kernel[axis]).min(size + 2 * padding);
                let start = first.saturating_sub(padding).min(size);
                let end = last.saturating_sub(padding).clamp(start, size);
                equal(start, end, if *count_include_pad { last.saturating_sub(first) } else { end - start })
            }
            Means::Nearest | Means::Bilinear { .. } => {
                let (scale, offset) = (self.scale(dtype, [size, places]), self.offset());
                let is_nearest = *self == Means::Nearest;
                let position = match is_nearest && dtype != DType::F64 && size != places {
                    true => f64::from(at as f32 * scale as f32),
                    false => ((at as f64 + offset) * scale - offset).max(0.0),
                };
                let start = (position as usize).min(size - 1);
                let share = position - start as f64;
                // The weights of the last element and of one beyond it are added.
                if is_nearest || share == 0.0 || start + 1 == size {
                    return equal(start, start + 1, 1);
                }
                Seen { start, end: start + 2, counted: 1, weights: [1.0 - share, share] }
            }
        }
    }

    /// How far apart along an axis neighbouring places of a resized image are.
    pub(crate) fn scale(&self, dtype: DType, [size, places]: [usize; 2]) -> f64 {
        match self {
            Means::Bilinear { align_corners: true } => {
                (size - 1) as f64 / places.saturating_sub(1).max(1) as f64
            }
            Means::Nearest if dtype != DType::F64 => f64::from(size as f32 / places as f32),
            _ => size as f64 / places as f64,
        }
    }

    /// Where the centre of a pixel is, from where positions are counted.
    pub(crate) fn offset(&self) -> f64 {
        if let Means::Bilinear { align_corners: false } = self { 0.5 } else { 0.0 }
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
