//! Handles by which other processes of the machine open a CUDA device's events, and copies of its memory.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::cuda::{Context, DriverEvent, IpcMemory};
use crate::{Buffer, Device, Error, Event, Result, Stream, Use};

/// What another process of the machine opens an event or a copy of device memory by: bytes to be sent there, whichever way.
///
/// Whoever made the handle keeps it until the other process has no more need of it: the event, or the copied memory, goes with
/// it.
pub struct IpcHandle {
    bytes: Vec<u8>,
    // What goes with it.
    _event: Option<DriverEvent>,
    _memory: Option<IpcMemory>,
}

impl IpcHandle {
    /// What to send.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

debug_fields!(IpcHandle {});

/// An event that another process recorded.
#[derive(Clone)]
pub struct IpcEvent(Arc<DriverEvent>);

#[derive::located]
impl IpcEvent {
    /// Opens what [`Event::ipc_handle`] of another process made, on the same GPU.
    ///
    /// # Errors
    /// `InvalidArgument` for a device that is no CUDA device, bytes that are no event's handle, one of this very
    /// process, or one of another GPU; `Driver`.
    pub fn from_ipc_handle(bytes: &[u8], device: &Device) -> Result<IpcEvent> {
        let parsed = Parsed::of("from_ipc_handle", bytes, device)?;
        if parsed.memory.is_some() {
            return Err(malformed("from_ipc_handle", bytes));
        }
        cuda_context("from_ipc_handle", device)?.open_event(parsed.event).map(Arc::new).map(IpcEvent)
    }

    /// Whether the other process's stream has passed the event. Does not block.
    ///
    /// # Errors
    /// `Driver`.
    pub fn is_complete(&self) -> Result<bool> {
        self.0.is_complete()
    }

    /// Blocks until the other process's stream has passed the event.
    ///
    /// # Errors
    /// `Driver`.
    pub fn synchronize(&self) -> Result<()> {
        self.0.synchronize()
    }
}

debug_fields!(IpcEvent {});

#[derive::located]
impl Event {
    /// A handle by which another process waits for this event, see [`IpcEvent::from_ipc_handle`]. Keep it until that
    /// process has waited. The host waits for nothing.
    ///
    /// # Errors
    /// `InvalidArgument` for an event that is no CUDA device's, `Captured` within a captured step,
    /// `Driver`.
    pub fn ipc_handle(&self) -> Result<IpcHandle> {
        const OP: &str = "ipc_handle";
        let device = self.0.device();
        device.0.not_captured(OP, "nothing has run that another process could wait for")?;
        let Some(timed) = &self.0.timed else {
            return Err(Error::invalid(OP, "self", "an event of a CUDA device", format_args!("{self:?}")));
        };
        let event = timed.shared()?;
        let bytes = write(cuda_context(OP, &device)?, event.handle()?, None, &[])?;
        Ok(IpcHandle { bytes, _event: Some(event), _memory: None })
    }
}

#[derive::located]
impl Stream {
    /// Makes later commands of this stream come after another process's event. Does not block the host.
    ///
    /// # Errors
    /// `DeviceMismatch` for an event that was opened on another device, `Captured` within a captured
    /// step, `Driver`.
    pub fn wait_ipc(&self, event: &IpcEvent) -> Result<()> {
        const OP: &str = "wait_ipc";
        self.not_captured(OP, "another process's event is waited for once")?;
        event.0.check_device(OP, self.device())?;
        self.launch_driver(OP, &[], true, |driver| driver.wait_event(&event.0))
    }

    /// A handle of what these bytes of `buffer` are at this point of the stream: they are copied to memory of their own,
    /// in whole 2 MiB, which goes with the handle. `note` is any word to who opens it. The host waits for nothing; dropping the handle
    /// waits for the copy.
    ///
    /// # Errors
    /// `InvalidArgument` on a device that is no CUDA device, `Captured` within a captured step,
    /// `OutOfMemory`, `Driver`.
    pub fn share_copy(
        &self,
        op: &'static str,
        buffer: &Buffer,
        range: Range<usize>,
        note: &[u8],
    ) -> Result<IpcHandle> {
        self.not_captured(op, "another process opens a handle once")?;
        in_bounds(op, buffer, &range)?;
        let context = cuda_context(op, self.device())?;
        let memory = self.core().with_room(|| context.allocate_shared(range.len()))?;
        let [handle, event] = memory.handles()?;
        let bytes = write(context, event, Some((handle, range.len())), note)?;
        let from = buffer.ptr().wrapping_add(range.start);
        self.launch_driver(op, &[Use::read(buffer)], false, |driver| {
            // SAFETY: the range is inside the buffer, and the memory was allocated for it.
            unsafe { memory.copy_shared(driver, from, range.len(), true) }
        })?;
        Ok(IpcHandle { bytes, _event: None, _memory: Some(memory) })
    }

    /// Overwrites the start of `buffer` with what another process [shared](Self::share_copy), once that process's stream has come
    /// so far. Blocks until that is done: the other process may drop its handle then.
    ///
    /// # Errors
    /// `InvalidArgument` as for [`IpcEvent::from_ipc_handle`] and if `buffer` is too small, `Captured` within a captured step,
    /// `Driver`, `Async` with the device's first failed command not reported yet.
    pub fn copy_shared(&self, op: &'static str, buffer: &Buffer, handle: &[u8]) -> Result<()> {
        self.not_captured(op, "another process's memory is copied once")?;
        let parsed = Parsed::of(op, handle, self.device())?;
        let Some((memory, len)) = parsed.memory else { return Err(malformed(op, handle)) };
        in_bounds(op, buffer, &(0..len))?;
        let context = cuda_context(op, self.device())?;
        let (event, memory) = (context.open_event(parsed.event)?, context.open_shared(memory, len)?);
        self.launch_driver(op, &[Use::write(buffer)], true, |driver| {
            driver.wait_event(&event)?;
            // SAFETY: the buffer and the other process's memory were found to be that long.
            unsafe { memory.copy_shared(driver, buffer.ptr(), len, false) }
        })?;
        // Closing waits for the copy anyway, and the other process may free the memory once this returns.
        self.synchronize()
    }
}

/// How many bytes another process [shared](Stream::share_copy), and its note.
///
/// # Errors
/// `InvalidArgument` for bytes that are no such handle.
pub fn shared_copy<'a>(op: &'static str, handle: &'a [u8]) -> Result<(usize, &'a [u8])> {
    let parsed = Parsed::read(handle).ok_or_else(|| malformed(op, handle))?;
    let (_, len) = parsed.memory.ok_or_else(|| malformed(op, handle))?;
    Ok((len, parsed.note))
}

fn in_bounds(op: &'static str, buffer: &Buffer, range: &Range<usize>) -> Result<()> {
    let is_inside = range.start <= range.end && buffer.has_range(range.start, range.len());
    let value = format_args!("{range:?} of {}", buffer.len_bytes());
    Error::require(is_inside, op, "range", "inside the buffer", value)
}

fn cuda_context<'a>(op: &'static str, device: &'a Device) -> Result<&'a Arc<Context>> {
    let cuda = device.core().cuda();
    cuda.map(|cuda| &cuda.context).ok_or_else(|| Error::invalid(op, "device", "a CUDA device", device))
}

/// The driver's handles are so many bytes.
pub(crate) const DRIVER_HANDLE: usize = 64;
const MAGIC: &[u8; 8] = b"strgipc1";

/// A handle's parts: the word above, the process, its GPU, the event, whether there is memory, its handle and its length, and the
/// note.
struct Parsed<'a> {
    process: u64,
    gpu: [u8; 16],
    event: [u8; DRIVER_HANDLE],
    memory: Option<([u8; DRIVER_HANDLE], usize)>,
    note: &'a [u8],
}

fn write(
    context: &Context,
    event: [u8; DRIVER_HANDLE],
    memory: Option<([u8; DRIVER_HANDLE], usize)>,
    note: &[u8],
) -> Result<Vec<u8>> {
    let (process, gpu, has_memory) =
        (this_process().to_le_bytes(), context.uuid()?, u8::from(memory.is_some()));
    let (handle, len) = memory.unwrap_or(([0; DRIVER_HANDLE], 0));
    Ok([MAGIC, &process[..], &gpu, &event, &[has_memory], &handle, &(len as u64).to_le_bytes(), note]
        .concat())
}

impl<'a> Parsed<'a> {
    fn read(bytes: &'a [u8]) -> Option<Parsed<'a>> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (&process, rest) = rest.split_first_chunk()?;
        let (&gpu, rest) = rest.split_first_chunk()?;
        let (&event, rest) = rest.split_first_chunk()?;
        let (&has_memory, rest) = rest.split_first()?;
        let (&handle, rest) = rest.split_first_chunk()?;
        let (&len, note) = rest.split_first_chunk()?;
        let memory = (has_memory == 1).then_some((handle, usize::try_from(u64::from_le_bytes(len)).ok()?));
        let process = u64::from_le_bytes(process);
        (magic == MAGIC && has_memory <= 1).then_some(Parsed { process, gpu, event, memory, note })
    }

    /// As [`read`](Self::read), for who opens it on `device`.
    fn of(op: &'static str, bytes: &'a [u8], device: &Device) -> Result<Parsed<'a>> {
        let context = cuda_context(op, device)?;
        let parsed = Parsed::read(bytes).ok_or_else(|| malformed(op, bytes))?;
        let (is_foreign, is_of_gpu) = (parsed.process != this_process(), parsed.gpu == context.uuid()?);
        Error::require(is_foreign, op, "handle", "another process's", "one of this process")?;
        Error::require(is_of_gpu, op, "handle", "of the device's GPU", "one of another GPU")?;
        Ok(parsed)
    }
}

fn malformed(op: &'static str, bytes: &[u8]) -> Error {
    Error::invalid(op, "handle", "the bytes of such an `IpcHandle`", format_args!("{} bytes", bytes.len()))
}

/// A number that no other process has; process ids are unique within a container only.
fn this_process() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| RandomState::new().hash_one(std::process::id()))
}
