//! Gradients of maxima that a ReLU before them masks: only what it let through has one, and only that is written.

use device::cuda::Queue;
use device::{Binder, Cpu, DType, Fused, Result, Work};

use super::{Floats, Fuser, Mapped, Part, Parts};
use crate::command::Address;
use crate::cpu::lanes::Lanes;
use crate::cpu::pool as cpu;
use crate::cuda::pool as cuda;
use crate::functions::{Function, UnaryOp};
use crate::geometry::Planes;
use crate::layout::Dst;
use crate::par::Workers;
use crate::window::Window;

/// The gradient of maxima.
#[derive(Clone, Debug)]
pub(crate) struct MaxSlopes {
    /// Those of the elements and of the indices.
    types: [DType; 2],
    planes: (Planes, Window),
    /// The gradient of the images and that of the maxima, and the indices.
    operands: [Dst<u8>; 3],
}

impl MaxSlopes {
    pub(crate) fn new(types: [DType; 2], planes: (Planes, Window), operands: [Address; 3]) -> MaxSlopes {
        MaxSlopes { types, planes, operands: operands.map(|at| Dst(at.0)) }
    }
}

/// Lets gradients of maxima be masked where they are written.
pub(super) fn fuse(fuser: &mut Fuser<'_>) -> Result<()> {
    fuser.pairs(|parts, second| {
        let Some(Part::Function(mask)) = &parts.all[second] else { return None };
        let [_, _, g] = &mask.operands[..] else { return None };
        let first = parts.writer(parts.memory(second, g.at)?, second)?;
        Some((first, masked(&parts, (first, second), mask)?))
    })
}

/// Both commands as one; `None` if they are something else, or others need what lies between.
fn masked(parts: &Parts<'_>, (first, second): (usize, usize), mask: &Mapped) -> Option<Fused> {
    let Part::MaxGrad(slopes) = parts.all[first].as_ref()? else { return None };
    let Mapped { function: Function::Gradient(UnaryOp::Relu, dtype), operands } = mask else { return None };
    let [out, positive, g] = &operands[..] else { return None };
    let MaxSlopes { types, planes: (planes, _), operands: [between, ..] } = &**slopes;
    let elements = planes.count * planes.pixels();
    let is_its = g.at.0 == between.0
        && *dtype == types[0]
        && operands.iter().all(|operand| operand.places.is_run() && operand.places.elements == elements);
    // A CPU would have to widen halves.
    if !is_its || parts.plan.device().runs_on_host() && dtype.is_half() {
        return None;
    }
    let (earlier, later) = (parts.plan.uses(first), parts.plan.uses(second));
    let [own, from, to] = [g, positive, out].map(|operand| parts.memory(second, operand.at));
    let (own, from, to) = (own?, from?, to?);
    let inner =
        parts.plan.is_planned(own) && parts.users[own].iter().all(|user| [first, second].contains(user));
    // What is written is first filled with zeros.
    let apart = to != from && earlier.iter().all(|&(memory, _)| memory != to);
    if !inner || !apart || from == own {
        return None;
    }
    let uses = earlier.iter().chain(later).copied().filter(|&(memory, _)| memory != own);
    let cost = parts.plan.cost(first) + parts.plan.cost(second);
    let [_, slope, index] = slopes.operands;
    let slopes = MaxSlopes { operands: [out.at, slope, index], ..(**slopes).clone() };
    let work = Box::new(Command { slopes, positive: positive.at, cost });
    Some(Fused { op: "max_pool2d_grad", uses: Fused::each_once(uses), work })
}

/// Gradients of maxima of what is positive.
struct Command {
    slopes: MaxSlopes,
    positive: Dst<u8>,
    cost: usize,
}

impl Floats for Command {
    fn dtype(&self) -> DType {
        self.slopes.types[0]
    }

    unsafe fn run_in<T: Lanes>(&self, workers: &Workers) {
        let MaxSlopes { types, planes, operands: [out, g, index] } = &self.slopes;
        let (out, g, positive) =
            (out.cast::<T>(), g.src().cast::<T>(), Some(self.positive.src().cast::<T>()));
        // SAFETY: the caller promises operands of type `T` that nobody else uses. `planes` is that of the fused
        // command's operands, and the index has elements of type `types[1]`.
        unsafe { cpu::max_grad(planes, types[1], workers, (out, g, index.src()), positive) };
    }
}

impl Work for Command {
    fn run(&self, cpu: &Cpu<'_>) {
        self.run_on(cpu);
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        let MaxSlopes { types, planes, operands } = &self.slopes;
        let positive = Some(Address(self.positive.0));
        cuda::max_grad(queue, *types, planes, operands.map(|at| Address(at.0)), positive)
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        let all = self.slopes.operands.iter_mut().chain([&mut self.positive]);
        all.for_each(|at| at.0 = binder.address(at.0));
    }

    fn cost(&self) -> usize {
        self.cost
    }
}
