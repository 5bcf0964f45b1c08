//! The rules of the optimizers, step by step, on tensors.

use device::{CpuConfig, DType, Device, Error, ErrorKind, Result};
use tensor::{RandomKey, RuleStep, Tensor, Update, optimizer_step};

use super::*;

const SGD: SgdOptions =
    SgdOptions { lr: 0.1, momentum: 0.9, dampening: 0.0, weight_decay: 0.0, nesterov: false };
const ADAM: AdamOptions = AdamOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0 };
const RMSPROP: RmsPropOptions =
    RmsPropOptions { lr: 0.01, alpha: 0.9, eps: 1e-3, weight_decay: 0.0, momentum: 0.0, centered: false };
const LION: LionOptions = LionOptions { lr: 0.1, betas: (0.9, 0.99), weight_decay: 0.0 };

#[derive(Clone, Copy, Debug)]
enum Options {
    Sgd(SgdOptions),
    Adam(AdamOptions),
    AdamW(AdamWOptions),
    RmsProp(RmsPropOptions),
    Lion(LionOptions),
    Adagrad(AdagradOptions),
}
use Options as O;

impl Options {
    fn rule(self, step: u64) -> Result<RuleStep> {
        match self {
            O::Sgd(options) => options.rule(step),
            O::Adam(options) => options.rule(step),
            O::AdamW(options) => options.rule(step),
            O::RmsProp(options) => options.rule(step),
            O::Lion(options) => options.rule(step),
            O::Adagrad(options) => options.rule(step),
        }
    }
}

/// Every rule in its variants, with the number of the step.
fn rules() -> Vec<(Options, u64)> {
    let adamw = AdamWOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.1 };
    vec![
        (O::Sgd(SgdOptions { momentum: 0.0, ..SGD }), 1),
        (O::Sgd(SgdOptions { momentum: 0.0, weight_decay: 0.01, ..SGD }), 2),
        (O::Sgd(SGD), 2),
        (O::Sgd(SgdOptions { dampening: 0.5, ..SGD }), 1),
        (O::Sgd(SgdOptions { dampening: 0.5, weight_decay: 0.01, ..SGD }), 2),
        (O::Sgd(SgdOptions { nesterov: true, weight_decay: 0.01, ..SGD }), 2),
        (O::Adam(ADAM), 1),
        (O::Adam(AdamOptions { weight_decay: 0.1, ..ADAM }), 10),
        (O::AdamW(adamw), 1000),
        (O::Adam(AdamOptions { betas: (0.3, 0.999), eps: 0.5, ..ADAM }), 3),
        (O::RmsProp(RMSPROP), 1),
        (O::RmsProp(RmsPropOptions { weight_decay: 0.1, momentum: 0.9, ..RMSPROP }), 1),
        (O::RmsProp(RmsPropOptions { centered: true, ..RMSPROP }), 1),
        (O::RmsProp(RmsPropOptions { centered: true, momentum: 0.5, alpha: 0.3, ..RMSPROP }), 1),
        (O::Adagrad(AdagradOptions::default()), 1),
        (O::Adagrad(AdagradOptions { lr: 0.1, lr_decay: 0.2, weight_decay: 0.1, eps: 1e-3 }), 7),
        (O::Lion(LION), 1),
        (O::Lion(LionOptions { weight_decay: 0.1, betas: (0.2, 0.99), ..LION }), 1),
    ]
}

fn adam_reference(o: &AdamOptions, decoupled: bool, t: u64, [p, g]: [f64; 2], states: &mut [f64]) -> f64 {
    let decay = 1.0 - o.lr * o.weight_decay;
    let (p, g) = if decoupled { (p * decay, g) } else { (p, g + o.weight_decay * p) };
    states[0] = o.betas.0 * states[0] + (1.0 - o.betas.0) * g;
    states[1] = o.betas.1 * states[1] + (1.0 - o.betas.1) * g * g;
    let corrected = |value: f64, beta: f64| value / (1.0 - beta.powi(t as i32));
    p - o.lr * corrected(states[0], o.betas.0) / (corrected(states[1], o.betas.1).sqrt() + o.eps)
}

/// The step of one number as the papers write it; `states` in the rule's order.
fn reference((rule, t): (Options, u64), [p, g]: [f64; 2], states: &mut [f64]) -> f64 {
    match rule {
        O::Sgd(o) if o.momentum == 0.0 => p - o.lr * (g + o.weight_decay * p),
        O::Sgd(o) => {
            let d = g + o.weight_decay * p;
            states[0] = if t == 1 { d } else { o.momentum * states[0] + (1.0 - o.dampening) * d };
            p - o.lr * if o.nesterov { d + o.momentum * states[0] } else { states[0] }
        }
        O::Adam(o) => adam_reference(&o, false, t, [p, g], states),
        O::AdamW(AdamWOptions { lr, betas, eps, weight_decay }) => {
            adam_reference(&AdamOptions { lr, betas, eps, weight_decay }, true, t, [p, g], states)
        }
        O::RmsProp(o) => {
            let g = g + o.weight_decay * p;
            states[0] = o.alpha * states[0] + (1.0 - o.alpha) * g * g;
            let mut variance = states[0];
            if o.centered {
                let mean = states.last_mut().unwrap();
                *mean = o.alpha * *mean + (1.0 - o.alpha) * g;
                variance -= *mean * *mean;
            }
            let way = g / (variance.sqrt() + o.eps);
            if o.momentum == 0.0 {
                return p - o.lr * way;
            }
            states[1] = o.momentum * states[1] + way;
            p - o.lr * states[1]
        }
        O::Adagrad(o) => {
            let g = g + o.weight_decay * p;
            states[0] += g * g;
            p - o.lr / (1.0 + (t - 1) as f64 * o.lr_decay) * g / (states[0].sqrt() + o.eps)
        }
        O::Lion(o) => {
            let mix = o.betas.0 * states[0] + (1.0 - o.betas.0) * g;
            states[0] = o.betas.1 * states[0] + (1.0 - o.betas.1) * g;
            p * (1.0 - o.lr * o.weight_decay) - o.lr * mix.signum()
        }
    }
}

/// A parameter, its gradient and the states of a rule. Mean squares exceed the squares of means.
fn operands(rule: &RuleStep, shape: &[usize], dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    let drawn = |op| Tensor::uniform(shape, -1.0, 1.0, dtype, RandomKey { seed: 5, op }, device);
    let state = |name: &&str| match *name {
        "exp_avg_sq" | "square_avg" | "sum" => drawn(3)?.abs()?.add_scalar(1.0),
        "grad_avg" => drawn(4)?.mul_scalar(0.5),
        _ => drawn(4),
    };
    let states = rule.states().iter().map(state);
    [drawn(1), drawn(2)].into_iter().chain(states).collect()
}

fn update(operands: &[Tensor], step: RuleStep) -> Result<()> {
    let (param, grad, states) = (&operands[0], &operands[1], &operands[2..]);
    optimizer_step(&[Update { param, grad, master: None, states, step }])
}

fn bits(x: &Tensor) -> Vec<u32> {
    x.contiguous().unwrap().to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

fn all_bits(operands: &[Tensor]) -> Vec<Vec<u32>> {
    operands.iter().map(bits).collect()
}

#[test]
fn steps_follow_the_formulas() -> Result<()> {
    for (options, t) in rules() {
        let rule = options.rule(t)?;
        let operands = operands(&rule, &[77], DType::F64, &Device::cpu())?;
        let values = || operands.iter().map(Tensor::to_vec::<f64>).collect::<Result<Vec<_>>>();
        let before = values()?;
        update(&operands, rule)?;
        let after = values()?;
        for i in 0..77 {
            let mut states: Vec<f64> = before[2..].iter().map(|state| state[i]).collect();
            let (p, g) = (before[0][i], before[1][i]);
            let p = reference((options, t), [p, g], &mut states);
            for (k, want) in [p, g].into_iter().chain(states).enumerate() {
                let got = after[k][i];
                assert!((got - want).abs() < 1e-14, "{options:?}, operand {k}: {got} {want}");
            }
        }
    }
    Ok(())
}

#[test]
fn the_sign_of_nothing_is_zero() -> Result<()> {
    let g = [0.0, -0.0, f32::NAN, f32::INFINITY, -1e-40, 1e-40, 2.0, -3.0, f32::NEG_INFINITY];
    let array = |values: &[f32]| Tensor::from_slice(values, &[9], &Device::cpu());
    let operands = [array(&[1.0; 9])?, array(&g)?, array(&[0.0; 9])?];
    update(&operands, LionOptions { lr: 0.5, ..LION }.rule(1)?)?;
    assert_eq!(operands[0].to_vec::<f32>()?, [1.0, 1.0, 1.0, 0.5, 1.5, 0.5, 0.5, 1.5, 1.5]);
    Ok(())
}

#[test]
fn adam_counts_from_one() {
    for rule in [ADAM.rule(0), AdamWOptions::default().rule(0)] {
        assert!(
            matches!(
                rule.as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { op: "adam", argument: "step", .. })
            ),
            "{rule:?}"
        );
    }
}

/// CPU devices of one and two threads, and the best device.
fn devices() -> impl Iterator<Item = Device> {
    let cpu = |threads| Device::cpu_with(CpuConfig { threads: Some(threads), ..CpuConfig::default() });
    [1, 2].map(cpu).into_iter().chain([Device::best()])
}

#[test]
fn bits_do_not_depend_on_strides_threads_or_devices() -> Result<()> {
    for (options, t) in rules() {
        let rule = options.rule(t)?;
        let mut first = None;
        for device in devices() {
            for turned in [[false, false], [true, true], [false, true]] {
                let mut all = operands(&rule, &[70, 900], DType::F32, &device)?;
                for (k, operand) in all.iter_mut().enumerate() {
                    if turned[usize::from(k == 1)] {
                        *operand = operand.t()?.copy()?.t()?;
                    }
                }
                update(&all, rule)?;
                let found = all_bits(&all);
                assert!(*first.get_or_insert_with(|| found.clone()) == found, "{options:?}: {turned:?}");
            }
        }
    }
    Ok(())
}

/// The step of the master is that of a parameter in F32, and the parameter its rounded value.
#[test]
fn a_parameter_in_16_bits_is_the_rounded_value_of_its_master() -> Result<()> {
    let each = |device: Device| rules().into_iter().map(move |rule| (device.clone(), rule));
    let all = devices()
        .flat_map(each)
        .flat_map(|(device, rule)| [DType::BF16, DType::F16].map(|half| (device.clone(), rule, half)));
    for (device, (options, t), half) in all {
        let rule = options.rule(t)?;
        let exact = operands(&rule, &[2, 333], DType::F32, &device)?;
        let [param, grad] = [exact[0].to_dtype(half)?, exact[1].to_dtype(half)?];
        exact[1].copy_(&grad.to_dtype(DType::F32)?)?;
        let master = exact[0].copy()?;
        let states: Vec<Tensor> = exact[2..].iter().map(Tensor::copy).collect::<Result<_>>()?;
        update(&exact, rule)?;
        let update =
            Update { param: &param, grad: &grad, master: Some(&master), states: &states, step: rule };
        optimizer_step(&[update])?;
        assert_eq!(bits(&master), bits(&exact[0]), "{options:?}");
        assert_eq!(all_bits(&states), all_bits(&exact[2..]), "{options:?}");
        let rounded = exact[0].to_dtype(half)?.to_dtype(DType::F32)?;
        assert_eq!(bits(&param.to_dtype(DType::F32)?), bits(&rounded), "{options:?}");
    }
    Ok(())
}

/// Also prints the program, for `tools/nvrtc-check`.
#[test]
fn every_rule_has_kernels() -> Result<()> {
    let mut steps: Vec<RuleStep> = Vec::new();
    for (options, t) in rules() {
        let step = options.rule(t)?;
        if !steps.iter().any(|known| known.same_rule(&step)) {
            steps.push(step);
        }
    }
    let source = RuleStep::kernel_source(&steps);
    println!("{source}// end");
    assert_eq!((steps.len(), source.matches("\nRULE(").count()), (9, 9));
    Ok(())
}
