//! Checks of operands, and where they lie.

use device::{Buffer, DType, Result};
use kernels::{Dims, View};

use crate::{Collective, Error, Reduce};

/// The bytes of a dense operand.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) buffer: &'a Buffer,
    pub(crate) start: usize,
    pub(crate) bytes: usize,
}

impl<'a> Operand<'a> {
    pub(crate) fn new(view: View<'a>) -> Operand<'a> {
        let each = view.dtype.size_bytes();
        // A view without elements may have any offset.
        let start = view.layout.offset().wrapping_mul(each);
        Operand { buffer: view.buffer, start, bytes: view.layout.elements() * each }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.buffer.ptr().wrapping_add(self.start)
    }
}

/// The element type and the shape that the ranks must agree on.
pub(crate) fn checked(
    op: &'static str,
    collective: Collective,
    x: Option<View<'_>>,
    out: Option<View<'_>>,
) -> Result<(DType, Dims)> {
    let Some(view) = x.or(out) else { return Ok((DType::U8, Dims::new())) };
    for view in [x, out].into_iter().flatten() {
        expect_dense(op, &view)?;
    }
    out.map_or(Ok(()), |out| out.dtype.require(op, "out", view.dtype))?;
    if let (Some(x), Some(out)) = (x, out) {
        expect_apart(op, collective, Operand::new(x), Operand::new(out))?;
    }
    match collective.reduce() {
        Some(Reduce::Mean) => view.dtype.require_float(op)?,
        Some(Reduce::Sum | Reduce::Prod) => view.dtype.require_number(op)?,
        _ => {}
    }
    Ok((view.dtype, Dims::from_slice(view.shape())))
}

/// Checks that operands share no byte, unless they are the same ones of a collective that works in place.
fn expect_apart(op: &'static str, collective: Collective, x: Operand<'_>, out: Operand<'_>) -> Result<()> {
    let bytes = |operand: &Operand<'_>| operand.start..operand.start + operand.bytes;
    let [x_bytes, out_bytes] = [&x, &out].map(bytes);
    let works_in_place = matches!(collective, Collective::AllReduce(_) | Collective::Broadcast { .. });
    let overlap = x_bytes.start < out_bytes.end && out_bytes.start < x_bytes.end;
    let is_apart =
        !std::ptr::eq(x.buffer, out.buffer) || !overlap || (x_bytes == out_bytes && works_in_place);
    let value = format_args!("bytes {x_bytes:?} and {out_bytes:?} of one buffer");
    Error::require(is_apart, op, "out", "apart from the input", value)
}

fn expect_dense(op: &'static str, view: &View<'_>) -> Result<()> {
    let end = view.layout.end().saturating_mul(view.dtype.size_bytes());
    if view.layout.is_contiguous() && end <= view.buffer.len_bytes() {
        return Ok(());
    }
    let (strides, bytes) = (view.layout.strides(), view.buffer.len_bytes());
    let value = format_args!("shape {:?} with strides {strides:?} in {bytes} bytes", view.shape());
    Err(Error::invalid(op, "operand", "dense, in row-major order, within its buffer", value))
}

pub(crate) fn expect_shape(op: &'static str, view: View<'_>, shape: &[usize]) -> Result<()> {
    if view.shape() == shape {
        return Ok(());
    }
    Err(Error::shape_mismatch(op, "", shape, view.shape()))
}
