//! Whether a program gives the same results under every schedule that a device may choose.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use device::{Candidate, Choice, CpuConfig, Device, Error, ErrorKind, Policy, Result, Schedule};

use tensor::Tensor;

/// What [`explore`] tries.
#[derive(Clone, Debug)]
pub struct Explore {
    /// One schedule a seed. The seed decides the policy, too: in turn random, with priorities, starving one stream, and
    /// newest first.
    pub seeds: Range<u64>,
    /// Leaves out the wait with this number of those that the engine inserts, to see that the exploration notices.
    pub drop_wait: Option<usize>,
}

impl Default for Explore {
    /// 200 schedules.
    fn default() -> Self {
        Explore { seeds: 0..200, drop_wait: None }
    }
}

/// What an exploration found: one result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExploreReport {
    /// How many schedules were run, beside that of the program itself.
    pub schedules: usize,
    /// How many different orders of commands were among them.
    pub distinct_orders: usize,
    /// How many different results: always 1, or the exploration is an error.
    pub distinct_results: usize,
    /// Commands of the longest schedule.
    pub commands: usize,
}

/// Runs a program under many schedules and compares its results bit for bit with those of its own order.
///
/// Each run has a device of its own, on which commands run one at a time in an order that a policy picks, and fresh
/// memory is filled with a pattern. The program must be the same each time: it may depend on nothing but the device. The
/// commands of a replay run in an order that the seed picks among those that the plan's edges allow.
///
/// ```
/// use compare::{Explore, explore};
/// use tensor::Tensor;
/// let report = explore(Explore { seeds: 0..20, ..Explore::default() }, |device| {
///     let (a, b) = (device.new_stream()?, device.new_stream()?);
///     let x = Tensor::from_slice(&[1.0f32, 2.0], &[2], device)?;
///     let y = a.scope(|| x.add(&x))?;
///     Ok(vec![b.scope(|| y.mul(&x))?])
/// })?;
/// assert_eq!((report.schedules, report.distinct_results), (20, 1));
/// # Ok::<(), tensor::Error>(())
/// ```
///
/// # Errors
/// `ScheduleDependent` with the seed, the result that differs, and the shortest start of the schedule that
/// still makes it differ; whatever the program returns.
pub fn explore(options: Explore, program: impl Fn(&Device) -> Result<Vec<Tensor>>) -> Result<ExploreReport> {
    let expected = run(&program, Policy::OldestFirst, &[], None)?;
    let streams = expected.streams();
    let mut orders = HashSet::new();
    let mut report = ExploreReport { distinct_results: 1, ..ExploreReport::default() };
    for seed in options.seeds.clone() {
        let policy = match seed % 8 {
            0..=3 => Policy::Random { seed },
            4 | 5 => Policy::Priorities { seed },
            6 => Policy::Starve { stream: (seed / 8) as usize % streams, seed },
            _ if seed == 7 => Policy::NewestFirst,
            _ => Policy::Starve { stream: 0, seed },
        };
        let found = run(&program, policy, &[], options.drop_wait)?;
        agree(&program, &expected, &found, seed, options.drop_wait)?;
        report.schedules += 1;
        report.commands = report.commands.max(found.choices.len());
        orders.insert(found.order());
    }
    report.distinct_orders = orders.len();
    Ok(report)
}

/// Runs a small program under every schedule that could make a difference and compares its results bit for bit. Orders
/// that differ only in commands that do not touch the same memory are not told apart. A replay is one command here.
///
/// # Errors
/// As for [`explore`], with the number of the schedule for a seed; `InvalidArgument` if there are more than
/// `limit` schedules.
pub fn explore_all(limit: usize, program: impl Fn(&Device) -> Result<Vec<Tensor>>) -> Result<ExploreReport> {
    let expected = run(&program, Policy::OldestFirst, &[], None)?;
    let mut report = ExploreReport { distinct_results: 1, ..ExploreReport::default() };
    let mut frames: Vec<Frame> = Vec::new();
    let mut orders = HashSet::new();
    loop {
        let prefix: Vec<usize> = frames.iter().map(Frame::stream).collect();
        let found = run(&program, Policy::OldestFirst, &prefix, None)?;
        agree(&program, &expected, &found, report.schedules as u64, None)?;
        report.schedules += 1;
        report.commands = report.commands.max(found.choices.len());
        orders.insert(found.order());
        for choice in found.choices.into_iter().skip(frames.len()) {
            let asleep = frames.last().map(Frame::asleep_after).unwrap_or_default();
            frames.push(Frame { choice, done: Vec::new(), asleep });
        }
        while frames.last_mut().is_some_and(|frame| !frame.advance()) {
            frames.pop();
        }
        if frames.is_empty() {
            report.distinct_orders = orders.len();
            return Ok(report);
        }
        let is_valid = report.schedules < limit;
        Error::require(is_valid, "explore_all", "limit", "at least the number of schedules", limit)?;
    }
}

/// One decision on the way of [`explore_all`], and what is left to try there.
///
/// A command that was tried here need not be tried again further on until something that it conflicts with has run:
/// it sleeps (Godefroid, Partial-Order Methods for the Verification of Concurrent Systems, 1996).
struct Frame {
    choice: Choice,
    done: Vec<usize>,
    asleep: Vec<Candidate>,
}

impl Frame {
    fn taken(&self) -> &Candidate {
        &self.choice.candidates[self.choice.taken]
    }

    fn stream(&self) -> usize {
        self.taken().stream
    }

    /// What sleeps after the command taken here.
    fn asleep_after(&self) -> Vec<Candidate> {
        let tried = self.done.iter().map(|&at| &self.choice.candidates[at]);
        let awake = |candidate: &&Candidate| !candidate.conflicts(self.taken());
        self.asleep.iter().chain(tried).filter(awake).cloned().collect()
    }

    /// Takes the next command worth trying; false if there is none.
    fn advance(&mut self) -> bool {
        self.done.push(self.choice.taken);
        let asleep = |candidate: &Candidate| {
            self.asleep.iter().any(|other| (other.stream, other.tick) == (candidate.stream, candidate.tick))
        };
        let mut all = self.choice.candidates.iter().enumerate();
        let next = all.find(|(at, candidate)| !self.done.contains(at) && !asleep(candidate));
        let next = next.map(|(at, _)| at);
        self.choice.taken = next.unwrap_or(self.choice.taken);
        next.is_some()
    }
}

/// What one schedule gave.
struct Outcome {
    results: Vec<Vec<u8>>,
    choices: Vec<Choice>,
}

impl Outcome {
    /// Which result differs.
    fn differs(&self, other: &Outcome) -> Option<usize> {
        let longer = self.results.len().max(other.results.len());
        (0..longer).find(|&at| self.results.get(at) != other.results.get(at))
    }

    fn commands(&self) -> impl Iterator<Item = &Candidate> {
        self.choices.iter().map(|choice| &choice.candidates[choice.taken])
    }

    fn order(&self) -> Vec<usize> {
        self.commands().map(|command| command.stream).collect()
    }

    fn streams(&self) -> usize {
        self.commands().map(|command| command.stream + 1).max().unwrap_or(1)
    }

    fn describe(&self, commands: usize) -> String {
        let names: Vec<_> =
            self.commands().take(commands).map(|c| format!("{}:{}", c.stream, c.op)).collect();
        names.join(" ")
    }
}

fn run(
    program: &impl Fn(&Device) -> Result<Vec<Tensor>>,
    policy: Policy,
    prefix: &[usize],
    drop_wait: Option<usize>,
) -> Result<Outcome> {
    let config = CpuConfig {
        threads: Some(1),
        schedule: Schedule::Explore(policy),
        choices: Arc::from(prefix),
        drop_wait,
        ..CpuConfig::default()
    };
    let device = Device::cpu_with(config);
    let tensors = program(&device)?;
    device.synchronize()?;
    let results = tensors.iter().map(Tensor::to_bytes).collect::<Result<_>>()?;
    Ok(Outcome { results, choices: device.choices() })
}

/// Fails if two outcomes differ, with the shortest start of the schedule that still makes them differ.
fn agree(
    program: &impl Fn(&Device) -> Result<Vec<Tensor>>,
    expected: &Outcome,
    found: &Outcome,
    seed: u64,
    drop_wait: Option<usize>,
) -> Result<()> {
    let Some(output) = expected.differs(found) else { return Ok(()) };
    let order = found.order();
    let mut shortest = order.len();
    for commands in 0..order.len().min(MOST_TRIES) {
        let tried = run(program, Policy::OldestFirst, &order[..commands], drop_wait)?;
        if expected.differs(&tried).is_some() {
            shortest = commands;
            break;
        }
    }
    Err(Error::new(ErrorKind::ScheduleDependent {
        seed,
        output,
        expected: expected.describe(shortest.max(1)).into(),
        found: found.describe(shortest.max(1)).into(),
    }))
}

/// Schedules that are run to shorten one that fails.
const MOST_TRIES: usize = 500;
