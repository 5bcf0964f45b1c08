//! Profiles in the trace-event format that Perfetto and chrome://tracing open.

use std::ops::Range;
use std::path::Path;

use device::file::io_error;
use device::{CommandRecord, KernelRecord, Recording, Result, StreamId};
use serde_json::{Map, Value, json};

use super::averages::{place, shapes};
use super::profile::{Profile, Window};
use super::timeline::RecordingIndex;

impl Profile {
    /// Writes a [`Trace`] of this profile alone.
    ///
    /// # Errors
    /// `Io` if the file cannot be written.
    pub fn write_trace(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut trace = Trace::new();
        trace.add("streamgrad", self);
        trace.write(path)
    }
}

/// Profiles to be looked at side by side, for Perfetto or chrome://tracing.
///
/// Each is a process with a track for each stream, for each thread that replayed captured steps, and for each thread of the host. Arrows lead from a launch to its command, and from
/// what a stream waited for to what waited. Counters show the memory, and how many commands were launched and had not ended.
/// A slice's arguments are what is known of it: shapes, bytes, the line of the program, the grid of its kernels.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    events: Vec<Value>,
    processes: usize,
    arrows: usize,
}

/// The track on which steps are drawn. Streams come next, threads of the host behind them.
const STEPS: usize = 0;
const THREADS: usize = 1000;

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

impl Trace {
    /// A trace without profiles.
    pub fn new() -> Trace {
        Trace::default()
    }

    /// Writes [`to_json`](Self::to_json) to a file.
    ///
    /// # Errors
    /// `Io` if the file cannot be written.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        std::fs::write(path, self.to_json().to_string()).map_err(|error| io_error(path, error))
    }

    /// Adds a profile under a name.
    pub fn add(&mut self, name: &str, profile: &Profile) {
        self.processes += 1;
        let mut process =
            Process { pid: self.processes, profile, tracks: Vec::new(), origin: 0, steps: 0, trace: self };
        process.name("process_name", STEPS, name);
        process.name("thread_name", STEPS, "steps");
        for window in &profile.windows {
            process.window(window);
        }
    }

    /// The trace as JSON.
    pub fn to_json(&self) -> Value {
        json!({ "displayTimeUnit": "ns", "traceEvents": self.events })
    }
}

struct Process<'a> {
    pid: usize,
    profile: &'a Profile,
    /// The streams that have a track, and the threads that replayed captured steps for them.
    tracks: Vec<(StreamId, Option<u32>)>,
    /// When the recording began, on the trace's clock.
    origin: u64,
    /// Steps so far.
    steps: usize,
    trace: &'a mut Trace,
}

impl Process<'_> {
    fn window(&mut self, window: &Window) {
        let timeline = RecordingIndex::new(&window.recording);
        let recording = &window.recording;
        self.steps(recording, timeline.end_ns);
        for &stream in timeline.streams.keys() {
            self.track(stream, None);
        }
        for command in &recording.commands {
            self.command(recording, command);
        }
        self.host(recording);
        self.waits(&timeline);
        self.queued(recording);
        for sample in &window.memory {
            let values = json!({ "allocated": sample.allocated_bytes, "reserved": sample.reserved_bytes });
            self.counter("memory (bytes)", sample.at_ns, values);
        }
        self.origin += timeline.end_ns.max(recording.wall_ns);
    }

    /// The track of a stream, or of a thread that replays for it; it gets its name when it is seen first.
    fn track(&mut self, stream: StreamId, thread: Option<u32>) -> usize {
        let known = self.tracks.iter().position(|known| *known == (stream, thread));
        1 + known.unwrap_or_else(|| {
            self.tracks.push((stream, thread));
            let name = match self.profile.stream_name(stream) {
                name if name.ends_with(&stream.to_string()) => name,
                name => format!("{name} {stream}"),
            };
            let name = thread.map_or_else(|| name.clone(), |thread| replay_row(&name, thread));
            self.name("thread_name", self.tracks.len(), &name);
            self.tracks.len() - 1
        })
    }

    fn event(&mut self, mut event: Value, tid: usize, at_ns: u64) {
        event["pid"] = json!(self.pid);
        event["tid"] = json!(tid);
        event["ts"] = json!(us(self.origin + at_ns));
        self.trace.events.push(event);
    }

    fn name(&mut self, what: &str, tid: usize, name: &str) {
        self.event(json!({ "ph": "M", "name": what, "args": { "name": name } }), tid, 0);
    }

    fn slice(&mut self, tid: usize, name: &str, times: Range<u64>, args: Map<String, Value>) {
        let duration = us(times.end.saturating_sub(times.start));
        self.event(json!({ "ph": "X", "name": name, "dur": duration, "args": args }), tid, times.start);
    }

    fn counter(&mut self, name: &str, at_ns: u64, values: Value) {
        self.event(json!({ "ph": "C", "name": name, "args": values }), STEPS, at_ns);
    }

    fn steps(&mut self, recording: &Recording, end_ns: u64) {
        let whole = [end_ns];
        let ends = if recording.steps.is_empty() { &whole[..] } else { &recording.steps };
        let mut start = 0;
        for &end in ends {
            self.slice(STEPS, &format!("step {}", self.steps), start..end, Map::new());
            self.steps += 1;
            start = end;
        }
    }

    fn command(&mut self, recording: &Recording, command: &CommandRecord) {
        let tid = self.track(command.moment.stream, None);
        let times = command.start_ns..command.end_ns;
        self.slice(tid, command.op, times, arguments(recording, command));
        for part in &command.replayed {
            let tid = self.track(command.moment.stream, Some(part.thread));
            let args = [("command".to_owned(), json!(part.command))].into_iter().collect();
            self.slice(tid, part.op, part.start_ns..part.end_ns, args);
        }
        if (command.launch.thread as usize) < recording.threads.len() {
            let (thread, launch) = (THREADS + command.launch.thread as usize, command.launch);
            let times = launch.start_ns..launch.end_ns;
            self.slice(thread, &format!("launch {}", command.op), times, Map::new());
            self.arrow("launch", (thread, launch.start_ns), (tid, command.start_ns));
        }
    }

    fn host(&mut self, recording: &Recording) {
        for (thread, name) in recording.threads.iter().enumerate() {
            self.name("thread_name", THREADS + thread, &format!("host: {name}"));
        }
        for range in &recording.ranges {
            let tid = THREADS + range.thread as usize;
            self.slice(tid, &range.name, range.start_ns..range.end_ns, Map::new());
        }
        let line = |place: Option<u32>| {
            let place =
                place.map(|place| ("place".to_owned(), json!(recording.places[place as usize].to_string())));
            place.into_iter().collect()
        };
        for sync in &recording.syncs {
            let times = sync.start_ns..sync.end_ns;
            self.slice(THREADS + sync.thread as usize, sync.op, times, line(sync.place));
        }
        for call in &recording.driver_calls {
            let mut args: Map<String, Value> = line(call.place);
            args.insert("bytes".to_owned(), json!(call.bytes));
            let times = call.start_ns..call.end_ns;
            self.slice(THREADS + call.thread as usize, "memory from the driver", times, args);
        }
    }

    fn waits(&mut self, timeline: &RecordingIndex<'_>) {
        for at in 0..timeline.recording.commands.len() {
            for &awaited in timeline.awaited(at) {
                let (from, to) = (timeline.command(awaited), timeline.command(at));
                // An arrow's ends must lie inside their slices.
                let middle = from.start_ns + from.duration_ns() / 2;
                let from = (self.track(from.moment.stream, None), middle);
                let to = (self.track(to.moment.stream, None), to.start_ns);
                self.arrow("wait", from, to);
            }
        }
    }

    /// How far the host is ahead: commands that it has launched and that have not ended.
    fn queued(&mut self, recording: &Recording) {
        let launches = recording.commands.iter().map(|command| (command.launch.start_ns, 1));
        let ends = recording.commands.iter().map(|command| (command.end_ns, -1));
        let mut changes: Vec<(u64, i64)> = launches.chain(ends).collect();
        changes.sort_unstable();
        let mut ahead = 0;
        for (at, change) in changes {
            ahead += change;
            self.counter("launched, not ended", at, json!({ "commands": ahead }));
        }
    }

    fn arrow(&mut self, name: &str, from: (usize, u64), to: (usize, u64)) {
        self.trace.arrows += 1;
        let id = self.trace.arrows;
        self.event(json!({ "ph": "s", "cat": name, "name": name, "id": id }), from.0, from.1);
        self.event(json!({ "ph": "f", "bp": "e", "cat": name, "name": name, "id": id }), to.0, to.1);
    }
}

/// The name of the row of a thread that replays captured steps for a stream.
pub(super) fn replay_row(stream: &str, thread: u32) -> String {
    format!("{stream}, replay thread {thread}")
}

/// What is known of a command.
fn arguments(recording: &Recording, command: &CommandRecord) -> Map<String, Value> {
    let mut args = Map::new();
    let mut put = |name: &str, value: Value| args.insert(name.to_owned(), value);
    put("tick", json!(command.moment.tick));
    if command.launch.place.is_some() {
        put("place", json!(place(recording, command)));
    }
    if let Some(range) = command.launch.range {
        put("range", json!(recording.ranges[range as usize].name));
    }
    if !command.operands.is_empty() {
        put("shapes", json!(shapes(command)));
        put("dtype", json!(format!("{:?}", command.operands[0].dtype)));
    }
    if let Some(bytes) = command.kind.copied_bytes() {
        put("bytes", json!(bytes));
        put("GB/s", json!(bytes as f64 / command.duration_ns().max(1) as f64));
    }
    if !command.kernels.is_empty() {
        let of = |kernel: &KernelRecord| kernel_arguments(recording, kernel);
        put("kernels", command.kernels.iter().map(of).collect());
    }
    args
}

fn kernel_arguments(recording: &Recording, kernel: &KernelRecord) -> Value {
    let room = u64::from(recording.device.multiprocessor_threads).max(1);
    let resident = u64::from(kernel.blocks_per_multiprocessor) * u64::from(kernel.block_threads());
    json!({
        "name": kernel.name,
        "us": kernel.duration_ns.map(|ns| ns as f64 / 1e3),
        "grid": kernel.blocks,
        "block": kernel.threads,
        "registers": kernel.registers,
        "shared bytes": kernel.shared_bytes,
        "occupancy %": (100.0 * resident as f64 / room as f64).round(),
    })
}
