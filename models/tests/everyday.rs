//! Everyday ops and layers against PyTorch: `tests/reference/everyday.py` says how the reference was made.

use autograd::ops::{BceWithLogits, Cell, CellState, CrossEntropy, Elman, GruCell, LstmCell};
use autograd::{GradOptions, Reduction, Var, grad};
use device::{DType, Device, Result};
use models::{Gru, Lstm, Module, Recurrent, RecurrentOptions, Rnn};
use serde_json::Value;
use tensor::Tensor;

/// The numbers that the script draws from a seed.
fn numbers(seed: u64, count: usize, special: bool) -> Vec<f64> {
    const SPECIAL: [f64; 5] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0];
    let mut state = seed * 7919 + 17;
    let draw = |i: usize| {
        state = (state * 1_103_515_245 + 12_345) % (1 << 31);
        let value = ((state >> 12) % 65) as f64 / 16.0 - 2.0;
        if special && i % 4 == 3 { SPECIAL[(state >> 20) as usize % 5] } else { value }
    };
    (0..count).map(draw).collect()
}

fn drawn(seed: u64, shape: &[usize], dtype: DType, special: bool) -> Result<Tensor> {
    let values = numbers(seed, shape.iter().product(), special);
    Tensor::from_slice(&values, shape, &Device::cpu())?.to_dtype(dtype)
}

fn parsed(list: &Value) -> Vec<f64> {
    let number = |value: &Value| match value.as_str() {
        Some(text) => text.parse().expect("nan, inf or -inf"),
        None => value.as_f64().expect("a number"),
    };
    list.as_array().expect("a list").iter().map(number).collect()
}

fn shape(list: &Value) -> Vec<usize> {
    parsed(list).into_iter().map(|size| size as usize).collect()
}

/// The arguments of a case.
struct Args<'a>(&'a Value);

impl Args<'_> {
    fn flag(&self, at: usize) -> bool {
        self.0[at].as_bool().expect("a flag")
    }
    fn text(&self, at: usize) -> &str {
        self.0[at].as_str().expect("a text")
    }
    fn real(&self, at: usize) -> f64 {
        self.0[at].as_f64().unwrap_or_else(|| self.text(at).parse().expect("a number"))
    }
    fn whole(&self, at: usize) -> isize {
        self.0[at].as_i64().expect("an integer") as isize
    }
    fn wholes(&self) -> Vec<isize> {
        self.0
            .as_array()
            .into_iter()
            .flatten()
            .map(|value| value.as_i64().expect("an integer") as isize)
            .collect()
    }
    fn reduction(&self, at: usize) -> Reduction {
        match self.text(at) {
            "none" => Reduction::None,
            "sum" => Reduction::Sum,
            _ => Reduction::Mean,
        }
    }
}

fn constants<const N: usize>(tensors: [Tensor; N]) -> Vec<Var> {
    tensors.map(Var::constant).into()
}

/// The results of a case, in the order of the script's.
fn run(op: &str, args: &Args<'_>, x: &[Var], seed: u64) -> Result<Vec<Var>> {
    let truth = |at: usize| x[at].value().ne(0.0);
    let (values, indices) = match op {
        "floor" => (x[0].floor()?, None),
        "ceil" => (x[0].ceil()?, None),
        "round" => (x[0].round()?, None),
        "trunc" => (x[0].trunc()?, None),
        "tan" => (x[0].tan()?, None),
        "expm1" => (x[0].expm1()?, None),
        "log1p" => (x[0].log1p()?, None),
        "log2" => (x[0].log2()?, None),
        "log_sigmoid" => (x[0].log_sigmoid()?, None),
        "selu" => (x[0].selu()?, None),
        "celu" => (x[0].celu(0.75)?, None),
        "isnan" => return Ok(constants([x[0].value().isnan()?])),
        "isinf" => return Ok(constants([x[0].value().isinf()?])),
        "isfinite" => return Ok(constants([x[0].value().isfinite()?])),
        "sort" => {
            let (values, indices) = x[0].sort(args.whole(0), args.flag(1))?;
            (values, Some(indices))
        }
        "topk" => (x[0].topk(2, args.whole(0), args.flag(1))?.0, None),
        "flip" => (x[0].flip(&args.wholes())?, None),
        "roll" => (x[0].roll(args.whole(0), args.whole(1))?, None),
        "repeat" => {
            let counts: Vec<usize> = args.wholes().into_iter().map(isize::unsigned_abs).collect();
            (x[0].repeat(&counts)?, None)
        }
        "step_by" => (x[0].step_by(args.whole(0), args.whole(1).unsigned_abs())?, None),
        "chunk" => return x[0].chunk(3, 0),
        "any" => return Ok(constants([x[0].value().any(&[args.whole(0)], args.flag(1))?])),
        "all" => return Ok(constants([x[0].value().all(&[args.whole(0)], args.flag(1))?])),
        "logical_and" => return Ok(constants([x[0].value().logical_and(x[1].value())?])),
        "logical_or" => return Ok(constants([x[0].value().logical_or(x[1].value())?])),
        "logical_xor" => return Ok(constants([x[0].value().logical_xor(x[1].value())?])),
        "bool_mul" => return Ok(constants([truth(0)?.mul(&truth(1)?)?])),
        "bool_maximum" => return Ok(constants([truth(0)?.maximum(&truth(1)?)?])),
        "bool_minimum" => return Ok(constants([truth(0)?.minimum(&truth(1)?)?])),
        "one_hot" => {
            let classes = x[0].value().mul_scalar(4.0)?.add_scalar(8.0)?.to_dtype(DType::I64)?;
            return Ok(constants([classes.one_hot(17)?]));
        }
        "nonzero" => {
            return Ok(constants([x[0].value().gt(0.0)?.nonzero()?]));
        }
        "masked_select" => {
            let mask = drawn(seed + 3, x[0].shape(), DType::F64, false)?.gt(0.0)?;
            (x[0].masked_select(&mask)?, None)
        }
        "prod" => (x[0].prod(&[args.whole(0)], args.flag(1))?, None),
        "cumprod" => (x[0].cumprod(args.whole(0))?, None),
        "norm" => (x[0].norm(args.real(0), &[args.whole(1)], false)?, None),
        "normalize" => (x[0].normalize(args.real(0), args.whole(1), 1e-12)?, None),
        "cosine_similarity" => (x[0].cosine_similarity(&x[1], args.whole(0), 1e-8)?, None),
        "einsum" => (Var::einsum(args.text(0), &x.iter().collect::<Vec<_>>())?, None),
        "outer" => (x[0].outer(&x[1])?, None),
        "dot" => (x[0].dot(&x[1])?, None),
        "kl_div" => {
            let target = x[1].detach();
            let target = if args.flag(0) { target } else { target.abs()? };
            (x[0].kl_div(&target, args.flag(0), args.reduction(1))?, None)
        }
        "bce_with_logits" => {
            let [weight, pos_weight] = [x[2].value().abs()?, x[3].value().abs()?].map(Some);
            let options = BceWithLogits { weight, pos_weight, reduction: args.reduction(0) };
            (options.loss(&x[0], &x[1].detach().abs()?.mul_scalar(0.5)?)?, None)
        }
        "soft_cross_entropy" => {
            let (weight, reduction) = (Some(x[2].value().abs()?), args.reduction(0));
            let options =
                CrossEntropy { weight, label_smoothing: args.real(1), reduction, ..CrossEntropy::default() };
            (options.loss_of_probabilities(&x[0], &x[1].softmax(1)?)?, None)
        }
        "recurrent" => {
            return match args.text(0) {
                "rnn" => recurrent::<Elman>(args, x, Rnn::with_options),
                "gru" => recurrent::<GruCell>(args, x, Gru::with_options),
                _ => recurrent::<LstmCell>(args, x, Lstm::with_options),
            };
        }
        other => unreachable!("an op {other} of the script"),
    };
    Ok([Some(values), indices.map(Var::constant)].into_iter().flatten().collect())
}

type Make<C> = fn(usize, usize, RecurrentOptions, &Device) -> Result<Recurrent<C>>;

/// The layer with the inputs behind the first as its parameters, and the last ones as its state.
fn recurrent<C: Cell>(args: &Args<'_>, x: &[Var], make: Make<C>) -> Result<Vec<Var>> {
    let layers = args.whole(1).unsigned_abs();
    let (bidirectional, bias, batch_first) = (args.flag(2), args.flag(3), args.flag(4));
    let dtype = x[0].dtype();
    let options =
        RecurrentOptions { layers, bidirectional, bias, batch_first, dtype, ..RecurrentOptions::default() };
    let layer = make(2, 3, options, &Device::cpu())?;
    let count = layer.parameters().len();
    let layer = layer.with_parameters(&x[1..=count])?;
    let state = if args.flag(5) { Some(C::State::from_parts(x[1 + count..].to_vec())?) } else { None };
    let (output, state) = layer.run(&x[0], state.as_ref())?;
    Ok([vec![output], state.parts()].concat())
}

/// What is wrong with results, if anything.
fn difference(what: &str, found: &Tensor, want: &[f64], tolerance: f64) -> Option<String> {
    let found = found.to_dtype(DType::F64).and_then(|x| x.contiguous()?.to_vec::<f64>()).expect("numbers");
    if found.len() != want.len() {
        return Some(format!("{what}: {} elements instead of {}", found.len(), want.len()));
    }
    let close = |(a, b): (&f64, &f64)| {
        a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance * b.abs().max(1.0)
    };
    let at = found.iter().zip(want).position(|pair| !close(pair))?;
    Some(format!("{what}, element {at}: {} instead of {}", found[at], want[at]))
}

/// Sums of values times weights that are drawn from a seed.
fn weighted<'a>(values: impl Iterator<Item = &'a Var>, seed: u64) -> Result<Var> {
    let term = |y: &Var| y.mul(&Var::constant(drawn(seed, y.shape(), y.dtype(), false)?))?.sum_all();
    let terms = values.map(term).collect::<Result<Vec<_>>>()?;
    terms[1..].iter().try_fold(terms[0].clone(), |sum, term| sum.add(term))
}

fn check(case: &Value) -> Result<Vec<String>> {
    let dtype = match case["dtype"].as_str().expect("a type") {
        "f64" => DType::F64,
        "f32" => DType::F32,
        _ => DType::BF16,
    };
    let (seed, special) =
        (case["seed"].as_u64().expect("a seed"), case["special"].as_bool().expect("a flag"));
    let tolerance = match dtype {
        DType::F64 => 1e-10,
        DType::F32 => 2e-5,
        _ => 0.02,
    };
    let shapes: Vec<Vec<usize>> = case["shapes"].as_array().expect("a list").iter().map(shape).collect();
    let inputs =
        (0..).zip(&shapes).map(|(k, shape)| drawn(seed + 100 * k, shape, dtype, special).map(Var::leaf));
    let inputs = inputs.collect::<Result<Vec<Var>>>()?;
    let outputs = run(case["op"].as_str().expect("a name"), &Args(&case["args"]), &inputs, seed)?;
    let mut wrong = Vec::new();
    let wanted = case["values"].as_array().expect("a list");
    assert_eq!(outputs.len(), wanted.len());
    for (number, (found, want)) in outputs.iter().zip(wanted).enumerate() {
        if found.shape() != shape(&want["shape"]) {
            wrong.push(format!("result {number}: shape {:?} instead of {}", found.shape(), want["shape"]));
            continue;
        }
        wrong.extend(difference(
            &format!("result {number}"),
            found.value(),
            &parsed(&want["numbers"]),
            tolerance,
        ));
    }
    let Some(first) = case["gradients"].as_array() else { return Ok(wrong) };
    // The gradients of the weighted sum, none where it depends on no input.
    let gradients_of = |values: Vec<&Var>, seed: u64, create_graph: bool| -> Result<Vec<Option<Var>>> {
        if values.is_empty() {
            return Ok(vec![None; inputs.len()]);
        }
        let options = GradOptions { retain_graph: true, create_graph, ..GradOptions::default() };
        grad(&[weighted(values.into_iter(), seed)?], &inputs, options)
    };
    let differentiable = || outputs.iter().filter(|y| y.requires_grad()).collect();
    let plain = gradients_of(differentiable(), seed + 7, false)?;
    let gradients = gradients_of(differentiable(), seed + 7, true)?;
    let mut compare = |what: &str, found: &[Option<Var>], want: &[Value]| -> Result<()> {
        for (number, ((found, want), input)) in found.iter().zip(want).zip(&inputs).enumerate() {
            let zeros = || input.value().zeros_like().map(Var::constant);
            // Without a gradient it is 0, on either side.
            let found = found.clone().map_or_else(zeros, Ok)?;
            let want = if want.is_null() { vec![0.0; input.elements()] } else { parsed(want) };
            wrong.extend(difference(&format!("{what} {number}"), found.value(), &want, tolerance));
        }
        Ok(())
    };
    compare("gradient", &plain, first)?;
    compare("recorded gradient", &gradients, first)?;
    if let Some(second) = case["second"].as_array() {
        let graphs = gradients.iter().flatten().filter(|g| g.requires_grad()).collect();
        let found = gradients_of(graphs, seed + 9, true)?;
        compare("second derivative", &found, second)?;
    }
    Ok(wrong)
}

#[test]
fn values_and_derivatives_are_those_of_pytorch() -> Result<()> {
    let reference: Value =
        serde_json::from_str(include_str!("../../tests/data/everyday.json")).expect("the script writes JSON");
    let cases = reference["cases"].as_array().expect("a list");
    assert_eq!(cases.len(), 1800);
    let mut wrong = Vec::new();
    for case in cases {
        let name = format!(
            "{} {} {} of {}, special {}",
            case["op"], case["args"], case["shapes"], case["dtype"], case["special"]
        );
        wrong.extend(check(case)?.into_iter().map(|detail| format!("{name}: {detail}")));
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}
