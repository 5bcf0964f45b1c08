//! A comparison's traced steps in the trace-event format that Perfetto and chrome://tracing open.

use std::collections::HashMap;

use serde_json::{Value, json};
use streamgrad::device::{CommandRecord, Recording};
use streamgrad::workloads::compare::{Comparison, ScheduleReport};
use streamgrad::{Moment, StreamId};

/// One process a schedule, one thread a stream, an arrow for each wait and where the host joins lanes. A replay is one slice.
pub(super) fn chrome(found: &Comparison) -> Value {
    let mut events = Vec::new();
    let mut arrows = 0;
    for (index, schedule) in found.schedules().enumerate() {
        Process { pid: index + 1, schedule, events: &mut events, arrows: &mut arrows }.write();
    }
    json!({ "displayTimeUnit": "ns", "traceEvents": events })
}

struct Process<'a> {
    pid: usize,
    schedule: &'a ScheduleReport,
    events: &'a mut Vec<Value>,
    /// Arrows so far; each has a number of its own.
    arrows: &'a mut usize,
}

/// The thread on which whole steps are drawn.
const STEPS: usize = 0;

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

impl Process<'_> {
    fn write(&mut self) {
        let ScheduleReport { name, streams, captured, .. } = self.schedule;
        let name = match captured {
            Some(found) => format!("{name} (a replay of {} commands is one slice)", found.plan.commands),
            None => format!("{name} ({streams} streams)"),
        };
        self.name("process_name", STEPS, &name);
        self.name("thread_name", STEPS, "steps");
        for (index, (id, name)) in self.schedule.streams_by_name.iter().enumerate() {
            self.name("thread_name", index + 1, &format!("{name} {id}"));
        }
        let mut origin = 0;
        for (number, step) in self.schedule.recordings.iter().enumerate() {
            self.slice(STEPS, &format!("step {number}"), origin, origin + step.wall_ns);
            for command in &step.commands {
                let tid = self.tid(command.moment.stream);
                self.slice(tid, command.op, origin + command.start_ns, origin + command.end_ns);
            }
            self.waits(step, origin);
            self.joins(step, origin);
            origin += step.wall_ns;
        }
    }

    fn tid(&self, stream: StreamId) -> usize {
        let known = &self.schedule.streams_by_name;
        known.iter().position(|(id, _)| *id == stream).map_or(known.len() + 1, |index| index + 1)
    }

    fn name(&mut self, what: &str, tid: usize, name: &str) {
        let event = json!({ "ph": "M", "name": what, "pid": self.pid, "tid": tid, "args": { "name": name } });
        self.events.push(event);
    }

    fn slice(&mut self, tid: usize, name: &str, start_ns: u64, end_ns: u64) {
        let duration = us(end_ns.saturating_sub(start_ns));
        let event = json!({ "ph": "X", "name": name, "pid": self.pid, "tid": tid, "ts": us(start_ns), "dur": duration });
        self.events.push(event);
    }

    fn waits(&mut self, step: &Recording, origin: u64) {
        let commands: HashMap<Moment, &CommandRecord> = step.commands.iter().map(|c| (c.moment, c)).collect();
        for wait in &step.waits {
            // What an earlier step launched is not in this one.
            if let (Some(from), Some(to)) = (commands.get(&wait.awaited), commands.get(&wait.waiter)) {
                self.arrow("wait", from, to, origin);
            }
        }
    }

    /// From the last command of each lane to the first one that the default stream runs after all lanes.
    fn joins(&mut self, step: &Recording, origin: u64) {
        let Some((default, _)) = self.schedule.streams_by_name.first() else { return };
        let mut lasts: HashMap<StreamId, &CommandRecord> = HashMap::new();
        for command in step.commands.iter().filter(|command| command.moment.stream != *default) {
            let last = lasts.entry(command.moment.stream).or_insert(command);
            if command.end_ns > last.end_ns {
                *last = command;
            }
        }
        let joined = lasts.values().map(|command| command.end_ns).max().unwrap_or(u64::MAX);
        let after = step.commands.iter().filter(|c| c.moment.stream == *default && c.start_ns >= joined);
        if let Some(first) = after.min_by_key(|command| command.start_ns) {
            let mut lasts: Vec<_> = lasts.into_iter().collect();
            lasts.sort_unstable_by_key(|(stream, _)| *stream);
            lasts.iter().for_each(|(_, last)| self.arrow("join", last, first, origin));
        }
    }

    fn arrow(&mut self, name: &str, from: &CommandRecord, to: &CommandRecord, origin: u64) {
        *self.arrows += 1;
        // An arrow's ends must lie inside their slices.
        let from_ns = from.start_ns + (from.end_ns.saturating_sub(from.start_ns)) / 2;
        for (phase, command, at) in [("s", from, from_ns), ("f", to, to.start_ns)] {
            let tid = self.tid(command.moment.stream);
            let mut event = json!({
                "ph": phase, "cat": name, "name": name, "id": *self.arrows,
                "pid": self.pid, "tid": tid, "ts": us(origin + at),
            });
            if phase == "f" {
                event["bp"] = json!("e");
            }
            self.events.push(event);
        }
    }
}
