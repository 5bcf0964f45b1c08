//! CUDA devices: what a launcher says to one. Nothing can make one yet.

use crate::{DType, Error, Result, Stream, Use};

/// CUDA C whose kernels belong together.
#[derive(Debug)]
#[expect(dead_code, reason = "nothing compiles it yet")]
pub struct Program {
    name: &'static str,
    source: &'static str,
}

impl Program {
    /// A program with its source.
    pub const fn new(name: &'static str, source: &'static str) -> Self {
        Program { name, source }
    }
}

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "a stub")]
pub struct Grid {
    pub blocks: [u32; 3],
    pub threads: [u32; 3],
    pub shared_bytes: u32,
}

impl Grid {
    /// `blocks` blocks of `threads` threads in a row.
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Grid { blocks: [blocks, 1, 1], threads: [threads, 1, 1], shared_bytes: 0 }
    }
}

/// One argument of a kernel.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "a stub")]
pub enum Arg<'a> {
    Ptr(*const u8),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bytes(&'a [u8]),
    Fault,
}

/// A matrix product as BLAS has it, column-major.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the names are BLAS's")]
pub struct Gemm {
    pub dtype: DType,
    pub transa: bool,
    pub transb: bool,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: *const u8,
    pub lda: usize,
    pub stride_a: i64,
    pub b: *const u8,
    pub ldb: usize,
    pub stride_b: i64,
    pub accumulate: bool,
    pub c: *mut u8,
    pub ldc: usize,
    pub stride_c: i64,
    pub batch: usize,
}

/// Where the closure of [`Stream::submit`] enqueues device work, in order.
#[derive(Debug)]
pub struct Queue<'a>(std::marker::PhantomData<&'a ()>);

#[expect(clippy::missing_errors_doc, clippy::missing_safety_doc, missing_docs, reason = "a stub")]
impl Queue<'_> {
    pub fn multiprocessors(&self) -> u32 {
        1
    }
    pub unsafe fn kernel(&self, _: &'static Program, _: &str, _: Grid, _: &[Arg<'_>]) -> Result<()> {
        Err(missing())
    }
    pub unsafe fn gemm(&self, _: &Gemm) -> Result<()> {
        Err(missing())
    }
    pub unsafe fn copy(&self, _: *mut u8, _: *const u8, _: usize) -> Result<()> {
        Err(missing())
    }
    pub unsafe fn fill_bytes(&self, _: *mut u8, _: u8, _: usize) -> Result<()> {
        Err(missing())
    }
}

impl Stream {
    /// Whether commands are a CUDA device's, to be launched with [`submit`](Self::submit).
    #[inline]
    pub fn is_cuda(&self) -> bool {
        false
    }

    /// As [`launch`](Self::launch), for a stream of a CUDA device.
    ///
    /// # Errors
    /// [`Error::CudaUnavailable`].
    pub fn submit(
        &self,
        _: &'static str,
        _: &[Use<'_>],
        _: impl FnOnce(&Queue<'_>) -> Result<()>,
    ) -> Result<()> {
        Err(missing())
    }
}

fn missing() -> Error {
    Error::CudaUnavailable { reason: "there is no CUDA device yet".into() }
}

/// Why the CUDA device `ordinal` cannot be used.
#[cfg(feature = "cuda")]
pub(crate) fn why_unavailable(ordinal: usize) -> String {
    use cudarc::driver::{result, sys};
    // SAFETY: only looks for the library and loads it.
    if !unsafe { sys::is_culib_present() } {
        return "no CUDA driver: the library libcuda was not found".to_owned();
    }
    // With the library present, a symbol it lacks would still panic at its first call.
    let count = std::panic::catch_unwind(|| result::init().and_then(|()| result::device::get_count()));
    match count {
        Err(_) => "the CUDA driver is too old".to_owned(),
        Ok(Err(error)) => format!("the CUDA driver answers with code {}", error.0 as i32),
        Ok(Ok(0)) => "the CUDA driver finds no device".to_owned(),
        Ok(Ok(count)) if ordinal >= count as usize => {
            format!("there is no device {ordinal}: the driver finds {count}")
        }
        Ok(Ok(_)) => "a device is present, but this version has no kernels for it yet".to_owned(),
    }
}

/// Why the CUDA device `ordinal` cannot be used.
#[cfg(not(feature = "cuda"))]
pub(crate) fn why_unavailable(_ordinal: usize) -> String {
    "this build has no CUDA: it was made without the feature `cuda`".to_owned()
}
