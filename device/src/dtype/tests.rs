use super::DType::{self, BF16, Bool, F16, F32, F64, I64, U8};

#[test]
fn types_promote_as_in_torch() {
    const DTYPES: [DType; 7] = [F32, F64, I64, U8, Bool, BF16, F16];
    // `torch.promote_types` of PyTorch 2.13, in the order of `DTYPES`.
    const TORCH: [[DType; 7]; 7] = [
        [F32, F64, F32, F32, F32, F32, F32],
        [F64, F64, F64, F64, F64, F64, F64],
        [F32, F64, I64, I64, I64, BF16, F16],
        [F32, F64, I64, U8, U8, BF16, F16],
        [F32, F64, I64, U8, Bool, BF16, F16],
        [F32, F64, BF16, BF16, BF16, BF16, F32],
        [F32, F64, F16, F16, F16, F32, F16],
    ];
    for (lhs, row) in DTYPES.into_iter().zip(TORCH) {
        for (rhs, expected) in DTYPES.into_iter().zip(row) {
            assert_eq!(lhs.promote(rhs), expected, "{lhs} and {rhs}");
        }
    }
}
