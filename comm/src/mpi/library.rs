//! The functions of a library of MPI, loaded at run time.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;
use libloading::os::unix::{self, RTLD_GLOBAL, RTLD_NOW};

use super::abi::{Family, Handle, Names, Reduction, Word};
use crate::symbols::symbols;

/// What a function answers that did not succeed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Code(pub(super) c_int);

/// Room for any library's `MPI_Status`, which is not read.
type Status = [u64; 8];

/// The functions that are called.
///
/// Callers of the unsafe ones promise: MPI is initialized, but for [`begin`](Self::begin), and not finalized; handles are live and
/// of this library; memory has the bytes or elements that the call names, for each rank where it is a collective's; memory of a
/// started operation stays alive, and unused but for shared reads, until [`test`](Self::test) reports its end; and a library
/// without `MPI_THREAD_MULTIPLE` gets one call at a time.
pub(super) trait Functions: Send + Sync {
    /// Initializes MPI unless the program has done so.
    unsafe fn begin(&self) -> Result<Begun, Code>;
    unsafe fn finalize(&self) -> Result<(), Code>;
    unsafe fn split(&self, comm: Word, color: c_int, key: c_int) -> Result<Word, Code>;
    unsafe fn start(&self, operation: Operation, comm: Word) -> Result<Word, Code>;
    /// Receives a message, of at most so many bytes, if there is one.
    unsafe fn poll(&self, at: *mut u8, bytes: c_int, tag: c_int, comm: Word) -> Result<bool, Code>;
    unsafe fn test(&self, request: &mut Word) -> Result<bool, Code>;
    fn error_string(&self, code: Code) -> String;
}

/// What the library starts, with addresses in memory that lives until it has ended. An exchange is of `bytes` bytes with each
/// rank, a reduction of `count` elements.
pub(super) enum Operation {
    Send { at: *const u8, bytes: c_int, to: c_int, tag: c_int },
    Recv { at: *mut u8, bytes: c_int, from: c_int, tag: c_int },
    Exchange { pattern: Pattern, from: *const u8, to: *mut u8, bytes: c_int },
    Broadcast { at: *mut u8, bytes: c_int, root: c_int },
    AllReduce { from: *const u8, to: *mut u8, count: c_int, reduction: Reduction },
}

/// Which bytes the ranks exchange.
#[derive(Clone, Copy)]
pub(super) enum Pattern {
    AllToAll,
    AllGather,
}

/// The process once MPI is initialized.
pub(super) struct Begun {
    /// Whether it was initialized here.
    pub(super) is_ours: bool,
    /// The level of threads that the library supports.
    pub(super) threads: c_int,
    pub(super) rank: usize,
    pub(super) size: usize,
}

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
    let library = unsafe { unix::Library::open(Some(file), RTLD_NOW | RTLD_GLOBAL) };
    let library: &'static Library = Box::leak(Box::new(library.map_err(|error| reason(&error))?.into()));
    let family = Family::of(library, file);
    let lacks = |name: &str| format!("{file} lacks {name}");
    let names = family.names(library).map_err(lacks)?;
    // SAFETY: the MPI standard gives the functions of these names these signatures, up to the type of handles, which is the one
    // of the library's family.
    let functions: Box<dyn Functions> = unsafe {
        match family {
            Family::Mpich => {
                Box::new(Calls { names, symbols: Symbols::<c_int>::find(library).map_err(lacks)? })
            }
            Family::OpenMpi | Family::Standard => {
                Box::new(Calls { names, symbols: Symbols::<Word>::find(library).map_err(lacks)? })
            }
        }
    };
    Ok(Loaded { functions, names, file: file.to_owned() })
}

fn reason(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}

symbols! {
    /// The functions as the library has them, with handles of type `H`.
    Symbols<H>,
    initialized = "MPI_Initialized": unsafe extern "C" fn(*mut c_int) -> c_int,
    init_thread = "MPI_Init_thread":
        unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int,
    query_thread = "MPI_Query_thread": unsafe extern "C" fn(*mut c_int) -> c_int,
    finalize = "MPI_Finalize": unsafe extern "C" fn() -> c_int,
    comm_size = "MPI_Comm_size": unsafe extern "C" fn(H, *mut c_int) -> c_int,
    comm_rank = "MPI_Comm_rank": unsafe extern "C" fn(H, *mut c_int) -> c_int,
    comm_split = "MPI_Comm_split": unsafe extern "C" fn(H, c_int, c_int, *mut H) -> c_int,
    comm_set_errhandler = "MPI_Comm_set_errhandler": unsafe extern "C" fn(H, H) -> c_int,
    isend = "MPI_Isend": unsafe extern "C" fn(*const c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int,
    irecv = "MPI_Irecv": unsafe extern "C" fn(*mut c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int,
    iprobe = "MPI_Iprobe": unsafe extern "C" fn(c_int, c_int, H, *mut c_int, *mut Status) -> c_int,
    recv = "MPI_Recv": unsafe extern "C" fn(*mut c_void, c_int, H, c_int, c_int, H, *mut Status) -> c_int,
    test = "MPI_Test": unsafe extern "C" fn(*mut H, *mut c_int, *mut Status) -> c_int,
    ialltoall = "MPI_Ialltoall": Exchange<H>,
    iallgather = "MPI_Iallgather": Exchange<H>,
    ibcast = "MPI_Ibcast": unsafe extern "C" fn(*mut c_void, c_int, H, c_int, H, *mut H) -> c_int,
    iallreduce = "MPI_Iallreduce":
        unsafe extern "C" fn(*const c_void, *mut c_void, c_int, H, H, H, *mut H) -> c_int,
    error_string = "MPI_Error_string": unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int,
}

type Exchange<H> = unsafe extern "C" fn(*const c_void, c_int, H, *mut c_void, c_int, H, H, *mut H) -> c_int;

/// A library's functions with the values of its names.
struct Calls<H> {
    names: Names,
    symbols: Symbols<H>,
}

fn checked(code: c_int) -> Result<(), Code> {
    if code == 0 { Ok(()) } else { Err(Code(code)) }
}

/// What a function writes behind a pointer.
fn written<T>(mut value: T, call: impl FnOnce(*mut T) -> c_int) -> Result<T, Code> {
    checked(call(&raw mut value)).map(|()| value)
}

/// The operation that a function starts.
fn started<H: Handle>(call: impl FnOnce(*mut H) -> c_int) -> Result<Word, Code> {
    written(H::from_word(0), call).map(H::word)
}

// Calls are safe for one reason, to which each refers as "a call as MPI declares it": `find` looked each function up by the name whose signature
// the MPI standard fixes, and what it returns through pointers goes to locals that are valid until it returns; nothing keeps them.
impl<H: Handle> Functions for Calls<H> {
    unsafe fn begin(&self) -> Result<Begun, Code> {
        let (Calls { names, symbols }, none) = (self, std::ptr::null_mut());
        // SAFETY: a call as MPI declares it, allowed at any time.
        let is_ours = written(0, |flag| unsafe { (symbols.initialized)(flag) })? == 0;
        // SAFETY: a call as MPI declares it; MPI is initialised here only if it was not before.
        let threads = written(0, |given| unsafe {
            match is_ours {
                true => (symbols.init_thread)(none, std::ptr::null_mut(), names.thread_multiple, given),
                false => (symbols.query_thread)(given),
            }
        })?;
        let world = H::from_word(names.world);
        // SAFETY: a call as MPI declares it; MPI has begun, and both handles are constants of the library.
        checked(unsafe { (symbols.comm_set_errhandler)(world, H::from_word(names.errors_return)) })?;
        // SAFETY: a call as MPI declares it; MPI has begun, and the handle is a constant of the library.
        let rank = written(0, |rank| unsafe { (symbols.comm_rank)(world, rank) })? as usize;
        // SAFETY: a call as MPI declares it, as above.
        let size = written(0, |size| unsafe { (symbols.comm_size)(world, size) })? as usize;
        Ok(Begun { is_ours, threads, rank, size })
    }

    unsafe fn finalize(&self) -> Result<(), Code> {
        // SAFETY: a call as MPI declares it; that nothing follows is the contract of `Functions`, which the caller keeps.
        checked(unsafe { (self.symbols.finalize)() })
    }

    unsafe fn split(&self, comm: Word, color: c_int, key: c_int) -> Result<Word, Code> {
        // SAFETY: a call as MPI declares it; the communicator is valid by the contract of `Functions`.
        started(|made| unsafe { (self.symbols.comm_split)(H::from_word(comm), color, key, made) })
    }

    unsafe fn start(&self, operation: Operation, comm: Word) -> Result<Word, Code> {
        let (symbols, byte, comm) = (&self.symbols, H::from_word(self.names.byte), H::from_word(comm));
        // SAFETY: a call as MPI declares it; memory that stays until `test` reports the end, and valid handles, are the contract of `Functions`.
        started(|request| unsafe {
            match operation {
                Operation::Send { at, bytes, to, tag } => {
                    (symbols.isend)(at.cast(), bytes, byte, to, tag, comm, request)
                }
                Operation::Recv { at, bytes, from, tag } => {
                    (symbols.irecv)(at.cast(), bytes, byte, from, tag, comm, request)
                }
                Operation::Exchange { pattern, from, to, bytes } => {
                    let call = match pattern {
                        Pattern::AllToAll => symbols.ialltoall,
                        Pattern::AllGather => symbols.iallgather,
                    };
                    call(from.cast(), bytes, byte, to.cast(), bytes, byte, comm, request)
                }
                Operation::Broadcast { at, bytes, root } => {
                    (symbols.ibcast)(at.cast(), bytes, byte, root, comm, request)
                }
                Operation::AllReduce { from, to, count, reduction } => {
                    let [dtype, op] = [reduction.dtype, reduction.op].map(H::from_word);
                    (symbols.iallreduce)(from.cast(), to.cast(), count, dtype, op, comm, request)
                }
            }
        })
    }

    unsafe fn poll(&self, at: *mut u8, bytes: c_int, tag: c_int, comm: Word) -> Result<bool, Code> {
        let [byte, comm] = [self.names.byte, comm].map(H::from_word);
        let (from, mut status) = (self.names.any_source, Status::default());
        let status = &raw mut status;
        // SAFETY: a call as MPI declares it; the communicator is valid by the contract of `Functions`.
        if written(0, |flag| unsafe { (self.symbols.iprobe)(from, tag, comm, flag, status) })? == 0 {
            return Ok(false);
        }
        // SAFETY: a call as MPI declares it; the caller promises `bytes` bytes at `at`, and a valid communicator.
        checked(unsafe { (self.symbols.recv)(at.cast(), bytes, byte, from, tag, comm, status) })?;
        Ok(true)
    }

    unsafe fn test(&self, request: &mut Word) -> Result<bool, Code> {
        let (mut handle, mut status) = (H::from_word(*request), Status::default());
        // SAFETY: a call as MPI declares it; the request is one that was started, by the contract of `Functions`.
        let ended = written(0, |flag| unsafe { (self.symbols.test)(&raw mut handle, flag, &raw mut status) });
        *request = handle.word();
        ended.map(|flag| flag != 0)
    }

    fn error_string(&self, code: Code) -> String {
        // More than any library's MPI_MAX_ERROR_STRING.
        let mut text = [0_u8; 4096];
        let len =
            // SAFETY: a call as MPI declares it; the text has room for more than any message.
            written(0, |len| unsafe { (self.symbols.error_string)(code.0, text.as_mut_ptr().cast(), len) });
        let len = len.ok().and_then(|len| usize::try_from(len).ok()).unwrap_or_default();
        String::from_utf8_lossy(&text[..len.min(text.len())]).into_owned()
    }
}
