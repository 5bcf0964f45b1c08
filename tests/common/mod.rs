//! What several test binaries share.

#![allow(dead_code, reason = "each binary uses a part")]
#![allow(clippy::unwrap_used, clippy::panic)]

pub(crate) mod devices;
pub(crate) mod failing_memory;
pub(crate) mod folder;
pub(crate) mod process;
pub(crate) mod programs;
pub(crate) mod random_programs;

use streamgrad::Result;
use streamgrad::prelude::*;

/// The elements as they are in memory, for comparisons that forgive nothing.
pub(crate) fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    Ok(tensor.to_vec::<f32>()?.iter().map(|value| value.to_bits()).collect())
}
