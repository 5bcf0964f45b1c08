//! Cross-entropy.

use super::lanes::{Lanes, map, simd_for};
use super::softmax;
use crate::layout::{Dst, LoopAxis, Loops, Src};
use crate::loops::{Classes, Rows};
use crate::par::{Workers, for_range};

// Reads label `i` and checks that it is a class.
#[inline(always)]
unsafe fn label((labels, step): (Src<i64>, isize), i: usize, classes: usize) -> usize {
    // SAFETY: the caller's promise.
    let label = unsafe { *labels.at(i as isize * step) };
    if (label as u64) < classes as u64 { label as usize } else { bad_label(i, label, classes) }
}

#[cold]
#[inline(never)]
#[allow(clippy::panic)]
fn bad_label(i: usize, label: i64, classes: usize) -> ! {
    panic!("label {label} at {i} is out of range for {classes} classes");
}

/// # Safety
/// The operands, in the order of `c`, can be read, the outputs written, and nobody else uses them meanwhile.
pub(crate) unsafe fn cross_entropy<T: Lanes>(
    c: &Classes,
    workers: &Workers,
    (log_probs, logits): (Dst<T>, Src<T>),
    labels: Src<i64>,
    losses: Dst<T>,
) {
    let [step, from_step, label_step, loss_step] = c.across;
    let kept = Loops::from_axes([LoopAxis { size: c.rows, strides: [step, from_step] }]);
    // SAFETY: the caller's promise; labels are checked before they are followed.
    unsafe {
        softmax::forward(true, &Rows { kept, len: c.classes, steps: c.along }, workers, log_probs, logits);
        for i in 0..c.rows {
            let class = label((labels, label_step), i, c.classes) as isize;
            *losses.at(i as isize * loss_step) =
                (*log_probs.at(i as isize * step + class * c.along[0])).neg();
        }
    }
}

/// # Safety
/// As for [`cross_entropy`].
pub(crate) unsafe fn cross_entropy_grad<T: Lanes>(
    c: &Classes,
    workers: &Workers,
    (out, log_probs): (Dst<T>, Src<T>),
    labels: Src<i64>,
    g: Src<T>,
) {
    let (n, classes) = (c.rows, c.classes);
    let [_, _, label_step, g_step] = c.across;
    let [out_steps, log_probs_steps] = [0, 1].map(|k| [c.across[k], c.along[k]]);
    let contiguous = [classes as isize, 1];
    let dense = log_probs_steps == contiguous && out_steps == contiguous;
    let chunk = ((1 << 13) / classes.max(1)).max(1);
    for_range(workers, n, chunk, &|range| {
        simd_for::<T, _>(
            #[inline(always)]
            || {
                let scale = |i: usize| g.at(i as isize * g_step);
                // SAFETY: the caller's promise.
                unsafe {
                    if dense && g_step == 0 {
                        // One gradient for all rows, as from a mean: rows need not be told apart.
                        let (start, len) = (range.start * classes, range.len() * classes);
                        let (from, to) = (log_probs.at(start as isize), out.at(start as isize));
                        let g = *scale(0);
                        map(
                            len,
                            to,
                            [from],
                            #[inline(always)]
                            |[x]| x.exp().mul(g),
                        );
                    } else {
                        for i in range.clone() {
                            let (from, to) = (i as isize * log_probs_steps[0], i as isize * out_steps[0]);
                            let g = *scale(i);
                            for j in 0..classes as isize {
                                let p = (*log_probs.at(from + j * log_probs_steps[1])).exp();
                                *out.at(to + j * out_steps[1]) = p.mul(g);
                            }
                        }
                    }
                    for i in range.clone() {
                        let class = label((labels, label_step), i, classes) as isize;
                        let p = (*log_probs.at(i as isize * log_probs_steps[0] + class * log_probs_steps[1]))
                            .exp();
                        *out.at(i as isize * out_steps[0] + class * out_steps[1]) =
                            p.sub(T::ONE).mul(*scale(i));
                    }
                }
            },
        );
    });
}
