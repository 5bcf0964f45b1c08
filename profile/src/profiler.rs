//! Recording: which steps of a program go into a profile.

use device::{Device, Error, Recording, RecordingOptions, Result};
use parking_lot::Mutex;

use super::memory::MemoryClock;
use super::options::{Phase, ProfileOptions};
use super::profile::{Profile, Window};

impl Profile {
    /// Records `dev` from now on, until the [`Profiler`] is stopped.
    ///
    /// Waits for what was launched before. While it records, each command takes more of the host, and two events of a CUDA device;
    /// see docs/profiling.md. Once there are steps, what follows the last one is left out.
    ///
    /// # Errors
    /// `InvalidArgument` if another profiler records the device: one at a time does.
    pub fn start(dev: &Device, options: ProfileOptions) -> Result<Profiler> {
        let expected = "a device that no other profiler records";
        Error::require(dev.claim_recordings(), "Profile::start", "dev", expected, dev.name())?;
        let profiler = Profiler { device: dev.clone(), options, state: Mutex::default() };
        profiler.enter(Phase::Off, options.schedule.phase(0));
        Ok(profiler)
    }
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
    memory: Option<MemoryClock>,
    has_ended: bool,
}

impl Profiler {
    /// Ends a step of the program, and begins the next one.
    ///
    /// Where a phase of the schedule ends, the host waits for the device. Errors of commands are not returned here, but by the next
    /// call that synchronises.
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
            state.memory = self.options.memory.then(|| MemoryClock::start(&self.device));
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
