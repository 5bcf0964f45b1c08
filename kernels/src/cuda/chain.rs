//! Fused elementwise chains: generates the source of a kernel with a statement for each function. Programs are cached by source, so chains that
//! differ only in scalars and shapes share one.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use device::Result;
use device::cuda::{Arg, Program, Queue};

use super::elementwise::{FUNCTIONS, numbers};
use super::reduce::Sharing;
use super::rows::RowGroup;
use super::type_name;
use super::walk::Map;
use crate::chain::{Chain, Fold, OPERANDS, Operand, Value};
use crate::command::Address;
use crate::functions::Function;
use crate::loops::Loops;
use crate::reduction::{ReduceOp, Reduction};

const KERNEL: &str = "chain";
/// Operands of the loop nest of a kernel that has no more: a nest is a parameter, and small ones are launched faster.
const FEW: usize = 8;

/// Common beginning of all chain programs.
const PRELUDE: &str = concat!(
    include_str!("prelude.cuh"),
    "#define FLOATS 1\n",
    include_str!("cast.cuh"),
    include_str!("elementwise.cuh"),
    "#define UNARY UNARY_FUNCTION\n#define UNARY_GRAD UNARY_GRADIENT\n#define BINARY BINARY_FUNCTION\n",
    "#define BINARY_GRAD BINARY_GRADIENT\n",
    "#define COMPARE COMPARISON\n",
);

/// Further files for chains with a reduction.
const FOLD: &str = concat!(
    include_str!("typed.cuh"),
    include_str!("rows.cuh"),
    include_str!("reduce.cuh"),
    include_str!("chain_fold.cuh"),
);

/// The kernel of a chain, and its arguments besides the operands.
pub(crate) struct Kernel {
    program: &'static Program,
    nest: Nest,
    numbers: Vec<u64>,
}

/// One loop nest over all operands.
enum Nest {
    Few(Box<Loops<FEW>>),
    Many(Box<Loops<OPERANDS>>),
}

impl Kernel {
    /// `None` if no common loop nest fits all operands.
    pub(crate) fn of(chain: &Chain) -> Option<Kernel> {
        let numbers = chain.steps.iter().flat_map(|step| numbers(step.function)).collect();
        let nest = if chain.operands.len() <= FEW {
            Nest::Few(Box::new(chain.loops()?))
        } else {
            Nest::Many(Box::new(chain.loops()?))
        };
        Some(Kernel { program: program_of(source(chain)), nest, numbers })
    }

    /// Enqueues the kernel on the chain's operands.
    pub(crate) fn enqueue(&self, queue: &Queue<'_>, chain: &Chain) -> Result<()> {
        match (&chain.fold, &self.nest) {
            (Some(fold), _) => self.enqueue_fold(queue, &chain.operands, fold),
            (None, Nest::Few(loops)) => self.enqueue_map(queue, &chain.operands, loops),
            (None, Nest::Many(loops)) => self.enqueue_map(queue, &chain.operands, loops),
        }
    }

    fn enqueue_map<const N: usize>(
        &self,
        queue: &Queue<'_>,
        operands: &[Operand],
        loops: &Loops<N>,
    ) -> Result<()> {
        let sizes = std::array::from_fn(|k| operands.get(k).map_or(1, |operand| operand.dtype.size_bytes()));
        let addresses = std::array::from_fn(|k| operands.get(k).map_or(Address::NULL, |operand| operand.at));
        let map = Map { program: self.program, kernel: KERNEL, sizes, numbers: &self.numbers };
        map.enqueue(queue, loops, addresses)
    }

    fn enqueue_fold(&self, queue: &Queue<'_>, operands: &[Operand], fold: &Fold) -> Result<()> {
        let moving = operands.iter().filter(|operand| !operand.stands());
        let from: Vec<_> =
            moving.map(|operand| (operand.at.0.cast_const(), operand.dtype.size_bytes())).collect();
        let pointers = operands.iter().map(|operand| Arg::from(operand.at));
        let given: Vec<_> = pointers.chain(self.numbers.iter().map(|&number| Arg::U64(number))).collect();
        let written = [fold.out.at.into(), fold.workspace.as_ref().map(|operand| operand.at).into()];
        let sharing = Sharing::of(Reduction::Join(fold.op), fold.dtype, &fold.axes);
        // SAFETY: the kernel takes these arguments; what moves has an element for each of the axes, which fill a range, and the
        // reduction's command has checked its output and its workspace.
        unsafe { sharing.enqueue(queue, (self.program, KERNEL), &given, &from, written) }
    }
}

/// The program with this source; created on first use and never freed.
fn program_of(source: String) -> &'static Program {
    static PROGRAMS: LazyLock<Mutex<HashMap<String, &'static Program>>> = LazyLock::new(Mutex::default);
    let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    programs.entry(source).or_insert_with_key(|source| {
        Box::leak(Box::new(Program::new(KERNEL, source.clone().leak()).each_rounded()))
    })
}

/// The program of a chain: a device function for several contiguous elements, and the kernel that calls it.
fn source(chain: &Chain) -> String {
    let outputs = chain.outputs();
    let pointer = |(k, operand): (usize, &Operand)| {
        format!("{}{}* p{k}", if k < outputs { "" } else { "const " }, type_name(operand.dtype, false))
    };
    let pointers: Vec<String> = chain.operands.iter().enumerate().map(pointer).collect();
    let count: usize = chain.steps.iter().map(|step| numbers(step.function).len()).sum();
    let numbers: Vec<String> = (0..count).map(|n| format!("u64 n{n}")).collect();
    let members: String = pointers.iter().chain(&numbers).map(|member| format!("    {member};\n")).collect();
    let operands = (0..pointers.len()).map(|k| format!("p{k}, "));
    let values: String = operands.chain((0..count).map(|n| format!("n{n}, "))).collect();
    let mut text = [PRELUDE, FUNCTIONS].concat();
    match &chain.fold {
        None => {
            let body = body(chain, None, |k| (format!("p{k} + offsets.at[{k}]"), format!("walk.moves({k})")));
            let most = if pointers.len() <= FEW { FEW } else { OPERANDS };
            let unused = vec!["const u8*".to_owned(); most - pointers.len()];
            let walk = [format!("const __grid_constant__ Walk<{most}> walk")];
            let parameters = [&pointers[..], &unused, &walk, &numbers].concat().join(", ");
            let largest = chain.operands.iter().map(|operand| operand.dtype.size_bytes()).max().unwrap_or(1);
            text += &format!(
                "struct Chain {{\n{members}    const Walk<{most}>& walk;\n    \
                 template <int V> __device__ void at(const Offsets<{most}>& offsets) const {{\n{body}    }}\n}};\n\
                 extern \"C\" __global__ void {KERNEL}({parameters}) {{\n    \
                 for_vectors<{}>(walk, Chain{{{values}walk}});\n}}\n",
                16 / largest
            );
        }
        // Elements are numbered in memory order.
        Some(fold) => {
            let body = body(chain, Some(fold.of), |k| match chain.operands[k].stands() {
                true => (format!("p{k}"), "false".to_owned()),
                false => (format!("p{k} + i"), "true".to_owned()),
            });
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
            let (dtype, half) = (type_name(fold.dtype, false), u8::from(fold.dtype.is_half()));
            let parameters = [&pointers[..], &numbers].concat().join(", ");
            text += &format!(
                "#define DTYPE {dtype}\n#define HALF {half}\n{FOLD}struct Chain {{\n{members}    \
                 template <int V> __device__ Pack<S, V> at(i64 i) const {{\n        Pack<S, V> folded;\n\
                 {body}        return folded;\n    }}\n}};\nusing What = {what};\n\
                 extern \"C\" __global__ void __launch_bounds__(threads_of<{group}>, 1) {KERNEL}({parameters}, S* out, \
                 What::Fold::State* states, const __grid_constant__ Walk<1> kept, const __grid_constant__ Walk<1> reduced, \
                 const __grid_constant__ Units cut, u32 lanes, f64 divisor) {{\n    reduce_chain<{group}, What>(\
                 Chain{{{values}}}, out, states, kept, reduced, cut, lanes, divisor);\n}}\n"
            );
        }
    }
    text
}

/// Loads, a statement for each function, and stores; the result of step `folded` is also kept. `place` returns the address of an operand's first
/// element, and whether the next ones are contiguous.
fn body(chain: &Chain, folded: Option<usize>, place: impl Fn(usize) -> (String, String)) -> String {
    let (outputs, mut text) = (chain.outputs(), String::new());
    for (k, operand) in chain.operands.iter().enumerate() {
        let (at, moves) = place(k);
        let loaded = if k < outputs { String::new() } else { format!(" = load<V>({at}, {moves})") };
        text += &format!("        Pack<{}, V> x{k}{loaded};\n", type_name(operand.dtype, false));
    }
    text += "#pragma unroll\n        for (int v = 0; v < V; ++v) {\n";
    let mut number = 0;
    for (at, step) in chain.steps.iter().enumerate() {
        let argument = |argument: &Value| match argument {
            Value::Operand(operand) => format!("x{operand}.at[v]"),
            Value::Step(step) => format!("r{step}"),
        };
        let arguments: Vec<String> = step.arguments.iter().map(argument).collect();
        let value = expression(step.function, &arguments, number);
        number += numbers(step.function).len();
        let result = type_name(step.function.result(), false);
        text += &format!("            {result} r{at};\n            r{at} = {value};\n");
        if let Some(output) = step.output {
            text += &format!("            x{output}.at[v] = r{at};\n");
        }
    }
    if let Some(folded) = folded {
        text += &format!("            folded.at[v] = r{folded};\n");
    }
    let stores = (0..outputs).map(|k| format!("        store<V>({}, x{k});\n", place(k).0));
    text + "        }\n" + &stores.collect::<String>()
}

/// The expression of a function; its scalars are the variables `n<number>` and following.
fn expression(function: Function, arguments: &[String], number: usize) -> String {
    let list = arguments.join(", ");
    let (op, kind, dtype) = match function {
        Function::Gradient(op, dtype) => (op.name(), "gradient", dtype),
        Function::BinaryGradient(op, dtype) => (op.name(), "gradient", dtype),
        Function::Unary(_, dtype) | Function::Binary(_, dtype) | Function::Compare(_, dtype) => {
            (function.name(), "function", dtype)
        }
        Function::Not => return format!("{list} == 0"),
        Function::Where(_) => return format!("{} ? {} : {}", arguments[0], arguments[1], arguments[2]),
        Function::Copy { to, from } if to == from => return list,
        Function::Copy { to, from } => {
            return format!("Cast<{}, Opmath<{}>>::of({list})", to.name(), from.name());
        }
    };
    let computed = type_name(dtype.compute_dtype(), false);
    let numbers = (number..number + numbers(function).len()).map(|n| format!("from_bits<{computed}>(n{n})"));
    format!("{op}_{kind}<{computed}>{{{}}}({list})", numbers.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests;
