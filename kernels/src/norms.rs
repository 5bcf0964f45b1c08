//! How tensors are cut into what is normalized, or what a norm is taken of.

/// Elements of a tensor whose squares are summed by themselves, for the norm over many tensors.
pub(crate) const PART: usize = 2048;

/// How many partial sums the [`total_norm`](crate::total_norm) of tensors with so many elements takes.
pub fn norm_parts(elements: impl IntoIterator<Item = usize>) -> usize {
    elements.into_iter().map(|elements| elements.div_ceil(PART)).sum()
}

/// How a contiguous tensor is cut into rows that are normalized: as `[n, groups, channels, inner]`, with a row for each
/// `(n, group)` and a weight and a bias for each `(group, channel)`.
///
/// Layer norm has one group and no inner elements, group norm has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormRows {
    /// Rows that follow each other with weights of their own.
    pub groups: usize,
    /// Weights of a row.
    pub channels: usize,
    /// Elements next to each other that share a weight.
    pub inner: usize,
}

impl NormRows {
    /// Elements of a row.
    pub fn row(&self) -> usize {
        self.channels.saturating_mul(self.inner)
    }

    /// Weights of all rows.
    pub fn weights(&self) -> usize {
        self.groups.saturating_mul(self.channels)
    }
}

/// Images as channels see them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channels {
    pub(crate) images: usize,
    pub(crate) channels: usize,
    /// Elements of a channel of one image.
    pub(crate) size: usize,
}

impl Channels {
    /// Elements that a channel has in all images.
    pub(crate) fn each(&self) -> usize {
        self.images * self.size
    }

    /// Where the elements of a channel begin in an image.
    #[inline(always)]
    pub(crate) fn start(&self, image: usize, channel: usize) -> usize {
        (image * self.channels + channel) * self.size
    }
}
