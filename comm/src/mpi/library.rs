//! The functions of a library of MPI, loaded at run time.

use std::ffi::{c_char, c_int, c_void};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::abi::{Family, Handle, Names, Word};

/// What a function answers that did not succeed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Code(pub(super) c_int);

/// Room for any library's `MPI_Status`, which is not read.
type Status = [u64; 8];

/// The functions that are called.
///
/// Callers of the unsafe ones promise: MPI is initialized, but for [`initialized`](Self::initialized) and
/// [`init`](Self::init), and not finalized; handles are live and of this library; memory has the bytes or elements that the
/// call names, for each rank where it is a collective's; memory of a started operation stays alive, and unused but for shared
/// reads, until [`test`](Self::test) reports its end; and a library without `MPI_THREAD_MULTIPLE` gets one call at a time.
pub(super) trait Functions: Send + Sync {
    /// Whether the program has called `MPI_Init` by itself.
    unsafe fn initialized(&self) -> Result<bool, Code>;
    /// The level of threads that the library gives.
    unsafe fn init(&self, threads: c_int) -> Result<c_int, Code>;
    unsafe fn query_thread(&self) -> Result<c_int, Code>;
    unsafe fn finalize(&self) -> Result<(), Code>;
    unsafe fn size(&self, comm: Word) -> Result<c_int, Code>;
    unsafe fn rank(&self, comm: Word) -> Result<c_int, Code>;
    unsafe fn split(&self, comm: Word, color: c_int, key: c_int) -> Result<Word, Code>;
    unsafe fn set_errhandler(&self, comm: Word, handler: Word) -> Result<(), Code>;
    unsafe fn isend(&self, at: *const u8, bytes: c_int, to: c_int, tag: c_int, comm: Word) -> Started;
    unsafe fn irecv(&self, at: *mut u8, bytes: c_int, from: c_int, tag: c_int, comm: Word) -> Started;
    /// Receives a message, of at most so many bytes, if there is one.
    unsafe fn poll(&self, at: *mut u8, bytes: c_int, tag: c_int, comm: Word) -> Result<bool, Code>;
    unsafe fn test(&self, request: &mut Word) -> Result<bool, Code>;
    unsafe fn ialltoall(&self, from: *const u8, to: *mut u8, bytes: c_int, comm: Word) -> Started;
    unsafe fn iallgather(&self, from: *const u8, to: *mut u8, bytes: c_int, comm: Word) -> Started;
    unsafe fn ibcast(&self, at: *mut u8, bytes: c_int, root: c_int, comm: Word) -> Started;
    unsafe fn iallreduce(
        &self,
        from: *const u8,
        to: *mut u8,
        count: c_int,
        reduction: (Word, Word),
        comm: Word,
    ) -> Started;
    fn error_string(&self, code: Code) -> String;
}

/// An operation that was started.
pub(super) type Started = Result<Word, Code>;

/// A library with its functions.
pub(super) struct Loaded {
    pub(super) functions: Box<dyn Functions>,
    pub(super) names: Names,
    pub(super) file: String,
}

/// Loads the library at `file`.
pub(super) fn load(file: &str) -> Result<Loaded, String> {
    // SAFETY: loading runs the library's initialisers, which only set up its own state. `RTLD_GLOBAL` lets its
    // plug-ins find its symbols. It is leaked, because its threads and handlers may run until the process ends.
    let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_GLOBAL) };
    let library = Box::leak(Box::new(library.map_err(|error| reason(&error))?));
    let family = Family::of(library, file);
    let lacks = |name: String| format!("{file} lacks {name}");
    let names = family.names(library).map_err(lacks)?;
    let functions: Box<dyn Functions> = match family {
        Family::Mpich => Box::new(Symbols::<c_int>::find(library, names).map_err(lacks)?),
        Family::OpenMpi | Family::Standard => Box::new(Symbols::<Word>::find(library, names).map_err(lacks)?),
    };
    Ok(Loaded { functions, names, file: file.to_owned() })
}

fn reason(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}

/// The functions as the library has them, with handles of type `H`.
struct Symbols<H> {
    byte: H,
    any_source: c_int,
    initialized: unsafe extern "C" fn(*mut c_int) -> c_int,
    init_thread: unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int,
    query_thread: unsafe extern "C" fn(*mut c_int) -> c_int,
    finalize: unsafe extern "C" fn() -> c_int,
    comm_size: unsafe extern "C" fn(H, *mut c_int) -> c_int,
    comm_rank: unsafe extern "C" fn(H, *mut c_int) -> c_int,
    comm_split: unsafe extern "C" fn(H, c_int, c_int, *mut H) -> c_int,
    comm_set_errhandler: unsafe extern "C" fn(H, H) -> c_int,
    isend: unsafe extern "C" fn(*const c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int,
    irecv: unsafe extern "C" fn(*mut c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int,
    iprobe: unsafe extern "C" fn(c_int, c_int, H, *mut c_int, *mut Status) -> c_int,
    recv: unsafe extern "C" fn(*mut c_void, c_int, H, c_int, c_int, H, *mut Status) -> c_int,
    test: unsafe extern "C" fn(*mut H, *mut c_int, *mut Status) -> c_int,
    ialltoall: Exchange<H>,
    iallgather: Exchange<H>,
    ibcast: unsafe extern "C" fn(*mut c_void, c_int, H, c_int, H, *mut H) -> c_int,
    iallreduce: unsafe extern "C" fn(*const c_void, *mut c_void, c_int, H, H, H, *mut H) -> c_int,
    error_string: unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int,
}

type Exchange<H> = unsafe extern "C" fn(*const c_void, c_int, H, *mut c_void, c_int, H, H, *mut H) -> c_int;

impl<H: Handle> Symbols<H> {
    /// Finds all of them; the name of one that the library lacks.
    fn find(library: &'static Library, names: Names) -> Result<Symbols<H>, String> {
        fn function<F: Copy>(library: &'static Library, name: &str) -> Result<F, String> {
            // SAFETY: the MPI standard gives the function of this name this signature, up to the type of handles,
            // which is the one of the library's family.
            let found = unsafe { library.get::<F>(name.as_bytes()) };
            found.map(|symbol| *symbol).map_err(|_| name.to_owned())
        }
        Ok(Symbols {
            byte: H::from_word(names.byte),
            any_source: names.any_source,
            initialized: function(library, "MPI_Initialized")?,
            init_thread: function(library, "MPI_Init_thread")?,
            query_thread: function(library, "MPI_Query_thread")?,
            finalize: function(library, "MPI_Finalize")?,
            comm_size: function(library, "MPI_Comm_size")?,
            comm_rank: function(library, "MPI_Comm_rank")?,
            comm_split: function(library, "MPI_Comm_split")?,
            comm_set_errhandler: function(library, "MPI_Comm_set_errhandler")?,
            isend: function(library, "MPI_Isend")?,
            irecv: function(library, "MPI_Irecv")?,
            iprobe: function(library, "MPI_Iprobe")?,
            recv: function(library, "MPI_Recv")?,
            test: function(library, "MPI_Test")?,
            ialltoall: function(library, "MPI_Ialltoall")?,
            iallgather: function(library, "MPI_Iallgather")?,
            ibcast: function(library, "MPI_Ibcast")?,
            iallreduce: function(library, "MPI_Iallreduce")?,
            error_string: function(library, "MPI_Error_string")?,
        })
    }
}

fn checked(code: c_int) -> Result<(), Code> {
    if code == 0 { Ok(()) } else { Err(Code(code)) }
}

/// What a function writes behind a pointer.
fn written<T>(mut value: T, call: impl FnOnce(*mut T) -> c_int) -> Result<T, Code> {
    checked(call(&raw mut value)).map(|()| value)
}

/// The operation that a function starts.
fn started<H: Handle>(call: impl FnOnce(*mut H) -> c_int) -> Started {
    written(H::from_word(0), call).map(H::word)
}

// SAFETY of all calls below: `find` looked each function up by the name whose signature the MPI standard fixes. What a call
// returns through pointers goes to locals that are valid until it returns; nothing keeps them. `at`, `from` and `to`, which an
// operation may use until `test` reports its end, handles, and the order of calls are the contract of `Functions`, which the
// caller keeps.
#[allow(clippy::undocumented_unsafe_blocks, reason = "said once, above")]
impl<H: Handle> Functions for Symbols<H> {
    unsafe fn initialized(&self) -> Result<bool, Code> {
        written(0, |flag| unsafe { (self.initialized)(flag) }).map(|flag| flag != 0)
    }

    unsafe fn init(&self, threads: c_int) -> Result<c_int, Code> {
        let none = std::ptr::null_mut();
        written(0, |given| unsafe { (self.init_thread)(none, std::ptr::null_mut(), threads, given) })
    }

    unsafe fn query_thread(&self) -> Result<c_int, Code> {
        written(0, |given| unsafe { (self.query_thread)(given) })
    }

    unsafe fn finalize(&self) -> Result<(), Code> {
        checked(unsafe { (self.finalize)() })
    }

    unsafe fn size(&self, comm: Word) -> Result<c_int, Code> {
        written(0, |size| unsafe { (self.comm_size)(H::from_word(comm), size) })
    }

    unsafe fn rank(&self, comm: Word) -> Result<c_int, Code> {
        written(0, |rank| unsafe { (self.comm_rank)(H::from_word(comm), rank) })
    }

    unsafe fn split(&self, comm: Word, color: c_int, key: c_int) -> Result<Word, Code> {
        started(|made| unsafe { (self.comm_split)(H::from_word(comm), color, key, made) })
    }

    unsafe fn set_errhandler(&self, comm: Word, handler: Word) -> Result<(), Code> {
        checked(unsafe { (self.comm_set_errhandler)(H::from_word(comm), H::from_word(handler)) })
    }

    unsafe fn isend(&self, at: *const u8, bytes: c_int, to: c_int, tag: c_int, comm: Word) -> Started {
        let comm = H::from_word(comm);
        started(|request| unsafe { (self.isend)(at.cast(), bytes, self.byte, to, tag, comm, request) })
    }

    unsafe fn irecv(&self, at: *mut u8, bytes: c_int, from: c_int, tag: c_int, comm: Word) -> Started {
        let comm = H::from_word(comm);
        started(|request| unsafe { (self.irecv)(at.cast(), bytes, self.byte, from, tag, comm, request) })
    }

    unsafe fn poll(&self, at: *mut u8, bytes: c_int, tag: c_int, comm: Word) -> Result<bool, Code> {
        let (comm, from, mut status) = (H::from_word(comm), self.any_source, Status::default());
        let status = &raw mut status;
        if written(0, |flag| unsafe { (self.iprobe)(from, tag, comm, flag, status) })? == 0 {
            return Ok(false);
        }
        checked(unsafe { (self.recv)(at.cast(), bytes, self.byte, from, tag, comm, status) })?;
        Ok(true)
    }

    unsafe fn test(&self, request: &mut Word) -> Result<bool, Code> {
        let (mut handle, mut status) = (H::from_word(*request), Status::default());
        let ended = written(0, |flag| unsafe { (self.test)(&raw mut handle, flag, &raw mut status) });
        *request = handle.word();
        ended.map(|flag| flag != 0)
    }

    unsafe fn ialltoall(&self, from: *const u8, to: *mut u8, bytes: c_int, comm: Word) -> Started {
        let (byte, comm) = (self.byte, H::from_word(comm));
        started(|request| unsafe {
            (self.ialltoall)(from.cast(), bytes, byte, to.cast(), bytes, byte, comm, request)
        })
    }

    unsafe fn iallgather(&self, from: *const u8, to: *mut u8, bytes: c_int, comm: Word) -> Started {
        let (byte, comm) = (self.byte, H::from_word(comm));
        started(|request| unsafe {
            (self.iallgather)(from.cast(), bytes, byte, to.cast(), bytes, byte, comm, request)
        })
    }

    unsafe fn ibcast(&self, at: *mut u8, bytes: c_int, root: c_int, comm: Word) -> Started {
        let comm = H::from_word(comm);
        started(|request| unsafe { (self.ibcast)(at.cast(), bytes, self.byte, root, comm, request) })
    }

    unsafe fn iallreduce(
        &self,
        from: *const u8,
        to: *mut u8,
        count: c_int,
        (number, reduction): (Word, Word),
        comm: Word,
    ) -> Started {
        let [number, reduction, comm] = [number, reduction, comm].map(H::from_word);
        started(|request| unsafe {
            (self.iallreduce)(from.cast(), to.cast(), count, number, reduction, comm, request)
        })
    }

    fn error_string(&self, code: Code) -> String {
        // More than any library's MPI_MAX_ERROR_STRING.
        let mut text = [0_u8; 4096];
        let len = written(0, |len| unsafe { (self.error_string)(code.0, text.as_mut_ptr().cast(), len) });
        let len = len.ok().and_then(|len| usize::try_from(len).ok()).unwrap_or_default();
        String::from_utf8_lossy(&text[..len.min(text.len())]).into_owned()
    }
}
