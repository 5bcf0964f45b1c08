//! The kernels of CUDA devices: for each family of the CPU's kernels, a program in CUDA C++ and its launchers.
//!
//! The launchers of the crate check their operands and come here if the stream is a CUDA device's. `prelude.cuh` has what
//! all programs share; a kernel is called `<op>_<dtype>`, with its group of threads between the two where there is a choice.
//! Elements of 16 bits are only stored as such: loads widen them to F32 and stores round, so a kernel is written once for all
//! floats and compiled by a program for each type, see `typed.cuh`, and a result is rounded once. Sums that do not fit a
//! kernel's registers are F32 in shared memory or in a workspace.
//!
//! Programs are compiled with the compiler's defaults: accurate functions (but for the powers of 2 of attention and of softmax in 16
//! bits), and multiply-adds fused where the source does not forbid it; those of functions of elements without, so that a function that
//! is fused with others keeps its bits. Results depend on the operands only, not on the size of the grid or on what runs beside.

use device::{Result, Stream};

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
pub(crate) mod libraries;
pub(crate) mod loss;
pub(crate) mod many_norms;
pub(crate) mod many_sums;
pub(crate) mod matmul;
pub(crate) mod normalize;
pub(crate) mod optim;
pub(crate) mod parts;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod rows;
pub(crate) mod sequence;
pub(crate) mod softmax;
pub(crate) mod sums;
pub(crate) mod table;
mod tensors;
pub(crate) mod walk;

/// The program of a family for elements of a type: the prelude, the type as `DTYPE`, whether it is floating point and
/// whether it has 16 bits, `typed.cuh`, the family's own files, text that follows them, and how it is compiled.
macro_rules! program {
    (
        $family:literal, $dtype:literal, $floats:literal, $half:literal, $($part:literal),+
        $(; $($text:expr),+ $(=> $compiled:ident)?)?
    ) => {
        device::cuda::Program::new(
            concat!($family, "_", $dtype),
            concat!(
                include_str!("prelude.cuh"),
                "#define DTYPE ", $dtype, "\n#define FLOATS ", $floats, "\n#define HALF ", $half, "\n",
                include_str!("typed.cuh"),
                $(include_str!($part),)+
                $($($text),+)?
            ),
        )$($(.$compiled())?)?
    };
}

/// The programs of a family for the types of floating point, and `program_of`, which chooses. A program is compiled when it
/// is first used: who computes in F32 waits for no other.
macro_rules! float_programs {
    ($family:literal, $($parts:tt)+) => {
        pub(in crate::cuda) static F32: device::cuda::Program = $crate::cuda::program!($family, "f32", 1, 0, $($parts)+);
        static F64: device::cuda::Program = $crate::cuda::program!($family, "f64", 1, 0, $($parts)+);
        static BF16: device::cuda::Program = $crate::cuda::program!($family, "bf16", 1, 1, $($parts)+);
        static F16: device::cuda::Program = $crate::cuda::program!($family, "f16", 1, 1, $($parts)+);

        pub(in crate::cuda) fn program_of(dtype: device::DType) -> &'static device::cuda::Program {
            match dtype {
                device::DType::F64 => &F64,
                device::DType::BF16 => &BF16,
                device::DType::F16 => &F16,
                _ => &F32,
            }
        }
    };
}

/// The programs of a family whose products tensor cores make, by the type of factors and whether those of F32 may be rounded.
macro_rules! factor_programs {
    ($family:literal, $($parts:tt)+) => {
        pub(in crate::cuda) static F32: device::cuda::Program = $crate::cuda::program!($family, "f32", 1, 0, $($parts)+);
        static TF32: device::cuda::Program = $crate::cuda::program!($family, "tf32", 1, 0, $($parts)+);
        static BF16: device::cuda::Program = $crate::cuda::program!($family, "bf16", 1, 1, $($parts)+);
        static F16: device::cuda::Program = $crate::cuda::program!($family, "f16", 1, 1, $($parts)+);

        pub(in crate::cuda) fn program_of((dtype, tf32): (device::DType, bool)) -> &'static device::cuda::Program {
            match (dtype, tf32) {
                (device::DType::BF16, _) => &BF16,
                (device::DType::F16, _) => &F16,
                (_, true) => &TF32,
                (_, false) => &F32,
            }
        }
    };
}

/// As `float_programs`, and for the integers; truth values are bytes.
macro_rules! number_programs {
    ($family:literal, $($parts:tt)+) => {
        mod floats {
            $crate::cuda::float_programs!($family, $($parts)+);
        }
        pub(in crate::cuda) use floats::F32;
        static I64: device::cuda::Program = $crate::cuda::program!($family, "i64", 0, 0, $($parts)+);
        static U8: device::cuda::Program = $crate::cuda::program!($family, "u8", 0, 0, $($parts)+);

        fn program_of(dtype: device::DType) -> &'static device::cuda::Program {
            match dtype {
                device::DType::I64 => &I64,
                device::DType::U8 | device::DType::Bool => &U8,
                float => floats::program_of(float),
            }
        }
    };
}

/// The kernel of `$op` for elements of a type; truth values are bytes.
macro_rules! by_dtype {
    ($dtype:expr, $op:expr) => {
        match $dtype {
            device::DType::F32 => concat!($op, "_f32"),
            device::DType::F64 => concat!($op, "_f64"),
            device::DType::BF16 => concat!($op, "_bf16"),
            device::DType::F16 => concat!($op, "_f16"),
            device::DType::I64 => concat!($op, "_i64"),
            _ => concat!($op, "_u8"),
        }
    };
}

/// The kernel of `$op` for factors of products by tensor cores: their type, and whether those of F32 may be rounded.
macro_rules! by_factor {
    ($element:expr, $op:literal) => {
        match $element {
            (device::DType::BF16, _) => concat!($op, "_bf16"),
            (device::DType::F16, _) => concat!($op, "_f16"),
            (_, true) => concat!($op, "_tf32"),
            (_, false) => concat!($op, "_f32"),
        }
    };
}

/// The kernel of `$op` for elements of as many bytes.
macro_rules! by_size {
    ($size:expr, $op:literal) => {
        match $size {
            1 => concat!($op, "_b8"),
            2 => concat!($op, "_b16"),
            4 => concat!($op, "_b32"),
            _ => concat!($op, "_b64"),
        }
    };
}

use {by_dtype, by_factor, by_size, factor_programs, float_programs, number_programs, program};

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
    stream.preload(&[
        &reduce::F32,
        &softmax::F32,
        &normalize::F32,
        &elementwise::F32,
        &copy::COPY,
        &embedding_bag::F32,
        &clip::F32,
        &many_sums::F32,
        &index::F32,
        &random::F32,
        &matmul::F32,
        &index::GATHER,
        &parts::F32,
        &sequence::F32,
    ])?;
    libraries::start(stream)
}

#[cfg(test)]
mod tests;
