//! Programs, compiled by NVRTC, kept on disk, and loaded.

use std::ffi::{CString, c_char, c_void};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::ffi::nvrtc;
use super::ffi::sys;
use super::ffi::sys::CUfunction_attribute_enum as Attribute;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use super::cache::{CachedImage, compiler_version};
use super::call::{call, check, obtained};
use super::{Grid, Program};
use crate::{Error, ErrorKind, KernelRecord, Result, Team, foreign};

/// The one compute capability whose groups of four warps multiply together.
pub(super) const WARP_GROUPS: (i32, i32) = (9, 0);

/// A program on a device.
pub(super) struct Module {
    raw: sys::CUmodule,
    /// Size of the image, about what the code takes on the device.
    pub(super) bytes: usize,
    functions: RwLock<FxHashMap<Box<str>, Function>>,
}

/// A program that is compiled for a device.
pub(super) struct Compiled {
    program: &'static Program,
    options: Vec<String>,
    image: Vec<u8>,
    /// Whether the image was kept on disk by an earlier process.
    was_kept: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) struct Function(pub(super) sys::CUfunction);

// SAFETY: the driver's handles belong to no thread.
unsafe impl Send for Function {}
// SAFETY: the driver takes calls with one handle from several threads at once.
unsafe impl Sync for Function {}
// SAFETY: the module's handle belongs to no thread either; the map is `Send` by itself.
unsafe impl Send for Module {}
// SAFETY: the handle is only used to unload the module, by its only owner; the map is `Sync` by itself.
unsafe impl Sync for Module {}

impl Module {
    /// Images of programs for a device of this compute capability. Those that have to be compiled are compiled at once, on a
    /// thread each as far as there are cores.
    pub(super) fn compile(programs: &[&'static Program], capability: (i32, i32)) -> Result<Vec<Compiled>> {
        let options: Vec<_> = programs.iter().map(|program| options(program, capability)).collect();
        let images: Vec<_> = programs.iter().map(|_| Mutex::new(None)).collect();
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(programs.len());
        let next = AtomicUsize::new(0);
        let team = Team::new("compiler", threads.clamp(1, Team::MAX_HELPERS) - 1);
        // Where threads are scarce, this one compiles all.
        team.or_else(|_| Team::new("compiler", 0))?.run(&|_| {
            while let Some(at) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&at| at < programs.len())
            {
                *images[at].lock() = Some(image(programs[at], &options[at]));
            }
        })?;
        let compiled = programs.iter().zip(options).zip(images).map(|((program, options), made)| {
            // A thread that panicked made none.
            let (image, was_kept) = made.into_inner().unwrap_or_else(|| image(program, &options))?;
            Ok(Compiled { program, options, image, was_kept })
        });
        compiled.collect()
    }

    /// Loads compiled programs; the context is current.
    pub(super) fn load(compiled: Vec<Compiled>) -> Result<Vec<Module>> {
        let load = |Compiled { program, options, image, was_kept }| match Module::from_image(&image) {
            // A driver may refuse what was kept.
            Err(error) if was_kept && !matches!(error.kind(), ErrorKind::OutOfMemory { .. }) => {
                Module::from_image(&compile_and_keep(program, &options)?)
            }
            outcome => outcome,
        };
        compiled.into_iter().map(load).collect()
    }

    fn from_image(image: &[u8]) -> Result<Module> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a context is current; the image is whole, as the compiler gave it, and is only read.
        unsafe {
            let code = foreign!(sys::cuModuleLoadData(&mut raw, image.as_ptr().cast::<c_void>()));
            obtained("cuModuleLoadData", image.len(), code)?;
        }
        let module = Module { raw, bytes: image.len(), functions: RwLock::default() };
        module.load_functions()?;
        Ok(module)
    }

    /// Brings every kernel to the device. Left to the first launch of each, that would wait for what the device does.
    fn load_functions(&self) -> Result<()> {
        let mut count = 0;
        // SAFETY: a context is current and the module is loaded; the driver writes a number, and then as many handles.
        unsafe {
            call!(cuModuleGetFunctionCount(&mut count, self.raw))?;
            let mut functions = vec![std::ptr::null_mut(); count as usize];
            call!(cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, self.raw))?;
            functions
                .into_iter()
                .try_for_each(|function| obtained("cuFuncLoad", 0, foreign!(sys::cuFuncLoad(function))))
        }
    }

    /// The kernel with this name, of which a block may have up to `shared_bytes` of shared memory, those that the kernel
    /// declares included; the context is current.
    pub(super) fn function(&self, name: &str, shared_bytes: u32) -> Result<Function> {
        if let Some(&function) = self.functions.read().get(name) {
            return Ok(function);
        }
        let mut raw = std::ptr::null_mut();
        let c_name = c_string(name)?;
        // SAFETY: the module is loaded, and the name ends with 0.
        let code = unsafe { foreign!(sys::cuModuleGetFunction(&mut raw, self.raw, c_name.as_ptr())) };
        if code == sys::CUresult::CUDA_ERROR_NOT_FOUND {
            return Err(refused(name, "the program has no such kernel"));
        }
        check("cuModuleGetFunction", code)?;
        let function = Function(raw);
        function.allow_shared(shared_bytes)?;
        self.functions.write().insert(name.into(), function);
        Ok(function)
    }
}

impl Function {
    const DYNAMIC: Attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;

    /// Lets a block have so much dynamic shared memory.
    fn allow_dynamic(self, bytes: u32) -> Result<()> {
        // SAFETY: the handle is live.
        unsafe { call!(cuFuncSetAttribute(self.0, Function::DYNAMIC, bytes as i32)) }
    }

    /// Lets a block have so much dynamic shared memory if it might have less so far; whether it did and may now.
    pub(super) fn allow_more_dynamic(self, bytes: u32) -> bool {
        let is_less = self.attribute(Function::DYNAMIC).is_ok_and(|allowed| allowed < bytes);
        is_less && self.allow_dynamic(bytes).is_ok()
    }

    /// Lets a block have so much shared memory in all.
    fn allow_shared(self, bytes: u32) -> Result<()> {
        let declared = self.attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        self.allow_dynamic(bytes.saturating_sub(declared))
    }

    fn attribute(self, attribute: Attribute) -> Result<u32> {
        let mut value = 0;
        // SAFETY: the handle is live; the driver writes a number to the address.
        unsafe { call!(cuFuncGetAttribute(&mut value, attribute, self.0)) }.map(|()| value.max(0) as u32)
    }

    /// The kernel with such a grid: what it takes of a multiprocessor, and how many of its blocks have room there.
    pub(super) fn describe(self, name: &str, grid: Grid) -> Result<KernelRecord> {
        let threads = grid.threads.iter().product::<u32>() as i32;
        let mut blocks = 0;
        // SAFETY: the handle is live; the driver writes a number to the address.
        let code = unsafe {
            let shared = grid.shared_bytes as usize;
            foreign!(sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, self.0, threads, shared))
        };
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        Ok(KernelRecord {
            name: name.into(),
            blocks: grid.blocks,
            threads: grid.threads,
            shared_bytes: grid.shared_bytes
                + self.attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            registers: self.attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            blocks_per_multiprocessor: blocks.max(0) as u32,
            duration_ns: None,
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once, and no kernel of it runs any more: the context goes, which outlives its streams.
        unsafe { foreign!(sys::cuModuleUnload(self.raw)) };
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| refused(text, "the name or source holds a 0 byte"))
}

/// The error of a program or kernel that cannot be compiled or found.
pub(super) fn refused(name: &str, log: impl Into<Box<str>>) -> Error {
    Error::new(ErrorKind::KernelCompile { name: name.into(), log: log.into() })
}

/// What the compiler is asked for: with its version, all that an image depends on besides the source.
fn options(program: &Program, capability: (i32, i32)) -> Vec<String> {
    let (major, minor) = capability;
    // What no later architecture has is called for by its name.
    let own = if capability == WARP_GROUPS { "a" } else { "" };
    let mut options = vec![format!("--gpu-architecture=sm_{major}{minor}{own}"), "--std=c++17".into()];
    options.extend(program.each_rounded.then(|| "--fmad=false".into()));
    // Optimises the kernels of a program on all cores, which takes a third of the time. The code is the same.
    options.extend((compiler_version() >= SPLITS).then(|| "--split-compile=0".into()));
    options
}

/// The first version of the compiler that is known to take `--split-compile`.
const SPLITS: (i32, i32) = (13, 0);

/// The image of a program, and whether it was kept: else it is compiled.
fn image(program: &'static Program, options: &[String]) -> Result<(Vec<u8>, bool)> {
    match CachedImage::new(program, options).read() {
        Some(image) => Ok((image, true)),
        None => compile_and_keep(program, options).map(|image| (image, false)),
    }
}

fn compile_and_keep(program: &'static Program, options: &[String]) -> Result<Vec<u8>> {
    let image = compile(program, options)?;
    // A program that cannot be kept is compiled again next time.
    let _ = CachedImage::new(program, options).write(&image);
    Ok(image)
}

/// Compiles a program to an image for the device's own architecture.
fn compile(program: &'static Program, options: &[String]) -> Result<Vec<u8>> {
    let refused = |log: String| refused(program.name, log);
    let (source, name) = (c_string(program.source)?, c_string(program.name)?);
    let options: Vec<CString> = options.iter().map(|option| c_string(option)).collect::<Result<_>>()?;
    let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    let mut raw = std::ptr::null_mut();
    let (none, no_names) = (std::ptr::null(), std::ptr::null());
    // SAFETY: the library is present, the strings end with 0, and there are no headers.
    let code = unsafe {
        foreign!(nvrtc::nvrtcCreateProgram(&mut raw, source.as_ptr(), name.as_ptr(), 0, none, no_names))
    };
    succeeded(code).map_err(|code| refused(format!("nvrtcCreateProgram: {code:?}")))?;
    let compilation = Compilation(raw);
    // SAFETY: the program exists, and the options end with 0.
    let code = unsafe { foreign!(nvrtc::nvrtcCompileProgram(raw, options.len() as i32, options.as_ptr())) };
    succeeded(code).map_err(|code| refused(format!("{code:?}\n{}", compilation.log())))?;
    compilation.image().map_err(|code| refused(format!("nvrtcGetCUBIN: {code:?}")))
}

fn succeeded(code: nvrtc::nvrtcResult) -> Result<(), nvrtc::nvrtcResult> {
    if code == nvrtc::nvrtcResult::NVRTC_SUCCESS { Ok(()) } else { Err(code) }
}

struct Compilation(nvrtc::nvrtcProgram);

impl Compilation {
    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program exists; the library writes a size, and then as many bytes.
        unsafe {
            if succeeded(foreign!(nvrtc::nvrtcGetProgramLogSize(self.0, &mut size))).is_err() {
                return String::new();
            }
            let mut log = vec![0u8; size];
            foreign!(nvrtc::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast()));
            String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned()
        }
    }

    fn image(&self) -> Result<Vec<u8>, nvrtc::nvrtcResult> {
        let mut size = 0;
        // SAFETY: the program was compiled; the library writes a size, and then as many bytes.
        unsafe {
            succeeded(foreign!(nvrtc::nvrtcGetCUBINSize(self.0, &mut size)))?;
            let mut image = vec![0u8; size];
            succeeded(foreign!(nvrtc::nvrtcGetCUBIN(self.0, image.as_mut_ptr().cast()))).map(|()| image)
        }
    }
}

impl Drop for Compilation {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { foreign!(nvrtc::nvrtcDestroyProgram(&mut self.0)) };
    }
}
