//! Commands that are fused, and what must not be.

use super::{tensor, values};
use crate::common::devices::{Kind, each_device};
use streamgrad::prelude::*;
use streamgrad::tensor::{BinaryOp, CompareOp, UnaryOp};
use streamgrad::{Element, Graph, GraphOptions, Order, PlanReport, RandomKey, Result, Schedule, bf16, f16};

const SCHEDULES: [Schedule; 2] = [Schedule::Inline, Schedule::Threads];
const UNFUSED: GraphOptions = GraphOptions { order: Order::Data, max_bytes: None, fuse: false };

fn ops<R: streamgrad::Tensors>(graph: &Graph<R>) -> Vec<&'static str> {
    graph.commands().iter().map(|command| command.op).collect()
}

/// Commands, and those that became a part of another one.
fn counts(report: PlanReport) -> (usize, usize) {
    (report.commands, report.fused)
}

#[test]
fn a_chain_becomes_one_command_without_memory_of_its_own() {
    each_device(&SCHEDULES, |device| {
        let (x, row) = (
            tensor(&[1.0, -2.0, 3.0, 4.0, -5.0, 6.0], device)?.reshape(&[2, 3])?,
            tensor(&[1.0, 2.0, 3.0], device)?,
        );
        let step = || x.add(&row)?.relu()?.mul_scalar(0.5)?.sub(&x)?.square()?.maximum(&row);
        let (plain, fused) = (Graph::capture_with(device, UNFUSED, step)?, Graph::capture(device, step)?);
        // The result is made where it is given from.
        assert_eq!((counts(plain.report()), counts(fused.report())), ((6, 0), (1, 5)));
        assert!(plain.report().planned_bytes > 0);
        assert_eq!((fused.report().planned_bytes, ops(&fused)), (0, vec!["fused"]));
        let expected = values(&step()?)?;
        assert_eq!((values(&plain.replay()?)?, values(&fused.replay()?)?), (expected.clone(), expected));
        Ok(())
    });
}

/// Elements that have other neighbours where they are read, and parts of one memory.
#[test]
fn parts_and_orders_of_a_memory_are_told_apart() {
    each_device(&SCHEDULES, |device| {
        let x = Tensor::arange(0.0, 8.0, 1.0, DType::F32, device)?;
        let cube = x.reshape(&[2, 2, 2])?;
        let swapped = || {
            let y = cube.add_scalar(1.0)?;
            y.mul(&y.permute(&[1, 0, 2])?)
        };
        // As many elements, and others; fewer elements of the same memory.
        let halves = || {
            let y = x.sum(&[], true)?.add(&x)?.sum(&[], true)?.expand(&[8])?.contiguous()?;
            y.narrow(0, 0, 2)?.add_scalar_(1.0)?;
            y.narrow(0, 2, 6)?.mul_scalar(2.0)
        };
        let step = || Ok((swapped()?, halves()?));
        let (cubes, rest) = step()?;
        let graph = Graph::capture(device, step)?;
        let (found, others) = graph.replay()?;
        assert_eq!((values(&found)?, values(&others)?), (values(&cubes)?, values(&rest)?));
        assert_eq!(ops(&Graph::capture(device, swapped)?), ["add_scalar", "mul"]);
        // Two results at elements that are partly the same come one after the other.
        let (from, to) = (tensor(&[1.0, 2.0, 3.0, 4.0], device)?, tensor(&[0.0; 6], device)?);
        let graph = Graph::capture(device, || {
            let y = from.add_scalar(1.0)?;
            to.narrow(0, 0, 4)?.copy_(&y)?;
            to.narrow(0, 2, 4)?.copy_(&y)
        })?;
        assert_eq!(counts(graph.report()), (2, 1), "{:?}", ops(&graph));
        graph.replay()?;
        assert_eq!(values(&to)?, [2.0, 3.0, 2.0, 3.0, 4.0, 5.0]);
        Ok(())
    });
}

/// A way from one function to another by way of something else.
/// An argument that is there twice, with another one between, gives its room back once.
#[test]
fn repeated_arguments_are_let_go_once() -> Result<()> {
    let device = Device::cpu();
    let of = |values: &[f32]| tensor(values, &device);
    let (a, b, u, v) = (of(&[1.0, 5.0])?, of(&[2.0, 4.0])?, of(&[10.0, 20.0])?, of(&[3.0, 4.0])?);
    let d = a.compare(CompareOp::Ne, &b)?;
    let step = || {
        let c = a.compare(CompareOp::Lt, &b)?;
        let r = Tensor::where_cond(&c, &d, &c)?;
        let (x, y) = (Tensor::where_cond(&r, &u, &v)?, Tensor::where_cond(&r, &v, &u)?);
        x.sub(&y)
    };
    assert_eq!(values(&Graph::capture(&device, step)?.replay()?)?, values(&step()?)?);
    Ok(())
}

#[test]
fn what_a_command_outside_comes_between_is_not_fused() {
    each_device(&SCHEDULES, |device| {
        let x = tensor(&[1.0, 2.0, 3.0, 4.0], device)?;
        let step = || {
            let y = x.add_scalar(1.0)?;
            y.mul(&y.logsumexp(&[], true)?)
        };
        let graph = Graph::capture(device, step)?;
        assert_eq!(ops(&graph), ["add_scalar", "logsumexp", "mul"]);
        // What the sum reads is changed behind it.
        let state = tensor(&[1.0, 2.0, 3.0, 4.0], device)?;
        let other = Graph::capture(device, || {
            let y = x.mul(&x)?;
            let sum = y.sum(&[], true)?;
            y.add_scalar_(1.0)?;
            state.copy_(&y)?;
            Ok(sum)
        })?;
        // On CUDA others would wait for the sum.
        let expected = if device.runs_on_host() { (2, 2) } else { (3, 1) };
        assert_eq!(counts(other.report()), expected, "{:?}", ops(&other));
        let expected = values(&step()?)?;
        assert_eq!(values(&graph.replay()?)?, expected);
        assert_eq!((values(&other.replay()?)?, values(&state)?), (vec![30.0], vec![2.0, 5.0, 10.0, 17.0]));
        Ok(())
    });
}

#[test]
fn what_is_read_at_other_elements_is_not_fused() {
    each_device(&SCHEDULES, |device| {
        let x = tensor(&[1.0, 2.0, 3.0, 4.0], device)?.reshape(&[2, 2])?;
        let square = || {
            let y = x.add_scalar(1.0)?;
            y.mul(&y.t()?)
        };
        let part = || x.add_scalar(1.0)?.narrow(0, 1, 1)?.mul_scalar(2.0);
        let broadcast = || x.narrow(0, 0, 1)?.add_scalar(1.0)?.mul(&x);
        // An element is replaced before another one's function has read it.
        let row = x.narrow(0, 0, 1)?;
        let replaced = || {
            let y = x.add(&row)?;
            x.copy_(&y)
        };
        let step = || Ok([square()?, part()?, broadcast()?]);
        let expected: Vec<_> = step()?.iter().map(values).collect::<Result<_>>()?;
        let graph = Graph::capture(device, step)?;
        assert!(ops(&graph).iter().filter(|op| **op == "add_scalar").count() == 3, "{:?}", ops(&graph));
        let found: Vec<_> = graph.replay()?.iter().map(values).collect::<Result<_>>()?;
        assert_eq!(found, expected);
        let graph = Graph::capture(device, replaced)?;
        assert_eq!(counts(graph.report()), (2, 0));
        graph.replay()?;
        assert_eq!(values(&x)?, [2.0, 4.0, 4.0, 6.0]);
        Ok(())
    });
}

/// Parts of one tensor, whose rows lie between each other's, are written by one command; parts that overlap are not.
#[test]
fn parts_beside_each_other_are_written_together() {
    each_device(&SCHEDULES, |device| {
        let of = |values: &[f32], columns: usize| tensor(values, device)?.reshape(&[2, columns]);
        let (x, y) = (of(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3)?, of(&[0.5, -1.0, 2.0, 4.0, -3.0, 1.0], 3)?);
        for (middle, commands) in [(3, 1), (2, 2), (5, 2)] {
            let to = || of(&[9.0; 20], 10);
            let step = |to: &Tensor| {
                let sum = x.add(&y)?;
                let part = |start: usize| to.narrow(1, start, 3);
                part(0)?.copy_(&sum)?;
                part(7)?.copy_(&sum.mul(&x)?)?;
                part(middle)?.copy_(&sum.sub(&part(0)?)?.add(&y)?)
            };
            let (eager, replayed) = (to()?, to()?);
            step(&eager)?;
            let graph = Graph::capture(device, || step(&replayed))?;
            assert_eq!(graph.report().commands, commands, "{middle}: {:?}", ops(&graph));
            graph.replay()?;
            assert_eq!(values(&replayed)?, values(&eager)?, "{middle}");
        }
        Ok(())
    });
}

#[test]
fn chains_of_many_operands_are_one_command() {
    each_device(&SCHEDULES, |device| {
        let rows = |at: usize| -> Result<Tensor> {
            let x = Tensor::arange(0.0, 2100.0, 1.0, DType::F32, device)?;
            x.add_scalar(at as f64)?.reshape(&[3, 700])?.narrow(1, at, 600)
        };
        for (operands, commands) in [(7, 1), (8, 1), (9, 1), (31, 1), (32, 2)] {
            let all = (0..operands).map(rows).collect::<Result<Vec<_>>>()?;
            let step = || all[1..].iter().try_fold(all[0].clone(), |sum, next| sum.sub(next));
            let graph = Graph::capture(device, step)?;
            assert_eq!(graph.report().commands, commands, "{operands} of {:?}", ops(&graph));
            assert_eq!(values(&graph.replay()?)?, values(&step()?)?);
        }
        Ok(())
    });
}

/// Of each step the product with the weights and one command for the rest.
#[test]
fn a_step_of_a_recurrent_layer_is_two_commands() -> Result<()> {
    let device = Device::cpu();
    let lstm = Lstm::new(3, 4, &device)?;
    let x = Var::leaf(Tensor::randn(&[8, 2, 3], DType::F32, RandomKey { seed: 1, op: 0 }, &device)?);
    let fused = |ops: &[&str]| ops.iter().filter(|op| **op == "fused").count();
    let forward = Graph::capture(&device, || no_grad(|| lstm.forward(&x)))?;
    assert_eq!(fused(&ops(&forward)), 8, "{:?}", ops(&forward));
    let backward = Graph::capture(&device, || {
        let gradients = lstm.forward(&x)?.square()?.sum_all()?.backward()?;
        Ok(gradients.iter().map(|gradient| gradient.value().clone()).collect::<Vec<_>>())
    })?;
    assert_eq!(fused(&ops(&backward)), 17, "{:?}", ops(&backward));
    Ok(())
}

#[test]
fn what_others_use_stays_in_memory() {
    each_device(&SCHEDULES, |device| {
        let (x, state) = (tensor(&[1.0, 2.0, 3.0, 4.0], device)?, tensor(&[0.0; 4], device)?);
        let graph = Graph::capture(device, || {
            let first = x.add_scalar(1.0)?;
            let second = first.mul_scalar(2.0)?;
            state.add_(&first)?;
            Ok((first.sum(&[], false)?, second.square()?, second))
        })?;
        // The functions, with what they write: what the sum takes and, on a CPU, the sum; the state, and two results.
        let writes =
            |command: &streamgrad::PlannedCommand| command.uses.iter().filter(|(_, write)| *write).count();
        let fused: Vec<_> =
            graph.commands().iter().filter(|command| command.op == "fused").map(writes).collect();
        let expected = if device.runs_on_host() { (vec![5], 1) } else { (vec![4], 2) };
        assert_eq!((fused, graph.report().commands), expected, "{:?}", ops(&graph));
        for at in 1..3_u8 {
            let (sum, square, second) = graph.replay()?;
            assert_eq!(values(&sum)?, [14.0]);
            assert_eq!(
                (values(&second)?, values(&square)?),
                (vec![4.0, 6.0, 8.0, 10.0], vec![16.0, 36.0, 64.0, 100.0])
            );
            assert_eq!(values(&state)?, [2.0, 3.0, 4.0, 5.0].map(|value| value * f32::from(at)));
        }
        Ok(())
    });
}

#[test]
fn streams_that_are_kept_in_order_are_not_mixed() {
    each_device(&SCHEDULES, |device| {
        let x = tensor(&[1.0, 2.0], device)?;
        let side = device.new_stream()?;
        let step = || {
            let y = side.scope(|| x.add_scalar(1.0)?.mul_scalar(3.0))?;
            y.mul_scalar(2.0)?.add_scalar(1.0)
        };
        for (order, commands) in [(Order::Data, 1), (Order::Streams, 2)] {
            let graph = Graph::capture_with(device, GraphOptions { order, ..GraphOptions::default() }, step)?;
            assert_eq!(graph.report().commands, commands, "{order:?}");
            assert_eq!(values(&graph.replay()?)?, [13.0, 19.0]);
        }
        // Neighbours only.
        let graph = Graph::capture_with(
            device,
            GraphOptions { order: Order::Streams, ..GraphOptions::default() },
            || {
                let y = x.add_scalar(1.0)?;
                let sum = x.sum(&[], false)?;
                Ok((y.mul_scalar(2.0)?, sum))
            },
        )?;
        assert!(ops(&graph).contains(&"add_scalar"), "{:?}", ops(&graph));
        Ok(())
    });
}

#[test]
fn functions_that_could_run_at_once_for_long_are_not_joined() -> Result<()> {
    let device =
        Device::cpu_with(streamgrad::CpuConfig { threads: Some(2), ..streamgrad::CpuConfig::default() });
    for (elements, commands) in [(1 << 18, 5), (1 << 6, 1)] {
        let x = Tensor::ones(&[elements], DType::F32, &device)?;
        let step = || {
            let y = x.add_scalar(1.0)?;
            Ok((y.exp()?.mul_scalar(2.0)?, y.sin()?.mul_scalar(2.0)?))
        };
        let graph = Graph::capture(&device, step)?;
        assert!(graph.report().commands <= commands, "{:?}", ops(&graph));
        assert_eq!(graph.report().commands == 1, elements < 1 << 10, "{:?}", ops(&graph));
        let ((a, b), (c, d)) = (graph.replay()?, step()?);
        assert_eq!((values(&a)?, values(&b)?), (values(&c)?, values(&d)?));
    }
    Ok(())
}

#[test]
fn what_nobody_uses_does_not_run_unless_it_may_fail() {
    each_device(&SCHEDULES, |device| {
        let (x, at) = (tensor(&[1.0, 2.0], device)?, Tensor::from_slice(&[1i64, 7], &[2], device)?);
        let graph = Graph::capture(device, || {
            let y = x.add_scalar(1.0)?;
            drop(y.matmul(&y)?.add_scalar(1.0)?);
            let scratch = Tensor::empty(&[2], DType::F32, device)?;
            scratch.copy_(&y)?;
            scratch.add_(&x)?;
            y.mul_scalar(2.0)
        })?;
        assert_eq!((graph.report().commands, graph.report().unused), (1, 4), "{:?}", ops(&graph));
        assert_eq!(values(&graph.replay()?)?, [4.0, 6.0]);
        let graph = Graph::capture(device, || x.index_select(0, &at).map(drop))?;
        assert_eq!((graph.report().commands, graph.report().unused), (1, 0));
        let failed = graph.replay().and_then(|()| device.synchronize());
        assert!(failed.is_err());
        Ok(())
    });
}

/// Sums along rows, columns and all axes of a result, in memory or only there.
#[test]
fn a_reduction_that_follows_is_a_part_of_the_command() {
    each_device(&SCHEDULES, |device| {
        for (rows, columns) in [(3, 5), (64, 33), (5, 1500), (1500, 5), (1, 7), (40_000, 2)] {
            let x = Tensor::randn(&[rows, columns], DType::F32, RandomKey { seed: 1, op: 1 }, device)?;
            let g = Tensor::randn(&[rows, columns], DType::F32, RandomKey { seed: 1, op: 2 }, device)?;
            let y = || x.mul(&g)?.add_scalar(0.5);
            type Step<'a> = &'a dyn Fn() -> Result<[Tensor; 2]>;
            let steps: [(&str, usize, Step<'_>); 5] = [
                ("rows", 1, &|| Ok([y()?.sum(&[1], false)?, x.clone()])),
                ("columns", 1, &|| Ok([y()?.mean(&[0], true)?, x.clone()])),
                ("all", 1, &|| Ok([y()?.square()?.sum(&[], false)?, x.clone()])),
                // Others take what the reduction takes, and would have to wait on CUDA; and a half, which a CPU would have to
                // widen.
                ("kept", if device.runs_on_host() { 1 } else { 2 }, &|| {
                    let y = y()?;
                    Ok([y.max(&[0], false)?, y.mul_scalar(2.0)?])
                }),
                ("halves", if device.runs_on_host() { 2 } else { 1 }, &|| {
                    Ok([y()?.to_dtype(DType::BF16)?.sum(&[0], false)?, x.clone()])
                }),
            ];
            for (name, commands, step) in steps {
                let graph = Graph::capture(device, step)?;
                let (ops, copies) = (ops(&graph), graph.commands().iter().filter(|c| c.op == "copy").count());
                assert!(ops.len() - copies <= commands, "{name} of {rows} x {columns}: {ops:?}");
                for (found, expected) in graph.replay()?.iter().zip(step()?) {
                    assert!(bytes(found)? == bytes(&expected)?, "{name} of {rows} x {columns}");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn reductions_of_something_else_stay_apart() {
    each_device(&SCHEDULES, |device| {
        let x = Tensor::arange(0.0, 12.0, 1.0, DType::F32, device)?.reshape(&[3, 4])?;
        let row = x.narrow(0, 0, 1)?.copy()?;
        let steps: [&dyn Fn() -> Result<Tensor>; 5] = [
            // A part of a result; a result that is taken by columns is whole.
            &|| x.add_scalar(1.0)?.narrow(0, 1, 2)?.sum(&[0], false),
            &|| x.add_scalar(1.0)?.t()?.sum(&[0], false),
            // What the reduction gives goes back into the functions.
            &|| {
                let y = x.add(&row)?;
                y.sub(&y.mean(&[1], true)?)
            },
            // Changed behind the reduction.
            &|| {
                let y = x.mul_scalar(2.0)?;
                let sum = y.sum(&[1], true)?;
                y.add_scalar_(1.0)?;
                y.mul(&sum)
            },
            // Two of them.
            &|| {
                let y = x.mul_scalar(3.0)?;
                y.sum(&[0], true)?.add(&y.sum(&[1], true)?)
            },
        ];
        for (at, step) in steps.iter().enumerate() {
            let expected = bytes(&step()?)?;
            for order in [Order::Data, Order::Streams] {
                let graph =
                    Graph::capture_with(device, GraphOptions { order, ..GraphOptions::default() }, step)?;
                assert_eq!(streamgrad::device::unordered(&graph.commands()), []);
                assert!(bytes(&graph.replay()?)? == expected, "{at}: {:?}", ops(&graph));
            }
        }
        Ok(())
    });
}

/// Random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

const TYPES: [DType; 7] =
    [DType::F32, DType::F32, DType::F64, DType::BF16, DType::F16, DType::I64, DType::U8];

/// What a program finds: tensors of all types, in shapes that broadcast.
fn states(random: &mut Random, device: &Device) -> Result<Vec<Tensor>> {
    let (rows, columns) = *random.pick(&[(3, 5), (4, 8), (1, 16), (37, 61), (70, 64)]);
    let shapes = [vec![rows, columns], vec![rows, columns], vec![columns], vec![rows, 1], vec![1]];
    let state = |at: usize| {
        let shape = &shapes[at % shapes.len()];
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|i| ((i * 37 + at * 11) % 23) as f32 * 0.375 - 3.0).collect();
        Tensor::from_slice(&values, shape, device)?.to_dtype(TYPES[random.below(TYPES.len())])
    };
    (0..8).map(state).collect()
}

/// Runs a program that `random` decides about. What is refused is left out, which is the same each time.
fn program(random: &mut Random, states: &[Tensor], side: &Stream) -> Result<Vec<Tensor>> {
    let mut pool: Vec<Tensor> = states.to_vec();
    for _ in 0..4 + random.below(24) {
        let action = random.below(28);
        // What was made last is used most.
        let near = pool.len() - 1 - random.below(pool.len().min(3));
        let (a, b) = (pool[near].clone(), pool[random.below(pool.len())].clone());
        let (unary, binary) = (*random.pick(UnaryOp::ALL), *random.pick(BinaryOp::ALL));
        let (compare, dtype, away) =
            (*random.pick(CompareOp::ALL), *random.pick(&TYPES), random.below(5) == 0);
        let act = || -> Result<Option<Tensor>> {
            Ok(Some(match action {
                0..6 => a.unary(unary)?,
                6..12 => a.binary(binary, &b)?,
                12 => Tensor::where_cond(&a.compare(compare, &b)?, &b, &b.square()?)?,
                13 => {
                    // An argument twice, with another one between.
                    let (less, same) = (a.compare(CompareOp::Lt, &b)?, a.compare(compare, &b)?);
                    Tensor::where_cond(&Tensor::where_cond(&less, &same, &less)?, &a, &b)?
                }
                14 => a.compare(compare, &b)?.logical_not()?,
                15 | 16 => a.to_dtype(dtype)?,
                17 => a.mul_scalar_(2.0).map(|()| a)?,
                18 => a.add_(&b.to_dtype(a.dtype())?).map(|()| a)?,
                19 => a.copy_(&b).map(|()| a)?,
                20 => a.transpose(0, -1)?,
                21 => a.narrow(-1, a.shape().last().map_or(0, |&n| n / 2), 1)?,
                22 => a.sum(&[0], true)?,
                23 => a.mean(&[-1], false)?,
                24 => a.sum(&[], false)?,
                25 => a.max(&[0, -1], true)?,
                _ => return Ok(None),
            }))
        };
        match if away { side.scope(act) } else { act() } {
            Ok(Some(made)) => pool.push(made),
            Ok(None) if pool.len() > states.len() => drop(pool.remove(near.max(states.len()))),
            Ok(None) | Err(_) => {}
        }
    }
    let made = &pool[states.len()..];
    Ok(made.iter().rev().step_by(2).cloned().collect())
}

fn bytes(tensor: &Tensor) -> Result<Vec<u64>> {
    fn all<T: Element>(tensor: &Tensor, bits: impl Fn(T) -> u64) -> Result<Vec<u64>> {
        Ok(tensor.to_vec::<T>()?.into_iter().map(bits).collect())
    }
    match tensor.dtype() {
        DType::F32 => all(tensor, |x: f32| x.to_bits().into()),
        DType::F64 => all(tensor, f64::to_bits),
        DType::BF16 => all(tensor, |x: bf16| x.to_bits().into()),
        DType::F16 => all(tensor, |x: f16| x.to_bits().into()),
        DType::I64 => all(tensor, |x: i64| x as u64),
        DType::U8 => all(tensor, |x: u8| x.into()),
        _ => all(tensor, |x: bool| x.into()),
    }
}

/// What three steps give, and what they leave, and how many commands were fused.
fn steps(device: &Device, seed: u64, options: Option<GraphOptions>) -> Result<(Vec<Vec<u64>>, usize)> {
    let (states, side) = (states(&mut Random(seed), device)?, device.new_stream()?);
    let step = || program(&mut Random(seed ^ 0x5eed), &states, &side);
    let (mut seen, mut fused) = (Vec::new(), 0);
    match options {
        None => (0..3).try_for_each(|_| step().map(|results| seen.extend(results)))?,
        Some(options) => {
            let graph = Graph::capture_with(device, options, step)?;
            assert_eq!(streamgrad::device::unordered(&graph.commands()), [], "{seed}, {options:?}");
            fused = graph.report().fused;
            for replay in 0..3 {
                graph.executable().shuffle((replay > 0).then_some(seed + replay));
                seen.extend(graph.replay()?);
            }
        }
    }
    Ok((seen.iter().chain(&states).map(bytes).collect::<Result<_>>()?, fused))
}

fn fused_programs_give_the_same_bits(kind: Kind, seeds: std::ops::Range<u64>) {
    let mut fused = 0;
    for seed in seeds.clone() {
        let run = |options| {
            steps(&kind.device(), seed, options).unwrap_or_else(|error| panic!("{kind:?}, {seed}: {error}"))
        };
        let (expected, _) = run(None);
        for order in [Order::Data, Order::Streams] {
            for (max_bytes, fuse) in [(None, false), (None, true), (Some(0), true)] {
                let options = GraphOptions { order, max_bytes, fuse };
                let (found, count) = run(Some(options));
                for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let differ = found.iter().zip(expected).position(|(a, b)| a != b);
                    let values = differ.map(|k| format!("{k}: {:#x} for {:#x}", found[k], expected[k]));
                    assert!(
                        values.is_none(),
                        "{kind:?}, seed {seed}, {options:?}, tensor {at}, element {values:?}"
                    );
                }
                assert_eq!(found.len(), expected.len());
                fused += count;
            }
        }
    }
    println!("{fused} commands were fused");
    assert!(fused as u64 > 4 * (seeds.end - seeds.start), "{fused}");
}

#[test]
fn fused_programs_give_the_same_bits_on_the_cpu() {
    fused_programs_give_the_same_bits(Kind::Cpu(Schedule::Inline), 0..150);
    fused_programs_give_the_same_bits(Kind::Cpu(Schedule::Threads), 150..200);
}

#[test]
fn fused_programs_give_the_same_bits_on_cuda() {
    if Kind::all(&[]).is_empty() {
        return;
    }
    fused_programs_give_the_same_bits(Kind::Cuda, 0..10);
}
