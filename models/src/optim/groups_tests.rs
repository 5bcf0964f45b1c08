//! Groups of parameters with optimizers of their own.

use device::Device;
use tensor::Tensor;

use super::*;

fn leaf(value: f64) -> Var {
    Var::leaf(Tensor::scalar(value, &Device::cpu()).unwrap())
}

fn pair(rates: [f64; 2]) -> (Vec<Var>, Groups) {
    let parameters = vec![leaf(1.0), leaf(2.0)];
    let sgd = SgdOptions { lr: rates[0], momentum: 0.5, ..SgdOptions::default() };
    let first = Box::new(Sgd::new(vec![parameters[0].clone()], sgd).unwrap());
    let second = Box::new(Adam::new(vec![parameters[1].clone()], rates[1]).unwrap());
    (parameters, Groups::new(vec![first, second]).unwrap())
}

fn step(parameters: &[Var], groups: &mut Groups) -> Result<Vec<f64>> {
    let loss = parameters[0].square()?.add(&parameters[1].square()?)?;
    groups.step(&loss.backward()?)?;
    parameters.iter().map(Var::item).collect()
}

#[test]
fn each_group_steps_by_its_own_rule() -> Result<()> {
    let (parameters, mut groups) = pair([0.25, 0.5]);
    let values = step(&parameters, &mut groups)?;
    assert!((values[0] - 0.5).abs() < 1e-9 && (values[1] - 1.5).abs() < 1e-6, "{values:?}");
    groups.set_learning_rate(0.0)?;
    assert_eq!(groups.groups()[1].learning_rate(), 0.0);
    groups.set_learning_rate(0.125)?;
    assert_eq!([groups.learning_rate(), groups.groups()[1].learning_rate()], [0.125, 0.25]);
    // A group without gradients rests; without any there is no step.
    groups.step(&parameters[1].square()?.backward()?)?;
    assert_eq!(parameters[0].item::<f64>()?, values[0]);
    let gradients = parameters[0].square()?.add(&parameters[1].square()?)?.backward()?;
    parameters[1].freeze();
    groups.step(&gradients)?;
    parameters[1].unfreeze();
    assert!(groups.step(&leaf(1.0).square()?.backward()?).is_err());
    assert!(Groups::new(Vec::new()).is_err());
    let twice = || Box::new(Sgd::new(vec![parameters[0].clone()], 0.1).unwrap());
    assert!(Groups::new(vec![twice(), twice()]).is_err());
    Ok(())
}

#[test]
fn a_state_goes_to_the_same_groups_or_changes_nothing() -> Result<()> {
    let (parameters, mut groups) = pair([0.25, 0.5]);
    step(&parameters, &mut groups)?;
    let state = groups.state()?;
    let values: Vec<f64> = parameters.iter().map(Var::item).collect::<Result<_>>()?;
    let want = step(&parameters, &mut groups)?;
    let (others, mut other) = pair([0.1, 0.1]);
    for (own, value) in others.iter().zip(values) {
        own.value().fill_(value)?;
    }
    other.load_state(&state)?;
    assert_eq!(step(&others, &mut other)?, want);
    // The ratio is that of the loaded rates.
    other.set_learning_rate(1.0)?;
    assert_eq!(other.groups()[1].learning_rate(), 2.0);
    other.set_learning_rate(0.25)?;
    let before = other.state()?;
    // The second group's state does not fit, so the first one's is taken back.
    let mut wrong = state.clone();
    wrong.tensors.retain(|(name, _)| name != "1:adam:0.exp_avg");
    assert!(other.load_state(&wrong).is_err());
    let numbers = |state: &OptimizerState| -> Result<Vec<(String, f64)>> {
        let tensors =
            state.tensors.iter().map(|(name, t)| Ok((name.clone(), t.to_dtype(device::DType::F64)?.item()?)));
        state.options.iter().cloned().map(Ok).chain(tensors).collect()
    };
    assert_eq!(numbers(&other.state()?)?, numbers(&before)?);
    Ok(())
}
