//! `Y = X Wᵀ + b`; `X' = G W`, `W' = Gᵀ X`, `b' = Σ G` over the rows. With a ReLU, `G` counts where the result is positive.

use tensor::Result;
use tensor::fused::{self, Activation};

use super::crossed::{Product, record_crossed};
use super::{Dims, Draw, Sample, if_needed, last_two, sample};
use crate::Var;

#[derive::located]
impl Var {
    /// The affine map `x @ weight^T + bias` of each row. See [`Tensor::linear`](tensor::Tensor::linear).
    ///
    /// # Errors
    /// As for [`Tensor::linear`](tensor::Tensor::linear).
    pub fn linear(&self, weight: &Var, bias: Option<&Var>) -> Result<Var> {
        linear(self, weight, bias, Activation::None)
    }
}

/// [`Var::linear`] and an activation in the same command. On the CPU it has the bits of separate ops; on CUDA the library may add up in
/// another order.
///
/// # Errors
/// As for [`Var::linear`].
pub fn linear(x: &Var, weight: &Var, bias: Option<&Var>, activation: Activation) -> Result<Var> {
    let op = activation.op("linear", "linear_relu");
    autocast!("linear", [x, weight, bias], |x, weight, bias| linear(&x, &weight, bias.as_ref(), activation));
    let value = fused::linear(x.value(), weight.value(), bias.map(Var::value), activation)?;
    let shape = Dims::from_slice(x.shape());
    // The gradient of a weight that is stored transposed is made in the same order, so that an update walks
    // both straight through.
    let transposed = matches!(weight.value().strides(), [rows, columns] if rows < columns);
    let ([outputs, inputs], rows) = (last_two(weight), shape.iter().rev().skip(1).product());
    Ok(record_crossed(Product { op, value, activation }, [x, weight], bias, move |ctx, crossed, g| {
        let g = g.reshape(&[rows, outputs])?;
        Ok([
            if_needed(ctx, 0, || g.matmul(&crossed.rhs(ctx))?.reshape(&shape))?,
            if_needed(ctx, 1, || {
                let x = crossed.lhs(ctx).reshape(&[rows, inputs])?;
                if transposed { x.t()?.matmul(&g)?.t() } else { g.t()?.matmul(&x) }
            })?,
            if_needed(ctx, 2, || g.sum(&[0], false))?,
        ])
    }))
}

pub(super) fn samples(d: &Draw, activation: Activation) -> Result<Vec<Sample>> {
    let of = |name, x: &[usize], out: usize| {
        let shapes: [&[usize]; 3] = [x, &[out, x[x.len() - 1]], &[out]];
        d.sample(name, &shapes, move |v| linear(&v[0], &v[1], Some(&v[2]), activation))
    };
    let (x, weight) = (Var::constant(d.normal(&[2, 3])?), Var::constant(d.normal(&[4, 3])?));
    Ok(vec![
        of("rows", &[2, 3], 4)?,
        of("one", &[1, 1], 1)?,
        of("vector", &[3], 2)?,
        of("stack", &[2, 2, 3], 2)?,
        of("odd", &[3, 17], 3)?,
        d.sample("without_bias", &[&[2, 3], &[4, 3]], move |v| linear(&v[0], &v[1], None, activation))?,
        sample("weight_stored_transposed", [d.normal(&[2, 3])?, d.normal(&[3, 4])?.t()?], move |v| {
            linear(&v[0], &v[1], None, activation)?.square()
        }),
        d.sample("only_the_bias", &[&[4]], move |v| linear(&x, &weight, Some(&v[0]), activation)?.square())?,
        d.sample("one_value_for_all", &[&[2, 2]], move |v| {
            linear(&v[0], &v[0], Some(&v[0].select(0, 0)?), activation)
        })?,
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf, vector};
    use super::*;

    #[test]
    fn affine() -> Result<()> {
        let x = leaf(&[1.0, 2.0, 3.0, 4.0], &[2, 2])?;
        let w = leaf(&[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], &[3, 2])?;
        let b = vector(&[10.0, 20.0, 30.0])?;
        let map = || x.linear(&w, Some(&b));
        close(&map()?, &[11.0, 22.0, 33.0, 13.0, 24.0, 37.0])?;
        close_values(&gradient(&map()?, &x)?, &[2.0, 2.0, 2.0, 2.0]);
        close_values(&gradient(&map()?, &w)?, &[4.0, 6.0, 4.0, 6.0, 4.0, 6.0]);
        close_values(&gradient(&map()?, &b)?, &[2.0, 2.0, 2.0]);
        assert!(x.linear(&b, None).is_err());
        Ok(())
    }

    #[test]
    fn the_positive_part_is_that_of_relu() -> Result<()> {
        let of = |relu: bool| -> Result<Vec<u64>> {
            let x = leaf(&[1.0, -2.0, f64::NAN, 4.0, 0.0, 0.5], &[3, 2])?;
            let (w, b) = (leaf(&[1.0, 0.5, -1.0, 1.0], &[2, 2])?, vector(&[0.0, -1.0])?);
            let y = if relu {
                linear(&x, &w, Some(&b), Activation::Relu)?
            } else {
                x.linear(&w, Some(&b))?.relu()?
            };
            let gradients = y.mul_scalar(3.0)?.sum_all()?.backward()?;
            let mut found = y.value().to_vec::<f64>()?;
            for leaf in [&x, &w, &b] {
                found.extend(gradients.get(leaf).expect("a gradient").to_vec::<f64>()?);
            }
            Ok(found.into_iter().map(f64::to_bits).collect())
        };
        assert_eq!(of(true)?, of(false)?);
        Ok(())
    }

    #[test]
    fn weight_gradient_lies_as_the_weight_does() -> Result<()> {
        let x = leaf(&[1.0, 2.0], &[1, 2])?;
        let w = Var::leaf(leaf(&[0.0; 6], &[2, 3])?.value().transpose(0, 1)?);
        let gradients = x.linear(&w, None)?.sum_all()?.backward()?;
        assert_eq!(gradients.get(&w).map(|g| g.strides().to_vec()), Some(w.value().strides().to_vec()));
        Ok(())
    }
}
