//! Joins of groups against a plain search of the graph of groups.

use std::collections::HashMap;

use proptest::prelude::*;
use smallvec::SmallVec;

use super::{Groups, gap};
use crate::cuda::Queue;
use crate::graph::commands::{StepCommand, StepMemory};
use crate::graph::plan::{Order, Plan};
use crate::{Binder, Cpu, Device, Work};

pub(in crate::graph) struct Nothing;

impl Work for Nothing {
    fn run(&self, _: &Cpu<'_>) {}

    fn enqueue(&self, _: &Queue<'_>) -> crate::Result<()> {
        Ok(())
    }

    fn bind(&mut self, _: &mut dyn Binder) {}
}

/// A plan in which each command writes a memory of its own and reads those of others, by the distances back to them.
pub(in crate::graph) fn plan(device: &Device, reads: &[Vec<usize>], bytes: &[usize]) -> Plan {
    let stream = device.default_stream().id();
    let command = |(at, distances): (usize, &Vec<usize>)| {
        let mut uses: SmallVec<[(usize, bool); 4]> = SmallVec::from_slice(&[(at, true)]);
        for read in distances.iter().filter_map(|&distance| at.checked_sub(distance)) {
            if !uses.contains(&(read, false)) {
                uses.push((read, false));
            }
        }
        StepCommand { op: "nothing", stream, uses, work: Box::new(Nothing), traced: Vec::new() }
    };
    let memory = |(at, &bytes): (usize, &usize)| StepMemory::Planned {
        at: (1 << 60) + (at << 24),
        bytes,
        alive: false,
    };
    let memories = bytes.iter().cycle().take(reads.len()).enumerate().map(memory).collect();
    Plan::new(
        device.clone(),
        reads.iter().enumerate().map(command).collect(),
        memories,
        Default::default(),
        Vec::new(),
    )
}

/// Whether a path leads from one group to another one, by a third one.
fn has_path(reads: &[Vec<usize>], groups: &Groups, from: usize, to: usize) -> bool {
    let mut next: HashMap<usize, Vec<usize>> = HashMap::new();
    for (at, distances) in reads.iter().enumerate() {
        for need in distances.iter().filter_map(|&distance| at.checked_sub(distance)) {
            next.entry(groups.of(need)[0]).or_default().push(groups.of(at)[0]);
        }
    }
    let (mut open, mut seen) = (vec![from], vec![from]);
    while let Some(at) = open.pop() {
        for &after in next.get(&at).into_iter().flatten() {
            if after == to && at != from {
                return true;
            }
            if after != to && !seen.contains(&after) {
                seen.push(after);
                open.push(after);
            }
        }
    }
    false
}

/// Labels rise along all edges, and are in their order.
fn check_order(groups: &Groups) {
    for (at, needs) in groups.needs.iter().enumerate() {
        for &need in needs {
            let [from, to] = [groups.group(need as usize), groups.group(at)];
            assert!(from == to || groups.labels[from] < groups.labels[to], "{need} before {at}");
        }
    }
    let labels =
        groups.firsts().map(|first| groups.group(first)).map(|group| (groups.labels[group], group as u32));
    assert_eq!(groups.order, labels.collect());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn joins_are_those_that_make_no_circle(
        reads in prop::collection::vec(prop::collection::vec(1usize..12, 0..3), 2..40),
        tries in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..60),
        narrow in any::<bool>(),
    ) {
        let plan = plan(&Device::cpu(), &reads, &[256]);
        let mut groups = plan.groups(Order::Data).unwrap();
        if narrow {
            // No room for what moves, so that labels are given anew.
            groups.labels.iter_mut().for_each(|label| *label /= gap(reads.len()));
            groups.order = groups.labels.iter().copied().zip(0..).collect();
        }
        for (one, other) in tries {
            let (one, other) = (one.index(reads.len()), other.index(reads.len()));
            let [a, b] = [one, other].map(|at| groups.of(at)[0]);
            let has_path = |from, to| has_path(&reads, &groups, from, to);
            let may_join = a != b && !has_path(a, b) && !has_path(b, a);
            prop_assert_eq!(groups.may_join(one, other), may_join);
            if may_join {
                groups.join(one, other);
                prop_assert_eq!(groups.of(one), groups.of(other));
                check_order(&groups);
            }
        }
        // Each command comes after all that it needs, where each group is one command.
        let order = groups.in_order();
        let place: HashMap<usize, usize> = order.iter().enumerate().map(|(at, &first)| (first, at)).collect();
        for (at, needs) in groups.needs.iter().enumerate() {
            for &need in needs {
                let [from, to] = [need as usize, at].map(|at| groups.of(at)[0]);
                prop_assert!(from == to || place[&from] < place[&to]);
            }
        }
    }
}
