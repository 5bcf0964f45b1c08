//! What a device can do at best, as measured.

use std::fmt;

use crate::{Device, Result};

/// The best rates of a device, measured by what this library launches on it: `measured_peaks` of `tensor`'s `MeasuredPeaks`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Peaks {
    /// Bytes that a large copy reads and writes in a second.
    pub copy_bytes_per_s: f64,
    /// Operations of a large product of F32 in a second: a multiplication and an addition are two. Without TF32.
    pub fma_flops: f64,
    /// The same of a product of BF16, which a GPU makes on tensor cores; `None` on a CPU, which has none.
    pub tensor_flops: Option<f64>,
    /// Microseconds of a command with next to nothing to do, one after another on one stream.
    pub launch_us: f64,
}

impl Peaks {
    /// Rates as they were measured.
    pub fn new(copy_bytes_per_s: f64, fma_flops: f64, tensor_flops: Option<f64>, launch_us: f64) -> Peaks {
        Peaks { copy_bytes_per_s, fma_flops, tensor_flops, launch_us }
    }
}

impl fmt::Display for Peaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (copy, fma) = (self.copy_bytes_per_s / 1e9, self.fma_flops / 1e9);
        write!(f, "copies {copy:.1} GB/s, products of F32 {fma:.1} GFLOP/s, ")?;
        if let Some(tensor) = self.tensor_flops {
            write!(f, "of BF16 {:.1} GFLOP/s, ", tensor / 1e9)?;
        }
        write!(f, "a launch {:.2} us", self.launch_us)
    }
}

impl Device {
    /// The rates that were measured, or those that `measure` finds now, which are kept.
    ///
    /// # Errors
    /// That of `measure`, and nothing is kept.
    pub fn peaks_or_init(&self, measure: impl FnOnce() -> Result<Peaks>) -> Result<Peaks> {
        let mut peaks = self.core().peaks.lock();
        match *peaks {
            Some(known) => Ok(known),
            None => Ok(*peaks.insert(measure()?)),
        }
    }
}
