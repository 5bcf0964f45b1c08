//! Random programs.

use proptest::prelude::*;

use super::model::{Bench, World};
use crate::classes::{UNIT, units_for};
use crate::order::Order;
use crate::{AllocatorConfig, BlockState, ReusePolicy};

const STREAMS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Allocate { stream: usize, bytes: usize },
    Free { pick: usize },
    Launch { stream: usize, pick: usize, write: bool },
    Wait { stream: usize, other: usize },
    Progress { stream: usize, count: u64 },
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0..STREAMS;
    let bytes = prop_oneof![4 => 1usize..20_000, 2 => prop::sample::select(vec![256, 1024, 4096, 65_536, 100_000]),
                            1 => 0usize..300_000];
    prop_oneof![
        6 => (stream.clone(), bytes).prop_map(|(stream, bytes)| Step::Allocate { stream, bytes }),
        5 => any::<usize>().prop_map(|pick| Step::Free { pick }),
        6 => (stream.clone(), any::<usize>(), any::<bool>())
            .prop_map(|(stream, pick, write)| Step::Launch { stream, pick, write }),
        2 => (stream.clone(), stream.clone()).prop_map(|(stream, other)| Step::Wait { stream, other }),
        2 => (stream, 1u64..8).prop_map(|(stream, count)| Step::Progress { stream, count }),
        1 => Just(Step::Trim),
    ]
}

fn config() -> impl Strategy<Value = AllocatorConfig> {
    let reuse =
        prop::sample::select(vec![ReusePolicy::Balanced, ReusePolicy::WaitFirst, ReusePolicy::GrowFirst]);
    (any::<bool>(), reuse, prop::option::of(0usize..1 << 20)).prop_map(
        |(deterministic, reuse, release_threshold)| AllocatorConfig {
            deterministic,
            release_threshold,
            reuse,
        },
    )
}

fn apply(bench: &mut Bench, step: &Step) {
    match *step {
        Step::Allocate { stream, bytes } => drop(bench.allocate(stream, bytes)),
        Step::Free { pick } if !bench.live.is_empty() => bench.free(pick % bench.live.len()),
        Step::Launch { stream, pick, write } if !bench.live.is_empty() => {
            bench.launch(stream, pick % bench.live.len(), write);
        }
        Step::Wait { stream, other } => bench.wait_stream(stream, other),
        Step::Progress { stream, count } => bench.world.progress(stream, count),
        Step::Trim => {
            bench.allocator.release_cached(0, |moment| bench.world.stream(0).reached(moment));
        }
        Step::Free { .. } | Step::Launch { .. } => {}
    }
}

proptest! {
    /// Whatever the program, the settings, the limit and the timing: live ranges are disjoint, blocks tile,
    /// merge and are counted, the limit holds, and every use of a block's former owners comes before its new
    /// owner's first use.
    #[test]
    fn sound_under_any_schedule(
        steps in prop::collection::vec(step(), 1..160),
        config in config(),
        limit in prop::option::of(prop::sample::select(vec![100_000usize, 400_000, 1_000_000])),
        every in 1usize..20,
    ) {
        let mut bench = Bench::new(STREAMS);
        *bench.allocator.config.write() = config;
        bench.allocator.set_limit(limit);
        for (number, step) in steps.iter().enumerate() {
            apply(&mut bench, step);
            if number % every == 0 {
                bench.check();
            }
            let reserved = bench.allocator.stats().reserved_bytes;
            prop_assert!(limit.is_none_or(|limit| reserved <= limit), "the limit holds");
        }
        // At the end everything can be given back.
        while !bench.live.is_empty() {
            bench.free(0);
        }
        bench.check();
        bench.world.finish();
        bench.allocator.release_cached(0, |moment| bench.world.stream(0).reached(moment));
        bench.check();
        prop_assert_eq!(bench.allocator.stats().reserved_bytes, 0);
    }

    /// A request that fits a block all of whose uses its stream comes after takes memory without asking the
    /// driver, asking the device, or waiting.
    #[test]
    fn complete_for_dominated_blocks(
        steps in prop::collection::vec(step(), 1..160),
        deterministic in any::<bool>(),
    ) {
        let mut bench = Bench::new(STREAMS);
        bench.allocator.config.write().deterministic = deterministic;
        bench.allocator.config.write().reuse = ReusePolicy::WaitFirst;
        for step in &steps {
            let Step::Allocate { stream, bytes } = *step else {
                apply(&mut bench, step);
                continue;
            };
            let order = bench.world.stream(stream);
            let needed = units_for(bytes).unwrap() as usize * UNIT;
            let fits = bytes > 0 && bench.allocator.snapshot().segments.iter().any(|segment| {
                segment.blocks.iter().any(|block| {
                    block.state != BlockState::Live
                        && block.bytes >= needed
                        && block.uses.iter().all(|&used| order.covers(used))
                        && (segment.home == order.id() || !block.uses.is_empty())
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

    /// A wait is for exactly the uses of the block that is handed out, less what the stream comes after
    /// anyway.
    #[test]
    fn waits_cover_the_chosen_block(steps in prop::collection::vec(step(), 1..160)) {
        let mut bench = Bench::new(STREAMS);
        *bench.allocator.config.write() =
            AllocatorConfig { deterministic: true, reuse: ReusePolicy::WaitFirst, ..Default::default() };
        for step in &steps {
            let Step::Allocate { stream, bytes } = *step else {
                apply(&mut bench, step);
                continue;
            };
            // What the clock covers is dropped from tags first, and blocks may merge then: do it before the
            // picture.
            let order = bench.world.stream(stream);
            let (arena, _) = bench.allocator.arena_of(&order);
            bench.allocator.promote(&order, arena, |moment| order.covers(moment), true);
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

    /// In deterministic mode a program gets the same addresses however far the device is.
    #[test]
    fn deterministic_at_any_timing(
        steps in prop::collection::vec(step(), 1..160),
        progress in prop::collection::vec((0..STREAMS, 0u64..20), 160),
        reuse in prop::sample::select(vec![ReusePolicy::Balanced, ReusePolicy::WaitFirst, ReusePolicy::GrowFirst]),
    ) {
        let run = |busy: bool| {
            let mut bench = Bench::new(STREAMS);
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

    /// A driver that refuses some calls leaves everything as it was, and the allocator works again
    /// afterwards.
    #[test]
    fn refusals_change_nothing(
        steps in prop::collection::vec(step(), 1..120),
        from in 1u64..12,
        count in 1u64..6,
    ) {
        let mut bench = Bench::new(STREAMS);
        bench.driver.refuse_from.store(from, std::sync::atomic::Ordering::SeqCst);
        bench.driver.refuse_to.store(from + count, std::sync::atomic::Ordering::SeqCst);
        for step in &steps {
            if let Step::Allocate { stream, bytes } = *step {
                let before = bench.allocator.stats();
                if bench.allocate(stream, bytes).is_err() {
                    let after = bench.allocator.stats();
                    prop_assert_eq!(before.allocated_bytes, after.allocated_bytes);
                    prop_assert_eq!(before.allocations, after.allocations);
                    prop_assert!(after.reserved_bytes <= before.reserved_bytes);
                    prop_assert_eq!(after.out_of_memory, before.out_of_memory + 1);
                }
            } else {
                apply(&mut bench, step);
            }
            bench.check();
        }
        bench.driver.refuse_to.store(0, std::sync::atomic::Ordering::SeqCst);
        prop_assert!(bench.allocate(0, 1 << 20).is_ok());
        bench.check();
    }

    /// A wait that the device refuses puts the block back.
    #[test]
    fn refused_waits_change_nothing(steps in prop::collection::vec(step(), 1..120)) {
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

    /// Trimming leaves only segments with live or unfinished blocks, and a second time does nothing.
    #[test]
    fn trim_is_exact(steps in prop::collection::vec(step(), 1..120)) {
        let mut bench = Bench::new(STREAMS);
        for step in &steps {
            apply(&mut bench, step);
        }
        let trim = |bench: &Bench| bench.allocator.release_cached(0, |moment| bench.world.stream(0).reached(moment));
        trim(&bench);
        bench.check();
        let stream = bench.world.stream(0);
        for segment in bench.allocator.snapshot().segments {
            let needed = segment.blocks.iter().any(|block| {
                block.state == BlockState::Live || block.uses.iter().any(|&used| !stream.reached(used))
            });
            prop_assert!(needed);
        }
        prop_assert_eq!(trim(&bench), 0);
    }

    /// Memory that was allocated, used and freed on one stream in a loop needs no driver and no device.
    #[test]
    fn one_stream_settles(sizes in prop::collection::vec(1usize..200_000, 1..30)) {
        let mut bench = Bench::new(1);
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
}

#[test]
fn moments_number_streams_from_one() {
    assert_eq!(World::moment(0, 3).stream.as_u64(), 1);
}
