//! The functions of the driver, cuBLASLt and NVRTC that are called, all of them by `foreign!`, none by cudarc's function of the
//! same name.
//!
//! cudarc declares what they return as Rust enums. A library that is newer than cudarc may return a code that the enum does not
//! have, which is undefined behaviour. So the functions are looked up here once more, and return integers in place of status
//! codes. Their parameters are those that cudarc declares.

#![allow(missing_docs, non_camel_case_types, non_snake_case, clippy::result_unit_err)]

/// What cudarc declares that a function returns.
pub trait Returned {
    /// What it returns here.
    type Ours;
    /// What is returned in place of a function that the library lacks. `probe` refuses such libraries.
    const ABSENT: Self::Ours;
}

/// Where a library has a function.
pub type Found = Option<unsafe extern "C" fn()>;

/// A function as cudarc declares it.
pub trait Declared {
    type Pointer;

    /// The function of the library.
    ///
    /// # Safety
    /// What was found has the declared parameters, and returns what `Returned` says.
    unsafe fn at(self, found: Found) -> Self::Pointer;
}

/// Implements `Declared` for functions of at most so many parameters.
macro_rules! declared {
    ($($first:ident $($rest:ident)*)?) => {
        impl<R: Returned, $($first, $($rest,)*)?> Declared for unsafe fn($($first, $($rest,)*)?) -> R {
            type Pointer = unsafe extern "C" fn($($first, $($rest,)*)?) -> R::Ours;

            #[inline]
            unsafe fn at(self, found: Found) -> Self::Pointer {
                unsafe extern "C" fn absent<R: Returned, $($first, $($rest,)*)?>($(_: $first, $(_: $rest,)*)?) -> R::Ours {
                    R::ABSENT
                }
                match found {
                    // SAFETY: the caller's promise.
                    Some(found) => unsafe { std::mem::transmute::<unsafe extern "C" fn(), Self::Pointer>(found) },
                    None => absent::<R, $($first, $($rest,)*)?>,
                }
            }
        }

        $(declared!($($rest)*);)?
    };
}

declared!(A B C D E F G H I J K L M N O P);

/// Calls a function of `sys`, `blas` or `nvrtc`; with `as fn(_)` after its name, its address.
#[macro_export]
macro_rules! foreign {
    ($library:ident::$name:ident($($argument:expr),* $(,)?)) => {
        $crate::foreign!($library::$name as fn($($crate::foreign!(@ $argument)),*))($($argument),*)
    };
    ($library:ident::$name:ident as fn($($parameter:ty),*)) => {{
        let declared: unsafe fn($($parameter),*) -> _ = $library::theirs::$name;
        $crate::cuda::ffi::Declared::at(declared, $library::functions().$name)
    }};
    (@ $argument:expr) => { _ };
}

/// A status code of the library, and the names of those that are known.
macro_rules! status {
    ($name:ident, $absent:ident; $($code:ident)*) => {
        /// A status code.
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct $name(pub i32);

        #[allow(dead_code)]
        impl $name {
            $(pub const $code: $name = $name(theirs::$name::$code as i32);)*

            pub fn name(self) -> Option<&'static str> {
                $(if self == $name::$code {
                    return Some(stringify!($code));
                })*
                None
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "unknown code {}", self.0),
                }
            }
        }

        impl super::Returned for theirs::$name {
            type Ours = $name;
            const ABSENT: $name = $name::$absent;
        }
    };
}

/// The functions of a library that are called.
macro_rules! functions {
    ($($name:ident)*) => {
        #[derive(Default)]
        pub struct Functions {
            is_present: bool,
            $(pub $name: super::Found,)*
        }

        #[inline]
        pub fn functions() -> &'static Functions {
            static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
            FUNCTIONS.get_or_init(load)
        }

        #[cold]
        fn load() -> Functions {
            // SAFETY: only looks for the library and loads it.
            if !unsafe { theirs::is_culib_present() } {
                return Functions::default();
            }
            // SAFETY: the library is there, and has functions with these names.
            let find = |name: &str| unsafe { theirs::culib().get(name.as_bytes()).ok().map(|found| *found) };
            Functions { is_present: true, $($name: find(concat!(stringify!($name), "\0")),)* }
        }

        /// The first function that the library lacks; `Err` if there is no library.
        pub(crate) fn missing() -> Result<Option<&'static str>, ()> {
            let functions = Some(functions()).filter(|functions| functions.is_present).ok_or(())?;
            let missing = [$((functions.$name.is_none(), stringify!($name)),)*];
            Ok(missing.into_iter().find(|(missing, _)| *missing).map(|(_, name)| name))
        }
    };
}

impl Returned for usize {
    type Ours = usize;
    const ABSENT: usize = 0;
}

/// The driver.
pub mod sys {
    use std::sync::OnceLock;

    pub use cudarc::driver::sys as theirs;
    pub use theirs::*;

    status! {
        CUresult, CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;
        CUDA_SUCCESS
        CUDA_ERROR_INVALID_VALUE
        CUDA_ERROR_OUT_OF_MEMORY
        CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND
        CUDA_ERROR_NOT_FOUND
        CUDA_ERROR_NOT_READY
    }

    // The first one is in every driver, and tells whether the others are there.
    functions! {
        cuDriverGetVersion cuCtxGetCurrent cuCtxGetStreamPriorityRange cuCtxSetCurrent cuDeviceGet
        cuDeviceGetAttribute cuDeviceGetCount cuDeviceGetName cuDeviceGetUuid_v2
        cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRetain cuEventCreate cuEventDestroy_v2
        cuEventElapsedTime_v2 cuEventQuery cuEventRecord cuEventSynchronize cuFuncGetAttribute cuFuncGetName
        cuFuncGetParamInfo cuFuncLoad cuFuncSetAttribute cuGetErrorName cuGraphAddChildGraphNode
        cuGraphCreate cuGraphDestroy cuGraphExecDestroy cuGraphExecKernelNodeSetParams_v2 cuGraphGetEdges_v2
        cuGraphGetNodes cuGraphInstantiateWithFlags cuGraphKernelNodeGetAttribute
        cuGraphKernelNodeGetParams_v2 cuGraphLaunch cuGraphNodeGetType cuInit cuIpcCloseMemHandle
        cuIpcGetEventHandle cuIpcGetMemHandle cuIpcOpenEventHandle cuIpcOpenMemHandle_v2 cuKernelGetFunction
        cuLaunchHostFunc cuLaunchKernel cuLaunchKernelEx cuMemAddressFree cuMemAddressReserve cuMemAlloc_v2
        cuMemCreate cuMemFreeHost cuMemFree_v2 cuMemGetAddressRange_v2 cuMemGetAllocationGranularity
        cuMemGetInfo_v2 cuMemHostAlloc cuMemMap cuMemRelease cuMemSetAccess cuMemUnmap cuMemcpyDtoDAsync_v2
        cuMemcpyDtoHAsync_v2 cuMemcpyHtoDAsync_v2 cuMemcpyPeerAsync cuMemsetD8Async
        cuModuleEnumerateFunctions cuModuleGetFunction cuModuleGetFunctionCount cuModuleLoadData
        cuModuleUnload cuOccupancyMaxActiveBlocksPerMultiprocessor cuStreamBeginCaptureToGraph
        cuStreamBeginCapture_v2 cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy_v2
        cuStreamEndCapture cuStreamGetCaptureInfo_v3 cuStreamQuery cuStreamSynchronize cuStreamWaitEvent
        cuStreamWaitValue32_v2
    }
}

/// cuDNN, whose functions its caller looks up.
pub use cudarc::cudnn::sys as dnn;

/// cuBLASLt.
pub mod blas {
    use std::sync::OnceLock;

    pub use cudarc::cublaslt::sys as theirs;
    pub use theirs::*;

    status! {
        cublasStatus_t, CUBLAS_STATUS_NOT_INITIALIZED;
        CUBLAS_STATUS_SUCCESS
        CUBLAS_STATUS_NOT_INITIALIZED
        CUBLAS_STATUS_ALLOC_FAILED
        CUBLAS_STATUS_INVALID_VALUE
        CUBLAS_STATUS_ARCH_MISMATCH
        CUBLAS_STATUS_MAPPING_ERROR
        CUBLAS_STATUS_EXECUTION_FAILED
        CUBLAS_STATUS_INTERNAL_ERROR
        CUBLAS_STATUS_NOT_SUPPORTED
        CUBLAS_STATUS_LICENSE_ERROR
    }

    functions! {
        cublasLtCreate cublasLtDestroy cublasLtGetVersion cublasLtMatmul
        cublasLtMatmulAlgoConfigGetAttribute cublasLtMatmulAlgoGetHeuristic cublasLtMatmulDescCreate
        cublasLtMatmulDescDestroy cublasLtMatmulDescSetAttribute cublasLtMatmulPreferenceCreate
        cublasLtMatmulPreferenceDestroy cublasLtMatmulPreferenceSetAttribute cublasLtMatrixLayoutCreate
        cublasLtMatrixLayoutDestroy cublasLtMatrixLayoutSetAttribute
    }
}

/// The compiler of kernels.
pub mod nvrtc {
    use std::sync::OnceLock;

    pub use cudarc::nvrtc::sys as theirs;
    pub use theirs::*;

    status! {
        nvrtcResult, NVRTC_ERROR_INTERNAL_ERROR;
        NVRTC_SUCCESS
        NVRTC_ERROR_OUT_OF_MEMORY
        NVRTC_ERROR_PROGRAM_CREATION_FAILURE
        NVRTC_ERROR_INVALID_INPUT
        NVRTC_ERROR_INVALID_PROGRAM
        NVRTC_ERROR_INVALID_OPTION
        NVRTC_ERROR_COMPILATION
        NVRTC_ERROR_BUILTIN_OPERATION_FAILURE
        NVRTC_ERROR_INTERNAL_ERROR
    }

    functions! {
        nvrtcCompileProgram nvrtcCreateProgram nvrtcDestroyProgram nvrtcGetCUBIN nvrtcGetCUBINSize
        nvrtcGetProgramLog nvrtcGetProgramLogSize nvrtcVersion
    }
}
