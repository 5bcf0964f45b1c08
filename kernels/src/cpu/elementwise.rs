//! Elementwise kernels: which function goes through which loop.

use device::{DType, bf16, f16};

use super::for_bits;
use super::half::by_blocks;
use super::number::{Number, Real};
use super::walk::{map1, map2, map3};
use crate::functions::{BinaryOp, CompareOp, Gradient, UnaryOp};
use crate::layout::Dst;
use crate::loops::Places;
use crate::par::Workers;
use crate::{binary_functions, comparisons, unary_functions};

/// A function of elements of any type that it is defined for.
pub(crate) trait Function<const N: usize>: Copy + Sync {
    /// # Safety
    /// As for [`map1`] and its kind. The operands are the output and the inputs.
    unsafe fn on_numbers<T: Number>(self, places: &Places<N>, workers: &Workers, operands: [Dst<T>; N]);

    /// # Safety
    /// As for [`on_numbers`](Self::on_numbers).
    unsafe fn on_reals<T: Real>(self, places: &Places<N>, workers: &Workers, operands: [Dst<T>; N]);
}

/// Runs a function on operands of type `dtype`.
///
/// # Safety
/// As for [`Function`]. The launcher has refused functions that the type lacks.
pub(crate) unsafe fn run<F: Function<N>, const N: usize>(
    function: F,
    dtype: DType,
    places: &Places<N>,
    workers: &Workers,
    operands: [Dst<u8>; N],
) {
    // SAFETY: the elements are those of the places, which the contract covers.
    unsafe {
        match dtype {
            DType::F32 => function.on_reals::<f32>(places, workers, operands.map(Dst::cast)),
            DType::F64 => function.on_reals::<f64>(places, workers, operands.map(Dst::cast)),
            DType::I64 => function.on_numbers::<i64>(places, workers, operands.map(Dst::cast)),
            DType::U8 => function.on_numbers::<u8>(places, workers, operands),
            DType::BF16 | DType::F16 => by_blocks(dtype, places, workers, operands, |places, operands| {
                function.on_reals::<f32>(places, &None, operands);
            }),
            _ => {}
        }
    }
}

/// Makes the bodies of the functions of one element from their table.
macro_rules! unary_bodies {
    (numbers { $($numbers:tt)* } floats { $($floats:tt)* }) => {
        impl Function<2> for UnaryOp {
            unary_bodies!(@function on_numbers Number $($numbers)*);
            unary_bodies!(@function on_reals Real $($numbers)* $($floats)*);
        }
        unary_bodies!(@gradients $($floats)*);
    };
    (@function $function:ident $elements:ident $(
        $(#[$doc:meta])*
        $variant:ident $(($($from:ident $number:ident = $example:literal),+))?, $name:ident,
        $cost:literal, $width:ident, $same:ident, $cpu:expr, $cuda:literal
        $(, $of:ident, $slope:expr, $slope_cuda:literal)?;
    )*) => {
        unsafe fn $function<T: $elements>(self, places: &Places<2>, workers: &Workers, [out, x]: [Dst<T>; 2]) {
            // SAFETY: the elements are those of the places, which the contract covers.
            #[allow(unreachable_patterns)]
            unsafe {
                match self {
                    $(UnaryOp::$variant $(($($number),+))? => {
                        $($(let $number = T::$from($number);)+)?
                        map1::<{ matches!(Vectors::$width, Vectors::Wide) }, _, _>(places, workers, out, x.src(), $cpu);
                    })*
                    _ => {}
                }
            }
        }
    };
    (@gradients $(
        $(#[$doc:meta])*
        $variant:ident $(($($from:ident $number:ident = $example:literal),+))?, $name:ident,
        $cost:literal, $width:ident, $same:ident, $cpu:expr, $cuda:literal
        $(, $of:ident, $slope:expr, $slope_cuda:literal)?;
    )*) => {
        impl Function<3> for Gradient {
            unsafe fn on_numbers<T: Number>(self, _: &Places<3>, _: &Workers, _: [Dst<T>; 3]) {}

            unsafe fn on_reals<T: Real>(self, places: &Places<3>, workers: &Workers, [out, saved, g]: [Dst<T>; 3]) {
                let (op, operands) = (self.0, (saved.src(), g.src()));
                $(gradient!(
                    (op, places, workers, out, operands), (UnaryOp::$variant $(($($number),+))?)
                    [$($($from $number),+)?] $width $($slope)?
                );)*
            }
        }
    };
}

/// One row of the gradients, if it has a derivative.
macro_rules! gradient {
    ($call:tt, $variant:tt $numbers:tt $width:ident) => {};
    (
        ($op:ident, $places:ident, $workers:ident, $out:ident, $operands:ident),
        ($($variant:tt)*) [$($from:ident $number:ident),*] $width:ident $slope:expr
    ) => {
        if let $($variant)* = $op {
            $(let $number = T::$from($number);)*
            // SAFETY: the elements are those of the places, which the contract covers.
            unsafe {
                map2::<{ matches!(Vectors::$width, Vectors::Wide) }, _, _, _>($places, $workers, $out, $operands, $slope);
            }
        }
    };
}

/// The vectors that a function gains from, by the words of the table.
enum Vectors {
    Narrow,
    Wide,
}

unary_functions!(unary_bodies);

/// Makes the bodies of the functions of two elements from their table.
macro_rules! binary_bodies {
    ($($(#[$doc:meta])* $variant:ident, $name:ident, $cost:literal, $cpu:expr, $cuda:literal;)*) => {
        impl Function<3> for BinaryOp {
            unsafe fn on_numbers<T: Number>(self, places: &Places<3>, workers: &Workers, [out, x, y]: [Dst<T>; 3]) {
                let xy = (x.src(), y.src());
                // SAFETY: the elements are those of the places, which the contract covers.
                unsafe {
                    match self { $(BinaryOp::$variant => map2::<false, _, _, _>(places, workers, out, xy, $cpu),)* }
                }
            }

            unsafe fn on_reals<T: Real>(self, places: &Places<3>, workers: &Workers, operands: [Dst<T>; 3]) {
                // SAFETY: the contract is the same.
                unsafe { self.on_numbers(places, workers, operands) }
            }
        }
    };
}

binary_functions!(binary_bodies);

/// # Safety
/// As for [`map2`], with an output of truth values and inputs of type `dtype`. Truth values are compared as bytes.
pub(crate) unsafe fn compare(
    op: CompareOp,
    dtype: DType,
    places: &Places<3>,
    workers: &Workers,
    operands: [Dst<u8>; 3],
) {
    // SAFETY: the contract is the same.
    unsafe {
        match dtype {
            DType::F32 => compare_as::<f32>(op, places, workers, operands),
            DType::F64 => compare_as::<f64>(op, places, workers, operands),
            DType::I64 => compare_as::<i64>(op, places, workers, operands),
            DType::U8 | DType::Bool => compare_as::<u8>(op, places, workers, operands),
            DType::BF16 => compare_as::<bf16>(op, places, workers, operands),
            DType::F16 => compare_as::<f16>(op, places, workers, operands),
            _ => {}
        }
    }
}

/// Makes the bodies of the comparisons from their table.
macro_rules! compare_bodies {
    ($($(#[$doc:meta])* $variant:ident, $name:ident, |$x:ident, $y:ident| $cpu:expr, $cuda:literal;)*) => {
        /// # Safety
        /// As for [`map2`], with inputs of type `T`.
        unsafe fn compare_as<T: Copy + PartialOrd>(
            op: CompareOp,
            places: &Places<3>,
            workers: &Workers,
            [out, x, y]: [Dst<u8>; 3],
        ) {
            let xy = (x.src().cast::<T>(), y.src().cast::<T>());
            // SAFETY: the elements are those of the places, which the contract covers.
            unsafe {
                match op {
                    $(CompareOp::$variant => {
                        map2::<false, _, _, _>(places, workers, out, xy, |$x: T, $y: T| u8::from($cpu));
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
/// As for [`map1`].
pub(crate) unsafe fn logical_not(places: &Places<2>, workers: &Workers, [out, x]: [Dst<u8>; 2]) {
    // SAFETY: the contract is the same.
    unsafe { map1::<false, _, _>(places, workers, out, x.src(), |x: u8| u8::from(x == 0)) }
}

/// `out = if condition { x } else { y }`, on elements of `size` bytes.
///
/// # Safety
/// As for [`map3`].
pub(crate) unsafe fn where_cond(
    size: usize,
    places: &Places<4>,
    workers: &Workers,
    [out, condition, x, y]: [Dst<u8>; 4],
) {
    // SAFETY: the contract is the same.
    unsafe {
        for_bits!(size, B => {
            let inputs = (condition.src(), x.src().cast::<B>(), y.src().cast::<B>());
            map3(places, workers, out.cast(), inputs, |condition, x, y| if condition != 0 { x } else { y });
        });
    }
}
