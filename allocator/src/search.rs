//! Where a block comes from when none is ready: the rungs below the fast path, in order.

use device::{BlockId, MemoryDriver, Moment, Result, SpinLock};

use crate::allocator::{CachingAllocator, Counters, Grant, tidy};
use crate::arena::{Arena, Segment, Taken};
use crate::block::{Address, NONE};
use crate::classes::UNIT;
use crate::order::{Frontier, Order};
use crate::{AllocatorConfig, ReusePolicy};

/// Segments are multiples of this and, from 16 times this on, of about a sixteenth of their size.
const SMALLEST_SEGMENT: usize = 64 << 10;
/// Segments are multiples of at most this: a huge page of the host, the driver's granularity on a GPU.
const LARGEST_STEP: usize = 2 << 20;
/// An arena grows by an eighth of what it has, up to this.
const LARGEST_GROWTH: usize = 64 << 20;
/// Pending bytes that never make a stream wait under [`ReusePolicy::Balanced`].
const PENDING_FLOOR: u64 = (2 << 20) / UNIT as u64;
/// A stream that keeps taking small blocks from others without waiting grows an arena of its own instead.
const MANY_BORROWED: u32 = 64;
const SMALL: u32 = ((1 << 20) / UNIT) as u32;

/// Bytes to ask the driver for when `need` are needed by an arena that has `reserved`: a little more in
/// proportion, so that the number of calls stays logarithmic and what is reserved stays close to what is
/// used.
pub(crate) fn segment_bytes(need: usize, reserved: usize) -> usize {
    let want = need.max((reserved / 8).min(LARGEST_GROWTH));
    let step = (want / 16).next_power_of_two().clamp(SMALLEST_SEGMENT, LARGEST_STEP);
    want.next_multiple_of(step)
}

impl CachingAllocator {
    /// Finds a block when none is ready in the stream's own arena.
    #[cold]
    pub(crate) fn search(&self, order: &impl Order, number: u32, units: u32, bytes: usize) -> Result<Grant> {
        let config = *self.config.read();
        let Some(arena) = self.arena(number) else {
            return Err(self.out_of_memory(order, bytes, "the stream has no arena"));
        };
        // What the stream's clock covers needs neither a question nor a wait.
        if self.promote(order, arena, |moment| order.covers(moment), true)
            && let Some(taken) = ready(order, arena, units)
        {
            return Ok(grant(number, taken));
        }
        if let Some(found) = self.borrow(order, number, units, config) {
            return Ok(found);
        }
        if !config.deterministic {
            let reached = |moment| {
                Counters::count(&self.counters.polls);
                order.reached(moment)
            };
            if self.promote(order, arena, reached, false)
                && let Some(taken) = ready(order, arena, units)
            {
                return Ok(grant(number, taken));
            }
        }
        if let Some(found) = self.wait_by_policy(order, number, units, config)? {
            return Ok(found);
        }
        let refusal = match self.grow(number, units) {
            Ok(found) => {
                self.keep_threshold(order, config);
                return Ok(found);
            }
            Err(refusal) => refusal,
        };
        self.last_resorts(order, number, units)?.ok_or_else(|| self.out_of_memory(order, bytes, &refusal))
    }

    /// Frees the arena's pending blocks from the tags that have `passed`, and says whether there were any.
    /// `covered` says that they passed because the stream comes after them.
    pub(crate) fn promote(
        &self,
        order: &impl Order,
        arena: &SpinLock<Arena>,
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
        let now = covered.then(|| order.now());
        if now.is_some_and(|now| now.stream != arena.home) {
            return false;
        }
        arena.promote(&frontier, now.map(|now| now.tick))
    }

    /// Takes a block of another arena, if the stream comes after every use of it.
    fn borrow(&self, order: &impl Order, number: u32, units: u32, config: AllocatorConfig) -> Option<Grant> {
        let own = self.arena(number)?;
        if units <= SMALL && own.lock().borrowed >= MANY_BORROWED && config.reuse != ReusePolicy::WaitFirst {
            return None;
        }
        let found = self.find_passed(order, units, false)?;
        own.lock().borrowed += 1;
        Counters::count(&self.counters.borrowed);
        Some(found)
    }

    /// Takes a free block of another stream's arena, if the stream comes after every use of it. Memory of
    /// other arenas that nobody has used yet is left to its home stream unless `unused`.
    fn find_passed(&self, order: &impl Order, units: u32, unused: bool) -> Option<Grant> {
        self.arenas().find_map(|(number, arena)| {
            let moments = {
                let arena = arena.lock();
                if arena.home == order.id() {
                    return None;
                }
                arena.free_moments()
            };
            let frontier = Frontier::find(moments, |moment| order.covers(moment));
            if frontier.is_empty() && !unused {
                // Not even merged: what this stream cannot have, it does not touch.
                return None;
            }
            let taken = tidy(arena).take_passed(units, unused, &frontier)?;
            Some(grant(number, taken))
        })
    }

    /// Waits for a pending block instead of growing, if the policy says so.
    fn wait_by_policy(
        &self,
        order: &impl Order,
        number: u32,
        units: u32,
        config: AllocatorConfig,
    ) -> Result<Option<Grant>> {
        let Some(arena) = self.arena(number) else { return Ok(None) };
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
        if let Some((taken, moments)) = own {
            return self.wait_for(order, number, taken, &moments).map(Some);
        }
        if config.reuse == ReusePolicy::WaitFirst {
            return self.take_any_run(order, number, units);
        }
        Ok(None)
    }

    /// Makes the stream wait for the uses of a block that was taken. If it cannot, the block goes back.
    fn wait_for(&self, order: &impl Order, number: u32, taken: Taken, moments: &[Moment]) -> Result<Grant> {
        let needed: Vec<Moment> = moments.iter().copied().filter(|&moment| !order.covers(moment)).collect();
        if !needed.is_empty() {
            if let Err(error) = order.wait_for(&needed) {
                if let Some(arena) = self.arena(number) {
                    // The caller has a handle of the device, so this drops no device under the lock.
                    arena.lock().put_back(taken.index);
                }
                return Err(error);
            }
            Counters::count(&self.counters.waits);
        }
        Ok(grant(number, taken))
    }

    /// Takes the smallest run of adjacent free blocks that fits and waits for its uses: from the stream's own
    /// arena, else from the one where it is smallest.
    fn take_any_run(&self, order: &impl Order, number: u32, units: u32) -> Result<Option<Grant>> {
        let own = self.arena(number).and_then(|arena| tidy(arena).take_run(units));
        if let Some((taken, moments)) = own {
            return self.wait_for(order, number, taken, &moments).map(Some);
        }
        let sizes = self.arenas().filter(|&(other, _)| other != number);
        let sizes = sizes.filter_map(|(other, arena)| Some((tidy(arena).smallest_run(units)?.0, other)));
        let Some((_, other)) = sizes.min() else { return Ok(None) };
        let found = self.arena(other).and_then(|arena| tidy(arena).take_run(units));
        let Some((taken, moments)) = found else { return Ok(None) };
        self.wait_for(order, other, taken, &moments).map(Some)
    }

    /// Adds a segment to the arena and takes a block of it; if neither the limit nor the driver allows one of
    /// the usual size, then one that just fits. No lock is held during the driver's call. Says what refused.
    fn grow(&self, number: u32, units: u32) -> Result<Grant, Box<str>> {
        let Some(arena) = self.arena(number) else { return Err("the stream has no arena".into()) };
        let need = units as usize * UNIT;
        let reserved = arena.lock().counts.reserved_units as usize * UNIT;
        let usual = segment_bytes(need, reserved).min(u32::MAX as usize * UNIT);
        let attempt = |bytes| {
            let segment = self.obtain(bytes)?;
            Ok(grant(number, arena.lock().add_segment(segment, units)))
        };
        match attempt(usual) {
            Err(_) if usual > need => attempt(need),
            outcome => outcome,
        }
    }

    /// One range from the driver.
    fn obtain(&self, bytes: usize) -> Result<Segment, Box<str>> {
        if !self.reserve(bytes) {
            let limit = self.limit.load(std::sync::atomic::Ordering::Relaxed);
            return Err(format!("the limit is {}", crate::report::size(limit)).into());
        }
        let driver: &dyn MemoryDriver = &*self.driver;
        // A driver of lower alignment is asked for a little more; what is skipped is not counted.
        let raw_bytes = bytes + UNIT.saturating_sub(driver.alignment());
        match driver.allocate(raw_bytes) {
            Ok(raw) => {
                Counters::count(&self.counters.driver_allocations);
                let skip = raw.as_ptr().align_offset(UNIT);
                // SAFETY: `skip` is at most what `raw_bytes` has more than `bytes`.
                let base = unsafe { raw.add(skip.min(raw_bytes - bytes)) };
                let units = (bytes / UNIT) as u32;
                Ok(Segment { raw: Address(raw), raw_bytes, base: Address(base), units, first: NONE })
            }
            Err(error) => {
                self.unreserve(bytes);
                Counters::count(&self.counters.driver_refusals);
                Err(format!("the driver refused {}: {error}", crate::report::size(bytes)).into())
            }
        }
    }

    /// Gives back what is cached beyond the threshold.
    fn keep_threshold(&self, order: &impl Order, config: AllocatorConfig) {
        if let Some(threshold) = config.release_threshold {
            self.release_cached(threshold, |moment| order.reached(moment));
        }
    }

    /// When nothing new is to be had: memory that other streams left unused or have finished with, then any
    /// that has to be waited for, then another try with everything cached given back.
    fn last_resorts(&self, order: &impl Order, number: u32, units: u32) -> Result<Option<Grant>> {
        if let Some(found) = self.find_passed(order, units, true) {
            return Ok(Some(found));
        }
        if let Some(found) = self.take_any_run(order, number, units)? {
            return Ok(Some(found));
        }
        let freed = self.release_cached(0, |moment| order.reached(moment));
        Ok(if freed > 0 { self.grow(number, units).ok() } else { None })
    }
}

fn ready(order: &impl Order, arena: &SpinLock<Arena>, units: u32) -> Option<Taken> {
    arena.lock().take_ready(order.id(), units)
}

fn grant(number: u32, taken: Taken) -> Grant {
    Grant { ptr: taken.ptr, block: BlockId { arena: number, index: taken.index } }
}
