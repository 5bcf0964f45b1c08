//! Optimizers and schedules against PyTorch: `tests/reference/optimizers.py` says how the reference was made.

use autograd::Var;
use device::{DType, Device, Error, ErrorKind, Result};
use models::{
    Adagrad, AdagradOptions, Adam, AdamOptions, AdamW, AdamWOptions, Lion, LionOptions, LrSchedule,
    Optimizer, OptimizerState, Plateau, RmsProp, RmsPropOptions, Sgd, SgdOptions,
};
use serde_json::Value;
use tensor::Tensor;

fn reference() -> Value {
    serde_json::from_str(include_str!("../../tests/data/optimizers.json")).expect("the script writes JSON")
}

fn numbers(value: &Value) -> Vec<f64> {
    let numbers = value.as_array().into_iter().flatten();
    numbers.map(|number| number.as_f64().expect("a number")).collect()
}

fn make(kind: &str, w: Var) -> Result<Box<dyn Optimizer>> {
    let parameters = vec![w];
    Ok(match kind {
        "adagrad" => Box::new(Adagrad::new(parameters, AdagradOptions::default())?),
        "sgd" => Box::new(Sgd::new(parameters, SgdOptions::default())?),
        "adam" => Box::new(Adam::new(parameters, AdamOptions::default())?),
        "adamw" => Box::new(AdamW::new(parameters, AdamWOptions::default())?),
        "rmsprop" => Box::new(RmsProp::new(parameters, RmsPropOptions::default())?),
        _ => Box::new(Lion::new(parameters, LionOptions::default())?),
    })
}

/// Ten steps from the same values with the same gradients, for parameters in row-major and in transposed memory.
#[test]
fn ten_steps_of_each_optimizer() -> Result<()> {
    let reference = reference();
    let device = Device::cpu();
    let shape: Vec<usize> = numbers(&reference["shape"]).into_iter().map(|size| size as usize).collect();
    let tensor = |value: &Value| Tensor::from_slice(&numbers(value), &shape, &device);
    let runs = reference["optimizers"].as_array().expect("a list");
    assert_eq!(runs.len(), 19);
    for (run, transposed) in runs.iter().flat_map(|run| [(run, false), (run, true)]) {
        let start = tensor(&reference["start"])?;
        let w = Var::leaf(if transposed { start.t()?.copy()?.t()? } else { start });
        let kind = run["kind"].as_str().expect("a name");
        let mut optimizer = make(kind, w.clone())?;
        let options = run["options"].as_object().expect("named numbers").iter();
        let options =
            options.map(|(name, value)| (name.clone(), value.as_f64().expect("a number"))).collect();
        optimizer.load_state(&OptimizerState { kind: kind.into(), options, tensors: Vec::new() })?;
        let steps = reference["gradients"].as_array().into_iter().flatten();
        for (step, (gradient, want)) in steps.zip(run["values"].as_array().expect("a list")).enumerate() {
            let gradients = w.mul(&Var::constant(tensor(gradient)?))?.sum(&[], false)?.backward()?;
            optimizer.step(&gradients)?;
            let got = w.value().contiguous()?.to_vec::<f64>()?;
            assert_eq!(got.len(), 12);
            for (got, want) in got.into_iter().zip(numbers(want)) {
                let error = (got - want).abs();
                assert!(error <= 1e-9, "{kind} {}, step {step}: {got} instead of {want}", run["options"]);
            }
        }
    }
    Ok(())
}

/// In single precision, to what rounding leaves.
#[test]
fn single_precision_follows() -> Result<()> {
    let reference = reference();
    let device = Device::cpu();
    let tensor = |value: &Value| Tensor::from_slice(&numbers(value), &[3, 4], &device)?.to_dtype(DType::F32);
    for kind in ["sgd", "adam", "adamw", "rmsprop", "lion"] {
        let runs = reference["optimizers"].as_array().expect("a list");
        let run = runs.iter().find(|run| run["kind"] == kind).expect("one of each");
        let w = Var::leaf(tensor(&reference["start"])?);
        let mut optimizer = make(kind, w.clone())?;
        let options = run["options"].as_object().expect("named numbers").iter();
        let options =
            options.map(|(name, value)| (name.clone(), value.as_f64().expect("a number"))).collect();
        optimizer.load_state(&OptimizerState { kind: kind.into(), options, tensors: Vec::new() })?;
        for gradient in reference["gradients"].as_array().expect("a list") {
            let gradients = w.mul(&Var::constant(tensor(gradient)?))?.sum(&[], false)?.backward()?;
            optimizer.step(&gradients)?;
        }
        let want = numbers(run["values"].as_array().and_then(|values| values.last()).expect("ten steps"));
        for (got, want) in w.value().to_vec::<f32>()?.into_iter().zip(want) {
            assert!((f64::from(got) - want).abs() <= 1e-5, "{kind}: {got} instead of {want}");
        }
    }
    Ok(())
}

#[test]
fn forty_rates_of_each_schedule() -> Result<()> {
    let warm_up = LrSchedule::Linear { start_factor: 0.1, end_factor: 1.0, total_iters: 8 };
    let cosine = LrSchedule::Cosine { t_max: 20, eta_min: 0.0 };
    let schedules = [
        ("step", LrSchedule::Step { step_size: 7, gamma: 0.3 }),
        ("multi-step", LrSchedule::MultiStep { milestones: vec![3, 11, 11, 30], gamma: 0.5 }),
        ("exponential", LrSchedule::Exponential { gamma: 0.93 }),
        ("cosine", LrSchedule::Cosine { t_max: 15, eta_min: 0.01 }),
        ("warm-restarts", LrSchedule::WarmRestarts { t_0: 5, t_mult: 2, eta_min: 0.01 }),
        ("equal-restarts", LrSchedule::WarmRestarts { t_0: 7, t_mult: 1, eta_min: 0.0 }),
        (
            "one-cycle",
            LrSchedule::OneCycle { total_steps: 40, pct_start: 0.3, div_factor: 25.0, final_div_factor: 1e4 },
        ),
        ("linear", LrSchedule::Linear { start_factor: 0.25, end_factor: 1.0, total_iters: 12 }),
        (
            "sequence",
            LrSchedule::sequence([(0, warm_up), (8, cosine), (28, LrSchedule::Exponential { gamma: 0.9 })])?,
        ),
    ];
    let reference = reference();
    let base_lr = reference["base_lr"].as_f64().expect("a number");
    for (name, schedule) in schedules {
        let rates = numbers(&reference["schedules"][name]);
        assert_eq!(rates.len(), 40, "{name}");
        for (step, want) in rates.into_iter().enumerate() {
            let got = schedule.at(base_lr, step as u64);
            assert!((got - want).abs() <= 1e-12, "{name}, step {step}: {got} instead of {want}");
        }
    }
    Ok(())
}

#[test]
fn rates_on_a_plateau() -> Result<()> {
    let reference = reference();
    let w = Var::leaf(Tensor::zeros(&[1], DType::F64, &Device::cpu())?);
    let mut sgd = Sgd::new(vec![w], 0.2)?;
    let mut plateau = Plateau { factor: 0.3, patience: 2, cooldown: 3, min_lr: 0.01, ..Plateau::default() };
    let pairs = numbers(&reference["metrics"]).into_iter().zip(numbers(&reference["plateau"]));
    for (step, (metric, want)) in pairs.enumerate() {
        plateau.step(metric, &mut sgd)?;
        let got = sgd.learning_rate();
        assert!((got - want).abs() <= 1e-12, "step {step}: {got} instead of {want}");
    }
    assert_eq!(sgd.learning_rate(), 0.01);
    let wrong = Plateau { factor: 1.5, ..plateau }.step(f64::NAN, &mut sgd);
    assert!(matches!(
        wrong.as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { argument: "factor", .. })
    ));
    Ok(())
}
