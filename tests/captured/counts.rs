//! How many commands the captured step of a workload on two batches is: each costs a launch.

use super::workloads::{Program, batches, each};
use crate::common::devices::Kind;
use streamgrad::{Graph, GraphOptions, Result, Schedule};

/// The most commands of a step, fused, on a CPU and on CUDA.
const MOST: [(&str, usize, usize); 5] =
    [("two-batch", 17, 19), ("mlp", 25, 29), ("cnn", 49, 57), ("gpt", 77, 85), ("dlrm", 97, 107)];

/// `--nocapture` shows them.
#[test]
fn steps_of_workloads_are_few_commands() {
    each(&Kind::all(&[Schedule::Inline]), |workload, device, data| {
        let Some((name, on_cpu, on_cuda)) = MOST.iter().find(|(name, ..)| *name == workload.name()) else {
            return Ok(());
        };
        let program = Program::new(workload, 1, device)?;
        let batches = batches(&program, data, 0)?;
        let step = || -> Result<()> {
            let step = program.lanes.step(&batches, |batch| program.model.batch_loss(batch))?;
            program.optimizer.borrow_mut().step(&step.gradients)
        };
        for fuse in [false, true] {
            let graph = Graph::capture_with(device, GraphOptions { fuse, ..GraphOptions::default() }, step)?;
            println!("{name}, {device:?}, fuse {fuse}: {}", graph.report());
            for (at, command) in graph.commands().iter().enumerate() {
                println!("{at:4} {:28} after {:?}", command.op, command.needs);
            }
            let most = if device.runs_on_host() { on_cpu } else { on_cuda };
            assert!(!fuse || graph.report().commands <= *most, "{name}, {device:?}: {}", graph.report());
        }
        Ok(())
    });
}
