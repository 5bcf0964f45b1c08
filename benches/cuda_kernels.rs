//! Ops of the sizes of large models on a CUDA device: `name eager captured` in ms a line, the medians of repeats, as
//! `peers/torch_kernels.py` prints PyTorch's. A repeat is as many calls as take some time, between two events.
//!
//!     cargo bench --bench cuda_kernels -- [PART OF A NAME ..]

#![allow(clippy::unwrap_used, missing_docs)]

use std::cell::RefCell;

use streamgrad::autograd::ops::AttentionOptions;
use streamgrad::device::median;
use streamgrad::optim::{AdamW, AdamWOptions};
use streamgrad::prelude::*;
use streamgrad::tensor::GeluKind;
use streamgrad::{BackwardOptions, Graph, RandomKey, Reduction, Result};

const REPEATS: usize = 15;

/// A step, and its name.
type Case = (String, Box<dyn Fn() -> Result<Vec<Tensor>>>);

/// Values that are made when a case is chosen: its step is made from them.
struct Cases {
    device: Device,
    words: Vec<String>,
}

impl Cases {
    fn is_chosen(&self, name: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| name.contains(word.as_str()))
    }

    fn values(&self, dtype: DType, shapes: &[&[usize]]) -> Vec<Tensor> {
        let value = |(seed, shape): (u64, &&[usize])| {
            Tensor::randn(shape, dtype, RandomKey { seed, op: 0 }, &self.device).unwrap()
        };
        (1..).zip(shapes).map(value).collect()
    }

    /// `op` on values of these shapes.
    fn op(
        &self,
        name: &str,
        dtype: DType,
        shapes: &[&[usize]],
        op: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
    ) {
        let name = format!("{name} {dtype}");
        if self.is_chosen(&name) {
            let values = self.values(dtype, shapes);
            self.time((name, Box::new(move || Ok(vec![op(&values)?]))));
        }
    }

    /// `op` on values of these shapes, and the gradients of all of them from one of its result.
    fn pass(
        &self,
        name: &str,
        dtype: DType,
        shapes: &[&[usize]],
        op: impl Fn(&[Var]) -> Result<Var> + 'static,
    ) {
        let name = format!("{name} {dtype}");
        if self.is_chosen(&name) {
            let values: Vec<Var> = self.values(dtype, shapes).into_iter().map(Var::leaf).collect();
            let gradient = Var::constant(op(&values).unwrap().value().ones_like().unwrap());
            let step = move || {
                let options =
                    BackwardOptions { gradient: Some(gradient.clone()), ..BackwardOptions::default() };
                let gradients = op(&values)?.backward_with(options)?;
                Ok(values.iter().filter_map(|value| gradients.get(value)).collect())
            };
            self.time((name, Box::new(step)));
        }
    }

    /// A step of AdamW for the parameters of GPT-2 small.
    fn optimizer(&self) {
        let name = "adamw f32".to_owned();
        if self.is_chosen(&name) {
            let shapes = [&[50304, 768][..], &[1024, 768]];
            let layer = [&[768, 2304][..], &[768, 768], &[768, 3072], &[3072, 768], &[2304], &[3072]];
            let rows = [&[768][..]; 6];
            let layers = std::iter::repeat_n(layer.into_iter().chain(rows), 12).flatten();
            let shapes: Vec<&[usize]> = shapes.into_iter().chain(layers).collect();
            let values: Vec<Var> = self.values(DType::F32, &shapes).into_iter().map(Var::leaf).collect();
            let sums: Vec<Var> = values.iter().map(|value| value.sum(&[], false).unwrap()).collect();
            let sum = Var::stack(&sums.iter().collect::<Vec<_>>(), 0).unwrap().sum(&[], false).unwrap();
            let gradients = sum.backward().unwrap();
            let adamw = RefCell::new(AdamW::new(values, AdamWOptions::default()).unwrap());
            self.time((name, Box::new(move || adamw.borrow_mut().step(&gradients).map(|()| Vec::new()))));
        }
    }

    fn time(&self, (name, step): Case) {
        let eager = self.median_ms(&step);
        let graph = Graph::capture(&self.device, &step).unwrap();
        let captured = self.median_ms(&|| graph.replay());
        println!("{name} {eager:.4} {captured:.4}");
    }

    fn median_ms<T>(&self, step: &dyn Fn() -> Result<T>) -> f64 {
        let stream = self.device.default_stream();
        let repeat = |calls: usize| {
            let start = stream.record().unwrap();
            (0..calls).for_each(|_| drop(step().unwrap()));
            let end = stream.record().unwrap();
            self.device.synchronize().unwrap();
            start.elapsed_ms(&end).unwrap() / calls as f64
        };
        let once = repeat(3).min(repeat(3));
        let calls = (20.0 / once).ceil().clamp(3.0, 1000.0) as usize;
        median((0..REPEATS).map(|_| repeat(calls)))
    }
}

fn main() {
    let words = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let Ok(device) = Device::cuda(0) else {
        println!("no CUDA device");
        return;
    };
    let cases = Cases { device, words };
    let cross_entropy = |v: &[Var]| {
        let labels = Tensor::zeros(&[v[0].shape()[0]], DType::I64, v[0].device())?;
        v[0].cross_entropy(&labels, Reduction::Mean)
    };
    let layer_norm = |v: &[Var]| v[0].layer_norm(&v[0].shape()[1..], Some(&v[1]), Some(&v[2]), 1e-5);
    let batch_norm = |v: &[Var]| Ok(v[0].batch_norm(Some(&v[1]), Some(&v[2]), 1e-5)?.0);
    let causal = AttentionOptions { is_causal: true, ..AttentionOptions::default() };
    let dropout = AttentionOptions { dropout_p: 0.1, ..causal.clone() };
    let attention = move |v: &[Var]| v[0].scaled_dot_product_attention(&v[1], &v[2], &causal);
    let with_dropout = move |v: &[Var]| v[0].scaled_dot_product_attention(&v[1], &v[2], &dropout);
    let linear_cross_entropy = |v: &[Var]| {
        let labels = Tensor::zeros(&[v[0].shape()[0]], DType::I64, v[0].device())?;
        v[0].linear_cross_entropy(&v[1], None, &labels, Reduction::Mean, 1024)
    };
    for dtype in [DType::F32, DType::BF16] {
        let square: &[&[usize]] = &[&[8192, 8192]];
        cases.op("sum", dtype, square, |v| v[0].sum(&[], false));
        cases.op("sum_rows", dtype, square, |v| v[0].sum(&[1], false));
        cases.op("sum_columns", dtype, square, |v| v[0].sum(&[0], false));
        cases.op("sum_bias_768", dtype, &[&[4096, 768]], |v| v[0].sum(&[0], false));
        cases.op("sum_bias_3072", dtype, &[&[4096, 3072]], |v| v[0].sum(&[0], false));
        cases.op("sum_bias_50304", dtype, &[&[4096, 50304]], |v| v[0].sum(&[0], false));
        cases.op("var", dtype, square, |v| v[0].var(&[], 1.0, false));
        cases.op("logsumexp_rows", dtype, square, |v| v[0].logsumexp(&[1], false));
        cases.op("argmax_rows", dtype, square, |v| v[0].argmax(1, false));
        cases.pass("cross_entropy", dtype, &[&[4096, 50304]], cross_entropy);
        cases.pass("linear_cross_entropy", dtype, &[&[4096, 768], &[50304, 768]], linear_cross_entropy);
        cases.pass("layer_norm_1024", dtype, &[&[8192, 1024], &[1024], &[1024]], layer_norm);
        cases.pass("layer_norm_768", dtype, &[&[8192, 768], &[768], &[768]], layer_norm);
        cases.pass("batch_norm", dtype, &[&[32, 64, 56, 56], &[64], &[64]], batch_norm);
        cases.pass("softmax", dtype, &[&[8192, 4096]], |v| v[0].softmax(1));
        cases.pass("gelu_affine", dtype, &[&[8192, 8192], &[8192], &[8192]], |v| {
            v[0].mul(&v[1])?.add(&v[2])?.gelu(GeluKind::Erf)
        });
        for (name, heads) in [("attention_1024", [4, 12, 1024, 64]), ("attention_4096", [2, 16, 4096, 64])] {
            let operands: &[&[usize]] = &[&heads[..]; 3];
            let forward = attention.clone();
            cases.op(&format!("{name}_forward"), dtype, operands, move |v| {
                let v: Vec<Var> = v.iter().cloned().map(Var::constant).collect();
                Ok(forward(&v)?.value().clone())
            });
            cases.pass(name, dtype, operands, attention.clone());
            cases.pass(&format!("{name}_dropout"), dtype, operands, with_dropout.clone());
        }
    }
    cases.optimizer();
}
