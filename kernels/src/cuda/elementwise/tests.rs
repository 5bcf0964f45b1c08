use super::*;
use crate::functions::{BinaryGradOp, BinaryOp, CompareOp};

/// `tools/nvrtc-check` reads what it prints.
#[test]
fn every_function_has_a_kernel() {
    println!("// table\n{FUNCTIONS}// end");
    let has = |line: String| assert!(FUNCTIONS.contains(&line), "{line}");
    for op in UnaryOp::ALL {
        has(format!("UNARY({}, ", op.name()));
        if op.saves().is_some() {
            has(format!("UNARY_GRAD({}, ", op.name()));
        }
    }
    BinaryOp::ALL.iter().for_each(|op| has(format!("BINARY({}, ", op.name())));
    BinaryGradOp::ALL.iter().for_each(|op| has(format!("BINARY_GRAD({}, ", op.name())));
    CompareOp::ALL.iter().for_each(|op| has(format!("COMPARE({}, ", op.name())));
}
