//! What is the same in every replay.

use super::Parts;

/// The most bytes of a memory that keeps its content: what is larger would take more than it saves.
const BYTES: usize = 1 << 12;

/// The commands that write, of few bytes, what follows from nothing but the commands: values that are filled in, and functions of
/// them.
pub(super) fn of(parts: &Parts<'_>) -> Vec<usize> {
    let plan = parts.plan;
    let mut is: Vec<bool> = parts.all.iter().map(Option::is_some).collect();
    let writes = |user: usize, memory: usize| plan.uses(user).contains(&(memory, true));
    loop {
        let is_constant = |&(memory, _): &(usize, bool)| {
            let range = plan.addresses(memory);
            let mut writers = parts.users[memory].iter().filter(|&&user| writes(user, memory));
            plan.is_planned(memory) && range.len() <= BYTES && writers.all(|&writer| is[writer])
        };
        let next: Vec<bool> =
            (0..plan.len()).map(|at| is[at] && plan.uses(at).iter().all(is_constant)).collect();
        if next == is {
            return (0..plan.len()).filter(|&at| is[at]).collect();
        }
        is = next;
    }
}
