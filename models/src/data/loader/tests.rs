use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use autograd::PipelineSchedule;
use tensor::{DType, Tensor};

use super::*;
use crate::{Batch, InMemory, TensorDataset};

fn numbered(rows: usize) -> InMemory {
    InMemory::new((0..rows).map(|i| i as f32).collect(), 1, vec![0; rows], 1).unwrap()
}

fn options(batch: usize) -> LoaderOptions {
    LoaderOptions { batch, seed: 7, ..LoaderOptions::default() }
}

fn of(rows: usize, options: LoaderOptions) -> DataLoader<InMemory> {
    DataLoader::new(numbered(rows), options).unwrap()
}

fn rows(batch: &Batch) -> Vec<usize> {
    batch.inputs.to_vec::<f32>().unwrap().into_iter().map(|v| v as usize).collect()
}

fn epoch_rows(loader: &DataLoader<InMemory>, epoch: u64) -> Vec<Vec<usize>> {
    loader.epoch(epoch).map(|batch| rows(&batch.unwrap())).collect()
}

/// Rows and keys of so many batches from a position on.
fn seen(loader: &DataLoader<InMemory>, from: Position, count: usize) -> Vec<(Vec<usize>, u64)> {
    let batches = loader.iter_from(from).take(count).map(Result::unwrap);
    batches.map(|batch| (rows(&batch), batch.key)).collect()
}

#[test]
fn an_epoch_has_every_row_once_in_an_order_of_its_own() {
    let loader = of(10, options(4));
    let first = epoch_rows(&loader, 0);
    assert_eq!(first.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2]);
    let mut all = first.concat();
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..10));
    assert_eq!(first, epoch_rows(&loader, 0));
    assert_ne!(first, epoch_rows(&loader, 1));
    assert_ne!(first, epoch_rows(&of(10, LoaderOptions { seed: 8, ..options(4) }), 0));
    let dropped = of(10, LoaderOptions { drop_last: true, ..options(4) });
    assert_eq!((dropped.per_epoch(), dropped.epoch(0).size_hint()), (2, (2, Some(2))));
    assert_eq!(epoch_rows(&dropped, 0)[..], first[..2]);
    let plain = of(10, LoaderOptions { shuffle: false, ..options(4) });
    assert_eq!(epoch_rows(&plain, 3).concat(), (0..10).collect::<Vec<_>>());
}

#[test]
fn skipping_gives_the_same_batches() {
    for workers in [0, 2] {
        let loader = of(10, LoaderOptions { workers, ..options(3) });
        let all = epoch_rows(&loader, 2);
        let mut skipped = loader.epoch(2);
        assert_eq!(rows(&skipped.nth(1).unwrap().unwrap()), all[1]);
        assert_eq!(rows(&skipped.nth(1).unwrap().unwrap()), all[3]);
        assert_eq!(skipped.size_hint(), (0, Some(0)));
        assert!(skipped.next().is_none() && loader.epoch(0).nth(usize::MAX).is_none());
    }
}

#[test]
fn fewer_rows_than_a_batch_are_one_smaller_batch() {
    for batch in [11, usize::MAX] {
        let loader = of(10, options(batch));
        assert_eq!(epoch_rows(&loader, 0).iter().map(Vec::len).collect::<Vec<_>>(), [10]);
    }
}

#[test]
fn a_sampler_draws_the_rows_of_each_epoch() {
    let sampler = WeightedSampler::new(vec![0.0, 1.0, 1.0, 2.0], 5, true).unwrap();
    let loader = of(4, LoaderOptions { sampler: Some(sampler.clone()), ..options(2) });
    let first = epoch_rows(&loader, 0);
    assert_eq!(first.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
    assert!(first.concat().iter().all(|row| (1..4).contains(row)));
    assert_eq!(first, epoch_rows(&loader, 0));
    assert!((1..9).any(|epoch| epoch_rows(&loader, epoch) != first));
    let error = DataLoader::new(numbered(3), LoaderOptions { sampler: Some(sampler), ..options(2) });
    assert_eq!(
        error.map(drop).unwrap_err().to_string(),
        "data loader: sampler must be of shape [3], got [4]"
    );
}

#[test]
fn bad_options_are_errors() {
    let fails = |options: LoaderOptions| match DataLoader::new(numbered(10), options)
        .map(drop)
        .map_err(Error::into_kind)
    {
        Err(ErrorKind::InvalidArgument { argument, .. }) => argument,
        other => panic!("{other:?}"),
    };
    assert_eq!(fails(options(0)), "batch");
    assert_eq!(fails(LoaderOptions { drop_last: true, ..options(11) }), "batch");
    assert_eq!(fails(LoaderOptions { workers: 5000, ..options(2) }), "workers");
    assert_eq!(fails(LoaderOptions { workers: 1, prefetch: 0, ..options(2) }), "prefetch");
    assert_eq!(fails(LoaderOptions { rank: 2, ranks: 2, ..options(2) }), "rank");
    assert_eq!(fails(LoaderOptions { ranks: 6, ..options(2) }), "ranks");
    assert!(of(10, options(10)).steps(0, Position::default()).is_err());
}

#[test]
fn steps_of_too_many_lanes_are_refused() {
    let loader = of(10, options(2));
    for lanes in [0, 1025, usize::MAX] {
        let error = loader.steps(lanes, Position::default()).map(drop).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { argument: "lanes", .. }), "{error}");
    }
    assert_eq!(loader.steps(1024, Position::default()).unwrap().next().unwrap().unwrap().len(), 1024);
}

#[test]
fn a_position_behind_the_last_batch_is_an_error() {
    for workers in [0, 2] {
        let loader = of(10, LoaderOptions { workers, ..options(4) });
        let refused = |batch: Option<Result<Batch>>| {
            let error = batch.unwrap().unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::InvalidArgument { argument: "position", .. }),
                "{error}"
            );
        };
        let last = u64::MAX / 3;
        for (epoch, batch) in [(u64::MAX, 0), (0, u64::MAX), (last, 0), (last + 1, 0), (last - 1, 3)] {
            let position = Position { epoch, batch };
            let mut batches = loader.iter_from(position);
            refused(batches.next());
            assert!(batches.next().is_none());
            assert!(loader.steps(2, position).is_err());
        }
        let mut epoch = loader.epoch(u64::MAX);
        assert_eq!(epoch.size_hint(), (1, Some(1)));
        refused(epoch.next());
        assert!(epoch.next().is_none());
        // The last epoch that is whole, and what follows it.
        assert_eq!(loader.epoch(last - 1).map(Result::unwrap).count(), 3);
        let position = Position { epoch: last - 1, batch: 1 };
        assert_eq!(loader.iter_from(position).map(Result::unwrap).count(), 2);
    }
}

#[test]
fn lanes_take_even_and_odd_batches_and_can_start_anywhere() {
    let loader = of(10, options(2));
    let stream = [epoch_rows(&loader, 0), epoch_rows(&loader, 1)].concat();
    let mut steps = loader.steps(2, Position::default()).unwrap();
    let first: Vec<_> = steps.by_ref().take(3).map(Result::unwrap).collect();
    for (number, step) in first.iter().enumerate() {
        assert_eq!(rows(&step[0]), stream[2 * number]);
        assert_eq!(rows(&step[1]), stream[2 * number + 1]);
        assert_ne!(step[0].key, step[1].key);
    }
    assert_eq!((steps.position(), loader.position(6)), (Position { epoch: 1, batch: 1 }, steps.position()));
    let next = steps.next().unwrap().unwrap();
    let late = loader.steps(2, Position { epoch: 1, batch: 1 }).unwrap().next().unwrap().unwrap();
    assert_eq!((rows(&late[0]), late[0].key), (rows(&next[0]), next[0].key));
}

#[test]
fn the_order_is_the_same_for_every_number_of_workers() {
    for schedule in [PipelineSchedule::Stages, PipelineSchedule::Measured] {
        for (batch, prefetch) in [(3, 1), (4, 2), (25, 5)] {
            let of = |workers| of(25, LoaderOptions { workers, prefetch, schedule, ..options(batch) });
            let expected = seen(&of(0), Position::default(), 100);
            for workers in 1..=4 {
                let loader = of(workers);
                assert_eq!(seen(&loader, Position::default(), 100), expected, "{workers} workers");
                // Workers that were kept from the epoch before, and those that start within one.
                let epochs = (0..3).flat_map(|epoch| epoch_rows(&loader, epoch));
                let expected = expected.iter().map(|(rows, _)| rows.clone());
                assert!(epochs.eq(expected.take(3 * loader.per_epoch())), "{workers} workers");
                let from = loader.position(4);
                assert_eq!(seen(&loader, from, 20), seen(&of(0), from, 20), "{workers} workers");
            }
        }
    }
}

#[test]
fn the_callers_random_numbers_do_not_depend_on_the_workers() {
    let drawn = |workers| {
        let loader = of(10, LoaderOptions { workers, ..options(4) });
        with_generator(Generator::new(3), || {
            let drawn = loader.epoch(0).map(|batch| {
                batch?;
                Tensor::rand(&[2], DType::F32, None, &Device::cpu())?.to_vec::<f32>()
            });
            drawn.collect::<Result<Vec<_>>>().unwrap()
        })
    };
    assert_eq!(drawn(0), drawn(2));
}

/// Rows that draw a random number each time; those at some places are bad, each in its way.
struct Odd {
    made: Arc<AtomicUsize>,
}

impl Dataset for Odd {
    type Batch = (usize, Vec<f32>);

    fn len(&self) -> usize {
        40
    }

    fn batch(&self, rows: &[usize], _: u64, device: &Device) -> Result<Self::Batch> {
        self.made.fetch_add(1, Ordering::SeqCst);
        match rows[0] {
            7 => Err(Error::invalid("odd", "row", "not 7", 7)),
            9 => panic!("nine is bad"),
            row => Ok((row, Tensor::rand(&[2], DType::F32, None, device)?.to_vec()?)),
        }
    }
}

#[test]
fn errors_and_panics_name_their_batch_and_the_others_come() {
    let of = |workers| {
        let options =
            LoaderOptions { workers, shuffle: false, schedule: PipelineSchedule::Stages, ..options(1) };
        let loader = DataLoader::new(Odd { made: Arc::default() }, options).unwrap();
        loader.epoch(1).map(|batch| batch.map_err(|error| error.to_string())).collect::<Vec<_>>()
    };
    let expected = of(0);
    for (row, batch) in expected.iter().enumerate() {
        match batch {
            Ok((number, _)) => assert_eq!(*number, row),
            Err(error) => {
                let what = if row == 7 { "not 7" } else { "nine is bad" };
                let place = format!("stage load, epoch 1 of batch {row}: ");
                assert!(
                    (row == 7 || row == 9) && error.starts_with(&place) && error.contains(what),
                    "{error}"
                );
            }
        }
    }
    assert_eq!(expected.iter().filter(|batch| batch.is_err()).count(), 2);
    let numbers = expected.iter().flatten().map(|(_, drawn)| drawn[0].to_bits());
    assert_eq!(numbers.collect::<BTreeSet<_>>().len(), 38, "each batch draws its own");
    for workers in 1..=4 {
        assert_eq!(of(workers), expected, "{workers}");
    }
}

#[test]
fn a_batch_that_fails_leaves_the_steps_behind_it_as_they_are() {
    for workers in [0, 2] {
        let options = LoaderOptions { workers, shuffle: false, ..options(1) };
        let loader = DataLoader::new(Odd { made: Arc::default() }, options).unwrap();
        let mut steps = loader.steps(3, Position::default()).unwrap();
        // Batch 7 is in the middle of the third step, 9 at the start of the fourth.
        let numbers = |step: Result<Vec<(usize, Vec<f32>)>>| {
            step.ok().map(|step| step.into_iter().map(|(number, _)| number).collect::<Vec<_>>())
        };
        let found: Vec<_> = steps.by_ref().take(5).map(numbers).collect();
        let expected = [Some(vec![0, 1, 2]), Some(vec![3, 4, 5]), None, None, Some(vec![12, 13, 14])];
        assert_eq!(found, expected, "{workers}");
        assert_eq!(steps.position(), loader.position(15));
    }
}

/// What is around the one who asks.
struct Modes;

impl Dataset for Modes {
    type Batch = (bool, DType);

    fn len(&self) -> usize {
        4
    }

    fn batch(&self, _: &[usize], _: u64, device: &Device) -> Result<Self::Batch> {
        let x = autograd::Var::constant(Tensor::ones(&[2, 2], DType::F32, device)?);
        Ok((autograd::is_recording(), x.matmul(&x)?.dtype()))
    }
}

#[test]
fn the_modes_of_who_asks_are_not_those_of_the_data_set() {
    for workers in [0, 1] {
        let options = LoaderOptions { workers, schedule: PipelineSchedule::Stages, ..options(1) };
        let loader = DataLoader::new(Modes, options).unwrap();
        let all = |epoch| loader.epoch(epoch).collect::<Result<Vec<_>>>();
        let expected = vec![(false, DType::F32); 4];
        assert_eq!(autograd::autocast(DType::BF16, || all(0)).unwrap(), expected, "{workers}");
        assert_eq!(all(1).unwrap(), expected, "{workers}");
    }
}

#[test]
fn workers_end_with_the_batches_that_they_are_asked_for() {
    let made = Arc::new(AtomicUsize::new(0));
    let options = LoaderOptions {
        workers: 2,
        prefetch: 4,
        shuffle: false,
        schedule: PipelineSchedule::Stages,
        ..options(1)
    };
    let loader = DataLoader::new(Odd { made: Arc::clone(&made) }, options).unwrap();
    let mut batches = loader.epoch(0);
    for taken in 1..5 {
        batches.next().unwrap().unwrap();
        let made = made.load(Ordering::SeqCst);
        assert!((taken..=taken + 4).contains(&made), "{made} for {taken}");
    }
    drop(batches);
    let last = made.load(Ordering::SeqCst);
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(made.load(Ordering::SeqCst), last);
    drop(loader);
    assert_eq!(Arc::strong_count(&made), 1, "nobody has the data set any more");
}

#[test]
fn ranks_have_as_many_batches_each_and_together_those_of_one() {
    for ranks in 1..=5 {
        for drop_last in [false, true] {
            let of = |rank, ranks| of(47, LoaderOptions { rank, ranks, drop_last, ..options(4) });
            let whole = of(0, 1);
            for epoch in 0..3 {
                let first = Position { epoch, batch: 0 };
                let all = seen(&whole, first, whole.per_epoch());
                let parts: Vec<_> = (0..ranks)
                    .map(|rank| {
                        let loader = of(rank, ranks);
                        assert_eq!(loader.per_epoch(), whole.per_epoch() / ranks);
                        seen(&loader, first, loader.per_epoch())
                    })
                    .collect();
                for (number, batch) in all[..all.len() / ranks * ranks].iter().enumerate() {
                    assert_eq!(parts[number % ranks][number / ranks], *batch, "{ranks} ranks, {number}");
                }
            }
        }
    }
}

#[test]
fn rows_of_any_type_and_shape_become_batches() {
    let dev = Device::cpu();
    let bytes: Vec<u8> = (0..5 * 12).collect();
    let images = Tensor::from_slice(&bytes, &[5, 3, 2, 2], &dev).unwrap();
    let all = |inputs: &Tensor, labels: &Tensor| {
        let data = TensorDataset::new(inputs, labels).unwrap();
        DataLoader::new(data, options(2)).unwrap().epoch(0).map(Result::unwrap).collect::<Vec<_>>()
    };
    for dtype in [DType::F32, DType::F64, DType::I64, DType::U8, DType::Bool, DType::BF16, DType::F16] {
        let numbers = Tensor::arange(0, 10, 1, DType::I64, &dev).unwrap();
        let labels = numbers.to_dtype(dtype).unwrap().reshape(&[5, 2]).unwrap();
        let mut rows = BTreeSet::new();
        for batch in all(&images, &labels) {
            let count = batch.len();
            assert_eq!((batch.inputs.dtype(), batch.inputs.shape()), (DType::U8, &[count, 3, 2, 2][..]));
            assert_eq!((batch.labels.dtype(), batch.labels.shape()), (dtype, &[count, 2][..]));
            for row in 0..count {
                let pixels = batch.inputs.narrow(0, row, 1).unwrap().to_vec::<u8>().unwrap();
                let number = pixels[0] as usize / 12;
                assert_eq!(pixels, bytes[number * 12..][..12]);
                let of = |labels: &Tensor, row: usize| {
                    let row = labels.narrow(0, row, 1).unwrap();
                    row.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
                };
                assert_eq!(of(&batch.labels, row), of(&labels, number));
                rows.insert(number);
            }
        }
        assert_eq!(rows.len(), 5, "{dtype}");
    }
    let targets = Tensor::from_slice(&[0.5f32, 1.5, 2.5, 3.5, 4.5], &[5], &dev).unwrap();
    assert!(all(&images, &targets).iter().all(|batch| batch.labels.shape() == [batch.inputs.shape()[0]]));
    let wrong = |inputs: &Tensor, labels: &Tensor| TensorDataset::new(inputs, labels).err().unwrap();
    let four = targets.narrow(0, 0, 4).unwrap();
    assert!(matches!(wrong(&images, &four).kind(), ErrorKind::ShapeMismatch { .. }));
    assert!(matches!(
        wrong(&Tensor::scalar(1.0f32, &dev).unwrap(), &targets).kind(),
        ErrorKind::ShapeMismatch { .. }
    ));
    let none = targets.narrow(0, 0, 0).unwrap();
    assert!(matches!(wrong(&none, &none).kind(), ErrorKind::InvalidArgument { argument: "rows", .. }));
}
