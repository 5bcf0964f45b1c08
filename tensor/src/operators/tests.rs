use device::{DType, Device, Error, ErrorKind};

use super::*;

fn vector(values: &[f64], dtype: DType) -> Result<Tensor> {
    Tensor::from_slice(values, &[values.len()], &Device::cpu())?.to_dtype(dtype)
}

fn same(found: Result<Tensor>, expected: Result<Tensor>) -> Result<()> {
    let (found, expected) = (found?, expected?);
    assert_eq!(found.dtype(), expected.dtype());
    let bits = |x: Tensor| -> Result<Vec<u64>> {
        Ok(x.to_dtype(DType::F64)?.to_vec::<f64>()?.iter().map(|x| x.to_bits()).collect())
    };
    assert_eq!(bits(found)?, bits(expected)?);
    Ok(())
}

/// Every pair of operands of one operator, against its method.
macro_rules! check {
    ($a:ident $op:tt $b:ident, $method:ident) => {{
        let (a, b): (&Tensor, &Tensor) = (&$a, &$b);
        let (owned, good) = (|x: &Tensor| x.clone(), |x: &Tensor| Result::Ok(x.clone()));
        for found in [
            a $op b, owned(a) $op b, a $op owned(b), owned(a) $op owned(b), a $op good(b), owned(a) $op good(b),
            good(a) $op b, good(a) $op owned(b),
        ] {
            same(found, a.$method(b))?;
        }
        let number = Tensor::full(&[], 3.0, a.dtype(), a.device())?;
        for found in [
            a $op 3.0, owned(a) $op 3.0, a $op 3.0_f32, owned(a) $op 3.0_f32, a $op 3, owned(a) $op 3,
        ] {
            same(found, a.$method(&number))?;
        }
        for found in [3.0 $op a, 3.0 $op owned(a), 3 $op a, 3 $op owned(a)] {
            same(found, number.$method(a))?;
        }
    }};
}

#[test]
fn operators_are_the_methods_of_their_names() -> Result<()> {
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16, DType::I64, DType::U8] {
        let (a, b) = (vector(&[0.0, 1.0, 7.0, 100.0], dtype)?, vector(&[2.0, 3.0, 1.0, 7.0], dtype)?);
        check!(a + b, add);
        check!(a - b, sub);
        check!(a * b, mul);
        check!(a / b, div);
        same(-&a, a.neg())?;
        same(-a.clone(), a.neg())?;
    }
    Ok(())
}

#[test]
fn the_number_of_a_quotient_is_not_rounded_to_a_half() -> Result<()> {
    let x = vector(&[300.0], DType::BF16)?;
    // In BF16 the numbers would be 0.10009765625 and 1000, and the quotients 2992 and 3.328125.
    same(&x / 0.1, vector(&[3008.0], DType::BF16))?;
    same(1001.9 / &x, vector(&[3.34375], DType::BF16))
}

#[test]
fn one_question_mark_is_enough_for_a_chain() -> Result<()> {
    let (a, b) = (vector(&[1.0, 2.0], DType::F64)?, vector(&[3.0, 5.0], DType::F64)?);
    assert_eq!((&a + &b * &b)?.to_vec::<f64>()?, [10.0, 27.0]);
    assert_eq!((&a * &b + &a)?.to_vec::<f64>()?, [4.0, 12.0]);
    assert_eq!((2.0 * &a * &b - &a)?.sum(&[], false)?.item::<f64>()?, 23.0);
    Ok(())
}

#[test]
fn the_first_error_is_kept() -> Result<()> {
    let (a, b) = (vector(&[1.0, 2.0], DType::F64)?, vector(&[3.0, 5.0, 7.0], DType::F64)?);
    let op = |result: Result<Tensor>| match result.map_err(Error::into_kind) {
        Err(ErrorKind::ShapeMismatch { op, .. }) => op,
        other => unreachable!("{other:?}"),
    };
    assert_eq!(op(&a + &b), "add");
    assert_eq!(op(&a - &a * &b), "mul");
    assert_eq!(op(&a / &b - &a), "div");
    assert_eq!(op(a.clone() * (&a - &b)), "sub");
    let truth = Tensor::ones(&[1], DType::Bool, a.device())?;
    assert!(matches!(
        (1.0 - &truth).as_ref().map_err(Error::kind),
        Err(ErrorKind::DTypeUnsupported { op: "neg", .. })
    ));
    Ok(())
}
