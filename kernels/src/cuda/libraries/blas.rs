//! Products by cuBLASLt. An algorithm is chosen once for each form of product, and kept.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use blas::cublasLtMatmulDescAttributes_t as Of;
use device::cuda::ffi::blas;
use device::cuda::{Addresses, Enqueued, Queue, Workspace};
use device::{DType, Error, ErrorKind, Result, foreign};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use super::Gemm;
use super::choice::{Traits, choose};

/// A device's handle, which all its streams share, and the algorithms that were chosen for it.
pub(super) struct Blas {
    handle: blas::cublasLtHandle_t,
    /// `None` for a form that the library has no algorithm for.
    chosen: RwLock<FxHashMap<GemmKey, Option<Arc<Algorithm>>>>,
}

// SAFETY: a handle belongs to no thread, and is destroyed by the one that drops it last.
unsafe impl Send for Blas {}
// SAFETY: cuBLASLt's functions may be called from many threads at once with one handle, whose settings nobody changes.
unsafe impl Sync for Blas {}

/// The most bytes of memory that a product works in, as the vendor recommends for architectures with large products.
const WORKSPACE: usize = 32 << 20;

/// How many forms are kept. Programs have some hundreds at most, unless their shapes keep changing: then all are forgotten
/// now and then, and those still in use chosen again.
const MAX_FORMS: usize = 2048;

/// How many algorithms the library is asked for.
const CANDIDATES: usize = 8;

/// The largest alignment that forms tell apart, that of the widest loads.
const MAX_ALIGNMENT: usize = 16;

/// All that an algorithm is chosen by, so that products of one form give the same bits on every stream, and as part of a
/// graph: the product, and the alignments of A, B, C and the bias.
type GemmKey = (Gemm, [usize; 4]);

/// How products of a form are made.
struct Algorithm {
    operation: Owned<blas::cublasLtMatmulDesc_t>,
    /// Of A, B and C.
    layouts: [Owned<blas::cublasLtMatrixLayout_t>; 3],
    algorithm: blas::cublasLtMatmulAlgo_t,
    /// Bytes of memory that a product works in.
    workspace: usize,
    /// What products enqueue whose result has no terms yet, and those that add to what is there.
    enqueued: [Enqueued; 2],
    /// Held from when the operation is given the address of a bias until the product is enqueued.
    bias: Mutex<()>,
}

// SAFETY: the descriptors belong to no thread, and are destroyed by the one that drops them last.
unsafe impl Send for Algorithm {}
// SAFETY: cuBLASLt reads descriptors from many threads at once. Only a bias's address is written to a shared one, under a lock
// that every use of a descriptor with a bias holds.
unsafe impl Sync for Algorithm {}

/// A descriptor of the library, with the function that destroys it.
struct Owned<T: Copy>(T, unsafe extern "C" fn(T) -> blas::cublasStatus_t);

impl<T: Copy> Owned<*mut T> {
    /// The descriptor that `create` writes.
    fn new(
        create: impl FnOnce(&mut *mut T) -> Result<()>,
        destroy: unsafe extern "C" fn(*mut T) -> blas::cublasStatus_t,
    ) -> Result<Owned<*mut T>> {
        let mut raw = std::ptr::null_mut();
        create(&mut raw)?;
        Ok(Owned(raw, destroy))
    }
}

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; the library keeps none of it.
        unsafe { (self.1)(self.0) };
    }
}

/// Calls a function of the library, by its name; an error unless it succeeded.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        done(stringify!($name), foreign!(blas::$name($($argument),*)))
    };
}

fn done(call: &'static str, status: blas::cublasStatus_t) -> Result<()> {
    if status == blas::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Driver {
        call,
        code: status.0,
        name: status.name().unwrap_or("unknown").into(),
    }))
}

/// The library's name of an element type.
fn data_type(op: &'static str, dtype: DType) -> Result<blas::cudaDataType> {
    match dtype {
        DType::F32 => Ok(blas::cudaDataType::CUDA_R_32F),
        DType::F64 => Ok(blas::cudaDataType::CUDA_R_64F),
        DType::BF16 => Ok(blas::cudaDataType::CUDA_R_16BF),
        DType::F16 => Ok(blas::cudaDataType::CUDA_R_16F),
        dtype => Err(Error::dtype_unsupported(op, dtype, "floats")),
    }
}

/// What a product and the terms that are there are multiplied with. They always lie in the same places, which kernels are told,
/// though they do not look there.
fn scalars(g: &Gemm, accumulate: bool) -> [*const c_void; 2] {
    static SINGLE: [f32; 2] = [0.0, 1.0];
    static DOUBLE: [f64; 2] = [0.0, 1.0];
    let [zero, one] = match g.dtype {
        DType::F64 => DOUBLE.each_ref().map(|x| value(x).0),
        _ => SINGLE.each_ref().map(|x| value(x).0),
    };
    [one, if accumulate { one } else { zero }]
}

/// The value of an attribute as the library takes it.
fn value<T>(of: &T) -> (*const c_void, usize) {
    (std::ptr::from_ref(of).cast(), size_of::<T>())
}

/// Enqueues a product at the addresses of A, B, C and the bias, added to what C holds if `accumulate`. Its algorithm follows from types, sizes, steps and the addresses' alignment alone, so its result depends
/// on nothing that runs beside it. `false` if the library has no such product: then nothing was enqueued.
///
/// # Safety
/// The operands and the workspace are in bounds, and the command's uses name them, the workspace as written.
///
/// # Errors
/// `DTypeUnsupported`, `InvalidArgument` for a workspace that is smaller than a
/// [dry run](device::Stream::dry_run) says, `StreamHeld`, `OutOfMemory`, `Driver`.
pub(in crate::cuda) unsafe fn gemm(
    queue: &Queue<'_>,
    g: &Gemm,
    accumulate: bool,
    operands: [*mut u8; 4],
    workspace: Workspace,
) -> Result<bool> {
    queue.with_room("a product", || {
        if g.sizes[..2].contains(&0) || g.batch == 0 {
            return Ok(true);
        }
        let blas = Blas::of(queue)?;
        let alignment = |at: *mut u8| (1 << at.addr().trailing_zeros().min(31)).min(MAX_ALIGNMENT);
        let form = (*g, operands.map(alignment));
        let Some(algorithm) = blas.algorithm(queue, form)? else { return Ok(false) };
        let enqueued = &algorithm.enqueued[usize::from(accumulate)];
        let scalars = scalars(g, accumulate);
        // SAFETY: as the caller promises, or captured, where addresses are recorded and never followed.
        let call = |at: &Addresses, stream| unsafe { blas.call(g, scalars, &algorithm, at, stream) };
        // SAFETY: the caller's promise; all products of an algorithm have its form, and a product's kernels know of memory what
        // their arguments say.
        unsafe { queue.recorded(enqueued, operands, algorithm.workspace, workspace, call)? };
        Ok(true)
    })
}

impl Blas {
    /// That of the queue's device.
    pub(super) fn of<'a>(queue: &Queue<'a>) -> Result<&'a Blas> {
        queue.handle("cuBLASLt", || {
            let mut handle = std::ptr::null_mut();
            // SAFETY: the library is present, since there is a device, whose context is current; the call writes a handle.
            unsafe { call!(cublasLtCreate(&mut handle))? };
            Ok(Blas { handle, chosen: RwLock::default() })
        })
    }

    /// How this product is made; `None` if the library has no algorithm for it.
    ///
    /// # Errors
    /// `StreamHeld` for the first product of a form while a stream is held: its kernels are loaded lazily.
    fn algorithm(&self, queue: &Queue<'_>, form: GemmKey) -> Result<Option<Arc<Algorithm>>> {
        if let Some(known) = self.chosen.read().get(&form) {
            return Ok(known.clone());
        }
        // Not under the lock, which products of known forms take, too.
        let _quiet = queue.quiet(queue.op())?;
        let mut chosen = self.chosen.write();
        if let Some(known) = chosen.get(&form) {
            return Ok(known.clone());
        }
        let new = Algorithm::choose(queue.op(), self.handle, &form)?.map(Arc::new);
        if chosen.len() >= MAX_FORMS {
            chosen.clear();
        }
        chosen.insert(form, new.clone());
        Ok(new)
    }

    /// Has the library enqueue a product whose operands lie at these addresses.
    ///
    /// # Safety
    /// As for [`gemm`], and the stream is of the current context.
    unsafe fn call(
        &self,
        g: &Gemm,
        [alpha, beta]: [*const c_void; 2],
        algorithm: &Algorithm,
        &[a, b, c, bias, workspace]: &Addresses,
        stream: *mut c_void,
    ) -> Result<()> {
        let _one = g.bias.then(|| algorithm.bias.lock());
        if g.bias {
            set(&algorithm.operation, Of::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        let [of_a, of_b, of_c] = algorithm.layouts.each_ref().map(|layout| layout.0);
        // SAFETY: handle and descriptions are live, the scalars are read before the call returns, and the caller answers for
        // the rest.
        unsafe {
            call!(cublasLtMatmul(
                self.handle,
                algorithm.operation.0,
                alpha,
                a.cast(),
                of_a,
                b.cast(),
                of_b,
                beta,
                c.cast(),
                of_c,
                c.cast(),
                of_c,
                &algorithm.algorithm,
                workspace.cast(),
                algorithm.workspace,
                stream.cast(),
            ))
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once; whoever used it last has run.
        unsafe { foreign!(blas::cublasLtDestroy(self.handle)) };
    }
}

impl Algorithm {
    /// The library's choice for a form; `None` if it has none.
    fn choose(
        op: &'static str,
        handle: blas::cublasLtHandle_t,
        (form, alignment): &GemmKey,
    ) -> Result<Option<Algorithm>> {
        use blas::cublasComputeType_t as Compute;
        use blas::cublasLtMatmulPreferenceAttributes_t as Wanted;
        let (of_ab, of_c) = (data_type(op, form.dtype)?, data_type(op, form.c_dtype)?);
        let (compute, of_scalars) = match form.dtype {
            DType::F64 => (Compute::CUBLAS_COMPUTE_64F, blas::cudaDataType::CUDA_R_64F),
            _ if form.tf32 => (Compute::CUBLAS_COMPUTE_32F_FAST_TF32, blas::cudaDataType::CUDA_R_32F),
            _ => (Compute::CUBLAS_COMPUTE_32F, blas::cudaDataType::CUDA_R_32F),
        };
        let Ok(batch) = i32::try_from(form.batch) else { return Ok(None) };
        // SAFETY: the call writes a handle, which the other one destroys.
        let operation = unsafe {
            let create = |raw: &mut _| call!(cublasLtMatmulDescCreate(raw, compute, of_scalars));
            let destroy = foreign!(blas::cublasLtMatmulDescDestroy as fn(_));
            Owned::new(create, destroy)?
        };
        // As `cublasOperation_t` has it: 0 for a matrix as it is, 1 for its transpose.
        set(&operation, Of::CUBLASLT_MATMUL_DESC_TRANSA, &i32::from(form.transposed[0]))?;
        set(&operation, Of::CUBLASLT_MATMUL_DESC_TRANSB, &i32::from(form.transposed[1]))?;
        use blas::cublasLtEpilogue_t as Then;
        let epilogue = match (form.bias, form.relu) {
            (false, false) => Then::CUBLASLT_EPILOGUE_DEFAULT,
            (false, true) => Then::CUBLASLT_EPILOGUE_RELU,
            (true, false) => Then::CUBLASLT_EPILOGUE_BIAS,
            (true, true) => Then::CUBLASLT_EPILOGUE_RELU_BIAS,
        };
        set(&operation, Of::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        if form.bias {
            // The choice is made for the alignment of the address that is there.
            set(&operation, Of::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &alignment[3])?;
        }
        let ([m, n, k], turned) =
            (form.sizes, |yes, (rows, columns)| if yes { (columns, rows) } else { (rows, columns) });
        let shapes = [turned(form.transposed[0], (m, k)), turned(form.transposed[1], (k, n)), (m, n)];
        let layout = |i: usize| {
            let ((rows, columns), dtype) = (shapes[i], [of_ab, of_ab, of_c][i]);
            layout(dtype, [rows, columns, form.leading[i]], (batch, form.steps[i]))
        };
        let layouts = [layout(0)?, layout(1)?, layout(2)?];
        // SAFETY: the call writes a handle, which the other one destroys.
        let preference = unsafe {
            let create = |raw: &mut _| call!(cublasLtMatmulPreferenceCreate(raw));
            let destroy = foreign!(blas::cublasLtMatmulPreferenceDestroy as fn(_));
            Owned::new(create, destroy)?
        };
        let prefer = |attribute, (at, bytes): (*const c_void, usize)| {
            // SAFETY: the preference is live, and the call reads the value.
            unsafe { call!(cublasLtMatmulPreferenceSetAttribute(preference.0, attribute, at, bytes)) }
        };
        prefer(Wanted::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, value(&(WORKSPACE as u64)))?;
        // Parts of a sum are kept as what it is computed in, also if the result has 16 bits, and added in a fixed order.
        let scheme = blas::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        prefer(Wanted::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, value(&scheme))?;
        let [a, b, c, _] = alignment.map(|bytes| bytes as u32);
        prefer(Wanted::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, value(&a))?;
        prefer(Wanted::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, value(&b))?;
        prefer(Wanted::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, value(&c))?;
        prefer(Wanted::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, value(&c))?;
        let mut found =
            [const { MaybeUninit::<blas::cublasLtMatmulHeuristicResult_t>::uninit() }; CANDIDATES];
        let (mut count, [a, b, c]) = (0, layouts.each_ref().map(|layout| layout.0));
        // SAFETY: handle and descriptions are live; the call writes as many results as there is room for, and how many there
        // are.
        let status = unsafe {
            foreign!(blas::cublasLtMatmulAlgoGetHeuristic(
                handle,
                operation.0,
                a,
                b,
                c,
                c,
                preference.0,
                CANDIDATES as i32,
                found.as_mut_ptr().cast(),
                &mut count,
            ))
        };
        if status == blas::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
            return Ok(None);
        }
        done("cublasLtMatmulAlgoGetHeuristic", status)?;
        let count = usize::try_from(count).unwrap_or(0).min(CANDIDATES);
        // SAFETY: the library is present.
        let version = unsafe { foreign!(blas::cublasLtGetVersion()) } / 100;
        let success = blas::cublasStatus_t::CUBLAS_STATUS_SUCCESS;
        let succeeded = |result: &&MaybeUninit<blas::cublasLtMatmulHeuristicResult_t>| {
            // SAFETY: written by the call; the status may be one that cudarc does not know, and is read as a number.
            unsafe { (&raw const (*result.as_ptr()).state).cast::<blas::cublasStatus_t>().read() == success }
        };
        // SAFETY: written by the call, with a status that is known.
        let results =
            found[..count].iter().filter(succeeded).map(|result| unsafe { result.assume_init_ref() });
        let usable: Vec<_> =
            results.filter(|result| !form.relu || traits(result).keeps_nan(version)).collect();
        let best = match form.dtype {
            DType::F32 if !form.tf32 => {
                choose(&usable.iter().map(|result| traits(result)).collect::<Vec<_>>(), form.sizes)
            }
            _ => 0,
        };
        let Some(best) = usable.get(best) else { return Ok(None) };
        let (algorithm, workspace) = (best.algo, best.workspaceSize);
        Ok(Some(Algorithm {
            operation,
            layouts,
            algorithm,
            workspace,
            enqueued: Default::default(),
            bias: Mutex::new(()),
        }))
    }
}

/// Gives an operation's attribute a value, of the type that the attribute has.
fn set<T>(operation: &Owned<blas::cublasLtMatmulDesc_t>, attribute: Of, of: &T) -> Result<()> {
    let (at, bytes) = value(of);
    // SAFETY: the description is live, and the call reads the value.
    unsafe { call!(cublasLtMatmulDescSetAttribute(operation.0, attribute, at, bytes)) }
}

/// How a matrix is stored: its rows, columns and leading dimension, and how many of them follow at which step.
fn layout(
    dtype: blas::cudaDataType,
    [rows, columns, leading]: [usize; 3],
    (batch, step): (i32, i64),
) -> Result<Owned<blas::cublasLtMatrixLayout_t>> {
    use blas::cublasLtMatrixLayoutAttribute_t as Of;
    let (rows, columns, leading) = (rows as u64, columns as u64, leading as i64);
    // SAFETY: the call writes a handle, which the other one destroys.
    let layout = unsafe {
        let create = |raw: &mut _| call!(cublasLtMatrixLayoutCreate(raw, dtype, rows, columns, leading));
        let destroy = foreign!(blas::cublasLtMatrixLayoutDestroy as fn(_));
        Owned::new(create, destroy)?
    };
    for (attribute, (at, bytes)) in [
        (Of::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, value(&batch)),
        (Of::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, value(&step)),
    ] {
        // SAFETY: the description is live, and the call reads the value.
        unsafe { call!(cublasLtMatrixLayoutSetAttribute(layout.0, attribute, at, bytes))? };
    }
    Ok(layout)
}

/// What the library says of an algorithm that it has found.
fn traits(found: &blas::cublasLtMatmulHeuristicResult_t) -> Traits {
    use blas::cublasLtMatmulAlgoConfigAttributes_t as Of;
    // Some kernels have no such number.
    let get = |attribute, otherwise: i32| {
        let (mut to, mut written) = (0i32, 0);
        // SAFETY: the call writes one number of 32 bits.
        let status = unsafe {
            let at = std::ptr::from_mut(&mut to).cast();
            foreign!(blas::cublasLtMatmulAlgoConfigGetAttribute(
                &found.algo,
                attribute,
                at,
                size_of::<i32>(),
                &mut written,
            ))
        };
        if status == blas::cublasStatus_t::CUBLAS_STATUS_SUCCESS { to } else { otherwise }
    };
    Traits {
        id: get(Of::CUBLASLT_ALGO_CONFIG_ID, -1),
        tile: get(Of::CUBLASLT_ALGO_CONFIG_TILE_ID, -1),
        parts: get(Of::CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 1),
        waves: found.wavesCount,
    }
}
