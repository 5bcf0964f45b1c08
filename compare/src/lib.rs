//! The same training on one stream and on several, side by side: times, equality, and why it is not faster.
//!
//! [`compare`] trains two copies of a [`Workload`] from the same first values over the same batches. The *serial* one
//! runs everything in order on the default stream and may use all threads for each kernel; the *concurrent* one runs at
//! once what the workload says ([`Overlap`]): the batches of a step on a lane each, two branches of one batch, or the
//! preparation of a batch beside the training on the one before. Both merge the gradients in batch order and take one
//! optimizer step, so losses and parameters must be equal bit for bit.
//!
//! Steps are timed untraced, in alternating blocks; a short traced phase afterwards says where the time goes. A third
//! copy, with one lane's threads and nobody beside it, says how long the commands take undisturbed.
//!
//! Where the host can do what comes before the part that learns ([`WorkloadInfo::prepares_on_host`]), one more copy has it do that, and
//! then copies the batch to the device and trains as the serial one does. The time of its steps has both in it; the batches of
//! the other schedules are on the device before a step begins.
//!
//! If asked, two more copies replay the serial schedule's step, captured once in the order of its stream and once in that of
//! its data ([`Order`](tensor::Order)), in the same blocks. What a step replays reads its batches from tensors that are filled before, within
//! the time of the step. A replay is one command of a recording. Where batches are prepared ahead, a third copy prepares the next one
//! beside the replay in the order of the data.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod bound;
mod divergence;
mod explore;
mod machine;
mod options;
mod profile;
mod report;
mod runner;
mod scale;
mod schedules;
mod step;
#[cfg(test)]
mod tests;
mod workload;

use device::Result;

pub use ::profile::{Finding, Quantiles};
use ::profile::{Schedules, diagnose_schedules};
pub use device::in_lane;
pub use divergence::{Divergence, WriteTrace, first_divergence};
pub use explore::{Explore, ExploreReport, explore, explore_all};
pub use options::CompareOptions;
pub use profile::{LaneProfile, OpProfile, StepProfile};
pub use report::{CapturedReport, Comparison, Gain, ScheduleReport};
pub use scale::Scale;
pub use step::Trainer;
pub use workload::{Evaluation, Model, Overlap, Workload, WorkloadInfo};

use machine::Ticks;
use report::efficiency;
use schedules::{Differences, Runners, speedups};

/// Runs `workload` on one stream and on several.
///
/// `progress` is told now and then how many of how many steps are done.
///
/// ```
/// use compare::{CompareOptions, compare};
/// # fn main() -> device::Result<()> {
/// let workload = workloads::find("two-batch")?;
/// let options = CompareOptions::new(workload, &device::Device::cpu());
/// let found = compare(workload, &CompareOptions { steps: 4, warmup: 2, traced: 2, ..options }, |_, _| ())?;
/// assert!(found.identical_losses && found.identical_parameters);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `InvalidArgument` for no streams, batch or steps, for a batch larger than the data, and for more than 256
/// streams; what the workload's ops answer.
pub fn compare(
    workload: &dyn Workload,
    options: &CompareOptions,
    mut progress: impl FnMut(usize, usize),
) -> Result<Comparison> {
    options.check(workload)?;
    let (train, test) = workload.data_for(options.batch, options.seed, &options.device)?;
    let mut runners = Runners::new(workload, &train, options)?;
    let total = options.warmup.saturating_add(options.steps).saturating_add(options.traced);
    let mut done = 0;
    progress(done, total);
    let mut advance = |steps: usize| {
        done += steps;
        progress(done, total);
    };
    for steps in blocks(options.warmup) {
        runners.each(|runner| runner.warm_up(steps))?;
        advance(steps);
    }
    let begin = Ticks::now();
    runners.each(|runner| {
        runner.begin();
        Ok(())
    })?;
    for steps in blocks(options.steps) {
        runners.each(|runner| runner.measure(steps))?;
        advance(steps);
    }
    runners.each(|runner| {
        runner.end();
        Ok(())
    })?;
    let others = begin.zip(Ticks::now()).and_then(|(begin, end)| begin.others_until(end));
    runners.alone.warm_up(options.warmup.min(8))?;
    for steps in blocks(options.traced) {
        runners.alone.trace(steps)?;
        runners.each(|runner| runner.trace(steps))?;
        advance(steps);
    }

    let (threads, on_host) = (options.device.threads(), options.device.runs_on_host());
    let Runners { serial, concurrent, alone, hosted, captured, refused } = runners;
    let mut differences = Differences::default();
    differences.add(&serial, &concurrent)?;
    // Batches that two devices prepared differ by rounding.
    let mut rounded = Differences::default();
    let of_hosted = if on_host { &mut differences } else { &mut rounded };
    let hosted = hosted.map(|runner| of_hosted.report(&serial, runner)).transpose()?;
    let captured = captured.into_iter().map(|runner| differences.report(&serial, runner));
    let captured: Vec<ScheduleReport> = captured.collect::<Result<_>>()?;
    let held_out = concurrent.evaluate(&test)?;
    let speedup_spread = speedups(&serial, &concurrent);
    let alone = alone.profile();
    let (serial, concurrent) = (serial.report(), concurrent.report());
    let (serial_ms, concurrent_ms) = (serial.step_ms.median, concurrent.step_ms.median);
    let host_threads = on_host.then_some(threads);
    let (bound_ms, work_ms) = bound::bounds(&serial, &concurrent, &alone, host_threads);
    let schedules = Schedules {
        streams: concurrent.streams,
        are_independent: workload.overlap() != Overlap::Stages,
        threads: host_threads,
        steps: serial.losses.len(),
        serial_ms: serial.step_ms,
        concurrent_ms,
        launch_ms: concurrent.launch_ms,
        others,
        // Both traced.
        split_gain: alone.wall_ms / serial.profile.wall_ms,
        overlap: concurrent.profile.overlap,
        chain_ms: concurrent.profile.critical_path_ms,
        bound_ms,
        inflation: bound::inflation(&concurrent.profile, &alone),
        host_syncs: serial.host_syncs_per_step.max(concurrent.host_syncs_per_step),
        driver_allocations: serial.driver_allocations.max(concurrent.driver_allocations),
        peak_reserved_bytes: serial.peak_reserved_bytes.max(concurrent.peak_reserved_bytes),
    };
    let mut diagnosis = differences.findings();
    diagnosis.extend(diagnose_schedules(&concurrent.recorded(), &schedules));
    // The default stream has its part of the step before the branches and behind them.
    diagnosis.retain(|finding| workload.overlap() != Overlap::Branches || finding.code != "default-stream");
    diagnosis.extend(refused);
    diagnosis.extend(captured.iter().filter_map(|schedule| schedules::finding(schedule, on_host)));
    Ok(Comparison {
        workload: workload.name(),
        device: options.device.name(),
        threads,
        options: options.clone(),
        scale: workload.scale(&options.device),
        batches_per_step: workload.overlap().batches(options.streams),
        speedup: serial_ms / concurrent_ms,
        speedup_spread,
        bound_ms,
        work_ms,
        efficiency: efficiency(serial_ms, concurrent_ms, bound_ms),
        inflation: schedules.inflation,
        alone_ms: alone.wall_ms,
        identical_losses: differences.losses.is_empty(),
        identical_parameters: differences.parameters.is_empty(),
        accuracy: held_out.accuracy,
        held_out_loss: held_out.loss,
        diagnosis,
        serial,
        concurrent,
        hosted,
        captured,
    })
}

/// Cuts `steps` into blocks, about twelve, none longer than 32.
fn blocks(steps: usize) -> impl Iterator<Item = usize> {
    let size = (steps / 12).clamp(1, 32);
    (0..steps).step_by(size).map(move |start| size.min(steps - start))
}
