//! A collective as a command's work.

use std::sync::Arc;

use device::cuda::Queue;
use device::{Binder, Cpu, Work};

use crate::{Backend, Call, Memory, Result};

/// One rank's part of a collective.
pub(crate) struct Meeting {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) call: Call,
    pub(crate) memory: Memory,
}

impl Work for Meeting {
    fn run(&self, cpu: &Cpu<'_>) {
        self.backend.run(&self.call, self.memory).unwrap_or_else(|error| cpu.fail(error));
    }

    fn try_run(&self, cpu: &Cpu<'_>) -> bool {
        self.backend.try_run(&self.call, self.memory).unwrap_or_else(|error| cpu.fail(error))
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        self.backend.enqueue(&self.call, self.memory, queue)
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        self.memory.bind(binder);
    }

    fn waits(&self) -> bool {
        true
    }
}
