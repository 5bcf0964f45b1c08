//! Closures on streams of their own.

use std::sync::mpsc::channel;
use std::time::Duration;

use device::{Error, ErrorKind, Result, Stream, SyncMode};

use crate::common::{
    buffer, copy, each_cpu_schedule, each_order, each_schedule, eventually, new_streams, set, value,
};
use crate::lifetime::has_no_thread;

#[test]
fn branches_have_streams_of_their_own_which_the_current_stream_keeps() -> Result<()> {
    each_schedule(|dev| {
        let id = || Ok(Stream::current(dev).id());
        let nested = || Ok((id()?, dev.concurrent((id, id))?));
        let (left, right) = dev.concurrent((nested, nested))?;
        let mut ids = vec![id()?, left.0, left.1.0, left.1.1, right.0, right.1.0, right.1.1];
        let [side] = new_streams(dev)?;
        let (a, b, c) = side.scope(|| dev.concurrent((id, id, id)))?;
        ids.extend([a, b, c]);
        assert_eq!(dev.concurrent((nested, nested))?, (left, right));
        assert_eq!(side.scope(|| dev.concurrent((id, id, id)))?, (a, b, c));
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 10, "no two of them are the same");
        Ok(())
    })
}

/// The first one ends only once the second one has run.
#[test]
fn branches_run_at_once() -> Result<()> {
    each_cpu_schedule(|dev| {
        let ((sender, receiver), (told, tell)) = (channel(), channel());
        let first = || {
            Stream::current(dev).launch_host("first", &[], move || {
                // Nobody has to listen.
                let _ = told.send(receiver.recv_timeout(Duration::from_secs(20)).is_ok());
            })
        };
        let second = || {
            Stream::current(dev).launch_host("second", &[], move || {
                // The first one may have given up.
                let _ = sender.send(());
            })
        };
        dev.concurrent((first, second))?;
        assert_eq!(tell.recv(), Ok(true));
        Ok(())
    })
}

#[test]
fn branches_come_after_what_they_use_and_before_who_uses_them() -> Result<()> {
    for mode in [SyncMode::Auto, SyncMode::Manual] {
        each_order(|dev| {
            dev.set_sync_mode(mode);
            let main = dev.default_stream();
            let [x, left, right, sum] = [buffer(&main)?, buffer(&main)?, buffer(&main)?, buffer(&main)?];
            set(&main, &x, 7)?;
            dev.concurrent((
                || copy(&Stream::current(dev), &x, &left),
                || copy(&Stream::current(dev), &x, &right),
            ))?;
            copy(&main, &left, &sum)?;
            copy(&main, &right, &x)?;
            assert_eq!((value(&sum)?, value(&x)?), (7, 7));
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn the_first_branch_that_fails_is_the_last_one_called() -> Result<()> {
    each_schedule(|dev| {
        let mut called = false;
        let refused = || Err::<(), _>(Error::invalid("test", "branch", "none", "one"));
        let error = dev.concurrent((refused, || {
            called = true;
            Ok(())
        }));
        assert!(matches!(
            error.as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { argument: "branch", .. })
        ));
        assert!(!called);
        assert_eq!(Stream::current(dev), dev.default_stream());
        Ok(())
    })
}

#[test]
fn branches_end_with_the_stream_that_keeps_them_and_their_counts_stay() -> Result<()> {
    each_schedule(|dev| {
        let [side] = new_streams(dev)?;
        let [first, second] = side.branches(2)?.try_into().unwrap_or_else(|_| unreachable!("two"));
        let nested = first.branches(2)?;
        let x = buffer(&dev.default_stream())?;
        let before = dev.sync_stats();
        let ids: Vec<_> = [&first, &second].into_iter().chain(&nested).map(Stream::id).collect();
        drop((side, second, nested));
        // A handle of a branch keeps it.
        set(&first, &x, 5)?;
        assert_eq!(value(&x)?, 5);
        first.synchronize()?;
        drop(first);
        for id in ids {
            assert!(eventually(|| has_no_thread(id)), "stream {id} is gone");
        }
        assert_eq!((dev.sync_stats() - before).launches, 1);
        Ok(())
    })
}
