//! The forum's model: two batches a rank on lanes, an all-gather in the middle of each, one loss of both, one backward pass.

use streamgrad::prelude::*;
use streamgrad::{Gradients, RandomKey, Result};
use workloads::Forum;

use crate::on_ranks;

const BATCH: usize = 20;

fn forum(device: &Device) -> Result<Forum> {
    Forum::new([10, 20, 2], 2, device)
}

fn input(rank: usize, batch: usize, device: &Device) -> Result<Tensor> {
    let key = RandomKey { seed: 3, op: (2 * rank + batch) as u64 };
    Tensor::uniform(&[BATCH, 10], -1.0, 1.0, DType::F32, key, device)
}

fn merged_loss(outputs: &[Var], rank: usize) -> Result<Var> {
    let output = Var::cat(&[&outputs[0], &outputs[1]], 0)?;
    let key = RandomKey { seed: 4, op: rank as u64 };
    let target = Tensor::uniform(output.shape(), -1.0, 1.0, DType::F32, key, output.device())?;
    mse(&output, &Var::constant(target))
}

fn bits(gradients: &Gradients, parameters: &[Var]) -> Result<Vec<Vec<u32>>> {
    parameters.iter().map(|parameter| crate::common::bits(&gradients.get(parameter).unwrap())).collect()
}

/// One rank: its two batches run at once, each with a communicator of its own.
pub(crate) fn rank(comm: &Communicator) -> Result<Vec<Vec<u32>>> {
    let device = comm.device();
    let model = DataParallel::new(forum(device)?, comm)?;
    let lanes = ConcurrentBatches::with_options(device, 2, Lanes::Always)?;
    let comms = [comm.duplicate()?, comm.duplicate()?];
    let forward =
        |batch: usize| model.model().forward(&input(comm.rank(), batch, device)?.into(), &comms[batch]);
    let loss = |outputs: &[Var]| merged_loss(outputs, comm.rank());
    let mut gradients = Gradients::default();
    for _ in 0..20 {
        gradients = lanes.merged_step([0, 1], forward, loss)?.gradients;
        model.average(&mut gradients)?;
    }
    bits(&gradients, &model.parameters())
}

/// All ranks in one process: a model for each rank and batch, with the same parameters.
pub(crate) fn single_process(ranks: usize) -> Result<Vec<Vec<u32>>> {
    let device = Device::cpu_with(Default::default());
    let models = |_| -> Result<Vec<Forum>> { (0..ranks).map(|_| forum(&device)).collect() };
    let models: Vec<Vec<Forum>> = (0..2).map(models).collect::<Result<_>>()?;
    let mut outputs: Vec<Vec<Var>> = vec![Vec::new(); ranks];
    for (batch, models) in models.iter().enumerate() {
        let hidden = |rank: usize| models[rank].hidden(&input(rank, batch, &device)?.into());
        let hidden: Vec<Var> = (0..ranks).map(hidden).collect::<Result<_>>()?;
        // Gradients are added newest first: that of rank 0 shall be the first.
        for rank in (0..ranks).rev() {
            let gathered = Var::cat(&hidden.iter().collect::<Vec<_>>(), 0)?;
            outputs[rank].push(models[rank].outputs(&gathered, ranks)?);
        }
    }
    let mut total: Option<Var> = None;
    for (rank, outputs) in outputs.iter().enumerate() {
        let loss = merged_loss(outputs, rank)?;
        total = Some(match total {
            Some(total) => total.add(&loss)?,
            None => loss,
        });
    }
    let gradients = total.unwrap().backward()?;
    let first = models[0][0].parameters();
    let mut sums = Vec::new();
    for at in 0..first.len() {
        let of = |batch: usize, rank: usize| gradients.get(&models[batch][rank].parameters()[at]).unwrap();
        let mut sum = of(1, 0).add(&of(0, 0))?;
        for rank in 1..ranks {
            sum = sum.add(&of(1, rank).add(&of(0, rank))?)?;
        }
        sums.push(crate::common::bits(&sum.div_scalar(ranks as f64)?)?);
    }
    Ok(sums)
}

#[test]
fn the_forums_model_on_ranks_equals_one_process() {
    for ranks in [2, 4] {
        let expected = single_process(ranks).unwrap();
        for result in on_ranks(ranks, rank) {
            assert!(result.unwrap() == expected, "{ranks} ranks");
        }
    }
}
