//! Rules 22 and 23: what fails is reported once, by name, and the device goes on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use device::{Buffer, Device, Error, Event, Result, Stream, Use};

use crate::common::{buffer, each_cpu_schedule, each_order, each_schedule, fail, new_streams, set, value};

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
                stream.launch("explode", &[Use::write(&x)], || fail("boom"))?;
                let event = stream.record()?;
                match synchronise(dev, &stream, &event, &x) {
                    Err(Error::Async { op, stream: on, source }) => {
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

#[test]
fn rule_22_a_panic_on_one_stream_releases_who_waits_for_it() -> Result<()> {
    each_schedule(|dev| {
        let [one, two] = new_streams(dev)?;
        let (x, y) = (buffer(&one)?, buffer(&two)?);
        let hold = one.hold();
        one.launch("explode", &[Use::write(&x)], || fail("boom"))?;
        two.launch("after", &[Use::read(&x), Use::write(&y)], || ())?;
        drop(hold);
        assert!(matches!(two.synchronize(), Err(Error::Async { op: "explode", .. })));
        two.synchronize()
    })
}

#[test]
fn rule_23_the_first_failure_is_the_one_named() -> Result<()> {
    each_order(|dev| {
        let stream = dev.default_stream();
        stream.launch("first", &[], || fail("one"))?;
        stream.launch("second", &[], || fail("two"))?;
        assert!(matches!(dev.synchronize(), Err(Error::Async { op: "first", .. })));
        dev.synchronize()
    })
}

#[test]
fn rule_23_an_unreported_failure_may_be_dropped() -> Result<()> {
    each_order(|dev| {
        let [side] = new_streams(dev)?;
        let x = buffer(&side)?;
        side.launch("explode", &[Use::write(&x)], || fail("boom"))?;
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
        stream.launch("explode", &[Use::write(&x)], || fail("boom"))?;
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
