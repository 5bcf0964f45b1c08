//! What a device is, and what may not be mixed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use device::cuda::Queue;
use device::{Cpu, Device, Error, Placement, Priority, Result, Schedule, Stream, StreamOptions, Use, Work};

use crate::common::{buffer, counted, each_schedule, fresh, new_streams, set};

#[test]
fn rule_18_mixed_devices_are_an_error_before_launch() -> Result<()> {
    let (one, two) = (fresh(Schedule::Inline), fresh(Schedule::Threads));
    let (x, y) = (buffer(&one.default_stream())?, buffer(&two.default_stream())?);
    let stream = one.default_stream();
    let before = (stream.now(), x.last_write());
    let stats = counted(&one, || {
        let launched = stream.launch_host("add", &[Use::write(&x), Use::read(&y)], || ());
        assert!(matches!(launched, Err(Error::DeviceMismatch { op: "add", .. })));
        assert!(matches!(set(&stream, &y, 1), Err(Error::DeviceMismatch { op: "set", .. })));
        let uploaded = stream.upload("upload", &y, 0, &[1]);
        assert!(matches!(uploaded, Err(Error::DeviceMismatch { op: "upload", .. })));
        Ok(())
    })?;
    assert_eq!((stats.launches, stream.now(), x.last_write()), (0, before.0, before.1));
    one.synchronize()
}

#[test]
fn devices_are_equal_by_identity() {
    assert_eq!(Device::cpu(), Device::cpu());
    assert_ne!(fresh(Schedule::Inline), fresh(Schedule::Inline));
    assert_eq!(Device::cpu().to_string(), "cpu");
}

#[test]
fn a_device_that_is_missing_says_why() {
    // A machine with a driver has no such ordinal either.
    let reason = match Device::cuda(4096) {
        Err(Error::CudaUnavailable { reason }) => reason,
        other => format!("{other:?}").into(),
    };
    assert!(!reason.is_empty() && !reason.starts_with("Ok"), "{reason}");
}

#[test]
fn streams_are_what_was_asked_for() -> Result<()> {
    each_schedule(|dev| {
        let high = dev.new_stream_with_priority(Priority::High)?;
        assert_eq!((high.priority(), high.device()), (Priority::High, dev));
        assert_eq!(dev.default_stream().priority(), Priority::Normal);
        assert!(!splits(&high, usize::MAX)?, "the device has one thread");
        Ok(())
    })?;
    let dev = Device::cpu_with(device::CpuConfig { threads: Some(2), ..device::CpuConfig::default() });
    let one = dev.new_stream_with(StreamOptions { threads: Some(1), ..StreamOptions::default() })?;
    assert!(!splits(&one, usize::MAX)?);
    assert!(splits(&dev.default_stream(), usize::MAX)?);
    assert!(!splits(&dev.default_stream(), 1000)?, "too little work");
    Ok(())
}

/// Whether a CPU's command of this cost gets threads beside its own.
fn splits(stream: &Stream, cost: usize) -> Result<bool> {
    struct Ask(usize, Arc<AtomicBool>);
    impl Work for Ask {
        fn run(&self, cpu: &Cpu<'_>) {
            self.1.store(cpu.team(self.0).is_some(), Ordering::Release);
        }

        fn enqueue(&self, _: &Queue<'_>) -> Result<()> {
            Ok(())
        }
    }
    let answer = Arc::new(AtomicBool::new(false));
    stream.launch("ask", &[], Ask(cost, Arc::clone(&answer)))?;
    stream.synchronize()?;
    Ok(answer.load(Ordering::Acquire))
}

#[test]
fn a_caller_stream_runs_at_once_when_it_can() -> Result<()> {
    let dev = fresh(Schedule::Inline);
    let caller =
        dev.new_stream_with(StreamOptions { placement: Placement::Caller, ..StreamOptions::default() })?;
    let launch = || {
        let (sender, receiver) = channel();
        let launched = caller.launch_host("where", &[], move || {
            // The test listens.
            let _ = sender.send(std::thread::current().id());
        });
        launched.map(|()| receiver)
    };
    let here = Ok(std::thread::current().id());
    assert_eq!(launch()?.recv(), here);
    let [side] = new_streams(&dev)?;
    let hold = side.hold();
    caller.wait_stream(&side)?;
    let queued = launch()?;
    assert!(!caller.is_idle()? && queued.try_recv().is_err());
    drop(hold);
    assert_ne!(queued.recv(), here, "behind a queue only the worker may run it");
    caller.synchronize()?;
    assert_eq!(launch()?.recv(), here);
    Ok(())
}
