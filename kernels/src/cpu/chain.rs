//! Chains by blocks, which stay in the first cache: each function runs on a block as it would on all elements.

use std::array::from_fn;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::elementwise::Elements;
use super::for_bits;
use super::walk::{collect, spread};
use crate::chain::{Chain, OPERANDS, Operand, Value};
use crate::functions::Function;
use crate::layout::Dst;
use crate::loops::Places;
use crate::par::{Workers, for_range};

/// Memory of a thread for what is not kept, in words.
const WORDS: usize = 1 << 12;
/// The most elements of a block, and what their number is a multiple of.
const BLOCK: usize = 1024;
const MULTIPLE: usize = 32;
/// Elements of a part when a chain is split over threads.
const CHUNK: usize = 1 << 15;

/// Which elements of a chain lie where while a block is computed.
pub(crate) struct Blocks {
    /// For each operand, the slot that its elements are copied to if they lie neither as a run nor at one place.
    copied: Vec<Option<usize>>,
    /// For each step, where its results are: an operand that is written, or a slot. From there they are copied to an operand that does not
    /// lie as a run.
    results: Vec<Room>,
    elements: usize,
    slot_bytes: usize,
}

#[derive(Clone, Copy)]
enum Room {
    Operand(usize),
    Slot(usize),
}

/// Slots that are free again.
#[derive(Default)]
struct Slots {
    free: Vec<usize>,
    count: usize,
}

impl Slots {
    fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        })
    }
}

impl Blocks {
    pub(crate) fn of(chain: &Chain) -> Blocks {
        let mut slots = Slots::default();
        let lies = |operand: &Operand| operand.places.is_run() || operand.places.axes.is_empty();
        let stands = |operand: &Operand| matches!(&operand.places.axes[..], [axis] if axis.strides == [0]);
        let outputs = chain.outputs();
        let copied: Vec<Option<usize>> = chain
            .operands
            .iter()
            .enumerate()
            .map(|(at, operand)| (at >= outputs && !lies(operand) && !stands(operand)).then(|| slots.take()))
            .collect();
        let mut results: Vec<Room> = Vec::with_capacity(chain.steps.len());
        for (at, step) in chain.steps.iter().enumerate() {
            let in_place = step.output.filter(|&output| lies(&chain.operands[output]));
            results.push(in_place.map_or_else(|| Room::Slot(slots.take()), Room::Operand));
            // A result has a place of its own: its elements may be larger than an argument's.
            let is_last =
                |value: &Value| !chain.steps[at + 1..].iter().any(|later| later.arguments.contains(value));
            let used = step.arguments.iter().copied().chain([Value::Step(at)]).enumerate();
            let once = used.filter(|&(k, value)| !step.arguments[..k].contains(&value));
            for value in once.map(|(_, value)| value).filter(is_last) {
                slots.free.extend(match value {
                    Value::Operand(operand) => copied[operand],
                    Value::Step(step) => match results[step] {
                        Room::Slot(slot) => Some(slot),
                        Room::Operand(_) => None,
                    },
                });
            }
        }
        let types = chain.steps.iter().map(|step| step.function.result());
        let largest =
            types.chain(chain.operands.iter().map(|operand| operand.dtype)).map(|dtype| dtype.size_bytes());
        let size = largest.max().unwrap_or(1);
        let room = WORDS * size_of::<u64>() / (slots.count.max(1) * size);
        let elements = BLOCK.min(room / MULTIPLE * MULTIPLE);
        Blocks { copied, results, elements, slot_bytes: elements * size }
    }

    /// Computes the chain.
    ///
    /// # Safety
    /// The elements of the chain's operands may be read, and those that it writes be written, and meanwhile nobody else
    /// touches these.
    pub(crate) unsafe fn run(&self, chain: &Chain, workers: &Workers) {
        for_range(workers, chain.elements, CHUNK, &|range| {
            let mut memory = MaybeUninit::<[u64; WORDS]>::uninit();
            let memory = Dst(memory.as_mut_ptr().cast::<u8>());
            for start in range.clone().step_by(self.elements) {
                // SAFETY: `part` lies in the chain's elements, whose operands the caller vouches for, and
                // `slot_bytes` was chosen such that all slots fit in `WORDS` words.
                unsafe { self.block(chain, start..range.end.min(start + self.elements), memory) };
            }
        });
    }

    /// Computes the elements `part`, at most as many as a block has.
    ///
    /// # Safety
    /// As for [`run`](Self::run); `memory` has room for all slots.
    unsafe fn block(&self, chain: &Chain, part: Range<usize>, memory: Dst<u8>) {
        let slot = |slot: usize| (Dst(memory.0.wrapping_add(slot * self.slot_bytes)), 1);
        let mut operands = [(memory, 0); OPERANDS];
        for ((place, operand), copied) in operands.iter_mut().zip(&chain.operands).zip(&self.copied) {
            let size = operand.dtype.size_bytes();
            *place = match *copied {
                Some(to) => {
                    let to = slot(to);
                    // SAFETY: the caller promises that the operand's elements `part` may be read, and a slot has room
                    // for a block, of which `part` is at most one.
                    unsafe {
                        for_bits!(size, B => {
                            collect::<B>(&operand.places, part.clone(), operand.at.0.cast(), to.0.0.cast());
                        });
                    }
                    to
                }
                None => {
                    let step = operand.places.inner().strides[0];
                    (Dst(operand.at.0.wrapping_offset(part.start as isize * step * size as isize)), step)
                }
            };
        }
        let result = |step: usize| match self.results[step] {
            Room::Operand(operand) => (operands[operand].0, 1),
            Room::Slot(at) => slot(at),
        };
        for (at, step) in chain.steps.iter().enumerate() {
            let mut places = [result(at); 4];
            for (place, argument) in places[1..].iter_mut().zip(&step.arguments) {
                *place = match *argument {
                    Value::Operand(operand) => operands[operand],
                    Value::Step(step) => result(step),
                };
            }
            // SAFETY: each place is an operand's elements `part`, a slot with room for them, or an earlier step's
            // result, in the type that the step's function takes.
            unsafe {
                match step.arguments.len() {
                    1 => apply::<2>(step.function, part.len(), &places),
                    2 => apply::<3>(step.function, part.len(), &places),
                    _ => apply::<4>(step.function, part.len(), &places),
                }
            }
            if let (Some(output), Room::Slot(slot_of_result)) = (step.output, self.results[at]) {
                let operand = &chain.operands[output];
                let from = slot(slot_of_result).0.0.cast_const();
                // SAFETY: the caller promises that the operand's elements `part` may be written, and the slot has just been
                // filled with as many results.
                unsafe {
                    for_bits!(operand.dtype.size_bytes(), B => {
                        spread::<B>(&operand.places, part.clone(), from.cast(), operand.at.0.cast());
                    });
                }
            }
        }
    }
}

/// Runs a function on `elements` elements at addresses and with steps, of which the first are the result's.
///
/// # Safety
/// They may be read, and the result's be written; they are of the function's types. The result may be an argument, element
/// for element.
unsafe fn apply<const N: usize>(function: Function, elements: usize, operands: &[(Dst<u8>, isize); 4])
where
    Function: Elements<N>,
{
    let places = Places::Run { elements, steps: from_fn(|k| operands[k].1) };
    // SAFETY: the caller promises `elements` elements at each address, of the types that `function` names, and that the
    // result overlaps an argument only element for element.
    unsafe { function.run(&places, &None, from_fn(|k| operands[k].0)) }
}
