//! Why the lanes do not overlap better: rules over measured numbers.

use ::profile::Finding;

use super::facts::Facts;
use super::machine::Others;
use super::{CapturedReport, ScheduleReport};

/// The code of the finding that other programs disturbed the measurement.
pub(super) const BUSY: &str = "busy";

/// Part of a step below which a cause is not worth a word.
const NOTABLE: f64 = 0.08;

/// Every rule that applies, and last what takes the concurrent step's time.
pub(super) fn diagnose(facts: &Facts) -> Vec<Finding> {
    let rules = [
        busy,
        hidden_synchronisation,
        driver_calls,
        intruders,
        over_synchronisation,
        more_lanes_than_threads,
        lanes_apart,
        kernels_fill_the_device,
        imbalance,
        inflation,
        launch_bound,
        host_bound,
        serial_part,
    ];
    let mut findings: Vec<Finding> = rules.iter().filter_map(|rule| rule(facts)).collect();
    findings.push(limit(facts));
    findings
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn percent(part: f64, whole: f64) -> f64 {
    100.0 * share(part, whole)
}

/// So much longer than the median, a tenth of the steps of one stream, which all do the same, were kept waiting.
const DISTURBED: f64 = 1.5;
/// Fewer steps have no tenth to speak of.
const MANY: usize = 20;

/// Of the processors that the threads have work for, a part above this was others'.
const CROWDED: f64 = 0.15;

/// How other programs were noticed.
fn disturbance(facts: &Facts) -> Option<String> {
    let threads = facts.threads.unwrap_or(facts.lanes) as f64;
    let crowded =
        |others: &Others| others.taken > others.processors - (1.0 - CROWDED) * threads.min(others.processors);
    if let Some(Others { processors, taken }) = facts.others.filter(crowded) {
        return Some(format!("other programs have {taken:.1} of the {processors} processors"));
    }
    (facts.steps >= MANY && facts.serial_p90_ms > DISTURBED * facts.serial_ms).then(|| {
        format!(
            "a tenth of the serial steps take {:.3} ms or more, the median is {:.3} ms, as other programs have the cores \
             meanwhile",
            facts.serial_p90_ms, facts.serial_ms
        )
    })
}

fn busy(facts: &Facts) -> Option<Finding> {
    let seen = disturbance(facts)?;
    let message =
        format!("the machine is busy: {seen}; so the speed-up says little: measure again on an idle machine");
    Some(Finding::new(BUSY, message))
}

fn hidden_synchronisation(facts: &Facts) -> Option<Finding> {
    let hidden = facts.host_syncs - 1.0;
    (hidden > 0.01).then(|| {
        let message = format!(
            "the host waits for the device {hidden:.1} times inside a step; read results after the step instead"
        );
        Finding::new("hidden-sync", message)
    })
}

fn driver_calls(facts: &Facts) -> Option<Finding> {
    (facts.driver_allocations > 0).then(|| {
        let mib = facts.peak_reserved_bytes as f64 / f64::from(1 << 20);
        let message = format!(
            "the allocator called the driver {} times after the warm-up; warm up longer, or `reserve` {mib:.1} MiB before",
            facts.driver_allocations
        );
        Finding::new("driver-allocation", message)
    })
}

fn intruders(facts: &Facts) -> Option<Finding> {
    let (op, count) = facts.intruders.first()?;
    let message = format!(
        "{op} runs on the default stream while the lanes are at work, {count:.1} times a step; put it in a lane's scope"
    );
    (*count > 0.1).then(|| Finding::new("default-stream", message))
}

fn over_synchronisation(facts: &Facts) -> Option<Finding> {
    let (waiter, awaited, count) = facts.lane_waits.first()?;
    let message = format!(
        "one lane's {waiter} waits for another lane's {awaited}, {count:.1} times a step: the batches share what they write"
    );
    (*count > 0.1).then(|| Finding::new("over-synchronised", message))
}

fn more_lanes_than_threads(facts: &Facts) -> Option<Finding> {
    let threads = facts.threads.filter(|&threads| facts.lanes > threads)?;
    let message = format!(
        "{} lanes share {threads} thread{}: at most that many run at once",
        facts.lanes,
        if threads == 1 { "" } else { "s" }
    );
    Some(Finding::new("no-room", message))
}

/// Whether threads of their own do not make the lanes run at once.
fn are_apart(facts: &Facts) -> bool {
    facts.lanes > 1 && facts.threads.is_some_and(|threads| facts.lanes <= threads) && facts.overlap < 0.2
}

fn lanes_apart(facts: &Facts) -> Option<Finding> {
    let threads = facts.threads.filter(|_| are_apart(facts) && disturbance(facts).is_none())?;
    let message = format!(
        "the lanes hardly ever run at once ({:.0} % of busy time) though there are {threads} threads. Why is not known here; it is so \
         where their threads share a core, as they do when another program keeps one busy: measure again on an idle machine",
        100.0 * facts.overlap
    );
    Some(Finding::new("lanes-apart", message))
}

fn kernels_fill_the_device(facts: &Facts) -> Option<Finding> {
    let gain = facts.split_gain;
    let threads = facts.threads.filter(|_| facts.lanes > 1 && gain > 1.0 + NOTABLE)?;
    let message = format!(
        "the serial schedule splits its kernels over {threads} threads and is {gain:.2}x as fast as on a lane's share: \
         there is less room beside them"
    );
    Some(Finding::new("kernels-fill-device", message))
}

fn imbalance(facts: &Facts) -> Option<Finding> {
    let longest = facts.lanes_ms.iter().copied().fold(0.0, f64::max);
    let total: f64 = facts.lanes_ms.iter().sum();
    let mean = total / facts.lanes_ms.len().max(1) as f64;
    (facts.lanes > 1 && longest > mean * (1.0 + NOTABLE)).then(|| {
        let message = format!(
            "the lanes are uneven: the busiest has {longest:.3} ms of kernels, the mean is {mean:.3} ms; at most {:.2}x here",
            share(total, longest)
        );
        Finding::new("imbalance", message)
    })
}

fn inflation(facts: &Facts) -> Option<Finding> {
    (facts.lanes > 1 && facts.inflation > 1.0 + NOTABLE).then(|| {
        let message = format!(
            "beside the other lane a command takes {:.2}x as long as alone: the lanes share caches, memory and clock",
            facts.inflation
        );
        Finding::new("inflation", message)
    })
}

fn host_ms(facts: &Facts) -> f64 {
    (facts.concurrent_ms - facts.chain_ms).max(0.0)
}

/// Where a processor of its own runs the commands, the host is busy launching them.
fn launch_bound(facts: &Facts) -> Option<Finding> {
    (facts.threads.is_none() && share(facts.launch_ms, facts.concurrent_ms) > LAUNCH_BOUND).then(|| {
        let message = format!(
            "the host takes {:.3} of a step's {:.3} ms to launch its {:.0} commands, on a thread for each lane, and the \
             device waits for it: larger batches, or ops that do more at once, hide it",
            facts.launch_ms, facts.concurrent_ms, facts.launches
        );
        Finding::new("host-bound", message)
    })
}

/// Who spends this part of a step on launching waits for the device in none of it.
const LAUNCH_BOUND: f64 = 0.75;

fn host_bound(facts: &Facts) -> Option<Finding> {
    facts.threads?;
    let host_ms = host_ms(facts);
    (!are_apart(facts) && share(host_ms, facts.concurrent_ms) > 0.25).then(|| {
        let message = format!(
            "{:.0} % of a step passes between commands, {:.2} us for each of {:.0} launches in a row: larger batches hide it",
            percent(host_ms, facts.concurrent_ms),
            1e3 * share(host_ms, facts.chain_commands),
            facts.chain_commands
        );
        Finding::new("host-bound", message)
    })
}

fn serial_part(facts: &Facts) -> Option<Finding> {
    let part = share(facts.outside_ms, facts.concurrent_ms);
    (facts.lanes > 1 && part > NOTABLE).then(|| {
        let message = format!(
            "merging gradients and stepping the optimizer take {:.3} ms of a step after the lanes have joined ({:.0} %, \
             mostly {})",
            facts.outside_ms,
            100.0 * part,
            facts.outside_op
        );
        Finding::new("serial-part", message)
    })
}

fn limit(facts: &Facts) -> Finding {
    let lane_ms = (facts.chain_ms - facts.outside_ms).max(0.0);
    if facts.threads.is_none() {
        let message = format!(
            "of the concurrent step's {:.3} ms, the host launches for {:.3}; timed one by one, which makes short ones longer, \
             the kernels of the longest lane are {lane_ms:.3}, merge and optimizer {:.3}. Kernels and copies alone would allow {:.2}x",
            facts.concurrent_ms,
            facts.launch_ms,
            facts.outside_ms,
            share(facts.serial_ms, facts.bound_ms)
        );
        return Finding::new("limit", message);
    }
    let parts = [
        (lane_ms, "kernels of the longest lane"),
        (facts.outside_ms, "merge and optimizer"),
        (host_ms(facts), "launching, recording, joining and waiting for a core"),
    ];
    let largest = parts.iter().max_by(|a, b| a.0.total_cmp(&b.0)).map_or("", |part| part.1);
    let listed: Vec<String> = parts.iter().map(|(ms, what)| format!("{ms:.3} {what}")).collect();
    let message = format!(
        "of the concurrent step's {:.3} ms, {}; mostly the {largest}. Kernels and copies alone would allow {:.2}x",
        facts.concurrent_ms,
        listed.join(", "),
        share(facts.serial_ms, facts.bound_ms)
    );
    Finding::new("limit", message)
}

/// What a captured schedule gains, what its edges allow, and what a replay costs beside its commands.
pub(super) fn captured(schedule: &ScheduleReport, found: &CapturedReport, on_host: bool) -> Finding {
    let CapturedReport { plan, captures, capture_ms, speedup, speedup_spread, .. } = found;
    let step_ms = schedule.step_ms.median;
    let saved_ms = step_ms * (speedup - 1.0);
    let paid = if saved_ms > 0.0 {
        format!(", as long as {:.0} steps save", (capture_ms / saved_ms).ceil())
    } else {
        String::new()
    };
    let taken = match captures {
        1 => "The capture".to_owned(),
        _ => format!("{captures} captures, one for each form of batches,"),
    };
    let profile = &schedule.profile;
    let beside = if schedule.streams > 1 {
        format!(
            "The next batch is prepared beside it; the host takes {:.3} of a step's {step_ms:.3} ms to launch both",
            schedule.launch_ms
        )
    } else if on_host {
        format!(
            "Of a traced step's {:.3} ms, {:.3} are the replay, the rest prepares and copies the batches",
            profile.wall_ms,
            profile.mean_ms("replay").unwrap_or(0.0)
        )
    } else {
        format!(
            "The host takes {:.3} of a step's {step_ms:.3} ms to prepare and copy the batches and to launch the replay",
            schedule.launch_ms
        )
    };
    let message = format!(
        "{}: {speedup:.2}x the serial schedule (blocks of steps: {:.2} to {:.2}). A replay is one command, one slice of the \
         trace, that runs {} commands with {} edges, {} on the longest way; these allow at most {:.2}x by running at once. \
         {beside}. {taken} took {capture_ms:.1} ms{paid}",
        schedule.name,
        speedup_spread.p10,
        speedup_spread.p90,
        plan.commands,
        plan.edges,
        plan.critical_path,
        plan.gain,
    );
    Finding::new("captured", message)
}
