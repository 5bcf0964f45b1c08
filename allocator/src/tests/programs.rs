//! Random programs: what they do, and how they are run.

use proptest::prelude::*;

use super::model::Bench;
use crate::order::Asker;
use crate::{AllocatorConfig, ReusePolicy};

pub(super) const STREAMS: usize = 4;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Allocate { stream: usize, bytes: usize },
    Free { pick: usize },
    Launch { stream: usize, pick: usize, write: bool },
    Wait { stream: usize, other: usize },
    Progress { stream: usize, count: u64 },
    Trim,
}

pub(super) fn step() -> impl Strategy<Value = Step> {
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

pub(super) fn apply(bench: &mut Bench, step: &Step) {
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

/// How a program is run.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) config: AllocatorConfig,
    pub(super) limit: Option<usize>,
    pub(super) in_place: bool,
}

pub(super) fn setup() -> impl Strategy<Value = Setup> {
    let limit = prop::option::of(prop::sample::select(vec![100_000usize, 400_000, 1_000_000]));
    (config(), limit, any::<bool>()).prop_map(|(config, limit, in_place)| Setup { config, limit, in_place })
}

pub(super) fn program() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..160)
}

pub(super) fn bench(setup: &Setup) -> Bench {
    let bench = Bench::with(STREAMS, setup.in_place);
    *bench.allocator.config.write() = setup.config;
    bench.allocator.set_limit(setup.limit);
    bench
}

/// Runs a program and looks after every step.
pub(super) fn run(setup: &Setup, steps: &[Step], mut look: impl FnMut(&Bench)) -> Bench {
    let mut bench = bench(setup);
    for step in steps {
        apply(&mut bench, step);
        look(&bench);
    }
    bench
}

pub(super) fn trim(bench: &Bench) -> usize {
    bench.allocator.release_cached(0, |moment| bench.world.stream(0).reached(moment))
}
