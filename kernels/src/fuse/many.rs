//! Small gradients of norms' weights, which only the optimizer waits for, as one command of a CUDA device: each by itself is little but
//! a launch.

use device::cuda::Queue;
use device::{Binder, DType, Fused, Groups, Order, Result};
use smallvec::SmallVec;

use super::{Command, Commands, Fuser, Fusion};
use crate::command::{Address, Held};
use crate::cpu::lanes::Lanes;
use crate::cuda::{many_norms, table};
use crate::norms::NormRows;
use crate::par::Workers;

/// The most bytes of an operand: a device reads them in less time than a launch takes.
const BYTES: usize = 1 << 20;
/// And of all that a command takes, which are kept until the last ones are there.
const TOGETHER: usize = 4 << 20;
/// The most groups that wait for others to join.
const OPEN: usize = 64;

/// The gradients of a norm's weight and bias.
#[derive(Clone, Debug)]
pub(crate) struct NormWeights {
    pub(super) dtype: DType,
    pub(super) rows: (NormRows, usize),
    /// As the kernel has them: two results, and what they are made of.
    pub(super) operands: [Option<Address>; 6],
}

impl NormWeights {
    fn fits(&self) -> bool {
        let [_, _, Some(g), Some(x), ..] = self.operands else { return false };
        many_norms::fits(self.dtype, &self.rows, [g, x])
    }
}

/// Makes one command of those that could run at once. On streams that are kept in order no two of a stream do.
pub(super) fn fuse(fuser: &mut Fuser<'_>) -> Result<()> {
    let commands = fuser.commands();
    if commands.plan.device().runs_on_host() || fuser.order == Order::Streams {
        return Ok(());
    }
    let small: Vec<(usize, Small)> =
        (0..commands.plan.len()).filter_map(|command| Some((command, small(&commands, command)?))).collect();
    if small.len() < 2 {
        return Ok(());
    }
    let mut smalls = Smalls { groups: commands.plan.groups(fuser.order)?, commands, open: Vec::new() };
    small.into_iter().for_each(|(command, small)| smalls.add(command, small));
    let groups = smalls.groups;
    let fused: Option<Vec<Fused>> = groups.several().map(|members| fused(&commands, members)).collect();
    if let Some(fused) = fused {
        fuser.replace(&groups, fused);
    }
    Ok(())
}

/// A plan whose small commands are fused.
struct Smalls<'a> {
    commands: Commands<'a>,
    groups: Groups,
    /// The groups that others may join.
    open: Vec<Open>,
}

/// A group of elements of one type.
struct Open {
    dtype: DType,
    /// One of them.
    member: usize,
    /// What they take.
    bytes: usize,
}

impl Smalls<'_> {
    /// Adds a command to the latest group that it may join. A full group takes no more.
    fn add(&mut self, command: usize, Small { dtype, bytes, .. }: Small) {
        let is_one = |open: &Open| open.dtype == dtype && self.may_join(open.member, command);
        if let Some(at) = self.open.iter().rposition(is_one) {
            let open = &mut self.open[at];
            if open.bytes + bytes <= TOGETHER && self.groups.of(open.member).len() < table::OPERANDS {
                open.bytes += bytes;
                return self.groups.join(open.member, command);
            }
            self.open.remove(at);
        }
        if self.open.len() == OPEN {
            self.open.remove(0);
        }
        self.open.push(Open { dtype, member: command, bytes });
    }

    /// Whether a command may join a group: they could run at once, and whoever waits for one of them waits for all, anyway.
    fn may_join(&self, member: usize, command: usize) -> bool {
        let is_awaited_after = |one: usize, other: usize| {
            waiting(&self.commands, one).all(|waiting| self.groups.comes_before(other, waiting))
        };
        let members = self.groups.of(member);
        self.groups.are_unordered(member, command)
            && is_awaited_after(command, member)
            && members.iter().all(|&member| is_awaited_after(member, command))
    }
}

/// A command that one launch can make with others of its kind: the memories that it uses and whether it writes them, and how many
/// bytes it takes.
struct Small {
    dtype: DType,
    uses: SmallVec<[(usize, bool); 6]>,
    bytes: usize,
}

/// `None` if a command is something else.
fn small(commands: &Commands<'_>, command: usize) -> Option<Small> {
    let norm = commands.of::<NormWeights>(command).filter(|norm| norm.fits())?;
    // The first two are written.
    let operands = norm.operands.iter().enumerate().filter_map(|(k, at)| Some((k < 2, (*at)?)));
    let uses = operands.map(|(writes, at)| Some((commands.memory(command, at)?, writes)));
    let uses = uses.collect::<Option<SmallVec<_>>>()?;
    let read = uses.iter().filter(|(_, writes)| !writes);
    let bytes = read.map(|&(memory, _)| commands.plan.addresses(memory).len());
    let fits = bytes.clone().all(|bytes| bytes <= BYTES);
    let bytes = bytes.sum();
    fits.then_some(Small { dtype: norm.dtype, bytes, uses })
}

/// The commands that wait for another one: those that use what it writes, or write what it uses.
fn waiting<'a>(commands: &'a Commands<'_>, command: usize) -> impl Iterator<Item = usize> + 'a {
    commands.plan.uses(command).iter().flat_map(move |&(memory, writes)| {
        let users = &commands.users[memory];
        let users = &users[users.partition_point(|&user| user <= command)..];
        let later = if writes { users } else { commands.later_writers(memory, command) };
        later.iter().copied()
    })
}

/// The command that takes the place of a group.
fn fused(commands: &Commands<'_>, members: &[usize]) -> Option<Fused> {
    let (mut norms, mut used) = (Vec::new(), Vec::new());
    for &member in members {
        used.extend(small(commands, member)?.uses);
        norms.extend(commands.of::<NormWeights>(member).cloned());
    }
    let cost = members.iter().map(|&member| commands.plan.cost(member)).sum();
    let work = Box::new(Command { fusion: Together { norms }, cost });
    Some(Fused { op: "norm_weights", uses: Fused::each_once(used), work })
}

/// Gradients of norms' weights of one type, on a CUDA device.
struct Together {
    norms: Vec<NormWeights>,
}

impl Fusion for Together {
    unsafe fn run_in<T: Lanes>(&self, _: &Workers) {}

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        let dtype = self.norms.first().map_or(DType::F32, |norm| norm.dtype);
        let norms = self.norms.iter().map(|norm| (&norm.rows, norm.operands));
        many_norms::gradients(queue, dtype, norms)
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        let moved = &mut |at| binder.address(at);
        self.norms.iter_mut().for_each(|norm| norm.operands.bind(moved));
    }
}
