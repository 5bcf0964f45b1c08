//! Autocast: products run in 16 bits, sums and what would overflow in F32, and a weight is converted once.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use device::{AtCaller, Capture, OnDrop, Shared};
use parking_lot::Mutex;
use tensor::{DType, Error, Result, Tensor};

use crate::Var;
use crate::mode::is_recording;
use crate::tape::{Node, one, record};

/// The type in which an op runs under an [`autocast`](autocast()), by PyTorch's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Autocast {
    /// The type of the autocast: matrix products, convolutions and attention.
    Half,
    /// F32: sums, norms, losses, and functions that overflow.
    F32,
    /// The type of its operands; several types promote.
    Operands,
}

thread_local! {
    /// What this thread's autocast is to; `None` where it is off.
    static HALF: Cell<Option<DType>> = const { Cell::new(None) };
    /// What the outermost autocast of this thread, or the batch that it runs, keeps outside of steps that are captured within it.
    /// It has no destructor, since ops also run while a thread or the process ends.
    static CACHE: RefCell<ManuallyDrop<Option<Cache>>> = const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Runs `f` with mixed precision: ops of this thread take F32 and 16-bit operands in the type that suits them. Nothing that
/// `f` gives is converted, and so are no leaves: conversions are recorded, and the gradient of an F32 weight is F32.
///
/// | runs in | ops |
/// |---|---|
/// | `dtype` | `matmul`, `linear`, `linear_cross_entropy`, `conv2d`, `conv_transpose2d`, `scaled_dot_product_attention`, `self_attention` |
/// | F32 | `sum`, `cumsum`, `exp`, `log`, `pow`, `square`, `reciprocal`, `rsqrt`, `softmax`, `log_softmax`, `logsumexp`, `softplus`, `layer_norm`, `rms_norm`, `group_norm`, `upsample_nearest2d`, `upsample_bilinear2d`, and losses: `cross_entropy`, `nll_loss`, `mse_loss`, `l1_loss`, `smooth_l1_loss`, `bce_with_logits` |
/// | the type of its operands | every other op; operands of several types promote as in [`Tensor::result_type`] |
///
/// Operands of F64 and integers are never converted. These are PyTorch's lists; [`OpEntry::autocast`](crate::ops::OpEntry::autocast)
/// has the column. `batch_norm` is on neither: it takes images of
/// 16 bits with weights of F32. Rules of gradients run outside of any autocast, in the types that were recorded.
///
/// A leaf that requires a gradient is converted at its first use and kept, until it is changed or the outermost autocast ends, or
/// the step that is captured within it. All uses share the conversion: their gradients are added in `dtype`, then converted once.
/// Batches of [`ConcurrentBatches`](crate::ConcurrentBatches) run under the autocast that the step is under. They share what is
/// kept, and each has conversions of its own on the tape. A captured step uses nothing that was converted before it, and replays
/// run in the types of the capture, whatever autocast they are under.
///
/// `None` or F32 switch autocast off within another one.
///
/// ```
/// use autograd::{DType, Device, Tensor, Var, autocast};
/// let dev = Device::cpu();
/// let w = Var::leaf(Tensor::ones(&[3, 2], DType::F32, &dev)?);
/// let x = Var::constant(Tensor::ones(&[4, 2], DType::F32, &dev)?);
/// let (y, loss) = autocast(DType::BF16, || {
///     let y = x.linear(&w, None)?;
///     let loss = y.sum_all()?;
///     Ok((y, loss))
/// })?;
/// assert_eq!((y.dtype(), loss.dtype()), (DType::BF16, DType::F32));
/// assert_eq!(loss.backward()?.get(&w).map(|g| g.dtype()), Some(DType::F32));
/// # Ok::<(), autograd::Error>(())
/// ```
///
/// # Errors
/// Those of `f`; `DTypeUnsupported` for other types, and `f` is not called.
#[derive::located]
pub fn autocast<R>(dtype: impl Into<Option<DType>>, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let half = match dtype.into() {
        None | Some(DType::F32) => None,
        Some(half) if half.is_half() => Some(half),
        Some(dtype) => return Err(Error::dtype_unsupported("autocast", dtype, "f32, bf16 and f16")),
    };
    // A check of gradients in F64 remains one.
    let half = HALF.get().filter(|outer| *outer == DType::F64).or(half);
    let f = || AtCaller::user(f);
    let outermost = current_cache(|cache| cache.is_none());
    if outermost { with_cache(Cache::default(), || with(half, f)) } else { with(half, f) }
}

/// Runs `f` with floats of all types taken to F64 by the ops that an autocast converts operands of, and by those that take tables of
/// weights, or weights of another type than the other operand.
pub(crate) fn in_f64<R>(f: impl FnOnce() -> R) -> R {
    with(Some(DType::F64), f)
}

/// An operand of an op that takes it as it is, but in F64 [`in_f64`].
pub(crate) fn wide(x: &Var) -> Result<Var> {
    if HALF.get() == Some(DType::F64) { x.to_dtype(DType::F64) } else { Ok(x.clone()) }
}

/// Runs `f` in the types that its operands have.
pub(crate) fn suspended<R>(f: impl FnOnce() -> R) -> R {
    if HALF.get().is_none() { f() } else { with(None, f) }
}

fn with<R>(half: Option<DType>, f: impl FnOnce() -> R) -> R {
    let outer = HALF.replace(half);
    let _restore = OnDrop(|| HALF.set(outer));
    f()
}

fn with_cache<R>(cache: Cache, f: impl FnOnce() -> R) -> R {
    let swap = |cache| ManuallyDrop::into_inner(CACHE.replace(ManuallyDrop::new(cache)));
    let mut outer = swap(Some(cache));
    let _restore = OnDrop(|| drop(swap(outer.take())));
    f()
}

/// Shows `f` what this thread keeps now, if it keeps anything: a step that is captured within an autocast has a cache of its own.
fn current_cache<R>(f: impl FnOnce(Option<&mut Cache>) -> R) -> R {
    CACHE.with_borrow_mut(|cache| match &mut **cache {
        Some(cache) if !cache.is_valid() => {
            f(Capture::scratch::<Mutex<Cache>>().as_ref().map(|own| own.lock()).as_deref_mut())
        }
        cache => f(cache.as_mut()),
    })
}

/// The autocast that a thread is under, for others that do a part of its work.
pub(crate) struct Inherited {
    half: Option<DType>,
    cache: Cache,
}

impl Inherited {
    /// That of this thread, which may be switched off for now; `None` where there is none.
    pub(crate) fn current() -> Option<Inherited> {
        let (half, cache) = (HALF.get(), current_cache(|cache| cache.map(|cache| cache.fork())));
        let cache = cache.or_else(|| half.map(|_| Cache::default()))?;
        Some(Inherited { half, cache })
    }

    /// Runs `f`, one batch, under it.
    pub(crate) fn scope<R>(this: Option<&Inherited>, f: impl FnOnce() -> R) -> R {
        match this {
            Some(Inherited { half, cache }) => with_cache(cache.fork(), || with(*half, f)),
            None => f(),
        }
    }
}

/// A leaf, by the address of its node, and the type that it is converted to.
type Key = (usize, DType);

/// What leaves were converted to, for all threads that work at a step.
type Values = Mutex<HashMap<Key, Value>>;

struct Value {
    /// Keeps the address from being used again.
    _leaf: Shared<Node>,
    /// The leaf's, when it was converted.
    version: u32,
    value: Tensor,
}

/// What is kept of leaves that were converted.
struct Cache {
    values: Arc<Values>,
    /// The recorded conversions.
    nodes: HashMap<Key, Var>,
    /// Whether it belongs to a captured step. Such a step must not read what was converted before it, since replays would not
    /// convert it anew, nor leave anything behind.
    captured: bool,
}

impl Default for Cache {
    fn default() -> Cache {
        Cache { values: Arc::default(), nodes: HashMap::new(), captured: Capture::is_current() }
    }
}

impl Cache {
    fn is_valid(&self) -> bool {
        self.captured == Capture::is_current()
    }

    /// The same values, nothing recorded.
    fn fork(&self) -> Cache {
        Cache { values: Arc::clone(&self.values), nodes: HashMap::new(), captured: self.captured }
    }

    /// `leaf`, which is the leaf of `node`, in another type.
    fn converted(&mut self, leaf: &Var, node: &Shared<Node>, dtype: DType) -> Result<Var> {
        let (key, version) = ((node.address(), dtype), leaf.value().version());
        let value = {
            let mut values = self.values.lock();
            match values.get(&key) {
                Some(known) if known.version == version => known.value.clone(),
                _ => {
                    let value = leaf.value().to_dtype(dtype)?;
                    values.insert(key, Value { _leaf: node.clone(), version, value: value.clone() });
                    value
                }
            }
        };
        if !is_recording() {
            return Ok(Var::constant(value));
        }
        match self.nodes.get(&key) {
            Some(known)
                if known.value().same_storage(&value) && known.requires_grad() == leaf.requires_grad() =>
            {
                Ok(known.clone())
            }
            _ => {
                let converted = record_conversion(leaf, value);
                if let Some(node) = &converted.node {
                    node.outlast_passes();
                }
                self.nodes.insert(key, converted.clone());
                Ok(converted)
            }
        }
    }
}

/// Records `value`, the elements of `x` in another type.
pub(crate) fn record_conversion(x: &Var, value: Tensor) -> Var {
    let from = x.dtype();
    record("to_dtype", &[x], &[], value, move |_, g| Ok(one(g.to_dtype(from)?)))
}

/// How autocast runs one op.
pub(crate) struct Cast {
    dtype: DType,
}

impl Cast {
    /// `None` for an op that takes its operands as they are, and where autocast is off.
    #[inline]
    pub(crate) fn of(class: Autocast) -> Option<Cast> {
        let half = HALF.get()?;
        match class {
            Autocast::Half => Some(Cast { dtype: half }),
            Autocast::F32 => Some(Cast { dtype: if half.is_half() { DType::F32 } else { half } }),
            Autocast::Operands => None,
        }
    }

    fn converts(&self, dtype: DType) -> bool {
        dtype != self.dtype && (dtype.is_half() || dtype == DType::F32)
    }
}

/// An operand that an op can take in the type of its [`Cast`].
pub(crate) trait Operand {
    type Cast;

    fn cast(self, cast: &Cast) -> Result<Self::Cast>;
}

impl Operand for &Var {
    type Cast = Var;

    fn cast(self, cast: &Cast) -> Result<Var> {
        if !cast.converts(self.dtype()) {
            return Ok(self.clone());
        }
        let Some(node) = self.node.as_ref().filter(|node| node.is_leaf() && cast.dtype.is_half()) else {
            return self.to_dtype(cast.dtype);
        };
        current_cache(|cache| match cache {
            Some(cache) => cache.converted(self, node, cast.dtype),
            None => self.to_dtype(cast.dtype),
        })
    }
}

/// An operand without a gradient.
impl Operand for &Tensor {
    type Cast = Tensor;

    fn cast(self, cast: &Cast) -> Result<Tensor> {
        if cast.converts(self.dtype()) { self.to_dtype(cast.dtype) } else { Ok(self.clone()) }
    }
}

impl<T: Operand> Operand for Option<T> {
    type Cast = Option<T::Cast>;

    fn cast(self, cast: &Cast) -> Result<Option<T::Cast>> {
        self.map(|operand| operand.cast(cast)).transpose()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
