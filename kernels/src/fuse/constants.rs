//! What is the same in every replay.

use super::Commands;

/// The most bytes of a memory that keeps its content: what is larger would take more than it saves.
const BYTES: usize = 1 << 12;

/// The commands that write, of few bytes, what follows from nothing but the commands: values that are filled in, and what is made of
/// them, unless that may fail. Who reads such a memory before it is changed has to be one of them, since the others find it as it is
/// in the end.
pub(super) fn of(commands: &Commands<'_>) -> Vec<usize> {
    let plan = commands.plan;
    let is_known = |&command: &usize| commands.all[command].is_some() && !plan.may_fail(command);
    let (mut is_constant, mut other) = (vec![true; plan.len()], Vec::new());
    let mut refuse = |command: usize, other: &mut Vec<usize>| {
        if std::mem::replace(&mut is_constant[command], false) {
            other.push(command);
        }
    };
    (0..plan.len()).filter(|command| !is_known(command)).for_each(|command| refuse(command, &mut other));
    // A memory that is not constant is none for all of its users.
    let mut is_open: Vec<bool> = (0..commands.users.len())
        .map(|memory| plan.is_planned(memory) && plan.addresses(memory).len() <= BYTES)
        .collect();
    let closed: Vec<usize> = (0..is_open.len()).filter(|&memory| !is_open[memory]).collect();
    closed.iter().flat_map(|&memory| &commands.users[memory]).for_each(|&user| refuse(user, &mut other));
    while let Some(command) = other.pop() {
        for &(memory, _) in plan.uses(command) {
            let is_before_the_last_write =
                commands.writers[memory].last().is_some_and(|&last| command <= last);
            if is_before_the_last_write && std::mem::replace(&mut is_open[memory], false) {
                commands.users[memory].iter().for_each(|&user| refuse(user, &mut other));
            }
        }
    }
    (0..plan.len()).filter(|&command| is_constant[command]).collect()
}
