//! A build without CUDA: the types of the driver's side are one without a value. Every method is as good as absent.

use std::ptr::NonNull;
use std::sync::Arc;

pub(crate) use self::{
    Absent as Captured, Absent as Context, Absent as DriverEvent, Absent as DriverGraph,
    Absent as DriverStream, Absent as FaultWord, Absent as GateWord, Absent as IpcMemory, Absent as Launcher,
    Absent as Staged,
};
use super::{Arg, Grid, Program, Properties, Queue, Source, Target};
use crate::core::Core;
use crate::graph::Node;
use crate::ipc::DRIVER_HANDLE;
use crate::{Device, Error, HeldOutside, KernelRecord, MemoryDriver, Moment, Priority, Result, StreamId};

#[derive(Debug)]
pub(crate) enum Absent {}

pub(crate) type Updated<'a> = Absent;

macro_rules! absent {
    ($([$($qualifier:ident)+] $method:ident($($argument:ty),*) -> $returned:ty;)*) => {
        impl Absent {
            $(pub(crate) $($qualifier)+ $method(&self, $(_: $argument),*) -> $returned {
                match *self {}
            })*
        }
    };
}

absent! {
    [fn] bind() -> Result<()>;
    // A context.
    [fn] describe() -> String;
    [fn] held() -> HeldOutside;
    [fn] trim_pinned() -> bool;
    [fn] allocate_pinned(usize) -> Result<NonNull<u8>>;
    [unsafe fn] free_pinned(NonNull<u8>) -> ();
    [fn] uuid() -> Result<[u8; 16]>;
    [fn] load(&[&'static Program]) -> Result<()>;
    [fn] stream(&Arc<FaultWord>, Priority, Option<Arc<Launcher>>) -> Result<DriverStream>;
    [fn] fault_word() -> Result<Arc<FaultWord>>;
    [fn] launcher(&Arc<FaultWord>, bool) -> Result<Arc<Launcher>>;
    [fn] open_event([u8; DRIVER_HANDLE]) -> Result<DriverEvent>;
    [fn] allocate_shared(usize) -> Result<IpcMemory>;
    [fn] open_shared([u8; DRIVER_HANDLE], usize) -> Result<IpcMemory>;
    // A stream.
    [fn] launch_here(bool) -> ();
    [fn] properties() -> &Properties;
    [fn] set_launched(u64) -> ();
    [fn] wait_for(&DriverStream, u64) -> Result<(u64, bool)>;
    [fn] wait_event(&DriverEvent) -> Result<()>;
    [fn] host_wait(u64) -> Result<u64>;
    [fn] poll(u64) -> Result<Option<u64>>;
    [fn] record_timed() -> Result<DriverEvent>;
    [fn] host_call(Box<dyn FnOnce() + Send>) -> Result<()>;
    [unsafe fn] upload(*mut u8, &[u8], Moment) -> Result<Staged>;
    [unsafe fn] download(*const u8, usize, Moment) -> Result<Staged>;
    [fn] gate(Moment, bool) -> Result<GateWord>;
    [unsafe fn] kernel(
        (&'static str, StreamId), &'static Program, &str, Grid, &[Arg<'_>], Target<'_>
    ) -> Result<()>;
    [fn] describe_kernel(&'static Program, &str, Grid) -> Result<KernelRecord>;
    [unsafe fn] write((&'static str, StreamId), *mut u8, Source, usize) -> Result<()>;
    [unsafe fn] copy_across(*mut u8, &Context, *const u8, usize) -> Result<()>;
    [unsafe fn] copy_from_pinned(*mut u8, *const u8, usize) -> Result<()>;
    [unsafe fn] copy_to_pinned(*mut u8, *const u8, usize) -> Result<()>;
    [fn] raw() -> *mut std::ffi::c_void;
    [fn] graph(&Arc<Core>, &[Node]) -> Result<DriverGraph>;
    // An event.
    [fn] shared() -> Result<DriverEvent>;
    [fn] is_complete() -> Result<bool>;
    [fn] synchronize() -> Result<()>;
    [fn] elapsed_ms(&DriverEvent) -> Result<f64>;
    [fn] handle() -> Result<[u8; DRIVER_HANDLE]>;
    [fn] check_device(&'static str, &Device) -> Result<()>;
    // All others.
    [unsafe fn] bytes() -> &[u8];
    [fn] is_set() -> bool;
    [fn] take() -> Option<Error>;
    [fn] update(usize, &Node) -> Result<()>;
    [fn] launch(&Queue<'_>) -> Result<()>;
    [fn] keep(Staged) -> ();
    [fn] library(&DriverStream, impl FnOnce(*mut std::ffi::c_void) -> Result<()>) -> Result<()>;
    [fn] beside(&DriverStream, impl FnOnce() -> Result<()>, impl FnOnce() -> Result<()>) -> Result<()>;
    [fn] tf32() -> bool;
    [fn] handles() -> Result<[[u8; DRIVER_HANDLE]; 2]>;
    [unsafe fn] copy_shared(&DriverStream, *mut u8, usize, bool) -> Result<()>;
}

pub(crate) fn in_host_function() -> bool {
    false
}

impl Absent {
    pub(crate) const BYTES: usize = 0;

    pub(crate) fn open(_: usize) -> Result<Arc<Context>> {
        Err(Error::no_cuda("this build has no CUDA: it was made without the feature `cuda`"))
    }
}

// SAFETY: there is no value of the type.
unsafe impl MemoryDriver for Absent {
    fn allocate(&self, _: usize) -> Result<NonNull<u8>> {
        match *self {}
    }

    unsafe fn free(&self, _: NonNull<u8>, _: usize) {
        match *self {}
    }
}
