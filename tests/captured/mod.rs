//! What captured steps refuse, what changes between replays, and what does not.

mod counts;
mod failures;
mod fused;
mod graphs;
mod indexed;
mod losses;
mod merged;
mod optimizers;
mod outputs;
mod plans;
mod random;
mod recorded;
mod refused;
mod streams;
mod workloads;

use streamgrad::prelude::*;
use streamgrad::{Error, ErrorKind, Graph, Result};

fn tensor(values: &[f32], device: &Device) -> Result<Tensor> {
    Tensor::from_slice(values, &[values.len()], device)
}

/// The elements of a tensor of any floats, as bits.
fn bits(tensor: &Tensor) -> Result<Vec<u64>> {
    Ok(tensor.to_dtype(DType::F64)?.to_vec::<f64>()?.into_iter().map(f64::to_bits).collect())
}

fn values(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.to_vec()
}

/// The op and the reason of a step that was refused.
fn refused<T>(result: Result<T>) -> (&'static str, String) {
    match result.map_err(Error::into_kind) {
        Err(ErrorKind::Captured { op, reason }) => (op, reason.into()),
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("it was not refused"),
    }
}

/// That the device works, and steps can be captured on it.
fn works(device: &Device) -> Result<()> {
    let x = tensor(&[1.0, 2.0], device)?;
    assert_eq!(values(&x.add(&x)?)?, [2.0, 4.0]);
    let graph = Graph::capture(device, || x.add_scalar_(1.0))?;
    graph.replay()?;
    graph.replay()?;
    assert_eq!(values(&x)?, [3.0, 4.0]);
    device.synchronize()
}
