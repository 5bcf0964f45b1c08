use device::Element;
use proptest::prelude::*;

use super::*;
use crate::testing::{Array, cpu};

fn cast<A: Element, B: Element>(x: &[A]) -> Vec<B> {
    let device = cpu(1);
    let stream = device.default_stream();
    let (from, to) = (Array::new(&stream, x, &[x.len()]), Array::full(&stream, B::default(), &[x.len()]));
    copy(&stream, from.view(), to.view()).expect("a valid cast");
    to.to_vec()
}

#[test]
fn casts_truncate_saturate_wrap_and_test_for_zero() {
    // Twice the values: the first ones through the vector loop, too.
    let x = [0.0, -0.0, 0.4, -1.9, 255.5, 300.0, -7.0, 1e30, -1e30, f64::NAN, f64::INFINITY, 2.5e9];
    let twice = |x: &[f64]| [x, x, x].concat();
    let wide = twice(&x);
    let narrow: Vec<f32> = wide.iter().map(|&x| x as f32).collect();
    let truths: Vec<bool> = wide.iter().map(|&x| x != 0.0).collect();
    assert_eq!(cast::<f64, i64>(&wide), wide.iter().map(|&x| x as i64).collect::<Vec<_>>());
    assert_eq!(cast::<f32, i64>(&narrow), narrow.iter().map(|&x| x as i64).collect::<Vec<_>>());
    assert_eq!(cast::<f64, u8>(&wide), wide.iter().map(|&x| x as u8).collect::<Vec<_>>());
    assert_eq!(cast::<f32, u8>(&narrow), narrow.iter().map(|&x| x as u8).collect::<Vec<_>>());
    assert_eq!(cast::<f64, bool>(&wide), truths);
    assert_eq!(cast::<f32, bool>(&narrow), truths);
    let bits = |x: Vec<f32>| x.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(cast::<f64, f32>(&wide)), bits(narrow.clone()));
    assert_eq!(bits(cast::<f64, f32>(&cast::<f32, f64>(&narrow))), bits(narrow));
    let integers = [0_i64, 1, -1, 255, 256, 511, i64::MAX, i64::MIN, 1 << 53, (1 << 53) + 1];
    assert_eq!(cast::<i64, u8>(&integers), integers.map(|x| x as u8));
    assert_eq!(cast::<i64, f32>(&integers), integers.map(|x| x as f32));
    assert_eq!(cast::<i64, f64>(&integers), integers.map(|x| x as f64));
    assert_eq!(cast::<i64, bool>(&integers), integers.map(|x| x != 0));
    let bytes: Vec<u8> = (0..=255).collect();
    assert_eq!(cast::<u8, f32>(&bytes), bytes.iter().map(|&x| f32::from(x)).collect::<Vec<_>>());
    assert_eq!(cast::<u8, f64>(&bytes), bytes.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
    assert_eq!(cast::<u8, i64>(&bytes), bytes.iter().map(|&x| i64::from(x)).collect::<Vec<_>>());
    assert_eq!(cast::<u8, bool>(&bytes), bytes.iter().map(|&x| x != 0).collect::<Vec<_>>());
    assert_eq!(cast::<bool, f32>(&[true, false]), [1.0, 0.0]);
    assert_eq!(cast::<bool, f64>(&[true, false]), [1.0, 0.0]);
    assert_eq!(cast::<bool, i64>(&[true, false]), [1, 0]);
    assert_eq!(cast::<bool, u8>(&[true, false]), [1, 0]);
}

/// Elements that differ from their neighbours, whatever their size.
fn pattern<T: Element>(len: usize, make: impl Fn(usize) -> T) -> Vec<T> {
    (0..len).map(make).collect()
}

fn every_copy_keeps_the_elements<T: Element>(make: impl Fn(usize) -> T + Copy) {
    for threads in [1, 3] {
        let device = cpu(threads);
        let stream = device.default_stream();
        // Shapes below, at and beyond the sizes of tiles, blocks and large copies.
        for shape in [[1, 2, 3], [3, 8, 8], [2, 9, 33], [1, 70, 129], [5, 1, 7], [1, 300, 500]] {
            let x = pattern(shape.iter().product(), make);
            for order in [[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1]] {
                let strided = Array::stored_as(&stream, &x, &shape, &order);
                let out = Array::full(&stream, T::default(), &shape);
                copy(&stream, strided.view(), out.view()).expect("a valid copy");
                assert_eq!(out.to_vec(), x, "{shape:?} stored as {order:?}");
                let back = Array::stored_as(&stream, &vec![T::default(); x.len()], &shape, &order);
                copy(&stream, out.view(), back.view()).expect("a valid copy");
                assert_eq!(back.to_vec(), x, "{shape:?} into {order:?}");
            }
        }
        let row = pattern(33, make);
        let expanded = Array::new(&stream, &row, &[33, 1])
            .with(|layout| layout.expand("test", &[2, 33, 20]).expect("fits"));
        let out = Array::full(&stream, T::default(), &[2, 33, 20]);
        copy(&stream, expanded.view(), out.view()).expect("a valid copy");
        assert_eq!(out.to_vec(), expanded.to_vec());
        copy(&stream, out.view(), out.view()).expect("a copy onto itself");
        assert_eq!(out.to_vec(), expanded.to_vec());
    }
}

#[test]
fn copies_are_split_over_threads_without_a_trace() {
    let shape = [2, 601, 1100];
    let device = cpu(3);
    let stream = device.default_stream();
    let x = pattern(shape.iter().product(), |i| i as f32);
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2]] {
        let strided = Array::stored_as(&stream, &x, &shape, &order);
        let out = Array::full(&stream, 0.0_f32, &shape);
        copy(&stream, strided.view(), out.view()).expect("a valid copy");
        assert!(out.to_vec() == x, "stored as {order:?}");
        fill(&stream, 7.0.into(), strided.view()).expect("a valid fill");
        assert!(strided.to_vec().iter().all(|&x| x == 7.0));
    }
}

#[test]
fn copies_keep_elements_of_four_bytes() {
    every_copy_keeps_the_elements(|i| i as f32);
}

#[test]
fn copies_keep_elements_of_eight_bytes() {
    every_copy_keeps_the_elements(|i| i as i64);
}

#[test]
fn copies_keep_elements_of_one_byte() {
    every_copy_keeps_the_elements(|i| (i % 251) as u8);
}

#[test]
fn copies_keep_elements_of_two_bytes() {
    every_copy_keeps_the_elements(|i| bf16::from_bits((i * 40_503 % 32_621) as u16));
}

#[test]
fn copies_keep_every_bit_of_a_nan() {
    let device = cpu(1);
    let stream = device.default_stream();
    let x: Vec<f32> = (0..40).map(|i| f32::from_bits(0x7F80_0001 + i)).collect();
    let out = Array::full(&stream, 0.0_f32, &[40]);
    copy(&stream, Array::new(&stream, &x, &[40]).view(), out.view()).expect("a valid copy");
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&out.to_vec()), bits(&x));
}

#[test]
fn fills_reach_the_view_and_nothing_else() {
    let device = cpu(2);
    let stream = device.default_stream();
    let whole = Array::full(&stream, 1.0_f32, &[5, 70]);
    let inner =
        whole.layout.narrow("test", 1, 3, 64).expect("within").narrow("test", 0, 1, 3).expect("within");
    fill(&stream, 2.5.into(), View::new(whole.view().buffer, DType::F32, &inner)).expect("a valid fill");
    for (i, x) in whole.to_vec().into_iter().enumerate() {
        let inside = (1..4).contains(&(i / 70)) && (3..67).contains(&(i % 70));
        assert_eq!(x, if inside { 2.5 } else { 1.0 }, "element {i}");
    }
    fn filled<T: Element>(value: impl Into<Scalar>) -> T {
        let device = cpu(1);
        let stream = device.default_stream();
        let out = Array::full(&stream, T::default(), &[100]);
        fill(&stream, value.into(), out.view()).expect("a valid fill");
        let x = out.to_vec();
        assert!(x.iter().all(|&y| y == x[0]));
        x[0]
    }
    assert_eq!(filled::<f32>(1.5), 1.5);
    assert_eq!(filled::<f64>(0.1), 0.1);
    assert_eq!(filled::<f32>(16_777_217_i64), 16_777_216.0);
    assert_eq!(filled::<i64>(-2.7), -2);
    assert_eq!(filled::<i64>(i64::MIN), i64::MIN);
    assert_eq!(filled::<u8>(-1_i64), 255);
    assert_eq!(filled::<u8>(300.0), 255);
    assert!(filled::<bool>(0.5));
    assert!(!filled::<bool>(0_i64));
    assert_eq!(filled::<f32>(true), 1.0);
}

#[test]
fn bytes_that_are_no_truth_values_count_as_true() {
    let device = cpu(1);
    let stream = device.default_stream();
    let raw = Array::new(&stream, &[0_u8, 1, 2, 255], &[4]);
    let truths = View::new(raw.view().buffer, DType::Bool, &raw.layout);
    let out = Array::full(&stream, 0_i64, &[4]);
    copy(&stream, truths, out.view()).expect("a valid cast");
    assert_eq!(out.to_vec(), [0, 1, 1, 1]);
}

proptest! {
    /// A copy between any two layouts of one shape keeps the elements, and a cast converts each of them.
    #[test]
    fn strided_copies_and_casts_agree_with_contiguous_ones(
        shape in prop::collection::vec(1..20_usize, 1..4),
        from in 0..6_usize,
        to in 0..6_usize,
    ) {
        let device = cpu(1);
        let stream = device.default_stream();
        let n: usize = shape.iter().product();
        let order = |which: usize| {
            let mut order: Vec<usize> = (0..shape.len()).collect();
            order.rotate_left(which % shape.len());
            if which >= 3 {
                order.reverse();
            }
            order
        };
        let x: Vec<f32> = (0..n).map(|i| i as f32 - 7.5).collect();
        let strided = Array::stored_as(&stream, &x, &shape, &order(from));
        let out = Array::stored_as(&stream, &vec![0.0_f32; n], &shape, &order(to));
        copy(&stream, strided.view(), out.view()).expect("a valid copy");
        prop_assert_eq!(out.to_vec(), x.clone());
        let out = Array::stored_as(&stream, &vec![0_i64; n], &shape, &order(to));
        copy(&stream, strided.view(), out.view()).expect("a valid cast");
        prop_assert_eq!(out.to_vec(), x.iter().map(|&x| x as i64).collect::<Vec<_>>());
    }
}
