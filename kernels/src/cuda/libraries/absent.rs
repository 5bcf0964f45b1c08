//! A build without CUDA.

pub(super) mod blas {
    use device::Result;
    use device::cuda::{Queue, Workspace};

    use crate::cuda::libraries::Gemm;

    pub(in crate::cuda) struct Blas;

    impl Blas {
        pub(in crate::cuda) fn of(_: &Queue<'_>) -> Result<Blas> {
            Ok(Blas)
        }
    }

    pub(in crate::cuda) unsafe fn gemm(
        _: &Queue<'_>,
        _: &Gemm,
        _: bool,
        _: [*mut u8; 4],
        _: Workspace,
    ) -> Result<bool> {
        Ok(false)
    }
}

pub(super) mod dnn {
    use device::cuda::Queue;
    use device::{Result, Stream};

    use crate::cuda::libraries::ConvForm;

    pub(in crate::cuda) fn describe(_: &Queue<'_>) -> Result<String> {
        Ok("kernels of its own".to_owned())
    }

    #[derive(Clone, Debug)]
    pub(crate) enum ConvAlgorithm {}

    impl ConvAlgorithm {
        pub(crate) fn of(_: &Stream, _: &'static str, _: &ConvForm) -> Result<Option<ConvAlgorithm>> {
            Ok(None)
        }

        pub(crate) fn workspace(&self) -> usize {
            match *self {}
        }

        pub(crate) fn fits(_: *const u8) -> bool {
            false
        }

        pub(in crate::cuda) unsafe fn enqueue(
            &self,
            _: &Queue<'_>,
            _: [*mut u8; 3],
            _: Option<*mut u8>,
            _: *mut u8,
        ) -> Result<()> {
            match *self {}
        }
    }
}
