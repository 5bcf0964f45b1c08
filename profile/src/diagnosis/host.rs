//! Causes on the host: waits for the device, calls of the driver, launches, and whatever else it does.

use std::collections::BTreeMap;

use device::Place;

use super::super::averages::launch_ns;
use super::super::timeline::Timeline;
use super::{Extents, Facts, Finding, Link, PathSegment, Stretch, at, mib, ms, sums};

/// Time in which nothing ran after a wait of the host: until it had launched something anew.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bubble {
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    /// The wait, as an index in the recording.
    sync: usize,
}

/// The bubbles of a recording, in order. After the last command there is none: somebody has to wait for the result.
pub(super) fn bubbles(timeline: &Timeline<'_>) -> Vec<Bubble> {
    let commands = &timeline.recording.commands;
    let mut starts: Vec<u64> =
        commands.iter().filter(|command| command.is_work()).map(|command| command.start_ns).collect();
    starts.sort_unstable();
    let work = Extents::new(commands.iter().filter(|c| c.is_work()).map(|c| (c.start_ns, c.end_ns)));
    let mut bubbles: Vec<Bubble> = Vec::new();
    for (sync, record) in timeline.recording.syncs.iter().enumerate() {
        let awaited = record.awaited.iter().filter_map(|&moment| timeline.newest(moment));
        let Some(drained) = awaited.map(|at| commands[at].end_ns).max() else { continue };
        // The host did not wait, or something else ran on.
        let runs_on = work.last_end(drained + 1) > record.end_ns;
        let next = starts.partition_point(|&start| start < record.end_ns);
        if let Some(&end_ns) = starts.get(next)
            && drained > record.start_ns
            && !runs_on
        {
            let start_ns = drained.min(record.end_ns).max(bubbles.last().map_or(0, |last| last.end_ns));
            if start_ns < end_ns {
                bubbles.push(Bubble { start_ns, end_ns, sync });
            }
        }
    }
    bubbles
}

pub(super) fn synchronisation(facts: &Facts<'_>) -> Vec<Finding> {
    let found = facts.windows.iter().flat_map(|window| {
        window.bubbles.iter().map(|bubble| {
            let sync = &window.timeline.recording.syncs[bubble.sync];
            ((sync.op, window.place(sync.place)), bubble.end_ns - bubble.start_ns)
        })
    });
    let notable = sums(found).into_iter().filter(|&(_, ns, _)| facts.is_notable(ms(ns)));
    let finding = |((op, place), ns, count): ((&str, Option<Place>), u64, usize)| {
        let per_step = count as f64 / facts.steps;
        let idle = ms(ns) / facts.steps;
        let (code, what) = match op {
            "download" => (
                "hidden-sync",
                "reads a value of the device; read results after the step, or every so many steps",
            ),
            "wait_for_memory" => (
                "memory-wait",
                "needs memory that queued commands still use; raise the memory limit, or keep less alive",
            ),
            _ => ("synchronize", "waits for the device; leave it out: whoever uses a result waits by itself"),
        };
        let message = format!(
            "the host{} {what}. That happens {per_step:.1} times a step, and each time the device runs dry until the host has \
             launched anew: {idle:.3} ms a step",
            at(place.as_ref())
        );
        Finding { place, cost_ms: ms(ns), ..Finding::new(code, message) }
    };
    notable.map(finding).collect()
}

pub(super) fn driver_calls(facts: &Facts<'_>) -> Vec<Finding> {
    let late = facts.windows.iter().enumerate().flat_map(|(number, window)| {
        let calls = window.timeline.recording.driver_calls.iter();
        calls.filter(|call| window.step_at(call.start_ns) > 0).map(move |call| (number, window, call))
    });
    let late: Vec<_> = late.collect();
    // Of what one stream asks for in a step, the most.
    let mut asked: BTreeMap<_, usize> = BTreeMap::new();
    for &(number, window, call) in &late {
        *asked.entry((call.stream, number, window.step_at(call.start_ns))).or_default() += call.bytes;
    }
    let most = asked.values().copied().max().unwrap_or(0);
    let ns: u64 = late.iter().map(|(.., call)| call.end_ns - call.start_ns).sum();
    // What went back has to be asked for again.
    let late: Vec<_> = late.into_iter().filter(|(.., call)| call.bytes > 0).collect();
    let calls = late.iter().map(|(_, window, call)| (window.place(call.place), call.end_ns - call.start_ns));
    let Some((place, ..)) = sums(calls).into_iter().next() else { return Vec::new() };
    let message = format!(
        "the driver is asked for memory {:.1} times a step after the first one, {:.3} ms, mostly{}; keep what was freed, or have it \
         before: `dev.reserve({})` ({:.1} MiB, in the scope of the stream that allocates) before the first step",
        late.len() as f64 / facts.steps,
        ms(ns) / facts.steps,
        at(place.as_ref()),
        most.next_multiple_of(1 << 20),
        mib(most)
    );
    vec![Finding { place, cost_ms: ms(ns), ..Finding::new("driver-allocation", message) }]
}

/// The path with the host's way from one launch to the next as part of the latter, where it is no longer than the two themselves:
/// it is what a command costs the host, not something else that it does.
pub(super) fn join_launches(mut path: Vec<PathSegment>) -> Vec<PathSegment> {
    let launch = |segment: &PathSegment| {
        matches!(segment.link, Link::Launch { .. }).then_some(segment.end_ns - segment.start_ns)
    };
    for at in (1..path.len().saturating_sub(1)).rev() {
        let (gap, around) = (&path[at], launch(&path[at - 1]).zip(launch(&path[at + 1])));
        let is_way = matches!(gap.link, Link::Host { .. })
            && around.is_some_and(|(a, b)| gap.end_ns - gap.start_ns <= a + b);
        if is_way {
            path[at + 1].start_ns = path[at].start_ns;
            path[at].end_ns = path[at].start_ns;
        }
    }
    path
}

/// A range's name, where it got it, and whether it is on another thread than the program.
type NamedRange = (Box<str>, Option<Place>, bool);

/// The part of the wall time from which on the host is what a program waits for.
const HOST_BOUND: f64 = 0.2;

pub(super) fn launch_bound(facts: &Facts<'_>) -> Vec<Finding> {
    let is_launch = |link: &Link| matches!(link, Link::Launch { .. } | Link::Latency { .. });
    let links = |window: &Stretch<'_>| -> Vec<(Option<Place>, u64)> {
        let place = |link: &Link| match link {
            Link::Launch { index, .. } | Link::Latency { index, .. } => {
                window.place(window.timeline.command(*index).launch.place)
            }
            _ => None,
        };
        let outside = |(segment, ns): (&PathSegment, u64)| {
            (place(&segment.link), ns.saturating_sub(window.recorder_ns_of(segment)))
        };
        window.links(is_launch).map(outside).collect()
    };
    let by_place = sums(facts.windows.iter().flat_map(links));
    let ns: u64 = by_place.iter().map(|&(_, ns, _)| ns).sum();
    if ms(ns) < HOST_BOUND * facts.wall_ms {
        return Vec::new();
    }
    let commands = facts.windows.iter().flat_map(Stretch::commands).filter(|(_, command)| command.is_work());
    let mut launches: Vec<u64> = commands.map(|(_, command)| launch_ns(command)).collect();
    launches.sort_unstable();
    let us = |at: usize| launches.get(at).map_or(0.0, |&ns| ns as f64 / 1e3);
    let place = by_place.into_iter().next().and_then(|(place, ..)| place);
    let message = format!(
        "a step launches {:.0} commands, and the device waits {:.3} ms for that, mostly{}. A launch takes {:.1} us, and on this \
         machine not less than {:.1}: capture the step (`Graph::capture`), or give each command more to do",
        launches.len() as f64 / facts.steps,
        ms(ns) / facts.steps,
        at(place.as_ref()),
        us(launches.len() / 2),
        us(launches.len() / 20)
    );
    vec![Finding { place, cost_ms: ms(ns), ..Finding::new("launch-bound", message) }]
}

pub(super) fn host_bound(facts: &Facts<'_>) -> Vec<Finding> {
    let links = facts.windows.iter().flat_map(|window| {
        let is_host = |link: &Link| matches!(link, Link::Host { .. });
        window.links(is_host).map(move |(segment, ns)| {
            let range = match segment.link {
                Link::Host { range: Some(range) } => Some(window.range(range)),
                _ => None,
            };
            let main = window.timeline.main_thread();
            let named =
                range.map(|range| (range.name.clone(), window.place(range.place), range.thread != main));
            (named, ns)
        })
    });
    let by_range = sums(links);
    let notable = by_range.into_iter().filter(|&(_, ns, _)| ms(ns) > HOST_BOUND * facts.wall_ms);
    let finding = |(range, ns, _): (Option<NamedRange>, u64, usize)| {
        let (name, place, beside) = range.map_or((None, None, false), |(n, p, beside)| (Some(n), p, beside));
        let what = match name {
            Some(name) => format!("in the range `{name}`{}", at(place.as_ref())),
            None => "outside of all ranges".to_owned(),
        };
        let advice = match beside {
            true => {
                "that is a thread of its own already: it takes longer than the others, so do less there, or share it among more"
            }
            false => "do it on another thread, one batch ahead, as the stages of a `Pipeline` do",
        };
        let message = format!(
            "the device waits {:.3} ms a step for what the host does {what}, other than launching; {advice}",
            ms(ns) / facts.steps
        );
        Finding { place, cost_ms: ms(ns), ..Finding::new("host-bound", message) }
    };
    notable.map(finding).collect()
}
