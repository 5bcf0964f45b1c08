//! Models of synthetic images whose steps have parts that do not need each other.

use autograd::Var;
use device::{DType, Device, Error, Result};
use tensor::RandomKey;

use crate::{Evaluation, Model, Overlap, Scale, Workload, WorkloadInfo};

use super::classify::{EVALUATION_IMAGES, Prepare, Scores, images};
use super::{Branches, EncoderDecoder, Images, PyramidOptions, encoder, pixel_cross_entropy};
use models::data::augment::Augment;
use models::{Batch, Flatten, InMemory, Linear, Optimizer, Sgd, mlp};

const CLASSES: usize = 10;
/// The share of the images that is held out.
const TEST_FRACTION: f64 = 0.2;
/// The most images to train on that are made: of 256 by 256 they take a gigabyte.
const MOST_ROWS: usize = 1024;

/// Images, the held-out ones included: `least`, or enough for a larger batch.
fn rows(least: usize, batch: usize) -> Result<usize> {
    let value = format_args!("{batch} for {MOST_ROWS} rows");
    let is_valid = batch <= MOST_ROWS;
    Error::require(is_valid, "workload", "batch", "at most the number of images that are made", value)?;
    // A fifth is held out.
    Ok(least.max(batch + batch.div_ceil(4)))
}

/// A model that is trained on made-up images.
#[derive(Clone, Copy)]
pub(super) struct OnImages {
    info: WorkloadInfo,
    network: Network,
    /// The scale of the images; `None` for that of the device.
    scale: Option<Scale>,
    /// Images, the held-out ones included.
    rows: usize,
    lr: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Network {
    EncoderDecoder,
    Augmented,
    Copied,
    Branches,
}

/// A frozen encoder on one stream and a decoder that learns on another.
pub(super) const ENCODE_DECODE: OnImages = OnImages {
    info: WorkloadInfo {
        overlap: Overlap::Stages,
        ..WorkloadInfo::new(
            "encoder-decoder",
            "a frozen encoder, a batch ahead of the decoder that trains on a class for each pixel",
            8,
            4,
        )
    },
    network: Network::EncoderDecoder,
    scale: None,
    rows: 160,
    lr: 1e-3,
};

/// Augmentation on one stream and a classifier that learns on another.
pub(super) const AUGMENTED: OnImages = OnImages {
    info: WorkloadInfo {
        overlap: Overlap::Stages,
        compared_batch: 8,
        prepares_on_host: true,
        ..WorkloadInfo::new(
            "augment",
            "images augmented on the device, a batch ahead of the classifier that trains on them",
            32,
            4,
        )
    },
    network: Network::Augmented,
    ..ENCODE_DECODE
};

/// Images in pinned memory of the host: a batch is copied to the device while the model trains on the one before.
pub(super) const PREFETCHED: OnImages = OnImages {
    info: WorkloadInfo {
        overlap: Overlap::Stages,
        compared_batch: 64,
        ..WorkloadInfo::new(
            "prefetch",
            "images in pinned memory of the host, copied to the device a batch ahead of the perceptron that trains",
            32,
            4,
        )
    },
    network: Network::Copied,
    scale: Some(Scale::Small),
    rows: 320,
    lr: 1e-2,
};

/// Two branches of one model on two streams.
pub(super) const BRANCHED: OnImages = OnImages {
    info: WorkloadInfo {
        overlap: Overlap::Branches,
        ..WorkloadInfo::new(
            "branches",
            "two convolutions of one image, forward and backward on streams of their own",
            1,
            4,
        )
    },
    network: Network::Branches,
    scale: Some(Scale::Article),
    rows: 40,
    lr: 1e-1,
};

/// Those that have several scales, at each.
static SCALED: [[OnImages; 3]; 3] =
    [at_all_scales(ENCODE_DECODE), at_all_scales(AUGMENTED), at_all_scales(BRANCHED)];

const fn at_all_scales(one: OnImages) -> [OnImages; 3] {
    [
        OnImages { scale: Some(Scale::Tiny), ..one },
        OnImages { scale: Some(Scale::Small), ..one },
        OnImages { scale: Some(Scale::Article), ..one },
    ]
}

/// Units of the layer that reads images that are copied: its products take about as long on a GPU as the copy.
const HIDDEN: usize = 64;
/// Filters of a branch.
const FILTERS: usize = 64;

impl OnImages {
    fn size(&self, device: &Device) -> usize {
        self.scale.unwrap_or(Scale::of(device)).size()
    }
}

impl Workload for OnImages {
    fn info(&self) -> WorkloadInfo {
        self.info
    }

    fn source(&self, device: &Device) -> Device {
        if self.network == Network::Copied { device.host() } else { device.clone() }
    }

    fn scale(&self, device: &Device) -> Option<Scale> {
        (self.network != Network::Copied).then(|| self.scale.unwrap_or(Scale::of(device)))
    }

    fn at_scale(&self, scale: Scale) -> Option<&'static dyn Workload> {
        let is_same = |one: &&OnImages| one.network == self.network && one.scale == Some(scale);
        SCALED.iter().flatten().find(is_same).map(|one| one as &dyn Workload)
    }

    fn model(&self, seed: u64, device: &Device) -> Result<Box<dyn Model>> {
        let size = self.size(device);
        let options = PyramidOptions::of_size(size);
        Ok(match self.network {
            Network::EncoderDecoder => Box::new(EncoderDecoder::new(options, CLASSES, seed, device)?),
            Network::Augmented => {
                let key = RandomKey { seed, op: 2000 };
                let head = Linear::keyed(options.features()?, CLASSES, key, device)?;
                let network = encoder(options, seed, device)?.push(Flatten).push(head);
                let augment = Augment { seed, crop: [size / 2; 2], size: [size; 2], ..Augment::default() };
                Box::new(Scores { network: Box::new(network), prepare: Prepare::Augmented(augment) })
            }
            Network::Copied => {
                let network = mlp(&[3 * size * size, HIDDEN, CLASSES], seed, device)?;
                Box::new(Scores { network: Box::new(network), prepare: Prepare::Copied(device.clone()) })
            }
            Network::Branches => branches(seed, false, device)?,
        })
    }

    fn branched(&self, seed: u64, device: &Device) -> Result<Box<dyn Model>> {
        branches(seed, true, device)
    }

    fn data_for(&self, batch: usize, seed: u64, device: &Device) -> Result<(InMemory, InMemory)> {
        let (rows, size) = (rows(self.rows, batch)?, self.size(device));
        let images = Images { rows, size, classes: CLASSES, seed };
        let is_segmented = self.network == Network::EncoderDecoder;
        let images = if is_segmented { images.segmented()? } else { images.labelled()? };
        images.split(TEST_FRACTION, seed)
    }

    fn optimizer(&self, parameters: Vec<Var>, lanes: usize) -> Result<Box<dyn Optimizer>> {
        super::expect_lanes(lanes)?;
        // The gradients of the lanes are added; the rate turns the sum into a mean.
        Ok(Box::new(Sgd::new(parameters, self.lr / lanes as f64)?))
    }
}

fn branches(seed: u64, concurrent: bool, device: &Device) -> Result<Box<dyn Model>> {
    let network = Branches::new(FILTERS, CLASSES, seed, concurrent, device)?;
    Ok(Box::new(Scores { network: Box::new(network), prepare: Prepare::Images }))
}

impl Model for EncoderDecoder {
    /// Encodes the images.
    fn prepare(&self, batch: Batch) -> Result<Batch> {
        Ok(Batch { inputs: self.encode(&images(&batch)?)?, ..batch })
    }

    fn batch_loss(&self, batch: &Batch) -> Result<Var> {
        pixel_cross_entropy(&self.decode(&batch.inputs)?, &batch.labels)
    }

    /// The mean loss and the share of pixels that are classified correctly.
    fn evaluate(&self, data: &InMemory, device: &Device) -> Result<Evaluation> {
        let part = |batch: &Batch| {
            let batch = self.prepare(batch.clone())?;
            let scores = self.decode(&batch.inputs)?;
            let told = scores.value().argmax(1, false)?.reshape(batch.labels.shape())?;
            let right = told.eq(&batch.labels)?.to_dtype(DType::I64)?.sum(&[], false)?;
            let loss = pixel_cross_entropy(&scores, &batch.labels)?;
            Ok((loss.value().clone(), right, batch.labels.elements()))
        };
        super::evaluate(self, data, EVALUATION_IMAGES, device, part)
    }
}
