//! Reading and adding at indices. Every index is checked before it is followed.

use super::number::Number;
use super::simd_of;
use super::walk::{add_run, map1};
use crate::layout::{Dst, Loops, Src};
use crate::loops::Places;
use crate::par::{Workers, for_range};

/// Two operands that differ along one axis, along which indices name rows of the larger one.
pub(crate) struct Rows {
    pub(crate) op: &'static str,
    /// Axes before that one, and after it: `[part, whole]`.
    pub(crate) outer: Loops<2>,
    pub(crate) inner: Loops<2>,
    /// Steps along it.
    pub(crate) steps: [isize; 2],
    /// Rows of the part.
    pub(crate) count: usize,
    /// Rows of the whole.
    pub(crate) size: usize,
    pub(crate) index_step: isize,
}

/// The index as a number of rows.
///
/// # Panics
/// If it is not in `0..size`. The panic becomes the device's error.
#[inline(always)]
pub(super) fn checked(op: &str, index: i64, size: usize) -> isize {
    assert!(
        index >= 0 && (index as u64) < size as u64,
        "{op}: index {index} is out of range for size {size}"
    );
    index as isize
}

/// Elements of a part when a kernel is split over threads.
const CHUNK: usize = 1 << 14;

/// `part[i] = whole[index[i]]`, rows of elements of `size` bytes.
///
/// # Safety
/// The elements that `rows` and the indices in range reach lie in the memory of `part` and `whole`, and `rows.count`
/// indices at their step in that of `index`; meanwhile nobody writes to the inputs or touches `part`.
pub(crate) unsafe fn select(
    size: usize,
    rows: &Rows,
    workers: &Workers,
    part: Dst<u8>,
    whole: Src<u8>,
    index: Src<i64>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => select_bits::<u8>(rows, workers, part, whole, index),
            2 => select_bits::<u16>(rows, workers, part.cast(), whole.cast(), index),
            4 => select_bits::<u32>(rows, workers, part.cast(), whole.cast(), index),
            _ => select_bits::<u64>(rows, workers, part.cast(), whole.cast(), index),
        }
    }
}

/// # Safety
/// As for [`select`].
unsafe fn select_bits<T: Copy>(rows: &Rows, workers: &Workers, part: Dst<T>, whole: Src<T>, index: Src<i64>) {
    let inner = rows.inner.inner();
    let contiguous = rows.inner.axes.len() <= 1 && inner.strides == [1, 1];
    let chunk = (CHUNK / rows.inner.elements.max(1)).max(1);
    for_range(workers, rows.outer.elements * rows.count, chunk, &|range| {
        let mut outer = usize::MAX;
        let mut base = [0, 0];
        for row in range {
            let i = row % rows.count;
            if row / rows.count != outer {
                outer = row / rows.count;
                base = rows.outer.offsets(outer);
            }
            // SAFETY: the caller's promise; the index is checked.
            unsafe {
                let j = checked(rows.op, *index.at(i as isize * rows.index_step), rows.size);
                let to = part.at(base[0] + i as isize * rows.steps[0]);
                let from = whole.at(base[1] + j * rows.steps[1]);
                if rows.inner.elements == 1 {
                    *to = *from;
                } else if contiguous {
                    std::ptr::copy_nonoverlapping(from, to, inner.size);
                } else {
                    map1::<false, _, _>(
                        &Places::Loops(Box::new(rows.inner.clone())),
                        &None,
                        Dst(to),
                        Src(from),
                        std::convert::identity,
                    );
                }
            }
        }
    });
}

/// `whole[index[i]] += part[i]`, in ascending order of `i`.
///
/// # Safety
/// As for [`select`] with the roles of `part` and `whole` exchanged.
pub(crate) unsafe fn add<T: Number>(
    rows: &Rows,
    workers: &Workers,
    whole: Dst<T>,
    part: Src<T>,
    index: Src<i64>,
) {
    let [part_step, whole_step] = rows.inner.inner().strides;
    // Threads share out the elements of a row, or else the outer axes: every sum stays in one thread, in order.
    let split_inner = rows.outer.elements == 1;
    let (items, chunk) = if split_inner {
        (rows.inner.elements, (CHUNK / rows.count.max(1)).max(64))
    } else {
        (rows.outer.elements, (CHUNK / (rows.count * rows.inner.elements).max(1)).max(1))
    };
    for_range(workers, items, chunk, &|range| {
        let (outer, inner) = if split_inner { (0..1, range) } else { (range, 0..rows.inner.elements) };
        simd_of::<false, _>(
            #[inline(always)]
            || {
                for outer in outer.clone() {
                    let base = rows.outer.offsets(outer);
                    for i in 0..rows.count as isize {
                        // SAFETY: the caller's promise.
                        let j = checked(rows.op, unsafe { *index.at(i * rows.index_step) }, rows.size);
                        let (from, to) = (base[0] + i * rows.steps[0], base[1] + j * rows.steps[1]);
                        rows.inner.for_runs(
                            inner.clone(),
                            #[inline(always)]
                            |[op, ow], len| {
                                let (to, from) = (whole.at(to + ow), part.at(from + op));
                                // SAFETY: the caller's promise; the index is checked.
                                unsafe { add_run((to, whole_step), (from, part_step), len) }
                            },
                        );
                    }
                }
            },
        );
    });
}

/// `out[p] = x[p, index[p] along the axis]`, elements of `size` bytes. `(step, rows)` are those of `x` along the axis.
///
/// # Safety
/// The elements that `loops` reach, with `x` moved along the axis by indices in range, lie in the memory of the
/// operands; meanwhile nobody writes to the inputs or touches `out`.
#[expect(clippy::too_many_arguments, reason = "three operands and where they lie")]
pub(crate) unsafe fn gather(
    op: &'static str,
    size: usize,
    loops: &Loops<3>,
    axis: (isize, usize),
    workers: &Workers,
    out: Dst<u8>,
    x: Src<u8>,
    index: Src<i64>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => gather_bits::<u8>(op, loops, axis, workers, out, x, index),
            2 => gather_bits::<u16>(op, loops, axis, workers, out.cast(), x.cast(), index),
            4 => gather_bits::<u32>(op, loops, axis, workers, out.cast(), x.cast(), index),
            _ => gather_bits::<u64>(op, loops, axis, workers, out.cast(), x.cast(), index),
        }
    }
}

/// # Safety
/// As for [`gather`].
unsafe fn gather_bits<T: Copy>(
    op: &'static str,
    loops: &Loops<3>,
    (step, rows): (isize, usize),
    workers: &Workers,
    out: Dst<T>,
    x: Src<T>,
    index: Src<i64>,
) {
    let [so, sx, si] = loops.inner().strides;
    for_range(workers, loops.elements, CHUNK, &|range| {
        loops.for_runs(
            range,
            #[inline(always)]
            |[oo, ox, oi], len| {
                for k in 0..len as isize {
                    // SAFETY: the caller's promise; the index is checked.
                    unsafe {
                        let j = checked(op, *index.at(oi + k * si), rows);
                        *out.at(oo + k * so) = *x.at(ox + k * sx + j * step);
                    }
                }
            },
        );
    });
}

/// `out[p, index[p] along the axis] += x[p]`, in order of `p`. `(step, rows)` are those of `out` along the axis.
///
/// # Safety
/// As for [`gather`] with the roles of `out` and `x` exchanged.
pub(crate) unsafe fn scatter_add<T: Number>(
    op: &'static str,
    loops: &Loops<3>,
    (step, rows): (isize, usize),
    out: Dst<T>,
    x: Src<T>,
    index: Src<i64>,
) {
    let [sx, so, si] = loops.inner().strides;
    loops.for_runs(
        0..loops.elements,
        #[inline(always)]
        |[ox, oo, oi], len| {
            for k in 0..len as isize {
                // SAFETY: the caller's promise; the index is checked.
                unsafe {
                    let j = checked(op, *index.at(oi + k * si), rows);
                    let to = out.at(oo + k * so + j * step);
                    *to = (*to).add(*x.at(ox + k * sx));
                }
            }
        },
    );
}
