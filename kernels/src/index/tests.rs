use std::sync::{Arc, Mutex};

use device::{DType, Error, ErrorKind, bf16};

use super::*;
use crate::layout::Layout;
use crate::testing::{Array, cpu, index_of, values_f32};

fn index_add(stream: &Stream, out: View<'_>, axis: isize, index: View<'_>, src: View<'_>) -> Result<()> {
    super::index_add(stream, out, Some(out), axis, index, src)?.launch(None)
}

fn scatter_add(stream: &Stream, out: View<'_>, axis: isize, index: View<'_>, src: View<'_>) -> Result<()> {
    super::scatter_add(stream, out, Some(out), axis, index, src)?.launch(None)
}

/// Flat index of `index` in `shape`.
fn flat(shape: &[usize], index: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |flat, (&i, &size)| flat * size + i)
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
                index_select(
                    &stream,
                    "index_select",
                    whole.view(),
                    axis as isize - 3,
                    index.view(),
                    out.view(),
                )
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
            gather(&stream, "gather", whole.view(), axis as isize, index.view(), out.view()).expect("fits");
            assert_eq!(out.to_vec(), gathered, "axis {axis}");
            scatter_add(&stream, whole.view(), axis as isize, index.view(), array(&src, &part).view())
                .expect("fits");
            assert_eq!(whole.to_vec(), scattered, "axis {axis}");
        }
    }
}

/// Rows of more entries than a run, of which the sums have the documented order.
#[test]
fn frequent_rows_are_summed_in_runs() {
    let (count, width) = (20_000, 3);
    // Half of the entries name row 1.
    let indices: Vec<i64> = (0..count as i64).map(|i| if i % 2 == 0 { 1 } else { i * i % 50 }).collect();
    let (table, src) = (values_f32(1, 50 * width), values_f32(2, count * width));
    let mut expected = table.clone();
    for row in 0..50 {
        for column in 0..width {
            let own: Vec<f32> =
                (0..count).filter(|&i| indices[i] == row as i64).map(|i| src[i * width + column]).collect();
            let total = &mut expected[row * width + column];
            for (n, run) in own.chunks(32).enumerate() {
                let add = |sum: f32| run.iter().fold(sum, |sum, x| sum + x);
                *total = if n == 0 { add(*total) } else { *total + add(-0.0) };
            }
        }
    }
    for threads in [1, 3] {
        let device = cpu(threads);
        let stream = device.default_stream();
        let index = Array::new(&stream, &indices, &[count]);
        let [whole, other] = [0; 2].map(|_| Array::new(&stream, &table, &[50, width]));
        let src = Array::new(&stream, &src, &[count, width]);
        index_add(&stream, whole.view(), 0, index.view(), src.view()).expect("fits");
        assert_eq!(whole.to_vec(), expected);
        let each: Vec<i64> = indices.iter().flat_map(|&i| [i; 3]).collect();
        let each = Array::new(&stream, &each, &[count, width]);
        scatter_add(&stream, other.view(), 0, each.view(), src.view()).expect("fits");
        assert_eq!(other.to_vec(), expected);
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
        index_select(&stream, "index_select", table.view(), 0, index.view(), out.view()).expect("fits");
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
    index_select(&stream, "index_select", truth.view(), 0, index.view(), out.view()).expect("fits");
    assert_eq!(out.to_vec(), [false, true, false]);
    let numbers = Array::new(&stream, &[10_i64, 20, 30], &[3]);
    let src = Array::new(&stream, &[1_i64, 2, 4], &[3]);
    scatter_add(&stream, numbers.view(), 0, index.view(), src.view()).expect("fits");
    assert_eq!(numbers.to_vec(), [12, 20, 35]);
    let refused = index_add(&stream, truth.view(), 0, index.view(), out.view());
    assert!(matches!(
        refused.as_ref().map_err(Error::kind),
        Err(ErrorKind::DTypeUnsupported { op: "index_add", .. })
    ));
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
            expect_error(
                "index_select",
                index_select(&stream, "index_select", x.view(), 0, index.view(), out.view()),
            );
            expect_error("index_add", index_add(&stream, x.view(), 0, index.view(), out.view()));
            expect_error("gather", gather(&stream, "gather", x.view(), 0, each.view(), out.view()));
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
    let mismatch = |result: Result<()>| {
        assert!(
            matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::ShapeMismatch { .. })),
            "{result:?}"
        )
    };
    mismatch(index_select(&stream, "index_select", x.view(), 1, index.view(), out.view()));
    mismatch(index_select(&stream, "index_select", x.view(), 0, index.view(), x.view()));
    let matrix = Array::new(&stream, &[0_i64, 1], &[1, 2]);
    mismatch(index_select(&stream, "index_select", x.view(), 0, matrix.view(), out.view()));
    mismatch(gather(&stream, "gather", x.view(), 0, index.view(), out.view()));
    mismatch(scatter_add(&stream, x.view(), 0, index.view(), out.view()));
    let wide = Array::full(&stream, 0_i64, &[2, 4]);
    let wide_out = Array::full(&stream, 0.0_f32, &[2, 4]);
    mismatch(gather(&stream, "gather", x.view(), 0, wide.view(), wide_out.view()));
    let axis = index_select(&stream, "index_select", x.view(), 2, index.view(), out.view());
    assert!(
        matches!(axis.as_ref().map_err(Error::kind), Err(ErrorKind::AxisOutOfRange { axis: 2, .. })),
        "{axis:?}"
    );
    let float_index = Array::full(&stream, 0.0_f64, &[2]);
    let dtype = index_select(&stream, "index_select", x.view(), 0, float_index.view(), out.view());
    assert!(
        matches!(
            dtype.as_ref().map_err(Error::kind),
            Err(ErrorKind::DTypeMismatch { expected: DType::I64, .. })
        ),
        "{dtype:?}"
    );
    // Rows of one buffer that overlap those written.
    let top = x.layout.narrow("test", 0, 0, 2).expect("within");
    let top = View::new(x.view().buffer, DType::F32, &top);
    let overlap = index_select(&stream, "index_select", x.view(), 0, index.view(), top);
    assert!(
        matches!(
            overlap.as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { argument: "out", .. })
        ),
        "{overlap:?}"
    );
    // Nothing to index.
    let none = Array::<i64>::new(&stream, &[], &[0]);
    let empty = Array::<f32>::new(&stream, &[], &[0, 3]);
    index_select(&stream, "index_select", x.view(), 0, none.view(), empty.view()).expect("nothing to do");
    index_add(&stream, x.view(), 0, none.view(), empty.view()).expect("nothing to do");
    let no_rows = Layout::contiguous(&[0, 3]);
    let no_rows = View::new(empty.view().buffer, DType::F32, &no_rows);
    index_select(&stream, "index_select", no_rows, 0, none.view(), empty.view()).expect("nothing to do");
    let (none, empty) = (Array::<i64>::new(&stream, &[], &[2, 0]), Array::<f32>::new(&stream, &[], &[2, 0]));
    let sums = Array::new(&stream, &[1.0_f32, 2.0], &[2, 1]);
    scatter_add(&stream, sums.view(), 0, none.view(), empty.view()).expect("nothing to do");
    assert_eq!(sums.to_vec(), [1.0, 2.0]);
}

/// The source of a command's failure.
fn source_of(error: Error) -> Arc<dyn std::error::Error + Send + Sync> {
    match error.into_kind() {
        ErrorKind::Async { source, .. } => source,
        other => unreachable!("{other}"),
    }
}

/// A program with `panic = "abort"` would end at a panic, and its hook prints something.
#[test]
fn bad_indices_are_reported_without_a_panic() {
    const BAD: i64 = 7_654_321;
    let panics: &'static Mutex<Vec<String>> = Box::leak(Box::default());
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // Other tests panic meanwhile.
        match info.to_string() {
            text if [&BAD.to_string(), "not in the image"].iter().any(|of| text.contains(of)) => {
                panics.lock().expect("not poisoned").push(text)
            }
            _ => hook(info),
        }
    }));
    for threads in [1, 4] {
        let device = cpu(threads);
        let s = device.default_stream();
        let expect_index = |op: &str, index: i64, size: usize, launched: Result<()>| {
            launched.expect("the launch itself succeeds");
            let source = source_of(device.synchronize().expect_err(op));
            assert_eq!(source.to_string(), format!("{op}: index {index} is out of range for size {size}"));
            device.synchronize().expect("reported once");
        };
        let expect = |op: &str, size: usize, launched: Result<()>| expect_index(op, BAD, size, launched);
        let [x, out] = [[4, 3], [2, 3]].map(|shape| Array::full(&s, bf16::from_f32(1.0), &shape));
        let index = Array::new(&s, &[0, BAD], &[2]);
        let each = Array::new(&s, &[0, 0, 0, 0, BAD, 0], &[2, 3]);
        expect("index_select", 4, index_select(&s, "index_select", x.view(), 0, index.view(), out.view()));
        expect("index_add", 4, index_add(&s, x.view(), 0, index.view(), out.view()));
        expect("gather", 4, gather(&s, "gather", x.view(), 0, each.view(), out.view()));
        expect("scatter_add", 4, scatter_add(&s, x.view(), 0, each.view(), out.view()));
        let bags =
            crate::Bags { indices: index.view(), offsets: None, count: 2, weights: None, padding: None };
        let weights = Array::full(&s, bf16::from_f32(1.0), &[2]);
        expect("embedding_bag", 4, crate::embedding_bag(&s, x.view(), &bags, None, out.view()));
        expect(
            "embedding_bag_grad",
            4,
            crate::embedding_bag_grad(&s, out.view(), &bags, None, x.view(), None),
        );
        let launched = crate::embedding_bag_weights_grad(&s, out.view(), x.view(), &bags, weights.view());
        expect("embedding_bag_weights_grad", 4, launched);
        let [losses, log_sums] = [0.0_f32; 2].map(|value| Array::full(&s, value, &[2]));
        let launched = crate::cross_entropy(&s, out.view(), index.view(), losses.view(), log_sums.view());
        expect("cross_entropy", 3, launched);
        let (g, gradients) = (losses.view(), Array::full(&s, bf16::ZERO, &[2, 3]));
        let launched =
            crate::cross_entropy_grad(&s, out.view(), log_sums.view(), index.view(), g, gradients.view());
        expect("cross_entropy_grad", 3, launched);
        let image = Array::full(&s, bf16::ZERO, &[1, 4, 4]);
        let places = Array::full(&s, bf16::ZERO, &[1, 2, 2]);
        let taps = Array::new(&s, &[0_u8, 200, 1, 2], &[1, 2, 2]);
        let window = crate::Window { kernel: [2; 2], stride: [2; 2], padding: [0; 2], dilation: [1; 2] };
        let launched = crate::max_pool2d_grad(&s, places.view(), taps.view(), window, image.view());
        expect_index("max_pool2d_grad", 200, 4, launched);
        let launched = crate::max_pool2d_pick(&s, image.view(), taps.view(), window, places.view());
        expect_index("max_pool2d_pick", 200, 4, launched);
    }
    let _ = std::panic::take_hook();
    assert_eq!(*panics.lock().expect("not poisoned"), Vec::<String>::new());
}

/// Whatever thread meets which bad index first, the first in order is reported.
#[test]
fn the_first_bad_index_is_reported_whatever_the_threads() {
    let count = 400_000;
    for threads in [1, 4] {
        let device = cpu(threads);
        let s = device.default_stream();
        let x = Array::full(&s, 1.0_f32, &[4]);
        let out = Array::full(&s, 2.0_f32, &[count]);
        let index: Vec<i64> =
            (0..count as i64).map(|i| if i % 50_000 == 49_999 { -i } else { i % 4 }).collect();
        let index = Array::new(&s, &index, &[count]);
        for _ in 0..20 {
            index_select(&s, "index_select", x.view(), 0, index.view(), out.view()).expect("a launch");
            let source = source_of(device.synchronize().expect_err("bad indices"));
            assert_eq!(source.to_string(), "index_select: index -49999 is out of range for size 4");
        }
    }
}
