//! Rules 19 and 20: what may be dropped when, and what is left afterwards.

use std::process::Command;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use device::cuda::PinnedMemory;
use device::{
    CpuConfig, CudaConfig, Device, Error, ErrorKind, HostMemory, MemoryDriver, Moment, Policy, Result,
    Schedule, Shared, StreamId, Use,
};

use crate::common::{
    arrives, buffer, copy, each_schedule, emulated, eventually, fresh, is_waiting, new_streams, on_pages,
    pool, runs, send, set, tell, value,
};

#[test]
fn rule_19_a_stream_may_be_dropped_with_pending_work() -> Result<()> {
    each_schedule(|dev| {
        let [side, other] = new_streams(dev)?;
        let (x, y) = (buffer(&other)?, buffer(&other)?);
        let hold = side.hold();
        set(&side, &x, 8)?;
        drop(side);
        copy(&other, &x, &y)?;
        drop(hold);
        assert_eq!(value(&y)?, 8);
        dev.synchronize()
    })
}

#[test]
fn rule_19_a_device_waits_for_dropped_streams_too() -> Result<()> {
    each_schedule(|dev| {
        let [side] = new_streams(dev)?;
        let hold = side.hold();
        let told = tell(&side, &[])?;
        drop(side);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| dev.synchronize());
            drop(hold);
            assert!(matches!(waiter.join(), Ok(Ok(()))));
        });
        assert!(told.ran());
        Ok(())
    })
}

#[test]
fn rule_19_stream_ids_are_never_recycled() -> Result<()> {
    each_schedule(|dev| {
        let mut newest = dev.default_stream().id();
        for _ in 0..50 {
            let [side] = new_streams(dev)?;
            assert!(side.id() > newest);
            newest = side.id();
        }
        Ok(())
    })
}

#[test]
fn the_past_of_a_stream_that_is_gone_has_passed() -> Result<()> {
    each_schedule(|dev| {
        let [side, other] = new_streams(dev)?;
        let x = buffer(&other)?;
        set(&side, &x, 1)?;
        let moment = side.now();
        drop(side);
        assert!(eventually(|| dev.reached(moment)));
        other.wait_for(&[moment])?;
        assert!(other.is_idle()? && other.covers(moment));
        assert_eq!(value(&x)?, 1);
        Ok(())
    })
}

#[test]
fn rule_20_dropping_a_buffer_never_blocks_and_names_its_last_uses() -> Result<()> {
    each_schedule(|dev| {
        let [one, two, three] = new_streams(dev)?;
        let x = buffer(&one)?;
        let holds = (one.hold(), two.hold(), three.hold());
        set(&one, &x, 1)?;
        let written = one.now();
        let reads = [&two, &two, &three]
            .map(|stream| tell(stream, &[Use::read(&x)]).map(|told| (stream.now(), told)));
        drop(x);
        let [first, second, third] = reads;
        let (_, (second, _), (third, _)) = (first?, second?, third?);
        let mut uses = pool(dev).released().pop().map(|(_, uses)| uses).unwrap_or_default();
        uses.sort_by_key(|moment| moment.stream);
        assert_eq!(uses[..], [written, second, third]);
        drop(holds);
        dev.synchronize()
    })
}

#[test]
fn rule_20_a_write_replaces_all_earlier_uses() -> Result<()> {
    each_schedule(|dev| {
        let [one, two] = new_streams(dev)?;
        let x = buffer(&one)?;
        tell(&two, &[Use::read(&x)])?;
        set(&one, &x, 1)?;
        let written = one.now();
        assert_eq!(value(&x)?, 1, "a read of the host leaves no use behind");
        drop(x);
        let uses = pool(dev).released().pop().map(|(_, uses)| uses).unwrap_or_default();
        assert_eq!(uses[..], [written]);
        // A read after it on the same stream stands for it.
        let y = buffer(&one)?;
        set(&one, &y, 1)?;
        tell(&one, &[Use::read(&y)])?;
        let read = one.now();
        drop(y);
        let uses = pool(dev).released().pop().map(|(_, uses)| uses).unwrap_or_default();
        assert_eq!(uses[..], [read]);
        Ok(())
    })
}

/// Counts what is allocated, and lives as long as its device.
#[derive(Default)]
struct Counting {
    live: Arc<AtomicUsize>,
}

// SAFETY: ranges are those of `HostMemory`.
unsafe impl MemoryDriver for Counting {
    fn allocate(&self, bytes: usize) -> Result<NonNull<u8>> {
        self.live.fetch_add(1, Ordering::SeqCst);
        HostMemory.allocate(bytes)
    }

    unsafe fn free(&self, ptr: NonNull<u8>, bytes: usize) {
        self.live.fetch_sub(1, Ordering::SeqCst);
        // SAFETY: the caller promises what `HostMemory` asks for.
        unsafe { HostMemory.free(ptr, bytes) }
    }
}

#[test]
fn rule_19_a_device_may_be_dropped_with_pending_work() -> Result<()> {
    for schedule in [Schedule::Inline, Schedule::Threads, Schedule::Delay { seed: 2 }] {
        let live = Arc::new(AtomicUsize::new(0));
        let driver = Arc::new(Counting { live: Arc::clone(&live) });
        let gone = Arc::downgrade(&driver);
        let dev = Device::cpu_with(CpuConfig {
            threads: Some(1),
            schedule,
            memory: Some(driver),
            ..CpuConfig::default()
        });
        let (main, [side]) = (dev.default_stream(), new_streams(&dev)?);
        let (x, y) = (buffer(&side)?, buffer(&main)?);
        let hold = side.hold();
        set(&side, &x, 1)?;
        copy(&main, &x, &y)?;
        let told = send(&main, &[Use::read(&y)])?;
        drop((x, y, main, side, dev));
        assert_eq!(live.load(Ordering::SeqCst), 2, "the queue keeps the memory");
        drop(hold);
        assert!(arrives(&told));
        assert!(eventually(|| gone.strong_count() == 0), "nothing keeps the device");
        assert_eq!(live.load(Ordering::SeqCst), 0, "nothing leaks");
    }
    Ok(())
}

/// Counts what a CUDA device has of the host's memory, and who gives it back.
struct Watched {
    memory: PinnedMemory,
    live: AtomicUsize,
    freed_on: Mutex<Vec<ThreadId>>,
}

// SAFETY: ranges are those of `PinnedMemory`.
unsafe impl MemoryDriver for Watched {
    fn allocate(&self, bytes: usize) -> Result<NonNull<u8>> {
        self.live.fetch_add(1, Ordering::SeqCst);
        self.memory.allocate(bytes)
    }

    unsafe fn free(&self, ptr: NonNull<u8>, bytes: usize) {
        self.live.fetch_sub(1, Ordering::SeqCst);
        self.freed_on.lock().unwrap_or_else(PoisonError::into_inner).push(std::thread::current().id());
        // SAFETY: the caller's promise.
        unsafe { self.memory.free(ptr, bytes) }
    }
}

/// The last handle of a CUDA device goes within a function that its stream calls, or when the function ends; the driver
/// refuses every call there.
#[test]
fn a_host_function_may_have_the_last_handle() -> Result<()> {
    for captured in [false, true] {
        let memory = match PinnedMemory::new(0).map_err(Error::into_kind) {
            Ok(memory) => memory,
            Err(ErrorKind::CudaUnavailable { reason }) => {
                println!("skipped: {reason}");
                return Ok(());
            }
            Err(error) => return Err(Error::new(error)),
        };
        let driver = Arc::new(Watched { memory, live: AtomicUsize::new(0), freed_on: Mutex::default() });
        let dev = Device::cuda_with(0, CudaConfig { memory: Some(driver.clone()), ..CudaConfig::default() })?;
        let other = Device::cuda_with(0, CudaConfig::default())?;
        let main = dev.default_stream();
        let x = buffer(&main)?;
        let (go, gone) = channel();
        let (say, said) = channel();
        let handle = captured.then(|| dev.clone());
        main.launch_host("last", &[Use::write(&x)], move || {
            // The test goes on whatever is sent.
            let _ = gone.recv();
            drop(handle);
            let _ = say.send(std::thread::current().id());
        })?;
        other.default_stream().wait_for(&[main.now()])?;
        drop((x, main, dev));
        assert_eq!(driver.live.load(Ordering::SeqCst), 1, "the queue keeps the memory");
        assert!(go.send(()).is_ok());
        other.synchronize()?;
        let caller = said.recv();
        assert!(eventually(|| Arc::strong_count(&driver) == 1), "nothing keeps the device");
        assert_eq!(driver.live.load(Ordering::SeqCst), 0, "nothing leaks");
        let freed_on = driver.freed_on.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(caller.is_ok_and(|caller| !freed_on.contains(&caller)), "freed where the driver refuses it");
    }
    Ok(())
}

/// A host function has all that is left of a stream.
#[test]
#[ignore = "run by the test below"]
fn inner_last_of_a_stream() -> Result<()> {
    let dev = Device::cuda_with(0, CudaConfig::default())?;
    let [side] = new_streams(&dev)?;
    let main = dev.default_stream();
    let event = side.record()?;
    main.wait_for(&[side.now()])?;
    dev.synchronize()?;
    drop(side);
    main.launch_host("last", &[], move || drop(event))?;
    // Not the device, which would have every stream while it waits.
    main.synchronize()
}

#[test]
fn a_host_function_may_have_the_last_of_a_stream() -> std::io::Result<()> {
    if !emulated() {
        println!("skipped: only the emulated driver tells its calls");
        return Ok(());
    }
    let log = std::env::temp_dir().join(format!("streamgrad-last-{}", std::process::id()));
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "lifetime::inner_last_of_a_stream", "--ignored"]);
    assert!(command.env("CUDA_EMULATOR_LOG", &log).status()?.success());
    let calls = std::fs::read_to_string(&log)?;
    std::fs::remove_file(log)?;
    let refused: Vec<&str> = calls.lines().filter(|line| line.ends_with(" -> 800")).collect();
    assert!(calls.contains("cuLaunchHostFunc") && refused.is_empty(), "{refused:?}");
    Ok(())
}

/// Whether a thread of the process bears the stream's name. A thread names itself once it runs, and a list of threads that
/// is read while others exit may miss some, so a test asks [`eventually`], and for absence [`has_no_thread`].
fn has_thread(id: StreamId) -> bool {
    let name = format!("stream {id}");
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.into_iter().any(|comm| comm.trim_end() == name)
}

/// Whether list after list is without such a thread: one alone may have missed it.
pub(crate) fn has_no_thread(id: StreamId) -> bool {
    (0..8).all(|_| {
        std::thread::sleep(Duration::from_millis(1));
        !has_thread(id)
    })
}

#[test]
#[cfg(target_os = "linux")]
fn threads_exit_after_their_streams_are_dropped() -> Result<()> {
    for schedule in [Schedule::Inline, Schedule::Threads, Schedule::Delay { seed: 2 }] {
        let dev = crate::common::fresh(schedule);
        let (main, [side]) = (dev.default_stream(), new_streams(&dev)?);
        drop((main.hold(), side.hold()));
        dev.synchronize()?;
        let (main_id, side_id) = (main.id(), side.id());
        assert!(eventually(|| has_thread(main_id) && has_thread(side_id)));
        drop(side);
        assert!(eventually(|| has_no_thread(side_id) && has_thread(main_id)));
        drop((main, dev));
        assert!(eventually(|| has_no_thread(main_id)));
    }
    Ok(())
}

#[test]
fn counts_survive_their_streams() -> Result<()> {
    each_schedule(|dev| {
        let [one, two] = new_streams(dev)?;
        let x = buffer(&one)?;
        let before = dev.sync_stats();
        let hold = one.hold();
        set(&one, &x, 1)?;
        tell(&two, &[Use::read(&x)])?;
        let counted = dev.sync_stats();
        drop(x);
        drop((one, two));
        assert_eq!(dev.sync_stats(), counted, "with their work pending");
        drop(hold);
        dev.synchronize()?;
        let stats = dev.sync_stats() - before;
        assert_eq!((stats.launches, stats.waits_inserted, stats.events_recorded), (2, 1, 1));
        Ok(())
    })
}

#[test]
fn a_moment_at_tick_0_has_always_passed() -> Result<()> {
    each_schedule(|dev| {
        let [side] = new_streams(dev)?;
        let start = Moment { stream: side.id(), tick: 0 };
        assert!(dev.reached(start) && dev.default_stream().covers(start));
        Ok(())
    })
}

#[test]
fn a_shared_buffer_goes_back_once_with_its_last_owner() -> Result<()> {
    const ROUNDS: usize = 500;
    let dev = crate::common::fresh(Schedule::Inline);
    let main = dev.default_stream();
    for round in 0..ROUNDS {
        let first = Shared::new(buffer(&main)?);
        assert!(first.is_unique());
        let owners: Vec<_> = (0..4).map(|_| first.clone()).collect();
        assert!(!first.is_unique() && owners.iter().all(|owner| owner.ptr_eq(&first)));
        drop(first);
        std::thread::scope(|scope| {
            for owner in owners {
                scope.spawn(move || {
                    let another = owner.clone();
                    drop(owner);
                    assert_eq!(another.last_write().tick, 0);
                });
            }
        });
        assert_eq!(pool(&dev).released().len(), round + 1);
    }
    Ok(())
}

#[test]
fn a_loan_holds_up_only_who_conflicts_with_it() -> Result<()> {
    each_schedule(|dev| {
        let [side, other] = new_streams(dev)?;
        let (x, y) = (buffer(&side)?, buffer(&other)?);
        set(&side, &x, 1)?;
        side.synchronize()?;
        // SAFETY: nobody uses the memory on its behalf.
        let loan = unsafe { x.lend(false) };
        copy(&other, &x, &y)?;
        assert_eq!(value(&y)?, 1, "readers go on");
        let written = tell(&side, &[Use::write(&x)])?;
        assert!(is_waiting(&written));
        drop(loan);
        assert!(runs(&written));
        Ok(())
    })
}

/// The driver cannot wait for a loan that writes.
#[test]
fn a_refused_read_of_lent_memory_holds_nothing_up() -> Result<()> {
    let Ok(dev) = Device::cuda_with(0, CudaConfig::default()) else { return Ok(()) };
    if !on_pages(&dev) {
        return Ok(());
    }
    let stream = dev.default_stream();
    let x = buffer(&stream)?;
    // SAFETY: nobody uses the memory on its behalf.
    let loan = unsafe { x.lend(true) };
    for _ in 0..2 {
        let refused = x.download(|_| ());
        assert!(
            matches!(refused.as_ref().map_err(Error::kind), Err(ErrorKind::CudaUnavailable { .. })),
            "{refused:?}"
        );
    }
    let written = tell(&stream, &[Use::write(&x)])?;
    assert!(is_waiting(&written));
    drop(loan);
    assert!(runs(&written));
    Ok(())
}

#[test]
fn a_held_device_may_be_dropped_before_the_hold() -> Result<()> {
    let explored = Schedule::Explore(Policy::Random { seed: 1 });
    for schedule in [Schedule::Inline, Schedule::Threads, explored] {
        let dev = fresh(schedule);
        let hold = dev.default_stream().hold();
        drop(dev);
        drop(hold);
    }
    if let Ok(dev) = Device::cuda_with(0, CudaConfig::default()) {
        let hold = dev.default_stream().hold();
        drop(dev);
        drop(hold);
    }
    Ok(())
}

#[test]
fn an_explored_device_waits_for_another_one() -> Result<()> {
    let explored = |seed| fresh(Schedule::Explore(Policy::Random { seed }));
    let (here, there) = (explored(1), explored(2));
    let ran = Arc::new(AtomicUsize::new(0));
    let (first, second) = (Arc::clone(&ran), Arc::clone(&ran));
    there.default_stream().launch_host("first", &[], move || first.store(1, Ordering::SeqCst))?;
    here.default_stream().wait(&there.default_stream().record()?)?;
    here.default_stream().launch_host("second", &[], move || {
        second.fetch_add(10 * second.load(Ordering::SeqCst), Ordering::SeqCst);
    })?;
    here.synchronize()?;
    assert_eq!(ran.load(Ordering::SeqCst), 11);
    Ok(())
}

/// A thread may have given out a tick, and not yet queued its command, when another one waits for it.
#[test]
fn a_command_that_another_thread_is_launching_is_waited_for() -> Result<()> {
    let dev = fresh(Schedule::Explore(Policy::Random { seed: 3 }));
    let stream = dev.default_stream();
    let ran = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let launched = scope.spawn(|| {
            (0..2000).try_for_each(|_| {
                let ran = Arc::clone(&ran);
                stream.launch_host("count", &[], move || {
                    ran.fetch_add(1, Ordering::SeqCst);
                })
            })
        });
        while !launched.is_finished() {
            let tick = stream.now().tick as usize;
            stream.synchronize()?;
            assert!(ran.load(Ordering::SeqCst) >= tick);
        }
        launched.join().unwrap_or(Ok(()))
    })
}
