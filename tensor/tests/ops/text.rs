//! How tensors print.

use device::{Device, Result};
use tensor::{DType, Tensor};

#[test]
fn matrices_line_up() -> Result<()> {
    let device = Device::cpu();
    let x = Tensor::from_slice(&[1.0_f32, -2.5, 30.25, 4.0], &[2, 2], &device)?;
    let text = "tensor([[ 1.0000, -2.5000],\n        [30.2500,  4.0000]], f32, cpu, [2, 2])";
    assert_eq!(x.to_string(), text);
    assert_eq!(format!("{:?}", x.t()?.select(0, 0)?), "tensor([ 1.0000, 30.2500], f32, cpu, [2])");
    assert_eq!(format!("{:.1}", x.select(0, 0)?), "tensor([ 1.0, -2.5], f32, cpu, [2])");
    assert_eq!(format!("{:.2}", x.select(0, 0)?.mul_scalar(2.0)?), "tensor([ 2.00, -5.00], f32, cpu, [2])");
    Ok(())
}

#[test]
fn every_type_and_rank() -> Result<()> {
    let device = Device::cpu();
    let text = |x: Tensor| x.to_string();
    assert_eq!(text(Tensor::scalar(3_i64, &device)?), "tensor(3, i64, cpu, [])");
    assert_eq!(text(Tensor::scalar(true, &device)?), "tensor(true, bool, cpu, [])");
    assert_eq!(text(Tensor::from_slice(&[7_u8, 200], &[2], &device)?), "tensor([  7, 200], u8, cpu, [2])");
    assert_eq!(text(Tensor::zeros(&[2, 0], DType::F64, &device)?), "tensor([], f64, cpu, [2, 0])");
    let odd = Tensor::from_slice(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 2.0], &[4], &device)?;
    assert_eq!(text(odd), "tensor([ nan,  inf, -inf,   2.], f64, cpu, [4])");
    let wide = Tensor::from_slice(&[1.5e-9_f64, 2.0], &[2], &device)?;
    assert_eq!(text(wide), "tensor([1.5000e-9,  2.0000e0], f64, cpu, [2])");
    let cube = Tensor::arange(0, 8, 1, DType::I64, &device)?.reshape(&[2, 2, 2])?;
    let shown =
        "tensor([[[0, 1],\n         [2, 3]],\n\n        [[4, 5],\n         [6, 7]]], i64, cpu, [2, 2, 2])";
    assert_eq!(text(cube), shown);
    Ok(())
}

#[test]
fn large_tensors_are_summarised() -> Result<()> {
    let x = Tensor::arange(0, 2000, 1, DType::I64, &Device::cpu())?;
    let shown = "tensor([   0,    1,    2, ..., 1997, 1998, 1999], i64, cpu, [2000])";
    assert_eq!(x.to_string(), shown);
    let tall = x.reshape(&[1000, 2])?.to_string();
    assert!(tall.contains("[   4,    5],\n        ...,\n        [1994, 1995],"), "{tall}");
    Ok(())
}
