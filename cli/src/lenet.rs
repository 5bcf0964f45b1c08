//! A small convolutional network.

use device::{Device, Result};
use tensor::RandomKey;

use models::{Conv2d, Conv2dOptions, Flatten, Linear, MaxPool2d, Relu, Sequential, Unflatten};

/// A network like LeNet-5 (LeCun et al. 1998) for rows of 28x28 pixels, keyed by `seed`: two convolutions of 5x5, of 6 and
/// of 16 filters, each with a ReLU and a maximum over 2x2, and linear layers of 120, 84 and 10.
///
/// Shapes: `[n, 784] -> [n, 10]`; 61,706 parameters.
///
/// ```
/// use models::Module;
/// use workloads::lenet;
/// # fn main() -> device::Result<()> {
/// let model = lenet(7, &device::Device::cpu())?;
/// let parameters: usize = model.parameters().iter().map(|p| p.value().elements()).sum();
/// assert_eq!(parameters, 61_706);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `OutOfMemory`.
pub fn lenet(seed: u64, device: &Device) -> Result<Sequential> {
    let key = |op| RandomKey { seed, op };
    let conv = |channels, filters, padding, op| {
        let options = Conv2dOptions { padding: [padding; 2], key: Some(key(op)), ..Conv2dOptions::default() };
        Conv2d::with_options(channels, filters, [5, 5], options, device)
    };
    let linear = |from, to, op| Linear::keyed(from, to, key(op), device);
    let halves = || MaxPool2d::new([2, 2]);
    let images = Sequential::new().push(Unflatten(vec![1, 28, 28]));
    let first = images.push(conv(1, 6, 2, 0)?).push(Relu).push(halves());
    let second = first.push(conv(6, 16, 0, 1)?).push(Relu).push(halves());
    let joined = second.push(Flatten).push(linear(400, 120, 2)?).push(Relu);
    Ok(joined.push(linear(120, 84, 3)?).push(Relu).push(linear(84, 10, 4)?))
}
