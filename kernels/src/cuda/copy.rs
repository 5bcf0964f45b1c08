//! fill, copy, cast and where.

use device::cuda::{Arg, Grid, Program, Queue};
use device::{DType, Result};

use super::walk::{ByValue, MAX_Y, Map, Walk, for_parts};
use super::{Family, bits_name, family, kernel_name};
use crate::command::Address;
use crate::loops::{LoopAxis, Loops, Places, Tiles};

pub(super) static COPY: Program = Program::new(
    "copy",
    concat!(include_str!("prelude.cuh"), include_str!("cast.cuh"), include_str!("copy.cu")),
);
/// Casts from and to 16-bit types.
static CASTS: Family = family!("cast", HALVES, "cast.cuh", "cast.cu");

/// Fills with an element, given as bits.
pub(crate) fn fill(
    queue: &Queue<'_>,
    size: usize,
    bits: u64,
    places: &Places<1>,
    out: Address,
) -> Result<()> {
    if let Places::Run { elements, .. } = places
        && (size == 1 || bits == 0)
    {
        // SAFETY: the places are a run of `elements` elements from `out` on, which the command writes.
        return unsafe { queue.fill_bytes(out.0, bits as u8, elements * size) };
    }
    // SAFETY: `places` was made from the layout of the output, which the command writes.
    unsafe { enqueue_fill(queue, size, bits, &places.loops(), out) }
}

/// Enqueues a copy of the base of indexed sums, or zeros if its address is null.
pub(super) fn begin(queue: &Queue<'_>, size: usize, places: &Places<2>, sums: [Address; 2]) -> Result<()> {
    let loops = places.loops();
    let own = loops.axes.iter().map(|axis| LoopAxis { size: axis.size, strides: [axis.strides[0]] });
    if sums[1].0.is_null() {
        return fill(queue, size, 0, &Places::Loops(Box::new(Loops::from_axes(own))), sums[0]);
    }
    // SAFETY: `places` was made from the layouts of the operands, of which the command writes the first and reads the second.
    unsafe { enqueue_copy(queue, size, &loops, sums) }
}

/// # Safety
/// The elements that `loops` reach from `out` are within a buffer that the command writes.
unsafe fn enqueue_fill(
    queue: &Queue<'_>,
    size: usize,
    bits: u64,
    loops: &Loops<1>,
    out: Address,
) -> Result<()> {
    let lanes = 16 / size;
    for_parts(loops, &mut |part, [at]| {
        let out = out.offset(at, size);
        let walk = Walk::of(queue.op(), part)?.vectors(lanes, [(out.0.cast_const(), size)]);
        let args = [out.into(), Arg::U64(bits), walk.arg()];
        // SAFETY: the kernel takes these arguments, and the caller promises that `loops`, of which `part` is a part,
        // reaches elements that the command writes.
        unsafe {
            queue.kernel(&COPY, &kernel_name(&["fill"], bits_name(size)), walk.grid(queue, lanes), &args)
        }
    })
}

/// The cast kernel for two types, and its program.
pub(super) fn cast_kernel(to: DType, from: DType) -> (&'static Program, String) {
    let half = [DType::BF16, DType::F16].into_iter().find(|half| [to, from].contains(half));
    (half.map_or(&COPY, |half| CASTS.of(half)), kernel_name(&["cast", from.name()], to.name()))
}

/// Sides of a tile of a transposing copy, as in the program.
const TILE: usize = 32;
const TILE_ROWS: u32 = 8;

/// Enqueues a copy of elements of `size` bytes.
///
/// # Safety
/// The elements that `loops` reach from the output and the input are within buffers that the command writes and reads.
pub(super) unsafe fn enqueue_copy(
    queue: &Queue<'_>,
    size: usize,
    loops: &Loops<2>,
    operands: [Address; 2],
) -> Result<()> {
    let walks = |tiles: &Tiles| loops.elements <= i32::MAX as usize && Walk::of("copy", &tiles.outer).is_ok();
    let Some(tiles) = Tiles::of(loops, TILE / 2, 2).filter(walks) else {
        let kernel = &kernel_name(&["copy"], bits_name(size));
        return Map { program: &COPY, kernel, sizes: [size; 2], numbers: &[] }
            .enqueue(queue, loops, operands);
    };
    let outer = Walk::of(queue.op(), &tiles.outer)?;
    let [out, x] = operands.map(Arg::from);
    let args = [
        out,
        x,
        Arg::U32(tiles.rows.size as u32),
        Arg::U32(tiles.columns.size as u32),
        Arg::I64(tiles.rows.strides[0] as i64),
        Arg::I64(tiles.columns.strides[1] as i64),
        outer.arg(),
    ];
    let plane = tiles.rows.size.div_ceil(TILE) * tiles.columns.size.div_ceil(TILE);
    let grid = Grid {
        blocks: [plane as u32, tiles.outer.elements.min(MAX_Y) as u32, 1],
        threads: [TILE as u32, TILE_ROWS, 1],
        shared_bytes: 0,
    };
    // SAFETY: the kernel takes these arguments; rows, columns and outer axes are those of the loops.
    unsafe { queue.kernel(&COPY, &kernel_name(&["transpose"], bits_name(size)), grid, &args) }
}
