//! An encoder of images to vectors, and a decoder back to a class for each pixel.

use autograd::{Reduction, Var, no_grad};
use device::{Device, Error, Result};
use tensor::{RandomKey, Tensor};

use models::{Conv2d, Conv2dOptions, ConvTranspose2d, Forward, Module, Parts, Relu, Sequential};

/// The sizes of an encoder and of its decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PyramidOptions {
    /// Channels of the first layer; each level has twice as many.
    pub width: usize,
    /// Levels, each of which halves height and width.
    pub levels: usize,
}

impl PyramidOptions {
    /// The levels that make one pixel of images of this size, which is a power of two, with 16 channels at first.
    pub fn of_size(size: usize) -> PyramidOptions {
        PyramidOptions { width: 16, levels: size.max(1).ilog2() as usize }
    }

    /// Channels of a level, 0 being the first layer's.
    ///
    /// # Errors
    /// `InvalidArgument` for no width, and for more channels than can be counted.
    fn channels(&self, level: usize) -> Result<usize> {
        let wide = u32::try_from(level).ok().and_then(|level| self.width.checked_shl(level));
        let wide = wide.filter(|&wide| wide > 0 && wide >> level == self.width);
        let expected = "a width of at least 1 that can be doubled at each level";
        wide.ok_or_else(|| Error::invalid("pyramid", "options", expected, format_args!("{self:?}")))
    }

    /// Channels behind the last level.
    ///
    /// # Errors
    /// `InvalidArgument` for no width, and for more channels than can be counted.
    pub fn features(&self) -> Result<usize> {
        self.channels(self.levels)
    }
}

/// A convolution of 1x1 to `width` channels, then, at each level, a ReLU and a convolution of 2x2 that moves by 2 to twice the
/// channels; keyed by `seed`.
///
/// Shapes: `[n, 3, h, w] -> [n, width 2^levels, h / 2^levels, w / 2^levels]`.
///
/// # Errors
/// `InvalidArgument` as for [`PyramidOptions::features`]; `OutOfMemory`.
pub fn encoder(options: PyramidOptions, seed: u64, device: &Device) -> Result<Sequential> {
    options.features()?;
    let key = |level: usize| Some(RandomKey { seed, op: level as u64 });
    let first = Conv2dOptions { key: key(0), ..Conv2dOptions::default() };
    let mut layers =
        Sequential::new().push(Conv2d::with_options(3, options.channels(0)?, [1, 1], first, device)?);
    for level in 0..options.levels {
        let halve = Conv2dOptions { stride: [2, 2], key: key(level + 1), ..Conv2dOptions::default() };
        let (from, to) = (options.channels(level)?, options.channels(level + 1)?);
        layers = layers.push(Relu).push(Conv2d::with_options(from, to, [2, 2], halve, device)?);
    }
    Ok(layers)
}

/// The way back: at each level a transposed convolution of 2x2 that moves by 2 to half the channels, and a ReLU; at last a
/// convolution of 3x3 to a score for each class and pixel; keyed by `seed`.
///
/// Shapes: `[n, width 2^levels, h, w] -> [n, classes, h 2^levels, w 2^levels]`.
///
/// # Errors
/// As for [`encoder`].
pub fn decoder(options: PyramidOptions, classes: usize, seed: u64, device: &Device) -> Result<Sequential> {
    options.features()?;
    let key = |level: usize| Some(RandomKey { seed, op: 1000 + level as u64 });
    let mut layers = Sequential::new();
    for level in (0..options.levels).rev() {
        let double = Conv2dOptions { stride: [2, 2], key: key(level + 1), ..Conv2dOptions::default() };
        let (from, to) = (options.channels(level + 1)?, options.channels(level)?);
        layers = layers.push(ConvTranspose2d::with_options(from, to, [2, 2], double, device)?).push(Relu);
    }
    let same = Conv2dOptions { padding: [1, 1], key: key(0), ..Conv2dOptions::default() };
    Ok(layers.push(Conv2d::with_options(options.channels(0)?, classes, [3, 3], same, device)?))
}

/// A frozen encoder and a decoder that learns. The encoder's numbers are buffers: saved with the model, and without gradient.
pub struct EncoderDecoder {
    encoder: Sequential,
    frozen: Vec<(String, Tensor)>,
    decoder: Sequential,
}

impl EncoderDecoder {
    /// Both with their first values keyed by `seed`.
    ///
    /// # Errors
    /// As for [`encoder`].
    pub fn new(
        options: PyramidOptions,
        classes: usize,
        seed: u64,
        device: &Device,
    ) -> Result<EncoderDecoder> {
        let encoder = encoder(options, seed, device)?;
        let named = encoder.named_parameters().into_iter();
        let frozen = named.map(|(name, parameter)| (format!("encoder.{name}"), parameter.value().clone()));
        Ok(EncoderDecoder {
            frozen: frozen.collect(),
            encoder,
            decoder: decoder(options, classes, seed, device)?,
        })
    }

    /// The features of images, without gradient.
    ///
    /// # Errors
    /// Those of the encoder's ops.
    pub fn encode(&self, images: &Tensor) -> Result<Tensor> {
        no_grad(|| self.encoder.forward(&Var::constant(images.clone())))
            .map(|features| features.value().clone())
    }

    /// The scores of each pixel of the images with these features.
    ///
    /// # Errors
    /// Those of the decoder's ops.
    pub fn decode(&self, features: &Tensor) -> Result<Var> {
        self.decoder.forward(&Var::constant(features.clone()))
    }
}

impl Forward for EncoderDecoder {
    fn forward(&self, input: &Var) -> Result<Var> {
        self.decode(&self.encode(input.value())?)
    }
}

impl Module for EncoderDecoder {
    fn parts<'a>(&'a self, parts: &mut Parts<'a>) {
        for (name, tensor) in &self.frozen {
            parts.buffer(name.clone(), tensor);
        }
        parts.child("decoder", &self.decoder);
    }
}

/// The mean cross-entropy of each pixel's scores, `[n, c, h, w]`, with labels `[n, h, w]` or `[n, h w]`.
///
/// # Errors
/// Those of [`Var::cross_entropy`]; `ShapeMismatch` for scores of another rank.
pub fn pixel_cross_entropy(scores: &Var, labels: &Tensor) -> Result<Var> {
    let &[n, _, height, width] = scores.shape() else {
        return Err(Error::shape_mismatch(
            "cross_entropy",
            "scores must be [n, c, h, w]",
            scores.shape(),
            labels.shape(),
        ));
    };
    scores.cross_entropy(&labels.reshape(&[n, height, width])?, Reduction::Mean)
}

#[cfg(test)]
mod tests {
    use device::DType;

    use super::*;
    use device::ErrorKind;

    fn count(module: &dyn Module) -> usize {
        module.parameters().iter().map(|parameter| parameter.value().elements()).sum()
    }

    #[test]
    fn parameters_are_those_of_the_article() {
        let (device, options) = (Device::cpu(), PyramidOptions::of_size(256));
        assert_eq!((options.levels, options.features().unwrap()), (8, 4096));
        assert_eq!(count(&encoder(options, 1, &device).unwrap()), 44_746_784);
        assert_eq!(count(&decoder(options, 10, 1, &device).unwrap()), 44_744_090);
    }

    fn small(device: &Device) -> EncoderDecoder {
        EncoderDecoder::new(PyramidOptions { width: 4, levels: 3 }, 5, 1, device).unwrap()
    }

    #[test]
    fn shapes_go_down_and_up_again_and_only_the_decoder_learns() {
        let device = Device::cpu();
        let model = small(&device);
        let images = Tensor::rand(&[2, 3, 16, 8], DType::F32, RandomKey { seed: 1, op: 0 }, &device).unwrap();
        let features = model.encode(&images).unwrap();
        assert_eq!(features.shape(), [2, 32, 2, 1]);
        let scores = model.forward(&Var::constant(images)).unwrap();
        assert_eq!(scores.shape(), [2, 5, 16, 8]);
        let again = model.decode(&features).unwrap();
        assert_eq!(scores.value().to_vec::<f32>().unwrap(), again.value().to_vec::<f32>().unwrap());
        let labels = Tensor::zeros(&[2, 128], DType::I64, &device).unwrap();
        let gradients = pixel_cross_entropy(&scores, &labels).unwrap().backward().unwrap();
        assert!(model.decoder.parameters().iter().all(|parameter| gradients.get(parameter).is_some()));
        assert!(model.encoder.parameters().iter().all(|parameter| gradients.get(parameter).is_none()));
        assert_eq!(model.parameters().len(), model.decoder.parameters().len());
        let buffers = model.named_buffers();
        assert_eq!((buffers.len(), buffers[0].0.as_str()), (8, "encoder.0.weight"));
    }

    #[test]
    fn bad_sizes_and_labels_are_errors() {
        let device = Device::cpu();
        for options in [PyramidOptions { width: 0, levels: 1 }, PyramidOptions { width: 16, levels: 70 }] {
            assert!(
                matches!(
                    options.features().as_ref().map_err(Error::kind),
                    Err(ErrorKind::InvalidArgument { .. })
                ),
                "{options:?}"
            );
            assert!(encoder(options, 1, &device).is_err());
        }
        let scores = Var::constant(Tensor::zeros(&[2, 5, 4, 4], DType::F32, &device).unwrap());
        let labels = Tensor::zeros(&[2, 15], DType::I64, &device).unwrap();
        assert!(pixel_cross_entropy(&scores, &labels).is_err());
        let flat = scores.reshape(&[2, 80]).unwrap();
        assert!(matches!(
            pixel_cross_entropy(&flat, &labels).as_ref().map_err(Error::kind),
            Err(ErrorKind::ShapeMismatch { .. })
        ));
    }
}
