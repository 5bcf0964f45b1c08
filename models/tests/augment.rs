//! Augmentation against PyTorch: `tests/reference/augment.py` says how the reference was made.

use approx::assert_abs_diff_eq;
use device::{DType, Device, Error, ErrorKind, Result};
use models::data::augment::{Augment, crop, gaussian_blur, normalize, resize, rotate};
use serde_json::Value;
use tensor::Tensor;

fn numbers(value: &Value) -> Vec<f64> {
    let numbers = value.as_array().into_iter().flatten();
    numbers.map(|number| number.as_f64().expect("a number")).collect()
}

fn close(got: &Tensor, want: &Value) -> Result<()> {
    let got = got.to_dtype(DType::F64)?.to_vec::<f64>()?;
    assert_abs_diff_eq!(got[..], numbers(want)[..], epsilon = 1e-6);
    Ok(())
}

#[test]
fn resized_rotated_and_blurred_as_by_torch() -> Result<()> {
    let reference: Value =
        serde_json::from_str(include_str!("../../tests/data/augment.json")).expect("the script writes JSON");
    let images: Vec<f32> = numbers(&reference["images"]).into_iter().map(|value| value as f32).collect();
    let images = Tensor::from_slice(&images, &[3, 2, 6, 7], &Device::cpu())?;
    for (size, want) in [[9, 4], [6, 7], [12, 14]].into_iter().enumerate() {
        close(&resize(&images, want)?, &reference["resized"][size])?;
    }
    close(&rotate(&images, &numbers(&reference["degrees"]))?, &reference["rotated"])?;
    close(&gaussian_blur(&images, 5, &numbers(&reference["sigmas"]))?, &reference["blurred"])
}

#[test]
fn crops_are_the_parts_and_normalised_is_centred() -> Result<()> {
    let images = Tensor::arange(0, 2 * 3 * 5 * 6, 1, DType::F32, &Device::cpu())?.reshape(&[2, 3, 5, 6])?;
    let parts = crop(&images, &[[0, 3], [2, 1]], [3, 2])?;
    for (sample, [top, left]) in [[0, 3], [2, 1]].into_iter().enumerate() {
        let want = images.narrow(0, sample, 1)?.narrow(2, top, 3)?.narrow(3, left, 2)?;
        assert_eq!(parts.narrow(0, sample, 1)?.to_vec::<f32>()?, want.to_vec::<f32>()?);
    }
    let normal = normalize(&parts, 4.0, 2.0)?.to_vec::<f32>()?;
    let parts = parts.to_vec::<f32>()?;
    assert!(normal.iter().zip(parts).all(|(got, pixel)| *got == (pixel - 4.0) / 2.0));
    Ok(())
}

/// The parameters of a sample depend on seed and number alone, and spread over their ranges.
#[test]
fn samples_are_keyed() -> Result<()> {
    let device = Device::cpu();
    let ramp = Tensor::arange(0, 20 * 20, 1, DType::F32, &device)?.reshape(&[1, 1, 20, 20])?;
    let same = ramp.expand(&[64, 1, 20, 20])?;
    // A crop alone shows its corner in its first pixel.
    let plain =
        Augment { crop: [5, 9], size: [5, 9], degrees: 0.0, sigma: (1e-3, 1e-3), ..Augment::default() };
    let corners = |augment: &Augment, first| -> Result<Vec<f32>> {
        augment.apply(&same, first)?.narrow(2, 0, 1)?.narrow(3, 0, 1)?.to_vec()
    };
    let all = corners(&plain, 0)?;
    let (rows, columns): (Vec<_>, Vec<_>) =
        all.iter().map(|&at| (at as usize / 20, at as usize % 20)).unzip();
    assert_eq!((rows.iter().min(), rows.iter().max()), (Some(&0), Some(&15)));
    assert_eq!((columns.iter().min(), columns.iter().max()), (Some(&0), Some(&11)));
    assert_eq!(corners(&plain, 10)?[..54], all[10..]);
    assert_ne!(corners(&Augment { seed: 1, ..plain }, 0)?, all);
    // Pixels of bytes are taken as numbers.
    let bytes = Tensor::full(&[1, 1, 20, 20], 200.0, DType::U8, &device)?;
    assert_eq!(plain.apply(&bytes, 0)?.to_vec::<f32>()?, [200.0; 45]);
    Ok(())
}

#[test]
fn bad_options_are_named() -> Result<()> {
    let images = Tensor::zeros(&[2, 1, 8, 8], DType::F32, &Device::cpu())?;
    let small = Augment { crop: [4, 4], size: [8, 8], ..Augment::default() };
    small.apply(&images, 0)?;
    let argument = |result: Result<Tensor>| match result.map_err(Error::into_kind) {
        Err(ErrorKind::InvalidArgument { argument, .. }) => argument,
        _ => "none",
    };
    assert_eq!(argument(Augment { crop: [9, 4], ..small }.apply(&images, 0)), "crop");
    assert_eq!(argument(Augment { degrees: f64::NAN, ..small }.apply(&images, 0)), "degrees");
    assert_eq!(argument(Augment { sigma: (0.0, 0.0), ..small }.apply(&images, 0)), "sigmas");
    assert_eq!(argument(Augment { taps: 4, ..small }.apply(&images, 0)), "weights");
    assert_eq!(argument(Augment { std: 0.0, ..small }.apply(&images, 0)), "std");
    assert_eq!(argument(crop(&images, &[[0, 0], [5, usize::MAX]], [4, 4])), "corners");
    assert_eq!(argument(small.apply(&images.reshape(&[2, 64])?, 0)), "images");
    assert!(matches!(
        rotate(&images, &[1.0]).as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { .. })
    ));
    Ok(())
}
