//! Groups of some of a group's ranks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::group::Group;
use super::member::Member;
use crate::Result;

/// The splits that are under way, by number.
#[derive(Debug, Default)]
pub(super) struct Splits(Mutex<HashMap<u64, Split>>);

#[derive(Debug, Default)]
struct Split {
    /// For each rank that has come, what it asks for.
    asked: BTreeMap<usize, (Option<usize>, usize)>,
    /// Once all have come: the groups by color, with the ranks of this one in their order.
    made: BTreeMap<usize, (Arc<Group>, Vec<usize>)>,
    taken: usize,
}

impl Split {
    fn make(&mut self, parent: &Arc<Group>) {
        let mut colors: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
        for (&rank, &(color, key)) in &self.asked {
            if let Some(color) = color {
                colors.entry(color).or_default().push((key, rank));
            }
        }
        for (color, mut ranks) in colors {
            ranks.sort_unstable();
            let ranks: Vec<usize> = ranks.into_iter().map(|(_, rank)| rank).collect();
            let members = ranks.iter().map(|&rank| parent.members[rank]).collect();
            let group = Group::new(members, parent.options, Some(Arc::clone(parent)));
            self.made.insert(color, (group, ranks));
        }
    }
}

impl Member {
    pub(super) fn split_group(&self, color: Option<usize>, key: usize) -> Result<Option<Member>> {
        let group = &self.group;
        if let Some(failure) = group.failure() {
            return Err(failure);
        }
        let number = self.splits.fetch_add(1, Ordering::Relaxed);
        {
            let mut splits = group.splits.0.lock();
            let split = splits.entry(number).or_default();
            split.asked.insert(self.rank, (color, key));
            if split.asked.len() == group.size() {
                split.make(group);
            }
        }
        group.tell();
        let all_here = || {
            let here =
                group.splits.0.lock().get(&number).is_some_and(|split| split.asked.len() == group.size());
            if here { Some(Ok(())) } else { group.failure().map(Err) }
        };
        let came = group.wait(all_here);
        if !matches!(came, Some(Ok(())))
            && let Some(missing) = self.withdraw(number)
        {
            return Err(came
                .and_then(Result::err)
                .unwrap_or_else(|| group.fail(group.late("split", missing))));
        }
        let mut splits = group.splits.0.lock();
        let Some(split) = splits.get_mut(&number) else { return Ok(None) };
        let member = color.and_then(|color| split.made.get(&color)).and_then(|(made, ranks)| {
            let rank = ranks.iter().position(|&rank| rank == self.rank)?;
            Some(Member::new(Arc::clone(made), rank))
        });
        split.taken += 1;
        if split.taken == group.size() {
            splits.remove(&number);
        }
        Ok(member)
    }

    /// Has the others go without what this rank asked for, and gives those that have not come; `None` once all have.
    fn withdraw(&self, number: u64) -> Option<Box<[usize]>> {
        let group = &self.group;
        let mut splits = group.splits.0.lock();
        let asked = &mut splits.get_mut(&number)?.asked;
        let missing: Box<[usize]> = (0..group.size())
            .filter(|rank| !asked.contains_key(rank))
            .map(|rank| group.members[rank])
            .collect();
        if missing.is_empty() {
            return None;
        }
        asked.remove(&self.rank);
        Some(missing)
    }
}
