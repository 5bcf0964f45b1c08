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

use device::{Buffer, Cpu, DType, Fused, Order, Plan, Result, Shared, Stream, Work};
use smallvec::SmallVec;

use crate::chain::Operand;
use crate::command::Address;
use crate::cpu::lanes::Lanes;
use crate::functions::Function;
use crate::layout::Dst;
use crate::loops::Places;
use crate::optim::Stepped;
use crate::par::{Workers, workers};
use crate::reduction::{Axes, ReduceOp, Reduction};
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
    let constants = constants::of(&Parts::of(plan));
    plan.settle(&constants, stream, allocate)?;
    pools::fuse(plan, order);
    chains::fuse(plan, order);
    loss::fuse(plan, order);
    norms::fuse(plan, order);
    fills::fuse(plan, order);
    merge::fuse(plan, order);
    many::fuse(plan, order);
    Ok(())
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

/// The commands of a plan, as far as they are known.
struct Parts<'a> {
    plan: &'a Plan,
    /// For each command, what it is.
    all: Vec<Option<Part>>,
    /// For each memory, who uses it, in the program's order.
    users: Vec<SmallVec<[usize; 4]>>,
}

impl<'a> Parts<'a> {
    fn of(plan: &'a Plan) -> Parts<'a> {
        let part = |command| Some(*plan.part(command)?.downcast::<Part>().ok()?);
        Parts { plan, all: (0..plan.len()).map(part).collect(), users: plan.users() }
    }

    /// The memory of a command in which an address lies.
    fn memory(&self, command: usize, at: Dst<u8>) -> Option<usize> {
        let mut used = self.plan.uses(command).iter().map(|&(memory, _)| memory);
        used.find(|&memory| self.plan.addresses(memory).contains(&at.0.addr()))
    }

    /// The command that wrote a memory last before another one.
    fn writer(&self, memory: usize, before: usize) -> Option<usize> {
        let mut earlier = self.users[memory].iter().rev().filter(|&&user| user < before);
        earlier.find(|&&user| self.plan.uses(user).contains(&(memory, true))).copied()
    }
}

/// Makes one command of two where `pair` has one for a command and an earlier one, which it names.
fn fuse_pairs(plan: &mut Plan, order: Order, pair: impl Fn(&Parts<'_>, usize) -> Option<(usize, Fused)>) {
    let (parts, mut groups) = (Parts::of(plan), plan.groups(order));
    let mut all = Vec::new();
    for second in 0..plan.len() {
        let Some((first, fused)) = pair(&parts, second) else { continue };
        let apart = order == Order::Streams && plan.stream(first) != plan.stream(second);
        let alone = [first, second].iter().all(|&at| groups.of(at).len() == 1);
        if !apart && alone && groups.may_join(first, second) {
            groups.join(first, second);
            all.push((first, fused));
        }
    }
    // As groups are gone through.
    all.sort_by_key(|(first, _)| *first);
    plan.fuse(&groups, all.into_iter().map(|(_, fused)| fused).collect());
}

/// The memories that a command uses, each once.
fn uses(all: impl IntoIterator<Item = (usize, bool)>) -> Vec<(usize, bool)> {
    let mut uses: Vec<(usize, bool)> = Vec::new();
    for (memory, writes) in all {
        match uses.iter_mut().find(|(known, _)| *known == memory) {
            Some((_, write)) => *write |= writes,
            None => uses.push((memory, writes)),
        }
    }
    uses
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
        // SAFETY: the plan orders the command by the memory of its operands, which are of this type.
        unsafe {
            match self.dtype() {
                DType::F64 => self.run_in::<f64>(&workers),
                _ => self.run_in::<f32>(&workers),
            }
        }
    }
}
