//! Elementwise kernels: which function goes through which loop.

use device::{DType, bf16, f16};

use super::half::by_blocks;
use super::number::{Number, Real};
use super::walk::{map1, map2, map3};
use crate::elementwise::{BinaryOp, CompareOp, UnaryOp};
use crate::layout::{Dst, Src};
use crate::loops::Places;
use crate::par::Workers;

/// # Safety
/// As for [`map1`], with elements of type `dtype`. The launcher has refused ops that the type lacks.
pub(crate) unsafe fn unary(
    op: UnaryOp,
    dtype: DType,
    walk: &Places<2>,
    workers: &Workers,
    out: Dst<u8>,
    x: Src<u8>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F32 => unary_real::<f32>(op, walk, workers, out.cast(), x.cast()),
            DType::F64 => unary_real::<f64>(op, walk, workers, out.cast(), x.cast()),
            DType::I64 => unary_number::<i64>(op, walk, workers, out.cast(), x.cast()),
            DType::U8 => unary_number::<u8>(op, walk, workers, out.cast(), x.cast()),
            DType::BF16 | DType::F16 => {
                by_blocks(dtype, walk, workers, [out, Dst(x.0.cast_mut())], |walk, [out, x]| {
                    unary_real::<f32>(op, walk, &None, out, x.src());
                });
            }
            _ => {}
        }
    }
}

/// # Safety
/// As for [`map1`].
unsafe fn unary_real<T: Real>(op: UnaryOp, walk: &Places<2>, workers: &Workers, out: Dst<T>, x: Src<T>) {
    // SAFETY: the caller's promise.
    unsafe {
        match op {
            UnaryOp::Exp => map1::<true, _, _>(walk, workers, out, x, T::exp),
            UnaryOp::Log => map1::<true, _, _>(walk, workers, out, x, T::log),
            UnaryOp::Sqrt => map1::<false, _, _>(walk, workers, out, x, T::sqrt),
            UnaryOp::Rsqrt => map1::<false, _, _>(walk, workers, out, x, T::rsqrt),
            UnaryOp::Recip => map1::<false, _, _>(walk, workers, out, x, T::recip),
            UnaryOp::Sin => map1::<false, _, _>(walk, workers, out, x, T::sin),
            UnaryOp::Cos => map1::<false, _, _>(walk, workers, out, x, T::cos),
            UnaryOp::Tanh => map1::<true, _, _>(walk, workers, out, x, T::tanh),
            UnaryOp::Sigmoid => map1::<true, _, _>(walk, workers, out, x, T::sigmoid),
            UnaryOp::Erf => map1::<true, _, _>(walk, workers, out, x, T::erf),
            UnaryOp::Relu => map1::<false, _, _>(walk, workers, out, x, T::relu),
            UnaryOp::Silu => map1::<true, _, _>(walk, workers, out, x, T::silu),
            UnaryOp::GeluErf => map1::<true, _, _>(walk, workers, out, x, T::gelu_erf),
            UnaryOp::GeluTanh => map1::<true, _, _>(walk, workers, out, x, T::gelu_tanh),
            UnaryOp::PowScalar(exponent) => pow_scalar(exponent, walk, workers, out, x),
            _ => unary_number(op, walk, workers, out, x),
        }
    }
}

/// # Safety
/// As for [`map1`].
unsafe fn pow_scalar<T: Real>(exponent: f64, walk: &Places<2>, workers: &Workers, out: Dst<T>, x: Src<T>) {
    // SAFETY: the caller's promise.
    unsafe {
        // The powers that models use take no power function.
        if exponent == 2.0 {
            unary_number(UnaryOp::Square, walk, workers, out, x);
        } else if exponent == 3.0 {
            map1::<false, _, _>(walk, workers, out, x, |x: T| x.mul(x).mul(x));
        } else if exponent == 0.5 {
            unary_real(UnaryOp::Sqrt, walk, workers, out, x);
        } else if exponent == -0.5 {
            unary_real(UnaryOp::Rsqrt, walk, workers, out, x);
        } else if exponent == -1.0 {
            unary_real(UnaryOp::Recip, walk, workers, out, x);
        } else {
            let exponent = T::from_f64(exponent);
            map1::<false, _, _>(walk, workers, out, x, |x: T| x.pow(exponent));
        }
    }
}

/// # Safety
/// As for [`map1`].
unsafe fn unary_number<T: Number>(op: UnaryOp, walk: &Places<2>, workers: &Workers, out: Dst<T>, x: Src<T>) {
    // SAFETY: the caller's promise.
    unsafe {
        match op {
            UnaryOp::Neg => map1::<false, _, _>(walk, workers, out, x, T::neg),
            UnaryOp::Abs => map1::<false, _, _>(walk, workers, out, x, T::abs),
            UnaryOp::Sign => map1::<false, _, _>(walk, workers, out, x, T::sign),
            UnaryOp::Square => map1::<false, _, _>(walk, workers, out, x, |x: T| x.mul(x)),
            UnaryOp::AddScalar(value) => {
                let value = T::wrap_f64(value);
                map1::<false, _, _>(walk, workers, out, x, |x: T| x.add(value));
            }
            UnaryOp::MulScalar(value) => {
                let value = T::wrap_f64(value);
                map1::<false, _, _>(walk, workers, out, x, |x: T| x.mul(value));
            }
            UnaryOp::Clamp { min, max } => {
                let (low, high) = (T::from_f64(min), T::from_f64(max));
                map1::<false, _, _>(walk, workers, out, x, |x: T| x.clamp(low, high));
            }
            _ => {}
        }
    }
}

/// # Safety
/// As for [`map2`], with elements of type `dtype`. The launcher has refused ops that the type lacks.
pub(crate) unsafe fn binary(
    op: BinaryOp,
    dtype: DType,
    walk: &Places<3>,
    workers: &Workers,
    out: Dst<u8>,
    (x, y): (Src<u8>, Src<u8>),
) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F32 => binary_real::<f32>(op, walk, workers, out.cast(), (x.cast(), y.cast())),
            DType::F64 => binary_real::<f64>(op, walk, workers, out.cast(), (x.cast(), y.cast())),
            DType::I64 => binary_number::<i64>(op, walk, workers, out.cast(), (x.cast(), y.cast())),
            DType::U8 => binary_number::<u8>(op, walk, workers, out.cast(), (x.cast(), y.cast())),
            DType::BF16 | DType::F16 => {
                let operands = [out, Dst(x.0.cast_mut()), Dst(y.0.cast_mut())];
                by_blocks(dtype, walk, workers, operands, |walk, [out, x, y]| {
                    binary_real::<f32>(op, walk, &None, out, (x.src(), y.src()));
                });
            }
            _ => {}
        }
    }
}

/// # Safety
/// As for [`map2`].
unsafe fn binary_real<T: Real>(
    op: BinaryOp,
    walk: &Places<3>,
    workers: &Workers,
    out: Dst<T>,
    xy: (Src<T>, Src<T>),
) {
    // SAFETY: the caller's promise.
    unsafe {
        match op {
            BinaryOp::ReluGrad => map2::<false, _, _, _>(walk, workers, out, xy, T::relu_grad),
            BinaryOp::TanhGrad => map2::<false, _, _, _>(walk, workers, out, xy, T::tanh_grad),
            BinaryOp::SigmoidGrad => map2::<false, _, _, _>(walk, workers, out, xy, T::sigmoid_grad),
            BinaryOp::GeluErfGrad => map2::<true, _, _, _>(walk, workers, out, xy, T::gelu_erf_grad),
            BinaryOp::GeluTanhGrad => map2::<true, _, _, _>(walk, workers, out, xy, T::gelu_tanh_grad),
            BinaryOp::SiluGrad => map2::<true, _, _, _>(walk, workers, out, xy, T::silu_grad),
            _ => binary_number(op, walk, workers, out, xy),
        }
    }
}

/// # Safety
/// As for [`map2`].
unsafe fn binary_number<T: Number>(
    op: BinaryOp,
    walk: &Places<3>,
    workers: &Workers,
    out: Dst<T>,
    xy: (Src<T>, Src<T>),
) {
    // SAFETY: the caller's promise.
    unsafe {
        match op {
            BinaryOp::Add => map2::<false, _, _, _>(walk, workers, out, xy, T::add),
            BinaryOp::Sub => map2::<false, _, _, _>(walk, workers, out, xy, T::sub),
            BinaryOp::Mul => map2::<false, _, _, _>(walk, workers, out, xy, T::mul),
            BinaryOp::Div => map2::<false, _, _, _>(walk, workers, out, xy, T::div),
            BinaryOp::Pow => map2::<false, _, _, _>(walk, workers, out, xy, T::pow),
            BinaryOp::Maximum => map2::<false, _, _, _>(walk, workers, out, xy, T::maximum),
            BinaryOp::Minimum => map2::<false, _, _, _>(walk, workers, out, xy, T::minimum),
            _ => {}
        }
    }
}

/// # Safety
/// As for [`map2`], with inputs of type `dtype`. Truth values are compared as bytes.
pub(crate) unsafe fn compare(
    op: CompareOp,
    dtype: DType,
    walk: &Places<3>,
    workers: &Workers,
    out: Dst<u8>,
    (x, y): (Src<u8>, Src<u8>),
) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F32 => compare_typed::<f32>(op, walk, workers, out, (x.cast(), y.cast())),
            DType::F64 => compare_typed::<f64>(op, walk, workers, out, (x.cast(), y.cast())),
            DType::I64 => compare_typed::<i64>(op, walk, workers, out, (x.cast(), y.cast())),
            DType::U8 | DType::Bool => compare_typed::<u8>(op, walk, workers, out, (x, y)),
            DType::BF16 => compare_typed::<bf16>(op, walk, workers, out, (x.cast(), y.cast())),
            DType::F16 => compare_typed::<f16>(op, walk, workers, out, (x.cast(), y.cast())),
            _ => {}
        }
    }
}

/// # Safety
/// As for [`map2`].
unsafe fn compare_typed<T: Copy + PartialOrd>(
    op: CompareOp,
    walk: &Places<3>,
    workers: &Workers,
    out: Dst<u8>,
    xy: (Src<T>, Src<T>),
) {
    // SAFETY: the caller's promise.
    unsafe {
        match op {
            CompareOp::Eq => map2::<false, _, _, _>(walk, workers, out, xy, |x: T, y: T| u8::from(x == y)),
            CompareOp::Ne => map2::<false, _, _, _>(walk, workers, out, xy, |x: T, y: T| u8::from(x != y)),
            CompareOp::Lt => map2::<false, _, _, _>(walk, workers, out, xy, |x: T, y: T| u8::from(x < y)),
            CompareOp::Le => map2::<false, _, _, _>(walk, workers, out, xy, |x: T, y: T| u8::from(x <= y)),
            CompareOp::Gt => map2::<false, _, _, _>(walk, workers, out, xy, |x: T, y: T| u8::from(x > y)),
            CompareOp::Ge => map2::<false, _, _, _>(walk, workers, out, xy, |x: T, y: T| u8::from(x >= y)),
        }
    }
}

/// `out = not x`, on truth values stored as bytes.
///
/// # Safety
/// As for [`map1`].
pub(crate) unsafe fn logical_not(walk: &Places<2>, workers: &Workers, out: Dst<u8>, x: Src<u8>) {
    // SAFETY: the caller's promise.
    unsafe { map1::<false, _, _>(walk, workers, out, x, |x: u8| u8::from(x == 0)) }
}

/// `out = if condition { x } else { y }`, on elements of `size` bytes.
///
/// # Safety
/// As for [`map3`].
pub(crate) unsafe fn where_cond(
    size: usize,
    walk: &Places<4>,
    workers: &Workers,
    out: Dst<u8>,
    (condition, x, y): (Src<u8>, Src<u8>, Src<u8>),
) {
    #[inline(always)]
    fn choose<T>(condition: u8, x: T, y: T) -> T {
        if condition != 0 { x } else { y }
    }
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => map3(walk, workers, out, (condition, x, y), choose::<u8>),
            2 => map3(walk, workers, out.cast(), (condition, x.cast(), y.cast()), choose::<u16>),
            4 => map3(walk, workers, out.cast(), (condition, x.cast(), y.cast()), choose::<u32>),
            _ => map3(walk, workers, out.cast(), (condition, x.cast(), y.cast()), choose::<u64>),
        }
    }
}
