//! Small classifiers of the digits.

use autograd::Var;
use device::{Device, Result};
use tensor::Tensor;

use crate::{Evaluation, Model, Workload, WorkloadInfo};

use super::lenet;
use models::data::augment::Augment;
use models::{
    Batch, Digits, Forward, InMemory, Module, Optimizer, Sgd, SgdOptions, correct, cross_entropy, mlp,
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

/// A network that scores the classes of a row or an image.
#[derive(Module)]
pub(super) struct Scores {
    #[module(flatten)]
    pub(super) network: Box<dyn Forward>,
    #[module(skip)]
    pub(super) prepare: Prepare,
}

/// What prepares the batches of [`Scores`].
pub(super) enum Prepare {
    /// Nothing: the network takes rows.
    Rows,
    /// Gives them the shape of images.
    Images,
    /// Augments the images, with random numbers of the batch.
    Augmented(Augment),
    /// Copies the batch to the device.
    Copied(Device),
}

/// The images of a batch, `[n, 3, s, s]`.
pub(super) fn images(batch: &Batch) -> Result<Tensor> {
    let size = (batch.inputs.elements() / batch.len().max(1) / 3).isqrt();
    batch.inputs.reshape(&[batch.len(), 3, size, size])
}

impl Model for Scores {
    fn prepare(&self, batch: Batch) -> Result<Batch> {
        let inputs = match &self.prepare {
            Prepare::Rows => return Ok(batch),
            Prepare::Images => images(&batch)?,
            Prepare::Augmented(augment) => augment.apply(&images(&batch)?, batch.key)?,
            Prepare::Copied(device) => {
                // On a CPU the copy is one within its memory.
                let upload = |x: &Tensor| if x.device() == device { x.copy() } else { x.to_device(device) };
                return Ok(Batch { inputs: upload(&batch.inputs)?, labels: upload(&batch.labels)?, ..batch });
            }
        };
        Ok(Batch { inputs, ..batch })
    }

    fn batch_loss(&self, batch: &Batch) -> Result<Var> {
        batch.seeded(|| cross_entropy(&self.network.forward(&batch.input())?, &batch.labels))
    }

    fn evaluate(&self, data: &InMemory, device: &Device) -> Result<Evaluation> {
        let takes_images = matches!(self.prepare, Prepare::Images | Prepare::Augmented(_));
        let rows = if matches!(self.prepare, Prepare::Rows) { EVALUATION_ROWS } else { EVALUATION_IMAGES };
        let part = |batch: &Batch| {
            let input = if takes_images { images(batch)?.into() } else { batch.input() };
            let (scores, labels) = (self.network.forward(&input)?, &batch.labels);
            let loss = cross_entropy(&scores, labels)?;
            Ok((loss.value().clone(), correct(scores.value(), labels)?, batch.len()))
        };
        super::evaluate(self, data, rows, device, part)
    }
}

/// Rows and images in one forward pass of an evaluation.
const EVALUATION_ROWS: usize = 512;
pub(super) const EVALUATION_IMAGES: usize = 8;
/// The share of the digits that is held out.
const TEST_FRACTION: f64 = 0.2;

impl Workload for Classifier {
    fn info(&self) -> WorkloadInfo {
        self.info
    }

    fn model(&self, seed: u64, device: &Device) -> Result<Box<dyn Model>> {
        let network = match self.network {
            Network::Mlp(sizes) => mlp(sizes, seed, device)?,
            Network::LeNet => lenet(seed, device)?,
        };
        Ok(Box::new(Scores { network: Box::new(network), prepare: Prepare::Rows }))
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
