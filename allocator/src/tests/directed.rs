//! Cases worth a name.

use device::{Error, ErrorKind};

use super::model::{Bench, PAGE};
use crate::block::UNIT;
use crate::growth::segment_bytes;
use crate::order::Asker;
use crate::{AllocatorConfig, ReusePolicy};

fn with(config: AllocatorConfig, streams: usize) -> Bench {
    let bench = Bench::new(streams);
    *bench.allocator.config.write() = config;
    bench
}

fn address(bench: &Bench, index: usize) -> usize {
    bench.live[index].grant.ptr.as_ptr().addr()
}

#[test]
fn no_bytes_take_nothing() {
    let mut bench = Bench::new(1);
    let index = bench.allocate(0, 0).unwrap();
    assert_eq!(bench.allocator.stats(), crate::MemoryStats::default());
    bench.free(index);
    bench.check();
    assert_eq!(bench.allocator.stats().allocations, 0);
}

#[test]
fn a_block_used_elsewhere_is_not_ready() {
    let mut bench = with(AllocatorConfig { reuse: ReusePolicy::GrowFirst, ..Default::default() }, 2);
    let index = bench.allocate(0, 1 << 20).unwrap();
    let first = address(&bench, index);
    bench.launch(1, index, true);
    bench.free(index);
    assert_eq!(bench.allocator.stats().pending_bytes, 1 << 20);
    let again = bench.allocate(0, 1 << 20).unwrap();
    assert_ne!(address(&bench, again), first, "stream 1 may still use it");
    bench.free(again);
    // Once it has run, the host sees it and the block is free.
    bench.world.finish();
    let kept = bench.allocate(0, 1 << 20).unwrap();
    let last = bench.allocate(0, 1 << 20).unwrap();
    assert!(address(&bench, kept) == first || address(&bench, last) == first);
    assert!(bench.world.waits.borrow().is_empty());
}

#[test]
fn a_transitive_wait_frees_a_block() {
    let mut bench = with(AllocatorConfig { deterministic: true, ..Default::default() }, 3);
    let index = bench.allocate(0, 1 << 20).unwrap();
    let first = address(&bench, index);
    bench.launch(2, index, true);
    bench.free(index);
    bench.wait_stream(1, 2);
    bench.wait_stream(0, 1);
    let again = bench.allocate(0, 1 << 20).unwrap();
    assert_eq!(address(&bench, again), first);
    assert_eq!(bench.allocator.stats().polls, 0);
}

#[test]
fn another_streams_memory_is_used_after_a_wait() {
    let mut bench = with(AllocatorConfig { deterministic: true, ..Default::default() }, 2);
    let index = bench.allocate(0, 8 << 20).unwrap();
    bench.launch(0, index, true);
    bench.free(index);
    bench.wait_stream(1, 0);
    let reserved = bench.allocator.stats().reserved_bytes;
    bench.allocate(1, 8 << 20).unwrap();
    assert_eq!(bench.allocator.stats().reserved_bytes, reserved, "nothing is stranded");
    assert_eq!(bench.allocator.stats().borrowed, 1);
}

#[test]
fn a_stream_that_keeps_borrowing_gets_memory_of_its_own() {
    let mut bench = Bench::new(2);
    let index = bench.allocate(0, 60_000).unwrap();
    bench.launch(0, index, true);
    bench.free(index);
    bench.wait_stream(1, 0);
    for _ in 0..200 {
        let index = bench.allocate(1, 1000).unwrap();
        bench.launch(1, index, true);
        bench.free(index);
    }
    let stats = bench.allocator.stats();
    assert_eq!((stats.borrowed, stats.driver_allocations), (64, 2));
}

#[test]
fn unused_memory_stays_with_its_stream_until_there_is_no_other() {
    let mut bench = Bench::new(2);
    bench.allocate(0, 1000).unwrap();
    bench.allocator.set_limit(Some(128 << 10));
    bench.allocate(1, 1000).unwrap();
    assert_eq!(bench.allocator.stats().segments, 2, "its own");
    bench.allocate(1, 60 << 10).unwrap();
    bench.allocate(1, 60 << 10).unwrap();
    assert_eq!(bench.allocator.stats().segments, 2, "the other's rest");
    bench.check();
}

#[test]
fn balanced_growth_is_bounded() {
    let config = |reuse| AllocatorConfig { deterministic: true, reuse, ..Default::default() };
    let reserved = |reuse| {
        let mut bench = with(config(reuse), 2);
        for _ in 0..100 {
            // Copied on stream 0, used on stream 1, and stream 0 never hears of it.
            let index = bench.allocate(0, 1 << 20).unwrap();
            bench.launch(0, index, true);
            bench.launch(1, index, false);
            bench.free(index);
        }
        (bench.allocator.stats().reserved_bytes >> 20, bench.world.waits.borrow().len())
    };
    assert_eq!(reserved(ReusePolicy::WaitFirst), (1, 99));
    let (balanced, waits) = reserved(ReusePolicy::Balanced);
    assert!(balanced <= 4 && waits >= 96, "{balanced} MiB, {waits} waits");
    assert!(reserved(ReusePolicy::GrowFirst).0 >= 100);
}

/// 3 x 40 MiB under a limit of 120: a fourth fails with a report, and after all are freed 120 MiB at once
/// succeed.
#[test]
fn freed_segments_make_room_under_the_limit() {
    let mut bench = Bench::new(1);
    bench.allocator.set_limit(Some(120 << 20));
    for _ in 0..3 {
        bench.allocate(0, 40 << 20).unwrap();
    }
    let error = bench.allocate(0, 40 << 20).unwrap_err().to_string();
    for part in ["41943040 bytes", "the limit is 120.0 MiB", "live 120.0 MiB in 3 buffers"] {
        assert!(error.contains(part), "{error}");
    }
    while !bench.live.is_empty() {
        bench.free(0);
    }
    bench.allocate(0, 120 << 20).unwrap();
    assert_eq!(bench.allocator.stats().driver_frees, 3);
    bench.check();
}

#[test]
fn the_report_says_who_has_not_finished() {
    let mut bench = Bench::new(2);
    bench.allocator.set_limit(Some(4 << 20));
    for bytes in [2 << 20, 2 << 20] {
        bench.allocate(0, bytes).unwrap();
    }
    for _ in 0..2 {
        bench.launch(1, 0, true);
        bench.free(0);
    }
    bench.world.held.set(true);
    let error = bench.allocate(0, 4 << 20).unwrap_err().to_string();
    assert!(error.contains("the host does not wait for it: stream #2 is held"), "{error}");
    assert!(
        error.contains("stream #2 has not finished with 2.0 MiB; the request would fit after it has")
            || error.contains("stream #2 has not finished with 4.0 MiB; the request would fit after it has"),
        "{error}"
    );
    bench.world.finish();
    bench.allocate(0, 4 << 20).unwrap();
}

#[test]
fn runs_across_pending_and_ready_blocks_serve_before_an_error() {
    let mut bench = with(AllocatorConfig { deterministic: true, ..Default::default() }, 3);
    bench.allocator.set_limit(Some(1 << 20));
    let all: Vec<usize> = (0..4).map(|_| bench.allocate(0, 256 << 10).unwrap()).collect();
    bench.launch(0, all[0], true);
    bench.launch(1, all[1], true);
    bench.launch(2, all[2], true);
    bench.launch(1, all[3], false);
    while !bench.live.is_empty() {
        bench.free(0);
    }
    // The segments are separate ranges unless the first one was cut.
    let whole = bench.allocator.snapshot().segments.iter().map(|segment| segment.bytes).max().unwrap();
    bench.allocate(0, whole).unwrap();
    bench.check();
}

#[test]
fn invariant_17_a_block_comes_back_once() {
    let mut bench = Bench::new(1);
    let index = bench.allocate(0, 1000).unwrap();
    let block = bench.live[index].grant.block;
    bench.free(index);
    let before = bench.allocator.snapshot();
    bench.allocator.take_back(block, &[]);
    bench.allocator.take_back(device::BlockId { arena: 7, index: 3 }, &[]);
    bench.allocator.take_back(device::BlockId { arena: 0, index: 999 }, &[]);
    assert_eq!(bench.allocator.snapshot(), before);
    bench.check();
}

#[test]
fn too_large_is_an_error() {
    let mut bench = Bench::new(1);
    for bytes in [usize::MAX, isize::MAX as usize, 1 << 45] {
        assert!(matches!(
            bench.allocate(0, bytes).as_ref().map_err(Error::kind),
            Err(device::ErrorKind::OutOfMemory { .. })
        ));
    }
    bench.check();
}

#[test]
fn unused_blocks_keep_their_old_tags() {
    let mut bench =
        with(AllocatorConfig { deterministic: true, reuse: ReusePolicy::WaitFirst, ..Default::default() }, 2);
    let index = bench.allocate(0, 4096).unwrap();
    bench.launch(0, index, true);
    bench.free(index);
    let index = bench.allocate(0, 4096).unwrap();
    let block = bench.live.swap_remove(index).grant.block;
    bench.allocator.take_back(block, &[]);
    let again = bench.allocate(1, 4096).unwrap();
    assert_eq!(bench.world.waits.borrow().as_slice(), [vec![super::model::World::moment(0, 1)]]);
    bench.launch(1, again, true);
}

#[test]
fn segments_grow_with_the_arena() {
    assert_eq!(segment_bytes(256, 0), 64 << 10);
    assert_eq!(segment_bytes(65 << 10, 0), 128 << 10);
    assert_eq!(segment_bytes(40 << 20, 0), 40 << 20);
    assert_eq!(segment_bytes(256, 80 << 20), 10 << 20);
    assert_eq!(segment_bytes(256, 8 << 30), 64 << 20);
    for need in (1..4000).map(|k| k * 5 * UNIT) {
        let bytes = segment_bytes(need, 0);
        assert!(bytes >= need && bytes - need < (64 << 10).max(need / 8), "{need} {bytes}");
    }
}

#[test]
fn streams_are_asked_once_if_nothing_has_passed() {
    let mut bench = with(AllocatorConfig { reuse: ReusePolicy::GrowFirst, ..Default::default() }, 3);
    let all: Vec<usize> = (0..50).map(|_| bench.allocate(0, 4096).unwrap()).collect();
    all.iter().for_each(|&index| bench.launch(1 + index % 2, index, true));
    while !bench.live.is_empty() {
        bench.free(0);
    }
    while bench.allocator.stats().polls == 0 {
        bench.allocate(0, 4096).unwrap();
    }
    assert!(bench.allocator.stats().polls <= 2, "one for each stream");
    assert!(bench.world.stream(0).now().tick == 0);
}

/// More streams than arenas: the last ones share, and stay in order.
#[test]
fn streams_without_an_arena_of_their_own_are_ordered() {
    const MANY: usize = 1030;
    let mut bench = Bench::new(MANY);
    let use_all = |bench: &mut Bench, streams: &mut dyn Iterator<Item = usize>| {
        for stream in streams {
            let index = bench.allocate(stream, 1000).unwrap();
            bench.launch(stream, index, true);
        }
        while !bench.live.is_empty() {
            bench.free(0);
        }
    };
    use_all(&mut bench, &mut (0..MANY));
    use_all(&mut bench, &mut (1020..MANY).chain(0..8));
    bench.check();
    assert_eq!(bench.allocator.arenas().count(), 1024);
}

/// What is ready for the home stream may still be in use when a stream that shares its arena grows it.
#[test]
fn growth_of_a_shared_arena_takes_new_memory_only() {
    const MANY: usize = 1025;
    let mut bench = Bench::with(MANY, true);
    for stream in 0..MANY {
        bench.allocate(stream, 256).unwrap();
    }
    let (sharer, home) = (MANY - 1, 1);
    let arena = bench.allocator.arena_of(&bench.world.stream(sharer));
    assert_eq!(arena.lock().home, bench.world.stream(home).id());
    let index = bench.allocate(home, 200 << 10).unwrap();
    bench.launch(home, index, true);
    bench.free(index);
    // The bench sees whether the new owner comes after the old one.
    let index = bench.allocate(sharer, 1 << 20).unwrap();
    bench.launch(sharer, index, true);
    bench.check();
    assert!(bench.world.waits.borrow().is_empty());
}

#[test]
fn streams_do_not_share_a_private_pools_arena() {
    const MANY: usize = 1100;
    let mut bench = Bench::new(MANY);
    let allocator = &bench.allocator;
    let pool: Vec<u32> =
        (0..8).map(|stream| allocator.private_arena(bench.world.stream(stream).id(), 1).unwrap()).collect();
    for stream in 0..MANY {
        let index = bench.allocate(stream, 1000).unwrap();
        assert!(!pool.contains(&bench.live[index].grant.block.arena), "stream {stream}");
    }
    bench.check();
}

#[test]
fn private_pools_leave_an_arena_to_everybody_else() {
    let mut bench = Bench::new(1);
    let home = bench.world.stream(0).id();
    let taken = (0..2000).filter(|&pool| bench.allocator.private_arena(home, pool).is_some()).count();
    assert_eq!(taken, 1023);
    bench.allocate(0, 1000).unwrap();
    bench.check();
}

/// In deterministic mode nobody asks whether a stream is gone, and still those that come later reuse what it had.
#[test]
fn deterministic_streams_come_and_go() {
    const MANY: usize = 1100;
    const BYTES: usize = 64 << 10;
    let mut bench = with(AllocatorConfig { deterministic: true, ..Default::default() }, MANY);
    let run = |bench: &mut Bench, stream: usize, times: usize| {
        for _ in 0..times {
            let index = bench.allocate(stream, BYTES).unwrap();
            bench.launch(stream, index, true);
            bench.free(index);
        }
    };
    (0..1024).for_each(|stream| run(&mut bench, stream, 1));
    let reserved = bench.allocator.stats().reserved_bytes;
    (1024..MANY).for_each(|stream| run(&mut bench, stream, 10));
    let grown = bench.allocator.stats().reserved_bytes - reserved;
    assert!(grown <= (MANY - 1024) * BYTES, "{grown}");
    // A stream that has lost its arena gets another.
    run(&mut bench, 1030 % 1024, 3);
    let lost = bench.world.stream(1030 % 1024);
    assert_eq!(bench.allocator.arena_of(&lost).lock().home, lost.id());
    assert_eq!(bench.allocator.stats().polls, 0);
    bench.check();
}

/// Blocks that become alike at once all merge, whatever their order.
#[test]
fn blocks_whose_tags_pass_together_merge() {
    let mut bench = Bench::new(4);
    let guard = bench.allocate(0, 256).unwrap();
    let sizes = [3000, 5000, 1000];
    let blocks = sizes.map(|bytes| bench.allocate(0, bytes).unwrap());
    let below = bench.allocate(0, 256).unwrap();
    assert!(
        address(&bench, below) < address(&bench, blocks[2])
            && address(&bench, blocks[0]) < address(&bench, guard)
    );
    for (block, streams) in blocks.into_iter().zip([&[1][..], &[1, 3], &[1, 2]]) {
        streams.iter().for_each(|&stream| bench.launch(stream, block, false));
    }
    blocks.iter().rev().for_each(|&block| bench.free(block));
    bench.check();
    bench.wait_stream(0, 2);
    bench.wait_stream(0, 3);
    let asker = bench.world.stream(0);
    let arena = bench.allocator.arena_of(&asker);
    assert!(bench.allocator.promote(&asker, arena, |moment| asker.covers(moment), true));
    bench.check();
}

/// What an arena may have does not rise with growth that could move nothing.
#[test]
fn growth_that_moves_nothing_leaves_the_budget_alone() {
    const PAGES: usize = 64;
    let mut bench = Bench::with(1, true);
    // Every second half of a page stays live, so that no whole page is free.
    let halves: Vec<usize> = (0..2 * PAGES).map(|_| bench.allocate(0, PAGE / 2).unwrap()).collect();
    halves.iter().rev().step_by(2).for_each(|&half| bench.free(half));
    let excess = |bench: &Bench| {
        let stream = bench.world.stream(0);
        bench.allocator.arena_of(&stream).lock().excess((PAGE / UNIT) as u32) as usize * UNIT / PAGE
    };
    while excess(&bench) < 2 {
        bench.allocate(0, PAGE).unwrap();
    }
    let before = excess(&bench);
    (0..8).for_each(|_| _ = bench.allocate(0, PAGE).unwrap());
    assert_eq!(excess(&bench), before + 8);
    bench.check();
}

#[test]
fn what_is_reserved_serves_later_requests() {
    const WHOLE: usize = 1 << 20;
    for in_place in [true, false] {
        let mut bench = Bench::with(2, in_place);
        let reserve =
            |bench: &Bench, stream, bytes| bench.allocator.make_ready(&bench.world.stream(stream), bytes);
        reserve(&bench, 0, WHOLE).unwrap();
        bench.check();
        let stats = bench.allocator.stats();
        assert!(stats.reserved_bytes >= WHOLE && stats.cached_bytes == stats.reserved_bytes);
        assert_eq!((stats.peak_allocated_bytes, stats.allocations, stats.live_blocks), (0, 0, 0));
        reserve(&bench, 0, WHOLE).unwrap();
        let live: Vec<usize> = (0..8).map(|_| bench.allocate(0, WHOLE / 8).unwrap()).collect();
        bench.check();
        assert_eq!(bench.allocator.stats().driver_allocations, stats.driver_allocations, "{in_place}");
        // What another stream still uses is not there yet.
        live.iter().for_each(|&index| bench.launch(1, index, true));
        live.into_iter().rev().for_each(|index| bench.free(index));
        reserve(&bench, 0, WHOLE).unwrap();
        bench.check();
        assert!(bench.allocator.stats().driver_allocations > stats.driver_allocations);
        // Nor more than the limit allows, which changes nothing.
        let before = bench.allocator.stats();
        bench.allocator.set_limit(Some(before.reserved_bytes + WHOLE));
        let refused = reserve(&bench, 1, 4 * WHOLE);
        assert!(matches!(refused.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfMemory { .. })));
        assert!(matches!(
            reserve(&bench, 1, usize::MAX).as_ref().map_err(Error::kind),
            Err(ErrorKind::OutOfMemory { .. })
        ));
        bench.check();
        assert!(bench.allocator.stats().reserved_bytes <= before.reserved_bytes);
    }
}
