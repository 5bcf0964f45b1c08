//! Causes on the host: waits for the device, calls of the driver, launches, and whatever else it does.

use std::collections::BTreeMap;

use device::{Place, quantiles};

use super::super::averages::launch_ns;
use super::super::timeline::RecordingIndex;
use super::{Evidence, Extents, Facts, Link, PathSegment, Stretch, at, mib, mostly_at, ms, sums};

/// Time in which nothing ran after a wait of the host: until it had launched something anew.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bubble {
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    /// The wait, as an index in the recording.
    sync: usize,
}

/// The bubbles of a recording, in order. After the last command there is none: somebody has to wait for the result.
pub(super) fn bubbles(timeline: &RecordingIndex<'_>) -> Vec<Bubble> {
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

/// Waits of the host, by calls that `is_one` accepts, after which the device had nothing to run.
pub(super) fn waits(facts: &Facts<'_>, is_one: fn(&str) -> bool) -> Vec<Evidence> {
    let of_window = |window: &Stretch<'_>| -> Vec<(Option<Place>, u64)> {
        let syncs =
            window.bubbles.iter().map(|bubble| (&window.timeline.recording.syncs[bubble.sync], bubble));
        let chosen = syncs.filter(|(sync, _)| is_one(sync.op));
        chosen.map(|(sync, bubble)| (window.place(sync.place), bubble.end_ns - bubble.start_ns)).collect()
    };
    let evidence = |(place, ns, count): (Option<Place>, u64, usize)| {
        let text = format!(
            "the host{} waits for the device {:.1} times a step, and each time the device runs dry until the host has launched anew: \
             {:.3} ms a step",
            at(place.as_ref()),
            count as f64 / facts.steps,
            ms(ns) / facts.steps
        );
        Evidence::new(ms(ns), place, text)
    };
    sums(facts.windows.iter().flat_map(of_window)).into_iter().map(evidence).collect()
}

/// How many calls of the driver a step has to make for them to be worth a word.
const OFTEN: f64 = 0.05;

pub(super) fn driver_calls(facts: &Facts<'_>) -> Option<Evidence> {
    // A program that asks for memory once more while it warms up is right.
    let steps_of = |window: &Stretch<'_>| window.timeline.recording.steps.len();
    let warm_of = move |window: &Stretch<'_>| (steps_of(window) / 2).max(1);
    let counted: usize =
        facts.windows.iter().map(|window| steps_of(window).saturating_sub(warm_of(window))).sum();
    let counted = counted.max(1) as f64;
    let late = facts.windows.iter().enumerate().flat_map(|(number, window)| {
        let warm = warm_of(window);
        let calls = window.timeline.recording.driver_calls.iter();
        calls
            .filter(move |call| window.step_at(call.start_ns) >= warm)
            .map(move |call| (number, window, call))
    });
    let late: Vec<_> = late.collect();
    // The most that one stream asks for in a step.
    let mut asked: BTreeMap<_, usize> = BTreeMap::new();
    for &(number, window, call) in &late {
        *asked.entry((call.stream, number, window.step_at(call.start_ns))).or_default() += call.bytes;
    }
    let most = asked.values().copied().max().unwrap_or(0);
    let ns: u64 = late.iter().map(|(.., call)| call.end_ns - call.start_ns).sum();
    // Calls without bytes return memory, which has to be requested again.
    let late: Vec<_> = late.into_iter().filter(|(.., call)| call.bytes > 0).collect();
    let calls = late.iter().map(|(_, window, call)| (window.place(call.place), call.end_ns - call.start_ns));
    let (place, ..) = sums(calls).into_iter().next().filter(|_| late.len() as f64 >= OFTEN * counted)?;
    let text = format!(
        "the driver is asked for memory {:.1} times a step in the later half of the steps, {:.3} ms{}; `dev.reserve({})` ({:.1} MiB) \
         is what a stream needs",
        late.len() as f64 / counted,
        ms(ns) / counted,
        mostly_at(place.as_ref()),
        most.next_multiple_of(1 << 20),
        mib(most)
    );
    Some(Evidence::new(ms(ns), place, text))
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

pub(super) fn launch_bound(facts: &Facts<'_>) -> Option<Evidence> {
    if facts.lanes_are_apart() {
        return None;
    }
    let links = |window: &Stretch<'_>| -> Vec<(Option<Place>, u64)> {
        let place = |link: &Link| match link {
            Link::Launch { index, .. } | Link::Latency { index, .. } => {
                window.place(window.timeline.command(*index).launch.place)
            }
            _ => None,
        };
        let is_launch = |link: &Link| matches!(link, Link::Launch { .. } | Link::Latency { .. });
        let outside = |(segment, ns): (&PathSegment, u64)| {
            (place(&segment.link), ns.saturating_sub(window.recorder_ns_of(segment)))
        };
        window.links(is_launch).map(outside).collect()
    };
    let by_place = sums(facts.windows.iter().flat_map(links));
    let ns: u64 = by_place.iter().map(|&(_, ns, _)| ns).sum();
    let (place, ..) = by_place.into_iter().next()?;
    let commands = facts.windows.iter().flat_map(Stretch::work);
    let launches_us: Vec<f64> = commands.map(|(_, command)| launch_ns(command) as f64 / 1e3).collect();
    let [typical_us, least_us] = quantiles(launches_us.iter().copied(), [0.5, 0.05]);
    let text = format!(
        "a step launches {:.0} commands, and the device waits {:.3} ms for that{}. A launch takes {:.1} us, and on this machine not \
         less than {:.1}",
        launches_us.len() as f64 / facts.steps,
        ms(ns) / facts.steps,
        mostly_at(place.as_ref()),
        typical_us,
        least_us
    );
    Some(Evidence::new(ms(ns), place, text))
}

pub(super) fn host_bound(facts: &Facts<'_>) -> Vec<Evidence> {
    if facts.lanes_are_apart() {
        return Vec::new();
    }
    // Where nothing runs nothing waits for the host.
    let busy = facts.windows.iter().filter(|window| window.work().next().is_some());
    let links = busy.flat_map(|window| {
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
    let evidence = |(range, ns, _): (Option<NamedRange>, u64, usize)| {
        let (name, place, beside) = range.map_or((None, None, false), |(n, p, beside)| (Some(n), p, beside));
        let what = match name {
            Some(name) => format!("in the range `{name}`{}", at(place.as_ref())),
            None => "outside of all ranges".to_owned(),
        };
        let text = format!(
            "the device waits {:.3} ms a step for what the host does {what}, other than launching",
            ms(ns) / facts.steps
        );
        let advice = beside.then_some(
            "that is a thread of its own already: it takes longer than the others, so do less there, or share it among more",
        );
        Evidence { advice, ..Evidence::new(ms(ns), place, text) }
    };
    sums(links).into_iter().map(evidence).collect()
}
