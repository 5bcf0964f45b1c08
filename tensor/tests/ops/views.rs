//! Views against copies of the elements they should show.

use device::Result;
use proptest::prelude::*;
use tensor::{DType, Tensor};

use crate::on::device;
use crate::reference::{Plain, shapes};

/// A view op on both sides; axes are taken modulo the rank.
#[derive(Clone, Debug)]
enum Step {
    Transpose(usize, usize),
    Narrow(usize, usize, usize),
    Unsqueeze(usize),
    Squeeze(usize),
    Expand(usize),
    Flatten,
    Select(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        (0_usize..4, 0_usize..4).prop_map(|(a, b)| Step::Transpose(a, b)),
        (0_usize..4, 0_usize..4, 0_usize..4).prop_map(|(a, s, n)| Step::Narrow(a, s, n)),
        (0_usize..5).prop_map(Step::Unsqueeze),
        (0_usize..4).prop_map(Step::Squeeze),
        (1_usize..4).prop_map(Step::Expand),
        Just(Step::Flatten),
        (0_usize..4, 0_usize..4).prop_map(|(a, i)| Step::Select(a, i)),
    ];
    prop::collection::vec(one, 0..6)
}

fn apply(step: &Step, x: &Tensor, plain: &Plain) -> Result<(Tensor, Plain)> {
    let rank = plain.shape.len();
    let shape = &plain.shape;
    Ok(match *step {
        Step::Transpose(a, b) if rank > 0 => {
            let (a, b) = (a % rank, b % rank);
            let mut swapped = shape.clone();
            swapped.swap(a, b);
            let value = |index: &[usize]| {
                let mut index = index.to_vec();
                index.swap(a, b);
                plain.at(&index)
            };
            // One axis is named from the end.
            (x.transpose(a as isize, b as isize - rank as isize)?, Plain::from_fn(&swapped, value))
        }
        Step::Narrow(axis, start, len) if rank > 0 => {
            let axis = axis % rank;
            let start = start.min(shape[axis]);
            let len = len.min(shape[axis] - start);
            let mut cut = shape.clone();
            cut[axis] = len;
            let value = |index: &[usize]| {
                let mut index = index.to_vec();
                index[axis] += start;
                plain.at(&index)
            };
            (x.narrow(axis as isize, start, len)?, Plain::from_fn(&cut, value))
        }
        Step::Select(axis, place) if rank > 0 && shape[axis % rank] > 0 => {
            let axis = axis % rank;
            let place = place % shape[axis];
            let mut cut = shape.clone();
            cut.remove(axis);
            let value = |index: &[usize]| {
                let mut index = index.to_vec();
                index.insert(axis, place);
                plain.at(&index)
            };
            (x.select(axis as isize, place)?, Plain::from_fn(&cut, value))
        }
        Step::Unsqueeze(axis) if rank < 5 => {
            let axis = axis % (rank + 1);
            let mut grown = shape.clone();
            grown.insert(axis, 1);
            (x.unsqueeze(axis as isize)?, Plain { shape: grown, data: plain.data.clone() })
        }
        Step::Squeeze(axis) if rank > 0 => {
            let axis = axis % rank;
            let mut shrunk = shape.clone();
            if shrunk[axis] == 1 {
                shrunk.remove(axis);
            }
            (x.squeeze(axis as isize)?, Plain { shape: shrunk, data: plain.data.clone() })
        }
        Step::Expand(size) if rank < 5 => {
            let mut grown: Vec<usize> = shape.iter().map(|&n| if n == 1 { size } else { n }).collect();
            grown.insert(0, size);
            (x.expand(&grown)?, Plain::from_fn(&grown, |index| plain.broadcast_at(index)))
        }
        Step::Flatten if rank > 1 => {
            let flat = vec![shape[..2].iter().product(), shape[2..].iter().product()];
            (x.reshape(&flat)?, Plain { shape: flat, data: plain.data.clone() })
        }
        _ => (x.clone(), plain.clone()),
    })
}

proptest! {
    #[test]
    fn chains_of_views_show_the_right_elements(shape in shapes(), steps in steps()) {
        let mut plain = Plain::numbered(&shape, 1);
        let mut x = plain.f64(0)?;
        for step in &steps {
            (x, plain) = apply(step, &x, &plain)?;
            prop_assert_eq!(x.shape(), &plain.shape[..]);
            prop_assert!(plain.matches(&x, 0.0)?, "{step:?}");
            prop_assert!(plain.matches(&x.contiguous()?, 0.0)?);
            prop_assert!(x.contiguous()?.is_contiguous());
        }
    }

    #[test]
    fn permute_reorders(shape in shapes(), how in 0_u8..4, turn in 0_usize..4) {
        let plain = Plain::numbered(&shape, 2);
        let mut axes: Vec<isize> = (0..shape.len() as isize).collect();
        axes.rotate_left(turn.min(shape.len()));
        let turned: Vec<usize> = axes.iter().map(|&axis| shape[axis as usize]).collect();
        let expected = Plain::from_fn(&turned, |index| {
            let mut own = vec![0; index.len()];
            for (&axis, &i) in axes.iter().zip(index) {
                own[axis as usize] = i;
            }
            plain.at(&own)
        });
        prop_assert!(expected.matches(&plain.f64(how)?.permute(&axes)?, 0.0)?);
    }
}

fn counted(n: i64) -> Result<Tensor> {
    Tensor::arange(0, n, 1, DType::I64, &device())
}

#[test]
fn views_share_the_storage() -> Result<()> {
    let x = counted(12)?.reshape(&[3, 4])?;
    let views = [
        x.t()?,
        x.narrow(1, 1, 2)?,
        x.unsqueeze(0)?.expand(&[5, 3, 4])?,
        x.reshape(&[2, 6])?,
        x.flatten(0, -1)?,
        x.select(0, 2)?,
        x.split(&[1, 2], 0)?[1].clone(),
        x.t()?.t()?.reshape(&[12])?,
    ];
    assert!(views.iter().all(|view| view.same_storage(&x)));
    assert!(!x.t()?.reshape(&[12])?.same_storage(&x));
    assert!(!x.copy()?.same_storage(&x));
    Ok(())
}

#[test]
fn reshape_infers_one_size() -> Result<()> {
    let x = counted(12)?;
    assert_eq!(x.reshape_infer(&[3, -1])?.shape(), [3, 4]);
    assert_eq!(x.reshape_infer(&[-1])?.shape(), [12]);
    for wrong in [&[-1, -1][..], &[5, -1], &[-2, 6], &[0, -1]] {
        assert!(x.reshape_infer(wrong).is_err(), "{wrong:?}");
    }
    Ok(())
}

#[test]
fn flatten_joins_a_range_of_axes() -> Result<()> {
    let x = counted(24)?.reshape(&[2, 3, 4])?;
    assert_eq!(x.flatten(1, 2)?.shape(), [2, 12]);
    assert_eq!(x.flatten(0, 0)?.shape(), [2, 3, 4]);
    assert_eq!(x.flatten(0, -1)?.shape(), [24]);
    assert_eq!(Tensor::scalar(1.0_f32, &device())?.flatten(0, -1)?.shape(), [1]);
    assert!(x.flatten(2, 1).is_err());
    Ok(())
}

#[test]
fn split_gives_consecutive_parts() -> Result<()> {
    let parts = counted(6)?.split(&[1, 0, 5], 0)?;
    assert_eq!(parts[0].to_vec::<i64>()?, [0]);
    assert!(parts[1].is_empty());
    assert_eq!(parts[2].to_vec::<i64>()?, [1, 2, 3, 4, 5]);
    assert!(counted(6)?.split(&[1, 4], 0).is_err());
    Ok(())
}
