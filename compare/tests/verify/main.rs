//! Planted mistakes are each found, by their own check; clean programs are clean.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

extern crate models as streamgrad;

mod clean;
mod lines;
mod planted;

use autograd::{Gradients, Save, Var, no_grad, record};
use compare::{CompareOptions, Comparison, Verification, VerifyOptions, verify};
use device::DType::F32;
use device::{CpuConfig, Device, Result, Schedule, SyncMode};
use models::{
    Adam, AdamW, BatchNorm2d, Conv2d, Embedding, Forward, LayerNorm, Linear, LrSchedule, Module,
    MultiheadAttention, Optimizer, Relu, Sequential, Sgd, clip_grad_norm, cross_entropy, mse,
};
use tensor::{RandomKey, Tensor};

fn cpu() -> Device {
    Device::cpu_with(CpuConfig { threads: Some(2), ..CpuConfig::default() })
}

#[derive(Module)]
struct Net {
    first: Linear,
    second: Linear,
}

type State = (Net, Sgd);

fn setup(dev: &Device) -> Result<State> {
    let key = |op| RandomKey { seed: 5, op };
    let net = Net { first: Linear::keyed(4, 6, key(0), dev)?, second: Linear::keyed(6, 3, key(1), dev)? };
    let sgd = Sgd::new(net.parameters(), 0.1)?;
    Ok((net, sgd))
}

fn batch(dev: &Device, n: u64) -> Result<Tensor> {
    Tensor::randn(&[5, 4], F32, RandomKey { seed: 1, op: n }, dev)
}

/// What the output has to be.
fn target(x: &Tensor) -> Result<Var> {
    Ok(x.narrow(1, 0, 3)?.into())
}

fn verified(loss: impl Fn(&State, &Tensor) -> Result<Var> + Send + Sync) -> Verification {
    verified_from(setup, loss)
}

fn verified_from(
    setup: impl Fn(&Device) -> Result<State> + Send + Sync,
    loss: impl Fn(&State, &Tensor) -> Result<Var> + Send + Sync,
) -> Verification {
    let options = VerifyOptions { explored: 4, ..VerifyOptions::default() };
    Comparison::new(&cpu())
        .setup(setup)
        .batches(batch)
        .loss(loss)
        .update(|(_, sgd), gradients| sgd.step(&gradients))
        .model(|(net, _)| net)
        .verify(options)
        .unwrap()
}

/// The line of the first layer in [`between`].
const LAYERS: u32 = line!() + 4;

/// The net's loss, with something between its layers.
fn between(f: impl Fn(&Var) -> Result<Var>, (net, _): &State, x: &Tensor) -> Result<Var> {
    let hidden = f(&net.first.forward(&x.clone().into())?)?;
    mse(&net.second.forward(&hidden.tanh()?)?, &target(x)?)
}

/// That the first finding has this code, and tells of these words.
fn expect(found: &Verification, code: &str, words: &[&str]) {
    let first = found.findings.first().unwrap_or_else(|| panic!("nothing is found, not {code}"));
    let text = first.message.replace('\n', " ");
    assert!(first.code == code && words.iter().all(|word| text.contains(word)), "{code}, {words:?}: {found}");
}
