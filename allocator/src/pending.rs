//! The wait of the host for freed memory, which is the last resort.

use device::{Moment, Result};
use smallvec::SmallVec;

use crate::allocator::CachingAllocator;
use crate::block::UNIT;
use crate::growth::tidy;
use crate::order::{Asker, Frontier};

/// A free block that commands still use.
struct Pending {
    bytes: usize,
    uses: SmallVec<[Moment; 2]>,
}

impl Pending {
    /// Blocks are waited for in this order: by how many commands their streams have launched until the last use.
    fn age(&self) -> u64 {
        self.uses.iter().map(|used| used.tick).max().unwrap_or(0)
    }
}

impl CachingAllocator {
    /// Blocks the host until the oldest commands have run that use so much free memory that a request of `units` units may
    /// fit once it is given back. `false` if waiting cannot help; nothing was waited for then.
    ///
    /// What is waited for follows from what the host has seen pass, so that an explored device decides alike in all orders.
    #[track_caller]
    pub(crate) fn wait_for_pending(&self, asker: &impl Asker, units: u32) -> Result<bool> {
        let need = units as usize * UNIT;
        let (mut waitable, passed) = self.pending(asker);
        let room = self.room().unwrap_or(0);
        let all: usize = waitable.iter().map(|block| block.bytes).sum();
        // Without a limit nobody knows how much the driver has.
        let hopeless = self.room().is_some() && room.saturating_add(passed).saturating_add(all) < need;
        if waitable.is_empty() || hopeless {
            return Ok(false);
        }
        waitable.sort_by_key(Pending::age);
        // If the limit leaves enough, it is the driver that has not.
        let mut lack = if room < need { need - room } else { need };
        let mut moments: Vec<Moment> = Vec::new();
        for block in waitable {
            moments.extend(block.uses);
            lack = lack.saturating_sub(block.bytes);
            if lack == 0 {
                break;
            }
        }
        // A stream's newest moment stands for its older ones.
        moments.sort_unstable_by_key(|moment| (moment.stream, std::cmp::Reverse(moment.tick)));
        moments.dedup_by_key(|moment| moment.stream);
        asker.wait_for_memory(&moments)?;
        self.counted.lock().host_waits += 1;
        Ok(true)
    }

    /// The free blocks that may go back to the driver once commands have run that the host may wait for, and the bytes of
    /// those that nothing uses any more.
    fn pending(&self, asker: &impl Asker) -> (Vec<Pending>, usize) {
        let (mut waitable, mut passed) = (Vec::new(), 0);
        for arena in self.public_arenas() {
            let (blocks, moments) = {
                let arena = tidy(arena);
                let free = arena.blocks.iter().filter(|block| block.state.is_free());
                let blocks: Vec<Pending> = free
                    .map(|block| Pending {
                        bytes: block.units as usize * UNIT,
                        uses: block.tags.moments(arena.home).collect(),
                    })
                    .collect();
                (blocks, arena.free_moments())
            };
            let frontier = Frontier::find(moments, |moment| asker.reached(moment));
            for mut block in blocks {
                block.uses.retain(|used| !frontier.passes(*used));
                if block.uses.is_empty() {
                    passed += block.bytes;
                } else if block.uses.iter().all(|&used| asker.stuck(used).is_none()) {
                    waitable.push(block);
                }
            }
        }
        (waitable, passed)
    }

    /// Bytes that the limit leaves for new memory; `None` without a limit.
    fn room(&self) -> Option<usize> {
        use std::sync::atomic::Ordering::Relaxed;
        let limit = self.counted.lock().limit_bytes?;
        Some(limit.saturating_sub(self.reserved.load(Relaxed)))
    }
}
