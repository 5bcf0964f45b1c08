//! Memory from the driver and back. No lock is held during a call of the driver.

use std::num::NonZero;

use device::{AddressSpace, Moment, SpinGuard};

use crate::allocator::CachingAllocator;
use crate::arena::{Arena, Obtained, Pages, SMALLEST_ARENA, Segment, SharedArena};
use crate::block::{Address, NONE, UNIT};
use crate::order::{Asker, Frontier};

/// Addresses for one arena, few of what there is. An arena that fills them gets as many again.
const SPACE_BYTES: usize = (usize::MAX >> 28) + 1;
/// An arena that grows in place does so by at least this part of what it has, so that its calls of the driver stay
/// logarithmic in its size and what is reserved stays close to what is used.
const GROWTH_PART: usize = 32;

/// Pages beyond this size are not for requests of up to half of one in arenas of a few pages, whose last one would be
/// much of what they have: those get segments, of which the driver puts several into a page.
const SMALL_PAGE: usize = SMALLEST_ARENA;
const FEW_PAGES: usize = 4;

/// Where memory comes in segments: they are multiples of this and, from 16 times this on, of about a sixteenth of
/// their size.
const SMALLEST_SEGMENT: usize = 64 << 10;
/// Steps are at most this: a huge page of the host, the driver's granularity on a GPU.
const LARGEST_STEP: usize = 2 << 20;
/// An arena of segments grows by an eighth of what it has, up to this.
const LARGEST_GROWTH: usize = 64 << 20;

/// Bytes to ask the driver for when `need` are needed by an arena that has `reserved`: a little more in proportion,
/// since segments do not merge.
pub(crate) fn segment_bytes(need: usize, reserved: usize) -> usize {
    let want = need.max((reserved / 8).min(LARGEST_GROWTH));
    let step = (want / 16).next_power_of_two().clamp(SMALLEST_SEGMENT, LARGEST_STEP);
    want.next_multiple_of(step)
}

/// The multiple of bytes that an arena with `reserved` bytes grows to.
pub(crate) fn growth_step(reserved: usize, page: usize) -> usize {
    if reserved == 0 {
        return SMALLEST_ARENA.max(page);
    }
    let part = reserved / GROWTH_PART;
    let step = if part == 0 { 0 } else { 1 << part.ilog2() };
    step.clamp(page, LARGEST_STEP.max(page))
}

/// Whether an arena that has `reserved` bytes and needs `need` more gets pages, not a segment.
pub(crate) fn wants_pages(need: usize, reserved: usize, page: usize) -> bool {
    page <= SMALL_PAGE || need > page / 2 || reserved + need > FEW_PAGES * page
}

impl CachingAllocator {
    /// Adds memory with a block of `units` units to the arena, which `put` gets; if neither the limit nor the driver allows
    /// the usual amount, then just what is needed. Says what refused.
    pub(crate) fn grow<R>(
        &self,
        asker: &impl Asker,
        arena: &SharedArena,
        units: u32,
        put: impl Fn(&mut Arena, Obtained<'_>) -> R,
    ) -> Result<R, Box<str>> {
        let need = units as usize * UNIT;
        let reserved = arena.lock().counts.reserved_units as usize * UNIT;
        if let Some(space) = self.driver.address_space()
            && wants_pages(need, reserved, space.page_bytes())
            && let Some(outcome) = self.grow_in_place(space, asker, arena, units, &put)
        {
            return outcome;
        }
        let page = self.driver.address_space().map(AddressSpace::page_bytes);
        let most = page.map_or(usize::MAX, |page| need.max(page / 2)).min(u32::MAX as usize * UNIT);
        let usual = segment_bytes(need, reserved).min(most);
        let attempt = |bytes| {
            let segment = asker.record_driver_call(bytes, || self.obtain(bytes))?;
            Ok(put(&mut arena.lock(), Obtained::Segment(segment)))
        };
        match attempt(usual) {
            Err(_) if usual > need => attempt(need),
            outcome => outcome,
        }
    }

    /// Gives memory to pages of the arena's addresses. `None` if there are no addresses to be had.
    fn grow_in_place<R>(
        &self,
        space: &dyn AddressSpace,
        asker: &impl Asker,
        arena: &SharedArena,
        units: u32,
        put: &impl Fn(&mut Arena, Obtained<'_>) -> R,
    ) -> Option<Result<R, Box<str>>> {
        let page_bytes = space.page_bytes();
        let page = u32::try_from(page_bytes / UNIT).ok().filter(|&page| page > 0)?;
        let begin = |generous: bool| {
            let mut arena = arena.lock();
            let reserved = arena.counts.reserved_units as usize * UNIT;
            let step = if generous { growth_step(reserved, page_bytes) } else { page_bytes };
            arena.begin_growth(asker.id(), units, page, step)
        };
        let first = match begin(true) {
            Some(growth) => growth,
            None => {
                let bytes = (units as usize * UNIT).next_multiple_of(page_bytes).max(SPACE_BYTES);
                let base = Address(space.reserve(bytes).ok()?);
                let (page, units) = (NonZero::new(page), (bytes / UNIT) as u32);
                let space = Segment { raw: base, raw_bytes: bytes, base, units, page, first: NONE };
                arena.lock().add_space(space);
                begin(true)?
            }
        };
        let asked = first.units;
        self.keep_budget(asker, arena, page);
        let commit = |growth: &Pages| {
            let bytes = growth.units as usize * UNIT;
            asker.record_driver_call(bytes, || {
                // SAFETY: these are pages without memory of a range that the arena got from `reserve`, and nobody else touches
                // them while the growth is under way.
                self.counted(bytes, || unsafe { space.commit(growth.address.0, bytes) })
            })
        };
        let attempt = |growth: Pages| match commit(&growth) {
            Ok(()) => Ok(put(&mut arena.lock(), Obtained::Pages(&growth))),
            Err(refusal) => {
                arena.lock().abort_growth(&growth);
                Err(refusal)
            }
        };
        Some(attempt(first).or_else(|refusal| match begin(false) {
            Some(growth) if growth.units < asked => attempt(growth),
            Some(growth) => {
                arena.lock().abort_growth(&growth);
                Err(refusal)
            }
            None => Err(refusal),
        }))
    }

    /// Takes memory that is free elsewhere in an arena that is about to have more than it should. What is free for the
    /// driver depends on the device.
    fn keep_budget(&self, asker: &impl Asker, arena: &SharedArena, page: u32) {
        let excess = match arena.lock() {
            arena if arena.pool.is_none() => arena.excess(page),
            _ => 0,
        };
        if excess == 0 || self.config.read().deterministic {
            return;
        }
        let frontier = self.frontier_of(arena, |moment| asker.reached(moment));
        let moved = self.shrink(arena, &frontier, excess as usize * UNIT);
        if moved > 0 {
            arena.lock().note_moved((moved / UNIT) as u32);
        }
    }

    /// One range from the driver.
    fn obtain(&self, bytes: usize) -> Result<Segment, Box<str>> {
        // A driver of lower alignment is asked for a little more; what is skipped is not counted.
        let raw_bytes = bytes + UNIT.saturating_sub(self.driver.alignment());
        let raw = self.counted(bytes, || self.driver.allocate(raw_bytes))?;
        let skip = raw.as_ptr().align_offset(UNIT);
        // SAFETY: `skip` is capped at `raw_bytes - bytes`, so `base` and the `bytes` bytes behind it lie in the
        // range.
        let base = Address(unsafe { raw.add(skip.min(raw_bytes - bytes)) });
        let units = (bytes / UNIT) as u32;
        Ok(Segment { raw: Address(raw), raw_bytes, base, units, page: None, first: NONE })
    }

    /// A call that obtains `bytes` bytes, within the limit and counted.
    fn counted<T>(&self, bytes: usize, call: impl FnOnce() -> device::Result<T>) -> Result<T, Box<str>> {
        if let Err(limit) = self.reserve(bytes) {
            return Err(format!("the limit is {}", crate::report::size(limit)).into());
        }
        let outcome = call();
        let mut counted = self.counted.lock();
        if outcome.is_ok() {
            counted.driver_allocations += 1;
            counted.reserved_bytes += bytes;
            counted.peak_reserved_bytes = counted.peak_reserved_bytes.max(counted.reserved_bytes);
        } else {
            counted.driver_refusals += 1;
            self.unreserve(bytes);
        }
        drop(counted);
        outcome.map_err(|error| format!("the driver refused {}: {error}", crate::report::size(bytes)).into())
    }

    /// Gives free memory back to the driver if the host can see that every use of it is over, until no more than
    /// `keep_bytes` bytes are free: whole segments, then pages between live blocks. The bytes given back.
    pub(crate) fn release_cached(&self, keep_bytes: usize, reached: impl Fn(Moment) -> bool) -> usize {
        let mut freed = 0;
        let excess = || self.free_bytes().saturating_sub(keep_bytes);
        for arena in self.public_arenas() {
            if excess() == 0 {
                break;
            }
            let frontier = self.frontier_of(arena, &reached);
            while excess() > 0 {
                let removed = tidy(arena).remove_free_segment(&frontier);
                let Some((segment, bytes)) = removed else { break };
                // SAFETY: the arena has forgotten the segment, no buffer is in it, and every command that used it has
                // run.
                unsafe { segment.give_back(&*self.driver) };
                self.note_given_back(bytes);
                freed += bytes;
            }
            freed += self.shrink(arena, &frontier, excess());
        }
        freed
    }

    /// Which uses of the arena's free blocks the host sees passed.
    fn frontier_of(&self, arena: &SharedArena, reached: impl Fn(Moment) -> bool) -> Frontier {
        let moments = tidy(arena).free_moments();
        Frontier::find(moments, |moment| {
            self.counted.lock().polls += 1;
            reached(moment)
        })
    }

    /// Gives whole pages of free blocks back, about `bytes` bytes of them.
    fn shrink(&self, arena: &SharedArena, frontier: &Frontier, bytes: usize) -> usize {
        let Some(space) = self.driver.address_space().filter(|_| bytes > 0) else { return 0 };
        let mut freed = 0;
        let chosen = tidy(arena).begin_shrink(frontier, bytes);
        for pages in chosen {
            let bytes = pages.units as usize * UNIT;
            // SAFETY: these are pages with memory of a range that the arena got from `reserve`, no buffer is in them,
            // every command that used them has run, and nobody else touches them while this is under way.
            match unsafe { space.decommit(pages.address.0, bytes) } {
                Ok(()) => {
                    arena.lock().finish_shrink(&pages);
                    self.note_given_back(bytes);
                    freed += bytes;
                }
                Err(_) => arena.lock().abort_shrink(&pages),
            }
        }
        freed
    }

    fn note_given_back(&self, bytes: usize) {
        let counted = &mut *self.counted.lock();
        counted.driver_frees += 1;
        counted.reserved_bytes -= bytes;
        self.unreserve(bytes);
    }

    /// Bytes that are free, private pools left out.
    fn free_bytes(&self) -> usize {
        let free = |arena: &SharedArena| {
            let counts = arena.lock().counts;
            (counts.reserved_units - counts.live_units) as usize * UNIT
        };
        self.public_arenas().map(free).sum()
    }
}

/// Locks an arena and merges what was freed lately.
pub(crate) fn tidy(arena: &SharedArena) -> SpinGuard<'_, Arena> {
    let mut arena = arena.lock();
    arena.tidy();
    arena
}
