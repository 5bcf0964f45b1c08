//! Random numbers: blocks of Philox words, and what is made of them.

use device::{DType, bf16, f16};

use super::math;
use super::number::{Number, Real};
use super::walk::map_run;
use super::{array, inlined, simd_of};
use crate::distribution::{Distribution, Dropout, MULTIPLIERS, ROUNDS, RandomKey, Weights, round_keys};
use crate::half::{Half, below};
use crate::layout::{Dst, Src};
use crate::loops::{Loops, Runs};
use crate::par::{Workers, for_range};

/// Counters that go through the rounds side by side.
const LANES: usize = 16;
/// Elements made at a time, four words for each counter.
const BLOCK: usize = 4 * LANES;
/// Elements of a part when a kernel is split over threads; a multiple of `BLOCK`.
const CHUNK: usize = 128 * BLOCK;

type Words<const N: usize> = [[u32; N]; 4];

/// Rounds of Philox on `N` counters; see [`crate::random`].
#[inline(always)]
pub(crate) fn philox_lanes<const ROUNDS: usize, const N: usize>(counter: Words<N>, seed: u64) -> Words<N> {
    // Words in the low halves of 64 bits, where vector units have a product of 32 by 32 bits.
    const LOW: u64 = u32::MAX as u64;
    let [mut c0, mut c1, mut c2, mut c3] = array(inlined!(|i| each(counter[i], u64::from)));
    for [k0, k1] in round_keys::<ROUNDS>(seed) {
        for lane in 0..N {
            let p0 = u64::from(MULTIPLIERS[0]) * (c0[lane] & LOW);
            let p1 = u64::from(MULTIPLIERS[1]) * (c2[lane] & LOW);
            c0[lane] = (p1 >> 32) ^ c1[lane] ^ u64::from(k0);
            c1[lane] = p1 & LOW;
            c2[lane] = (p0 >> 32) ^ c3[lane] ^ u64::from(k1);
            c3[lane] = p0 & LOW;
        }
    }
    array(inlined!(|i| each([c0, c1, c2, c3][i], inlined!(|word| word as u32))))
}

/// Words for `BLOCK` elements, those of element `4 l + w` at `[w][l]`. `low_half` gives the second word of each.
#[inline(always)]
fn words(key: RandomKey, first_element: usize, low_half: bool) -> Words<LANES> {
    let first = first_element as u64 / 4;
    let part = u32::from(low_half) << 31;
    let counter = [
        std::array::from_fn(|lane| (first + lane as u64) as u32),
        std::array::from_fn(|lane| ((first + lane as u64) >> 32) as u32 | part),
        [key.op as u32; LANES],
        [(key.op >> 32) as u32; LANES],
    ];
    philox_lanes::<10, LANES>(counter, key.seed)
}

/// The elements `make(lane, word)` in their order: the words of one counter are neighbours.
#[inline(always)]
fn in_order<T: Copy + Default>(make: impl Fn(usize, usize) -> T) -> [T; BLOCK] {
    let mut values = [T::default(); BLOCK];
    for lane in 0..LANES {
        for word in 0..4 {
            values[4 * lane + word] = make(lane, word);
        }
    }
    values
}

/// Makes an element of each word.
#[inline(always)]
fn from_words<T: Copy + Default>(words: Words<LANES>, make: impl Fn(u32) -> T) -> [T; BLOCK] {
    in_order(inlined!(|lane, word| make(words[word][lane])))
}

/// Makes an element of both words of each.
#[inline(always)]
fn from_pairs<T: Copy + Default>(key: RandomKey, first: usize, make: impl Fn(u64) -> T) -> [T; BLOCK] {
    let (high, low) = (words(key, first, false), words(key, first, true));
    let bits = inlined!(|of: &Words<LANES>, lane: usize, word: usize| u64::from(of[word][lane]));
    in_order(inlined!(|lane, word| make(bits(&high, lane, word) << 32 | bits(&low, lane, word))))
}

/// A random element.
trait Random: Real {
    /// `BLOCK` numbers in `[0, 1)`.
    fn units(key: RandomKey, first_element: usize) -> [Self; BLOCK];
    /// `BLOCK` numbers of the standard normal distribution.
    fn normals(key: RandomKey, first_element: usize) -> [Self; BLOCK];
}

impl Random for f32 {
    #[inline(always)]
    fn units(key: RandomKey, first_element: usize) -> [f32; BLOCK] {
        // Through `i32`, which every vector unit can convert.
        from_words(
            words(key, first_element, false),
            inlined!(|word| (word >> 8) as i32 as f32 / 16_777_216.0),
        )
    }

    #[inline(always)]
    fn normals(key: RandomKey, first_element: usize) -> [f32; BLOCK] {
        let words = words(key, first_element, false);
        let mut values = [0.0; BLOCK];
        for pair in [0, 2] {
            for lane in 0..LANES {
                // In (0, 1], so that the logarithm is finite.
                let unit = ((words[pair][lane] >> 1) as i32 as f32 + 0.5) / 2_147_483_648.0;
                let radius = (-2.0 * math::log(unit)).sqrt();
                let (sin, cos) = math::sin_cos_turns(words[pair + 1][lane]);
                values[4 * lane + pair] = radius * cos;
                values[4 * lane + pair + 1] = radius * sin;
            }
        }
        values
    }
}

impl Random for f64 {
    #[inline(always)]
    fn units(key: RandomKey, first_element: usize) -> [f64; BLOCK] {
        from_pairs(key, first_element, inlined!(|bits| (bits >> 11) as f64 / 9_007_199_254_740_992.0))
    }

    #[inline(always)]
    fn normals(key: RandomKey, first_element: usize) -> [f64; BLOCK] {
        let units = f64::units(key, first_element);
        let mut values = [0.0; BLOCK];
        for pair in (0..BLOCK).step_by(2) {
            let radius = (-2.0 * (units[pair] + f64::EPSILON / 4.0).ln()).sqrt();
            let (sin, cos) = (units[pair + 1] * std::f64::consts::TAU).sin_cos();
            values[pair] = radius * cos;
            values[pair + 1] = radius * sin;
        }
        values
    }
}

/// Where numbers go, and what each is stored as.
type Target<'a, S, F> = (&'a Loops<1>, &'a Workers, Dst<S>, F);

/// `out` drawn from `distribution`.
///
/// # Safety
/// The launcher has refused distributions that the type lacks.
pub(crate) unsafe fn generate(
    key: RandomKey,
    distribution: Distribution,
    dtype: DType,
    loops: &Loops<1>,
    workers: &Workers,
    out: Dst<u8>,
) {
    let of = (key, distribution);
    // SAFETY: by the module's contract `loops` reaches elements of `out`, which are of type `dtype`, and each arm
    // casts to that.
    unsafe {
        match dtype {
            DType::F32 => {
                let below = |high: f64| (high as f32).next_down();
                real(of, below, (loops, workers, out.cast(), inlined!(|x: f32| x)));
            }
            DType::F64 => real(of, f64::next_down, (loops, workers, out.cast(), inlined!(|x: f64| x))),
            DType::BF16 => real(of, below::<bf16>, (loops, workers, out.cast(), bf16::round)),
            DType::F16 => real(of, below::<f16>, (loops, workers, out.cast(), f16::round)),
            DType::I64 => integers(of, (loops, workers, out.cast(), inlined!(|x: i64| x))),
            DType::U8 => integers(of, (loops, workers, out, inlined!(|x: u8| x))),
            _ => {}
        }
    }
}

/// `below` gives the largest number of the stored type that is less than another one.
unsafe fn real<T: Random, S: Copy>(
    (key, distribution): (RandomKey, Distribution),
    below: fn(f64) -> T,
    to: Target<'_, S, impl Fn(T) -> S + Sync>,
) {
    // SAFETY: `loops` reaches elements of `out` of type `S`, as `generate`'s caller vouches.
    unsafe {
        match distribution {
            Distribution::Uniform { low, high } => {
                let (low, span) = (T::from_f64(low), T::from_f64(high - low));
                // Rounding may lead to `high`, which is not in the range.
                let last = below(high).maximum(low);
                let finish = inlined!(|unit: T| unit.mul(span).add(low).minimum(last));
                draw(to, inlined!(|first| each(T::units(key, first), finish)));
            }
            Distribution::Normal { mean, std } => {
                let (mean, std) = (T::from_f64(mean), T::from_f64(std));
                let finish = inlined!(|normal: T| normal.mul(std).add(mean));
                draw(to, inlined!(|first| each(T::normals(key, first), finish)));
            }
            Distribution::Integers { .. } => integers((key, distribution), to),
        }
    }
}

/// `f` of each value. A loop of this kind becomes vector code, `array::map` does not.
#[inline(always)]
fn each<A: Copy, B: Copy + Default, const N: usize>(values: [A; N], f: impl Fn(A) -> B) -> [B; N] {
    let mut results = [B::default(); N];
    for i in 0..N {
        results[i] = f(values[i]);
    }
    results
}

unsafe fn integers<T: Number, S: Copy>(
    (key, distribution): (RandomKey, Distribution),
    to: Target<'_, S, impl Fn(T) -> S + Sync>,
) {
    let Distribution::Integers { low, high } = distribution else { return };
    let count = high.wrapping_sub(low) as u64;
    let value = inlined!(|bits: u64| {
        // The high half of a product maps 64 bits to the range almost evenly.
        let index = (u128::from(bits) * u128::from(count)) >> 64;
        T::from_i64(low.wrapping_add(index as i64))
    });
    // SAFETY: `loops` reaches elements of `out` of type `S`, as `generate`'s caller vouches.
    unsafe { draw(to, inlined!(|first| from_pairs(key, first, value))) }
}

/// `out = x m / (1 - p)`; `out` may be `x`, element for element.
pub(crate) unsafe fn dropout<T: Real>(
    dropout: Dropout,
    loops: &Loops<2>,
    workers: &Workers,
    (out, x): (Dst<T>, Src<T>),
) {
    // An element that is dropped becomes 0, whatever it is.
    let scaled = inlined!(|[x, factor]: [T; 2]| {
        let product = x.mul(factor);
        if factor == T::ZERO { factor } else { product }
    });
    let scale_kept = inlined!(|mut runs: Runs<'_, 2>, first: usize| {
        let [so, sx] = runs.steps();
        let factors: [T; BLOCK] = factors(dropout, first);
        let mut rest = &factors[..];
        while let Some(([oo, ox], len)) = runs.next() {
            let (factors, behind) = rest.split_at(len);
            // SAFETY: `loops` reaches `len` elements of both at these offsets and steps, by the module's contract;
            // `out` is `x` element for element or apart.
            unsafe {
                map_run(len, (out.at(oo), so), [(x.at(ox), sx), (factors.as_ptr(), 1)], scaled);
            }
            rest = behind;
        }
    });
    for_blocks(loops, workers, scale_kept);
}

/// Keys whose weights [`weights`] makes at a time, four for each counter.
pub(super) const KEYS: usize = 4 * LANES;

/// What dropout multiplies the weights of a query with, from a multiple of sixteen keys on; see [`crate::AttentionKind`] for the
/// counters, whose numbers of the query and of the first key these are.
#[inline(always)]
pub(super) fn weights<T: Real>(
    dropout: &Dropout,
    (query, further): (u32, bool),
    first_key: u32,
) -> [T; KEYS] {
    let Weights { kept_from, scale } = Weights::of(dropout);
    let (scale, op) = (T::from_f64(scale), dropout.key.op);
    let keys = std::array::from_fn(|lane| first_key.wrapping_add(lane as u32));
    let counter = [keys, [query; LANES], [op as u32; LANES], [(op >> 32) as u32; LANES]];
    let words = philox_lanes::<ROUNDS, LANES>(counter, dropout.key.seed);
    let mut factors = [T::ZERO; KEYS];
    for lane in 0..LANES {
        for key in [0, 1, 8, 9] {
            let word = words[key / 8 * 2 + usize::from(further)][lane];
            let bits = word >> (key % 2 * 16) & 0x7fff;
            factors[lane / 4 * 16 + lane % 4 * 2 + key] = if bits >= kept_from { scale } else { T::ZERO };
        }
    }
    factors
}

/// What dropout multiplies `BLOCK` elements with, from a multiple of four on.
#[inline(always)]
fn factors<T: Real>(dropout: Dropout, first_element: usize) -> [T; BLOCK] {
    let (kept_from, scale) = (dropout.kept_from(), T::from_f64(dropout.scale()));
    let factor = inlined!(|word: u32| if word >> 8 >= kept_from { scale } else { T::ZERO });
    from_words(words(dropout.key, first_element, false), factor)
}

/// Calls `body(runs, first)` for blocks of elements, the first of which are multiples of [`BLOCK`].
#[inline(always)]
fn for_blocks<const N: usize>(loops: &Loops<N>, workers: &Workers, body: impl Fn(Runs<'_, N>, usize) + Sync) {
    for_range(workers, loops.elements, CHUNK, &|range| {
        simd_of::<true, _>(inlined!(|| {
            for first in range.clone().step_by(BLOCK) {
                body(loops.runs(first..range.end.min(first + BLOCK)), first);
            }
        }));
    });
}

/// Stores as the elements of `out` what `values(first)` gives for each block.
///
/// # Safety
/// The elements that `loops` reach lie in the memory of `out`, and nobody else touches them meanwhile.
#[inline(always)]
unsafe fn draw<T: Copy, S: Copy>(
    (loops, workers, out, stored): Target<'_, S, impl Fn(T) -> S + Sync>,
    values: impl Fn(usize) -> [T; BLOCK] + Sync,
) {
    let store = inlined!(|mut runs: Runs<'_, 1>, first: usize| {
        let [step] = runs.steps();
        let values = values(first);
        let mut rest = &values[..];
        while let Some(([offset], len)) = runs.next() {
            let (run, behind) = rest.split_at(len);
            for (i, value) in run.iter().enumerate() {
                // SAFETY: `loops` reaches these elements, which the caller promises to lie in `out` and to be used by
                // nobody else.
                unsafe { *out.at(offset + i as isize * step) = stored(*value) };
            }
            rest = behind;
        }
    });
    for_blocks(loops, workers, store);
}
