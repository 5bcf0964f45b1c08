use device::{DType, Element, Error, ErrorKind, Result, Stream, bf16, f16};

use super::*;
use crate::cpu::half::Half;
use crate::layout::Layout;
use crate::testing::{Array, bits, cpu, values_f32};

const ROWS: usize = 9;
const INDICES: [i64; 11] = [4, 0, 8, 8, 2, 4, 4, 1, 0, 3, 8];
/// The second bag is empty, and so is the last.
const OFFSETS: [i64; 5] = [0, 3, 3, 7, 11];
const PADDING: usize = 8;

/// The bag of each index.
fn bag_of(place: usize) -> usize {
    OFFSETS.iter().filter(|&&offset| offset <= place as i64).count() - 1
}

struct Case {
    width: usize,
    padding: Option<usize>,
    weighted: bool,
    mean: bool,
    /// Whether columns are stored before rows.
    transposed: bool,
}

impl Case {
    fn array(&self, stream: &Stream, seed: u64, rows: usize) -> (Vec<f32>, Array<f32>) {
        let values = values_f32(seed, rows * self.width);
        let order = if self.transposed { [1, 0] } else { [0, 1] };
        let array = Array::stored_as(stream, &values, &[rows, self.width], &order);
        (values, array)
    }

    /// Row and factor of a place, if it counts.
    fn member(&self, weights: &[f32], place: usize) -> Option<(usize, f32)> {
        let row = INDICES[place] as usize;
        (Some(row) != self.padding).then(|| (row, if self.weighted { weights[place] } else { 1.0 }))
    }

    fn check(&self, threads: usize) {
        let device = cpu(threads);
        let stream = device.default_stream();
        let (table, table_array) = self.array(&stream, 1, ROWS);
        let (g, g_array) = self.array(&stream, 2, OFFSETS.len());
        let weights = values_f32(3, INDICES.len());
        let mut sums = vec![0.0_f32; OFFSETS.len() * self.width];
        let mut members = vec![0.0_f32; OFFSETS.len()];
        let mut grad = vec![0.0_f32; ROWS * self.width];
        let mut weights_grad = vec![0.0_f32; INDICES.len()];
        let places = || (0..INDICES.len()).filter_map(|j| Some((j, bag_of(j), self.member(&weights, j)?)));
        for (_, bag, (row, factor)) in places() {
            members[bag] += 1.0;
            (0..self.width).for_each(|c| sums[bag * self.width + c] += table[row * self.width + c] * factor);
        }
        members.iter_mut().for_each(|count| *count = count.max(1.0));
        for (j, bag, (row, factor)) in places() {
            let factor = if self.mean { factor / members[bag] } else { factor };
            for c in 0..self.width {
                let (from, to) = (bag * self.width + c, row * self.width + c);
                grad[to] += g[from] * factor;
                weights_grad[j] += g[from] * table[to];
            }
        }
        if self.mean {
            sums.iter_mut().enumerate().for_each(|(i, sum)| *sum /= members[i / self.width]);
        }

        let (indices, offsets) = (
            Array::new(&stream, &INDICES, &[INDICES.len()]),
            Array::new(&stream, &OFFSETS, &[OFFSETS.len()]),
        );
        let weights = Array::new(&stream, &weights, &[INDICES.len()]);
        let bags = Bags {
            indices: indices.view(),
            offsets: Some(offsets.view()),
            count: OFFSETS.len(),
            weights: self.weighted.then(|| weights.view()),
            padding: self.padding,
        };
        let counts = Array::full(&stream, f32::NAN, &[OFFSETS.len()]);
        let wanted = self.mean.then(|| counts.view());
        let (_, out) = self.array(&stream, 4, OFFSETS.len());
        embedding_bag(&stream, table_array.view(), &bags, wanted, out.view()).expect("fits");
        assert_eq!(bits(&out.to_vec()), bits(&sums));
        if self.mean {
            assert_eq!(counts.to_vec(), members);
        }
        let (_, out) = self.array(&stream, 5, ROWS);
        embedding_bag_grad(&stream, g_array.view(), &bags, wanted, out.view(), None).expect("fits");
        assert_eq!(bits(&out.to_vec()), bits(&grad));
        let out = Array::full(&stream, f32::NAN, &[INDICES.len()]);
        embedding_bag_weights_grad(&stream, g_array.view(), table_array.view(), &bags, out.view())
            .expect("fits");
        assert_eq!(bits(&out.to_vec()), bits(&weights_grad));
    }
}

#[test]
fn bags_and_their_gradients_are_those_of_plain_loops() {
    for (width, threads) in [(1, 1), (5, 1), (2100, 2)] {
        for padding in [None, Some(PADDING)] {
            for (weighted, mean) in [(false, false), (true, false), (false, true), (true, true)] {
                for transposed in [false, true] {
                    Case { width, padding, weighted, mean, transposed }.check(threads);
                }
            }
        }
    }
}

/// Means and sums of weighted rows, and the gradients of both, of numbers that `of` makes.
fn all_results<T: Element>(stream: &Stream, width: usize, of: impl Fn(f32) -> T) -> [Vec<T>; 5] {
    let array = |seed, shape: &[usize]| {
        let values = values_f32(seed, shape.iter().product());
        Array::new(stream, &values.into_iter().map(&of).collect::<Vec<_>>(), shape)
    };
    let (count, len) = (OFFSETS.len(), INDICES.len());
    let (table, g, weights) = (array(1, &[ROWS, width]), array(2, &[count, width]), array(3, &[len]));
    let (indices, offsets) = (Array::new(stream, &INDICES, &[len]), Array::new(stream, &OFFSETS, &[count]));
    let members = Array::full(stream, f32::NAN, &[count]);
    let plain = Bags {
        indices: indices.view(),
        offsets: Some(offsets.view()),
        count,
        weights: None,
        padding: Some(PADDING),
    };
    let weighted = Bags { weights: Some(weights.view()), ..plain };
    let [mean, sum] = [5, 6].map(|seed| array(seed, &[count, width]));
    let [mean_grad, sum_grad] = [7, 8].map(|seed| array(seed, &[ROWS, width]));
    let weights_grad = array(9, &[len]);
    embedding_bag(stream, table.view(), &plain, Some(members.view()), mean.view()).expect("fits");
    assert_eq!(members.to_vec(), [2.0, 1.0, 3.0, 3.0, 1.0]);
    embedding_bag(stream, table.view(), &weighted, None, sum.view()).expect("fits");
    embedding_bag_grad(stream, g.view(), &plain, Some(members.view()), mean_grad.view(), None).expect("fits");
    embedding_bag_grad(stream, g.view(), &weighted, None, sum_grad.view(), None).expect("fits");
    embedding_bag_weights_grad(stream, g.view(), table.view(), &weighted, weights_grad.view()).expect("fits");
    [mean, sum, mean_grad, sum_grad, weights_grad].map(|array| array.to_vec())
}

fn half_results_are_rounded<H: Half + PartialEq>() {
    for (width, threads) in [(7, 1), (2100, 2)] {
        let device = cpu(threads);
        let stream = device.default_stream();
        let exact = all_results(&stream, width, |value| H::round(value).widen());
        let halves = all_results(&stream, width, H::round);
        for (which, (halves, exact)) in halves.iter().zip(&exact).enumerate() {
            let rounded: Vec<H> = exact.iter().map(|&value| H::round(value)).collect();
            assert!(*halves == rounded, "result {which} of {} at width {width}", H::DTYPE);
        }
    }
}

#[test]
fn halves_are_summed_in_f32_and_rounded_once() {
    half_results_are_rounded::<bf16>();
    half_results_are_rounded::<f16>();
}

/// The sums of `[0, 1, 2]` in bags of a table of 3 rows.
fn sums(stream: &Stream, indices: &[i64], offsets: Option<&[i64]>, count: usize) -> Result<Vec<f32>> {
    let table = Array::new(stream, &[1.0_f32, 10.0, 100.0], &[3, 1]);
    let indices = Array::new(stream, indices, &[indices.len()]);
    let offsets = offsets.map(|offsets| Array::new(stream, offsets, &[offsets.len()]));
    let bags = Bags {
        indices: indices.view(),
        offsets: offsets.as_ref().map(Array::view),
        count,
        weights: None,
        padding: None,
    };
    let out = Array::full(stream, f32::NAN, &[count, 1]);
    embedding_bag(stream, table.view(), &bags, None, out.view())?;
    stream.synchronize()?;
    out.try_vec()
}

#[test]
fn bags_of_one_size_need_no_offsets() {
    let device = cpu(1);
    let stream = device.default_stream();
    assert_eq!(sums(&stream, &[0, 1, 2, 2], None, 2).expect("fits"), [11.0, 200.0]);
    assert_eq!(sums(&stream, &[], None, 2).expect("fits"), [0.0, 0.0]);
    assert_eq!(sums(&stream, &[], None, 0).expect("fits"), [0.0; 0]);
}

#[test]
fn bad_bags_are_errors() {
    let device = cpu(1);
    let stream = device.default_stream();
    for count in [0, 2] {
        let error = sums(&stream, &[0, 1, 2], None, count).expect_err("uneven");
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { argument: "bags", .. }), "{error}");
    }
    let failed: [(&[i64], &[i64]); 6] = [
        (&[0, 3], &[0, 1]),
        (&[0, -1], &[0, 1]),
        (&[0, 1], &[1, 2]),
        (&[0, 1], &[0, 3]),
        (&[0, 1, 2], &[0, 2, 1]),
        (&[0, 1], &[0, -1]),
    ];
    for (indices, offsets) in failed {
        let error =
            sums(&stream, indices, Some(offsets), offsets.len()).expect_err("a failure of the command");
        assert!(matches!(error.kind(), ErrorKind::Async { .. }), "{indices:?} {offsets:?}: {error}");
    }
    let table = Array::full(&stream, 0.0_f32, &[3, 2]);
    let indices = Array::new(&stream, &[0_i64], &[1]);
    let bags = Bags { indices: indices.view(), offsets: None, count: 1, weights: None, padding: None };
    let wrong = |out: &Array<f32>, members: Option<&Array<f32>>| {
        embedding_bag(&stream, table.view(), &bags, members.map(Array::view), out.view())
            .expect_err("does not fit")
    };
    let (narrow, two) = (Array::full(&stream, 0.0, &[1, 1]), Array::full(&stream, 0.0, &[2]));
    assert!(matches!(wrong(&narrow, None).kind(), ErrorKind::ShapeMismatch { .. }));
    let out = Array::full(&stream, 0.0, &[1, 2]);
    assert!(matches!(wrong(&out, Some(&two)).kind(), ErrorKind::ShapeMismatch { .. }));
    let whole = Array::full(&stream, 0_i64, &[1, 2]);
    let error = embedding_bag(&stream, table.view(), &bags, None, whole.view()).expect_err("no float");
    assert!(matches!(error.kind(), ErrorKind::DTypeUnsupported { .. }), "{error}");
    // Numbers of members are of the type that is computed in.
    let halves = Array::full(&stream, bf16::ZERO, &[3, 2]);
    let (counts, out) = (Array::full(&stream, bf16::ZERO, &[1]), Array::full(&stream, bf16::ZERO, &[1, 2]));
    let error = embedding_bag(&stream, halves.view(), &bags, Some(counts.view()), out.view());
    assert!(
        matches!(
            error.as_ref().map_err(Error::kind),
            Err(ErrorKind::DTypeMismatch { expected: DType::F32, .. })
        ),
        "{error:?}"
    );
    let first = Layout::contiguous(&[1, 2]);
    let own = View { layout: &first, ..table.view() };
    let error = embedding_bag(&stream, table.view(), &bags, None, own).expect_err("shared memory");
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument { argument: "out", .. }), "{error}");
}

/// Two threads would write the gradients of what both bags have.
#[test]
fn weights_of_bags_that_overlap_get_no_gradient() {
    let device = cpu(2);
    let stream = device.default_stream();
    let (table, g) = (Array::full(&stream, 1_f32, &[3, 1]), Array::full(&stream, 1_f32, &[4, 1]));
    let (indices, weights) = (Array::new(&stream, &[0_i64; 8], &[8]), Array::full(&stream, 1_f32, &[8]));
    let offsets = Array::new(&stream, &[0_i64, 5, 2, 8], &[4]);
    let bags = Bags {
        indices: indices.view(),
        offsets: Some(offsets.view()),
        count: 4,
        weights: Some(weights.view()),
        padding: None,
    };
    let out = Array::full(&stream, 7_f32, &[8]);
    embedding_bag_weights_grad(&stream, g.view(), table.view(), &bags, out.view()).expect("a launch");
    let error = stream.synchronize().expect_err("decreasing offsets");
    assert!(matches!(error.kind(), ErrorKind::Async { .. }), "{error}");
    assert_eq!(out.to_vec(), [7.0; 8]);
}

#[test]
fn rows_with_the_weight_zero_are_not_read() {
    let device = cpu(1);
    let stream = device.default_stream();
    let nan = f32::NAN;
    let indices = Array::new(&stream, &[0_i64, 1, 2, 0], &[4]);
    let weights = Array::new(&stream, &[0_f32, 2.0, -3.0, 0.0], &[4]);
    let bags = |count| Bags {
        indices: indices.view(),
        offsets: None,
        count,
        weights: Some(weights.view()),
        padding: None,
    };
    let table = Array::new(&stream, &[nan, 5.0, 7.0], &[3, 1]);
    let (out, members) = (Array::full(&stream, 9_f32, &[2, 1]), Array::full(&stream, 0_f32, &[2]));
    embedding_bag(&stream, table.view(), &bags(2), Some(members.view()), out.view()).expect("a launch");
    assert_eq!((out.to_vec(), members.to_vec()), (vec![5.0, -10.5], vec![2.0, 2.0]));
    let g = Array::new(&stream, &[nan, 1.0, 2.0, nan], &[4, 1]);
    embedding_bag_grad(&stream, g.view(), &bags(4), None, table.view(), None).expect("a launch");
    assert_eq!(table.to_vec(), [0.0, 2.0, -6.0]);
}
