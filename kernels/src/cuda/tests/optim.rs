//! Optimizer steps: those of the CPU, bit for bit.

use super::*;
use crate::layout::View;

use crate::optim::tests::{Clipped, Momentum, momentum, rules};
use crate::{RuleStep, Update, optimizer_step};

/// Parameter, gradient and states; only a parameter that lies like its gradient lies like its states, too.
fn operands<T: Real>(
    stream: &Stream,
    states: &[&str],
    shape: [usize; 2],
    [how, gradient]: [Stored; 2],
) -> Vec<Array<T>> {
    let mut operands = vec![stored(stream, 1, shape, how), stored(stream, 2, shape, gradient)];
    for (seed, name) in (3..).zip(states) {
        let state = stored::<T>(stream, seed, shape, how);
        // A running mean of squares is not negative.
        if name.contains("sq") || *name == "largest" {
            crate::unary(stream, crate::UnaryOp::Square, state.view(), state.view()).expect("a launch");
        }
        operands.push(state);
    }
    operands
}

fn update<T: Element>(operands: &[Array<T>], step: RuleStep) -> Update<'_> {
    let [param, grad] = [&operands[0], &operands[1]].map(Array::view);
    Update { param, grad, master: None, states: operands[2..].iter().map(Array::view).collect(), step }
}

fn steps_of<T: Real>() {
    let Some(both) = both() else { return };
    for shape in [[1, 1], [5, 3], [33, 65], [40, 200]] {
        for how in [
            [Stored::Dense; 2],
            [Stored::Transposed; 2],
            [Stored::Narrowed; 2],
            [Stored::Dense, Stored::Transposed],
        ] {
            for rule in rules() {
                for result in 0..rule.states().len() + 2 {
                    both.same((rule, shape, how, result), |stream| {
                        let mut all = operands::<T>(stream, rule.states(), shape, how);
                        optimizer_step(stream, &[update(&all, rule)])?;
                        Ok(all.swap_remove(result))
                    });
                }
            }
        }
    }
}

#[test]
fn steps_of_one_tensor() {
    steps_of::<f32>();
    steps_of::<f64>();
}

/// Steps of masters, of which some round to what their parameter was and some do not.
fn steps_of_halves<H: Real>() {
    let Some(both) = both() else { return };
    for (shape, how) in [
        ([33, 65], [Stored::Dense; 2]),
        ([5, 3], [Stored::Dense, Stored::Transposed]),
        ([40, 200], [Stored::Narrowed, Stored::Dense]),
    ] {
        for rule in rules() {
            let run = |stream: &Stream| -> Result<_> {
                let mut wide = operands::<f32>(stream, rule.states(), shape, how);
                let [param, grad] =
                    [(1, how[0]), (2, how[1])].map(|(seed, how)| stored::<H>(stream, seed, shape, how));
                // The first rows are what the parameter is.
                let [own, from] = [wide[0].view(), param.view()].map(|view| (view, view.layout.clone()));
                let half = |layout: &crate::Layout| layout.narrow("test", 0, 0, shape[0] / 2);
                let (to, from_half) = (half(&own.1)?, half(&from.1)?);
                crate::copy(stream, View { layout: &from_half, ..from.0 }, View { layout: &to, ..own.0 })?;
                let (param_view, grad, master) = (param.view(), grad.view(), Some(wide[0].view()));
                let states = wide[2..].iter().map(Array::view).collect();
                optimizer_step(stream, &[Update { param: param_view, grad, master, states, step: rule }])?;
                wide.remove(1);
                Ok((param, wide))
            };
            both.same((rule, shape, how, "parameter"), |stream| Ok(run(stream)?.0));
            for result in 0..=rule.states().len() {
                both.same((rule, shape, how, result), |stream| Ok(run(stream)?.1.swap_remove(result)));
            }
        }
    }
}

#[test]
fn steps_of_masters() {
    steps_of_halves::<bf16>();
    steps_of_halves::<f16>();
}

#[test]
fn many_tensors_in_one_call() {
    let Some(both) = both() else { return };
    let shapes: Vec<[usize; 2]> = (0..150).map(|i| [1 + i % 7, (i * i * 13) % 701]).collect();
    let rule = momentum(false);
    let rule_of = |i: usize| match i {
        100 => momentum(true),
        120 => RuleStep::new(Momentum, [0.5, 0.2], [false]),
        _ => rule,
    };
    let run = |stream: &Stream| {
        stream.synchronize().expect("nothing failed");
        let all: Vec<_> = shapes
            .iter()
            .map(|&shape| operands::<f32>(stream, rule.states(), shape, [Stored::Dense; 2]))
            .collect();
        let updates: Vec<_> = all.iter().enumerate().map(|(i, one)| update(one, rule_of(i))).collect();
        let launches = stream.device().sync_stats().launches;
        optimizer_step(stream, &updates).expect("a launch");
        assert_eq!(stream.device().sync_stats().launches - launches, 1);
        all.iter().flatten().map(Array::to_vec).collect::<Vec<_>>()
    };
    assert_eq!(run(&both.cuda), run(&both.cpu));
}

#[test]
fn a_rule_of_ones_own() {
    let Some(both) = both() else { return };
    for (warm, result) in [false, true].into_iter().flat_map(|warm| (0..4).map(move |result| (warm, result)))
    {
        for how in [[Stored::Dense; 2], [Stored::Dense, Stored::Transposed]] {
            both.same((warm, how, result), |stream| {
                let step = RuleStep::new(Clipped, [0.1, 0.6, 0.9], [warm]);
                let mut all = operands::<f32>(stream, step.states(), [33, 65], how);
                optimizer_step(stream, &[update(&all, step)])?;
                Ok(all.swap_remove(result))
            });
        }
    }
}
