//! Products by cuBLAS.

use std::ffi::{c_int, c_void};

use cudarc::cublas::sys as blas;
use cudarc::driver::sys;

use super::Gemm;
use super::memory::obtained;
use crate::graph::capture::refused;
use crate::{DType, Error, Result};

/// A handle with a workspace of its own, for one stream at a time: then a product's result does not depend on other streams.
/// It goes from a stream that has ended to a new one, since destroying it waits for all that the device does.
#[derive(Debug)]
pub(super) struct Blas {
    handle: blas::cublasHandle_t,
    workspace: sys::CUdeviceptr,
}

// SAFETY: the handle may be used from any thread, one at a time, which the stream's tail sees to.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

/// What the vendor recommends for architectures with large products.
const WORKSPACE: usize = Gemm::WORKSPACE;

fn done(call: &'static str, status: blas::cublasStatus_t) -> Result<()> {
    if status == blas::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(Error::Driver { call, code: status as i32, name: format!("{status:?}").into() })
}

/// The sizes of a product as the library takes them.
#[derive(Clone, Copy)]
struct Sizes {
    ta: blas::cublasOperation_t,
    tb: blas::cublasOperation_t,
    m: c_int,
    n: c_int,
    k: c_int,
    lda: c_int,
    ldb: c_int,
    ldc: c_int,
    batch: c_int,
}

impl Sizes {
    /// # Errors
    /// [`Error::InvalidArgument`] for one that 31 bits do not hold.
    fn of(op: &'static str, g: &Gemm) -> Result<Sizes> {
        let int = |argument: &'static str, value: usize| {
            c_int::try_from(value).map_err(|_| Error::InvalidArgument {
                op,
                argument,
                expected: "less than 2^31",
                value: value.to_string().into(),
            })
        };
        let transposed = |yes| {
            if yes { blas::cublasOperation_t::CUBLAS_OP_T } else { blas::cublasOperation_t::CUBLAS_OP_N }
        };
        Ok(Sizes {
            ta: transposed(g.transa),
            tb: transposed(g.transb),
            m: int("m", g.m)?,
            n: int("n", g.n)?,
            k: int("k", g.k)?,
            lda: int("lda", g.lda)?,
            ldb: int("ldb", g.ldb)?,
            ldc: int("ldc", g.ldc)?,
            batch: int("batch", g.batch)?,
        })
    }
}

/// The library's name of an element type.
fn data_type(op: &'static str, dtype: DType) -> Result<blas::cudaDataType> {
    match dtype {
        DType::F32 => Ok(blas::cudaDataType::CUDA_R_32F),
        DType::BF16 => Ok(blas::cudaDataType::CUDA_R_16BF),
        DType::F16 => Ok(blas::cudaDataType::CUDA_R_16F),
        dtype => Err(Error::DTypeUnsupported { op, dtype }),
    }
}

impl Blas {
    /// A handle, of no stream yet; a context is current, so the library was found.
    pub(super) fn new() -> Result<Blas> {
        let mut new = Blas { handle: std::ptr::null_mut(), workspace: 0 };
        // SAFETY: the library is present and a context is current; the calls write handles and addresses, and what
        // was made is destroyed by `drop`.
        unsafe {
            done("cublasCreate", blas::cublasCreate_v2(&mut new.handle))?;
            obtained("cuMemAlloc", WORKSPACE, sys::cuMemAlloc_v2(&mut new.workspace, WORKSPACE))?;
            // Parts of a product are added as what it is computed in, also if the result has 16 bits. Not TF32: calls ask
            // for that.
            let mode = blas::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
            done("cublasSetMathMode", blas::cublasSetMathMode(new.handle, mode))?;
        }
        Ok(new)
    }

    /// Makes it the handle of `stream`, or of none; its context is current, and what it was asked for has run.
    pub(super) fn serve(&self, stream: Option<sys::CUstream>) -> Result<()> {
        let workspace = self.workspace as *mut c_void;
        let stream = stream.map_or(std::ptr::null_mut(), |stream| stream.cast());
        // SAFETY: the handle is live, and so is the stream; the workspace lives as long as the handle.
        unsafe {
            // Another stream takes the workspace away.
            done("cublasSetStream", blas::cublasSetStream_v2(self.handle, stream))?;
            done("cublasSetWorkspace", blas::cublasSetWorkspace_v2(self.handle, workspace, WORKSPACE))
        }
    }

    /// Has later products work in this memory, an address and its size: those of a graph have each its own.
    ///
    /// # Errors
    /// [`Error::Captured`] if there is none.
    pub(super) fn work_in(&self, op: &'static str, workspace: Option<(usize, usize)>) -> Result<()> {
        let Some((at, bytes)) = workspace else {
            return Err(refused(op, "it makes a product and did not state that it needs memory for it"));
        };
        // SAFETY: the handle is live, and the memory is the command's.
        let status = unsafe { blas::cublasSetWorkspace_v2(self.handle, at as *mut c_void, bytes) };
        done("cublasSetWorkspace", status)
    }

    /// # Safety
    /// The operands are in bounds, and nothing writes them while the product runs.
    pub(super) unsafe fn gemm(&self, op: &'static str, g: &Gemm, tf32: bool) -> Result<()> {
        let sizes = Sizes::of(op, g)?;
        let Sizes { ta, tb, m, n, k, lda, ldb, ldc, batch } = sizes;
        if m == 0 || n == 0 || batch == 0 {
            return Ok(());
        }
        let beta = if g.accumulate { 1.0 } else { 0.0 };
        let (strides, handle) = ((g.stride_a, g.stride_b, g.stride_c), self.handle);
        // SAFETY: the handle is live, the scalars are read before the calls return, and the caller answers for the
        // operands.
        unsafe {
            match (g.dtype, g.batch) {
                (DType::BF16 | DType::F16, _) => self.gemm_ex(op, g, sizes, false),
                (DType::F32, _) if tf32 => self.gemm_ex(op, g, sizes, true),
                (DType::F32, 1) => {
                    let (one, beta) = (1.0f32, beta as f32);
                    let (a, b, c) = (g.a.cast(), g.b.cast(), g.c.cast());
                    let status =
                        blas::cublasSgemm_v2(handle, ta, tb, m, n, k, &one, a, lda, b, ldb, &beta, c, ldc);
                    done("cublasSgemm", status)
                }
                (DType::F32, _) => {
                    let (one, beta) = (1.0f32, beta as f32);
                    let (a, b, c) = (g.a.cast(), g.b.cast(), g.c.cast());
                    let status = blas::cublasSgemmStridedBatched(
                        handle, ta, tb, m, n, k, &one, a, lda, strides.0, b, ldb, strides.1, &beta, c, ldc,
                        strides.2, batch,
                    );
                    done("cublasSgemmStridedBatched", status)
                }
                (DType::F64, 1) => {
                    let (a, b, c) = (g.a.cast(), g.b.cast(), g.c.cast());
                    let status =
                        blas::cublasDgemm_v2(handle, ta, tb, m, n, k, &1.0, a, lda, b, ldb, &beta, c, ldc);
                    done("cublasDgemm", status)
                }
                (DType::F64, _) => {
                    let (a, b, c) = (g.a.cast(), g.b.cast(), g.c.cast());
                    let status = blas::cublasDgemmStridedBatched(
                        handle, ta, tb, m, n, k, &1.0, a, lda, strides.0, b, ldb, strides.1, &beta, c, ldc,
                        strides.2, batch,
                    );
                    done("cublasDgemmStridedBatched", status)
                }
                (dtype, _) => Err(Error::DTypeUnsupported { op, dtype }),
            }
        }
    }

    /// Elements of 16 bits, or with `tf32` F32 whose products round them; sums are F32.
    ///
    /// # Safety
    /// As for [`gemm`](Self::gemm).
    unsafe fn gemm_ex(&self, op: &'static str, g: &Gemm, sizes: Sizes, tf32: bool) -> Result<()> {
        let Sizes { ta, tb, m, n, k, lda, ldb, ldc, batch } = sizes;
        let (of_ab, of_c) = (data_type(op, g.dtype)?, data_type(op, g.c_dtype)?);
        let compute = match tf32 {
            true => blas::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            false => blas::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        let algorithm = blas::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT;
        let scalars = [1.0f32, if g.accumulate { 1.0 } else { 0.0 }];
        let [one, beta] =
            [&scalars[0], &scalars[1]].map(|scalar| std::ptr::from_ref(scalar).cast::<c_void>());
        let (a, b, c) = (g.a.cast(), g.b.cast(), g.c.cast());
        let (sa, sb, sc) = (g.stride_a, g.stride_b, g.stride_c);
        // SAFETY: as in `gemm`.
        unsafe {
            if g.batch == 1 {
                let status = blas::cublasGemmEx(
                    self.handle,
                    ta,
                    tb,
                    m,
                    n,
                    k,
                    one,
                    a,
                    of_ab,
                    lda,
                    b,
                    of_ab,
                    ldb,
                    beta,
                    c,
                    of_c,
                    ldc,
                    compute,
                    algorithm,
                );
                return done("cublasGemmEx", status);
            }
            let status = blas::cublasGemmStridedBatchedEx(
                self.handle,
                ta,
                tb,
                m,
                n,
                k,
                one,
                a,
                of_ab,
                lda,
                sa,
                b,
                of_ab,
                ldb,
                sb,
                beta,
                c,
                of_c,
                ldc,
                sc,
                batch,
                compute,
                algorithm,
            );
            done("cublasGemmStridedBatchedEx", status)
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once; whoever used it last has run.
        unsafe {
            if !self.handle.is_null() {
                blas::cublasDestroy_v2(self.handle);
            }
            if self.workspace != 0 {
                sys::cuMemFree_v2(self.workspace);
            }
        }
    }
}
