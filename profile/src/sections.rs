//! Profiles on a [`Report`].

use std::ops::Range;

use device::{CommandRecord, Recording, StreamId};

use super::averages::{Average, kernel_name, place, shapes};
use super::diagnosis::{Finding, diagnose};
use super::idle::IdleCause;
use super::memory::MemorySample;
use super::path::{Link, PathShare};
use super::profile::{Profile, entry, ms};
use super::timeline::RecordingIndex;
use super::trace::replay_row;
use crate::report::{Bars, Line, Plot, Report, Slice, Timeline};

/// Commands that are drawn, at most: those of the last steps.
const DRAWN: usize = 20_000;

/// Kinds of a stream's idle time that have a part of their own; the others are one.
const IDLE_KINDS: usize = 6;

impl Report {
    /// Adds all that a profile says: what ran when with the critical path, why streams were idle, the memory, the table of ops, and
    /// the diagnosis.
    #[must_use]
    pub fn profile(self, name: &str, profile: &Profile) -> Report {
        let note = |finding: Finding| (finding.code.to_owned(), finding.message);
        let report = self
            .timeline(profile.drawing(name))
            .bars(Bars { title: format!("Streams: {name}"), unit: "ms".into(), rows: profile.idle_rows("") })
            .notes(format!("Diagnosis: {name}"), diagnose(profile).into_iter().map(note).collect());
        let report = match profile.memory_plot(name) {
            Some(plot) => report.plot(plot),
            None => report,
        };
        report
            .table(format!("Critical path: {name}"), profile.path_table())
            .table(format!("Ops: {name}"), profile.op_table())
    }
}

/// A row for each stream, and for each thread that replayed captured steps for it.
fn drawn_rows(timeline: &RecordingIndex<'_>) -> Vec<(StreamId, Option<u32>)> {
    let mut rows = Vec::new();
    for (&stream, commands) in &timeline.streams {
        let replayed = commands.iter().flat_map(|&at| &timeline.command(at).replayed);
        let mut threads: Vec<_> = replayed.map(|part| Some(part.thread)).collect();
        threads.sort_unstable();
        threads.dedup();
        rows.extend(std::iter::once(None).chain(threads).map(|thread| (stream, thread)));
    }
    rows
}

impl Profile {
    /// What ran when, in the last recording: a row for each stream, each thread that replayed captured steps and each thread of
    /// the host, and the critical path.
    pub fn drawing(&self, title: &str) -> Timeline {
        let Some((number, timeline)) = self.timelines().enumerate().last() else {
            return Timeline::default();
        };
        let recording = timeline.recording;
        let origin = drawn_from(recording);
        let mut drawing =
            Drawing { origin, timeline: Timeline { title: title.to_owned(), ..Timeline::default() } };
        let rows = drawn_rows(&timeline);
        let row_of = |stream, thread| rows.iter().position(|row| *row == (stream, thread));
        let name = |&(stream, thread): &(StreamId, Option<u32>)| {
            let name = self.stream_name(stream);
            thread.map_or_else(|| name.clone(), |thread| replay_row(&name, thread))
        };
        drawing.timeline.rows = rows.iter().map(name).collect();
        let hosts = drawing.timeline.rows.len();
        drawing.timeline.rows.extend(recording.threads.iter().map(|name| format!("host: {name}")));
        // The place of each command's slice, and of that of its launch.
        let mut places = vec![(None, None); recording.commands.len()];
        for (command, (ran, launched)) in recording.commands.iter().zip(&mut places) {
            let stream = command.moment.stream;
            let Some(row) = row_of(stream, None) else { continue };
            for part in &command.replayed {
                let detail = format!("command {} of the step", part.command);
                if let Some(row) = row_of(stream, Some(part.thread)) {
                    drawing.slice(row, part.op, part.start_ns..part.end_ns, detail);
                }
            }
            let times = command.start_ns..command.end_ns;
            *ran = drawing.slice(row, command.op, times, details(recording, command));
            let launch = command.launch;
            if (launch.thread as usize) < recording.threads.len() {
                let row = hosts + launch.thread as usize;
                *launched =
                    drawing.slice(row, "launch", launch.start_ns..launch.given_ns, command.op.to_owned());
            }
        }
        let mut waits = Vec::with_capacity(recording.syncs.len());
        for sync in &recording.syncs {
            let place = sync.place.map(|place| recording.places[place as usize].to_string());
            let (row, times) = (hosts + sync.thread as usize, sync.start_ns..sync.end_ns);
            waits.push(drawing.slice(row, sync.op, times, place.unwrap_or_default()));
        }
        for segment in self.critical_path().segments.iter().filter(|segment| segment.recording == number) {
            let place = match segment.link {
                Link::Command { index, .. } => places[index].0,
                Link::Launch { index, .. } => places[index].1,
                Link::Sync { index } => waits[index],
                _ => None,
            };
            if let Some(slice) = place {
                drawing.timeline.slices[slice].critical = true;
            }
        }
        for (to, (place, _)) in places.iter().enumerate() {
            let arrow = |&from: &usize| Some((places[from].0?, (*place)?));
            drawing.timeline.arrows.extend(timeline.awaited(to).iter().filter_map(arrow));
        }
        drawing.timeline.wall_ns = timeline.end_ns.saturating_sub(origin);
        drawing.timeline
    }

    /// How long each stream ran commands, and why it ran none, as milliseconds in [`Bars`].
    pub fn idle_rows(&self, prefix: &str) -> Vec<(String, Vec<(String, f64)>)> {
        let mut rows = Vec::new();
        for stream in self.idle() {
            let mut causes: Vec<(String, f64)> = Vec::new();
            for idle in &stream.idle {
                let kind = self.kind(&idle.cause);
                let total = entry(&mut causes, |(known, _)| *known == kind, || (kind.clone(), 0.0));
                total.1 += ms(idle.end_ns - idle.start_ns);
            }
            causes.sort_by(|a, b| b.1.total_cmp(&a.1));
            let others: f64 = causes.drain(IDLE_KINDS.min(causes.len())..).map(|(_, length)| length).sum();
            let parts = std::iter::once(("busy".to_owned(), stream.busy_ms)).chain(causes);
            rows.push((
                format!("{prefix}{}", stream.name),
                parts.chain([("others".to_owned(), others)]).collect(),
            ));
        }
        rows
    }

    /// A cause without the names of commands.
    fn kind(&self, cause: &IdleCause) -> String {
        match cause {
            IdleCause::WaitsFor { stream, .. } => format!("waits for {}", self.stream_name(*stream)),
            IdleCause::NotLaunched { .. } => "nothing launched yet".to_owned(),
            IdleCause::Starting { .. } => "about to start".to_owned(),
            IdleCause::End => "at the end".to_owned(),
        }
    }

    /// The memory of the last recording, if that was recorded.
    pub fn memory_plot(&self, name: &str) -> Option<Plot> {
        let samples = self.memory().last().filter(|samples| samples.len() > 1)?;
        let line = |name: &str, bytes: fn(&MemorySample) -> usize| Line {
            name: name.to_owned(),
            points: samples.iter().map(|at| (ms(at.at_ns), bytes(at) as f64 / f64::from(1 << 20))).collect(),
        };
        let lines =
            vec![line("allocated", |at| at.allocated_bytes), line("reserved", |at| at.reserved_bytes)];
        Some(Plot { title: format!("Memory: {name}"), x: "ms".into(), y: "MiB".into(), lines })
    }

    fn path_table(&self) -> Vec<Vec<String>> {
        let head = ["part", "on", "links", "ms", "share (%)"].map(str::to_owned).to_vec();
        let row = |part: &PathShare| {
            let on = if part.on_device { "device" } else { "host" };
            vec![
                part.what.clone(),
                on.to_owned(),
                part.links.to_string(),
                format!("{:.3}", part.ms),
                format!("{:.1}", 100.0 * part.share),
            ]
        };
        std::iter::once(head).chain(self.critical_path().shares.iter().map(row)).collect()
    }

    fn op_table(&self) -> Vec<Vec<String>> {
        let head = ["op", "calls", "device (ms)", "mean (us)", "share (%)", "host (ms)", "copied (MiB)"];
        let row = |row: &Average| {
            vec![
                row.key.clone(),
                row.calls.to_string(),
                format!("{:.3}", row.device_total_ms),
                format!("{:.2}", 1e3 * row.device_mean_ms),
                format!("{:.1}", 100.0 * row.share),
                format!("{:.3}", row.host_total_ms),
                format!("{:.2}", row.copied_bytes as f64 / f64::from(1 << 20)),
            ]
        };
        let head = head.map(str::to_owned).to_vec();
        std::iter::once(head).chain(self.key_averages().rows.iter().map(row)).collect()
    }
}

/// A timeline to which slices are added that begin at `origin` or later.
struct Drawing {
    origin: u64,
    timeline: Timeline,
}

impl Drawing {
    /// The number of the slice, if it is drawn.
    fn slice(&mut self, row: usize, name: &str, times: Range<u64>, detail: String) -> Option<usize> {
        let start_ns = times.start.checked_sub(self.origin)?;
        let end_ns = times.end.saturating_sub(self.origin);
        let slices = &mut self.timeline.slices;
        slices.push(Slice { row, start_ns, end_ns, name: name.to_owned(), detail, critical: false });
        Some(slices.len() - 1)
    }
}

/// Where the first step begins from which on there are not too many commands to be drawn.
fn drawn_from(recording: &Recording) -> u64 {
    let ends = std::iter::once(0).chain(recording.steps.iter().copied());
    let behind = |at: u64| recording.commands.iter().filter(|command| command.start_ns >= at).count();
    let steps: Vec<u64> = ends.collect();
    let few = steps[..steps.len().saturating_sub(1).max(1)].iter().find(|&&at| behind(at) <= DRAWN);
    few.or_else(|| steps.iter().rev().nth(1)).copied().unwrap_or(0)
}

fn details(recording: &Recording, command: &CommandRecord) -> String {
    let mut lines = Vec::new();
    if !command.operands.is_empty() {
        lines.push(shapes(command));
    }
    if let Some(bytes) = command.kind.copied_bytes() {
        lines.push(format!("{bytes} bytes, {:.2} GB/s", bytes as f64 / command.duration_ns().max(1) as f64));
    }
    for kernel in &command.kernels {
        let ([x, y, z], threads) = (kernel.blocks, kernel.block_threads());
        lines.push(format!(
            "{}: {x} x {y} x {z} blocks of {threads}, {} registers",
            kernel_name(kernel),
            kernel.registers
        ));
    }
    if command.launch.place.is_some() {
        lines.push(place(recording, command));
    }
    lines.join("\n")
}
