//! What data parallel training would take on ranks that are not there, from a step that was measured.

use allocator::DeviceMemory;
use autograd::no_grad;
use comm::{Collective, CommModel, CommOptions, Communicator, DataParallel, DataParallelOptions, Reduce};
use device::{CommandKind, CommandRecord, Device, Error, Result};
use profile::{Profile, ProfileOptions};

use crate::Workload;
use models::Module;

/// What is measured, and for which network.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlanOptions {
    /// The device of each rank.
    pub device: Device,
    /// Rows of a rank's batch.
    pub batch: usize,
    /// Steps that are measured.
    pub steps: usize,
    /// Steps before them.
    pub warmup: usize,
    /// The seed of parameters and data.
    pub seed: u64,
    /// How gradients are averaged.
    pub parallel: DataParallelOptions,
    /// The network between the ranks.
    pub network: CommModel,
}

impl PlanOptions {
    /// The workload's own batch on `device`, and a network.
    pub fn new(workload: &dyn Workload, device: &Device, network: CommModel) -> PlanOptions {
        PlanOptions {
            device: device.clone(),
            batch: workload.info().batch,
            steps: 10,
            warmup: 10,
            seed: 7,
            parallel: DataParallelOptions::default(),
            network,
        }
    }
}

/// A measured step of one rank, from which those of many follow.
#[derive(Debug)]
#[non_exhaustive]
pub struct Plan {
    /// What was measured.
    pub options: PlanOptions,
    /// The measured steps, of a rank that is alone.
    pub profile: Profile,
    /// Bytes of the parameters.
    pub parameter_bytes: usize,
    /// The most memory that a rank had in use, with its buckets of gradients.
    pub peak_bytes: usize,
    /// Bytes of each collective of a step, in order.
    pub buckets: Vec<usize>,
}

/// A step of data parallel training as it is to be expected.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct PlannedStep {
    /// Ranks.
    pub ranks: usize,
    /// Milliseconds of a step.
    pub step_ms: f64,
    /// Milliseconds in which gradients are on the network.
    pub communication_ms: f64,
    /// Milliseconds by which the step is longer than that of one rank.
    pub exposed_ms: f64,
    /// The part of the speed of so many single ranks that is left.
    pub efficiency: f64,
    /// Rows of all ranks a second.
    pub rows_per_s: f64,
}

/// Measures steps of a workload on one rank that trains as one of many: its gradients go through buckets and collectives.
///
/// # Errors
/// `InvalidArgument` for no rows or steps, or a network without a positive bandwidth; `CommUnavailable` for a device on which
/// a rank cannot be alone; those of training.
pub fn plan(workload: &dyn Workload, options: &PlanOptions) -> Result<Plan> {
    let PlanOptions { device, batch, steps, warmup, seed, parallel, network } = options;
    crate::expect_positive("plan", [("batch", *batch), ("steps", *steps)])?;
    Error::require(network.bandwidth > 0.0, "plan", "bandwidth", "positive", network.bandwidth)?;
    let comms = Communicator::threads_with(std::slice::from_ref(device), CommOptions::default())?;
    let model = DataParallel::with_options(workload.model(*seed, device)?, &comms[0], *parallel)?;
    let mut optimizer = workload.optimizer(model.parameters(), 1)?;
    let (train, _) = workload.data_for(*batch, *seed, device)?;
    let mut batches = crate::workload::batches(workload, train, *batch, *seed, device)?;
    let mut step = || -> Result<()> {
        let Some(batch) = batches.next().transpose()? else { return Ok(()) };
        let batch = no_grad(|| model.model().prepare(batch))?;
        let loss = model.model().batch_loss(&batch)?;
        optimizer.step(&model.backward(&loss)?)
    };
    (0..*warmup).try_for_each(|_| step())?;
    device.synchronize()?;
    device.reset_peak_memory_stats();
    let profiler = Profile::start(device, ProfileOptions { places: false, ..ProfileOptions::default() })?;
    for _ in 0..*steps {
        step()?;
        profiler.step();
    }
    let profile = profiler.stop()?;
    let first_step = |recording: &device::Recording| -> Vec<usize> {
        let end = recording.steps.first().copied().unwrap_or(u64::MAX);
        let launched = recording.commands.iter().filter(|command| command.launch.start_ns < end);
        launched.filter_map(bucket_bytes).collect()
    };
    let buckets = profile.recordings().next().map(first_step).unwrap_or_default();
    let bytes = |parameter: &autograd::Var| parameter.value().elements() * parameter.dtype().size_bytes();
    Ok(Plan {
        options: options.clone(),
        profile,
        parameter_bytes: model.parameters().iter().map(bytes).sum(),
        peak_bytes: device.memory_stats().peak_allocated_bytes,
        buckets,
    })
}

/// The bytes of an average of gradients.
fn bucket_bytes(command: &CommandRecord) -> Option<usize> {
    match command.kind {
        CommandKind::Collective { bytes } if command.op == "all_reduce" => Some(bytes),
        _ => None,
    }
}

impl Plan {
    /// The step of `ranks` ranks: the measured one, with collectives that take what they would on the network. What waits for them waits
    /// longer, and what runs beside them hides them.
    pub fn at(&self, ranks: usize) -> PlannedStep {
        let alone_ms = self.step_ms(1);
        let step_ms = self.step_ms(ranks);
        let communication_ms = self.buckets.iter().map(|&bytes| self.network_ms(bytes, ranks)).sum();
        PlannedStep {
            ranks,
            step_ms,
            communication_ms,
            exposed_ms: step_ms - alone_ms,
            efficiency: alone_ms / step_ms,
            rows_per_s: 1e3 * (ranks * self.options.batch) as f64 / step_ms,
        }
    }

    fn step_ms(&self, ranks: usize) -> f64 {
        self.profile.what_if_took(|command| Some(self.network_ms(bucket_bytes(command)?, ranks)))
    }

    /// How long an average of so many bytes takes on the network.
    fn network_ms(&self, bytes: usize, ranks: usize) -> f64 {
        let collective = Collective::AllReduce(Reduce::Mean);
        1e3 * self.options.network.time(collective, bytes, ranks).as_secs_f64()
    }
}
