//! Fusion of captured steps. Every pass preserves all bits.

mod chains;
mod constants;
mod draft;
mod loss;
mod merge;

use std::any::Any;
use std::ops::{Deref, Range};

use device::cuda::Queue;
use device::{Binder, Buffer, Cpu, DType, Fused, Groups, Order, Plan, Result, Shared, Stream, Work};
use smallvec::SmallVec;

use crate::chain::Operand;
use crate::command::Address;
use crate::cpu::lanes::Lanes;
use crate::functions::Function;
use crate::loops::Places;
use crate::par::{Workers, workers};
use crate::reduction::{Axes, ReduceOp, Reduction};
use crate::rule_step::Stepped;
use crate::rules::OPERANDS;
pub(crate) use loss::{LossSlopes, Losses};
use merge::RuleUpdate;

/// Reduces the number of commands of a captured step without changing its bits:
/// - removes commands whose results are not used;
/// - runs commands with small constant results once, now, on `stream`, in memory from `allocate`;
/// - fuses elementwise functions with their elementwise consumers and with a reduction; intermediate results are not written;
/// - fuses cross-entropy with its gradient, if the gradient of the losses is known by then;
/// - fuses the addition of several batches' gradients into the optimizer step.
///
/// With [`Order::Streams`], only commands that follow each other in their stream are fused.
///
/// # Errors
/// Those of `allocate`, and as for [`Stream::launch`].
pub fn fuse(
    plan: &mut Plan,
    order: Order,
    stream: &Stream,
    allocate: impl FnMut(usize) -> Result<Shared<Buffer>>,
) -> Result<()> {
    plan.leave_out_unused();
    let mut fuser = Fuser::of(plan, order)?;
    let constants = constants::of(&fuser.commands());
    if !constants.is_empty() {
        fuser.plan.settle(&constants, stream, allocate)?;
        fuser.known = Known::of(fuser.plan);
    }
    chains::fuse(&mut fuser)?;
    loss::fuse(&mut fuser)?;
    merge::fuse(&mut fuser)
}

/// Description of a command, as one of the types that this module fuses.
pub(crate) struct Fusible(Box<dyn Any>);

/// An elementwise function; the first operand is the output.
#[derive(Debug)]
pub(crate) struct Mapped {
    function: Function,
    operands: SmallVec<[Operand; 4]>,
}

/// A reduction of a dense operand.
#[derive(Debug)]
pub(crate) struct Folded {
    op: ReduceOp,
    dtype: DType,
    axes: Axes,
    x: Address,
    out: Operand,
    workspace: Option<Operand>,
}

impl Fusible {
    /// Wraps one of the types that this module fuses; never `None`.
    pub(crate) fn of(what: impl Any) -> Option<Box<dyn Any>> {
        Some(Box::new(Fusible(Box::new(what))))
    }

    /// Describes an elementwise command; `None` if fusing it does not pay or is not supported: the innermost axis of the output must be
    /// contiguous, and that of arguments contiguous or constant.
    pub(crate) fn function<const N: usize>(
        function: Function,
        places: &Places<N>,
        operands: [Address; N],
    ) -> Option<Box<dyn Any>> {
        let loops = places.loops();
        let types = [function.result()].into_iter().chain(function.arguments());
        let operand =
            |(k, dtype): (usize, DType)| Operand { at: operands[k], dtype, places: loops.operand(k) };
        let operands: SmallVec<[Operand; 4]> = types.enumerate().map(operand).collect();
        let is_near = |operand: &Operand| matches!(operand.places.inner().strides, [0 | 1]);
        let out = &operands[0].places;
        let fits = (out.is_run() || out.inner().strides == [1]) && operands.iter().all(is_near);
        if fits { Fusible::of(Mapped { function, operands }) } else { None }
    }

    /// Describes a reduction of floats.
    pub(crate) fn fold(
        how: Reduction,
        dtype: DType,
        axes: &Axes,
        [x, out]: [Address; 2],
        workspace: Option<Address>,
    ) -> Option<Box<dyn Any>> {
        let Reduction::Join(op) = how else { return None };
        if !(dtype.is_float() && axes.are_dense()) {
            return None;
        }
        let out = Operand::run(out, dtype, axes.kept.elements);
        // Its size is not known here, and nobody else uses it.
        let workspace = workspace.map(|at| Operand::run(at, DType::U8, 1));
        Fusible::of(Folded { op, dtype, axes: axes.clone(), x, out, workspace })
    }

    /// Describes optimizer steps; `None` with master copies, whose parameters are converted on a CPU.
    pub(crate) fn steps(all: &[Stepped], operands: Vec<[Address; OPERANDS]>) -> Option<Box<dyn Any>> {
        let update = |(stepped, operands): (&Stepped, [Address; OPERANDS])| {
            (stepped.dtype == stepped.stored).then(|| RuleUpdate::new(stepped.clone(), operands))
        };
        let updates: Option<Vec<_>> = all.iter().zip(operands).map(update).collect();
        updates.and_then(Fusible::of)
    }
}

/// A plan being fused, and an index of its current commands.
struct Fuser<'a> {
    plan: &'a mut Plan,
    order: Order,
    known: Known,
}

/// Read access to the commands of a plan.
#[derive(Clone, Copy)]
struct Commands<'a> {
    plan: &'a Plan,
    known: &'a Known,
}

/// Index of a plan's commands and memories.
struct Known {
    /// Description of each command.
    all: Vec<Option<Fusible>>,
    /// For each memory, the commands that use it, in program order.
    users: Vec<SmallVec<[usize; 4]>>,
    /// For each memory, the commands that write it.
    writers: Vec<SmallVec<[usize; 2]>>,
    /// All memories by their addresses.
    memories: Vec<(Range<usize>, usize)>,
}

impl Deref for Commands<'_> {
    type Target = Known;

    fn deref(&self) -> &Known {
        self.known
    }
}

impl Known {
    fn of(plan: &Plan) -> Known {
        let fusible = |command| Some(*plan.part(command)?.downcast::<Fusible>().ok()?);
        let users = plan.users();
        let mut writers = vec![SmallVec::new(); users.len()];
        for command in 0..plan.len() {
            let written = plan.uses(command).iter().filter(|(_, writes)| *writes);
            written.for_each(|&(memory, _)| writers[memory].push(command));
        }
        let used = (0..users.len()).filter(|&memory| !users[memory].is_empty());
        let mut memories: Vec<_> = used.map(|memory| (plan.addresses(memory), memory)).collect();
        memories.sort_unstable_by_key(|(range, memory)| (range.start, *memory));
        Known { all: (0..plan.len()).map(fusible).collect(), users, writers, memories }
    }
}

impl<'a> Fuser<'a> {
    fn of(plan: &'a mut Plan, order: Order) -> Result<Fuser<'a>> {
        plan.has_room()?;
        let known = Known::of(plan);
        Ok(Fuser { plan, order, known })
    }

    fn commands(&self) -> Commands<'_> {
        Commands { plan: self.plan, known: &self.known }
    }

    /// Replaces each group of several commands; see [`Plan::fuse`].
    fn replace(&mut self, groups: &Groups, fused: Vec<Fused>) {
        if !fused.is_empty() {
            self.plan.fuse(groups, fused);
            self.known = Known::of(self.plan);
        }
    }

    /// Fuses pairs: for a command, `pair` returns an earlier command and the fused one.
    fn pairs(&mut self, pair: impl Fn(Commands<'_>, usize) -> Option<(usize, Fused)>) -> Result<()> {
        let commands = self.commands();
        let is_apart = |first, second| {
            self.order == Order::Streams && commands.plan.stream(first) != commands.plan.stream(second)
        };
        let found = (0..commands.plan.len()).filter_map(|second| {
            let (first, fused) = pair(commands, second)?;
            (!is_apart(first, second)).then_some((first, second, fused))
        });
        let found: Vec<(usize, usize, Fused)> = found.collect();
        if found.is_empty() {
            return Ok(());
        }
        let mut groups = self.plan.groups(self.order)?;
        let mut all = Vec::new();
        for (first, second, fused) in found {
            let alone = [first, second].iter().all(|&at| groups.of(at).len() == 1);
            if alone && groups.may_join(first, second) {
                groups.join(first, second);
                all.push((first, fused));
            }
        }
        // In the order of groups.
        all.sort_by_key(|(first, _)| *first);
        self.replace(&groups, all.into_iter().map(|(_, fused)| fused).collect());
        Ok(())
    }
}

impl<'a> Commands<'a> {
    /// A command's description, if it has this type.
    fn of<P: Any>(&self, command: usize) -> Option<&'a P> {
        self.known.all[command].as_ref()?.0.downcast_ref()
    }

    /// Whether a command uses a memory.
    fn uses(&self, command: usize, memory: usize) -> bool {
        self.plan.uses(command).iter().any(|&(used, _)| used == memory)
    }

    /// Whether a CPU would have to widen the elements, which fused commands do not support.
    fn would_widen(&self, dtype: DType) -> bool {
        dtype.is_half() && self.plan.device().runs_on_host()
    }

    /// The command that replaces two, with the memories that it still uses.
    fn fused(
        &self,
        op: &'static str,
        [first, second]: [usize; 2],
        is_used: impl Fn(usize) -> bool,
        fusion: impl Fusion,
    ) -> Fused {
        let both = self.plan.uses(first).iter().chain(self.plan.uses(second)).copied();
        let uses = Fused::each_once(both.filter(|&(memory, _)| is_used(memory)));
        let cost = self.plan.cost(first) + self.plan.cost(second);
        Fused { op, uses, work: Box::new(FusedCommand { fusion, cost }) }
    }

    /// The memory of a command that contains an address.
    fn memory(&self, command: usize, at: Address) -> Option<usize> {
        let (at, uses) = (at.0.addr(), self.plan.uses(command));
        let after = self.memories.partition_point(|(range, _)| range.start <= at);
        let nearest = after.checked_sub(1).map(|nearest| &self.memories[nearest]);
        let is_in = |range: &Range<usize>| range.contains(&at);
        if let Some((range, memory)) = nearest
            && is_in(range)
            && self.users[*memory].binary_search(&command).is_ok()
        {
            return Some(*memory);
        }
        // Memories that the program created from one address may overlap.
        let mut used = uses.iter().map(|&(memory, _)| memory);
        used.find(|&memory| is_in(&self.plan.addresses(memory)))
    }

    /// The last command before another one that wrote a memory.
    fn writer(&self, memory: usize, before: usize) -> Option<usize> {
        let writers = &self.writers[memory];
        writers.partition_point(|&writer| writer < before).checked_sub(1).map(|last| writers[last])
    }

    /// The commands that depend on a write to a memory: its users up to the next write.
    fn waiting(&self, memory: usize, writer: usize) -> &[usize] {
        let users = &self.known.users[memory];
        let users = &users[users.partition_point(|&user| user <= writer)..];
        let last = self.later_writers(memory, writer).first().map_or(usize::MAX, |&next| next);
        &users[..users.partition_point(|&user| user <= last)]
    }

    /// The commands behind another one that write a memory.
    fn later_writers(&self, memory: usize, after: usize) -> &[usize] {
        let writers = &self.known.writers[memory];
        &writers[writers.partition_point(|&writer| writer <= after)..]
    }
}

/// A fused command.
trait Fusion: Send + Sync + 'static {
    /// See [`Work::may_fail`].
    const MAY_FAIL: bool = false;

    /// Compute type on a CPU, F32 or F64.
    fn dtype(&self) -> DType {
        DType::F32
    }

    /// # Safety
    /// The operands are live, and of type `T` where that is the operands' type, and nobody else uses them meanwhile.
    unsafe fn run_in<T: Lanes>(&self, workers: &Workers);

    /// See [`Work::enqueue`].
    fn enqueue(&self, queue: &Queue<'_>) -> Result<()>;

    /// See [`Work::bind`].
    fn bind(&mut self, binder: &mut dyn Binder);
}

/// A fusion as a command, with its cost.
struct FusedCommand<F> {
    fusion: F,
    cost: usize,
}

impl<F: Fusion> Work for FusedCommand<F> {
    fn run(&self, cpu: &Cpu<'_>) {
        let workers = workers(cpu, self.cost);
        // SAFETY: the plan orders this command by the memory of its operands, so they are live and nobody else uses
        // them; each arm is for the type of `dtype`.
        unsafe {
            match self.fusion.dtype() {
                DType::F64 => self.fusion.run_in::<f64>(&workers),
                _ => self.fusion.run_in::<f32>(&workers),
            }
        }
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        self.fusion.enqueue(queue)
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        self.fusion.bind(binder);
    }

    fn cost(&self) -> usize {
        self.cost
    }

    fn may_fail(&self) -> bool {
        F::MAY_FAIL
    }
}
