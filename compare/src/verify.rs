//! A program checked in one call: gradients, equal bits, waits of the host, memory.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ::profile::{Finding, Table};
use allocator::DeviceMemory;
use autograd::{GradCheck, Gradients, Var, gradcheck_leaves};
use device::{Device, DeviceKind, Error, ErrorKind, Result, SyncDebug};
use tensor::{Generator, Tensor, Tensors, with_generator};

use crate::chosen::{Chosen, How};
use crate::program::{Program, Source, next};
use crate::runner::{Runner, two_steps};
use crate::schedules::Differences;
use crate::trainer::Trainer;
use crate::{Comparison, Divergence, Explore, WriteTrace, explore, explore_all, first_divergence};

/// What [`verify`] checks, and how much of it.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Steps of each schedule.
    pub steps: usize,
    /// Orders of the commands of two steps that are tried out on a CPU. Where there are few, all that make a difference are.
    pub explored: usize,
    /// How gradients are checked.
    pub gradients: GradCheck,
    /// Parameters that may be without a gradient, by the start of their names.
    pub without_gradient: Vec<String>,
}

impl Default for VerifyOptions {
    /// 4 steps, 20 orders, and 4 elements of each parameter.
    fn default() -> Self {
        let gradients = GradCheck { elements: 4, ..GradCheck::default() };
        VerifyOptions { steps: 4, explored: 20, gradients, without_gradient: Vec::new() }
    }
}

/// What [`verify`] found: a row for each check, and what is wrong. [`Display`](fmt::Display) prints both.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Verification {
    /// Each check, and what was done.
    pub checks: Vec<(&'static str, String)>,
    /// What is wrong, each at a line of the program where one is to blame.
    pub findings: Vec<Finding>,
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(2);
        self.checks.iter().for_each(|(name, done)| table.row([*name, done]));
        write!(f, "{table}")?;
        let is_clean = if self.findings.is_empty() { "nothing is wrong" } else { "wrong:" };
        writeln!(f, "{is_clean}")?;
        self.findings.iter().try_for_each(|finding| writeln!(f, "{finding}"))
    }
}

impl Verification {
    /// That nothing is wrong, for a test.
    ///
    /// # Panics
    /// With all that is wrong, if something is.
    #[track_caller]
    #[allow(clippy::panic, reason = "a test is to end here")]
    pub fn expect_clean(&self) {
        if !self.findings.is_empty() {
            panic!("{self}");
        }
    }

    fn add(&mut self, code: &'static str, message: impl Into<String>) {
        self.findings.push(Finding::new(code, message));
    }

    /// The result of a part of a check, or the finding that its error is.
    fn part<T>(&mut self, what: &str, result: Result<T>) -> Option<T> {
        let error = match result {
            Ok(done) => return Some(done),
            Err(error) => error,
        };
        // With the line. Most often the same for every schedule.
        let text = format!("{error:?}");
        if self.findings.iter().all(|known| !known.message.ends_with(&text)) {
            self.add(code(&error), format!("{what}: {text}"));
        }
        None
    }
}

/// What kind of finding an error is.
fn code(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::GradientMismatch { .. } => "gradient",
        ErrorKind::GradientMissing { .. } => "cut-tape",
        ErrorKind::InputModified { .. } => "input-modified",
        ErrorKind::NotDeterministic { .. } => "not-deterministic",
        ErrorKind::Captured { .. } => "not-captured",
        ErrorKind::Race { .. } => "race",
        ErrorKind::ScheduleDependent { .. } => "not-equal",
        _ => "error",
    }
}

/// Checks a step of any kind, as [`Comparison::verify`] does; it has no gradients to check.
///
/// ```
/// use compare::{VerifyOptions, verify};
/// use models::{Forward, Module, Optimizer, Sgd, mlp};
/// # fn main() -> device::Result<()> {
/// let setup = |dev: &device::Device| {
///     let model = mlp(&[4, 8, 1], 7, dev)?;
///     let sgd = Sgd::new(model.parameters(), 0.05)?;
///     Ok((model, sgd))
/// };
/// verify(&device::Device::best(), VerifyOptions::default(), setup, |(model, sgd)| {
///     let x = tensor::Tensor::randn(&[16, 4], device::DType::F32, None, sgd.parameters()[0].value().device())?;
///     let loss = model.forward(&x.into())?.square()?.mean(&[], false)?;
///     sgd.step(&loss.backward()?)?;
///     Ok(loss.value().clone())
/// })?
/// .expect_clean();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As for [`Comparison::verify`].
pub fn verify<S: Send + Sync, E: Tensors>(
    device: &Device,
    options: VerifyOptions,
    setup: impl Fn(&Device) -> Result<S> + Send + Sync,
    step: impl Fn(&mut S) -> Result<E> + Send + Sync,
) -> Result<Verification> {
    let batches = |_: &Device, _| Ok(());
    Comparison::new(device).setup(setup).batches(batches).step(move |state, ()| step(state)).verify(options)
}

impl<'a, S: Send + Sync + 'a, B: Tensors + Send + 'static> Comparison<'a, S, B> {
    /// Checks the program, as a test suite would:
    ///
    /// | check | what is wrong |
    /// |---|---|
    /// | gradients | one that differs from the numeric derivative, a cut tape, a function with other bits the second time |
    /// | parameters | one that requires a gradient and gets none, or an infinite one; for a [`model`](Self::model) |
    /// | updates | a parameter with a gradient that steps leave as it is, while they change others |
    /// | equal bits | losses, results or state that differ from the serial schedule's: in a second run, with one thread, and in all schedules of [`run`](Self::run), eager and captured; for lanes with the first command that gives another result |
    /// | explored | the same under other orders of the commands of the concurrent schedules |
    /// | host | reads within the step, which wait for the device |
    /// | memory | more allocated after each step, or the driver asked by each |
    /// | audit | commands that share memory and that nothing orders |
    ///
    /// # Errors
    /// As for [`run`](Self::run), where not even a serial step succeeds.
    pub fn verify(self, options: VerifyOptions) -> Result<Verification> {
        let Comparison { device, program, options: of_comparison, .. } = self;
        of_comparison.check()?;
        program.check()?;
        Error::require(options.steps > 0, "verify", "steps", "at least 1", options.steps)?;
        let chosen = Chosen::of(&program, &of_comparison);
        let program = Arc::new(program);
        let checked =
            Checked { program: &program, chosen, seed: of_comparison.seed, device: &device, options };
        let mut found = Verification::default();
        if let Some(left_out) = checked.program.left_out() {
            found.checks.push(("left out", left_out.message));
        }
        checked.gradients(&mut found)?;
        checked.equal_bits(&mut found)?;
        checked.explored(&mut found);
        checked.steady(&mut found)?;
        checked.audit(&mut found)?;
        Ok(found)
    }
}

/// A program, and how it is checked.
struct Checked<'p, 'a, S, B> {
    program: &'p Arc<Program<'a, S, B>>,
    chosen: Chosen,
    seed: u64,
    device: &'p Device,
    options: VerifyOptions,
}

impl<'a, S: Send + Sync + 'a, B: Tensors + Send + 'static> Checked<'_, 'a, S, B> {
    fn runner(&self, name: &'static str, how: How, threads: usize) -> Result<Runner<'a, S, B>> {
        self.runner_on(name, how, self.device.sibling(threads)?)
    }

    fn runner_on(&self, name: &'static str, how: How, device: Device) -> Result<Runner<'a, S, B>> {
        Runner::new(name, self.program, (self.seed, self.chosen.batches_per_step), how, device)
    }

    /// Of the first batch's loss.
    fn gradients(&self, found: &mut Verification) -> Result<()> {
        let Some(loss) = &self.program.loss else { return Ok(()) };
        let device = self.device.sibling(self.device.threads())?;
        let mut trainer = Trainer::new(self.program, self.seed, How::Lanes(1), &device)?;
        let mut source = (self.program.batches)(&device)?;
        let batch = trainer.prepare.all(0, next(&mut source, 1)?)?.swap_remove(0);
        // Random ops draw the same numbers each time.
        let loss = || with_generator(Generator::new(self.seed), || Ok(loss(&trainer.state, &batch)?.0));
        let value: Var = loss()?;
        let gradients = value.backward()?;
        check_finite("the loss", value.value(), found)?;
        let named = self.program.parameters(&trainer.state);
        let (mut learning, frozen): (Vec<_>, Vec<_>) =
            named.into_iter().partition(|(_, var)| var.requires_grad());
        self.parameters(&learning, &gradients, found)?;
        learning.retain(|(_, parameter)| gradients.get(parameter).is_some());
        let counts = format!("{} that learn, {} frozen", learning.len(), frozen.len());
        found.checks.push(("parameters", counts));
        if learning.is_empty() {
            return Ok(());
        }
        let checked = gradcheck_leaves(loss, &learning, self.options.gradients);
        let done = match found.part("gradient", checked) {
            Some(report) => format!("{} derivatives, {} undecided", report.checked, report.undecided),
            None => "wrong".to_owned(),
        };
        found.checks.push(("gradients", done));
        if self.program.update.is_none() {
            return Ok(());
        }
        learning.retain(|(name, _)| !self.may_lack_gradient(name));
        self.updates(&learning, &gradients, &mut trainer, &mut source, found)
    }

    fn may_lack_gradient(&self, name: &str) -> bool {
        self.options.without_gradient.iter().any(|start| name.starts_with(start))
    }

    /// That a few steps change all parameters with a gradient, if they change one.
    fn updates(
        &self,
        learning: &[(String, Var)],
        gradients: &Gradients,
        trainer: &mut Trainer<'a, S, B>,
        source: &mut Source<'a, B>,
        found: &mut Verification,
    ) -> Result<()> {
        let bytes = |(_, parameter): &(String, Var)| parameter.value().to_bytes();
        let before = learning.iter().map(bytes).collect::<Result<Vec<_>>>()?;
        for _ in 0..self.options.steps {
            trainer.step(next(source, self.chosen.batches_per_step)?)?;
        }
        let after = learning.iter().map(bytes).collect::<Result<Vec<_>>>()?;
        let still =
            learning.iter().zip(before.iter().zip(&after)).filter(|(_, (before, after))| before == after);
        let still: Vec<_> = still.map(|(named, _)| named).collect();
        for (name, parameter) in still.iter().filter(|_| still.len() < learning.len()) {
            let gradient = gradients.get(parameter).map(|gradient| numbers(&gradient)).transpose()?;
            if gradient.iter().flatten().any(|element| *element != 0.0) {
                let text = format!("{name} has a gradient and {} steps do not change it", self.options.steps);
                found.add("not-updated", text);
            }
        }
        Ok(())
    }

    /// That each parameter has a gradient, and a finite one.
    fn parameters(
        &self,
        learning: &[(String, Var)],
        gradients: &Gradients,
        found: &mut Verification,
    ) -> Result<()> {
        for (name, parameter) in learning {
            match gradients.get(parameter) {
                Some(gradient) => check_finite(&format!("the gradient of {name}"), &gradient, found)?,
                None if !self.may_lack_gradient(name) => {
                    found.add("no-gradient", format!("{name} requires a gradient and gets none"))
                }
                None => (),
            }
        }
        Ok(())
    }

    /// Of all schedules, for a few steps.
    fn equal_bits(&self, found: &mut Verification) -> Result<()> {
        let (steps, threads) = (self.options.steps, self.device.threads());
        let mut serial = self.runner("serial", How::Lanes(1), threads)?;
        serial.warm_up(steps)?;
        let single = (self.device.kind() == DeviceKind::Cpu && threads > 1).then_some((
            "one thread",
            How::Lanes(1),
            1,
        ));
        let chosen = self.chosen.concurrent.iter().chain(&self.chosen.others);
        let chosen = chosen.map(|&(name, how)| (name, how, threads));
        let all = [("a second run", How::Lanes(1), threads)].into_iter().chain(single).chain(chosen);
        let (mut differences, mut names) = (Differences::default(), vec!["serial"]);
        for (name, how, threads) in all {
            let mut run = || -> Result<bool> {
                let mut other = self.runner(name, how, threads)?;
                other.warm_up(steps)?;
                let equal = differences.compare(&serial, &other, self.program)?;
                Ok(equal.iter().all(|is_equal| *is_equal))
            };
            let Some(is_equal) = found.part(name, run()) else { continue };
            names.push(name);
            let is_traced = !is_equal && matches!(how, How::Lanes(_) | How::Captured(_));
            let first = is_traced.then(|| self.divergence(how, threads));
            if let Some(first) = first.flatten() {
                differences.add("command", format!("{name}: {first}"));
            }
        }
        if !serial.has_losses() && !serial.has_results() && !self.program.shows_state() {
            found.add("nothing-compared", "steps give nothing, and the program shows no model and no state");
        }
        found.findings.extend(differences.findings());
        found.checks.push(("equal bits", format!("{steps} steps: {}", names.join("; "))));
        Ok(())
    }

    /// Where a schedule first writes what the serial one does not.
    fn divergence(&self, how: How, threads: usize) -> Option<Divergence> {
        let trace = |how, threads| -> Result<WriteTrace> {
            let device = self.device.sibling(threads)?;
            WriteTrace::start(&device, false);
            let mut runner = self.runner_on("traced", how, device.clone())?;
            runner.warm_up(self.options.steps)?;
            WriteTrace::stop(&device)
        };
        first_divergence(&trace(How::Lanes(1), self.device.threads()).ok()?, &trace(how, threads).ok()?)
    }

    /// Of other orders of the commands of two steps.
    fn explored(&self, found: &mut Verification) {
        if self.options.explored == 0 {
            return;
        }
        let run = |device: &Device| two_steps(self.program, self.seed, &self.chosen, device);
        let seeds = |count| Explore { seeds: 0..count, ..Explore::default() };
        let many = || explore(seeds(self.options.explored as u64), run);
        let explored = explore(seeds(1), run).and_then(|one| match one.commands {
            0..=FEW_COMMANDS => match explore_all(MOST_ORDERS, run) {
                Err(error)
                    if matches!(error.kind(), ErrorKind::InvalidArgument { argument: "limit", .. }) =>
                {
                    many()
                }
                all => all,
            },
            _ => many(),
        });
        if let Some(report) = found.part("explored", explored) {
            let done = format!("{} schedules of {} commands", report.schedules, report.commands);
            found.checks.push(("explored", done));
        }
    }

    /// Of the serial schedule's steps: waits of the host, and memory, which on lanes depends on how they meet.
    fn steady(&self, found: &mut Verification) -> Result<()> {
        let device = self.device.sibling(self.device.threads())?;
        let mut trainer = Trainer::new(self.program, self.seed, How::Lanes(1), &device)?;
        let mut source = (self.program.batches)(&device)?;
        let (mut allocated, mut calls) = (Vec::new(), Vec::new());
        let mut reads: BTreeMap<String, u64> = BTreeMap::new();
        let steps = WARM_UP + STEADY;
        for _ in 0..steps {
            let batches = next(&mut source, self.chosen.batches_per_step)?;
            device.set_sync_debug(SyncDebug::Count);
            trainer.step(batches)?;
            for wait in device.hidden_syncs() {
                *reads.entry(format!("{} ({})", wait.place, wait.op)).or_default() += wait.count;
            }
            device.set_sync_debug(SyncDebug::Off);
            device.synchronize()?;
            let memory = device.memory_stats();
            calls.push(memory.driver_allocations);
            allocated.push(memory.allocated_bytes as u64);
        }
        for (place, count) in reads {
            let text = format!("the host waits for the device at {place}, {count} times in {steps} steps");
            found.add("hidden-sync", text);
        }
        let grows = |counts: &[u64]| counts[WARM_UP - 1..].windows(2).all(|pair| pair[0] < pair[1]);
        if grows(&allocated) {
            let grown = (allocated[steps - 1] - allocated[WARM_UP - 1]) / STEADY as u64;
            found.add("memory-grows", format!("each step leaves {grown} bytes more allocated"));
        } else if grows(&calls) {
            found.add("driver-allocation", "each step asks the driver for memory");
        }
        let done = format!("{steps} steps, {} bytes allocated", allocated[steps - 1]);
        found.checks.push(("host and memory", done));
        Ok(())
    }

    /// Of the order of the commands of two steps, on lanes where the program has them.
    fn audit(&self, found: &mut Verification) -> Result<()> {
        let device = self.device.sibling(self.device.threads())?;
        device.start_audit();
        let done = two_steps(self.program, self.seed, &self.chosen, &device);
        let done = done.and_then(|_| device.synchronize());
        let audit = device.stop_audit();
        done?;
        for hazard in audit.hazards() {
            found.add("unordered", format!("nothing orders {} and {}", hazard.first, hazard.second));
        }
        found.checks.push(("audit", format!("{} commands", audit.commands().count())));
        Ok(())
    }
}

/// Programs of so many commands are tried out in all orders that make a difference, if these are not more than so many.
const FEW_COMMANDS: usize = 16;
const MOST_ORDERS: usize = 200;

/// Steps before memory is to be steady, and steps in which it is.
const WARM_UP: usize = 4;
const STEADY: usize = 4;

/// That all elements are finite.
fn check_finite(what: &str, tensor: &Tensor, found: &mut Verification) -> Result<()> {
    if !numbers(tensor)?.iter().all(|value| value.is_finite()) {
        found.add("not-finite", format!("{what} has an element that is not finite"));
    }
    Ok(())
}

fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_dtype(device::DType::F64)?.to_vec()
}
