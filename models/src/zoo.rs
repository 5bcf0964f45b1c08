//! Small models that the programs and tests share.

use device::{Device, Error, Result};
use tensor::RandomKey;

use crate::{Linear, Relu, Sequential};

/// Linear layers of the given sizes with a ReLU between each two, keyed by `seed`.
///
/// Shapes: `[n, sizes[0]] -> [n, sizes[last]]`.
///
/// ```
/// use models::{Module, mlp};
/// # fn main() -> device::Result<()> {
/// let model = mlp(&[784, 256, 256, 10], 7, &device::Device::cpu())?;
/// assert_eq!(model.parameters().len(), 6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `InvalidArgument` for fewer than two sizes or a size of 0, `OutOfMemory`.
pub fn mlp(sizes: &[usize], seed: u64, device: &Device) -> Result<Sequential> {
    if sizes.len() < 2 || sizes.contains(&0) {
        return Err(Error::InvalidArgument {
            op: "mlp",
            argument: "sizes",
            expected: "at least two, all positive",
            value: format!("{sizes:?}").into(),
        });
    }
    let mut model = Sequential::new();
    for (layer, pair) in sizes.windows(2).enumerate() {
        if layer > 0 {
            model = model.push(Relu);
        }
        model = model.push(Linear::keyed(pair[0], pair[1], RandomKey { seed, op: layer as u64 }, device)?);
    }
    Ok(model)
}

/// The digits model: 64-128-10.
///
/// # Errors
/// `OutOfMemory`.
pub fn digits_mlp(seed: u64, device: &Device) -> Result<Sequential> {
    mlp(&[64, 128, 10], seed, device)
}
