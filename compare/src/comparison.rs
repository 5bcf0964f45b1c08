//! A comparison of a program of the user's, from its closures to its report.

use std::sync::Arc;

use ::profile::{Finding, OtherPrograms, Schedules, diagnose, diagnose_schedules};
use autograd::{BatchResult, Gradients};
use device::{AtCaller, Device, ErrorKind, Result};
use models::Module;
use tensor::{Tensor, Tensors};

use crate::bound;
use crate::chosen::Chosen;
use crate::program::{Program, Source};
use crate::report::efficiency;
use crate::runner::two_steps;
use crate::schedules::{self, Differences, LOSS, ORDER, PARAMETER, RESULT, Runners};
use crate::{
    CompareOptions, ComparisonReport, Explore, ExploreReport, Limits, ScheduleReport, StepProfile, explore,
};

/// A step of any program, to be run one after the other and at once, side by side: times, equality bit for bit, and why it is not
/// faster.
///
/// The program is a few closures. [`setup`](Self::setup) makes its state, such as a model and an optimizer; [`batches`](Self::batches)
/// makes what a step is given. A step is the [`loss`](Self::loss) of each batch and an [`update`](Self::update) with the sum of the
/// gradients, or any other [`step`](Self::step). What is given decides on the schedules:
///
/// | schedule | needs |
/// |---|---|
/// | serial: in order, on the default stream | a `loss` or a `step` |
/// | lanes: the batches of a step at once, each on a stream | a `loss`; beside `prepare` or `branched`, several `batches_per_step` |
/// | stages: the next step's batches are prepared while this one trains | `prepare`, and a `loss` or a `step` |
/// | branches: two branches of the model at once | `branched` |
/// | host-prepared: batches are prepared on the CPU, and copied | `prepare` and `prepares_on_host` |
/// | captured, in the order of its stream and in that of its data; with stages, beside the next preparation | the step reads nothing on the host |
/// | other orders of the commands of two steps ([`explore`]) | the program works on a CPU |
///
/// Each schedule has a copy of the state, from the same `setup`, and the same batches. Losses, what else the steps give, and the
/// [`model`](Self::model) at the end must have the same bits in all of them. Steps are timed untraced, in alternating blocks, until
/// the blocks agree, three times at most; a short traced phase afterwards says where the time goes.
///
/// ```
/// use autograd::Var;
/// use compare::Comparison;
/// use device::{DType::F32, Device};
/// use models::{Forward, Module, Sgd, Optimizer, mlp, mse};
/// use tensor::{RandomKey, Tensor};
/// # use compare::CompareOptions;
/// # fn main() -> device::Result<()> {
/// let report = Comparison::new(&Device::best())
///     .setup(|dev| {
///         let model = mlp(&[8, 16, 1], 7, dev)?;
///         let sgd = Sgd::new(model.parameters(), 0.05)?;
///         Ok((model, sgd))
///     })
///     .batches(|dev, n| Tensor::randn(&[32, 8], F32, RandomKey { seed: 1, op: n }, dev))
///     .loss(|(model, _), x| mse(&model.forward(&Var::constant(x.clone()))?, &x.sum(&[1], true)?.into()))
///     .update(|(_, sgd), gradients| sgd.step(&gradients))
///     .model(|(model, _)| model)
/// #   .options(CompareOptions { steps: 4, warmup: 2, traced: 2, ..CompareOptions::default() })
///     .run()?;
/// assert!(report.is_identical());
/// println!("{report}");
/// # Ok(())
/// # }
/// ```
#[must_use = "a comparison does nothing until it is run"]
pub struct Comparison<'a, S = (), B = ()> {
    pub(super) device: Device,
    name: String,
    about: String,
    pub(super) options: CompareOptions,
    pub(super) program: Program<'a, S, B>,
    progress: Box<dyn FnMut(usize, usize) + 'a>,
}

impl<'a> Comparison<'a> {
    /// A comparison on `device`. On a CPU each schedule gets a device of its own of the same make, so that their statistics do not
    /// mix.
    pub fn new(device: &Device) -> Self {
        Comparison {
            device: device.clone(),
            name: "step".into(),
            about: "A step".into(),
            options: CompareOptions::default(),
            program: Program::new(
                Box::new(|_| Ok(())),
                Box::new(|_| Ok(Box::new(std::iter::repeat_with(|| Ok(()))))),
            ),
            progress: Box::new(|_, _| ()),
        }
    }

    /// What makes the state of a copy of the program, such as `(model, optimizer)`. Random values come from a generator of the
    /// comparison's seed, the same for each copy. Stands before [`batches`](Comparison::batches).
    pub fn setup<S>(self, setup: impl Fn(&Device) -> Result<S> + Send + Sync + 'a) -> Comparison<'a, S> {
        self.map(|program| {
            Program::new(Box::new(move |device| AtCaller::user(|| setup(device))), program.batches)
        })
    }
}

impl<'a, S> Comparison<'a, S> {
    /// What makes batch number `n`, counted from 0; stands behind [`setup`](Comparison::setup) and before what takes a batch. Making a
    /// batch is no part of a step. A step without batches is given `()`.
    pub fn batches<B>(
        self,
        batch: impl Fn(&Device, u64) -> Result<B> + Send + Sync + 'a,
    ) -> Comparison<'a, S, B> {
        let batch = Arc::new(batch);
        self.loader(move |device| {
            let (batch, device) = (Arc::clone(&batch), device.clone());
            Ok((0..).map(move |number| batch(&device, number)))
        })
    }

    /// The same with an iterator of batches, such as a [`DataLoader`](models::DataLoader) has; the same for each copy, and best
    /// endless, as steps that disagree are repeated.
    pub fn loader<B, I>(
        self,
        loader: impl Fn(&Device) -> Result<I> + Send + Sync + 'a,
    ) -> Comparison<'a, S, B>
    where
        I: Iterator<Item = Result<B>> + 'a,
    {
        let source = move |device: &Device| -> Result<Source<'a, B>> {
            Ok(Box::new(AtCaller::user(|| loader(device))?))
        };
        self.map(|program| program.with_batches(Box::new(source)))
    }
}

impl<'a, S, B> Comparison<'a, S, B> {
    fn map<T, C>(self, f: impl FnOnce(Program<'a, S, B>) -> Program<'a, T, C>) -> Comparison<'a, T, C> {
        let Comparison { device, name, about, options, program, progress } = self;
        Comparison { device, name, about, options, program: f(program), progress }
    }

    /// The loss of one batch, a [`Var`](autograd::Var), or `(Var, E)` with more tensors to compare, such as scores. Batches may be
    /// at once, so the state is shared.
    pub fn loss<R>(mut self, loss: impl Fn(&S, &B) -> Result<R> + Send + Sync + 'a) -> Self
    where
        R: BatchResult,
        R::Output: Tensors,
    {
        self.program.loss = Some(Box::new(move |state, batch| {
            let (loss, output) = AtCaller::user(|| loss(state, batch))?.into_parts();
            Ok((loss, output.shared()?.1))
        }));
        self
    }

    /// What is made of the sum of a step's gradients, most often an optimizer's step. Without it the gradients themselves are
    /// compared.
    pub fn update(mut self, update: impl Fn(&mut S, Gradients) -> Result<()> + Send + Sync + 'a) -> Self {
        self.program.update =
            Some(Box::new(move |state, gradients| AtCaller::user(|| update(state, gradients))));
        self
    }

    /// A whole step with one batch, in place of [`loss`](Self::loss) and [`update`](Self::update); what it gives is compared.
    pub fn step<E: Tensors>(mut self, step: impl Fn(&mut S, B) -> Result<E> + Send + Sync + 'a) -> Self {
        self.program.step =
            Some(Box::new(move |state, batch| Ok(AtCaller::user(|| step(state, batch))?.shared()?.1)));
        self
    }

    /// The model in the state: its parameters and buffers must be equal in the end.
    pub fn model(mut self, model: impl Fn(&S) -> &(dyn Module) + Send + Sync + 'a) -> Self {
        self.program.model = Some(Box::new(model));
        self
    }

    /// Further tensors of the state that must be equal in the end, under their names.
    pub fn state(mut self, state: impl Fn(&S) -> Vec<(String, Tensor)> + Send + Sync + 'a) -> Self {
        self.program.state = Some(Box::new(state));
        self
    }

    /// What comes before the part that learns, such as augmentation or a frozen encoder: makes of the state a function that
    /// prepares a batch, unrecorded, perhaps on another thread while the step before trains.
    pub fn prepare<P>(mut self, prepare: impl Fn(&S) -> P + Send + Sync + 'a) -> Self
    where
        P: Fn(B) -> Result<B> + Send + Sync + 'a,
    {
        self.program.prepare = Some(Box::new(move |state| {
            let prepare = AtCaller::user(|| prepare(state));
            Arc::new(move |batch| AtCaller::user(|| prepare(batch)))
        }));
        self
    }

    /// Compares with batches that the CPU prepares, too, before they are copied to the device.
    pub fn prepares_on_host(mut self) -> Self {
        self.program.on_host = true;
        self
    }

    /// What makes the state whose step runs two branches at once, as [`Device::concurrent`] does.
    pub fn branched(mut self, setup: impl Fn(&Device) -> Result<S> + Send + Sync + 'a) -> Self {
        self.program.branched = Some(Box::new(move |device| AtCaller::user(|| setup(device))));
        self
    }

    /// Numbers of the final state for the report, such as the accuracy on held-out data.
    pub fn metrics(mut self, metrics: impl Fn(&S) -> Result<Vec<(String, f64)>> + Send + Sync + 'a) -> Self {
        self.program.metrics = Some(Box::new(move |state| AtCaller::user(|| metrics(state))));
        self
    }

    /// How the comparison is run, and for how long.
    pub fn options(mut self, options: CompareOptions) -> Self {
        self.options = options;
        self
    }

    /// A name and one line for the report.
    pub fn titled(mut self, name: impl Into<String>, about: impl Into<String>) -> Self {
        (self.name, self.about) = (name.into(), about.into());
        self
    }

    /// Called from time to time with the number of finished steps and the total.
    pub fn progress(mut self, progress: impl FnMut(usize, usize) + 'a) -> Self {
        self.progress = Box::new(progress);
        self
    }
}

#[derive::located]
impl<'a, S: Send + Sync + 'a, B: Tensors + Send + 'static> Comparison<'a, S, B> {
    /// Runs all schedules.
    ///
    /// # Errors
    /// `InvalidArgument` for a program without a step, with two, or with too few batches, and as [`CompareOptions::check`]; those of
    /// the closures.
    pub fn run(self) -> Result<ComparisonReport> {
        let Comparison { device, name, about, options, mut program, mut progress } = self;
        options.check()?;
        program.check()?;
        program.at = AtCaller::location();
        let program = Arc::new(program);
        let chosen = Chosen::of(&program, &options);
        let mut runners = Runners::new(&program, &options, &chosen, &device)?;
        let others = runners.run(&options, &mut |done, total| AtCaller::user(|| progress(done, total)))?;

        let (threads, on_host) = (device.threads(), device.runs_on_host());
        let mut differences = Differences::default();
        let Runners { serial, concurrent, others: more, refused } = runners;
        let metrics = match &program.metrics {
            Some(measure) => concurrent.as_ref().map_or(&serial, |one| &one.runner).with_state(measure)?,
            None => Vec::new(),
        };
        let concurrent = match concurrent {
            Some(one) => Some((differences.report(&serial, one.runner, &program)?, one.alone.profile())),
            None => None,
        };
        let mut reports = Vec::new();
        for runner in more {
            reports.push(differences.report(&serial, runner, &program)?);
        }
        let explored = explored(&program, &options, &chosen, &mut differences);
        let has_results = serial.has_results();
        let serial = serial.report();
        let mut diagnosis: Vec<Finding> = differences.findings().collect();
        let host_threads = on_host.then_some(threads);
        let (limits, findings) = match &concurrent {
            Some((schedule, alone)) => {
                let (limits, findings) =
                    judged(&serial, schedule, alone, &chosen, (options.steps, host_threads, others));
                (Some(limits), findings)
            }
            None => (None, diagnose(&serial.recorded())),
        };
        diagnosis.extend(findings);
        diagnosis.extend(refused);
        diagnosis.extend(reports.iter().filter_map(|schedule| schedules::finding(schedule, on_host)));
        diagnosis.extend(explored.as_ref().err().cloned());
        diagnosis.extend(program.left_out());
        Ok(ComparisonReport {
            name,
            about,
            device: device.name(),
            threads,
            batches_per_step: chosen.batches_per_step,
            identical_losses: (!serial.losses.is_empty()).then(|| differences.is_equal(LOSS)),
            identical_results: has_results.then(|| differences.is_equal(RESULT)),
            identical_orders: (options.explored > 0).then(|| differences.is_equal(ORDER)),
            identical_parameters: program.shows_state().then(|| differences.is_equal(PARAMETER)),
            serial,
            concurrent: concurrent.map(|(schedule, _)| schedule),
            others: reports,
            limits,
            explored: explored.ok().flatten(),
            metrics,
            diagnosis,
            options,
        })
    }
}

/// What a concurrent schedule could reach, and why it does not. With the steps that were measured, the threads of a device that
/// is the host, and what other programs had meanwhile.
fn judged(
    serial: &ScheduleReport,
    concurrent: &ScheduleReport,
    alone: &StepProfile,
    chosen: &Chosen,
    (steps, threads, others): (usize, Option<usize>, Option<OtherPrograms>),
) -> (Limits, Vec<Finding>) {
    let (bound_ms, work_ms) = bound::bounds(serial, concurrent, alone, threads);
    let (serial_ms, concurrent_ms) = (serial.step_ms.median, concurrent.step_ms.median);
    let limits = Limits {
        bound_ms,
        work_ms,
        // Known as far as the speed-up is.
        efficiency: concurrent
            .gain
            .and_then(|gain| gain.speedup)
            .and_then(|_| efficiency(serial_ms, concurrent_ms, bound_ms)),
        inflation: bound::inflation(&concurrent.profile, alone),
        alone_ms: alone.wall_ms,
    };
    let schedules = Schedules {
        streams: concurrent.streams,
        are_independent: chosen.are_independent(),
        threads,
        steps,
        serial_ms: serial.step_ms,
        concurrent_ms,
        launch_ms: concurrent.launch_ms,
        others,
        // Both traced.
        split_gain: alone.wall_ms / serial.profile.wall_ms,
        overlap: concurrent.profile.overlap,
        chain_ms: concurrent.profile.critical_path_ms,
        bound_ms,
        inflation: limits.inflation,
        host_syncs: serial.host_syncs_per_step.max(concurrent.host_syncs_per_step),
        driver_allocations: serial.driver_allocations.max(concurrent.driver_allocations),
        peak_reserved_bytes: serial.peak_reserved_bytes.max(concurrent.peak_reserved_bytes),
    };
    let mut findings = diagnose_schedules(&concurrent.recorded(), &schedules);
    // The default stream has its part of the step before the branches and behind them.
    findings.retain(|finding| !chosen.has_branches() || finding.code != "default-stream");
    (limits, findings)
}

/// Tries out other orders of the commands of two steps. The finding says why there are none.
fn explored<'a, S: Send + Sync + 'a, B: Tensors + Send + 'static>(
    program: &Arc<Program<'a, S, B>>,
    options: &CompareOptions,
    chosen: &Chosen,
    differences: &mut Differences,
) -> std::result::Result<Option<ExploreReport>, Finding> {
    if options.explored == 0 {
        return Ok(None);
    }
    let seeds = 0..options.explored as u64;
    let run = |device: &Device| two_steps(program, options.seed, chosen, device);
    let found = explore(Explore { seeds, ..Explore::default() }, run);
    match found {
        Ok(report) => Ok(Some(report)),
        Err(error) if matches!(error.kind(), ErrorKind::ScheduleDependent { .. }) => {
            differences.add(ORDER, error.to_string());
            Ok(None)
        }
        Err(error) => Err(Finding::new("not-explored", format!("other orders were not tried out: {error}"))),
    }
}
