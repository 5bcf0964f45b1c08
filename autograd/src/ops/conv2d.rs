//! Convolutions, their transposes and their gradients: three bilinear maps, each of which is differentiated by the others.
//!
//! `Y = W * X + b`: `X' = transposed(W) * G`, `W' = G * X`, `b' = Σ G` over images and places.

use tensor::fused::{self, Activation};
use tensor::{ConvOptions, Result, grad};

use super::crossed::{Product, record_crossed};
use super::{Draw, Sample, if_needed, last_two};
use crate::Var;

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
        let image = [value.shape()[2], value.shape()[3]];
        let sizes = Sizes { image, kernel: last_two(weight), places: last_two(x), options: *options };
        Ok(sizes.record(Product { op, value, activation }, Of::Images, [x, weight], bias))
    })
}

/// Applies `f` to `[n, c, h, w]`, or to `[c, h, w]` as to one image.
pub(super) fn batched(x: &Var, f: impl FnOnce(&Var) -> Result<Var>) -> Result<Var> {
    if x.shape().len() == 3 { f(&x.unsqueeze(0)?)?.squeeze(0) } else { f(x) }
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
    let places = [value.shape()[2], value.shape()[3]];
    let sizes = Sizes { image: last_two(x), kernel: last_two(weight), places, options };
    Ok(sizes.record(Product { op, value, activation }, Of::Outputs, [x, weight], bias))
}

/// What a product of a convolution makes. Any two of the three make the third one, so the gradients of each product are the others.
#[derive(Clone, Copy)]
enum Of {
    /// Of images and filters.
    Outputs,
    /// Of outputs and filters.
    Images,
    /// Of images and outputs.
    Filters,
}

/// The last two axes of images, filters and outputs.
#[derive(Clone, Copy)]
struct Sizes {
    image: [usize; 2],
    kernel: [usize; 2],
    places: [usize; 2],
    options: ConvOptions,
}

impl Sizes {
    fn record(self, product: Product, of: Of, operands: [&Var; 2], bias: Option<&Var>) -> Var {
        record_crossed(product, operands, bias, move |ctx, crossed, g| {
            let of_lhs = || match of {
                Of::Outputs => self.images(g, &crossed.rhs(ctx)),
                Of::Images => self.outputs(g, &crossed.rhs(ctx)),
                Of::Filters => self.images(&crossed.rhs(ctx), g),
            };
            let of_rhs = || match of {
                Of::Outputs => self.filters(&crossed.lhs(ctx), g),
                Of::Images => self.filters(g, &crossed.lhs(ctx)),
                Of::Filters => self.outputs(&crossed.lhs(ctx), g),
            };
            let of_bias = || g.sum(&[0, 2, 3], false);
            Ok([if_needed(ctx, 0, of_lhs)?, if_needed(ctx, 1, of_rhs)?, if_needed(ctx, 2, of_bias)?])
        })
    }

    /// The convolution's value at the first places only: a transposed one may have made more pixels than they see.
    fn outputs(self, x: &Var, weight: &Var) -> Result<Var> {
        let mut y = convolution(x, weight, None, self.options, Activation::None)?;
        for (axis, size) in (2..).zip(self.places) {
            if y.shape()[axis as usize] != size {
                y = y.narrow(axis, 0, size)?;
            }
        }
        Ok(y)
    }

    fn images(self, g: &Var, weight: &Var) -> Result<Var> {
        let value = grad::conv2d_input(g.value(), weight.value(), self.image, &self.options)?;
        let product = Product { op: "conv2d_input_grad", value, activation: Activation::None };
        Ok(self.record(product, Of::Images, [g, weight], None))
    }

    fn filters(self, x: &Var, g: &Var) -> Result<Var> {
        let value = grad::conv2d_weight(x.value(), g.value(), self.kernel, &self.options)?;
        let product = Product { op: "conv2d_weight_grad", value, activation: Activation::None };
        Ok(self.record(product, Of::Filters, [x, g], None))
    }
}

fn options(stride: [usize; 2], padding: [usize; 2], dilation: [usize; 2], groups: usize) -> ConvOptions {
    ConvOptions { stride, padding, dilation, groups }
}

pub(super) fn samples(d: &Draw, activation: Activation) -> Result<Vec<Sample>> {
    let of = |name, x, weight: &[usize], options| {
        let shapes = [x, weight, &weight[..1]];
        d.sample(name, &shapes, move |v| conv2d(&v[0], &v[1], Some(&v[2]), &options, activation))
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
        d.sample("without_bias", &[&[1, 1, 3, 3], &[2, 1, 2, 2]], move |v| {
            let y = conv2d(&v[0], &v[1], None, &plain, activation)?;
            y.mul(&v[0].narrow(2, 0, 2)?.narrow(3, 0, 2)?)
        })?,
    ])
}

pub(super) fn transpose_samples(d: &Draw, activation: Activation) -> Result<Vec<Sample>> {
    let of = |name, x, weight: &[usize], extra, options: ConvOptions| {
        d.sample(name, &[x, weight, &[weight[1] * options.groups]], move |v| {
            conv_transpose2d(&v[0], &v[1], Some(&v[2]), extra, &options, activation)
        })
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
        d.sample("without_bias", &[&[1, 2, 2, 2], &[2, 1, 2, 2]], move |v| {
            conv_transpose2d(&v[0], &v[1], None, [0, 0], &plain, activation)?.square()
        })?,
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
