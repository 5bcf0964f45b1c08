//! Products against three loops.

use device::Result;
use proptest::prelude::*;
use tensor::{DType, Tensor};

use crate::on::device;
use crate::reference::{Plain, broadcast_pairs};

/// The product of operands of rank 2 at least, leading axes broadcast to `batch`.
fn product(a: &Plain, b: &Plain, batch: &[usize]) -> Plain {
    let (m, k) = (a.shape[a.shape.len() - 2], a.shape[a.shape.len() - 1]);
    let n = b.shape[b.shape.len() - 1];
    let shape = [batch, &[m, n]].concat();
    Plain::from_fn(&shape, |index| {
        let (lead, tail) = index.split_at(batch.len());
        let term =
            |i: usize| a.broadcast_matrix_at(lead, tail[0], i) * b.broadcast_matrix_at(lead, i, tail[1]);
        (0..k).map(term).sum()
    })
}

impl Plain {
    fn broadcast_matrix_at(&self, lead: &[usize], row: usize, column: usize) -> f64 {
        let own = self.shape.len() - 2;
        let skip = lead.len() - own;
        let mut index: Vec<usize> =
            lead[skip..].iter().zip(&self.shape).map(|(&i, &n)| if n == 1 { 0 } else { i }).collect();
        index.extend([row, column]);
        self.at(&index)
    }
}

#[test]
fn integers() -> Result<()> {
    let x = Tensor::arange(0, 12, 1, DType::I64, &device())?.reshape(&[2, 2, 3])?;
    let (vector, stack) = (x.select(0, 0)?.select(0, 1)?, x.transpose(1, 2)?);
    assert_eq!(x.matmul(&vector)?.to_vec::<i64>()?, [14, 50, 86, 122]);
    assert_eq!(x.matmul(&stack)?.to_vec::<i64>()?, [5, 14, 14, 50, 149, 212, 212, 302]);
    // 86 and 122 of 256.
    let bytes = x.add_scalar(100.0)?.to_dtype(DType::U8)?;
    let wrapped = bytes.matmul(&vector.to_dtype(DType::U8)?)?;
    assert_eq!((wrapped.dtype(), wrapped.to_vec::<u8>()?), (DType::U8, vec![190, 226, 6, 42]));
    Ok(())
}

proptest! {
    #[test]
    fn batches_broadcast((a, b, batch) in broadcast_pairs(), m in 0_usize..5, k in 0_usize..5, n in 0_usize..5,
                         hows in (0_u8..4, 0_u8..4)) {
        let x = Plain::numbered(&[&a[..], &[m, k]].concat(), 41);
        let y = Plain::numbered(&[&b[..], &[k, n]].concat(), 42);
        let got = x.f64(hows.0)?.matmul(&y.f64(hows.1)?)?;
        prop_assert!(product(&x, &y, &batch).matches(&got, 1e-11)?);
    }

    #[test]
    fn vectors_lose_their_axis(batch in prop::collection::vec(0_usize..4, 0..3), m in 0_usize..5, k in 0_usize..5,
                               how in 0_u8..4) {
        let matrix = Plain::numbered(&[&batch[..], &[m, k]].concat(), 43);
        let vector = Plain::numbered(&[k], 44);
        let column = Plain { shape: vec![k, 1], data: vector.data.clone() };
        let mut expected = product(&matrix, &column, &batch);
        expected.shape.pop();
        prop_assert!(expected.matches(&matrix.f64(how)?.matmul(&vector.f64(how)?)?, 1e-11)?);

        let left = Plain::numbered(&[m], 45);
        let row = Plain { shape: vec![1, m], data: left.data.clone() };
        let mut expected = product(&row, &matrix, &batch);
        expected.shape.remove(batch.len());
        prop_assert!(expected.matches(&left.f64(how)?.matmul(&matrix.f64(how)?)?, 1e-11)?);

        let dot = vector.data.iter().map(|v| v * v).sum();
        let got = vector.f64(how)?.matmul(&vector.f64(0)?)?;
        let expected = Plain { shape: vec![], data: vec![dot] };
        prop_assert!(expected.matches(&got, 1e-11)?);
    }

    #[test]
    fn linear_is_a_product_and_a_sum(lead in prop::collection::vec(0_usize..4, 0..3), k in 0_usize..6,
                                     n in 0_usize..6, how in 0_u8..4, biased: bool) {
        let x = Plain::numbered(&[&lead[..], &[k]].concat(), 46);
        let (w, b) = (Plain::numbered(&[n, k], 47), Plain::numbered(&[n], 48));
        let expected = Plain::from_fn(&[&lead[..], &[n]].concat(), |index| {
            let (&at, lead) = index.split_last().expect("rank 1 at least");
            let term = |i: usize| x.at(&[lead, &[i]].concat()) * w.at(&[at, i]);
            (0..k).map(term).sum::<f64>() + if biased { b.data[at] } else { 0.0 }
        });
        let bias = b.f64(how)?;
        let got = x.f64(how)?.linear(&w.f64(how)?, biased.then_some(&bias))?;
        prop_assert!(expected.matches(&got, 1e-11)?);
    }
}

#[test]
fn f32_and_larger_sizes() -> Result<()> {
    let device = device();
    let (x, y) = (Plain::numbered(&[33, 70], 49), Plain::numbered(&[70, 41], 50));
    let got = x.tensor(1, DType::F32, &device)?.matmul(&y.tensor(0, DType::F32, &device)?)?;
    assert!(product(&x, &y, &[]).matches(&got, 1e-4)?);
    let tall = Tensor::ones(&[3, 4, 5], DType::F32, &device)?;
    let flat = tall.matmul(&Tensor::ones(&[5, 2], DType::F32, &device)?)?;
    assert_eq!((flat.shape(), flat.is_contiguous()), (&[3, 4, 2][..], true));
    Ok(())
}
