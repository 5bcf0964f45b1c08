//! The functions of the driver, cuBLASLt and NVRTC that are called.
//!
//! cudarc declares what they return as Rust enums. A library that is newer than cudarc may return a code that the enum does not
//! have, which is undefined behaviour. So functions are declared here once more: status codes, and enums that a library writes
//! through a pointer, are integers. All else is cudarc's: each signature is checked against it when this file is compiled.

#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    clippy::too_many_arguments,
    clippy::result_unit_err
)]

/// What a function returns.
pub trait Returned {
    /// As cudarc has it.
    type Theirs;
    /// What is returned in place of a function that the library lacks. `probe` refuses such libraries.
    const ABSENT: Self;
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

        impl super::Returned for $name {
            type Theirs = theirs::$name;
            const ABSENT: $name = $name::$absent;
        }
    };
}

/// The functions of a library. Where cudarc declares a parameter otherwise, its type there follows `as`.
macro_rules! functions {
    ($(fn $name:ident($($ty:ty $(as $theirs:ty)?),* $(,)?) -> $returned:ty;)*) => {
        struct Functions {
            $($name: Option<unsafe extern "C" fn($($ty),*) -> $returned>,)*
        }

        fn functions() -> Option<&'static Functions> {
            static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
            FUNCTIONS.get_or_init(load).as_ref()
        }

        #[cold]
        fn load() -> Option<Functions> {
            // SAFETY: only looks for the library and loads it.
            if !unsafe { theirs::is_culib_present() } {
                return None;
            }
            // SAFETY: the library is there, and its functions with these names have these types.
            Some(unsafe {
                let library = theirs::culib();
                Functions {
                    $($name: library.get(concat!(stringify!($name), "\0").as_bytes()).ok().map(|found| *found),)*
                }
            })
        }

        /// The first function that the library lacks; `Err` if there is no library.
        pub(crate) fn missing() -> Result<Option<&'static str>, ()> {
            let functions = functions().ok_or(())?;
            let missing = [$((functions.$name.is_none(), stringify!($name)),)*];
            Ok(missing.into_iter().find(|(missing, _)| *missing).map(|(_, name)| name))
        }

        $(
            functions!(@wrap $name, $returned, [], [a b c d e f g h i j k l m n o p], ($($ty,)*));

            const _: unsafe fn($(functions!(@ $ty $(, $theirs)?)),*) -> <$returned as super::Returned>::Theirs =
                theirs::$name;
        )*
    };
    (@wrap $name:ident, $returned:ty, [$($arg:ident: $ty:ty,)*], [$($rest:ident)*], ()) => {
        /// # Safety
        /// As the library's documentation has it.
        #[inline]
        pub unsafe fn $name($($arg: $ty),*) -> $returned {
            match functions().and_then(|functions| functions.$name) {
                // SAFETY: the caller's promise.
                Some(function) => unsafe { function($($arg),*) },
                None => <$returned as super::Returned>::ABSENT,
            }
        }
    };
    // Names the next parameter.
    (@wrap $name:ident, $returned:ty, [$($named:tt)*], [$next:ident $($rest:ident)*], ($ty:ty, $($more:ty,)*)) => {
        functions!(@wrap $name, $returned, [$($named)* $next: $ty,], [$($rest)*], ($($more,)*));
    };
    (@ $ours:ty, $theirs:ty) => { $theirs };
    (@ $ours:ty) => { $ours };
}

impl Returned for usize {
    type Theirs = usize;
    const ABSENT: usize = 0;
}

/// The driver.
pub mod sys {
    use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
    use std::sync::OnceLock;

    use cudarc::driver::sys as theirs;
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
        fn cuDriverGetVersion(*mut c_int) -> CUresult;
        fn cuCtxGetCurrent(*mut CUcontext) -> CUresult;
        fn cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int) -> CUresult;
        fn cuCtxSetCurrent(CUcontext) -> CUresult;
        fn cuDeviceGet(*mut CUdevice, c_int) -> CUresult;
        fn cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice) -> CUresult;
        fn cuDeviceGetCount(*mut c_int) -> CUresult;
        fn cuDeviceGetName(*mut c_char, c_int, CUdevice) -> CUresult;
        fn cuDeviceGetUuid_v2(*mut CUuuid, CUdevice) -> CUresult;
        fn cuDevicePrimaryCtxRelease_v2(CUdevice) -> CUresult;
        fn cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice) -> CUresult;
        fn cuEventCreate(*mut CUevent, c_uint) -> CUresult;
        fn cuEventDestroy_v2(CUevent) -> CUresult;
        fn cuEventElapsedTime_v2(*mut f32, CUevent, CUevent) -> CUresult;
        fn cuEventQuery(CUevent) -> CUresult;
        fn cuEventRecord(CUevent, CUstream) -> CUresult;
        fn cuEventSynchronize(CUevent) -> CUresult;
        fn cuFuncGetAttribute(*mut c_int, CUfunction_attribute, CUfunction) -> CUresult;
        fn cuFuncGetName(*mut *const c_char, CUfunction) -> CUresult;
        fn cuFuncGetParamInfo(CUfunction, usize, *mut usize, *mut usize) -> CUresult;
        fn cuFuncLoad(CUfunction) -> CUresult;
        fn cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int) -> CUresult;
        fn cuGetErrorName(CUresult as theirs::CUresult, *mut *const c_char) -> CUresult;
        fn cuGraphAddChildGraphNode(*mut CUgraphNode, CUgraph, *const CUgraphNode, usize, CUgraph) -> CUresult;
        fn cuGraphCreate(*mut CUgraph, c_uint) -> CUresult;
        fn cuGraphDestroy(CUgraph) -> CUresult;
        fn cuGraphExecDestroy(CUgraphExec) -> CUresult;
        fn cuGraphExecKernelNodeSetParams_v2(CUgraphExec, CUgraphNode, *const CUDA_KERNEL_NODE_PARAMS) -> CUresult;
        fn cuGraphGetEdges_v2(CUgraph, *mut CUgraphNode, *mut CUgraphNode, *mut CUgraphEdgeData, *mut usize
        ) -> CUresult;
        fn cuGraphGetNodes(CUgraph, *mut CUgraphNode, *mut usize) -> CUresult;
        fn cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong) -> CUresult;
        fn cuGraphKernelNodeGetAttribute(CUgraphNode, CUkernelNodeAttrID, *mut CUkernelNodeAttrValue) -> CUresult;
        fn cuGraphKernelNodeGetParams_v2(CUgraphNode, *mut CUDA_KERNEL_NODE_PARAMS) -> CUresult;
        fn cuGraphLaunch(CUgraphExec, CUstream) -> CUresult;
        fn cuGraphNodeGetType(CUgraphNode, *mut c_uint as *mut CUgraphNodeType) -> CUresult;
        fn cuInit(c_uint) -> CUresult;
        fn cuIpcCloseMemHandle(CUdeviceptr) -> CUresult;
        fn cuIpcGetEventHandle(*mut CUipcEventHandle, CUevent) -> CUresult;
        fn cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr) -> CUresult;
        fn cuIpcOpenEventHandle(*mut CUevent, CUipcEventHandle) -> CUresult;
        fn cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint) -> CUresult;
        fn cuKernelGetFunction(*mut CUfunction, CUkernel) -> CUresult;
        fn cuLaunchHostFunc(CUstream, CUhostFn, *mut c_void) -> CUresult;
        fn cuLaunchKernel(CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
            *mut *mut c_void, *mut *mut c_void) -> CUresult;
        fn cuLaunchKernelEx(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void) -> CUresult;
        fn cuMemAddressFree(CUdeviceptr, usize) -> CUresult;
        fn cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong) -> CUresult;
        fn cuMemAlloc_v2(*mut CUdeviceptr, usize) -> CUresult;
        fn cuMemCreate(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong) -> CUresult;
        fn cuMemFreeHost(*mut c_void) -> CUresult;
        fn cuMemFree_v2(CUdeviceptr) -> CUresult;
        fn cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr) -> CUresult;
        fn cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp,
            CUmemAllocationGranularity_flags) -> CUresult;
        fn cuMemGetInfo_v2(*mut usize, *mut usize) -> CUresult;
        fn cuMemHostAlloc(*mut *mut c_void, usize, c_uint) -> CUresult;
        fn cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong) -> CUresult;
        fn cuMemRelease(CUmemGenericAllocationHandle) -> CUresult;
        fn cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize) -> CUresult;
        fn cuMemUnmap(CUdeviceptr, usize) -> CUresult;
        fn cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream) -> CUresult;
        fn cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream) -> CUresult;
        fn cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream) -> CUresult;
        fn cuMemcpyPeerAsync(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream) -> CUresult;
        fn cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream) -> CUresult;
        fn cuModuleEnumerateFunctions(*mut CUfunction, c_uint, CUmodule) -> CUresult;
        fn cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char) -> CUresult;
        fn cuModuleGetFunctionCount(*mut c_uint, CUmodule) -> CUresult;
        fn cuModuleLoadData(*mut CUmodule, *const c_void) -> CUresult;
        fn cuModuleUnload(CUmodule) -> CUresult;
        fn cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, CUfunction, c_int, usize) -> CUresult;
        fn cuStreamBeginCaptureToGraph(CUstream, CUgraph, *const CUgraphNode, *const CUgraphEdgeData, usize,
            CUstreamCaptureMode) -> CUresult;
        fn cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode) -> CUresult;
        fn cuStreamCreate(*mut CUstream, c_uint) -> CUresult;
        fn cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int) -> CUresult;
        fn cuStreamDestroy_v2(CUstream) -> CUresult;
        fn cuStreamEndCapture(CUstream, *mut CUgraph) -> CUresult;
        fn cuStreamGetCaptureInfo_v3(CUstream, *mut c_uint as *mut CUstreamCaptureStatus, *mut cuuint64_t,
            *mut CUgraph, *mut *const CUgraphNode, *mut *const CUgraphEdgeData, *mut usize) -> CUresult;
        fn cuStreamQuery(CUstream) -> CUresult;
        fn cuStreamSynchronize(CUstream) -> CUresult;
        fn cuStreamWaitEvent(CUstream, CUevent, c_uint) -> CUresult;
        fn cuStreamWaitValue32_v2(CUstream, CUdeviceptr, cuuint32_t, c_uint) -> CUresult;
    }
}

/// cuDNN, whose functions its caller looks up.
pub use cudarc::cudnn::sys as dnn;

/// cuBLASLt.
pub mod blas {
    use std::ffi::{c_int, c_void};
    use std::sync::OnceLock;

    use cudarc::cublaslt::sys as theirs;
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

    /// As the library has it, with a status that is a number.
    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct cublasLtMatmulHeuristicResult_t {
        pub algo: cublasLtMatmulAlgo_t,
        pub workspaceSize: usize,
        pub state: cublasStatus_t,
        pub wavesCount: f32,
        pub reserved: [c_int; 4],
    }

    const _: () = {
        use std::mem::offset_of;
        assert!(
            size_of::<cublasLtMatmulHeuristicResult_t>()
                == size_of::<theirs::cublasLtMatmulHeuristicResult_t>()
                && offset_of!(cublasLtMatmulHeuristicResult_t, state)
                    == offset_of!(theirs::cublasLtMatmulHeuristicResult_t, state)
                && offset_of!(cublasLtMatmulHeuristicResult_t, wavesCount)
                    == offset_of!(theirs::cublasLtMatmulHeuristicResult_t, wavesCount)
        );
    };

    functions! {
        fn cublasLtCreate(*mut cublasLtHandle_t) -> cublasStatus_t;
        fn cublasLtDestroy(cublasLtHandle_t) -> cublasStatus_t;
        fn cublasLtGetVersion() -> usize;
        fn cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, *const c_void, *const c_void,
            cublasLtMatrixLayout_t, *const c_void, cublasLtMatrixLayout_t, *const c_void, *const c_void,
            cublasLtMatrixLayout_t, *mut c_void, cublasLtMatrixLayout_t, *const cublasLtMatmulAlgo_t,
            *mut c_void, usize, cudaStream_t) -> cublasStatus_t;
        fn cublasLtMatmulAlgoConfigGetAttribute(*const cublasLtMatmulAlgo_t,
            cublasLtMatmulAlgoConfigAttributes_t, *mut c_void, usize, *mut usize) -> cublasStatus_t;
        fn cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
            cublasLtMatmulPreference_t, c_int,
            *mut cublasLtMatmulHeuristicResult_t as *mut theirs::cublasLtMatmulHeuristicResult_t, *mut c_int
        ) -> cublasStatus_t;
        fn cublasLtMatmulDescCreate(*mut cublasLtMatmulDesc_t, cublasComputeType_t, cudaDataType_t) -> cublasStatus_t;
        fn cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t) -> cublasStatus_t;
        fn cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, *const c_void,
            usize) -> cublasStatus_t;
        fn cublasLtMatmulPreferenceCreate(*mut cublasLtMatmulPreference_t) -> cublasStatus_t;
        fn cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) -> cublasStatus_t;
        fn cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
            cublasLtMatmulPreferenceAttributes_t, *const c_void, usize) -> cublasStatus_t;
        fn cublasLtMatrixLayoutCreate(*mut cublasLtMatrixLayout_t, cudaDataType, u64, u64, i64) -> cublasStatus_t;
        fn cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t) -> cublasStatus_t;
        fn cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t,
            *const c_void, usize) -> cublasStatus_t;
    }
}

/// The compiler of kernels.
pub mod nvrtc {
    use std::ffi::{c_char, c_int};
    use std::sync::OnceLock;

    use cudarc::nvrtc::sys as theirs;
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
        fn nvrtcCompileProgram(nvrtcProgram, c_int, *const *const c_char) -> nvrtcResult;
        fn nvrtcCreateProgram(*mut nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char,
            *const *const c_char) -> nvrtcResult;
        fn nvrtcDestroyProgram(*mut nvrtcProgram) -> nvrtcResult;
        fn nvrtcGetCUBIN(nvrtcProgram, *mut c_char) -> nvrtcResult;
        fn nvrtcGetCUBINSize(nvrtcProgram, *mut usize) -> nvrtcResult;
        fn nvrtcGetProgramLog(nvrtcProgram, *mut c_char) -> nvrtcResult;
        fn nvrtcGetProgramLogSize(nvrtcProgram, *mut usize) -> nvrtcResult;
        fn nvrtcVersion(*mut c_int, *mut c_int) -> nvrtcResult;
    }
}
