//! Every differentiable op against finite differences: one test for each op, sample and order, made from `ops::ALL`.

use autograd::ops::{ALL, OpEntry, Sample};
use autograd::{
    DType, Device, Error, ErrorKind, GradCheck, GradCheckReport, GradOptions, Result, Save, Tensor, Var,
    grad, gradcheck, gradgradcheck, no_grad, record,
};
use libtest_mimic::{Arguments, Failed, Trial};
use streamgrad::RandomKey;

fn main() -> std::process::ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = vec![
        Trial::test("check::a_wrong_gradient_is_caught", || failed(wrong_gradient())),
        Trial::test("check::a_missing_gradient_is_caught", || failed(missing_gradient())),
        Trial::test("check::a_wrong_second_derivative_is_caught", || failed(wrong_second_derivative())),
        Trial::test("check::fast_names_the_worst_element", || failed(fast_names_the_element())),
        Trial::test("check::bad_input_is_an_error", || failed(bad_input())),
        Trial::test("check::names_are_unique", || failed(names())),
    ];
    for op in ALL {
        match op.samples(&Device::cpu()) {
            Ok(samples) => {
                samples.into_iter().enumerate().for_each(|(at, sample)| add(&mut trials, op, at, sample))
            }
            Err(error) => trials.push(Trial::test(op.name, move || Err(error.into()))),
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The tests of one sample: first order on the default stream and on another, second order; and on a CUDA device, if there
/// is one, both orders along one direction, since there each evaluation is a row of launches.
fn add(trials: &mut Vec<Trial>, op: &'static OpEntry, at: usize, sample: Sample) {
    let name = |order| format!("{}::{}::{order}", op.name, sample.name);
    let fast = GradCheck { elements: 0, ..GradCheck::default() };
    trials.push(Trial::test(name("first"), move || first(op, at, &Device::cpu(), GradCheck::default())));
    trials.push(Trial::test(name("first_on_a_stream"), move || {
        Device::cpu().new_stream()?.scope(|| first(op, at, &Device::cpu(), fast))
    }));
    if op.twice_differentiable {
        trials
            .push(Trial::test(name("second"), move || second(op, at, &Device::cpu(), GradCheck::default())));
    }
    for dtype in [DType::BF16, DType::F16] {
        trials.push(Trial::test(name(dtype.name()), move || in_half(op, at, dtype)));
    }
    let Ok(cuda) = Device::cuda(0) else { return };
    for dtype in [DType::BF16, DType::F16] {
        let device = cuda.clone();
        let name = format!("{}_on_cuda", name(dtype.name()));
        trials.push(Trial::test(name, move || half_on(op, at, dtype, &device)));
    }
    trials.push(Trial::test(name("on_cuda"), move || {
        cuda.new_stream()?.scope(|| {
            first(op, at, &cuda, fast)?;
            if op.twice_differentiable { second(op, at, &cuda, fast) } else { Ok(()) }
        })
    }));
}

fn first(op: &OpEntry, at: usize, device: &Device, options: GradCheck) -> Result<(), Failed> {
    let sample = drawn(op, at, device)?;
    gradcheck(&sample.run, &sample.inputs, options)?;
    Ok(())
}

fn second(op: &OpEntry, at: usize, device: &Device, options: GradCheck) -> Result<(), Failed> {
    let sample = drawn(op, at, device)?;
    gradgradcheck(&sample.run, &sample.inputs, options)?;
    Ok(())
}

/// Samples that have constants of F64 in them, in ops that refuse mixed types.
const MIXED: [(&str, &str); 7] = [
    ("attention", "nothing_seen"),
    ("batch_norm", "given"),
    ("batch_norm", "given_plain"),
    ("batch_norm_relu", "given"),
    ("batch_norm_relu", "given_plain"),
    ("linear", "only_the_bias"),
    ("linear_relu", "only_the_bias"),
];

/// A sample's result and its gradients in one type, at inputs that `held` holds. The result's gradient is drawn.
fn results(
    sample: &Sample,
    [held, dtype]: [DType; 2],
    create_graph: bool,
    device: &Device,
) -> Result<Vec<Tensor>, Failed> {
    let input = |x: &Tensor| Ok(Var::leaf(x.to_dtype(held)?.to_dtype(dtype)?));
    let inputs = sample.inputs.iter().map(input).collect::<Result<Vec<_>>>()?;
    let y = (sample.run)(&inputs)?;
    let key = RandomKey { seed: 11, op: 0 };
    let g = Tensor::randn(y.shape(), held, key, device)?.to_dtype(y.dtype())?;
    let mut found = vec![y.value().clone()];
    if y.requires_grad() {
        let gradients = vec![Some(Var::constant(g))];
        let options = GradOptions { gradients, create_graph, ..GradOptions::default() };
        for (x, gradient) in inputs.iter().zip(grad(&[y], &inputs, options)?) {
            let gradient = gradient.unwrap_or(Var::constant(x.value().zeros_like()?));
            if gradient.dtype() != dtype {
                return Err(format!("a gradient is {}", gradient.dtype()).into());
            }
            found.push(gradient.value().clone());
        }
    }
    Ok(found)
}

/// Compares results, each to so many units of `dtype` in the last place of its largest element, or of 1, which inputs are
/// about as large as.
fn near(found: &[Tensor], expected: &[Tensor], dtype: DType, units: f64) -> Result<(), Failed> {
    let unit = if dtype == DType::BF16 { 2_f64.powi(-7) } else { 2_f64.powi(-10) };
    for (which, (found, expected)) in found.iter().zip(expected).enumerate() {
        let [found, expected] = [found, expected].map(|x| x.to_dtype(DType::F64)?.to_vec::<f64>());
        let (found, expected) = (found?, expected?);
        let largest = expected.iter().filter(|x| x.is_finite()).fold(1.0_f64, |m, x| m.max(x.abs()));
        for (element, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let off = (found - expected).abs() / (unit * largest);
            let same = found == expected || off <= units;
            if !same {
                let what = format!("result {which}, element {element}: {found} for {expected}, {off} units");
                return Err(what.into());
            }
        }
    }
    Ok(())
}

/// In half as in F64 at the same inputs, but for rounding; with gradients made by kernels, and made of ops.
fn in_half(op: &OpEntry, at: usize, dtype: DType) -> Result<(), Failed> {
    let device = Device::cpu();
    let sample = drawn(op, at, &device)?;
    if MIXED.contains(&(op.name, sample.name)) {
        let leaf = |x: &Tensor| Ok(Var::leaf(x.to_dtype(dtype)?));
        let inputs = sample.inputs.iter().map(leaf).collect::<Result<Vec<_>>>()?;
        return match (sample.run)(&inputs) {
            Err(error) if matches!(error.kind(), ErrorKind::DTypeMismatch { .. }) => Ok(()),
            other => Err(format!("{other:?}").into()),
        };
    }
    for (create_graph, units) in [(false, 4.0), (true, 8.0)] {
        let exact = results(&sample, [dtype, DType::F64], create_graph, &device)?;
        near(&results(&sample, [dtype; 2], create_graph, &device)?, &exact, dtype, units)?;
    }
    Ok(())
}

/// In half on a device as on the CPU: a result may be rounded the other way.
fn half_on(op: &OpEntry, at: usize, dtype: DType, device: &Device) -> Result<(), Failed> {
    let here = drawn(op, at, &Device::cpu())?;
    if MIXED.contains(&(op.name, here.name)) {
        return Ok(());
    }
    let here = results(&here, [dtype; 2], false, &Device::cpu())?;
    let there = drawn(op, at, device)?;
    let there = device.new_stream()?.scope(|| results(&there, [dtype; 2], false, device))?;
    near(&there, &here, dtype, 1.0)
}

/// Drawn again for each test, so that tests share nothing.
fn drawn(op: &OpEntry, at: usize, device: &Device) -> Result<Sample, Failed> {
    op.samples(device)?.into_iter().nth(at).ok_or_else(|| "no such sample".into())
}

fn failed(result: Result<()>) -> Result<(), Failed> {
    result.map_err(Failed::from)
}

fn vector(values: &[f64]) -> Result<Tensor> {
    Tensor::from_slice(values, &[values.len()], &Device::cpu())
}

/// `x²` with a gradient that is wrong at the third element.
fn slightly_wrong_square(x: &Var) -> Result<Var> {
    let value = x.value().square()?;
    Ok(record("wrong_square", &[x], &[Save::Input(0)], value, |ctx, g| {
        let slip = Var::constant(vector(&[0.0, 0.0, 1e-4])?);
        let slope = ctx.saved(0).mul_scalar(2.0)?.add(&slip)?;
        Ok([Some(g.mul(&slope)?)].into_iter().collect())
    }))
}

fn wrong_gradient() -> Result<()> {
    let x = vector(&[1.0, 2.0, 3.0])?;
    let result =
        gradcheck(|v| v[1].mul(&slightly_wrong_square(&v[0])?), &[x.clone(), x], GradCheck::default());
    assert!(
        matches!(
            result.as_ref().map_err(Error::kind),
            Err(ErrorKind::GradientMismatch { element: Some(2), .. })
        ),
        "{result:?}"
    );
    Ok(())
}

fn missing_gradient() -> Result<()> {
    let x = vector(&[1.0, 2.0])?;
    let forgets = |v: &[Var]| v[0].mul(&v[0].detach());
    let result = gradcheck(forgets, std::slice::from_ref(&x), GradCheck::default());
    assert!(
        matches!(
            result.as_ref().map_err(Error::kind),
            Err(ErrorKind::GradientMismatch { element: Some(_), .. })
        ),
        "{result:?}"
    );
    let unrecorded = |v: &[Var]| no_grad(|| v[0].square());
    let result = gradcheck(unrecorded, &[x], GradCheck::default());
    assert!(
        matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::GradientMissing { .. })),
        "{result:?}"
    );
    Ok(())
}

/// `x³` whose gradient is right and forgets that it depends on `x`.
fn cube_of_order_one(x: &Var) -> Result<Var> {
    let value = x.value().pow_scalar(3.0)?;
    Ok(record("cube_of_order_one", &[x], &[Save::Input(0)], value, |ctx, g| {
        let slope = ctx.saved(0).detach().square()?.mul_scalar(3.0)?;
        Ok([Some(g.mul(&slope)?)].into_iter().collect())
    }))
}

fn wrong_second_derivative() -> Result<()> {
    let x = [vector(&[1.0, -2.0, 3.0])?];
    gradcheck(|v| cube_of_order_one(&v[0]), &x, GradCheck::default())?;
    let result = gradgradcheck(|v| cube_of_order_one(&v[0]), &x, GradCheck::default());
    assert!(
        matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::GradientMissing { .. })),
        "{result:?}"
    );
    Ok(())
}

fn fast_names_the_element() -> Result<()> {
    let x = [vector(&[1.0, 2.0, 3.0])?];
    let fast = GradCheck { elements: 0, ..GradCheck::default() };
    let result = gradcheck(|v| slightly_wrong_square(&v[0]), &x, fast);
    assert!(
        matches!(
            result.as_ref().map_err(Error::kind),
            Err(ErrorKind::GradientMismatch { element: Some(2), .. })
        ),
        "{result:?}"
    );
    let report = gradcheck(|v| v[0].square(), &x, fast)?;
    assert_eq!(report.checked, 1);
    Ok(())
}

fn bad_input() -> Result<()> {
    let indices = Tensor::from_slice(&[1_i64], &[1], &Device::cpu())?;
    let result = gradcheck(|v| v[0].square(), &[indices], GradCheck::default());
    assert!(matches!(kind(&result), Some(ErrorKind::DTypeUnsupported { .. })), "{result:?}");
    let result = gradcheck(|v| v[0].square(), &[], GradCheck::default());
    assert!(matches!(kind(&result), Some(ErrorKind::InvalidArgument { .. })), "{result:?}");
    let x = [vector(&[1.0])?];
    for rtol in [-1.0, f64::NAN] {
        let options = GradCheck { rtol, ..Default::default() };
        let result = gradgradcheck(|v| v[0].square(), &x, options);
        assert!(matches!(kind(&result), Some(ErrorKind::InvalidArgument { .. })), "{result:?}");
    }
    let nan = [vector(&[f64::NAN])?];
    let result = gradcheck(|v| v[0].square(), &nan, GradCheck::default());
    assert!(matches!(kind(&result), Some(ErrorKind::NotFinite { .. })), "{result:?}");
    // Steps become smaller than the distance to the edge, where the logarithm is infinite.
    let edge = [vector(&[1e-6])?];
    let report = gradcheck(|v| v[0].log(), &edge, GradCheck::default())?;
    assert_eq!((report.checked, report.undecided), (1, 0));
    Ok(())
}

fn kind(result: &Result<GradCheckReport>) -> Option<&ErrorKind> {
    result.as_ref().err().map(Error::kind)
}

fn names() -> Result<()> {
    let mut seen = std::collections::HashSet::new();
    for op in ALL {
        for sample in op.samples(&Device::cpu())? {
            assert!(seen.insert((op.name, sample.name)), "{} has {} twice", op.name, sample.name);
        }
    }
    Ok(())
}
