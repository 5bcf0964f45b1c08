//! The invariants about memory: where blocks are, what is counted, and what comes and goes.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::model::{Bench, PAGE, check_arenas, check_counters};
use super::programs::{STREAMS, Setup, Step, apply, bench, program, run, setup, step, trim};
use crate::block::UNIT;
use crate::classes::units_for;
use crate::order::Asker;
use crate::{BlockState, ReusePolicy};

proptest! {
    #[test]
    fn invariant_01_live_ranges_are_disjoint(setup in setup(), steps in program()) {
        run(&setup, &steps, |bench| {
            let mut ranges: Vec<_> = bench.live.iter().filter(|buffer| buffer.bytes > 0)
                .map(|buffer| (buffer.grant.ptr.as_ptr().addr(), buffer.bytes)).collect();
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        });
    }

    /// Blocks tile each segment, and neighbours agree: as seen from inside, and in the picture.
    #[test]
    fn invariant_02_blocks_tile_segments(setup in setup(), steps in program()) {
        let bench = run(&setup, &steps, |bench| check_arenas(&bench.allocator));
        for segment in bench.allocator.snapshot().segments {
            let end = segment.blocks.iter().fold(segment.address, |at, block| {
                assert_eq!(block.address, at);
                at + block.bytes
            });
            prop_assert_eq!(end, segment.address + segment.bytes);
        }
    }

    /// No two adjacent free blocks that may merge stay apart.
    #[test]
    fn invariant_03_neighbours_are_merged(setup in setup(), steps in program()) {
        run(&setup, &steps, |bench| {
            for segment in bench.allocator.snapshot().segments {
                for pair in segment.blocks.windows(2) {
                    let cached = |block: &crate::BlockSnapshot| block.state == BlockState::Cached;
                    assert!(!(cached(&pair[0]) && cached(&pair[1])));
                }
            }
        });
    }

    /// A block is at least as large as was asked for, aligned, and not much larger; no bytes take nothing.
    #[test]
    fn invariant_04_sizes_fit(setup in setup(), steps in program()) {
        run(&setup, &steps, |bench| {
            let mut sizes = HashMap::new();
            for block in bench.allocator.snapshot().segments.into_iter().flat_map(|segment| segment.blocks) {
                sizes.insert(block.address, block.bytes);
            }
            for buffer in &bench.live {
                let address = buffer.grant.ptr.as_ptr().addr();
                assert_eq!(address % UNIT, 0);
                if buffer.bytes > 0 {
                    let waste = sizes[&address] - buffer.bytes;
                    assert!(waste < UNIT + buffer.bytes / 32);
                } else {
                    assert_eq!(buffer.grant.block.index, u32::MAX);
                }
            }
        });
    }

    /// What is reserved is live, pending or cached, and the counters are those counted from a picture.
    #[test]
    fn invariant_05_counters_are_right(setup in setup(), steps in program()) {
        run(&setup, &steps, |bench| {
            check_counters(&bench.allocator);
            bench.check();
        });
    }

    /// Memory that was allocated, used and freed on one stream in a loop needs no driver and no device.
    #[test]
    fn invariant_07_a_loop_needs_no_driver(in_place in any::<bool>(), sizes in prop::collection::vec(1usize..200_000, 1..30)) {
        let mut bench = Bench::with(1, in_place);
        let round = |bench: &mut Bench| {
            for &bytes in &sizes {
                let index = bench.allocate(0, bytes).unwrap();
                bench.launch(0, index, true);
            }
            while !bench.live.is_empty() {
                bench.free(0);
            }
        };
        round(&mut bench);
        round(&mut bench);
        let before = bench.allocator.stats();
        round(&mut bench);
        let after = bench.allocator.stats();
        prop_assert_eq!(before.driver_allocations, after.driver_allocations);
        prop_assert_eq!((after.polls, after.waits, bench.world.waits.borrow().len()), (0, 0, 0));
    }

    #[test]
    fn invariant_13_the_limit_holds(setup in setup(), steps in program(), limit in 50_000usize..2_000_000) {
        let setup = Setup { limit: Some(limit), ..setup };
        run(&setup, &steps, |bench| assert!(bench.allocator.stats().reserved_bytes <= limit));
    }

    /// A request fails only if no run of free blocks has room, nothing more can go back to the driver, and the limit
    /// leaves no room for new memory.
    #[test]
    fn invariant_14_out_of_memory_is_the_last_resort(setup in setup(), steps in program(), limit in 20_000usize..300_000) {
        let setup = Setup { limit: Some(limit), ..setup };
        let mut bench = bench(&setup);
        for step in &steps {
            let Step::Allocate { stream, bytes } = *step else {
                apply(&mut bench, step);
                continue;
            };
            if bench.allocate(stream, bytes).is_err() {
                let units = units_for(bytes).unwrap();
                for arena in bench.allocator.arenas() {
                    prop_assert!(arena.lock().smallest_run(units).is_none());
                }
                let reserved = bench.allocator.stats().reserved_bytes;
                prop_assert!(reserved + (units as usize * UNIT).next_multiple_of(PAGE) > limit);
                prop_assert_eq!(trim(&bench), 0);
            }
        }
    }

    /// A driver that refuses some calls leaves everything as it was, and the allocator works again afterwards.
    #[test]
    fn invariant_15_refusals_change_nothing(
        steps in prop::collection::vec(step(), 1..120),
        in_place in any::<bool>(),
        from in 1u64..24,
        count in 1u64..6,
    ) {
        let mut bench = Bench::with(STREAMS, in_place);
        bench.driver.refuse_from.store(from, Ordering::SeqCst);
        bench.driver.refuse_to.store(from + count, Ordering::SeqCst);
        for step in &steps {
            if let Step::Allocate { stream, bytes } = *step {
                let before = bench.allocator.stats();
                if bench.allocate(stream, bytes).is_err() {
                    let after = bench.allocator.stats();
                    prop_assert_eq!(before.allocated_bytes, after.allocated_bytes);
                    prop_assert_eq!(before.peak_allocated_bytes, after.peak_allocated_bytes);
                    prop_assert_eq!(before.peak_reserved_bytes, after.peak_reserved_bytes);
                    prop_assert_eq!(before.allocations, after.allocations);
                    prop_assert!(after.reserved_bytes <= before.reserved_bytes);
                    prop_assert_eq!(after.out_of_memory, before.out_of_memory + 1);
                }
            } else {
                apply(&mut bench, step);
            }
            bench.check();
        }
        bench.driver.refuse_to.store(0, Ordering::SeqCst);
        prop_assert!(bench.allocate(0, 1 << 20).is_ok());
        bench.check();
    }

    /// A wait that the device refuses puts the block back.
    #[test]
    fn invariant_15_refused_waits_change_nothing(steps in prop::collection::vec(step(), 1..120)) {
        let mut bench = Bench::new(STREAMS);
        bench.allocator.config.write().reuse = ReusePolicy::WaitFirst;
        bench.world.refuse_waits.set(true);
        for step in &steps {
            let before = bench.allocator.stats();
            if let Step::Allocate { stream, bytes } = *step {
                if bench.allocate(stream, bytes).is_err() {
                    let after = bench.allocator.stats();
                    prop_assert_eq!(before.allocated_bytes, after.allocated_bytes);
                    prop_assert_eq!(before.allocations, after.allocations);
                    prop_assert_eq!(before.reserved_bytes, after.reserved_bytes);
                }
            } else {
                apply(&mut bench, step);
            }
            bench.check();
        }
    }

    /// Trimming leaves only segments with live or unfinished blocks, of addresses no whole page without them, and a
    /// second time does nothing.
    #[test]
    fn invariant_16_trim_is_exact(steps in prop::collection::vec(step(), 1..120), in_place in any::<bool>()) {
        let mut bench = Bench::with(STREAMS, in_place);
        for step in &steps {
            apply(&mut bench, step);
        }
        trim(&bench);
        bench.check();
        let stream = bench.world.stream(0);
        for segment in bench.allocator.snapshot().segments {
            let unfinished = |block: &crate::BlockSnapshot| {
                block.state == BlockState::Live || block.uses.iter().any(|&used| !stream.reached(used))
            };
            if in_place {
                for block in segment.blocks.iter().filter(|block| !unfinished(block)) {
                    prop_assert!(block.bytes < 2 * PAGE);
                    let start = block.address.next_multiple_of(PAGE);
                    prop_assert!(start + PAGE > block.address + block.bytes, "no whole page is left");
                }
            }
            prop_assert!(segment.blocks.iter().any(unfinished));
        }
        prop_assert_eq!(trim(&bench), 0);
        // At the end everything can be given back.
        while !bench.live.is_empty() {
            bench.free(0);
        }
        bench.world.finish();
        trim(&bench);
        bench.check();
        prop_assert_eq!(bench.allocator.stats().reserved_bytes, 0);
    }

    /// What a private pool has had serves nobody else until it is released, whatever happens.
    #[test]
    fn invariant_18_private_addresses_stay_private(
        setup in setup(),
        steps in prop::collection::vec((step(), 0u8..12), 1..160),
    ) {
        let mut bench = bench(&setup);
        let mut arenas = [None; STREAMS];
        let mut serving = [None; STREAMS];
        let mut private: Vec<std::ops::Range<usize>> = Vec::new();
        for (step, switch) in steps {
            let stream = usize::from(switch) % STREAMS;
            let id = bench.world.stream(stream).id();
            match (switch / 4, serving[stream]) {
                (0, None) => {
                    let number = *arenas[stream].get_or_insert_with(|| bench.allocator.private_arena(id, 7).unwrap());
                    serving[stream] = Some(bench.allocator.redirect(id, Some(number)));
                }
                (1, Some(before)) => {
                    bench.allocator.redirect(id, before);
                    serving[stream] = None;
                }
                _ => {}
            }
            let Step::Allocate { stream, bytes } = step else {
                apply(&mut bench, &step);
                continue;
            };
            if bytes > 0 && let Ok(index) = bench.allocate(stream, bytes) {
                let start = bench.live[index].grant.ptr.as_ptr().addr();
                let range = start..start + bytes;
                if serving[stream].is_some() {
                    private.push(range);
                } else {
                    let shared = private.iter().any(|other| other.start < range.end && range.start < other.end);
                    prop_assert!(!shared);
                }
            }
            bench.check();
        }
        // Released, it is memory like any other.
        for number in arenas.into_iter().flatten() {
            bench.allocator.arena(number).unwrap().lock().pool = None;
        }
        while !bench.live.is_empty() {
            bench.free(0);
        }
        bench.world.finish();
        trim(&bench);
        prop_assert_eq!(bench.allocator.stats().reserved_bytes, 0);
    }
}

/// One call of the driver fails, for every call there is: the program that asks again ends as it would have, and nothing
/// is lost.
#[test]
fn invariant_15_any_one_call_may_fail() {
    let sizes = |round: usize| [3000 + 7000 * round, 500, 100_000, 40_000 - 3000 * round, 20];
    for in_place in [false, true] {
        let program = |refused: u64| {
            let mut bench = Bench::with(2, in_place);
            bench.driver.refuse_from.store(refused, Ordering::SeqCst);
            bench.driver.refuse_to.store(refused + 1, Ordering::SeqCst);
            let mut errors = 0;
            for round in 0..6 {
                for (number, bytes) in sizes(round).into_iter().enumerate() {
                    let before = bench.allocator.snapshot();
                    let index = bench.allocate(number % 2, bytes).or_else(|_| {
                        errors += 1;
                        assert!(
                            bench.allocator.snapshot().stats().reserved_bytes
                                <= before.stats().reserved_bytes
                        );
                        bench.allocate(number % 2, bytes)
                    });
                    bench.launch(number % 2, index.unwrap(), true);
                    bench.check();
                }
                bench.free(round);
                bench.free(0);
                bench.world.finish();
                if round % 3 == 2 {
                    trim(&bench);
                }
                bench.check();
            }
            let stats = bench.allocator.stats();
            let result = (
                stats.allocated_bytes,
                stats.live_blocks,
                stats.allocations,
                stats.frees,
                stats.total_allocated_bytes,
            );
            (result, errors, bench.driver.calls.load(Ordering::SeqCst))
        };
        let (expected, _, calls) = program(u64::MAX - 1);
        assert!(calls > 10, "{calls}");
        let mut errors = 0;
        for call in 1..=calls {
            let (found, failed, _) = program(call);
            assert_eq!(found, expected, "call {call} of {calls}, in place {in_place}");
            errors += failed;
        }
        assert!(errors <= calls);
    }
}
