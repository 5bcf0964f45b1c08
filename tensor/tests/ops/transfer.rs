//! Creation, host transfer, types and devices.

use device::{CpuConfig, Device, Result};
use tensor::{DType, Tensor};

use crate::on::device;

#[test]
fn slices_come_back() -> Result<()> {
    let device = device();
    let floats: Vec<f32> = (0..1000).map(|i| i as f32 * 0.5 - 3.0).collect();
    let x = Tensor::from_slice(&floats, &[10, 100], &device)?;
    assert_eq!(x.to_vec::<f32>()?, floats);
    assert_eq!(x.t()?.narrow(0, 3, 1)?.to_vec::<f32>()?[2], floats[203]);
    let truths = [true, false, true];
    assert_eq!(Tensor::from_slice(&truths, &[3], &device)?.to_vec::<bool>()?, truths);
    let longs = [i64::MIN, -1, i64::MAX];
    assert_eq!(Tensor::from_slice(&longs, &[3], &device)?.to_vec::<i64>()?, longs);
    assert!(Tensor::from_slice::<f64>(&[], &[0, 4], &device)?.to_vec::<f64>()?.is_empty());
    Ok(())
}

#[test]
fn casts_truncate_and_saturate() -> Result<()> {
    let x = Tensor::from_slice(&[-1.9_f64, 2.9, 1e30, f64::NAN, 0.0], &[5], &device())?;
    assert_eq!(x.to_dtype(DType::I64)?.to_vec::<i64>()?, [-1, 2, i64::MAX, 0, 0]);
    assert_eq!(x.to_dtype(DType::U8)?.to_vec::<u8>()?, [0, 2, 255, 0, 0]);
    assert_eq!(x.to_dtype(DType::Bool)?.to_vec::<bool>()?, [true, true, true, true, false]);
    assert!(x.to_dtype(DType::F64)?.same_storage(&x));
    let bools = x.to_dtype(DType::Bool)?.to_dtype(DType::F32)?;
    assert_eq!(bools.to_vec::<f32>()?, [1.0, 1.0, 1.0, 1.0, 0.0]);
    Ok(())
}

#[test]
fn ranges_and_identities() -> Result<()> {
    let device = device();
    assert_eq!(Tensor::arange(5, 0, -2, DType::I64, &device)?.to_vec::<i64>()?, [5, 3, 1]);
    assert_eq!(Tensor::arange(0.0, 1.0, 0.25, DType::F32, &device)?.to_vec::<f32>()?, [0.0, 0.25, 0.5, 0.75]);
    assert!(Tensor::arange(2, 2, 1, DType::U8, &device)?.is_empty());
    assert_eq!(Tensor::eye(3, DType::I64, &device)?.to_vec::<i64>()?, [1, 0, 0, 0, 1, 0, 0, 0, 1]);
    let eye = Tensor::eye(2, DType::F32, &device)?;
    assert!(eye.is_contiguous() && eye.version() == 0);
    assert!(Tensor::eye(0, DType::F32, &device)?.is_empty());
    let points = Tensor::linspace(-1.0, 1.0, 5, DType::F64, &device)?;
    assert_eq!(points.to_vec::<f64>()?, [-1.0, -0.5, 0.0, 0.5, 1.0]);
    assert_eq!(Tensor::linspace(2.0, 9.0, 1, DType::F64, &device)?.to_vec::<f64>()?, [2.0]);
    assert_eq!(Tensor::full(&[2], 300.0, DType::U8, &device)?.to_vec::<u8>()?, [255, 255]);
    assert_eq!(eye.full_like(0.5)?.sum(&[], false)?.item::<f32>()?, 2.0);
    Ok(())
}

#[test]
fn tensors_move_between_devices() -> Result<()> {
    let (here, there) = (device(), Device::cpu_with(CpuConfig::default()));
    let x = Tensor::arange(0, 6, 1, DType::F32, &here)?.reshape(&[2, 3])?.t()?;
    let y = x.to_device(&there)?;
    assert!(y.device() == &there && y.is_contiguous());
    assert_eq!(y.to_vec::<f32>()?, x.to_vec::<f32>()?);
    assert!(x.to_device(&here)?.same_storage(&x));
    assert!(Tensor::zeros(&[0], DType::F32, &here)?.to_device(&there)?.is_empty());
    Ok(())
}

#[test]
fn elements_are_copied_from_another_device() -> Result<()> {
    let (here, there) = (device(), Device::cpu_with(CpuConfig::default()));
    let x = Tensor::zeros(&[3, 2], DType::F32, &here)?;
    let side = there.new_stream()?;
    let hold = side.hold();
    let y = side.scope(|| Tensor::arange(0, 6, 1, DType::I64, &there)?.reshape(&[2, 3])?.t())?;
    drop(hold);
    x.copy_(&y)?;
    assert_eq!(x.to_vec::<f32>()?, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    x.narrow(0, 1, 1)?.copy_(&y.narrow(0, 2, 1)?.narrow(1, 1, 1)?)?;
    assert_eq!((x.to_vec::<f32>()?, x.version()), (vec![0.0, 3.0, 5.0, 5.0, 2.0, 5.0], 2));
    y.copy_(&x)?;
    assert_eq!(y.to_vec::<i64>()?, [0, 3, 5, 5, 2, 5]);
    Ok(())
}

#[test]
fn ops_run_on_the_current_stream_and_order_themselves() -> Result<()> {
    let device = device();
    let (a, b) = (device.new_stream()?, device.new_stream()?);
    let x = a.scope(|| Tensor::full(&[1000], 1.0, DType::F32, &device))?;
    let y = b.scope(|| x.add(&x)?.mul_scalar(3.0))?;
    a.scope(|| x.fill_(100.0))?;
    let z = y.add(&x)?;
    assert_eq!(z.to_vec::<f32>()?, [106.0; 1000]);
    assert_eq!(y.to_vec::<f32>()?, [6.0; 1000]);
    Ok(())
}

#[test]
fn a_read_waits_only_for_its_own_buffer() -> Result<()> {
    let device = device();
    let (held, free) = (device.new_stream()?, device.new_stream()?);
    let gate = held.hold();
    let late = held.scope(|| Tensor::full(&[4], 2.0, DType::F32, &device))?;
    let early = free.scope(|| Tensor::full(&[4], 1.0, DType::F32, &device))?;
    assert_eq!(early.to_vec::<f32>()?, [1.0; 4]);
    drop(gate);
    assert_eq!(late.to_vec::<f32>()?, [2.0; 4]);
    Ok(())
}
