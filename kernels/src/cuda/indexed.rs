//! Indexed sums: entries are sorted by the row that they name, and those of a row are added in order; see `indexed.cuh`.

use device::cuda::{Arg, Grid, Program, Queue};
use device::{DType, Error, Result};
use smallvec::SmallVec;

use super::Family;
use super::walk::{ByValue, MAX_Y, THREADS, WARP, Walk};
use crate::command::Address;
use crate::indexed::{Entries, RUN};
use crate::loops::{LoopAxis, Loops};

static SORT: Program = Program::new(
    "sort",
    concat!(include_str!("prelude.cuh"), include_str!("sort.cuh"), include_str!("sort.cu")),
);

/// Entries that each block sorts for itself; as in the program, like the others.
const FEW: usize = 1024;
/// Entries of a block of a sort, and bits that a pass orders by at most.
const TILE: usize = 1024;
const BITS: u32 = 10;
/// The most positions of a block.
const MOST: usize = 512;
/// Blocks for each multiprocessor that are wanted.
const BLOCKS: usize = 8;
const ALIGNED: usize = 256;

impl Entries {
    /// Bytes of the orders, the counts and the parts of sums, in this order. One run has no parts.
    fn parts(&self, dtype: DType) -> [usize; 4] {
        if self.count() <= RUN {
            return [0; 4];
        }
        let order = self.count().saturating_mul(4);
        let [other, counts] = match self.is_few() {
            true => [0; 2],
            false => [order, (self.count().div_ceil(TILE) + 1).saturating_mul(4 << BITS)],
        };
        let sums = self.count().div_ceil(RUN).saturating_mul(2 * dtype.compute_dtype().size_bytes());
        [order, other, counts, sums.saturating_mul(self.columns.elements)]
            .map(|bytes| bytes.saturating_add(ALIGNED - 1) & !(ALIGNED - 1))
    }

    fn is_few(&self) -> bool {
        self.count() <= FEW
    }

    /// Bits of a key, of which one more than the keys stands for entries that are left out; and those that each pass of a sort orders by.
    fn bits(&self) -> (u32, u32) {
        let all = usize::BITS - self.keys().leading_zeros();
        (all, all.div_ceil(all.div_ceil(BITS)))
    }

    /// Bytes of the workspace.
    pub(crate) fn workspace(&self, dtype: DType) -> usize {
        self.parts(dtype).iter().fold(0, |all, &bytes| all.saturating_add(bytes))
    }

    /// Two halves of the lines, with where they begin in the source, the sums and the indices; `None` of one line.
    fn halves(&self) -> Option<[(Entries, [isize; 3]); 2]> {
        let outer = *self.lines.axes.first()?;
        let part = |start: usize, size: usize| {
            let axes = [LoopAxis { size, ..outer }].into_iter().chain(self.lines.axes[1..].iter().copied());
            let lines = Loops::from_axes(axes);
            (Entries { lines, ..self.clone() }, outer.strides.map(|stride| stride * start as isize))
        };
        let half = outer.size / 2;
        (half > 0).then(|| [part(0, half), part(half, outer.size - half)])
    }

    /// Enqueues the sort of the entries by row. Returns the memory that has the order then.
    fn sort(
        &self,
        queue: &Queue<'_>,
        index: Address,
        workspace: Address,
        args: [Arg<'_>; 2],
    ) -> Result<Address> {
        let [order, ..] = self.parts(DType::F32);
        let [mut from, mut to, found] =
            [0, order, 2 * order].map(|bytes| workspace.offset(bytes as isize, 1));
        let tiles = self.count().div_ceil(TILE) as u32;
        let (grid, [counts, lines]) = (Grid::linear(tiles, THREADS), args);
        let [index, found] = [index, found].map(Arg::from);
        let (all, each) = self.bits();
        for shift in (0..all).step_by(each as usize) {
            let order = if shift == 0 { Address::NULL } else { from };
            let [order, shift, bits, digits] =
                [order.into(), Arg::U32(shift), Arg::U32(each), Arg::U32(1 << each)];
            let offsets = Grid::linear((1_u32 << each).div_ceil(THREADS / WARP), THREADS);
            // SAFETY: the kernels take these arguments, and the workspace has room for two orders of all entries and for the
            // counts of each tile.
            unsafe {
                let args = [index, counts, lines, order, found, shift, bits, Arg::Fault];
                queue.kernel(&SORT, "sort_count", grid, &args)?;
                queue.kernel(&SORT, "sort_offsets", offsets, &[found, Arg::U32(tiles), digits])?;
                let args = [index, counts, lines, order, to.into(), found, shift, bits];
                queue.kernel(&SORT, "sort_place", grid, &args)?;
            }
            std::mem::swap(&mut from, &mut to);
        }
        Ok(from)
    }

    /// The columns of values and sums at these addresses, in vectors where entries and rows begin where vectors may.
    fn walk(&self, queue: &Queue<'_>, dtype: DType, operands: [Address; 2]) -> Result<Walk<2>> {
        let (bytes, lanes) = (dtype.size_bytes(), 16 / dtype.size_bytes());
        let walk = Walk::of(queue.op(), &self.columns)?
            .vectors(lanes, operands.map(|at| (at.0.cast_const(), bytes)));
        let fits = !walk.stands(1)
            && self.lines.elements == 1
            && self.steps[..2].iter().all(|&step| (step as usize).is_multiple_of(lanes))
            && self.columns.elements.is_multiple_of(lanes);
        Ok(if fits { walk } else { walk.single() })
    }

    /// Enqueues the sums of a family's kernel `name`: what is written, the values and the indices, and what the kernel takes beside them.
    ///
    /// # Errors
    /// `InvalidArgument` for 2^31 entries or rows of one line.
    pub(super) fn add(
        &self,
        queue: &Queue<'_>,
        (family, name, dtype): (&'static Family, &str, DType),
        [out, values, index]: [Address; 3],
        more: &[Arg<'_>],
        workspace: Option<Address>,
    ) -> Result<()> {
        if self.count() == 0 || self.columns.elements == 0 || self.keys() == 0 {
            return Ok(());
        }
        let is_counted = self.count().max(self.keys()) < 1 << 31;
        if let Some(halves) = (!is_counted).then(|| self.halves()).flatten() {
            let sizes = [dtype.size_bytes(), dtype.size_bytes(), size_of::<i64>()];
            return halves.into_iter().try_for_each(|(half, starts)| {
                let [values, out, index] =
                    std::array::from_fn(|k| [values, out, index][k].offset(starts[k], sizes[k]));
                half.add(queue, (family, name, dtype), [out, values, index], more, workspace)
            });
        }
        let value = format_args!("{} for {} rows", self.count(), self.keys());
        Error::require(is_counted, queue.op(), "indices", "fewer than 2^31 for as many rows", value)?;
        let [count, each, size] = [self.count(), self.each, self.size].map(|n| n as i64);
        let [source, sums, step] = self.steps.map(|step| step as i64);
        // `EntryCounts` of the program.
        let counts = [count, each, source, sums, step, size, self.padding];
        let lines = Walk::of(queue.op(), &self.lines)?;
        let columns = self.walk(queue, dtype, [values, out])?;
        let lanes = if columns.is_vector() { 16 / dtype.size_bytes() } else { 1 };
        let vectors = self.columns.elements / lanes;
        let width = vectors.next_power_of_two().min(THREADS as usize);
        let across = vectors.div_ceil(width).min(MAX_Y);
        let wanted = (queue.properties().multiprocessors as usize * BLOCKS).div_ceil(across);
        let shared = THREADS as usize / width;
        let tile = self.count().div_ceil(wanted).next_power_of_two().clamp(shared, MOST);
        let grid = |down: usize, across: usize| Grid {
            blocks: [down as u32, across as u32, 1],
            ..Grid::linear(1, THREADS)
        };
        let memory = workspace.unwrap_or(Address::NULL);
        let order = match self.is_few() {
            true => memory,
            false => self.sort(queue, index, memory, [counts.arg(), lines.arg()])?,
        };
        let parts = self.parts(dtype);
        let parts = memory.offset((parts[0] + parts[1] + parts[2]) as isize, 1);
        let enqueue = |words: &[&str], grid: Grid| {
            let [tile, width] = [tile, width].map(|n| Arg::U32(n as u32));
            let widths = [tile, width, Arg::U32(self.bits().1), columns.arg()];
            let first = [out, parts, order].map(Arg::from).into_iter().chain(widths);
            let next = [values.into(), index.into(), counts.arg(), lines.arg()];
            let args: SmallVec<[Arg<'_>; 16]> = first.chain(next).chain(more.iter().copied()).collect();
            // SAFETY: the kernel takes these arguments, `order` has all entries, and the workspace room for two parts of each run; an
            // index is checked before it is followed.
            unsafe { family.kernel(queue, words, dtype, grid, &args) }
        };
        let words: SmallVec<[&str; 3]> = [(true, name), (self.is_few(), "few"), (lanes > 1, "vector")]
            .into_iter()
            .filter_map(|(is_in, word)| is_in.then_some(word))
            .collect();
        enqueue(&words, grid(self.count().div_ceil(tile), across))?;
        if self.count() <= RUN {
            return Ok(());
        }
        let across = self.columns.elements.div_ceil(THREADS as usize).min(MAX_Y);
        enqueue(&[name, "join"], grid(self.count().div_ceil(RUN), across))
    }
}
