//! Slots of captured steps.

use std::ops::Range;

use device::{Capture, DType, Device, Result};
use tensor::{EachReplay, Tensor};

use super::{Captured, NextSteps};
use crate::{Adam, Optimizer};
use autograd::Var;

/// Parameters that make the same steps of each replay share a slot, and so a launch; others do not.
#[test]
fn parameters_that_step_alike_share_a_slot() -> Result<()> {
    let device = Device::cpu();
    let w: Vec<Var> =
        (0..5).map(|_| Tensor::ones(&[3], DType::F32, &device).map(Var::leaf)).collect::<Result<_>>()?;
    let mut adam = Adam::new(w.clone(), 0.1)?;
    let gradients = |of: Range<usize>| {
        let loss = |w: &Var| w.square()?.sum(&[], false);
        w[of.clone()].iter().skip(1).try_fold(loss(&w[of.start])?, |sum, w| sum.add(&loss(w)?))?.backward()
    };
    adam.step(&gradients(4..5)?)?;
    let capture = Capture::new(&device)?;
    let slots = |adam: &mut Adam, steps: &[Range<usize>]| {
        capture.scope(|| -> Result<usize> {
            steps.iter().try_for_each(|of| adam.step(&gradients(of.clone())?))?;
            let captured = NextSteps::of(&adam.inner);
            let slots = Captured(captured.unwrap()).merge_slots();
            assert!(slots.iter().all(|(from, to)| from != to));
            Ok(slots.len())
        })
    };
    // The first step has those of 0 and 1, of 2 and 3, which step twice, and of 4, which is ahead; the second has those of 2 and 3.
    assert_eq!(slots(&mut adam, &[0..5, 2..4])?, 3);
    Ok(())
}
