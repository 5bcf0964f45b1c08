//! A loss and its gradient as one command: what is read for the one is at hand for the other.

use device::cuda::Queue;
use device::{Binder, Cpu, DType, Fused, Result, Work};

use super::{Floats, Fuser, Part, Parts};
use crate::command::Address;
use crate::cpu::lanes::Lanes;
use crate::cpu::loss as cpu;
use crate::cuda::loss as cuda;
use crate::layout::Dst;
use crate::loops::Classes;
use crate::par::Workers;

/// Cross-entropy of each row.
#[derive(Clone, Debug)]
pub(crate) struct Losses {
    dtype: DType,
    classes: Classes<1>,
    logits: Dst<u8>,
    labels: Dst<u8>,
    losses: Dst<u8>,
    log_sums: Dst<u8>,
}

/// The gradient of the logits.
#[derive(Clone, Debug)]
pub(crate) struct LossSlopes {
    dtype: DType,
    classes: Classes<2>,
    out: Dst<u8>,
    logits: Dst<u8>,
    g: Dst<u8>,
    log_sums: Dst<u8>,
    labels: Dst<u8>,
}

impl Losses {
    pub(crate) fn new(
        dtype: DType,
        classes: &Classes<1>,
        (logits, labels, losses, log_sums): (Address, Address, Address, Address),
    ) -> Losses {
        let [logits, labels, losses, log_sums] = [logits, labels, losses, log_sums].map(|at| Dst(at.0));
        Losses { dtype, classes: classes.clone(), logits, labels, losses, log_sums }
    }
}

impl LossSlopes {
    pub(crate) fn new(
        dtype: DType,
        classes: &Classes<2>,
        (out, [logits, g, log_sums], labels): (Address, [Address; 3], Address),
    ) -> LossSlopes {
        let [out, logits, g, log_sums, labels] = [out, logits, g, log_sums, labels].map(|at| Dst(at.0));
        LossSlopes { dtype, classes: classes.clone(), out, logits, g, log_sums, labels }
    }

    /// Whether it is the gradient of these losses.
    fn is_of(&self, loss: &Losses) -> bool {
        let (own, other) = (&self.classes, &loss.classes);
        let places = |logits: Dst<u8>, labels: Dst<u8>, log_sums: Dst<u8>| [logits.0, labels.0, log_sums.0];
        places(self.logits, self.labels, self.log_sums) == places(loss.logits, loss.labels, loss.log_sums)
            && self.dtype == loss.dtype
            && [own.rows, own.classes] == [other.rows, other.classes]
            && [own.across[1], own.along[1], own.of_rows[0]]
                == [other.across[0], other.along[0], other.of_rows[0]]
    }
}

/// Lets the losses be made together with their gradient, where nothing that lies between needs them.
pub(super) fn fuse(fuser: &mut Fuser<'_>) -> Result<()> {
    fuser.pairs(|parts, second| {
        let Some(Part::LossGrad(slopes)) = &parts.all[second] else { return None };
        let first = parts.writer(parts.memory(second, slopes.log_sums)?, second)?;
        Some((first, both(&parts, first, second)?))
    })
}

/// Both commands as one; `None` if one of them is something else, or they meet elsewhere.
fn both(parts: &Parts<'_>, first: usize, second: usize) -> Option<Fused> {
    let (Part::Loss(loss), Part::LossGrad(slopes)) =
        (parts.all[first].as_ref()?, parts.all[second].as_ref()?)
    else {
        return None;
    };
    // A CPU would have to widen halves.
    if !slopes.is_of(loss) || parts.plan.device().runs_on_host() && loss.dtype.is_half() {
        return None;
    }
    let (earlier, later) = (parts.plan.uses(first), parts.plan.uses(second));
    let (out, g) = (parts.memory(second, slopes.out)?, parts.memory(second, slopes.g)?);
    let is_used = |memory: usize| earlier.iter().any(|(used, _)| *used == memory);
    if is_used(out) || earlier.contains(&(g, true)) {
        return None;
    }
    let mut uses = earlier.to_vec();
    uses.extend(later.iter().filter(|(memory, _)| !is_used(*memory)));
    let cost = parts.plan.cost(first) + parts.plan.cost(second);
    let work = Box::new(Command { loss: (**loss).clone(), slopes: (**slopes).clone(), cost });
    Some(Fused { op: "cross_entropy", uses, work })
}

struct Command {
    loss: Losses,
    slopes: LossSlopes,
    cost: usize,
}

impl Floats for Command {
    fn dtype(&self) -> DType {
        self.loss.dtype
    }

    unsafe fn run_in<T: Lanes>(&self, workers: &Workers) {
        let (Losses { classes, logits, labels, losses, log_sums, .. }, slopes) = (&self.loss, &self.slopes);
        let (logits, labels) = (logits.src().cast::<T>(), labels.src().cast());
        let from = [logits, slopes.g.src().cast(), log_sums.src().cast()];
        // SAFETY: the caller promises operands of type `T` that nobody else uses, and both `classes` are those of the
        // fused commands' operands.
        unsafe {
            cpu::cross_entropy(classes, workers, (logits, labels, losses.cast(), log_sums.cast()));
            cpu::cross_entropy_grad(&slopes.classes, workers, (slopes.out.cast(), from, labels));
        }
    }
}

impl Work for Command {
    fn run(&self, cpu: &Cpu<'_>) {
        self.run_on(cpu);
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        let (Losses { dtype, classes, losses, log_sums, .. }, slopes) = (&self.loss, &self.slopes);
        let LossSlopes { out, logits, labels, g, .. } = slopes;
        let operands = [out, logits, labels, g, losses, log_sums].map(|at| Address(at.0));
        cuda::cross_entropy_both(queue, *dtype, (&slopes.classes, classes.of_rows[1]), operands)
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        let Losses { logits, labels, losses, log_sums, .. } = &mut self.loss;
        let slopes = &mut self.slopes;
        for at in [logits, labels, losses, log_sums, &mut slopes.out, &mut slopes.logits] {
            at.0 = binder.address(at.0);
        }
        for at in [&mut slopes.g, &mut slopes.log_sums, &mut slopes.labels] {
            at.0 = binder.address(at.0);
        }
    }

    fn cost(&self) -> usize {
        self.cost
    }
}
