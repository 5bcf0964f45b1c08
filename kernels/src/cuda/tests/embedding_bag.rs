//! Bags of rows. Sums are taken in one order on both devices, so that they are the same.

use super::*;
use crate::{Bags, View, embedding_bag, embedding_bag_weights_grad};

/// With memory to work in.
fn bag_grad(
    stream: &Stream,
    g: View<'_>,
    bags: &Bags<'_>,
    members: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    let bytes = crate::embedding_bag_grad_workspace(stream, g, bags, out)?;
    let memory = workspace(stream, bytes);
    crate::embedding_bag_grad(stream, g, bags, members, out, memory.as_ref().map(Array::view))
}

/// Indices below `size`, of which the small ones are frequent.
fn indices(seed: u64, len: usize, size: usize) -> Vec<i64> {
    values(seed, len).into_iter().map(|value| (value * value * value.abs() * size as f64) as i64).collect()
}

/// Where bags begin that are up to twice the mean in size; some are empty.
fn offsets(seed: u64, count: usize, len: usize) -> Vec<i64> {
    let mut offsets: Vec<i64> = values(seed, count)
        .into_iter()
        .map(|value| ((value + 1.0) / 2.0 * (len + 1) as f64) as i64)
        .collect();
    offsets.sort_unstable();
    offsets[0] = 0;
    offsets
}

/// What is computed.
#[derive(Clone, Copy, Debug)]
enum Kernel {
    Sum,
    Mean,
    Grad,
    MeanGrad,
    WeightsGrad,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    rows: usize,
    width: usize,
    len: usize,
    count: usize,
    how: Stored,
    equal: bool,
    weighted: bool,
    padding: Option<usize>,
}

impl Case {
    /// The result, and the numbers of members.
    fn run<T: Real>(&self, kernel: Kernel, stream: &Stream) -> Result<(Array<T>, Array<T::Computed>)> {
        let Case { rows, width, len, count, how, .. } = *self;
        let indices = Array::new(stream, &indices(1, len, rows), &[len]);
        let offsets = (!self.equal).then(|| Array::new(stream, &offsets(2, count, len), &[count]));
        let weights = self.weighted.then(|| Array::new(stream, &numbers::<T>(3, len), &[len]));
        let bags = Bags {
            indices: indices.view(),
            offsets: offsets.as_ref().map(Array::view),
            count,
            weights: weights.as_ref().map(Array::view),
            padding: self.padding,
        };
        let (table, g) =
            (stored::<T>(stream, 4, [rows, width], how), stored::<T>(stream, 5, [count, width], how));
        let written = if WRITABLE.contains(&how) { how } else { Stored::Dense };
        let members = Array::full(stream, T::Computed::of(3.0), &[count]);
        let out = match kernel {
            Kernel::Sum | Kernel::Mean => stored::<T>(stream, 6, [count, width], written),
            Kernel::Grad | Kernel::MeanGrad => stored::<T>(stream, 6, [rows, width], written),
            Kernel::WeightsGrad => Array::full(stream, T::of(7.0), &[len]),
        };
        let mean = matches!(kernel, Kernel::Mean | Kernel::MeanGrad).then(|| members.view());
        match kernel {
            Kernel::Sum | Kernel::Mean => embedding_bag(stream, table.view(), &bags, mean, out.view())?,
            Kernel::Grad | Kernel::MeanGrad => bag_grad(stream, g.view(), &bags, mean, out.view())?,
            Kernel::WeightsGrad => {
                embedding_bag_weights_grad(stream, g.view(), table.view(), &bags, out.view())?;
            }
        }
        Ok((out, members))
    }

    fn compare<T: Real>(&self, both: &Both, kernel: Kernel, tolerance: f64) {
        both.close(tolerance, (T::DTYPE, kernel, self), |stream| Ok(self.run::<T>(kernel, stream)?.0));
        if matches!(kernel, Kernel::Mean) {
            both.same((T::DTYPE, "members", self), |stream| Ok(self.run::<T>(kernel, stream)?.1));
        }
    }
}

/// `epsilon` is the distance from 1 to the next number of the type that is computed in.
fn bags_of<T: Real>(epsilon: f64) {
    let Some(both) = both() else { return };
    for (rows, width, len, count) in [
        (1, 1, 1, 1),
        (5, 4, 0, 3),
        (7, 13, 20, 5),
        (100, 1, 1000, 50),
        (3000, 16, 700, 70),
        (40, 300, 600, 6),
        (50, 64, 300, 300),
    ] {
        for how in STORED {
            for (equal, weighted, padding) in
                [(false, false, None), (true, true, None), (false, true, Some(0))]
            {
                let case = Case { rows, width, len, count, how, equal, weighted, padding };
                for kernel in [Kernel::Sum, Kernel::Mean, Kernel::Grad, Kernel::MeanGrad] {
                    case.compare::<T>(&both, kernel, 0.0);
                }
                // Products are at most 16, and each addition rounds once.
                case.compare::<T>(&both, Kernel::WeightsGrad, 16.0 * width as f64 * epsilon);
            }
        }
    }
}

#[test]
fn bags_and_their_gradients() {
    bags_of::<f32>(f64::from(f32::EPSILON));
    bags_of::<f64>(f64::EPSILON);
}

#[test]
fn bags_of_halves_and_their_gradients() {
    bags_of::<bf16>(f64::from(f32::EPSILON));
    bags_of::<f16>(f64::from(f32::EPSILON));
}

/// More rows than as many threads as keep the device busy could hold sums for.
#[test]
fn a_table_of_many_rows_of_halves_has_a_gradient() {
    let Some(both) = both() else { return };
    let case = Case {
        rows: 9000,
        width: 257,
        len: 5000,
        count: 40,
        how: Stored::Dense,
        equal: false,
        weighted: true,
        padding: None,
    };
    case.compare::<bf16>(&both, Kernel::Grad, 0.0);
}

#[test]
fn an_index_or_offset_out_of_range_is_an_error() {
    let Some(Both { cuda, .. }) = both() else { return };
    let table = Array::new(&cuda, &numbers::<f32>(1, 12), &[4, 3]);
    let bad: [(&[i64], &[i64], &str); 6] = [
        (&[0, 4], &[0, 1], "4"),
        (&[-1, 0], &[0, 1], "-1"),
        (&[0, 0], &[1, 2], "1"),
        (&[0, 0], &[0, 3], "3"),
        (&[0, 0, 0], &[0, 2, 1], "2"),
        (&[0, 0], &[0, i64::MAX], "9223372036854775807"),
    ];
    for (indices, offsets, told) in bad {
        let count = offsets.len();
        let (indices, starts) =
            (Array::new(&cuda, indices, &[indices.len()]), Array::new(&cuda, offsets, &[count]));
        let bags = Bags {
            indices: indices.view(),
            offsets: Some(starts.view()),
            count,
            weights: None,
            padding: None,
        };
        let out = Array::full(&cuda, 7_f32, &[count, 3]);
        embedding_bag(&cuda, table.view(), &bags, None, out.view()).expect("a launch");
        let error = cuda.synchronize().expect_err("a fault").to_string();
        assert!(error.contains("embedding_bag") && error.contains(told), "{offsets:?}: {error}");
        if offsets[0] == 0 && offsets[1] == 1 {
            let g = Array::full(&cuda, 1_f32, &[count, 3]);
            let grad = Array::full(&cuda, 7_f32, &[4, 3]);
            bag_grad(&cuda, g.view(), &bags, None, grad.view()).expect("a launch");
            let error = cuda.synchronize().expect_err("a fault").to_string();
            assert!(error.contains("embedding_bag_grad") && error.contains(told), "{offsets:?}: {error}");
            assert_eq!(grad.to_vec().iter().sum::<f32>(), 3.0, "the good index counts, the bad one does not");
        }
    }
}

/// As the gradient of a part of a concatenation is: rows begin where vectors may not.
#[test]
fn gradients_of_bags_may_lie_apart() {
    let Some(both) = both() else { return };
    both.same("rows of 8 in rows of 11", |stream| {
        let indices = Array::new(stream, &[0_i64, 2, 1, 2], &[4]);
        let bags = Bags { indices: indices.view(), offsets: None, count: 2, weights: None, padding: None };
        let g = Array::new(stream, &numbers::<f32>(1, 22), &[2, 11])
            .with(|layout| layout.narrow("test", 1, 0, 8).expect("within"));
        let out = Array::full(stream, 7_f32, &[3, 8]);
        bag_grad(stream, g.view(), &bags, None, out.view()).map(|()| out)
    });
}

#[test]
fn rows_with_the_weight_zero_are_not_read() {
    let Some(both) = both() else { return };
    let nan = f32::NAN;
    for (width, is_grad) in [(1, false), (8, false), (1, true), (8, true)] {
        both.same((width, is_grad), |stream| {
            let indices = Array::new(stream, &[0_i64, 1, 2, 0], &[4]);
            let weights = Array::new(stream, &[0_f32, 2.0, -3.0, 0.0], &[4]);
            let bags = Bags {
                indices: indices.view(),
                offsets: None,
                count: 2,
                weights: Some(weights.view()),
                padding: None,
            };
            let rows = |x: [f32; 3]| {
                let elements: Vec<f32> = x.into_iter().flat_map(|x| vec![x; width]).collect();
                Array::new(stream, &elements, &[3, width])
            };
            let (table, out) = (rows([nan, 5.0, 7.0]), Array::full(stream, 9_f32, &[2, width]));
            if !is_grad {
                return embedding_bag(stream, table.view(), &bags, None, out.view()).map(|()| out);
            }
            // The first bag's gradient goes to row 1 alone, so that row 0 gets nothing of its NaN.
            let bags = Bags { count: 4, ..bags };
            let elements: Vec<f32> = [nan, 1.0, 2.0, nan].into_iter().flat_map(|x| vec![x; width]).collect();
            let g = Array::new(stream, &elements, &[4, width]);
            bag_grad(stream, g.view(), &bags, None, table.view()).map(|()| table)
        });
    }
}
