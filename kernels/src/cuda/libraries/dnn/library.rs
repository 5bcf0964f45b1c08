//! The library's functions, and descriptions, which are all that its graphs are made of.

use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::sync::OnceLock;

use device::cuda::ffi::dnn;
use device::{Error, ErrorKind};
use dnn::cudnnBackendAttributeName_t as Name;
use dnn::cudnnBackendAttributeType_t as Type;
use dnn::cudnnBackendDescriptorType_t as Kind;
use dnn::{cudnnBackendDescriptor_t as RawDescriptor, cudnnHandle_t as RawHandle};

/// The functions that are called. What the library answers with are numbers here: its later versions have more of them than
/// an enum would know.
pub(super) struct Library {
    pub(super) version: usize,
    pub(super) create: unsafe extern "C" fn(*mut RawHandle) -> i32,
    pub(super) destroy: unsafe extern "C" fn(RawHandle) -> i32,
    pub(super) set_stream: unsafe extern "C" fn(RawHandle, *mut c_void) -> i32,
    create_descriptor: unsafe extern "C" fn(Kind, *mut RawDescriptor) -> i32,
    destroy_descriptor: unsafe extern "C" fn(RawDescriptor) -> i32,
    set_attribute: unsafe extern "C" fn(RawDescriptor, Name, Type, i64, *const c_void) -> i32,
    finalize: unsafe extern "C" fn(RawDescriptor) -> i32,
    get_attribute: unsafe extern "C" fn(RawDescriptor, Name, Type, i64, *mut i64, *mut c_void) -> i32,
    pub(super) execute: unsafe extern "C" fn(RawHandle, RawDescriptor, RawDescriptor) -> i32,
    error_string: unsafe extern "C" fn(i32) -> *const c_char,
}

impl Library {
    /// The library, or why it is not used.
    pub(super) fn find() -> &'static std::result::Result<Library, String> {
        static FOUND: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
        FOUND.get_or_init(Library::load)
    }

    fn load() -> std::result::Result<Library, String> {
        // SAFETY: only looks for the library and loads it.
        if !unsafe { dnn::is_culib_present() } {
            return Err("the library libcudnn was not found".into());
        }
        fn function<F: Copy>(name: &str) -> std::result::Result<F, String> {
            // SAFETY: the library is there, and its functions with these names have these types in each version 9.
            let found = unsafe { dnn::culib().get::<F>(name.as_bytes()) };
            found.map(|symbol| *symbol).map_err(|_| format!("the library libcudnn has no {name}"))
        }
        let version: unsafe extern "C" fn() -> usize = function("cudnnGetVersion")?;
        // SAFETY: the function takes nothing.
        let version = unsafe { version() };
        if version / 10_000 != 9 {
            return Err(format!("the library libcudnn is of version {version}, and 9 is needed"));
        }
        Ok(Library {
            version,
            create: function("cudnnCreate")?,
            destroy: function("cudnnDestroy")?,
            set_stream: function("cudnnSetStream")?,
            create_descriptor: function("cudnnBackendCreateDescriptor")?,
            destroy_descriptor: function("cudnnBackendDestroyDescriptor")?,
            set_attribute: function("cudnnBackendSetAttribute")?,
            finalize: function("cudnnBackendFinalize")?,
            get_attribute: function("cudnnBackendGetAttribute")?,
            execute: function("cudnnBackendExecute")?,
            error_string: function("cudnnGetErrorString")?,
        })
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version;
        write!(f, "cuDNN {}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
    }
}

/// A call that failed.
pub(super) struct Failure {
    call: &'static str,
    status: i32,
    library: &'static Library,
}

pub(super) type Outcome<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Whether there is no such convolution, or not by this algorithm.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self.status, 3000..4000)
    }

    /// Whether the library does not work here, as where a part of it is missing.
    pub(super) fn is_unusable(&self) -> bool {
        matches!(self.status, 1000..2000)
    }

    /// Whether memory of the host or the device was missing.
    pub(super) fn is_no_memory(&self) -> bool {
        matches!(self.status, 4003 | 4004)
    }

    pub(super) fn error(self) -> Error {
        if self.is_no_memory() {
            return Error::new(ErrorKind::OutOfMemory {
                requested_bytes: 0,
                report: "the driver has no such range".into(),
            });
        }
        Error::new(ErrorKind::Driver { call: self.call, code: self.status, name: self.name() })
    }

    /// Why the library is not used.
    pub(super) fn reason(&self) -> String {
        let Failure { call, status, library } = self;
        format!("{library} cannot be used: {call} failed with {status} ({})", self.name())
    }

    fn name(&self) -> Box<str> {
        // SAFETY: the library accepts any number, and returns a constant string that ends with 0, or null.
        let name =
            unsafe { (self.library.error_string)(self.status).as_ref().map(|name| CStr::from_ptr(name)) };
        name.map_or("unknown".into(), |name| name.to_string_lossy().into())
    }
}

/// `None` for what the library has not.
pub(super) fn if_any<T>(outcome: Outcome<T>) -> Outcome<Option<T>> {
    match outcome {
        Err(failure) if failure.is_refusal() => Ok(None),
        outcome => outcome.map(Some),
    }
}

impl Library {
    pub(super) fn done(&'static self, call: &'static str, status: i32) -> Outcome<()> {
        if status == 0 { Ok(()) } else { Err(Failure { call, status, library: self }) }
    }

    pub(super) fn descriptor(&'static self, kind: Kind) -> Outcome<Descriptor> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the call writes a handle.
        self.done("cudnnBackendCreateDescriptor", unsafe { (self.create_descriptor)(kind, &mut raw) })?;
        Ok(Descriptor { raw, library: self })
    }
}

/// A description of something: what it is made of is set, and then it is complete.
pub(super) struct Descriptor {
    pub(super) raw: RawDescriptor,
    pub(super) library: &'static Library,
}

impl Descriptor {
    /// Sets an attribute, whose values are of the type that `kind` says.
    pub(super) fn set<T>(&self, name: Name, kind: Type, values: &[T]) -> Outcome<()> {
        let (count, at) = (values.len() as i64, values.as_ptr().cast());
        // SAFETY: the description is live, and the call reads as many values.
        let status = unsafe { (self.library.set_attribute)(self.raw, name, kind, count, at) };
        self.library.done("cudnnBackendSetAttribute", status)
    }

    pub(super) fn finalize(&self) -> Outcome<()> {
        // SAFETY: the description is live.
        self.library.done("cudnnBackendFinalize", unsafe { (self.library.finalize)(self.raw) })
    }

    /// Writes values of an attribute, of the type that `kind` says, and gives their number, or how many there are if there is
    /// no room for any.
    pub(super) fn get<T>(&self, name: Name, kind: Type, to: &mut [T]) -> Outcome<usize> {
        let (room, mut count) = (to.len(), 0);
        let at = if room == 0 { std::ptr::null_mut() } else { to.as_mut_ptr().cast() };
        // SAFETY: the description is live, and the call writes at most as many values as there is room for.
        let status =
            unsafe { (self.library.get_attribute)(self.raw, name, kind, room as i64, &mut count, at) };
        self.library.done("cudnnBackendGetAttribute", status)?;
        let count = usize::try_from(count).unwrap_or(0);
        Ok(if room == 0 { count } else { count.min(room) })
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        unsafe { (self.library.destroy_descriptor)(self.raw) };
    }
}
