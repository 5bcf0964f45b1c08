//! Normalization by rows: layer norm, RMS norm, group norm.

use device::{DType, Error, Result, Stream};
use kernels::{NormGrads, NormInput, NormRows, normalize_workspace};

use crate::Tensor;
use crate::check::{expect_parameter, has_shape, same_kind, wrong_shape};

/// Which elements of a tensor are normalized together: made for one shape by [`Norm::layer`], [`Norm::rms`] or
/// [`Norm::group`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Norm {
    /// The name of the op.
    pub op: &'static str,
    /// How the tensor is cut into rows.
    pub rows: NormRows,
    /// Whether the mean of each row is subtracted.
    pub centred: bool,
    /// The number added to the variance.
    pub eps: f64,
}

/// What a normalization gives: its result, and the statistics that its gradient needs.
#[derive(Clone, Debug)]
pub struct Normalized {
    /// The normalized elements, of the input's shape.
    pub out: Tensor,
    /// The mean of each row; none if rows are not centred. Of [`DType::compute_dtype`], as is `rstd`.
    pub mean: Option<Tensor>,
    /// The inverse of each row's deviation.
    pub rstd: Tensor,
}

/// The gradients of a normalization, as far as they were wanted.
#[derive(Clone, Debug, Default)]
pub struct NormGradients {
    /// The gradient of the elements.
    pub x: Option<Tensor>,
    /// The gradient of the weight.
    pub weight: Option<Tensor>,
    /// The gradient of the bias.
    pub bias: Option<Tensor>,
}

impl Norm {
    /// Each row over the last axes, whose sizes are `normalized_shape`, is brought to mean 0 and variance 1.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point, `ShapeMismatch` unless the last axes have these sizes,
    /// `InvalidArgument` for no axes.
    pub fn layer(x: &Tensor, normalized_shape: &[usize], eps: f64) -> Result<Norm> {
        Ok(Norm { op: "layer_norm", rows: trailing("layer_norm", x, normalized_shape)?, centred: true, eps })
    }

    /// Divides each row over the last axes by the root of the mean of its squares. The default of `eps` is the machine
    /// epsilon of the elements' [`DType::compute_dtype`].
    ///
    /// # Errors
    /// As [`Norm::layer`].
    pub fn rms(x: &Tensor, normalized_shape: &[usize], eps: Option<f64>) -> Result<Norm> {
        let smallest = if x.dtype() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
        let rows = trailing("rms_norm", x, normalized_shape)?;
        Ok(Norm { op: "rms_norm", rows, centred: false, eps: eps.unwrap_or(smallest) })
    }

    /// The channels, axis 1, are cut into groups; each group of each element of axis 0 is brought to mean 0 and variance 1.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point, `InvalidArgument` for less than two axes and for channels that are not
    /// divided by the groups.
    pub fn group(x: &Tensor, groups: usize, eps: f64) -> Result<Norm> {
        const OP: &str = "group_norm";
        x.dtype().require_float(OP)?;
        let &[_, channels, ref inner @ ..] = x.shape() else {
            return Err(wrong_shape(OP, "input", "of rank 2 or more", x));
        };
        let value = format_args!("{groups} for {channels} channels");
        let is_valid = groups > 0 && channels % groups == 0;
        Error::require(is_valid, OP, "num_groups", "a divisor of the channels", value)?;
        let rows = NormRows { groups, channels: channels / groups, inner: inner.iter().product() };
        Ok(Norm { op: OP, rows, centred: true, eps })
    }

    /// Normalizes, multiplies with the weight and adds the bias.
    ///
    /// Shapes: weight and bias have an element for each place of a row (layer norm, RMS norm) or for each channel. Both are of
    /// the elements' type, or both of its [`DType::compute_dtype`].
    ///
    /// # Errors
    /// `ShapeMismatch`, `DTypeMismatch`, `DeviceMismatch`.
    pub fn forward(&self, x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Normalized> {
        let x = x.contiguous()?;
        let [weight, bias] = [self.parameter(&x, weight, "weight")?, self.parameter(&x, bias, "bias")?];
        let rows = x.elements().checked_div(self.rows.row()).unwrap_or(0);
        Stream::with_current(x.device(), |stream| {
            let statistic = || Tensor::allocate(stream, &[rows], x.dtype.compute_dtype());
            let out = Tensor::allocate(stream, x.shape(), x.dtype)?;
            let mean = self.centred.then(statistic).transpose()?;
            let rstd = statistic()?;
            let [weight, bias] = [&weight, &bias].map(|given| given.as_ref().map(Tensor::view));
            let input = NormInput { x: x.view(), weight, bias };
            let statistics = (mean.as_ref().map(Tensor::view), rstd.view());
            kernels::normalize(stream, self.op, self.rows, input, self.eps, out.view(), statistics)?;
            Ok(Normalized { out, mean, rstd })
        })
    }

    /// The gradients for elements, weight and bias, as `wanted`, from the gradient `g` of the result.
    ///
    /// Gradients of weight and bias are vectors with an element for each weight, of the weight's type or, without one, of
    /// [`DType::compute_dtype`].
    ///
    /// # Errors
    /// As [`Norm::forward`].
    pub fn backward(
        &self,
        g: &Tensor,
        x: &Tensor,
        weight: Option<&Tensor>,
        mean: Option<&Tensor>,
        rstd: &Tensor,
        wanted: [bool; 3],
    ) -> Result<NormGradients> {
        same_kind(self.op, x, g, "gradient")?;
        has_shape(self.op, x.shape(), g, "gradient")?;
        let (g, weight, x) = (g.contiguous()?, self.parameter(x, weight, "weight")?, x.contiguous()?);
        let of_weights = weight.as_ref().map_or(x.dtype.compute_dtype(), |weight| weight.dtype);
        Stream::with_current(x.device(), |stream| {
            let of_x = || Tensor::allocate(stream, x.shape(), x.dtype);
            let sums = || Tensor::allocate(stream, &[self.rows.weights()], of_weights);
            let to = NormGradients {
                x: wanted[0].then(of_x).transpose()?,
                weight: wanted[1].then(sums).transpose()?,
                bias: wanted[2].then(sums).transpose()?,
            };
            let bytes = match wanted {
                [_, false, false] => 0,
                _ => normalize_workspace(stream, self.rows, x.elements()),
            };
            let [dx, dweight, dbias, weight] =
                [&to.x, &to.weight, &to.bias, &weight].map(|given| given.as_ref().map(Tensor::view));
            let statistics = (mean.map(Tensor::view), rstd.view());
            Tensor::with_workspace(stream, bytes, |workspace| {
                let grads = NormGrads { x: dx, weight: dweight, bias: dbias, workspace };
                let x = (x.view(), weight);
                kernels::normalize_grad(stream, self.op, self.rows, g.view(), x, statistics, grads)
            })?;
            Ok(to)
        })
    }

    fn parameter(
        &self,
        x: &Tensor,
        parameter: Option<&Tensor>,
        name: &'static str,
    ) -> Result<Option<Tensor>> {
        let Some(parameter) = parameter else { return Ok(None) };
        expect_parameter(self.op, x, parameter, name)?;
        let fits = parameter.elements() == self.rows.weights();
        Error::require_shapes(fits, self.op, name, &[self.rows.weights()], parameter.shape())?;
        parameter.contiguous().map(Some)
    }
}

/// Rows over the last axes.
fn trailing(op: &'static str, x: &Tensor, normalized_shape: &[usize]) -> Result<NormRows> {
    x.dtype().require_float(op)?;
    Error::require(!normalized_shape.is_empty(), op, "normalized_shape", "of one axis or more", "[]")?;
    Error::require_shapes(
        x.shape().ends_with(normalized_shape),
        op,
        "input must end with normalized_shape",
        x.shape(),
        normalized_shape,
    )?;
    Ok(NormRows { groups: 1, channels: normalized_shape.iter().product(), inner: 1 })
}

#[derive::located]
impl Tensor {
    /// `(x - mean) / sqrt(variance + eps) * weight + bias` of each row over the last axes, whose sizes are
    /// `normalized_shape`. The variance is the mean square deviation.
    ///
    /// Shapes: `weight` and `bias` have `normalized_shape`; the result has the shape of the input. Both have the
    /// elements' type, or both its [`DType::compute_dtype`], so they may be F32 for 16-bit elements.
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::from_slice(&[1.0_f64, 3.0, 5.0, 5.0], &[2, 2], &Device::cpu())?;
    /// let y = x.layer_norm(&[2], None, None, 0.0)?.narrow(0, 0, 1)?;
    /// assert_eq!(y.to_vec::<f64>()?, [-1.0, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Norm::layer`] and [`Norm::forward`].
    pub fn layer_norm(
        &self,
        normalized_shape: &[usize],
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        Ok(Norm::layer(self, normalized_shape, eps)?.forward(self, weight, bias)?.out)
    }

    /// `x / sqrt(mean(x^2) + eps) * weight` of each row over the last axes, whose sizes are `normalized_shape`. The
    /// default of `eps` is the machine epsilon of the elements' [`DType::compute_dtype`].
    ///
    /// Shapes and types: as for [`Tensor::layer_norm`].
    ///
    /// # Errors
    /// Those of [`Norm::rms`] and [`Norm::forward`].
    pub fn rms_norm(
        &self,
        normalized_shape: &[usize],
        weight: Option<&Tensor>,
        eps: Option<f64>,
    ) -> Result<Tensor> {
        Ok(Norm::rms(self, normalized_shape, eps)?.forward(self, weight, None)?.out)
    }

    /// `(x - mean) / sqrt(variance + eps) * weight + bias` with the mean and the mean square deviation of each group of
    /// channels of each element of axis 0.
    ///
    /// Shapes: `[n, c, ..]`, `weight [c]`, `bias [c]`; `groups` divides `c`. Types as for [`Tensor::layer_norm`].
    ///
    /// # Errors
    /// Those of [`Norm::group`] and [`Norm::forward`].
    pub fn group_norm(
        &self,
        groups: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        Ok(Norm::group(self, groups, eps)?.forward(self, weight, bias)?.out)
    }
}
