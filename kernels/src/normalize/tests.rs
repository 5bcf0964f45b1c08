use device::{ErrorKind, bf16};

use super::*;
use crate::testing::{Array, cpu, values, values_f32};

const EPS: f64 = 1e-5;

/// Layer norms and group norms, of one row block and of several, with odd lengths.
const ROWS: [(NormRows, usize); 7] = [
    (NormRows { groups: 1, channels: 5, inner: 1 }, 3),
    (NormRows { groups: 1, channels: 128, inner: 1 }, 1),
    (NormRows { groups: 1, channels: 97, inner: 1 }, 2100),
    (NormRows { groups: 1, channels: 9001, inner: 1 }, 2),
    (NormRows { groups: 2, channels: 3, inner: 7 }, 4),
    (NormRows { groups: 3, channels: 1, inner: 130 }, 5),
    (NormRows { groups: 4, channels: 9, inner: 1 }, 60),
];

struct Expected {
    out: Vec<f64>,
    dx: Vec<f64>,
    dweight: Vec<f64>,
    dbias: Vec<f64>,
}

/// The definition, in double precision.
fn expected(rows: NormRows, centred: bool, x: &[f64], g: &[f64], w: &[f64], b: &[f64]) -> Expected {
    let len = rows.row();
    let (mut out, mut dx) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    let (mut dweight, mut dbias) = (vec![0.0; rows.weights()], vec![0.0; rows.weights()]);
    for row in 0..x.len() / len {
        let weight = |i: usize| row % rows.groups * rows.channels + i / rows.inner;
        let at = |i: usize| row * len + i;
        let mean_of = |f: &dyn Fn(usize) -> f64| (0..len).map(f).sum::<f64>() / len as f64;
        let mean = if centred { mean_of(&|i| x[at(i)]) } else { 0.0 };
        let rstd = (mean_of(&|i| (x[at(i)] - mean).powi(2)) + EPS).sqrt().recip();
        let h = |i: usize| (x[at(i)] - mean) * rstd;
        let d = |i: usize| g[at(i)] * w[weight(i)];
        let shift = if centred { mean_of(&d) } else { 0.0 };
        let slope = mean_of(&|i| d(i) * h(i));
        for i in 0..len {
            out[at(i)] = h(i) * w[weight(i)] + b[weight(i)];
            dx[at(i)] = rstd * (d(i) - shift - h(i) * slope);
            dweight[weight(i)] += g[at(i)] * h(i);
            dbias[weight(i)] += g[at(i)];
        }
    }
    Expected { out, dx, dweight, dbias }
}

#[track_caller]
fn close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(error <= tolerance * want.abs().max(1.0), "{what} {i}: {got} instead of {want}");
    }
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// All results on a device with so many threads: out, dx, dweight, dbias.
fn run(threads: usize, rows: NormRows, n: usize, centred: bool) -> [Vec<f32>; 4] {
    let device = cpu(threads);
    let stream = device.default_stream();
    let shape = [n, rows.groups, rows.channels, rows.inner];
    let len = shape.iter().product();
    let x = Array::new(&stream, &values_f32(1, len), &shape);
    let g = Array::new(&stream, &values_f32(2, len), &shape);
    let w = Array::new(&stream, &values_f32(3, rows.weights()), &[rows.weights()]);
    let b = Array::new(&stream, &values_f32(4, rows.weights()), &[rows.weights()]);
    let out = Array::full(&stream, 0_f32, &shape);
    let mean = Array::full(&stream, 0_f32, &[n, rows.groups]);
    let rstd = Array::full(&stream, 0_f32, &[n, rows.groups]);
    let input = NormInput { x: x.view(), weight: Some(w.view()), bias: Some(b.view()) };
    let mean = centred.then(|| mean.view());
    normalize(&stream, "norm", rows, input, EPS, out.view(), (mean, rstd.view())).expect("a launch");
    let dx = Array::full(&stream, 7_f32, &shape);
    let dw = Array::full(&stream, 7_f32, &[rows.weights()]);
    let db = Array::full(&stream, 7_f32, &[rows.weights()]);
    let to = NormGrads {
        x: Some(dx.view()),
        weight: Some(dw.view()),
        bias: Some(db.view()),
        ..NormGrads::default()
    };
    let statistics = (mean, rstd.view());
    normalize_grad(&stream, "norm_grad", rows, g.view(), (x.view(), Some(w.view())), statistics, to)
        .expect("a launch");
    [out.to_vec(), dx.to_vec(), dw.to_vec(), db.to_vec()]
}

#[test]
fn weights_and_their_gradients_are_of_one_type() {
    let stream = cpu(1).default_stream();
    let rows = NormRows { groups: 1, channels: 4, inner: 1 };
    let of = |shape: &[usize]| Array::full(&stream, bf16::from_f32(1.0), shape);
    let (x, weight, dweight) = (of(&[2, 1, 4, 1]), of(&[4]), of(&[4]));
    let wide = Array::full(&stream, 1_f32, &[4]);
    let statistic = Array::full(&stream, 1_f32, &[2, 1]);
    let gradient = |dweight: View<'_>, dbias: View<'_>| {
        let to = NormGrads { weight: Some(dweight), bias: Some(dbias), ..NormGrads::default() };
        let statistics = (Some(statistic.view()), statistic.view());
        normalize_grad(&stream, "norm_grad", rows, x.view(), (x.view(), Some(weight.view())), statistics, to)
    };
    let is_refused = |result: Result<()>| {
        matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::DTypeMismatch { .. }))
    };
    assert!(gradient(dweight.view(), of(&[4]).view()).is_ok());
    assert!(is_refused(gradient(wide.view(), of(&[4]).view())));
    assert!(is_refused(gradient(dweight.view(), wide.view())));
    let mixed = NormInput { x: x.view(), weight: Some(weight.view()), bias: Some(wide.view()) };
    let out = of(&[2, 1, 4, 1]);
    let statistics = (Some(statistic.view()), statistic.view());
    assert!(is_refused(normalize(&stream, "norm", rows, mixed, EPS, out.view(), statistics)));
}

#[test]
fn values_and_gradients_are_the_definition() {
    for ((rows, n), centred) in ROWS.into_iter().flat_map(|rows| [(rows, true), (rows, false)]) {
        let len = n * rows.groups * rows.row();
        let [x, g] = [1, 2].map(|seed| wide(&values_f32(seed, len)));
        let [w, b] = [3, 4].map(|seed| wide(&values_f32(seed, rows.weights())));
        let want = expected(rows, centred, &x, &g, &w, &b);
        let [out, dx, dweight, dbias] = run(1, rows, n, centred);
        close("out", &out, &want.out, 1e-5);
        close("dx", &dx, &want.dx, 1e-5);
        close("dweight", &dweight, &want.dweight, 1e-4);
        close("dbias", &dbias, &want.dbias, 1e-4);
    }
}

#[test]
fn threads_change_no_bit() {
    for (rows, n) in ROWS {
        let bits = |threads| run(threads, rows, n, true).map(|x| crate::testing::bits(&x));
        assert_eq!(bits(1), bits(3), "{rows:?}");
    }
}

#[test]
fn without_weight_and_bias_they_are_one_and_zero() {
    let device = cpu(1);
    let stream = device.default_stream();
    let rows = NormRows { groups: 1, channels: 6, inner: 1 };
    let x = Array::new(&stream, &values(1, 12), &[2, 6]);
    let [out, again] = [(); 2].map(|()| Array::full(&stream, 0_f64, &[2, 6]));
    let (mean, rstd) = (Array::full(&stream, 0_f64, &[2]), Array::full(&stream, 0_f64, &[2]));
    let (ones, zeros) = (Array::full(&stream, 1_f64, &[6]), Array::full(&stream, 0_f64, &[6]));
    let statistics = (Some(mean.view()), rstd.view());
    let plain = NormInput { x: x.view(), weight: None, bias: None };
    normalize(&stream, "norm", rows, plain, EPS, out.view(), statistics).expect("a launch");
    let given = NormInput { x: x.view(), weight: Some(ones.view()), bias: Some(zeros.view()) };
    normalize(&stream, "norm", rows, given, EPS, again.view(), statistics).expect("a launch");
    assert_eq!(out.to_vec(), again.to_vec());
}

#[test]
fn no_rows_have_gradients_of_zero() {
    let device = cpu(1);
    let stream = device.default_stream();
    let rows = NormRows { groups: 1, channels: 4, inner: 1 };
    let x = Array::<f32>::new(&stream, &[], &[0, 4]);
    let none = Array::<f32>::new(&stream, &[], &[0]);
    let dw = Array::full(&stream, 7_f32, &[4]);
    let to = NormGrads { weight: Some(dw.view()), ..NormGrads::default() };
    normalize_grad(&stream, "norm_grad", rows, x.view(), (x.view(), None), (None, none.view()), to)
        .expect("a launch");
    assert_eq!(dw.to_vec(), [0.0; 4]);
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let device = cpu(1);
    let stream = device.default_stream();
    let rows = NormRows { groups: 1, channels: 4, inner: 1 };
    let x = Array::full(&stream, 1_f32, &[2, 4]);
    let (one, two) = (Array::full(&stream, 1_f32, &[1]), Array::full(&stream, 1_f32, &[2]));
    let input = NormInput { x: x.view(), weight: None, bias: None };
    assert!(normalize(&stream, "norm", rows, input, EPS, x.view(), (None, one.view())).is_err());
    let three = NormRows { channels: 3, ..rows };
    assert!(normalize(&stream, "norm", three, input, EPS, x.view(), (None, two.view())).is_err());
    let turned = Array::full(&stream, 1_f32, &[4, 2]).with(|x| x.transpose("test", 0, 1).expect("two axes"));
    assert!(normalize(&stream, "norm", rows, input, EPS, turned.view(), (None, two.view())).is_err());
}
