//! Convolutions, their transposes and their gradients: three bilinear maps, each of which is differentiated by the others.
//!
//! `Y = W * X + b`: `X' = transposed(W) * G`, `W' = G * X`, `b' = Σ G` over images and places.

use tensor::fused::{self, Activation};
use tensor::{ConvOptions, Result, grad};

use super::binary::if_needed;
use super::crossed::{Crossed, Product, record_crossed};
use super::max_pool2d::last_two;
use super::samples::{Draw, Sample, sample};
use crate::{Var, Vjp};

#[derive::located]
impl Var {
    /// Two-dimensional convolution, also of one image: `[c, h, w] -> [f, oh, ow]`. See [`Tensor::conv2d`](tensor::Tensor::conv2d).
    ///
    /// # Errors
    /// As for [`Tensor::conv2d`](tensor::Tensor::conv2d).
    pub fn conv2d(&self, weight: &Var, bias: Option<&Var>, options: &ConvOptions) -> Result<Var> {
        conv2d(self, weight, bias, options, Activation::None)
    }

    /// Transposed convolution, also of one image: `[c, h, w] -> [f, oh, ow]`. See [`Tensor::conv_transpose2d`](tensor::Tensor::conv_transpose2d).
    ///
    /// # Errors
    /// As for [`Tensor::conv_transpose2d`](tensor::Tensor::conv_transpose2d).
    pub fn conv_transpose2d(
        &self,
        weight: &Var,
        bias: Option<&Var>,
        output_padding: [usize; 2],
        options: &ConvOptions,
    ) -> Result<Var> {
        conv_transpose2d(self, weight, bias, output_padding, options, Activation::None)
    }
}

/// [`Var::conv2d`] and an activation in the same command: the bits are those of separate ops.
///
/// # Errors
/// As for [`Var::conv2d`].
pub fn conv2d(
    x: &Var,
    weight: &Var,
    bias: Option<&Var>,
    options: &ConvOptions,
    activation: Activation,
) -> Result<Var> {
    autocast!("conv2d", [x, weight, bias], |x, weight, bias| {
        conv2d(&x, &weight, bias.as_ref(), options, activation)
    });
    batched(x, |x| convolution(x, weight, bias, *options, activation))
}

/// [`Var::conv_transpose2d`] and an activation in the same command: the bits are those of separate ops.
///
/// # Errors
/// As for [`Var::conv_transpose2d`].
pub fn conv_transpose2d(
    x: &Var,
    weight: &Var,
    bias: Option<&Var>,
    output_padding: [usize; 2],
    options: &ConvOptions,
    activation: Activation,
) -> Result<Var> {
    let op = activation.op("conv_transpose2d", "conv_transpose2d_relu");
    autocast!("conv_transpose2d", [x, weight, bias], |x, weight, bias| {
        conv_transpose2d(&x, &weight, bias.as_ref(), output_padding, options, activation)
    });
    batched(x, |x| {
        let (images, filters, b) = (x.value(), weight.value(), bias.map(Var::value));
        let value = fused::conv_transpose2d(images, filters, b, output_padding, options, activation)?;
        transposed(Product { op, value, activation }, [x, weight], bias, *options)
    })
}

/// Applies `f` to `[n, c, h, w]`, or to `[c, h, w]` as to one image.
pub(super) fn batched(x: &Var, f: impl FnOnce(&Var) -> Result<Var>) -> Result<Var> {
    if x.shape().len() == 3 { f(&x.unsqueeze(0)?)?.squeeze(0) } else { f(x) }
}

/// The value of a convolution at the first `places` only.
fn at_places(x: &Var, weight: &Var, places: [usize; 2], options: ConvOptions) -> Result<Var> {
    let mut y = convolution(x, weight, None, options, Activation::None)?;
    for (axis, size) in [(2, places[0]), (3, places[1])] {
        if y.shape()[axis as usize] != size {
            y = y.narrow(axis, 0, size)?;
        }
    }
    Ok(y)
}

fn convolution(
    x: &Var,
    weight: &Var,
    bias: Option<&Var>,
    options: ConvOptions,
    activation: Activation,
) -> Result<Var> {
    let op = activation.op("conv2d", "conv2d_relu");
    let value = fused::conv2d(x.value(), weight.value(), bias.map(Var::value), &options, activation)?;
    let (image, kernel) = (last_two(x), last_two(weight));
    let vjp = move |ctx: &Vjp<'_>, crossed: Crossed, g: &Var| {
        Ok([
            if_needed(ctx, 0, || input_gradient(g, &crossed.rhs(ctx), image, options))?,
            if_needed(ctx, 1, || weight_gradient(&crossed.lhs(ctx), g, kernel, options))?,
            if_needed(ctx, 2, || channel_sums(g))?,
        ])
    };
    Ok(record_crossed(Product { op, value, activation }, [x, weight], bias, vjp))
}

/// The gradient of a bias.
fn channel_sums(g: &Var) -> Result<Var> {
    g.sum(&[0, 2, 3], false)
}

/// The gradient with respect to images.
fn input_gradient(g: &Var, weight: &Var, image: [usize; 2], options: ConvOptions) -> Result<Var> {
    let value = grad::conv2d_input(g.value(), weight.value(), None, image, &options)?;
    let product = Product { op: "conv2d_input_grad", value, activation: Activation::None };
    transposed(product, [g, weight], None, options)
}

/// Records images that a transposed convolution made.
fn transposed(
    product: Product,
    [g, weight]: [&Var; 2],
    bias: Option<&Var>,
    options: ConvOptions,
) -> Result<Var> {
    let (places, kernel) = (last_two(g), last_two(weight));
    let vjp = move |ctx: &Vjp<'_>, crossed: Crossed, h: &Var| {
        Ok([
            if_needed(ctx, 0, || at_places(h, &crossed.rhs(ctx), places, options))?,
            if_needed(ctx, 1, || weight_gradient(h, &crossed.lhs(ctx), kernel, options))?,
            if_needed(ctx, 2, || channel_sums(h))?,
        ])
    };
    Ok(record_crossed(product, [g, weight], bias, vjp))
}

fn weight_gradient(x: &Var, g: &Var, kernel: [usize; 2], options: ConvOptions) -> Result<Var> {
    const OP: &str = "conv2d_weight_grad";
    let value = grad::conv2d_weight(x.value(), g.value(), kernel, &options)?;
    let (image, places) = (last_two(x), last_two(g));
    let vjp = move |ctx: &Vjp<'_>, crossed: Crossed, h: &Var| {
        Ok([
            if_needed(ctx, 0, || input_gradient(&crossed.rhs(ctx), h, image, options))?,
            if_needed(ctx, 1, || at_places(&crossed.lhs(ctx), h, places, options))?,
            None,
        ])
    };
    let product = Product { op: OP, value, activation: Activation::None };
    Ok(record_crossed(product, [x, g], None, vjp))
}

fn options(stride: [usize; 2], padding: [usize; 2], dilation: [usize; 2], groups: usize) -> ConvOptions {
    ConvOptions { stride, padding, dilation, groups }
}

pub(super) fn samples(d: &Draw, activation: Activation) -> Result<Vec<Sample>> {
    let of = |name, x: &[usize], weight: &[usize], options: ConvOptions| -> Result<Sample> {
        let inputs = [d.normal(x)?, d.normal(weight)?, d.normal(&weight[..1])?];
        Ok(sample(name, inputs, move |v| conv2d(&v[0], &v[1], Some(&v[2]), &options, activation)))
    };
    let plain = ConvOptions::default();
    let several = options([1, 1], [1, 0], [1, 1], 2);
    Ok(vec![
        of("plain", &[2, 2, 4, 3], &[3, 2, 2, 2], plain)?,
        of("one", &[1, 1, 1, 1], &[1, 1, 1, 1], plain)?,
        of("one_image", &[2, 4, 3], &[2, 2, 3, 2], plain)?,
        of("padded", &[1, 2, 3, 4], &[2, 2, 3, 3], options([1, 1], [1, 2], [1, 1], 1))?,
        of("strided", &[1, 1, 5, 6], &[2, 1, 2, 3], options([2, 3], [1, 0], [1, 1], 1))?,
        of("dilated", &[1, 1, 6, 5], &[1, 1, 3, 2], options([1, 2], [1, 1], [2, 3], 1))?,
        of("patches", &[2, 1, 4, 6], &[2, 1, 2, 3], options([2, 3], [0, 0], [1, 1], 1))?,
        of("pointwise", &[2, 3, 2, 2], &[2, 3, 1, 1], plain)?,
        of("groups", &[1, 4, 3, 3], &[4, 2, 2, 2], options([1, 1], [0, 1], [1, 1], 2))?,
        of("depthwise", &[1, 2, 4, 4], &[2, 1, 3, 3], options([2, 1], [1, 1], [1, 1], 2))?,
        of("depthwise_with_several_filters", &[1, 2, 3, 3], &[4, 1, 2, 2], several)?,
        sample("without_bias", [d.normal(&[1, 1, 3, 3])?, d.normal(&[2, 1, 2, 2])?], move |v| {
            let y = conv2d(&v[0], &v[1], None, &plain, activation)?;
            y.mul(&v[0].narrow(2, 0, 2)?.narrow(3, 0, 2)?)
        }),
    ])
}

pub(super) fn transpose_samples(d: &Draw, activation: Activation) -> Result<Vec<Sample>> {
    let of = |name, x: &[usize], weight: &[usize], extra, options: ConvOptions| -> Result<Sample> {
        let inputs = [d.normal(x)?, d.normal(weight)?, d.normal(&[weight[1] * options.groups])?];
        Ok(sample(name, inputs, move |v| {
            conv_transpose2d(&v[0], &v[1], Some(&v[2]), extra, &options, activation)
        }))
    };
    let plain = ConvOptions::default();
    let dilated = options([1, 1], [1, 0], [2, 2], 1);
    Ok(vec![
        of("plain", &[2, 2, 2, 3], &[2, 3, 2, 2], [0, 0], plain)?,
        of("one_image", &[2, 2, 2], &[2, 1, 3, 2], [0, 0], plain)?,
        of("strided", &[1, 2, 2, 2], &[2, 1, 3, 2], [1, 2], options([2, 3], [1, 0], [1, 1], 1))?,
        of("upsampling", &[1, 2, 2, 3], &[2, 2, 2, 2], [0, 0], options([2, 2], [0, 0], [1, 1], 1))?,
        of("more_output_than_places", &[1, 1, 3, 2], &[1, 2, 2, 2], [1, 1], dilated)?,
        of("groups", &[1, 4, 2, 2], &[4, 1, 2, 2], [0, 0], options([1, 1], [0, 0], [1, 1], 2))?,
        of("depthwise", &[1, 2, 3, 2], &[2, 1, 3, 2], [1, 0], options([2, 1], [1, 0], [1, 1], 2))?,
        sample("without_bias", [d.normal(&[1, 2, 2, 2])?, d.normal(&[2, 1, 2, 2])?], move |v| {
            conv_transpose2d(&v[0], &v[1], None, [0, 0], &plain, activation)?.square()
        }),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf, vector};
    use super::*;

    #[test]
    fn a_convolution_and_its_transpose() -> Result<()> {
        let x = leaf(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], &[1, 1, 3, 3])?;
        let w = leaf(&[1.0, 0.0, -1.0, 2.0], &[1, 1, 2, 2])?;
        let b = vector(&[0.5])?;
        let plain = ConvOptions::default();
        let y = || x.conv2d(&w, Some(&b), &plain);
        close(&y()?, &[7.5, 9.5, 13.5, 15.5])?;
        close_values(&gradient(&y()?, &x)?, &[1.0, 1.0, 0.0, 0.0, 2.0, 2.0, -1.0, 1.0, 2.0]);
        close_values(&gradient(&y()?, &w)?, &[12.0, 16.0, 24.0, 28.0]);
        close_values(&gradient(&y()?, &b)?, &[4.0]);
        let small = leaf(&[1.0, 2.0], &[1, 1, 1, 2])?;
        let doubled = ConvOptions { stride: [2, 2], ..plain };
        let up = small.conv_transpose2d(&w, Some(&b), [0, 1], &doubled)?;
        assert_eq!(up.shape(), [1, 1, 2, 5]);
        close(&up, &[1.5, 0.5, 2.5, 0.5, 0.5, -0.5, 2.5, -1.5, 4.5, 0.5])
    }

    #[test]
    fn what_does_not_fit_is_an_error() -> Result<()> {
        let (x, w) = (leaf(&[0.0; 18], &[1, 2, 3, 3])?, leaf(&[0.0; 8], &[1, 2, 2, 2])?);
        let plain = ConvOptions::default();
        assert!(x.conv2d(&w, None, &plain).is_ok());
        assert!(x.conv2d(&w, Some(&vector(&[0.0, 0.0])?), &plain).is_err());
        assert!(x.conv2d(&w, None, &ConvOptions { groups: 2, ..plain }).is_err());
        assert!(x.conv2d(&w, None, &ConvOptions { groups: 0, ..plain }).is_err());
        assert!(x.conv2d(&w, None, &ConvOptions { stride: [1, 0], ..plain }).is_err());
        assert!(x.conv2d(&w, None, &ConvOptions { dilation: [3, 1], ..plain }).is_err());
        assert!(x.conv2d(&vector(&[1.0])?, None, &plain).is_err());
        assert!(vector(&[1.0])?.conv2d(&w, None, &plain).is_err());
        let w = leaf(&[0.0; 8], &[2, 1, 2, 2])?;
        assert!(x.conv_transpose2d(&w, None, [0, 0], &plain).is_ok());
        assert!(x.conv_transpose2d(&w, None, [1, 0], &plain).is_err());
        assert!(x.conv_transpose2d(&w, None, [0, 0], &ConvOptions { padding: [2, 2], ..plain }).is_err());
        Ok(())
    }
}
