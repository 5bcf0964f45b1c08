//! Elementwise functions.

use device::cuda::{Arg, Program, Queue};
use device::{DType, Result};
use smallvec::SmallVec;

use super::walk::{ByValue, Walk, for_parts, number_bits};
use super::{by_dtype, number_programs};
use crate::command::Address;
use crate::functions::{BinaryGradOp, BinaryOp, CompareOp, Gradient, UnaryOp};
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

number_programs!(
    "elementwise", "elementwise.cuh", "elementwise.cu";
    crate::unary_functions!(unary_source),
    crate::binary_functions!(binary_source),
    crate::binary_gradients!(binary_grad_source),
    crate::comparisons!(compare_source) => each_rounded
);

/// A line for each function.
pub(super) const FUNCTIONS: &str = concat!(
    unary_functions!(unary_source),
    binary_functions!(binary_source),
    binary_gradients!(binary_grad_source),
    comparisons!(compare_source)
);

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

/// A function of elements of any type that it is defined for.
pub(crate) trait Function<const N: usize>: Copy {
    /// Its kernel, and the numbers that it takes.
    fn kernel(self, dtype: DType) -> (&'static str, SmallVec<[u64; 2]>);
}

impl Function<2> for UnaryOp {
    fn kernel(self, dtype: DType) -> (&'static str, SmallVec<[u64; 2]>) {
        let ([kernel, _], numbers) = unary_kernel(self, dtype);
        (kernel, numbers.into())
    }
}

impl Function<3> for Gradient {
    fn kernel(self, dtype: DType) -> (&'static str, SmallVec<[u64; 2]>) {
        let ([_, kernel], numbers) = unary_kernel(self.0, dtype);
        (kernel, numbers.into())
    }
}

impl Function<3> for BinaryOp {
    fn kernel(self, dtype: DType) -> (&'static str, SmallVec<[u64; 2]>) {
        (binary_kernel(self, dtype), SmallVec::new())
    }
}

impl Function<4> for BinaryGradOp {
    fn kernel(self, dtype: DType) -> (&'static str, SmallVec<[u64; 2]>) {
        (binary_grad_kernel(self, dtype), SmallVec::new())
    }
}

/// Enqueues a function on operands of type `dtype`.
pub(crate) fn run<F: Function<N>, const N: usize>(
    queue: &Queue<'_>,
    function: F,
    dtype: DType,
    places: &Places<N>,
    operands: [Address; N],
) -> Result<()> {
    let ((kernel, numbers), size) = (function.kernel(dtype), dtype.size_bytes());
    Map { program: program_of(dtype), kernel, lanes: 16 / size, sizes: [size; N], numbers: &numbers }
        .enqueue(queue, places, operands)
}

/// Makes the kernels of the functions of one element, their names and the numbers that they take from their table.
macro_rules! unary_kernels {
    (numbers { $($numbers:tt)* } floats { $($floats:tt)* }) => {
        unary_kernels!(@names $($numbers)* $($floats)*);
    };
    (@names $(
        $(#[$doc:meta])*
        $variant:ident $(($($from:ident $number:ident = $example:literal),+))?, $name:ident,
        $cost:literal, $width:ident, $same:ident, $cpu:expr, $cuda:literal
        $(, $of:ident, $slope:expr, $slope_cuda:literal)?;
    )*) => {
        /// The kernel's name, that of its gradient, and the numbers that both take.
        fn unary_kernel(op: UnaryOp, dtype: DType) -> ([&'static str; 2], [u64; 2]) {
            let mut numbers = [0; 2];
            let names = match op {
                $(UnaryOp::$variant $(($($number),+))? => {
                    $(
                        let given = [$(&$from(dtype, $number)[..]),+].concat();
                        numbers[..given.len()].copy_from_slice(&given);
                    )?
                    [by_dtype!(dtype, stringify!($name)), by_dtype!(dtype, concat!(stringify!($name), "_grad"))]
                })*
            };
            (names, numbers)
        }
    };
}

/// The numbers that a function and its gradient take.
pub(super) fn unary_numbers(op: UnaryOp, dtype: DType) -> [u64; 2] {
    unary_kernel(op, dtype).1
}

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

unary_functions!(unary_kernels);

/// Makes the names of the kernels of functions of two elements from their tables.
macro_rules! binary_kernels {
    ($($(#[$doc:meta])* $variant:ident, $name:ident, $cost:literal, $cpu:expr, $cuda:literal;)*) => {
        fn binary_kernel(op: BinaryOp, dtype: DType) -> &'static str {
            match op { $(BinaryOp::$variant => by_dtype!(dtype, stringify!($name)),)* }
        }
    };
}

binary_functions!(binary_kernels);

macro_rules! binary_grad_kernels {
    ($($(#[$doc:meta])* $variant:ident, $name:ident, $cost:literal, $cpu:expr, $cuda:literal;)*) => {
        fn binary_grad_kernel(op: BinaryGradOp, dtype: DType) -> &'static str {
            match op { $(BinaryGradOp::$variant => by_dtype!(dtype, stringify!($name)),)* }
        }
    };
}

binary_gradients!(binary_grad_kernels);

macro_rules! compare_kernels {
    ($($(#[$doc:meta])* $variant:ident, $name:ident, $cpu:expr, $cuda:literal;)*) => {
        fn compare_kernel(op: CompareOp, dtype: DType) -> &'static str {
            match op { $(CompareOp::$variant => by_dtype!(dtype, stringify!($name)),)* }
        }
    };
}

comparisons!(compare_kernels);

/// Truth values are compared as bytes.
pub(crate) fn compare(
    queue: &Queue<'_>,
    op: CompareOp,
    dtype: DType,
    places: &Places<3>,
    operands: [Address; 3],
) -> Result<()> {
    let (kernel, size) = (compare_kernel(op, dtype), dtype.size_bytes());
    Map { program: program_of(dtype), kernel, lanes: 16 / size, sizes: [1, size, size], numbers: &[] }
        .enqueue(queue, places, operands)
}

#[cfg(test)]
mod tests;
