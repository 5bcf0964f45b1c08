//! Random numbers.

use device::cuda::{Arg, Queue};
use device::{DType, Result, bf16, f16};
use smallvec::SmallVec;

use super::walk::{ByValue, Walk, blocks, number_bits};
use super::{Family, family};
use crate::command::Address;
use crate::distribution::{Distribution, Dropout, RandomKey};
use crate::half::below;
use crate::loops::Loops;

pub(super) static PROGRAMS: Family = family!("random", NUMBERS, "philox.cuh", "random.cu");

/// Elements per counter.
const LANES: usize = 4;
const THREADS: u32 = 256;

pub(crate) fn generate(
    queue: &Queue<'_>,
    key: RandomKey,
    distribution: Distribution,
    dtype: DType,
    loops: &Loops<1>,
    out: Address,
) -> Result<()> {
    let bits = |value: f64| Arg::U64(number_bits(dtype, value));
    let (kernel, numbers): (_, SmallVec<[Arg<'_>; 3]>) = match distribution {
        Distribution::Uniform { low, high } => {
            let last = last_below(dtype, high).max(low);
            ("uniform", [bits(low), bits(high - low), bits(last)].into_iter().collect())
        }
        Distribution::Normal { mean, std } => ("normal", [bits(mean), bits(std)].into_iter().collect()),
        Distribution::Integers { low, high } => {
            ("randint", [Arg::I64(low), Arg::U64(high.wrapping_sub(low) as u64)].into_iter().collect())
        }
    };
    random(queue, key, kernel, dtype, loops, [out], &numbers)
}

pub(crate) fn dropout(
    queue: &Queue<'_>,
    dropout: Dropout,
    dtype: DType,
    loops: &Loops<2>,
    operands: [Address; 2],
) -> Result<()> {
    let numbers = [Arg::U32(dropout.kept_from()), Arg::U64(number_bits(dtype, dropout.scale()))];
    random(queue, dropout.key, "dropout", dtype, loops, operands, &numbers)
}

/// The largest number of the type below `high`; results are limited to it, since rounding could reach `high`.
fn last_below(dtype: DType, high: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from((high as f32).next_down()),
        DType::BF16 => f64::from(below::<bf16>(high)),
        DType::F16 => f64::from(below::<f16>(high)),
        _ => high.next_down(),
    }
}

/// Enqueues a kernel on `(output, inputs ..)`. Elements are numbered in row-major order.
fn random<const N: usize>(
    queue: &Queue<'_>,
    key: RandomKey,
    kernel: &'static str,
    dtype: DType,
    loops: &Loops<N>,
    operands: [Address; N],
    numbers: &[Arg<'_>],
) -> Result<()> {
    let sized = operands.map(|at| (at.0.cast_const(), dtype.size_bytes()));
    let walk = Walk::of(queue.op(), loops)?.vectors(LANES, sized);
    let mut args: SmallVec<[Arg<'_>; 8]> = operands.map(Arg::from).into_iter().collect();
    args.extend([Arg::U64(key.seed), Arg::U64(key.op), walk.arg()]);
    args.extend_from_slice(numbers);
    let items = loops.elements.div_ceil(LANES) as u64;
    let grid = blocks(queue, items.div_ceil(u64::from(THREADS)), THREADS);
    // SAFETY: kernels of this kind take these arguments, and the walk is that of the operands.
    unsafe { PROGRAMS.kernel(queue, &[kernel], dtype, grid, &args) }
}
