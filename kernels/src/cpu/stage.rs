//! Halves in kernels for F32. A command widens its operands of type BF16 or F16 to memory of its thread, in which they lie
//! as they do in theirs; the kernel runs on that memory; and what it wrote is rounded, once, where it belongs. Operands of
//! the type that the kernel computes in are used in place.

use std::cell::RefCell;
use std::cmp::Reverse;

use device::{DType, DeviceKind, failure};
use smallvec::SmallVec;

use super::copy::copy;
use super::lanes::ScratchMemory;
use crate::layout::{Dst, Layout, LoopAxis, Loops, View};
use crate::loops::Places;
use crate::par::Workers;

/// An operand of a command.
pub(crate) struct Operand {
    at: Dst<u8>,
    halves: Option<Box<Halves>>,
}

/// How halves lie in memory: here and in the kernel's memory at the same places.
struct Halves {
    dtype: DType,
    places: Places<2>,
    /// From the first place to the last.
    span: usize,
}

impl Operand {
    /// An operand whose type and bounds were checked. If `widens`, BF16 and F16 are widened for a kernel on a CPU.
    #[inline(always)]
    pub(crate) fn of(view: &View<'_>, widens: bool) -> Operand {
        let halves = if widens && view.dtype.is_half() { Halves::of(view) } else { None };
        Operand { at: view.first(), halves }
    }

    /// Where it lies, as it is stored.
    #[inline(always)]
    pub(crate) fn at(&self) -> Dst<u8> {
        self.at
    }

    /// Has it lie where `moved` says of where it lies now.
    pub(crate) fn bind(&mut self, moved: &mut dyn FnMut(*mut u8) -> *mut u8) {
        self.at = Dst(moved(self.at.0));
    }
}

impl Halves {
    /// Nothing on CUDA, where kernels convert what they load and store.
    #[cold]
    fn of(view: &View<'_>) -> Option<Box<Halves>> {
        if matches!(view.buffer.device().kind(), DeviceKind::Cuda(_)) {
            return None;
        }
        let span = view.layout.end().saturating_sub(view.layout.offset());
        Some(Box::new(Halves { dtype: view.dtype, places: places(view.layout), span }))
    }
}

/// Each place of a layout once, in the order of memory: an expanded axis adds none.
fn places(layout: &Layout) -> Places<2> {
    if layout.elements() == 0 {
        return Places::Run { elements: 0, steps: [1; 2] };
    }
    let axes = layout.shape().iter().zip(layout.strides()).filter(|(_, stride)| **stride != 0);
    let mut axes: SmallVec<[LoopAxis<2>; 4]> =
        axes.map(|(&size, &stride)| LoopAxis { size, strides: [stride; 2] }).collect();
    axes.sort_by_key(|axis| Reverse(axis.strides[0]));
    Places::Loops(Box::new(Loops::from_axes(axes)))
}

/// The memory of one command's halves, from when they are widened to when results are rounded, which dropping it does.
pub(crate) struct Stage<'a> {
    workers: &'a Workers,
    held: RefCell<SmallVec<[Held<'a>; 4]>>,
}

/// An operand's memory, and where it goes if it is a result.
struct Held<'a> {
    memory: ScratchMemory,
    result: Option<(&'a Halves, Dst<u8>)>,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(workers: &'a Workers) -> Stage<'a> {
        Stage { workers, held: RefCell::default() }
    }

    /// The elements of an operand as the kernel gets them: with their values if it reads them (`read`); rounded to the operand
    /// when the stage is dropped if it writes them (`written`), which are all of them unless it reads them, too.
    ///
    /// # Safety
    /// This is a command that uses the operand, and the kernel's work ends before the stage.
    #[inline(always)]
    pub(crate) unsafe fn hold(&self, operand: &'a Operand, read: bool, written: bool) -> Dst<u8> {
        let Some(halves) = &operand.halves else { return operand.at };
        // SAFETY: the contract is the same.
        unsafe { self.widened(operand.at, halves, read, written) }
    }

    /// # Safety
    /// As for [`hold`](Self::hold).
    unsafe fn widened(&self, stored: Dst<u8>, halves: &'a Halves, read: bool, written: bool) -> Dst<u8> {
        let mut memory = ScratchMemory::new::<f32>(halves.span);
        let at = Dst(memory.as_mut_ptr::<f32>()).cast();
        if read {
            // SAFETY: the caller promises that this command uses the operand, so its elements may be read; the memory
            // has room for `span` elements, and so for all places.
            unsafe { copy((DType::F32, halves.dtype), &halves.places, self.workers, at, stored.src()) };
        }
        self.held.borrow_mut().push(Held { memory, result: written.then_some((halves, stored)) });
        at
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        // The newest first, so that the next command finds the thread's memory in the same order.
        while let Some(Held { mut memory, result }) = self.held.get_mut().pop() {
            // A kernel that failed may have written nothing.
            let has_failed = std::thread::panicking() || failure::is_reported();
            let Some((halves, to)) = result.filter(|_| !has_failed) else { continue };
            // SAFETY: the memory has a value at each place, as scratch is initialised and the kernel wrote its
            // results. The command uses the operand at `to`, and its body has ended.
            unsafe {
                let from = Dst(memory.as_mut_ptr::<f32>()).cast().src();
                copy((halves.dtype, DType::F32), &halves.places, self.workers, to, from);
            }
        }
    }
}
