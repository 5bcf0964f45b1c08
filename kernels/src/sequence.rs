//! Launchers of what is done along a sequence: cumulative sums, and the rotation of pairs by their place.

use device::{DType, Error, Result, Stream, Use};

use crate::cpu::number::{Number, Real};
use crate::cpu::sequence as cpu;
use crate::cpu::stage::{Operand, Stage};
use crate::cuda;
use crate::layout::{LoopAxis, Loops, View, normalize_axis, shape_mismatch};
use crate::par::old_workers;

/// `out[i] = x[0] + .. + x[i]` along an axis, or from the end with `reverse`, for floats and I64.
///
/// Shapes: `out` like `x`. On the CPU elements are added one by one; integers wrap around.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DTypeUnsupported`], those of
/// [`Stream::launch`].
pub fn cumsum(stream: &Stream, x: View<'_>, axis: isize, reverse: bool, out: View<'_>) -> Result<()> {
    match out.dtype.compute_dtype() {
        DType::F32 => cumsum_of::<f32>(stream, x, axis, reverse, out),
        DType::F64 => cumsum_of::<f64>(stream, x, axis, reverse, out),
        DType::I64 => cumsum_of::<i64>(stream, x, axis, reverse, out),
        dtype => Err(Error::DTypeUnsupported { op: "cumsum", dtype }),
    }
}

fn cumsum_of<T: Number>(
    stream: &Stream,
    x: View<'_>,
    axis: isize,
    reverse: bool,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "cumsum";
    let shape = out.shape();
    x.expect_shape(OP, shape)?;
    let axis = normalize_axis(OP, axis, shape.len())?;
    x.expect_no_partial_overlap(OP, &out)?;
    let from = Operand::<T>::old(OP, &x, out.dtype)?;
    let to = Operand::<T>::old_mut(OP, &out, out.dtype)?;
    if out.layout.elements() == 0 {
        return Ok(());
    }
    let steps = [&out, &x].map(|view| view.layout.strides()[axis]);
    let kept = Loops::over([out.layout, x.layout], (0..shape.len()).filter(|&i| i != axis));
    let len = shape[axis];
    if stream.is_cuda() {
        return cuda::sequence::cumsum(stream, &kept, (len, steps, reverse), x, out);
    }
    let workers = old_workers(stream, out.layout.elements(), 2);
    stream.launch_host(OP, &[Use::read(x.buffer), Use::write(out.buffer)], move || {
        // SAFETY: the views were checked, and the launch orders this command with others on their buffers.
        unsafe {
            let stage = Stage::new(&workers);
            let (to, from) = (stage.write(&to), stage.read(&from));
            cpu::cumsum(&kept, &workers, (len, steps, reverse), from, to);
        }
    })
}

/// How [`rotary`] pairs the elements of the last axis, and which way it turns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Whether pairs are neighbours, `(2 i, 2 i + 1)`, rather than `(i, i + d / 2)`.
    pub interleaved: bool,
    /// Whether the angles are negated.
    pub inverse: bool,
}

/// Turns each pair `(a, b)` of the last axis: `(a cos - b sin, b cos + a sin)`, for floats.
///
/// Shapes: `x` and `out` `[.., d]` with an even `d`, `cos` and `sin` `[.., d / 2]`; expanded axes may have stride 0.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DTypeUnsupported`], those of [`Stream::launch`].
pub fn rotary(
    stream: &Stream,
    x: View<'_>,
    (cos, sin): (View<'_>, View<'_>),
    rotation: Rotation,
    out: View<'_>,
) -> Result<()> {
    match out.dtype.compute_dtype() {
        DType::F32 => rotary_of::<f32>(stream, x, (cos, sin), rotation, out),
        DType::F64 => rotary_of::<f64>(stream, x, (cos, sin), rotation, out),
        dtype => Err(Error::DTypeUnsupported { op: "rotary", dtype }),
    }
}

fn rotary_of<T: Real>(
    stream: &Stream,
    x: View<'_>,
    (cos, sin): (View<'_>, View<'_>),
    rotation: Rotation,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "rotary";
    let mismatch = || shape_mismatch(OP, x.shape(), cos.shape());
    x.expect_shape(OP, out.shape())?;
    sin.expect_shape_of(OP, &cos)?;
    let (&[ref leading @ .., width], &[ref angles_leading @ .., half]) = (x.shape(), cos.shape()) else {
        return Err(mismatch());
    };
    if leading != angles_leading || half * 2 != width {
        return Err(mismatch());
    }
    x.expect_apart(OP, &out)?;
    let from = Operand::<T>::old(OP, &x, out.dtype)?;
    let angles = (Operand::<T>::old(OP, &cos, out.dtype)?, Operand::<T>::old(OP, &sin, out.dtype)?);
    let to = Operand::<T>::old_mut(OP, &out, out.dtype)?;
    if out.layout.elements() == 0 {
        return Ok(());
    }
    // A loop over the pairs; the second element of each lies at a fixed distance.
    let last = leading.len();
    let [out_step, x_step] = [&out, &x].map(|view| view.layout.strides()[last]);
    let (pair, apart) = if rotation.interleaved { (2, 1) } else { (1, half as isize) };
    let strides = |axis: usize| [&out, &x, &cos, &sin].map(|view| view.layout.strides()[axis]);
    let [_, _, cos_step, sin_step] = strides(last);
    let along = LoopAxis { size: half, strides: [pair * out_step, pair * x_step, cos_step, sin_step] };
    let loops = Loops::from_axes(
        (0..last).map(|axis| LoopAxis { size: leading[axis], strides: strides(axis) }).chain([along]),
    );
    let apart = [apart * out_step, apart * x_step];
    if stream.is_cuda() {
        return cuda::sequence::rotary(stream, &loops, (apart, rotation.inverse), [out, x, cos, sin]);
    }
    let workers = old_workers(stream, out.layout.elements(), 4);
    let uses = [Use::read(x.buffer), Use::read(cos.buffer), Use::read(sin.buffer), Use::write(out.buffer)];
    stream.launch_host(OP, &uses, move || {
        // SAFETY: as in `cumsum_of`.
        unsafe {
            let stage = Stage::new(&workers);
            let (to, from) = (stage.write(&to), stage.read(&from));
            let from = (from, stage.read(&angles.0), stage.read(&angles.1));
            cpu::rotary(&loops, &workers, (apart, rotation.inverse), from, to);
        }
    })
}

#[cfg(test)]
#[path = "sequence_tests.rs"]
mod tests;
