//! Fuses cross-entropy with its gradient, so that logits are read once.

use device::cuda::Queue;
use device::{Binder, DType, Result};

use super::{Fuser, Fusion};
use crate::command::{Address, Held};
use crate::cpu::lanes::Lanes;
use crate::cpu::loss as cpu;
use crate::cuda::loss as cuda;
use crate::loops::Classes;
use crate::par::Workers;

/// Cross-entropy; operands: logits, labels, losses, log-sums.
#[derive(Clone)]
pub(crate) struct Losses {
    pub(crate) dtype: DType,
    pub(crate) classes: Classes<1>,
    pub(crate) operands: (Address, Address, Address, Address),
}

/// Gradient of cross-entropy; operands: logit gradient; logits, loss gradient, log-sums; labels.
type SlopeOperands = (Address, [Address; 3], Address);

#[derive(Clone)]
pub(crate) struct LossSlopes {
    pub(crate) dtype: DType,
    pub(crate) classes: Classes<2>,
    pub(crate) operands: SlopeOperands,
}

impl LossSlopes {
    /// Whether this is the gradient of the given losses.
    fn is_of(&self, loss: &Losses) -> bool {
        let (own, other) = (&self.classes, &loss.classes);
        let (_, [logits, _, log_sums], labels) = self.operands;
        let (loss_logits, loss_labels, _, loss_log_sums) = loss.operands;
        [logits.0, labels.0, log_sums.0] == [loss_logits.0, loss_labels.0, loss_log_sums.0]
            && self.dtype == loss.dtype
            && [own.rows, own.classes] == [other.rows, other.classes]
            && [own.across[1], own.along[1], own.of_rows[0]]
                == [other.across[0], other.along[0], other.of_rows[0]]
    }
}

/// Fuses losses with their gradient if no command in between uses them.
pub(super) fn fuse(fuser: &mut Fuser<'_>) -> Result<()> {
    fuser.pairs(|commands, second| {
        let slopes: &LossSlopes = commands.of(second)?;
        let (out, [_, g, log_sums], _) = slopes.operands;
        let first = commands.writer(commands.memory(second, log_sums)?, second)?;
        let loss: &Losses = commands.of(first)?;
        if !slopes.is_of(loss) || commands.would_widen(loss.dtype) {
            return None;
        }
        let (out, g) = (commands.memory(second, out)?, commands.memory(second, g)?);
        let earlier = commands.plan.uses(first);
        if commands.uses(first, out) || earlier.contains(&(g, true)) {
            return None;
        }
        let both = LossWithSlopes { loss: loss.clone(), slopes: slopes.clone() };
        Some((first, commands.fused("cross_entropy", [first, second], |_| true, both)))
    })
}

struct LossWithSlopes {
    loss: Losses,
    slopes: LossSlopes,
}

impl Fusion for LossWithSlopes {
    const MAY_FAIL: bool = true;

    fn dtype(&self) -> DType {
        self.loss.dtype
    }

    unsafe fn run_in<T: Lanes>(&self, workers: &Workers) {
        let (logits, labels, losses, log_sums) = self.loss.operands;
        let (out, [_, g, _], _) = self.slopes.operands;
        let (logits, labels) = (logits.src().cast::<T>(), labels.src().cast());
        let from = [logits, g.src().cast(), log_sums.src().cast()];
        // SAFETY: the caller promises operands of type `T` that nobody else uses, and both `classes` are those of the
        // fused commands' operands.
        unsafe {
            let made = (logits, labels, losses.cast(), log_sums.cast());
            cpu::cross_entropy(&self.loss.classes, workers, made);
            cpu::cross_entropy_grad(&self.slopes.classes, workers, (out.cast(), from, labels));
        }
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        let LossWithSlopes { loss, slopes } = self;
        let ((logits, labels, losses, log_sums), (out, [_, g, _], _)) = (loss.operands, slopes.operands);
        let operands = [out, logits, labels, g, losses, log_sums];
        cuda::cross_entropy_both(queue, loss.dtype, (&slopes.classes, loss.classes.of_rows[1]), operands)
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        self.loss.operands.bind(&mut |at| binder.address(at));
        self.slopes.operands.bind(&mut |at| binder.address(at));
    }
}
