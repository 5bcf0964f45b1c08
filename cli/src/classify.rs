//! Small classifiers of the digits.

use autograd::Var;
use device::{Device, Result};

use compare::{Evaluation, Model, Workload, WorkloadInfo};

use super::lenet;
use models::{
    Batch, Digits, Forward, InMemory, Module, Optimizer, Sequential, Sgd, SgdOptions, cross_entropy, mlp,
};

/// A small network on the digits, trained by SGD with momentum.
pub(super) struct Classifier {
    info: WorkloadInfo,
    network: Network,
    /// The side of the images that the first layer reads.
    image: usize,
    lr: f64,
}

enum Network {
    /// A multi-layer perceptron of these sizes.
    Mlp(&'static [usize]),
    LeNet,
}

/// Odd and even batches of the digits on two lanes, with shared weights and one step for both.
pub(super) const TWO_BATCH: Classifier = Classifier {
    info: WorkloadInfo {
        compared_batch: 256,
        ..WorkloadInfo::new(
            "two-batch",
            "digits 64-128-10, even and odd batches on lanes of their own, one step for both",
            64,
            20,
        )
    },
    network: Network::Mlp(&[64, 128, 10]),
    image: 8,
    lr: 0.3,
};

/// The 784-256-256-10 perceptron, on digits enlarged to 28x28.
pub(super) const MLP: Classifier = Classifier {
    info: WorkloadInfo {
        compared_batch: 64,
        ..WorkloadInfo::new("mlp", "784-256-256-10 on digits enlarged to 28x28", 32, 10)
    },
    network: Network::Mlp(&[784, 256, 256, 10]),
    image: 28,
    lr: 0.05,
};

/// A convolutional network like LeNet, on digits enlarged to 28x28.
pub(super) const CNN: Classifier = Classifier {
    info: WorkloadInfo::new(
        "cnn",
        "convolutions of 5x5, maxima over 2x2, 400-120-84-10, on digits enlarged to 28x28",
        32,
        10,
    ),
    network: Network::LeNet,
    image: 28,
    lr: 0.05,
};

/// A network that gives a score for each class of a row.
#[derive(Module)]
struct Scores(#[module(flatten)] Sequential);

impl Model for Scores {
    fn batch_loss(&self, batch: &Batch) -> Result<Var> {
        batch.seeded(|| cross_entropy(&self.0.forward(&batch.input())?, &batch.labels))
    }

    fn evaluate(&self, data: &InMemory, device: &Device) -> Result<Evaluation> {
        let part = |batch: &Batch| super::by_class(&self.0.forward(&batch.input())?, batch);
        super::evaluate(self, data, EVALUATION_ROWS, device, part)
    }
}

/// Rows in one forward pass of an evaluation.
const EVALUATION_ROWS: usize = 512;
/// The share of the digits that is held out.
const TEST_FRACTION: f64 = 0.2;

impl Workload for Classifier {
    fn info(&self) -> WorkloadInfo {
        self.info
    }

    fn model(&self, seed: u64, device: &Device) -> Result<Box<dyn Model>> {
        let model = match self.network {
            Network::Mlp(sizes) => mlp(sizes, seed, device)?,
            Network::LeNet => lenet(seed, device)?,
        };
        Ok(Box::new(Scores(model)))
    }

    fn data_for(&self, _: usize, seed: u64, _: &Device) -> Result<(InMemory, InMemory)> {
        let digits = if self.image == 8 { Digits::load()? } else { Digits::enlarged(self.image)? };
        digits.split(TEST_FRACTION, seed)
    }

    fn optimizer(&self, parameters: Vec<Var>, lanes: usize) -> Result<Box<dyn Optimizer>> {
        super::expect_lanes(lanes)?;
        // The gradients of the lanes are added; the rate turns the sum into a mean.
        let options = SgdOptions { lr: self.lr / lanes as f64, momentum: 0.9, ..SgdOptions::default() };
        Ok(Box::new(Sgd::new(parameters, options)?))
    }
}
