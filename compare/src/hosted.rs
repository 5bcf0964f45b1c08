//! The schedule whose batches the host prepares, and how it compares with the serial one.

use device::{Device, Result};

use super::captured::Differences;
use super::runner::Runner;
use super::{ScheduleReport, speedups};
use ::profile::{Quantiles, median};

/// How the schedule whose batches the host prepares compares with the serial one.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HostedReport {
    /// Median serial step over median step.
    pub speedup: f64,
    /// The same of each pair of neighbouring blocks.
    pub speedup_spread: Quantiles,
    /// Whether every loss of every batch has the same bits as in the serial schedule, as it must where the device is the host.
    pub identical_losses: bool,
    /// Whether every parameter has the same bits at the end as in the serial schedule.
    pub identical_parameters: bool,
    /// The most that a batch's loss differs from that in the serial schedule, as a part of it: what host and device round
    /// differently, and what training makes of that.
    pub loss_difference: f64,
}

/// What prepares batches before they are copied to the device: the device itself where it is the host, else all processors.
pub(super) fn host_of(device: &Device) -> Device {
    if device.runs_on_host() { device.clone() } else { Device::cpu() }
}

/// The report. What differs is no difference between schedules if two devices prepared the batches.
pub(super) fn report(
    serial: &Runner,
    hosted: Runner,
    on_host: bool,
    differences: &mut Differences,
) -> Result<ScheduleReport> {
    let mut rounded = Differences::default();
    let differences = if on_host { differences } else { &mut rounded };
    let [identical_losses, identical_parameters] = differences.add(serial, &hosted)?;
    let loss_difference = serial.largest_difference_in_losses(&hosted);
    let speedup_spread = speedups(serial, &hosted);
    let mut report = hosted.report();
    let speedup = median(serial.times_ms()) / report.step_ms.median;
    report.hosted = Some(HostedReport {
        speedup,
        speedup_spread,
        identical_losses,
        identical_parameters,
        loss_difference,
    });
    Ok(report)
}
