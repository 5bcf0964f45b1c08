//! index_add, scatter_add and gradients of embeddings: the entries of a row are added in order; see `indexed.cuh`.

use device::cuda::{Arg, Grid, Program, Queue};
use device::{DType, Error, Result};
use smallvec::SmallVec;

use super::Family;
use super::copy::begin;
use super::walk::{self, ByValue, WARP, Walk, blocks};
use crate::command::Address;
use crate::indexed::Entries;
use crate::loops::{LoopAxis, Loops, Places};

static SORT: Program = Program::new(
    "sort",
    concat!(include_str!("prelude.cuh"), include_str!("sort.cuh"), include_str!("sort.cu")),
);

/// Threads of a block, as in the program, like the other numbers.
const THREADS: u32 = 512;
/// Most entries that a thread block searches, and most rows that it owns.
const MOST: usize = 12_288;
const OWNED: usize = 256;
/// Entries searched by all thread blocks together, up to which searching is faster than a sort.
const LOOKS: usize = 1 << 22;
/// Entries per thread block of the sort, and most bits per pass.
const TILE: usize = 4096;
const BITS: u32 = 10;
/// Least number of threads for neighbouring vectors of a run.
const WIDTH: usize = 4;

/// A stable radix sort, see `sort.cu`, in a workspace of two pairs of an order and keys, and the counts of each tile.
pub(super) struct Sorter {
    pairs: [[Address; 2]; 2],
    found: Address,
    count: usize,
}

impl Sorter {
    /// Bytes of the workspace for so many entries.
    pub(super) fn workspace(count: usize) -> usize {
        let counts = (count.div_ceil(TILE) + 1).saturating_mul(4 << BITS);
        count.saturating_mul(16).saturating_add(counts)
    }

    pub(super) fn new(count: usize, workspace: Address) -> Sorter {
        let part = |n: usize| workspace.offset((n * count) as isize, 4);
        Sorter { pairs: [[part(0), part(1)], [part(2), part(3)]], found: part(4), count }
    }

    /// Where keys for a further sort of an order may be written.
    pub(super) fn keys_beside(&self, order: Address) -> Address {
        let [first, second] = self.pairs;
        if order.0 == second[0].0 { second[1] } else { first[1] }
    }

    /// Enqueues a sort of an order by the lowest `bits` of its keys. Returns the new order.
    pub(super) fn sort_keys(&self, queue: &Queue<'_>, bits: u32, from: [Address; 2]) -> Result<Address> {
        // `EntryCounts` of the program, of which only the number of entries is used.
        let counts = [self.count as i64, 0, 0, 0, 0, 0, 0, 0];
        let lines = Walk::<3>::of(queue.op(), &Loops::from_axes([]))?;
        let [order, _] = self.sort(queue, bits, from, (Address::NULL, [counts.arg(), lines.arg()]))?;
        Ok(order)
    }

    /// Enqueues a sort by the lowest `all` bits of keys. Null stands for the order of the entries, and for the keys of the
    /// entries. Returns the addresses of the new order and its keys.
    fn sort(
        &self,
        queue: &Queue<'_>,
        all: u32,
        mut from: [Address; 2],
        (index, [counts, lines]): (Address, [Arg<'_>; 2]),
    ) -> Result<[Address; 2]> {
        let tiles = self.count.div_ceil(TILE) as u32;
        let grid = Grid::linear(tiles, THREADS);
        let [index, found] = [index, self.found].map(Arg::from);
        let each = all.div_ceil(all.div_ceil(BITS).max(1));
        for shift in (0..all).step_by(each.max(1) as usize) {
            let to = if from[1].0 == self.pairs[0][1].0 { self.pairs[1] } else { self.pairs[0] };
            let [order, keys, sorted, sorted_keys] = [from[0], from[1], to[0], to[1]].map(Arg::from);
            let [shift, bits, digits] = [shift, each, 1 << each].map(Arg::U32);
            let offsets = Grid::linear((1_u32 << each).div_ceil(THREADS / WARP), THREADS);
            // SAFETY: the kernels take these arguments, and the workspace has room for two orders of all entries and their keys and
            // for the counts of each tile.
            unsafe {
                let args = [index, counts, lines, keys, found, shift, bits, Arg::Fault];
                queue.kernel(&SORT, "sort_count", grid, &args)?;
                queue.kernel(&SORT, "sort_offsets", offsets, &[found, Arg::U32(tiles), digits])?;
                let args = [index, counts, lines, order, keys, sorted, sorted_keys, found, shift, bits];
                queue.kernel(&SORT, "sort_place", grid, &args)?;
            }
            from = to;
        }
        Ok(from)
    }
}

impl Entries {
    /// Whether thread blocks search all entries instead of sorting them.
    fn is_few(&self) -> bool {
        self.count() <= MOST && self.keys().div_ceil(OWNED).saturating_mul(self.count().max(1)) <= LOOKS
    }

    /// Whether each entry is written by itself.
    fn is_put(&self) -> bool {
        self.distinct && self.columns.elements == 1
    }

    /// Bytes of the workspace.
    pub(crate) fn workspace(&self) -> usize {
        if self.is_few() || self.is_put() { 0 } else { Sorter::workspace(self.count()) }
    }

    /// The lines in two halves, with their offsets in the source, the sums and the indices; `None` for a single line.
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

    /// Enqueues the sort of the entries by row, unless they are few. Returns the addresses of their order and keys.
    fn sort(
        &self,
        queue: &Queue<'_>,
        [index, workspace]: [Address; 2],
        entries: [Arg<'_>; 2],
    ) -> Result<[Address; 2]> {
        if self.is_few() {
            return Ok([Address::NULL; 2]);
        }
        // `keys()` itself is the key of skipped entries.
        let bits = usize::BITS - self.keys().leading_zeros();
        Sorter::new(self.count(), workspace).sort(queue, bits, [Address::NULL; 2], (index, entries))
    }

    /// The columns of values and sums, in vectors if all entries and rows are aligned.
    fn walk(&self, queue: &Queue<'_>, dtype: DType, [from, to, base]: [Address; 3]) -> Result<Walk<2>> {
        let (bytes, lanes) = (dtype.size_bytes(), 16 / dtype.size_bytes().max(4));
        let operands = [from, to].map(|at| (at.0.cast_const(), bytes));
        let walk = Walk::of(queue.op(), &self.columns)?.vectors(lanes, operands);
        let fits = !walk.stands(1)
            && base.0.addr().is_multiple_of(lanes * bytes)
            && self.lines.elements == 1
            && self.steps[..2].iter().all(|&step| (step as usize).is_multiple_of(lanes))
            && self.columns.elements.is_multiple_of(lanes);
        Ok(if fits { walk } else { walk.single() })
    }

    /// Enqueues kernel `name` of a family: output, optional base and their places; values and indices; further arguments of the kernel.
    ///
    /// # Errors
    /// `InvalidArgument` for 2^31 entries or rows of one line.
    pub(super) fn add(
        &self,
        queue: &Queue<'_>,
        (family, name, dtype): (&'static Family, &str, DType),
        (out, base, places): (Address, Option<Address>, &Places<2>),
        [values, index]: [Address; 2],
        more: &[Arg<'_>],
        workspace: Option<Address>,
    ) -> Result<()> {
        let mut base = base.unwrap_or(Address::NULL);
        // If the kernel does not write all elements, or base and output have different strides, the base is copied first and sums are added in place.
        let is_alike = || places.loops().axes.iter().all(|axis| axis.strides[0] == axis.strides[1]);
        let owns_all =
            !self.is_put() && self.is_few() && self.keys() * self.columns.elements == places.elements();
        if !(owns_all && (base.0.is_null() || is_alike())) && base.0 != out.0 {
            begin(queue, dtype.size_bytes(), places, [out, base])?;
            base = out;
        }
        if self.columns.elements == 0 || self.keys() == 0 || self.count() == 0 && base.0 == out.0 {
            return Ok(());
        }
        let is_counted = self.count().max(self.keys()) < 1 << 31;
        if let Some(halves) = (!is_counted).then(|| self.halves()).flatten() {
            return halves.into_iter().try_for_each(|(half, [source, sums, first])| {
                let size = dtype.size_bytes();
                let sums = (out.offset(sums, size), Some(base.offset(sums, size)), places);
                let operands = [values.offset(source, size), index.offset(first, size_of::<i64>())];
                half.add(queue, (family, name, dtype), sums, operands, more, workspace)
            });
        }
        let value = format_args!("{} for {} rows", self.count(), self.keys());
        Error::require(is_counted, queue.op(), "indices", "fewer than 2^31 for as many rows", value)?;
        let [count, of_line, size] = [self.count(), self.each, self.size].map(|n| n as i64);
        let [source, sums, step] = self.steps.map(|step| step as i64);
        // Whether consecutive entries should belong to consecutive lines, for coalesced loads.
        let beside = self.lines.axes.last().is_some_and(|axis| axis.strides[2].abs() < self.steps[2].abs());
        // `EntryCounts` of the program.
        let counts = [count, of_line, source, sums, step, size, self.padding, i64::from(beside)];
        let lines = Walk::of(queue.op(), &self.lines)?;
        if self.is_put() {
            let args = [out.into(), values.into(), index.into(), counts.arg(), lines.arg(), Arg::Fault];
            let grid = blocks(queue, (self.count() as u64).div_ceil(u64::from(walk::THREADS)), walk::THREADS);
            // SAFETY: the kernel takes these arguments, and an index is checked before it is followed.
            return unsafe { family.kernel(queue, &["index_put"], dtype, grid, &args) };
        }
        let columns = self.walk(queue, dtype, [values, out, base])?;
        let lanes = if columns.is_vector() { 16 / dtype.size_bytes().max(4) } else { 1 };
        let vectors = self.columns.elements / lanes;
        let width = vectors.next_power_of_two().min(WIDTH);
        let wanted = queue.properties().multiprocessors as usize;
        // Thread blocks for other columns of the same rows repeat the search.
        let most = if self.is_few() { (2 * wanted).div_ceil(self.keys().div_ceil(OWNED)) } else { wanted };
        let across = vectors.div_ceil(width).min(most.min(wanted));
        let share = self.keys().div_ceil(wanted / across).clamp(1, OWNED);
        let down = if self.is_few() { self.keys().div_ceil(share) } else { self.count().div_ceil(OWNED) };
        // Sorted: few rows may begin at a thread block's positions.
        let threads = if self.is_few() { THREADS } else { THREADS / 2 };
        let grid = Grid { blocks: [down as u32, across as u32, 1], ..Grid::linear(1, threads) };
        let [share, width] = [share, width].map(|n| Arg::U32(n as u32));
        let memory = workspace.unwrap_or(Address::NULL);
        let [order, keys] = self.sort(queue, [index, memory], [counts.arg(), lines.arg()])?;
        let first = [out, base, order, keys].map(Arg::from).into_iter().chain([share, width, columns.arg()]);
        let next = [values.into(), index.into(), counts.arg(), lines.arg()];
        let args: SmallVec<[Arg<'_>; 20]> = first.chain(next).chain(more.iter().copied()).collect();
        let words = if lanes > 1 { &[name, "vector"][..] } else { &[name] };
        // SAFETY: the kernel takes these arguments, the sort has put all entries into its order, and an index is checked before it is
        // followed.
        unsafe { family.kernel(queue, words, dtype, grid, &args) }
    }
}
