//! Gradients of max pooling that a ReLU before it masks: only what the ReLU let through has a gradient, and only that is written.

use device::cuda::Queue;
use device::{Binder, DType, Result};

use super::{Fuser, Fusion, Mapped};
use crate::command::{Address, Held};
use crate::cpu::lanes::Lanes;
use crate::cpu::pool as cpu;
use crate::cuda::pool as cuda;
use crate::functions::{Function, UnaryOp};
use crate::geometry::Planes;
use crate::par::Workers;
use crate::window::Window;

/// The gradient of max pooling.
#[derive(Clone)]
pub(crate) struct MaxSlopes {
    /// Those of the elements and of the indices.
    pub(crate) types: [DType; 2],
    pub(crate) planes: (Planes, Window),
    /// The gradient of the images and that of the maxima, and the indices.
    pub(crate) operands: [Address; 3],
    /// The ReLU's result, which masks the gradient.
    pub(crate) positive: Option<Address>,
}

/// Lets gradients of max pooling be masked where they are written.
pub(super) fn fuse(fuser: &mut Fuser<'_>) -> Result<()> {
    fuser.pairs(|commands, second| {
        let mask: &Mapped = commands.of(second)?;
        let Mapped { function: Function::Gradient(UnaryOp::Relu, dtype), operands } = mask else {
            return None;
        };
        let [out, positive, g] = &operands[..] else { return None };
        let first = commands.writer(commands.memory(second, g.at)?, second)?;
        let slopes: &MaxSlopes = commands.of(first)?;
        let [between, slope, index] = slopes.operands;
        let elements = slopes.planes.0.count * slopes.planes.0.pixels();
        let is_its = g.at.0 == between.0
            && *dtype == slopes.types[0]
            && operands.iter().all(|operand| operand.places.is_run() && operand.places.elements == elements);
        if !is_its || commands.would_widen(*dtype) {
            return None;
        }
        let [own, from, to] = [g, positive, out].map(|operand| commands.memory(second, operand.at));
        let (own, from, to) = (own?, from?, to?);
        // What is written is first filled with zeros.
        let apart = to != from && !commands.uses(first, to);
        if !commands.is_between(own, [first, second]) || !apart || from == own {
            return None;
        }
        let operands = [out.at, slope, index];
        let masked = MaxSlopes { operands, positive: Some(positive.at), ..slopes.clone() };
        let fused = commands.fused("max_pool2d_grad", [first, second], |memory| memory != own, masked);
        Some((first, fused))
    })
}

impl Fusion for MaxSlopes {
    const MAY_FAIL: bool = true;

    fn dtype(&self) -> DType {
        self.types[0]
    }

    unsafe fn run_in<T: Lanes>(&self, workers: &Workers) {
        let MaxSlopes { types, planes, operands: [out, g, index], positive } = self;
        let (out, g) = (out.cast::<T>(), g.src().cast::<T>());
        let positive = positive.map(|at| at.src().cast::<T>());
        // SAFETY: the caller promises operands of type `T` that nobody else uses. `planes` is that of the fused
        // command's operands, and the index has elements of type `types[1]`.
        unsafe { cpu::max_grad(planes, types[1], workers, (out, g, index.src()), positive) };
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        cuda::max_grad(queue, self.types, &self.planes, self.operands, self.positive)
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        self.operands.bind(&mut |at| binder.address(at));
        self.positive.bind(&mut |at| binder.address(at));
    }
}
