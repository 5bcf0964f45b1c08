//! Optimizer steps, in explicit vector code: loops over several outputs are more than the compiler vectorises.

use std::array::from_fn;
use std::marker::PhantomData;
use std::ops::{Add, Div, Mul, Sub};

use device::{DType, bf16, f16};
use pulp::{Arch, Scalar, Simd, WithSimd};

use super::inlined;
use super::lanes::Lanes;
use crate::half::Half;
use crate::layout::{Dst, Src};
use crate::loops::Loops;
use crate::par::{Workers, for_range};
use crate::rules::{OPERANDS, ROUNDED, Rule, RuleValue};

// Elements of a part when a step is split over threads.
const CHUNK: usize = 1 << 15;

/// Elements in a vector.
#[derive(Clone, Copy)]
struct Vector<T: Lanes, S: Simd> {
    simd: S,
    elements: T::Vector<S>,
}

impl<T: Lanes, S: Simd> Vector<T, S> {
    #[inline(always)]
    fn splat(simd: S, x: T) -> Self {
        Vector { simd, elements: T::splat(simd, x) }
    }

    #[inline(always)]
    fn splats<const N: usize>(simd: S, x: [T; N]) -> [Self; N] {
        x.map(inlined!(|x| Vector::splat(simd, x)))
    }

    /// # Safety
    /// All elements at `from` can be read.
    #[inline(always)]
    unsafe fn load(simd: S, from: *const T) -> Self {
        // SAFETY: the caller promises what `Lanes::load` asks for: a vector's elements that can be read at `from`.
        Vector { simd, elements: unsafe { T::load(simd, from) } }
    }
}

macro_rules! operator {
    ($Op:ident, $op:ident, $v_op:ident) => {
        impl<T: Lanes, S: Simd> $Op for Vector<T, S> {
            type Output = Self;

            #[inline(always)]
            fn $op(self, other: Self) -> Self {
                Vector { elements: T::$v_op(self.simd, self.elements, other.elements), ..self }
            }
        }
    };
}
operator!(Add, add, v_add);
operator!(Sub, sub, v_sub);
operator!(Mul, mul, v_mul);
operator!(Div, div, v_div);

impl<T: Lanes, S: Simd> RuleValue for Vector<T, S> {
    type Flag = bool;

    #[inline(always)]
    fn constant(self, value: f64) -> Self {
        Vector::splat(self.simd, T::from_f64(value))
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Vector { elements: T::v_sqrt(self.simd, self.elements), ..self }
    }

    #[inline(always)]
    fn select_less(self, other: Self, yes: Self, no: Self) -> Self {
        let elements =
            T::v_select_less(self.simd, [self.elements, other.elements], [yes.elements, no.elements]);
        Vector { elements, ..self }
    }

    #[inline(always)]
    fn choose(flag: bool, yes: Self, no: Self) -> Self {
        if flag { yes } else { no }
    }
}

/// Steps each element by a rule with its numbers and choices.
///
/// # Safety
/// `operands` are parameter, gradient and as many states as the rule has, and last what takes the new parameter, too, which
/// may be the first one again. Their elements that `loops` reaches can be read and,
/// but for the gradient's, written, and nobody else uses them meanwhile.
pub(crate) unsafe fn step<T, R, const STATES: usize, const NUMBERS: usize, const FLAGS: usize>(
    loops: &Loops<OPERANDS>,
    workers: &Workers,
    numbers: [T; NUMBERS],
    flags: [bool; FLAGS],
    operands: [Dst<T>; OPERANDS],
) where
    T: Lanes,
    R: Rule<STATES, NUMBERS, FLAGS>,
{
    let steps = loops.inner().strides;
    for_range(workers, loops.elements, CHUNK, &|range| {
        loops.for_runs(range, |offsets, len| {
            let at: [*mut T; OPERANDS] = from_fn(|k| operands[k].at(offsets[k]));
            let rule = PhantomData::<(R, [(); STATES])>;
            Arch::new().dispatch(Run { at, steps, len, numbers, flags, rule });
        });
    });
}

/// Takes elements of a parameter of type `half`, widened, where those of its master do not round to them.
///
/// # Safety
/// Elements that `loops` reaches in the first and the last operand can be read at `param`, and read and written at `master`, and
/// nobody else uses these meanwhile.
pub(crate) unsafe fn adopt(
    half: DType,
    loops: &Loops<OPERANDS>,
    workers: &Workers,
    master: Dst<f32>,
    param: Src<f32>,
) {
    let rounded = match half {
        DType::BF16 => |x: f32| bf16::round(x).widen(),
        _ => |x: f32| f16::round(x).widen(),
    };
    let steps = loops.inner().strides;
    for_range(workers, loops.elements, CHUNK, &|range| {
        loops.for_runs(range, |offsets, len| {
            for i in 0..len as isize {
                // SAFETY: `loops` reaches these elements, for which the caller vouches; parts have disjoint ranges.
                unsafe {
                    let master = master.at(offsets[0] + i * steps[0]);
                    let param = *param.at(offsets[ROUNDED] + i * steps[ROUNDED]);
                    if rounded(*master) != param {
                        master.write(param);
                    }
                }
            }
        });
    });
}

// Steps the elements of a vector, of which a scalar has one.
#[inline(always)]
unsafe fn step_vector<S, T, R, const STATES: usize, const NUMBERS: usize, const FLAGS: usize>(
    simd: S,
    numbers: [Vector<T, S>; NUMBERS],
    flags: [bool; FLAGS],
    at: [*mut T; OPERANDS],
) where
    S: Simd,
    T: Lanes,
    R: Rule<STATES, NUMBERS, FLAGS>,
{
    // SAFETY: callers pass addresses with a vector of elements each, of which those of parameter, states and rounded
    // copy can be written.
    unsafe {
        let (p, g) = (Vector::load(simd, at[0]), Vector::load(simd, at[1]));
        let states = from_fn(inlined!(|k| Vector::load(simd, at[k + 2])));
        let (p, states) = R::step(numbers, flags, p, g, states);
        T::store(simd, at[0], p.elements);
        if at[ROUNDED] != at[0] {
            T::store(simd, at[ROUNDED], p.elements);
        }
        for k in 0..STATES {
            T::store(simd, at[k + 2], states[k].elements);
        }
    }
}

// Elements that the caller of [`step`] vouches for, at the given steps.
struct Run<T, R, const STATES: usize, const NUMBERS: usize, const FLAGS: usize> {
    at: [*mut T; OPERANDS],
    steps: [isize; OPERANDS],
    len: usize,
    numbers: [T; NUMBERS],
    flags: [bool; FLAGS],
    rule: PhantomData<(R, [(); STATES])>,
}

impl<T, R, const STATES: usize, const NUMBERS: usize, const FLAGS: usize> WithSimd
    for Run<T, R, STATES, NUMBERS, FLAGS>
where
    T: Lanes,
    R: Rule<STATES, NUMBERS, FLAGS>,
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Run { at, steps, len, numbers, flags, .. } = self;
        let (vectors, scalars) = (Vector::splats(simd, numbers), Vector::splats(Scalar, numbers));
        let lanes = T::lanes::<S>();
        let mut i = 0;
        // SAFETY: `step` runs this on `len` elements at each address; vectors, of those that lie next to each other in all
        // operands, end at or before `len`, and a `Scalar` vector is one element.
        unsafe {
            while steps == [1; OPERANDS] && i + lanes <= len {
                let at = at.map(|at| at.add(i));
                step_vector::<_, _, R, STATES, NUMBERS, FLAGS>(simd, vectors, flags, at);
                i += lanes;
            }
            while i < len {
                let at = from_fn(|k| at[k].offset(i as isize * steps[k]));
                step_vector::<_, _, R, STATES, NUMBERS, FLAGS>(Scalar, scalars, flags, at);
                i += 1;
            }
        }
    }
}
