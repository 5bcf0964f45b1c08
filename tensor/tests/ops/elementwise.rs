//! Elementwise ops against scalar arithmetic, over layouts and broadcasting.

use device::Result;
use proptest::prelude::*;
use tensor::{BinaryOp, CompareOp, DType, GeluKind, Tensor, UnaryOp, grad};

use crate::on::device;
use crate::reference::{Plain, broadcast_pairs, shapes};

type Binary = (BinaryOp, fn(f64, f64) -> f64);

fn binaries() -> Vec<Binary> {
    vec![
        (BinaryOp::Add, |a, b| a + b),
        (BinaryOp::Sub, |a, b| a - b),
        (BinaryOp::Mul, |a, b| a * b),
        (BinaryOp::Div, |a, b| a / b),
        (BinaryOp::Maximum, f64::max),
        (BinaryOp::Minimum, f64::min),
        (BinaryOp::Pow, f64::powf),
        (BinaryOp::Fmod, |a, b| a % b),
        (BinaryOp::Atan2, f64::atan2),
    ]
}

type Compare = (CompareOp, fn(&f64, &f64) -> bool);

fn compares() -> Vec<Compare> {
    vec![
        (CompareOp::Eq, |a, b| a == b),
        (CompareOp::Ne, |a, b| a != b),
        (CompareOp::Lt, |a, b| a < b),
        (CompareOp::Le, |a, b| a <= b),
        (CompareOp::Gt, |a, b| a > b),
        (CompareOp::Ge, |a, b| a >= b),
    ]
}

type Unary = (UnaryOp, fn(f64) -> f64);

fn unaries() -> Vec<Unary> {
    vec![
        (UnaryOp::Neg, |x| -x),
        (UnaryOp::Abs, f64::abs),
        (UnaryOp::Sign, |x| if x == 0.0 { 0.0 } else { x.signum() }),
        (UnaryOp::Exp, f64::exp),
        (UnaryOp::Log, f64::ln),
        (UnaryOp::Sqrt, f64::sqrt),
        (UnaryOp::Square, |x| x * x),
        (UnaryOp::Tanh, f64::tanh),
        (UnaryOp::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        (UnaryOp::Relu, |x| x.max(0.0)),
        (UnaryOp::Silu, |x| x / (1.0 + (-x).exp())),
        (UnaryOp::Reciprocal, |x| 1.0 / x),
        (UnaryOp::Rsqrt, |x| 1.0 / x.sqrt()),
        (UnaryOp::Sin, f64::sin),
        (UnaryOp::Cos, f64::cos),
        (UnaryOp::AddScalar(2.5), |x| x + 2.5),
        (UnaryOp::MulScalar(-3.0), |x| x * -3.0),
        (UnaryOp::PowScalar(3.0), |x| x.powf(3.0)),
        (UnaryOp::Clamp(-1.0, 2.0), |x| x.clamp(-1.0, 2.0)),
    ]
}

proptest! {
    #[test]
    fn binary_ops_broadcast((a, b, out) in broadcast_pairs(), hows in (0_u8..4, 0_u8..4)) {
        let (x, y) = (Plain::numbered(&a, 3), Plain::numbered(&b, 4));
        let (s, t) = (x.f64(hows.0)?, y.f64(hows.1)?);
        for (op, f) in binaries() {
            let expected = Plain::from_fn(&out, |i| f(x.broadcast_at(i), y.broadcast_at(i)));
            let got = s.binary(op, &t)?;
            prop_assert!(expected.matches(&got, 1e-12)?, "{op:?}: {got} for {expected:?}");
        }
        for (op, f) in compares() {
            let expected = Plain::from_fn(&out, |i| f64::from(f(&x.broadcast_at(i), &y.broadcast_at(i))));
            prop_assert!(expected.matches(&s.compare(op, &t)?, 0.0)?, "{op:?}");
        }
    }

    #[test]
    fn unary_ops_over_layouts(shape in shapes(), how in 0_u8..4) {
        let x = Plain::numbered(&shape, 5);
        let t = x.f64(how)?;
        for (op, f) in unaries() {
            let expected = Plain::from_fn(&shape, |i| f(x.at(i)));
            let got = t.unary(op)?;
            prop_assert!(expected.matches(&got, 1e-9)?, "{op:?}: {got} for {expected:?}");
        }
    }

    #[test]
    fn layouts_do_not_change_a_bit(shape in shapes(), how in 1_u8..4) {
        let x = Plain::numbered(&shape, 6);
        for (op, _) in unaries() {
            let flat = x.tensor(0, DType::F32, &device())?.unary(op)?.to_vec::<f32>()?;
            let strided = x.tensor(how, DType::F32, &device())?.unary(op)?.to_vec::<f32>()?;
            let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&flat), bits(&strided), "{:?}", op);
        }
    }

    #[test]
    fn where_cond_broadcasts((a, b, out) in broadcast_pairs(), how in 0_u8..4) {
        let (x, y) = (Plain::numbered(&a, 7), Plain::numbered(&b, 8));
        let cond = x.f64(how)?.gt(0.0)?;
        let got = Tensor::where_cond(&cond, &x.f64(how)?, &y.f64(0)?)?;
        let expected = Plain::from_fn(&out, |i| {
            if x.broadcast_at(i) > 0.0 { x.broadcast_at(i) } else { y.broadcast_at(i) }
        });
        prop_assert!(expected.matches(&got, 0.0)?);
    }
}

#[test]
fn numbers_are_compared_with_integers_as_they_are() -> Result<()> {
    let x = Tensor::from_slice(&[-1_i64, 0, 1], &[3], &device())?;
    assert_eq!(x.lt(0.5)?.to_vec::<bool>()?, [true, true, false]);
    assert_eq!(x.ge(-0.5)?.to_vec::<bool>()?, [false, true, true]);
    let large = (1_i64 << 53) + 1;
    assert_eq!(
        x.add_scalar(large as f64)?.add_scalar(1.0)?.gt(large as f64)?.to_vec::<bool>()?,
        [false, true, true]
    );
    let ends = Tensor::from_slice(&[i64::MIN, i64::MAX], &[2], &device())?;
    for beyond in [f64::INFINITY, 1e300, 2_f64.powi(63)] {
        assert_eq!(ends.lt(beyond)?.to_vec::<bool>()?, [true; 2], "{beyond}");
        assert_eq!(ends.eq(beyond)?.to_vec::<bool>()?, [false; 2], "{beyond}");
    }
    assert_eq!(ends.gt(-1e300)?.to_vec::<bool>()?, [true; 2]);
    assert_eq!(ends.eq(-(2_f64.powi(63)))?.to_vec::<bool>()?, [true, false]);
    let bytes = x.add_scalar(254.0)?.to_dtype(DType::U8)?;
    assert_eq!(bytes.lt(300.0)?.to_vec::<bool>()?, [true; 3]);
    assert_eq!(bytes.gt(-1.0)?.to_vec::<bool>()?, [true; 3]);
    assert_eq!(x.ne(0.0)?.eq(2.0)?.to_vec::<bool>()?, [false; 3]);
    assert_eq!(x.compare(CompareOp::Le, f64::NAN)?.to_vec::<bool>()?, [false; 3]);
    Ok(())
}

fn floats(values: &[f64]) -> Result<Tensor> {
    Tensor::from_slice(values, &[values.len()], &device())
}

#[test]
fn nan_goes_where_torch_lets_it_go() -> Result<()> {
    let (x, y) = (floats(&[f64::NAN, 1.0, 2.0])?, floats(&[1.0, f64::NAN, 1.0])?);
    for z in [x.maximum(&y)?, x.minimum(&y)?, x.add(&y)?] {
        let z = z.to_vec::<f64>()?;
        assert!(z[0].is_nan() && z[1].is_nan() && !z[2].is_nan());
    }
    for z in [x.clamp(0.0, 1.0)?, x.relu()?, x.gelu(GeluKind::Erf)?] {
        assert!(z.to_vec::<f64>()?[0].is_nan());
    }
    assert_eq!(x.neg()?.sign()?.to_vec::<f64>()?, [0.0, -1.0, -1.0]);
    assert_eq!(x.eq(&x)?.to_vec::<bool>()?, [false, true, true]);
    assert_eq!(x.ne(&x)?.to_vec::<bool>()?, [true, false, false]);
    assert_eq!(x.lt(&y)?.to_vec::<bool>()?, [false; 3]);
    let far = floats(&[f64::NAN, f64::NEG_INFINITY, f64::INFINITY, 2.0])?;
    assert_eq!(far.isnan()?.to_vec::<bool>()?, [true, false, false, false]);
    assert_eq!(far.isinf()?.to_vec::<bool>()?, [false, true, true, false]);
    assert_eq!(far.isfinite()?.to_vec::<bool>()?, [false, false, false, true]);
    assert!(far.to_dtype(DType::I64)?.isinf().is_err());
    assert_eq!(x.ge(&y)?.logical_not()?.to_vec::<bool>()?, [true, true, false]);
    Ok(())
}

#[test]
fn integers_wrap_and_never_panic() -> Result<()> {
    let device = device();
    let x = Tensor::from_slice(&[i64::MAX, i64::MIN, 7], &[3], &device)?;
    let y = Tensor::from_slice(&[1_i64, -1, 0], &[3], &device)?;
    assert_eq!(x.add(&y)?.to_vec::<i64>()?, [i64::MIN, i64::MAX, 7]);
    assert_eq!(x.mul(&y)?.to_vec::<i64>()?, [i64::MAX, i64::MIN, 0]);
    let bytes = Tensor::from_slice(&[250_u8, 3], &[2], &device)?;
    assert_eq!(bytes.add(&bytes)?.to_vec::<u8>()?, [244, 6]);
    Ok(())
}

#[test]
fn dense_operands_keep_their_order() -> Result<()> {
    let x = Plain::numbered(&[3, 5], 9).f64(1)?;
    assert!(!x.is_contiguous());
    for y in [x.add(&x)?, x.exp()?, x.mul(&Tensor::scalar(2.0_f64, x.device())?)?] {
        assert_eq!(y.strides(), x.strides());
    }
    assert!(x.add(&x.contiguous()?)?.is_contiguous());
    Ok(())
}

#[test]
fn turned_axes_turn_back() -> Result<()> {
    // Unlike a transposition, this order of axes is not its own inverse.
    let x = Plain::numbered(&[2, 3, 4], 10).f64(0)?.permute(&[1, 2, 0])?;
    let flat = x.contiguous()?;
    let pairs =
        [(x.exp()?, flat.exp()?), (x.add(&x)?, flat.add(&flat)?), (x.lt(&x.neg()?)?, flat.lt(&flat.neg()?)?)];
    for (turned, plain) in pairs {
        assert_eq!((turned.shape(), turned.strides()), (x.shape(), x.strides()));
        let values = |y: &Tensor| y.to_dtype(DType::F64)?.to_vec::<f64>();
        assert_eq!(values(&turned)?, values(&plain)?);
    }
    x.mul_(&x.clone())?;
    assert_eq!(x.to_vec::<f64>()?, flat.square()?.to_vec::<f64>()?);
    Ok(())
}

#[test]
fn gelu_and_its_gradient() -> Result<()> {
    let x = floats(&[-2.0, -0.5, 0.0, 0.5, 2.0])?;
    let expected = [-0.045500263896358, -0.154268770332706, 0.0, 0.345731229667294, 1.954499736103642];
    let y = x.gelu(GeluKind::Erf)?.to_vec::<f64>()?;
    assert!(y.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{y:?}");
    for (form, op) in [(GeluKind::Erf, UnaryOp::GeluErf), (GeluKind::Tanh, UnaryOp::GeluTanh)] {
        let step = 1e-6;
        let slope =
            x.add_scalar(step)?.gelu(form)?.sub(&x.add_scalar(-step)?.gelu(form)?)?.mul_scalar(0.5 / step)?;
        let g = grad::unary(&x, op, &x.ones_like()?)?;
        let far = g.sub(&slope)?.abs()?.max(&[], false)?.item::<f64>()?;
        assert!(far < 1e-7, "{form:?}: {far}");
    }
    Ok(())
}

#[test]
fn gradient_helpers_follow_their_formulas() -> Result<()> {
    let (x, g) = (floats(&[-1.5, 0.0, 0.25, 3.0])?, floats(&[1.0, 2.0, -3.0, 4.0])?);
    assert_eq!(grad::unary(&x, UnaryOp::Relu, &g)?.to_vec::<f64>()?, [0.0, 0.0, -3.0, 4.0]);
    let close = |a: Tensor, b: Tensor| -> Result<bool> {
        Ok(a.sub(&b)?.abs()?.max(&[], false)?.item::<f64>()? < 1e-12)
    };
    let one = x.ones_like()?;
    let y = x.tanh()?;
    assert!(close(grad::unary(&x, UnaryOp::Tanh, &g)?, one.sub(&y.square()?)?.mul(&g)?)?);
    let y = x.sigmoid()?;
    assert!(close(grad::unary(&x, UnaryOp::Sigmoid, &g)?, y.mul(&one.sub(&y)?)?.mul(&g)?)?);
    let silu = y.add(&x.mul(&y)?.mul(&one.sub(&y)?)?)?.mul(&g)?;
    assert!(close(grad::unary(&x, UnaryOp::Silu, &g)?, silu)?);
    Ok(())
}
