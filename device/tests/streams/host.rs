//! What the host reads, writes and waits for.

use std::sync::mpsc::channel;
use std::time::Duration;

use device::{Capture, CudaConfig, Device, Error, ErrorKind, Result, Schedule, Use};

use crate::common::{
    WORDS, Words, arrives, buffer, counted, each_cpu_schedule, each_schedule, first_word, fresh, is_waiting,
    new_streams, runs, set, tell, value,
};

#[test]
fn rule_24_a_host_read_waits_only_for_the_last_write() -> Result<()> {
    each_schedule(|dev| {
        let [busy, side] = new_streams(dev)?;
        let x = buffer(&side)?;
        set(&side, &x, 4)?;
        side.synchronize()?;
        let hold = busy.hold();
        let reader = tell(&busy, &[Use::read(&x)])?;
        let (_later, told) = (side.hold(), tell(&side, &[])?);
        assert_eq!(value(&x)?, 4, "neither readers nor later commands matter");
        assert!(is_waiting(&told));
        drop(hold);
        assert!(runs(&reader));
        Ok(())
    })
}

#[test]
fn rule_24_a_writer_launched_meanwhile_waits_for_the_read() -> Result<()> {
    each_cpu_schedule(|dev| {
        let [side] = new_streams(dev)?;
        for stream in [dev.default_stream(), side] {
            let x = buffer(&stream)?;
            set(&stream, &x, 1)?;
            let told = x.download(|bytes| {
                set(&stream, &x, 2)?;
                let told = tell(&stream, &[Use::read(&x)])?;
                assert!(is_waiting(&told));
                assert_eq!(first_word(bytes), 1);
                Ok(told)
            })??;
            assert!(runs(&told));
            assert_eq!(value(&x)?, 2);
        }
        Ok(())
    })
}

#[test]
fn rule_24_host_reads_do_not_wait_for_each_other() -> Result<()> {
    each_schedule(|dev| {
        let stream = dev.default_stream();
        let (x, y) = (buffer(&stream)?, buffer(&stream)?);
        set(&stream, &x, 1)?;
        set(&stream, &y, 2)?;
        let (begin, begun) = channel();
        let (end, ended) = channel();
        std::thread::scope(|scope| {
            let x = &x;
            let reader = scope.spawn(move || {
                x.download(|_| begin.send(()).is_ok() && ended.recv_timeout(Duration::from_secs(20)).is_ok())
            });
            assert!(arrives(&begun));
            let read = value(&y);
            // The other read ends only now.
            assert!(end.send(()).is_ok());
            assert!(matches!(reader.join(), Ok(Ok(true))));
            read.map(|read| assert_eq!(read, 2))
        })?;
        let stats = counted(dev, || set(&stream, &y, 3))?;
        assert_eq!((stats.waits_inserted, stats.waits_elided), (0, 0), "a read that ended is forgotten");
        Ok(())
    })
}

#[test]
fn a_read_that_ends_leaves_the_others_of_its_buffer() -> Result<()> {
    each_cpu_schedule(|dev| {
        let stream = dev.default_stream();
        let x = buffer(&stream)?;
        set(&stream, &x, 1)?;
        let told = x.download(|outer| {
            x.download(|_| ())?;
            let told = tell(&stream, &[Use::write(&x)])?;
            assert!(is_waiting(&told), "the outer read goes on");
            assert_eq!(first_word(outer), 1);
            Ok(told)
        })??;
        assert!(runs(&told));
        Ok(())
    })
}

#[test]
fn peek_never_waits() -> Result<()> {
    each_cpu_schedule(|dev| {
        let [side] = new_streams(dev)?;
        let x = buffer(&side)?;
        let stats = counted(dev, || {
            let hold = side.hold();
            set(&side, &x, 6)?;
            assert_eq!(x.peek(first_word), None);
            drop(hold);
            while x.peek(first_word).is_none() {
                std::thread::yield_now();
            }
            assert_eq!(x.peek(first_word), Some(6));
            Ok(())
        })?;
        assert_eq!(stats.host_syncs, 0);
        Ok(())
    })
}

// A driver copies from host memory to host memory, which these tests have on CUDA, while the caller waits.
#[test]
fn upload_on_a_busy_stream_keeps_the_bytes() -> Result<()> {
    each_cpu_schedule(|dev| {
        let [side] = new_streams(dev)?;
        for stream in [dev.default_stream(), side] {
            let x = buffer(&stream)?;
            let hold = stream.hold();
            let mut bytes = vec![7u8; 4];
            stream.upload("upload", &x, 4, &bytes)?;
            bytes.fill(9);
            drop(bytes);
            drop(hold);
            let content = x.download(<[u8]>::to_vec)?;
            assert_eq!(content[..9], [0, 0, 0, 0, 7, 7, 7, 7, 0]);
        }
        Ok(())
    })
}

// A driver copies from host memory to host memory, which these tests have on CUDA, while the caller waits.
#[test]
fn upload_waits_for_readers() -> Result<()> {
    each_cpu_schedule(|dev| {
        let (main, [side]) = (dev.default_stream(), new_streams(dev)?);
        let (x, y) = (buffer(&main)?, buffer(&main)?);
        set(&main, &x, 1)?;
        main.synchronize()?;
        let hold = side.hold();
        crate::common::copy(&side, &x, &y)?;
        main.upload("upload", &x, 0, &[2; 8])?;
        drop(hold);
        assert_eq!([value(&y)?, value(&x)?], [1, 0x0202_0202_0202_0202]);
        Ok(())
    })
}

#[test]
fn upload_outside_the_buffer_is_an_error() -> Result<()> {
    each_schedule(|dev| {
        let stream = dev.default_stream();
        let x = buffer(&stream)?;
        let size = WORDS * 8;
        let stats = counted(dev, || {
            for (offset, count) in [(0, size + 1), (size, 1), (size - 3, 4), (usize::MAX, 2)] {
                let uploaded = stream.upload("upload", &x, offset, &vec![1; count]);
                assert!(matches!(
                    uploaded.as_ref().map_err(Error::kind),
                    Err(ErrorKind::InvalidArgument { op: "upload", argument: "range", .. })
                ));
            }
            Ok(())
        })?;
        assert_eq!(stats.launches, 0);
        stream.upload("upload", &x, size, &[])?;
        stream.upload("upload", &x, size - 1, &[1])?;
        assert_eq!(x.download(|bytes| bytes[size - 1])?, 1);
        Ok(())
    })
}

#[test]
fn elapsed_ms_waits_by_itself() -> Result<()> {
    each_schedule(|dev| {
        let [side] = new_streams(dev)?;
        for stream in [dev.default_stream(), side] {
            let start = stream.record()?;
            stream.launch_host("sleep", &[], || std::thread::sleep(Duration::from_millis(15)))?;
            let end = stream.record()?;
            let ms = start.elapsed_ms(&end)?;
            assert!((15.0..10_000.0).contains(&ms), "{ms}");
            assert_eq!(end.elapsed_ms(&start)?, -ms);
            assert!(end.is_complete()?);
        }
        Ok(())
    })
}

#[test]
fn events_without_a_common_clock_are_refused() -> Result<()> {
    let cpu = fresh(Schedule::Inline);
    let on_cpu = cpu.default_stream().record()?;
    // Other devices of the host have its clock.
    assert!(on_cpu.elapsed_ms(&fresh(Schedule::Threads).default_stream().record()?)? >= 0.0);
    for ordinal in 0..2 {
        let Ok(cuda) = Device::cuda_with(ordinal, CudaConfig::default()) else { continue };
        let on_cuda = cuda.default_stream().record()?;
        cuda.synchronize()?;
        let sibling = cuda.sibling(1)?.default_stream().record()?;
        assert!(on_cuda.elapsed_ms(&sibling)? >= 0.0, "two devices on one GPU");
        let others = Device::cuda_with(1 - ordinal, CudaConfig::default());
        let others = others.and_then(|other| other.default_stream().record());
        for other in [&on_cpu].into_iter().chain(&others.ok()) {
            for (start, end) in [(other, &on_cuda), (&on_cuda, other)] {
                let refused = start.elapsed_ms(end);
                assert!(
                    matches!(
                        refused.as_ref().map_err(Error::kind),
                        Err(ErrorKind::DeviceMismatch { op: "elapsed_ms", .. })
                    ),
                    "{refused:?}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn an_event_of_a_captured_step_has_no_time() -> Result<()> {
    each_schedule(|dev| {
        let stream = dev.default_stream();
        let before = stream.record()?;
        let within = Capture::new(dev)?.scope(|| stream.record())?;
        for (start, end) in [(&before, &within), (&within, &before), (&within, &within)] {
            let refused = start.elapsed_ms(end);
            assert!(
                matches!(
                    refused.as_ref().map_err(Error::kind),
                    Err(ErrorKind::Captured { op: "elapsed_ms", .. })
                ),
                "{refused:?}"
            );
        }
        Ok(())
    })
}

#[test]
fn events_and_streams_know_their_progress() -> Result<()> {
    each_schedule(|dev| {
        let [side] = new_streams(dev)?;
        for stream in [dev.default_stream(), side] {
            stream.synchronize()?;
            assert!(stream.is_idle()?);
            let before = stream.record()?;
            before.synchronize()?;
            let hold = stream.hold();
            let after = stream.record()?;
            assert!(before.is_complete()? && !after.is_complete()? && !stream.is_idle()?);
            assert_eq!(after.moment(), stream.now());
            drop(hold);
            after.synchronize()?;
            assert!(after.is_complete()? && stream.is_idle()?);
        }
        Ok(())
    })
}

#[test]
fn host_syncs_are_counted() -> Result<()> {
    each_schedule(|dev| {
        let stream = dev.default_stream();
        let x = buffer(&stream)?;
        let event = stream.record()?;
        let stats = counted(dev, || {
            dev.synchronize()?;
            stream.synchronize()?;
            event.synchronize()?;
            value(&x).map(drop)
        })?;
        assert_eq!((stats.host_syncs, stats.events_recorded), (4, 0));
        Ok(())
    })
}

#[test]
fn a_command_is_waited_for_by_other_threads_while_it_runs() -> Result<()> {
    each_cpu_schedule(|dev| {
        let stream = dev.default_stream();
        let x = buffer(&stream)?;
        let words = Words::of(&x);
        for round in 1..4 {
            let (begin, begun) = channel();
            std::thread::scope(|scope| {
                let (stream, x) = (&stream, &x);
                let waiter = scope.spawn(move || {
                    assert!(arrives(&begun));
                    stream.synchronize()?;
                    Ok::<_, Error>(x.peek(first_word))
                });
                stream.launch_host("slow", &[Use::write(x)], move || {
                    // The waiter listens.
                    let _ = begin.send(());
                    std::thread::sleep(Duration::from_millis(5));
                    words.set([round; WORDS]);
                })?;
                assert!(matches!(waiter.join(), Ok(Ok(Some(seen))) if seen == round));
                Ok::<_, Error>(())
            })?;
        }
        Ok(())
    })
}

#[test]
fn a_long_queue_is_waited_for_to_its_end() -> Result<()> {
    each_schedule(|dev| {
        let [side] = new_streams(dev)?;
        let x = buffer(&side)?;
        let hold = side.hold();
        // Fewer than a driver's queue holds: one more would wait for the gate.
        (0..400).try_for_each(|index| set(&side, &x, index))?;
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| side.synchronize())).collect();
            std::thread::sleep(Duration::from_millis(10));
            drop(hold);
            waiters.into_iter().for_each(|waiter| assert!(matches!(waiter.join(), Ok(Ok(())))));
        });
        assert_eq!(value(&x)?, 399);
        Ok(())
    })
}
