//! Launchers of random numbers, and the generator that every device shares.
//!
//! Element `i`, counted in row-major order, depends on the key and on `i` only: not on the stream, the layout, the
//! number of threads or the device. The generator is Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random
//! numbers: as easy as 1, 2, 3" (SC 2011). Which weights attention leaves out is counted, and drawn, in another way: see
//! [`crate::AttentionKind`].

use std::fmt::Debug;

use device::{DType, Error, Result, Stream};

use crate::command::{Command, Raw, for_float, no_part};
use crate::cpu::random as cpu;
use crate::cuda::random as cuda;
use crate::distribution::{Distribution, Dropout, RandomKey};
use crate::layout::View;
use crate::loops::Loops;

/// Philox4x32-10: four random words of a counter and a key.
///
/// Words for elements `4 b .. 4 b + 4` of a random op come from the counter `[b, b >> 32, op, op >> 32]` and the key
/// `[seed, seed >> 32]`, one word an element. Where an element needs 64 bits, the low half comes from the same counter
/// with the highest bit of the second word set.
///
/// ```
/// use kernels::philox;
/// assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
/// ```
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    philox_of::<10>(counter, key)
}

/// As [`philox`], of other rounds.
pub(crate) fn philox_of<const ROUNDS: usize>(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let seed = u64::from(key[0]) | u64::from(key[1]) << 32;
    let words = cpu::philox_lanes::<ROUNDS, 1>(counter.map(|word| [word]), seed);
    words.map(|[word]| word)
}

const RANDOM_COST: usize = 16;

/// `out = low + (high - low) u`, with `u` uniform in `[0, 1)` in steps of 2^-24 for F32 and 2^-53 for F64, BF16 and F16 being rounded
/// from F32; never `high`, but the largest number of the type below it.
///
/// Shapes: any. Asynchronous, ordered by the buffers.
///
/// # Errors
/// `DTypeUnsupported` unless `out` is floating-point; `InvalidArgument` if the bounds are not finite
/// and in order, or for an `out` that is expanded; the errors of [`Stream::launch`].
pub fn uniform(stream: &Stream, key: RandomKey, low: f64, high: f64, out: View<'_>) -> Result<()> {
    const OP: &str = "uniform";
    if !(low <= high && (high - low).is_finite()) {
        return Err(invalid(OP, "low, high", "finite and in order", &(low, high)));
    }
    generate(stream, OP, key, Distribution::Uniform { low, high }, out)
}

/// `out = mean + std z`, with `z` from the standard normal distribution (Box-Muller).
///
/// Shapes: any. Asynchronous, ordered by the buffers.
///
/// # Errors
/// `DTypeUnsupported` unless `out` is floating-point; `InvalidArgument` if `std` is negative or a
/// parameter is not finite, or for an `out` that is expanded; the errors of [`Stream::launch`].
pub fn normal(stream: &Stream, key: RandomKey, mean: f64, std: f64, out: View<'_>) -> Result<()> {
    const OP: &str = "normal";
    if !(mean.is_finite() && std.is_finite() && std >= 0.0) {
        return Err(invalid(OP, "mean, std", "finite, std not negative", &(mean, std)));
    }
    generate(stream, OP, key, Distribution::Normal { mean, std }, out)
}

/// `out` uniform among the integers `low..high`.
///
/// Shapes: any; every type but boolean. Asynchronous, ordered by the buffers.
///
/// # Errors
/// `DTypeUnsupported` for booleans; `InvalidArgument` if the range is empty or `out` cannot hold it, or
/// for an `out` that is expanded; the errors of [`Stream::launch`].
pub fn randint(stream: &Stream, key: RandomKey, low: i64, high: i64, out: View<'_>) -> Result<()> {
    const OP: &str = "randint";
    if low >= high {
        return Err(invalid(OP, "low..high", "a range that is not empty", &(low..high)));
    }
    if out.dtype == DType::U8 && (low < 0 || high > 256) {
        return Err(invalid(OP, "low..high", "within 0..256 for u8", &(low..high)));
    }
    if out.dtype == DType::Bool {
        return Err(Error::dtype_unsupported(OP, out.dtype, "numbers"));
    }
    generate(stream, OP, key, Distribution::Integers { low, high }, out)
}

fn generate(
    stream: &Stream,
    op: &'static str,
    key: RandomKey,
    distribution: Distribution,
    out: View<'_>,
) -> Result<()> {
    let dtype = out.dtype;
    if !(dtype.is_float() || matches!(distribution, Distribution::Integers { .. })) {
        return Err(Error::dtype_unsupported(op, dtype, "floats"));
    }
    Command::new(op, (out.write::<Raw>(),)).cost(out.layout.elements(), RANDOM_COST).launch(
        stream,
        (key, Loops::new([out.layout])),
        |(key, _), show| show(key),
        no_part,
        // SAFETY: the loops were made from the layout of the output, and `dtype` is its type; see `Command::launch`.
        move |(key, loops), workers, (out,)| unsafe {
            cpu::generate(*key, distribution, dtype, loops, workers, out);
        },
        move |(key, loops), queue, (out,)| cuda::generate(queue, *key, distribution, dtype, loops, out),
    )
}

/// `out = x m / (1 - p)`, where `m` is 0 with the probability `p` of `dropout` and else 1, drawn from its key alone: the same call on
/// the gradient of `out` gives the gradient of `x`, and no mask is kept.
///
/// Shapes: any, `x` and `out` alike. Asynchronous, ordered by the buffers. `out` may be `x`.
///
/// # Errors
/// `DTypeUnsupported` unless `out` is floating-point; `DTypeMismatch`; `ShapeMismatch`;
/// `InvalidArgument` if `p` is not in `0..=1`, or for an `out` that is expanded or overlaps `x` otherwise than
/// element for element; the errors of [`Stream::launch`].
pub fn dropout(stream: &Stream, dropout: Dropout, x: View<'_>, out: View<'_>) -> Result<()> {
    const OP: &str = "dropout";
    dropout.check(OP)?;
    let dtype = out.dtype;
    x.expect_shape(OP, out.shape())?;
    // Elements are counted in row-major order, so the loops have to be in that order, too.
    let loops = Loops::new([out.layout, x.layout]);
    for_float!(OP, dtype, T => Command::new(OP, (out.write::<T>(), x.read::<T>().in_place()))
    .cost(out.layout.elements(), RANDOM_COST)
    .launch(
        stream,
        (dropout, loops),
        |(dropout, _), show| show(&mut dropout.key),
        no_part,
        // SAFETY: `loops` was made from the layouts of these operands; see `Command::launch`.
        move |(dropout, loops), workers, operands| unsafe { cpu::dropout(*dropout, loops, workers, operands) },
        move |(dropout, loops), queue, operands| cuda::dropout(queue, *dropout, dtype, loops, operands.into()),
    ))
}

#[cold]
fn invalid(op: &'static str, argument: &'static str, expected: &'static str, value: &dyn Debug) -> Error {
    Error::invalid(op, argument, expected, format_args!("{value:?}"))
}

#[cfg(test)]
mod tests;
