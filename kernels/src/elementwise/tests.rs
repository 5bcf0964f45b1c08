use device::{Element, Error, ErrorKind};

use super::*;
use crate::Saves;
use crate::layout::Layout;
use crate::testing::{Array, cpu, values};

/// Powers that take a simpler function, or might.
const POWERS: [UnaryOp; 6] = [
    UnaryOp::PowScalar(2.0),
    UnaryOp::PowScalar(3.0),
    UnaryOp::PowScalar(0.5),
    UnaryOp::PowScalar(-0.5),
    UnaryOp::PowScalar(-1.0),
    UnaryOp::PowScalar(-2.0),
];

/// A float whose bits can be compared; NaNs are all alike, since their payload is not specified.
trait Bits: Element {
    fn bits(self) -> u64;
    fn of(value: f64) -> Self;
}

impl Bits for f32 {
    fn bits(self) -> u64 {
        if self.is_nan() { u64::MAX } else { u64::from(self.to_bits()) }
    }
    fn of(value: f64) -> f32 {
        value as f32
    }
}

impl Bits for f64 {
    fn bits(self) -> u64 {
        if self.is_nan() { u64::MAX } else { self.to_bits() }
    }
    fn of(value: f64) -> f64 {
        value
    }
}

fn bits<T: Bits>(x: &[T]) -> Vec<u64> {
    x.iter().map(|x| x.bits()).collect()
}

/// Ordinary values of several magnitudes with special ones among them.
fn inputs<T: Bits>(seed: u64, len: usize) -> Vec<T> {
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e-40, -3e38, 88.5, -104.0, 0.5];
    let mut x: Vec<T> =
        values(seed, len).iter().enumerate().map(|(i, x)| T::of(x * [1.0, 5.0, 40.0][i % 3])).collect();
    for (i, &value) in special.iter().enumerate() {
        x[(i * 37 + seed as usize) % len] = T::of(value);
    }
    x
}

/// Each element computed alone: a tensor of one element takes the plain loop.
fn one_by_one<T: Bits>(stream: &Stream, len: usize, mut f: impl FnMut(usize, &Array<T>)) -> Vec<T> {
    let one = Array::full(stream, T::default(), &[1]);
    (0..len)
        .map(|i| {
            f(i, &one);
            one.to_vec()[0]
        })
        .collect()
}

// Not a multiple of any block, and more than one part when split.
const SHAPE: [usize; 3] = [7, 11, 19];
const LEN: usize = 7 * 11 * 19;

fn unary_is_independent_of_the_path<T: Bits>() {
    let device = cpu(1);
    let stream = device.default_stream();
    let x: Vec<T> = inputs(3, LEN);
    for &op in UnaryOp::ALL.iter().chain(&POWERS) {
        let expected = bits(&one_by_one(&stream, LEN, |i, one: &Array<T>| {
            let x = Array::new(&stream, &x[i..=i], &[1]);
            unary(&stream, op, x.view(), one.view()).expect("a valid op");
        }));
        let check = |what: &str, x: &Array<T>, out: &Array<T>| {
            unary(&stream, op, x.view(), out.view()).expect("a valid op");
            assert_eq!(bits(&out.to_vec()), expected, "{op:?}, {what}");
        };
        let dense = || Array::new(&stream, &x, &SHAPE);
        let empty = || Array::full(&stream, T::default(), &SHAPE);
        check("contiguous", &dense(), &empty());
        let place = dense();
        check("in place", &place, &place);
        for order in [[2, 1, 0], [1, 0, 2], [0, 2, 1]] {
            check("strided x", &Array::stored_as(&stream, &x, &SHAPE, &order), &empty());
            check("strided out", &dense(), &Array::stored_as(&stream, &x, &SHAPE, &order));
            let both = Array::stored_as(&stream, &x, &SHAPE, &order);
            check("strided in place", &both, &both);
        }
        let wide = Array::full(&stream, T::default(), &[7, 11, 25])
            .with(|layout| layout.narrow("test", 2, 3, 19).expect("within"));
        check("gaps in out", &dense(), &wide);
    }
}

#[test]
fn unary_f32_is_independent_of_the_path() {
    unary_is_independent_of_the_path::<f32>();
}

#[test]
fn unary_f64_is_independent_of_the_path() {
    unary_is_independent_of_the_path::<f64>();
}

fn binary_is_independent_of_the_path<T: Bits>() {
    let device = cpu(1);
    let stream = device.default_stream();
    let (x, y): (Vec<T>, Vec<T>) = (inputs(3, LEN), inputs(5, LEN));
    for &op in BinaryOp::ALL {
        let one_by_one = |x: &[T], y: &[T]| {
            bits(&one_by_one(&stream, LEN, |i, one: &Array<T>| {
                let (x, y) = (Array::new(&stream, &x[i..=i], &[1]), Array::new(&stream, &y[i..=i], &[1]));
                binary(&stream, op, x.view(), y.view(), one.view()).expect("a valid op");
            }))
        };
        let expected = one_by_one(&x, &y);
        let check = |what: &str, expected: &[u64], x: &Array<T>, y: &Array<T>, out: &Array<T>| {
            binary(&stream, op, x.view(), y.view(), out.view()).expect("a valid op");
            assert_eq!(bits(&out.to_vec()), expected, "{op:?}, {what}");
        };
        let dense = |x: &[T]| Array::new(&stream, x, &SHAPE);
        let empty = || Array::full(&stream, T::default(), &SHAPE);
        check("contiguous", &expected, &dense(&x), &dense(&y), &empty());
        let place = dense(&x);
        check("into lhs", &expected, &place, &dense(&y), &place);
        let place = dense(&y);
        check("into rhs", &expected, &dense(&x), &place, &place);
        for order in [[2, 1, 0], [1, 0, 2]] {
            let strided = |x: &[T]| Array::stored_as(&stream, x, &SHAPE, &order);
            check("strided lhs", &expected, &strided(&x), &dense(&y), &empty());
            check("strided rhs", &expected, &dense(&x), &strided(&y), &empty());
            check("all strided alike", &expected, &strided(&x), &strided(&y), &strided(&x));
            let place = strided(&x);
            check("strided into lhs", &expected, &place, &dense(&y), &place);
        }
        // An operand of fewer elements, broadcast, against the same elements written out.
        for small in [&[1, 1, 1][..], &[19], &[11, 1], &[7, 1, 19], &[7, 1, 1]] {
            let y = &y[..small.iter().product()];
            let expand = |array: Array<T>| array.with(|layout| layout.expand("test", &SHAPE).expect("fits"));
            let whole = expand(Array::new(&stream, y, small)).to_vec();
            let expected = one_by_one(&x, &whole);
            let operand = expand(Array::new(&stream, y, small));
            check("broadcast rhs", &expected, &dense(&x), &operand, &empty());
            let place = dense(&x);
            check("broadcast rhs into lhs", &expected, &place, &operand, &place);
            check("broadcast lhs", &one_by_one(&whole, &x), &operand, &dense(&x), &empty());
        }
    }
}

#[test]
fn binary_f32_is_independent_of_the_path() {
    binary_is_independent_of_the_path::<f32>();
}

#[test]
fn binary_f64_is_independent_of_the_path() {
    binary_is_independent_of_the_path::<f64>();
}

#[test]
fn threads_change_nothing() {
    let len = (1 << 20) + 77;
    let run = |threads: usize| {
        let device = cpu(threads);
        let stream = device.default_stream();
        let x = Array::new(&stream, &inputs::<f32>(1, len), &[len]);
        let y = Array::new(&stream, &inputs::<f32>(2, len), &[len]);
        let out = Array::full(&stream, 0.0_f32, &[len]);
        unary(&stream, UnaryOp::Tanh, x.view(), out.view()).expect("a valid op");
        let mut all = bits(&out.to_vec());
        binary(&stream, BinaryOp::Add, x.view(), y.view(), out.view()).expect("a valid op");
        all.extend(bits(&out.to_vec()));
        let halves = Layout::contiguous(&[2, len / 2]).transpose("test", 0, 1).expect("two axes");
        let strided = View::new(x.view().buffer, DType::F32, &halves);
        let dense = Layout::contiguous(&[len / 2, 2]);
        let (y, out_view) = (
            View::new(y.view().buffer, DType::F32, &dense),
            View::new(out.view().buffer, DType::F32, &dense),
        );
        binary(&stream, BinaryOp::Mul, strided, y, out_view).expect("a valid op");
        all.extend(bits(&out.to_vec()));
        all
    };
    let alone = run(1);
    assert_eq!(run(2), alone);
    assert_eq!(run(5), alone);
}

fn near(got: f64, want: f64, tolerance: f64) -> bool {
    (got - want).abs() <= tolerance * want.abs().max(1.0)
}

#[test]
fn functions_have_their_values() {
    let device = cpu(1);
    let stream = device.default_stream();
    let x = values(9, 400).iter().map(|x| x * 6.0).collect::<Vec<f64>>();
    let tanh_gelu =
        |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    type Case<'a> = (UnaryOp, &'a dyn Fn(f64) -> f64);
    let cases: &[Case<'_>] = &[
        (UnaryOp::Neg, &|x| -x),
        (UnaryOp::Abs, &f64::abs),
        (UnaryOp::Sign, &f64::signum),
        (UnaryOp::Square, &|x| x * x),
        (UnaryOp::AddScalar(0.3), &|x| x + 0.3),
        (UnaryOp::MulScalar(-1.7), &|x| x * -1.7),
        (UnaryOp::Clamp(-0.5, 0.25), &|x| x.clamp(-0.5, 0.25)),
        (UnaryOp::Exp, &f64::exp),
        (UnaryOp::Log, &f64::ln),
        (UnaryOp::Sqrt, &f64::sqrt),
        (UnaryOp::Rsqrt, &|x| 1.0 / x.sqrt()),
        (UnaryOp::Reciprocal, &f64::recip),
        (UnaryOp::Sin, &f64::sin),
        (UnaryOp::Cos, &f64::cos),
        (UnaryOp::Tanh, &f64::tanh),
        (UnaryOp::Sigmoid, &|x| 1.0 / (1.0 + (-x).exp())),
        (UnaryOp::Erf, &libm::erf),
        (UnaryOp::Relu, &|x| x.max(0.0)),
        (UnaryOp::Silu, &|x| x / (1.0 + (-x).exp())),
        (UnaryOp::GeluErf, &|x| 0.5 * x * (1.0 + libm::erf(x / 2.0_f64.sqrt()))),
        (UnaryOp::GeluTanh, &tanh_gelu),
        (UnaryOp::PowScalar(3.0), &|x| x.powi(3)),
        (UnaryOp::PowScalar(0.5), &f64::sqrt),
        (UnaryOp::PowScalar(-1.0), &f64::recip),
        (UnaryOp::PowScalar(1.7), &|x| x.powf(1.7)),
    ];
    let wide = Array::new(&stream, &x, &[400]);
    let narrow = Array::new(&stream, &x.iter().map(|&x| x as f32).collect::<Vec<_>>(), &[400]);
    for &(op, f) in cases {
        let (out, out_f32) = (Array::full(&stream, 0.0_f64, &[400]), Array::full(&stream, 0.0_f32, &[400]));
        unary(&stream, op, wide.view(), out.view()).expect("a valid op");
        unary(&stream, op, narrow.view(), out_f32.view()).expect("a valid op");
        for ((&x, got), got_f32) in x.iter().zip(out.to_vec()).zip(out_f32.to_vec()) {
            let want = f(x);
            assert_eq!(want.is_nan(), got.is_nan(), "{op:?}({x})");
            assert!(want.is_nan() || near(got, want, 4e-15), "{op:?}({x}) = {got}, not {want}");
            let want = f(f64::from(x as f32));
            assert!(want.is_nan() || near(got_f32.into(), want, 1e-6), "{op:?}({x}) = {got_f32}, not {want}");
        }
    }
}

#[test]
fn gradients_are_the_derivatives() {
    let device = cpu(1);
    let stream = device.default_stream();
    let x: Vec<f64> = values(4, 301).iter().map(|x| x * 4.0).collect();
    let g = values(5, 301);
    let array = |x: &[f64]| Array::new(&stream, x, &[301]);
    let apply = |op: UnaryOp, x: &[f64]| {
        let out = Array::full(&stream, 0.0, &[301]);
        unary(&stream, op, array(x).view(), out.view()).expect("a valid op");
        out.to_vec()
    };
    for (op, saves) in UnaryOp::ALL.iter().filter_map(|op| op.saves().map(|saves| (*op, saves))) {
        let moved = |by: f64| apply(op, &x.iter().map(|x| x + by).collect::<Vec<f64>>());
        let slopes = |step: f64| {
            let pairs = moved(step).into_iter().zip(moved(-step));
            pairs.map(|(up, down)| (up - down) / (2.0 * step)).collect::<Vec<f64>>()
        };
        let (near_by, far) = (slopes(1e-6), slopes(2e-6));
        let saved = if saves == Saves::Result { apply(op, &x) } else { x.clone() };
        let out = Array::full(&stream, 0.0, &[301]);
        unary_grad(&stream, op, array(&saved).view(), array(&g).view(), out.view()).expect("a valid op");
        for (i, got) in out.to_vec().into_iter().enumerate() {
            // Richardson's extrapolation, for functions with poles.
            let numeric = (4.0 * near_by[i] - far[i]) / 3.0 * g[i];
            // Where the function has no value, its derivative may have one.
            let known = !numeric.is_nan();
            assert!(!known || near(got, numeric, 1e-8), "{op:?} at {}: {got}, not {numeric}", x[i]);
        }
    }
}

#[test]
fn nan_goes_through_maximum_minimum_clamp_and_relu() {
    let device = cpu(1);
    let stream = device.default_stream();
    let nan = f32::NAN;
    // Enough elements for the vector loops.
    let x: Vec<f32> = [nan, 1.0, nan, -1.0, 0.0].repeat(20);
    let y: Vec<f32> = [2.0, nan, nan, 3.0, -0.5].repeat(20);
    let (a, b) = (Array::new(&stream, &x, &[100]), Array::new(&stream, &y, &[100]));
    let out = Array::full(&stream, 0.0_f32, &[100]);
    let run = |op| {
        binary(&stream, op, a.view(), b.view(), out.view()).expect("a valid op");
        out.to_vec()
    };
    assert_eq!(bits(&run(BinaryOp::Maximum)), bits(&[nan, nan, nan, 3.0, 0.0].repeat(20)));
    assert_eq!(bits(&run(BinaryOp::Minimum)), bits(&[nan, nan, nan, -1.0, -0.5].repeat(20)));
    let run = |op| {
        unary(&stream, op, a.view(), out.view()).expect("a valid op");
        out.to_vec()
    };
    assert_eq!(bits(&run(UnaryOp::Clamp(-0.5, 0.5))), bits(&[nan, 0.5, nan, -0.5, 0.0].repeat(20)));
    assert_eq!(bits(&run(UnaryOp::Relu)), bits(&[nan, 1.0, nan, 0.0, 0.0].repeat(20)));
    assert_eq!(bits(&run(UnaryOp::Sign)), bits(&[0.0_f32, 1.0, 0.0, -1.0, 0.0].repeat(20)));
    let truth = Array::full(&stream, false, &[100]);
    for (&op, expected) in CompareOp::ALL.iter().zip([
        [false, false, false, false, false],
        [true, true, true, true, true],
        [false, false, false, true, false],
        [false, false, false, true, false],
        [false, false, false, false, true],
        [false, false, false, false, true],
    ]) {
        compare(&stream, op, a.view(), b.view(), truth.view()).expect("a valid op");
        assert_eq!(truth.to_vec(), expected.repeat(20), "{op:?}");
    }
}

/// As PyTorch: ReLU passes the gradient at NaN, hard swish is NaN there, hard sigmoid 0; a NaN bound makes every element NaN.
#[test]
fn nan_in_gradients_and_bounds() {
    let device = cpu(1);
    let stream = device.default_stream();
    let nan = f32::NAN;
    let x = Array::new(&stream, &[nan, -3.0, 3.0, 0.0, 6.0].repeat(20), &[100]);
    let g = Array::full(&stream, 2.0_f32, &[100]);
    let out = Array::full(&stream, 0.0_f32, &[100]);
    let slope = |op| {
        unary_grad(&stream, op, x.view(), g.view(), out.view()).expect("a valid op");
        out.to_vec()
    };
    assert_eq!(bits(&slope(UnaryOp::Relu)), bits(&[2.0_f32, 0.0, 2.0, 0.0, 2.0].repeat(20)));
    assert_eq!(bits(&slope(UnaryOp::HardSwish)), bits(&[nan, 0.0, 2.0, 1.0, 2.0].repeat(20)));
    assert_eq!(bits(&slope(UnaryOp::HardSigmoid)), bits(&[0.0, 0.0, 0.0, 2.0_f32 / 6.0, 0.0].repeat(20)));
    for op in
        [UnaryOp::Clamp(f64::NAN, 1.0), UnaryOp::Clamp(0.0, f64::NAN), UnaryOp::Clamp(f64::NAN, f64::NAN)]
    {
        unary(&stream, op, x.view(), out.view()).expect("a valid op");
        assert_eq!(bits(&out.to_vec()), bits(&[nan; 100]), "{op:?}");
    }
}

#[test]
fn integers_wrap_around_and_never_panic() {
    let device = cpu(1);
    let stream = device.default_stream();
    let x = [i64::MIN, i64::MAX, 7, -7, 0, 2, -1, 1];
    let y = [-1_i64, 1, 0, 2, 0, 63, -3, -2];
    let run = |op| {
        let (x, y) = (Array::new(&stream, &x, &[8]), Array::new(&stream, &y, &[8]));
        let out = Array::full(&stream, 0_i64, &[8]);
        binary(&stream, op, x.view(), y.view(), out.view()).expect("a valid op");
        out.to_vec()
    };
    assert_eq!(run(BinaryOp::Add), [i64::MAX, i64::MIN, 7, -5, 0, 65, -4, -1]);
    assert_eq!(run(BinaryOp::Div), [i64::MIN, i64::MAX, 0, -3, 0, 0, 0, 0]);
    assert_eq!(run(BinaryOp::Fmod), [0, 0, 7, -1, 0, 2, -1, 1]);
    assert_eq!(run(BinaryOp::Pow), [0, i64::MAX, 1, 49, 1, i64::MIN, -1, 1]);
    assert_eq!(run(BinaryOp::Maximum), [-1, i64::MAX, 7, 2, 0, 63, -1, 1]);
    let run = |op| {
        let (x, out) = (Array::new(&stream, &x, &[8]), Array::full(&stream, 0_i64, &[8]));
        unary(&stream, op, x.view(), out.view()).expect("a valid op");
        out.to_vec()
    };
    assert_eq!(run(UnaryOp::Neg), [i64::MIN, -i64::MAX, -7, 7, 0, -2, 1, -1]);
    assert_eq!(run(UnaryOp::Sign), [-1, 1, 1, -1, 0, 1, -1, 1]);
    assert_eq!(run(UnaryOp::AddScalar(-1.0)), [i64::MAX, i64::MAX - 1, 6, -8, -1, 1, -2, 0]);
    assert_eq!(run(UnaryOp::Clamp(f64::NEG_INFINITY, 1.0)), [i64::MIN, 1, 1, -7, 0, 1, -1, 1]);
    let bytes = Array::new(&stream, &[0_u8, 1, 255, 16], &[4]);
    let out = Array::full(&stream, 0_u8, &[4]);
    unary(&stream, UnaryOp::MulScalar(-1.0), bytes.view(), out.view()).expect("a valid op");
    assert_eq!(out.to_vec(), [0, 255, 1, 240]);
    unary(&stream, UnaryOp::Square, bytes.view(), out.view()).expect("a valid op");
    assert_eq!(out.to_vec(), [0, 1, 1, 0]);
    let refused = unary(&stream, UnaryOp::MulScalar(0.5), bytes.view(), out.view());
    assert!(
        matches!(
            refused.as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { op: "mul_scalar", .. })
        ),
        "{refused:?}"
    );
}

#[test]
fn comparisons_choices_and_negations_agree_with_rust() {
    let device = cpu(1);
    let stream = device.default_stream();
    let x: Vec<i64> = (0..LEN as i64).map(|i| i * 7 % 23).collect();
    let y: Vec<i64> = (0..LEN as i64).map(|i| i * 5 % 19).collect();
    for order in [[0, 1, 2], [2, 0, 1]] {
        let strided = |x: &[i64]| Array::stored_as(&stream, x, &SHAPE, &order);
        let (a, b) = (strided(&x), strided(&y));
        for &op in CompareOp::ALL {
            let truth = Array::full(&stream, false, &SHAPE);
            compare(&stream, op, a.view(), b.view(), truth.view()).expect("a valid op");
            let expected: Vec<bool> = x
                .iter()
                .zip(&y)
                .map(|(x, y)| match op {
                    CompareOp::Eq => x == y,
                    CompareOp::Ne => x != y,
                    CompareOp::Lt => x < y,
                    CompareOp::Le => x <= y,
                    CompareOp::Gt => x > y,
                    CompareOp::Ge => x >= y,
                })
                .collect();
            assert_eq!(truth.to_vec(), expected, "{op:?}");
            let out = Array::full(&stream, 0_i64, &SHAPE);
            where_cond(&stream, truth.view(), a.view(), b.view(), out.view()).expect("a valid op");
            let chosen: Vec<i64> =
                expected.iter().zip(x.iter().zip(&y)).map(|(&c, (&x, &y))| if c { x } else { y }).collect();
            assert_eq!(out.to_vec(), chosen);
            logical_not(&stream, truth.view(), truth.view()).expect("a valid op");
            assert_eq!(truth.to_vec(), expected.iter().map(|c| !c).collect::<Vec<_>>());
        }
    }
}

#[test]
fn operands_are_checked_before_anything_is_launched() {
    let device = cpu(1);
    let stream = device.default_stream();
    let x = Array::full(&stream, 1.0_f32, &[2, 3]);
    let other = Array::full(&stream, 1.0_f64, &[2, 3]);
    let row = Array::full(&stream, 1.0_f32, &[3]);
    let truth = Array::full(&stream, true, &[2, 3]);
    let launches = device.sync_stats().launches;
    let add = |lhs, rhs, out| binary(&stream, BinaryOp::Add, lhs, rhs, out);
    assert!(matches!(
        add(x.view(), other.view(), x.view()).as_ref().map_err(Error::kind),
        Err(ErrorKind::DTypeMismatch { op: "add", .. })
    ));
    assert!(matches!(
        add(x.view(), row.view(), x.view()).as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { op: "add", .. })
    ));
    assert!(matches!(
        add(truth.view(), truth.view(), truth.view()).as_ref().map_err(Error::kind),
        Err(ErrorKind::DTypeUnsupported { .. })
    ));
    assert!(matches!(
        unary(&stream, UnaryOp::Exp, x.view(), row.view()).as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { op: "exp", .. })
    ));
    assert!(matches!(
        compare(&stream, CompareOp::Lt, x.view(), x.view(), x.view()).as_ref().map_err(Error::kind),
        Err(ErrorKind::DTypeMismatch { op: "lt", .. })
    ));
    // An output whose elements share memory.
    let expanded = row.layout.expand("test", &[2, 3]).expect("fits");
    let shared = View::new(row.view().buffer, DType::F32, &expanded);
    assert!(matches!(
        add(x.view(), x.view(), shared).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { argument: "out", .. })
    ));
    // An output that overlaps an input otherwise than element for element.
    let square = Array::full(&stream, 1.0_f32, &[3, 3]);
    let flipped = square.layout.transpose("test", 0, 1).expect("two axes");
    let flipped = View::new(square.view().buffer, DType::F32, &flipped);
    assert!(matches!(
        add(flipped, square.view(), square.view()).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { argument: "out", .. })
    ));
    // A layout larger than the buffer.
    let large = Layout::contiguous(&[1000]);
    let outside = View::new(x.view().buffer, DType::F32, &large);
    assert!(matches!(
        add(outside, outside, outside).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { argument: "layout", .. })
    ));
    assert_eq!(device.sync_stats().launches, launches);
    // Halves of one buffer are apart.
    let half = |start| square.layout.narrow("test", 0, start, 1).expect("within");
    let (first, last) = (half(0), half(2));
    let view = |layout| View::new(square.view().buffer, DType::F32, layout);
    add(view(&first), view(&first), view(&last)).expect("no overlap");
    assert_eq!(square.to_vec(), [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
}

#[test]
fn empty_operands_are_fine() {
    let device = cpu(1);
    let stream = device.default_stream();
    let x = Array::<f32>::new(&stream, &[], &[0, 3]);
    unary(&stream, UnaryOp::Exp, x.view(), x.view()).expect("nothing to do");
    let flipped =
        Array::<f32>::new(&stream, &[], &[3, 0]).with(|l| l.transpose("test", 0, 1).expect("two axes"));
    let row =
        Array::new(&stream, &[1.0_f32, 2.0, 3.0], &[3]).with(|l| l.expand("test", &[0, 3]).expect("fits"));
    binary(&stream, BinaryOp::Add, flipped.view(), row.view(), x.view()).expect("nothing to do");
    assert_eq!(x.to_vec(), [0.0_f32; 0]);
}

#[test]
fn queued_commands_see_what_was_launched_before() {
    let device = cpu(2);
    let (first, second) = (device.new_stream().expect("a stream"), device.new_stream().expect("a stream"));
    let x = Array::full(&first, 1.0_f32, &[1000]);
    let held = first.hold();
    unary(&first, UnaryOp::AddScalar(1.0), x.view(), x.view()).expect("a valid op");
    unary(&second, UnaryOp::MulScalar(3.0), x.view(), x.view()).expect("a valid op");
    drop(held);
    assert_eq!(x.to_vec(), [6.0; 1000]);
}
