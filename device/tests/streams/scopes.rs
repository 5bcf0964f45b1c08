//! Rule 1: which stream an op runs on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use device::{Result, Schedule, Stream};

use crate::common::{each_schedule, fail, fresh, new_streams};

#[test]
fn rule_01_the_current_stream_is_the_innermost_scope() -> Result<()> {
    each_schedule(|dev| {
        let [outer, inner] = new_streams(dev)?;
        let current = || Stream::current(dev);
        assert_eq!(current(), dev.default_stream());
        outer.scope(|| {
            assert_eq!(current(), outer);
            let seen = inner.scope(|| {
                assert_eq!(current(), inner);
                outer.scope(|| assert_eq!(current(), outer));
                Stream::with_current(dev, Stream::id)
            });
            assert_eq!(seen, inner.id());
            dev.default_stream().scope(|| assert_eq!(current(), dev.default_stream()));
            assert_eq!(current(), outer);
        });
        assert_eq!(current(), dev.default_stream());
        Ok(())
    })
}

/// As a kernel may that runs while it is launched.
#[test]
fn rule_01_what_uses_the_current_stream_may_enter_scopes() -> Result<()> {
    each_schedule(|dev| {
        let [outer, inner] = new_streams(dev)?;
        outer.scope(|| {
            Stream::with_current(dev, |stream| {
                assert_eq!(inner.scope(|| Stream::current(dev)), inner);
                assert_eq!(*stream, outer);
            });
            assert_eq!(Stream::current(dev), outer);
        });
        Ok(())
    })
}

#[test]
fn rule_01_a_panic_restores_the_stream() -> Result<()> {
    each_schedule(|dev| {
        let [outer, inner] = new_streams(dev)?;
        outer.scope(|| {
            let panicked = catch_unwind(AssertUnwindSafe(|| inner.scope(|| fail("out of the scope"))));
            assert!(panicked.is_err());
            assert_eq!(Stream::current(dev), outer);
        });
        assert_eq!(Stream::current(dev), dev.default_stream());
        Ok(())
    })
}

#[test]
fn rule_01_each_device_has_its_own_current_stream() -> Result<()> {
    let (one, two) = (fresh(Schedule::Inline), fresh(Schedule::Threads));
    let ([a], [b]) = (new_streams(&one)?, new_streams(&two)?);
    a.scope(|| {
        assert_eq!(Stream::current(&two), two.default_stream());
        b.scope(|| assert_eq!((Stream::current(&one), Stream::current(&two)), (a.clone(), b.clone())));
    });
    Ok(())
}

#[test]
fn rule_01_each_thread_has_its_own_scopes() -> Result<()> {
    each_schedule(|dev| {
        let [side] = new_streams(dev)?;
        side.scope(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| assert_eq!(Stream::current(dev), dev.default_stream()));
            });
        });
        Ok(())
    })
}

#[test]
fn a_scope_keeps_its_stream() -> Result<()> {
    each_schedule(|dev| {
        let [side] = new_streams(dev)?;
        let id = side.id();
        side.clone().scope(move || {
            drop(side);
            assert_eq!(Stream::current(dev).id(), id);
        });
        Ok(())
    })
}
