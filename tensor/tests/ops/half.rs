//! BF16 and F16: conversions against the definition of the formats, ops against F32 rounded once, sums against F64.

use device::{DType, Element, Error, ErrorKind, Result};
use kernels::{CompareOp, UnaryOp};
use tensor::fused::Activation;
use tensor::grad::{self, Means};
use tensor::{Attention, AvgPool, ConvOptions, MaxPool, RandomKey, Tensor, bf16, f16};

use crate::on::device;
use crate::reference::Plain;

const HALVES: [DType; 2] = [DType::BF16, DType::F16];

/// The number that a pattern stands for, by the definition of the formats.
fn number(dtype: DType, bits: u16) -> f64 {
    let (fraction_bits, bias) = if dtype == DType::BF16 { (7, 127) } else { (10, 15) };
    let exponent = i32::from((bits & 0x7fff) >> fraction_bits);
    let fraction = f64::from(bits & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    if exponent == 2 * bias + 1 {
        return if fraction == 0.0 { sign * f64::INFINITY } else { f64::NAN };
    }
    let leading = if exponent == 0 { 0.0 } else { 1.0 };
    sign * (leading + fraction) * 2_f64.powi(exponent.max(1) - bias)
}

/// The pattern of infinity.
fn infinity(dtype: DType) -> u16 {
    if dtype == DType::BF16 { 0x7f80 } else { 0x7c00 }
}

fn from_bits(dtype: DType, bits: &[u16]) -> Result<Tensor> {
    let shape = [bits.len()];
    if dtype == DType::BF16 {
        let values: Vec<bf16> = bits.iter().copied().map(bf16::from_bits).collect();
        return Tensor::from_slice(&values, &shape, &device());
    }
    let values: Vec<f16> = bits.iter().copied().map(f16::from_bits).collect();
    Tensor::from_slice(&values, &shape, &device())
}

/// The patterns of the elements, one for all NaN.
fn to_bits(x: &Tensor) -> Result<Vec<u16>> {
    let nan = |bits: u16, is_nan| if is_nan { 0x7fff } else { bits };
    if x.dtype() == DType::BF16 {
        return Ok(x.to_vec::<bf16>()?.into_iter().map(|v| nan(v.to_bits(), v.is_nan())).collect());
    }
    Ok(x.to_vec::<f16>()?.into_iter().map(|v| nan(v.to_bits(), v.is_nan())).collect())
}

fn every_pattern() -> Vec<u16> {
    (0..=u16::MAX).collect()
}

#[test]
fn every_pattern_goes_out_and_comes_back() -> Result<()> {
    fn check<T: Element>(x: &Tensor, expected: impl Fn(f64) -> T) -> Result<()> {
        let found = x.to_dtype(T::DTYPE)?.to_vec::<T>()?;
        for bits in every_pattern() {
            let (value, found) = (number(x.dtype(), bits), found[usize::from(bits)]);
            assert!(format!("{found:?}") == format!("{:?}", expected(value)), "{bits:#x}: {found:?}");
        }
        Ok(())
    }
    for dtype in HALVES {
        let x = from_bits(dtype, &every_pattern())?;
        check(&x, |v| v)?;
        check(&x, |v| v as f32)?;
        check(&x, |v| v as i64)?;
        check(&x, |v| v as u8)?;
        check(&x, |v| v != 0.0)?;
        for through in [DType::F32, DType::F64, dtype] {
            assert_eq!(to_bits(&x.to_dtype(through)?.to_dtype(dtype)?)?, to_bits(&x)?);
        }
        assert_eq!(to_bits(&x.copy()?)?, to_bits(&x)?);
    }
    Ok(())
}

#[test]
fn conversions_round_once_to_nearest_even() -> Result<()> {
    for dtype in HALVES {
        let (mut values, mut expected) = (Vec::new(), Vec::new());
        let finite = 0..infinity(dtype);
        for low in finite {
            // What comes after the largest number would be as far away as what comes before it.
            let (a, high) = (number(dtype, low), low + 1);
            let step =
                if high == infinity(dtype) { a - number(dtype, low - 1) } else { number(dtype, high) - a };
            let middle = a + step / 2.0;
            let even = if low % 2 == 0 { low } else { high };
            for (value, bits) in
                [(a, low), (middle.next_down(), low), (middle, even), (middle.next_up(), high)]
            {
                values.extend([value, -value]);
                expected.extend([bits, bits | 0x8000]);
            }
        }
        let x = Tensor::from_slice(&values, &[values.len()], &device())?;
        assert_eq!(to_bits(&x.to_dtype(dtype)?)?, expected);
        // F32 holds the middles, and its next numbers lie on the same sides.
        let (singles, expected): (Vec<f32>, Vec<u16>) = values
            .iter()
            .zip(&expected)
            .filter(|(value, _)| f64::from(**value as f32) == **value)
            .flat_map(|(&value, &bits)| [(value as f32, bits)])
            .unzip();
        assert!(singles.len() > values.len() / 3);
        let x = Tensor::from_slice(&singles, &[singles.len()], &device())?;
        assert_eq!(to_bits(&x.to_dtype(dtype)?)?, expected);
        let beside: Vec<f32> = singles.iter().map(|x| x.next_up()).collect();
        let wide = Tensor::from_slice(&beside, &[beside.len()], &device())?;
        let twice = wide.to_dtype(DType::F64)?.to_dtype(dtype)?;
        assert_eq!(to_bits(&wide.to_dtype(dtype)?)?, to_bits(&twice)?);
    }
    Ok(())
}

#[test]
fn large_integers_round_once() -> Result<()> {
    let mut values = vec![0, 1, -1, 255, 257, 259, -257, 65_519, 65_520, i64::MAX, i64::MIN];
    let mut expected = vec![0.0, 1.0, -1.0, 255.0, 256.0, 260.0, -256.0, 65_536.0, 65_536.0];
    expected.extend([2_f64.powi(63), -(2_f64.powi(63))]);
    for shift in 1..54 {
        // Between 256 and 258, and beside it by less than F32 or F64 can tell.
        values.extend([257_i64 << shift, (257 << shift) + 1, (257 << shift) - 1, -(257_i64 << shift) - 1]);
        let unit = 2_f64.powi(shift);
        expected.extend([256.0 * unit, 258.0 * unit, 256.0 * unit, -258.0 * unit]);
    }
    let x = Tensor::from_slice(&values, &[values.len()], &device())?;
    let rounded = x.to_dtype(DType::BF16)?.to_dtype(DType::F64)?;
    assert_eq!(rounded.to_vec::<f64>()?, expected);
    for (value, expected) in values.iter().zip(expected) {
        let filled = Tensor::full(&[1], *value, DType::BF16, &device())?;
        assert_eq!(filled.to_dtype(DType::F64)?.item::<f64>()?, expected, "{value}");
    }
    let small = Tensor::from_slice(&[2049_i64, 2051, 65_519, 65_520, -65_520], &[5], &device())?;
    let small = small.to_dtype(DType::F16)?.to_dtype(DType::F32)?.to_vec::<f32>()?;
    assert_eq!(small, [2048.0, 2052.0, 65_504.0, f32::INFINITY, f32::NEG_INFINITY]);
    let bytes = Tensor::from_slice(&[0_u8, 200, 255], &[3], &device())?.to_dtype(DType::F16)?;
    assert_eq!(bytes.to_dtype(DType::U8)?.to_vec::<u8>()?, [0, 200, 255]);
    let truth = Tensor::from_slice(&[true, false], &[2], &device())?.to_dtype(DType::BF16)?;
    assert_eq!(truth.to_vec::<bf16>()?, [bf16::ONE, bf16::ZERO]);
    Ok(())
}

#[test]
fn halves_are_filled_read_and_printed() -> Result<()> {
    let device = device();
    for dtype in HALVES {
        assert_eq!(Tensor::ones(&[2], dtype, &device)?.to_dtype(DType::F32)?.to_vec::<f32>()?, [1.0; 2]);
        // 1 + 2^-8 + 2^-40 lies above the middle between 1 and what follows it in BF16, but not in F32.
        let value = 1.0 + 2_f64.powi(-8) + 2_f64.powi(-40);
        let filled = Tensor::full(&[1], value, DType::BF16, &device)?;
        assert_eq!(filled.to_dtype(DType::F32)?.item::<f32>()?, 1.0 + 2_f32.powi(-7));
        let x = Tensor::from_slice(&[1.5_f32, -2.25, 0.0], &[3], &device)?.to_dtype(dtype)?;
        assert_eq!(format!("{x}"), format!("{}", x.to_dtype(DType::F32)?).replace("f32", dtype.name()));
        let numbers = Tensor::arange(0.0, 4.0, 0.5, dtype, &device)?;
        assert_eq!((numbers.dtype(), numbers.elements()), (dtype, 8));
        let line = Tensor::linspace(0.0, 1.0, 5, dtype, &device)?.to_dtype(DType::F32)?;
        assert_eq!(line.to_vec::<f32>()?, [0.0, 0.25, 0.5, 0.75, 1.0]);
    }
    assert_eq!(Tensor::scalar(f16::from_f32(0.5), &device)?.item::<f16>()?, f16::from_f32(0.5));
    Ok(())
}

#[test]
fn functions_of_every_pattern_are_those_of_f32_rounded() -> Result<()> {
    let others = [UnaryOp::AddScalar(0.3), UnaryOp::MulScalar(1.0 / 3.0), UnaryOp::PowScalar(3.0)];
    let ops = UnaryOp::ALL.iter().copied().chain(others);
    for dtype in HALVES {
        let x = from_bits(dtype, &every_pattern())?;
        // A view that is not contiguous, too.
        let turned = x.reshape(&[256, 256])?.transpose(0, 1)?.narrow(0, 3, 50)?;
        for op in ops.clone() {
            for x in [&x, &turned] {
                let expected = x.to_dtype(DType::F32)?.unary(op)?.to_dtype(dtype)?;
                assert_eq!(to_bits(&x.unary(op)?)?, to_bits(&expected)?, "{op:?} of {dtype}");
            }
        }
        let wide = x.to_dtype(DType::F32)?;
        for op in [CompareOp::Eq, CompareOp::Lt, CompareOp::Ge] {
            let found = x.compare(op, 0.5)?.to_vec::<bool>()?;
            assert_eq!(found, wide.compare(op, 0.5)?.to_vec::<bool>()?);
        }
    }
    Ok(())
}

/// Inputs that halves hold, of several magnitudes, stored as [`Plain::tensor`] says.
fn drawn(shapes: &[&[usize]], how: u8, dtype: DType) -> Result<Vec<Tensor>> {
    let draw = |(salt, shape): (usize, &&[usize])| {
        let mut x = Plain::numbered(shape, salt as u64 + 1);
        x.data.iter_mut().for_each(|x| *x /= 4.0);
        x.tensor(how, dtype, &device())
    };
    shapes.iter().enumerate().map(draw).collect()
}

type Outputs = Result<Vec<Tensor>>;

/// An op with the shapes of its inputs.
struct Case {
    name: &'static str,
    shapes: &'static [&'static [usize]],
    run: fn(&[Tensor]) -> Outputs,
}

fn case(name: &'static str, shapes: &'static [&'static [usize]], run: fn(&[Tensor]) -> Outputs) -> Case {
    Case { name, shapes, run }
}

fn indices(of: &Tensor, values: &[i64]) -> Result<Tensor> {
    Tensor::from_slice(values, &[values.len()], of.device())
}

const KEY: RandomKey = RandomKey { seed: 3, op: 1 };

fn elementwise() -> Vec<Case> {
    const BROADCAST: &[&[usize]] = &[&[3, 1, 37], &[5, 37]];
    const PAIR: &[&[usize]] = &[&[4, 37], &[4, 37]];
    vec![
        case("add", BROADCAST, |x| Ok(vec![x[0].add(&x[1])?])),
        case("add_many", &[&[2000, 3], &[2000, 3]], |x| Ok(vec![x[0].add(&x[1])?])),
        case("sub", BROADCAST, |x| Ok(vec![x[0].sub(&x[1])?])),
        case("mul", PAIR, |x| Ok(vec![x[0].mul(&x[1])?])),
        case("div", PAIR, |x| Ok(vec![x[0].div(&x[1])?])),
        case("pow", PAIR, |x| Ok(vec![x[0].abs()?.pow(&x[1])?])),
        case("fmod and atan2", PAIR, |x| Ok(vec![x[0].fmod(&x[1])?, x[0].atan2(&x[1])?])),
        case("maximum", PAIR, |x| Ok(vec![x[0].maximum(&x[1])?, x[0].minimum(&x[1])?])),
        case("compare", PAIR, |x| Ok(vec![x[0].lt(&x[1])?, x[0].eq(&x[0])?, x[0].ge(&x[1])?])),
        case("gradients", PAIR, |x| {
            let (x, g) = (&x[0], &x[1]);
            UnaryOp::ALL.iter().filter(|op| op.saves().is_some()).map(|&op| grad::unary(x, op, g)).collect()
        }),
        case("where", PAIR, |x| Ok(vec![Tensor::where_cond(&x[0].lt(&x[1])?, &x[0], &x[1])?])),
        case("triangle", PAIR, |x| Ok(vec![x[0].tril(2)?, x[1].triu(-1)?])),
        case("in_place", BROADCAST, |x| {
            let copies = [0; 4].map(|_| x[0].expand(&[3, 5, 37])?.copy());
            let [added, scaled, filled, copied] = copies.map(Result::unwrap);
            added.narrow(2, 1, 35)?.add_(&x[1].narrow(1, 2, 35)?)?;
            scaled.narrow(1, 1, 2)?.mul_scalar_(0.3)?;
            filled.narrow(2, 5, 9)?.fill_(0.1)?;
            copied.transpose(0, 2)?.copy_(&x[1].narrow(0, 0, 3)?.t()?.unsqueeze(1)?)?;
            Ok(vec![added, scaled, filled, copied])
        }),
        case("cat", PAIR, |x| {
            let padded = x[0].pad_constant(&[[1, 0], [2, 3]], 0.1)?;
            Ok(vec![Tensor::cat(&[&x[0], &x[1]], 1)?, Tensor::stack(&[&x[0], &x[1]], 0)?, padded])
        }),
        case("pick", &[&[6, 5, 3]], |x| {
            let which = indices(&x[0], &[5, 0, 0, 3])?;
            let each = Tensor::from_slice(&[0_i64, 4, 2, 2], &[2, 2, 1], x[0].device())?;
            Ok(vec![
                x[0].index_select(0, &which)?,
                x[0].index_select(2, &indices(&x[0], &[2])?)?,
                x[0].gather(1, &each)?,
            ])
        }),
        case("dropout", PAIR, |x| Ok(vec![x[0].dropout(0.4, KEY)?])),
        case("rotary", &[&[2, 5, 8], &[5, 4], &[5, 4]], |x| {
            Ok(vec![
                x[0].rotary_embedding(&x[1], &x[2], false, false)?,
                x[0].rotary_embedding(&x[1], &x[2], true, true)?,
            ])
        }),
        case("max_pool", &[&[2, 3, 7, 6]], |x| {
            let pool = MaxPool { padding: [1; 2], ..MaxPool::new([3, 2]) };
            let (y, index) = x[0].max_pool2d(&pool)?;
            Ok(vec![
                grad::max_pool2d(&y, &index, &pool, [7, 6])?,
                grad::max_pool2d_pick(&x[0], &index, &pool)?,
                y,
                index,
            ])
        }),
    ]
}

fn sums() -> Vec<Case> {
    vec![
        case("sum", &[&[6, 700, 3]], |x| {
            Ok(vec![x[0].sum(&[], false)?, x[0].sum(&[1], true)?, x[0].sum(&[0, 2], false)?])
        }),
        case("mean", &[&[6, 700, 3]], |x| Ok(vec![x[0].mean(&[1], false)?, x[0].var(&[0, 1], 1.0, false)?])),
        case("max", &[&[6, 70, 3]], |x| {
            Ok(vec![
                x[0].max(&[1], false)?,
                x[0].min(&[0], true)?,
                x[0].argmax(1, false)?,
                x[0].argmin(0, true)?,
            ])
        }),
        case("prod", &[&[5, 4]], |x| Ok(vec![x[0].prod(&[1], false)?])),
        case("logsumexp", &[&[5, 40]], |x| {
            Ok(vec![x[0].logsumexp(&[1], false)?, x[0].logsumexp(&[0], false)?])
        }),
        case("softmax", &[&[5, 40], &[5, 40]], |x| {
            let rows = [x[0].softmax(-1)?, x[0].log_softmax(-1)?, x[0].softmax(0)?];
            let grads = [grad::softmax(&x[0], &x[1], 1)?, grad::log_softmax(&x[0], &x[1], 0)?];
            Ok(rows.into_iter().chain(grads).collect())
        }),
        case("cumsum", &[&[5, 40]], |x| Ok(vec![x[0].cumsum(1)?, x[0].cumsum_from_end(0)?])),
        case("scatter", &[&[4, 3], &[6, 3]], |x| {
            let rows = indices(&x[0], &[3, 0, 0, 1, 0, 3])?;
            let each = rows.reshape(&[6, 1])?.expand(&[6, 3])?.contiguous()?;
            let added = [x[0].index_add(0, &rows, &x[1])?, x[0].scatter_add(0, &each, &x[1])?];
            let grads =
                [grad::index_select(&x[1], 0, &rows, 4)?, grad::gather(&x[1], 0, &each, &[4, 3], false)?];
            Ok(added.into_iter().chain(grads).collect())
        }),
        case("layer_norm", &[&[6, 33], &[33], &[33], &[6, 33]], |x| {
            let norm = tensor::Norm::layer(&x[0], &[33], 1e-5)?;
            let y = norm.forward(&x[0], Some(&x[1]), Some(&x[2]))?;
            let grads = norm.backward(&x[3], &x[0], Some(&x[1]), y.mean.as_ref(), &y.rstd, [true; 3])?;
            let grads = [grads.x, grads.weight, grads.bias].into_iter().flatten();
            Ok([y.out, y.rstd].into_iter().chain(y.mean).chain(grads).collect())
        }),
        case("rms_and_group_norm", &[&[2, 6, 5], &[5], &[6]], |x| {
            Ok(vec![x[0].rms_norm(&[5], Some(&x[1]), None)?, x[0].group_norm(3, Some(&x[2]), None, 1e-5)?])
        }),
        case("batch_norm", &[&[4, 3, 5, 2], &[3], &[3], &[4, 3, 5, 2]], |x| {
            let (y, statistics) = x[0].batch_norm(Some(&x[1]), Some(&x[2]), 1e-5)?;
            let grads =
                grad::batch_norm(&x[0], &x[3], [Some(&x[1]), None], &statistics, 1e-5, Activation::None)?;
            let given = x[0].batch_norm_with(&statistics.mean, &statistics.var, Some(&x[1]), None, 1e-3)?;
            Ok([y, given, statistics.mean, statistics.var].into_iter().chain(grads).collect())
        }),
        case("attention", &[&[2, 3, 9, 4], &[2, 3, 7, 4], &[2, 3, 7, 5], &[2, 3, 9, 5]], |x| {
            let attention = Attention { is_causal: true, ..Attention::default() };
            let y = attention.forward([&x[0], &x[1], &x[2]])?;
            let grads = attention.backward([&x[0], &x[1], &x[2]], &y, &x[3])?;
            Ok([y.out, y.log_sums].into_iter().chain(grads).collect())
        }),
        case("masked_attention", &[&[9, 4], &[7, 4], &[7, 5], &[9, 7]], |x| {
            let attention = Attention { mask: Some(x[3].clone()), ..Attention::default() };
            Ok(vec![attention.forward([&x[0], &x[1], &x[2]])?.out])
        }),
        case("packed_attention", &[&[2, 6, 24], &[2, 6, 8]], |x| {
            let attention = Attention::default();
            let y = attention.forward_packed(&x[0], 2)?;
            Ok(vec![attention.backward_packed(&x[0], 2, &y, &x[1])?, y.out])
        }),
        case("cross_entropy", &[&[5, 11], &[5]], |x| {
            let labels = indices(&x[0], &[10, 0, 3, 3, 7])?;
            let (losses, log_sums) = x[0].cross_entropy(&labels)?;
            let g = x[1].to_dtype(losses.dtype())?;
            Ok(vec![grad::cross_entropy(&x[0], &log_sums, &labels, &g)?, losses, log_sums])
        }),
        case("matmul", &[&[3, 20, 300], &[300, 17], &[1, 300, 4]], |x| {
            let row = x[0].narrow(1, 3, 1)?.squeeze(1)?.narrow(0, 0, 1)?.squeeze(0)?;
            Ok(vec![x[0].matmul(&x[1])?, x[0].matmul(&x[2].expand(&[3, 300, 4])?)?, row.matmul(&x[1])?])
        }),
        case("linear", &[&[2, 5, 40], &[7, 40], &[7]], |x| {
            Ok(vec![x[0].linear(&x[1], Some(&x[2]))?, x[0].linear(&x[1], None)?])
        }),
        case("conv2d", &[&[2, 4, 7, 6], &[6, 2, 3, 3], &[6], &[2, 6, 4, 3], &[4, 1, 3, 3]], |x| {
            let options =
                ConvOptions { stride: [2; 2], padding: [1; 2], groups: 2, ..ConvOptions::default() };
            let by_channel = ConvOptions { groups: 4, ..ConvOptions::default() };
            Ok(vec![
                x[0].conv2d(&x[1], Some(&x[2]), &options)?,
                grad::conv2d_input(&x[3], &x[1], [7, 6], &options)?,
                grad::conv2d_weight(&x[0], &x[3], [3; 2], &options)?,
                x[0].conv2d(&x[4], None, &by_channel)?,
            ])
        }),
        case("mean_pool", &[&[2, 3, 7, 6]], |x| {
            let pool = AvgPool { padding: [1, 0], ..AvgPool::new([3, 2]) };
            let y = x[0].avg_pool2d(&pool)?;
            let adaptive = x[0].adaptive_avg_pool2d([3, 4])?;
            Ok(vec![
                grad::avg_pool2d(&y, &pool, [7, 6])?,
                grad::resized("adaptive_avg_pool2d_grad", &adaptive, Means::Adaptive, [7, 6])?,
                y,
                adaptive,
            ])
        }),
    ]
}

/// Elements as F64, with one pattern for all NaN.
fn values(x: &Tensor) -> Result<Vec<u64>> {
    let values = x.to_dtype(DType::F64)?.to_vec::<f64>()?;
    Ok(values.into_iter().map(|x| if x.is_nan() { u64::MAX } else { x.to_bits() }).collect())
}

/// Runs a case on halves and on the same numbers in another type.
fn both(case: &Case, how: u8, dtype: DType, other: DType) -> Result<Vec<(Tensor, Tensor)>> {
    let halves = drawn(case.shapes, how, dtype)?;
    let others = halves.iter().map(|x| x.to_dtype(other)).collect::<Result<Vec<_>>>()?;
    Ok((case.run)(&halves)?.into_iter().zip((case.run)(&others)?).collect())
}

fn agrees_with_f32(cases: &[Case]) -> Result<()> {
    for dtype in HALVES {
        for case in cases {
            for how in 0..4 {
                for (at, (half, wide)) in both(case, how, dtype, DType::F32)?.into_iter().enumerate() {
                    if made_of_rounded(case.name, at) {
                        continue;
                    }
                    let expected = if half.dtype() == dtype { wide.to_dtype(dtype)? } else { wide };
                    assert_eq!((half.shape(), half.dtype()), (expected.shape(), expected.dtype()));
                    let (found, expected) = (values(&half)?, values(&expected)?);
                    let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
                    assert!(wrong.is_none(), "{} {at} {how} {dtype}: element {wrong:?}", case.name);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn elementwise_ops_are_those_of_f32_rounded() -> Result<()> {
    agrees_with_f32(&elementwise())
}

#[test]
fn sums_are_those_of_f32_rounded() -> Result<()> {
    // On CUDA the order of a sum may depend on how its elements are stored; there it is bounded below.
    if matches!(device().kind(), device::DeviceKind::Cuda(_)) { Ok(()) } else { agrees_with_f32(&sums()) }
}

#[test]
fn sums_are_within_half_a_unit_of_f64_and_the_error_of_f32() -> Result<()> {
    for dtype in HALVES {
        let precision = if dtype == DType::BF16 { 2_f64.powi(-8) } else { 2_f64.powi(-11) };
        // F16's subnormal numbers are as far apart as its smallest normal ones.
        let least = if dtype == DType::BF16 { 0.0 } else { 2_f64.powi(-25) };
        for case in &sums() {
            for (at, (half, exact)) in both(case, 0, dtype, DType::F64)?.into_iter().enumerate() {
                let (half, exact) = (half.to_dtype(DType::F64)?, exact.to_dtype(DType::F64)?);
                let (half, exact) = (half.to_vec::<f64>()?, exact.to_vec::<f64>()?);
                let largest = exact.iter().filter(|x| x.is_finite()).fold(0.0_f64, |m, x| m.max(x.abs()));
                for (half, exact) in half.iter().zip(&exact) {
                    // Half a unit in the last place, and sums in F32 that are small beside their terms. A result that
                    // is made of another one that was rounded has that one's error, too.
                    let allowed = precision * exact.abs() + least + 1e-5 * largest;
                    let allowed =
                        if made_of_rounded(case.name, at) { 4.0 * precision * largest } else { allowed };
                    let near = half == exact || (half - exact).abs() <= allowed;
                    assert!(near, "{} {at} {dtype}: {half} for {exact}", case.name);
                }
            }
        }
    }
    Ok(())
}

/// Results whose op took a rounded result of the same case, or on CUDA the rounded weights of an attention.
fn made_of_rounded(case: &str, at: usize) -> bool {
    let weighted = matches!((case, at), ("attention" | "masked_attention", 0) | ("packed_attention", 1));
    let of_result = matches!(
        (case, at),
        ("attention", 2..) | ("packed_attention", 0) | ("cross_entropy", 0) | ("mean_pool", 0 | 1)
    );
    of_result || weighted && matches!(device().kind(), device::DeviceKind::Cuda(_))
}

#[test]
fn random_numbers_are_those_of_f32_rounded() -> Result<()> {
    let device = device();
    for dtype in HALVES {
        let rounded = |x: Tensor| to_bits(&x.to_dtype(dtype)?);
        let normal = |dtype| Tensor::normal(1.0, 3.0, &[70, 41], dtype, KEY, &device);
        assert_eq!(to_bits(&normal(dtype)?)?, rounded(normal(DType::F32)?)?);
        let whole = |dtype| Tensor::randint(-100, 100, &[300], dtype, KEY, &device);
        assert_eq!(to_bits(&whole(dtype)?)?, rounded(whole(DType::F32)?)?);
        for (low, high) in [(0.0, 1.0), (-1.0, 0.0), (-3.0, 5.3), (2.0, 2.0)] {
            let uniform = |dtype| Tensor::uniform(&[200, 300], low, high, dtype, KEY, &device);
            let (half, wide) = (uniform(dtype)?.to_dtype(DType::F64)?, uniform(DType::F32)?);
            let expected = wide.to_dtype(dtype)?.to_dtype(DType::F64)?.to_vec::<f64>()?;
            let half = half.to_vec::<f64>()?;
            let last = half.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            assert!(last < high || low == high, "{last} of {low}..{high}");
            // Only what would be rounded to the end of the range differs.
            assert!(half.iter().zip(&expected).all(|(half, expected)| *half == expected.min(last)));
            assert!(
                low == high || expected.iter().any(|x| *x > last) == (expected.iter().any(|x| *x >= high))
            );
        }
    }
    Ok(())
}

#[test]
fn mixed_types_promote_or_are_refused() -> Result<()> {
    let device = device();
    let of = |dtype| Tensor::full(&[2, 2], 1.0, dtype, &device);
    let (bf16, f16, f32) = (of(DType::BF16)?, of(DType::F16)?, of(DType::F32)?);
    // Not rounded to BF16 on the way.
    let sum = bf16.add(&f32.mul_scalar(2_f64.powi(-20))?)?;
    assert_eq!((sum.dtype(), sum.to_vec::<f32>()?[0]), (DType::F32, 1.0 + 2_f32.powi(-20)));
    assert_eq!(bf16.mul(&f16)?.dtype(), DType::F32);
    assert_eq!(of(DType::I64)?.sub(&f16)?.dtype(), DType::F16);
    assert_eq!(of(DType::Bool)?.maximum(&of(DType::U8)?)?.dtype(), DType::U8);
    let cond = bf16.eq(&of(DType::I64)?)?;
    assert_eq!((cond.dtype(), cond.to_vec::<bool>()?), (DType::Bool, vec![true; 4]));
    assert_eq!(Tensor::where_cond(&cond, &bf16, &f32)?.dtype(), DType::F32);
    let joined = Tensor::cat(&[&bf16, &f32, &f16], 0)?;
    assert_eq!((joined.dtype(), joined.to_vec::<f32>()?), (DType::F32, vec![1.0; 12]));
    assert_eq!(Tensor::stack(&[&bf16, &of(DType::I64)?], 0)?.dtype(), DType::BF16);
    let refused = |result: Result<Tensor>| {
        matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::DTypeMismatch { .. }))
    };
    assert!(refused(bf16.matmul(&f32)) && refused(bf16.linear(&f16, None)));
    let image = |x: &Tensor| x.reshape(&[1, 1, 2, 2]);
    let (half, single) = (image(&bf16)?, image(&f32)?);
    assert!(refused(half.conv2d(&single, None, &ConvOptions::default())));
    assert!(refused(half.conv_transpose2d(&single, None, [0, 0], &ConvOptions::default())));
    assert!(refused(bf16.layer_norm(&[2], Some(&of(DType::F64)?.select(0, 0)?), None, 1e-5)));
    for [q, k, v] in [[&half, &single, &half], [&half, &half, &single]] {
        assert!(refused(Attention::default().forward([q, k, v]).map(|attended| attended.out)));
    }
    assert!(matches!(bf16.add_(&f32).as_ref().map_err(Error::kind), Err(ErrorKind::DTypeMismatch { .. })));
    Ok(())
}
