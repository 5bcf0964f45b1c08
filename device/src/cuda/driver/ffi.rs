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
    /// What is returned in place of a function that the library lacks. [`probe`](super::probe) refuses such libraries.
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
    ($(fn $name:ident($($arg:ident: $ty:ty $(as $theirs:ty)?),* $(,)?) -> $returned:ty;)*) => {
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
        pub fn missing() -> Result<Option<&'static str>, ()> {
            let functions = functions().ok_or(())?;
            let missing = [$((functions.$name.is_none(), stringify!($name)),)*];
            Ok(missing.into_iter().find(|(missing, _)| *missing).map(|(_, name)| name))
        }

        $(
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

            const _: unsafe fn($(functions!(@ $ty $(, $theirs)?)),*) -> <$returned as super::Returned>::Theirs =
                theirs::$name;
        )*
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
        fn cuDriverGetVersion(driver_version: *mut c_int) -> CUresult;
        fn cuCtxGetCurrent(ctx: *mut CUcontext) -> CUresult;
        fn cuCtxGetStreamPriorityRange(
            least_priority: *mut c_int,
            greatest_priority: *mut c_int,
        ) -> CUresult;
        fn cuCtxSetCurrent(ctx: CUcontext) -> CUresult;
        fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult;
        fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, dev: CUdevice) -> CUresult;
        fn cuDeviceGetCount(count: *mut c_int) -> CUresult;
        fn cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice) -> CUresult;
        fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, dev: CUdevice) -> CUresult;
        fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> CUresult;
        fn cuDevicePrimaryCtxRetain(ctx: *mut CUcontext, dev: CUdevice) -> CUresult;
        fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CUresult;
        fn cuEventDestroy_v2(event: CUevent) -> CUresult;
        fn cuEventElapsedTime_v2(ms: *mut f32, start: CUevent, end: CUevent) -> CUresult;
        fn cuEventQuery(event: CUevent) -> CUresult;
        fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult;
        fn cuEventSynchronize(event: CUevent) -> CUresult;
        fn cuFuncGetAttribute(
            value: *mut c_int,
            attribute: CUfunction_attribute,
            function: CUfunction,
        ) -> CUresult;
        fn cuFuncGetName(name: *mut *const c_char, function: CUfunction) -> CUresult;
        fn cuFuncGetParamInfo(
            function: CUfunction,
            param_index: usize,
            param_offset: *mut usize,
            param_size: *mut usize,
        ) -> CUresult;
        fn cuFuncLoad(function: CUfunction) -> CUresult;
        fn cuFuncSetAttribute(
            function: CUfunction,
            attribute: CUfunction_attribute,
            value: c_int,
        ) -> CUresult;
        fn cuGetErrorName(error: CUresult as theirs::CUresult, name: *mut *const c_char) -> CUresult;
        fn cuGraphAddChildGraphNode(
            node: *mut CUgraphNode,
            graph: CUgraph,
            dependencies: *const CUgraphNode,
            num_dependencies: usize,
            child_graph: CUgraph,
        ) -> CUresult;
        fn cuGraphCreate(graph: *mut CUgraph, flags: c_uint) -> CUresult;
        fn cuGraphDestroy(graph: CUgraph) -> CUresult;
        fn cuGraphExecDestroy(exec: CUgraphExec) -> CUresult;
        fn cuGraphExecKernelNodeSetParams_v2(
            exec: CUgraphExec,
            node: CUgraphNode,
            node_params: *const CUDA_KERNEL_NODE_PARAMS,
        ) -> CUresult;
        fn cuGraphGetEdges_v2(
            graph: CUgraph,
            from: *mut CUgraphNode,
            to: *mut CUgraphNode,
            edge_data: *mut CUgraphEdgeData,
            num_edges: *mut usize,
        ) -> CUresult;
        fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, num_nodes: *mut usize) -> CUresult;
        fn cuGraphInstantiateWithFlags(
            exec: *mut CUgraphExec,
            graph: CUgraph,
            flags: c_ulonglong,
        ) -> CUresult;
        fn cuGraphKernelNodeGetAttribute(
            node: CUgraphNode,
            attribute: CUkernelNodeAttrID,
            value: *mut CUkernelNodeAttrValue,
        ) -> CUresult;
        fn cuGraphKernelNodeGetParams_v2(
            node: CUgraphNode,
            node_params: *mut CUDA_KERNEL_NODE_PARAMS,
        ) -> CUresult;
        fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> CUresult;
        fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut c_uint as *mut CUgraphNodeType) -> CUresult;
        fn cuInit(flags: c_uint) -> CUresult;
        fn cuIpcCloseMemHandle(ptr: CUdeviceptr) -> CUresult;
        fn cuIpcGetEventHandle(handle: *mut CUipcEventHandle, event: CUevent) -> CUresult;
        fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, ptr: CUdeviceptr) -> CUresult;
        fn cuIpcOpenEventHandle(event: *mut CUevent, handle: CUipcEventHandle) -> CUresult;
        fn cuIpcOpenMemHandle_v2(ptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) -> CUresult;
        fn cuKernelGetFunction(function: *mut CUfunction, kernel: CUkernel) -> CUresult;
        fn cuLaunchHostFunc(stream: CUstream, work: CUhostFn, user_data: *mut c_void) -> CUresult;
        fn cuLaunchKernel(
            function: CUfunction,
            grid_dim_x: c_uint,
            grid_dim_y: c_uint,
            grid_dim_z: c_uint,
            block_dim_x: c_uint,
            block_dim_y: c_uint,
            block_dim_z: c_uint,
            shared_mem_bytes: c_uint,
            stream: CUstream,
            kernel_params: *mut *mut c_void,
            extra: *mut *mut c_void,
        ) -> CUresult;
        fn cuLaunchKernelEx(
            config: *const CUlaunchConfig,
            function: CUfunction,
            kernel_params: *mut *mut c_void,
            extra: *mut *mut c_void,
        ) -> CUresult;
        fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) -> CUresult;
        fn cuMemAddressReserve(
            ptr: *mut CUdeviceptr,
            size: usize,
            alignment: usize,
            addr: CUdeviceptr,
            flags: c_ulonglong,
        ) -> CUresult;
        fn cuMemAlloc_v2(ptr: *mut CUdeviceptr, bytes: usize) -> CUresult;
        fn cuMemCreate(
            handle: *mut CUmemGenericAllocationHandle,
            size: usize,
            properties: *const CUmemAllocationProp,
            flags: c_ulonglong,
        ) -> CUresult;
        fn cuMemFreeHost(ptr: *mut c_void) -> CUresult;
        fn cuMemFree_v2(ptr: CUdeviceptr) -> CUresult;
        fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, ptr: CUdeviceptr) -> CUresult;
        fn cuMemGetAllocationGranularity(
            granularity: *mut usize,
            properties: *const CUmemAllocationProp,
            option: CUmemAllocationGranularity_flags,
        ) -> CUresult;
        fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult;
        fn cuMemHostAlloc(ptr: *mut *mut c_void, bytes: usize, flags: c_uint) -> CUresult;
        fn cuMemMap(
            ptr: CUdeviceptr,
            size: usize,
            offset: usize,
            handle: CUmemGenericAllocationHandle,
            flags: c_ulonglong,
        ) -> CUresult;
        fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult;
        fn cuMemSetAccess(
            ptr: CUdeviceptr,
            size: usize,
            desc: *const CUmemAccessDesc,
            count: usize,
        ) -> CUresult;
        fn cuMemUnmap(ptr: CUdeviceptr, size: usize) -> CUresult;
        fn cuMemcpyDtoDAsync_v2(
            dst_device: CUdeviceptr,
            src_device: CUdeviceptr,
            byte_count: usize,
            stream: CUstream,
        ) -> CUresult;
        fn cuMemcpyDtoHAsync_v2(
            dst_host: *mut c_void,
            src_device: CUdeviceptr,
            byte_count: usize,
            stream: CUstream,
        ) -> CUresult;
        fn cuMemcpyHtoDAsync_v2(
            dst_device: CUdeviceptr,
            src_host: *const c_void,
            byte_count: usize,
            stream: CUstream,
        ) -> CUresult;
        fn cuMemcpyPeerAsync(
            dst_device: CUdeviceptr,
            dst_context: CUcontext,
            src_device: CUdeviceptr,
            src_context: CUcontext,
            byte_count: usize,
            stream: CUstream,
        ) -> CUresult;
        fn cuMemsetD8Async(
            dst_device: CUdeviceptr,
            value: c_uchar,
            bytes: usize,
            stream: CUstream,
        ) -> CUresult;
        fn cuModuleEnumerateFunctions(
            functions: *mut CUfunction,
            num_functions: c_uint,
            module: CUmodule,
        ) -> CUresult;
        fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char) -> CUresult;
        fn cuModuleGetFunctionCount(count: *mut c_uint, module: CUmodule) -> CUresult;
        fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult;
        fn cuModuleUnload(module: CUmodule) -> CUresult;
        fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
            num_blocks: *mut c_int,
            function: CUfunction,
            block_size: c_int,
            dynamic_smem_size: usize,
        ) -> CUresult;
        fn cuStreamBeginCaptureToGraph(
            stream: CUstream,
            graph: CUgraph,
            dependencies: *const CUgraphNode,
            dependency_data: *const CUgraphEdgeData,
            num_dependencies: usize,
            mode: CUstreamCaptureMode,
        ) -> CUresult;
        fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) -> CUresult;
        fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> CUresult;
        fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int) -> CUresult;
        fn cuStreamDestroy_v2(stream: CUstream) -> CUresult;
        fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CUresult;
        fn cuStreamGetCaptureInfo_v3(
            stream: CUstream,
            capture_status: *mut c_uint as *mut CUstreamCaptureStatus,
            id: *mut cuuint64_t,
            graph: *mut CUgraph,
            dependencies: *mut *const CUgraphNode,
            edge_data: *mut *const CUgraphEdgeData,
            num_dependencies: *mut usize,
        ) -> CUresult;
        fn cuStreamQuery(stream: CUstream) -> CUresult;
        fn cuStreamSynchronize(stream: CUstream) -> CUresult;
        fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> CUresult;
        fn cuStreamWaitValue32_v2(
            stream: CUstream,
            addr: CUdeviceptr,
            value: cuuint32_t,
            flags: c_uint,
        ) -> CUresult;
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
        fn cublasLtCreate(handle: *mut cublasLtHandle_t) -> cublasStatus_t;
        fn cublasLtDestroy(handle: cublasLtHandle_t) -> cublasStatus_t;
        fn cublasLtGetVersion() -> usize;
        fn cublasLtMatmul(
            handle: cublasLtHandle_t,
            operation: cublasLtMatmulDesc_t,
            alpha: *const c_void,
            a: *const c_void,
            adesc: cublasLtMatrixLayout_t,
            b: *const c_void,
            bdesc: cublasLtMatrixLayout_t,
            beta: *const c_void,
            c: *const c_void,
            cdesc: cublasLtMatrixLayout_t,
            d: *mut c_void,
            ddesc: cublasLtMatrixLayout_t,
            algo: *const cublasLtMatmulAlgo_t,
            workspace: *mut c_void,
            workspace_size_in_bytes: usize,
            stream: cudaStream_t,
        ) -> cublasStatus_t;
        fn cublasLtMatmulAlgoConfigGetAttribute(
            algo: *const cublasLtMatmulAlgo_t,
            attribute: cublasLtMatmulAlgoConfigAttributes_t,
            value: *mut c_void,
            size_in_bytes: usize,
            size_written: *mut usize,
        ) -> cublasStatus_t;
        fn cublasLtMatmulAlgoGetHeuristic(
            handle: cublasLtHandle_t,
            operation: cublasLtMatmulDesc_t,
            adesc: cublasLtMatrixLayout_t,
            bdesc: cublasLtMatrixLayout_t,
            cdesc: cublasLtMatrixLayout_t,
            ddesc: cublasLtMatrixLayout_t,
            preference: cublasLtMatmulPreference_t,
            requested_algo_count: c_int,
            heuristic_results_array: *mut cublasLtMatmulHeuristicResult_t as *mut theirs::cublasLtMatmulHeuristicResult_t,
            return_algo_count: *mut c_int,
        ) -> cublasStatus_t;
        fn cublasLtMatmulDescCreate(
            operation: *mut cublasLtMatmulDesc_t,
            compute_type: cublasComputeType_t,
            scale_type: cudaDataType_t,
        ) -> cublasStatus_t;
        fn cublasLtMatmulDescDestroy(operation: cublasLtMatmulDesc_t) -> cublasStatus_t;
        fn cublasLtMatmulDescSetAttribute(
            operation: cublasLtMatmulDesc_t,
            attribute: cublasLtMatmulDescAttributes_t,
            value: *const c_void,
            size_in_bytes: usize,
        ) -> cublasStatus_t;
        fn cublasLtMatmulPreferenceCreate(preference: *mut cublasLtMatmulPreference_t) -> cublasStatus_t;
        fn cublasLtMatmulPreferenceDestroy(preference: cublasLtMatmulPreference_t) -> cublasStatus_t;
        fn cublasLtMatmulPreferenceSetAttribute(
            preference: cublasLtMatmulPreference_t,
            attribute: cublasLtMatmulPreferenceAttributes_t,
            value: *const c_void,
            size_in_bytes: usize,
        ) -> cublasStatus_t;
        fn cublasLtMatrixLayoutCreate(
            layout: *mut cublasLtMatrixLayout_t,
            kind: cudaDataType,
            rows: u64,
            cols: u64,
            ld: i64,
        ) -> cublasStatus_t;
        fn cublasLtMatrixLayoutDestroy(layout: cublasLtMatrixLayout_t) -> cublasStatus_t;
        fn cublasLtMatrixLayoutSetAttribute(
            layout: cublasLtMatrixLayout_t,
            attribute: cublasLtMatrixLayoutAttribute_t,
            value: *const c_void,
            size_in_bytes: usize,
        ) -> cublasStatus_t;
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
        fn nvrtcCompileProgram(
            program: nvrtcProgram,
            num_options: c_int,
            options: *const *const c_char,
        ) -> nvrtcResult;
        fn nvrtcCreateProgram(
            program: *mut nvrtcProgram,
            source: *const c_char,
            name: *const c_char,
            num_headers: c_int,
            headers: *const *const c_char,
            include_names: *const *const c_char,
        ) -> nvrtcResult;
        fn nvrtcDestroyProgram(program: *mut nvrtcProgram) -> nvrtcResult;
        fn nvrtcGetCUBIN(program: nvrtcProgram, cubin: *mut c_char) -> nvrtcResult;
        fn nvrtcGetCUBINSize(program: nvrtcProgram, cubin_size_ret: *mut usize) -> nvrtcResult;
        fn nvrtcGetProgramLog(program: nvrtcProgram, log: *mut c_char) -> nvrtcResult;
        fn nvrtcGetProgramLogSize(program: nvrtcProgram, log_size_ret: *mut usize) -> nvrtcResult;
        fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> nvrtcResult;
    }
}
