//! Convolutions by cuDNN, where that is found. An algorithm is chosen once for each form, and kept.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::sync::{Arc, OnceLock};

use cudarc::cudnn::sys as dnn;
use cudarc::driver::sys;
use dnn::cudnnBackendAttributeName_t as Name;
use dnn::cudnnBackendAttributeType_t as Type;
use dnn::cudnnBackendDescriptorType_t as Kind;
use dnn::cudnnBackendHeurMode_t as Mode;
use dnn::cudnnDataType_t as DataType;
use dnn::{cudnnBackendDescriptor_t as RawDescriptor, cudnnHandle_t as RawHandle};
use parking_lot::{Mutex, RwLock};

use super::context::Context;
use super::memory::no_memory;
use super::{ConvForm, ConvPass};
use crate::{DType, Error, Result};

/// The most bytes of memory that a convolution works in.
const WORKSPACE: usize = 256 << 20;

/// How many forms are kept; then all are forgotten, and those still in use chosen again.
const MAX_FORMS: usize = 1024;

/// What addresses have to be a multiple of.
const ALIGNMENT: usize = 16;

/// The numbers of operands beside those of images, filters and results: a bias, and what it is added to.
const BIAS: usize = 3;
const SUM: usize = 4;

/// The functions that are called. What the library answers with are numbers here: its later versions have more of them than
/// an enum would know.
struct Library {
    version: usize,
    create: unsafe extern "C" fn(*mut RawHandle) -> i32,
    destroy: unsafe extern "C" fn(RawHandle) -> i32,
    set_stream: unsafe extern "C" fn(RawHandle, sys::CUstream) -> i32,
    create_descriptor: unsafe extern "C" fn(Kind, *mut RawDescriptor) -> i32,
    destroy_descriptor: unsafe extern "C" fn(RawDescriptor) -> i32,
    set_attribute: unsafe extern "C" fn(RawDescriptor, Name, Type, i64, *const c_void) -> i32,
    finalize: unsafe extern "C" fn(RawDescriptor) -> i32,
    get_attribute: unsafe extern "C" fn(RawDescriptor, Name, Type, i64, *mut i64, *mut c_void) -> i32,
    execute: unsafe extern "C" fn(RawHandle, RawDescriptor, RawDescriptor) -> i32,
    error_string: unsafe extern "C" fn(i32) -> *const c_char,
}

impl Library {
    /// The library, or why it is not used.
    fn find() -> &'static std::result::Result<Library, String> {
        static FOUND: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
        FOUND.get_or_init(Library::load)
    }

    fn load() -> std::result::Result<Library, String> {
        // SAFETY: only looks for the library and loads it.
        if !unsafe { dnn::is_culib_present() } {
            return Err("the library libcudnn was not found".into());
        }
        fn function<F: Copy>(name: &str) -> std::result::Result<F, String> {
            // SAFETY: the library is there, and its functions with these names have these types in each version 9.
            let found = unsafe { dnn::culib().get::<F>(name.as_bytes()) };
            found.map(|symbol| *symbol).map_err(|_| format!("the library libcudnn has no {name}"))
        }
        let version: unsafe extern "C" fn() -> usize = function("cudnnGetVersion")?;
        // SAFETY: the function takes nothing.
        let version = unsafe { version() };
        if version / 10_000 != 9 {
            return Err(format!("the library libcudnn is of version {version}, and 9 is needed"));
        }
        Ok(Library {
            version,
            create: function("cudnnCreate")?,
            destroy: function("cudnnDestroy")?,
            set_stream: function("cudnnSetStream")?,
            create_descriptor: function("cudnnBackendCreateDescriptor")?,
            destroy_descriptor: function("cudnnBackendDestroyDescriptor")?,
            set_attribute: function("cudnnBackendSetAttribute")?,
            finalize: function("cudnnBackendFinalize")?,
            get_attribute: function("cudnnBackendGetAttribute")?,
            execute: function("cudnnBackendExecute")?,
            error_string: function("cudnnGetErrorString")?,
        })
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version;
        write!(f, "cuDNN {}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
    }
}

/// A call that failed.
struct Failure {
    call: &'static str,
    status: i32,
    library: &'static Library,
}

type Outcome<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Whether there is no such convolution, or not by this algorithm.
    fn is_refusal(&self) -> bool {
        matches!(self.status, 3000..4000)
    }

    /// Whether the library does not work here, as where a part of it is missing.
    fn is_unusable(&self) -> bool {
        matches!(self.status, 1000..2000)
    }

    /// Whether memory of the host or the device was missing.
    fn is_no_memory(&self) -> bool {
        matches!(self.status, 4003 | 4004)
    }

    fn error(self) -> Error {
        if self.is_no_memory() {
            return no_memory(0);
        }
        Error::Driver { call: self.call, code: self.status, name: self.name() }
    }

    /// Why the library is not used.
    fn reason(&self) -> String {
        format!("{} cannot be used: {}", self.library, self.name())
    }

    fn name(&self) -> Box<str> {
        // SAFETY: the library answers any number with a constant string that ends with 0.
        unsafe { CStr::from_ptr((self.library.error_string)(self.status)) }.to_string_lossy().into()
    }
}

/// `None` for what the library has not.
fn if_any<T>(outcome: Outcome<T>) -> Outcome<Option<T>> {
    match outcome {
        Err(failure) if failure.is_refusal() => Ok(None),
        outcome => outcome.map(Some),
    }
}

impl Library {
    fn done(&'static self, call: &'static str, status: i32) -> Outcome<()> {
        if status == 0 { Ok(()) } else { Err(Failure { call, status, library: self }) }
    }
}

/// A device's handle, which all its streams share, and the algorithms that were chosen for it.
pub(super) struct Dnn {
    library: &'static Library,
    /// Of the null stream between two uses.
    handle: Mutex<Handle>,
    /// `None` for a form that the library has no algorithm for.
    chosen: RwLock<Chosen>,
    /// One algorithm is chosen at a time, and those that are known are found meanwhile.
    choosing: Mutex<()>,
    /// Why no more convolutions are made by the library, once it has failed for good.
    unusable: OnceLock<String>,
}

/// By form, and whether TF32 is allowed.
type Chosen = HashMap<(ConvForm, bool), Option<Arc<Algorithm>>>;

struct Handle(RawHandle);

// SAFETY: a handle may be used from any thread, one at a time.
unsafe impl Send for Handle {}

impl Dnn {
    /// A context is current. `Err` within: why the library is not used.
    pub(super) fn new() -> Result<std::result::Result<Dnn, String>> {
        let library = match Library::find() {
            Ok(library) => library,
            Err(reason) => return Ok(Err(reason.clone())),
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: a context is current; the call writes a handle.
        match library.done("cudnnCreate", unsafe { (library.create)(&mut raw) }) {
            Ok(()) => Ok(Ok(Dnn {
                library,
                handle: Mutex::new(Handle(raw)),
                chosen: RwLock::default(),
                choosing: Mutex::default(),
                unusable: OnceLock::new(),
            })),
            Err(failure) if failure.is_no_memory() => Err(failure.error()),
            // It does not fit the driver or the device.
            Err(failure) => Ok(Err(failure.reason())),
        }
    }

    /// How convolutions of this form are made; `None` if the library has no algorithm for them that always gives the same
    /// bits, or cannot be used. What fails otherwise is tried again by the next one.
    fn algorithm(&self, form: &ConvForm, tf32: bool) -> Result<Option<Arc<Algorithm>>> {
        let key = (*form, tf32 && form.dtype == DType::F32);
        let known = || match self.unusable.get() {
            Some(_) => Some(None),
            None => self.chosen.read().get(&key).cloned(),
        };
        if let Some(known) = known() {
            return Ok(known);
        }
        let _one = self.choosing.lock();
        if let Some(known) = known() {
            return Ok(known);
        }
        let new = match self.choose(form, key.1) {
            Err(failure) if failure.is_unusable() => {
                self.unusable.get_or_init(|| failure.reason());
                return Ok(None);
            }
            outcome => outcome.map_err(Failure::error)?.map(Arc::new),
        };
        let mut chosen = self.chosen.write();
        if chosen.len() >= MAX_FORMS {
            chosen.clear();
        }
        chosen.insert(key, new.clone());
        Ok(new)
    }

    /// The first algorithm in the library's own order that is wanted. Between two calls that take long the handle is free for
    /// convolutions of other streams.
    fn choose(&self, form: &ConvForm, tf32: bool) -> Outcome<Option<Algorithm>> {
        let Some(dtype) = data_type(form.dtype) else { return Ok(None) };
        let exact = form.dtype == DType::F32 && !tf32;
        let Some(graph) = if_any(self.graph(&self.handle.lock(), form, dtype))? else { return Ok(None) };
        for mode in [Mode::CUDNN_HEUR_MODE_A, Mode::CUDNN_HEUR_MODE_FALLBACK] {
            let configurations = if_any(self.configurations(&self.handle.lock(), &graph, mode))?;
            for config in configurations.into_iter().flatten() {
                let handle = self.handle.lock();
                if if_any(is_wanted(&config, form.pass, exact))? == Some(true)
                    && let Some(new) = if_any(Algorithm::new(&handle, config))?
                    && new.workspace <= WORKSPACE
                {
                    return Ok(Some(new));
                }
            }
        }
        Ok(None)
    }

    /// The operation of a form.
    fn graph(&self, handle: &Handle, form: &ConvForm, dtype: DataType) -> Outcome<Descriptor> {
        let conv = self.descriptor(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
        conv.set(
            Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE,
            Type::CUDNN_TYPE_DATA_TYPE,
            &[DataType::CUDNN_DATA_FLOAT],
        )?;
        conv.set(
            Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE,
            Type::CUDNN_TYPE_CONVOLUTION_MODE,
            &[dnn::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION],
        )?;
        conv.set(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, Type::CUDNN_TYPE_INT64, &[2_i64])?;
        for (name, sizes) in [
            (Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, form.padding),
            (Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, form.padding),
            (Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, form.dilation),
            (Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, form.stride),
        ] {
            conv.set(name, Type::CUDNN_TYPE_INT64, &sizes.map(|size| size as i64))?;
        }
        conv.finalize()?;
        let names = Names::of(form.pass);
        let operation = self.descriptor(names.kind)?;
        operation.set(names.alpha, Type::CUDNN_TYPE_FLOAT, &[1.0_f32])?;
        operation.set(names.beta, Type::CUDNN_TYPE_FLOAT, &[0.0_f32])?;
        operation.set(names.conv, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &[conv.raw])?;
        let mut operands = Vec::with_capacity(3);
        for number in 0..3 {
            let to_bias = form.bias && number == form.pass.made();
            // What a bias is added to is not rounded, and lies nowhere.
            let (number, dtype) = if to_bias { (SUM, DataType::CUDNN_DATA_FLOAT) } else { (number, dtype) };
            operands.push(self.tensor(number, dtype, form)?);
        }
        for (name, tensor) in names.operands.into_iter().zip(&operands) {
            operation.set(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &[tensor.raw])?;
        }
        operation.finalize()?;
        let mut operations = vec![operation];
        if form.bias {
            operations.push(self.sum(&operands[form.pass.made()], form, dtype)?);
        }
        let raw: Vec<_> = operations.iter().map(|operation| operation.raw).collect();
        let graph = self.descriptor(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        graph.set(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle.0])?;
        graph.set(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw)?;
        graph.finalize()?;
        Ok(graph)
    }

    /// The sum of what was made and a bias for each of its channels.
    fn sum(&self, made: &Descriptor, form: &ConvForm, dtype: DataType) -> Outcome<Descriptor> {
        let (bias, out) = (self.tensor(BIAS, dtype, form)?, self.tensor(form.pass.made(), dtype, form)?);
        let add = self.descriptor(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
        let mode = dnn::cudnnPointwiseMode_t::CUDNN_POINTWISE_ADD;
        add.set(Name::CUDNN_ATTR_POINTWISE_MODE, Type::CUDNN_TYPE_POINTWISE_MODE, &[mode])?;
        let computed = DataType::CUDNN_DATA_FLOAT;
        add.set(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, Type::CUDNN_TYPE_DATA_TYPE, &[computed])?;
        add.finalize()?;
        let operation = self.descriptor(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?;
        for (name, part) in [
            (Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &add),
            (Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, made),
            (Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &bias),
            (Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &out),
        ] {
            operation.set(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &[part.raw])?;
        }
        operation.finalize()?;
        Ok(operation)
    }

    /// An operand: images, filters, results, [`BIAS`] or [`SUM`].
    fn tensor(&self, number: usize, dtype: DataType, form: &ConvForm) -> Outcome<Descriptor> {
        let made = form.pass.made();
        let (shape, strides) = match number {
            BIAS => {
                let channels = form.shapes[made][1];
                ([1, channels, 1, 1], [channels, 1, channels, channels])
            }
            SUM => (form.shapes[made], form.strides[made]),
            number => (form.shapes[number], form.strides[number]),
        };
        let tensor = self.descriptor(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[dtype])?;
        for (name, sizes) in
            [(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, shape), (Name::CUDNN_ATTR_TENSOR_STRIDES, strides)]
        {
            tensor.set(name, Type::CUDNN_TYPE_INT64, &sizes.map(|size| size as i64))?;
        }
        for (name, value) in
            [(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, number), (Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, ALIGNMENT)]
        {
            tensor.set(name, Type::CUDNN_TYPE_INT64, &[value as i64])?;
        }
        if number == SUM {
            tensor.set(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, Type::CUDNN_TYPE_BOOLEAN, &[true])?;
        }
        tensor.finalize()?;
        Ok(tensor)
    }

    /// The algorithms for a graph of this handle that the library recommends, the best one first.
    fn configurations(&self, _: &Handle, graph: &Descriptor, mode: Mode) -> Outcome<Vec<Descriptor>> {
        let heuristic = self.descriptor(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
        heuristic.set(
            Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
            Type::CUDNN_TYPE_BACKEND_DESCRIPTOR,
            &[graph.raw],
        )?;
        heuristic.set(Name::CUDNN_ATTR_ENGINEHEUR_MODE, Type::CUDNN_TYPE_HEUR_MODE, &[mode])?;
        heuristic.finalize()?;
        let get = |to: &mut [RawDescriptor]| {
            heuristic.get(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, to)
        };
        let count = get(&mut [])?;
        let kind = Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
        let mut all = (0..count).map(|_| self.descriptor(kind)).collect::<Outcome<Vec<_>>>()?;
        let mut raw: Vec<_> = all.iter().map(|config| config.raw).collect();
        let written = get(&mut raw)?;
        all.truncate(written);
        Ok(all)
    }

    /// # Safety
    /// As for [`ConvAlgorithm::enqueue`].
    unsafe fn execute(
        &self,
        algorithm: &Algorithm,
        [images, filters, results]: [*mut u8; 3],
        bias: Option<*mut u8>,
        workspace: *mut u8,
        stream: sys::CUstream,
    ) -> Outcome<()> {
        let count = if bias.is_some() { 4 } else { 3 };
        let numbers = &[0, 1, 2, BIAS as i64][..count];
        let addresses = &[images, filters, results, bias.unwrap_or_default()][..count];
        let pack = self.descriptor(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, Type::CUDNN_TYPE_INT64, numbers)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Type::CUDNN_TYPE_VOID_PTR, addresses)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, Type::CUDNN_TYPE_VOID_PTR, &[workspace])?;
        pack.finalize()?;
        let handle = self.handle.lock();
        // SAFETY: the handle is this thread's while it is locked, and the caller answers for the rest.
        unsafe {
            self.library.done("cudnnSetStream", (self.library.set_stream)(handle.0, stream))?;
            let status = (self.library.execute)(handle.0, algorithm.plan.raw, pack.raw);
            // The stream may be destroyed, or captured, before the next use.
            let left = (self.library.set_stream)(handle.0, std::ptr::null_mut());
            self.library.done("cudnnBackendExecute", status)?;
            self.library.done("cudnnSetStream", left)
        }
    }

    fn descriptor(&self, kind: Kind) -> Outcome<Descriptor> {
        Descriptor::new(self.library, kind)
    }
}

impl Drop for Dnn {
    fn drop(&mut self) {
        self.chosen.get_mut().clear();
        // SAFETY: made once, destroyed once; whoever used it last has run.
        unsafe { (self.library.destroy)(self.handle.get_mut().0) };
    }
}

/// The library's name of an element type of which it has all that is wanted here.
fn data_type(dtype: DType) -> Option<DataType> {
    match dtype {
        DType::F32 => Some(DataType::CUDNN_DATA_FLOAT),
        DType::BF16 => Some(DataType::CUDNN_DATA_BFLOAT16),
        DType::F16 => Some(DataType::CUDNN_DATA_HALF),
        _ => None,
    }
}

/// What the library calls an operation and what it is made of.
struct Names {
    kind: Kind,
    alpha: Name,
    beta: Name,
    conv: Name,
    /// Images, filters and results.
    operands: [Name; 3],
}

impl Names {
    fn of(pass: ConvPass) -> Names {
        match pass {
            ConvPass::Forward => Names {
                kind: Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                alpha: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                beta: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                conv: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                operands: [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                ],
            },
            ConvPass::InputGrad => Names {
                kind: Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                alpha: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                beta: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                conv: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                operands: [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                ],
            },
            ConvPass::WeightGrad => Names {
                kind: Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                alpha: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                beta: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                conv: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                operands: [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                ],
            },
        }
    }
}

/// Filters' gradients by Winograd's transforms, of which the library does not say so (9.14, 9.19). With filters of 5 x 5 errors
/// are 3e-3 of the largest element on an H200, which is more than TF32's.
const WINOGRAD: i64 = 17;

/// Whether an algorithm always gives the same bits, takes operands as they are, sums in F32, and is there without a compiler.
/// With `exact`, whether it multiplies in F32, too, and each element's errors, infinities and NaN are those of its own sum:
/// a Fourier transform's are those of the whole plane.
fn is_wanted(config: &Descriptor, pass: ConvPass, exact: bool) -> Outcome<bool> {
    use dnn::cudnnBackendBehaviorNote_t as Behavior;
    use dnn::cudnnBackendNumericalNote_t as Numerical;
    let engine = Descriptor::new(config.library, Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
    config.get(Name::CUDNN_ATTR_ENGINECFG_ENGINE, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut [engine.raw])?;
    let notes = |name, kind| {
        let mut notes = [-1_i32; 32];
        engine.get(name, kind, &mut notes).map(|_| notes)
    };
    let numerical = notes(Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, Type::CUDNN_TYPE_NUMERICAL_NOTE)?;
    let behavior = notes(Name::CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, Type::CUDNN_TYPE_BEHAVIOR_NOTE)?;
    let mut number = [-1_i64];
    engine.get(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX, Type::CUDNN_TYPE_INT64, &mut number)?;
    let any = |of: &[Numerical]| of.iter().any(|&note| numerical.contains(&(note as i32)));
    let unwanted = any(&[
        Numerical::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
        Numerical::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
        Numerical::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
    ]);
    let inexact = any(&[
        Numerical::CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
        Numerical::CUDNN_NUMERICAL_NOTE_FFT,
        Numerical::CUDNN_NUMERICAL_NOTE_WINOGRAD,
        Numerical::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4,
        Numerical::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6,
        Numerical::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13,
    ]) || pass == ConvPass::WeightGrad && number[0] == WINOGRAD;
    let compiled = behavior.contains(&(Behavior::CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION as i32));
    Ok(!(unwanted || compiled || exact && inexact))
}

/// How convolutions of a form are made.
struct Algorithm {
    plan: Descriptor,
    /// Bytes of memory that it works in.
    workspace: usize,
    _config: Descriptor,
}

// SAFETY: what is complete may be read from many threads at once, and is not changed.
unsafe impl Send for Algorithm {}
// SAFETY: as above.
unsafe impl Sync for Algorithm {}

impl Algorithm {
    fn new(handle: &Handle, config: Descriptor) -> Outcome<Algorithm> {
        let plan = Descriptor::new(config.library, Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle.0])?;
        plan.set(
            Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
            Type::CUDNN_TYPE_BACKEND_DESCRIPTOR,
            &[config.raw],
        )?;
        plan.finalize()?;
        let mut bytes = [0_i64];
        plan.get(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, Type::CUDNN_TYPE_INT64, &mut bytes)?;
        Ok(Algorithm { plan, workspace: usize::try_from(bytes[0]).unwrap_or(0), _config: config })
    }
}

/// A description of something: what it is made of is set, and then it is complete.
struct Descriptor {
    raw: RawDescriptor,
    library: &'static Library,
}

impl Descriptor {
    fn new(library: &'static Library, kind: Kind) -> Outcome<Descriptor> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the call writes a handle.
        let status = unsafe { (library.create_descriptor)(kind, &mut raw) };
        library.done("cudnnBackendCreateDescriptor", status)?;
        Ok(Descriptor { raw, library })
    }

    /// Sets an attribute, whose values are of the type that `kind` says.
    fn set<T>(&self, name: Name, kind: Type, values: &[T]) -> Outcome<()> {
        let (count, at) = (values.len() as i64, values.as_ptr().cast());
        // SAFETY: the description is live, and the call reads as many values.
        let status = unsafe { (self.library.set_attribute)(self.raw, name, kind, count, at) };
        self.library.done("cudnnBackendSetAttribute", status)
    }

    fn finalize(&self) -> Outcome<()> {
        // SAFETY: the description is live.
        self.library.done("cudnnBackendFinalize", unsafe { (self.library.finalize)(self.raw) })
    }

    /// Writes values of an attribute, of the type that `kind` says, and gives their number, or how many there are if there is
    /// no room for any.
    fn get<T>(&self, name: Name, kind: Type, to: &mut [T]) -> Outcome<usize> {
        let (room, mut count) = (to.len(), 0);
        let at = if room == 0 { std::ptr::null_mut() } else { to.as_mut_ptr().cast() };
        // SAFETY: the description is live, and the call writes at most as many values as there is room for.
        let status =
            unsafe { (self.library.get_attribute)(self.raw, name, kind, room as i64, &mut count, at) };
        self.library.done("cudnnBackendGetAttribute", status)?;
        let count = usize::try_from(count).unwrap_or(0);
        Ok(if room == 0 { count } else { count.min(room) })
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        unsafe { (self.library.destroy_descriptor)(self.raw) };
    }
}

/// How a convolution is made by cuDNN. It keeps what it needs of the device.
#[derive(Clone)]
pub struct ConvAlgorithm {
    algorithm: Arc<Algorithm>,
    context: Arc<Context>,
}

impl ConvAlgorithm {
    /// That of convolutions of a form; `None` if the library was not found, or has none.
    pub(super) fn of(context: &Arc<Context>, form: &ConvForm, tf32: bool) -> Result<Option<ConvAlgorithm>> {
        let Ok(dnn) = context.dnn()? else { return Ok(None) };
        let algorithm = dnn.algorithm(form, tf32)?;
        Ok(algorithm.map(|algorithm| ConvAlgorithm { algorithm, context: Arc::clone(context) }))
    }

    /// Bytes of memory that it works in.
    pub fn workspace(&self) -> usize {
        self.algorithm.workspace
    }

    /// Whether it may be made at an address.
    pub fn fits(at: *const u8) -> bool {
        at.addr().is_multiple_of(ALIGNMENT)
    }

    /// Enqueues it on `stream` for images, filters and results, and a bias if its form has one.
    ///
    /// # Safety
    /// The context is current and the stream its own. The operands are in bounds, and nothing writes them, nor uses the
    /// workspace, of as many bytes as it says, while it runs.
    pub(super) unsafe fn enqueue(
        &self,
        operands: [*mut u8; 3],
        bias: Option<*mut u8>,
        workspace: *mut u8,
        stream: sys::CUstream,
    ) -> Result<()> {
        let Ok(dnn) = self.context.dnn()? else { return Ok(()) };
        // SAFETY: the caller's promise.
        unsafe { dnn.execute(&self.algorithm, operands, bias, workspace, stream) }.map_err(Failure::error)
    }
}

impl fmt::Debug for ConvAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConvAlgorithm").field("workspace", &self.workspace()).finish_non_exhaustive()
    }
}

/// What makes a device's convolutions.
pub(super) fn describe(context: &Context) -> Result<String> {
    let dnn = context.dnn()?;
    let usable = dnn.and_then(|dnn| dnn.unusable.get().map_or(Ok(dnn), |reason| Err(reason)));
    Ok(match usable {
        Ok(dnn) => format!("{}, and kernels of its own for what that has not", dnn.library),
        Err(reason) => format!("kernels of its own: {reason}"),
    })
}
