//! Naive arrays, and the operands of random cases: the same elements as a list and in the engine, in some layout.

use std::fmt;

use streamgrad::prelude::*;
use streamgrad::{Element, Result, bf16, f16};

use super::num::{Num, Precision};

/// A generator of random numbers (SplitMix64): every seed, small ones too, gives a sequence of its own.
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// The numbers of one case.
    pub(crate) fn of(seed: u64, case: u64) -> Random {
        let mut random = Random(seed);
        let start = random.next().wrapping_add(case);
        Random(Random(start).next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, or 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn range(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A number between 0 and 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The axes in some order.
    pub(crate) fn order(&mut self, rank: usize) -> Vec<usize> {
        let mut axes: Vec<usize> = (0..rank).collect();
        (1..rank).for_each(|i| axes.swap(i, self.below(i + 1)));
        axes
    }

    /// The same axis, counted from the front or from the end.
    pub(crate) fn signed(&mut self, axis: usize, rank: usize) -> isize {
        if self.once_in(2) { axis as isize } else { axis as isize - rank as isize }
    }

    /// The size of an axis: mostly small, at times 0, 1, or beyond what a vector register holds.
    pub(crate) fn size(&mut self) -> usize {
        match self.below(40) {
            0 => 0,
            1..=7 => 1,
            8 => self.range(30, 70),
            _ => self.range(2, 7),
        }
    }

    /// A shape of `ranks` axes with at most about 2000 elements, or, at times, enough for several threads.
    pub(crate) fn shape(&mut self, ranks: std::ops::RangeInclusive<usize>) -> Vec<usize> {
        let rank = self.range(*ranks.start(), *ranks.end());
        let many = self.once_in(300);
        let mut left = if many { 60_000 } else { 2000 };
        let mut shape: Vec<usize> = (0..rank)
            .map(|_| {
                let size = if many { self.range(15, 70) } else { self.size() }.min(left);
                left /= size.max(1);
                size
            })
            .collect();
        // Long rows have code of their own.
        if let [last] = shape[..]
            && last > 0
            && self.once_in(6)
        {
            shape[0] = self.range(100, if many { 60_000 } else { 5000 });
        }
        shape
    }

    /// As [`Random::shape`], without empty axes.
    pub(crate) fn full_shape(&mut self, ranks: std::ops::RangeInclusive<usize>) -> Vec<usize> {
        let mut shape = self.shape(ranks);
        shape.iter_mut().for_each(|size| *size = (*size).max(1));
        shape
    }

    pub(crate) fn float(&mut self) -> DType {
        self.pick(&[DType::F32, DType::F32, DType::F64, DType::BF16, DType::F16])
    }

    pub(crate) fn number(&mut self) -> DType {
        match self.below(7) {
            0 => DType::I64,
            1 => DType::U8,
            _ => self.float(),
        }
    }

    pub(crate) fn any_dtype(&mut self) -> DType {
        if self.once_in(8) { DType::Bool } else { self.number() }
    }
}

/// How an engine rounds results of a type.
pub(crate) fn precision(dtype: DType) -> Precision {
    let (digits, tiny) = match dtype {
        DType::F32 => (24, 2_f64.powi(-150)),
        DType::BF16 => (8, 2_f64.powi(-134)),
        DType::F16 => (11, 2_f64.powi(-25)),
        // Half of it is no number.
        _ => (53, f64::from_bits(1)),
    };
    Precision { unit: 2_f64.powi(-digits), tiny }
}

/// The largest finite number of a type.
pub(crate) fn largest_of(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f64::from(f32::MAX),
        DType::BF16 => (2.0 - 2_f64.powi(-7)) * 2_f64.powi(127),
        DType::F16 => 65504.0,
        _ => f64::MAX,
    }
}

/// The element of `dtype` that is nearest to `x`, to even if there are two; integers wrap around.
pub(crate) fn round_to(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F64 => x,
        DType::I64 => x.trunc(),
        DType::U8 => x.trunc().rem_euclid(256.0),
        DType::Bool => f64::from(u8::from(x != 0.0)),
        _ if x == 0.0 || !x.is_finite() => x,
        _ => {
            let Precision { unit, tiny } = precision(dtype);
            let exponent = (x.abs().to_bits() >> 52) as i32 - 1023;
            let quantum = (2_f64.powi(exponent.max(-1022)) * unit * 2.0).max(2.0 * tiny);
            let rounded = (x / quantum).round_ties_even() * quantum;
            if rounded.abs() > largest_of(dtype) { f64::INFINITY.copysign(x) } else { rounded }
        }
    }
}

/// The kinds of elements that a case is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Between -4 and 4.
    Plain,
    /// Between 0.1 and 4.
    Positive,
    /// With NaN, infinities, zeros of both signs, subnormal and huge numbers among them.
    Special,
    /// Few different ones, so that many are equal.
    Equal,
}

fn value(random: &mut Random, values: Values, dtype: DType) -> f64 {
    let special = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.0,
        -0.0,
        1.0,
        -1.0,
        largest_of(dtype),
        -largest_of(dtype),
        2.0 * precision(dtype).tiny,
        1e-3,
    ];
    let x = match (dtype, values) {
        (DType::Bool, _) => random.below(2) as f64,
        (DType::U8, Values::Equal) => random.below(4) as f64,
        (DType::U8, _) => random.below(256) as f64,
        (DType::I64, Values::Special) => random.below(1 << 41) as f64 - (1_u64 << 40) as f64,
        (DType::I64, Values::Positive) => random.range(1, 9) as f64,
        (DType::I64, Values::Equal) => random.below(4) as f64 - 2.0,
        (DType::I64, Values::Plain) => random.below(41) as f64 - 20.0,
        (_, Values::Equal) => random.below(4) as f64 - 1.5,
        (_, Values::Positive) => 0.1 + 3.9 * random.unit(),
        (_, Values::Special) if random.once_in(4) => random.pick(&special),
        (_, Values::Special) if random.once_in(8) => {
            (random.unit() - 0.5) * 2_f64.powi(random.below(60) as i32 - 30)
        }
        _ => 8.0 * random.unit() - 4.0,
    };
    round_to(x, dtype)
}

/// A list of elements in row-major order.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f64>,
}

/// How many elements a shape has.
pub(crate) fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Every index of a shape, in row-major order.
pub(crate) fn indices(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<'_> {
    (0..count(shape)).map(move |mut flat| {
        let mut index = vec![0; shape.len()];
        for (place, &size) in index.iter_mut().zip(shape).rev() {
            (*place, flat) = (flat % size, flat / size);
        }
        index
    })
}

impl Array {
    pub(crate) fn random(random: &mut Random, shape: &[usize], dtype: DType, values: Values) -> Array {
        let elements = (0..count(shape)).map(|_| value(random, values, dtype)).collect();
        Array { dtype, shape: shape.to_vec(), values: elements }
    }

    pub(crate) fn make(dtype: DType, shape: &[usize], value: impl FnMut(Vec<usize>) -> f64) -> Array {
        Array { dtype, shape: shape.to_vec(), values: indices(shape).map(value).collect() }
    }

    pub(crate) fn rank(&self) -> usize {
        self.shape.len()
    }

    fn flat(&self, index: &[usize]) -> usize {
        index.iter().zip(&self.shape).fold(0, |flat, (&i, &size)| flat * size + i)
    }

    pub(crate) fn at(&self, index: &[usize]) -> f64 {
        self.values[self.flat(index)]
    }

    /// The element at an index of a shape that this one broadcasts to.
    pub(crate) fn broadcast_at(&self, index: &[usize]) -> f64 {
        let own = &index[index.len() - self.rank()..];
        let own = own.iter().zip(&self.shape).map(|(&i, &size)| if size == 1 { 0 } else { i });
        self.at(&own.collect::<Vec<_>>())
    }

    /// The type that an engine computes in, of halves F32.
    pub(crate) fn computed(&self) -> Precision {
        match self.dtype {
            DType::BF16 | DType::F16 => precision(DType::F32),
            dtype => precision(dtype),
        }
    }

    pub(crate) fn num(&self, index: &[usize]) -> Num {
        Num::exact(self.at(index), self.computed())
    }

    /// A number for computations with the elements.
    pub(crate) fn like(&self, value: f64) -> Num {
        Num::exact(value, self.computed())
    }

    /// The elements converted to another type, each rounded once.
    pub(crate) fn to(&self, dtype: DType) -> Array {
        let values = self.values.iter().map(|&x| round_to(x, dtype)).collect();
        Array { dtype, shape: self.shape.clone(), values }
    }
}

/// What a case is made of: the elements, and how the engine's tensor is put together from other memory.
#[derive(Clone)]
pub(crate) struct Operand {
    pub(crate) array: Array,
    storage: Array,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    Select(isize, usize),
    Narrow(isize, usize, usize),
    Permute(Vec<isize>),
    Expand(Vec<usize>),
}

impl Operand {
    /// In some layout: as it is, or a view of other memory, which is full of NaN elsewhere; axes may repeat one element.
    pub(crate) fn random(random: &mut Random, shape: &[usize], dtype: DType, values: Values) -> Operand {
        let mut array = Array::random(random, shape, dtype, values);
        if random.once_in(5) && !array.values.is_empty() {
            let once: Vec<bool> = shape.iter().map(|_| random.once_in(3)).collect();
            let first = array.clone();
            array = Array::make(dtype, shape, |index| {
                let kept = index.iter().zip(&once).map(|(&i, &once)| if once { 0 } else { i });
                first.at(&kept.collect::<Vec<_>>())
            });
            return Operand::laid_out(random, array, &once);
        }
        Operand::laid_out(random, array, &vec![false; shape.len()])
    }

    /// These elements, in some layout.
    pub(crate) fn of(random: &mut Random, array: Array) -> Operand {
        let never = vec![false; array.rank()];
        Operand::laid_out(random, array, &never)
    }

    /// `once` tells which axes may be expanded.
    fn laid_out(random: &mut Random, array: Array, once: &[bool]) -> Operand {
        let rank = array.rank();
        let mut steps = Vec::new();
        let mut shape = array.shape.clone();
        if once.contains(&true) {
            steps.push(Step::Expand(shape.clone()));
            shape.iter_mut().zip(once).filter(|(_, once)| **once).for_each(|(size, _)| *size = 1);
        }
        // Where the element at an index of `shape` is in the storage; the steps are taken from the last one back.
        let order = if random.once_in(2) { random.order(rank) } else { (0..rank).collect() };
        let mut stored: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
        if order.iter().enumerate().any(|(at, &axis)| at != axis) {
            let back = (0..rank).map(|axis| order.iter().position(|&of| of == axis).unwrap_or(0));
            steps.push(Step::Permute(back.map(|at| at as isize).collect()));
        }
        let mut starts = vec![0; rank];
        if random.once_in(3) {
            for axis in 0..rank {
                if random.once_in(2) {
                    let (before, behind) = (random.below(3), random.below(3));
                    steps.push(Step::Narrow(random.signed(axis, rank), before, stored[axis]));
                    starts[axis] = before;
                    stored[axis] += before + behind;
                }
            }
        }
        // Two or three elements for each, of which one counts: a stride along the last axis.
        let stride = if random.once_in(4) { random.range(2, 3) } else { 1 };
        let counts = random.below(stride);
        if stride > 1 {
            steps.push(Step::Select(-1, counts));
            stored.push(stride);
        }
        let garbage = if array.dtype.is_float() { f64::NAN } else { 1.0 };
        let mut storage =
            Array { dtype: array.dtype, shape: stored.clone(), values: vec![garbage; count(&stored)] };
        for index in indices(&shape) {
            let mut place: Vec<usize> =
                order.iter().zip(&starts).map(|(&axis, start)| index[axis] + start).collect();
            if stride > 1 {
                place.push(counts);
            }
            let to = storage.flat(&place);
            storage.values[to] = array.at(&index);
        }
        steps.reverse();
        Operand { array, storage, steps }
    }

    /// The engine's tensor.
    pub(crate) fn tensor(&self, device: &Device) -> Result<Tensor> {
        let mut tensor = upload(&self.storage, device)?;
        for step in &self.steps {
            tensor = match step {
                Step::Select(axis, index) => tensor.select(*axis, *index)?,
                Step::Narrow(axis, start, len) => tensor.narrow(*axis, *start, *len)?,
                Step::Permute(axes) => tensor.permute(axes)?,
                Step::Expand(shape) => tensor.expand(shape)?,
            };
        }
        Ok(tensor)
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.array.dtype, self.array.shape)?;
        if !self.steps.is_empty() {
            write!(f, " of {:?} by {:?}", self.storage.shape, self.steps)?;
        }
        Ok(())
    }
}

/// A contiguous tensor of the engine.
fn upload(array: &Array, device: &Device) -> Result<Tensor> {
    fn of<T: Element>(array: &Array, device: &Device, element: impl Fn(f64) -> T) -> Result<Tensor> {
        let values: Vec<T> = array.values.iter().map(|&x| element(x)).collect();
        Tensor::from_slice(&values, &array.shape, device)
    }
    match array.dtype {
        DType::F32 => of(array, device, |x| x as f32),
        DType::F64 => of(array, device, |x| x),
        DType::I64 => of(array, device, |x| x as i64),
        DType::U8 => of(array, device, |x| x as u8),
        DType::BF16 => of(array, device, bf16::from_f64),
        DType::F16 => of(array, device, f16::from_f64),
        _ => of(array, device, |x| x != 0.0),
    }
}

/// The elements of a tensor of the engine.
pub(crate) fn download(tensor: &Tensor) -> Result<Vec<f64>> {
    fn of<T: Element>(tensor: &Tensor, value: impl Fn(T) -> f64) -> Result<Vec<f64>> {
        Ok(tensor.to_vec::<T>()?.into_iter().map(value).collect())
    }
    match tensor.dtype() {
        DType::F32 => of(tensor, |x: f32| f64::from(x)),
        DType::F64 => of(tensor, |x: f64| x),
        DType::I64 => of(tensor, |x: i64| x as f64),
        DType::U8 => of(tensor, |x: u8| f64::from(x)),
        DType::BF16 => of(tensor, bf16::to_f64),
        DType::F16 => of(tensor, f16::to_f64),
        _ => of(tensor, |x: bool| f64::from(u8::from(x))),
    }
}
