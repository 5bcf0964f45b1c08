//! What runs the steps of a schedule: op by op, or by captured steps.

use std::sync::Arc;
use std::time::Instant;

use autograd::{ConcurrentBatches, Lanes};
use device::{AtCaller, Device, Result};
use tensor::{Generator, GraphCache, GraphOptions, Tensors, with_generator};

use crate::CapturedReport;
use crate::chosen::How;
use crate::program::{Outcome, Prepare, Program};

/// Forms of batches that are kept: batches of click logs have one each.
const FORMS: usize = 8;

/// The state of a program, and what steps it. Steps run op by op or, for each form of batch that they meet, captured and replayed.
///
/// What [prepares](Prepare) batches is not captured.
pub(super) struct Trainer<'a, S, B> {
    pub(super) state: S,
    pub(super) lanes: ConcurrentBatches,
    pub(super) prepare: Prepare<'a, B>,
    program: Arc<Program<'a, S, B>>,
    graphs: Option<GraphCache<Vec<B>, Outcome>>,
    captured: CapturedReport,
    /// Random ops of step `i` draw from its fork `i`.
    generator: Generator,
    steps: u64,
    batches: u64,
}

impl<'a, S: Send + Sync, B: Tensors + Send> Trainer<'a, S, B> {
    /// The program's first state on `device`; its random values follow from the seed.
    pub(super) fn new(
        program: &Arc<Program<'a, S, B>>,
        seed: u64,
        how: How,
        device: &Device,
    ) -> Result<Self> {
        let root = Generator::new(seed);
        let setup = program.branched.as_ref().filter(|_| how == How::Branches).unwrap_or(&program.setup);
        let state = with_generator(root, || setup(device))?;
        let prepare = program.prepare.as_ref().map(|prepare| prepare(&state));
        let prepare = Prepare::new(prepare, device, root.fork(0));
        let lanes = if let How::Lanes(lanes) = how { lanes } else { 1 };
        let lanes = ConcurrentBatches::with_options(device, lanes, Lanes::Always)?;
        let options = |order| GraphOptions { order, ..GraphOptions::default() };
        let graphs = how.captured().map(|order| GraphCache::new(device, options(order), FORMS));
        let (program, captured, generator) = (Arc::clone(program), CapturedReport::default(), root.fork(1));
        Ok(Trainer { state, lanes, prepare, program, graphs, captured, generator, steps: 0, batches: 0 })
    }

    /// One step on batches as they come.
    pub(super) fn step(&mut self, batches: Vec<B>) -> Result<Outcome> {
        let first = self.batches;
        self.batches += batches.len() as u64;
        if self.graphs.is_some() {
            let batches = self.prepare.all(first, batches)?;
            return self.step_prepared(&batches);
        }
        let Trainer { state, lanes, program, prepare, .. } = self;
        let done = with_generator(self.generator.fork(self.steps), || {
            program.run(state, lanes, (first..).zip(batches), |(number, batch)| prepare.batch(number, batch))
        });
        self.steps += 1;
        done
    }

    /// One step on prepared batches.
    pub(super) fn step_prepared(&mut self, batches: &Vec<B>) -> Result<Outcome> {
        let Trainer { state, lanes, program, graphs, .. } = self;
        let _at = AtCaller::enter_at(program.at);
        let mut step = |batches: &Vec<B>| program.run(state, lanes, batches.shared()?.0, Ok);
        let done = with_generator(self.generator.fork(self.steps), || match graphs {
            Some(graphs) => graphs.run(batches, step),
            None => step(batches),
        });
        self.steps += 1;
        done
    }

    /// Captures the step for batches like these, if steps are captured and this one is not yet; nothing is trained.
    pub(super) fn capture(&mut self, batches: &Vec<B>) -> Result<()> {
        let Trainer { state, lanes, program, graphs: Some(graphs), captured, .. } = self else {
            return Ok(());
        };
        let batches = self.prepare.all(self.batches, batches.shared()?.0)?;
        let start = Instant::now();
        let step = |batches: &Vec<B>| program.run(state, lanes, batches.shared()?.0, Ok);
        let (plan, is_fresh) = graphs.capture(&batches, step)?;
        if is_fresh {
            captured.plan = plan;
            captured.captures += 1;
            captured.capture_ms += start.elapsed().as_secs_f64() * 1e3;
        }
        Ok(())
    }
}

impl<S, B> Trainer<'_, S, B> {
    /// What was captured; `None` if steps are not.
    pub(super) fn captured(&self) -> Option<CapturedReport> {
        self.graphs.is_some().then_some(self.captured)
    }
}
