//! Elementwise functions.

use device::cuda::{Arg, Program};
use device::{DType, Result, Stream, Use};
use smallvec::SmallVec;

use super::walk::{ByValue, Walk, address, for_parts, number_bits};
use super::{by_dtype, number_programs};
use crate::cpu::walk::flat_steps;
use crate::elementwise::{BinaryOp, CompareOp, UnaryOp};
use crate::layout::{LoopAxis, Loops, View};

number_programs!("elementwise", "elementwise.cu");

/// A kernel over operands of one shape, of which the first is the output.
pub(super) struct Map<'a> {
    pub(super) op: &'static str,
    pub(super) program: &'static Program,
    pub(super) kernel: &'static str,
    /// Elements of a vector.
    pub(super) lanes: usize,
    /// Numbers that follow the walk.
    pub(super) numbers: &'a [u64],
}

impl Map<'_> {
    /// Launches the kernel on `(output, inputs ..)`, which the launcher has checked.
    pub(super) fn launch<const N: usize>(&self, stream: &Stream, operands: [View<'_>; N]) -> Result<()> {
        let elements = operands[0].layout.elements();
        if elements == 0 {
            return Ok(());
        }
        let layouts = operands.map(|view| view.layout);
        let loops = match flat_steps(layouts) {
            Some(strides) => Loops::from_axes([LoopAxis { size: elements, strides }]),
            None => Loops::in_memory_order(layouts),
        };
        let uses: [Use<'_>; N] = std::array::from_fn(|k| {
            let buffer = operands[k].buffer;
            if k == 0 { Use::write(buffer) } else { Use::read(buffer) }
        });
        stream.submit(self.op, &uses, |queue| {
            for_parts(&loops, &mut |part, at| {
                let addresses: [(*const u8, usize); N] = std::array::from_fn(|k| {
                    let size = operands[k].dtype.size_bytes();
                    (address(&operands[k]).wrapping_offset(at[k] * size as isize).cast_const(), size)
                });
                let walk = Walk::of(self.op, part)?.vectors(self.lanes, addresses);
                let mut args: SmallVec<[Arg<'_>; 8]> =
                    addresses.iter().map(|&(ptr, _)| Arg::Ptr(ptr)).collect();
                args.push(walk.arg());
                args.extend(self.numbers.iter().map(|&number| Arg::U64(number)));
                // SAFETY: kernels of this kind take the operands, the walk and the numbers; the walk stays within the
                // operands, whose layouts were checked, and the uses name their buffers.
                unsafe { queue.kernel(self.program, self.kernel, walk.grid(queue, self.lanes), &args) }
            })
        })
    }
}

pub(crate) fn unary(stream: &Stream, op: UnaryOp, x: View<'_>, out: View<'_>) -> Result<()> {
    let dtype = out.dtype;
    let (kernel, numbers) = unary_kernel(op, dtype);
    let program = program_of(dtype);
    let lanes = 16 / dtype.size_bytes();
    Map { op: op.name(), program, kernel, lanes, numbers: &numbers }.launch(stream, [out, x])
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
    stream: &Stream,
    op: BinaryOp,
    lhs: View<'_>,
    rhs: View<'_>,
    out: View<'_>,
) -> Result<()> {
    let dtype = out.dtype;
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
    let program = program_of(dtype);
    let lanes = 16 / dtype.size_bytes();
    Map { op: op.name(), program, kernel, lanes, numbers: &[] }.launch(stream, [out, lhs, rhs])
}

pub(crate) fn compare(
    stream: &Stream,
    op: CompareOp,
    lhs: View<'_>,
    rhs: View<'_>,
    out: View<'_>,
) -> Result<()> {
    // Truth values are compared as bytes.
    let dtype = lhs.dtype;
    let kernel = match op {
        CompareOp::Eq => by_dtype!(dtype, "eq"),
        CompareOp::Ne => by_dtype!(dtype, "ne"),
        CompareOp::Lt => by_dtype!(dtype, "lt"),
        CompareOp::Le => by_dtype!(dtype, "le"),
        CompareOp::Gt => by_dtype!(dtype, "gt"),
        CompareOp::Ge => by_dtype!(dtype, "ge"),
    };
    let program = program_of(dtype);
    let lanes = 16 / dtype.size_bytes();
    Map { op: op.name(), program, kernel, lanes, numbers: &[] }.launch(stream, [out, lhs, rhs])
}
