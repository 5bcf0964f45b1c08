//! The example programs as data: model, batches, loss, optimizer, with their models and their made-up data. The `streamgrad`
//! program trains them, and [`comparison`] runs one on one stream and on several, side by side.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod autoencoder;
mod branches;
mod classify;
mod clicks;
mod data;
mod dlrm;
mod forum;
mod gpt;
mod images;
mod language;
mod lenet;
mod plan;
mod ranks;
mod scale;
mod workload;

use std::sync::LazyLock;

use autograd::no_grad;
use device::{DType, Device, Error, Result};
use tensor::Tensor;

use models::{Batch, DataLoader, InMemory, LoaderOptions};

pub use autoencoder::{EncoderDecoder, PyramidOptions, decoder, encoder, pixel_cross_entropy};
pub use branches::Branches;
pub use data::{ClickLog, ClickOptions, Images};
pub use dlrm::{Dlrm, DlrmOptions};
pub use forum::Forum;
pub use gpt::{Gpt, GptBlock, GptOptions};
pub use lenet::lenet;
pub use plan::{Plan, PlanOptions, PlannedStep, plan};
pub use ranks::{RankComparison, RankOptions, RankSchedule, compare_ranks};
pub use scale::Scale;
pub use workload::{
    Evaluation, Model, Overlap, Trained, Workload, WorkloadInfo, check, check_rows, comparison,
};

/// Evaluates `part` on batches of so many rows, which gives a batch's mean loss and its number of right answers out of how
/// many.
fn evaluate(
    model: &dyn Model,
    data: &InMemory,
    rows: usize,
    device: &Device,
    part: impl Fn(&Batch) -> Result<(Tensor, Tensor, usize)>,
) -> Result<Evaluation> {
    let batch = rows.min(data.len());
    let options = LoaderOptions { batch, shuffle: false, device: device.clone(), ..LoaderOptions::default() };
    let loader = DataLoader::new(data.clone(), options)?;
    model.set_training(false);
    // All batches are enqueued before the first result is read.
    let parts = no_grad(|| loader.epoch(0).map(|batch| part(&batch?)).collect::<Result<Vec<_>>>());
    model.set_training(true);
    let (mut loss, mut right, mut all) = (0.0, 0, 0);
    for (mean, count, of) in parts? {
        loss += mean.to_dtype(DType::F64)?.item::<f64>()? * of as f64;
        right += count.to_dtype(DType::I64)?.item::<i64>()?;
        all += of;
    }
    Ok(Evaluation { loss: loss / all as f64, accuracy: right as f64 / all as f64 })
}

/// Checks that none of the counts, each with the name of its argument, is 0.
fn expect_positive(op: &'static str, counts: impl IntoIterator<Item = (&'static str, usize)>) -> Result<()> {
    let mut counts = counts.into_iter();
    counts.try_for_each(|(argument, count)| Error::require(count > 0, op, argument, "at least 1", count))
}

/// Checks that a step has batches.
fn expect_lanes(lanes: usize) -> Result<()> {
    expect_positive("workload", [("lanes", lanes)])
}

/// Every workload, the default first.
pub const ALL: &[&dyn Workload] = &[
    &classify::TWO_BATCH,
    &classify::MLP,
    &classify::CNN,
    &language::CharGpt,
    &clicks::Clicks,
    &images::ENCODE_DECODE,
    &images::AUGMENTED,
    &images::PREFETCHED,
    &images::BRANCHED,
];

/// The workload of that name.
///
/// ```
/// assert_eq!(workloads::find("mlp")?.name(), "mlp");
/// assert!(workloads::find("none").is_err());
/// # Ok::<(), device::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` with the name, if there is none.
pub fn find(name: &str) -> Result<&'static dyn Workload> {
    ALL.iter()
        .copied()
        .find(|workload| workload.name() == name)
        .ok_or_else(|| Error::invalid("workload", "name", &NAMES, name))
}

/// The workload at a scale, if one is asked for.
///
/// # Errors
/// `InvalidArgument` with the scale, if the workload has one size.
pub fn scaled(workload: &'static dyn Workload, scale: Option<Scale>) -> Result<&'static dyn Workload> {
    let Some(scale) = scale else { return Ok(workload) };
    let one_size = || Error::invalid(workload.name(), "scale", "none, as it has one size", scale);
    workload.at_scale(scale).ok_or_else(one_size)
}

/// The names of all workloads, as in "one of two-batch, mlp".
pub static NAMES: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<&str> = ALL.iter().map(|workload| workload.name()).collect();
    format!("one of {}", names.join(", "))
});

#[cfg(test)]
mod tests;
