//! The allocator on a real device: held streams, steady states, limits, and many threads at once.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use allocator::{AllocatorConfig, CachingAllocator, DeviceMemory, PrivatePool, ReusePolicy, allocate};
use common::each_device;
use device::{Buffer, CpuConfig, Device, Error, ErrorKind, HostMemory, MemoryDriver, Result, Stream, Use};

const MIB: usize = 1 << 20;

fn write(stream: &Stream, buffer: &Buffer) {
    stream.launch_host("write", &[Use::write(buffer)], || ()).unwrap();
}

fn read(stream: &Stream, buffer: &Buffer) {
    stream.launch_host("read", &[Use::read(buffer)], || ()).unwrap();
}

/// Whether a stream that nothing holds runs dry, without a wait that would not end.
fn becomes_idle(stream: &Stream) -> bool {
    (0..1000).any(|_| {
        std::thread::sleep(Duration::from_micros(10));
        stream.is_idle().unwrap()
    })
}

#[test]
fn a_step_on_one_stream_makes_no_driver_call_event_or_wait() {
    each_device(|dev| {
        let stream = dev.default_stream();
        let step = || {
            let buffers: Vec<_> = [100_352, 32_768, 4, 802_816, 1280, 4]
                .iter()
                .map(|&bytes| {
                    let buffer = allocate(&stream, bytes).unwrap();
                    write(&stream, &buffer);
                    buffer
                })
                .collect();
            buffers.iter().for_each(|buffer| read(&stream, buffer));
        };
        step();
        let (memory, sync) = (dev.memory_stats(), dev.sync_stats());
        (0..100).for_each(|_| step());
        let (after, sync) = (dev.memory_stats(), dev.sync_stats() - sync);
        assert_eq!((after.driver_allocations, after.polls), (memory.driver_allocations, 0));
        assert_eq!((sync.events_recorded, sync.waits_inserted, sync.host_syncs), (0, 0, 0));
        assert_eq!(after.peak_allocated_bytes, memory.peak_allocated_bytes);
    });
}

#[test]
fn reserved_memory_takes_no_driver_call_later() {
    each_device(|dev| {
        let side = dev.new_stream().unwrap();
        dev.reserve(8 * MIB).unwrap();
        side.scope(|| dev.reserve(4 * MIB)).unwrap();
        let before = dev.memory_stats();
        assert!(before.reserved_bytes >= 12 * MIB && before.peak_allocated_bytes == 0);
        for (stream, count) in [(dev.default_stream(), 8), (side, 4)] {
            let buffers: Vec<Buffer> = (0..count).map(|_| allocate(&stream, MIB).unwrap()).collect();
            buffers.iter().for_each(|buffer| write(&stream, buffer));
        }
        assert_eq!(dev.memory_stats().driver_allocations, before.driver_allocations);
        dev.synchronize().unwrap();
        dev.set_memory_limit(Some(dev.memory_stats().reserved_bytes));
        assert!(matches!(
            dev.reserve(usize::MAX).as_ref().map_err(Error::kind),
            Err(ErrorKind::OutOfMemory { .. })
        ));
        assert!(matches!(
            dev.reserve(64 * MIB).as_ref().map_err(Error::kind),
            Err(ErrorKind::OutOfMemory { .. })
        ));
        dev.set_memory_limit(None);
    });
}

#[test]
fn a_held_streams_memory_goes_to_nobody_else() {
    each_device(|dev| {
        let (main, side) = (dev.default_stream(), dev.new_stream().unwrap());
        let hold = side.hold();
        let buffer = allocate(&main, MIB).unwrap();
        let address = buffer.ptr();
        write(&main, &buffer);
        read(&side, &buffer);
        drop(buffer);
        let waits = dev.sync_stats().waits_inserted;
        let others: Vec<_> = (0..4).map(|_| allocate(&main, MIB).unwrap()).collect();
        assert!(others.iter().all(|other| other.ptr() != address), "the side stream has not read it yet");
        assert_eq!(dev.sync_stats().waits_inserted, waits);
        let obtained = dev.memory_stats().driver_allocations;
        drop(hold);
        side.synchronize().unwrap();
        drop(others);
        let all: Vec<_> = (0..5).map(|_| allocate(&main, MIB).unwrap()).collect();
        assert!(all.iter().any(|other| other.ptr() == address), "now it is free again");
        assert_eq!(dev.memory_stats().driver_allocations, obtained);
    });
}

#[test]
fn a_stream_that_waits_for_memory_runs_after_its_uses() {
    each_device(|dev| {
        dev.set_allocator_config(AllocatorConfig { reuse: ReusePolicy::WaitFirst, ..Default::default() });
        let (main, side) = (dev.new_stream().unwrap(), dev.new_stream().unwrap());
        let hold = side.hold();
        let order = Arc::new(Mutex::new(Vec::new()));
        let log = |name: &'static str| {
            let order = Arc::clone(&order);
            move || order.lock().unwrap().push(name)
        };
        let first = allocate(&main, MIB).unwrap();
        let address = first.ptr();
        side.launch_host("old", &[Use::read(&first)], log("old")).unwrap();
        drop(first);
        let second = allocate(&main, MIB).unwrap();
        assert_eq!(second.ptr(), address, "the block is reused before it is free");
        assert_eq!(dev.memory_stats().waits, 1);
        main.launch_host("new", &[Use::write(&second)], log("new")).unwrap();
        // Another stream that uses the new buffer first comes after the old use, too.
        let third = dev.new_stream().unwrap();
        let unused = allocate(&main, 4096).unwrap();
        third.launch_host("third", &[Use::read(&second), Use::read(&unused)], log("third")).unwrap();
        assert!(!main.is_idle().unwrap() && !third.is_idle().unwrap());
        drop(hold);
        dev.synchronize().unwrap();
        assert_eq!(*order.lock().unwrap(), ["old", "new", "third"]);
    });
}

#[test]
fn a_wait_once_made_is_enough() {
    each_device(|dev| {
        dev.set_allocator_config(AllocatorConfig { deterministic: true, ..Default::default() });
        let (main, side) = (dev.default_stream(), dev.new_stream().unwrap());
        let hold = side.hold();
        let buffer = allocate(&main, MIB).unwrap();
        let address = buffer.ptr();
        write(&side, &buffer);
        drop(buffer);
        main.wait_stream(&side).unwrap();
        let waits = dev.sync_stats().waits_inserted;
        let again = allocate(&main, MIB).unwrap();
        assert_eq!(again.ptr(), address);
        assert_eq!((dev.memory_stats().polls, dev.sync_stats().waits_inserted), (0, waits));
        drop(hold);
        dev.synchronize().unwrap();
    });
}

#[test]
fn a_freed_block_of_another_stream_is_taken_after_a_wait() {
    each_device(|dev| {
        let (main, side) = (dev.default_stream(), dev.new_stream().unwrap());
        let buffer = allocate(&main, 32 * MIB).unwrap();
        write(&main, &buffer);
        drop(buffer);
        side.wait_stream(&main).unwrap();
        let other = allocate(&side, 32 * MIB).unwrap();
        write(&side, &other);
        assert_eq!(dev.memory_stats().reserved_bytes, 32 * MIB);
        dev.synchronize().unwrap();
    });
}

#[test]
fn arenas_of_dropped_streams_are_adopted() {
    each_device(|dev| {
        for _ in 0..50 {
            let stream = dev.new_stream().unwrap();
            let buffer = allocate(&stream, 4 * MIB).unwrap();
            write(&stream, &buffer);
            drop(buffer);
            stream.synchronize().unwrap();
            drop(stream);
            // The worker thread ends a moment later.
            let gone = |dev: &Device| {
                let homes = dev.memory_snapshot().segments.into_iter().map(|segment| segment.home);
                homes.into_iter().all(|stream| dev.reached(device::Moment { stream, tick: u64::MAX }))
            };
            while !gone(&dev) {
                std::thread::yield_now();
            }
        }
        assert_eq!(dev.memory_stats().reserved_bytes, 4 * MIB);
    });
}

#[test]
fn trim_gives_back_what_is_free() {
    each_device(|dev| {
        let (main, side) = (dev.default_stream(), dev.new_stream().unwrap());
        let hold = side.hold();
        // Whole pages, where memory comes in pages.
        let kept = allocate(&main, 4 * MIB).unwrap();
        let pending = allocate(&main, 6 * MIB).unwrap();
        write(&side, &pending);
        let free = allocate(&main, 8 * MIB).unwrap();
        write(&main, &free);
        drop((pending, free));
        main.synchronize().unwrap();
        assert_eq!(dev.trim(), 8 * MIB);
        assert_eq!(dev.trim(), 0);
        drop(hold);
        dev.synchronize().unwrap();
        assert!(dev.trim() >= 6 * MIB);
        assert_eq!(dev.memory_stats().segments, 1);
        drop(kept);
    });
}

#[test]
fn the_limit_is_an_error_with_a_report() {
    each_device(|dev| {
        let stream = dev.default_stream();
        dev.set_memory_limit(Some(10 * MIB));
        let kept = allocate(&stream, 8 * MIB).unwrap();
        let refused = allocate(&stream, 4 * MIB).map_err(Error::into_kind);
        let Err(ErrorKind::OutOfMemory { requested_bytes, report }) = refused else {
            panic!("4 MiB more than there is");
        };
        assert_eq!(requested_bytes, 4 * MIB);
        assert!(report.contains("the limit is 10.0 MiB") && report.contains("live 8.0 MiB"), "{report}");
        drop(kept);
        assert!(allocate(&stream, 10 * MIB).is_ok());
        dev.set_memory_limit(None);
        assert!(allocate(&stream, 40 * MIB).is_ok());
    });
}

#[test]
fn a_buffer_keeps_its_device() {
    each_device(|dev| {
        let buffer = {
            let dev = dev;
            let stream = dev.new_stream().unwrap();
            let buffer = allocate(&stream, 1000).unwrap();
            write(&stream, &buffer);
            buffer
        };
        buffer.download(|bytes| assert_eq!(bytes.len(), 1000)).unwrap();
    });
}

/// Host memory that must be empty in the end.
#[derive(Default)]
struct Counted {
    host: HostMemory,
    out: AtomicU64,
}

// SAFETY: ranges are those of `HostMemory`.
unsafe impl MemoryDriver for Counted {
    fn allocate(&self, bytes: usize) -> Result<std::ptr::NonNull<u8>> {
        self.out.fetch_add(1, Ordering::SeqCst);
        self.host.allocate(bytes)
    }

    unsafe fn free(&self, ptr: std::ptr::NonNull<u8>, bytes: usize) {
        self.out.fetch_sub(1, Ordering::SeqCst);
        // SAFETY: as the caller promises.
        unsafe { self.host.free(ptr, bytes) }
    }

    fn alignment(&self) -> usize {
        self.host.alignment()
    }
}

#[test]
fn a_device_leaves_nothing_behind() {
    let memory = Arc::new(Counted::default());
    let dev = Device::cpu_with(CpuConfig { memory: Some(memory.clone()), ..CpuConfig::default() });
    let side = dev.new_stream().unwrap();
    for stream in [&dev.default_stream(), &side] {
        let buffer = allocate(stream, 100_000).unwrap();
        write(stream, &buffer);
    }
    assert_eq!(memory.out.load(Ordering::SeqCst), 2);
    side.synchronize().unwrap();
    let [first, last, empty] = [100, 100, 0].map(|bytes| allocate(&side, bytes).unwrap());
    drop(first);
    drop((dev, side));
    drop(empty);
    assert_eq!(memory.out.load(Ordering::SeqCst), 2, "a buffer is left");
    last.download(|bytes| assert_eq!(bytes.len(), 100)).unwrap();
    drop(last);
    while memory.out.load(Ordering::SeqCst) != 0 {
        std::thread::yield_now();
    }
}

/// Four threads on four streams allocate, use, hand on and free, and a fifth looks on. Live ranges never
/// overlap, a buffer's content is its own, and the end is that of any serial order.
#[test]
fn invariant_20_threads_end_as_in_some_serial_order() {
    each_device(|dev| {
        const THREADS: usize = 4;
        const ROUNDS: u64 = 1500;
        let live: Mutex<BTreeMap<usize, usize>> = Mutex::default();
        let claim = |buffer: &Buffer| {
            let (start, end) = (buffer.ptr().addr(), buffer.ptr().addr() + buffer.len_bytes());
            let mut live = live.lock().unwrap();
            let below = live.range(..end).next_back();
            assert!(below.is_none_or(|(_, &other)| other <= start), "live ranges are disjoint");
            live.insert(start, end);
        };
        let release = |buffer: Buffer| {
            live.lock().unwrap().remove(&buffer.ptr().addr());
            drop(buffer);
        };
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel::<Buffer>()).unzip();
        let total = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for (thread, inbox) in receivers.into_iter().enumerate() {
                let outbox = senders[(thread + 1) % THREADS].clone();
                let (dev, claim, release, total) = (&dev, &claim, &release, &total);
                scope.spawn(move || {
                    let stream = dev.new_stream().unwrap();
                    let mut state = thread as u64 + 1;
                    let mut mine = Vec::new();
                    for _ in 0..ROUNDS {
                        state = state
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        let choice = (state >> 33) as usize;
                        let buffer = allocate(&stream, 1 + choice % 20_000).unwrap();
                        claim(&buffer);
                        total.fetch_add(1, Ordering::Relaxed);
                        let bytes = [choice as u8; 1];
                        stream.upload("mark", &buffer, 0, &bytes).unwrap();
                        mine.push((buffer, bytes[0]));
                        match choice % 7 {
                            0 => {
                                let (buffer, _) = mine.swap_remove(choice / 7 % mine.len());
                                outbox.send(buffer).unwrap();
                            }
                            1 | 2 => {
                                let (buffer, byte) = mine.swap_remove(choice / 7 % mine.len());
                                buffer
                                    .download(|bytes| assert_eq!(bytes[0], byte, "nobody else wrote here"))
                                    .unwrap();
                                release(buffer);
                            }
                            3 | 4 if mine.len() > 20 => {
                                mine.drain(..10).for_each(|(buffer, _)| release(buffer));
                            }
                            _ => {}
                        }
                        while let Ok(theirs) = inbox.try_recv() {
                            stream.launch_host("use", &[Use::write(&theirs)], || ()).unwrap();
                            release(theirs);
                        }
                    }
                    drop(outbox);
                    mine.into_iter().for_each(|(buffer, _)| release(buffer));
                    // The rest of what the neighbour hands on.
                    inbox.into_iter().for_each(release);
                    stream.synchronize().unwrap();
                });
            }
            drop(senders);
            for _ in 0..200 {
                let stats = dev.memory_snapshot().stats();
                assert_eq!(
                    stats.reserved_bytes,
                    stats.allocated_bytes + stats.pending_bytes + stats.cached_bytes
                );
                dev.trim();
                std::thread::yield_now();
            }
        });
        dev.synchronize().unwrap();
        let (stats, counted) = (dev.memory_stats(), dev.memory_snapshot().stats());
        assert_eq!(
            (stats.allocations, stats.frees),
            (total.load(Ordering::Relaxed), total.load(Ordering::Relaxed))
        );
        assert_eq!((stats.allocated_bytes, stats.live_blocks), (0, 0));
        assert_eq!(
            (stats.reserved_bytes, stats.pending_bytes),
            (counted.reserved_bytes, counted.pending_bytes)
        );
        assert_eq!(stats.segments, counted.segments);
        dev.trim();
        assert_eq!(dev.memory_stats().reserved_bytes, 0);
    });
}

#[test]
fn streams_on_their_own_threads_decide_alone() {
    each_device(|dev| {
        dev.set_allocator_config(AllocatorConfig { deterministic: true, ..Default::default() });
        let lane = |stream: &Stream, device: &Device| {
            // Addresses in the order of the lane's own calls, as offsets in its own segments.
            let mut places = Vec::new();
            let mut kept = Vec::new();
            for round in 0..300usize {
                let buffer = allocate(stream, 1 + round * 7919 % 30_000).unwrap();
                write(stream, &buffer);
                let address = buffer.ptr().addr();
                let snapshot = device.memory_snapshot();
                let own = snapshot.segments.iter().filter(|segment| segment.home == stream.id());
                let place = own.enumerate().find(|(_, segment)| {
                    (segment.address..segment.address + segment.bytes).contains(&address)
                });
                let (number, segment) = place.expect("its own arena");
                places.push((number, address - segment.address));
                kept.push(buffer);
                if kept.len() > 12 {
                    kept.swap_remove(round % 12);
                }
            }
            places
        };
        let run = |dev: &Device| -> Vec<_> {
            std::thread::scope(|scope| {
                let lanes = [(); 3].map(|()| {
                    scope.spawn(|| {
                        let stream = dev.new_stream().unwrap();
                        lane(&stream, dev)
                    })
                });
                lanes.into_iter().map(|lane| lane.join().unwrap()).collect()
            })
        };
        let places = run(&dev);
        assert!(places.iter().all(|lane| *lane == places[0]), "the other lanes change nothing");
    });
}

#[test]
fn a_device_with_another_pool_is_an_error() {
    each_device(|dev| {
        struct Nothing;
        impl device::Pool for Nothing {
            unsafe fn release(&self, _: device::BlockId, _: &[device::Moment]) -> Option<Device> {
                None
            }
        }
        dev.pool_or_init(|| Box::new(Nothing));
        assert!(CachingAllocator::of(&dev).is_none());
        assert!(matches!(
            allocate(&dev.default_stream(), 8).as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { .. })
        ));
        assert_eq!((dev.memory_stats().reserved_bytes, dev.trim()), (0, 0));
    });
}

#[test]
fn invariant_08_frees_record_no_event() {
    each_device(|dev| {
        let (main, side) = (dev.default_stream(), dev.new_stream().unwrap());
        let hold = side.hold();
        let buffers: Vec<_> = (0..100).map(|_| allocate(&main, 4096).unwrap()).collect();
        buffers.iter().for_each(|buffer| write(&side, buffer));
        let before = dev.sync_stats();
        drop(buffers);
        let after = dev.sync_stats() - before;
        assert_eq!((after.events_recorded, after.waits_inserted, after.launches), (0, 0, 0));
        // A wait for memory takes one event a stream at most.
        dev.set_allocator_config(AllocatorConfig { reuse: ReusePolicy::WaitFirst, ..Default::default() });
        drop(allocate(&main, 4096).unwrap());
        assert!((dev.sync_stats() - before).events_recorded <= 1);
        drop(hold);
        dev.synchronize().unwrap();
    });
}

#[test]
fn invariant_18_a_private_pool_keeps_its_addresses() {
    each_device(|dev| {
        let stream = dev.default_stream();
        let pool = PrivatePool::new(&dev).unwrap();
        let capture = || {
            let _serving = pool.serve(&stream).unwrap();
            let buffers = [allocate(&stream, MIB).unwrap(), allocate(&stream, 3000).unwrap()];
            buffers.each_ref().map(|buffer| buffer.ptr().addr())
        };
        let addresses = capture();
        // Free, but nobody else's: not another request's, not the driver's.
        assert_eq!(dev.trim(), 0);
        let mut others: Vec<_> = (0..20).map(|_| allocate(&stream, MIB).unwrap()).collect();
        let foreign =
            |buffer: &Buffer| addresses.iter().all(|&at| !(at..at + 3000).contains(&buffer.ptr().addr()));
        assert!(others.iter().all(foreign));
        dev.set_memory_limit(Some(dev.memory_stats().reserved_bytes));
        let report = loop {
            match allocate(&stream, MIB).map_err(Error::into_kind) {
                Ok(other) => others.push(other),
                Err(ErrorKind::OutOfMemory { report, .. }) => break report,
                Err(error) => panic!("{error}"),
            }
        };
        assert!(others.iter().all(foreign), "the pool's is not to be had");
        let segments = dev.memory_snapshot().segments;
        let own = segments.iter().filter(|segment| segment.pool == Some(pool.id()));
        let bytes: usize = own.map(|segment| segment.bytes).sum();
        let text = format!("private pools have {:.1} MiB", bytes as f64 / MIB as f64);
        assert!(bytes > MIB && report.contains(&text), "{text}: {report}");
        assert_eq!(capture(), addresses, "the same program gets the same addresses");
        drop(pool);
        let last = allocate(&stream, MIB).unwrap();
        assert_eq!(last.ptr().addr(), addresses[0], "released, it is memory like any other");
    });
}

#[test]
fn lent_memory_serves_nobody_until_the_loan_ends() {
    each_device(|dev| {
        let stream = dev.default_stream();
        let buffer = allocate(&stream, MIB).unwrap();
        let address = buffer.ptr();
        write(&stream, &buffer);
        // SAFETY: the foreign code is this test, which only looks at the address.
        let loan = unsafe { buffer.lend(false) };
        read(&stream, &buffer);
        assert!(becomes_idle(&stream), "readers go on");
        drop(buffer);
        let other = allocate(&stream, MIB).unwrap();
        assert_ne!(other.ptr(), address);
        drop(other);
        // Memory that foreign code writes to is waited for.
        let written = allocate(&stream, 1000).unwrap();
        // SAFETY: as above.
        let second = unsafe { written.lend(true) };
        read(&stream, &written);
        assert!(!stream.is_idle().unwrap());
        drop(second);
        dev.synchronize().unwrap();
        drop(loan);
        let all = [allocate(&stream, MIB).unwrap(), allocate(&stream, MIB).unwrap()];
        assert!(all.iter().any(|buffer| buffer.ptr() == address));
    });
}
