//! What is not allowed within a captured step is a typed error that names the op, and leaves the device as it was.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{refused, tensor, values, works};
use crate::common::devices::each_device;
use streamgrad::prelude::*;
use streamgrad::{Error, ErrorKind, Graph, Result, Schedule};

const SCHEDULES: [Schedule; 2] = [Schedule::Inline, Schedule::Threads];

type Step = fn(&Device, &Tensor) -> Result<()>;

/// Steps that are refused, with the op that the error names.
const STEPS: [(&str, &str, Step); 10] = [
    ("a branch on a value of the step", "download", |_, x| {
        if x.sum(&[], false)?.item::<f32>()? > 0.0 { x.add_scalar_(1.0) } else { Ok(()) }
    }),
    ("a branch on a value from before", "download", |_, x| {
        if x.narrow(0, 0, 1)?.item::<f32>()? > 0.0 { x.add_scalar_(1.0) } else { Ok(()) }
    }),
    ("a copy to the host", "download", |_, x| x.add(x)?.to_vec::<f32>().map(drop)),
    ("waiting for the device", "synchronize", |device, _| device.synchronize()),
    ("waiting for a stream", "synchronize", |device, _| device.default_stream().synchronize()),
    ("a nested capture", "capture", |device, x| Graph::capture(device, || x.add_scalar_(1.0)).map(drop)),
    ("a seed", "seed", |_, x| {
        streamgrad::seed(4);
        x.dropout(0.5, None).map(drop)
    }),
    ("a learning rate", "sgd", |_, x| {
        let mut sgd = Sgd::new(vec![Var::leaf(x.clone())], 0.1)?;
        sgd.set_learning_rate(0.2)
    }),
    ("a function of the host", "host", |device, x| {
        x.add_scalar_(1.0)?;
        device.default_stream().launch_host("host", &[], || {})
    }),
    ("an event that the host waits for", "synchronize", |device, x| {
        x.add_scalar_(1.0)?;
        device.default_stream().record()?.synchronize()
    }),
];

#[test]
fn what_the_host_would_have_to_see_is_refused() {
    each_device(&SCHEDULES, |device| {
        let x = tensor(&[1.0, 2.0], device)?;
        for (what, op, step) in STEPS {
            let (found, reason) = refused(Graph::capture(device, || step(device, &x)));
            assert_eq!(found, op, "{what}: {reason}");
            // Who waits for a device knows where; what reads one value of many does not.
            assert_eq!(reason.contains("refused.rs:"), op == "download", "{what}: {reason}");
            assert_eq!(values(&x)?, [1.0, 2.0], "{what}");
            works(device)?;
        }
        Ok(())
    });
}

#[test]
fn a_tensor_of_the_step_cannot_be_printed() {
    each_device(&SCHEDULES, |device| {
        let x = tensor(&[1.0, 2.0], device)?;
        let mut printed = String::new();
        let graph = Graph::capture(device, || {
            let sum = x.add(&x)?;
            printed = format!("{sum} {sum:?}");
            Ok(sum)
        })?;
        assert!(printed.contains("captured"), "{printed}");
        assert_eq!(values(&graph.replay()?)?, [2.0, 4.0]);
        Ok(())
    });
}

#[test]
fn a_replay_within_a_capture_is_refused_and_runs_as_ever_afterwards() {
    each_device(&SCHEDULES, |device| {
        let x = tensor(&[1.0, 2.0], device)?;
        let graph = Graph::capture(device, || x.add_scalar(1.0))?;
        let held = graph.replay()?;
        assert_eq!(refused(Graph::capture(device, || graph.replay())).0, "replay");
        let again = graph.replay()?;
        x.zero_()?;
        graph.replay()?;
        assert_eq!((values(&held)?, values(&again)?), (vec![2.0, 3.0], vec![2.0, 3.0]));
        assert_eq!(values(&graph.replay()?)?, [1.0, 1.0]);
        Ok(())
    });
}

#[test]
fn a_tensor_kept_beyond_the_step_is_refused_by_the_name_of_its_op() {
    each_device(&SCHEDULES, |device| {
        let x = tensor(&[1.0, 2.0], device)?;
        let mut kept = None;
        let result = Graph::capture(device, || {
            kept = Some(x.sigmoid()?);
            Ok(())
        });
        let (op, reason) = refused(result);
        assert_eq!(op, "sigmoid");
        assert!(reason.contains("kept beyond the step"), "{reason}");
        let kept = kept.unwrap();
        assert_eq!(refused(kept.to_vec::<f32>()).0, "download");
        assert_eq!(refused(kept.add(&x)).0, "add");
        assert_eq!(refused(x.copy_(&kept)).0, "copy");
        assert_eq!(refused(Graph::capture(device, || kept.add(&x))).0, "add");
        drop(kept);
        works(device)
    });
}

#[test]
fn an_error_or_a_panic_leaves_the_device_and_the_thread_as_they_were() {
    each_device(&SCHEDULES, |device| {
        let x = tensor(&[1.0, 2.0], device)?;
        let live = device.memory_stats().allocated_bytes;
        let generator = streamgrad::Generator::current();
        let result: Result<Graph> = Graph::capture(device, || {
            x.dropout(0.5, None)?;
            x.add_scalar_(1.0)?;
            x.matmul(&x.unsqueeze(0)?)?;
            Ok(())
        });
        assert!(
            matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::ShapeMismatch { .. })),
            "{result:?}"
        );
        let caught = catch_unwind(AssertUnwindSafe(|| {
            Graph::capture(device, || -> Result<()> {
                x.dropout(0.5, None)?;
                x.add_scalar_(1.0)?;
                panic!("as told")
            })
        }));
        assert!(caught.is_err());
        assert_eq!(streamgrad::Generator::current(), generator);
        assert_eq!(values(&x)?, [1.0, 2.0]);
        assert_eq!(device.memory_stats().allocated_bytes, live);
        works(device)
    });
}

#[test]
fn a_step_without_commands_is_a_graph_of_none() {
    each_device(&SCHEDULES, |device| {
        let x = tensor(&[1.0, 2.0], device)?;
        let graph = Graph::capture(device, || Ok(x.clone()))?;
        assert_eq!((graph.report().commands, graph.report().planned_bytes), (0, 0));
        assert_eq!(values(&graph.replay()?)?, [1.0, 2.0]);
        Graph::capture(device, || Ok(()))?.replay()
    });
}

/// Commands of another device are not part of the step: they run once, when it is captured, and what they make is no tensor of
/// the step.
#[test]
fn a_step_on_another_device_runs_there_at_once() {
    each_device(&SCHEDULES, |device| {
        let other = Device::cpu_with(streamgrad::CpuConfig::default());
        let (x, y) = (tensor(&[1.0, 2.0], device)?, tensor(&[3.0, 4.0], &other)?);
        let graph = Graph::capture(device, || {
            y.add_scalar_(1.0)?;
            Ok((x.add(&x)?, y.add(&y)?))
        })?;
        assert_eq!(values(&y)?, [4.0, 5.0]);
        for _ in 0..2 {
            let (on_device, on_other) = graph.replay()?;
            assert_eq!((values(&on_device)?, values(&on_other)?), (vec![2.0, 4.0], vec![8.0, 10.0]));
        }
        refused(Graph::capture(device, || x.add(&x)?.to_device(&other)));
        refused(Graph::capture(device, || y.add(&y)?.to_device(device)));
        works(device)?;
        works(&other)
    });
}

/// Its step there would run once, at the capture, and be counted at each replay.
#[test]
fn an_optimizer_of_two_devices_refuses_its_step() {
    each_device(&SCHEDULES, |device| {
        let other = Device::cpu_with(streamgrad::CpuConfig::default());
        let weights = [tensor(&[1.0], device)?, tensor(&[2.0], &other)?].map(Var::leaf);
        let mut sgd = Sgd::new(weights.to_vec(), 0.5)?;
        let gradients = || -> Result<_> {
            let mut all = weights[0].square()?.sum(&[], false)?.backward()?;
            all.merge(weights[1].square()?.sum(&[], false)?.backward()?)?;
            Ok(all)
        };
        refused(Graph::capture(device, || sgd.step(&gradients()?)));
        assert_eq!((values(weights[0].value())?, values(weights[1].value())?), (vec![1.0], vec![2.0]));
        sgd.step(&gradients()?)?;
        assert_eq!((values(weights[0].value())?, values(weights[1].value())?), (vec![0.0], vec![0.0]));
        works(device)
    });
}

/// A buffer that has one owner only has none that a step could be.
#[test]
fn a_buffer_that_cannot_be_shared_cannot_be_kept() -> Result<()> {
    let device = Device::cpu_with(streamgrad::CpuConfig::default());
    let stream = device.default_stream();
    let buffer = streamgrad::allocate(&stream, 64)?;
    refused(Graph::capture(&device, || stream.upload("upload", &buffer, 0, &[0; 4])));
    works(&device)
}
