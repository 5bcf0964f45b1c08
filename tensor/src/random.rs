//! Random numbers, keyed by (seed, op index): the same on every device, stream and number of threads.

use std::cell::Cell;

use device::{Capture, DType, Device, Result, Stream};
use kernels::{Dropout, Layout, RandomKey, View};

use crate::Tensor;
use crate::check::elements_of;

/// A sequence of keys: a seed, and how many keys were drawn.
///
/// A random op is a function of its key and shape alone, so what it gives does not depend on when or where it
/// runs. A clone continues from the same place.
///
/// ```
/// use tensor::{DType, Device, Generator, Tensor};
///
/// # fn main() -> tensor::Result<()> {
/// let draw = || {
///     let mut generator = Generator::new(7);
///     Tensor::randn(&[3], DType::F32, generator.next_key(), &Device::cpu())?.to_vec::<f32>()
/// };
/// assert_eq!(draw()?, draw()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generator {
    seed: u64,
    op: u64,
    /// How many generators were made by [`next_child`].
    children: u64,
}

impl Generator {
    /// The sequence of a seed, from its start.
    pub const fn new(seed: u64) -> Generator {
        Generator { seed, op: 0, children: 0 }
    }

    /// The next key.
    pub fn next_key(&mut self) -> RandomKey {
        let key = self.key();
        *self = self.skip(1);
        key
    }

    /// A copy of this thread's default generator.
    pub fn current() -> Generator {
        DEFAULT.get()
    }

    /// A generator of its own for part `index` of what comes next: it depends on the seed, on how many keys were
    /// drawn, and on `index`, and on nothing else.
    pub fn fork(&self, index: u64) -> Generator {
        let seed = [self.op, index].into_iter().fold(self.seed, |state, value| mix(state ^ mix(value)));
        if Capture::is_current() {
            Capture::attach(Forked { child: seed, parent: *self, index });
        }
        Generator::new(seed)
    }

    /// The generator whose next key this is.
    pub(crate) fn at(key: RandomKey) -> Generator {
        Generator { seed: key.seed, op: key.op, children: 0 }
    }

    pub(crate) fn key(self) -> RandomKey {
        RandomKey { seed: self.seed, op: self.op }
    }

    /// As it is once `keys` more were drawn.
    pub(crate) fn skip(self, keys: u64) -> Generator {
        Generator { op: self.op.wrapping_add(keys), ..self }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// How many keys were drawn.
    pub(crate) fn drawn(&self) -> u64 {
        self.op
    }
}

/// A generator that a captured step has forked, to be forked again at each replay.
pub(crate) struct Forked {
    pub(crate) child: u64,
    pub(crate) parent: Generator,
    pub(crate) index: u64,
}

/// The output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Runs `run` with `generator` as this thread's default one. The former one is back afterwards, also after a panic.
pub fn with_generator<R>(generator: Generator, run: impl FnOnce() -> R) -> R {
    with_generator_after(generator, run).0
}

/// As [`with_generator`], and gives the generator as `run` left it.
pub(crate) fn with_generator_after<R>(generator: Generator, run: impl FnOnce() -> R) -> (R, Generator) {
    struct Restore(Generator);
    impl Drop for Restore {
        fn drop(&mut self) {
            DEFAULT.set(self.0);
        }
    }
    let _restore = Restore(DEFAULT.replace(generator));
    (run(), DEFAULT.get())
}

/// Leaves out the next `keys` keys of this thread's default generator.
pub(crate) fn skip_keys(keys: u64) {
    DEFAULT.set(DEFAULT.get().skip(keys));
}

thread_local! {
    static DEFAULT: Cell<Generator> = const { Cell::new(Generator::new(0)) };
}

/// Restarts this thread's default generator with a seed.
///
/// Every thread starts with seed 0; threads that draw for parts of one program should each have a generator or
/// seed of their own.
pub fn seed(seed: u64) {
    DEFAULT.set(Generator::new(seed));
}

/// The next key of this thread's default generator.
pub fn next_key() -> RandomKey {
    let mut generator = DEFAULT.get();
    let key = generator.next_key();
    DEFAULT.set(generator);
    key
}

/// A generator for an object that draws by itself from now on. It differs from call to call, follows from this thread's default generator,
/// and leaves the keys of that one as they are.
pub fn next_child() -> Generator {
    let mut generator = DEFAULT.get();
    let child = generator.fork(CHILD ^ generator.children);
    generator.children = generator.children.wrapping_add(1);
    DEFAULT.set(generator);
    child
}

/// Keeps the indices of children apart from those of other parts.
const CHILD: u64 = 0x6368_696c_6400_0000;

/// The key given, or the default generator's next.
fn key_or_next(key: impl Into<Option<RandomKey>>) -> RandomKey {
    key.into().unwrap_or_else(next_key)
}

fn fresh(
    op: &'static str,
    shape: &[usize],
    dtype: DType,
    device: &Device,
    launch: impl Fn(&Stream, View<'_>) -> Result<()>,
) -> Result<Tensor> {
    elements_of(op, shape)?;
    Tensor::produce(device, Layout::contiguous(shape), dtype, launch)
}

impl Tensor {
    /// Uniform numbers from `0..1`; the key is a [`RandomKey`], or `None` for the default generator's next.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point; `OutOfMemory`.
    pub fn rand(
        shape: &[usize],
        dtype: DType,
        key: impl Into<Option<RandomKey>>,
        device: &Device,
    ) -> Result<Tensor> {
        Tensor::uniform(shape, 0.0, 1.0, dtype, key, device)
    }

    /// Normal numbers of mean 0 and deviation 1; the key is as in [`Tensor::rand`].
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point; `OutOfMemory`.
    pub fn randn(
        shape: &[usize],
        dtype: DType,
        key: impl Into<Option<RandomKey>>,
        device: &Device,
    ) -> Result<Tensor> {
        Tensor::normal(shape, 0.0, 1.0, dtype, key, device)
    }

    /// Uniform numbers from `low..high`; the key is as in [`Tensor::rand`].
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point; `InvalidArgument` unless `low <= high`, both finite; `OutOfMemory`.
    pub fn uniform(
        shape: &[usize],
        low: f64,
        high: f64,
        dtype: DType,
        key: impl Into<Option<RandomKey>>,
        device: &Device,
    ) -> Result<Tensor> {
        let key = key_or_next(key);
        fresh("uniform", shape, dtype, device, |stream, out| kernels::uniform(stream, key, low, high, out))
    }

    /// Normal numbers of this mean and standard deviation; the key is as in [`Tensor::rand`].
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point; `InvalidArgument` unless `std >= 0`, both finite; `OutOfMemory`.
    pub fn normal(
        shape: &[usize],
        mean: f64,
        std: f64,
        dtype: DType,
        key: impl Into<Option<RandomKey>>,
        device: &Device,
    ) -> Result<Tensor> {
        let key = key_or_next(key);
        fresh("normal", shape, dtype, device, |stream, out| kernels::normal(stream, key, mean, std, out))
    }

    /// Uniform integers from `low..high`; the key is as in [`Tensor::rand`].
    ///
    /// # Errors
    /// `InvalidArgument` unless `low < high`, and u8 holds both; `DTypeUnsupported` for bool; `OutOfMemory`.
    pub fn randint(
        low: i64,
        high: i64,
        shape: &[usize],
        dtype: DType,
        key: impl Into<Option<RandomKey>>,
        device: &Device,
    ) -> Result<Tensor> {
        let key = key_or_next(key);
        fresh("randint", shape, dtype, device, |stream, out| kernels::randint(stream, key, low, high, out))
    }

    /// Each element 0 with probability `p`, else divided by `1 - p`.
    ///
    /// The mask follows from the key alone: the gradient is `g.dropout(p, key)` with the same key.
    ///
    /// # Errors
    /// `InvalidArgument` unless `0 <= p <= 1`; `DTypeUnsupported` unless floating-point.
    pub fn dropout(&self, p: f64, key: impl Into<Option<RandomKey>>) -> Result<Tensor> {
        let key = key_or_next(key);
        fresh("dropout", self.shape(), self.dtype(), self.device(), |stream, out| {
            kernels::dropout(stream, Dropout { p, key }, self.view(), out)
        })
    }
}
