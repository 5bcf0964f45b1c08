//! Small sums that nobody waits for, as one command of a CUDA device: each by itself is little but a launch. Most are the
//! gradients of biases, which the optimizer takes.

use device::cuda::Queue;
use device::{Binder, Cpu, DType, Fused, Groups, Order, Plan, Result, Work};

use super::{Folded, Part, Parts, uses};
use crate::command::Address;
use crate::cuda::{many_sums, table};
use crate::layout::Dst;
use crate::reduction::{Axes, ReduceOp};

const OP: &str = "sums";
/// The most bytes of what one of them takes: a device reads them in less time than a launch takes.
const BYTES: usize = 1 << 20;
/// And of all of a command, which are kept until the last ones are there.
const TOGETHER: usize = 4 << 20;

/// Makes one command of sums that could run at once. On a CPU they are parts of chains, and on streams that are kept in order
/// no two of a stream run at once.
pub(super) fn fuse(plan: &mut Plan, order: Order) {
    if plan.device().runs_on_host() || order == Order::Streams {
        return;
    }
    let parts = Parts::of(plan);
    let mut fuser = Fuser { groups: plan.groups(order), parts: &parts, open: Vec::new() };
    (0..plan.len()).for_each(|command| fuser.add(command));
    let groups = fuser.groups;
    let fused = groups.several().filter_map(|members| fused(&parts, members)).collect();
    plan.fuse(&groups, fused);
}

/// A plan whose sums are fused.
struct Fuser<'a> {
    parts: &'a Parts<'a>,
    groups: Groups,
    /// The groups that others may join.
    open: Vec<Open>,
}

/// A group of sums.
struct Open {
    dtype: DType,
    /// One of them.
    member: usize,
    /// What they take.
    bytes: usize,
}

impl Fuser<'_> {
    /// Adds a command to the latest group that it may join, if it is a small sum. A full group takes no more.
    fn add(&mut self, command: usize) {
        let Some(sum) = small(self.parts, command) else { return };
        let is_one = |open: &Open| open.dtype == sum.fold.dtype && self.may_join(open.member, command);
        if let Some(at) = self.open.iter().rposition(is_one) {
            let Open { member, bytes, .. } = &mut self.open[at];
            if *bytes + sum.bytes <= TOGETHER && self.groups.of(*member).len() < table::OPERANDS {
                *bytes += sum.bytes;
                return self.groups.join(*member, command);
            }
            self.open.remove(at);
        }
        self.open.push(Open { dtype: sum.fold.dtype, member: command, bytes: sum.bytes });
    }

    /// Whether a sum may join a group: they could run at once, and whoever waits for one of them waits for all, anyway.
    fn may_join(&self, member: usize, command: usize) -> bool {
        let is_awaited_after = |sum: usize, other: usize| {
            waiting(self.parts, sum).all(|waiting| self.groups.comes_before(other, waiting))
        };
        let members = self.groups.of(member);
        self.groups.are_unordered(member, command)
            && is_awaited_after(command, member)
            && members.iter().all(|&member| is_awaited_after(member, command))
    }
}

/// A small sum: the memories that it takes and gives, and how many bytes it takes.
struct Small<'a> {
    fold: &'a Folded,
    taken: usize,
    given: usize,
    bytes: usize,
}

/// `None` if a command is none that one launch can make with others.
fn small<'a>(parts: &'a Parts<'_>, command: usize) -> Option<Small<'a>> {
    let Some(Part::Fold(fold)) = &parts.all[command] else { return None };
    let (taken, given) = (parts.memory(command, fold.x)?, parts.memory(command, fold.out.at)?);
    let bytes = parts.plan.addresses(taken).len();
    let fits = fold.op == ReduceOp::Sum && bytes <= BYTES && many_sums::fits(&fold.axes);
    fits.then_some(Small { fold, taken, given, bytes })
}

/// The commands that wait for a sum: those that use what it writes, or write what it uses.
fn waiting<'a>(parts: &'a Parts<'_>, sum: usize) -> impl Iterator<Item = usize> + 'a {
    parts.plan.uses(sum).iter().flat_map(move |&(memory, writes)| {
        let later = parts.users[memory].iter().copied().filter(move |&user| user > sum);
        later.filter(move |&user| writes || parts.plan.uses(user).contains(&(memory, true)))
    })
}

/// The command that takes the place of a group.
fn fused(parts: &Parts<'_>, members: &[usize]) -> Option<Fused> {
    let (mut used, mut sums) = (Vec::new(), Vec::with_capacity(members.len()));
    let mut dtype = None;
    for &member in members {
        let Small { fold, taken, given, .. } = small(parts, member)?;
        used.extend([(taken, false), (given, true)]);
        dtype = Some(fold.dtype);
        sums.push((fold.axes.clone(), [fold.out.at, fold.x]));
    }
    let cost = members.iter().map(|&member| parts.plan.cost(member)).sum();
    Some(Fused { op: OP, uses: uses(used), work: Box::new(Command { dtype: dtype?, sums, cost }) })
}

/// Sums of elements of a type, with results and operands.
struct Command {
    dtype: DType,
    sums: Vec<(Axes, [Dst<u8>; 2])>,
    cost: usize,
}

impl Work for Command {
    /// There is none for a CPU.
    fn run(&self, _: &Cpu<'_>) {}

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        let operands = self.sums.iter().map(|(axes, operands)| (axes, operands.map(|at| Address(at.0))));
        many_sums::sum(queue, self.dtype, operands)
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        let operands = self.sums.iter_mut().flat_map(|(_, operands)| operands);
        operands.for_each(|at| at.0 = binder.address(at.0));
    }

    fn cost(&self) -> usize {
        self.cost
    }

    fn may_fail(&self) -> bool {
        false
    }
}
