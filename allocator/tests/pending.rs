//! Requests that fit only once queued commands have finished with freed memory.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use allocator::{AllocatorConfig, DeviceMemory, MemoryStats, ReusePolicy, allocate};
use common::each_device;
use device::cuda::Queue;
use device::{
    Binder, Buffer, Cpu, CpuConfig, Device, ErrorKind, Policy, Result, Schedule, Stream, SyncDebug, Use, Work,
};

const MIB: usize = 1 << 20;
const POLICIES: [ReusePolicy; 3] = [ReusePolicy::Balanced, ReusePolicy::WaitFirst, ReusePolicy::GrowFirst];

/// A command that runs until it may end.
struct Slow(Arc<AtomicBool>);

impl Slow {
    fn new() -> Slow {
        Slow(Arc::default())
    }

    /// Launches it on a stream with a buffer.
    fn launch(&self, stream: &Stream, buffer: &Buffer) {
        let end = Arc::clone(&self.0);
        let spin = move || {
            while !end.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        };
        stream.launch_host("slow", &[Use::write(buffer)], spin).unwrap();
    }

    /// Lets it end as soon as the host waits for the device within `body`, or after it.
    fn ends_once_awaited<R>(&self, dev: &Device, body: impl FnOnce() -> R) -> R {
        let before = dev.sync_stats().host_syncs;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while dev.sync_stats().host_syncs == before && !self.0.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                self.0.store(true, Ordering::Release);
            });
            let result = body();
            self.0.store(true, Ordering::Release);
            result
        })
    }
}

impl Drop for Slow {
    /// A test that fails does not leave its device waiting.
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A CPU device whose streams have threads.
fn threads() -> Device {
    Device::cpu_with(CpuConfig { schedule: Schedule::Threads, ..CpuConfig::default() })
}

/// Under a limit of 64 MiB, 4 MiB live and 40 MiB freed that a slow command of `stream` still uses.
fn crowd(stream: &Stream, slow: &Slow) -> Buffer {
    stream.device().set_memory_limit(Some(64 * MIB));
    let dropped = allocate(stream, 40 * MIB).unwrap();
    // Behind it, so that what is freed cannot grow in place.
    let live = allocate(stream, 4 * MIB).unwrap();
    slow.launch(stream, &dropped);
    live
}

fn refused(outcome: Result<Buffer>) -> String {
    match outcome {
        Err(error) if matches!(error.kind(), ErrorKind::OutOfMemory { .. }) => error.to_string(),
        outcome => panic!("{outcome:?}"),
    }
}

#[test]
fn a_request_waits_for_freed_memory_under_every_policy() {
    for reuse in POLICIES {
        for deterministic in [false, true] {
            let test = |dev: Device| {
                dev.set_allocator_config(AllocatorConfig { reuse, deterministic, ..Default::default() });
                let (own, other) = (dev.new_stream().unwrap(), dev.new_stream().unwrap());
                for stream in [&own, &other] {
                    let slow = Slow::new();
                    let _live = crowd(&own, &slow);
                    let stats = dev.memory_stats();
                    let got = slow.ends_once_awaited(&dev, || allocate(stream, 48 * MIB)).unwrap();
                    assert_eq!(got.len_bytes(), 48 * MIB);
                    let after = dev.memory_stats();
                    assert_eq!(after.host_waits - stats.host_waits, 1, "{reuse:?}");
                    assert_eq!(after.out_of_memory, stats.out_of_memory);
                    drop(got);
                    own.synchronize().unwrap();
                    dev.trim();
                }
            };
            each_device(test);
            test(threads());
        }
    }
}

#[test]
fn memory_to_be_reserved_is_waited_for() {
    let dev = threads();
    let stream = dev.default_stream();
    let slow = Slow::new();
    let _live = crowd(&stream, &slow);
    slow.ends_once_awaited(&dev, || dev.reserve(48 * MIB)).unwrap();
    assert_eq!(dev.memory_stats().host_waits, 1);
}

/// A program that runs ahead of its device fits where it fits with a synchronisation after each step.
#[test]
fn growing_steps_fit_however_far_the_host_runs_ahead() {
    let steps = |dev: &Device, synchronise: bool| -> Result<MemoryStats> {
        let stream = dev.default_stream();
        let mut losses = vec![allocate(&stream, 2 * MIB)?];
        for step in 1..=24 {
            let mut kept: Vec<Buffer> = Vec::new();
            for layer in 1..=4 {
                let buffer = allocate(&stream, step * 128 * 1024 * (1 + layer % 2))?;
                let mut uses = vec![Use::write(&buffer)];
                uses.extend(kept.last().map(Use::read));
                let work = || std::thread::sleep(std::time::Duration::from_micros(300));
                stream.launch_host("layer", &uses, work)?;
                kept.push(buffer);
            }
            losses.push(allocate(&stream, 4096)?);
            if synchronise {
                drop(kept);
                stream.synchronize()?;
                dev.trim();
            }
        }
        Ok(dev.memory_stats())
    };
    for reuse in POLICIES {
        let config = AllocatorConfig { reuse, ..Default::default() };
        let dev = threads();
        dev.set_allocator_config(config);
        let most = steps(&dev, true).unwrap().peak_reserved_bytes;
        let dev = threads();
        dev.set_allocator_config(config);
        dev.set_memory_limit(Some(most + most / 50));
        let stats = steps(&dev, false).unwrap();
        assert!(stats.peak_reserved_bytes <= most + most / 50);
        assert_eq!(stats.out_of_memory, 0);
    }
}

#[test]
fn nothing_is_waited_for_while_there_is_memory_or_where_that_is_no_help() {
    each_device(|dev| {
        let stream = dev.new_stream().unwrap();
        let slow = Slow::new();
        let _live = crowd(&stream, &slow);
        let syncs = dev.sync_stats().host_syncs;
        let fits = allocate(&stream, 8 * MIB).unwrap();
        // More than there is when everything has finished.
        refused(allocate(&stream, 60 * MIB));
        dev.set_memory_limit(None);
        let more = allocate(&stream, 48 * MIB).unwrap();
        assert_eq!((dev.memory_stats().host_waits, dev.sync_stats().host_syncs), (0, syncs));
        slow.0.store(true, Ordering::Release);
        drop((fits, more));
    });
}

#[test]
fn a_held_stream_is_not_waited_for_but_named() {
    each_device(|dev| {
        let (held, behind, main) =
            (dev.new_stream().unwrap(), dev.new_stream().unwrap(), dev.new_stream().unwrap());
        dev.set_memory_limit(Some(64 * MIB));
        let hold = held.hold();
        let own = allocate(&main, 20 * MIB).unwrap();
        held.launch_host("held", &[Use::write(&own)], || ()).unwrap();
        // Another stream, which waits for the held one.
        let waiting = allocate(&main, 20 * MIB).unwrap();
        behind.launch_host("behind", &[Use::write(&waiting), Use::read(&own)], || ()).unwrap();
        drop((own, waiting));
        let message = refused(allocate(&main, 48 * MIB));
        let expected = format!("the host does not wait for it: stream {} is held", held.id());
        let found = message.lines().filter(|line| line.contains(&expected)).count();
        assert_eq!(found, 2, "{message}");
        assert_eq!(dev.memory_stats().host_waits, 0);
        drop(hold);
        allocate(&main, 48 * MIB).unwrap();
    });
}

/// What a held stream has is left alone, and the rest waited for if that is enough.
#[test]
fn the_others_are_waited_for_beside_a_held_stream() {
    each_device(|dev| {
        let (held, busy) = (dev.new_stream().unwrap(), dev.new_stream().unwrap());
        let hold = held.hold();
        let small = allocate(&held, MIB).unwrap();
        held.launch_host("held", &[Use::write(&small)], || ()).unwrap();
        drop(small);
        let slow = Slow::new();
        let _live = crowd(&busy, &slow);
        slow.ends_once_awaited(&dev, || allocate(&busy, 48 * MIB)).unwrap();
        assert_eq!(dev.memory_stats().host_waits, 1);
        drop(hold);
    });
}

/// A part of a collective whose other ranks never come, until they do.
struct Meeting(Arc<AtomicBool>);

impl Work for Meeting {
    fn run(&self, _: &Cpu<'_>) {
        while !self.0.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    fn enqueue(&self, _: &Queue<'_>) -> Result<()> {
        Ok(())
    }

    fn bind(&mut self, _: &mut dyn Binder) {}

    fn waits(&self) -> bool {
        true
    }
}

#[test]
fn a_command_that_waits_for_other_ranks_is_not_waited_for_but_named() {
    for dev in [Device::cpu_with(CpuConfig::default()), threads()] {
        let (ranks, main) = (dev.new_stream().unwrap(), dev.default_stream());
        dev.set_memory_limit(Some(64 * MIB));
        let dropped = allocate(&main, 40 * MIB).unwrap();
        let there = Arc::new(AtomicBool::new(false));
        ranks.launch("all_reduce", &[], Meeting(Arc::clone(&there))).unwrap();
        ranks.launch_host("behind", &[Use::write(&dropped)], || ()).unwrap();
        drop(dropped);
        let message = refused(allocate(&main, 48 * MIB));
        let expected = format!("all_reduce on stream {} waits for other ranks", ranks.id());
        assert!(message.contains(&expected), "{message}");
        assert_eq!(dev.memory_stats().host_waits, 0);
        there.store(true, Ordering::Release);
        ranks.synchronize().unwrap();
        allocate(&main, 48 * MIB).unwrap();
    }
}

#[test]
fn a_command_does_not_wait_for_memory() {
    let dev = threads();
    let (one, other) = (dev.new_stream().unwrap(), dev.new_stream().unwrap());
    dev.set_memory_limit(Some(64 * MIB));
    let dropped = allocate(&one, 40 * MIB).unwrap();
    let (say, said) = mpsc::channel();
    let hold = one.hold();
    one.launch_host("asks", &[], move || {
        let outcome = allocate(&other, 48 * MIB).map(drop);
        say.send(outcome.map_err(|error| error.to_string())).unwrap();
    })
    .unwrap();
    one.launch_host("behind", &[Use::write(&dropped)], || ()).unwrap();
    drop(dropped);
    drop(hold);
    let message = said.recv().unwrap().unwrap_err();
    assert!(message.contains("the request is made within a command or host read"), "{message}");
    assert_eq!(dev.memory_stats().host_waits, 0);
}

/// In hidden synchronisations and recordings, too, the wait has a name of its own.
#[test]
fn the_wait_is_counted_and_recorded_under_its_own_name() {
    each_device(|dev| {
        let stream = dev.new_stream().unwrap();
        let slow = Slow::new();
        // Before, since it synchronises.
        dev.start_recording();
        let _live = crowd(&stream, &slow);
        dev.set_sync_debug(SyncDebug::Refuse);
        let line = line!() + 1;
        let refused = allocate(&stream, 48 * MIB).unwrap_err();
        assert!(
            matches!(refused.kind(), ErrorKind::HiddenSync { place } if place.contains("pending.rs")),
            "{refused}"
        );
        dev.set_sync_debug(SyncDebug::Count);
        slow.ends_once_awaited(&dev, || allocate(&stream, 48 * MIB)).unwrap();
        let recording = dev.stop_recording();
        let hidden = dev.hidden_syncs();
        assert_eq!((hidden.len(), hidden[0].op, hidden[0].count), (1, "wait_for_memory", 1));
        assert!(hidden[0].place.file().ends_with("pending.rs") && hidden[0].place.line() > line);
        assert!(recording.syncs.iter().any(|sync| sync.op == "wait_for_memory" && sync.awaited.len() == 1));
        assert!(dev.memory_report().unwrap().to_json().contains("\"host_waits\":1"));
    });
}

/// Whatever order an explored device picks, the same requests wait for the same, and all fit.
#[test]
fn explored_devices_decide_alike_in_all_orders() {
    let run = |policy: Policy| {
        let dev = Device::cpu_with(CpuConfig { schedule: Schedule::Explore(policy), ..CpuConfig::default() });
        dev.set_memory_limit(Some(8 * MIB));
        let streams = [(); 3].map(|()| dev.new_stream().unwrap());
        for (number, stream) in streams.iter().cycle().take(40).enumerate() {
            let size = (1 + number % 5) * MIB + number * 4096;
            let first = allocate(stream, size).unwrap();
            let user = &streams[number * 7 % 3];
            user.launch_host("use", &[Use::write(&first)], || ()).unwrap();
        }
        let stats = dev.memory_stats();
        dev.synchronize().unwrap();
        (stats.host_waits, stats.waits, stats.polls, stats.driver_allocations, stats.peak_reserved_bytes)
    };
    let expected = run(Policy::OldestFirst);
    assert!(expected.0 > 0, "{expected:?}");
    for policy in [Policy::NewestFirst, Policy::Starve { stream: 1, seed: 3 }] {
        assert_eq!(run(policy), expected, "{policy:?}");
    }
    for seed in 0..20 {
        assert_eq!(run(Policy::Random { seed }), expected, "{seed}");
    }
}
