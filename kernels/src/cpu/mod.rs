//! The kernels of the CPU device: plain loops over raw elements, compiled for several instruction sets and
//! dispatched at run time.
//!
//! # Safety
//! Kernels are unsafe. Callers vouch that the parameters describe the operands, so that every element that they lead to
//! lies in an operand's memory and is of its type; that inputs can be read and outputs written; and that meanwhile nobody
//! else writes to either or reads the outputs. A kernel that needs more says so. This is the module's contract, to which
//! SAFETY comments refer.

use std::mem::MaybeUninit;

pub(crate) mod activations;
pub(crate) mod attention;
pub(crate) mod batch_norm;
pub(crate) mod chain;
pub(crate) mod clip;
pub(crate) mod conv;
pub(crate) mod copy;
pub(crate) mod depthwise;
pub(crate) mod elementwise;
pub(crate) mod embedding_bag;
mod few;
pub(crate) mod fold;
pub(crate) mod half;
pub(crate) mod image;
pub(crate) mod index;
mod indexed;
pub(crate) mod lanes;
pub(crate) mod loss;
pub(crate) mod math;
pub(crate) mod matmul;
pub(crate) mod normalize;
pub(crate) mod number;
pub(crate) mod optim;
pub(crate) mod order;
mod patches;
pub(crate) mod pool;
pub(crate) mod product;
pub(crate) mod random;
mod real;
pub(crate) mod reduce;
pub(crate) mod sequence;
pub(crate) mod softmax;
pub(crate) mod stage;
pub(crate) mod walk;

/// Evaluates `$body` with `$t` as the type of so many bytes, for what does not look at the values.
macro_rules! for_bits {
    ($size:expr, $t:ident => $body:expr) => {
        match $size {
            1 => {
                type $t = u8;
                $body
            }
            2 => {
                type $t = u16;
                $body
            }
            4 => {
                type $t = u32;
                $body
            }
            _ => {
                type $t = u64;
                $body
            }
        }
    };
}
pub(crate) use for_bits;

/// A closure that is inlined wherever it is called, so that it is compiled for the caller's instruction set; see [`simd`].
macro_rules! inlined {
    ($closure:expr) => {{
        #[inline(always)]
        $closure
    }};
}
pub(crate) use inlined;

/// Runs `work` compiled for the best instruction set of this machine. What it calls has to be inlined to gain from
/// it, hence the many `#[inline(always)]`.
#[inline(always)]
pub(crate) fn simd<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}

/// As [`simd`] if `WIDE`, else with vectors of 256 bits at most: where memory is the limit, wider ones only add code.
#[inline(always)]
pub(crate) fn simd_of<const WIDE: bool, R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    if !WIDE {
        return match pulp::x86::V3::try_new() {
            Some(simd) => simd.vectorize(work),
            None => work(),
        };
    }
    simd(work)
}

/// Calls `f` with 0..N, written out: the compiler unrolls a loop too late to keep the arrays in registers.
#[inline(always)]
pub(crate) fn each<const N: usize>(mut f: impl FnMut(usize)) {
    const { assert!(N <= 13) };
    macro_rules! calls {
        ($($i:literal)*) => {
            $(if N > $i {
                f($i);
            })*
        };
    }
    calls!(0 1 2 3 4 5 6 7 8 9 10 11 12);
}

/// `[f(0), f(1), ..]`. Unlike `std::array::from_fn` it is always inlined, and so compiled for the caller's instruction set.
#[inline(always)]
pub(crate) fn array<T: Copy, const N: usize>(f: impl Fn(usize) -> T) -> [T; N] {
    let mut values = [const { MaybeUninit::<T>::uninit() }; N];
    each::<N>(inlined!(|k| {
        values[k].write(f(k));
    }));
    // SAFETY: `each` has written every value, and they lie in memory as those of the result.
    unsafe { std::mem::transmute_copy(&values) }
}
