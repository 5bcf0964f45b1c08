//! Reachability against a plain search, on random graphs of many shapes.

use proptest::prelude::*;

use super::Reach;

/// The needs of each command, by the distances back to them.
fn graphs() -> impl Strategy<Value = Vec<Vec<usize>>> {
    let near = prop::collection::vec(prop::collection::vec(1usize..6, 0..4), 1..200);
    let wide = prop::collection::vec(prop::collection::vec(1usize..200, 0..3), 1..300);
    let hub = prop::collection::vec(prop::collection::vec(1usize..300, 0..60), 1..120);
    prop_oneof![near, wide, hub]
}

/// Adds all commands; their needs, latest first, are those that no other one implies.
fn added(graph: &[Vec<usize>], visits: Option<usize>) -> (Reach, Vec<Vec<usize>>) {
    let mut reach = Reach::new(graph.len());
    reach.visits = visits.unwrap_or(reach.visits);
    let mut all = Vec::new();
    for (at, distances) in graph.iter().enumerate() {
        let mut needs: Vec<usize> =
            distances.iter().filter_map(|&distance| at.checked_sub(distance)).collect();
        needs.sort_unstable_by(|a, b| b.cmp(a));
        needs.dedup();
        needs.retain(|&need| {
            let is_new = !reach.has(need, at);
            if is_new {
                reach.add(need);
            }
            assert!(reach.has(need, at) || visits.is_some());
            is_new
        });
        reach.push();
        all.push(needs);
    }
    (reach, all)
}

fn before(needs: &[Vec<usize>]) -> Vec<Vec<bool>> {
    let mut before: Vec<Vec<bool>> = Vec::new();
    for needs in needs {
        let mut row = vec![false; before.len()];
        for &need in needs {
            row[need] = true;
            before[need].iter().enumerate().for_each(|(at, is)| row[at] |= is);
        }
        before.push(row);
    }
    before
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn it_is_what_a_search_finds(graph in graphs()) {
        let (reach, needs) = added(&graph, None);
        let full: Vec<Vec<usize>> = graph
            .iter()
            .enumerate()
            .map(|(at, distances)| distances.iter().filter_map(|&distance| at.checked_sub(distance)).collect())
            .collect();
        let before = before(&full);
        for later in 0..graph.len() {
            for earlier in 0..graph.len() {
                let expected = before[later].get(earlier).copied().unwrap_or(false);
                prop_assert_eq!(reach.has(earlier, later), expected, "{} before {}", earlier, later);
            }
            // The fewest needs: none implies another one.
            for &need in &needs[later] {
                prop_assert!(!needs[later].iter().any(|&other| before[other].get(need) == Some(&true)));
            }
        }
    }

    /// Without budget it may miss commands that come before, and never invents one.
    #[test]
    fn it_is_never_wrong_without_budget(graph in graphs(), visits in 0usize..300) {
        let (reach, _) = added(&graph, Some(visits));
        let full: Vec<Vec<usize>> = graph
            .iter()
            .enumerate()
            .map(|(at, distances)| distances.iter().filter_map(|&distance| at.checked_sub(distance)).collect())
            .collect();
        let before = before(&full);
        for (later, before) in before.iter().enumerate() {
            for earlier in 0..graph.len() {
                prop_assert!(!reach.has(earlier, later) || before.get(earlier) == Some(&true));
            }
        }
    }
}

/// Trees stay small: what a program of `n` commands takes is linear in `n`.
#[test]
fn clocks_share_their_nodes() {
    const COUNT: usize = 20_000;
    let nodes = |needs: fn(usize) -> Vec<usize>| {
        let mut reach = Reach::new(COUNT);
        for at in 0..COUNT {
            needs(at).into_iter().for_each(|need| reach.add(need));
            reach.push();
        }
        assert!(reach.visits > super::VISITS, "within what is linear");
        reach.nodes.len()
    };
    // A chain; one source and a running sum of its many readers; three branches that meet again and again.
    assert_eq!(nodes(|at| at.checked_sub(1).into_iter().collect()), 1);
    let running = nodes(|at| match at {
        0 => vec![],
        _ if at % 2 == 1 => vec![0],
        2 => vec![1, 0],
        _ => vec![at - 1, at - 2],
    });
    assert!(running < 4 * COUNT, "{running}");
    let attention = nodes(|at| match at % 5 {
        0 => at.checked_sub(1).into_iter().collect(),
        4 => vec![at - 1, at - 2, at - 3],
        branch => vec![at - branch],
    });
    assert!(attention < COUNT, "{attention}");
}
