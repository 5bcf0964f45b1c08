//! Cross-entropy.

use smallvec::SmallVec;

use super::index::checked;
use super::inlined;
use super::lanes::{Lanes, map, simd_for, with_scratch};
use super::reduce::log_sum_exp;
use super::walk::map_run;
use crate::layout::{Dst, LoopAxis, Loops, Src};
use crate::loops::Classes;
use crate::par::{Workers, for_range};
use crate::reduction::Axes;

/// Classes below which a row leaves vectors partly empty.
const SHORT: usize = 64;

// Reads label `i`. One that is no class is reported as the command's failure.
#[inline(always)]
unsafe fn label(
    op: &'static str,
    (labels, step): (Src<i64>, isize),
    i: usize,
    classes: usize,
) -> Option<isize> {
    // SAFETY: callers pass a row `i` below the number of labels, which lie at steps of `step`.
    checked(op, unsafe { *labels.at(i as isize * step) }, classes)
}

pub(crate) unsafe fn cross_entropy<T: Lanes>(
    c: &Classes<1>,
    workers: &Workers,
    (logits, labels, losses, log_sums): (Src<T>, Src<i64>, Dst<T>, Dst<T>),
) {
    let ([row_step], [step], [label_step, loss_step]) = (c.across, c.along, c.of_rows);
    let along = |size: usize, step: isize| Loops::from_axes([LoopAxis { size, strides: [step] }]);
    let axes = Axes { kept: along(c.rows, row_step), reduced: along(c.classes, step) };
    with_scratch(c.rows, |largest: *mut T| {
        // SAFETY: the module's contract covers the rows and classes of `c`, the scratch has an element for each row,
        // and `label` returns only classes of the row.
        unsafe {
            log_sum_exp(&axes, workers, logits, Dst(largest), log_sums);
            for i in 0..c.rows {
                let (m, log_sum) = (largest.add(i), log_sums.at(i as isize));
                let Some(class) = label("cross_entropy", (labels, label_step), i, c.classes) else {
                    continue;
                };
                let own = *logits.at(i as isize * row_step + class * step);
                // Not by way of the sum of both, whose error is that of a number as large as the largest logit.
                *losses.at(i as isize * loss_step) = (*m).sub(own).add(*log_sum);
                *log_sum = (*m).add(*log_sum);
            }
        }
    });
}

pub(crate) unsafe fn cross_entropy_grad<T: Lanes>(
    c: &Classes<2>,
    workers: &Workers,
    (out, [logits, g, log_sums], labels): (Dst<T>, [Src<T>; 3], Src<i64>),
) {
    let classes = c.classes;
    let ([out_row, from_row], [out_step, from_step], [label_step, g_step]) = (c.across, c.along, c.of_rows);
    let chunk = ((1 << 13) / classes.max(1)).max(1);
    for_range(workers, c.rows, chunk, &|range| {
        simd_for::<T, _>(inlined!(|| {
            // SAFETY: the module's contract covers the rows and classes of `c`, and `label` returns only classes of
            // the row. Each row of `out` is one part's.
            unsafe {
                let scale = |i: usize| *g.at(i as isize * g_step);
                let rows = |i: usize| (out.at(i as isize * out_row), logits.at(i as isize * from_row));
                let own = |i: usize| {
                    let class = label("cross_entropy_grad", (labels, label_step), i, classes)?;
                    let x = *logits.at(i as isize * from_row + class * from_step);
                    let slope = x.sub(*log_sums.at(i as isize)).exp().sub(T::ONE).mul(scale(i));
                    Some((out.at(i as isize * out_row + class * out_step), slope))
                };
                if [out_step, from_step, out_row] == [1, 1, classes as isize]
                    && classes < SHORT
                    && g_step == 0
                {
                    // One gradient for all rows, as from a mean: rows need not be told apart once they are shifted.
                    let (all, g) = (rows(range.start).0, scale(0));
                    let own: SmallVec<[(*mut T, T); 64]> = range.clone().filter_map(own).collect();
                    for i in range.clone() {
                        let ((to, from), log_sum) = (rows(i), *log_sums.at(i as isize));
                        for j in 0..classes {
                            *to.add(j) = (*from.add(j)).sub(log_sum);
                        }
                    }
                    map(range.len() * classes, all, [all.cast_const()], inlined!(|[x]| x.exp().mul(g)));
                    own.into_iter().for_each(|(to, slope)| *to = slope);
                    return;
                }
                for i in range.clone() {
                    let (((to, from), g), log_sum) = ((rows(i), scale(i)), *log_sums.at(i as isize));
                    let own = own(i);
                    let slope = inlined!(|[x]: [T; 1]| x.sub(log_sum).exp().mul(g));
                    map_run(classes, (to, out_step), [(from, from_step)], slope);
                    if let Some((own, slope)) = own {
                        *own = slope;
                    }
                }
            }
        }));
    });
}
