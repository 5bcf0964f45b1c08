//! The kernels of CUDA devices: for each family of the CPU's kernels, a program in CUDA C++ and its launchers.
//!
//! The launchers of the crate check their operands and come here if the stream is a CUDA device's. `prelude.cuh` has what
//! all programs share; a kernel is called `<op>_<dtype>`, with its team of threads between the two where there is a choice.
//! Programs are compiled with the compiler's defaults: accurate functions, and multiply-adds fused where the source does
//! not forbid it. Results depend on the operands only, not on the size of the grid or on what runs beside.

use device::{Result, Stream};

pub(crate) mod attention;
pub(crate) mod batch_norm;
pub(crate) mod conv;
pub(crate) mod copy;
pub(crate) mod elementwise;
pub(crate) mod embedding_bag;
pub(crate) mod image;
pub(crate) mod index;
pub(crate) mod loss;
pub(crate) mod matmul;
pub(crate) mod normalize;
pub(crate) mod optim;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod rows;
pub(crate) mod sequence;
pub(crate) mod softmax;
pub(crate) mod walk;

/// The kernel of `$op` for elements of a type; truth values are bytes.
macro_rules! by_dtype {
    ($dtype:expr, $op:expr) => {
        match $dtype {
            device::DType::F32 => concat!($op, "_f32"),
            device::DType::F64 => concat!($op, "_f64"),
            device::DType::I64 => concat!($op, "_i64"),
            _ => concat!($op, "_u8"),
        }
    };
}

/// The kernel of `$op` for elements of as many bytes.
macro_rules! by_size {
    ($size:expr, $op:literal) => {
        match $size {
            1 => concat!($op, "_b8"),
            4 => concat!($op, "_b32"),
            _ => concat!($op, "_b64"),
        }
    };
}

/// The program for elements of a type, where a module has one for each.
macro_rules! program_of {
    ($dtype:expr) => {
        match $dtype {
            device::DType::F32 => &F32,
            device::DType::F64 => &F64,
            device::DType::I64 => &I64,
            _ => &U8,
        }
    };
}

use {by_dtype, by_size, program_of};

/// Compiles and loads everything that training in floating point needs, once a device, and makes the stream's handle for
/// products. Left to the first launches, that would hold them up for seconds, and might wait for an idle device. Nothing on
/// a CPU.
///
/// # Errors
/// [`Error::KernelCompile`](device::Error::KernelCompile), [`Error::CudaUnavailable`](device::Error::CudaUnavailable)
/// without a compiler, [`Error::Driver`](device::Error::Driver).
pub fn preload(stream: &Stream) -> Result<()> {
    stream.preload(&[
        &attention::F32,
        &batch_norm::F32,
        &conv::F32,
        &copy::COPY,
        &elementwise::F32,
        &embedding_bag::EMBEDDING_BAG,
        &image::IMAGE,
        &index::INDEX,
        &matmul::MATMUL,
        &normalize::F32,
        &optim::OPTIM,
        &pool::F32,
        &random::RANDOM,
        &reduce::F32,
        &softmax::F32,
    ])
}

#[cfg(test)]
mod tests;
