//! What the allocator asks of a stream: who comes after whom.

use device::{Device, Moment, Result, Stream, StreamId, Stuck};
use smallvec::SmallVec;

/// The stream that asks for memory.
pub(crate) trait Asker {
    fn id(&self) -> StreamId;
    /// The newest moment of the stream; it comes after everything that [`covers`](Self::covers) is true for.
    fn now(&self) -> Moment;
    /// Whether the stream's next command is known to come after `moment`.
    fn covers(&self, moment: Moment) -> bool;
    /// Whether the host can see that `moment` has passed.
    fn reached(&self, moment: Moment) -> bool;
    /// Makes the stream's next command come after `moments`.
    fn wait_for(&self, moments: &[Moment]) -> Result<()>;
    /// Why a wait of the host for `moment` need not end; `None` if it ends.
    fn stuck(&self, moment: Moment) -> Option<Stuck>;
    /// Blocks the host until `moments`, which are not stuck, have passed.
    #[track_caller]
    fn wait_for_memory(&self, moments: &[Moment]) -> Result<()>;
    /// A handle of the stream's device, for buffers that live on.
    fn device(&self) -> Option<Device>;
    /// Makes a call that gets `bytes` bytes of the driver, which a recording is told of.
    fn record_driver_call<R>(&self, _bytes: usize, call: impl FnOnce() -> R) -> R {
        call()
    }
}

impl Asker for Stream {
    #[inline]
    fn id(&self) -> StreamId {
        self.id()
    }

    fn now(&self) -> Moment {
        self.now()
    }

    fn covers(&self, moment: Moment) -> bool {
        self.covers(moment)
    }

    fn reached(&self, moment: Moment) -> bool {
        self.device().reached(moment)
    }

    fn wait_for(&self, moments: &[Moment]) -> Result<()> {
        self.wait_for(moments)
    }

    fn stuck(&self, moment: Moment) -> Option<Stuck> {
        self.stuck(moment)
    }

    #[track_caller]
    fn wait_for_memory(&self, moments: &[Moment]) -> Result<()> {
        self.wait_for_memory(moments)
    }

    fn device(&self) -> Option<Device> {
        Some(self.device().clone())
    }

    fn record_driver_call<R>(&self, bytes: usize, call: impl FnOnce() -> R) -> R {
        self.record_driver_call(bytes, call)
    }
}

/// For each of some streams, the newest tick that is known to have passed.
#[derive(Debug, Default)]
pub(crate) struct Frontier(SmallVec<[Moment; 4]>);

impl Frontier {
    /// Asks `passed` about `moments`: once for a stream of which nothing has passed, by bisection otherwise.
    pub(crate) fn find(mut moments: Vec<Moment>, mut passed: impl FnMut(Moment) -> bool) -> Frontier {
        moments.sort_unstable_by_key(|moment| (moment.stream, moment.tick));
        moments.dedup();
        let mut newest = SmallVec::new();
        for of_one in moments.chunk_by(|a, b| a.stream == b.stream) {
            if let Some((&oldest, rest)) = of_one.split_first()
                && passed(oldest)
            {
                let count = rest.partition_point(|&moment| passed(moment));
                newest.push(of_one[count]);
            }
        }
        Frontier(newest)
    }

    /// Whether nothing is known to have passed.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `moment` is known to have passed.
    pub(crate) fn passes(&self, moment: Moment) -> bool {
        moment.tick == 0
            || self.0.iter().any(|newest| newest.stream == moment.stream && newest.tick >= moment.tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The frontier answers as the question itself does, for every moment that it was made of.
        #[test]
        fn answers_as_asked(moments in prop::collection::vec((1u64..5, 0u64..40), 0..40),
                            passed in prop::collection::vec(0u64..40, 5)) {
            let moments: Vec<_> =
                moments.iter().map(|&(s, tick)| Moment { stream: StreamId::from_raw(s), tick }).collect();
            let truth = |m: Moment| m.tick <= passed[m.stream.as_u64() as usize];
            let frontier = Frontier::find(moments.clone(), truth);
            for moment in moments {
                prop_assert_eq!(frontier.passes(moment), truth(moment));
            }
        }

        /// A stream of which nothing has passed is asked once.
        #[test]
        fn asks_little(ticks in prop::collection::vec(1u64..1000, 1..200), done in 0u64..1000) {
            let moments = ticks.iter().map(|&tick| Moment { stream: StreamId::from_raw(1), tick }).collect();
            let mut asked = 0u32;
            Frontier::find(moments, |moment| { asked += 1; moment.tick <= done });
            let nothing = ticks.iter().all(|&tick| tick > done);
            let most = if nothing { 1 } else { 3 + ticks.len().ilog2() };
            prop_assert!(asked <= most);
        }
    }
}
