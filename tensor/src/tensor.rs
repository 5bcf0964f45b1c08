//! The tensor itself: a storage, a layout, an element type.

use std::ops::Range;

use device::{Buffer, DType, Device, Result, Shared, Stream};
use kernels::{Layout, View};

/// An n-dimensional array on a device.
///
/// Cloning is cheap and shares the storage, as views do. Dropping never blocks: the storage returns to the device's
/// memory pool, which reuses it only after its last uses on every stream.
///
/// Every op is a command on the current stream. Ops on BF16 and F16 compute in F32 and round each result once, to
/// nearest even.
///
/// ```
/// use tensor::{DType, Device, Tensor};
///
/// # fn main() -> tensor::Result<()> {
/// let x = Tensor::zeros(&[2, 3], DType::F32, &Device::cpu())?;
/// let row = x.narrow(0, 1, 1)?;
/// assert_eq!((row.shape(), row.same_storage(&x)), (&[1, 3][..], true));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tensor {
    pub(crate) storage: Shared<Buffer>,
    pub(crate) layout: Layout,
    pub(crate) dtype: DType,
}

/// A fresh storage, written by one command through `layout`.
///
/// Returns only the storage; a whole tensor would be moved through every layer up to the caller.
#[inline]
pub(crate) fn fill_storage(
    device: &Device,
    layout: &Layout,
    dtype: DType,
    launch: impl FnOnce(&Stream, View<'_>) -> Result<()>,
) -> Result<Shared<Buffer>> {
    Stream::with_current(device, |stream| {
        let bytes = layout.elements().saturating_mul(dtype.size_bytes());
        let storage = allocator::allocate_shared(stream, bytes)?;
        launch(stream, View { buffer: &storage, dtype, layout })?;
        Ok(storage)
    })
}

impl Tensor {
    /// A fresh tensor, written by one command; `layout` starts at offset 0 and has no gaps.
    #[inline]
    pub(crate) fn produce(
        device: &Device,
        layout: Layout,
        dtype: DType,
        launch: impl FnOnce(&Stream, View<'_>) -> Result<()>,
    ) -> Result<Tensor> {
        let storage = fill_storage(device, &layout, dtype, launch)?;
        Ok(Tensor { storage, layout, dtype })
    }

    /// A fresh contiguous tensor of this one's type and device, written by one command.
    #[inline]
    pub(crate) fn produce_like(
        &self,
        shape: &[usize],
        launch: impl FnOnce(&Stream, View<'_>) -> Result<()>,
    ) -> Result<Tensor> {
        Tensor::produce(self.device(), Layout::contiguous(shape), self.dtype, launch)
    }

    /// Calls `launch` with memory of `bytes` bytes for a command on `stream` to work in; none for 0 bytes.
    #[inline]
    pub(crate) fn with_workspace(
        stream: &Stream,
        bytes: usize,
        launch: impl FnOnce(Option<View<'_>>) -> Result<()>,
    ) -> Result<()> {
        let memory = (bytes > 0).then(|| Tensor::allocate(stream, &[bytes], DType::U8)).transpose()?;
        launch(memory.as_ref().map(Tensor::view))
    }

    /// A fresh contiguous tensor for a command on `stream` to fill.
    #[inline]
    pub(crate) fn allocate(stream: &Stream, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let layout = Layout::contiguous(shape);
        let bytes = layout.elements().saturating_mul(dtype.size_bytes());
        Ok(Tensor { storage: allocator::allocate_shared(stream, bytes)?, layout, dtype })
    }

    /// Where in its storage the bytes of a contiguous tensor are.
    pub(crate) fn byte_range(&self) -> Range<usize> {
        let (start, elements, size) = (self.layout.offset(), self.elements(), self.dtype.size_bytes());
        start * size..(start + elements) * size
    }

    /// The same storage under another layout.
    #[inline]
    pub(crate) fn with_layout(&self, layout: Layout) -> Tensor {
        Tensor { storage: self.storage.clone(), layout, dtype: self.dtype }
    }

    /// The size of each axis.
    #[inline]
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// The step from one element to the next along each axis, in elements; 0 along an expanded axis.
    #[inline]
    pub fn strides(&self) -> &[isize] {
        self.layout.strides()
    }

    /// The type of the elements.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device that holds the elements.
    #[inline]
    pub fn device(&self) -> &Device {
        self.storage.device()
    }

    /// The number of axes.
    #[inline]
    pub fn rank(&self) -> usize {
        self.layout.rank()
    }

    /// The number of elements.
    #[inline]
    pub fn elements(&self) -> usize {
        self.layout.elements()
    }

    /// Whether there are no elements.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.elements() == 0
    }

    /// Whether the elements lie in row-major order without gaps.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// Shape, strides and offset.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The storage that views of this tensor share.
    #[inline]
    pub fn buffer(&self) -> &Buffer {
        &self.storage
    }

    /// The view that kernels take.
    #[inline]
    pub fn view(&self) -> View<'_> {
        View { buffer: &self.storage, dtype: self.dtype, layout: &self.layout }
    }

    /// How often the storage has been written in place, by any of its views.
    #[inline]
    pub fn version(&self) -> u32 {
        self.storage.version()
    }

    /// Whether no other tensor shares the storage, so that a change in place affects nothing else.
    pub fn is_unique(&self) -> bool {
        self.storage.is_unique()
    }

    /// Whether both are views of one storage.
    #[inline]
    pub fn same_storage(&self, other: &Tensor) -> bool {
        self.storage.ptr_eq(&other.storage)
    }
}
