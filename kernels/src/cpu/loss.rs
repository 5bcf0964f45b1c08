//! Cross-entropy.

use super::inlined;
use super::lanes::{Lanes, map, simd_for};
use super::softmax::RowOp;
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

pub(crate) unsafe fn cross_entropy<T: Lanes>(
    c: &Classes,
    workers: &Workers,
    (logits, log_probs, labels, losses): (Src<T>, Dst<T>, Src<i64>, Dst<T>),
) {
    let [step, from_step, label_step, loss_step] = c.across;
    let kept = Loops::from_axes([LoopAxis { size: c.rows, strides: [step, from_step] }]);
    let rows = Rows { kept, len: c.classes, steps: c.along };
    // SAFETY: the caller's promise; labels are checked before they are followed.
    unsafe {
        RowOp::<true, false>::run(&rows, workers, log_probs, [logits]);
        for i in 0..c.rows {
            let class = label((labels, label_step), i, c.classes) as isize;
            let log_prob = *log_probs.at(i as isize * step + class * c.along[0]);
            *losses.at(i as isize * loss_step) = log_prob.neg();
        }
    }
}

pub(crate) unsafe fn cross_entropy_grad<T: Lanes>(
    c: &Classes,
    workers: &Workers,
    (out, log_probs, labels, g): (Dst<T>, Src<T>, Src<i64>, Src<T>),
) {
    let classes = c.classes;
    let [out_row, from_row, label_step, g_step] = c.across;
    let [out_step, from_step] = c.along;
    let dense = [out_row, out_step, from_row, from_step] == [classes as isize, 1, classes as isize, 1];
    let chunk = ((1 << 13) / classes.max(1)).max(1);
    for_range(workers, c.rows, chunk, &|range| {
        simd_for::<T, _>(inlined!(|| {
            // SAFETY: the caller's promise.
            unsafe {
                let scale = |i: usize| *g.at(i as isize * g_step);
                let place = |i: usize, j: isize| {
                    (i as isize * out_row + j * out_step, i as isize * from_row + j * from_step)
                };
                if dense && g_step == 0 {
                    // One gradient for all rows, as from a mean: rows need not be told apart.
                    let ((to, from), g) = (place(range.start, 0), scale(0));
                    let from = [log_probs.at(from)];
                    map(range.len() * classes, out.at(to), from, inlined!(|[x]| x.exp().mul(g)));
                } else {
                    for i in range.clone() {
                        let ((to, from), g) = (place(i, 0), scale(i));
                        for j in 0..classes as isize {
                            let p = (*log_probs.at(from + j * from_step)).exp();
                            *out.at(to + j * out_step) = p.mul(g);
                        }
                    }
                }
                for i in range.clone() {
                    let (to, from) = place(i, label((labels, label_step), i, classes) as isize);
                    *out.at(to) = (*log_probs.at(from)).exp().sub(T::ONE).mul(scale(i));
                }
            }
        }));
    });
}
