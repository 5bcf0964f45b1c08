//! Moments and clocks: who is known to run after whom.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use smallvec::SmallVec;

/// The name of a stream, unique in the process and never used again. The default is no stream's.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct StreamId(u64);

impl StreamId {
    pub(crate) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        StreamId(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// An id of no stream, for the memory of a step that is being captured.
    pub(crate) fn of_capture() -> Self {
        StreamId(StreamId::fresh().0 | Self::CAPTURE)
    }

    /// Whether it is a capture's.
    pub(crate) fn is_capture(self) -> bool {
        self.0 & Self::CAPTURE != 0
    }

    const CAPTURE: u64 = 1 << 63;

    /// An id of no device's stream, for tests of code that only compares ids.
    pub const fn from_raw(id: u64) -> Self {
        StreamId(id)
    }

    /// The number behind the id.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// A point in a stream: just after its command number `tick`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug, Serialize)]
pub struct Moment {
    /// The stream.
    pub stream: StreamId,
    /// The command's number in it; the first is 1, and tick 0 has always passed.
    pub tick: u64,
}

/// For each other stream, the newest tick that the owner is known to come after.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    ticks: SmallVec<[(StreamId, u64); 4]>,
}

impl Clock {
    /// A clock that knows of no other stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// The newest tick of `stream` that is covered, 0 if none.
    pub fn get(&self, stream: StreamId) -> u64 {
        self.ticks.iter().find(|entry| entry.0 == stream).map_or(0, |entry| entry.1)
    }

    /// Whether `moment` is known to have come before.
    pub fn covers(&self, moment: Moment) -> bool {
        self.get(moment.stream) >= moment.tick
    }

    /// Learns that `moment` comes before; never moves backwards.
    pub fn advance(&mut self, moment: Moment) {
        match self.ticks.iter_mut().find(|entry| entry.0 == moment.stream) {
            Some(entry) => entry.1 = entry.1.max(moment.tick),
            None if moment.tick > 0 => self.ticks.push((moment.stream, moment.tick)),
            None => {}
        }
    }

    /// Learns everything that `other` knows: the pointwise maximum.
    pub fn join(&mut self, other: &Clock) {
        for &(stream, tick) in &other.ticks {
            self.advance(Moment { stream, tick });
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ticks.len()
    }

    /// The newest covered moment of each stream.
    pub(crate) fn moments(&self) -> SmallVec<[Moment; 4]> {
        self.ticks.iter().map(|&(stream, tick)| Moment { stream, tick }).collect()
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(Moment) -> bool) {
        self.ticks.retain(|&mut (stream, tick)| keep(Moment { stream, tick }));
    }
}

/// A stream's clock over its ticks, so that a wait on an old moment learns what was known then and no more.
#[derive(Debug)]
pub(crate) struct Timeline {
    /// `(tick, clock)`: commands from `tick` on run after `clock`. Ascending, never empty.
    epochs: VecDeque<(u64, Clock)>,
}

impl Timeline {
    /// Older epochs are forgotten, which can cost a wait and never loses one.
    const EPOCHS: usize = 64;

    pub(crate) fn new() -> Self {
        Timeline { epochs: VecDeque::from([(0, Clock::new())]) }
    }

    /// What the command at `tick` is known to come after; `None` if that is forgotten.
    pub(crate) fn at(&self, tick: u64) -> Option<&Clock> {
        self.epochs.iter().rev().find(|epoch| epoch.0 <= tick).map(|epoch| &epoch.1)
    }

    /// A clock that has all that the command at `tick` comes after, and more if that is forgotten.
    pub(crate) fn at_or_oldest(&self, tick: u64) -> &Clock {
        self.at(tick).unwrap_or(&self.epochs[0].1)
    }

    /// What every command from now on comes after.
    pub(crate) fn covers(&self, moment: Moment) -> bool {
        self.epochs.back().is_some_and(|epoch| epoch.1.covers(moment))
    }

    /// From `tick` on, commands come after `clock`.
    pub(crate) fn learn(&mut self, tick: u64, clock: &Clock) {
        match self.epochs.back_mut() {
            Some(last) if last.0 == tick => last.1.clone_from(clock),
            _ => {
                if self.epochs.len() == Self::EPOCHS {
                    self.epochs.pop_front();
                }
                self.epochs.push_back((tick, clock.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(stream: u64, tick: u64) -> Moment {
        Moment { stream: StreamId::from_raw(stream), tick }
    }

    proptest! {
        /// A join is the pointwise maximum and loses nothing.
        #[test]
        fn join_is_the_pointwise_maximum(a in prop::collection::vec((0u64..6, 0u64..50), 0..12),
                                         b in prop::collection::vec((0u64..6, 0u64..50), 0..12)) {
            let clock = |moments: &[(u64, u64)]| {
                let mut clock = Clock::new();
                moments.iter().for_each(|&(s, t)| clock.advance(at(s, t)));
                clock
            };
            let (left, right) = (clock(&a), clock(&b));
            let mut joined = left.clone();
            joined.join(&right);
            for stream in (0..6).map(StreamId::from_raw) {
                prop_assert_eq!(joined.get(stream), left.get(stream).max(right.get(stream)));
            }
        }
    }

    #[test]
    fn a_timeline_answers_for_the_tick_asked() {
        let mut timeline = Timeline::new();
        let mut clock = Clock::new();
        clock.advance(at(1, 4));
        timeline.learn(3, &clock);
        clock.advance(at(1, 9));
        timeline.learn(7, &clock);
        let known = |tick| timeline.at(tick).map(|clock| clock.get(StreamId::from_raw(1)));
        assert_eq!([known(2), known(3), known(6), known(7)], [Some(0), Some(4), Some(4), Some(9)]);
    }

    #[test]
    fn forgotten_epochs_answer_nothing() {
        let mut timeline = Timeline::new();
        (1..=Timeline::EPOCHS as u64).for_each(|tick| timeline.learn(tick, &Clock::new()));
        assert!(timeline.at(0).is_none());
        assert!(timeline.at(1).is_some());
    }
}
