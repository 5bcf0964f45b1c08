use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use device::CpuConfig;
use tensor::{DType, Error, ErrorKind, Generator, RandomKey, Tensor, with_generator};

use super::*;
use crate::Var;
use crate::pipeline::lines::{all, even};

fn options(schedule: PipelineSchedule) -> PipelineOptions {
    PipelineOptions { schedule, ..PipelineOptions::default() }
}

const SCHEDULES: [PipelineSchedule; 3] =
    [PipelineSchedule::Serial, PipelineSchedule::Stages, PipelineSchedule::Measured];

/// Losses and weights of a small training, in runs or step by step: rows are drawn, scaled with dropout, and trained on.
fn train(schedule: PipelineSchedule, batches: usize, by_steps: bool) -> Result<(Vec<f64>, Vec<f64>)> {
    let dev = Device::cpu();
    let weights = Tensor::ones(&[5, 3], DType::F64, &dev)?;
    let w = Var::leaf(weights.clone());
    let mut pipeline = Pipeline::with_options(&dev, options(schedule))
        .stage("load", |n: u64| Tensor::randn(&[4, 5], DType::F64, RandomKey { seed: 3, op: n }, &dev))
        .stage("augment", |x| x.dropout(0.25, None)?.mul_scalar(1.5))
        .stage("train", |x| {
            let loss = Var::constant(x).matmul(&w)?.square()?.mean(&[], false)?;
            let step = loss.backward()?;
            if let Some(gradient) = step.get(&w) {
                weights.sub_(&gradient.mul_scalar(0.01)?)?;
            }
            Ok(loss.value().clone())
        });
    let mut losses = Vec::new();
    // The second run goes on with what the first one left.
    with_generator(Generator::new(7), || -> Result<()> {
        for mut run in [0..batches as u64, 50..60] {
            if by_steps {
                while let Some(loss) = pipeline.progress(&mut run)? {
                    losses.push(loss.item::<f64>()?);
                }
            } else {
                for loss in pipeline.run(run)? {
                    losses.push(loss.item::<f64>()?);
                }
            }
        }
        Ok(())
    })?;
    drop(pipeline);
    Ok((losses, weights.to_vec::<f64>()?))
}

#[test]
fn every_schedule_gives_the_same_bits() -> Result<()> {
    // Fewer than are measured on, and more.
    for batches in [2, 80] {
        let expected = train(PipelineSchedule::Serial, batches, false)?;
        assert_eq!(expected.0.len(), batches + 10);
        for schedule in SCHEDULES {
            for by_steps in [false, true, false, true] {
                assert_eq!(
                    train(schedule, batches, by_steps)?,
                    expected,
                    "{schedule:?}, {batches}, {by_steps}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn a_stage_works_on_the_next_batch_while_another_one_trains() -> Result<()> {
    const BATCHES: usize = 5;
    let (loaded, seen) = channel();
    let mut pipeline = Pipeline::with_options(&Device::cpu(), options(PipelineSchedule::Stages))
        .stage("load", move |n: usize| {
            loaded.send(n).unwrap();
            Ok(n)
        })
        .stage("train", move |n| {
            // Ends only when the next batch has been loaded.
            while n + 1 < BATCHES && seen.recv_timeout(Duration::from_secs(60)).unwrap() <= n {}
            Ok(n)
        });
    assert_eq!(pipeline.run(0..BATCHES)?, [0, 1, 2, 3, 4]);
    assert_eq!(pipeline.report().streams, 2);
    Ok(())
}

#[test]
fn batches_that_wait_are_bounded() -> Result<()> {
    let (loaded, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let options = PipelineOptions { depth: 2, schedule: PipelineSchedule::Stages };
    let mut pipeline = Pipeline::with_options(&Device::cpu(), options)
        .stage("load", |n: usize| {
            loaded.fetch_add(1, Ordering::SeqCst);
            Ok(n)
        })
        .stage("train", |n| {
            std::thread::sleep(Duration::from_millis(2));
            most.fetch_max(loaded.load(Ordering::SeqCst) - n, Ordering::SeqCst);
            Ok(())
        });
    pipeline.run(0..20)?;
    // One that trains, two that wait, and one that waits for room.
    assert!((2..=4).contains(&most.load(Ordering::SeqCst)), "{most:?}");
    Ok(())
}

#[test]
fn an_error_names_its_stage_and_batch_and_the_next_run_works() -> Result<()> {
    for schedule in SCHEDULES {
        for panics in [false, true] {
            let (trained, is_bad) = (AtomicUsize::new(0), AtomicUsize::new(1));
            let mut pipeline = Pipeline::with_options(&Device::cpu(), options(schedule))
                .stage("load", Ok::<usize, Error>)
                .stage("augment", |n| {
                    let bad = n == 3 && is_bad.load(Ordering::SeqCst) == 1;
                    assert!(!(bad && panics), "three is bad");
                    if bad { Err(Error::invalid("augment", "n", "not 3", n)) } else { Ok(n) }
                })
                .stage("train", |n| {
                    trained.fetch_add(1, Ordering::SeqCst);
                    Ok(n)
                });
            let error = pipeline.run(0..9);
            let Err(ErrorKind::Stage { stage, batch, source }) = error.as_ref().map_err(Error::kind) else {
                panic!("{error:?}")
            };
            assert_eq!((&**stage, *batch), ("augment", 3), "{schedule:?}");
            assert!(source.to_string().contains("three is bad") || source.to_string().contains("not 3"));
            assert_eq!(trained.load(Ordering::SeqCst), 3, "the batches before were run to their end");
            is_bad.store(0, Ordering::SeqCst);
            assert_eq!(pipeline.run(0..9)?.len(), 9, "{schedule:?}");
        }
    }
    Ok(())
}

#[test]
fn an_iterator_that_panics_is_an_error_and_so_is_no_depth() -> Result<()> {
    for schedule in SCHEDULES {
        let mut pipeline = Pipeline::with_options(&Device::cpu(), options(schedule))
            .stage("load", Ok::<usize, Error>)
            .stage("train", Ok);
        let error = pipeline.run((0..9).inspect(|&n| assert_ne!(n, 4, "four is bad")));
        assert!(
            matches!(error.as_ref().map_err(Error::kind), Err(ErrorKind::Stage { batch: 4, stage, .. }) if &**stage == "batches"),
            "{error:?}"
        );
        assert_eq!(pipeline.run(0..9)?.len(), 9);
    }
    let options = PipelineOptions { depth: 0, ..PipelineOptions::default() };
    let mut none = Pipeline::<usize, usize>::with_options(&Device::cpu(), options);
    assert!(matches!(
        none.run(0..2).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { argument: "depth", .. })
    ));
    assert_eq!(Pipeline::<usize, usize>::new(&Device::cpu()).run(0..2)?, [0, 1]);
    Ok(())
}

#[test]
fn several_streams_are_used_where_they_were_measured_to_be_faster() -> Result<()> {
    let device = Device::cpu_with(device::CpuConfig { threads: Some(3), ..device::CpuConfig::default() });
    let slow = |n: usize| {
        std::thread::sleep(Duration::from_millis(4));
        Ok(n)
    };
    let mut pipeline = Pipeline::new(&device).stage("load", slow).stage("name", Ok).stage("train", slow);
    assert_eq!(pipeline.run(0..3)?.len(), 3);
    assert_eq!((pipeline.report().streams, pipeline.report().serial_ms), (1, None), "too few to measure");
    assert_eq!(pipeline.run(0..60)?.len(), 60);
    let report = pipeline.report();
    let (Some(serial), Some(concurrent)) = (report.serial_ms, report.concurrent_ms) else {
        panic!("{report}")
    };
    // A machine that is busy may hide the gain.
    assert!(report.streams == 1 || concurrent < serial, "{report}");
    assert!(report.stages.iter().all(|stage| stage.alone_ms.is_some()), "{report}");
    Ok(())
}

#[test]
fn stages_are_under_the_modes_of_the_run() -> Result<()> {
    let dev = Device::cpu();
    let w = Var::leaf(Tensor::ones(&[2, 2], DType::F32, &dev)?);
    for schedule in SCHEDULES {
        let mut pipeline = Pipeline::with_options(&dev, options(schedule))
            .stage("load", |n: usize| Tensor::full(&[2, 2], n as f64, DType::F32, &dev))
            .stage("product", |x| Var::constant(x).matmul(&w))
            .stage("kind", |y| Ok((y.dtype(), y.requires_grad())));
        let modes = |pipeline: &mut Pipeline<'_, usize, _>, half| {
            crate::no_grad(|| crate::autocast(half, || pipeline.run(0..70)))
        };
        assert_eq!(pipeline.run(0..70)?, [(DType::F32, true); 70], "{schedule:?}");
        assert_eq!(modes(&mut pipeline, DType::BF16)?, [(DType::BF16, false); 70], "{schedule:?}");
    }
    Ok(())
}

#[test]
fn groups_are_as_even_as_neighbours_can_be() {
    assert_eq!(even(&[1.0, 1.0, 1.0]), [0..1, 1..2, 2..3]);
    assert_eq!(even(&[1.0, 2.0, 3.0]), [0..2, 2..3]);
    assert_eq!(even(&[1.0, 0.5, 0.5, 2.0]), [0..3, 3..4]);
    assert_eq!(even(&[3.0, 0.01, 0.02]), all(3));
    assert_eq!(even(&[0.0, 0.0]), all(2));
}

/// Runs too short to measure in one of them measure together; a CPU with one thread for kernels has room for stages that wait.
#[test]
fn short_runs_decide_together() -> Result<()> {
    let dev = Device::cpu_with(CpuConfig { threads: Some(1), ..CpuConfig::default() });
    let nap = |n: usize| {
        std::thread::sleep(Duration::from_millis(2));
        Ok(n)
    };
    // A run decides in some fifty batches. A busy machine may measure that nothing is gained.
    for _ in 0..5 {
        let mut pipeline = Pipeline::new(&dev).stage("load", nap).stage("augment", nap).stage("train", nap);
        for run in 0..6 {
            assert_eq!(pipeline.run(0..30)?, (0..30).collect::<Vec<_>>());
            if pipeline.report().streams > 1 {
                assert!(run > 0, "{}", pipeline.report());
                return Ok(());
            }
        }
    }
    panic!("runs of thirty batches decide nothing")
}

/// What stages put off within a batch of lanes is done when the batch is, not by the thread of a stage.
#[test]
fn a_batch_keeps_what_its_stages_put_off() -> Result<()> {
    use crate::{ConcurrentBatches, defer};
    use std::sync::{Arc, Mutex};

    let dev = Device::cpu();
    let w = Var::leaf(Tensor::ones(&[1], DType::F64, &dev)?);
    let done = Arc::new(Mutex::new(Vec::new()));
    let lanes = ConcurrentBatches::new(&dev, 2)?;
    lanes.step([0, 1], |batch| {
        let first = |n: usize| {
            let done = Arc::clone(&done);
            defer(move || {
                done.lock().unwrap().push((batch, n));
                Ok(())
            })?;
            Ok(n)
        };
        let mut pipeline = Pipeline::with_options(&dev, options(PipelineSchedule::Stages))
            .stage("first", first)
            .stage("second", |n| Ok(n + 1));
        assert_eq!(pipeline.run(0..3)?, [1, 2, 3]);
        assert!(done.lock().unwrap().is_empty(), "the batch is not done");
        w.square()?.sum_all()
    })?;
    let expected: Vec<_> = (0..2).flat_map(|batch| (0..3).map(move |n| (batch, n))).collect();
    assert_eq!(*done.lock().unwrap(), expected);
    Ok(())
}
