//! What a device is, and what may not be mixed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use device::cuda::Queue;
use device::{
    Binder, Cpu, CudaConfig, Device, Error, ErrorKind, Placement, Priority, Result, Schedule, Stream,
    StreamOptions, Team, Use, Work,
};

use crate::common::{buffer, counted, each_schedule, fail, fresh, new_streams, set};

#[test]
fn rule_18_mixed_devices_are_an_error_before_launch() -> Result<()> {
    let (one, two) = (fresh(Schedule::Inline), fresh(Schedule::Threads));
    let (x, y) = (buffer(&one.default_stream())?, buffer(&two.default_stream())?);
    let stream = one.default_stream();
    let before = (stream.now(), x.last_write());
    let stats = counted(&one, || {
        let launched = stream.launch_host("add", &[Use::write(&x), Use::read(&y)], || ());
        assert!(matches!(
            launched.as_ref().map_err(Error::kind),
            Err(ErrorKind::DeviceMismatch { op: "add", .. })
        ));
        assert!(matches!(
            set(&stream, &y, 1).as_ref().map_err(Error::kind),
            Err(ErrorKind::DeviceMismatch { op: "set", .. })
        ));
        let uploaded = stream.upload("upload", &y, 0, &[1]);
        assert!(matches!(
            uploaded.as_ref().map_err(Error::kind),
            Err(ErrorKind::DeviceMismatch { op: "upload", .. })
        ));
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
    let reason = match Device::cuda(4096).map_err(Error::into_kind) {
        Err(ErrorKind::CudaUnavailable { reason }) => reason,
        other => format!("{other:?}").into(),
    };
    assert!(!reason.is_empty() && !reason.starts_with("Ok"), "{reason}");
}

#[test]
fn streams_are_what_was_asked_for() -> Result<()> {
    each_schedule(|dev| {
        let high =
            dev.new_stream_with(StreamOptions { priority: Priority::High, ..StreamOptions::default() })?;
        assert_eq!((high.priority(), high.device()), (Priority::High, dev));
        assert_eq!(dev.default_stream().priority(), Priority::Normal);
        assert!(team(&high, usize::MAX)?.is_none(), "the device has one thread");
        Ok(())
    })?;
    let dev = Device::cpu_with(device::CpuConfig { threads: Some(2), ..device::CpuConfig::default() });
    let one = dev.new_stream_with(StreamOptions { threads: Some(1), ..StreamOptions::default() })?;
    assert!(team(&one, usize::MAX)?.is_none());
    assert!(team(&dev.default_stream(), usize::MAX)?.is_some());
    assert!(team(&dev.default_stream(), 1000)?.is_none(), "too little work");
    Ok(())
}

/// The threads that a CPU's command of this cost gets beside its own.
fn team(stream: &Stream, cost: usize) -> Result<Option<Arc<Team>>> {
    struct Ask(usize, Sender<Option<Arc<Team>>>);
    impl Work for Ask {
        fn run(&self, cpu: &Cpu<'_>) {
            drop(self.1.send(cpu.team(self.0).cloned()));
        }

        fn enqueue(&self, _: &Queue<'_>) -> Result<()> {
            drop(self.1.send(None));
            Ok(())
        }

        fn bind(&mut self, _: &mut dyn Binder) {}
    }
    let (sender, receiver) = channel();
    stream.launch("ask", &[], Ask(cost, sender))?;
    stream.synchronize()?;
    Ok(receiver.recv().ok().flatten())
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

#[test]
fn a_sibling_waits_for_its_commands_as_its_device_does() -> Result<()> {
    for blocking in [false, true] {
        let config = CudaConfig { blocking: Some(blocking), ..CudaConfig::default() };
        let device = match Device::cuda_with(0, config) {
            Err(error) if matches!(error.kind(), ErrorKind::CudaUnavailable { .. }) => return Ok(()),
            made => made?,
        };
        let sibling = device.sibling(1)?;
        let launched = sibling.default_stream().launch_host("explode", &[], || fail("boom"));
        assert_eq!((launched.is_err(), sibling.synchronize().is_err()), (blocking, !blocking));
    }
    Ok(())
}

#[test]
fn a_number_of_threads_that_no_system_gives_is_capped() -> Result<()> {
    let many = |threads| {
        Device::cpu_with(device::CpuConfig { threads: Some(threads), ..device::CpuConfig::default() })
    };
    for threads in [20_000, 1_000_000, usize::MAX] {
        assert_eq!(many(threads).threads(), Team::MAX_HELPERS + 1);
        let refused = Team::new("test", threads);
        assert!(
            matches!(
                refused.as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { argument: "helpers", .. })
            ),
            "{refused:?}"
        );
    }
    let (device, sum) = (many(20_000), AtomicUsize::new(0));
    let team = team(&device.default_stream(), usize::MAX)?;
    assert_eq!(device.start_threads().is_ok(), team.is_some());
    let add = |i| {
        sum.fetch_add(i + 1, Ordering::Relaxed);
    };
    // Where the system gives fewer, kernels are not split.
    let panics = team.map(|team| team.run(&add)).transpose()?;
    let n = Team::MAX_HELPERS + 1;
    assert!(panics.is_none_or(|panics| panics.is_empty() && sum.into_inner() == n * (n + 1) / 2));
    Ok(())
}
