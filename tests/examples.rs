//! Every example does what it says: its `main` runs, and what it asserts holds.

use streamgrad::Result;

#[path = "../examples/custom_op.rs"]
mod custom_op;
#[path = "../examples/digits_mlp.rs"]
mod digits_mlp;
#[path = "../examples/two_lanes.rs"]
mod two_lanes;

#[test]
fn a_custom_op() -> Result<()> {
    custom_op::main()
}

#[test]
fn the_digits() -> Result<()> {
    digits_mlp::main()
}

#[test]
fn two_lanes_equal_one() -> Result<()> {
    two_lanes::main()
}
