//! Random numbers: those of the CPU.

use super::*;
use crate::{Dropout, RandomKey, dropout, normal, randint, uniform};

const KEYS: [RandomKey; 2] =
    [RandomKey { seed: 0, op: 0 }, RandomKey { seed: 0x1234_5678_9ABC_DEF0, op: 1 << 40 }];

fn floats_of<T: Real>(tolerance: f64) {
    let Some(both) = both() else { return };
    for (key, shape) in KEYS.into_iter().cycle().zip(SHAPES) {
        for how in WRITABLE {
            let what = (key, shape, how, T::DTYPE);
            for (low, high) in [(0.0, 1.0), (-3.5, 2.0), (5.0, 5.0), (1.0, 1.0 + 1e-7)] {
                both.same(("uniform", low, high, what), |stream| {
                    let out = stored::<T>(stream, 1, shape, how);
                    uniform(stream, key, low, high, out.view()).map(|()| out)
                });
            }
            both.close(tolerance, ("normal", what), |stream| {
                let out = stored::<T>(stream, 1, shape, how);
                normal(stream, key, 0.5, 2.0, out.view()).map(|()| out)
            });
            for p in [0.0, 0.1, 0.5, 1.0] {
                both.same(("dropout", p, what), |stream| {
                    let (x, out) =
                        (stored::<T>(stream, 1, shape, Stored::Column), stored::<T>(stream, 2, shape, how));
                    dropout(stream, Dropout { p, key }, x.view(), out.view()).map(|()| out)
                });
            }
            both.same(("dropout in place", what), |stream| {
                let x = stored::<T>(stream, 1, shape, how);
                dropout(stream, Dropout { p: 0.3, key }, x.view(), x.view()).map(|()| x)
            });
        }
    }
}

#[test]
fn random_floats() {
    floats_of::<f32>(4e-6);
    floats_of::<f64>(1e-14);
    floats_of::<bf16>(4e-6);
    floats_of::<f16>(4e-6);
}

fn integers_of<T: Real>(ranges: &[(i64, i64)]) {
    let Some(both) = both() else { return };
    for (key, shape) in KEYS.into_iter().flat_map(|key| SHAPES.map(|shape| (key, shape))) {
        for (&(low, high), how) in ranges.iter().zip(WRITABLE) {
            both.same((key, shape, how, T::DTYPE, low, high), |stream| {
                let out = stored::<T>(stream, 1, shape, how);
                randint(stream, key, low, high, out.view()).map(|()| out)
            });
        }
    }
}

#[test]
fn random_integers() {
    integers_of::<i64>(&[(0, 10), (i64::MIN, i64::MAX), (-5, 1 << 40)]);
    integers_of::<u8>(&[(0, 256), (3, 4), (0, 10)]);
    integers_of::<f32>(&[(0, 10), (i64::MIN, i64::MAX), (-5, 1 << 40)]);
    integers_of::<f64>(&[(0, 10), (i64::MIN, i64::MAX), (-5, 1 << 40)]);
    integers_of::<bf16>(&[(0, 10), (i64::MIN, i64::MAX), (-5, 1 << 40)]);
    integers_of::<f16>(&[(0, 10), (-3000, 3000), (-5, 1 << 40)]);
}

#[test]
fn what_is_dropped_is_zero_even_if_it_was_infinite() {
    let Some(both) = both() else { return };
    for shape in SHAPES {
        both.same(("dropout of infinities", shape), |stream| {
            let x = Array::full(stream, f32::INFINITY, &shape);
            dropout(stream, Dropout { p: 0.3, key: KEYS[1] }, x.view(), x.view()).map(|()| x)
        });
    }
}
