//! Random numbers, keyed by (seed, op index): the same on every device, stream and number of threads.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::thread::Thread;

use device::{Capture, DType, Device, Error, OnDrop, Result, mix};
use kernels::{Dims, Dropout, RandomKey};
use parking_lot::Mutex;

use crate::Tensor;

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
    pub(crate) seed: u64,
    /// How many keys were drawn.
    pub(crate) op: u64,
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

    /// A copy of this thread's default generator. See [`seed`] for what that is.
    pub fn current() -> Generator {
        if let Some((_, generator)) = DEFAULT.get() {
            return generator;
        }
        let generator = own_generator();
        DEFAULT.set(Some((Origin::Own, generator)));
        generator
    }

    /// A generator of its own for part `index` of what comes next: it depends on the seed, on how many keys were
    /// drawn, and on `index`, and on nothing else.
    pub fn fork(&self, index: u64) -> Generator {
        let forked = self.forked(index);
        if Capture::is_current() {
            Capture::attach(Forked { child: forked.seed, parent: *self, index });
        }
        forked
    }

    /// As [`fork`](Self::fork), of a generator that is the same in every replay of a captured step.
    fn forked(self, index: u64) -> Generator {
        let seed = [self.op, index].into_iter().fold(self.seed, |state, value| mix(state ^ mix(value)));
        Generator::new(seed)
    }

    /// What a checkpoint keeps of it: its seed, how many keys were drawn, and how many children were made.
    pub const fn state(self) -> [u64; 3] {
        [self.seed, self.op, self.children]
    }

    /// Has this thread's default generator go on from a [`state`](Self::state). The thread of a rank keeps the seed of its rank.
    pub fn restore([seed, op, children]: [u64; 3]) {
        let (origin, seed) = match DEFAULT.get() {
            Some((Origin::Rank, own)) => (Origin::Rank, own.seed),
            Some((origin, _)) => (origin, seed),
            None => (Origin::Own, seed),
        };
        DEFAULT.set(Some((origin, Generator { seed, op, children })));
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
}

/// A generator that a captured step has forked, to be forked again at each replay.
pub(crate) struct Forked {
    pub(crate) child: u64,
    pub(crate) parent: Generator,
    pub(crate) index: u64,
}

/// Runs `run` with `generator` as this thread's default one. The former one is back afterwards, also after a panic.
pub fn with_generator<R>(generator: Generator, run: impl FnOnce() -> R) -> R {
    with_generator_after(generator, run).0
}

/// As [`with_generator`], and gives the generator as `run` left it.
pub(crate) fn with_generator_after<R>(generator: Generator, run: impl FnOnce() -> R) -> (R, Generator) {
    let outer = DEFAULT.replace(Some((Origin::Given, generator)));
    let _restore = OnDrop(|| DEFAULT.set(outer));
    (run(), Generator::current())
}

/// Leaves out the next `keys` keys of this thread's default generator.
pub(crate) fn skip_keys(keys: u64) {
    set_current(Generator::current().skip(keys));
}

/// Where a thread's default generator comes from.
#[derive(Clone, Copy)]
enum Origin {
    /// The thread, until it becomes a rank.
    Own,
    /// Its rank.
    Rank,
    /// [`seed`] or [`with_generator`].
    Given,
}

thread_local! {
    /// This thread's default generator; `None` until a key is drawn.
    static DEFAULT: Cell<Option<(Origin, Generator)>> = const { Cell::new(None) };
}

/// Advances this thread's default generator.
fn set_current(generator: Generator) {
    let origin = DEFAULT.get().map_or(Origin::Own, |(origin, _)| origin);
    DEFAULT.set(Some((origin, generator)));
}

/// What the generators of threads and those of ranks are forked from. Neither depends on the other.
const THREADS: Generator = Generator { seed: 0, op: u64::MAX, children: 0 };
const RANKS: Generator = Generator { seed: 0, op: u64::MAX - 1, children: 0 };

fn is_main(thread: &Thread) -> bool {
    thread.name() == Some("main")
}

/// The generator of a thread that was not given one: of seed 0 on the main thread; on another one it follows from the thread's
/// name and from how many threads of that name have drawn before.
fn own_generator() -> Generator {
    static DRAWN: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
    let thread = std::thread::current();
    if is_main(&thread) {
        return Generator::new(0);
    }
    let name = thread.name().unwrap_or_default().bytes();
    let name = name.fold(0, |state, byte| mix(state ^ u64::from(byte)));
    let mut drawn = DRAWN.lock();
    let count = drawn.entry(name).or_insert(0);
    *count += 1;
    THREADS.forked(name).forked(*count - 1)
}

/// Unless this thread was given a generator, it draws the numbers of `rank` from now on, which are the same in every run,
/// whatever order threads begin in. As rank 0 the main thread keeps its own.
pub fn draw_as_rank(rank: usize) {
    if !matches!(DEFAULT.get(), None | Some((Origin::Own, _))) {
        return;
    }
    let keeps_own = rank == 0 && is_main(&std::thread::current());
    let generator = if keeps_own { Generator::current() } else { RANKS.forked(rank as u64) };
    DEFAULT.set(Some((Origin::Rank, generator)));
}

/// Restarts this thread's default generator with a seed.
///
/// A thread that was given no seed draws numbers of its own: the main thread those of seed 0; the thread of a rank, from its
/// first collective on, those of its rank; any other thread those that follow from its name and from how many threads of
/// that name have drawn before. Ranks that are given the same seed draw the same numbers.
pub fn seed(seed: u64) {
    DEFAULT.set(Some((Origin::Given, Generator::new(seed))));
}

/// The next key of this thread's default generator.
pub fn next_key() -> RandomKey {
    let mut generator = Generator::current();
    let key = generator.next_key();
    set_current(generator);
    key
}

/// A generator for an object that draws by itself from now on. It differs from call to call, follows from this thread's default generator,
/// and leaves the keys of that one as they are.
pub fn next_child() -> Generator {
    let generator = Generator::current();
    let child = generator.fork(CHILD ^ generator.children);
    set_current(Generator { children: generator.children.wrapping_add(1), ..generator });
    child
}

/// Keeps the indices of children apart from those of other parts.
const CHILD: u64 = 0x6368_696c_6400_0000;

/// The key given, or the default generator's next.
fn key_or_next(key: impl Into<Option<RandomKey>>) -> RandomKey {
    key.into().unwrap_or_else(next_key)
}

#[derive::located]
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
        Tensor::normal(0.0, 1.0, shape, dtype, key, device)
    }

    /// Normal numbers of mean 0 and deviation 1 in this tensor's shape and type, on its device; the key is as in [`Tensor::rand`].
    ///
    /// ```
    /// # use tensor::{DType, Device, Tensor};
    /// let x = Tensor::zeros(&[2, 3], DType::F64, &Device::cpu())?;
    /// let noise = x.randn_like(None)?;
    /// assert_eq!((noise.shape(), noise.dtype()), (x.shape(), x.dtype()));
    /// # Ok::<(), tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::randn`].
    pub fn randn_like(&self, key: impl Into<Option<RandomKey>>) -> Result<Tensor> {
        Tensor::randn(self.shape(), self.dtype(), key, self.device())
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
        Tensor::fresh("uniform", shape, dtype, device, |stream, out| {
            kernels::uniform(stream, key, low, high, out)
        })
    }

    /// The integers of `0..n` in random order, as I64; the key is as in [`Tensor::rand`].
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn randperm(n: usize, key: impl Into<Option<RandomKey>>, device: &Device) -> Result<Tensor> {
        // Of numbers of 53 bits, equal ones keep their order, which hardly ever happens.
        Tensor::rand(&[n], DType::F64, key, device)?.argsort(0, false)
    }

    /// Indices along the last axis, as I64, each drawn with a probability in proportion to its weight: `samples` of each row, with
    /// replacement or without. Without it, indices of weight 0 come after all others; they are not drawn before. The key is as in
    /// [`Tensor::rand`].
    ///
    /// Each draw is the largest of `weight / e` for exponential numbers `e`, so draws with replacement need memory for as many numbers
    /// as there are weights, times `samples`. Weights that are negative or NaN, and a row of zeros, give indices without
    /// meaning.
    ///
    /// Shapes: `[.., n]` to `[.., samples]`.
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// let weights = Tensor::from_slice(&[0.0_f32, 3.0, 0.0, 1.0], &[4], &Device::cpu())?;
    /// let mut both = weights.multinomial(2, false, None)?.to_vec::<i64>()?;
    /// both.sort_unstable();
    /// assert_eq!(both, [1, 3]);
    /// assert_eq!(weights.multinomial(5, true, None)?.shape(), [5]);
    /// # Ok::<(), tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point; `InvalidArgument` for a scalar, and for more samples than weights of a row without
    /// replacement; `OutOfMemory`.
    pub fn multinomial(
        &self,
        samples: usize,
        replacement: bool,
        key: impl Into<Option<RandomKey>>,
    ) -> Result<Tensor> {
        const OP: &str = "multinomial";
        self.dtype().require_float(OP)?;
        let Some((&n, rows)) = self.shape().split_last() else {
            return Err(Error::invalid(OP, "weights", "of at least one axis", "a scalar"));
        };
        let expected = "at most the weights of a row, or with replacement and at least one weight";
        Error::require(
            samples <= n || replacement && n > 0,
            OP,
            "samples",
            expected,
            format_args!("{samples} of {n}"),
        )?;
        let key = key_or_next(key);
        let race = |shape: &[usize], weights: &Tensor| {
            // Above 0, so that an index of weight 0 gives 0.
            let waits = Tensor::uniform(shape, f64::MIN_POSITIVE, 1.0, DType::F64, key, self.device())?
                .log()?
                .neg()?;
            weights.div(&waits)
        };
        let weights = self.to_dtype(DType::F64)?;
        if !replacement {
            return race(self.shape(), &weights)?.argtopk(samples, -1, true);
        }
        let shape: Dims = rows.iter().copied().chain([samples, n]).collect();
        race(&shape, &weights.unsqueeze(-2)?)?.argmax(-1, false)
    }

    /// Normal numbers of this mean and standard deviation; the key is as in [`Tensor::rand`].
    ///
    /// ```
    /// # use tensor::{DType, Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::normal(10.0, 0.5, &[4, 1000], DType::F64, None, &Device::cpu())?;
    /// assert!((x.mean(&[], false)?.item::<f64>()? - 10.0).abs() < 0.1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point; `InvalidArgument` unless `std >= 0`, both finite; `OutOfMemory`.
    pub fn normal(
        mean: f64,
        std: f64,
        shape: &[usize],
        dtype: DType,
        key: impl Into<Option<RandomKey>>,
        device: &Device,
    ) -> Result<Tensor> {
        let key = key_or_next(key);
        Tensor::fresh("normal", shape, dtype, device, |stream, out| {
            kernels::normal(stream, key, mean, std, out)
        })
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
        Tensor::fresh("randint", shape, dtype, device, |stream, out| {
            kernels::randint(stream, key, low, high, out)
        })
    }

    /// Sets each element to 0 with probability `p` and multiplies the others by `1 / (1 - p)`.
    ///
    /// The mask is a function of the key and the element's index alone, so the gradient is `g.dropout(p, key)`. Without
    /// a key, the next one of this thread's generator is used.
    ///
    /// # Errors
    /// `InvalidArgument` unless `0 <= p <= 1`; `DTypeUnsupported` unless the elements are floats.
    pub fn dropout(&self, p: f64, key: impl Into<Option<RandomKey>>) -> Result<Tensor> {
        let key = key_or_next(key);
        Tensor::fresh("dropout", self.shape(), self.dtype(), self.device(), |stream, out| {
            kernels::dropout(stream, Dropout { p, key }, self.view(), out)
        })
    }
}
