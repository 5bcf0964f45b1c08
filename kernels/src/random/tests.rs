use super::*;
use crate::layout::Layout;
use crate::testing::{Array, cpu};
use device::{Error, ErrorKind};

const KEY: RandomKey = RandomKey { seed: 0x1234_5678_9ABC_DEF0, op: 42 };

fn of(p: f64) -> Dropout {
    Dropout { p, key: KEY }
}

/// Known answers that the paper's authors published with their code.
#[test]
fn philox_gives_the_known_answers() {
    assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
    let expected = [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1];
    assert_eq!(philox(counter, [0xa409_3822, 0x299f_31d0]), expected);
    // Of seven rounds.
    assert_eq!(philox_of::<7>([0; 4], [0; 2]), [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]);
    let expected = [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662];
    assert_eq!(philox_of::<7>([u32::MAX; 4], [u32::MAX; 2]), expected);
    let expected = [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a];
    assert_eq!(philox_of::<7>(counter, [0xa409_3822, 0x299f_31d0]), expected);
}

/// The word of element `i` as the docs define it.
fn word(key: RandomKey, i: usize, low_half: bool) -> u32 {
    let block = i as u64 / 4;
    let high = (block >> 32) as u32 | u32::from(low_half) << 31;
    let counter = [block as u32, high, key.op as u32, (key.op >> 32) as u32];
    philox(counter, [key.seed as u32, (key.seed >> 32) as u32])[i % 4]
}

fn bits64(key: RandomKey, i: usize) -> u64 {
    u64::from(word(key, i, false)) << 32 | u64::from(word(key, i, true))
}

#[test]
fn elements_are_made_of_the_documented_words() {
    let device = cpu(1);
    let stream = device.default_stream();
    let n = 1000;
    let key = RandomKey { seed: u64::MAX - 5, op: (1 << 40) + 3 };
    let x = Array::full(&stream, 0.0_f32, &[n]);
    uniform(&stream, key, -1.0, 3.0, x.view()).expect("valid bounds");
    let expected: Vec<f32> =
        (0..n).map(|i| (word(key, i, false) >> 8) as f32 / 16_777_216.0 * 4.0 - 1.0).collect();
    assert_eq!(x.to_vec(), expected);
    let y = Array::full(&stream, 0.0_f64, &[n]);
    uniform(&stream, key, -1.0, 3.0, y.view()).expect("valid bounds");
    let expected: Vec<f64> =
        (0..n).map(|i| (bits64(key, i) >> 11) as f64 / (1_u64 << 53) as f64 * 4.0 - 1.0).collect();
    assert_eq!(y.to_vec(), expected);
    // The two agree as far as single precision goes.
    assert!(x.to_vec().iter().zip(y.to_vec()).all(|(&x, y)| (f64::from(x) - y).abs() < 1e-6));
    let k = Array::full(&stream, 0_i64, &[n]);
    randint(&stream, key, -3, 10, k.view()).expect("a valid range");
    let expected: Vec<i64> = (0..n).map(|i| ((u128::from(bits64(key, i)) * 13) >> 64) as i64 - 3).collect();
    assert_eq!(k.to_vec(), expected);
    let z = Array::full(&stream, 0.0_f32, &[n]);
    normal(&stream, key, 0.0, 1.0, z.view()).expect("valid parameters");
    for (i, z) in z.to_vec().into_iter().enumerate() {
        let pair = i / 2 * 2;
        let unit = (f64::from(word(key, pair, false) >> 1) + 0.5) / 2_147_483_648.0;
        let angle = f64::from(word(key, pair + 1, false)) * (std::f64::consts::TAU / 4_294_967_296.0);
        let radius = (-2.0 * unit.ln()).sqrt();
        let want = radius * if i % 2 == 0 { angle.cos() } else { angle.sin() };
        assert!((f64::from(z) - want).abs() < 1e-5, "element {i}: {z}, not {want}");
    }
}

/// Runs every random kernel on a shape, stored in the given order, and lists the results.
fn all(threads: usize, shape: &[usize], order: &[usize]) -> (Vec<u32>, Vec<u64>, Vec<i64>) {
    let device = cpu(threads);
    let stream = device.default_stream();
    let n = shape.iter().product();
    let x = || Array::stored_as(&stream, &vec![1.0_f32; n], shape, order);
    let y = || Array::stored_as(&stream, &vec![1.0_f64; n], shape, order);
    let k = Array::stored_as(&stream, &vec![1_i64; n], shape, order);
    let (mut narrow, mut wide) = (Vec::new(), Vec::new());
    let a = x();
    uniform(&stream, KEY, 0.0, 1.0, a.view()).expect("valid bounds");
    narrow.extend(a.to_vec());
    normal(&stream, KEY, 1.0, 2.0, a.view()).expect("valid parameters");
    narrow.extend(a.to_vec());
    let a = x();
    dropout(&stream, of(0.3), a.view(), a.view()).expect("a valid p");
    narrow.extend(a.to_vec());
    let b = y();
    uniform(&stream, KEY, 0.0, 1.0, b.view()).expect("valid bounds");
    wide.extend(b.to_vec());
    normal(&stream, KEY, 1.0, 2.0, b.view()).expect("valid parameters");
    wide.extend(b.to_vec());
    let b = y();
    dropout(&stream, of(0.3), b.view(), b.view()).expect("a valid p");
    wide.extend(b.to_vec());
    randint(&stream, KEY, -100, 1000, k.view()).expect("a valid range");
    (narrow.into_iter().map(f32::to_bits).collect(), wide.into_iter().map(f64::to_bits).collect(), k.to_vec())
}

#[test]
fn numbers_depend_on_the_index_alone() {
    let shape = [37, 3, 71];
    let expected = all(1, &shape, &[0, 1, 2]);
    assert_eq!(all(1, &shape, &[2, 1, 0]), expected);
    assert_eq!(all(1, &shape, &[1, 2, 0]), expected);
    let large = [1 << 17];
    assert_eq!(all(3, &large, &[0]), all(1, &large, &[0]));
    // A longer tensor begins like a shorter one.
    let (short, long) = (all(1, &[65], &[0]), all(1, &[1000], &[0]));
    assert_eq!(short.0[..65], long.0[..65]);
    assert_eq!(short.1[..65], long.1[..65]);
    assert_eq!(short.2[..65], long.2[..65]);
}

#[test]
fn keys_differ() {
    let device = cpu(1);
    let stream = device.default_stream();
    let draw = |key| {
        let x = Array::full(&stream, 0.0_f32, &[64]);
        uniform(&stream, key, 0.0, 1.0, x.view()).expect("valid bounds");
        x.to_vec()
    };
    let all = [KEY, RandomKey { op: 43, ..KEY }, RandomKey { seed: KEY.seed + 1, ..KEY }].map(draw);
    assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
    assert_eq!(draw(KEY), all[0]);
}

fn moments(x: &[f64]) -> [f64; 4] {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let central = |power: i32| x.iter().map(|x| (x - mean).powi(power)).sum::<f64>() / n;
    let var = central(2);
    [mean, var, central(3) / var.powf(1.5), central(4) / (var * var)]
}

#[test]
fn distributions_have_their_moments() {
    let device = cpu(1);
    let stream = device.default_stream();
    let n = 200_000;
    let (x, y) = (Array::full(&stream, 0.0_f32, &[n]), Array::full(&stream, 0.0_f64, &[n]));
    let near = |x: [f64; 4], want: [f64; 4], what: &str| {
        let close = x.iter().zip(want).all(|(x, want)| (x - want).abs() < 0.02 * want.abs().max(1.0));
        assert!(close, "{what}: {x:?}, not {want:?}");
    };
    let wide = || x.to_vec().into_iter().map(f64::from).collect::<Vec<_>>();
    normal(&stream, KEY, 1.0, 2.0, x.view()).expect("valid parameters");
    near(moments(&wide()), [1.0, 4.0, 0.0, 3.0], "normal f32");
    normal(&stream, KEY, 1.0, 2.0, y.view()).expect("valid parameters");
    near(moments(&y.to_vec()), [1.0, 4.0, 0.0, 3.0], "normal f64");
    uniform(&stream, KEY, -1.0, 1.0, x.view()).expect("valid bounds");
    near(moments(&wide()), [0.0, 1.0 / 3.0, 0.0, 1.8], "uniform f32");
    assert!(x.to_vec().iter().all(|x| (-1.0..1.0).contains(x)));
    let counts = Array::full(&stream, 0_u8, &[n]);
    randint(&stream, KEY, 0, 7, counts.view()).expect("a valid range");
    let mut histogram = [0; 7];
    counts.to_vec().into_iter().for_each(|k| histogram[usize::from(k)] += 1);
    assert!(
        histogram.iter().all(|&count| (count as f64 / (n as f64 / 7.0) - 1.0).abs() < 0.03),
        "{histogram:?}"
    );
}

#[test]
fn the_upper_bound_is_never_drawn() {
    let device = cpu(1);
    let stream = device.default_stream();
    // Half of the range's numbers would round up to it.
    let (low, high) = (16_777_216.0_f32, 16_777_218.0_f32);
    let x = Array::full(&stream, 0.0_f32, &[1000]);
    uniform(&stream, KEY, low.into(), high.into(), x.view()).expect("valid bounds");
    assert!(x.to_vec().iter().all(|&x| x == low));
    uniform(&stream, KEY, 3.0, 3.0, x.view()).expect("an empty range gives its bound");
    assert_eq!(x.to_vec(), [3.0; 1000]);
    normal(&stream, KEY, 3.0, 0.0, x.view()).expect("a deviation of 0 gives the mean");
    assert_eq!(x.to_vec(), [3.0; 1000]);
}

#[test]
fn dropout_scales_what_it_keeps_and_repeats_its_mask() {
    let device = cpu(1);
    let stream = device.default_stream();
    let n = 100_000;
    let x = Array::new(&stream, &(0..n).map(|i| 1.0 + i as f32).collect::<Vec<_>>(), &[n]);
    let (out, g) = (Array::full(&stream, 0.0_f32, &[n]), Array::full(&stream, 1.0_f32, &[n]));
    dropout(&stream, of(0.25), x.view(), out.view()).expect("a valid p");
    dropout(&stream, of(0.25), g.view(), g.view()).expect("a valid p");
    let scale = 1.0 / 0.75_f32;
    let kept = g.to_vec().iter().filter(|&&g| g != 0.0).count();
    assert!((kept as f64 / n as f64 - 0.75).abs() < 0.01, "{kept}");
    for (i, (y, g)) in out.to_vec().into_iter().zip(g.to_vec()).enumerate() {
        assert!(g == 0.0 || g == scale);
        assert_eq!(y, (1.0 + i as f32) * g);
    }
    // The mask is that of uniform numbers with the same key.
    let u = Array::full(&stream, 0.0_f32, &[n]);
    uniform(&stream, KEY, 0.0, 1.0, u.view()).expect("valid bounds");
    assert!(u.to_vec().iter().zip(g.to_vec()).all(|(&u, g)| (u >= 0.25) == (g != 0.0)));
    // What is dropped is not read.
    let infinite = Array::full(&stream, f32::INFINITY, &[x.to_vec().len()]);
    dropout(&stream, of(0.25), infinite.view(), infinite.view()).expect("a valid p");
    assert!(infinite.to_vec().iter().all(|x| *x == 0.0 || *x == f32::INFINITY));
    dropout(&stream, of(0.0), x.view(), out.view()).expect("a valid p");
    assert_eq!(out.to_vec(), x.to_vec());
    dropout(&stream, of(1.0), x.view(), out.view()).expect("a valid p");
    assert_eq!(out.to_vec(), vec![0.0; n]);
}

#[test]
fn arguments_are_checked() {
    let device = cpu(1);
    let stream = device.default_stream();
    let x = Array::full(&stream, 0.0_f32, &[4]);
    let k = Array::full(&stream, 0_i64, &[4]);
    let b = Array::full(&stream, 0_u8, &[4]);
    let t = Array::full(&stream, false, &[4]);
    let bad = |result: Result<()>| {
        assert!(
            matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::InvalidArgument { .. })),
            "{result:?}"
        )
    };
    let unsupported = |result: Result<()>| {
        assert!(
            matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::DTypeUnsupported { .. })),
            "{result:?}"
        )
    };
    bad(uniform(&stream, KEY, 1.0, 0.0, x.view()));
    bad(uniform(&stream, KEY, 0.0, f64::NAN, x.view()));
    bad(uniform(&stream, KEY, f64::MIN, f64::MAX, x.view()));
    bad(normal(&stream, KEY, 0.0, -1.0, x.view()));
    bad(normal(&stream, KEY, f64::INFINITY, 1.0, x.view()));
    bad(randint(&stream, KEY, 3, 3, k.view()));
    bad(randint(&stream, KEY, 0, 257, b.view()));
    bad(dropout(&stream, of(1.5), x.view(), x.view()));
    bad(dropout(&stream, of(f64::NAN), x.view(), x.view()));
    unsupported(uniform(&stream, KEY, 0.0, 1.0, k.view()));
    unsupported(randint(&stream, KEY, 0, 2, t.view()));
    unsupported(dropout(&stream, of(0.5), k.view(), k.view()));
    let row = Layout::contiguous(&[4]).expand("test", &[3, 4]).expect("fits");
    bad(uniform(&stream, KEY, 0.0, 1.0, View::new(x.view().buffer, DType::F32, &row)));
    randint(&stream, KEY, i64::MIN, i64::MAX, k.view()).expect("the widest range");
}
