//! Every op on BF16 and F16 gives what it gives on the same numbers in F32, rounded once, and so does every gradient.

#![allow(clippy::unwrap_used, clippy::panic)]

use autograd::ops::CrossEntropy;
use autograd::{Reduction, Var};
use tensor::{AvgPool, BinaryOp, ConvOptions, DType, Device, GeluKind, MaxPool, RandomKey, Result, Tensor};

/// An op, the shapes of its inputs, and how much its gradients may differ because they are functions of a rounded result
/// that is saved, in ulp.
struct Case {
    name: &'static str,
    shapes: &'static [&'static [usize]],
    run: fn(&[Var]) -> Result<Var>,
    saves_result: bool,
}

const fn case(
    name: &'static str,
    shapes: &'static [&'static [usize]],
    run: fn(&[Var]) -> Result<Var>,
) -> Case {
    Case { name, shapes, run, saves_result: false }
}

/// A case whose gradient is a function of the rounded result.
const fn saving(
    name: &'static str,
    shapes: &'static [&'static [usize]],
    run: fn(&[Var]) -> Result<Var>,
) -> Case {
    Case { name, shapes, run, saves_result: true }
}

const ONE: &[&[usize]] = &[&[5, 19]];
const TWO: &[&[usize]] = &[&[5, 19], &[5, 19]];
const ROWS: &[&[usize]] = &[&[5, 19], &[19]];
const IMAGES: &[&[usize]] = &[&[2, 3, 6, 5]];

fn labels(of: &Var) -> Result<Tensor> {
    Tensor::from_slice(&[3_i64, 0, 18, 7, 7], &[5], of.device())
}

/// Targets of 0 and 3 / 4.
fn probabilities(of: &Var) -> Result<Var> {
    let positive = of.value().gt(0.0)?.to_dtype(of.dtype())?;
    Ok(Var::constant(positive.mul_scalar(0.75)?))
}

const CASES: &[Case] = &[
    case("abs", ONE, |x| x[0].abs()),
    case("add", ROWS, |x| x[0].add(&x[1])),
    case("sub", TWO, |x| x[0].sub(&x[1])),
    case("mul", TWO, |x| x[0].mul(&x[1])),
    case("mul of a row", ROWS, |x| x[0].mul(&x[1])),
    case("div by a row", ROWS, |x| x[0].div(&x[1])),
    case("div", TWO, |x| x[0].div(&x[1])),
    case("pow", TWO, |x| x[0].pow(&x[1])),
    case("atan2", TWO, |x| x[0].atan2(&x[1])),
    case("fmod", TWO, |x| x[0].fmod(&x[1])),
    case("maximum", TWO, |x| x[0].maximum(&x[1])),
    case("minimum", TWO, |x| x[0].minimum(&x[1])),
    case("add_scalar", ONE, |x| x[0].add_scalar(0.3)),
    case("mul_scalar", ONE, |x| x[0].mul_scalar(-1.7)),
    case("div_scalar", ONE, |x| x[0].div_scalar(3.0)),
    case("clamp", ONE, |x| x[0].clamp(-0.3, 0.7)),
    saving("exp", ONE, |x| x[0].exp()),
    case("log", ONE, |x| x[0].log()),
    case("sqrt", ONE, |x| x[0].sqrt()),
    case("rsqrt", ONE, |x| x[0].rsqrt()),
    case("reciprocal", ONE, |x| x[0].reciprocal()),
    case("square", ONE, |x| x[0].square()),
    case("pow_scalar", ONE, |x| x[0].pow_scalar(1.7)),
    case("sin", ONE, |x| x[0].sin()),
    case("cos", ONE, |x| x[0].cos()),
    case("tanh", ONE, |x| x[0].tanh()),
    case("sigmoid", ONE, |x| x[0].sigmoid()),
    case("erf", ONE, |x| x[0].erf()),
    case("relu", ONE, |x| x[0].relu()),
    case("leaky_relu", ONE, |x| x[0].leaky_relu(0.01)),
    case("silu", ONE, |x| x[0].silu()),
    case("gelu", ONE, |x| x[0].gelu(GeluKind::Erf)),
    case("gelu_tanh", ONE, |x| x[0].gelu(GeluKind::Tanh)),
    case("elu", ONE, |x| x[0].elu(0.7)),
    case("softplus", ONE, |x| x[0].softplus(1.0, 20.0)),
    case("steep softplus", ONE, |x| x[0].softplus(2.3, 20.0)),
    case("softsign", ONE, |x| x[0].softsign()),
    case("tan", ONE, |x| x[0].tan()),
    case("log2", ONE, |x| x[0].log2()),
    case("log1p", ONE, |x| x[0].log1p()),
    case("expm1", ONE, |x| x[0].expm1()),
    case("floor", ONE, |x| x[0].floor()),
    case("round", ONE, |x| x[0].round()),
    case("log_sigmoid", ONE, |x| x[0].log_sigmoid()),
    case("selu", ONE, |x| x[0].selu()),
    case("celu", ONE, |x| x[0].celu(0.7)),
    case("hard_sigmoid", ONE, |x| x[0].hard_sigmoid()),
    case("hard_swish", ONE, |x| x[0].hard_swish()),
    case("mish", ONE, |x| x[0].mish()),
    case("masked_fill", ONE, |x| x[0].masked_fill(&x[0].value().gt(0.0)?, -1.5)),
    case("where_cond", TWO, |x| Var::where_cond(&x[0].value().gt(0.0)?, &x[0], &x[1])),
    case("sum", ONE, |x| x[0].sum(&[1], false)),
    case("sum of columns", ONE, |x| x[0].sum(&[0], true)),
    case("mean", ONE, |x| x[0].mean(&[1], false)),
    case("max", ONE, |x| x[0].max(&[1], false)),
    case("min", ONE, |x| x[0].min(&[0], false)),
    case("var", ONE, |x| x[0].var(&[1], 1.0, false)),
    case("std", ONE, |x| x[0].std(&[1], 1.0, false)),
    case("logsumexp", ONE, |x| x[0].logsumexp(&[1], false)),
    saving("softmax", ONE, |x| x[0].softmax(1)),
    saving("log_softmax", ONE, |x| x[0].log_softmax(1)),
    case("cumsum", ONE, |x| x[0].cumsum(1)),
    case("prod", ONE, |x| x[0].prod(&[1], false)),
    case("cumprod", ONE, |x| x[0].cumprod(1)),
    case("norm", ONE, |x| x[0].norm(2.0, &[1], false)),
    case("cubic norm", ONE, |x| x[0].norm(3.0, &[1], false)),
    case("normalize", ONE, |x| x[0].normalize(2.0, 1, 1e-12)),
    case("cosine_similarity", TWO, |x| x[0].cosine_similarity(&x[1], 1, 1e-8)),
    case("sort", ONE, |x| Ok(x[0].sort(1, true)?.0)),
    case("topk", ONE, |x| Ok(x[0].topk(3, 1, true)?.0)),
    case("flip", ONE, |x| x[0].flip(&[1])),
    case("roll", ONE, |x| x[0].roll(3, 1)),
    case("repeat", ONE, |x| x[0].repeat(&[2, 1])),
    case("step_by", ONE, |x| x[0].step_by(1, 3)),
    case("layer_norm", ONE, |x| x[0].layer_norm(&[19], None, None, 1e-5)),
    case("rms_norm", ONE, |x| x[0].rms_norm(&[19], None, Some(1e-5))),
    case("group_norm", IMAGES, |x| x[0].group_norm(3, None, None, 1e-5)),
    case("matmul", &[&[5, 19], &[19, 7]], |x| x[0].matmul(&x[1])),
    case("linear", &[&[5, 19], &[7, 19], &[7]], |x| x[0].linear(&x[1], Some(&x[2]))),
    case("conv2d", &[&[2, 3, 6, 5], &[4, 3, 3, 3]], |x| x[0].conv2d(&x[1], None, &ConvOptions::default())),
    case("avg_pool2d", IMAGES, |x| x[0].avg_pool2d(&AvgPool::new([2, 2]))),
    case("max_pool2d", IMAGES, |x| x[0].max_pool2d(&MaxPool::new([2, 2]))),
    case("mse_loss", TWO, |x| x[0].mse_loss(&x[1], Reduction::Mean)),
    case("l1_loss", TWO, |x| x[0].l1_loss(&x[1], Reduction::None)),
    case("smooth_l1_loss", TWO, |x| x[0].smooth_l1_loss(&x[1], 0.5, Reduction::Sum)),
    case("bce_with_logits", ONE, |x| x[0].bce_with_logits(&probabilities(&x[0])?, Reduction::None)),
    case("kl_div", ONE, |x| x[0].kl_div(&probabilities(&x[0])?, false, Reduction::Mean)),
    case("cross_entropy", ONE, |x| x[0].cross_entropy(&labels(&x[0])?, Reduction::Mean)),
    case("weighted cross_entropy", ONE, |x| {
        let options = CrossEntropy { ignore_index: 7, label_smoothing: 0.1, ..CrossEntropy::default() };
        options.loss(&x[0], &labels(&x[0])?)
    }),
    case("nll_loss", ONE, |x| x[0].nll_loss(&labels(&x[0])?, Reduction::Mean)),
    case("dropout", ONE, |x| x[0].dropout(0.3, RandomKey { seed: 1, op: 2 })),
    case("index_select", ONE, |x| {
        x[0].index_select(1, &Tensor::from_slice(&[3_i64, 3, 0], &[3], x[0].device())?)
    }),
    case("upsample_bilinear", IMAGES, |x| x[0].upsample_bilinear2d([11, 8], false)),
];

fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_dtype(DType::F64)?.to_vec::<f64>()
}

/// The result of an op, and the gradients of its inputs.
fn results(case: &Case, inputs: &[Tensor]) -> Result<Vec<(String, Tensor)>> {
    let leaves: Vec<Var> = inputs.iter().cloned().map(Var::leaf).collect();
    let y = (case.run)(&leaves)?;
    // A gradient of 1 for every element, in the result's type.
    let gradients = y.to_dtype(DType::F64)?.sum_all()?.backward()?;
    let mut results = vec![("result".to_owned(), y.value().clone())];
    for (k, leaf) in leaves.iter().enumerate() {
        results.extend(gradients.get(leaf).map(|g| (format!("gradient of input {k}"), g)));
    }
    Ok(results)
}

fn check(device: &Device, dtype: DType, scale: f64, wrong: &mut Vec<String>) -> Result<()> {
    for case in CASES {
        let draw = |(salt, shape): (u64, &&[usize])| {
            let key = RandomKey { seed: 11, op: salt };
            Tensor::randn(shape, DType::F64, key, device)?.mul_scalar(scale)?.to_dtype(dtype)
        };
        let halves: Vec<Tensor> = (0..).zip(case.shapes).map(draw).collect::<Result<_>>()?;
        let wide: Vec<Tensor> = halves.iter().map(|x| x.to_dtype(DType::F32)).collect::<Result<_>>()?;
        let (found, exact) = (results(case, &halves)?, results(case, &wide)?);
        for ((what, found), (_, exact)) in found.iter().zip(&exact) {
            let (found, exact) = (numbers(found)?, numbers(&exact.to_dtype(found.dtype())?)?);
            let alike =
                |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan() || a == b;
            let saved = what != "result" && case.saves_result;
            if let Some(at) = found.iter().zip(&exact).position(|pair| !alike(pair)).filter(|_| !saved) {
                wrong.push(format!(
                    "{} of {dtype}, numbers of about {scale}: {what}: {:e}, not {:e}",
                    case.name, found[at], exact[at]
                ));
            }
        }
    }
    Ok(())
}

#[test]
fn ops_on_halves_round_once() -> Result<()> {
    let mut wrong = Vec::new();
    for dtype in [DType::BF16, DType::F16] {
        for scale in [1.0, 2_f64.powi(-12), 9.0, 2_f64.powi(14)] {
            check(&Device::cpu(), dtype, scale, &mut wrong)?;
        }
    }
    assert!(wrong.is_empty(), "{} are rounded otherwise:\n{}", wrong.len(), wrong.join("\n"));
    // No op of two elements is left out.
    assert!(BinaryOp::ALL.iter().all(|op| CASES.iter().any(|case| case.name == op.name())));
    Ok(())
}

/// More ties than F16 can count.
#[test]
fn ties_of_f16_share_the_gradient() -> Result<()> {
    let x = Var::leaf(Tensor::ones(&[70_000], DType::F16, &Device::cpu())?);
    for extreme in [x.max(&[], false)?, x.min(&[0], true)?, x.amax(&[], false)?, x.amin(&[], false)?] {
        let gradients = extreme.sum_all()?.backward()?;
        let share = numbers(&gradients.get(&x).unwrap())?;
        let expected = numbers(&Tensor::full(&[1], 1.0 / 70_000.0, DType::F16, x.device())?)?[0];
        assert!(expected > 0.0 && share.iter().all(|&share| share == expected), "{:?}", &share[..3]);
    }
    Ok(())
}
