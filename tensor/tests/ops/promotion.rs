//! Types of results, against torch's rule.

use DType::{BF16, Bool, F16, F32, F64, I64, U8};
use tensor::{DType, Error, ErrorKind, Result, Tensor};

use crate::on::device;

const DTYPES: [DType; 7] = [F32, F64, I64, U8, Bool, BF16, F16];

/// `torch.result_type` of tensors of these types and ranks: promoted among those with axes and among those of rank 0, and
/// the two joined as `combine_categories` in ATen does.
fn result_type(operands: [(DType, usize); 2]) -> DType {
    let of = |wanted: &dyn Fn(usize) -> bool| {
        operands.iter().filter(|operand| wanted(operand.1)).map(|operand| operand.0).reduce(DType::promote)
    };
    let (higher, lower) = match (of(&|rank| rank > 0), of(&|rank| rank == 0)) {
        (Some(higher), Some(lower)) => (higher, lower),
        (one, other) => return one.or(other).expect("two operands"),
    };
    let floats = [F32, F64, BF16, F16];
    if floats.contains(&higher) {
        return higher;
    }
    if higher == Bool || floats.contains(&lower) {
        return higher.promote(lower);
    }
    higher
}

#[test]
fn results_have_the_type_that_torch_gives_them() -> Result<()> {
    let device = device();
    let all = DTYPES.iter().flat_map(|&dtype| [0_usize, 1, 2].map(|rank| (dtype, rank)));
    let make = |(dtype, rank): (DType, usize)| Tensor::ones(&[2, 2][..rank], dtype, &device);
    for a in all.clone() {
        for b in all.clone() {
            let expected = result_type([a, b]);
            let (x, y) = (make(a)?, make(b)?);
            assert_eq!(x.result_type(&y), expected, "{a:?} and {b:?}");
            let quotient = x.div(&y)?;
            let float = if [I64, U8, Bool].contains(&expected) { F32 } else { expected };
            assert_eq!(quotient.dtype(), float, "{a:?} / {b:?}");
            let cond = x.eq(&y)?;
            assert_eq!(cond.dtype(), Bool);
            assert_eq!(Tensor::where_cond(&cond, &x, &y)?.dtype(), expected, "{a:?} or {b:?}");
            let ops = [
                Tensor::add,
                Tensor::sub,
                Tensor::mul,
                Tensor::pow,
                Tensor::fmod,
                Tensor::maximum,
                Tensor::minimum,
            ];
            for op in ops {
                match op(&x, &y) {
                    Ok(z) => assert_eq!(z.dtype(), expected, "{a:?} and {b:?}"),
                    Err(error) => {
                        assert!(
                            expected == Bool && matches!(error.kind(), ErrorKind::DTypeUnsupported { .. }),
                            "{error}"
                        );
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn division_is_true_division() -> Result<()> {
    let device = device();
    let x = Tensor::from_slice(&[7_i64, -7, 1, 0], &[4], &device)?;
    let y = Tensor::from_slice(&[2_u8, 2, 0, 0], &[4], &device)?;
    let quotient = x.div(&y)?;
    assert_eq!(quotient.dtype(), F32);
    let quotient = quotient.to_vec::<f32>()?;
    assert_eq!(quotient[..3], [3.5, -3.5, f32::INFINITY]);
    assert!(quotient[3].is_nan());
    let truths = Tensor::ones(&[2], Bool, &device)?;
    assert_eq!(truths.div(&truths)?.to_vec::<f32>()?, [1.0, 1.0]);
    // The quotients of a half are rounded once.
    let half = Tensor::full(&[1], 3.0, BF16, &device)?;
    assert_eq!(Tensor::scalar(1_i64, &device)?.div(&half)?.dtype(), BF16);
    let refused = |result: Result<()>| {
        matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::DTypeUnsupported { op: "div_", .. }))
    };
    assert!(refused(x.div_(&x)) && refused(truths.div_(&truths)));
    Ok(())
}
