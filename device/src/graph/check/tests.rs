//! The check of large plans against that of small ones.

use proptest::prelude::*;

use super::*;
use crate::Device;

/// Distances back to needs, and uses by start, length, and whether they write.
type Random = (Vec<usize>, Vec<(usize, usize, bool)>);

fn commands(random: &[Random]) -> Vec<PlannedCommand> {
    let stream = Device::cpu().default_stream().id();
    let command = |(at, (needs, uses)): (usize, &Random)| PlannedCommand {
        op: "nothing",
        stream,
        needs: needs.iter().filter_map(|&distance| at.checked_sub(distance)).collect(),
        uses: uses.iter().map(|&(start, bytes, write)| (start..start + bytes, write)).collect(),
        cost: 0,
    };
    random.iter().enumerate().map(command).collect()
}

fn random() -> impl Strategy<Value = Vec<Random>> {
    let needs = prop::collection::vec(1usize..4, 0..4);
    let uses = prop::collection::vec((0usize..60, 0usize..8, any::<bool>()), 0..3);
    prop::collection::vec((needs, uses), 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn last_uses_tell_whether_all_are_in_order(random in random()) {
        let commands = commands(&random);
        prop_assert_eq!(follow_last_uses(&commands, &reach(&commands)), unordered(&commands).is_empty());
    }

    /// Edges that others imply are the same by searches and by reachability.
    #[test]
    fn needless_edges_of_large_plans_are_those_of_small_ones(random in random()) {
        let mut commands = commands(&random);
        for command in &mut commands {
            command.needs.sort_unstable();
            command.needs.dedup();
        }
        let small = needless(&commands);
        // The same plan, many times over.
        let copies = SEARCHED / commands.len() + 1;
        let mut large = Vec::new();
        for copy in 0..copies {
            let first = copy * commands.len();
            large.extend(commands.iter().cloned().map(|mut command| {
                command.needs.iter_mut().for_each(|need| *need += first);
                command
            }));
        }
        let last = (copies - 1) * commands.len();
        let found: Vec<_> = needless(&large).into_iter().filter(|edge| edge.0 >= last).collect();
        let expected: Vec<_> = small.iter().map(|(a, b)| (a + last, b + last)).collect();
        prop_assert_eq!(found, expected);
    }
}
