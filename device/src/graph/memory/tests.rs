//! Places of memory against those of a plain search of all places before.

use proptest::prelude::*;

use super::{Arena, Block, size, users};
use crate::Device;
use crate::graph::groups::tests::plan;
use crate::graph::plan::{Needs, Order, Plan};
use crate::graph::reach::Reach;

/// The start of each memory: the largest first, each in the smallest gap between those that it may not share with.
fn plain(plan: &Plan, reach: &Reach) -> Vec<usize> {
    let users = users(plan);
    let mut all: Vec<usize> = (0..plan.memories.len()).collect();
    all.sort_by_key(|&memory| std::cmp::Reverse(plan.memories[memory].bytes()));
    let (mut offsets, mut placed) = (vec![0; all.len()], Vec::<usize>::new());
    let over = |one: usize, other: usize| users[one].iter().all(|&user| reach.has(user, users[other][0]));
    for memory in all {
        let bytes = size(plan.memories[memory].bytes());
        let (mut best, mut end) = (None, 0);
        placed.sort_by_key(|&other| offsets[other]);
        for &other in placed.iter().filter(|&&other| !over(other, memory) && !over(memory, other)) {
            let start: usize = offsets[other];
            if start >= end + bytes && best.is_none_or(|(_, gap)| start - end < gap) {
                best = Some((end, start - end));
            }
            end = end.max(start + size(plan.memories[other].bytes()));
        }
        offsets[memory] = best.map_or(end, |(start, _)| start);
        placed.push(memory);
    }
    offsets
}

/// Whether no two memories share bytes that are in use at once.
fn is_sound(plan: &Plan, offsets: &[Option<usize>], reach: &Reach) -> bool {
    let users = users(plan);
    let over = |one: usize, other: usize| users[one].iter().all(|&user| reach.has(user, users[other][0]));
    let range = |memory: usize| {
        let start = offsets[memory].unwrap();
        start..start + size(plan.memories[memory].bytes())
    };
    (0..offsets.len()).all(|one| {
        (0..one).all(|other| {
            let (a, b) = (range(one), range(other));
            a.end <= b.start || b.end <= a.start || over(one, other) || over(other, one)
        })
    })
}

fn graphs() -> impl Strategy<Value = Vec<Vec<usize>>> {
    let near = prop::collection::vec(prop::collection::vec(1usize..6, 0..4), 1..80);
    let wide = prop::collection::vec(prop::collection::vec(1usize..60, 0..3), 1..120);
    prop_oneof![near, wide]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn places_are_those_of_a_plain_search(
        reads in graphs(),
        bytes in prop::collection::vec(1usize..4000, 1..20),
    ) {
        let plan = plan(&Device::cpu(), &reads, &bytes);
        let (needs, reach) = plan.needs(Order::Data);
        let arena = Arena::with_all(&plan, &needs, Some(&reach));
        let offsets: Vec<usize> = arena.offsets.iter().map(|offset| offset.unwrap()).collect();
        prop_assert_eq!(offsets, plain(&plan, &reach));
        prop_assert!(is_sound(&plan, &arena.offsets, &reach));
    }

    /// Also where there are more places than a search may look at.
    #[test]
    fn places_near_others_are_sound(
        reads in prop::collection::vec(prop::collection::vec(1usize..40, 0..3), 100..400),
        bytes in prop::collection::vec(1usize..4000, 1..20),
    ) {
        let plan = plan(&Device::cpu(), &reads, &bytes);
        let (needs, reach) = plan.needs(Order::Data);
        let arena = place(&plan, &needs, &reach, 0);
        prop_assert!(is_sound(&plan, &arena.offsets, &reach));
    }
}

/// Places for all memory, with so many looks at places for each.
fn place<'a>(plan: &'a Plan, needs: &Needs, reach: &Reach, most: usize) -> Arena<'a> {
    let mut arena = Arena::new(plan);
    arena.most = most;
    let mut all: Vec<usize> = (0..plan.memories.len()).collect();
    all.sort_by_key(|&memory| std::cmp::Reverse(plan.memories[memory].bytes()));
    for memory in all {
        let start = arena.gap(memory, needs, Some(reach));
        arena.put(memory, start);
    }
    assert!(arena.blocks.iter().all(|block: &Block| block.places.len() <= super::BLOCK));
    arena
}

/// Chains side by side have two places each, as many as there are.
#[test]
fn many_chains_take_two_places_each() {
    const CHAINS: usize = 300;
    let reads: Vec<Vec<usize>> = (0..CHAINS * 20).map(|_| vec![CHAINS]).collect();
    let plan = plan(&Device::cpu(), &reads, &[256]);
    let (needs, reach) = plan.needs(Order::Data);
    let arena = Arena::with_all(&plan, &needs, Some(&reach));
    assert!(arena.places > arena.most);
    assert_eq!(arena.bytes, CHAINS * 2 * 256);
}
