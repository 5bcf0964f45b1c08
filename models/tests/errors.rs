//! Where errors say that they come from.
#![allow(clippy::unwrap_used)]

extern crate models as streamgrad;

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use autograd::{
    BackwardOptions, ConcurrentBatches, GradCheck, GradOptions, Gradients, Pipeline, PipelineOptions, Save,
    Var, Vjp, autocast, grad, gradcheck, gradgradcheck, recompute, record,
};
use device::{DType, Device, Error, Result};
use models::{
    Adam, DataLoader, Digits, Embedding, Forward, Linear, LoaderOptions, Module, Optimizer, OptimizerState,
    Recompute, Sequential, checkpoint, cross_entropy,
};
use tensor::{Graph, Graphs, Tensor};

/// The error, and the line that follows the call.
#[track_caller]
fn here<T>(result: Result<T>) -> (Option<Error>, u32) {
    (result.err(), Location::caller().line())
}

fn check((error, line): (Option<Error>, u32)) -> Result<Error> {
    let error = error.ok_or_else(|| Error::invalid("test", "call", "refused", "done"))?;
    assert!(error.location().file().ends_with("errors.rs"), "{error:?}");
    assert_eq!(error.location().line(), line, "{error:?}");
    Ok(error)
}

fn of_shape(shape: &[usize]) -> Result<Tensor> {
    Tensor::ones(shape, DType::F32, &Device::cpu())
}

#[test]
fn an_error_has_the_line_of_the_call() -> Result<()> {
    let (a, b) = (of_shape(&[2, 3])?, of_shape(&[4, 5])?);
    let (x, y) = (Var::leaf(a.clone()), Var::leaf(b.clone()));
    check(here(a.matmul(&b)))?;
    check(here(a.exp()?.add(&b)))?;
    check(here(&a + &b))?;
    check(here(a.to_vec::<f64>()))?;
    check(here(x.linear(&y, None)))?;
    check(here(x.reshape(&[7])))?;
    check(here(&x * &y))?;
    check(here(x.backward()))?;
    check(here(x.conv2d(&y, None, &Default::default())))?;
    let labels = Tensor::zeros(&[7], DType::I64, &Device::cpu())?;
    check(here(cross_entropy(&x, &labels)))?;
    check(here(Adam::new(vec![], 0.1)))?;
    let both = [x.clone(), y.clone()];
    check(here(grad(&both, &both, GradOptions::default())))?;
    // An op between names its caller's caller no more.
    a.add(&a)?;
    check(here(a.sub(&b)))?;
    Ok(())
}

#[test]
fn an_error_in_a_model_has_the_layers_path() -> Result<()> {
    let device = Device::cpu();
    let block = Sequential::new().push(Linear::new(3, 4, &device)?).push(Linear::new(5, 4, &device)?);
    let model = Sequential::new().push(Linear::new(3, 3, &device)?).push(block);
    let error = check(here(model.forward(&Var::constant(of_shape(&[2, 3])?))))?;
    assert_eq!(error.module(), Some("1.1"));
    assert!(format!("{error:?}").ends_with("in module 1.1"), "{error:?}");
    Ok(())
}

/// An op whose gradient has a wrong shape, and the line that recorded it.
fn bad(x: &Var) -> Result<(Var, u32)> {
    let value = x.value().exp()?;
    let rule = |_: &Vjp<'_>, g: &Var| Ok([Some(g.reshape(&[7])?)].into_iter().collect());
    Ok((record("bad", &[x], &[Save::Output], value, rule), line!()))
}

/// Calls through `dyn` lose their caller; a box notes it.
#[test]
fn an_error_of_a_boxed_layer_or_optimizer_has_the_line_of_the_call() -> Result<()> {
    let device = Device::cpu();
    let layers: [Box<dyn Forward>; 2] = [
        Box::new(Linear::new(5, 4, &device)?),
        Box::new(Sequential::new().push(Linear::new(5, 4, &device)?)),
    ];
    let x = Var::constant(of_shape(&[2, 3])?);
    for layer in layers {
        check(here(layer.forward(&x)))?;
    }
    let shared: Arc<dyn Forward> = Arc::new(Linear::new(5, 4, &device)?);
    check(here(shared.forward(&x)))?;
    let w = Var::leaf(of_shape(&[2])?);
    let mut adam: Box<dyn Optimizer> = Box::new(Adam::new(vec![w], 0.1)?);
    check(here(adam.step(&Gradients::default())))?;
    check(here(adam.set_learning_rate(-1.0)))?;
    check(here(adam.load_state(&OptimizerState::default())))?;
    Ok(())
}

fn forward_line(error: &Error) -> Option<u32> {
    error.forward_location().map(|at| at.line())
}

#[test]
fn an_error_of_a_gradient_has_the_line_of_the_op() -> Result<()> {
    let x = Var::leaf(of_shape(&[1])?);
    let (y, line) = bad(&x)?;
    let error = check(here(y.backward()))?;
    assert_eq!(forward_line(&error), Some(line), "{error:?}");
    let value = x.value().exp()?;
    let rule =
        |_: &Vjp<'_>, g: &Var| Ok([Some(Var::constant(g.value().reshape(&[1, 1])?))].into_iter().collect());
    let (y, line) = (record("bad", &[&x], &[], value, rule), line!());
    let error = check(here(y.backward()))?;
    assert_eq!(forward_line(&error), Some(line), "{error:?}");
    let (y, line) = (x.exp()?, line!());
    y.value().add_scalar_(1.0)?;
    let error = check(here(y.sum_all()?.backward()))?;
    assert_eq!(forward_line(&error), Some(line), "{error:?}");
    Ok(())
}

/// Functions that take closures name the line of their call for what they refuse themselves.
#[test]
fn an_error_of_a_function_that_takes_a_closure_has_the_line_of_the_call() -> Result<()> {
    let device = Device::cpu();
    let a = of_shape(&[2, 3])?;
    let x = Var::leaf(a.clone());
    check(here(x.backward_each(BackwardOptions::default(), |_, g| Ok(Some(g.clone())))))?;
    check(here(autocast(DType::I64, || Ok(()))))?;
    check(here(gradcheck(|v| v[0].exp(), &[], GradCheck::default())))?;
    check(here(gradgradcheck(|v| v[0].exp(), &[], GradCheck::default())))?;
    check(here(a.update_(|_: &mut [f64]| ())))?;
    check(here(Tensor::from_fill(&[usize::MAX, 9], &device, |_: &mut [f32]| Ok(()))))?;
    check(here(Var::constant(a.clone()).register_hook(|_| Ok(None))))?;
    let seeds = || -> Result<()> {
        tensor::seed(3);
        Ok(())
    };
    check(here(Graph::capture(&device, seeds)))?;
    let mut graphs = Graphs::new(&device, |[x]: &[Tensor; 1]| {
        tensor::seed(3);
        x.exp()
    });
    let batch = [a.clone()];
    check(here(graphs.run(&batch)))?;
    let lanes = ConcurrentBatches::new(&device, 2)?;
    check(here(lanes.step([0.0; 0], |c| x.mul_scalar(c))))?;
    check(here(lanes.merged_step([0.0; 0], |c| x.mul_scalar(c), |v| v[0].sum_all())))?;
    check(here(ConcurrentBatches::new(&device, 0)))?;
    check(here(lanes.step([1.0, 2.0], |c| x.mul_scalar(c))))?;
    let mut gradients = x.sum_all()?.backward()?;
    check(here(gradients.map(|g| g.sum_all())))?;
    check(here(gradients.replace(&x, Var::constant(of_shape(&[1])?))))?;
    check(here(Gradients::default().insert([(x.exp()?, x.clone())])))?;
    let options = PipelineOptions { depth: 0, ..PipelineOptions::default() };
    check(here(Pipeline::with_options(&device, options).stage("one", |x: i32| Ok(x)).run(0..3)))?;
    Ok(())
}

const REFUSED: u32 = line!() + 2;
fn refused(x: &Var) -> Result<Var> {
    x.reshape(&[7])
}

/// What the user's code calls within a call of the library is at the lines of that code.
#[test]
fn an_error_in_the_users_code_has_the_line_of_that_code() -> Result<()> {
    let device = Device::cpu();
    let a = of_shape(&[2, 3])?;
    let x = Var::leaf(a.clone());
    let within = |result: Option<Error>| check((result, REFUSED)).map(drop);
    within(x.sum_all()?.backward_each(BackwardOptions::default(), |_, g| refused(g).map(Some)).err())?;
    within(autocast(DType::BF16, || refused(&x)).err())?;
    within(recompute(refused, &x).err())?;
    within(Graph::capture(&device, || refused(&x)).err())?;
    let double = a.to_dtype(DType::F64)?;
    within(gradcheck(|v| refused(&v[0]), std::slice::from_ref(&double), GradCheck::default()).err())?;
    within(gradgradcheck(|v| refused(&v[0]), &[double], GradCheck::default()).err())?;
    within(ConcurrentBatches::new(&device, 2)?.step([1, 2], |_| refused(&x)).err())?;
    let y = x.sum_all()?;
    let _hook = x.register_hook(|g| refused(g).map(Some))?;
    within(y.backward().err())
}

/// A layer of the user's, whose second op is refused.
#[derive(Module)]
struct Refused;

const LAYER: u32 = line!() + 3;
impl Forward for Refused {
    fn forward(&self, input: &Var) -> Result<Var> {
        input.exp()?.reshape(&[7])
    }
}

#[test]
fn an_error_in_the_users_layer_has_the_line_in_the_layer() -> Result<()> {
    let x = Var::leaf(of_shape(&[2, 3])?);
    let linear = || Linear::new(3, 3, &Device::cpu());
    let inner = Sequential::new().push(linear()?).push(Refused);
    let plain = Sequential::new().push(linear()?).push(inner);
    let error = check((plain.forward(&x).err(), LAYER))?;
    assert_eq!(error.module(), Some("1.1"));
    check((Sequential::new().push(Recompute::new(Refused)).forward(&x).err(), LAYER))?;
    // Layers of the library stand for the line of the model's call, in a recomputed block, too.
    let block = Sequential::new().push(Linear::new(5, 3, &Device::cpu())?);
    check(here(Recompute::new(block).forward(&x)))?;
    Ok(())
}

/// The lines of a recomputed block are those of the ops in it, not that of the backward pass.
#[test]
fn an_error_in_a_recomputed_block_has_the_line_of_its_op() -> Result<()> {
    let x = Var::leaf(of_shape(&[1])?);
    let line = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&line);
    let block = move |x: &Var| {
        let (y, line) = bad(x)?;
        seen.store(line, Ordering::Relaxed);
        Ok(y)
    };
    let error = check(here(recompute(block, &x)?.backward()))?;
    assert_eq!(forward_line(&error), Some(line.load(Ordering::Relaxed)), "{error:?}");
    Ok(())
}

#[test]
fn an_error_of_a_file_or_a_layers_options_has_the_line_of_the_call() -> Result<()> {
    let device = Device::cpu();
    let mut model = Adam::new(vec![Var::leaf(of_shape(&[1])?)], 0.1)?;
    let layer = Linear::new(2, 2, &device)?;
    check(here(checkpoint::load("/nowhere/at/all", &layer)))?;
    check(here(checkpoint::save("/nowhere/at/all", &layer)))?;
    check(here(checkpoint::load_training("/nowhere/at/all", &layer, &mut model)))?;
    check(here(checkpoint::save_training("/nowhere/at/all", &layer, &model, Default::default())))?;
    check(here(Embedding::with_options(
        3,
        2,
        models::EmbeddingOptions { padding_idx: Some(7), ..Default::default() },
        &device,
    )))?;
    check(here(models::Dropout::new(2.0)))?;
    check(here(models::data::npy::load("/nowhere/at/all", &device)))?;
    check(here(models::InMemory::new(vec![], 0, vec![], 0)))?;
    check(here(models::Text::new("")))?;
    check(here(models::TensorDataset::new(&of_shape(&[1])?, &of_shape(&[2])?)))?;
    check(here(DataLoader::new(Digits::load()?, LoaderOptions { batch: 0, ..LoaderOptions::default() })))?;
    Ok(())
}
