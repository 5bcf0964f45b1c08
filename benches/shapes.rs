//! This engine's side of `peers/torch_shapes.py`, which draws ops and shapes at random, checks the values and prints the table.
//! Reads a case or a request to time it a line, as JSON, and answers each with a line.
//!
//!     {"case": {..}}  ->  {"outputs": [[path, shape], ..]}     the values as files of F32 or I64
//!     {"time": ms}    ->  {"eager": ms, "captured": ms}        of one call, from as many calls as take `ms`

#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{Write, stdin, stdout};
use std::time::Instant;

use serde_json::{Value, json};
use streamgrad::autograd::ops::{AttentionOptions, BagMode, BagOptions, Cell};
use streamgrad::prelude::*;
use streamgrad::tensor::{AvgPool, ConvOptions, GeluKind, MaxPool};
use streamgrad::{BackwardOptions, CpuConfig, Error, Graph, Reduction, Result};

/// The operands and options of a case.
struct Case {
    op: String,
    /// The inputs that have gradients where the case asks for them, and those that have none.
    vars: Vec<Var>,
    others: Vec<Tensor>,
    options: Value,
    /// The gradient of the result, if those of the inputs are wanted.
    gradient: Option<Var>,
}

/// A case, and its captured step.
type Step = (Case, Graph<Vec<Tensor>>);

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let device = match args.next().as_deref() {
        Some("cuda") => Device::cuda(0).unwrap(),
        Some("cpu") => {
            let threads = args.next().map(|threads| threads.parse().unwrap());
            Device::cpu_with(CpuConfig { threads, ..CpuConfig::default() })
        }
        _ => return println!("shapes cuda | cpu [THREADS]; see benches/peers/torch_shapes.py"),
    };
    let mut step: Option<Step> = None;
    for line in stdin().lines() {
        let request: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let answer = match (&request["case"], &mut step) {
            (Value::Null, Some((case, graph))) => {
                times(&device, case, graph, request["time"].as_f64().unwrap())
            }
            (Value::Null, None) => Ok(json!({"error": "no case to time"})),
            (case, step) => {
                *step = None;
                prepare(&device, case).map(|(prepared, outputs)| {
                    *step = Some(prepared);
                    json!({ "outputs": outputs })
                })
            }
        };
        println!("{}", answer.unwrap_or_else(|error| json!({"error": error.to_string()})));
        stdout().flush().unwrap();
    }
}

/// Reads the inputs, captures the step, and writes what a replay gives.
fn prepare(device: &Device, case: &Value) -> Result<(Step, Vec<Value>)> {
    let inputs = case["inputs"].as_array().unwrap();
    let (mut vars, mut others, mut gradient) = (Vec::new(), Vec::new(), None);
    for input in inputs {
        let tensor = read(device, input)?;
        match input["role"].as_str().unwrap() {
            "leaf" => vars.push(Var::leaf(tensor)),
            "constant" => vars.push(Var::constant(tensor)),
            "gradient" => gradient = Some(Var::constant(tensor)),
            _ => others.push(tensor),
        }
    }
    let options = case["options"].clone();
    let case = Case { op: case["op"].as_str().unwrap().to_owned(), vars, others, options, gradient };
    let graph = Graph::capture(device, || case.run())?;
    let mut outputs = Vec::new();
    for (index, output) in graph.replay()?.iter().enumerate() {
        let path =
            format!("{}/ours-{index}", inputs[0]["path"].as_str().unwrap().rsplit_once('/').unwrap().0);
        let bytes = match output.dtype() {
            DType::I64 => output.to_bytes()?,
            _ => output.to_dtype(DType::F32)?.to_bytes()?,
        };
        std::fs::write(&path, bytes).unwrap();
        outputs.push(json!([path, output.shape()]));
    }
    Ok(((case, graph), outputs))
}

/// A file of F32, I64 or Bool as a tensor of the input's type, with axes in the input's order.
fn read(device: &Device, input: &Value) -> Result<Tensor> {
    let bytes = std::fs::read(input["path"].as_str().unwrap()).unwrap();
    let (shape, order) = (sizes(&input["shape"]), &input["permute"]);
    let f32s =
        || -> Vec<f32> { bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect() };
    let tensor = match input["dtype"].as_str().unwrap() {
        "i64" => {
            let values = bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()));
            Tensor::from_slice(&values.collect::<Vec<_>>(), &shape, device)?
        }
        "bool" => {
            Tensor::from_slice(&bytes.iter().map(|&byte| byte != 0).collect::<Vec<_>>(), &shape, device)?
        }
        "bf16" => Tensor::from_slice(&f32s(), &shape, device)?.to_dtype(DType::BF16)?,
        _ => Tensor::from_slice(&f32s(), &shape, device)?,
    };
    if order.is_null() { Ok(tensor) } else { tensor.permute(&axes(order)) }
}

fn times(device: &Device, case: &Case, graph: &Graph<Vec<Tensor>>, budget_ms: f64) -> Result<Value> {
    Ok(json!({
        "eager": time(device, budget_ms, || case.run())?,
        "captured": time(device, budget_ms, || graph.replay())?,
    }))
}

/// Milliseconds of a call.
fn time<R>(device: &Device, budget_ms: f64, step: impl Fn() -> Result<R>) -> Result<f64> {
    let burst = |calls: usize| -> Result<f64> {
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..calls {
            step()?;
        }
        device.synchronize()?;
        Ok(start.elapsed().as_secs_f64() * 1e3 / calls as f64)
    };
    let once = burst(2)?.min(burst(2)?);
    burst((budget_ms / once).ceil().clamp(3.0, 2000.0) as usize)
}

impl Case {
    /// The results and, if wanted, the gradients of the leaves.
    fn run(&self) -> Result<Vec<Tensor>> {
        let results = self.forward()?;
        let mut values: Vec<Tensor> = results.iter().map(|result| result.value().clone()).collect();
        if let Some(gradient) = &self.gradient {
            let options = BackwardOptions { gradient: Some(gradient.clone()), ..BackwardOptions::default() };
            let gradients = results[0].backward_with(options)?;
            values.extend(self.vars.iter().filter_map(|var| gradients.get(var)));
        }
        Ok(values)
    }

    fn forward(&self) -> Result<Vec<Var>> {
        let (v, t, o) = (&self.vars, &self.others, &self.options);
        let (over, keepdim) = (axes(&o["axes"]), false);
        let axis = over.first().copied().unwrap_or(0);
        let eps = 1e-5;
        let one = match self.op.as_str() {
            "sum" => v[0].sum(&over, keepdim),
            "mean" => v[0].mean(&over, keepdim),
            "amax" => v[0].amax(&over, keepdim),
            "var" => v[0].var(&over, 1.0, keepdim),
            "logsumexp" => v[0].logsumexp(&over, keepdim),
            "argmax" => Ok(Var::constant(v[0].value().argmax(axis, keepdim)?)),
            "cumsum" => v[0].cumsum(axis),
            "softmax" => v[0].softmax(axis),
            "log_softmax" => v[0].log_softmax(axis),
            "cross_entropy" => v[0].cross_entropy(&t[0], Reduction::Mean),
            "layer_norm" => v[0].layer_norm(&v[0].shape()[v[0].shape().len() - 1..], v.get(1), v.get(2), eps),
            "rms_norm" => v[0].rms_norm(&v[0].shape()[v[0].shape().len() - 1..], v.get(1), Some(eps)),
            "group_norm" => v[0].group_norm(size(&o["groups"]), v.get(1), v.get(2), eps),
            "batch_norm" => Ok(v[0].batch_norm(v.get(1), v.get(2), eps)?.0),
            "embedding" => v[0].embedding(&t[0], None),
            "embedding_bag" => {
                let options = BagOptions { mode: BagMode::Sum, ..BagOptions::default() };
                v[0].embedding_bag(&t[0], None, &options)
            }
            "index_select" => v[0].index_select(axis, &t[0]),
            "index_add" => v[0].index_add(axis, &t[0], &v[1]),
            "gather" => v[0].gather(axis, &t[0]),
            "scatter_add" => v[0].scatter_add(axis, &t[0], &v[1]),
            "conv2d" => v[0].conv2d(&v[1], v.get(2), &conv_options(o)),
            "conv_transpose2d" => {
                v[0].conv_transpose2d(&v[1], v.get(2), pair(&o["output_padding"]), &conv_options(o))
            }
            "max_pool2d" => v[0].max_pool2d(&MaxPool {
                stride: pair(&o["stride"]),
                padding: pair(&o["padding"]),
                ..MaxPool::new(pair(&o["kernel"]))
            }),
            "avg_pool2d" => v[0].avg_pool2d(&AvgPool {
                stride: pair(&o["stride"]),
                padding: pair(&o["padding"]),
                ..AvgPool::new(pair(&o["kernel"]))
            }),
            "bilinear" => v[0].upsample_bilinear2d(pair(&o["size"]), false),
            "nearest" => v[0].upsample_nearest2d(pair(&o["size"])),
            "matmul" => v[0].matmul(&v[1]),
            "linear" => v[0].linear(&v[1], v.get(2)),
            "attention" => v[0].scaled_dot_product_attention(
                &v[1],
                &v[2],
                &AttentionOptions {
                    attn_mask: t.first().cloned(),
                    is_causal: o["causal"].as_bool().unwrap_or(false),
                    enable_gqa: o["gqa"].as_bool().unwrap_or(false),
                    ..AttentionOptions::default()
                },
            ),
            "contiguous" => v[0].contiguous(),
            "sort" => Ok(v[0].sort(axis, false)?.0),
            "topk" => Ok(v[0].topk(size(&o["k"]), axis, true)?.0),
            "norm" => v[0].norm(2.0, &over, keepdim),
            "normalize" => v[0].normalize(2.0, axis, 1e-12),
            "cosine_similarity" => v[0].cosine_similarity(&v[1], axis, 1e-8),
            "einsum" => Var::einsum(o["equation"].as_str().unwrap(), &v.iter().collect::<Vec<_>>()),
            "lstm" => recurrent(v, o, Lstm::with_options),
            "gru" => recurrent(v, o, Gru::with_options),
            "cat" => Var::cat(&v.iter().collect::<Vec<_>>(), axis),
            "chain" => chain(v, o["chain"].as_array().unwrap()),
            op => Err(Error::invalid("shapes", "op", "one of those above", op)),
        };
        Ok(vec![one?])
    }
}

type Make<C> = fn(usize, usize, RecurrentOptions, &Device) -> Result<Recurrent<C>>;

/// A recurrent layer with the values behind the first as its parameters.
fn recurrent<C: Cell>(vars: &[Var], o: &Value, make: Make<C>) -> Result<Var> {
    let options = RecurrentOptions { layers: size(&o["layers"]), ..RecurrentOptions::default() };
    let layer = make(vars[0].shape()[2], size(&o["hidden"]), options, vars[0].device())?;
    layer.with_parameters(&vars[1..])?.forward(&vars[0])
}

/// Functions one after the other on the first value; those of two operands take the next value.
fn chain(vars: &[Var], functions: &[Value]) -> Result<Var> {
    let (mut value, mut others) = (vars[0].clone(), vars[1..].iter());
    for function in functions {
        value = match function.as_str().unwrap() {
            "add" => value.add(others.next().unwrap()),
            "mul" => value.mul(others.next().unwrap()),
            "sub" => value.sub(others.next().unwrap()),
            "maximum" => value.maximum(others.next().unwrap()),
            "relu" => value.relu(),
            "silu" => value.silu(),
            "gelu" => value.gelu(GeluKind::Erf),
            "tanh" => value.tanh(),
            "sigmoid" => value.sigmoid(),
            "exp" => value.exp(),
            "square" => value.square(),
            "scale" => value.mul_scalar(0.5),
            function => Err(Error::invalid("shapes", "chain", "functions of those above", function)),
        }?;
    }
    Ok(value)
}

fn conv_options(o: &Value) -> ConvOptions {
    ConvOptions {
        stride: pair(&o["stride"]),
        padding: pair(&o["padding"]),
        dilation: pair(&o["dilation"]),
        groups: size(&o["groups"]),
    }
}

fn size(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn sizes(value: &Value) -> Vec<usize> {
    value.as_array().into_iter().flatten().map(size).collect()
}

fn pair(value: &Value) -> [usize; 2] {
    sizes(value).try_into().unwrap()
}

fn axes(value: &Value) -> Vec<isize> {
    value.as_array().into_iter().flatten().map(|axis| axis.as_i64().unwrap() as isize).collect()
}
