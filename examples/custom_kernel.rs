//! A kernel of one's own, with a body for a CPU and one in CUDA C, its gradient, and the check that they fit.
//!
//! ```sh
//! cargo run --release --example custom_kernel
//! ```

use streamgrad::prelude::*;
use streamgrad::tensor::{Arg, CustomKernel, Grid, KernelLaunch, Program, custom};

/// Both kernels, compiled when the first of them is launched on a CUDA device.
static PROGRAM: Program = Program::new(
    "power_relu",
    r#"
    extern "C" __global__ void power_relu(double* y, const double* x, unsigned long long n, double power) {
        unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
        if (i < n) {
            y[i] = x[i] > 0 ? pow(x[i], power) : 0;
        }
    }
    extern "C" __global__ void power_relu_grad(double* dx, const double* x, const double* g, unsigned long long n,
                                               double power) {
        unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
        if (i < n) {
            dx[i] = x[i] > 0 ? g[i] * power * pow(x[i], power - 1) : 0;
        }
    }
    "#,
);

const THREADS: u32 = 256;

/// A kernel of the program for `n` elements.
fn launch(kernel: &'static str, n: usize, power: f64) -> KernelLaunch {
    let grid = Grid::linear(n.div_ceil(THREADS as usize) as u32, THREADS);
    // SAFETY: both kernels take their operands, all of `n` elements, the number of elements and the power; each thread
    // stays below `n`.
    unsafe { KernelLaunch::new(&PROGRAM, kernel, grid, &[Arg::U64(n as u64), Arg::F64(power)]) }
}

/// `y = max(x, 0)^power`.
struct PowerRelu(f64);

impl CustomKernel<1, 1> for PowerRelu {
    type Element = f64;

    fn name(&self) -> &'static str {
        "power_relu"
    }

    fn cpu(&self, [x]: [&[f64]; 1], [y]: [&mut [f64]; 1]) {
        y.iter_mut().zip(x).filter(|(_, x)| **x > 0.0).for_each(|(y, x)| *y = x.powf(self.0));
    }

    fn cuda(&self, [n]: [usize; 1], _: [usize; 1]) -> Option<KernelLaunch> {
        Some(launch("power_relu", n, self.0))
    }
}

/// `x' = g power max(x, 0)^(power - 1)`.
struct PowerReluGrad(f64);

impl CustomKernel<2, 1> for PowerReluGrad {
    type Element = f64;

    fn name(&self) -> &'static str {
        "power_relu_grad"
    }

    fn cpu(&self, [x, g]: [&[f64]; 2], [dx]: [&mut [f64]; 1]) {
        let slope = |x: f64| if x > 0.0 { self.0 * x.powf(self.0 - 1.0) } else { 0.0 };
        dx.iter_mut().zip(x.iter().zip(g)).for_each(|(dx, (x, g))| *dx = g * slope(*x));
    }

    fn cuda(&self, [n, _]: [usize; 2], _: [usize; 1]) -> Option<KernelLaunch> {
        Some(launch("power_relu_grad", n, self.0))
    }
}

/// The op: its value by the first kernel, its gradient by the second one.
fn power_relu(x: &Var, power: f64) -> streamgrad::Result<Var> {
    let [y] = custom(PowerRelu(power), [x.value()], [x.shape()])?;
    Ok(record("power_relu", &[x], &[Save::Input(0)], y, move |cx, g| {
        let [dx] = custom(PowerReluGrad(power), [cx.saved(0).value(), g.value()], [g.shape()])?;
        Ok([Some(Var::constant(dx))].into_iter().collect())
    }))
}

fn check(device: &Device) -> streamgrad::Result<()> {
    let x = Tensor::from_slice(&[-2.0, 0.5, 1.0, 3.0], &[2, 2], device)?;
    let checked =
        gradcheck(|inputs| power_relu(&inputs[0], 2.5), std::slice::from_ref(&x), GradCheck::default())?;
    println!("{device}: {} derivatives, error at most {:.1e}", checked.checked, checked.max_error);
    // On a stream of its own, and on a view that is not contiguous: the engine orders and lays out.
    let y = device.new_stream()?.scope(|| power_relu(&Var::constant(x.t()?), 2.0))?;
    assert_eq!(y.value().to_vec::<f64>()?, [0.0, 1.0, 0.25, 9.0]);
    Ok(())
}

pub(crate) fn main() -> streamgrad::Result<()> {
    check(&Device::cpu())?;
    match Device::cuda(0) {
        Ok(device) => check(&device),
        Err(_) => Ok(()),
    }
}
