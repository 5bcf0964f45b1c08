//! Random numbers: blocks of Philox words, and what is made of them.

use device::{DType, bf16, f16};

use super::math;
use super::number::{Number, Real};
use super::simd_of;
use super::walk::mul_run;
use crate::distribution::{Distribution, RandomKey};
use crate::half::{Half, below};
use crate::layout::{Dst, Src};
use crate::loops::Loops;
use crate::par::{Workers, for_range};

/// Counters that go through the rounds side by side.
const LANES: usize = 16;
/// Elements made at a time, four words for each counter.
const BLOCK: usize = 4 * LANES;
/// Elements of a part when a kernel is split over threads; a multiple of `BLOCK`.
const CHUNK: usize = 128 * BLOCK;

type Words<const N: usize> = [[u32; N]; 4];

/// Ten rounds of Philox on `N` counters; see [`crate::random`].
#[inline(always)]
pub(crate) fn philox_lanes<const N: usize>(counter: Words<N>, key: [u32; 2]) -> Words<N> {
    const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    // Words in the low halves of 64 bits, where vector units have a product of 32 by 32 bits.
    const LOW: u64 = u32::MAX as u64;
    let [mut c0, mut c1, mut c2, mut c3] = counter.map(|words| words.map(u64::from));
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        for lane in 0..N {
            let p0 = u64::from(MULTIPLIERS[0]) * (c0[lane] & LOW);
            let p1 = u64::from(MULTIPLIERS[1]) * (c2[lane] & LOW);
            c0[lane] = (p1 >> 32) ^ c1[lane] ^ u64::from(k0);
            c1[lane] = p1 & LOW;
            c2[lane] = (p0 >> 32) ^ c3[lane] ^ u64::from(k1);
            c3[lane] = p0 & LOW;
        }
        k0 = k0.wrapping_add(WEYL[0]);
        k1 = k1.wrapping_add(WEYL[1]);
    }
    [c0, c1, c2, c3].map(|words| words.map(|word| word as u32))
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
    philox_lanes(counter, [key.seed as u32, (key.seed >> 32) as u32])
}

/// Makes an element of each word, in the elements' order: the words of one counter are neighbours.
#[inline(always)]
fn from_words<T: Copy + Default>(words: Words<LANES>, make: impl Fn(u32) -> T) -> [T; BLOCK] {
    let mut values = [T::default(); BLOCK];
    for lane in 0..LANES {
        for word in 0..4 {
            values[4 * lane + word] = make(words[word][lane]);
        }
    }
    values
}

/// As [`from_words`], of both words of each element.
#[inline(always)]
fn from_pairs<T: Copy + Default>(key: RandomKey, first: usize, make: impl Fn(u64) -> T) -> [T; BLOCK] {
    let (high, low) = (words(key, first, false), words(key, first, true));
    let mut values = [T::default(); BLOCK];
    for lane in 0..LANES {
        for word in 0..4 {
            values[4 * lane + word] = make(u64::from(high[word][lane]) << 32 | u64::from(low[word][lane]));
        }
    }
    values
}

/// A random element.
trait Random: Real {
    /// `BLOCK` numbers in `[0, 1)`.
    fn units(key: RandomKey, first_element: usize) -> [Self; BLOCK];
    /// `BLOCK` numbers of the standard normal distribution.
    fn normals(key: RandomKey, first_element: usize) -> [Self; BLOCK];
}

/// What a number is stored as.
trait Stored<T>: Copy {
    fn of(value: T) -> Self;
}

impl<T: Number> Stored<T> for T {
    #[inline(always)]
    fn of(value: T) -> T {
        value
    }
}

impl<H: Half> Stored<f32> for H {
    #[inline(always)]
    fn of(value: f32) -> H {
        H::round(value)
    }
}

impl Random for f32 {
    #[inline(always)]
    fn units(key: RandomKey, first_element: usize) -> [f32; BLOCK] {
        // Through `i32`, which every vector unit can convert.
        from_words(
            words(key, first_element, false),
            #[inline(always)]
            |word| (word >> 8) as i32 as f32 / 16_777_216.0,
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
        from_pairs(
            key,
            first_element,
            #[inline(always)]
            |bits| (bits >> 11) as f64 / 9_007_199_254_740_992.0,
        )
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

/// `out` drawn from `distribution`.
///
/// # Safety
/// The elements that `loops` reach lie in the memory of `out`, are of type `dtype`, and nobody else touches them
/// meanwhile. The launcher has refused distributions that the type lacks.
pub(crate) unsafe fn generate(
    key: RandomKey,
    distribution: Distribution,
    dtype: DType,
    loops: &Loops<1>,
    workers: &Workers,
    out: Dst<u8>,
) {
    // SAFETY: `out` is of the type that each arm names.
    unsafe {
        match dtype {
            DType::F32 => {
                let below = |high: f64| (high as f32).next_down();
                real::<f32, f32>(key, distribution, below, loops, workers, out.cast());
            }
            DType::F64 => real::<f64, f64>(key, distribution, f64::next_down, loops, workers, out.cast()),
            DType::BF16 => real::<f32, bf16>(key, distribution, below::<bf16>, loops, workers, out.cast()),
            DType::F16 => real::<f32, f16>(key, distribution, below::<f16>, loops, workers, out.cast()),
            DType::I64 => integers::<i64, i64>(key, distribution, loops, workers, out.cast()),
            DType::U8 => integers::<u8, u8>(key, distribution, loops, workers, out),
            _ => {}
        }
    }
}

/// `below` gives the largest number of the stored type that is less than another one.
///
/// # Safety
/// As for [`generate`].
unsafe fn real<T: Random, S: Stored<T>>(
    key: RandomKey,
    distribution: Distribution,
    below: fn(f64) -> T,
    loops: &Loops<1>,
    workers: &Workers,
    out: Dst<S>,
) {
    match distribution {
        Distribution::Uniform { low, high } => {
            let (low, span) = (T::from_f64(low), T::from_f64(high - low));
            // Rounding may lead to `high`, which is not in the range.
            let last = below(high).maximum(low);
            for_blocks(
                loops.elements,
                workers,
                #[inline(always)]
                |first, len| {
                    let mut values = T::units(key, first);
                    for value in &mut values {
                        *value = value.mul(span).add(low).minimum(last);
                    }
                    // SAFETY: elements of the output; blocks do not overlap.
                    unsafe { write(loops, out, first, &values[..len]) }
                },
            );
        }
        Distribution::Normal { mean, std } => {
            let (mean, std) = (T::from_f64(mean), T::from_f64(std));
            for_blocks(
                loops.elements,
                workers,
                #[inline(always)]
                |first, len| {
                    let mut values = T::normals(key, first);
                    for value in &mut values {
                        *value = value.mul(std).add(mean);
                    }
                    // SAFETY: elements of the output; blocks do not overlap.
                    unsafe { write(loops, out, first, &values[..len]) }
                },
            );
        }
        // SAFETY: every float can be made of integers.
        Distribution::Integers { .. } => unsafe { integers(key, distribution, loops, workers, out) },
    }
}

/// # Safety
/// As for [`generate`].
unsafe fn integers<T: Number, S: Stored<T>>(
    key: RandomKey,
    distribution: Distribution,
    loops: &Loops<1>,
    workers: &Workers,
    out: Dst<S>,
) {
    let Distribution::Integers { low, high } = distribution else { return };
    let count = high.wrapping_sub(low) as u64;
    for_blocks(
        loops.elements,
        workers,
        #[inline(always)]
        |first, len| {
            let values = from_pairs(
                key,
                first,
                #[inline(always)]
                |bits| {
                    // The high half of a product maps 64 bits to the range almost evenly.
                    let index = (u128::from(bits) * u128::from(count)) >> 64;
                    T::from_i64(low.wrapping_add(index as i64))
                },
            );
            // SAFETY: elements of the output; blocks do not overlap.
            unsafe { write(loops, out, first, &values[..len]) }
        },
    );
}

/// `out = x m / (1 - p)`.
///
/// # Safety
/// As for [`generate`], and `x` alike; `out` may be `x`, element for element.
pub(crate) unsafe fn dropout<T: Real>(
    key: RandomKey,
    p: f64,
    loops: &Loops<2>,
    workers: &Workers,
    out: Dst<T>,
    x: Src<T>,
) {
    // Both types keep the same elements.
    let kept_from = (p * 16_777_216.0).ceil() as u32;
    let scale = if p < 1.0 { T::from_f64(1.0 / (1.0 - p)) } else { T::ZERO };
    let [so, sx] = loops.inner().strides;
    for_blocks(
        loops.elements,
        workers,
        #[inline(always)]
        |first, len| {
            let factors = from_words(
                words(key, first, false),
                #[inline(always)]
                |word| if word >> 8 >= kept_from { scale } else { T::ZERO },
            );
            let mut done = 0;
            loops.for_runs(
                first..first + len,
                #[inline(always)]
                |[oo, ox], len| {
                    // SAFETY: offsets come from `loops`.
                    unsafe { mul_run((out.at(oo), so), (x.at(ox), sx), &factors[done..done + len]) }
                    done += len;
                },
            );
        },
    );
}

/// Calls `body(first, len)` for blocks of elements that start at multiples of `BLOCK`.
#[inline(always)]
fn for_blocks(elements: usize, workers: &Workers, body: impl Fn(usize, usize) + Sync) {
    for_range(workers, elements, CHUNK, &|range| {
        simd_of::<true, _>(
            #[inline(always)]
            || {
                for first in range.clone().step_by(BLOCK) {
                    body(first, BLOCK.min(range.end - first));
                }
            },
        );
    });
}

/// Stores `values` as the elements from `first` on.
///
/// # Safety
/// The elements that `loops` reach lie in the memory of `out`, and nobody else touches them meanwhile.
#[inline(always)]
unsafe fn write<T: Copy, S: Stored<T>>(loops: &Loops<1>, out: Dst<S>, first: usize, values: &[T]) {
    let [step] = loops.inner().strides;
    let mut values = values;
    loops.for_runs(
        first..first + values.len(),
        #[inline(always)]
        |[offset], len| {
            let (run, rest) = values.split_at(len);
            for (i, value) in run.iter().enumerate() {
                // SAFETY: offsets come from `loops`.
                unsafe { *out.at(offset + i as isize * step) = S::of(*value) };
            }
            values = rest;
        },
    );
}
