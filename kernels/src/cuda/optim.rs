//! Optimizer steps over any number of tensors, a launch for each 64 of them.

use device::cuda::{Arg, Program, Queue};
use device::{DType, Result, Stream, Use};
use smallvec::SmallVec;

use super::by_dtype;
use super::walk::{ByValue, Walk, address, blocks};
use crate::cpu::number::Number;
use crate::layout::{Loops, View};
use crate::optim::{AdamStep, AdamUpdate, SgdStep, SgdUpdate};

pub(super) static OPTIM: Program =
    Program::new("optim", concat!(include_str!("prelude.cuh"), include_str!("optim.cu")));

/// Tensors of a launch, and elements of a part; as in the program.
const TENSORS: usize = 64;
const PART: usize = 2048;
const THREADS: u32 = 256;

/// `Tensors` of the program.
#[repr(C)]
struct Table<const N: usize> {
    operands: [[u64; N]; TENSORS],
    elements: [u64; TENSORS],
    first: [u32; TENSORS],
    count: u32,
    parts: u32,
}

// SAFETY: words of 64 bits, and an even number of 32.
unsafe impl<const N: usize> ByValue for Table<N> {}

impl<const N: usize> Table<N> {
    const EMPTY: Table<N> = Table {
        operands: [[0; N]; TENSORS],
        elements: [0; TENSORS],
        first: [0; TENSORS],
        count: 0,
        parts: 0,
    };

    fn push(&mut self, operands: &[View<'_>; N], elements: usize) {
        let i = self.count as usize;
        self.operands[i] = operands.map(|view| address(&view).addr() as u64);
        self.elements[i] = elements as u64;
        self.first[i] = self.parts;
        self.parts += elements.div_ceil(PART) as u32;
        self.count += 1;
    }
}

/// `Sgd` of the program.
#[repr(C)]
struct Sgd<T> {
    lr: T,
    momentum: T,
    fresh: T,
    weight_decay: T,
    flags: [u32; 4],
}

// SAFETY: T is F32 or F64, four of which need no padding, nor do four words behind them.
unsafe impl<T: Number> ByValue for Sgd<T> {}

impl<T: Number> Sgd<T> {
    fn of(step: &SgdStep) -> Sgd<T> {
        Sgd {
            lr: T::from_f64(step.lr),
            momentum: T::from_f64(step.momentum),
            fresh: T::from_f64(1.0 - step.dampening),
            weight_decay: T::from_f64(step.weight_decay),
            flags: [step.weight_decay != 0.0, step.nesterov, step.first, false].map(u32::from),
        }
    }
}

/// `Adam` of the program.
#[repr(C)]
struct Adam<T> {
    size: T,
    root: T,
    eps: T,
    fresh1: T,
    keep1: T,
    fresh2: T,
    keep2: T,
    weight_decay: T,
    shrink: T,
    near_end: u32,
    decay: u32,
}

// The compiler of the program would pad the struct of F32 no more than Rust's: both end at a multiple of 4.
// SAFETY: nine numbers of one size and two words; nine F64 end at a multiple of 8, as do the words.
unsafe impl<T: Number> ByValue for Adam<T> {}

impl<T: Number> Adam<T> {
    /// As on the CPU.
    fn of(step: &AdamStep) -> Adam<T> {
        let power = i32::try_from(step.step).unwrap_or(i32::MAX);
        let fresh1 = 1.0 - step.beta1;
        Adam {
            size: T::from_f64(-(step.lr / (1.0 - step.beta1.powi(power)))),
            root: T::from_f64((1.0 - step.beta2.powi(power)).sqrt()),
            eps: T::from_f64(step.eps),
            fresh1: T::from_f64(fresh1),
            keep1: T::ONE.sub(T::from_f64(fresh1)),
            fresh2: T::from_f64(1.0 - step.beta2),
            keep2: T::from_f64(step.beta2),
            weight_decay: T::from_f64(step.weight_decay),
            shrink: T::from_f64(1.0 - step.lr * step.weight_decay),
            near_end: u32::from(fresh1 >= 0.5),
            decay: if step.decoupled { 2 } else { u32::from(step.weight_decay != 0.0) },
        }
    }
}

/// Steps of stochastic gradient descent on checked operands, those with the same numbers together.
pub(crate) fn sgd_step(stream: &Stream, updates: &[SgdUpdate<'_>]) -> Result<()> {
    fn momentum<'a>(update: &SgdUpdate<'a>) -> Option<View<'a>> {
        update.buffer.filter(|_| update.step.momentum != 0.0)
    }
    let alike = |a: &SgdUpdate<'_>, b: &SgdUpdate<'_>| {
        a.step == b.step && a.param.dtype == b.param.dtype && momentum(a).is_some() == momentum(b).is_some()
    };
    for group in updates.chunk_by(alike) {
        let Some(SgdUpdate { param, step, .. }) = group.first() else { continue };
        let dtype = param.dtype;
        let (f32s, f64s) = (Sgd::<f32>::of(step), Sgd::<f64>::of(step));
        let numbers = if dtype == DType::F64 { f64s.arg() } else { f32s.arg() };
        let moving: Vec<[View<'_>; 3]> =
            group.iter().filter_map(|u| momentum(u).map(|buffer| [u.param, u.grad, buffer])).collect();
        if moving.is_empty() {
            let kernels = [by_dtype!(dtype, "sgd"), by_dtype!(dtype, "sgd_strided")];
            let plain: Vec<[View<'_>; 2]> = group.iter().map(|u| [u.param, u.grad]).collect();
            launch(stream, "sgd", kernels, &plain, numbers)?;
        } else {
            let kernels = [by_dtype!(dtype, "momentum"), by_dtype!(dtype, "momentum_strided")];
            launch(stream, "sgd", kernels, &moving, numbers)?;
        }
    }
    Ok(())
}

/// Steps of Adam or AdamW on checked operands, those with the same numbers together.
pub(crate) fn adam_step(stream: &Stream, updates: &[AdamUpdate<'_>]) -> Result<()> {
    for group in updates.chunk_by(|a, b| a.step == b.step && a.param.dtype == b.param.dtype) {
        let Some(AdamUpdate { param, step, .. }) = group.first() else { continue };
        let dtype = param.dtype;
        let kernels = [by_dtype!(dtype, "adam"), by_dtype!(dtype, "adam_strided")];
        let (f32s, f64s) = (Adam::<f32>::of(step), Adam::<f64>::of(step));
        let numbers = if dtype == DType::F64 { f64s.arg() } else { f32s.arg() };
        let tensors: Vec<[View<'_>; 4]> = group.iter().map(|u| [u.param, u.grad, u.m, u.v]).collect();
        launch(stream, "adam", kernels, &tensors, numbers)?;
    }
    Ok(())
}

/// Launches the first kernel for tensors whose operands lie alike, the second one for each other one.
fn launch<const N: usize>(
    stream: &Stream,
    op: &'static str,
    [together, strided]: [&'static str; 2],
    tensors: &[[View<'_>; N]],
    numbers: Arg<'_>,
) -> Result<()> {
    // The gradient is only read.
    let uses: SmallVec<[Use<'_>; 8]> = tensors
        .iter()
        .flat_map(|operands| operands.iter().enumerate())
        .map(|(k, view)| if k == 1 { Use::read(view.buffer) } else { Use::write(view.buffer) })
        .collect();
    stream.submit(op, &uses, |queue| {
        let mut table = Table::EMPTY;
        for operands in tensors {
            let loops = Loops::in_memory_order(operands.map(|view| view.layout));
            if loops.elements == 0 {
                continue;
            }
            if loops.axes.len() <= 1 && loops.inner().strides == [1; N] || loops.elements == 1 {
                table.push(operands, loops.elements);
                if table.count as usize == TENSORS {
                    // SAFETY: the table names elements of the operands, whose layouts were checked, and the uses name
                    // their buffers.
                    unsafe { enqueue(queue, together, &table, numbers)? };
                    table = Table::EMPTY;
                }
                continue;
            }
            let walk = Walk::of(op, &loops)?;
            let mut one = Table::EMPTY;
            one.push(operands, loops.elements);
            let args = [one.arg(), numbers, walk.arg()];
            // SAFETY: as above, with the strides of the layouts.
            unsafe { queue.kernel(&OPTIM, strided, walk.grid(queue, 1), &args)? };
        }
        // SAFETY: as above.
        unsafe { enqueue(queue, together, &table, numbers) }
    })
}

/// # Safety
/// The table names elements that the command may change.
unsafe fn enqueue<const N: usize>(
    queue: &Queue<'_>,
    kernel: &'static str,
    table: &Table<N>,
    numbers: Arg<'_>,
) -> Result<()> {
    if table.count == 0 {
        return Ok(());
    }
    let grid = blocks(queue, u64::from(table.parts), THREADS);
    // SAFETY: the caller's promise.
    unsafe { queue.kernel(&OPTIM, kernel, grid, &[table.arg(), numbers]) }
}
