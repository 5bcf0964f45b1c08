//! Augmentation of images on their device: each sample of a batch with parameters of its own, all in one kernel a step.
//!
//! Images are `[n, channels, height, width]` in F32. Nothing here has a gradient, and nothing waits. The random numbers of a
//! sample depend on the seed and the sample's number alone: not on the device, the batch or the stream.

use device::{DType, Error, Result};
use tensor::{Sampling, Tensor, philox};

/// Crop, resize, rotate, blur and normalise, in this order, with random numbers of a seed.
///
/// ```
/// use models::data::augment::Augment;
/// use tensor::{DType, Device, Tensor};
/// # fn main() -> device::Result<()> {
/// let images = Tensor::rand(&[4, 3, 32, 32], DType::F32, None, &Device::cpu())?;
/// let augment = Augment { crop: [24, 24], size: [32, 32], ..Augment::default() };
/// let (all, last) = (augment.apply(&images, 100)?, augment.apply(&images.narrow(0, 3, 1)?, 103)?);
/// assert_eq!(all.shape(), [4, 3, 32, 32]);
/// assert_eq!(all.narrow(0, 3, 1)?.to_vec::<f32>()?, last.to_vec::<f32>()?); // a sample does not see its batch
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Augment {
    /// Where the random numbers begin.
    pub seed: u64,
    /// Height and width of the part that is cut out at random.
    pub crop: [usize; 2],
    /// Height and width that it is resized to.
    pub size: [usize; 2],
    /// Rotations are uniform in `-degrees..=degrees`.
    pub degrees: f64,
    /// Taps of the blur in each direction; odd.
    pub taps: usize,
    /// Widths of the blur are uniform between these.
    pub sigma: (f64, f64),
    /// What is taken off every pixel.
    pub mean: f64,
    /// What every pixel is divided by, then.
    pub std: f64,
}

/// Crops of 128, resized to 256; up to 45 degrees; a blur of 7 taps, 0.1 to 2 pixels wide; pixels as they are.
impl Default for Augment {
    fn default() -> Self {
        let (crop, size) = ([128, 128], [256, 256]);
        Augment { seed: 0, crop, size, degrees: 45.0, taps: 7, sigma: (0.1, 2.0), mean: 0.0, std: 1.0 }
    }
}

impl Augment {
    /// Augments images whose first one is number `first` of the data; other element types become F32.
    ///
    /// # Errors
    /// `InvalidArgument` for images that are not of rank 4 or smaller than the crop, and for options that are not finite
    /// or out of their range; `OutOfMemory`.
    pub fn apply(&self, images: &Tensor, first: u64) -> Result<Tensor> {
        let [height, width] = sides("augment", images)?;
        let room = |side: usize, crop: usize| {
            let wrong =
                || Error::invalid("augment", "crop", "within the images", format_args!("{crop} of {side}"));
            side.checked_sub(crop).ok_or_else(wrong)
        };
        let room = [room(height, self.crop[0])?, room(width, self.crop[1])?];
        let draws: Vec<[f64; 4]> =
            (0..images.shape()[0] as u64).map(|i| draw(self.seed, first.wrapping_add(i))).collect();
        let corner = |draw: &[f64; 4]| [0, 1].map(|axis| (draw[axis] * (room[axis] + 1) as f64) as usize);
        let corners: Vec<[usize; 2]> = draws.iter().map(corner).collect();
        let angles: Vec<f64> = draws.iter().map(|draw| (2.0 * draw[2] - 1.0) * self.degrees).collect();
        let (narrow, wide) = self.sigma;
        let sigmas: Vec<f64> = draws.iter().map(|draw| narrow + draw[3] * (wide - narrow)).collect();
        let images = crop(&images.to_dtype(DType::F32)?, &corners, self.crop)?;
        let images = rotate(&resize(&images, self.size)?, &angles)?;
        normalizable(self.mean, self.std)?;
        images.blur_normalized(&gaussians(&images, self.taps, &sigmas)?, self.mean, self.std)
    }
}

/// Four numbers in `[0, 1)` of a sample.
fn draw(seed: u64, sample: u64) -> [f64; 4] {
    let words = |x: u64| [x as u32, (x >> 32) as u32];
    let ([low, high], key) = (words(sample), words(seed));
    philox([low, high, 0, 0], key).map(|word| f64::from(word) / 4_294_967_296.0)
}

/// Cuts `size` out of each image, with its upper left pixel at `corners[n]`.
///
/// # Errors
/// `InvalidArgument` unless there is a corner for each image and the part lies within the image.
pub fn crop(images: &Tensor, corners: &[[usize; 2]], size: [usize; 2]) -> Result<Tensor> {
    const OP: &str = "crop";
    let sides = sides(OP, images)?;
    let inside = |corner: &&[usize; 2]| {
        (0..2).all(|axis| corner[axis].checked_add(size[axis]).is_some_and(|end| end <= sides[axis]))
    };
    if let Some(corner) = corners.iter().find(|corner| !inside(corner)) {
        let value = format!("{size:?} at {corner:?} of {sides:?}");
        return Err(Error::invalid(OP, "corners", "parts within the images", value));
    }
    let map = |&[top, left]: &[usize; 2]| [1.0, 0.0, top as f64, 0.0, 1.0, left as f64];
    warp(images, corners.iter().map(map), size, Sampling::Nearest)
}

/// Resizes images by bilinear interpolation, as torch's `interpolate` does without `align_corners`.
///
/// # Errors
/// `InvalidArgument` for images without pixels.
pub fn resize(images: &Tensor, size: [usize; 2]) -> Result<Tensor> {
    let sides = sides("resize", images)?;
    let [rows, columns] = [0, 1].map(|axis| sides[axis] as f64 / size[axis].max(1) as f64);
    let map = [rows, 0.0, 0.5 * rows - 0.5, 0.0, columns, 0.5 * columns - 0.5];
    warp(images, (0..images.shape()[0]).map(|_| map), size, Sampling::Bilinear)
}

/// Rotates each image about its centre, `degrees[n]` counter-clockwise; nearest pixels, and 0 where there were none.
///
/// # Errors
/// `InvalidArgument` unless there is a finite angle for each image.
pub fn rotate(images: &Tensor, degrees: &[f64]) -> Result<Tensor> {
    let [height, width] = sides("rotate", images)?;
    finite("rotate", "degrees", degrees, |_| true)?;
    let (y, x) = ((height as f64 - 1.0) / 2.0, (width as f64 - 1.0) / 2.0);
    let map = |degrees: &f64| {
        let (sin, cos) = degrees.to_radians().sin_cos();
        [cos, sin, y - cos * y - sin * x, -sin, cos, x - cos * x + sin * y]
    };
    warp(images, degrees.iter().map(map), [height, width], Sampling::Nearest)
}

/// Blurs each image with a Gaussian `sigmas[n]` pixels wide, cut off to `taps` taps in each direction.
///
/// # Errors
/// `InvalidArgument` unless there is a positive width for each image, and the taps are odd and fit in the image.
pub fn gaussian_blur(images: &Tensor, taps: usize, sigmas: &[f64]) -> Result<Tensor> {
    images.blur(&gaussians(images, taps, sigmas)?)
}

/// The weights of a Gaussian for each image, `[n, taps]`, which add up to 1.
fn gaussians(images: &Tensor, taps: usize, sigmas: &[f64]) -> Result<Tensor> {
    finite("gaussian_blur", "sigmas", sigmas, |sigma| sigma > 0.0)?;
    let mut weights = Vec::with_capacity(sigmas.len() * taps);
    for sigma in sigmas {
        let away = |tap: usize| (tap as f64 - (taps as f64 - 1.0) / 2.0) / sigma;
        let heights: Vec<f64> = (0..taps).map(|tap| (-0.5 * away(tap).powi(2)).exp()).collect();
        let sum: f64 = heights.iter().sum();
        weights.extend(heights.iter().map(|height| (height / sum) as f32));
    }
    Tensor::from_slice(&weights, &[sigmas.len(), taps], images.device())
}

/// `(images - mean) / std`, for images in F32.
///
/// # Errors
/// `InvalidArgument` unless `mean` is finite and `std` finite and not 0.
pub fn normalize(images: &Tensor, mean: f64, std: f64) -> Result<Tensor> {
    normalizable(mean, std)?;
    sides("normalize", images)?;
    // A blur of one tap leaves the images as they are.
    let ones = Tensor::ones(&[images.shape()[0], 1], DType::F32, images.device())?;
    images.blur_normalized(&ones, mean, std)
}

fn normalizable(mean: f64, std: f64) -> Result<()> {
    finite("normalize", "mean", &[mean], |_| true)?;
    finite("normalize", "std", &[std], |std| std != 0.0)
}

fn warp(
    images: &Tensor,
    maps: impl Iterator<Item = [f64; 6]>,
    size: [usize; 2],
    sampling: Sampling,
) -> Result<Tensor> {
    let maps: Vec<f32> = maps.flatten().map(|number| number as f32).collect();
    let maps = Tensor::from_slice(&maps, &[maps.len() / 6, 2, 3], images.device())?;
    images.warp(&maps, size, sampling)
}

fn sides(op: &'static str, images: &Tensor) -> Result<[usize; 2]> {
    match *images.shape() {
        [_, _, height, width] => Ok([height, width]),
        ref shape => Err(Error::invalid(op, "images", "of rank 4", format_args!("shape {shape:?}"))),
    }
}

fn finite(
    op: &'static str,
    argument: &'static str,
    values: &[f64],
    fits: impl Fn(f64) -> bool,
) -> Result<()> {
    let is_valid = |value: &f64| value.is_finite() && fits(*value);
    values
        .iter()
        .try_for_each(|value| Error::require(is_valid(value), op, argument, "finite and in range", value))
}
