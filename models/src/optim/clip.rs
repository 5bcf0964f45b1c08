//! Clipping of gradients, by the norm over all of them or value by value.

use autograd::{Gradients, Var};
use device::{DType, Device, Error, Result};
use tensor::{Tensor, scale_all_, total_norm};

/// Scales all gradients by `min(1, max_norm / (norm + 1e-6))`, where `norm` is the Euclidean norm over all of
/// them together, and returns `norm` as it was before. With an infinite `max_norm` it only measures.
///
/// Asynchronous, two commands for all gradients of a type: the norm stays on the device, and nothing waits for it. A NaN in any
/// gradient makes all NaN. The norm is F64 if a gradient is, else F32; of no gradients it is 0, on the CPU.
///
/// ```
/// use autograd::Var;
/// use tensor::Tensor;
/// # fn main() -> device::Result<()> {
/// let w = Var::leaf(Tensor::from_slice(&[3.0f64, 4.0], &[2], &device::Device::cpu())?);
/// let mut gradients = w.square()?.mul_scalar(0.5)?.sum(&[], false)?.backward()?;
/// let norm = models::clip_grad_norm(&mut gradients, 1.0)?;
/// assert_eq!(norm.item::<f64>()?, 5.0);
/// let clipped = gradients.get(&w).map(|g| g.to_vec::<f64>()).transpose()?.unwrap_or_default();
/// assert!((clipped[0] - 0.6).abs() < 1e-6 && (clipped[1] - 0.8).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `InvalidArgument` if `max_norm` is negative or NaN; `DeviceMismatch` if the gradients are not all on one device.
#[derive::located]
pub fn clip_grad_norm(gradients: &mut Gradients, max_norm: f64) -> Result<Tensor> {
    Error::require(max_norm >= 0.0, "clip_grad_norm", "max_norm", "at least 0", max_norm)?;
    let is_bounded = max_norm.is_finite();
    let value = |gradient: &Var| if is_bounded { own(gradient) } else { Ok(gradient.value().clone()) };
    let all = gradients.iter().map(value).collect::<Result<Vec<Tensor>>>()?;
    let mut groups: Vec<Vec<Tensor>> = Vec::new();
    for gradient in &all {
        match groups.iter_mut().find(|group| group[0].dtype() == gradient.dtype()) {
            Some(group) => group.push(gradient.clone()),
            None => groups.push(vec![gradient.clone()]),
        }
    }
    let (norm, scale) = match &groups[..] {
        [] => return Tensor::zeros(&[], DType::F32, &Device::cpu()),
        [group] => total_norm(group, max_norm)?,
        groups => {
            let has_f64 = groups.iter().any(|group| group[0].dtype() == DType::F64);
            let dtype = if has_f64 { DType::F64 } else { DType::F32 };
            let norm = |group: &Vec<Tensor>| total_norm(group, max_norm)?.0.to_dtype(dtype);
            total_norm(&groups.iter().map(norm).collect::<Result<Vec<Tensor>>>()?, max_norm)?
        }
    };
    if is_bounded {
        for group in &groups {
            scale_all_(group, &scale.to_dtype(group[0].dtype().compute_dtype())?)?;
        }
        put(gradients, all)?;
    }
    Ok(norm)
}

/// A gradient to be changed in place: itself if nobody else has it.
pub(super) fn own(gradient: &Var) -> Result<Tensor> {
    let value = gradient.value();
    if value.is_unique() && value.layout().is_dense() { Ok(value.clone()) } else { value.copy() }
}

/// Puts other values in the places of all gradients, in their order.
pub(super) fn put(gradients: &mut Gradients, values: Vec<Tensor>) -> Result<()> {
    let mut values = values.into_iter();
    gradients.map(|gradient| Ok(values.next().map_or_else(|| gradient.clone(), Var::constant)))
}

/// Clamps every element of all gradients to `-clip_value..=clip_value`; NaN stays NaN.
///
/// Asynchronous: nothing waits.
///
/// ```
/// use autograd::Var;
/// use tensor::Tensor;
/// # fn main() -> device::Result<()> {
/// let w = Var::leaf(Tensor::from_slice(&[3.0f64, -4.0, 0.5], &[3], &device::Device::cpu())?);
/// let mut gradients = w.square()?.mul_scalar(0.5)?.sum(&[], false)?.backward()?;
/// models::clip_grad_value(&mut gradients, 1.0)?;
/// let clipped = gradients.get(&w).map(|g| g.to_vec::<f64>()).transpose()?;
/// assert_eq!(clipped, Some(vec![1.0, -1.0, 0.5]));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `InvalidArgument` if `clip_value` is negative or not finite; `OutOfMemory`.
#[derive::located]
pub fn clip_grad_value(gradients: &mut Gradients, clip_value: f64) -> Result<()> {
    let is_valid = clip_value >= 0.0 && clip_value.is_finite();
    Error::require(is_valid, "clip_grad_value", "clip_value", "at least 0 and finite", clip_value)?;
    gradients.map(|gradient| Ok(Var::constant(gradient.value().clamp(-clip_value, clip_value)?)))
}

#[cfg(test)]
mod tests {
    use device::{CpuConfig, SyncDebug};

    use super::*;
    use crate::{Optimizer, Sgd, SgdOptions};

    fn leaf(values: &[f64]) -> Var {
        Var::leaf(Tensor::from_slice(values, &[values.len()], &Device::cpu()).unwrap())
    }

    fn half_square(v: &Var) -> Var {
        v.square().unwrap().mul_scalar(0.5).unwrap().sum(&[], false).unwrap()
    }

    fn values(gradients: &Gradients, v: &Var) -> Vec<f64> {
        gradients.get(v).unwrap().to_vec().unwrap()
    }

    #[test]
    fn the_norm_is_over_all_gradients_and_small_ones_stay() {
        let (a, b) = (leaf(&[2.0, 3.0]), leaf(&[6.0]));
        let loss = half_square(&a).add(&half_square(&b)).unwrap();
        let mut gradients = loss.backward().unwrap();
        assert_eq!(clip_grad_norm(&mut gradients, 10.0).unwrap().item::<f64>().unwrap(), 7.0);
        assert_eq!((values(&gradients, &a), values(&gradients, &b)), (vec![2.0, 3.0], vec![6.0]));
        clip_grad_norm(&mut gradients, 3.5).unwrap();
        let clipped = [values(&gradients, &a), values(&gradients, &b)].concat();
        assert!(
            clipped.iter().zip([1.0, 1.5, 3.0]).all(|(got, want)| (got - want).abs() < 1e-6),
            "{clipped:?}"
        );
    }

    #[test]
    fn two_leaves_that_share_a_gradient_are_scaled_once_each() {
        let (a, b) = (leaf(&[3.0]), leaf(&[4.0]));
        let mut gradients = a.add(&b).unwrap().sum(&[], false).unwrap().backward().unwrap();
        let norm = clip_grad_norm(&mut gradients, 1.0).unwrap().item::<f64>().unwrap();
        assert!((norm - 2f64.sqrt()).abs() < 1e-15);
        let (a, b) = (values(&gradients, &a)[0], values(&gradients, &b)[0]);
        assert_eq!(a, b);
        assert!((a - 0.5f64.sqrt()).abs() < 1e-6);
    }

    #[test]
    fn gradients_of_several_types_have_one_norm() {
        let to = |dtype| move |leaf: &Var| Var::leaf(leaf.value().to_dtype(dtype).unwrap());
        // Of 2, 3 and 6, in the first case beside 0 in BF16.
        for (types, norm_type) in [
            ([DType::F32, DType::BF16, DType::F64], DType::F64),
            ([DType::F16, DType::BF16, DType::F32], DType::F32),
            ([DType::F16, DType::BF16, DType::F16], DType::F32),
        ] {
            let leaves = [2.0, 3.0, 6.0].map(|value| leaf(&[value]));
            let leaves: Vec<Var> = leaves.iter().zip(types).map(|(leaf, dtype)| to(dtype)(leaf)).collect();
            let backward = || {
                let mut gradients = Gradients::default();
                leaves
                    .iter()
                    .for_each(|leaf| gradients.merge(half_square(leaf).backward().unwrap()).unwrap());
                gradients
            };
            let values = |gradients: &Gradients| -> Vec<f64> {
                let value = |leaf| gradients.get(leaf).unwrap().to_dtype(DType::F64).unwrap().item().unwrap();
                leaves.iter().map(value).collect()
            };
            let mut gradients = backward();
            let norm = clip_grad_norm(&mut gradients, 3.5).unwrap();
            assert_eq!(
                (norm.dtype(), norm.to_dtype(DType::F64).unwrap().item::<f64>().unwrap()),
                (norm_type, 7.0)
            );
            approx::assert_abs_diff_eq!(values(&gradients)[..], [1.0, 1.5, 3.0][..], epsilon = 1e-6);
            assert_eq!(gradients.get(&leaves[1]).unwrap().dtype(), DType::BF16);
        }
    }

    #[test]
    fn an_infinite_bound_only_measures() {
        let a = leaf(&[3.0, f64::INFINITY]);
        let mut gradients = half_square(&a).backward().unwrap();
        assert_eq!(
            clip_grad_norm(&mut gradients, f64::INFINITY).unwrap().item::<f64>().unwrap(),
            f64::INFINITY
        );
        assert_eq!(values(&gradients, &a), [3.0, f64::INFINITY]);
        let none = clip_grad_norm(&mut Gradients::default(), 1.0).unwrap();
        assert_eq!((none.shape(), none.item::<f32>().unwrap()), (&[][..], 0.0));
    }

    #[test]
    fn bad_arguments_are_errors() {
        let a = leaf(&[1.0]);
        let mut gradients = half_square(&a).backward().unwrap();
        let norm = "clip_grad_norm: max_norm must be at least 0, got";
        let value = "clip_grad_value: clip_value must be at least 0 and finite, got";
        for limit in [-1.0, f64::NAN, f64::NEG_INFINITY] {
            let error = clip_grad_norm(&mut gradients, limit).unwrap_err();
            assert_eq!(error.to_string(), format!("{norm} {limit}"));
        }
        for limit in [-1.0, f64::NAN, f64::INFINITY] {
            let error = clip_grad_value(&mut gradients, limit).unwrap_err();
            assert_eq!(error.to_string(), format!("{value} {limit}"));
        }
    }

    /// Behind a held stream, where anything that waited would wait for ever, and refused if it is hidden.
    #[test]
    fn nothing_waits_for_the_device() {
        let device = Device::cpu_with(CpuConfig::default());
        device.set_sync_debug(SyncDebug::Refuse);
        let stream = device.new_stream().unwrap();
        let w = Var::leaf(Tensor::from_slice(&[3.0, 4.0], &[2], &device).unwrap());
        let before = device.sync_stats();
        let gate = stream.hold();
        let (gradients, norm) = stream.scope(|| {
            let mut gradients = half_square(&w).backward().unwrap();
            let norm = clip_grad_norm(&mut gradients, 1.0).unwrap();
            clip_grad_value(&mut gradients, 0.7).unwrap();
            Sgd::new(vec![w.clone()], SgdOptions::default()).unwrap().step(&gradients).unwrap();
            (gradients, norm)
        });
        assert!(!stream.is_idle().unwrap(), "all of it is behind the gate");
        assert_eq!((device.sync_stats() - before).host_syncs, 0);
        drop(gate);
        device.set_sync_debug(SyncDebug::Count);
        assert_eq!(norm.item::<f64>().unwrap(), 5.0);
        let clipped = values(&gradients, &w);
        assert!((clipped[0] - 0.6).abs() < 1e-6 && clipped[1] == 0.7, "{clipped:?}");
    }
}
