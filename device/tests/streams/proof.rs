//! The audit, the user's own waits, and host reads that nobody announced.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::Duration;

use device::{
    CpuConfig, Device, Error, ErrorKind, Placement, Policy, Result, Schedule, StreamOptions, SyncDebug,
    SyncMode, Use,
};

use crate::common::{Words, buffer, copy, each_cpu_schedule, each_schedule, fresh, new_streams, set, value};

/// Writes on one stream, reads on two, and writes again on the first.
fn program(dev: &Device) -> Result<u64> {
    let [one, two, three] = new_streams(dev)?;
    let (x, y, z) = (buffer(&one)?, buffer(&two)?, buffer(&three)?);
    let hold = one.hold();
    set(&one, &x, 1)?;
    copy(&two, &x, &y)?;
    copy(&three, &x, &z)?;
    set(&one, &x, 2)?;
    copy(&two, &z, &y)?;
    drop(hold);
    let sum = value(&x)? + value(&y)? + value(&z)?;
    dev.synchronize()?;
    Ok(sum)
}

#[test]
fn an_audit_finds_every_wait_needed_and_no_hazard() -> Result<()> {
    each_schedule(|dev| {
        dev.start_audit();
        assert_eq!(program(dev)?, 4);
        let audit = dev.stop_audit();
        assert_eq!(audit.hazards(), []);
        let waits: Vec<_> = audit.waits().collect();
        assert!((3..=5).contains(&waits.len()), "{waits:?}");
        assert_eq!(audit.unneeded_waits(), []);
        assert!(audit.commands().any(|command| command.op == "copy"));
        assert!(dev.stop_audit().commands().next().is_none(), "it ended");
        Ok(())
    })
}

#[test]
fn an_audit_names_both_commands_of_a_hazard() -> Result<()> {
    each_schedule(|dev| {
        let [one, two] = new_streams(dev)?;
        let (x, y) = (buffer(&one)?, buffer(&two)?);
        let hold = one.hold();
        dev.start_audit();
        set(&one, &x, 1)?;
        copy(&two, &x, &y)?;
        let audit = dev.stop_audit();
        drop(hold);
        assert_eq!(audit.hazards(), []);
        let found = audit.hazards_without(0);
        assert_eq!(found.len(), 1);
        let text = found[0].to_string();
        for part in ["set (stream", "copy (stream", "tick", "common.rs", "share 64 bytes"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!((found[0].first.moment.stream, found[0].second.moment.stream), (one.id(), two.id()));
        Ok(())
    })
}

/// Threads read buffers of their own, each written on a stream of its own: a read's number and its place in the audit
/// belong together.
#[test]
fn threads_that_read_at_once_leave_no_hazard() -> Result<()> {
    let options = StreamOptions { placement: Placement::Caller, ..StreamOptions::default() };
    for _ in 0..20 {
        let dev = fresh(Schedule::Inline);
        let both = Barrier::new(2);
        dev.start_audit();
        let work = || -> Result<()> {
            let stream = dev.new_stream_with(options)?;
            let x = buffer(&stream)?;
            both.wait();
            for round in 0..500 {
                set(&stream, &x, round)?;
                assert_eq!(value(&x)?, round);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads = [(); 2].map(|()| scope.spawn(work));
            threads.into_iter().for_each(|thread| assert!(matches!(thread.join(), Ok(Ok(())))));
        });
        assert_eq!(dev.stop_audit().hazards(), []);
    }
    Ok(())
}

/// What comes after a loan comes after what the loan came after.
#[test]
fn a_loan_is_in_the_audit() -> Result<()> {
    each_cpu_schedule(|dev| {
        let [one, two] = new_streams(dev)?;
        let (x, y) = (buffer(&one)?, buffer(&two)?);
        dev.start_audit();
        let hold = one.hold();
        set(&one, &x, 1)?;
        // SAFETY: nobody uses the memory while it is lent.
        let loan = unsafe { x.lend(true) };
        copy(&two, &x, &y)?;
        drop(hold);
        one.synchronize()?;
        drop(loan);
        assert_eq!(value(&y)?, 1);
        let audit = dev.stop_audit();
        assert_eq!(audit.hazards(), []);
        assert!(audit.commands().any(|command| command.op == "lend"));
        Ok(())
    })
}

#[test]
fn a_wait_that_nothing_needs_is_found() -> Result<()> {
    each_schedule(|dev| {
        let [one, two] = new_streams(dev)?;
        let (x, y) = (buffer(&one)?, buffer(&two)?);
        let hold = one.hold();
        dev.start_audit();
        set(&one, &x, 1)?;
        two.wait_stream(&one)?;
        set(&two, &y, 1)?;
        let audit = dev.stop_audit();
        drop(hold);
        let waits: Vec<_> = audit.waits().collect();
        assert_eq!((waits.len(), audit.unneeded_waits()), (1, waits));
        Ok(())
    })
}

#[test]
fn manual_mode_refuses_what_the_users_waits_leave_open() -> Result<()> {
    each_schedule(|dev| {
        let [one, two] = new_streams(dev)?;
        let (x, y) = (buffer(&one)?, buffer(&two)?);
        dev.set_sync_mode(SyncMode::Manual);
        let hold = one.hold();
        set(&one, &x, 1)?;
        let before = (two.now(), dev.sync_stats());
        let refused = copy(&two, &x, &y);
        let Err(ErrorKind::Race {
            op, stream, earlier, earlier_stream, earlier_tick, address, bytes, ..
        }) = refused.clone().map_err(Error::into_kind)
        else {
            unreachable!("{refused:?}");
        };
        assert_eq!((op, stream, earlier, earlier_stream), ("copy", two.id(), "set", one.id()));
        assert_eq!((earlier_tick, address, bytes), (one.now().tick, x.ptr() as usize, 64));
        assert_eq!((two.now(), dev.sync_stats()), before, "nothing was launched");
        // The same with the wait, and with waits left to the device.
        two.wait_stream(&one)?;
        copy(&two, &x, &y)?;
        assert!(
            matches!(
                set(&one, &x, 2).as_ref().map_err(Error::kind),
                Err(ErrorKind::Race { op: "set", earlier: "copy", .. })
            ),
            "a reader is met"
        );
        dev.set_sync_mode(SyncMode::Auto);
        set(&one, &x, 2)?;
        drop(hold);
        assert_eq!([value(&x)?, value(&y)?], [2, 1]);
        Ok(())
    })
}

#[test]
fn manual_mode_takes_what_has_passed() -> Result<()> {
    each_schedule(|dev| {
        let [one, two] = new_streams(dev)?;
        let (x, y) = (buffer(&one)?, buffer(&two)?);
        dev.set_sync_mode(SyncMode::Manual);
        set(&one, &x, 5)?;
        one.synchronize()?;
        copy(&two, &x, &y)?;
        dev.synchronize()?;
        assert_eq!(value(&y)?, 5);
        Ok(())
    })
}

#[test]
fn hidden_host_synchronisations_are_counted_and_refused_by_place() -> Result<()> {
    each_schedule(|dev| {
        let stream = dev.default_stream();
        let x = buffer(&stream)?;
        value(&x)?;
        dev.set_sync_debug(SyncDebug::Count);
        for _ in 0..3 {
            x.download(|_| ())?;
        }
        value(&x)?;
        let found = dev.hidden_syncs();
        let counts: Vec<_> =
            found.iter().map(|sync| (sync.count, sync.place.file().ends_with(".rs"))).collect();
        assert_eq!(counts.iter().map(|(count, _)| count).sum::<u64>(), 4);
        assert_eq!((found.len(), counts[0].1), (2, true));
        dev.set_sync_debug(SyncDebug::Refuse);
        let refused = x.download(|_| ());
        assert!(
            matches!(refused.as_ref().map_err(Error::kind), Err(ErrorKind::HiddenSync { place }) if place.contains("proof.rs")),
            "{refused:?}"
        );
        dev.set_sync_debug(SyncDebug::Off);
        stream.launch_host("work", &[Use::write(&x)], || ())?;
        x.download(|_| ())
    })
}

/// Two streams write a buffer and a third value goes out; the second writer says that it only reads, or tells the truth.
fn writer(dev: &Device, honest: bool) -> Result<u64> {
    let [one, two] = new_streams(dev)?;
    let x = buffer(&one)?;
    dev.synchronize()?;
    set(&one, &x, 1)?;
    let words = Words::of(&x);
    let used = if honest { Use::write(&x) } else { Use::read(&x) };
    two.launch_host("double", &[used], move || words.set(words.get().map(|word| word * 2)))?;
    let out = buffer(&one)?;
    copy(&one, &x, &out)?;
    value(&out)
}

#[test]
fn a_use_that_is_declared_wrongly_gives_other_results() -> Result<()> {
    let results = |honest| {
        let explored = |seed| {
            let schedule = Schedule::Explore(Policy::Random { seed });
            writer(&Device::cpu_with(CpuConfig { schedule, ..CpuConfig::default() }), honest)
        };
        (0..20).map(explored).collect::<Result<HashSet<u64>>>()
    };
    assert_eq!(results(true)?, HashSet::from([2]));
    assert_eq!(results(false)?, HashSet::from([1, 2]));
    Ok(())
}

/// Whether the commands of two streams ran in another order than they were launched in, although the first has a head
/// start. Where they are honest, both say that they write one buffer; else nothing tells that they belong together.
fn swapped(seed: u64, honest: bool) -> Result<bool> {
    let dev = fresh(Schedule::Delay { seed });
    let [one, two] = new_streams(&dev)?;
    let shared = buffer(&one)?;
    let uses = if honest { &[Use::write(&shared)][..] } else { &[] };
    let (sender, receiver) = channel();
    for (name, stream) in [(1, &one), (2, &two)] {
        let sender = sender.clone();
        stream.launch_host("send", uses, move || {
            // The receiver outlives the device's work.
            let _ = sender.send(name);
        })?;
        // Fifty microseconds and more, as the system wakes a thread.
        sleep(Duration::from_micros(1));
    }
    dev.synchronize()?;
    Ok(receiver.try_iter().ne([1, 2]))
}

#[test]
fn pauses_reorder_what_nothing_orders_and_nothing_else() -> Result<()> {
    let count = |honest| -> Result<usize> {
        let swapped = (0..200).map(|seed| swapped(seed, honest)).collect::<Result<Vec<_>>>()?;
        Ok(swapped.into_iter().filter(|&swapped| swapped).count())
    };
    assert_eq!(count(true)?, 0);
    let found = count(false)?;
    println!("{found} of 200 swapped");
    assert!((1..200).contains(&found), "{found} of 200");
    Ok(())
}
