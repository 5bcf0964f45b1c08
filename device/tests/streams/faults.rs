//! Rules 22 and 23: what fails is reported once, by name, and the device goes on.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use device::cuda::Queue;
use device::{
    Binder, Buffer, Capture, Cpu, CpuConfig, CudaConfig, Device, Error, ErrorKind, Event, Result, Schedule,
    Stream, Use, Work,
};

use crate::common::{
    buffer, each_cpu_order, each_cpu_schedule, each_order, each_schedule, emulated, fail, fresh, new_streams,
    set, value,
};

type Synchronise = fn(&Device, &Stream, &Event, &Buffer) -> Result<()>;

/// Every call that waits for the device.
fn synchronising_calls() -> [Synchronise; 5] {
    [
        |device, _, _, _| device.synchronize(),
        |_, stream, _, _| stream.synchronize(),
        |_, _, event, _| event.synchronize(),
        |_, _, event, _| event.elapsed_ms(event).map(drop),
        |_, _, _, buffer| value(buffer).map(drop),
    ]
}

#[test]
fn rule_22_a_panic_is_an_error_at_the_next_synchronising_call() -> Result<()> {
    each_order(|dev| {
        let [side] = new_streams(dev)?;
        for stream in [dev.default_stream(), side] {
            for synchronise in synchronising_calls() {
                let x = buffer(&stream)?;
                stream.launch_host("explode", &[Use::write(&x)], || fail("boom"))?;
                let event = stream.record()?;
                match synchronise(dev, &stream, &event, &x).map_err(Error::into_kind) {
                    Err(ErrorKind::Async { op, stream: on, source }) => {
                        assert_eq!((op, on), ("explode", stream.id()));
                        assert_eq!(source.to_string(), "panicked: boom");
                    }
                    other => assert!(other.is_err(), "reported nothing"),
                }
                set(&stream, &x, 5)?;
                assert_eq!(value(&x)?, 5, "the device goes on");
                synchronise(dev, &stream, &event, &x)?;
            }
        }
        Ok(())
    })
}

/// A command fails on another thread; its error has the line of the call that returns it. So has that of a refused wait.
#[test]
fn rule_22_an_error_has_the_line_of_the_synchronising_call() -> Result<()> {
    let dev = Device::cpu_with(CpuConfig::default());
    let stream = dev.new_stream()?;
    let x = buffer(&stream)?;
    let event = stream.record()?;
    let calls: [(u32, &dyn Fn() -> Result<()>); 5] = [
        (line!(), &|| dev.synchronize()),
        (line!(), &|| stream.synchronize()),
        (line!(), &|| event.synchronize()),
        (line!(), &|| event.elapsed_ms(&event).map(drop)),
        (line!(), &|| x.download(|_| ())),
    ];
    let capture = Capture::new(&dev)?;
    for (line, call) in calls {
        stream.launch_host("explode", &[Use::write(&x)], || fail("boom"))?;
        while !stream.is_idle()? {}
        for told in [capture.scope(call), call()] {
            let error = told.err().ok_or_else(|| Error::invalid("test", "call", "an error", line))?;
            let at = error.location();
            assert_eq!((at.file(), at.line()), (file!(), line), "{error:?}");
        }
    }
    Ok(())
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        fail("when dropped");
    }
}

#[test]
fn rule_22_a_panic_with_a_payload_that_panics_is_one_error() -> Result<()> {
    each_order(|dev| {
        let [side] = new_streams(dev)?;
        for stream in [dev.default_stream(), side] {
            stream.launch_host("explode", &[], || resume_unwind(Box::new(Bomb)))?;
            let told = stream.synchronize();
            assert!(
                matches!(told.as_ref().map_err(Error::kind), Err(ErrorKind::Async { op: "explode", .. })),
                "{told:?}"
            );
            let bomb = Bomb;
            stream.launch_host("explode", &[], move || drop(bomb))?;
            let told = stream.synchronize();
            assert!(told.is_err_and(|error| error.to_string().contains("when dropped")));
            stream.synchronize()?;
        }
        Ok(())
    })
}

/// What a command that writes `x` is told when it makes a call.
fn told_within(
    stream: &Stream,
    x: &Arc<Buffer>,
    call: impl FnOnce(&Stream, &Buffer) -> Result<()> + Send + 'static,
) -> Result<Result<()>> {
    let (sender, receiver) = channel();
    let (own, written) = (stream.clone(), Arc::clone(x));
    stream.launch_host("within", &[Use::write(x)], move || {
        // The test listens.
        let _ = sender.send(call(&own, &written));
    })?;
    stream.synchronize()?;
    Ok(receiver.recv().unwrap_or_else(|_| unreachable!("the command has run")))
}

#[test]
fn what_would_wait_for_its_own_command_is_refused() -> Result<()> {
    let waits: [fn(&Stream, &Buffer) -> Result<()>; 3] = [
        |stream, _| stream.synchronize(),
        |stream, _| stream.device().synchronize(),
        |_, x| value(x).map(drop),
    ];
    each_cpu_order(|dev| {
        let [side] = new_streams(dev)?;
        for stream in [dev.default_stream(), side] {
            let x = Arc::new(buffer(&stream)?);
            for wait in waits {
                let told = told_within(&stream, &x, wait)?;
                assert!(
                    matches!(told.as_ref().map_err(Error::kind), Err(ErrorKind::Deadlock { .. })),
                    "{told:?}"
                );
            }
            // A queue takes it; a stream that runs on this very thread cannot.
            let told = told_within(&stream, &x, |stream, _| stream.launch_host("nested", &[], || ()))?;
            assert!(
                matches!(
                    told.as_ref().map_err(Error::kind),
                    Ok(()) | Err(ErrorKind::Deadlock { op: "nested", .. })
                ),
                "{told:?}"
            );
            // Nor can a host read wait for the writer that waits for it.
            set(&stream, &x, 1)?;
            let told = x.download(|_| set(&stream, &x, 2).and_then(|()| stream.synchronize()))?;
            assert!(
                matches!(
                    told.as_ref().map_err(Error::kind),
                    Err(ErrorKind::Deadlock { op: "synchronize", .. })
                ),
                "{told:?}"
            );
            assert_eq!(value(&x)?, 2);
        }
        Ok(())
    })
}

/// Launches on a stream, and waits for it, on a thread that helps with the command.
struct Helped {
    stream: Stream,
    told: Sender<[Result<()>; 2]>,
}

impl Work for Helped {
    fn run(&self, cpu: &Cpu<'_>) {
        let told = AtomicBool::new(false);
        let team = cpu.team(usize::MAX).unwrap_or_else(|| unreachable!("the device has two threads"));
        team.share(1, &|thread| match thread {
            0 => {
                while !told.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
            }
            _ => {
                // The test listens.
                let calls = [self.stream.launch_host("nested", &[], || ()), self.stream.synchronize()];
                let _ = self.told.send(calls);
                told.store(true, Ordering::Release);
            }
        });
    }

    fn enqueue(&self, _: &Queue<'_>) -> Result<()> {
        Ok(())
    }

    fn bind(&mut self, _: &mut dyn Binder) {}
}

#[test]
fn what_would_wait_for_the_command_that_a_thread_helps_with_is_refused() -> Result<()> {
    let dev = Device::cpu_with(CpuConfig { threads: Some(2), ..CpuConfig::default() });
    let [side] = new_streams(&dev)?;
    for stream in [dev.default_stream(), side] {
        let (sender, receiver) = channel();
        stream.launch("helped", &[], Helped { stream: stream.clone(), told: sender })?;
        stream.synchronize()?;
        let [launched, waited] = receiver.recv().unwrap_or_else(|_| unreachable!("the command has run"));
        assert!(
            matches!(
                launched.as_ref().map_err(Error::kind),
                Ok(()) | Err(ErrorKind::Deadlock { op: "nested", .. })
            ),
            "{launched:?}"
        );
        assert!(
            matches!(
                waited.as_ref().map_err(Error::kind),
                Err(ErrorKind::Deadlock { op: "synchronize", .. })
            ),
            "{waited:?}"
        );
    }
    Ok(())
}

#[test]
fn rule_22_a_panic_on_one_stream_releases_who_waits_for_it() -> Result<()> {
    each_schedule(|dev| {
        let [one, two] = new_streams(dev)?;
        let (x, y) = (buffer(&one)?, buffer(&two)?);
        let hold = one.hold();
        one.launch_host("explode", &[Use::write(&x)], || fail("boom"))?;
        two.launch_host("after", &[Use::read(&x), Use::write(&y)], || ())?;
        drop(hold);
        assert!(matches!(
            two.synchronize().as_ref().map_err(Error::kind),
            Err(ErrorKind::Async { op: "explode", .. })
        ));
        two.synchronize()
    })
}

#[test]
fn rule_23_the_first_failure_is_the_one_named() -> Result<()> {
    each_order(|dev| {
        let stream = dev.default_stream();
        stream.launch_host("first", &[], || fail("one"))?;
        stream.launch_host("second", &[], || fail("two"))?;
        assert!(matches!(
            dev.synchronize().as_ref().map_err(Error::kind),
            Err(ErrorKind::Async { op: "first", .. })
        ));
        dev.synchronize()
    })
}

#[test]
fn rule_23_an_unreported_failure_may_be_dropped() -> Result<()> {
    each_order(|dev| {
        let [side] = new_streams(dev)?;
        let x = buffer(&side)?;
        side.launch_host("explode", &[Use::write(&x)], || fail("boom"))?;
        drop((x, side));
        Ok(())
    })
}

#[test]
fn a_failure_hides_what_was_to_be_written() -> Result<()> {
    each_cpu_schedule(|dev| {
        let stream = dev.default_stream();
        let x = buffer(&stream)?;
        assert!(x.peek(<[u8]>::len).is_some());
        stream.launch_host("explode", &[Use::write(&x)], || fail("boom"))?;
        while !stream.is_idle()? {
            std::thread::yield_now();
        }
        assert!(x.peek(<[u8]>::len).is_none());
        assert!(dev.synchronize().is_err());
        assert!(x.peek(<[u8]>::len).is_some());
        Ok(())
    })
}

#[test]
fn rule_22_a_panic_in_a_host_read_ends_the_read() -> Result<()> {
    each_schedule(|dev| {
        let stream = dev.default_stream();
        let x = buffer(&stream)?;
        assert!(catch_unwind(AssertUnwindSafe(|| x.download(|_| fail("in a read")))).is_err());
        set(&stream, &x, 3)?;
        assert_eq!(value(&x)?, 3);
        Ok(())
    })
}

#[test]
fn rule_22_a_panic_while_launching_poisons_nothing() -> Result<()> {
    each_schedule(|dev| {
        let [side] = new_streams(dev)?;
        let x = buffer(&side)?;
        let user = || {
            let _hold = side.hold();
            if set(&side, &x, 1).is_ok() {
                fail("in the user's code");
            }
        };
        assert!(catch_unwind(AssertUnwindSafe(user)).is_err());
        assert_eq!(value(&x)?, 1);
        Ok(())
    })
}

/// Where each command is waited for, a hold is not, nor a command behind it, whose wait would not end.
#[test]
fn a_device_that_waits_for_each_command_can_be_held() -> Result<()> {
    let config = CudaConfig { blocking: Some(true), ..CudaConfig::default() };
    let dev = match Device::cuda_with(0, config) {
        Err(error) if matches!(error.kind(), ErrorKind::CudaUnavailable { .. }) => return Ok(()),
        device => device?,
    };
    let [one, two] = new_streams(&dev)?;
    let hold = one.hold();
    one.launch_host("behind", &[], || ())?;
    two.wait_stream(&one)?;
    two.launch_host("after", &[], || ())?;
    assert!(!one.is_idle()? && !two.is_idle()?);
    drop(hold);
    dev.synchronize()?;
    let ran = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&ran);
    two.launch_host("later", &[], move || set.store(true, Ordering::SeqCst))?;
    assert!(ran.load(Ordering::SeqCst));
    Ok(())
}

/// A worker waits for a driver's stream, of which all or some waits fail.
#[test]
#[ignore = "run by the test below"]
fn inner_failing_wait() -> Result<()> {
    let cuda = Device::cuda_with(0, CudaConfig::default())?;
    let cpu = fresh(Schedule::Threads);
    let (first, second) = (cuda.default_stream(), cpu.default_stream());
    let (ran, in_order) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (set, seen, result) = (Arc::clone(&ran), Arc::clone(&ran), Arc::clone(&in_order));
    let hold = first.hold();
    first.launch_host("first", &[], move || set.store(true, Ordering::SeqCst))?;
    second.wait_stream(&first)?;
    second.launch_host("second", &[], move || {
        assert!(seen.load(Ordering::SeqCst), "ran too early");
        result.store(true, Ordering::SeqCst);
    })?;
    // Long enough for a worker that does not wait.
    std::thread::sleep(Duration::from_millis(100));
    let waits_fail_for_ever = std::env::var("CUDA_EMULATOR_FAIL").is_ok_and(|calls| calls.contains("Query"));
    if waits_fail_for_ever {
        let told = second.synchronize();
        assert!(
            matches!(told.as_ref().map_err(Error::kind), Err(ErrorKind::Async { op: "wait", .. })),
            "{told:?}"
        );
        assert!(!in_order.load(Ordering::SeqCst), "nothing says that the first has run");
    }
    drop(hold);
    if !waits_fail_for_ever {
        let told = second.synchronize();
        assert!(
            matches!(told.as_ref().map_err(Error::kind), Err(ErrorKind::Async { op: "wait", .. })),
            "{told:?}"
        );
        assert!(in_order.load(Ordering::SeqCst));
        second.synchronize()?;
    }
    Ok(())
}

#[test]
fn a_wait_that_fails_is_told_and_not_lost() {
    if !emulated() {
        println!("skipped: only the emulated driver fails on demand");
        return;
    }
    let calls = |function: &str, count: usize| {
        (1..=count).map(|call| format!("{function}:{call}")).collect::<Vec<_>>().join(",")
    };
    let for_ever = ["cuStreamSynchronize", "cuStreamQuery", "cuEventQuery"].map(|name| calls(name, 2000));
    for fails in [calls("cuStreamSynchronize", 1), calls("cuStreamSynchronize", 3), for_ever.join(",")] {
        let mut command = Command::new(std::env::current_exe().unwrap_or_default());
        command.args(["--exact", "faults::inner_failing_wait", "--ignored"]);
        let output = command.env("CUDA_EMULATOR_FAIL", &fails).output();
        let output = output.unwrap_or_else(|error| unreachable!("{error}"));
        assert!(output.status.success(), "{fails:.80}: {}", String::from_utf8_lossy(&output.stdout));
    }
}
