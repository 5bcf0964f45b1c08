//! Elementwise functions, copies, conversions and choices.

use super::*;
use crate::{
    BinaryGradOp, BinaryOp, CompareOp, Scalar, UnaryOp, binary, binary_grad, compare, copy, fill,
    logical_not, unary, unary_grad, where_cond,
};

const F32: f64 = 1e-6;
const F64: f64 = 1e-14;

/// Powers that take a simpler function, or might.
const POWERS: [f64; 6] = [2.0, 3.0, 0.5, -0.5, -1.0, -2.0];

fn unary_of<T: Real>(tolerance: f64, special: &[T]) {
    let Some(both) = both() else { return };
    let ops = UnaryOp::ALL.iter().copied().chain(POWERS.map(UnaryOp::PowScalar));
    for op in ops.filter(|op| op.supports(T::DTYPE)) {
        let tolerance = if op.is_exact() { 0.0 } else { tolerance };
        both.close(tolerance, (op, "special"), |stream| {
            let x = Array::new(stream, special, &[special.len()]);
            let out = Array::full(stream, T::default(), &[special.len()]);
            unary(stream, op, x.view(), out.view()).map(|()| out)
        });
        let layouts = [(Stored::Dense, Stored::Dense), (Stored::Transposed, Stored::Dense)];
        let more = [(Stored::Column, Stored::Transposed), (Stored::Narrowed, Stored::Narrowed)];
        for (i, (x, out)) in layouts.into_iter().chain(more).enumerate() {
            for shape in SHAPES.into_iter().skip(i).step_by(3) {
                both.close(tolerance, (op, x, out, shape), |stream| {
                    let (x, out) = (stored::<T>(stream, 1, shape, x), stored::<T>(stream, 2, shape, out));
                    unary(stream, op, x.view(), out.view()).map(|()| out)
                });
            }
        }
    }
}

#[test]
fn unary_functions_of_f32() {
    let small = f32::MIN_POSITIVE / 8.0;
    let special =
        [0.0, -0.0, f32::NAN, f32::INFINITY, -f32::INFINITY, small, -small, 1e30, -1e30, 88.0, -100.0];
    unary_of(F32, &special);
}

#[test]
fn unary_functions_of_f64() {
    unary_of(F64, &[0.0, -0.0, f64::NAN, f64::INFINITY, -f64::INFINITY, 1e-310, 1e300, 700.0, -740.0]);
}

#[test]
fn a_bound_that_is_nan() {
    let Some(both) = both() else { return };
    for op in [UnaryOp::Clamp(f64::NAN, 1.0), UnaryOp::Clamp(0.0, f64::NAN)] {
        both.close(0.0, op, |stream| {
            let x = Array::new(stream, &[0.5_f32, f32::NAN, 3.0], &[3]);
            unary(stream, op, x.view(), x.view()).map(|()| x)
        });
    }
}

fn of<T: Real>(values: &[f64]) -> Vec<T> {
    values.iter().map(|&value| T::of(value)).collect()
}

#[test]
fn unary_functions_of_halves() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    // Subnormal in F16, and its largest number.
    let special = [0.0, -0.0, nan, inf, -inf, 1e-7, -3e-6, 65504.0, -65504.0, 11.0, -100.0];
    unary_of(F32, &of::<f16>(&special));
    unary_of(F32, &of::<bf16>(&special));
    unary_of(F32, &of::<bf16>(&[1e-39, -1e-40, 1e38, -1e38, 88.0]));
}

#[test]
fn unary_functions_of_integers() {
    unary_of(0.0, &[0, 1, -1, i64::MIN, i64::MAX, 1 << 40]);
    unary_of(0.0, &[0_u8, 1, 2, 128, 255]);
}

fn binary_of<T: Real>(tolerance: f64, special: &[T]) {
    let Some(both) = both() else { return };
    for op in BinaryOp::ALL.iter().copied().filter(|op| op.supports(T::DTYPE)) {
        both.close(tolerance, (op, "special"), |stream| {
            let n = special.len();
            let column = Array::new(stream, special, &[n, 1])
                .with(|layout| layout.expand("test", &[n, n]).expect("1"));
            let row = Array::new(stream, special, &[1, n])
                .with(|layout| layout.expand("test", &[n, n]).expect("1"));
            let out = Array::full(stream, T::default(), &[n, n]);
            binary(stream, op, column.view(), row.view(), out.view()).map(|()| out)
        });
        for (i, x) in STORED.into_iter().enumerate() {
            for (j, y) in STORED.into_iter().enumerate() {
                let shape = SHAPES[(3 * i + j) % SHAPES.len()];
                let out = WRITABLE[(i + j) % WRITABLE.len()];
                both.close(tolerance, (op, x, y, out, shape), |stream| {
                    let (x, y) = (stored::<T>(stream, 1, shape, x), stored::<T>(stream, 2, shape, y));
                    let out = stored::<T>(stream, 3, shape, out);
                    binary(stream, op, x.view(), y.view(), out.view()).map(|()| out)
                });
            }
        }
    }
}

fn gradients_of<T: Real>(tolerance: f64, special: &[T]) {
    let Some(both) = both() else { return };
    let known = UnaryOp::ALL.iter().filter(|op| op.saves().is_some());
    for (i, &op) in known.enumerate() {
        both.close(tolerance, (op, "gradient, special"), |stream| {
            let [saved, g] = [special, special].map(|x| Array::new(stream, x, &[x.len()]));
            let out = Array::full(stream, T::default(), &[special.len()]);
            unary_grad(stream, op, saved.view(), g.view(), out.view()).map(|()| out)
        });
        for (j, how) in STORED.into_iter().enumerate() {
            let (shape, to) = (SHAPES[(i + j) % SHAPES.len()], WRITABLE[j % WRITABLE.len()]);
            both.close(tolerance, (op, "gradient", how, to, shape), |stream| {
                let [saved, g] = [1, 2].map(|seed| stored::<T>(stream, seed, shape, how));
                let out = stored::<T>(stream, 3, shape, to);
                unary_grad(stream, op, saved.view(), g.view(), out.view()).map(|()| out)
            });
        }
    }
}

#[test]
fn gradients_of_unary_functions() {
    let special = [0.0, -0.0, f64::NAN, 1.0, -1.0, 2.5, -3.0, 3.0, 30.0, -30.0];
    gradients_of::<f32>(4.0 * F32, &of(&special));
    gradients_of::<f64>(4.0 * F64, &special);
    gradients_of::<bf16>(4.0 * F32, &of(&special));
    gradients_of::<f16>(4.0 * F32, &of(&special));
}

fn binary_gradients_of<T: Real>(tolerance: f64, special: &[T]) {
    let Some(both) = both() else { return };
    for (i, &op) in BinaryGradOp::ALL.iter().enumerate() {
        both.close(tolerance, (op, "special"), |stream| {
            let n = special.len();
            let operand = |shape: &[usize]| {
                let array = Array::new(stream, special, shape);
                array.with(|layout| layout.expand("test", &[n, n, n]).expect("1"))
            };
            let [x, y, g] = [operand(&[n, 1, 1]), operand(&[n, 1]), operand(&[n])];
            let out = Array::full(stream, T::default(), &[n, n, n]);
            binary_grad(stream, op, x.view(), y.view(), g.view(), out.view()).map(|()| out)
        });
        for (j, how) in STORED.into_iter().enumerate() {
            let (shape, to) = (SHAPES[(i + j) % SHAPES.len()], WRITABLE[j % WRITABLE.len()]);
            both.close(tolerance, (op, how, to, shape), |stream| {
                let [x, y, g] = [1, 2, 3].map(|seed| stored::<T>(stream, seed, shape, how));
                let out = stored::<T>(stream, 4, shape, to);
                binary_grad(stream, op, x.view(), y.view(), g.view(), out.view()).map(|()| out)
            });
        }
    }
}

#[test]
fn gradients_of_binary_functions() {
    let special = [0.0, -0.0, f64::NAN, 1.0, -1.0, 2.5, -3.0];
    binary_gradients_of::<f32>(8.0 * F32, &of(&special));
    binary_gradients_of::<f64>(8.0 * F64, &special);
    binary_gradients_of::<bf16>(8.0 * F32, &of(&special));
    binary_gradients_of::<f16>(8.0 * F32, &of(&special));
}

#[test]
fn binary_functions_of_f32() {
    binary_of(4.0 * F32, &[0.0, -0.0, f32::NAN, f32::INFINITY, -f32::INFINITY, 1.0, -1.0, 2.5, -3.0]);
}

#[test]
fn binary_functions_of_f64() {
    binary_of(4.0 * F64, &[0.0, -0.0, f64::NAN, f64::INFINITY, -f64::INFINITY, 1.0, -1.0, 2.5, -3.0]);
}

#[test]
fn binary_functions_of_halves() {
    let special = [0.0, -0.0, f64::NAN, f64::INFINITY, -f64::INFINITY, 1.0, -1.0, 2.5, -3.0, 1e-6, 65504.0];
    binary_of(4.0 * F32, &of::<bf16>(&special));
    binary_of(4.0 * F32, &of::<f16>(&special));
}

#[test]
fn binary_functions_of_integers() {
    binary_of(0.0, &[0, 1, -1, 2, -2, 3, 63, i64::MIN, i64::MAX]);
    binary_of(0.0, &[0_u8, 1, 2, 3, 127, 128, 255]);
}

#[test]
fn a_result_may_replace_an_input() {
    let Some(both) = both() else { return };
    both.same("in place", |stream| {
        let x = stored::<f32>(stream, 1, [33, 65], Stored::Transposed);
        let y = stored::<f32>(stream, 2, [33, 65], Stored::Row);
        binary(stream, BinaryOp::Add, x.view(), y.view(), x.view())?;
        unary(stream, UnaryOp::Neg, x.view(), x.view()).map(|()| x)
    });
}

#[test]
fn large_operands() {
    large_operands_of::<f32>();
    large_operands_of::<bf16>();
}

fn large_operands_of<T: Real>() {
    let Some(both) = both() else { return };
    for how in [Stored::Dense, Stored::Column, Stored::Transposed] {
        both.same(("large", T::DTYPE, how), |stream| {
            let shape = [3, 200_001];
            let (x, y) = (stored::<T>(stream, 1, shape, how), stored::<T>(stream, 2, shape, Stored::Row));
            let out = Array::full(stream, T::default(), &shape);
            binary(stream, BinaryOp::Add, x.view(), y.view(), out.view()).map(|()| out)
        });
    }
}

fn compare_of<T: Real>(special: &[T]) {
    let Some(both) = both() else { return };
    for &op in CompareOp::ALL {
        both.same((op, T::DTYPE, "special"), |stream| {
            let n = special.len();
            let column = Array::new(stream, special, &[n, 1])
                .with(|layout| layout.expand("test", &[n, n]).expect("1"));
            let row = Array::new(stream, special, &[1, n])
                .with(|layout| layout.expand("test", &[n, n]).expect("1"));
            let out = Array::full(stream, false, &[n, n]);
            compare(stream, op, column.view(), row.view(), out.view()).map(|()| out)
        });
        for (shape, y) in [([64, 128], Stored::Dense), ([33, 65], Stored::Row), ([5, 3], Stored::Transposed)]
        {
            both.same((op, T::DTYPE, shape), |stream| {
                let x = stored::<T>(stream, 1, shape, Stored::Dense);
                let y = stored::<T>(stream, 2, shape, y);
                let out = Array::full(stream, false, &shape);
                compare(stream, op, x.view(), y.view(), out.view()).map(|()| out)
            });
        }
    }
}

#[test]
fn comparisons() {
    compare_of(&[0.0, -0.0, f32::NAN, f32::INFINITY, 1.0, -1.0]);
    compare_of(&[0.0, -0.0, f64::NAN, f64::INFINITY, 1.0, -1.0]);
    compare_of(&of::<bf16>(&[0.0, -0.0, f64::NAN, f64::INFINITY, 1.0, -1.0, 1e-39]));
    compare_of(&of::<f16>(&[0.0, -0.0, f64::NAN, f64::INFINITY, 1.0, -1.0, 6e-8]));
    compare_of(&[0, 1, -1, i64::MIN, i64::MAX]);
    compare_of(&[0_u8, 1, 128, 255]);
    compare_of(&[false, true]);
}

fn choices_of<T: Real>() {
    let Some(both) = both() else { return };
    for shape in SHAPES {
        for (condition, x) in [(Stored::Dense, Stored::Dense), (Stored::Column, Stored::Row)] {
            both.same((T::DTYPE, shape, condition), |stream| {
                let condition = stored::<bool>(stream, 1, shape, condition);
                let (x, y) =
                    (stored::<T>(stream, 2, shape, x), stored::<T>(stream, 3, shape, Stored::Transposed));
                let out = stored::<T>(stream, 4, shape, Stored::Dense);
                where_cond(stream, condition.view(), x.view(), y.view(), out.view()).map(|()| out)
            });
        }
    }
}

#[test]
fn choices_and_negations() {
    choices_of::<f32>();
    choices_of::<f64>();
    choices_of::<bf16>();
    choices_of::<u8>();
    let Some(both) = both() else { return };
    for (x, shape) in STORED.into_iter().flat_map(|x| SHAPES.map(|shape| (x, shape))) {
        both.same(("logical_not", x, shape), |stream| {
            let (x, out) =
                (stored::<bool>(stream, 1, shape, x), stored::<bool>(stream, 2, shape, Stored::Dense));
            logical_not(stream, x.view(), out.view()).map(|()| out)
        });
    }
}

fn copies_of<A: Real, B: Real>(special: &[A]) {
    let Some(both) = both() else { return };
    let name = (A::DTYPE, B::DTYPE);
    both.same((name, "special"), |stream| {
        let x = Array::new(stream, special, &[special.len()]);
        let out = Array::full(stream, B::default(), &[special.len()]);
        copy(stream, x.view(), out.view()).map(|()| out)
    });
    let ways = STORED.into_iter().flat_map(|x| WRITABLE.map(|out| (x, out)));
    for ((x, out), shape) in ways.zip(SHAPES.into_iter().cycle()) {
        both.same((name, x, out, shape), |stream| {
            let (x, out) = (stored::<A>(stream, 1, shape, x), stored::<B>(stream, 2, shape, out));
            copy(stream, x.view(), out.view()).map(|()| out)
        });
    }
}

fn copies_from<A: Real>(special: &[A]) {
    copies_of::<A, f32>(special);
    copies_of::<A, f64>(special);
    copies_of::<A, i64>(special);
    copies_of::<A, u8>(special);
    copies_of::<A, bool>(special);
    copies_of::<A, bf16>(special);
    copies_of::<A, f16>(special);
}

#[test]
fn copies_and_conversions() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let wide =
        [0.0, -0.0, 0.5, -0.5, 1.9, -1.9, 255.5, 256.0, -3.0, 1e10, 1e19, -1e19, inf, -inf, nan, 1e-40];
    copies_from(&wide);
    copies_from(&wide.map(|x| x as f32));
    copies_from(&[0, 1, -1, 255, 256, 257, (1 << 53) + 1, (1 << 24) + 1, i64::MIN, i64::MAX]);
    copies_from(&[0_u8, 1, 128, 255]);
    copies_from(&[false, true]);
    // Between two halves, beside the middle in F64 only, and at the ends of the ranges.
    let middle = 1.0 + 1.0 / 256.0;
    let near =
        [middle, -middle, middle + 1e-12, middle - 1e-12, 1.0 + 1.0 / 2048.0 + 1e-12, 65519.9, 65520.0];
    let ends = [1e-8, 2.9e-8, 3.1e-8, 9e-41, 4e-41, 3.39e38, 3.4e38, 1e300, -1e300, 1e-300];
    for special in [&near[..], &ends, &wide] {
        copies_from(special);
        copies_from(&of::<f32>(special));
        copies_from(&of::<bf16>(special));
        copies_from(&of::<f16>(special));
    }
}

#[test]
fn copies_that_transpose_planes_of_more_axes() {
    let Some(both) = both() else { return };
    for order in [[0, 2, 1], [2, 0, 1], [2, 1, 0], [1, 0, 2]] {
        both.same(order, |stream| {
            let shape = [17, 40, 33];
            let x = Array::stored_as(stream, &numbers::<f32>(1, 17 * 40 * 33), &shape, &order);
            let out = Array::full(stream, 0.0, &shape);
            copy(stream, x.view(), out.view()).map(|()| out)
        });
    }
}

fn fills_of<T: Real>(value: Scalar) {
    let Some(both) = both() else { return };
    for (out, shape) in WRITABLE.into_iter().cycle().zip(SHAPES) {
        both.same((value, T::DTYPE, out, shape), |stream| {
            let out = stored::<T>(stream, 1, shape, out);
            fill(stream, value, out.view()).map(|()| out)
        });
    }
}

#[test]
fn fills() {
    for value in
        [Scalar::Float(-1.5), Scalar::Float(-0.0), Scalar::Int(0), Scalar::Int(7), Scalar::Bool(true)]
    {
        fills_of::<f32>(value);
        fills_of::<f64>(value);
        fills_of::<bf16>(value);
        fills_of::<f16>(value);
        fills_of::<i64>(value);
        fills_of::<u8>(value);
        fills_of::<bool>(value);
    }
}
