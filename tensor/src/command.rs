//! Tensors as operands of commands that other crates launch, such as collectives.

use device::{Result, Stream};
use kernels::View;

use crate::Tensor;

impl Tensor {
    /// Has `launch` launch a command that writes the elements, on the stream that it is given, which is the current one. The
    /// tensor's [version](Tensor::version) counts it.
    ///
    /// # Errors
    /// Those of `launch`.
    pub fn launch_(&self, launch: impl FnOnce(&Stream, View<'_>) -> Result<()>) -> Result<()> {
        Stream::with_current(self.device(), |stream| launch(stream, self.view()))?;
        self.storage.bump_version();
        Ok(())
    }
}
