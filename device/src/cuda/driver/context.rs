//! A device's primary context, and what its streams share.

use std::any::Any;
use std::ffi::c_char;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::ffi::sys;
use parking_lot::{Mutex, MutexGuard, RwLock};
use rustc_hash::FxHashMap;

use super::call::{address, call, check, no_memory, obtained};
use super::event::{RawEvent, in_host_function};
use super::handles::Handles;
use super::memory::Pages;
use super::module::{Function, Module, WARP_GROUPS, refused};
use super::pinned::PinnedPool;
use super::probe::probe;
use super::{Program, Properties};
use crate::stream::host_is_held;
use crate::{AddressSpace, Error, ErrorKind, HeldOutside, MemoryDriver, Result, foreign, fork};

/// Memory that is no longer used.
pub(crate) enum Freed {
    Device(NonNull<u8>),
    Host(NonNull<u8>),
}

/// How long loading waits for a stream that another thread holds.
const HOLD_TIMEOUT: Duration = Duration::from_secs(5);

/// The primary context of a CUDA device. It stays retained while anything of the device lives.
pub(crate) struct Context {
    pub(crate) raw: sys::CUcontext,
    pub(crate) device: sys::CUdevice,
    pub(super) ordinal: usize,
    name: Box<str>,
    /// Major and minor compute capability.
    pub(crate) capability: (i32, i32),
    pub(crate) properties: Properties,
    /// The driver's least and greatest priority; the greatest is the smallest number.
    pub(crate) priorities: (i32, i32),
    pub(crate) pinned: PinnedPool,
    /// Closed gates of the device's streams, and those of them that a [`Hold`](crate::Hold) closed.
    pub(crate) gates: AtomicUsize,
    pub(crate) holds: AtomicUsize,
    /// Locked while the driver loads or frees, which waits for the device, and while a stream is made to wait for a
    /// [`Hold`](crate::Hold).
    pub(crate) loads: Mutex<()>,
    /// Memory to free once no stream is held.
    freed: Mutex<Vec<Freed>>,
    /// Addresses that get their memory later, if the device has such.
    pub(super) pages: Option<Pages>,
    /// Events that can be timed, between two uses.
    pub(crate) events: Mutex<Vec<RawEvent>>,
    /// Handles of libraries.
    handles: Handles,
    /// Device memory that creating them took.
    library_bytes: AtomicUsize,
    modules: RwLock<FxHashMap<usize, Module>>,
    /// One program is compiled, and one handle created, at a time.
    loading: Mutex<()>,
}

// SAFETY: the driver's handles belong to no thread; all else is `Send` by itself.
unsafe impl Send for Context {}
// SAFETY: the driver takes calls with one handle from several threads at once; all else is behind locks or atomic.
unsafe impl Sync for Context {}

impl Context {
    /// The context of a device; the same one for all who hold it at the same time.
    pub(crate) fn open(ordinal: usize) -> Result<Arc<Context>> {
        static OPEN: Mutex<Vec<Weak<Context>>> = Mutex::new(Vec::new());
        fork::watch();
        fork::check("Device::cuda")?;
        let mut open = OPEN.lock();
        if let Some(context) =
            open.iter().filter_map(Weak::upgrade).find(|context| context.ordinal == ordinal)
        {
            return Ok(context);
        }
        let context = Arc::new(Context::retain(ordinal)?);
        open.retain(|weak| weak.strong_count() > 0);
        open.push(Arc::downgrade(&context));
        Ok(context)
    }

    fn retain(ordinal: usize) -> Result<Context> {
        let device = probe(ordinal)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the device exists; the driver writes a handle to the address.
        unsafe { call!(cuDevicePrimaryCtxRetain(&mut raw, device))? };
        let mut context = Context {
            raw,
            device,
            ordinal,
            name: "".into(),
            capability: (0, 0),
            properties: Properties::default(),
            priorities: (0, 0),
            pinned: PinnedPool::default(),
            gates: AtomicUsize::new(0),
            holds: AtomicUsize::new(0),
            loads: Mutex::default(),
            freed: Mutex::default(),
            pages: Pages::of(device),
            events: Mutex::default(),
            handles: Handles::default(),
            library_bytes: AtomicUsize::new(0),
            modules: RwLock::default(),
            loading: Mutex::new(()),
        };
        context.bind()?;
        context.look_up()?;
        Ok(context)
    }

    fn look_up(&mut self) -> Result<()> {
        use sys::CUdevice_attribute as Attribute;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: the device exists; the driver writes a number to the address.
            unsafe { call!(cuDeviceGetAttribute(&mut value, attribute, self.device)) }.map(|()| value)
        };
        self.capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let count = |of| attribute(of).map(|count| count.max(0) as u32);
        self.properties = Properties {
            multiprocessors: count(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1),
            multiprocessor_threads: count(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
            copy_engines: count(Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)?,
            shared_bytes: count(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            has_tensor_cores: self.capability >= (8, 0),
            has_warp_groups: self.capability == WARP_GROUPS,
        };
        let (mut least, mut greatest) = (0, 0);
        let mut name = [0 as c_char; 128];
        // SAFETY: the context is current; the driver writes within what it is given.
        unsafe {
            call!(cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
            call!(cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, self.device))?;
        }
        self.priorities = (least, greatest);
        let bytes: Vec<u8> = name.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
        self.name = String::from_utf8_lossy(&bytes).into();
        Ok(())
    }

    /// Makes the context current on this thread.
    #[inline]
    pub(crate) fn bind(&self) -> Result<()> {
        fork::check("a call of the CUDA driver")?;
        let mut current = std::ptr::null_mut();
        // SAFETY: the driver is initialised; it writes a handle to the address, and ours is retained.
        unsafe {
            if foreign!(sys::cuCtxGetCurrent(&mut current)) == sys::CUresult::CUDA_SUCCESS
                && current == self.raw
            {
                return Ok(());
            }
            call!(cuCtxSetCurrent(self.raw))
        }
    }

    /// The device's own name, with its architecture and size.
    pub(crate) fn describe(&self) -> String {
        let (major, minor) = self.capability;
        format!("{}, sm_{major}{minor}, {} multiprocessors", self.name, self.properties.multiprocessors)
    }

    /// Obtains pinned host memory, at the same address for host and device; if there is none left, once more without the
    /// blocks that are kept for copies.
    pub(crate) fn allocate_pinned(&self, bytes: usize) -> Result<NonNull<u8>> {
        match self.obtain_pinned(bytes) {
            Err(error) if matches!(error.kind(), ErrorKind::OutOfMemory { .. }) && self.trim_pinned() => {
                self.obtain_pinned(bytes)
            }
            outcome => outcome,
        }
    }

    fn obtain_pinned(&self, bytes: usize) -> Result<NonNull<u8>> {
        self.bind()?;
        self.free_released();
        let mut ptr = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current; the driver writes an address.
        obtained("cuMemHostAlloc", bytes, unsafe { foreign!(sys::cuMemHostAlloc(&mut ptr, bytes, flags)) })?;
        NonNull::new(ptr.cast()).ok_or_else(|| no_memory(bytes))
    }

    /// Gives the driver back the blocks for copies that no command uses any more; whether there were any. None while a
    /// stream is held: the driver may wait for the device, and whoever holds the stream may be who asks.
    pub(crate) fn trim_pinned(&self) -> bool {
        if in_host_function() || self.gates.load(Ordering::Acquire) > 0 || self.bind().is_err() {
            return false;
        }
        let idle = self.pinned.take_idle();
        for &block in &idle {
            // SAFETY: it comes from `allocate_pinned`, and its last command has run.
            unsafe { self.free_pinned(block) };
        }
        !idle.is_empty()
    }

    /// Returns pinned host memory.
    ///
    /// # Safety
    /// It came from [`allocate_pinned`](Self::allocate_pinned), is returned once, and nothing uses it.
    pub(crate) unsafe fn free_pinned(&self, ptr: NonNull<u8>) {
        // SAFETY: the caller's promise.
        unsafe { self.release(Freed::Host(ptr)) }
    }

    /// Frees memory, now or once no stream is held: `cuMemFree` and `cuMemFreeHost` wait for all work of the device.
    ///
    /// # Safety
    /// The memory came from the driver, is freed once, and nothing uses it.
    pub(crate) unsafe fn release(&self, freed: Freed) {
        self.freed.lock().push(freed);
        self.free_released();
    }

    /// Frees what was released, unless a stream is held.
    pub(crate) fn free_released(&self) {
        if self.bind().is_err() {
            return;
        }
        // While another thread loads, which may take long, the memory is left to the next release.
        let Some(_quiet) = self.loads.try_lock().filter(|_| !self.is_held()) else { return };
        let all = std::mem::take(&mut *self.freed.lock());
        for freed in all {
            // SAFETY: `release` was promised that each came from the driver, is freed once and unused.
            unsafe {
                match freed {
                    Freed::Device(ptr) => foreign!(sys::cuMemFree_v2(address(ptr.as_ptr()))),
                    Freed::Host(ptr) => foreign!(sys::cuMemFreeHost(ptr.as_ptr().cast())),
                }
            };
        }
    }

    /// Whether a stream is held that work of this device comes after.
    fn is_held(&self) -> bool {
        let holds = self.holds.load(Ordering::Acquire);
        // The other gates wait for streams of the host, which may be held in turn.
        holds > 0 || (self.gates.load(Ordering::Acquire) > holds && host_is_held())
    }

    /// The kernel with this name; its program is compiled first, or read from disk, if this is its first use. The context is
    /// current.
    pub(super) fn function(&self, program: &'static Program, name: &str) -> Result<Function> {
        let look_up =
            || Some(self.modules.read().get(&key(program))?.function(name, self.properties.shared_bytes));
        if let Some(found) = look_up() {
            return found;
        }
        self.load(&[program])?;
        // It is there: modules go with the context.
        look_up().unwrap_or_else(|| Err(refused(program.name, "the program is not loaded")))
    }

    /// Loads those of the programs that are not.
    pub(crate) fn load(&self, programs: &[&'static Program]) -> Result<()> {
        let _one = self.loading.lock();
        let mut missing = programs.to_vec();
        missing.retain(|program| !self.modules.read().contains_key(&key(program)));
        let Some(first) = missing.first() else { return Ok(()) };
        let compiled = Module::compile(&missing, self.capability)?;
        let _quiet = self.quiet(first.name)?;
        let loaded = Module::load(compiled)?;
        let named = missing.into_iter().map(key).zip(loaded);
        self.modules.write().extend(named);
        Ok(())
    }

    /// See [`Queue::handle`](super::Queue::handle); the memory that the handle takes is counted.
    pub(crate) fn handle<T: Any + Send + Sync>(
        &self,
        library: &str,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<&T> {
        if let Some(made) = self.handles.get() {
            return Ok(made);
        }
        let _one = self.loading.lock();
        if let Some(made) = self.handles.get() {
            return Ok(made);
        }
        let _quiet = self.quiet(library)?;
        let before = self.free_bytes();
        let made = make()?;
        self.library_bytes.fetch_add(before.saturating_sub(self.free_bytes()), Ordering::Relaxed);
        Ok(self.handles.add(made))
    }

    /// Memory of the device that nobody has, 0 if the driver does not say; the context is current.
    fn free_bytes(&self) -> usize {
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current; the driver writes two numbers.
        let code = unsafe { foreign!(sys::cuMemGetInfo_v2(&mut free, &mut total)) };
        if check("cuMemGetInfo", code).is_ok() { free } else { 0 }
    }

    /// What it holds outside the memory pools of its devices.
    pub(crate) fn held(&self) -> HeldOutside {
        HeldOutside {
            pinned_bytes: self.pinned.bytes(),
            code_bytes: self.modules.read().values().map(|module| module.bytes).sum(),
            library_bytes: self.library_bytes.load(Ordering::Relaxed),
        }
    }

    /// Waits until no stream is held that work of this device comes after, and lets none be held while the guard lives. The
    /// driver loads modules and libraries' kernels only once the device is idle, so loading `what` meanwhile would wait for the
    /// hold inside the driver, without end if this thread is the one that will drop it.
    ///
    /// # Errors
    /// `StreamHeld` after [`HOLD_TIMEOUT`].
    pub(crate) fn quiet(&self, what: &str) -> Result<MutexGuard<'_, ()>> {
        let deadline = Instant::now() + HOLD_TIMEOUT;
        loop {
            let quiet = self.loads.lock();
            if !self.is_held() {
                return Ok(quiet);
            }
            drop(quiet);
            if Instant::now() > deadline {
                return Err(Error::new(ErrorKind::StreamHeld { what: what.into() }));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What a program is known by.
fn key(program: &'static Program) -> usize {
    std::ptr::from_ref(program) as usize
}

impl Drop for Context {
    fn drop(&mut self) {
        // What fails here has nobody left to tell.
        let bound = self.bind().is_ok();
        if bound {
            // What the driver would not take back before.
            self.pages = None;
            self.modules.get_mut().clear();
            self.events.get_mut().clear();
            drop(std::mem::take(&mut self.handles));
            self.free_released();
            for block in self.pinned.drain() {
                // SAFETY: they come from `allocate_pinned`, and no stream is left to use them.
                unsafe { self.free_pinned(block) };
            }
        }
        // SAFETY: retained once by this context, and nothing of it is used any more.
        unsafe { foreign!(sys::cuDevicePrimaryCtxRelease_v2(self.device)) };
    }
}

// SAFETY: the driver returns device memory of that size, aligned to 256 bytes, which is nobody else's until it is freed.
unsafe impl MemoryDriver for Context {
    fn allocate(&self, bytes: usize) -> Result<NonNull<u8>> {
        self.bind()?;
        self.free_released();
        let mut ptr = 0;
        // SAFETY: the context is current; the driver writes an address.
        obtained("cuMemAlloc", bytes, unsafe { foreign!(sys::cuMemAlloc_v2(&mut ptr, bytes)) })?;
        NonNull::new(ptr as *mut u8).ok_or_else(|| no_memory(bytes))
    }

    unsafe fn free(&self, ptr: NonNull<u8>, _bytes: usize) {
        // SAFETY: the caller says that `ptr` came from `allocate` and that nothing uses it.
        unsafe { self.release(Freed::Device(ptr)) }
    }

    fn alignment(&self) -> usize {
        256
    }

    fn address_space(&self) -> Option<&dyn AddressSpace> {
        self.pages.as_ref().map(|pages| pages as &dyn AddressSpace)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({}: {})", self.ordinal, self.describe())
    }
}
