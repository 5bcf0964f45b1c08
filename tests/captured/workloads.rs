//! The example programs: replays against eager steps, and their plans against a check that knows nothing of planning.

use std::cell::RefCell;

use crate::common::bits;
use crate::common::devices::Kind;
use streamgrad::device::{needless, unordered};
use streamgrad::prelude::*;
use streamgrad::{ConcurrentBatches, Graph, GraphOptions, Graphs, Order, Result, Schedule};
use workloads::{Model, Overlap, Workload};

/// Steps in each test; more by hand.
fn replays() -> usize {
    std::env::var("STREAMGRAD_REPLAYS").map_or(4, |count| count.parse().unwrap())
}

const ROWS: usize = 3;

/// A workload in small: its model, its optimizer, and lanes for a step of two batches.
pub(super) struct Program {
    pub(super) model: Box<dyn Model>,
    pub(super) optimizer: RefCell<Box<dyn Optimizer>>,
    pub(super) lanes: ConcurrentBatches,
    lr: f64,
}

impl Program {
    pub(super) fn new(workload: &dyn Workload, lanes: usize, device: &Device) -> Result<Program> {
        let model = match workload.overlap() {
            Overlap::Branches if lanes > 1 => workload.branched(1, device)?,
            _ => workload.model(1, device)?,
        };
        let optimizer = workload.optimizer(model.parameters(), 2)?;
        let lr = optimizer.learning_rate();
        Ok(Program {
            model,
            optimizer: RefCell::new(optimizer),
            lanes: ConcurrentBatches::with_options(device, lanes, Lanes::Always)?,
            lr,
        })
    }

    fn step(&self, batches: &Vec<Batch>) -> Result<Vec<Tensor>> {
        let mut step = self.lanes.step(batches, |batch| self.model.batch_loss(batch))?;
        let norm = clip_grad_norm(&mut step.gradients, 0.5)?;
        self.optimizer.borrow_mut().step(&step.gradients)?;
        step.losses.push(norm);
        Ok(step.losses)
    }

    fn schedule(&self, step: usize) -> Result<()> {
        let schedule = LrSchedule::Cosine { t_max: replays() as u64, eta_min: 0.1 * self.lr };
        schedule.apply(&mut **self.optimizer.borrow_mut(), self.lr, step as u64)
    }

    /// Parameters, running statistics, and the optimizer's state.
    fn state(&self) -> Result<Vec<Vec<u32>>> {
        let optimizer = self.optimizer.borrow().state()?.tensors;
        let parameters = self.model.parameters().into_iter().map(|parameter| parameter.value().clone());
        let buffers = self.model.named_buffers().into_iter().chain(optimizer).map(|(_, tensor)| tensor);
        parameters.chain(buffers).map(|tensor| bits(&tensor.to_dtype(DType::F32)?)).collect()
    }
}

/// The batches of step number `step`, prepared.
pub(super) fn batches(program: &Program, data: &DataLoader<InMemory>, step: usize) -> Result<Vec<Batch>> {
    let first = 2 * step % (data.per_epoch() - 1);
    let taken = data.epoch(step as u64).skip(first).take(2);
    taken.map(|batch| no_grad(|| program.model.prepare(batch?))).collect()
}

type Seen = (Vec<Vec<u32>>, Vec<Vec<u32>>);

fn train(
    program: &Program,
    data: &DataLoader<InMemory>,
    step: &mut dyn FnMut(&Vec<Batch>) -> Result<Vec<Tensor>>,
) -> Result<Seen> {
    let mut losses = Vec::new();
    for at in 0..replays() {
        program.schedule(at)?;
        losses.extend(step(&batches(program, data, at)?)?);
    }
    Ok((losses.iter().map(bits).collect::<Result<_>>()?, program.state()?))
}

/// At the scale that `STREAMGRAD_SCALE` asks for, if the workload has several: an emulated device is slow.
fn scaled(workload: &'static dyn Workload) -> &'static dyn Workload {
    let scale =
        std::env::var("STREAMGRAD_SCALE").ok().and_then(|scale| workload.at_scale(scale.parse().unwrap()));
    scale.unwrap_or(workload)
}

pub(super) fn each(
    kinds: &[Kind],
    test: impl Fn(&dyn Workload, &Device, &DataLoader<InMemory>) -> Result<()>,
) {
    for kind in kinds {
        // One of them by hand: `STREAMGRAD_WORKLOAD=dlrm`.
        let only = std::env::var("STREAMGRAD_WORKLOAD").ok();
        let asked = |workload: &&&dyn Workload| only.as_ref().is_none_or(|name| name == workload.name());
        for workload in workloads::ALL.iter().filter(asked) {
            let workload = scaled(*workload);
            let device = kind.device();
            let data = workload.data(1, &device).unwrap().0;
            let data = DataLoader::new(
                data,
                LoaderOptions {
                    batch: ROWS,
                    seed: 1,
                    drop_last: true,
                    device: device.clone(),
                    ..LoaderOptions::default()
                },
            )
            .unwrap();
            test(workload, &device, &data)
                .unwrap_or_else(|error| panic!("{}, {kind:?}: {error}", workload.name()));
        }
    }
}

#[test]
fn every_workload_trains_by_replays_as_it_does_eagerly() {
    each(&Kind::all(&[Schedule::Inline]), |workload, device, data| {
        let eager = Program::new(workload, 1, device)?;
        let expected = train(&eager, data, &mut |batches| eager.step(batches))?;
        for (lanes, order) in [(1, Order::Data), (2, Order::Data), (2, Order::Streams)] {
            let program = Program::new(workload, lanes, device)?;
            let mut graphs = Graphs::new(device, |batches: &Vec<Batch>| program.step(batches))
                .options(GraphOptions { order, ..GraphOptions::default() });
            let found = train(&program, data, &mut |batches| graphs.run(batches))?;
            assert!(found == expected, "{}, {lanes} lanes, {order:?}", workload.name());
        }
        Ok(())
    });
}

#[test]
fn plans_order_all_that_shares_memory_and_no_more() {
    each(&[Kind::Cpu(Schedule::Inline)], |workload, device, data| {
        let program = Program::new(workload, 2, device)?;
        let batches = batches(&program, data, 0)?;
        for order in [Order::Data, Order::Streams] {
            let plan = |max_bytes| {
                Graph::capture_with(
                    device,
                    GraphOptions { order, max_bytes, ..GraphOptions::default() },
                    || program.step(&batches),
                )
            };
            let free = plan(None)?;
            let report = free.report();
            let least = report.needed_bytes;
            let name = format!("{}, {order:?}", workload.name());
            for max_bytes in [None, Some(least), Some(least * 5 / 4), Some(0)] {
                let graph = plan(max_bytes)?;
                let commands = &graph.commands()[..];
                assert_eq!(unordered(commands), [], "{name}, {max_bytes:?}");
                let same_stream = |&(a, b): &(usize, usize)| {
                    order == Order::Streams && commands[a].stream == commands[b].stream
                };
                let needless: Vec<_> =
                    needless(commands).into_iter().filter(|edge| !same_stream(edge)).collect();
                assert_eq!(needless, [], "{name}, {max_bytes:?}");
                // Lanes are captured at once, in an order of this capture's own.
                let (planned, needed) = (graph.report().planned_bytes, graph.report().needed_bytes);
                println!(
                    "{name}, at most {max_bytes:?}: {planned} of {} without, {needed} needed",
                    report.planned_bytes
                );
                assert!(planned >= needed, "{name}: {planned} of {needed}");
                if max_bytes.is_some_and(|most| most >= needed * 5 / 4) {
                    assert!(Some(planned) <= max_bytes, "{name}: {planned} of {needed}");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn a_plan_in_the_programs_order_takes_little_more_than_the_program() {
    each(&[Kind::Cpu(Schedule::Inline)], |workload, device, data| {
        let program = Program::new(workload, 1, device)?;
        let batches = batches(&program, data, 0)?;
        drop(program.step(&batches)?);
        device.synchronize()?;
        let before = device.memory_stats().allocated_bytes;
        device.reset_peak_memory_stats();
        drop(program.step(&batches)?);
        let eager = device.memory_stats().peak_allocated_bytes - before;
        let options = GraphOptions { order: Order::Streams, ..GraphOptions::default() };
        let report = Graph::capture_with(device, options, || program.step(&batches))?.report();
        let (planned, needed) = (report.planned_bytes, report.needed_bytes);
        println!("{}: {planned} planned, {needed} needed, {eager} eager", workload.name());
        assert!(
            planned as f64 <= 1.15 * eager as f64,
            "{}: {planned} planned, {eager} eager",
            workload.name()
        );
        Ok(())
    });
}

/// Replays in orders that the edges allow, picked by seeds.
#[test]
fn every_order_of_a_plan_gives_one_result() {
    each(&[Kind::Cpu(Schedule::Inline)], |workload, device, data| {
        for order in [Order::Data, Order::Streams] {
            for tight in [false, true] {
                let program = Program::new(workload, 2, device)?;
                let batches = batches(&program, data, 0)?;
                let start: Vec<Tensor> =
                    program.model.parameters().iter().map(|p| p.value().copy()).collect::<Result<_>>()?;
                let max_bytes = tight.then_some(0);
                let graph = Graph::capture_with(
                    device,
                    GraphOptions { order, max_bytes, ..GraphOptions::default() },
                    || program.step(&batches),
                )?;
                let fresh = program.optimizer.borrow().state()?;
                let run = |seed: Option<u64>| -> Result<Seen> {
                    graph.executable().shuffle(seed);
                    program.optimizer.borrow_mut().load_state(&fresh)?;
                    program
                        .model
                        .parameters()
                        .iter()
                        .zip(&start)
                        .try_for_each(|(p, start)| p.value().copy_(start))?;
                    program.model.named_buffers().iter().try_for_each(|(_, buffer)| buffer.zero_())?;
                    Ok((graph.replay()?.iter().map(bits).collect::<Result<_>>()?, program.state()?))
                };
                let expected = run(None)?;
                for seed in 0..(replays() as u64).min(100) {
                    assert!(
                        run(Some(seed))? == expected,
                        "{}, {order:?}, tight: {tight}, seed {seed}",
                        workload.name()
                    );
                }
            }
        }
        Ok(())
    });
}
