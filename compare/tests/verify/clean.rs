//! Programs without a mistake.

use super::*;

#[test]
fn clean_programs_are_clean() {
    let found = verified(|state, x| between(|y| Ok(y.clone()), state, x));
    found.expect_clean();
    let done: Vec<_> = found.checks.iter().map(|(name, _)| *name).collect();
    let all = ["left out", "parameters", "gradients", "equal bits", "explored", "host and memory", "audit"];
    assert_eq!(done, all);
    let schedules = &found.checks[3].1;
    for name in ["a second run", "one thread", "lanes", "captured, serial order", "captured, data order"] {
        assert!(schedules.contains(name), "{name}: {schedules}");
    }
    assert!(found.to_string().ends_with("nothing is wrong\n"), "{found}");
    verified(|state, x| between(|y| y.dropout(0.3, None), state, x)).expect_clean();
    verified(|(net, _), x| {
        cross_entropy(
            &net.second.forward(&net.first.forward(&x.clone().into())?)?,
            &x.narrow(1, 0, 3)?.argmax(1, false)?,
        )
    })
    .expect_clean();
    let frozen = |dev: &Device| {
        let state = setup(dev)?;
        state.0.first.freeze();
        Ok(state)
    };
    let found = verified_from(frozen, |state, x| between(|y| Ok(y.clone()), state, x));
    found.expect_clean();
    assert_eq!(found.checks[1].1, "2 that learn, 2 frozen");
}

/// Running statistics are updated in batch order.
#[test]
fn batch_norm_is_clean() {
    let setup = |dev: &Device| {
        let norm = BatchNorm2d::new(2, dev)?;
        let sgd = Sgd::new(norm.parameters(), 0.1)?;
        Ok((norm, sgd))
    };
    let images = |dev: &Device, n| Tensor::randn(&[3, 2, 4, 4], F32, RandomKey { seed: 1, op: n }, dev);
    Comparison::new(&cpu())
        .setup(setup)
        .batches(images)
        .loss(|(norm, _), x| norm.forward(&x.clone().into())?.tanh()?.square()?.mean(&[], false))
        .update(|(_, sgd), gradients| sgd.step(&gradients))
        .model(|(norm, _)| norm)
        .verify(VerifyOptions::default())
        .unwrap()
        .expect_clean();
}

/// The model and its optimizer, the loss of a batch, and what changes the parameters.
fn clean<M: Forward + 'static, O: Optimizer + Send + Sync + 'static>(
    setup: impl Fn(&Device) -> Result<(M, O)> + Send + Sync,
    loss: impl Fn(&M, &Tensor) -> Result<Var> + Send + Sync,
    update: impl Fn(&mut O, Gradients) -> Result<()> + Send + Sync,
) {
    Comparison::new(&cpu())
        .setup(setup)
        .batches(batch)
        .loss(|(model, _): &(M, O), x| loss(model, x))
        .update(|(_, optimizer), gradients| update(optimizer, gradients))
        .model(|(model, _)| model)
        .verify(VerifyOptions { explored: 4, ..VerifyOptions::default() })
        .unwrap()
        .expect_clean();
}

#[derive(Module)]
struct Block {
    norm: LayerNorm,
    attention: MultiheadAttention,
    wide: Linear,
    narrow: Linear,
}

impl Forward for Block {
    fn forward(&self, x: &Var) -> Result<Var> {
        let x = x.add(&self.attention.forward(&self.norm.forward(x)?)?)?;
        x.add(&self.narrow.forward(&self.wide.forward(&x)?.gelu(tensor::GeluKind::Tanh)?)?)
    }
}

#[test]
fn a_transformer_block_with_clipped_gradients_is_clean() {
    let setup = |dev: &Device| {
        let (norm, attention) = (LayerNorm::new(&[8], dev)?, MultiheadAttention::new(8, 2, dev)?);
        let block =
            Block { norm, attention, wide: Linear::new(8, 16, dev)?, narrow: Linear::new(16, 8, dev)? };
        let adam = Adam::new(block.parameters(), 1e-2)?;
        Ok((block, adam))
    };
    let loss = |block: &Block, x: &Tensor| {
        let x = Tensor::cat(&[x, x], 1)?.reshape(&[1, 5, 8])?.into();
        block.forward(&x)?.square()?.mean(&[], false)
    };
    clean(setup, loss, |adam, mut gradients| {
        clip_grad_norm(&mut gradients, 0.1)?;
        adam.step(&gradients)
    });
}

#[derive(Module)]
struct Tied {
    words: Embedding,
}

impl Forward for Tied {
    fn forward(&self, x: &Var) -> Result<Var> {
        x.linear(self.words.weight(), None)
    }
}

#[test]
fn a_weight_that_is_used_twice_is_clean() {
    let setup = |dev: &Device| {
        let tied = Tied { words: Embedding::new(7, 4, dev)? };
        let adam = AdamW::new(tied.parameters(), 1e-2)?;
        Ok((tied, adam))
    };
    let loss = |tied: &Tied, x: &Tensor| {
        let words = x.argmax(1, false)?;
        cross_entropy(&tied.forward(&tied.words.forward(&words.clone().into())?.tanh()?)?, &words)
    };
    clean(setup, loss, |adam, gradients| adam.step(&gradients));
}

#[test]
fn a_variational_autoencoder_is_clean() {
    let loss = |(net, _): &State, x: &Tensor| {
        let x = Var::constant(x.clone());
        let hidden = net.first.forward(&x)?;
        let (mean, log_variance) = (hidden.narrow(1, 0, 3)?, hidden.narrow(1, 3, 3)?);
        let noise = Tensor::randn(&[5, 3], F32, None, x.device())?;
        let drawn = mean.add(&log_variance.mul_scalar(0.5)?.exp()?.mul(&noise.into())?)?;
        let drawn = Var::cat(&[&drawn, &mean], 1)?;
        let divergence = mean.square()?.add(&log_variance.exp()?)?.sub(&log_variance)?.mean(&[], false)?;
        mse(&net.second.forward(&drawn)?, &target(x.value())?)?.add(&divergence)
    };
    verified(loss).expect_clean();
}

#[test]
fn a_convolutional_net_is_clean() {
    let setup = |dev: &Device| {
        let net = Sequential::new().push(Conv2d::new(1, 3, [2, 2], dev)?).push(Relu).push(Conv2d::new(
            3,
            2,
            [1, 1],
            dev,
        )?);
        let sgd = Sgd::new(net.parameters(), 0.1)?;
        Ok((net, sgd))
    };
    let loss = |net: &Sequential, x: &Tensor| {
        net.forward(&x.reshape(&[1, 1, 5, 4])?.into())?.square()?.mean(&[], false)
    };
    clean(setup, loss, |sgd, gradients| sgd.step(&gradients));
}

#[test]
fn mixed_precision_and_recomputation_are_clean() {
    verified(|state, x| autograd::autocast(device::DType::BF16, || between(|y| Ok(y.clone()), state, x)))
        .expect_clean();
    verified(|state, x| between(|y| autograd::recompute(|y| y.square()?.tanh(), y), state, x)).expect_clean();
}

/// A frozen encoder is a step ahead of what learns.
#[test]
fn a_batch_that_is_prepared_is_clean() {
    let found = Comparison::new(&cpu())
        .setup(setup)
        .batches(batch)
        .prepare(|(net, _)| {
            let encoder = net.first.weight().value().square().unwrap();
            move |x: Tensor| x.matmul(&encoder.transpose(0, 1)?)
        })
        .prepares_on_host()
        .loss(|(net, _), hidden| net.second.forward(&hidden.clone().into())?.square()?.mean(&[], false))
        .update(|(_, sgd), gradients| sgd.step(&gradients))
        .model(|(net, _)| &net.second)
        .verify(VerifyOptions { explored: 4, ..VerifyOptions::default() })
        .unwrap();
    found.expect_clean();
    let schedules = &found.checks.iter().find(|(name, _)| *name == "equal bits").unwrap().1;
    for name in ["stages", "host-prepared", "captured, stages"] {
        assert!(schedules.contains(name), "{name}: {schedules}");
    }
}

/// A step of one's own: gradients of two batches are added, and a mean of the weights is kept.
#[test]
fn a_step_with_accumulated_gradients_and_averaged_weights_is_clean() {
    let setup = |dev: &Device| {
        let (net, sgd) = setup(dev)?;
        let mean = no_grad(|| net.first.weight().value().mul_scalar(1.0))?;
        Ok((net, sgd, mean))
    };
    let found = Comparison::new(&cpu())
        .setup(setup)
        .batches(|dev, n| Ok([batch(dev, 2 * n)?, batch(dev, 2 * n + 1)?]))
        .step(|(net, sgd, mean), batches: [Tensor; 2]| {
            let [a, b] = batches
                .map(|x| mse(&net.second.forward(&net.first.forward(&x.clone().into())?)?, &target(&x)?));
            let loss = a?.add(&b?)?.mul_scalar(0.5)?;
            sgd.step(&loss.backward()?)?;
            mean.mul_scalar_(0.9)?;
            mean.add_(&net.first.weight().value().mul_scalar(0.1)?)?;
            Ok(loss.value().clone())
        })
        .model(|(net, ..)| net)
        .state(|(.., mean)| vec![("mean".into(), mean.clone())])
        .verify(VerifyOptions::default())
        .unwrap();
    found.expect_clean();
}
