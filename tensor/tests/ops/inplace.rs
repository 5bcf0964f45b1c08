//! Ops in place: through views, from overlapping sources, never into expanded targets.

use device::Result;
use proptest::prelude::*;
use tensor::{DType, Error, ErrorKind, Rule, RuleStep, RuleValue, Tensor, Update, optimizer_step};

use crate::on::device;
use crate::reference::{Plain, broadcast_pairs};

proptest! {
    #[test]
    fn in_place_equals_out_of_place((_, b, out) in broadcast_pairs(), hows in (0_u8..4, 0_u8..4)) {
        let x = Plain::numbered(&out, 51);
        let y = Plain::numbered(&b, 52).f64(hows.1)?;
        type InPlace = fn(&Tensor, &Tensor) -> Result<()>;
        type Fresh = fn(&Tensor, &Tensor) -> Result<Tensor>;
        let ops: [(InPlace, Fresh); 5] = [
            (Tensor::add_, Tensor::add),
            (Tensor::sub_, Tensor::sub),
            (Tensor::mul_, Tensor::mul),
            (Tensor::div_, Tensor::div),
            (Tensor::copy_, |x, y| y.expand(x.shape())),
        ];
        for (in_place, fresh) in ops {
            let target = x.f64(hows.0)?;
            let expected = fresh(&target, &y)?.to_vec::<f64>()?;
            in_place(&target, &y)?;
            prop_assert_eq!(target.to_vec::<f64>()?, expected);
            prop_assert_eq!(target.version(), 1);
        }
    }
}

fn square() -> Result<Tensor> {
    Tensor::arange(0, 9, 1, DType::F32, &device())?.reshape(&[3, 3])
}

#[test]
fn a_view_writes_the_storage() -> Result<()> {
    let x = square()?;
    x.t()?.select(0, 1)?.fill_(-1.0)?;
    assert_eq!(x.to_vec::<f32>()?, [0.0, -1.0, 2.0, 3.0, -1.0, 5.0, 6.0, -1.0, 8.0]);
    x.narrow(0, 0, 1)?.mul_scalar_(2.0)?;
    x.add_scalar_(1.0)?;
    assert_eq!(x.to_vec::<f32>()?, [1.0, -1.0, 5.0, 4.0, 0.0, 6.0, 7.0, 0.0, 9.0]);
    assert_eq!(x.version(), 3);
    x.zero_()?;
    assert_eq!(x.to_vec::<f32>()?, [0.0; 9]);
    Ok(())
}

#[test]
fn overlapping_sources_are_read_before_they_change() -> Result<()> {
    let x = square()?;
    x.add_(&x.t()?)?;
    assert_eq!(x.to_vec::<f32>()?, [0.0, 4.0, 8.0, 4.0, 8.0, 12.0, 8.0, 12.0, 16.0]);
    let x = square()?;
    x.narrow(0, 1, 2)?.copy_(&x.narrow(0, 0, 2)?)?;
    assert_eq!(x.to_vec::<f32>()?, [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let x = square()?;
    x.mul_(&x.select(0, 1)?)?;
    assert_eq!(x.to_vec::<f32>()?, [0.0, 4.0, 10.0, 9.0, 16.0, 25.0, 18.0, 28.0, 40.0]);
    let x = square()?;
    x.sub_(&x)?;
    assert_eq!(x.to_vec::<f32>()?, [0.0; 9]);
    Ok(())
}

#[test]
fn copies_cast() -> Result<()> {
    let x = square()?;
    x.copy_(&Tensor::from_slice(&[true, false, true], &[3], x.device())?)?;
    assert_eq!(x.to_vec::<f32>()?, [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0]);
    Ok(())
}

#[test]
fn expanded_targets_are_refused() -> Result<()> {
    let x = Tensor::zeros(&[3], DType::F32, &device())?;
    let wide = x.expand(&[2, 3])?;
    let refused = |result: Result<()>| {
        matches!(
            result.as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { argument: "self", .. })
        )
    };
    assert!(refused(wide.add_(&x)));
    assert!(refused(wide.copy_(&x)));
    assert!(refused(wide.fill_(1.0)));
    assert!(refused(wide.mul_scalar_(2.0)));
    assert_eq!(x.version(), 0);
    assert!(matches!(
        x.add_(&wide).as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { op: "add_", .. })
    ));
    Ok(())
}

fn step(param: &Tensor, grad: &Tensor, states: &[&Tensor], step: RuleStep) -> Result<()> {
    let states: Vec<Tensor> = states.iter().map(|&state| state.clone()).collect();
    optimizer_step(&[Update { param, grad, master: None, states: &states, step }])
}

struct Momentum;

impl Rule<1, 3, 1> for Momentum {
    const OP: &'static str = "momentum";
    const STATES: [&'static str; 1] = ["momentum_buffer"];

    #[inline(always)]
    fn step<V: RuleValue>(
        [lr, keep, decay]: [V; 3],
        [first]: [V::Flag; 1],
        p: V,
        g: V,
        [b]: [V; 1],
    ) -> (V, [V; 1]) {
        let d = g + decay * p;
        let b = V::choose(first, d, keep * b + d);
        (p - lr * b, [b])
    }
}

#[test]
fn steps_of_a_rule_follow_its_formula() -> Result<()> {
    let (p, g) = (Plain::numbered(&[3, 4], 61), Plain::numbered(&[3, 4], 62));
    let [first, second] = [true, false].map(|first| RuleStep::new(Momentum, [0.1, 0.9, 0.01], [first]));
    for how in 0..4 {
        let (param, grad) = (p.f64(how)?, g.f64(how)?);
        let buffer = param.zeros_like()?;
        step(&param, &grad, &[&buffer], first)?;
        step(&param, &grad, &[&buffer], second)?;
        let expected = p.data.iter().zip(&g.data).map(|(&p, &g)| {
            let b = g + 0.01 * p;
            let p = p - 0.1 * b;
            p - 0.1 * (0.9 * b + g + 0.01 * p)
        });
        let expected = Plain { shape: vec![3, 4], data: expected.collect() };
        assert!(expected.matches(&param, 1e-12)?);
        assert_eq!((param.version(), buffer.version(), grad.version()), (2, 2, 0));
        assert!(matches!(
            step(&param, &grad, &[], first).as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { .. })
        ));
        let turned = grad.t()?;
        assert!(matches!(
            step(&param, &turned, &[&buffer], first).as_ref().map_err(Error::kind),
            Err(ErrorKind::ShapeMismatch { op: "momentum", .. })
        ));
    }
    Ok(())
}

/// The second step reads what the first one wrote.
#[test]
fn steps_that_share_memory_run_in_their_order() -> Result<()> {
    let count = 100_000;
    let (x, y) = (
        Tensor::full(&[count], 1.0, DType::F64, &device())?,
        Tensor::full(&[count], 2.0, DType::F64, &device())?,
    );
    let half = |x: &Tensor| x.narrow(0, 0, count / 2);
    // 1 + 2 = 3, 2 + 3 = 5, 3 + 5 = 8, and in one half 8 + 8 = 16 at last.
    tensor::accumulate(&[
        (x.clone(), y.clone()),
        (y.clone(), x.clone()),
        (x.clone(), y.clone()),
        (half(&x)?, x.narrow(0, count / 2, count / 2)?),
    ])?;
    let expected: Vec<f64> = (0..count).map(|at| if at < count / 2 { 16.0 } else { 8.0 }).collect();
    assert_eq!(x.to_vec::<f64>()?, expected);
    assert_eq!(y.to_vec::<f64>()?, vec![5.0; count]);
    // One that is wrong by itself leaves the others as they were.
    let shifted = (x.narrow(0, 0, count - 1)?, x.narrow(0, 1, count - 1)?);
    let refused = tensor::accumulate(&[(x.clone(), y.clone()), (x.clone(), y.clone()), shifted]);
    assert!(matches!(refused.as_ref().map_err(Error::kind), Err(ErrorKind::InvalidArgument { .. })));
    assert_eq!(x.to_vec::<f64>()?, expected);
    Ok(())
}
