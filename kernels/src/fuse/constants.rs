//! What is the same in every replay.

use super::Parts;

/// The most bytes of a memory that keeps its content: what is larger would take more than it saves.
const BYTES: usize = 1 << 12;

/// The commands that write, of few bytes, what follows from nothing but the commands: values that are filled in, and what is made of
/// them, unless that may fail. Who reads such a memory before it is changed has to be one of them, since the others find it as it is
/// in the end.
pub(super) fn of(parts: &Parts<'_>) -> Vec<usize> {
    let plan = parts.plan;
    let mut is: Vec<bool> =
        parts.all.iter().enumerate().map(|(at, part)| part.is_some() && !plan.may_fail(at)).collect();
    let writes = |user: usize, memory: usize| plan.uses(user).contains(&(memory, true));
    loop {
        let is_constant = |&(memory, _): &(usize, bool)| {
            let range = plan.addresses(memory);
            let users = &parts.users[memory];
            let last = users.iter().rposition(|&user| writes(user, memory));
            let are_constant = users.iter().take(last.map_or(0, |last| last + 1)).all(|&user| is[user]);
            plan.is_planned(memory) && range.len() <= BYTES && are_constant
        };
        let next: Vec<bool> =
            (0..plan.len()).map(|at| is[at] && plan.uses(at).iter().all(is_constant)).collect();
        if next == is {
            return (0..plan.len()).filter(|&at| is[at]).collect();
        }
        is = next;
    }
}
