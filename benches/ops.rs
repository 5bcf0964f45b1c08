//! What an op costs beside its arithmetic: one-element tensors, one thread.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::hint::black_box;

use common::{case, run};
use streamgrad::no_grad;
use streamgrad::prelude::*;

fn main() {
    let device = Device::cpu();
    let tensor = Tensor::from_slice(&[1.5f32], &[1], &device).unwrap();
    let (leaf, one) = (Var::leaf(tensor.clone()), Var::constant(tensor.clone()));
    const CHAIN: usize = 1000;
    let chain = || (0..CHAIN).fold(leaf.clone(), |y, _| y.add(&one).unwrap());
    run(
        "one-element ops",
        vec![
            case("add, tensors", 1, || drop(black_box(tensor.add(&tensor).unwrap()))),
            case("add, not recorded", 1, || no_grad(|| drop(black_box(leaf.add(&one).unwrap())))),
            case("add, recorded", 1, || drop(black_box(leaf.add(&one).unwrap()))),
            case("add, recorded in a chain of 1000", CHAIN, || drop(black_box(chain()))),
            case("add, forward and backward, chain of 1000", CHAIN, || {
                drop(black_box(chain().backward().unwrap()));
            }),
            case("mul, recorded", 1, || drop(black_box(leaf.mul(&one).unwrap()))),
            case("tanh, recorded", 1, || drop(black_box(leaf.tanh().unwrap()))),
            case("add, broadcast [1] + []", 1, {
                let scalar = Tensor::scalar(1.0f32, &device).unwrap();
                let tensor = tensor.clone();
                move || drop(black_box(tensor.add(&scalar).unwrap()))
            }),
        ],
    );
}
