//! Captured steps among streams, threads and schedules.

use super::{tensor, values, works};
use crate::common::devices::each_device;
use streamgrad::compare::{Explore, explore};
use streamgrad::prelude::*;
use streamgrad::{
    ConcurrentBatches, Error, ErrorKind, Generator, Graph, GraphOptions, Order, Result, Schedule, defer,
    with_generator,
};

const SCHEDULES: [Schedule; 3] = [Schedule::Inline, Schedule::Threads, Schedule::Delay { seed: 2 }];

/// A step of two states that depend on each other, and what it gives.
fn step(states: &[Tensor; 2]) -> Result<Tensor> {
    let [a, b] = states;
    let sum = a.mul_scalar(0.5)?.add(b)?;
    a.add_(&b.mul_scalar(0.25)?)?;
    b.copy_(&sum)?;
    sum.add(a)
}

fn states(device: &Device) -> Result<[Tensor; 2]> {
    Ok([tensor(&[1.0, 2.0, 3.0], device)?, tensor(&[4.0, 5.0, 6.0], device)?])
}

/// What other streams launch before and after a replay sees what it has written, and no more.
#[test]
fn replays_are_ordered_with_all_streams() {
    each_device(&SCHEDULES, |device| {
        let run = |captured: bool| -> Result<Vec<Vec<f32>>> {
            let states = states(device)?;
            let streams = [device.default_stream(), device.new_stream()?, device.new_stream()?];
            let graph = captured.then(|| Graph::capture(device, || step(&states))).transpose()?;
            let mut seen = Vec::new();
            for at in 0..12 {
                let [here, there] = [&streams[at % 3], &streams[(at + 1) % 3]];
                seen.push(here.scope(|| graph.as_ref().map_or_else(|| step(&states), Graph::replay))?);
                seen.push(there.scope(|| states[0].add(&states[1]))?);
                if at % 4 == 2 {
                    there.scope(|| states[1].mul_scalar_(0.5))?;
                }
            }
            seen.iter().map(values).collect()
        };
        assert_eq!(run(true)?, run(false)?);
        Ok(())
    });
}

#[test]
fn two_graphs_take_turns_on_several_streams() {
    each_device(&SCHEDULES, |device| {
        let run = |captured: bool| -> Result<Vec<Vec<f32>>> {
            let states = states(device)?;
            let halve = || states.iter().try_for_each(|state| state.mul_scalar_(0.5));
            let graphs = match captured {
                true => Some((Graph::capture(device, || step(&states))?, Graph::capture(device, halve)?)),
                false => None,
            };
            let other = device.new_stream()?;
            let mut seen = Vec::new();
            for _ in 0..10 {
                seen.push(graphs.as_ref().map_or_else(|| step(&states), |(first, _)| first.replay())?);
                other.scope(|| graphs.as_ref().map_or_else(halve, |(_, second)| second.replay()))?;
            }
            seen.iter().chain(&states).map(values).collect()
        };
        assert_eq!(run(true)?, run(false)?);
        Ok(())
    });
}

/// Replays of one graph from several threads come one after the other, whichever is first, and each has a result of its own.
#[test]
fn threads_share_a_graph() {
    each_device(&SCHEDULES, |device| {
        let count = tensor(&[0.0], device)?;
        let graph = Graph::capture(device, || {
            count.add_scalar_(1.0)?;
            count.mul_scalar(1.0)
        })?;
        let replays = || (0..50).map(|_| graph.replay().unwrap()).collect::<Vec<_>>();
        let mut seen: Vec<f32> = std::thread::scope(|scope| {
            let threads = [0, 1, 2].map(|_| scope.spawn(replays));
            let all = threads.into_iter().flat_map(|thread| thread.join().unwrap());
            all.map(|result| result.item().unwrap()).collect()
        });
        seen.sort_by(f32::total_cmp);
        assert_eq!(seen, (1..=150).map(|at| at as f32).collect::<Vec<_>>());
        Ok(())
    });
}

/// Each thread captures and replays steps of its own, while others run.
#[test]
fn threads_capture_at_once() {
    each_device(&SCHEDULES, |device| {
        std::thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || {
                    for _ in 0..20 {
                        let states = states(device).unwrap();
                        if thread == 0 {
                            (0..3).for_each(|_| drop(step(&states).unwrap()));
                        } else {
                            let graph = Graph::capture(device, || step(&states)).unwrap();
                            (0..3).for_each(|_| drop(graph.replay().unwrap()));
                        }
                        let expected = {
                            let again = self::states(device).unwrap();
                            (0..3).for_each(|_| drop(step(&again).unwrap()));
                            again.map(|state| values(&state).unwrap())
                        };
                        assert_eq!(states.map(|state| values(&state).unwrap()), expected);
                    }
                });
            }
        });
        works(device)
    });
}

/// A thread that has nothing to do with a capture runs commands, waits and reads as ever, also on memory that the step uses.
#[test]
fn others_use_the_device_while_a_step_is_captured() {
    each_device(&SCHEDULES, |device| {
        let states = states(device)?;
        let graph = Graph::capture(device, || {
            let first = states[0].add(&states[1])?;
            std::thread::scope(|scope| {
                let other = scope.spawn(|| -> Result<Vec<f32>> {
                    states[0].mul_scalar_(2.0)?;
                    device.synchronize()?;
                    values(&states[0])
                });
                assert_eq!(other.join().unwrap()?, [2.0, 4.0, 6.0]);
                Ok::<_, streamgrad::Error>(())
            })?;
            first.add(&states[0])
        })?;
        assert_eq!(values(&graph.replay()?)?, [8.0, 13.0, 18.0]);
        Ok(())
    });
}

/// A step of several streams, lanes and branches, with what its forward pass puts off.
fn lanes(device: &Device, captured: Option<Order>) -> Result<Vec<Vec<f32>>> {
    let norm = BatchNorm2d::new(3, device)?;
    let conv = with_generator(Generator::new(1), || Conv2d::new(2, 3, [3, 3], device))?;
    let lanes = ConcurrentBatches::with_options(device, 2, Lanes::Always)?;
    let side = device.new_stream()?;
    let seen = Tensor::zeros(&[], DType::F32, device)?;
    let mut sgd = Sgd::new([conv.parameters(), norm.parameters()].concat(), 0.05)?;
    let inputs: Vec<Tensor> = (0..4)
        .map(|op| Tensor::randn(&[2, 2, 5, 5], DType::F32, streamgrad::RandomKey { seed: 2, op }, device))
        .collect::<Result<_>>()?;
    let mut step = || {
        let step = lanes.step(0..4, |at: usize| {
            let x = Var::constant(inputs[at].clone());
            let seen = seen.clone();
            defer(move || {
                seen.mul_scalar_(3.0)?;
                seen.add_scalar_(at as f64)
            })?;
            let (left, right) = (conv.forward(&x)?, side.scope(|| conv.forward(&x.mul_scalar(0.5)?))?);
            norm.forward(&left)?.add(&right)?.square()?.mean(&[], false)
        })?;
        sgd.step(&step.gradients)?;
        Ok(step.losses)
    };
    let mut all = Vec::new();
    match captured {
        None => {
            for _ in 0..5 {
                all.extend(step()?);
            }
        }
        Some(order) => {
            let graph = Graph::capture_with(device, GraphOptions { order, ..GraphOptions::default() }, step)?;
            for _ in 0..5 {
                all.extend(graph.replay()?);
            }
        }
    }
    all.push(seen);
    all.extend(norm.named_buffers().into_iter().map(|(_, buffer)| buffer.to_dtype(DType::F32).unwrap()));
    all.extend(conv.parameters().iter().chain(&norm.parameters()).map(|p| p.value().clone()));
    all.iter().map(values).collect()
}

#[test]
fn lanes_branches_and_what_is_put_off_are_part_of_a_step() {
    each_device(&SCHEDULES, |device| {
        let expected = lanes(device, None)?;
        for order in [Order::Data, Order::Streams] {
            assert_eq!(lanes(device, Some(order))?, expected, "{order:?}");
        }
        Ok(())
    });
}

#[test]
fn explored_schedules_of_replays_give_one_result() -> Result<()> {
    let report = explore(Explore { seeds: 0..60, ..Explore::default() }, |device| {
        let states = states(device)?;
        let graph = Graph::capture(device, || step(&states))?;
        let streams = [device.new_stream()?, device.new_stream()?];
        let mut seen = Vec::new();
        for at in 0..6 {
            seen.push(streams[at % 2].scope(|| graph.replay())?);
            seen.push(streams[(at / 2) % 2].scope(|| states[0].add(&states[1]))?);
        }
        seen.extend(states);
        Ok(seen)
    })?;
    assert!(report.distinct_orders > 10, "{report:?}");
    Ok(())
}

/// Results of one command, of which one comes to lie where the other one was, while a replay before is held back.
#[test]
fn results_that_trade_places_stay_apart() {
    each_device(&[Schedule::Threads, Schedule::Delay { seed: 2 }], |device| {
        if device.default_stream().is_cuda() {
            // The driver runs the launches of one graph one after the other, so what is held back holds back the next.
            return Ok(());
        }
        let x = tensor(&[1.0, 2.0, 3.0], device)?;
        let graph = Graph::capture(device, || {
            let y = x.add_scalar(1.0)?;
            let z = y.mul_scalar(2.0)?;
            Ok((y, z))
        })?;
        let side = device.new_stream()?;
        let (y, z) = graph.replay()?;
        device.synchronize()?;
        let gate = side.hold();
        let held = side.scope(|| graph.replay())?;
        drop(z);
        let later = graph.replay()?;
        let expected = (vec![2.0, 3.0, 4.0], vec![4.0, 6.0, 8.0]);
        assert_eq!((values(&later.0)?, values(&later.1)?), expected);
        drop(gate);
        let last = graph.replay()?;
        for (y, z) in [held, last] {
            assert_eq!((values(&y)?, values(&z)?), expected);
        }
        assert_eq!(values(&y)?, expected.0);
        Ok(())
    });
}

/// The commands of a replay are explored, too: an edge that is missing shows.
#[test]
fn an_exploration_picks_the_order_within_a_replay() -> Result<()> {
    let capture = |device: &Device| -> Result<(Tensor, Graph<Tensor>)> {
        let x = tensor(&[1.0, 2.0, 3.0], device)?;
        let options = GraphOptions { fuse: false, ..GraphOptions::default() };
        let graph = Graph::capture_with(device, options, || {
            let square = x.square()?;
            x.copy_(&square)?;
            x.logsumexp(&[], false)
        })?;
        Ok((x, graph))
    };
    let explored = |missing: Option<(usize, usize)>| {
        explore(Explore { seeds: 0..40, ..Explore::default() }, move |device| {
            let (x, graph) = capture(device)?;
            graph.executable().ignore(missing);
            Ok(vec![graph.replay()?, graph.replay()?, x])
        })
    };
    assert_eq!(explored(None)?.distinct_results, 1);
    let commands = capture(&Device::cpu())?.1.commands();
    let edges = commands
        .iter()
        .enumerate()
        .flat_map(|(later, command)| command.needs.iter().map(move |&earlier| (earlier, later)));
    for edge in edges {
        let found = explored(Some(edge));
        assert!(
            matches!(found.as_ref().map_err(Error::kind), Err(ErrorKind::ScheduleDependent { .. })),
            "{edge:?}: {found:?}"
        );
    }
    assert!(commands.len() > 2);
    Ok(())
}

/// A variable that a replay has changed is noticed by a backward pass that needs what it was.
#[test]
fn a_replay_counts_as_a_change_in_place() {
    each_device(&SCHEDULES, |device| {
        let w = Var::leaf(tensor(&[1.0, 2.0], device)?);
        let graph = Graph::capture(device, || w.value().add_scalar_(1.0))?;
        let loss = w.square()?.sum(&[], false)?;
        graph.replay()?;
        assert!(loss.backward().is_err());
        Ok(())
    });
}
