#![allow(clippy::unwrap_used)]

use device::{bf16, f16};

use super::*;
use crate::half::Half;
use crate::rules::Accumulated;
use crate::rules::RuleValue;
use crate::testing::{Array, bits, cpu, values, values_f32};

/// `param = param - lr grad`.
pub(crate) struct Plain;

impl crate::Rule<0, 1> for Plain {
    const OP: &'static str = "plain";
    const STATES: [&'static str; 0] = [];

    #[inline(always)]
    fn step<V: RuleValue>([lr]: [V; 1], []: [V::Flag; 0], p: V, g: V, []: [V; 0]) -> (V, [V; 0]) {
        (p - lr * g, [])
    }
}

/// A momentum buffer, whose first step takes the gradient as it is.
pub(crate) struct Momentum;

impl crate::Rule<1, 2, 1> for Momentum {
    const OP: &'static str = "momentum";
    const STATES: [&'static str; 1] = ["momentum_buffer"];

    #[inline(always)]
    fn step<V: RuleValue>([lr, keep]: [V; 2], [first]: [V::Flag; 1], p: V, g: V, [b]: [V; 1]) -> (V, [V; 1]) {
        let b = V::choose(first, g, keep * b + g);
        (p - lr * b, [b])
    }
}

/// As many states as a rule can have, with a root and a quotient.
pub(crate) struct Averages;

impl crate::Rule<3, 3> for Averages {
    const OP: &'static str = "averages";
    const STATES: [&'static str; 3] = ["square_avg", "momentum_buffer", "grad_avg"];

    #[inline(always)]
    fn step<V: RuleValue>(
        [lr, keep, eps]: [V; 3],
        []: [V::Flag; 0],
        p: V,
        g: V,
        [square, buffer, mean]: [V; 3],
    ) -> (V, [V; 3]) {
        let fresh = keep.constant(1.0) - keep;
        let (square, mean) = (square * keep + fresh * g * g, mean + fresh * (g - mean));
        let buffer = buffer * keep + g / ((square - mean * mean).sqrt() + eps);
        (p - lr * buffer, [square, buffer, mean])
    }
}

pub(crate) fn plain(lr: f64) -> RuleStep {
    RuleStep::new(Plain, [lr], [])
}

pub(crate) fn momentum(first: bool) -> RuleStep {
    RuleStep::new(Momentum, [0.1, 0.9], [first])
}

/// Rules with each number of states.
pub(crate) fn rules() -> Vec<RuleStep> {
    vec![
        RuleStep::new(Accumulated, [], []),
        plain(0.1),
        momentum(false),
        momentum(true),
        RuleStep::new(Clipped, [0.1, 0.6, 0.9], [false]),
        RuleStep::new(Clipped, [0.1, 0.6, 0.9], [true]),
        RuleStep::new(Averages, [0.01, 0.9, 1e-3], []),
    ]
}

/// A parameter with its gradient and the states of a rule. Mean squares exceed the squares of means.
struct Parameter<T>(Vec<Array<T>>);

impl<T: device::Element> Parameter<T> {
    fn new(rule: RuleStep, array: impl Fn(u64, fn(f64) -> f64) -> Array<T>) -> Self {
        let state = |name: &&str| match *name {
            "square_avg" | "largest" => array(3, |value| value.abs() + 1.0),
            "grad_avg" => array(4, |value| value / 2.0),
            _ => array(4, |value| value),
        };
        let operands = [array(1, |value| value), array(2, |value| value)];
        Parameter(operands.into_iter().chain(rule.states().iter().map(state)).collect())
    }

    fn update(&self, rule: RuleStep) -> Update<'_> {
        let [param, grad] = [&self.0[0], &self.0[1]].map(Array::view);
        Update {
            param,
            grad,
            master: None,
            states: self.0[2..].iter().map(Array::view).collect(),
            step: rule,
        }
    }

    fn values(&self) -> Vec<Vec<T>> {
        self.0.iter().map(Array::to_vec).collect()
    }
}

fn in_f64(s: &Stream, rule: RuleStep, len: usize) -> Parameter<f64> {
    Parameter::new(rule, |seed, map| {
        Array::new(s, &values(seed, len).into_iter().map(map).collect::<Vec<_>>(), &[len])
    })
}

fn in_f32(s: &Stream, rule: RuleStep, len: usize) -> Parameter<f32> {
    let array = |seed, map: fn(f64) -> f64| {
        let values = values_f32(seed, len).into_iter().map(|value| map(value.into()) as f32);
        Array::new(s, &values.collect::<Vec<_>>(), &[len])
    };
    Parameter::new(rule, array)
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
    rule: RuleStep,
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
        step: rule,
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
    let rule = plain(2.0_f64.powi(-12));
    let half = |x: f32| Array::full(&s, bf16::from_f32(x), &[1]);
    let (param, grad, master) = (half(1.0), half(1.0), Array::full(&s, 0.0_f32, &[1]));
    for k in 1..=64 {
        let (param, grad, master) = (param.view(), grad.view(), Some(master.view()));
        optimizer_step(&s, &[Update { param, grad, master, states: SmallVec::new(), step: rule }]).unwrap();
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
    let step = plain(0.1);
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
            Err(ErrorKind::DTypeUnsupported { op: "plain", dtype: DType::BF16, .. })
        ),
        "{found:?}"
    );
    let found = of(single.view(), single.view(), Some(single.view()));
    assert!(
        matches!(
            found.as_ref().map_err(Error::kind),
            Err(ErrorKind::DTypeUnsupported { op: "plain", dtype: DType::F32, .. })
        ),
        "{found:?}"
    );
    for (grad, master) in
        [(other.view(), single.view()), (single.view(), single.view()), (half.view(), double.view())]
    {
        let found = of(half.view(), grad, Some(master));
        assert!(
            matches!(found.as_ref().map_err(Error::kind), Err(ErrorKind::DTypeMismatch { op: "plain", .. })),
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
        matches!(found.as_ref().map_err(Error::kind), Err(ErrorKind::DTypeMismatch { op: "plain", .. })),
        "{found:?}"
    );
}

#[test]
fn empty_parameters_scalars_and_wrong_operands() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let (plain, momentum) = (plain(0.5), momentum(false));
    let none = Array::<f32>::new(&s, &[], &[0, 3]);
    let (p, g) = (Array::full(&s, 1.0_f32, &[]), Array::full(&s, 1.0_f32, &[]));
    let step = |param: View<'_>, grad: View<'_>, states: &[View<'_>], rule: RuleStep| {
        let states = states.iter().copied().collect();
        optimizer_step(&s, &[Update { param, grad, master: None, states, step: rule }])
    };
    step(none.view(), none.view(), &[], plain).unwrap();
    step(p.view(), g.view(), &[], plain).unwrap();
    assert_eq!(p.to_vec(), [0.5]);
    let error = step(p.view(), g.view(), &[], momentum).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::InvalidArgument { op: "momentum", argument: "states", .. }),
        "{error}"
    );
    let error = step(p.view(), none.view(), &[], plain).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { op: "plain", .. }), "{error}");
    let error = step(p.view(), g.view(), &[none.view()], momentum).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { op: "momentum", .. }), "{error}");
    let wide = Array::full(&s, 1.0_f64, &[]);
    let error = step(p.view(), wide.view(), &[], plain).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DTypeMismatch { op: "plain", .. }), "{error}");
}

/// Parameters of several sizes and types in one command come out as one by one; where one reads what another wrote, they are
/// commands of their own, in their order. None is touched if one is wrong.
#[test]
fn one_command_for_all_parameters() {
    for threads in [1, 2] {
        let dev = cpu(threads);
        let s = dev.default_stream();
        let (rule, first) = (momentum(false), momentum(true));
        let other = RuleStep::new(Momentum, [0.5, 0.2], [false]);
        let make = || (in_f32(&s, rule, 2_000_000), in_f64(&s, rule, 6));
        let ((large, small), (large_alone, small_alone)) = (make(), make());
        let commands = |updates: &[Update<'_>]| {
            let launches = dev.sync_stats().launches;
            optimizer_step(&s, updates).unwrap();
            dev.sync_stats().launches - launches
        };
        let reads_small = Update { grad: small.0[0].view(), ..small.update(rule) };
        assert_eq!(commands(&[large.update(rule), small.update(first)]), 1);
        assert_eq!(commands(&[large.update(rule), reads_small, small.update(other)]), 3);

        optimizer_step(&s, &[large_alone.update(rule)]).unwrap();
        optimizer_step(&s, &[small_alone.update(first)]).unwrap();
        optimizer_step(&s, &[large_alone.update(rule)]).unwrap();
        let reads_small = Update { grad: small_alone.0[0].view(), ..small_alone.update(rule) };
        optimizer_step(&s, &[reads_small]).unwrap();
        optimizer_step(&s, &[small_alone.update(other)]).unwrap();
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
