//! Launchers of reductions.

use device::{DType, Error, Result, Stream, Use};
use smallvec::SmallVec;

use crate::cpu::fold::{Axes, Fold, Max, Min, Prod, Sum, SumExp, SumSquares, fold};
use crate::cpu::lanes::{Lanes, Scratch, with_scratch};
use crate::cpu::number::{Number, Real};
use crate::cpu::reduce::first_best as first_best_cpu;
use crate::cpu::stage::{Operand, Stage};
use crate::cuda;
use crate::layout::{Dst, Layout, LoopAxis, Loops, View, normalize_axes, normalize_axis, shape_mismatch};
use crate::par::{Workers, workers};

/// How elements are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReduceOp {
    /// `x0 + x1 + ..`; 0 without elements.
    Sum,
    /// The sum divided by the number of elements; NaN without elements. Floats only.
    Mean,
    /// `x0 x1 ..`; 1 without elements.
    Prod,
    /// The largest element; NaN if there is one.
    Max,
    /// The smallest element; NaN if there is one.
    Min,
}

impl ReduceOp {
    /// The op's name in errors and profiles.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Mean => "mean",
            ReduceOp::Prod => "prod",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
        }
    }
}

/// Joins elements along axes, `out[kept] = x[kept, r0] op x[kept, r1] op ..`. No axes at all mean all axes.
///
/// Shapes: `out` has the axes of `x` without the reduced ones, or with size 1 in their place, and is contiguous. All
/// element types but Bool; integers wrap around.
///
/// The order is fixed. The reduced elements, in row-major order, are cut into blocks of 4096; in a block, element `i`
/// goes to lane `i % 64`, and the lanes are joined as a tree, `l` with `l + 32`, then `l + 16`, and so on; several
/// blocks' values are joined in the same way. BF16 and F16 are joined in F32, and the result is rounded. Strides and the number of threads do not matter. On CUDA it is blocks of
/// 512 and 32 lanes, see `cuda/rows.cuh`.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DTypeUnsupported`];
/// [`Error::InvalidArgument`] for a doubled axis, or for `Max` and `Min` of no elements; those of [`Stream::launch`].
pub fn reduce(stream: &Stream, op: ReduceOp, x: View<'_>, axes: &[isize], out: View<'_>) -> Result<()> {
    let name = op.name();
    let axes = split_axes(name, x.layout, axes, &out)?;
    if matches!(op, ReduceOp::Max | ReduceOp::Min) && axes.reduced.elements == 0 && axes.kept.elements > 0 {
        return Err(Error::InvalidArgument {
            op: name,
            argument: "axes",
            expected: "axes with elements",
            value: format!("shape {:?}", x.shape()).into(),
        });
    }
    let unsupported = || Err(Error::DTypeUnsupported { op: name, dtype: x.dtype });
    match (op, x.dtype.compute_dtype()) {
        (ReduceOp::Mean, DType::F32) => mean::<f32>(stream, x, axes, out),
        (ReduceOp::Mean, DType::F64) => mean::<f64>(stream, x, axes, out),
        (ReduceOp::Mean, _) => unsupported(),
        (_, DType::F32) => plain::<f32>(stream, op, x, axes, out),
        (_, DType::F64) => plain::<f64>(stream, op, x, axes, out),
        (_, DType::I64) => plain::<i64>(stream, op, x, axes, out),
        (_, DType::U8) => plain::<u8>(stream, op, x, axes, out),
        _ => unsupported(),
    }
}

/// Variance along axes, `out = sum (x - mean)^2 / (n - correction)`, for floats. No axes mean all axes.
///
/// Shapes and order of both sums: as for [`reduce`]. With `n <= correction` the divisor is 0.
///
/// # Errors
/// As for [`reduce`].
pub fn var(stream: &Stream, x: View<'_>, axes: &[isize], correction: f64, out: View<'_>) -> Result<()> {
    let axes = split_axes("var", x.layout, axes, &out)?;
    match x.dtype.compute_dtype() {
        DType::F32 => var_of::<f32>(stream, x, axes, correction, out),
        DType::F64 => var_of::<f64>(stream, x, axes, correction, out),
        dtype => Err(Error::DTypeUnsupported { op: "var", dtype }),
    }
}

/// Logarithm of a sum of exponentials, `out = m + log(sum exp(x - m))` with `m = max x`, for floats. No axes
/// mean all axes. The result of no elements is -infinity.
///
/// Shapes and order of the sum: as for [`reduce`].
///
/// # Errors
/// As for [`reduce`].
pub fn logsumexp(stream: &Stream, x: View<'_>, axes: &[isize], out: View<'_>) -> Result<()> {
    let axes = split_axes("logsumexp", x.layout, axes, &out)?;
    match x.dtype.compute_dtype() {
        DType::F32 => logsumexp_of::<f32>(stream, x, axes, out),
        DType::F64 => logsumexp_of::<f64>(stream, x, axes, out),
        dtype => Err(Error::DTypeUnsupported { op: "logsumexp", dtype }),
    }
}

/// Index of the largest element along an axis, the first if there are several; NaN counts as larger than all others.
///
/// Shapes: `out` is I64, contiguous, and has the axes of `x` without `axis`, or with size 1 in its place. All element
/// types but Bool.
///
/// # Errors
/// As for [`reduce`]; [`Error::InvalidArgument`] if the axis has no elements.
pub fn argmax(stream: &Stream, x: View<'_>, axis: isize, out: View<'_>) -> Result<()> {
    first_best(stream, Best::Largest, x, axis, out)
}

/// Index of the smallest element along an axis, the first if there are several; NaN counts as smaller than all others.
///
/// Shapes and element types: as for [`argmax`].
///
/// # Errors
/// As for [`argmax`].
pub fn argmin(stream: &Stream, x: View<'_>, axis: isize, out: View<'_>) -> Result<()> {
    first_best(stream, Best::Smallest, x, axis, out)
}

/// Which element an index is asked of.
#[derive(Clone, Copy)]
pub(crate) enum Best {
    Largest,
    Smallest,
}

impl Best {
    pub(crate) const fn op(self) -> &'static str {
        match self {
            Best::Largest => "argmax",
            Best::Smallest => "argmin",
        }
    }
}

fn first_best(stream: &Stream, best: Best, x: View<'_>, axis: isize, out: View<'_>) -> Result<()> {
    let op = best.op();
    let axis = normalize_axis(op, axis, x.layout.rank())?;
    let axes = split_axes(op, x.layout, &[axis as isize], &out)?;
    if x.shape()[axis] == 0 && axes.kept.elements > 0 {
        return Err(Error::InvalidArgument {
            op,
            argument: "axis",
            expected: "an axis with elements",
            value: format!("axis {axis} of shape {:?}", x.shape()).into(),
        });
    }
    match x.dtype.compute_dtype() {
        DType::F32 => first_best_of::<f32>(stream, best, x, axis, axes, out),
        DType::F64 => first_best_of::<f64>(stream, best, x, axis, axes, out),
        DType::I64 => first_best_of::<i64>(stream, best, x, axis, axes, out),
        DType::U8 => first_best_of::<u8>(stream, best, x, axis, axes, out),
        dtype => Err(Error::DTypeUnsupported { op, dtype }),
    }
}

// Separates kept from reduced axes, and checks the output's shape and layout.
fn split_axes(op: &'static str, x: &Layout, axes: &[isize], out: &View<'_>) -> Result<Axes> {
    let named = normalize_axes(op, axes, x.rank())?;
    let mut is_reduced: SmallVec<[bool; 8]> = SmallVec::from_elem(false, x.rank());
    named.iter().for_each(|&axis| is_reduced[axis] = true);
    let axis = |i: usize| LoopAxis { size: x.shape()[i], strides: [x.strides()[i]] };
    let pick = |wanted: bool| Loops::from_axes((0..x.rank()).filter(|&i| is_reduced[i] == wanted).map(axis));
    let axes = Axes { kept: pick(false), reduced: pick(true) };
    let kept = (0..x.rank()).filter(|&i| !is_reduced[i]).map(|i| x.shape()[i]);
    let with_ones = (0..x.rank()).map(|i| if is_reduced[i] { 1 } else { x.shape()[i] });
    let shape = out.shape().iter().copied();
    if !(kept.eq(shape.clone()) || with_ones.eq(shape)) {
        return Err(shape_mismatch(op, x.shape(), out.shape()));
    }
    out.expect_contiguous(op, "out")?;
    Ok(axes)
}

// Checks types, bounds and overlap: what is read, and what is written.
fn operands<T: Number>(op: &'static str, x: &View<'_>, out: &View<'_>) -> Result<[Operand<T>; 2]> {
    Ok([Operand::of(op, x, x.dtype)?, Operand::of_mut(op, out, x.dtype)?])
}

fn launch<T: Number>(
    stream: &Stream,
    op: &'static str,
    x: View<'_>,
    axes: Axes,
    out: View<'_>,
    work: impl FnOnce(&Axes, &Workers, crate::layout::Src<T>, Dst<T>) + Send + 'static,
) -> Result<()> {
    let [from, to] = operands::<T>(op, &x, &out)?;
    if axes.kept.elements == 0 {
        return Ok(());
    }
    let workers = workers(stream, x.layout.elements(), 1);
    stream.launch(op, &[Use::read(x.buffer), Use::write(out.buffer)], move || {
        let stage = Stage::new(&workers);
        // SAFETY: the views were checked, and the launch orders this command with others on their buffers.
        let (from, to) = unsafe { (stage.read(&from), stage.write(&to)) };
        work(&axes, &workers, from, to);
    })
}

fn plain<T: Number + Scratch>(
    stream: &Stream,
    op: ReduceOp,
    x: View<'_>,
    axes: Axes,
    out: View<'_>,
) -> Result<()> {
    fn run<T: Number + Scratch, F: Fold<T> + 'static>(
        stream: &Stream,
        op: &'static str,
        (x, axes, out): (View<'_>, Axes, View<'_>),
        how: F,
    ) -> Result<()> {
        launch::<T>(stream, op, x, axes, out, move |axes, workers, x, out| {
            // SAFETY: the views were checked, and the launch orders this command with others on their buffers.
            unsafe { fold(axes, workers, x, None, out, how) }
        })
    }
    if stream.is_cuda() {
        operands::<T>(op.name(), &x, &out)?;
        return cuda::reduce::reduce(stream, op, x, &axes, out);
    }
    let operands = (x, axes, out);
    match op {
        ReduceOp::Sum | ReduceOp::Mean => run::<T, _>(stream, op.name(), operands, Sum),
        ReduceOp::Prod => run::<T, _>(stream, op.name(), operands, Prod),
        ReduceOp::Max => run::<T, _>(stream, op.name(), operands, Max),
        ReduceOp::Min => run::<T, _>(stream, op.name(), operands, Min),
    }
}

fn mean<T: Real + Scratch>(stream: &Stream, x: View<'_>, axes: Axes, out: View<'_>) -> Result<()> {
    if stream.is_cuda() {
        operands::<T>("mean", &x, &out)?;
        return cuda::reduce::reduce(stream, ReduceOp::Mean, x, &axes, out);
    }
    launch::<T>(stream, "mean", x, axes, out, |axes, workers, x, out| {
        let count = T::from_f64(axes.reduced.elements as f64);
        // SAFETY: as in `plain`.
        unsafe {
            fold(axes, workers, x, None, out, Sum);
            divide(axes, out, count);
        }
    })
}

// Divides all outputs.
unsafe fn divide<T: Real>(axes: &Axes, out: Dst<T>, divisor: T) {
    for k in 0..axes.kept.elements as isize {
        // SAFETY: the caller's promise that there is room for all outputs.
        unsafe { *out.at(k) = (*out.at(k)).div(divisor) };
    }
}

fn var_of<T: Lanes>(stream: &Stream, x: View<'_>, axes: Axes, correction: f64, out: View<'_>) -> Result<()> {
    if stream.is_cuda() {
        operands::<T>("var", &x, &out)?;
        return cuda::reduce::var(stream, x, &axes, correction, out);
    }
    launch::<T>(stream, "var", x, axes, out, move |axes, workers, x, out| {
        let count = axes.reduced.elements as f64;
        let divisor = T::from_f64((count - correction).max(0.0));
        // SAFETY: as in `plain`; the output holds the means first.
        unsafe {
            fold(axes, workers, x, None, out, Sum);
            divide(axes, out, T::from_f64(count));
            fold(axes, workers, x, Some(out.src()), out, SumSquares);
            divide(axes, out, divisor);
        }
    })
}

fn logsumexp_of<T: Lanes>(stream: &Stream, x: View<'_>, axes: Axes, out: View<'_>) -> Result<()> {
    if stream.is_cuda() {
        operands::<T>("logsumexp", &x, &out)?;
        return cuda::reduce::logsumexp(stream, x, &axes, out);
    }
    launch::<T>(stream, "logsumexp", x, axes, out, |axes, workers, x, out| {
        with_scratch(axes.kept.elements, |largest: *mut T| {
            let largest = Dst(largest);
            // SAFETY: as in `plain`; scratch has room for all outputs.
            unsafe {
                fold(axes, workers, x, None, largest, Max);
                for k in 0..axes.kept.elements as isize {
                    let m = largest.at(k);
                    // With an infinite one `x - m` would be NaN; without it the infinity comes through by itself.
                    if (*m).sub(*m).is_nan() && !(*m).is_nan() {
                        *m = T::ZERO;
                    }
                }
                fold(axes, workers, x, Some(largest.src()), out, SumExp);
                for k in 0..axes.kept.elements as isize {
                    *out.at(k) = (*out.at(k)).log().add(*largest.at(k));
                }
            }
        });
    })
}

fn first_best_of<T: Number>(
    stream: &Stream,
    best: Best,
    x: View<'_>,
    axis: usize,
    axes: Axes,
    out: View<'_>,
) -> Result<()> {
    let op = best.op();
    let (from, to) = (Operand::<T>::of(op, &x, x.dtype)?, out.dst::<i64>(op)?);
    if stream.is_cuda() {
        return cuda::reduce::first_best(stream, best, x, &axes, out);
    }
    if axes.kept.elements == 0 {
        return Ok(());
    }
    let (len, step) = (x.shape()[axis], x.layout.strides()[axis]);
    let workers = workers(stream, x.layout.elements(), 2);
    stream.launch(op, &[Use::read(x.buffer), Use::write(out.buffer)], move || {
        // SAFETY: as in `plain`.
        unsafe {
            let stage = Stage::new(&workers);
            let (x, along) = (stage.read(&from), (len, step));
            match best {
                Best::Largest => first_best_cpu(&axes.kept, &workers, x, along, to, |a, b| a > b),
                Best::Smallest => first_best_cpu(&axes.kept, &workers, x, along, to, |a, b| a < b),
            }
        }
    })
}

#[cfg(test)]
#[path = "reduce_tests.rs"]
mod tests;
