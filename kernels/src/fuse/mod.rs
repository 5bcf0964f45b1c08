//! Fusing: fewer commands for a captured step. Each pass keeps all bits.

mod chains;
mod constants;
mod draft;
mod fills;
mod loss;
mod many;
mod merge;
mod norms;
mod pools;

use std::any::Any;
use std::ops::{Deref, Range};

use device::{Buffer, Cpu, DType, Fused, Groups, Order, Plan, Result, Shared, Stream, Work};
use smallvec::SmallVec;

use crate::chain::Operand;
use crate::command::Address;
use crate::cpu::lanes::Lanes;
use crate::functions::Function;
use crate::layout::Dst;
use crate::loops::Places;
use crate::par::{Workers, workers};
use crate::reduction::{Axes, ReduceOp, Reduction};
use crate::rule_step::Stepped;
use crate::rules::OPERANDS;
pub(crate) use fills::{Filled, IndexSums};
pub(crate) use loss::{LossSlopes, Losses};
pub(crate) use many::NormWeights;
pub(crate) use merge::RuleUpdate;
pub(crate) use norms::{Norm, NormSlopes};
pub(crate) use pools::MaxSlopes;

/// Makes a captured step one of fewer commands, which computes the same, bit for bit:
/// - commands whose results nobody uses are left out;
/// - those that always write the same few bytes run now, on `stream`, in memory by `allocate`;
/// - gradients of maxima are masked by the ReLU before them where they are written;
/// - functions of elements become one command with those that take what they give, and with a reduction of it; what only they
///   use is not written any more;
/// - cross-entropy and its gradient become one command, if the gradient of the losses is known by then;
/// - a sum and the norm of its rows become one command, and so do the gradient of a norm's rows and what adds it to another one;
/// - sums at indices write the zeros that they begin with;
/// - what adds up the gradients of several batches becomes a part of the optimizer's step;
/// - small sums for which nobody waits before all of them could run become one command of a CUDA device, and so do gradients of
///   norms' weights.
///
/// With [`Order::Streams`] commands are fused that follow each other in their stream.
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
    let constants = constants::of(&fuser.parts());
    if !constants.is_empty() {
        fuser.plan.settle(&constants, stream, allocate)?;
        fuser.known = Known::of(fuser.plan);
    }
    pools::fuse(&mut fuser)?;
    chains::fuse(&mut fuser)?;
    loss::fuse(&mut fuser)?;
    norms::fuse(&mut fuser)?;
    fills::fuse(&mut fuser)?;
    merge::fuse(&mut fuser)?;
    many::fuse(&mut fuser)
}

/// What a command is, for who fuses it.
pub(crate) enum Part {
    /// One value in all elements.
    Fill(Box<Filled>),
    /// Sums at indices.
    IndexAdd(Box<IndexSums>),
    /// A function of elements.
    Function(Box<Mapped>),
    /// What is made of all elements, or of those along some axes.
    Fold(Box<Folded>),
    /// Cross-entropy, and its gradient.
    Loss(Box<Losses>),
    LossGrad(Box<LossSlopes>),
    /// Normalization of rows, and its gradients; those of its weights alone.
    Norm(Box<Norm>),
    NormGrad(Box<NormSlopes>),
    NormWeights(Box<NormWeights>),
    /// The gradient of maxima of windows.
    MaxGrad(Box<MaxSlopes>),
    /// Steps of optimizers' rules.
    Steps(Vec<RuleUpdate>),
}

/// A function on operands of which the first is its result.
#[derive(Debug)]
pub(crate) struct Mapped {
    function: Function,
    operands: SmallVec<[Operand; 4]>,
}

/// A reduction of elements that fill a range of memory.
#[derive(Debug)]
pub(crate) struct Folded {
    op: ReduceOp,
    dtype: DType,
    axes: Axes,
    x: Dst<u8>,
    out: Operand,
    workspace: Option<Operand>,
}

impl Part {
    /// A function as its command says of itself; `None` where fusing it would cost more than it saves, or is not known to be
    /// right: the result has to fill its memory without gaps, and the innermost axis of arguments not to jump.
    pub(crate) fn function<const N: usize>(
        function: Function,
        places: &Places<N>,
        operands: [Address; N],
    ) -> Option<Box<dyn Any>> {
        let loops = places.loops();
        let types = [function.result()].into_iter().chain(function.arguments());
        let operand =
            |(k, dtype): (usize, DType)| Operand { at: Dst(operands[k].0), dtype, places: loops.operand(k) };
        let operands: SmallVec<[Operand; 4]> = types.enumerate().map(operand).collect();
        let is_near = |operand: &Operand| matches!(operand.places.inner().strides, [0 | 1]);
        let fits = operands[0].places.is_run() && operands.iter().all(is_near);
        fits.then(|| Part::Function(Box::new(Mapped { function, operands })).boxed())
    }

    /// A reduction of floats as its command says of itself.
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
        let out = Operand::run(Dst(out.0), dtype, axes.kept.elements);
        // Its size is not known here, and nobody else uses it.
        let workspace = workspace.map(|at| Operand::run(Dst(at.0), DType::U8, 1));
        let axes = axes.clone();
        Some(Part::Fold(Box::new(Folded { op, dtype, axes, x: Dst(x.0), out, workspace })).boxed())
    }

    /// Steps of parameters, as their command says of itself; `None` if there are masters, whose parameters are converted on a
    /// CPU.
    pub(crate) fn steps(all: &[Stepped], operands: Vec<[Address; OPERANDS]>) -> Option<Box<dyn Any>> {
        let update = |(stepped, operands): (&Stepped, [Address; OPERANDS])| {
            let operands = operands.map(|at| Dst(at.0));
            (stepped.dtype == stepped.stored).then(|| RuleUpdate::new(stepped.clone(), operands))
        };
        let updates: Option<Vec<_>> = all.iter().zip(operands).map(update).collect();
        updates.map(|updates| Part::Steps(updates).boxed())
    }

    /// As a command hands it out.
    pub(crate) fn boxed(self) -> Box<dyn Any> {
        Box::new(self)
    }
}

/// A plan whose commands are fused, and what is known of it now.
struct Fuser<'a> {
    plan: &'a mut Plan,
    order: Order,
    known: Known,
}

/// The commands of a plan, as far as they are known.
#[derive(Clone, Copy)]
struct Parts<'a> {
    plan: &'a Plan,
    known: &'a Known,
}

/// What passes ask about all commands of a plan.
struct Known {
    /// For each command, what it is.
    all: Vec<Option<Part>>,
    /// For each memory, the commands that use it, in program order.
    users: Vec<SmallVec<[usize; 4]>>,
    /// For each memory, the commands that write it.
    writers: Vec<SmallVec<[usize; 2]>>,
    /// All memories by their addresses.
    memories: Vec<(Range<usize>, usize)>,
}

impl Deref for Parts<'_> {
    type Target = Known;

    fn deref(&self) -> &Known {
        self.known
    }
}

impl Known {
    fn of(plan: &Plan) -> Known {
        let part = |command| Some(*plan.part(command)?.downcast::<Part>().ok()?);
        let users = plan.users();
        let mut writers = vec![SmallVec::new(); users.len()];
        for command in 0..plan.len() {
            let written = plan.uses(command).iter().filter(|(_, writes)| *writes);
            written.for_each(|&(memory, _)| writers[memory].push(command));
        }
        let used = (0..users.len()).filter(|&memory| !users[memory].is_empty());
        let mut memories: Vec<_> = used.map(|memory| (plan.addresses(memory), memory)).collect();
        memories.sort_unstable_by_key(|(range, memory)| (range.start, *memory));
        Known { all: (0..plan.len()).map(part).collect(), users, writers, memories }
    }
}

impl<'a> Fuser<'a> {
    fn of(plan: &'a mut Plan, order: Order) -> Result<Fuser<'a>> {
        plan.has_room()?;
        let known = Known::of(plan);
        Ok(Fuser { plan, order, known })
    }

    fn parts(&self) -> Parts<'_> {
        Parts { plan: self.plan, known: &self.known }
    }

    /// Replaces each group of several commands; see [`Plan::fuse`].
    fn replace(&mut self, groups: &Groups, fused: Vec<Fused>) {
        if !fused.is_empty() {
            self.plan.fuse(groups, fused);
            self.known = Known::of(self.plan);
        }
    }

    /// Makes one command of two where `pair` has one for a command and an earlier one, which it names.
    fn pairs(&mut self, pair: impl Fn(Parts<'_>, usize) -> Option<(usize, Fused)>) -> Result<()> {
        let parts = self.parts();
        let is_apart = |first, second| {
            self.order == Order::Streams && parts.plan.stream(first) != parts.plan.stream(second)
        };
        let found = (0..parts.plan.len()).filter_map(|second| {
            let (first, fused) = pair(parts, second)?;
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
        // As groups are gone through.
        all.sort_by_key(|(first, _)| *first);
        self.replace(&groups, all.into_iter().map(|(_, fused)| fused).collect());
        Ok(())
    }
}

impl Parts<'_> {
    /// The memory of a command in which an address lies.
    fn memory(&self, command: usize, at: Dst<u8>) -> Option<usize> {
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
        // Memories that the program made of one address may overlap.
        let mut used = uses.iter().map(|&(memory, _)| memory);
        used.find(|&memory| is_in(&self.plan.addresses(memory)))
    }

    /// The command that wrote a memory last before another one.
    fn writer(&self, memory: usize, before: usize) -> Option<usize> {
        let writers = &self.writers[memory];
        writers.partition_point(|&writer| writer < before).checked_sub(1).map(|last| writers[last])
    }

    /// The commands that wait for what another one writes to a memory: its users up to the next that writes it.
    fn waiting(&self, memory: usize, writer: usize) -> &[usize] {
        let users = &self.known.users[memory];
        let users = &users[users.partition_point(|&user| user <= writer)..];
        let last = self.later_writers(memory, writer).first().map_or(usize::MAX, |&next| next);
        &users[..users.partition_point(|&user| user <= last)]
    }

    /// The commands after another one that write a memory.
    fn later_writers(&self, memory: usize, after: usize) -> &[usize] {
        let writers = &self.known.writers[memory];
        &writers[writers.partition_point(|&writer| writer <= after)..]
    }
}

/// A command in place of several, on floats that a CPU need not widen.
trait Floats: Work {
    fn dtype(&self) -> DType;

    /// # Safety
    /// The operands are of type `T` and live, and nobody else uses them meanwhile.
    unsafe fn run_in<T: Lanes>(&self, workers: &Workers);

    /// Runs it on a CPU, in its type.
    fn run_on(&self, cpu: &Cpu<'_>) {
        let workers = workers(cpu, self.cost());
        // SAFETY: the plan orders this command by the memory of its operands, so they are live and nobody else uses
        // them; each arm is for the type of `dtype`.
        unsafe {
            match self.dtype() {
                DType::F64 => self.run_in::<f64>(&workers),
                _ => self.run_in::<f32>(&workers),
            }
        }
    }
}
