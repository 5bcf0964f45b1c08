//! A device's primary context, and what its streams share.

use std::ffi::c_char;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use super::ffi::sys;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use super::Program;
use super::blas::{Blas, WORKSPACE};
use super::call::check;
use super::dnn::Dnn;
use super::memory::{Pages, no_memory, obtained};
use super::module::{Function, Module};
use super::pinned::PinnedPool;
use super::probe::probe;
use super::stream::in_host_function;
use crate::{DeviceFacts, Error, MemoryDriver, Result, fork};

/// The one compute capability whose groups of four warps multiply together.
pub(super) const WARP_GROUPS: (i32, i32) = (9, 0);

/// The primary context of a CUDA device. It stays retained while anything of the device lives.
pub(crate) struct Context {
    pub(super) raw: sys::CUcontext,
    pub(super) device: sys::CUdevice,
    pub(super) ordinal: usize,
    name: Box<str>,
    /// Major and minor compute capability.
    pub(super) capability: (i32, i32),
    pub(super) multiprocessors: u32,
    /// Threads for which one of them has room.
    multiprocessor_threads: u32,
    copy_engines: u32,
    /// The most shared memory that a block may have.
    pub(super) shared_bytes: u32,
    /// The driver's least and greatest priority; the greatest is the smallest number.
    pub(super) priorities: (i32, i32),
    pub(super) pinned: PinnedPool,
    /// How many streams are held.
    pub(super) gates: AtomicUsize,
    /// Addresses that get their memory later, if the device has such.
    pub(super) pages: Option<Pages>,
    /// Whether products are wanted: streams are made ready for them from then on.
    pub(super) products: AtomicBool,
    /// Events that can be timed, between two uses.
    pub(super) events: Mutex<Vec<super::stream::RawEvent>>,
    /// Where streams' products work, between two streams.
    pub(super) workspaces: Mutex<Vec<NonNull<u8>>>,
    /// Made for the first product.
    blas: OnceLock<Blas>,
    /// Made for the first convolution, or why there is none.
    dnn: OnceLock<std::result::Result<Dnn, String>>,
    modules: RwLock<FxHashMap<usize, Module>>,
    /// One program is compiled at a time, and the handle for products made by one.
    loading: Mutex<()>,
}

// SAFETY: the driver's handles may be used from any thread; all else is `Send` by itself.
unsafe impl Send for Context {}
// SAFETY: as above.
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
        unsafe { check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut raw, device))? };
        let mut context = Context {
            raw,
            device,
            ordinal,
            name: "".into(),
            capability: (0, 0),
            multiprocessors: 1,
            multiprocessor_threads: 0,
            copy_engines: 0,
            shared_bytes: 0,
            priorities: (0, 0),
            pinned: PinnedPool::default(),
            gates: AtomicUsize::new(0),
            pages: Pages::of(device),
            products: AtomicBool::new(false),
            events: Mutex::default(),
            workspaces: Mutex::default(),
            blas: OnceLock::new(),
            dnn: OnceLock::new(),
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
            let code = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.device) };
            check("cuDeviceGetAttribute", code).map(|()| value)
        };
        self.capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        self.multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1) as u32;
        let threads = Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR;
        self.multiprocessor_threads = attribute(threads)?.max(0) as u32;
        self.copy_engines = attribute(Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)?.max(0) as u32;
        let shared = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        self.shared_bytes = attribute(shared)?.max(0) as u32;
        let (mut least, mut greatest) = (0, 0);
        let mut name = [0 as c_char; 128];
        // SAFETY: the context is current; the driver writes within what it is given.
        unsafe {
            let code = sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest);
            check("cuCtxGetStreamPriorityRange", code)?;
            let code = sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, self.device);
            check("cuDeviceGetName", code)?;
        }
        self.priorities = (least, greatest);
        let bytes: Vec<u8> = name.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
        self.name = String::from_utf8_lossy(&bytes).into();
        Ok(())
    }

    /// Makes the context current on this thread.
    #[inline]
    pub(super) fn bind(&self) -> Result<()> {
        fork::check("a call of the CUDA driver")?;
        let mut current = std::ptr::null_mut();
        // SAFETY: the driver is initialised; it writes a handle to the address, and ours is retained.
        unsafe {
            if sys::cuCtxGetCurrent(&mut current) == sys::CUresult::CUDA_SUCCESS && current == self.raw {
                return Ok(());
            }
            check("cuCtxSetCurrent", sys::cuCtxSetCurrent(self.raw))
        }
    }

    /// What a recording says of the device.
    pub(crate) fn facts(&self, facts: DeviceFacts) -> DeviceFacts {
        DeviceFacts {
            multiprocessors: self.multiprocessors,
            multiprocessor_threads: self.multiprocessor_threads,
            copy_engines: self.copy_engines,
            ..facts
        }
    }

    /// The device's own name, with its architecture and size.
    pub(crate) fn describe(&self) -> String {
        let (major, minor) = self.capability;
        format!("{}, sm_{major}{minor}, {} multiprocessors", self.name, self.multiprocessors)
    }

    /// Obtains pinned host memory, at the same address for host and device; if there is none left, once more without the
    /// blocks that are kept for copies.
    pub(super) fn allocate_pinned(&self, bytes: usize) -> Result<NonNull<u8>> {
        match self.obtain_pinned(bytes) {
            Err(Error::OutOfMemory { .. }) if self.trim_pinned() => self.obtain_pinned(bytes),
            outcome => outcome,
        }
    }

    fn obtain_pinned(&self, bytes: usize) -> Result<NonNull<u8>> {
        self.bind()?;
        let mut ptr = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current; the driver writes an address.
        obtained("cuMemHostAlloc", bytes, unsafe { sys::cuMemHostAlloc(&mut ptr, bytes, flags) })?;
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
    pub(super) unsafe fn free_pinned(&self, ptr: NonNull<u8>) {
        if self.bind().is_ok() {
            // SAFETY: the caller's promise.
            unsafe { sys::cuMemFreeHost(ptr.as_ptr().cast()) };
        }
    }

    /// The kernel with this name; its program is compiled first, or read from disk, if this is its first use. The context is
    /// current.
    pub(super) fn function(&self, program: &'static Program, name: &str) -> Result<Function> {
        let look_up = || Some(self.modules.read().get(&key(program))?.function(name, self.shared_bytes));
        if let Some(found) = look_up() {
            return found;
        }
        self.load(&[program])?;
        // It is there: modules go with the context.
        look_up().unwrap_or_else(|| {
            Err(Error::KernelCompile { name: program.name.into(), log: "the program is not loaded".into() })
        })
    }

    /// Loads those of the programs that are not.
    pub(super) fn load(&self, programs: &[&'static Program]) -> Result<()> {
        let _one = self.loading.lock();
        let mut missing = programs.to_vec();
        missing.retain(|program| !self.modules.read().contains_key(&key(program)));
        if missing.is_empty() {
            return Ok(());
        }
        let loaded = Module::load(&missing, self.capability)?;
        let named = missing.into_iter().map(key).zip(loaded);
        self.modules.write().extend(named);
        Ok(())
    }

    /// What makes products.
    pub(super) fn blas(&self) -> Result<&Blas> {
        self.made_once(&self.blas, Blas::new)
    }

    /// What makes convolutions, or why there is no such library.
    pub(super) fn dnn(&self) -> Result<std::result::Result<&Dnn, &str>> {
        Ok(self.made_once(&self.dnn, Dnn::new)?.as_ref().map_err(String::as_str))
    }

    /// What makes convolutions, in words.
    pub(crate) fn convolutions(&self) -> Result<String> {
        self.bind()?;
        super::dnn::describe(self)
    }

    fn made_once<'a, T>(&self, place: &'a OnceLock<T>, make: impl FnOnce() -> Result<T>) -> Result<&'a T> {
        if let Some(made) = place.get() {
            return Ok(made);
        }
        let _one = self.loading.lock();
        if let Some(made) = place.get() {
            return Ok(made);
        }
        let new = make()?;
        Ok(place.get_or_init(|| new))
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
            drop((self.blas.take(), self.dnn.take()));
            for workspace in std::mem::take(self.workspaces.get_mut()) {
                // SAFETY: a stream had it from `allocate`, and none is left to use it.
                unsafe { self.free(workspace, WORKSPACE) };
            }
            for block in self.pinned.drain() {
                // SAFETY: they come from `allocate_pinned`, and no stream is left to use them.
                unsafe { self.free_pinned(block) };
            }
        }
        // SAFETY: retained once by this context, and nothing of it is used any more.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({}: {})", self.ordinal, self.describe())
    }
}
