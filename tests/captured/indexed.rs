//! Indexed sums of captured steps, onto zeros and onto other values.

use super::bits;
use crate::common::devices::each_device;
use streamgrad::prelude::*;
use streamgrad::{Graph, GraphOptions, RandomKey, Result, Schedule};

const SCHEDULES: [Schedule; 2] = [Schedule::Inline, Schedule::Threads];

/// The gradient of rows that were picked: of those of `size` that no index names, it is 0.
#[test]
fn captured_sums_at_indices_have_the_bits_of_the_step() {
    each_device(&SCHEDULES, |device| {
        for (size, picked, width) in [(7, 20, 5), (3000, 40, 3), (300, 1, 300), (65, 2000, 128), (9, 0, 600)]
        {
            for (dtype, axis) in
                [(DType::F32, 0), (DType::F32, 1), (DType::F64, 0), (DType::BF16, 0), (DType::F16, 1)]
            {
                let shape = |rows: usize| if axis == 0 { [rows, width] } else { [width, rows] };
                let randn = |rows: usize, op| {
                    Tensor::randn(&shape(rows), DType::F32, RandomKey { seed: 9, op }, device)?
                        .to_dtype(dtype)
                };
                let table = Var::leaf(randn(size, 1)?);
                // Zeros of both signs among the slopes.
                let slopes = Var::constant(randn(picked, 2)?.relu()?.neg()?);
                let indices: Vec<i64> = (0..picked).map(|at| (at * at % size) as i64).collect();
                let indices = Tensor::from_slice(&indices, &[picked], device)?;
                let step = || -> Result<Option<Tensor>> {
                    let rows = table.index_select(axis, &indices)?;
                    Ok(rows.mul(&slopes)?.sum(&[], false)?.backward()?.get(&table))
                };
                let expected = step()?.map(|slopes| bits(&slopes)).transpose()?;
                for fuse in [false, true] {
                    let options = GraphOptions { fuse, ..GraphOptions::default() };
                    let graph = Graph::capture_with(device, options, step)?;
                    let what = format!("{size}, {picked} of {width} along {axis}, {dtype}, fuse {fuse}");
                    for _ in 0..2 {
                        let found = graph.replay()?.map(|slopes| bits(&slopes)).transpose()?;
                        assert!(found == expected, "{what}, {device:?}");
                    }
                }
            }
        }
        Ok(())
    });
}

#[test]
fn sums_that_begin_with_something_else_stay_as_they_are() {
    each_device(&SCHEDULES, |device| {
        let indices = Tensor::from_slice(&[2_i64, 0, 2], &[3], device)?;
        let src = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2], device)?;
        let ones = || Tensor::full(&[4, 2], 1.0, DType::F32, device)?.index_add(0, &indices, &src);
        let graph = Graph::capture(device, ones)?;
        for _ in 0..2 {
            assert_eq!(graph.replay()?.to_vec::<f32>()?, [4.0, 5.0, 1.0, 1.0, 7.0, 9.0, 1.0, 1.0]);
        }
        // An index that is no row.
        let table = Var::leaf(Tensor::zeros(&[4, 2], DType::F32, device)?);
        let graph = Graph::capture(device, || {
            Ok(table.index_select(0, &indices)?.sum(&[], false)?.backward()?.get(&table))
        })?;
        graph.input(&indices)?.set(&Tensor::from_slice(&[2_i64, 4, 0], &[3], device)?)?;
        assert!(graph.replay().and_then(|_| device.synchronize()).is_err());
        graph.input(&indices)?.set(&Tensor::from_slice(&[1_i64, 1, 0], &[3], device)?)?;
        let found = graph.replay()?.map(|slopes| slopes.to_vec::<f32>()).transpose()?;
        assert_eq!(found, Some(vec![1.0, 1.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0]));
        Ok(())
    });
}
