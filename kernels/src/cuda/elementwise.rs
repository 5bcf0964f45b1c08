//! Elementwise functions.

use device::cuda::{Arg, Program, Queue};
use device::{DType, Result};
use smallvec::SmallVec;

use super::walk::{ByValue, Walk, for_parts, number_bits};
use super::{Family, bits_name, copy, family, kernel_name, type_name};
use crate::command::Address;
use crate::functions::{Function, UnaryOp};
use crate::loops::{Loops, Places};
use crate::{binary_functions, binary_gradients, comparisons, unary_functions};

/// The kernels of the functions of one element, and of their gradients, as macros of the program.
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
    ($($(#[$doc:meta])* $variant:ident, $name:ident, $cost:literal, $cpu:expr, $cuda:literal;)*) => {
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

/// A line for each function.
pub(super) const FUNCTIONS: &str = concat!(
    unary_functions!(unary_source),
    binary_functions!(binary_source),
    binary_gradients!(binary_grad_source),
    comparisons!(compare_source)
);

pub(super) static PROGRAMS: Family =
    family!("elementwise", NUMBERS, "elementwise.cuh", "elementwise.cu"; FUNCTIONS => true);

/// A kernel over operands of one shape, of which the first is the output. It goes in vectors of 16 bytes of the largest elements.
pub(super) struct Map<'a, const N: usize> {
    pub(super) program: &'static Program,
    pub(super) kernel: &'a str,
    /// Bytes of an element of each operand.
    pub(super) sizes: [usize; N],
    /// What the kernel takes behind the walk, as bits.
    pub(super) numbers: &'a [u64],
}

impl<const N: usize> Map<'_, N> {
    pub(super) fn enqueue(&self, queue: &Queue<'_>, loops: &Loops<N>, operands: [Address; N]) -> Result<()> {
        let lanes = 16 / self.sizes.into_iter().max().unwrap_or(1);
        for_parts(loops, &mut |part, at| {
            let addresses: [Address; N] = std::array::from_fn(|k| operands[k].offset(at[k], self.sizes[k]));
            let sized = std::array::from_fn(|k| (addresses[k].0.cast_const(), self.sizes[k]));
            let walk = Walk::of(queue.op(), part)?.vectors(lanes, sized);
            let mut args: SmallVec<[Arg<'_>; 8]> = addresses.iter().map(|&at| at.into()).collect();
            args.push(walk.arg());
            args.extend(self.numbers.iter().map(|&number| Arg::U64(number)));
            // SAFETY: kernels of this kind take these arguments, and the walk is that of the operands.
            unsafe { queue.kernel(self.program, self.kernel, walk.grid(queue, lanes), &args) }
        })
    }
}

/// Enqueues a function on operands of its types, of which the first is the result.
pub(crate) fn run<const N: usize>(
    queue: &Queue<'_>,
    function: Function,
    places: &Places<N>,
    operands: [Address; N],
) -> Result<()> {
    let arguments = function.arguments();
    let types = |k: usize| if k == 0 { function.result() } else { arguments[k - 1] };
    let sizes: [usize; N] = std::array::from_fn(|k| types(k).size_bytes());
    let (program, kernel) = match function {
        Function::Copy { to, from } => {
            (copy::cast_program(to, from), kernel_name(&["cast", from.name()], to.name()))
        }
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

/// The numbers that a function takes, as bits.
pub(super) fn numbers(function: Function) -> SmallVec<[u64; 2]> {
    match function {
        Function::Unary(op, dtype) | Function::Gradient(op, dtype) => unary_numbers(op, dtype).into(),
        _ => SmallVec::new(),
    }
}

/// Makes the function of the numbers that a unary op and its gradient take from the table of ops.
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
