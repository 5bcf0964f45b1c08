use super::*;
use std::sync::atomic::AtomicU32;

fn pool(threads: usize) -> Workers {
    Team::new("test", threads - 1).ok().map(Arc::new)
}

#[test]
fn every_part_runs_once_with_the_same_boundaries() {
    for workers in [None, pool(1), pool(3)] {
        for (len, chunk) in [(0, 4), (1, 4), (4, 4), (1001, 10), (1000, 1000)] {
            let counts: Vec<AtomicU32> = (0..len).map(|_| AtomicU32::new(0)).collect();
            for_chunks(&workers, len, chunk, &|index, range| {
                assert_eq!(range, index * chunk..len.min(index * chunk + chunk));
                range.for_each(|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{len} by {chunk}");
        }
    }
}

#[test]
fn a_panic_in_a_part_reaches_the_caller_after_the_others_ended() {
    let workers = pool(2);
    let ended = AtomicU32::new(0);
    let split = || {
        for_chunks(&workers, 64, 1, &|index, _| {
            assert_ne!(index, 5, "part five");
            ended.fetch_add(1, Ordering::Relaxed);
        });
    };
    let panicked = Panicked::catch(split).expect_err("part 5 panics");
    assert!(panicked.message.contains("part five"));
    assert_eq!(ended.load(Ordering::Relaxed), 63);
}
