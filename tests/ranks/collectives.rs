//! Collectives of values: gradients over ranks, streams, captured steps.

use std::sync::Mutex;
use std::time::Duration;

use streamgrad::autograd::{BackwardOptions, GradOptions};
use streamgrad::comm::CommOptions;
use streamgrad::compare::{WriteTrace, first_divergence};
use streamgrad::prelude::*;
use streamgrad::{Graph, Policy, RandomKey, Result, Schedule};

use crate::{on_ranks, on_threads};

/// A program of one rank, from its input to a value of any shape.
pub(crate) type Function = fn(&Communicator, &Var) -> Result<Var>;

/// Every collective with a gradient, on an input of `[4 size, 2]`, and none that is linear alone.
pub(crate) const FUNCTIONS: &[(&str, Function)] = &[
    ("all_reduce", |comm, x| x.square()?.all_reduce(comm, Reduce::Sum)?.square()),
    ("all_reduce mean", |comm, x| x.exp()?.all_reduce(comm, Reduce::Mean)?.square()),
    ("all_reduce max", |comm, x| x.square()?.all_reduce(comm, Reduce::Max)?.mul(x)),
    ("all_reduce min", |comm, x| x.exp()?.all_reduce(comm, Reduce::Min)?.mul(x)),
    ("all_gather", |comm, x| x.square()?.all_gather(comm)?.square()),
    ("all_gather of a number", |comm, x| x.square()?.sum(&[], false)?.all_gather(comm)?.square()),
    ("reduce_scatter", |comm, x| x.square()?.reduce_scatter(comm, Reduce::Sum)?.square()),
    ("reduce_scatter mean", |comm, x| x.exp()?.reduce_scatter(comm, Reduce::Mean)?.square()),
    ("broadcast", |comm, x| x.square()?.broadcast(comm, comm.size() - 1)?.mul(x)),
    ("reduce", |comm, x| x.square()?.reduce(comm, 0)?.mul(x)),
    ("all_to_all", |comm, x| x.square()?.all_to_all(comm)?.mul(x)),
];

pub(crate) fn input(comm: &Communicator, rows: usize) -> Result<Var> {
    let key = RandomKey { seed: 5, op: comm.rank() as u64 };
    Ok(Var::leaf(Tensor::uniform(&[rows, 2], -1.0, 1.0, DType::F64, key, comm.device())?))
}

/// A number of this rank, with a weight of its own for each element of `y`.
pub(crate) fn loss(comm: &Communicator, y: &Var) -> Result<Var> {
    let key = RandomKey { seed: 6, op: comm.rank() as u64 };
    let weights = Tensor::uniform(y.shape(), 0.5, 1.5, DType::F64, key, comm.device())?;
    y.mul(&Var::constant(weights))?.sum(&[], false)
}

/// Compares the gradient of the sum of all ranks' `f` with central differences: of each element of each rank's input in turn,
/// while the other ranks' inputs stay.
pub(crate) fn check(comm: &Communicator, name: &str, x: &Var, f: &dyn Fn(&Var) -> Result<Var>) -> Result<()> {
    const STEP: f64 = 1e-5;
    let gradient = match f(x)?.backward()?.get(x) {
        Some(gradient) => gradient.to_vec::<f64>()?,
        None => panic!("{name}: rank {} has no gradient", comm.rank()),
    };
    let values = x.value().to_vec::<f64>()?;
    let total = |rank: usize, element: usize, step: f64| -> Result<f64> {
        let mut values = values.clone();
        if rank == comm.rank() {
            values[element] += step;
        }
        let x = Var::leaf(Tensor::from_slice(&values, x.shape(), comm.device())?);
        f(&x)?.value().all_reduce(comm, Reduce::Sum)?.item::<f64>()
    };
    for rank in 0..comm.size() {
        for (element, &analytic) in gradient.iter().enumerate() {
            let numeric = (total(rank, element, STEP)? - total(rank, element, -STEP)?) / (2.0 * STEP);
            let close = (numeric - analytic).abs() <= 1e-6 + 1e-5 * analytic.abs();
            assert!(
                rank != comm.rank() || close,
                "{name}, rank {rank}, element {element}: {analytic} {numeric}"
            );
        }
    }
    Ok(())
}

/// That the gradient of every collective agrees with differences.
pub(crate) fn gradients_agree(ranks: Vec<Communicator>) {
    for result in on_threads(ranks, |comm| {
        for (name, f) in FUNCTIONS {
            check(comm, name, &input(comm, comm.size())?, &|x| loss(comm, &f(comm, x)?))?;
        }
        Ok(())
    }) {
        result.unwrap();
    }
}

#[test]
fn gradients_of_collectives_agree_with_differences_on_every_rank() {
    for ranks in [1, 2, 3] {
        gradients_agree(Communicator::threads(ranks).unwrap());
    }
}

#[test]
fn gradients_of_collectives_have_gradients() {
    for result in on_ranks(2, |comm| {
        for (name, f) in FUNCTIONS {
            let slope = |x: &Var| -> Result<Var> {
                let options = GradOptions { create_graph: true, ..GradOptions::default() };
                let gradient =
                    streamgrad::grad(&[loss(comm, &f(comm, x)?)?], std::slice::from_ref(x), options)?;
                loss(comm, &gradient[0].as_ref().unwrap().sin()?)
            };
            check(comm, name, &input(comm, 2)?, &slope)?;
        }
        Ok(())
    }) {
        result.unwrap();
    }
}

#[test]
fn messages_have_gradients() {
    let results = on_ranks(2, |comm| {
        let other = 1 - comm.rank();
        let x = input(comm, 2)?;
        let sent = x.square()?.send(comm, other)?;
        let got = Var::recv(&[2, 2], DType::F64, comm, other)?;
        let weight = 2.0 + comm.rank() as f64;
        let loss = got.mul_scalar(weight)?.sum(&[], false)?.add(&sent)?;
        let gradient = loss.backward()?.get(&x).unwrap().to_vec::<f64>()?;
        Ok((x.value().to_vec::<f64>()?, gradient))
    });
    for (rank, result) in results.into_iter().enumerate() {
        let (x, gradient) = result.unwrap();
        // The weight of the rank that has received it.
        let weight = 3.0 - rank as f64;
        assert_eq!(gradient, x.iter().map(|x| weight * 2.0 * x).collect::<Vec<_>>());
    }
}

#[test]
fn gradients_of_collectives_run_on_the_stream_of_the_forward_pass() {
    for result in on_ranks(2, |comm| {
        let side = comm.device().new_stream()?;
        let x = input(comm, 2)?;
        comm.device().start_audit();
        let y = side.scope(|| x.all_reduce(comm, Reduce::Sum))?;
        loss(comm, &y)?.backward()?;
        let audit = comm.device().stop_audit();
        let streams: Vec<_> = audit
            .commands()
            .filter(|command| command.op == "all_reduce")
            .map(|command| command.moment.stream)
            .collect();
        assert_eq!(streams, [side.id(); 2]);
        assert_eq!(audit.hazards(), []);
        Ok(())
    }) {
        result.unwrap();
    }
}

#[test]
fn products_have_no_gradient() {
    let ranks = Communicator::threads(1).unwrap();
    let x = input(&ranks[0], 1).unwrap();
    assert!(x.all_reduce(&ranks[0], Reduce::Prod).is_err());
    assert!(x.detach().all_reduce(&ranks[0], Reduce::Prod).is_ok());
    assert!(x.reduce_scatter(&ranks[0], Reduce::Max).is_err());
}

#[test]
fn ranks_of_the_same_largest_value_share_its_gradient() {
    let results = on_ranks(3, |comm| {
        let values = [1.0, comm.rank() as f64, if comm.rank() == 0 { 5.0 } else { 7.0 }];
        let x = Var::leaf(Tensor::from_slice(&values, &[3], comm.device())?);
        let weight = 1.0 + comm.rank() as f64;
        let loss = x.all_reduce(comm, Reduce::Max)?.mul_scalar(weight)?.sum(&[], false)?;
        loss.backward()?.get(&x).unwrap().to_vec::<f64>()
    });
    let expected = [[2.0, 0.0, 0.0], [2.0, 0.0, 3.0], [2.0, 6.0, 3.0]];
    for (result, expected) in results.into_iter().zip(expected) {
        assert_eq!(result.unwrap(), expected);
    }
}

/// A step with every collective, on the current stream and on another one.
fn step(comm: &Communicator, pair: &Communicator, x: &Tensor, w: &Var, side: &Stream) -> Result<Tensor> {
    let y = Var::constant(x.clone()).mul(w)?;
    let gathered = y.all_gather(comm)?;
    let part = side.scope(|| y.exp()?.reduce_scatter(pair, Reduce::Mean))?;
    let loss = gathered.square()?.mean(&[], false)?.add(&part.sum(&[], false)?)?;
    let gradients = loss.backward_with(BackwardOptions::default())?;
    let gradient = gradients.get(w).unwrap();
    gradient.all_reduce_(comm, Reduce::Mean)?;
    w.value().sub_(&gradient.mul_scalar(0.1)?)?;
    loss.value().all_reduce(comm, Reduce::Sum)
}

/// What five steps give on each rank, in bits.
fn steps(ranks: Vec<Communicator>, captured: bool) -> Vec<Vec<u64>> {
    let results = on_threads(ranks, |comm| {
        let (pair, side) = (comm.duplicate()?, comm.device().new_stream()?);
        let (x, w) = (input(comm, comm.size())?.value().clone(), input(comm, comm.size())?);
        let graph = match captured {
            true => Some(Graph::capture(comm.device(), || step(comm, &pair, &x, &w, &side))?),
            false => None,
        };
        let mut bits = Vec::new();
        for _ in 0..5 {
            let loss = match &graph {
                Some(graph) => graph.replay()?,
                None => step(comm, &pair, &x, &w, &side)?,
            };
            bits.push(loss.item::<f64>()?.to_bits());
        }
        bits.extend(w.value().to_vec::<f64>()?.iter().map(|value| value.to_bits()));
        Ok(bits)
    });
    results.into_iter().map(Result::unwrap).collect()
}

/// Captured steps on ranks that `make` makes equal eager ones.
pub(crate) fn captured_equals_eager(make: impl Fn() -> Vec<Communicator>) {
    let eager = steps(make(), false);
    assert_eq!(steps(make(), true), eager, "{} ranks", eager.len());
    assert!(eager.iter().all(|bits| bits[..5] == eager[0][..5]));
}

#[test]
fn captured_collectives_equal_eager_ones() {
    for ranks in [2, 4] {
        captured_equals_eager(|| Communicator::threads(ranks).unwrap());
    }
}

/// Ranks whose explored devices would run the collectives of two communicators in another order.
#[test]
fn explored_ranks_agree_on_an_order() {
    let policies = [Policy::OldestFirst, Policy::NewestFirst, Policy::Random { seed: 3 }];
    let device = |policy| {
        Device::cpu_with(streamgrad::CpuConfig { schedule: Schedule::Explore(policy), ..Default::default() })
    };
    let devices = policies.map(device);
    let options = CommOptions { timeout: Duration::from_secs(60), ..CommOptions::default() };
    let ranks = Communicator::threads_with(&devices, options).unwrap();
    for result in on_threads(ranks, |comm| {
        let (second, side) = (comm.duplicate()?, comm.device().new_stream()?);
        let x = Tensor::full(&[3], comm.rank() as f64, DType::F32, comm.device())?;
        for _ in 0..10 {
            let sums = [x.all_reduce(comm, Reduce::Sum)?, side.scope(|| x.all_reduce(&second, Reduce::Sum))?];
            x.send(comm, (comm.rank() + 2) % 3)?;
            let got = Tensor::recv(&[3], DType::F32, comm, (comm.rank() + 1) % 3)?;
            assert_eq!(sums[0].add(&sums[1])?.to_vec::<f32>()?, [6.0; 3]);
            assert_eq!(got.to_vec::<f32>()?, [((comm.rank() + 1) % 3) as f32; 3]);
        }
        Ok(())
    }) {
        result.unwrap();
    }
}

/// On ranks whose devices have several threads, which take a replay's commands from one another.
#[test]
fn replays_on_several_threads_keep_collectives_in_order() {
    let config = || streamgrad::CpuConfig { threads: Some(2), ..Default::default() };
    let devices: Vec<Device> = (0..2).map(|_| Device::cpu_with(config())).collect();
    let options = CommOptions { timeout: Duration::from_secs(20), ..CommOptions::default() };
    let ranks = Communicator::threads_with(&devices, options).unwrap();
    let losses = Mutex::new(Vec::new());
    for result in on_threads(ranks, |comm| {
        let pairs: Vec<Communicator> = (0..6).map(|_| comm.duplicate()).collect::<Result<_>>()?;
        let x = Tensor::full(&[300, 300], 1.0 + comm.rank() as f64, DType::F32, comm.device())?;
        let graph = Graph::capture(comm.device(), || {
            // Independent but for their waiting: each may be the first to run.
            let sums: Vec<Tensor> = pairs
                .iter()
                .enumerate()
                .map(|(at, pair)| {
                    // The ranks' threads come to them in another order.
                    let rows = if at % 2 == comm.rank() { 300 } else { 20 };
                    let y = x.narrow(0, 0, rows)?.matmul(&x)?.narrow(0, 0, 20)?;
                    y.all_reduce(pair, Reduce::Sum)?.sum(&[], false)
                })
                .collect::<Result<_>>()?;
            Tensor::stack(&sums.iter().collect::<Vec<_>>(), 0)?.sum(&[], false)
        })?;
        for _ in 0..50 {
            let loss = graph.replay()?.item::<f32>()?;
            losses.lock().unwrap().push(loss);
        }
        Ok(())
    }) {
        result.unwrap();
    }
    let losses = losses.into_inner().unwrap();
    assert!(losses.len() == 100 && losses.iter().all(|loss| *loss == losses[0]));
}

/// What a collective writes is traced, also in a replay: an input of another rank shows there first.
#[test]
fn what_collectives_write_is_traced() {
    let run = |second: f64| -> Vec<WriteTrace> {
        let traces = on_ranks(2, |comm| {
            let device = comm.device();
            WriteTrace::start(device, true);
            let x = Tensor::full(&[3], [1.0, second][comm.rank()], DType::F64, device)?;
            let step = || x.all_reduce(comm, Reduce::Sum)?.mul_scalar(2.0);
            step()?;
            Graph::capture(device, step)?.replay()?;
            WriteTrace::stop(device)
        });
        traces.into_iter().map(Result::unwrap).collect()
    };
    let expected = run(2.0);
    let (same, other) = (run(2.0), run(4.0));
    assert_eq!(first_divergence(&expected[0], &same[0]), None);
    let found = first_divergence(&expected[0], &other[0]).unwrap();
    assert_eq!((&*found.op, found.command.1), ("all_reduce", 1), "{found}");
    assert_eq!(found.values, Some(["3".into(), "5".into()]));
    assert_eq!(&*first_divergence(&expected[1], &other[1]).unwrap().op, "fill");
}
