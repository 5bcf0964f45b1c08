//! Steps that fail.

use std::panic::panic_any;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn leaf() -> Result<Var> {
    Ok(Var::leaf(Tensor::ones(&[2], tensor::DType::F64, &Device::cpu())?))
}

/// What batches give is in batch order, whatever the number of lanes, and `run` records nothing.
#[test]
fn lanes_return_what_batches_give() -> Result<()> {
    let w = leaf()?;
    for count in [1, 2, 3] {
        let lanes = ConcurrentBatches::with_options(w.device(), count, Lanes::Always)?;
        let step =
            lanes.step(0..5, |index| Ok((w.mul_scalar(f64::from(index))?.sum_all()?, index.to_string())))?;
        assert_eq!(step.outputs, ["0", "1", "2", "3", "4"]);
        assert_eq!(
            step.losses.iter().map(Tensor::item::<f64>).collect::<Result<Vec<_>>>()?,
            [0.0, 2.0, 4.0, 6.0, 8.0]
        );
        assert_eq!(step.gradients.get(&w).map(|g| g.to_vec::<f64>()).transpose()?, Some(vec![10.0; 2]));
        let drawn = lanes.run(0..5, |_| {
            let y = w.dropout(0.5, None)?;
            assert!(!y.requires_grad());
            Ok(y.value().clone())
        })?;
        assert_eq!(drawn.len(), 5);
        let failed = lanes.run(0..5, |index| {
            if index > 2 { Err(Error::invalid("f", "index", "less", index)) } else { Ok(index) }
        });
        assert!(failed.is_err_and(|error| error.to_string().contains('3')), "the first error in batch order");
        assert!(lanes.run(0..0, Ok).is_err());
    }
    Ok(())
}

/// Runs without gradients are measured apart from steps.
#[test]
fn runs_are_measured_apart() -> Result<()> {
    let w = leaf()?;
    let lanes = ConcurrentBatches::new(w.device(), 2)?;
    for _ in 0..24 {
        lanes.run(0..2, |_| w.sum_all())?;
    }
    assert!(lanes.run_report().used.is_some() && lanes.report().used.is_none());
    Ok(())
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

#[test]
fn a_panic_in_an_update_that_was_put_off_is_that_of_its_lane() -> Result<()> {
    let w = leaf()?;
    for count in [1, 2] {
        let lanes = ConcurrentBatches::with_options(w.device(), count, Lanes::Always)?;
        let error = lanes.step(0..3, |index| {
            defer(move || {
                assert_ne!(index, 1, "update one is bad");
                Ok(())
            })?;
            w.sum_all()
        });
        let Err(ErrorKind::LanePanicked { lane, message }) = error.as_ref().map_err(Error::kind) else {
            panic!("{error:?}")
        };
        assert_eq!(*lane, 1 % count);
        assert!(message.contains("update one is bad"));
        assert_eq!(lanes.step(0..3, |_| w.sum_all())?.losses.len(), 3);
    }
    Ok(())
}

#[test]
fn a_panic_that_panics_when_dropped_is_that_of_its_lane() -> Result<()> {
    let w = leaf()?;
    for count in [1, 2] {
        let lanes = ConcurrentBatches::with_options(w.device(), count, Lanes::Always)?;
        for bad in 0..2 {
            let done = AtomicUsize::new(0);
            let error = lanes.step(0..4, |index| {
                if index == bad {
                    panic_any(Bomb);
                }
                done.fetch_add(1, Ordering::Relaxed);
                w.sum_all()
            });
            assert!(
                matches!(error.as_ref().map_err(Error::kind), Err(ErrorKind::LanePanicked { lane, .. }) if *lane == bad % count)
            );
            assert_eq!(done.load(Ordering::Relaxed), 3, "the other batches were run to their end");
            let put_off = lanes.step(0..1, |_| {
                defer(|| panic_any(Bomb))?;
                w.sum_all()
            });
            assert!(matches!(
                put_off.as_ref().map_err(Error::kind),
                Err(ErrorKind::LanePanicked { lane: 0, .. })
            ));
        }
    }
    Ok(())
}
