//! Tensors from ndarray's arrays, and back.

use ndarray::{Array0, Array1, Array2, Array3, ArrayD, Axis, IxDyn, s};
use tensor::{DType, Device, Element, Error, ErrorKind, Result, Tensor};

fn round_trip<T: Element>(values: Vec<T>) -> Result<()> {
    let array = ArrayD::from_shape_vec(IxDyn(&[2, 3, 2]), values).expect("twelve elements");
    let tensor = Tensor::try_from(&array)?;
    assert_eq!((tensor.shape(), tensor.dtype()), (&[2, 3, 2][..], T::DTYPE));
    assert_eq!(ArrayD::<T>::try_from(&tensor)?, array);
    assert_eq!(Array3::<T>::try_from(&tensor)?.into_dyn(), array);
    Ok(())
}

#[test]
fn every_type_comes_back() -> Result<()> {
    round_trip((0..12).map(|i| i as f32 / 8.0).collect())?;
    round_trip((0..12).map(f64::from).collect())?;
    round_trip((0..12).map(|i| i64::from(i) << 40).collect())?;
    round_trip::<u8>((250..=255).chain(0..6).collect())?;
    round_trip((0..12).map(|i| i % 3 == 0).collect())
}

#[test]
fn any_layout_is_read_in_logical_order() -> Result<()> {
    let array = Array2::from_shape_fn((4, 6), |(i, j)| (10 * i + j) as i64);
    let views = [array.view(), array.t(), array.slice(s![1..3, ..;2]), array.slice(s![..;-1, 2..4])];
    for view in views {
        let tensor = Tensor::from_ndarray(&view, &Device::cpu())?;
        assert_eq!(tensor.shape(), view.shape());
        assert_eq!(tensor.to_vec::<i64>()?, view.iter().copied().collect::<Vec<_>>());
    }
    // And a tensor's views in theirs.
    let turned = Tensor::try_from(&array)?.t()?;
    assert_eq!(Array2::<i64>::try_from(&turned)?, array.t());
    Ok(())
}

#[test]
fn ranks_from_nothing_on_and_empty_arrays() -> Result<()> {
    let scalar = Tensor::try_from(&Array0::from_elem((), 2.5_f64))?;
    assert_eq!((scalar.rank(), Array0::<f64>::try_from(&scalar)?.into_scalar()), (0, 2.5));
    let empty = Tensor::try_from(&Array2::<f32>::zeros((0, 5)))?;
    assert_eq!(Array2::<f32>::try_from(&empty)?.shape(), [0, 5]);
    let repeated = Array1::from_vec(vec![1_u8, 2]);
    let repeated = repeated.broadcast((3, 2)).expect("rows");
    assert_eq!(Tensor::try_from(&repeated)?.to_vec::<u8>()?, [1, 2, 1, 2, 1, 2]);
    let inserted = Array1::from_vec(vec![true]).insert_axis(Axis(0));
    assert_eq!(Tensor::try_from(&inserted)?.shape(), [1, 1]);
    Ok(())
}

#[test]
fn what_does_not_fit_is_an_error() -> Result<()> {
    let tensor = Tensor::zeros(&[2, 3], DType::F32, &Device::cpu())?;
    assert!(matches!(
        ArrayD::<f64>::try_from(&tensor).as_ref().map_err(Error::kind),
        Err(ErrorKind::DTypeMismatch { .. })
    ));
    assert!(matches!(
        Array1::<f32>::try_from(&tensor).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { argument: "shape", .. })
    ));
    Ok(())
}
