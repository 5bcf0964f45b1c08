//! Normalization of rows, and its gradients.

use device::cuda::Arg;
use device::{Result, Stream, Use};
use smallvec::SmallVec;

use super::float_programs;
use super::rows::{Teams, by_team};
use super::walk::{ByValue, operand};
use crate::layout::View;
use crate::normalize::{NormGrads, NormInput, NormRows, Uses};

float_programs!("normalize", "rows.cuh", "normalize.cu");

/// Threads of a block, at most; as in the program.
const THREADS: u32 = 256;

/// `Norm` of the program.
#[repr(C)]
struct Norm {
    rows: u64,
    groups: u64,
    channels: u64,
    inner: u64,
}

// SAFETY: words of 64 bits.
unsafe impl ByValue for Norm {}

impl Norm {
    fn of((rows, count): (NormRows, usize)) -> Norm {
        let NormRows { groups, channels, inner } = rows;
        Norm { rows: count as u64, groups: groups as u64, channels: channels as u64, inner: inner as u64 }
    }
}

pub(crate) fn normalize(
    stream: &Stream,
    op: &'static str,
    rows: (NormRows, usize),
    NormInput { x, weight, bias }: NormInput<'_>,
    eps: f64,
    out: View<'_>,
    (mean, rstd): (Option<View<'_>>, View<'_>),
) -> Result<()> {
    let (norm, len) = (Norm::of(rows), rows.0.row());
    let teams = Teams::of(rows.1, len, 1, len as isize);
    let mut uses: Uses<'_> = SmallVec::new();
    uses.extend([Use::write(out.buffer), Use::read(x.buffer), Use::write(rstd.buffer)]);
    uses.extend(weight.iter().chain(&bias).map(|view| Use::read(view.buffer)));
    uses.extend(mean.iter().map(|view| Use::write(view.buffer)));
    stream.submit(op, &uses, |queue| {
        let [out_at, x, weight, bias, mean, rstd] =
            [Some(&out), Some(&x), weight.as_ref(), bias.as_ref(), mean.as_ref(), Some(&rstd)].map(operand);
        let args = [out_at, x, weight, bias, mean, rstd, norm.arg(), Arg::F64(eps), Arg::U32(teams.lanes)];
        let kernel = by_team!(teams.team, out.dtype, "normalize");
        // SAFETY: the rows are those of the operands, whose layouts were checked, and the uses name their buffers.
        unsafe { queue.kernel(program_of(out.dtype), kernel, teams.grid(queue, THREADS), &args) }
    })
}

pub(crate) fn gradient(
    stream: &Stream,
    op: &'static str,
    rows: (NormRows, usize),
    g: View<'_>,
    (x, weight): (View<'_>, Option<View<'_>>),
    (mean, rstd): (Option<View<'_>>, View<'_>),
    to: NormGrads<'_>,
) -> Result<()> {
    let NormRows { groups, channels, inner } = rows.0;
    let (norm, len) = (Norm::of(rows), rows.0.row());
    let mut uses: Uses<'_> = SmallVec::new();
    uses.extend([Use::read(g.buffer), Use::read(x.buffer), Use::read(rstd.buffer)]);
    uses.extend(weight.iter().chain(&mean).map(|view| Use::read(view.buffer)));
    uses.extend([to.x, to.weight, to.bias].iter().flatten().map(|view| Use::write(view.buffer)));
    let weights = groups * channels;
    // Without inner elements, those of a weight lie across the rows.
    let along = if inner == 1 { weights as isize } else { 1 };
    let weight_teams =
        Teams::of(weights, rows.1.checked_div(groups).unwrap_or(0) * inner, along, inner as isize);
    let row_teams = Teams::of(rows.1, len, 1, len as isize);
    let dtype = g.dtype;
    stream.submit(op, &uses, |queue| {
        let [g, x, weight, mean, rstd] =
            [Some(&g), Some(&x), weight.as_ref(), mean.as_ref(), Some(&rstd)].map(operand);
        if let Some(dx) = to.x.filter(|dx| dx.layout.elements() > 0) {
            let args = [operand(Some(&dx)), g, x, weight, mean, rstd, norm.arg(), Arg::U32(row_teams.lanes)];
            let kernel = by_team!(row_teams.team, dtype, "normalize_grad");
            // SAFETY: as in `normalize`.
            unsafe { queue.kernel(program_of(dtype), kernel, row_teams.grid(queue, THREADS), &args)? };
        }
        if weights > 0 && (to.weight.is_some() || to.bias.is_some()) {
            let [dweight, dbias] = [&to.weight, &to.bias].map(|view| operand(view.as_ref()));
            let args = [dweight, dbias, g, x, mean, rstd, norm.arg(), Arg::U32(weight_teams.lanes)];
            let kernel = by_team!(weight_teams.team, dtype, "normalize_weights");
            // SAFETY: as in `normalize`.
            unsafe { queue.kernel(program_of(dtype), kernel, weight_teams.grid(queue, THREADS), &args)? };
        }
        Ok(())
    })
}
