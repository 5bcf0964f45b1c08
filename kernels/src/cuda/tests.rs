//! Every kernel against its CPU counterpart, on the same inputs. Without a CUDA device the tests say so and pass.
#![allow(clippy::panic)]

mod attention;
mod clip;
mod elementwise;
mod embedding_bag;
mod image;
mod index;
#[cfg(feature = "cuda")]
mod libraries;
mod matmul;
mod normalize;
mod optim;
mod order;
mod random;
mod rows;
mod sequence;
mod spatial;

use std::fmt::Debug;

use device::{CudaConfig, Device, Element, Result, Stream, bf16, f16};

use crate::testing::{Array, cpu, values};

/// The same work on both devices.
#[derive(Clone)]
struct Both {
    cpu: Stream,
    cuda: Stream,
}

/// Both devices, if there is a CUDA device.
fn both() -> Option<Both> {
    both_with(CudaConfig::default())
}

fn both_with(config: CudaConfig) -> Option<Both> {
    match Device::cuda_with(0, config) {
        Ok(device) => Some(Both { cpu: cpu(1).default_stream(), cuda: device.default_stream() }),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

impl Both {
    /// Checks that both devices give the same elements, bit for bit but for the bits of NaN.
    fn same<T: Real>(&self, what: impl Debug, run: impl Fn(&Stream) -> Result<Array<T>>) {
        self.close(0.0, what, run);
    }

    /// Checks that both devices give the same elements, up to a share of their size or of 1.
    fn close<T: Real>(&self, tolerance: f64, what: impl Debug, run: impl Fn(&Stream) -> Result<Array<T>>) {
        self.all_close(tolerance, [what], |stream| Ok([run(stream)?]));
    }

    /// The same of several arrays that one run gives, each with its name.
    fn all_close<T: Real, const N: usize>(
        &self,
        tolerance: f64,
        names: [impl Debug; N],
        run: impl Fn(&Stream) -> Result<[Array<T>; N]>,
    ) {
        let on = |stream: &Stream| {
            let arrays = run(stream).unwrap_or_else(|error| panic!("{names:?}: {error}"));
            arrays.map(|array| array.try_vec().unwrap_or_else(|error| panic!("{names:?}: {error}")))
        };
        for ((want, got), what) in on(&self.cpu).iter().zip(&on(&self.cuda)).zip(&names) {
            assert_eq!(want.len(), got.len(), "{what:?}");
            for (i, (want, got)) in want.iter().zip(got).enumerate() {
                assert!(got.agrees(*want, tolerance), "{what:?}, element {i}: {got:?} instead of {want:?}");
            }
        }
    }
}

/// Memory for a command to work in, of which nothing is known; none for 0 bytes, since freeing it synchronizes.
fn workspace(stream: &Stream, bytes: usize) -> Option<Array<u8>> {
    (bytes > 0).then(|| Array::full(stream, 0xff_u8, &[bytes]))
}

/// An element that can be compared.
trait Real: Element {
    /// What ops on such elements compute in, and keep beside their results.
    type Computed: Real;
    /// What the few rounding errors of one function come to there.
    const UNIT: f64;

    fn agrees(self, want: Self, tolerance: f64) -> bool;
    fn of(value: f64) -> Self;
}

macro_rules! float {
    ($float:ty, $unit:literal) => {
        impl Real for $float {
            type Computed = $float;
            const UNIT: f64 = $unit;

            fn agrees(self, want: Self, tolerance: f64) -> bool {
                let error = (f64::from(self) - f64::from(want)).abs();
                self.to_bits() == want.to_bits()
                    || (self.is_nan() && want.is_nan())
                    || (tolerance > 0.0 && error <= tolerance * f64::from(want).abs().max(1.0))
            }
            fn of(value: f64) -> Self {
                value as Self
            }
        }
    };
}
float!(f32, 1e-6);
float!(f64, 1e-14);

/// Results that agree before they are rounded may be rounded to neighbours.
macro_rules! half {
    ($half:ty) => {
        impl Real for $half {
            type Computed = f32;
            const UNIT: f64 = f32::UNIT;

            fn agrees(self, want: Self, tolerance: f64) -> bool {
                let (got, want) = (self.to_f64(), want.to_f64());
                let next = f64::from(<$half>::EPSILON) * want.abs();
                got.to_bits() == want.to_bits()
                    || (got.is_nan() && want.is_nan())
                    || (tolerance > 0.0 && (got - want).abs() <= tolerance * want.abs().max(1.0) + next)
            }
            fn of(value: f64) -> Self {
                <$half>::from_f64(value)
            }
        }
    };
}
half!(bf16);
half!(f16);

macro_rules! whole {
    ($whole:ty, $of:expr) => {
        impl Real for $whole {
            type Computed = $whole;
            const UNIT: f64 = 0.0;

            fn agrees(self, want: Self, _: f64) -> bool {
                self == want
            }
            fn of(value: f64) -> Self {
                $of(value)
            }
        }
    };
}
whole!(i64, |value: f64| (value * 100.0) as i64);
whole!(u8, |value: f64| (value * 100.0) as i64 as u8);
whole!(bool, |value: f64| value > 0.0);

/// Reproducible values, of both signs and a few units large; integers go to hundreds.
fn numbers<T: Real>(seed: u64, len: usize) -> Vec<T> {
    values(seed, len).into_iter().map(|value| T::of(value * 4.0)).collect()
}

/// How an array of two axes lies in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stored {
    Dense,
    Transposed,
    /// Every row begins a few elements after the end of the one before, the first one not at the buffer's begin.
    Narrowed,
    /// One row, repeated.
    Row,
    /// One column, repeated.
    Column,
}

const STORED: [Stored; 5] =
    [Stored::Dense, Stored::Transposed, Stored::Narrowed, Stored::Row, Stored::Column];
/// Those that may be written to.
const WRITABLE: [Stored; 3] = [Stored::Dense, Stored::Transposed, Stored::Narrowed];

/// Shapes that end before, at and behind vectors, warps and blocks, or have no elements at all.
const SHAPES: [[usize; 2]; 8] = [[0, 5], [1, 1], [1, 7], [5, 3], [33, 65], [64, 128], [3, 1024], [130, 40]];

/// Random numbers, stored in such a way.
fn stored<T: Real>(stream: &Stream, seed: u64, [rows, columns]: [usize; 2], how: Stored) -> Array<T> {
    let shape = [rows, columns];
    let expanded = |from: &[usize]| {
        Array::new(stream, &numbers::<T>(seed, from.iter().product()), from)
            .with(|layout| layout.expand("test", &shape).expect("axes of size 1"))
    };
    match how {
        Stored::Dense => Array::new(stream, &numbers::<T>(seed, rows * columns), &shape),
        Stored::Transposed => Array::stored_as(stream, &numbers::<T>(seed, rows * columns), &shape, &[1, 0]),
        Stored::Narrowed => {
            Array::new(stream, &numbers::<T>(seed, rows * (columns + 5)), &[rows, columns + 5])
                .with(|layout| layout.narrow("test", 1, 1, columns).expect("within the axis"))
        }
        Stored::Row => expanded(&[1, columns]),
        Stored::Column => expanded(&[rows, 1]),
    }
}
