//! Elementwise kernels: which function goes through which loop.

use device::{DType, bf16, f16};

use super::activations::Activations;
use super::copy::copy;
use super::half::by_blocks;
use super::number::{Number, Real};
use super::walk::{map, map_two};
use super::{for_bits, inlined};
use crate::functions::{BinaryGradOp, BinaryOp, CompareOp, Function, UnaryOp};
use crate::layout::{Dst, Src};
use crate::loops::Places;
use crate::par::Workers;
use crate::{binary_functions, binary_gradients, comparisons, unary_functions};

/// Elementwise functions of `N` operands, the first of which is the result.
pub(crate) trait Elements<const N: usize> {
    /// Runs the function.
    ///
    /// # Safety
    /// As for [`map`], with elements of the function's types. The launcher has refused functions that a type lacks.
    unsafe fn run(self, places: &Places<N>, workers: &Workers, operands: [Dst<u8>; N]);
}

macro_rules! elements {
    ($($count:literal: |$places:ident, $workers:ident, $operands:ident| { $($function:pat => $body:expr,)+ })+) => {$(
        impl Elements<$count> for Function {
            unsafe fn run(self, $places: &Places<$count>, $workers: &Workers, $operands: [Dst<u8>; $count]) {
                // SAFETY: the contract is the same.
                unsafe {
                    match self {
                        $($function => $body,)+
                        // One of other operands.
                        _ => {}
                    }
                }
            }
        }
    )+};
}

elements! {
    2: |places, workers, operands| {
        Function::Unary(op, dtype) => run(op, dtype, places, workers, &operands),
        Function::Not => logical_not(places, workers, operands),
        Function::Copy { to, from } => copy((to, from), places, workers, operands[0], operands[1].src()),
    }
    3: |places, workers, operands| {
        Function::Gradient(op, dtype) => run(Gradient(op), dtype, places, workers, &operands),
        Function::Binary(op, dtype) => run(op, dtype, places, workers, &operands),
        Function::Compare(op, dtype) => compare(op, dtype, places, workers, operands),
    }
    4: |places, workers, operands| {
        Function::BinaryGradient(op, dtype) => run(op, dtype, places, workers, &operands),
        Function::Where(dtype) => where_cond(dtype.size_bytes(), places, workers, operands),
    }
}

/// The gradient of a function of one element: of what the function saves and of its result's gradient.
#[derive(Clone, Copy)]
struct Gradient(UnaryOp);

/// A function of elements as a body for each type; of its operands the first is the result.
///
/// # Safety
/// As for [`map`], with elements of type `T`.
trait Body<const N: usize>: Copy + Sync {
    /// For integers, if it is a function of these.
    unsafe fn of_numbers<T: Number>(self, _: &Places<N>, _: &Workers, _: &[Dst<u8>; N]) {}

    unsafe fn of_floats<T: Real>(self, places: &Places<N>, workers: &Workers, operands: &[Dst<u8>; N]);
}

/// Runs a function on elements of type `dtype`.
///
/// # Safety
/// As for [`map`], with elements of type `dtype`. The launcher has refused functions that the type lacks.
unsafe fn run<const N: usize>(
    body: impl Body<N>,
    dtype: DType,
    places: &Places<N>,
    workers: &Workers,
    operands: &[Dst<u8>; N],
) {
    // SAFETY: the caller keeps the contract of `map` for elements of type `dtype`, which the arms cast to.
    unsafe {
        match dtype {
            DType::F32 => body.of_floats::<f32>(places, workers, operands),
            DType::F64 => body.of_floats::<f64>(places, workers, operands),
            DType::I64 => body.of_numbers::<i64>(places, workers, operands),
            DType::U8 => body.of_numbers::<u8>(places, workers, operands),
            DType::BF16 | DType::F16 => by_blocks(dtype, places, workers, *operands, |places, operands| {
                body.of_floats::<f32>(places, &None, &operands.map(Dst::cast));
            }),
            _ => {}
        }
    }
}

/// The vectors that a function gains from, by the words of the table.
enum Vectors {
    Narrow,
    Wide,
}

/// Functions of one, two and three elements as functions of arrays.
#[inline(always)]
fn of_one<T, O>(f: impl Fn(T) -> O) -> impl Fn([T; 1]) -> O {
    inlined!(move |[x]: [T; 1]| f(x))
}

#[inline(always)]
fn of_two<T, O>(f: impl Fn(T, T) -> O) -> impl Fn([T; 2]) -> O {
    inlined!(move |[x, y]: [T; 2]| f(x, y))
}

#[inline(always)]
fn of_three<T, O>(f: impl Fn(T, T, T) -> O) -> impl Fn([T; 3]) -> O {
    inlined!(move |[x, y, z]: [T; 3]| f(x, y, z))
}

/// Makes the bodies of the functions of one element, and of their gradients, from their table.
macro_rules! unary_bodies {
    (numbers { $($numbers:tt)* } floats { $($floats:tt)* }) => {
        impl Body<2> for UnaryOp {
            unary_bodies!(@function of_numbers Number $($numbers)*);
            unary_bodies!(@function of_floats Real $($numbers)* $($floats)*);
        }

        impl Body<3> for Gradient {
            unary_bodies!(@gradients $($numbers)* $($floats)*);
        }
    };
    (@function $function:ident $elements:ident $(
        $(#[$doc:meta])*
        $variant:ident $(($($from:ident $number:ident = $example:literal),+))?, $name:ident,
        $cost:literal, $width:ident, $same:ident, $cpu:expr, $cuda:literal
        $(, $of:ident, $slope:expr, $slope_cuda:literal)?;
    )*) => {
        unsafe fn $function<T: $elements>(
            self,
            places: &Places<2>,
            workers: &Workers,
            operands: &[Dst<u8>; 2],
        ) {
            let (out, x) = (operands[0].cast(), operands[1].cast().src());
            #[allow(unreachable_patterns)]
            match self {
                $(UnaryOp::$variant $(($($number),+))? => {
                    $($(let $number = T::$from($number);)+)?
                    const WIDE: bool = matches!(Vectors::$width, Vectors::Wide);
                    // SAFETY: the contract is the same.
                    unsafe { map::<WIDE, _, _, _, _>(places, workers, out, [x], of_one::<T, _>($cpu)) };
                })*
                _ => {}
            }
        }
    };
    (@gradients $(
        $(#[$doc:meta])*
        $variant:ident $(($($from:ident $number:ident = $example:literal),+))?, $name:ident,
        $cost:literal, $width:ident, $same:ident, $cpu:expr, $cuda:literal
        $(, $of:ident, $slope:expr, $slope_cuda:literal)?;
    )*) => {
        unsafe fn of_floats<T: Real>(
            self,
            places: &Places<3>,
            workers: &Workers,
            operands: &[Dst<u8>; 3],
        ) {
            let (out, inputs) = (operands[0].cast(), [operands[1].cast().src(), operands[2].cast().src()]);
            $(gradient!(
                (self, places, workers, out, inputs), $variant $(($($from $number),+))? $width $($slope)?
            );)*
        }
    };
}

/// One row of the gradients, if it has a derivative.
macro_rules! gradient {
    ($call:tt, $variant:ident $(($($numbers:tt)+))? $width:ident) => {};
    (
        ($gradient:ident, $places:ident, $workers:ident, $out:ident, $inputs:ident),
        $variant:ident $(($($from:ident $number:ident),+))? $width:ident $slope:expr
    ) => {
        if let UnaryOp::$variant $(($($number),+))? = $gradient.0 {
            $($(let $number = T::$from($number);)+)?
            const WIDE: bool = matches!(Vectors::$width, Vectors::Wide);
            // SAFETY: the contract is the same.
            unsafe { map::<WIDE, _, _, _, _>($places, $workers, $out, $inputs, of_two::<T, _>($slope)) };
        }
    };
}

unary_functions!(unary_bodies);

/// Makes the bodies of the functions of two elements from their table.
macro_rules! binary_bodies {
    (numbers { $($numbers:tt)* } floats { $($floats:tt)* }) => {
        impl Body<3> for BinaryOp {
            binary_bodies!(@function of_numbers Number $($numbers)*);
            binary_bodies!(@function of_floats Real $($numbers)* $($floats)*);
        }
    };
    (@function $function:ident $elements:ident $(
        $(#[$doc:meta])* $variant:ident, $name:ident, $cost:literal, $cpu:expr, $cuda:literal;
    )*) => {
        unsafe fn $function<T: $elements>(
            self,
            places: &Places<3>,
            workers: &Workers,
            operands: &[Dst<u8>; 3],
        ) {
            let (out, inputs) = (operands[0].cast(), [operands[1].cast().src(), operands[2].cast().src()]);
            // SAFETY: the contract is the same.
            unsafe {
                #[allow(unreachable_patterns)]
                match self {
                    $(BinaryOp::$variant => {
                        map::<false, _, _, _, _>(places, workers, out, inputs, of_two::<T, _>($cpu));
                    })*
                    _ => {}
                }
            }
        }
    };
}

binary_functions!(binary_bodies);

/// Defines the bodies of the gradients of binary functions from their table.
macro_rules! binary_grad_bodies {
    ($($(#[$doc:meta])* $variant:ident, $name:ident, $cost:literal, $cpu:expr, $cuda:literal;)*) => {
        impl Body<4> for BinaryGradOp {
            unsafe fn of_floats<T: Real>(
                self,
                places: &Places<4>,
                workers: &Workers,
                operands: &[Dst<u8>; 4],
            ) {
                let (out, [x, y, g]) = (operands[0].cast(), [operands[1], operands[2], operands[3]]);
                let inputs = [x.cast().src(), y.cast().src(), g.cast().src()];
                // SAFETY: the contract is the same.
                unsafe {
                    match self {
                        $(BinaryGradOp::$variant => {
                            map::<false, _, _, _, _>(places, workers, out, inputs, of_three::<T, _>($cpu));
                        })*
                    }
                }
            }
        }
    };
}

binary_gradients!(binary_grad_bodies);

/// Compares elements of type `dtype`; truth values as bytes.
///
/// # Safety
/// As for [`map`], with inputs of type `dtype`.
unsafe fn compare(
    op: CompareOp,
    dtype: DType,
    places: &Places<3>,
    workers: &Workers,
    [out, x, y]: [Dst<u8>; 3],
) {
    let inputs = [x.src(), y.src()];
    // SAFETY: the caller keeps the contract of `map` for inputs of type `dtype`, which the arms cast to; the output
    // has bytes.
    unsafe {
        match dtype {
            DType::F32 => compare_typed::<f32>(op, places, workers, out, inputs.map(Src::cast)),
            DType::F64 => compare_typed::<f64>(op, places, workers, out, inputs.map(Src::cast)),
            DType::I64 => compare_typed::<i64>(op, places, workers, out, inputs.map(Src::cast)),
            DType::U8 | DType::Bool => compare_typed::<u8>(op, places, workers, out, inputs),
            DType::BF16 => compare_typed::<bf16>(op, places, workers, out, inputs.map(Src::cast)),
            DType::F16 => compare_typed::<f16>(op, places, workers, out, inputs.map(Src::cast)),
            _ => {}
        }
    }
}

/// Makes the bodies of the comparisons from their table.
macro_rules! compare_bodies {
    ($($(#[$doc:meta])* $variant:ident, $name:ident, |$x:ident, $y:ident| $cpu:expr, $cuda:literal;)*) => {
        /// # Safety
        /// As for [`map`].
        unsafe fn compare_typed<T: Copy + PartialOrd>(
            op: CompareOp,
            places: &Places<3>,
            workers: &Workers,
            out: Dst<u8>,
            inputs: [Src<T>; 2],
        ) {
            // SAFETY: the caller keeps the contract of `map` for inputs of type `T` and an output of bytes.
            unsafe {
                match op {
                    $(CompareOp::$variant => {
                        map::<false, _, _, _, _>(places, workers, out, inputs, |[$x, $y]| u8::from($cpu));
                    })*
                }
            }
        }
    };
}

comparisons!(compare_bodies);

/// `out = not x`, on truth values stored as bytes.
///
/// # Safety
/// As for [`map`].
unsafe fn logical_not(places: &Places<2>, workers: &Workers, [out, x]: [Dst<u8>; 2]) {
    // SAFETY: the caller keeps the contract of `map`, and bools are stored as bytes.
    unsafe { map::<false, _, _, _, _>(places, workers, out, [x.src()], |[x]: [u8; 1]| u8::from(x == 0)) }
}

/// `out = if condition { x } else { y }`, on elements of `size` bytes.
///
/// # Safety
/// As for [`map`].
unsafe fn where_cond(
    size: usize,
    places: &Places<4>,
    workers: &Workers,
    [out, condition, x, y]: [Dst<u8>; 4],
) {
    // SAFETY: the caller keeps the contract of `map` for elements of `size` bytes, of which only the bits matter, and a
    // condition of bytes.
    unsafe {
        for_bits!(size, B => {
            let inputs = [x, y].map(|input| input.cast::<B>().src());
            let choose = inlined!(|[condition]: [u8; 1], [x, y]: [B; 2]| if condition != 0 { x } else { y });
            map_two::<false, _, _, _, _, _, _>(places, workers, out.cast(), [condition.src()], inputs, choose);
        });
    }
}
