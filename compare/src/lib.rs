//! A training step on one stream and on several, side by side: times, equality, and why it is not faster; and any program under
//! every schedule.
//!
//! A [`Comparison`] runs copies of a program from the same first values over the same batches. The *serial* one runs everything in
//! order on the default stream and may use all threads for each kernel; the others run at once what the program allows. All merge
//! gradients in batch order, so losses, results and parameters must be equal bit for bit. [`explore`] has a program's commands run
//! in many other orders.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod bound;
mod chosen;
mod comparison;
mod divergence;
mod explore;
mod machine;
mod options;
mod page;
mod profile;
mod program;
mod report;
mod runner;
mod schedules;
mod show;
#[cfg(test)]
mod tests;
mod trainer;
mod verify;

pub use ::profile::{Finding, Quantiles};
pub use comparison::Comparison;
pub use device::Lane;
pub use divergence::{Divergence, WriteTrace, first_divergence, first_divergence_within};
pub use explore::{Explore, ExploreReport, explore, explore_all};
pub use options::CompareOptions;
pub use profile::{LaneProfile, OpProfile, StepProfile};
pub use report::{CapturedReport, ComparisonReport, Gain, Limits, ScheduleReport};
pub use verify::{Verification, VerifyOptions, verify};
