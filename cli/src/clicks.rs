//! Clicks on advertisements, made up.

use autograd::{Reduction, Var};
use device::{DType, Device, Result};
use tensor::Tensor;

use crate::{Evaluation, Model, Workload, WorkloadInfo};

use super::{ClickLog, ClickOptions, Dlrm, DlrmOptions};
use models::{Adam, Batch, InMemory, Module, Optimizer};

/// A model of dense and categorical features on a log of clicks, trained by Adam.
pub(super) struct Clicks;

/// The share of the log that is held out.
const TEST_FRACTION: f64 = 0.2;
/// Rows in one forward pass of an evaluation.
const EVALUATION_ROWS: usize = 1000;

/// A [`Dlrm`] of the logarithms of its dense features.
#[derive(Module)]
struct ClickModel(#[module(flatten)] Dlrm);

impl ClickModel {
    /// Scores and targets of a prepared batch.
    fn scores(&self, batch: &Batch) -> Result<(Var, Tensor)> {
        Ok((self.0.scores(&batch.input(), &batch.bags)?, batch.labels.to_dtype(DType::F32)?))
    }
}

impl Model for ClickModel {
    /// Takes `ln(1 + x)` of the dense features.
    fn prepare(&self, batch: Batch) -> Result<Batch> {
        Ok(Batch { inputs: batch.inputs.add_scalar(1.0)?.log()?, ..batch })
    }

    fn batch_loss(&self, batch: &Batch) -> Result<Var> {
        let (scores, targets) = self.scores(batch)?;
        scores.bce_with_logits(&Var::constant(targets), Reduction::Mean)
    }

    /// The mean loss, and the share of rows whose chance of a click is above one half just when there was one.
    fn evaluate(&self, data: &InMemory, device: &Device) -> Result<Evaluation> {
        let part = |batch: &Batch| {
            let batch = self.prepare(batch.clone())?;
            let (scores, targets) = self.scores(&batch)?;
            let told = scores.value().gt(0.0)?.to_dtype(DType::F32)?;
            let right = told.eq(&targets)?.to_dtype(DType::I64)?.sum(&[], false)?;
            let loss = scores.bce_with_logits(&Var::constant(targets), Reduction::Mean)?;
            Ok((loss.value().clone(), right, batch.len()))
        };
        super::evaluate(self, data, EVALUATION_ROWS, device, part)
    }
}

impl Workload for Clicks {
    fn info(&self) -> WorkloadInfo {
        let about =
            "chances of clicks from 4 dense and 6 categorical features with several values each, Adam";
        WorkloadInfo { compared_batch: 256, ..WorkloadInfo::new("dlrm", about, 128, 3) }
    }

    fn model(&self, seed: u64, device: &Device) -> Result<Box<dyn Model>> {
        let ClickOptions { dense, categories, .. } = ClickOptions::default();
        let options = DlrmOptions { dense, categories, width: 16, bottom: vec![64], top: vec![64, 32] };
        Ok(Box::new(ClickModel(Dlrm::new(&options, seed, device)?)))
    }

    fn data_for(&self, _: usize, seed: u64, _: &Device) -> Result<(InMemory, InMemory)> {
        ClickLog::new(&ClickOptions::default())?.data().split(TEST_FRACTION, seed)
    }

    fn optimizer(&self, parameters: Vec<Var>, lanes: usize) -> Result<Box<dyn Optimizer>> {
        super::expect_lanes(lanes)?;
        // A step of Adam is as long for a sum of gradients as for their mean.
        Ok(Box::new(Adam::new(parameters, 3e-3)?))
    }
}
