//! Causes that only a comparison of a serial with a concurrent schedule shows.

use super::super::profile::share;
use super::{Evidence, Facts, NOTABLE, mib, ms, sums};
use crate::quantiles::Quantiles;

/// What a comparison of two schedules of one step measured beside their recordings, for
/// [`diagnose_schedules`](super::diagnose_schedules).
#[derive(Clone, Debug, Default)]
pub struct Schedules {
    /// Streams of the concurrent schedule.
    pub streams: usize,
    /// Whether none of these streams needs data of another one.
    pub are_independent: bool,
    /// Host threads that run commands; `None` for a device with a processor of its own, which takes all streams at once.
    pub threads: Option<usize>,
    /// Steps that were measured.
    pub steps: usize,
    /// Milliseconds of a serial step.
    pub serial_ms: Quantiles,
    /// Milliseconds of a concurrent step, the median.
    pub concurrent_ms: f64,
    /// The part of these until the host had launched everything.
    pub launch_ms: f64,
    /// What other programs had of the machine meanwhile, where the system says so.
    pub others: Option<OtherPrograms>,
    /// How much faster the serial schedule is for having all threads.
    pub split_gain: f64,
    /// The share of busy time in which concurrent streams run at once.
    pub overlap: f64,
    /// Milliseconds of the [longest chain](crate::longest_chain_ms) of a concurrent step.
    pub chain_ms: f64,
    /// The best that a concurrent step could take.
    pub bound_ms: f64,
    /// How much longer a command takes beside other streams than alone.
    pub inflation: f64,
    /// Times that the host waits for the device in a step, of the schedule in which it waits more; one is at the end.
    pub host_syncs: f64,
    /// Allocations by the driver in the measured steps, of the schedule with more of them.
    pub driver_allocations: u64,
    /// The most memory that either schedule reserved.
    pub peak_reserved_bytes: usize,
}

/// The processors of the machine, and how many of them other programs had, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OtherPrograms {
    /// All processors.
    pub processors: f64,
    /// Those that other programs had.
    pub taken: f64,
}

/// A tenth of the serial steps, which all do the same, took this many times the median: other programs had the cores.
const DISTURBED: f64 = 1.5;
/// The least number of steps for which a tenth of them means something.
const MANY: usize = 20;
/// The machine is busy if other programs have more than this part of the processors that the threads could use.
const CROWDED: f64 = 0.15;
/// Streams run apart if less than this part of the busy time is overlap.
const APART: f64 = 0.2;

impl Schedules {
    /// How other programs were noticed.
    fn disturbance(&self) -> Option<String> {
        let threads = self.threads.unwrap_or(self.streams) as f64;
        let is_crowded = |others: &OtherPrograms| {
            others.taken > others.processors - (1.0 - CROWDED) * threads.min(others.processors)
        };
        if let Some(OtherPrograms { processors, taken }) = self.others.filter(is_crowded) {
            return Some(format!("other programs have {taken:.1} of the {processors} processors"));
        }
        let Quantiles { median, p90, .. } = self.serial_ms;
        (self.steps >= MANY && p90 > DISTURBED * median).then(|| {
            format!(
                "a tenth of the serial steps take {p90:.3} ms or more, the median is {median:.3} ms, as other programs have the cores \
                 meanwhile"
            )
        })
    }

    /// Whether streams hardly run at once, although each has a thread.
    fn are_apart(&self) -> bool {
        self.streams > 1
            && self.threads.is_some_and(|threads| self.streams <= threads)
            && self.overlap < APART
    }
}

impl Facts<'_> {
    /// Whether a lack of processors, not the host's own work, explains the time between commands.
    pub(super) fn lanes_are_apart(&self) -> bool {
        self.schedules.is_some_and(Schedules::are_apart)
    }

    /// Milliseconds of all steps on the default stream, beside others, and the op that takes most of them.
    fn outside_ms(&self) -> (f64, &'static str) {
        let default = self.default_stream().filter(|_| !self.side_streams().is_empty());
        let commands = default.into_iter().flat_map(|stream| self.work_of(stream));
        let ops = sums(commands.map(|(command, _)| (command.op, command.duration_ns())));
        (ms(ops.iter().map(|(_, ns, _)| ns).sum()), ops.first().map_or("", |(op, ..)| op))
    }
}

pub(super) fn busy(schedules: &Schedules) -> Option<Evidence> {
    let seen = schedules.disturbance()?;
    Some(Evidence::of_unknown_cost(format!("the machine is busy: {seen}")))
}

pub(super) fn hidden_syncs(schedules: &Schedules) -> Option<Evidence> {
    let hidden = schedules.host_syncs - 1.0;
    let text = format!("the host waits for the device {hidden:.1} times inside a step");
    (hidden > 0.01).then(|| Evidence::of_unknown_cost(text))
}

pub(super) fn driver_allocations(schedules: &Schedules) -> Option<Evidence> {
    let Schedules { driver_allocations: calls, peak_reserved_bytes, .. } = *schedules;
    let text = format!(
        "the allocator called the driver {calls} times after the warm-up; at most {:.1} MiB were reserved",
        mib(peak_reserved_bytes)
    );
    let advice = Some("warm up longer, or `reserve` that much before");
    (calls > 0).then(|| Evidence { advice, ..Evidence::of_unknown_cost(text) })
}

pub(super) fn lanes_apart(schedules: &Schedules) -> Option<Evidence> {
    let is_known = schedules.are_apart() && schedules.disturbance().is_none();
    let threads = schedules.threads.filter(|_| is_known)?;
    let text = format!(
        "the streams hardly ever run at once ({:.0} % of busy time) though there are {threads} threads. The cause is not known; it \
         happens where their threads share a core, as they do when another program keeps one busy",
        100.0 * schedules.overlap
    );
    Some(Evidence::of_unknown_cost(text))
}

pub(super) fn kernels_fill_device(schedules: &Schedules) -> Option<Evidence> {
    let (gain, streams) = (schedules.split_gain, schedules.streams.max(1));
    let threads = schedules.threads.filter(|_| streams > 1 && gain > 1.0 + NOTABLE)?;
    // More than the threads can explain was measured while something else ran.
    let most = (1.0 + NOTABLE) * threads as f64 / (threads / streams).max(1) as f64;
    if gain > most || schedules.disturbance().is_some() {
        return None;
    }
    let text = format!(
        "the serial schedule splits its kernels over {threads} threads and is {gain:.2}x as fast as on the share of one stream"
    );
    Some(Evidence::of_unknown_cost(text))
}

pub(super) fn inflation(facts: &Facts<'_>) -> Option<Evidence> {
    let Schedules { inflation, chain_ms, .. } = *facts.schedules.filter(|schedules| schedules.streams > 1)?;
    let cost_ms = facts.steps * chain_ms * (1.0 - 1.0 / inflation.max(1.0));
    let text = format!("beside the other streams a command takes {inflation:.2}x as long as alone");
    Some(Evidence::new(cost_ms, None, text))
}

pub(super) fn serial_part(facts: &Facts<'_>) -> Option<Evidence> {
    facts.schedules?;
    let (outside_ms, op) = facts.outside_ms();
    let text = format!(
        "merging gradients and stepping the optimizer take {:.3} ms of a step after the streams have joined ({:.0} %, mostly {op})",
        outside_ms / facts.steps,
        100.0 * share(outside_ms, facts.wall_ms)
    );
    Some(Evidence::new(outside_ms, None, text))
}

/// What takes the time of the concurrent step.
pub(super) fn limit(facts: &Facts<'_>, schedules: &Schedules) -> String {
    let Schedules { concurrent_ms, launch_ms, chain_ms, bound_ms, .. } = *schedules;
    let outside_ms = facts.outside_ms().0 / facts.steps;
    let lane_ms = (chain_ms - outside_ms).max(0.0);
    // What is less, or more than one step on each stream, says that something else was measured beside the kernels.
    let allowed = Some(share(schedules.serial_ms.median, bound_ms));
    let allowed = allowed.filter(|gain| (1.0..=schedules.streams as f64).contains(gain));
    let allowed =
        allowed.map(|gain| format!(". Kernels and copies alone would allow {gain:.2}x")).unwrap_or_default();
    if schedules.threads.is_none() {
        return format!(
            "of the concurrent step's {concurrent_ms:.3} ms, the host launches for {launch_ms:.3}; timed one by one, which makes short \
             ones longer, the kernels of the longest lane are {lane_ms:.3}, merge and optimizer {outside_ms:.3}{allowed}"
        );
    }
    let parts = [
        (lane_ms, "kernels of the longest lane"),
        (outside_ms, "merge and optimizer"),
        ((concurrent_ms - chain_ms).max(0.0), "launching, recording, joining and waiting for a core"),
    ];
    let largest = parts.iter().max_by(|a, b| a.0.total_cmp(&b.0)).map_or("", |part| part.1);
    let listed: Vec<String> = parts.iter().map(|(ms, what)| format!("{ms:.3} {what}")).collect();
    format!(
        "of the concurrent step's {concurrent_ms:.3} ms, {}; mostly the {largest}{allowed}",
        listed.join(", ")
    )
}
