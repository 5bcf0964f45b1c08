//! Forward and backward of families of kernels, on one thread of a CPU, at sizes of small models.
//!
//!     cargo bench --bench kernels

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::hint::black_box;

use common::{Case, case, run};
use streamgrad::autograd::ops::AttentionOptions;
use streamgrad::prelude::*;
use streamgrad::{ConvOptions, CpuConfig, MaxPool, RandomKey, Reduction, Result};

/// A case of `op` on values of these shapes, whose gradients are wanted.
fn family(name: &str, shapes: &[&[usize]], op: impl Fn(&[Var]) -> Result<Var> + 'static) -> Case<'static> {
    let device = Device::cpu_with(CpuConfig { threads: Some(1), ..CpuConfig::default() });
    let value = |(seed, shape): (u64, &&[usize])| {
        Var::leaf(Tensor::randn(shape, DType::F32, RandomKey { seed, op: 0 }, &device).unwrap())
    };
    let values: Vec<Var> = (1..).zip(shapes).map(value).collect();
    case(name, 1, move || drop(black_box(op(&values).unwrap().sum_all().unwrap().backward().unwrap())))
}

fn main() {
    let batch_norm = |v: &[Var]| Ok(v[0].batch_norm(Some(&v[1]), Some(&v[2]), 1e-5)?.0);
    let conv =
        |v: &[Var]| v[0].conv2d(&v[1], None, &ConvOptions { padding: [1, 1], ..ConvOptions::default() });
    let layer_norm = |v: &[Var]| {
        let width = *v[0].shape().last().unwrap();
        v[0].layer_norm(&[width], Some(&v[1]), Some(&v[2]), 1e-5)
    };
    run(
        "families of kernels",
        vec![
            family("batch_norm [32, 64]", &[&[32, 64], &[64], &[64]], batch_norm),
            family("batch_norm [8, 16, 28, 28]", &[&[8, 16, 28, 28], &[16], &[16]], batch_norm),
            family("conv2d [8, 4, 14, 14], 8 of 3 x 3", &[&[8, 4, 14, 14], &[8, 4, 3, 3]], conv),
            family("conv2d [8, 16, 28, 28], 16 of 3 x 3", &[&[8, 16, 28, 28], &[16, 16, 3, 3]], conv),
            family("layer_norm [64, 128]", &[&[64, 128], &[128], &[128]], layer_norm),
            family("layer_norm [64, 768]", &[&[64, 768], &[768], &[768]], layer_norm),
            family("softmax [64, 256]", &[&[64, 256]], |v| v[0].softmax(-1)),
            family("log_softmax of columns [256, 64]", &[&[256, 64]], |v| v[0].log_softmax(0)),
            family("max_pool2d [8, 16, 28, 28]", &[&[8, 16, 28, 28]], |v| {
                v[0].max_pool2d(&MaxPool::new([2, 2]))
            }),
            family("cross_entropy [256, 10]", &[&[256, 10]], |v| {
                let labels = Tensor::zeros(&[256], DType::I64, v[0].device())?;
                v[0].cross_entropy(&labels, Reduction::Mean)
            }),
            family("attention [2, 4, 64, 32]", &[&[2, 4, 64, 32], &[2, 4, 64, 32], &[2, 4, 64, 32]], |v| {
                v[0].scaled_dot_product_attention(&v[1], &v[2], &AttentionOptions::default())
            }),
            family("index_select of [1000, 32]", &[&[1000, 32]], |v| {
                v[0].index_select(0, &Tensor::arange(0.0, 512.0, 1.0, DType::I64, v[0].device())?)
            }),
        ],
    );
}
