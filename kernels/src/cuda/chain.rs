//! Chains as kernels, whose source is made when they are planned: a statement for each function, on the elements that a thread
//! has. Programs are kept by their source, so chains that differ in numbers and shapes only share one.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{LazyLock, Mutex, PoisonError};

use device::cuda::{Program, Queue};
use device::{DType, Result};

use super::elementwise::{self, FUNCTIONS, Map};
use crate::chain::{Chain, OPERANDS, Value, stored};
use crate::command::Address;
use crate::functions::Function;
use crate::loops::Loops;

const KERNEL: &str = "chain";

/// What all programs of chains begin with.
const PRELUDE: &str = concat!(
    include_str!("prelude.cuh"),
    "#define FLOATS 1\n",
    include_str!("cast.cuh"),
    include_str!("elementwise.cuh"),
    "#define UNARY UNARY_FUNCTION\n#define UNARY_GRAD UNARY_GRADIENT\n#define BINARY BINARY_FUNCTION\n",
    "#define COMPARE COMPARISON\n",
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
        let lanes = 16 / sizes.into_iter().max().unwrap_or(1);
        let operands = std::array::from_fn(|k| {
            chain.operands.get(k).map_or(Address::NULL, |operand| Address(operand.at.0))
        });
        Map { program, kernel: KERNEL, lanes, sizes, numbers }.enqueue_loops(queue, loops, operands)
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
    write_kernel(&mut text, chain).map_or_else(|_| String::new(), |()| text)
}

/// Writes the kernel: what a thread does with some elements next to each other, and where it finds them.
fn write_kernel(text: &mut String, chain: &Chain) -> std::fmt::Result {
    let outputs = chain.outputs();
    let constant = |k: usize| if k < outputs { "" } else { "const " };
    let types: Vec<&str> = chain.operands.iter().map(|operand| name(operand.dtype)).collect();
    let numbers: Vec<usize> = chain.steps.iter().map(|step| numbers(step.function).len()).collect();
    let count: usize = numbers.iter().sum();
    writeln!(text, "struct Chain {{")?;
    for (k, dtype) in types.iter().enumerate() {
        writeln!(text, "    {}{dtype}* p{k};", constant(k))?;
    }
    writeln!(text, "    const Walk<{OPERANDS}>& walk;")?;
    (0..count).try_for_each(|n| writeln!(text, "    u64 n{n};"))?;
    writeln!(text, "    template <int V> __device__ void at(const Offsets<{OPERANDS}>& offsets) const {{")?;
    for (k, dtype) in types.iter().enumerate() {
        match k < outputs {
            true => writeln!(text, "        Pack<{dtype}, V> x{k};")?,
            false => writeln!(
                text,
                "        Pack<{dtype}, V> x{k} = load<V>(p{k} + offsets.at[{k}], walk.moves({k}));"
            )?,
        }
    }
    writeln!(text, "#pragma unroll\n        for (int v = 0; v < V; ++v) {{")?;
    let mut number = 0;
    for (at, (step, numbers)) in chain.steps.iter().zip(numbers).enumerate() {
        let arguments: Vec<String> = step
            .arguments
            .iter()
            .map(|argument| match argument {
                Value::Operand(operand) => format!("x{operand}.at[v]"),
                Value::Step(step) => format!("r{step}"),
            })
            .collect();
        let value = expression(step.function, &arguments, number);
        number += numbers;
        writeln!(text, "            {} r{at};\n            r{at} = {value};", name(step.function.result()))?;
        if let Some(output) = step.output {
            writeln!(text, "            x{output}.at[v] = r{at};")?;
        }
    }
    writeln!(text, "        }}")?;
    (0..outputs).try_for_each(|k| writeln!(text, "        store<V>(p{k} + offsets.at[{k}], x{k});"))?;
    writeln!(text, "    }}\n}};")?;
    write!(text, "extern \"C\" __global__ void {KERNEL}(")?;
    for k in 0..OPERANDS {
        match types.get(k) {
            Some(dtype) => write!(text, "{}{dtype}* p{k}, ", constant(k))?,
            None => write!(text, "const u8*, ")?,
        }
    }
    write!(text, "const __grid_constant__ Walk<{OPERANDS}> walk")?;
    (0..count).try_for_each(|n| write!(text, ", u64 n{n}"))?;
    let largest = chain.operands.iter().map(|operand| operand.dtype.size_bytes()).max().unwrap_or(1);
    write!(text, ") {{\n    for_vectors<{}>(walk, Chain{{", 16 / largest)?;
    (0..types.len()).try_for_each(|k| write!(text, "p{k}, "))?;
    write!(text, "walk")?;
    (0..count).try_for_each(|n| write!(text, ", n{n}"))?;
    writeln!(text, "}});\n}}")
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
