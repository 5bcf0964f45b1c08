//! The table of a profile: what was called how often, and how long it took on the host and on the device.

use std::collections::HashMap;
use std::fmt;

use device::{CommandRecord, KernelRecord, Recording};

use super::profile::{Profile, share};

/// By what calls are put together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Key {
    /// The op.
    #[default]
    Op,
    /// The range, each with all that is within it.
    Range,
    /// The op and the shapes that it was called with.
    Shape,
    /// The op and the line of the program.
    Place,
}

/// What a table is sorted by, the largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sort {
    /// The device's time, with what is within.
    #[default]
    DeviceTotal,
    /// The device's time, without.
    DeviceSelf,
    /// The host's time, with what is within.
    HostTotal,
    /// The host's time, without.
    HostSelf,
    /// The number of calls.
    Calls,
}

/// A row of the table. Times are milliseconds, of all calls together.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Average {
    /// The op or the range, with the shapes or the line if calls are put together by these.
    pub key: String,
    /// How often it was called.
    pub calls: usize,
    /// What it took of the host's threads: launching, or a range from its beginning to its end.
    pub host_total_ms: f64,
    /// The same without the ranges within a range.
    pub host_self_ms: f64,
    /// How long its commands ran.
    pub device_total_ms: f64,
    /// The same without those of the ranges within a range.
    pub device_self_ms: f64,
    /// How long its commands ran on average, or those of one call of a range.
    pub device_mean_ms: f64,
    /// `device_self_ms` as a part of that of all rows. What runs at once, as on streams and a replay's threads, adds up.
    pub share: f64,
    /// Bytes copied between memories.
    pub copied_bytes: usize,
}

/// The table, as data and printed.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Averages {
    /// The rows.
    pub rows: Vec<Average>,
}

impl Profile {
    /// What each op took; [`key_averages_by`](Self::key_averages_by) op.
    pub fn key_averages(&self) -> Averages {
        self.key_averages_by(Key::Op)
    }

    /// What was called how often and took how long, put together by `key`. Waits and events are left out. On a CPU, the commands
    /// of captured steps have rows of their own, `replay: ` and their op; the replay's own time is what is left.
    pub fn key_averages_by(&self, key: Key) -> Averages {
        let mut rows = Rows::default();
        for recording in self.recordings() {
            match key {
                Key::Range => rows.add_ranges(recording),
                Key::Op | Key::Shape | Key::Place => rows.add_ops(recording, key),
            }
        }
        rows.finish()
    }
}

impl Averages {
    /// The rows in another order.
    pub fn sorted_by(mut self, sort: Sort) -> Averages {
        let value = |row: &Average| match sort {
            Sort::DeviceTotal => row.device_total_ms,
            Sort::DeviceSelf => row.device_self_ms,
            Sort::HostTotal => row.host_total_ms,
            Sort::HostSelf => row.host_self_ms,
            Sort::Calls => row.calls as f64,
        };
        self.rows.sort_by(|a, b| value(b).total_cmp(&value(a)).then_with(|| a.key.cmp(&b.key)));
        self
    }

    /// The row of an op or a range.
    pub fn get(&self, key: &str) -> Option<&Average> {
        self.rows.iter().find(|row| row.key == key)
    }
}

/// Rows whose times are nanoseconds, which add up exactly.
#[derive(Default)]
struct Rows(HashMap<String, Average>);

impl Rows {
    fn row(&mut self, key: String) -> &mut Average {
        self.0.entry(key).or_default()
    }

    fn add_ops(&mut self, recording: &Recording, key: Key) {
        for command in recording.commands.iter().filter(|command| command.is_work()) {
            let name = match key {
                Key::Shape => format!("{} {}", command.op, shapes(command)),
                Key::Place => format!("{} at {}", command.op, place(recording, command)),
                Key::Op | Key::Range => command.op.to_owned(),
            };
            let (host, device) = (launch_ns(command) as f64, command.duration_ns() as f64);
            let row = self.row(name);
            row.calls += 1;
            row.host_total_ms += host;
            row.host_self_ms += host;
            row.device_total_ms += device;
            row.device_self_ms += device - command.replayed_ns() as f64;
            row.copied_bytes += command.kind.copied_bytes().unwrap_or(0);
            for part in &command.replayed {
                let row = self.row(format!("replay: {}", part.op));
                row.calls += 1;
                row.device_total_ms += part.duration_ns() as f64;
                row.device_self_ms += part.duration_ns() as f64;
            }
        }
    }

    fn add_ranges(&mut self, recording: &Recording) {
        let ranges = &recording.ranges;
        let around =
            |at: u32| std::iter::successors(Some(at as usize), |&at| Some(ranges[at].parent? as usize));
        for (at, range) in ranges.iter().enumerate() {
            let ns = range.end_ns.saturating_sub(range.start_ns) as f64;
            let mut outer = around(at as u32).skip(1).map(|at| &ranges[at]);
            let is_within_itself =
                outer.any(|outer| outer.thread == range.thread && outer.name == range.name);
            let row = self.row(range.name.to_string());
            row.calls += 1;
            row.host_total_ms += if is_within_itself { 0.0 } else { ns };
            row.host_self_ms += ns;
            let parent = range.parent.map(|parent| &ranges[parent as usize]);
            if let Some(parent) = parent.filter(|parent| parent.thread == range.thread) {
                self.row(parent.name.to_string()).host_self_ms -= ns;
            }
        }
        for command in recording.commands.iter().filter(|command| command.is_work()) {
            let Some(innermost) = command.launch.range else { continue };
            let (device, copied) = (command.duration_ns() as f64, command.kind.copied_bytes().unwrap_or(0));
            self.row(ranges[innermost as usize].name.to_string()).device_self_ms += device;
            // As above, a range within one of its own name counts once.
            let mut names: Vec<&str> = around(innermost).map(|at| &*ranges[at].name).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                let row = self.row(name.to_owned());
                row.device_total_ms += device;
                row.copied_bytes += copied;
            }
        }
    }

    fn finish(self) -> Averages {
        let whole: f64 = self.0.values().map(|row| row.device_self_ms).sum();
        let ms = |ns: f64| ns / 1e6;
        let rows = self.0.into_iter().map(|(key, row)| Average {
            key,
            host_total_ms: ms(row.host_total_ms),
            host_self_ms: ms(row.host_self_ms),
            device_total_ms: ms(row.device_total_ms),
            device_self_ms: ms(row.device_self_ms),
            device_mean_ms: ms(row.device_total_ms) / row.calls.max(1) as f64,
            share: share(row.device_self_ms, whole),
            ..row
        });
        Averages { rows: rows.collect() }.sorted_by(Sort::default())
    }
}

/// How long the host took to launch a command, without running and recording it.
pub(super) fn launch_ns(command: &CommandRecord) -> u64 {
    let launch = &command.launch;
    let whole = launch.end_ns.saturating_sub(launch.start_ns);
    let ran_within = launch.start_ns <= command.start_ns && command.end_ns <= launch.end_ns;
    let ran_ns = if ran_within { command.duration_ns() } else { 0 };
    whole.saturating_sub(ran_ns + launch.recorder_ns)
}

/// A kernel's name, of which no more than a line's worth: libraries' are C++ names with all arguments of templates.
pub(super) fn kernel_name(kernel: &KernelRecord) -> String {
    const LONGEST: usize = 64;
    match kernel.name.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &kernel.name[..end]),
        None => kernel.name.to_string(),
    }
}

/// The shapes of a command's operands, what is written behind an arrow: `[2, 3] [3, 4] -> [2, 4]`.
pub(super) fn shapes(command: &CommandRecord) -> String {
    let list = |write: bool| {
        let operands = command.operands.iter().filter(|operand| operand.write == write);
        operands.map(|operand| format!("{:?}", operand.shape)).collect::<Vec<_>>().join(" ")
    };
    match (list(false), list(true)) {
        (read, written) if read.is_empty() => written,
        (read, written) => format!("{read} -> {written}"),
    }
}

/// The line that launched a command.
pub(super) fn place(recording: &Recording, command: &CommandRecord) -> String {
    let place = command.launch.place.and_then(|place| recording.places.get(place as usize));
    place.map_or_else(|| "an unknown line".to_owned(), ToString::to_string)
}

impl fmt::Display for Averages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|row| row.key.chars().count()).max().unwrap_or(0).clamp(4, 72);
        writeln!(
            f,
            "{:width$} {:>7} {:>11} {:>11} {:>11} {:>11} {:>11} {:>7}",
            "", "calls", "device ms", "self ms", "mean ms", "host ms", "self ms", "share"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:width$} {:>7} {:>11.3} {:>11.3} {:>11.4} {:>11.3} {:>11.3} {:>5.1} %",
                row.key,
                row.calls,
                row.device_total_ms,
                row.device_self_ms,
                row.device_mean_ms,
                row.host_total_ms,
                row.host_self_ms,
                100.0 * row.share
            )?;
        }
        Ok(())
    }
}
