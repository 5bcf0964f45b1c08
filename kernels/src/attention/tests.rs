use super::*;
use crate::random::philox_of;
use crate::testing::{Array, bits, cpu, values_f32};
use crate::{Dropout, RandomKey};

/// Leading axes, queries, keys, width, width of values.
const SHAPES: [(&[usize], usize, usize, usize, usize); 7] = [
    (&[], 1, 1, 1, 1),
    (&[2], 3, 5, 4, 2),
    (&[2, 3], 64, 64, 32, 32),
    (&[1], 33, 130, 8, 17),
    (&[2], 70, 300, 16, 5),
    (&[1], 300, 40, 5, 9),
    (&[1], 2, 3, 70, 65),
];

struct Results {
    out: Vec<f32>,
    grads: [Vec<f32>; 3],
}

/// How the operands of one run are stored and masked.
#[derive(Clone, Copy, Debug)]
struct Run {
    threads: usize,
    causal: bool,
    masked: bool,
    /// Whether the last two axes lie in memory the other way round.
    transposed: bool,
    dropout: Option<Dropout>,
}

fn array(stream: &Stream, run: Run, seed: u64, shape: &[usize]) -> Array<f32> {
    let elements = values_f32(seed, shape.iter().product());
    let mut order: Vec<usize> = (0..shape.len()).collect();
    if run.transposed {
        order.swap(shape.len() - 2, shape.len() - 1);
    }
    Array::stored_as(stream, &elements, shape, &order)
}

fn mask_values(len: usize) -> Vec<f32> {
    let hidden = |x: f32| if x > 0.6 { f32::NEG_INFINITY } else { x };
    values_f32(9, len).into_iter().map(hidden).collect()
}

fn run(run: Run, (leading, s, t, d, e): (&[usize], usize, usize, usize, usize)) -> Results {
    let device = cpu(run.threads);
    let stream = device.default_stream();
    let shape = |last: &[usize]| leading.iter().chain(last).copied().collect::<Vec<_>>();
    let of = |seed, last: &[usize]| array(&stream, run, seed, &shape(last));
    let (q, k, v, g) = (of(1, &[s, d]), of(2, &[t, d]), of(3, &[t, e]), of(4, &[s, e]));
    let mask =
        Array::new(&stream, &mask_values(s * t), &[s, t]).with(|mask| mask.expect_expanded(&shape(&[s, t])));
    let out = of(5, &[s, e]);
    let sums = |_| Array::full(&stream, 7_f32, &shape(&[s]));
    let [log_sums, products] = [0, 1].map(sums);
    let input =
        AttentionInput { q: q.view(), k: k.view(), v: v.view(), mask: run.masked.then(|| mask.view()) };
    let result = AttentionResult { out: out.view(), log_sums: log_sums.view() };
    let kind = AttentionKind { causal: run.causal, scale: 0.7, dropout: run.dropout };
    attention(&stream, kind, input, result).expect("a launch");
    let grads = [of(6, &[s, d]), of(7, &[t, d]), of(8, &[t, e])];
    let to = AttentionGrads { q: grads[0].view(), k: grads[1].view(), v: grads[2].view() };
    attention_grad(&stream, kind, input, result, (g.view(), products.view()), to).expect("a launch");
    Results { out: out.to_vec(), grads: grads.map(|grad| grad.to_vec()) }
}

trait Expanded {
    fn expect_expanded(&self, shape: &[usize]) -> crate::Layout;
}

impl Expanded for crate::Layout {
    fn expect_expanded(&self, shape: &[usize]) -> crate::Layout {
        self.expand("test", shape).expect("axes in front")
    }
}

/// The definition, in double precision.
fn expected(run: Run, (leading, s, t, d, e): (&[usize], usize, usize, usize, usize)) -> [Vec<f64>; 4] {
    let pairs: usize = leading.iter().product();
    let of =
        |seed, len: usize| values_f32(seed, pairs * len).iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let (q, k, v, g) = (of(1, s * d), of(2, t * d), of(3, t * e), of(4, s * e));
    let mask = mask_values(s * t);
    let mut results = [s * e, s * d, t * d, t * e].map(|len| vec![0.0; pairs * len]);
    let [out, dq, dk, dv] = &mut results;
    for pair in 0..pairs {
        let (q0, k0, v0, o0) = (pair * s * d, pair * t * d, pair * t * e, pair * s * e);
        for i in 0..s {
            let mut p: Vec<f64> = (0..t)
                .map(|j| {
                    let dot: f64 = (0..d).map(|x| q[q0 + i * d + x] * k[k0 + j * d + x]).sum();
                    let added = if run.masked { f64::from(mask[i * t + j]) } else { 0.0 };
                    if run.causal && j > i { 0.0 } else { (0.7 * dot + added).exp() }
                })
                .collect();
            let sum: f64 = p.iter().sum();
            p.iter_mut().for_each(|p| *p = if sum == 0.0 { 0.0 } else { *p / sum });
            let kept = |j: usize| run.dropout.map_or(1.0, |dropout| factor(dropout, (pair, s), (i, j)));
            let slope = |j: usize| (0..e).map(|x| g[o0 + i * e + x] * v[v0 + j * e + x]).sum::<f64>();
            let dp: Vec<f64> = (0..t).map(|j| kept(j) * slope(j)).collect();
            let mean: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
            for j in 0..t {
                for x in 0..e {
                    out[o0 + i * e + x] += kept(j) * p[j] * v[v0 + j * e + x];
                    dv[v0 + j * e + x] += kept(j) * p[j] * g[o0 + i * e + x];
                }
                let ds = 0.7 * p[j] * (dp[j] - mean);
                for x in 0..d {
                    dq[q0 + i * d + x] += ds * k[k0 + j * d + x];
                    dk[k0 + j * d + x] += ds * q[q0 + i * d + x];
                }
            }
        }
    }
    results
}

const PLAIN: Run = Run { threads: 1, causal: false, masked: false, transposed: false, dropout: None };
const DROPOUT: Dropout = Dropout { p: 0.25, key: RandomKey { seed: 3, op: 1 << 33 } };

const RUNS: [Run; 6] = [
    PLAIN,
    Run { causal: true, transposed: true, ..PLAIN },
    Run { masked: true, ..PLAIN },
    Run { causal: true, masked: true, ..PLAIN },
    Run { dropout: Some(DROPOUT), ..PLAIN },
    Run { causal: true, masked: true, dropout: Some(DROPOUT), ..PLAIN },
];

/// What a weight of a pair of matrices of `s` queries is multiplied with, as the docs define it.
fn factor(Dropout { p, key }: Dropout, (pair, s): (usize, usize), (q, k): (usize, usize)) -> f64 {
    let of_query = (pair * s.div_ceil(16) + q / 16) * 8 + q % 8;
    let counter = [(k / 16 * 4 + k % 8 / 2) as u32, of_query as u32, key.op as u32, (key.op >> 32) as u32];
    let words = philox_of::<7>(counter, [key.seed as u32, (key.seed >> 32) as u32]);
    let bits = words[k % 16 / 8 * 2 + q % 16 / 8] >> (16 * (k % 2)) & 0x7fff;
    let left_out = (32768.0 * p).round();
    if f64::from(bits) < left_out { 0.0 } else { 32768.0 / (32768.0 - left_out) }
}

#[test]
fn values_and_gradients_are_the_definition() {
    for (shape, how) in SHAPES.into_iter().flat_map(|shape| RUNS.map(|how| (shape, how))) {
        let Results { out, grads: [dq, dk, dv] } = run(how, shape);
        let want = expected(how, shape);
        for (what, (got, want)) in ["out", "dq", "dk", "dv"].iter().zip([out, dq, dk, dv].iter().zip(&want)) {
            for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
                let error = (f64::from(got) - want).abs();
                assert!(
                    error < 2e-5 * want.abs().max(1.0),
                    "{what} {i} of {shape:?}, {how:?}: {got} instead of {want}"
                );
            }
        }
    }
}

fn kept(p: f64, shape: &[usize]) -> Vec<f32> {
    let device = cpu(2);
    let stream = device.default_stream();
    let out = Array::full(&stream, 7_f32, shape);
    kept_weights(&stream, Dropout { p, ..DROPOUT }, out.view()).expect("a matrix");
    out.to_vec()
}

#[test]
fn kept_weights_are_the_definition() {
    let (pairs, s, t) = (3, 37, 150);
    let of = |i: usize| factor(DROPOUT, (i / t / s, s), (i / t % s, i % t)) as f32;
    assert_eq!(kept(DROPOUT.p, &[pairs, s, t]), (0..pairs * s * t).map(of).collect::<Vec<_>>());
}

/// The mean of what weights are multiplied with is 1, and neighbours know nothing of each other: not those that share a counter or a word
/// of it, nor those of other matrices, queries or keys.
#[test]
fn weights_are_left_out_alone() {
    let (s, t) = (256, 512);
    for p in [0.01, 0.1, 0.5, 0.97] {
        let all = kept(p, &[4, s, t]);
        let deviation = (p / (1.0 - p) / all.len() as f64).sqrt();
        let mean = |of: &mut dyn Iterator<Item = f32>| {
            let (sum, count) = of.fold((0.0, 0), |(sum, count), x| (sum + f64::from(x), count + 1));
            sum / f64::from(count)
        };
        let found = mean(&mut all.iter().copied());
        assert!((found - 1.0).abs() < 5.0 * deviation, "{p}: {found}");
        for step in [1, 2, 8, 16, t, 8 * t, 16 * t, s * t] {
            let both = mean(&mut all.iter().zip(&all[step..]).map(|(x, y)| (x - 1.0) * (y - 1.0)));
            let limit = 6.0 * p / (1.0 - p) / (all.len() as f64).sqrt();
            assert!(both.abs() < limit, "{p}, {step} further on: {both}, not below {limit}");
        }
    }
}

#[test]
fn probabilities_are_rounded() {
    let shape = [64, 1024];
    let step = 1.0 / 32768.0;
    for p in [0.0, 1e-9, 0.49 * step] {
        assert!(kept(p, &shape).iter().all(|&x| x == 1.0), "{p}");
    }
    for p in [1.0, 1.0 - 0.49 * step] {
        assert!(kept(p, &shape).iter().all(|&x| x == 0.0), "{p}");
    }
    assert_eq!(kept(0.3, &shape), kept(0.3 + 0.05 * step, &shape));
    let left_out = kept(step, &[1024, 1024]).iter().filter(|&&x| x == 0.0).count();
    assert!((8..64).contains(&left_out), "{left_out}");
    let device = cpu(1);
    let stream = device.default_stream();
    let (row, all) = (Array::full(&stream, 7_f32, &[4]), Array::full(&stream, 7_f32, &[4, 4]));
    assert!(kept_weights(&stream, DROPOUT, row.view()).is_err());
    assert!(kept_weights(&stream, Dropout { p: 1.5, ..DROPOUT }, all.view()).is_err());
}

#[test]
fn threads_change_no_bit() {
    for shape in SHAPES {
        for how in RUNS {
            let all = |threads| {
                let Results { out, grads } = run(Run { threads, ..how }, shape);
                (bits(&out), grads.map(|grad| bits(&grad)))
            };
            assert_eq!(all(1), all(3), "{shape:?}");
        }
    }
}

#[test]
fn a_query_that_sees_nothing_gives_zero() {
    let device = cpu(1);
    let stream = device.default_stream();
    let [q, k, v] = [1, 2, 3].map(|seed| Array::new(&stream, &values_f32(seed, 8), &[2, 4]));
    let hidden = [f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, 0.0];
    let mask = Array::new(&stream, &hidden, &[2, 2]);
    let out = Array::full(&stream, 7_f32, &[2, 4]);
    let log_sums = Array::full(&stream, 7_f32, &[2]);
    let input = AttentionInput { q: q.view(), k: k.view(), v: v.view(), mask: Some(mask.view()) };
    let result = AttentionResult { out: out.view(), log_sums: log_sums.view() };
    let kind = AttentionKind { causal: false, scale: 0.5, dropout: None };
    attention(&stream, kind, input, result).expect("a launch");
    assert_eq!(out.to_vec()[..4], [0.0; 4]);
    assert!(log_sums.to_vec()[0] == f32::INFINITY && log_sums.to_vec()[1].is_finite());
    let grads = [7.0_f32; 3].map(|fill| Array::full(&stream, fill, &[2, 4]));
    let to = AttentionGrads { q: grads[0].view(), k: grads[1].view(), v: grads[2].view() };
    let products = Array::full(&stream, 7_f32, &[2]);
    attention_grad(&stream, kind, input, result, (v.view(), products.view()), to).expect("a launch");
    assert_eq!(grads[0].to_vec()[..4], [0.0; 4]);
    assert!(grads.iter().all(|grad| grad.to_vec().iter().all(|x| x.is_finite())));
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let device = cpu(1);
    let stream = device.default_stream();
    let of = |shape: &[usize]| Array::full(&stream, 1_f32, shape);
    let (q, k, v, sums) = (of(&[2, 3, 4]), of(&[2, 5, 4]), of(&[2, 5, 6]), of(&[2, 3]));
    let (out, wrong) = (of(&[2, 3, 6]), of(&[2, 6, 4]));
    let kind = AttentionKind { causal: false, scale: 1.0, dropout: None };
    let launch = |k: &Array<f32>, v: &Array<f32>, out: &Array<f32>| {
        let input = AttentionInput { q: q.view(), k: k.view(), v: v.view(), mask: None };
        attention(&stream, kind, input, AttentionResult { out: out.view(), log_sums: sums.view() })
    };
    assert!(launch(&k, &v, &out).is_ok());
    assert!(launch(&wrong, &v, &out).is_err());
    assert!(launch(&k, &wrong, &out).is_err());
    assert!(launch(&k, &v, &k).is_err());
}
