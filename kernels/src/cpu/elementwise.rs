//! Elementwise kernels: which function goes through which loop.

use device::{DType, bf16, f16};

use super::activations::Activations;
use super::for_bits;
use super::half::by_blocks;
use super::number::{Number, Real};
use super::walk::{map1, map2, map3};
use crate::functions::{BinaryGradOp, BinaryOp, CompareOp, UnaryOp};
use crate::layout::{Dst, Src};
use crate::loops::Places;
use crate::par::Workers;
use crate::{binary_functions, binary_gradients, comparisons, unary_functions};

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
    // SAFETY: the caller keeps the contract of `map1` for elements of type `dtype`, which the arms cast to.
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

/// Makes the bodies of the functions of one element from their table.
macro_rules! unary_bodies {
    (numbers { $($numbers:tt)* } floats { $($floats:tt)* }) => {
        unary_bodies!(@functions unary_number Number $($numbers)*);
        unary_bodies!(@functions unary_real Real $($numbers)* $($floats)*);
        unary_bodies!(@gradients $($numbers)* $($floats)*);
    };
    (@functions $function:ident $elements:ident $(
        $(#[$doc:meta])*
        $variant:ident $(($($from:ident $number:ident = $example:literal),+))?, $name:ident,
        $cost:literal, $width:ident, $same:ident, $cpu:expr, $cuda:literal
        $(, $of:ident, $slope:expr, $slope_cuda:literal)?;
    )*) => {
        /// # Safety
        /// As for [`map1`].
        unsafe fn $function<T: $elements>(
            op: UnaryOp,
            places: &Places<2>,
            workers: &Workers,
            out: Dst<T>,
            x: Src<T>,
        ) {
            // SAFETY: the caller keeps the contract of `map1` for elements of type `T`.
            #[allow(unreachable_patterns)]
            unsafe {
                match op {
                    $(UnaryOp::$variant $(($($number),+))? => {
                        $($(let $number = T::$from($number);)+)?
                        map1::<{ matches!(Vectors::$width, Vectors::Wide) }, _, _>(places, workers, out, x, $cpu);
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
        /// # Safety
        /// As for [`map2`].
        unsafe fn unary_grad_real<T: Real>(
            op: UnaryOp,
            places: &Places<3>,
            workers: &Workers,
            out: Dst<T>,
            saved_and_g: (Src<T>, Src<T>),
        ) {
            $(gradient!(
                (op, places, workers, out, saved_and_g), $variant ($($($from $number),+)?) $width $($slope)?
            );)*
        }
    };
}

/// One row of the gradients, if it has a derivative.
macro_rules! gradient {
    ($call:tt, $variant:ident ($($from:ident $number:ident),*) $width:ident) => {};
    (
        ($op:ident, $places:ident, $workers:ident, $out:ident, $operands:ident),
        $variant:ident () $width:ident $slope:expr
    ) => {
        if $op == UnaryOp::$variant {
            // SAFETY: the caller of `unary_grad_real` keeps the contract of `map2` for elements of type `T`.
            unsafe {
                map2::<{ matches!(Vectors::$width, Vectors::Wide) }, _, _, _>($places, $workers, $out, $operands, $slope);
            }
        }
    };
    (
        ($op:ident, $places:ident, $workers:ident, $out:ident, $operands:ident),
        $variant:ident ($($from:ident $number:ident),+) $width:ident $slope:expr
    ) => {
        if let UnaryOp::$variant($($number),+) = $op {
            $(let $number = T::$from($number);)+
            // SAFETY: the caller of `unary_grad_real` keeps the contract of `map2` for elements of type `T`.
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

/// # Safety
/// As for [`map2`], with floats of type `dtype`.
pub(crate) unsafe fn unary_grad(
    op: UnaryOp,
    dtype: DType,
    places: &Places<3>,
    workers: &Workers,
    out: Dst<u8>,
    (saved, g): (Src<u8>, Src<u8>),
) {
    // SAFETY: the caller keeps the contract of `map2` for floats of type `dtype`, which the arms cast to.
    unsafe {
        match dtype {
            DType::F32 => unary_grad_real::<f32>(op, places, workers, out.cast(), (saved.cast(), g.cast())),
            DType::F64 => unary_grad_real::<f64>(op, places, workers, out.cast(), (saved.cast(), g.cast())),
            _ => {
                let operands = [out, Dst(saved.0.cast_mut()), Dst(g.0.cast_mut())];
                by_blocks(dtype, places, workers, operands, |places, [out, saved, g]| {
                    unary_grad_real::<f32>(op, places, &None, out, (saved.src(), g.src()));
                });
            }
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
    // SAFETY: the caller keeps the contract of `map2` for elements of type `dtype`, which the arms cast to.
    unsafe {
        match dtype {
            DType::F32 => binary_number::<f32>(op, walk, workers, out.cast(), (x.cast(), y.cast())),
            DType::F64 => binary_number::<f64>(op, walk, workers, out.cast(), (x.cast(), y.cast())),
            DType::I64 => binary_number::<i64>(op, walk, workers, out.cast(), (x.cast(), y.cast())),
            DType::U8 => binary_number::<u8>(op, walk, workers, out.cast(), (x.cast(), y.cast())),
            DType::BF16 | DType::F16 => {
                let operands = [out, Dst(x.0.cast_mut()), Dst(y.0.cast_mut())];
                by_blocks(dtype, walk, workers, operands, |walk, [out, x, y]| {
                    binary_number::<f32>(op, walk, &None, out, (x.src(), y.src()));
                });
            }
            _ => {}
        }
    }
}

/// Makes the bodies of the functions of two elements from their table.
macro_rules! binary_bodies {
    ($($(#[$doc:meta])* $variant:ident, $name:ident, $cost:literal, $cpu:expr, $cuda:literal;)*) => {
        /// # Safety
        /// As for [`map2`].
        unsafe fn binary_number<T: Number>(
            op: BinaryOp,
            places: &Places<3>,
            workers: &Workers,
            out: Dst<T>,
            xy: (Src<T>, Src<T>),
        ) {
            // SAFETY: the caller keeps the contract of `map2` for elements of type `T`.
            unsafe {
                match op { $(BinaryOp::$variant => map2::<false, _, _, _>(places, workers, out, xy, $cpu),)* }
            }
        }
    };
}

binary_functions!(binary_bodies);

/// # Safety
/// As for [`map3`], with floats of type `dtype`.
pub(crate) unsafe fn binary_grad(
    op: BinaryGradOp,
    dtype: DType,
    places: &Places<4>,
    workers: &Workers,
    out: Dst<u8>,
    (x, y, g): (Src<u8>, Src<u8>, Src<u8>),
) {
    // SAFETY: the caller keeps the contract of `map3` for floats of type `dtype`, which the arms cast to.
    unsafe {
        match dtype {
            DType::F32 => {
                binary_grad_real::<f32>(op, places, workers, out.cast(), (x.cast(), y.cast(), g.cast()));
            }
            DType::F64 => {
                binary_grad_real::<f64>(op, places, workers, out.cast(), (x.cast(), y.cast(), g.cast()));
            }
            _ => {
                let operands = [out, Dst(x.0.cast_mut()), Dst(y.0.cast_mut()), Dst(g.0.cast_mut())];
                by_blocks(dtype, places, workers, operands, |places, [out, x, y, g]| {
                    binary_grad_real::<f32>(op, places, &None, out, (x.src(), y.src(), g.src()));
                });
            }
        }
    }
}

/// Defines the bodies of the gradients of binary functions from their table.
macro_rules! binary_grad_bodies {
    ($($(#[$doc:meta])* $variant:ident, $name:ident, $cost:literal, $cpu:expr, $cuda:literal;)*) => {
        /// # Safety
        /// As for [`map3`].
        unsafe fn binary_grad_real<T: Real>(
            op: BinaryGradOp,
            places: &Places<4>,
            workers: &Workers,
            out: Dst<T>,
            inputs: (Src<T>, Src<T>, Src<T>),
        ) {
            // SAFETY: the caller keeps the contract of `map3` for elements of type `T`.
            unsafe {
                match op { $(BinaryGradOp::$variant => map3(places, workers, out, inputs, $cpu),)* }
            }
        }
    };
}

binary_gradients!(binary_grad_bodies);

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
    // SAFETY: the caller keeps the contract of `map2` for inputs of type `dtype`, which the arms cast to; the output
    // has bytes.
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

/// Makes the bodies of the comparisons from their table.
macro_rules! compare_bodies {
    ($($(#[$doc:meta])* $variant:ident, $name:ident, |$x:ident, $y:ident| $cpu:expr, $cuda:literal;)*) => {
        /// # Safety
        /// As for [`map2`].
        unsafe fn compare_typed<T: Copy + PartialOrd>(
            op: CompareOp,
            places: &Places<3>,
            workers: &Workers,
            out: Dst<u8>,
            xy: (Src<T>, Src<T>),
        ) {
            // SAFETY: the caller keeps the contract of `map2` for inputs of type `T` and an output of bytes.
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
pub(crate) unsafe fn logical_not(walk: &Places<2>, workers: &Workers, out: Dst<u8>, x: Src<u8>) {
    // SAFETY: the caller keeps the contract of `map1`, and bools are stored as bytes.
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
    // SAFETY: the caller keeps the contract of `map3` for elements of `size` bytes, of which only the bits matter,
    // and a condition of bytes.
    unsafe {
        for_bits!(size, B => {
            let inputs = (condition, x.cast::<B>(), y.cast::<B>());
            map3(walk, workers, out.cast(), inputs, |condition, x, y| if condition != 0 { x } else { y });
        });
    }
}
