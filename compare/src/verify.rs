//! A program checked in one call: gradients, equal bits, waits of the host, memory.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use ::profile::{Finding, Table};
use allocator::DeviceMemory;
use autograd::{GradCheck, GradCheckReport, Var, gradcheck_leaves};
use device::{AtCaller, Device, DeviceKind, Error, ErrorKind, Place, Result, SyncDebug};
use tensor::{Generator, Tensor, Tensors, with_generator};

use crate::chosen::{Chosen, How};
use crate::program::{Program, Source, expect_one_number, next};
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

    /// Adds a finding about the line of the program that `at` is, or else about the checked program as a whole.
    fn add(&mut self, code: &'static str, at: Option<Line>, message: impl fmt::Display) {
        let text = match at {
            Some(_) => message.to_string(),
            None => format!("{message}; the check is at {}", AtCaller::location()),
        };
        let mut finding = Finding::new(code, text);
        let at = at.unwrap_or(AtCaller::location());
        finding.place = Some(Place { function: "".into(), file: at.file().into(), line: at.line() });
        self.findings.push(finding);
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
            self.add(code(&error), Some(error.location()), format!("{what}: {text}"));
        }
        None
    }
}

/// A line of the program.
type Line = &'static Location<'static>;

/// What kind of finding an error is.
fn code(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::GradientMismatch { .. } => "gradient",
        ErrorKind::GradientMissing { .. } => "cut-tape",
        ErrorKind::InputModified { .. } => "input-modified",
        ErrorKind::NotDeterministic { .. } | ErrorKind::GradientNotDeterministic { .. } => {
            "not-deterministic"
        }
        ErrorKind::NotFinite { .. } => "not-finite",
        ErrorKind::Captured { .. } => "not-captured",
        ErrorKind::Race { .. } => "race",
        ErrorKind::ScheduleDependent { .. } => "not-equal",
        _ => "error",
    }
}

/// Checks a step of any kind, as [`Comparison::verify`] does. Its gradients are not checked, as the printed table says: for that, give
/// a [`Comparison`] the `loss` and the `update` in place of the step.
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
#[derive::located]
pub fn verify<S: Send + Sync, E: Tensors>(
    device: &Device,
    options: VerifyOptions,
    setup: impl Fn(&Device) -> Result<S> + Send + Sync,
    step: impl Fn(&mut S) -> Result<E> + Send + Sync,
) -> Result<Verification> {
    let batches = |_: &Device, _| Ok(());
    Comparison::new(device).setup(setup).batches(batches).step(move |state, ()| step(state)).verify(options)
}

#[derive::located]
impl<'a, S: Send + Sync + 'a, B: Tensors + Send + 'static> Comparison<'a, S, B> {
    /// Checks the program, as a test suite would:
    ///
    /// | check | what is wrong |
    /// |---|---|
    /// | batches | others, or one that the loss modifies, when they are made again |
    /// | gradients | of the first batch's [`loss`](Self::loss): one that differs from the numeric derivative, a cut tape, a function or a gradient with other bits the second time; a whole [`step`](Self::step) has none that could be checked |
    /// | parameters | one of the [`model`](Self::model) that requires a gradient and gets none from any batch; a loss or a gradient that is not finite |
    /// | updates | a parameter with a gradient that steps leave as it is |
    /// | equal bits | losses, results or state that differ from the serial schedule's: in a second run, with one thread, and in all schedules of [`run`](Self::run), eager and captured; for lanes with the first command that gives another result |
    /// | explored | the same under other orders of the commands of the concurrent schedules |
    /// | host | reads within the step, which wait for the device |
    /// | memory | more allocated after each step, or the driver asked by each |
    /// | audit | commands that share memory and that nothing orders |
    ///
    /// # Errors
    /// As for [`run`](Self::run), where not even a serial step succeeds.
    pub fn verify(self, options: VerifyOptions) -> Result<Verification> {
        let Comparison { device, mut program, options: of_comparison, .. } = self;
        of_comparison.check()?;
        program.check()?;
        program.at = AtCaller::location();
        Error::require(options.steps > 0, "verify", "steps", "at least 1", options.steps)?;
        let chosen = Chosen::of(&program, &of_comparison);
        let program = Arc::new(program);
        let checked =
            Checked { program: &program, chosen, seed: of_comparison.seed, device: &device, options };
        let mut found = Verification::default();
        if let Some(left_out) = checked.program.left_out() {
            found.checks.push(("left out", left_out.message));
        }
        // Nothing more is to be seen of a program without the same batches each time, or without gradients.
        let left_out = match checked.batches(&mut found)? {
            false => Some("parameters, gradients, updates"),
            true => (!checked.gradients(&mut found)?).then_some("updates"),
        };
        if let Some(first) = left_out {
            found.checks.push(("not run", format!("{first}, equal bits, explored, host and memory, audit")));
            return Ok(found);
        }
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

    /// That each copy is given the same batches.
    fn batches(&self, found: &mut Verification) -> Result<bool> {
        let device = self.device.sibling(self.device.threads())?;
        let mut first = (self.program.batches)(&device)?;
        let mut second = (self.program.batches)(&device)?;
        for step in 0..self.options.steps {
            let tensors = |source: &mut Source<'a, B>| -> Result<Vec<Tensor>> {
                Ok(next(source, self.chosen.batches_per_step)?.shared()?.1)
            };
            let (first, second) = (tensors(&mut first)?, tensors(&mut second)?);
            let bytes = |tensor: &Tensor| Ok::<_, Error>((tensor.shape().to_vec(), tensor.to_bytes()?));
            let [first, second] =
                [first, second].map(|all| all.iter().map(bytes).collect::<Result<Vec<_>>>());
            let (first, second) = (first?, second?);
            let differs = first.iter().zip(&second).position(|(first, second)| first != second);
            if let Some(tensor) = differs.or((first.len() != second.len()).then_some(first.len())) {
                let text = format!(
                    "tensor {tensor} of the batches of step {step} has other bits when the batches are made again, so no two schedules can \
                     be compared; give what draws them a seed"
                );
                found.add("not-deterministic", None, text);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Of the losses of all steps' batches, and numeric derivatives of the first one. Returns whether steps can be run.
    fn gradients(&self, found: &mut Verification) -> Result<bool> {
        let Some(loss) = &self.program.loss else {
            let text = "not checked: a whole `step` runs its own backward pass; give its `loss` and `update` instead";
            found.checks.push(("gradients", text.into()));
            return Ok(true);
        };
        let device = self.device.sibling(self.device.threads())?;
        let mut trainer = Trainer::new(self.program, self.seed, How::Lanes(1), &device)?;
        let mut source = (self.program.batches)(&device)?;
        let named = self.program.parameters(&trainer.state);
        let (learning, frozen): (Vec<_>, Vec<_>) =
            named.into_iter().partition(|(_, var)| var.requires_grad());
        let mut learning = learning.into_iter().map(Learning::new).collect::<Result<Vec<_>>>()?;
        found.checks.push(("parameters", format!("{} that learn, {} frozen", learning.len(), frozen.len())));
        // Random ops draw the same numbers each time.
        let loss = |state: &S, batch: &B| {
            with_generator(Generator::new(self.seed), || Ok::<Var, Error>(loss(state, batch)?.0))
        };
        for step in 0..self.options.steps {
            let first = step * self.chosen.batches_per_step;
            let batches = next(&mut source, self.chosen.batches_per_step)?;
            let batches = trainer.prepare.all(first as u64, batches)?;
            for (number, batch) in (first..).zip(&batches) {
                let given = batch.shared()?.1;
                let versions = || given.iter().map(Tensor::version).collect::<Vec<_>>();
                let before = versions();
                let value = loss(&trainer.state, batch)?;
                let is_changed = versions() != before;
                if is_changed {
                    let text = format!("the loss{} modifies its batch in place", computed(&value));
                    found.add("input-modified", line(&value), text);
                }
                if is_changed || !expect_gradients(number, &value, &mut learning, &frozen, found)? {
                    return Ok(false);
                }
                if number == 0 {
                    self.derivatives(&|| loss(&trainer.state, batch), &learning, found);
                }
            }
            if self.program.update.is_some() {
                trainer.step_prepared(&batches)?;
            }
        }
        learning.retain(|one| !self.options.without_gradient.iter().any(|start| one.name.starts_with(start)));
        self.updates(&learning, found)?;
        Ok(true)
    }

    /// Those of the first batch's loss.
    fn derivatives(&self, loss: &dyn Fn() -> Result<Var>, learning: &[Learning], found: &mut Verification) {
        let checked: Vec<_> = learning.iter().filter(|one| one.has_gradient).collect();
        let checked: Vec<_> = checked.iter().map(|one| (one.name.clone(), one.parameter.clone())).collect();
        let done = if checked.is_empty() {
            let why = match learning {
                [] => "no `model` shows a parameter that learns",
                _ => "the first batch's loss gives none of the model's parameters a gradient",
            };
            format!("not checked: {why}")
        } else {
            match found.part("gradient", gradcheck_leaves(loss, &checked, self.options.gradients)) {
                Some(GradCheckReport { checked, undecided, .. }) => {
                    format!("{checked} derivatives of the first batch's loss, {undecided} undecided")
                }
                None => "wrong".to_owned(),
            }
        };
        found.checks.push(("gradients", done));
    }

    /// That parameters have gradients, and that steps change those that have one.
    fn updates(&self, learning: &[Learning], found: &mut Verification) -> Result<()> {
        for Learning { name, parameter, .. } in learning.iter().filter(|one| !one.has_gradient) {
            let text = format!("{name}{} requires a gradient and gets none", made(parameter));
            found.add("no-gradient", line(parameter), text);
        }
        if self.program.update.is_none() {
            return Ok(());
        }
        for Learning { name, parameter, before, .. } in learning.iter().filter(|one| one.is_nonzero) {
            if parameter.value().to_bytes()? == *before {
                let steps = self.options.steps;
                let text =
                    format!("{name}{} has a gradient and {steps} steps do not change it", made(parameter));
                found.add("not-updated", line(parameter), text);
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
            found.add(
                "nothing-compared",
                None,
                "steps give nothing, and the program shows no model and no state",
            );
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
            found.findings.push(Finding::new("hidden-sync", text));
        }
        let grows = |counts: &[u64]| counts[WARM_UP - 1..].windows(2).all(|pair| pair[0] < pair[1]);
        if grows(&allocated) {
            let grown = (allocated[steps - 1] - allocated[WARM_UP - 1]) / STEADY as u64;
            found.add("memory-grows", None, format!("each step leaves {grown} bytes more allocated"));
        } else if grows(&calls) {
            found.add("driver-allocation", None, "each step asks the driver for memory");
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
        found.part("audit", done);
        for hazard in audit.hazards() {
            let text = format!("nothing orders {} and {}", hazard.first, hazard.second);
            found.findings.push(Finding::new("unordered", text));
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

/// A parameter that requires a gradient.
struct Learning {
    name: String,
    parameter: Var,
    /// Its bytes before the first step.
    before: Vec<u8>,
    /// Whether some batch gave it one, and one that is not zero.
    has_gradient: bool,
    is_nonzero: bool,
}

impl Learning {
    fn new((name, parameter): (String, Var)) -> Result<Learning> {
        let before = parameter.value().to_bytes()?;
        Ok(Learning { name, parameter, before, has_gradient: false, is_nonzero: false })
    }
}

/// Notes which parameters the loss of a batch has gradients for. Returns whether it is one finite number with finite gradients.
fn expect_gradients(
    number: usize,
    loss: &Var,
    learning: &mut [Learning],
    frozen: &[(String, Var)],
    found: &mut Verification,
) -> Result<bool> {
    if found.part("loss", expect_one_number(loss)).is_none() {
        return Ok(false);
    }
    if !loss.requires_grad() {
        match (&*learning, frozen) {
            ([], [(name, parameter), ..]) => {
                let text =
                    format!("all {} parameters are frozen, first {name}{}", frozen.len(), made(parameter));
                found.add("no-gradient", line(parameter), text);
            }
            (learning, _) => {
                let first = learning.first();
                let to = first.map_or("a leaf".to_owned(), |one| one.name.clone() + &made(&one.parameter));
                let text =
                    format!("between the loss and {to} the tape is cut, as `detach` or `no_grad` does");
                found.add("cut-tape", None, text);
            }
        }
        return Ok(false);
    }
    let is_finite = |tensor: &Tensor| Ok::<_, Error>(numbers(tensor)?.iter().all(|x| x.is_finite()));
    if !is_finite(loss.value())? {
        let text = format!("the loss of batch {number}{} is not finite", computed(loss));
        found.add("not-finite", line(loss), text);
        return Ok(false);
    }
    let gradients = loss.backward()?;
    let before = found.findings.len();
    for one in learning {
        let Some(gradient) = gradients.get(&one.parameter) else { continue };
        if !is_finite(&gradient)? {
            let text = format!(
                "the gradient of {}{} has an element that is not finite, of batch {number}'s loss",
                one.name,
                made(&one.parameter)
            );
            found.add("not-finite", line(&one.parameter), text);
        }
        one.has_gradient = true;
        one.is_nonzero |= numbers(&gradient)?.iter().any(|x| *x != 0.0);
    }
    Ok(found.findings.len() == before)
}

/// The line that computed a value, or made a leaf.
fn line(value: &Var) -> Option<Line> {
    value.tape().last().map(|entry| entry.location)
}

/// Where a parameter was made.
fn made(parameter: &Var) -> String {
    line(parameter).map(|line| format!(", made at {line},")).unwrap_or_default()
}

/// Which op computed a value, where it was recorded.
fn computed(value: &Var) -> String {
    let tape = value.tape();
    tape.last().map(|entry| format!(", computed by {} at {},", entry.op, entry.location)).unwrap_or_default()
}

fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_dtype(device::DType::F64)?.to_vec()
}
