//! How a pipeline goes on step by step: one thread launches every stage, each on the batch that is next for it.

use std::ops::Range;

use device::Placement;
use tensor::{Device, Generator, Result, Stream, next_key};

use super::around::Around;
use super::concurrent::{staged, streams};
use super::lines::{Item, Made, Stage, taken, through_all};

/// The batches under way from step to step.
pub(super) struct Progress {
    pub(super) groups: Vec<Range<usize>>,
    pub(super) streams: Vec<Stream>,
    /// The batch that each stream but the first takes next.
    waiting: Vec<Option<Made>>,
    /// What batches draw from; `None` where the next one is the first.
    generator: Option<Generator>,
    /// The number of the next batch.
    next: usize,
}

impl Progress {
    /// A stream for each group.
    pub(super) fn new(device: &Device, groups: Vec<Range<usize>>) -> Result<Progress> {
        // The thread that launches everything runs what the last stream gets, so workers run what comes before.
        let streams = streams(device, &staged(groups.len(), Placement::Worker))?;
        let waiting = groups.iter().skip(1).map(|_| None).collect();
        Ok(Progress { streams, groups, waiting, generator: None, next: 0 })
    }

    /// Whether the next batch is the first.
    pub(super) fn is_over(&self) -> bool {
        self.generator.is_none()
    }

    pub(super) fn under_way(&self) -> usize {
        self.waiting.iter().flatten().count()
    }

    /// What the last stage makes of the oldest batch; `None` if there is no batch.
    pub(super) fn step(
        &mut self,
        stages: &mut [Stage<'_>],
        batches: &mut dyn Iterator<Item = Item>,
    ) -> Option<Result<Item>> {
        let around = self.around();
        loop {
            let batch = self.take(batches);
            if batch.is_none() && self.under_way() == 0 {
                self.generator = None;
                return None;
            }
            if let Some(done) = self.launch(stages, &around, batch) {
                return Some(done.map(|(_, item)| item));
            }
        }
    }

    /// Takes batches until one waits for the last stream.
    pub(super) fn fill(&mut self, stages: &mut [Stage<'_>], batches: &mut dyn Iterator<Item = Item>) {
        let around = self.around();
        while let Some(None) = self.waiting.last()
            && let Some(batch) = self.take(batches)
        {
            self.launch(stages, &around, Some(batch));
        }
    }

    /// What the stages of one call run under. As in a run, all batches draw from one generator.
    fn around(&mut self) -> Around {
        let generator = *self.generator.get_or_insert_with(|| {
            let generator = Generator::current();
            next_key();
            self.next = 0;
            generator
        });
        Around::new(generator)
    }

    fn take(&mut self, batches: &mut dyn Iterator<Item = Item>) -> Option<Made> {
        let made = self.streams[0].scope(|| taken(batches, self.next))?;
        self.next += 1;
        Some(made)
    }

    /// Launches each group once: the first one on `batch`, the others on what waits for them. What comes out of the last one.
    fn launch(&mut self, stages: &mut [Stage<'_>], around: &Around, mut batch: Option<Made>) -> Option<Made> {
        for (at, group) in self.groups.iter().enumerate() {
            if at > 0 {
                std::mem::swap(&mut self.waiting[at - 1], &mut batch);
            }
            let mut through = through_all(around, &mut stages[group.clone()], group.start);
            batch = batch.map(|made| self.streams[at].scope(|| through(made)));
        }
        batch
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
