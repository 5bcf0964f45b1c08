//! Losses that are made together with their gradient.

use super::bits;
use super::tensor;
use crate::common::devices::each_device;
use streamgrad::prelude::*;
use streamgrad::{Graph, GraphOptions, Order, RandomKey, Result, Schedule};

const SCHEDULES: [Schedule; 2] = [Schedule::Inline, Schedule::Threads];

fn count<R: streamgrad::Tensors>(graph: &Graph<R>, op: &str) -> usize {
    graph.commands().iter().filter(|command| command.op == op).count()
}

/// Logits, as they lie or by columns, and labels.
fn scores(
    (rows, classes): (usize, usize),
    dtype: DType,
    turned: bool,
    device: &Device,
) -> Result<(Var, Tensor)> {
    let key = RandomKey { seed: 3, op: rows as u64 };
    let shape = if turned { [classes, rows] } else { [rows, classes] };
    let logits = Tensor::randn(&shape, DType::F32, key, device)?.to_dtype(dtype)?;
    let labels: Vec<i64> = (0..rows).map(|row| (row * 7 % classes) as i64).collect();
    let logits = if turned { logits.t()? } else { logits };
    Ok((Var::leaf(logits), Tensor::from_slice(&labels, &[rows], device)?))
}

#[test]
fn a_loss_and_its_gradient_are_one_command() {
    each_device(&SCHEDULES, |device| {
        for (rows, classes) in [(1, 1), (7, 3), (64, 10), (33, 100), (3, 2500), (2, 9000)] {
            for (dtype, turned) in [
                (DType::F32, false),
                (DType::F32, true),
                (DType::F64, false),
                (DType::BF16, false),
                (DType::F16, true),
            ] {
                let (logits, labels) = scores((rows, classes), dtype, turned, device)?;
                let step = || -> Result<(Tensor, Tensor)> {
                    let loss = cross_entropy(&logits, &labels)?;
                    let gradient = loss.backward()?.get(&logits);
                    Ok((loss.value().clone(), gradient.unwrap_or_else(|| unreachable!("logits are a leaf"))))
                };
                let (loss, slopes) = step()?;
                for order in [Order::Data, Order::Streams] {
                    for fuse in [false, true] {
                        let options = GraphOptions { order, fuse, ..GraphOptions::default() };
                        let graph = Graph::capture_with(device, options, step)?;
                        // In its stream, the mean of the losses lies between.
                        let widened = device.runs_on_host() && dtype.is_half();
                        let is_one = fuse && order == Order::Data && !widened;
                        assert_eq!(count(&graph, "cross_entropy_grad"), usize::from(!is_one), "{options:?}");
                        for _ in 0..2 {
                            let (found, found_slopes) = graph.replay()?;
                            let form = format!("{rows} x {classes}, {dtype}, turned: {turned}, {options:?}");
                            assert!(bits(&found)? == bits(&loss)?, "loss of {form}");
                            assert!(bits(&found_slopes)? == bits(&slopes)?, "gradient of {form}");
                        }
                    }
                }
            }
        }
        Ok(())
    });
}

/// A gradient of the losses that follows from them.
#[test]
fn a_loss_that_its_gradient_needs_is_made_before() {
    each_device(&SCHEDULES, |device| {
        let (logits, labels) = scores((5, 4), DType::F32, false, device)?;
        let step = || {
            let loss = cross_entropy(&logits, &labels)?.square()?;
            Ok(loss.backward()?.get(&logits))
        };
        let graph = Graph::capture(device, step)?;
        assert_eq!((count(&graph, "cross_entropy"), count(&graph, "cross_entropy_grad")), (1, 1));
        let (found, expected) = (graph.replay()?.map(|t| bits(&t)), step()?.map(|t| bits(&t)));
        assert_eq!(found.transpose()?, expected.transpose()?);
        Ok(())
    });
}

#[test]
fn a_label_that_is_no_class_fails_the_replay() {
    each_device(&SCHEDULES, |device| {
        let logits = Var::leaf(tensor(&[1.0, 2.0, 3.0, 4.0], device)?.reshape(&[2, 2])?);
        let labels = Tensor::from_slice(&[0_i64, 1], &[2], device)?;
        let graph = Graph::capture(device, || Ok(cross_entropy(&logits, &labels)?.backward()?.get(&logits)))?;
        assert_eq!(count(&graph, "cross_entropy_grad"), 0);
        graph.input(&labels)?.set(&Tensor::from_slice(&[0_i64, 2], &[2], device)?)?;
        let failed = graph.replay().and_then(|_| device.synchronize());
        assert!(
            failed.as_ref().is_err_and(|error| error.to_string().contains("cross_entropy")),
            "{failed:?}"
        );
        graph.input(&labels)?.set(&Tensor::from_slice(&[1_i64, 1], &[2], device)?)?;
        graph.replay()?;
        device.synchronize()
    });
}
