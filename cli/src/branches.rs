//! A model of two branches that do not need each other.

use autograd::Var;
use device::{Device, Result};
use tensor::RandomKey;

use models::{Conv2d, Conv2dOptions, Forward, Linear, Module, Relu, Sequential};

/// Two convolutions of 3x3 over the same images, each with a ReLU and the mean over all pixels; their sum goes through a linear
/// layer. Concurrent branches run on streams of their own ([`Device::concurrent`]), and so do their gradients.
///
/// Shapes: `[n, 3, h, w] -> [n, classes]`.
///
/// ```
/// use models::Forward;
/// use workloads::Branches;
/// # fn main() -> device::Result<()> {
/// let device = device::Device::cpu();
/// let (one, two) = (Branches::new(8, 10, 7, false, &device)?, Branches::new(8, 10, 7, true, &device)?);
/// let images = tensor::Tensor::ones(&[1, 3, 16, 16], device::DType::F32, &device)?;
/// let scores = |model: &Branches| model.forward(&images.clone().into())?.value().to_vec::<f32>();
/// assert_eq!(scores(&one)?, scores(&two)?);
/// # Ok(())
/// # }
/// ```
#[derive(Module)]
pub struct Branches {
    branches: [Sequential; 2],
    #[module(skip)]
    concurrent: bool,
    head: Linear,
}

impl Branches {
    /// A model with `filters` in each branch and its first values keyed by `seed`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(
        filters: usize,
        classes: usize,
        seed: u64,
        concurrent: bool,
        device: &Device,
    ) -> Result<Branches> {
        let branch = |op| -> Result<Sequential> {
            let key = Some(RandomKey { seed, op });
            let same = Conv2dOptions { padding: [1, 1], key, ..Conv2dOptions::default() };
            let conv = Conv2d::with_options(3, filters, [3, 3], same, device)?;
            Ok(Sequential::new().push(conv).push(Relu))
        };
        let head = Linear::keyed(filters, classes, RandomKey { seed, op: 2 }, device)?;
        Ok(Branches { branches: [branch(0)?, branch(1)?], concurrent, head })
    }

    fn branch(&self, number: usize, images: &Var) -> Result<Var> {
        self.branches[number].forward(images)?.mean(&[2, 3], false)
    }
}

impl Forward for Branches {
    fn forward(&self, input: &Var) -> Result<Var> {
        let (first, second) = (|| self.branch(0, input), || self.branch(1, input));
        let (first, second) =
            if self.concurrent { input.device().concurrent((first, second))? } else { (first()?, second()?) };
        self.head.forward(&first.add(&second)?)
    }
}

#[cfg(test)]
mod tests {
    use device::DType;
    use tensor::Tensor;

    use super::*;

    #[test]
    fn forward_and_backward_run_on_the_branches_streams() {
        let device = Device::cpu();
        let streams = device.default_stream().branches(2).unwrap();
        let ids = [streams[0].id(), streams[1].id()];
        let model = Branches::new(4, 10, 7, true, &device).unwrap();
        let images = Tensor::rand(&[2, 3, 9, 8], DType::F32, RandomKey { seed: 1, op: 0 }, &device).unwrap();
        let loss = model.forward(&Var::constant(images)).unwrap().square().unwrap().sum(&[], false).unwrap();
        for id in ids {
            let ops: Vec<_> =
                loss.tape().into_iter().filter(|entry| entry.stream == id).map(|entry| entry.op).collect();
            assert_eq!(ops.iter().filter(|op| op.contains("conv2d")).count(), 1, "{ops:?}");
            assert!(ops.contains(&"mean"), "{ops:?}");
        }
        device.start_recording();
        loss.backward().unwrap();
        device.synchronize().unwrap();
        let recording = device.stop_recording();
        for id in ids {
            let own =
                |op: &str| recording.commands.iter().any(|c| c.moment.stream == id && c.op.contains(op));
            assert!(own("conv2d"), "the filters' gradient is made on {id:?}");
        }
    }
}
