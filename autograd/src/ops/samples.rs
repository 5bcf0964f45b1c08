//! Sample inputs: small, odd-sized, away from kinks, and the same numbers on every device.

use std::cell::Cell;

use tensor::{DType, Device, RandomKey, Result, Tensor};

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
        let sign = x.ge(0.0)?.to_dtype(DType::F64)?.mul_scalar(0.4)?.add_scalar(-0.2)?;
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

    /// A sample on numbers that `draw` draws in these shapes.
    pub(super) fn sample_of(
        &self,
        draw: Drawn,
        name: &'static str,
        shapes: &[&[usize]],
        run: impl Fn(&[Var]) -> Result<Var> + Send + Sync + 'static,
    ) -> Result<Sample> {
        let inputs = shapes.iter().map(|shape| draw(self, shape)).collect::<Result<_>>()?;
        Ok(Sample { name, inputs, run: Box::new(run) })
    }

    /// A sample on normal numbers.
    pub(super) fn sample(
        &self,
        name: &'static str,
        shapes: &[&[usize]],
        run: impl Fn(&[Var]) -> Result<Var> + Send + Sync + 'static,
    ) -> Result<Sample> {
        self.sample_of(Draw::normal, name, shapes, run)
    }

    /// Samples on normal numbers: the shapes of the inputs, and the program.
    pub(super) fn samples(&self, list: &[(&'static str, &[&[usize]], Program)]) -> Result<Vec<Sample>> {
        list.iter().map(|&(name, shapes, run)| self.sample(name, shapes, run)).collect()
    }

    /// Indices or labels.
    pub(super) fn indices(&self, values: &[i64], shape: &[usize]) -> Result<Tensor> {
        Tensor::from_slice(values, shape, &self.device)
    }
}

/// Indices or labels within a program, on the device of its inputs.
pub(super) fn indices(inputs: &[Var], values: &[i64], shape: &[usize]) -> Result<Tensor> {
    Tensor::from_slice(values, shape, inputs[0].device())
}

impl Sample {
    /// The same inputs in column-major order in memory.
    pub(super) fn column_major(self) -> Result<Sample> {
        let reordered = |x: &Tensor| -> Result<Tensor> {
            let axes: Vec<isize> = (0..x.rank().cast_signed()).rev().collect();
            x.permute(&axes)?.copy()?.permute(&axes)
        };
        let inputs = self.inputs.iter().map(reordered).collect::<Result<_>>()?;
        Ok(Sample { name: "column_major", inputs, ..self })
    }

    /// The same with input `at` as a constant, in the type of the others.
    pub(super) fn with_constant(mut self, at: usize) -> Sample {
        let constant = Var::constant(self.inputs.remove(at));
        let run = self.run;
        let with_constant = move |others: &[Var]| {
            let mut inputs = others.to_vec();
            inputs.insert(at, constant.to_dtype(others[0].dtype())?);
            run(&inputs)
        };
        Sample { name: CONSTANT[at], inputs: self.inputs, run: Box::new(with_constant) }
    }
}

/// Names of samples with a constant.
const CONSTANT: [&str; 7] =
    ["constant_0", "constant_1", "constant_2", "constant_3", "constant_4", "constant_5", "constant_6"];

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The program of a sample that holds nothing.
pub(super) type Program = fn(&[Var]) -> Result<Var>;

/// How a shape's inputs are drawn.
pub(super) type Drawn = fn(&Draw, &[usize]) -> Result<Tensor>;

/// The samples of an elementwise op of one operand.
pub(super) fn unary(d: &Draw, draw: Drawn, f: fn(&Var) -> Result<Var>) -> Result<Vec<Sample>> {
    Ok(vec![
        d.sample_of(draw, "matrix", &[&[2, 3]], move |v| f(&v[0]))?,
        d.sample_of(draw, "odd", &[&[17]], move |v| f(&v[0]))?,
        d.sample_of(draw, "one", &[&[1, 1]], move |v| f(&v[0]))?,
        d.sample_of(draw, "scalar", &[&[]], move |v| f(&v[0]))?,
        d.sample_of(draw, "narrowed_inside", &[&[3, 4]], move |v| f(&v[0].narrow(1, 1, 2)?))?,
        d.sample_of(draw, "expanded_inside", &[&[3, 1]], move |v| f(&v[0].expand(&[3, 2])?))?,
        d.sample_of(draw, "used_twice", &[&[5]], move |v| f(&v[0])?.mul(&v[0]))?,
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
        sample("transposed_inside", [lhs(d, &[2, 3])?, rhs(d, &[3, 2])?], move |v| {
            f(&v[0], &v[1].transpose(0, 1)?)
        }),
        d.sample_of(lhs, "same_operand", &[&[5]], move |v| f(&v[0], &v[0]))?,
        sample("chained", [lhs(d, &[3])?, rhs(d, &[3])?], move |v| f(&v[0], &v[1])?.mul(&v[1])?.mul(&v[0])),
    ])
}
