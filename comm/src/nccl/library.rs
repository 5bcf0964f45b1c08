//! NCCL's functions, loaded at run time.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library as Object;

use crate::failure::unavailable;
use crate::symbols::symbols;
use crate::{Error, ErrorKind, Result};

/// `ncclComm_t`.
pub(super) type RawComm = *mut c_void;

/// `cudaStream_t`.
pub(super) type RawStream = *mut c_void;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RawId(pub(super) [u8; 128]);

/// `ncclConfig_t` as NCCL 2.18 has it. A library reads as many bytes as `size` says, and takes its own defaults for what a
/// configuration of this version does not have yet.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    /// Calls return at once, and what they began is asked for.
    pub(super) fn non_blocking() -> Config {
        const UNDEFINED: c_int = c_int::MIN;
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: OLDEST,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
        }
    }
}

/// The oldest version that has all that is called: 2.18.0.
const OLDEST: c_uint = 21800;

/// The name under which the library is installed, by packages of systems and by PyPI's.
const NAME: &str = "libnccl.so.2";

/// Whether NCCL uses NVLink's multicast, which hangs on virtual machines that do not have all of it.
const MULTICAST: &str = "NCCL_NVLS_ENABLE";

symbols! {
    /// The functions that are called. Answers and kinds are numbers here: later versions have more of them.
    Library,
    version = "ncclGetVersion": unsafe extern "C" fn(*mut c_int) -> c_int,
    unique_id = "ncclGetUniqueId": unsafe extern "C" fn(*mut RawId) -> c_int,
    init = "ncclCommInitRankConfig": unsafe extern "C" fn(*mut RawComm, c_int, RawId, c_int, *mut Config) -> c_int,
    split = "ncclCommSplit": unsafe extern "C" fn(RawComm, c_int, c_int, *mut RawComm, *mut Config) -> c_int,
    finalize = "ncclCommFinalize": unsafe extern "C" fn(RawComm) -> c_int,
    destroy = "ncclCommDestroy": unsafe extern "C" fn(RawComm) -> c_int,
    abort = "ncclCommAbort": unsafe extern "C" fn(RawComm) -> c_int,
    async_error = "ncclCommGetAsyncError": unsafe extern "C" fn(RawComm, *mut c_int) -> c_int,
    rank = "ncclCommUserRank": unsafe extern "C" fn(RawComm, *mut c_int) -> c_int,
    count = "ncclCommCount": unsafe extern "C" fn(RawComm, *mut c_int) -> c_int,
    last_error = "ncclGetLastError": unsafe extern "C" fn(RawComm) -> *const c_char,
    error_string = "ncclGetErrorString": unsafe extern "C" fn(c_int) -> *const c_char,
    group_start = "ncclGroupStart": unsafe extern "C" fn() -> c_int,
    group_end = "ncclGroupEnd": unsafe extern "C" fn() -> c_int,
    all_reduce = "ncclAllReduce":
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int,
    reduce_scatter = "ncclReduceScatter":
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int,
    all_gather = "ncclAllGather":
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, RawComm, RawStream) -> c_int,
    broadcast = "ncclBroadcast":
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int,
    send = "ncclSend": unsafe extern "C" fn(*const c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int,
    recv = "ncclRecv": unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int,
}

impl Library {
    /// The library.
    ///
    /// # Errors
    /// `CommUnavailable` where there is none, or none that will do.
    pub(super) fn get() -> Result<&'static Library> {
        static FOUND: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
        FOUND.get_or_init(Library::load).as_ref().map_err(unavailable)
    }

    fn load() -> std::result::Result<Library, String> {
        turn_multicast_off();
        // SAFETY: loading runs NCCL's initialisers, which only set up its own state.
        let object = unsafe { Object::new(NAME) }
            .map_err(|error| format!("the library {NAME} was not found: {error}"))?;
        // SAFETY: since version 2.18 the library's functions with these names have these types.
        let library = unsafe { Library::find(Box::leak(Box::new(object))) };
        let library = library.map_err(|name| format!("the library {NAME} has no {name}"))?;
        let mut version = 0;
        // SAFETY: `version` is valid for the call, which writes one number.
        let status = unsafe { (library.version)(&mut version) };
        if status != 0 || version < OLDEST as c_int {
            return Err(format!("the library {NAME} is of version {version}, and {OLDEST} is needed"));
        }
        Ok(library)
    }

    /// The error of a call that did not succeed, in words of `comm`'s where there is one.
    pub(super) fn error(&self, call: &'static str, code: c_int, comm: Option<RawComm>) -> Error {
        let text = |at: *const c_char| {
            // SAFETY: NCCL returns null or a string in static memory that always ends with 0. Only the text of the
            // last error can change, if another thread's call fails meanwhile.
            (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
        };
        // SAFETY: the function accepts any code.
        let kind = text(unsafe { (self.error_string)(code) }).unwrap_or_default();
        // SAFETY: callers pass a communicator only from within `Handle::with`, so it has not been destroyed.
        let details = comm.and_then(|comm| text(unsafe { (self.last_error)(comm) }));
        let name = match details.filter(|details| !details.is_empty()) {
            Some(details) => format!("{kind}: {details}"),
            None => kind,
        };
        Error::new(ErrorKind::Driver { call, code, name: name.into() })
    }
}

/// Leaves multicast off unless the environment says something about it. NCCL reads the variable when its first communicator is
/// made, and has no other switch.
fn turn_multicast_off() {
    if std::env::var_os(MULTICAST).is_none() {
        // SAFETY: this is called once, before the only library that reads the variable is loaded. Rust's own readers of the
        // environment take the standard library's lock. A thread that reads it through C's `getenv` at this very moment is what
        // `Communicator::nccl` asks its callers to rule out; who sets the variable outside never comes here.
        unsafe { std::env::set_var(MULTICAST, "0") };
    }
}
