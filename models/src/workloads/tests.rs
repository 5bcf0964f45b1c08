use super::*;
use crate::{Batches, StepBatches};

/// Trains as a serial run does: `lanes` batches a step, their gradients added.
fn train(workload: &dyn Workload, epochs: u64, lanes: usize) -> (Vec<f64>, Evaluation) {
    let dev = Device::cpu();
    let (train, test) = workload.data(7).unwrap();
    let model = workload.model(7, &dev).unwrap();
    let mut optimizer = workload.optimizer(model.parameters(), lanes).unwrap();
    let batches = Batches::new(train, workload.default_batch(), 7, &dev).unwrap().drop_last(true);
    let steps = epochs as usize * batches.per_epoch() / lanes;
    let mut losses = Vec::new();
    for step in StepBatches::new(batches, lanes, 0).unwrap().take(steps) {
        let mut total: Option<autograd::Gradients> = None;
        for batch in step.unwrap() {
            let loss = workload.loss(&*model, &batch).unwrap();
            losses.push(f64::from(loss.value().item::<f32>().unwrap()));
            let gradients = loss.backward().unwrap();
            match &mut total {
                Some(total) => total.merge(gradients).unwrap(),
                None => total = Some(gradients),
            }
        }
        optimizer.step(&total.unwrap()).unwrap();
    }
    (losses, workload.evaluate(&*model, &test, &dev).unwrap())
}

#[test]
fn two_batch_learns_the_digits() {
    let workload = find("two-batch").unwrap();
    let (losses, evaluation) = train(workload, workload.default_epochs(), 2);
    assert!((losses[0] - 10f64.ln()).abs() < 0.3, "an untrained model guesses: {}", losses[0]);
    let last = losses[losses.len() - 10..].iter().sum::<f64>() / 10.0;
    assert!(last < 0.1 * losses[0], "{last} after {}", losses[0]);
    assert!(evaluation.accuracy >= 0.95, "{evaluation:?}");
}

#[test]
fn mlp_learns_the_enlarged_digits() {
    let workload = find("mlp").unwrap();
    let (_, evaluation) = train(workload, workload.default_epochs(), 1);
    // Over ten runs with other seeds and fewer rows, validation accuracy was between 0.931 and 0.983.
    assert!(evaluation.accuracy >= 0.9, "{evaluation:?}");
}

#[test]
fn cnn_learns_the_enlarged_digits() {
    let workload = find("cnn").unwrap();
    let (losses, evaluation) = train(workload, workload.default_epochs(), 2);
    assert!((losses[0] - 10f64.ln()).abs() < 0.3, "an untrained model guesses: {}", losses[0]);
    assert!(evaluation.accuracy >= 0.9, "{evaluation:?}");
}

#[test]
fn gpt_learns_to_tell_characters() {
    let dev = Device::cpu();
    let workload = find("gpt").unwrap();
    let (train, test) = workload.data(7).unwrap();
    let model = workload.model(7, &dev).unwrap();
    let guessed = workload.evaluate(&*model, &test, &dev).unwrap();
    assert!(
        (guessed.loss - (train.classes() as f64).ln()).abs() < 0.5,
        "an untrained model guesses: {guessed:?}"
    );
    let mut optimizer = workload.optimizer(model.parameters(), 1).unwrap();
    for batch in Batches::new(train, 8, 7, &dev).unwrap().epoch(0).take(60) {
        optimizer.step(&workload.loss(&*model, &batch.unwrap()).unwrap().backward().unwrap()).unwrap();
    }
    let learnt = workload.evaluate(&*model, &test, &dev).unwrap();
    assert!(learnt.loss < 0.7 * guessed.loss && learnt.accuracy > 0.25, "{learnt:?} after {guessed:?}");
}

#[test]
fn the_message_lists_every_name() {
    let names: Vec<_> = ALL.iter().map(|workload| workload.name()).collect();
    let Err(Error::InvalidArgument { expected, value, .. }) = find("two_batch") else { panic!("found") };
    assert_eq!(expected, format!("one of {}", names.join(", ")));
    assert_eq!(&*value, "two_batch");
}

#[test]
fn no_lanes_is_an_error() {
    let workload = find("mlp").unwrap();
    let model = workload.model(1, &Device::cpu()).unwrap();
    assert!(workload.optimizer(model.parameters(), 0).is_err());
}
