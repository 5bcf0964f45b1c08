//! Loop nests over several operands of one shape.

use std::ops::Range;

use smallvec::SmallVec;

use crate::layout::strided::Layout;

/// One axis of [`Loops`]: its size, and each operand's step along it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LoopAxis<const N: usize> {
    pub(crate) size: usize,
    pub(crate) strides: [isize; N],
}

impl<const N: usize> LoopAxis<N> {
    /// Axis `i` of operands, of the first one's size.
    #[inline]
    pub(crate) fn of(layouts: [&Layout; N], i: usize) -> LoopAxis<N> {
        LoopAxis { size: layouts[0].shape()[i], strides: layouts.map(|layout| layout.strides()[i]) }
    }
}

/// A loop nest over `N` operands of one shape, with as few axes as serve all of them.
///
/// Elements are counted in row-major order of `axes`; offsets are in elements, from each operand's first one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Loops<const N: usize> {
    /// Outermost first.
    pub(crate) axes: SmallVec<[LoopAxis<N>; 4]>,
    pub(crate) elements: usize,
}

impl<const N: usize> Loops<N> {
    /// Loops in the operands' logical row-major order. All shapes must be equal.
    pub(crate) fn new(layouts: [&Layout; N]) -> Loops<N> {
        debug_assert!(layouts.iter().all(|layout| layout.shape() == layouts[0].shape()));
        Loops::over(layouts, 0..layouts[0].rank())
    }

    /// Loops whose order follows operand 0's memory, for work that does not care about the order.
    pub(crate) fn in_memory_order(layouts: [&Layout; N]) -> Loops<N> {
        debug_assert!(layouts.iter().all(|layout| layout.shape() == layouts[0].shape()));
        let axes = (0..layouts[0].rank()).map(|i| LoopAxis::of(layouts, i));
        let mut axes: SmallVec<[LoopAxis<N>; 4]> = axes.filter(|axis| axis.size != 1).collect();
        // The sort is stable: axes of equal strides keep their order.
        axes.sort_by_key(|axis| std::cmp::Reverse(axis.strides[0].unsigned_abs()));
        Loops::from_axes(axes)
    }

    /// Loops over some of the axes only; the shapes may differ elsewhere.
    pub(crate) fn over(layouts: [&Layout; N], axes: impl Iterator<Item = usize>) -> Loops<N> {
        Loops::from_axes(axes.map(|i| LoopAxis::of(layouts, i)))
    }

    /// Loops over the given axes, outermost first.
    pub(crate) fn from_axes(all: impl IntoIterator<Item = LoopAxis<N>>) -> Loops<N> {
        let mut axes: SmallVec<[LoopAxis<N>; 4]> = SmallVec::new();
        let mut elements = 1_usize;
        for axis in all {
            elements = elements.saturating_mul(axis.size);
            if axis.size == 1 {
                continue;
            }
            // Numbers of layouts that lie in no buffer, which are refused later, may wrap around.
            let merge = axes.last().is_some_and(|outer| {
                (0..N).all(|k| outer.strides[k] == axis.strides[k].wrapping_mul(axis.size as isize))
            });
            match axes.last_mut() {
                Some(outer) if merge => {
                    *outer = LoopAxis { size: outer.size.saturating_mul(axis.size), ..axis }
                }
                _ => axes.push(axis),
            }
        }
        Loops { axes, elements }
    }

    /// Where the elements of operand `k` lie, in the same order.
    pub(crate) fn operand(&self, k: usize) -> Loops<1> {
        Loops::from_axes(
            self.axes.iter().map(|axis| LoopAxis { size: axis.size, strides: [axis.strides[k]] }),
        )
    }

    /// Loops over operands that are counted alike, each by itself: their axes are cut until all have the same. `None` if they
    /// cannot be, or there are more than `N`; what is left of the `N` stands still.
    pub(crate) fn together(operands: &[&Loops<1>]) -> Option<Loops<N>> {
        let elements = operands.first()?.elements;
        // Behind how many elements each axis moves.
        let mut steps: SmallVec<[usize; 8]> = SmallVec::from_slice(&[1, elements]);
        for operand in operands {
            operand.axes.iter().rev().fold(1, |step, axis| {
                steps.push(step * axis.size);
                step * axis.size
            });
        }
        steps.sort_unstable();
        steps.dedup();
        if operands.len() > N || steps.windows(2).any(|pair| !pair[1].is_multiple_of(pair[0])) {
            return None;
        }
        let axes = steps.windows(2).rev().map(|pair| LoopAxis {
            size: pair[1] / pair[0],
            strides: std::array::from_fn(|k| operands.get(k).map_or(0, |operand| operand.stride_at(pair[0]))),
        });
        Some(Loops::from_axes(axes))
    }

    /// The innermost axis; one element if there is none.
    #[inline(always)]
    pub(crate) fn inner(&self) -> LoopAxis<N> {
        self.axes.last().copied().unwrap_or(LoopAxis { size: 1, strides: [0; N] })
    }

    /// Offsets of element `index`.
    #[inline]
    pub(crate) fn offsets(&self, mut index: usize) -> [isize; N] {
        let mut offsets = [0_isize; N];
        for axis in self.axes.iter().rev() {
            let i = (index % axis.size) as isize;
            index /= axis.size;
            for (offset, stride) in offsets.iter_mut().zip(&axis.strides) {
                *offset += i * stride;
            }
        }
        offsets
    }

    /// The runs along the innermost axis that make up the elements in `range`, in order. Only the first and the last
    /// can be shorter than the axis.
    #[inline]
    pub(crate) fn runs(&self, range: Range<usize>) -> Runs<'_, N> {
        let inner = self.inner();
        let (row, at) = if range.start == 0 || range.is_empty() {
            (0, 0)
        } else {
            (range.start / inner.size, range.start % inner.size)
        };
        let mut runs = Runs {
            loops: Some(self),
            inner,
            row_strides: [0; N],
            offsets: [0; N],
            at,
            left: range.end - range.start,
            row,
            rows_left: usize::MAX,
        };
        if self.axes.len() > 1 && runs.left > 0 {
            runs.next_plane();
        }
        runs
    }

    /// Calls `body(offsets, len)` for each of the [`runs`](Self::runs).
    #[inline(always)]
    pub(crate) fn for_runs(&self, range: Range<usize>, mut body: impl FnMut([isize; N], usize)) {
        let mut runs = self.runs(range);
        while let Some((offsets, len)) = runs.next() {
            body(offsets, len);
        }
    }
}

impl Loops<1> {
    /// Whether the elements lie one after the other.
    pub(crate) fn is_run(&self) -> bool {
        self.elements == 1 || matches!(&self.axes[..], [LoopAxis { strides: [1], .. }])
    }

    /// How much further the element is that is counted `step` later, where an axis moves then.
    fn stride_at(&self, step: usize) -> isize {
        let mut inner = 1;
        for axis in self.axes.iter().rev() {
            if step < inner * axis.size {
                return axis.strides[0] * (step / inner) as isize;
            }
            inner *= axis.size;
        }
        0
    }

    /// From the lowest to the highest element, both included, from the first one.
    pub(crate) fn span(&self) -> (isize, isize) {
        self.axes.iter().fold((0, 0), |(low, high), axis| {
            let far = (axis.size as isize - 1) * axis.strides[0];
            (low + far.min(0), high + far.max(0))
        })
    }
}

/// Where the elements of `N` operands of one shape lie; operand 0 is the output. In whatever order is best.
#[derive(Clone, Debug)]
pub(crate) enum Places<const N: usize> {
    /// One run, with a step for each operand: the output contiguous, and inputs contiguous or all one element.
    Run { elements: usize, steps: [isize; N] },
    /// Anything else. Boxed: most commands are a run, and small to move (`benches/ops.rs`, one-element ops).
    Loops(Box<Loops<N>>),
}

impl<const N: usize> Places<N> {
    /// Those of operands of equal shapes.
    #[inline(always)]
    pub(crate) fn of(layouts: [&Layout; N]) -> Places<N> {
        match run_steps(layouts) {
            Some(steps) => Places::Run { elements: layouts[0].elements(), steps },
            None => Places::Loops(Box::new(Loops::in_memory_order(layouts))),
        }
    }

    #[inline(always)]
    pub(crate) fn elements(&self) -> usize {
        match self {
            Places::Run { elements, .. } => *elements,
            Places::Loops(loops) => loops.elements,
        }
    }

    /// Those of the elements in `range`, in order.
    #[inline(always)]
    pub(crate) fn runs(&self, range: Range<usize>) -> Runs<'_, N> {
        match self {
            Places::Run { steps, .. } => Runs::flat(range, *steps),
            Places::Loops(loops) => loops.runs(range),
        }
    }

    /// As loops.
    pub(crate) fn loops(&self) -> Loops<N> {
        match self {
            Places::Run { elements, steps } => {
                Loops::from_axes([LoopAxis { size: *elements, strides: *steps }])
            }
            Places::Loops(loops) => (**loops).clone(),
        }
    }
}

#[inline]
fn run_steps<const N: usize>(layouts: [&Layout; N]) -> Option<[isize; N]> {
    if layouts.iter().all(|layout| layout.is_contiguous()) {
        return Some([1; N]);
    }
    let mut steps = [1; N];
    for (step, layout) in steps.iter_mut().zip(&layouts) {
        if !layout.is_contiguous() {
            *step = 0;
            if !layout.is_uniform() {
                return None;
            }
        }
    }
    // An output of several elements never lies on one.
    (steps[0] == 1).then_some(steps)
}

/// The rows along one axis of `N` operands; operand 0 is the output.
pub(crate) struct Rows<const N: usize> {
    /// All other axes.
    pub(crate) kept: Loops<N>,
    /// Elements of a row.
    pub(crate) len: usize,
    /// Steps from one element of a row to the next.
    pub(crate) steps: [isize; N],
}

/// The order of additions of a scan, see [`cumsum`](crate::cumsum). Both devices have it from here.
pub(crate) struct ScanOrder;

impl ScanOrder {
    /// Elements of a run.
    pub(crate) const RUN: usize = 16;
    /// Runs of a tile, a power of 2.
    pub(crate) const TILE_RUNS: usize = 32;
}

/// Rows of scores for classes in `N` operands, and an element for each row in two others.
#[derive(Clone, Debug)]
pub(crate) struct Classes<const N: usize> {
    pub(crate) rows: usize,
    pub(crate) classes: usize,
    /// Steps from one row to the next.
    pub(crate) across: [isize; N],
    /// Steps from one class to the next.
    pub(crate) along: [isize; N],
    /// Steps from one row to the next, in the two others.
    pub(crate) of_rows: [isize; 2],
}

/// A copy that transposes: contiguous along one axis in the input, which is operand 1, and along another in the output.
pub(crate) struct Tiles {
    pub(crate) outer: Loops<2>,
    /// Contiguous in the input.
    pub(crate) rows: LoopAxis<2>,
    /// Contiguous in the output.
    pub(crate) columns: LoopAxis<2>,
}

impl Tiles {
    /// Where both axes have `least` elements at least, and the input's columns are `apart` at least.
    pub(crate) fn of(loops: &Loops<2>, least: usize, apart: isize) -> Option<Tiles> {
        let (columns, others) = loops.axes.split_last()?;
        let rows = others.iter().rposition(|axis| axis.strides[1] == 1 && axis.size >= least)?;
        if columns.strides[0] != 1 || columns.strides[1] < apart || columns.size < least {
            return None;
        }
        let outer = others.iter().enumerate().filter(|&(i, _)| i != rows).map(|(_, axis)| *axis);
        Some(Tiles { outer: Loops::from_axes(outer), rows: others[rows], columns: *columns })
    }
}

/// The runs of a loop nest, see [`Loops::runs`]. Not a closure's business: the loops over a run are large, so there
/// should be one place that calls them.
pub(crate) struct Runs<'a, const N: usize> {
    loops: Option<&'a Loops<N>>,
    inner: LoopAxis<N>,
    row_strides: [isize; N],
    /// Where the current row begins.
    offsets: [isize; N],
    /// Where in its row the next run begins.
    at: usize,
    /// Elements still to come.
    left: usize,
    row: usize,
    /// Rows still to come before an axis further out moves.
    rows_left: usize,
}

impl<const N: usize> Runs<'_, N> {
    /// One run of elements at the given steps.
    #[inline(always)]
    pub(crate) fn flat(range: Range<usize>, steps: [isize; N]) -> Self {
        Runs {
            loops: None,
            inner: LoopAxis { size: range.end, strides: steps },
            row_strides: [0; N],
            offsets: [0; N],
            at: range.start,
            left: range.end - range.start,
            row: 0,
            rows_left: usize::MAX,
        }
    }

    /// Steps of the elements of each run.
    #[inline(always)]
    pub(crate) fn steps(&self) -> [isize; N] {
        self.inner.strides
    }

    /// Offsets and length of the next run.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<([isize; N], usize)> {
        if self.left == 0 {
            return None;
        }
        let len = self.left.min(self.inner.size - self.at);
        let offsets = std::array::from_fn(|k| self.offsets[k] + self.at as isize * self.inner.strides[k]);
        for (offset, stride) in self.offsets.iter_mut().zip(&self.row_strides) {
            *offset += stride;
        }
        self.at = 0;
        self.left -= len;
        self.row += 1;
        self.rows_left -= 1;
        if self.rows_left == 0 && self.left > 0 {
            self.next_plane();
        }
        Some((offsets, len))
    }

    /// Finds the place of row `self.row`, and the rows that follow it at one step.
    #[inline(never)]
    fn next_plane(&mut self) {
        let Some(loops) = self.loops else { return };
        if let [.., rows, inner] = &loops.axes[..] {
            self.offsets = loops.offsets(self.row * inner.size);
            self.row_strides = rows.strides;
            self.rows_left = rows.size - self.row % rows.size;
        }
    }
}
