//! Small plans, of which every edge is tried.

use super::{tensor, values};
use crate::common::devices::Kind;
use streamgrad::device::{PlannedCommand, needless, unordered};
use streamgrad::prelude::*;
use streamgrad::{Graph, GraphOptions, Order, Result, Schedule};

type Step = fn(&Device, &[Tensor; 2]) -> Result<Tensor>;

const STEPS: [(&str, Step); 4] = [
    ("a chain", |_, [a, _]| a.add_scalar(1.0)?.mul_scalar(2.0)?.add_scalar(3.0)?.mul(a)),
    ("two ways that meet", |_, [a, b]| {
        let (left, right) = (a.mul_scalar(3.0)?.add_scalar(1.0)?, b.mul_scalar(2.0)?.add_scalar(5.0)?);
        left.mul(&right)?.add(&left)
    }),
    ("states in place", |_, [a, b]| {
        let sum = a.add(b)?;
        a.mul_scalar_(0.5)?;
        let other = b.mul(a)?;
        b.add_(&sum)?;
        other.add(b)
    }),
    ("several streams", |device, [a, b]| {
        let side = device.new_stream()?;
        let left = side.scope(|| a.mul_scalar(2.0)?.add_scalar(1.0))?;
        b.add_(a)?;
        side.scope(|| left.mul(b))?.add(&left)
    }),
];

const OPTIONS: [GraphOptions; 4] = [
    GraphOptions { order: Order::Data, max_bytes: None, fuse: false },
    GraphOptions { order: Order::Data, max_bytes: Some(0), fuse: false },
    GraphOptions { order: Order::Streams, max_bytes: None, fuse: false },
    GraphOptions { order: Order::Streams, max_bytes: Some(0), fuse: false },
];

fn without(commands: &[PlannedCommand], (earlier, later): (usize, usize)) -> Vec<PlannedCommand> {
    let mut commands = commands.to_vec();
    commands[later].needs.retain(|need| *need != earlier);
    commands
}

/// Without any of its edges a plan lacks something, which the check reports; and what it reports can be seen in results.
#[test]
fn each_edge_of_a_plan_is_needed() -> Result<()> {
    let device = Kind::Cpu(Schedule::Inline).device();
    let (mut tried, mut seen) = (0, 0);
    for (name, step) in STEPS {
        for options in OPTIONS {
            let states = [tensor(&[1.0, 2.0, 3.0], &device)?, tensor(&[5.0, 7.0, 9.0], &device)?];
            let graph = Graph::capture_with(&device, options, || step(&device, &states))?;
            let (executable, name) = (graph.executable(), format!("{name}, {options:?}"));
            let commands = &graph.commands()[..];
            assert_eq!(unordered(commands), [], "{name}");
            let run = |seed| -> Result<Vec<Vec<f32>>> {
                executable.shuffle(Some(seed));
                states[0].copy_(&tensor(&[1.0, 2.0, 3.0], &device)?)?;
                states[1].copy_(&tensor(&[5.0, 7.0, 9.0], &device)?)?;
                let result = graph.replay()?;
                [&result, &states[0], &states[1]].into_iter().map(values).collect()
            };
            let expected = run(0)?;
            let needless = needless(commands);
            for (later, command) in commands.iter().enumerate() {
                for &earlier in &command.needs {
                    let edge = (earlier, later);
                    let of_a_stream =
                        options.order == Order::Streams && commands[earlier].stream == command.stream;
                    let reported = unordered(&without(commands, edge)).contains(&edge);
                    assert_eq!(reported, !needless.contains(&edge), "{name}, {edge:?}");
                    assert!(reported || of_a_stream, "{name}, {edge:?}");
                    executable.ignore(Some(edge));
                    let differs = (1..40).map(run).any(|found| found.unwrap() != expected);
                    executable.ignore(None);
                    assert!(reported || !differs, "{name}, {edge:?}");
                    tried += usize::from(reported);
                    seen += usize::from(differs);
                }
            }
            for seed in 1..40 {
                assert_eq!(run(seed)?, expected, "{name}");
            }
        }
    }
    println!("{seen} of {tried} missing edges were seen in results");
    assert!(seen * 3 > tried * 2, "{seen} of {tried}");
    Ok(())
}

/// Memory that is read before it is written has no content to speak of, but it is not another command's either.
#[test]
fn memory_that_was_never_written_is_nobody_elses() -> Result<()> {
    let device = Kind::Cpu(Schedule::Inline).device();
    let x = tensor(&[1.0; 64], &device)?;
    let graph = Graph::capture(&device, || {
        let first = x.add_scalar(1.0)?.mul_scalar(2.0)?.sum(&[], false)?;
        let empty = Tensor::empty(&[64], DType::F32, &device)?;
        empty.add_(&first)?;
        let unwritten = Tensor::empty(&[64], DType::F32, &device)?;
        Ok((unwritten.add(&empty)?, unwritten.sum(&[], false)?, unwritten.add_scalar(1.0)?))
    })?;
    assert_eq!(unordered(&graph.commands()), []);
    Ok(())
}
