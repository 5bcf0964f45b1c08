//! Launchers of elementwise functions.

use device::cuda::Queue;
use device::{DType, Result};
use smallvec::SmallVec;

use super::walk::{Map, number_bits};
use super::{Family, bits_name, copy, family, kernel_name, type_name};
use crate::command::Address;
use crate::functions::{Function, UnaryOp};
use crate::loops::{LoopAxis, Loops, Places};
use crate::{binary_functions, binary_gradients, comparisons, unary_functions};

/// Kernels of unary functions and their gradients, as macros of the program.
macro_rules! unary_source {
    (numbers { $($numbers:tt)* } floats { $($floats:tt)* }) => {
        concat!(
            unary_source!(@rows $($numbers)*),
            "#if FLOATS\n",
            unary_source!(@rows $($floats)*),
            "#endif\n"
        )
    };
    (@rows $(
        $(#[$doc:meta])*
        $variant:ident $(($($from:ident $number:ident = $example:literal),+))?, $name:ident,
        $cost:literal, $width:ident, $same:ident, $cpu:expr, $cuda:literal
        $(, $of:ident, |$saved:ident, $g:ident| $slope:expr, $slope_cuda:literal)?;
    )*) => {
        concat!($(
            "UNARY(", stringify!($name), ", ", $cuda, ")\n",
            $(
                "#if FLOATS\nUNARY_GRAD(", stringify!($name), ", ", stringify!($saved), ", ", $slope_cuda,
                ")\n#endif\n",
            )?
        )*)
    };
}

macro_rules! binary_source {
    (numbers { $($numbers:tt)* } floats { $($floats:tt)* }) => {
        concat!(
            binary_source!(@rows $($numbers)*),
            "#if FLOATS\n",
            binary_source!(@rows $($floats)*),
            "#endif\n"
        )
    };
    (@rows $($(#[$doc:meta])* $variant:ident, $name:ident, $cost:literal, $cpu:expr, $cuda:literal;)*) => {
        concat!($("BINARY(", stringify!($name), ", ", $cuda, ")\n",)*)
    };
}

macro_rules! binary_grad_source {
    ($($(#[$doc:meta])* $variant:ident, $name:ident, $cost:literal, $cpu:expr, $cuda:literal;)*) => {
        concat!("#if FLOATS\n", $("BINARY_GRAD(", stringify!($name), ", ", $cuda, ")\n",)* "#endif\n")
    };
}

macro_rules! compare_source {
    ($($(#[$doc:meta])* $variant:ident, $name:ident, $cpu:expr, $cuda:literal;)*) => {
        concat!($("COMPARE(", stringify!($name), ", ", $cuda, ")\n",)*)
    };
}

/// A macro line for each function.
pub(super) const FUNCTIONS: &str = concat!(
    unary_functions!(unary_source),
    binary_functions!(binary_source),
    binary_gradients!(binary_grad_source),
    comparisons!(compare_source)
);

pub(super) static PROGRAMS: Family =
    family!("elementwise", NUMBERS, "elementwise.cuh", "elementwise.cu"; FUNCTIONS => true);

/// Enqueues a function; the first operand is the output.
pub(crate) fn run<const N: usize>(
    queue: &Queue<'_>,
    function: Function,
    places: &Places<N>,
    operands: [Address; N],
) -> Result<()> {
    let arguments = function.arguments();
    let types = |k: usize| if k == 0 { function.result() } else { arguments[k - 1] };
    let sizes: [usize; N] = std::array::from_fn(|k| types(k).size_bytes());
    if let (Function::Copy { to, from }, &[out, x]) = (function, &operands[..])
        && to == from
    {
        let axis =
            |axis: &LoopAxis<N>| LoopAxis { size: axis.size, strides: [axis.strides[0], axis.strides[1]] };
        let loops = Loops::from_axes(places.loops().axes.iter().map(axis));
        // SAFETY: `places` was made from the layouts of the operands, which the command writes and reads.
        return unsafe { copy::enqueue_copy(queue, sizes[0], &loops, [out, x]) };
    }
    let (program, kernel) = match function {
        Function::Copy { to, from } => copy::cast_kernel(to, from),
        Function::Not => (&copy::COPY, kernel_name(&["logical_not"], "bool")),
        Function::Where(_) => (&copy::COPY, kernel_name(&["where_cond"], bits_name(sizes[0]))),
        _ => {
            let dtype = arguments[0];
            (PROGRAMS.of(dtype), kernel_name(&[function.name()], type_name(dtype, false)))
        }
    };
    let map = Map { program, kernel: &kernel, sizes, numbers: &numbers(function) };
    map.enqueue(queue, &places.loops(), operands)
}

/// Enqueues `out = max(out, 0)` in place.
pub(crate) fn relu(queue: &Queue<'_>, dtype: DType, out: Address, elements: usize) -> Result<()> {
    let places = Places::Run { elements, steps: [1; 2] };
    run(queue, Function::Unary(UnaryOp::Relu, dtype), &places, [out; 2])
}

/// Scalars of a function, as bits.
pub(super) fn numbers(function: Function) -> SmallVec<[u64; 2]> {
    match function {
        Function::Unary(op, dtype) | Function::Gradient(op, dtype) => unary_numbers(op, dtype).into(),
        _ => SmallVec::new(),
    }
}

/// Generates, from the table of ops, the function that lists the scalars of a unary op and its gradient.
macro_rules! unary_numbers {
    (numbers { $($numbers:tt)* } floats { $($floats:tt)* }) => {
        unary_numbers!(@rows $($numbers)* $($floats)*);
    };
    (@rows $(
        $(#[$doc:meta])*
        $variant:ident $(($($from:ident $number:ident = $example:literal),+))?, $name:ident,
        $cost:literal, $width:ident, $same:ident, $cpu:expr, $cuda:literal
        $(, $of:ident, $slope:expr, $slope_cuda:literal)?;
    )*) => {
        fn unary_numbers(op: UnaryOp, dtype: DType) -> [u64; 2] {
            let mut numbers = [0; 2];
            match op {
                $(UnaryOp::$variant $(($($number),+))? => {
                    $(
                        let given = [$(&$from(dtype, $number)[..]),+].concat();
                        numbers[..given.len()].copy_from_slice(&given);
                    )?
                })*
            }
            numbers
        }
    };
}

unary_functions!(unary_numbers);

/// As `Number::from_f64` of the CPU.
fn from_f64(dtype: DType, value: f64) -> [u64; 1] {
    [number_bits(dtype, value)]
}

/// As `Real::in_parts` of the CPU.
fn in_parts(dtype: DType, value: f64) -> [u64; 2] {
    let rest = if dtype == DType::F64 { 0.0 } else { value - f64::from(value as f32) };
    [number_bits(dtype, value), number_bits(dtype, if rest.is_finite() { rest } else { 0.0 })]
}

/// As `Number::wrap_f64` of the CPU: scalars were checked to be integers.
fn wrap_f64(dtype: DType, value: f64) -> [u64; 1] {
    match dtype {
        DType::U8 => [u64::from(value as i64 as u8)],
        _ => [number_bits(dtype, value)],
    }
}

#[cfg(test)]
mod tests;
