//! Fuses elementwise ops with their elementwise consumers and with a reduction of the result.

use device::cuda::Queue;
use device::{Binder, Fused, Groups, Order, Result};

use smallvec::{SmallVec, smallvec};

use super::draft::Draft;
use super::{Commands, Folded, FusedCommand, Fuser, Fusion, Mapped};
use crate::chain::{Chain, Fold, Operand};
use crate::cpu::chain::Blocks;
use crate::cpu::lanes::Lanes;
use crate::cpu::reduce;
use crate::cuda::chain::Kernel;
use crate::layout::Dst;
use crate::par::Workers;

/// Op name of fused chains.
const OP: &str = "fused";
/// Most functions of a fused chain.
const STEPS: usize = 32;
/// Costs from which a CPU command is worth a thread of its own, and from which several threads can share it.
const LONG: usize = 1 << 17;

/// Fuses chains of elementwise functions.
pub(super) fn fuse(fuser: &mut Fuser<'_>) -> Result<()> {
    let chains = Chains { commands: fuser.commands(), order: fuser.order };
    let joins = |&command: &usize| {
        chains.arguments(command).into_iter().any(|argument| chains.producer(command, argument).is_some())
    };
    if !(0..chains.commands.plan.len()).any(|command| joins(&command)) {
        return Ok(());
    }
    let groups = chains.groups(chains.commands.plan.groups(fuser.order)?);
    let fused = groups.several().filter_map(|members| chains.fused(members)).collect();
    fuser.replace(&groups, fused);
    Ok(())
}

/// A plan whose elementwise chains are fused.
struct Chains<'a> {
    commands: Commands<'a>,
    order: Order,
}

impl Chains<'_> {
    /// Groups to fuse: each command joins the groups of its producers where allowed.
    fn groups(&self, mut groups: Groups) -> Groups {
        for command in 0..self.commands.all.len() {
            for argument in self.arguments(command) {
                let Some(producer) = self.producer(command, argument) else { continue };
                let (earlier, later) = (groups.of(producer), groups.of(command));
                if earlier.len() + later.len() > STEPS || !groups.may_join(producer, command) {
                    continue;
                }
                let mut members = [earlier, later].concat();
                members.sort_unstable();
                let delays = self.delays(&groups, earlier, later) || self.is_wide(producer, command);
                if !delays && self.chain(&members).is_some() {
                    groups.join(producer, command);
                }
            }
        }
        groups
    }

    fn function(&self, command: usize) -> Option<&Mapped> {
        self.commands.of(command)
    }

    fn fold(&self, command: usize) -> Option<&Folded> {
        self.commands.of(command)
    }

    /// Addresses of the arguments of a function or a reduction.
    fn arguments(&self, command: usize) -> SmallVec<[Dst<u8>; 3]> {
        match (self.function(command), self.fold(command)) {
            (Some(function), _) => function.operands[1..].iter().map(|argument| argument.at).collect(),
            (_, Some(fold)) => smallvec![fold.x],
            _ => SmallVec::new(),
        }
    }

    /// The last function that wrote an argument.
    fn producer(&self, command: usize, argument: Dst<u8>) -> Option<usize> {
        let memory = self.commands.memory(command, argument)?;
        self.commands.writer(memory, command).filter(|&writer| self.function(writer).is_some())
    }

    /// Whether fusing would serialize long CPU commands that could run concurrently: those of the two groups, and others that wait for the first.
    fn delays(&self, groups: &Groups, earlier: &[usize], later: &[usize]) -> bool {
        let device = self.commands.plan.device();
        if !device.runs_on_host() || device.threads() == 1 {
            return false;
        }
        let is_long = |command: &usize| self.commands.plan.cost(*command) >= LONG;
        let later: SmallVec<[usize; STEPS]> = later.iter().copied().filter(is_long).collect();
        if later.is_empty() {
            return false;
        }
        let waiting = earlier.iter().flat_map(|&command| {
            let written = self.commands.plan.uses(command).iter().filter(|(_, write)| *write);
            written.flat_map(move |&(memory, _)| self.commands.waiting(memory, command))
        });
        let mut others = earlier.iter().chain(waiting).filter(|other| is_long(other));
        others.any(|&other| later.iter().any(|&at| groups.were_unordered(other, at)))
    }

    /// Whether other consumers of a reduction's argument would have to wait for the reduction on a CUDA device. Separate kernels, where the
    /// elementwise part ends first, are then faster (on an H200 by up to a tenth of a step).
    fn is_wide(&self, producer: usize, command: usize) -> bool {
        let Some(fold) = self.fold(command) else { return false };
        let memory = self.commands.memory(command, fold.x);
        let others = memory.is_some_and(|memory| {
            self.commands.users[memory].iter().any(|user| *user != producer && *user != command)
        });
        others && !self.commands.plan.device().runs_on_host()
    }

    /// The commands as one chain; `None` if fusing would change bits or the chain is too large.
    fn chain(&self, members: &[usize]) -> Option<Chain> {
        let stream = self.commands.plan.stream(members[0]);
        let apart =
            self.order == Order::Streams && members.iter().any(|&at| self.commands.plan.stream(at) != stream);
        if apart || members.len() > STEPS {
            return None;
        }
        let mut draft = Draft::default();
        for &command in members {
            match self.fold(command) {
                Some(fold) => draft.fold(fold)?,
                None => draft.push(command, self.function(command)?)?,
            }
        }
        let on_host = self.commands.plan.device().runs_on_host();
        let folded = members.iter().find_map(|&command| self.fold(command));
        if folded.is_some_and(|fold| on_host && fold.dtype.is_half()) {
            return None;
        }
        let chain = draft.finish(|command, result| {
            // CPU reductions read from memory.
            if folded.is_some_and(|fold| on_host && fold.x.0 == result.at.0) {
                return true;
            }
            let memory = self.commands.memory(command, result.at);
            memory.is_none_or(|memory| {
                let inner = self.commands.users[memory].iter().all(|user| members.contains(user));
                !(self.commands.plan.is_planned(memory) && inner)
            })
        })?;
        let is_near = |operand: &Operand| operand.places.is_run() || operand.stands();
        let fits = folded.is_none() || on_host || chain.operands.iter().all(is_near);
        fits.then_some(chain)
    }

    /// The command that replaces a group.
    fn fused(&self, members: &[usize]) -> Option<Fused> {
        let chain = self.chain(members)?;
        let outputs = chain.outputs();
        let operands = chain.operands.iter().enumerate().map(|(at, operand)| (operand, at < outputs));
        let folded = chain.fold.iter().flat_map(Fold::written).map(|operand| (operand, true));
        let memory =
            |operand: &Operand| members.iter().find_map(|&command| self.commands.memory(command, operand.at));
        let all = operands.chain(folded).map(|(operand, writes)| Some((memory(operand)?, writes)));
        let uses = Fused::each_once(all.collect::<Option<Vec<_>>>()?);
        let cost = members.iter().map(|&command| self.commands.plan.cost(command)).sum();
        let body = match self.commands.plan.device().runs_on_host() {
            true => Body::Cpu(Blocks::of(&chain)),
            false => Body::Cuda(Box::new(Kernel::of(&chain)?)),
        };
        let work = Box::new(FusedCommand { fusion: FusedChain { chain, body }, cost });
        Some(Fused { op: OP, uses, work })
    }
}

/// A chain as a command.
struct FusedChain {
    chain: Chain,
    body: Body,
}

/// Device-specific data of a chain.
enum Body {
    Cpu(Blocks),
    Cuda(Box<Kernel>),
}

impl Fusion for FusedChain {
    unsafe fn run_in<T: Lanes>(&self, workers: &Workers) {
        if let Body::Cpu(blocks) = &self.body {
            // SAFETY: the caller promises that nobody else uses the chain's operands, including what is folded.
            // `blocks` was made for this chain.
            unsafe {
                blocks.run(&self.chain, workers);
                reduce::fold_chain(&self.chain, workers);
            }
        }
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        match &self.body {
            Body::Cpu(_) => Ok(()),
            Body::Cuda(kernel) => kernel.enqueue(queue, &self.chain),
        }
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        let Chain { operands, fold, .. } = &mut self.chain;
        let written = fold.iter_mut().flat_map(|fold| [&mut fold.out].into_iter().chain(&mut fold.workspace));
        operands.iter_mut().chain(written).for_each(|operand| operand.at = Dst(binder.address(operand.at.0)));
    }
}
