//! The invariants about who comes after whom.

use device::{Clock, Moment, StreamId};
use proptest::prelude::*;

use super::model::Bench;
use super::programs::{STREAMS, Step, apply, program, run, setup, step};
use crate::block::UNIT;
use crate::classes::units_for;
use crate::order::Asker;
use crate::{AllocatorConfig, BlockState, ReusePolicy};

proptest! {
    /// Every use by an old owner happens before the first use by the new one, under every schedule: the bench judges
    /// each launch.
    #[test]
    fn invariant_06_old_uses_come_before_new_ones(setup in setup(), steps in program()) {
        run(&setup, &steps, |_| ());
    }

    /// A request that fits a block all of whose uses its stream comes after takes memory without asking the
    /// driver, asking the device, or waiting.
    #[test]
    fn invariant_09_dominated_blocks_are_reused(
        steps in prop::collection::vec(step(), 1..160),
        deterministic in any::<bool>(),
        in_place in any::<bool>(),
    ) {
        let mut bench = Bench::with(STREAMS, in_place);
        bench.allocator.config.write().deterministic = deterministic;
        bench.allocator.config.write().reuse = ReusePolicy::WaitFirst;
        for step in &steps {
            let Step::Allocate { stream, bytes } = *step else {
                apply(&mut bench, step);
                continue;
            };
            let asker = bench.world.stream(stream);
            let needed = units_for(bytes).unwrap() as usize * UNIT;
            let fits = bytes > 0 && bench.allocator.snapshot().segments.iter().any(|segment| {
                segment.blocks.iter().any(|block| {
                    block.state != BlockState::Live
                        && block.bytes >= needed
                        && block.uses.iter().all(|&used| asker.covers(used))
                        && (segment.home == asker.id() || !block.uses.is_empty())
                })
            });
            let before = (bench.allocator.stats(), bench.world.waits.borrow().len());
            bench.allocate(stream, bytes).unwrap();
            let after = (bench.allocator.stats(), bench.world.waits.borrow().len());
            if fits {
                prop_assert_eq!(before.0.driver_allocations, after.0.driver_allocations);
                prop_assert_eq!(before.0.polls, after.0.polls);
                prop_assert_eq!(before.1, after.1);
            }
        }
    }

    /// If nothing is ordered and nothing has run, another stream's memory is reused after a wait only.
    #[test]
    fn invariant_10_no_reuse_without_order(setup in setup(), steps in program()) {
        let mut bench = super::programs::bench(&setup);
        bench.world.held.set(true);
        for step in steps.iter().filter(|step| !matches!(step, Step::Wait { .. } | Step::Progress { .. })) {
            let Step::Allocate { stream, bytes } = *step else {
                apply(&mut bench, step);
                continue;
            };
            if let Ok(index) = bench.allocate(stream, bytes) {
                prop_assert_eq!(bench.uncovered(stream, index), 0);
            }
        }
    }

    /// Clocks never go back, and a join is the pointwise maximum.
    #[test]
    fn invariant_11_clocks_are_monotone(moments in prop::collection::vec((0u64..5, 0u64..50, any::<bool>()), 1..60)) {
        let mut clocks = [Clock::new(), Clock::new()];
        for (stream, tick, join) in moments {
            let before = clocks.clone();
            let (one, two) = clocks.split_at_mut(1);
            if join {
                one[0].join(&two[0]);
            } else {
                two[0].advance(Moment { stream: StreamId::from_raw(stream), tick });
            }
            for stream in (0..5).map(StreamId::from_raw) {
                let (old, other) = (before[0].get(stream), before[1].get(stream));
                prop_assert_eq!(clocks[0].get(stream), if join { old.max(other) } else { old });
                prop_assert!(clocks[1].get(stream) >= other);
            }
        }
    }

    /// A wait is for exactly the uses of the block that is handed out, less what the stream comes after
    /// anyway.
    #[test]
    fn invariant_12_a_wait_covers_the_chosen_block(steps in program(), in_place in any::<bool>()) {
        let mut bench = Bench::with(STREAMS, in_place);
        *bench.allocator.config.write() =
            AllocatorConfig { deterministic: true, reuse: ReusePolicy::WaitFirst, ..Default::default() };
        for step in &steps {
            let Step::Allocate { stream, bytes } = *step else {
                apply(&mut bench, step);
                continue;
            };
            // What the clock covers is dropped from tags first, and blocks may merge then: do it before the
            // picture.
            let asker = bench.world.stream(stream);
            let arena = bench.allocator.arena_of(&asker);
            bench.allocator.promote(&asker, arena, |moment| asker.covers(moment), true);
            let snapshot = bench.allocator.snapshot();
            let covered: Vec<bool> = snapshot.segments.iter().flat_map(|segment| &segment.blocks)
                .flat_map(|block| &block.uses).map(|&used| bench.world.stream(stream).covers(used)).collect();
            let waits = bench.world.waits.borrow().len();
            let index = bench.allocate(stream, bytes).unwrap();
            let Some(waited) = bench.world.waits.borrow().get(waits).cloned() else { continue };
            let address = bench.live[index].grant.ptr.as_ptr().addr();
            let bytes = units_for(bytes).unwrap() as usize * UNIT;
            let mut covered = covered.into_iter();
            let mut uncovered = Vec::new();
            for block in snapshot.segments.iter().flat_map(|segment| &segment.blocks) {
                let uses: Vec<_> =
                    block.uses.iter().copied().filter(|_| !covered.next().unwrap()).collect();
                if block.address < address + bytes && address < block.address + block.bytes {
                    uncovered.extend(uses);
                }
            }
            for moment in &waited {
                let newest = uncovered.iter().filter(|used| used.stream == moment.stream).map(|used| used.tick).max();
                prop_assert_eq!(newest, Some(moment.tick), "waits for a use of the block and nothing else");
            }
            prop_assert!(uncovered.iter().all(|used| waited.iter().any(|m| m.stream == used.stream)));
        }
    }

    /// An arena that goes to another stream keeps who used its memory: the bench judges each launch.
    #[test]
    fn invariant_06_holds_across_hand_overs(setup in setup(), first in program(), second in program()) {
        let mut bench = run(&setup, &first, |_| ());
        let homes: Vec<_> = (0..STREAMS).map(|stream| bench.allocator.arena_of(&bench.world.stream(stream)).lock().number).collect();
        for (stream, &number) in homes.iter().enumerate() {
            let next = bench.world.stream((stream + 1) % STREAMS).id();
            bench.allocator.arena(number).unwrap().lock().hand_over(next);
            bench.allocator.redirect(next, Some(number));
        }
        bench.check();
        for step in &second {
            apply(&mut bench, step);
            bench.check();
        }
    }

    /// In deterministic mode a program gets the same addresses however far the device is.
    #[test]
    fn invariant_19_deterministic_at_any_timing(
        steps in prop::collection::vec(step(), 1..160),
        progress in prop::collection::vec((0..STREAMS, 0u64..20), 160),
        in_place in any::<bool>(),
        reuse in prop::sample::select(vec![ReusePolicy::Balanced, ReusePolicy::WaitFirst, ReusePolicy::GrowFirst]),
    ) {
        let run = |busy: bool| {
            let mut bench = Bench::with(STREAMS, in_place);
            *bench.allocator.config.write() = AllocatorConfig { deterministic: true, reuse, ..Default::default() };
            let mut places = Vec::new();
            for (step, &(stream, count)) in steps.iter().zip(&progress) {
                match *step {
                    Step::Progress { .. } | Step::Trim => continue,
                    Step::Allocate { stream, bytes } if bytes > 0 => {
                        let index = bench.allocate(stream, bytes).unwrap();
                        places.push(bench.driver.place(bench.live[index].grant.ptr.as_ptr().addr()));
                    }
                    _ => apply(&mut bench, step),
                }
                if busy {
                    bench.world.progress(stream, count);
                }
            }
            (places, bench.allocator.stats().peak_reserved_bytes, bench.allocator.stats().peak_allocated_bytes)
        };
        prop_assert_eq!(run(false), run(true));
    }
}
