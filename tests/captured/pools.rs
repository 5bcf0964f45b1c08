//! Gradients of maxima that a ReLU masks.

use super::all_bits;
use crate::common::devices::each_device;
use streamgrad::kernels::UnaryOp;
use streamgrad::prelude::*;
use streamgrad::tensor::grad;
use streamgrad::{Graph, GraphOptions, MaxPool, Order, RandomKey, Result, Schedule};

const SCHEDULES: [Schedule; 2] = [Schedule::Inline, Schedule::Threads];

/// Images with equal elements, zeros of both signs, infinities and NaN.
fn images(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let x = Tensor::randn(shape, DType::F32, RandomKey { seed: 21, op: 1 }, device)?;
    let mut values: Vec<f32> = x.to_vec::<f32>()?.into_iter().map(|x| (x * 4.0).round() / 4.0).collect();
    for (at, value) in values.iter_mut().enumerate() {
        match at % 37 {
            5 => *value = f32::NAN,
            11 => *value = f32::INFINITY,
            17 => *value = -0.0,
            _ => {}
        }
    }
    Tensor::from_slice(&values, shape, device)?.to_dtype(dtype)
}

/// Checks that replays give the bits of a step, and how many masks a fused one has as commands of their own.
fn check(what: &str, device: &Device, masks: usize, step: &dyn Fn() -> Result<Vec<Tensor>>) -> Result<()> {
    let expected = all_bits(&step()?)?;
    for (order, fuse) in [(Order::Data, false), (Order::Data, true), (Order::Streams, true)] {
        let options = GraphOptions { order, fuse, ..GraphOptions::default() };
        let graph = Graph::capture_with(device, options, step)?;
        let commands = graph.commands();
        let found = commands.iter().filter(|command| ["relu_grad", "fused"].contains(&command.op)).count();
        assert!(!fuse || found == masks, "{what}, {device:?}: {found} masks");
        assert_eq!(streamgrad::device::unordered(&commands), []);
        // Somebody still holds the results of the first replay.
        for found in [graph.replay()?, graph.replay()?] {
            assert!(all_bits(&found)? == expected, "{what}, {device:?}, {order:?}, fuse {fuse}");
        }
    }
    Ok(())
}

/// What a step takes: images, and the gradient of their maxima.
struct Pooled {
    pool: MaxPool,
    x: Tensor,
    g: Tensor,
}

impl Pooled {
    fn new(pool: MaxPool, dtype: DType, device: &Device) -> Result<Pooled> {
        let x = images(&[2, 3, 11, 14], dtype, device)?;
        let shape = x.max_pool2d(&pool)?.0.shape().to_vec();
        let g = images(&shape, dtype, device)?;
        Ok(Pooled { pool, x, g })
    }

    /// What a ReLU gives, and the gradient that its maxima have with respect to it.
    fn slopes(&self) -> Result<[Tensor; 2]> {
        let y = self.x.relu()?;
        let (_, index) = y.max_pool2d(&self.pool)?;
        Ok([grad::max_pool2d(&self.g, &index, &self.pool, [11, 14])?, y])
    }
}

fn masked(y: &Tensor, g: &Tensor) -> Result<Tensor> {
    grad::unary(y, UnaryOp::Relu, g)
}

#[test]
fn a_gradient_of_maxima_and_its_mask_are_one_command() {
    each_device(&SCHEDULES, |device| {
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
            let pools = [
                MaxPool::new([2, 2]),
                MaxPool { stride: [1, 1], padding: [1, 1], ..MaxPool::new([3, 3]) },
                MaxPool { stride: [3, 3], ..MaxPool::new([2, 3]) },
                // Indices of 64 bits.
                MaxPool { stride: [1, 1], padding: [8, 8], ..MaxPool::new([17, 16]) },
            ];
            for pool in pools {
                let pooled = Pooled::new(pool, dtype, device)?;
                let widened = device.runs_on_host() && dtype.is_half();
                check(&format!("{dtype}, {pool:?}"), device, usize::from(widened), &|| {
                    let [g, y] = pooled.slopes()?;
                    Ok(vec![masked(&y, &g)?])
                })?;
            }
        }
        Ok(())
    });
}

#[test]
fn gradients_of_maxima_that_others_need_are_made_before() {
    each_device(&SCHEDULES, |device| {
        let pooled = Pooled::new(MaxPool::new([2, 2]), DType::F32, device)?;
        check("a result", device, 1, &|| {
            let [g, y] = pooled.slopes()?;
            Ok(vec![masked(&y, &g)?, g])
        })?;
        check("a mask of itself", device, 1, &|| {
            let [g, _] = pooled.slopes()?;
            Ok(vec![masked(&g, &g)?])
        })?;
        check("two masks", device, 2, &|| {
            let [g, y] = pooled.slopes()?;
            Ok(vec![masked(&y, &g)?, masked(&pooled.x, &g)?])
        })?;
        check("changed in between", device, 1, &|| {
            let [g, y] = pooled.slopes()?;
            g.mul_scalar_(-1.0)?;
            Ok(vec![masked(&y, &g)?])
        })?;
        check("another order of elements", device, 1, &|| {
            let [g, y] = pooled.slopes()?;
            let turned = y.transpose(2, 3)?.contiguous()?.transpose(2, 3)?;
            Ok(vec![masked(&turned, &g)?])
        })?;
        check("what is masked by is changed then", device, 0, &|| {
            let [g, y] = pooled.slopes()?;
            let found = masked(&y, &g)?;
            y.mul_scalar_(-1.0)?;
            Ok(vec![found, y])
        })
    });
}
