//! Pinned host memory, through which copies go: asynchronous, and at the bus's full speed.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::Context;
use crate::fifo::reached;
use crate::{Moment, Result};

/// Blocks between two uses, by size, each with the command that used it last.
#[derive(Default)]
pub(crate) struct PinnedPool {
    free: Mutex<BTreeMap<usize, Vec<(Pinned, Moment)>>>,
    /// Bytes of all blocks, in use or not.
    bytes: AtomicUsize,
}

#[derive(Clone, Copy)]
struct Pinned(NonNull<u8>);

// SAFETY: an address of memory that its holder alone uses.
unsafe impl Send for Pinned {}

/// The smallest block: a page.
const SMALLEST: usize = 4096;

impl PinnedPool {
    /// Bytes of all blocks.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// A block of `bytes` bytes that no command uses any more.
    fn take(&self, bytes: usize) -> Option<Pinned> {
        let mut free = self.free.lock();
        let blocks = free.get_mut(&bytes)?;
        let found = blocks.iter().position(|(_, last)| reached(*last))?;
        Some(blocks.swap_remove(found).0)
    }

    fn give(&self, block: Pinned, bytes: usize, last: Moment) {
        self.free.lock().entry(bytes).or_default().push((block, last));
    }

    /// The blocks that no command uses any more, to be returned to the driver.
    pub(crate) fn take_idle(&self) -> Vec<NonNull<u8>> {
        let mut idle = Vec::new();
        self.free.lock().retain(|bytes, blocks| {
            let before = idle.len();
            idle.extend(blocks.extract_if(.., |(_, last)| reached(*last)).map(|(block, _)| block.0));
            self.bytes.fetch_sub(bytes * (idle.len() - before), Ordering::Relaxed);
            !blocks.is_empty()
        });
        idle
    }

    /// All blocks, to be returned to the driver.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = NonNull<u8>> + use<> {
        std::mem::take(self.free.get_mut()).into_values().flatten().map(|(block, _)| block.0)
    }
}

/// A pinned block in use by a copy. It goes back when dropped, and is used again once the copy has run.
pub(crate) struct Staged {
    context: Arc<Context>,
    block: Pinned,
    capacity: usize,
    len: usize,
    /// The command that uses it.
    last: Moment,
}

impl Staged {
    /// A block for the command at `moment`, which writes `len` bytes to it; the context is current.
    pub(crate) fn new(context: &Arc<Context>, len: usize, moment: Moment) -> Result<Self> {
        let capacity = len.next_power_of_two().max(SMALLEST);
        let block = match context.pinned.take(capacity) {
            Some(block) => block,
            None => {
                let new = Pinned(context.allocate_pinned(capacity)?);
                context.pinned.bytes.fetch_add(capacity, Ordering::Relaxed);
                new
            }
        };
        Ok(Staged { context: Arc::clone(context), block, capacity, len, last: moment })
    }

    /// A copy of `bytes` for the command at `moment`, which reads it; the context is current.
    pub(crate) fn of(context: &Arc<Context>, bytes: &[u8], moment: Moment) -> Result<Self> {
        let staged = Staged::new(context, bytes.len(), moment)?;
        // SAFETY: the block has room for `bytes`, and nobody else uses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), staged.as_ptr(), bytes.len()) };
        Ok(staged)
    }

    /// The command at `moment`, after all earlier ones, uses it too.
    pub(crate) fn used_at(&mut self, moment: Moment) {
        self.last = moment;
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.block.0.as_ptr()
    }

    /// The content.
    ///
    /// # Safety
    /// The command that writes it has run.
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the block has `len` bytes, and the command that writes them has run, which the caller guarantees.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.context.pinned.give(self.block, self.capacity, self.last);
    }
}
