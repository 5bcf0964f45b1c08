//! Optimizer steps: those of the CPU, bit for bit.

use super::*;

use crate::{AdamStep, AdamUpdate, SgdStep, SgdUpdate, adam_step, sgd_step};

fn sgd_steps() -> Vec<SgdStep> {
    let plain =
        SgdStep { lr: 0.1, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false, first: false };
    let momentum = SgdStep { momentum: 0.9, dampening: 0.1, weight_decay: 0.01, ..plain };
    vec![
        plain,
        SgdStep { weight_decay: 0.3, ..plain },
        momentum,
        SgdStep { first: true, ..momentum },
        SgdStep { nesterov: true, dampening: 0.0, ..momentum },
    ]
}

fn adam_steps() -> Vec<AdamStep> {
    let plain = AdamStep {
        step: 1,
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.0,
        decoupled: false,
    };
    vec![
        plain,
        AdamStep { step: 7, weight_decay: 0.1, ..plain },
        AdamStep { step: 100, weight_decay: 0.1, decoupled: true, ..plain },
        AdamStep { beta1: 0.3, ..plain },
    ]
}

fn steps_of<T: Real>() {
    let Some(both) = both() else { return };
    for shape in [[1, 1], [5, 3], [33, 65], [40, 200]] {
        for how in [Stored::Dense, Stored::Transposed, Stored::Narrowed] {
            for step in sgd_steps() {
                for result in [0, 1] {
                    both.same((step, shape, how, result), |stream| {
                        let p = stored::<T>(stream, 1, shape, Stored::Dense);
                        let g = stored::<T>(stream, 2, shape, how);
                        let b = stored::<T>(stream, 3, shape, Stored::Dense);
                        let buffer = (step.momentum != 0.0).then(|| b.view());
                        sgd_step(stream, &[SgdUpdate { param: p.view(), grad: g.view(), buffer, step }])?;
                        Ok([p, b].into_iter().nth(result).expect("one of two"))
                    });
                }
            }
            for step in adam_steps() {
                for result in [0, 1, 2] {
                    both.same((step, shape, how, result), |stream| {
                        let p = stored::<T>(stream, 1, shape, how);
                        let (g, m) = (stored::<T>(stream, 2, shape, how), stored::<T>(stream, 3, shape, how));
                        // The running mean of squares is not negative.
                        let v = stored::<T>(stream, 4, shape, how);
                        crate::unary(stream, crate::UnaryOp::Square, v.view(), v.view())?;
                        let (param, grad) = (p.view(), g.view());
                        let update = AdamUpdate { param, grad, m: m.view(), v: v.view(), step };
                        adam_step(stream, &[update])?;
                        Ok([p, m, v].into_iter().nth(result).expect("one of three"))
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

#[test]
fn many_tensors_in_one_call() {
    let Some(both) = both() else { return };
    let shapes: Vec<[usize; 2]> = (0..150).map(|i| [1 + i % 7, (i * i * 13) % 701]).collect();
    let arrays = |stream: &Stream, seed: u64| -> Vec<Array<f32>> {
        let one = |(i, &shape): (usize, &[usize; 2])| stored(stream, seed + i as u64, shape, Stored::Dense);
        shapes.iter().enumerate().map(one).collect()
    };
    let step =
        SgdStep { lr: 0.1, momentum: 0.9, dampening: 0.0, weight_decay: 0.01, nesterov: true, first: false };
    for stream in [&both.cpu, &both.cuda] {
        stream.synchronize().expect("nothing failed");
    }
    let run = |stream: &Stream| {
        let (p, g, b) = (arrays(stream, 1), arrays(stream, 1000), arrays(stream, 2000));
        let update = |i: usize| SgdUpdate {
            param: p[i].view(),
            grad: g[i].view(),
            buffer: Some(b[i].view()),
            step: if i == 100 { SgdStep { first: true, ..step } } else { step },
        };
        let updates: Vec<_> = (0..p.len()).map(update).collect();
        sgd_step(stream, &updates).expect("a launch");
        p.iter().chain(&b).map(Array::to_vec).collect::<Vec<_>>()
    };
    assert_eq!(run(&both.cuda), run(&both.cpu));
}
