#![allow(clippy::unwrap_used)]

use device::{bf16, f16};

use super::*;
use crate::half::Half;
use crate::rules::Accumulated;
use crate::rules::RuleValue;
use crate::testing::{Array, bits, cpu, values, values_f32};

const SGD: SgdStep =
    SgdStep { lr: 0.1, momentum: 0.9, dampening: 0.0, weight_decay: 0.0, nesterov: false, first: false };
const ADAM: AdamStep =
    AdamStep { step: 1, lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, decoupled: false };
const RMSPROP: RmsPropStep =
    RmsPropStep { lr: 0.01, alpha: 0.9, eps: 1e-3, weight_decay: 0.0, momentum: 0.0, centered: false };
const LION: LionStep = LionStep { lr: 0.1, beta1: 0.9, beta2: 0.99, weight_decay: 0.0 };

/// A step of one of the rules that are there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Known {
    Sgd(SgdStep),
    Adam(AdamStep),
    RmsProp(RmsPropStep),
    Lion(LionStep),
    Accumulated,
}

impl Known {
    pub(crate) fn step(self) -> RuleStep {
        match self {
            Known::Sgd(step) => step.into(),
            Known::Adam(step) => step.try_into().unwrap(),
            Known::RmsProp(step) => step.into(),
            Known::Lion(step) => step.into(),
            Known::Accumulated => RuleStep::new(Accumulated, [], []),
        }
    }

    pub(crate) fn states(self) -> &'static [&'static str] {
        self.step().states()
    }
}

/// Every rule in its variants.
fn rules() -> Vec<Known> {
    let sgd = [
        SgdStep { momentum: 0.0, ..SGD },
        SgdStep { momentum: 0.0, weight_decay: 0.01, ..SGD },
        SGD,
        SgdStep { first: true, dampening: 0.5, ..SGD },
        SgdStep { dampening: 0.5, weight_decay: 0.01, ..SGD },
        SgdStep { nesterov: true, weight_decay: 0.01, ..SGD },
    ];
    let adam = [
        ADAM,
        AdamStep { step: 10, weight_decay: 0.1, ..ADAM },
        AdamStep { step: 1000, weight_decay: 0.1, decoupled: true, ..ADAM },
        AdamStep { step: 3, beta1: 0.3, eps: 0.5, ..ADAM },
    ];
    let rmsprop = [
        RMSPROP,
        RmsPropStep { weight_decay: 0.1, momentum: 0.9, ..RMSPROP },
        RmsPropStep { centered: true, ..RMSPROP },
        RmsPropStep { centered: true, momentum: 0.5, alpha: 0.3, ..RMSPROP },
    ];
    let lion = [LION, LionStep { weight_decay: 0.1, beta1: 0.2, ..LION }];
    let rules = sgd.map(Known::Sgd).into_iter().chain(adam.map(Known::Adam));
    let others = lion.map(Known::Lion).into_iter().chain([Known::Accumulated]);
    rules.chain(rmsprop.map(Known::RmsProp)).chain(others).collect()
}

/// The step of one number as the papers write it; `states` in the rule's order.
fn reference(rule: Known, p: f64, g: f64, states: &mut [f64]) -> f64 {
    match (rule, states) {
        (Known::Sgd(step), []) => p - step.lr * (g + step.weight_decay * p),
        (Known::Sgd(step), [buffer]) => {
            let d = g + step.weight_decay * p;
            *buffer = if step.first { d } else { step.momentum * *buffer + (1.0 - step.dampening) * d };
            p - step.lr * if step.nesterov { d + step.momentum * *buffer } else { *buffer }
        }
        (Known::Adam(step), [mean, square]) => {
            let decay = 1.0 - step.lr * step.weight_decay;
            let (p, g) = if step.decoupled { (p * decay, g) } else { (p, g + step.weight_decay * p) };
            *mean = step.beta1 * *mean + (1.0 - step.beta1) * g;
            *square = step.beta2 * *square + (1.0 - step.beta2) * g * g;
            let corrected = |value: f64, beta: f64| value / (1.0 - beta.powi(step.step as i32));
            p - step.lr * corrected(*mean, step.beta1) / (corrected(*square, step.beta2).sqrt() + step.eps)
        }
        (Known::RmsProp(step), [square, more @ ..]) => {
            let g = g + step.weight_decay * p;
            *square = step.alpha * *square + (1.0 - step.alpha) * g * g;
            let mut variance = *square;
            if step.centered {
                let mean = more.last_mut().unwrap();
                *mean = step.alpha * *mean + (1.0 - step.alpha) * g;
                variance -= *mean * *mean;
            }
            let way = g / (variance.sqrt() + step.eps);
            if step.momentum == 0.0 {
                return p - step.lr * way;
            }
            more[0] = step.momentum * more[0] + way;
            p - step.lr * more[0]
        }
        (Known::Lion(step), [mean]) => {
            let mix = step.beta1 * *mean + (1.0 - step.beta1) * g;
            *mean = step.beta2 * *mean + (1.0 - step.beta2) * g;
            p * (1.0 - step.lr * step.weight_decay) - step.lr * mix.signum()
        }
        (Known::Accumulated, []) => p + g,
        (rule, states) => unreachable!("{rule:?} with {} states", states.len()),
    }
}

/// A parameter with its gradient and the states of a rule. Mean squares exceed the squares of means.
struct Parameter<T>(Vec<Array<T>>);

impl<T: device::Element> Parameter<T> {
    fn new(rule: Known, array: impl Fn(u64, fn(f64) -> f64) -> Array<T>) -> Self {
        let state = |name: &&str| match *name {
            "exp_avg_sq" | "square_avg" => array(3, |value| value.abs() + 1.0),
            "grad_avg" => array(4, |value| value / 2.0),
            _ => array(4, |value| value),
        };
        let operands = [array(1, |value| value), array(2, |value| value)];
        Parameter(operands.into_iter().chain(rule.states().iter().map(state)).collect())
    }

    fn update(&self, rule: Known) -> Update<'_> {
        let [param, grad] = [&self.0[0], &self.0[1]].map(Array::view);
        Update {
            param,
            grad,
            master: None,
            states: self.0[2..].iter().map(Array::view).collect(),
            step: rule.step(),
        }
    }

    fn values(&self) -> Vec<Vec<T>> {
        self.0.iter().map(Array::to_vec).collect()
    }
}

fn in_f64(s: &Stream, rule: Known, len: usize) -> Parameter<f64> {
    Parameter::new(rule, |seed, map| {
        Array::new(s, &values(seed, len).into_iter().map(map).collect::<Vec<_>>(), &[len])
    })
}

fn in_f32(s: &Stream, rule: Known, len: usize) -> Parameter<f32> {
    let array = |seed, map: fn(f64) -> f64| {
        let values = values_f32(seed, len).into_iter().map(|value| map(value.into()) as f32);
        Array::new(s, &values.collect::<Vec<_>>(), &[len])
    };
    Parameter::new(rule, array)
}

#[test]
fn steps_follow_the_formulas() {
    let dev = cpu(1);
    let s = dev.default_stream();
    for rule in rules() {
        let parameter = in_f64(&s, rule, 77);
        let before = parameter.values();
        optimizer_step(&s, &[parameter.update(rule)]).unwrap();
        let after = parameter.values();
        assert_eq!(after[1], before[1]);
        for i in 0..77 {
            let mut states: Vec<f64> = before[2..].iter().map(|state| state[i]).collect();
            let p = reference(rule, before[0][i], before[1][i], &mut states);
            for (k, want) in [p, before[1][i]].into_iter().chain(states).enumerate() {
                assert!((after[k][i] - want).abs() < 1e-14, "{rule:?}, operand {k}: {} {want}", after[k][i]);
            }
        }
    }
}

#[test]
fn the_sign_of_nothing_is_zero() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let g = [0.0, -0.0, f32::NAN, f32::INFINITY, -1e-40, 1e-40, 2.0, -3.0, f32::NEG_INFINITY];
    let array = |values: &[f32]| Array::new(&s, values, &[9]);
    let lion = Parameter(vec![array(&[1.0; 9]), array(&g), array(&[0.0; 9])]);
    let rule = Known::Lion(LionStep { lr: 0.5, ..LION });
    optimizer_step(&s, &[lion.update(rule)]).unwrap();
    assert_eq!(lion.0[0].to_vec(), [1.0, 1.0, 1.0, 0.5, 1.5, 0.5, 0.5, 1.5, 1.5]);
}

#[test]
fn bits_do_not_depend_on_strides_or_threads() {
    let shape = [70, 900];
    for rule in rules() {
        let mut first = None;
        for threads in [1, 2] {
            let dev = cpu(threads);
            let s = dev.default_stream();
            for (order, gradient_order) in [([0, 1], [0, 1]), ([1, 0], [1, 0]), ([0, 1], [1, 0])] {
                let array = |seed, map: fn(f64) -> f64| {
                    let values = values_f32(seed, 63_000).into_iter().map(|value| map(value.into()) as f32);
                    let order = if seed == 2 { &gradient_order } else { &order };
                    Array::stored_as(&s, &values.collect::<Vec<_>>(), &shape, order)
                };
                let parameter = Parameter::new(rule, array);
                optimizer_step(&s, &[parameter.update(rule)]).unwrap();
                let result: Vec<_> = parameter.values().iter().map(|values| bits(values)).collect();
                let same = *first.get_or_insert_with(|| result.clone()) == result;
                assert!(same, "{rule:?}: {order:?} {gradient_order:?}, {threads} threads");
            }
        }
    }
}

/// A parameter of a half, its gradient, the master, and the states of a rule.
fn step_of_half<H: Half>(
    threads: usize,
    rule: Known,
    [p, g, master]: [&[f32]; 3],
) -> (Vec<f32>, Vec<Vec<u32>>) {
    let s = cpu(threads).default_stream();
    let halves = |values: &[f32]| values.iter().map(|&x| H::round(x)).collect::<Vec<H>>();
    // All lie in another order than the gradient.
    let shape = [2, p.len() / 2];
    let [param, grad] =
        [(p, [1, 0]), (g, [0, 1])].map(|(x, order)| Array::stored_as(&s, &halves(x), &shape, &order));
    let wide = |x: &[f32]| Array::stored_as(&s, x, &shape, &[1, 0]);
    let master = wide(master);
    let states: Vec<_> = rule.states().iter().map(|_| wide(&vec![0.0; p.len()])).collect();
    let update = Update {
        param: param.view(),
        grad: grad.view(),
        master: Some(master.view()),
        states: states.iter().map(Array::view).collect(),
        step: rule.step(),
    };
    optimizer_step(&s, &[update]).unwrap();
    let all = [&master].into_iter().chain(&states).map(|x| bits(&x.to_vec())).collect();
    (param.to_vec().into_iter().map(H::widen).collect(), all)
}

/// The step of the master is that of a parameter of F32, and the parameter its rounded value; a master that does not round to the
/// parameter counts as the parameter.
fn steps_of_halves<H: Half>() {
    let rounded = |x: &[f32]| x.iter().map(|&x| H::round(x).widen()).collect::<Vec<f32>>();
    let of = |seed| values_f32(seed, 2 * 333);
    let (master, g) = (of(1), rounded(&of(2)));
    let mut p = rounded(&master);
    p[7] = 0.25;
    p[20] = f32::NAN;
    let mut begin = master.clone();
    (begin[7], begin[20]) = (p[7], p[20]);
    for rule in rules() {
        let s = cpu(1).default_stream();
        let in_f32 = |x: &[f32]| Array::stored_as(&s, x, &[2, 333], &[1, 0]);
        let mut operands = vec![in_f32(&begin), in_f32(&g)];
        operands.extend(rule.states().iter().map(|_| in_f32(&vec![0.0; 2 * 333])));
        let exact = Parameter(operands);
        optimizer_step(&s, &[exact.update(rule)]).unwrap();
        let mut expected = exact.values();
        expected.remove(1);
        let param = rounded(&expected[0]);
        let expected: Vec<_> = expected.iter().map(|x| bits(x)).collect();
        for threads in [1, 3] {
            let (found, all) = step_of_half::<H>(threads, rule, [&p, &g, &master]);
            assert!(bits(&found) == bits(&param) && all == expected, "{rule:?}");
        }
    }
}

#[test]
fn a_half_is_the_rounded_value_of_its_master() {
    steps_of_halves::<bf16>();
    steps_of_halves::<f16>();
}

#[test]
fn a_master_begins_with_zeros_and_small_steps_add_up() {
    let s = cpu(1).default_stream();
    let rule = Known::Sgd(SgdStep { lr: 2.0_f64.powi(-12), momentum: 0.0, ..SGD });
    let half = |x: f32| Array::full(&s, bf16::from_f32(x), &[1]);
    let (param, grad, master) = (half(1.0), half(1.0), Array::full(&s, 0.0_f32, &[1]));
    for k in 1..=64 {
        let (param, grad, master) = (param.view(), grad.view(), Some(master.view()));
        optimizer_step(&s, &[Update { param, grad, master, states: SmallVec::new(), step: rule.step() }])
            .unwrap();
        if k == 1 {
            assert_eq!(param.dtype, DType::BF16);
        }
    }
    assert_eq!(
        (master.to_vec()[0], param.to_vec()[0].to_f32()),
        (1.0 - 2_f32.powi(-6), 1.0 - 2_f32.powi(-6))
    );
}

#[test]
fn masters_of_other_types_are_errors() {
    let s = cpu(1).default_stream();
    let step = Known::Sgd(SgdStep { momentum: 0.0, ..SGD }).step();
    let (half, other) =
        (Array::full(&s, bf16::from_f32(1.0), &[2]), Array::full(&s, f16::from_f32(1.0), &[2]));
    let (single, double) = (Array::full(&s, 1.0_f32, &[2]), Array::full(&s, 1.0_f64, &[2]));
    let of = |param: View<'_>, grad: View<'_>, master: Option<View<'_>>| {
        optimizer_step(&s, &[Update { param, grad, master, states: SmallVec::new(), step }])
    };
    of(half.view(), half.view(), Some(single.view())).unwrap();
    let found = of(half.view(), half.view(), None);
    assert!(
        matches!(
            found.as_ref().map_err(Error::kind),
            Err(ErrorKind::DTypeUnsupported { op: "sgd", dtype: DType::BF16 })
        ),
        "{found:?}"
    );
    let found = of(single.view(), single.view(), Some(single.view()));
    assert!(
        matches!(
            found.as_ref().map_err(Error::kind),
            Err(ErrorKind::DTypeUnsupported { op: "sgd", dtype: DType::F32 })
        ),
        "{found:?}"
    );
    for (grad, master) in
        [(other.view(), single.view()), (single.view(), single.view()), (half.view(), double.view())]
    {
        let found = of(half.view(), grad, Some(master));
        assert!(
            matches!(found.as_ref().map_err(Error::kind), Err(ErrorKind::DTypeMismatch { op: "sgd", .. })),
            "{found:?}"
        );
    }
    let mixed = |x: &Array<bf16>, y: &Array<f16>| {
        let [a, b] = [x.view(), y.view()];
        let update =
            |param, grad| Update { param, grad, master: Some(single.view()), states: SmallVec::new(), step };
        optimizer_step(&s, &[update(a, a), update(b, b)])
    };
    let found = mixed(&half, &other);
    assert!(
        matches!(found.as_ref().map_err(Error::kind), Err(ErrorKind::DTypeMismatch { op: "sgd", .. })),
        "{found:?}"
    );
}

#[test]
fn empty_parameters_scalars_and_wrong_operands() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let plain = Known::Sgd(SgdStep { momentum: 0.0, lr: 0.5, ..SGD });
    let none = Array::<f32>::new(&s, &[], &[0, 3]);
    let (p, g) = (Array::full(&s, 1.0_f32, &[]), Array::full(&s, 1.0_f32, &[]));
    let step = |param: View<'_>, grad: View<'_>, states: &[View<'_>], rule: Known| {
        let step = rule.step();
        optimizer_step(
            &s,
            &[Update { param, grad, master: None, states: states.iter().copied().collect(), step }],
        )
    };
    step(none.view(), none.view(), &[], plain).unwrap();
    step(p.view(), g.view(), &[], plain).unwrap();
    assert_eq!(p.to_vec(), [0.5]);
    let error = step(p.view(), g.view(), &[], Known::Sgd(SGD)).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::InvalidArgument { op: "sgd", argument: "states", .. }),
        "{error}"
    );
    let error = step(p.view(), none.view(), &[], plain).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { op: "sgd", .. }), "{error}");
    let error = step(p.view(), g.view(), &[none.view()], Known::Lion(LION)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { op: "lion", .. }), "{error}");
    let wide = Array::full(&s, 1.0_f64, &[]);
    let error = step(p.view(), wide.view(), &[], plain).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DTypeMismatch { op: "sgd", .. }), "{error}");
    let error = RuleStep::try_from(AdamStep { step: 0, ..ADAM }).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::InvalidArgument { op: "adam", argument: "step", .. }),
        "{error}"
    );
}

/// Parameters of several sizes and types in one command come out as one by one; where one reads what another wrote, they are
/// commands of their own, in their order. None is touched if one is wrong.
#[test]
fn one_command_for_all_parameters() {
    for threads in [1, 2] {
        let dev = cpu(threads);
        let s = dev.default_stream();
        let (rule, first) = (Known::Sgd(SGD), Known::Sgd(SgdStep { first: true, ..SGD }));
        let lion = Known::Lion(LION);
        let make = || (in_f32(&s, rule, 2_000_000), in_f64(&s, rule, 6));
        let ((large, small), (large_alone, small_alone)) = (make(), make());
        let commands = |updates: &[Update<'_>]| {
            let launches = dev.sync_stats().launches;
            optimizer_step(&s, updates).unwrap();
            dev.sync_stats().launches - launches
        };
        let reads_small = Update { grad: small.0[0].view(), ..small.update(rule) };
        assert_eq!(commands(&[large.update(rule), small.update(first)]), 1);
        assert_eq!(commands(&[large.update(rule), reads_small, small.update(lion)]), 3);

        optimizer_step(&s, &[large_alone.update(rule)]).unwrap();
        optimizer_step(&s, &[small_alone.update(first)]).unwrap();
        optimizer_step(&s, &[large_alone.update(rule)]).unwrap();
        let reads_small = Update { grad: small_alone.0[0].view(), ..small_alone.update(rule) };
        optimizer_step(&s, &[reads_small]).unwrap();
        optimizer_step(&s, &[small_alone.update(lion)]).unwrap();
        assert!(large.values() == large_alone.values() && small.values() == small_alone.values());

        let wrong = Update { states: SmallVec::new(), ..small.update(rule) };
        assert!(optimizer_step(&s, &[large.update(rule), wrong]).is_err());
        assert!(large.values() == large_alone.values());
        optimizer_step(&s, &[]).unwrap();
    }
}

/// A rule as users may add one, with everything that a formula can be made of: the largest gradient in place of a mean, and
/// steps that are clipped.
pub(crate) struct Clipped;

impl crate::Rule<2, 3, 1> for Clipped {
    const OP: &'static str = "clipped";
    const STATES: [&'static str; 2] = ["largest", "steps"];

    #[inline(always)]
    fn step<V: RuleValue>(
        [lr, limit, decay]: [V; 3],
        [warm]: [V::Flag; 1],
        p: V,
        g: V,
        [largest, steps]: [V; 2],
    ) -> (V, [V; 2]) {
        let largest = (largest * decay).max(g.abs());
        let way = V::choose(warm, g / (largest.sqrt() + g.constant(0.1)), g.sign());
        let clipped = way.min(limit).max(limit.constant(0.0) - limit);
        (p - lr * clipped, [largest, steps + clipped.select_less(way, way.constant(1.0), clipped)])
    }
}

fn clipped([lr, limit, decay]: [f32; 3], warm: bool, [p, g, largest, steps]: [f32; 4]) -> [f32; 4] {
    let most = |a: f32, b: f32| if a < b { b } else { a };
    let largest = most(largest * decay, g.abs());
    let sign = if g == 0.0 || g.is_nan() { 0.0 } else { g.signum() };
    let way = if warm { g / (largest.sqrt() + 0.1) } else { sign };
    let clipped = most(if limit < way { limit } else { way }, -limit);
    [p - lr * clipped, g, largest, steps + if clipped < way { 1.0 } else { clipped }]
}

#[test]
fn a_rule_of_ones_own() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let mut start: [Vec<f32>; 4] = std::array::from_fn(|k| values_f32(k as u64, 101));
    start[1][..5].copy_from_slice(&[0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
    for warm in [false, true] {
        let numbers = [0.1, 0.6, 0.9];
        let step = RuleStep::new(Clipped, numbers.map(f64::from), [warm]);
        assert_eq!((step.op(), step.states()), ("clipped", &["largest", "steps"][..]));
        assert_eq!(
            (step.numbers().numbers[..3].to_vec(), step.numbers().flags),
            (numbers.map(f64::from).to_vec(), u32::from(warm))
        );
        let all = start.each_ref().map(|values| Array::new(&s, values, &[101]));
        let states = [all[2].view(), all[3].view()].into_iter().collect();
        optimizer_step(
            &s,
            &[Update { param: all[0].view(), grad: all[1].view(), master: None, states, step }],
        )
        .unwrap();
        let found = all.each_ref().map(Array::to_vec);
        for i in 0..101 {
            let want = clipped(numbers, warm, start.each_ref().map(|values| values[i]));
            assert_eq!(bits(&found.each_ref().map(|values| values[i])), bits(&want), "{warm} {i}");
        }
    }
}
