//! Models of synthetic images whose steps have parts that do not need each other.

use autograd::Var;
use device::{DType, Device, Error, Result};
use tensor::{RandomKey, Tensor};

use compare::{Evaluation, Model, Overlap, Scale, Workload};

use super::{Branches, EncoderDecoder, Images, PyramidOptions, encoder, pixel_cross_entropy};
use models::data::augment::Augment;
use models::{
    Batch, Flatten, Forward, InMemory, Linear, Module, Optimizer, Sequential, Sgd, cross_entropy, mlp,
};

const CLASSES: usize = 10;
/// The share of the images that is held out.
const TEST_FRACTION: f64 = 0.2;
/// Images in one forward pass of an evaluation.
const EVALUATION_ROWS: usize = 8;
/// Images, the held-out ones included.
const ROWS: usize = 160;
/// The most images to train on that are made: of 256 by 256 they take a gigabyte.
const MOST_ROWS: usize = 1024;

/// Images, the held-out ones included: `least`, or enough for a larger batch.
fn rows(least: usize, batch: usize) -> Result<usize> {
    if batch > MOST_ROWS {
        let value = format_args!("{batch} for {MOST_ROWS} rows");
        return Err(Error::invalid("workload", "batch", "at most the number of images that are made", value));
    }
    // A fifth is held out.
    Ok(least.max(batch + batch.div_ceil(4)))
}

/// The images of a batch, `[n, 3, s, s]`.
fn images(batch: &Batch) -> Result<Tensor> {
    let size = (batch.inputs.elements() / batch.len().max(1) / 3).isqrt();
    batch.inputs.reshape(&[batch.len(), 3, size, size])
}

fn sgd(parameters: Vec<Var>, lr: f64, lanes: usize) -> Result<Box<dyn Optimizer>> {
    super::expect_lanes(lanes)?;
    // The gradients of the lanes are added; the rate turns the sum into a mean.
    Ok(Box::new(Sgd::new(parameters, lr / lanes as f64)?))
}

/// A frozen encoder on one stream and a decoder that learns on another, at the device's scale or another one.
pub(super) struct EncodeDecode(pub(super) Option<Scale>);

impl EncodeDecode {
    fn size(&self, device: &Device) -> usize {
        self.0.unwrap_or(Scale::of(device)).size()
    }
}

impl Model for EncoderDecoder {
    /// Encodes the images.
    fn prepare(&self, batch: Batch) -> Result<Batch> {
        Ok(Batch { inputs: self.encode(&images(&batch)?)?, ..batch })
    }

    fn batch_loss(&self, batch: &Batch) -> Result<Var> {
        pixel_cross_entropy(&self.decode(&batch.inputs)?, &batch.labels)
    }

    /// The mean loss and the share of pixels that are told.
    fn evaluate(&self, data: &InMemory, device: &Device) -> Result<Evaluation> {
        let part = |batch: &Batch| {
            let batch = self.prepare(batch.clone())?;
            let scores = self.decode(&batch.inputs)?;
            let told = scores.value().argmax(1, false)?.reshape(batch.labels.shape())?;
            let right = told.eq(&batch.labels)?.to_dtype(DType::I64)?.sum(&[], false)?;
            let loss = pixel_cross_entropy(&scores, &batch.labels)?;
            Ok((loss.value().clone(), right, batch.labels.elements()))
        };
        super::evaluate(self, data, EVALUATION_ROWS, device, part)
    }
}

impl Workload for EncodeDecode {
    fn name(&self) -> &'static str {
        "encoder-decoder"
    }

    fn about(&self) -> &'static str {
        "a frozen encoder, a batch ahead of the decoder that trains on a class for each pixel"
    }

    fn default_batch(&self) -> usize {
        8
    }

    fn default_epochs(&self) -> u64 {
        4
    }

    fn overlap(&self) -> Overlap {
        Overlap::Stages
    }

    fn scale(&self, device: &Device) -> Option<Scale> {
        Some(self.0.unwrap_or(Scale::of(device)))
    }

    fn at_scale(&self, scale: Scale) -> Option<&'static dyn Workload> {
        Some(match scale {
            Scale::Tiny => &EncodeDecode(Some(Scale::Tiny)),
            Scale::Small => &EncodeDecode(Some(Scale::Small)),
            Scale::Article => &EncodeDecode(Some(Scale::Article)),
        })
    }

    fn model(&self, seed: u64, device: &Device) -> Result<Box<dyn Model>> {
        let options = PyramidOptions::of_size(self.size(device));
        Ok(Box::new(EncoderDecoder::new(options, CLASSES, seed, device)?))
    }

    fn data(&self, seed: u64, device: &Device) -> Result<(InMemory, InMemory)> {
        self.data_for(1, seed, device)
    }

    fn data_for(&self, batch: usize, seed: u64, device: &Device) -> Result<(InMemory, InMemory)> {
        let images = Images { rows: rows(ROWS, batch)?, size: self.size(device), classes: CLASSES, seed };
        images.segmented()?.split(TEST_FRACTION, seed)
    }

    fn optimizer(&self, parameters: Vec<Var>, lanes: usize) -> Result<Box<dyn Optimizer>> {
        sgd(parameters, 1e-3, lanes)
    }
}

/// Augmentation on one stream and a classifier that learns on another, at the device's scale or another one.
pub(super) struct Augmented(pub(super) Option<Scale>);

impl Augmented {
    fn size(&self, device: &Device) -> usize {
        self.0.unwrap_or(Scale::of(device)).size()
    }
}

/// The encoder with a linear layer behind it, on augmented images.
#[derive(Module)]
struct Classifier {
    #[module(flatten)]
    network: Sequential,
    #[module(skip)]
    augment: Augment,
}

impl Model for Classifier {
    /// Augments the images, with random numbers of the batch.
    fn prepare(&self, batch: Batch) -> Result<Batch> {
        Ok(Batch { inputs: self.augment.apply(&images(&batch)?, batch.key)?, ..batch })
    }

    fn batch_loss(&self, batch: &Batch) -> Result<Var> {
        cross_entropy(&self.network.forward(&batch.input())?, &batch.labels)
    }

    fn evaluate(&self, data: &InMemory, device: &Device) -> Result<Evaluation> {
        let part = |batch: &Batch| super::by_class(&self.network.forward(&images(batch)?.into())?, batch);
        super::evaluate(self, data, EVALUATION_ROWS, device, part)
    }
}

impl Workload for Augmented {
    fn name(&self) -> &'static str {
        "augment"
    }

    fn about(&self) -> &'static str {
        "images augmented on the device, a batch ahead of the classifier that trains on them"
    }

    fn default_batch(&self) -> usize {
        32
    }

    fn compared_batch(&self) -> usize {
        8
    }

    fn default_epochs(&self) -> u64 {
        4
    }

    fn overlap(&self) -> Overlap {
        Overlap::Stages
    }

    fn prepares_on_host(&self) -> bool {
        true
    }

    fn scale(&self, device: &Device) -> Option<Scale> {
        Some(self.0.unwrap_or(Scale::of(device)))
    }

    fn at_scale(&self, scale: Scale) -> Option<&'static dyn Workload> {
        Some(match scale {
            Scale::Tiny => &Augmented(Some(Scale::Tiny)),
            Scale::Small => &Augmented(Some(Scale::Small)),
            Scale::Article => &Augmented(Some(Scale::Article)),
        })
    }

    fn model(&self, seed: u64, device: &Device) -> Result<Box<dyn Model>> {
        let size = self.size(device);
        let options = PyramidOptions::of_size(size);
        let head = Linear::keyed(options.features()?, CLASSES, RandomKey { seed, op: 2000 }, device)?;
        let network = encoder(options, seed, device)?.push(Flatten).push(head);
        let augment = Augment { seed, crop: [size / 2; 2], size: [size; 2], ..Augment::default() };
        Ok(Box::new(Classifier { network, augment }))
    }

    fn data(&self, seed: u64, device: &Device) -> Result<(InMemory, InMemory)> {
        self.data_for(1, seed, device)
    }

    fn data_for(&self, batch: usize, seed: u64, device: &Device) -> Result<(InMemory, InMemory)> {
        let images = Images { rows: rows(ROWS, batch)?, size: self.size(device), classes: CLASSES, seed };
        images.labelled()?.split(TEST_FRACTION, seed)
    }

    fn optimizer(&self, parameters: Vec<Var>, lanes: usize) -> Result<Box<dyn Optimizer>> {
        sgd(parameters, 1e-3, lanes)
    }
}

/// Images that wait on the host: a batch is copied to the device while the model trains on the one before.
pub(super) struct Prefetched;

/// Height and width of images that are copied.
const COPIED_SIZE: usize = 64;
/// Units of the layer that reads them: its products take about as long on a GPU as the copy.
const HIDDEN: usize = 64;

/// A perceptron, and the device that batches are copied to.
#[derive(Module)]
struct Copied {
    #[module(flatten)]
    network: Sequential,
    #[module(skip)]
    device: Device,
}

impl Copied {
    /// On a CPU the copy is one within its memory.
    fn upload(&self, x: &Tensor) -> Result<Tensor> {
        if *x.device() == self.device { x.copy() } else { x.to_device(&self.device) }
    }
}

impl Model for Copied {
    /// Copies the batch to the device.
    fn prepare(&self, batch: Batch) -> Result<Batch> {
        Ok(Batch { inputs: self.upload(&batch.inputs)?, labels: self.upload(&batch.labels)?, ..batch })
    }

    fn batch_loss(&self, batch: &Batch) -> Result<Var> {
        cross_entropy(&self.network.forward(&batch.input())?, &batch.labels)
    }

    fn evaluate(&self, data: &InMemory, device: &Device) -> Result<Evaluation> {
        let part = |batch: &Batch| super::by_class(&self.network.forward(&batch.input())?, batch);
        super::evaluate(self, data, EVALUATION_ROWS, device, part)
    }
}

impl Workload for Prefetched {
    fn name(&self) -> &'static str {
        "prefetch"
    }

    fn about(&self) -> &'static str {
        "images in pinned memory of the host, copied to the device a batch ahead of the perceptron that trains"
    }

    fn default_batch(&self) -> usize {
        32
    }

    fn compared_batch(&self) -> usize {
        64
    }

    fn default_epochs(&self) -> u64 {
        4
    }

    fn overlap(&self) -> Overlap {
        Overlap::Stages
    }

    fn source(&self, device: &Device) -> Device {
        device.host()
    }

    fn model(&self, seed: u64, device: &Device) -> Result<Box<dyn Model>> {
        let network = mlp(&[3 * COPIED_SIZE * COPIED_SIZE, HIDDEN, CLASSES], seed, device)?;
        Ok(Box::new(Copied { network, device: device.clone() }))
    }

    fn data(&self, seed: u64, device: &Device) -> Result<(InMemory, InMemory)> {
        self.data_for(1, seed, device)
    }

    fn data_for(&self, batch: usize, seed: u64, _: &Device) -> Result<(InMemory, InMemory)> {
        let images = Images { rows: rows(2 * ROWS, batch)?, size: COPIED_SIZE, classes: CLASSES, seed };
        images.labelled()?.split(TEST_FRACTION, seed)
    }

    fn optimizer(&self, parameters: Vec<Var>, lanes: usize) -> Result<Box<dyn Optimizer>> {
        sgd(parameters, 1e-2, lanes)
    }
}

/// Two branches of one model on two streams, at the article's scale or another one.
pub(super) struct Branched(pub(super) Scale);

/// Filters of a branch.
const FILTERS: usize = 64;

impl Model for Branches {
    fn prepare(&self, batch: Batch) -> Result<Batch> {
        Ok(Batch { inputs: images(&batch)?, ..batch })
    }

    fn batch_loss(&self, batch: &Batch) -> Result<Var> {
        cross_entropy(&self.forward(&batch.input())?, &batch.labels)
    }

    fn evaluate(&self, data: &InMemory, device: &Device) -> Result<Evaluation> {
        let part = |batch: &Batch| super::by_class(&self.forward(&images(batch)?.into())?, batch);
        super::evaluate(self, data, EVALUATION_ROWS, device, part)
    }
}

impl Workload for Branched {
    fn name(&self) -> &'static str {
        "branches"
    }

    fn about(&self) -> &'static str {
        "two convolutions of one image, forward and backward on streams of their own"
    }

    fn default_batch(&self) -> usize {
        1
    }

    fn default_epochs(&self) -> u64 {
        4
    }

    fn overlap(&self) -> Overlap {
        Overlap::Branches
    }

    fn scale(&self, _: &Device) -> Option<Scale> {
        Some(self.0)
    }

    fn at_scale(&self, scale: Scale) -> Option<&'static dyn Workload> {
        Some(match scale {
            Scale::Tiny => &Branched(Scale::Tiny),
            Scale::Small => &Branched(Scale::Small),
            Scale::Article => &Branched(Scale::Article),
        })
    }

    fn model(&self, seed: u64, device: &Device) -> Result<Box<dyn Model>> {
        Ok(Box::new(Branches::new(FILTERS, CLASSES, seed, false, device)?))
    }

    fn branched(&self, seed: u64, device: &Device) -> Result<Box<dyn Model>> {
        Ok(Box::new(Branches::new(FILTERS, CLASSES, seed, true, device)?))
    }

    fn data(&self, seed: u64, device: &Device) -> Result<(InMemory, InMemory)> {
        self.data_for(1, seed, device)
    }

    fn data_for(&self, batch: usize, seed: u64, _: &Device) -> Result<(InMemory, InMemory)> {
        let images = Images { rows: rows(ROWS / 4, batch)?, size: self.0.size(), classes: CLASSES, seed };
        images.labelled()?.split(TEST_FRACTION, seed)
    }

    fn optimizer(&self, parameters: Vec<Var>, lanes: usize) -> Result<Box<dyn Optimizer>> {
        sgd(parameters, 1e-1, lanes)
    }
}
