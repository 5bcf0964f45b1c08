//! Fuses the addition of several batches' gradients into the optimizer step.

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;

use device::cuda::Queue;
use device::{Binder, Fused, Result};
use smallvec::SmallVec;

use super::{Commands, FusedCommand, Fuser, Fusion};
use crate::command::Address;
use crate::cpu::elementwise::Elements;
use crate::cpu::lanes::Lanes;
use crate::cuda::optim::enqueue;
use crate::functions::{BinaryOp, Function};
use crate::layout::Dst;
use crate::loops::{LoopAxis, Loops, Places};
use crate::par::{Workers, for_range};
use crate::rule_step::{RuleStep, Stepped};
use crate::rules::{Accumulated, OPERANDS, ROUNDED};

/// Elements per part when a step is split over threads, and elements that a thread sums at a time.
const CHUNK: usize = 1 << 15;
const BLOCK: usize = 1 << 10;
/// Index of the gradient among a rule's operands.
const GRADIENT: usize = 1;

/// The optimizer step of one parameter.
#[derive(Clone)]
pub(crate) struct RuleUpdate {
    stepped: Stepped,
    operands: [Address; OPERANDS],
    /// Second summand of the gradient.
    addend: Option<Address>,
}

/// Fuses additions of gradients into optimizer steps if the sum has no other use.
pub(super) fn fuse(fuser: &mut Fuser<'_>) -> Result<()> {
    fuser.pairs(|commands, command| {
        let adder = adder(&commands, command)?;
        Some((adder, merged(&commands, adder, command)?))
    })
}

fn steps<'a>(commands: &Commands<'a>, command: usize) -> Option<&'a [RuleUpdate]> {
    commands.of::<Vec<RuleUpdate>>(command).map(Vec::as_slice)
}

/// The command that computed a gradient of `command` as a sum, if `command` is an optimizer step.
fn adder(commands: &Commands<'_>, command: usize) -> Option<usize> {
    let updates = steps(commands, command)?;
    let adds = |&adder: &usize| steps(commands, adder).is_some_and(|all| all.iter().all(RuleUpdate::adds));
    let mut gradients = updates.iter().map(|update| update.operands[GRADIENT]);
    gradients.find_map(|at| commands.writer(commands.memory(command, at)?, command).filter(adds))
}

/// The steps of `command` with the additions of `adder`; `None` if a sum has another use.
fn merged(commands: &Commands<'_>, adder: usize, command: usize) -> Option<Fused> {
    let mut updates = steps(commands, command)?.to_vec();
    let mut takers: HashMap<usize, SmallVec<[usize; 2]>> = HashMap::new();
    for (at, update) in updates.iter().enumerate() {
        for memory in update.operands.iter().filter_map(|&operand| commands.memory(command, operand)) {
            let takers = takers.entry(memory).or_default();
            if takers.last() != Some(&at) {
                takers.push(at);
            }
        }
    }
    let (adds, mut uses) = (commands.plan.uses(adder), commands.plan.uses(command).to_vec());
    let written: HashSet<usize> =
        adds.iter().chain(&uses).filter(|(_, writes)| *writes).map(|(memory, _)| *memory).collect();
    for add in steps(commands, adder)? {
        let [sum, addend, ..] = add.operands;
        let (memory, other) = (commands.memory(adder, sum)?, commands.memory(adder, addend)?);
        let mut later = commands.users[memory].iter().filter(|&&user| user > adder);
        let alone = commands.plan.is_planned(memory) && later.all(|&user| user == command);
        let [taker] = takers.get(&memory)?[..] else { return None };
        let taker = &mut updates[taker];
        // Summands must not be written by steps of other parameters, nor be other sums.
        if !alone || !taker.takes(add) || written.contains(&other) {
            return None;
        }
        taker.addend = Some(addend);
        uses.push((other, false));
    }
    let cost = commands.plan.cost(adder) + commands.plan.cost(command);
    let op = updates.first()?.stepped.step.op();
    Some(Fused {
        op,
        uses: Fused::each_once(uses),
        work: Box::new(FusedCommand { fusion: Updates(updates), cost }),
    })
}

impl RuleUpdate {
    pub(super) fn new(stepped: Stepped, operands: [Address; OPERANDS]) -> RuleUpdate {
        RuleUpdate { stepped, operands, addend: None }
    }

    /// Whether it is an elementwise sum of two gradients.
    fn adds(&self) -> bool {
        self.stepped.step.same_rule(&RuleStep::new(Accumulated, [], [])) && self.stepped.is_dense()
    }

    /// Whether its gradient is the result of `add`.
    fn takes(&self, add: &RuleUpdate) -> bool {
        let (own, other) = (&self.stepped, &add.stepped);
        self.operands[GRADIENT].0 == add.operands[0].0
            && self.addend.is_none()
            && own.dtype == other.dtype
            && own.is_dense()
            && own.loops.elements == other.loops.elements
    }

    /// The operands of the kernel, with the second summand last.
    fn addresses(&self) -> [Address; OPERANDS] {
        let mut all = self.operands;
        if let Some(addend) = self.addend {
            all[ROUNDED] = addend;
        }
        all
    }

    /// Runs it on a CPU.
    ///
    /// # Safety
    /// The elements of the operands may be read, and all but those of gradient and addend written; nobody else uses them
    /// meanwhile.
    unsafe fn run(&self, workers: &Workers) {
        let RuleUpdate { stepped: Stepped { step, dtype, loops, .. }, operands, addend } = self;
        let Some(addend) = *addend else {
            // SAFETY: the caller vouches for the operands, and `loops` is that of the step.
            return unsafe { step.run(*dtype, loops, workers, *operands) };
        };
        let size = dtype.size_bytes();
        for_range(workers, loops.elements, CHUNK, &|range| {
            let mut sums = MaybeUninit::<[u64; BLOCK]>::uninit();
            let sums = Dst(sums.as_mut_ptr().cast::<u8>());
            for start in range.clone().step_by(BLOCK) {
                let elements = BLOCK.min(range.end - start);
                let offset = (start * size) as isize;
                let mut operands = operands.map(|at| Dst(at.at(offset)));
                let addend = Dst(addend.at(offset));
                let places = Places::Run { elements, steps: [1; 3] };
                let terms = [sums, operands[GRADIENT], addend];
                operands[GRADIENT] = sums;
                let loops = Loops::from_axes([LoopAxis { size: elements, strides: [1; OPERANDS] }]);
                // SAFETY: a step with an addend is merged only if all operands are dense, so the block's elements
                // follow the addresses; the caller vouches for them. `sums` has a word for each element of a block.
                unsafe {
                    Function::Binary(BinaryOp::Add, *dtype).run(&places, &None, terms);
                    step.run(*dtype, &loops, &None, operands);
                }
            }
        });
    }
}

/// Steps of several parameters; some add gradients first.
struct Updates(Vec<RuleUpdate>);

impl Fusion for Updates {
    unsafe fn run_in<T: Lanes>(&self, workers: &Workers) {
        // SAFETY: the caller promises that nobody else uses the operands of the updates.
        self.0.iter().for_each(|update| unsafe { update.run(workers) });
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        let form = |update: &RuleUpdate| (update.stepped.dtype, update.addend.is_some());
        let alike = |a: &RuleUpdate, b: &RuleUpdate| a.stepped.step == b.stepped.step && form(a) == form(b);
        for alike in self.0.chunk_by(alike) {
            let tensors = alike.iter().map(|update| (&update.stepped, update.addresses()));
            enqueue(queue, &alike[0].stepped, alike[0].addend.is_some(), tensors)?;
        }
        Ok(())
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        for RuleUpdate { stepped, operands, addend } in &mut self.0 {
            operands.iter_mut().chain(addend).for_each(|at| at.0 = binder.address(at.0));
            stepped.change(&mut |step| binder.scalar(step));
        }
    }
}
