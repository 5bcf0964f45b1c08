//! What optimizers leave alone, remember and refuse; `tests/optimizers.rs` compares their steps with torch's.

use std::slice::from_ref;

use device::{DType, Device};
use tensor::Graph;

use super::*;

const SHAPE: [usize; 2] = [3, 4];

/// Start values and, for each step, gradients: nothing special about them but that all differ.
fn start() -> Vec<f64> {
    (0..12).map(|i| (i as f64 * 0.7).sin() * 2.0).collect()
}

fn gradient(step: usize) -> Vec<f64> {
    (0..12).map(|i| ((step * 13 + i) as f64 * 0.37).cos() * 0.5 + 0.1).collect()
}

/// A parameter with the start values, row-major or with transposed memory.
fn parameter(transposed: bool) -> Var {
    let dev = Device::cpu();
    let rows = Tensor::from_slice(&start(), &SHAPE, &dev).unwrap();
    let value = if transposed { rows.t().unwrap().contiguous().unwrap().t().unwrap() } else { rows };
    assert_eq!(value.is_contiguous(), !transposed);
    Var::leaf(value)
}

/// `sum(w * c)` has the gradient c.
fn gradients(w: &Var, values: &[f64]) -> Gradients {
    let c = Var::constant(Tensor::from_slice(values, &SHAPE, &Device::cpu()).unwrap());
    w.mul(&c).unwrap().sum(&[], false).unwrap().backward().unwrap()
}

fn values(w: &Var) -> Vec<f64> {
    w.value().contiguous().unwrap().to_vec().unwrap()
}

#[test]
fn a_number_is_the_learning_rate_beside_defaults() {
    let w = || vec![parameter(false)];
    let lr = 0.5;
    assert_eq!(Sgd::new(w(), lr).unwrap().options(), SgdOptions { lr, ..SgdOptions::default() });
    assert_eq!(Adam::new(w(), lr).unwrap().options(), AdamOptions { lr, ..AdamOptions::default() });
    assert_eq!(AdamW::new(w(), lr).unwrap().options(), AdamWOptions { lr, ..AdamWOptions::default() });
    assert_eq!(Lion::new(w(), lr).unwrap().options(), LionOptions { lr, ..LionOptions::default() });
    assert_eq!(RmsProp::new(w(), lr).unwrap().options(), RmsPropOptions { lr, ..RmsPropOptions::default() });
    assert!(matches!(
        Sgd::new(w(), -1.0).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { argument: "lr", .. })
    ));
}

fn all_kinds(parameters: &[Var]) -> Vec<Box<dyn Optimizer>> {
    let sgd = SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() };
    let rmsprop = RmsPropOptions { momentum: 0.9, centered: true, ..RmsPropOptions::default() };
    vec![
        Box::new(Sgd::new(parameters.to_vec(), sgd).unwrap()),
        Box::new(RmsProp::new(parameters.to_vec(), rmsprop).unwrap()),
        Box::new(Lion::new(parameters.to_vec(), LionOptions::default()).unwrap()),
        Box::new(Adam::new(parameters.to_vec(), AdamOptions::default()).unwrap()),
        Box::new(AdamW::new(parameters.to_vec(), AdamWOptions::default()).unwrap()),
    ]
}

#[test]
fn a_parameter_without_gradient_is_left_alone() {
    let (used, unused) = (parameter(false), parameter(true));
    for mut optimizer in all_kinds(&[used.clone(), unused.clone()]) {
        let before = (values(&used), unused.value().version());
        optimizer.step(&gradients(&used, &gradient(1))).unwrap();
        assert_ne!(values(&used), before.0);
        assert_eq!((values(&unused), unused.value().version()), (start(), before.1));
        assert!(optimizer.state().unwrap().tensors.iter().all(|(name, _)| name.starts_with("0.")));
    }
}

/// Gradients of other parameters, or none at all, are a mistake: nothing would ever change.
#[test]
fn gradients_of_no_parameter_are_an_error() {
    let (w, other) = (parameter(false), parameter(false));
    for mut optimizer in all_kinds(from_ref(&w)) {
        for (wrong, count) in [(gradients(&other, &gradient(1)), 1), (Gradients::default(), 0)] {
            let error = optimizer.step(&wrong).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::InvalidArgument { argument: "gradients", .. }),
                "{error}"
            );
            assert!(error.to_string().ends_with(&format!("got {count} gradients of none of 1 parameters")));
        }
        assert_eq!((values(&w), optimizer.state().unwrap().tensors.len()), (start(), 0));
    }
}

/// The values that a gradient has when the step is made are those that count.
#[test]
fn a_step_sees_a_gradient_that_was_changed_in_place() {
    let (w, twin) = (parameter(false), parameter(false));
    let (changed, plain) = (gradients(&w, &gradient(1)), gradients(&twin, &[0.0; 12]));
    changed.get(&w).unwrap().zero_().unwrap();
    for (w, gradients) in [(&w, &changed), (&twin, &plain)] {
        Sgd::new(vec![w.clone()], SgdOptions::default()).unwrap().step(gradients).unwrap();
    }
    assert_eq!(values(&w), values(&twin));
}

#[test]
fn a_graph_from_before_the_step_is_out_of_date() {
    let w = parameter(false);
    let old = w.square().unwrap().sum(&[], false).unwrap();
    let shared = w.clone();
    Sgd::new(vec![w.clone()], SgdOptions::default()).unwrap().step(&gradients(&w, &gradient(1))).unwrap();
    assert_eq!(values(&shared), values(&w), "clones see the update");
    assert!(matches!(old.backward().as_ref().map_err(Error::kind), Err(ErrorKind::VersionMismatch { .. })));
}

#[test]
fn state_goes_on_where_it_was() {
    let (w, twin) = (parameter(true), parameter(true));
    for (mut first, mut second) in all_kinds(from_ref(&w)).into_iter().zip(all_kinds(from_ref(&twin))) {
        for step in 0..3 {
            first.step(&gradients(&w, &gradient(step))).unwrap();
        }
        first.set_learning_rate(0.037).unwrap();
        let state = first.state().unwrap();
        twin.value().copy_(w.value()).unwrap();
        second.load_state(&state).unwrap();
        assert_eq!(second.learning_rate(), 0.037);
        for step in 3..6 {
            first.step(&gradients(&w, &gradient(step))).unwrap();
            second.step(&gradients(&twin, &gradient(step))).unwrap();
        }
        assert_eq!(values(&w), values(&twin));
    }
}

#[test]
fn a_state_that_does_not_fit_changes_nothing() {
    let w = parameter(false);
    for mut optimizer in all_kinds(from_ref(&w)) {
        optimizer.step(&gradients(&w, &gradient(1))).unwrap();
        let good = optimizer.state().unwrap();
        let dev = Device::cpu();
        let mut bad = Vec::new();
        bad.push(OptimizerState { kind: "other".into(), ..good.clone() });
        bad.push(OptimizerState { options: Vec::new(), ..good.clone() });
        let mut wrong_rate = good.clone();
        wrong_rate.options[0].1 = -1.0;
        bad.push(wrong_rate);
        let last = good.tensors.len() - 1;
        let with_last = |name: &str, tensor: Tensor| {
            let mut state = good.clone();
            state.tensors[last] = (name.into(), tensor);
            state
        };
        let name = good.tensors[last].0.clone();
        bad.push(with_last(&name, Tensor::zeros(&[4, 3], device::DType::F64, &dev).unwrap()));
        bad.push(with_last(&name, Tensor::zeros(&SHAPE, device::DType::F32, &dev).unwrap()));
        bad.push(with_last("1.exp_avg", good.tensors[last].1.clone()));
        let mut changed = good.clone();
        changed.options[0].1 = 0.5;
        changed.tensors.push(("9.extra".into(), good.tensors[last].1.clone()));
        bad.push(changed);
        for state in bad {
            let error = optimizer.load_state(&state).unwrap_err();
            let typed = matches!(
                error.kind(),
                ErrorKind::Checkpoint { .. } | ErrorKind::InvalidArgument { argument: "lr", .. }
            );
            assert!(typed, "{error}");
            let now = optimizer.state().unwrap();
            assert_eq!(now.options, good.options);
            for ((_, now), (_, good)) in now.tensors.iter().zip(&good.tensors) {
                if now.dtype() == device::DType::F64 {
                    assert_eq!(now.to_vec::<f64>().unwrap(), good.to_vec::<f64>().unwrap());
                }
            }
        }
    }
}

#[test]
fn an_option_of_a_state_that_is_no_flag_or_not_known_is_refused() {
    let w = parameter(false);
    let options = SgdOptions { momentum: 0.9, nesterov: true, ..SgdOptions::default() };
    let mut flags = 0;
    let sgd: Box<dyn Optimizer> = Box::new(Sgd::new(vec![w.clone()], options).unwrap());
    for mut optimizer in all_kinds(from_ref(&w)).into_iter().chain([sgd]) {
        let good = optimizer.state().unwrap();
        let refuses = |optimizer: &mut dyn Optimizer, state: &OptimizerState, option: &str| {
            let error = optimizer.load_state(state).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Checkpoint { name, .. } if **name == *option),
                "{error}"
            );
            assert_eq!(optimizer.state().unwrap().options, good.options);
        };
        for (at, (name, _)) in good.options.iter().enumerate() {
            if ["nesterov", "centered"].contains(&name.as_str()) {
                flags += 1;
                for value in [f64::NAN, 0.5, 2.0, -1.0, f64::INFINITY] {
                    let mut state = good.clone();
                    state.options[at].1 = value;
                    refuses(&mut *optimizer, &state, name);
                }
            }
        }
        let mut state = good.clone();
        state.options.push(("amsgrad".into(), 1.0));
        refuses(&mut *optimizer, &state, "amsgrad");
    }
    assert!(flags > 1);
}

#[test]
fn bad_options_are_named() {
    let w = || vec![parameter(false)];
    let sgd = |options| Sgd::new(w(), options).err().unwrap().to_string();
    let default = SgdOptions::default();
    assert_eq!(sgd(SgdOptions { lr: -1.0, ..default }), "sgd: lr must be at least 0 and finite, got -1");
    assert!(sgd(SgdOptions { lr: f64::NAN, ..default }).contains("lr"));
    assert!(sgd(SgdOptions { momentum: -0.1, ..default }).contains("momentum"));
    assert!(sgd(SgdOptions { weight_decay: f64::INFINITY, ..default }).contains("weight_decay"));
    assert!(sgd(SgdOptions { nesterov: true, ..default }).contains("nesterov"));
    assert!(
        sgd(SgdOptions { nesterov: true, momentum: 0.9, dampening: 0.1, ..default })
            .contains("dampening 0.1")
    );
    let adam = |options| Adam::new(w(), options).err().unwrap().to_string();
    let default = AdamOptions::default();
    assert!(adam(AdamOptions { betas: (0.9, 1.0), ..default }).contains("beta2"));
    assert!(adam(AdamOptions { betas: (-0.1, 0.9), ..default }).contains("beta1"));
    assert!(adam(AdamOptions { eps: -1.0, ..default }).contains("eps"));
    let rmsprop = RmsPropOptions { alpha: -0.5, ..RmsPropOptions::default() };
    assert!(RmsProp::new(w(), rmsprop).err().unwrap().to_string().starts_with("rmsprop: alpha"));
    let lion = LionOptions { betas: (0.9, 1.5), ..LionOptions::default() };
    assert!(Lion::new(w(), lion).err().unwrap().to_string().starts_with("lion: beta2"));
    let mut optimizer = Sgd::new(w(), SgdOptions::default()).unwrap();
    assert!(optimizer.set_learning_rate(f64::NAN).is_err());
    assert_eq!(optimizer.learning_rate(), 1e-3);
}

#[test]
fn bad_parameters_are_named() {
    let make = |parameters| Sgd::new(parameters, SgdOptions::default()).err().unwrap().to_string();
    assert!(make(Vec::new()).contains("at least one"));
    let w = parameter(false);
    assert!(make(vec![w.clone(), w.clone()]).contains("number 1 twice"));
    assert!(make(vec![w.detach()]).contains("number 0, which does not"));
}

/// A refused step leaves no trace: the next one is still the first.
#[test]
fn a_refused_step_does_not_count() {
    let (w, twin) = (parameter(false), parameter(false));
    // Two indices share an element, which a step would change twice.
    let shared = Tensor::ones(&[1], device::DType::F64, &Device::cpu()).unwrap().expand(&[2]).unwrap();
    let shared = Var::leaf(shared);
    let sgd = SgdOptions { lr: 0.1, momentum: 0.9, dampening: 0.5, ..SgdOptions::default() };
    let [mut refused, mut fresh] =
        [&w, &twin].map(|w| Sgd::new(vec![w.clone(), shared.clone()], sgd).unwrap());
    let mut wrong = gradients(&w, &gradient(1));
    wrong.merge(shared.sum(&[], false).unwrap().backward().unwrap()).unwrap();
    assert!(matches!(
        refused.step(&wrong).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { op: "sgd", .. })
    ));
    assert!(refused.state().unwrap().tensors.is_empty());
    refused.step(&gradients(&w, &gradient(2))).unwrap();
    fresh.step(&gradients(&twin, &gradient(2))).unwrap();
    assert_eq!(values(&w), values(&twin));
}

/// A state whose parts are not all there is refused.
#[test]
fn half_a_state_is_an_error() {
    let w = parameter(false);
    for mut optimizer in all_kinds(from_ref(&w)) {
        optimizer.step(&gradients(&w, &gradient(1))).unwrap();
        let mut state = optimizer.state().unwrap();
        while state.tensors.len() > 1 {
            state.tensors.remove(0);
            let error = optimizer.load_state(&state).unwrap_err();
            assert!(error.to_string().contains("must be there together"), "{error}");
        }
        optimizer.load_state(&OptimizerState { tensors: Vec::new(), ..state }).unwrap();
        assert!(optimizer.state().unwrap().tensors.is_empty());
    }
}

type Make = fn(&Var, bool) -> Box<dyn Optimizer>;

/// Optimizers that remember more or less of a parameter.
const OF_TWO_RULES: [Make; 2] = [
    |w, more| {
        let momentum = if more { 0.9 } else { 0.0 };
        Box::new(
            Sgd::new(vec![w.clone()], SgdOptions { lr: 0.1, momentum, ..SgdOptions::default() }).unwrap(),
        )
    },
    |w, more| {
        let momentum = if more { 0.9 } else { 0.0 };
        let options = RmsPropOptions { momentum, centered: more, ..RmsPropOptions::default() };
        Box::new(RmsProp::new(vec![w.clone()], options).unwrap())
    },
];

fn of_dtype(dtype: DType) -> Var {
    Var::leaf(parameter(false).value().to_dtype(dtype).unwrap())
}

fn train(w: &Var, optimizer: &mut dyn Optimizer, steps: std::ops::Range<usize>) {
    for step in steps {
        let c = Tensor::from_slice(&gradient(step), &SHAPE, &Device::cpu()).unwrap();
        let c = Var::constant(c.to_dtype(w.dtype()).unwrap());
        let loss = w.mul(&c).unwrap().sum(&[], false).unwrap();
        optimizer.step(&loss.backward().unwrap()).unwrap();
    }
}

/// All numbers of a state and its parameter.
fn everything(w: &Var, optimizer: &dyn Optimizer) -> Vec<(String, Vec<f64>)> {
    let value = ("w".to_owned(), w.value().clone());
    let tensors = optimizer.state().unwrap().tensors.into_iter().chain([value]);
    tensors.map(|(name, tensor)| (name, tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap())).collect()
}

#[test]
fn a_state_of_another_rule_is_taken_over() {
    for make in OF_TWO_RULES {
        for (dtype, more, fresh) in [DType::F32, DType::BF16, DType::F16]
            .into_iter()
            .flat_map(|dtype| [(dtype, false), (dtype, true)])
            .flat_map(|(dtype, more)| [(dtype, more, false), (dtype, more, true)])
        {
            let (w, twin) = (of_dtype(dtype), of_dtype(dtype));
            let (mut own, mut other) = (make(&w, !more), make(&twin, more));
            train(&w, &mut *own, 0..2);
            train(&twin, &mut *other, 2..if fresh { 2 } else { 5 });
            own.load_state(&other.state().unwrap()).unwrap();
            w.value().copy_(twin.value()).unwrap();
            assert_eq!(everything(&w, &*own), everything(&twin, &*other), "{dtype}, {more}, {fresh}");
            train(&w, &mut *own, 5..7);
            train(&twin, &mut *other, 5..7);
            assert_eq!(everything(&w, &*own), everything(&twin, &*other), "{dtype}, {more}, {fresh}");
        }
    }
}

/// A captured step knows tensors that are no longer the optimizer's, also once its rule is the former one again.
#[test]
fn a_captured_step_does_not_outlive_a_state_of_another_rule() {
    for make in OF_TWO_RULES {
        for dtype in [DType::F32, DType::BF16] {
            let w = of_dtype(dtype);
            let (mut own, mut other) = (make(&w, true), make(&w, false));
            let mut step = || {
                train(&w, &mut *own, 0..1);
                Ok(())
            };
            let graph = Graph::capture(&Device::cpu(), &mut step).unwrap();
            graph.replay().unwrap();
            let former = own.state().unwrap();
            own.load_state(&former).unwrap();
            graph.replay().unwrap();
            train(&w, &mut *other, 0..1);
            own.load_state(&other.state().unwrap()).unwrap();
            for _ in 0..2 {
                let before = everything(&w, &*own);
                let refused = graph.replay().unwrap_err();
                assert!(refused.to_string().contains("capture the step again"), "{refused}");
                assert_eq!(everything(&w, &*own), before);
                own.load_state(&former).unwrap();
            }
            let graph = Graph::capture(&Device::cpu(), || {
                train(&w, &mut *own, 0..1);
                Ok(())
            });
            graph.unwrap().replay().unwrap();
        }
    }
}
