use autograd::autocast;
use device::{CpuConfig, ErrorKind};
use tensor::Graph;

use super::*;
use crate::{Sgd, clip_grad_norm};

fn leaf(values: &[f32], device: &Device) -> Var {
    Var::leaf(Tensor::from_slice(values, &[values.len()], device).unwrap())
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

/// Gradients that are the factors of `w`.
fn gradients(scaler: &GradScaler, w: &Var, factors: &[f32]) -> UnscaledGradients {
    let factors = Var::constant(Tensor::from_slice(factors, &[factors.len()], w.device()).unwrap());
    let loss = w.mul(&factors).unwrap().sum_all().unwrap();
    scaler.unscale(scaler.scale(&loss).unwrap().backward().unwrap()).unwrap()
}

#[test]
fn gradients_come_back_as_they_were_and_steps_are_made() {
    let dev = Device::cpu();
    let w = leaf(&[1.0, 2.0], &dev);
    let (mut scaler, mut sgd) = (GradScaler::new(&dev).unwrap(), Sgd::new(vec![w.clone()], 0.5).unwrap());
    let mut found = gradients(&scaler, &w, &[3.0, -4.0]);
    assert_eq!(values(&found.get(&w).unwrap()), [3.0, -4.0]);
    assert_eq!(clip_grad_norm(&mut found, 100.0).unwrap().item::<f32>().unwrap(), 5.0);
    assert!(scaler.step(&mut sgd, &found).unwrap());
    assert_eq!(values(w.value()), [-0.5, 4.0]);
}

#[test]
fn steps_that_are_not_finite_are_left_out_and_the_factor_follows() {
    let dev = Device::cpu();
    let (w, other) = (leaf(&[1.0, 2.0], &dev), leaf(&[5.0], &dev));
    let options =
        GradScalerOptions { init_scale: 1024.0, growth_interval: 2, ..GradScalerOptions::default() };
    let mut scaler = GradScaler::with_options(options, &dev).unwrap();
    let mut sgd = Sgd::new(vec![w.clone()], 1.0).unwrap();
    let mut second = Sgd::new(vec![other.clone()], 1.0).unwrap();
    let mut expected =
        [(1024.0, 1), (2048.0, 0), (1024.0, 0), (1024.0, 1), (512.0, 0), (512.0, 1), (1024.0, 0)].into_iter();
    for factors in [[0.0; 2], [0.0; 2], [f32::INFINITY, 0.0], [0.0; 2], [0.0, f32::NAN], [0.0; 2], [0.0; 2]] {
        let finite = factors == [0.0; 2];
        let found = gradients(&scaler, &w, &factors);
        assert_eq!(found.has_non_finite().unwrap(), !finite);
        assert_eq!(scaler.step(&mut sgd, &found).unwrap(), finite);
        // Another optimizer's gradients are its own.
        assert!(scaler.step(&mut second, &gradients(&scaler, &other, &[1.0])).unwrap());
        scaler.update().unwrap();
        let GradScalerState { scale, growth_tracker } = scaler.state();
        assert_eq!(Some((scale, growth_tracker)), expected.next());
        assert_eq!(
            scaler.scale(&other.detach()).unwrap().value().to_vec::<f32>().unwrap()[0],
            scale as f32 * values(other.value())[0]
        );
    }
    assert_eq!((values(w.value()), values(other.value())), (vec![1.0, 2.0], vec![-2.0]));
    let early = scaler.update();
    assert!(
        matches!(
            early.as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { argument: "update", .. })
        ),
        "{early:?}"
    );
}

#[test]
fn the_factor_stays_a_number_of_f32() {
    let dev = Device::cpu();
    let w = leaf(&[1.0], &dev);
    let mut sgd = Sgd::new(vec![w.clone()], 1.0).unwrap();
    for (init_scale, factor, expected) in [
        (2.0_f64.powi(127), 0.0, 2.0_f64.powi(127)),
        (f64::from(f32::MIN_POSITIVE), f32::NAN, f64::from(f32::MIN_POSITIVE)),
    ] {
        let options = GradScalerOptions { init_scale, growth_interval: 1, ..GradScalerOptions::default() };
        let mut scaler = GradScaler::with_options(options, &dev).unwrap();
        scaler.step(&mut sgd, &gradients(&scaler, &w, &[factor])).unwrap();
        scaler.update().unwrap();
        assert_eq!(scaler.state(), GradScalerState { scale: expected, growth_tracker: 0 });
    }
}

#[test]
fn any_number_of_steps_may_have_been_made() {
    let dev = Device::cpu();
    let w = leaf(&[1.0], &dev);
    let mut sgd = Sgd::new(vec![w.clone()], 1.0).unwrap();
    let mut scaler = GradScaler::new(&dev).unwrap();
    scaler.load_state(GradScalerState { scale: 4.0, growth_tracker: u64::MAX }).unwrap();
    scaler.step(&mut sgd, &gradients(&scaler, &w, &[1.0])).unwrap();
    scaler.update().unwrap();
    assert_eq!(scaler.state(), GradScalerState { scale: 8.0, growth_tracker: 0 });
}

/// A loss whose gradients are below what F16 can hold.
#[test]
fn small_gradients_survive_f16_with_it_only() {
    let dev = Device::cpu();
    let w = Var::leaf(Tensor::full(&[3, 2], 0.5, DType::F32, &dev).unwrap());
    let x = Var::constant(Tensor::ones(&[4, 2], DType::F32, &dev).unwrap());
    let loss = || autocast(DType::F16, || x.linear(&w, None)?.sum_all()?.mul_scalar(1e-9)).unwrap();
    let plain = loss().backward().unwrap().get(&w).unwrap();
    assert_eq!(plain.to_vec::<f32>().unwrap(), [0.0; 6]);
    let scaler = GradScaler::new(&dev).unwrap();
    let scaled = scaler.unscale(scaler.scale(&loss()).unwrap().backward().unwrap()).unwrap();
    for gradient in scaled.get(&w).unwrap().to_vec::<f32>().unwrap() {
        // 6.5e-5 in F16 has 11 bits, and so has four times as much.
        assert!((gradient / 4e-9 - 1.0).abs() < 2_f32.powi(-10), "{gradient}");
    }
}

#[test]
fn the_host_reads_one_number_for_a_step() {
    let dev = Device::cpu_with(CpuConfig::default());
    let parameters: Vec<Var> = (0..20).map(|_| leaf(&[1.0, 2.0], &dev)).collect();
    let mut sgd = Sgd::new(parameters.clone(), 0.1).unwrap();
    let mut scaler = GradScaler::new(&dev).unwrap();
    let before = dev.sync_stats();
    let parts: Vec<Var> = parameters.iter().map(|w| w.square().unwrap()).collect();
    let loss = Var::cat(&parts.iter().collect::<Vec<_>>(), 0).unwrap().sum_all().unwrap();
    let found = scaler.unscale(scaler.scale(&loss).unwrap().backward().unwrap()).unwrap();
    assert_eq!((dev.sync_stats() - before).host_syncs, 0);
    scaler.step(&mut sgd, &found).unwrap();
    scaler.step(&mut sgd, &found).unwrap();
    scaler.update().unwrap();
    assert_eq!((dev.sync_stats() - before).host_syncs, 1);
}

#[test]
fn captured_gradients_are_unscaled_by_the_factor_of_the_moment() {
    let dev = Device::cpu();
    let w = leaf(&[2.0], &dev);
    let factor = Tensor::full(&[], 3.0, DType::F32, &dev).unwrap();
    let mut sgd = Sgd::new(vec![w.clone()], 1.0).unwrap();
    let mut scaler = GradScaler::new(&dev).unwrap();
    let graph = Graph::capture(&dev, || {
        let loss = w.mul(&Var::constant(factor.clone()))?.sum_all()?;
        let found = scaler.unscale(scaler.scale(&loss)?.backward()?)?;
        assert!(matches!(
            found.has_non_finite().as_ref().map_err(Error::kind),
            Err(ErrorKind::Captured { .. })
        ));
        Ok(found)
    })
    .unwrap();
    for (number, expected) in [(3.0, -1.0), (f64::INFINITY, -1.0), (0.5, -1.5)] {
        graph.input(&factor).unwrap().set(&Tensor::full(&[], number, DType::F32, &dev).unwrap()).unwrap();
        let found = graph.replay().unwrap();
        assert_eq!(scaler.step(&mut sgd, &found).unwrap(), number.is_finite());
        scaler.update().unwrap();
        assert_eq!(values(w.value()), [expected]);
    }
    assert_eq!(scaler.state(), GradScalerState { scale: 32768.0, growth_tracker: 1 });
    let found = graph.replay().unwrap();
    let refused = Graph::capture(&dev, || {
        assert!(matches!(scaler.update().as_ref().map_err(Error::kind), Err(ErrorKind::Captured { .. })));
        scaler.step(&mut sgd, &found).map(drop)
    });
    assert!(matches!(
        refused.as_ref().map_err(Error::kind),
        Err(ErrorKind::Captured { op: "grad_scaler", .. })
    ));
}

#[test]
fn what_does_not_fit_is_an_error() {
    let dev = Device::cpu();
    let default = GradScalerOptions::default();
    for options in [
        GradScalerOptions { init_scale: 0.0, ..default },
        GradScalerOptions { init_scale: 1e40, ..default },
        // Its inverse is not finite in F32.
        GradScalerOptions { init_scale: 1e-39, ..default },
        GradScalerOptions { init_scale: f64::NAN, ..default },
        GradScalerOptions { growth_factor: 1.0, ..default },
        GradScalerOptions { backoff_factor: 1.0, ..default },
        GradScalerOptions { growth_interval: 0, ..default },
    ] {
        let found = GradScaler::with_options(options, &dev);
        assert!(
            matches!(
                found.as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { op: "grad_scaler", .. })
            ),
            "{options:?}"
        );
    }
    let mut scaler = GradScaler::new(&dev).unwrap();
    for scale in [-1.0, 1e-39] {
        let refused = scaler.load_state(GradScalerState { scale, growth_tracker: 0 });
        assert!(
            matches!(
                refused.as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { argument: "scale", .. })
            ),
            "{scale}"
        );
    }
    assert!(matches!(
        scaler.unscale(Gradients::default()).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { argument: "gradients", .. })
    ));
    let half = Var::leaf(Tensor::ones(&[2], DType::F16, &dev).unwrap());
    let refused = scaler.unscale(half.sum_all().unwrap().backward().unwrap());
    assert!(matches!(
        refused.as_ref().map_err(Error::kind),
        Err(ErrorKind::DTypeUnsupported { dtype: DType::F16, .. })
    ));
}
