//! Warps and blurs: those of the CPU, bit for bit.

use super::*;

use crate::{Sampling, blur, warp};

fn images(stream: &Stream, shape: [usize; 4]) -> Array<f32> {
    Array::new(stream, &numbers::<f32>(1, shape.iter().product()), &shape)
}

#[test]
fn warps() {
    let Some(both) = both() else { return };
    for sampling in [Sampling::Nearest, Sampling::Bilinear] {
        for (from, to) in [([1, 1, 1, 1], [3, 5]), ([2, 3, 17, 31], [17, 31]), ([3, 1, 40, 9], [64, 70])] {
            for scale in [0.25, 1.0, 3.0] {
                both.same((sampling, from, to, scale), |stream| {
                    let x = images(stream, from);
                    let map = |sample: usize| {
                        let turn = 0.7 * sample as f32;
                        let (sin, cos) = (turn.sin() * scale, turn.cos() * scale);
                        [cos, sin, -1.5, -sin, cos, 0.5 * scale - 0.5]
                    };
                    let maps: Vec<f32> = (0..from[0]).flat_map(map).collect();
                    let maps = Array::new(stream, &maps, &[from[0], 2, 3]);
                    let out = Array::full(stream, -9.0_f32, &[from[0], from[1], to[0], to[1]]);
                    warp(stream, x.view(), maps.view(), sampling, out.view())?;
                    Ok(out)
                });
            }
        }
    }
}

/// Mean and deviation that leave pixels as they are.
const PLAIN: (f32, f32) = (0.0, 1.0);

#[test]
fn blurs() {
    let Some(both) = both() else { return };
    for shape in [[1, 1, 1, 1], [2, 3, 4, 5], [3, 2, 33, 65]] {
        for taps in [1, 3, 7] {
            if taps / 2 < shape[2] {
                for normal in [PLAIN, (0.3, 0.7)] {
                    both.same((shape, taps, normal), |stream| {
                        let (x, out) = (images(stream, shape), Array::full(stream, -9.0_f32, &shape));
                        let weights =
                            Array::new(stream, &numbers::<f32>(2, shape[0] * taps), &[shape[0], taps]);
                        blur(stream, x.view(), weights.view(), normal, out.view())?;
                        Ok(out)
                    });
                }
            }
        }
    }
}
