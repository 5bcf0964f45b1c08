//! The hand-written digits that the library carries with it.

use std::fmt::Display;
use std::io::Read;

use device::{Error, Result};
use flate2::read::GzDecoder;

use super::{InMemory, malformed};

const FILE: &[u8] = include_bytes!("../../data/digits.csv.gz");

/// 1,797 hand-written digits of 8x8 pixels (E. Alpaydin, C. Kaynak, 1998; CC BY 4.0).
///
/// It is the test half of the UCI set "Optical Recognition of Handwritten Digits"; `data/SOURCE.md` says more.
#[derive(Clone, Copy, Debug)]
pub struct Digits;

impl Digits {
    /// Pixels of an image.
    pub const FEATURES: usize = 64;
    /// The digits 0 to 9.
    pub const CLASSES: usize = 10;

    /// The data set, with pixels scaled to `0..=1`.
    ///
    /// ```
    /// let digits = models::Digits::load()?;
    /// assert_eq!((digits.len(), digits.features(), digits.classes()), (1797, 64, 10));
    /// # Ok::<(), device::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Format` if the embedded file is damaged.
    pub fn load() -> Result<InMemory> {
        read(FILE)
    }

    /// The digits with their images enlarged to `size` x `size` pixels, bilinear, corners on corners.
    ///
    /// # Errors
    /// As [`load`](Digits::load); `InvalidArgument` if `size` is below 2.
    pub fn enlarged(size: usize) -> Result<InMemory> {
        Error::require(size >= 2, "digits", "size", "at least 2", size)?;
        let small = Self::load()?;
        let mut inputs = Vec::with_capacity(small.len() * size * size);
        for row in (0..small.len()).filter_map(|index| small.row(index)) {
            enlarge(row, size, &mut inputs);
        }
        InMemory::new(inputs, size * size, small.labels().to_vec(), Self::CLASSES)
    }
}

/// Rows of 64 pixels of 0 to 16 and the class.
fn read(compressed: &[u8]) -> Result<InMemory> {
    let wrong = |error: &dyn Display| malformed("digits.csv.gz", error);
    let mut text = String::new();
    GzDecoder::new(compressed).read_to_string(&mut text).map_err(|error| wrong(&error))?;
    let numbers: Result<Vec<u8>, _> =
        text.split_ascii_whitespace().flat_map(|line| line.split(',')).map(str::parse).collect();
    let numbers = numbers.map_err(|error| wrong(&error))?;
    let (rows, _) = numbers.as_chunks::<{ Digits::FEATURES + 1 }>();
    let inputs = rows.iter().flat_map(|row| &row[..Digits::FEATURES]).map(|&pixel| f32::from(pixel) / 16.0);
    let labels = rows.iter().map(|row| i64::from(row[Digits::FEATURES]));
    InMemory::new(inputs.collect(), Digits::FEATURES, labels.collect(), Digits::CLASSES)
}

const SIDE: usize = 8;

fn enlarge(image: &[f32], size: usize, out: &mut Vec<f32>) {
    let step = (SIDE - 1) as f32 / (size - 1) as f32;
    // For a coordinate of the large image: the pixel before, the one after, and how far between.
    let place = |at: usize| {
        let position = at as f32 * step;
        let before = (position as usize).min(SIDE - 2);
        (before, before + 1, position - before as f32)
    };
    for y in 0..size {
        let (top, bottom, down) = place(y);
        for x in 0..size {
            let (left, right, across) = place(x);
            let mix =
                |row: usize| image[row * SIDE + left] * (1.0 - across) + image[row * SIDE + right] * across;
            out.push(mix(top) * (1.0 - down) + mix(bottom) * down);
        }
    }
}

#[cfg(test)]
mod tests {
    use device::ErrorKind;

    use super::*;

    #[test]
    fn the_embedded_file_is_what_it_says() {
        let digits = Digits::load().unwrap();
        assert_eq!(digits.labels()[..3], [0, 1, 2]);
        assert_eq!(digits.row(0).unwrap()[..4], [0.0, 0.0, 5.0 / 16.0, 13.0 / 16.0]);
        assert!((0..digits.len()).all(|r| digits.row(r).unwrap().iter().all(|v| (0.0..=1.0).contains(v))));
        assert!((0..10).all(|class| digits.labels().iter().filter(|&&l| l == class).count() > 170));
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        assert!(matches!(
            read(&FILE[..FILE.len() / 2]).as_ref().map_err(Error::kind),
            Err(ErrorKind::Format { .. })
        ));
        assert!(matches!(read(b"not gzip").as_ref().map_err(Error::kind), Err(ErrorKind::Format { .. })));
        let mut flipped = FILE.to_vec();
        flipped[FILE.len() / 2] ^= 0x40;
        assert!(matches!(read(&flipped).as_ref().map_err(Error::kind), Err(ErrorKind::Format { .. })));
    }

    #[test]
    fn enlarging_keeps_corners_and_linear_ramps() {
        let ramp: Vec<f32> = (0..64).map(|i| (i % 8) as f32 + 10.0 * (i / 8) as f32).collect();
        let mut large = Vec::new();
        enlarge(&ramp, 15, &mut large);
        let expected: Vec<f32> =
            (0..225).map(|at| (at % 15) as f32 * 0.5 + 10.0 * (at / 15) as f32 * 0.5).collect();
        approx::assert_abs_diff_eq!(large[..], expected[..], epsilon = 1e-5);
        assert_eq!(Digits::enlarged(8).unwrap().row(5), Digits::load().unwrap().row(5));
        assert!(Digits::enlarged(1).is_err());
    }
}
