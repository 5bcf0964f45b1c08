//! Commands: what a kernel reads and writes, stated once, and its bodies for both kinds of device.
//!
//! A launcher states its operands, and from the statement follow the checks of types and bounds, the uses that order the
//! command, and the addresses that its bodies get. They have no other way to one, so what was not stated cannot be touched.

use std::any::Any;

use device::cuda::Queue;
use device::{Asked, Binder, Cpu, Operand, OperandRecord, Result, Stream, Use, Work};
use smallvec::SmallVec;

use crate::cpu::stage::Stage;
use crate::par::{Workers, workers};

mod operands;

pub(crate) use operands::{Address, Held, Raw, Read, Write, WriteRead};
use operands::{Operands, Used, Uses};

/// A kernel's operands, before it is launched.
pub(crate) struct Command<O> {
    op: &'static str,
    operands: O,
    cost: usize,
    may_fail: bool,
}

impl<O: Operands> Command<O> {
    /// A command of one pass over what it writes and reads. The operands stated in a type that is computed in are of one
    /// type of storage, that of the first.
    #[inline(always)]
    pub(crate) fn new(op: &'static str, operands: O) -> Command<O> {
        Command { op, operands, cost: 0, may_fail: false }
    }

    /// About how many elementary operations a CPU needs, which decides over how many threads they are split.
    #[inline(always)]
    pub(crate) fn cost(self, elements: usize, each: usize) -> Command<O> {
        Command { cost: elements.saturating_mul(each), ..self }
    }

    /// Elements that are read may be wrong, as with an index out of range, or the body may fail otherwise.
    #[inline(always)]
    pub(crate) fn may_fail(self) -> Command<O> {
        Command { may_fail: true, ..self }
    }

    /// Checks the operands, and lists them with how they are used; `None` if there is nothing to write.
    ///
    /// # Errors
    /// Those of [`launch`](Self::launch) for operands.
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<Option<SmallVec<[Used<'_>; 4]>>> {
        operands::check(self.op, &self.operands)
    }

    /// Checks the operands and launches the body of the stream's device, which gets `params` and the operands in the form of
    /// their statement. A command that has nothing to write is not launched.
    ///
    /// # Errors
    /// `DTypeMismatch`, `DTypeUnsupported`, `InvalidArgument` for a layout beyond its buffer,
    /// one that is written and expanded, or one that is written and shares memory with another operand; those of
    /// [`Stream::launch`].
    #[inline(always)]
    #[track_caller]
    pub(crate) fn run<P, C, G>(self, stream: &Stream, params: P, cpu: C, cuda: G) -> Result<()>
    where
        P: Send + Sync + 'static,
        C: Fn(&P, &Workers, <O::Held as Held>::Cpu) + Send + Sync + 'static,
        G: Fn(&P, &Queue<'_>, <O::Held as Held>::Cuda) -> Result<()> + Send + Sync + 'static,
    {
        self.launch(stream, params, no_scalars, no_part, cpu, cuda)
    }

    /// As [`run`](Self::run), with `scalars`, which shows the parameters that may change from step to step, and `part`, which
    /// describes the command; see [`Work::bind`] and [`Work::part`]. [`no_scalars`] and [`no_part`] stand for none.
    ///
    /// The bodies' unsafe code relies on what is checked here: every layout lies in its buffer and is of the stated type, no
    /// two indices of a written operand name one element, and what is written shares no memory with another operand, except
    /// element for element with one that is read in place. The launch orders the command with all others that use the
    /// buffers.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    #[inline(always)]
    #[track_caller]
    pub(crate) fn launch<P, S, D, C, G>(
        self,
        stream: &Stream,
        params: P,
        scalars: S,
        part: D,
        cpu: C,
        cuda: G,
    ) -> Result<()>
    where
        P: Send + Sync + 'static,
        S: Fn(&mut P, &mut dyn FnMut(&mut dyn Any)) + Send + Sync + 'static,
        D: Fn(&P, <O::Held as Held>::Cuda) -> Option<Box<dyn Any>> + Send + Sync + 'static,
        C: Fn(&P, &Workers, <O::Held as Held>::Cpu) + Send + Sync + 'static,
        G: Fn(&P, &Queue<'_>, <O::Held as Held>::Cuda) -> Result<()> + Send + Sync + 'static,
    {
        let Some(used) = self.check()? else { return Ok(()) };
        let mut uses = Uses::new();
        for (view, access) in used {
            uses.push(if access.write { Use::write(view.buffer) } else { Use::read(view.buffer) });
        }
        let Command { op, ref operands, cost, may_fail } = self;
        let held = operands.hold();
        let work = Bodies { held, params, cost, may_fail, scalars, part, cpu, cuda };
        stream.launch_described(op, &uses, &|asked| described(operands, asked), work)
    }
}

/// For parameters of which none changes.
pub(crate) fn no_scalars<P>(_: &mut P, _: &mut dyn FnMut(&mut dyn Any)) {}

/// For a command that is not fused with others.
pub(crate) fn no_part<P, A>(_: &P, _: A) -> Option<Box<dyn Any>> {
    None
}

/// Shapes, types and addresses of operands, for recordings and traces of writes.
#[cold]
fn described(operands: &impl Operands, asked: Asked) -> Vec<Operand> {
    let mut records = Vec::new();
    let all = operands.each(&mut |view, access| {
        if access.is_workspace || asked == Asked::Written && !access.write {
            return Ok(());
        }
        let (shape, dtype, write) = (view.layout.shape().into(), view.dtype, access.write);
        let start =
            view.buffer.ptr().wrapping_add(view.layout.offset() * dtype.size_bytes()).expose_provenance();
        let record = OperandRecord { shape, dtype, write };
        records.push(Operand { record, start, strides: view.layout.strides().into() });
        Ok(())
    });
    debug_assert!(all.is_ok());
    records
}

/// What a command is made of once it was checked.
struct Bodies<H, P, S, D, C, G> {
    held: H,
    params: P,
    cost: usize,
    may_fail: bool,
    scalars: S,
    part: D,
    cpu: C,
    cuda: G,
}

impl<H, P, S, D, C, G> Work for Bodies<H, P, S, D, C, G>
where
    H: Held,
    P: Send + Sync + 'static,
    S: Fn(&mut P, &mut dyn FnMut(&mut dyn Any)) + Send + Sync + 'static,
    D: Fn(&P, H::Cuda) -> Option<Box<dyn Any>> + Send + Sync + 'static,
    C: Fn(&P, &Workers, H::Cpu) + Send + Sync + 'static,
    G: Fn(&P, &Queue<'_>, H::Cuda) -> Result<()> + Send + Sync + 'static,
{
    #[inline(always)]
    fn run(&self, cpu: &Cpu<'_>) {
        let workers = workers(cpu, self.cost);
        let stage = Stage::new(&workers);
        // SAFETY: this command was launched with uses of the buffers of all operands, so they are alive and nobody
        // else uses them in conflict. The stage outlives the body.
        let operands = unsafe { self.held.on_cpu(&stage) };
        (self.cpu)(&self.params, &workers, operands);
        if !H::STAGED {
            // Nothing to give back, which the compiler cannot see (`benches/ops.rs`, one-element ops).
            std::mem::forget(stage);
        }
    }

    #[inline(always)]
    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        (self.cuda)(&self.params, queue, self.held.on_cuda())
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        self.held.bind(&mut |at| binder.address(at));
        (self.scalars)(&mut self.params, &mut |value| binder.scalar(value));
    }

    fn cost(&self) -> usize {
        self.cost
    }

    fn part(&self) -> Option<Box<dyn Any>> {
        (self.part)(&self.params, self.held.on_cuda())
    }

    fn may_fail(&self) -> bool {
        self.may_fail
    }
}

/// The types that floats are computed in: evaluates `$body` with `$t` as the one for elements of type `$dtype`.
macro_rules! for_float {
    ($op:expr, $dtype:expr, $t:ident => $body:expr) => {
        match $dtype.compute_dtype() {
            device::DType::F32 => {
                type $t = f32;
                $body
            }
            device::DType::F64 => {
                type $t = f64;
                $body
            }
            _ => Err(device::Error::dtype_unsupported($op, $dtype, "floats")),
        }
    };
}

/// As [`for_float`], and for integers, which are computed in their own type.
macro_rules! for_number {
    ($op:expr, $dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            device::DType::I64 => {
                type $t = i64;
                $body
            }
            device::DType::U8 => {
                type $t = u8;
                $body
            }
            device::DType::Bool => Err(device::Error::dtype_unsupported($op, device::DType::Bool, "numbers")),
            float => $crate::command::for_float!($op, float, $t => $body),
        }
    };
}

pub(crate) use {for_float, for_number};
