//! Constant folding: commands whose results are the same in every replay.

use super::Commands;

/// Largest memory that is kept; larger ones cost more than they save.
const BYTES: usize = 1 << 12;

/// The commands that write few bytes which depend on constants only: fills, and infallible commands on their results. If such a memory is
/// overwritten later, all readers of the earlier value must be among these commands, since others see the final value.
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
    // A memory is constant for all of its users or for none.
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
