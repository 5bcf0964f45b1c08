//! Elementwise functions.

use device::cuda::{Arg, Program, Queue};
use device::{DType, Result};
use smallvec::SmallVec;

use super::walk::{ByValue, Walk, for_parts, number_bits};
use super::{by_dtype, number_programs};
use crate::command::Address;
use crate::elementwise::{BinaryOp, CompareOp, UnaryOp};
use crate::loops::{Loops, Places};

number_programs!("elementwise", "elementwise.cu");

/// A kernel over operands of one shape, of which the first is the output.
pub(super) struct Map<'a, const N: usize> {
    pub(super) program: &'static Program,
    pub(super) kernel: &'static str,
    /// Elements of a vector.
    pub(super) lanes: usize,
    /// Bytes of an element of each operand.
    pub(super) sizes: [usize; N],
    /// Numbers that follow the walk.
    pub(super) numbers: &'a [u64],
}

impl<const N: usize> Map<'_, N> {
    /// Enqueues the kernel on `(output, inputs ..)` that lie at `places`.
    pub(super) fn enqueue(
        &self,
        queue: &Queue<'_>,
        places: &Places<N>,
        operands: [Address; N],
    ) -> Result<()> {
        self.enqueue_loops(queue, &places.loops(), operands)
    }

    /// As [`enqueue`](Self::enqueue), for loops.
    pub(super) fn enqueue_loops(
        &self,
        queue: &Queue<'_>,
        loops: &Loops<N>,
        operands: [Address; N],
    ) -> Result<()> {
        for_parts(loops, &mut |part, at| {
            let addresses: [Address; N] = std::array::from_fn(|k| operands[k].offset(at[k], self.sizes[k]));
            let sized = std::array::from_fn(|k| (addresses[k].0.cast_const(), self.sizes[k]));
            let walk = Walk::of(queue.op(), part)?.vectors(self.lanes, sized);
            let mut args: SmallVec<[Arg<'_>; 8]> = addresses.iter().map(|&at| at.into()).collect();
            args.push(walk.arg());
            args.extend(self.numbers.iter().map(|&number| Arg::U64(number)));
            // SAFETY: kernels of this kind take the operands, the walk and the numbers; the walk is that of the operands.
            unsafe { queue.kernel(self.program, self.kernel, walk.grid(queue, self.lanes), &args) }
        })
    }
}

/// The kernel of a function of elements of a type.
fn map<'a, const N: usize>(
    dtype: DType,
    kernel: &'static str,
    sizes: [usize; N],
    numbers: &'a [u64],
) -> Map<'a, N> {
    Map { program: program_of(dtype), kernel, lanes: 16 / dtype.size_bytes(), sizes, numbers }
}

pub(crate) fn unary(
    queue: &Queue<'_>,
    op: UnaryOp,
    dtype: DType,
    places: &Places<2>,
    operands: [Address; 2],
) -> Result<()> {
    let (kernel, numbers) = unary_kernel(op, dtype);
    map(dtype, kernel, [dtype.size_bytes(); 2], &numbers).enqueue(queue, places, operands)
}

/// The kernel's name, and the numbers that it takes.
fn unary_kernel(op: UnaryOp, dtype: DType) -> (&'static str, [u64; 2]) {
    // Integers wrap around, and scalars have been checked to be integers.
    let wrapped = |value: f64| match dtype {
        DType::U8 => u64::from(value as i64 as u8),
        _ => number_bits(dtype, value),
    };
    let name = match op {
        UnaryOp::Neg => by_dtype!(dtype, "neg"),
        UnaryOp::Abs => by_dtype!(dtype, "abs"),
        UnaryOp::Sign => by_dtype!(dtype, "sign"),
        UnaryOp::Square => by_dtype!(dtype, "square"),
        UnaryOp::AddScalar(value) => return (by_dtype!(dtype, "add_scalar"), [wrapped(value), 0]),
        UnaryOp::MulScalar(value) => return (by_dtype!(dtype, "mul_scalar"), [wrapped(value), 0]),
        UnaryOp::Clamp { min, max } => {
            return (by_dtype!(dtype, "clamp"), [number_bits(dtype, min), number_bits(dtype, max)]);
        }
        UnaryOp::Exp => by_dtype!(dtype, "exp"),
        UnaryOp::Log => by_dtype!(dtype, "log"),
        UnaryOp::Sqrt => by_dtype!(dtype, "sqrt"),
        UnaryOp::Rsqrt => by_dtype!(dtype, "rsqrt"),
        UnaryOp::Recip => by_dtype!(dtype, "reciprocal"),
        UnaryOp::Sin => by_dtype!(dtype, "sin"),
        UnaryOp::Cos => by_dtype!(dtype, "cos"),
        UnaryOp::Tanh => by_dtype!(dtype, "tanh"),
        UnaryOp::Sigmoid => by_dtype!(dtype, "sigmoid"),
        UnaryOp::Erf => by_dtype!(dtype, "erf"),
        UnaryOp::Relu => by_dtype!(dtype, "relu"),
        UnaryOp::Silu => by_dtype!(dtype, "silu"),
        UnaryOp::GeluErf => by_dtype!(dtype, "gelu"),
        UnaryOp::GeluTanh => by_dtype!(dtype, "gelu_tanh"),
        // The powers that models use take no power function, as on the CPU.
        UnaryOp::PowScalar(2.0) => by_dtype!(dtype, "square"),
        UnaryOp::PowScalar(3.0) => by_dtype!(dtype, "cube"),
        UnaryOp::PowScalar(0.5) => by_dtype!(dtype, "sqrt"),
        UnaryOp::PowScalar(-0.5) => by_dtype!(dtype, "rsqrt"),
        UnaryOp::PowScalar(-1.0) => by_dtype!(dtype, "reciprocal"),
        UnaryOp::PowScalar(exponent) => {
            return (by_dtype!(dtype, "pow_scalar"), [number_bits(dtype, exponent), 0]);
        }
    };
    (name, [0; 2])
}

pub(crate) fn binary(
    queue: &Queue<'_>,
    op: BinaryOp,
    dtype: DType,
    places: &Places<3>,
    operands: [Address; 3],
) -> Result<()> {
    let kernel = match op {
        BinaryOp::Add => by_dtype!(dtype, "add"),
        BinaryOp::Sub => by_dtype!(dtype, "sub"),
        BinaryOp::Mul => by_dtype!(dtype, "mul"),
        BinaryOp::Div => by_dtype!(dtype, "div"),
        BinaryOp::Pow => by_dtype!(dtype, "pow"),
        BinaryOp::Maximum => by_dtype!(dtype, "maximum"),
        BinaryOp::Minimum => by_dtype!(dtype, "minimum"),
        BinaryOp::ReluGrad => by_dtype!(dtype, "relu_grad"),
        BinaryOp::TanhGrad => by_dtype!(dtype, "tanh_grad"),
        BinaryOp::SigmoidGrad => by_dtype!(dtype, "sigmoid_grad"),
        BinaryOp::GeluErfGrad => by_dtype!(dtype, "gelu_grad"),
        BinaryOp::GeluTanhGrad => by_dtype!(dtype, "gelu_tanh_grad"),
        BinaryOp::SiluGrad => by_dtype!(dtype, "silu_grad"),
    };
    map(dtype, kernel, [dtype.size_bytes(); 3], &[]).enqueue(queue, places, operands)
}

/// Truth values are compared as bytes.
pub(crate) fn compare(
    queue: &Queue<'_>,
    op: CompareOp,
    dtype: DType,
    places: &Places<3>,
    operands: [Address; 3],
) -> Result<()> {
    let kernel = match op {
        CompareOp::Eq => by_dtype!(dtype, "eq"),
        CompareOp::Ne => by_dtype!(dtype, "ne"),
        CompareOp::Lt => by_dtype!(dtype, "lt"),
        CompareOp::Le => by_dtype!(dtype, "le"),
        CompareOp::Gt => by_dtype!(dtype, "gt"),
        CompareOp::Ge => by_dtype!(dtype, "ge"),
    };
    let size = dtype.size_bytes();
    map(dtype, kernel, [1, size, size], &[]).enqueue(queue, places, operands)
}
