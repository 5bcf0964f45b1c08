//! Synthetic images: each class has a colour, and every pixel some noise.

use device::Result;

use models::InMemory;
use models::random::{SplitMix, mix};

/// Square images of three channels with values in `0..1`, keyed by a seed.
///
/// A pixel is the mean of its class's colour and of noise, both uniform; so a model can learn the classes, but not from one
/// value alone.
///
/// ```
/// use workloads::Images;
/// # fn main() -> device::Result<()> {
/// let images = Images { rows: 6, size: 16, classes: 10, seed: 7 };
/// let segmented = images.segmented()?;
/// assert_eq!((segmented.len(), segmented.features(), segmented.labels().len()), (6, 3 * 16 * 16, 6 * 16 * 16));
/// assert_eq!(images.labelled()?.labels().len(), 6);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Images {
    /// The number of images.
    pub rows: usize,
    /// Height and width.
    pub size: usize,
    /// The number of classes.
    pub classes: usize,
    /// Where the random numbers begin.
    pub seed: u64,
}

/// Blocks of one class along each side of an image that has a class for each pixel.
const BLOCKS: usize = 4;
const CHANNELS: usize = 3;

impl Images {
    /// Images of one class each: `[rows, 3 size size]` with a label a row.
    ///
    /// # Errors
    /// `InvalidArgument` for a number that is 0.
    pub fn labelled(&self) -> Result<InMemory> {
        let (inputs, labels) = self.draw(1)?;
        InMemory::new(inputs, CHANNELS * self.size * self.size, labels, self.classes)
    }

    /// Images of 4 by 4 blocks, or one for each pixel if they are fewer, with a class each: `[rows, 3 size size]` with
    /// `size size` labels a row, one for each pixel.
    ///
    /// # Errors
    /// `InvalidArgument` for a number that is 0.
    pub fn segmented(&self) -> Result<InMemory> {
        let blocks = BLOCKS.min(self.size);
        let (inputs, classes) = self.draw(blocks)?;
        let (size, area) = (self.size, self.size * self.size);
        let mut labels = Vec::with_capacity(self.rows * area);
        for classes in classes.chunks_exact(blocks * blocks) {
            labels.extend((0..area).map(|pixel| classes[block(pixel, size, blocks)]));
        }
        InMemory::with_labels(inputs, CHANNELS * area, labels, area, self.classes)
    }

    /// Pixels of all images, and the classes of their blocks.
    fn draw(&self, blocks: usize) -> Result<(Vec<f32>, Vec<i64>)> {
        let Images { rows, size, classes, seed } = *self;
        crate::expect_positive("images", [("rows", rows), ("size", size), ("classes", classes)])?;
        let mut random = SplitMix(mix(&[seed, 0]));
        let colours: Vec<f32> = (0..classes * CHANNELS).map(|_| random.unit() as f32).collect();
        let area = size * size;
        let mut pixels = Vec::with_capacity(rows * CHANNELS * area);
        let mut drawn = Vec::with_capacity(rows * blocks * blocks);
        for row in 0..rows as u64 {
            // An image has numbers of its own.
            let mut random = SplitMix(mix(&[seed, 1, row]));
            let first = drawn.len();
            drawn.extend((0..blocks * blocks).map(|_| random.below(classes) as i64));
            for channel in 0..CHANNELS {
                pixels.extend((0..area).map(|pixel| {
                    let class = drawn[first + block(pixel, size, blocks)] as usize;
                    0.5 * (colours[class * CHANNELS + channel] + random.unit() as f32)
                }));
            }
        }
        Ok((pixels, drawn))
    }
}

/// The block that a pixel is in.
fn block(pixel: usize, size: usize, blocks: usize) -> usize {
    let along = |place: usize| place * blocks / size;
    along(pixel / size) * blocks + along(pixel % size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::{Error, ErrorKind};

    #[test]
    fn images_depend_on_the_seed_and_their_number() {
        let images = Images { rows: 5, size: 8, classes: 10, seed: 3 };
        let all = |images: Images| {
            let data = images.segmented().unwrap();
            let rows: Vec<_> = (0..data.len()).map(|row| data.row(row).unwrap().to_vec()).collect();
            (rows, data.labels().to_vec())
        };
        let (pixels, labels) = all(images);
        assert_eq!((&pixels, &labels), (&all(images).0, &all(images).1));
        assert_eq!(pixels[..2], all(Images { rows: 2, ..images }).0[..]);
        assert_ne!(pixels, all(Images { seed: 4, ..images }).0);
        assert!(pixels.iter().flatten().all(|pixel| (0.0..1.0).contains(pixel)));
    }

    #[test]
    fn labels_are_blocks_and_colours_follow_them() {
        let images = Images { rows: 40, size: 8, classes: 3, seed: 3 };
        let data = images.segmented().unwrap();
        // Blocks of 2 by 2 pixels.
        for labels in data.labels().chunks_exact(64) {
            for (pixel, label) in labels.iter().enumerate() {
                assert_eq!(*label, labels[pixel / 8 / 2 * 2 * 8 + pixel % 8 / 2 * 2]);
            }
        }
        assert!((0..3).all(|class| data.labels().contains(&class)));
        // Neighbouring blocks are drawn apart.
        for next in [2, 16] {
            assert!(data.labels().chunks_exact(64).any(|labels| labels[0] != labels[next]));
        }
        // The mean of a class's pixels lies halfway between its colour and 1/2, whatever the image.
        let mean = |rows: std::ops::Range<usize>, class: i64| {
            let pixels = rows.flat_map(|row| {
                let labels = &data.labels()[row * 64..][..64];
                data.row(row)
                    .unwrap()
                    .iter()
                    .zip(labels)
                    .filter(|(_, label)| **label == class)
                    .map(|(x, _)| *x)
            });
            let pixels: Vec<f32> = pixels.collect();
            pixels.iter().sum::<f32>() / pixels.len() as f32
        };
        for class in 0..3 {
            assert!((mean(0..20, class) - mean(20..40, class)).abs() < 0.05, "{class}");
        }
        assert!((mean(0..40, 0) - mean(0..40, 1)).abs() > 0.01);
        assert_eq!(images.labelled().unwrap().labels().len(), 40);
        for wrong in
            [Images { rows: 0, ..images }, Images { size: 0, ..images }, Images { classes: 0, ..images }]
        {
            assert!(matches!(
                wrong.segmented().as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { .. })
            ));
        }
    }
}
