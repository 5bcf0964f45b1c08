//! Kernels from outside of this crate: a body for a CPU on slices, and one in CUDA C.

use device::cuda::{Arg, Grid, Program, Queue};
use device::{DType, Element, Error, Result, Stream};
use smallvec::SmallVec;

use crate::command::{Address, Command, Raw};
use crate::layout::{Dst, Src, View};

/// A kernel of one's own, which reads `R` operands and writes `W` others, all of one type and contiguous.
///
/// It is a value that may run more than once: what changes from call to call is in its fields. The device orders it like any
/// other command, by what it reads and writes.
pub trait CustomKernel<const R: usize, const W: usize>: Send + Sync + 'static {
    /// The elements of all operands: F32, F64, BF16, F16, I64 or U8.
    type Element: Element;

    /// The op's name in errors and profiles.
    fn name(&self) -> &'static str;

    /// Does the work on a CPU, on one thread. The outputs begin as zeros. A panic is `Async` at the next synchronising
    /// call.
    fn cpu(&self, inputs: [&[Self::Element]; R], outputs: [&mut [Self::Element]; W]);

    /// What does the work on CUDA, for operands of so many elements; `None` where the kernel has no such body. The outputs
    /// begin as zeros.
    fn cuda(&self, inputs: [usize; R], outputs: [usize; W]) -> Option<KernelLaunch>;
}

/// A kernel of a program in CUDA C, and how it is launched.
#[derive(Clone, Debug)]
pub struct KernelLaunch {
    program: &'static Program,
    kernel: &'static str,
    grid: Grid,
    numbers: SmallVec<[Arg<'static>; 4]>,
}

impl KernelLaunch {
    /// Launches `kernel`, which is `extern "C" __global__` and takes the outputs' addresses, the inputs' and then `numbers`.
    ///
    /// ```compile_fail,E0133
    /// use kernels::{Grid, KernelLaunch, Program};
    /// static PROGRAM: Program = Program::new("any", "");
    /// let launch = KernelLaunch::new(&PROGRAM, "any", Grid::linear(1, 1), &[]);
    /// ```
    ///
    /// # Safety
    /// The kernel takes exactly these arguments, ends, and touches nothing but the elements of its operands, of which it only
    /// reads the inputs.
    pub unsafe fn new(
        program: &'static Program,
        kernel: &'static str,
        grid: Grid,
        numbers: &[Arg<'static>],
    ) -> KernelLaunch {
        KernelLaunch { program, kernel, grid, numbers: SmallVec::from_slice(numbers) }
    }
}

/// Launches a kernel of one's own.
///
/// # Errors
/// `DTypeMismatch` for operands of another type, `DTypeUnsupported` for truth values;
/// `InvalidArgument` for operands that are not contiguous, an output that shares memory with another operand, or a
/// kernel without a body for the device; `KernelCompile`; the errors of [`Stream::launch`].
pub fn custom<K: CustomKernel<R, W>, const R: usize, const W: usize>(
    stream: &Stream,
    kernel: K,
    inputs: [View<'_>; R],
    outputs: [View<'_>; W],
) -> Result<()> {
    let (op, dtype) = (kernel.name(), K::Element::DTYPE);
    if dtype == DType::Bool {
        return Err(Error::dtype_unsupported(op, dtype, "numbers"));
    }
    for view in inputs.iter().chain(&outputs) {
        view.expect_dtype(op, dtype)?;
        view.expect_contiguous(op, "operands")?;
    }
    let sizes = (inputs.map(|view| view.layout.elements()), outputs.map(|view| view.layout.elements()));
    Command::new(op, (inputs.map(View::read::<Raw>), outputs.map(View::write::<Raw>))).may_fail().run(
        stream,
        (kernel, sizes),
        |(kernel, sizes), _, (inputs, outputs)| {
            // SAFETY: the operands are contiguous with these sizes and of a type for which any bits are a value. The
            // command's uses keep everyone else off its outputs, which were checked to overlap no other operand.
            let (inputs, outputs) = unsafe { (inputs_of(inputs, sizes.0), zeroed(outputs, sizes.1)) };
            kernel.cpu(inputs, outputs);
        },
        |(kernel, (reads, writes)), queue, (inputs, outputs)| {
            let launch = kernel.cuda(*reads, *writes).ok_or_else(|| no_body(queue.op()))?;
            // SAFETY: the outputs are contiguous with these sizes. The caller of `KernelLaunch::new` vouched for the
            // kernel.
            unsafe { launch.enqueue::<K::Element, R, W>(queue, inputs, outputs, *writes) }
        },
    )
}

/// # Safety
/// So many elements lie at each address, and nobody writes them while the slices live.
unsafe fn inputs_of<'a, T: Element, const R: usize>(at: [Src<u8>; R], sizes: [usize; R]) -> [&'a [T]; R] {
    std::array::from_fn(|k| {
        // SAFETY: the caller promises `sizes[k]` elements at the address, which nobody writes while the slice lives.
        // An operand without elements may have any address, so it is not used.
        if sizes[k] == 0 { &[] } else { unsafe { at[k].cast::<T>().slice(0, sizes[k]) } }
    })
}

/// # Safety
/// There is room for so many elements at each address, apart from all else, and nobody uses it while the slices live.
unsafe fn zeroed<'a, T: Element, const W: usize>(at: [Dst<u8>; W], sizes: [usize; W]) -> [&'a mut [T]; W] {
    std::array::from_fn(|k| {
        if sizes[k] == 0 {
            return &mut [][..];
        }
        let first = at[k].cast::<T>().0;
        // SAFETY: the caller promises room for `sizes[k]` elements that nobody else uses, and zero bytes are a value
        // of them.
        unsafe {
            std::ptr::write_bytes(first, 0, sizes[k]);
            Dst(first).slice_mut(0, sizes[k])
        }
    })
}

impl KernelLaunch {
    /// # Safety
    /// Outputs of these sizes, of elements `T`, lie at the addresses, and the inputs at theirs.
    unsafe fn enqueue<T: Element, const R: usize, const W: usize>(
        &self,
        queue: &Queue<'_>,
        inputs: [Address; R],
        outputs: [Address; W],
        sizes: [usize; W],
    ) -> Result<()> {
        let mut args: SmallVec<[Arg<'_>; 12]> = outputs.iter().chain(&inputs).map(|&at| at.into()).collect();
        args.extend_from_slice(&self.numbers);
        // SAFETY: the caller promises outputs of `size` elements of `T`. The caller of `KernelLaunch::new` vouched
        // for the kernel and its arguments.
        unsafe {
            for (out, size) in outputs.iter().zip(sizes) {
                queue.fill_bytes(out.0, 0, size * size_of::<T>())?;
            }
            queue.kernel(self.program, self.kernel, self.grid, &args)
        }
    }
}

#[cold]
fn no_body(op: &'static str) -> Error {
    Error::invalid(op, "device", "a CPU device, as the kernel has no body for CUDA", "cuda")
}
