use device::DType;
use smallvec::smallvec;

use super::*;
use crate::chain::{Operand, Step};
use crate::functions::{BinaryOp, CompareOp, UnaryOp};
use crate::layout::Dst;
use crate::loops::LoopAxis;
use crate::reduction::Axes;

/// A chain of `functions` of elements of `dtype`: each takes the result before it, and those of two elements one of `inputs`
/// operands as well. The last result is written, and so are `outputs` more.
fn chain(dtype: DType, inputs: usize, outputs: usize, functions: &[Function]) -> Chain {
    let places = Loops::from_axes([crate::loops::LoopAxis { size: 64, strides: [1] }]);
    let operand = |dtype| Operand { at: Dst(std::ptr::null_mut()), dtype, places: places.clone() };
    let mut steps: Vec<Step> = Vec::new();
    for (at, &function) in functions.iter().enumerate() {
        let before = at.checked_sub(1).map_or(Value::Operand(outputs), Value::Step);
        let mut arguments = smallvec![before];
        arguments.extend((1..function.arguments().len()).map(|_| Value::Operand(outputs + at % inputs)));
        let output = functions.len() - 1 - at;
        steps.push(Step { function, arguments, output: (output < outputs).then_some(output) });
    }
    let written = (0..outputs).map(|output| operand(steps[steps.len() - 1 - output].function.result()));
    let operands = written.chain((0..inputs).map(|_| operand(dtype))).collect();
    Chain { elements: 64, operands, steps, fold: None }
}

/// The same, whose last result, of 64 elements in rows of 16, is folded along rows, along columns, or whole.
fn folded(op: ReduceOp, [kept, reduced]: [&[(usize, isize)]; 2], chain: Chain) -> Chain {
    let axis = |&(size, stride): &(usize, isize)| LoopAxis { size, strides: [stride] };
    let [kept, reduced] = [kept, reduced].map(|axes| Loops::from_axes(axes.iter().map(axis)));
    let (of, null) = (chain.steps.len() - 1, Dst(std::ptr::null_mut()));
    let dtype = chain.steps[of].function.result();
    let out = Operand::run(null, dtype, kept.elements);
    Chain { fold: Some(Fold { of, op, dtype, axes: Axes { kept, reduced }, out, workspace: None }), ..chain }
}

/// Chains of all kinds: as many operands as there may be, long ones, of costly functions, and of several types.
fn chains() -> Vec<(&'static str, Chain)> {
    let (f32, f64, bf16, u8) = (DType::F32, DType::F64, DType::BF16, DType::U8);
    let arithmetic = |dtype| -> Vec<Function> {
        let ops = [BinaryOp::Add, BinaryOp::Mul, BinaryOp::Sub, BinaryOp::Maximum];
        (0..12)
            .flat_map(|at| {
                [Function::Binary(ops[at % 4], dtype), Function::Unary(UnaryOp::MulScalar(0.5), dtype)]
            })
            .collect()
    };
    let costly = |dtype| -> Vec<Function> {
        let ops = [UnaryOp::Sin, UnaryOp::GeluErf, UnaryOp::PowScalar(1.5), UnaryOp::Mish, UnaryOp::Tanh];
        let functions = ops.into_iter().map(|op| Function::Unary(op, dtype));
        functions.chain([Function::Gradient(UnaryOp::Silu, dtype)]).collect()
    };
    let mixed = [
        Function::Unary(UnaryOp::Exp, f32),
        Function::Copy { to: f64, from: f32 },
        Function::Unary(UnaryOp::Log, f64),
        Function::Copy { to: bf16, from: f64 },
        Function::Compare(CompareOp::Gt, bf16),
        Function::Not,
        Function::Copy { to: f32, from: DType::Bool },
        Function::Binary(BinaryOp::Div, f32),
    ];
    vec![
        ("long_f32", chain(f32, 6, 2, &arithmetic(f32))),
        ("long_f64", chain(f64, 4, 4, &arithmetic(f64))),
        ("long_bf16", chain(bf16, 6, 2, &arithmetic(bf16))),
        ("long_u8", chain(u8, 7, 1, &arithmetic(u8))),
        ("costly_f32", chain(f32, 1, 2, &costly(f32))),
        ("costly_f64", chain(f64, 1, 1, &costly(f64))),
        ("costly_bf16", chain(bf16, 1, 2, &costly(bf16))),
        ("sum_f32", folded(ReduceOp::Sum, [&[(4, 16)], &[(16, 1)]], chain(f32, 6, 1, &arithmetic(f32)))),
        ("sum_f64", folded(ReduceOp::Sum, [&[(16, 1)], &[(4, 16)]], chain(f64, 4, 2, &arithmetic(f64)))),
        ("mean_bf16", folded(ReduceOp::Mean, [&[], &[(64, 1)]], chain(bf16, 6, 1, &arithmetic(bf16)))),
        ("max_f32", folded(ReduceOp::Max, [&[(16, 1)], &[(4, 16)]], chain(f32, 1, 0, &costly(f32)))),
        ("mixed", {
            let mut mixed = chain(f32, 1, 1, &mixed);
            // What the comparison is with.
            mixed.operands.push(Operand { dtype: bf16, ..mixed.operands[1].clone() });
            mixed.steps[4].arguments[1] = Value::Operand(2);
            mixed
        }),
    ]
}

/// `tools/nvrtc-check` reads what it prints.
#[test]
fn every_chain_is_a_kernel() {
    println!("// chains");
    for (name, chain) in chains() {
        let source = source(&chain);
        println!("// chain {name}\n{source}");
        let (_, source) = source.split_at(PRELUDE.len() + FUNCTIONS.len());
        assert_eq!(source.matches("= load<V>(").count(), chain.operands.len() - chain.outputs(), "{name}");
        assert_eq!(source.matches("store<V>(p").count(), chain.outputs(), "{name}");
        assert!(source.contains(&format!(" r{};", chain.steps.len() - 1)), "{name}");
    }
    println!("// end");
}

/// What is compiled does not depend on numbers and addresses.
#[test]
fn chains_that_differ_in_numbers_share_a_program() {
    let program = |number| {
        let functions = [UnaryOp::AddScalar(number), UnaryOp::Exp].map(|op| Function::Unary(op, DType::F32));
        Kernel::of(&chain(DType::F32, 1, 1, &functions)).map(|kernel| (kernel.program, kernel.numbers))
    };
    let (Some((first, one)), Some((second, other))) = (program(1.0), program(2.0)) else {
        unreachable!("one axis reaches all operands");
    };
    assert!(std::ptr::eq(first, second) && one != other);
    let other = chain(DType::F32, 1, 1, &[Function::Unary(UnaryOp::Exp, DType::F32)]);
    assert!(Kernel::of(&other).is_some_and(|kernel| !std::ptr::eq(kernel.program, first)));
}
