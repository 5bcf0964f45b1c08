//! Between host and device, between devices, between element types.

use device::{DType, Device, Element, Error, Result, from_bytes};
use kernels::Layout;

use crate::Tensor;
use crate::bytes::read;
use crate::check::has_dtype;

impl Tensor {
    /// The elements in row-major order; waits for the last write of this tensor's storage, for nothing else.
    ///
    /// # Errors
    /// `DTypeMismatch` unless `T` is the tensor's type; `Async` if a command that led here failed.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        has_dtype("to_vec", self, T::DTYPE)?;
        read(&self.contiguous()?, from_bytes)
    }

    /// The only element; waits as [`Tensor::to_vec`].
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// assert_eq!(Tensor::scalar(2.5_f32, &Device::cpu())?.item::<f32>()?, 2.5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::to_vec`], and `InvalidArgument` unless there is exactly one element.
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        const OP: &str = "item";
        has_dtype(OP, self, T::DTYPE)?;
        let first = if self.elements() == 1 { read(self, from_bytes::<T>)?.first().copied() } else { None };
        first.ok_or_else(|| {
            Error::invalid(OP, "self", "exactly one element", format_args!("shape {:?}", self.shape()))
        })
    }

    /// The same values in another element type; `self` if it has that type already. Dense tensors keep the order in which
    /// their elements lie.
    ///
    /// Floats become integers by truncation, NaN 0, and what does not fit the nearest that does; integers wrap
    /// around; numbers become bool by `x != 0`.
    ///
    /// # Errors
    /// `OutOfMemory`, or what the launch reports.
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        self.map_to("to_dtype", dtype, kernels::copy)
    }

    /// A contiguous copy with a storage of its own.
    ///
    /// # Errors
    /// `OutOfMemory`, or what the launch reports.
    pub fn copy(&self) -> Result<Tensor> {
        Tensor::produce(self.device(), Layout::contiguous(self.shape()), self.dtype, |stream, out| {
            kernels::copy(stream, self.view(), out)
        })
    }

    /// The same elements on another device; `self` if they are there already.
    ///
    /// Where one device [copies from](Device::copies_from) the other, as CUDA devices do, this is a command of the target's
    /// current stream, and the host waits for nothing. Otherwise it waits for the last write of this tensor's storage.
    ///
    /// # Errors
    /// `OutOfMemory`; `Async` if a command that led here failed.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if device == self.device() {
            return Ok(self.clone());
        }
        let x = self.contiguous()?;
        if device.copies_from(x.device()) {
            let start = x.layout.offset() * x.dtype.size_bytes();
            return Tensor::produce(device, Layout::contiguous(x.shape()), x.dtype, |stream, out| {
                stream.copy_across("to_device", out.buffer, &x.storage, start)
            });
        }
        // The bytes are kept: a device must not be called from within another's read.
        let bytes = read(&x, <[u8]>::to_vec)?;
        Tensor::from_bytes(&bytes, x.shape(), x.dtype, device)
    }

    /// A fresh tensor with these bytes; the host may reuse them at once.
    pub(crate) fn from_bytes(bytes: &[u8], shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::produce(device, Layout::contiguous(shape), dtype, |stream, out| {
            if bytes.is_empty() { Ok(()) } else { stream.upload("upload", out.buffer, 0, bytes) }
        })
    }
}
