//! Elementwise kernels on BF16 and F16, by blocks. Other kernels take halves through [`stage`](super::stage).

use std::mem::MaybeUninit;
use std::ops::Range;

use device::{DType, bf16, f16};

use super::{inlined, simd_of};
pub(crate) use crate::half::Half;
use crate::layout::Dst;
use crate::loops::Places;
use crate::par::{Workers, for_range};

/// Elements of a block: what a kernel works on stays in the first cache.
const BLOCK: usize = 1024;
/// Elements of a part when a kernel is split over threads; a multiple of `BLOCK`.
const CHUNK: usize = 1 << 15;

/// Runs `kernel`, an elementwise one for F32, on operands of which the first is the result: each block is widened,
/// computed, and rounded.
///
/// # Safety
/// `operands` are of type `dtype`, a half, and as for [`map`](super::walk::map). `kernel` writes the elements of its
/// first operand that its walk reaches, and reads those of the others.
pub(crate) unsafe fn by_blocks<const N: usize>(
    dtype: DType,
    walk: &Places<N>,
    workers: &Workers,
    operands: [Dst<u8>; N],
    kernel: impl Fn(&Places<N>, [Dst<f32>; N]) + Sync,
) {
    // SAFETY: the caller promises operands of type `dtype`, which the arms cast to.
    unsafe {
        match dtype {
            DType::BF16 => blocks_of(walk, workers, operands.map(Dst::cast::<bf16>), kernel),
            _ => blocks_of(walk, workers, operands.map(Dst::cast::<f16>), kernel),
        }
    }
}

/// # Safety
/// As for [`by_blocks`].
unsafe fn blocks_of<H: Half, const N: usize>(
    walk: &Places<N>,
    workers: &Workers,
    operands: [Dst<H>; N],
    kernel: impl Fn(&Places<N>, [Dst<f32>; N]) + Sync,
) {
    for_range(workers, walk.elements(), CHUNK, &|range| {
        let mut memory = [const { MaybeUninit::<[f32; BLOCK]>::uninit() }; N];
        let blocks = memory.each_mut().map(|block| Dst(block.as_mut_ptr().cast::<f32>()));
        for start in range.clone().step_by(BLOCK) {
            let part = start..range.end.min(start + BLOCK);
            let elements = part.len();
            // SAFETY: `walk` reaches only elements that the caller vouches for, and a block has room for `BLOCK`
            // elements, of which a part has at most as many. `kernel` has written the first block before it is read.
            unsafe {
                for k in 1..N {
                    for_elements(
                        walk,
                        part.clone(),
                        k,
                        (operands[k], blocks[k]),
                        inlined!(|element: *mut H, place| place.write((*element).widen())),
                    );
                }
                kernel(&Places::Run { elements, steps: [1; N] }, blocks);
                for_elements(
                    walk,
                    part,
                    0,
                    (operands[0], blocks[0]),
                    inlined!(|element: *mut H, place| element.write(H::round(*place))),
                );
            }
        }
    });
}

/// Calls `each` with the elements `part` of operand `k` and, for each, its place in a block.
#[inline(always)]
fn for_elements<H: Half, const N: usize>(
    walk: &Places<N>,
    part: Range<usize>,
    k: usize,
    (operand, block): (Dst<H>, Dst<f32>),
    each: impl Fn(*mut H, *mut f32),
) {
    simd_of::<false, _>(inlined!(|| {
        let mut runs = walk.runs(part);
        let mut done = 0;
        while let Some((offsets, len)) = runs.next() {
            let (element, step) = (operand.at(offsets[k]), runs.steps()[k]);
            let place = block.at(done);
            if step == 1 {
                (0..len).for_each(|j| each(element.wrapping_add(j), place.wrapping_add(j)));
            } else {
                (0..len).for_each(|j| {
                    each(element.wrapping_offset(j as isize * step), place.wrapping_add(j));
                });
            }
            done += len as isize;
        }
    }));
}
