//! Where a block comes from when none is ready: the rungs below the fast path, in order.

use device::{Moment, Result};

use crate::allocator::CachingAllocator;
use crate::arena::{Arena, Grant, SharedArena};
use crate::block::UNIT;
use crate::classes::units_for;
use crate::growth::tidy;
use crate::order::{Asker, Frontier};
use crate::{AllocatorConfig, ReusePolicy};

/// Pending bytes that never make a stream wait under [`ReusePolicy::Balanced`].
const PENDING_FLOOR: u64 = (2 << 20) / UNIT as u64;
/// A stream that keeps taking small blocks from others without waiting grows an arena of its own instead.
const MANY_BORROWED: u32 = 64;
const SMALL: u32 = ((1 << 20) / UNIT) as u32;

impl CachingAllocator {
    /// Finds a block when none is ready in the stream's own arena.
    #[cold]
    #[track_caller]
    pub(crate) fn search(
        &self,
        asker: &impl Asker,
        arena: &SharedArena,
        units: u32,
        bytes: usize,
    ) -> Result<Grant> {
        let config = *self.config.read();
        // What the stream's clock covers needs neither a question nor a wait.
        if self.promote(asker, arena, |moment| asker.covers(moment), true)
            && let Some(ready) = ready(asker, arena, units)
        {
            return Ok(ready);
        }
        if let Some(found) = self.borrow(asker, arena, units, config) {
            return Ok(found);
        }
        if !config.deterministic {
            let reached = |moment| {
                self.counted.lock().polls += 1;
                asker.reached(moment)
            };
            if self.promote(asker, arena, reached, false)
                && let Some(ready) = ready(asker, arena, units)
            {
                return Ok(ready);
            }
        }
        if let Some(found) = self.wait_by_policy(asker, arena, units, config)? {
            return Ok(found);
        }
        let refusal = match self.grow_and_take(asker, arena, units) {
            Ok(found) => {
                self.keep_threshold(asker, config);
                return Ok(found);
            }
            Err(refusal) => refusal,
        };
        loop {
            if let Some(found) = self.last_resorts(asker, arena, units)? {
                return Ok(found);
            }
            if !self.wait_for_pending(asker, units)? {
                return Err(self.out_of_memory(asker, bytes, &refusal));
            }
        }
    }

    /// Frees the arena's pending blocks from the tags that have `passed`, and says whether there were any.
    /// `covered` says that they passed because the stream comes after them.
    pub(crate) fn promote(
        &self,
        asker: &impl Asker,
        arena: &SharedArena,
        passed: impl Fn(Moment) -> bool,
        covered: bool,
    ) -> bool {
        let mut waiting = arena.lock().waiting();
        waiting.retain(|&mut oldest| passed(oldest));
        if waiting.is_empty() {
            return false;
        }
        let moments = arena.lock().pending_moments(&waiting);
        let frontier = Frontier::find(moments, passed);
        let mut arena = arena.lock();
        // A stream that shares the arena answers for itself only.
        let now = covered.then(|| asker.now());
        if now.is_some_and(|now| now.stream != arena.home) {
            return false;
        }
        arena.promote(&frontier, now.map(|now| now.tick))
    }

    /// Takes a block of another arena, if the stream comes after every use of it.
    fn borrow(
        &self,
        asker: &impl Asker,
        own: &SharedArena,
        units: u32,
        config: AllocatorConfig,
    ) -> Option<Grant> {
        if units <= SMALL && own.lock().borrowed >= MANY_BORROWED && config.reuse != ReusePolicy::WaitFirst {
            return None;
        }
        let found = self.find_passed(asker, own, units, false)?;
        own.lock().borrowed += 1;
        self.counted.lock().borrowed += 1;
        Some(found)
    }

    /// Takes a free block of another stream's arena, if the stream comes after every use of it. Memory of
    /// other arenas that nobody has used yet is left to its home stream unless `unused`.
    fn find_passed(&self, asker: &impl Asker, own: &SharedArena, units: u32, unused: bool) -> Option<Grant> {
        self.others(own).find_map(|arena| {
            let moments = arena.lock().free_moments();
            let frontier = Frontier::find(moments, |moment| asker.covers(moment));
            if frontier.is_empty() && !unused {
                // Not even merged: what this stream cannot have, it does not touch.
                return None;
            }
            tidy(arena).take_passed(units, unused, &frontier)
        })
    }

    /// The other arenas whose memory may serve the stream of arena `own`: those of the same private pool, or of none.
    fn others<'a>(&'a self, own: &'a SharedArena) -> impl Iterator<Item = &'a SharedArena> {
        let pool = own.lock().pool;
        self.arenas().filter(move |&arena| !std::ptr::eq(arena, own) && arena.lock().pool == pool)
    }

    /// Waits for a pending block instead of growing, if the policy says so.
    fn wait_by_policy(
        &self,
        asker: &impl Asker,
        arena: &SharedArena,
        units: u32,
        config: AllocatorConfig,
    ) -> Result<Option<Grant>> {
        let counts = arena.lock().counts;
        let wait = match config.reuse {
            ReusePolicy::GrowFirst => false,
            ReusePolicy::WaitFirst => true,
            ReusePolicy::Balanced => counts.pending_units > counts.live_units.max(PENDING_FLOOR),
        };
        if !wait {
            return Ok(None);
        }
        let own = arena.lock().take_pending(units);
        if let Some((block, moments)) = own {
            return self.wait_for(asker, block, &moments).map(Some);
        }
        if config.reuse == ReusePolicy::WaitFirst {
            return self.take_any_run(asker, arena, units);
        }
        Ok(None)
    }

    /// Makes the stream wait for the uses of a block that was taken. If it cannot, the block goes back.
    fn wait_for(&self, asker: &impl Asker, taken: Grant, moments: &[Moment]) -> Result<Grant> {
        let needed: Vec<Moment> = moments.iter().copied().filter(|&moment| !asker.covers(moment)).collect();
        if !needed.is_empty() {
            if let Err(error) = asker.wait_for(&needed) {
                if let Some(arena) = self.arena(taken.block.arena) {
                    // The caller has a handle of the device, so this drops no device under the lock.
                    arena.lock().put_back(taken.block.index);
                }
                return Err(error);
            }
            self.counted.lock().waits += 1;
        }
        Ok(taken)
    }

    /// Takes the smallest run of adjacent free blocks that fits and waits for its uses: from the stream's own
    /// arena, else from the one where it is smallest.
    fn take_any_run(&self, asker: &impl Asker, own: &SharedArena, units: u32) -> Result<Option<Grant>> {
        let mut found = tidy(own).take_run(units);
        if found.is_none() {
            let size = |arena: &&SharedArena| tidy(arena).smallest_run(units).map(|(size, _)| size);
            let sizes = self.others(own).filter_map(|arena| Some((size(&arena)?, arena)));
            let smallest = sizes.min_by_key(|(size, _)| *size);
            found = smallest.and_then(|(_, arena)| tidy(arena).take_run(units));
        }
        found.map(|(block, moments)| self.wait_for(asker, block, &moments)).transpose()
    }

    /// Gives back what is cached beyond the threshold.
    fn keep_threshold(&self, asker: &impl Asker, config: AllocatorConfig) {
        // When memory can go back depends on the device.
        if let Some(threshold) = config.release_threshold.filter(|_| !config.deterministic) {
            self.release_cached(threshold, |moment| asker.reached(moment));
        }
    }

    /// When nothing new is to be had: memory that other streams left unused or have finished with, then any
    /// that has to be waited for, then another try with everything cached given back.
    fn last_resorts(&self, asker: &impl Asker, arena: &SharedArena, units: u32) -> Result<Option<Grant>> {
        if let Some(found) = self.find_passed(asker, arena, units, true) {
            return Ok(Some(found));
        }
        if let Some(found) = self.take_any_run(asker, arena, units)? {
            return Ok(Some(found));
        }
        let freed = self.release_cached(0, |moment| asker.reached(moment));
        Ok(if freed > 0 { self.grow_and_take(asker, arena, units).ok() } else { None })
    }

    fn grow_and_take(&self, asker: &impl Asker, arena: &SharedArena, units: u32) -> Result<Grant, Box<str>> {
        self.grow(asker, arena, units, |arena, new| arena.take_obtained(new, units))
    }

    /// Has a free block of `bytes` bytes ready for the stream: one that it comes after every use of, or new memory.
    #[track_caller]
    pub(crate) fn make_ready(&self, asker: &impl Asker, bytes: usize) -> Result<()> {
        let Some(units) = units_for(bytes) else {
            return Err(self.out_of_memory(asker, bytes, "no block can be that large"));
        };
        if units == 0 {
            return Ok(());
        }
        let arena = self.arena_of(asker);
        let deterministic = self.config.read().deterministic;
        let found = arena.lock().has_ready(units)
            || self.promote(asker, arena, |moment| asker.covers(moment), true)
                && arena.lock().has_ready(units)
            || !deterministic
                && self.promote(asker, arena, |moment| asker.reached(moment), false)
                && arena.lock().has_ready(units);
        if found {
            return Ok(());
        }
        let grow = || self.grow(asker, arena, units, Arena::keep_obtained);
        let Err(refusal) = grow() else { return Ok(()) };
        loop {
            let freed = self.release_cached(0, |moment| asker.reached(moment));
            if freed > 0 && grow().is_ok() {
                return Ok(());
            }
            if !self.wait_for_pending(asker, units)? {
                return Err(self.out_of_memory(asker, bytes, &refusal));
            }
        }
    }
}

fn ready(asker: &impl Asker, arena: &SharedArena, units: u32) -> Option<Grant> {
    arena.lock().take_ready(asker.id(), units)
}
