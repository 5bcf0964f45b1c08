//! The program's ranges, told to a tool such as Nsight Systems by NVTX 3.
//!
//! NVTX itself is no library: a tool names its own one in `NVTX_INJECTION64_PATH`, and the program loads it and calls
//! its `InitializeInjectionNvtx2`. In the tables that it gives there, the tool finds a cell for each function of NVTX,
//! and writes its own function where it has one. Numbers and types are those of NVTX's headers.
//!
//! Without a tool, or with one that cannot be loaded or fails, nothing is told, and a range takes one atomic load.

use std::array::from_fn;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::mem::transmute_copy;
use std::ptr::{from_ref, null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{LazyLock, OnceLock};

use libloading::Library;
use smallvec::SmallVec;

/// Where a tool writes a function.
type Cell = AtomicPtr<c_void>;

/// The places of a module's cells. There is none for number 0 and at the end.
type Table = [AtomicPtr<Cell>; MAX_SIZE + 1];
/// How many functions each module has, from module 1 on; number 0 of each is none.
const SIZES: [usize; 6] = [16, 9, 15, 7, 16, 7];
const MAX_SIZE: usize = 16;

/// The index of the module whose functions are called here, and their numbers in it.
const CORE: usize = 0;
const MARK: usize = 2;
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;

static CELLS: [[Cell; MAX_SIZE]; SIZES.len()] =
    [const { [const { Cell::new(null_mut()) }; MAX_SIZE] }; SIZES.len()];

static TABLES: LazyLock<[Table; SIZES.len()]> = LazyLock::new(|| {
    from_fn(|module| {
        from_fn(|number| {
            let cell = CELLS[module].get(number).filter(|_| (1..SIZES[module]).contains(&number));
            AtomicPtr::new(cell.map_or(null_mut(), |cell| from_ref(cell).cast_mut()))
        })
    })
});

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size: usize,
    table: unsafe extern "C" fn(c_uint, *mut *const AtomicPtr<Cell>, *mut c_uint) -> c_int,
}

static CALLBACKS: Callbacks = Callbacks { size: size_of::<Callbacks>(), table };

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct Versions {
    size: usize,
    version: u32,
    reserved: u32,
    set_tools_version: extern "C" fn(u32),
}

static VERSIONS: Versions =
    Versions { size: size_of::<Versions>(), version: 3, reserved: 0, set_tools_version };

/// The tool's version matters to nobody.
extern "C" fn set_tools_version(_: u32) {}

/// Gives the table of a module and the number of its functions; 0 if there is no such module.
///
/// # Safety
/// Each pointer is null, or that of a value that may be written.
unsafe extern "C" fn table(module: c_uint, table: *mut *const AtomicPtr<Cell>, size: *mut c_uint) -> c_int {
    let index = (module as usize).wrapping_sub(1);
    let Some(&functions) = SIZES.get(index) else { return 0 };
    if !table.is_null() {
        // SAFETY: by the caller's promise.
        unsafe { table.write(TABLES[index].as_ptr()) };
    }
    if !size.is_null() {
        // SAFETY: by the caller's promise.
        unsafe { size.write(functions as c_uint) };
    }
    1
}

type ExportTable = extern "C" fn(u32) -> *const c_void;

extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        1 => from_ref(&CALLBACKS).cast(),
        3 => from_ref(&VERSIONS).cast(),
        _ => null(),
    }
}

/// Whether a tool follows ranges.
pub(crate) fn is_followed() -> bool {
    tool().is_some()
}

/// The tool's library, which stays as long as the process.
fn tool() -> Option<&'static Library> {
    static TOOL: OnceLock<Option<Library>> = OnceLock::new();
    TOOL.get_or_init(load).as_ref()
}

#[cold]
fn load() -> Option<Library> {
    let path = std::env::var_os("NVTX_INJECTION64_PATH")?;
    // SAFETY: who sets the variable vouches for what the library does when it is loaded, or unloaded after a failure.
    let library = unsafe { Library::new(path) }.ok()?;
    // SAFETY: a tool's function with this name has this type.
    let initialize = unsafe {
        let found = library.get::<unsafe extern "C" fn(ExportTable) -> c_int>("InitializeInjectionNvtx2");
        *found.ok()?
    };
    // SAFETY: the tables are static, and as NVTX's headers have them. Cells are atomic, and nobody calls what is
    // in them before the tool has said that it is ready.
    let is_ready = unsafe { initialize(export_table) } != 0;
    is_ready.then_some(library)
}

/// The tool's function with this number, if it has one.
///
/// # Safety
/// `F` is the type of a pointer to that function.
unsafe fn function<F: Copy>(number: usize) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    tool()?;
    let function = CELLS[CORE][number].load(Ordering::Acquire);
    // SAFETY: a tool writes functions to the cells of their numbers, and stays. This one is an `F`, by the caller.
    (!function.is_null()).then(|| unsafe { transmute_copy(&function) })
}

/// The text as C has it. A NUL within would end it, and becomes a space.
fn terminated(text: &str) -> SmallVec<[u8; 64]> {
    let bytes = text.bytes().map(|byte| if byte == 0 { b' ' } else { byte });
    bytes.chain([0]).collect()
}

/// Tells the tool, if there is one, of a moment of the calling thread.
pub(crate) fn mark(name: &str) {
    // SAFETY: `nvtxMarkA` has this type.
    let mark = unsafe { function::<unsafe extern "C" fn(*const c_char)>(MARK) };
    if let Some(mark) = mark {
        // SAFETY: the text ends with NUL, and is there for as long as the call.
        unsafe { mark(terminated(name).as_ptr().cast()) };
    }
}

/// A range of the calling thread, of which the tool is told, if there is one. It ends when the value drops, which
/// cannot be sent to another thread: a tool has a stack of ranges for each.
pub(crate) struct Range {
    is_told: bool,
    _of_thread: PhantomData<*const ()>,
}

impl Range {
    #[inline]
    pub(crate) fn begin(name: &str) -> Range {
        Range { is_told: tool().is_some() && push(name), _of_thread: PhantomData }
    }
}

impl Drop for Range {
    #[inline]
    fn drop(&mut self) {
        if self.is_told {
            pop();
        }
    }
}

/// Whether the tool wants to know.
#[cold]
fn push(name: &str) -> bool {
    // SAFETY: `nvtxRangePushA` has this type.
    let push = unsafe { function::<unsafe extern "C" fn(*const c_char) -> c_int>(RANGE_PUSH) };
    let Some(push) = push else { return false };
    // SAFETY: the text ends with NUL, and is there for as long as the call.
    unsafe { push(terminated(name).as_ptr().cast()) };
    true
}

#[cold]
fn pop() {
    // SAFETY: `nvtxRangePop` has this type.
    let pop = unsafe { function::<unsafe extern "C" fn() -> c_int>(RANGE_POP) };
    if let Some(pop) = pop {
        // SAFETY: it has no conditions.
        unsafe { pop() };
    }
}
