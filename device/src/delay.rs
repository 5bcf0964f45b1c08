//! Delayed schedules: real threads with seeded pauses, so that a race that takes bad luck becomes likely.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{sleep, yield_now};
use std::time::Duration;

use crate::{SplitMix, mix};

/// A device's pauses.
pub(crate) struct Delays {
    seed: u64,
    /// Streams made so far.
    streams: AtomicU64,
}

/// A stream's pauses: a function of the seed, of the place of the stream in the order of creation, and of the tick.
#[derive(Clone, Copy)]
pub(crate) struct Delay(u64);

/// What a worker is about to do.
#[derive(Clone, Copy)]
pub(crate) enum Before {
    /// Run a command; where it waited, this is between the awaited command and the waiter.
    Run,
    /// Look whether another stream has reached a tick.
    Wait,
}

impl Delays {
    pub(crate) fn new(seed: u64) -> Self {
        Delays { seed, streams: AtomicU64::new(0) }
    }

    pub(crate) fn of_next_stream(&self) -> Delay {
        Delay(mixed(self.seed, self.streams.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Delay {
    /// Half of the time nothing, else a yield or a sleep.
    pub(crate) fn pause(self, before: Before, tick: u64) {
        let mut random = SplitMix(mixed(mixed(self.0, before as u64), tick));
        match random.below(8) {
            0..4 => {}
            4 => yield_now(),
            5 | 6 => sleep(Duration::from_micros(random.below(SHORT_US) as u64)),
            _ => sleep(Duration::from_micros(random.below(LONG_US) as u64)),
        }
    }
}

fn mixed(seed: u64, value: u64) -> u64 {
    mix(seed.rotate_left(32) ^ value)
}

/// A sleep takes some fifty microseconds more than it is asked for, so that most of these are about that long.
const SHORT_US: usize = 20;

/// Longer than a hand-off between threads and than most commands of a test.
const LONG_US: usize = 300;
