//! A collective as a command's work.

use std::sync::Arc;

use device::cuda::Queue;
use device::{Binder, CommandKind, Cpu, Work};

use crate::failure::met_by;
use crate::{Backend, Call, Memory, Result};

/// One rank's part of a collective.
pub(crate) struct Meeting {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) call: Call,
    pub(crate) memory: Memory,
}

impl Meeting {
    fn failed(&self, cpu: &Cpu<'_>, error: crate::Error) {
        cpu.fail(met_by(self.call.op(), error));
    }
}

impl Work for Meeting {
    fn run(&self, cpu: &Cpu<'_>) {
        self.backend.run(&self.call, self.memory).unwrap_or_else(|error| self.failed(cpu, error));
    }

    fn try_run(&self, cpu: &Cpu<'_>) -> bool {
        self.backend.try_run(&self.call, self.memory).unwrap_or_else(|error| {
            self.failed(cpu, error);
            true
        })
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        self.backend.enqueue(&self.call, self.memory, queue)
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        self.memory.bind(binder);
    }

    fn kind(&self) -> CommandKind {
        CommandKind::Collective { bytes: self.call.bytes() }
    }

    fn waits(&self) -> bool {
        true
    }

    fn is_ready(&self) -> bool {
        self.backend.is_ready(&self.call)
    }
}
