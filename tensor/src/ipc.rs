//! Tensors for other processes of the machine.

use device::{DType, Device, Error, IpcHandle, Result, Stream, shared_copy};

use crate::Tensor;

/// The types' numbers in a handle.
const DTYPES: [DType; 7] =
    [DType::F32, DType::F64, DType::I64, DType::U8, DType::Bool, DType::BF16, DType::F16];

#[derive::located]
impl Tensor {
    /// A handle by which another process of the machine gets the elements as they are at this point of the current stream,
    /// by [`Tensor::from_ipc_handle`]: they are copied to memory of their own, in whole 2 MiB. Keep the handle until that
    /// process has its tensor; the memory goes with it. The host waits for nothing, but where the handle drops before the copy was made.
    ///
    /// ```no_run
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::from_slice(&[1.0_f32, 2.0], &[2], &Device::cuda(0)?)?;
    /// let handle = x.ipc_handle()?;
    /// // Send `handle.as_bytes()` to the other process, which calls `Tensor::from_ipc_handle(bytes, &Device::cuda(0)?)`
    /// // and says when it has returned.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for a tensor that is not on a CUDA device, `Captured` within a captured step, `OutOfMemory`, `Driver`
    /// where the system does not let processes share memory.
    pub fn ipc_handle(&self) -> Result<IpcHandle> {
        let x = self.contiguous()?;
        let number = DTYPES.iter().position(|&dtype| dtype == x.dtype);
        let number =
            number.ok_or(Error::dtype_unsupported("ipc_handle", x.dtype, "floats, i64, u8 and bool"))?;
        let sizes = std::iter::once(number).chain(x.shape().iter().copied());
        let note: Vec<u8> = sizes.flat_map(|size| (size as u64).to_le_bytes()).collect();
        let start = x.layout.offset() * x.dtype.size_bytes();
        let range = start..start + x.elements() * x.dtype.size_bytes();
        Stream::with_current(x.device(), |stream| stream.share_copy("ipc_handle", &x.storage, range, &note))
    }

    /// The tensor of another process that the [handle](Tensor::ipc_handle) with these bytes is of, with a storage of its own
    /// on `device`, which is the same GPU. The current stream waits until the other process's has come so far, and
    /// the host for the copy: the other process may drop its handle when this returns.
    ///
    /// # Errors
    /// `InvalidArgument` for a device that is no CUDA device, for bytes that are no tensor's handle, for a handle of this very
    /// process, and for one of another GPU; `Captured` within a captured step; `OutOfMemory`; `Driver` if the handle is gone;
    /// `Async` if a command that led here failed.
    pub fn from_ipc_handle(bytes: &[u8], device: &Device) -> Result<Tensor> {
        const OP: &str = "from_ipc_handle";
        let (len, note) = shared_copy(OP, bytes)?;
        let value = format_args!("{len} bytes and a note of {}", note.len());
        let wrong = || Error::invalid(OP, "handle", "of a tensor", value);
        let (shape, dtype) = read(note, len).ok_or_else(wrong)?;
        Stream::with_current(device, |stream| {
            let tensor = Tensor::empty(&shape, dtype, device)?;
            stream.copy_shared(OP, &tensor.storage, bytes)?;
            Ok(tensor)
        })
    }
}

/// Shape and type of a tensor of `len` bytes.
fn read(note: &[u8], len: usize) -> Option<(Vec<usize>, DType)> {
    let (numbers, rest) = note.as_chunks::<8>();
    let numbers: Option<Vec<usize>> =
        numbers.iter().map(|&number| usize::try_from(u64::from_le_bytes(number)).ok()).collect();
    let (&dtype, shape) = numbers.as_deref()?.split_first()?;
    let dtype = *DTYPES.get(dtype)?;
    let elements = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size))?;
    (rest.is_empty() && elements.checked_mul(dtype.size_bytes())? == len).then(|| (shape.to_vec(), dtype))
}
