//! Which command comes after which, and what it takes. Under a hold nothing has completed, so the counts are exact.

use std::sync::{Arc, Mutex};

use device::{Moment, Result, SyncStats, Use};

use crate::common::{
    buffer, copy, counted, each_cpu_schedule, each_host_memory, each_order, each_schedule, is_waiting,
    new_streams, runs, set, tell, value,
};

fn waits_and_events(stats: SyncStats) -> (u64, u64) {
    (stats.waits_inserted, stats.events_recorded)
}

#[test]
fn commands_run_in_launch_order() -> Result<()> {
    each_schedule(|dev| {
        let [side] = new_streams(dev)?;
        for stream in [dev.default_stream(), side] {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let mut hold = None;
            for index in 0..300 {
                if index == 100 {
                    hold = Some(stream.hold());
                }
                if index == 200 {
                    hold = None;
                }
                let seen = Arc::clone(&seen);
                stream.launch_host("push", &[], move || {
                    if let Ok(mut seen) = seen.lock() {
                        seen.push(index);
                    }
                })?;
            }
            assert!(hold.is_none());
            stream.synchronize()?;
            let seen = seen.lock().map(|seen| seen.clone()).unwrap_or_default();
            assert_eq!(seen, (0..300).collect::<Vec<_>>());
        }
        Ok(())
    })
}

#[test]
fn rule_04_one_stream_makes_no_events_and_no_waits() -> Result<()> {
    each_order(|dev| {
        let [side] = new_streams(dev)?;
        for stream in [dev.default_stream(), side] {
            let (x, y) = (buffer(&stream)?, buffer(&stream)?);
            let stats = counted(dev, || {
                let _hold = stream.hold();
                for index in 0..50 {
                    set(&stream, &x, index)?;
                    copy(&stream, &x, &y)?;
                }
                Ok(())
            })?;
            assert_eq!(stats, SyncStats { launches: 100, ..SyncStats::default() });
            assert_eq!(value(&y)?, 49);
        }
        Ok(())
    })
}

#[test]
fn commands_without_buffers_are_launches_too() -> Result<()> {
    each_schedule(|dev| {
        let stream = dev.default_stream();
        let stats = counted(dev, || stream.launch_host("nothing", &[], || ()))?;
        assert_eq!(stats.launches, 1);
        Ok(())
    })
}

/// A wait is for the one command that is needed, whether it had run when the wait was made or not, and whoever made it. A
/// CUDA device may wait for an event a little later.
#[test]
fn rule_06_what_a_stream_is_given_later_delays_nobody() -> Result<()> {
    each_cpu_schedule(|dev| {
        let [producer, reader, waiter, third] = new_streams(dev)?;
        let x = buffer(&producer)?;
        let first = producer.hold();
        set(&producer, &x, 1)?;
        let event = producer.record()?;
        let _later = producer.hold();
        set(&producer, &buffer(&producer)?, 2)?;
        let read = tell(&reader, &[Use::read(&x)])?;
        waiter.wait(&event)?;
        let waited = tell(&waiter, &[])?;
        // The writer waits for the producer's command through the reader.
        let through = tell(&third, &[Use::write(&x)])?;
        assert!([&read, &waited, &through].into_iter().all(is_waiting));
        drop(first);
        assert!([&read, &waited, &through].into_iter().all(runs));
        assert!(!producer.is_idle()?);
        Ok(())
    })
}

#[test]
fn rule_07_writer_waits_for_all_readers() -> Result<()> {
    each_schedule(|dev| {
        let [left, right, writer] = new_streams(dev)?;
        let (x, a, b) = (buffer(&left)?, buffer(&left)?, buffer(&right)?);
        set(&left, &x, 1)?;
        dev.synchronize()?;
        let holds = (left.hold(), right.hold());
        copy(&left, &x, &a)?;
        copy(&right, &x, &b)?;
        let stats = counted(dev, || set(&writer, &x, 2))?;
        assert_eq!(waits_and_events(stats), (2, 2));
        let told = tell(&writer, &[Use::read(&x)])?;
        drop(holds.0);
        assert!(is_waiting(&told), "one reader is still held");
        assert_eq!(value(&a)?, 1);
        drop(holds.1);
        assert_eq!([value(&b)?, value(&x)?], [1, 2]);
        Ok(())
    })
}

#[test]
fn rule_07_a_reader_on_the_writers_stream_hides_no_other() -> Result<()> {
    each_schedule(|dev| {
        let [reader, writer] = new_streams(dev)?;
        let x = buffer(&writer)?;
        set(&writer, &x, 1)?;
        dev.synchronize()?;
        let hold = reader.hold();
        let read = tell(&reader, &[Use::read(&x)])?;
        let own = tell(&writer, &[Use::read(&x)])?;
        assert!(runs(&own), "two readers do not wait for each other");
        let written = tell(&writer, &[Use::write(&x)])?;
        assert!(is_waiting(&written));
        drop(hold);
        assert!(runs(&read) && runs(&written));
        Ok(())
    })
}

#[test]
fn readers_do_not_wait_for_readers() -> Result<()> {
    each_schedule(|dev| {
        let [one, two] = new_streams(dev)?;
        let x = buffer(&one)?;
        let _hold = one.hold();
        tell(&one, &[Use::read(&x)])?;
        let stats = counted(dev, || tell(&two, &[Use::read(&x)]).map(drop))?;
        assert_eq!(waits_and_events(stats), (0, 0));
        two.synchronize()
    })
}

#[test]
fn first_use_on_another_stream_comes_after_the_allocation() -> Result<()> {
    // Mapping pages may wait for all work of a device, and so for the gate.
    each_host_memory(|dev| {
        let [home, other] = new_streams(dev)?;
        let hold = home.hold();
        let x = buffer(&home)?;
        let told = tell(&other, &[Use::write(&x)])?;
        assert!(is_waiting(&told));
        drop(hold);
        assert!(runs(&told));
        Ok(())
    })
}

#[test]
fn rule_05_a_need_covered_transitively_takes_no_wait() -> Result<()> {
    each_order(|dev| {
        let [one, two, three] = new_streams(dev)?;
        let (x, y, z) = (buffer(&one)?, buffer(&two)?, buffer(&three)?);
        let _hold = one.hold();
        set(&one, &x, 7)?;
        assert_eq!(waits_and_events(counted(dev, || copy(&two, &x, &y))?), (1, 1));
        assert_eq!(waits_and_events(counted(dev, || copy(&three, &y, &z))?), (1, 1));
        // `three` comes after `two`, and through it after `one`.
        let stats = counted(dev, || copy(&three, &x, &z))?;
        assert_eq!((waits_and_events(stats), stats.waits_elided), ((0, 0), 1));
        drop(_hold);
        assert_eq!(value(&z)?, 7);
        Ok(())
    })
}

#[test]
fn rule_05_a_need_implied_by_another_takes_no_wait() -> Result<()> {
    each_order(|dev| {
        let [one, two, three] = new_streams(dev)?;
        let (x, y) = (buffer(&one)?, buffer(&two)?);
        let hold = one.hold();
        set(&one, &x, 3)?;
        copy(&two, &x, &y)?;
        // One command that needs both: waiting for `two` is enough.
        let stats = counted(dev, || tell(&three, &[Use::read(&x), Use::read(&y)]).map(drop))?;
        assert_eq!((waits_and_events(stats), stats.waits_elided), ((1, 1), 1));
        drop(hold);
        three.synchronize()
    })
}

#[test]
fn rule_05_a_wait_learns_what_was_known_then_and_no_more() -> Result<()> {
    each_order(|dev| {
        let [one, two, three] = new_streams(dev)?;
        let (x, y, z) = (buffer(&one)?, buffer(&two)?, buffer(&three)?);
        let (hold, gate) = (one.hold(), three.hold());
        set(&one, &x, 1)?;
        set(&three, &z, 5)?;
        let early = one.record()?;
        one.wait_stream(&three)?;
        two.wait(&early)?;
        // `one` comes after `three` by now, but it did not at `early`.
        let stats = counted(dev, || copy(&two, &z, &y))?;
        assert_eq!(stats.waits_inserted, 1);
        drop(hold);
        let told = tell(&two, &[Use::read(&y)])?;
        assert!(is_waiting(&told));
        drop(gate);
        assert_eq!(value(&y)?, 5);
        Ok(())
    })
}

#[test]
fn the_newest_moment_of_a_stream_implies_its_older_ones() -> Result<()> {
    each_schedule(|dev| {
        let [one, two] = new_streams(dev)?;
        let (x, y) = (buffer(&one)?, buffer(&one)?);
        let hold = one.hold();
        set(&one, &x, 1)?;
        set(&one, &y, 2)?;
        let stats = counted(dev, || tell(&two, &[Use::read(&y), Use::read(&x)]).map(drop))?;
        assert_eq!((waits_and_events(stats), stats.waits_elided), ((1, 1), 1));
        drop(hold);
        two.synchronize()
    })
}

#[test]
fn two_waiters_share_an_event() -> Result<()> {
    each_schedule(|dev| {
        let [one, two, three] = new_streams(dev)?;
        let x = buffer(&one)?;
        let hold = one.hold();
        set(&one, &x, 1)?;
        let stats = counted(dev, || {
            tell(&two, &[Use::read(&x)])?;
            tell(&three, &[Use::read(&x)]).map(drop)
        })?;
        assert_eq!(waits_and_events(stats), (2, 1));
        drop(hold);
        dev.synchronize()
    })
}

#[test]
fn a_buffer_named_twice_is_one_use() -> Result<()> {
    each_schedule(|dev| {
        let [one, two] = new_streams(dev)?;
        let x = buffer(&one)?;
        let hold = one.hold();
        set(&one, &x, 1)?;
        let uses = [Use::read(&x), Use::write(&x), Use::read(&x)];
        let stats = counted(dev, || tell(&two, &uses).map(drop))?;
        assert_eq!((waits_and_events(stats), stats.waits_elided), ((1, 1), 0));
        assert_eq!(x.last_write(), two.now(), "it counts as the write");
        drop(hold);
        dev.synchronize()
    })
}

#[test]
fn waiting_for_oneself_is_free() -> Result<()> {
    each_schedule(|dev| {
        let [side] = new_streams(dev)?;
        for stream in [dev.default_stream(), side] {
            let _hold = stream.hold();
            let event = stream.record()?;
            let before = stream.now();
            let stats = counted(dev, || stream.wait(&event))?;
            assert_eq!((stats, stream.now()), (SyncStats::default(), before));
            let stats = counted(dev, || stream.wait_stream(&stream))?;
            assert_eq!(stats, SyncStats::default());
        }
        Ok(())
    })
}

#[test]
fn wait_stream_orders_what_shares_no_buffer() -> Result<()> {
    each_schedule(|dev| {
        let [one, two] = new_streams(dev)?;
        let hold = one.hold();
        let first = tell(&one, &[])?;
        let stats = counted(dev, || two.wait_stream(&one))?;
        assert_eq!(waits_and_events(stats), (1, 1));
        assert_eq!(
            waits_and_events(counted(dev, || two.wait_for(&[first_of(&one)]))?),
            (0, 0),
            "already covered"
        );
        let second = tell(&two, &[])?;
        assert!(is_waiting(&second));
        drop(hold);
        assert!(runs(&first) && runs(&second));
        Ok(())
    })
}

fn first_of(stream: &device::Stream) -> Moment {
    Moment { stream: stream.id(), tick: 1 }
}

#[test]
fn the_default_stream_waits_for_others_and_goes_on() -> Result<()> {
    each_schedule(|dev| {
        let (main, [side]) = (dev.default_stream(), new_streams(dev)?);
        let (x, y) = (buffer(&side)?, buffer(&main)?);
        for round in 1..20 {
            let hold = side.hold();
            set(&side, &x, round)?;
            copy(&main, &x, &y)?;
            let told = tell(&main, &[Use::write(&y)])?;
            assert!(round > 1 || is_waiting(&told));
            drop(hold);
            main.synchronize()?;
            assert_eq!(value(&y)?, round);
        }
        Ok(())
    })
}

#[test]
fn what_has_passed_takes_no_wait() -> Result<()> {
    each_schedule(|dev| {
        let [one, two] = new_streams(dev)?;
        let x = buffer(&one)?;
        set(&one, &x, 1)?;
        let event = one.record()?;
        one.synchronize()?;
        assert!(dev.reached(event.moment()) && !two.covers(event.moment()));
        let stats = counted(dev, || {
            two.wait(&event)?;
            tell(&two, &[Use::write(&x)]).map(drop)
        })?;
        assert_eq!((waits_and_events(stats), stats.waits_elided), ((0, 0), 2));
        assert!(two.covers(event.moment()));
        two.synchronize()
    })
}

#[test]
fn covers_follows_the_waits() -> Result<()> {
    each_schedule(|dev| {
        let [one, two] = new_streams(dev)?;
        let hold = one.hold();
        let moment = one.now();
        assert!(one.covers(moment) && !two.covers(moment) && !dev.reached(moment));
        two.wait_for(&[moment])?;
        assert!(two.covers(moment) && !dev.reached(moment));
        drop(hold);
        two.synchronize()?;
        assert!(dev.reached(moment));
        Ok(())
    })
}

#[test]
fn many_streams_share_a_buffer() -> Result<()> {
    each_host_memory(|dev| {
        let streams = (0..100).map(|_| dev.new_stream()).collect::<Result<Vec<_>>>()?;
        let x = buffer(&streams[0])?;
        let words = crate::common::Words::of(&x);
        for _ in 0..3 {
            for stream in &streams {
                stream.launch_host("increment", &[Use::write(&x)], move || {
                    words.set(words.get().map(|w| w + 1))
                })?;
            }
            for stream in &streams {
                tell(stream, &[Use::read(&x)])?;
            }
        }
        assert_eq!(value(&x)?, 300);
        Ok(())
    })
}
