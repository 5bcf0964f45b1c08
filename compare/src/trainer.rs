//! What runs the steps of a schedule: op by op, or by captured steps.

use std::time::Instant;

use autograd::ConcurrentBatches;
use device::{Order, Result};
use tensor::{Generator, GraphCache, GraphOptions, Tensors, with_generator};

use crate::CapturedReport;
use crate::program::{Outcome, Prepare, Work, copies};

/// Forms of batches that are kept: batches of click logs have one each.
const FORMS: usize = 8;

/// The state of a program, and what steps it. Steps run op by op or, for each form of batch that they meet, captured and replayed.
///
/// What [prepares](Prepare) batches is not captured.
pub(super) struct Trainer<'a, S, B> {
    pub(super) state: S,
    pub(super) lanes: ConcurrentBatches,
    work: Work<'a, S, B>,
    prepare: Prepare<'a, B>,
    graphs: Option<GraphCache<Vec<B>, Outcome>>,
    captured: CapturedReport,
    /// Random ops of step `i` draw from its fork `i`.
    generator: Generator,
    steps: u64,
    batches: u64,
}

impl<'a, S: Send + Sync, B: Tensors + Send> Trainer<'a, S, B> {
    /// Steps are captured if their order is given.
    pub(super) fn new(
        state: S,
        work: Work<'a, S, B>,
        prepare: Prepare<'a, B>,
        lanes: ConcurrentBatches,
        captured: Option<Order>,
        generator: Generator,
    ) -> Self {
        let options = |order| GraphOptions { order, ..GraphOptions::default() };
        let device = lanes.streams()[0].device();
        let graphs = captured.map(|order| GraphCache::new(device, options(order), FORMS));
        let captured = CapturedReport::default();
        Trainer { state, lanes, work, prepare, graphs, captured, generator, steps: 0, batches: 0 }
    }

    /// One step on batches as they come.
    pub(super) fn step(&mut self, batches: Vec<B>) -> Result<Outcome> {
        let first = self.batches;
        self.batches += batches.len() as u64;
        if self.graphs.is_some() {
            let batches = self.prepare.all(first, batches)?;
            return self.step_prepared(&batches);
        }
        let Trainer { state, lanes, work, prepare, .. } = self;
        let done = with_generator(self.generator.fork(self.steps), || {
            work.run(state, lanes, (first..).zip(batches), |(number, batch)| prepare.batch(number, batch))
        });
        self.steps += 1;
        done
    }

    /// One step on prepared batches.
    pub(super) fn step_prepared(&mut self, batches: &Vec<B>) -> Result<Outcome> {
        let Trainer { state, lanes, work, graphs, .. } = self;
        let mut step = |batches: &Vec<B>| work.run(state, lanes, copies(batches)?, Ok);
        let done = with_generator(self.generator.fork(self.steps), || match graphs {
            Some(graphs) => graphs.run(batches, step),
            None => step(batches),
        });
        self.steps += 1;
        done
    }

    /// Captures the step for batches like these, if steps are captured and this one is not yet; nothing is trained.
    pub(super) fn capture(&mut self, batches: &[B]) -> Result<()> {
        let Trainer { state, lanes, work, graphs: Some(graphs), captured, .. } = self else { return Ok(()) };
        let batches = self.prepare.all(self.batches, copies(batches)?)?;
        let start = Instant::now();
        let step = |batches: &Vec<B>| work.run(state, lanes, copies(batches)?, Ok);
        let (plan, is_fresh) = graphs.capture(&batches, step)?;
        if is_fresh {
            captured.plan = plan;
            captured.captures += 1;
            captured.capture_ms += start.elapsed().as_secs_f64() * 1e3;
        }
        Ok(())
    }

    /// What was captured; `None` if steps are not.
    pub(super) fn captured(&self) -> Option<CapturedReport> {
        self.graphs.is_some().then_some(self.captured)
    }
}
