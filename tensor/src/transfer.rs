//! Between host and device, between devices, between element types.

use device::{AtCaller, Capture, DType, Device, Element, Error, Result, Stream, from_bytes, from_bytes_mut};
use kernels::Layout;

use crate::Tensor;
use crate::bytes::read;
use crate::check::{elements_of, wrong_shape};

#[derive::located]
impl Tensor {
    /// The elements in row-major order; waits for the last write of this tensor's storage, for nothing else.
    ///
    /// # Errors
    /// `DTypeMismatch` unless `T` is the tensor's type; `Async` if a command that led here failed.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        T::DTYPE.require("to_vec", "the type of the values", self.dtype())?;
        read(&self.contiguous()?, from_bytes)
    }

    /// The bytes of all elements in row-major order; waits as [`Tensor::to_vec`].
    ///
    /// # Errors
    /// `Async` if a command that led here failed.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        read(&self.contiguous()?, <[u8]>::to_vec)
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
    pub fn item<T: Element>(&self) -> Result<T> {
        const OP: &str = "item";
        T::DTYPE.require(OP, "the type of the values", self.dtype())?;
        let first = if self.elements() == 1 { read(self, from_bytes::<T>)?.first().copied() } else { None };
        first.ok_or_else(|| wrong_shape(OP, "input", "exactly one element", self))
    }

    /// The same values in another element type; `self` if it has that type already. Dense tensors keep the order of
    /// their elements in memory.
    ///
    /// Floats are truncated to integers: NaN becomes 0, and values out of range become the nearest integer of the type.
    /// Integers wrap around. Numbers become bool by `x != 0`.
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
        self.produce_like(self.shape(), |stream, out| kernels::copy(stream, self.view(), out))
    }

    /// The same elements on another device; `self` if they are there already.
    ///
    /// If the device [copies from](Device::copies_from) the other, as CUDA devices do from each other and from pinned
    /// memory, the copy is a command of its current stream, and the host does not wait. The same holds for a copy from
    /// a CUDA device to its [host](Device::host), on the CUDA device's current stream. Otherwise the host waits for the
    /// last write of this tensor's storage.
    ///
    /// # Errors
    /// `OutOfMemory`; `Async` if a command that led here failed.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        self.moved("to_device", device)
    }

    fn moved(&self, op: &'static str, device: &Device) -> Result<Tensor> {
        if device == self.device() {
            return Ok(self.clone());
        }
        let x = self.contiguous()?;
        let copy = Tensor::empty(x.shape(), x.dtype, device)?;
        copy.write_across(op, &x)?;
        Ok(copy)
    }

    /// Copies a tensor of another device into this one, of the same shape and type, both contiguous.
    fn write_across(&self, op: &'static str, src: &Tensor) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let start = self.byte_range().start;
        if !self.device().copies_from(src.device()) {
            // The bytes are kept: a device must not be called from within another's read.
            let bytes = src.to_bytes()?;
            return Stream::with_current(self.device(), |s| s.upload(op, &self.storage, start, &bytes));
        }
        // The CUDA device makes the copy, the target's if both are.
        let device = if self.device().runs_on_host() { src.device() } else { self.device() };
        Stream::with_current(device, |stream| {
            stream.copy_across(op, &self.storage, start, &src.storage, src.byte_range())
        })
    }

    /// Overwrites the elements with those of another device's tensor.
    pub(crate) fn copy_from_afar(&self, op: &'static str, src: &Tensor) -> Result<()> {
        let fits = self.dtype == src.dtype && self.layout.same_shape(&src.layout);
        if !(fits && self.is_contiguous()) {
            return self.copy_(&src.to_device(self.device())?);
        }
        self.write_across(op, &src.contiguous()?)?;
        self.storage.bump_version();
        Ok(())
    }

    /// A tensor in memory of the host that `device` copies from and to beside the host's work, see [`Device::host`]: of
    /// whatever the memory holds. For batches that the host puts together ([`update_`](Self::update_)) and a stream uploads
    /// ([`copy_`](Self::copy_), [`to_device`](Self::to_device)): refilling it waits until the copies have run, and nothing
    /// else. On a CPU it is a tensor like any other.
    ///
    /// ```
    /// # use tensor::{DType, Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let dev = Device::best();
    /// let (staging, x) = (Tensor::pinned(&[3], DType::F32, &dev)?, Tensor::zeros(&[3], DType::F32, &dev)?);
    /// for n in 0..4 {
    ///     staging.update_(|values: &mut [f32]| values.fill(n as f32))?;
    ///     x.copy_(&staging)?;
    /// }
    /// assert_eq!(x.to_vec::<f32>()?, [3.0; 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn pinned(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::empty(shape, dtype, &device.host())
    }

    /// Shows the host the elements, in row-major order, to be changed in place. Waits until every use of the storage that was
    /// launched has run; commands that are launched meanwhile and use it wait until `update` returns, which must not wait
    /// for a device.
    ///
    /// # Errors
    /// `DTypeMismatch` unless `T` is the tensor's type; `InvalidArgument` for a tensor that is not contiguous or not in the
    /// host's memory, see [`pinned`](Self::pinned); `Async` if a command that led here failed; `Captured` within a captured
    /// step.
    pub fn update_<T: Element, R>(&self, update: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        const OP: &str = "update_";
        T::DTYPE.require(OP, "the type of the values", self.dtype())?;
        let strides = format_args!("strides {:?}", self.strides());
        Error::require(self.is_contiguous(), OP, "self", "contiguous", strides)?;
        let range = self.byte_range();
        let elements = |bytes: &mut [u8]| {
            // What a closure that panics has written counts, too.
            self.storage.bump_version();
            // Storages begin where an element of any type may.
            let elements = bytes.get_mut(range).and_then(from_bytes_mut).unwrap_or_default();
            AtCaller::user(|| update(elements))
        };
        self.storage.update(elements)
    }

    /// A fresh tensor whose elements `fill` writes, in row-major order, over whatever the memory holds: in place on a CPU that
    /// has nothing else to do, and in [pinned](Self::pinned) memory for a CUDA device, whose current stream uploads it.
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::from_fill(&[2, 2], &Device::best(), |values: &mut [u8]| {
    ///     values.copy_from_slice(&[1, 2, 3, 4]);
    ///     Ok(())
    /// })?;
    /// assert_eq!(x.to_vec::<u8>()?, [1, 2, 3, 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// That of `fill`; as [`Tensor::empty`].
    pub fn from_fill<T: Element>(
        shape: &[usize],
        device: &Device,
        fill: impl FnOnce(&mut [T]) -> Result<()>,
    ) -> Result<Tensor> {
        let host = Tensor::pinned(shape, T::DTYPE, device)?;
        if Capture::is_current() || !host.storage.is_idle() {
            // What runs on the stream is not waited for.
            let mut values = vec![T::default(); host.elements()];
            AtCaller::user(|| fill(&mut values))?;
            return Tensor::from_slice(&values, shape, device);
        }
        host.update_(fill)??;
        host.moved("upload", device)
    }

    /// Starts a copy to memory of the host, on the current stream: the host goes on, and reads it when it is there.
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let loss = Tensor::scalar(2.5_f32, &Device::best())?;
    /// let copy = loss.to_host_async()?;
    /// loss.zero_()?; // comes after the copy
    /// assert_eq!(copy.item::<f32>()?, 2.5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `OutOfMemory`, or what the launch reports; `Captured` within a captured step of a CUDA device.
    pub fn to_host_async(&self) -> Result<HostCopy> {
        let on_host = self.device().runs_on_host();
        Ok(HostCopy(if on_host { self.copy()? } else { self.to_device(&self.device().host())? }))
    }

    /// A copy of host bytes, those of elements in row-major order and the host's byte order: the reverse of [`to_bytes`](Self::to_bytes). The bytes are
    /// read before it returns; the copy runs on the current stream.
    ///
    /// ```
    /// # use tensor::{DType, Device, Tensor};
    /// let x = Tensor::from_bytes(&1.0_f32.to_ne_bytes(), &[1], DType::F32, &Device::cpu())?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.0]);
    /// # Ok::<(), tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// `ShapeMismatch` if the shape does not have as many elements; `InvalidArgument` for a truth value other than 0 and 1, and for
    /// a shape beyond all memory; `OutOfMemory`.
    pub fn from_bytes(bytes: &[u8], shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        const OP: &str = "from_bytes";
        let (size, elements) = (dtype.size_bytes(), elements_of(OP, shape)?);
        Error::require_shapes(
            elements * size == bytes.len(),
            OP,
            "bytes",
            &[elements * size],
            &[bytes.len()],
        )?;
        if dtype == DType::Bool
            && let Some(other) = bytes.iter().find(|byte| **byte > 1)
        {
            return Err(Error::invalid(OP, "bytes", "0 or 1 for truth values", other));
        }
        Tensor::produce(device, Layout::contiguous(shape), dtype, |stream, out| {
            if bytes.is_empty() { Ok(()) } else { stream.upload("upload", out.buffer, 0, bytes) }
        })
    }
}

/// A copy of a tensor that is on its way to the host; see [`Tensor::to_host_async`].
#[derive(Clone, Debug)]
pub struct HostCopy(Tensor);

impl HostCopy {
    /// Whether it is there: reading it takes no wait.
    pub fn is_ready(&self) -> bool {
        self.0.device().reached(self.0.storage.last_write())
    }

    /// The elements in row-major order; waits for the copy, and for nothing else.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.0.to_vec()
    }

    /// The only element; waits as [`to_vec`](Self::to_vec).
    ///
    /// # Errors
    /// As [`Tensor::item`].
    pub fn item<T: Element>(&self) -> Result<T> {
        self.0.item()
    }

    /// The copy as a tensor of the [host](Device::host).
    pub fn into_tensor(self) -> Tensor {
        self.0
    }
}
