//! Convolutions by cuDNN, where that is found. An algorithm is chosen once for each form, and kept.

mod graph;
mod library;

use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, OnceLock};

use device::cuda::ffi::dnn;
use device::cuda::{Addresses, Enqueued, Queue, Workspace};
use device::{DType, Device, Result, Stream};
use dnn::cudnnBackendAttributeName_t as Name;
use dnn::cudnnBackendAttributeType_t as Type;
use dnn::cudnnBackendDescriptorType_t as Kind;
use dnn::cudnnBackendHeurMode_t as Mode;
use dnn::{cudnnBackendDescriptor_t as RawDescriptor, cudnnHandle_t as RawHandle};
use graph::data_type;
use library::{Descriptor, Failure, Library, Outcome, if_any};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use super::{ConvForm, ConvPass};

/// The most bytes of memory that a convolution works in.
const WORKSPACE: usize = 256 << 20;

/// How many forms are kept; then all are forgotten, and those still in use chosen again.
const MAX_FORMS: usize = 1024;

/// What addresses have to be a multiple of.
const ALIGNMENT: usize = 16;

/// The number of a bias, which comes after images, filters and results.
const BIAS: usize = 3;

/// A device's handle, which all its streams share, and the algorithms that were chosen for it.
struct Dnn {
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
type Chosen = FxHashMap<(ConvForm, bool), Option<Arc<Algorithm>>>;

struct Handle(RawHandle);

// SAFETY: a handle may be used from any thread, one at a time.
unsafe impl Send for Handle {}

impl Dnn {
    /// That of the queue's device, or why the library is not used.
    fn of<'a>(queue: &Queue<'a>) -> Result<std::result::Result<&'a Dnn, &'a str>> {
        Ok(queue.handle("cuDNN", Dnn::new)?.as_ref().map_err(String::as_str))
    }

    /// A context is current. `Err` within: why the library is not used.
    fn new() -> Result<std::result::Result<Dnn, String>> {
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
    fn algorithm(&self, queue: &Queue<'_>, form: &ConvForm) -> Result<Option<Arc<Algorithm>>> {
        let key = (*form, queue.tf32() && form.dtype == DType::F32);
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
        let _quiet = queue.quiet("a cuDNN convolution")?;
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
        let Some(graph) = if_any(self.library.graph(self.handle.lock().0, form, dtype))? else {
            return Ok(None);
        };
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

    /// The algorithms for a graph of this handle that the library recommends, the best one first.
    fn configurations(&self, _: &Handle, graph: &Descriptor, mode: Mode) -> Outcome<Vec<Descriptor>> {
        let heuristic = self.library.descriptor(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
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
        let mut all = (0..count).map(|_| self.library.descriptor(kind)).collect::<Outcome<Vec<_>>>()?;
        let mut raw: Vec<_> = all.iter().map(|config| config.raw).collect();
        let written = get(&mut raw)?;
        all.truncate(written);
        Ok(all)
    }

    /// Has the library enqueue a convolution of images, filters, results and a bias, which is null if there is none, and a
    /// workspace.
    ///
    /// # Safety
    /// As for [`ConvAlgorithm::enqueue`], and the stream is of the current context.
    unsafe fn execute(
        &self,
        algorithm: &Algorithm,
        &[images, filters, results, bias, workspace]: &Addresses,
        stream: *mut c_void,
    ) -> Outcome<()> {
        let count = if bias.is_null() { BIAS } else { BIAS + 1 };
        let numbers = &[0, 1, 2, BIAS as i64][..count];
        let addresses = &[images, filters, results, bias][..count];
        let pack = self.library.descriptor(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
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
}

impl Drop for Dnn {
    fn drop(&mut self) {
        self.chosen.get_mut().clear();
        // SAFETY: made once, destroyed once; whoever used it last has run.
        unsafe { (self.library.destroy)(self.handle.get_mut().0) };
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
    let engine = config.library.descriptor(Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
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
    enqueued: Enqueued,
    _config: Descriptor,
}

// SAFETY: descriptors belong to no thread, and are destroyed by the one that drops them last.
unsafe impl Send for Algorithm {}
// SAFETY: finalized descriptors may be read from many threads at once, and are not changed.
unsafe impl Sync for Algorithm {}

impl Algorithm {
    fn new(handle: &Handle, config: Descriptor) -> Outcome<Algorithm> {
        let plan = config.library.descriptor(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle.0])?;
        plan.set(
            Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
            Type::CUDNN_TYPE_BACKEND_DESCRIPTOR,
            &[config.raw],
        )?;
        plan.finalize()?;
        let mut bytes = [0_i64];
        plan.get(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, Type::CUDNN_TYPE_INT64, &mut bytes)?;
        let workspace = usize::try_from(bytes[0]).unwrap_or(0);
        Ok(Algorithm { plan, workspace, enqueued: Enqueued::default(), _config: config })
    }
}

/// How a convolution is made by cuDNN. It keeps the device, and with it the library's handle.
#[derive(Clone)]
pub(crate) struct ConvAlgorithm {
    algorithm: Arc<Algorithm>,
    _device: Device,
}

impl ConvAlgorithm {
    /// That of convolutions of a form, with TF32 if the [device](Device::set_tf32) allows that; `None` on a CPU, where cuDNN was not
    /// found or is not [wanted](device::CudaConfig::cudnn), and for forms of which it has no algorithm that always gives the same
    /// bits. It follows from the form alone.
    ///
    /// # Errors
    /// `StreamHeld`, `OutOfMemory`,
    /// `Driver`.
    pub(crate) fn of(stream: &Stream, op: &'static str, form: &ConvForm) -> Result<Option<ConvAlgorithm>> {
        let find = |queue: &Queue<'_>| match Dnn::of(queue)? {
            Ok(dnn) => dnn.algorithm(queue, form),
            Err(_) => Ok(None),
        };
        let found = stream.dry_run(op, |queue| match queue.allows_cudnn() {
            true => queue.with_room("a convolution", || find(queue)),
            false => Ok(None),
        })?;
        let algorithm = found.and_then(|(algorithm, _)| algorithm);
        Ok(algorithm.map(|algorithm| ConvAlgorithm { algorithm, _device: stream.device().clone() }))
    }

    /// Bytes of memory that it works in.
    pub(crate) fn workspace(&self) -> usize {
        self.algorithm.workspace
    }

    /// Whether it may be made at an address.
    pub(crate) fn fits(at: *const u8) -> bool {
        at.addr().is_multiple_of(ALIGNMENT)
    }

    /// Enqueues a convolution of images, filters and results, and a bias if its form has one. They lie where it
    /// [fits](Self::fits), and it works in as many bytes as it says.
    ///
    /// # Safety
    /// The operands are of the convolution's form, they and the workspace are in bounds, and the command's uses name them.
    pub(in crate::cuda) unsafe fn enqueue(
        &self,
        queue: &Queue<'_>,
        [images, filters, results]: [*mut u8; 3],
        bias: Option<*mut u8>,
        workspace: *mut u8,
    ) -> Result<()> {
        queue.with_room("a convolution", || {
            let Ok(dnn) = Dnn::of(queue)? else { return Ok(()) };
            let Algorithm { enqueued, workspace: bytes, .. } = &*self.algorithm;
            let operands = [images, filters, results, bias.unwrap_or_default()];
            let workspace = Workspace { at: workspace, bytes: *bytes };
            // SAFETY: as the caller promises, or captured, where addresses are recorded and never followed.
            let call = |at: &Addresses, stream| unsafe {
                dnn.execute(&self.algorithm, at, stream).map_err(Failure::error)
            };
            // SAFETY: the caller's promise; all convolutions of an algorithm have its form, and a convolution's kernels know of memory
            // what their arguments say.
            unsafe { queue.recorded(enqueued, operands, *bytes, workspace, call) }
        })
    }
}

impl fmt::Debug for ConvAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConvAlgorithm").field("workspace", &self.workspace()).finish_non_exhaustive()
    }
}

/// What makes the convolutions of a queue's device.
pub(super) fn describe(queue: &Queue<'_>) -> Result<String> {
    let dnn = Dnn::of(queue)?;
    let usable = dnn.and_then(|dnn| dnn.unusable.get().map_or(Ok(dnn), |reason| Err(reason)));
    Ok(match usable {
        Ok(dnn) => format!("{}, and kernels of its own for what that has not", dnn.library),
        Err(reason) => format!("kernels of its own: {reason}"),
    })
}
