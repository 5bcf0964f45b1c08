//! How long something takes on a device, and how fast the device is at best.

use std::fmt;
use std::time::Instant;

use device::{DType, Device, Peaks, Result, Stream};

use tensor::{RandomKey, Tensor};

use crate::quantiles::Quantiles;

/// Rounds that are timed, and how many at least if they take long.
const ROUNDS: usize = 15;
const LEAST_ROUNDS: usize = 5;
/// Milliseconds after which no further rounds are begun, and of a round at least.
const ENOUGH_MS: f64 = 500.0;
const ROUND_MS: f64 = 5.0;

/// How long a call takes, by [`benchmark`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Timing {
    /// Milliseconds of a call, the median of all rounds.
    pub median_ms: f64,
    /// A tenth of the rounds were faster.
    pub p10_ms: f64,
    /// A tenth of the rounds were slower.
    pub p90_ms: f64,
    /// Rounds that were timed.
    pub rounds: usize,
    /// Calls of each round.
    pub calls: usize,
    /// What the device does at best: nothing takes less than a launch.
    pub peaks: Peaks,
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Timing { median_ms, p10_ms, p90_ms, peaks, .. } = self;
        let launches = median_ms * 1e3 / peaks.launch_us;
        write!(f, "{median_ms:.4} ms ({p10_ms:.4} to {p90_ms:.4}), as long as {launches:.1} launches")
    }
}

/// Times `work`, which launches something on `device`: calls it a few times to warm up, then in rounds of so many calls that a
/// clock can tell. On a CPU the host's clock is read when the device has run everything; elsewhere events on the current stream
/// take the time, so that work on other streams counts as far as the current one comes after it.
///
/// ```
/// use profile::benchmark;
/// use tensor::{DType, Device, Tensor};
/// let dev = Device::cpu();
/// let x = Tensor::ones(&[64, 64], DType::F32, &dev)?;
/// let timing = benchmark(&dev, || x.matmul(&x))?;
/// println!("{timing}; the device: {}", timing.peaks);
/// assert!(timing.p10_ms <= timing.median_ms && timing.median_ms <= timing.p90_ms);
/// # Ok::<(), tensor::Error>(())
/// ```
///
/// # Errors
/// Those of `work` and of what it launched; as for [`MeasuredPeaks::measured_peaks`]; `Captured` within a
/// step that is being captured.
pub fn benchmark<R>(device: &Device, mut work: impl FnMut() -> Result<R>) -> Result<Timing> {
    let peaks = device.measured_peaks()?;
    let Rounds { ms, calls } = time(device, &mut || work().map(drop))?;
    let rounds = ms.len();
    let Quantiles { median, p10, p90 } = Quantiles::of(ms);
    Ok(Timing { median_ms: median, p10_ms: p10, p90_ms: p90, rounds, calls, peaks })
}

/// What a device does at best.
pub trait MeasuredPeaks {
    /// The best rates of the device: of copies, of products, and of launches. Measured at the first call, on a device of the same
    /// make of its own, which takes about a second; kept from then on.
    ///
    /// # Errors
    /// Those of making a device; `OutOfMemory` where there is no room for large tensors.
    fn measured_peaks(&self) -> Result<Peaks>;
}

impl MeasuredPeaks for Device {
    fn measured_peaks(&self) -> Result<Peaks> {
        self.peaks_or_init(|| {
            // Neither counts nor memory of this one, and its TF32 may be on.
            let twin = self.sibling(self.threads())?;
            twin.set_tf32(false);
            let tensor = if twin.runs_on_host() { None } else { Some(product_flops(&twin, DType::BF16)?) };
            Ok(Peaks::new(copy_rate(&twin)?, product_flops(&twin, DType::F32)?, tensor, launch_us(&twin)?))
        })
    }
}

fn copy_rate(device: &Device) -> Result<f64> {
    // More than the caches hold.
    let bytes: usize = if device.runs_on_host() { 32 << 20 } else { 128 << 20 };
    let from = Tensor::ones(&[bytes / 4], DType::F32, device)?;
    let to = from.copy()?;
    let ms = fastest(device, &mut || to.copy_(&from))?;
    Ok(2.0 * bytes as f64 / (ms * 1e-3))
}

/// The first product that takes a millisecond tells.
fn product_flops(device: &Device, dtype: DType) -> Result<f64> {
    let mut size = 128;
    loop {
        let drawn =
            |op| Tensor::randn(&[size, size], DType::F32, RandomKey { seed: 0, op }, device)?.to_dtype(dtype);
        let (a, b) = (drawn(0)?, drawn(1)?);
        let once = || a.matmul(&b).map(drop);
        once()?;
        if size == LARGEST || round(device, 1, &mut || once())? >= 1.0 {
            let ms = fastest(device, &mut || once())?;
            return Ok(2.0 * (size as f64).powi(3) / (ms * 1e-3));
        }
        size *= 2;
    }
}

/// Rows of the largest product.
const LARGEST: usize = 8192;

fn launch_us(device: &Device) -> Result<f64> {
    const MANY: usize = 100;
    let x = Tensor::zeros(&[1], DType::F32, device)?;
    let ms = fastest(device, &mut || (0..MANY).try_for_each(|_| x.add_scalar_(0.0)))?;
    Ok(ms * 1e3 / MANY as f64)
}

fn fastest(device: &Device, work: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    Ok(time(device, work)?.ms.into_iter().fold(f64::INFINITY, f64::min))
}

/// Milliseconds of a call, by rounds of so many calls.
struct Rounds {
    ms: Vec<f64>,
    calls: usize,
}

fn time(device: &Device, work: &mut dyn FnMut() -> Result<()>) -> Result<Rounds> {
    // What is done once, such as taking memory.
    round(device, 2, work)?;
    let mut calls = 1;
    while round(device, calls, work)? < ROUND_MS {
        calls *= 2;
    }
    let (mut ms, start) = (Vec::with_capacity(ROUNDS), Instant::now());
    while ms.len() < LEAST_ROUNDS || (ms.len() < ROUNDS && start.elapsed().as_secs_f64() * 1e3 < ENOUGH_MS) {
        ms.push(round(device, calls, work)? / calls as f64);
    }
    Ok(Rounds { ms, calls })
}

/// Milliseconds of so many calls.
fn round(device: &Device, calls: usize, work: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    device.synchronize()?;
    if device.runs_on_host() {
        let start = Instant::now();
        (0..calls).try_for_each(|_| work())?;
        device.synchronize()?;
        return Ok(start.elapsed().as_secs_f64() * 1e3);
    }
    let stream = Stream::current(device);
    let start = stream.record()?;
    (0..calls).try_for_each(|_| work())?;
    start.elapsed_ms(&stream.record()?)
}

#[cfg(test)]
mod tests {
    use device::{CpuConfig, Error, ErrorKind};

    use super::*;

    #[test]
    fn a_benchmark_calls_what_it_is_given_and_returns_its_errors() -> Result<()> {
        let dev = Device::cpu();
        let mut calls = 0;
        let timing = benchmark(&dev, || {
            calls += 1;
            Tensor::zeros(&[1000], DType::F32, &dev)
        })?;
        assert!(calls >= timing.rounds * timing.calls && timing.rounds >= LEAST_ROUNDS);
        assert!(
            0.0 < timing.p10_ms && timing.p10_ms <= timing.median_ms && timing.median_ms <= timing.p90_ms
        );
        let error = benchmark(&dev, || Tensor::zeros(&[2], DType::F32, &dev)?.sum(&[7], false));
        assert!(matches!(
            error.as_ref().map_err(Error::kind),
            Err(ErrorKind::AxisOutOfRange { axis: 7, .. })
        ));
        Ok(())
    }

    #[test]
    fn peaks_are_measured_once_and_beside_the_device() -> Result<()> {
        let dev = Device::cpu_with(CpuConfig { threads: Some(1), ..CpuConfig::default() });
        let peaks = dev.measured_peaks()?;
        assert_eq!(dev.measured_peaks()?, peaks, "to the last bit");
        assert_eq!(dev.sync_stats().launches, 0);
        let Peaks { copy_bytes_per_s, fma_flops, tensor_flops, launch_us, .. } = peaks;
        assert!(
            [copy_bytes_per_s, fma_flops, launch_us].into_iter().all(|rate| rate.is_finite() && rate > 0.0)
        );
        assert_eq!(tensor_flops, None);
        Ok(())
    }
}
