//! Steps that are captured for each form of batch.

use std::cell::{Cell, RefCell};

use super::{refused, tensor, values};
use crate::common::devices::each_device;
use streamgrad::compare::{WriteTrace, first_divergence};
use streamgrad::prelude::*;
use streamgrad::{
    Error, ErrorKind, Generator, Graph, Graphs, RaggedBatch, Result, Schedule, TextBatch, with_generator,
};

const SCHEDULES: [Schedule; 2] = [Schedule::Inline, Schedule::Threads];

#[test]
fn each_shape_is_captured_once() {
    each_device(&SCHEDULES, |device| {
        let captures = Cell::new(0);
        let total = Tensor::zeros(&[], DType::F32, device)?;
        let mut graphs = Graphs::new(device, |x: &Tensor| {
            captures.set(captures.get() + 1);
            total.add_(&x.sum(&[], false)?)?;
            x.mul_scalar(2.0)
        });
        assert!(graphs.is_empty());
        let mut sum = 0.0;
        for (turn, rows) in [2, 3, 2, 3, 3, 1, 2].into_iter().enumerate() {
            let data: Vec<f32> = (0..rows).map(|row| (turn + row) as f32).collect();
            sum += data.iter().sum::<f32>();
            let doubled: Vec<f32> = data.iter().map(|x| x * 2.0).collect();
            assert_eq!(values(&graphs.run(&tensor(&data, device)?)?)?, doubled);
            assert_eq!(total.item::<f32>()?, sum);
        }
        assert_eq!((graphs.len(), captures.get()), (3, 3));
        // Of another type, in another number of axes.
        graphs.run(&Tensor::ones(&[2, 1], DType::F32, device)?)?;
        assert_eq!(captures.get(), 4);
        Ok(())
    });
}

#[test]
fn what_was_not_used_for_longest_goes_first() {
    each_device(&SCHEDULES, |device| {
        let captured = RefCell::new(Vec::new());
        let mut graphs = Graphs::new(device, |x: &Tensor| {
            captured.borrow_mut().push(x.shape()[0]);
            x.add_scalar(1.0)
        })
        .at_most(2);
        let mut run = |rows: usize| graphs.run(&Tensor::ones(&[rows], DType::F32, device)?);
        let first = run(1)?;
        for rows in [2, 1, 3, 1, 2] {
            run(rows)?;
        }
        assert_eq!(*captured.borrow(), [1, 2, 3, 2]);
        assert_eq!(values(&first)?, [2.0]);
        assert_eq!(graphs.len(), 2);
        Ok(())
    });
}

/// Batches of one list of shapes that differ otherwise.
#[test]
fn the_form_is_more_than_the_shapes() {
    each_device(&SCHEDULES, |device| {
        let mut graphs = Graphs::new(device, |(a, b): &(Option<Tensor>, Option<Tensor>)| match (a, b) {
            (Some(a), None) => a.add_scalar(1.0),
            (None, Some(b)) => b.mul_scalar(10.0),
            _ => unreachable!(),
        });
        let x = tensor(&[3.0], device)?;
        assert_eq!(values(&graphs.run(&(Some(x.clone()), None))?)?, [4.0]);
        assert_eq!(values(&graphs.run(&(None, Some(x.clone())))?)?, [30.0]);
        let mut graphs = Graphs::new(device, |[a, b]: &[Vec<Tensor>; 2]| {
            let sum = |part: &Vec<Tensor>| part.iter().try_fold(part[0].clone(), |sum, x| sum.add(x));
            sum(a)?.mul_scalar(10.0)?.add(&sum(b)?)
        });
        assert_eq!(values(&graphs.run(&[vec![x.clone()], vec![x.clone(), x.clone()]])?)?, [69.0]);
        assert_eq!(values(&graphs.run(&[vec![x.clone(), x.clone()], vec![x.clone()]])?)?, [96.0]);
        Ok(())
    });
}

#[test]
fn batches_may_come_and_go_and_repeat_tensors() {
    each_device(&SCHEDULES, |device| {
        let mut graphs = Graphs::new(device, |[a, b]: &[Tensor; 2]| a.add_scalar(1.0)?.mul(b));
        let x = Tensor::arange(0.0, 6.0, 1.0, DType::F32, device)?.reshape(&[2, 3])?;
        let transposed = x.t()?.contiguous()?.t()?;
        for (a, b) in [(&x, &x), (&transposed, &x), (&x, &transposed)] {
            let batch = [a.clone(), b.clone()];
            let expected = values(&a.add_scalar(1.0)?.mul(b)?)?;
            assert_eq!(values(&graphs.run(&batch)?)?, expected);
        }
        let wide = x.narrow(1, 0, 1)?.expand(&[2, 3])?;
        assert_eq!(
            values(&graphs.run(&[wide.clone(), x.clone()])?)?,
            values(&wide.add_scalar(1.0)?.mul(&x)?)?
        );
        // A result is a batch.
        let result = graphs.run(&[x.clone(), x.clone()])?;
        let again = graphs.run(&[result.clone(), result.clone()])?;
        assert_eq!(values(&again)?, values(&result.add_scalar(1.0)?.mul(&result)?)?);
        assert_eq!(graphs.len(), 1);
        Ok(())
    });
}

/// Dropout of batches with keys of their own, beside that of the thread's generator.
#[test]
fn seeds_follow_the_batch() {
    each_device(&SCHEDULES, |device| {
        let batch = |key: u64| -> Result<Batch> {
            let x = Tensor::ones(&[32], DType::F32, device)?;
            let labels = Tensor::zeros(&[32], DType::I64, device)?;
            let bags = vec![RaggedBatch { indices: labels.clone(), offsets: labels.clone() }];
            Ok(Batch { inputs: x, labels, bags, key })
        };
        let step = |batches: &Vec<Batch>| {
            let mut sum = Tensor::zeros(&[32], DType::F32, device)?;
            for batch in batches {
                let fork =
                    || with_generator(Generator::current().fork(3), || batch.inputs.dropout(0.3, None));
                let own = batch.seeded(|| {
                    batch.inputs.dropout(0.5, None)?.add(&batch.inputs.dropout(0.5, None)?)?.add(&fork()?)
                })?;
                sum = sum.mul_scalar(2.0)?.add(&own)?.add(&batch.inputs.dropout(0.5, None)?)?;
            }
            Ok(sum)
        };
        let run = |run: &mut dyn FnMut(&Vec<Batch>) -> Result<Tensor>| {
            with_generator(Generator::new(3), || -> Result<Vec<_>> {
                [[1, 2], [3, 1], [1, 1], [1, 2], [0, 0]]
                    .into_iter()
                    .map(|keys| values(&run(&keys.into_iter().map(batch).collect::<Result<Vec<_>>>()?)?))
                    .collect()
            })
        };
        let mut graphs = Graphs::new(device, step);
        assert_eq!(run(&mut |batches| graphs.run(batches))?, run(&mut |batches| step(batches))?);
        assert_eq!(graphs.len(), 1);
        let tokens = Tensor::zeros(&[32], DType::I64, device)?;
        let mut graphs = Graphs::new(device, |batch: &TextBatch| {
            batch.seeded(|| batch.tokens.to_dtype(DType::F32)?.add_scalar(1.0)?.dropout(0.5, None))
        });
        for key in 0..4 {
            let batch = TextBatch { tokens: tokens.clone(), targets: tokens.clone(), key };
            let expected = batch.seeded(|| Tensor::ones(&[32], DType::F32, device)?.dropout(0.5, None))?;
            assert_eq!(values(&graphs.run(&batch)?)?, values(&expected)?);
        }
        Ok(())
    });
}

/// The key of a batch is a number of the host: a graph of one's own does not follow it.
#[test]
fn a_batch_of_a_plain_graph_keeps_its_key() {
    each_device(&SCHEDULES, |device| {
        let x = Tensor::ones(&[64], DType::F32, device)?;
        let batch = Batch { inputs: x.clone(), labels: x.clone(), bags: Vec::new(), key: 7 };
        let graph = Graph::capture(device, || batch.seeded(|| batch.inputs.dropout(0.5, None)))?;
        let expected = values(&batch.seeded(|| x.dropout(0.5, None))?)?;
        assert_eq!((values(&graph.replay()?)?, values(&graph.replay()?)?), (expected.clone(), expected));
        Ok(())
    });
}

#[test]
fn a_step_that_fails_is_captured_when_it_does_not() {
    each_device(&SCHEDULES, |device| {
        let fail = Cell::new(true);
        let mut graphs =
            Graphs::new(device, |x: &Tensor| if fail.get() { x.reshape(&[99]) } else { x.add_scalar(1.0) });
        let x = tensor(&[1.0], device)?;
        assert!(matches!(
            graphs.run(&x).as_ref().map_err(Error::kind),
            Err(ErrorKind::ShapeMismatch { .. } | ErrorKind::InvalidArgument { .. })
        ));
        assert!(graphs.is_empty());
        fail.set(false);
        assert_eq!(values(&graphs.run(&x)?)?, [2.0]);
        assert_eq!(refused(Graph::capture(device, || graphs.run(&x))).0, "replay");
        assert_eq!(values(&graphs.run(&x)?)?, [2.0]);
        Ok(())
    });
}

/// A replay's commands are traced as those of the eager step are, on every device.
#[test]
fn replays_write_what_the_step_writes() {
    each_device(&SCHEDULES, |device| {
        let run = |captured: bool, flip: bool| -> Result<WriteTrace> {
            WriteTrace::start(device, true);
            let state = Tensor::zeros(&[2, 3], DType::F32, device)?;
            let weight = Var::leaf(Tensor::ones(&[3], DType::F32, device)?);
            let step = |x: &Tensor| {
                state.add_(&x.exp()?.softmax(1)?)?;
                // Its gradient is several commands in a step that is captured on CUDA.
                let x = Var::leaf(x.clone());
                let gradients =
                    x.layer_norm(&[3], Some(&weight), None, 1e-5)?.square()?.sum_all()?.backward()?;
                no_grad(|| gradients.get(&weight).map_or(Ok(()), |g| weight.value().add_(&g)))?;
                state.t()?.mul_scalar(0.5)?.sum(&[0], false)
            };
            let mut graphs = Graphs::new(device, step);
            for number in 0..3 {
                if flip && number == 2 {
                    state.narrow(0, 1, 1)?.add_scalar_(1.0)?;
                }
                let x = Tensor::from_slice(&[1.0, -2.0, 0.5, number as f32, 3.0, 0.0], &[2, 3], device)?;
                if captured {
                    graphs.run(&x)?
                } else {
                    step(&x)?
                };
            }
            WriteTrace::stop(device)
        };
        let (eager, replayed) = (run(false, false)?, run(true, false)?);
        assert_eq!(first_divergence(&eager, &replayed), None);
        assert_eq!(first_divergence(&replayed, &run(true, false)?), None);
        let found = first_divergence(&replayed, &run(false, true)?).unwrap();
        assert_eq!((&*found.op, found.element), ("add", Some(3)), "{found}");
        let found = first_divergence(&replayed, &run(true, true)?).unwrap();
        assert!(
            found.to_string().contains("the other run has add_scalar at tests/captured/graphs.rs"),
            "{found}"
        );
        Ok(())
    });
}
