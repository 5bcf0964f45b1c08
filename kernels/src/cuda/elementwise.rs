//! Elementwise functions.

use device::cuda::{Arg, Program, Queue};
use device::{DType, Result};
use smallvec::SmallVec;

use super::walk::{ByValue, Walk, for_parts, number_bits};
use super::{by_dtype, number_programs};
use crate::command::Address;
use crate::functions::{BinaryOp, CompareOp, UnaryOp};
use crate::loops::{Loops, Places};
use crate::{binary_functions, comparisons, unary_functions};

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
            $("UNARY_GRAD(", stringify!($name), ", ", stringify!($saved), ", ", $slope_cuda, ")\n",)?
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

macro_rules! compare_source {
    ($($(#[$doc:meta])* $variant:ident, $name:ident, $cpu:expr, $cuda:literal;)*) => {
        concat!($("COMPARE(", stringify!($name), ", ", $cuda, ")\n",)*)
    };
}

number_programs!(
    "elementwise", "elementwise.cu";
    crate::unary_functions!(unary_source),
    crate::binary_functions!(binary_source),
    crate::comparisons!(compare_source)
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
    let ([kernel, _], numbers) = unary_kernel(op, dtype);
    map(dtype, kernel, [dtype.size_bytes(); 2], &numbers).enqueue(queue, places, operands)
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
                    $(let given = [$($from(dtype, $number)),+]; numbers[..given.len()].copy_from_slice(&given);)?
                    [by_dtype!(dtype, stringify!($name)), by_dtype!(dtype, concat!(stringify!($name), "_grad"))]
                })*
            };
            (names, numbers)
        }
    };
}

/// As `Number::from_f64` of the CPU.
fn from_f64(dtype: DType, value: f64) -> u64 {
    number_bits(dtype, value)
}

/// As `Number::wrap_f64` of the CPU: scalars were checked to be integers.
fn wrap_f64(dtype: DType, value: f64) -> u64 {
    match dtype {
        DType::U8 => u64::from(value as i64 as u8),
        _ => number_bits(dtype, value),
    }
}

unary_functions!(unary_kernels);

pub(crate) fn unary_grad(
    queue: &Queue<'_>,
    op: UnaryOp,
    dtype: DType,
    places: &Places<3>,
    operands: [Address; 3],
) -> Result<()> {
    let ([_, kernel], numbers) = unary_kernel(op, dtype);
    map(dtype, kernel, [dtype.size_bytes(); 3], &numbers).enqueue(queue, places, operands)
}

/// Makes the names of the kernels of functions of two elements from their tables.
macro_rules! binary_kernels {
    (numbers { $($numbers:tt)* } floats { $($floats:tt)* }) => {
        binary_kernels!(@names $($numbers)* $($floats)*);
    };
    (@names $($(#[$doc:meta])* $variant:ident, $name:ident, $cost:literal, $cpu:expr, $cuda:literal;)*) => {
        fn binary_kernel(op: BinaryOp, dtype: DType) -> &'static str {
            match op { $(BinaryOp::$variant => by_dtype!(dtype, stringify!($name)),)* }
        }
    };
}

binary_functions!(binary_kernels);

macro_rules! compare_kernels {
    ($($(#[$doc:meta])* $variant:ident, $name:ident, $cpu:expr, $cuda:literal;)*) => {
        fn compare_kernel(op: CompareOp, dtype: DType) -> &'static str {
            match op { $(CompareOp::$variant => by_dtype!(dtype, stringify!($name)),)* }
        }
    };
}

comparisons!(compare_kernels);

pub(crate) fn binary(
    queue: &Queue<'_>,
    op: BinaryOp,
    dtype: DType,
    places: &Places<3>,
    operands: [Address; 3],
) -> Result<()> {
    let kernel = binary_kernel(op, dtype);
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
    let kernel = compare_kernel(op, dtype);
    let size = dtype.size_bytes();
    map(dtype, kernel, [1, size, size], &[]).enqueue(queue, places, operands)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tools/nvrtc-check` reads what it prints.
    #[test]
    fn every_function_has_a_kernel() {
        const TABLE: &str = concat!(
            unary_functions!(unary_source),
            binary_functions!(binary_source),
            comparisons!(compare_source)
        );
        println!("// table\n{TABLE}// end");
        let has = |line: String| assert!(TABLE.contains(&line), "{line}");
        for op in UnaryOp::ALL {
            has(format!("UNARY({}, ", op.name()));
            if op.saves().is_some() {
                has(format!("UNARY_GRAD({}, ", op.name()));
            }
        }
        BinaryOp::ALL.iter().for_each(|op| has(format!("BINARY({}, ", op.name())));
        CompareOp::ALL.iter().for_each(|op| has(format!("COMPARE({}, ", op.name())));
    }
}
