//! Chains as kernels, whose source is made when they are planned: a statement for each function, on the elements that a thread
//! has. Programs are kept by their source, so chains that differ in numbers and shapes only share one.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{LazyLock, Mutex, PoisonError};

use device::cuda::{Arg, Program, Queue};
use device::{DType, Result};

use super::elementwise::{self, FUNCTIONS, Map};
use super::reduce::Sharing;
use super::rows::RowGroup;
use crate::chain::{Chain, Fold, OPERANDS, Operand, Value, stored};
use crate::command::Address;
use crate::functions::Function;
use crate::loops::Loops;
use crate::reduction::{ReduceOp, Reduction};

const KERNEL: &str = "chain";

/// What all programs of chains begin with.
const PRELUDE: &str = concat!(
    include_str!("prelude.cuh"),
    "#define FLOATS 1\n",
    include_str!("cast.cuh"),
    include_str!("elementwise.cuh"),
    "#define UNARY UNARY_FUNCTION\n#define UNARY_GRAD UNARY_GRADIENT\n#define BINARY BINARY_FUNCTION\n",
    "#define BINARY_GRAD BINARY_GRADIENT\n",
    "#define COMPARE COMPARISON\n",
);

/// What follows in those with a reduction.
const FOLD: &str = concat!(
    include_str!("typed.cuh"),
    include_str!("rows.cuh"),
    include_str!("reduce.cuh"),
    include_str!("chain_fold.cuh"),
);

/// The kernel of a chain, and what it takes beside the operands.
pub(crate) struct Kernel {
    program: &'static Program,
    loops: Loops<OPERANDS>,
    sizes: [usize; OPERANDS],
    numbers: Vec<u64>,
}

impl Kernel {
    /// `None` if no nest reaches all operands.
    pub(crate) fn of(chain: &Chain) -> Option<Kernel> {
        let sizes =
            std::array::from_fn(|k| chain.operands.get(k).map_or(1, |operand| operand.dtype.size_bytes()));
        let numbers = chain.steps.iter().flat_map(|step| numbers(step.function)).collect();
        Some(Kernel { program: program_of(source(chain)), loops: chain.loops()?, sizes, numbers })
    }

    /// Enqueues it on the chain's operands.
    pub(crate) fn enqueue(&self, queue: &Queue<'_>, chain: &Chain) -> Result<()> {
        let &Kernel { program, ref loops, sizes, ref numbers } = self;
        if let Some(fold) = &chain.fold {
            return self.enqueue_fold(queue, &chain.operands, fold);
        }
        let lanes = 16 / sizes.into_iter().max().unwrap_or(1);
        let operands = std::array::from_fn(|k| {
            chain.operands.get(k).map_or(Address::NULL, |operand| Address(operand.at.0))
        });
        Map { program, kernel: KERNEL, lanes, sizes, numbers }.enqueue_loops(queue, loops, operands)
    }

    fn enqueue_fold(&self, queue: &Queue<'_>, operands: &[Operand], fold: &Fold) -> Result<()> {
        let address = |operand: &Operand| Address(operand.at.0);
        let moving = operands.iter().filter(|operand| !operand.stands());
        let from: Vec<_> =
            moving.map(|operand| (operand.at.0.cast_const(), operand.dtype.size_bytes())).collect();
        let pointers = operands.iter().map(|operand| Arg::from(address(operand)));
        let given: Vec<_> = pointers.chain(self.numbers.iter().map(|&number| Arg::U64(number))).collect();
        let written = [address(&fold.out).into(), fold.workspace.as_ref().map(address).into()];
        let sharing = Sharing::of(Reduction::Join(fold.op), fold.dtype, &fold.axes);
        // SAFETY: the kernel takes these arguments; what moves has an element for each of the axes, which fill a range, and the
        // reduction's command has checked its output and its workspace.
        unsafe { sharing.enqueue(queue, (self.program, KERNEL), &given, &from, written) }
    }
}

/// The program with this source. Programs are made when they are first asked for, and stay.
fn program_of(source: String) -> &'static Program {
    static PROGRAMS: LazyLock<Mutex<HashMap<&'static str, &'static Program>>> = LazyLock::new(Mutex::default);
    let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = programs.get(source.as_str()) {
        return known;
    }
    let source: &'static str = source.leak();
    let program = Box::leak(Box::new(Program::new(KERNEL, source).each_rounded()));
    programs.insert(source, program);
    program
}

/// The numbers that a function holds, as its kernel takes them.
fn numbers(function: Function) -> Vec<u64> {
    match function {
        Function::Unary(op, dtype) | Function::Gradient(op, dtype) => {
            elementwise::unary_numbers(op, dtype).into()
        }
        _ => Vec::new(),
    }
}

/// How the program calls a type that is stored.
fn name(dtype: DType) -> &'static str {
    match stored(dtype) {
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::I64 => "i64",
        DType::BF16 => "bf16",
        DType::F16 => "f16",
        _ => "u8",
    }
}

/// The program of a chain.
fn source(chain: &Chain) -> String {
    let mut text = PRELUDE.to_owned() + FUNCTIONS;
    let written = match &chain.fold {
        None => Writer::of(chain).write_kernel(&mut text),
        Some(fold) => Writer::of(chain).write_fold(&mut text, fold),
    };
    written.map_or_else(|_| String::new(), |()| text)
}

/// Writes a chain down.
struct Writer<'a> {
    chain: &'a Chain,
    outputs: usize,
    /// How the operands are stored.
    types: Vec<&'static str>,
    /// The numbers that all functions hold.
    numbers: usize,
}

impl Writer<'_> {
    fn of(chain: &Chain) -> Writer<'_> {
        let types = chain.operands.iter().map(|operand| name(operand.dtype)).collect();
        let numbers = chain.steps.iter().map(|step| numbers(step.function).len()).sum();
        Writer { chain, outputs: chain.outputs(), types, numbers }
    }

    /// Operand `k` as a parameter.
    fn pointer(&self, k: usize) -> String {
        format!("{}{}* p{k}", if k < self.outputs { "" } else { "const " }, self.types[k])
    }

    /// The kernel: what a thread does with some elements next to each other, and where it finds them.
    fn write_kernel(&self, text: &mut String) -> std::fmt::Result {
        let count = self.types.len();
        writeln!(text, "struct Chain {{")?;
        (0..count).try_for_each(|k| writeln!(text, "    {};", self.pointer(k)))?;
        writeln!(text, "    const Walk<{OPERANDS}>& walk;")?;
        (0..self.numbers).try_for_each(|n| writeln!(text, "    u64 n{n};"))?;
        writeln!(
            text,
            "    template <int V> __device__ void at(const Offsets<{OPERANDS}>& offsets) const {{"
        )?;
        self.write_loads(text, |k| format!("p{k} + offsets.at[{k}], walk.moves({k})"))?;
        self.write_steps(text, None)?;
        (0..self.outputs)
            .try_for_each(|k| writeln!(text, "        store<V>(p{k} + offsets.at[{k}], x{k});"))?;
        write!(text, "    }}\n}};\nextern \"C\" __global__ void {KERNEL}(")?;
        for k in 0..OPERANDS {
            match k < count {
                true => write!(text, "{}, ", self.pointer(k))?,
                false => write!(text, "const u8*, ")?,
            }
        }
        write!(text, "const __grid_constant__ Walk<{OPERANDS}> walk")?;
        (0..self.numbers).try_for_each(|n| write!(text, ", u64 n{n}"))?;
        let largest = self.chain.operands.iter().map(|operand| operand.dtype.size_bytes()).max().unwrap_or(1);
        write!(text, ") {{\n    for_vectors<{}>(walk, Chain{{", 16 / largest)?;
        (0..count).try_for_each(|k| write!(text, "p{k}, "))?;
        write!(text, "walk")?;
        (0..self.numbers).try_for_each(|n| write!(text, ", n{n}"))?;
        writeln!(text, "}});\n}}")
    }

    /// The kernel of a chain of which a result is folded: its elements are counted as they lie in memory.
    fn write_fold(&self, text: &mut String, fold: &Fold) -> std::fmt::Result {
        let count = self.types.len();
        let (dtype, half) = (name(fold.dtype), u8::from(fold.dtype.is_half()));
        writeln!(text, "#define DTYPE {dtype}\n#define HALF {half}\n{FOLD}struct Chain {{")?;
        (0..count).try_for_each(|k| writeln!(text, "    {};", self.pointer(k)))?;
        (0..self.numbers).try_for_each(|n| writeln!(text, "    u64 n{n};"))?;
        writeln!(text, "    template <int V> __device__ Pack<S, V> at(i64 i) const {{")?;
        self.write_loads(text, |k| match self.chain.operands[k].stands() {
            true => format!("p{k}, false"),
            false => format!("p{k} + i, true"),
        })?;
        writeln!(text, "        Pack<S, V> folded;")?;
        self.write_steps(text, Some(fold.of))?;
        (0..self.outputs).try_for_each(|k| writeln!(text, "        store<V>(p{k} + i, x{k});"))?;
        let group = match Sharing::of(Reduction::Join(fold.op), fold.dtype, &fold.axes).threads.group {
            RowGroup::Warp => "WarpGroup",
            RowGroup::Wide | RowGroup::Block => "BlockGroup",
            RowGroup::Column => "ColumnGroup",
        };
        let what = match fold.op {
            ReduceOp::Sum => "Plain<Sum<F>>",
            ReduceOp::Mean => "Mean",
            ReduceOp::Prod => "Plain<Prod<F>>",
            ReduceOp::Max => "Plain<Max<F>>",
            ReduceOp::Min => "Plain<Min<F>>",
        };
        writeln!(text, "        return folded;\n    }}\n}};\nusing What = {what};")?;
        write!(text, "extern \"C\" __global__ void __launch_bounds__(THREADS, 1) {KERNEL}(")?;
        (0..count).try_for_each(|k| write!(text, "{}, ", self.pointer(k)))?;
        (0..self.numbers).try_for_each(|n| write!(text, "u64 n{n}, "))?;
        writeln!(
            text,
            "S* out, What::Fold::State* states, const __grid_constant__ Walk<1> kept, const __grid_constant__ Walk<1> reduced, \
             const __grid_constant__ Units cut, u32 lanes, f64 divisor) {{"
        )?;
        let fields = (0..count).map(|k| format!("p{k}")).chain((0..self.numbers).map(|n| format!("n{n}")));
        let fields = fields.collect::<Vec<_>>().join(", ");
        let arguments = "out, states, kept, reduced, cut, lanes, divisor";
        writeln!(text, "    reduce_chain<{group}, What>(Chain{{{fields}}}, {arguments});\n}}")
    }

    /// Room for the elements of each operand; those that are read come from where `place` says.
    fn write_loads(&self, text: &mut String, place: impl Fn(usize) -> String) -> std::fmt::Result {
        for (k, dtype) in self.types.iter().enumerate() {
            match k < self.outputs {
                true => writeln!(text, "        Pack<{dtype}, V> x{k};")?,
                false => writeln!(text, "        Pack<{dtype}, V> x{k} = load<V>({});", place(k))?,
            }
        }
        Ok(())
    }

    /// A statement for each function, and what is written of its results; those of step `folded` are kept as such, too.
    fn write_steps(&self, text: &mut String, folded: Option<usize>) -> std::fmt::Result {
        writeln!(text, "#pragma unroll\n        for (int v = 0; v < V; ++v) {{")?;
        let mut number = 0;
        for (at, step) in self.chain.steps.iter().enumerate() {
            let argument = |argument: &Value| match argument {
                Value::Operand(operand) => format!("x{operand}.at[v]"),
                Value::Step(step) => format!("r{step}"),
            };
            let arguments: Vec<String> = step.arguments.iter().map(argument).collect();
            let value = expression(step.function, &arguments, number);
            number += numbers(step.function).len();
            let result = name(step.function.result());
            writeln!(text, "            {result} r{at};\n            r{at} = {value};")?;
            if let Some(output) = step.output {
                writeln!(text, "            x{output}.at[v] = r{at};")?;
            }
        }
        if let Some(folded) = folded {
            writeln!(text, "            folded.at[v] = r{folded};")?;
        }
        writeln!(text, "        }}")
    }
}

/// A function of arguments, whose numbers are called `n` and what follows from `number` on.
fn expression(function: Function, arguments: &[String], number: usize) -> String {
    let computed = |dtype: DType| name(dtype.compute_dtype());
    let list = arguments.join(", ");
    match function {
        Function::Unary(op, dtype) => {
            let (t, next) = (computed(dtype), number + 1);
            format!(
                "{}_function<{t}>{{from_bits<{t}>(n{number}), from_bits<{t}>(n{next})}}({list})",
                op.name()
            )
        }
        Function::Gradient(op, dtype) => {
            let (t, next) = (computed(dtype), number + 1);
            format!(
                "{}_gradient<{t}>{{from_bits<{t}>(n{number}), from_bits<{t}>(n{next})}}({list})",
                op.name()
            )
        }
        Function::Binary(op, dtype) => format!("{}_function<{}>()({list})", op.name(), computed(dtype)),
        Function::BinaryGradient(op, dtype) => {
            format!("{}_gradient<{}>()({list})", op.name(), computed(dtype))
        }
        Function::Compare(op, dtype) => format!("{}_function<{}>()({list})", op.name(), computed(dtype)),
        Function::Not => format!("{list} == 0"),
        Function::Where(_) => match arguments {
            [condition, x, y] => format!("{condition} ? {x} : {y}"),
            _ => list,
        },
        Function::Copy { to, from } if to == from => list,
        Function::Copy { to, from } => {
            let to = if to == DType::Bool { "bool" } else { name(to) };
            let from = if from == DType::Bool { "bool" } else { name(from) };
            format!("Cast<{to}, Opmath<{from}>>::of({list})")
        }
    }
}

#[cfg(test)]
mod tests;
