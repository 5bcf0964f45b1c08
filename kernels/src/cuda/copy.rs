//! Fills, copies, conversions and choices.

use device::cuda::{Arg, Grid, Program, Queue};
use device::{DType, Result, Stream, Use};

use super::elementwise::Map;
use super::walk::{ByValue, Walk, address, for_parts};
use super::{by_size, program};
use crate::layout::{LoopAxis, Loops, View};

pub(super) static COPY: Program = Program::new(
    "copy",
    concat!(include_str!("prelude.cuh"), include_str!("cast.cuh"), include_str!("copy.cu")),
);
// Conversions from and to the types of 16 bits.
static CAST_BF16: Program = program!("cast", "bf16", 1, 1, "cast.cuh", "cast.cu");
static CAST_F16: Program = program!("cast", "f16", 1, 1, "cast.cuh", "cast.cu");

/// Fills with an element of these bits.
pub(crate) fn fill(stream: &Stream, bits: u64, out: View<'_>) -> Result<()> {
    let size = out.dtype.size_bytes();
    let elements = out.layout.elements();
    let one_byte = size == 1 || bits == 0;
    if elements > 0 && one_byte && out.layout.is_contiguous() {
        return stream.submit("fill", &[Use::write(out.buffer)], |queue| {
            // SAFETY: the elements are contiguous and within the buffer, which the use names.
            unsafe { queue.fill_bytes(address(&out), bits as u8, elements * size) }
        });
    }
    let loops = Loops::in_memory_order([out.layout]);
    if elements == 0 {
        return Ok(());
    }
    stream.submit("fill", &[Use::write(out.buffer)], |queue| {
        // SAFETY: as above, with the strides of the layout.
        unsafe { enqueue_fill(queue, size, bits, &loops, address(&out)) }
    })
}

/// # Safety
/// The elements that `loops` reach from `out` are within a buffer that the command writes.
unsafe fn enqueue_fill(
    queue: &Queue<'_>,
    size: usize,
    bits: u64,
    loops: &Loops<1>,
    out: *mut u8,
) -> Result<()> {
    let lanes = 16 / size;
    for_parts(loops, &mut |part, [at]| {
        let out = out.wrapping_offset(at * size as isize).cast_const();
        let walk = Walk::of("fill", part)?.vectors(lanes, [(out, size)]);
        let args = [Arg::Ptr(out), Arg::U64(bits), walk.arg()];
        // SAFETY: the caller's promise.
        unsafe { queue.kernel(&COPY, by_size!(size, "fill"), walk.grid(queue, lanes), &args) }
    })
}

pub(crate) fn copy(stream: &Stream, x: View<'_>, out: View<'_>) -> Result<()> {
    let (from, to) = (x.dtype, out.dtype);
    if from != to {
        let lanes = 16 / from.size_bytes().max(to.size_bytes());
        let program = match [from, to] {
            [DType::BF16, _] | [_, DType::BF16] => &CAST_BF16,
            [DType::F16, _] | [_, DType::F16] => &CAST_F16,
            _ => &COPY,
        };
        let map = Map { op: "cast", program, kernel: cast_kernel(from, to), lanes, numbers: &[] };
        return map.launch(stream, [out, x]);
    }
    let size = to.size_bytes();
    let tiles = Tiles::of(&Loops::in_memory_order([out.layout, x.layout]));
    let Some(tiles) = tiles else {
        let kernel = by_size!(size, "copy");
        return Map { op: "copy", program: &COPY, kernel, lanes: 16 / size, numbers: &[] }
            .launch(stream, [out, x]);
    };
    stream.submit("copy", &[Use::write(out.buffer), Use::read(x.buffer)], |queue| {
        let outer = Walk::of("copy", &tiles.outer)?;
        let args = [
            Arg::Ptr(address(&out)),
            Arg::Ptr(address(&x)),
            Arg::U32(tiles.rows.size as u32),
            Arg::U32(tiles.columns.size as u32),
            Arg::I64(tiles.rows.strides[0] as i64),
            Arg::I64(tiles.columns.strides[1] as i64),
            outer.arg(),
        ];
        // SAFETY: rows, columns and outer axes are those of the layouts, which are within the buffers that the uses
        // name.
        unsafe { queue.kernel(&COPY, by_size!(size, "transpose"), tiles.grid(), &args) }
    })
}

/// Enqueues a copy without conversion.
///
/// # Safety
/// The elements that `loops` reach from `out` and `x` are within buffers that the command writes and reads.
pub(super) unsafe fn enqueue_copy(
    queue: &Queue<'_>,
    op: &'static str,
    size: usize,
    loops: &Loops<2>,
    (out, x): (*mut u8, *const u8),
) -> Result<()> {
    let lanes = 16 / size;
    for_parts(loops, &mut |part, at| {
        let [to, from] = [out.cast_const(), x];
        let to = to.wrapping_offset(at[0] * size as isize);
        let from = from.wrapping_offset(at[1] * size as isize);
        let walk = Walk::of(op, part)?.vectors(lanes, [(to, size), (from, size)]);
        let args = [Arg::Ptr(to), Arg::Ptr(from), walk.arg()];
        // SAFETY: the caller's promise.
        unsafe { queue.kernel(&COPY, by_size!(size, "copy"), walk.grid(queue, lanes), &args) }
    })
}

/// Enqueues zeros.
///
/// # Safety
/// The elements that `loops` reach from `out` are within a buffer that the command writes.
pub(super) unsafe fn enqueue_zeros(
    queue: &Queue<'_>,
    size: usize,
    loops: &Loops<1>,
    out: *mut u8,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { enqueue_fill(queue, size, 0, loops, out) }
}

fn cast_kernel(from: DType, to: DType) -> &'static str {
    macro_rules! to {
        ($from:literal) => {
            match to {
                DType::F32 => concat!("cast_", $from, "_f32"),
                DType::F64 => concat!("cast_", $from, "_f64"),
                DType::I64 => concat!("cast_", $from, "_i64"),
                DType::U8 => concat!("cast_", $from, "_u8"),
                DType::BF16 => concat!("cast_", $from, "_bf16"),
                DType::F16 => concat!("cast_", $from, "_f16"),
                _ => concat!("cast_", $from, "_bool"),
            }
        };
    }
    match from {
        DType::F32 => to!("f32"),
        DType::F64 => to!("f64"),
        DType::I64 => to!("i64"),
        DType::U8 => to!("u8"),
        DType::BF16 => to!("bf16"),
        DType::F16 => to!("f16"),
        _ => to!("bool"),
    }
}

/// A copy that transposes: contiguous along one axis in `x` and along another in `out`.
struct Tiles {
    outer: Loops<2>,
    /// Contiguous in `x`.
    rows: LoopAxis<2>,
    /// Contiguous in `out`.
    columns: LoopAxis<2>,
}

/// As in the program.
const TILE: usize = 32;
const TILE_ROWS: u32 = 8;
/// Blocks along y that every device has.
const MAX_Y: usize = 65_535;

impl Tiles {
    fn of(loops: &Loops<2>) -> Option<Tiles> {
        let (columns, others) = loops.axes.split_last()?;
        let rows = others.iter().rposition(|axis| axis.strides[1] == 1 && axis.size >= TILE / 2)?;
        let across = columns.strides[0] == 1 && columns.strides[1] > 1 && columns.size >= TILE / 2;
        if !across || loops.elements > i32::MAX as usize {
            return None;
        }
        let outer = others.iter().enumerate().filter(|&(i, _)| i != rows).map(|(_, axis)| *axis);
        let tiles = Tiles { outer: Loops::from_axes(outer), rows: others[rows], columns: *columns };
        Walk::of("copy", &tiles.outer).is_ok().then_some(tiles)
    }

    fn grid(&self) -> Grid {
        let plane = self.rows.size.div_ceil(TILE) * self.columns.size.div_ceil(TILE);
        Grid {
            blocks: [plane as u32, self.outer.elements.min(MAX_Y) as u32, 1],
            threads: [TILE as u32, TILE_ROWS, 1],
            shared_bytes: 0,
        }
    }
}

pub(crate) fn logical_not(stream: &Stream, x: View<'_>, out: View<'_>) -> Result<()> {
    let map = Map { op: "logical_not", program: &COPY, kernel: "logical_not_bool", lanes: 16, numbers: &[] };
    map.launch(stream, [out, x])
}

pub(crate) fn where_cond(
    stream: &Stream,
    condition: View<'_>,
    x: View<'_>,
    y: View<'_>,
    out: View<'_>,
) -> Result<()> {
    let size = out.dtype.size_bytes();
    let kernel = by_size!(size, "where_cond");
    let map = Map { op: "where_cond", program: &COPY, kernel, lanes: 16 / size, numbers: &[] };
    map.launch(stream, [out, condition, x, y])
}
