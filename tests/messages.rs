//! A table of mistakes and what the library says to them: each message names the operand, what it was and what would fit, and
//! each error has the line of the call.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::path::PathBuf;
use std::sync::LazyLock;

use common::process::run_ignored;
use streamgrad::data::{npy, npz};
use streamgrad::nn::{self, *};
use streamgrad::optim::*;
use streamgrad::prelude::*;
use streamgrad::tensor::{CustomKernel, KernelLaunch, custom};
use streamgrad::{
    AvgPool, BackwardOptions, ConvOptions, CpuConfig, Error, ErrorKind, GradOptions, Graph, LoaderOptions,
    PadMode, Policy, Ragged, Reduction, Result, Schedule, Subset, WeightedSampler, metrics,
};

/// A mistake, the line that makes it and the message.
struct Row {
    line: u32,
    run: fn(&Setup) -> Result<()>,
    /// The part of a model that has to be named.
    module: Option<&'static str>,
    text: &'static str,
}

macro_rules! row {
    ($s:ident => $call:expr, $text:literal) => {
        Row { line: line!(), run: |$s| $call.map(drop), module: None, text: $text }
    };
    ($s:ident => $call:expr, $module:literal, $text:literal) => {
        Row { line: line!(), run: |$s| $call.map(drop), module: Some($module), text: $text }
    };
}

/// Devices, and tensors of any shape on the first one.
struct Setup {
    d: Device,
    other: Device,
    dir: PathBuf,
}

impl Setup {
    fn new() -> Setup {
        static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
            let dir = std::env::temp_dir().join(format!("streamgrad-messages-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            dir
        });
        Setup { d: Device::cpu(), other: Device::cpu_with(CpuConfig::default()), dir: DIR.clone() }
    }

    fn of(&self, shape: &[usize], dtype: DType) -> Tensor {
        Tensor::ones(shape, dtype, &self.d).unwrap()
    }

    /// Floats.
    fn t(&self, shape: &[usize]) -> Tensor {
        self.of(shape, DType::F32)
    }

    /// A leaf of floats.
    fn v(&self, shape: &[usize]) -> Var {
        Var::leaf(self.t(shape))
    }

    /// A constant of doubles.
    fn wide(&self, shape: &[usize]) -> Var {
        Var::constant(self.of(shape, DType::F64))
    }

    /// Indices.
    fn i(&self, values: &[i64]) -> Tensor {
        Tensor::from_slice(values, &[values.len()], &self.d).unwrap()
    }

    /// Floats of the other device.
    fn foreign(&self, shape: &[usize]) -> Var {
        Var::constant(Tensor::ones(shape, DType::F32, &self.other).unwrap())
    }

    fn linear(&self, inputs: usize, outputs: usize) -> Linear {
        Linear::new(inputs, outputs, &self.d).unwrap()
    }

    /// A file of these bytes.
    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// A file of this model.
    fn saved(&self, name: &str, model: &dyn Module) -> PathBuf {
        let path = self.dir.join(name);
        checkpoint::save(&path, model).unwrap();
        path
    }
}

/// Checks the rows; prints all that differ.
fn check(rows: &[Row]) {
    let mut wrong = 0;
    for (number, row) in rows.iter().enumerate() {
        let setup = Setup::new();
        let outcome = (row.run)(&setup).and_then(|()| setup.d.synchronize());
        let Err(error) = outcome else {
            wrong += 1;
            println!("{}: no error", row.line);
            continue;
        };
        let mut text = format!("{error} ").replace(&setup.dir.display().to_string(), "DIR");
        for (device, name) in [(&setup.d, "MAIN"), (&setup.other, "OTHER")] {
            let id = device.default_stream().id();
            text = text.replace(&format!("stream {id})"), &format!("stream {name})"));
            text = text.replace(&format!("stream {id} "), &format!("stream {name} "));
        }
        let place = error.location();
        let text = text.trim_end().replace(&place.to_string(), "HERE");
        let next = rows.get(number + 1).map_or(u32::MAX, |row| row.line);
        let is_here = place.file() == file!() && (row.line..next).contains(&place.line());
        if text != row.text || !is_here || error.module() != row.module {
            wrong += 1;
            println!("{}: {text:?} at {place} in {:?}", row.line, error.module());
        }
    }
    assert_eq!(wrong, 0, "of {} messages", rows.len());
}

#[test]
fn tensors() {
    check(&[
        row!(s => Tensor::from_slice(&[1.0_f32; 5], &[2, 3], &s.d), "from_slice: shapes [2, 3] and [5] do not fit: there must be one value for each element"),
        row!(s => Tensor::from_bytes(&[0; 7], &[2], DType::F32, &s.d), "from_bytes: bytes must be of shape [8], got [7]"),
        row!(s => Tensor::from_bytes(&[3], &[1], DType::Bool, &s.d), "from_bytes: bytes must be 0 or 1 for truth values, got 3"),
        row!(s => Tensor::zeros(&[usize::MAX, 2], DType::F32, &s.d), "full: shape must be of elements that fit in memory, got [18446744073709551615, 2]"),
        row!(s => Tensor::arange(0, 10, 0, DType::I64, &s.d), "arange: step must be not 0 and in the direction of `end`, got 0"),
        row!(s => Tensor::arange(0, 10, 1, DType::Bool, &s.d), "arange: not defined for bool, only for numbers"),
        row!(s => Tensor::linspace(0.0, 1.0, 3, DType::I64, &s.d), "linspace: not defined for i64, only for floats"),
        row!(s => s.t(&[2]).to_vec::<f64>(), "to_vec: the type of the values must be f32, got f64"),
        row!(s => s.t(&[2]).item::<f32>(), "item: input must be exactly one element, got shape [2]"),
        row!(s => s.t(&[2, 3]).add(&s.t(&[4])), "add: shapes [2, 3] and [4] do not fit: axes, counted from the last, must be equal or 1"),
        row!(s => s.t(&[2, 3]).add(s.foreign(&[2, 3]).value()), "add: rhs must be on cpu (default stream MAIN), got cpu (default stream OTHER), which is another device; clone the first one"),
        row!(s => s.t(&[2, 3]).add_(&s.t(&[3, 2])), "add_: shapes [3, 2] and [2, 3] do not fit: axes, counted from the last, must be equal or 1"),
        row!(s => s.t(&[2, 3]).add_(&s.of(&[2, 3], DType::F64)), "add_: rhs must be f32, got f64"),
        row!(s => s.of(&[2], DType::I64).exp(), "exp: not defined for i64, only for floats"),
        row!(s => s.t(&[2]).logical_not(), "logical_not: input must be bool, got f32"),
        row!(s => Tensor::where_cond(&s.t(&[2]), &s.t(&[2]), &s.t(&[2])), "where_cond: cond must be bool, got f32"),
        row!(s => s.t(&[2, 3]).matmul(&s.t(&[4, 5])), "matmul: shapes [2, 3] and [4, 5] do not fit: lhs [.., m, k] takes rhs [.., k, n]"),
        row!(s => s.t(&[7, 2, 3]).matmul(&s.t(&[6, 3, 5])), "matmul: shapes [7, 2, 3] and [6, 3, 5] do not fit: lhs [.., m, k] takes rhs [.., k, n]"),
        row!(s => s.t(&[2, 3]).matmul(&s.of(&[3, 2], DType::F64)), "matmul: rhs must be f32, got f64"),
        row!(s => s.of(&[2, 2], DType::Bool).matmul(&s.of(&[2, 2], DType::Bool)), "matmul: not defined for bool, only for numbers"),
        row!(s => s.t(&[]).matmul(&s.t(&[2])), "matmul: operands must be of rank 1 at least, got [] and [2]"),
        row!(s => s.t(&[2, 3]).reshape(&[7]), "reshape: shapes [2, 3] and [7] do not fit: the elements must be as many"),
        row!(s => s.t(&[2, 3]).reshape_infer(&[-1, -1]), "reshape_infer: shape must be sizes of which at most one is -1, got [-1, -1]"),
        row!(s => s.t(&[2, 3]).expand(&[4, 3]), "expand: shapes [2, 3] and [4, 3] do not fit: axes, counted from the last, must be equal or 1"),
        row!(s => s.t(&[2, 3]).permute(&[0, 0]), "permute: axes must be every axis once, got [0, 0]"),
        row!(s => s.t(&[2, 3]).transpose(0, 2), "transpose: axis 2 is out of range for rank 2"),
        row!(s => s.t(&[2, 3]).narrow(1, 2, 2), "narrow: start..start + len must be within the axis, got 2..2 + 2 of an axis of size 3"),
        row!(s => s.t(&[2, 3]).slice(1, 2..5), "slice: range must be within the axis, got 2..5 of an axis of size 3"),
        row!(s => s.t(&[2, 3]).select(0, 2), "select: index 2 is out of range for size 2"),
        row!(s => s.t(&[2, 3]).split(&[1, 3], 1), "split: sizes must be sizes that add up to the axis, got [1, 3]"),
        row!(s => s.t(&[2, 3]).chunk(0, 1), "chunk: count must be at least 1, got 0"),
        row!(s => s.t(&[2, 3]).sum(&[2], false), "sum: axis 2 is out of range for rank 2"),
        row!(s => s.t(&[2, 3]).sum(&[1, -1], false), "sum: axes must be without duplicates, got [1, -1]"),
        row!(s => s.t(&[2, 0]).max(&[1], false), "max: axes must be axes that are not empty, got [1] of [2, 0]"),
        row!(s => s.t(&[2, 3]).topk(4, 1, true), "topk: k must be at most the size of the axis, got 4 of an axis of size 3"),
        row!(_s => Tensor::cat(&[], 0), "cat: tensors must be at least one tensor, got 0"),
        row!(s => Tensor::cat(&[&s.t(&[2, 3]), &s.t(&[2, 4])], 0), "cat: shapes [2, 3] and [2, 4] do not fit: the other axes must be equal"),
        row!(s => Tensor::stack(&[&s.t(&[2, 3]), &s.t(&[2, 4])], 0), "stack: tensor must be of shape [2, 3], got [2, 4]"),
        row!(s => s.t(&[2, 3]).index_select(0, &s.i(&[0, 2])), "index_select: index 2 is out of range for size 2"),
        row!(s => s.t(&[2, 3]).index_select(0, &s.t(&[2])), "index_select: indices must be i64, got f32"),
        row!(s => s.t(&[2, 3]).index_add(0, &s.i(&[0]), &s.t(&[2, 3])), "index_add: src must be of shape [1, 3], got [2, 3]"),
        row!(s => s.t(&[2, 3]).gather(1, &s.i(&[0])), "gather: shapes [2, 3] and [1] do not fit: indices must have as many axes"),
        row!(s => s.t(&[2, 3]).masked_select(&s.t(&[2, 3])), "masked_select: mask must be bool, got f32"),
        row!(s => s.i(&[0, 5]).one_hot(3), "one_hot: class 5 is out of range for size 3"),
        row!(s => s.t(&[3]).dropout(1.5, None), "dropout: p must be in 0..=1, got 1.5"),
        row!(s => s.t(&[1, 1, 2, 2]).avg_pool2d(&AvgPool::new([3, 3])), "avg_pool2d: window must be no larger than the padded image, got Window { kernel: [3, 3], stride: [3, 3], padding: [0, 0], dilation: [1, 1] } in an image of [2, 2]"),
        row!(s => s.t(&[1, 1, 2, 2]).upsample_nearest2d([0, 2]), "upsample_nearest2d: size must be not 0, got [0, 2]"),
        row!(s => s.t(&[2]).update_(|_: &mut [f64]| ()), "update_: the type of the values must be f32, got f64"),
    ]);
}

/// An index that the host does not know yet: the next call that waits has it.
#[test]
#[ignore = "run by the test below"]
fn inner_late_index() {
    check(&[
        row!(s => s.t(&[2, 3]).index_select(0, &s.i(&[0, 1]).mul_scalar(7.0).unwrap()).and_then(|x| x.to_vec::<f32>()), "index_select: index 7 is out of range for size 2"),
        row!(s => s.v(&[2, 3]).embedding(&s.i(&[0, 1]).mul_scalar(7.0).unwrap(), None).and_then(|x| x.to_vec::<f32>()), "embedding: index 7 is out of range for size 2"),
        row!(s => s.v(&[2, 3]).nll_loss(&s.i(&[0, 1]).mul_scalar(7.0).unwrap(), Reduction::Mean).and_then(|x| x.item::<f32>()), "nll_loss: label 7 is out of range for size 3"),
        row!(s => s.i(&[0, 1]).mul_scalar(7.0)?.one_hot(3).and_then(|x| x.to_vec::<i64>()), "one_hot: class 7 is out of range for size 3"),
        row!(s => s.v(&[2, 3]).cross_entropy(&s.i(&[0, 1]).mul_scalar(7.0).unwrap(), Reduction::Mean).and_then(|x| x.item::<f32>()), "cross_entropy: label 7 is out of range for size 3"),
    ]);
}

#[test]
fn a_late_index_prints_nothing() {
    let output = run_ignored("inner_late_index", &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

/// On a device that runs later a kernel finds the index, and the error has the name of the op that was called.
#[test]
fn an_index_that_a_kernel_finds() {
    let schedule = Schedule::Explore(Policy::OldestFirst);
    let s = Setup { d: Device::cpu_with(CpuConfig { schedule, ..CpuConfig::default() }), ..Setup::new() };
    let late = || s.i(&[0, 1]).mul_scalar(7.0).unwrap();
    let column = || late().unsqueeze(1).unwrap();
    let weighted = streamgrad::autograd::ops::CrossEntropy { weight: Some(s.t(&[3])), ..Default::default() };
    let found = |op: &str, call: Result<()>| {
        let error = call.and_then(|()| s.d.synchronize()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Async { op: found, .. } if *found == op), "{op}: {error}");
    };
    found("embedding", s.v(&[2, 3]).embedding(&late(), None).map(drop));
    found("gather", s.v(&[2, 3]).gather(1, &column()).map(drop));
    found("nll_loss", s.v(&[2, 3]).nll_loss(&late(), Reduction::Mean).map(drop));
    found("cross_entropy", weighted.loss(&s.v(&[2, 3]), &late()).map(drop));
    found("scatter", s.t(&[2, 3]).scatter(1, &column(), &s.t(&[2, 1])).map(drop));
    found("one_hot", late().one_hot(3).map(drop));
}

#[test]
fn vars_and_losses() {
    check(&[
        row!(s => &s.v(&[2, 3]) * &s.v(&[4, 5]), "mul: shapes [2, 3] and [4, 5] do not fit: axes, counted from the last, must be equal or 1"),
        row!(s => s.v(&[2, 3]).linear(&s.v(&[4, 5]), None), "linear: shapes [2, 3] and [4, 5] do not fit: input [.., in] takes weight [out, in]"),
        row!(s => s.v(&[2, 3]).linear(&s.wide(&[4, 3]), None), "linear: input must be f64, got f32"),
        row!(s => s.v(&[2, 3]).linear(&s.v(&[4, 3]), Some(&s.wide(&[4]))), "linear: bias must be f32, got f64"),
        row!(s => s.v(&[2, 3]).linear(&s.v(&[4, 3]), Some(&s.v(&[5]))), "linear: bias must be of shape [4], got [5]"),
        row!(s => s.v(&[2, 3]).linear(&s.foreign(&[4, 3]), None), "linear: input must be on cpu (default stream OTHER), got cpu (default stream MAIN), which is another device; clone the first one"),
        row!(s => s.v(&[1, 3, 8, 8]).conv2d(&s.v(&[4, 2, 3, 3]), None, &ConvOptions::default()), "conv2d: shapes [1, 3, 8, 8] and [4, 2, 3, 3] do not fit: input [n, c, h, w] takes weight [f, c / groups, kh, kw]"),
        row!(s => s.v(&[1, 3, 8]).conv2d(&s.v(&[4, 3, 3, 3]), None, &ConvOptions::default()), "conv2d: shapes [1, 1, 3, 8] and [4, 3, 3, 3] do not fit: input [n, c, h, w] takes weight [f, c / groups, kh, kw]"),
        row!(s => s.v(&[1, 3, 8, 8]).conv2d(&s.v(&[4, 3, 3, 3]), Some(&s.v(&[3])), &ConvOptions::default()), "conv2d: bias must be of shape [4], got [3]"),
        row!(s => s.v(&[1, 3, 8, 8]).conv2d(&s.wide(&[4, 3, 3, 3]), None, &ConvOptions::default()), "conv2d: input must be f64, got f32"),
        row!(s => s.v(&[1, 3, 2, 2]).conv2d(&s.v(&[4, 3, 3, 3]), None, &ConvOptions::default()), "conv2d: window must be no larger than the padded image, got Window { kernel: [3, 3], stride: [1, 1], padding: [0, 0], dilation: [1, 1] } in an image of [2, 2]"),
        row!(s => s.v(&[1, 3, 8, 8]).conv2d(&s.v(&[4, 3, 3, 3]), None, &ConvOptions { stride: [0, 1], ..ConvOptions::default() }), "conv2d: stride must be at least 1, got [0, 1]"),
        row!(s => s.v(&[1, 3, 8, 8]).conv_transpose2d(&s.v(&[4, 3, 3, 3]), None, [0, 0], &ConvOptions::default()), "conv_transpose2d: shapes [1, 3, 8, 8] and [4, 3, 3, 3] do not fit: input [n, c, h, w] takes weight [c, f / groups, kh, kw]"),
        row!(s => s.v(&[5, 4]).embedding(&s.i(&[1, 5]), None), "embedding: index 5 is out of range for size 5"),
        row!(s => s.v(&[5, 4]).embedding(&s.t(&[2]), None), "embedding: index must be i64, got f32"),
        row!(s => s.v(&[5]).embedding(&s.i(&[1]), None), "embedding: weight must be of rank 2, got shape [5]"),
        row!(s => s.v(&[5, 4]).embedding(&s.i(&[1]), Some(7)), "embedding: padding_idx must be one of the rows, got 7 of 5 rows"),
        row!(s => s.v(&[2, 3]).layer_norm(&[4], None, None, 1e-5), "layer_norm: shapes [2, 3] and [4] do not fit: input must end with normalized_shape"),
        row!(s => s.v(&[2, 3]).layer_norm(&[3], Some(&s.v(&[4])), None, 1e-5), "layer_norm: weight must be of shape [3], got [4]"),
        row!(s => s.v(&[2, 3]).group_norm(2, None, None, 1e-5), "group_norm: num_groups must be a divisor of the channels, got 2 for 3 channels"),
        row!(s => s.v(&[2, 3]).softmax(2), "softmax: axis 2 is out of range for rank 2"),
        row!(s => s.v(&[2, 3]).pad(&[[1, 1], [1, 1], [1, 1]], PadMode::Constant(0.0)), "pad: borders must be a pair for an axis at most, got [[1, 1], [1, 1], [1, 1]] for 2 axes"),
        row!(s => Var::einsum("ij,jk->ik", &[&s.v(&[2, 3]), &s.v(&[4, 5])]), "einsum: operands must be of one size for each letter, got 3 and 4 for `j` of \"ij,jk->ik\""),
        row!(s => Var::einsum("ij,jk->il", &[&s.v(&[2, 3]), &s.v(&[3, 5])]), "einsum: equation must be each letter of the result once, and in a term, got \"ij,jk->il\""),
        row!(s => s.v(&[2, 4, 8]).scaled_dot_product_attention(&s.v(&[2, 4, 6]), &s.v(&[2, 4, 6]), &Default::default()), "scaled_dot_product_attention: shapes [2, 4, 8] and [2, 4, 6] do not fit: q [.., s, d] takes k [.., t, d] and v [.., t, e]"),
        row!(s => cross_entropy(&s.v(&[2, 3]), &s.i(&[0, 3])), "cross_entropy: label 3 is out of range for size 3"),
        row!(s => cross_entropy(&s.v(&[2, 3]), &s.i(&[0, 1, 2])), "cross_entropy: shapes [2, 3] and [3] do not fit: input [n, c, ..] takes labels [n, ..]"),
        row!(s => cross_entropy(&s.v(&[2, 3]), &s.t(&[2])), "cross_entropy: labels must be i64, got f32"),
        row!(s => cross_entropy(&s.v(&[0, 3]), &s.i(&[])), "cross_entropy: labels must be not empty for a mean, got shape [0]"),
        row!(s => s.v(&[2, 3]).nll_loss(&s.i(&[0, -1]), Reduction::Mean), "nll_loss: label -1 is out of range for size 3"),
        row!(s => mse(&s.v(&[2, 1]), &s.v(&[2])), "mse_loss: target must be of shape [2, 1], got [2]"),
        row!(s => s.v(&[2]).bce_with_logits(&s.v(&[3]), Reduction::Mean), "bce_with_logits: target must be of shape [2], got [3]"),
        row!(s => accuracy(&s.t(&[2, 3]), &s.i(&[1])), "accuracy: shapes [2, 3] and [1] do not fit: logits [n, c] takes labels [n]"),
        row!(s => metrics::ConfusionMatrix::new(2)?.update(&s.i(&[0, 2]), &s.i(&[0, 1])), "ConfusionMatrix::update: class 2 is out of range for size 2"),
    ]);
}

/// `y = x` of floats.
struct Copied;

impl CustomKernel<1, 1> for Copied {
    type Element = f32;

    fn name(&self) -> &'static str {
        "copied"
    }

    fn cpu(&self, [x]: [&[f32]; 1], [y]: [&mut [f32]; 1]) {
        y.copy_from_slice(x);
    }

    fn cuda(&self, _: [usize; 1], _: [usize; 1]) -> Option<KernelLaunch> {
        None
    }
}

#[test]
fn autograd_graphs_and_kernels() {
    check(&[
        row!(s => s.v(&[2]).exp()?.backward(), "backward: gradient must be given for a value of several elements, got none for shape [2]"),
        row!(s => s.wide(&[]).backward(), "backward: the value does not depend on any leaf that requires a gradient"),
        row!(s => { let y = s.v(&[2]).exp()?.sum_all()?; y.backward()?; y.backward() }, "backward: the saved tensors of sum were freed by an earlier pass; ask for `retain_graph`"),
        row!(s => s.v(&[]).exp()?.backward_with(BackwardOptions { gradient: Some(s.v(&[2])), ..BackwardOptions::default() }), "backward: gradient must be of shape [], got [2]"),
        row!(s => grad(&[s.v(&[2])], &[s.v(&[2])], GradOptions::default()), "grad: gradient must be given for a value of several elements, got none for shape [2]"),
        row!(s => autocast(DType::I64, || s.v(&[2]).exp()), "autocast: not defined for i64, only for f32, bf16 and f16"),
        row!(s => s.wide(&[2]).register_hook(|_| Ok(None)), "register_hook: the value does not depend on any leaf that requires a gradient"),
        row!(_s => gradcheck(|v| v[0].exp(), &[], GradCheck::default()), "gradcheck: inputs must be at least one tensor, got none"),
        row!(s => ConcurrentBatches::new(&s.d, 0), "ConcurrentBatches::new: lanes must be 1 to 1024, got 0"),
        row!(s => Graph::capture(&s.d, || s.t(&[2]).to_vec::<f32>().map(drop)), "download: not within a captured step: the host would read a value at HERE, which is known in a replay only"),
        row!(s => { let x = s.t(&[2]); Graph::capture(&s.d, || x.exp())?.input(&x)?.set(&s.t(&[3])) }, "Graph::input: value must be of shape [2], got [3]"),
        row!(s => custom(Copied, [&s.of(&[2], DType::F64)], [&[2]]), "copied: input must be f32, got f64"),
        row!(s => custom(Copied, [&s.t(&[2])], [&[3]]).and_then(|[y]| y.to_vec::<f32>()), "copied on stream MAIN failed: panicked: copy_from_slice: source slice length (2) does not match destination slice length (3)"),
    ]);
}

#[test]
fn layers() {
    check(&[
        row!(s => s.linear(3, 4).forward(&s.v(&[2, 5])), "linear: shapes [2, 5] and [4, 3] do not fit: input [.., in] takes weight [out, in]"),
        row!(s => Sequential::new().push(s.linear(3, 4)).push(s.linear(5, 4)).forward(&s.v(&[2, 3])), "1", "linear: shapes [2, 4] and [4, 5] do not fit: input [.., in] takes weight [out, in]"),
        row!(s => Sequential::new().push(Sequential::new().push(Conv2d::new(3, 8, [3, 3], &s.d)?)).forward(&s.v(&[2, 1, 8, 8])), "0.0", "conv2d: shapes [2, 1, 8, 8] and [8, 3, 3, 3] do not fit: input [n, c, h, w] takes weight [f, c / groups, kh, kw]"),
        row!(s => Sequential::new().push(Embedding::new(5, 4, &s.d)?).forward(&s.v(&[2])), "0", "embedding: index must be i64, got f32"),
        row!(s => Sequential::new().push(Embedding::new(5, 4, &s.d)?).forward(&Var::constant(s.i(&[5]))), "0", "embedding: index 5 is out of range for size 5"),
        row!(s => Sequential::new().push(LayerNorm::new(&[4], &s.d)?).forward(&s.v(&[2, 3])), "0", "layer_norm: shapes [2, 3] and [4] do not fit: input must end with normalized_shape"),
        row!(s => Sequential::new().push(BatchNorm2d::new(3, &s.d)?).forward(&s.v(&[2, 4, 2, 2])), "0", "batch_norm: shapes [2, 4, 2, 2] and [3] do not fit: input [n, c, ..] takes weight [c]"),
        row!(s => Sequential::new().push(Gru::new(3, 4, &s.d)?).forward(&s.v(&[2, 2, 5])), "0", "gru: input must be a sequence of the layer's width, got [2, 2, 5], where [time, batch, 3] is expected"),
        row!(s => Sequential::new().push(Flatten).push(s.linear(3, 4)).forward(&s.v(&[2, 2, 2])), "1", "linear: shapes [2, 4] and [4, 3] do not fit: input [.., in] takes weight [out, in]"),
        row!(s => Sequential::new().push(s.linear(3, 4)).forward(&s.wide(&[2, 3])), "0", "linear: input must be f32, got f64"),
        row!(s => Sequential::new().push(s.linear(3, 4)).forward(&s.foreign(&[2, 3])), "0", "linear: input must be on cpu (default stream MAIN), got cpu (default stream OTHER), which is another device; clone the first one"),
        row!(s => Linear::from_parts(s.v(&[4, 3]), Some(s.v(&[3]))), "linear: shapes [4, 3] and [3] do not fit: weight [out, in] takes bias [out]"),
        row!(_s => Dropout::new(2.0), "dropout: p must be between 0 and 1, got 2"),
        row!(s => MultiheadAttention::new(10, 3, &s.d), "multihead_attention: num_heads must be a divisor of the width, got 3 of 10"),
        row!(s => nn::GroupNorm::new(3, 4, &s.d), "group_norm: num_groups must be a divisor of the channels, got 3 for 4 channels"),
        row!(s => Embedding::with_options(3, 2, EmbeddingOptions { padding_idx: Some(7), ..Default::default() }, &s.d), "embedding: padding_idx must be one of the rows, got 7 of 3 rows"),
        row!(s => mlp(&[4], 1, &s.d), "mlp: sizes must be at least two, all positive, got [4]"),
    ]);
}

#[test]
fn optimizers() {
    check(&[
        row!(_s => Adam::new(vec![], 0.1), "adam: parameters must be at least one, got none"),
        row!(s => Adam::new(vec![s.wide(&[2])], 0.1), "adam: parameters must be leaves that require a gradient, got number 0, which does not"),
        row!(s => { let w = s.v(&[2]); Adam::new(vec![w.clone(), w], 0.1) }, "adam: parameters must be named once each, got number 1 twice"),
        row!(s => Adam::new(vec![s.v(&[2])], -0.1), "adam: lr must be at least 0 and finite, got -0.1"),
        row!(s => Sgd::new(vec![s.v(&[2])], SgdOptions { momentum: -1.0, ..SgdOptions::default() }), "sgd: momentum must be at least 0 and finite, got -1"),
        row!(s => Adam::new(vec![s.v(&[2])], 0.1)?.step(&Gradients::default()), "adam: gradients must be of at least one parameter, got 0 gradients of none of 1 parameters"),
        row!(s => Adam::new(vec![s.v(&[2])], 0.1)?.load_state(&Sgd::new(vec![s.v(&[2])], 0.1)?.state()?), "checkpoint: parameter optimizer: \"sgd\" in the state, \"adam\" expected"),
        row!(_s => clip_grad_norm(&mut Gradients::default(), -1.0), "clip_grad_norm: max_norm must be at least 0, got -1"),
        row!(_s => Groups::new(vec![]), "groups: parameters must be at least one, got none"),
    ]);
}

#[test]
fn data() {
    check(&[
        row!(_s => InMemory::new(vec![1.0; 5], 2, vec![0, 1], 2), "data set: shapes [2, 2] and [5] do not fit: inputs must be [rows, features]"),
        row!(_s => InMemory::new(vec![1.0; 4], 2, vec![0, 2], 2), "data set: label 2 is out of range for size 2"),
        row!(_s => InMemory::new(vec![1.0, f32::NAN], 1, vec![0, 1], 2), "data set: inputs must be finite, got NaN at row 1, column 0"),
        row!(s => TensorDataset::new(&s.t(&[3, 2]), &s.t(&[2])), "tensor data set: shapes [3, 2] and [2] do not fit: inputs [n, ..] takes labels [n, ..]"),
        row!(_s => DataLoader::new(Digits::load()?, LoaderOptions { batch: 0, ..LoaderOptions::default() }), "data loader: batch must be at least 1, got 0"),
        row!(_s => DataLoader::new(Digits::load()?, LoaderOptions { sampler: Some(WeightedSampler::new([1.0, 2.0], 2, true)?), ..LoaderOptions::default() }), "data loader: sampler must be of shape [1797], got [2]"),
        row!(_s => Subset::new(Digits::load()?, [1, 5000]), "subset: row 5000 is out of range for size 1797"),
        row!(_s => Ragged::new([vec![1, 4]], 4), "ragged: index 4 is out of range for size 4"),
        row!(_s => Text::new(""), "text: text must be not empty, got no characters"),
        row!(_s => Text::new("abc")?.encode("abz"), "text: text must be made of the vocabulary's characters, got 'z'"),
        row!(_s => Text::new("abc")?.windows(5, 1, 0), "text: length must be at least 1 and less than the text's, got 5 of 3 characters"),
        row!(s => npy::load(s.dir.join("none.npy"), &s.d), "DIR/none.npy: No such file or directory (os error 2)"),
        row!(s => npy::load(s.file("text.npy", b"no array"), &s.d), "DIR/text.npy: it does not begin like a .npy file"),
        row!(s => npz::load(s.file("text.npz", b"no archive"), &s.d), "DIR/text.npz: invalid Zip archive: Could not find EOCD"),
    ]);
}

#[test]
fn checkpoints() {
    check(&[
        row!(s => checkpoint::load(s.dir.join("none.safetensors"), &s.linear(3, 4)), "DIR/none.safetensors: No such file or directory (os error 2)"),
        row!(s => checkpoint::save(s.dir.join("no/such/folder"), &s.linear(3, 4)), "DIR/no/such/folder: No such file or directory (os error 2)"),
        row!(s => checkpoint::load(s.file("model.pt", b"PK\x03\x04 and more"), &s.linear(3, 4)), "DIR/model.pt: a file of `torch.save`: write it with `safetensors.torch.save_file`"),
        row!(s => checkpoint::load(s.file("short.safetensors", b"abc"), &s.linear(3, 4)), "DIR/short.safetensors: it ends before its header"),
        row!(s => checkpoint::load(s.saved("a", &s.linear(3, 5)), &s.linear(3, 4)), "checkpoint: parameter weight: shape [5, 3] in the file, [4, 3] in the model; bias: shape [5] in the file, [4] in the model"),
        row!(s => checkpoint::load(s.saved("b", &(s.linear(3, 4), s.linear(4, 2))), &s.linear(3, 4)), "checkpoint: parameter weight: missing in the file; bias: missing in the file; 0.bias: in the file, but not in the model; 0.weight: in the file, but not in the model; 1.bias: in the file, but not in the model; 1.weight: in the file, but not in the model; names in the file begin with \"0.\", see `LoadOptions::prefix`"),
        row!(s => checkpoint::load(s.saved("c", &s.linear(3, 4)), &(s.linear(3, 4), s.linear(4, 2))), "checkpoint: parameter 0.weight: missing in the file; 0.bias: missing in the file; 1.weight: missing in the file; 1.bias: missing in the file; bias: in the file, but not in the model; weight: in the file, but not in the model; no name is in both, as in a file of another model"),
        row!(s => checkpoint::load(s.saved("d", &Sequential::new().push(s.linear(3, 4))), &s.linear(3, 4)), "checkpoint: parameter weight: missing in the file; bias: missing in the file; 0.bias: in the file, but not in the model; 0.weight: in the file, but not in the model; names in the file begin with \"0.\", see `LoadOptions::prefix`"),
        row!(s => checkpoint::load(s.saved("e", &mlp(&[4, 8, 2], 1, &s.d)?), &Gru::new(3, 4, &s.d)?), "checkpoint: parameter weight_ih_l0: missing in the file; weight_hh_l0: missing in the file; bias_ih_l0: missing in the file; bias_hh_l0: missing in the file; 0.bias: in the file, but not in the model; 0.weight: in the file, but not in the model; 2.bias: in the file, but not in the model; 2.weight: in the file, but not in the model; no name is in both, as in a file of another model"),
        row!(s => checkpoint::load_training(s.saved("f", &s.linear(3, 4)), &s.linear(3, 4), &mut Adam::new(vec![s.v(&[1])], 0.1)?), "checkpoint: parameter optimizer: no training state in the file; `load` reads a model alone"),
        row!(s => checkpoint::read(s.saved("g", &s.linear(3, 4)))?.tensor("scale", &s.d), "checkpoint: parameter scale: missing in the file"),
    ]);
}

fn forward_line(error: &Error) -> u32 {
    let place = error.forward_location().unwrap();
    assert_eq!(place.file(), file!());
    place.line()
}

/// An error in a backward pass has the line of the pass and that of the op.
#[test]
fn gradients() {
    let s = Setup::new();
    let (x, line) = (s.v(&[2]), line!() + 1);
    let y = x.exp().unwrap();
    y.value().add_scalar_(1.0).unwrap();
    let (error, pass) = (y.sum_all().unwrap().backward().unwrap_err(), line!());
    assert_eq!(
        error.to_string(),
        "backward: a tensor that exp saved at version 0 was changed in place since, to version 1; change a copy of it"
    );
    assert_eq!((error.location().line(), forward_line(&error)), (pass, line));
    let value = x.value().exp().unwrap();
    let line = line!() + 1;
    let y = record("doubled", &[&x], &[], value, |_, g| Ok([Some(g.sum_all()?)].into_iter().collect()));
    let (error, pass) = (y.sum_all().unwrap().backward().unwrap_err(), line!());
    assert_eq!(error.to_string(), "doubled: gradient must be of shape [2], got []");
    assert_eq!((error.location().line(), forward_line(&error)), (pass, line));
}

/// What a `main` that returns the error prints.
#[test]
fn main_prints_a_sentence() {
    let s = Setup::new();
    let (error, line) = (s.t(&[2, 3]).reshape(&[7]).unwrap_err(), line!());
    assert_eq!(
        format!("{error:?}"),
        format!("{error}\n  at {}:{line}:{}", file!(), error.location().column())
    );
}
