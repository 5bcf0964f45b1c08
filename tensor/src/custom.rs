//! Kernels of one's own on tensors.

use device::{Element, Error, Result, Stream};
use kernels::CustomKernel;

use crate::Tensor;
use crate::check::{first_of, same_device};

/// Runs a kernel of one's own on `inputs`, which are made contiguous, and gives its outputs, of these shapes. Asynchronous, on the
/// current stream of the inputs' device.
///
/// `record` of the crate `autograd` gives it a gradient: the example `custom_kernel` shows how, with a body for CUDA.
///
/// ```
/// use tensor::{KernelLaunch, CustomKernel, Device, Tensor, custom};
///
/// /// `y = max(x, 0)^2`.
/// struct SquaredRelu;
///
/// impl CustomKernel<1, 1> for SquaredRelu {
///     type Element = f32;
///
///     fn name(&self) -> &'static str {
///         "squared_relu"
///     }
///
///     fn cpu(&self, [x]: [&[f32]; 1], [y]: [&mut [f32]; 1]) {
///         y.iter_mut().zip(x).for_each(|(y, x)| *y = x.max(0.0) * x.max(0.0));
///     }
///
///     fn cuda(&self, _: [usize; 1], _: [usize; 1]) -> Option<KernelLaunch> {
///         None
///     }
/// }
///
/// # fn main() -> tensor::Result<()> {
/// let x = Tensor::from_slice(&[-1.0_f32, 2.0, 3.0], &[3], &Device::cpu())?;
/// let [y] = custom(SquaredRelu, [&x], [x.shape()])?;
/// assert_eq!(y.to_vec::<f32>()?, [0.0, 4.0, 9.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `DeviceMismatch`; `DTypeMismatch` for inputs that are not of the kernel's elements, `DTypeUnsupported` if these are truth
/// values; `InvalidArgument` for no inputs, or a kernel that has no body for the device; `KernelCompile`, `OutOfMemory`.
#[derive::located]
pub fn custom<K: CustomKernel<R, W>, const R: usize, const W: usize>(
    kernel: K,
    inputs: [&Tensor; R],
    shapes: [&[usize]; W],
) -> Result<[Tensor; W]> {
    let op = kernel.name();
    let first = *first_of(op, "inputs", &inputs)?;
    for input in inputs {
        same_device(op, first, input, "input")?;
        input.dtype().require(op, "input", K::Element::DTYPE)?;
    }
    let dense = inputs.iter().map(|input| input.contiguous()).collect::<Result<Vec<Tensor>>>()?;
    Stream::with_current(first.device(), |stream| {
        let fresh = |shape| Tensor::fresh(op, shape, K::Element::DTYPE, stream.device(), |_, _| Ok(()));
        let outputs = shapes.into_iter().map(fresh).collect::<Result<Vec<Tensor>>>()?;
        let reads = std::array::from_fn(|k| dense[k].view());
        let writes = std::array::from_fn(|k| outputs[k].view());
        kernels::custom(stream, kernel, reads, writes)?;
        outputs.try_into().map_err(|_| Error::invalid(op, "shapes", "one for each output", W))
    })
}
