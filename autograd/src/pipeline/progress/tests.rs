use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use device::{Error, ErrorKind, StreamId};
use tensor::{DType, Tensor};

use super::*;
use crate::{ConcurrentBatches, Pipeline, PipelineOptions, PipelineSchedule, Var, defer};

fn options(schedule: PipelineSchedule) -> PipelineOptions {
    PipelineOptions { schedule, ..PipelineOptions::default() }
}

/// What the stages did, as in `load 2`.
type Log = Arc<Mutex<Vec<String>>>;

/// Three stages that write down what they do, each of which refuses batch `number` if its name is the one here.
fn logged(
    schedule: PipelineSchedule,
    bad: (&'static str, usize),
    log: &Log,
) -> Pipeline<'static, usize, usize> {
    let stage = |name: &'static str| {
        let log = Arc::clone(log);
        move |n: usize| {
            assert_ne!((name, n), bad, "it is bad");
            log.lock().unwrap().push(format!("{name} {n}"));
            Ok(n)
        }
    };
    Pipeline::with_options(&Device::cpu(), options(schedule))
        .stage("load", stage("load"))
        .stage("augment", stage("augment"))
        .stage("train", stage("train"))
}

const NONE_IS_BAD: (&str, usize) = ("", 0);

#[test]
fn a_step_launches_each_stage_once() -> Result<()> {
    let log = Log::default();
    let mut pipeline = logged(PipelineSchedule::Stages, NONE_IS_BAD, &log);
    let did = || std::mem::take(&mut *log.lock().unwrap()).join(", ");
    // The second time, the pipeline is filled before.
    for is_filled in [false, true] {
        let mut batches = 0..5;
        if is_filled {
            // There are not so many at once.
            pipeline.fill(&mut std::iter::empty())?;
            pipeline.fill(&mut batches.by_ref().take(1))?;
            pipeline.fill(&mut batches)?;
            pipeline.fill(&mut batches)?;
            assert_eq!((did(), &batches), ("load 0, load 1, augment 0".into(), &(2..5)));
        }
        let first = if is_filled { "" } else { "load 0, load 1, augment 0, " };
        let first = format!("{first}load 2, augment 1, train 0");
        let expected = [
            (Some(0), &*first),
            (Some(1), "load 3, augment 2, train 1"),
            (Some(2), "load 4, augment 3, train 2"),
            (Some(3), "augment 4, train 3"),
            (Some(4), "train 4"),
            (None, ""),
            (None, ""),
        ];
        for (done, stages) in expected {
            assert_eq!((pipeline.progress(&mut batches)?, &*did()), (done, stages));
        }
    }
    // Where a step finds too few batches, those under way go on until one is done.
    assert_eq!((pipeline.progress(&mut (0..1))?, &*did()), (Some(0), "load 0, augment 0, train 0"));
    assert_eq!(pipeline.progress(&mut (1..9))?, Some(1));
    assert_eq!(pipeline.progress(&mut std::iter::empty())?, Some(2));
    assert_eq!(pipeline.progress(&mut (9..10))?, Some(3));
    Ok(())
}

#[test]
fn on_one_stream_no_batch_is_under_way() -> Result<()> {
    let log = Log::default();
    let mut pipeline = logged(PipelineSchedule::Serial, NONE_IS_BAD, &log);
    let mut batches = 0..2;
    pipeline.fill(&mut batches)?;
    assert_eq!(pipeline.progress(&mut batches)?, Some(0));
    assert_eq!((pipeline.report().streams, batches), (1, 1..2));
    assert_eq!(*log.lock().unwrap(), ["load 0", "augment 0", "train 0"]);
    // And none that a run would have to come after.
    assert_eq!(pipeline.run(0..2)?, [0, 1]);
    let mut none = Pipeline::<usize, usize>::with_options(&Device::cpu(), options(PipelineSchedule::Stages));
    assert_eq!((none.progress(&mut (3..4))?, none.progress(&mut (3..3))?), (Some(3), None));
    Ok(())
}

#[test]
fn what_a_stage_launches_runs_beside_the_last_stage() -> Result<()> {
    // One of its own: the others' commands do not count.
    let dev = Device::cpu_with(device::CpuConfig::default());
    let begun: Mutex<Vec<Sender<()>>> = Mutex::default();
    let mut pipeline = Pipeline::with_options(&dev, options(PipelineSchedule::Stages))
        .stage("prepare", |n: f32| {
            let (sender, receiver) = channel();
            begun.lock().unwrap().push(sender);
            // What is prepared waits until it is told.
            let waits = move || receiver.recv_timeout(Duration::from_secs(60)).unwrap();
            Stream::current(&dev).launch_host("waits", &[], waits)?;
            Tensor::full(&[2], n, DType::F32, &dev)
        })
        .stage("train", |x: Tensor| {
            // What is prepared in this step goes on once the last stage is called.
            begun.lock().unwrap().drain(..).for_each(|next| next.send(()).unwrap());
            x.mul_scalar(10.0)
        });
    let mut batches = [1.0, 2.0, 3.0].into_iter();
    dev.start_recording();
    pipeline.fill(&mut batches)?;
    for expected in [10.0, 20.0, 30.0] {
        assert_eq!(pipeline.progress(&mut batches)?.unwrap().to_vec::<f32>()?, [expected; 2]);
    }
    let recording = dev.stop_recording();
    let on = |op| -> Vec<StreamId> {
        let of_op = recording.commands.iter().filter(|command| command.op == op);
        of_op.map(|command| command.moment.stream).collect()
    };
    let stages = &pipeline.report().stages;
    assert_eq!((on("waits"), on("mul_scalar")), (vec![stages[0].stream_id; 3], vec![stages[1].stream_id; 3]));
    assert_ne!(stages[0].stream_id, stages[1].stream_id);
    Ok(())
}

#[test]
fn an_error_has_its_batchs_place_and_the_others_go_on() -> Result<()> {
    for schedule in [PipelineSchedule::Serial, PipelineSchedule::Stages] {
        for bad in [("load", 2), ("augment", 2), ("train", 2), ("batches", 2)] {
            let mut pipeline = logged(schedule, bad, &Log::default());
            let mut batches = (0..5).inspect(|&n| assert_ne!(("batches", n), bad, "it is bad"));
            for number in 0..5 {
                match pipeline.progress(&mut batches).map_err(Error::into_kind) {
                    Err(ErrorKind::Stage { stage, batch, source }) => {
                        assert_eq!((&*stage, batch, number), (bad.0, bad.1, 2), "{schedule:?}");
                        assert!(source.to_string().contains("it is bad"), "{source}");
                    }
                    done => assert!(
                        number != 2 && done.ok() == Some(Some(number)),
                        "{schedule:?}, {bad:?}, {number}"
                    ),
                }
            }
            assert_eq!(pipeline.progress(&mut batches)?, None);
        }
    }
    Ok(())
}

#[test]
fn a_run_is_refused_while_batches_are_under_way() -> Result<()> {
    let log = Log::default();
    let mut pipeline = logged(PipelineSchedule::Stages, NONE_IS_BAD, &log);
    let mut batches = 0..4;
    assert_eq!(pipeline.progress(&mut batches)?, Some(0));
    let refused = pipeline.run(10..12);
    assert!(
        matches!(refused.as_ref().map_err(Error::kind), Err(ErrorKind::InvalidArgument { argument: "batches under way", value, .. }) if &**value == "2"),
        "{refused:?}"
    );
    while pipeline.progress(&mut batches)?.is_some() {}
    assert_eq!(log.lock().unwrap().len(), 12, "nothing of the run, and all else");
    assert_eq!(pipeline.run(10..12)?, [10, 11]);
    Ok(())
}

#[test]
fn steps_are_on_the_streams_that_a_run_has_decided_on() -> Result<()> {
    let nap = |n: usize| {
        std::thread::sleep(Duration::from_millis(2));
        Ok(n)
    };
    let mut pipeline = Pipeline::new(&Device::cpu()).stage("load", nap).stage("name", Ok).stage("check", Ok);
    let streams = |pipeline: &Pipeline<'_, usize, usize>| -> Vec<usize> {
        pipeline.report().stages.iter().map(|stage| stage.stream).collect()
    };
    pipeline.progress(&mut (0..1))?;
    assert_eq!(streams(&pipeline), [0, 1, 2], "nothing is decided");
    assert_eq!(pipeline.progress(&mut (0..0))?, None);
    pipeline.run(0..60)?;
    let decided = streams(&pipeline);
    pipeline.progress(&mut (0..1))?;
    assert_eq!(streams(&pipeline), decided);
    Ok(())
}

#[test]
fn stages_are_under_the_modes_of_the_step_that_launches_them() -> Result<()> {
    let dev = Device::cpu();
    let w = Var::leaf(Tensor::ones(&[2, 2], DType::F32, &dev)?);
    let product = |x: &Tensor| {
        let y = Var::constant(x.clone()).matmul(&w)?;
        Ok::<_, Error>((y.dtype(), y.requires_grad()))
    };
    let mut pipeline = Pipeline::with_options(&dev, options(PipelineSchedule::Stages))
        .stage("load", |n: f32| {
            let x = Tensor::full(&[2, 2], n, DType::F32, &dev)?;
            Ok((product(&x)?, x))
        })
        .stage("train", |(loaded, x)| Ok((loaded, product(&x)?)));
    let mut batches = [1.0, 2.0].into_iter();
    let [plain, half] = [(DType::F32, true), (DType::BF16, false)];
    assert_eq!(pipeline.progress(&mut batches)?, Some((plain, plain)));
    let step = crate::no_grad(|| crate::autocast(DType::BF16, || pipeline.progress(&mut batches)));
    assert_eq!(step?, Some((plain, half)));
    Ok(())
}

/// What stages put off within a batch of lanes is done when the batch is.
#[test]
fn a_batch_keeps_what_its_steps_put_off() -> Result<()> {
    let dev = Device::cpu();
    let w = Var::leaf(Tensor::ones(&[1], DType::F64, &dev)?);
    let done = Arc::new(Mutex::new(Vec::new()));
    ConcurrentBatches::new(&dev, 2)?.step([0, 1], |batch| {
        let put_off = |stage: &'static str| {
            let done = Arc::clone(&done);
            move |n: usize| {
                let done = Arc::clone(&done);
                defer(move || {
                    done.lock().unwrap().push((batch, stage, n));
                    Ok(())
                })?;
                Ok(n)
            }
        };
        let mut pipeline = Pipeline::with_options(&dev, options(PipelineSchedule::Stages))
            .stage("first", put_off("first"))
            .stage("second", put_off("second"));
        let mut batches = 0..2;
        while pipeline.progress(&mut batches)?.is_some() {}
        assert!(done.lock().unwrap().is_empty(), "the batch is not done");
        w.square()?.sum_all()
    })?;
    let of = |batch| [(batch, "first", 0), (batch, "first", 1), (batch, "second", 0), (batch, "second", 1)];
    assert_eq!(*done.lock().unwrap(), [of(0), of(1)].concat());
    Ok(())
}
