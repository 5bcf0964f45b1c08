//! What was recorded, and the helpers of all that is computed from it.

use device::{Recording, StreamId};

use super::memory::MemorySample;
use super::timeline::RecordingIndex;

/// What a device did while a [`Profiler`](crate::Profiler) recorded it.
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
    pub(super) windows: Vec<Window>,
    pub(super) names: Vec<(StreamId, String)>,
}

/// One stretch of steps without a gap.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    pub(super) recording: Recording,
    pub(super) memory: Vec<MemorySample>,
}

impl Profile {
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

    /// The memory over time, by recording.
    pub fn memory(&self) -> impl Iterator<Item = &[MemorySample]> {
        self.windows.iter().map(|window| &*window.memory)
    }

    pub(super) fn timelines(&self) -> impl Iterator<Item = RecordingIndex<'_>> {
        self.recordings().map(RecordingIndex::new)
    }

    /// What a stream is called.
    pub(super) fn stream_name(&self, stream: StreamId) -> String {
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

pub(super) fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

pub(super) fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// The item of `list` that `is_same` accepts; added if there is none.
pub(super) fn entry<T>(list: &mut Vec<T>, is_same: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> &mut T {
    let known = list.iter().position(is_same);
    let at = known.unwrap_or_else(|| {
        list.push(new());
        list.len() - 1
    });
    &mut list[at]
}
