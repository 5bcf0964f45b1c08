use device::{
    CommandKind, CommandRecord, LaunchRecord, Moment, Place, RangeRecord, Recording, StreamId, SyncRecord,
    WaitRecord,
};

use super::profile::ms;
use super::*;
use crate::idle::{HostActivity, IdleCause};

pub(super) const A: StreamId = StreamId::from_raw(1);
pub(super) const B: StreamId = StreamId::from_raw(2);

pub(super) fn at(stream: StreamId, tick: u64) -> Moment {
    Moment { stream, tick }
}

/// A command on a stream, which a thread launched from `launch.0` to `launch.1`.
pub(super) fn command(
    op: &'static str,
    moment: Moment,
    launch: (u32, u64, u64),
    start: u64,
    end: u64,
) -> CommandRecord {
    let (thread, start_ns, end_ns) = launch;
    let launch = LaunchRecord { start_ns, given_ns: end_ns, end_ns, thread, ..LaunchRecord::default() };
    CommandRecord { launch, ..CommandRecord::new(op, moment, start, end) }
}

pub(super) fn wait(op: &'static str, waiter: Moment, awaited: Moment) -> WaitRecord {
    WaitRecord { op, waiter, awaited }
}

pub(super) fn sync(awaited: Vec<Moment>, start_ns: u64, end_ns: u64) -> SyncRecord {
    SyncRecord { op: "synchronize", awaited, start_ns, end_ns, thread: 0, range: None, place: None }
}

/// The host launches `load` on A from 0 to 10 and `product` on B, which waits for it, from 10 to 20; `load` runs from 12 to 50,
/// `product` from 55 to 90. The host waits until 95 and ends the step at 100.
fn producer_and_consumer() -> Recording {
    Recording {
        commands: vec![
            command("load", at(A, 1), (0, 0, 10), 12, 50),
            command("product", at(B, 1), (0, 10, 20), 55, 90),
        ],
        waits: vec![wait("product", at(B, 1), at(A, 1))],
        syncs: vec![sync(vec![at(A, 1), at(B, 1)], 25, 95)],
        steps: vec![100],
        threads: vec!["main".into()],
        wall_ns: 120,
        ..Recording::default()
    }
}

/// The links' names with the times at which they end, and that they are without a gap.
fn links(profile: &Profile) -> Vec<(String, u64)> {
    let path = profile.critical_path();
    let mut now = 0;
    for segment in &path.segments {
        assert_eq!(segment.start_ns, now, "{:?}", path.segments);
        now = segment.end_ns;
    }
    let total: f64 = path.shares.iter().map(|share| share.ms).sum();
    assert!((total - path.wall_ms).abs() < 1e-12 && (profile.wall_ms() - path.wall_ms).abs() < 1e-12);
    assert_eq!(ms(now), path.wall_ms);
    let name = |link: &Link| match link {
        Link::Command { op, .. } => (*op).to_owned(),
        Link::Latency { op, .. } => format!("starting {op}"),
        Link::Launch { op, .. } => format!("launching {op}"),
        Link::Sync { .. } => "sync".to_owned(),
        Link::DriverCall { .. } => "driver".to_owned(),
        Link::Host { range: None } => "host".to_owned(),
        Link::Host { range: Some(range) } => format!("host in {range}"),
    };
    path.segments.iter().map(|segment| (name(&segment.link), segment.end_ns)).collect()
}

fn expect(profile: &Profile, expected: &[(&str, u64)]) {
    let found = links(profile);
    let found: Vec<(&str, u64)> = found.iter().map(|(name, end)| (name.as_str(), *end)).collect();
    assert_eq!(found, expected);
}

/// That busy and idle time of each stream are the wall time, and its causes without a gap.
fn check_idle(profile: &Profile) -> Vec<StreamIdle> {
    let streams = profile.idle();
    for stream in &streams {
        let causes: u64 = stream.idle.iter().map(|idle| idle.end_ns - idle.start_ns).sum();
        assert!((ms(causes) - stream.idle_ms).abs() < 1e-9, "{stream:?}");
        assert!((stream.busy_ms + stream.idle_ms - profile.wall_ms()).abs() < 1e-9, "{stream:?}");
    }
    streams
}

#[test]
fn the_path_leads_through_launches_commands_and_waits() {
    let profile = Profile::of([producer_and_consumer()]);
    let expected = [
        ("launching load", 10),
        ("starting load", 12),
        ("load", 50),
        ("starting product", 55),
        ("product", 90),
        ("sync", 95),
        ("host", 100),
    ];
    expect(&profile, &expected);
    let path = profile.critical_path();
    assert_eq!((path.shares[0].what.as_str(), path.shares[0].on_device), ("load", true));
    assert!((path.shares[0].share - 0.38).abs() < 1e-12);
}

#[test]
fn each_stream_is_idle_for_a_reason() {
    let streams = check_idle(&Profile::of([producer_and_consumer()]));
    let causes = |stream: usize| -> Vec<_> {
        streams[stream].idle.iter().map(|idle| (idle.cause.clone(), idle.end_ns)).collect()
    };
    let launching = |op, other, stream| {
        let host = HostActivity::Launching { op: other, stream };
        IdleCause::NotLaunched { op, host }
    };
    let expected =
        [(launching("load", "load", A), 10), (IdleCause::Starting { op: "load" }, 12), (IdleCause::End, 100)];
    assert_eq!(causes(0), expected);
    let waits = IdleCause::WaitsFor { op: "product", stream: A, awaited: "load" };
    let expected = [
        (launching("product", "load", A), 10),
        (launching("product", "product", B), 20),
        (waits, 50),
        (IdleCause::Starting { op: "product" }, 55),
        (IdleCause::End, 100),
    ];
    assert_eq!(causes(1), expected);
}

/// The third command is launched when the first two are over.
fn late_launch() -> Recording {
    Recording {
        commands: vec![
            command("first", at(A, 1), (0, 0, 5), 5, 50),
            command("second", at(A, 2), (0, 5, 10), 50, 60),
            command("late", at(A, 3), (0, 80, 90), 91, 95),
        ],
        threads: vec!["main".into()],
        ..Recording::default()
    }
}

/// A stream that is never out of work hides the host; one that is, does not.
#[test]
fn a_command_that_was_launched_long_before_hides_its_launch() {
    let recording = late_launch();
    let expected = [
        ("launching first", 5),
        ("launching second", 10),
        ("host", 80),
        ("launching late", 90),
        ("starting late", 91),
        ("late", 95),
    ];
    let profile = Profile::of([recording.clone()]);
    expect(&profile, &expected);
    check_idle(&profile);
    let early = Recording { commands: recording.commands.iter().take(2).cloned().collect(), ..recording };
    expect(&Profile::of([early]), &[("launching first", 5), ("first", 50), ("second", 60)]);
}

/// Lane 1 is a thread of its own that ends after lane 0; commands run within their launches.
fn two_lanes() -> Recording {
    let range = |name: &str, thread, parent, start_ns, end_ns| RangeRecord {
        name: name.into(),
        thread,
        parent,
        start_ns,
        end_ns,
        place: None,
    };
    Recording {
        commands: vec![
            command("short", at(A, 1), (0, 12, 32), 14, 30),
            command("long", at(B, 1), (1, 20, 82), 21, 80),
            command("merge", at(A, 2), (0, 95, 110), 96, 108),
        ],
        ranges: vec![
            range("step", 0, None, 5, 90),
            range("lane", 0, Some(0), 10, 34),
            range("lane", 1, Some(0), 15, 85),
        ],
        steps: vec![112],
        threads: vec!["main".into(), "lane 1".into()],
        ..Recording::default()
    }
}

#[test]
fn the_path_goes_to_the_lane_that_was_last_and_back_to_who_started_it() {
    let profile = Profile::of([two_lanes()]);
    let expected = [
        ("host", 5),
        ("host in 0", 10),
        ("host in 1", 12),
        ("launching short", 14),
        ("short", 15),
        ("host in 2", 20),
        ("launching long", 21),
        ("long", 80),
        ("launching long", 82),
        ("host in 2", 85),
        ("host in 0", 90),
        ("host", 95),
        ("launching merge", 96),
        ("merge", 108),
        ("launching merge", 110),
        ("host", 112),
    ];
    expect(&profile, &expected);
    check_idle(&profile);
}

fn us(profile: &Profile, change: Change<'_>) -> u64 {
    (1e6 * profile.what_if(change)).round() as u64
}

#[test]
fn a_recording_that_is_run_again_is_the_recording() {
    for recording in [producer_and_consumer(), two_lanes(), late_launch()] {
        let profile = Profile::of([recording]);
        assert_eq!(us(&profile, Change::Nothing), (1e6 * profile.wall_ms()).round() as u64);
    }
}

#[test]
fn what_does_not_take_time_any_more_moves_what_comes_after_it() {
    let profile = Profile::of([producer_and_consumer()]);
    // `product` starts 5 after its data and launch, at 20, and the host ends 10 after it.
    assert_eq!(us(&profile, Change::Free("load")), 20 + 5 + 35 + 10);
    assert_eq!(us(&profile, Change::Free("product")), 55 + 10);
    assert_eq!(us(&profile, Change::Graph), 38 + 35 + 10);
    let longer = profile.what_if_took(|command| (command.op == "load").then_some(1.0));
    assert_eq!((1e6 * longer).round() as u64, 12 + 1_000_000 + 5 + 35 + 10);
    let lanes = Profile::of([two_lanes()]);
    // Lane 0 ends 51 before lane 1, which hides as much of what is longer there.
    let longer =
        |ns: f64| (1e6 * lanes.what_if_took(|c| (c.op == "short").then_some(ns / 1e6))).round() as u64;
    assert_eq!([longer(16.0), longer(16.0 + 51.0), longer(90.0)], [112, 112, 112 + 90 - 67]);
    // Lane 0 ends at 34 then, so the step waits for nobody after 34, as it did for 5 after 85.
    assert_eq!(us(&lanes, Change::Free("long")), 112 - 51);
    assert_eq!(us(&lanes, Change::Free("merge")), 100);
}

#[test]
fn one_more_stream_helps_what_has_no_data_in_common() {
    let access = |start, write| device::Access { start, end: start + 8, write };
    let mut recording = Recording {
        commands: (1..=4)
            .map(|tick| command("op", at(A, tick), (0, 0, 0), 25 * (tick - 1), 25 * tick))
            .collect(),
        threads: vec!["main".into()],
        ..Recording::default()
    };
    for (at, c) in recording.commands.iter_mut().enumerate() {
        c.accesses = vec![access(8 * at, true)];
    }
    assert_eq!(us(&Profile::of([recording.clone()]), Change::OneMoreStream), 50);
    // A chain stays one.
    for (at, c) in recording.commands.iter_mut().enumerate().skip(1) {
        c.accesses.push(access(8 * (at - 1), false));
    }
    assert_eq!(us(&Profile::of([recording]), Change::OneMoreStream), 100);
}

#[test]
fn nothing_recorded_has_an_empty_path() {
    let profile = Profile::of([Recording::default()]);
    assert_eq!(profile.critical_path().segments, []);
    assert!(profile.idle().is_empty() && profile.key_averages().rows.is_empty());
    assert_eq!(Profile::default().steps(), 0);
}

#[test]
fn rows_add_up_by_op_range_shape_and_line() {
    let range = |name: &str, parent, start_ns, end_ns| RangeRecord {
        name: name.into(),
        thread: 0,
        parent,
        start_ns,
        end_ns,
        place: None,
    };
    let mut recording = Recording {
        commands: vec![
            command("matmul", at(A, 1), (0, 10, 12), 20, 50),
            command("matmul", at(A, 2), (0, 30, 33), 50, 90),
            command("upload", at(A, 3), (0, 40, 50), 90, 100),
            command("wait", at(A, 4), (0, 50, 55), 100, 100),
        ],
        ranges: vec![range("outer", None, 5, 60), range("inner", Some(0), 25, 55)],
        threads: vec!["main".into()],
        places: vec![Place { function: "f".into(), file: "a.rs".into(), line: 3 }],
        ..Recording::default()
    };
    recording.commands[0].launch.range = Some(0);
    recording.commands[0].launch.place = Some(0);
    recording.commands[1].launch.range = Some(1);
    recording.commands[2].kind = CommandKind::Upload { bytes: 64, pinned: false };
    recording.commands[3].kind = CommandKind::Wait;
    let shape = |shape: &[usize], write| device::OperandRecord {
        shape: shape.into(),
        dtype: tensor::DType::F32,
        write,
    };
    recording.commands[0].operands = vec![shape(&[2, 4], true), shape(&[2, 3], false), shape(&[3, 4], false)];
    let profile = Profile::of([recording]);

    let ops = profile.key_averages();
    assert_eq!(ops.rows.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(), ["matmul", "upload"]);
    let (matmul, upload) = (&ops.rows[0], &ops.rows[1]);
    assert_eq!((matmul.calls, matmul.device_total_ms, matmul.host_total_ms), (2, ms(70), ms(5)));
    assert_eq!((matmul.device_mean_ms, matmul.share), (ms(35), 0.875));
    assert_eq!(upload.copied_bytes, 64);
    assert_eq!(ops.clone().sorted_by(Sort::HostTotal).rows[0].key, "upload");

    let ranges = profile.key_averages_by(Key::Range);
    let (outer, inner) = (ranges.get("outer").unwrap(), ranges.get("inner").unwrap());
    assert_eq!((outer.device_total_ms, outer.device_self_ms), (ms(70), ms(30)));
    assert_eq!((inner.device_total_ms, inner.device_self_ms), (ms(40), ms(40)));
    assert!((outer.host_self_ms - ms(25)).abs() < 1e-12 && outer.host_total_ms == ms(55));

    assert!(profile.key_averages_by(Key::Shape).get("matmul [2, 3] [3, 4] -> [2, 4]").is_some());
    assert!(profile.key_averages_by(Key::Place).get("matmul at a.rs:3").is_some());
    assert_eq!(ops.to_string().lines().count(), 3);
}

#[test]
fn a_range_within_one_of_its_name_counts_once() {
    let range = |name: &str, parent, start_ns, end_ns| RangeRecord {
        name: name.into(),
        thread: 0,
        parent,
        start_ns,
        end_ns,
        place: None,
    };
    let mut recording = Recording {
        commands: vec![command("op", at(A, 1), (0, 30, 31), 35, 45)],
        ranges: vec![range("f", None, 0, 100), range("g", Some(0), 10, 90), range("f", Some(1), 20, 50)],
        threads: vec!["main".into()],
        ..Recording::default()
    };
    recording.commands[0].launch.range = Some(2);
    let rows = Profile::of([recording]).key_averages_by(Key::Range);
    let of = |name| rows.get(name).unwrap();
    assert_eq!((of("f").host_total_ms, of("g").host_total_ms), (ms(100), ms(80)));
    assert_eq!((of("f").host_self_ms, of("g").host_self_ms), (ms(50), ms(50)));
    assert_eq!((of("f").device_total_ms, of("g").device_total_ms, of("f").calls), (ms(10), ms(10), 2));
}

/// A trace has a slice for each command, within its step, and an arrow for each wait.
#[test]
fn a_trace_is_what_perfetto_reads() {
    let mut profile = Profile::of([producer_and_consumer(), producer_and_consumer()]);
    profile.name_stream(A, "copies");
    let mut trace = Trace::new();
    trace.add("two", &profile);
    let json = trace.to_json();
    let events = json["traceEvents"].as_array().unwrap();
    let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).count();
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).collect::<Vec<_>>();
    assert_eq!((named("load").len(), named("wait").len(), named("launch").len()), (2, 4, 8));
    assert_eq!(of("s"), of("f"));
    assert!(events.iter().any(|event| event["args"]["name"] == "copies #1"));
    // The second recording begins where the first one ends.
    let times: Vec<f64> = named("load").iter().map(|event| event["ts"].as_f64().unwrap()).collect();
    assert_eq!(times, [0.012, 0.132]);
    let ahead: Vec<i64> = named("launched, not ended")
        .iter()
        .map(|event| event["args"]["commands"].as_i64().unwrap())
        .collect();
    assert_eq!(ahead, [1, 2, 1, 0, 1, 2, 1, 0]);
}
