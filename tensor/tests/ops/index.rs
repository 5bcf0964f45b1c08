//! Joining and indexing against loops.

use device::Result;
use proptest::prelude::*;
use tensor::{DType, Tensor, grad};

use crate::on::device;
use crate::reference::{Plain, indices, shapes};

fn ints(values: &[i64], shape: &[usize]) -> Result<Tensor> {
    Tensor::from_slice(values, shape, &device())
}

/// Indices below `size` that repeat and come in no order.
fn picks(count: usize, size: usize) -> Vec<i64> {
    (0..count).map(|i| ((i * 7 + 3) % size.max(1)) as i64).collect()
}

proptest! {
    #[test]
    fn cat_joins(shape in shapes(), sizes in prop::collection::vec(0_usize..4, 1..4), axis in 0_usize..4,
                 how in 0_u8..4) {
        prop_assume!(!shape.is_empty());
        let axis = axis % shape.len();
        let part = |&size: &usize| {
            let mut shape = shape.clone();
            shape[axis] = size;
            Plain::numbered(&shape, size as u64)
        };
        let plains: Vec<Plain> = sizes.iter().map(part).collect();
        let tensors = plains.iter().map(|p| p.f64(how)).collect::<Result<Vec<_>>>()?;
        let mut whole = shape.clone();
        whole[axis] = sizes.iter().sum();
        let expected = Plain::from_fn(&whole, |index| {
            let mut index = index.to_vec();
            let mut which = 0;
            while index[axis] >= sizes[which] {
                index[axis] -= sizes[which];
                which += 1;
            }
            plains[which].at(&index)
        });
        let refs: Vec<&Tensor> = tensors.iter().collect();
        prop_assert!(expected.matches(&Tensor::cat(&refs, axis as isize - shape.len() as isize)?, 0.0)?);
    }

    #[test]
    fn stack_joins_along_a_new_axis(shape in shapes(), axis in 0_usize..5, how in 0_u8..4) {
        let axis = axis % (shape.len() + 1);
        let plains = [Plain::numbered(&shape, 1), Plain::numbered(&shape, 2)];
        let mut whole = shape.clone();
        whole.insert(axis, 2);
        let expected = Plain::from_fn(&whole, |index| {
            let mut index = index.to_vec();
            let which = index.remove(axis);
            plains[which].at(&index)
        });
        let (a, b) = (plains[0].f64(how)?, plains[1].f64(0)?);
        let named = axis as isize - shape.len() as isize - 1;
        prop_assert!(expected.matches(&Tensor::stack(&[&a, &b], named)?, 0.0)?);
    }

    #[test]
    fn index_select_and_its_gradient(shape in shapes(), count in 0_usize..6, axis in 0_usize..4, how in 0_u8..4) {
        prop_assume!(!shape.is_empty() && shape[axis % shape.len()] > 0);
        let axis = axis % shape.len();
        let at = picks(count, shape[axis]);
        let x = Plain::numbered(&shape, 21);
        let mut out = shape.clone();
        out[axis] = count;
        let source = |index: &[usize]| {
            let mut index = index.to_vec();
            index[axis] = at[index[axis]] as usize;
            index
        };
        let selected = Plain::from_fn(&out, |index| x.at(&source(index)));
        let idx = ints(&at, &[count])?;
        prop_assert!(selected.matches(&x.f64(how)?.index_select(axis as isize, &idx)?, 0.0)?);

        let g = Plain::numbered(&out, 22);
        let mut grad = Plain::from_fn(&shape, |_| 0.0);
        for index in indices(&out) {
            let place = source(&index).iter().zip(&shape).fold(0, |place, (&i, &n)| place * n + i);
            grad.data[place] += g.at(&index);
        }
        let got = grad::index_select(&g.f64(how)?, axis as isize, &idx, shape[axis])?;
        prop_assert!(grad.matches(&got, 1e-12)?);
        let mut added = grad.clone();
        added.data.iter_mut().zip(&x.data).for_each(|(a, b)| *a += b);
        let before = x.f64(how)?;
        prop_assert!(added.matches(&before.index_add(axis as isize, &idx, &g.f64(how)?)?, 1e-12)?);
        prop_assert!(x.matches(&before, 0.0)?);
    }

    #[test]
    fn gather_and_its_gradient(shape in shapes(), cut in 0_usize..2, count in 0_usize..5, axis in 0_usize..4,
                               how in 0_u8..4) {
        prop_assume!(!shape.is_empty() && shape[axis % shape.len()] > 0);
        let axis = axis % shape.len();
        let mut out: Vec<usize> = shape.iter().map(|&n| n.saturating_sub(cut).max(n.min(1))).collect();
        out[axis] = count;
        let at = Plain { shape: out.clone(), data: picks(out.iter().product(), shape[axis]).iter().map(|&i| i as f64).collect() };
        let idx = at.tensor(how, DType::I64, &device())?;
        let x = Plain::numbered(&shape, 23);
        let source = |index: &[usize]| {
            let mut own = index.to_vec();
            own[axis] = at.at(index) as usize;
            own
        };
        let gathered = Plain::from_fn(&out, |index| x.at(&source(index)));
        prop_assert!(gathered.matches(&x.f64(how)?.gather(axis as isize, &idx)?, 0.0)?);

        let g = Plain::numbered(&out, 24);
        let mut grad = Plain::from_fn(&shape, |_| 0.0);
        for index in indices(&out) {
            let place = source(&index).iter().zip(&shape).fold(0, |place, (&i, &n)| place * n + i);
            grad.data[place] += g.at(&index);
        }
        prop_assert!(grad.matches(&grad::gather(&g.f64(how)?, axis as isize, &idx, &shape, false)?, 1e-12)?);
        let mut added = grad.clone();
        added.data.iter_mut().zip(&x.data).for_each(|(a, b)| *a += b);
        prop_assert!(added.matches(&x.f64(how)?.scatter_add(axis as isize, &idx, &g.f64(how)?)?, 1e-12)?);
    }

    #[test]
    fn pad_narrow_is_the_gradient_of_narrow(shape in shapes(), axis in 0_usize..4, start in 0_usize..3,
                                            room in 0_usize..3, how in 0_u8..4) {
        prop_assume!(!shape.is_empty());
        let axis = axis % shape.len();
        let g = Plain::numbered(&shape, 25);
        let mut whole = shape.clone();
        whole[axis] += start + room;
        let expected = Plain::from_fn(&whole, |index| {
            let mut own = index.to_vec();
            match own[axis].checked_sub(start) {
                Some(i) if i < shape[axis] => {
                    own[axis] = i;
                    g.at(&own)
                }
                _ => 0.0,
            }
        });
        prop_assert!(expected.matches(&g.f64(how)?.pad_narrow(axis as isize, start, whole[axis])?, 0.0)?);
    }
}

#[test]
fn indices_may_be_views() -> Result<()> {
    let x = Tensor::arange(0, 10, 1, DType::F32, &device())?;
    let every_other = ints(&[9, 100, 0, 100, 4, 100], &[3, 2])?.narrow(1, 0, 1)?.reshape(&[3])?;
    assert_eq!(x.index_select(0, &every_other)?.to_vec::<f32>()?, [9.0, 0.0, 4.0]);
    let strided = ints(&[9, 100, 0, 100], &[2, 2])?.select(1, 1)?;
    assert!(x.index_select(0, &strided).is_err());
    Ok(())
}

#[test]
fn cross_entropy_against_the_composition() -> Result<()> {
    let logits = Plain::numbered(&[5, 7], 31);
    let labels = ints(&[0, 6, 3, 3, 1], &[5])?;
    for how in 0..4 {
        let x = logits.f64(how)?;
        let (losses, log_sums) = x.cross_entropy(&labels)?;
        let expected = x.log_softmax(1)?;
        let far = |a: &Tensor, b: &Tensor| a.sub(b)?.abs()?.max(&[], false)?.item::<f64>();
        assert!(far(&log_sums, &x.logsumexp(&[1], false)?)? < 1e-12);
        let picked = expected.gather(1, &labels.unsqueeze(1)?)?.squeeze(1)?.neg()?;
        assert!(far(&losses, &picked)? < 1e-12);
        let g = Plain::numbered(&[5], 32).f64(0)?;
        let column = g.unsqueeze(1)?;
        let one_hot = grad::gather(
            &Tensor::ones(&[5, 1], DType::F64, x.device())?,
            1,
            &labels.unsqueeze(1)?,
            &[5, 7],
            true,
        )?;
        let slope = expected.exp()?.sub(&one_hot)?.mul(&column)?;
        assert!(far(&grad::cross_entropy(&x, &log_sums, &labels, &g)?, &slope)? < 1e-12);
    }
    Ok(())
}

#[test]
fn an_empty_batch_has_no_losses() -> Result<()> {
    let device = device();
    let logits = Tensor::zeros(&[0, 3], DType::F32, &device)?;
    let (losses, log_sums) = logits.cross_entropy(&ints(&[], &[0])?)?;
    assert_eq!((losses.shape(), log_sums.shape()), (&[0][..], &[0][..]));
    Ok(())
}
