use device::{DType, Error};

use super::*;
use crate::layout::Layout;
use crate::testing::{Array, cpu, values_f32};

/// Flat index of `index` in `shape`.
fn flat(shape: &[usize], index: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |flat, (&i, &size)| flat * size + i)
}

fn index_of(shape: &[usize], mut flat: usize) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for axis in (0..shape.len()).rev() {
        index[axis] = flat % shape[axis];
        flat /= shape[axis];
    }
    index
}

const SHAPE: [usize; 3] = [5, 6, 40];
const ORDERS: [[usize; 3]; 3] = [[0, 1, 2], [2, 1, 0], [1, 0, 2]];

#[test]
fn rows_are_selected_and_added_along_every_axis() {
    for threads in [1, 2] {
        let device = cpu(threads);
        let stream = device.default_stream();
        let x = values_f32(1, SHAPE.iter().product());
        for axis in 0..3 {
            let indices: Vec<i64> = (0..70).map(|i| i * 7 % SHAPE[axis] as i64).collect();
            let mut part = SHAPE;
            part[axis] = indices.len();
            let n: usize = part.iter().product();
            let source = |i: usize| {
                let mut index = index_of(&part, i);
                index[axis] = indices[index[axis]] as usize;
                flat(&SHAPE, &index)
            };
            let selected: Vec<f32> = (0..n).map(|i| x[source(i)]).collect();
            let src = values_f32(2, n);
            let mut added = x.clone();
            (0..n).for_each(|i| added[source(i)] += src[i]);
            let index = Array::new(&stream, &indices, &[70]);
            for order in ORDERS {
                let array = |x: &[f32], shape| Array::stored_as(&stream, x, shape, &order);
                let (whole, out) = (array(&x, &SHAPE), array(&vec![0.0; n], &part));
                index_select(&stream, whole.view(), axis as isize - 3, index.view(), out.view())
                    .expect("fits");
                assert_eq!(out.to_vec(), selected, "axis {axis}");
                // In ascending order along the axis, as above: equal bits.
                let src = array(&src, &part);
                index_add(&stream, whole.view(), axis as isize, index.view(), src.view()).expect("fits");
                assert_eq!(whole.to_vec(), added, "axis {axis}");
            }
        }
    }
}

#[test]
fn elements_are_gathered_and_scattered_along_every_axis() {
    let device = cpu(1);
    let stream = device.default_stream();
    let x = values_f32(3, SHAPE.iter().product());
    for axis in 0..3 {
        // Smaller than x on the other axes, larger along this one.
        let mut part = [4, 6, 33];
        part[axis] = 43;
        let n: usize = part.iter().product();
        let indices: Vec<i64> = (0..n as i64).map(|i| i * 31 % SHAPE[axis] as i64).collect();
        let source = |i: usize| {
            let mut index = index_of(&part, i);
            index[axis] = indices[i] as usize;
            flat(&SHAPE, &index)
        };
        let gathered: Vec<f32> = (0..n).map(|i| x[source(i)]).collect();
        let src = values_f32(4, n);
        let mut scattered = x.clone();
        (0..n).for_each(|i| scattered[source(i)] += src[i]);
        for order in ORDERS {
            let array = |x: &[f32], shape| Array::stored_as(&stream, x, shape, &order);
            let index = Array::stored_as(&stream, &indices, &part, &[1, 2, 0]);
            let (whole, out) = (array(&x, &SHAPE), array(&vec![0.0; n], &part));
            gather(&stream, whole.view(), axis as isize, index.view(), out.view()).expect("fits");
            assert_eq!(out.to_vec(), gathered, "axis {axis}");
            scatter_add(&stream, whole.view(), axis as isize, index.view(), array(&src, &part).view())
                .expect("fits");
            assert_eq!(whole.to_vec(), scattered, "axis {axis}");
        }
    }
}

#[test]
fn large_tables_give_the_same_bits_on_any_number_of_threads() {
    let run = |threads| {
        let device = cpu(threads);
        let stream = device.default_stream();
        let (rows, width, count) = (1000, 300, 5000);
        let table = Array::new(&stream, &values_f32(1, rows * width), &[rows, width]);
        let index: Vec<i64> = (0..count as i64).map(|i| i * i % rows as i64).collect();
        let index = Array::new(&stream, &index, &[count]);
        let out = Array::full(&stream, 0.0_f32, &[count, width]);
        index_select(&stream, table.view(), 0, index.view(), out.view()).expect("fits");
        index_add(&stream, table.view(), 0, index.view(), out.view()).expect("fits");
        let by_columns = table.layout.transpose("test", 0, 1).expect("two axes");
        let columns = View::new(table.view().buffer, DType::F32, &by_columns);
        let part = out.layout.transpose("test", 0, 1).expect("two axes");
        let part = View::new(out.view().buffer, DType::F32, &part);
        index_add(&stream, columns, 1, index.view(), part).expect("fits");
        (out.to_vec(), table.to_vec())
    };
    assert!(run(1) == run(3));
}

#[test]
fn other_types_are_indexed_too() {
    let device = cpu(1);
    let stream = device.default_stream();
    let index = Array::new(&stream, &[2_i64, 0, 2], &[3]);
    let truth = Array::new(&stream, &[true, false, false], &[3]);
    let out = Array::full(&stream, true, &[3]);
    index_select(&stream, truth.view(), 0, index.view(), out.view()).expect("fits");
    assert_eq!(out.to_vec(), [false, true, false]);
    let numbers = Array::new(&stream, &[10_i64, 20, 30], &[3]);
    let src = Array::new(&stream, &[1_i64, 2, 4], &[3]);
    scatter_add(&stream, numbers.view(), 0, index.view(), src.view()).expect("fits");
    assert_eq!(numbers.to_vec(), [12, 20, 35]);
    let refused = index_add(&stream, truth.view(), 0, index.view(), out.view());
    assert!(matches!(refused, Err(Error::DTypeUnsupported { op: "index_add", .. })));
}

#[test]
fn an_index_out_of_range_is_the_devices_error() {
    for bad in [-1, 4, i64::MIN, i64::MAX] {
        for threads in [1, 2] {
            let device = cpu(threads);
            let stream = device.default_stream();
            let x = Array::full(&stream, 1.0_f32, &[4, 3]);
            let index = Array::new(&stream, &[0, bad], &[2]);
            let each = Array::new(&stream, &[0, 0, 0, 0, bad, 0], &[2, 3]);
            let out = Array::full(&stream, 2.0_f32, &[2, 3]);
            let expect_error = |op: &str, result: Result<()>| {
                result.expect("the launch itself succeeds");
                let error = out.try_vec().expect_err("the index is out of range").to_string();
                let message = format!("{op}: index {bad} is out of range for size 4");
                assert!(error.contains(&message), "{error}");
                // The error is reported once, and the device goes on.
                device.synchronize().expect("no further error");
            };
            expect_error("index_select", index_select(&stream, x.view(), 0, index.view(), out.view()));
            expect_error("index_add", index_add(&stream, x.view(), 0, index.view(), out.view()));
            expect_error("gather", gather(&stream, x.view(), 0, each.view(), out.view()));
            expect_error("scatter_add", scatter_add(&stream, x.view(), 0, each.view(), out.view()));
        }
    }
}

#[test]
fn shapes_and_types_are_checked() {
    let device = cpu(1);
    let stream = device.default_stream();
    let x = Array::full(&stream, 1.0_f32, &[4, 3]);
    let out = Array::full(&stream, 1.0_f32, &[2, 3]);
    let index = Array::new(&stream, &[0_i64, 1], &[2]);
    let mismatch =
        |result: Result<()>| assert!(matches!(result, Err(Error::ShapeMismatch { .. })), "{result:?}");
    mismatch(index_select(&stream, x.view(), 1, index.view(), out.view()));
    mismatch(index_select(&stream, x.view(), 0, index.view(), x.view()));
    let matrix = Array::new(&stream, &[0_i64, 1], &[1, 2]);
    mismatch(index_select(&stream, x.view(), 0, matrix.view(), out.view()));
    mismatch(gather(&stream, x.view(), 0, index.view(), out.view()));
    mismatch(scatter_add(&stream, x.view(), 0, index.view(), out.view()));
    let wide = Array::full(&stream, 0_i64, &[2, 4]);
    let wide_out = Array::full(&stream, 0.0_f32, &[2, 4]);
    mismatch(gather(&stream, x.view(), 0, wide.view(), wide_out.view()));
    let axis = index_select(&stream, x.view(), 2, index.view(), out.view());
    assert!(matches!(axis, Err(Error::AxisOutOfRange { axis: 2, .. })), "{axis:?}");
    let float_index = Array::full(&stream, 0.0_f64, &[2]);
    let dtype = index_select(&stream, x.view(), 0, float_index.view(), out.view());
    assert!(matches!(dtype, Err(Error::DTypeMismatch { expected: DType::I64, .. })), "{dtype:?}");
    // Rows of one buffer that overlap those written.
    let top = x.layout.narrow("test", 0, 0, 2).expect("within");
    let top = View::new(x.view().buffer, DType::F32, &top);
    let overlap = index_select(&stream, x.view(), 0, index.view(), top);
    assert!(matches!(overlap, Err(Error::InvalidArgument { argument: "out", .. })), "{overlap:?}");
    // Nothing to index.
    let none = Array::<i64>::new(&stream, &[], &[0]);
    let empty = Array::<f32>::new(&stream, &[], &[0, 3]);
    index_select(&stream, x.view(), 0, none.view(), empty.view()).expect("nothing to do");
    index_add(&stream, x.view(), 0, none.view(), empty.view()).expect("nothing to do");
    let no_rows = Layout::contiguous(&[0, 3]);
    let no_rows = View::new(empty.view().buffer, DType::F32, &no_rows);
    index_select(&stream, no_rows, 0, none.view(), empty.view()).expect("nothing to do");
}
