//! The kernels of CUDA devices: for each family of the CPU's kernels, a program in CUDA C++ and its launchers.
//!
//! The launchers of the crate check their operands and come here if the stream is a CUDA device's. `prelude.cuh` has what
//! all programs share; a kernel is called `<op>_<dtype>`, with its group of threads between the two where there is a choice.
//! Elements of 16 bits are only stored as such: loads widen them to F32 and stores round, so a kernel is written once for all
//! floats and compiled by a program for each type, see [`Family`] and `typed.cuh`, and a result is rounded once. Sums that do not fit a
//! kernel's registers are F32 in shared memory or in a workspace.
//!
//! Programs are compiled with the compiler's defaults: accurate functions (but for the powers of 2 of attention and of softmax in 16
//! bits), and multiply-adds fused where the source does not forbid it; those of functions of elements without, so that a function that
//! is fused with others keeps its bits. Results depend on the operands only, not on the size of the grid or on what runs beside.

use std::sync::OnceLock;

use device::cuda::{Arg, Grid, Program, Queue};
use device::{DType, Result, Stream};

pub(crate) mod attention;
pub(crate) mod batch_norm;
pub(crate) mod chain;
pub(crate) mod clip;
pub(crate) mod conv;
pub(crate) mod copy;
pub(crate) mod elementwise;
pub(crate) mod embedding_bag;
pub(crate) mod formula;
pub(crate) mod image;
pub(crate) mod index;
mod indexed;
pub(crate) mod libraries;
pub(crate) mod loss;
pub(crate) mod matmul;
pub(crate) mod normalize;
pub(crate) mod optim;
pub(crate) mod order;
pub(crate) mod parts;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod rows;
pub(crate) mod sequence;
pub(crate) mod softmax;
pub(crate) mod table;
mod tensors;
pub(crate) mod walk;

/// Names of the element types that programs are compiled for; the first one stands for a type that is not listed. `tf32` is F32
/// whose factors tensor cores may round.
const FLOATS: &[&str] = &["f32", "f64", "bf16", "f16"];
const SIGNED: &[&str] = &["f32", "f64", "bf16", "f16", "i64"];
const NUMBERS: &[&str] = &["f32", "f64", "bf16", "f16", "i64", "u8"];
const HALVES: &[&str] = &["bf16", "f16"];
const SINGLE: &[&str] = &["f32", "tf32"];
const FACTORS: &[&str] = &["f32", "tf32", "bf16", "f16"];
const ROUNDED: &[&str] = &["tf32", "bf16", "f16"];

/// The name of a type in programs and kernels: truth values are bytes, and F32 with `tf32` is one of its own.
pub(super) fn type_name(dtype: DType, tf32: bool) -> &'static str {
    match dtype {
        DType::Bool => "u8",
        DType::F32 if tf32 => "tf32",
        dtype => dtype.name(),
    }
}

/// One source that is compiled for several element types, each when it is first used.
pub(crate) struct Family {
    name: &'static str,
    types: &'static [&'static str],
    /// What follows the prelude, the type's definitions and `typed.cuh`.
    sources: &'static [&'static str],
    /// See [`Program::each_rounded`].
    each_rounded: bool,
    programs: [OnceLock<Program>; NUMBERS.len()],
}

impl Family {
    const fn new(
        name: &'static str,
        types: &'static [&'static str],
        sources: &'static [&'static str],
        each_rounded: bool,
    ) -> Family {
        Family { name, types, sources, each_rounded, programs: [const { OnceLock::new() }; NUMBERS.len()] }
    }

    /// The program for elements of a type.
    fn of(&'static self, dtype: DType) -> &'static Program {
        self.named(type_name(dtype, false))
    }

    /// The program for elements of the type with this [name](type_name).
    fn named(&'static self, element: &str) -> &'static Program {
        let at = self.types.iter().position(|known| *known == element).unwrap_or(0);
        self.programs[at].get_or_init(|| {
            let element = self.types[at];
            let floats = u8::from(!matches!(element, "i64" | "u8"));
            let half = u8::from(matches!(element, "bf16" | "f16"));
            let defined = format!("#define DTYPE {element}\n#define FLOATS {floats}\n#define HALF {half}\n");
            let start = [include_str!("prelude.cuh"), &defined, include_str!("typed.cuh")];
            let source = start.concat() + &self.sources.concat();
            let program = Program::new(format!("{}_{element}", self.name).leak(), source.leak());
            if self.each_rounded { program.each_rounded() } else { program }
        })
    }

    /// Enqueues a kernel, whose name is the words and the type, joined by underscores.
    ///
    /// # Safety
    /// As for [`Queue::kernel`].
    unsafe fn kernel(
        &'static self,
        queue: &Queue<'_>,
        name: &[&str],
        dtype: DType,
        grid: Grid,
        args: &[Arg<'_>],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { queue.kernel(self.of(dtype), &kernel_name(name, type_name(dtype, false)), grid, args) }
    }
}

/// The name of a kernel: words and a type, joined by underscores.
fn kernel_name(words: &[&str], element: &str) -> String {
    let mut name = String::with_capacity(64);
    for word in words {
        name.push_str(word);
        name.push('_');
    }
    name + element
}

/// A [`Family`] of source files and a constant that follows them; with `=> true`, each product and each sum is rounded by itself.
macro_rules! family {
    ($name:expr, $types:ident, $($file:literal),+ $(; $text:expr $(=> $each_rounded:literal)?)?) => {
        $crate::cuda::Family::new(
            $name,
            $crate::cuda::$types,
            &[$(include_str!($file),)+ $($text)?],
            false $($(|| $each_rounded)?)?,
        )
    };
}

/// The name in kernels of elements that are copied as bits, by their bytes.
fn bits_name(size: usize) -> &'static str {
    match size {
        1 => "b8",
        2 => "b16",
        4 => "b32",
        _ => "b64",
    }
}

use family;

/// What a command needs on a CUDA device, such as a workspace; `None` on a CPU.
pub(crate) fn needs<R>(stream: &Stream, needed: impl FnOnce() -> R) -> Option<R> {
    stream.is_cuda().then(needed)
}

/// Compiles, in parallel, and loads the programs that nearly every training step in F32 uses, and creates the handle for
/// matmuls, once a device. Convolutions, attention, optional layers and other dtypes are compiled when they are first used.
/// Without this the first launches compile one program after the other, and wait until the device is idle to load it.
/// Nothing on a CPU.
///
/// # Errors
/// `KernelCompile`, `CudaUnavailable`
/// without a compiler, `StreamHeld`, `Driver`.
pub fn preload(stream: &Stream) -> Result<()> {
    // Those that take longest to compile come first.
    let single = |family: &'static Family| family.of(DType::F32);
    stream.preload(&[
        single(&reduce::PROGRAMS),
        single(&softmax::PROGRAMS),
        single(&normalize::PROGRAMS),
        single(&elementwise::PROGRAMS),
        &copy::COPY,
        single(&embedding_bag::PROGRAMS),
        single(&clip::PROGRAMS),
        single(&index::PROGRAMS),
        single(&random::PROGRAMS),
        single(&matmul::PROGRAMS),
        &index::GATHER,
        single(&parts::PROGRAMS),
        single(&sequence::PROGRAMS),
    ])?;
    libraries::start(stream)
}

#[cfg(test)]
mod tests;
