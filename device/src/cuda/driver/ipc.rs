//! Events and memory that other processes open.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use super::ffi::sys;

use super::Context;
use super::call::{address, call};
use super::event::RawEvent;
use super::stream::DriverStream;
use super::timed::DriverEvent;
use crate::ipc::DRIVER_HANDLE;
use crate::{Device, Error, ErrorKind, MemoryDriver, Result, foreign};

/// Memory that other processes open takes whole units of this: what is smaller may share its unit, all of which they would see.
const UNIT: usize = 2 << 20;

/// The driver's handles as bytes.
fn to_bytes(handle: [std::ffi::c_char; DRIVER_HANDLE]) -> [u8; DRIVER_HANDLE] {
    handle.map(|byte| byte as u8)
}

fn from_bytes(bytes: [u8; DRIVER_HANDLE]) -> [std::ffi::c_char; DRIVER_HANDLE] {
    bytes.map(|byte| byte as std::ffi::c_char)
}

impl Context {
    /// What tells the GPU, or the part of one, from all others.
    pub(crate) fn uuid(&self) -> Result<[u8; 16]> {
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: the device exists; the driver writes 16 bytes.
        unsafe { call!(cuDeviceGetUuid_v2(&mut uuid, self.device))? };
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    /// An event of another process.
    pub(crate) fn open_event(self: &Arc<Self>, bytes: [u8; DRIVER_HANDLE]) -> Result<DriverEvent> {
        self.bind()?;
        let (mut raw, handle) = (std::ptr::null_mut(), sys::CUipcEventHandle { reserved: from_bytes(bytes) });
        // SAFETY: the context is current; the driver writes a handle, and looks at the bytes before it believes them.
        unsafe { call!(cuIpcOpenEventHandle(&mut raw, handle))? };
        Ok(DriverEvent::shareable(RawEvent(raw), self))
    }

    /// Memory of this process that another one can open.
    pub(crate) fn allocate_shared(self: &Arc<Self>, len: usize) -> Result<IpcMemory> {
        let used = DriverEvent::new(self)?;
        let ptr = self.allocate(rounded(len))?;
        Ok(IpcMemory { ptr, len, opened: false, used })
    }

    /// Memory of another process.
    pub(crate) fn open_shared(self: &Arc<Self>, bytes: [u8; DRIVER_HANDLE], len: usize) -> Result<IpcMemory> {
        let used = DriverEvent::new(self)?;
        let (mut ptr, handle) = (0, sys::CUipcMemHandle { reserved: from_bytes(bytes) });
        let flags = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        // SAFETY: the context is current; the driver writes an address, and looks at the bytes before it believes them.
        unsafe { call!(cuIpcOpenMemHandle_v2(&mut ptr, handle, flags))? };
        let ptr = NonNull::new(ptr as *mut u8).ok_or_else(|| super::call::no_memory(len))?;
        let memory = IpcMemory { ptr, len, opened: true, used };
        memory.check_len().map(|()| memory)
    }
}

impl DriverEvent {
    fn shareable(event: RawEvent, context: &Arc<Context>) -> DriverEvent {
        DriverEvent { event: ManuallyDrop::new(event), context: Arc::clone(context), is_timed: false }
    }

    /// One that other processes can open, not recorded yet.
    fn new(context: &Arc<Context>) -> Result<DriverEvent> {
        context.bind()?;
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32
            | sys::CUevent_flags_enum::CU_EVENT_INTERPROCESS as u32;
        Ok(DriverEvent::shareable(RawEvent::new(flags)?, context))
    }

    pub(crate) fn handle(&self) -> Result<[u8; DRIVER_HANDLE]> {
        self.context.bind()?;
        let mut handle = sys::CUipcEventHandle { reserved: [0; DRIVER_HANDLE] };
        // SAFETY: the context is current, the event is live, and the driver writes 64 bytes.
        unsafe { call!(cuIpcGetEventHandle(&mut handle, self.event.0))? };
        Ok(to_bytes(handle.reserved))
    }

    pub(crate) fn check_device(&self, op: &'static str, device: &Device) -> Result<()> {
        let same = device.core().cuda().is_some_and(|cuda| Arc::ptr_eq(&cuda.context, &self.context));
        if same {
            return Ok(());
        }
        let lhs = format!("cuda:{}", self.context.ordinal).into();
        Err(Error::new(ErrorKind::DeviceMismatch {
            op,
            operand: "handle",
            lhs,
            rhs: device.to_string().into(),
        }))
    }

    /// An event for other processes that comes when this one has.
    pub(crate) fn shared(&self) -> Result<DriverEvent> {
        let shared = DriverEvent::new(&self.context)?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current, and all handles are live. A stream that is destroyed still runs what it was given.
        unsafe {
            call!(cuStreamCreate(&mut stream, flags))?;
            let waits = call!(cuStreamWaitEvent(stream, self.event.0, 0));
            let recorded = waits.and_then(|()| call!(cuEventRecord(shared.event.0, stream)));
            foreign!(sys::cuStreamDestroy_v2(stream));
            recorded.map(|()| shared)
        }
    }
}

/// Memory that two processes have.
pub(crate) struct IpcMemory {
    ptr: NonNull<u8>,
    len: usize,
    /// Whether it is another process's.
    opened: bool,
    /// Comes after its only use here.
    used: DriverEvent,
}

// SAFETY: the address is only followed by launched commands, and the driver frees it on any thread.
unsafe impl Send for IpcMemory {}
// SAFETY: nothing changes it through a shared reference.
unsafe impl Sync for IpcMemory {}

impl IpcMemory {
    /// That the memory has the length that the handle says.
    fn check_len(&self) -> Result<()> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: the context is current; the driver writes an address and a size.
        unsafe { call!(cuMemGetAddressRange_v2(&mut base, &mut bytes, address(self.ptr.as_ptr()))) }?;
        let fits = base == address(self.ptr.as_ptr()) && self.len <= bytes;
        let value = format_args!("{} of {bytes} bytes", self.len);
        Error::require(fits, "from_ipc_handle", "handle", "no longer than its memory", value)
    }

    /// The handles of the memory and of the event that comes after its use.
    pub(crate) fn handles(&self) -> Result<[[u8; DRIVER_HANDLE]; 2]> {
        let event = self.used.handle()?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; DRIVER_HANDLE] };
        let ptr = address(self.ptr.as_ptr());
        // SAFETY: the context is current, the memory is live, and the driver writes 64 bytes.
        unsafe { call!(cuIpcGetMemHandle(&mut handle, ptr))? };
        Ok([to_bytes(handle.reserved), event])
    }

    /// Enqueues its one use: a copy between it and `bytes` bytes of a buffer, to it if `fill`.
    ///
    /// # Safety
    /// The bytes are inside the buffer, which the stream's newest command uses, and no more than this memory has. The device is
    /// current.
    pub(crate) unsafe fn copy_shared(
        &self,
        stream: &DriverStream,
        buffer: *mut u8,
        bytes: usize,
        fill: bool,
    ) -> Result<()> {
        let own = self.ptr.as_ptr();
        let (to, from) = if fill { (own, buffer) } else { (buffer, own) };
        let raw = stream.raw();
        // SAFETY: the caller answers for the ranges, and nobody else uses this memory meanwhile. The context is current, and the
        // handles are live.
        unsafe {
            if bytes > 0 {
                call!(cuMemcpyDtoDAsync_v2(address(to), address(from), bytes, raw))?;
            }
            call!(cuEventRecord(self.used.event.0, raw)).inspect_err(|_| {
                // Nothing else would say when the memory may go.
                foreign!(sys::cuStreamSynchronize(raw));
            })
        }
    }
}

fn rounded(len: usize) -> usize {
    len.max(1).checked_next_multiple_of(UNIT).unwrap_or(len)
}

impl Drop for IpcMemory {
    fn drop(&mut self) {
        // What fails here has nobody left to tell. Memory whose use is not known to have run stays.
        if self.used.synchronize().is_err() {
            return;
        }
        // SAFETY: it came from `open` or from `allocate` with these bytes, is returned once, and its use has run.
        unsafe {
            if self.opened {
                foreign!(sys::cuIpcCloseMemHandle(address(self.ptr.as_ptr())));
            } else {
                self.used.context.free(self.ptr, rounded(self.len));
            }
        }
    }
}
