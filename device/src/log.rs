//! The log of a buffer's uses.

use smallvec::SmallVec;

use crate::fifo::reached;
use crate::{Moment, StreamId};

/// The last uses of a buffer.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) write: Moment,
    pub(crate) reads: SmallVec<[Moment; 2]>,
    /// How many reads of the host are under way.
    pub(crate) host_reads: u32,
}

impl Log {
    /// The moments that a use on `stream` must come after, those of `stream` itself left out.
    #[inline(always)]
    pub(crate) fn needs(&self, stream: StreamId, write: bool, mut need: impl FnMut(Moment)) {
        if self.write.stream != stream && self.write.tick > 0 {
            need(self.write);
        }
        if write && !self.reads.is_empty() {
            self.reads.iter().filter(|read| read.stream != stream).for_each(|&read| need(read));
        }
    }

    /// Logs a use, all needs of which are met or waited for.
    #[inline]
    pub(crate) fn record(&mut self, moment: Moment, write: bool) {
        if write {
            self.write = moment;
            if !self.reads.is_empty() {
                self.reads.clear();
            }
        } else if let Some(read) = self.reads.iter_mut().find(|read| read.stream == moment.stream) {
            *read = moment;
        } else {
            if self.reads.len() >= Self::MANY_READERS {
                self.reads.retain(|&mut read| !reached(read));
            }
            self.reads.push(moment);
        }
    }

    /// A use that the host cannot see to have passed.
    pub(crate) fn pending(&self) -> Option<Moment> {
        std::iter::once(&self.write).chain(&self.reads).copied().find(|&moment| !reached(moment))
    }

    pub(crate) fn begin_host_read(&mut self, moment: Moment) {
        self.host_reads += 1;
        self.record(moment, false);
    }

    /// Forgets the host's reads when the last of them ends; the newest stands for all.
    pub(crate) fn end_host_read(&mut self, host: StreamId) {
        self.host_reads -= 1;
        if self.host_reads == 0 {
            self.reads.retain(|read| read.stream != host);
        }
    }

    /// Forgets a write of the host, which has ended: nobody waits for it, whatever else the host is at.
    pub(crate) fn end_host_write(&mut self, moment: Moment) {
        if self.write == moment {
            self.write.tick = 0;
        }
    }

    /// Forgets a read that has passed; a newer one of its stream stays.
    pub(crate) fn forget_read(&mut self, passed: Moment) {
        self.reads.retain(|read| *read != passed);
    }

    /// Readers are forgotten once they have passed, but only when there are this many.
    const MANY_READERS: usize = 8;

    /// The last uses, of a log that will see no more.
    #[inline]
    pub(crate) fn last_uses(&mut self) -> &[Moment] {
        if self.write.tick == 0 {
            return &self.reads;
        }
        if self.reads.is_empty() {
            return std::slice::from_ref(&self.write);
        }
        if self.reads.iter().all(|read| read.stream != self.write.stream) {
            self.reads.push(self.write);
        }
        &self.reads
    }
}
