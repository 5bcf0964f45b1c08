//! `loss = -log_softmax(x Wᵀ + b)[label]` of each row, some rows at a time, so that the scores never exist as a whole.

use std::ops::Range;

use smallvec::SmallVec;
use tensor::{Error, Result, Tensor};

use super::cross_entropy::{cross_entropy_grad, not_empty};
use super::{Draw, Reduction, Sample, indices};
use crate::{Grads, Save, Var, Vjp, record};

#[derive::located]
impl Var {
    /// The [`cross_entropy`](Self::cross_entropy) of the scores [`linear`](Self::linear) gives, computed for `chunk` rows at a time:
    /// for large numbers of classes, whose scores and their gradients would take most of the memory. Scores are computed a second
    /// time in the backward pass.
    ///
    /// Shapes: `x [.., in]`, `weight [classes, in]`, `bias [classes]`, labels `[..]` of I64; the result is a scalar, or has the
    /// labels' shape with [`Reduction::None`]. The gradients of `weight` and `bias` are added chunk by chunk, in the type that is
    /// computed in.
    ///
    /// ```
    /// # use autograd::{DType, Device, Result, Tensor, Var, ops::Reduction};
    /// # fn main() -> Result<()> {
    /// let device = Device::cpu();
    /// let x = Var::leaf(Tensor::ones(&[6, 3], DType::F64, &device)?);
    /// let weight = Var::leaf(Tensor::zeros(&[4, 3], DType::F64, &device)?);
    /// let labels = Tensor::from_slice(&[0_i64, 3, 1, 1, 2, 0], &[6], &device)?;
    /// let loss = x.linear_cross_entropy(&weight, None, &labels, Reduction::Mean, 4)?;
    /// assert!((loss.value().item::<f64>()? - 4_f64.ln()).abs() < 1e-12);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of both ops; `InvalidArgument` for a chunk of no rows, `ShapeMismatch` unless there is a label for each row.
    pub fn linear_cross_entropy(
        &self,
        weight: &Var,
        bias: Option<&Var>,
        labels: &Tensor,
        reduction: Reduction,
        chunk: usize,
    ) -> Result<Var> {
        let loss = |x: &Var, weight: &Var, bias: Option<&Var>, rounded: bool| {
            let (inputs, rows) = match x.shape() {
                [rows @ .., inputs] if rows == labels.shape() => (*inputs, labels.elements()),
                shape => {
                    return Err(Error::shape_mismatch(
                        OP,
                        "input [.., in] takes labels [..]",
                        shape,
                        labels.shape(),
                    ));
                }
            };
            Error::require(chunk > 0, OP, "chunk", "at least 1", 0)?;
            not_empty(OP, "labels", labels, reduction)?;
            let (flat, labels_of_rows) = (x.reshape(&[rows, inputs])?, labels.reshape(&[rows])?);
            let losses = losses(&flat, weight, bias, &labels_of_rows, chunk)?;
            let loss = reduction.apply(losses.reshape(labels.shape())?)?;
            if rounded { loss.to_dtype(x.dtype()) } else { Ok(loss) }
        };
        autocast!(OP, [self, weight, bias], |x, weight, bias| loss(&x, &weight, bias.as_ref(), false));
        loss(self, weight, bias, true)
    }
}

const OP: &str = "linear_cross_entropy";

/// The first row and the number of rows of each chunk; a single one if there are no rows.
fn chunks(rows: usize, chunk: usize) -> impl Iterator<Item = Range<usize>> {
    let count = rows.div_ceil(chunk).max(1);
    (0..count).map(move |at| at * chunk..rows.min((at + 1) * chunk))
}

fn of_chunk(x: &Tensor, chunk: &Range<usize>) -> Result<Tensor> {
    x.narrow(0, chunk.start, chunk.len())
}

/// One loss for each row, of the type that is computed in.
fn losses(x: &Var, weight: &Var, bias: Option<&Var>, labels: &Tensor, chunk: usize) -> Result<Var> {
    let (mut losses, mut log_sums) = (Vec::new(), Vec::new());
    for rows in chunks(labels.elements(), chunk) {
        let scores = of_chunk(x.value(), &rows)?.linear(weight.value(), bias.map(Var::value))?;
        let (of_rows, sums) = scores.cross_entropy(&of_chunk(labels, &rows)?)?;
        losses.push(of_rows);
        log_sums.push(sums);
    }
    let joined = |parts: &[Tensor]| Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0);
    let (losses, log_sums) = (joined(&losses)?, joined(&log_sums)?);
    let mut inputs: SmallVec<[&Var; 3]> = SmallVec::from_slice(&[x, weight]);
    inputs.extend(bias);
    let mut saved: SmallVec<[Save<'_>; 5]> = (0..inputs.len()).map(Save::Input).collect();
    saved.extend([Save::Tensor(&log_sums), Save::Tensor(labels)]);
    Ok(record(OP, &inputs, &saved, losses, move |ctx, g| gradients(ctx, g, chunk)))
}

/// With `S = g (softmax(x Wᵀ + b) - one_hot(label))` of each chunk: `x' = S W`, `W' = Σ Sᵀ x`, `b' = Σ S`.
fn gradients(ctx: &Vjp<'_>, g: &Var, chunk: usize) -> Result<Grads> {
    let (x, weight) = (ctx.saved(0), ctx.saved(1));
    let inputs = ctx.inputs();
    let bias = (inputs == 3).then(|| ctx.saved(2));
    let (log_sums, labels) = (ctx.saved(inputs), ctx.saved(inputs + 1));
    let mut of_x = Vec::new();
    let mut sums: [Option<Var>; 2] = [None, None];
    for rows in chunks(labels.value().elements(), chunk) {
        let x = x.narrow(0, rows.start, rows.len())?;
        let scores = x.linear(&weight, bias.as_ref())?;
        let (log_sums, labels) = (of_chunk(log_sums.value(), &rows)?, of_chunk(labels.value(), &rows)?);
        let g = g.narrow(0, rows.start, rows.len())?;
        let of_scores = cross_entropy_grad(&scores, &log_sums, &labels, &g)?;
        if ctx.needs(0) {
            of_x.push(of_scores.matmul(&weight)?);
        }
        if ctx.needs(1) {
            add(&mut sums[0], of_scores.t()?.matmul(&x)?, ctx.is_recorded())?;
        }
        if ctx.needs(2) {
            add(&mut sums[1], of_scores.sum(&[0], false)?, ctx.is_recorded())?;
        }
    }
    let [of_weight, of_bias] = sums;
    let rounded = |sum: Option<Var>, like: &Var| sum.map(|sum| sum.to_dtype(like.dtype())).transpose();
    let mut grads = Grads::new();
    grads.push(if of_x.is_empty() { None } else { Some(Var::cat(&of_x.iter().collect::<Vec<_>>(), 0)?) });
    grads.push(rounded(of_weight, &weight)?);
    if let Some(bias) = bias {
        grads.push(rounded(of_bias, &bias)?);
    }
    Ok(grads)
}

/// Adds a chunk's part to the sum, in the type that is computed in; in place unless that is recorded.
fn add(sum: &mut Option<Var>, part: Var, is_recorded: bool) -> Result<()> {
    let part = part.to_dtype(part.dtype().compute_dtype())?;
    match sum {
        Some(sum) if is_recorded => *sum = sum.add(&part)?,
        Some(sum) => sum.value().add_(part.value())?,
        None => *sum = Some(part),
    }
    Ok(())
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("whole", &[&[3, 2], &[3, 2], &[3]], |v| {
            let labels = indices(v, &[2, 0, 1], &[3])?;
            v[0].linear_cross_entropy(&v[1], Some(&v[2]), &labels, Reduction::Mean, 8)
        }),
        ("chunks", &[&[5, 2], &[3, 2], &[3]], |v| {
            let labels = indices(v, &[2, 0, 1, 1, 0], &[5])?;
            v[0].linear_cross_entropy(&v[1], Some(&v[2]), &labels, Reduction::Mean, 2)
        }),
        ("single_rows", &[&[2, 2, 2], &[3, 2], &[3]], |v| {
            let labels = indices(v, &[2, 0, 1, 1], &[2, 2])?;
            v[0].linear_cross_entropy(&v[1], Some(&v[2]), &labels, Reduction::None, 1)
        }),
        ("without_bias", &[&[4, 2], &[3, 2]], |v| {
            let labels = indices(v, &[1, 0, 2, 2], &[4])?;
            v[0].linear_cross_entropy(&v[1], None, &labels, Reduction::Sum, 3)
        }),
    ])
}

#[cfg(test)]
mod tests {
    use device::{CpuConfig, Device};
    use tensor::{DType, RandomKey};

    use super::super::testing::tensor;
    use super::*;
    use tensor::ErrorKind;

    struct Case {
        x: Var,
        weight: Var,
        bias: Var,
        labels: Tensor,
    }

    /// 40 rows of 6 elements, 50 classes.
    fn case(device: &Device, dtype: DType) -> Result<Case> {
        let normal = |shape: &[usize], op| {
            Tensor::randn(shape, DType::F64, RandomKey { seed: 1, op }, device)?.to_dtype(dtype)
        };
        let labels: Vec<i64> = (0..40).map(|row| row * 7 % 50).collect();
        Ok(Case {
            x: Var::leaf(normal(&[40, 6], 0)?),
            weight: Var::leaf(normal(&[50, 6], 1)?),
            bias: Var::leaf(normal(&[50], 2)?),
            labels: Tensor::from_slice(&labels, &[40], device)?,
        })
    }

    impl Case {
        /// The loss and its gradients, in chunks or as a whole.
        fn run(&self, chunk: Option<usize>) -> Result<Vec<Vec<f64>>> {
            let loss = match chunk {
                Some(chunk) => {
                    let bias = Some(&self.bias);
                    self.x.linear_cross_entropy(&self.weight, bias, &self.labels, Reduction::Mean, chunk)?
                }
                None => {
                    let scores = self.x.linear(&self.weight, Some(&self.bias))?;
                    scores.cross_entropy(&self.labels, Reduction::Mean)?
                }
            };
            let gradients = loss.backward()?;
            let leaves = [&self.x, &self.weight, &self.bias].map(|leaf| gradients.get(leaf));
            let all = std::iter::once(Some(loss.value().clone())).chain(leaves).flatten();
            all.map(|tensor| tensor.to_dtype(DType::F64)?.to_vec()).collect()
        }
    }

    fn furthest(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
        let pairs = a.iter().flatten().zip(b.iter().flatten());
        pairs.map(|(a, b)| (a - b).abs() / (1.0 + b.abs())).fold(0.0, f64::max)
    }

    #[test]
    fn chunks_give_what_all_rows_give() -> Result<()> {
        let case = case(&Device::cpu(), DType::F64)?;
        let whole = case.run(None)?;
        for chunk in [1, 7, 39] {
            assert!(furthest(&case.run(Some(chunk))?, &whole) < 1e-14, "{chunk}");
        }
        // Where there is one chunk, every sum has the same order.
        for chunk in [40, 1000] {
            assert_eq!(case.run(Some(chunk))?, whole, "{chunk}");
        }
        Ok(())
    }

    /// Sums over chunks are not rounded to 16 bits each time: they are as close to those of F32 as those of all rows.
    #[test]
    fn chunks_of_16_bits_add_up_in_f32() -> Result<()> {
        let half = case(&Device::cpu(), DType::BF16)?;
        let exact = case(&Device::cpu(), DType::BF16)?;
        let wide = |var: &Var| Ok::<_, Error>(Var::leaf(var.value().to_dtype(DType::F32)?));
        let exact = Case {
            x: wide(&exact.x)?,
            weight: wide(&exact.weight)?,
            bias: wide(&exact.bias)?,
            labels: exact.labels,
        };
        let exact = exact.run(None)?;
        let (whole, single) = (furthest(&half.run(None)?, &exact), furthest(&half.run(Some(1))?, &exact));
        assert!(single <= 1.5 * whole, "{single} and {whole}");
        Ok(())
    }

    #[test]
    fn scores_never_exist_as_a_whole() -> Result<()> {
        use allocator::DeviceMemory;

        let peak = |chunk: Option<usize>| -> Result<usize> {
            let device = Device::cpu_with(CpuConfig::default());
            let case = case(&device, DType::F32)?;
            let weight = Var::leaf(Tensor::zeros(&[5000, 6], DType::F32, &device)?);
            let case = Case { weight, bias: Var::leaf(Tensor::zeros(&[5000], DType::F32, &device)?), ..case };
            device.reset_peak_memory_stats();
            let before = device.memory_stats().allocated_bytes;
            case.run(chunk)?;
            Ok(device.memory_stats().peak_allocated_bytes - before)
        };
        let (whole, chunked) = (peak(None)?, peak(Some(4))?);
        assert!(whole > 2 * 40 * 5000 * 4, "scores and their gradient: {whole}");
        assert!(chunked < whole / 2, "{chunked} of {whole}");
        Ok(())
    }

    #[test]
    fn bad_input_is_an_error() -> Result<()> {
        let Case { x, weight, labels, .. } = case(&Device::cpu(), DType::F64)?;
        let loss = |x: &Var, labels: &Tensor, chunk| {
            x.linear_cross_entropy(&weight, None, labels, Reduction::Mean, chunk)
        };
        assert!(matches!(
            loss(&x, &labels, 0).as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { argument: "chunk", .. })
        ));
        let few = labels.narrow(0, 0, 3)?;
        assert!(matches!(
            loss(&x, &few, 8).as_ref().map_err(Error::kind),
            Err(ErrorKind::ShapeMismatch { op: OP, .. })
        ));
        let outside = tensor(&[50_i64; 40], &[40])?;
        assert!(matches!(
            loss(&x, &outside, 8).as_ref().map_err(Error::kind),
            Err(ErrorKind::IndexOutOfRange { index: 50, .. })
        ));
        let (no_rows, no_labels) = (x.narrow(0, 0, 0)?, labels.narrow(0, 0, 0)?);
        assert!(matches!(
            loss(&no_rows, &no_labels, 8).as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { .. })
        ));
        let none = no_rows.linear_cross_entropy(&weight, None, &no_labels, Reduction::Sum, 8)?;
        assert_eq!(none.value().item::<f64>()?, 0.0);
        assert_eq!(
            none.backward()?.get(&weight).map(|g| g.to_vec::<f64>()).transpose()?,
            Some(vec![0.0; 300])
        );
        Ok(())
    }
}
