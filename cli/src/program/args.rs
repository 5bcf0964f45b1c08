//! How arguments are read.

use streamgrad::Device;
use workloads::{Scale, Workload};

use super::failure::Failure;

/// Reads a count of at least one.
pub(super) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(count) => Ok(count),
        Err(_) => Err("must be a whole number of at least 1".into()),
    }
}

/// Reads a rate: positive and finite.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "must be a positive number".into())
}

/// `auto`, `cpu` or `cuda:N`.
pub(super) fn device(name: &str) -> Result<Device, Failure> {
    let ordinal = match name {
        "auto" => return Ok(Device::best()),
        "cpu" => return Ok(Device::cpu()),
        "cuda" => Some(0),
        _ => name.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok()),
    };
    let ordinal = ordinal
        .ok_or_else(|| Failure::Usage(format!("--device: expected auto, cpu or cuda:N, got {name:?}")))?;
    Ok(Device::cuda(ordinal)?)
}

/// The help of an argument that names a workload, or one of `others`.
pub(super) fn workload_help(others: &str) -> String {
    format!("What to train: {}{others}", *workloads::NAMES)
}

/// The workload of that name, or the default one, at a scale if one is given.
pub(super) fn workload(name: Option<&str>, scale: Option<Scale>) -> Result<&'static dyn Workload, Failure> {
    let name = name.unwrap_or_else(|| workloads::ALL[0].name());
    let unknown = |_| Failure::Usage(format!("unknown workload {name:?}; expected {}", *workloads::NAMES));
    let found = workloads::find(name).map_err(unknown)?;
    workloads::scaled(found, scale)
        .map_err(|_| Failure::Usage(format!("--scale is not for {name}, which has one size")))
}
