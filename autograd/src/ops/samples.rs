//! Sample inputs: small, odd-sized, away from kinks, and the same numbers on every device.

use std::cell::Cell;

use tensor::{CompareOp, DType, Device, RandomKey, Result, Tensor};

use crate::Var;

/// The program of a sample, from its inputs to one output of any shape.
pub type Run = Box<dyn Fn(&[Var]) -> Result<Var> + Send + Sync>;

/// Inputs at which an op's gradient is checked.
pub struct Sample {
    /// What is special about it; unique for one op.
    pub name: &'static str,
    /// F64 tensors, drawn away from kinks.
    pub inputs: Vec<Tensor>,
    /// Applies the op.
    pub run: Run,
}

impl std::fmt::Debug for Sample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sample")
            .field("name", &self.name)
            .field("inputs", &self.inputs)
            .finish_non_exhaustive()
    }
}

pub(super) fn sample<const N: usize>(
    name: &'static str,
    inputs: [Tensor; N],
    run: impl Fn(&[Var]) -> Result<Var> + Send + Sync + 'static,
) -> Sample {
    Sample { name, inputs: inputs.into(), run: Box::new(run) }
}

/// Draws inputs; each draw gives new numbers.
pub(super) struct Draw {
    pub(super) device: Device,
    drawn: Cell<u64>,
}

const SEED: u64 = 0x5A17;

impl Draw {
    pub(super) fn new(device: &Device) -> Self {
        Draw { device: device.clone(), drawn: Cell::new(0) }
    }

    fn key(&self) -> RandomKey {
        self.drawn.set(self.drawn.get() + 1);
        RandomKey { seed: SEED, op: self.drawn.get() }
    }

    /// Numbers of the standard normal distribution.
    pub(super) fn normal(&self, shape: &[usize]) -> Result<Tensor> {
        Tensor::randn(shape, DType::F64, self.key(), &self.device)
    }

    /// Numbers between 0.5 and 2.
    pub(super) fn positive(&self, shape: &[usize]) -> Result<Tensor> {
        Tensor::uniform(shape, 0.5, 2.0, DType::F64, self.key(), &self.device)
    }

    /// Numbers of both signs, at least 0.2 away from 0.
    pub(super) fn nonzero(&self, shape: &[usize]) -> Result<Tensor> {
        let x = Tensor::uniform(shape, -1.5, 1.5, DType::F64, self.key(), &self.device)?;
        let sign =
            x.compare_scalar(CompareOp::Ge, 0.0)?.to_dtype(DType::F64)?.mul_scalar(0.4)?.add_scalar(-0.2)?;
        x.add(&sign)
    }

    /// Numbers of both signs, all at least 0.1 apart from each other.
    pub(super) fn distinct(&self, shape: &[usize]) -> Result<Tensor> {
        let n = shape.iter().product::<usize>();
        // A step that shares no factor with `n` visits every place once.
        let step = (n / 2 + 2..).find(|&s| gcd(s, n) == 1).unwrap_or(1);
        let centre = n as f64 / 2.0;
        let values: Vec<f64> = (0..n).map(|i| 0.1 * ((i * step % n) as f64 - centre + 0.3)).collect();
        Tensor::from_slice(&values, shape, &self.device)
    }

    /// Indices or labels.
    pub(super) fn indices(&self, values: &[i64], shape: &[usize]) -> Result<Tensor> {
        Tensor::from_slice(values, shape, &self.device)
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// How a shape's inputs are drawn.
pub(super) type Drawn = fn(&Draw, &[usize]) -> Result<Tensor>;

/// The samples of an elementwise op of one operand.
pub(super) fn unary(d: &Draw, draw: Drawn, f: fn(&Var) -> Result<Var>) -> Result<Vec<Sample>> {
    Ok(vec![
        sample("matrix", [draw(d, &[2, 3])?], move |v| f(&v[0])),
        sample("odd", [draw(d, &[17])?], move |v| f(&v[0])),
        sample("one", [draw(d, &[1, 1])?], move |v| f(&v[0])),
        sample("scalar", [draw(d, &[])?], move |v| f(&v[0])),
        sample("transposed", [draw(d, &[3, 2])?.transpose(0, 1)?], move |v| f(&v[0])),
        sample("narrowed_inside", [draw(d, &[3, 4])?], move |v| f(&v[0].narrow(1, 1, 2)?)),
        sample("expanded_inside", [draw(d, &[3, 1])?], move |v| f(&v[0].expand(&[3, 2])?)),
        sample("used_twice", [draw(d, &[5])?], move |v| f(&v[0])?.mul(&v[0])),
    ])
}

/// The samples of an elementwise op of two operands.
pub(super) fn binary(
    d: &Draw,
    lhs: Drawn,
    rhs: Drawn,
    f: fn(&Var, &Var) -> Result<Var>,
) -> Result<Vec<Sample>> {
    let pair = |name, l: &[usize], r: &[usize]| -> Result<Sample> {
        Ok(sample(name, [lhs(d, l)?, rhs(d, r)?], move |v| f(&v[0], &v[1])))
    };
    let (fixed_lhs, fixed_rhs) = (lhs(d, &[2, 3])?, rhs(d, &[2, 3])?);
    Ok(vec![
        pair("same_shape", &[2, 3], &[2, 3])?,
        pair("one", &[1], &[1])?,
        pair("scalars", &[], &[])?,
        pair("odd", &[17], &[17])?,
        pair("row_on_the_right", &[2, 3], &[3])?,
        pair("row_on_the_left", &[3], &[2, 3])?,
        pair("column_on_the_right", &[2, 3], &[2, 1])?,
        pair("column_on_the_left", &[2, 1], &[2, 3])?,
        pair("both_broadcast", &[2, 1, 3], &[4, 1])?,
        pair("scalar_on_the_right", &[2, 3], &[])?,
        pair("scalar_on_the_left", &[], &[2, 3])?,
        sample("transposed", [lhs(d, &[3, 2])?.transpose(0, 1)?, rhs(d, &[2, 3])?], move |v| f(&v[0], &v[1])),
        sample("transposed_inside", [lhs(d, &[2, 3])?, rhs(d, &[3, 2])?], move |v| {
            f(&v[0], &v[1].transpose(0, 1)?)
        }),
        sample("same_operand", [lhs(d, &[5])?], move |v| f(&v[0], &v[0])),
        sample("chained", [lhs(d, &[3])?, rhs(d, &[3])?], move |v| f(&v[0], &v[1])?.mul(&v[1])?.mul(&v[0])),
        sample("constant_on_the_right", [lhs(d, &[2, 3])?], move |v| {
            f(&v[0], &Var::constant(fixed_rhs.clone()))
        }),
        sample("constant_on_the_left", [rhs(d, &[2, 3])?], move |v| {
            f(&Var::constant(fixed_lhs.clone()), &v[0])
        }),
    ])
}
