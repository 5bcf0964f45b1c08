//! What goes into a captured step and what comes out of it.

use super::{tensor, values};
use crate::common::devices::each_device;
use streamgrad::prelude::*;
use streamgrad::tensor::Attention;
use streamgrad::{CpuConfig, Error, ErrorKind, Graph, RandomKey, Result, Schedule};

const SCHEDULES: [Schedule; 3] = [Schedule::Inline, Schedule::Threads, Schedule::Delay { seed: 9 }];

/// A number of the host, and what the host uploads, stay what they were.
#[test]
fn numbers_of_the_host_stay_what_they_were() {
    each_device(&SCHEDULES, |device| {
        let x = tensor(&[1.0, 2.0], device)?;
        let mut by = 3.0;
        let mut uploaded = vec![10.0f32, 20.0];
        let graph = Graph::capture(device, || x.mul_scalar(by)?.add(&tensor(&uploaded, device)?))?;
        assert_eq!(values(&graph.replay()?)?, [13.0, 26.0]);
        by = 5.0;
        uploaded.fill(0.0);
        x.fill_(1.0)?;
        assert_eq!(values(&graph.replay()?)?, [13.0, 23.0], "not {by} and {uploaded:?}");
        Ok(())
    });
}

#[test]
fn results_that_are_held_are_not_overwritten() {
    each_device(&SCHEDULES, |device| {
        let x = tensor(&[0.0, 1.0], device)?;
        let graph = Graph::capture(device, || {
            x.add_scalar_(1.0)?;
            let doubled = x.mul_scalar(2.0)?;
            Ok([doubled.clone(), doubled.narrow(0, 1, 1)?, x.clone()])
        })?;
        let mut held = Vec::new();
        for _ in 0..5 {
            let [doubled, part, _] = graph.replay()?;
            // A view holds it as well.
            held.push((doubled.narrow(0, 0, 1)?, part));
        }
        for (at, (first, second)) in held.iter().enumerate() {
            let at = at as f32;
            assert_eq!((values(first)?, values(second)?), (vec![2.0 * at + 2.0], vec![2.0 * at + 4.0]));
        }
        // What the step did not make is not copied.
        let [_, _, same] = graph.replay()?;
        assert!(same.same_storage(&x));
        Ok(())
    });
}

/// A result that somebody holds is made somewhere else by the next replay, by the kernels that were captured.
#[test]
fn what_a_device_allows_later_changes_no_replay() {
    each_device(&SCHEDULES, |device| {
        let x = Tensor::randn(&[1, 2, 40, 32], DType::F32, RandomKey { seed: 1, op: 1 }, device)?;
        let attention = Attention::default();
        let graph = Graph::capture(device, || x.scaled_dot_product_attention(&x, &x, &attention))?;
        let held = graph.replay()?;
        device.set_tf32(true);
        let next = graph.replay()?;
        device.set_tf32(false);
        assert!(!held.same_storage(&next));
        assert_eq!(values(&held)?, values(&next)?);
        Ok(())
    });
}

#[test]
fn a_steady_replay_allocates_nothing() {
    each_device(&SCHEDULES, |device| {
        let x = tensor(&[0.5; 100], device)?;
        let graph = Graph::capture(device, || {
            let y = x.mul(&x)?.add_scalar(1.0)?;
            Ok((y.sum(&[], false)?, y))
        })?;
        let counts = || {
            let stats = device.memory_stats();
            (stats.allocations, stats.live_blocks)
        };
        drop(graph.replay()?);
        let before = counts();
        for _ in 0..4 {
            let (sum, _) = graph.replay()?;
            drop(sum);
        }
        device.synchronize()?;
        assert_eq!(counts(), before);
        let held = graph.replay()?;
        assert_eq!(counts(), before);
        graph.replay()?;
        assert_eq!(counts(), (before.0 + 2, before.1 + 2));
        drop(held);
        assert_eq!(counts().1, before.1);
        Ok(())
    });
}

#[test]
fn a_step_keeps_what_it_uses() {
    each_device(&SCHEDULES, |device| {
        let (x, state) = (tensor(&[1.0, 2.0], device)?, tensor(&[0.0, 0.0], device)?);
        let seen = state.clone();
        let graph = Graph::capture(device, move || {
            state.add_(&x)?;
            state.mul(&x)
        })?;
        // Memory that was given back would be these.
        let others: Vec<Tensor> = (0..8).map(|_| tensor(&[7.0, 7.0], device)).collect::<Result<_>>()?;
        graph.replay()?;
        assert_eq!(values(&graph.replay()?)?, [2.0, 8.0]);
        assert_eq!(values(&seen)?, [2.0, 4.0]);
        assert!(others.iter().all(|other| values(other).unwrap() == [7.0, 7.0]));
        Ok(())
    });
}

#[test]
fn a_graph_may_go_while_it_runs() {
    each_device(&SCHEDULES, |device| {
        let x = tensor(&[1.0; 1000], device)?;
        let graph = Graph::capture(device, || x.add_scalar(1.0)?.mul_scalar(2.0)?.add(&x))?;
        let result = graph.replay()?;
        drop((graph, x));
        let others: Vec<Tensor> = (0..8).map(|_| tensor(&[7.0; 1000], device)).collect::<Result<_>>()?;
        assert_eq!(values(&result)?, [5.0; 1000]);
        drop(others);
        Ok(())
    });
}

#[test]
fn an_input_takes_the_shape_that_it_had() {
    each_device(&SCHEDULES, |device| {
        let (x, other) = (tensor(&[1.0, 2.0], device)?, tensor(&[1.0, 2.0], device)?);
        let graph = Graph::capture(device, || x.add(&x))?;
        let input = graph.input(&x)?;
        match input.set(&tensor(&[1.0, 2.0, 3.0], device)?) {
            Err(error) if matches!(error.kind(), ErrorKind::ShapeMismatch { .. }) => {
                let text = error.to_string();
                assert!(text.contains("[2]") && text.contains("[3]"), "{text}");
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            graph.input(&other).as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { .. })
        ));
        // Of another type, as any copy.
        input.set(&Tensor::from_slice(&[1i64, 2], &[2], device)?)?;
        assert_eq!(values(&graph.replay()?)?, [2.0, 4.0]);
        // Itself, a view of itself, a result.
        input.set(&x)?;
        assert_eq!(values(&graph.replay()?)?, [2.0, 4.0]);
        let result = graph.replay()?;
        input.set(&result)?;
        let next = graph.replay()?;
        assert_eq!((values(&result)?, values(&next)?), (vec![2.0, 4.0], vec![4.0, 8.0]));
        Ok(())
    });
}

#[test]
fn aliases_and_repeated_inputs_are_what_they_are() {
    each_device(&SCHEDULES, |device| {
        let x = Tensor::arange(0.0, 6.0, 1.0, DType::F32, device)?;
        let (low, high) = (x.narrow(0, 0, 4)?, x.narrow(0, 2, 4)?);
        let step = || {
            low.add_scalar_(1.0)?;
            let sum = low.add(&high)?;
            high.mul_scalar_(2.0)?;
            sum.add(&low)
        };
        let expected: Vec<_> = (0..3).map(|_| values(&step()?)).collect::<Result<_>>()?;
        let end = values(&x)?;
        x.copy_(&Tensor::arange(0.0, 6.0, 1.0, DType::F32, device)?)?;
        let graph = Graph::capture(device, step)?;
        let found: Vec<_> = (0..3).map(|_| values(&graph.replay()?)).collect::<Result<_>>()?;
        assert_eq!((found, values(&x)?), (expected, end));
        graph.input(&low)?.set(&tensor(&[0.0; 4], device)?)?;
        assert_eq!(values(&x)?[..4], [0.0; 4]);
        Ok(())
    });
}

/// Memory for a result may be missing: then nothing has run, and what is held stays.
#[test]
fn a_replay_without_memory_has_not_run() -> Result<()> {
    let device = Device::cpu_with(CpuConfig::default());
    let n = 1 << 20;
    let x = Tensor::zeros(&[n], DType::F32, &device)?;
    let graph = Graph::capture(&device, || {
        x.add_scalar_(1.0)?;
        Ok([x.add_scalar(1.0)?, x.add_scalar(2.0)?])
    })?;
    let [a, b] = graph.replay()?;
    device.synchronize()?;
    // Room for one of two results.
    device.trim();
    let live = device.memory_stats().reserved_bytes;
    device.set_memory_limit(Some(live + (6 << 20)));
    for _ in 0..2 {
        assert!(matches!(graph.replay().as_ref().map_err(Error::kind), Err(ErrorKind::OutOfMemory { .. })));
    }
    let firsts = || -> Result<[f32; 3]> {
        Ok([a.narrow(0, 0, 1)?.item()?, b.narrow(0, 0, 1)?.item()?, x.narrow(0, 0, 1)?.item()?])
    };
    assert_eq!(firsts()?, [2.0, 3.0, 1.0]);
    device.set_memory_limit(None);
    let [c, d] = graph.replay()?;
    assert_eq!(firsts()?, [2.0, 3.0, 2.0]);
    assert_eq!((c.narrow(0, 0, 1)?.item::<f32>()?, d.narrow(0, 0, 1)?.item::<f32>()?), (3.0, 4.0));
    Ok(())
}

/// Results are no inputs, also where other tensors lie where results did.
#[test]
fn a_result_is_no_input() {
    each_device(&SCHEDULES, |device| {
        let x = tensor(&[1.0, 2.0], device)?;
        let graph = Graph::capture(device, || x.mul(&x))?;
        let (first, second) = (graph.replay()?, graph.replay()?);
        let is_refused = |result: &Tensor| {
            matches!(
                graph.input(result).as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { .. })
            )
        };
        assert!(is_refused(&first) && is_refused(&second));
        drop((first, second));
        let others: Vec<Tensor> = (0..8).map(|_| tensor(&[0.0, 0.0], device)).collect::<Result<_>>()?;
        assert!(others.iter().all(is_refused) && graph.input(&x).is_ok());
        Ok(())
    });
}

/// Such as the list of a batch whose bags are all empty.
#[test]
fn a_step_reads_tensors_without_elements() {
    each_device(&[Schedule::Inline], |device| {
        let none = |shape: [usize; 2]| Tensor::zeros(&shape, DType::F32, device);
        let (x, y) = (none([2, 0])?, none([0, 1])?);
        let graph = Graph::capture(device, || x.matmul(&y)?.add_scalar(1.0))?;
        for _ in 0..2 {
            assert_eq!(values(&graph.replay()?)?, [1.0, 1.0]);
        }
        Ok(())
    });
}
