//! Data parallel training: parameters equal those of one process with the same global batch, bit for bit.

use streamgrad::comm::DataParallelOptions;
use streamgrad::data::Position;
use streamgrad::optim::Adam;
use streamgrad::prelude::*;
use streamgrad::{Error, ErrorKind, Graph, RandomKey, Result};
use workloads::{Gpt, GptOptions, lenet};

use crate::{on_ranks, on_threads};

const STEPS: u64 = 3;

/// A model, and the loss of a rank's part of a step's batch.
pub(crate) trait Task: Sync {
    type Model: Module;
    fn model(&self, seed: u64, device: &Device) -> Result<Self::Model>;
    fn loss(&self, model: &Self::Model, step: u64, part: usize) -> Result<Var>;
}

pub(crate) struct Language;

impl Task for Language {
    type Model = Gpt;

    fn model(&self, seed: u64, device: &Device) -> Result<Gpt> {
        let options = GptOptions { vocabulary: 17, context: 8, width: 16, heads: 2, blocks: 2, dropout: 0.0 };
        Gpt::new(options, seed, device)
    }

    fn loss(&self, model: &Gpt, step: u64, part: usize) -> Result<Var> {
        let device = model.parameters()[0].device().clone();
        let tokens = |shift: u64| {
            let at = |place: u64| ((place * 7 + step * 5 + part as u64 * 3 + shift) % 17) as i64;
            Tensor::from_slice(&(0..24).map(at).collect::<Vec<_>>(), &[3, 8], &device)
        };
        model.loss(&tokens(0)?, &tokens(1)?)
    }
}

pub(crate) struct Images;

impl Task for Images {
    type Model = Sequential;

    fn model(&self, seed: u64, device: &Device) -> Result<Sequential> {
        lenet(seed, device)
    }

    fn loss(&self, model: &Sequential, step: u64, part: usize) -> Result<Var> {
        let device = model.parameters()[0].device().clone();
        let key = RandomKey { seed: step, op: part as u64 };
        let images = Tensor::uniform(&[4, 784], 0.0, 1.0, DType::F32, key, &device)?;
        let labels = [0, 1, 2, 3].map(|at| (at + step as i64 + part as i64) % 10);
        cross_entropy(&model.forward(&Var::constant(images))?, &Tensor::from_slice(&labels, &[4], &device)?)
    }
}

fn parameters(model: &impl Module) -> Result<Vec<Vec<u32>>> {
    model.parameters().iter().map(|parameter| crate::common::bits(parameter.value())).collect()
}

/// One process: the parts' gradients in rank order, divided by the number of parts.
pub(crate) fn serial<T: Task>(task: &T, parts: usize, device: &Device) -> Result<Vec<Vec<u32>>> {
    let model = task.model(1, device)?;
    let mut adam = Adam::new(model.parameters(), 0.01)?;
    for step in 0..STEPS {
        let mut gradients = streamgrad::Gradients::default();
        for part in 0..parts {
            gradients.merge(task.loss(&model, step, part)?.backward()?)?;
        }
        gradients.map(|gradient| gradient.div_scalar(parts as f64))?;
        adam.step(&gradients)?;
    }
    parameters(&model)
}

/// A rank, which begins with other parameters than rank 0.
pub(crate) fn parallel<T: Task>(
    task: &T,
    comm: &Communicator,
    bucket_bytes: usize,
    captured: bool,
) -> Result<Vec<Vec<u32>>> {
    let options = DataParallelOptions { bucket_bytes, ..DataParallelOptions::default() };
    let model = task.model(1 + comm.rank() as u64, comm.device())?;
    let model = DataParallel::with_options(model, comm, options)?;
    let mut adam = Adam::new(model.parameters(), 0.01)?;
    for step in 0..STEPS {
        let mut run = || -> Result<()> {
            let loss = task.loss(model.model(), step, comm.rank())?;
            adam.step(&model.backward(&loss)?)
        };
        if captured {
            Graph::capture(comm.device(), run)?.replay()?;
        } else {
            run()?;
        }
    }
    parameters(&model)
}

fn equal_to_serial<T: Task>(task: &T, ranks: usize, bucket_bytes: usize, captured: bool) {
    let device = Device::cpu_with(Default::default());
    equal_to_serial_on(task, Communicator::threads(ranks).unwrap(), bucket_bytes, captured, &device);
}

/// That training on `ranks` gives what one process gives on `device`.
fn equal_to_serial_on<T: Task>(
    task: &T,
    ranks: Vec<Communicator>,
    bucket_bytes: usize,
    captured: bool,
    device: &Device,
) {
    let (size, expected) = (ranks.len(), serial(task, ranks.len(), device).unwrap());
    for result in on_threads(ranks, |comm| parallel(task, comm, bucket_bytes, captured)) {
        assert!(result.unwrap() == expected, "{size} ranks, buckets of {bucket_bytes} bytes, {captured}");
    }
}

/// Training on ranks that `make` makes equals training on `device`, which is one of theirs.
pub(crate) fn training_equals_one_process(
    make: impl Fn() -> Vec<Communicator>,
    captured: bool,
    device: &Device,
) {
    for bucket_bytes in [25 << 20, 4096] {
        equal_to_serial_on(&Language, make(), bucket_bytes, captured, device);
    }
    equal_to_serial_on(&Images, make(), 65_536, captured, device);
}

#[test]
fn a_gpt_on_ranks_equals_one_process() {
    for (ranks, bucket_bytes) in [(1, 25 << 20), (2, 25 << 20), (3, 4096), (4, 1)] {
        equal_to_serial(&Language, ranks, bucket_bytes, false);
    }
}

#[test]
fn a_cnn_on_ranks_equals_one_process() {
    for (ranks, bucket_bytes) in [(2, 25 << 20), (3, 65_536), (4, 1 << 20)] {
        equal_to_serial(&Images, ranks, bucket_bytes, false);
    }
}

#[test]
fn captured_steps_on_ranks_equal_one_process() {
    equal_to_serial(&Language, 2, 4096, true);
    equal_to_serial(&Images, 4, 65_536, true);
}

/// Two batches a rank, on lanes; gradients are averaged once they are merged.
#[test]
fn lanes_on_ranks_equal_one_process() {
    let expected = {
        let device = Device::cpu_with(Default::default());
        let model = Language.model(1, &device).unwrap();
        let mut adam = Adam::new(model.parameters(), 0.01).unwrap();
        for step in 0..STEPS {
            let mut gradients = streamgrad::Gradients::default();
            for rank in 0..2 {
                let mut merged = Language.loss(&model, step, 2 * rank).unwrap().backward().unwrap();
                merged.merge(Language.loss(&model, step, 2 * rank + 1).unwrap().backward().unwrap()).unwrap();
                gradients.merge(merged).unwrap();
            }
            gradients.map(|gradient| gradient.div_scalar(2.0)).unwrap();
            adam.step(&gradients).unwrap();
        }
        parameters(&model).unwrap()
    };
    for result in on_ranks(2, |comm| {
        let model = DataParallel::new(Language.model(1, comm.device())?, comm)?;
        let lanes = ConcurrentBatches::with_options(comm.device(), 2, Lanes::Always)?;
        let mut adam = Adam::new(model.parameters(), 0.01)?;
        for step in 0..STEPS {
            let parts = [2 * comm.rank(), 2 * comm.rank() + 1];
            let mut merged = lanes.step(parts, |part| Language.loss(model.model(), step, part))?.gradients;
            model.average(&mut merged)?;
            adam.step(&merged)?;
        }
        parameters(&model)
    }) {
        assert!(result.unwrap() == expected);
    }
}

/// Gradients are averaged on a stream of their own while the pass goes on, in the order in which they arrived.
#[test]
fn buckets_are_in_the_order_of_arrival() {
    let results = on_ranks(2, |comm| {
        let model = mlp(&[4, 4, 4], 7, comm.device())?;
        let model = DataParallel::with_options(
            model,
            comm,
            DataParallelOptions { bucket_bytes: 1, ..DataParallelOptions::default() },
        )?;
        let before = model.buckets();
        // The last layer's parameters are of no use to the first's gradient, and used once more, first of all.
        let extra = model.parameters()[2].square()?.sum(&[], false)?;
        let x = Var::constant(Tensor::ones(&[2, 4], DType::F32, comm.device())?);
        model.backward(&model.forward(&x)?.square()?.sum(&[], false)?.add(&extra)?)?;
        Ok((before, model.buckets()))
    });
    for result in results {
        let (before, after) = result.unwrap();
        assert_eq!(before, [[3], [2], [1], [0]]);
        assert_eq!(after, [[3], [0], [1], [2]].map(Vec::from));
    }
}

/// Some ranks leave out a parameter, and all leave out another one.
#[test]
fn parameters_that_ranks_leave_out() {
    let step = |comm: &Communicator, find_unused: bool| -> Result<Vec<Option<Vec<f32>>>> {
        let linear = |op| Linear::keyed(2, 1, RandomKey { seed: 1, op }, comm.device());
        let layers = vec![linear(1)?, linear(2)?, linear(3)?];
        let model = DataParallel::with_options(
            Layers(layers),
            comm,
            DataParallelOptions { find_unused, ..DataParallelOptions::default() },
        )?;
        let x = Var::constant(Tensor::ones(&[1, 2], DType::F32, comm.device())?);
        let mut y = model.model().0[0].forward(&x)?;
        if comm.rank() == 1 {
            y = y.add(&model.model().0[1].forward(&x)?)?;
        }
        let gradients = model.backward(&y.sum(&[], false)?)?;
        model.parameters().iter().map(|p| gradients.get(p).map(|g| g.to_vec::<f32>()).transpose()).collect()
    };
    for result in on_ranks(2, |comm| step(comm, true)) {
        let found = result.unwrap();
        let (whole, half) = (Some(vec![1.0; 2]), Some(vec![0.5; 2]));
        assert_eq!([&found[0], &found[2], &found[4]], [&whole, &half, &None]);
    }
    let results = on_ranks(1, |comm| step(comm, false));
    let Err(ErrorKind::InvalidArgument { value, .. }) = results[0].as_ref().map_err(Error::kind) else {
        panic!("{results:?}")
    };
    assert_eq!(&**value, "1.weight");
}

/// A parameter that is a constant is the same on all ranks, and has no gradient to wait for.
#[test]
fn parameters_that_are_not_trained() {
    for find_unused in [false, true] {
        for result in on_ranks(2, |comm| {
            let value =
                |factor: f64| Tensor::full(&[2], factor + comm.rank() as f64, DType::F32, comm.device());
            let model = vec![Var::leaf(value(2.0)?), Var::leaf(value(3.0)?).detach(), Var::leaf(value(4.0)?)];
            let options =
                DataParallelOptions { bucket_bytes: 1, find_unused, ..DataParallelOptions::default() };
            let model = DataParallel::with_options(model, comm, options)?;
            let [a, fixed, b] = &model.parameters()[..] else { panic!("three parameters") };
            let mut found = Vec::new();
            for _ in 0..2 {
                let loss = a.mul(fixed)?.mul(b)?.mul_scalar(comm.rank() as f64)?.sum(&[], false)?;
                let gradients = model.backward(&loss)?;
                assert!(gradients.get(fixed).is_none());
                found.push([a, b].map(|parameter| gradients.get(parameter).unwrap()));
            }
            found.iter().flatten().map(Tensor::to_vec::<f32>).collect::<Result<Vec<_>>>()
        }) {
            assert_eq!(result.unwrap(), [[6.0; 2], [3.0; 2]].repeat(2));
        }
    }
}

/// A parameter that is frozen after the model was spread over the ranks has no gradient to wait for, until it is unfrozen.
#[test]
fn parameters_that_are_frozen_for_a_while() {
    for bucket_bytes in [1, 25 << 20] {
        for result in on_ranks(2, |comm| {
            let options = DataParallelOptions { bucket_bytes, ..DataParallelOptions::default() };
            let layer = Linear::keyed(2, 1, RandomKey { seed: 1, op: 1 }, comm.device())?;
            let model = DataParallel::with_options(layer, comm, options)?;
            let (weight, x) = (&model.parameters()[0], Tensor::ones(&[1, 2], DType::F32, comm.device())?);
            let mut found = Vec::new();
            for frozen in [true, false, true] {
                if frozen {
                    weight.freeze()
                } else {
                    weight.unfreeze()
                }
                let y = model.model().forward(&x.mul_scalar(comm.rank() as f64)?.into())?;
                let gradients = model.backward(&y.sum(&[], false)?)?;
                let of =
                    |at: usize| gradients.get(&model.parameters()[at]).map(|g| g.to_vec::<f32>()).transpose();
                found.push([of(0)?, of(1)?]);
            }
            Ok(found)
        }) {
            let (weight, bias) = (Some(vec![0.5; 2]), Some(vec![1.0]));
            assert_eq!(result.unwrap(), [[None, bias.clone()], [weight, bias.clone()], [None, bias]]);
        }
    }
}

/// Layers by number.
struct Layers(Vec<Linear>);

impl Module for Layers {
    fn parts<'a>(&'a self, parts: &mut streamgrad::Parts<'a>) {
        for (number, layer) in self.0.iter().enumerate() {
            parts.child(number.to_string(), layer);
        }
    }
}

/// Ranks that read parts of the digits.
#[test]
fn training_on_digits_learns_alike_on_all_ranks() {
    let results = on_ranks(2, |comm| {
        let model = DataParallel::new(mlp(&[64, 32, 10], 3, comm.device())?, comm)?;
        let mut sgd = Sgd::new(model.parameters(), 0.5)?;
        let options = LoaderOptions { batch: 16, device: comm.device().clone(), ..LoaderOptions::default() };
        let loader = DataLoader::new(Digits::load()?, options)?;
        let (mut first, mut last) = (0.0, 0.0);
        for (step, batches) in loader.steps(comm.size(), Position::default())?.take(60).enumerate() {
            let batch = batches?.swap_remove(comm.rank());
            let loss = cross_entropy(&model.forward(&batch.input())?, &batch.labels)?;
            sgd.step(&model.backward(&loss)?)?;
            last = loss.value().all_reduce(comm, Reduce::Mean)?.item::<f32>()?;
            first = if step == 0 { last } else { first };
        }
        Ok((first, last, parameters(&model)?))
    });
    let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    assert!(results[0] == results[1]);
    assert!(results[0].1 < 0.5 * results[0].0);
}

/// A model with running statistics, which each rank's batches would move elsewhere.
fn normalised(comm: &Communicator, options: DataParallelOptions) -> Result<DataParallel<Sequential>> {
    streamgrad::seed(4);
    let model = Sequential::new().push(Conv2d::new(1, 3, [3, 3], comm.device())?);
    let model = model.push(BatchNorm2d::new(3, comm.device())?);
    DataParallel::with_options(model, comm, options)
}

fn buffers(model: &impl Module) -> Result<Vec<Vec<f64>>> {
    model.named_buffers().iter().map(|(_, buffer)| buffer.to_dtype(DType::F64)?.to_vec()).collect()
}

/// Three steps on a rank's own images: what buffers are after each.
fn statistics(comm: &Communicator, how: &str, own: bool) -> Result<Vec<Vec<Vec<f64>>>> {
    let model =
        normalised(comm, DataParallelOptions { broadcast_buffers: !own, ..DataParallelOptions::default() })?;
    let loss = |step: u64, part: u64| {
        let key = RandomKey { seed: step, op: 10 * part + 1 + comm.rank() as u64 };
        let x = Tensor::normal(comm.rank() as f64, 1.0, &[2, 1, 6, 6], DType::F32, key, comm.device())?;
        model.forward(&Var::constant(x))?.square()?.mean(&[], false)
    };
    let mut sgd = Sgd::new(model.parameters(), 0.1)?;
    let lanes = ConcurrentBatches::with_options(comm.device(), 2, Lanes::Always)?;
    let mut all = Vec::new();
    for step in 0..3 {
        let mut run = || match how {
            "lanes" => {
                let mut gradients = lanes.step([0, 1], |part| loss(step, part))?.gradients;
                model.average(&mut gradients)?;
                sgd.step(&gradients)
            }
            _ => sgd.step(&model.backward(&loss(step, 0)?)?),
        };
        if how == "captured" {
            Graph::capture(comm.device(), run)?.replay()?;
        } else {
            run()?;
        }
        all.push(buffers(&model)?);
    }
    Ok(all)
}

/// As in PyTorch, the statistics are rank 0's, of which the gradients do not depend in training.
#[test]
fn running_statistics_are_those_of_rank_0_on_all_ranks() {
    for how in ["eager", "captured", "lanes"] {
        let all = |own| -> Vec<_> {
            on_ranks(3, |comm| statistics(comm, how, own)).into_iter().map(Result::unwrap).collect()
        };
        let (same, own) = (all(false), all(true));
        assert!(same.iter().all(|rank| *rank == same[0]), "{how}");
        assert_eq!(same[0], own[0], "{how}");
        assert!(own[1] != own[0] && own[2] != own[1], "{how}: nothing to be made the same");
    }
}

/// What a rank draws without a seed.
fn drawn(comm: &Communicator) -> Result<Vec<f32>> {
    Tensor::rand(&[8], DType::F32, None, comm.device())?.to_vec()
}

/// Ranks draw numbers of their own, the same in every run, from `DataParallel` or a first collective on.
#[test]
fn ranks_draw_random_numbers_of_their_own() {
    let parallel = || {
        on_ranks(3, |comm| {
            if comm.rank() == 1 {
                // Others may have drawn more or less before.
                drawn(comm)?;
            }
            let model = DataParallel::new(mlp(&[2, 2], 7, comm.device())?, comm)?;
            let first = drawn(comm)?;
            // Of one rank, and of another rank's number there.
            let half = model.communicator().split(Some(comm.rank() % 2), 5 - comm.rank())?.unwrap();
            Tensor::ones(&[1], DType::F32, comm.device())?.all_reduce(&half, Reduce::Sum)?;
            Ok([first, drawn(comm)?].concat())
        })
    };
    let split = || {
        on_ranks(3, |comm| {
            let half = comm.split(Some(comm.rank() % 2), 5 - comm.rank())?.unwrap();
            Tensor::ones(&[1], DType::F32, comm.device())?.all_reduce(&half, Reduce::Sum)?;
            Ok([drawn(comm)?, drawn(comm)?].concat())
        })
    };
    let [first, again, split] = [parallel(), parallel(), split()]
        .map(|ranks| ranks.into_iter().map(Result::unwrap).collect::<Vec<Vec<f32>>>());
    assert_eq!(first, again);
    assert_eq!(first, split);
    assert!(first[0] != first[1] && first[1] != first[2] && first[0] != first[2]);
    // Unless they are given a seed.
    let seeded = on_ranks(2, |comm| {
        streamgrad::seed(5);
        DataParallel::new(mlp(&[2, 2], 7, comm.device())?, comm)?;
        drawn(comm)
    });
    let seeded: Vec<_> = seeded.into_iter().map(Result::unwrap).collect();
    assert_eq!(seeded[0], seeded[1]);
}
