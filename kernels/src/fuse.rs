//! Fusing: where a captured step's commands are functions of elements, one command for several.

use std::any::Any;

use device::cuda::Queue;
use device::{Binder, Cpu, DType, Fused, Groups, Order, Plan, Result, Work};
use smallvec::SmallVec;

use crate::chain::{Chain, OPERANDS, Operand, Step, Value};
use crate::command::Address;
use crate::cpu::chain::Blocks;
use crate::cuda::chain::Kernel;
use crate::functions::Function;
use crate::layout::Dst;
use crate::loops::Places;
use crate::par::workers;

/// The op of commands that are several in one.
const OP: &str = "fused";
/// The most functions of one command, and what they may cost for one element: a kernel's code grows with them.
const STEPS: usize = 24;
const STEPS_COST: usize = 128;
/// From this cost on a command of a CPU is worth a thread of its own, and one that others can help with.
const LONG: usize = 1 << 17;

/// Leaves out of a captured step the commands whose results nobody uses, and makes one command of functions of elements of
/// which one takes what another one gives. What only they use is not written to memory any more.
///
/// What the step computes stays the same, bit for bit. With [`Order::Streams`] commands are fused that follow each other in
/// their stream.
pub fn fuse(plan: &mut Plan, order: Order) {
    plan.leave_out_unused();
    let fuser = Fuser::new(plan, order);
    let groups = fuser.groups();
    let fused = groups.several().filter_map(|members| fuser.fused(members)).collect();
    plan.fuse(&groups, fused);
}

/// What a command is, for who fuses it: a function on operands of which the first is its result.
#[derive(Debug)]
pub(crate) struct Part {
    function: Function,
    operands: SmallVec<[Operand; 4]>,
}

impl Part {
    /// As a command says of itself; `None` where fusing it would cost more than it saves, or is not known to be right: the
    /// result has to fill its memory without gaps, and the innermost axis of arguments not to jump.
    pub(crate) fn of<const N: usize>(
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
        fits.then(|| -> Box<dyn Any> { Box::new(Part { function, operands }) })
    }
}

/// A plan whose commands are fused.
struct Fuser<'a> {
    plan: &'a Plan,
    order: Order,
    /// For each command, what it is.
    parts: Vec<Option<Part>>,
    /// For each memory, who uses it.
    users: Vec<SmallVec<[usize; 4]>>,
    /// The commands by themselves.
    single: Groups,
}

impl<'a> Fuser<'a> {
    fn new(plan: &'a Plan, order: Order) -> Fuser<'a> {
        let part = |command| Some(*plan.part(command)?.downcast::<Part>().ok()?);
        let parts = (0..plan.len()).map(part).collect();
        Fuser { plan, order, parts, users: plan.users(), single: plan.groups(order) }
    }

    /// Groups that are worth it: each command joins those that gave it its arguments, if it may.
    fn groups(&self) -> Groups {
        let mut groups = self.plan.groups(self.order);
        for (command, part) in self.parts.iter().enumerate() {
            for argument in part.iter().flat_map(|part| &part.operands[1..]) {
                let Some(producer) = self.producer(command, argument) else { continue };
                if !groups.may_join(producer, command) {
                    continue;
                }
                let (earlier, later) = (groups.of(producer), groups.of(command));
                let mut members = [earlier, later].concat();
                members.sort_unstable();
                if !self.delays(earlier, later) && self.chain(&members).is_some() {
                    groups.join(producer, command);
                }
            }
        }
        groups
    }

    /// The memory of a command in which an operand lies.
    fn memory(&self, command: usize, operand: &Operand) -> Option<usize> {
        let mut used = self.plan.uses(command).iter().map(|&(memory, _)| memory);
        used.find(|&memory| self.plan.addresses(memory).contains(&operand.at.0.addr()))
    }

    /// The function that wrote an argument last.
    fn producer(&self, command: usize, argument: &Operand) -> Option<usize> {
        let memory = self.memory(command, argument)?;
        let earlier = self.users[memory].iter().rev().filter(|&&user| user < command);
        let mut writers = earlier.filter(|&&user| self.plan.uses(user).contains(&(memory, true)));
        writers.next().copied().filter(|&writer| self.parts[writer].is_some())
    }

    /// Whether commands that could run at once on a CPU, each for long, would come one after the other: those of the two
    /// groups, and what else waits for the first.
    fn delays(&self, earlier: &[usize], later: &[usize]) -> bool {
        let device = self.plan.device();
        if !device.runs_on_host() || device.threads() == 1 {
            return false;
        }
        let is_long = |command: &usize| self.plan.cost(*command) >= LONG;
        let written = earlier.iter().flat_map(|&command| self.plan.uses(command)).filter(|(_, write)| *write);
        let waiting = written.flat_map(|&(memory, _)| &self.users[memory]);
        let mut others = earlier.iter().chain(waiting).filter(|other| is_long(other));
        others.any(|&other| later.iter().any(|at| is_long(at) && self.single.are_unordered(other, *at)))
    }

    /// The commands as one chain; `None` if they are none that keeps the bits, or too large a one.
    fn chain(&self, members: &[usize]) -> Option<Chain> {
        let stream = self.plan.stream(members[0]);
        let apart = self.order == Order::Streams && members.iter().any(|&at| self.plan.stream(at) != stream);
        if apart || members.len() > STEPS {
            return None;
        }
        let mut draft = Draft::default();
        for &command in members {
            draft.push(command, self.parts[command].as_ref()?)?;
        }
        draft.finish(|command, result| {
            let memory = self.memory(command, result);
            memory.is_none_or(|memory| {
                let inner = self.users[memory].iter().all(|user| members.contains(user));
                !(self.plan.is_planned(memory) && inner)
            })
        })
    }

    /// The command that takes the place of a group.
    fn fused(&self, members: &[usize]) -> Option<Fused> {
        let chain = self.chain(members)?;
        let mut uses: Vec<(usize, bool)> = Vec::new();
        let outputs = chain.outputs();
        for (at, operand) in chain.operands.iter().enumerate() {
            let memory = members.iter().find_map(|&command| self.memory(command, operand))?;
            match uses.iter_mut().find(|(known, _)| *known == memory) {
                Some((_, write)) => *write |= at < outputs,
                None => uses.push((memory, at < outputs)),
            }
        }
        let cost = members.iter().map(|&command| self.plan.cost(command)).sum();
        let body = match self.plan.device().runs_on_host() {
            true => Body::Cpu(Blocks::of(&chain)),
            false => Body::Cuda(Box::new(Kernel::of(&chain)?)),
        };
        Some(Fused { op: OP, uses, work: Box::new(Command { chain, cost, body }) })
    }
}

/// A chain that is being put together.
#[derive(Default)]
struct Draft {
    inputs: Vec<Operand>,
    /// What is in memory once the steps are done: which command wrote it, by which step.
    written: Vec<(Operand, usize, usize)>,
    steps: Vec<Step>,
}

impl Draft {
    /// Adds a function; `None` if it takes or replaces what others wrote, or take, at other elements than its own.
    fn push(&mut self, command: usize, part: &Part) -> Option<()> {
        let [result, arguments @ ..] = &part.operands[..] else { return None };
        let elements = |draft: &Draft| draft.written.first().map(|(written, ..)| written.places.elements);
        if elements(self).is_some_and(|elements| elements != result.places.elements) {
            return None;
        }
        let arguments = arguments.iter().map(|argument| self.argument(argument)).collect::<Option<_>>()?;
        if self.inputs.iter().any(|input| input.meets(result) && !input.is(result)) {
            return None;
        }
        if self.written.iter().any(|(written, ..)| written.meets(result) && !written.is(result)) {
            return None;
        }
        self.written.retain(|(written, ..)| !written.is(result));
        self.written.push((result.clone(), command, self.steps.len()));
        self.steps.push(Step { function: part.function, arguments, output: None });
        Some(())
    }

    fn argument(&mut self, argument: &Operand) -> Option<Value> {
        if let Some((written, _, step)) = self.written.iter().find(|(written, ..)| written.meets(argument)) {
            return written.is(argument).then_some(Value::Step(*step));
        }
        let known = self.inputs.iter().position(|input| input.is(argument));
        if known.is_none() {
            self.inputs.push(argument.clone());
        }
        Some(Value::Operand(known.unwrap_or(self.inputs.len() - 1)))
    }

    /// The chain, which writes those results of commands that are `needed` in memory.
    fn finish(self, needed: impl Fn(usize, &Operand) -> bool) -> Option<Chain> {
        let Draft { inputs, written, mut steps } = self;
        let elements = written.first()?.0.places.elements;
        let mut operands = Vec::with_capacity(OPERANDS);
        for (result, command, step) in written {
            if needed(command, &result) {
                steps[step].output = Some(operands.len());
                operands.push(result);
            }
        }
        let outputs = operands.len();
        operands.extend(inputs);
        for argument in steps.iter_mut().flat_map(|step| &mut step.arguments) {
            if let Value::Operand(input) = argument {
                *input += outputs;
            }
        }
        let chain = Chain { elements, operands, steps };
        let cost: usize = chain.steps.iter().map(|step| step.function.cost()).sum();
        let fits = outputs > 0 && chain.operands.len() <= OPERANDS && cost <= STEPS_COST;
        (fits && chain.loops().is_some()).then_some(chain)
    }
}

/// A chain as a command.
struct Command {
    chain: Chain,
    cost: usize,
    body: Body,
}

/// What a device needs to know of a chain beside it.
enum Body {
    Cpu(Blocks),
    Cuda(Box<Kernel>),
}

impl Work for Command {
    fn run(&self, cpu: &Cpu<'_>) {
        if let Body::Cpu(blocks) = &self.body {
            // SAFETY: the plan orders the command by the memory of its operands.
            unsafe { blocks.run(&self.chain, &workers(cpu, self.cost)) };
        }
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        match &self.body {
            Body::Cpu(_) => Ok(()),
            Body::Cuda(kernel) => kernel.enqueue(queue, &self.chain),
        }
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        self.chain.operands.iter_mut().for_each(|operand| operand.at = Dst(binder.address(operand.at.0)));
    }

    fn cost(&self) -> usize {
        self.cost
    }

    fn may_fail(&self) -> bool {
        false
    }
}
