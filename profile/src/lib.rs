//! Profiles: where the time of a program goes, on the host and on every stream.
//!
//! A [`Profiler`] records a device. What it gives, a [`Profile`], is the recordings as they are, and everything else is
//! computed from them: tables, the critical path, idle times with their causes, a trace, a diagnosis. [`report`] makes a page
//! of HTML of it, and [`benchmark`] times single calls.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod averages;
mod benchmark;
mod communication;
mod diagnosis;
mod idle;
mod options;
mod path;
mod quantiles;
pub mod report;
mod sections;
mod timeline;
mod trace;
mod what_if;

use device::{Device, Error, Recording, RecordingOptions, Result, StreamId};

pub use averages::{Average, Averages, Key, Sort};
pub use benchmark::{MeasuredPeaks, Timing, benchmark};
pub use communication::Communication;
pub use device::median;
pub use diagnosis::{Finding, OtherPrograms, Schedules, diagnose, diagnose_schedules};
pub use idle::{HostActivity, Idle, IdleCause, StreamIdle};
pub use options::{ProfileOptions, ProfileSchedule};
pub use path::{CriticalPath, Link, PathSegment, PathShare, longest_chain_ms};
pub use quantiles::Quantiles;
pub use timeline::Busy;
pub use trace::{MemorySample, Trace};
pub use what_if::Change;

use options::Phase;
use parking_lot::Mutex;
use timeline::Timeline;

/// What a device did while a [`Profiler`] recorded it.
///
/// ```
/// use profile::{Profile, ProfileOptions};
/// use tensor::{DType, Device, Tensor};
/// # fn main() -> tensor::Result<()> {
/// let dev = Device::cpu_with(Default::default());
/// let profiler = Profile::start(&dev, ProfileOptions::default())?;
/// for _ in 0..3 {
///     let x = profiler.range("make", || Tensor::ones(&[64, 64], DType::F32, &dev))?;
///     profiler.range("product", || x.matmul(&x))?;
///     profiler.step();
/// }
/// let profile = profiler.stop()?;
/// println!("{}", profile.key_averages()); // matmul: 3 calls, ..
/// println!("{}", profile.critical_path());
/// assert_eq!(profile.steps(), 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Profile {
    windows: Vec<Window>,
    names: Vec<(StreamId, String)>,
}

/// One stretch of steps without a gap.
#[derive(Clone, Debug, Default)]
struct Window {
    recording: Recording,
    memory: Vec<MemorySample>,
}

impl Profile {
    /// Records `dev` from now on, until the [`Profiler`] is stopped.
    ///
    /// Waits for what was launched before. While it records, each command takes more of the host, and two events of a CUDA device;
    /// see docs/profiling.md. Once there are steps, what follows the last one is left out.
    ///
    /// # Errors
    /// `InvalidArgument` if another profiler records the device: one at a time does.
    pub fn start(dev: &Device, options: ProfileOptions) -> Result<Profiler> {
        if !dev.claim_recordings() {
            let expected = "a device that no other profiler records";
            return Err(Error::invalid("Profile::start", "dev", expected, dev.name()));
        }
        let profiler = Profiler { device: dev.clone(), options, state: Mutex::default() };
        profiler.enter(Phase::Off, options.schedule.phase(0));
        Ok(profiler)
    }

    /// A profile of recordings that were made in another way, one after the other.
    pub fn of(recordings: impl IntoIterator<Item = Recording>) -> Profile {
        let window = |recording| Window { recording, memory: Vec::new() };
        Profile { windows: recordings.into_iter().map(window).collect(), names: Vec::new() }
    }

    /// Gives a stream a name, which tables and traces show.
    pub fn name_stream(&mut self, stream: StreamId, name: impl Into<String>) {
        self.names.retain(|(known, _)| *known != stream);
        self.names.push((stream, name.into()));
    }

    /// The recordings: one for each time that the schedule had recorded steps.
    pub fn recordings(&self) -> impl Iterator<Item = &Recording> {
        self.windows.iter().map(|window| &window.recording)
    }

    /// Steps that were recorded; a program that marks none is one step.
    pub fn steps(&self) -> usize {
        self.recordings().map(|recording| recording.steps.len().max(1)).sum()
    }

    /// Milliseconds from the beginning to the end of what was recorded.
    pub fn wall_ms(&self) -> f64 {
        self.timelines().map(|timeline| ms(timeline.end_ns)).sum()
    }

    fn timelines(&self) -> impl Iterator<Item = Timeline<'_>> {
        self.recordings().map(Timeline::new)
    }

    /// What a stream is called.
    fn stream_name(&self, stream: StreamId) -> String {
        if let Some((_, name)) = self.names.iter().find(|(known, _)| *known == stream) {
            return name.clone();
        }
        let is_default = |recording: &Recording| recording.device.default_stream == Some(stream);
        if self.recordings().any(is_default) {
            "default stream".to_owned()
        } else {
            format!("stream {stream}")
        }
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// The item of `list` that `is_same` accepts; added if there is none.
fn entry<T>(list: &mut Vec<T>, is_same: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> &mut T {
    let known = list.iter().position(is_same);
    let at = known.unwrap_or_else(|| {
        list.push(new());
        list.len() - 1
    });
    &mut list[at]
}

/// Records a device; see [`Profile::start`].
///
/// Dropped without [`stop`](Self::stop), it ends the recording.
#[derive(Debug)]
pub struct Profiler {
    device: Device,
    options: ProfileOptions,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Steps so far.
    steps: usize,
    windows: Vec<Window>,
    memory: Option<trace::MemoryClock>,
    has_ended: bool,
}

impl Profiler {
    /// Ends a step of the program, and begins the next one.
    ///
    /// At the ends of the schedule's phases the host waits for the device; errors of commands are left to who synchronises.
    pub fn step(&self) {
        self.device.mark_step();
        let before = {
            let mut state = self.state.lock();
            state.steps += 1;
            state.steps - 1
        };
        let schedule = self.options.schedule;
        if schedule.is_boundary(before) {
            self.enter(schedule.phase(before), schedule.phase(before + 1));
        }
    }

    /// Calls `f`, and gives a name to what it does. Ranges nest, and reach the lanes of
    /// `ConcurrentBatches` and the threads of a [`Team`](device::Team).
    pub fn range<R>(&self, name: &str, f: impl FnOnce() -> R) -> R {
        self.device.range(name, f)
    }

    /// Waits for the device, and gives what was recorded.
    ///
    /// # Errors
    /// `Async` if a command failed and that was not reported yet.
    pub fn stop(self) -> Result<Profile> {
        self.end();
        let windows = std::mem::take(&mut self.state.lock().windows);
        self.device.synchronize()?;
        Ok(Profile { windows, names: Vec::new() })
    }

    /// Records no more.
    fn end(&self) {
        let (steps, has_ended) = {
            let mut state = self.state.lock();
            (state.steps, std::mem::replace(&mut state.has_ended, true))
        };
        if !has_ended {
            self.enter(self.options.schedule.phase(steps), Phase::Off);
            self.device.give_recordings_back();
        }
    }

    /// Goes from one phase to the next.
    fn enter(&self, from: Phase, to: Phase) {
        let mut state = self.state.lock();
        if from != Phase::Off {
            let recording = self.device.stop_recording();
            let memory = state.memory.take().map(|clock| clock.samples(&self.device)).unwrap_or_default();
            // A program that marks no step is one.
            let has_step = !recording.steps.is_empty() || state.steps == 0;
            if from == Phase::Active && has_step {
                state.windows.push(Window { recording: up_to_last_step(recording), memory });
            }
        }
        if to != Phase::Off {
            state.memory = self.options.memory.then(|| trace::MemoryClock::start(&self.device));
            self.device.start_recording_with(RecordingOptions { places: self.options.places });
        }
    }
}

/// Without what began after the last step had ended.
fn up_to_last_step(mut recording: Recording) -> Recording {
    if let Some(&end) = recording.steps.last() {
        recording.commands.retain(|command| command.launch.start_ns <= end);
        recording.syncs.retain(|sync| sync.start_ns <= end);
        recording.driver_calls.retain(|call| call.start_ns <= end);
        recording.handoffs.retain(|handoff| handoff.at_ns <= end);
        // In the order in which they began, so that the numbers of the others stay.
        recording.ranges.retain(|range| range.start_ns <= end);
        recording.ranges.iter_mut().for_each(|range| range.end_ns = range.end_ns.min(end));
    }
    recording
}

impl Drop for Profiler {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
