//! A build without CUDA: the types of the driver's side, none of which has a value. Every method is as good as absent.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Arg, Grid, Program, Properties, Queue, Target};
use crate::core::Core;
use crate::graph::Node;
use crate::ipc::DRIVER_HANDLE;
use crate::{Device, Error, HeldOutside, KernelRecord, MemoryDriver, Moment, Priority, Result, StreamId};

/// Types without values, and methods of theirs.
macro_rules! absent {
    ($($name:ident {
        $([$($qualifier:ident)+] $method:ident($($argument:ty),*) -> $returned:ty;)*
        $(static $constructor:ident($($its:ty),*) -> $made:ty;)*
    })*) => {
        $(
            #[derive(Debug)]
            pub(crate) enum $name {}

            impl $name {
                $(pub(crate) $($qualifier)+ $method(&self, $(_: $argument),*) -> $returned {
                    match *self {}
                })*
                $(pub(crate) fn $constructor(context: &Arc<Context>, $(_: $its),*) -> $made {
                    match **context {}
                })*
            }
        )*
    };
}

absent! {
    Context {
        [fn] describe() -> String;
        [fn] bind() -> Result<()>;
        [fn] held() -> HeldOutside;
        [fn] trim_pinned() -> bool;
        [fn] allocate_pinned(usize) -> Result<NonNull<u8>>;
        [unsafe fn] free_pinned(NonNull<u8>) -> ();
        [fn] uuid() -> Result<[u8; 16]>;
        [fn] load(&[&'static Program]) -> Result<()>;
    }
    DriverStream {
        [fn] launch_here(bool) -> ();
        [fn] properties() -> &Properties;
        [fn] bind() -> Result<()>;
        [fn] set_launched(u64) -> ();
        [fn] wait_for(&DriverStream, u64) -> Result<(u64, bool)>;
        [fn] wait_event(&TimedEvent) -> Result<()>;
        [fn] host_wait(u64) -> Result<u64>;
        [fn] poll(u64) -> Result<Option<u64>>;
        [fn] record_timed() -> Result<TimedEvent>;
        [fn] host_call(Box<dyn FnOnce() + Send>) -> Result<()>;
        [unsafe fn] upload(*mut u8, &[u8], Moment) -> Result<Staged>;
        [unsafe fn] download(*const u8, usize, Moment) -> Result<Staged>;
        [fn] gate(Moment, bool) -> Result<GateWord>;
        [unsafe fn] kernel(
            (&'static str, StreamId), &'static Program, &str, Grid, &[Arg<'_>], Target<'_>
        ) -> Result<()>;
        [fn] describe(&'static Program, &str, Grid) -> Result<KernelRecord>;
        [unsafe fn] copy((&'static str, StreamId), *mut u8, *const u8, usize) -> Result<()>;
        [unsafe fn] copy_across(*mut u8, &Context, *const u8, usize) -> Result<()>;
        [unsafe fn] copy_from_pinned(*mut u8, *const u8, usize) -> Result<()>;
        [unsafe fn] copy_to_pinned(*mut u8, *const u8, usize) -> Result<()>;
        [unsafe fn] fill_bytes((&'static str, StreamId), *mut u8, u8, usize) -> Result<()>;
        [fn] raw() -> *mut std::ffi::c_void;
        static new(&Arc<FaultWord>, Priority, Option<Arc<Launcher>>) -> Result<DriverStream>;
    }
    TimedEvent {
        [fn] shared() -> Result<SharedEvent>;
        [fn] is_complete() -> Result<bool>;
        [fn] synchronize() -> Result<()>;
        [fn] elapsed_ms(&TimedEvent) -> Result<f64>;
    }
    GateWord {}
    Staged {
        [unsafe fn] bytes() -> &[u8];
    }
    FaultWord {
        [fn] is_set() -> bool;
        [fn] take() -> Option<Error>;
        static new() -> Result<Arc<FaultWord>>;
    }
    Launcher {
        static new(&Arc<FaultWord>, bool) -> Result<Arc<Launcher>>;
    }
    DriverGraph {
        [fn] update(usize, &Node) -> Result<()>;
        [fn] launch(&Queue<'_>) -> Result<()>;
    }
    Captured {
        [fn] keep(Staged) -> ();
        [fn] library(&DriverStream, impl FnOnce(*mut std::ffi::c_void) -> Result<()>) -> Result<()>;
        [fn] beside(&DriverStream, impl FnOnce() -> Result<()>, impl FnOnce() -> Result<()>) -> Result<()>;
    }
    SharedEvent {
        [fn] handle() -> Result<[u8; DRIVER_HANDLE]>;
        [fn] gpu() -> Result<[u8; 16]>;
        [fn] check_device(&'static str, &Device) -> Result<()>;
        [fn] delay(&DriverStream) -> Result<()>;
        [fn] is_complete() -> Result<bool>;
        [fn] synchronize() -> Result<()>;
        static open([u8; DRIVER_HANDLE]) -> Result<SharedEvent>;
    }
    IpcMemory {
        [fn] used() -> &Arc<SharedEvent>;
        [fn] handle() -> Result<[u8; DRIVER_HANDLE]>;
        [fn] len() -> usize;
        [unsafe fn] copy(&DriverStream, *mut u8, usize, bool) -> Result<()>;
        static allocate(usize) -> Result<IpcMemory>;
        static open([u8; DRIVER_HANDLE], usize) -> Result<IpcMemory>;
    }
}

pub(crate) struct Updated<'a>(Infallible, PhantomData<&'a ()>);

impl Updated<'_> {
    pub(crate) fn tf32(&self) -> bool {
        match self.0 {}
    }
}

pub(crate) fn in_host_function() -> bool {
    false
}

impl Context {
    pub(crate) fn open(_: usize) -> Result<Arc<Context>> {
        Err(Error::no_cuda("this build has no CUDA: it was made without the feature `cuda`"))
    }
}

impl FaultWord {
    pub(crate) const BYTES: usize = 0;
}

// SAFETY: there is no such value.
unsafe impl MemoryDriver for Context {
    fn allocate(&self, _: usize) -> Result<NonNull<u8>> {
        match *self {}
    }

    unsafe fn free(&self, _: NonNull<u8>, _: usize) {
        match *self {}
    }
}

impl DriverGraph {
    pub(crate) fn new(core: &Arc<Core>, _: &[Node]) -> Result<DriverGraph> {
        match core.cuda().map(|cuda| &*cuda.context) {
            Some(context) => match *context {},
            None => Err(Error::no_cuda("this build has no CUDA")),
        }
    }
}
