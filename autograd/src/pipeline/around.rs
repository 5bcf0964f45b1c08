//! The modes that work for another thread, or for later, runs under.

use std::panic::Location;
use std::sync::Arc;

use device::{AtCaller, Lane, Panicked};
use tensor::{Error, ErrorKind, Generator, next_key, with_generator};

use crate::autocast::Inherited;
use crate::is_recording;
use crate::mode::{perturbation, with_perturbation, with_recording};

/// The modes of the thread that asks for the work, and the generator of its random ops.
pub(crate) struct Around {
    pub(crate) generator: Generator,
    recording: bool,
    perturbation: u64,
    pub(crate) autocast: Option<Inherited>,
    /// The call that the work is for.
    pub(super) caller: &'static Location<'static>,
    /// The lane of the thread that asks.
    pub(super) lane: Lane,
}

impl Around {
    /// The modes of the calling thread.
    pub(crate) fn new(generator: Generator) -> Around {
        let (recording, autocast) = (is_recording(), Inherited::current());
        let (caller, lane) = (AtCaller::location(), Lane::current());
        Around { generator, recording, perturbation: perturbation(), autocast, caller, lane }
    }

    /// The modes of now, for a step of many batches. One draw a step, whatever their number, so that steps differ.
    pub(super) fn next() -> Around {
        let around = Around::new(Generator::current());
        next_key();
        around
    }

    /// The generator of a batch, the same whoever works on it.
    pub(super) fn generator(&self, batch: usize) -> Generator {
        self.generator.fork(batch as u64)
    }

    /// Runs `work`; a panic in it goes no further.
    pub(super) fn run<R>(&self, generator: Generator, work: impl FnOnce() -> R) -> Result<R, Panicked> {
        Panicked::catch(|| self.scope(generator, work))
    }

    /// Runs `work` under these modes.
    pub(crate) fn scope<R>(&self, generator: Generator, work: impl FnOnce() -> R) -> R {
        let _at = AtCaller::enter_at(self.caller);
        let work = || with_recording(self.recording.into(), work);
        let work = || with_perturbation(self.perturbation, work);
        with_generator(generator, || Inherited::scope(self.autocast.as_ref(), work))
    }
}

pub(super) fn failed(
    stage: &str,
    batch: usize,
    source: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    Error::new(ErrorKind::Stage { stage: stage.into(), batch, source: Arc::new(source) })
}
