//! The driver's calls that enqueue something and ask for nothing, so that [another thread](super::launcher) may make them.

use std::ffi::c_void;
use std::ptr::null_mut;

use super::ffi::sys;
use smallvec::SmallVec;

use super::call::{address, call, check};
use super::fault::FaultArg;
use super::module::Function;
use super::{Arg, Grid, Source};
use crate::{ErrorKind, Result, foreign};

/// Something to enqueue on a stream. Whoever makes one answers for it that the memory which it names may be used until it has run.
pub(super) enum Call {
    /// Its arguments are in words beside it.
    Kernel(Kernel),
    Write {
        to: *mut u8,
        from: Source,
        bytes: usize,
    },
}

// SAFETY: addresses of device memory and handles, which the driver takes from any thread.
unsafe impl Send for Call {}

/// A kernel without its arguments.
#[derive(Clone, PartialEq)]
pub(super) struct Kernel {
    pub(super) function: Function,
    pub(super) grid: Grid,
    pub(super) cluster: Cluster,
    pub(super) arguments: Arguments,
}

/// All arguments of a kernel, each from a word of its own on if they are listed. Few kernels of libraries have more.
pub(super) type Words = SmallVec<[u64; 96]>;

/// What the driver says of a launch with more shared memory than the function may have.
const INVALID_VALUE: i32 = sys::CUresult::CUDA_ERROR_INVALID_VALUE.0;

/// How a kernel is given its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Arguments {
    /// One by one, each from one of these words on.
    Listed(SmallVec<[u16; 16]>),
    /// As a buffer of so many bytes.
    Buffer(usize),
}

impl Call {
    /// Has the driver enqueue it, with the arguments in `words`.
    ///
    /// # Safety
    /// The stream is live and its context current, the words are the call's, and whoever made it answers for it.
    pub(super) unsafe fn make(&mut self, words: &mut [u64], stream: sys::CUstream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Call::Kernel(kernel) => kernel.launch(words, stream),
                Call::Write { to, from: Source::Value(value), bytes } => {
                    call!(cuMemsetD8Async(address(*to), *value, *bytes, stream))
                }
                Call::Write { to, from: Source::Memory(from), bytes } => {
                    call!(cuMemcpyDtoDAsync_v2(address(*to), address(*from), *bytes, stream))
                }
            }
        }
    }
}

impl Kernel {
    /// A kernel of this library's, which reports in `fault` if it has such an argument.
    pub(super) fn new(
        function: Function,
        grid: Grid,
        args: &[Arg<'_>],
        fault: Option<FaultArg>,
    ) -> (Kernel, Words) {
        let (mut words, mut begins) = (Words::new(), SmallVec::new());
        for arg in args {
            begins.push(words.len() as u16);
            match *arg {
                Arg::Ptr(at) => words.push(at.addr() as u64),
                Arg::U64(value) => words.push(value),
                Arg::I64(value) => append(&mut words, &value.to_ne_bytes()),
                Arg::F64(value) => append(&mut words, &value.to_ne_bytes()),
                Arg::U32(value) => append(&mut words, &value.to_ne_bytes()),
                Arg::I32(value) => append(&mut words, &value.to_ne_bytes()),
                Arg::F32(value) => append(&mut words, &value.to_ne_bytes()),
                Arg::Bytes(bytes) => append(&mut words, bytes),
                Arg::Fault => words.extend(fault.map_or([0; 2], FaultArg::words)),
            }
        }
        let arguments = Arguments::Listed(begins);
        (Kernel { function, grid, cluster: Cluster::default(), arguments }, words)
    }

    /// Where each argument is, or what tells of their buffer, for as long as this value and the words stay where they are.
    pub(super) fn list(&mut self, words: &mut [u64]) -> SmallVec<[*mut c_void; 32]> {
        let first = words.as_mut_ptr();
        match &mut self.arguments {
            Arguments::Listed(begins) => {
                begins.iter().map(|&at| first.wrapping_add(at.into()).cast()).collect()
            }
            Arguments::Buffer(bytes) => in_buffer(first.cast(), bytes).into_iter().collect(),
        }
    }

    /// # Safety
    /// As for [`Call::make`].
    unsafe fn launch(&mut self, words: &mut [u64], stream: sys::CUstream) -> Result<()> {
        let mut list = self.list(words);
        let (params, extra) = match self.arguments {
            Arguments::Listed(_) => (list.as_mut_ptr(), null_mut()),
            Arguments::Buffer(_) => (null_mut(), list.as_mut_ptr()),
        };
        let launched = || {
            // SAFETY: the caller's promise; the list tells of all arguments.
            unsafe { self.launch_with(params, extra, stream) }
        };
        match launched() {
            // A library may have let the function have less for another of its calls.
            Err(error)
                if matches!(error.kind(), ErrorKind::Driver { code: INVALID_VALUE, .. })
                    && self.function.allow_more_dynamic(self.grid.shared_bytes) =>
            {
                launched()
            }
            outcome => outcome,
        }
    }

    /// # Safety
    /// As for [`Call::make`]; the arguments are what the function takes.
    unsafe fn launch_with(
        &self,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
        stream: sys::CUstream,
    ) -> Result<()> {
        let Grid { blocks: [bx, by, bz], threads: [tx, ty, tz], shared_bytes } = self.grid;
        let function = self.function.0;
        let mut attributes = self.cluster.attributes();
        // SAFETY: stream and function are live, the arguments are as many and as long as it takes, and the driver copies them
        // before it returns. The caller answers for what they mean.
        unsafe {
            if attributes.is_empty() {
                let code = foreign!(sys::cuLaunchKernel(
                    function,
                    bx,
                    by,
                    bz,
                    tx,
                    ty,
                    tz,
                    shared_bytes,
                    stream,
                    params,
                    extra,
                ));
                return check("cuLaunchKernel", code);
            }
            let config = sys::CUlaunchConfig {
                gridDimX: bx,
                gridDimY: by,
                gridDimZ: bz,
                blockDimX: tx,
                blockDimY: ty,
                blockDimZ: tz,
                sharedMemBytes: shared_bytes,
                hStream: stream,
                attrs: attributes.as_mut_ptr(),
                numAttrs: attributes.len() as u32,
            };
            call!(cuLaunchKernelEx(&config, function, params, extra))
        }
    }
}

/// Appends bytes, and zeros up to the next word.
#[inline]
pub(super) fn append(words: &mut impl Extend<u64>, bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    words.extend(whole.iter().map(|&word| u64::from_ne_bytes(word)));
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words.extend([u64::from_ne_bytes(last)]);
    }
}

/// The blocks that run together on neighbouring multiprocessors, if there are any, and how clusters of them are spread.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cluster {
    pub(super) size: [u32; 3],
    pub(super) spread: u32,
}

impl Cluster {
    /// What a launch says of it.
    pub(super) fn attributes(&self) -> SmallVec<[sys::CUlaunchAttribute; 2]> {
        let [x, y, z] = self.size;
        if x.max(y).max(z) <= 1 {
            return SmallVec::new();
        }
        // SAFETY: a number and a union of numbers, all of which may be 0.
        let mut all: [sys::CUlaunchAttribute; 2] = unsafe { std::mem::zeroed() };
        all[0].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        all[0].value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
        all[1].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
        all[1].value.priority = self.spread as i32;
        all.into()
    }
}

/// What the entries that follow a number are, in a launch with a buffer of arguments.
pub(super) const END: usize = sys::CU_LAUNCH_PARAM_END_AS_INT as usize;
pub(super) const POINTER: usize = sys::CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT as usize;
pub(super) const SIZE: usize = sys::CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT as usize;

/// The `extra` argument of a launch whose arguments are in one buffer.
pub(super) fn in_buffer(words: *mut c_void, bytes: &mut usize) -> [*mut c_void; 5] {
    let number = std::ptr::without_provenance_mut::<c_void>;
    [number(POINTER), words, number(SIZE), std::ptr::from_mut(bytes).cast(), number(END)]
}
